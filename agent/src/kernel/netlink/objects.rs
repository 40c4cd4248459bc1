//! The rtnetlink objects: links, addresses, neighbours, routes and rules, each with its request and its reading.
//!
//! Layouts are the kernel's (`if_link.h`, `if_addr.h`, `neighbour.h`, `rtnetlink.h`, `fib_rules.h`). What is made here carries
//! [`PROTOCOL`], and deletions name it too, so that the kernel itself refuses to delete what is not ours.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use trunkline_bgp::types::Family;

use super::message::{Batch, address, attributes, text, u16_at, u32_at};
use crate::plan::{Hop, Neighbour, RouteKey, RouteTarget, Rule};

/// The routing protocol number (RTPROT) of everything that Trunkline installs.
pub const PROTOCOL: u8 = 116;

const CREATE: u16 = (libc::NLM_F_CREATE) as u16;
const EXCLUSIVE: u16 = (libc::NLM_F_EXCL) as u16;
const REPLACE: u16 = (libc::NLM_F_REPLACE) as u16;
const DUMP: u16 = (libc::NLM_F_DUMP) as u16;

// Not in libc: fib_rules.h, veth.h, if_link.h, neighbour.h.
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
const VETH_INFO_PEER: u16 = 1;
const RTNH_F_ONLINK: u32 = 4;
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_PROXY_ARP: u16 = 3;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const NTF_EXT_MASK: u32 = libc::RTEXT_FILTER_SKIP_STATS as u32;

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
    /// Link-layer address, where it has six octets.
    pub mac: Option<[u8; 6]>,
    /// The administrator's text.
    pub alias: Option<String>,
    /// Index of the other end (veth), in its own namespace.
    pub peer: Option<u32>,
    /// The kind, such as `veth`.
    pub kind: Option<String>,
    /// The table of a VRF.
    pub vrf_table: Option<u32>,
}

impl LinkInfo {
    /// Administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// With carrier.
    pub fn is_running(&self) -> bool {
        self.flags & libc::IFF_LOWER_UP as u32 != 0
    }
}

/// A route as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Table and destination.
    pub key: RouteKey,
    /// RTPROT.
    pub protocol: u8,
    /// Its priority; 0 where the kernel's default for the family is used.
    pub metric: u32,
    /// Where it leads; none for kinds that Trunkline never makes.
    pub target: Option<RouteTarget>,
}

/// A rule as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// RTPROT of who made it.
    pub protocol: u8,
    /// The rule, as far as Trunkline's words go.
    pub rule: Rule,
}

fn family_octet(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// The address family's number.
pub fn address_family(family: Family) -> u8 {
    match family {
        Family::Ipv4Unicast => libc::AF_INET as u8,
        Family::Ipv6Unicast => libc::AF_INET6 as u8,
    }
}

/// Both ends of a new veth pair.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// Name of the end in this namespace.
    pub host_name: &'a str,
    /// Its MAC.
    pub host_mac: [u8; 6],
    /// Name of the other end.
    pub pod_name: &'a str,
    /// Its MAC.
    pub pod_mac: [u8; 6],
    /// MTU of both; the kernel's default if none.
    pub mtu: Option<u32>,
}

impl Batch {
    fn link_header(&mut self, index: u32, flags: u32, change: u32) {
        self.raw(&[0; 4]);
        self.raw(&index.to_ne_bytes());
        self.raw(&flags.to_ne_bytes());
        self.raw(&change.to_ne_bytes());
    }

    /// Makes a veth pair, the other end directly in the namespace `pod`. Both are down.
    pub fn create_veth(&mut self, veth: &Veth<'_>, pod: BorrowedFd<'_>) {
        self.begin(libc::RTM_NEWLINK, CREATE | EXCLUSIVE);
        self.link_header(0, 0, 0);
        self.attribute_text(libc::IFLA_IFNAME, veth.host_name);
        self.attribute(libc::IFLA_ADDRESS, &veth.host_mac);
        if let Some(mtu) = veth.mtu {
            self.attribute_u32(libc::IFLA_MTU, mtu);
        }
        let info = self.open(libc::IFLA_LINKINFO);
        self.attribute(libc::IFLA_INFO_KIND, b"veth");
        let data = self.open(libc::IFLA_INFO_DATA);
        let peer = self.open(VETH_INFO_PEER);
        self.link_header(0, 0, 0);
        self.attribute_text(libc::IFLA_IFNAME, veth.pod_name);
        self.attribute(libc::IFLA_ADDRESS, &veth.pod_mac);
        if let Some(mtu) = veth.mtu {
            self.attribute_u32(libc::IFLA_MTU, mtu);
        }
        self.attribute_u32(libc::IFLA_NET_NS_FD, pod.as_raw_fd() as u32);
        self.close(peer);
        self.close(data);
        self.close(info);
        self.end();
    }

