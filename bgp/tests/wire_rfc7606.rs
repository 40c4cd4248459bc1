//! RFC 7606, attribute by attribute: the outcome of one fault in an otherwise valid UPDATE.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use trunkline_bgp::wire::{DecodeContext, PathAttributes, Scratch, UpdateError, WireError, decode_update};
use wire_support::*;

#[derive(Debug, PartialEq, Clone, Copy)]
enum Expect {
    /// No fault.
    Good,
    /// Attribute discard of this attribute; the routes stay.
    Discard(u8),
    /// Treat-as-withdraw because of this attribute.
    Withdraw(u8),
    /// NOTIFICATION 3 with this subcode.
    Reset(u8),
}
use Expect::*;

const ORIGIN: &str = "400101 00";
const AS_PATH: &str = "400206 0201 0000fde9";
const AS_PATH_2: &str = "400204 0201 fde9";
const NEXT_HOP: &str = "400304 0a000001";
const MP_REACH: &str = "800e1e 0002 01 10 20010db8000000000000000000000001 00 40 20010db800010000";

/// The outcome of an UPDATE with these attributes and, if `nlri`, 10.1.0.0/16.
fn outcome(attributes: &str, nlri: bool, context: &DecodeContext) -> Expect {
    let nlri: &[u8] = if nlri { &[16, 10, 1] } else { &[] };
    let body = update_body(&[], &hex(attributes), nlri);
    let mut scratch = Scratch::default();
    let update = match decode_update(&body, context, &mut scratch) {
        Ok(update) => update,
        Err(error) => {
            let notification = WireError::from(error).notification();
            assert_eq!(notification.code, 3);
            return Reset(notification.subcode);
        }
    };
    if let Some(fault) = update.treat_as_withdraw {
        assert!(announced(&update).is_empty() && update.attributes.is_none());
        assert!(!withdrawn(&update).is_empty(), "{attributes}: nothing is withdrawn");
        return Withdraw(fault.code);
    }
    if let Some(block) = update.attributes {
        PathAttributes::parse(block).unwrap();
    }
    match update.discarded {
        [] => Good,
        [fault] => {
            if let Some(block) = update.attributes
                && !fault.to_string().contains("more than once")
            {
                let parsed = PathAttributes::parse(block).unwrap();
                let PathAttributes { local_pref, atomic_aggregate, aggregator, originator_id, .. } = &parsed;
                let kept = match fault.code {
                    5 => local_pref.is_some(),
                    6 => *atomic_aggregate,
                    7 => aggregator.is_some(),
                    9 => originator_id.is_some(),
                    10 => !parsed.cluster_list.is_empty(),
                    code => parsed.unknown.iter().any(|attribute| attribute.code == code),
                };
                assert!(!kept, "{attributes}: {fault}, but the attribute is still in the block");
            }
            Discard(fault.code)
        }
        more => panic!("{attributes}: {more:?}"),
    }
}

