//! What the RIB is told from outside: its own identity, its peers, their sessions, and what is originated.

use std::net::{IpAddr, Ipv4Addr};

use crate::config::PathRules;
use crate::policy::Policy;
use crate::types::{Asn, Community, Family, FamilySet, LargeCommunity, NextHop, PeerKey};

/// What holds for the whole table.
#[derive(Clone, Debug, PartialEq)]
pub struct RibConfig {
    /// The AS of this speaker: put in front of what external peers are told, and looked for in what they tell.
    pub local_as: Asn,
    /// The BGP identifier: a path whose ORIGINATOR_ID it is has looped (RFC 4456 §8).
    pub router_id: Ipv4Addr,
    /// A path whose CLUSTER_LIST has it has looped (RFC 4456 §8); put in front of that list when a path is reflected.
    pub cluster_id: Ipv4Addr,
    /// The most paths that a prefix is spread over (ECMP); 0 counts as 1.
    pub max_paths: usize,
}

/// What the RIB knows of a peer whether it is up or not.
#[derive(Clone, Debug, PartialEq)]
pub struct RibPeer {
    /// The peer's address: the last tie-breaker (RFC 4271 §9.1.2.2 g).
    pub address: PeerKey,
    /// The peer's AS. The local one makes it an internal peer.
    pub remote_as: Asn,
    /// What of its paths is used.
    pub import: Policy,
    /// What it is told.
    pub export: Policy,
    /// What the protocol does with its paths besides.
    pub rules: PathRules,
}

/// What a session agreed on, as far as the tables need it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionFacts {
    /// Families that both sides carry.
    pub families: FamilySet,
    /// The peer's BGP identifier (RFC 4271 §9.1.2.2 f).
    pub router_id: Ipv4Addr,
    /// This side's address: a path whose next hop it is leads back here.
    pub local_address: IpAddr,
    /// What "next hop self" is in IPv4 unicast; an IPv6 address needs `ext_next_hop`. None: only paths whose
    /// next hop is passed on can be told in that family.
    pub next_hop_v4: Option<NextHop>,
    /// What "next hop self" is in IPv6 unicast.
    pub next_hop_v6: Option<NextHop>,
    /// Both sides carry four-octet AS numbers (RFC 6793).
    pub four_octet_as: bool,
    /// Both sides take an IPv6 next hop for IPv4 prefixes (RFC 8950).
    pub ext_next_hop: bool,
    /// Families in which the peer is told several paths of a prefix (RFC 7911).
    pub add_path: FamilySet,
    /// How many of one prefix there, at most; at least 1.
    pub paths: u8,
    /// The peer knows long-lived stale paths (RFC 9494): it is told of them.
    pub long_lived_stale: bool,
    /// The longest message that the peer takes, header included: 4096 or 65535 (RFC 8654).
    pub max_message: usize,
}

impl SessionFacts {
    /// The next hop that this side announces as its own in a family.
    pub fn next_hop(&self, family: Family) -> Option<NextHop> {
        match family {
            Family::Ipv4Unicast => self.next_hop_v4,
            Family::Ipv6Unicast => self.next_hop_v6,
        }
    }
}

/// What travels with a prefix that this speaker originates. ORIGIN is IGP, the AS_PATH starts empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origination {
    /// Standard communities.
    pub communities: Vec<Community>,
    /// Large communities.
    pub large_communities: Vec<LargeCommunity>,
    /// MULTI_EXIT_DISC; told to internal and external peers alike.
    pub med: Option<u32>,
}

/// Prefixes with a peer in one family. Kept up to date, never counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Paths received and not withdrawn, the refused and the stale ones included.
    pub received: usize,
    /// Of those, the ones that import policy and loop checks let into the decision.
    pub accepted: usize,
    /// Of those received, the ones from before the session was lost (RFC 4724 §4.2).
    pub stale: usize,
    /// Of the stale, the ones that carry LLGR_STALE: the last to be used (RFC 9494 §4.3).
    pub long_lived_stale: usize,
    /// Prefixes that the peer was told and that were not withdrawn since.
    pub advertised: usize,
}

/// What one UPDATE did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOutcome {
    /// Prefixes announced, by UPDATE's own count (the same prefix twice counts twice).
    pub announced: usize,
    /// Prefixes withdrawn, or treated as withdrawn (RFC 7606 §2).
    pub withdrawn: usize,
}

/// One path of a FIB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibPath {
    /// Where traffic goes.
    pub next_hop: NextHop,
    /// The peer that told so.
    pub peer: PeerKey,
}

/// The learned best paths of a prefix have changed. Coalesced: only the latest state of a prefix is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// The prefix.
    pub prefix: ipnet::IpNet,
    /// Where traffic goes now, best first. Empty: nowhere, or the prefix is originated here.
    pub paths: Vec<FibPath>,
}