    /// Settings of the host end of a pod's pair, while it is down: its alias, proxy ARP, no automatic link-local address.
    pub fn set_host_end(&mut self, index: u32, alias: &str) {
        self.begin(libc::RTM_SETLINK, 0);
        self.link_header(index, 0, 0);
        self.attribute(libc::IFLA_IFALIAS, alias.as_bytes());
        let families = self.open(libc::IFLA_AF_SPEC);
        let v4 = self.open(libc::AF_INET as u16);
        let settings = self.open(IFLA_INET_CONF);
        self.attribute_u32(IPV4_DEVCONF_PROXY_ARP, 1);
        self.close(settings);
        self.close(v4);
        let v6 = self.open(libc::AF_INET6 as u16);
        self.attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        self.close(v6);
        self.close(families);
        self.end();
    }

    /// Brings a link up.
    pub fn set_up(&mut self, index: u32) {
        self.begin(libc::RTM_SETLINK, 0);
        self.link_header(index, libc::IFF_UP as u32, libc::IFF_UP as u32);
        self.end();
    }

    /// Asks for a link by its name.
    pub fn get_link(&mut self, name: &str) {
        self.begin(libc::RTM_GETLINK, 0);
        self.link_header(0, 0, 0);
        self.attribute_text(libc::IFLA_IFNAME, name);
        self.attribute_u32(libc::IFLA_EXT_MASK, NTF_EXT_MASK);
        self.end();
    }

    /// Asks for a link by its index.
    pub fn get_link_at(&mut self, index: u32) {
        self.begin(libc::RTM_GETLINK, 0);
        self.link_header(index, 0, 0);
        self.attribute_u32(libc::IFLA_EXT_MASK, NTF_EXT_MASK);
        self.end();
    }

    /// Deletes a link by its index.
    pub fn delete_link(&mut self, index: u32) {
        self.begin(libc::RTM_DELLINK, 0);
        self.link_header(index, 0, 0);
        self.end();
    }

    /// Lists links.
    pub fn dump_links(&mut self) {
        self.begin(libc::RTM_GETLINK, DUMP);
        self.link_header(0, 0, 0);
        self.attribute_u32(libc::IFLA_EXT_MASK, NTF_EXT_MASK);
        self.end();
    }

    /// Puts an address on a link, in use at once (no duplicate address detection).
    pub fn put_address(&mut self, index: u32, prefix: IpNet) {
        self.begin(libc::RTM_NEWADDR, CREATE | REPLACE);
        let scope = match prefix.addr() {
            IpAddr::V6(address) if address.is_unicast_link_local() => libc::RT_SCOPE_LINK,
            _ => libc::RT_SCOPE_UNIVERSE,
        };
        self.raw(&[family_octet(prefix.addr()), prefix.prefix_len(), 0, scope]);
        self.raw(&index.to_ne_bytes());
        self.attribute_address(libc::IFA_LOCAL, prefix.addr());
        self.attribute_address(libc::IFA_ADDRESS, prefix.addr());
        if prefix.addr().is_ipv6() {
            // A host address connects nobody else: no route for its prefix.
            let alone = if prefix.prefix_len() == 128 { libc::IFA_F_NOPREFIXROUTE } else { 0 };
            self.attribute_u32(libc::IFA_FLAGS, libc::IFA_F_NODAD | alone);
        }
        self.end();
    }

    /// Lists addresses of a family; of one link, if it is said (`index` 0: all).
    pub fn dump_addresses(&mut self, family: Family, index: u32) {
        self.begin(libc::RTM_GETADDR, DUMP);
        self.raw(&[address_family(family), 0, 0, 0]);
        self.raw(&index.to_ne_bytes());
        self.end();
    }

