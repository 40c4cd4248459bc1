//! The addresses of one subnet: candidates, addresses in use, and the next one to allocate; no I/O.
//!
//! Candidates are start…end without the gateway, the excluded and the reserved addresses, and in
//! IPv4 without the network address and the broadcast address. The next address is the first free
//! candidate after the last allocated one, with wrap-around (hybridnet's round robin). So a
//! released address is reused as late as possible, and neighbours' caches and connection tables can
//! expire. A reserved address is allocated only by name.
//!
//! Two programs use this module: the agent of a host without Kubernetes, and the controller for a
//! whole cluster. Each records the holders of addresses in its own way.
//!
//! Two bitmaps cover start…end: the addresses in use, and those that are not available to
//! everybody. The second one has a summary with one bit for each full word. A search for the next
//! address reads at most one word, a summary of a sixty-fourth of the range, and one more word,
//! wherever the free addresses are. So a search costs the same in an empty and in a nearly full
//! /12. The few excluded or reserved addresses are kept in a sorted list. The bitmaps, the summary
//! and the list together take a quarter of an octet for each address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::resources::SubnetAccess;

/// Maximum span of a pool: a /12. (A subnet may have 65,536 candidates, hybridnet's bound; with its
/// excluded addresses it can span more.)
pub const MAX_SPAN: u128 = 1 << 20;

/// Specification of a subnet's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The subnet's name.
    pub subnet: String,
    /// Its network's name.
    pub network: String,
    /// The whole prefix.
    pub cidr: IpNet,
    /// First address of the range; the prefix's first if none.
    pub start: Option<IpAddr>,
    /// Last address of the range; the prefix's last if none.
    pub end: Option<IpAddr>,
    /// Never allocated.
    pub gateway: Option<IpAddr>,
    /// Allocated only by name.
    pub reserved: Vec<IpAddr>,
    /// Never allocated.
    pub excluded: Vec<IpAddr>,
    /// Used only if the subnet is named.
    pub private: bool,
    /// The pods that get new addresses.
    pub access: SubnetAccess,
}

/// Usage of a subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocatable addresses, including those only by name.
    pub total: u32,
    /// Allocated addresses, including those only by name.
    pub used: u32,
    /// Addresses that can be allocated without a name.
    pub open: u32,
    /// The free addresses among [`Counts::open`].
    pub free: u32,
}

/// The reason why a named address is not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Outside start…end.
    OutOfRange,
    /// The gateway, an excluded address, the IPv4 network or broadcast address.
    Excluded,
    /// It is in use.
    InUse,
}

/// An invalid specification of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The range is outside the prefix.
    #[error("subnet {subnet}: range {start} to {end} is not inside {cidr}")]
    Outside {
        /// The subnet's name.
        subnet: String,
        /// First address of the range.
        start: IpAddr,
        /// Last address of the range.
        end: IpAddr,
        /// The whole prefix.
        cidr: IpNet,
    },
    /// The range ends before it starts.
    #[error("subnet {subnet}: start {start} is after end {end}")]
    Reversed {
        /// The subnet's name.
        subnet: String,
        /// First address of the range.
        start: IpAddr,
        /// Last address of the range.
        end: IpAddr,
    },
    /// The range is larger than [`MAX_SPAN`].
    #[error("subnet {subnet}: spans {span} addresses, at most {MAX_SPAN} are managed: set start and end")]
    TooLarge {
        /// The subnet's name.
        subnet: String,
        /// The number of addresses.
        span: u128,
    },
}

/// The addresses of one subnet.
#[derive(Clone, Debug)]
pub struct Pool {
    spec: PoolSpec,
    first: u128,
    span: u32,
    /// Never allocated; sorted.
    excluded: Vec<u32>,
    /// Never allocated, or only by name; sorted.
    held_back: Vec<u32>,
    used: Bits,
    /// Held back or used: the bitmap for the search.
    taken: Bits,
    /// The full words of `taken`.
    full: Bits,
    last: Option<u32>,
}

