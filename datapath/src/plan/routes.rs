//! Policy rules and routes, with the numbers of rules, tables and marks.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::family::IpFamily;

/// A condition on a packet's mark: `packet mark & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The value of the masked bits.
    pub value: u32,
    /// The bits that are compared.
    pub mask: u32,
}

impl Mark {
    /// All of these bits are set.
    pub const fn bits(bits: u32) -> Mark {
        Mark { value: bits, mask: bits }
    }
}

/// A policy rule that leads to a table. Its family is that of `from`; without `from` it is `family`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Address family.
    pub family: IpFamily,
    /// Preference: lower is asked first.
    pub priority: u32,
    /// Source prefix; any if none.
    pub from: Option<IpNet>,
    /// Destination prefix; any if none.
    pub to: Option<IpNet>,
    /// What the packet's mark must match; any mark if none.
    pub mark: Option<Mark>,
    /// Name of the interface that the packet came in by; any if none.
    pub iif: Option<String>,
    /// The table that it leads to.
    pub table: u32,
}

impl Rule {
    /// For every packet.
    pub fn always(family: IpFamily, priority: u32, table: u32) -> Rule {
        Rule { family, priority, from: None, to: None, mark: None, iif: None, table }
    }

    /// For packets from a prefix.
    pub fn from_prefix(priority: u32, from: IpNet, table: u32) -> Rule {
        Rule { from: Some(from), ..Rule::always(IpFamily::of(&from), priority, table) }
    }

    /// For packets that came in from the fabric by a link: preference 1030.
    pub fn from_link(family: IpFamily, link: &str, table: u32) -> Rule {
        Rule { iif: Some(link.to_owned()), ..Rule::always(family, 1030, table) }
    }
}

/// What identifies a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// The table.
    pub table: u32,
    /// The destination.
    pub prefix: IpNet,
}

impl RouteKey {
    /// The default route of a family.
    pub fn default_route(table: u32, family: IpFamily) -> RouteKey {
        RouteKey { table, prefix: default_prefix(family) }
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in table {}", self.prefix, self.table)
    }
}

/// Everything of a family.
pub fn default_prefix(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteTarget {
    /// Dropped without a word.
    Blackhole,
    /// As if this table had no route: the next rule is asked.
    Throw,
    /// To one of these (ECMP), sorted, at least one.
    Via(Vec<Hop>),
}

impl RouteTarget {
    /// Hops in their canonical order, without doubles.
    pub fn via(mut hops: Vec<Hop>) -> RouteTarget {
        hops.sort_unstable();
        hops.dedup();
        RouteTarget::Via(hops)
    }

    /// The hops, of which only a way out has any.
    pub fn hops(&self) -> &[Hop] {
        match self {
            RouteTarget::Blackhole | RouteTarget::Throw => &[],
            RouteTarget::Via(hops) => hops,
        }
    }
}

/// One next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The router; none where the destination is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Interface index. None: the link that the gateway is reached by, found when the route is installed.
    pub ifindex: Option<u32>,
    /// The gateway is on that link, whatever the host's addresses say.
    pub onlink: bool,
    /// What the host's own packets are from, unless they say. Only where the route has no other hop.
    pub source: Option<IpAddr>,
}

impl Hop {
    /// To a router, by the link that it is reached by.
    pub fn to(gateway: IpAddr) -> Hop {
        Hop { gateway: Some(gateway), ifindex: None, onlink: false, source: None }
    }

    /// To a router, by this link.
    pub fn by(gateway: IpAddr, ifindex: u32) -> Hop {
        Hop { ifindex: Some(ifindex), ..Hop::to(gateway) }
    }

    /// The destination itself is on this link.
    pub fn link(ifindex: u32) -> Hop {
        Hop { gateway: None, ifindex: Some(ifindex), onlink: false, source: None }
    }
}

/// Preference of the rules that lead what comes from a subnet to its table.
pub const SUBNET_RULE: u32 = 1100;
/// The table of local pods: looked up before everything else.
pub const POD_TABLE: u32 = 39_999;
/// The table of other nodes' overlay pods, looked up by everybody.
pub const OVERLAY_TABLE: u32 = 40_000;
/// The table of the nodes themselves, as overlay pods reach them.
pub const NODE_TABLE: u32 = 40_001;
/// The table that drops what comes from the fabric for an address that no local pod has.
pub const DROP_TABLE: u32 = 39_998;
/// The table that leads into a VLAN's own subnet by its router.
pub const HAIRPIN_TABLE: u32 = 39_997;
/// Packet mark, with `hairpin`: a connection whose destination is translated on this node.
pub const TRANSLATED: u32 = 0x1_0000;
/// Packet and connection mark: the number of the link that the first packet of a translated connection came in by.
pub const LINK_BITS: u32 = 0x1e_0000;
/// Packet mark: translated on this node, came in from outside, and the destination is a pod.
pub const TRANSIT: u32 = 0x20_0000;
/// The number of all links without a return table.
pub const OTHER_LINKS: u32 = 15;
/// Preference of the rules that lead replies of translated connections to the return table of their link.
pub const RETURN_RULE: u32 = 1024;
/// The return table of the link with ifindex 0; the others follow by ifindex.
pub const RETURN_TABLE: u32 = 1_170_000;
/// The alternate paths of the link with ifindex 0; the others follow by ifindex.
pub const ALTERNATE_TABLE: u32 = 2_170_000;
/// TTL (hop limit) of a packet that leaves by an alternate path: for the router, for the pod's node, and the pod.
pub const ALTERNATE_TTL: u8 = 3;
/// The host's own table.
pub const MAIN_TABLE: u32 = 254;
/// The first table that a network may get.
pub const FIRST_TABLE: u32 = 10_000;
/// The table that leads what came from the fabric for no local pod to the device [`SINK_NAME`](super::SINK_NAME).
pub const UNASSIGNED_TABLE: u32 = 39_996;
/// Preference of the rules of alternate paths.
pub const ALTERNATE_RULE: u32 = 1029;
/// The mark of packets that leave by the link with this number.
pub fn mark_of(number: u32) -> Mark {
    Mark { value: number << LINK_BITS.trailing_zeros(), mask: LINK_BITS }
}