/// One attribute in addition to the mandatory ones.
#[test]
fn a_faulty_attribute_has_its_specified_outcome() {
    let table = [
        // §7.4 MULTI_EXIT_DISC: 4 octets.
        ("800404 00000005", EBGP, Good),
        ("800403 000005", EBGP, Withdraw(4)),
        ("800405 0000000005", EBGP, Withdraw(4)),
        ("800400", EBGP, Withdraw(4)),
        ("c00404 00000005", EBGP, Withdraw(4)),
        ("000404 00000005", EBGP, Withdraw(4)),
        // §7.5 LOCAL_PREF: always discarded from an external peer; 4 octets from an internal one.
        ("400504 00000064", IBGP, Good),
        ("400504 00000064", EBGP, Discard(5)),
        ("400503 000064", EBGP, Discard(5)),
        ("400503 000064", IBGP, Withdraw(5)),
        ("400500", IBGP, Withdraw(5)),
        ("c00504 00000064", IBGP, Withdraw(5)),
        // §7.6 ATOMIC_AGGREGATE: no octets.
        ("400600", EBGP, Good),
        ("400601 00", EBGP, Discard(6)),
        ("c00600", EBGP, Withdraw(6)), // §3 c
        // §7.7 AGGREGATOR: 6 or 8 octets, by the session's AS numbers.
        ("c00708 00010000 0a000001", EBGP, Good),
        ("e00708 00010000 0a000001", EBGP, Good),
        ("c00706 fde9 0a000001", EBGP, Discard(7)),
        ("c00706 fde9 0a000001", TWO_OCTET, Good),
        ("c00708 00010000 0a000001", TWO_OCTET, Discard(7)),
        ("c00700", EBGP, Discard(7)),
        ("c00708 00000000 0a000001", EBGP, Discard(7)), // RFC 7607
        ("c00706 0000 0a000001", TWO_OCTET, Discard(7)),
        ("800708 00010000 0a000001", EBGP, Withdraw(7)), // §3 c
        // §7.8 COMMUNITIES: a multiple of 4, not 0.
        ("c00808 fde90001 ffffff01", EBGP, Good),
        ("e00804 fde90001", EBGP, Good),
        ("c00803 010203", EBGP, Withdraw(8)),
        ("c00805 0102030405", EBGP, Withdraw(8)),
        ("c00806 fde90001 0001", EBGP, Withdraw(8)),
        ("c00800", EBGP, Withdraw(8)),
        ("800804 fde90001", EBGP, Withdraw(8)),
        ("400804 fde90001", EBGP, Withdraw(8)),
        // §7.9 ORIGINATOR_ID: discarded from an external peer; 4 octets.
        ("800904 0a000001", IBGP, Good),
        ("800904 0a000001", EBGP, Discard(9)),
        ("800903 0a0000", EBGP, Discard(9)),
        ("800903 0a0000", IBGP, Withdraw(9)),
        ("c00904 0a000001", IBGP, Withdraw(9)),
        // §7.10 CLUSTER_LIST: discarded from an external peer; a multiple of 4, not 0.
        ("800a08 0a000001 0a000002", IBGP, Good),
        ("800a04 0a000001", EBGP, Discard(10)),
        ("800a05 0a00000100", IBGP, Withdraw(10)),
        ("800a00", IBGP, Withdraw(10)),
        // §7.14 EXTENDED COMMUNITIES: a multiple of 8, not 0.
        ("c01008 0002fde900000001", EBGP, Good),
        ("c01007 0002fde9000000", EBGP, Withdraw(16)),
        ("c0100c 0002fde900000001 00020000", EBGP, Withdraw(16)),
        ("c01000", EBGP, Withdraw(16)),
        ("801008 0002fde900000001", EBGP, Withdraw(16)),
        // RFC 8092 §5 LARGE_COMMUNITIES: a multiple of 12, not 0.
        ("c0200c 00000001 00000002 00000003", EBGP, Good),
        ("c0200b 00000001 00000002 000003", EBGP, Withdraw(32)),
        ("c02010 00000001 00000002 00000003 00000004", EBGP, Withdraw(32)),
        ("c02000", EBGP, Withdraw(32)),
        // RFC 6793 §4.1, §6: AS4_PATH, AS4_AGGREGATOR belong to two-octet speakers only.
        ("c01106 0201 00010000", EBGP, Discard(17)),
        ("c01106 0201 00010000", TWO_OCTET, Good),
        ("c01105 0201 000100", TWO_OCTET, Discard(17)),
        ("c01106 0202 00010000", TWO_OCTET, Discard(17)),
        ("c01106 0501 00010000", TWO_OCTET, Discard(17)),
        ("c01106 0201 00000000", TWO_OCTET, Discard(17)),
        ("c01106 0301 00010000", TWO_OCTET, Good), // only the confederation segments are dropped
        ("c01100", TWO_OCTET, Discard(17)),
        ("c01208 00010000 0a000001", EBGP, Discard(18)),
        ("c01208 00010000 0a000001", TWO_OCTET, Good),
        ("c01207 00010000 0a0000", TWO_OCTET, Discard(18)),
        ("c01208 00000000 0a000001", TWO_OCTET, Discard(18)),
        // Unknown: optional transitive is kept, optional non-transitive is dropped, well-known ends
        // the session.
        ("c06303 010203", EBGP, Good),
        ("c06300", EBGP, Good),
        ("806303 010203", EBGP, Good),
        ("406303 010203", EBGP, Reset(2)),
        ("006303 010203", EBGP, Reset(2)),
        // §4: lengths that contradict Total Path Attribute Length.
        ("c00808 fde90001", EBGP, Withdraw(8)),
        ("d008ffff fde90001", EBGP, Withdraw(8)),
        ("c0", EBGP, Withdraw(0)),
        ("c008", EBGP, Withdraw(0)),
        ("d00800", EBGP, Withdraw(0)),
        // The low bits of the flags are ignored, and so is Partial where it has no meaning.
        ("9f040004 00000005", EBGP, Good),
        ("8d0404 00000005", EBGP, Good),
        ("a00404 00000005", EBGP, Good),
        // §3 g: the first counts.
        ("800404 00000005 800404 00000006", EBGP, Discard(4)),
        ("c06300 c06300", EBGP, Discard(99)),
        ("400101 00", EBGP, Discard(1)),
    ];
    for (attribute, context, expect) in table {
        let as_path = if context.four_octet_as { AS_PATH } else { AS_PATH_2 };
        let attributes = format!("{ORIGIN}{as_path}{NEXT_HOP}{attribute}");
        assert_eq!(outcome(&attributes, true, &context), expect, "{attribute}");
        // §5.2: without reachable routes, any fault stronger than attribute discard resets the
        // session.
        let alone = outcome(attribute, false, &context);
        match expect {
            Withdraw(_) | Reset(_) => assert!(matches!(alone, Reset(_)), "{attribute} alone: {alone:?}"),
            Discard(1) => assert_eq!(alone, Good),
            same => assert_eq!(alone, same, "{attribute} alone"),
        }
    }
}