impl Pool {
    /// The pool of a subnet, without allocated addresses.
    ///
    /// # Errors
    /// The range is invalid. The resources' validation checks range and prefix before.
    pub fn new(spec: PoolSpec) -> Result<Pool, PoolError> {
        let subnet = || spec.subnet.clone();
        let start = spec.start.unwrap_or_else(|| spec.cidr.network());
        let end = spec.end.unwrap_or_else(|| spec.cidr.broadcast());
        if !spec.cidr.contains(&start) || !spec.cidr.contains(&end) {
            return Err(PoolError::Outside { subnet: subnet(), start, end, cidr: spec.cidr });
        }
        let (first, last) = (number(start), number(end));
        if first > last {
            return Err(PoolError::Reversed { subnet: subnet(), start, end });
        }
        let span = last - first + 1;
        if span > MAX_SPAN {
            return Err(PoolError::TooLarge { subnet: subnet(), span });
        }
        let span = span as u32;
        let mut pool = Pool {
            excluded: Vec::new(),
            held_back: Vec::new(),
            used: Bits::new(span),
            taken: Bits::new(span),
            full: Bits::new(span.div_ceil(WORD)),
            last: None,
            first,
            span,
            spec,
        };
        let mut never: Vec<IpAddr> = pool.spec.excluded.clone();
        never.extend(pool.spec.gateway);
        if let IpNet::V4(cidr) = pool.spec.cidr
            && cidr.prefix_len() < 31
        {
            never.extend([IpAddr::V4(cidr.network()), IpAddr::V4(cidr.broadcast())]);
        }
        if let IpNet::V6(cidr) = pool.spec.cidr
            && cidr.prefix_len() < 127
        {
            // The subnet-router anycast address (RFC 4291 §2.6.1).
            never.push(IpAddr::V6(cidr.network()));
        }
        let indices = |addresses: &[IpAddr]| -> Vec<u32> {
            addresses.iter().filter_map(|address| pool.index(*address)).collect()
        };
        let mut excluded = indices(&never);
        let mut held_back = indices(&pool.spec.reserved);
        held_back.extend(&excluded);
        for set in [&mut excluded, &mut held_back] {
            set.sort_unstable();
            set.dedup();
            set.shrink_to_fit();
        }
        held_back.iter().for_each(|index| pool.mark_taken(*index));
        // Bits beyond the range in its last word are never free.
        (span..span.next_multiple_of(WORD)).for_each(|index| pool.mark_taken(index));
        pool.excluded = excluded;
        pool.held_back = held_back;
        Ok(pool)
    }

    /// The specification.
    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// Whether it is an IPv4 subnet.
    pub fn is_v4(&self) -> bool {
        matches!(self.spec.cidr, IpNet::V4(_))
    }

    /// The current usage.
    pub fn counts(&self) -> Counts {
        let behind = self.span.next_multiple_of(WORD) - self.span;
        Counts {
            total: self.span - self.excluded.len() as u32,
            used: self.used.count,
            open: self.span - self.held_back.len() as u32,
            free: self.span + behind - self.taken.count,
        }
    }

    /// First and last address of the range.
    pub fn range(&self) -> (IpAddr, IpAddr) {
        (self.address(0), self.address(self.span - 1))
    }

    /// Allocates the next free address.
    pub fn take_next(&mut self) -> Option<IpAddr> {
        let from = self.last.map_or(0, |last| (last + 1) % self.span);
        let index = self.next_free(from).or_else(|| self.next_free(0))?;
        self.occupy(index);
        self.last = Some(index);
        Some(self.address(index))
    }

