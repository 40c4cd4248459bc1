//! Input of the RIB: its identity, its peers, their sessions, and originated prefixes.

use std::net::{IpAddr, Ipv4Addr};

use crate::config::PathRules;
use crate::policy::Policy;
use crate::types::{
    Asn, Community, ExtendedCommunity, Family, FamilySet, LargeCommunity, LinkBandwidth, NextHop, PeerKey,
    Tags,
};
use crate::wire::Origin;

/// Settings of the whole RIB.
#[derive(Clone, Debug, PartialEq)]
pub struct RibConfig {
    /// The AS of this speaker: prepended towards external peers, and the AS of the loop check.
    pub local_as: Asn,
    /// The BGP identifier: a path with this ORIGINATOR_ID has looped (RFC 4456 §8).
    pub router_id: Ipv4Addr,
    /// The cluster: a path with it in CLUSTER_LIST has looped. It is prepended to that list when a
    /// path is reflected (RFC 4456 §8).
    pub cluster_id: Ipv4Addr,
    /// The maximum number of paths for one prefix (ECMP); 0 counts as 1.
    pub max_paths: usize,
}

/// Facts of a peer that do not depend on a session.
#[derive(Clone, Debug, PartialEq)]
pub struct RibPeer {
    /// The peer's address: the last tie-breaker (RFC 4271 §9.1.2.2 g).
    pub address: PeerKey,
    /// The peer's AS. The peer is internal if this is the local AS.
    pub remote_as: Asn,
    /// Import policy.
    pub import: Policy,
    /// Export policy.
    pub export: Policy,
    /// Other protocol rules for the peer's paths.
    pub rules: PathRules,
}

/// The outcome of the negotiation, as far as the tables need it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFacts {
    /// Families that both sides carry.
    pub families: FamilySet,
    /// The peer's BGP identifier (RFC 4271 §9.1.2.2 f).
    pub router_id: Ipv4Addr,
    /// The local address: a path with this next hop leads back to this speaker.
    pub local_address: IpAddr,
    /// The local next hop in IPv4 unicast; an IPv6 address needs `ext_next_hop`. If none, only
    /// paths with an unchanged next hop can be advertised in that family.
    pub next_hop_v4: Option<NextHop>,
    /// The local next hop in IPv6 unicast.
    pub next_hop_v6: Option<NextHop>,
    /// Both sides carry four-octet AS numbers (RFC 6793).
    pub four_octet_as: bool,
    /// Both sides accept an IPv6 next hop for IPv4 prefixes (RFC 8950).
    pub ext_next_hop: bool,
    /// Families with several paths per prefix towards the peer (RFC 7911).
    pub add_path: FamilySet,
    /// The maximum number of paths per prefix in these families; at least 1.
    pub paths: u8,
    /// The peer supports long-lived stale paths (RFC 9494), so they are advertised to it.
    pub long_lived_stale: bool,
    /// The longest message that the peer accepts, header included: 4096 or 65535 (RFC 8654).
    pub max_message: usize,
}

impl SessionFacts {
    /// The next hop that this side advertises as its own in a family.
    pub fn next_hop(&self, family: Family) -> Option<NextHop> {
        match family {
            Family::Ipv4Unicast => self.next_hop_v4,
            Family::Ipv6Unicast => self.next_hop_v6,
        }
    }
}

/// Attributes of a prefix that this speaker originates. The AS_PATH starts empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origination {
    /// ORIGIN. Routers prefer IGP to INCOMPLETE, and use no ECMP over both.
    pub origin: Origin,
    /// LOCAL_PREF, sent to internal peers only. None: 100.
    pub local_pref: Option<u32>,
    /// Standard communities.
    pub communities: Vec<Community>,
    /// Large communities.
    pub large_communities: Vec<LargeCommunity>,
    /// Extended communities. External peers receive the transitive ones (RFC 4360 §6). A
    /// non-transitive Link Bandwidth counts as [`Self::link_bandwidth`].
    pub extended_communities: Vec<ExtendedCommunity>,
    /// The Link Bandwidth extended community (RFC 10005), with the speaker's AS. External peers
    /// receive the transitive form, internal peers the non-transitive one. For another form, leave
    /// this empty and add the community by the peer's export policy, whose changes stay as they
    /// are. Every change causes an UPDATE: limit the rate (RFC 10005 §7.2).
    pub link_bandwidth: Option<LinkBandwidth>,
    /// MULTI_EXIT_DISC, sent to internal and to external peers.
    pub med: Option<u32>,
    /// Tags for conditions of export policy ([`Conditions::tags`]). They are never sent.
    ///
    /// [`Conditions::tags`]: crate::policy::Conditions::tags
    pub tags: Tags,
}

/// Numbers of paths and prefixes of one peer in one family, kept up to date with each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Paths received and not withdrawn, including rejected and stale ones.
    pub received: usize,
    /// Received paths that passed import policy and loop checks.
    pub accepted: usize,
    /// Received paths from before the session was lost (RFC 4724 §4.2).
    pub stale: usize,
    /// Stale paths with LLGR_STALE, which are used last (RFC 9494 §4.3).
    pub long_lived_stale: usize,
    /// Prefixes advertised and not withdrawn since.
    pub advertised: usize,
}

/// Counts of one UPDATE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateResult {
    /// Advertised prefixes; a prefix that occurs twice in the message counts twice.
    pub announced: usize,
    /// Prefixes withdrawn, or treated as withdrawn (RFC 7606 §2).
    pub withdrawn: usize,
}

/// One path of a FIB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibPath {
    /// The next hop of the traffic.
    pub next_hop: NextHop,
    /// The peer that advertised the path.
    pub peer: PeerKey,
}

/// A change of the received best paths of a prefix. Changes are coalesced: only the latest state is
/// reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// The prefix.
    pub prefix: ipnet::IpNet,
    /// Paths that carry traffic now, best first. Empty if there are none or the prefix is
    /// originated here.
    pub paths: Vec<FibPath>,
}
