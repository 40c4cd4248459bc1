//! The sets with the addresses of the links of this node's pods.
//!
//! - `own4`, `own6`: each link with its addresses, also of pods without a policy. An ICMP error from
//!   a pod's link passes if the pod is an end of the connection.
//! - `to_addresses4`, `to_addresses6`: each address of a pod with ingress policies, with the chain of
//!   its link. They match packets that leave the node and return to the pod (`hairpin`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::objects::{Entry, Layout, differences};
use super::transaction::Transaction;
use crate::family::IpFamily;
use crate::plan::policy::LinkPolicies;

/// The set with the addresses of links.
pub(super) const fn own(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "own4",
        IpFamily::V6 => "own6",
    }
}

/// The map from addresses to the chains of links.
pub(super) const fn to_addresses(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "to_addresses4",
        IpFamily::V6 => "to_addresses6",
    }
}

/// The sets with their layouts.
pub(super) fn layouts() -> [(&'static str, Layout); 4] {
    let [v4, v6] = IpFamily::ALL;
    [
        (own(v4), Layout::on_link(v4)),
        (own(v6), Layout::on_link(v6)),
        (to_addresses(v4), Layout::destinations(v4)),
        (to_addresses(v6), Layout::destinations(v6)),
    ]
}

/// The entries of each set.
pub(super) fn entries(
    links: &BTreeMap<u32, LinkPolicies>,
    addresses: &BTreeMap<u32, BTreeSet<IpAddr>>,
) -> BTreeMap<&'static str, Vec<Entry>> {
    let mut sets: BTreeMap<&'static str, Vec<Entry>> = layouts().map(|(name, _)| (name, Vec::new())).into();
    // Two pods can have one address while one of them replaces the other. The newer link counts.
    let mut destinations: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for (ifindex, address) in
        addresses.iter().flat_map(|(ifindex, all)| all.iter().map(move |one| (ifindex, one)))
    {
        let own = own(IpFamily::of_address(address));
        sets.entry(own).or_default().push(Entry::on_link(*ifindex, *address));
        if links.get(ifindex).is_some_and(|link| link.ingress.is_some()) {
            destinations.insert(*address, *ifindex);
        }
    }
    for (address, ifindex) in destinations {
        let name = to_addresses(IpFamily::of_address(&address));
        sets.entry(name).or_default().push(Entry::destination(address, ifindex));
    }
    sets
}

/// Changes the sets from one state to another.
pub(super) fn change(
    before: &BTreeMap<&'static str, Vec<Entry>>,
    after: &BTreeMap<&'static str, Vec<Entry>>,
    transaction: &mut Transaction,
) {
    for (name, wanted) in after {
        let found = before.get(name).map_or(&[][..], Vec::as_slice);
        let (added, removed) = differences(wanted, found);
        transaction.change_links(name, &added, &removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::policy::ChainId;

    #[test]
    fn an_address_of_two_links_leads_to_the_newer_one() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let link = |ingress| LinkPolicies { ingress, ..LinkPolicies::default() };
        let policies = Some(ChainId::from(1));
        let addresses = [7, 8, 9].map(|ifindex| (ifindex, [address].into())).into();
        let links = [(7, link(policies)), (8, link(policies)), (9, link(None))].into();
        let sets = entries(&links, &addresses);
        assert_eq!(sets["to_addresses4"], [Entry::destination(address, 8)]);
        assert_eq!((sets["own4"].len(), sets["own6"].len(), sets["to_addresses6"].len()), (3, 0, 0));
    }
}
