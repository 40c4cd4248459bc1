//! Adj-RIB-Out: the routes that a peer has received, and the rows that are pending for it (RFC 4271
//! §9.2).
//!
//! A change of a best path causes no computation: the row is only added to the peer's pending set.
//! When the peer's socket accepts octets, the writer takes rows from the set. For each row it
//! computes the route that the peer should have *now* ([`write::export`]) and compares it with the
//! advertised one. It writes only the difference. So ten changes become one, and a policy edit
//! sends only what changed. A peer that does not read costs one bit per prefix. The advertised
//! state is one attribute number per row.
//!
//! The initial table is the rows that exist when the session is established. The writer takes them
//! in row order, from the first one. The initial table is complete when the next pending row is not
//! one of its rows. Changes meanwhile do not delay this. Then End-of-RIB follows (RFC 4724 §2). A
//! refresh that the peer requests is sent in the same way, between its two markers (RFC 7313). It
//! begins after End-of-RIB. A request during a refresh starts another one afterwards.

mod paths;
pub(super) mod write;
mod write_paths;

use smallvec::SmallVec;

use super::attributes::AttrId;
use super::row_set::RowSet;

/// The reason why a prefix is not advertised to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdvertised {
    /// There is no session.
    NoSession,
    /// The session does not carry the family.
    NoFamily,
    /// Paths are collected after a restart; the first decision is pending (RFC 4724 §4.1).
    Held,
    /// No path of the prefix is in use.
    NoPath,
    /// The limit of paths per prefix (RFC 7911) is reached by better paths.
    BeyondPaths,
    /// The path in use came from this peer.
    SplitHorizon,
    /// The path came from an internal peer, and this peer is internal too; neither is a client of
    /// this speaker (RFC 4271 §9.2, RFC 4456 §6).
    InternalToInternal,
    /// The path carries NO_ADVERTISE (RFC 1997).
    NoAdvertise,
    /// The path carries NO_EXPORT or NO_EXPORT_SUBCONFED, and the peer is external (RFC 1997).
    NoExport,
    /// The path carries NO_PEER, and the local role towards this peer is peer (RFC 3765, RFC 9234).
    NoPeer,
    /// The path is long-lived stale, and the peer does not support that (RFC 9494 §4.3).
    LongLivedStale,
    /// The path carries ONLY_TO_CUSTOMER, and the peer is not a customer (RFC 9234 §5).
    OnlyToCustomer,
    /// Export policy rejected it.
    Policy,
    /// No next hop is of a family that the session can carry for this prefix.
    NoNextHop,
    /// The attributes do not fit into one message to the peer.
    TooLong,
}

impl std::fmt::Display for NotAdvertised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotAdvertised::NoSession => "not established",
            NotAdvertised::NoFamily => "the session does not carry the family",
            NotAdvertised::Held => "paths are being collected before the first decision",
            NotAdvertised::NoPath => "no path of the prefix is in use",
            NotAdvertised::BeyondPaths => "the peer already receives as many better paths as it may",
            NotAdvertised::SplitHorizon => "the path came from this peer",
            NotAdvertised::InternalToInternal => {
                "the path came from an internal peer, and this \
                peer is internal too"
            }
            NotAdvertised::NoAdvertise => "the path carries NO_ADVERTISE",
            NotAdvertised::NoExport => "the path carries NO_EXPORT, and the peer is external",
            NotAdvertised::NoPeer => "the path carries NO_PEER, and the peer's role is peer",
            NotAdvertised::LongLivedStale => "long-lived stale, and the peer does not support it",
            NotAdvertised::OnlyToCustomer => "the path carries ONLY_TO_CUSTOMER, and the peer is no customer",
            NotAdvertised::Policy => "rejected by export policy",
            NotAdvertised::NoNextHop => "no next hop is of a family that the session can carry",
            NotAdvertised::TooLong => "its attributes do not fit into one message",
        })
    }
}

/// One peer's Adj-RIB-Out in one family.
#[derive(Debug, Default)]
pub(super) struct AdjOut {
    /// Advertised attributes by row; 0 where nothing is advertised.
    advertised: Vec<u32>,
    /// Advertised paths if the peer receives several per prefix (RFC 7911); `advertised` is empty then.
    paths: Option<paths::AdvertisedPaths>,
    /// Rows to examine.
    pub(super) pending: RowSet,
    /// Rows to send again although nothing differs. A row stays here until it is written, even if
    /// it does not fit into the output now or its attributes change.
    again: RowSet,
    /// End-of-RIB is due when all rows before this one have been examined.
    initial: Option<u32>,
    pub(super) end_of_rib_sent: bool,
    refresh: Refresh,
}

/// A requested refresh that is not complete, for sessions with enhanced route refresh (RFC 7313).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Refresh {
    #[default]
    None,
    /// BoRR is due.
    Requested,
    /// EoRR is due when all rows before `bound` have been examined.
    Running { bound: u32, requested_again: bool },
}

/// A marker that is written before any route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    EndOfRib,
    BeginRefresh,
    EndRefresh,
}

impl AdjOut {
    /// Switches to several paths per prefix (RFC 7911).
    pub(super) fn enable_add_path(&mut self) {
        self.paths = Some(paths::AdvertisedPaths::default());
    }

    #[inline]
    pub(super) fn has_add_path(&self) -> bool {
        self.paths.is_some()
    }

    pub(super) fn is_advertised(&self, row: u32) -> bool {
        self.advertised(row).is_some() || self.paths.as_ref().is_some_and(|paths| paths.is_advertised(row))
    }

