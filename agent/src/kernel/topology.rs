//! The links and addresses of the host, and by which of them a next hop is reached.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::netlink::objects::LinkInfo;
use crate::attach::device::ALIAS_PREFIX;
use crate::plan::{Hop, Link, RouteTarget};

/// One link with its addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    pub(super) info: LinkInfo,
    pub(super) addresses: Vec<IpNet>,
}

/// All links of the namespace.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) links: BTreeMap<u32, LinkState>,
}

/// Whether a link is the host's end of a pod's pair.
pub(super) fn is_own(info: &LinkInfo) -> bool {
    let by_alias = info.alias.as_deref().is_some_and(|alias| alias.starts_with(ALIAS_PREFIX));
    // Between its creation and its alias a link only has its name.
    let by_name = info.name.len() == 14
        && info
            .name
            .strip_prefix("tl")
            .is_some_and(|hash| hash.bytes().all(|octet| octet.is_ascii_hexdigit()));
    by_alias || by_name && info.kind.as_deref() == Some("veth")
}

impl LinkState {
    /// Whether packets can leave by it now.
    pub(super) fn is_usable(&self) -> bool {
        self.info.is_up() && self.info.is_running()
    }

    fn link(&self) -> Link {
        Link {
            index: self.info.index,
            name: self.info.name.clone(),
            mac: self.info.mac,
            addresses: self.addresses.clone(),
            up: self.info.is_up(),
            mtu: self.info.mtu,
        }
    }
}

impl Topology {
    /// The links as the planner sees them: without the own ones.
    pub(super) fn links(&self) -> Vec<Link> {
        self.links.values().filter(|link| !is_own(&link.info)).map(LinkState::link).collect()
    }

    /// One link as the planner sees it.
    pub(super) fn link(&self, index: u32) -> Option<Link> {
        self.links.get(&index).filter(|link| !is_own(&link.info)).map(LinkState::link)
    }

    /// Whether packets can leave by the link with this index.
    pub(super) fn is_usable(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(LinkState::is_usable)
    }

    /// The link that an address is directly connected by: the longest prefix of an address of a link that has carrier.
    pub(super) fn connected(&self, address: IpAddr) -> Option<u32> {
        self.links
            .values()
            .filter(|link| link.is_usable() && !is_own(&link.info))
            .flat_map(|link| link.addresses.iter().map(|prefix| (prefix, link.info.index)))
            .filter(|(prefix, _)| prefix.prefix_len() < prefix.max_prefix_len() && prefix.contains(&address))
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map(|(_, index)| index)
    }

    /// The target with a link for each hop; routers that cannot be reached (the link has lost its carrier, say: no need to wait for the
    /// session to notice) are left out. None: there is no way. `farther` says by which hop a gateway is reached that is on no
    /// connected network.
    pub(super) fn resolve(
        &self,
        target: &RouteTarget,
        mut farther: impl FnMut(IpAddr) -> Option<Hop>,
    ) -> Option<RouteTarget> {
        let RouteTarget::Via(hops) = target else { return Some(RouteTarget::Blackhole) };
        let resolved: Vec<Hop> =
            hops.iter()
                .filter_map(|hop| match (hop.gateway, hop.ifindex) {
                    (Some(gateway), None) => match self.connected(gateway) {
                        Some(index) => Some(Hop { ifindex: Some(index), ..*hop }),
                        None => farther(gateway)
                            .filter(|hop| hop.ifindex.is_some_and(|index| self.is_usable(index))),
                    },
                    (Some(_), Some(index)) => self.is_usable(index).then_some(*hop),
                    // A pod's own link: it was just made, and the notification of it may not have been heard yet.
                    (None, _) => Some(*hop),
                })
                .collect();
        (!resolved.is_empty()).then(|| RouteTarget::via(resolved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, up: bool, addresses: &[&str]) -> LinkState {
        let flags = if up { (libc::IFF_UP | libc::IFF_LOWER_UP) as u32 } else { 0 };
        LinkState {
            info: LinkInfo { index, name: name.to_owned(), flags, ..LinkInfo::default() },
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_gateway_is_on_the_link_of_its_longest_prefix() {
        let links = [
            link(2, "eth0", true, &["192.0.2.1/24"]),
            link(3, "eth1", true, &["192.0.2.129/30", "2001:db8::1/64"]),
            link(4, "eth2", false, &["198.51.100.1/24"]),
            link(5, "eth3", true, &["203.0.113.7/32"]),
        ];
        let topology = Topology { links: links.into_iter().map(|link| (link.info.index, link)).collect() };
        let via = |gateways: &[&str]| {
            let hop = |gateway: &&str| Hop { gateway: Some(gateway.parse().unwrap()), ifindex: None };
            topology.resolve(&RouteTarget::via(gateways.iter().map(hop).collect()), |_| None).map(|target| {
                match target {
                    RouteTarget::Via(hops) => hops.iter().map(|hop| hop.ifindex.unwrap()).collect(),
                    RouteTarget::Blackhole => Vec::new(),
                }
            })
        };
        assert_eq!(via(&["192.0.2.9"]), Some(vec![2]));
        assert_eq!(via(&["192.0.2.130"]), Some(vec![3]));
        assert_eq!(via(&["192.0.2.9", "2001:db8::9"]), Some(vec![2, 3]));
        assert_eq!(via(&["198.51.100.9"]), None, "the link is down");
        assert_eq!(via(&["203.0.113.7"]), None, "a host address connects nobody else");
        assert_eq!(via(&["198.51.100.9", "192.0.2.9"]), Some(vec![2]), "what is left");
        assert_eq!(topology.resolve(&RouteTarget::Blackhole, |_| None), Some(RouteTarget::Blackhole));
    }

    #[test]
    fn own_links_are_known_by_alias_or_name() {
        let info = |name: &str, kind: &str, alias: Option<&str>| LinkInfo {
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            alias: alias.map(str::to_owned),
            ..LinkInfo::default()
        };
        assert!(is_own(&info("x", "veth", Some("trunkline:c1:eth0"))));
        assert!(is_own(&info("tl0123456789ab", "veth", None)));
        assert!(!is_own(&info("tl0123456789ab", "bridge", None)));
        assert!(!is_own(&info("tlxx23456789ab", "veth", None)));
        assert!(!is_own(&info("eth0", "veth", Some("uplink"))));
    }
}
