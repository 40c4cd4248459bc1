//! Lists a table in pieces.
//!
//! A million routes as text take a second of work and hundreds of megabytes. This is too much for
//! one call of the speaker and for one answer in memory. So a listing is only a position in a
//! table. The caller passes it to [`Speaker::list`] again and again, each time for a number of
//! rows. It does not keep the listed routes, and each prefix is listed with its state at that
//! moment. A row keeps its number while its prefix exists, so a prefix that stays is listed once. A
//! prefix that is removed and added again meanwhile may be missing, or listed twice. The order is
//! the order of rows, which has no meaning: callers that show routes to people sort them.

use super::Speaker;
use super::route::Route;
use crate::types::{Family, PeerKey};

/// The table that is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Loc-RIB: paths in use, including originated ones; those of one prefix are adjacent, the best
    /// one first.
    Used,
    /// Adj-RIB-In: paths received from a peer, including rejected ones.
    Received(PeerKey),
    /// Adj-RIB-Out: routes written to a peer.
    Advertised(PeerKey),
}

/// The position of a listing; see [`Speaker::list`].
#[derive(Clone, Debug)]
pub struct Listing {
    table: Listed,
    /// The family to continue with; none after the last one.
    family: Option<Family>,
    row: u32,
}

impl Listing {
    /// Starts a listing from the beginning.
    pub fn new(table: Listed) -> Self {
        Listing { table, family: Family::ALL.first().copied(), row: 0 }
    }
}

impl Speaker {
    /// Whether the table of a listing exists: false for a peer that is not configured.
    pub fn has_table(&self, table: Listed) -> bool {
        match table {
            Listed::Used => true,
            Listed::Received(peer) | Listed::Advertised(peer) => self.peer_id(peer).is_some(),
        }
    }

    /// Appends the paths of up to `rows` more rows; returns whether there are more. The listing
    /// ends if its peer is removed.
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

    /// Lists rows until `left` is zero. Returns the next row if the family has more. The two
    /// functions below return the next row in the same way.
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
            let received = paths.iter().filter(|path| path.peer == Some(id));
            out.extend(received.map(|path| Route::of_path(path, Some(key))));
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
            let advertised = self.hub.rib.advertised_of(id, family, row);
            out.extend(advertised.iter().map(|route| Route::of_advertised(route, key)));
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
