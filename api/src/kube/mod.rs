//! The resources as objects of the API server, and the CRDs that make it keep them.
//!
//! ```text
//! resources::NetworkSpec ─┬─ schema (schemars) ── bounds, defaults, CEL (rules) ── crds() ── deploy/crds/*.yaml
//!                         └─ NetworkObject = kube's metadata + the same spec and status
//!                               ▲ read leniently             ▼ From
//!                            the API server             resources::Network ── validate, plan
//! ```
//!
//! Two things are different from kube's derive, and are why the objects are a type of our own ([`Object`]):
//!
//! - **Reading is tolerant.** In a file a field that nobody knows is a typing error and is refused. In the API server it was written
//!   by a newer version, and refusing it would stop the watch for every other object too. [`Object`] drops such fields and
//!   lists them in [`Object::ignored`]; [`Lenient`] also takes an object whose values cannot be read, as a
//!   [`Unreadable`] with the field's path. What is watched or listed is a `Lenient`; what is written, and what the API server
//!   answers to that, an `Object`.
//! - **managedFields are dropped on arrival**: nobody needs them and they are as large as the object itself.
//!
//! A `password` is read but never written (secrets are not serialized): an Object of a Network with one must not be used to *replace* the
//! Network. Programs write statuses, by patch.

mod crd;
mod lenient;
mod node;
mod object;
mod rules;

pub use crd::{crds, manifests};
pub use lenient::{Lenient, Unreadable};
pub use node::node_addresses;
pub use object::{Kind, Object};
pub use rules::{Rule, rules};

use crate::resources::{IPInstanceSpec, NetworkSpec, NodeInfoSpec, SubnetSpec};

/// A Network in the API server: cluster-scoped.
pub type NetworkObject = Object<NetworkSpec>;
/// A Subnet in the API server: cluster-scoped.
pub type SubnetObject = Object<SubnetSpec>;
/// An IPInstance in the API server: in its pod's namespace.
pub type IPInstanceObject = Object<IPInstanceSpec>;
/// A NodeInfo in the API server: cluster-scoped, named as the node.
pub type NodeInfoObject = Object<NodeInfoSpec>;
