//! From what is wanted and what the host is like to what the host should have: a pure function.
//!
//! The slow path ([`plan`]) is computed anew whenever the intent, the host's links or a session changes; the fast path ([`plan_pod`]) only
//! reads the plan that is in force, so that a pod costs the same with 10 others as with 1,000.
//!
//! What the kernel is asked, in order:
//!
//! | preference | rule | table |
//! |---|---|---|
//! | 1000 | everything | 39999: local pods, one /32 or /128 each |
//! | 1030 | what came in from the fabric | 39998: a blackhole for each local subnet |
//! | 1100 | what comes from a local subnet | T ≥ 10000: the way out, one table per network |
//!
//! The blackhole is only for what the fabric sends: the fabric believes that this node has the subnet, and sending such a packet back would
//! make it loop; a local pod's packet to a pod of the same subnet on another node must go out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_api::resources::{BgpPeer, Network, NetworkMode, Subnet};
use trunkline_api::validate;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Asn, Community, Family, PeerKey};

mod peers;
mod policy;
#[cfg(test)]
mod tests;
pub mod types;

pub use types::*;

/// What is wanted: an immutable snapshot of the source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// This node.
    pub node: NodeIdentity,
    /// All networks; of a peer with a `passwordFile` the key stands in `password`.
    pub networks: Vec<Network>,
    /// All subnets.
    pub subnets: Vec<Subnet>,
    /// The BGP identifier, if it is configured.
    pub router_id: Option<Ipv4Addr>,
}

/// Everything that this node should have. Faults are about what validation cannot see, because it depends on the node.
pub fn plan(intent: &Intent, host: &Host) -> Result<Plan, Vec<PlanError>> {
    let here: Vec<&Network> =
        intent.networks.iter().filter(|network| network.selects(&intent.node.labels)).collect();
    let underlay = underlay(&here).map_err(|error| vec![error])?;
    let mut errors = Vec::new();
    let mut plan = Plan::default();
    for network in &here {
        let planned = plan_network(network, underlay, intent);
        plan.networks.insert(network.name().to_owned(), planned);
    }
    let Some(underlay) = underlay else { return Ok(plan) };

    let peers = peers::read(underlay, host, &mut errors);
    let sets = policy::Sets::of(underlay).map_err(|error| {
        vec![PlanError::Field {
            resource: format!("Network {}", underlay.name()),
            field: "spec.config.prefixSets".to_owned(),
            message: error.to_string(),
        }]
    })?;
    if !errors.is_empty() {
        return Err(errors);
    }
    let table = table(underlay, &plan, host);
    let mtu = peers.iter().filter_map(|peer| peer.link).map(|link| link.mtu).min();
    for network in plan.networks.values_mut().filter(|network| network.refused.is_none()) {
        network.table = Some(table);
        network.mtu = mtu;
    }
    plan.kernel = plan_kernel(&plan, table, &peers, intent);
    let graceful_shutdown = underlay.is_shutting_down(&intent.node.labels);
    let mut planned_peers = peers::plan(&peers, &sets, &mut errors);
    let mut planned_ranges = peers::plan_ranges(&peers, &sets, &mut errors);
    if graceful_shutdown {
        let templates = planned_ranges.values_mut().map(|range| &mut range.template);
        planned_peers.values_mut().chain(templates).for_each(|peer| peer.paths.graceful_shutdown = true);
    }
    plan.bgp = Some(BgpPlan {
        local_as: Asn(underlay.spec.net_id.unwrap_or_default()),
        router_id: peers::router_id(intent, &peers, host),
        graceful_shutdown,
        optional_peers: peers
            .iter()
            .filter(|peer| peer.spec.allow_not_established && peer.is_configured())
            .filter_map(peers::Peer::key)
            .collect(),
        originate: plan
            .networks
            .values()
            .filter(|network| network.refused.is_none() && network.mode == Mode::Bgp)
            .flat_map(|network| network.subnets.values())
            .map(|prefix| (*prefix, Origination::default()))
            .collect(),
        unnumbered: peers.iter().filter_map(peers::Peer::unnumbered).collect(),
        optional_ranges: peers::ranges(&peers)
            .filter(|(peer, _)| peer.spec.allow_not_established)
            .map(|(_, prefix)| prefix)
            .collect(),
        ranges: planned_ranges,
        peers: planned_peers,
    });
    if errors.is_empty() { Ok(plan) } else { Err(errors) }
}

