//! Adj-RIB-Out of a peer that is told several paths of a prefix (RFC 7911).
//!
//! It differs from the plain kind in what a row stands for: the best N paths that the peer may have, each with an
//! identifier, instead of the best one if the peer may have that. So any change of what may be used in a row makes it
//! pending, whether the best path changed or not. The rest is the same: what is wanted is computed when the socket takes
//! octets, and compared with what was told.
//!
//! The identifier of a path is its place in the arena plus one: the same as long as the path is there, and never that of
//! another path of the same prefix at the same time. If another path of the prefix takes the place later, it takes the
//! identifier too, which announces it in place of the last one: that is what it is.
//!
//! What was told is kept in a map by row and not in a vector: who wants several paths is a route server or a reflector, and
//! the memory goes with the number of paths anyway.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{AdjOut, BATCH, adj_out, export_path, put_back, was_written};
use crate::rib::attributes::AttrId;
use crate::rib::peer::Shared;
use crate::rib::row_set::RowSet;
use crate::rib::table::Table;
use crate::types::{AddressFamily, NextHop, PeerId};
use crate::wire::{EncodeContext, UpdateWriter};

/// Identifiers and attributes of the paths of a row that a peer was told.
type Paths = SmallVec<[(u32, AttrId); 2]>;

/// What a peer was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By row; no entry is empty.
    rows: FxHashMap<u32, Paths>,
    /// Rows and identifiers of these that are told again though nothing differs. By path and not by row: of a row's paths some
    /// may be written, and the others find no room.
    again: FxHashSet<(u32, u32)>,
}

impl Told {
    pub(super) fn is_told(&self, row: u32) -> bool {
        self.rows.contains_key(&row)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = u32> {
        self.rows.keys().copied()
    }

    /// Row, identifier and attributes of each path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, AttrId)> {
        self.rows
            .iter()
            .flat_map(|(row, paths)| paths.iter().map(|(identifier, told)| (*row, *identifier, *told)))
    }

    pub(super) fn of(&self, row: u32) -> Paths {
        self.rows.get(&row).cloned().unwrap_or_default()
    }

    /// What was told is told again, as far as `which` says so: its rows become pending.
    pub(super) fn tell_again(&mut self, which: impl Fn(AttrId) -> bool, pending: &mut RowSet) {
        for (row, paths) in &self.rows {
            for (identifier, _) in paths.iter().filter(|(_, told)| which(*told)) {
                self.again.insert((*row, *identifier));
                pending.insert(*row);
            }
        }
    }

    /// Whether it has yet to be.
    fn is_owed(&self, row: u32, identifier: u32) -> bool {
        self.again.contains(&(row, identifier))
    }

    /// Puts down what was told; what stood there before. The caller has counted `told`.
    fn set(&mut self, row: u32, identifier: u32, told: AttrId) -> Option<AttrId> {
        self.again.remove(&(row, identifier));
        let paths = self.rows.entry(row).or_default();
        match paths.iter_mut().find(|(other, _)| *other == identifier) {
            Some((_, old)) => Some(std::mem::replace(old, told)),
            None => {
                paths.push((identifier, told));
                None
            }
        }
    }

    /// Takes out what was told.
    fn take(&mut self, row: u32, identifier: u32) -> Option<AttrId> {
        self.again.remove(&(row, identifier));
        let paths = self.rows.get_mut(&row)?;
        let place = paths.iter().position(|(other, _)| *other == identifier)?;
        let (_, old) = paths.swap_remove(place);
        if paths.is_empty() {
            self.rows.remove(&row);
            if self.rows.is_empty() {
                *self = Told::default(); // a large table has gone: its memory is given back
            }
        }
        Some(old)
    }
}

/// Looks at up to `rows` rows that are pending and appends what the peer has yet to be told of them, until `out` has `limit`
/// octets; how many it looked at.
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
        let told = adj.paths.as_ref().map_or_else(Paths::new, |paths| paths.of(row));
        let wanted = wanted(table, shared, peer, row);
        let is_wanted = |identifier: u32| wanted.iter().any(|(other, _)| *other == identifier);
        withdrawn
            .extend(told.iter().filter(|(it, _)| !is_wanted(*it)).map(|(identifier, _)| (row, *identifier)));
        for path in &wanted {
            let paths = adj_out::<F>(shared, peer).and_then(|adj| adj.paths.as_ref());
            match told.contains(path) && !paths.is_some_and(|paths| paths.is_owed(row, path.0)) {
                true => shared.release(Some(path.1)),
                false => announced.push((path.1, row, path.0)),
            }
        }
    }
    withdraw(table, shared, peer, out, context, &withdrawn);
    announced.sort_unstable();
    let mut left = announced.as_slice();
    while let Some((told, ..)) = left.first()
        && out.len() < limit
    {
        let (group, rest) = left.split_at(left.partition_point(|(id, ..)| id <= told));
        left = rest;
        announce(table, shared, peer, out, (context, own), group);
    }
    put_back::<F>(shared, peer, left.iter().map(|(new, row, _)| (*new, *row)));
    looked_at
}

/// The best paths that the peer may have, at most as many as it is to be told, counted.
fn wanted<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId, row: u32) -> Paths {
    let mut wanted = Paths::new();
    let Some(prefix) = table.row(row).map(|row| row.prefix) else { return wanted };
    let session = shared.peer(peer).and_then(|peer| peer.session.as_ref());
    let most = session.map_or(1, |session| usize::from(session.paths.max(1)));
    let mut usable = table.usable(shared, row);
    while wanted.len() < most
        && let Some((number, path)) = table.take_best(&mut usable)
    {
        if let Ok(told) = export_path::<F>(shared, peer, prefix, &path) {
            wanted.push((number + 1, told));
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
        let Some(AdjOut { paths: Some(told), .. }) = adj_out::<F>(shared, peer) else { return };
        let old = told.take(*row, *identifier);
        let last = !told.is_told(*row);
        if old.is_some() {
            shared.count(peer, F::FAMILY, |counts| counts.advertised -= 1);
            shared.release(old);
            if last {
                table.count_told(*row, false);
            }
        }
    }
    table.shrink_if_empty();
}

/// Announces paths that have their attributes in common.
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
        // They cannot be said to this peer; what it was told before does not hold any more.
        group.iter().for_each(|(new, ..)| shared.release(Some(*new)));
        let told = adj_out::<F>(shared, peer).and_then(|adj| adj.paths.as_ref());
        let is_told = |(row, identifier): &(u32, u32)| {
            told.is_some_and(|told| told.of(*row).iter().any(|(other, _)| other == identifier))
        };
        let gone = group.iter().map(|(_, row, identifier)| (*row, *identifier)).filter(is_told);
        let gone: Vec<(u32, u32)> = gone.collect();
        withdraw(table, shared, peer, out, context, &gone);
        return;
    }
    for (new, row, identifier) in group {
        let Some(AdjOut { paths: Some(told), .. }) = adj_out::<F>(shared, peer) else { return };
        let first = !told.is_told(*row);
        let old = told.set(*row, *identifier, *new);
        if old.is_none() {
            shared.count(peer, F::FAMILY, |counts| counts.advertised += 1);
        }
        shared.release(old);
        if first {
            table.count_told(*row, true);
        }
        was_written(table, shared, peer, *row);
    }
}
