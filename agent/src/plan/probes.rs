//! Routers through which this node sends probes ([`crate::probe`]), and the parameters of each.

use std::collections::BTreeSet;
use std::net::IpAddr;

use trunkline_api::resources::Vtep;
use trunkline_bgp::types::Family;
use trunkline_datapath::plan::Link;

use super::node_claims::AcceptedNodes;
use super::peers::Peer;
use super::{Intent, Mode, Plan, ProbedRouter};

/// Number of other nodes that NodeInfos make targets.
const TARGETS: usize = 2;

/// Adds the routers and targets to the plan, and the uplinks on which the kernel drops returned
/// probes.
pub(super) fn plan(
    plan: &mut Plan,
    peers: &[Peer<'_>],
    mtu: Option<u32>,
    intent: &Intent,
    nodes: &AcceptedNodes,
) {
    let (true, Some(mtu)) = (intent.probes.enabled, mtu) else { return };
    // The rules do not depend on the state of the session.
    plan.kernel.probed = peers
        .iter()
        .filter(|peer| peer.is_adjacent_router())
        .filter_map(|peer| Some(peer.link?.name.clone()))
        .collect();
    plan.probes.mtu = mtu;
    plan.probes.targets = targets(plan, intent, nodes);
    plan.probes.routers = peers
        .iter()
        .filter_map(|peer| Some((peer.key()?, peer.link?, peer)))
        .flat_map(|(key, link, peer)| {
            peer.routers().filter_map(move |(family, hop)| {
                let gateway = hop.gateway?;
                Some(ProbedRouter {
                    peer: key,
                    family,
                    gateway,
                    ifindex: link.index,
                    link: link.name.clone(),
                    own: own(link, family, gateway),
                })
            })
        })
        .collect();
}

/// The link's address in the longest prefix that contains the gateway.
fn own(link: &Link, family: Family, gateway: IpAddr) -> Option<IpAddr> {
    let of_family = link.addresses.iter().filter(|prefix| Family::of(prefix) == family);
    let routable = of_family.filter(|prefix| match prefix.addr() {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    routable.max_by_key(|prefix| prefix.contains(&gateway)).map(|prefix| prefix.addr())
}

/// The configured targets. If there are none, the next nodes by name. Overlay addresses of
/// NodeInfos belong to the host, so the host's kernel answers, and not a pod. An ignored address is
/// no target: a compromised node writes any address into its NodeInfo.
fn targets(plan: &Plan, intent: &Intent, nodes: &AcceptedNodes) -> BTreeSet<IpAddr> {
    if !intent.probes.targets.is_empty() {
        return intent.probes.targets.clone();
    }
    if !plan.networks.values().any(|network| matches!(network.mode, Mode::Bgp | Mode::GlobalBgp)) {
        return BTreeSet::new();
    }
    let is_after = |(name, _): &(&String, &Vtep)| name.as_str() > intent.node.name.as_str();
    let (after, before) = (nodes.iter().filter(is_after), nodes.iter().filter(|node| !is_after(node)));
    after.chain(before).map(|(_, vtep)| vtep.ip).take(TARGETS).collect()
}
