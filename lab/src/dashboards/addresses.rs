//! Addresses: how many are free in each subnet, and how fast they are used up.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "addresses",
        title: "Trunkline: addresses",
        description: "IPAM capacity: what is left in networks and subnets, and how fast it goes.",
        variables: &[],
        rows: vec![
            Row {
                title: "Networks of the cluster",
                panels: vec![
                    Panel::new(Series, "Left", "percentunit", "controller",
                        &[("max by (network, family) (trunkline_controller_network_addresses{state=\"available\"}) / on (network, family) (max by (network, family) (trunkline_controller_network_addresses{state=\"total\"}) > 0)", "{{network}} {{family}}")],
                        "The share of each network's addresses that can still be given.").bad(Bounds::Below(0.1)).alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Used", "short", "controller",
                        &[("max by (network, family) (trunkline_controller_network_addresses{state=\"used\"})", "{{network}} {{family}}")],
                        "Addresses that pods have, or that are kept for them.").alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Given and given back", "ops", "controller",
                        &[("sum by (what) (rate(trunkline_controller_addresses_total[$__rate_interval]))", "{{what}}")],
                        "Addresses a second that the controller gave, kept for a pod's successor, and took back."),
                    Panel::new(Stat, "Pods that wait", "short", "controller", &[("sum(trunkline_controller_pods_waiting)", "waiting")],
                        "Pods that got no address yet; each has an event that says why.").bad(Bounds::Above(1.0)).alert("TrunklineNetworkNearlyEmpty"),
                ],
            },
            Row {
                title: "Subnets on nodes",
                panels: vec![
                    Panel::new(Table, "Free", "short", "node", &[("trunkline_subnet_addresses{state=\"free\",instance=~\"$node\"}", "free")],
                        "Addresses that can still be given to a pod that names none: of the node's own range, or with an API server of the whole cluster.")
                        .bad(Bounds::Below(1.0)).alert("TrunklinePoolNearlyEmpty").width(12),
                    Panel::new(Series, "Left", "percentunit", "node",
                        &[("trunkline_subnet_addresses{state=\"free\",instance=~\"$node\"} / ignoring (state) (trunkline_subnet_addresses{state=\"total\",instance=~\"$node\"} > 0)", "{{instance}} {{subnet}}")],
                        "The share of each subnet's addresses that can still be given.").bad(Bounds::Below(0.1)).alert("TrunklinePoolNearlyEmpty"),
                    Panel::new(Series, "Used", "short", "node", &[("trunkline_subnet_addresses{state=\"used\",instance=~\"$node\"}", "{{instance}} {{subnet}}")],
                        "Addresses that pods have.").alert("TrunklinePoolNearlyEmpty"),
                ],
            },
        ],
    }
}
