//! `trunkline-controller`: what a cluster decides in one place. Which pod has which address, what networks have left, which node is in
//! which network.
//!
//! ```text
//!                                    API server
//!        networks, subnets, nodes,       │ pods with a node              ▲ IPInstances, statuses, labels, events
//!        namespaces, IPInstances         │ (leader)                      │ (leader)
//!                 │                      │                               │
//!           watch tasks ◄────────────────┘                     reconcilers, a bounded number at once
//!                 │ rows                                          ▲ keys        │ plan, outcome
//!                 ▼                                               │             ▼
//!   ┌─ books, one lock ───────────────────────────────────────────┴──────────────────┐
//!   │  cluster (every replica) ── changes ──► term (leader): queues, ipam             │
//!   └──────────────────────────────────────────────────────────────────────────────────┘
//!                 ▲ look                         ▲ scrape
//!          webhook task                   http task (/metrics, /healthz, /readyz)       leader task (Lease)
//! ```
//!
//! - [`watch`] makes rows of what the API server has ([`cluster`]); [`books`] is where they are kept, and what an event concerns.
//! - [`queue`] says what is looked at again; [`reconcile`] does it; [`ipam`] knows which address comes next.
//! - [`term`]: what begins when this replica leads, and ends with it.
//! - [`selection`]: which network a pod gets; the webhook asks the same.
//!
//! **A pod's addresses**: its row gets a node → its key is queued → a plan is made under the lock, which sets addresses aside →
//! the IPInstances are created → the answers are rows before the watch says so. No list, no look at other pods: it costs the same
//! in a cluster of a hundred and of a hundred thousand.
//!
//! **Start**: every replica watches, serves metrics and the webhook. **A term** begins with IPInstances and then pods listed from anew, so
//! that nothing is unknown of what the predecessor wrote; then the addresses are rebuilt, and everything is looked at once. **Stop**
//! (SIGTERM): the term ends, the lease is given up, the process ends. Nothing has to be written at the end: what is not done is found
//! by the next leader.

pub mod books;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod events;
pub mod ipam;
pub mod leader;
pub mod metrics;
pub mod queue;
pub mod reconcile;
pub mod selection;
pub mod term;
pub mod watch;
pub mod webhook;
