//! The types of policies in compact form.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::resources::LabelSelector;
use crate::service::Protocol;

/// Namespace and name of a pod or of a NetworkPolicy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The Namespace.
    #[serde(with = "shared")]
    pub namespace: Arc<str>,
    /// The name.
    #[serde(with = "shared")]
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of these two names.
    pub fn new(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The direction of a connection, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];
}

/// A NetworkPolicy of `networking.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `spec.podSelector`: the pods of the Namespace to which the policy applies.
    pub pod_selector: LabelSelector,
    /// `spec.policyTypes`. None or empty: the default, see [`NetworkPolicy::applies_to`].
    pub policy_types: Option<BTreeSet<Direction>>,
    /// `spec.ingress`.
    pub ingress: Vec<NetworkRule>,
    /// `spec.egress`.
    pub egress: Vec<NetworkRule>,
}

/// A rule of a [`NetworkPolicy`]. It allows the connections that match a peer and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// `from` or `to`. Empty or absent: every peer.
    pub peers: Vec<NetworkPeer>,
    /// `ports`. Empty or absent: every protocol and port.
    pub ports: Vec<NetworkPort>,
}

/// A peer of a [`NetworkRule`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPeer {
    /// Pods. Both selectors must match.
    Pods {
        /// `namespaceSelector`. None: the policy's own Namespace.
        namespaces: Option<LabelSelector>,
        /// `podSelector`. None: every pod.
        pods: Option<LabelSelector>,
    },
    /// `ipBlock`. It matches addresses, also those of pods.
    Block(IpBlock),
    /// A peer of an unknown type. It matches nothing.
    Unknown,
}

/// A prefix without some parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IpBlock {
    /// `cidr`. Bits after the prefix length have no effect.
    pub cidr: IpNet,
    /// `except`.
    pub except: Vec<IpNet>,
}

/// An entry of `ports` in a [`NetworkRule`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPort {
    /// `protocol`; TCP if the manifest has none.
    pub protocol: Protocol,
    /// `port` and `endPort`.
    pub port: PortSelector,
}

/// The ports that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PortSelector {
    /// Every port.
    Any,
    /// From the first to the last, both included.
    Range(u16, u16),
    /// The port with this name, of the pod at the destination. It matches no other destination.
    Named(#[serde(with = "shared")] Arc<str>),
    /// An entry that Kubernetes does not define, for example an `endPort` below `port`. It matches
    /// nothing.
    Invalid,
}

/// A ClusterNetworkPolicy of `policy.networking.k8s.io/v1beta1`, standard channel.
///
/// The experimental peers `nodes` and `domainNames` are not supported. They are
/// [`ClusterPeer::Unknown`]. The experimental protocol `destinationNamedPort` is supported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// The name.
    #[serde(with = "shared")]
    pub name: Arc<str>,
    /// `spec.tier`.
    pub tier: Tier,
    /// `spec.priority`: 0 to 1000. The lowest number is evaluated first, equal ones by name.
    pub priority: u16,
    /// `spec.subject`: the pods to which the policy applies.
    pub subject: ClusterSubject,
    /// `spec.ingress`, in the order of evaluation.
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`, in the order of evaluation.
    pub egress: Vec<ClusterRule>,
}

/// The tier of a [`ClusterPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Evaluated before NetworkPolicies.
    Admin,
    /// Evaluated for pods that no NetworkPolicy selects in the direction.
    Baseline,
}

/// The pods to which a [`ClusterPolicy`] applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterSubject {
    /// `namespaces` or `pods`.
    Pods(ClusterPods),
    /// A subject of an unknown type. It selects no pod.
    Unknown,
}

/// Pods of several Namespaces. Both selectors must match. Pods with the node's network are never
/// selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPods {
    /// `namespaces`, or `pods.namespaceSelector`. Empty: every Namespace.
    pub namespaces: LabelSelector,
    /// `pods.podSelector`. Empty: every pod.
    pub pods: LabelSelector,
}

/// A rule of a [`ClusterPolicy`].
///
/// A rule with an unknown peer or protocol fails closed, as the API requires: with
/// [`Action::Accept`] the rule matches nothing, otherwise the rule denies everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRule {
    /// The action for connections that match.
    pub action: Action,
    /// `from` or `to`: one of them must match. The API requires at least one; an empty list is
    /// handled like an unknown peer.
    pub peers: Vec<ClusterPeer>,
    /// `protocols`: one of them must match. Empty: every protocol and port.
    pub ports: Vec<ClusterPort>,
}

/// The action of a [`ClusterRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Allow the connection in this direction, and evaluate no further policy.
    Accept,
    /// Drop the connection.
    Deny,
    /// Evaluate no further policy of this tier.
    Pass,
}

/// A peer of a [`ClusterRule`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterPeer {
    /// `namespaces` or `pods`.
    Pods(ClusterPods),
    /// `networks`, for egress only. It matches addresses, also those of pods.
    Networks(Vec<IpNet>),
    /// A peer of an unknown type, or without a type.
    Unknown,
}

/// A protocol of a [`ClusterRule`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterPort {
    /// `tcp`, `udp` or `sctp`, with all ports or with a range.
    Numbered {
        /// The protocol.
        protocol: Protocol,
        /// The first and the last port. None: every port.
        range: Option<(u16, u16)>,
    },
    /// `destinationNamedPort`, of any protocol.
    Named(#[serde(with = "shared")] Arc<str>),
    /// A protocol of an unknown type, or without a type.
    Unknown,
}

impl NetworkPolicy {
    /// Whether the policy isolates its pods in a direction. Without `policyTypes` a policy applies
    /// to ingress, and to egress if it has egress rules.
    pub fn applies_to(&self, direction: Direction) -> bool {
        match &self.policy_types {
            Some(types) if !types.is_empty() => types.contains(&direction),
            _ => direction == Direction::Ingress || !self.egress.is_empty(),
        }
    }

    /// The rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[NetworkRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl ClusterPolicy {
    /// The rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl ClusterRule {
    /// Whether a peer or protocol is unknown, or not defined for the direction.
    pub fn is_unknown(&self, direction: Direction) -> bool {
        let is_unknown_peer = |peer: &ClusterPeer| match peer {
            ClusterPeer::Pods(_) => false,
            ClusterPeer::Networks(networks) => direction == Direction::Ingress || networks.is_empty(),
            ClusterPeer::Unknown => true,
        };
        let is_unknown_port = |port: &ClusterPort| match port {
            ClusterPort::Numbered { range, .. } => range.is_some_and(|(first, last)| first > last),
            ClusterPort::Named(_) => false,
            ClusterPort::Unknown => true,
        };
        self.peers.is_empty()
            || self.peers.iter().any(is_unknown_peer)
            || self.ports.iter().any(is_unknown_port)
    }
}

/// Shared strings as text.
pub(super) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Arc::from)
    }
}
