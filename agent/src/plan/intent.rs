//! The planner's first input: the wanted state from a source and from the node's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_api::resources::{
    AgentSettings, AnycastAddress, Network, NodeInfo, ServiceAdvertisement, ServicePool, Subnet,
};

use super::remote::{RemoteLimits, RemoteObjects};
use super::{LinkChoice, ServiceTags};

/// A consistent wanted state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// This node's labels. They decide which networks the node is in.
    pub labels: BTreeMap<String, String>,
    /// The networks by name. For a peer with a `passwordFile`, `password` contains the key.
    pub networks: Vec<Network>,
    /// The subnets by name.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay by name.
    pub nodes: Vec<NodeInfo>,
    /// The addresses of the overlay's pods on other nodes, if all are known. `None`: the nodes have
    /// blocks, and NodeInfos contain them.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// Subnets and VTEPs of remote clusters; none without remote clusters.
    pub remote: Option<Arc<RemoteObjects>>,
    /// The API server's addresses; known only with remote clusters, which may not have them.
    pub api_servers: BTreeSet<IpAddr>,
    /// Pools and advertisements of service addresses, and anycast addresses.
    pub services: ServiceObjects,
    /// The AgentSettings by name, also of other nodes.
    pub agent_settings: Vec<AgentSettings>,
    /// Files outside the folder that the source read for it.
    pub files: Vec<PathBuf>,
}

/// Objects for service addresses, and anycast addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceObjects {
    /// Whether pools and advertisements were listed since the start. A missing kind counts as an
    /// empty list.
    pub complete: bool,
    /// The pools by name.
    pub pools: Vec<ServicePool>,
    /// The advertisements by name.
    pub advertisements: Vec<ServiceAdvertisement>,
    /// Whether the cluster has further advertisements, which have faults.
    pub faulty_advertisements: bool,
    /// Whether the anycast addresses are known: the server has listed them since the start, or they
    /// are from the cache of the last run.
    pub anycast_known: bool,
    /// The anycast addresses by name.
    pub anycast: Vec<AnycastAddress>,
}

/// Addresses of the overlay's pods, by their node.
pub type OverlayPods = BTreeMap<String, BTreeSet<IpAddr>>;

/// The reason for which a snapshot is not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SnapshotRefusal {
    /// Each fault, with file (or the API server's object), resource, field and fix. Never empty.
    pub faults: Vec<String>,
}

impl fmt::Display for SnapshotRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.faults.join("; "))
    }
}

/// The wanted state: an immutable snapshot of the source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// This node.
    pub node: NodeIdentity,
    /// All networks. For a peer with a `passwordFile`, `password` contains the key.
    pub networks: Vec<Network>,
    /// All subnets.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay, this node included.
    pub nodes: Vec<NodeInfo>,
    /// The addresses of the overlay's pods on other nodes. `None`: NodeInfos contain blocks.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// Subnets and VTEPs of remote clusters; none without remote clusters.
    pub remote: Option<Arc<RemoteObjects>>,
    /// The API server's addresses; known only with remote clusters, which may not have them.
    pub api_servers: BTreeSet<IpAddr>,
    /// Prefixes that remote clusters may use, from the node's configuration.
    pub remote_limits: RemoteLimits,
    /// Pools and advertisements of service addresses, and anycast addresses.
    pub services: ServiceObjects,
    /// The tags of the advertisements.
    pub service_tags: ServiceTags,
    /// Settings of tunnels from the node's configuration.
    pub tunnels: Tunnels,
    /// Settings of the guard from the node's configuration.
    pub guard: GuardSettings,
    /// Limits of the kernel.
    pub kernel_limits: KernelLimits,
    /// Requested sysctls.
    pub sysctls: RequestedSysctls,
    /// Settings of probes from the node's configuration.
    pub probes: ProbeSettings,
    /// The BGP identifier, if it is configured.
    pub router_id: Option<Ipv4Addr>,
    /// Whether the node is in a Kubernetes cluster, which usually has a service proxy.
    pub in_cluster: bool,
    /// Prefixes of Services.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Links that may carry VLANs: the first existing link is used. Empty: the link of the default
    /// route.
    pub vlan_interfaces: Vec<LinkChoice>,
    /// Whether ARP requests on VLAN devices have the address of a local pod as sender.
    pub pods_send_arp: bool,
    /// The largest MTU of pods, in octets; none: the links' MTU.
    pub pod_mtu: Option<u16>,
}

impl Intent {
    /// The NodeInfo of this node.
    pub(super) fn own_info(&self) -> Option<&NodeInfo> {
        self.nodes.iter().find(|node| node.name() == self.node.name)
    }
}

/// This node, as `nodeSelector`s match it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
}

/// Settings of tunnels from the node's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnels {
    /// Links for tunnels: the first existing link is used. If none is named, the link of the
    /// default route.
    pub interfaces: Vec<LinkChoice>,
    /// Prefixes of the node's VTEP address, unless its NodeInfo contains one.
    pub vteps: Vec<IpNet>,
    /// The UDP port, equal on every node.
    pub port: u16,
    /// Whether packets to overlay addresses that no pod has are rejected, instead of dropped.
    pub rejects_unknown: bool,
    /// Prefixes of the node's addresses on other links that overlay pods reach through the tunnel.
    pub local_addresses: Vec<IpNet>,
    /// Prefixes of the addresses of all nodes. Empty: the connected prefixes of the uplinks.
    pub node_prefixes: Vec<IpNet>,
}

impl Default for Tunnels {
    /// The defaults of hybridnet: the default route's link, any address, port 8472.
    fn default() -> Self {
        let any = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        Tunnels {
            interfaces: Vec::new(),
            vteps: any.to_vec(),
            port: 8472,
            rejects_unknown: false,
            local_addresses: Vec::new(),
            node_prefixes: Vec::new(),
        }
    }
}

/// Limits of the kernel from the node's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimits {
    /// Neighbour entries of each IP family. 0: as it is.
    pub neighbours: u32,
    /// IPv6 routes and exceptions. 0: as it is.
    pub ipv6_routes: u32,
}

/// Sysctls that the node's configuration requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedSysctls {
    /// Packets of pods that this node translates to 127.0.0.0/8 are accepted.
    pub route_localnet: bool,
    /// ARP requests are answered on each link.
    pub disable_arp_filter: bool,
}

/// Settings of the guard from the node's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// Whether the guard is in force.
    pub enabled: bool,
    /// TCP ports on which BGP sessions are accepted.
    pub bgp_ports: BTreeSet<u16>,
    /// Servers on this node that the agent asks, such as the health of the service proxy.
    pub own_servers: BTreeSet<SocketAddr>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        GuardSettings { enabled: true, bgp_ports: BTreeSet::new(), own_servers: BTreeSet::new() }
    }
}

/// Settings of probes from the node's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Whether the agent sends probes.
    pub enabled: bool,
    /// Addresses of other nodes that answer an echo request. If empty, the agent uses the addresses
    /// in NodeInfos.
    pub targets: BTreeSet<IpAddr>,
}
