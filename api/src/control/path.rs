//! The path of a packet from a pod: the kernel's decisions, stage by stage.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Place, RouteKind};

/// The path of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketPath {
    /// The source address: the requested one, or the one that the pod's kernel chooses.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// Each look-up on the way out, in order.
    pub forth: Vec<RouteLookup>,
    /// The end of the path, as text.
    pub end: String,
    /// Whether its source becomes an address of the node when it leaves the node
    /// (`autoNatOutgoing`).
    pub masqueraded: bool,
    /// The look-ups for an answer on this node, if it returns through the interface by which the
    /// packet left. Empty if the answer does not use the node's own routing.
    pub back: Vec<RouteLookup>,
    /// BGP peers to which the source address itself is advertised. See
    /// [`Peer::name`](super::Peer::name).
    pub advertised_to: Vec<String>,
}

/// One look-up: the rules for the packet, and the selected route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteLookup {
    /// The network namespace of the look-up.
    pub place: Place,
    /// The incoming interface; none at the first stage.
    pub interface: Option<String>,
    /// The source at this stage: the path's source, or the source of the tunnel. On the way back it
    /// is the path's destination.
    pub source: Option<IpAddr>,
    /// The destination at this stage.
    pub destination: IpAddr,
    /// The rules up to the deciding one, in the kernel's order.
    pub rules: Vec<PathRule>,
    /// The route; none if the kernel refuses.
    pub route: Option<PathRoute>,
    /// The reason for which the packet goes no further, as text.
    pub refused: Option<String>,
}

/// A rule, and its result for the packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRule {
    /// Its preference.
    pub priority: u32,
    /// The rule as `ip rule` prints it.
    pub rule: String,
    /// `decides`; `no route`: the rule matches, and its table has no route; `for it`: the rule
    /// matches, and has no table; `not for it`: the rule does not match the packet; `unknown`: the
    /// rule has further conditions than addresses and interface.
    pub standing: String,
}

/// The selected route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRoute {
    /// The destination prefix.
    pub prefix: IpNet,
    /// Its table.
    pub table: u32,
    /// The type of the route.
    pub kind: RouteKind,
    /// Its next hops; several are ECMP.
    pub hops: Vec<PathHop>,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathHop {
    /// The router; none if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub interface: String,
    /// The kind of interface, unless it is a plain link: `VLAN 10 of eth0`.
    pub link: Option<String>,
    /// The pod at its other end.
    pub pod: Option<String>,
    /// Its MTU, in octets.
    pub mtu: u32,
    /// Link-layer address of the gateway, or of the destination; none while it is unknown.
    pub mac: Option<String>,
    /// State of that neighbour entry, in the kernel's terms; none if there is no entry.
    pub neighbour: Option<String>,
    /// Whether the kernel selects this hop for this pair of addresses. If
    /// `fib_multipath_hash_policy` includes ports, other connections may use other hops.
    pub taken: bool,
}
