//! Live migration of KubeVirt's virtual machines: which of the two pods gets the packets.
//!
//! ```text
//!  API server ──IPInstances──► cluster ──changes──►┌────────────────┐──Migrate──► reconcile task
//!  pod ──ARP, RARP, ND──► listener ──announced────►│ migration task │──state────► records on disk
//!  attach flow ──attached──► cluster ──changes────►│                │──status───► API server
//!  API server ──Node of the target────────────────►└────────────────┘
//! ```
//!
//! During a live migration two pods have the same addresses. [`decide`] derives the part of this
//! node's pod ([`MigrationState`](crate::ipam::MigrationState)) from the IPInstances and the record;
//! [`crate::plan`] has the effect of each state.
//!
//! | event | source | target |
//! |---|---|---|
//! | the controller names the target in the IPInstance | `Departing`: its path is worse | `Inactive` from its ADD on |
//! | the virtual machine announces itself on the target's interface | | `Arrived`: advertised; its agent writes the IPInstance's status |
//! | the status has the target | `Inactive`: withdrawn, late packets go to the target's node or to the fabric | |
//! | the binding has the target (KubeVirt's state) | `Inactive` | `Active` |
//! | the target ends before | `Active` | `Inactive` until its DEL |
//!
//! **The announcement is from the target's pod itself.** The listener's socket is on its interface, and
//! exists only while the IPInstance names this pod as target
//! ([`trunkline_datapath::link_check::announcement`]). A guest without an announcement is switched by
//! KubeVirt's state.
//!
//! **The target's node.** At the start of a live migration the agent of the source reads the Node object
//! of the target, so the switch does not wait for it. [`crate::plan`] selects the addresses on an
//! uplink's network.
//!
//! **Restarts.** The record has the last state, so the first plan after a start advertises no pod that
//! did not run its virtual machine. It also has the addresses of the target's node. The IPInstances
//! then correct the state.

pub mod decide;
mod task;

pub use task::{MigrationDependencies, follow};
