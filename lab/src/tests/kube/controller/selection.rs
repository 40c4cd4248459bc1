//! Selection of Network, Subnet and family: by the pod, then by its namespace, then by default.

use serde_json::{Value, json};

use super::step::Deed::Goes;
use super::step::Step::{Change, HasEvent, HasNone, Kept, Pod, Still};
use super::step::{has, has_again, namespace_says, pod};
use super::{Case, case};

const FAIL: &str = "IPAllocationFail";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "Network: by annotation, by label, by the annotation before the label",
            vec![
                pod("a").with("specified-network", "overlay").made(),
                has("a", &["10.3.0.10"]),
                pod("b").labelled("specified-network", "overlay").made(),
                has("b", &["10.3.0.11"]),
                pod("c").with("specified-network", "rack1").labelled("specified-network", "overlay").made(),
                has("c", &["10.1.0.10"]),
            ],
        ),
        case(
            "Subnet: by annotation, by label, a pair",
            vec![
                pod("a").with("specified-subnet", "overlay-v4").made(),
                has("a", &["10.3.0.10"]),
                pod("b").on("n3").labelled("specified-subnet", "rack2-own").made(),
                has("b", &["10.2.1.10"]),
                pod("c")
                    .with("specified-subnet", "overlay-v4/overlay-v6")
                    .with("ip-family", "DualStack")
                    .made(),
                has("c", &["10.3.0.11", "fd00:3::10"]),
                pod("d").with("specified-subnet", "rack1-v6").with("ip-family", "IPv6").made(),
                has("d", &["fd00:1::10"]),
                pod("e")
                    .on("n3")
                    .with("specified-network", "rack2")
                    .with("specified-subnet", "rack2-v4")
                    .made(),
                has("e", &["10.2.0.2"]),
            ],
        ),
        case(
            "type: by annotation, by label",
            vec![
                pod("a").with("network-type", "Underlay").made(),
                has("a", &["10.1.0.10"]),
                pod("b").labelled("network-type", "Overlay").made(),
                has("b", &["10.3.0.10"]),
            ],
        ),
        case(
            "the namespace's Network",
            vec![
                namespace_says("specified-network", json!("overlay")),
                pod("a").made(),
                has("a", &["10.3.0.10"]),
                namespace_says("specified-network", Value::Null),
                Still("a", &["10.3.0.10"]),
                pod("b").made(),
                has("b", &["10.1.0.10"]),
            ],
        ),
        case(
            "the namespace's Subnet, by label too",
            vec![
                namespace_says("specified-subnet", json!("rack2-own")),
                pod("a").on("n3").made(),
                has("a", &["10.2.1.10"]),
                namespace_says("specified-subnet", Value::Null),
                Change(
                    "Namespace",
                    "",
                    json!({"metadata": {"labels": {"networking.alibaba.com/specified-subnet": "overlay-v4"}}}),
                ),
                Still("a", &["10.2.1.10"]),
                pod("b").made(),
                // The barrier's pod has used the overlay's first address.
                has("b", &["10.3.0.11"]),
            ],
        ),
        case(
            "the namespace's type and family",
            vec![
                namespace_says("network-type", json!("Overlay")),
                namespace_says("ip-family", json!("DualStack")),
                pod("a").on("n4").made(),
                has("a", &["10.3.0.10", "fd00:3::10"]),
            ],
        ),
        case(
            "the pod's annotations take precedence over its namespace's, as a whole",
            vec![
                namespace_says("specified-network", json!("overlay")),
                namespace_says("ip-family", json!("DualStack")),
                pod("a").with("specified-network", "rack1").made(),
                has("a", &["10.1.0.10"]),
                pod("b").with("ip-family", "IPv6").made(),
                has("b", &["fd00:1::10"]),
                pod("c").labelled("network-type", "Underlay").made(),
                has("c", &["10.1.0.11"]),
                pod("d").made(),
                has("d", &["10.3.0.10", "fd00:3::10"]),
            ],
        ),
        case(
            "a retained address takes precedence over the pod's annotations",
            vec![
                pod("db-0").of("StatefulSet").made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                namespace_says("specified-network", json!("overlay")),
                pod("db-0").of("StatefulSet").with("specified-subnet", "overlay-v4").made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "a named address, in the namespace's Network",
            vec![
                namespace_says("specified-network", json!("overlay")),
                pod("db-0").of("StatefulSet").with("ip-pool", "10.3.0.33").made(),
                has("db-0", &["10.3.0.33"]),
            ],
        ),
        case(
            "contradictions lead to an event",
            vec![
                pod("a").on("n3").with("specified-network", "rack1").made(),
                HasEvent("a", FAIL, "node n3 does not belong to Network rack1"),
                pod("b").with("specified-network", "rack1").with("specified-subnet", "overlay-v4").made(),
                HasEvent("b", FAIL, "Subnet overlay-v4 belongs to Network overlay and not to rack1"),
                pod("c").with("specified-network", "overlay").with("network-type", "Underlay").made(),
                HasEvent(
                    "c",
                    FAIL,
                    "Network overlay is of type Overlay, and the pod requests \
                    Underlay",
                ),
                pod("d").with("specified-network", "nowhere").made(),
                HasEvent("d", FAIL, "there is no Network nowhere"),
                pod("e")
                    .with("specified-subnet", "overlay-v6/overlay-v4")
                    .with("ip-family", "DualStack")
                    .made(),
                HasEvent("e", FAIL, "write `v4-subnet/v6-subnet`"),
                pod("f").with("specified-subnet", "overlay-v6").made(),
                HasEvent("f", FAIL, "overlay-v6 does not match the pod's family IPv4"),
                HasNone("a"),
                HasNone("b"),
                HasNone("c"),
                HasNone("d"),
                HasNone("e"),
                HasNone("f"),
            ],
        ),
        case(
            "an unreadable annotation of a namespace is reported as the namespace's",
            vec![
                namespace_says("ip-family", json!("five")),
                pod("a").made(),
                HasEvent("a", FAIL, "Namespace"),
                HasNone("a"),
                pod("b").with("ip-family", "IPv4").made(),
                has("b", &["10.1.0.10"]),
                namespace_says("ip-family", json!("IPv6")),
                has("a", &["fd00:1::10"]),
            ],
        ),
    ]
}
