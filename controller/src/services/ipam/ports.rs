//! The ports of a Service, sorted, so that two Services are compared in linear time: up to
//! [`MAX_SHARING`](super::MAX_SHARING) Services share an address, and each has up to 4,096 ports
//! ([`MAX_SERVICE_PORTS`](trunkline_api::kept::MAX_SERVICE_PORTS)).

use std::cmp::Ordering;
use std::sync::Arc;

use trunkline_api::service::PortKey;

/// The ports of a Service in ascending order, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedPorts(Arc<[PortKey]>);

impl Default for SortedPorts {
    fn default() -> Self {
        SortedPorts([].into())
    }
}

impl FromIterator<PortKey> for SortedPorts {
    fn from_iter<T: IntoIterator<Item = PortKey>>(ports: T) -> Self {
        let mut ports: Vec<PortKey> = ports.into_iter().collect();
        ports.sort_unstable();
        ports.dedup();
        SortedPorts(ports.into())
    }
}

impl SortedPorts {
    /// The ports.
    pub fn as_slice(&self) -> &[PortKey] {
        &self.0
    }

    /// The lowest port that both Services have.
    pub fn first_common(&self, other: &SortedPorts) -> Option<PortKey> {
        first_common(&self.0, &other.0).copied()
    }
}

/// The lowest element of two ascending lists that is in both. The number of comparisons is at most
/// the sum of their lengths.
fn first_common<'a, T: Ord>(mut one: &'a [T], mut other: &[T]) -> Option<&'a T> {
    while let ([first, rest @ ..], [other_first, other_rest @ ..]) = (one, other) {
        match first.cmp(other_first) {
            Ordering::Less => one = rest,
            Ordering::Equal => return Some(first),
            Ordering::Greater => other = other_rest,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use trunkline_api::service::Protocol;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A number that counts its comparisons.
    #[derive(Clone, Debug)]
    struct Counted(usize);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }
    impl Eq for Counted {}
    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    #[test]
    fn ports_of_two_services_are_compared_in_linear_time() {
        const PORTS: usize = 4096;
        let even: Vec<_> = (0..PORTS).map(|number| Counted(2 * number)).collect();
        let odd: Vec<_> = (0..PORTS).map(|number| Counted(2 * number + 1)).collect();
        assert_eq!(first_common(&even, &odd), None);
        let comparisons = COMPARISONS.get();
        assert!(comparisons <= 2 * PORTS, "{comparisons} comparisons");
    }

    #[test]
    fn the_lowest_common_port_is_found() {
        let port = |port| PortKey { protocol: Protocol::Tcp, port };
        let ports = |all: &[u16]| all.iter().copied().map(port).collect::<SortedPorts>();
        for (one, other, common) in [
            (&[][..], &[80][..], None),
            (&[80], &[], None),
            (&[443, 80], &[81, 8080], None),
            (&[443, 80, 80], &[8080, 443, 80], Some(80)),
            (&[1, 2, 3], &[3], Some(3)),
        ] {
            assert_eq!(ports(one).first_common(&ports(other)), common.map(port), "{one:?} {other:?}");
        }
        assert_eq!(ports(&[443, 80, 443]), ports(&[80, 443]));
        let udp = PortKey { protocol: Protocol::Udp, port: 80 };
        assert_eq!(ports(&[80]).first_common(&[udp].into_iter().collect()), None);
    }
}
