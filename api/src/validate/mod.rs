//! The rules that Networks, Subnets and NodeInfos must keep: pure functions from resources to [`Fault`]s.
//!
//! They are hybridnet's admission rules, plus what Trunkline's own fields need, plus what only shows when a
//! session or a kernel table is built. All faults are told at once, each with resource, field, value and
//! fix. What is right but cannot be done yet is no fault ([`unsupported_subnet`]): the file loads, and the
//! agent refuses that subnet by name.
//!
//! There are seven questions: is a set of resources right ([`validate`]), also on a node with these
//! labels ([`validate_for_node`]) or on all of a cluster's ([`validate_memberships`]), do the
//! NodeInfos go with it ([`validate_nodes`]), does no prefix of dynamic neighbours overlap a Subnet
//! ([`neighbour_overlaps`]), may an old set become a new one
//! ([`validate_change`]), and can it be done.
//!
//! Two rules differ from hybridnet's. `autoNatOutgoing: false` is allowed wherever that is what happens anyway (hybridnet's
//! documentation shows it so, its webhook refuses it), and `true` is allowed for BGP and GlobalBGP, where
//! nftables does it. And peers of a network that is not in mode BGP are a fault, where hybridnet ignores them:
//! most often `mode: BGP` was forgotten.

mod neighbours;
mod network;
mod node;
mod peer;
mod policy;
mod subnet;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use neighbours::{NeighbourOverlap, neighbour_overlaps};

use crate::resources::{Network, NodeInfo, Subnet};

/// Something in a resource that is wrong. Displayed: `Network rack1: spec.config.bgpPeers[1].asn: 0 is …: write …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// `Network`, `Subnet` or `NodeInfo`.
    pub kind: &'static str,
    /// The resource's name.
    pub name: String,
    /// Path of the field, `spec.config.bgpPeers[1].asn`.
    pub field: String,
    /// The value, what is wrong with it and what would be right. Never a secret.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.name, self.field, self.message)
    }
}

/// Collects the faults of one resource.
struct Faults<'a> {
    kind: &'static str,
    name: &'a str,
    found: &'a mut Vec<Fault>,
}

impl Faults<'_> {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let (field, message) = (field.into(), message.into());
        self.found.push(Fault { kind: self.kind, name: self.name.to_owned(), field, message });
    }
}

/// Whether a set of resources is right, wherever it is used.
pub fn validate(networks: &[Network], subnets: &[Subnet]) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    names("Network", networks.iter().map(Network::name), &mut found);
    names("Subnet", subnets.iter().map(Subnet::name), &mut found);
    network::check_all(networks, &mut found);
    subnet::check_all(networks, subnets, &mut found);
    or_faults(found)
}

/// Whether a set of resources is right, also on a node with these labels: it may be in one Underlay network only.
pub fn validate_for_node(
    networks: &[Network],
    subnets: &[Subnet],
    labels: &BTreeMap<String, String>,
) -> Result<(), Vec<Fault>> {
    let mut found = validate(networks, subnets).err().unwrap_or_default();
    network::check_node(networks, "this node", labels, &mut found);
    or_faults(found)
}

/// Whether each of a cluster's nodes, given by name and labels, is in one Underlay network at most. One fault a network is told, with
/// the first such node, since it is one nodeSelector that is to be changed.
pub fn validate_memberships<'a>(
    networks: &[Network],
    nodes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> Result<(), Vec<Fault>> {
    let mut found: Vec<Fault> = Vec::new();
    for (name, labels) in nodes {
        let mut these = Vec::new();
        network::check_node(networks, &format!("node {name}"), labels, &mut these);
        these.retain(|fault| !found.iter().any(|other| other.name == fault.name));
        found.append(&mut these);
    }
    or_faults(found)
}

/// Whether NodeInfos are right, alone, together, and with the networks and subnets beside them.
pub fn validate_nodes(
    nodes: &[NodeInfo],
    networks: &[Network],
    subnets: &[Subnet],
) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    names("NodeInfo", nodes.iter().map(NodeInfo::name), &mut found);
    node::check_all(nodes, networks, subnets, &mut found);
    or_faults(found)
}

/// Whether the resources that were in use may be replaced by these. What is new or gone is not looked at:
/// whether something may go depends on who uses it, which the caller knows.
pub fn validate_change(old: (&[Network], &[Subnet]), new: (&[Network], &[Subnet])) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    for new in new.0 {
        if let Some(old) = old.0.iter().find(|old| old.name() == new.name()) {
            network::check_change(old, new, &mut found);
        }
    }
    for subnet in new.1 {
        if let Some(old) = old.1.iter().find(|old| old.name() == subnet.name()) {
            subnet::check_change(old, subnet, new.0, &mut found);
        }
    }
    or_faults(found)
}

/// What this version cannot do for a subnet, in words; `None` if it can.
pub fn unsupported_subnet(subnet: &Subnet) -> Option<String> {
    let config = subnet.spec.config.as_ref()?;
    let field = if !config.gateway_type.is_empty() {
        "gatewayType"
    } else if !config.gateway_node.is_empty() {
        "gatewayNode"
    } else if !config.allow_subnets.is_empty() {
        "allowSubnets"
    } else {
        return None;
    };
    Some(format!("Subnet {}: spec.config.{field} is not supported: leave it out", subnet.name()))
}

fn or_faults(found: Vec<Fault>) -> Result<(), Vec<Fault>> {
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// Names are DNS-1123 subdomains, as the API server wants them, and each is there once.
fn names<'a>(kind: &'static str, names: impl Iterator<Item = &'a str>, found: &mut Vec<Fault>) {
    let mut seen = BTreeSet::new();
    for name in names {
        let mut faults = Faults { kind, name, found };
        if !is_dns_subdomain(name) {
            faults.add(
                "metadata.name",
                format!("`{name}` is not a name: write up to 253 of a-z, 0-9, `-` and `.`, with a letter or digit at both ends"),
            );
        } else if !seen.insert(name) {
            faults.add("metadata.name", format!("`{name}` is there twice: give each {kind} its own name"));
        }
    }
}

fn is_dns_subdomain(name: &str) -> bool {
    let ends = |label: &str| {
        let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        end(label.as_bytes().first()) && end(label.as_bytes().last())
    };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 253 && name.split('.').all(|label| ends(label) && label.bytes().all(allowed))
}
