//! Finds BGP identifiers that two routers share, from the OPEN messages.
//!
//! RFC 6286 makes an identifier unique within an AS, and allows the same identifier in routers of
//! different AS numbers. In a fabric the cause is always a copied configuration. A duplicate breaks
//! route reflection, the selection between equal paths, and every table with identifiers as names
//! of routers. A router with several sessions uses one identifier in all of them, so two peers of
//! one AS number prove nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use trunkline_api::control::DuplicateIdentifier;
use trunkline_bgp::speaker::PeerStatus;

/// The identifier data of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SessionIdentifiers {
    peer: String,
    remote_as: u32,
    identifier: Ipv4Addr,
}

/// The duplicates among the identifiers of this node and of established peers.
pub(crate) fn duplicates(own: Ipv4Addr, peers: &[PeerStatus]) -> Vec<DuplicateIdentifier> {
    let seen = peers.iter().filter_map(|peer| {
        Some(SessionIdentifiers {
            peer: peer.key().to_string(),
            remote_as: peer.remote_as.0,
            identifier: peer.session.as_ref()?.remote_router_id,
        })
    });
    find(own, seen)
}

fn find(own: Ipv4Addr, seen: impl Iterator<Item = SessionIdentifiers>) -> Vec<DuplicateIdentifier> {
    let mut by_identifier: BTreeMap<Ipv4Addr, Vec<SessionIdentifiers>> = BTreeMap::new();
    seen.for_each(|seen| by_identifier.entry(seen.identifier).or_default().push(seen));
    let found = by_identifier.into_iter().filter_map(|(identifier, seen)| {
        let numbers: BTreeSet<u32> = seen.iter().map(|seen| seen.remote_as).collect();
        let named: Vec<String> =
            seen.iter().map(|seen| format!("{} (AS {})", seen.peer, seen.remote_as)).collect();
        let named = named.join(", ");
        let text = match (identifier == own, numbers.len()) {
            (true, _) => format!(
                "this node and peer {named} both have BGP identifier {identifier}: routers refuse \
                 one of the two, or drop routes as their own"
            ),
            (false, 1) => return None,
            (false, _) => format!(
                "several peers have BGP identifier {identifier}: {named}. Route reflectors drop \
                 routes as their own, and the choice between equal paths is undefined"
            ),
        };
        Some(DuplicateIdentifier {
            identifier,
            peers: seen.into_iter().map(|seen| seen.peer).collect(),
            text,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identifier_of_two_routers_is_found() {
        let seen = |peer: &str, remote_as, identifier: [u8; 4]| SessionIdentifiers {
            peer: peer.to_owned(),
            remote_as,
            identifier: identifier.into(),
        };
        let (own, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let names = |peers: &[SessionIdentifiers]| -> Vec<Vec<String>> {
            find(own.into(), peers.iter().cloned()).into_iter().map(|it| it.peers).collect()
        };
        let (a, b) = (seen("192.0.2.1", 65001, other), seen("192.0.2.3", 65002, other));
        assert_eq!(names(&[a.clone(), b]), [["192.0.2.1", "192.0.2.3"]]);
        let second_session = seen("2001:db8::1", 65001, other);
        assert!(names(&[a.clone(), second_session]).is_empty(), "one router may have two sessions");
        assert_eq!(names(&[a, seen("192.0.2.3", 65002, own)]), [["192.0.2.3"]]);
    }
}
