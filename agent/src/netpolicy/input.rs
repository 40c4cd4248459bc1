//! The inputs of the compiler: policies, Namespaces and pods in compact form.
//!
//! The types of policies are in [`trunkline_api::network_policy`], because the controller reads
//! policies too. `objects` reads Namespaces and pods.

use std::net::IpAddr;
use std::sync::Arc;

pub use trunkline_api::network_policy::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    IpBlock, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, PortSelector, Tier,
};
use trunkline_api::service::Protocol;

use super::labels::Labels;

/// A change of one kind of object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<K, T> {
    /// These objects exist, and no others.
    Listed(Vec<T>),
    /// This object is new or changed.
    Applied(T),
    /// The object with this key was deleted.
    Deleted(K),
}

/// A Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The name.
    pub name: Arc<str>,
    /// The labels. The API server adds `kubernetes.io/metadata.name`.
    pub labels: Labels,
    /// Whether packets that the policies of its pods drop are only reported.
    pub audit: bool,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The node of the pod.
    pub node: Arc<str>,
    /// Whether the pod has the node's network namespace. No policy selects such a pod.
    pub host_network: bool,
    /// The labels. [`Labels::UNKNOWN`] without an object.
    pub labels: Labels,
    /// The addresses of all interfaces, of both IP families: those of the pod's IPInstances and
    /// attachments. Those that its kubelet reports do not count.
    pub addresses: Vec<IpAddr>,
    /// The named ports of all containers.
    pub ports: Vec<NamedPort>,
}

/// The most ports of a pod with one name and protocol. Further ones match no rule.
pub const PORTS_OF_NAME: usize = 4;

/// A named port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name. Containers of one pod can have the same name: it is then a name of both ports, up to
    /// [`PORTS_OF_NAME`].
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port: 1 to 65535.
    pub port: u16,
}
