//! Kernel address families (IP families).

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// The family of an address, a prefix, a route or a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

impl IpFamily {
    /// Both families.
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// The family of a prefix.
    pub const fn of(prefix: &IpNet) -> IpFamily {
        match prefix {
            IpNet::V4(_) => IpFamily::V4,
            IpNet::V6(_) => IpFamily::V6,
        }
    }

    /// The family of an address.
    pub const fn of_address(address: &IpAddr) -> IpFamily {
        match address {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        })
    }
}
