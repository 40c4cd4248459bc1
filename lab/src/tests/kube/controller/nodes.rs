//! State of nodes: labels for the scheduler, the condition NetworkUnavailable, and the NodeInfo.

use serde_json::{Value, json};

use super::allocate::GLOBAL;
use super::step::Deed::Goes;
use super::step::Step::{Apply, Change, ChangeStatus, Delete, Gone, Pod, Shows};
use super::step::{Step, has, node_has, pod};
use super::{Case, case};

const ATTACHMENTS: [&str; 3] =
    ["underlay-network-attachment", "overlay-network-attachment", "bgp-network-attachment"];
const QUOTAS: [&str; 3] = ["ipv4-address-quota", "ipv6-address-quota", "dualstack-address-quota"];

/// Whether a node is attached: Underlay, Overlay, GlobalBGP.
fn attached(node: &'static str, to: [bool; 3]) -> Step {
    let value = |attached: bool| if attached { json!("true") } else { Value::Null };
    let labels: Vec<_> = ATTACHMENTS.into_iter().zip(to.map(value)).collect();
    node_has(node, &labels)
}

/// Whether the node has a free address for a pod: IPv4, IPv6, both.
fn left(node: &'static str, left: [bool; 3]) -> Step {
    let value = |left: bool| json!(if left { "nonempty" } else { "empty" });
    let labels: Vec<_> = QUOTAS.into_iter().zip(left.map(value)).collect();
    node_has(node, &labels)
}

fn no_quota(node: &'static str) -> Step {
    node_has(node, &QUOTAS.map(|label| (label, Value::Null)))
}

fn label(node: &'static str, rack: Value) -> Step {
    Change("Node", node, json!({"metadata": {"labels": {"rack": rack}}}))
}

fn condition(status: &str, reason: &str) -> Value {
    json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": status, "reason": reason}]}})
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "attachments: by the node's labels",
            vec![
                attached("n1", [true, true, false]),
                attached("n4", [false, true, false]),
                label("n4", json!("1")),
                attached("n4", [true, true, false]),
                label("n4", Value::Null),
                attached("n4", [false, true, false]),
            ],
        ),
        case(
            "attachments: by the Network's selector",
            vec![
                attached("n3", [true, true, false]),
                Change("Network", "rack2", json!({"spec": {"nodeSelector": {"rack": "9"}}})),
                attached("n3", [false, true, false]),
                Change("Network", "rack2", json!({"spec": {"nodeSelector": {"rack": "2"}}})),
                attached("n3", [true, true, false]),
            ],
        ),
        case(
            "attachments: GlobalBGP is added and removed, and counts on nodes with BGP",
            vec![
                Apply(GLOBAL),
                attached("n1", [true, true, true]),
                attached("n3", [true, true, false]),
                attached("n4", [false, true, false]),
                Shows("Network", "global", json!({"status": {"nodeList": ["n1", "n2"]}})),
                Delete("Subnet", "global-v4"),
                Delete("Network", "global"),
                attached("n1", [true, true, false]),
            ],
        ),
        case(
            "quota: the labels follow the Network's allocations and releases",
            vec![
                left("n1", [true, true, true]),
                left("n3", [true, true, true]),
                no_quota("n4"),
                pod("a").on("n3").with("ip-family", "IPv6").made(),
                has("a", &["fd00:2::10"]),
                pod("b").on("n3").with("ip-family", "IPv6").made(),
                has("b", &["fd00:2::11"]),
                left("n3", [true, false, false]),
                left("n1", [true, true, true]),
                Pod("a", Goes),
                left("n3", [true, true, true]),
            ],
        ),
        case(
            "quota: after Subnets are added and removed",
            vec![
                left("n1", [true, true, true]),
                Delete("Subnet", "rack1-v6"),
                left("n1", [true, false, false]),
                left("n2", [true, false, false]),
                Delete("Subnet", "rack1-v4"),
                left("n1", [false, false, false]),
                Apply(RACK1_V6),
                left("n1", [false, true, false]),
                left("n2", [false, true, false]),
            ],
        ),
        case(
            "quota: after nodes change their Network",
            vec![
                left("n3", [true, true, true]),
                label("n3", json!("none")),
                no_quota("n3"),
                Change("Network", "rack2", json!({"spec": {"nodeSelector": {"rack": "none"}}})),
                left("n3", [true, true, true]),
            ],
        ),
        case(
            "NetworkUnavailable on a node in no Network, removed when the node is in a Network",
            vec![
                Delete("Network", "overlay"),
                Shows("Node", "n4", condition("True", "NoNetwork")),
                attached("n1", [true, false, false]),
                label("n4", json!("1")),
                Shows("Node", "n4", condition("False", "NetworkAttached")),
                label("n4", Value::Null),
                Shows("Node", "n4", condition("True", "NoNetwork")),
                Apply(OVERLAY),
                Shows("Node", "n4", condition("False", "NetworkAttached")),
            ],
        ),
        case(
            "NetworkUnavailable with a foreign reason stays",
            vec![
                ChangeStatus("Node", "n4", condition("True", "CableUnplugged")),
                label("n4", json!("1")),
                attached("n4", [true, true, false]),
                left("n4", [true, true, true]),
                Shows("Node", "n4", condition("True", "CableUnplugged")),
            ],
        ),
        case(
            "the NodeInfo of a deleted node is deleted",
            vec![
                Apply(NODE_INFO),
                Shows("NodeInfo", "n4", json!({"spec": {"vtepInfo": {"ip": "192.0.2.4"}}})),
                Delete("Node", "n4"),
                Gone("NodeInfo", "n4"),
                Shows("Network", "overlay", json!({"status": {"nodeList": ["n1", "n2", "n3"]}})),
            ],
        ),
    ]
}

const RACK1_V6: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:1::/120', start: 'fd00:1::10', end: 'fd00:1::19' } }
";

const OVERLAY: &str = "
{ apiVersion: networking.alibaba.com/v1, kind: Network, metadata: { name: overlay }, spec: { type: Overlay, netID: 4 } }
";

const NODE_INFO: &str = "
apiVersion: networking.alibaba.com/v1
kind: NodeInfo
metadata: { name: n4 }
spec: { vtepInfo: { ip: 192.0.2.4, mac: '02:00:00:00:00:04', localIPs: [192.0.2.4] } }
";
