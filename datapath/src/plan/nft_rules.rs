//! Contents of the agent's nftables tables: NAT, the guard, marks of translated connections,
//! alternate paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Masquerading of packets that leave the subnets with this setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatRules {
    /// Subnets with `autoNatOutgoing`.
    pub sources: BTreeSet<IpNet>,
    /// All known subnets: packets to these keep their source.
    pub inside: BTreeSet<IpNet>,
    /// Subnets of pods with an IPVLAN slave, if there are Services. The packets of these pods are
    /// masqueraded when their connections are translated, so replies pass the host too.
    pub slaves: BTreeSet<IpNet>,
}

impl NatRules {
    /// Whether nothing is translated. `inside` alone needs no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let NatRules { sources, inside: _, slaves } = self;
        sources.is_empty() && slaves.is_empty()
    }
}

/// The rules against packets that pods and foreign tunnels may not send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardPlan {
    /// Whether the guard is enabled; otherwise there are no rules.
    pub enabled: bool,
    /// TCP ports of the node that are closed to pods.
    pub bgp_ports: BTreeSet<u16>,
    /// UDP ports of tunnels on the node that are closed to pods.
    pub vxlan_ports: BTreeSet<u16>,
    /// The overlay of this node. Its packets are never forwarded, also while the node has no
    /// tunnels.
    pub overlay: Option<GuardedOverlay>,
    /// The overlay's tunnels, if the node has tunnels.
    pub tunnel: Option<GuardedTunnel>,
    /// Addresses of the other nodes with a VTEP: their ports for BGP and BFD are closed to pods, and
    /// to packets that this node translates.
    pub nodes: BTreeSet<IpAddr>,
    /// Addresses of this node's BGP peers: packets of pods and hosts that get the address of this node by
    /// a translation do not reach their ports for BGP and BFD.
    pub peers: BTreeSet<IpAddr>,
    /// Prefixes of dynamic neighbours, which are peers too.
    pub neighbours: BTreeSet<IpNet>,
    /// The TCP ports of the peers.
    pub peer_ports: BTreeSet<u16>,
    /// Servers on this node's loopback that this agent asks: no other program translates its packets to
    /// them.
    pub own_servers: BTreeSet<SocketAddr>,
    /// Whether no other program may translate the node's own packets of BGP, BFD and tunnels. The rules
    /// need connection tracking.
    pub keeps_own: bool,
    /// Whether ICMP errors of pods must be about their own connections. The check needs connection
    /// tracking.
    pub checks_errors: bool,
    /// Whether packets that pods send to 127.0.0.0/8 are dropped. The kernel itself drops them,
    /// unless `route_localnet` is on.
    pub closes_loopback: bool,
}

/// The packets of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedOverlay {
    /// The VNI, 24 bits.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
}

/// The accepted tunnels of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedTunnel {
    /// The packets of the tunnels.
    pub overlay: GuardedOverlay,
    /// The address of this node's VTEP.
    pub local: IpAddr,
    /// Addresses of the VTEPs of the other nodes.
    pub vteps: BTreeSet<IpAddr>,
}

/// The marks of packets of translated connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranslatedRules {
    /// Whether the rules are loaded in any case, because the node is in a cluster, has prefixes of
    /// Services or networks with `hairpin`, or masquerades. Otherwise the rules are loaded only
    /// after another program has created a NAT chain.
    pub always: bool,
    /// Prefixes of all known Subnets.
    pub pods: BTreeSet<IpNet>,
    /// The numbers of the links that have a return table, by name.
    pub links: BTreeMap<String, u32>,
    /// Packets of translated connections get the mark `TRANSLATED` in both directions: for networks
    /// with `hairpin`.
    pub hairpin: bool,
}

impl TranslatedRules {
    /// Whether no pod can be the destination of a translated connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// The Subnets and uplinks of alternate paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlternateRules {
    /// Names of the uplinks.
    pub uplinks: BTreeSet<String>,
    /// Subnets that this node advertises. The pods of a Subnet may be on other nodes.
    pub attracted: BTreeSet<IpNet>,
}

impl AlternateRules {
    /// Whether there is no alternate path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.uplinks.is_empty()
    }
}

/// The counters of packets that are routed to the device [`SINK_NAME`](super::SINK_NAME) and
/// dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnassignedRules {
    /// The Subnets, each with its own counter.
    pub subnets: BTreeSet<IpNet>,
}

impl UnassignedRules {
    /// Whether no packet is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subnets.is_empty()
    }
}

/// The first 32 bits of a probe's payload. The kernel drops returned packets with them, so no pod
/// receives a probe.
pub const PROBE_MAGIC: u32 = 0x746c_7072;
/// UDP destination port of probes that a router returns.
pub const PROBE_PORT: u16 = 33_434;
/// Identifier of echo requests.
pub const PROBE_ECHO: u16 = 0x7470;
