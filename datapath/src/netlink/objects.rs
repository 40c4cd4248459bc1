//! The rtnetlink objects (links, addresses, neighbours, routes and rules) with their requests and
//! parsers.
//!
//! `netlink-packet-route` knows the layouts. This module selects the messages that Trunkline sends
//! and the fields that it reads. Objects of Trunkline carry [`PROTOCOL`]. Deletions carry it too,
//! so the kernel refuses to delete objects of other programs.
//!
//! This module reads messages attribute by attribute ([`attributes`]) and not with the crate's
//! functions for whole messages. The crate's functions reject a message because of one unknown
//! attribute. If a link were not read, the routers on it could not be reached.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Parseable,
    ParseableParametrized,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressMessage, AddressProtocol, AddressScope, CacheInfo,
};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, InfoVrf,
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkInfo as Info, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteLwEnCapType, RouteMessage, RouteNextHop,
    RouteNextHopFlags, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::links;
use super::message::{Batch, attributes};
use super::vxlan::VxlanInfo;
use crate::family::IpFamily;
use crate::plan::{Hop, LinkKind, Mark, Neighbour, Proxy, RouteKey, RouteTarget, Rule, SINK_ALIAS};

/// The routing protocol number (RTPROT) of everything that Trunkline installs.
pub const PROTOCOL: u8 = 116;
/// The device group of pods' host interfaces. The guard's rules match it.
pub const GROUP: u32 = 116;

// These constants of fib_rules.h are not in libc.
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FWMASK: u16 = 16;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
// These constants of if_link.h and netlink.h are not in libc.
const IFLA_INET_CONF: u16 = 1;
const NESTED: u16 = 1 << 15;
/// IPv4 settings of a pod's host interface, as `IPV4_DEVCONF_…` number (ip.h) and value: proxy ARP
/// on, accept_redirects and send_redirects off, strict rp_filter.
const HOST_END: [(u16, u32); 4] = [(3, 1), (4, 0), (6, 0), (8, 1)];
// This constant of neighbour.h is not in libc.
const NDA_PROTOCOL: u16 = 12;
// This constant of if_addr.h is not in libc.
const IFA_PROTO: u16 = 11;
/// A lifetime without an end (INFINITY_LIFE_TIME).
const FOREVER: u32 = u32::MAX;

/// A link as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// `IFF_…`.
    pub flags: u32,
    /// MTU in octets.
    pub mtu: u32,
    /// Link-layer address, if it has six octets.
    pub mac: Option<[u8; 6]>,
    /// The alias of the interface.
    pub alias: Option<String>,
    /// Index of the other end (veth) or of the lower link (VLAN, IPVLAN), in the namespace of that
    /// link.
    pub peer: Option<u32>,
    /// The ID of the namespace of `peer` in this namespace, if `peer` is in another namespace.
    pub peer_netns: Option<i32>,
    /// The kind, such as `veth`.
    pub kind: Option<String>,
    /// The table of a VRF.
    pub vrf_table: Option<u32>,
    /// The VLAN ID of an 802.1Q device.
    pub vlan_id: Option<u16>,
    /// The settings of a VXLAN device.
    pub vxlan: Option<VxlanInfo>,
    /// The device group.
    pub group: u32,
}

impl LinkInfo {
    /// Whether the link is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & LinkFlags::Up.bits() != 0
    }

    /// Whether the link has carrier.
    pub fn is_running(&self) -> bool {
        self.flags & LinkFlags::LowerUp.bits() != 0
    }

    /// The kind of the link as the plan describes it.
    pub fn planned_kind(&self) -> Option<LinkKind> {
        match (self.kind.as_deref()?, self.peer, self.vlan_id, &self.vxlan) {
            ("vlan", Some(parent), Some(id), _) => Some(LinkKind::Vlan { parent, id }),
            ("vxlan", _, _, Some(VxlanInfo { vni, local, port })) => {
                Some(LinkKind::Vxlan { vni: *vni, local: *local, port: *port, mac: self.mac? })
            }
            ("ifb", ..) => (self.alias.as_deref() == Some(SINK_ALIAS)).then_some(LinkKind::Sink),
            _ => None,
        }
    }
}

