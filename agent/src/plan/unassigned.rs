//! Packets from the fabric for an address of a Subnet that no local pod has: the node counts them
//! by Subnet and drops them.
//!
//! The kernel does not count packets that a `blackhole` route drops. So a route to a device of the
//! agent comes first. nftables rules count the packets to this device by Subnet and drop them
//! (`trunkline_datapath::nft::unassigned`).
//!
//! | preference | packet | table | |
//! |---|---|---|---|
//! | 1029 | from an uplink with [alternate paths](super::alternate) | that uplink's | Subnets without another router: to the device |
//! | 1029 | from any other link of the fabric | [`UNASSIGNED_TABLE`](trunkline_datapath::plan::UNASSIGNED_TABLE) | all Subnets: to the device |
//! | 1030 | the same | 39998 | the blackholes |
//!
//! **The drop does not depend on the device.** While the device is missing or down, its routes are
//! missing too, and the blackholes drop the packets. While the nftables rules are missing, the
//! device drops its packets. Only the count is lost.
//!
//! **Delivered packets have no cost from the routes:** rule 1000 matches local pods first.

use std::collections::BTreeSet;

use ipnet::IpNet;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{
    ALTERNATE_RULE, ALTERNATE_TABLE, DROP_TABLE, Hop, LinkKind, LinkPlan, RouteKey, RouteTarget, Rule,
    SINK_ALIAS, SINK_NAME,
};

use super::{Host, Plan};

/// Larger than any packet, so the kernel never answers "packet too big".
const SINK_MTU: u32 = 65_535;

/// Adds device, rules and routes to the plan. The fabric's links must already be planned.
pub(super) fn plan(plan: &mut Plan, host: &Host) {
    let kernel = &mut plan.kernel;
    let subnets: BTreeSet<IpNet> =
        kernel.routes.keys().filter(|key| key.table == DROP_TABLE).map(|key| key.prefix).collect();
    let entrances: Vec<Rule> = kernel.rules.iter().filter(|rule| rule.table == DROP_TABLE).cloned().collect();
    if subnets.is_empty() || entrances.is_empty() {
        return;
    }
    let sink = LinkPlan { kind: LinkKind::Sink, alias: SINK_ALIAS.to_owned(), mtu: SINK_MTU };
    kernel.links.insert(SINK_NAME.to_owned(), sink);
    kernel.unassigned.subnets.clone_from(&subnets);
    let Some(device) = host.kernel.links.iter().find(|link| link.own && link.kind == Some(LinkKind::Sink))
    else {
        return;
    };
    let target = RouteTarget::via(vec![Hop::link(device.index)]);
    for entrance in entrances {
        let alternate = kernel
            .rules
            .iter()
            .find(|rule| {
                rule.table > ALTERNATE_TABLE && (&rule.iif, rule.family) == (&entrance.iif, entrance.family)
            })
            .map(|rule| rule.table);
        let table = alternate.unwrap_or(trunkline_datapath::plan::UNASSIGNED_TABLE);
        if alternate.is_none() {
            kernel.rules.insert(Rule { priority: ALTERNATE_RULE, table, ..entrance.clone() });
        }
        for prefix in subnets.iter().filter(|prefix| IpFamily::of(prefix) == entrance.family) {
            kernel.routes.entry(RouteKey { table, prefix: *prefix }).or_insert_with(|| target.clone());
        }
    }
}
