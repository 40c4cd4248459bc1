//! Path attributes: the canonical block in parsed form.
//!
//! The decoder of UPDATE does not build this form; it copies the octets of well-formed attributes
//! into a canonical block. [`PathAttributes::parse`] runs once for each block that is new to the
//! RIB. [`PathAttributes::encode`] runs once for each attribute set that policy or export has
//! changed.

pub(crate) mod as_path;
pub(crate) mod table;

use std::fmt;
use std::net::Ipv4Addr;

pub use as_path::{AsPath, Segment, SegmentKind};

use super::context::DecodeContext;
use super::error::{AttributeFault, AttributeFaultKind};
use crate::types::{Asn, Community, ExtendedCommunity, FamilySet, LargeCommunity};
use table::{TABLE, flags};

/// ORIGIN (RFC 4271 §5.1.1), in order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Originated within the AS.
    #[default]
    Igp = 0,
    /// Learned by EGP.
    Egp = 1,
    /// Learned by other means.
    Incomplete = 2,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Igp => "igp",
            Origin::Egp => "egp",
            Origin::Incomplete => "incomplete",
        })
    }
}

/// AGGREGATOR (RFC 4271 §5.1.7): the speaker that formed the aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aggregator {
    /// The speaker's AS.
    pub asn: Asn,
    /// The speaker's address, usually its BGP identifier.
    pub address: Ipv4Addr,
}

/// An optional transitive attribute that this speaker does not know. The speaker passes it on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnknownAttribute {
    /// Flags, with the Partial bit set, without the Extended Length bit.
    pub flags: u8,
    /// Type code.
    pub code: u8,
    /// Value.
    pub value: Vec<u8>,
}

/// The attributes of a path, except for its next hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathAttributes {
    /// ORIGIN.
    pub origin: Origin,
    /// AS_PATH.
    pub as_path: AsPath,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF; only between internal peers.
    pub local_pref: Option<u32>,
    /// ATOMIC_AGGREGATE.
    pub atomic_aggregate: bool,
    /// AGGREGATOR.
    pub aggregator: Option<Aggregator>,
    /// COMMUNITIES (RFC 1997).
    pub communities: Vec<Community>,
    /// ORIGINATOR_ID (RFC 4456).
    pub originator_id: Option<Ipv4Addr>,
    /// CLUSTER_LIST (RFC 4456), the nearest reflector first.
    pub cluster_list: Vec<Ipv4Addr>,
    /// EXTENDED COMMUNITIES (RFC 4360).
    pub extended_communities: Vec<ExtendedCommunity>,
    /// LARGE_COMMUNITIES (RFC 8092).
    pub large_communities: Vec<LargeCommunity>,
    /// ONLY_TO_CUSTOMER (RFC 9234 §5): from this AS on, the path is advertised to customers only.
    pub only_to_customer: Option<Asn>,
    /// Optional transitive attributes that this speaker does not know.
    pub unknown: Vec<UnknownAttribute>,
    /// Known attributes that were received with the Partial bit, which must not be cleared (RFC
    /// 4271 §5).
    pub partial: Partial,
}

/// Type codes of known optional transitive attributes that some earlier speaker did not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Partial(u64);

impl Partial {
    fn bit(code: u8) -> u64 {
        1u64.checked_shl(u32::from(code)).unwrap_or(0)
    }

    /// Whether the attribute is partial.
    pub fn contains(self, code: u8) -> bool {
        self.0 & Self::bit(code) != 0
    }

    fn insert(&mut self, code: u8) {
        self.0 |= Self::bit(code);
    }
}

/// A canonical block has four-octet AS numbers, and may have attributes that only internal peers
/// send.
const BLOCK: DecodeContext = DecodeContext {
    four_octet_as: true,
    ext_next_hop: false,
    families: FamilySet::EMPTY,
    add_path: FamilySet::EMPTY,
    ebgp: false,
};

