//! The weight of a policy as written, and its bound. The agent and the controller measure a policy
//! before they store it.
//!
//! | part | entries |
//! |---|---|
//! | a rule, a peer, a port, a block, an exception, a network | 1 |
//! | a condition of a selector, and each of its values | 1 |
//! | a peer that no single label decides (several conditions, `NotIn` or `DoesNotExist`) | 16 more |
//! | a peer of several Namespaces without a condition that names a value | 16 more |
//!
//! Pods are compared with each peer of the last two kinds one by one. Other peers are found by an
//! index. A policy without any part weighs one entry.
//!
//! A policy above the bound becomes a stub: a NetworkPolicy isolates its pods in its directions, and
//! a ClusterNetworkPolicy denies everything in the directions where it has rules.

use std::collections::BTreeSet;
use std::fmt;

use super::types::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, PortSelector,
};
use super::{PathSegment, PolicyFault, Read};
use crate::resources::{LabelSelector, Operator};

/// The bound of one policy.
pub const BOUND: PolicyWeight = PolicyWeight { entries: 20_000, octets: 1 << 20 };
/// The bound of the selector of the pods to which a policy applies. A stub keeps it.
const SUBJECT_BOUND: PolicyWeight = PolicyWeight { entries: 1000, octets: 64 << 10 };

/// Further entries of a peer that no single label decides, or that no value of a label limits.
const UNINDEXED: usize = 16;

/// The size of a policy as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyWeight {
    /// Rules, peers, ports, blocks, conditions and values.
    pub entries: usize,
    /// Octets of all strings.
    pub octets: usize,
}

impl std::ops::AddAssign for PolicyWeight {
    fn add_assign(&mut self, other: PolicyWeight) {
        self.entries += other.entries;
        self.octets += other.octets;
    }
}

impl std::ops::SubAssign for PolicyWeight {
    fn sub_assign(&mut self, other: PolicyWeight) {
        self.entries = self.entries.saturating_sub(other.entries);
        self.octets = self.octets.saturating_sub(other.octets);
    }
}

impl PolicyWeight {
    /// The weight of a thing without strings.
    const ENTRY: PolicyWeight = PolicyWeight { entries: 1, octets: 0 };

    /// The first figure above its bound.
    pub fn excess(self, bound: PolicyWeight) -> Option<Excess> {
        if self.entries > bound.entries {
            return Some(Excess { figure: self.entries, bound: bound.entries, unit: "entries" });
        }
        (self.octets > bound.octets).then_some(Excess {
            figure: self.octets,
            bound: bound.octets,
            unit: "octets of text",
        })
    }

    fn text(octets: usize) -> PolicyWeight {
        PolicyWeight { entries: 1, octets }
    }

    fn of(mut self, parts: impl Iterator<Item = PolicyWeight>) -> PolicyWeight {
        parts.for_each(|part| self += part);
        self
    }

    /// The weight of a policy with these parts: a policy without a part costs memory too.
    fn of_policy(self) -> PolicyWeight {
        PolicyWeight { entries: self.entries.max(1), ..self }
    }
}

/// A figure above its bound. Displayed: `31,204 entries, at most 20,000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The figure.
    pub figure: usize,
    /// The bound.
    pub bound: usize,
    /// The unit of both, in the plural.
    pub unit: &'static str,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, at most {}", thousands(self.figure), self.unit, thousands(self.bound))
    }
}

/// A number with commas between thousands.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn selector(selector: &LabelSelector) -> PolicyWeight {
    let labels = selector
        .match_labels
        .iter()
        .map(|(key, value)| PolicyWeight { entries: 2, octets: key.len() + value.len() });
    let expressions = selector.match_expressions.iter().map(|expression| {
        let values = expression.values.iter().map(|value| PolicyWeight::text(value.len()));
        PolicyWeight::text(expression.key.len()).of(values)
    });
    PolicyWeight::default().of(labels.chain(expressions))
}

/// Whether the index finds the pods of a selector by one label: it has no other condition.
fn is_indexed(selector: &LabelSelector) -> bool {
    let is_label = |operator| matches!(operator, Operator::In | Operator::Exists);
    selector.match_labels.len() + selector.match_expressions.len() <= 1
        && selector.match_expressions.iter().all(|expression| is_label(expression.operator))
}

/// Whether a condition of a selector names the values of a label.
fn names_values(selector: &LabelSelector) -> bool {
    let mut expressions = selector.match_expressions.iter();
    !selector.match_labels.is_empty() || expressions.any(|expression| expression.operator == Operator::In)
}

/// A group of pods with these selectors. `is_wide`: all pods of the cluster are compared with it.
fn pods<'a>(
    selectors: impl Iterator<Item = &'a LabelSelector> + Clone,
    is_wide: impl FnOnce() -> bool,
) -> PolicyWeight {
    let is_unindexed = !selectors.clone().all(is_indexed) || is_wide();
    let mut weight = PolicyWeight::ENTRY.of(selectors.map(selector));
    weight.entries += if is_unindexed { UNINDEXED } else { 0 };
    weight
}

