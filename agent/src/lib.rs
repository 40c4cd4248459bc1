//! Trunkline's node agent: what `trunkline agent` runs and what the operator's commands ask it.

pub mod config;
pub mod ipam;
pub mod panics;
pub mod plan;
