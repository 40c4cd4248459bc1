//! Network policies: policies, Namespaces and pods become the nftables rules for the pods of this
//! node. This module does no I/O.
//!
//! ```text
//!  API server ──NetworkPolicies, ClusterNetworkPolicies─┐
//!  or folder  ──Namespaces, pods, IPInstances───────────┼─Change─► Compiler ─RulesChange─► kernel owner
//!  attachments ─addresses of local pods─────────────────┘          (pure)
//! ```
//!
//! - `input` has the objects in compact form, and `feed` the messages of their sources.
//! - `objects` reads Namespaces, pods and IPInstances of the API server. [`trunkline_api::network_policy`] reads
//!   policies.
//! - `labels` and `group` find the selectors of a pod without examining all selectors.
//! - `translate` makes the rules of one policy. `blocks` makes ranges of prefixes.
//! - `pods` finds the holders of addresses. `keys` has the labels that rows keep, and `coverage` the
//!   policies that wait for more labels. `connections` ends those of former holders.
//! - `world` has Namespaces and pods, `sets` and `compiler` the sets and chains that are in use.
//! - `budget` compares the cost of policies with its bounds.
//! - `stored` does the same for the policies that the agent stores.
//! - `rules` has the output: sets, chains, and the chains of each pod.
//! - `evaluate` evaluates a packet against the output, for explanations.
//! - `specification` (tests) evaluates a packet against the policies, from the text of the API.
//!
//! # Semantics
//!
//! - The order is: Admin tier by priority and name, NetworkPolicies, Baseline tier. A pod that a
//!   NetworkPolicy selects in a direction is isolated in this direction: what no NetworkPolicy
//!   allows is dropped, and the Baseline tier has no effect.
//! - A rule without ports matches every protocol, also ICMP. A rule with ports does not match ICMP.
//! - Policies do not select pods with the node's network, and no selector of peers matches them.
//!   Their packets have an address of their node, which an `ipBlock` or `networks` can match.
//! - Packets from a node to its own pods are always accepted, also if a ClusterNetworkPolicy denies
//!   them. Packets of a pod to its own node are subject to its egress policies.
//! - A pod reaches itself always.
//! - `ipBlock` and `networks` match by address. A pod's address is no exception.
//! - A named port is a port of the pod at the destination. A destination that is no pod, or has the
//!   node's network, has no named ports.
//! - A peer has the addresses of its IPInstances, whatever its kubelet reports.
//! - A pod of unknown labels, or of an unknown Namespace, is a peer of rules that deny it or may deny
//!   it, and of no rule that only may accept it. A rule of the Admin tier that may pass its packets
//!   drops them. If a policy may select it, no packet passes.
//!
//! # Unknown input
//!
//! - NetworkPolicy: an unknown peer or an invalid port matches nothing. Other entries of its list
//!   stay in force, and the pods are isolated.
//! - ClusterNetworkPolicy: a rule with an unknown peer or protocol matches nothing if its action is
//!   Accept, and otherwise denies everything. The API requires this. The experimental peers `nodes`
//!   and `domainNames` are unknown peers. A policy with an unknown subject selects nothing.
//!
//! [`trunkline_api::network_policy`] has the effect of each fault.

mod blocks;
mod budget;
#[cfg(test)]
mod budget_tests;
pub mod cache;
mod compiler;
mod connections;
#[cfg(test)]
mod cost_tests;
mod counted;
mod coverage;
mod engine;
#[cfg(test)]
mod engine_tests;
pub mod evaluate;
pub mod feed;
mod group;
#[cfg(test)]
mod holder_tests;
pub mod inbox;
pub mod input;
mod kernel;
pub mod keys;
mod labels;
#[cfg(test)]
mod named_tests;
pub mod objects;
pub mod pace;
mod pending;
mod pods;
pub mod rules;
mod sets;
#[cfg(test)]
mod specification;
mod stored;
mod task;
mod translate;
mod views;
mod world;
#[cfg(test)]
mod world_tests;

pub use compiler::{Compiler, compile};
pub use group::{NamespaceMatch, PodGroup};
pub use kernel::{CounterKey, PolicyRef};
pub use labels::{Labels, Selector};
pub use pods::PolicyLink;
pub use task::{Policies, PolicyDependencies, PolicyScrape, PolicyWait};
pub use views::direction;
