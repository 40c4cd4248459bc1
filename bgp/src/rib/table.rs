//! The table of one address family: the Adj-RIB-Ins of all peers and the Loc-RIB in one structure.
//!
//! A prefix has a [`Row`], which heads a list of its [`Path`]s, usually one from each peer that
//! advertised it. Selected paths come first, the best path at the front. Adj-RIB-In is the paths of
//! one peer, Loc-RIB the selected paths; neither is stored a second time. Rows and paths are in two
//! arenas and refer to each other by number. A prefix with one path takes 12 + 16 octets in IPv4,
//! and 5 to 10 octets in the index. A peer with ADD-PATH (RFC 7911) may have several paths in a
//! row; a separate map has their identifiers.
//!
//! Every change has four steps: record the selected paths, change the list, run the decision,
//! compare. If the best path differs, the row becomes pending for every peer. If the set of next
//! hops differs, it becomes pending for the FIB. A rejected path (policy, loop) is kept with the
//! reason, so a changed policy can accept it later.
//!
//! While a family is held (RFC 4724 §4.1), lists change without a decision. Rows with a change are
//! flagged, because the previous selection is unknown at the end of the hold. Originated paths may
//! be selected earlier: they win against every received path, so no peer can change that result.
//!
//! A row stays while it has paths, and while it is advertised to a peer (the row has a count of
//! these peers). It also stays until the FIB has received its removal.

mod fib;

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::attributes::AttrId;
use super::decision::{self, Candidate, Candidates};
use super::peer::Shared;
use super::received::{Filtered, ReceivedPath};
use super::row_set::RowSet;
use crate::types::{AddressFamily, Community, PeerId};
use fib::same_next_hops;

/// No row, no path.
const NIL: u32 = u32::MAX;

/// A prefix.
#[derive(Debug)]
pub(super) struct Row<F: AddressFamily> {
    pub(super) prefix: F::Prefix,
    flags: u8,
    /// The number of peers that the prefix is advertised to; it stays at the maximum once reached.
    advertised_to: u16,
    head: u32,
}

impl<F: AddressFamily> Row<F> {
    /// The row is in the list of free rows.
    const FREE: u8 = 1;
    /// The FIB was given next hops for the row.
    const IN_FIB: u8 = 1 << 1;
    /// The usable paths changed while the family was held.
    const CHANGED: u8 = 1 << 2;

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

/// The path of one peer for a prefix, in 16 octets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// The attributes as received.
    received: u32,
    /// The attributes after import policy; 0 if the path is rejected.
    used: u32,
    /// The peer in the low 24 bits, then flags, then the reason of a rejection, then whether the
    /// path has an identifier.
    owner: u32,
    next: u32,
}

impl Path {
    const SELECTED: u32 = 1 << 24;
    const STALE: u32 = 1 << 25;
    const REASON_SHIFT: u32 = 26;
    const REASON: u32 = 0x1f << Self::REASON_SHIFT;
    /// The path has an identifier, which is in [`Table::identifiers`].
    const IDENTIFIED: u32 = 1 << 31;

    pub(super) fn peer(&self) -> PeerId {
        PeerId(self.owner & PeerId::LOCAL.0)
    }

    pub(super) fn received(&self) -> Option<AttrId> {
        AttrId::from_stored(self.received)
    }

    pub(super) fn used(&self) -> Option<AttrId> {
        AttrId::from_stored(self.used)
    }

    pub(super) fn is_selected(&self) -> bool {
        self.owner & Self::SELECTED != 0
    }

    pub(super) fn is_stale(&self) -> bool {
        self.owner & Self::STALE != 0
    }

    pub(super) fn filtered(&self) -> Option<Filtered> {
        match (self.owner & Self::REASON) >> Self::REASON_SHIFT {
            1 => Some(Filtered::Policy),
            2 => Some(Filtered::AsLoop),
            3 => Some(Filtered::OriginatorLoop),
            4 => Some(Filtered::OwnNextHop),
            5 => Some(Filtered::ClusterLoop),
            6 => Some(Filtered::RouteLeak),
            _ => None,
        }
    }

