//! All nodes: which peers are down, since when, where.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "Trunkline: fleet",
        description: "All nodes: which peers are down, since when, where, and which nodes can attach no pods.",
        variables: &[],
        rows: vec![
            Row {
                title: "Now",
                panels: vec![
                    Panel::new(Stat, "Nodes", "short", "node", &[("count(trunkline_build_info{instance=~\"$node\"})", "nodes")],
                        "Agents that Prometheus hears of.").alert("TrunklineAllAgentsAbsent"),
                    Panel::new(Stat, "Nodes not ready", "short", "node",
                        &[("count(trunkline_ready{instance=~\"$node\"} == 0) or vector(0)", "not ready")],
                        "Agents that can attach no pod now; `trunkline status` on the node says why.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineAgentNotReady"),
                    Panel::new(Stat, "Peers down", "short", "peer",
                        &[("count(trunkline_bgp_peer_state{instance=~\"$node\"} != 6) or vector(0)", "down")],
                        "Configured BGP sessions that are not Established, those that are shut down included.")
                        .bad(Bounds::Above(1.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Sessions", "short", "peer",
                        &[("count(trunkline_bgp_peer_state{instance=~\"$node\"} == 6) or vector(0)", "established")],
                        "BGP sessions that are Established."),
                    Panel::new(Stat, "Pods", "short", "attach", &[("sum(trunkline_attachments{instance=~\"$node\"})", "attached")],
                        "Attached pods' interfaces on all nodes."),
                    Panel::new(Stat, "Routes missing", "short", "node",
                        &[("sum(trunkline_kernel_routes{instance=~\"$node\",state=\"wanted\"}) - sum(trunkline_kernel_routes{instance=~\"$node\",state=\"installed\"})", "missing")],
                        "Routes that agents want and that are not in their node's kernel.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineRoutesNotInStep"),
                ],
            },
            Row {
                title: "Agents",
                panels: vec![
                    Panel::new(Series, "Agents that answer", "short", "node",
                        &[("max by (instance) (up{job=~\"trunkline(-agent.*)?\",instance=~\"$node\"})", "{{instance}}")],
                        "1 while Prometheus can scrape the agent of a node. Routers keep the routes of a stopped agent for the graceful restart time only.")
                        .bad(Bounds::Below(1.0)).alert("TrunklineAgentDown"),
                    Panel::new(Table, "Agents that are no target any more", "short", "node",
                        &[("count by (instance) (last_over_time(up{job=~\"trunkline(-agent.*)?\",instance=~\"$node\"}[1h])) unless on (instance) up{job=~\"trunkline(-agent.*)?\"}", "targets")],
                        "Nodes whose agent was a target of Prometheus within the last hour.")
                        .alert("TrunklineAgentAbsent").width(12),
                ],
            },
            Row {
                title: "Peers that are down",
                panels: vec![
                    Panel::new(Table, "Down, since", "s", "peer",
                        &[("(trunkline_bgp_peer_down_seconds{instance=~\"$node\"} * on (instance, peer) group_left (reason) trunkline_bgp_peer_down_reason{instance=~\"$node\"}) or on (instance, peer) (trunkline_bgp_peer_down_seconds{instance=~\"$node\"} and on (instance, peer) trunkline_bgp_peer_state != 6)", "no session for")],
                        "Each session that is not Established, for how long there has been none, and the kind of its cause.")
                        .alert("TrunklinePeerDown"),
                    Panel::new(Series, "Sessions down, by node", "short", "node",
                        &[("count by (instance) (trunkline_bgp_peer_state{instance=~\"$node\"} != 6)", "{{instance}}")],
                        "How many of a node's sessions were not Established.")
                        .alert("TrunklineNodeIsolated"),
                    Panel::new(Series, "Losses of sessions, by node", "short", "node",
                        &[("sum by (instance) (increase(trunkline_bgp_peer_flaps_total{instance=~\"$node\"}[$__rate_interval])) > 0", "{{instance}}")],
                        "Sessions that left Established in each interval.")
                        .alert("TrunklinePeerFlapping"),
                ],
            },
            Row {
                title: "Trends",
                panels: vec![
                    Panel::new(Series, "Attaches", "ops", "attach",
                        &[("sum by (outcome) (rate(trunkline_request_duration_seconds_count{command=\"attach\",instance=~\"$node\"}[$__rate_interval]))", "{{outcome}}")],
                        "Attaches a second on all nodes, by outcome.").alert("TrunklineAttachFailing"),
                    Panel::new(Series, "Prefixes received", "short", "node",
                        &[("sum by (instance) (trunkline_bgp_peer_prefixes{kind=\"received\",instance=~\"$node\"})", "{{instance}}")],
                        "Prefixes that all peers of a node together have told.").alert("TrunklinePrefixLimitNear"),
                    Panel::new(Series, "Repairs", "short", "node",
                        &[("sum by (instance) (increase(trunkline_kernel_repairs_total{instance=~\"$node\"}[$__rate_interval]))", "{{instance}}")],
                        "What somebody else changed in a node's kernel and the agent put back, in each interval.")
                        .alert("TrunklineKernelChangedByOthers"),
                    Panel::new(Table, "Versions", "short", "node",
                        &[("count by (version) (trunkline_build_info{instance=~\"$node\"})", "nodes")],
                        "How many agents run which version.").width(12),
                ],
            },
        ],
    }
}
