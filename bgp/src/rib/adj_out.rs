//! Adj-RIB-Out: the routes that a peer has received, and the rows that are pending for it (RFC 4271
//! §9.2).
//!
//! A change of a best path computes nothing: the row only joins the peer's pending set. When the
//! peer's socket accepts octets, the writer takes rows from the set. For each row it computes the
//! route that the peer should have *now* ([`export`]) and compares it with the advertised one. It
//! writes only the difference. So ten changes become one, and a policy edit sends only what
//! changed. A peer that does not read costs one bit per prefix. The advertised state is one
//! attribute number per row.
//!
//! The initial table is the rows that exist when the session is established. The writer takes them
//! in row order, from the first one. It is complete when the next pending row lies beyond it,
//! however much changes meanwhile. Then End-of-RIB follows (RFC 4724 §2). A refresh that the peer
//! requests is sent in the same way, between its two markers (RFC 7313). It begins after
//! End-of-RIB. A request during a refresh starts another one afterwards.

mod paths;

use smallvec::SmallVec;

use super::attributes::AttrId;
use super::facts::SessionFacts;
use super::peer::Shared;
use super::row_set::RowSet;
use super::table::{Path, Table};
use crate::types::{AddressFamily, Family, NextHop, PeerId, Role};
use crate::wire::{Announcement, EncodeContext, RouteRefresh, UpdateWriter};

/// Rows that one batch examines before it is written; larger batches pack messages better.
const BATCH: usize = 2048;

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
    /// The limit of paths per prefix (RFC 7911) is reached; this path is worse than those.
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
            NotAdvertised::NoPath => "no path of it is in use",
            NotAdvertised::BeyondPaths => "the peer already receives as many better paths as it may",
            NotAdvertised::SplitHorizon => "the path came from this peer",
            NotAdvertised::InternalToInternal => "from an internal peer to another",
            NotAdvertised::NoAdvertise => "the path carries NO_ADVERTISE",
            NotAdvertised::NoExport => "the path carries NO_EXPORT, and the peer is external",
            NotAdvertised::NoPeer => "the path carries NO_PEER, and the peer's role is peer",
            NotAdvertised::LongLivedStale => "long-lived stale, and the peer does not support it",
            NotAdvertised::OnlyToCustomer => "the path carries ONLY_TO_CUSTOMER, and the peer is no customer",
            NotAdvertised::Policy => "rejected by export policy",
            NotAdvertised::NoNextHop => "there is no next hop of the family for the session to carry",
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
    /// there is no room now or its attributes change.
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
    /// `attributes`, only a match of these counts.
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

    /// Everything advertised for a row, with path identifiers.
    pub(super) fn advertised_paths_of(&self, row: u32) -> SmallVec<[(Option<u32>, AttrId); 2]> {
        let plain = self.advertised(row).map(|advertised| (None, advertised));
        let paths = self.paths.iter().flat_map(|paths| paths.of(row));
        plain
            .into_iter()
            .chain(paths.map(|(identifier, advertised)| (Some(identifier), advertised)))
            .collect()
    }

    /// Everything advertised, with path identifiers.
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

    /// Handles a refresh request of the peer that is answered between markers.
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

    /// Clears the Adj-RIB-Out after the session is lost.
    pub(super) fn forget<F: AddressFamily>(table: &mut Table<F>, shared: &mut Shared, peer: PeerId) {
        let Some(facts) = shared.peer_mut(peer) else { return };
        let out = std::mem::take(&mut facts.out[F::FAMILY.index()]);
        facts.counts[F::FAMILY.index()].advertised = 0;
        for (_, advertised) in out.advertised_rows() {
            shared.release(Some(advertised));
        }
        let plain =
            (0u32..).zip(&out.advertised).filter(|(_, advertised)| **advertised != 0).map(|(row, _)| row);
        for row in plain.chain(out.paths.iter().flat_map(paths::AdvertisedPaths::rows)) {
            table.count_advertised(row, false);
        }
        table.shrink_if_empty();
    }
}

