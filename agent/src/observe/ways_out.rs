//! The next hops of the pods' default routes: in the plan, and in the kernel.

use std::net::IpAddr;

use trunkline_api::control::{DefaultRouteBasis, DefaultRouteStatus, ExcludedPeer};
use trunkline_bgp::speaker::Explanation as Explained;
use trunkline_bgp::types::Family;
use trunkline_datapath::kernel::KernelStatus;
use trunkline_datapath::plan::Hop;

use crate::family::ip_family;
use crate::reconcile::SpeakerStatus;

/// The default route of each family that has next hops, or peers that could become next hops.
pub(super) fn ways_out(bgp: &SpeakerStatus, kernel: &KernelStatus) -> Vec<DefaultRouteStatus> {
    let found = Family::ALL.into_iter().filter_map(|family| way_out(bgp, kernel, family));
    found
        .filter(|way| !(way.wanted.is_empty() && way.installed.is_empty() && way.left_out.is_empty()))
        .collect()
}

/// The default route, if pods' packets to the explained prefix use it. They use it if the prefix is
/// the default route itself, or if the agent does not import the peers' routes. The result is none
/// for a prefix that this node originates.
pub(super) fn of_prefix(
    bgp: &SpeakerStatus,
    kernel: &KernelStatus,
    explained: &Explained,
) -> Option<DefaultRouteStatus> {
    let originated = explained.paths.iter().any(|path| path.route.peer.is_none());
    let default = explained.prefix.prefix_len() == 0;
    let follows = default || !bgp.imports && !originated;
    follows.then(|| way_out(bgp, kernel, Family::of(&explained.prefix))).flatten()
}

/// The default route of one family.
fn way_out(bgp: &SpeakerStatus, kernel: &KernelStatus, family: Family) -> Option<DefaultRouteStatus> {
    let (table, installed) = kernel.ways_out.get(&ip_family(family))?;
    let installed = gateways(installed);
    let planned = bgp.ways_out.get(&family);
    // A learned default route replaces the plan's. If no default route is learned, the peers
    // without `import` are next hops.
    let imported = bgp.imports && planned.is_none_or(|planned| gateways(&planned.hops()) != installed);
    let Some(planned) = planned.filter(|_| !imported) else {
        return Some(DefaultRouteStatus {
            family: family.to_string(),
            table: *table,
            basis: DefaultRouteBasis::Imported,
            peers: Vec::new(),
            wanted: installed.clone(),
            installed,
            left_out: Vec::new(),
        });
    };
    let left_out = planned.left_out.iter().map(|out| ExcludedPeer {
        peer: out.peer.clone(),
        cause: out.cause,
        reason: out.cause.words().to_owned(),
    });
    Some(DefaultRouteStatus {
        family: family.to_string(),
        table: *table,
        basis: planned.basis.into(),
        peers: planned.next_hops.iter().map(|(peer, _)| peer.clone()).collect(),
        wanted: gateways(&planned.hops()),
        installed,
        left_out: left_out.collect(),
    })
}

fn gateways(hops: &[Hop]) -> Vec<IpAddr> {
    let mut gateways: Vec<IpAddr> = hops.iter().filter_map(|hop| hop.gateway).collect();
    gateways.sort_unstable();
    gateways
}
