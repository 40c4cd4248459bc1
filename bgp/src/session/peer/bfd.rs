//! The effect of BFD's reports on the session (RFC 5882 §4).
//!
//! - Down ends an Established session with Cease, BFD Down (RFC 9384), and the peer's paths are
//!   removed (§4.2). The same applies if graceful restart is negotiated but not in progress
//!   (§4.3.2.2).
//! - While the peer restarts gracefully (its paths are stale), the peer's C bit decides. If it is
//!   set, BFD does not share fate with the peer's control plane, so Down means that forwarding is
//!   gone: the paths are removed (§4.3.1). If it is clear, BFD went down with the restart itself,
//!   and the paths stay (§4.3.2). This side's own C bit does not matter, because this side runs.
//! - AdminDown of the peer is no failure (§3.2).
//! - A Down that the peer signals within [`BFD_SETTLE_TIME`] of Established does not end the
//!   session. FRR replaces its BFD session when BGP is Established, so otherwise each start would
//!   end a session. BFD must come Up again within [`BFD_RETURN_TIME`].
//! - BGP does not wait for BFD. If BFD comes Up before the next attempt to connect, the attempt
//!   starts at once.

use std::time::Instant;

use super::{Fault, Peer, Sink, State, Timer};
use crate::bfd::{self, Cause, Down, Status};
use crate::io::Event;
use crate::io::status::BfdStatus;
use crate::session::{BFD_RETURN_TIME, BFD_SETTLE_TIME};

impl Peer {
    /// The status of the BFD session changed; with `down` it has left Up meanwhile.
    pub fn handle_bfd(&mut self, down: Option<Down>, status: Status, now: Instant, sink: &mut impl Sink) {
        let before = self.bfd.map(|(status, _)| status.state);
        let since = self.bfd.filter(|(old, _)| old.state == status.state).map_or(now, |(_, since)| since);
        self.bfd = Some((status, since));
        if status.state == bfd::State::Up {
            self.timers.stop(Timer::BfdReturn);
        }
        if let Some(down) = down {
            let event = Event::Bfd {
                peer: self.id,
                address: self.config.key(),
                state: status.state,
                down: Some(down),
            };
            sink.event(event);
            if down.cause != Cause::NeighborAdminDown {
                self.path_down(down, now, sink);
            }
        }
        if status.state == bfd::State::Up && (before != Some(bfd::State::Up) || down.is_some()) {
            let event =
                Event::Bfd { peer: self.id, address: self.config.key(), state: status.state, down: None };
            sink.event(event);
            if self.state == State::Active && self.wants_to_connect() {
                self.connect(now, sink);
            }
        }
        self.settle(now);
    }

    /// The BFD session was removed.
    pub fn forget_bfd(&mut self) {
        self.bfd = None;
        self.timers.stop(Timer::BfdReturn);
    }

    pub(super) fn bfd_status(&self, now: Instant) -> Option<BfdStatus> {
        let (status, since) = self.bfd?;
        let state_for = now.saturating_duration_since(since);
        Some(BfdStatus { status, state_for, packets_received: 0, packets_sent: 0 })
    }

    fn path_down(&mut self, down: Down, now: Instant, sink: &mut impl Sink) {
        if down.cause == Cause::NeighborDown && self.is_settling(now) {
            return self.timers.set(Timer::BfdReturn, now + BFD_RETURN_TIME);
        }
        if let Some(slot) = self.slot_in(State::Established) {
            let diagnostic = match down.cause {
                Cause::TimeExpired => bfd::Diagnostic::TIME_EXPIRED,
                Cause::NeighborDown | Cause::NeighborAdminDown => bfd::Diagnostic::NEIGHBOR_DOWN,
            };
            self.fail(slot, Fault::BfdDown { diagnostic }, now, sink);
        } else if down.control_plane_independent {
            self.sweep(self.stale, sink);
        }
    }

    /// Whether the session became Established a moment ago.
    fn is_settling(&self, now: Instant) -> bool {
        self.established().is_some_and(|c| now.saturating_duration_since(c.since) < BFD_SETTLE_TIME)
    }

    /// BFD has not come Up again: the Down was a failure of the path.
    pub(super) fn end_bfd_return(&mut self, now: Instant, sink: &mut impl Sink) {
        if let Some(slot) = self.slot_in(State::Established) {
            self.fail(slot, Fault::BfdDown { diagnostic: bfd::Diagnostic::NEIGHBOR_DOWN }, now, sink);
        }
    }
}
