//! Searches the tables in pieces.
//!
//! There is no index by AS or by covering prefix, so a search walks all rows. A million rows take
//! some tenths of a second, which is too long for one call of the speaker. So a search is a value
//! that the caller passes to [`Speaker::search`] again and again, each time for a number of rows.
//! It keeps only the first prefixes that match and the number of matches. Their paths are looked up
//! at the end, so the result shows the state of that moment. Rows keep their numbers while their
//! prefix exists. The result is uncertain only for prefixes that are added or removed during the
//! search.
//!
//! One address needs no walk: at most 33 (IPv6: 129) prefixes cover it, and these are looked up.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::Speaker;
use super::route::Route;
use crate::rib::PathEntry;
use crate::types::{Asn, Community, ExtendedCommunity, Family, LargeCommunity, PeerId, PeerKey};
use crate::wire::attributes::{Attributes, RawAttribute, table};

/// The conditions of a search; a path must satisfy all of them. The default matches every path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteFilter {
    /// The path's prefix covers this prefix or is covered by it.
    pub prefix: Option<IpNet>,
    /// The origin of the path: this speaker or a peer.
    pub from: Option<Source>,
    /// An AS in the AS_PATH.
    pub asn: Option<Asn>,
    /// A community in the notation of listings: standard, large or extended.
    pub community: Option<String>,
    /// The state of the path.
    pub status: Option<PathStatus>,
}

impl RouteFilter {
    /// The prefix condition, if it is a single address.
    fn one_address(&self) -> Option<IpNet> {
        self.prefix.filter(|prefix| prefix.prefix_len() == prefix.max_prefix_len())
    }
}

/// The origin of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Originated by this speaker.
    Own,
    /// Received from this peer.
    Peer(PeerKey),
}

/// The state of a path in the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStatus {
    /// In use, alone or with others.
    Used,
    /// Eligible, but other paths are better.
    Unused,
    /// Rejected: policy, a loop, a leak.
    Refused,
    /// Retained from before its peer's restart.
    Stale,
}

/// The position and results of a search; see [`Speaker::search`].
#[derive(Clone, Debug)]
pub struct Search {
    filter: RouteFilter,
    limit: usize,
    /// The family to continue with; none after the last one.
    family: Option<Family>,
    row: u32,
    first: BTreeSet<IpNet>,
    matched: usize,
    looked_at: usize,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchResult {
    /// The matching paths of the first matching prefixes, by prefix, those in use first. If the
    /// filter is one address, the longest prefix comes first.
    pub routes: Vec<Route>,
    /// The number of prefixes in `routes`.
    pub shown: usize,
    /// The number of examined prefixes with a matching path.
    pub matched: usize,
    /// The number of examined prefixes.
    pub looked_at: usize,
    /// The number of prefixes in the tables.
    pub prefixes: usize,
    /// Whether every prefix was examined.
    pub complete: bool,
}

impl Search {
    /// A search that lists at most `limit` prefixes and counts the others.
    pub fn new(filter: RouteFilter, limit: usize) -> Self {
        let filter = RouteFilter { prefix: filter.prefix.map(|prefix| prefix.trunc()), ..filter };
        Search {
            filter,
            limit,
            family: Family::ALL.first().copied(),
            row: 0,
            first: BTreeSet::new(),
            matched: 0,
            looked_at: 0,
        }
    }

    fn note(&mut self, prefix: IpNet) {
        self.matched += 1;
        if self.first.len() < self.limit || self.first.last().is_some_and(|last| prefix < *last) {
            self.first.insert(prefix);
            if self.first.len() > self.limit {
                self.first.pop_last();
            }
        }
    }
}

impl Speaker {
    /// Examines up to `rows` more prefixes; returns whether there are more.
    pub fn search(&self, search: &mut Search, rows: usize) -> bool {
        let mut matches = Matches::new(self, &search.filter);
        if let Some(address) = search.filter.one_address() {
            search.family = None;
            for prefix in std::iter::successors(Some(address), IpNet::supernet) {
                let paths = self.hub.rib.lookup(&prefix);
                search.looked_at += usize::from(!paths.is_empty());
                if matches.any(&paths) {
                    search.note(prefix);
                }
            }
            return false;
        }
        let mut left = rows;
        while let Some(family) = search.family {
            let rib = &self.hub.rib;
            let requested = search.filter.prefix.is_none_or(|prefix| Family::of(&prefix) == family);
            let bound = if requested { rib.row_bound(family) } else { 0 };
            while search.row < bound {
                if left == 0 {
                    return true;
                }
                let row = search.row;
                search.row += 1;
                let Some(prefix) = rib.prefix_of(family, row) else { continue };
                search.looked_at += 1;
                left -= 1;
                if matches.related(prefix) && rib.any_path(family, row, |path| matches.one(&path)) {
                    search.note(prefix);
                }
            }
            search.row = 0;
            search.family = Family::ALL.into_iter().find(|other| other.index() > family.index());
        }
        false
    }

