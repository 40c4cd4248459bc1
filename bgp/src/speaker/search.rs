//! Searching the tables, piece by piece.
//!
//! Nothing is indexed by AS or by what covers what, so a search walks all rows; a million of them are some tenth of a second of
//! work, which must not be one turn of the speaker. A search therefore is a value that is put before the speaker again and again, for
//! so many rows each time ([`Speaker::search`]), and keeps nothing but the first prefixes that it found and how many there were.
//! Their paths are looked up at the end, so what is shown is of that moment. Rows keep their numbers while their prefix is there: what comes or
//! goes during the search may be missed or be counted, nothing else is.
//!
//! One address is no search: at most 33 (IPv6: 129) prefixes cover it, and they are looked up.

use std::collections::BTreeSet;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::Speaker;
use super::route::Route;
use crate::rib::PathEntry;
use crate::types::{Asn, Family, PeerId, PeerKey};
use crate::wire::PathAttributes;

/// Which paths are looked for; all of it has to hold. The default is every path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteFilter {
    /// The path's prefix covers this one, or lies within it.
    pub prefix: Option<IpNet>,
    /// Who told of it.
    pub from: Option<Source>,
    /// The AS is in its AS_PATH.
    pub asn: Option<Asn>,
    /// It carries this community, written as listings write it: standard, large or extended.
    pub community: Option<String>,
    /// What has become of it.
    pub fate: Option<Fate>,
}

impl RouteFilter {
    /// The one address that it asks for.
    fn one_address(&self) -> Option<IpNet> {
        self.prefix.filter(|prefix| prefix.prefix_len() == prefix.max_prefix_len())
    }
}

/// Who told of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This speaker originates it.
    Own,
    /// A peer.
    Peer(PeerKey),
}

/// What has become of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Traffic takes it, alone or with others.
    Used,
    /// It might be used, and others are better.
    Unused,
    /// It is refused: policy, a loop, a leak.
    Refused,
    /// It is kept from before its peer's restart.
    Stale,
}

/// A search under way; see [`Speaker::search`].
#[derive(Clone, Debug)]
pub struct Search {
    filter: RouteFilter,
    limit: usize,
    /// Where to go on; none once every family is through.
    family: Option<Family>,
    row: u32,
    first: BTreeSet<IpNet>,
    matched: usize,
    looked_at: usize,
}

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The matching paths of the first matching prefixes, by prefix, those in use first. Of what covers one address the longest prefix comes first.
    pub routes: Vec<Route>,
    /// Prefixes that `routes` is about.
    pub shown: usize,
    /// Prefixes with a matching path, among those that were looked at.
    pub matched: usize,
    /// Prefixes that were looked at.
    pub looked_at: usize,
    /// Prefixes in the tables.
    pub prefixes: usize,
    /// Every prefix was looked at.
    pub complete: bool,
}

impl Search {
    /// A search that lists no more than `limit` prefixes, and counts the others.
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
    /// Looks at up to `rows` more prefixes; whether there are more.
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
            let asked = search.filter.prefix.is_none_or(|prefix| Family::of(&prefix) == family);
            let mut rest = self.hub.rib.rows_from(family, search.row).take(if asked { left } else { 0 });
            for (row, prefix, paths) in rest.by_ref() {
                search.row = row + 1;
                search.looked_at += 1;
                left -= 1;
                if matches.any(&paths) {
                    search.note(prefix);
                }
            }
            if left == 0 && asked {
                return true;
            }
            search.row = 0;
            search.family = Family::ALL.into_iter().find(|other| other.index() > family.index());
        }
        false
    }

    /// What a search has found, as it is now.
    pub fn found(&self, search: &Search) -> Found {
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
        Found {
            routes,
            shown: search.first.len(),
            matched: search.matched,
            looked_at: search.looked_at,
            prefixes: Family::ALL.into_iter().map(|family| self.hub.rib.prefixes(family)).sum(),
            complete: search.family.is_none(),
        }
    }
}

/// A filter as the tables have it.
struct Matches {
    filter: RouteFilter,
    /// The number of the peer that is asked for; none where no such peer is there.
    from: Option<Option<PeerId>>,
    /// What was found of attribute sets, by number: those of a piece are mostly the same few.
    known: FxHashMap<u32, bool>,
}

impl Matches {
    fn new(speaker: &Speaker, filter: &RouteFilter) -> Self {
        let from = filter.from.map(|from| match from {
            Source::Own => Some(PeerId::LOCAL),
            Source::Peer(key) => speaker.peer_id(key),
        });
        Matches { filter: filter.clone(), from, known: FxHashMap::default() }
    }

    fn any(&mut self, paths: &[PathEntry<'_>]) -> bool {
        paths.iter().any(|path| self.one(path))
    }

    fn one(&mut self, path: &PathEntry<'_>) -> bool {
        let filter = &self.filter;
        let related = |prefix: IpNet| prefix.contains(&path.prefix) || path.prefix.contains(&prefix);
        filter.prefix.is_none_or(related)
            && self.from.is_none_or(|from| from == Some(path.peer.unwrap_or(PeerId::LOCAL)))
            && filter.fate.is_none_or(|fate| has_met(fate, path))
            && self.attributes(path)
    }

    fn attributes(&mut self, path: &PathEntry<'_>) -> bool {
        if self.filter.asn.is_none() && self.filter.community.is_none() {
            return true;
        }
        let attributes = path.used.unwrap_or(path.received);
        let filter = &self.filter;
        *self.known.entry(attributes.number()).or_insert_with(|| carries(&attributes.parse(), filter))
    }
}

fn has_met(fate: Fate, path: &PathEntry<'_>) -> bool {
    match fate {
        Fate::Used => path.selected,
        Fate::Unused => !path.selected && path.filtered.is_none(),
        Fate::Refused => path.filtered.is_some(),
        Fate::Stale => path.stale,
    }
}

fn carries(attributes: &PathAttributes, filter: &RouteFilter) -> bool {
    filter.asn.is_none_or(|asn| attributes.as_path.contains(asn))
        && filter.community.as_ref().is_none_or(|wanted| {
            let standard = attributes.communities.iter().map(ToString::to_string);
            let large = attributes.large_communities.iter().map(ToString::to_string);
            let extended = attributes.extended_communities.iter().map(ToString::to_string);
            standard.chain(large).chain(extended).any(|community| community == *wanted)
        })
}
