//! Shared helpers of the codec tests: messages from parts, hex, and strategies for proptest.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_bgp::types::{Asn, Community, ExtendedCommunity, FamilySet, LargeCommunity, NextHop};
use trunkline_bgp::wire::attributes::{Aggregator, Partial};
use trunkline_bgp::wire::{
    AsPath, DecodeContext, EncodeContext, Frame, MAX_EXTENDED, MAX_MESSAGE, MessageKind, Origin,
    PathAttributes, Segment, SegmentKind, UnknownAttribute, Update, frame,
};

/// A session with every feature, to an external peer.
pub(crate) const EBGP: DecodeContext = DecodeContext {
    four_octet_as: true,
    ext_next_hop: true,
    families: FamilySet::ALL,
    add_path: FamilySet::EMPTY,
    ebgp: true,
};
/// The same session to an internal peer.
pub(crate) const IBGP: DecodeContext = DecodeContext { ebgp: false, ..EBGP };
/// An external peer with two-octet AS numbers.
pub(crate) const TWO_OCTET: DecodeContext = DecodeContext { four_octet_as: false, ..EBGP };

/// Octets of a hex text; white space is ignored.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).expect("hex") as u8).collect();
    assert!(digits.len().is_multiple_of(2), "odd number of hex digits in {text}");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The body of an UPDATE.
pub(crate) fn update_body(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(withdrawn);
    body.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
    body.extend_from_slice(attributes);
    body.extend_from_slice(nlri);
    body
}

/// The messages in a buffer, which must end with the last one.
pub(crate) fn frames(mut octets: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while !octets.is_empty() {
        let frame = frame(octets, MAX_EXTENDED).expect("a good header").expect("a whole message");
        octets = &octets[frame.len..];
        frames.push(frame);
    }
    frames
}

/// The body of the only message in a buffer, an UPDATE.
pub(crate) fn only_update(octets: &[u8]) -> &[u8] {
    let frames = frames(octets);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].kind, MessageKind::Update);
    frames[0].body
}

/// Withdrawn prefixes, in order.
pub(crate) fn withdrawn(update: &Update<'_>) -> Vec<IpNet> {
    update.withdrawn().flat_map(|prefixes| prefixes.iter()).collect()
}

/// Announced prefixes with their next hops, in order.
pub(crate) fn announced(update: &Update<'_>) -> Vec<(IpNet, NextHop)> {
    update
        .announced()
        .flat_map(|reach| reach.prefixes.iter().map(move |prefix| (prefix, reach.next_hop)))
        .collect()
}

/// The canonical block.
pub(crate) fn block(attributes: &PathAttributes) -> Vec<u8> {
    let mut block = Vec::new();
    attributes.encode(&mut block);
    block
}

pub(crate) fn ipv4_net() -> impl Strategy<Value = Ipv4Net> {
    (any::<u32>(), 0..=32u8).prop_map(|(a, l)| Ipv4Net::new(Ipv4Addr::from(a), l).unwrap().trunc())
}

pub(crate) fn ipv6_net() -> impl Strategy<Value = Ipv6Net> {
    (any::<u128>(), 0..=128u8).prop_map(|(a, l)| Ipv6Net::new(Ipv6Addr::from(a), l).unwrap().trunc())
}

pub(crate) fn ipv4_host() -> impl Strategy<Value = Ipv4Addr> {
    (1..224u8, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d))
}

pub(crate) fn v6_next_hop() -> impl Strategy<Value = NextHop> {
    (any::<u64>(), prop::option::of(any::<u64>())).prop_map(|(low, link_local)| {
        let global = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(low));
        match link_local {
            None => NextHop::V6(global),
            Some(low) => {
                NextHop::V6WithLinkLocal(global, Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(low)))
            }
        }
    })
}

pub(crate) fn asn() -> impl Strategy<Value = Asn> {
    prop_oneof![1..=65535u32, 65536..=u32::MAX, Just(23456)].prop_map(Asn)
}

fn segment() -> impl Strategy<Value = Segment> {
    prop_oneof![
        4 => vec(asn(), 1..6).prop_map(|asns| Segment { kind: SegmentKind::Sequence, asns }),
        1 => vec(asn(), 1..4).prop_map(|asns| Segment { kind: SegmentKind::Set, asns }),
        1 => vec(asn(), 250..300).prop_map(|asns| Segment { kind: SegmentKind::Sequence, asns }),
    ]
}

/// A path in which no sequence follows another, because adjacent sequences are merged.
pub(crate) fn as_path() -> impl Strategy<Value = AsPath> {
    vec(segment(), 0..4).prop_map(|segments| {
        let mut path = AsPath::default();
        for segment in segments {
            match path.segments.last_mut() {
                Some(Segment { kind: SegmentKind::Sequence, asns })
                    if segment.kind == SegmentKind::Sequence =>
                {
                    asns.extend(segment.asns);
                }
                _ => path.segments.push(segment),
            }
        }
        path
    })
}

fn unknown() -> impl Strategy<Value = Vec<UnknownAttribute>> {
    let codes = prop::sample::subsequence(vec![11u8, 13, 25, 36, 64, 128, 255], 0..3);
    (codes, vec(any::<u8>(), 0..300)).prop_map(|(codes, value)| {
        codes.into_iter().map(|code| UnknownAttribute { flags: 0xe0, code, value: value.clone() }).collect()
    })
}

/// Any attributes that an internal peer may send.
pub(crate) fn attributes() -> impl Strategy<Value = PathAttributes> {
    let origin = prop::sample::select(vec![Origin::Igp, Origin::Egp, Origin::Incomplete]);
    let aggregator =
        (asn(), any::<u32>()).prop_map(|(asn, a)| Aggregator { asn, address: Ipv4Addr::from(a) });
    let large = any::<(u32, u32, u32)>().prop_map(|(global, local1, local2)| LargeCommunity {
        global,
        local1,
        local2,
    });
    let scalars = (
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        any::<bool>(),
        prop::option::of(aggregator),
        prop::option::of(ipv4_host()),
    );
    let lists = (
        vec(any::<u32>().prop_map(Community), 0..80),
        vec(ipv4_host(), 0..4),
        vec(any::<[u8; 8]>().prop_map(ExtendedCommunity), 0..5),
        vec(large, 0..25),
        unknown(),
        proptest::option::of(any::<u32>().prop_map(Asn)),
    );
    (origin, as_path(), scalars, lists).prop_map(|(origin, as_path, scalars, lists)| {
        let (med, local_pref, atomic_aggregate, aggregator, originator_id) = scalars;
        let (communities, cluster_list, extended_communities, large_communities, unknown, only_to_customer) =
            lists;
        PathAttributes {
            origin,
            as_path,
            med,
            local_pref,
            atomic_aggregate,
            aggregator,
            communities,
            originator_id,
            cluster_list,
            extended_communities,
            large_communities,
            only_to_customer,
            unknown,
            partial: Partial::default(),
        }
    })
}

/// Both directions of a session.
pub(crate) fn session() -> impl Strategy<Value = (EncodeContext, DecodeContext)> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(four_octet_as, ext_next_hop, extended)| {
        let max_message = if extended { MAX_EXTENDED } else { MAX_MESSAGE };
        (
            EncodeContext { four_octet_as, ext_next_hop, add_path: false, max_message },
            DecodeContext { four_octet_as, ext_next_hop, ..IBGP },
        )
    })
}
