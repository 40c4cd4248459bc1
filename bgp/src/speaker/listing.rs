//! Listing a table, piece by piece.
//!
//! A million routes in words are a second of work and hundreds of megabytes, which must be neither one turn of the speaker nor
//! one answer in memory. A listing is a place in a table that is put before the speaker again and again ([`Speaker::list`]), each time
//! for so many rows, and keeps nothing of what it has shown. What it shows of a prefix is how that stands at this moment. Rows keep
//! their numbers while their prefix is there, so what stays is shown once; what goes and comes again meanwhile may be missed, or be
//! shown in both its places. The order is that of the rows, which is nobody's: who shows routes to people sorts them.

use super::Speaker;
use super::route::Route;
use crate::types::{Family, PeerKey};

/// Which paths are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Loc-RIB: those in use, originated ones included; those of one prefix follow each other, the best one first.
    Used,
    /// Adj-RIB-In: what a peer told, refused paths included.
    Received(PeerKey),
    /// Adj-RIB-Out: what has been written to a peer.
    Advertised(PeerKey),
}

/// A listing under way; see [`Speaker::list`].
#[derive(Clone, Debug)]
pub struct Listing {
    table: Listed,
    /// Where to go on; none once every family is through.
    family: Option<Family>,
    row: u32,
}

impl Listing {
    /// A listing from the beginning.
    pub fn new(table: Listed) -> Self {
        Listing { table, family: Family::ALL.first().copied(), row: 0 }
    }
}

impl Speaker {
    /// Whether the table of a listing is there: those of a peer that is not configured are not.
    pub fn has_table(&self, table: Listed) -> bool {
        match table {
            Listed::Used => true,
            Listed::Received(peer) | Listed::Advertised(peer) => self.peer_id(peer).is_some(),
        }
    }

    /// Appends the paths of up to `rows` more rows; whether there are more. A peer that goes away meanwhile ends it.
    pub fn list(&self, listing: &mut Listing, rows: usize, out: &mut Vec<Route>) -> bool {
        let mut left = rows;
        while let Some(family) = listing.family {
            let next = match listing.table {
                Listed::Used => self.list_used(family, listing.row, &mut left, out),
                Listed::Received(peer) => self.list_received(peer, family, listing.row, &mut left, out),
                Listed::Advertised(peer) => self.list_advertised(peer, family, listing.row, &mut left, out),
            };
            if let Some(row) = next {
                listing.row = row;
                return true;
            }
            listing.row = 0;
            listing.family = Family::ALL.into_iter().find(|other| other.index() > family.index());
        }
        false
    }

    /// These three show rows until `left` comes to an end, and return the row to go on from if the family did not end before.
    fn list_used(&self, family: Family, first: u32, left: &mut usize, out: &mut Vec<Route>) -> Option<u32> {
        let rows = self.hub.rib.rows_from(family, first).map(|(row, _, paths)| (row, paths));
        piece(rows, left, |paths| {
            out.extend(paths.iter().filter(|path| path.selected).map(|path| {
                let peer = path.peer.and_then(|peer| self.key_of(peer));
                Route::of_path(path, peer)
            }));
        })
    }

    fn list_received(
        &self,
        key: PeerKey,
        family: Family,
        first: u32,
        left: &mut usize,
        out: &mut Vec<Route>,
    ) -> Option<u32> {
        let id = self.peer_id(key)?;
        piece(self.hub.rib.received_from(id, family, first), left, |paths| {
            let told = paths.iter().filter(|path| path.peer == Some(id));
            out.extend(told.map(|path| Route::of_path(path, Some(key))));
        })
    }

    fn list_advertised(
        &self,
        key: PeerKey,
        family: Family,
        first: u32,
        left: &mut usize,
        out: &mut Vec<Route>,
    ) -> Option<u32> {
        let id = self.peer_id(key)?;
        let rows = (first..self.hub.rib.row_bound(family)).map(|row| (row, row));
        piece(rows, left, |row| {
            let told = self.hub.rib.advertised_of(id, family, row);
            out.extend(told.iter().map(|route| Route::of_advertised(route, key)));
        })
    }
}

fn piece<T>(rows: impl Iterator<Item = (u32, T)>, left: &mut usize, mut show: impl FnMut(T)) -> Option<u32> {
    for (row, shown) in rows {
        if *left == 0 {
            return Some(row);
        }
        *left -= 1;
        show(shown);
    }
    None
}
