//! What Trunkline's programs say to each other and to its operators: the resources, and the attach protocol.
//!
//! Everything here is data and pure functions; reading files, sockets and clocks is left to the binaries.
//!
//! - [`resources`], [`policy`]: Network, Subnet, NodeInfo and IPInstance, field for field as hybridnet has them
//!   (`networking.alibaba.com/v1`), with optional additions to a BGP peer.
//! - [`manifest`]: from the text of a YAML file to resources, with errors that name the field.
//! - [`validate`]: the rules that resources must keep, alone, together and on one node.
//! - `kube` (feature `kube`): the resources as objects of the API server, and their CRDs.
//! - [`names`]: annotations, labels and finalizers.
//! - [`pod`]: what a pod or its namespace asks for by annotations and labels.
//! - [`pool`]: which addresses of a subnet are given out, and which comes next.
//! - [`attach`]: the protocol between the CNI plugin and the agent.
//! - [`control`]: what the operator's commands ask, and the shape of `-o json`.
//! - [`metrics`]: the catalogue of what is exported to Prometheus.

pub mod attach;
pub mod control;
#[cfg(feature = "kube")]
pub mod kube;
pub mod manifest;
pub mod metrics;
pub mod names;
pub mod pod;
pub mod policy;
pub mod pool;
pub mod resources;
pub mod validate;
