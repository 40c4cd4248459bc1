//! The planner's words: what it is given (the host as it is), and what it answers (what the host should have).
//!
//! Everything is ordered (BTree), so that equal intents give equal plans and a difference of two plans is a walk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use trunkline_api::pod::not_allowed;
use trunkline_api::resources::{AttachmentKind, ParsedRange, Vtep};
use trunkline_bgp::config::{PeerConfig, PeerRange};
use trunkline_bgp::net::discovery::Neighbours;
use trunkline_bgp::rib::{Origination, RouteChange};
use trunkline_bgp::types::{Asn, Family, InterfaceName, NextHop, PeerKey};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{Hop, KernelHost, KernelPlan, LearnedHop, LearnedRoute, PodPlan};

use super::selection::{DefaultRouteSelection, PeerDefaultRoutes};

/// The host as it was found: the planner's second input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The kernel's side.
    pub kernel: KernelHost,
    /// The BGP sessions.
    pub sessions: Vec<Session>,
    /// Every family's first route selection after the start is done: a peer that is not established now is down.
    pub converged: bool,
    /// Routers found by their advertisements, by interface.
    pub neighbours: Neighbours,
    /// Peers that traffic is not sent to while there are others.
    pub left_out: BTreeSet<PeerKey>,
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
    /// Whose routes are imported; none where no peer's are.
    pub learned: Option<Learned>,
    /// The speaker's side; none where no BGP network is on this node.
    pub bgp: Option<BgpPlan>,
    /// By name, the networks that are on this node, and those that are refused.
    pub networks: BTreeMap<String, NetworkPlan>,
    /// This node's end of the overlay's tunnels, where it has one: what the other nodes must know.
    pub vtep: Option<Vtep>,
    /// Routers of the networks, each with its link: by them a reply can leave.
    pub routers: BTreeSet<(IpFamily, Hop)>,
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

/// What is probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbePlan {
    /// Established routers on a connected network.
    pub routers: BTreeSet<ProbedRouter>,
    /// Addresses of other nodes.
    pub targets: BTreeSet<IpAddr>,
    /// What a pod's link may carry, in octets.
    pub mtu: u32,
}

/// A router in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbedRouter {
    /// The peer.
    pub peer: PeerKey,
    /// The family of the probes.
    pub family: Family,
    /// The next hop, whose neighbour entry has the router's MAC address.
    pub gateway: IpAddr,
    /// The uplink's index.
    pub ifindex: u32,
    /// The uplink's name.
    pub link: String,
    /// This node's address on the uplink, in this family; none without one that a router could answer.
    pub own: Option<IpAddr>,
}

/// What one pod needs on the host and in BGP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedPod {
    /// The kernel's side.
    pub kernel: PodPlan,
    /// What is advertised for it.
    pub originate: BTreeMap<IpNet, Origination>,
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

impl Learned {
    /// The next hops of a prefix whose best paths have changed: by imported peers, and by the ones that are left out only where no
    /// other has it.
    pub fn route(&self, change: &RouteChange) -> LearnedRoute {
        let others = change
            .paths
            .iter()
            .any(|path| self.peers.contains_key(&path.peer) && !self.left_out.contains(&path.peer));
        let hops = change
            .paths
            .iter()
            .filter(|path| !others || !self.left_out.contains(&path.peer))
            .filter_map(|path| Some((path, *self.peers.get(&path.peer)?)))
            .map(|(path, ifindex)| match path.next_hop {
                NextHop::V6(address) if address.is_unicast_link_local() => {
                    LearnedHop { gateway: address.into(), ifindex, beside: Some(path.peer.address()) }
                }
                // A link with a link-local session may have no prefix that the global address would be found by.
                NextHop::V6WithLinkLocal(_, address)
                    if path.peer.interface().is_some() && ifindex.is_some() =>
                {
                    LearnedHop { gateway: address.into(), ifindex, beside: None }
                }
                next_hop => LearnedHop { gateway: next_hop.address(), ifindex: None, beside: None },
            });
        LearnedRoute { prefix: change.prefix, hops: hops.collect() }
    }
}
