//! The compiler's rules as the kernel's table ([`trunkline_datapath::plan::policy`]): links instead
//! of pods, counters and reports instead of origins.

use std::fmt;
use std::sync::Arc;

use trunkline_datapath::plan::policy::{
    CounterId, PolicyChain, PolicyRule, PolicySet, PolicySetChange, PolicySetKind,
};

use super::input::{Direction, ObjectKey};
use super::rules::{AddressSet, Chain, ChainKey, Origin, Rule, SetChange, SetKey, Verdict, number_of};

/// The meaning of a counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    /// The direction.
    pub direction: Direction,
    /// The policy.
    pub policy: PolicyRef,
    /// The position of the rule from 0. None: the policy isolates the pod, and no rule allows the
    /// packet. If several NetworkPolicies isolate the pod, it is the first one by name.
    pub rule: Option<usize>,
    /// Whether the policy denies the packets.
    pub denied: bool,
    /// Whether the packets are only reported and not dropped.
    pub audit: bool,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyRef {
    /// A NetworkPolicy.
    Network(ObjectKey),
    /// A ClusterNetworkPolicy.
    Cluster(Arc<str>),
}

/// Kind and name.
impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyRef::Network(key) => write!(f, "NetworkPolicy {key}"),
            PolicyRef::Cluster(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}

impl CounterKey {
    pub(super) fn id(&self) -> CounterId {
        CounterId::from(number_of(self))
    }
}

/// The counter of a rule. Jumps have none.
pub(super) fn counter_of(chain: &ChainKey, rule: &Rule) -> Option<CounterKey> {
    let (direction, audit) = (chain.direction(), rule.audit);
    let denied = rule.verdict == Verdict::Drop || audit;
    let (policy, rule) = match &rule.origin {
        Origin::Network { policy, rule } => (PolicyRef::Network(policy.clone()), Some(*rule)),
        Origin::Cluster { policy, rule } => (PolicyRef::Cluster(policy.clone()), Some(*rule)),
        Origin::Isolation => {
            let ChainKey::Entry { policies, .. } = chain else { return None };
            (PolicyRef::Network(policies.network.first()?.clone()), None)
        }
        Origin::Structure => return None,
    };
    Some(CounterKey { direction, policy, rule, denied, audit })
}

pub(super) fn chain(chain: &Chain) -> Arc<PolicyChain> {
    let rule = |rule: &Rule| PolicyRule {
        peers: rule.peers,
        ports: rule.ports.clone(),
        verdict: rule.verdict,
        counter: counter_of(&chain.key, rule).map(|key| key.id()),
        logged: rule.verdict == Verdict::Drop || rule.audit,
    };
    Arc::new(PolicyChain { direction: chain.key.direction(), rules: chain.rules.iter().map(rule).collect() })
}

pub(super) fn set(set: AddressSet) -> PolicySet {
    let kind = match &*set.key {
        SetKey::Pods(_) => PolicySetKind::Addresses,
        SetKey::Blocks(_) => PolicySetKind::Ranges,
        SetKey::NamedPorts { .. } => PolicySetKind::Ports,
        SetKey::PortNumbers(_) => PolicySetKind::PortRanges,
    };
    PolicySet { kind, elements: set.elements }
}

pub(super) fn set_change(change: SetChange) -> PolicySetChange {
    match change {
        SetChange::Replaced(there) => PolicySetChange::Replaced(set(there)),
        SetChange::Changed { added, removed } => PolicySetChange::Changed { added, removed },
        SetChange::Removed => PolicySetChange::Removed,
    }
}

/// The policies of an entry chain.
pub(super) fn policies_of(chain: &ChainKey) -> Vec<PolicyRef> {
    let ChainKey::Entry { policies, .. } = chain else { return Vec::new() };
    let tiers = policies.admin.iter().chain(&policies.baseline);
    let network = policies.network.iter().cloned().map(PolicyRef::Network);
    tiers.cloned().map(PolicyRef::Cluster).chain(network).collect()
}