/// A route as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Table and destination.
    pub key: RouteKey,
    /// RTPROT.
    pub protocol: u8,
    /// The priority; 0 if it is the kernel's default of the family.
    pub metric: u32,
    /// The target; none for route types that Trunkline never creates.
    pub target: Option<RouteTarget>,
}

/// A rule as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// RTPROT of the program that created the rule.
    pub protocol: u8,
    /// The rule, as far as the type [`Rule`] can describe it.
    pub rule: Rule,
}

pub(super) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_family(family: IpFamily) -> AddressFamily {
    match family {
        IpFamily::V4 => AddressFamily::Inet,
        IpFamily::V6 => AddressFamily::Inet6,
    }
}

/// The table in the header. A number above 255 is only in the attribute.
fn table_octet(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC)
}

/// A new veth pair.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// Name of the host interface, in this namespace.
    pub host_name: &'a str,
    /// MAC address of the host interface.
    pub host_mac: [u8; 6],
    /// Name of the pod interface.
    pub pod_name: &'a str,
    /// MAC address of the pod interface.
    pub pod_mac: [u8; 6],
    /// MTU of both ends; the kernel's default if none.
    pub mtu: Option<u32>,
}

/// A route in a pod with a gateway that is always on the link (`onlink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlinkRoute {
    /// Destination prefix, of the gateway's family.
    pub destination: IpNet,
    /// The gateway.
    pub gateway: IpAddr,
    /// Index of the link.
    pub ifindex: u32,
    /// The preferred source address, if the link has no address.
    pub source: Option<IpAddr>,
    /// Its table, usually [`MAIN_TABLE`].
    pub table: u32,
    /// The metric: the route with the lower value wins; 0 is the kernel's default of the family.
    pub metric: u32,
}

/// The main routing table.
pub const MAIN_TABLE: u32 = libc::RT_TABLE_MAIN as u32;

pub(super) fn link(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader { index, flags, change_mask: flags, ..LinkHeader::default() };
    message.attributes = attributes;
    message
}

/// The attribute that suppresses statistics.
pub(super) fn no_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn end_of_pair(name: &str, mac: [u8; 6], mtu: Option<u32>, more: LinkAttribute) -> LinkMessage {
    let mut attributes = vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::Address(mac.to_vec())];
    attributes.extend(mtu.map(LinkAttribute::Mtu));
    attributes.push(more);
    link(0, LinkFlags::empty(), attributes)
}

