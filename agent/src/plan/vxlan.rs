//! The overlay: a network of mode VXLAN. Tunnels between the nodes connect its pods with each other
//! and with the pods of all other networks.
//!
//! The NodeInfos alone (`config.podCIDRs`) define which node has which pods. For a block of another
//! node there is a route to that node's VTEP; for the VTEP, one neighbour entry and one FDB entry.
//! So the kernel state of a node grows with the nodes and not with the pods, and the node needs no
//! ARP, ND or flooding. With the API server as the source, the controller allocates addresses for
//! all nodes, and each overlay pod of another node is a block of one address
//! (`Intent::overlay_pods`).
//!
//! | table | for packets from | content |
//! |---|---|---|
//! | 40000 | all | overlay blocks of other nodes, into the tunnel; a blackhole, or an unreachable route, for the rest of an overlay subnet |
//! | 40001 | overlay pods | other nodes' own addresses, into the tunnel |
//! | T | overlay pods | blocks of underlay subnets on other nodes, into the tunnel; other underlay pods, by the routes of this node's underlay pods |
//!
//! So a pod of any network reaches an overlay pod through the tunnel (40000), and the reply uses
//! the tunnel too (T, 40001). Neither is translated. Addresses that no pod can have (`excludeIPs`,
//! gateways, addresses outside `start` and `end`) are excluded. They belong to machines outside the
//! overlay, and are routed like any other outside address. (`start` and `end` count if NodeInfos
//! have blocks of the subnet, because then all nodes share one manifest of the subnet.)
//!
//! A node checks what the NodeInfos of other nodes claim ([`super::node_claims`]).
//!
//! Accepted nodes and subnets of remote clusters ([`super::remote`]) get the same entries and routes.
//! Their endpoints are blocks of one address.
//!
//! hybridnet identifies a node's packets and their replies by connection marks. Here the addresses
//! in the NodeInfos identify them, which needs no connection tracking and selects the same routes.
//! hybridnet has a neighbour entry for each remote pod, and adds it when the kernel reports a
//! missing entry.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use trunkline_api::resources::{Network, NetworkMode, ParsedRange, Vtep, VtepInfo};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::naming::ALIAS_PREFIX;
use trunkline_datapath::plan::{
    DROP_TABLE, FdbEntry, Hop, Link, LinkKind, LinkPlan, NODE_TABLE, Neighbour, OVERLAY_TABLE, RouteKey,
    RouteTarget, Rule, Sysctl,
};

use super::node_claims::AcceptedNodes;
use super::remote::{Accepted, RemoteArea};
use super::tables::Tables;
use super::{Host, Intent, Mode, NetworkPlan, Plan, SubnetDevice, guard, link_choice};

/// Longest name of an interface, in octets (IFNAMSIZ less the terminating zero).
const MAX_NAME: usize = 15;

/// A prefix of one network, with its addresses that no pod can have.
struct Area {
    prefix: IpNet,
    overlay: bool,
    /// Whether only remote clusters have pods in it.
    remote: bool,
    excluded: Vec<IpNet>,
}

/// Another node.
struct Remote {
    vtep: Vtep,
    blocks: Vec<IpNet>,
}

/// The accepted nodes of this cluster and of remote clusters.
pub(super) struct Others<'a> {
    pub(super) nodes: &'a AcceptedNodes,
    pub(super) remote: &'a Accepted,
}

