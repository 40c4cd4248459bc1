//! The inputs of the policy task. The watches ([`crate::source::kube::policies`]) and the folder of
//! manifests ([`crate::source::folder`]) send them.

use std::net::IpAddr;
use std::sync::Arc;

use super::input::{Change, ClusterPolicy, Namespace, NetworkPolicy, ObjectKey, Pod};
use super::keys::Labelled;
use super::labels::Labels;

/// The watch of NetworkPolicies, by its name in the agent's status.
pub const POLICIES: &str = "networkpolicies";
/// The watch of ClusterNetworkPolicies, likewise.
pub const CLUSTER_POLICIES: &str = "clusternetworkpolicies";

/// An input of the policy task.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyInput {
    /// NetworkPolicies.
    Network(Change<ObjectKey, PolicyObject<NetworkPolicy>>),
    /// ClusterNetworkPolicies.
    Cluster(Change<Arc<str>, PolicyObject<ClusterPolicy>>),
    /// Namespaces.
    Namespaces(Change<Arc<str>, Namespace>),
    /// Pods of all nodes, without addresses. A pod that ended stays `Applied`, with `ended`. Pods
    /// without a node are left out.
    Pods(Change<PodIdentity, PodInput>),
    /// The addresses of the pods of all nodes. The key is the address and the Namespace of its
    /// IPInstance.
    Addresses(Change<(IpAddr, Arc<str>), AddressInput>),
    /// The list of this kind that follows has the labels of the keys up to this registration. Without
    /// this input, a list has all labels.
    Converted {
        /// The kind.
        kind: Labelled,
        /// The registration.
        keys: u64,
    },
    /// Pods with a key that no policy named before. Newer rows stay, and unknown pods are left out.
    Relisted(Vec<PodInput>),
    /// All pods with the keys up to this registration were relisted.
    Covered(u64),
    /// A watch fails: the API server does not answer, or refuses it. Known objects stay as they
    /// are, and a kind without a list is unknown. A watch that continues from its version sends no
    /// input at the end of the failure.
    Failing {
        /// The plural name of the kind.
        what: &'static str,
        /// The reason.
        error: String,
    },
    /// The watches of Namespaces, pods and addresses have ended, because no policy existed: their
    /// objects are unknown until the next lists.
    Stopped,
}

/// What the policy task needs from the watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether Namespaces, pods and IPInstances are needed: a policy exists.
    pub pods: bool,
    /// The rows of pods have the labels of the keys up to this registration. None: no list has arrived.
    pub pod_keys: Option<u64>,
    /// The same for Namespaces.
    pub namespace_keys: Option<u64>,
    /// The last registrations of keys for pods and Namespaces.
    pub registered: (u64, u64),
    /// A new list of pods is necessary after each change.
    pub restarts: u64,
    /// The same, without a new start of their watch: pods that had too many labels may have fewer. 0:
    /// no pod has too many.
    pub freed: u64,
}

/// A policy with the parts that only reports need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyObject<T> {
    /// The policy.
    pub policy: T,
    /// The entries that are not in force as written: field, value, and what to write.
    pub faults: Vec<String>,
    /// Whether the policy is above its bound: its pods are isolated. False if the last run stored it.
    pub above_bound: bool,
    /// `metadata.generation`; 0 in a manifest.
    pub generation: i64,
    /// `metadata.uid`; empty in a manifest.
    pub uid: Arc<str>,
}

/// The name of a pod's object, and its UID.
pub type PodIdentity = (ObjectKey, Arc<str>);

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInput {
    /// The pod, with its own labels ([`super::keys`]).
    pub pod: Pod,
    /// The labels with keys that only policies of other Namespaces name.
    pub others: Labels,
    /// The registration of keys up to which it has labels; `u64::MAX`: it has all.
    pub keys: u64,
    /// `metadata.uid`. It is the UID in CNI's arguments, unless the pod is static.
    pub uid: Arc<str>,
    /// The UID of a static pod in CNI's arguments: the annotation `kubernetes.io/config.mirror`.
    pub static_uid: Option<Arc<str>>,
    /// `metadata.resourceVersion`; 0 in the file of the last run.
    pub version: u64,
    /// Whether the pod ended: its phase is Succeeded or Failed. A kubelet reports this, so the pod
    /// keeps its addresses until the controller releases them.
    pub ended: bool,
}

/// The state of an IPInstance: an address, and its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInput {
    /// The Namespace of the IPInstance and of the holder.
    pub namespace: Arc<str>,
    /// The address.
    pub address: IpAddr,
    /// The pod to which the IPInstance is bound. None: the address is only retained.
    pub holder: Option<Holder>,
}

/// The pod to which an IPInstance is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the pod.
    pub pod: Arc<str>,
    /// The UID of the pod.
    pub uid: Arc<str>,
    /// The node of the pod.
    pub node: Arc<str>,
}
