//! The families of routes, in BGP's terms and in the kernel's.

use trunkline_bgp::types::Family;
use trunkline_datapath::family::IpFamily;

/// The kernel's family for a family of BGP.
pub const fn ip_family(family: Family) -> IpFamily {
    match family {
        Family::Ipv4Unicast => IpFamily::V4,
        Family::Ipv6Unicast => IpFamily::V6,
    }
}
