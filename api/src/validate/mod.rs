//! The rules for resources: pure functions from resources to [`Fault`]s.
//!
//! They are hybridnet's admission rules, the rules for Trunkline's own fields, and rules for faults
//! that otherwise appear only in a session or a kernel table. All faults are reported at once, each
//! with resource, field, value and fix. A valid field that is not supported yet is no fault
//! ([`unsupported_subnet`]): the file loads, and the agent refuses that subnet by name. The API
//! server refuses such a field in a new object, or a change of it (`kube/rules.rs`).
//!
//! There are eight checks of hybridnet's kinds. Three are for a set of resources: alone ([`validate`]), on a node with
//! given labels ([`validate_for_node`]), and on all nodes of a cluster ([`validate_memberships`]).
//! The others are for NodeInfos ([`validate_nodes`], and alone [`validate_node`]), for prefixes of dynamic neighbours that
//! overlap a Subnet ([`neighbour_overlaps`]), for the replacement of an old set by a new one
//! ([`validate_change`]), and for unsupported fields.
//!
//! Each object of the own kinds is checked alone, so a fault in one affects no other:
//! [`validate_service_pool`], [`validate_service_advertisement`], [`validate_anycast`],
//! [`validate_agent_settings`]. Rules about a second object belong to the webhook.
//!
//! Two rules differ from hybridnet's. `autoNatOutgoing: false` is allowed wherever it describes the
//! actual behaviour (hybridnet's documentation has it, its webhook refuses it). `true` is allowed
//! for BGP and GlobalBGP, where nftables implements it. Peers of a network that is not in mode BGP
//! are a fault, where hybridnet ignores them: usually `mode: BGP` was forgotten.

mod agent_settings;
mod anycast;
mod attributes;
mod neighbours;
mod network;
mod node;
mod peer;
mod policy;
mod service_advertisement;
mod service_pool;
mod subnet;
mod values;

use std::collections::{BTreeMap, BTreeSet};

pub use anycast::ObjectSource;
pub use neighbours::{NeighbourOverlap, neighbour_overlaps};
pub use subnet::overlaps;

pub use crate::fault::Fault;
use crate::fault::Faults;
use crate::resources::{
    AgentSettings, AnycastAddress, Network, NodeInfo, ServiceAdvertisement, ServicePool, Subnet,
};

/// Checks a set of resources, independent of a node.
pub fn validate(networks: &[Network], subnets: &[Subnet]) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    names("Network", networks.iter().map(Network::name), &mut found);
    names("Subnet", subnets.iter().map(Subnet::name), &mut found);
    network::check_all(networks, &mut found);
    subnet::check_all(networks, subnets, &mut found);
    or_faults(found)
}

/// Checks a set of resources, also for a node with these labels. The node may be in one Underlay
/// network only.
pub fn validate_for_node(
    networks: &[Network],
    subnets: &[Subnet],
    labels: &BTreeMap<String, String>,
) -> Result<(), Vec<Fault>> {
    let mut found = validate(networks, subnets).err().unwrap_or_default();
    network::check_node(networks, "this node", labels, &mut found);
    or_faults(found)
}

/// Checks that each of a cluster's nodes, given by name and labels, is in at most one Underlay
/// network. Each network with such nodes has one fault, which names the first node, because the fix
/// is in the network's nodeSelector.
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

/// Checks NodeInfos: alone, together, and with the networks and subnets.
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

/// Checks a NodeInfo alone. In an API server each node writes its own NodeInfo, so a contradiction
/// between two of them must harm neither as a whole: each agent decides about each address.
pub fn validate_node(node: &NodeInfo) -> Result<(), Vec<Fault>> {
    alone("NodeInfo", node.name(), |faults| node::check(node, faults))
}

/// Checks whether these resources may replace the old ones. New and deleted resources are not
/// checked: a deletion depends on the users of the resource, which the caller knows.
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

/// Checks a ServicePool.
pub fn validate_service_pool(pool: &ServicePool) -> Result<(), Vec<Fault>> {
    alone("ServicePool", pool.name(), |faults| service_pool::check(&pool.spec, faults))
}

/// Checks whether a ServicePool may replace the old one of the same name.
pub fn validate_service_pool_change(old: &ServicePool, new: &ServicePool) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    let faults = &mut Faults { kind: "ServicePool", name: new.name(), found: &mut found };
    service_pool::check_change(&old.spec, &new.spec, faults);
    or_faults(found)
}

/// Checks a ServiceAdvertisement.
pub fn validate_service_advertisement(advertisement: &ServiceAdvertisement) -> Result<(), Vec<Fault>> {
    alone("ServiceAdvertisement", advertisement.name(), |faults| {
        service_advertisement::check(&advertisement.spec, faults);
    })
}

/// Checks an AnycastAddress.
pub fn validate_anycast(anycast: &AnycastAddress, source: ObjectSource) -> Result<(), Vec<Fault>> {
    alone("AnycastAddress", anycast.name(), |faults| anycast::check(&anycast.spec, source, faults))
}

/// Checks an AgentSettings.
pub fn validate_agent_settings(settings: &AgentSettings) -> Result<(), Vec<Fault>> {
    alone("AgentSettings", settings.name(), |faults| agent_settings::check(&settings.spec, faults))
}

/// Checks the name of one resource, and the rest by a function.
fn alone(kind: &'static str, name: &str, check: impl FnOnce(&mut Faults<'_>)) -> Result<(), Vec<Fault>> {
    let mut found = Vec::new();
    names(kind, std::iter::once(name), &mut found);
    check(&mut Faults { kind, name, found: &mut found });
    or_faults(found)
}

/// The unsupported part of a subnet, as text; `None` if there is none.
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

/// Names are DNS-1123 subdomains, as the API server requires, and unique.
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
            faults.add(
                "metadata.name",
                format!(
                    "`{name}` occurs twice: give each {kind} its own \
                name"
                ),
            );
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