/// What one pod needs. Reads the plan, never computes it.
pub fn plan_pod(plan: &Plan, pod: &Pod) -> Result<PodPlan, PlanError> {
    let network =
        plan.networks.get(&pod.network).ok_or_else(|| PlanError::NoNetwork { name: pod.network.clone() })?;
    if let Some(reason) = &network.refused {
        return Err(PlanError::Refused { name: pod.network.clone(), reason: reason.clone() });
    }
    // In an underlay the fabric beyond the rack has the subnet; the pods' own routes stay with the routers that need them.
    let communities = match network.mode {
        Mode::Bgp => vec![Community::NO_EXPORT],
        Mode::GlobalBgp | Mode::Other => Vec::new(),
    };
    let mut planned = PodPlan {
        host_ifname: pod.host_ifname.clone(),
        host_ifindex: pod.host_ifindex,
        ..PodPlan::default()
    };
    for address in &pod.addresses {
        let prefix = IpNet::from(*address);
        let on_link = Hop::link(pod.host_ifindex);
        planned.routes.insert(RouteKey { table: POD_TABLE, prefix }, RouteTarget::via(vec![on_link]));
        planned.neighbours.insert(Neighbour { ifindex: pod.host_ifindex, address: *address, mac: pod.mac });
        planned
            .originate
            .insert(prefix, Origination { communities: communities.clone(), ..Origination::default() });
    }
    Ok(planned)
}

/// The node's one underlay network in mode BGP.
fn underlay<'a>(here: &[&'a Network]) -> Result<Option<&'a Network>, PlanError> {
    let mut found: Option<&Network> = None;
    for network in here.iter().filter(|network| network.mode() == NetworkMode::BGP) {
        if let Some(first) = found {
            let (first_as, second_as) =
                (first.spec.net_id.unwrap_or_default(), network.spec.net_id.unwrap_or_default());
            let (first, second) = (first.name().to_owned(), network.name().to_owned());
            return Err(if first_as == second_as {
                PlanError::TwoUnderlays { first, second }
            } else {
                PlanError::LocalAs { first, first_as, second, second_as }
            });
        }
        found = Some(network);
    }
    Ok(found)
}

fn plan_network(network: &Network, underlay: Option<&Network>, intent: &Intent) -> NetworkPlan {
    let mode = match network.mode() {
        NetworkMode::BGP => Mode::Bgp,
        NetworkMode::GlobalBGP => Mode::GlobalBgp,
        NetworkMode::VLAN | NetworkMode::VXLAN => Mode::Other,
    };
    let mut refused = validate::unsupported_network(network);
    if mode == Mode::GlobalBgp && underlay.is_none() {
        refused = Some(
            "a GlobalBGP network needs an Underlay network of mode BGP on the node, whose peers it uses: none selects this node"
                .to_owned(),
        );
    }
    let mut planned = NetworkPlan {
        mode,
        table: None,
        subnets: BTreeMap::new(),
        refused_subnets: BTreeMap::new(),
        mtu: None,
        refused,
    };
    for subnet in intent.subnets.iter().filter(|subnet| subnet.spec.network == network.name()) {
        let name = subnet.name().to_owned();
        match (validate::unsupported_subnet(subnet), subnet.spec.range.cidr()) {
            (Some(reason), _) => drop(planned.refused_subnets.insert(name, reason)),
            (None, Err(error)) => {
                drop(planned.refused_subnets.insert(name, format!("spec.range.cidr: {error}")));
            }
            (None, Ok(prefix)) => drop(planned.subnets.insert(name, prefix)),
        }
    }
    planned
}

/// Prefixes of all subnets that are served here.
fn served(plan: &Plan) -> BTreeSet<IpNet> {
    plan.networks
        .values()
        .filter(|network| network.refused.is_none())
        .flat_map(|network| network.subnets.values().copied())
        .collect()
}

