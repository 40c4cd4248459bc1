//! Extended communities (RFC 4360), with AS numbers of four octets (RFC 5668).
//!
//! The speaker passes them on unchanged. Each community has eight octets, and the first octet
//! defines the format of the other octets. Three kinds are in use with IPv4 and IPv6 unicast and
//! have names: Route Target, Route Origin and Link Bandwidth. Other kinds are shown as octets.

use std::fmt;
use std::net::Ipv4Addr;

use super::Asn;

/// An extended community in wire format. The text form is `rt:65000:1` or `rt:10.0.0.1:1`. An `L`
/// shows a four-octet AS number that would fit into two octets: `rt:65000L:1`. `soo:…` is the Route
/// Origin ("site of origin"). `lb:65000:125000000` is the transitive Link Bandwidth of an AS in
/// octets per second, and `lb-non-transitive:…` the other form. `0x…` with 16 digits is any other
/// kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtendedCommunity(pub [u8; 8]);

/// A bandwidth in octets (not bits) per second, for the Link Bandwidth extended community (RFC
/// 10005 §2). The wire format is an IEEE 754 number of 32 bits, so numbers above 16,777,216 are
/// rounded to 24 significant bits. Zero is valid; its effect is the receiver's policy (RFC 10005
/// §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkBandwidth(pub u64);

impl ExtendedCommunity {
    /// The T bit: not set if the community may leave the AS (RFC 4360 §2).
    const NON_TRANSITIVE: u8 = 0x40;
    /// The sub-type of Link Bandwidth (RFC 10005 §2).
    const LINK_BANDWIDTH: u8 = 4;

    /// The non-transitive Link Bandwidth of an AS (RFC 10005 §2). AS_TRANS replaces an AS number
    /// above 65535.
    pub fn link_bandwidth(asn: Asn, bandwidth: LinkBandwidth) -> ExtendedCommunity {
        let [a, b] = asn.two_octet().to_be_bytes();
        let [c, d, e, g] = (bandwidth.0 as f32).to_be_bytes();
        ExtendedCommunity([Self::NON_TRANSITIVE, Self::LINK_BANDWIDTH, a, b, c, d, e, g])
    }

    /// Whether it may be advertised to another AS (RFC 4360 §6).
    pub fn is_transitive(&self) -> bool {
        self.0[0] & Self::NON_TRANSITIVE == 0
    }

    /// The transitive form of a Link Bandwidth. Other communities stay as they are.
    #[must_use]
    pub(crate) fn with_transitive_link_bandwidth(self) -> ExtendedCommunity {
        match self.0 {
            [Self::NON_TRANSITIVE, Self::LINK_BANDWIDTH, value @ ..] => {
                let [a, b, c, d, e, g] = value;
                ExtendedCommunity([0, Self::LINK_BANDWIDTH, a, b, c, d, e, g])
            }
            _ => self,
        }
    }
}

/// A bandwidth on the wire as a whole number of octets per second. None if it is negative (also
/// minus zero), fractional, not finite, or 2^64 or more: such a community is shown as octets.
fn whole(bandwidth: f32) -> Option<u64> {
    let number = bandwidth as u64;
    // The conversion to an integer saturates, so 2^64 and more would pass without the limit.
    (number < u64::MAX && (number as f32).to_bits() == bandwidth.to_bits()).then_some(number)
}

