//! Statuses of Networks and Subnets.

use serde_json::json;

use super::step::Deed::Goes;
use super::step::Step::{Apply, Change, Delete, Pod, Shows};
use super::step::{Step, has, pod};
use super::{Case, case};

fn subnet(name: &'static str, counts: [u32; 3], last: &str) -> Step {
    let [total, used, available] = counts;
    Shows(
        "Subnet",
        name,
        json!({"status": {"total": total, "used": used, "available": available, "lastAllocatedIP": last}}),
    )
}

/// IPv4, IPv6, and the number of free pairs.
fn network(name: &'static str, v4: [u32; 3], v6: [u32; 3], pairs: u32) -> Step {
    let count =
        |[total, used, available]: [u32; 3]| json!({"total": total, "used": used, "available": available});
    Shows(
        "Network",
        name,
        json!({"status": {
            "statistics": count(v4), "ipv6Statistics": count(v6), "dualStackStatistics": {"available": pairs},
        }}),
    )
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "initially: all free addresses, with private ones, without reserved ones",
            vec![
                subnet("rack1-v4", [10, 0, 10], ""),
                subnet("rack2-v4", [3, 0, 3], ""),
                subnet("rack2-own", [2, 0, 2], ""),
                network("rack1", [10, 0, 10], [10, 0, 10], 10),
                network("rack2", [5, 0, 5], [2, 0, 2], 2),
                network("overlay", [40, 0, 40], [10, 0, 10], 10),
            ],
        ),
        case(
            "after pods are created and deleted",
            vec![
                pod("a").with("ip-family", "DualStack").made(),
                has("a", &["10.1.0.10", "fd00:1::10"]),
                pod("b").made(),
                has("b", &["10.1.0.11"]),
                subnet("rack1-v4", [10, 2, 8], "10.1.0.11"),
                subnet("rack1-v6", [10, 1, 9], "fd00:1::10"),
                network("rack1", [10, 2, 8], [10, 1, 9], 8),
                Shows(
                    "Network",
                    "rack1",
                    json!({"status": {"lastAllocatedSubnet": "rack1-v4", "lastAllocatedIPv6Subnet": "rack1-v6"}}),
                ),
                Pod("a", Goes),
                subnet("rack1-v4", [10, 1, 9], "10.1.0.11"),
                subnet("rack1-v6", [10, 0, 10], "fd00:1::10"),
                network("rack1", [10, 1, 9], [10, 0, 10], 9),
            ],
        ),
        case(
            "retained addresses count as used",
            vec![
                pod("db-0").of("StatefulSet").made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Step::Kept("db-0", &["10.1.0.10"]),
                subnet("rack1-v4", [10, 1, 9], "10.1.0.10"),
            ],
        ),
        case(
            "after reservedIPs change",
            vec![
                Change(
                    "Subnet",
                    "rack1-v4",
                    json!({"spec": {"range": {"reservedIPs": ["10.1.0.10", "10.1.0.12"]}}}),
                ),
                subnet("rack1-v4", [8, 0, 8], ""),
                network("rack1", [8, 0, 8], [10, 0, 10], 8),
                pod("a").made(),
                has("a", &["10.1.0.11"]),
                pod("b").made(),
                has("b", &["10.1.0.13"]),
                Change("Subnet", "rack1-v4", json!({"spec": {"range": {"reservedIPs": null}}})),
                subnet("rack1-v4", [10, 2, 8], "10.1.0.13"),
            ],
        ),
        case(
            "after Subnets are added and removed",
            vec![
                Apply(MORE),
                network("rack1", [10, 0, 10], [20, 0, 20], 10),
                Shows(
                    "Network",
                    "rack1",
                    json!({"status": {"subnetList": ["rack1-more", "rack1-v4", "rack1-v6"]}}),
                ),
                subnet("rack1-more", [10, 0, 10], ""),
                Delete("Subnet", "rack1-more"),
                Delete("Subnet", "rack1-v4"),
                network("rack1", [0, 0, 0], [10, 0, 10], 0),
                Shows("Network", "rack1", json!({"status": {"subnetList": ["rack1-v6"]}})),
            ],
        ),
        case(
            "after nodes are added, deleted and labelled",
            vec![
                Apply("{ apiVersion: v1, kind: Node, metadata: { name: n5, labels: { rack: '1' } } }"),
                Shows("Network", "rack1", json!({"status": {"nodeList": ["n1", "n2", "n5"]}})),
                Change("Node", "n4", json!({"metadata": {"labels": {"rack": "1"}}})),
                Shows("Network", "rack1", json!({"status": {"nodeList": ["n1", "n2", "n4", "n5"]}})),
                Delete("Node", "n5"),
                Change("Node", "n1", json!({"metadata": {"labels": {"rack": "2"}}})),
                Shows("Network", "rack1", json!({"status": {"nodeList": ["n2", "n4"]}})),
                Shows("Network", "rack2", json!({"status": {"nodeList": ["n1", "n3"]}})),
                Shows("Network", "overlay", json!({"status": {"nodeList": ["n1", "n2", "n3", "n4"]}})),
            ],
        ),
        case(
            "after a Network's selector changes",
            vec![
                Change("Network", "rack2", json!({"spec": {"nodeSelector": {"rack": "9"}}})),
                Shows("Network", "rack2", json!({"status": {"nodeList": []}})),
                Change("Network", "rack2", json!({"spec": {"nodeSelector": {"rack": "2"}}})),
                Shows("Network", "rack2", json!({"status": {"nodeList": ["n3"]}})),
            ],
        ),
    ]
}

const MORE: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-more }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:11::/120', start: 'fd00:11::10', end: 'fd00:11::19' } }
";
