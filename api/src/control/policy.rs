//! Network policies on a node: what is in force, and the decision about one packet.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::service::Protocol;

/// The network policies that select pods of this node, and the state of their rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoliciesView {
    /// The state of the rules.
    pub summary: PolicySummary,
    /// All policies, sorted by tier, Namespace and name.
    pub policies: Vec<PolicyView>,
}

/// The state of the rules on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySummary {
    /// Whether the rules are complete and in the kernel.
    pub state: PolicyState,
    /// The reason for another state than `inForce`, and the fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Policies that the node knows.
    pub policies: usize,
    /// Pods of this node that a policy selects.
    pub pods: usize,
    /// Chains of nftables.
    pub chains: usize,
    /// Sets of nftables; each has an IPv4 and an IPv6 part.
    pub sets: usize,
    /// Policies that the budget or the kernel refuses. They fail closed for their pods.
    #[serde(default)]
    pub failed_closed: usize,
    /// Interfaces of pods that a policy selects and that the node cannot enforce (attachment
    /// ipvlan).
    pub unenforced: usize,
    /// Pods that wait for their rules.
    pub waiting: usize,
    /// Policies that are not in force in their last version: the API server has not sent the labels
    /// with keys that only they name.
    #[serde(default)]
    pub pending: usize,
    /// Pods of all nodes with more labels than the agent keeps. Rules that deny match them, and rules
    /// that accept do not.
    #[serde(default)]
    pub over_label_bound: usize,
}

/// Whether the rules are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyState {
    /// The rules of the policies are in the kernel.
    InForce,
    /// Not all lists of the API server have arrived: the rules of the last run stay in force, and
    /// new pods wait.
    #[default]
    Loading,
    /// The API server does not answer: the last known policies are in force.
    Retained,
    /// The kernel refused the rules: the last accepted rules are in force, and new pods wait.
    Refused,
}

impl PolicyState {
    /// The word for columns.
    pub fn name(self) -> &'static str {
        match self {
            PolicyState::InForce => "in force",
            PolicyState::Loading => "loading",
            PolicyState::Retained => "retained",
            PolicyState::Refused => "refused",
        }
    }
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    /// The Namespace; none for a ClusterNetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// `admin`, `baseline`, or `network` for a NetworkPolicy.
    pub tier: String,
    /// The priority of a ClusterNetworkPolicy, 0 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// The pods of this node that it selects, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
    /// Its rules with their counters.
    pub rules: Vec<PolicyRuleView>,
    /// Entries that match nothing or that deny everything, with the field and the fix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// A rule of a policy, or its isolation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRuleView {
    /// The direction.
    pub direction: PolicyDirection,
    /// The position in `ingress` or `egress` from 0; none for packets that no rule allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Whether the policy denies the packets.
    #[serde(default)]
    pub denied: bool,
    /// Whether the packets were only reported (Namespace with `trunkline.io/policy-mode: audit`).
    #[serde(default)]
    pub audit: bool,
    /// First packets of connections that the rule decided.
    pub packets: u64,
    /// Their octets.
    pub octets: u64,
}

/// The direction of a connection, seen from the pod that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyDirection {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl PolicyDirection {
    /// The word of the API.
    pub fn name(self) -> &'static str {
        match self {
            PolicyDirection::Ingress => "ingress",
            PolicyDirection::Egress => "egress",
        }
    }
}

/// The first packet of a connection between a pod of this node and another address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyQuestion {
    /// The address of the pod of this node.
    pub pod: IpAddr,
    /// The other address.
    pub peer: IpAddr,
    /// Protocol and destination port; none for ICMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<(Protocol, u16)>,
}

/// The decisions of the policies of this node's pods about a packet from a pod, and about the same
/// packet in the opposite direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAnswer {
    /// From the pod to the peer.
    pub from_pod: Vec<PolicyDecision>,
    /// From the peer to the pod.
    pub to_pod: Vec<PolicyDecision>,
}

/// The decision of one pod's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecision {
    /// The pod whose policies decide, as `NAMESPACE/NAME`.
    pub pod: String,
    /// The direction, seen from this pod.
    pub direction: PolicyDirection,
    /// Whether the packet passes.
    pub allowed: bool,
    /// The rule, in words.
    pub reason: String,
}
