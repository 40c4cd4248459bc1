//! The writer for a peer that receives several paths of a prefix ([`super::paths`]).

use super::AdjOut;
use super::paths::Paths;
use super::write::{BATCH, adj_out, export_path, put_back, was_written};
use crate::rib::attributes::AttrId;
use crate::rib::peer::Shared;
use crate::rib::table::Table;
use crate::types::{AddressFamily, NextHop, PeerId};
use crate::wire::{EncodeContext, UpdateWriter};

/// Examines up to `rows` pending rows and appends their changes until `out` has `limit` octets.
/// Returns the number of rows examined.
pub(super) fn write_batch<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    (context, own): (EncodeContext, Option<NextHop>),
    limit: usize,
    rows: usize,
) -> usize {
    let held = shared.is_held(F::FAMILY);
    let mut looked_at = 0;
    let mut withdrawn: Vec<(u32, u32)> = Vec::new();
    let mut announced: Vec<(AttrId, u32, u32)> = Vec::new();
    while looked_at < BATCH.min(rows)
        && let Some(adj) = adj_out::<F>(shared, peer)
        && let Some(row) = adj.take(held)
    {
        looked_at += 1;
        let advertised = adj.paths.as_ref().map_or_else(Paths::new, |paths| paths.of(row));
        let wanted = wanted(table, shared, peer, row);
        let is_wanted = |identifier: u32| wanted.iter().any(|(other, _)| *other == identifier);
        withdrawn.extend(
            advertised.iter().filter(|(it, _)| !is_wanted(*it)).map(|(identifier, _)| (row, *identifier)),
        );
        for path in &wanted {
            let paths = adj_out::<F>(shared, peer).and_then(|adj| adj.paths.as_ref());
            match advertised.contains(path) && !paths.is_some_and(|paths| paths.is_owed(row, path.0)) {
                true => shared.release(Some(path.1)),
                false => announced.push((path.1, row, path.0)),
            }
        }
    }
    withdraw(table, shared, peer, out, context, &withdrawn);
    announced.sort_unstable();
    let mut left = announced.as_slice();
    while let Some((advertised, ..)) = left.first()
        && out.len() < limit
    {
        let (group, rest) = left.split_at(left.partition_point(|(id, ..)| id <= advertised));
        left = rest;
        announce(table, shared, peer, out, (context, own), group);
    }
    put_back::<F>(shared, peer, left.iter().map(|(new, row, _)| (*new, *row)));
    looked_at
}

/// Returns the best paths that the peer may receive, up to its limit. The caller releases the
/// references.
fn wanted<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId, row: u32) -> Paths {
    let mut wanted = Paths::new();
    let Some(prefix) = table.row(row).map(|row| row.prefix) else { return wanted };
    let session = shared.peer(peer).and_then(|peer| peer.session.as_ref());
    let most = session.map_or(1, |session| usize::from(session.paths.max(1)));
    let mut usable = table.usable(shared, row);
    while wanted.len() < most
        && let Some((number, path)) = table.take_best(&mut usable)
    {
        if let Ok(advertised) = export_path::<F>(shared, peer, prefix, &path) {
            wanted.push((number + 1, advertised));
        }
    }
    wanted
}

fn withdraw<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    context: EncodeContext,
    paths: &[(u32, u32)],
) {
    let prefixes = paths.iter().filter_map(|(row, identifier)| Some((*identifier, table.row(*row)?.prefix)));
    UpdateWriter::new(out, context).withdraw_paths::<F>(prefixes);
    for (row, identifier) in paths {
        let Some(AdjOut { paths: Some(advertised), .. }) = adj_out::<F>(shared, peer) else { return };
        let old = advertised.take(*row, *identifier);
        let last = !advertised.is_advertised(*row);
        if old.is_some() {
            shared.count(peer, F::FAMILY, |counts| counts.advertised -= 1);
            shared.release(old);
            if last {
                table.count_advertised(*row, false);
            }
        }
    }
    table.shrink_if_empty();
}

/// Announces paths with the same attributes.
fn announce<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    out: &mut Vec<u8>,
    (context, own): (EncodeContext, Option<NextHop>),
    group: &[(AttrId, u32, u32)],
) {
    let Some((new, ..)) = group.first().copied() else { return };
    let Some(next_hop) = shared.attributes.next_hop(new).or(own) else { return };
    let prefixes =
        group.iter().filter_map(|(_, row, identifier)| Some((*identifier, table.row(*row)?.prefix)));
    let block = shared.attributes.block(new);
    if UpdateWriter::new(out, context).announce_paths::<F>(next_hop, block, prefixes).is_err() {
        // The attributes do not fit into a message to this peer. The earlier advertisement is no
        // longer valid.
        group.iter().for_each(|(new, ..)| shared.release(Some(*new)));
        let advertised = adj_out::<F>(shared, peer).and_then(|adj| adj.paths.as_ref());
        let is_advertised = |(row, identifier): &(u32, u32)| {
            advertised
                .is_some_and(|advertised| advertised.of(*row).iter().any(|(other, _)| other == identifier))
        };
        let gone = group.iter().map(|(_, row, identifier)| (*row, *identifier)).filter(is_advertised);
        let gone: Vec<(u32, u32)> = gone.collect();
        withdraw(table, shared, peer, out, context, &gone);
        return;
    }
    for (new, row, identifier) in group {
        let Some(AdjOut { paths: Some(advertised), .. }) = adj_out::<F>(shared, peer) else { return };
        let first = !advertised.is_advertised(*row);
        let old = advertised.set(*row, *identifier, *new);
        if old.is_none() {
            shared.count(peer, F::FAMILY, |counts| counts.advertised += 1);
        }
        shared.release(old);
        if first {
            table.count_advertised(*row, true);
        }
        was_written(table, shared, peer, *row);
    }
}