/// §3 h: the strongest outcome wins, and the milder one is still reported.
#[test]
fn the_strongest_of_several_faults_wins() {
    let attributes = hex(&format!("{ORIGIN}{AS_PATH}{NEXT_HOP}400601 00 c00801 00 800403 000005"));
    let body = update_body(&[], &attributes, &[16, 10, 1]);
    let mut scratch = Scratch::default();
    let update = decode_update(&body, &EBGP, &mut scratch).unwrap();
    assert_eq!(update.treat_as_withdraw.unwrap().code, 4, "in the order of type codes");
    assert_eq!(update.discarded.iter().map(|fault| fault.code).collect::<Vec<_>>(), [6]);
    let reset = format!("{ORIGIN}{AS_PATH}{NEXT_HOP}400601 00 c00801 00 800e00");
    assert_eq!(outcome(&reset, true, &EBGP), Reset(9));
}

/// Faults in ORIGIN, AS_PATH and NEXT_HOP.
#[test]
fn a_faulty_mandatory_attribute_has_its_specified_outcome() {
    let table = [
        // §7.1 ORIGIN: one octet, 0 to 2.
        (format!("400101 02{AS_PATH}{NEXT_HOP}"), Good),
        (format!("400101 03{AS_PATH}{NEXT_HOP}"), Withdraw(1)),
        (format!("400102 0000{AS_PATH}{NEXT_HOP}"), Withdraw(1)),
        (format!("400100{AS_PATH}{NEXT_HOP}"), Withdraw(1)),
        (format!("c00101 00{AS_PATH}{NEXT_HOP}"), Withdraw(1)),
        (format!("{AS_PATH}{NEXT_HOP}"), Withdraw(1)), // §3 d
        // §7.2 AS_PATH.
        (format!("{ORIGIN}400200{NEXT_HOP}"), Good),
        (format!("{ORIGIN}500200 06 0201 0000fde9{NEXT_HOP}").replace("500200 06", "50020006"), Good),
        (format!("{ORIGIN}40020e 0201 0000fde9 0102 00000001 0000{NEXT_HOP}"), Withdraw(2)),
        (format!("{ORIGIN}400206 0001 0000fde9{NEXT_HOP}"), Withdraw(2)), // type
        (format!("{ORIGIN}400206 0501 0000fde9{NEXT_HOP}"), Withdraw(2)),
        (format!("{ORIGIN}400206 0301 0000fde9{NEXT_HOP}"), Withdraw(2)), // confederation
        (format!("{ORIGIN}400206 0202 0000fde9{NEXT_HOP}"), Withdraw(2)), // overrun
        (format!("{ORIGIN}400206 0203 0000fde9{NEXT_HOP}"), Withdraw(2)),
        (format!("{ORIGIN}400207 0201 0000fde9 02{NEXT_HOP}"), Withdraw(2)), // underrun
        (format!("{ORIGIN}400208 0201 0000fde9 0200{NEXT_HOP}"), Withdraw(2)), // empty segment
        (format!("{ORIGIN}400206 0201 00000000{NEXT_HOP}"), Withdraw(2)),    // RFC 7607
        (format!("{ORIGIN}c00206 0201 0000fde9{NEXT_HOP}"), Withdraw(2)),
        (format!("{ORIGIN}{NEXT_HOP}"), Withdraw(2)),
        // §7.3 NEXT_HOP: 4 octets, an address that a host can have (RFC 4271 §6.3).
        (format!("{ORIGIN}{AS_PATH}400303 0a0000"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}400305 0a00000100"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}40030b 0a000001400504000003e7"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}400304 00000000"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}400304 e0000001"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}400304 ffffffff"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}c00304 0a000001"), Withdraw(3)),
        (format!("{ORIGIN}{AS_PATH}"), Withdraw(3)),
        // The order does not matter.
        (format!("{NEXT_HOP}{AS_PATH}{ORIGIN}"), Good),
    ];
    for (attributes, expect) in table {
        assert_eq!(outcome(&attributes, true, &EBGP), expect, "{attributes}");
    }
}

