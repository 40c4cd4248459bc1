//! `ip-pool` and `mac-pool`: named addresses, by ordinal.

use super::step::Deed::Goes;
use super::step::Mac::{Is, Same};
use super::step::Step::{Free, Has, HasEvent, HasNone, Kept, Pod};
use super::step::{has, has_again, pod};
use super::{Case, case};

const SET: &str = "StatefulSet";
const FAIL: &str = "IPAllocationFail";
const THREE: &str = "10.1.0.15,10.1.0.17,10.1.0.13";
const MACS: &str = "02:aa:00:00:00:01,02-aa-00-00-00-02";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "each ordinal has its entry, and a pod without an entry gets an event",
            vec![
                pod("db-0").of(SET).with("ip-pool", THREE).made(),
                pod("db-2").of(SET).with("ip-pool", THREE).made(),
                pod("db-1").of(SET).with("ip-pool", THREE).on("n2").made(),
                pod("db-3").of(SET).with("ip-pool", THREE).made(),
                has("db-0", &["10.1.0.15"]),
                has("db-1", &["10.1.0.17"]),
                has("db-2", &["10.1.0.13"]),
                HasEvent("db-3", FAIL, "ip-pool has 3 entries and none for ordinal 3"),
                HasNone("db-3"),
            ],
        ),
        case(
            "retained like other addresses",
            vec![
                pod("db-1").of(SET).with("ip-pool", THREE).made(),
                has("db-1", &["10.1.0.17"]),
                Pod("db-1", Goes),
                Kept("db-1", &["10.1.0.17"]),
                pod("db-1").of(SET).with("ip-pool", THREE).on("n2").made(),
                has_again("db-1", &["10.1.0.17"]),
            ],
        ),
        case(
            "pairs",
            vec![
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15/fd00:1::15,10.1.0.16/fd00:1::16").made(),
                has("db-0", &["10.1.0.15", "fd00:1::15"]),
                pod("db-1").of(SET).with("ip-pool", "10.1.0.15/fd00:1::15,fd00:1::16/10.1.0.16").made(),
                has("db-1", &["10.1.0.16", "fd00:1::16"]),
            ],
        ),
        case(
            "only pods that name reserved addresses get them",
            vec![pod("db-0").of(SET).with("ip-pool", "10.2.0.4").on("n3").made(), has("db-0", &["10.2.0.4"])],
        ),
        case(
            "in a named network",
            vec![
                pod("db-0").of(SET).with("specified-network", "overlay").with("ip-pool", "10.3.0.33").made(),
                has("db-0", &["10.3.0.33"]),
            ],
        ),
        case(
            "a changed pool: addresses outside of the new pool are released",
            vec![
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15").made(),
                has("db-0", &["10.1.0.15"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.15"]),
                pod("db-0").of(SET).with("ip-pool", "10.1.0.16").made(),
                has("db-0", &["10.1.0.16"]),
                Free(&["10.1.0.15"]),
                HasEvent("db-0", "IPReleaseSucceed", "10-1-0-15"),
            ],
        ),
        case(
            "a pool with one changed address of a pair: the other address stays",
            vec![
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15/fd00:1::15").made(),
                has("db-0", &["10.1.0.15", "fd00:1::15"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.15", "fd00:1::15"]),
                pod("db-0").of(SET).with("ip-pool", "10.1.0.16/fd00:1::15").made(),
                Has("db-0", &["10.1.0.16", "fd00:1::15"], Same),
                Free(&["10.1.0.15"]),
            ],
        ),
        case(
            "a new pool: the pod's earlier address is released",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15").made(),
                has("db-0", &["10.1.0.15"]),
                Free(&["10.1.0.10"]),
            ],
        ),
        case(
            "an entry of another pod: the pod gets an event, and the address afterwards",
            vec![
                pod("a").made(),
                has("a", &["10.1.0.10"]),
                pod("db-0").of(SET).with("ip-pool", "10.1.0.10").made(),
                HasEvent("db-0", FAIL, "address 10.1.0.10 of subnet rack1-v4 belongs to IPInstance"),
                HasNone("db-0"),
                Pod("a", Goes),
                has("db-0", &["10.1.0.10"]),
            ],
        ),
        case(
            "the pool has addresses of no subnet, or addresses that are never allocated",
            vec![
                pod("db-0").of(SET).with("ip-pool", "10.9.0.1").made(),
                HasEvent(
                    "db-0",
                    FAIL,
                    "address 10.9.0.1 is in no subnet of network rack1: its subnets are rack1-v4",
                ),
                pod("db-1").of(SET).with("ip-pool", "10.2.0.1,10.2.0.1").on("n3").made(),
                HasEvent("db-1", FAIL, "address 10.2.0.1 of subnet rack2-v4 is never allocated"),
                pod("db-2").of(SET).with("ip-pool", "10.1.0.15,nowhere").made(),
                HasEvent("db-2", FAIL, "ip-pool][1]: `nowhere` is not an IP address"),
                HasNone("db-0"),
                HasNone("db-1"),
                HasNone("db-2"),
            ],
        ),
        case(
            "a named address is retained despite ip-retain: false",
            vec![
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15").with("ip-retain", "false").made(),
                has("db-0", &["10.1.0.15"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.15"]),
                pod("db-0").of(SET).with("ip-pool", "10.1.0.15").with("ip-retain", "false").made(),
                has_again("db-0", &["10.1.0.15"]),
            ],
        ),
        case(
            "a pod of no stateful workload has the next address",
            vec![pod("a-0").with("ip-pool", "10.1.0.15").made(), has("a-0", &["10.1.0.10"])],
        ),
        case(
            "MAC pool: by ordinal, and retained",
            vec![
                pod("db-0").of(SET).with("mac-pool", MACS).made(),
                Has("db-0", &["10.1.0.10"], Is("02:aa:00:00:00:01")),
                pod("db-1").of(SET).with("mac-pool", MACS).with("ip-family", "DualStack").made(),
                Has("db-1", &["10.1.0.11", "fd00:1::10"], Is("02:aa:00:00:00:02")),
                pod("db-2").of(SET).with("mac-pool", MACS).made(),
                HasEvent("db-2", FAIL, "mac-pool has 2 entries and none for ordinal 2"),
                HasNone("db-2"),
                Pod("db-1", Goes),
                Kept("db-1", &["10.1.0.11", "fd00:1::10"]),
                pod("db-1").of(SET).with("mac-pool", MACS).made(),
                Has("db-1", &["10.1.0.11", "fd00:1::10"], Is("02:aa:00:00:00:02")),
            ],
        ),
        case(
            "a new MAC pool: the retained address gets its MAC address",
            vec![
                pod("db-0").of(SET).made(),
                has("db-0", &["10.1.0.10"]),
                Pod("db-0", Goes),
                Kept("db-0", &["10.1.0.10"]),
                pod("db-0").of(SET).with("mac-pool", MACS).made(),
                Has("db-0", &["10.1.0.10"], Is("02:aa:00:00:00:01")),
            ],
        ),
        case(
            "MAC pool: another pod uses the entry's MAC address",
            vec![
                pod("db-0").of(SET).with("mac-pool", MACS).made(),
                Has("db-0", &["10.1.0.10"], Is("02:aa:00:00:00:01")),
                pod("ldap-0").of(SET).with("mac-pool", MACS).made(),
                HasEvent(
                    "ldap-0",
                    FAIL,
                    "MAC address 02:aa:00:00:00:01 is in use by another pod of network rack1",
                ),
                HasNone("ldap-0"),
            ],
        ),
        case(
            "MAC pool: a pod of no stateful workload has a generated MAC address",
            vec![pod("a-0").with("mac-pool", MACS).made(), has("a-0", &["10.1.0.10"])],
        ),
    ]
}
