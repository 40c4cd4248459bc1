//! UPDATE: encoding (RFC 4271 §4.3, RFC 4760, RFC 8950).
//!
//! One message advertises routes with the same family, next hop and attributes, or withdraws routes
//! of one family, never both (RFC 7606 §5.1). Attributes are copied from a canonical block. Only
//! NEXT_HOP is inserted, or MP_REACH_NLRI is written before them. For a two-octet speaker AS_PATH
//! and AGGREGATOR are converted (RFC 6793 §4.2.2).
//!
//! [`Announcement`] and [`Withdrawal`] are one message each and accept prefixes until it is full,
//! for a caller with a limit of octets. [`UpdateWriter`] writes as many messages as necessary.

use std::marker::PhantomData;
use std::net::Ipv4Addr;

use super::attributes::table::{self, flags};
use super::attributes::{Attributes, as_path, begin_attribute, finish_attribute, push_attribute};
use super::{MAX_MESSAGE, MessageKind, begin_message, finish_message, nlri, put_u16};
use crate::types::{AddressFamily, Asn, Family, Ipv4, Ipv6, NextHop};

/// The negotiated properties that change the encoding of an UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeContext {
    /// AS numbers have four octets (RFC 6793): both sides have the capability.
    pub four_octet_as: bool,
    /// IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub ext_next_hop: bool,
    /// Every prefix of the family has a path identifier (RFC 7911): 0 if the caller passes none.
    pub add_path: bool,
    /// The maximum message length: [`MAX_MESSAGE`], or [`MAX_EXTENDED`](super::MAX_EXTENDED).
    pub max_message: usize,
}

impl Default for EncodeContext {
    fn default() -> Self {
        EncodeContext { four_octet_as: true, ext_next_hop: false, add_path: false, max_message: MAX_MESSAGE }
    }
}

impl EncodeContext {
    /// Octets of a path identifier; 0 without ADD-PATH.
    #[inline]
    fn identifier(&self) -> usize {
        if self.add_path { 4 } else { 0 }
    }
}

/// The routes cannot be advertised to this peer. Withdraw them if they were advertised before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message has no room for a prefix after the attributes.
    #[error("the path attributes make a message of {octets} octets with one prefix, the peer accepts {max}")]
    TooLarge {
        /// Octets of the message with one host prefix.
        octets: usize,
        /// The longest message.
        max: usize,
    },
    /// The next hop cannot be encoded.
    #[error(
        "next hop {next_hop} for {family}: the peer lacks the extended next hop capability, or it is of the other family"
    )]
    NextHop {
        /// Family of the routes.
        family: Family,
        /// The next hop of the routes.
        next_hop: NextHop,
    },
}

/// One UPDATE that advertises routes, under construction. Without `finish`, nothing is written.
#[derive(Debug)]
#[must_use = "nothing is written before finish"]
pub struct Announcement<'o, F> {
    out: &'o mut Vec<u8>,
    context: EncodeContext,
    attributes: &'o [u8],
    start: usize,
    /// The length of `out` that prefixes must not exceed.
    limit: usize,
    /// The start of the value of MP_REACH_NLRI, if it has the prefixes.
    mp_reach: Option<usize>,
    count: usize,
    family: PhantomData<F>,
}

/// The offset of Total Path Attribute Length in a message without withdrawn routes.
const ATTRIBUTES_LENGTH: usize = super::HEADER + 2;

