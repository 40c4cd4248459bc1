//! Allocation of new addresses: their order, and no address if not all addresses of a pod can be
//! allocated.

use super::step::Deed::{Goes, Scheduled};
use super::step::Step::{Apply, Change, Free, HasEvent, HasNone, Pod, Shows};
use super::step::{has, pod};
use super::{Case, case};
use serde_json::json;

const FAIL: &str = "IPAllocationFail";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "a pod has the next IPv4 address of its node's Underlay",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                HasEvent("a", "IPAllocationSucceed", "10.1.0.10 of Network rack1"),
                pod("b").on("n2").made(),
                has("b", &["10.1.0.11"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.2"]),
            ],
        ),
        case("IPv6", vec![pod("a").with("ip-family", "IPv6").made(), has("a", &["fd00:1::10"])]),
        case(
            "dual stack: one address of each family, with one MAC address",
            vec![pod("a").with("ip-family", "DualStack").made(), has("a", &["10.1.0.10", "fd00:1::10"])],
        ),
        case(
            "hybridnet's ways to write a family",
            vec![
                pod("a").with("ip-family", "IPv6Only").made(),
                has("a", &["fd00:1::10"]),
                pod("b").with("ip-family", "dualstack").made(),
                has("b", &["10.1.0.10", "fd00:1::11"]),
            ],
        ),
        case(
            "dual stack: no IPv6 address is left, so no IPv4 address is allocated",
            vec![
                pod("a").on("n3").with("ip-family", "DualStack").made(),
                has("a", &["10.2.0.2", "fd00:2::10"]),
                pod("b").on("n3").with("ip-family", "DualStack").made(),
                has("b", &["10.2.0.5", "fd00:2::11"]),
                pod("c").on("n3").with("ip-family", "DualStack").made(),
                HasEvent(
                    "c",
                    FAIL,
                    "no IPv6 address is free in network rack2: subnet rack2-v6 has 2 of 2 in use",
                ),
                HasNone("c"),
                Shows(
                    "Subnet",
                    "rack2-v4",
                    json!({"status": {"used": 2, "available": 1, "lastAllocatedIP": "10.2.0.5"}}),
                ),
                pod("d").on("n3").made(),
                has("d", &["10.2.0.6"]),
                Pod("a", Goes),
                has("c", &["10.2.0.2", "fd00:2::10"]),
            ],
        ),
        case(
            "dual stack: no IPv4 address is left, so no IPv6 address is allocated",
            vec![
                pod("a").on("n3").made(),
                has("a", &["10.2.0.2"]),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.5"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.6"]),
                pod("d").on("n3").with("ip-family", "DualStack").made(),
                HasEvent("d", FAIL, "no IPv4 address is free in network rack2"),
                HasNone("d"),
                Shows("Subnet", "rack2-v6", json!({"status": {"used": 0}})),
            ],
        ),
        case(
            "gateway, excluded, reserved, own and broadcast addresses are never allocated; a waiting pod gets a released address",
            vec![
                pod("a").on("n3").made(),
                has("a", &["10.2.0.2"]),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.5"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.6"]),
                pod("d").on("n3").made(),
                HasEvent(
                    "d",
                    FAIL,
                    "no IPv4 address is free in network rack2: subnet rack2-v4 has 3 of 3 in use",
                ),
                HasNone("d"),
                Pod("b", Goes),
                has("d", &["10.2.0.5"]),
            ],
        ),
        case(
            "round robin: a released address is allocated again last",
            vec![
                pod("a").on("n3").made(),
                has("a", &["10.2.0.2"]),
                Pod("a", Goes),
                Free(&["10.2.0.2"]),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.5"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.6"]),
                pod("d").on("n3").made(),
                has("d", &["10.2.0.2"]),
            ],
        ),
        case(
            "a network allocates from its last subnet until this subnet is full",
            vec![
                pod("a").on("n3").made(),
                has("a", &["10.2.0.2"]),
                Apply(RACK2_ANOTHER),
                Shows(
                    "Network",
                    "rack2",
                    json!({"status": {"statistics": {"total": 7}, "lastAllocatedSubnet": "rack2-v4"}}),
                ),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.5"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.6"]),
                pod("d").on("n3").made(),
                has("d", &["10.2.2.10"]),
                Pod("a", Goes),
                Free(&["10.2.0.2"]),
                pod("e").on("n3").made(),
                has("e", &["10.2.2.11"]),
                pod("f").on("n3").made(),
                has("f", &["10.2.0.2"]),
                Shows("Network", "rack2", json!({"status": {"lastAllocatedSubnet": "rack2-v4"}})),
            ],
        ),
        case(
            "a pod that waits in a full network gets an address of a new subnet",
            vec![
                pod("a").on("n3").with("ip-family", "IPv6").made(),
                has("a", &["fd00:2::10"]),
                pod("b").on("n3").with("ip-family", "IPv6").made(),
                has("b", &["fd00:2::11"]),
                pod("c").on("n3").with("ip-family", "IPv6").made(),
                HasEvent("c", FAIL, "no IPv6 address is free in network rack2"),
                Apply(RACK2_MORE_V6),
                has("c", &["fd00:22::10"]),
            ],
        ),
        case(
            "only pods that name a private subnet get its addresses",
            vec![
                pod("a").on("n3").made(),
                has("a", &["10.2.0.2"]),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.5"]),
                pod("c").on("n3").made(),
                has("c", &["10.2.0.6"]),
                pod("d").on("n3").made(),
                HasEvent("d", FAIL, "no IPv4 address is free"),
                HasNone("d"),
                pod("e").on("n3").with("specified-subnet", "rack2-own").made(),
                has("e", &["10.2.1.10"]),
            ],
        ),
        case(
            "one prefix shared by two subnets, each with its range",
            vec![
                Apply(RACK1_SHARED),
                pod("a").with("specified-subnet", "rack1-shared").made(),
                has("a", &["10.1.0.100"]),
                pod("b").with("specified-subnet", "rack1-v4").made(),
                has("b", &["10.1.0.10"]),
            ],
        ),
        case(
            "a pod in its node's network has no address",
            vec![pod("a").in_host_network().made(), HasNone("a")],
        ),
        case(
            "a pod has no address before it has a node",
            vec![
                pod("a").unscheduled().made(),
                HasNone("a"),
                Pod("a", Scheduled("n2")),
                has("a", &["10.1.0.10"]),
            ],
        ),
        case(
            "a node in no Underlay: the pod gets an event, and waits for a Network",
            vec![
                pod("a").on("n4").made(),
                HasEvent("a", FAIL, "no Underlay Network selects node n4: label the node for one"),
                HasNone("a"),
                Change("Node", "n4", json!({"metadata": {"labels": {"rack": "1"}}})),
                has("a", &["10.1.0.10"]),
            ],
        ),
        case(
            "Overlay: on every node",
            vec![
                pod("a").on("n4").with("network-type", "Overlay").made(),
                has("a", &["10.3.0.10"]),
                pod("b").on("n1").with("network-type", "overlay").with("ip-family", "DualStack").made(),
                has("b", &["10.3.0.11", "fd00:3::10"]),
            ],
        ),
        case(
            "GlobalBGP: a pod gets an address on a node of a BGP Network",
            vec![
                Apply(GLOBAL),
                pod("a").with("network-type", "GlobalBGP").made(),
                has("a", &["10.5.0.10"]),
                pod("b").on("n3").with("network-type", "GlobalBGP").made(),
                HasEvent("b", FAIL, "node n3 is in no Network of mode BGP"),
                HasNone("b"),
            ],
        ),
        case(
            "a Subnet that does not exist yet: the pod gets an event, and waits for it",
            vec![
                pod("a").on("n3").with("specified-subnet", "rack2-more-v6").with("ip-family", "IPv6").made(),
                HasEvent("a", FAIL, "there is no Subnet rack2-more-v6"),
                HasNone("a"),
                Apply(RACK2_MORE_V6),
                has("a", &["fd00:22::10"]),
            ],
        ),
        case(
            "the event names an annotation that cannot be read",
            vec![
                pod("a").with("ip-family", "IPv5").made(),
                HasEvent(
                    "a",
                    FAIL,
                    "metadata.annotations[networking.alibaba.com/ip-family]: `IPv5` is no family",
                ),
                HasNone("a"),
                Change(
                    "Pod",
                    "a",
                    json!({"metadata": {"annotations": {"networking.alibaba.com/ip-family": "IPv6"}}}),
                ),
                has("a", &["fd00:1::10"]),
            ],
        ),
    ]
}

/// Its name precedes rack2-v4.
const RACK2_ANOTHER: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-another }
spec:
  network: rack2
  range: { version: '4', cidr: 10.2.2.0/24, gateway: 10.2.2.1, start: 10.2.2.10, end: 10.2.2.11 }
";

const RACK2_MORE_V6: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-more-v6 }
spec:
  network: rack2
  range: { version: '6', cidr: 'fd00:22::/120', gateway: 'fd00:22::1', start: 'fd00:22::10', end: 'fd00:22::11' }
";

const RACK1_SHARED: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-shared }
spec: { network: rack1, range: { version: '4', cidr: 10.1.0.0/24, start: 10.1.0.100, end: 10.1.0.109 } }
";

pub(super) const GLOBAL: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: global }
spec: { type: GlobalBGP }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: global-v4 }
spec: { network: global, range: { version: '4', cidr: 10.5.0.0/24, start: 10.5.0.10, end: 10.5.0.19 } }
";
