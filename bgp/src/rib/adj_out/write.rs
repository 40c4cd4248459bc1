//! The writer of the Adj-RIB-Out: the export of a route to a peer, and the messages for it.

use super::{AdjOut, Marker, NotAdvertised, paths, write_paths};
use crate::rib::attributes::AttrId;
use crate::rib::facts::SessionFacts;
use crate::rib::peer::Shared;
use crate::rib::table::{Path, Table};
use crate::types::{AddressFamily, Family, NextHop, PeerId, Role};
use crate::wire::{Announcement, EncodeContext, RouteRefresh, UpdateWriter};

/// Rows that one batch examines before it is written; larger batches pack messages better.
pub(super) const BATCH: usize = 2048;

impl AdjOut {
    /// Clears the Adj-RIB-Out after the session is lost.
    pub(in crate::rib) fn forget<F: AddressFamily>(table: &mut Table<F>, shared: &mut Shared, peer: PeerId) {
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

/// Returns the attributes to advertise for a row. The caller releases the reference. The error is
/// the reason why the row is not advertised.
pub(in crate::rib) fn export<F: AddressFamily>(
    table: &Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    row: u32,
) -> Result<AttrId, NotAdvertised> {
    let best = *table.row(row).and_then(|_| table.best(row)).ok_or(NotAdvertised::NoPath)?;
    let prefix = table.row(row).ok_or(NotAdvertised::NoPath)?.prefix;
    export_path::<F>(shared, peer, prefix, &best)
}

/// Returns the attributes to advertise for a path. The caller releases the reference. The error is
/// the reason why the path is not advertised.
pub(super) fn export_path<F: AddressFamily>(
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
pub(in crate::rib) fn explain<F: AddressFamily>(
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

/// Like `export_path`, with one more check: the attributes fit into a message to the peer.
pub(in crate::rib) fn exportable<F: AddressFamily>(
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

/// Rows of the pending set: rows to withdraw, and rows to advertise. Each row to advertise holds a
/// reference to its attributes.
#[derive(Default)]
struct Batch {
    looked_at: usize,
    withdrawn: Vec<u32>,
    announced: Vec<(AttrId, u32)>,
}

/// Appends pending routes of one family until `out` has `limit` octets. Examines at most `rows`
/// rows.
pub(in crate::rib) fn write<F: AddressFamily>(
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
            match write_paths::write_batch(table, shared, peer, out, (context, own), limit, *rows) {
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
        // Routes with equal attributes share messages. Rows are mostly in the order in which their
        // prefixes arrived.
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

pub(super) fn adj_out<F: AddressFamily>(shared: &mut Shared, peer: PeerId) -> Option<&mut AdjOut> {
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
        // The attributes do not fit into a message to this peer. The earlier advertisement is no
        // longer valid.
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
pub(super) fn was_written<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId, row: u32) {
    if !shared.watched.is_empty()
        && let Some(prefix) = table.row(row).map(|row| row.prefix.into())
        && shared.watched.contains(&prefix)
    {
        shared.written.push_back((prefix, peer));
    }
}

/// Marks the remaining rows as pending again, and releases their attributes. The rows did not fit
/// into the output.
pub(super) fn put_back<F: AddressFamily>(
    shared: &mut Shared,
    peer: PeerId,
    rows: impl Iterator<Item = (AttrId, u32)>,
) {
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
