//! Extended communities (RFC 4360), with AS numbers of four octets (RFC 5668).
//!
//! The speaker passes them on unchanged. Each community has eight octets, and the first octet
//! defines the format of the other octets. Two kinds are in use with IPv4 and IPv6 unicast and have
//! names: Route Target and Route Origin. Other kinds are shown as octets.

use std::fmt;
use std::net::Ipv4Addr;

/// An extended community in wire format. The text form is `rt:65000:1` or `rt:10.0.0.1:1`. An `L`
/// shows a four-octet AS number that would fit into two octets: `rt:65000L:1`. `soo:…` is the Route
/// Origin ("site of origin"), and `0x…` with 16 digits is any other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtendedCommunity(pub [u8; 8]);

impl ExtendedCommunity {
    /// The T bit: not set if the community may leave the AS (RFC 4360 §2).
    const NON_TRANSITIVE: u8 = 0x40;

    /// Whether it may be advertised to another AS (RFC 4360 §6).
    pub fn is_transitive(&self) -> bool {
        self.0[0] & Self::NON_TRANSITIVE == 0
    }
}

impl fmt::Display for ExtendedCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, subtype, a, b, c, d, e, g] = self.0;
        let name = match subtype {
            2 => "rt",
            3 => "soo",
            _ => "",
        };
        let (first, last) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g]));
        match kind {
            _ if name.is_empty() => {}
            0 => {
                return write!(
                    f,
                    "{name}:{}:{}",
                    u16::from_be_bytes([a, b]),
                    u32::from_be_bytes([c, d, e, g])
                );
            }
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
    fn targets_and_origins_have_names_others_are_shown_in_hex() {
        for (octets, text) in [
            ([0, 2, 0xfd, 0xe8, 0, 1, 0, 0], "rt:65000:65536"),
            ([0, 3, 0xfd, 0xe8, 0, 0, 0, 7], "soo:65000:7"),
            ([1, 2, 10, 0, 0, 1, 0, 7], "rt:10.0.0.1:7"),
            ([2, 2, 0, 1, 0, 0, 0, 7], "rt:65536:7"),
            ([2, 3, 0, 0, 0xfd, 0xe8, 0, 7], "soo:65000L:7"),
            ([0, 4, 0xfd, 0xe8, 0, 0, 0, 7], "0x0004fde800000007"),
            ([0x40, 2, 0xfd, 0xe8, 0, 0, 0, 7], "0x4002fde800000007"),
            ([3, 2, 0, 0, 0, 0, 0, 7], "0x0302000000000007"),
        ] {
            assert_eq!(ExtendedCommunity(octets).to_string(), text);
        }
    }
}
