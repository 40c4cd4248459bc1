//! Probes: packets through each router. They find faults that no session shows, such as an MTU
//! hole, a router without the pods' routes, or loss in one direction. `docs/probes.md` has the
//! reasons.
//!
//! ```text
//!  reconcile task ──plan: routers, targets──►┌───────────────┐──frames──► packet sockets, one per uplink and family
//!                 ──pods that are advertised►│ task, a round │◄─returned probes──┘ (filter: this run's cookie)
//!                 ◄─peers to be excluded─────│ each 5 s      │──events──► history
//!                                            └───────────────┘──status──► observer, metrics
//! ```
//!
//! - `packet`: the frames.
//! - `socket`: the sockets.
//! - `state`: one check.
//! - `schedule`: the packets of a round and the results.
//! - `faults`: the names of faults.
//! - `task`: the clock and the I/O.
//! - `identifiers`: duplicate BGP identifiers.
//!
//! **No pod receives or answers a probe.** A router returns a probe to this node. The packet socket
//! receives it before the kernel drops it ([`trunkline_datapath::kernel`], table `netdev
//! trunkline-probes`). Its TTL is enough for one router only, so other nodes drop it too.

mod faults;
pub mod identifiers;
mod packet;
mod schedule;
mod socket;
mod state;
mod task;
#[cfg(test)]
mod tests;

pub use schedule::Settings;
pub use task::{Probes, spawn};
