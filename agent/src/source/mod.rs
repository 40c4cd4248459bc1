//! Where networks and subnets come from: a folder of manifests, or watches of a Kubernetes API server ([`kube`]).
//!
//! A source yields whole [`Snapshot`]s, never single edits, so that nothing downstream sees a network without its
//! subnets, and nothing downstream knows which source it was. A folder with a fault in it yields [`SnapshotRefusal`]: every fault with its file, and
//! the snapshot before stays in force.

pub mod folder;
pub mod kube;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use trunkline_api::resources::{Network, NodeInfo, Subnet};

/// Everything that is wanted, consistent in itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// This node's labels, which say what networks it is in.
    pub labels: BTreeMap<String, String>,
    /// The networks by name; of each peer with a `passwordFile` the key stands in `password`.
    pub networks: Vec<Network>,
    /// The subnets by name.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay by name.
    pub nodes: Vec<NodeInfo>,
    /// Where the overlay's pods are that run on other nodes, if that is known of each; `None`: the nodes have blocks, which stand in
    /// their NodeInfos.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// Files outside the folder that were read for it.
    pub files: Vec<PathBuf>,
}

/// Addresses of the overlay's pods, by the node that they run on.
pub type OverlayPods = BTreeMap<String, BTreeSet<IpAddr>>;

/// A snapshot that is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SnapshotRefusal {
    /// Each fault, with file (or the API server's object), resource, field and fix. Never empty.
    pub faults: Vec<String>,
}

impl fmt::Display for SnapshotRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.faults.join("; "))
    }
}
