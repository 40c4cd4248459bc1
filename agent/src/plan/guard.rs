//! This node's parameters of the guard against pods and foreign tunnels
//! ([`trunkline_datapath::kernel`] has its rules).

use std::collections::BTreeSet;
use std::net::IpAddr;

use trunkline_datapath::plan::{GuardPlan, GuardedTunnel};

use super::GuardSettings;

/// The port of hybridnet and flannel, and the port of IANA (RFC 7348 §5). Tunnels of other programs
/// can be on this node too.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
/// RFC 4271 §8.2.1.
const BGP_PORT: u16 = 179;

/// The guard of a node without an overlay.
pub(super) fn plan(settings: &GuardSettings, vxlan_port: u16) -> GuardPlan {
    GuardPlan {
        enabled: settings.enabled,
        bgp_ports: settings.bgp_ports.iter().copied().chain([BGP_PORT]).collect(),
        vxlan_ports: VXLAN_PORTS.into_iter().chain([vxlan_port]).collect(),
        tunnel: None,
        closes_loopback: false,
    }
}

/// The overlay's tunnels, and the nodes from which their packets may come.
pub(super) fn tunnel(vni: u32, port: u16, vteps: impl Iterator<Item = IpAddr>) -> GuardedTunnel {
    GuardedTunnel { vni, port, vteps: vteps.collect::<BTreeSet<IpAddr>>() }
}
