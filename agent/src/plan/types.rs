//! The planner's words: what it is given (the host as it is), and what it answers (what the host should have).
//!
//! Everything is ordered (BTree), so that equal intents give equal plans and a difference of two plans is a walk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_api::pod::not_allowed;
use trunkline_api::resources::{AttachmentKind, ParsedRange, Vtep};
use trunkline_bgp::config::{PeerConfig, PeerRange};
use trunkline_bgp::net::discovery::Neighbours;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Asn, Family, InterfaceName, NextHop, PeerKey};

use super::default_route::{DefaultRouteSelection, PeerDefaultRoutes};
use super::unassigned::UnassignedRules;
use super::{AlternateRules, GuardPlan, Learned, NatRules, ProbePlan, TranslatedRules};

/// This node, as `nodeSelector`s see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
}

/// What the node's configuration says of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnels {
    /// Links that tunnels go over, the first that is there; the default route's if none is named.
    pub interfaces: Vec<String>,
    /// Where the node's end of them may be, unless its NodeInfo says.
    pub vteps: Vec<IpNet>,
    /// The UDP port, on every node the same.
    pub port: u16,
}

impl Default for Tunnels {
    /// hybridnet's: the default route's link, any address, port 8472.
    fn default() -> Self {
        let any = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        Tunnels { interfaces: Vec::new(), vteps: any.to_vec(), port: 8472 }
    }
}

/// The host as it was found: the planner's second input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Links of this network namespace; those of pods are left out, those that a plan had made are not.
    pub links: Vec<Link>,
    /// Why links of the plan that is in force are not there as it wants them, by name, in words.
    pub link_faults: BTreeMap<String, String>,
    /// The link of the default route; while there is no such route, the one that had it last and is still there.
    pub default_link: Option<u32>,
    /// Which table each subnet's own rule (`from <subnet> lookup T`) leads to. This is how a network finds its
    /// table again after a restart.
    pub tables: BTreeMap<IpNet, u32>,
    /// Tables that somebody else uses.
    pub used_tables: BTreeSet<u32>,
    /// Next hops of the default routes in the main table, each with its link.
    pub gateways: BTreeSet<(Family, Hop)>,
    /// The number of each link that has a return table, by ifindex; read from the rules, like `tables`.
    pub link_numbers: BTreeMap<u32, u32>,
    /// The BGP sessions. The kernel does not know them: whoever asks for the plan fills them in.
    pub sessions: Vec<Session>,
    /// Every family's first route selection after the start is done: a peer that is not established now is down.
    pub converged: bool,
    /// Default routes of BGP networks that the agent's last run left in the kernel, each until the first route selection of its family
    /// is done.
    pub former: BTreeMap<RouteKey, RouteTarget>,
    /// Routers found by their advertisements, by interface; filled in likewise.
    pub neighbours: Neighbours,
    /// Peers that traffic is not sent to while there are others; filled in likewise.
    pub left_out: BTreeSet<PeerKey>,
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
    /// Whose it is, from [`ALIAS_PREFIX`](crate::attach::device::ALIAS_PREFIX) on. A link of this name with a foreign alias is left
    /// alone, and is a fault.
    pub alias: String,
    /// MTU in octets.
    pub mtu: u32,
}

/// One BGP session, as far as forwarding needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The peer.
    pub peer: PeerKey,
    /// This side's address, if the session has (or had) one.
    pub local: Option<IpAddr>,
    /// In state Established.
    pub established: bool,
    /// It was established since the agent's start.
    pub was_established: bool,
    /// A next hop that the peer announced in a family, if it announced any path there.
    pub next_hops: BTreeMap<Family, NextHop>,
    /// Of the default routes that the peer offers.
    pub offer: PeerDefaultRoutes,
}

/// Everything that this node should have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The kernel's side.
    pub kernel: KernelPlan,
    /// The speaker's side; none where no BGP network is on this node.
    pub bgp: Option<BgpPlan>,
    /// By name, the networks that are on this node, and those that are refused.
    pub networks: BTreeMap<String, NetworkPlan>,
    /// This node's end of the overlay's tunnels, where it has one: what the other nodes must know.
    pub vtep: Option<Vtep>,
    /// Routers of the networks, each with its link: by them a reply can leave.
    pub routers: BTreeSet<(Family, Hop)>,
    /// The default routes of the BGP network by peers whose routes are not imported.
    pub ways_out: BTreeMap<Family, DefaultRouteSelection>,
    /// What is probed.
    pub probes: ProbePlan,
}

impl Plan {
    /// All subnets that are served here, each with its network.
    pub fn served(&self) -> impl Iterator<Item = (&NetworkPlan, &SubnetPlan)> {
        let networks = self.networks.values().filter(|network| network.refused.is_none());
        networks.flat_map(|network| network.subnets.values().map(move |subnet| (network, subnet)))
    }
}

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