/// The network's table: the one that its subnets' rules already lead to, else the first free one.
fn table(underlay: &Network, plan: &Plan, host: &Host) -> u32 {
    let own = plan.networks.get(underlay.name()).into_iter().flat_map(|network| network.subnets.values());
    let all = served(plan);
    let there =
        own.chain(&all).find_map(|prefix| host.tables.get(prefix).filter(|table| **table >= FIRST_TABLE));
    there.copied().unwrap_or_else(|| {
        let taken: BTreeSet<u32> = host.used_tables.iter().chain(host.tables.values()).copied().collect();
        (FIRST_TABLE..).find(|table| !taken.contains(table)).unwrap_or(FIRST_TABLE)
    })
}

fn plan_kernel(plan: &Plan, table: u32, peers: &[peers::Peer<'_>], intent: &Intent) -> KernelPlan {
    let subnets = served(plan);
    let mut kernel = KernelPlan::default();
    let rule = |family, priority, from, iif, table| Rule { family, priority, from, iif, table };
    let uplinks: BTreeSet<&str> =
        peers.iter().filter_map(|peer| peer.link).map(|link| link.name.as_str()).collect();
    for family in Family::ALL {
        kernel.rules.insert(rule(family, 1000, None, None, POD_TABLE));
        for uplink in &uplinks {
            kernel.rules.insert(rule(family, 1030, None, Some((*uplink).to_owned()), DROP_TABLE));
        }
        let hops = peers::default_hops(peers, family);
        let prefix = match family {
            Family::Ipv4Unicast => IpNet::V4(Ipv4Net::default()),
            Family::Ipv6Unicast => IpNet::V6(Ipv6Net::default()),
        };
        if !hops.is_empty() {
            kernel.routes.insert(RouteKey { table, prefix }, RouteTarget::via(hops));
        }
    }
    for prefix in &subnets {
        kernel.rules.insert(rule(Family::of(prefix), 1100, Some(*prefix), None, table));
        kernel.routes.insert(RouteKey { table: DROP_TABLE, prefix: *prefix }, RouteTarget::Blackhole);
    }

    kernel.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
    if subnets.iter().any(|prefix| Family::of(prefix) == Family::Ipv6Unicast) {
        kernel.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
    }
    for uplink in uplinks {
        // The way back to a peer may be by another uplink (ECMP), which a strict check would take for a forged source.
        kernel.sysctls.insert(format!("net/ipv4/conf/{uplink}/rp_filter"), Sysctl::LooseReversePath);
    }

    let importing: BTreeMap<PeerKey, Option<u32>> = peers
        .iter()
        .filter(|peer| peer.imports())
        .filter_map(|peer| Some((peer.key()?, peer.link.map(|link| link.index))))
        .collect();
    kernel.learned = (!importing.is_empty()).then_some(Learned { table, peers: importing });
    kernel.nat = nat(plan, intent);
    kernel
}

fn nat(plan: &Plan, intent: &Intent) -> NatRules {
    let mode = |subnet: &Subnet| {
        intent.networks.iter().find(|network| network.name() == subnet.spec.network).map(Network::mode)
    };
    let is_served = |subnet: &Subnet| {
        plan.networks
            .get(&subnet.spec.network)
            .is_some_and(|network| network.refused.is_none() && network.subnets.contains_key(subnet.name()))
    };
    NatRules {
        sources: intent
            .subnets
            .iter()
            .filter(|subnet| is_served(subnet) && mode(subnet).is_some_and(|mode| subnet.nat_outgoing(mode)))
            .filter_map(|subnet| subnet.spec.range.cidr().ok())
            .collect(),
        inside: intent.subnets.iter().filter_map(|subnet| subnet.spec.range.cidr().ok()).collect(),
    }
}

/// The resource and field of a peer, for an error.
fn peer_field(network: &str, index: usize, field: &str, message: impl ToString) -> PlanError {
    PlanError::Field {
        resource: format!("Network {network}"),
        field: format!("spec.config.bgpPeers[{index}].{field}"),
        message: message.to_string(),
    }
}

/// Whether traffic is sent to a peer at all.
fn routes_traffic(peer: &BgpPeer) -> bool {
    !peer.does_not_route_traffic
}
