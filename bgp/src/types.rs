//! The small types that every module uses: AS numbers, address families, prefixes.
//!
//! Tables are generic over [`AddressFamily`]. So an IPv4 row takes the memory of an IPv4 prefix,
//! and no code matches on the AFI repeatedly. [`Family`] is the value form for configuration,
//! capabilities and events.

mod extended_community;
mod peer_key;
mod tag;

use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub use extended_community::{ExtendedCommunity, LinkBandwidth};
pub use peer_key::{InterfaceName, InterfaceNameError, PeerKey, PeerKeyError};
pub use tag::{Tag, Tags, TooManyTags};

/// The role of this side of an external session (RFC 9234 §4.1), with its number in the capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The other side buys transit from this one.
    Provider = 0,
    /// This side is a route server.
    RouteServer = 1,
    /// This side is a client of a route server.
    RouteServerClient = 2,
    /// This side buys transit from the other one.
    Customer = 3,
    /// The two sides exchange their own and their customers' routes.
    Peer = 4,
}

impl Role {
    /// All roles, by number.
    pub const ALL: [Role; 5] =
        [Role::Provider, Role::RouteServer, Role::RouteServerClient, Role::Customer, Role::Peer];

    /// The role that the other side must have (RFC 9234 §4.2).
    pub fn counterpart(self) -> Role {
        match self {
            Role::Provider => Role::Customer,
            Role::RouteServer => Role::RouteServerClient,
            Role::RouteServerClient => Role::RouteServer,
            Role::Customer => Role::Provider,
            Role::Peer => Role::Peer,
        }
    }

    /// Whether routes advertised to the other side may then go to customers only (RFC 9234 §5).
    pub(crate) fn adds_otc_on_egress(self) -> bool {
        matches!(self, Role::Provider | Role::RouteServer | Role::Peer)
    }

    /// Whether routes received from the other side may be advertised to customers only.
    pub(crate) fn adds_otc_on_ingress(self) -> bool {
        matches!(self, Role::Customer | Role::RouteServerClient | Role::Peer)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Provider => "provider",
            Role::RouteServer => "rs",
            Role::RouteServerClient => "rs-client",
            Role::Customer => "customer",
            Role::Peer => "peer",
        })
    }
}

/// A four-octet autonomous system number (RFC 6793).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asn(pub u32);

impl Asn {
    /// AS_TRANS: replaces a larger number in two-octet fields (RFC 6793 §9).
    pub const TRANS: Asn = Asn(23456);

    /// Whether the number is for private use (RFC 6996): 64512 to 65534, 4200000000 to 4294967294.
    pub fn is_private(self) -> bool {
        matches!(self.0, 64512..=65534 | 4_200_000_000..=4_294_967_294)
    }

    /// The number in a two-octet field; AS_TRANS if it is larger.
    pub fn two_octet(self) -> u16 {
        u16::try_from(self.0).unwrap_or(Self::TRANS.0 as u16)
    }
}

impl fmt::Display for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Asn {
    fn from(value: u32) -> Self {
        Asn(value)
    }
}

/// A peer: its index in the speaker's tables, stable until the peer is removed, then reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl PeerId {
    /// Used as the peer of paths that this speaker originates. Not a peer: every peer's id is
    /// smaller.
    pub const LOCAL: PeerId = PeerId(0x00ff_ffff);
}

/// An address family that this speaker carries: AFI and SAFI (RFC 4760).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// AFI 1, SAFI 1.
    Ipv4Unicast,
    /// AFI 2, SAFI 1.
    Ipv6Unicast,
}

impl Family {
    /// Every family, in the order of [`Family::index`].
    pub const ALL: [Family; 2] = [Family::Ipv4Unicast, Family::Ipv6Unicast];

    /// The Address Family Identifier.
    pub const fn afi(self) -> u16 {
        match self {
            Family::Ipv4Unicast => 1,
            Family::Ipv6Unicast => 2,
        }
    }

    /// The Subsequent Address Family Identifier.
    pub const fn safi(self) -> u8 {
        1
    }

    /// The family of an AFI and SAFI; none if this speaker does not carry it.
    pub const fn from_afi_safi(afi: u16, safi: u8) -> Option<Family> {
        match (afi, safi) {
            (1, 1) => Some(Family::Ipv4Unicast),
            (2, 1) => Some(Family::Ipv6Unicast),
            _ => None,
        }
    }

    /// The family of a prefix.
    pub const fn of(prefix: &IpNet) -> Family {
        match prefix {
            IpNet::V4(_) => Family::Ipv4Unicast,
            IpNet::V6(_) => Family::Ipv6Unicast,
        }
    }

    /// The family's index in arrays with one entry per family.
    pub const fn index(self) -> usize {
        match self {
            Family::Ipv4Unicast => 0,
            Family::Ipv6Unicast => 1,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4Unicast => "ipv4-unicast",
            Family::Ipv6Unicast => "ipv6-unicast",
        })
    }
}

/// A set of families, small enough to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FamilySet(u8);

