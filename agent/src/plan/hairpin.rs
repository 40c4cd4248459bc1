//! `hairpin`: packets between pods of a network leave through the switch and return, also between
//! two pods of one node.
//!
//! This is for fabrics that filter, count or mirror such packets by port. Four rules precede the
//! rule for local pods:
//!
//! | preference | rule | table | |
//! |---|---|---|---|
//! | 960 | mark [`TRANSLATED`] | 39999 | a Service's connection: this node translates it, so it must stay here |
//! | 970 | sent by the host (`iif lo`) | 39999 | the host reaches its pods directly |
//! | 970 | from an uplink | 39999 | the packet already left the node |
//! | 980 | from a subnet of the network to one | T, or 39997 | through the routers |
//!
//! In BGP, and between subnets of a VLAN network, T is correct: its default route leads to the
//! routers, which know the pod's node. Within a VLAN's subnet, T has the link itself, where no host
//! would answer ARP for a pod of the requesting host. Table 39997 has the subnet's router instead.
//! While T has no route, pods of one node reach each other directly.
//!
//! **The mark.** nftables sets the mark on packets of connections whose destination was translated
//! here, in both directions. These are connections to a NodePort or to a Service, even if the
//! backend is the client itself. The reply must meet the connection's entry, so it must not leave
//! the node first. If the host checks sources strictly (`rp_filter` 1, IPv4), `src_valid_mark`
//! makes this check use the mark. Otherwise the check would take rule 980 for the return path, and
//! drop translated packets of pods.

use std::collections::BTreeSet;

use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{
    DROP_TABLE, HAIRPIN_TABLE, Hop, Mark, POD_TABLE, RouteKey, RouteTarget, Rule, Sysctl, TRANSLATED,
};

use super::{Mode, NetworkPlan, Plan, SubnetPlan};

/// Adds the rules and routes of networks with `hairpin`. Their links and tables must already be
/// planned.
pub(super) fn plan_hairpin(plan: &mut Plan) {
    let Plan { kernel, networks, .. } = plan;
    let uplinks =
        kernel.rules.iter().filter(|rule| rule.table == DROP_TABLE).filter_map(|rule| rule.iif.clone());
    let entrances: BTreeSet<String> = uplinks.chain(["lo".to_owned()]).collect();
    for network in networks.values().filter(|network| network.hairpin && network.refused.is_none()) {
        kernel.translated.hairpin = true;
        kernel.sysctls.insert("net/ipv4/conf/all/src_valid_mark".to_owned(), Sysctl::Exactly("1"));
        for family in network.subnets.values().map(|subnet| IpFamily::of(&subnet.prefix)) {
            let stays = Rule { mark: Some(Mark::bits(TRANSLATED)), ..Rule::always(family, 960, POD_TABLE) };
            let comes = entrances
                .iter()
                .map(|iif| Rule { iif: Some(iif.clone()), ..Rule::always(family, 970, POD_TABLE) });
            kernel.rules.extend(comes.chain([stays]));
        }
        for from in network.subnets.values() {
            for to in
                network.subnets.values().filter(|to| IpFamily::of(&to.prefix) == IpFamily::of(&from.prefix))
            {
                let Some(table) = way(network, from, to) else { continue };
                kernel
                    .rules
                    .insert(Rule { to: Some(to.prefix), ..Rule::from_prefix(980, from.prefix, table) });
            }
            let device = from.device.as_ref().and_then(|device| device.ifindex);
            if let (Some(gateway), Some(ifindex)) = (from.gateway, device) {
                let router = Hop { onlink: true, ..Hop::by(gateway, ifindex) };
                let key = RouteKey { table: HAIRPIN_TABLE, prefix: from.prefix };
                kernel.routes.insert(key, RouteTarget::via(vec![router]));
            }
        }
    }
}

fn way(network: &NetworkPlan, from: &SubnetPlan, to: &SubnetPlan) -> Option<u32> {
    if network.mode == Mode::Vlan && from.prefix == to.prefix { Some(HAIRPIN_TABLE) } else { from.table }
}
