//! Probes: packets by each router that find what no session shows, such as an MTU hole, a router without the pods' routes, or loss in one
//! direction. `docs/probes.md` has the reasons.
//!
//! ```text
//!  reconcile task ──plan: routers, targets──►┌───────────────┐──frames──► packet sockets, one an uplink and family
//!                 ──pods that are advertised►│ task, a round │◄─what comes back──┘ (filter: this run's cookie)
//!                 ◄─peers to be left out─────│ each 5 s      │──events──► history
//!                                            └───────────────┘──status──► observer, metrics
//! ```
//!
//! - `packet`: the frames. `socket`: the sockets. `state`: one check. `schedule`: what is sent, and what follows. `faults`: what it is
//!   called. `task`: the clock and the I/O. `identifiers`: BGP identifiers that two routers have.
//!
//! **No pod receives a probe, and none answers one.** A router returns a probe to this node, where the packet socket has it before the
//! kernel drops it ([`trunkline_datapath::kernel`], table `netdev trunkline-probes`). Its TTL ends with the router, so that other nodes drop it too.

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
