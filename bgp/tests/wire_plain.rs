//! The two decoders of an UPDATE agree: [`decode_update`] takes a fast path for valid messages, and
//! its result must be the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_bgp::types::{Family, FamilySet, Ipv4, Ipv6, NextHop};
use trunkline_bgp::wire::update::decode_update_carefully;
use trunkline_bgp::wire::{
    DecodeContext, EncodeContext, Scratch, Update, UpdateError, UpdateWriter, decode_update,
};
use wire_support::*;

/// The visible result of decoding.
fn seen(result: Result<Update<'_>, UpdateError>) -> String {
    match result {
        Ok(update) => {
            let Update { attributes, treat_as_withdraw, discarded, end_of_rib, .. } = update;
            let routes = (withdrawn(&update), announced(&update));
            format!("{routes:?} {attributes:?} {treat_as_withdraw:?} {discarded:?} {end_of_rib:?}")
        }
        Err(error) => format!("{error:?}"),
    }
}

fn both_ways(body: &[u8], context: &DecodeContext) {
    let (mut one, mut other) = (Scratch::default(), Scratch::default());
    let short = seen(decode_update(body, context, &mut one));
    assert_eq!(short, seen(decode_update_carefully(body, context, &mut other)), "{body:02x?} {context:?}");
}

fn context() -> impl Strategy<Value = DecodeContext> {
    let families = prop_oneof![
        4 => Just(FamilySet::ALL),
        1 => prop::sample::select(Family::ALL.to_vec()).prop_map(|family| [family].into_iter().collect()),
    ];
    let add_path = prop_oneof![4 => Just(FamilySet::EMPTY), 1 => Just(FamilySet::ALL)];
    (prop::bool::weighted(0.8), any::<bool>(), families, add_path, any::<bool>()).prop_map(
        |(four_octet_as, ext_next_hop, families, add_path, ebgp)| DecodeContext {
            four_octet_as,
            ext_next_hop,
            families,
            add_path,
            ebgp,
        },
    )
}

/// Positions and new content: an octet of any value, or one with a flipped bit.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, bool)>> {
    vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_decoders_agree_on_an_update(
        context in context(),
        attributes in attributes(),
        v4 in vec(ipv4_net(), 0..6),
        v6 in vec(ipv6_net(), 0..6),
        gone in vec(ipv4_net(), 0..3),
        next_hop in ipv4_host(),
        v6_next_hop in v6_next_hop(),
        damage in damage(),
    ) {
        let block = block(&attributes);
        let encode = EncodeContext {
            max_message: 65535,
            four_octet_as: context.four_octet_as,
            ext_next_hop: true,
            add_path: !context.add_path.is_empty(),
        };
        let mut out = vec![];
        let mut writer = UpdateWriter::new(&mut out, encode);
        writer.announce::<Ipv4>(NextHop::V4(next_hop), &block, v4.iter().copied()).unwrap();
        writer.announce::<Ipv4>(v6_next_hop, &block, v4.iter().copied()).unwrap();
        writer.announce::<Ipv6>(v6_next_hop, &block, v6.iter().copied()).unwrap();
        writer.withdraw::<Ipv4>(gone);
        writer.withdraw::<Ipv6>(v6);
        for frame in frames(&out) {
            let mut body = frame.body.to_vec();
            both_ways(&body, &context);
            for (at, octet, whole) in &damage {
                // Most damage is near the start of the attributes, because the rest is often long.
                let end = if *whole { body.len() } else { body.len().min(48) };
                let at = at.index(end);
                body[at] = if *whole { *octet } else { body[at] ^ 1 << (octet & 7) };
            }
            both_ways(&body, &context);
        }
    }
}

/// Attributes in any order and number, valid and invalid. Random octets rarely give such
/// attributes.
#[test]
fn both_decoders_agree_on_any_attribute_sequence() {
    let attributes = [
        "40010100",
        "40010103",
        "c0010100",
        "4002060201 0000fde9",
        "400200",
        "4002060201 00000000",
        "400304 0a000001",
        "400304 00000000",
        "800404 00000005",
        "400504 00000064",
        "400600",
        "c00708 00010000 0a000001",
        "c00804 fde90001",
        "d0080004 fde90001",
        "e00804 fde90001",
        "c00803 fde900",
        "800904 0a000001",
        "c01106 0201 00010000",
        "c06300",
        "c0200c 000000010000000200000003",
        "800e1e 0002 01 10 20010db8000000000000000000000001 00 40 20010db800010000",
        "800e15 0002 01 10 20010db8000000000000000000000001 00",
        "800f03 000201",
        "406300",
        "40",
    ]
    .map(hex);
    let contexts = [EBGP, IBGP, TWO_OCTET];
    let nlri: [&[u8]; 2] = [&[], &[16, 10, 1]];
    for first in &attributes {
        for second in &attributes {
            for third in &attributes {
                for start in
                    ["", "40010100 4002060201 0000fde9", "40010100 4002060201 0000fde9 400304 0a000001"]
                {
                    let list = [&hex(start), first, second, third].map(Vec::as_slice).concat();
                    for (context, nlri) in
                        contexts.iter().flat_map(|context| nlri.map(|nlri| (context, nlri)))
                    {
                        both_ways(&update_body(&[], &list, nlri), context);
                    }
                }
            }
        }
    }
}
