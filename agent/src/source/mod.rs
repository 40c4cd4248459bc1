//! Where networks and subnets come from: here, a folder of manifests; with Kubernetes, watches of the API server.
//!
//! A source yields whole [`Snapshot`]s, never single edits, so that nothing downstream sees a network without its
//! subnets. A folder with a fault in it yields [`Refused`]: every fault with its file, and the snapshot before stays
//! in force.

pub mod folder;
pub mod watch;

use std::fmt;
use std::path::PathBuf;

use trunkline_api::resources::{Network, NodeInfo, Subnet};

/// Everything that is wanted, consistent in itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The networks by name; of each peer with a `passwordFile` the key stands in `password`.
    pub networks: Vec<Network>,
    /// The subnets by name.
    pub subnets: Vec<Subnet>,
    /// The nodes of the overlay by name.
    pub nodes: Vec<NodeInfo>,
    /// Files outside the folder that were read for it.
    pub files: Vec<PathBuf>,
}

/// A folder that is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// Each fault, with file, resource, field and fix. Never empty.
    pub faults: Vec<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.faults.join("; "))
    }
}
