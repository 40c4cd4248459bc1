//! The links that a session accepts packets from.
//!
//! A TTL of 255 proves that no router forwarded a packet. It does not prove which neighbour sent
//! the packet: a pod is one hop away too, and a pod with CAP_NET_RAW writes any source address. A
//! single-hop session is bound to an interface (RFC 5881 §3): it accepts packets from the peer's
//! link only. Two kinds of sessions accept packets from every link that carries no pods: multihop
//! sessions, and single-hop sessions with a peer outside all connected networks.

use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::Target;
use crate::types::InterfaceName;

/// Index of `lo`: the kernel gives it this index in every network namespace.
const LOOPBACK: u32 = 1;

/// A link of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// Its name.
    pub name: InterfaceName,
    /// Its index.
    pub index: u32,
    /// Its addresses, each with the length of its connected prefix.
    pub addresses: Vec<IpNet>,
    /// It is up and has carrier.
    pub carrier: bool,
    /// The link may lead to a peer behind a router, because it carries no pods.
    pub uplink: bool,
}

/// The links that a session accepts packets from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Every link: the owner does not know the host's links.
    Any,
    /// The links with these indices; no link if the list is empty.
    Only(SmallVec<[u32; 4]>),
}

impl Links {
    /// The links for a session, among all links of the host:
    ///
    /// 1. the target's interface, if the target names one;
    /// 2. `lo` and the link of the address, if the peer's address is the host's own;
    /// 3. over one hop: the links with a connected prefix that contains the peer's address, the
    ///    longest prefix only;
    /// 4. otherwise every uplink.
    pub fn of(target: &Target, host: &[HostLink]) -> Links {
        if let Some(name) = target.interface {
            return Links::Only(indices(host, |link| link.name == name));
        }
        let remote = target.remote;
        let mut own = indices(host, |link| link.addresses.iter().any(|prefix| prefix.addr() == remote));
        if !own.is_empty() {
            if !own.contains(&LOOPBACK) {
                own.push(LOOPBACK);
            }
            return Links::Only(own);
        }
        let longest = host.iter().filter_map(|link| connected(link, remote)).max();
        match longest.filter(|_| !target.config.multihop) {
            Some(longest) => Links::Only(indices(host, |link| connected(link, remote) == Some(longest))),
            None => Links::Only(indices(host, |link| link.uplink)),
        }
    }

    /// Whether the session accepts a packet that arrived on this link. Only [`Links::Any`] accepts
    /// a packet with an unknown link.
    pub fn contain(&self, interface: Option<u32>) -> bool {
        match self {
            Links::Any => true,
            Links::Only(indices) => interface.is_some_and(|index| indices.contains(&index)),
        }
    }
}

fn indices(host: &[HostLink], wanted: impl Fn(&HostLink) -> bool) -> SmallVec<[u32; 4]> {
    host.iter().filter(|link| wanted(link)).map(|link| link.index).collect()
}

/// The length of the longest connected prefix of the link that holds the address. A host prefix
/// connects no other host.
fn connected(link: &HostLink, address: IpAddr) -> Option<u8> {
    let prefixes = link.addresses.iter().filter(|prefix| prefix.prefix_len() < prefix.max_prefix_len());
    prefixes.filter(|prefix| prefix.contains(&address)).map(IpNet::prefix_len).max()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::BfdConfig;
    use super::*;

    fn link(index: u32, name: &str, uplink: bool, addresses: &[&str]) -> HostLink {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        HostLink { name: name.parse().unwrap(), index, addresses, carrier: true, uplink }
    }

    fn host() -> Vec<HostLink> {
        vec![
            link(1, "lo", false, &["127.0.0.1/8", "192.0.2.1/32", "::1/128"]),
            link(2, "eth0", true, &["10.1.0.11/24", "fd00:1::11/64", "fe80::2/64"]),
            link(3, "eth1", true, &["10.1.0.129/25", "fe80::3/64"]),
            link(4, "eth2", true, &["10.1.0.130/25", "198.51.100.7/32", "fe80::4/64"]),
            link(5, "vxlan4", false, &["10.9.0.1/16"]),
        ]
    }

    #[track_caller]
    fn expect(remote: &str, interface: Option<&str>, multihop: bool, expected: &[u32]) {
        let config = BfdConfig { multihop, ..BfdConfig::new(Duration::from_millis(50)) };
        let interface = interface.map(|name| name.parse().unwrap());
        let target = Target { remote: remote.parse().unwrap(), local: None, interface, config };
        assert_eq!(Links::of(&target, &host()), Links::Only(expected.into()), "{remote} {interface:?}");
    }

    #[test]
    fn a_connected_peer_is_on_the_links_of_its_longest_prefix() {
        expect("10.1.0.1", None, false, &[2]);
        expect("10.1.0.200", None, false, &[3, 4]);
        expect("fd00:1::1", None, false, &[2]);
        expect("10.9.0.2", None, false, &[5]);
    }

    #[test]
    fn a_named_interface_is_the_only_link() {
        expect("fe80::1", Some("eth1"), false, &[3]);
        expect("fe80::1", Some("eth9"), false, &[]);
    }

    #[test]
    fn other_peers_are_behind_every_uplink() {
        for (remote, multihop) in [("203.0.113.9", false), ("203.0.113.9", true), ("10.1.0.1", true)] {
            expect(remote, None, multihop, &[2, 3, 4]);
        }
    }

    #[test]
    fn an_address_of_the_host_is_reached_by_lo() {
        expect("10.1.0.11", None, false, &[2, 1]);
        expect("192.0.2.1", None, true, &[1]);
        expect("127.0.0.9", None, false, &[1]);
    }

    #[test]
    fn a_packet_without_a_known_link_needs_any() {
        assert!(Links::Any.contain(None) && Links::Any.contain(Some(7)));
        let only = Links::Only([2, 3].into_iter().collect());
        assert!(only.contain(Some(3)) && !only.contain(Some(4)) && !only.contain(None));
    }
}
