//! Trunkline's node agent: the daemon of `trunkline agent`, as a library. The crate `cli/` has the
//! operator's commands and makes the binary.

pub mod addresses;
pub mod agent;
pub mod attach;
mod bpf;
pub mod causes;
pub mod change_notifier;
pub mod config;
pub mod drain;
pub mod history;
pub mod ipam;
pub mod kernel;
pub mod link_check;
pub mod mac;
pub mod metrics;
pub mod naming;
pub mod observe;
pub mod packet_path;
pub mod page;
pub mod plan;
pub mod pods;
mod port_owner;
pub mod probe;
pub mod reconcile;
pub mod recover;
pub mod server;
pub mod socket;
pub mod source;
pub mod telemetry;
mod text_kinds;