/// The attributes to advertise for a row, counted for the caller, or the reason for none.
pub(super) fn export<F: AddressFamily>(
    table: &Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    row: u32,
) -> Result<AttrId, NotAdvertised> {
    let best = *table.row(row).and_then(|_| table.best(row)).ok_or(NotAdvertised::NoPath)?;
    let prefix = table.row(row).ok_or(NotAdvertised::NoPath)?.prefix;
    export_path::<F>(shared, peer, prefix, &best)
}

/// The attributes to advertise for a path, counted for the caller, or the reason for none.
fn export_path<F: AddressFamily>(
    shared: &mut Shared,
    peer: PeerId,
    prefix: F::Prefix,
    best: &Path,
) -> Result<AttrId, NotAdvertised> {
    let used = best.used().ok_or(NotAdvertised::NoPath)?;
    let facts = shared.peer(peer).ok_or(NotAdvertised::NoSession)?;
    let session = facts.session.as_ref().ok_or(NotAdvertised::NoSession)?;
    let (external, export, client) = (facts.external, facts.export, facts.rules.route_reflector_client);
    let role = facts.rules.local_role;
    let mut reflect = None;
    let (own, ext_next_hop) = (session.next_hop(F::FAMILY), session.ext_next_hop);
    let takes_long_lived = session.long_lived_stale;
    let originated = best.peer() == PeerId::LOCAL;
    if best.peer() == peer {
        return Err(NotAdvertised::SplitHorizon);
    }
    if !originated {
        let digest = shared.attributes.digest(used);
        if !external && let Some(from) = shared.peer(best.peer()).filter(|from| !from.external) {
            if !client && !from.rules.route_reflector_client {
                return Err(NotAdvertised::InternalToInternal);
            }
            reflect = from.reflect;
        }
        if digest.is_long_lived_stale() && !takes_long_lived {
            return Err(NotAdvertised::LongLivedStale);
        }
        if role.is_some_and(Role::adds_otc_on_ingress) && digest.is_only_to_customer() {
            return Err(NotAdvertised::OnlyToCustomer);
        }
        if digest.has_no_advertise() {
            return Err(NotAdvertised::NoAdvertise);
        }
        if external && digest.has_no_export() {
            return Err(NotAdvertised::NoExport);
        }
        if role == Some(Role::Peer) && digest.has_no_peer() {
            return Err(NotAdvertised::NoPeer);
        }
    }
    let Shared { transforms, attributes, .. } = shared;
    let reflected = reflect.and_then(|reflect| transforms.apply(reflect, attributes, prefix, used, false));
    let advertised = transforms.apply(export, attributes, prefix, reflected.unwrap_or(used), originated);
    shared.release(reflected);
    let advertised = advertised.ok_or(NotAdvertised::Policy)?;
    let carried = match (F::FAMILY, shared.attributes.next_hop(advertised).or(own)) {
        (_, None) => false,
        (Family::Ipv4Unicast, Some(NextHop::V4(_))) => true,
        (Family::Ipv4Unicast, Some(_)) => ext_next_hop,
        (Family::Ipv6Unicast, Some(next_hop)) => !matches!(next_hop, NextHop::V4(_)),
    };
    if carried {
        Ok(advertised)
    } else {
        shared.release(Some(advertised));
        Err(NotAdvertised::NoNextHop)
    }
}

/// The reason why a row is not advertised to a peer; none if it is.
pub(super) fn explain<F: AddressFamily>(
    table: &Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    row: Option<u32>,
) -> Option<NotAdvertised> {
    let row = row.and_then(|row| Some((table.row(row)?.prefix, *table.best(row)?)));
    let Some((prefix, best)) = row else { return Some(NotAdvertised::NoPath) };
    let outcome = exportable::<F>(shared, peer, prefix, &best);
    shared.release(outcome.ok());
    outcome.err()
}

