//! The default route of a BGP network: the peers that are its next hops in table T.
//!
//! Without `import`, the manifests define the next hops: every established peer that routes
//! traffic. A peer that lost its own uplinks can still be established. So the plan also uses the
//! default routes that the peers offer, for each family:
//!
//! | what the peers offer | next hops |
//! |---|---|
//! | at least one offers a default route | the peers that offer one |
//! | none offers one | all |
//!
//! A fabric without default routes from its routers always matches the second row. This preserves
//! the meaning of hybridnet's manifests. As long as a peer is established, no row is empty. A peer
//! *offers* a default route if the route is in the Adj-RIB-In and passes the loop checks. This
//! includes a route that is retained over a restart of the peer. Attributes do not matter: a
//! network that needs the best path uses `import`.
//!
//! **A restart of the agent.** Sessions are established before the peers' routes arrive. A peer
//! that is a next hop in the kernel
//! ([`KernelHost::former`](trunkline_datapath::plan::KernelHost::former)) counts as offering a
//! default route. This ends with its End-of-RIB, or with the first route selection of the family.
//! If only other peers are established, and such a peer may still return, the kernel's next hops
//! stay.

use trunkline_bgp::types::Family;
use trunkline_datapath::plan::{Hop, RouteKey};

use super::peers::{Peer, routes_traffic};
use super::selection::{Basis, Cause, DefaultRouteSelection, ExcludedPeer};
use super::types::Host;
use crate::family::ip_family;

/// A peer that can be a next hop.
#[derive(Clone, Debug)]
struct Candidate {
    peer: String,
    hop: Hop,
    offers: bool,
    offered: bool,
    withdrawn: bool,
    complete: bool,
}

impl Candidate {
    fn read(peer: &Peer<'_>, family: Family) -> Option<Candidate> {
        let (hop, offer) = (peer.hop(family)?, peer.offer());
        Some(Candidate {
            peer: peer.name(),
            hop,
            offers: offer.now.contains(family),
            offered: offer.ever.contains(family),
            withdrawn: offer.withdrawn.contains(family),
            complete: offer.complete.contains(family),
        })
    }

    fn is_in(&self, former: &[Hop]) -> bool {
        let Hop { gateway, ifindex, .. } = self.hop;
        former.iter().any(|hop| hop.gateway == gateway && (ifindex.is_none() || hop.ifindex == ifindex))
    }

    fn cause(&self) -> Cause {
        match (self.offers, self.withdrawn, self.complete, self.offered) {
            // The peer offers a default route, but the former next hops stay.
            (true, ..) | (false, false, false, _) => Cause::Pending,
            (false, true, ..) | (false, false, true, true) => Cause::Withdrawn,
            (false, false, true, false) => Cause::NotOffered,
        }
    }
}

