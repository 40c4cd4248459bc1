//! Messages written by hand from the RFCs, with the meaning of each octet; decoding and encoding
//! must agree with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use std::net::Ipv4Addr;

use trunkline_bgp::types::{Asn, Community, Family, Ipv4, Ipv6, LargeCommunity, NextHop};
use trunkline_bgp::wire::attributes::Aggregator;
use trunkline_bgp::wire::{
    AsPath, Capability, EncodeContext, HEADER, Notification, Open, Origin, PathAttributes, RestartFamily,
    RouteRefresh, Scratch, UpdateWriter, decode_update, encode_keepalive,
};
use wire_support::*;

const MARKER: &str = "ffffffff ffffffff ffffffff ffffffff";

/// A message from the octets after the marker; `#` starts a comment.
fn message(text: &str) -> Vec<u8> {
    let octets: String = text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    hex(&format!("{MARKER}{octets}"))
}

#[test]
fn open() {
    let octets = message(
        "0045 01
         04 5ba0 005a 0a000001      # version 4, AS_TRANS, 90 s, 10.0.0.1
         28 02 26                   # parameters, capabilities
         01 04 0001 00 01           # IPv4 unicast
         01 04 0002 00 01           # IPv6 unicast
         02 00                      # route refresh
         05 06 0001 0001 0002       # extended next hop: IPv4 unicast over IPv6
         06 00                      # extended message
         40 06 8078 0001 01 80      # graceful restart: restarting, 120 s, IPv4 unicast kept
         41 04 fa56ea01             # four-octet AS 4200000001",
    );
    let open = Open::new(
        Asn(4_200_000_001),
        90,
        Ipv4Addr::new(10, 0, 0, 1),
        vec![
            Capability::Multiprotocol(Family::Ipv4Unicast.into()),
            Capability::Multiprotocol(Family::Ipv6Unicast.into()),
            Capability::RouteRefresh,
            Capability::ExtendedNextHop(vec![(Family::Ipv4Unicast.into(), 2)]),
            Capability::ExtendedMessage,
            Capability::GracefulRestart {
                restarting: true,
                notification: false,
                restart_time: 120,
                families: vec![RestartFamily { family: Family::Ipv4Unicast.into(), forwarding: true }],
            },
            Capability::FourOctetAs(Asn(4_200_000_001)),
        ],
    );
    let mut out = vec![];
    open.encode(&mut out);
    assert_eq!(out, octets);
    assert_eq!(Open::decode(&octets[HEADER..]), Ok(open));
}

/// RFC 9072 §2, on both sides of the one-octet limit.
#[test]
fn open_with_more_parameters_than_one_octet_can_count() {
    for (value, header) in [
        (251, "0136 01 04 fde9 005a 0a000001 ff 02 fd c8 fb"),
        (252, "0136 01 04 fde9 005a 0a000001 ff ff 0101 02 00fe c8 fc"),
        (255, "0139 01 04 fde9 005a 0a000001 ff ff 0104 02 0101 c8 ff"),
    ] {
        let capability = Capability::Unknown { code: 200, value: vec![0xaa; value] };
        let open = Open::new(Asn(65001), 90, Ipv4Addr::new(10, 0, 0, 1), vec![capability]);
        let mut octets = message(header);
        octets.resize(octets.len() + value, 0xaa);
        let length = octets.len() as u16;
        octets[16..18].copy_from_slice(&length.to_be_bytes());
        let mut out = vec![];
        open.encode(&mut out);
        assert_eq!(out, octets, "{value}");
        assert_eq!(Open::decode(&octets[HEADER..]), Ok(open), "{value}");
    }
    // The long form is accepted for any length, and with any short length except 0.
    for short in ["ff", "01", "08"] {
        let octets = message(&format!("0025 01 04 fde9 005a 0a000001 {short} ff 0005 02 0002 02 00"));
        let open = Open::new(Asn(65001), 90, Ipv4Addr::new(10, 0, 0, 1), vec![Capability::RouteRefresh]);
        assert_eq!(Open::decode(&octets[HEADER..]), Ok(open), "{short}");
    }
}

#[test]
fn small_messages() {
    let mut out = vec![];
    encode_keepalive(&mut out);
    assert_eq!(out, message("0013 04"));
    out.clear();
    RouteRefresh::request(Family::Ipv6Unicast).encode(&mut out);
    assert_eq!(out, message("0017 05 0002 00 01"));
    out.clear();
    RouteRefresh::begin(Family::Ipv6Unicast).encode(&mut out);
    RouteRefresh::end(Family::Ipv4Unicast).encode(&mut out);
    assert_eq!(out, [message("0017 05 0002 01 01"), message("0017 05 0001 02 01")].concat());
    out.clear();
    Notification::new(6, 2, *b"\x03bye").encode(&mut out);
    assert_eq!(out, message("0019 03 06 02 03 627965"));
    out.clear();
    let mut writer = UpdateWriter::new(&mut out, EncodeContext::default());
    writer.end_of_rib(Family::Ipv4Unicast);
    writer.end_of_rib(Family::Ipv6Unicast);
    let end_of_rib = [message("0017 02 0000 0000"), message("001e 02 0000 0007 900f0003 0002 01")].concat();
    assert_eq!(out, end_of_rib);
}

