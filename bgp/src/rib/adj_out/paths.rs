//! Adj-RIB-Out of a peer that receives several paths of a prefix (RFC 7911).
//!
//! Here a row covers the best N paths that the peer may receive, each with an identifier. For other
//! peers a row covers the best path only. So any change of a row's usable paths makes the row
//! pending, even if the best path is the same. Otherwise both kinds work in the same way: the
//! wanted paths are computed when the socket accepts octets, and compared with the advertised ones.
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

use crate::rib::attributes::AttrId;
use crate::rib::row_set::RowSet;

/// Identifiers and attributes of the advertised paths of a row.
pub(super) type Paths = SmallVec<[(u32, AttrId); 2]>;

/// The advertised paths of a peer.
#[derive(Debug, Default)]
pub(super) struct AdvertisedPaths {
    /// By row; no entry is empty.
    rows: FxHashMap<u32, Paths>,
    /// Rows and identifiers of paths to send again although nothing differs. The key is a path, not
    /// a row: some paths of a row may be written while others do not fit.
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
    pub(super) fn is_owed(&self, row: u32, identifier: u32) -> bool {
        self.again.contains(&(row, identifier))
    }

    /// Records an advertised path; returns the previous attributes. The caller has added a
    /// reference to `advertised`.
    pub(super) fn set(&mut self, row: u32, identifier: u32, advertised: AttrId) -> Option<AttrId> {
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
    pub(super) fn take(&mut self, row: u32, identifier: u32) -> Option<AttrId> {
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
