//! The addresses that other nodes of this cluster claim in their NodeInfos: which of them this node
//! accepts.
//!
//! Packets of overlay pods to such an address go into the tunnel to the claiming node. A
//! compromised node writes its own NodeInfo, and its kubelet writes the addresses and annotations
//! of its Node, with which the webhook compares the NodeInfo. So each agent checks the claims
//! against facts that no node can write:
//!
//! | claim | ignored if |
//! |---|---|
//! | `ip` | it is no unicast address, an address of this node, the gateway of a Subnet or of this host's default route, or the VTEP of an older NodeInfo; pods or Services can have it; it is in an overlay Subnet's prefix, or outside of `nodeAddressCIDRs`; no tunnel of this node reaches its family |
//! | `mac` | it belongs to this node or to an older NodeInfo |
//! | entry of `localIPs` | as for `ip`; also a BGP peer; another NodeInfo lists it too; without `nodeAddressCIDRs`: it is in no connected prefix of this node's uplinks |
//!
//! A claim of `ip` cannot attract packets: they are sent to this very address, inside of the
//! tunnel's packets. So without `nodeAddressCIDRs` it may be in any prefix, because nodes of other
//! racks are in other prefixes, and it may be a BGP peer, because a route reflector can be a node.
//! An ignored `ip` or `mac` leaves out the node, an ignored entry of `localIPs` only this address.
//! Older NodeInfos have precedence, and `ip` before `localIPs`. No node can write the age. An entry
//! of two nodes' `localIPs` belongs to neither: the packets stay outside of the tunnels, so nobody
//! attracts them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::kept;
use trunkline_api::resources::{AddressBlock, NetworkMode, NodeInfo, Vtep};
use trunkline_datapath::mac::show_mac;

use super::remote::{PodRange, is_broadcast, is_unicast};
use super::reserved::Reserved;
use super::{Host, Intent, vxlan};

/// Maximum number of faults in the plan, each of one node and field. All are counted.
const FAULTS: usize = 20;

/// Octets of the text of such a fault.
const FAULT_TEXT: usize = 900;

/// The ignored claims of other nodes, for the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredClaims {
    /// Number of ignored VTEPs.
    pub vteps: u32,
    /// Number of ignored entries of `localIPs`.
    pub addresses: u32,
    /// The reasons, at most `FAULTS`.
    pub faults: Vec<IgnoredField>,
}

/// The ignored claims in one field of a NodeInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredField {
    /// The node.
    pub node: String,
    /// The field in `spec.vtepInfo`.
    pub field: &'static str,
    /// The reasons; beyond a bound, the number of the others.
    pub text: String,
}

impl fmt::Display for IgnoredField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeInfo {}: spec.vtepInfo.{}: {}", self.node, self.field, self.text)
    }
}

/// The accepted VTEPs of other nodes.
#[derive(Default)]
pub(super) struct AcceptedNodes {
    vteps: BTreeMap<String, Vtep>,
    /// Addresses in `localIPs` of several nodes. Remote clusters cannot have them either.
    shared: BTreeSet<IpAddr>,
    pub(super) ignored: IgnoredClaims,
}

impl AcceptedNodes {
    /// The VTEP of a node, with the accepted local addresses.
    pub(super) fn vtep(&self, node: &str) -> Option<&Vtep> {
        self.vteps.get(node)
    }

    /// Addresses that several nodes list, and that belong to none of them.
    pub(super) fn shared(&self) -> impl Iterator<Item = IpAddr> {
        self.shared.iter().copied()
    }

    /// The nodes with their VTEPs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Vtep)> {
        self.vteps.iter()
    }
}