/// A pod's /32 with NO_EXPORT, as an external peer receives it.
#[test]
fn an_ipv4_announcement() {
    let octets = message(
        "0037 02 0000 001b
         400101 00
         400206 0201 0000fde9
         400304 0a000001
         c00804 ffffff01
         20 0afe0007",
    );
    let attributes = PathAttributes {
        as_path: AsPath::sequence([Asn(65001)]),
        communities: vec![Community::NO_EXPORT],
        ..PathAttributes::default()
    };
    let next_hop = NextHop::V4(Ipv4Addr::new(10, 0, 0, 1));
    let mut out = vec![];
    let prefix = "10.254.0.7/32".parse().unwrap();
    UpdateWriter::new(&mut out, EncodeContext::default())
        .announce::<Ipv4>(next_hop, &block(&attributes), [prefix])
        .unwrap();
    assert_eq!(out, octets);
    let mut scratch = Scratch::default();
    let update = decode_update(&octets[HEADER..], &EBGP, &mut scratch).unwrap();
    assert_eq!(announced(&update), [(prefix.into(), next_hop)]);
    assert_eq!(PathAttributes::parse(update.attributes.unwrap()), Ok(attributes));
}

/// An IPv6 announcement with both next hops of RFC 2545, and an IPv4 announcement with an IPv6 next
/// hop (RFC 8950).
#[test]
fn announcements_with_an_ipv6_next_hop() {
    let global = "2001:db8::1".parse().unwrap();
    let local = "fe80::1".parse().unwrap();
    let attributes = PathAttributes { as_path: AsPath::sequence([Asn(65001)]), ..PathAttributes::default() };
    let context = EncodeContext { ext_next_hop: true, ..EncodeContext::default() };
    let mut scratch = Scratch::default();

    let octets = message(
        "005b 02 0000 0044
         900e0033 0002 01 20 20010db8000000000000000000000001 fe800000000000000000000000000001 00
           68 20010db8 00010000 00000007 00
         400101 00
         400206 0201 0000fde9",
    );
    let next_hop = NextHop::V6WithLinkLocal(global, local);
    let prefix = "2001:db8:1::7:0:0/104".parse().unwrap();
    let mut out = vec![];
    UpdateWriter::new(&mut out, context).announce::<Ipv6>(next_hop, &block(&attributes), [prefix]).unwrap();
    assert_eq!(out, octets);
    let update = decode_update(&octets[HEADER..], &EBGP, &mut scratch).unwrap();
    assert_eq!(announced(&update), [(prefix.into(), next_hop)]);

    let octets = message(
        "0042 02 0000 002b
         900e001a 0001 01 10 20010db8000000000000000000000001 00  20 0afe0007
         400101 00
         400206 0201 0000fde9",
    );
    let prefix = "10.254.0.7/32".parse().unwrap();
    let mut out = vec![];
    UpdateWriter::new(&mut out, context)
        .announce::<Ipv4>(NextHop::V6(global), &block(&attributes), [prefix])
        .unwrap();
    assert_eq!(out, octets);
    let update = decode_update(&octets[HEADER..], &EBGP, &mut scratch).unwrap();
    assert_eq!(announced(&update), [(prefix.into(), NextHop::V6(global))]);
}

#[test]
fn withdrawals() {
    let mut out = vec![];
    let mut writer = UpdateWriter::new(&mut out, EncodeContext::default());
    writer.withdraw::<Ipv4>(["10.254.0.7/32".parse().unwrap(), "10.0.0.0/8".parse().unwrap()]);
    writer.withdraw::<Ipv6>(["2001:db8::/32".parse().unwrap()]);
    let octets = [
        message("001e 02 0007 20 0afe0007 08 0a 0000"),
        message("0023 02 0000 000c 900f0008 0002 01 20 20010db8"),
    ];
    assert_eq!(out, octets.concat());
}

/// A two-octet speaker receives AS_TRANS, AS4_PATH and AS4_AGGREGATOR; decoding restores the
/// original (RFC 6793).
#[test]
fn a_two_octet_session() {
    let octets = message(
        "0065 02 0000 004b
         400101 02
         400206 0202 fde9 5ba0
         400304 0a000001
         800404 00000007
         c00706 5ba0 0a000009
         c0110a 0202 0000fde9 fa56ea01
         c01208 fa56ea01 0a000009
         c0200c 00000001 00000002 00000003
         10 0a01",
    );
    let attributes = PathAttributes {
        origin: Origin::Incomplete,
        as_path: AsPath::sequence([Asn(65001), Asn(4_200_000_001)]),
        med: Some(7),
        aggregator: Some(Aggregator { asn: Asn(4_200_000_001), address: Ipv4Addr::new(10, 0, 0, 9) }),
        large_communities: vec![LargeCommunity { global: 1, local1: 2, local2: 3 }],
        ..PathAttributes::default()
    };
    let next_hop = NextHop::V4(Ipv4Addr::new(10, 0, 0, 1));
    let mut out = vec![];
    UpdateWriter::new(&mut out, EncodeContext { four_octet_as: false, ..EncodeContext::default() })
        .announce::<Ipv4>(next_hop, &block(&attributes), ["10.1.0.0/16".parse().unwrap()])
        .unwrap();
    assert_eq!(out, octets);
    let mut scratch = Scratch::default();
    let update = decode_update(&octets[HEADER..], &TWO_OCTET, &mut scratch).unwrap();
    assert_eq!(PathAttributes::parse(update.attributes.unwrap()), Ok(attributes));
}
