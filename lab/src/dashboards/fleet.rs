//! All nodes: which peers are down, since when, where.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "Trunkline: fleet",
        description: "All nodes: peers that are down, with time and cause, and nodes that cannot attach pods.",
        variables: &[],
        rows: vec![
            Row {
                title: "Now",
                panels: vec![
                    Panel::new(Stat, "Nodes", "short", "node", &[("count(trunkline_build_info{instance=~\"$node\"})", "nodes")],
                        "Agents with metrics in Prometheus.").alert("TrunklineAllAgentsAbsent"),
                    Panel::new(Stat, "Nodes not ready", "short", "node",
                        &[("count(trunkline_ready{instance=~\"$node\"} == 0) or vector(0)", "not ready")],
                        "Agents that cannot attach pods; `trunkline status` on the node has the reason.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineAgentNotReady"),
                    Panel::new(Stat, "Peers down", "short", "peer",
                        &[("count(trunkline_bgp_peer_state{instance=~\"$node\"} != 6) or vector(0)", "down")],
                        "Configured BGP sessions that are not Established, shut-down sessions included.")
                        .bad(Bounds::Above(1.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Sessions", "short", "peer",
                        &[("count(trunkline_bgp_peer_state{instance=~\"$node\"} == 6) or vector(0)", "established")],
                        "Established BGP sessions."),
                    Panel::new(Stat, "Pods", "short", "attach", &[("sum(trunkline_attachments{instance=~\"$node\"})", "attached")],
                        "Interfaces of attached pods on all nodes."),
                    Panel::new(Stat, "Routes missing", "short", "node",
                        &[("sum(trunkline_kernel_routes{instance=~\"$node\",state=\"wanted\"}) - sum(trunkline_kernel_routes{instance=~\"$node\",state=\"installed\"})", "missing")],
                        "Planned routes that are missing in their node's kernel.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineRoutesNotInStep"),
                ],
            },
            Row {
                title: "Agents",
                panels: vec![
                    Panel::new(Series, "Reachable agents", "short", "node",
                        &[("max by (instance) (up{job=~\"trunkline(-agent.*)?\",instance=~\"$node\"})", "{{instance}}")],
                        "1 while Prometheus can scrape the agent of a node. Routers keep the routes of a stopped agent for the graceful restart time only.")
                        .bad(Bounds::Below(1.0)).alert("TrunklineAgentDown"),
                    Panel::new(Table, "Former targets", "short", "node",
                        &[("count by (instance) (last_over_time(up{job=~\"trunkline(-agent.*)?\",instance=~\"$node\"}[1h])) unless on (instance) up{job=~\"trunkline(-agent.*)?\"}", "targets")],
                        "Nodes with an agent that was a target of Prometheus within the last hour and is not a target now.")
                        .alert("TrunklineAgentAbsent").width(12),
                ],
            },
            Row {
                title: "Peers down",
                panels: vec![
                    Panel::new(Table, "Sessions down", "s", "peer",
                        &[("(trunkline_bgp_peer_down_seconds{instance=~\"$node\"} * on (instance, peer) group_left (reason) trunkline_bgp_peer_down_reason{instance=~\"$node\"}) or on (instance, peer) (trunkline_bgp_peer_down_seconds{instance=~\"$node\"} and on (instance, peer) trunkline_bgp_peer_state != 6)", "no session for")],
                        "Each session that is not Established, with the time since its loss and the kind of its cause.")
                        .alert("TrunklinePeerDown"),
                    Panel::new(Series, "Sessions down, by node", "short", "node",
                        &[("count by (instance) (trunkline_bgp_peer_state{instance=~\"$node\"} != 6)", "{{instance}}")],
                        "Number of sessions per node that are not Established.")
                        .alert("TrunklineNodeIsolated"),
                    Panel::new(Series, "Losses of sessions, by node", "short", "node",
                        &[("sum by (instance) (increase(trunkline_bgp_peer_flaps_total{instance=~\"$node\"}[$__rate_interval])) > 0", "{{instance}}")],
                        "Sessions that left Established, per interval.")
                        .alert("TrunklinePeerFlapping"),
                ],
            },
            Row {
                title: "Trends",
                panels: vec![
                    Panel::new(Series, "Attaches", "ops", "attach",
                        &[("sum by (outcome) (rate(trunkline_request_duration_seconds_count{command=\"attach\",instance=~\"$node\"}[$__rate_interval]))", "{{outcome}}")],
                        "Attaches per second on all nodes, by outcome.").alert("TrunklineAttachFailing"),
                    Panel::new(Series, "Prefixes received", "short", "node",
                        &[("sum by (instance) (trunkline_bgp_peer_prefixes{kind=\"received\",instance=~\"$node\"})", "{{instance}}")],
                        "Prefixes received from all peers of a node.").alert("TrunklinePrefixLimitNear"),
                    Panel::new(Series, "Repairs", "short", "node",
                        &[("sum by (instance) (increase(trunkline_kernel_repairs_total{instance=~\"$node\"}[$__rate_interval]))", "{{instance}}")],
                        "Kernel objects that another program changed and the agent repaired, per interval.")
                        .alert("TrunklineKernelChangedByOthers"),
                    Panel::new(Table, "Versions", "short", "node",
                        &[("count by (version) (trunkline_build_info{instance=~\"$node\"})", "nodes")],
                        "Number of agents per version.").width(12),
                ],
            },
        ],
    }
}