/// The reason for which a claim is ignored.
#[derive(Debug, thiserror::Error)]
enum ClaimFault {
    #[error("{0} is no unicast address that hosts of the fabric can have: write an address of the node")]
    NoUnicast(IpAddr),
    #[error("{address} belongs to {owner}: write an address of the node")]
    Taken { address: IpAddr, owner: String },
    #[error(
        "{address} is in localIPs of {other} too, so it belongs to neither: remove it from one of both NodeInfos"
    )]
    Shared { address: IpAddr, other: String },
    #[error("{address} is {owner}: write an address of the node")]
    Router { address: IpAddr, owner: String },
    #[error(
        "{address} is in {owner}: give the node another address, or exclude this one (excludeIPs, exclude)"
    )]
    Inside { address: IpAddr, owner: String },
    #[error(
        "{0} is outside of nodeAddressCIDRs: add its prefix in agent.yaml of all nodes if it is the node's"
    )]
    Limit(IpAddr),
    #[error(
        "{0} is in no connected prefix of this node's uplinks: write the prefixes of all nodes into nodeAddressCIDRs of \
         agent.yaml if it is the node's"
    )]
    NotConnected(IpAddr),
    #[error(
        "{address} is in {prefix} of {owner}, which is inside the tunnels: write an address of the node's links"
    )]
    Overlay { address: IpAddr, prefix: IpNet, owner: String },
    #[error(
        "{address} cannot be reached from {own}, this node's VTEP: write addresses of one family for all nodes"
    )]
    Family { address: IpAddr, own: IpAddr },
    #[error("{mac} belongs to {owner}: write a MAC that no other VTEP has")]
    Mac { mac: String, owner: String },
}

/// The facts against which claims are checked.
struct Facts<'a> {
    /// `nodeAddressCIDRs`; empty: not configured.
    limits: &'a [IpNet],
    /// The address of this node's tunnels, if it has any.
    local: Option<IpAddr>,
    connected: Vec<IpNet>,
    /// Prefixes of overlay Subnets.
    overlays: Vec<(IpNet, String)>,
    gateways: BTreeMap<IpAddr, String>,
    peers: BTreeMap<IpAddr, String>,
    pods: Vec<(PodRange, String)>,
    /// `serviceCIDRs` and AnycastAddresses.
    services: Vec<(IpNet, String)>,
    blocks: Vec<(AddressBlock, String)>,
    /// Addresses with an owner.
    addresses: HashMap<IpAddr, String>,
    macs: HashMap<[u8; 6], String>,
}

/// Checks the NodeInfos of all other nodes. In files the operator writes them, and nodes and pods may
/// share a prefix: Subnets, pools and BGP peers do not count there.
pub(super) fn accept(intent: &Intent, host: &Host) -> AcceptedNodes {
    let mut accepted = AcceptedNodes::default();
    let others = intent.nodes.iter().filter(|node| node.name() != intent.node.name);
    let mut nodes: Vec<(&NodeInfo, Vtep)> =
        others.filter_map(|node| Some((node, node.vtep().ok().flatten()?))).collect();
    if nodes.is_empty() {
        return accepted;
    }
    // A version from the cache of an older agent has no time: it has precedence over none.
    let created = |node: &NodeInfo| node.metadata.creation_timestamp.clone();
    nodes.sort_by_cached_key(|(node, _)| (created(node).is_none(), created(node), node.name().to_owned()));
    let mut facts = Facts::of(intent, host);
    nodes.retain(|(node, vtep)| match facts.claim_vtep(vtep, node.name()) {
        Ok(()) => true,
        Err((field, fault)) => {
            accepted.ignored.vteps += 1;
            accepted.ignored.report(node.name(), field, &[fault]);
            false
        }
    });
    let lists = Lists::of(&nodes);
    for (node, mut vtep) in nodes {
        let (ip, name, mut faults) = (vtep.ip, node.name(), Vec::new());
        vtep.local.retain(|address| {
            let address = *address;
            if address == ip {
                return true;
            }
            let fault = match (facts.check_local(address), lists.other(address, name)) {
                (Ok(()), None) => return true,
                (Ok(()), Some(other)) => {
                    accepted.shared.insert(address);
                    ClaimFault::Shared { address, other: owner(other) }
                }
                (Err(fault), _) => fault,
            };
            faults.push(fault);
            false
        });
        accepted.ignored.addresses += u32::try_from(faults.len()).unwrap_or(u32::MAX);
        accepted.ignored.report(name, "localIPs", &faults);
        accepted.vteps.insert(name.to_owned(), vtep);
    }
    accepted
}