/// Adds the parts of the overlay to the plan.
pub(super) fn plan(
    network: &Network,
    intent: &Intent,
    host: &Host,
    others: &Others<'_>,
    tables: &mut Tables<'_>,
    plan: &mut Plan,
) {
    let name = network.name();
    let remote = others.remote;
    let areas = areas(network, intent, remote);
    let table = tables.shared(own_overlay(&areas).map(|area| area.prefix));
    let Some(planned) = plan.networks.get_mut(name).filter(|network| network.refused.is_none()) else {
        return;
    };
    planned.subnets.values_mut().for_each(|subnet| subnet.table = Some(table));
    if intent.overlay_pods.is_none() {
        refuse_undivided(planned, &intent.node.name);
    }

    let is_tunnel = |link: &&Link| link.own && matches!(link.kind, Some(LinkKind::Vxlan { .. }));
    let existing = host.kernel.links.iter().find(is_tunnel);
    let end = end(intent, host);
    let end_link = end.as_ref().ok().map(|(_, carrier)| carrier.name.clone());
    let vtep = end.as_ref().ok().map(|(vtep, _)| vtep.clone());
    let (found, missing) = match end {
        Ok((vtep, carrier)) => (Some(device(network, intent, &vtep, carrier, existing)), None),
        // An existing device stays until the address returns, because pods use it.
        Err(error) => {
            let keep = existing.and_then(|link| Some((link.name.clone(), link.kind?, link.mtu)));
            let keep =
                keep.map(|(name, kind, mtu)| (name, LinkPlan { kind, alias: alias(network.name()), mtu }));
            (keep, Some(error.to_string()))
        }
    };
    let parent = end_link.unwrap_or_default();
    let Some((device, link)) = found else {
        return planned.lead_by(&SubnetDevice { name: String::new(), parent, ifindex: None, fault: missing });
    };
    let LinkKind::Vxlan { local, .. } = link.kind else { return };
    planned.mtu = Some(link.mtu);
    let is_it =
        |known: &&Link| known.own && known.up && known.name == device && known.kind == Some(link.kind);
    let index = host.kernel.links.iter().find(is_it).map(|known| known.index);
    let fault = missing.or_else(|| host.kernel.link_faults.get(&device).cloned());
    planned.lead_by(&SubnetDevice { name: device.clone(), parent, ifindex: index, fault });
    plan.kernel.links.insert(device.clone(), link);

    let own = intent.own_info().and_then(|node| node.vtep().ok().flatten());
    let own = own.or(vtep);
    let own = own.unwrap_or_else(|| Vtep { ip: local, mac: Vtep::default_mac(local), local: vec![local] });
    plan.vtep = Some(own.clone());
    let remotes = remotes(intent, others, local);
    let vteps = remotes.iter().map(|remote| remote.vtep.ip);
    plan.kernel.guard.tunnel = Some(guard::tunnel(network, intent.tunnels.port, local, vteps));
    // The guard of a tunnel tracks connections in any case.
    plan.kernel.guard.keeps_own = true;
    carve(plan, &areas, remotes.iter().map(|remote| &remote.vtep).chain([&own]));
    let Some(index) = index else { return };
    let tunnel = Tunnel { index, own };
    route_areas(plan, &areas, table, intent.tunnels.rejects_unknown);
    for remote in &remotes {
        tunnel.lead_to(remote, &areas, table, plan);
    }
    // The routes arrive in no order, which leaves a third of the map's memory unused.
    plan.kernel.routes = std::mem::take(&mut plan.kernel.routes).into_iter().collect();
    for family in IpFamily::ALL {
        plan.kernel.rules.insert(Rule::always(family, 1010, OVERLAY_TABLE));
        plan.kernel.rules.insert(Rule::from_link(family, &device, DROP_TABLE));
    }
    for area in own_overlay(&areas) {
        plan.kernel.rules.insert(Rule::from_prefix(1020, area.prefix, NODE_TABLE));
    }
    // A packet from an underlay pod of another node may arrive through the tunnel while the reply
    // leaves through the fabric.
    plan.kernel.sysctls.insert(format!("net/ipv4/conf/{device}/rp_filter"), Sysctl::NoReversePath);
    plan.kernel.add_device_sysctls(&device);
}

impl NetworkPlan {
    /// Sets the device for packets of all its subnets.
    fn lead_by(&mut self, device: &SubnetDevice) {
        self.subnets.values_mut().for_each(|subnet| subnet.device = Some(device.clone()));
    }
}

