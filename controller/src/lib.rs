//! `trunkline-controller`: what a cluster decides in one place.