    /// Puts a permanent neighbour in place.
    pub fn put_neighbour(&mut self, neighbour: &Neighbour) {
        self.begin(libc::RTM_NEWNEIGH, CREATE | REPLACE);
        self.neighbour_header(neighbour.ifindex, neighbour.address, libc::NUD_PERMANENT);
        self.attribute_address(libc::NDA_DST, neighbour.address);
        self.attribute(libc::NDA_LLADDR, &neighbour.mac);
        self.end();
    }

    /// Deletes a neighbour.
    pub fn delete_neighbour(&mut self, ifindex: u32, address: IpAddr) {
        self.begin(libc::RTM_DELNEIGH, 0);
        self.neighbour_header(ifindex, address, 0);
        self.attribute_address(libc::NDA_DST, address);
        self.end();
    }

    /// Asks for one neighbour.
    pub fn get_neighbour(&mut self, ifindex: u32, address: IpAddr) {
        self.begin(libc::RTM_GETNEIGH, 0);
        self.neighbour_header(ifindex, address, 0);
        self.attribute_address(libc::NDA_DST, address);
        self.end();
    }

    fn neighbour_header(&mut self, ifindex: u32, address: IpAddr, state: u16) {
        self.raw(&[family_octet(address), 0, 0, 0]);
        self.raw(&ifindex.to_ne_bytes());
        self.raw(&state.to_ne_bytes());
        self.raw(&[0, 0]);
    }

    /// Lists neighbours of a family.
    pub fn dump_neighbours(&mut self, family: Family) {
        self.begin(libc::RTM_GETNEIGH, DUMP);
        self.raw(&[address_family(family), 0, 0, 0]);
        self.raw(&[0; 8]);
        self.end();
    }

    /// Puts a route in place, also over another one of the same key.
    pub fn put_route(&mut self, key: &RouteKey, target: &RouteTarget) {
        self.begin(libc::RTM_NEWROUTE, CREATE | REPLACE);
        let (kind, scope) = match target {
            RouteTarget::Blackhole => (libc::RTN_BLACKHOLE, libc::RT_SCOPE_UNIVERSE),
            RouteTarget::Via(hops) if hops.iter().all(|hop| hop.gateway.is_none()) => {
                (libc::RTN_UNICAST, libc::RT_SCOPE_LINK)
            }
            RouteTarget::Via(_) => (libc::RTN_UNICAST, libc::RT_SCOPE_UNIVERSE),
        };
        self.route_header(key, scope, kind, 0);
        match target {
            RouteTarget::Blackhole => {}
            RouteTarget::Via(hops) => match hops.as_slice() {
                [hop] => {
                    self.gateway(key, hop);
                    if let Some(ifindex) = hop.ifindex {
                        self.attribute_u32(libc::RTA_OIF, ifindex);
                    }
                }
                hops => {
                    let multipath = self.open(libc::RTA_MULTIPATH);
                    for hop in hops {
                        // An IPv6 gateway of an IPv4 route has an odd length: the next hop starts aligned all the same.
                        self.pad();
                        let start = self.buffer.len();
                        self.raw(&[0; 4]);
                        self.raw(&hop.ifindex.unwrap_or(0).to_ne_bytes());
                        self.gateway(key, hop);
                        let length = ((self.buffer.len() - start) as u16).to_ne_bytes();
                        self.buffer[start..start + 2].copy_from_slice(&length);
                    }
                    self.close(multipath);
                }
            },
        }
        self.end();
    }

    /// Puts a default route in place whose gateway is on the link whatever its address says.
    pub fn put_onlink_default(&mut self, gateway: IpAddr, ifindex: u32) {
        self.begin(libc::RTM_NEWROUTE, CREATE | REPLACE);
        let onlink = RTNH_F_ONLINK;
        self.raw(&[family_octet(gateway), 0, 0, 0]);
        self.raw(&[libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST]);
        self.raw(&onlink.to_ne_bytes());
        self.attribute_address(libc::RTA_GATEWAY, gateway);
        self.attribute_u32(libc::RTA_OIF, ifindex);
        self.end();
    }