/// If nodes have blocks of subnets, a node without a block must not allocate, because other nodes
/// would allocate the same addresses.
fn refuse_undivided(planned: &mut NetworkPlan, node: &str) {
    let undivided: Vec<String> = planned
        .subnets
        .iter()
        .filter(|(_, subnet)| subnet.share.is_none())
        .map(|(name, _)| name.clone())
        .collect();
    for name in undivided {
        let Some(subnet) = planned.subnets.remove(&name) else { continue };
        let reason = format!(
            "this node has no block of {}: write one into spec.config.podCIDRs of NodeInfo {node}",
            subnet.prefix
        );
        planned.refused_subnets.insert(name, reason);
    }
}

/// The reason for which this node has no VTEP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum EndError {
    #[error(
        "NodeInfo {node}: spec.vtepInfo.ip: {address} is on no link of this node: write one of the \
         node's addresses, or add this one to a link"
    )]
    ForeignAddress { node: String, address: IpAddr },
    #[error(
        "there is no default route whose link could carry the tunnels: write vxlanInterfaces into the agent's \
         configuration, or spec.vtepInfo into this node's NodeInfo"
    )]
    DefaultRoute,
    #[error("vxlanInterfaces: no link of {0} exists")]
    Interfaces(String),
    #[error(
        "{link} has no address of vtepAddressCIDRs: add one, or write spec.vtepInfo into NodeInfo {node}"
    )]
    Address { link: String, node: String },
}

/// This node's VTEP and the link of the tunnels, or the missing input.
fn end<'a>(intent: &Intent, host: &'a Host) -> Result<(Vtep, &'a Link), EndError> {
    let node = || intent.node.name.clone();
    let on = |address: &IpAddr| {
        let holds = |link: &&Link| link.addresses.iter().any(|prefix| prefix.addr() == *address);
        host.kernel.links.iter().filter(|link| !link.own).find(holds)
    };
    let preferred = preferred_link(intent, host);
    if let Some(vtep) = intent.own_info().and_then(|node| node.vtep().ok().flatten()) {
        let link = on(&vtep.ip).ok_or_else(|| EndError::ForeignAddress { node: node(), address: vtep.ip })?;
        // Tunnels from a loopback address leave through another link.
        return Ok((vtep, if link.name == "lo" { preferred.unwrap_or(link) } else { link }));
    }
    let link = preferred.ok_or_else(|| {
        let named = &intent.tunnels.interfaces;
        if named.is_empty() {
            EndError::DefaultRoute
        } else {
            EndError::Interfaces(link_choice::joined(named))
        }
    })?;
    let may = |address: &IpAddr| {
        is_global(address) && intent.tunnels.vteps.iter().any(|prefix| prefix.contains(address))
    };
    // IPv4 before IPv6, as in hybridnet.
    let found = link.addresses.iter().map(IpNet::addr).filter(may).min_by_key(IpAddr::is_ipv6);
    let ip = found.ok_or_else(|| EndError::Address { link: link.name.clone(), node: node() })?;
    // Without the API server as the source, an operator writes the NodeInfos. With the API server,
    // each node writes its own NodeInfo, so the node must add its address of the other family
    // itself.
    let mut local = vec![ip];
    if intent.overlay_pods.is_some() {
        let others = link.addresses.iter().map(IpNet::addr).filter(may);
        for address in others.chain(extra_local_addresses(intent, host)) {
            // Other agents would ignore the whole NodeInfo.
            if local.len() < VtepInfo::MAX_LOCAL_IPS && !local.contains(&address) {
                local.push(address);
            }
        }
    }
    Ok((Vtep { ip, mac: Vtep::default_mac(ip), local }, link))
}

/// The link of the tunnels.
pub(super) fn carrier<'a>(intent: &Intent, host: &'a Host) -> Option<&'a Link> {
    end(intent, host).ok().map(|(_, link)| link)
}

/// The address of this node's tunnels; none without an overlay.
pub(super) fn local(intent: &Intent, host: &Host) -> Option<IpAddr> {
    let mut here = intent.networks.iter().filter(|network| network.selects(&intent.node.labels));
    here.any(|network| network.mode() == NetworkMode::VXLAN)
        .then(|| end(intent, host).ok())?
        .map(|(vtep, _)| vtep.ip)
}

fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}

/// The node's addresses in the prefixes of `vtepLocalAddressCIDRs`, on each link that is up. Links
/// that are down are skipped, such as `kube-ipvs0` with its addresses of Services.
fn extra_local_addresses(intent: &Intent, host: &Host) -> impl Iterator<Item = IpAddr> {
    let links = host.kernel.links.iter().filter(|link| link.up && !link.own);
    let extra = &intent.tunnels.local_addresses;
    let addresses = links.flat_map(|link| &link.addresses).map(IpNet::addr).filter(is_global);
    addresses.filter(|address| extra.iter().any(|prefix| prefix.contains(address)))
}

fn preferred_link<'a>(intent: &Intent, host: &'a Host) -> Option<&'a Link> {
    let named = &intent.tunnels.interfaces;
    if named.is_empty() {
        return host.kernel.links.iter().find(|link| Some(link.index) == host.kernel.default_link);
    }
    link_choice::first(named, host)
}

/// The name and the plan of the device. An existing device with this VNI keeps its name, even if
/// the link below it was renamed.
fn device(
    network: &Network,
    intent: &Intent,
    vtep: &Vtep,
    carrier: &Link,
    existing: Option<&Link>,
) -> (String, LinkPlan) {
    let vni = network.spec.net_id.unwrap_or_default();
    let kind = LinkKind::Vxlan { vni, local: vtep.ip, port: intent.tunnels.port, mac: vtep.mac };
    let name = match existing.filter(|link| link.kind == Some(kind)) {
        Some(link) => link.name.clone(),
        None => {
            let name = format!("{}.vxlan{vni}", carrier.name);
            if name.len() > MAX_NAME { format!("vxlan{vni}") } else { name }
        }
    };
    // Ethernet 14, VXLAN 8, UDP 8, and IPv4's 20 or IPv6's 40.
    let overhead = if vtep.ip.is_ipv4() { 50 } else { 70 };
    let mtu = carrier.mtu.min(9_216).saturating_sub(overhead);
    (name, LinkPlan { kind, alias: alias(network.name()), mtu })
}

fn alias(network: &str) -> String {
    format!("{ALIAS_PREFIX}vxlan:{network}")
}

/// The prefixes of this cluster's overlay.
fn own_overlay(areas: &[Area]) -> impl Iterator<Item = &Area> {
    areas.iter().filter(|area| area.overlay && !area.remote)
}

/// Other nodes that tunnels of this node can reach.
fn remotes(intent: &Intent, accepted: &Others<'_>, local: IpAddr) -> Vec<Remote> {
    let others = intent.nodes.iter().filter(|node| node.name() != intent.node.name);
    let of_this_cluster = others.filter_map(|node| {
        let vtep = accepted.nodes.vtep(node.name())?.clone();
        let blocks = match &intent.overlay_pods {
            None => node.pod_cidrs().unwrap_or_default(),
            Some(placed) => {
                placed.get(node.name()).into_iter().flatten().map(|pod| IpNet::from(*pod)).collect()
            }
        };
        Some(Remote { vtep, blocks })
    });
    let of_others = accepted.remote.nodes.iter().map(|node| Remote {
        vtep: node.vtep.clone(),
        blocks: node.endpoints.iter().map(|address| IpNet::from(*address)).collect(),
    });
    let all = of_this_cluster.chain(of_others);
    all.filter(|remote| remote.vtep.ip.is_ipv4() == local.is_ipv4()).collect()
}