impl Batch {
    /// Creates a veth pair with the other end in the namespace `pod`. Both ends are down.
    pub fn create_veth(&mut self, veth: &Veth<'_>, pod: BorrowedFd<'_>) {
        let peer =
            end_of_pair(veth.pod_name, veth.pod_mac, veth.mtu, LinkAttribute::NetNsFd(pod.as_raw_fd()));
        let info = vec![Info::Kind(InfoKind::Veth), Info::Data(InfoData::Veth(InfoVeth::Peer(peer)))];
        let host = end_of_pair(veth.host_name, veth.host_mac, veth.mtu, LinkAttribute::LinkInfo(info));
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(host));
    }

    /// Configures a pod's host interface while it is down: alias, group, proxy ARP, a strict check
    /// of IPv4 sources, no redirects, no automatic link-local address.
    pub fn set_host_end(&mut self, index: u32, alias: &str) {
        // The crate's message omits settings with the value 0.
        let setting = |(number, value): (u16, u32)| {
            [&8_u16.to_ne_bytes()[..], &number.to_ne_bytes(), &value.to_ne_bytes()].concat()
        };
        let settings = HOST_END.into_iter().flat_map(setting).collect();
        let settings = DefaultNla::new(IFLA_INET_CONF | NESTED, settings);
        let families = vec![
            AfSpecUnspec::Inet(vec![AfSpecInet::Other(settings)]),
            AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]),
        ];
        let attributes = vec![
            LinkAttribute::IfAlias(alias.to_owned()),
            LinkAttribute::Group(GROUP),
            LinkAttribute::AfSpecUnspec(families),
        ];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }

    /// Sets the device group of a pod's device.
    pub fn set_group(&mut self, index: u32) {
        let attributes = vec![LinkAttribute::Group(GROUP)];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }

    /// Sets a link's alias. The kernel ignores an alias in the request that creates a link.
    pub fn set_alias(&mut self, index: u32, alias: &str) {
        let attributes = vec![LinkAttribute::IfAlias(alias.to_owned())];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }

    /// Brings a link up.
    pub fn set_up(&mut self, index: u32) {
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::Up, Vec::new())));
    }

    /// Requests a link by its name.
    pub fn get_link(&mut self, name: &str) {
        let attributes = vec![LinkAttribute::IfName(name.to_owned()), no_statistics()];
        self.push(0, RouteNetlinkMessage::GetLink(link(0, LinkFlags::empty(), attributes)));
    }

    /// Requests a link by its index.
    pub fn get_link_at(&mut self, index: u32) {
        self.push(0, RouteNetlinkMessage::GetLink(link(index, LinkFlags::empty(), vec![no_statistics()])));
    }

    /// Deletes a link by its index.
    pub fn delete_link(&mut self, index: u32) {
        self.push(0, RouteNetlinkMessage::DelLink(link(index, LinkFlags::empty(), Vec::new())));
    }

    /// Lists links.
    pub fn dump_links(&mut self) {
        let message = link(0, LinkFlags::empty(), vec![no_statistics()]);
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetLink(message));
    }

    /// Adds or replaces an address, without duplicate address detection.
    pub fn put_address(&mut self, index: u32, prefix: IpNet) {
        let mut message = AddressMessage::default();
        message.header = AddressHeader {
            family: family_of(prefix.addr()),
            prefix_len: prefix.prefix_len(),
            scope: AddressScope::Universe,
            index,
            ..AddressHeader::default()
        };
        message.attributes =
            vec![AddressAttribute::Local(prefix.addr()), AddressAttribute::Address(prefix.addr())];
        if prefix.addr().is_ipv6() {
            // A host address needs no prefix route, because it connects no other host.
            let alone = prefix.prefix_len() == prefix.max_prefix_len();
            let alone = if alone { AddressFlags::Noprefixroute } else { AddressFlags::empty() };
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad | alone));
        }
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewAddress(message));
    }

    /// Adds an address of the host with Trunkline's protocol number, which kernels before 5.18
    /// ignore. Programs can bind the address, but the kernel never selects it as a source: an IPv4
    /// address has scope host, and an IPv6 address is deprecated (RFC 6724, rule 3).
    pub fn put_host_address(&mut self, index: u32, address: IpAddr) {
        let mut message = host_address(index, address);
        message.header.scope = AddressScope::Host;
        message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(PROTOCOL)));
        if address.is_ipv6() {
            let mut lifetimes = CacheInfo::default();
            (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (0, FOREVER);
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            message
                .attributes
                .extend([AddressAttribute::CacheInfo(lifetimes), AddressAttribute::Flags(flags)]);
        }
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewAddress(message));
    }

    /// Deletes an address of the host.
    pub fn delete_host_address(&mut self, index: u32, address: IpAddr) {
        self.push(0, RouteNetlinkMessage::DelAddress(host_address(index, address)));
    }

    /// Lists addresses of a family.
    pub fn dump_addresses(&mut self, family: IpFamily) {
        let mut message = AddressMessage::default();
        message.header.family = address_family(family);
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetAddress(message));
    }

    /// Adds or replaces a permanent neighbour entry.
    pub fn put_neighbour(&mut self, neighbour: &Neighbour) {
        let mut message = neighbour_at(neighbour.ifindex, neighbour.address);
        message.header.state = NeighbourState::Permanent;
        message.attributes.extend([
            NeighbourAttribute::LinkLayerAddress(neighbour.mac.to_vec()),
            NeighbourAttribute::Protocol(RouteProtocol::from(PROTOCOL)),
        ]);
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message));
    }

    /// Adds or replaces a proxy entry.
    pub fn put_proxy(&mut self, proxy: &Proxy) {
        let mut message = proxy_at(proxy);
        message.attributes.push(NeighbourAttribute::Protocol(RouteProtocol::from(PROTOCOL)));
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message));
    }

    /// Deletes a proxy entry.
    pub fn delete_proxy(&mut self, proxy: &Proxy) {
        self.push(0, RouteNetlinkMessage::DelNeighbour(proxy_at(proxy)));
    }

    /// Lists the proxy entries of a family.
    pub fn dump_proxies(&mut self, family: IpFamily) {
        let mut message = NeighbourMessage::default();
        message.header.family = address_family(family);
        message.header.flags = NeighbourFlags::Proxy;
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetNeighbour(message));
    }

    /// Deletes a neighbour.
    pub fn delete_neighbour(&mut self, ifindex: u32, address: IpAddr) {
        self.push(0, RouteNetlinkMessage::DelNeighbour(neighbour_at(ifindex, address)));
    }

    /// Requests one neighbour entry.
    pub fn get_neighbour(&mut self, ifindex: u32, address: IpAddr) {
        self.push(0, RouteNetlinkMessage::GetNeighbour(neighbour_at(ifindex, address)));
    }

    /// Lists neighbours of a family.
    pub fn dump_neighbours(&mut self, family: IpFamily) {
        let mut message = NeighbourMessage::default();
        message.header.family = address_family(family);
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetNeighbour(message));
    }

    /// Installs a route, or replaces the route with the same key.
    pub fn put_route(&mut self, key: &RouteKey, target: &RouteTarget) {
        let mut message = own_route(key);
        let header = &mut message.header;
        match target {
            RouteTarget::Blackhole => header.kind = RouteType::BlackHole,
            RouteTarget::Unreachable => header.kind = RouteType::Unreachable,
            RouteTarget::Throw => header.kind = RouteType::Throw,
            RouteTarget::Via(hops) => {
                header.kind = RouteType::Unicast;
                if hops.iter().all(|hop| hop.gateway.is_none()) {
                    header.scope = RouteScope::Link;
                }
                if let [hop] = &**hops {
                    if hop.onlink {
                        header.flags |= RouteFlags::Onlink;
                    }
                    message.attributes.extend(gateway(key, hop));
                    message.attributes.extend(hop.ifindex.map(RouteAttribute::Oif));
                    message
                        .attributes
                        .extend(hop.source.map(|source| RouteAttribute::PrefSource(source.into())));
                } else {
                    let hops = hops.iter().map(|hop| {
                        let mut next_hop = RouteNextHop::default();
                        next_hop.interface_index = hop.ifindex.unwrap_or(0);
                        if hop.onlink {
                            next_hop.flags |= RouteNextHopFlags::Onlink;
                        }
                        next_hop.attributes = gateway(key, hop).into_iter().collect();
                        next_hop
                    });
                    message.attributes.push(RouteAttribute::MultiPath(hops.collect()));
                }
            }
        }
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewRoute(message));
    }

    /// Installs or replaces a route.
    pub fn put_onlink_route(&mut self, route: &OnlinkRoute) {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family_of(route.gateway),
            destination_prefix_length: route.destination.prefix_len(),
            table: table_octet(route.table),
            protocol: RouteProtocol::Static,
            kind: RouteType::Unicast,
            flags: RouteFlags::Onlink,
            ..RouteHeader::default()
        };
        message.attributes = vec![
            RouteAttribute::Destination(route.destination.addr().into()),
            RouteAttribute::Gateway(route.gateway.into()),
            RouteAttribute::Oif(route.ifindex),
            RouteAttribute::Table(route.table),
        ];
        if route.metric != 0 {
            message.attributes.push(RouteAttribute::Priority(route.metric));
        }
        message.attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(source.into())));
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewRoute(message));
    }

    /// Installs a local route for `address`. For IPv4, the kernel does this when the address is
    /// added.
    pub fn put_local_route(&mut self, address: Ipv6Addr, ifindex: u32) {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: AddressFamily::Inet6,
            destination_prefix_length: 128,
            table: libc::RT_TABLE_LOCAL,
            protocol: RouteProtocol::Static,
            kind: RouteType::Local,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Destination(address.into()), RouteAttribute::Oif(ifindex)];
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewRoute(message));
    }

    /// Deletes a Trunkline route with any target.
    pub fn delete_route(&mut self, key: &RouteKey, metric: u32) {
        let mut message = own_route(key);
        message.header.scope = RouteScope::NoWhere;
        if metric != 0 {
            message.attributes.push(RouteAttribute::Priority(metric));
        }
        self.push(0, RouteNetlinkMessage::DelRoute(message));
    }

    /// Requests the route in the table that matches a packet to `destination`.
    pub fn get_route(&mut self, destination: IpAddr) {
        let mut message = RouteMessage::default();
        message.header.address_family = family_of(destination);
        // For IPv6, the kernel always returns the table, and it refuses the flag
        // RTM_F_LOOKUP_TABLE.
        (message.header.destination_prefix_length, message.header.flags) = match destination {
            IpAddr::V4(_) => (32, RouteFlags::FibMatch | RouteFlags::LookupTable),
            IpAddr::V6(_) => (128, RouteFlags::FibMatch),
        };
        message.attributes.push(RouteAttribute::Destination(destination.into()));
        self.push(0, RouteNetlinkMessage::GetRoute(message));
    }

    /// Lists routes of a family in all tables: only Trunkline's, or all.
    pub fn dump_routes(&mut self, family: IpFamily, own: bool) {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        message.header.protocol = RouteProtocol::from(if own { PROTOCOL } else { 0 });
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetRoute(message));
    }

    /// Lists routes of a family in one table.
    pub fn dump_table(&mut self, family: IpFamily, table: u32) {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        message.attributes.push(RouteAttribute::Table(table));
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetRoute(message));
    }

    /// Lists routes of a family in the main table.
    pub fn dump_main_routes(&mut self, family: IpFamily) {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        message.header.table = libc::RT_TABLE_MAIN;
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetRoute(message));
    }

    /// Adds a rule, if no equal rule exists.
    pub fn add_rule(&mut self, rule: &Rule) {
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewRule(own_rule(rule)));
    }

    /// Deletes a Trunkline rule.
    pub fn delete_rule(&mut self, rule: &Rule) {
        self.push(0, RouteNetlinkMessage::DelRule(own_rule(rule)));
    }

    /// Lists rules of a family.
    pub fn dump_rules(&mut self, family: IpFamily) {
        let mut message = RuleMessage::default();
        message.header.family = address_family(family);
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetRule(message));
    }
}