impl PathAttributes {
    /// Parses a canonical block. Blocks of a decoded UPDATE and of [`Self::encode`] are always
    /// valid; others are checked.
    ///
    /// # Errors
    /// For the first attribute that is malformed, out of order or not allowed in a block.
    pub fn parse(block: &[u8]) -> Result<PathAttributes, AttributeFault> {
        let mut attributes = PathAttributes::default();
        let mut walk = Attributes::new(block);
        let mut previous = None;
        for RawAttribute { flags, code, value, .. } in walk.by_ref() {
            if previous >= Some(code) {
                return Err(AttributeFault { code, kind: AttributeFaultKind::Order });
            }
            previous = Some(code);
            match table::row(code) {
                Some(_) if !table::in_block(code) => {
                    return Err(AttributeFault { code, kind: AttributeFaultKind::OutOfPlace });
                }
                Some(row) => {
                    (row.check)(value, &BLOCK).map_err(|kind| AttributeFault { code, kind })?;
                    (row.read)(value, &mut attributes);
                    if flags & flags::PARTIAL != 0 {
                        attributes.partial.insert(code);
                    }
                }
                None => {
                    let flags = flags & !flags::EXTENDED_LENGTH;
                    attributes.unknown.push(UnknownAttribute { flags, code, value: value.to_vec() });
                }
            }
        }
        match walk.fault() {
            Some(fault) => Err(fault),
            None => Ok(attributes),
        }
    }

    /// Appends the canonical block.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut previous = 0;
        for row in &TABLE {
            self.encode_unknown(previous..row.code, out);
            previous = row.code;
            let partial = if self.partial.contains(row.code) { flags::PARTIAL } else { 0 };
            let start = begin_attribute(out, row.flags | partial, row.code);
            if (row.write)(self, out) {
                finish_attribute(out, start);
            } else {
                out.truncate(start);
            }
        }
        self.encode_unknown(previous..u8::MAX, out);
        self.encode_unknown(u8::MAX..=u8::MAX, out);
    }

    fn encode_unknown(&self, codes: impl std::ops::RangeBounds<u8>, out: &mut Vec<u8>) {
        for UnknownAttribute { flags, code, value } in self.unknown.iter().filter(|a| codes.contains(&a.code))
        {
            push_attribute(out, *flags, *code, value);
        }
    }
}

/// One attribute in a list of attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAttribute<'a> {
    pub(crate) flags: u8,
    pub(crate) code: u8,
    pub(crate) value: &'a [u8],
    /// All octets of the attribute, starting with the flags.
    pub(crate) whole: &'a [u8],
}

/// Walks a list of attributes until its end, or until the length of an attribute exceeds the list
/// (RFC 7606 §4).
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
    fault: Option<AttributeFault>,
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        Attributes { rest: octets, fault: None }
    }

    /// The fault that ended the walk early, if any.
    pub(crate) fn fault(&self) -> Option<AttributeFault> {
        self.fault
    }

    fn trailing(&mut self) -> Option<RawAttribute<'a>> {
        self.fault =
            Some(AttributeFault { code: 0, kind: AttributeFaultKind::Trailing { octets: self.rest.len() } });
        self.rest = &[];
        None
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = RawAttribute<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawAttribute<'a>> {
        let (flags, code, length, value) = match *self.rest {
            [] => return None,
            [flags, code, high, low, ref value @ ..] if flags & flags::EXTENDED_LENGTH != 0 => {
                (flags, code, usize::from(u16::from_be_bytes([high, low])), value)
            }
            [flags, code, length, ref value @ ..] if flags & flags::EXTENDED_LENGTH == 0 => {
                (flags, code, usize::from(length), value)
            }
            _ => return self.trailing(),
        };
        let Some((value, rest)) = value.split_at_checked(length) else {
            let kind = AttributeFaultKind::Overrun { length, remaining: value.len() };
            self.fault = Some(AttributeFault { code, kind });
            self.rest = &[];
            return None;
        };
        let whole = &self.rest[..self.rest.len() - rest.len()];
        self.rest = rest;
        Some(RawAttribute { flags, code, value, whole })
    }
}

/// Appends flags, type code and a one-octet length that [`finish_attribute`] fills in; returns the
/// start.
pub(crate) fn begin_attribute(out: &mut Vec<u8>, flags: u8, code: u8) -> usize {
    out.extend_from_slice(&[flags & !flags::EXTENDED_LENGTH, code, 0]);
    out.len() - 3
}