/// What the speaker should have.
#[derive(Clone, Debug, PartialEq)]
pub struct BgpPlan {
    /// The AS of this node.
    pub local_as: Asn,
    /// The BGP identifier.
    pub router_id: Ipv4Addr,
    /// This node is about to go, and tells all its peers (RFC 8326).
    pub graceful_shutdown: bool,
    /// The peers.
    pub peers: BTreeMap<PeerKey, PeerConfig>,
    /// Peers without which a pod may be ready (`allowNotEstablished`).
    pub optional_peers: BTreeSet<PeerKey>,
    /// Peers that are found by router advertisements, by interface; in `peers` once they are.
    pub unnumbered: BTreeMap<InterfaceName, Unnumbered>,
    /// Prefixes that dynamic neighbours come from.
    pub ranges: BTreeMap<IpNet, PeerRange>,
    /// Prefixes that no neighbour is accepted from.
    pub refused_ranges: BTreeMap<IpNet, RefusedRange>,
    /// Of all these prefixes, the ones without whose neighbours a pod may be ready.
    pub optional_ranges: BTreeSet<IpNet>,
    /// Why pods are advertised without NO_EXPORT: this peer is down.
    pub disaggregated: Option<String>,
    /// What is advertised besides the pods.
    pub originate: BTreeMap<IpNet, Origination>,
}

/// A prefix of dynamic neighbours that this node does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRange {
    /// Their AS.
    pub remote_as: Asn,
    /// The most that there would be.
    pub limit: u32,
    /// Why, in words for the operator.
    pub fault: String,
}

/// A peer of which the interface is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnumbered {
    /// Its AS.
    pub remote_as: Asn,
    /// The AS that it knows this node by, if not the node's own.
    pub local_as: Option<Asn>,
    /// Pods may be ready without it.
    pub optional: bool,
    /// Index of the interface, while it is there and up.
    pub link: Option<u32>,
    /// It was found there.
    pub found: bool,
}

/// How a network's pods reach the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Underlay: the subnet and each pod are advertised.
    Bgp,
    /// Each pod is advertised, wherever it runs.
    GlobalBgp,
    /// Underlay: the subnet is a VLAN of the switch.
    Vlan,
    /// Overlay: pods are reached through tunnels between the nodes.
    Vxlan,
}

/// One network on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPlan {
    /// Its mode.
    pub mode: Mode,
    /// How its pods are joined.
    pub attachment: AttachmentKind,
    /// What its pods send each other goes out to the switch.
    pub hairpin: bool,
    /// Prefixes that its pods may send from besides their addresses, if they ask.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// What pods with an IPVLAN slave reach by the host.
    pub by_host: BTreeSet<IpNet>,
    /// Its subnets by name.
    pub subnets: BTreeMap<String, SubnetPlan>,
    /// Subnets that are not served, and why.
    pub refused_subnets: BTreeMap<String, String>,
    /// What a pod's link may carry: the least MTU of the links to the peers, that of the link with the VLANs, or what a tunnel leaves
    /// of the link below it.
    pub mtu: Option<u32>,
    /// Why this network is not served here, in words for the operator. None: it is.
    pub refused: Option<String>,
}

impl NetworkPlan {
    /// The table that all its subnets' rules lead to, if it is the same.
    pub fn table(&self) -> Option<u32> {
        let mut tables = self.subnets.values().map(|subnet| subnet.table);
        let first = tables.next()?;
        first.filter(|_| tables.all(|table| table == first))
    }

    /// Whether a pod may send from a prefix besides its addresses.
    pub fn allows(&self, prefix: &IpNet) -> bool {
        self.extra_prefixes.iter().any(|allowed| allowed.contains(prefix))
    }

    /// Of these prefixes, those that pods of the network, which has this name, may not send from: why, and what to do.
    pub fn refused_prefixes(&self, name: &str, prefixes: &BTreeSet<IpNet>) -> impl Iterator<Item = String> {
        let refused = prefixes.iter().filter(|prefix| !self.allows(prefix));
        refused.map(move |prefix| not_allowed(prefix, name, &self.extra_prefixes))
    }

    /// The subnet that an address is of.
    pub fn subnet_of(&self, address: IpAddr) -> Option<(&str, &SubnetPlan)> {
        let mut subnets = self.subnets.iter().map(|(name, subnet)| (name.as_str(), subnet));
        subnets.find(|(_, subnet)| subnet.holds(address))
    }
}

/// One subnet on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct SubnetPlan {
    /// Its prefix. Subnets of one network may have the same.
    pub prefix: IpNet,
    /// The block of it that this node gives out, where nodes divide it between them.
    pub share: Option<IpNet>,
    /// The table that its rule leads to; in BGP and GlobalBGP the underlay's.
    pub table: Option<u32>,
    /// VLAN: its id, 0 for untagged.
    pub vlan: Option<u16>,
    /// VLAN: its router.
    pub gateway: Option<IpAddr>,
    /// VLAN, VXLAN: where its pods' packets leave the node.
    pub device: Option<SubnetDevice>,
}