impl<'o, F: AddressFamily> Announcement<'o, F> {
    /// Begins a message at the end of `out`. `attributes` is a canonical block.
    ///
    /// # Errors
    /// If the next hop cannot be encoded or the attributes are too long.
    pub fn begin(
        out: &'o mut Vec<u8>,
        context: &EncodeContext,
        next_hop: NextHop,
        attributes: &'o [u8],
    ) -> Result<Self, EncodeError> {
        let start = begin_message(out, MessageKind::Update);
        let result = Self::begin_body(out, context, next_hop, attributes, start);
        let (mp_reach, tail) = result.inspect_err(|_| out.truncate(start))?;
        let limit = (start + context.max_message).saturating_sub(tail);
        let octets = out.len() - start + tail + context.identifier() + 1 + F::OCTETS;
        if octets > context.max_message {
            out.truncate(start);
            return Err(EncodeError::TooLarge { octets, max: context.max_message });
        }
        Ok(Announcement {
            out,
            context: *context,
            attributes,
            start,
            limit,
            mp_reach,
            count: 0,
            family: PhantomData,
        })
    }

    /// Writes the part before the prefixes. Returns the start of MP_REACH_NLRI and the number of
    /// octets after the prefixes.
    fn begin_body(
        out: &mut Vec<u8>,
        context: &EncodeContext,
        next_hop: NextHop,
        attributes: &[u8],
        start: usize,
    ) -> Result<(Option<usize>, usize), EncodeError> {
        out.extend_from_slice(&[0; 4]);
        match (F::FAMILY, next_hop) {
            (Family::Ipv4Unicast, NextHop::V4(address)) => {
                write_attributes(out, context, attributes, Some(address));
                let length = out.len() - start - ATTRIBUTES_LENGTH - 2;
                // A length that exceeds the field also exceeds a message, and the caller rejects
                // it.
                put_u16(out, start + ATTRIBUTES_LENGTH, length);
                return Ok((None, 0));
            }
            (Family::Ipv4Unicast, _) if context.ext_next_hop => {}
            (Family::Ipv6Unicast, NextHop::V6(_) | NextHop::V6WithLinkLocal(..)) => {}
            (family, next_hop) => return Err(EncodeError::NextHop { family, next_hop }),
        }
        out.extend_from_slice(&[flags::OPTIONAL | flags::EXTENDED_LENGTH, table::MP_REACH_NLRI, 0, 0]);
        let mp_reach = out.len();
        push_family::<F>(out);
        match next_hop {
            NextHop::V4(_) => {} // rejected above
            NextHop::V6(address) => {
                out.push(16);
                out.extend_from_slice(&address.octets());
            }
            NextHop::V6WithLinkLocal(global, link_local) => {
                out.push(32);
                out.extend_from_slice(&global.octets());
                out.extend_from_slice(&link_local.octets());
            }
        }
        out.push(0); // reserved
        let tail = match context.four_octet_as {
            true => attributes.len(),
            false => {
                let before = out.len();
                write_attributes(out, context, attributes, None);
                let tail = out.len() - before;
                out.truncate(before);
                tail
            }
        };
        Ok((Some(mp_reach), tail))
    }

    /// Adds a prefix; returns false if the message is full. The first prefix always fits.
    #[inline]
    pub fn push(&mut self, prefix: &F::Prefix) -> bool {
        self.push_path(0, prefix)
    }

    /// Adds a prefix with its path identifier, which is written only if the context has ADD-PATH.
    #[inline]
    pub fn push_path(&mut self, identifier: u32, prefix: &F::Prefix) -> bool {
        if self.out.len() + self.context.identifier() + nlri::encoded_len::<F>(prefix) > self.limit {
            return false;
        }
        if self.context.add_path {
            nlri::push_identifier(self.out, identifier);
        }
        nlri::push::<F>(self.out, prefix);
        self.count += 1;
        true
    }

    /// Completes the message and returns the number of prefixes; with none, nothing is written.
    pub fn finish(mut self) -> usize {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return 0; // drop discards the begun message
        }
        let out = &mut *self.out;
        if let Some(mp_reach) = self.mp_reach {
            let length = out.len() - mp_reach;
            put_u16(out, mp_reach - 2, length);
            write_attributes(out, &self.context, self.attributes, None);
            let length = out.len() - self.start - ATTRIBUTES_LENGTH - 2;
            put_u16(out, self.start + ATTRIBUTES_LENGTH, length);
        }
        finish_message(out, self.start);
        self.start = out.len();
        count
    }
}