/// The attributes to advertise for a path if they fit into a message, counted for the caller, or
/// the reason for none.
pub(super) fn exportable<F: AddressFamily>(
    shared: &mut Shared,
    peer: PeerId,
    prefix: F::Prefix,
    path: &Path,
) -> Result<AttrId, NotAdvertised> {
    let advertised = export_path::<F>(shared, peer, prefix, path)?;
    let session = shared.peer(peer).and_then(|peer| peer.session.as_ref());
    let exportable = session.is_some_and(|session| {
        let next_hop = shared.attributes.next_hop(advertised).or(session.next_hop(F::FAMILY));
        let block = shared.attributes.block(advertised);
        let mut out = Vec::new();
        let message = next_hop.map(|next_hop| {
            Announcement::<F>::begin(&mut out, &context(session, F::FAMILY), next_hop, block).is_ok()
        });
        message == Some(true)
    });
    if exportable {
        Ok(advertised)
    } else {
        shared.release(Some(advertised));
        Err(NotAdvertised::TooLong)
    }
}

fn context(session: &SessionFacts, family: Family) -> EncodeContext {
    EncodeContext {
        add_path: session.add_path.contains(family),
        four_octet_as: session.four_octet_as,
        ext_next_hop: session.ext_next_hop,
        max_message: session.max_message,
    }
}

/// Rows taken from the pending set: rows to withdraw, and rows to advertise with their counted
/// attributes.
#[derive(Default)]
struct Batch {
    looked_at: usize,
    withdrawn: Vec<u32>,
    announced: Vec<(AttrId, u32)>,
}

/// Appends pending routes of one family until `out` has `limit` octets. Examines at most `rows`
/// rows.
pub(super) fn write<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    limit: usize,
    rows: &mut usize,
) {
    let Some(session) = shared.peer(peer).and_then(|peer| peer.session.as_ref()) else { return };
    if !session.families.contains(F::FAMILY) {
        return;
    }
    let (context, own) = (context(session, F::FAMILY), session.next_hop(F::FAMILY));
    let held = shared.is_held(F::FAMILY);
    while out.len() < limit {
        if !held
            && let Some(adj) = adj_out::<F>(shared, peer)
            && let Some(marker) = adj.marker()
        {
            adj.marked(marker, table.row_bound());
            match marker {
                Marker::EndOfRib => UpdateWriter::new(out, context).end_of_rib(F::FAMILY),
                Marker::BeginRefresh => RouteRefresh::begin(F::FAMILY).encode(out),
                Marker::EndRefresh => RouteRefresh::end(F::FAMILY).encode(out),
            }
            continue;
        }
        if context.add_path {
            match paths::write_batch(table, shared, peer, out, (context, own), limit, *rows) {
                0 => return,
                looked_at => *rows -= looked_at,
            }
            continue;
        }
        let mut batch = next_batch(table, shared, peer, *rows);
        if batch.looked_at == 0 {
            return;
        }
        *rows -= batch.looked_at;
        withdraw(table, shared, peer, out, context, &batch.withdrawn);
        // Equal attributes share messages; row order is mostly the order of arrival.
        batch.announced.sort_unstable();
        let mut left = batch.announced.as_slice();
        while let Some((advertised, _)) = left.first()
            && out.len() < limit
        {
            let (group, rest) = left.split_at(left.partition_point(|(id, _)| id <= advertised));
            left = rest;
            announce(table, shared, peer, out, (context, own), group);
        }
        put_back::<F>(shared, peer, left.iter().copied());
    }
}

fn adj_out<F: AddressFamily>(shared: &mut Shared, peer: PeerId) -> Option<&mut AdjOut> {
    shared.peer_mut(peer).map(|peer| &mut peer.out[F::FAMILY.index()])
}

