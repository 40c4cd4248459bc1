//! Input and output of the planner: the actual state of the host, and its wanted state.
//!
//! All collections are ordered (BTree). So equal intents give equal plans, and one pass finds the
//! difference of two plans.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use trunkline_api::pod::not_allowed;
use trunkline_api::resources::{AttachmentKind, ParsedRange, Retention, SubnetAccess, SubnetDns, Vtep};
use trunkline_bgp::config::{PeerConfig, PeerRange};
use trunkline_bgp::net::discovery::Neighbours;
use trunkline_bgp::rib::{Origination, RouteChange};
use trunkline_bgp::types::{Asn, Family, InterfaceName, NextHop, PeerKey, Tag};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{Hop, KernelHost, KernelPlan, LearnedHop, LearnedRoute, PodPlan};

use super::node_claims::IgnoredClaims;
use super::remote::RemoteClusterPlan;
use super::selection::{DefaultRouteSelection, PeerDefaultRoutes};
use crate::ipam::MigrationState;
use crate::services::ServicesPlan;
use crate::services::anycast::AnycastPlan;

/// The actual host: the planner's second input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Links, addresses and routes in the kernel.
    pub kernel: KernelHost,
    /// The BGP sessions.
    pub sessions: Vec<Session>,
    /// Whether every family has finished its first route selection after the start. If so, a peer
    /// that is not established is down.
    pub converged: bool,
    /// Routers found by their advertisements, by interface.
    pub neighbours: Neighbours,
    /// Peers that receive no traffic while other peers can receive it.
    pub left_out: BTreeSet<PeerKey>,
    /// Advertised anycast addresses.
    pub anycast: BTreeSet<IpAddr>,
    /// Service addresses of L2 pools for which this node answers.
    pub held: BTreeSet<IpAddr>,
    /// Addresses of pods with a part in a live migration, each with its network. On the source's node
    /// the value has the addresses of the target's node.
    pub migrating: BTreeMap<(String, IpAddr), BTreeSet<IpAddr>>,
}

/// One BGP session, as far as forwarding needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The peer.
    pub peer: PeerKey,
    /// This side's address, if the session has (or had) one.
    pub local: Option<IpAddr>,
    /// Whether the session is Established.
    pub established: bool,
    /// Whether the session was Established since the agent's start.
    pub was_established: bool,
    /// A next hop of the peer's paths, by family; no entry if the peer advertised no path.
    pub next_hops: BTreeMap<Family, NextHop>,
    /// State of the default routes that the peer offers.
    pub offer: PeerDefaultRoutes,
}

/// Everything that this node should have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Kernel objects.
    pub kernel: KernelPlan,
    /// The peers with imported routes; none if no peer has an import policy.
    pub learned: Option<Learned>,
    /// The speaker's configuration; none if no BGP network is on this node.
    pub bgp: Option<BgpPlan>,
    /// The networks on this node by name, refused ones included.
    pub networks: BTreeMap<String, NetworkPlan>,
    /// This node's VTEP, if it has one. Other nodes need its addresses and MAC.
    pub vtep: Option<Vtep>,
    /// Routers of the networks, each with its link. A reply can leave through them.
    pub routers: BTreeSet<(IpFamily, Hop)>,
    /// The default routes of the BGP network through peers without an import policy.
    pub ways_out: BTreeMap<Family, DefaultRouteSelection>,
    /// Routers and targets of probes.
    pub probes: ProbePlan,
    /// Pools and advertisements of service addresses.
    pub services: ServicesPlan,
    /// Anycast addresses.
    pub anycast: AnycastPlan,
    /// Ignored claims of other nodes.
    pub ignored_claims: IgnoredClaims,
    /// The remote clusters by name.
    pub remote: BTreeMap<String, RemoteClusterPlan>,
    /// Tags of service addresses with rules in the peers' export policies.
    pub service_tags: BTreeSet<Tag>,
}

impl AsRef<KernelPlan> for Plan {
    fn as_ref(&self) -> &KernelPlan {
        &self.kernel
    }
}

impl Plan {
    /// All served subnets, each with its network.
    pub fn served(&self) -> impl Iterator<Item = (&NetworkPlan, &SubnetPlan)> {
        let networks = self.networks.values().filter(|network| network.refused.is_none());
        networks.flat_map(|network| network.subnets.values().map(move |subnet| (network, subnet)))
    }
}

