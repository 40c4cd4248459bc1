//! The path attributes: one row each, in ascending order of type code.
//!
//! A row has the facts of the specifications: flags, permitted senders, the outcome of a malformed
//! attribute (RFC 7606 §7). It also has the check of the value and the conversion from and to
//! [`PathAttributes`]. Rows with `read` = [`not_in_block`] are never part of a canonical block:
//! UPDATE's decoder and writer handle them.

use std::net::Ipv4Addr;

use super::super::context::DecodeContext;
use super::super::error::{AttributeFaultKind, ErrorHandling};
use super::as_path::{self, Width};
use super::{Aggregator, AsPath, Origin, PathAttributes};
use crate::types::{Asn, Community, ExtendedCommunity, LargeCommunity};

/// Attribute flags (RFC 4271 §4.3).
pub(crate) mod flags {
    /// Not well-known.
    pub(crate) const OPTIONAL: u8 = 0x80;
    /// Passed on by speakers that do not know it.
    pub(crate) const TRANSITIVE: u8 = 0x40;
    /// Some earlier speaker did not know it.
    pub(crate) const PARTIAL: u8 = 0x20;
    /// The length has two octets.
    pub(crate) const EXTENDED_LENGTH: u8 = 0x10;
}
use flags::{OPTIONAL, TRANSITIVE};

const WELL_KNOWN: u8 = TRANSITIVE;
const OPTIONAL_TRANSITIVE: u8 = OPTIONAL | TRANSITIVE;

pub(crate) const ORIGIN: u8 = 1;
pub(crate) const AS_PATH: u8 = 2;
pub(crate) const NEXT_HOP: u8 = 3;
pub(crate) const MED: u8 = 4;
pub(crate) const LOCAL_PREF: u8 = 5;
pub(crate) const ATOMIC_AGGREGATE: u8 = 6;
pub(crate) const AGGREGATOR: u8 = 7;
pub(crate) const COMMUNITIES: u8 = 8;
pub(crate) const ORIGINATOR_ID: u8 = 9;
pub(crate) const CLUSTER_LIST: u8 = 10;
pub(crate) const MP_REACH_NLRI: u8 = 14;
pub(crate) const MP_UNREACH_NLRI: u8 = 15;
pub(crate) const EXTENDED_COMMUNITIES: u8 = 16;
pub(crate) const AS4_PATH: u8 = 17;
pub(crate) const AS4_AGGREGATOR: u8 = 18;
pub(crate) const LARGE_COMMUNITIES: u8 = 32;
pub(crate) const ONLY_TO_CUSTOMER: u8 = 35;

/// The permitted senders of an attribute. An attribute from another sender is discarded without a
/// check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Anyone,
    InternalPeers,
    TwoOctetSpeakers,
}

type Check = Result<(), AttributeFaultKind>;

pub(crate) struct Row {
    pub(crate) code: u8,
    pub(crate) name: &'static str,
    /// Optional and Transitive.
    pub(crate) flags: u8,
    pub(crate) sender: Sender,
    pub(crate) malformed: ErrorHandling,
    /// Whether the value is well-formed.
    pub(crate) check: fn(&[u8], &DecodeContext) -> Check,
    /// Reads a value in canonical form that `check` has accepted.
    pub(super) read: fn(&[u8], &mut PathAttributes),
    /// Appends the value; false if the attribute is absent.
    pub(super) write: fn(&PathAttributes, &mut Vec<u8>) -> bool,
}

