//! UPDATE messages, in every context that a session can have.

use trunkline_bgp::types::{Family, FamilySet, Ipv4, Ipv6};
use trunkline_bgp::wire::update::decode_update_carefully;
use trunkline_bgp::wire::{
    DecodeContext, EncodeContext, MAX_EXTENDED, PathAttributes, Prefixes, Reach, Scratch, Update,
    UpdateError, UpdateWriter, WireError, decode_update, frame,
};

/// The context for an octet.
pub fn context(octet: u8) -> DecodeContext {
    let families = match octet >> 3 & 3 {
        0 | 3 => FamilySet::ALL,
        1 => [Family::Ipv4Unicast].into_iter().collect(),
        _ => [Family::Ipv6Unicast].into_iter().collect(),
    };
    let add_path = [
        (octet & 1 << 5 != 0).then_some(Family::Ipv4Unicast),
        (octet & 1 << 6 != 0).then_some(Family::Ipv6Unicast),
    ];
    DecodeContext {
        four_octet_as: octet & 1 == 0,
        ext_next_hop: octet & 2 == 0,
        ebgp: octet & 4 == 0,
        add_path: add_path.into_iter().flatten().collect(),
        families,
    }
}

/// An octet of context, then the body.
pub fn run(data: &[u8]) {
    let Some((&octet, body)) = data.split_first() else { return };
    // The body is cut at the maximum length of a message.
    let body = &body[..body.len().min(MAX_EXTENDED - 19)];
    check(body, &context(octet));
}

/// Checks the invariants for a body.
pub fn check(body: &[u8], context: &DecodeContext) {
    let mut scratch = Scratch::default();
    let decoded = decode_update(body, context, &mut scratch);
    let mut other = Scratch::default();
    let seen = seen(&decoded);
    assert_eq!(
        seen,
        self::seen(&decode_update_carefully(body, context, &mut other)),
        "the fast \
        path and the slow path differ"
    );
    match decoded {
        Err(error) => {
            let notification = WireError::from(error).notification();
            assert_eq!(notification.code, 3);
            let mut octets = vec![];
            notification.encode(&mut octets);
            assert!(frame(&octets, 4096).is_ok_and(|frame| frame.is_some()));
        }
        Ok(update) => consistent(&update, context),
    }
}

/// The whole visible result, as text.
fn seen(result: &Result<Update<'_>, UpdateError>) -> String {
    match result {
        Err(error) => format!("{error:?}"),
        Ok(update) => {
            let withdrawn: Vec<_> = update.withdrawn().collect();
            let announced: Vec<_> = update.announced().collect();
            let Update { attributes, treat_as_withdraw, discarded, end_of_rib, .. } = update;
            format!(
                "{withdrawn:?} {announced:?} {attributes:?} {treat_as_withdraw:?} {discarded:?} {end_of_rib:?}"
            )
        }
    }
}

fn consistent(update: &Update<'_>, context: &DecodeContext) {
    for prefixes in update.withdrawn().chain(update.announced().map(|reach| reach.prefixes)) {
        assert!(!prefixes.is_empty() && prefixes.iter().count() == prefixes.len());
        assert!(context.families.contains(prefixes.family()));
        prefixes.iter().for_each(|prefix| assert_eq!(prefix, prefix.trunc()));
    }
    let announces = update.announced().next().is_some();
    assert_eq!(announces, update.attributes.is_some());
    assert!(!announces || update.treat_as_withdraw.is_none());
    let nothing = update.withdrawn().next().is_none() && !announces;
    assert!(update.end_of_rib.is_none() || nothing);
    for fault in update.treat_as_withdraw.iter().chain(update.discarded) {
        assert!(!fault.to_string().is_empty());
    }
    let Some(block) = update.attributes else { return };
    let attributes = match PathAttributes::parse(block) {
        Ok(attributes) => attributes,
        Err(fault) => panic!("a decoded block is malformed: {fault}"),
    };
    let mut again = vec![];
    attributes.encode(&mut again);
    assert_eq!(
        PathAttributes::parse(&again).as_ref(),
        Ok(&attributes),
        "the parsed attributes are not encoded to the same block"
    );
    for reach in update.announced() {
        passed_on(&reach, block, &attributes);
    }
}

fn or_0<P>((identifier, prefix): (Option<u32>, P)) -> (u32, P) {
    (identifier.unwrap_or(0), prefix)
}

/// Encodes a decoded UPDATE again. For a peer with all capabilities the result is equal. For a peer
/// with two-octet AS numbers the UPDATE can also be encoded.
fn passed_on(reach: &Reach<'_>, block: &[u8], attributes: &PathAttributes) {
    let add_path = match reach.prefixes {
        Prefixes::V4(nlri) => nlri.has_identifiers(),
        Prefixes::V6(nlri) => nlri.has_identifiers(),
    };
    let internal = DecodeContext {
        four_octet_as: true,
        ext_next_hop: true,
        families: FamilySet::ALL,
        add_path: if add_path { FamilySet::ALL } else { FamilySet::EMPTY },
        ebgp: false,
    };
    for four_octet_as in [true, false] {
        let context =
            EncodeContext { four_octet_as, ext_next_hop: true, add_path, max_message: MAX_EXTENDED };
        let mut out = vec![];
        let mut writer = UpdateWriter::new(&mut out, context);
        let written = match reach.prefixes {
            Prefixes::V4(nlri) => {
                writer.announce_paths::<Ipv4>(reach.next_hop, block, nlri.paths().map(or_0))
            }
            Prefixes::V6(nlri) => {
                writer.announce_paths::<Ipv6>(reach.next_hop, block, nlri.paths().map(or_0))
            }
        };
        let Ok(count) = written else { continue }; // the attributes are too long for this peer
        assert_eq!(count, reach.prefixes.len());
        let decode = DecodeContext { four_octet_as, ..internal };
        let mut rest = &out[..];
        let mut routes = vec![];
        while !rest.is_empty() {
            let Ok(Some(message)) = frame(rest, MAX_EXTENDED) else { panic!("not a whole message") };
            rest = &rest[message.len..];
            let mut scratch = Scratch::default();
            let Ok(update) = decode_update(message.body, &decode, &mut scratch) else {
                panic!("refused: {message:?}")
            };
            assert_eq!((update.treat_as_withdraw, update.discarded.len()), (None, 0));
            let read = update.attributes.map(PathAttributes::parse);
            if four_octet_as {
                assert_eq!(read.as_ref(), Some(&Ok(attributes.clone())));
            }
            for again in update.announced() {
                assert_eq!(again.next_hop, reach.next_hop);
                routes.extend(again.prefixes.iter());
            }
        }
        assert!(routes.into_iter().eq(reach.prefixes.iter()));
    }
}