/// An address that connects no other host.
fn host_address(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: family_of(address),
        prefix_len: IpNet::from(address).prefix_len(),
        index,
        ..AddressHeader::default()
    };
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

fn neighbour_at(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader { family: family_of(address), ifindex, ..NeighbourHeader::default() };
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

fn proxy_at(proxy: &Proxy) -> NeighbourMessage {
    let mut message = neighbour_at(proxy.ifindex, proxy.address);
    message.header.flags = NeighbourFlags::Proxy;
    message
}

fn own_route(key: &RouteKey) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family_of(key.prefix.addr()),
        destination_prefix_length: key.prefix.prefix_len(),
        table: table_octet(key.table),
        protocol: RouteProtocol::from(PROTOCOL),
        ..RouteHeader::default()
    };
    message.attributes =
        vec![RouteAttribute::Destination(key.prefix.addr().into()), RouteAttribute::Table(key.table)];
    message
}

/// The gateway of one hop. A gateway of the other family goes into RTA_VIA (RFC 5549).
fn gateway(key: &RouteKey, hop: &Hop) -> Option<RouteAttribute> {
    hop.gateway.map(|gateway| match (key.prefix, gateway) {
        (IpNet::V4(_), IpAddr::V6(gateway)) => RouteAttribute::Via(gateway.into()),
        _ => RouteAttribute::Gateway(gateway.into()),
    })
}

