//! Blocks of addresses: a prefix, a range, or a single address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

/// Addresses of one IP family: `10.0.0.0/24`, `10.0.0.5-10.0.0.9` or `10.0.0.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressBlock {
    /// Every address of a prefix. A single address is a prefix of full length.
    Prefix(IpNet),
    /// From the first address to the last, both included. Both have one family, and the first is
    /// not after the last.
    Range(IpAddr, IpAddr),
}

/// A text is not an [`AddressBlock`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressBlockError {
    /// Not a prefix, a range or an address.
    #[error(
        "`{0}` is not a block of addresses: write a prefix, a range or an address, such as 10.0.0.0/24, \
         10.0.0.5-10.0.0.9 or 10.0.0.5"
    )]
    NoBlock(String),
    /// Bits after the length of the prefix are set.
    #[error("{prefix} has host bits: write {}", .prefix.trunc())]
    HostBits {
        /// The prefix.
        prefix: IpNet,
    },
    /// An IPv6 address that stands for an IPv4 address.
    #[error("{0} is an IPv4-mapped IPv6 address: write the IPv4 address")]
    Mapped(IpAddr),
    /// The first address is IPv4 and the last IPv6, or the reverse.
    #[error("{first} and {last} are of different families: write a range of one family")]
    Families {
        /// First address of the range.
        first: IpAddr,
        /// Last address of the range.
        last: IpAddr,
    },
    /// The range ends before it starts.
    #[error("{first} is after {last}: write {last}-{first}")]
    Reversed {
        /// First address of the range.
        first: IpAddr,
        /// Last address of the range.
        last: IpAddr,
    },
}

impl AddressBlock {
    /// The first address.
    pub fn first(&self) -> IpAddr {
        match self {
            AddressBlock::Prefix(prefix) => prefix.network(),
            AddressBlock::Range(first, _) => *first,
        }
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        match self {
            AddressBlock::Prefix(prefix) => prefix.broadcast(),
            AddressBlock::Range(_, last) => *last,
        }
    }

    /// Whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.first().is_ipv4()
    }

    /// Whether the address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && (self.first()..=self.last()).contains(&address)
    }

    /// Whether both have an address in common.
    pub fn overlaps(&self, other: &AddressBlock) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.first() <= other.last() && other.first() <= self.last()
    }

    /// Whether every address of `other` is in it.
    pub fn covers(&self, other: &AddressBlock) -> bool {
        self.contains(other.first()) && self.contains(other.last())
    }

    /// The number of addresses; `u128::MAX` for every IPv6 address.
    pub fn count(&self) -> u128 {
        number(self.last()).saturating_sub(number(self.first())).saturating_add(1)
    }

    /// The fewest prefixes with exactly its addresses, in order.
    pub fn to_prefixes(&self) -> Vec<IpNet> {
        match *self {
            AddressBlock::Prefix(prefix) => vec![prefix],
            AddressBlock::Range(IpAddr::V4(first), IpAddr::V4(last)) => {
                Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
            }
            AddressBlock::Range(IpAddr::V6(first), IpAddr::V6(last)) => {
                Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
            }
            AddressBlock::Range(..) => Vec::new(),
        }
    }
}

impl From<IpNet> for AddressBlock {
    /// The block of a prefix, host bits cleared.
    fn from(prefix: IpNet) -> Self {
        AddressBlock::Prefix(prefix.trunc())
    }
}

impl From<IpAddr> for AddressBlock {
    fn from(address: IpAddr) -> Self {
        AddressBlock::Prefix(address.into())
    }
}

