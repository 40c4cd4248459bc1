//! The time of the first decision (RFC 4724 §4.1).
//!
//! Each family waits for two things. The first is the owner's call that its originations are
//! complete. The second, after a restart, is End-of-RIB of every peer that takes part in the
//! restart, until the Selection_Deferral_Timer expires. The speaker does not wait for a peer that
//! has no graceful restart, was restarted itself, or does not carry the family. It waits for a peer
//! that is not back yet, because that peer still forwards by the old routes of this speaker.
//!
//! Peers of a range are unknown before they connect, so a speaker with ranges waits for the whole
//! timer.
//!
//! Originated prefixes wait only for the owner's call: no peer's path is preferred to them, so no
//! selection has to be deferred. This has two reasons. First, a peer removes its stale paths when
//! the session is lost a second time (RFC 4724 §4.2). So a second crash between Established and the
//! UPDATEs loses routes. Second, a peer that does not come back must not delay new prefixes for the
//! peers that are back.

use std::time::Instant;

use crate::session::Peer;
use crate::types::{Family, FamilySet};

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Deferral {
    /// The owner's originations are complete.
    complete: bool,
    /// Selection_Deferral_Timer while it runs.
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

    /// When [`Deferral::take_ready`] may return more without any input.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.waiting.is_empty())
    }

    /// Whether the first decision was made for every family.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The families with a first decision that is due now; each is returned once. `ranges`: dynamic
    /// neighbours may still connect.
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