    /// Puts in place that packets to `address` are for this namespace. (For IPv4 the kernel does it with the address.)
    pub fn put_local_route(&mut self, address: Ipv6Addr, ifindex: u32) {
        self.begin(libc::RTM_NEWROUTE, CREATE | REPLACE);
        self.raw(&[libc::AF_INET6 as u8, 128, 0, 0]);
        self.raw(&[libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_LOCAL]);
        self.raw(&[0; 4]);
        self.attribute_address(libc::RTA_DST, address.into());
        self.attribute_u32(libc::RTA_OIF, ifindex);
        self.end();
    }

    /// Deletes an own route, whatever it leads to.
    pub fn delete_route(&mut self, key: &RouteKey, metric: u32) {
        self.begin(libc::RTM_DELROUTE, 0);
        self.route_header(key, libc::RT_SCOPE_NOWHERE, libc::RTN_UNSPEC, 0);
        if metric != 0 {
            self.attribute_u32(libc::RTA_PRIORITY, metric);
        }
        self.end();
    }

    /// Asks which route a packet to `destination` takes, as the table has it.
    pub fn get_route(&mut self, destination: IpAddr) {
        self.begin(libc::RTM_GETROUTE, 0);
        // IPv6 always names the table, and refuses to be asked for it.
        let (length, flags) = match destination {
            IpAddr::V4(_) => (32, libc::RTM_F_FIB_MATCH | libc::RTM_F_LOOKUP_TABLE),
            IpAddr::V6(_) => (128, libc::RTM_F_FIB_MATCH),
        };
        self.raw(&[family_octet(destination), length, 0, 0, 0, 0, 0, 0]);
        self.raw(&flags.to_ne_bytes());
        self.attribute_address(libc::RTA_DST, destination);
        self.end();
    }

    /// Lists routes of a family: all tables, and Trunkline's own only or everybody's.
    pub fn dump_routes(&mut self, family: Family, own: bool) {
        self.begin(libc::RTM_GETROUTE, DUMP);
        let protocol = if own { PROTOCOL } else { 0 };
        self.raw(&[address_family(family), 0, 0, 0, 0, protocol, 0, 0]);
        self.raw(&[0; 4]);
        self.end();
    }

    fn route_header(&mut self, key: &RouteKey, scope: u8, kind: u8, flags: u32) {
        self.raw(&[family_octet(key.prefix.addr()), key.prefix.prefix_len(), 0, 0]);
        self.raw(&[u8::try_from(key.table).unwrap_or(libc::RT_TABLE_UNSPEC), PROTOCOL, scope, kind]);
        self.raw(&flags.to_ne_bytes());
        self.attribute_address(libc::RTA_DST, key.prefix.addr());
        self.attribute_u32(libc::RTA_TABLE, key.table);
    }

