//! The FIB's view of a table: each changed row once, with its state when it is reported.

use std::net::IpAddr;

use super::{Row, SelectedPaths, Table};
use crate::rib::facts::{FibPath, RouteChange};
use crate::rib::peer::Shared;
use crate::types::AddressFamily;

impl<F: AddressFamily> Table<F> {
    /// Whether [`Self::route_changes`] would report something.
    pub(in crate::rib) fn has_route_changes(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Marks every row in the FIB to be reported again. The reader pulls the changes.
    pub(in crate::rib) fn resend_routes(&mut self) {
        let in_fib = |row: &u32| self.rows[*row as usize].is(Row::<F>::IN_FIB);
        for row in (0..self.rows.len() as u32).filter(in_fib) {
            self.dirty.insert(row);
        }
    }

    /// Appends changes for the FIB until `changes` has `max` entries.
    pub(in crate::rib) fn route_changes(
        &mut self,
        shared: &Shared,
        max: usize,
        changes: &mut Vec<RouteChange>,
    ) {
        while changes.len() < max
            && let Some(row) = self.dirty.take()
        {
            let paths = self.fib_paths(shared, row);
            let was_in_fib = self.rows[row as usize].is(Row::<F>::IN_FIB);
            self.rows[row as usize].set(Row::<F>::IN_FIB, !paths.is_empty());
            if was_in_fib || !paths.is_empty() {
                changes.push(RouteChange { prefix: self.rows[row as usize].prefix.into(), paths });
            }
            self.free_if_unused(row);
        }
        self.shrink_if_empty();
    }

    fn fib_paths(&self, shared: &Shared, row: u32) -> Vec<FibPath> {
        let mut paths: Vec<FibPath> = Vec::new();
        for (peer, used) in self.selected_paths(row).iter() {
            let Some(next_hop) = shared.attributes.next_hop(used) else { continue };
            let Some(address) = shared.peer(peer).map(|peer| peer.address) else { continue };
            // Two peers may advertise the same next hop, which must not get twice the traffic. The
            // same link-local address on two links means two next hops.
            let link_local =
                matches!(next_hop.address(), IpAddr::V6(address) if address.is_unicast_link_local());
            let same = |path: &FibPath| {
                path.next_hop == next_hop && (!link_local || path.peer.interface() == address.interface())
            };
            if !paths.iter().any(same) {
                paths.push(FibPath { next_hop, peer: address });
            }
        }
        paths
    }
}

/// Whether a change makes no difference for the FIB.
pub(super) fn same_next_hops(shared: &Shared, before: &SelectedPaths, after: &SelectedPaths) -> bool {
    before.best.is_some() == after.best.is_some()
        && before.others.len() == after.others.len()
        && before.iter().zip(after.iter()).all(|((peer, one), (other_peer, other))| {
            peer == other_peer && shared.attributes.same_next_hop(one, other)
        })
}
