//! Addresses: how many are free in each subnet, and how fast they are used up.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "addresses",
        title: "Trunkline: addresses",
        description: "IPAM capacity: free addresses of networks and subnets, and the rate of allocation.",
        variables: &[],
        rows: vec![
            Row {
                title: "Networks of the cluster",
                panels: vec![
                    Panel::new(Series, "Free share", "percentunit", "controller",
                        &[("max by (network, family) (trunkline_controller_network_addresses{state=\"available\"}) / on (network, family) (max by (network, family) (trunkline_controller_network_addresses{state=\"total\"}) > 0)", "{{network}} {{family}}")],
                        "The share of each network's addresses that is free.").bad(Bounds::Below(0.1)).alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Used", "short", "controller",
                        &[("max by (network, family) (trunkline_controller_network_addresses{state=\"used\"})", "{{network}} {{family}}")],
                        "Addresses of pods, and addresses retained for them.").alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Allocations and releases", "ops", "controller",
                        &[("sum by (what) (rate(trunkline_controller_addresses_total[$__rate_interval]))", "{{what}}")],
                        "Addresses per second that the controller allocated, retained for a pod's successor, and released."),
                    Panel::new(Stat, "Waiting pods", "short", "controller", &[("sum(trunkline_controller_pods_waiting)", "waiting")],
                        "Pods without an address; each has an event with the reason.").bad(Bounds::Above(1.0)).alert("TrunklineNetworkNearlyEmpty"),
                ],
            },
            Row {
                title: "Subnets on nodes",
                panels: vec![
                    Panel::new(Table, "Free", "short", "node", &[("trunkline_subnet_addresses{state=\"free\",instance=~\"$node\"}", "free")],
                        "Free addresses for pods that do not name one: of the node's own range, or of the whole cluster with an API server.")
                        .bad(Bounds::Below(1.0)).alert("TrunklinePoolNearlyEmpty").width(12),
                    Panel::new(Series, "Free share", "percentunit", "node",
                        &[("trunkline_subnet_addresses{state=\"free\",instance=~\"$node\"} / ignoring (state) (trunkline_subnet_addresses{state=\"total\",instance=~\"$node\"} > 0)", "{{instance}} {{subnet}}")],
                        "The share of each subnet's addresses that is free.").bad(Bounds::Below(0.1)).alert("TrunklinePoolNearlyEmpty"),
                    Panel::new(Series, "Used", "short", "node", &[("trunkline_subnet_addresses{state=\"used\",instance=~\"$node\"}", "{{instance}} {{subnet}}")],
                        "Addresses that pods on the node use.").alert("TrunklinePoolNearlyEmpty"),
                ],
            },
        ],
    }
}
