//! Ranges of addresses, and the difference of two sets of ranges.

use std::fmt;
use std::net::IpAddr;

use trunkline_api::resources::{AddressBlock, IpVersion};

/// The addresses from the first to the last one, both of one family, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

impl Span {
    /// The range of one address.
    pub fn single(address: IpAddr) -> Span {
        Span { first: address, last: address }
    }

    /// Its family.
    pub fn version(&self) -> IpVersion {
        version(self.first)
    }

    /// Whether the range has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first <= address && address <= self.last && self.version() == version(address)
    }

    /// Whether the ranges have a common address.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.version() == other.version() && self.first <= other.last && other.first <= self.last
    }

    /// At most this number of addresses from the first one on.
    pub(super) fn clipped(self, most: u128) -> Span {
        let last = number(self.first).saturating_add(most.saturating_sub(1)).min(number(self.last));
        Span { last: address(self.version(), last), ..self }
    }

    /// The parts of the range without these ranges, in order.
    pub(crate) fn without(self, removed: &[Span]) -> Vec<Span> {
        let mut removed: Vec<&Span> = removed.iter().filter(|other| self.overlaps(other)).collect();
        removed.sort_unstable();
        let (family, end) = (self.version(), number(self.last));
        let mut parts = Vec::new();
        let mut next = Some(number(self.first));
        for gap in removed {
            let Some(from) = next else { break };
            let (start, stop) = (number(gap.first), number(gap.last));
            if start > from {
                parts.push(Span { first: address(family, from), last: address(family, start - 1) });
            }
            next = stop.checked_add(1).map(|after| after.max(from)).filter(|after| *after <= end);
        }
        if let Some(from) = next {
            parts.push(Span { first: address(family, from), last: self.last });
        }
        parts
    }
}

impl From<AddressBlock> for Span {
    fn from(block: AddressBlock) -> Self {
        Span { first: block.first(), last: block.last() }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        let bits = match self.version() {
            IpVersion::V4 => 32,
            IpVersion::V6 => 128,
        };
        let (first, last) = (number(self.first), number(self.last));
        let host = (first ^ last).checked_ilog2().map_or(0, |bit| bit + 1);
        let mask = 1_u128.checked_shl(host).map_or(u128::MAX, |size| size - 1);
        if first & mask == 0 && last & mask == mask {
            write!(f, "{}/{}", self.first, bits - host)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// The family of an address.
pub fn version(address: IpAddr) -> IpVersion {
    match address {
        IpAddr::V4(_) => IpVersion::V4,
        IpAddr::V6(_) => IpVersion::V6,
    }
}

/// `IPv4` or `IPv6`.
pub fn family(version: IpVersion) -> &'static str {
    match version {
        IpVersion::V4 => "IPv4",
        IpVersion::V6 => "IPv6",
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The address with this number. Numbers of IPv4 ranges come from IPv4 addresses.
fn address(version: IpVersion, number: u128) -> IpAddr {
    match version {
        IpVersion::V4 => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        IpVersion::V6 => IpAddr::V6(number.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> Span {
        match text.split_once('-') {
            Some((first, last)) => Span { first: first.parse().unwrap(), last: last.parse().unwrap() },
            None => {
                let prefix: ipnet::IpNet = text.parse().unwrap();
                Span { first: prefix.network(), last: prefix.broadcast() }
            }
        }
    }

    #[test]
    fn ranges_are_shown_as_prefixes_where_possible() {
        for text in ["10.0.0.0/28", "10.0.0.1-10.0.0.9", "fd00::/64", "0.0.0.0/0", "::/0", "10.0.0.2/31"] {
            assert_eq!(span(text).to_string(), text);
        }
        assert_eq!(span("10.0.0.7/32").to_string(), "10.0.0.7");
        assert_eq!(span("10.0.0.2-10.0.0.5").to_string(), "10.0.0.2-10.0.0.5");
    }

    #[test]
    fn a_difference_has_the_addresses_that_are_left() {
        for (range, removed, left) in [
            ("10.0.0.0/28", vec![], vec!["10.0.0.0/28"]),
            ("10.0.0.0/28", vec!["fd00::/64", "10.0.1.0/24"], vec!["10.0.0.0/28"]),
            ("10.0.0.0/28", vec!["10.0.0.0/24"], vec![]),
            ("10.0.0.0/28", vec!["10.0.0.0/30", "10.0.0.15/32"], vec!["10.0.0.4-10.0.0.14"]),
            (
                "10.0.0.0/28",
                vec!["10.0.0.6/31", "10.0.0.2-10.0.0.6", "10.0.0.3/32"],
                vec!["10.0.0.0/31", "10.0.0.8/29"],
            ),
            ("::/0", vec!["::/1"], vec!["8000::/1"]),
            ("::/0", vec!["8000::/1", "::1/128"], vec!["::", "::2-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]),
        ] {
            let removed: Vec<Span> = removed.into_iter().map(span).collect();
            let found: Vec<String> = span(range).without(&removed).iter().map(ToString::to_string).collect();
            assert_eq!(found, left, "{range} without {removed:?}");
        }
    }

    #[test]
    fn a_range_is_clipped_to_its_first_addresses() {
        assert_eq!(span("fd00::/64").clipped(4), span("fd00::/126"));
        assert_eq!(span("10.0.0.0/28").clipped(1 << 20), span("10.0.0.0/28"));
        assert_eq!(span("::/0").clipped(u128::MAX).first, span("::/0").first);
    }
}
