//! `trunkline-controller`: what a cluster decides in one place.

pub mod cluster;
pub mod ipam;
pub mod leader;
pub mod queue;
pub mod reconcile;
pub mod selection;
pub mod watch;
pub mod webhook;