    /// The gateway of one hop: of the other family it goes into RTA_VIA (RFC 5549 in the kernel's words).
    fn gateway(&mut self, key: &RouteKey, hop: &Hop) {
        match (key.prefix.addr(), hop.gateway) {
            (_, None) => {}
            (IpAddr::V4(_), Some(IpAddr::V6(gateway))) => {
                let mut via = [0; 18];
                via[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                via[2..].copy_from_slice(&gateway.octets());
                self.attribute(libc::RTA_VIA, &via);
            }
            (_, Some(gateway)) => self.attribute_address(libc::RTA_GATEWAY, gateway),
        }
    }

    /// Adds a rule, if there is none like it.
    pub fn add_rule(&mut self, rule: &Rule) {
        self.begin(libc::RTM_NEWRULE, CREATE | EXCLUSIVE);
        self.rule_body(rule);
    }

    /// Deletes an own rule.
    pub fn delete_rule(&mut self, rule: &Rule) {
        self.begin(libc::RTM_DELRULE, 0);
        self.rule_body(rule);
    }

    fn rule_body(&mut self, rule: &Rule) {
        let length = rule.from.map_or(0, |from| from.prefix_len());
        self.raw(&[address_family(rule.family), 0, length, 0]);
        self.raw(&[u8::try_from(rule.table).unwrap_or(libc::RT_TABLE_UNSPEC), 0, 0, FR_ACT_TO_TBL]);
        self.raw(&[0; 4]);
        if let Some(from) = rule.from {
            self.attribute_address(FRA_SRC, from.addr());
        }
        if let Some(iif) = &rule.iif {
            self.attribute_text(FRA_IIFNAME, iif);
        }
        self.attribute_u32(FRA_PRIORITY, rule.priority);
        self.attribute_u32(FRA_TABLE, rule.table);
        self.attribute(FRA_PROTOCOL, &[PROTOCOL]);
        self.end();
    }

    /// Lists rules of a family.
    pub fn dump_rules(&mut self, family: Family) {
        self.begin(libc::RTM_GETRULE, DUMP);
        self.raw(&[address_family(family), 0, 0, 0]);
        self.raw(&[0; 8]);
        self.end();
    }
}

/// Reads an RTM_NEWLINK or RTM_DELLINK.
pub fn read_link(body: &[u8]) -> Option<LinkInfo> {
    let mut link = LinkInfo { index: u32_at(body, 4)?, flags: u32_at(body, 8)?, ..LinkInfo::default() };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_IFALIAS => link.alias = Some(text(value)),
            libc::IFLA_LINK => link.peer = u32_at(value, 0),
            libc::IFLA_LINKINFO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        libc::IFLA_INFO_KIND => link.kind = Some(text(value)),
                        // 1 is IFLA_VRF_TABLE; other kinds' first setting is not looked at.
                        libc::IFLA_INFO_DATA if link.kind.as_deref() == Some("vrf") => {
                            link.vrf_table = attributes(value)
                                .find(|(kind, _)| *kind == 1)
                                .and_then(|(_, value)| u32_at(value, 0));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(link)
}

/// Reads an RTM_NEWADDR or RTM_DELADDR: the link's index, and the address with its length.
pub fn read_address(body: &[u8]) -> Option<(u32, IpNet)> {
    let length = *body.get(1)?;
    let index = u32_at(body, 4)?;
    let mut found = None;
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            libc::IFA_LOCAL => found = address(value),
            libc::IFA_ADDRESS if found.is_none() => found = address(value),
            _ => {}
        }
    }
    Some((index, IpNet::new(found?, length).ok()?))
}

/// Reads an RTM_NEWNEIGH: permanent ones only.
pub fn read_neighbour(body: &[u8]) -> Option<Neighbour> {
    let ifindex = u32_at(body, 4)?;
    if u16_at(body, 8)? & libc::NUD_PERMANENT == 0 {
        return None;
    }
    let (mut to, mut mac) = (None, None);
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            libc::NDA_DST => to = address(value),
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour { ifindex, address: to?, mac: mac? })
}

/// Reads an RTM_NEWROUTE or RTM_DELROUTE of IPv4 or IPv6.
pub fn read_route(body: &[u8]) -> Option<RouteInfo> {
    let v4 = match i32::from(*body.first()?) {
        libc::AF_INET => true,
        libc::AF_INET6 => false,
        _ => return None,
    };
    let length = *body.get(1)?;
    let mut table = u32::from(*body.get(4)?);
    let protocol = *body.get(5)?;
    let kind = *body.get(7)?;
    let mut destination = if v4 { IpAddr::from([0; 4]) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let (mut metric, mut hop, mut hops) = (0, Hop { gateway: None, ifindex: None }, Vec::new());
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            libc::RTA_TABLE => table = u32_at(value, 0)?,
            libc::RTA_DST => destination = address(value)?,
            libc::RTA_PRIORITY => metric = u32_at(value, 0)?,
            libc::RTA_OIF => hop.ifindex = u32_at(value, 0),
            libc::RTA_GATEWAY => hop.gateway = address(value),
            libc::RTA_VIA => hop.gateway = address(value.get(2..)?),
            libc::RTA_MULTIPATH => read_hops(value, &mut hops)?,
            _ => {}
        }
    }
    if !v4 && metric == 1024 {
        metric = 0; // IP6_RT_PRIO_USER: what "none given" becomes
    }
    if hops.is_empty() {
        hops.push(hop);
    }
    let target = match kind {
        libc::RTN_BLACKHOLE => Some(RouteTarget::Blackhole),
        libc::RTN_UNICAST => Some(RouteTarget::via(hops)),
        _ => None,
    };
    let prefix = IpNet::new(destination, length).ok()?;
    Some(RouteInfo { key: RouteKey { table, prefix }, protocol, metric, target })
}

