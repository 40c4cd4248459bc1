//! AS_PATH (RFC 4271 §5.1.2) with four-octet AS numbers (RFC 6793), and the conversion from two
//! octets.

use std::fmt;

use super::super::AttributeFaultKind;
use crate::types::Asn;

const SET: u8 = 1;
const SEQUENCE: u8 = 2;
const CONFED_SEQUENCE: u8 = 3;
const CONFED_SET: u8 = 4;

/// Octets of an AS number in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// From a two-octet speaker.
    Two = 2,
    /// From a four-octet speaker.
    Four = 4,
}

/// The ASes that a route has passed, the nearest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AsPath {
    /// The segments; none of them is empty.
    pub segments: Vec<Segment>,
}

/// A part of an AS_PATH. More than 255 AS numbers are encoded as several segments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Whether the order is significant.
    pub kind: SegmentKind,
    /// The AS numbers, at least one.
    pub asns: Vec<Asn>,
}

/// The type of a path segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// AS_SET: the ASes of an aggregate, unordered.
    Set,
    /// AS_SEQUENCE: ordered ASes.
    Sequence,
}

impl AsPath {
    /// A path of one sequence; the empty path without ASes.
    pub fn sequence(asns: impl IntoIterator<Item = Asn>) -> AsPath {
        let asns: Vec<_> = asns.into_iter().collect();
        let segment = (!asns.is_empty()).then_some(Segment { kind: SegmentKind::Sequence, asns });
        AsPath { segments: segment.into_iter().collect() }
    }

    /// The length that the decision process compares: a set counts as one (RFC 4271 §9.1.2.2 a).
    pub fn len(&self) -> usize {
        self.segments
            .iter()
            .map(|segment| match segment.kind {
                SegmentKind::Set => 1,
                SegmentKind::Sequence => segment.asns.len(),
            })
            .sum()
    }

    /// Whether the path has no AS: the route is from the sender's own AS.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether the path contains the AS.
    pub fn contains(&self, asn: Asn) -> bool {
        self.segments.iter().any(|segment| segment.asns.contains(&asn))
    }

    /// The neighbouring AS: the leftmost, if the path starts with a sequence (RFC 4271 §9.1.2.2 c).
    pub fn first(&self) -> Option<Asn> {
        let segment = self.segments.first().filter(|segment| segment.kind == SegmentKind::Sequence)?;
        segment.asns.first().copied()
    }

    /// The originating AS: the rightmost, if the path ends with a sequence.
    pub fn origin_as(&self) -> Option<Asn> {
        let segment = self.segments.last().filter(|segment| segment.kind == SegmentKind::Sequence)?;
        segment.asns.last().copied()
    }

    /// Prepends an AS `times` times (RFC 4271 §5.1.2 b).
    pub fn prepend(&mut self, asn: Asn, times: usize) {
        if times == 0 {
            return;
        }
        match self.segments.first_mut() {
            Some(Segment { kind: SegmentKind::Sequence, asns }) => {
                asns.splice(0..0, std::iter::repeat_n(asn, times));
            }
            _ => {
                let segment = Segment { kind: SegmentKind::Sequence, asns: vec![asn; times] };
                self.segments.insert(0, segment);
            }
        }
    }

    /// Removes private AS numbers or replaces them by `replacement`; the number `kept` stays. A
    /// path with public numbers is unchanged unless `all`.
    pub(crate) fn remove_private(&mut self, all: bool, replacement: Option<Asn>, kept: Option<Asn>) {
        let goes = |asn: &Asn| asn.is_private() && Some(*asn) != kept;
        if !all && !self.segments.iter().flat_map(|segment| &segment.asns).all(|asn| asn.is_private()) {
            return;
        }
        for segment in &mut self.segments {
            match replacement {
                Some(replacement) => {
                    segment.asns.iter_mut().filter(|asn| goes(asn)).for_each(|asn| *asn = replacement);
                }
                None => segment.asns.retain(|asn| !goes(asn)),
            }
        }
        self.segments.retain(|segment| !segment.asns.is_empty());
    }