fn own_rule(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header = RuleHeader {
        family: address_family(rule.family),
        src_len: rule.from.map_or(0, |from| from.prefix_len()),
        dst_len: rule.to.map_or(0, |to| to.prefix_len()),
        table: table_octet(rule.table),
        action: RuleAction::ToTable,
        ..RuleHeader::default()
    };
    message.attributes.extend(rule.from.map(|from| RuleAttribute::Source(from.addr())));
    message.attributes.extend(rule.to.map(|to| RuleAttribute::Destination(to.addr())));
    let marks = rule.mark.map(|mark| [RuleAttribute::FwMark(mark.value), RuleAttribute::FwMask(mark.mask)]);
    message.attributes.extend(marks.into_iter().flatten());
    message.attributes.extend(rule.iif.clone().map(RuleAttribute::Iifname));
    message.attributes.extend([
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)),
    ]);
    message
}

/// Reads an RTM_NEWLINK or RTM_DELLINK.
pub fn read_link(body: &[u8]) -> Option<LinkInfo> {
    let header = LinkHeader::parse(body).ok()?;
    let mut link = LinkInfo { index: header.index, flags: header.flags.bits(), ..LinkInfo::default() };
    // The kernel sends about sixty attributes for a link. AF_SPEC alone contains all settings of
    // all families.
    const WANTED: &[u16] = &[
        libc::IFLA_IFNAME,
        libc::IFLA_MTU,
        libc::IFLA_ADDRESS,
        libc::IFLA_IFALIAS,
        libc::IFLA_LINK,
        libc::IFLA_LINK_NETNSID,
        libc::IFLA_LINKINFO,
        libc::IFLA_GROUP,
    ];
    let read = |nla: &_| LinkAttribute::parse_with_param(nla, AddressFamily::Unspec);
    for attribute in attributes(&body[header.buffer_len()..], WANTED, read) {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Address(mac) => link.mac = mac.try_into().ok(),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
            LinkAttribute::Group(group) => link.group = group,
            LinkAttribute::Link(peer) => link.peer = Some(peer),
            LinkAttribute::LinkNetNsId(netns) => link.peer_netns = Some(netns),
            LinkAttribute::LinkInfo(info) => {
                for info in info {
                    match info {
                        Info::Kind(kind) => link.kind = Some(kind.to_string()),
                        Info::Data(InfoData::Vrf(settings)) => {
                            link.vrf_table = settings.iter().find_map(|setting| match setting {
                                InfoVrf::TableId(table) => Some(*table),
                                _ => None,
                            });
                        }
                        Info::Data(InfoData::Vlan(settings)) => link.vlan_id = links::vlan_id(&settings),
                        Info::Data(InfoData::Vxlan(settings)) => link.vxlan = VxlanInfo::of(&settings),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(link)
}

/// An address as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// Index of the link.
    pub ifindex: u32,
    /// The address, with the length of its prefix.
    pub prefix: IpNet,
    /// IFA_PROTO of the program that added the address; 0 before Linux 5.18.
    pub protocol: u8,
}

/// Reads an RTM_NEWADDR or RTM_DELADDR.
pub fn read_address(body: &[u8]) -> Option<AddressInfo> {
    const WANTED: &[u16] = &[libc::IFA_LOCAL, libc::IFA_ADDRESS, IFA_PROTO];
    let header = AddressHeader::parse(body).ok()?;
    let (mut found, mut protocol) = (None, 0);
    for attribute in attributes(&body[header.buffer_len()..], WANTED, AddressAttribute::parse) {
        match attribute {
            AddressAttribute::Local(address) => found = Some(address),
            AddressAttribute::Address(address) if found.is_none() => found = Some(address),
            AddressAttribute::Protocol(by) => protocol = by.into(),
            _ => {}
        }
    }
    let prefix = IpNet::new(found?, header.prefix_len).ok()?;
    Some(AddressInfo { ifindex: header.index, prefix, protocol })
}

/// A neighbour entry as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourInfo {
    /// RTPROT of the program that created the entry.
    pub protocol: u8,
    /// The contents of the entry.
    pub entry: NeighbourEntry,
}

/// The kinds of neighbour entries that Trunkline creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourEntry {
    /// A permanent entry.
    Permanent(Neighbour),
    /// A proxy entry.
    Proxy(Proxy),
}

/// Reads the link and the address of an RTM_NEWNEIGH or RTM_DELNEIGH, in any state.
pub fn read_neighbour_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let header = NeighbourHeader::parse(body).ok()?;
    let read = |nla: &_| NeighbourAttribute::parse_with_param(nla, header.family);
    let mut found = attributes(&body[header.buffer_len()..], &[libc::NDA_DST], read);
    match found.next()? {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
            Some((header.ifindex, address.into()))
        }
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
            Some((header.ifindex, address.into()))
        }
        _ => None,
    }
}