/// Each prefix once, with its addresses that no pod can have.
fn areas(network: &Network, intent: &Intent, remote: &Accepted) -> Vec<Area> {
    let mut areas: Vec<(Area, Vec<ParsedRange>)> = Vec::new();
    for subnet in &intent.subnets {
        let Ok(range) = subnet.spec.range.parse() else { continue };
        match areas.iter_mut().find(|(area, _)| area.prefix == range.cidr) {
            Some((_, ranges)) => ranges.push(range),
            None => {
                let overlay = subnet.spec.network == network.name();
                let area = Area { prefix: range.cidr, overlay, remote: false, excluded: Vec::new() };
                areas.push((area, vec![range]));
            }
        }
    }
    for of_remote in &remote.areas {
        match areas.iter_mut().find(|(area, _)| area.prefix == of_remote.prefix) {
            Some((_, ranges)) => ranges.extend(of_remote.ranges.iter().cloned()),
            None => {
                let RemoteArea { prefix, overlay, ranges } = of_remote;
                let area = Area { prefix: *prefix, overlay: *overlay, remote: true, excluded: Vec::new() };
                areas.push((area, ranges.clone()));
            }
        }
    }
    let blocks: Vec<IpNet> = intent.nodes.iter().flat_map(|node| node.pod_cidrs()).flatten().collect();
    areas
        .into_iter()
        .map(|(area, ranges)| {
            // Without blocks, `start` and `end` of each node's manifest limit its own allocation:
            // addresses outside are pods of other nodes.
            let divided = area.remote
                || intent.overlay_pods.is_some()
                || blocks.iter().any(|block| area.prefix.contains(block));
            let mut excluded: Vec<IpNet> = ranges
                .iter()
                .flat_map(|range| range.excluded.iter().chain(&range.gateway))
                .map(|a| (*a).into())
                .collect();
            if divided {
                excluded.extend(outside(&area.prefix, &ranges));
            }
            Area { excluded: IpNet::aggregate(&excluded), ..area }
        })
        .collect()
}

