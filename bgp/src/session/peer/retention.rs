//! The helper's side of a restart: which paths of the peer are retained after the session, and
//! until when (RFC 4724 §4.2, RFC 8538, RFC 9494 §4.2).
//!
//! The paths of a family go through up to two phases:
//!
//! | phase | paths are | until |
//! |---|---|---|
//! | stale | used as before | the peer's Restart Time expires |
//! | long-lived stale | used last, advertised to supporting peers | its Stale Time expires |
//!
//! A family skips the first phase if only the long-lived capability lists it, or if the Restart
//! Time is 0. The second phase exists only if both sides have that capability. Each phase ends when
//! the peer is back and has sent End-of-RIB. It also ends if the peer comes back without the
//! family's F bit (each of the two capabilities has one).
//!
//! If the session is lost while paths are stale, they are removed (RFC 4724 §4.2, consecutive
//! restarts). Long-lived stale paths stay for the rest of their Stale Time, because a peer may come
//! back briefly several times during a long failure. The Stale Time continues in the new session
//! until End-of-RIB. If it expires before End-of-RIB, no path of the family is retained when that
//! session is lost.

use std::time::{Duration, Instant};

use super::{Peer, Timer};
use crate::io::Event;
use crate::session::negotiated::{Negotiated, PeerRestart};
use crate::session::{Fault, STALE_PATH_TIME, Sink};
use crate::types::{Family, FamilySet};

impl PeerRestart {
    /// Families with a Long-lived Stale Time.
    fn long_lived_families(&self) -> FamilySet {
        Family::ALL.into_iter().filter(|family| !self.long_lived[family.index()].is_zero()).collect()
    }

    /// Whether paths of a family are retained after the session, for the Restart Time or the
    /// Long-lived Stale Time.
    pub(super) fn keeps(&self, family: Family) -> bool {
        let restart = !self.time.is_zero() && self.families.contains(family);
        restart || self.long_lived_families().contains(family)
    }
}

fn long_lived_timer(family: Family) -> Timer {
    match family {
        Family::Ipv4Unicast => Timer::LongLivedV4,
        Family::Ipv6Unicast => Timer::LongLivedV6,
    }
}

impl Peer {
    /// The time at which the stale paths of a family are removed, unless the peer advertises them
    /// again.
    pub(super) fn stale_until(&self, family: Family) -> Option<Instant> {
        if !self.stale.contains(family) {
            return None;
        }
        let restart = self.timers.get(Timer::Restart).filter(|_| self.restart_time.contains(family));
        // The second phase follows the first.
        let restart = restart.map(|at| at + self.long_lived_time[family.index()]);
        let long_lived = self.timers.get(long_lived_timer(family));
        [restart, long_lived, self.timers.get(Timer::StalePaths)].into_iter().flatten().min()
    }

    /// Starts retention after the end of a session: removes stale paths that are not retained, and
    /// returns the retained families.
    pub(super) fn retain(
        &mut self,
        negotiated: Option<&Negotiated>,
        fault: &Fault,
        now: Instant,
        sink: &mut impl Sink,
    ) -> FamilySet {
        let restart = negotiated.and_then(|n| Some((n, n.graceful_restart?)));
        let kept = restart.filter(|(_, restart)| fault.retains(restart.notification));
        let (mut retained, mut long_lived) = (FamilySet::EMPTY, FamilySet::EMPTY);
        let mut time = Duration::ZERO;
        if let Some((negotiated, restart)) = kept {
            let families = negotiated.families.difference(self.overdue);
            long_lived = restart.long_lived_families().intersection(families);
            if !restart.time.is_zero() {
                retained = restart.families.intersection(families);
            }
            time = restart.time;
            self.long_lived_time = restart.long_lived;
        }
        let survivors = self.long_lived.intersection(long_lived);
        self.sweep(self.stale.difference(survivors), sink);
        self.timers.stop(Timer::StalePaths);
        if !retained.is_empty() {
            self.timers.set(Timer::Restart, now + time);
        }
        self.restart_time = retained;
        self.long_lived = survivors;
        self.stale = retained.union(long_lived);
        self.stale
    }

    /// Called after the tables have marked the paths: families without a Restart Time become
    /// long-lived stale at once.
    pub(super) fn begin_retention(&mut self, now: Instant, sink: &mut impl Sink) {
        self.begin_long_lived(self.stale.difference(self.restart_time), now, sink);
    }

    /// Ends the first phase: the Restart Time has expired.
    pub(super) fn end_restart_time(&mut self, now: Instant, sink: &mut impl Sink) {
        let families = std::mem::take(&mut self.restart_time);
        self.begin_long_lived(families, now, sink);
    }

    /// Ends the Long-lived Stale Time of a family. The session may be back, but without End-of-RIB.
    pub(super) fn end_long_lived_time(&mut self, family: Family, sink: &mut impl Sink) {
        if self.established().is_some() {
            self.overdue.insert(family);
        }
        self.sweep(FamilySet::from_iter([family]), sink);
    }

    /// Starts the second phase for each family, or removes its paths if it has none.
    fn begin_long_lived(&mut self, families: FamilySet, now: Instant, sink: &mut impl Sink) {
        for family in families.iter() {
            let time = self.long_lived_time[family.index()];
            if time.is_zero() {
                self.sweep(FamilySet::from_iter([family]), sink);
                continue;
            }
            self.long_lived.insert(family);
            // The timer continues if the peer was back only briefly, without End-of-RIB.
            let timer = long_lived_timer(family);
            let until = self.timers.get(timer).unwrap_or(now + time);
            self.timers.set(timer, until);
            let (paths, removed) = sink.mark_long_lived(self.id, family);
            let (peer, address) = (self.id, self.config.key());
            let time = until.saturating_duration_since(now);
            sink.event(Event::LongLivedStale { peer, address, family, paths, removed, time });
        }
    }

    /// Handles a new session. Removes stale paths of a family if the peer did not continue to
    /// forward for the family, or no longer supports it. The other stale paths wait for End-of-RIB.
    pub(super) fn resume(
        &mut self,
        negotiated: &Negotiated,
        now: Instant,
        sink: &mut impl Sink,
    ) -> FamilySet {
        self.overdue = FamilySet::EMPTY;
        let kept = negotiated.graceful_restart.map_or(FamilySet::EMPTY, |restart| {
            let by_restart = restart.forwarding.intersection(restart.families).difference(self.long_lived);
            by_restart.union(restart.long_lived_forwarding.intersection(self.long_lived))
        });
        let kept = kept.intersection(negotiated.families).intersection(self.stale);
        self.sweep(self.stale.difference(kept), sink);
        self.timers.stop(Timer::Restart);
        self.restart_time = FamilySet::EMPTY;
        if !kept.is_empty() {
            self.timers.set(Timer::StalePaths, now + STALE_PATH_TIME);
        }
        kept
    }

    /// Removes the stale paths of these families; stops the timers that no longer apply.
    pub(super) fn sweep(&mut self, families: FamilySet, sink: &mut impl Sink) {
        for family in families.intersection(self.stale).iter() {
            self.stale.remove(family);
            self.long_lived.remove(family);
            self.restart_time.remove(family);
            self.timers.stop(long_lived_timer(family));
            let paths = sink.sweep(self.id, family);
            sink.event(Event::StaleSwept { peer: self.id, address: self.config.key(), family, paths });
        }
        if self.restart_time.is_empty() {
            self.timers.stop(Timer::Restart);
        }
        if self.stale.is_empty() {
            self.timers.stop(Timer::StalePaths);
        }
    }
}