    /// Allocates a named address, which may be a reserved one.
    pub fn take(&mut self, address: IpAddr) -> Result<(), Unavailable> {
        let index = self.index(address).ok_or(Unavailable::OutOfRange)?;
        if self.excluded.binary_search(&index).is_ok() {
            return Err(Unavailable::Excluded);
        }
        if self.used.get(index) {
            return Err(Unavailable::InUse);
        }
        self.occupy(index);
        Ok(())
    }

    /// Marks the address of a record as in use, even if the present range does not allow it.
    pub fn restore(&mut self, address: IpAddr) {
        if let Some(index) = self.index(address) {
            self.occupy(index);
        }
    }

    /// Releases an address. No effect on an address that is not in use.
    pub fn release(&mut self, address: IpAddr) {
        if let Some(index) = self.index(address)
            && self.used.get(index)
        {
            self.used.clear(index);
            if self.held_back.binary_search(&index).is_err() {
                self.taken.clear(index);
                self.full.clear(index / WORD);
            }
        }
    }

    /// The last address allocated by round robin.
    pub fn last(&self) -> Option<IpAddr> {
        self.last.map(|index| self.address(index))
    }

    /// Continues after this address. If it is outside the range, continues from the beginning.
    pub fn set_last(&mut self, address: Option<IpAddr>) {
        self.last = address.and_then(|address| self.index(address));
    }

    /// The first address available to everybody at or after an index.
    fn next_free(&self, from: u32) -> Option<u32> {
        let word = from / WORD;
        self.taken.first_clear(word, from % WORD).or_else(|| {
            let next = word + 1;
            let mut summary = next / WORD;
            let mut low = next % WORD;
            while (summary as usize) < self.full.words.len() {
                if let Some(word) = self.full.first_clear(summary, low) {
                    return (word < self.taken.words.len() as u32)
                        .then(|| self.taken.first_clear(word, 0))
                        .flatten();
                }
                summary += 1;
                low = 0;
            }
            None
        })
    }

    fn occupy(&mut self, index: u32) {
        self.used.set(index);
        self.mark_taken(index);
    }

    fn mark_taken(&mut self, index: u32) {
        self.taken.set(index);
        if self.taken.words[(index / WORD) as usize] == u64::MAX {
            self.full.set(index / WORD);
        }
    }

    /// The index of an address in the range.
    pub fn index(&self, address: IpAddr) -> Option<u32> {
        if address.is_ipv4() != self.spec.cidr.addr().is_ipv4() {
            return None;
        }
        let index = number(address).checked_sub(self.first)?;
        (index < u128::from(self.span)).then_some(index as u32)
    }

