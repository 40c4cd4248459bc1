//! The sources of networks and subnets: a folder of manifests, or watches of a Kubernetes API
//! server ([`kube`]).
//!
//! A source produces whole [`Snapshot`](crate::plan::intent::Snapshot)s and never single edits. So
//! no consumer sees a network without its subnets, and no consumer depends on the kind of source.
//! Network policies are no part of it: they go to the policy task ([`policies`], `kube::policies`). A
//! faulty folder produces a [`SnapshotRefusal`](crate::plan::intent::SnapshotRefusal) with every
//! fault and its file, and the previous snapshot stays in force.

pub mod folder;
pub mod kube;
pub mod policies;
pub mod remote;
pub mod watch;
