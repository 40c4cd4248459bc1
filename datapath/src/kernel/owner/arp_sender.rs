//! The senders of ARP requests on VLAN devices ([`arp_sender`]): for each Subnet one local pod. A pod
//! is chosen until it is removed, so the table seldom changes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::{Owner, Reason, RepairKind};
use crate::nft::arp_sender;
use crate::plan::{ArpSubnet, PodPlan};

/// The pod's address in a Subnet, if the node answers for it on the Subnet's device.
fn address_in(pod: &PodPlan, subnet: &ArpSubnet) -> Option<Ipv4Addr> {
    pod.proxies.iter().find_map(|proxy| match proxy.address {
        IpAddr::V4(address) if proxy.ifindex == subnet.ifindex && subnet.prefix.contains(&address) => {
            Some(address)
        }
        _ => None,
    })
}

impl Owner {
    /// Chooses the senders again, and changes the table if they differ. No action before all pods
    /// are known: the table of the last run stays.
    pub(super) fn settle_arp_senders(&mut self) {
        if !self.populated && !self.plan.arp_senders.is_empty() {
            return;
        }
        let mut chosen: BTreeMap<ArpSubnet, Ipv4Addr> = BTreeMap::new();
        for subnet in &self.plan.arp_senders {
            let before = self.arp_senders.get(subnet).copied();
            let addresses = || self.pods.values().filter_map(|pod| address_in(pod, subnet));
            let sender = before.filter(|before| addresses().any(|address| address == *before));
            if let Some(sender) = sender.or_else(|| addresses().min()) {
                chosen.insert(subnet.clone(), sender);
            }
        }
        self.arp_senders = chosen;
        self.write_arp_senders(false);
    }

    /// A new pod is the first of a Subnet.
    pub(super) fn add_arp_sender(&mut self, host_ifname: &str) {
        if !self.populated || self.plan.arp_senders.is_empty() {
            return;
        }
        let Some(pod) = self.pods.get(host_ifname) else { return };
        let is_first =
            |subnet: &ArpSubnet| !self.arp_senders.contains_key(subnet) && address_in(pod, subnet).is_some();
        if self.plan.arp_senders.iter().any(is_first) {
            self.settle_arp_senders();
        }
    }

    /// A removed pod is no sender any more.
    pub(super) fn remove_arp_sender(&mut self, pod: &PodPlan) {
        let is_sender = |(subnet, sender): (&ArpSubnet, &Ipv4Addr)| address_in(pod, subnet) == Some(*sender);
        if self.arp_senders.iter().any(is_sender) {
            self.settle_arp_senders();
        }
    }

    /// Brings the table to the chosen senders.
    pub(super) fn write_arp_senders(&mut self, repair: bool) {
        match self.arp_table.apply(arp_sender::render(&self.arp_senders).as_deref()) {
            Ok(true) if repair => self.repaired(RepairKind::Table, 1, "arp trunkline-sender"),
            Ok(changed) => self.changed += usize::from(changed),
            Err(error) => self.fault(Reason::Nftables, error),
        }
    }
}