fn read_hops(mut octets: &[u8], hops: &mut Vec<Hop>) -> Option<()> {
    while octets.len() >= 8 {
        let length = usize::from(u16_at(octets, 0)?);
        let mut hop = Hop { gateway: None, ifindex: u32_at(octets, 4) };
        for (kind, value) in attributes(octets.get(8..length)?) {
            match kind {
                libc::RTA_GATEWAY => hop.gateway = address(value),
                libc::RTA_VIA => hop.gateway = address(value.get(2..)?),
                _ => {}
            }
        }
        hops.push(hop);
        octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(())
}

/// Reads an RTM_NEWRULE or RTM_DELRULE of IPv4 or IPv6.
pub fn read_rule(body: &[u8]) -> Option<RuleInfo> {
    let family = match i32::from(*body.first()?) {
        libc::AF_INET => Family::Ipv4Unicast,
        libc::AF_INET6 => Family::Ipv6Unicast,
        _ => return None,
    };
    let length = *body.get(2)?;
    let mut rule = Rule { family, priority: 0, from: None, iif: None, table: u32::from(*body.get(4)?) };
    let mut protocol = 0;
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            FRA_SRC => rule.from = IpNet::new(address(value)?, length).ok(),
            FRA_IIFNAME => rule.iif = Some(text(value)),
            FRA_PRIORITY => rule.priority = u32_at(value, 0)?,
            FRA_TABLE => rule.table = u32_at(value, 0)?,
            FRA_PROTOCOL => protocol = *value.first()?,
            _ => {}
        }
    }
    Some(RuleInfo { protocol, rule })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::message::messages;

    fn round_trip(prefix: &str, target: RouteTarget) -> RouteInfo {
        let key = RouteKey { table: 10_000, prefix: prefix.parse().unwrap() };
        let mut batch = Batch::new();
        batch.put_route(&key, &target);
        let message = messages(&batch.buffer).next().unwrap();
        let read = read_route(message.body).unwrap();
        assert_eq!(read.key, key);
        assert_eq!(read.protocol, PROTOCOL);
        read
    }

    #[test]
    fn a_route_is_read_as_it_was_written() {
        let hop =
            |gateway: &str, ifindex| Hop { gateway: Some(gateway.parse().unwrap()), ifindex: Some(ifindex) };
        for (prefix, target) in [
            ("10.0.0.0/8", RouteTarget::Blackhole),
            ("0.0.0.0/0", RouteTarget::via(vec![hop("192.0.2.1", 3), hop("192.0.2.9", 4)])),
            ("0.0.0.0/0", RouteTarget::via(vec![hop("fe80::1", 3), hop("fe80::1", 4)])),
            ("10.1.2.3/32", RouteTarget::via(vec![Hop { gateway: None, ifindex: Some(9) }])),
            ("::/0", RouteTarget::via(vec![hop("fe80::1", 3)])),
            ("2001:db8::/64", RouteTarget::via(vec![hop("fe80::1", 3), hop("2001:db8::1", 3)])),
        ] {
            assert_eq!(round_trip(prefix, target.clone()).target, Some(target), "{prefix}");
        }
    }

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        for rule in [
            Rule { family: Family::Ipv4Unicast, priority: 1000, from: None, iif: None, table: 39_999 },
            Rule {
                family: Family::Ipv6Unicast,
                priority: 1100,
                from: Some("2001:db8::/64".parse().unwrap()),
                iif: None,
                table: 10_000,
            },
            Rule {
                family: Family::Ipv4Unicast,
                priority: 1030,
                from: None,
                iif: Some("eth1".to_owned()),
                table: 39_998,
            },
        ] {
            let mut batch = Batch::new();
            batch.add_rule(&rule);
            let message = messages(&batch.buffer).next().unwrap();
            assert_eq!(read_rule(message.body), Some(RuleInfo { protocol: PROTOCOL, rule }));
        }
    }

    #[test]
    fn what_is_too_short_is_not_read() {
        for length in 0..12 {
            let body = vec![2; length];
            assert_eq!(read_route(&body), None);
            assert_eq!(read_rule(&body), None);
            assert_eq!(read_neighbour(&body), None);
            assert_eq!(read_link(&body), None);
            if length < 8 {
                assert_eq!(read_address(&body), None);
            }
        }
    }
}