/// Addresses of a prefix outside all of these ranges, as the fewest prefixes. (The network and
/// broadcast addresses belong to no machine and are not included.)
fn outside(prefix: &IpNet, ranges: &[ParsedRange]) -> Vec<IpNet> {
    let mut ranges: Vec<(u128, u128)> =
        ranges.iter().map(|range| (number(range.first), number(range.last))).collect();
    ranges.sort_unstable();
    let ends = (number(prefix.network()), number(prefix.broadcast()));
    let mut gaps = Vec::new();
    let mut next = ends.0;
    for (first, last) in ranges {
        if first > next {
            gaps.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next <= ends.1 {
        gaps.push((next, ends.1));
    }
    gaps.retain(|gap| ![(ends.0, ends.0), (ends.1, ends.1)].contains(gap));
    gaps.into_iter().flat_map(|(first, last)| cover(first, last, prefix.addr().is_ipv4())).collect()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The prefixes that cover a range of addresses.
fn cover(first: u128, last: u128, is_v4: bool) -> Vec<IpNet> {
    match (u32::try_from(first), u32::try_from(last)) {
        (Ok(first), Ok(last)) if is_v4 => {
            Ipv4Subnets::new(Ipv4Addr::from(first), Ipv4Addr::from(last), 0).map(IpNet::V4).collect()
        }
        _ => Ipv6Subnets::new(Ipv6Addr::from(first), Ipv6Addr::from(last), 0).map(IpNet::V6).collect(),
    }
}

/// The parts of a prefix outside these holes.
fn without(prefix: IpNet, holes: &[IpNet]) -> Vec<IpNet> {
    let is_v4 = prefix.addr().is_ipv4();
    let mut holes: Vec<(u128, u128)> = holes
        .iter()
        .filter(|hole| prefix.contains(*hole))
        .map(|hole| (number(hole.network()), number(hole.broadcast())))
        .collect();
    holes.sort_unstable();
    let mut left = Vec::new();
    let (mut next, last) = (number(prefix.network()), number(prefix.broadcast()));
    for (first, end) in holes {
        if first > next {
            left.extend(cover(next, first - 1, is_v4));
        }
        // The hole may be at the end of the address space.
        let Some(after) = end.checked_add(1) else { return left };
        next = after;
    }
    if next <= last {
        left.extend(cover(next, last, is_v4));
    }
    left
}

/// With an overlay on this node, excluded addresses count as outside. The nodes themselves count as
/// inside, because they answer through the tunnel.
fn carve<'a>(plan: &mut Plan, areas: &[Area], vteps: impl Iterator<Item = &'a Vtep>) {
    let nat = &mut plan.kernel.nat;
    nat.inside = areas.iter().flat_map(|area| without(area.prefix, &area.excluded)).collect();
    nat.inside.extend(vteps.flat_map(|vtep| &vtep.local).map(|address| IpNet::from(*address)));
}

/// Routes that do not depend on the other nodes.
fn route_areas(plan: &mut Plan, areas: &[Area], table: u32, rejects_unknown: bool) {
    let unknown = if rejects_unknown { RouteTarget::Unreachable } else { RouteTarget::Blackhole };
    // The table of pods in this node's BGP networks, if there are any.
    let fabric = plan.served().find(|(network, _)| matches!(network.mode, Mode::Bgp | Mode::GlobalBgp));
    let fabric = fabric.and_then(|(_, subnet)| subnet.table);
    for area in areas {
        let own_table = if area.overlay { OVERLAY_TABLE } else { table };
        let rest = match (area.overlay, fabric) {
            (true, _) => Some(unknown.clone()),
            (false, Some(fabric)) => {
                let way_out = RouteKey::default_route(fabric, IpFamily::of(&area.prefix));
                plan.kernel.routes.get(&way_out).cloned()
            }
            (false, None) => None,
        };
        let carved = area.excluded.iter().map(|prefix| (*prefix, RouteTarget::Throw));
        let rest = rest.map(|target| (area.prefix, target));
        for (prefix, target) in carved.chain(rest) {
            plan.kernel.routes.insert(RouteKey { table: own_table, prefix }, target);
        }
    }
}

/// This node's side of all tunnels.
struct Tunnel {
    index: u32,
    own: Vtep,
}

impl Tunnel {
    /// Adds all entries and routes to another node. The routes of a family share one target.
    fn lead_to(&self, remote: &Remote, areas: &[Area], table: u32, plan: &mut Plan) {
        let vtep = &remote.vtep;
        let ifindex = self.index;
        plan.kernel.fdb.insert(FdbEntry { ifindex, mac: vtep.mac, vtep: vtep.ip });
        let blocks = remote.blocks.iter().filter_map(|block| {
            let area = areas.iter().find(|area| area.prefix.contains(block))?;
            Some(RouteKey { table: if area.overlay { OVERLAY_TABLE } else { table }, prefix: *block })
        });
        let own = vtep.local.iter().map(|it| RouteKey { table: NODE_TABLE, prefix: IpNet::from(*it) });
        let mut targets = BTreeMap::new();
        for key in blocks.chain(own) {
            let family = IpFamily::of(&key.prefix);
            let target = targets.entry(family).or_insert_with(|| {
                let address = gateway(family, vtep);
                plan.kernel.neighbours.insert(Neighbour { ifindex, address, mac: vtep.mac });
                self.target(family, address)
            });
            plan.kernel.routes.insert(key, target.clone());
        }
    }

    fn target(&self, family: IpFamily, gateway: IpAddr) -> RouteTarget {
        let is_v4 = family == IpFamily::V4;
        let source = self.own.local.iter().find(|address| address.is_ipv4() == is_v4);
        let hop = Hop { onlink: gateway.is_ipv4(), source: source.copied(), ..Hop::by(gateway, self.index) };
        RouteTarget::via(vec![hop])
    }
}

/// The gateway of a family's routes to a VTEP. An IPv4 VTEP is its own gateway for IPv4, so an
/// overlay works on a host without IPv6.
fn gateway(family: IpFamily, vtep: &Vtep) -> IpAddr {
    match (family, vtep.ip) {
        (IpFamily::V4, IpAddr::V4(_)) => vtep.ip,
        _ => IpAddr::V6(vtep.link_local()),
    }
}
