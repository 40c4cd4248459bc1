//! Pod attachment: its rate, its duration, and the duration of its steps.

use super::View::Series;
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "attach",
        title: "Trunkline: pod attach",
        description: "Attaching and detaching pods: rate, duration, and duration of each step.",
        variables: &[],
        rows: vec![
            Row {
                title: "Total",
                panels: vec![
                    Panel::new(Series, "Requests", "ops", "node",
                        &[("sum by (command, outcome) (rate(trunkline_request_duration_seconds_count{instance=~\"$node\"}[$__rate_interval]))", "{{command}} {{outcome}}")],
                        "Requests of the CNI plugin per second, by command and outcome.").alert("TrunklineAttachFailing"),
                    Panel::new(Series, "Attach, duration", "s", "node",
                        &[
                            ("histogram_quantile(0.5, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "50 %"),
                            ("histogram_quantile(0.99, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "99 %"),
                        ],
                        "From the plugin's first octet to the agent's answer; milliseconds are usual.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Attach by network, 99 %", "s", "addresses",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "{{network}}")],
                        "The attach time by network: if one network is slow, look at its gateway \
                         or peers; if all are slow, at the node.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Detach, duration", "s", "node",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"detach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "Detaches; they wait for the kernel only."),
                ],
            },
            Row {
                title: "Steps",
                panels: vec![
                    Panel::new(Series, "Readiness wait", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_attach_gate_seconds_bucket{outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "{{network}} 99 %")],
                        "The wait until the pod's addresses are advertised to an established peer.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "From the attach to the Adj-RIB-Out", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_convergence_attach_to_advertised_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{network}} 99 %")],
                        "From the attach's first octet until the pod's addresses are written to an established peer.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Wait for addresses", "s", "controller",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_cluster_address_wait_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "With an API server: the wait for the pod's IPInstances.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Link check", "s", "node",
                        &[("histogram_quantile(0.99, sum by (outcome, le) (rate(trunkline_wire_check_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{outcome}} 99 %")],
                        "VLANs: the check that the gateway answers and no other host has the address, by outcome.").alert("TrunklineAttachSlow"),
                ],
            },
        ],
    }
}
