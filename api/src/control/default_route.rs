//! The next hops of the pods' default routes, and the peers that are not among them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The default route of a BGP network's table in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefaultRouteStatus {
    /// `ipv4-unicast` or `ipv6-unicast`.
    pub family: String,
    /// The table.
    pub table: u32,
    /// Why these are the next hops: `advertised` (their peers advertise a default route), `configured` (no peer advertises one),
    /// `retained` (they are those of before the agent's restart), `imported` (the best paths of the peers with `import`).
    pub basis: String,
    /// The peers that are next hops. See [`super::Peer::name`]. Empty where `basis` is `imported`.
    pub peers: Vec<String>,
    /// The addresses of the next hops that the agent wants in the kernel; with `imported` those that are there.
    pub wanted: Vec<IpAddr>,
    /// The addresses of the next hops in the kernel.
    pub installed: Vec<IpAddr>,
    /// Established peers that are not next hops.
    #[serde(default)]
    pub left_out: Vec<ExcludedPeer>,
}

/// An established peer that is no next hop of pods' packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedPeer {
    /// The peer. See [`super::Peer::name`].
    pub peer: String,
    /// `withdrawn`, `notOffered`, or `pending`: its default route or its End-of-RIB has not come yet.
    pub cause: String,
    /// The same in words, after the peer's name.
    pub reason: String,
}