/// Fills in the length of the attribute at the end of `out`; a length over 255 becomes two octets.
pub(crate) fn finish_attribute(out: &mut Vec<u8>, start: usize) {
    let length = out.len() - start - 3;
    match u8::try_from(length) {
        Ok(length) => out[start + 2] = length,
        Err(_) => {
            out[start] |= flags::EXTENDED_LENGTH;
            out.insert(start + 2, 0);
            super::put_u16(out, start + 2, length);
        }
    }
}

/// Appends a whole attribute.
#[inline]
pub(crate) fn push_attribute(out: &mut Vec<u8>, flags: u8, code: u8, value: &[u8]) {
    let flags = flags & !flags::EXTENDED_LENGTH;
    match u8::try_from(value.len()) {
        Ok(length) => out.extend_from_slice(&[flags, code, length]),
        Err(_) => {
            let [high, low] = (value.len() as u16).to_be_bytes();
            out.extend_from_slice(&[flags | flags::EXTENDED_LENGTH, code, high, low]);
        }
    }
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> PathAttributes {
        PathAttributes {
            origin: Origin::Egp,
            as_path: AsPath::sequence((1..=300).map(Asn)),
            med: Some(5),
            local_pref: Some(200),
            atomic_aggregate: true,
            aggregator: Some(Aggregator { asn: Asn(70_000), address: Ipv4Addr::new(10, 0, 0, 9) }),
            communities: vec![Community::NO_EXPORT, Community(1)],
            originator_id: Some(Ipv4Addr::new(10, 0, 0, 1)),
            cluster_list: vec![Ipv4Addr::new(10, 0, 0, 2); 2],
            extended_communities: vec![ExtendedCommunity([1; 8])],
            large_communities: vec![LargeCommunity { global: 1, local1: 2, local2: 3 }],
            only_to_customer: Some(Asn(70_000)),
            unknown: vec![
                UnknownAttribute { flags: 0xe0, code: 11, value: vec![] },
                UnknownAttribute { flags: 0xe0, code: 255, value: vec![7; 300] },
            ],
            partial: Partial(1 << 8 | 1 << 32),
        }
    }

    #[test]
    fn encoding_round_trips() {
        for attributes in [PathAttributes::default(), full()] {
            let mut block = Vec::new();
            attributes.encode(&mut block);
            assert_eq!(PathAttributes::parse(&block), Ok(attributes));
        }
    }

    #[test]
    fn a_block_is_in_ascending_order() {
        let mut block = Vec::new();
        full().encode(&mut block);
        let codes: Vec<u8> = Attributes::new(&block).map(|attribute| attribute.code).collect();
        assert_eq!(codes, [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 16, 32, 35, 255]);
        let mut least = Vec::new();
        PathAttributes::default().encode(&mut least);
        assert_eq!(least, [0x40, 1, 1, 0, 0x40, 2, 0], "an originated route has an empty AS_PATH");
    }

    #[test]
    fn an_invalid_block_is_rejected() {
        let fault = |block: &[u8]| PathAttributes::parse(block).unwrap_err().to_string();
        assert_eq!(fault(&[0x40, 1]), "path attributes: 2 octets after the last attribute");
        assert_eq!(
            fault(&[0x40, 1, 2, 0]),
            "ORIGIN (1): length 2, but only 1 octets of the attributes are left"
        );
        assert_eq!(
            fault(&[0xc0, 8, 3, 0, 0, 0]),
            "COMMUNITIES (8): length 3, must be a multiple of 4, not 0"
        );
        assert_eq!(
            fault(&[0x40, 2, 0, 0x40, 1, 1, 0]),
            "ORIGIN (1): is not in ascending order of type codes"
        );
        assert_eq!(fault(&[0x40, 3, 4, 10, 0, 0, 1]), "NEXT_HOP (3): is never part of a canonical block");
        assert_eq!(fault(&[0x50, 2, 0]), "path attributes: 3 octets after the last attribute");
    }
}
