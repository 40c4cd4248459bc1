//! A Kubernetes API server for tests: real etcd, real kube-apiserver, and no other part of
//! Kubernetes. Each test simulates the other parts that it needs: a scheduler by binding pods, a
//! kubelet by calling the plugin, controllers of workloads by creating pods with their
//! ownerReferences.
//!
//! ```text
//! assets   kube-apiserver and kubectl: KUBEBUILDER_ASSETS, or built once by Go; etcd is Debian's
//! ports    two numbers for etcd and one for the API server, which no other lab uses meanwhile
//! server   etcd and the API server as processes; alone, it is the demo's API server
//! cluster  an API server with a client, for tests
//! pki      a CA, the server's certificate, the administrator's, the key that signs service accounts' tokens
//! daemon   a process with its log, that ends with the value, with the lab, or with the next lab in the same folder
//! controller  Trunkline's controller, with any number of replicas
//! auditor  an auditor of addresses, which finds each duplicate address
//! service_auditor  an auditor of service addresses
//! agents   the configuration of a fabric's agents, for this API server
//! nodes    a fabric's nodes with their agents, joined to the cluster
//! endpoints  EndpointSlices, as their controller writes them
//! pods     the simulated parts of a cluster: nodes, namespaces, pods
//! rights   the programs' accounts with the chart's rights, and a check that these are minimal
//! proxy    the real kube-proxy on a node
//! doorway  the API server on the loopback of another network namespace, for agents in namespaces
//! egress   the other direction: from the API server to Services with pods in such namespaces
//! multus   Multus, for pods with several interfaces
//! remote   RemoteClusters, with which a cluster reads another
//! kubelet, workloads  DaemonSets and Deployments of a chart, and pods of tests, run on a fabric's nodes
//! ```
//!
//! The API server listens on the machine's own loopback, where kubectl and browsers of a user reach
//! it. It reaches webhooks in the same way. Nodes in namespaces use the same address, through a
//! [`doorway`]: one kubeconfig works everywhere. Everything is in `target/lab/kube-<name>/`. The
//! ports stay the same as long as the cluster lives, so clients survive restarts.
//!
//! Difficulties: admission plugin ServiceAccount is off, because no controller creates the account
//! `default` of a namespace here. Debian's etcd 3.4 has no progress notifications, so streaming
//! lists (`sendInitialEvents`) are refused, as on old clusters.
//!
//! Without the feature `suite` there is no client and no TLS library: [`server`], with kubectl.

pub(crate) mod agents;
pub(crate) mod assets;
pub(crate) mod daemon;
pub(crate) mod doorway;
pub(crate) mod endpoints;
pub(crate) mod golang;
pub(crate) mod ports;
pub(crate) mod proxy;
pub(crate) mod server;

#[cfg(feature = "suite")]
pub(crate) mod auditor;
#[cfg(feature = "suite")]
pub(crate) mod cluster;
#[cfg(feature = "suite")]
pub(crate) mod controller;
#[cfg(feature = "suite")]
pub(crate) mod egress;
#[cfg(feature = "suite")]
pub(crate) mod hybridnet;
#[cfg(feature = "suite")]
pub(crate) mod kubelet;
#[cfg(feature = "suite")]
pub(crate) mod multus;
#[cfg(feature = "suite")]
pub(crate) mod nodes;
#[cfg(feature = "suite")]
pub(crate) mod pki;
#[cfg(feature = "suite")]
pub(crate) mod pods;
#[cfg(feature = "suite")]
pub(crate) mod remote;
#[cfg(feature = "suite")]
pub(crate) mod rights;
#[cfg(feature = "suite")]
pub(crate) mod service_auditor;
#[cfg(feature = "suite")]
pub(crate) mod workloads;

#[cfg(feature = "suite")]
pub(crate) use self::cluster::{Cluster, up};

/// The programs' namespace.
pub(crate) const NAMESPACE: &str = "kube-system";
