//! Computes the plan from the intent and the host. It is a pure function.
//!
//! The slow path ([`plan`]) runs whenever the intent, the host's links or a session changes. The
//! fast path ([`plan_pod`]) only reads the current plan. So a pod costs the same with 10 other pods
//! as with 1,000.
//!
//! The kernel's rules, in the order of evaluation:
//!
//! | preference | rule | table |
//! |---|---|---|
//! | 960–980 | packets from pods of a network with `hairpin` | to the switch: `hairpin` |
//! | 1000 | all | 39999: local pods, one /32 or /128 each |
//! | 1004 | packets from an uplink to a virtual machine in live migration, on the source's node | 39995: the target's node (`migration.rs`) |
//! | 1005 | packets to a virtual machine in live migration | T of its subnet, while the local pod does not run it (`migration.rs`) |
//! | 1010 | all | 40000: overlay pods of other nodes, with a network of mode VXLAN |
//! | 1020 | packets from an overlay subnet | 40001: other nodes' own addresses, with a network of mode VXLAN |
//! | 1024 | replies of translated connections, by the link of the request | 1,170,000 + ifindex: the return routes over that link |
//! | 1025 | the same, where that table has no route | the main table |
//! | 1028 | packets from outside that are translated on this node, to a pod | T of that pod's subnet |
//! | 1029 | packets from an uplink, for a pod of another node | 2,170,000 + ifindex: the BGP subnets by the other uplinks' routers, or to the device that counts drops |
//! | 1029 | packets from other links of the fabric, or from a tunnel | 39996: the subnets to that device |
//! | 1030 | packets from the fabric or from a tunnel | 39998: a blackhole for each local subnet |
//! | 1090 | packets from the host itself, if its address is in a pods' subnet | the main table |
//! | 1100 | packets from a local subnet | T ≥ 10000: routes out of the node, one table per BGP network, VLAN subnet or overlay |
//!
//! Table 39998 also has a blackhole for each block of service addresses ([`services`]).
//!
//! The blackhole applies only to packets from the fabric. The fabric routes the subnet to this
//! node, so a packet that the node sends back would loop. A local pod's packet to a pod of the same
//! subnet on another node must leave the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::{AttachmentKind, Network, NetworkMode, NetworkType, Subnet, ValueError, Vtep};
use trunkline_api::validate;
use trunkline_bgp::types::Community;
use trunkline_datapath::attach::device::{GATEWAY_V4, GATEWAY_V6};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{
    DROP_TABLE, Hop, NatRules, Neighbour, POD_TABLE, PodPlan, Proxy, RouteKey, RouteTarget, Rule,
    SUBNET_RULE, Sysctl,
};

use crate::ipam::MigrationState;

mod alternate;
mod anycast;
mod bgp;
mod default_route;
mod guard;
mod hairpin;
pub mod intent;
mod join;
mod limits;
mod link_choice;
mod migration;
pub mod node_claims;
mod peers;
mod pod_mtu;
mod policy;
mod probes;
pub mod remote;
mod requested;
mod reserved;
pub mod selection;
pub mod services;
mod tables;
#[cfg(test)]
mod tests;
mod translated;
pub mod types;
mod unassigned;
mod vlan;
mod vxlan;

pub use intent::{
    GuardSettings, Intent, KernelLimits, NodeIdentity, OverlayPods, ProbeSettings, RequestedSysctls, Tunnels,
};
pub use join::{AttachTarget, JoinError, LinkParameters, join};
pub use link_choice::{LinkChoice, LinkChoiceError};
pub use selection::{DefaultRouteSelection, PeerDefaultRoutes};
pub use services::ServiceTags;
pub use types::*;

