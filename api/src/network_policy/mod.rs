//! NetworkPolicies (`networking.k8s.io/v1`) and ClusterNetworkPolicies
//! (`policy.networking.k8s.io/v1beta1`), and their reader.
//!
//! The reader never fails: one entry with a fault must not disable the other entries, or the other
//! policies. Each entry that this version does not know or that the API does not define fails
//! closed, and gives a [`PolicyFault`]. The agent enforces the result, the controller reports the
//! faults, and a manifest in a file with a fault is refused.
//!
//! | entry with a fault | effect |
//! |---|---|
//! | NetworkPolicy: a peer, or an exception of its `ipBlock` | the peer matches nothing |
//! | NetworkPolicy: a port | the entry matches nothing |
//! | NetworkPolicy: another field of a rule, or the whole rule | the rule matches nothing |
//! | NetworkPolicy: `podSelector` | its other conditions select pods, which are isolated: no rule matches |
//! | NetworkPolicy: `policyTypes` | the other entries count; without any the default applies |
//! | NetworkPolicy: another field of `spec` | none |
//! | ClusterNetworkPolicy: `tier`, `priority`, `subject`, another field of `spec` | the policy selects no pod |
//! | more entries than a policy can have ([`Read::limit`]) | the pods are isolated; ClusterNetworkPolicy: each direction with rules is denied |
//! | ClusterNetworkPolicy: a part of a rule | Accept: the rule matches nothing. Otherwise: the rule denies everything |

mod cluster;
mod field;
mod network;
mod types;
mod weight;

pub use cluster::read_cluster_policy;
pub use field::{PathSegment, PolicyFault};
pub use network::read_network_policy;
pub use types::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    IpBlock, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, PortSelector, Tier,
};
pub use weight::{BOUND, CLUSTER_EFFECT, Excess, NETWORK_EFFECT, PolicyWeight};

/// A policy, and the entries that are not in force as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read<T> {
    /// The policy. Entries with a fault fail closed.
    pub object: T,
    /// The faults. Their number has a bound: the last one can stand for several.
    pub faults: Vec<PolicyFault>,
    /// Whether [`Read::limit`] replaced it.
    pub above_bound: bool,
}

impl<T> Read<T> {
    /// The faults as text.
    pub fn fault_texts(&self) -> Vec<String> {
        self.faults.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests;
