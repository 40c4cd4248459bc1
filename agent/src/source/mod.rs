//! Where networks and subnets come from: a folder of manifests, or watches of a Kubernetes API server ([`kube`]).
//!
//! A source yields whole [`Snapshot`](crate::plan::intent::Snapshot)s, never single edits, so that nothing downstream sees a network without its
//! subnets, and nothing downstream knows which source it was. A folder with a fault in it yields [`SnapshotRefusal`](crate::plan::intent::SnapshotRefusal): every fault with its file, and
//! the snapshot before stays in force.

pub mod folder;
pub mod kube;
pub mod watch;