/// Reads an RTM_NEWNEIGH; permanent and proxy entries only.
pub fn read_neighbour(body: &[u8]) -> Option<NeighbourInfo> {
    let header = NeighbourHeader::parse(body).ok()?;
    let is_proxy = header.flags.contains(NeighbourFlags::Proxy);
    if header.state != NeighbourState::Permanent && !is_proxy {
        return None;
    }
    let (mut to, mut mac, mut protocol) = (None, None, 0);
    let read = |nla: &_| NeighbourAttribute::parse_with_param(nla, header.family);
    const WANTED: &[u16] = &[libc::NDA_DST, libc::NDA_LLADDR, NDA_PROTOCOL];
    for attribute in attributes(&body[header.buffer_len()..], WANTED, read) {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => to = Some(address.into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => to = Some(address.into()),
            NeighbourAttribute::LinkLayerAddress(address) => mac = address.try_into().ok(),
            NeighbourAttribute::Protocol(by) => protocol = by.into(),
            _ => {}
        }
    }
    let (ifindex, address) = (header.ifindex, to?);
    let entry = match is_proxy {
        true => NeighbourEntry::Proxy(Proxy { ifindex, address }),
        false => NeighbourEntry::Permanent(Neighbour { ifindex, address, mac: mac? }),
    };
    Some(NeighbourInfo { protocol, entry })
}