    /// The address at an index of the range.
    pub fn address(&self, index: u32) -> IpAddr {
        let number = self.first + u128::from(index);
        match self.spec.cidr {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(number as u32)),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Number of indices in a word.
const WORD: u32 = u64::BITS;

/// A set of indices, in words.
#[derive(Clone, Debug)]
struct Bits {
    words: Box<[u64]>,
    count: u32,
}

impl Bits {
    fn new(span: u32) -> Bits {
        Bits { words: vec![0; span.div_ceil(WORD) as usize].into_boxed_slice(), count: 0 }
    }

    fn get(&self, index: u32) -> bool {
        self.words[(index / WORD) as usize] & (1 << (index % WORD)) != 0
    }

    fn set(&mut self, index: u32) {
        self.count += u32::from(!self.get(index));
        self.words[(index / WORD) as usize] |= 1 << (index % WORD);
    }

    fn clear(&mut self, index: u32) {
        self.count -= u32::from(self.get(index));
        self.words[(index / WORD) as usize] &= !(1 << (index % WORD));
    }

    /// The first index of a word, from bit `low` on, that is not in the set.
    fn first_clear(&self, word: u32, low: u32) -> Option<u32> {
        let free = !self.words[word as usize] & (u64::MAX << low);
        (free != 0).then(|| word * WORD + free.trailing_zeros())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn spec(cidr: &str) -> PoolSpec {
        PoolSpec {
            subnet: "s".to_owned(),
            network: "n".to_owned(),
            cidr: cidr.parse().unwrap(),
            start: None,
            end: None,
            gateway: None,
            reserved: Vec::new(),
            excluded: Vec::new(),
            private: false,
            access: SubnetAccess::default(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn drain(pool: &mut Pool) -> Vec<String> {
        std::iter::from_fn(|| pool.take_next()).map(|address| address.to_string()).collect()
    }

    #[test]
    fn candidates_exclude_unavailable_addresses() {
        let mut pool = Pool::new(PoolSpec {
            gateway: Some(ip("10.0.0.1")),
            reserved: vec![ip("10.0.0.3")],
            excluded: vec![ip("10.0.0.4"), ip("192.0.2.1")],
            ..spec("10.0.0.0/29")
        })
        .unwrap();
        assert_eq!(pool.counts(), Counts { total: 4, used: 0, open: 3, free: 3 });
        assert_eq!(drain(&mut pool), ["10.0.0.2", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(pool.counts(), Counts { total: 4, used: 3, open: 3, free: 0 });
        pool.take(ip("10.0.0.3")).unwrap();
        assert_eq!(pool.counts(), Counts { total: 4, used: 4, open: 3, free: 0 });
        pool.release(ip("10.0.0.3"));
        assert_eq!(pool.take_next(), None, "a released reserved address is reserved again");
    }

    #[test]
    fn a_named_address_is_allocated_or_has_a_reason() {
        let mut pool = Pool::new(PoolSpec {
            start: Some(ip("10.0.0.8")),
            end: Some(ip("10.0.0.15")),
            excluded: vec![ip("10.0.0.9")],
            ..spec("10.0.0.0/24")
        })
        .unwrap();
        for (address, outcome) in [
            ("10.0.0.8", Ok(())),
            ("10.0.0.8", Err(Unavailable::InUse)),
            ("10.0.0.9", Err(Unavailable::Excluded)),
            ("10.0.0.7", Err(Unavailable::OutOfRange)),
            ("10.0.0.16", Err(Unavailable::OutOfRange)),
            ("2001:db8::8", Err(Unavailable::OutOfRange)),
            ("::a00:f", Err(Unavailable::OutOfRange)),
        ] {
            assert_eq!(pool.take(ip(address)), outcome, "{address}");
        }
    }

    #[test]
    fn round_robin_continues_after_the_last_address_and_wraps() {
        let mut pool = Pool::new(PoolSpec {
            start: Some(ip("10.0.0.1")),
            end: Some(ip("10.0.0.4")),
            ..spec("10.0.0.0/24")
        })
        .unwrap();
        assert_eq!(pool.take_next(), Some(ip("10.0.0.1")));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.2")));
        pool.release(ip("10.0.0.1"));
        pool.release(ip("10.0.0.2"));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.3")), "a released address is reused last");
        pool.take(ip("10.0.0.1")).unwrap();
        assert_eq!(pool.last(), Some(ip("10.0.0.3")), "a named address does not move the round robin");
        assert_eq!(pool.take_next(), Some(ip("10.0.0.4")));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.2")));
        pool.set_last(Some(ip("192.0.2.1")));
        pool.release(ip("10.0.0.1"));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.1")), "a foreign cursor starts from the beginning");
    }

    #[test]
    fn ipv6_and_point_to_point_prefixes() {
        let mut pool = Pool::new(PoolSpec {
            end: Some(ip("2001:db8::3")),
            gateway: Some(ip("2001:db8::1")),
            ..spec("2001:db8::/64")
        })
        .unwrap();
        assert_eq!(drain(&mut pool), ["2001:db8::2", "2001:db8::3"]);
        assert_eq!(drain(&mut Pool::new(spec("10.0.0.0/31")).unwrap()), ["10.0.0.0", "10.0.0.1"]);
    }

    #[test]
    fn the_last_free_address_of_a_large_range_is_found() {
        let mut pool = Pool::new(PoolSpec {
            start: Some(ip("10.16.0.1")),
            end: Some(ip("10.16.78.32")),
            ..spec("10.16.0.0/12")
        })
        .unwrap();
        let all = 20_000;
        assert_eq!(drain(&mut pool).len(), all);
        for index in [0, 63, 64, 4095, 4096, 8191, 12_345, all as u32 - 1] {
            for cursor in [0, 62, 63, 4094, 4095, 8190, 12_344, 12_345, 19_998, 19_999] {
                let free = pool.address(index);
                pool.release(free);
                pool.set_last(Some(pool.address(cursor)));
                assert_eq!(pool.take_next(), Some(free), "after {cursor}");
                assert_eq!(pool.take_next(), None);
            }
        }
    }

    #[test]
    fn an_invalid_pool_has_an_error() {
        for (spec, reason) in [
            (PoolSpec { start: Some(ip("10.1.0.1")), ..spec("10.0.0.0/24") }, "not inside"),
            (
                PoolSpec { start: Some(ip("10.0.0.9")), end: Some(ip("10.0.0.8")), ..spec("10.0.0.0/24") },
                "after end",
            ),
            (spec("2001:db8::/64"), "set start and end"),
        ] {
            assert!(Pool::new(spec).unwrap_err().to_string().contains(reason));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Next,
        Named(u8),
        Release(u8),
        Restart,
    }

    proptest! {
        /// Compares the pool with a set and a linear search, over random sequences of steps.
        #[test]
        fn a_pool_is_a_set_with_a_cursor(
            reserved in prop::collection::btree_set(0u8..=255, 0..8),
            excluded in prop::collection::btree_set(0u8..=255, 0..8),
            range in (0u8..=255, 0u8..=255),
            steps in prop::collection::vec(
                prop_oneof![
                    4 => Just(Step::Next),
                    2 => any::<u8>().prop_map(Step::Named),
                    2 => any::<u8>().prop_map(Step::Release),
                    1 => Just(Step::Restart),
                ],
                0..400,
            ),
        ) {
            let address = |host: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
            let (low, high) = (range.0.min(range.1), range.0.max(range.1));
            let build = || Pool::new(PoolSpec {
                start: Some(address(low)),
                end: Some(address(high)),
                reserved: reserved.iter().copied().map(address).collect(),
                excluded: excluded.iter().copied().map(address).collect(),
                ..spec("10.0.0.0/24")
            }).unwrap();
            let mut pool = build();
            let never = |host: u8| excluded.contains(&host) || host == 0 || host == 255;
            let mut used = BTreeSet::new();
            let mut last: Option<u8> = None;
            for step in steps {
                match step {
                    Step::Next => {
                        let after = last.map_or(low, |last| if last == high { low } else { last + 1 });
                        let expected = (after..=high)
                            .chain(low..after)
                            .find(|host| !never(*host) && !reserved.contains(host) && !used.contains(host));
                        prop_assert_eq!(pool.take_next(), expected.map(address));
                        used.extend(expected);
                        last = expected.or(last);
                    }
                    Step::Named(host) => {
                        let free = (low..=high).contains(&host) && !never(host) && !used.contains(&host);
                        prop_assert_eq!(pool.take(address(host)).is_ok(), free);
                        if free {
                            used.insert(host);
                        }
                    }
                    Step::Release(host) => {
                        pool.release(address(host));
                        used.remove(&host);
                    }
                    Step::Restart => {
                        let cursor = pool.last();
                        pool = build();
                        used.iter().for_each(|host| pool.restore(address(*host)));
                        pool.set_last(cursor);
                    }
                }
                prop_assert_eq!(pool.counts().used as usize, used.len());
                let free = (low..=high)
                    .filter(|host| !never(*host) && !reserved.contains(host) && !used.contains(host))
                    .count();
                prop_assert_eq!(pool.counts().free as usize, free);
            }
        }
    }
}