    /// Reads an attribute value that [`check`] has accepted with four octets. Adjacent sequences
    /// become one.
    pub(super) fn read(value: &[u8]) -> AsPath {
        let mut path = AsPath::default();
        for (kind, octets) in segments(value, Width::Four) {
            let asns = octets.as_chunks::<4>().0.iter().map(|octets| Asn(u32::from_be_bytes(*octets)));
            match path.segments.last_mut() {
                Some(last) if last.kind == SegmentKind::Sequence && kind == SEQUENCE => {
                    last.asns.extend(asns)
                }
                _ => {
                    let kind = if kind == SET { SegmentKind::Set } else { SegmentKind::Sequence };
                    path.segments.push(Segment { kind, asns: asns.collect() });
                }
            }
        }
        path
    }

    /// Appends the attribute's value.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for segment in &self.segments {
            let kind = match segment.kind {
                SegmentKind::Set => SET,
                SegmentKind::Sequence => SEQUENCE,
            };
            for asns in segment.asns.chunks(255) {
                out.extend_from_slice(&[kind, asns.len() as u8]);
                asns.iter().for_each(|asn| out.extend_from_slice(&asn.0.to_be_bytes()));
            }
        }
    }
}

impl fmt::Display for AsPath {
    /// The text form, `65001 65002 {65003 65004}`: sets in braces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.segments.iter().enumerate() {
            let separator = if at == 0 { "" } else { " " };
            let (open, close) = match segment.kind {
                SegmentKind::Set => ("{", "}"),
                SegmentKind::Sequence => ("", ""),
            };
            write!(f, "{separator}{open}")?;
            for (at, asn) in segment.asns.iter().enumerate() {
                let separator = if at == 0 { "" } else { " " };
                write!(f, "{separator}{asn}")?;
            }
            f.write_str(close)?;
        }
        Ok(())
    }
}

/// Checks that a value is a well-formed AS_PATH (RFC 7606 §7.2, RFC 7607). With `confederations` it
/// is an AS4_PATH, in which confederation segments are dropped, not rejected (RFC 6793 §6).
#[inline]
pub(crate) fn check(value: &[u8], width: Width, confederations: bool) -> Result<(), AttributeFaultKind> {
    let mut rest = value;
    while let [kind, after @ ..] = rest {
        let Some((&count, after)) = after.split_first() else {
            return Err(AttributeFaultKind::SegmentLength { count: 0, remaining: 0 });
        };
        match *kind {
            SET | SEQUENCE => {}
            CONFED_SEQUENCE | CONFED_SET if confederations => {}
            kind => return Err(AttributeFaultKind::SegmentKind { kind }),
        }
        let malformed = AttributeFaultKind::SegmentLength { count, remaining: after.len() };
        let (asns, after) = match after.split_at_checked(usize::from(count) * width as usize) {
            Some(split) if count != 0 => split,
            _ => return Err(malformed),
        };
        let zero = match width {
            Width::Two => asns.as_chunks::<2>().0.contains(&[0; 2]),
            Width::Four => asns.as_chunks::<4>().0.contains(&[0; 4]),
        };
        if zero {
            return Err(AttributeFaultKind::AsZero);
        }
        rest = after;
    }
    Ok(())
}

/// Type and AS numbers of the segments of a value that [`check`] has accepted.
pub(crate) fn segments(mut value: &[u8], width: Width) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, count, rest @ ..] = value else { return None };
        let (asns, rest) = rest.split_at_checked(usize::from(*count) * width as usize)?;
        value = rest;
        Some((*kind, asns))
    })
}

fn is_confederation(kind: u8) -> bool {
    matches!(kind, CONFED_SEQUENCE | CONFED_SET)
}

