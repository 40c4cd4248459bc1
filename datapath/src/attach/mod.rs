//! The attachment of a pod: its network namespace, and the host interface of its veth pair.
//!
//! [`workers`] runs ADD, CHECK and DEL on threads that enter the pod's namespace. Every pod has a
//! veth pair (`veth`). The rest of the agent identifies a pod by its host interface: the name and
//! the alias contain the owner, and the queues limit the pod's bandwidth ([`bandwidth`]). In a
//! VLAN, the pod's interface may be an IPVLAN slave of the VLAN device (`ipvlan`); such a pod also
//! has a veth pair. The wanted configuration of the namespace (addresses, neighbour entries,
//! routes) is a value, `namespace::NamespaceConfig`. ADD installs it and [`check`](self) looks for
//! the same value, so the two cannot differ.

pub mod bandwidth;
mod check;
pub mod device;
mod ipvlan;
mod namespace;
pub mod netns;
mod second;
mod veth;
pub mod workers;