impl fmt::Display for AddressBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressBlock::Prefix(prefix) if prefix.prefix_len() == prefix.max_prefix_len() => {
                write!(f, "{}", prefix.addr())
            }
            AddressBlock::Prefix(prefix) => write!(f, "{prefix}"),
            AddressBlock::Range(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl FromStr for AddressBlock {
    type Err = AddressBlockError;

    fn from_str(text: &str) -> Result<Self, AddressBlockError> {
        let no_block = || AddressBlockError::NoBlock(text.to_owned());
        let address = |part: &str| part.parse::<IpAddr>().map_err(|_| no_block()).and_then(unmapped);
        if text.contains('/') {
            let prefix: IpNet = text.parse().map_err(|_| no_block())?;
            unmapped(prefix.addr())?;
            return if prefix == prefix.trunc() {
                Ok(AddressBlock::Prefix(prefix))
            } else {
                Err(AddressBlockError::HostBits { prefix })
            };
        }
        let Some((first, last)) = text.split_once('-') else { return Ok(address(text)?.into()) };
        let (first, last) = (address(first)?, address(last)?);
        if first.is_ipv4() != last.is_ipv4() {
            Err(AddressBlockError::Families { first, last })
        } else if first > last {
            Err(AddressBlockError::Reversed { first, last })
        } else {
            Ok(AddressBlock::Range(first, last))
        }
    }
}

fn unmapped(address: IpAddr) -> Result<IpAddr, AddressBlockError> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(AddressBlockError::Mapped(address)),
        address => Ok(address),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(text: &str) -> AddressBlock {
        text.parse().unwrap()
    }

    #[test]
    fn blocks_are_prefixes_ranges_and_addresses() {
        // (text, displayed, first, last, count)
        for (text, shown, first, last, count) in [
            ("10.0.0.0/24", "10.0.0.0/24", "10.0.0.0", "10.0.0.255", 256),
            ("10.0.0.5-10.0.0.9", "10.0.0.5-10.0.0.9", "10.0.0.5", "10.0.0.9", 5),
            ("10.0.0.5", "10.0.0.5", "10.0.0.5", "10.0.0.5", 1),
            ("10.0.0.5/32", "10.0.0.5", "10.0.0.5", "10.0.0.5", 1),
            ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0", "255.255.255.255", 1 << 32),
            ("FD00::/112", "fd00::/112", "fd00::", "fd00::ffff", 65536),
            ("fd00::1-fd00::1:0", "fd00::1-fd00::1:0", "fd00::1", "fd00::1:0", 65536),
            ("::/0", "::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", u128::MAX),
        ] {
            let block = block(text);
            let ends = (block.first().to_string(), block.last().to_string());
            assert_eq!((block.to_string().as_str(), block.count()), (shown, count));
            assert_eq!(ends, (first.to_owned(), last.to_owned()));
            assert_eq!(block.is_ipv4(), !text.contains(':'));
        }
    }

    #[test]
    fn errors_name_the_fix() {
        let no_block = "write a prefix, a range or an address";
        for (text, words) in [
            ("", no_block),
            ("web", no_block),
            ("10.0.0.0/33", no_block),
            ("10.0.0.1 - 10.0.0.2", no_block),
            ("10.0.0.1-", no_block),
            ("10.0.0.1-2", no_block),
            ("10.0.0.1-10.0.0.2-10.0.0.3", no_block),
            ("fe80::1%eth0", no_block),
            ("10.0.0.1/24", "has host bits: write 10.0.0.0/24"),
            ("10.0.0.1-fd00::1", "of different families"),
            ("10.0.0.9-10.0.0.5", "10.0.0.9 is after 10.0.0.5: write 10.0.0.5-10.0.0.9"),
            ("::ffff:10.0.0.1", "write the IPv4 address"),
            ("::ffff:10.0.0.0/120", "write the IPv4 address"),
        ] {
            let error = text.parse::<AddressBlock>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn blocks_of_different_families_have_nothing_in_common() {
        let (v4, v6) = (block("0.0.0.0/0"), block("::/0"));
        assert!(!v4.overlaps(&v6) && !v6.contains(v4.first()) && !v4.covers(&v6));
    }

    fn any_block() -> impl Strategy<Value = AddressBlock> {
        // A small space, in which blocks often touch.
        let address = |number: u8| IpAddr::from([10, 0, 0, number]);
        prop_oneof![
            (0..=255u8, 0..=255u8)
                .prop_map(move |(a, b)| AddressBlock::Range(address(a.min(b)), address(a.max(b)))),
            (0..=255u8, 24..=32u8)
                .prop_filter_map("a length", move |(a, length)| IpNet::new(address(a), length).ok())
                .prop_map(AddressBlock::from),
        ]
    }

    proptest! {
        #[test]
        fn relations_agree_with_the_addresses(one in any_block(), other in any_block()) {
            let all = || (0..=255u8).map(|number| IpAddr::from([10, 0, 0, number]));
            let both = all().any(|address| one.contains(address) && other.contains(address));
            prop_assert_eq!(one.overlaps(&other), both);
            prop_assert_eq!(one.covers(&other), all().all(|address| !other.contains(address) || one.contains(address)));
            prop_assert_eq!(one.count(), all().filter(|address| one.contains(*address)).count() as u128);
            let prefixes = one.to_prefixes();
            for address in all() {
                let holding = prefixes.iter().filter(|prefix| prefix.contains(&address)).count();
                prop_assert_eq!(holding, usize::from(one.contains(address)));
            }
            prop_assert_eq!(one.to_string().parse::<AddressBlock>().unwrap().to_prefixes(), prefixes);
        }
    }
}
