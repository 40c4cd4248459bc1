//! The speaker's summary, and its listening addresses.

use std::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{BmpStation, DefaultRouteStatus, DuplicateIdentifier};

/// The speaker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpStatus {
    /// The AS of this node.
    pub local_as: u32,
    /// The BGP identifier.
    pub router_id: Ipv4Addr,
    /// The node announces to all peers that it will shut down (RFC 8326).
    #[serde(default)]
    pub graceful_shutdown: bool,
    /// The lost peer. Because of it, this node advertises pods of BGP networks without NO_EXPORT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disaggregated: Option<String>,
    /// The next hops of pods' default routes, by family.
    #[serde(default)]
    pub ways_out: Vec<DefaultRouteStatus>,
    /// Configured peers.
    pub peers: usize,
    /// Peers in state Established.
    pub established: usize,
    /// Families whose first selection after the start is done.
    pub converged: Vec<String>,
    /// Prefixes of dynamic neighbours.
    #[serde(default)]
    pub ranges: Vec<PeerRange>,
    /// BMP stations (RFC 7854).
    #[serde(default)]
    pub stations: Vec<BmpStation>,
    /// Addresses for incoming connections, bound or not.
    #[serde(default)]
    pub listening: Vec<BgpListener>,
    /// BGP identifiers of more than one router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicate_identifiers: Vec<DuplicateIdentifier>,
    /// The reason why the speaker does not run, as text; its start is tried again. None: it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// An address for incoming BGP connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpListener {
    /// The address.
    pub address: SocketAddr,
    /// The reason why no connection is accepted there, with the fix. None: connections are
    /// accepted. Outgoing sessions need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Time without accepted connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_seconds: Option<u64>,
}

/// A prefix of dynamic neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRange {
    /// The prefix.
    pub prefix: IpNet,
    /// The AS number of the neighbours.
    pub remote_as: u32,
    /// The number of neighbours.
    pub peers: u32,
    /// The highest number of neighbours.
    pub limit: u32,
    /// Connections rejected because of the limit.
    pub refused: u64,
    /// The reason why no neighbour of the prefix is accepted, as text. None: neighbours are
    /// accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}