/// The default route through peers without an import policy. None if there are no such peers.
pub(super) fn plan(
    peers: &[Peer<'_>],
    family: Family,
    table: u32,
    host: &Host,
) -> Option<DefaultRouteSelection> {
    let routers: Vec<&Peer<'_>> =
        peers.iter().filter(|peer| routes_traffic(peer.spec) && !peer.imports()).collect();
    if routers.is_empty() {
        return None;
    }
    let former = host
        .kernel
        .former
        .get(&RouteKey::default_route(table, ip_family(family)))
        .map_or(&[][..], |route| route.hops());
    let candidates = routers.iter().filter_map(|peer| Candidate::read(peer, family)).collect();
    let returns = routers
        .iter()
        .any(|peer| peer.hop(family).is_none() && former.iter().any(|hop| peer.may_be(hop, family)));
    let faulty = routers.iter().filter(|peer| peer.key().is_some_and(|key| host.left_out.contains(&key)));
    let faulty: Vec<String> = faulty.map(|peer| peer.name()).collect();
    Some(select(candidates, table, former, returns).without(&faulty))
}

/// `former`: the kernel's next hops from before the agent's restart, until the first route
/// selection is done. `returns`: one of these next hops may belong to a peer that is not a
/// candidate yet.
fn select(candidates: Vec<Candidate>, table: u32, former: &[Hop], returns: bool) -> DefaultRouteSelection {
    let offers = candidates.iter().any(|peer| peer.offers);
    let is_former = |peer: &Candidate| peer.is_in(former);
    if !offers && returns && !candidates.is_empty() && !candidates.iter().any(is_former) {
        return DefaultRouteSelection {
            table,
            basis: Basis::Former,
            next_hops: former.iter().map(|hop| (gateway(hop), *hop)).collect(),
            left_out: candidates.iter().map(ExcludedPeer::of).collect(),
        };
    }
    let waits = |peer: &Candidate| !peer.complete && is_former(peer);
    let basis = match (offers, candidates.iter().any(waits)) {
        (true, _) => Basis::Offered,
        (false, true) => Basis::Former,
        (false, false) => Basis::Configured,
    };
    let is_used = |peer: &Candidate| basis == Basis::Configured || peer.offers || waits(peer);
    let (used, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_used);
    DefaultRouteSelection {
        table,
        basis,
        next_hops: used.into_iter().map(|peer| (peer.peer, peer.hop)).collect(),
        left_out: others.iter().map(ExcludedPeer::of).collect(),
    }
}

fn gateway(hop: &Hop) -> String {
    hop.gateway.map_or_else(|| "-".to_owned(), |gateway| gateway.to_string())
}

impl ExcludedPeer {
    fn of(candidate: &Candidate) -> ExcludedPeer {
        ExcludedPeer { peer: candidate.peer.clone(), cause: candidate.cause() }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::DefaultRouteBasis;

    use super::*;

    fn hop(number: u8) -> Hop {
        Hop::to(std::net::IpAddr::from([192, 0, 2, number]))
    }

    /// A peer by its number and its state: `o` offers, `e` offered before, `w` withdrew it, `c`
    /// complete.
    fn peer(number: u8, known: &str) -> Candidate {
        Candidate {
            peer: number.to_string(),
            hop: hop(number),
            offers: known.contains('o'),
            offered: known.contains('o') || known.contains('e'),
            withdrawn: known.contains('w'),
            complete: known.contains('c'),
        }
    }

    /// The name in the JSON output.
    fn json(value: impl serde::Serialize) -> String {
        serde_json::to_value(value).unwrap().as_str().unwrap().to_owned()
    }

    fn selected(peers: &[&str], former: &[u8], returns: bool) -> String {
        let candidates = peers.iter().zip(1..).map(|(known, number)| peer(number, known)).collect();
        let former: Vec<Hop> = former.iter().copied().map(hop).collect();
        let way = select(candidates, 10_000, &former, returns);
        let left_out: Vec<String> =
            way.left_out.iter().map(|out| format!(" -{} {}", out.peer, json(out.cause))).collect();
        let hops: Vec<String> = way.hops().iter().map(gateway).collect();
        let hops: Vec<&str> = hops.iter().map(|hop| hop.trim_start_matches("192.0.2.")).collect();
        format!("{}: {}{}", json(DefaultRouteBasis::from(way.basis)), hops.join(" "), left_out.concat())
    }

    #[test]
    fn next_hops_are_the_peers_that_offer_a_default_route() {
        let table: &[(&[&str], &str)] = &[
            // No peer of this fabric offers a default route.
            (&["c", "c"], "configured: 1 2"),
            (&["", ""], "configured: 1 2"),
            (&["oc", "oc"], "advertised: 1 2"),
            (&["oc", "ewc"], "advertised: 1 -2 withdrawn"),
            (&["oc", "c"], "advertised: 1 -2 notOffered"),
            (&["oc", ""], "advertised: 1 -2 pending"),
            // The first peer returned, and has not sent all routes.
            (&["oc", "e"], "advertised: 1 -2 pending"),
            (&["oc", "ec"], "advertised: 1 -2 withdrawn"),
            (&["ewc", "ewc"], "configured: 1 2"),
            (&["c", "ewc"], "configured: 1 2"),
            (&["ewc"], "configured: 1"),
            (&["oc"], "advertised: 1"),
            (&[], "configured: "),
        ];
        for (peers, way) in table {
            assert_eq!(selected(peers, &[], false), *way, "{peers:?}");
        }
    }

    #[test]
    fn next_hops_are_never_empty_with_an_established_peer() {
        let known = ["", "c", "o", "oc", "e", "ec", "ew", "ewc"];
        for (first, second) in known.iter().flat_map(|first| known.map(|second| (*first, second))) {
            let formers: [&[u8]; 5] = [&[], &[1], &[2], &[1, 2], &[3]];
            for former in formers {
                for returns in [false, true] {
                    let way = select(
                        vec![peer(1, first), peer(2, second)],
                        10_000,
                        &former.iter().copied().map(hop).collect::<Vec<_>>(),
                        returns && !former.is_empty(),
                    );
                    assert!(!way.next_hops.is_empty(), "{first:?} {second:?} {former:?}");
                }
            }
        }
    }

    #[test]
    fn a_peer_with_a_probe_fault_is_excluded_unless_it_is_the_last() {
        let names = |faulty: &[&str]| {
            let peers = vec![peer(1, "oc"), peer(2, "oc")];
            let faulty: Vec<String> = faulty.iter().map(|name| (*name).to_owned()).collect();
            select(peers, 10_000, &[], false).without(&faulty).names()
        };
        assert_eq!(names(&[]), "1, 2");
        assert_eq!(names(&["1"]), "2");
        assert_eq!(names(&["1", "2"]), "1, 2");
    }

    #[test]
    fn after_a_restart_the_kernels_next_hops_count_until_end_of_rib() {
        let table: &[(&[&str], &[u8], bool, &str)] = &[
            // The first session is established, and its routes are not complete yet.
            (&[""], &[1, 2], true, "retained: 1"),
            (&["", ""], &[1, 2], false, "retained: 1 2"),
            (&["oc", ""], &[1, 2], false, "advertised: 1 2"),
            (&["oc", "c"], &[1, 2], false, "advertised: 1 -2 notOffered"),
            (&["c", "c"], &[1, 2], false, "configured: 1 2"),
            // Before the restart, the first peer had withdrawn its default route. It returns first.
            (&["c"], &[2], true, "retained: 2 -1 notOffered"),
            (&["c", ""], &[2], false, "retained: 2 -1 notOffered"),
            (&["c", "oc"], &[2], false, "advertised: 2 -1 notOffered"),
            // The other peer does not return: it is no longer in the manifests.
            (&["c"], &[2], false, "configured: 1"),
            (&["oc"], &[2], true, "advertised: 1"),
        ];
        for (peers, former, returns, way) in table {
            assert_eq!(selected(peers, former, *returns), *way, "{peers:?}, the kernel has {former:?}");
        }
    }
}
