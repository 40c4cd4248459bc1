//! Addresses that several kinds of objects have: an address has one owner.
//!
//! | owner | its addresses |
//! |---|---|
//! | Subnet | the whole prefix; for an L2 pool of its Network only those that it allocates |
//! | ServicePool | `spec.addresses` |
//! | Network | `extraPrefixes` of pods, and the prefixes of dynamic neighbours |
//! | Node | the addresses of its status |
//! | RemoteSubnet | the whole prefix, which another cluster has |

use std::net::IpAddr;

use trunkline_api::resources::{AddressBlock, Endpoint, Network, NetworkMode, PoolMode, ServicePool, Subnet};
use trunkline_api::validate::Fault;

use super::Facts;
use super::remote_subnet::RemotePrefix;
use crate::services::allocated_by_subnet;
use crate::services::ipam::Span;

/// Addresses of an object, as text for a fault.
struct Owned {
    span: Span,
    /// `10.0.0.0/24 of Subnet rack1-v4`
    text: String,
}

/// The first other owner of one of these addresses. An object of this kind and name is not another
/// owner.
pub(super) fn owner(addresses: &AddressBlock, kind: &str, name: &str, facts: &Facts) -> Option<String> {
    let span = Span::from(*addresses);
    let is_self = |other_kind: &str, other: &str| other_kind == kind && other == name;
    let subnets = facts.subnets.iter().filter(|subnet| !is_self("Subnet", subnet.name())).flat_map(of_subnet);
    let pools =
        facts.service_pools.iter().filter(|pool| !is_self("ServicePool", pool.name())).flat_map(of_pool);
    let networks =
        facts.networks.iter().filter(|network| !is_self("Network", network.name())).flat_map(of_network);
    let nodes = facts.addressed_nodes.iter().flat_map(of_node);
    let remote = facts.remote_subnets.iter().map(of_remote_subnet);
    let mut all = subnets.chain(pools).chain(networks).chain(nodes).chain(remote);
    all.find(|other| other.span.overlaps(&span)).map(|other| other.text)
}

fn of_subnet(subnet: &Subnet) -> Option<Owned> {
    let cidr = subnet.spec.range.cidr().ok()?;
    let span = Span { first: cidr.network(), last: cidr.broadcast() };
    Some(Owned { span, text: format!("{cidr} of Subnet {}", subnet.name()) })
}

fn of_pool(pool: &ServicePool) -> Vec<Owned> {
    let blocks = pool.spec.blocks().unwrap_or_default();
    let owned = |block: AddressBlock| Owned {
        span: block.into(),
        text: format!("{block} of ServicePool {}", pool.name()),
    };
    blocks.into_iter().map(owned).collect()
}

fn of_network(network: &Network) -> Vec<Owned> {
    let name = network.name();
    let extra = network
        .extra_prefixes()
        .map(|prefix| (prefix, format!("{prefix} of extraPrefixes of Network {name}")));
    let dynamic = network.peers().iter().filter_map(|peer| match peer.endpoint() {
        Ok(Endpoint::Prefix(prefix)) => {
            Some((prefix, format!("{prefix}, from which Network {name} accepts BGP peers")))
        }
        _ => None,
    });
    let owned = |(prefix, text): (ipnet::IpNet, String)| Owned {
        span: Span { first: prefix.network(), last: prefix.broadcast() },
        text,
    };
    extra.chain(dynamic).map(owned).collect()
}

fn of_node((name, addresses): &(String, Vec<IpAddr>)) -> Vec<Owned> {
    let owned =
        |address: &IpAddr| Owned { span: Span::single(*address), text: format!("{address} of Node {name}") };
    addresses.iter().map(owned).collect()
}

fn of_remote_subnet(remote: &RemotePrefix) -> Owned {
    let RemotePrefix { name, prefix, .. } = remote;
    let span = Span { first: prefix.network(), last: prefix.broadcast() };
    Owned { span, text: format!("{prefix} of RemoteSubnet {name}") }
}

/// The pools that overlap this Subnet's prefix, as faults of the Subnet.
pub(super) fn pools_over_subnet(subnet: &Subnet, facts: &Facts) -> Vec<Fault> {
    let Ok(range) = subnet.spec.range.parse() else { return Vec::new() };
    let whole = Span { first: range.cidr.network(), last: range.cidr.broadcast() };
    let mut found = Vec::new();
    for pool in &facts.service_pools {
        let shares = is_l2_of(pool, &subnet.spec.network);
        let spans = if shares { allocated_by_subnet(subnet, &range) } else { vec![whole] };
        let blocks = pool.spec.blocks().unwrap_or_default();
        let over = blocks.iter().find(|block| spans.iter().any(|span| span.overlaps(&Span::from(**block))));
        if let Some(block) = over {
            found.push(Fault {
                kind: "Subnet",
                name: subnet.name().to_owned(),
                field: "spec.range.cidr".to_owned(),
                message: format!(
                    "{} overlaps {block} of ServicePool {}, and an address would belong to a pod and to a Service: \
                     write addresses that no Service gets",
                    range.cidr,
                    pool.name()
                ),
            });
        }
    }
    found
}

/// The pools that overlap `extraPrefixes` or prefixes of dynamic neighbours, as faults of the
/// Network.
pub(super) fn pools_over_network(network: &Network, facts: &Facts) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut add = |field: String, prefix: ipnet::IpNet| {
        let span = Span { first: prefix.network(), last: prefix.broadcast() };
        let over = facts.service_pools.iter().flat_map(of_pool).find(|owned| owned.span.overlaps(&span));
        if let Some(owned) = over {
            let message = format!("{prefix} overlaps {}: write prefixes that no Service gets", owned.text);
            found.push(Fault { kind: "Network", name: network.name().to_owned(), field, message });
        }
    };
    for prefix in network.extra_prefixes() {
        add("spec.config.extraPrefixes".to_owned(), prefix);
    }
    for (index, peer) in network.peers().iter().enumerate() {
        if let Ok(Endpoint::Prefix(prefix)) = peer.endpoint() {
            add(format!("spec.config.bgpPeers[{index}].prefix"), prefix);
        }
    }
    found
}

/// Whether a pool is an L2 pool of this Network.
pub(super) fn is_l2_of(pool: &ServicePool, network: &str) -> bool {
    pool.spec.mode == PoolMode::L2 && pool.spec.l2.as_ref().is_some_and(|l2| l2.network == network)
}

/// Whether there is a Network of mode VLAN with this name.
pub(super) fn is_vlan(name: &str, facts: &Facts) -> bool {
    facts.networks.iter().any(|network| network.name() == name && network.mode() == NetworkMode::VLAN)
}