    /// The result of a search, with the current state of the paths.
    pub fn found(&self, search: &Search) -> SearchResult {
        let mut matches = Matches::new(self, &search.filter);
        let mut routes = Vec::new();
        let mut shown: Vec<&IpNet> = search.first.iter().collect();
        if search.filter.one_address().is_some() {
            shown.reverse();
        }
        for prefix in shown {
            let paths = self.hub.rib.lookup(prefix);
            let found = paths.iter().filter(|path| matches.one(path));
            routes.extend(found.map(|path| {
                let peer = path.peer.and_then(|peer| self.key_of(peer));
                Route::of_path(path, peer)
            }));
        }
        SearchResult {
            routes,
            shown: search.first.len(),
            matched: search.matched,
            looked_at: search.looked_at,
            prefixes: Family::ALL.into_iter().map(|family| self.hub.rib.prefixes(family)).sum(),
            complete: search.family.is_none(),
        }
    }
}

/// A filter in the representation of the tables.
struct Matches {
    filter: RouteFilter,
    /// The id of the requested peer. `Some(None)`: no such peer exists.
    from: Option<Option<PeerId>>,
    /// The requested community in wire format.
    community: Option<CommunityFilter>,
    /// The result for the attribute set examined last: adjacent rows often have the same set.
    last: Option<(u32, bool)>,
}

/// A community in wire format.
enum CommunityFilter {
    Standard([u8; 4]),
    Large([u8; 12]),
    /// Extended communities are compared in their text form.
    Extended(String),
}

impl CommunityFilter {
    fn of(text: &str) -> CommunityFilter {
        if let Ok(Community(standard)) = text.parse() {
            return CommunityFilter::Standard(standard.to_be_bytes());
        }
        match text.parse() {
            Ok(LargeCommunity { global, local1, local2 }) => {
                let mut octets = [0; 12];
                for (place, part) in octets.chunks_exact_mut(4).zip([global, local1, local2]) {
                    place.copy_from_slice(&part.to_be_bytes());
                }
                CommunityFilter::Large(octets)
            }
            Err(_) => CommunityFilter::Extended(text.to_owned()),
        }
    }

    fn is_in(&self, attribute: &RawAttribute<'_>) -> bool {
        match self {
            CommunityFilter::Standard(octets) => {
                attribute.code == table::COMMUNITIES
                    && attribute.value.chunks_exact(4).any(|one| one == octets)
            }
            CommunityFilter::Large(octets) => {
                attribute.code == table::LARGE_COMMUNITIES
                    && attribute.value.chunks_exact(12).any(|one| one == octets)
            }
            CommunityFilter::Extended(text) => {
                let (communities, _) = attribute.value.as_chunks();
                attribute.code == table::EXTENDED_COMMUNITIES
                    && communities.iter().any(|one| ExtendedCommunity(*one).to_string() == *text)
            }
        }
    }
}

impl Matches {
    fn new(speaker: &Speaker, filter: &RouteFilter) -> Self {
        let from = filter.from.map(|from| match from {
            Source::Own => Some(PeerId::LOCAL),
            Source::Peer(key) => speaker.peer_id(key),
        });
        let community = filter.community.as_deref().map(CommunityFilter::of);
        Matches { filter: filter.clone(), from, community, last: None }
    }

