//! Objects that should not exist: created under an older schema, while the webhook was down, or by
//! another program. Each affects only itself, and its fault is reported.

use serde_json::json;

use super::step::Step::{
    Apply, Change, Delete, Garble, Gone, HasEvent, HasNone, Later, Logged, Loosen, Shows, Still, Warned,
};
use super::step::{has, pod};
use super::{Case, case};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "an unreadable Network: its field is named, the other Networks are used",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Loosen("Network"),
                Apply(UNREADABLE_NETWORK),
                Warned("Network", "broken", &["broken", "netID"]),
                Still("a", &["10.1.0.10"]),
                pod("b").on("n3").made(),
                has("b", &["10.2.0.2"]),
                pod("c").with("specified-network", "broken").made(),
                HasEvent("c", "IPAllocationFail", "there is no Network broken"),
                // Later objects are served as well.
                Apply(super::allocate::GLOBAL),
                pod("d").with("network-type", "GlobalBGP").made(),
                has("d", &["10.5.0.10"]),
                Shows("Network", "rack1", json!({"status": {"statistics": {"used": 1}}})),
                Delete("Network", "broken"),
                Gone("Network", "broken"),
            ],
        ),
        case(
            "an unknown field is ignored",
            vec![
                Loosen("Network"),
                Change("Network", "rack1", json!({"spec": {"config": {"colour": "red"}}})),
                Warned("Network", "rack1", &["colour"]),
                pod("a").made(),
                has("a", &["10.1.0.10"]),
            ],
        ),
        case(
            "a Network that becomes unreadable keeps its last state",
            vec![
                Loosen("Network"),
                Change("Network", "rack1", json!({"spec": {"config": {"bgpPeers": "none"}}})),
                Warned("Network", "rack1", &["bgpPeers"]),
                pod("a").made(),
                has("a", &["10.1.0.10"]),
            ],
        ),
        case(
            "an unreadable Subnet: its field is named, the other Subnets are used",
            vec![
                Loosen("Subnet"),
                Apply(UNREADABLE_SUBNET),
                Warned("Subnet", "rack1-broken", &["version"]),
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                pod("b").with("specified-subnet", "rack1-broken").made(),
                HasEvent("b", "IPAllocationFail", "there is no Subnet rack1-broken"),
                HasNone("b"),
            ],
        ),
        case(
            "a Subnet that overlaps an older Subnet is not used",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                Apply(OVERLAPPING),
                Warned("Subnet", "rack1-a", &["overlaps", "rack1-v4"]),
                pod("b").made(),
                has("b", &["10.1.0.11"]),
                pod("c").with("specified-subnet", "rack1-a").made(),
                HasEvent("c", "IPAllocationFail", "subnet rack1-a is not in network rack1"),
                HasNone("c"),
                // The newer Subnet is used once the older Subnet is gone.
                Delete("Subnet", "rack1-v4"),
                has("c", &["10.1.0.15"]),
            ],
        ),
        case(
            "if two Underlays select a node, the older Underlay is used",
            vec![
                Later("Network", "rack1"),
                Apply(SECOND_UNDERLAY),
                Shows("Subnet", "another-v4", json!({"status": {"total": 10}})),
                pod("a").made(),
                has("a", &["10.1.0.10"]),
            ],
        ),
        case(
            "an IPInstance that cannot be read: its address is not allocated until it is gone",
            vec![
                Loosen("IPInstance"),
                Garble("10.1.0.10"),
                Logged(&["10-1-0-10", "cannot be read"]),
                pod("a").made(),
                has("a", &["10.1.0.11"]),
                Delete("IPInstance", "10.1.0.10"),
                Gone("IPInstance", "10.1.0.10"),
                pod("db-0").of("StatefulSet").with("ip-pool", "10.1.0.10").made(),
                has("db-0", &["10.1.0.10"]),
            ],
        ),
    ]
}

const UNREADABLE_NETWORK: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: broken }
spec: { type: Underlay, nodeSelector: { rack: '1' }, netID: seven }
";

const UNREADABLE_SUBNET: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-broken }
spec: { network: rack1, range: { version: '5', cidr: 10.7.0.0/24 } }
";

const OVERLAPPING: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-a }
spec: { network: rack1, range: { version: '4', cidr: 10.1.0.0/24, start: 10.1.0.15, end: 10.1.0.29 } }
";

/// Its name precedes rack1.
const SECOND_UNDERLAY: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: another }
spec: { type: Underlay, netID: 30, nodeSelector: { rack: '1' } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: another-v4 }
spec: { network: another, range: { version: '4', cidr: 10.8.0.0/24, gateway: 10.8.0.1, start: 10.8.0.10, end: 10.8.0.19 } }
";