impl<F> Drop for Announcement<'_, F> {
    fn drop(&mut self) {
        self.out.truncate(self.start);
    }
}

/// One UPDATE that withdraws routes, under construction. Without `finish`, nothing is written.
#[derive(Debug)]
#[must_use = "nothing is written before finish"]
pub struct Withdrawal<'o, F> {
    out: &'o mut Vec<u8>,
    context: EncodeContext,
    start: usize,
    /// The length of `out` that prefixes must not exceed.
    limit: usize,
    /// The position of the length field for the prefixes: Withdrawn Routes Length, or the length of
    /// MP_UNREACH_NLRI.
    length_at: usize,
    count: usize,
    family: PhantomData<F>,
}

impl<'o, F: AddressFamily> Withdrawal<'o, F> {
    /// Begins a message at the end of `out`.
    pub fn begin(out: &'o mut Vec<u8>, context: &EncodeContext) -> Self {
        let start = begin_message(out, MessageKind::Update);
        let (length_at, tail) = match F::FAMILY {
            Family::Ipv4Unicast => {
                out.extend_from_slice(&[0; 2]);
                (out.len() - 2, 2)
            }
            Family::Ipv6Unicast => {
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&[
                    flags::OPTIONAL | flags::EXTENDED_LENGTH,
                    table::MP_UNREACH_NLRI,
                    0,
                    0,
                ]);
                let length_at = out.len() - 2;
                push_family::<F>(out);
                (length_at, 0)
            }
        };
        let limit = start + context.max_message - tail;
        Withdrawal { out, context: *context, start, limit, length_at, count: 0, family: PhantomData }
    }

    /// Adds a prefix; returns false if the message is full. The first prefix always fits.
    #[inline]
    pub fn push(&mut self, prefix: &F::Prefix) -> bool {
        self.push_path(0, prefix)
    }

    /// Adds a prefix with its path identifier, which is written only if the context has ADD-PATH.
    #[inline]
    pub fn push_path(&mut self, identifier: u32, prefix: &F::Prefix) -> bool {
        if self.out.len() + self.context.identifier() + nlri::encoded_len::<F>(prefix) > self.limit {
            return false;
        }
        if self.context.add_path {
            nlri::push_identifier(self.out, identifier);
        }
        nlri::push::<F>(self.out, prefix);
        self.count += 1;
        true
    }

    /// Completes the message and returns the number of prefixes; with none, nothing is written.
    pub fn finish(mut self) -> usize {
        let count = std::mem::take(&mut self.count);
        if count != 0 {
            self.complete();
        }
        count
    }

    fn complete(&mut self) {
        let length = self.out.len() - self.length_at - 2;
        put_u16(self.out, self.length_at, length);
        match F::FAMILY {
            Family::Ipv4Unicast => self.out.extend_from_slice(&[0; 2]),
            Family::Ipv6Unicast => put_u16(self.out, self.start + ATTRIBUTES_LENGTH, length + 4),
        }
        finish_message(self.out, self.start);
        self.start = self.out.len();
    }
}

impl<F> Drop for Withdrawal<'_, F> {
    fn drop(&mut self) {
        self.out.truncate(self.start);
    }
}

/// Appends as many UPDATEs as necessary.
#[derive(Debug)]
pub struct UpdateWriter<'o> {
    out: &'o mut Vec<u8>,
    context: EncodeContext,
}

impl<'o> UpdateWriter<'o> {
    /// Writes to the end of `out`.
    pub fn new(out: &'o mut Vec<u8>, context: EncodeContext) -> Self {
        UpdateWriter { out, context }
    }

