//! The inputs of the policy task. The watches ([`crate::source::kube::policies`]) and the folder of
//! manifests ([`crate::source::folder`]) send them.

use std::sync::Arc;

use super::input::{Change, ClusterPolicy, Namespace, NetworkPolicy, ObjectKey, Pod};

/// An input of the policy task.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyInput {
    /// NetworkPolicies.
    Network(Change<ObjectKey, PolicyObject<NetworkPolicy>>),
    /// ClusterNetworkPolicies.
    Cluster(Change<Arc<str>, PolicyObject<ClusterPolicy>>),
    /// Namespaces.
    Namespaces(Change<Arc<str>, Namespace>),
    /// Pods of all nodes. A pod that ended stays `Applied`, with `ended`. Pods without a node are
    /// left out.
    Pods(Change<ObjectKey, PodInput>),
    /// A watch fails: the API server does not answer, or refuses it. Known objects stay as they
    /// are, and a kind without a list is unknown. A watch that continues from its version sends no
    /// input at the end of the failure.
    Failing {
        /// The plural name of the kind.
        what: &'static str,
        /// The reason.
        error: String,
    },
    /// The watches of Namespaces and pods have ended, because no policy existed: their objects are
    /// unknown until the next lists.
    Stopped,
}

/// A policy with the parts that only reports need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyObject<T> {
    /// The policy.
    pub policy: T,
    /// The entries that are not in force as written: field, value, and what to write.
    pub faults: Vec<String>,
    /// `metadata.generation`; 0 in a manifest.
    pub generation: i64,
    /// `metadata.uid`; empty in a manifest.
    pub uid: Arc<str>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInput {
    /// The pod.
    pub pod: Pod,
    /// `metadata.uid`. It is the UID in CNI's arguments, unless the pod is static.
    pub uid: Arc<str>,
    /// The UID of a static pod in CNI's arguments: the annotation `kubernetes.io/config.mirror`.
    pub static_uid: Option<Arc<str>>,
    /// Whether the pod ended: its phase is Succeeded or Failed. Another pod can have its addresses.
    pub ended: bool,
}
