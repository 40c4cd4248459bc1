//! The planner's first input: the wanted state, as a source and the node's configuration give it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_api::resources::{Network, NodeInfo, Subnet};

/// Everything that is wanted, consistent in itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// This node's labels, which say what networks it is in.
    pub labels: BTreeMap<String, String>,
    /// The networks by name; of each peer with a `passwordFile` the key stands in `password`.
    pub networks: Vec<Network>,
    /// The subnets by name.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay by name.
    pub nodes: Vec<NodeInfo>,
    /// Where the overlay's pods are that run on other nodes, if that is known of each; `None`: the nodes have blocks, which stand in
    /// their NodeInfos.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// Files outside the folder that were read for it.
    pub files: Vec<PathBuf>,
}

/// Addresses of the overlay's pods, by the node that they run on.
pub type OverlayPods = BTreeMap<String, BTreeSet<IpAddr>>;

/// A snapshot that is not taken over.
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

/// What is wanted: an immutable snapshot of the source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// This node.
    pub node: NodeIdentity,
    /// All networks; of a peer with a `passwordFile` the key stands in `password`.
    pub networks: Vec<Network>,
    /// All subnets.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay, this one among them.
    pub nodes: Vec<NodeInfo>,
    /// Where the overlay's pods on other nodes are; `None`: in the blocks that the NodeInfos have.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// What the node's configuration says of tunnels.
    pub tunnels: Tunnels,
    /// What the node's configuration says of the guard.
    pub guard: GuardSettings,
    /// What the node's configuration says of probes.
    pub probes: ProbeSettings,
    /// The BGP identifier, if it is configured.
    pub router_id: Option<Ipv4Addr>,
    /// The node is in a Kubernetes cluster, which usually has a service proxy.
    pub in_cluster: bool,
    /// Prefixes of Services.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Names of links that may carry VLANs: the first that is there does. Empty: the link of the default route.
    pub vlan_interfaces: Vec<String>,
}

impl Intent {
    /// What is said of this node itself.
    pub(super) fn own_info(&self) -> Option<&NodeInfo> {
        self.nodes.iter().find(|node| node.name() == self.node.name)
    }
}

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

/// What the node's configuration says of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// The guard is in force.
    pub enabled: bool,
    /// TCP ports that BGP sessions are accepted on.
    pub bgp_ports: BTreeSet<u16>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        GuardSettings { enabled: true, bgp_ports: BTreeSet::new() }
    }
}

/// What the node's configuration says of probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Probes are sent.
    pub enabled: bool,
    /// Addresses of other nodes that answer an echo; none: those of NodeInfos.
    pub targets: BTreeSet<IpAddr>,
}
