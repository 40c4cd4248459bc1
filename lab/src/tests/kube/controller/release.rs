//! Cases about the release of addresses: when it happens, and what changes for objects that are
//! being deleted.

use serde_json::{Value, json};

use super::step::Deed::{Completed, Evicted, Goes, Runs, Terminates};
use super::step::Mac::Other;
use super::step::Step::{Apply, Change, Delete, Free, Gone, Has, HasEvent, Held, Kept, Pod, Shows, Still};
use super::step::{has, pod};
use super::{Case, case};

fn finalizers(kind: &'static str, name: &'static str, value: Value) -> super::step::Step {
    Change(kind, name, json!({"metadata": {"finalizers": value}}))
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "a deleted pod",
            vec![
                pod("a").with("ip-family", "DualStack").made(),
                has("a", &["10.1.0.10", "fd00:1::10"]),
                Pod("a", Goes),
                Free(&["10.1.0.10", "fd00:1::10"]),
            ],
        ),
        case(
            "an evicted pod, although its object still exists",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Pod("a", Evicted),
                Free(&["10.1.0.10"]),
                HasEvent("a", "IPReleaseSucceed", "10-1-0-10"),
                Shows("Pod", "a", json!({"status": {"reason": "Evicted"}})),
            ],
        ),
        case(
            "a completed pod",
            vec![
                pod("a").with("ip-family", "DualStack").made(),
                has("a", &["10.1.0.10", "fd00:1::10"]),
                Pod("a", Completed),
                Free(&["10.1.0.10", "fd00:1::10"]),
                HasEvent("a", "IPReleaseSucceed", "10-1-0-10"),
            ],
        ),
        case(
            "a terminating pod keeps its address to the end",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Pod("a", Runs),
                Pod("a", Terminates),
                Still("a", &["10.1.0.10"]),
                Pod("a", Goes),
                Free(&["10.1.0.10"]),
            ],
        ),
        case(
            "a pod created again under its name has another address, and its previous address is free",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Pod("a", Goes),
                pod("a").on("n2").made(),
                Has("a", &["10.1.0.11"], Other),
                Free(&["10.1.0.10"]),
            ],
        ),
        case(
            "an IPInstance that is deleted while its pod exists stays until the pod is gone",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Pod("a", Runs),
                Delete("IPInstance", "10.1.0.10"),
                Held("10.1.0.10"),
                pod("db-0").of("StatefulSet").with("ip-pool", "10.1.0.10").made(),
                HasEvent("db-0", "IPAllocationFail", "being deleted"),
                Pod("a", Goes),
                has("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "a retained IPInstance is gone at once when it is deleted",
            vec![
                pod("db-0").of("StatefulSet").made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                Delete("IPInstance", "10.1.0.10"),
                Free(&["10.1.0.10"]),
                Shows("Subnet", "rack1-v4", json!({"status": {"used": 0, "available": 10}})),
            ],
        ),
        case(
            "hybridnet's finalizers on Subnets and Networks do not delay a deletion",
            vec![
                finalizers("Subnet", "rack1-v6", json!(["networking.alibaba.com/metrics-registered"])),
                Delete("Subnet", "rack1-v6"),
                Gone("Subnet", "rack1-v6"),
                finalizers("Network", "overlay", json!(["networking.alibaba.com/metrics-registered"])),
                Delete("Network", "overlay"),
                Gone("Network", "overlay"),
            ],
        ),
        case(
            "a Subnet under deletion allocates nothing more, and its allocations stay",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                finalizers("Subnet", "rack1-v4", json!(["example.com/hold"])),
                Delete("Subnet", "rack1-v4"),
                Shows("Network", "rack1", json!({"status": {"subnetList": ["rack1-v6"]}})),
                pod("b").made(),
                HasEvent("b", "IPAllocationFail", "network rack1 has no IPv4 subnet that is not private"),
                Still("a", &["10.1.0.10"]),
                finalizers("Subnet", "rack1-v4", Value::Null),
                Gone("Subnet", "rack1-v4"),
            ],
        ),
        case(
            "a Subnet that is deleted and created again still has the used addresses",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Delete("Subnet", "rack1-v4"),
                Gone("Subnet", "rack1-v4"),
                Apply(RACK1_V4),
                Still("a", &["10.1.0.10"]),
                Shows("Subnet", "rack1-v4", json!({"status": {"total": 10, "used": 1, "available": 9}})),
                pod("b").made(),
                has("b", &["10.1.0.11"]),
            ],
        ),
    ]
}

/// The Subnet of [`super::step::FURNITURE`].
const RACK1_V4: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 10.1.0.0/24, start: 10.1.0.10, end: 10.1.0.19 } }
";
