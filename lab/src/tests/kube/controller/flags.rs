//! Effects of the controller's flags on pods without annotations.

use serde_json::json;

use super::step::Deed::Goes;
use super::step::Mac::Other;
use super::step::Step::{Change, Free, Has, HasNone, Kept, Pod, Shows, Still};
use super::step::{has, has_again, pod};
use super::{Case, case};

pub(super) const FLAGS: &[&str] = &[
    "--default-ip-family=DualStack",
    "--default-network-type=Overlay",
    "--default-ip-retain=false",
    "--stateful-workload-kinds=StatefulSet,CloneSet",
    "--patch-calico-pod-ips-annotation",
    "--pod-label-selector=networking.alibaba.com/pod notin (other)",
];

pub(super) const STATEFUL: &[&str] = &["StatefulSet", "CloneSet"];

fn calico(pod: &'static str, addresses: &str) -> super::step::Step {
    Shows("Pod", pod, json!({"metadata": {"annotations": {"cni.projectcalico.org/podIPs": addresses}}}))
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "--default-ip-family and --default-network-type, which a pod overrides",
            vec![
                pod("a").on("n4").made(),
                has("a", &["10.3.0.10", "fd00:3::10"]),
                pod("b").with("network-type", "Underlay").with("ip-family", "IPv4").made(),
                has("b", &["10.1.0.10"]),
            ],
        ),
        case(
            "--default-ip-retain=false, which a pod overrides",
            vec![
                pod("db-0").of("StatefulSet").with("ip-family", "IPv4").made(),
                has("db-0", &["10.3.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.3.0.10"]),
                pod("db-0").of("StatefulSet").with("ip-family", "IPv4").made(),
                Has("db-0", &["10.3.0.11"], Other),
                Free(&["10.3.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.3.0.11"]),
                pod("db-0").of("StatefulSet").with("ip-retain", "true").made(),
                has_again("db-0", &["10.3.0.11"]),
            ],
        ),
        case(
            "--stateful-workload-kinds: another kind keeps its addresses too",
            vec![
                pod("web-7").of("CloneSet").with("ip-retain", "true").made(),
                has("web-7", &["10.3.0.10", "fd00:3::10"]),
                Pod("web-7", Goes),
                Kept("web-7", &["10.3.0.10", "fd00:3::10"]),
                pod("web-7").of("CloneSet").with("ip-retain", "true").on("n2").made(),
                has_again("web-7", &["10.3.0.10", "fd00:3::10"]),
                pod("web-8").of("ReplicaSet").made(),
                has("web-8", &["10.3.0.11", "fd00:3::11"]),
                Pod("web-8", Goes),
                Free(&["10.3.0.11", "fd00:3::11"]),
            ],
        ),
        case(
            "--patch-calico-pod-ips-annotation: new and retained addresses",
            vec![
                pod("a").made(),
                calico("a", "10.3.0.10,fd00:3::10"),
                pod("db-0").of("StatefulSet").with("ip-family", "IPv6").made(),
                has("db-0", &["fd00:3::11"]),
                calico("db-0", "fd00:3::11"),
                Pod("db-0", Goes),
                Kept("db-0", &["fd00:3::11"]),
                pod("db-0").of("StatefulSet").with("ip-retain", "true").made(),
                calico("db-0", "fd00:3::11"),
            ],
        ),
        case(
            "--pod-label-selector: a pod of another CNI plugin has no address",
            vec![
                pod("a").labelled("pod", "other").made(),
                HasNone("a"),
                pod("b")
                    .labelled("pod", "own")
                    .with("network-type", "Underlay")
                    .with("ip-family", "IPv4")
                    .made(),
                has("b", &["10.1.0.10"]),
                // A label that is added later. The barrier's pod has used the overlay's first address.
                Change("Pod", "a", pod_label("own")),
                has("a", &["10.3.0.11", "fd00:3::10"]),
                // The address of a running pod stays, whatever its labels become.
                Change("Pod", "a", pod_label("other")),
                Still("a", &["10.3.0.11", "fd00:3::10"]),
                Pod("a", Goes),
                Free(&["10.3.0.11", "fd00:3::10"]),
            ],
        ),
    ]
}

fn pod_label(value: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {"networking.alibaba.com/pod": value}}})
}
