//! Policy rules and routes, with the numbers of rules, tables and marks.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

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
    /// A mark with all of these bits set.
    pub const fn bits(bits: u32) -> Mark {
        Mark { value: bits, mask: bits }
    }
}

/// A policy rule for one table. It has the family of `from`; without `from`, it has `family`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Address family.
    pub family: IpFamily,
    /// Preference: the kernel tests rules with lower values first.
    pub priority: u32,
    /// Source prefix; any if none.
    pub from: Option<IpNet>,
    /// Destination prefix; any if none.
    pub to: Option<IpNet>,
    /// The required mark; any if none.
    pub mark: Option<Mark>,
    /// Name of the incoming interface; any if none.
    pub iif: Option<String>,
    /// The table of the look-up.
    pub table: u32,
}

impl Rule {
    /// A rule for every packet.
    pub fn always(family: IpFamily, priority: u32, table: u32) -> Rule {
        Rule { family, priority, from: None, to: None, mark: None, iif: None, table }
    }

    /// A rule for packets from a prefix.
    pub fn from_prefix(priority: u32, from: IpNet, table: u32) -> Rule {
        Rule { from: Some(from), ..Rule::always(IpFamily::of(&from), priority, table) }
    }

    /// A rule for packets that arrive from the fabric on a link: preference 1030.
    pub fn from_link(family: IpFamily, link: &str, table: u32) -> Rule {
        Rule { iif: Some(link.to_owned()), ..Rule::always(family, 1030, table) }
    }
}

/// The key of a route.
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

/// The default prefix of a family.
pub fn default_prefix(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteTarget {
    /// Drops packets without an error message.
    Blackhole,
    /// Rejects packets: the sender receives an ICMP message that the host is unreachable.
    Unreachable,
    /// Ends the look-up in this table; the kernel continues with the next rule.
    Throw,
    /// Next hops (ECMP), sorted, at least one. Clones share the list.
    Via(Arc<[Hop]>),
}

impl RouteTarget {
    /// A target with the next hops in canonical order, without duplicates.
    pub fn via(mut hops: Vec<Hop>) -> RouteTarget {
        hops.sort_unstable();
        hops.dedup();
        RouteTarget::Via(hops.into())
    }

    /// The next hops; empty for a route without any.
    pub fn hops(&self) -> &[Hop] {
        match self {
            RouteTarget::Blackhole | RouteTarget::Unreachable | RouteTarget::Throw => &[],
            RouteTarget::Via(hops) => hops,
        }
    }
}

/// One next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The router; none if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Interface index. None: the kernel owner finds the link of the gateway when it installs the
    /// route.
    pub ifindex: Option<u32>,
    /// The gateway is on that link, independent of the host's addresses (`onlink`).
    pub onlink: bool,
    /// The preferred source address of the host's own packets. Only for a route with a single hop.
    pub source: Option<IpAddr>,
}

impl Hop {
    /// A next hop through a router; the link is found later.
    pub fn to(gateway: IpAddr) -> Hop {
        Hop { gateway: Some(gateway), ifindex: None, onlink: false, source: None }
    }

    /// A next hop through a router on this link.
    pub fn by(gateway: IpAddr, ifindex: u32) -> Hop {
        Hop { ifindex: Some(ifindex), ..Hop::to(gateway) }
    }

    /// The destination is on this link.
    pub fn link(ifindex: u32) -> Hop {
        Hop { gateway: None, ifindex: Some(ifindex), onlink: false, source: None }
    }
}

/// Preference of the rules that send packets from a subnet to its table.
pub const SUBNET_RULE: u32 = 1100;
/// Preference of the rules that send packets for a virtual machine in live migration to the fabric,
/// on a node whose pod does not run it. They come after the local pods.
pub const MIGRATION_RULE: u32 = 1005;
/// Preference of the rules that send packets from an uplink for a virtual machine in live migration
/// to [`MIGRATION_TABLE`]. They come after the local pods and before [`MIGRATION_RULE`].
pub const MIGRATION_UPLINK_RULE: u32 = 1004;
/// The table of virtual machines in live migration: the routes to the nodes of their targets.
pub const MIGRATION_TABLE: u32 = 39_995;
/// The table of local pods. Its rule comes before all others.
pub const POD_TABLE: u32 = 39_999;
/// The table of other nodes' overlay pods, for all packets.
pub const OVERLAY_TABLE: u32 = 40_000;
/// The table with routes of overlay pods to the nodes.
pub const NODE_TABLE: u32 = 40_001;
/// The table that drops packets from the fabric to an address without a local pod.
pub const DROP_TABLE: u32 = 39_998;
/// The table with routes to a VLAN's own subnet through its router.
pub const HAIRPIN_TABLE: u32 = 39_997;
/// Packet mark, with `hairpin`: a connection with DNAT on this node.
pub const TRANSLATED: u32 = 0x1_0000;
/// Packet and connection mark: the number of the incoming link of a translated connection's first
/// packet.
pub const LINK_BITS: u32 = 0x1e_0000;
/// Packet mark: translated on this node, arrived from outside, and the destination is a pod.
pub const TRANSIT: u32 = 0x20_0000;
/// The number of all links without a return table.
pub const OTHER_LINKS: u32 = 15;
/// Preference of the rules that send replies of translated connections to the return table of their
/// link.
pub const RETURN_RULE: u32 = 1024;
/// The return table of the link with ifindex 0; for other links, add the ifindex.
pub const RETURN_TABLE: u32 = 1_170_000;
/// The table of alternate paths of the link with ifindex 0; for other links, add the ifindex.
pub const ALTERNATE_TABLE: u32 = 2_170_000;
/// TTL (hop limit) of a packet on an alternate path: enough for the router, the pod's node, and the
/// pod.
pub const ALTERNATE_TTL: u8 = 3;
/// The main routing table of the host.
pub const MAIN_TABLE: u32 = 254;
/// The first table number for a network.
pub const FIRST_TABLE: u32 = 10_000;
/// The table that sends packets from the fabric without a local pod to the device
/// [`SINK_NAME`](super::SINK_NAME).
pub const UNASSIGNED_TABLE: u32 = 39_996;
/// Preference of the rules of alternate paths.
pub const ALTERNATE_RULE: u32 = 1029;
/// The mark of packets whose replies leave by the link with this number.
pub fn mark_of(number: u32) -> Mark {
    Mark { value: number << LINK_BITS.trailing_zeros(), mask: LINK_BITS }
}
