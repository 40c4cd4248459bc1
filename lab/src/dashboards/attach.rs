//! Pod attachment: its rate, its duration, and the duration of its steps.

use super::View::Series;
use super::{Bounds, Dashboard, Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "attach",
        title: "Trunkline: pod attach",
        description: "Attaching and detaching pods: how often, how long, and which part takes the time.",
        variables: &[],
        rows: vec![
            Row {
                title: "The whole",
                panels: vec![
                    Panel::new(Series, "Requests", "ops", "node",
                        &[("sum by (command, outcome) (rate(trunkline_request_duration_seconds_count{instance=~\"$node\"}[$__rate_interval]))", "{{command}} {{outcome}}")],
                        "The CNI plugin's requests a second, by command and outcome.").alert("TrunklineAttachFailing"),
                    Panel::new(Series, "Attach, duration", "s", "node",
                        &[
                            ("histogram_quantile(0.5, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "50 %"),
                            ("histogram_quantile(0.99, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "99 %"),
                        ],
                        "From the plugin's first octet to the agent's answer; milliseconds are usual.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Attach by network, 99 %", "s", "addresses",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "{{network}}")],
                        "The same by network: one slow network is its gateway's or its peers' matter, all of them the node's.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Detach, duration", "s", "node",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_request_duration_seconds_bucket{command=\"detach\",outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "Detaches, which wait for nobody but the kernel."),
                ],
            },
            Row {
                title: "Its parts",
                panels: vec![
                    Panel::new(Series, "Readiness wait", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_attach_gate_seconds_bucket{outcome=\"ok\",instance=~\"$node\"}[$__rate_interval])))", "{{network}} 99 %")],
                        "Waiting until the pod's addresses were told to an established peer.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "From the attach to the Adj-RIB-Out", "s", "peer",
                        &[("histogram_quantile(0.99, sum by (network, le) (rate(trunkline_convergence_attach_to_advertised_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{network}} 99 %")],
                        "From the attach's first octet until an established peer was written the pod's addresses.").bad(Bounds::Above(2.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Wait for addresses", "s", "controller",
                        &[("histogram_quantile(0.99, sum by (le) (rate(trunkline_cluster_address_wait_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "99 %")],
                        "With an API server: until the pod's IPInstances were there.").bad(Bounds::Above(1.0)).alert("TrunklineAttachSlow"),
                    Panel::new(Series, "Check on the wire", "s", "node",
                        &[("histogram_quantile(0.99, sum by (outcome, le) (rate(trunkline_wire_check_seconds_bucket{instance=~\"$node\"}[$__rate_interval])))", "{{outcome}} 99 %")],
                        "VLANs: asking whether the gateway answers and nobody else has the address, by what came of it.").alert("TrunklineAttachSlow"),
                ],
            },
        ],
    }
}
