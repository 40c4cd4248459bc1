//! Addresses that outlive their pods: addresses of stateful workloads.

use serde_json::json;

use super::step::Deed::{Completed, Evicted, Goes, Runs, Stops, Terminates};
use super::step::Mac::{Other, Same};
use super::step::Step::{Change, ChangeStatus, Delete, Free, Gone, Has, HasEvent, Held, Kept, Pod, Still};
use super::step::{has, has_again, pod};
use super::{Case, case};

const SET: &str = "StatefulSet";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "IPv4: retained for the next pod of this name, with its MAC address, on another node",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("a").made(),
                has("a", &["10.1.0.11"]),
                pod("db-0").of(SET).on("n2").made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "IPv6 of the overlay",
            vec![
                pod("db-0").of(SET).with("network-type", "Overlay").with("ip-family", "IPv6").made(),
                has("db-0", &["fd00:3::10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["fd00:3::10"]),
                pod("db-0").of(SET).with("network-type", "Overlay").with("ip-family", "IPv6").on("n3").made(),
                has_again("db-0", &["fd00:3::10"]),
            ],
        ),
        case(
            "dual stack",
            vec![
                pod("db-0").of(SET).with("ip-family", "DualStack").made(),
                has("db-0", &["10.1.0.10", "fd00:1::10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10", "fd00:1::10"]),
                pod("db-0").of(SET).with("ip-family", "DualStack").on("n2").made(),
                has_again("db-0", &["10.1.0.10", "fd00:1::10"]),
            ],
        ),
        case(
            "one address of a pair is lost: the other is retained, and a new one is added",
            vec![
                pod("db-0").of(SET).with("ip-family", "DualStack").made(),
                has("db-0", &["10.1.0.10", "fd00:1::10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10", "fd00:1::10"]),
                Delete("IPInstance", "fd00:1::10"),
                Free(&["fd00:1::10"]),
                pod("db-0").of(SET).made(),
                Has("db-0", &["10.1.0.10", "fd00:1::11"], Same),
            ],
        ),
        case(
            "retained only once no container runs",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Runs),
                Pod("db-0", Terminates),
                Still("db-0", &["10.1.0.10"]),
                Pod("db-0", Stops),
                Kept("db-0", &["10.1.0.10"]),
                HasEvent("db-0", "IPReserveSucceed", "10-1-0-10"),
                Pod("db-0", Goes),
                pod("db-0").of(SET).made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "the agent's data about the sandbox are removed when the address is retained",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                ChangeStatus(
                    "IPInstance",
                    "10.1.0.10",
                    json!({"status": {"nodeName": "n1", "podName": "db-0", "podNamespace": "x", "sandboxID": "s"}}),
                ),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "network and family are retained, independent of the next pod's annotations",
            vec![
                pod("db-0")
                    .of(SET)
                    .with("specified-network", "overlay")
                    .with("ip-family", "DualStack")
                    .made(),
                has("db-0", &["10.3.0.10", "fd00:3::10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.3.0.10", "fd00:3::10"]),
                pod("db-0").of(SET).on("n2").made(),
                has_again("db-0", &["10.3.0.10", "fd00:3::10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.3.0.10", "fd00:3::10"]),
                pod("db-0").of(SET).with("specified-network", "rack1").with("ip-family", "IPv6").made(),
                has_again("db-0", &["10.3.0.10", "fd00:3::10"]),
            ],
        ),
        case(
            "ip-retain: false releases the address and allocates another one",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("db-0").of(SET).with("ip-retain", "false").made(),
                Has("db-0", &["10.1.0.11"], Other),
                Free(&["10.1.0.10"]),
                HasEvent("db-0", "IPReleaseSucceed", "10-1-0-10"),
            ],
        ),
        case(
            "scaled down and up: each pod gets its own address; the set deleted: all are free",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                pod("db-1").of(SET).made(),
                has("db-1", &["10.1.0.11"]),
                Pod("db-1", Goes),
                Kept("db-1", &["10.1.0.11"]),
                Still("db-0", &["10.1.0.10"]),
                pod("db-1").of(SET).on("n2").made(),
                has_again("db-1", &["10.1.0.11"]),
                Pod("db-1", Goes),
                Kept("db-1", &["10.1.0.11"]),
                // The garbage collector deletes the IPInstance while the pod is still in its grace
                // period.
                Pod("db-0", Runs),
                Pod("db-0", Terminates),
                Delete("IPInstance", "10.1.0.10"),
                Delete("IPInstance", "10.1.0.11"),
                Free(&["10.1.0.11"]),
                Held("10.1.0.10"),
                Pod("db-0", Goes),
                Free(&["10.1.0.10"]),
            ],
        ),
        case(
            "a kind that is not in stateful-workload-kinds retains nothing",
            vec![
                pod("web-0").of("CloneSet").made(),
                has("web-0", &["10.1.0.10"]),
                Pod("web-0", Goes),
                Free(&["10.1.0.10"]),
                pod("web-0").of("CloneSet").made(),
                Has("web-0", &["10.1.0.11"], Other),
            ],
        ),
        case(
            "on a node outside the network: the pod gets an event, and the address stays retained",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("db-0").of(SET).on("n3").made(),
                HasEvent("db-0", "IPAllocationFail", "node n3 does not belong to Network rack1"),
                Kept("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                pod("db-0").of(SET).on("n2").made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "the next pod gets the address of an evicted or completed pod",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Evicted),
                Kept("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                pod("db-0").of(SET).made(),
                has_again("db-0", &["10.1.0.10"]),
                Pod("db-0", Completed),
                Kept("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                pod("db-0").of(SET).made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "a pod without its set is identified by the owner of its address",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Change("Pod", "db-0", json!({"metadata": {"ownerReferences": null}})),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("db-0").of(SET).made(),
                has_again("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "hybridnet's finalizer is removed from a pod after its address is retained",
            vec![
                pod("db-0").of(SET).with_finalizer().made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Gone("Pod", "db-0"),
                Kept("db-0", &["10.1.0.10"]),
            ],
        ),
    ]
}