/// Configuration of the speaker.
#[derive(Clone, Debug, PartialEq)]
pub struct BgpPlan {
    /// The AS of this node.
    pub local_as: Asn,
    /// The BGP identifier.
    pub router_id: Ipv4Addr,
    /// Whether this node advertises GRACEFUL_SHUTDOWN to all its peers, before it leaves (RFC
    /// 8326).
    pub graceful_shutdown: bool,
    /// The peers.
    pub peers: BTreeMap<PeerKey, PeerConfig>,
    /// Peers that need no session before a pod is ready (`allowNotEstablished`).
    pub optional_peers: BTreeSet<PeerKey>,
    /// Peers that router advertisements discover, by interface. A discovered peer is also in
    /// `peers`.
    pub unnumbered: BTreeMap<InterfaceName, Unnumbered>,
    /// Prefixes of dynamic neighbours.
    pub ranges: BTreeMap<IpNet, PeerRange>,
    /// Prefixes from which the speaker accepts no neighbour.
    pub refused_ranges: BTreeMap<IpNet, RefusedRange>,
    /// Prefixes of dynamic neighbours that need no session before a pod is ready. `refused_ranges`
    /// may contain them too.
    pub optional_ranges: BTreeSet<IpNet>,
    /// The name of the peer that is down, if pods are advertised without NO_EXPORT.
    pub disaggregated: Option<String>,
    /// Prefixes that the node originates besides the pods.
    pub originate: BTreeMap<IpNet, Origination>,
}

/// A prefix of dynamic neighbours that this node does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRange {
    /// Their AS.
    pub remote_as: Asn,
    /// The maximum number of sessions that the prefix would allow.
    pub limit: u32,
    /// The reason, for the operator.
    pub fault: String,
}

/// A peer that is configured by its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnumbered {
    /// Its AS.
    pub remote_as: Asn,
    /// The AS number of this node towards the peer, if it differs from the node's own.
    pub local_as: Option<Asn>,
    /// Whether pods can be ready without a session with this peer.
    pub optional: bool,
    /// Index of the interface while it exists and is up.
    pub link: Option<u32>,
    /// Whether router advertisements discovered the peer.
    pub found: bool,
}

/// How a network's pods reach other networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Underlay: the subnet and each pod are advertised.
    Bgp,
    /// Each pod is advertised from the node where it runs.
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
    /// How its pods are attached.
    pub attachment: AttachmentKind,
    /// Whether packets between its pods leave through the switch.
    pub hairpin: bool,
    /// Prefixes that its pods may use as source besides their addresses, if a pod requests them.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Prefixes that pods with an IPVLAN slave reach through the host.
    pub by_host: BTreeSet<IpNet>,
    /// Its subnets by name.
    pub subnets: BTreeMap<String, SubnetPlan>,
    /// Refused subnets, each with the reason.
    pub refused_subnets: BTreeMap<String, String>,
    /// MTU of a pod's link. By mode: the minimum over the links to the peers, the MTU of the link
    /// with the VLANs, or the MTU of the tunnel's link less the overhead.
    pub mtu: Option<u32>,
    /// The reason for which this network is not served here, for the operator. None: it is served.
    pub refused: Option<String>,
}

impl NetworkPlan {
    /// The table of its subnets' rules, if all have the same table.
    pub fn table(&self) -> Option<u32> {
        let mut tables = self.subnets.values().map(|subnet| subnet.table);
        let first = tables.next()?;
        first.filter(|_| tables.all(|table| table == first))
    }

    /// Whether a pod may use the prefix as source besides its addresses.
    pub fn allows(&self, prefix: &IpNet) -> bool {
        self.extra_prefixes.iter().any(|allowed| allowed.contains(prefix))
    }

    /// The prefixes that pods of this network may not use as source: for each the reason and the
    /// remedy. `name` is the network's.
    pub fn refused_prefixes(&self, name: &str, prefixes: &BTreeSet<IpNet>) -> impl Iterator<Item = String> {
        let refused = prefixes.iter().filter(|prefix| !self.allows(prefix));
        refused.map(move |prefix| not_allowed(prefix, name, &self.extra_prefixes))
    }

    /// The subnet that contains the address.
    pub fn subnet_of(&self, address: IpAddr) -> Option<(&str, &SubnetPlan)> {
        let mut subnets = self.subnets.iter().map(|(name, subnet)| (name.as_str(), subnet));
        subnets.find(|(_, subnet)| subnet.holds(address))
    }
}

/// One subnet on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct SubnetPlan {
    /// Its prefix. Subnets of one network may have equal prefixes.
    pub prefix: IpNet,
    /// The block of the prefix that this node allocates from, if nodes have blocks.
    pub share: Option<IpNet>,
    /// The table of its rule; in BGP and GlobalBGP the underlay's.
    pub table: Option<u32>,
    /// VLAN: its ID, 0 for untagged.
    pub vlan: Option<u16>,
    /// VLAN: its router.
    pub gateway: Option<IpAddr>,
    /// VLAN, VXLAN: the device through which its pods' packets leave the node.
    pub device: Option<SubnetDevice>,
    /// The pods that get new addresses.
    pub access: SubnetAccess,
    /// How long addresses of stateful pods are retained.
    pub retention: Option<Retention>,
    /// Destinations that a pod with several interfaces reaches through its interface in this subnet.
    pub routes: Vec<IpNet>,
    /// The DNS settings of its pods.
    pub dns: SubnetDns,
}

impl SubnetPlan {
    /// A subnet with only its prefix.
    pub fn of(prefix: IpNet) -> SubnetPlan {
        SubnetPlan {
            prefix,
            share: None,
            table: None,
            vlan: None,
            gateway: None,
            device: None,
            access: SubnetAccess::default(),
            retention: None,
            routes: Vec::new(),
            dns: SubnetDns::default(),
        }
    }

