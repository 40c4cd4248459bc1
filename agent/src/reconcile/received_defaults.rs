//! The peers that offer a default route, from the speaker's events. [`crate::plan::selection`] uses
//! this state.
//!
//! A speaker that replaces another speaker in this process has no paths at first. The previous
//! state of a peer stays until the new speaker has the peer's End-of-RIB, or has converged. The
//! last run's routes in the kernel also stay until then.

use std::collections::BTreeMap;

use trunkline_bgp::types::{Family, FamilySet, PeerKey};
use trunkline_datapath::plan::{RouteKey, RouteTarget};

use crate::plan::PeerDefaultRoutes;

/// The state of all peers' default routes.
#[derive(Debug, Default)]
pub(super) struct ReceivedDefaultRoutes {
    peers: BTreeMap<PeerKey, Known>,
    /// The last run's default routes in the kernel, each until its family has converged; none
    /// before the first plan.
    former: Option<BTreeMap<RouteKey, RouteTarget>>,
}

#[derive(Debug, Default)]
struct Known {
    offer: PeerDefaultRoutes,
    /// Families in which it offered a default route to the previous speaker, and the new speaker
    /// has no path yet.
    carried: FamilySet,
}

impl ReceivedDefaultRoutes {
    /// The state of a peer, without `complete`.
    pub(super) fn of(&self, peer: &PeerKey) -> PeerDefaultRoutes {
        self.peers.get(peer).map(|known| known.offer).unwrap_or_default()
    }

    /// A session is established.
    pub(super) fn session_up(&mut self, peer: PeerKey) {
        self.peers.entry(peer).or_default().offer.withdrawn = FamilySet::EMPTY;
    }

    /// Sets whether a peer offers a default route. `established`: its session is Established.
    pub(super) fn set(&mut self, peer: PeerKey, family: Family, offered: bool, established: bool) {
        let known = self.peers.entry(peer).or_default();
        known.carried.remove(family);
        let offer = &mut known.offer;
        if offered {
            offer.now.insert(family);
            offer.ever.insert(family);
            offer.withdrawn.remove(family);
        } else {
            offer.now.remove(family);
            if established {
                offer.withdrawn.insert(family);
            }
        }
    }

    /// A peer sent End-of-RIB.
    pub(super) fn end_of_rib(&mut self, peer: &PeerKey, family: Family) {
        if let Some(known) = self.peers.get_mut(peer) {
            known.drop_carried(family);
        }
    }

    /// Handles an unexpected end of the speaker: the next speaker receives all routes again.
    pub(super) fn speaker_ended(&mut self) {
        for known in self.peers.values_mut() {
            known.carried = known.offer.now;
        }
    }

    /// Sets the default routes of the last run. `found`: default routes in the kernel that are not
    /// in a plan yet.
    pub(super) fn former(
        &mut self,
        found: BTreeMap<RouteKey, RouteTarget>,
    ) -> BTreeMap<RouteKey, RouteTarget> {
        self.former.get_or_insert(found).clone()
    }

    /// Handles the end of this speaker's first selection.
    pub(super) fn converged(&mut self, family: Family) {
        if let Some(former) = &mut self.former {
            former.retain(|key, _| Family::of(&key.prefix) != family);
        }
        self.peers.values_mut().for_each(|known| known.drop_carried(family));
    }

    /// A dynamic neighbour is gone.
    pub(super) fn forget(&mut self, peer: &PeerKey) {
        self.peers.remove(peer);
    }

    /// Clears the state, because no speaker is left. The last run's routes in the kernel stay.
    pub(super) fn clear(&mut self) {
        self.peers.clear();
    }
}

impl Known {
    fn drop_carried(&mut self, family: Family) {
        if self.carried.contains(family) {
            self.carried.remove(family);
            self.offer.now.remove(family);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Family = Family::Ipv4Unicast;

    fn peer() -> PeerKey {
        "192.0.2.1".parse().unwrap()
    }

    /// Whether the peer offers it now, has ever offered it, and withdrew it.
    fn known(offers: &ReceivedDefaultRoutes) -> (bool, bool, bool) {
        let PeerDefaultRoutes { now, ever, withdrawn, .. } = offers.of(&peer());
        (now.contains(V4), ever.contains(V4), withdrawn.contains(V4))
    }

    #[test]
    fn only_an_established_session_withdraws() {
        let mut offers = ReceivedDefaultRoutes::default();
        assert_eq!(known(&offers), (false, false, false));
        offers.session_up(peer());
        offers.set(peer(), V4, true, true);
        assert_eq!(known(&offers), (true, true, false));
        offers.set(peer(), V4, false, true);
        assert_eq!(known(&offers), (false, true, true));
        offers.set(peer(), V4, true, true);
        assert_eq!(known(&offers), (true, true, false));
        // The session ends, and its routes are deleted.
        offers.set(peer(), V4, false, false);
        assert_eq!(known(&offers), (false, true, false));
    }

    #[test]
    fn a_new_speaker_keeps_the_old_state_until_end_of_rib() {
        let ended = || {
            let mut offers = ReceivedDefaultRoutes::default();
            offers.set(peer(), V4, true, true);
            offers.speaker_ended();
            offers.session_up(peer());
            assert_eq!(known(&offers), (true, true, false));
            offers
        };
        let mut offers = ended();
        offers.end_of_rib(&peer(), V4);
        assert_eq!(known(&offers), (false, true, false), "the peer sent End-of-RIB without a default route");
        let mut offers = ended();
        offers.set(peer(), V4, true, true);
        offers.end_of_rib(&peer(), V4);
        offers.converged(V4);
        assert_eq!(known(&offers), (true, true, false));
        let mut offers = ended();
        offers.converged(V4);
        assert_eq!(known(&offers), (false, true, false), "the peer did not return before convergence");
    }
}
