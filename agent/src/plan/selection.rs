//! The next hops of a default route, and the reason for their selection.

use trunkline_api::control::DefaultRouteBasis;
pub use trunkline_api::control::ExclusionCause as Cause;
use trunkline_bgp::types::FamilySet;
use trunkline_datapath::plan::Hop;

/// State of the default routes that a peer offers, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerDefaultRoutes {
    /// Families in which the peer offers a default route.
    pub now: FamilySet,
    /// Families in which the peer offers a default route, or offered one since the agent's start.
    pub ever: FamilySet,
    /// Families in which the peer withdrew its default route during the current session.
    pub withdrawn: FamilySet,
    /// Families with End-of-RIB in the current session: the peer has no other routes.
    pub complete: FamilySet,
}

/// The next hops of the default route in one family, and the excluded peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRouteSelection {
    /// The table.
    pub table: u32,
    /// The reason for this selection.
    pub basis: Basis,
    /// The next hops, each with the name of its peer.
    pub next_hops: Vec<(String, Hop)>,
    /// Established peers that are not next hops.
    pub left_out: Vec<ExcludedPeer>,
}

/// Reasons for a selection of next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The next hops are the peers that offer a default route.
    Offered,
    /// The next hops are all configured peers, because no peer offers a default route.
    Configured,
    /// The next hops are those from before the agent's restart, because the first route selection
    /// is not done yet.
    Former,
}

/// An established peer that is not a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedPeer {
    /// Its name.
    pub peer: String,
    /// The reason.
    pub cause: Cause,
}

impl DefaultRouteSelection {
    /// Excludes these peers, unless no next hop would remain.
    pub(super) fn without(mut self, faulty: &[String]) -> DefaultRouteSelection {
        let is_faulty = |peer: &String| faulty.contains(peer);
        if self.next_hops.iter().all(|(peer, _)| is_faulty(peer)) {
            return self;
        }
        let (out, used) = self.next_hops.into_iter().partition(|(peer, _)| is_faulty(peer));
        self.next_hops = used;
        let out: Vec<(String, Hop)> = out;
        self.left_out
            .extend(out.into_iter().map(|(peer, _)| ExcludedPeer { peer, cause: Cause::ProbeFault }));
        self
    }

    /// The next hops.
    pub fn hops(&self) -> Vec<Hop> {
        self.next_hops.iter().map(|(_, hop)| *hop).collect()
    }

    /// The names of the peers that are next hops, for the operator.
    pub fn names(&self) -> String {
        self.next_hops.iter().map(|(peer, _)| peer.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl From<Basis> for DefaultRouteBasis {
    fn from(basis: Basis) -> Self {
        match basis {
            Basis::Offered => DefaultRouteBasis::Advertised,
            Basis::Configured => DefaultRouteBasis::Configured,
            Basis::Former => DefaultRouteBasis::Retained,
        }
    }
}
