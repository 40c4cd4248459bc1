//! When the first decision is made (RFC 4724 §4.1).
//!
//! Two things are waited for, each family by itself: the owner's word that its originations are complete, and, after a
//! restart, End-of-RIB of every peer that had a part in the restart, for the Selection_Deferral_Timer at most. A
//! peer that has no graceful restart, was restarted itself or does not carry the family is not waited for; one that is
//! not back yet is, because it is still forwarding by what this speaker said before.
//!
//! Peers of a range are not known before they come, so a speaker that has ranges waits for the whole timer.
//!
//! What this speaker originates waits for the owner's word alone: no peer's path is preferred to it, so there is no
//! selection to defer. It matters twice. A peer removes what is still stale when the session is lost a second time (RFC
//! 4724 §4.2), so the time from Established to the UPDATEs is the time in which a second crash loses routes; and
//! a peer that doesn't come back must not keep new prefixes from those that did.

use std::time::Instant;

use crate::session::Peer;
use crate::types::{Family, FamilySet};

/// See the module.
#[derive(Debug)]
pub(super) struct Deferral {
    /// The owner's originations are complete.
    complete: bool,
    /// Selection_Deferral_Timer, while it runs.
    deadline: Option<Instant>,
    waiting: FamilySet,
}

impl Deferral {
    pub(super) fn new(deadline: Option<Instant>) -> Self {
        Deferral { complete: false, deadline, waiting: FamilySet::ALL }
    }

    pub(super) fn originations_complete(&mut self) {
        self.complete = true;
    }

    /// When [`Deferral::take_ready`] may have more to say though nothing came.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.waiting.is_empty())
    }

    /// Whether every family is decided.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The families whose first decision is due now; each is told once. `ranges`: there may be peers that did not come yet.
    pub(super) fn take_ready<'a>(
        &mut self,
        now: Instant,
        peers: impl Iterator<Item = &'a Peer> + Clone,
        ranges: bool,
    ) -> FamilySet {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
        }
        if !self.complete || self.waiting.is_empty() {
            return FamilySet::EMPTY;
        }
        let waits = |family| {
            self.deadline.is_some() && (ranges || peers.clone().any(|peer| is_waited_for(peer, family)))
        };
        let ready: FamilySet = self.waiting.iter().filter(|family| !waits(*family)).collect();
        self.waiting = self.waiting.difference(ready);
        ready
    }
}

fn is_waited_for(peer: &Peer, family: Family) -> bool {
    let config = peer.config();
    if config.shutdown || config.graceful_restart.is_none() || !config.families.contains(family) {
        return false;
    }
    let Some(session) = peer.session() else { return true };
    session.negotiated.families.contains(family)
        && session.negotiated.graceful_restart.is_some_and(|restart| !restart.restarting)
        && !peer.end_of_rib().contains(family)
}
