//! This node's parameters of the guard against pods and foreign tunnels
//! ([`trunkline_datapath::kernel`] has its rules).

use std::collections::BTreeSet;
use std::net::IpAddr;

use trunkline_api::resources::{Network, Vtep};
use trunkline_datapath::plan::{GuardPlan, GuardedOverlay, GuardedTunnel};

use super::Intent;
use super::types::BgpPlan;

/// The port of hybridnet and flannel, and the port of IANA (RFC 7348 §5). Tunnels of other programs
/// can be on this node too.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
/// RFC 4271 §8.2.1.
const BGP_PORT: u16 = 179;

/// The guard of a node without tunnels. `overlay`: the overlay of this node, which the guard knows
/// before the node can have tunnels. Only a node in a cluster has network policies, and tracks
/// connections in any case.
pub(super) fn plan(intent: &Intent, overlay: Option<&Network>) -> GuardPlan {
    let (settings, vxlan_port) = (&intent.guard, intent.tunnels.port);
    GuardPlan {
        enabled: settings.enabled,
        bgp_ports: settings.bgp_ports.iter().copied().chain([BGP_PORT]).collect(),
        vxlan_ports: VXLAN_PORTS.into_iter().chain([vxlan_port]).collect(),
        overlay: overlay.map(|network| packets(network, vxlan_port)),
        tunnel: None,
        nodes: BTreeSet::new(),
        peers: BTreeSet::new(),
        neighbours: BTreeSet::new(),
        own_servers: settings.own_servers.clone(),
        peer_ports: [BGP_PORT].into(),
        keeps_own: intent.in_cluster,
        checks_errors: intent.in_cluster,
        closes_loopback: false,
    }
}

/// Adds the peers of this node.
pub(super) fn add_peers(guard: &mut GuardPlan, bgp: &BgpPlan) {
    guard.peers = bgp.peers.values().map(|peer| peer.address).collect();
    guard.peer_ports.extend(bgp.peers.values().map(|peer| peer.port));
    guard.neighbours = bgp.ranges.keys().copied().collect();
}

/// The packets of an overlay.
fn packets(overlay: &Network, port: u16) -> GuardedOverlay {
    GuardedOverlay { vni: overlay.spec.net_id.unwrap_or_default(), port }
}

/// The overlay's tunnels, and the nodes from which their packets may come.
pub(super) fn tunnel(
    overlay: &Network,
    port: u16,
    local: IpAddr,
    vteps: impl Iterator<Item = IpAddr>,
) -> GuardedTunnel {
    GuardedTunnel { overlay: packets(overlay, port), local, vteps: vteps.collect() }
}

/// The addresses of nodes with these VTEPs.
pub(super) fn addresses(vteps: impl Iterator<Item = Vtep>) -> BTreeSet<IpAddr> {
    vteps.flat_map(|vtep| vtep.local.into_iter().chain([vtep.ip])).collect()
}