pub(super) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

impl Hop {
    pub(super) fn take(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Oif(index) => self.ifindex = Some(*index),
            RouteAttribute::Gateway(gateway) => self.gateway = ip(gateway),
            RouteAttribute::PrefSource(source) => self.source = ip(source),
            RouteAttribute::Via(RouteVia::Inet(gateway)) => self.gateway = Some(IpAddr::V4(*gateway)),
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => self.gateway = Some(IpAddr::V6(*gateway)),
            _ => {}
        }
    }
}

/// Reads an RTM_NEWROUTE or RTM_DELROUTE of IPv4 or IPv6.
pub fn read_route(body: &[u8]) -> Option<RouteInfo> {
    let header = RouteHeader::parse(body).ok()?;
    let (mut destination, default_metric) = match header.address_family {
        AddressFamily::Inet => (IpAddr::from([0; 4]), 0),
        AddressFamily::Inet6 => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 1024), // IP6_RT_PRIO_USER
        _ => return None,
    };
    let (mut table, mut metric) = (u32::from(header.table), 0);
    let (mut hop, mut hops) = (
        Hop { gateway: None, ifindex: None, onlink: header.flags.contains(RouteFlags::Onlink), source: None },
        Vec::new(),
    );
    let param = (header.address_family, header.kind, RouteLwEnCapType::None);
    const WANTED: &[u16] = &[
        libc::RTA_TABLE,
        libc::RTA_DST,
        libc::RTA_PRIORITY,
        libc::RTA_OIF,
        libc::RTA_GATEWAY,
        libc::RTA_PREFSRC,
        libc::RTA_VIA,
        libc::RTA_MULTIPATH,
    ];
    let read = |nla: &_| RouteAttribute::parse_with_param(nla, param);
    for attribute in attributes(&body[header.buffer_len()..], WANTED, read) {
        match attribute {
            RouteAttribute::Table(number) => table = number,
            RouteAttribute::Destination(address) => destination = ip(&address)?,
            RouteAttribute::Priority(priority) => metric = priority,
            RouteAttribute::MultiPath(paths) => hops.extend(paths.iter().map(|path| {
                let onlink = path.flags.contains(RouteNextHopFlags::Onlink);
                let mut hop = Hop { onlink, ..Hop::link(path.interface_index) };
                path.attributes.iter().for_each(|attribute| hop.take(attribute));
                hop
            })),
            attribute => hop.take(&attribute),
        }
    }
    if metric == default_metric {
        metric = 0;
    }
    if hops.is_empty() {
        hops.push(hop);
    }
    let target = match header.kind {
        RouteType::BlackHole => Some(RouteTarget::Blackhole),
        RouteType::Unreachable => Some(RouteTarget::Unreachable),
        RouteType::Throw => Some(RouteTarget::Throw),
        RouteType::Unicast => Some(RouteTarget::via(hops)),
        _ => None,
    };
    let prefix = IpNet::new(destination, header.destination_prefix_length).ok()?;
    Some(RouteInfo { key: RouteKey { table, prefix }, protocol: header.protocol.into(), metric, target })
}