impl NetworkPolicy {
    /// The weight.
    pub fn weight(&self) -> PolicyWeight {
        let rule = |rule: &NetworkRule| {
            let peers = rule.peers.iter().map(|peer| match peer {
                NetworkPeer::Pods { namespaces, pods: of_pods } => {
                    let selectors = namespaces.iter().chain(of_pods.iter());
                    pods(selectors.clone(), || namespaces.is_some() && !selectors.clone().any(names_values))
                }
                NetworkPeer::Block(block) => PolicyWeight { entries: 1 + block.except.len(), octets: 0 },
                NetworkPeer::Unknown => PolicyWeight::ENTRY,
            });
            let ports = rule.ports.iter().map(|port: &NetworkPort| match &port.port {
                PortSelector::Named(name) => PolicyWeight::text(name.len()),
                PortSelector::Any | PortSelector::Range(..) | PortSelector::Invalid => PolicyWeight::ENTRY,
            });
            PolicyWeight::ENTRY.of(peers.chain(ports))
        };
        selector(&self.pod_selector).of(self.ingress.iter().chain(&self.egress).map(rule)).of_policy()
    }

    /// A policy that isolates the same pods in the same directions, and allows nothing. Above its
    /// own bound, the selector selects all pods of the Namespace.
    pub fn stub(&self) -> NetworkPolicy {
        let fits = selector(&self.pod_selector).excess(SUBJECT_BOUND).is_none();
        let types = Direction::ALL.into_iter().filter(|direction| self.applies_to(*direction));
        NetworkPolicy {
            key: self.key.clone(),
            pod_selector: if fits { self.pod_selector.clone() } else { LabelSelector::default() },
            policy_types: Some(types.collect::<BTreeSet<Direction>>()),
            ingress: Vec::new(),
            egress: Vec::new(),
        }
    }
}

impl ClusterPolicy {
    /// The weight.
    pub fn weight(&self) -> PolicyWeight {
        let rule = |rule: &ClusterRule| {
            let peers = rule.peers.iter().map(|peer| match peer {
                ClusterPeer::Pods(of_pods) => cluster_pods(of_pods, || {
                    !names_values(&of_pods.namespaces) && !names_values(&of_pods.pods)
                }),
                ClusterPeer::Networks(networks) => PolicyWeight { entries: networks.len().max(1), octets: 0 },
                ClusterPeer::Unknown => PolicyWeight::ENTRY,
            });
            let ports = rule.ports.iter().map(|port| match port {
                ClusterPort::Named(name) => PolicyWeight::text(name.len()),
                ClusterPort::Numbered { .. } | ClusterPort::Unknown => PolicyWeight::ENTRY,
            });
            PolicyWeight::ENTRY.of(peers.chain(ports))
        };
        self.subject_weight().of(self.ingress.iter().chain(&self.egress).map(rule)).of_policy()
    }

    fn subject_weight(&self) -> PolicyWeight {
        match &self.subject {
            ClusterSubject::Pods(of_pods) => cluster_pods(of_pods, || false),
            ClusterSubject::Unknown => PolicyWeight::default(),
        }
    }

    /// A policy that denies everything to the same pods in the directions where this one has rules.
    pub fn stub(&self) -> ClusterPolicy {
        let rules = |rules: &[ClusterRule]| {
            let deny =
                ClusterRule { action: Action::Deny, peers: vec![ClusterPeer::Unknown], ports: Vec::new() };
            if rules.is_empty() { Vec::new() } else { vec![deny] }
        };
        ClusterPolicy {
            name: self.name.clone(),
            tier: self.tier,
            priority: self.priority,
            subject: self.subject.clone(),
            ingress: rules(&self.ingress),
            egress: rules(&self.egress),
        }
    }
}

fn cluster_pods(of_pods: &ClusterPods, is_wide: impl FnOnce() -> bool) -> PolicyWeight {
    pods([&of_pods.namespaces, &of_pods.pods].into_iter(), is_wide)
}

/// The effect of a stub, and the fix.
pub const NETWORK_EFFECT: &str =
    "split the policy, or use fewer peers and ports; its pods are isolated, and no rule matches";
/// The same for a ClusterNetworkPolicy.
pub const CLUSTER_EFFECT: &str = "split the policy, or use fewer peers and ports; \
                                  everything is denied in the directions where it has rules";

fn fault(excess: Excess, effect: &str) -> PolicyFault {
    let path = vec![PathSegment::Key("spec".to_owned())];
    PolicyFault { path, message: format!("over the budget: {excess}: {effect}") }
}

impl Read<NetworkPolicy> {
    /// Replaces a policy above the bound by its stub, with a fault.
    pub fn limit(mut self) -> Self {
        if let Some(excess) = self.object.weight().excess(BOUND) {
            self.object = self.object.stub();
            self.faults.insert(0, fault(excess, NETWORK_EFFECT));
            self.above_bound = true;
        }
        self
    }
}

