//! The fast path for nearly all UPDATEs: no faults, attributes in ascending order with exactly the
//! specified flags, and four-octet AS numbers.
//!
//! [`decode`] works in a single pass. It needs no list of attributes. The slow path needs a list to
//! sort the attributes and to find duplicates and the worst fault. `decode` returns a result only
//! if it is certain. At the first deviation it returns None without side effects, and the slow path
//! starts from the beginning. So RFC 7606 is implemented in one place, and the code here only
//! decides whether it is needed. A property test and a fuzz target check that both paths give the
//! same result.

use std::net::Ipv4Addr;

use super::{Fields, MpReach, Update, decode_mp_reach, host_v4};
use crate::types::{Family, Ipv4};
use crate::wire::attributes::as_path::{self, Width};
use crate::wire::attributes::table::{self, Sender, flags};
use crate::wire::context::DecodeContext;
use crate::wire::nlri::Nlri;

const WELL_KNOWN: u8 = flags::TRANSITIVE;

/// Decodes a plain UPDATE; none if it is not plain. `octets` holds the block if the block is not
/// contiguous in the message.
#[inline]
pub(super) fn decode<'a>(
    body: &'a [u8],
    context: &DecodeContext,
    octets: &'a mut Vec<u8>,
) -> Option<Update<'a>> {
    if !context.four_octet_as || !context.families.contains(Family::Ipv4Unicast) {
        return None;
    }
    let (withdrawn, rest) = length_prefixed(body)?;
    let (attributes, nlri) = length_prefixed(rest)?;
    let add_path = context.add_path.contains(Family::Ipv4Unicast);
    let mut fields = Fields {
        withdrawn: Nlri::<Ipv4>::check(withdrawn, "", add_path).ok()?,
        nlri: Nlri::<Ipv4>::check(nlri, "", add_path).ok()?,
        ..Fields::default()
    };
    if attributes.is_empty() {
        // The message has only withdrawals. Without withdrawals it would be End-of-RIB.
        let plain = !fields.withdrawn.is_empty() && fields.nlri.is_empty();
        return plain.then(|| Update::good(fields, None, &[]));
    }

    // MP_REACH_NLRI is the first attribute, as RFC 7606 §5.1 requires.
    let block = match attributes {
        [_, table::MP_REACH_NLRI, ..] => mp_reach(attributes, context, &mut fields)?,
        block => block,
    };
    // Every block starts with ORIGIN and AS_PATH.
    let [WELL_KNOWN, table::ORIGIN, 1, 0..=2, WELL_KNOWN, table::AS_PATH, length, ref rest @ ..] = *block
    else {
        return None;
    };
    let (path, mut rest) = rest.split_at_checked(usize::from(length))?;
    as_path::check(path, Width::Four, false).ok()?;
    let head = &block[..block.len() - rest.len()];
    let mut tail: &[u8] = &[];
    let mut apart = false;
    if let [WELL_KNOWN, table::NEXT_HOP, 4, a, b, c, d, ref after @ ..] = *rest {
        fields.next_hop = Ipv4Addr::new(a, b, c, d);
        host_v4(fields.next_hop).ok()?;
        rest = after;
        tail = after;
        apart = true;
    }
    if fields.nlri.is_empty() {
        fields.mp_reach?;
    } else if !apart {
        return None;
    }
    others(rest, context)?;
    let block = match apart && !tail.is_empty() {
        false if apart => head,
        false => block,
        true => {
            octets.clear();
            octets.extend_from_slice(head);
            octets.extend_from_slice(tail);
            octets
        }
    };
    Some(Update::good(fields, Some(block), &[]))
}

/// Decodes MP_REACH_NLRI, the first attribute, and returns the other attributes.
fn mp_reach<'a>(attributes: &'a [u8], context: &DecodeContext, fields: &mut Fields<'a>) -> Option<&'a [u8]> {
    let (flags, _, value, rest) = attribute(attributes)?;
    let &[afi0, afi1, safi, ref octets @ ..] = value else { return None };
    let family = Family::from_afi_safi(u16::from_be_bytes([afi0, afi1]), safi)?;
    if flags & !flags::EXTENDED_LENGTH != flags::OPTIONAL || !context.families.contains(family) {
        return None;
    }
    let MpReach { next_hop, prefixes } = decode_mp_reach(family, octets, context).ok()?;
    fields.mp_next_hop = next_hop.ok()?;
    fields.mp_reach = (!prefixes.is_empty()).then_some(prefixes);
    fields.mp_reach.map(|_| rest)
}

/// Checks the attributes that follow NEXT_HOP in a canonical block.
#[inline]
fn others(mut rest: &[u8], context: &DecodeContext) -> Option<()> {
    let mut previous = table::NEXT_HOP;
    while !rest.is_empty() {
        let (flags, code, value, after) = attribute(rest)?;
        rest = after;
        let row = table::row(code)?;
        let extended = if value.len() > 255 { flags::EXTENDED_LENGTH } else { 0 };
        let sender = match row.sender {
            Sender::Anyone => true,
            Sender::InternalPeers => !context.ebgp,
            Sender::TwoOctetSpeakers => false,
        };
        if code <= previous || flags != row.flags | extended || !sender || !table::in_block(code) {
            return None;
        }
        previous = code;
        (row.check)(value, context).ok()?;
    }
    Some(())
}

/// Flags, type code and value of the first attribute, and the octets after it.
#[inline]
fn attribute(octets: &[u8]) -> Option<(u8, u8, &[u8], &[u8])> {
    let [flags, code, length, ref rest @ ..] = *octets else { return None };
    let mut length = usize::from(length);
    let mut rest = rest;
    if flags & flags::EXTENDED_LENGTH != 0 {
        let (&low, after) = rest.split_first()?;
        length = length << 8 | usize::from(low);
        rest = after;
    }
    let (value, rest) = rest.split_at_checked(length)?;
    Some((flags, code, value, rest))
}

#[inline]
fn length_prefixed(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}
