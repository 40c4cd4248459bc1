//! The next hops of a default route: which peers they are, and why.

use trunkline_api::control::DefaultRouteBasis;
pub use trunkline_api::control::ExclusionCause as Cause;
use trunkline_bgp::types::FamilySet;
use trunkline_datapath::plan::Hop;

/// What is known of the default routes that a peer offers, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerDefaultRoutes {
    /// It offers one.
    pub now: FamilySet,
    /// It offers one, or did at some time since the agent's start.
    pub ever: FamilySet,
    /// It offered one in the session that is established, and withdrew it.
    pub withdrawn: FamilySet,
    /// End-of-RIB of the session has come: what it does not offer by now, it does not have.
    pub complete: FamilySet,
}

/// The next hops of the default route in one family, and which peers are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRouteSelection {
    /// The table.
    pub table: u32,
    /// Why these are the next hops.
    pub basis: Basis,
    /// The next hops, each with the name of its peer.
    pub next_hops: Vec<(String, Hop)>,
    /// Established peers that are not next hops.
    pub left_out: Vec<ExcludedPeer>,
}

/// Why peers are next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// They offer a default route.
    Offered,
    /// They are configured, and no peer offers a default route.
    Configured,
    /// They were next hops before the agent was restarted, and the first route selection is not done yet.
    Former,
}

/// An established peer that is no next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedPeer {
    /// Its name.
    pub peer: String,
    /// Why.
    pub cause: Cause,
}

impl DefaultRouteSelection {
    /// Leaves these peers out, unless no next hop would remain.
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

    /// The peers that are next hops, in words.
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