fn next_batch<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId, rows: usize) -> Batch {
    let mut batch = Batch::default();
    let held = shared.is_held(F::FAMILY);
    while batch.looked_at < BATCH.min(rows)
        && let Some(adj) = adj_out::<F>(shared, peer)
        && let Some(row) = adj.take(held)
    {
        batch.looked_at += 1;
        let (advertised, owed) = (adj.advertised(row), adj.again.contains(row));
        match export(table, shared, peer, row) {
            Ok(new) if Some(new) == advertised && !owed => shared.release(Some(new)),
            Ok(new) => batch.announced.push((new, row)),
            Err(_) if advertised.is_some() => batch.withdrawn.push(row),
            Err(_) => {}
        }
    }
    batch
}

fn withdraw<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    context: EncodeContext,
    rows: &[u32],
) {
    let prefixes = rows.iter().filter_map(|row| table.row(*row)).map(|row| row.prefix);
    UpdateWriter::new(out, context).withdraw::<F>(prefixes);
    for row in rows {
        let Some(facts) = shared.peer_mut(peer) else { return };
        let advertised = facts.out[F::FAMILY.index()].set_advertised(*row, None);
        facts.counts[F::FAMILY.index()].advertised -= 1;
        shared.release(advertised);
        table.count_advertised(*row, false);
    }
    if shared.counts(peer, F::FAMILY).advertised == 0
        && let Some(adj) = adj_out::<F>(shared, peer)
    {
        adj.advertised = Vec::new(); // a large table is gone: release its memory
    }
    table.shrink_if_empty();
}

/// Advertises rows with the same attributes.
fn announce<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    (context, own): (EncodeContext, Option<NextHop>),
    group: &[(AttrId, u32)],
) {
    let Some((new, _)) = group.first().copied() else { return };
    let Some(next_hop) = shared.attributes.next_hop(new).or(own) else { return };
    let prefixes = group.iter().filter_map(|(_, row)| table.row(*row)).map(|row| row.prefix);
    let block = shared.attributes.block(new);
    if UpdateWriter::new(out, context).announce::<F>(next_hop, block, prefixes).is_err() {
        // They do not fit into a message to this peer; the earlier advertisement is no longer
        // valid.
        let advertised = |row: &u32| adj_out::<F>(shared, peer).is_some_and(|adj| adj.is_advertised(*row));
        let gone: Vec<u32> = group.iter().map(|(_, row)| *row).filter(advertised).collect();
        group.iter().for_each(|(new, _)| shared.release(Some(*new)));
        withdraw(table, shared, peer, out, context, &gone);
        return;
    }
    for (new, row) in group {
        let Some(facts) = shared.peer_mut(peer) else { return };
        let old = facts.out[F::FAMILY.index()].set_advertised(*row, Some(*new));
        if old.is_none() {
            facts.counts[F::FAMILY.index()].advertised += 1;
            table.count_advertised(*row, true);
        }
        shared.release(old);
        was_written(table, shared, peer, *row);
    }
}

/// Records that the route of a watched prefix was written to a peer.
fn was_written<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId, row: u32) {
    if !shared.watched.is_empty()
        && let Some(prefix) = table.row(row).map(|row| row.prefix.into())
        && shared.watched.contains(&prefix)
    {
        shared.written.push_back((prefix, peer));
    }
}

/// Makes rows pending again that found no room, and releases their attributes.
fn put_back<F: AddressFamily>(shared: &mut Shared, peer: PeerId, rows: impl Iterator<Item = (AttrId, u32)>) {
    let mut first = None;
    for (new, row) in rows {
        shared.release(Some(new));
        first = Some(first.map_or(row, |first: u32| first.min(row)));
        let Some(adj) = adj_out::<F>(shared, peer) else { return };
        adj.pending.insert(row);
    }
    if let Some((adj, first)) = adj_out::<F>(shared, peer).zip(first) {
        adj.pending.set_cursor(first);
    }
}
