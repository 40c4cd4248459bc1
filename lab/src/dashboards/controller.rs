//! The controller, its webhook, and the nodes' view of the API server.

use super::View::{Series, Stat};
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "controller",
        title: "Trunkline: controller",
        description: "The controller: who leads, what waits, how fast addresses are given; its webhook; how nodes see the API server.",
        variables: &[],
        rows: vec![
            Row {
                title: "Controller",
                panels: vec![
                    Panel::new(Stat, "Leaders", "short", "attach", &[("sum(trunkline_controller_leader)", "leaders")],
                        "Replicas that lead: one, and for seconds none while another takes over.").bad(Bounds::Below(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Stat, "Replicas", "short", "attach", &[("count(trunkline_controller_build_info)", "replicas")],
                        "Replicas that Prometheus hears of.").bad(Bounds::Below(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Stat, "Pods", "short", "addresses", &[("sum(trunkline_controller_pods)", "pods")],
                        "Pods with a node that the leader knows."),
                    Panel::new(Stat, "Pods that wait", "short", "addresses", &[("sum(trunkline_controller_pods_waiting)", "waiting")],
                        "Pods that got no address yet; each has an event that says why.").bad(Bounds::Above(1.0)).alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Stat, "IPInstances", "short", "addresses", &[("max(trunkline_controller_ipinstances)", "known")],
                        "IPInstances that are known."),
                    Panel::new(Stat, "Conflicts", "short", "addresses", &[("sum(trunkline_controller_address_conflicts)", "conflicts")],
                        "IPInstances with an address that another one has. Anything but 0 is a fault.").bad(Bounds::Above(1.0)).alert("TrunklineAddressConflict"),
                    Panel::new(Series, "Giving a pod its addresses", "s", "addresses",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_controller_allocation_seconds_bucket[$__rate_interval])))", "99 %")],
                        "From the decision to the API server's answer.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Pods that got none", "ops", "addresses",
                        &[("sum by (reason) (rate(trunkline_controller_allocation_failures_total[$__rate_interval])) or sum(0 * trunkline_controller_leader)", "{{reason}}")],
                        "Tries a second that gave a pod no address, by reason.").alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Queues", "short", "addresses", &[("sum by (queue) (trunkline_controller_queue_depth)", "{{queue}}")],
                        "Objects that wait to be looked at; they come and go in moments.").alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Objects that fail", "short", "addresses", &[("sum by (queue) (trunkline_controller_queue_failing)", "{{queue}}")],
                        "Objects whose last look failed; each is looked at again, later each time.").bad(Bounds::Above(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Watches that broke off", "short", "fleet",
                        &[("sum by (kind) (increase(trunkline_controller_watch_failures_total[$__rate_interval])) or sum(0 * trunkline_controller_leader)", "{{kind}}")],
                        "In each interval; a restart of the API server breaks all of them once.").alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Events not written", "short", "addresses",
                        &[("sum(increase(trunkline_controller_events_dropped_total[$__rate_interval]))", "not written")],
                        "Events on pods and nodes that were too many at once, or refused."),
                ],
            },
            Row {
                title: "Webhook",
                panels: vec![
                    Panel::new(Series, "Requests", "reqps", "attach",
                        &[("sum by (kind, verdict) (rate(trunkline_webhook_requests_total[$__rate_interval]))", "{{kind}} {{verdict}}")],
                        "Admission requests a second; `failed` ones are decided by the API server's failure policy.").alert("TrunklineWebhookFailing"),
                    Panel::new(Series, "Time to a verdict", "s", "attach",
                        &[("histogram_quantile(0.99, sum by (kind, le) (rate(trunkline_webhook_request_duration_seconds_bucket[$__rate_interval])))", "{{kind}} 99 %")],
                        "Every pod waits for this before it is made.").bad(Bounds::Above(1.0)).alert("TrunklineWebhookFailing"),
                    Panel::new(Stat, "Certificate ends in", "s", "attach",
                        &[("min(trunkline_webhook_certificate_expires_timestamp_seconds > 0) - time()", "left")],
                        "The webhook's own certificate; it is replaced after two thirds of its life.").bad(Bounds::Below(604_800.0)).alert("TrunklineWebhookCertificateEnds").width(6),
                ],
            },
            Row {
                title: "The API server, seen from nodes",
                panels: vec![
                    Panel::new(Stat, "Nodes cut off", "short", "node", &[("count(trunkline_cluster_connected{instance=~\"$node\"} == 0) or vector(0)", "cut off")],
                        "Nodes one of whose watches fails. What runs there goes on.").bad(Bounds::Above(1.0)).alert("TrunklineApiServerUnreachable").width(6),
                    Panel::new(Series, "Answers to nodes' writes", "s", "node",
                        &[("histogram_quantile(0.99, sum by (what, le) (rate(trunkline_cluster_request_duration_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{what}} 99 %")],
                        "How long the API server takes for what nodes write, by what that is.").bad(Bounds::Above(1.0)).alert("TrunklineApiServerUnreachable"),
                    Panel::new(Series, "Silence of watches", "s", "node",
                        &[("max by (watch) (trunkline_cluster_watch_last_event_seconds{instance=~\"$node\"})", "{{watch}}")],
                        "Since the last change or bookmark, of the node that hears least; bookmarks come about once a minute.").bad(Bounds::Above(180.0)).alert("TrunklineApiServerUnreachable"),
                    Panel::new(Series, "Objects not served, statuses not written", "short", "node",
                        &[
                            ("max(trunkline_cluster_faults{instance=~\"$node\"})", "objects that are not served as they are"),
                            ("max(trunkline_cluster_unwritten{instance=~\"$node\"})", "statuses still to write"),
                        ],
                        "Of the node with the most; `trunkline status` there has them in words.").alert("TrunklineApiServerUnreachable"),
                ],
            },
        ],
    }
}