impl SubnetPlan {
    /// A subnet of which only the prefix is known.
    pub fn of(prefix: IpNet) -> SubnetPlan {
        SubnetPlan { prefix, share: None, table: None, vlan: None, gateway: None, device: None }
    }

    /// The first and the last address of the subnet that this node gives out; the wrong way round if there is none.
    pub fn gives_out(&self, range: &ParsedRange) -> (IpAddr, IpAddr) {
        match self.share {
            Some(share) => (range.first.max(share.network()), range.last.min(share.broadcast())),
            None => (range.first, range.last),
        }
    }

    /// Whether a pod of this node may have the address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.share.unwrap_or(self.prefix).contains(&address)
    }
}

/// The device that a subnet's packets leave the node by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetDevice {
    /// Its name; empty while it is not known what would carry it.
    pub name: String,
    /// Name of the link that carries it; its own, if it is that.
    pub parent: String,
    /// Its index, once it is there.
    pub ifindex: Option<u32>,
    /// Why it carries nothing now, in words for the operator. None: it does.
    pub fault: Option<String>,
}

/// One attached pod: the planner's input on the fast path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The network's name.
    pub network: String,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// Host side of its veth pair.
    pub host_ifname: String,
    /// Index of that.
    pub host_ifindex: u32,
    /// MAC of the pod side of the pair.
    pub mac: [u8; 6],
    /// How it is joined: what its network said when it was attached.
    pub attachment: AttachmentKind,
    /// Prefixes that it wants to send from besides its addresses.
    pub extra_prefixes: BTreeSet<IpNet>,
}

/// What one pod needs on the host and in BGP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// Host side of its veth pair: the pod's key.
    pub host_ifname: String,
    /// Index of that.
    pub host_ifindex: u32,
    /// One /32 or /128 in table 39999 for each address.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Permanent neighbours on the host side.
    pub neighbours: BTreeSet<Neighbour>,
    /// Where this node answers ARP and neighbour solicitations for it.
    pub proxies: BTreeSet<Proxy>,
    /// What is advertised for it.
    pub originate: BTreeMap<IpNet, Origination>,
    /// Prefixes that it may send from besides its addresses: none is part of another.
    pub sources: BTreeSet<IpNet>,
}

impl PodPlan {
    /// Whether the kernel has the same for both: they differ in nothing but what is advertised.
    pub fn is_same_but_originate(&self, other: &PodPlan) -> bool {
        PodPlan { originate: other.originate.clone(), ..self.clone() } == *other
    }

    /// Whether the two differ in nothing but [`PodPlan::sources`].
    pub fn is_same_but_sources(&self, other: &PodPlan) -> bool {
        PodPlan { sources: other.sources.clone(), ..self.clone() } == *other
    }
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

/// As manifests have it.
fn attachment_name(kind: AttachmentKind) -> &'static str {
    match kind {
        AttachmentKind::Veth => "veth",
        AttachmentKind::Ipvlan => "ipvlan",
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A slave and the host's proxy entries do not hear each other, so pods of one VLAN on one node are all of one kind.
    #[error(
        "Network {name}: spec.config.attachment: {} does not reach pods of this node that are joined by {}",
        attachment_name(*network), attachment_name(*pod)
    )]
    Attachment {
        /// The network's name.
        name: String,
        /// What it says.
        network: AttachmentKind,
        /// How the pod is joined.
        pod: AttachmentKind,
    },
    /// Two networks on one node want different local AS numbers.
    #[error(
        "Network {first} and Network {second} are both on this node with different local AS numbers ({first_as} and {second_as}): give them the same netID, or keep them apart by nodeSelector"
    )]
    LocalAs {
        /// One of them.
        first: String,
        /// Its AS.
        first_as: u32,
        /// The other.
        second: String,
        /// Its AS.
        second_as: u32,
    },
    /// Two underlay BGP networks on one node.
    #[error(
        "Network {first} and Network {second} are both Underlay networks on this node: keep them apart by nodeSelector"
    )]
    TwoUnderlays {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A field that the planner cannot use.
    #[error("{resource}: {field}: {message}")]
    Field {
        /// Kind and name.
        resource: String,
        /// Path of the field.
        field: String,
        /// What is wrong and what to write.
        message: String,
    },
    /// A pod asks for a network that is not here.
    #[error("Network {name} is not on this node: check its nodeSelector against the node's labels")]
    NoNetwork {
        /// The network.
        name: String,
    },
    /// A pod asks for a network that is refused.
    #[error("Network {name} is not served on this node: {reason}")]
    Refused {
        /// The network.
        name: String,
        /// Why.
        reason: String,
    },
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