/// §5.3, §7.11, §7.12: faults in MP_REACH_NLRI and MP_UNREACH_NLRI.
#[test]
fn a_faulty_mp_attribute_has_its_specified_outcome() {
    let v6 = "20010db8000000000000000000000001";
    let nlri = "40 20010db800010000";
    let good = format!("{ORIGIN}{AS_PATH}");
    let no_v6 =
        DecodeContext { families: [trunkline_bgp::types::Family::Ipv4Unicast].into_iter().collect(), ..EBGP };
    let no_extended_next_hop = DecodeContext { ext_next_hop: false, ..EBGP };
    let table = [
        (format!("{MP_REACH}{good}"), EBGP, Good),
        (format!("{good}{MP_REACH}"), EBGP, Good),
        (format!("{MP_REACH}{ORIGIN}"), EBGP, Withdraw(2)),
        // NEXT_HOP is ignored here, even if malformed.
        (format!("{MP_REACH}{good}400303 0a0000"), EBGP, Good),
        (format!("{MP_REACH}{good}c00304 0a000001"), EBGP, Good),
        (format!("{MP_REACH}{good}c00304 0a000001"), no_v6, Discard(14)),
        // Wrong flags: the NLRI can be located, so §3 c applies.
        (format!("c00e1e{}{good}", &MP_REACH[6..]), EBGP, Withdraw(14)),
        (format!("{MP_REACH}{MP_REACH}{good}"), EBGP, Reset(1)),
        ("800f03 000201 800f03 000201".into(), EBGP, Reset(1)),
        // The fixed part is cut short.
        (format!("800e00{good}"), EBGP, Reset(9)),
        (format!("800e02 0002{good}"), EBGP, Reset(9)),
        (format!("800e03 000201{good}"), EBGP, Reset(9)),
        (format!("800e04 000201 10{good}"), EBGP, Reset(9)),
        (format!("800e14 000201 10 {v6}{good}"), EBGP, Reset(9)), // no reserved octet
        ("800f00".into(), EBGP, Reset(9)),
        ("800f02 0002".into(), EBGP, Reset(9)),
        // The attribute is longer than the rest of the attributes.
        (format!("{good}800eff 000201 10 {v6} 00 {nlri}"), EBGP, Reset(9)),
        (format!("{good}800f20 000201"), EBGP, Reset(9)),
        // The next hop length does not match the family.
        (format!("800e09 000201 04 0a000001 00{good}"), EBGP, Reset(9)),
        (format!("800e05 000201 00 00{good}"), EBGP, Reset(9)),
        (format!("800e1d 000201 18 0000000000000000{v6} 00{good}"), EBGP, Reset(9)),
        (format!("800e18 000101 10 {v6} 00 10 0a01{good}"), EBGP, Good),
        (format!("800e18 000101 10 {v6} 00 10 0a01{good}"), no_extended_next_hop, Reset(9)),
        (format!("800e0c 000101 04 0a000001 00 10 0a01{good}"), no_extended_next_hop, Good),
        // Invalid next hops: the NLRI can be located.
        (format!("800e1e 000201 10 {:032} 00 {nlri}{good}", 0), EBGP, Withdraw(14)),
        (format!("800e1e 000201 10 ff02{:028} 00 {nlri}{good}", 1), EBGP, Withdraw(14)),
        (format!("800e0c 000101 04 e0000001 00 10 0a01{good}"), EBGP, Withdraw(14)),
        // An impossible prefix.
        (format!("800e1e 000201 10 {v6} 00 81 20010db800010000{good}"), EBGP, Reset(10)),
        (format!("800e1d 000201 10 {v6} 00 40 20010db8000100{good}"), EBGP, Reset(10)),
        (format!("800e18 000101 10 {v6} 00 21 0a01{good}"), EBGP, Reset(10)),
        ("800f05 000201 81 20".into(), EBGP, Reset(10)),
        ("800f04 000201 08".into(), EBGP, Reset(10)),
        // Families that were not negotiated or are unknown are ignored.
        (format!("{MP_REACH}{good}"), no_v6, Discard(14)),
        (format!("800e06 001946 00 00 05{good}"), EBGP, Discard(14)),
        ("800f03 000201".into(), no_v6, Discard(15)),
        ("800f06 000280 ff1122".into(), EBGP, Discard(15)),
    ];
    for (attributes, context, expect) in table {
        assert_eq!(outcome(&attributes, false, &context), expect, "{attributes}");
    }
}