/// Everything that this node should have. Errors are about facts that validation cannot check,
/// because they depend on the node.
///
/// Each kind of network adds its own part. The parts that are equal for all subnets follow from
/// these.
pub fn plan(intent: &Intent, host: &Host) -> Result<Plan, Vec<PlanError>> {
    let here: Vec<&Network> =
        intent.networks.iter().filter(|network| network.selects(&intent.node.labels)).collect();
    let underlay = underlay(&here).map_err(|error| vec![error])?;
    let mut plan = Plan::default();
    let overlay = here.iter().copied().find(|network| network.mode() == NetworkMode::VXLAN);
    plan.kernel.guard = guard::plan(intent, overlay);
    for network in &here {
        let planned = plan_network(network, underlay, intent);
        plan.networks.insert(network.name().to_owned(), planned);
    }
    anycast::plan(intent, host, &mut plan);
    let nodes = node_claims::accept(intent, host);
    plan.ignored_claims.clone_from(&nodes.ignored);
    let remote = remote::accept(intent, host, &nodes);
    plan.remote.clone_from(&remote.clusters);
    plan.kernel.guard.nodes = guard::addresses(vteps_of_others(&nodes, &remote));
    if plan.networks.values().all(|network| network.refused.is_some()) {
        services::plan(intent, host, &mut plan);
        return Ok(plan);
    }
    let mut tables = tables::Tables::of(host);
    match underlay.map(|network| (network, network.mode())) {
        Some((network, NetworkMode::BGP)) => {
            bgp::plan(network, intent, host, &nodes, &mut tables, &mut plan)?;
            if let Some(bgp) = &plan.bgp {
                guard::add_peers(&mut plan.kernel.guard, bgp);
            }
        }
        Some((network, NetworkMode::VLAN)) => vlan::plan(network, intent, host, &mut tables, &mut plan),
        _ => {}
    }
    plan.kernel.nat = nat(&plan, intent);
    plan.kernel.nat.inside.extend(remote.prefixes());
    if let Some(overlay) = overlay {
        let others = vxlan::Others { nodes: &nodes, remote: &remote };
        vxlan::plan(overlay, intent, host, &others, &mut tables, &mut plan);
    }
    plan_subnets(&mut plan);
    limits::plan(intent.kernel_limits, &mut plan.kernel);
    requested::plan(intent.sysctls, &mut plan.kernel);
    join::plan_by_host(intent, host, &mut plan);
    hairpin::plan_hairpin(&mut plan);
    translated::plan(intent, host, &mut plan);
    plan.kernel.translated.pods.extend(remote.prefixes());
    unassigned::plan(&mut plan, host);
    migration::plan(&mut plan, host);
    services::plan(intent, host, &mut plan);
    pod_mtu::plan(intent.pod_mtu, &mut plan);
    Ok(plan)
}

/// The VTEPs of other nodes, those of remote clusters included.
fn vteps_of_others(
    nodes: &node_claims::AcceptedNodes,
    remote: &remote::Accepted,
) -> impl Iterator<Item = Vtep> {
    let own = nodes.iter().map(|(_, vtep)| vtep.clone());
    own.chain(remote.nodes.iter().map(|node| node.vtep.clone()))
}

/// Kernel objects and prefixes of one pod. The function reads the plan and never computes it.
pub fn plan_pod(plan: &Plan, pod: &Pod) -> Result<PlannedPod, PlanError> {
    let network =
        plan.networks.get(&pod.network).ok_or_else(|| PlanError::NoNetwork { name: pod.network.clone() })?;
    if let Some(reason) = &network.refused {
        return Err(PlanError::Refused { name: pod.network.clone(), reason: reason.clone() });
    }
    if network.attachment != pod.attachment {
        return Err(PlanError::Attachment {
            name: pod.network.clone(),
            network: network.attachment,
            pod: pod.attachment,
        });
    }
    // In an underlay, the fabric beyond the rack has the subnet. The pods' own routes stay with the
    // routers that need them. A router without a session with this node learns these routes only
    // from other routers.
    let disaggregated = plan.bgp.as_ref().is_some_and(|bgp| bgp.disaggregated.is_some());
    let communities = match network.mode {
        Mode::Bgp if !disaggregated => Some(vec![Community::NO_EXPORT]),
        Mode::Bgp | Mode::GlobalBgp => Some(Vec::new()),
        Mode::Vlan | Mode::Vxlan => None,
    };
    let mut planned = PodPlan {
        host_ifname: pod.host_ifname.clone(),
        host_ifindex: pod.host_ifindex,
        ..PodPlan::default()
    };
    let mut originate = BTreeMap::new();
    for address in &pod.addresses {
        let prefix = IpNet::from(*address);
        let on_link = Hop::link(pod.host_ifindex);
        planned.neighbours.insert(Neighbour { ifindex: pod.host_ifindex, address: *address, mac: pod.mac });
        if pod.migration == MigrationState::Inactive {
            continue;
        }
        planned.routes.insert(RouteKey { table: POD_TABLE, prefix }, RouteTarget::via(vec![on_link]));
        if let Some(communities) = &communities {
            originate.insert(prefix, migration::origination(pod.migration, communities.clone()));
        }
        // An IPVLAN slave answers ARP and ND itself.
        if network.mode == Mode::Vlan && pod.attachment == AttachmentKind::Veth {
            let device = network.subnet_of(*address).and_then(|(_, subnet)| subnet.device.as_ref());
            let ifindex = device.and_then(|device| device.ifindex);
            planned.proxies.extend(ifindex.map(|ifindex| Proxy { ifindex, address: *address }));
        }
    }
    // The kernel searches all proxy entries of one address, so only pods that need them have them.
    if pod.is_virtual_machine && pod.attachment == AttachmentKind::Veth {
        let router = |address: &IpAddr| if address.is_ipv4() { GATEWAY_V4.into() } else { GATEWAY_V6.into() };
        let routers = pod.addresses.iter().map(router);
        planned.proxies.extend(routers.map(|address| Proxy { ifindex: pod.host_ifindex, address }));
    }
    // An nftables set accepts no range inside another range.
    let allowed = pod.extra_prefixes.iter().filter(|prefix| network.allows(prefix)).copied().collect();
    planned.sources = IpNet::aggregate(&allowed).into_iter().collect();
    Ok(PlannedPod { kernel: planned, originate })
}

