//! Trunkline's node agent: the daemon of `trunkline agent`, as a library. The crate `cli/` has the
//! operator's commands and builds the binary.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod agent;
pub mod causes;
pub mod change_notifier;
pub mod config;
pub mod drain;
pub mod family;
pub mod fault_log;
pub mod history;
pub mod ipam;
pub mod metrics;
pub mod migration;
pub mod netpolicy;
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
pub mod services;
pub mod settings;
pub mod socket;
pub mod source;
pub mod telemetry;
mod text_kinds;