/// §3 b, i: faults in the fields themselves.
#[test]
fn a_faulty_field_resets_the_session() {
    let good = hex(&format!("{ORIGIN}{AS_PATH}{NEXT_HOP}"));
    let error = |body: &[u8]| decode_update(body, &EBGP, &mut Scratch::default()).map(|_| ()).unwrap_err();
    let subcode = |error: UpdateError| WireError::from(error).notification().subcode;
    for body in [&[][..], &[0], &[0, 0], &[0, 0, 0], &[0, 1, 0], &[0, 0, 0, 1], &[0xff, 0xff, 0, 0]] {
        assert_eq!(subcode(error(body)), 1, "{body:?}");
    }
    for (withdrawn, nlri) in
        [(&[33u8, 1, 1, 1, 1, 1][..], &[][..]), (&[8], &[]), (&[], &[32, 1]), (&[], &[255])]
    {
        assert_eq!(subcode(error(&update_body(withdrawn, &good, nlri))), 10, "{withdrawn:?} {nlri:?}");
    }
}

/// §3 j: routes in an unreadable attribute reset the session even if other routes are known.
#[test]
fn an_overrunning_mp_attribute_resets_despite_nlri() {
    assert_eq!(outcome(&format!("{ORIGIN}{AS_PATH}{NEXT_HOP}800f20 000201"), true, &EBGP), Reset(9));
    assert_eq!(outcome(&format!("{ORIGIN}{AS_PATH}{NEXT_HOP}800e20 000201"), true, &EBGP), Reset(9));
    assert_eq!(outcome(&format!("{ORIGIN}{AS_PATH}{NEXT_HOP}c00820 000201"), true, &EBGP), Withdraw(8));
}

/// Treat-as-withdraw covers every route of the message, in addition to its withdrawn routes.
#[test]
fn treat_as_withdraw_covers_every_route_of_the_message() {
    let attributes = hex(&format!("{MP_REACH}800f07 000201 1820010d{ORIGIN}{AS_PATH}{NEXT_HOP}c00801 00"));
    let body = update_body(&[8, 11], &attributes, &[8, 10, 0]);
    let mut scratch = Scratch::default();
    let update = decode_update(&body, &EBGP, &mut scratch).unwrap();
    let names: Vec<_> = withdrawn(&update).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["11.0.0.0/8", "2001:d00::/24", "10.0.0.0/8", "0.0.0.0/0", "2001:db8:1::/64"]);
    assert_eq!(
        update.treat_as_withdraw.unwrap().to_string(),
        "COMMUNITIES (8): length 1, must be a multiple of 4, not 0"
    );
    assert!(announced(&update).is_empty());
}
