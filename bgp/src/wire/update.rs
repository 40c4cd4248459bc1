//! UPDATE: decoding (RFC 4271 §4.3, §6.3; RFC 4760; RFC 7606).
//!
//! The order of steps follows RFC 7606. The three fields are located and the NLRI fields are
//! checked (§3 b, i). The attributes are walked (§4, §3 g), and each is checked by its row of the
//! attribute table (§7). Then missing attributes are detected (§3 d). The strongest outcome wins
//! (§3 h). If routes cannot be located, the result is an [`UpdateError`], which ends the session. A
//! malformed attribute makes the routes of the message withdrawn. A discarded attribute is left out
//! of the block and has no other effect.
//!
//! Nearly every UPDATE has no fault. `plain` decodes those in one pass; the code here is for the
//! rest.
//!
//! Callers need no special case for treat-as-withdraw: [`Update::announced`] is empty, and
//! [`Update::withdrawn`] has the routes.
//!
//! Deliberate choices: a family that was not negotiated is ignored, with its routes and its next
//! hop. Some peers send End-of-RIB for families that only they offered. An unknown attribute
//! without the Optional bit ends the session: RFC 7606 leaves RFC 4271 §6.3 unchanged in this
//! point. A missing LOCAL_PREF from an internal peer is not a fault; the decision process has a
//! default.

mod plain;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::attributes::as_path;
use super::attributes::table::{self, Sender, flags};
use super::attributes::{Attributes, push_attribute};
use super::context::DecodeContext;
use super::error::{AttributeFault, AttributeFaultKind, ErrorHandling, UpdateError};
use super::nlri::{Nlri, Prefixes};
use crate::types::{Asn, Family, Ipv4, NextHop};

/// Buffers of [`decode_update`]. The caller keeps them, so they are allocated once.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The block of a plain UPDATE. It is separate from the other buffers, because `plain` either
    /// returns it or leaves the whole UPDATE to the other decoder.
    plain: Vec<u8>,
    attributes: AttributeScratch,
}

#[derive(Debug, Default)]
struct AttributeScratch {
    block: Vec<u8>,
    as_path: Vec<u8>,
    entries: Vec<Entry>,
    discarded: Vec<AttributeFault>,
}

/// The position of an attribute in the list of attributes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    code: u8,
    flags: u8,
    start: u16,
    /// The start of the value.
    value: u16,
    end: u16,
}

/// A decoded UPDATE. Apply all of [`Self::withdrawn`] before [`Self::announced`]: a prefix in both
/// is announced (RFC 4271 §4.3).
#[derive(Debug)]
pub struct Update<'a> {
    fields: Fields<'a>,
    /// The canonical block of the announced routes; none if none are announced.
    pub attributes: Option<&'a [u8]>,
    /// The fault that makes the routes of this UPDATE treated as withdrawn (RFC 7606 §2), if any.
    pub treat_as_withdraw: Option<AttributeFault>,
    /// Faults that only discarded an attribute, or a family that was not negotiated.
    pub discarded: &'a [AttributeFault],
    /// This UPDATE is the End-of-RIB of the family (RFC 4724 §2).
    pub end_of_rib: Option<Family>,
}

/// The positions of routes in an UPDATE, and their next hops.
#[derive(Clone, Copy, Debug)]
struct Fields<'a> {
    withdrawn: Nlri<'a, Ipv4>,
    nlri: Nlri<'a, Ipv4>,
    mp_unreach: Option<Prefixes<'a>>,
    mp_reach: Option<Prefixes<'a>>,
    /// The next hop of `nlri`; unspecified if `nlri` is empty.
    next_hop: Ipv4Addr,
    /// The next hop of `mp_reach`; unspecified without `mp_reach`.
    mp_next_hop: NextHop,
}

impl Default for Fields<'_> {
    fn default() -> Self {
        Fields {
            withdrawn: Nlri::EMPTY,
            nlri: Nlri::EMPTY,
            mp_unreach: None,
            mp_reach: None,
            next_hop: Ipv4Addr::UNSPECIFIED,
            mp_next_hop: NextHop::V4(Ipv4Addr::UNSPECIFIED),
        }
    }
}