    /// Announces routes with the same next hop and attributes (a canonical block); returns their
    /// number.
    ///
    /// # Errors
    /// If the routes cannot be encoded; then nothing is written.
    pub fn announce<F: AddressFamily>(
        &mut self,
        next_hop: NextHop,
        attributes: &[u8],
        prefixes: impl IntoIterator<Item = F::Prefix>,
    ) -> Result<usize, EncodeError> {
        self.announce_paths::<F>(next_hop, attributes, prefixes.into_iter().map(|prefix| (0, prefix)))
    }

    /// Like [`Self::announce`], with a path identifier for each prefix.
    ///
    /// # Errors
    /// See [`Self::announce`].
    pub fn announce_paths<F: AddressFamily>(
        &mut self,
        next_hop: NextHop,
        attributes: &[u8],
        paths: impl IntoIterator<Item = (u32, F::Prefix)>,
    ) -> Result<usize, EncodeError> {
        let mut count = 0;
        let mut message = Announcement::<F>::begin(self.out, &self.context, next_hop, attributes)?;
        for (identifier, prefix) in paths {
            if !message.push_path(identifier, &prefix) {
                count += message.finish();
                message = Announcement::begin(self.out, &self.context, next_hop, attributes)?;
                message.push_path(identifier, &prefix);
            }
        }
        Ok(count + message.finish())
    }

    /// Withdraws routes; returns their number.
    pub fn withdraw<F: AddressFamily>(&mut self, prefixes: impl IntoIterator<Item = F::Prefix>) -> usize {
        self.withdraw_paths::<F>(prefixes.into_iter().map(|prefix| (0, prefix)))
    }

    /// Like [`Self::withdraw`], with a path identifier for each prefix.
    pub fn withdraw_paths<F: AddressFamily>(
        &mut self,
        paths: impl IntoIterator<Item = (u32, F::Prefix)>,
    ) -> usize {
        let mut count = 0;
        let mut message = Withdrawal::<F>::begin(self.out, &self.context);
        for (identifier, prefix) in paths {
            if !message.push_path(identifier, &prefix) {
                count += message.finish();
                message = Withdrawal::begin(self.out, &self.context);
                message.push_path(identifier, &prefix);
            }
        }
        count + message.finish()
    }

    /// Appends End-of-RIB (RFC 4724 §2).
    pub fn end_of_rib(&mut self, family: Family) {
        match family {
            Family::Ipv4Unicast => Withdrawal::<Ipv4>::begin(self.out, &self.context).complete(),
            Family::Ipv6Unicast => Withdrawal::<Ipv6>::begin(self.out, &self.context).complete(),
        }
    }
}

fn push_family<F: AddressFamily>(out: &mut Vec<u8>) {
    out.extend_from_slice(&F::FAMILY.afi().to_be_bytes());
    out.push(F::FAMILY.safi());
}

