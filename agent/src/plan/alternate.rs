//! Alternate paths: if a router sends this node a packet for a pod of another node, the packet
//! leaves through another router.
//!
//! Every node of a rack advertises the Subnet, and each pod's node advertises the pod with
//! NO_EXPORT. A router can lack the pod's route: its session with the pod's node is down, or it
//! filters the route. Such a router still has the Subnet's route from the other nodes, and sends
//! the pod's packets to one of these nodes. Any other router of the rack knows the pod. So this
//! node has one table for each uplink, with its Subnets through the routers of the other uplinks:
//!
//! | preference | packet | table | |
//! |---|---|---|---|
//! | 1029 | from this uplink | [`ALTERNATE_TABLE`] + ifindex | the Subnets that this node advertises, through the other uplinks' routers |
//! | 1030 | the same | 39998 | no other router: dropped |
//!
//! **No loops.** If the second router does not know the pod either (the pod may not exist), it
//! would send the packet to a node again. nftables allows one alternate path per packet. The packet
//! leaves with a TTL of [`ALTERNATE_TTL`], which is enough for the router and the pod's node. A
//! packet that arrives with a lower TTL is dropped (`trunkline_datapath::nft::alternate`).
//!
//! **The rules depend on the manifests, the routes on the sessions.** The end of a session changes
//! routes of this node over netlink, and no nftables rule. Only the router must detect the failure.
//! The forwarding node does not have to.
//!
//! Only routers on a connected network are used, because the TTL is too low for further routers.
//! The rules distinguish uplinks and not routers, so there is no alternate path between two routers
//! on one uplink.

use std::collections::BTreeSet;

use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{ALTERNATE_RULE, ALTERNATE_TABLE, Hop, Link, RouteKey, RouteTarget, Rule};

use super::peers::Peer;
use super::{Mode, Plan};
use crate::family::ip_family;

/// Adds the rules and routes of alternate paths to the plan.
pub(super) fn plan(plan: &mut Plan, peers: &[Peer<'_>]) {
    let routers: Vec<(&Link, IpFamily, Hop)> = peers
        .iter()
        .filter_map(|peer| Some((peer.link?, peer)))
        .flat_map(|(link, peer)| peer.routers().map(move |(family, hop)| (link, ip_family(family), hop)))
        .collect();
    // The rules do not depend on the state of the session.
    let uplinks: BTreeSet<(u32, &str)> = peers
        .iter()
        .filter(|peer| peer.is_adjacent_router())
        .filter_map(|peer| peer.link)
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    let attracted: BTreeSet<_> = plan
        .served()
        .filter(|(network, _)| network.mode == Mode::Bgp)
        .map(|(_, subnet)| subnet.prefix)
        .collect();
    if uplinks.len() < 2 || attracted.is_empty() {
        return;
    }
    let kernel = &mut plan.kernel;
    for (index, name) in &uplinks {
        let table = ALTERNATE_TABLE + index;
        for family in IpFamily::ALL {
            let rule = Rule { iif: Some((*name).to_owned()), ..Rule::always(family, ALTERNATE_RULE, table) };
            kernel.rules.insert(rule);
            let others = routers.iter().filter(|(link, of, _)| *of == family && link.index != *index);
            let hops: Vec<Hop> = others.map(|(_, _, hop)| *hop).collect();
            if hops.is_empty() {
                continue;
            }
            for prefix in attracted.iter().filter(|prefix| IpFamily::of(prefix) == family) {
                kernel.routes.insert(RouteKey { table, prefix: *prefix }, RouteTarget::via(hops.clone()));
            }
        }
    }
    kernel.alternate.uplinks = uplinks.iter().map(|(_, name)| (*name).to_owned()).collect();
    kernel.alternate.attracted = attracted;
}