impl fmt::Display for ExtendedCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, subtype, a, b, c, d, e, g] = self.0;
        let short = u16::from_be_bytes([a, b]);
        if subtype == Self::LINK_BANDWIDTH
            && let Some(name) = match kind {
                0 => Some("lb"),
                Self::NON_TRANSITIVE => Some("lb-non-transitive"),
                _ => None,
            }
            && let Some(octets) = whole(f32::from_be_bytes([c, d, e, g]))
        {
            return write!(f, "{name}:{short}:{octets}");
        }
        let name = match subtype {
            2 => "rt",
            3 => "soo",
            _ => "",
        };
        let (first, last) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g]));
        match kind {
            _ if name.is_empty() => {}
            0 => return write!(f, "{name}:{short}:{}", u32::from_be_bytes([c, d, e, g])),
            1 => return write!(f, "{name}:{}:{last}", Ipv4Addr::from(first)),
            2 => {
                let mark = if first > u32::from(u16::MAX) { "" } else { "L" };
                return write!(f, "{name}:{first}{mark}:{last}");
            }
            _ => {}
        }
        write!(f, "0x{:016x}", u64::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kinds_have_names_others_are_shown_in_hex() {
        for (octets, text) in [
            ([0, 2, 0xfd, 0xe8, 0, 1, 0, 0], "rt:65000:65536"),
            ([0, 3, 0xfd, 0xe8, 0, 0, 0, 7], "soo:65000:7"),
            ([1, 2, 10, 0, 0, 1, 0, 7], "rt:10.0.0.1:7"),
            ([2, 2, 0, 1, 0, 0, 0, 7], "rt:65536:7"),
            ([2, 3, 0, 0, 0xfd, 0xe8, 0, 7], "soo:65000L:7"),
            ([0, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28], "lb:65000:125000000"),
            ([0x40, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28], "lb-non-transitive:65000:125000000"),
            ([0, 4, 0, 0, 0, 0, 0, 0], "lb:0:0"),
            ([0, 4, 0, 1, 0x5f, 0x7f, 0xff, 0xff], "lb:1:18446742974197923840"),
            // A fraction, minus zero, a negative number, 2^64, infinity, not a number.
            ([0, 4, 0xfd, 0xe8, 0, 0, 0, 7], "0x0004fde800000007"),
            ([0, 4, 0xfd, 0xe8, 0x3f, 0xc0, 0, 0], "0x0004fde83fc00000"),
            ([0, 4, 0xfd, 0xe8, 0x80, 0, 0, 0], "0x0004fde880000000"),
            ([0, 4, 0xfd, 0xe8, 0xbf, 0x80, 0, 0], "0x0004fde8bf800000"),
            ([0, 4, 0xfd, 0xe8, 0x5f, 0x80, 0, 0], "0x0004fde85f800000"),
            ([0, 4, 0xfd, 0xe8, 0x7f, 0x80, 0, 0], "0x0004fde87f800000"),
            ([0, 4, 0xfd, 0xe8, 0x7f, 0xc0, 0, 0], "0x0004fde87fc00000"),
            ([0x40, 2, 0xfd, 0xe8, 0, 0, 0, 7], "0x4002fde800000007"),
            ([2, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28], "0x0204fde84cee6b28"),
            ([3, 2, 0, 0, 0, 0, 0, 7], "0x0302000000000007"),
        ] {
            assert_eq!(ExtendedCommunity(octets).to_string(), text);
        }
    }

    #[test]
    fn a_link_bandwidth_has_the_rounded_number_and_the_short_as() {
        for (asn, bandwidth, octets) in [
            (65000, 125_000_000, [0x40, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]),
            (65536, 0, [0x40, 4, 0x5b, 0xa0, 0, 0, 0, 0]),
            (1, 16_777_217, [0x40, 4, 0, 1, 0x4b, 0x80, 0, 0]),
            (1, u64::MAX, [0x40, 4, 0, 1, 0x5f, 0x80, 0, 0]),
        ] {
            let community = ExtendedCommunity::link_bandwidth(Asn(asn), LinkBandwidth(bandwidth));
            assert_eq!(community.0, octets);
            let mut transitive = octets;
            transitive[0] = 0;
            assert_eq!(community.with_transitive_link_bandwidth().0, transitive);
        }
        for other in [[0x40, 2, 0, 1, 0, 0, 0, 1], [0x43, 4, 0, 1, 0, 0, 0, 1], [0, 4, 0, 1, 0, 0, 0, 0]] {
            let other = ExtendedCommunity(other);
            assert_eq!(other.with_transitive_link_bandwidth(), other);
        }
    }
}
