//! The controller, its webhook, and the nodes' view of the API server.

use super::View::{Series, Stat};
use super::{Bounds, Dashboard, Panel, Row, YES_NO};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "controller",
        title: "Trunkline: controller",
        description: "The controller: leader, queues, allocation times; remote clusters; its webhook; the nodes' connections to the API server.",
        variables: &[],
        rows: vec![
            Row {
                title: "Controller",
                panels: vec![
                    Panel::new(Stat, "Leaders", "short", "attach", &[("sum(trunkline_controller_leader)", "leaders")],
                        "Replicas that are leaders: one, or none for some seconds during a change.").bad(Bounds::Below(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Stat, "Replicas", "short", "attach", &[("count(trunkline_controller_build_info)", "replicas")],
                        "Replicas with metrics in Prometheus.").bad(Bounds::Below(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Stat, "Pods", "short", "addresses", &[("sum(trunkline_controller_pods)", "pods")],
                        "Pods with a node, in the leader's rows."),
                    Panel::new(Stat, "Waiting pods", "short", "addresses", &[("sum(trunkline_controller_pods_waiting)", "waiting")],
                        "Pods without an address; each has an event with the reason.").bad(Bounds::Above(1.0)).alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Stat, "IPInstances", "short", "addresses", &[("max(trunkline_controller_ipinstances)", "known")],
                        "IPInstances in the controller's rows."),
                    Panel::new(Stat, "Conflicts", "short", "addresses", &[("sum(trunkline_controller_address_conflicts)", "conflicts")],
                        "IPInstances with the address of another IPInstance. Any value except 0 is a fault.").bad(Bounds::Above(1.0)).alert("TrunklineAddressConflict"),
                    Panel::new(Series, "Allocation time", "s", "addresses",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_controller_allocation_seconds_bucket[$__rate_interval])))", "99 %")],
                        "From the decision to the API server's answer.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Failed allocations", "ops", "addresses",
                        &[("sum by (reason) (rate(trunkline_controller_allocation_failures_total[$__rate_interval])) or sum(0 * trunkline_controller_leader)", "{{reason}}")],
                        "Failed allocations per second, by reason.").alert("TrunklineNetworkNearlyEmpty"),
                    Panel::new(Series, "Queues", "short", "addresses", &[("sum by (queue) (trunkline_controller_queue_depth)", "{{queue}}")],
                        "Objects that wait for a reconciliation; each waits for moments only.").alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Failing objects", "short", "addresses", &[("sum by (queue) (trunkline_controller_queue_failing)", "{{queue}}")],
                        "Objects with a failed last reconciliation; the controller tries each again, with growing delays.").bad(Bounds::Above(1.0)).alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Interrupted watches", "short", "fleet",
                        &[("sum by (kind) (increase(trunkline_controller_watch_failures_total[$__rate_interval])) or sum(0 * trunkline_controller_leader)", "{{kind}}")],
                        "Per interval; a restart of the API server interrupts each watch once.").alert("TrunklineControllerWithoutLeader"),
                    Panel::new(Series, "Events not written", "short", "addresses",
                        &[("sum(increase(trunkline_controller_events_dropped_total[$__rate_interval]))", "not written")],
                        "Events about pods and nodes that were dropped (too many at once) or refused."),
                ],
            },
            Row {
                title: "Service pools",
                panels: vec![
                    Panel::new(Series, "Free service addresses", "short", "node",
                        &[("max by (pool, family) (trunkline_controller_service_addresses{state=\"available\"})", "{{pool}} {{family}}")],
                        "Addresses of each ServicePool that are free for Services.").alert("TrunklineServicePoolNearlyFull"),
                    Panel::new(Series, "Allocated service addresses", "short", "node",
                        &[("max by (pool, family) (trunkline_controller_service_addresses{state=\"allocated\"})", "{{pool}} {{family}}")],
                        "Addresses of each ServicePool that Services have; `kubectl get tvip` lists them.").alert("TrunklineServicePoolNearlyFull"),
                    Panel::new(Series, "Services", "short", "node",
                        &[("max by (state) (trunkline_controller_services)", "{{state}}")],
                        "Services of type LoadBalancer by state; a Service can have several of them.").alert("TrunklineServiceUnadvertised"),
                    Panel::new(Series, "Failed allocations of service addresses", "ops", "node",
                        &[("sum by (reason) (rate(trunkline_controller_service_allocation_failures_total[$__rate_interval])) or sum(0 * trunkline_controller_leader)", "{{reason}}")],
                        "Failed attempts per second, by reason; each waiting Service has an event with the reason.").alert("TrunklineServicePoolNearlyFull"),
                    Panel::new(Stat, "Not advertised", "short", "node", &[("max(trunkline_controller_services{state=\"unadvertised\"})", "Services")],
                        "Services with a ready endpoint and an address that no node advertises.").bad(Bounds::Above(1.0)).alert("TrunklineServiceUnadvertised"),
                    Panel::new(Stat, "Without endpoint", "short", "node", &[("max(trunkline_controller_services{state=\"without_endpoint\"})", "Services")],
                        "Services with an address and no ready endpoint.").bad(Bounds::Above(1.0)).alert("TrunklineServiceWithoutEndpoint"),
                    Panel::new(Stat, "Conflicting Services", "short", "node", &[("max(trunkline_controller_service_conflicts)", "Services")],
                        "Services with an address in their status that a ServiceAddress gives to others. Any value except 0 is a fault.").bad(Bounds::Above(1.0)).alert("TrunklineServiceConflict"),
                ],
            },
            Row {
                title: "Remote clusters",
                panels: vec![
                    Panel::new(Stat, "API server answers", "short", "node",
                        &[("max by (cluster) (trunkline_controller_remote_cluster_connected)", "{{cluster}}")],
                        "no: the API server does not answer or refuses requests, or the credentials or the UUID cannot be used. New and moved pods of this cluster are not reachable through the tunnel.")
                        .words(YES_NO).bad(Bounds::Below(1.0)).alert("TrunklineRemoteClusterUnreachable").width(6),
                    Panel::new(Series, "Time without an answer", "s", "node",
                        &[("max by (cluster) (trunkline_controller_remote_cluster_away_seconds)", "{{cluster}}")],
                        "The time for which each remote API server has not answered or has refused requests; 0 while it answers. After --remote-retention the controller deletes the cluster's RemoteSubnets and RemoteVteps.")
                        .bad(Bounds::Above(300.0)).alert("TrunklineRemoteClusterUnreachable").width(6),
                    Panel::new(Series, "Mirrored objects", "short", "node",
                        &[("max by (cluster, kind) (trunkline_controller_remote_cluster_objects{kind!~\"refused.*|left_out|delayed\"})", "{{cluster}} {{kind}}")],
                        "RemoteSubnets, RemoteVteps and RemoteEndpointSlices of each remote cluster, and the addresses of pods behind its VTEPs.")
                        .alert("TrunklineRemoteClusterIgnored").width(6),
                    Panel::new(Series, "Refused parts", "short", "node",
                        &[("max by (cluster, kind) (trunkline_controller_remote_cluster_objects{kind=~\"refused.*|left_out|delayed\"})", "{{cluster}} {{kind}}")],
                        "Subnets of each remote cluster that overlap others, and endpoints of its Services with addresses outside of its mirrored Subnets and nodes, and objects above the controller's limits. The controller mirrors none of them.")
                        .bad(Bounds::Above(1.0)).alert("TrunklineRemoteClusterIgnored").width(6),
                ],
            },
            Row {
                title: "Webhook",
                panels: vec![
                    Panel::new(Series, "Requests", "reqps", "attach",
                        &[("sum by (kind, verdict) (rate(trunkline_webhook_requests_total[$__rate_interval]))", "{{kind}} {{verdict}}")],
                        "Admission requests per second; the API server's failure policy decides `failed` ones.").alert("TrunklineWebhookFailing"),
                    Panel::new(Series, "Duration", "s", "attach",
                        &[("histogram_quantile(0.99, sum by (kind, le) (rate(trunkline_webhook_request_duration_seconds_bucket[$__rate_interval])))", "{{kind}} 99 %")],
                        "The creation of each pod waits for this.").bad(Bounds::Above(1.0)).alert("TrunklineWebhookFailing"),
                    Panel::new(Stat, "Certificate lifetime left", "s", "attach",
                        &[("min(trunkline_webhook_certificate_expires_timestamp_seconds > 0) - time()", "left")],
                        "The remaining lifetime of the webhook's own certificate. The controller replaces it after two thirds of the lifetime.").bad(Bounds::Below(604_800.0)).alert("TrunklineWebhookCertificateEnds").width(6),
                ],
            },
            Row {
                title: "Nodes' connections to the API server",
                panels: vec![
                    Panel::new(Stat, "Nodes cut off", "short", "node", &[("count(trunkline_cluster_connected{instance=~\"$node\"} == 0) or vector(0)", "cut off")],
                        "Nodes with a failed watch. Their pods keep running.").bad(Bounds::Above(1.0)).alert("TrunklineApiServerUnreachable").width(6),
                    Panel::new(Series, "Duration of nodes' writes", "s", "node",
                        &[("histogram_quantile(0.99, sum by (what, le) (rate(trunkline_cluster_request_duration_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{what}} 99 %")],
                        "The API server's time for nodes' writes, by kind of write.").bad(Bounds::Above(1.0)).alert("TrunklineApiServerUnreachable"),
                    Panel::new(Series, "Time since the last watch event", "s", "node",
                        &[("max by (watch) (trunkline_cluster_watch_last_event_seconds{instance=~\"$node\"})", "{{watch}}")],
                        "The time since the last change or bookmark, maximum over all nodes; bookmarks arrive about once a minute.").bad(Bounds::Above(180.0)).alert("TrunklineApiServerUnreachable"),
                    Panel::new(Series, "Objects not served, statuses not written", "short", "node",
                        &[
                            ("max(trunkline_cluster_faults{instance=~\"$node\"})", "objects not served"),
                            ("max(trunkline_cluster_unwritten{instance=~\"$node\"})", "statuses to write"),
                        ],
                        "The maximum over all nodes; `trunkline status` on the node lists them.").alert("TrunklineApiServerUnreachable"),
                ],
            },
        ],
    }
}
