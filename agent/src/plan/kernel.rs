//! The kernel's side of the plan: what the kernel should have, and what was found there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_bgp::types::{Family, PeerKey};

use super::nft_rules::{AlternateRules, GuardPlan, NatRules, TranslatedRules, UnassignedRules};

/// What the kernel should have besides the pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelPlan {
    /// By path below `/proc/sys`.
    pub sysctls: BTreeMap<String, Sysctl>,
    /// Links by name. Those that an earlier plan asked for and this one does not are deleted.
    pub links: BTreeMap<String, LinkPlan>,
    /// Permanent neighbours, besides the pods'.
    pub neighbours: BTreeSet<Neighbour>,
    /// Where VXLAN devices of the plan send to: these and nothing else.
    pub fdb: BTreeSet<FdbEntry>,
    /// Policy rules.
    pub rules: BTreeSet<Rule>,
    /// Routes that follow from the intent and the sessions; pods' and learned ones come by themselves.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Masquerading.
    pub nat: NatRules,
    /// Marks of connections whose destination is translated on this node.
    pub translated: TranslatedRules,
    /// Limits of alternate paths.
    pub alternate: AlternateRules,
    /// Names of the uplinks that are probed.
    pub probed: BTreeSet<String>,
    /// Counts of what is for no pod here.
    pub unassigned: UnassignedRules,
    /// The guard.
    pub guard: GuardPlan,
    /// Where learned routes go; none where no peer's routes are imported.
    pub learned: Option<Learned>,
    /// The table of the BGP network, whose default routes are reported ([`crate::kernel::KernelStatus::ways_out`]).
    pub way_out: Option<u32>,
}

impl KernelPlan {
    /// Settings of a device of ours that leads to pods: nobody there is a router of this host. Redirects are sent where the link's
    /// setting or that of `all` says so.
    pub(super) fn close_device(&mut self, name: &str) {
        for setting in ["ipv6/conf/{}/accept_ra", "ipv6/conf/{}/accept_redirects"] {
            let path = format!("net/{}", setting.replace("{}", name));
            self.sysctls.insert(path, Sysctl::IfThere("0"));
        }
        for setting in ["accept_redirects", "send_redirects"] {
            self.sysctls.insert(format!("net/ipv4/conf/{name}/{setting}"), Sysctl::Exactly("0"));
        }
    }
}

/// What a sysctl should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sysctl {
    /// This value.
    Exactly(&'static str),
    /// This value, where the kernel has the setting at all: without IPv6 there is none of it to be switched off.
    IfThere(&'static str),
    /// For an interface's `rp_filter`: where the check is strict, by its own setting or by `all`'s, it becomes loose. Off stays off.
    LooseReversePath,
    /// For `rp_filter` of an interface without an address: off. There the kernel lets nothing pass a loose check that a strict one stops.
    NoReversePath,
}

/// Where learned routes go and whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The table.
    pub table: u32,
    /// Peers whose routes are imported, each with the index of the link that its session runs over, where it is known: a link-local
    /// next hop is on that one.
    pub peers: BTreeMap<PeerKey, Option<u32>>,
    /// Of these, the ones that traffic is not sent to while there are others.
    pub left_out: BTreeSet<PeerKey>,
}

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
    pub family: Family,
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
    pub fn always(family: Family, priority: u32, table: u32) -> Rule {
        Rule { family, priority, from: None, to: None, mark: None, iif: None, table }
    }

    /// For packets from a prefix.
    pub fn from_prefix(priority: u32, from: IpNet, table: u32) -> Rule {
        Rule { from: Some(from), ..Rule::always(Family::of(&from), priority, table) }
    }

    /// For packets that came in from the fabric by a link: preference 1030.
    pub fn from_link(family: Family, link: &str, table: u32) -> Rule {
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
    pub fn default_route(table: u32, family: Family) -> RouteKey {
        RouteKey { table, prefix: default_prefix(family) }
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in table {}", self.prefix, self.table)
    }
}

