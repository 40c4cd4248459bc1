//! Cases with admission. The test applies and deletes hybridnet's documented manifests as a user
//! would. The webhook mutates the pods.
//!
//! The manifests follow hybridnet's samples, its page on the resources, and its chart's objects in
//! a new cluster. They have the same fields, with names and addresses of this test.

use serde_json::json;

use super::step::Deed::Goes;
use super::step::Step::{Apply, Change, Delete, Free, Gone, Pod, Refused, Shows};
use super::step::{Step, has, has_again, namespace_says, pod};
use super::{Case, case};

const BGP_SAMPLE: &str = include_str!("../../../../../api/tests/fixtures/bgp-sample.yaml");
const BGP_DOCUMENTED: &str = include_str!("../../../../../api/tests/fixtures/bgp-documented.yaml");
const VLAN_SAMPLE: &str = include_str!("../../../../../api/tests/fixtures/vlan.yaml");
const VXLAN_SAMPLE: &str = include_str!("../../../../../api/tests/fixtures/vxlan.yaml");
const SUBNET_DOCUMENTED: &str = include_str!("../../../../../api/tests/fixtures/subnet-documented.yaml");

fn label(node: &'static str, network: &str) -> Step {
    Change("Node", node, json!({"metadata": {"labels": {"network": network}}}))
}

/// Asserts that a deletion in the wrong order or too early is refused, and that it succeeds in the
/// right order.
fn taken_away(
    network: &'static str,
    subnet: &'static str,
    address: &'static str,
    addresses: &'static [&'static str],
) -> Vec<Step> {
    vec![
        Refused(Box::new(Delete("Subnet", subnet)), address),
        Refused(Box::new(Delete("Network", network)), subnet),
        Pod("a", Goes),
        Free(addresses),
        Delete("Subnet", subnet),
        Gone("Subnet", subnet),
        Delete("Network", network),
        Gone("Network", network),
    ]
}

/// Only one Overlay may exist.
fn without_overlay(then: Vec<Step>) -> Vec<Step> {
    let mut steps = vec![
        Delete("Subnet", "overlay-v4"),
        Delete("Subnet", "overlay-v6"),
        Gone("Subnet", "overlay-v4"),
        Gone("Subnet", "overlay-v6"),
        Delete("Network", "overlay"),
        Gone("Network", "overlay"),
    ];
    steps.extend(then);
    steps
}