/// Announced routes with the same next hop.
#[derive(Clone, Copy, Debug)]
pub struct Reach<'a> {
    /// Their next hop.
    pub next_hop: NextHop,
    /// The prefixes, at least one.
    pub prefixes: Prefixes<'a>,
}

impl<'a> Update<'a> {
    /// An UPDATE without treat-as-withdraw.
    #[inline]
    fn good(fields: Fields<'a>, attributes: Option<&'a [u8]>, discarded: &'a [AttributeFault]) -> Update<'a> {
        Update { fields, attributes, treat_as_withdraw: None, discarded, end_of_rib: None }
    }

    /// The withdrawn routes, including those treated as withdrawn; no list is empty.
    #[inline]
    pub fn withdrawn(&self) -> impl Iterator<Item = Prefixes<'a>> + use<'a> {
        let Fields { withdrawn, nlri, mp_unreach, mp_reach, .. } = self.fields;
        let (nlri, mp_reach) = match self.treat_as_withdraw {
            None => (Nlri::EMPTY, None),
            Some(_) => (nlri, mp_reach),
        };
        ipv4(withdrawn).into_iter().chain(mp_unreach).chain(ipv4(nlri)).chain(mp_reach)
    }

    /// The announced routes; no list is empty.
    #[inline]
    pub fn announced(&self) -> impl Iterator<Item = Reach<'a>> + use<'a> {
        let Fields { nlri, next_hop, mp_reach, mp_next_hop, .. } = self.fields;
        let (nlri, mp_reach) = match self.treat_as_withdraw {
            None => (nlri, mp_reach),
            Some(_) => (Nlri::EMPTY, None),
        };
        let reach = ipv4(nlri).map(|prefixes| Reach { next_hop: NextHop::V4(next_hop), prefixes });
        reach.into_iter().chain(mp_reach.map(|prefixes| Reach { next_hop: mp_next_hop, prefixes }))
    }
}

/// The prefixes of a field outside the attributes, if there are any.
#[inline]
fn ipv4(nlri: Nlri<'_, Ipv4>) -> Option<Prefixes<'_>> {
    (!nlri.is_empty()).then_some(Prefixes::V4(nlri))
}

/// The parts of MP_REACH_NLRI.
struct MpReach<'a> {
    next_hop: Result<NextHop, AttributeFaultKind>,
    prefixes: Prefixes<'a>,
}

/// Decodes the body of an UPDATE.
///
/// # Errors
/// If the session must end.
pub fn decode_update<'a>(
    body: &'a [u8],
    context: &DecodeContext,
    scratch: &'a mut Scratch,
) -> Result<Update<'a>, UpdateError> {
    match plain::decode(body, context, &mut scratch.plain) {
        Some(update) => Ok(update),
        None => decode_with_error_handling(body, context, &mut scratch.attributes),
    }
}

/// The slow path of [`decode_update`], for any UPDATE. Tests compare it with the fast path.
#[doc(hidden)]
pub fn decode_update_carefully<'a>(
    body: &'a [u8],
    context: &DecodeContext,
    scratch: &'a mut Scratch,
) -> Result<Update<'a>, UpdateError> {
    decode_with_error_handling(body, context, &mut scratch.attributes)
}