/// Everything of a family.
pub fn default_prefix(family: Family) -> IpNet {
    match family {
        Family::Ipv4Unicast => IpNet::V4(Ipv4Net::default()),
        Family::Ipv6Unicast => IpNet::V6(Ipv6Net::default()),
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

/// One link of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Link-layer address, if it has one of six octets.
    pub mac: Option<[u8; 6]>,
    /// Its addresses, each with the length of its connected prefix.
    pub addresses: Vec<IpNet>,
    /// Administratively up.
    pub up: bool,
    /// With carrier.
    pub running: bool,
    /// MTU in octets.
    pub mtu: u32,
    /// What it is, if it is of a kind that a plan may ask for.
    pub kind: Option<LinkKind>,
    /// A plan of this or an earlier life asked for it.
    pub own: bool,
}

/// A kind of link that the plan asks the kernel for, with what cannot be changed without making it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// An 802.1Q device.
    Vlan {
        /// Index of the link that carries it.
        parent: u32,
        /// The VLAN id, 1 to 4094.
        id: u16,
    },
    /// A VXLAN device (RFC 7348). It learns nothing and has no group: it sends only what an [`FdbEntry`] has a way for.
    Vxlan {
        /// The VNI, 24 bits.
        vni: u32,
        /// The address that tunnelled packets come from.
        local: IpAddr,
        /// The UDP port that they are sent to and expected at.
        port: u16,
        /// The device's MAC, by which other nodes know it.
        mac: [u8; 6],
    },
    /// An `ifb` device that drops all it gets; it is known by its alias.
    Sink,
}

/// A link that the kernel should have, up.
///
/// A plan names it, and the one after finds it in [`Host::links`]: only then is its index known, and routes can lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// What it is.
    pub kind: LinkKind,
    /// Whose it is, from [`ALIAS_PREFIX`](crate::naming::ALIAS_PREFIX) on. A link of this name with a foreign alias is left
    /// alone, and is a fault.
    pub alias: String,
    /// MTU in octets.
    pub mtu: u32,
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The link.
    pub ifindex: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: [u8; 6],
}

/// Where a VXLAN device sends what is for a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdbEntry {
    /// The device.
    pub ifindex: u32,
    /// The MAC of a device on another node.
    pub mac: [u8; 6],
    /// The VTEP of that node.
    pub vtep: IpAddr,
}

/// An address that the host answers ARP or neighbour solicitations for on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proxy {
    /// The link.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
}

/// How a pod is joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// One veth pair, and everything goes to the host.
    #[default]
    Veth,
    /// A slave on the VLAN's device, and a veth pair beside it.
    Ipvlan(Ipvlan),
}

/// What an IPVLAN slave needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvlan {
    /// Index of the device that carries it.
    pub parent: u32,
    /// Its name.
    pub parent_name: String,
    /// The pod's addresses with the length of their subnet's prefix, and the gateway that is there.
    pub on_link: Vec<OnLink>,
    /// What is reached by the host all the same.
    pub by_host: BTreeSet<IpNet>,
}

/// An address on a network with a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLink {
    /// The address, with the length of the subnet's prefix.
    pub address: IpNet,
    /// The gateway.
    pub gateway: IpAddr,
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
/// The table that leads what came from the fabric for no local pod to the device that counts it.
pub const UNASSIGNED_TABLE: u32 = 39_996;
/// The name of that device.
pub const SINK_NAME: &str = "trunkline-drop";
/// Its alias.
pub const SINK_ALIAS: &str = "trunkline:drop";
/// Preference of the rules of alternate paths.
pub const ALTERNATE_RULE: u32 = 1029;
/// The first 32 bits of what a probe carries. The kernel drops what comes back with them: no pod receives a probe.
pub const PROBE_MAGIC: u32 = 0x746c_7072;
/// UDP destination port of probes that a router returns.
pub const PROBE_PORT: u16 = 33_434;
/// Identifier of echo requests.
pub const PROBE_ECHO: u16 = 0x7470;

/// The mark of packets that leave by the link with this number.
pub(crate) fn mark_of(number: u32) -> Mark {
    Mark { value: number << LINK_BITS.trailing_zeros(), mask: LINK_BITS }
}
