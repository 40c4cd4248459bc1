//! Attaching a pod: what happens in its network namespace and at the host's end of its link.
//!
//! [`workers`] runs ADD, CHECK and DEL on threads that enter the pod's namespace. Every pod has a veth pair (`veth`): its host's end is
//! what the rest of the agent knows a pod by, its name and alias say whose it is, and its queues limit how fast the pod may be
//! ([`bandwidth`]). In a VLAN the interface itself may be a slave of the VLAN's device (`ipvlan`), and the pair stands beside it. What
//! the namespace should have (addresses, neighbours,
//! routes) is a value, `namespace::NamespaceConfig`: ADD puts it there and [`check`](self) looks for the same value, so that the two cannot
//! differ.

pub mod bandwidth;
mod check;
pub mod device;
mod ipvlan;
mod namespace;
pub mod netns;
mod second;
mod veth;
pub mod workers;
