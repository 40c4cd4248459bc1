//! Live migration of a virtual machine in networks of mode BGP and GlobalBGP.
//!
//! Two pods have the addresses, and one of them runs the virtual machine. Only the node of that pod
//! delivers packets to its own pod:
//!
//! | pod | route to the pod | advertisement |
//! |---|---|---|
//! | [`Active`](MigrationState::Active) | yes | as usual |
//! | [`Arrived`](MigrationState::Arrived) | yes | as usual |
//! | [`Departing`](MigrationState::Departing) | yes | worse than any other path |
//! | [`Inactive`](MigrationState::Inactive) | no: its node sends the packets to the fabric, or to the target's node | none |
//!
//! **The worse path** has ORIGIN INCOMPLETE, GRACEFUL_SHUTDOWN (RFC 8326), and towards internal peers
//! LOCAL_PREF 0. A router compares ORIGIN before it selects paths for ECMP. So it uses the target's
//! path alone, from the moment when the path arrives, even if it does not know the community. AS_PATH
//! does not change: routers often accept only an AS_PATH of one AS from a rack.
//!
//! **Packets for an inactive pod's addresses** have a rule after the local pods (preference
//! [`MIGRATION_RULE`]) to the table of the subnet, which leads to the fabric. So pods of the target's
//! node reach the source before the switch. And packets that still arrive at the source after the
//! switch continue to the target. The rule exists before the switch, so the switch changes only the
//! route to the pod. Between two uplinks in a network of mode BGP such a packet is on an alternate
//! path ([`super::alternate`]), so it cannot loop. In GlobalBGP its TTL ends a loop.
//!
//! **Late packets.** A router selects the target's path some milliseconds after its UPDATE (FRR's
//! bgpd: 50 ms), and sends packets to the source until then. If an uplink's network has an address of
//! the target's Node, the source sends these packets directly to the target's node:
//!
//! | preference | packet | table | |
//! |---|---|---|---|
//! | [`MIGRATION_UPLINK_RULE`] | from an uplink, to the virtual machine | [`MIGRATION_TABLE`] | the virtual machine through the target's node |
//!
//! The route exists from the source's state [`Departing`](MigrationState::Departing) on, so the switch
//! needs no change of it. It ends with the source's pod. Packets of the node's own pods do not use it:
//! routers may isolate the hosts of one network, and these packets do not end when the routers switch.
//!
//! The agent excludes its own addresses and those of its routers. A wrong address in a Node's status
//! then cannot return packets to a router. The kernel may send ICMP redirects for late packets; their
//! senders ignore redirects that are not from their own router.
//!
//! An overlay needs no such rule: its table has the route to the node of the other pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::Community;
use trunkline_bgp::wire::Origin;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{
    Hop, Link, MIGRATION_RULE, MIGRATION_TABLE, MIGRATION_UPLINK_RULE, RouteKey, RouteTarget, Rule,
};

use super::{Host, Mode, Plan};
use crate::ipam::MigrationState;

/// Adds the rules and routes of addresses in live migration to the plan.
pub(super) fn plan(plan: &mut Plan, host: &Host) {
    for ((network, address), targets) in &host.migrating {
        let network = plan.networks.get(network).filter(|network| network.refused.is_none());
        let network = network.filter(|network| matches!(network.mode, Mode::Bgp | Mode::GlobalBgp));
        let subnet = network.and_then(|network| network.subnet_of(*address));
        let Some(table) = subnet.and_then(|(_, subnet)| subnet.table) else { continue };
        let prefix = IpNet::from(*address);
        let rule = Rule { to: Some(prefix), ..Rule::always(IpFamily::of(&prefix), MIGRATION_RULE, table) };
        plan.kernel.rules.insert(rule);
        plan_late_packets(plan, host, prefix, targets);
    }
}

/// Adds the rules and the route of late packets to the plan, if an uplink's network has an address of
/// the target's node.
fn plan_late_packets(plan: &mut Plan, host: &Host, prefix: IpNet, targets: &BTreeSet<IpAddr>) {
    let family = IpFamily::of(&prefix);
    let links = &host.kernel.links;
    let is_uplink =
        |link: &&Link| link.up && plan.routers.iter().any(|(_, router)| router.ifindex == Some(link.index));
    let uplinks: Vec<&Link> = links.iter().filter(is_uplink).collect();
    let is_other_node = |target: &IpAddr| {
        let is_own = links.iter().flat_map(|link| &link.addresses).any(|own| own.addr() == *target);
        let is_router = plan.routers.iter().any(|(_, router)| router.gateway == Some(*target));
        !is_own && !is_router
    };
    let mut hops = Vec::new();
    for target in targets.iter().filter(|target| is_other_node(target)) {
        let shares = |link: &&&Link| link.addresses.iter().any(|network| network.contains(target));
        hops.extend(uplinks.iter().filter(shares).map(|link| Hop::by(*target, link.index)));
    }
    hops.retain(|hop| hop.gateway.is_some_and(|gateway| gateway.is_ipv4() == prefix.addr().is_ipv4()));
    if hops.is_empty() {
        return;
    }
    plan.kernel.routes.insert(RouteKey { table: MIGRATION_TABLE, prefix }, RouteTarget::via(hops));
    plan.kernel.rules.extend(uplinks.iter().map(|uplink| Rule {
        to: Some(prefix),
        iif: Some(uplink.name.clone()),
        ..Rule::always(family, MIGRATION_UPLINK_RULE, MIGRATION_TABLE)
    }));
}

/// The origination of a pod's address, with these communities.
pub(super) fn origination(state: MigrationState, mut communities: Vec<Community>) -> Origination {
    match state {
        MigrationState::Active | MigrationState::Arrived | MigrationState::Inactive => {
            Origination { communities, ..Origination::default() }
        }
        MigrationState::Departing => {
            communities.push(Community::GRACEFUL_SHUTDOWN);
            let (origin, local_pref) = (Origin::Incomplete, Some(0));
            Origination { origin, local_pref, communities, ..Origination::default() }
        }
    }
}
