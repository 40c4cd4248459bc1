//! Interfaces between Trunkline's programs, and to its operators: the resources, and the protocols.
//!
//! This crate has data and pure functions only; files, sockets and clocks are left to the binaries.
//!
//! - [`resources`], [`policy`]: Network, Subnet, NodeInfo and IPInstance, field for field as in
//!   hybridnet (`networking.alibaba.com/v1`), with optional additions to a BGP peer; and the own
//!   kinds for service addresses (`trunkline.io/v1alpha1`).
//! - [`manifest`]: from the text of a YAML file to resources, with errors that name the field.
//! - [`fault`]: a fault in a resource.
//! - [`validate`]: the rules for resources, alone, together and on one node.
//! - `kube` (feature `kube`): the resources as objects of the API server, and their CRDs.
//! - [`kept`]: what the controller keeps of objects that tenants write, and the bounds.
//! - [`names`]: annotations, labels and finalizers.
//! - [`network_policy`]: NetworkPolicies and ClusterNetworkPolicies, and their tolerant reader.
//! - [`pod`]: the annotations and labels of a pod or its namespace.
//! - [`tenancy`]: the Networks that a Namespace allows to its pods.
//! - [`service`]: the annotations and fields of a Service that request its addresses.
//! - [`pool`]: the addresses of a subnet, and the order of their allocation.
//! - [`bandwidth`]: the rate limits of a container's interface.
//! - [`attach`]: the protocol between the CNI plugin and the agent.
//! - [`control`]: the queries of the operator's commands, and the shape of `-o json`.
//! - [`metrics`]: the catalogue of the Prometheus metrics.

pub mod attach;
pub mod bandwidth;
pub mod control;
pub mod fault;
pub mod interfaces;
pub mod kept;
#[cfg(feature = "kube")]
pub mod kube;
pub mod manifest;
pub mod metrics;
pub mod names;
pub mod network_policy;
pub mod pod;
pub mod policy;
pub mod pool;
pub mod resources;
pub mod service;
pub mod tenancy;
pub mod validate;
mod value;

pub use value::null_default;