fn both(mut first: Vec<Step>, then: Vec<Step>) -> Vec<Step> {
    first.extend(then);
    first
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "hybridnet's BGP sample",
            both(
                vec![
                    label("n4", "rack1"),
                    Apply(BGP_SAMPLE),
                    Shows(
                        "Network",
                        "underlay-rack1",
                        json!({"status": {"nodeList": ["n4"], "statistics": {"total": 254}}}),
                    ),
                    pod("a").on("n4").made(),
                    has("a", &["198.51.100.1"]),
                ],
                taken_away("underlay-rack1", "rack1-pods", "198.51.100.1", &["198.51.100.1"]),
            ),
        ),
        case(
            "hybridnet's documented BGP Network, with a Subnet of each family",
            both(
                vec![
                    label("n4", "leaf-a"),
                    Apply(BGP_DOCUMENTED),
                    Apply(LEAF_A_SUBNETS),
                    Shows("Network", "leaf-a", json!({"status": {"subnetList": ["leaf-a-v4", "leaf-a-v6"]}})),
                    pod("a").on("n4").with("ip-family", "DualStack").made(),
                    has("a", &["198.51.100.130", "2001:db8:a::1"]),
                    Refused(Box::new(Delete("Subnet", "leaf-a-v6")), "2001:db8:a::1"),
                    Pod("a", Goes),
                    Free(&["198.51.100.130", "2001:db8:a::1"]),
                ],
                vec![
                    Delete("Subnet", "leaf-a-v6"),
                    Delete("Subnet", "leaf-a-v4"),
                    Gone("Subnet", "leaf-a-v4"),
                ],
            ),
        ),
        case(
            "hybridnet's VLAN sample",
            both(
                vec![
                    label("n4", "rack7"),
                    Apply(VLAN_SAMPLE),
                    Shows(
                        "Network",
                        "underlay-vlan",
                        json!({"status": {"nodeList": ["n4"], "statistics": {"total": 253}}}),
                    ),
                    pod("a").on("n4").made(),
                    has("a", &["192.0.2.2"]),
                ],
                taken_away("underlay-vlan", "vlan-pods", "192.0.2.2", &["192.0.2.2"]),
            ),
        ),
        case(
            "hybridnet's documented VLAN Network and Subnet: private, with reserved and excluded addresses",
            both(
                vec![
                    label("n4", "s1"),
                    Apply(VLAN_DOCUMENTED),
                    Apply(SUBNET_DOCUMENTED),
                    Shows("Subnet", "vlan-pods", json!({"status": {"total": 97}})),
                    pod("a").on("n4").with("specified-subnet", "vlan-pods").made(),
                    has("a", &["192.0.2.100"]),
                    pod("b").on("n4").with("specified-subnet", "vlan-pods").made(),
                    has("b", &["192.0.2.105"]),
                    pod("db-0")
                        .of("StatefulSet")
                        .on("n4")
                        .with("specified-subnet", "vlan-pods")
                        .with("ip-pool", "192.0.2.101")
                        .made(),
                    has("db-0", &["192.0.2.101"]),
                    Pod("db-0", Goes),
                    Step::Kept("db-0", &["192.0.2.101"]),
                    pod("db-0")
                        .of("StatefulSet")
                        .on("n4")
                        .with("specified-subnet", "vlan-pods")
                        .with("ip-pool", "192.0.2.101")
                        .made(),
                    has_again("db-0", &["192.0.2.101"]),
                ],
                Vec::new(),
            ),
        ),
        case(
            "hybridnet's VXLAN sample",
            without_overlay(both(
                vec![
                    Apply(VXLAN_SAMPLE),
                    Shows(
                        "Network",
                        "overlay",
                        json!({"status": {"nodeList": ["n1", "n2", "n3", "n4"], "statistics": {"total": 254}}}),
                    ),
                    pod("a").on("n4").with("network-type", "Overlay").made(),
                    has("a", &["10.200.0.1"]),
                ],
                taken_away("overlay", "overlay-pods", "10.200.0.1", &["10.200.0.1"]),
            )),
        ),
        case(
            "the Network that hybridnet's chart makes in a new cluster",
            without_overlay(both(
                vec![
                    Apply(CHART),
                    Shows("Subnet", "init", json!({"status": {"total": 65534}})),
                    namespace_says("network-type", json!("Overlay")),
                    pod("a").on("n4").made(),
                    has("a", &["100.64.0.1"]),
                ],
                taken_away("init", "init", "100.64.0.1", &["100.64.0.1"]),
            )),
        ),
        case(
            "the pod gets the addresses that the webhook stamped",
            vec![
                namespace_says("specified-network", json!("overlay")),
                namespace_says("ip-family", json!("DualStack")),
                pod("a").made(),
                Shows(
                    "Pod",
                    "a",
                    json!({"metadata": {"annotations": {
                        "networking.alibaba.com/handled-by-webhook": "true",
                        "networking.alibaba.com/specified-network": "overlay",
                        "networking.alibaba.com/ip-family": "DualStack",
                    }}}),
                ),
                has("a", &["10.3.0.10", "fd00:3::10"]),
                pod("b").with("specified-network", "rack1").made(),
                has("b", &["10.1.0.10"]),
            ],
        ),
        case(
            "a bad Network is refused with the fault, and has no effect",
            vec![
                Refused(
                    Box::new(Apply(SECOND_UNDERLAY)),
                    "selects node n1, which is already in Underlay network rack1",
                ),
                Refused(Box::new(Apply(NO_PEERS)), "bgpPeers"),
                pod("a").made(),
                has("a", &["10.1.0.10"]),
            ],
        ),
    ]
}

const LEAF_A_SUBNETS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: leaf-a-v4 }
spec: { network: leaf-a, range: { version: '4', cidr: 198.51.100.128/25, start: 198.51.100.130, end: 198.51.100.139 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: leaf-a-v6 }
spec: { network: leaf-a, range: { version: '6', cidr: '2001:db8:a::/112' } }
";

/// The manifest of hybridnet's page: explicit type and mode, netID 0.
const VLAN_DOCUMENTED: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata:
  name: underlay-vlan
spec:
  netID: 0                      # untagged
  type: Underlay
  mode: VLAN

  nodeSelector:
    network: \"s1\"
";

/// The objects of hybridnet's chart with its default values.
const CHART: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata:
  name: init
spec:
  netID: 4
  type: Overlay

---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata:
  name: init
spec:
  config:
    autoNatOutgoing: true
  network: init
  range:
    cidr: 100.64.0.0/16
    version: \"4\"
";

const SECOND_UNDERLAY: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: another }
spec: { type: Underlay, netID: 30, nodeSelector: { rack: '1' } }
";

const NO_PEERS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: silent }
spec: { type: Underlay, mode: BGP, netID: 65009, nodeSelector: { rack: '9' } }
";