/// The node's one underlay network.
fn underlay<'a>(here: &[&'a Network]) -> Result<Option<&'a Network>, PlanError> {
    let mut found: Option<&Network> = None;
    for network in here.iter().filter(|network| network.network_type() == NetworkType::Underlay) {
        if let Some(first) = found {
            let (first_as, second_as) =
                (first.spec.net_id.unwrap_or_default(), network.spec.net_id.unwrap_or_default());
            let both_bgp = [first, network].iter().all(|network| network.mode() == NetworkMode::BGP);
            let (first, second) = (first.name().to_owned(), network.name().to_owned());
            return Err(if both_bgp && first_as != second_as {
                PlanError::LocalAs { first, first_as, second, second_as }
            } else {
                PlanError::TwoUnderlays { first, second }
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
        NetworkMode::VLAN => Mode::Vlan,
        NetworkMode::VXLAN => Mode::Vxlan,
    };
    let alone =
        mode == Mode::GlobalBgp && underlay.is_none_or(|underlay| underlay.mode() != NetworkMode::BGP);
    let refused = alone.then(|| {
        "a GlobalBGP network needs an Underlay network of mode BGP on the node, whose peers it \
         uses: no such Network selects this node"
            .to_owned()
    });
    let mut planned = NetworkPlan {
        mode,
        attachment: network.attachment(),
        hairpin: network.is_hairpin(),
        // The host does not see packets that an IPVLAN slave sends.
        extra_prefixes: network
            .extra_prefixes()
            .filter(|_| network.attachment() == AttachmentKind::Veth)
            .collect(),
        by_host: BTreeSet::new(),
        subnets: BTreeMap::new(),
        refused_subnets: BTreeMap::new(),
        mtu: None,
        refused,
    };
    // With addresses allocated for the whole cluster, nodes have no blocks.
    let own = intent.own_info().filter(|_| intent.overlay_pods.is_none());
    let blocks: Vec<IpNet> = own.into_iter().flat_map(|node| node.pod_cidrs()).flatten().collect();
    for subnet in intent.subnets.iter().filter(|subnet| subnet.spec.network == network.name()) {
        let name = subnet.name().to_owned();
        match plan_subnet(subnet, &blocks) {
            Ok(subnet) => drop(planned.subnets.insert(name, subnet)),
            Err(error) => drop(planned.refused_subnets.insert(name, error.to_string())),
        }
    }
    planned
}

/// The reason for which this node does not serve a subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum SubnetError {
    #[error("{0}")]
    Unsupported(String),
    #[error("spec.range: {0}")]
    Range(#[from] ValueError),
    #[error("this node's block {share} has no address from {first} to {last}")]
    EmptyBlock { share: IpNet, first: IpAddr, last: IpAddr },
}

/// The plan of a subnet with at most one of these blocks, or the reason for a refusal.
fn plan_subnet(subnet: &Subnet, blocks: &[IpNet]) -> Result<SubnetPlan, SubnetError> {
    if let Some(reason) = validate::unsupported_subnet(subnet) {
        return Err(SubnetError::Unsupported(reason));
    }
    let range = subnet.spec.range.parse()?;
    let share = blocks.iter().find(|block| range.cidr.contains(*block)).copied();
    let (access, retention) = (subnet.access(), subnet.retention());
    let (routes, dns) = (subnet.routes(), subnet.dns());
    let planned = SubnetPlan { share, access, retention, routes, dns, ..SubnetPlan::of(range.cidr) };
    match (share, planned.allocatable_range(&range)) {
        (Some(share), (first, last)) if first > last => {
            Err(SubnetError::EmptyBlock { share, first: range.first, last: range.last })
        }
        _ => Ok(planned),
    }
}

/// Adds the rules, and the parts that do not depend on the kind of network.
fn plan_subnets(plan: &mut Plan) {
    let subnets: Vec<SubnetPlan> = plan.served().map(|(_, subnet)| subnet.clone()).collect();
    let kernel = &mut plan.kernel;
    kernel.rules.extend(IpFamily::ALL.map(|family| Rule::always(family, 1000, POD_TABLE)));
    kernel.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
    // The kernel sends redirects if either this setting or the link's own is on. Every link keeps
    // its own value.
    kernel.sysctls.insert("net/ipv4/conf/all/send_redirects".to_owned(), Sysctl::Exactly("0"));
    for SubnetPlan { prefix, table, .. } in subnets {
        kernel.rules.extend(table.map(|table| Rule::from_prefix(SUBNET_RULE, prefix, table)));
        kernel.routes.insert(RouteKey { table: DROP_TABLE, prefix }, RouteTarget::Blackhole);
        if IpFamily::of(&prefix) == IpFamily::V6 {
            kernel.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
        }
    }
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
        slaves: BTreeSet::new(),
    }
}
