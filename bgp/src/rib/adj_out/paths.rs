//! Adj-RIB-Out of a peer that receives several paths of a prefix (RFC 7911).
//!
//! Here a row stands for the best N paths that the peer may receive, each with an identifier. In
//! the plain kind it stands for the best path only. So any change of a row's usable paths makes the
//! row pending, even if the best path is the same. The rest is the same as there: the wanted paths
//! are computed when the socket accepts octets, and compared with the advertised ones.
//!
//! The identifier of a path is its place in the arena plus one. It is constant while the path
//! exists, and two paths of one prefix never share it at the same time. If another path of the
//! prefix takes the place later, it takes the identifier too. The new advertisement then replaces
//! the old path, which is correct.
//!
//! Advertised paths are kept in a map by row, not in a vector. Peers that receive several paths are
//! few, mostly route servers and reflectors, and the memory grows with the number of paths anyway.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{AdjOut, BATCH, adj_out, export_path, put_back, was_written};
use crate::rib::attributes::AttrId;
use crate::rib::peer::Shared;
use crate::rib::row_set::RowSet;
use crate::rib::table::Table;
use crate::types::{AddressFamily, NextHop, PeerId};
use crate::wire::{EncodeContext, UpdateWriter};

/// Identifiers and attributes of the advertised paths of a row.
type Paths = SmallVec<[(u32, AttrId); 2]>;

/// The advertised paths of a peer.
#[derive(Debug, Default)]
pub(super) struct AdvertisedPaths {
    /// By row; no entry is empty.
    rows: FxHashMap<u32, Paths>,
    /// Rows and identifiers of paths to send again although nothing differs. The key is a path, not
    /// a row: some paths of a row may be written while others find no room.
    again: FxHashSet<(u32, u32)>,
}

impl AdvertisedPaths {
    pub(super) fn is_advertised(&self, row: u32) -> bool {
        self.rows.contains_key(&row)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = u32> {
        self.rows.keys().copied()
    }

    /// Row, identifier and attributes of each path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, AttrId)> {
        self.rows.iter().flat_map(|(row, paths)| {
            paths.iter().map(|(identifier, advertised)| (*row, *identifier, *advertised))
        })
    }

    pub(super) fn of(&self, row: u32) -> Paths {
        self.rows.get(&row).cloned().unwrap_or_default()
    }

    /// Schedules advertised paths again where `which` matches: their rows become pending.
    pub(super) fn readvertise(&mut self, which: impl Fn(AttrId) -> bool, pending: &mut RowSet) {
        for (row, paths) in &self.rows {
            for (identifier, _) in paths.iter().filter(|(_, advertised)| which(*advertised)) {
                self.again.insert((*row, *identifier));
                pending.insert(*row);
            }
        }
    }

    /// Whether the path is scheduled to be sent again.
    fn is_owed(&self, row: u32, identifier: u32) -> bool {
        self.again.contains(&(row, identifier))
    }

    /// Records an advertised path; returns the previous attributes. The caller has counted `advertised`.
    fn set(&mut self, row: u32, identifier: u32, advertised: AttrId) -> Option<AttrId> {
        self.again.remove(&(row, identifier));
        let paths = self.rows.entry(row).or_default();
        match paths.iter_mut().find(|(other, _)| *other == identifier) {
            Some((_, old)) => Some(std::mem::replace(old, advertised)),
            None => {
                paths.push((identifier, advertised));
                None
            }
        }
    }

    /// Removes an advertised path; returns its attributes.
    fn take(&mut self, row: u32, identifier: u32) -> Option<AttrId> {
        self.again.remove(&(row, identifier));
        let paths = self.rows.get_mut(&row)?;
        let place = paths.iter().position(|(other, _)| *other == identifier)?;
        let (_, old) = paths.swap_remove(place);
        if paths.is_empty() {
            self.rows.remove(&row);
            if self.rows.is_empty() {
                *self = AdvertisedPaths::default(); // a large table is gone: release its memory
            }
        }
        Some(old)
    }
}

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

/// The best paths that the peer may receive, up to its limit, counted.
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
        // They do not fit into a message to this peer; the earlier advertisement is no longer
        // valid.
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