/// Appends the attributes of a canonical block in the peer's form, in ascending order.
fn write_attributes(out: &mut Vec<u8>, context: &EncodeContext, block: &[u8], next_hop: Option<Ipv4Addr>) {
    if context.four_octet_as {
        let Some(next_hop) = next_hop else {
            out.extend_from_slice(block);
            return;
        };
        let before: usize = Attributes::new(block)
            .take_while(|attribute| attribute.code < table::NEXT_HOP)
            .map(|attribute| attribute.whole.len())
            .sum();
        out.extend_from_slice(&block[..before]);
        push_attribute(out, flags::TRANSITIVE, table::NEXT_HOP, &next_hop.octets());
        out.extend_from_slice(&block[before..]);
        return;
    }
    let mut next_hop = next_hop;
    let mut as4_path = None;
    let mut as4_aggregator = None;
    let mut before =
        |out: &mut Vec<u8>, code: u8, as4_path: &mut Option<&[u8]>, aggregator: &mut Option<&[u8]>| {
            if code > table::NEXT_HOP
                && let Some(address) = next_hop.take()
            {
                push_attribute(out, flags::TRANSITIVE, table::NEXT_HOP, &address.octets());
            }
            let optional_transitive = flags::OPTIONAL | flags::TRANSITIVE;
            if code > table::AS4_PATH
                && let Some(path) = as4_path.take()
            {
                push_attribute(out, optional_transitive, table::AS4_PATH, path);
            }
            if code > table::AS4_AGGREGATOR
                && let Some(aggregator) = aggregator.take()
            {
                push_attribute(out, optional_transitive, table::AS4_AGGREGATOR, aggregator);
            }
        };
    for attribute in Attributes::new(block) {
        before(out, attribute.code, &mut as4_path, &mut as4_aggregator);
        match (attribute.code, attribute.value) {
            (table::AS_PATH, value) => {
                let start = begin_attribute(out, attribute.flags, table::AS_PATH);
                if as_path::write_two_octet(value, out) {
                    as4_path = Some(value);
                }
                finish_attribute(out, start);
            }
            (table::AGGREGATOR, value @ &[a, b, c, d, ref address @ ..]) => {
                let asn = Asn(u32::from_be_bytes([a, b, c, d]));
                let start = begin_attribute(out, attribute.flags, table::AGGREGATOR);
                out.extend_from_slice(&asn.two_octet().to_be_bytes());
                out.extend_from_slice(address);
                finish_attribute(out, start);
                if asn.0 > u32::from(u16::MAX) {
                    as4_aggregator = Some(value);
                }
            }
            _ => out.extend_from_slice(attribute.whole),
        }
    }
    before(out, u8::MAX, &mut as4_path, &mut as4_aggregator);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTES: [u8; 13] = [0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9];

    fn next_hop() -> NextHop {
        NextHop::V4(Ipv4Addr::new(10, 0, 0, 1))
    }

    #[test]
    fn a_dropped_message_writes_nothing() {
        let mut out = vec![1, 2, 3];
        let mut message =
            Announcement::<Ipv4>::begin(&mut out, &EncodeContext::default(), next_hop(), &ATTRIBUTES)
                .unwrap();
        assert!(message.push(&"10.0.0.0/8".parse().unwrap()));
        drop(message);
        let message =
            Announcement::<Ipv4>::begin(&mut out, &EncodeContext::default(), next_hop(), &ATTRIBUTES);
        assert_eq!(message.unwrap().finish(), 0);
        drop(Withdrawal::<Ipv6>::begin(&mut out, &EncodeContext::default()));
        assert_eq!(Withdrawal::<Ipv4>::begin(&mut out, &EncodeContext::default()).finish(), 0);
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn routes_that_cannot_be_encoded_are_rejected() {
        let mut out = vec![];
        let context = EncodeContext::default();
        let v6 = NextHop::V6("2001:db8::1".parse().unwrap());
        let mut writer = UpdateWriter::new(&mut out, context);
        let error = writer.announce::<Ipv4>(v6, &ATTRIBUTES, []).unwrap_err();
        assert_eq!(error, EncodeError::NextHop { family: Family::Ipv4Unicast, next_hop: v6 });
        let error = writer.announce::<Ipv6>(next_hop(), &ATTRIBUTES, []).unwrap_err();
        assert_eq!(error, EncodeError::NextHop { family: Family::Ipv6Unicast, next_hop: next_hop() });
        // The header, the two lengths, the attribute, NEXT_HOP and a /32: 39 octets in addition to
        // the value.
        for (value, fits) in [(4096 - 39, true), (4096 - 38, false), (70_000, false)] {
            let mut attributes = vec![];
            push_attribute(&mut attributes, 0xe0, 99, &vec![0; value]);
            let prefix = "10.0.0.1/32".parse().unwrap();
            let result =
                UpdateWriter::new(&mut out, context).announce::<Ipv4>(next_hop(), &attributes, [prefix]);
            assert_eq!(result.is_ok(), fits, "{value}: {result:?}");
        }
        assert_eq!(out.len(), 4096);
    }
}
