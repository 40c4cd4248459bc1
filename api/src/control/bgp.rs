//! The speaker at a glance, and where it listens.

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
    /// This node is about to go, and tells all its peers (RFC 8326).
    #[serde(default)]
    pub graceful_shutdown: bool,
    /// A peer that is down, because of which pods of BGP networks are advertised without NO_EXPORT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disaggregated: Option<String>,
    /// The next hops of pods' default routes, by family.
    #[serde(default)]
    pub ways_out: Vec<DefaultRouteStatus>,
    /// Configured peers.
    pub peers: usize,
    /// Those in state Established.
    pub established: usize,
    /// Families whose first selection after the start is done.
    pub converged: Vec<String>,
    /// Prefixes that dynamic neighbours come from.
    #[serde(default)]
    pub ranges: Vec<PeerRange>,
    /// BMP stations (RFC 7854).
    #[serde(default)]
    pub stations: Vec<BmpStation>,
    /// Where incoming connections are accepted, and where they should be.
    #[serde(default)]
    pub listening: Vec<BgpListener>,
    /// BGP identifiers that two routers have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicate_identifiers: Vec<DuplicateIdentifier>,
    /// Why the speaker does not run, in words: its start is tried again. None: it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// An address where incoming BGP connections are accepted, or should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpListener {
    /// The address.
    pub address: SocketAddr,
    /// Why no connection is accepted there, and what to do. None: connections are accepted. Outgoing sessions need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// For how long no connection has been accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_seconds: Option<u64>,
}

/// A prefix that dynamic neighbours come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRange {
    /// The prefix.
    pub prefix: IpNet,
    /// Their AS number.
    pub remote_as: u32,
    /// How many are there.
    pub peers: u32,
    /// How many may be.
    pub limit: u32,
    /// Connections refused because so many were there.
    pub refused: u64,
    /// Why nobody is accepted from the prefix, in words. None: neighbours are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}
