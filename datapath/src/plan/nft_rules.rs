//! What the nftables tables of the agent hold: NAT, the guard, marks of translated connections, alternate paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

/// Masquerading of what leaves the subnets that ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatRules {
    /// Subnets with `autoNatOutgoing`.
    pub sources: BTreeSet<IpNet>,
    /// Every known subnet: traffic to these keeps its source.
    pub inside: BTreeSet<IpNet>,
    /// Subnets of pods with an IPVLAN slave, where Services are: the way back of what was translated must lead by the host too.
    pub slaves: BTreeSet<IpNet>,
}

impl NatRules {
    /// Whether there is nothing to translate: `inside` matters only beside the rest.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let NatRules { sources, inside: _, slaves } = self;
        sources.is_empty() && slaves.is_empty()
    }
}

/// The rules against what pods and foreign tunnels may not send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardPlan {
    /// In force; otherwise there are no rules.
    pub enabled: bool,
    /// TCP ports of the node that are closed to pods.
    pub bgp_ports: BTreeSet<u16>,
    /// UDP ports of tunnels on the node that are closed to pods.
    pub vxlan_ports: BTreeSet<u16>,
    /// The overlay's tunnels, where the node has one.
    pub tunnel: Option<GuardedTunnel>,
}

/// From where tunnels of an overlay are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedTunnel {
    /// The VNI, 24 bits.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// The addresses of the other nodes' ends.
    pub vteps: BTreeSet<IpAddr>,
}

/// How packets of translated connections are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranslatedRules {
    /// The rules are loaded in any case: the node is in a cluster, has prefixes of Services or networks with `hairpin`, or masquerades.
    /// Otherwise they are loaded once somebody has a NAT chain.
    pub always: bool,
    /// Prefixes of all known Subnets.
    pub pods: BTreeSet<IpNet>,
    /// The numbers of the links that have a return table, by name.
    pub links: BTreeMap<String, u32>,
    /// Translated packets in both directions get the mark `TRANSLATED`: for networks with `hairpin`.
    pub hairpin: bool,
}

impl TranslatedRules {
    /// Whether there is no pod that a connection could be translated to.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// What may take an alternate path, and between which links.
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

/// What is counted and dropped on its way to the device [`SINK_NAME`](super::SINK_NAME).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnassignedRules {
    /// The Subnets that are counted, each by itself.
    pub subnets: BTreeSet<IpNet>,
}

impl UnassignedRules {
    /// Whether nothing is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subnets.is_empty()
    }
}

/// The first 32 bits of what a probe carries. The kernel drops what comes back with them: no pod receives a probe.
pub const PROBE_MAGIC: u32 = 0x746c_7072;
/// UDP destination port of probes that a router returns.
pub const PROBE_PORT: u16 = 33_434;
/// Identifier of echo requests.
pub const PROBE_ECHO: u16 = 0x7470;
