//! The links and addresses of the host, and the selection of a link for a next hop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::naming::ALIAS_PREFIX;
use crate::netlink::objects::LinkInfo;
use crate::plan::{Hop, LOOPBACK, Link, RouteTarget};

/// One link with its addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    pub(super) info: LinkInfo,
    pub(super) addresses: Vec<IpNet>,
    /// Addresses that this or an earlier plan added; they are not in `addresses`.
    pub(super) own: BTreeSet<IpAddr>,
}

/// All links of the namespace.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) links: BTreeMap<u32, LinkState>,
    /// Indices of the links of a plan. These links stay Trunkline's even if another program removes
    /// their alias.
    pub(super) planned: BTreeSet<u32>,
}

fn has_own_alias(info: &LinkInfo) -> bool {
    info.alias.as_deref().is_some_and(|alias| alias.starts_with(ALIAS_PREFIX))
}

/// Whether a link is a pod's host interface or its `ifb` device.
pub(super) fn is_pods(info: &LinkInfo) -> bool {
    let by_alias = has_own_alias(info) && info.planned_kind().is_none();
    // Between its creation and its alias, a link has only its name.
    let prefix = match info.kind.as_deref() {
        Some("veth") => "tl",
        Some("ifb") => "tb",
        _ => return by_alias,
    };
    let hash = info.name.strip_prefix(prefix).filter(|hash| hash.len() == 12);
    by_alias || hash.is_some_and(|hash| hash.bytes().all(|octet| octet.is_ascii_hexdigit()))
}

impl LinkState {
    /// Whether packets can leave by the link now.
    pub(super) fn is_usable(&self) -> bool {
        self.info.is_up() && self.info.is_running()
    }

    fn link(&self, own: bool) -> Link {
        Link {
            index: self.info.index,
            name: self.info.name.clone(),
            mac: self.info.mac,
            addresses: self.addresses.clone(),
            up: self.info.is_up(),
            running: self.info.is_running(),
            mtu: self.info.mtu,
            kind: self.info.planned_kind(),
            own,
        }
    }
}

impl Topology {
    /// The links for the planner, without the links of pods.
    pub(super) fn links(&self) -> Vec<Link> {
        self.links.keys().filter_map(|index| self.link(*index)).collect()
    }

    /// One link for the planner.
    pub(super) fn link(&self, index: u32) -> Option<Link> {
        let link = self.links.get(&index).filter(|link| !is_pods(&link.info))?;
        Some(link.link(self.is_planned(&link.info)))
    }

    /// Whether a plan of this or an earlier run created the link.
    pub(super) fn is_planned(&self, info: &LinkInfo) -> bool {
        let marked = has_own_alias(info) && info.planned_kind().is_some();
        marked || self.planned.contains(&info.index)
    }

    /// The loopback interface.
    pub(super) fn loopback(&mut self) -> Option<&mut LinkState> {
        self.links.values_mut().find(|link| link.info.name == LOOPBACK)
    }

    /// Records that the plan of this or an earlier run added these addresses, if they exist.
    pub(super) fn claim(&mut self, own: &BTreeSet<IpAddr>) {
        let Some(loopback) = self.loopback() else { return };
        let is_own = |prefix: &IpNet| own.contains(&prefix.addr()) && *prefix == IpNet::from(prefix.addr());
        let claimed: Vec<IpAddr> =
            loopback.addresses.extract_if(.., |it| is_own(it)).map(|it| it.addr()).collect();
        loopback.own.extend(claimed);
    }

    /// The link with this name.
    pub(super) fn named(&self, name: &str) -> Option<&LinkInfo> {
        self.links.values().map(|link| &link.info).find(|info| info.name == name)
    }

    /// Whether packets can leave by the link with this index.
    pub(super) fn is_usable(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(LinkState::is_usable)
    }

    /// Whether a route may use the link directly. Always true for a pod's link: it is new, and its
    /// notification may not have arrived yet.
    pub(super) fn may_carry(&self, index: u32) -> bool {
        self.links.get(&index).is_none_or(|link| is_pods(&link.info) || link.is_usable())
    }

