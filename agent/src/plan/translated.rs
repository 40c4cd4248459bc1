//! Connections with a destination that this node translates (DNAT): Services, hostPorts, an
//! administrator's own rules.
//!
//! Two rules of this node are wrong for such packets. Rule 1030 drops packets from the fabric for
//! pods of other nodes; after DNAT, the pod may be on another node. Rule 1100 sends a pod's packets
//! to the pod's network. A pod's reply to a NodePort has the node's address as source, so it must
//! leave through the link of the request. Another router may not have a route to the client, or may
//! drop an unexpected source.
//!
//! nftables marks the packets after DNAT. It uses the state of the connection and not a mark of the
//! service proxy, so it works with every proxy (`trunkline_datapath::nft::translated`).
//!
//! The marks need connection tracking, which reduces the rate of new connections by one sixth on a
//! node without NAT. So they are loaded only if connections are translated: in a cluster, with
//! `serviceCIDRs`, or after another program makes a NAT chain.
//!
//! The rules here match these marks:
//!
//! | preference | packet mark | table | |
//! |---|---|---|---|
//! | 1024 | number of a link ([`LINK_BITS`]) | [`RETURN_TABLE`] + ifindex | a reply: the link's connected prefixes, and its routers |
//! | 1025 | number of a link | main | a reply without a route in that table, and replies over links without a router |
//! | 1028 | [`TRANSIT`] | T | a request from outside, or its reply, to a pod of another node |
//!
//! Pods of this node (1000) and of the overlay (1010) come first: the route to them does not depend
//! on the client.
//!
//! **Numbered links.** Links with a router: an established BGP peer, a VLAN's gateway, or a next
//! hop of a default route of the main table. All other links share number 15 and use the main
//! table. A link keeps its number as long as it has a router, also over restarts: the number is
//! read from the rules of the last run. So the marks of existing connections stay valid.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{
    Hop, Link, MAIN_TABLE, Mark, OTHER_LINKS, RETURN_RULE, RETURN_TABLE, RouteKey, RouteTarget, Rule,
    TRANSIT, mark_of,
};

use super::{Host, Intent, Mode, Plan};

/// Preference of the rules for requests to pods of other nodes.
const TRANSIT_RULE: u32 = 1028;

/// Adds the rules and tables for translated connections to the plan.
pub(super) fn plan(intent: &Intent, host: &Host, plan: &mut Plan) {
    let routers: BTreeSet<(IpFamily, Hop)> = plan.routers.union(&host.kernel.gateways).copied().collect();
    let links: Vec<&Link> = host
        .kernel
        .links
        .iter()
        .filter(|link| routers.iter().any(|(_, hop)| hop.ifindex == Some(link.index)))
        .collect();
    let numbers = number(&links, &host.kernel.link_numbers);
    for (link, number) in links.iter().filter_map(|link| Some((*link, *numbers.get(&link.index)?))) {
        plan_return(plan, link, &routers, number);
    }
    let main = |family, number| Rule {
        mark: Some(mark_of(number)),
        ..Rule::always(family, RETURN_RULE + 1, MAIN_TABLE)
    };
    for family in IpFamily::ALL {
        let numbers = numbers.values().copied().chain([OTHER_LINKS]);
        plan.kernel.rules.extend(numbers.map(|number| main(family, number)));
    }
    plan_transit(plan);
    plan.kernel.translated.always = intent.in_cluster
        || !intent.service_cidrs.is_empty()
        || !plan.kernel.nat.is_empty()
        || plan.kernel.translated.hairpin;
    plan.kernel.translated.pods =
        intent.subnets.iter().filter_map(|subnet| subnet.spec.range.cidr().ok()).collect();
    let named = |link: &&Link| Some((link.name.clone(), *numbers.get(&link.index)?));
    plan.kernel.translated.links = links.iter().filter_map(named).collect();
}

/// A number for each link, by ifindex: its existing number, otherwise the lowest free one. Links
/// beyond the last number have none.
fn number(links: &[&Link], before: &BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    for link in links {
        let kept = before.get(&link.index).filter(|number| (1..OTHER_LINKS).contains(*number));
        numbers.extend(
            kept.filter(|kept| !numbers.values().any(|number| number == *kept))
                .map(|kept| (link.index, *kept)),
        );
    }
    for link in links {
        if numbers.contains_key(&link.index) {
            continue;
        }
        let free = (1..OTHER_LINKS).find(|number| !numbers.values().any(|taken| taken == number));
        numbers.extend(free.map(|number| (link.index, number)));
    }
    numbers
}

fn plan_return(plan: &mut Plan, link: &Link, routers: &BTreeSet<(IpFamily, Hop)>, number: u32) {
    let table = RETURN_TABLE + link.index;
    let connected = link.addresses.iter().map(IpNet::trunc).filter(|prefix| {
        let link_local = matches!(prefix, IpNet::V6(prefix) if prefix.addr().is_unicast_link_local());
        prefix.prefix_len() < prefix.max_prefix_len() && !link_local
    });
    for prefix in connected {
        let on_link = RouteTarget::via(vec![Hop::link(link.index)]);
        plan.kernel.routes.insert(RouteKey { table, prefix }, on_link);
    }
    for family in IpFamily::ALL {
        let hops: Vec<Hop> = routers
            .iter()
            .filter(|(of, hop)| *of == family && hop.ifindex == Some(link.index))
            .map(|(_, hop)| *hop)
            .collect();
        if !hops.is_empty() {
            plan.kernel.routes.insert(RouteKey::default_route(table, family), RouteTarget::via(hops));
        }
        let rule = Rule { mark: Some(mark_of(number)), ..Rule::always(family, RETURN_RULE, table) };
        plan.kernel.rules.insert(rule);
    }
}

/// In BGP, one table T of the underlay leads to all pods. In a VLAN network, each subnet has its
/// own table.
fn plan_transit(plan: &mut Plan) {
    let mut rules = BTreeSet::new();
    for (network, subnet) in plan.served() {
        let (Some(table), family) = (subnet.table, IpFamily::of(&subnet.prefix)) else { continue };
        let to = match network.mode {
            Mode::Bgp | Mode::GlobalBgp => None,
            Mode::Vlan => Some(subnet.prefix),
            Mode::Vxlan => continue,
        };
        rules.insert(Rule {
            to,
            mark: Some(Mark::bits(TRANSIT)),
            ..Rule::always(family, TRANSIT_RULE, table)
        });
    }
    plan.kernel.rules.extend(rules);
}
