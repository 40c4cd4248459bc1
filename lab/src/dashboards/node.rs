//! One node: its sessions, its kernel, its pods.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, POLICY_STATE, Panel, Row, SESSION, YES_NO};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "node",
        title: "Trunkline: node",
        description: "One node: sessions, kernel, pods, and convergence times.",
        variables: &[],
        rows: vec![
            Row {
                title: "Now",
                panels: vec![
                    Panel::new(Stat, "Ready", "short", "attach", &[("min(trunkline_ready{instance=~\"$node\"})", "ready")],
                        "yes: pods can be attached. no: `trunkline status` lists what is missing.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineAgentNotReady"),
                    Panel::new(Stat, "Uptime", "s", "fleet", &[("min(trunkline_uptime_seconds{instance=~\"$node\"})", "up")],
                        "The time since the agent's start. A restart loses no packet."),
                    Panel::new(Stat, "Manifests in force", "short", "attach", &[("min(trunkline_manifests_in_force{instance=~\"$node\"})", "in force")],
                        "no: the current manifests are refused, and earlier ones are in force.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineManifestsRefused"),
                    Panel::new(Stat, "Store usable", "short", "addresses", &[("min(trunkline_store_usable{instance=~\"$node\"})", "usable")],
                        "no: the agent allocates no address, because the store is full, damaged or unreachable.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineStoreUnusable"),
                    Panel::new(Stat, "Pods", "short", "attach", &[("sum(trunkline_attachments{instance=~\"$node\"})", "attached")],
                        "Interfaces of attached pods."),
                    Panel::new(Stat, "Unrecorded pods", "short", "attach", &[("sum(trunkline_unrecorded_pods{instance=~\"$node\"})", "unrecorded")],
                        "Pods in the kernel without a record, because the store was lost; they keep running.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineAttachFailing"),
                ],
            },
            Row {
                title: "Peers",
                panels: vec![
                    Panel::new(Table, "Sessions", "short", "peer", &[("trunkline_bgp_peer_state{instance=~\"$node\"}", "state")],
                        "Each peer and the state of its session (RFC 4271).")
                        .words(SESSION).bad(Bounds::Below(6.0)).alert("TrunklinePeerDown").width(12),
                    Panel::new(Series, "Sessions Established", "short", "peer", &[("trunkline_bgp_established_peers{instance=~\"$node\"}", "{{instance}}")],
                        "Number of Established sessions; 0 while the speaker does not run.")
                        .bad(Bounds::Below(1.0)).alert("TrunklineNodeIsolated"),
                    Panel::new(Series, "Packets on alternate paths", "pps", "peer",
                        &[("sum by (action) (rate(trunkline_alternate_path_packets_total{instance=~\"$node\"}[$__rate_interval]))", "{{action}}")],
                        "Packets from a router for pods of other nodes: forwarded to another router (the first one lacks the pod's route), or dropped (no router has it).")
                        .alert("TrunklineAlternatePaths"),
                    Panel::new(Series, "Packets without a route", "pps", "addresses",
                        &[("sum by (instance) (rate(trunkline_alternate_path_packets_total{action=\"dropped\",instance=~\"$node\"}[$__rate_interval]))", "{{instance}}")],
                        "Packets that two routers sent to nodes without the pod: no pod has the address, or no router has its route.")
                        .alert("TrunklineAlternatePathDrops"),
                    Panel::new(Series, "Packets for no pod here", "pps", "addresses",
                        &[("sum by (network, subnet) (rate(trunkline_subnet_unassigned_packets_total{instance=~\"$node\"}[$__rate_interval]))", "{{network}} {{subnet}}")],
                        "Packets from the fabric for addresses of a subnet without a pod on this node, dropped because there is no other router to forward them to.")
                        .alert("TrunklineUnassignedPackets"),
                    Panel::new(Stat, "Speaker running", "short", "peer", &[("min(trunkline_bgp_speaker_running{instance=~\"$node\"})", "runs")],
                        "no: the node has no BGP session; `trunkline status` has the reason.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineSpeakerNotRunning").width(6),
                    Panel::new(Stat, "Listening", "short", "peer", &[("min(trunkline_bgp_listening{instance=~\"$node\"})", "accepts")],
                        "no: the agent cannot listen at one of its addresses; sessions that this node opens are not affected.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineBgpNotListening").width(6),
                    Panel::new(Table, "Causes", "short", "peer", &[("trunkline_bgp_peer_down_reason{instance=~\"$node\"}", "cause")],
                        "The kind of cause of each session that is not Established; docs/alerts.md has the remedies.").alert("TrunklinePeerDown").width(12),
                    Panel::new(Series, "Prefixes accepted", "short", "peer",
                        &[("sum by (peer, family) (trunkline_bgp_peer_prefixes{kind=\"accepted\",instance=~\"$node\"})", "{{peer}} {{family}}")],
                        "Prefixes of each peer that import policy accepts.").alert("TrunklinePrefixLimitNear"),
                    Panel::new(Series, "Prefixes advertised", "short", "peer",
                        &[("sum by (peer, family) (trunkline_bgp_peer_prefixes{kind=\"advertised\",instance=~\"$node\"})", "{{peer}} {{family}}")],
                        "Prefixes advertised to each peer: the node's pods and subnets."),
                    Panel::new(Series, "BFD", "short", "peer", &[("trunkline_bfd_session_up{instance=~\"$node\"}", "{{peer}}")],
                        "1 while the BFD session with a peer is Up.").bad(Bounds::Below(1.0)).alert("TrunklineBfdFlapping"),
                    Panel::new(Series, "Connections refused", "short", "peer",
                        &[("increase(trunkline_bgp_refused_connections_total{instance=~\"$node\"}[$__rate_interval])", "{{instance}}")],
                        "Connections to port 179 from addresses without a configured peer, closed at once, per interval."),
                    Panel::new(Series, "BFD packets refused", "short", "peer",
                        &[("sum by (reason) (increase(trunkline_bfd_refused_packets_total{instance=~\"$node\"}[$__rate_interval]))", "{{reason}}")],
                        "BFD packets without a session, by reason, per interval; `socket`: dropped in the kernel, before they wake the agent."),
                ],
            },
            Row {
                title: "Kernel",
                panels: vec![
                    Panel::new(Series, "Routes", "short", "peer", &[("trunkline_kernel_routes{instance=~\"$node\"}", "{{state}}")],
                        "Trunkline's routes: planned, installed, and stale ones of the agent's last run.").alert("TrunklineRoutesNotInStep"),
                    Panel::new(Series, "Repairs", "short", "attach",
                        &[("increase(trunkline_kernel_repairs_total{instance=~\"$node\"}[$__rate_interval])", "{{instance}}")],
                        "Objects that another program removed or changed and the agent repaired, per interval.")
                        .alert("TrunklineKernelChangedByOthers"),
                    Panel::new(Series, "Errors", "short", "peer",
                        &[("sum by (reason) (increase(trunkline_kernel_errors_total{instance=~\"$node\"}[$__rate_interval])) or sum(0 * trunkline_ready{instance=~\"$node\"})", "{{reason}}")],
                        "Requests that the kernel refused, by reason, per interval.").alert("TrunklineRoutesNotInStep"),
                    Panel::new(Series, "From the loss of a peer to the kernel", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (le) (increase(trunkline_convergence_peer_loss_to_kernel_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "The time from the loss of a session until the kernel has the new routes, 99th percentile of each interval with a loss.")
                        .alert("TrunklinePeerFlapping"),
                ],
            },
            Row {
                title: "Probes",
                panels: vec![
                    Panel::new(Series, "Probe faults", "short", "peer",
                        &[("sum by (peer, fault) (trunkline_probe_fault{instance=~\"$node\"})", "{{peer}} {{fault}}")],
                        "1 or more: probes through the router show a fault in one or both families; docs/probes.md explains each.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineProbeFault"),
                    Panel::new(Series, "Probes lost", "short", "peer",
                        &[("sum by (peer, check) (increase(trunkline_probe_lost_total{instance=~\"$node\"}[$__rate_interval]))", "{{peer}} {{check}}")],
                        "Probes that did not return within a second, per interval. `peer` alone is no fault: some routers do not answer echoes.")
                        .alert("TrunklineProbeFault"),
                    Panel::new(Stat, "Duplicate BGP identifiers", "short", "peer",
                        &[("sum(trunkline_bgp_duplicate_identifiers{instance=~\"$node\"})", "duplicates")],
                        "BGP identifiers with more than one router.").bad(Bounds::Above(1.0)).alert("TrunklineDuplicateIdentifier"),
                ],
            },
            Row {
                title: "Guard",
                panels: vec![
                    Panel::new(Stat, "In force", "short", "attach", &[("min(trunkline_guard_in_force{instance=~\"$node\"})", "in force")],
                        "no: the guard's nftables rules are not in the kernel, and no new pod is attached.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineGuardNotInForce"),
                    Panel::new(Series, "Dropped packets", "pps", "attach",
                        &[("sum by (reason) (rate(trunkline_guard_dropped_total{instance=~\"$node\"}[$__rate_interval])) or sum(0 * trunkline_ready{instance=~\"$node\"})", "{{reason}}")],
                        "Forbidden packets of pods and foreign hosts per second, by reason.")
                        .alert("TrunklineGuardDrops"),
                ],
            },
            Row {
                title: "Network policies",
                panels: vec![
                    Panel::new(Stat, "State", "short", "attach", &[("max(trunkline_policy_state{instance=~\"$node\"} != 1) or max(trunkline_policy_state{instance=~\"$node\"})", "state")],
                        "refused: the kernel has the last accepted rules. loading: it has the rules of the last run. In both states new pods wait.")
                        .words(POLICY_STATE).bad(Bounds::Above(3.0)).alert("TrunklinePolicyRefused"),
                    Panel::new(Stat, "Waiting pods", "short", "attach", &[("sum(trunkline_policy_waiting_pods{instance=~\"$node\"})", "waiting")],
                        "Attachments that wait for their rules.").alert("TrunklinePolicyLoading"),
                    Panel::new(Stat, "Unenforced interfaces", "short", "attach", &[("sum(trunkline_policy_unenforced_interfaces{instance=~\"$node\"})", "unenforced")],
                        "Interfaces of pods that a policy selects, with attachment ipvlan: they are not protected.")
                        .bad(Bounds::Above(1.0)).alert("TrunklinePolicyUnenforced"),
                    Panel::new(Stat, "Policies that fail closed", "short", "attach", &[("max(trunkline_policy_failed_closed{instance=~\"$node\"})", "closed")],
                        "Policies above their budget, or refused by the kernel: their pods are isolated; `trunkline policies` has the reason.")
                        .bad(Bounds::Above(1.0)).alert("TrunklinePolicyFailedClosed"),
                    Panel::new(Stat, "Faulty policies", "short", "attach", &[("max(trunkline_policy_faulty{instance=~\"$node\"})", "faulty")],
                        "Policies with an entry that this version cannot read; `trunkline policies` has the fields.")
                        .bad(Bounds::Above(1.0)).alert("TrunklinePolicyFaulty"),
                    Panel::new(Series, "Policies and selected pods", "short", "attach",
                        &[("max(trunkline_policies{instance=~\"$node\"})", "policies"), ("sum(trunkline_policy_pods{instance=~\"$node\"})", "pods"),
                          ("sum by (kind) (trunkline_policy_objects{instance=~\"$node\"})", "{{kind}}")],
                        "Policies that the node knows, pods of the node that a policy selects, and the chains and sets in nftables.").width(8),
                    Panel::new(Series, "Dropped packets", "pps", "attach",
                        &[("sum by (policy, direction) (rate(trunkline_policy_dropped_total{instance=~\"$node\"}[$__rate_interval])) or sum(0 * trunkline_policy_state{instance=~\"$node\"})", "{{policy}} {{direction}}")],
                        "Packets that a policy dropped per second, by policy and direction; `trunkline policies NAME` has each rule.").width(8),
                    Panel::new(Series, "Audited packets", "pps", "attach",
                        &[("sum by (policy, direction) (rate(trunkline_policy_audited_total{instance=~\"$node\"}[$__rate_interval])) or sum(0 * trunkline_policy_state{instance=~\"$node\"})", "{{policy}} {{direction}}")],
                        "Packets per second that a policy would have dropped, of Namespaces in audit mode.").width(8),
                    Panel::new(Series, "From an event to the kernel", "s", "attach",
                        &[("histogram_quantile(0.99, sum by (le) (increase(trunkline_policy_change_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "The time from an event of policies, Namespaces or pods until the kernel has its change, 99th percentile of each interval with an event."),
                    Panel::new(Series, "Repairs", "short", "attach",
                        &[("increase(trunkline_policy_repairs_total{instance=~\"$node\"}[$__rate_interval])", "{{instance}}")],
                        "How often another program changed the table of the policies and the agent restored it, per interval.")
                        .alert("TrunklineKernelChangedByOthers"),
                ],
            },
            Row {
                title: "Service addresses",
                panels: vec![
                    Panel::new(Series, "Service addresses", "short", "controller",
                        &[("sum by (state) (trunkline_service_addresses{instance=~\"$node\"})", "{{state}}")],
                        "Addresses of Services on the node, by state; `trunkline services` shows each with its reason.")
                        .alert("TrunklineServiceUnadvertised"),
                    Panel::new(Series, "Withheld service addresses", "short", "controller",
                        &[("sum by (reason) (trunkline_services_withheld{instance=~\"$node\"})", "{{reason}}")],
                        "Addresses that the node does not advertise, by reason; docs/services.md explains each."),
                    Panel::new(Stat, "Service proxy", "short", "controller", &[("min(trunkline_service_proxy_up{instance=~\"$node\"})", "up")],
                        "no: kube-proxy does not answer, or is unhealthy; `trunkline doctor` has the details.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineServiceProxyDown").width(6),
                    Panel::new(Stat, "Rules visible", "short", "controller", &[("min(trunkline_service_proxy_rules_visible{instance=~\"$node\"})", "visible")],
                        "no: the agent cannot read the rules of the service proxy, and waits a fixed time instead.").words(YES_NO).width(6),
                    Panel::new(Series, "Rules of the service proxy late", "s", "controller",
                        &[("trunkline_service_proxy_lag_seconds{instance=~\"$node\"}", "{{instance}}")],
                        "The time for which rules differ from the endpoints; kube-proxy writes within its minSyncPeriod, 1 s by default.")
                        .bad(Bounds::Above(30.0)).alert("TrunklineServiceProxyDown"),
                    Panel::new(Series, "From an event to a peer", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (le) (increase(trunkline_service_to_fabric_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "The time from an event (an endpoint is ready, or kube-proxy has rules) until a peer has the new prefix, 99th percentile of each interval with a new prefix."),
                ],
            },
            Row {
                title: "Remote clusters",
                panels: vec![
                    Panel::new(Series, "Remote subnets", "short", "controller",
                        &[("max by (cluster) (trunkline_remote_cluster_subnets{instance=~\"$node\"})", "{{cluster}}")],
                        "Accepted RemoteSubnets of each remote cluster.").alert("TrunklineRemoteClusterIgnored").width(6),
                    Panel::new(Series, "Remote VTEPs", "short", "controller",
                        &[("max by (cluster) (trunkline_remote_cluster_vteps{instance=~\"$node\"})", "{{cluster}}")],
                        "Accepted RemoteVteps of each remote cluster; 0 on a node without an overlay.").alert("TrunklineRemoteClusterIgnored").width(6),
                    Panel::new(Series, "Remote endpoints", "short", "controller",
                        &[("max by (cluster) (trunkline_remote_cluster_endpoints{instance=~\"$node\"})", "{{cluster}}")],
                        "Accepted addresses of pods behind the remote VTEPs.").alert("TrunklineRemoteClusterIgnored").width(6),
                    Panel::new(Series, "Ignored parts", "short", "controller",
                        &[("max by (cluster, what) (trunkline_remote_cluster_ignored{instance=~\"$node\"})", "{{cluster}} {{what}}")],
                        "Parts of each remote cluster whose addresses have another owner, or that a limit excludes; `trunkline status` has the reasons.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineRemoteClusterIgnored").width(6),
                ],
            },
            Row {
                title: "Pods",
                panels: vec![
                    Panel::new(Series, "Pods by network", "short", "attach", &[("trunkline_network_attachments{instance=~\"$node\"}", "{{network}}")],
                        "Interfaces of attached pods in each network."),
                    Panel::new(Series, "Networks refused", "short", "attach", &[("sum by (network) (trunkline_network_refused{instance=~\"$node\"})", "{{network}}")],
                        "1 for a network that the node does not serve; `trunkline status` has the reason.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineAttachFailing"),
                ],
            },
        ],
    }
}