#[cold]
#[inline(never)]
fn decode_with_error_handling<'a>(
    body: &'a [u8],
    context: &DecodeContext,
    scratch: &'a mut AttributeScratch,
) -> Result<Update<'a>, UpdateError> {
    let (withdrawn_octets, rest) = length_prefixed(body, "Withdrawn Routes Length")?;
    let (attributes, nlri_octets) = length_prefixed(rest, "Total Path Attribute Length")?;
    let add_path = context.add_path.contains(Family::Ipv4Unicast);
    let mut withdrawn = Nlri::<Ipv4>::check(withdrawn_octets, "Withdrawn Routes", add_path)?;
    let mut nlri = Nlri::<Ipv4>::check(nlri_octets, "NLRI", add_path)?;

    let AttributeScratch { block, as_path, entries, discarded } = scratch;
    entries.clear();
    discarded.clear();
    let mut block = Block::new(attributes, block);
    let ipv4 = context.families.contains(Family::Ipv4Unicast);
    // Set if there are announced routes of a family that was not negotiated. These routes are not
    // used.
    let mut ignored_reach = !ipv4 && !nlri.is_empty();
    if !(ipv4 || withdrawn.is_empty() && nlri.is_empty()) {
        discarded.push(not_negotiated(0, 1, 1));
        (withdrawn, nlri) = (Nlri::EMPTY, Nlri::EMPTY);
    }

    let mut fault = index(attributes, entries, discarded)?;
    if let Some(AttributeFault { code, kind: AttributeFaultKind::Overrun { .. } }) = fault
        && matches!(code, table::MP_REACH_NLRI | table::MP_UNREACH_NLRI)
    {
        // The routes cannot be located, so only a session reset is possible (RFC 7606 §3 j).
        return Err(UpdateError::Mp {
            code,
            what: "longer than the rest of the attributes",
            attribute: vec![],
        });
    }
    let mut first_fault = |found: AttributeFault| fault = fault.or(Some(found));

    let value = |entry: &Entry| &attributes[usize::from(entry.value)..usize::from(entry.end)];
    let mut mp_reach = None;
    let mut mp_unreach = None;
    let mut next_hop = None;
    let mut seen = [false; 3]; // by code: ORIGIN and AS_PATH
    let as4 = if context.four_octet_as { As4::default() } else { As4::find(entries, attributes, context) };

    for entry in entries.iter() {
        let Entry { code, flags, .. } = *entry;
        let value = value(entry);
        let Some(row) = table::row(code) else {
            if flags & flags::OPTIONAL == 0 {
                let attribute = attributes[usize::from(entry.start)..usize::from(entry.end)].to_vec();
                return Err(UpdateError::UnrecognizedWellKnown { code, attribute });
            }
            if flags & flags::TRANSITIVE != 0 {
                block.copy(entry, flags::OPTIONAL | flags::TRANSITIVE | flags::PARTIAL);
            }
            continue;
        };
        // NEXT_HOP does not apply to the routes of MP_REACH_NLRI (RFC 4760 §3).
        if code == table::NEXT_HOP && nlri.is_empty() && has_mp_reach(entries) {
            continue;
        }
        let expected_sender = match row.sender {
            Sender::Anyone => Ok(()),
            Sender::InternalPeers if context.ebgp => Err(AttributeFaultKind::FromExternalPeer),
            Sender::TwoOctetSpeakers if context.four_octet_as => Err(AttributeFaultKind::FromFourOctetPeer),
            Sender::InternalPeers | Sender::TwoOctetSpeakers => Ok(()),
        };
        if let Err(kind) = expected_sender {
            discarded.push(AttributeFault { code, kind });
            continue;
        }
        let known = flags & (flags::OPTIONAL | flags::TRANSITIVE);
        let flags_fault = (known != row.flags).then_some(AttributeFault {
            code,
            kind: AttributeFaultKind::Flags { flags, expected: row.flags },
        });
        if let Some(found) = flags_fault {
            first_fault(found);
        }
        // NLRI are read even if the flags are wrong, because treat-as-withdraw needs the routes.
        match code {
            table::MP_REACH_NLRI | table::MP_UNREACH_NLRI => {
                let mp_error = |what| UpdateError::Mp {
                    code,
                    what,
                    attribute: attributes[usize::from(entry.start)..usize::from(entry.end)].to_vec(),
                };
                let &[afi0, afi1, safi, ref rest @ ..] = value else {
                    return Err(mp_error("cut short before the end of its family"));
                };
                let afi = u16::from_be_bytes([afi0, afi1]);
                let family =
                    Family::from_afi_safi(afi, safi).filter(|family| context.families.contains(*family));
                let Some(family) = family else {
                    discarded.push(not_negotiated(code, afi, safi));
                    ignored_reach |= code == table::MP_REACH_NLRI;
                    continue;
                };
                if code == table::MP_UNREACH_NLRI {
                    let add_path = context.add_path.contains(family);
                    mp_unreach = Some(Prefixes::check(family, rest, "MP_UNREACH_NLRI", add_path)?);
                } else {
                    mp_reach = Some(decode_mp_reach(family, rest, context).map_err(|error| match error {
                        MpReachError::Mp(what) => mp_error(what),
                        MpReachError::Prefix(error) => error,
                    })?);
                }
                continue;
            }
            _ => {}
        }
        if code <= table::AS_PATH {
            seen[usize::from(code)] = true;
        }
        if flags_fault.is_some() {
            continue;
        }
        if let Err(kind) = (row.check)(value, context) {
            let found = AttributeFault { code, kind };
            match row.malformed {
                ErrorHandling::AttributeDiscard => discarded.push(found),
                ErrorHandling::TreatAsWithdraw | ErrorHandling::SessionReset => first_fault(found),
            }
            continue;
        }
        match code {
            table::NEXT_HOP => next_hop = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
            table::AS_PATH if !context.four_octet_as => {
                as_path.clear();
                as_path::merge(value, as4.as_path, as_path);
                block.push(row.flags, code, as_path);
            }
            table::AGGREGATOR if !context.four_octet_as => {
                block.push(row.flags | flags & flags::PARTIAL, code, &as4.aggregator(value));
            }
            table::AS4_PATH | table::AS4_AGGREGATOR => {}
            _ => {
                let optional = row.flags == flags::OPTIONAL | flags::TRANSITIVE;
                let partial = if optional { flags & flags::PARTIAL } else { 0 };
                block.copy(entry, row.flags | partial);
            }
        }
    }

    let mp_reach: Option<MpReach<'_>> = mp_reach.filter(|reach: &MpReach<'_>| !reach.prefixes.is_empty());
    let reachable = !nlri.is_empty() || mp_reach.is_some();
    if reachable {
        let missing = |code| AttributeFault { code, kind: AttributeFaultKind::Missing };
        for code in [table::ORIGIN, table::AS_PATH] {
            if !seen[usize::from(code)] {
                first_fault(missing(code));
            }
        }
        let has_next_hop = next_hop.is_some() || entries.iter().any(|entry| entry.code == table::NEXT_HOP);
        if !nlri.is_empty() && !has_next_hop {
            first_fault(missing(table::NEXT_HOP));
        }
        if let Some(MpReach { next_hop: Err(kind), .. }) = &mp_reach {
            first_fault(AttributeFault { code: table::MP_REACH_NLRI, kind: *kind });
        }
    }

    // RFC 7606 §5.2. With MP_UNREACH_NLRI alone, no other attribute can be at fault.
    let only_unreach = matches!(entries[..], [Entry { code: table::MP_UNREACH_NLRI, .. }]);
    if let Some(fault) = fault.filter(|_| !reachable && !ignored_reach)
        && !(only_unreach && matches!(fault.kind, AttributeFaultKind::Flags { .. }))
    {
        return Err(UpdateError::NoRoutes { fault });
    }

    let end_of_rib = match (&mp_unreach, &entries[..]) {
        _ if !withdrawn_octets.is_empty() || !nlri_octets.is_empty() => None,
        (None, []) => Some(Family::Ipv4Unicast).filter(|_| ipv4),
        (Some(prefixes), [_]) if prefixes.is_empty() => Some(prefixes.family()),
        _ => None,
    };
    let mut fields = Fields {
        withdrawn,
        nlri,
        mp_unreach: mp_unreach.filter(|prefixes| !prefixes.is_empty()),
        next_hop: next_hop.unwrap_or(Ipv4Addr::UNSPECIFIED),
        ..Fields::default()
    };
    if let Some(MpReach { next_hop, prefixes }) = mp_reach {
        fields.mp_reach = Some(prefixes);
        // With an Err, these routes are treated as withdrawn because of this fault.
        fields.mp_next_hop = next_hop.unwrap_or(fields.mp_next_hop);
    }
    let mut update = Update::good(fields, reachable.then(|| block.finish()), discarded);
    match fault {
        None => update.end_of_rib = end_of_rib,
        Some(_) => (update.treat_as_withdraw, update.attributes) = (fault, None),
    }
    Ok(update)
}