/// The length for the comparison of AS_PATH and AS4_PATH (RFC 6793 §4.2.3).
fn compared_len(value: &[u8], width: Width) -> usize {
    segments(value, width)
        .map(|(kind, asns)| match kind {
            SEQUENCE => asns.len() / width as usize,
            SET => 1,
            _ => 0,
        })
        .sum()
}

/// Appends the four-octet path of a two-octet speaker's AS_PATH and AS4_PATH (RFC 6793 §4.2.3): the
/// surplus front of AS_PATH, then AS4_PATH. [`check`] has accepted both.
pub(crate) fn merge(as_path: &[u8], as4_path: Option<&[u8]>, out: &mut Vec<u8>) {
    let length = compared_len(as_path, Width::Two);
    let as4_path = as4_path.filter(|path| compared_len(path, Width::Four) <= length);
    let mut leading = match as4_path {
        Some(path) => length - compared_len(path, Width::Four),
        None => usize::MAX,
    };
    let mut last = None;
    for (kind, asns) in segments(as_path, Width::Two) {
        if leading == 0 {
            break;
        }
        let taken = if kind == SEQUENCE { (asns.len() / 2).min(leading) } else { asns.len() / 2 };
        leading = leading.saturating_sub(if kind == SEQUENCE { taken } else { 1 });
        last = Some((kind, out.len() + 1));
        out.extend_from_slice(&[kind, taken as u8]);
        for [high, low] in asns.as_chunks::<2>().0.iter().take(taken) {
            out.extend_from_slice(&[0, 0, *high, *low]);
        }
    }
    for (kind, asns) in segments(as4_path.unwrap_or_default(), Width::Four) {
        if is_confederation(kind) {
            continue;
        }
        match last {
            // The merge cut the sequence in two. It is joined again, because equal paths must have
            // equal octets, even if they arrived in different forms.
            Some((SEQUENCE, count))
                if kind == SEQUENCE && usize::from(out[count]) + asns.len() / 4 <= 255 =>
            {
                out[count] += (asns.len() / 4) as u8;
            }
            _ => out.extend_from_slice(&[kind, (asns.len() / 4) as u8]),
        }
        last = None;
        out.extend_from_slice(asns);
    }
}