    /// Whether a path of a row is advertised; `number` is the path's number in the table. With
    /// `attributes`, the path must be advertised with these attributes.
    pub(super) fn has(&self, row: u32, number: u32, attributes: Option<AttrId>) -> bool {
        let same = |advertised: AttrId| attributes.is_none_or(|attributes| attributes == advertised);
        match &self.paths {
            Some(paths) => paths
                .of(row)
                .iter()
                .any(|(identifier, advertised)| *identifier == number + 1 && same(*advertised)),
            None => self.advertised(row).is_some_and(same),
        }
    }

    /// Attributes advertised for a row; none for a peer that receives several paths per prefix.
    pub(super) fn advertised(&self, row: u32) -> Option<AttrId> {
        AttrId::from_stored(self.advertised.get(row as usize).copied().unwrap_or(0))
    }

    /// Advertised rows; a row appears once for each advertised path.
    pub(super) fn advertised_rows(&self) -> impl Iterator<Item = (u32, AttrId)> {
        self.advertised_paths().map(|(row, _, advertised)| (row, advertised))
    }

    /// All advertised paths of a row, with path identifiers.
    pub(super) fn advertised_paths_of(&self, row: u32) -> SmallVec<[(Option<u32>, AttrId); 2]> {
        let plain = self.advertised(row).map(|advertised| (None, advertised));
        let paths = self.paths.iter().flat_map(|paths| paths.of(row));
        plain
            .into_iter()
            .chain(paths.map(|(identifier, advertised)| (Some(identifier), advertised)))
            .collect()
    }

    /// All advertised paths, with path identifiers.
    pub(super) fn advertised_paths(&self) -> impl Iterator<Item = (u32, Option<u32>, AttrId)> {
        let plain = (0u32..).zip(&self.advertised);
        let plain =
            plain.filter_map(|(row, advertised)| Some((row, None, AttrId::from_stored(*advertised)?)));
        let paths = self.paths.iter().flat_map(paths::AdvertisedPaths::iter);
        plain.chain(paths.map(|(row, identifier, advertised)| (row, Some(identifier), advertised)))
    }

    /// The marker that is due: all rows before it have been examined.
    fn marker(&self) -> Option<Marker> {
        let all_before = |bound| self.pending.peek().is_none_or(|row| row >= bound);
        match (self.initial, self.refresh) {
            (Some(bound), _) => all_before(bound).then_some(Marker::EndOfRib),
            (None, Refresh::None) => None,
            (None, Refresh::Requested) => Some(Marker::BeginRefresh),
            (None, Refresh::Running { bound, .. }) => all_before(bound).then_some(Marker::EndRefresh),
        }
    }

    /// Records that a marker was written.
    fn marked(&mut self, marker: Marker, row_bound: u32) {
        match (marker, self.refresh) {
            (Marker::EndOfRib, _) => {
                self.initial = None;
                self.end_of_rib_sent = true;
            }
            (Marker::BeginRefresh, _) => {
                self.readvertise(|_| true);
                self.pending.set_cursor(0);
                self.refresh = Refresh::Running { bound: row_bound, requested_again: false };
            }
            (Marker::EndRefresh, Refresh::Running { requested_again: true, .. }) => {
                self.refresh = Refresh::Requested
            }
            (Marker::EndRefresh, _) => self.refresh = Refresh::None,
        }
    }

    /// Handles a refresh request of the peer. The answer is sent between markers.
    pub(super) fn request_refresh(&mut self) {
        match &mut self.refresh {
            Refresh::Running { requested_again, .. } => *requested_again = true,
            refresh => *refresh = Refresh::Requested,
        }
    }

    /// The next row to examine; none while a marker is due. The rows of a held family come when the
    /// hold ends.
    fn take(&mut self, held: bool) -> Option<u32> {
        if !held && self.marker().is_some() { None } else { self.pending.take() }
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.initial.is_some() || self.refresh != Refresh::None
    }

    /// Records the advertised attributes of a row; returns the previous ones.
    #[inline]
    fn set_advertised(&mut self, row: u32, advertised: Option<AttrId>) -> Option<AttrId> {
        let place = row as usize;
        if place >= self.advertised.len() {
            self.advertised.resize(place + 1, 0);
        }
        self.again.remove(row);
        AttrId::from_stored(std::mem::replace(&mut self.advertised[place], advertised.map_or(0, AttrId::get)))
    }

    /// Schedules the whole table, the rows before `bound`, with End-of-RIB after the last of them.
    pub(super) fn begin(&mut self, bound: u32) {
        self.mark_all_pending(bound);
        self.pending.set_cursor(0);
        self.initial = Some(bound);
        self.end_of_rib_sent = false;
    }

    /// Schedules all rows before `bound`; only differences are sent. Free rows are included,
    /// because skipping them here would cost more.
    pub(super) fn mark_all_pending(&mut self, bound: u32) {
        self.pending.insert_all(bound);
    }

    /// Schedules advertised routes again where `which` matches.
    pub(super) fn readvertise(&mut self, which: impl Fn(AttrId) -> bool) {
        if let Some(paths) = &mut self.paths {
            paths.readvertise(&which, &mut self.pending);
        }
        for place in 0..self.advertised.len() {
            if let Some(advertised) = AttrId::from_stored(self.advertised[place])
                && which(advertised)
            {
                self.again.insert(place as u32);
                self.pending.insert(place as u32);
            }
        }
    }
}
