//! Trunkline's node agent: what `trunkline agent` runs and what the operator's commands ask it.

pub mod addresses;
pub mod agent;
pub mod attach;
pub mod bell;
mod bpf;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod drain;
pub mod history;
pub mod hybridnet;
pub mod install;
pub mod ipam;
pub mod kernel;
pub mod metrics;
pub mod observe;
pub mod page;
pub mod plan;
pub mod pods;
pub mod reconcile;
pub mod recover;
pub mod server;
pub mod socket;
pub mod source;
pub mod telemetry;
pub mod walk;
pub mod wire;