    fn any(&mut self, paths: &[PathEntry<'_>]) -> bool {
        paths.iter().any(|path| self.one(path))
    }

    /// Whether a prefix covers the requested one or is covered by it.
    fn related(&self, prefix: IpNet) -> bool {
        let related = |wanted: IpNet| wanted.contains(&prefix) || prefix.contains(&wanted);
        self.filter.prefix.is_none_or(related)
    }

    fn one(&mut self, path: &PathEntry<'_>) -> bool {
        let filter = &self.filter;
        self.related(path.prefix)
            && self.from.is_none_or(|from| from == Some(path.peer.unwrap_or(PeerId::LOCAL)))
            && filter.status.is_none_or(|status| has_status(status, path))
            && self.attributes(path)
    }

    fn attributes(&mut self, path: &PathEntry<'_>) -> bool {
        if self.filter.asn.is_none() && self.filter.community.is_none() {
            return true;
        }
        let attributes = path.used.unwrap_or(path.received);
        let number = attributes.number();
        match self.last {
            Some((last, carries)) if last == number => carries,
            _ => {
                let carries = self.carries(attributes.block());
                self.last = Some((number, carries));
                carries
            }
        }
    }

    /// Whether a block of attributes has the AS and the community. The block is not parsed, because
    /// a search would spend most of its time parsing a million blocks.
    fn carries(&self, block: &[u8]) -> bool {
        let has =
            |is: &dyn Fn(&RawAttribute<'_>) -> bool| Attributes::new(block).any(|attribute| is(&attribute));
        self.filter.asn.is_none_or(|asn| {
            has(&|attribute| attribute.code == table::AS_PATH && has_as(attribute.value, asn))
        }) && self.community.as_ref().is_none_or(|wanted| has(&|attribute| wanted.is_in(attribute)))
    }
}

fn has_status(status: PathStatus, path: &PathEntry<'_>) -> bool {
    match status {
        PathStatus::Used => path.selected,
        PathStatus::Unused => !path.selected && path.filtered.is_none(),
        PathStatus::Refused => path.filtered.is_some(),
        PathStatus::Stale => path.stale,
    }
}

/// Whether an AS_PATH contains the AS (RFC 4271 §4.3 b, with the four-octet numbers of a canonical
/// block).
fn has_as(mut path: &[u8], asn: Asn) -> bool {
    while let [_kind, count, rest @ ..] = path {
        let Some((segment, behind)) = rest.split_at_checked(usize::from(*count) * 4) else { return false };
        if segment.chunks_exact(4).any(|one| one == asn.0.to_be_bytes()) {
            return true;
        }
        path = behind;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_as_is_found_in_every_segment_of_a_path() {
        let path = [2, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 0, 0, 0, 7];
        for (asn, is_there) in [(1, true), (2, true), (7, true), (3, false), (0x0100_0000, false)] {
            assert_eq!(has_as(&path, Asn(asn)), is_there, "{asn}");
        }
        assert!(!has_as(&path[..8], Asn(2)), "cut off");
        assert!(!has_as(&[], Asn(1)));
    }

    #[test]
    fn a_community_is_found_in_its_own_attribute_alone() {
        let standard = [0xfd, 0xe8, 0, 7, 0xff, 0xff, 0xff, 1];
        let large = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
        let extended = [0, 2, 0xfd, 0xe8, 0, 0, 0, 1];
        let written = ExtendedCommunity(extended).to_string();
        for (text, code, value) in [
            ("65000:7", table::COMMUNITIES, &standard[..]),
            ("no-export", table::COMMUNITIES, &standard),
            ("1:2:3", table::LARGE_COMMUNITIES, &large),
            (written.as_str(), table::EXTENDED_COMMUNITIES, &extended),
        ] {
            let wanted = CommunityFilter::of(text);
            for other in [table::COMMUNITIES, table::LARGE_COMMUNITIES, table::EXTENDED_COMMUNITIES] {
                let attribute = RawAttribute { flags: 0xc0, code: other, value, whole: value };
                assert_eq!(wanted.is_in(&attribute), other == code, "{text} in {other}");
            }
        }
        let other =
            RawAttribute { flags: 0xc0, code: table::COMMUNITIES, value: &standard, whole: &standard };
        assert!(!CommunityFilter::of("65000:8").is_in(&other));
    }
}