/// The canonical block under construction. Adjacent attributes that are already canonical are
/// copied together. If they are the whole block, they are not copied.
struct Block<'a> {
    /// The attributes of the message.
    source: &'a [u8],
    /// Octets of `source` that belong to the end of the block and are not copied yet.
    start: usize,
    end: usize,
    octets: &'a mut Vec<u8>,
}

impl<'a> Block<'a> {
    fn new(source: &'a [u8], octets: &'a mut Vec<u8>) -> Self {
        octets.clear();
        Block { source, start: 0, end: 0, octets }
    }

    fn flush(&mut self) {
        self.octets.extend_from_slice(&self.source[self.start..self.end]);
        self.start = self.end;
    }

    /// Appends an attribute of the message with the specified flags.
    #[inline]
    fn copy(&mut self, entry: &Entry, flags: u8) {
        let (start, value, end) =
            (usize::from(entry.start), usize::from(entry.value), usize::from(entry.end));
        let extended = if end - value > 255 { flags::EXTENDED_LENGTH } else { 0 };
        if entry.flags != flags | extended {
            return self.push(flags, entry.code, &self.source[value..end]);
        }
        self.extend(start, end);
    }

    /// Appends octets of the message that are already canonical.
    #[inline]
    fn extend(&mut self, start: usize, end: usize) {
        if start != self.end {
            self.flush();
            self.start = start;
        }
        self.end = end;
    }