impl FamilySet {
    /// No family.
    pub const EMPTY: FamilySet = FamilySet(0);
    /// Every family that this speaker carries.
    pub const ALL: FamilySet = FamilySet(0b11);

    /// Adds a family.
    pub fn insert(&mut self, family: Family) {
        self.0 |= 1 << family.index();
    }

    /// Removes a family.
    pub fn remove(&mut self, family: Family) {
        self.0 &= !(1 << family.index());
    }

    /// Whether the family is in the set.
    pub const fn contains(self, family: Family) -> bool {
        self.0 & (1 << family.index()) != 0
    }

    /// The families in both sets.
    #[must_use]
    pub const fn intersection(self, other: FamilySet) -> FamilySet {
        FamilySet(self.0 & other.0)
    }

    /// The families in either set.
    #[must_use]
    pub const fn union(self, other: FamilySet) -> FamilySet {
        FamilySet(self.0 | other.0)
    }

    /// The families in this set but not in `other`.
    #[must_use]
    pub const fn difference(self, other: FamilySet) -> FamilySet {
        FamilySet(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The families, in the order of [`Family::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(move |family| self.contains(*family))
    }
}

impl FromIterator<Family> for FamilySet {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let mut set = FamilySet::EMPTY;
        families.into_iter().for_each(|family| set.insert(family));
        set
    }
}

/// An address family at the type level, the parameter of a routing table.
pub trait AddressFamily: Copy + fmt::Debug + Default + Send + Sync + 'static {
    /// The prefix of this family; host bits are always zero.
    type Prefix: Copy + Eq + Ord + Hash + fmt::Debug + fmt::Display + Into<IpNet> + Send + Sync + 'static;
    /// The value form.
    const FAMILY: Family;
    /// Octets of an address.
    const OCTETS: usize;

    /// The prefix of `length` bits (at most 8 × [`Self::OCTETS`]) with the leading octets `octets`,
    /// at least ⌈length / 8⌉ of them. Host bits are cleared; further octets are ignored.
    fn prefix(octets: &[u8], length: u8) -> Option<Self::Prefix>;

    /// The prefix's octets, of which ⌈length / 8⌉ are significant, and its length in bits.
    fn parts(prefix: &Self::Prefix) -> ([u8; 16], u8);

    /// The prefix, if it is of this family.
    fn narrow(prefix: IpNet) -> Option<Self::Prefix>;
}

/// IPv4 unicast at the type level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ipv4;

/// IPv6 unicast at the type level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ipv6;

impl AddressFamily for Ipv4 {
    type Prefix = Ipv4Net;
    const FAMILY: Family = Family::Ipv4Unicast;
    const OCTETS: usize = 4;

    #[inline]
    fn prefix(octets: &[u8], length: u8) -> Option<Ipv4Net> {
        // Reads a whole address at once if there are enough octets. Only the last prefix of a
        // message may have fewer.
        let address = match octets.first_chunk() {
            Some(address) => *address,
            None => leading(octets, length)?,
        };
        let mask = u32::MAX.checked_shl(32u32.checked_sub(length.into())?).unwrap_or(0);
        Ipv4Net::new(Ipv4Addr::from(u32::from_be_bytes(address) & mask), length).ok()
    }

    #[inline]
    fn parts(prefix: &Ipv4Net) -> ([u8; 16], u8) {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&prefix.addr().octets());
        (octets, prefix.prefix_len())
    }

    fn narrow(prefix: IpNet) -> Option<Ipv4Net> {
        match prefix {
            IpNet::V4(prefix) => Some(prefix),
            IpNet::V6(_) => None,
        }
    }
}

impl AddressFamily for Ipv6 {
    type Prefix = Ipv6Net;
    const FAMILY: Family = Family::Ipv6Unicast;
    const OCTETS: usize = 16;

    #[inline]
    fn prefix(octets: &[u8], length: u8) -> Option<Ipv6Net> {
        let address = match octets.first_chunk() {
            Some(address) => *address,
            None => leading(octets, length)?,
        };
        let mask = u128::MAX.checked_shl(128u32.checked_sub(length.into())?).unwrap_or(0);
        Ipv6Net::new(Ipv6Addr::from(u128::from_be_bytes(address) & mask), length).ok()
    }

    #[inline]
    fn parts(prefix: &Ipv6Net) -> ([u8; 16], u8) {
        (prefix.addr().octets(), prefix.prefix_len())
    }

    fn narrow(prefix: IpNet) -> Option<Ipv6Net> {
        match prefix {
            IpNet::V6(prefix) => Some(prefix),
            IpNet::V4(_) => None,
        }
    }
}

/// The ⌈length / 8⌉ leading octets of an address; the rest are zero.
fn leading<const N: usize>(octets: &[u8], length: u8) -> Option<[u8; N]> {
    let mut address = [0; N];
    let used = usize::from(length).div_ceil(8);
    address.get_mut(..used)?.copy_from_slice(octets.get(..used)?);
    Some(address)
}

/// The destination of a path's traffic: one address, or for IPv6 a global and a link-local one (RFC
/// 2545 §3). A family's next hop may be of the other family (RFC 8950).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NextHop {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address; it may itself be link-local, on unnumbered links.
    V6(Ipv6Addr),
    /// A global IPv6 address and a link-local one.
    V6WithLinkLocal(Ipv6Addr, Ipv6Addr),
}

impl NextHop {
    /// The address that a FIB uses; the global one if there are two.
    pub fn address(&self) -> IpAddr {
        match self {
            NextHop::V4(address) => IpAddr::V4(*address),
            NextHop::V6(address) | NextHop::V6WithLinkLocal(address, _) => IpAddr::V6(*address),
        }
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// A standard community (RFC 1997), written `asn:value` or by its well-known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Community(pub u32);

impl Community {
    /// Planned maintenance of the path (RFC 8326).
    pub const GRACEFUL_SHUTDOWN: Community = Community(0xffff_0000);
    /// The path is retained during a long restart of its peer and used last (RFC 9494).
    pub const LLGR_STALE: Community = Community(0xffff_0006);
    /// The path is not retained as long-lived stale (RFC 9494).
    pub const NO_LLGR: Community = Community(0xffff_0007);
    /// Discard traffic (RFC 7999).
    pub const BLACKHOLE: Community = Community(0xffff_029a);
    /// Not advertised outside the receiving AS or confederation (RFC 1997).
    pub const NO_EXPORT: Community = Community(0xffff_ff01);
    /// Not advertised to any peer (RFC 1997).
    pub const NO_ADVERTISE: Community = Community(0xffff_ff02);
    /// Not advertised to external peers, not even those of the confederation (RFC 1997).
    pub const NO_EXPORT_SUBCONFED: Community = Community(0xffff_ff03);
    /// Not advertised to bilateral peers (RFC 3765).
    pub const NO_PEER: Community = Community(0xffff_ff04);

    const NAMES: [(&'static str, Community); 8] = [
        ("graceful-shutdown", Community::GRACEFUL_SHUTDOWN),
        ("llgr-stale", Community::LLGR_STALE),
        ("no-llgr", Community::NO_LLGR),
        ("blackhole", Community::BLACKHOLE),
        ("no-export", Community::NO_EXPORT),
        ("no-advertise", Community::NO_ADVERTISE),
        ("no-export-subconfed", Community::NO_EXPORT_SUBCONFED),
        ("no-peer", Community::NO_PEER),
    ];
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, community)| community == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}:{}", self.0 >> 16, self.0 & 0xffff),
        }
    }
}

impl FromStr for Community {
    type Err = ParseCommunityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((_, community)) = Self::NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*community);
        }
        let error = || ParseCommunityError(text.to_owned());
        let (asn, value) = text.split_once(':').ok_or_else(error)?;
        let asn: u16 = asn.parse().map_err(|_| error())?;
        let value: u16 = value.parse().map_err(|_| error())?;
        Ok(Community(u32::from(asn) << 16 | u32::from(value)))
    }
}

/// A large community (RFC 8092), written `asn:value:value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeCommunity {
    /// Global Administrator.
    pub global: u32,
    /// Local Data Part 1.
    pub local1: u32,
    /// Local Data Part 2.
    pub local2: u32,
}

impl fmt::Display for LargeCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.global, self.local1, self.local2)
    }
}

impl FromStr for LargeCommunity {
    type Err = ParseCommunityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseCommunityError(text.to_owned());
        let mut parts = text.split(':').map(|part| part.parse::<u32>().map_err(|_| error()));
        let mut next = || parts.next().unwrap_or_else(|| Err(error()));
        let community = LargeCommunity { global: next()?, local1: next()?, local2: next()? };
        match parts.next() {
            None => Ok(community),
            Some(_) => Err(error()),
        }
    }
}