impl Read<ClusterPolicy> {
    /// Replaces a policy above the bound by its stub, with a fault. A subject above its own bound
    /// selects no pod, as a subject that this version cannot read.
    pub fn limit(mut self) -> Self {
        if let Some(excess) = self.object.weight().excess(BOUND) {
            self.object = self.object.stub();
            if self.object.subject_weight().excess(SUBJECT_BOUND).is_some() {
                self.object.subject = ClusterSubject::Unknown;
            }
            self.faults.insert(0, fault(excess, CLUSTER_EFFECT));
            self.above_bound = true;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::network_policy::{ObjectKey, read_cluster_policy, read_network_policy};

    fn network(spec: &Value) -> Read<NetworkPolicy> {
        read_network_policy(ObjectKey::new("tenant", "bomb"), spec)
    }

    #[test]
    fn each_part_of_a_policy_has_a_weight() {
        let with = |rule: Value| network(&json!({"podSelector": {}, "ingress": [rule]})).object.weight();
        let weight = |entries, octets| PolicyWeight { entries, octets };
        for (rule, expected) in [
            (json!({}), weight(1, 0)),
            (json!({"from": [{"podSelector": {}}]}), weight(2, 0)),
            (json!({"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}), weight(4, 6)),
            (json!({"from": [{"podSelector": {"matchLabels": {"a": "1", "b": "2"}}}]}), weight(22, 4)),
            (
                json!({"from": [{"podSelector": {"matchExpressions":
                    [{"key": "a", "operator": "NotIn", "values": ["x", "y"]}]}}]}),
                weight(21, 3),
            ),
            (json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}), weight(3, 0)),
            (json!({"ports": [{"port": 80}, {"port": "http"}]}), weight(3, 4)),
            // Each pod of the cluster is compared with these peers.
            (json!({"from": [{"namespaceSelector": {}}]}), weight(18, 0)),
            (
                json!({"from": [{"namespaceSelector": {}, "podSelector":
                    {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}),
                weight(19, 1),
            ),
            (json!({"from": [{"namespaceSelector": {"matchLabels": {"a": "x"}}}]}), weight(4, 2)),
            (
                json!({"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "x"}}}]}),
                weight(4, 2),
            ),
        ] {
            assert_eq!(with(rule.clone()), expected, "{rule}");
        }
        assert_eq!(network(&json!({"podSelector": {}})).object.weight(), weight(1, 0), "no part");
    }

    #[test]
    fn a_large_network_policy_isolates_its_pods_alone() {
        let ports: Vec<Value> = (0..31_203).map(|index| json!({"port": format!("n{index:x}")})).collect();
        let spec = json!({
            "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"ports": ports}],
        });
        let read = network(&spec).limit();
        assert_eq!(
            read.fault_texts(),
            ["spec: over the budget: 31,206 entries, at most 20,000: split the policy, or use fewer peers \
              and ports; its pods are isolated, and no rule matches"]
        );
        let NetworkPolicy { pod_selector, ingress, egress, .. } = &read.object;
        assert_eq!((pod_selector.match_labels.len(), ingress.len(), egress.len()), (1, 0, 0));
        assert_eq!(Direction::ALL.map(|direction| read.object.applies_to(direction)), [false, true]);
        assert_eq!(read.clone().limit(), read);
    }

    #[test]
    fn a_large_subject_selects_the_whole_namespace() {
        let values: Vec<String> = (0..30_000).map(|index| format!("v{index}")).collect();
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        let read = network(&json!({"podSelector": selector})).limit();
        assert_eq!((read.object.pod_selector.clone(), read.faults.len()), (LabelSelector::default(), 1));
        let long = json!({"podSelector": {"matchLabels": {"a": "x".repeat(2 << 20)}}});
        let read = network(&long).limit();
        assert_eq!(read.object.pod_selector, LabelSelector::default());
        assert!(read.fault_texts()[0].contains("2,097,153 octets of text, at most 1,048,576"));
    }

    #[test]
    fn a_large_cluster_policy_denies_where_it_has_rules() {
        let networks: Vec<String> =
            (0..20_001u32).map(|index| format!("{}/32", std::net::Ipv4Addr::from_bits(index << 4))).collect();
        let spec = json!({
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": "Accept", "to": [{"networks": networks}]}],
        });
        let read = read_cluster_policy("bomb".into(), &spec).limit();
        assert_eq!(read.faults.len(), 1);
        assert!(read.object.ingress.is_empty() && read.object.egress.len() == 1);
        assert!(read.object.egress[0].is_unknown(Direction::Egress));
        assert_eq!(read.object.egress[0].action, Action::Deny);
        assert_ne!(read.object.subject, ClusterSubject::Unknown);
    }

    #[test]
    fn a_stub_of_a_cluster_policy_keeps_its_subject() {
        let values: Vec<String> = (0..2000).map(|index| format!("v{index}")).collect();
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        let spec = json!({
            "tier": "Admin", "priority": 1, "subject": {"namespaces": selector},
            "egress": [{"action": "Accept", "to": [{"namespaces": {}}]}],
        });
        let read = read_cluster_policy("large-subject".into(), &spec).limit();
        assert_eq!(read.faults.len(), 0, "the policy is within its own bound");
        assert_eq!(read.object.stub().subject, read.object.subject);
    }
}
