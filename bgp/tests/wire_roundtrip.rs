//! Encoded messages decode to the same routes: any attributes, any prefixes, any session.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_bgp::types::{Family, Ipv4, Ipv6, NextHop};
use trunkline_bgp::wire::{
    DecodeContext, EncodeContext, EncodeError, PathAttributes, Scratch, UpdateWriter, decode_update,
};
use wire_support::*;

/// Decodes the messages. Each message must be valid, within the session's length, and only announce
/// or only withdraw.
fn read(
    octets: &[u8],
    encode: &EncodeContext,
    decode: &DecodeContext,
) -> (Vec<(IpNet, NextHop)>, Vec<IpNet>, Vec<PathAttributes>) {
    let mut scratch = Scratch::default();
    let (mut reached, mut gone, mut attributes) = (vec![], vec![], vec![]);
    for frame in frames(octets) {
        assert!(frame.len <= encode.max_message);
        let update = decode_update(frame.body, decode, &mut scratch).unwrap();
        assert_eq!((update.treat_as_withdraw, update.discarded), (None, &[][..]));
        assert_eq!(update.end_of_rib, None);
        assert!(update.withdrawn().count() + update.announced().count() == 1, "RFC 7606 §5.1");
        reached.extend(announced(&update));
        gone.extend(withdrawn(&update));
        attributes.extend(update.attributes.map(|block| PathAttributes::parse(block).unwrap()));
    }
    (reached, gone, attributes)
}

/// Whether the error is correct, because the attributes do not fit.
fn too_large(error: &EncodeError, context: &EncodeContext, attributes: &PathAttributes) -> bool {
    matches!(error, EncodeError::TooLarge { octets, max } if octets > max && *max == context.max_message)
        && 2 * block(attributes).len() > context.max_message / 2
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ipv4_routes(
        (encode, decode) in session(),
        attributes in attributes(),
        prefixes in vec(ipv4_net(), 1..2000),
        v4 in ipv4_host(),
        v6 in v6_next_hop(),
    ) {
        let next_hop = if encode.ext_next_hop { v6 } else { NextHop::V4(v4) };
        let mut out = vec![];
        match UpdateWriter::new(&mut out, encode)
            .announce::<Ipv4>(next_hop, &block(&attributes), prefixes.iter().copied())
        {
            Ok(count) => prop_assert_eq!(count, prefixes.len()),
            Err(error) => {
                prop_assert!(too_large(&error, &encode, &attributes));
                prop_assert!(out.is_empty());
                return Ok(());
            }
        }
        let (reached, gone, read) = read(&out, &encode, &decode);
        prop_assert_eq!(reached, prefixes.iter().map(|p| (IpNet::V4(*p), next_hop)).collect::<Vec<_>>());
        prop_assert!(gone.is_empty());
        prop_assert!(read.iter().all(|read| *read == attributes), "{read:?}");
    }

    #[test]
    fn ipv6_routes(
        (encode, decode) in session(),
        attributes in attributes(),
        prefixes in vec(ipv6_net(), 1..600),
        next_hop in v6_next_hop(),
    ) {
        let mut out = vec![];
        match UpdateWriter::new(&mut out, encode)
            .announce::<Ipv6>(next_hop, &block(&attributes), prefixes.iter().copied())
        {
            Ok(count) => prop_assert_eq!(count, prefixes.len()),
            Err(error) => {
                prop_assert!(too_large(&error, &encode, &attributes));
                prop_assert!(out.is_empty());
                return Ok(());
            }
        }
        let (reached, gone, read) = read(&out, &encode, &decode);
        prop_assert_eq!(reached, prefixes.iter().map(|p| (IpNet::V6(*p), next_hop)).collect::<Vec<_>>());
        prop_assert!(gone.is_empty());
        prop_assert!(read.iter().all(|read| *read == attributes), "{read:?}");
    }

    #[test]
    fn withdrawals(
        (encode, decode) in session(),
        v4 in vec(ipv4_net(), 0..2000),
        v6 in vec(ipv6_net(), 0..600),
    ) {
        let mut out = vec![];
        let mut writer = UpdateWriter::new(&mut out, encode);
        prop_assert_eq!(writer.withdraw::<Ipv4>(v4.iter().copied()), v4.len());
        prop_assert_eq!(writer.withdraw::<Ipv6>(v6.iter().copied()), v6.len());
        let (reached, gone, _) = read(&out, &encode, &decode);
        prop_assert!(reached.is_empty());
        let all: Vec<IpNet> = v4.into_iter().map(IpNet::V4).chain(v6.into_iter().map(IpNet::V6)).collect();
        prop_assert_eq!(gone, all);
    }

    /// Equal attributes have equal blocks. The received order and the length encoding do not
    /// matter.
    #[test]
    fn the_block_does_not_depend_on_the_order(attributes in attributes(), seed in any::<u64>()) {
        let canonical = block(&attributes);
        let mut list = vec![];
        let mut rest = &canonical[..];
        while !rest.is_empty() {
            let extended = rest[0] & 0x10 != 0;
            let (length, start) = if extended {
                (usize::from(rest[2]) << 8 | usize::from(rest[3]), 4)
            } else {
                (usize::from(rest[2]), 3)
            };
            // Every attribute has an extended length, and the unused bits are set.
            let mut attribute = vec![rest[0] | 0x1f, rest[1]];
            attribute.extend_from_slice(&(length as u16).to_be_bytes());
            attribute.extend_from_slice(&rest[start..start + length]);
            list.push(attribute);
            rest = &rest[start + length..];
        }
        list.push(hex("5f0300040a000001"));
        list.sort_by_cached_key(|attribute| u64::from(attribute[1]).wrapping_mul(seed | 1) >> 7);
        let body = update_body(&[], &list.concat(), &[8, 10]);
        prop_assume!(body.len() < 65_535);
        let mut scratch = Scratch::default();
        let update = decode_update(&body, &IBGP, &mut scratch).unwrap();
        prop_assert_eq!(update.attributes, Some(&canonical[..]));
    }
}

#[test]
fn end_of_rib_is_read_as_such() {
    for family in Family::ALL {
        let mut out = vec![];
        UpdateWriter::new(&mut out, EncodeContext::default()).end_of_rib(family);
        let mut scratch = Scratch::default();
        let update = decode_update(only_update(&out), &EBGP, &mut scratch).unwrap();
        assert_eq!(update.end_of_rib, Some(family));
        assert_eq!(update.withdrawn().count() + update.announced().count(), 0);
        let other = DecodeContext {
            families: Family::ALL.into_iter().filter(|other| *other != family).collect(),
            ..EBGP
        };
        let update = decode_update(only_update(&out), &other, &mut scratch).unwrap();
        assert_eq!(update.end_of_rib, None, "not negotiated");
    }
}
