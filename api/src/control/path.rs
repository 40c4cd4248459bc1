//! The walk of a packet from a pod: what the kernel says it would do with it, stage by stage.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The walk of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// The address that it is from: the one that was asked for, or the one that the pod's kernel chooses.
    pub source: Option<IpAddr>,
    /// Where it goes.
    pub destination: IpAddr,
    /// Each look-up on its way, in order.
    pub forth: Vec<Stage>,
    /// Where that ends, in words.
    pub end: String,
    /// Its source becomes an address of the node when it leaves that (`autoNatOutgoing`).
    pub masqueraded: bool,
    /// The look-ups of an answer on this node, where it comes back by the interface that the packet left by; empty where it does not
    /// come through the node's own routing.
    pub back: Vec<Stage>,
    /// BGP peers that are told of the source address itself. See [`Peer::name`](super::Peer::name).
    pub advertised_to: Vec<String>,
}

/// One look-up: the rules that the packet goes through, and the route that it meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// `pod` or `node`.
    pub place: String,
    /// The interface that it came in by; none where it begins.
    pub interface: Option<String>,
    /// Its source here: that of the walk, or of the tunnel that carries it, or on the way back the walk's destination.
    pub source: Option<IpAddr>,
    /// Its destination here.
    pub destination: IpAddr,
    /// The rules up to the one that decides, in the kernel's order.
    pub rules: Vec<WalkRule>,
    /// The route; none if the kernel refuses.
    pub route: Option<WalkRoute>,
    /// Why it goes no further, in words.
    pub refused: Option<String>,
}

/// A rule, and what it means for the packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkRule {
    /// Its preference.
    pub priority: u32,
    /// As `ip rule` writes it.
    pub rule: String,
    /// `decides`; `no route`: it is for the packet, and nothing in its table is; `not for it`; `unknown`: it asks for more than addresses and
    /// interface.
    pub standing: String,
}

/// A route that the packet meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkRoute {
    /// What it covers.
    pub prefix: IpNet,
    /// The table that it is in.
    pub table: u32,
    /// `unicast`, `local`, `blackhole`, …
    pub kind: String,
    /// Where it leads; several are ECMP.
    pub hops: Vec<WalkHop>,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkHop {
    /// The router; none where the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub interface: String,
    /// What that is, where it is not a plain link: `VLAN 10 of eth0`.
    pub link: Option<String>,
    /// The pod at its other end.
    pub pod: Option<String>,
    /// Its MTU, in octets.
    pub mtu: u32,
    /// Link-layer address of the gateway, or of the destination; none while it is not known.
    pub mac: Option<String>,
    /// State of that neighbour entry, in the kernel's word; none where there is no entry.
    pub neighbour: Option<String>,
    /// Of several, the one that the kernel takes for this pair of addresses. Where `fib_multipath_hash_policy` looks at ports too,
    /// other connections take others.
    pub taken: bool,
}
