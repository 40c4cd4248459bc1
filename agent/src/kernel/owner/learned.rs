//! Learned routes: what the speaker hands over, and what stays while a speaker is replaced.

use std::net::IpAddr;

use tokio::sync::mpsc;
use trunkline_bgp::rib::RouteChange;
use trunkline_bgp::types::{Family, NextHop};

use super::super::{KernelError, Urgent};
use super::Owner;
use crate::plan::{Hop, RouteKey, RouteTarget};

impl Owner {
    pub(super) fn handle_learned(
        &mut self,
        changes: Vec<RouteChange>,
        urgent: &mut mpsc::UnboundedReceiver<Urgent>,
    ) -> Result<(), KernelError> {
        let Some(learned) = self.plan.learned.clone() else { return Ok(()) };
        for change in changes {
            let key = RouteKey { table: learned.table, prefix: change.prefix };
            self.kept.remove(&key);
            // A prefix that nobody else has stays with the peers that are left out.
            let others = change
                .paths
                .iter()
                .any(|path| learned.peers.contains_key(&path.peer) && !learned.left_out.contains(&path.peer));
            let hops: Vec<Hop> = change
                .paths
                .iter()
                .filter(|path| !others || !learned.left_out.contains(&path.peer))
                .filter_map(|path| Some((path, learned.peers.get(&path.peer)?)))
                .map(|(path, ifindex)| match path.next_hop {
                    NextHop::V6(address) if address.is_unicast_link_local() => {
                        let ifindex = ifindex.or_else(|| self.topology.connected(path.peer.address()));
                        Hop { ifindex, ..Hop::to(IpAddr::V6(address)) }
                    }
                    // A link with a link-local session may have no prefix that the global address would be found by.
                    NextHop::V6WithLinkLocal(_, address)
                        if path.peer.interface().is_some() && ifindex.is_some() =>
                    {
                        Hop { ifindex: *ifindex, ..Hop::to(IpAddr::V6(address)) }
                    }
                    next_hop => Hop::to(next_hop.address()),
                })
                .collect();
            if hops.is_empty() {
                self.learned.remove(&key);
            } else {
                let target = self.intern(RouteTarget::via(hops));
                self.learned.insert(key, target);
            }
            self.settle(key)?;
            if self.requests.is_empty() {
                while let Ok(command) = urgent.try_recv() {
                    self.handle_urgent(command);
                }
            }
        }
        self.flush()?;
        Ok(())
    }

    /// Another speaker hands over all its best routes: until it has, the ones of this speaker stay.
    pub(super) fn keep_learned(&mut self) {
        self.kept.extend(self.learned.keys());
    }

    /// Removes what a former speaker learned and this one did not.
    pub(super) fn forget_kept(&mut self, family: Family) -> Result<(), KernelError> {
        let gone: Vec<RouteKey> = self.kept.extract_if(|key| Family::of(&key.prefix) == family).collect();
        for key in gone {
            self.learned.remove(&key);
            self.settle(key)?;
        }
        self.flush()?;
        Ok(())
    }
}