    fn set_filtered(&mut self, filtered: Option<Filtered>) {
        let reason = match filtered {
            None => 0,
            Some(Filtered::Policy) => 1,
            Some(Filtered::AsLoop) => 2,
            Some(Filtered::OriginatorLoop) => 3,
            Some(Filtered::OwnNextHop) => 4,
            Some(Filtered::ClusterLoop) => 5,
            Some(Filtered::RouteLeak) => 6,
        };
        self.owner = self.owner & !Self::REASON | reason << Self::REASON_SHIFT;
    }

    fn set(&mut self, flag: u32, on: bool) {
        if on {
            self.owner |= flag;
        } else {
            self.owner &= !flag;
        }
    }
}

/// The selected paths before or after a change: peers and attributes.
///
/// The best path is separate from the others. Usually there are no others, and this type is used
/// several times for each of a million prefixes.
#[derive(Debug, Default, PartialEq, Eq)]
struct SelectedPaths {
    best: Option<(PeerId, AttrId)>,
    others: SmallVec<[(PeerId, AttrId); 3]>,
}

impl SelectedPaths {
    /// All selected paths, the best one first.
    fn iter(&self) -> impl Iterator<Item = (PeerId, AttrId)> {
        self.best.into_iter().chain(self.others.iter().copied())
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Table<F: AddressFamily> {
    index: HashTable<u32>,
    rows: Vec<Row<F>>,
    free_row: u32,
    paths: Vec<Path>,
    free_path: u32,
    /// Path identifiers (RFC 7911) by path number. A path without an identifier costs no memory
    /// here.
    identifiers: FxHashMap<u32, u32>,
    /// Rows that are pending for the FIB.
    dirty: RowSet,
}

impl<F: AddressFamily> Default for Table<F> {
    fn default() -> Self {
        Table {
            index: HashTable::new(),
            rows: Vec::new(),
            free_row: NIL,
            paths: Vec::new(),
            free_path: NIL,
            identifiers: FxHashMap::default(),
            dirty: RowSet::default(),
        }
    }
}

impl<F: AddressFamily> Table<F> {
    /// The number of rows in use.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The number of rows in the arena, including free ones: a bound above every row number.
    pub(super) fn row_bound(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The numbers of the rows in use.
    pub(super) fn row_numbers(&self) -> impl Iterator<Item = u32> {
        (0..self.row_bound()).filter(|row| !self.rows[*row as usize].is(Row::<F>::FREE))
    }

    /// A row, unless it is free.
    pub(super) fn row(&self, row: u32) -> Option<&Row<F>> {
        self.rows.get(row as usize).filter(|row| !row.is(Row::<F>::FREE))
    }

    /// The row of a prefix.
    pub(super) fn find(&self, prefix: &F::Prefix) -> Option<u32> {
        let same = |row: &u32| self.rows[*row as usize].prefix == *prefix;
        self.index.find(FxBuildHasher.hash_one(prefix), same).copied()
    }

    /// The paths of a row, those in use first.
    pub(super) fn paths(&self, row: u32) -> impl Iterator<Item = &Path> {
        self.path_numbers(row).map(|path| &self.paths[path as usize])
    }

    /// The best path of a row, if one is in use.
    pub(super) fn best(&self, row: u32) -> Option<&Path> {
        self.paths(row).next().filter(|path| path.is_selected())
    }

    fn path_numbers(&self, row: u32) -> impl Iterator<Item = u32> {
        let mut path = self.rows[row as usize].head;
        std::iter::from_fn(move || {
            let this = path;
            path = self.paths.get(this as usize)?.next;
            Some(this)
        })
    }

    /// A peer's path with this identifier, or without one.
    fn path_of(&self, row: u32, peer: PeerId, identifier: Option<u32>) -> Option<u32> {
        let flag = if identifier.is_some() { Path::IDENTIFIED } else { 0 };
        self.path_numbers(row).find(|path| {
            let owner = self.paths[*path as usize].owner & (PeerId::LOCAL.0 | Path::IDENTIFIED);
            owner == peer.0 | flag
                && identifier.is_none_or(|identifier| self.identifiers.get(path) == Some(&identifier))
        })
    }

    /// All paths of a peer in a row: at most one, unless the peer sends several.
    fn paths_of(&self, row: u32, peer: PeerId) -> SmallVec<[u32; 2]> {
        let mut paths = SmallVec::new();
        if self.row(row).is_some() {
            paths.extend(self.path_numbers(row).filter(|path| self.paths[*path as usize].peer() == peer));
        }
        paths
    }

    /// The identifier of a received path.
    fn identifier(&self, number: u32, path: &Path) -> Option<u32> {
        if path.owner & Path::IDENTIFIED == 0 { None } else { self.identifiers.get(&number).copied() }
    }

    /// The paths of a row with the received identifiers, those in use first.
    pub(super) fn identified_paths(&self, row: u32) -> impl Iterator<Item = (Option<u32>, &Path)> {
        self.numbered_paths(row).map(|(_, identifier, path)| (identifier, path))
    }

    /// Like [`Self::identified_paths`], with the path numbers.
    pub(super) fn numbered_paths(&self, row: u32) -> impl Iterator<Item = (u32, Option<u32>, &Path)> {
        self.path_numbers(row).map(|number| {
            let path = &self.paths[number as usize];
            (number, self.identifier(number, path), path)
        })
    }

    /// The peer of a path; none if the path is originated here.
    pub(super) fn peer_of(&self, number: u32) -> Option<PeerId> {
        self.paths.get(number as usize).map(Path::peer).filter(|peer| *peer != PeerId::LOCAL)
    }

    /// The candidates of a row: the input of the decision.
    pub(super) fn candidates(&self, shared: &Shared, row: u32) -> Candidates {
        let paths = self.numbered_paths(row);
        paths
            .filter_map(|(number, identifier, path)| {
                Some(candidate(shared, number, path, identifier, path.used()?))
            })
            .collect()
    }

    /// The paths of a row that may be used; in a held family only originated ones.
    pub(super) fn usable(&self, shared: &Shared, row: u32) -> Candidates {
        let held = shared.is_held(F::FAMILY);
        let mut candidates = Candidates::new();
        for number in self.path_numbers(row) {
            let path = &self.paths[number as usize];
            if let Some(used) = path.used().filter(|_| !held || path.peer() == PeerId::LOCAL) {
                candidates.push(candidate(shared, number, path, self.identifier(number, path), used));
            }
        }
        candidates
    }

    /// Takes the best path out of [`Self::usable`], with its number. It takes one path at a time,
    /// because a caller that needs few paths should not rank all of them.
    pub(super) fn take_best(&self, usable: &mut Candidates) -> Option<(u32, Path)> {
        let mut best = usable.clone();
        decision::select(&mut best, 1);
        let best = best.first()?.path;
        usable.retain(|other| other.path != best);
        Some((best, self.paths[best as usize]))
    }

    #[inline]
    fn selected_paths(&self, row: u32) -> SelectedPaths {
        let head = self.paths.get(self.rows[row as usize].head as usize);
        let Some(best) = head.filter(|path| path.is_selected()) else { return SelectedPaths::default() };
        let mut selected_paths =
            SelectedPaths { best: best.used().map(|used| (best.peer(), used)), others: SmallVec::new() };
        if best.next != NIL {
            let others = self.paths(row).skip(1).take_while(|path| path.is_selected());
            selected_paths.others.extend(others.filter_map(|path| Some((path.peer(), path.used()?))));
        }
        selected_paths
    }

    fn row_for(&mut self, prefix: F::Prefix) -> u32 {
        let rows = &self.rows;
        let same = |row: &u32| rows[*row as usize].prefix == prefix;
        let hash_of = |row: &u32| FxBuildHasher.hash_one(rows[*row as usize].prefix);
        let place = match self.index.entry(FxBuildHasher.hash_one(prefix), same, hash_of) {
            Entry::Occupied(found) => return *found.get(),
            Entry::Vacant(place) => place,
        };
        let new = Row { prefix, flags: 0, advertised_to: 0, head: NIL };
        let row = match self.free_row {
            NIL => {
                self.rows.push(new);
                self.rows.len() as u32 - 1
            }
            row => {
                self.free_row = self.rows[row as usize].head;
                self.rows[row as usize] = new;
                row
            }
        };
        place.insert(row);
        row
    }

    /// Adds a peer's path, or replaces its previous one. The new path is not stale.
    pub(super) fn announce(
        &mut self,
        shared: &mut Shared,
        peer: PeerId,
        prefix: F::Prefix,
        identifier: Option<u32>,
        received_path: ReceivedPath,
    ) {
        let row = self.row_for(prefix);
        match self.path_of(row, peer, identifier) {
            Some(path) => self.replace(shared, row, path, received_path, false),
            None => {
                let before = self.selected_paths(row);
                self.append(row, peer, identifier, &received_path);
                if let Some(peer) = shared.peer_mut(peer) {
                    let counts = &mut peer.counts[F::FAMILY.index()];
                    counts.received += 1;
                    counts.accepted += usize::from(received_path.used.is_ok());
                    peer.rows[F::FAMILY.index()].insert(row);
                }
                self.count_default(shared, row, peer, (false, received_path.used.is_ok()));
                self.decide(shared, row, &before);
            }
        }
    }

    /// Counts a path of the default route that was usable before a change, or is usable after it.
    /// Reads only the row, which the change has read anyway.
    #[inline]
    fn count_default(&self, shared: &mut Shared, row: u32, peer: PeerId, (before, after): (bool, bool)) {
        if before != after && F::parts(&self.rows[row as usize].prefix).1 == 0 {
            shared.count_default(peer, F::FAMILY, after);
        }
    }

    fn append(&mut self, row: u32, peer: PeerId, identifier: Option<u32>, received_path: &ReceivedPath) {
        let mut new = Path {
            received: received_path.received.get(),
            used: received_path.used.map_or(0, AttrId::get),
            owner: peer.0,
            next: NIL,
        };
        new.set_filtered(received_path.used.err());
        let number = match self.free_path {
            NIL => {
                self.paths.push(new);
                self.paths.len() as u32 - 1
            }
            path => {
                self.free_path = self.paths[path as usize].next;
                self.paths[path as usize] = new;
                path
            }
        };
        if let Some(identifier) = identifier {
            self.paths[number as usize].set(Path::IDENTIFIED, true);
            self.identifiers.insert(number, identifier);
        }
        match self.path_numbers(row).last() {
            Some(last) => self.paths[last as usize].next = number,
            None => self.rows[row as usize].head = number,
        }
    }

    /// Replaces the attributes of a path. `stale`: whether it is stale afterwards.
    fn replace(
        &mut self,
        shared: &mut Shared,
        row: u32,
        path: u32,
        received_path: ReceivedPath,
        stale: bool,
    ) {
        let before = self.selected_paths(row);
        let entry = &mut self.paths[path as usize];
        let old = *entry;
        entry.received = received_path.received.get();
        entry.used = received_path.used.map_or(0, AttrId::get);
        entry.set_filtered(received_path.used.err());
        entry.set(Path::STALE, stale);
        let new = *entry;
        let long_lived = [new, old].map(|path| usize::from(is_long_lived_stale(shared, &path)));
        shared.count(old.peer(), F::FAMILY, |counts| {
            counts.accepted = counts.accepted + usize::from(new.used != 0) - usize::from(old.used != 0);
            counts.stale = counts.stale + usize::from(stale) - usize::from(old.is_stale());
            counts.long_lived_stale = counts.long_lived_stale + long_lived[0] - long_lived[1];
        });
        self.count_default(shared, row, old.peer(), (old.used != 0, new.used != 0));
        shared.release(old.received());
        shared.release(old.used());
        if old.used != new.used {
            self.decide(shared, row, &before);
        }
    }

    /// Removes a peer's path; returns whether it existed.
    pub(super) fn withdraw(
        &mut self,
        shared: &mut Shared,
        peer: PeerId,
        prefix: &F::Prefix,
        identifier: Option<u32>,
    ) -> bool {
        let Some(row) = self.find(prefix) else { return false };
        let path = self.path_of(row, peer, identifier);
        path.is_some_and(|path| {
            self.remove_path(shared, row, path);
            true
        })
    }

    /// Removes a path from a row.
    fn remove_path(&mut self, shared: &mut Shared, row: u32, path: u32) {
        let before = self.selected_paths(row);
        let old = self.paths[path as usize];
        let peer = old.peer();
        if old.owner & Path::IDENTIFIED != 0 {
            self.identifiers.remove(&path);
        }
        let previous = self.path_numbers(row).find(|other| self.paths[*other as usize].next == path);
        match previous {
            Some(previous) => self.paths[previous as usize].next = old.next,
            None => self.rows[row as usize].head = old.next,
        }
        self.paths[path as usize].next = self.free_path;
        self.free_path = path;
        let long_lived = usize::from(is_long_lived_stale(shared, &old));
        let last = !self.paths(row).any(|other| other.peer() == peer);
        if let Some(peer) = shared.peer_mut(peer) {
            let counts = &mut peer.counts[F::FAMILY.index()];
            counts.received -= 1;
            counts.accepted -= usize::from(old.used != 0);
            counts.stale -= usize::from(old.is_stale());
            counts.long_lived_stale -= long_lived;
            if last {
                peer.rows[F::FAMILY.index()].remove(row);
            }
        }
        self.count_default(shared, row, peer, (old.used != 0, false));
        shared.release(old.received());
        shared.release(old.used());
        if old.used != 0 {
            self.decide(shared, row, &before);
        }
        self.free_if_unused(row);
    }

    /// Removes the paths of a peer, or only the stale ones; returns their number.
    pub(super) fn remove_paths(&mut self, shared: &mut Shared, peer: PeerId, only_stale: bool) -> usize {
        let (mut removed, mut from) = (0, 0);
        while let Some(row) = shared.next_row(peer, F::FAMILY, from)
            && !(only_stale && shared.counts(peer, F::FAMILY).stale == 0)
        {
            from = row + 1;
            for path in self.paths_of(row, peer) {
                if !only_stale || self.paths[path as usize].is_stale() {
                    self.remove_path(shared, row, path);
                    removed += 1;
                }
            }
        }
        shared.shrink_rows(peer, F::FAMILY);
        self.shrink_if_empty();
        removed
    }

    /// Marks a peer's paths as stale, or removes the marks. The selection does not change.
    pub(super) fn mark_stale(&mut self, shared: &mut Shared, peer: PeerId, stale: bool) {
        let counts = shared.counts(peer, F::FAMILY);
        let wanted = if stale { counts.received } else { 0 };
        if counts.stale == wanted {
            return;
        }
        let mut long_lived = 0;
        let mut from = 0;
        while let Some(row) = shared.next_row(peer, F::FAMILY, from) {
            from = row + 1;
            for path in self.paths_of(row, peer) {
                self.paths[path as usize].set(Path::STALE, stale);
                long_lived += usize::from(is_long_lived_stale(shared, &self.paths[path as usize]));
            }
        }
        shared.count(peer, F::FAMILY, |counts| {
            (counts.stale, counts.long_lived_stale) = (wanted, long_lived);
        });
    }

    /// Turns a peer's stale paths into long-lived stale paths: they get the community LLGR_STALE.
    /// Paths with NO_LLGR are removed, whether the peer or import policy added it (RFC 9494 §4.2).
    /// Returns the number of long-lived stale paths and of removed paths.
    pub(super) fn mark_long_lived(&mut self, shared: &mut Shared, peer: PeerId) -> (usize, usize) {
        let (mut removed, mut from) = (0, 0);
        // The set with the community, by received set. Sets that already have the community are not
        // in this map.
        let mut marked: FxHashMap<AttrId, AttrId> = FxHashMap::default();
        while let Some(row) = shared.next_row(peer, F::FAMILY, from)
            && shared.counts(peer, F::FAMILY).stale > 0
        {
            from = row + 1;
            let Some(prefix) = self.row(row).map(|row| row.prefix) else { continue };
            for path in self.paths_of(row, peer) {
                let old = self.paths[path as usize];
                let Some(received) = old.received().filter(|_| old.is_stale()) else { continue };
                let digest = *shared.attributes.digest(received);
                let used_says_no =
                    old.used().is_some_and(|used| shared.attributes.digest(used).has_no_llgr());
                if digest.has_no_llgr() || used_says_no {
                    self.remove_path(shared, row, path);
                    removed += 1;
                } else if !digest.is_long_lived_stale() {
                    let new = *marked
                        .entry(received)
                        .or_insert_with(|| shared.attributes.with_community(received, Community::LLGR_STALE));
                    let refused = shared.refusal(peer, new);
                    let received_path = shared.take(peer, prefix, new, refused);
                    self.replace(shared, row, path, received_path, true);
                }
            }
        }
        marked.into_values().for_each(|new| shared.attributes.release(new));
        self.shrink_if_empty();
        (shared.counts(peer, F::FAMILY).stale, removed)
    }

    /// Runs import again over a peer's paths.
    pub(super) fn import_again(&mut self, shared: &mut Shared, peer: PeerId) {
        let mut from = 0;
        while let Some(row) = shared.next_row(peer, F::FAMILY, from) {
            from = row + 1;
            let Some(prefix) = self.row(row).map(|row| row.prefix) else { continue };
            for path in self.paths_of(row, peer) {
                let old = self.paths[path as usize];
                let Some(received) = old.received() else { continue };
                let refused = shared.refusal(peer, received);
                let received_path = shared.take(peer, prefix, received, refused);
                self.replace(shared, row, path, received_path, old.is_stale());
            }
        }
    }

    /// Runs the decision for every row after the end of a hold.
    pub(super) fn decide_all(&mut self, shared: &mut Shared) {
        for row in 0..self.row_bound() {
            if self.row(row).is_some() {
                let before = self.selected_paths(row);
                self.decide(shared, row, &before);
                self.free_if_unused(row);
            }
        }
    }

    /// Runs phase 2 for one row, and makes the row pending for peers and FIB if the result differs.
    fn decide(&mut self, shared: &mut Shared, row: u32, before: &SelectedPaths) {
        if shared.is_held(F::FAMILY) {
            self.rows[row as usize].set(Row::<F>::CHANGED, true);
            if !shared.is_silent(F::FAMILY) {
                self.decide_held(shared, row, before);
            }
            return;
        }
        self.select(shared, row);
        shared.row_changed(F::FAMILY, row);
        let after = self.selected_paths(row);
        let unknown = self.rows[row as usize].is(Row::<F>::CHANGED);
        self.rows[row as usize].set(Row::<F>::CHANGED, false);
        if unknown || before.best != after.best {
            shared.best_changed(F::FAMILY, row, after.best.map(|(peer, _)| peer));
        }
        if unknown || !same_next_hops(shared, before, &after) {
            self.dirty.insert(row);
        }
    }

    /// Marks the selected paths and moves them to the front.
    fn select(&mut self, shared: &Shared, row: u32) {
        let Some(only) = self.paths.get_mut(self.rows[row as usize].head as usize) else { return };
        if only.next == NIL {
            // The usual case of a large table: no comparison and no look-up.
            only.set(Path::SELECTED, only.used != 0);
            return;
        }
        let mut candidates = self.candidates(shared, row);
        decision::select(&mut candidates, shared.config.max_paths);
        self.relink(row, &candidates);
    }

    /// Runs the decision for the originated paths of a held family.
    pub(super) fn decide_originated(&mut self, shared: &mut Shared) {
        for row in 0..self.row_bound() {
            if self.row(row).is_some() {
                let before = self.selected_paths(row);
                self.decide_held(shared, row, &before);
            }
        }
    }

    /// Selects or deselects an originated path at once; received paths wait for the end of the
    /// hold.
    fn decide_held(&mut self, shared: &mut Shared, row: u32, before: &SelectedPaths) {
        let local = self.path_of(row, PeerId::LOCAL, None);
        if local.is_none() && before.best.is_none_or(|(peer, _)| peer != PeerId::LOCAL) {
            return;
        }
        let mut candidates = Candidates::new();
        if let Some(path) = local
            && let Some(used) = self.paths[path as usize].used()
        {
            candidates.push(candidate(shared, path, &self.paths[path as usize], None, used));
        }
        self.relink(row, &candidates);
        shared.row_changed(F::FAMILY, row);
        let after = self.selected_paths(row);
        if before.best != after.best {
            shared.best_changed(F::FAMILY, row, after.best.map(|(peer, _)| peer));
        }
    }

    /// Moves the selected paths to the front of the list, in the order of selection.
    fn relink(&mut self, row: u32, selected: &[Candidate]) {
        let old: SmallVec<[u32; 8]> = self.path_numbers(row).collect();
        let mut order: SmallVec<[u32; 8]> = selected.iter().map(|candidate| candidate.path).collect();
        order.extend(old.into_iter().filter(|path| !selected.iter().any(|it| it.path == *path)));
        let mut next = NIL;
        for (place, path) in order.iter().enumerate().rev() {
            let entry = &mut self.paths[*path as usize];
            entry.set(Path::SELECTED, place < selected.len());
            entry.next = next;
            next = *path;
        }
        self.rows[row as usize].head = next;
    }

    /// Changes the count of peers that the row is advertised to: one more, or one less.
    pub(super) fn count_advertised(&mut self, row: u32, advertised: bool) {
        let count = &mut self.rows[row as usize].advertised_to;
        match (*count, advertised) {
            (u16::MAX, _) => {} // at the maximum the count no longer changes
            (_, true) => *count += 1,
            (_, false) => {
                *count -= 1;
                self.free_if_unused(row);
            }
        }
    }

    fn free_if_unused(&mut self, row: u32) {
        let entry = &mut self.rows[row as usize];
        if entry.head != NIL
            || entry.advertised_to != 0
            || entry.is(Row::<F>::IN_FIB)
            || entry.is(Row::<F>::FREE)
        {
            return;
        }
        let hash = FxBuildHasher.hash_one(entry.prefix);
        if let Ok(found) = self.index.find_entry(hash, |other| *other == row) {
            found.remove();
        }
        entry.flags = Row::<F>::FREE;
        entry.head = self.free_row;
        self.free_row = row;
        self.dirty.remove(row);
    }

    /// Releases the memory of a large table that became empty.
    pub(super) fn shrink_if_empty(&mut self) {
        if self.index.is_empty() && self.rows.len() > 1024 {
            *self = Table::default();
        }
    }
}

fn candidate(shared: &Shared, number: u32, path: &Path, identifier: Option<u32>, used: AttrId) -> Candidate {
    let peer = path.peer();
    let digest = shared.attributes.digest(used);
    let facts = shared.peer(peer);
    let originator = shared.attributes.originator_id(used).map(u32::from);
    Candidate {
        path: number,
        originated: peer == PeerId::LOCAL,
        long_lived_stale: digest.is_long_lived_stale(),
        local_pref: digest.local_pref(),
        path_len: digest.path_len,
        origin: digest.origin,
        neighbour_as: digest.neighbour_as,
        med: digest.med,
        external: facts.is_some_and(|peer| peer.external),
        router_id: originator.unwrap_or_else(|| facts.map_or(0, |peer| peer.router_id.into())),
        cluster_len: digest.cluster_len,
        address: facts.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |peer| peer.address.address()),
        identifier: identifier.unwrap_or(0),
    }
}

/// Whether a path is from before the loss of its session and is marked LLGR_STALE.
fn is_long_lived_stale(shared: &Shared, path: &Path) -> bool {
    let received = path.received().filter(|_| path.is_stale());
    received.is_some_and(|received| shared.attributes.digest(received).is_long_lived_stale())
}

const _: () = {
    assert!(size_of::<Row<crate::types::Ipv4>>() == 12);
    assert!(size_of::<Path>() == 16);
};
