//! The addresses of one subnet: which may be given out, which are, and which comes next.
//!
//! Candidates are start…end without the gateway, the excluded and the reserved addresses, and in IPv4 without the
//! network's own and the broadcast address. The next one is the first free candidate after the last one given,
//! wrapping (hybridnet's round robin): an address that was just returned is the last to come back, so that
//! neighbours' caches and connection tables have time to forget its previous owner. A reserved address is given
//! only to who names it.
//!
//! Two bitmaps over start…end, one for what may not be given freely and one for what is in use: finding the next
//! address reads words, not addresses, and costs the same in an empty and in a nearly full subnet of 65,536.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Most addresses that one subnet may span (hybridnet's bound).
pub const MAX_SPAN: u128 = 65_536;

/// What a subnet says of its addresses.
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
    /// Never given.
    pub gateway: Option<IpAddr>,
    /// Given only to who names them.
    pub reserved: Vec<IpAddr>,
    /// Never given.
    pub excluded: Vec<IpAddr>,
    /// Used only by who names the subnet.
    pub private: bool,
}

/// How full a subnet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses that can be given out, named ones included.
    pub total: u32,
    /// Given out.
    pub used: u32,
    /// Can still be given to who names none.
    pub free: u32,
}

/// Why a named address is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Outside start…end.
    OutOfRange,
    /// The gateway, an excluded address, the IPv4 network or broadcast address.
    Excluded,
    /// Somebody has it.
    InUse,
}

/// The addresses of one subnet.
#[derive(Clone, Debug)]
pub struct Pool {
    spec: PoolSpec,
    first: u128,
    span: u32,
    /// Never given.
    excluded: Bits,
    /// Never given, or only to who names it.
    held_back: Bits,
    used: Bits,
    /// Held back or used: what the search for a free one reads.
    taken: Bits,
    last: Option<u32>,
}