/// Reads an RTM_NEWRULE or RTM_DELRULE of IPv4 or IPv6.
pub fn read_rule(body: &[u8]) -> Option<RuleInfo> {
    const WANTED: &[u16] =
        &[FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK, FRA_FWMASK, FRA_TABLE, FRA_PROTOCOL];
    let header = RuleHeader::parse(body).ok()?;
    let family = match header.family {
        AddressFamily::Inet => IpFamily::V4,
        AddressFamily::Inet6 => IpFamily::V6,
        _ => return None,
    };
    let mut rule = Rule::always(family, 0, u32::from(header.table));
    let (mut protocol, mut mark) = (0, Mark { value: 0, mask: 0 });
    for attribute in attributes(&body[header.buffer_len()..], WANTED, RuleAttribute::parse) {
        match attribute {
            RuleAttribute::Destination(address) => rule.to = IpNet::new(address, header.dst_len).ok(),
            RuleAttribute::Source(address) => rule.from = IpNet::new(address, header.src_len).ok(),
            RuleAttribute::FwMark(value) => mark.value = value,
            RuleAttribute::FwMask(mask) => mark.mask = mask,
            RuleAttribute::Iifname(name) => rule.iif = Some(name),
            RuleAttribute::Priority(priority) => rule.priority = priority,
            RuleAttribute::Table(table) => rule.table = table,
            RuleAttribute::Protocol(by) => protocol = by.into(),
            _ => {}
        }
    }
    // The kernel reports a mask of 0 for a rule without a mark.
    rule.mark = (mark.mask != 0).then_some(mark);
    Some(RuleInfo { protocol, rule })
}

#[cfg(test)]
mod tests;