/// Appends a four-octet path in two-octet form, with AS_TRANS for large numbers. Returns whether
/// there were large numbers, because then AS4_PATH is necessary.
pub(crate) fn write_two_octet(as_path: &[u8], out: &mut Vec<u8>) -> bool {
    let mut large = false;
    for (kind, asns) in segments(as_path, Width::Four) {
        out.extend_from_slice(&[kind, (asns.len() / 4) as u8]);
        for octets in asns.as_chunks::<4>().0 {
            let asn = Asn(u32::from_be_bytes(*octets));
            large |= asn.0 > u32::from(u16::MAX);
            out.extend_from_slice(&asn.two_octet().to_be_bytes());
        }
    }
    large
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asns(numbers: &[u32]) -> Vec<Asn> {
        numbers.iter().copied().map(Asn).collect()
    }

    fn value(path: &AsPath) -> Vec<u8> {
        let mut out = Vec::new();
        path.write(&mut out);
        out
    }

    fn with_set() -> AsPath {
        let mut path = AsPath::sequence(asns(&[65001, 65002]));
        path.segments.push(Segment { kind: SegmentKind::Set, asns: asns(&[1, 2, 3]) });
        path
    }

    #[test]
    fn a_set_counts_as_one() {
        let path = with_set();
        assert_eq!((path.len(), path.first(), path.origin_as()), (3, Some(Asn(65001)), None));
        assert!(path.contains(Asn(2)) && !path.contains(Asn(4)));
        assert_eq!(path.to_string(), "65001 65002 {1 2 3}");
        assert_eq!(AsPath::read(&value(&path)), path);
    }

    #[test]
    fn prepending_to_a_set_starts_a_sequence() {
        let mut path = AsPath { segments: with_set().segments.split_off(1) };
        assert_eq!(path.first(), None);
        path.prepend(Asn(7), 0);
        assert_eq!(path.segments.len(), 1);
        path.prepend(Asn(7), 2);
        path.prepend(Asn(8), 1);
        assert_eq!(path.to_string(), "8 7 7 {1 2 3}");
    }

    #[test]
    fn more_than_255_ases_become_several_segments() {
        let path = AsPath::sequence((1..=600).map(Asn));
        let value = value(&path);
        assert_eq!(
            segments(&value, Width::Four).map(|(_, asns)| asns.len() / 4).collect::<Vec<_>>(),
            [255, 255, 90]
        );
        check(&value, Width::Four, false).unwrap();
        assert_eq!(AsPath::read(&value), path);
    }

    #[test]
    fn a_malformed_path_is_rejected() {
        use AttributeFaultKind::*;
        for (value, fault) in [
            (&[2][..], SegmentLength { count: 0, remaining: 0 }),
            (&[2, 0], SegmentLength { count: 0, remaining: 0 }),
            (&[2, 2, 0, 0, 0, 1], SegmentLength { count: 2, remaining: 4 }),
            (&[2, 1, 0, 0, 0, 1, 0], SegmentLength { count: 0, remaining: 0 }),
            (&[0, 1, 0, 0, 0, 1], SegmentKind { kind: 0 }),
            (&[5, 1, 0, 0, 0, 1], SegmentKind { kind: 5 }),
            (&[3, 1, 0, 0, 0, 1], SegmentKind { kind: 3 }),
            (&[2, 1, 0, 0, 0, 0], AsZero),
        ] {
            assert_eq!(check(value, Width::Four, false), Err(fault), "{value:?}");
        }
        check(&[], Width::Two, false).unwrap();
        check(&[3, 1, 0, 0, 0, 1], Width::Four, true).unwrap();
    }

    #[test]
    fn as4_path_replaces_the_end_of_as_path() {
        let merged = |as_path: &[u8], as4_path: Option<&[u8]>| {
            let mut out = Vec::new();
            merge(as_path, as4_path, &mut out);
            check(&out, Width::Four, false).unwrap();
            (AsPath::read(&out).to_string(), out.len())
        };
        let as_path = [2, 3, 0, 9, 0x5b, 0xa0, 0x5b, 0xa0];
        assert_eq!(merged(&as_path, None).0, "9 23456 23456");
        let two = [2, 2, 0, 1, 0, 0, 0, 1, 0, 1];
        assert_eq!(merged(&as_path, Some(&two)), ("9 65536 65537".into(), 14), "one segment");
        let confederation = [3, 1, 0, 0, 0, 5, 2, 1, 0, 1, 0, 1];
        assert_eq!(merged(&as_path, Some(&confederation)).0, "9 23456 65537");
        let four = [2, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 2, 0, 1, 0, 3];
        assert_eq!(merged(&as_path, Some(&four)).0, "9 23456 23456", "longer than AS_PATH: ignored");
        let set = [2, 1, 0, 9, 1, 2, 0, 1, 0, 2, 2, 1, 0x5b, 0xa0];
        assert_eq!(merged(&set, Some(&two[..])).0, "9 65536 65537", "a set of AS_PATH counts one");
        let one = [2, 1, 0, 1, 0, 0];
        assert_eq!(merged(&set, Some(&one)).0, "9 {1 2} 65536");
    }

    #[test]
    fn large_numbers_become_as_trans() {
        let mut out = Vec::new();
        assert!(write_two_octet(&value(&AsPath::sequence(asns(&[1, 65536]))), &mut out));
        assert_eq!(out, [2, 2, 0, 1, 0x5b, 0xa0]);
        assert!(!write_two_octet(&value(&AsPath::sequence(asns(&[1, 65535]))), &mut out));
    }
}