impl Pool {
    /// The pool of a subnet, nothing given out. Range and prefix are checked by the resources' validation; what
    /// cannot be a pool all the same is an error in words.
    pub fn new(spec: PoolSpec) -> Result<Pool, String> {
        let wrong = |message: String| format!("subnet {}: {message}", spec.subnet);
        let start = spec.start.unwrap_or_else(|| spec.cidr.network());
        let end = spec.end.unwrap_or_else(|| spec.cidr.broadcast());
        if !spec.cidr.contains(&start) || !spec.cidr.contains(&end) {
            return Err(wrong(format!("range {start} to {end} is not inside {}", spec.cidr)));
        }
        let (first, last) = (number(start), number(end));
        if first > last {
            return Err(wrong(format!("start {start} is after end {end}")));
        }
        let span = last - first + 1;
        if span > MAX_SPAN {
            return Err(wrong(format!(
                "spans {span} addresses, at most {MAX_SPAN} are managed: set start and end"
            )));
        }
        let span = span as u32;
        let mut pool = Pool {
            excluded: Bits::new(span),
            held_back: Bits::new(span),
            used: Bits::new(span),
            taken: Bits::new(span),
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
        for address in never {
            if let Some(index) = pool.index(address) {
                pool.excluded.set(index);
                pool.held_back.set(index);
                pool.taken.set(index);
            }
        }
        for address in pool.spec.reserved.clone() {
            if let Some(index) = pool.index(address) {
                pool.held_back.set(index);
                pool.taken.set(index);
            }
        }
        Ok(pool)
    }

    /// What the subnet says.
    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// Whether it is an IPv4 subnet.
    pub fn is_v4(&self) -> bool {
        matches!(self.spec.cidr, IpNet::V4(_))
    }

    /// How full it is.
    pub fn counts(&self) -> Counts {
        Counts {
            total: self.span - self.excluded.count,
            used: self.used.count,
            free: self.span - self.taken.count,
        }
    }

    /// Gives the next free address.
    pub fn take_next(&mut self) -> Option<IpAddr> {
        let from = self.last.map_or(0, |last| (last + 1) % self.span);
        let index = self.taken.first_clear(from, self.span).or_else(|| self.taken.first_clear(0, from))?;
        self.occupy(index);
        self.last = Some(index);
        Some(self.address(index))
    }

    /// Gives the address that was named; a reserved one too.
    pub fn take(&mut self, address: IpAddr) -> Result<(), Unavailable> {
        let index = self.index(address).ok_or(Unavailable::OutOfRange)?;
        if self.excluded.get(index) {
            return Err(Unavailable::Excluded);
        }
        if self.used.get(index) {
            return Err(Unavailable::InUse);
        }
        self.occupy(index);
        Ok(())
    }

    /// Marks an address that a record says is in use, whether or not the range of today would give it.
    pub fn restore(&mut self, address: IpAddr) {
        if let Some(index) = self.index(address) {
            self.occupy(index);
        }
    }

    /// Takes an address back. One that is not in use is left as it is.
    pub fn release(&mut self, address: IpAddr) {
        if let Some(index) = self.index(address)
            && self.used.get(index)
        {
            self.used.clear(index);
            if !self.held_back.get(index) {
                self.taken.clear(index);
            }
        }
    }

    /// The last address that the round robin gave.
    pub fn last(&self) -> Option<IpAddr> {
        self.last.map(|index| self.address(index))
    }

    /// Goes on after this address; one outside the range starts from the beginning.
    pub fn set_last(&mut self, address: Option<IpAddr>) {
        self.last = address.and_then(|address| self.index(address));
    }

    fn occupy(&mut self, index: u32) {
        self.used.set(index);
        self.taken.set(index);
    }

    fn index(&self, address: IpAddr) -> Option<u32> {
        if address.is_ipv4() != self.spec.cidr.addr().is_ipv4() {
            return None;
        }
        let index = number(address).checked_sub(self.first)?;
        (index < u128::from(self.span)).then_some(index as u32)
    }

    fn address(&self, index: u32) -> IpAddr {
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

/// A set of indices below a bound.
#[derive(Clone, Debug)]
struct Bits {
    words: Vec<u64>,
    count: u32,
}

impl Bits {
    fn new(span: u32) -> Bits {
        Bits { words: vec![0; span.div_ceil(64) as usize], count: 0 }
    }

    fn get(&self, index: u32) -> bool {
        self.words[index as usize / 64] & (1 << (index % 64)) != 0
    }

    fn set(&mut self, index: u32) {
        self.count += u32::from(!self.get(index));
        self.words[index as usize / 64] |= 1 << (index % 64);
    }

    fn clear(&mut self, index: u32) {
        self.count -= u32::from(self.get(index));
        self.words[index as usize / 64] &= !(1 << (index % 64));
    }

    /// The first index in from..to that is not in the set.
    fn first_clear(&self, from: u32, to: u32) -> Option<u32> {
        let mut index = from;
        while index < to {
            let free = !self.words[index as usize / 64] >> (index % 64);
            if free != 0 {
                let found = index + free.trailing_zeros();
                return (found < to).then_some(found);
            }
            index = (index / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
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
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn drain(pool: &mut Pool) -> Vec<String> {
        std::iter::from_fn(|| pool.take_next()).map(|address| address.to_string()).collect()
    }

    #[test]
    fn candidates_leave_out_what_nobody_may_have() {
        let mut pool = Pool::new(PoolSpec {
            gateway: Some(ip("10.0.0.1")),
            reserved: vec![ip("10.0.0.3")],
            excluded: vec![ip("10.0.0.4"), ip("192.0.2.1")],
            ..spec("10.0.0.0/29")
        })
        .unwrap();
        assert_eq!(pool.counts(), Counts { total: 4, used: 0, free: 3 });
        assert_eq!(drain(&mut pool), ["10.0.0.2", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(pool.counts(), Counts { total: 4, used: 3, free: 0 });
        pool.take(ip("10.0.0.3")).unwrap();
        assert_eq!(pool.counts(), Counts { total: 4, used: 4, free: 0 });
        pool.release(ip("10.0.0.3"));
        assert_eq!(pool.take_next(), None, "a reserved address goes back to being reserved");
    }

    #[test]
    fn a_named_address_is_given_or_the_reason_said() {
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
    fn the_round_robin_goes_on_after_the_last_one_given_and_wraps() {
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
        assert_eq!(pool.take_next(), Some(ip("10.0.0.3")), "what was just returned is the last to come back");
        pool.take(ip("10.0.0.1")).unwrap();
        assert_eq!(pool.last(), Some(ip("10.0.0.3")), "a named address does not move the round robin");
        assert_eq!(pool.take_next(), Some(ip("10.0.0.4")));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.2")));
        pool.set_last(Some(ip("192.0.2.1")));
        pool.release(ip("10.0.0.1"));
        assert_eq!(pool.take_next(), Some(ip("10.0.0.1")), "a cursor from elsewhere starts over");
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
    fn what_cannot_be_a_pool_says_why() {
        for (spec, reason) in [
            (PoolSpec { start: Some(ip("10.1.0.1")), ..spec("10.0.0.0/24") }, "not inside"),
            (
                PoolSpec { start: Some(ip("10.0.0.9")), end: Some(ip("10.0.0.8")), ..spec("10.0.0.0/24") },
                "after end",
            ),
            (spec("2001:db8::/64"), "set start and end"),
        ] {
            assert!(Pool::new(spec).unwrap_err().contains(reason));
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
        /// Against a set that is searched one address at a time, over any sequence of steps.
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
