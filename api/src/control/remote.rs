//! Remote clusters on a node.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A remote cluster: the parts that the agent accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteClusterStatus {
    /// Its name: the name of the RemoteCluster.
    pub name: String,
    /// Its subnets.
    pub subnets: Vec<RemoteSubnetStatus>,
    /// Number of its VTEPs.
    pub vteps: u32,
    /// Number of its pods' addresses that VTEPs list.
    pub endpoints: u32,
    /// Numbers of parts that the agent ignores.
    pub ignored: IgnoredParts,
    /// The reasons, not more than 20.
    pub faults: Vec<String>,
}

/// A subnet of a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteSubnetStatus {
    /// The name of the RemoteSubnet.
    pub name: String,
    /// Its prefix.
    pub prefix: IpNet,
    /// Whether its Network is an overlay.
    pub overlay: bool,
}

/// Numbers of parts of a remote cluster that the agent ignores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IgnoredParts {
    /// RemoteSubnets.
    pub subnets: u32,
    /// RemoteVteps.
    pub vteps: u32,
    /// Local addresses of RemoteVteps.
    pub addresses: u32,
    /// Endpoints of RemoteVteps.
    pub endpoints: u32,
}
