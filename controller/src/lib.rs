//! `trunkline-controller`: the cluster-wide decisions in one place. It decides each pod's
//! addresses, each network's free addresses, and each node's networks.
//!
//! ```text
//!                                    API server
//!        networks, subnets, nodes,       │ pods with a node, metadata    ▲ IPInstances, statuses, labels, events
//!        namespaces, IPInstances         │ of unsupported kinds and of   │ (leader)
//!                 │                      │                               │
//!           watch tasks ◄────────────────┘                     reconcilers, a bounded number at once
//!                 │ rows                                          ▲ keys        │ plan, outcome
//!                 ▼                                               │             ▼
//!   ┌─ state, one lock ───────────────────────────────────────────┴──────────────────┐
//!   │  cluster (every replica) ── changes ──► term (leader): queues, ipam             │
//!   └──────────────────────────────────────────────────────────────────────────────────┘
//!                 ▲ look                         ▲ scrape
//!          webhook task                   http task (/metrics, /healthz, /readyz)       leader task (Lease)
//! ```
//!
//! - [`watch`] turns the API server's objects into rows ([`cluster`]); [`state`] keeps them, and
//!   decides what an event affects.
//! - [`waiting`]: pods and Services without an address, and the changes that may help them.
//! - [`queue`] schedules the work; [`reconcile`] does it; [`ipam`] chooses the next address.
//! - [`term`]: starts with leadership and ends with it.
//! - [`selection`]: the network of a pod, for the pod reconciler and the webhook.
//! - [`services`]: addresses of Services of type LoadBalancer, beside the work for pods.
//! - [`cluster::vm`], [`reconcile::vm`]: addresses that belong to KubeVirt's virtual machines.
//! - [`unsupported`]: reports of objects that have no effect, such as global Services.
//! - [`policy_faults`]: reports of network policies with faults.
//!
//! **A pod's addresses**: its row gets a node → its key is queued → a plan is made under the lock,
//! which sets addresses aside → the IPInstances are created → the answers become rows before the
//! watch shows them. No step lists or scans other pods. So the cost is the same in a cluster of a
//! hundred pods and of a hundred thousand.
//!
//! **Start**: every replica runs the watches, the metrics and the webhook. **A term** begins with
//! new lists of IPInstances and then of pods, so that all writes of the predecessor are known. Then
//! the addresses are rebuilt, and every object is reconciled once. **Stop** (SIGTERM): the term
//! ends, the Lease is released, the process ends. No write is needed at the end, because the next
//! leader finds the unfinished work.

pub mod cluster;
pub mod config;
pub mod controller;
pub mod events;
pub mod exposition;
pub mod ipam;
pub mod leader;
pub mod metrics;
pub mod multus;
pub mod policy_faults;
pub mod queue;
pub mod reconcile;
pub mod remote;
pub mod selection;
pub mod services;
pub mod state;
pub mod term;
#[cfg(test)]
mod testing;
pub mod unsupported;
pub mod waiting;
pub mod watch;
pub mod webhook;
