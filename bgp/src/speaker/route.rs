//! Routes as the speaker lists them for an operator.

use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use crate::types::{Asn, Community, LargeCommunity, NextHop};

/// One path in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The prefix.
    pub prefix: IpNet,
    /// Who told of it (received, best), or who is told (advertised); none if originated here.
    pub peer: Option<IpAddr>,
    /// None where the speaker originates the prefix.
    pub next_hop: Option<NextHop>,
    /// ORIGIN: `IGP`, `EGP` or `INCOMPLETE`.
    pub origin: &'static str,
    /// AS_PATH as it is usually written: sets in braces.
    pub as_path: String,
    /// The AS that originated the prefix, if the AS_PATH ends with a sequence.
    pub origin_as: Option<Asn>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF, as the import policy left it.
    pub local_pref: Option<u32>,
    /// Standard communities.
    pub communities: Vec<Community>,
    /// Large communities.
    pub large_communities: Vec<LargeCommunity>,
    /// Chosen: one of the paths that traffic is spread over.
    pub best: bool,
    /// Kept, but refused by the import policy or because it loops.
    pub filtered: bool,
    /// Kept from before the peer's restart (RFC 4724 §4.2).
    pub stale: bool,
    /// When it came; none for what is advertised.
    pub since: Option<Instant>,
}