    fn push(&mut self, flags: u8, code: u8, value: &[u8]) {
        self.flush();
        push_attribute(self.octets, flags, code, value);
    }

    fn finish(mut self) -> &'a [u8] {
        if self.octets.is_empty() {
            return &self.source[self.start..self.end];
        }
        self.flush();
        self.octets
    }
}

/// A field with a two-octet length in front, and the octets after it (RFC 7606 §3 b).
fn length_prefixed<'a>(octets: &'a [u8], field: &'static str) -> Result<(&'a [u8], &'a [u8]), UpdateError> {
    let remaining = octets.len();
    let (length, rest) = octets
        .split_first_chunk::<2>()
        .map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))
        .ok_or(UpdateError::FieldLength { field, length: 0, remaining })?;
    rest.split_at_checked(length).ok_or(UpdateError::FieldLength { field, length, remaining: rest.len() })
}

/// Lists the first attribute of each code, in ascending order. Returns the fault that ended the
/// walk.
fn index(
    attributes: &[u8],
    entries: &mut Vec<Entry>,
    discarded: &mut Vec<AttributeFault>,
) -> Result<Option<AttributeFault>, UpdateError> {
    let mut walk = Attributes::new(attributes);
    let mut seen = [0u64; 4];
    let mut end = 0;
    let mut sorted = true;
    for attribute in walk.by_ref() {
        let code = attribute.code;
        let start = end;
        end += attribute.whole.len();
        let (word, bit) = (usize::from(code >> 6), 1 << (code & 63));
        if seen[word] & bit != 0 {
            if matches!(code, table::MP_REACH_NLRI | table::MP_UNREACH_NLRI) {
                return Err(UpdateError::DuplicateMp { code });
            }
            discarded.push(AttributeFault { code, kind: AttributeFaultKind::Duplicate });
            continue;
        }
        seen[word] |= bit;
        sorted &= entries.last().is_none_or(|last| last.code < code);
        let value = end - attribute.value.len();
        // A list of attributes has at most 65,535 octets: its length field has 16 bits.
        entries.push(Entry {
            code,
            flags: attribute.flags,
            start: start as u16,
            value: value as u16,
            end: end as u16,
        });
    }
    if !sorted {
        entries.sort_unstable_by_key(|entry| entry.code);
    }
    Ok(walk.fault())
}

fn not_negotiated(code: u8, afi: u16, safi: u8) -> AttributeFault {
    AttributeFault { code, kind: AttributeFaultKind::Family { afi, safi } }
}

fn has_mp_reach(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.code == table::MP_REACH_NLRI)
}

