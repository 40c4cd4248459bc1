//! Routes as the speaker lists them for an operator.

use ipnet::IpNet;

use crate::rib::{AdvertisedRoute, Filtered, PathEntry};
use crate::types::{Asn, Community, ExtendedCommunity, LargeCommunity, NextHop, PeerKey};
use crate::wire::{Origin, PathAttributes};

/// One path in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The prefix.
    pub prefix: IpNet,
    /// The peer that sent the path (received, best) or that receives it (advertised); none if
    /// originated here.
    pub peer: Option<PeerKey>,
    /// The path identifier (RFC 7911): the peer's or, if advertised, this side's.
    pub path_id: Option<u32>,
    /// The next hop; none if the speaker originates the prefix.
    pub next_hop: Option<NextHop>,
    /// ORIGIN.
    pub origin: Origin,
    /// AS_PATH in the usual notation: sets in braces.
    pub as_path: String,
    /// The AS that originated the prefix, if the AS_PATH ends with a sequence.
    pub origin_as: Option<Asn>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF after import policy.
    pub local_pref: Option<u32>,
    /// Standard communities.
    pub communities: Vec<Community>,
    /// Large communities.
    pub large_communities: Vec<LargeCommunity>,
    /// Extended communities.
    pub extended_communities: Vec<ExtendedCommunity>,
    /// In use: traffic takes this path, alone or with others.
    pub best: bool,
    /// The reason why the path is kept but not used, in words.
    pub filtered: Option<&'static str>,
    /// Retained from before the peer's restart (RFC 4724 §4.2).
    pub stale: bool,
}

impl Route {
    fn new(prefix: IpNet, attributes: PathAttributes) -> Self {
        Route {
            prefix,
            peer: None,
            path_id: None,
            next_hop: None,
            origin: attributes.origin,
            as_path: attributes.as_path.to_string(),
            origin_as: attributes.as_path.origin_as(),
            med: attributes.med,
            local_pref: attributes.local_pref,
            communities: attributes.communities,
            large_communities: attributes.large_communities,
            extended_communities: attributes.extended_communities,
            best: false,
            filtered: None,
            stale: false,
        }
    }

    /// A path in the tables: after import policy if it is used, as received if it is rejected.
    pub(super) fn of_path(path: &PathEntry<'_>, peer: Option<PeerKey>) -> Self {
        let attributes = path.used.unwrap_or(path.received);
        Route {
            peer,
            path_id: path.path_id,
            next_hop: attributes.next_hop(),
            best: path.selected,
            stale: path.stale,
            filtered: path.filtered.map(refused),
            ..Route::new(path.prefix, attributes.parse())
        }
    }

    /// A route in the Adj-RIB-Out of a peer.
    pub(super) fn of_advertised(route: &AdvertisedRoute<'_>, peer: PeerKey) -> Self {
        Route {
            peer: Some(peer),
            path_id: route.path_id,
            next_hop: route.next_hop,
            best: true,
            ..Route::new(route.prefix, route.attributes.parse())
        }
    }
}

/// The reason of a rejected path, in words.
pub(super) fn refused(filtered: Filtered) -> &'static str {
    match filtered {
        Filtered::Policy => "rejected by import policy",
        Filtered::AsLoop => "the local AS is in its AS_PATH",
        Filtered::OriginatorLoop => "its ORIGINATOR_ID is this speaker",
        Filtered::RouteLeak => "a route leak: this peer may not advertise a path with this ONLY_TO_CUSTOMER",
        Filtered::ClusterLoop => "this speaker's cluster is in its CLUSTER_LIST",
        Filtered::OwnNextHop => "its next hop is this speaker",
    }
}
