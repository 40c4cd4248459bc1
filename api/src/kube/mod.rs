//! The resources as objects of the API server, and their CRDs.
//!
//! ```text
//! resources::NetworkSpec ─┬─ schema (schemars) ── bounds, defaults, CEL (rules) ── crds() ── deploy/crds/*.yaml
//!                         └─ NetworkObject = kube's metadata + the same spec and status
//!                               ▲ read leniently             ▼ From
//!                            the API server             resources::Network ── validate, plan
//! ```
//!
//! kube's derive differs in two points, so the objects have a type of their own ([`Object`]):
//!
//! - **Reading is tolerant.** In a file, an unknown field is a typing error and is rejected. In the
//!   API server, a newer version has written it, and a rejection would stop the watch for every
//!   other object too. [`Object`] drops such fields and lists them in [`Object::ignored`].
//!   [`Lenient`] also accepts an object with unreadable values, as an [`Unreadable`] with the
//!   field's path. Use `Lenient` to watch or list, and `Object` to write and for the API server's
//!   answer to a write.
//! - **managedFields are dropped on arrival**: they have no use here, and are as large as the
//!   object itself.
//!
//! A `password` is read but never written (secrets are not serialized). So an Object of a Network
//! with a password must not *replace* the Network. Programs only write statuses, by patch.

mod crd;
mod lenient;
mod metadata;
mod network_policy;
mod node;
mod object;
mod reader;
mod resource;
mod rules;

pub use crd::{crds, manifests};
pub use lenient::{Lenient, Unreadable};
pub use metadata::used_metadata;
pub use network_policy::{ClusterNetworkPolicyObject, NetworkPolicyObject};
pub use node::node_addresses;
pub use object::{Kind, NoStatus, Object};
pub use rules::{Rule, rules};

use crate::resources::{
    AgentSettingsSpec, AnycastAddressSpec, IPInstanceSpec, NetworkSpec, NodeInfoSpec, NodeServicesSpec,
    RemoteSubnetSpec, RemoteVtepSpec, ServiceAddressSpec, ServiceAdvertisementSpec, ServicePoolSpec,
    SubnetSpec,
};

/// A Network in the API server: cluster-scoped.
pub type NetworkObject = Object<NetworkSpec>;
/// A Subnet in the API server: cluster-scoped.
pub type SubnetObject = Object<SubnetSpec>;
/// An IPInstance in the API server: in its pod's namespace.
pub type IPInstanceObject = Object<IPInstanceSpec>;
/// A NodeInfo in the API server: cluster-scoped, with the name of the node.
pub type NodeInfoObject = Object<NodeInfoSpec>;
/// A RemoteSubnet in the API server: cluster-scoped.
pub type RemoteSubnetObject = Object<RemoteSubnetSpec>;
/// A RemoteVtep in the API server: cluster-scoped.
pub type RemoteVtepObject = Object<RemoteVtepSpec>;
/// A ServicePool in the API server: cluster-scoped.
pub type ServicePoolObject = Object<ServicePoolSpec>;
/// A ServiceAddress (a claim) in the API server: cluster-scoped, named after the address.
pub type ServiceAddressObject = Object<ServiceAddressSpec>;
/// A ServiceAdvertisement in the API server: cluster-scoped.
pub type ServiceAdvertisementObject = Object<ServiceAdvertisementSpec>;
/// An AnycastAddress in the API server: cluster-scoped.
pub type AnycastAddressObject = Object<AnycastAddressSpec>;
/// An AgentSettings in the API server: cluster-scoped.
pub type AgentSettingsObject = Object<AgentSettingsSpec>;
/// A NodeServices in the API server: cluster-scoped, with the name of the node.
pub type NodeServicesObject = Object<NodeServicesSpec>;