    /// The link of a directly connected address: the longest prefix among the addresses of usable
    /// links.
    pub(super) fn connected(&self, address: IpAddr) -> Option<u32> {
        self.links
            .values()
            .filter(|link| link.is_usable() && !is_pods(&link.info))
            .flat_map(|link| link.addresses.iter().map(|prefix| (prefix, link.info.index)))
            .filter(|(prefix, _)| prefix.prefix_len() < prefix.max_prefix_len() && prefix.contains(&address))
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map(|(_, index)| index)
    }

    /// The target with a link for each hop. Routers that are not reachable are omitted (for example
    /// after a loss of carrier, before the session ends). None: no hop is left. `farther` returns
    /// the next hop of a gateway that is on no connected network.
    pub(super) fn resolve(
        &self,
        target: &RouteTarget,
        mut farther: impl FnMut(IpAddr) -> Option<Hop>,
    ) -> Option<RouteTarget> {
        let RouteTarget::Via(hops) = target else { return Some(target.clone()) };
        let resolved: Vec<Hop> =
            hops.iter()
                .filter_map(|hop| match (hop.gateway, hop.ifindex) {
                    (Some(gateway), None) => match self.connected(gateway) {
                        Some(index) => Some(Hop { ifindex: Some(index), ..*hop }),
                        None => farther(gateway)
                            .filter(|hop| hop.ifindex.is_some_and(|index| self.is_usable(index))),
                    },
                    (Some(_), Some(index)) => self.is_usable(index).then_some(*hop),
                    (None, Some(index)) => self.may_carry(index).then_some(*hop),
                    (None, None) => None,
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
            own: BTreeSet::new(),
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
        let links = links.into_iter().map(|link| (link.info.index, link)).collect();
        let topology = Topology { links, ..Topology::default() };
        let via = |gateways: &[&str]| {
            let hop = |gateway: &&str| Hop::to(gateway.parse().unwrap());
            topology.resolve(&RouteTarget::via(gateways.iter().map(hop).collect()), |_| None).map(|target| {
                match target {
                    RouteTarget::Via(hops) => hops.iter().map(|hop| hop.ifindex.unwrap()).collect(),
                    RouteTarget::Blackhole | RouteTarget::Unreachable | RouteTarget::Throw => Vec::new(),
                }
            })
        };
        assert_eq!(via(&["192.0.2.9"]), Some(vec![2]));
        assert_eq!(via(&["192.0.2.130"]), Some(vec![3]));
        assert_eq!(via(&["192.0.2.9", "2001:db8::9"]), Some(vec![2, 3]));
        assert_eq!(via(&["198.51.100.9"]), None, "the link is down");
        assert_eq!(via(&["203.0.113.7"]), None, "a host address connects no other host");
        assert_eq!(via(&["198.51.100.9", "192.0.2.9"]), Some(vec![2]), "only the usable router is left");
        let on_link = |index| topology.resolve(&RouteTarget::via(vec![Hop::link(index)]), |_| None).is_some();
        assert!(on_link(2) && on_link(99), "link 99 is a new pod's, without a notification yet");
        assert!(!on_link(4), "down");
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
        assert!(is_pods(&info("x", "veth", Some("trunkline:c1:eth0"))));
        assert!(is_pods(&info("tl0123456789ab", "veth", None)));
        assert!(!is_pods(&info("tl0123456789ab", "bridge", None)));
        assert!(!is_pods(&info("tlxx23456789ab", "veth", None)));
        assert!(!is_pods(&info("eth0", "veth", Some("uplink"))));

        let vlan = |index, alias| {
            let link = info("eth0.10", "vlan", alias);
            LinkInfo { index, peer: Some(2), vlan_id: Some(10), ..link }
        };
        let topology = Topology { planned: [8].into(), ..Topology::default() };
        let marked = vlan(7, Some("trunkline:vlan:rack"));
        assert!(topology.is_planned(&marked) && !is_pods(&marked));
        assert!(topology.is_planned(&vlan(8, None)), "a planned link without its alias");
        assert!(!topology.is_planned(&vlan(9, None)), "a link of another program");
    }
}