    /// The first and the last address of the subnet that this node allocates. If this node
    /// allocates no address, the first address is above the last.
    pub fn allocatable_range(&self, range: &ParsedRange) -> (IpAddr, IpAddr) {
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

/// The device through which a subnet's packets leave the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetDevice {
    /// Its name; empty while the carrying link is unknown.
    pub name: String,
    /// Name of the carrying link; the device's own name if the subnet is untagged.
    pub parent: String,
    /// Its index, if it exists.
    pub ifindex: Option<u32>,
    /// The reason for which it carries no packets now, for the operator. None: it works.
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
    /// Index of the host side.
    pub host_ifindex: u32,
    /// MAC of the pod side of the pair.
    pub mac: [u8; 6],
    /// The attachment kind of its network at the time of ADD.
    pub attachment: AttachmentKind,
    /// Prefixes that it requests as source besides its addresses.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Its part in a live migration.
    pub migration: MigrationState,
    /// The addresses of the node to which its virtual machine moves, if this node is the source.
    pub target_addresses: Vec<IpAddr>,
    /// Whether a virtual machine runs in it, whose guest has no permanent neighbour entries.
    pub is_virtual_machine: bool,
}

/// The name in manifests.
fn attachment_name(kind: AttachmentKind) -> &'static str {
    match kind {
        AttachmentKind::Veth => "veth",
        AttachmentKind::Ipvlan => "ipvlan",
    }
}

/// Errors of the planner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An IPVLAN slave does not receive the host's proxy answers, nor the host the slave's. So pods
    /// of one VLAN on one node must have one attachment kind.
    #[error(
        "Network {name}: spec.config.attachment: {} does not reach pods of this node that are \
         attached as {}",
        attachment_name(*network), attachment_name(*pod)
    )]
    Attachment {
        /// The network's name.
        name: String,
        /// The network's attachment.
        network: AttachmentKind,
        /// The pod's attachment.
        pod: AttachmentKind,
    },
    /// Two networks on one node want different local AS numbers.
    #[error(
        "Network {first} and Network {second} are both on this node with different local AS numbers ({first_as} and {second_as}): give them the same netID, or keep them apart by nodeSelector"
    )]
    LocalAs {
        /// The first network.
        first: String,
        /// Its AS.
        first_as: u32,
        /// The second network.
        second: String,
        /// Its AS.
        second_as: u32,
    },
    /// Two underlay BGP networks on one node.
    #[error(
        "Network {first} and Network {second} are both Underlay networks on this node: keep them apart by nodeSelector"
    )]
    TwoUnderlays {
        /// The first network.
        first: String,
        /// The second network.
        second: String,
    },
    /// A field that the planner cannot use.
    #[error("{resource}: {field}: {message}")]
    Field {
        /// Kind and name.
        resource: String,
        /// Path of the field.
        field: String,
        /// The fault and the remedy.
        message: String,
    },
    /// A pod names a network that is not on this node.
    #[error("Network {name} is not on this node: check its nodeSelector against the node's labels")]
    NoNetwork {
        /// The network.
        name: String,
    },
    /// A pod names a refused network.
    #[error("Network {name} is not served on this node: {reason}")]
    Refused {
        /// The network.
        name: String,
        /// The reason.
        reason: String,
    },
}

/// Routers and targets of probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbePlan {
    /// Established routers on a connected network.
    pub routers: BTreeSet<ProbedRouter>,
    /// Addresses of other nodes.
    pub targets: BTreeSet<IpAddr>,
    /// MTU of a pod's link, in octets.
    pub mtu: u32,
}

/// A router in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbedRouter {
    /// The peer.
    pub peer: PeerKey,
    /// The family of the probes.
    pub family: Family,
    /// The next hop. Its neighbour entry has the router's MAC address.
    pub gateway: IpAddr,
    /// The uplink's index.
    pub ifindex: u32,
    /// The uplink's name.
    pub link: String,
    /// This node's address on the uplink in this family; none if a router could answer no such
    /// address.
    pub own: Option<IpAddr>,
}

/// The kernel objects and the prefixes of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedPod {
    /// Kernel objects.
    pub kernel: PodPlan,
    /// Prefixes that are advertised for it.
    pub originate: BTreeMap<IpNet, Origination>,
}

/// The table of learned routes, and the peers that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The table.
    pub table: u32,
    /// Peers with imported routes, each with the index of its session's link if it is known. A
    /// link-local next hop is on that link.
    pub peers: BTreeMap<PeerKey, Option<u32>>,
    /// The subset of `peers` that receives no traffic while other peers can receive it.
    pub left_out: BTreeSet<PeerKey>,
}

impl Learned {
    /// The next hops of a prefix after a change of its best paths. Only paths of imported peers are
    /// used, and those of an excluded peer only if no other peer has the prefix.
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
                // A link with a link-local session may have no prefix that contains the global
                // address.
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