/// The first two nodes that list an address in `localIPs`.
struct Lists<'a>(HashMap<IpAddr, (&'a str, Option<&'a str>)>);

impl<'a> Lists<'a> {
    fn of(nodes: &[(&'a NodeInfo, Vtep)]) -> Lists<'a> {
        let mut lists: HashMap<IpAddr, (&str, Option<&str>)> = HashMap::new();
        for (node, vtep) in nodes {
            for address in vtep.local.iter().filter(|address| **address != vtep.ip) {
                let known = lists.entry(*address);
                known
                    .and_modify(|(_, second)| *second = second.or(Some(node.name())))
                    .or_insert((node.name(), None));
            }
        }
        Lists(lists)
    }

    /// Another node with this address in `localIPs`.
    fn other(&self, address: IpAddr, node: &str) -> Option<&'a str> {
        let (first, second) = self.0.get(&address)?;
        if *first == node { *second } else { Some(first) }
    }
}

impl IgnoredClaims {
    fn report(&mut self, node: &str, field: &'static str, faults: &[ClaimFault]) {
        if faults.is_empty() || self.faults.len() >= FAULTS {
            return;
        }
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let text = kept::join(&texts, FAULT_TEXT);
        self.faults.push(IgnoredField { node: node.to_owned(), field, text });
    }
}

fn owner(node: &str) -> String {
    format!("node {node}")
}

impl<'a> Facts<'a> {
    fn of(intent: &'a Intent, host: &Host) -> Facts<'a> {
        let mut facts = Facts {
            limits: &intent.tunnels.node_prefixes,
            local: vxlan::local(intent, host),
            connected: connected(intent, host),
            overlays: Vec::new(),
            gateways: BTreeMap::new(),
            peers: BTreeMap::new(),
            pods: Vec::new(),
            services: Vec::new(),
            blocks: Vec::new(),
            addresses: HashMap::new(),
            macs: HashMap::new(),
        };
        let mut reserved = Reserved::of(intent, host);
        facts.gateways.extend(std::mem::take(&mut reserved.routers));
        for subnet in &intent.subnets {
            let Ok(range) = subnet.spec.range.parse() else { continue };
            let owner = format!("the gateway of Subnet {}", subnet.name());
            facts.gateways.extend(range.gateway.map(|gateway| (gateway, owner)));
        }
        if intent.in_cluster {
            facts.add_cluster(intent, reserved);
        }
        let own = owner(&intent.node.name);
        if let Some(vtep) = intent.own_info().and_then(|node| node.vtep().ok().flatten()) {
            facts.macs.insert(vtep.mac, own.clone());
            facts.addresses.insert(vtep.ip, own.clone());
        }
        for link in host.kernel.links.iter().filter(|link| !link.own) {
            for address in link.addresses.iter().map(IpNet::addr) {
                // A link of other programs can have the address of another node, such as kube-ipvs0.
                facts.addresses.insert(address, format!("{own}, link {}", link.name));
                facts.macs.insert(Vtep::default_mac(address), own.clone());
            }
        }
        facts
    }

    /// The owners of addresses that no node of a cluster can have. The API server can be a node.
    fn add_cluster(&mut self, intent: &Intent, reserved: Reserved) {
        self.peers.extend(reserved.peers);
        self.blocks.extend(reserved.blocks);
        let anycast = reserved.anycast.into_iter();
        self.services.extend(anycast.map(|(address, owner)| (IpNet::from(address), owner)));
        let is_overlay = |name: &str| {
            let network = intent.networks.iter().find(|network| network.name() == name);
            network.is_some_and(|network| network.mode() == NetworkMode::VXLAN)
        };
        for subnet in &intent.subnets {
            let Ok(range) = subnet.spec.range.parse() else { continue };
            if is_overlay(&subnet.spec.network) {
                self.overlays.push((range.cidr, format!("Subnet {}", subnet.name())));
            }
            let pods = PodRange::of_this_cluster(subnet, intent);
            self.pods.extend(pods.map(|pods| (pods, format!("Subnet {}", subnet.name()))));
        }
        let of_services = |prefix: &IpNet| (*prefix, "serviceCIDRs".to_owned());
        self.services.extend(intent.service_cidrs.iter().map(of_services));
    }

    fn claim_vtep(&mut self, vtep: &Vtep, node: &str) -> Result<(), (&'static str, ClaimFault)> {
        if let Some(own) = self.local.filter(|own| own.is_ipv4() != vtep.ip.is_ipv4()) {
            return Err(("ip", ClaimFault::Family { address: vtep.ip, own }));
        }
        self.check(vtep.ip).map_err(|fault| ("ip", fault))?;
        if let Some(other) = self.macs.get(&vtep.mac) {
            return Err(("mac", ClaimFault::Mac { mac: show_mac(&vtep.mac), owner: other.clone() }));
        }
        self.addresses.insert(vtep.ip, owner(node));
        self.macs.insert(vtep.mac, owner(node));
        Ok(())
    }

    fn check_local(&self, address: IpAddr) -> Result<(), ClaimFault> {
        self.check(address)?;
        if let Some(owner) = self.peers.get(&address) {
            return Err(ClaimFault::Router { address, owner: owner.clone() });
        }
        let is_connected = || self.connected.iter().any(|prefix| prefix.contains(&address));
        if self.limits.is_empty() && !is_connected() {
            return Err(ClaimFault::NotConnected(address));
        }
        Ok(())
    }

    /// The rules for both kinds of claims.
    fn check(&self, address: IpAddr) -> Result<(), ClaimFault> {
        if !is_unicast(&IpNet::from(address)) || self.connected.iter().any(|it| is_broadcast(it, address)) {
            return Err(ClaimFault::NoUnicast(address));
        }
        if let Some(owner) = self.addresses.get(&address) {
            return Err(ClaimFault::Taken { address, owner: owner.clone() });
        }
        if let Some(owner) = self.gateways.get(&address) {
            return Err(ClaimFault::Router { address, owner: owner.clone() });
        }
        if let Some((prefix, owner)) = self.overlays.iter().find(|(prefix, _)| prefix.contains(&address)) {
            return Err(ClaimFault::Overlay { address, prefix: *prefix, owner: owner.clone() });
        }
        let subnet = self.pods.iter().find(|(pods, _)| pods.holds(address)).map(|(_, owner)| owner);
        let block = self.blocks.iter().find(|(block, _)| block.contains(address)).map(|(_, owner)| owner);
        let services = self.services.iter().find(|(prefix, _)| prefix.contains(&address));
        if let Some(owner) = subnet.or(block).or(services.map(|(_, owner)| owner)) {
            return Err(ClaimFault::Inside { address, owner: owner.clone() });
        }
        if !self.limits.is_empty() && !self.limits.iter().any(|prefix| prefix.contains(&address)) {
            return Err(ClaimFault::Limit(address));
        }
        Ok(())
    }
}

/// The connected prefixes of the links of tunnels, of default routes and of BGP peers.
fn connected(intent: &Intent, host: &Host) -> Vec<IpNet> {
    let mut uplinks: BTreeSet<u32> = host.kernel.reached.values().copied().collect();
    uplinks.extend(host.kernel.default_link);
    uplinks.extend(host.kernel.gateways.iter().filter_map(|(_, hop)| hop.ifindex));
    uplinks.extend(vxlan::carrier(intent, host).map(|link| link.index));
    let links = host.kernel.links.iter().filter(|link| !link.own && uplinks.contains(&link.index));
    links.flat_map(|link| &link.addresses).map(IpNet::trunc).collect()
}
