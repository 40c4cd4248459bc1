//! `trunkline-controller`: what a cluster decides in one place.

pub mod queue;