/// A text that is neither a community nor a large community.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no community: write asn:value with both at most 65535, a large one asn:value:value, or a well-known name such as no-export"
)]
pub struct ParseCommunityError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn community_text_round_trips() {
        for text in ["65000:1", "no-export", "0:0", "graceful-shutdown"] {
            assert_eq!(text.parse::<Community>().unwrap().to_string(), text);
        }
        for text in ["65536:1", "1", "1:2:3", "no-such", "-1:2", ""] {
            text.parse::<Community>().unwrap_err();
        }
        assert_eq!("1:2:3".parse::<LargeCommunity>().unwrap().to_string(), "1:2:3");
        for text in ["1:2", "1:2:3:4", "1::3"] {
            text.parse::<LargeCommunity>().unwrap_err();
        }
    }

    #[test]
    fn a_prefix_clears_its_host_bits() {
        assert_eq!(Ipv4::prefix(&[10, 255], 9), Some("10.128.0.0/9".parse().unwrap()));
        assert_eq!(Ipv4::prefix(&[], 0), Some("0.0.0.0/0".parse().unwrap()));
        assert_eq!(Ipv4::prefix(&[1, 2, 3, 4, 5], 33), None);
        assert_eq!(Ipv4::prefix(&[1], 24), None);
        assert_eq!(Ipv6::prefix(&[0x20, 0x01], 12), Some("2000::/12".parse().unwrap()));
    }
}