pub(crate) static TABLE: [Row; 17] = [
    Row {
        code: ORIGIN,
        name: "ORIGIN",
        flags: WELL_KNOWN,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| match value {
            [0..=2] => Ok(()),
            [value] => Err(AttributeFaultKind::Value {
                value: u32::from(*value),
                expected: "0 (IGP), 1 (EGP) or 2 (INCOMPLETE)",
            }),
            _ => wrong_length(value, "1"),
        },
        read: |value, attributes| {
            attributes.origin = match value {
                [0] => Origin::Igp,
                [1] => Origin::Egp,
                _ => Origin::Incomplete,
            }
        },
        write: |attributes, out| {
            out.push(attributes.origin as u8);
            true
        },
    },
    Row {
        code: AS_PATH,
        name: "AS_PATH",
        flags: WELL_KNOWN,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, context| {
            let width = if context.four_octet_as { Width::Four } else { Width::Two };
            as_path::check(value, width, false)
        },
        read: |value, attributes| attributes.as_path = AsPath::read(value),
        write: |attributes, out| {
            attributes.as_path.write(out);
            true
        },
    },
    Row {
        code: NEXT_HOP,
        name: "NEXT_HOP",
        flags: WELL_KNOWN,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| {
            let address = Ipv4Addr::from(*<&[u8; 4]>::try_from(value).map_err(|_| length_fault(value, "4"))?);
            if address.is_unspecified() || address.octets()[0] >= 224 {
                return Err(AttributeFaultKind::NextHop { address: address.into() });
            }
            Ok(())
        },
        read: not_in_block,
        write: |_, _| false,
    },
    Row {
        code: MED,
        name: "MULTI_EXIT_DISC",
        flags: OPTIONAL,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| exactly::<4>(value, "4"),
        read: |value, attributes| attributes.med = u32_of(value),
        write: |attributes, out| write_u32(attributes.med, out),
    },
    Row {
        code: LOCAL_PREF,
        name: "LOCAL_PREF",
        flags: WELL_KNOWN,
        sender: Sender::InternalPeers,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| exactly::<4>(value, "4"),
        read: |value, attributes| attributes.local_pref = u32_of(value),
        write: |attributes, out| write_u32(attributes.local_pref, out),
    },
    Row {
        code: ATOMIC_AGGREGATE,
        name: "ATOMIC_AGGREGATE",
        flags: WELL_KNOWN,
        sender: Sender::Anyone,
        malformed: ErrorHandling::AttributeDiscard,
        check: |value, _| exactly::<0>(value, "0"),
        read: |_, attributes| attributes.atomic_aggregate = true,
        write: |attributes, _| attributes.atomic_aggregate,
    },
    Row {
        code: AGGREGATOR,
        name: "AGGREGATOR",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::Anyone,
        malformed: ErrorHandling::AttributeDiscard,
        check: |value, context| {
            let zero = match (value, context.four_octet_as) {
                ([a, b, c, d, _, _, _, _], true) => [*a, *b, *c, *d] == [0; 4],
                ([a, b, _, _, _, _], false) => [*a, *b] == [0; 2],
                (_, true) => return wrong_length(value, "8, with four-octet AS numbers"),
                (_, false) => return wrong_length(value, "6, with two-octet AS numbers"),
            };
            if zero { Err(AttributeFaultKind::AsZero) } else { Ok(()) }
        },
        read: |value, attributes| {
            attributes.aggregator = <&[u8; 8]>::try_from(value).ok().map(|&[a, b, c, d, address @ ..]| {
                Aggregator { asn: Asn(u32::from_be_bytes([a, b, c, d])), address: Ipv4Addr::from(address) }
            });
        },
        write: |attributes, out| {
            if let Some(aggregator) = attributes.aggregator {
                out.extend_from_slice(&aggregator.asn.0.to_be_bytes());
                out.extend_from_slice(&aggregator.address.octets());
            }
            attributes.aggregator.is_some()
        },
    },
    Row {
        code: COMMUNITIES,
        name: "COMMUNITIES",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| multiple_of::<4>(value, "a multiple of 4, not 0"),
        read: |value, attributes| {
            attributes.communities = words(value).map(Community).collect();
        },
        write: |attributes, out| {
            attributes
                .communities
                .iter()
                .for_each(|community| out.extend_from_slice(&community.0.to_be_bytes()));
            !attributes.communities.is_empty()
        },
    },
    Row {
        code: ORIGINATOR_ID,
        name: "ORIGINATOR_ID",
        flags: OPTIONAL,
        sender: Sender::InternalPeers,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| exactly::<4>(value, "4"),
        read: |value, attributes| attributes.originator_id = u32_of(value).map(Ipv4Addr::from),
        write: |attributes, out| write_u32(attributes.originator_id.map(u32::from), out),
    },
    Row {
        code: CLUSTER_LIST,
        name: "CLUSTER_LIST",
        flags: OPTIONAL,
        sender: Sender::InternalPeers,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| multiple_of::<4>(value, "a multiple of 4, not 0"),
        read: |value, attributes| {
            attributes.cluster_list = words(value).map(Ipv4Addr::from).collect();
        },
        write: |attributes, out| {
            attributes.cluster_list.iter().for_each(|cluster| out.extend_from_slice(&cluster.octets()));
            !attributes.cluster_list.is_empty()
        },
    },
    Row {
        code: MP_REACH_NLRI,
        name: "MP_REACH_NLRI",
        flags: OPTIONAL,
        sender: Sender::Anyone,
        malformed: ErrorHandling::SessionReset,
        check: |_, _| Ok(()),
        read: not_in_block,
        write: |_, _| false,
    },
    Row {
        code: MP_UNREACH_NLRI,
        name: "MP_UNREACH_NLRI",
        flags: OPTIONAL,
        sender: Sender::Anyone,
        malformed: ErrorHandling::SessionReset,
        check: |_, _| Ok(()),
        read: not_in_block,
        write: |_, _| false,
    },
    Row {
        code: EXTENDED_COMMUNITIES,
        name: "EXTENDED_COMMUNITIES",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| multiple_of::<8>(value, "a multiple of 8, not 0"),
        read: |value, attributes| {
            let octets = value.as_chunks::<8>().0.iter();
            attributes.extended_communities = octets.copied().map(ExtendedCommunity).collect();
        },
        write: |attributes, out| {
            out.extend(attributes.extended_communities.iter().flat_map(|community| community.0));
            !attributes.extended_communities.is_empty()
        },
    },
    Row {
        code: AS4_PATH,
        name: "AS4_PATH",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::TwoOctetSpeakers,
        malformed: ErrorHandling::AttributeDiscard,
        check: |value, _| {
            // RFC 6793 §6: a value too short for one AS number is malformed too.
            if value.len() < 6 {
                return wrong_length(value, "at least 6");
            }
            as_path::check(value, Width::Four, true)
        },
        read: not_in_block,
        write: |_, _| false,
    },
    Row {
        code: AS4_AGGREGATOR,
        name: "AS4_AGGREGATOR",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::TwoOctetSpeakers,
        malformed: ErrorHandling::AttributeDiscard,
        check: |value, _| match value {
            [0, 0, 0, 0, _, _, _, _] => Err(AttributeFaultKind::AsZero),
            value => exactly::<8>(value, "8"),
        },
        read: not_in_block,
        write: |_, _| false,
    },
    Row {
        code: LARGE_COMMUNITIES,
        name: "LARGE_COMMUNITIES",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| multiple_of::<12>(value, "a multiple of 12, not 0"),
        read: |value, attributes| {
            let words: Vec<u32> = words(value).collect();
            attributes.large_communities = words
                .as_chunks::<3>()
                .0
                .iter()
                .map(|&[global, local1, local2]| LargeCommunity { global, local1, local2 })
                .collect();
        },
        write: |attributes, out| {
            for community in &attributes.large_communities {
                for part in [community.global, community.local1, community.local2] {
                    out.extend_from_slice(&part.to_be_bytes());
                }
            }
            !attributes.large_communities.is_empty()
        },
    },
    Row {
        code: ONLY_TO_CUSTOMER,
        name: "ONLY_TO_CUSTOMER",
        flags: OPTIONAL_TRANSITIVE,
        sender: Sender::Anyone,
        malformed: ErrorHandling::TreatAsWithdraw,
        check: |value, _| exactly::<4>(value, "4"),
        read: |value, attributes| attributes.only_to_customer = u32_of(value).map(Asn),
        write: |attributes, out| write_u32(attributes.only_to_customer.map(|asn| asn.0), out),
    },
];