enum MpReachError {
    Mp(&'static str),
    Prefix(UpdateError),
}

/// Decodes MP_REACH_NLRI from the length of the next hop on (RFC 4760 §3, RFC 2545 §3, RFC 8950
/// §3).
fn decode_mp_reach<'a>(
    family: Family,
    octets: &'a [u8],
    context: &DecodeContext,
) -> Result<MpReach<'a>, MpReachError> {
    let cut_short = MpReachError::Mp("cut short in its next hop");
    let Some((length, rest)) = octets.split_first() else {
        return Err(cut_short);
    };
    let Some((next_hop, [_reserved, nlri @ ..])) = rest.split_at_checked(usize::from(*length)) else {
        return Err(cut_short);
    };
    let ipv6 = match family {
        Family::Ipv4Unicast => context.ext_next_hop,
        Family::Ipv6Unicast => true,
    };
    let next_hop = match (next_hop, next_hop.as_chunks::<16>()) {
        (&[a, b, c, d], _) if family == Family::Ipv4Unicast => host_v4(Ipv4Addr::new(a, b, c, d)),
        (_, ([global], [])) if ipv6 => host_v6(Ipv6Addr::from(*global), None),
        (_, ([global, link_local], [])) if ipv6 => {
            host_v6(Ipv6Addr::from(*global), Some(Ipv6Addr::from(*link_local)))
        }
        _ => return Err(MpReachError::Mp("a next hop length that is impossible for its family")),
    };
    let add_path = context.add_path.contains(family);
    let prefixes = Prefixes::check(family, nlri, "MP_REACH_NLRI", add_path).map_err(MpReachError::Prefix)?;
    Ok(MpReach { next_hop, prefixes })
}

fn host_v4(address: Ipv4Addr) -> Result<NextHop, AttributeFaultKind> {
    if address.is_unspecified() || address.octets()[0] >= 224 {
        return Err(AttributeFaultKind::NextHop { address: address.into() });
    }
    Ok(NextHop::V4(address))
}

/// The next hop of one or two IPv6 addresses. Speakers without a link-local address may fill the
/// second address with any octets. Speakers without a global address may fill the first one with ::
/// or with the link-local address.
fn host_v6(global: Ipv6Addr, link_local: Option<Ipv6Addr>) -> Result<NextHop, AttributeFaultKind> {
    let link_local = link_local.filter(Ipv6Addr::is_unicast_link_local);
    match link_local {
        Some(link_local) if global.is_unspecified() || global == link_local => Ok(NextHop::V6(link_local)),
        _ if global.is_unspecified() || global.is_multicast() => {
            Err(AttributeFaultKind::NextHop { address: IpAddr::V6(global) })
        }
        Some(link_local) => Ok(NextHop::V6WithLinkLocal(global, link_local)),
        None => Ok(NextHop::V6(global)),
    }
}

/// The attributes of a two-octet speaker for large AS numbers (RFC 6793 §4.2.3).
#[derive(Default)]
struct As4<'a> {
    as_path: Option<&'a [u8]>,
    aggregator: Option<&'a [u8; 8]>,
}

impl<'a> As4<'a> {
    fn find(entries: &[Entry], attributes: &'a [u8], context: &DecodeContext) -> As4<'a> {
        let value = |code: u8| {
            let entry = entries.iter().find(|entry| entry.code == code)?;
            let value = &attributes[usize::from(entry.value)..usize::from(entry.end)];
            let row = table::row(code)?;
            let known = entry.flags & (flags::OPTIONAL | flags::TRANSITIVE);
            (known == row.flags && (row.check)(value, context).is_ok()).then_some(value)
        };
        let aggregator = value(table::AS4_AGGREGATOR).and_then(|value| <&[u8; 8]>::try_from(value).ok());
        // An AGGREGATOR other than AS_TRANS shows that a two-octet speaker has aggregated later:
        // both attributes are ignored.
        let trans = Asn::TRANS.two_octet().to_be_bytes();
        if aggregator.is_some() && value(table::AGGREGATOR).is_some_and(|value| value[..2] != trans) {
            return As4::default();
        }
        As4 { as_path: value(table::AS4_PATH), aggregator }
    }

    /// The four-octet form of a two-octet AGGREGATOR of 6 octets.
    fn aggregator(&self, value: &[u8]) -> [u8; 8] {
        match self.aggregator {
            Some(aggregator) => *aggregator,
            None => {
                let mut aggregator = [0; 8];
                aggregator[2..].copy_from_slice(value);
                aggregator
            }
        }
    }
}
