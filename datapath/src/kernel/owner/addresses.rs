//! Addresses of the host: those of the plan on the loopback interface.
//!
//! ```text
//!  plan: 192.0.2.53 ──► added to lo, protocol 116 ──► another program deletes it ──► added again
//! ```
//!
//! **The owner of an address** is in its protocol number. A kernel before 5.18 has no such number:
//! then the owner knows the addresses that it added itself, and those that
//! [`KernelConfig::addresses`](super::super::KernelConfig::addresses) names. An address that
//! another program added is never changed, and is as good as the plan's.
//!
//! A loopback interface that goes down loses its IPv6 addresses. They are added again with the link.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Owner, RepairKind, Request};

impl Owner {
    /// Adds requests for the difference between the plan's addresses and the recorded ones. Returns
    /// the addresses that are added.
    pub(super) fn settle_addresses(&mut self) -> Vec<IpAddr> {
        let (true, Some(wanted)) = (self.planned, &self.plan.addresses) else { return Vec::new() };
        let Some(link) = self.topology.loopback() else { return Vec::new() };
        let index = link.info.index;
        let foreign: BTreeSet<IpAddr> = link.addresses.iter().map(IpNet::addr).collect();
        let surplus: Vec<IpAddr> = link.own.difference(wanted).copied().collect();
        let missing: Vec<IpAddr> =
            wanted.iter().filter(|it| !link.own.contains(it) && !foreign.contains(it)).copied().collect();
        link.own.retain(|address| wanted.contains(address));
        link.own.extend(&missing);
        for address in surplus {
            self.batch.delete_host_address(index, address);
            self.requests.push(Request::DeleteAddress(address));
        }
        for address in &missing {
            self.batch.put_host_address(index, *address);
            self.requests.push(Request::Address(*address));
        }
        missing
    }

    /// Handles an address of the plan that another program added, changed or deleted.
    pub(super) fn handle_own_address(&mut self, index: u32, prefix: IpNet, there: bool) {
        let address = prefix.addr();
        if prefix.prefix_len() != prefix.max_prefix_len() {
            return; // the same address on another program's prefix
        }
        let Some(link) = self.topology.links.get_mut(&index) else { return };
        if there {
            link.own.insert(address);
            return;
        }
        // A link that goes down loses its addresses, and they return with it.
        if !link.own.remove(&address) || self.is_up_now(index) != Some(true) {
            return;
        }
        if self.settle_addresses().contains(&address) {
            tracing::info!(%address, "another program deleted an address: restored");
            self.repaired(RepairKind::Address, 1, address);
        }
    }
}