const NONE: u8 = u8::MAX;

/// The index in [`TABLE`] by type code.
static INDEX: [u8; 256] = {
    let mut index = [NONE; 256];
    let mut at = 0;
    // `TABLE` is a static, so its codes are repeated here; a test compares the two.
    const CODES: [u8; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 32, 35];
    while at < CODES.len() {
        index[CODES[at] as usize] = at as u8;
        at += 1;
    }
    index
};

/// The row of a type code.
#[inline]
pub(crate) fn row(code: u8) -> Option<&'static Row> {
    TABLE.get(usize::from(INDEX[usize::from(code)]))
}

/// The attribute's name; "attribute" if it is unknown.
pub(crate) fn name(code: u8) -> &'static str {
    row(code).map_or("attribute", |row| row.name)
}

pub(crate) fn is_well_known(code: u8) -> bool {
    row(code).is_some_and(|row| row.flags & OPTIONAL == 0)
}

fn not_in_block(_: &[u8], _: &mut PathAttributes) {}

/// Whether a canonical block may contain the attribute. UPDATE's decoder and writer handle the
/// others, which have `read` = [`not_in_block`].
pub(crate) fn in_block(code: u8) -> bool {
    !matches!(code, NEXT_HOP | MP_REACH_NLRI | MP_UNREACH_NLRI | AS4_PATH | AS4_AGGREGATOR)
}

fn length_fault(value: &[u8], expected: &'static str) -> AttributeFaultKind {
    AttributeFaultKind::Length { length: value.len(), expected }
}

fn wrong_length(value: &[u8], expected: &'static str) -> Check {
    Err(length_fault(value, expected))
}

fn exactly<const N: usize>(value: &[u8], expected: &'static str) -> Check {
    if value.len() == N { Ok(()) } else { wrong_length(value, expected) }
}

fn multiple_of<const N: usize>(value: &[u8], expected: &'static str) -> Check {
    if !value.is_empty() && value.len().is_multiple_of(N) { Ok(()) } else { wrong_length(value, expected) }
}

fn words(value: &[u8]) -> impl Iterator<Item = u32> {
    value.as_chunks::<4>().0.iter().map(|octets| u32::from_be_bytes(*octets))
}

fn u32_of(value: &[u8]) -> Option<u32> {
    words(value).next()
}

fn write_u32(value: Option<u32>, out: &mut Vec<u8>) -> bool {
    value.inspect(|value| out.extend_from_slice(&value.to_be_bytes())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_matches_the_table() {
        for at in &TABLE {
            assert_eq!(row(at.code).map(|row| row.name), Some(at.name));
        }
        assert_eq!((0..=255).filter(|code| row(*code).is_some()).count(), TABLE.len());
        assert!(TABLE.is_sorted_by_key(|row| row.code));
    }
}
