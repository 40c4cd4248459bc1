//! Networks with pods that BGP advertises: the node's underlay of mode BGP, and GlobalBGP on the
//! same node.
//!
//! Both use one table T. Its default route leads to the established peers
//! ([`super::default_route`]), or it contains the imported routes. A packet from a peer's link may
//! have a destination that no local pod has. The node forwards it to a router on another link
//! ([`super::alternate`]), or drops it. The fabric routes the subnet to this node, so it would
//! return the packet at once.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use trunkline_api::resources::{BgpPeer, Endpoint, Network};
use trunkline_api::validate;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Asn, Family, PeerKey};
use trunkline_datapath::plan::{DROP_TABLE, RouteKey, RouteTarget, Rule, Sysctl};

use super::node_claims::AcceptedNodes;
use super::tables::Tables;
use super::{
    BgpPlan, Host, Intent, Learned, Mode, Plan, PlanError, RefusedRange, alternate, anycast, default_route,
    peers, policy, probes, services,
};
use crate::family::ip_family;

/// Adds the parts of the underlay network and of GlobalBGP to the plan.
pub(super) fn plan(
    underlay: &Network,
    intent: &Intent,
    host: &Host,
    nodes: &AcceptedNodes,
    tables: &mut Tables<'_>,
    plan: &mut Plan,
) -> Result<(), Vec<PlanError>> {
    let mut errors = Vec::new();
    let refused_ranges = refused_ranges(underlay, intent);
    let peers = peers::read(underlay, host, &refused_ranges, &mut errors);
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
    // The underlay's own subnets come first, because their rules identify the previous table.
    let prefixes = |mode| plan.served().filter(move |(network, _)| network.mode == mode);
    let table =
        tables.shared(prefixes(Mode::Bgp).chain(prefixes(Mode::GlobalBgp)).map(|(_, subnet)| subnet.prefix));
    let mtu = peers.iter().filter_map(|peer| peer.link).map(|link| link.mtu).min();
    for network in plan.networks.values_mut().filter(|network| network.refused.is_none()) {
        if matches!(network.mode, Mode::Bgp | Mode::GlobalBgp) {
            network.mtu = mtu;
            network.subnets.values_mut().for_each(|subnet| subnet.table = Some(table));
        }
    }
    plan_kernel(plan, table, &peers, host);
    alternate::plan(plan, &peers);
    probes::plan(plan, &peers, mtu, intent, nodes);
    let routers = peers.iter().flat_map(peers::Peer::routers);
    plan.routers.extend(routers.map(|(family, hop)| (ip_family(family), hop)));
    let graceful_shutdown = underlay.is_shutting_down(&intent.node.labels);
    let policies = peers::Policies {
        sets: &sets,
        exports: &services::exports(intent),
        anycast: &anycast::exports(intent, &plan.anycast),
    };
    let (planned_peers, planned_ranges) = peers::plan(&peers, graceful_shutdown, &policies, &mut errors);
    plan.bgp = Some(BgpPlan {
        local_as: Asn(underlay.spec.net_id.unwrap_or_default()),
        router_id: peers::router_id(intent, &peers, host),
        graceful_shutdown,
        disaggregated: peers
            .iter()
            .find(|peer| peer.is_down_router())
            .filter(|_| host.converged && underlay.disaggregates())
            .map(peers::Peer::name),
        optional_peers: peers
            .iter()
            .filter(|peer| peer.spec.allow_not_established && peer.is_configured())
            .filter_map(peers::Peer::key)
            .collect(),
        originate: plan
            .served()
            .filter(|(network, _)| network.mode == Mode::Bgp)
            .map(|(_, subnet)| (subnet.prefix, Origination::default()))
            .collect(),
        unnumbered: peers.iter().filter_map(peers::Peer::unnumbered).collect(),
        optional_ranges: underlay
            .peers()
            .iter()
            .filter(|peer| peer.allow_not_established)
            .filter_map(|peer| match peer.endpoint() {
                Ok(Endpoint::Prefix(prefix)) => Some(prefix),
                _ => None,
            })
            .collect(),
        refused_ranges,
        ranges: planned_ranges,
        peers: planned_peers,
    });
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Prefixes of dynamic neighbours that overlap a Subnet. The folder source and the webhook refuse
/// such objects; if such an object exists nevertheless, the plan refuses its prefix and serves all
/// other objects.
fn refused_ranges(underlay: &Network, intent: &Intent) -> BTreeMap<IpNet, RefusedRange> {
    let overlaps = validate::neighbour_overlaps(std::slice::from_ref(underlay), &intent.subnets);
    let refused = overlaps.iter().filter_map(|overlap| {
        let peer = underlay.peers().get(overlap.index)?;
        let (remote_as, limit) = (Asn(peer.asn), peer.limit.unwrap_or(BgpPeer::DEFAULT_LIMIT));
        let fault = overlap.network_fault().to_string();
        Some((overlap.prefix, RefusedRange { remote_as, limit, fault }))
    });
    refused.collect()
}

fn plan_kernel(plan: &mut Plan, table: u32, peers: &[peers::Peer<'_>], host: &Host) {
    let kernel = &mut plan.kernel;
    kernel.way_out = Some(table);
    let uplinks: BTreeSet<&str> =
        peers.iter().filter_map(|peer| peer.link).map(|link| link.name.as_str()).collect();
    for family in Family::ALL {
        kernel
            .rules
            .extend(uplinks.iter().map(|uplink| Rule::from_link(ip_family(family), uplink, DROP_TABLE)));
        let Some(way) = default_route::plan(peers, family, table, host) else { continue };
        if !way.next_hops.is_empty() {
            kernel
                .routes
                .insert(RouteKey::default_route(table, ip_family(family)), RouteTarget::via(way.hops()));
        }
        plan.ways_out.insert(family, way);
    }
    for uplink in uplinks {
        // The return path to a peer may use another uplink (ECMP). A strict check would drop its
        // packets as forged.
        kernel.sysctls.insert(format!("net/ipv4/conf/{uplink}/rp_filter"), Sysctl::LooseReversePath);
    }
    let importing: BTreeMap<PeerKey, Option<u32>> = peers
        .iter()
        .filter(|peer| peer.imports())
        .filter_map(|peer| Some((peer.key()?, peer.link.map(|link| link.index))))
        .collect();
    kernel.learned = (!importing.is_empty()).then_some(table);
    plan.learned = (!importing.is_empty()).then(|| Learned {
        table,
        left_out: host.left_out.iter().filter(|peer| importing.contains_key(peer)).copied().collect(),
        peers: importing,
    });
}
