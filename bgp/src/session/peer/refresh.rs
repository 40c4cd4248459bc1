//! Route refresh (RFC 2918) with markers for its beginning and end (RFC 7313).
//!
//! The tables write the response to a request, including markers, when the socket accepts octets. A
//! refresh that the peer sends between BoRR and EoRR works like the time after its restart. Its
//! paths of the family are marked stale and lose the mark when the peer advertises them again. The
//! rest is removed at EoRR or after [`REFRESH_TIME`].
//!
//! A refresh and a restart can overlap. With graceful restart, a BoRR before End-of-RIB is ignored
//! (RFC 7313 §4). So a mark always has one meaning, and the tables need no second mark. If the
//! session is lost during a refresh, its marks are removed. The peer has merely not advertised
//! those paths again yet. RFC 4724 §4.2 removes only paths that are stale since an earlier restart.
//! So the helper retains these paths like all others.

use std::time::Instant;

use super::messages::report;
use super::{Peer, Timer};
use crate::io::Event;
use crate::session::{Fault, REFRESH_TIME, Sink, State};
use crate::types::FamilySet;
use crate::wire::{RouteRefresh, WireError};

impl Peer {
    /// Requests the routes of all families of the session again. Returns false if that is
    /// impossible.
    pub fn request_refresh(&mut self, now: Instant, sink: &mut impl Sink) -> bool {
        let Some(slot) = self.slot_in(State::Established) else { return false };
        let Some(connection) = &mut self.connections[slot] else { return false };
        let Some(negotiated) = connection.negotiated.as_ref().filter(|n| n.route_refresh) else {
            return false;
        };
        for family in negotiated.families.iter() {
            connection.queue(|out| RouteRefresh::request(family).encode(out));
            self.traffic.sent.route_refresh += 1;
        }
        self.announce(slot, now, sink);
        true
    }

    /// Sends all routes again as if the peer had requested them (RFC 7313 §4: "initiated locally").
    /// Returns false if there is no session.
    pub fn refresh_out(&mut self, now: Instant, sink: &mut impl Sink) -> bool {
        let Some(slot) = self.slot_in(State::Established) else { return false };
        let Some(negotiated) = self.connections[slot].as_ref().and_then(|c| c.negotiated.as_ref()) else {
            return false;
        };
        let enhanced = negotiated.enhanced_refresh;
        for family in negotiated.families.iter() {
            sink.refresh(self.id, family, enhanced);
        }
        self.announce(slot, now, sink);
        true
    }

    /// Handles a ROUTE-REFRESH of the established session: a request or a marker.
    pub(super) fn handle_route_refresh(
        &mut self,
        slot: usize,
        body: &[u8],
        now: Instant,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(negotiated) = self.connections[slot].as_ref().and_then(|c| c.negotiated.as_ref()) else {
            return Ok(());
        };
        let (families, enhanced) = (negotiated.families, negotiated.enhanced_refresh);
        let waits_for_end_of_rib = negotiated.graceful_restart.is_some();
        let refresh = match RouteRefresh::decode(body) {
            Ok(refresh) => refresh,
            // If the capability is not negotiated, markers of any length have no meaning (RFC 7313
            // §5).
            Err(_) if !enhanced => return Ok(()),
            Err(error) => return Err(WireError::from(error).into()),
        };
        // Families and subtypes that were not negotiated are ignored (RFC 2918 §4, RFC 7313 §5).
        let Some(family) = refresh.family.family().filter(|family| families.contains(*family)) else {
            return Ok(());
        };
        match refresh.subtype {
            RouteRefresh::REQUEST => {
                sink.refresh(self.id, family, enhanced);
                self.announce(slot, now, sink);
            }
            RouteRefresh::BEGIN if enhanced && waits_for_end_of_rib && !self.end_of_rib.contains(family) => {
                let fault = format!("BoRR of {family} before its End-of-RIB; ignored");
                report(&mut self.malformed, self.id, &self.config, fault, sink);
            }
            RouteRefresh::BEGIN if enhanced => {
                self.refreshing.insert(family);
                self.timers.set(Timer::Refresh, now + REFRESH_TIME);
                sink.mark_stale(self.id, family, true);
            }
            RouteRefresh::END if enhanced && self.refreshing.contains(family) => {
                self.end_refresh(FamilySet::from_iter([family]), sink);
            }
            RouteRefresh::END if enhanced => {
                let fault = format!("EoRR of {family} without a BoRR; ignored");
                report(&mut self.malformed, self.id, &self.config, fault, sink);
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the paths that were not advertised again.
    pub(super) fn end_refresh(&mut self, families: FamilySet, sink: &mut impl Sink) {
        for family in families.iter() {
            self.refreshing.remove(family);
            let paths = sink.sweep(self.id, family);
            sink.event(Event::StaleSwept { peer: self.id, address: self.config.key(), family, paths });
        }
        if self.refreshing.is_empty() {
            self.timers.stop(Timer::Refresh);
        }
    }

    /// Clears the marks if the session is lost before EoRR, because these paths are no older than
    /// the others.
    pub(super) fn abandon_refresh(&mut self, sink: &mut impl Sink) {
        for family in self.refreshing.iter() {
            sink.mark_stale(self.id, family, false);
        }
        self.refreshing = FamilySet::EMPTY;
        self.timers.stop(Timer::Refresh);
    }
}
