//! Received octets and their effect on the state machine; output for the connection.

use std::time::Instant;

use super::{Peer, Timer};
use crate::config::PeerConfig;
use crate::io::status::MessageCounts;
use crate::io::{ConnId, Event};
use crate::session::connection::{self, Connection, Origin};
use crate::session::negotiated::Negotiated;
use crate::session::{COLLISION_TIME, CONFIRM_DELAY, CONFIRM_MARGIN, Fault, Sink, State};
use crate::types::{Family, FamilySet, PeerId};
use crate::wire::{Frame, HEADER, MAX_MESSAGE, MessageKind, Notification, Open, WireError, decode_update};

/// The highest number of distinct faults of UPDATEs that a session reports.
const MALFORMED_LIMIT: usize = 16;

impl Peer {
    /// Received octets of a connection, in order, in pieces of any size.
    pub fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now: Instant, sink: &mut impl Sink) {
        let Some(slot) = self.slot_of(conn) else { return };
        let Some(connection) = &mut self.connections[slot] else { return };
        self.traffic.received.octets += bytes.len() as u64;
        let mut kept = connection.take_input();
        let joined = !kept.is_empty();
        if joined {
            kept.extend_from_slice(bytes);
        }
        let octets: &[u8] = if joined { &kept } else { bytes };
        let mut taken = 0;
        // Each message may end the connection.
        while let Some(connection) =
            self.connections[slot].as_ref().filter(|connection| connection.id == conn)
        {
            let next = connection.frame(&octets[taken..]);
            let kind = next.as_ref().ok().and_then(|frame| frame.as_ref().map(|frame| frame.kind));
            if kind == Some(MessageKind::Keepalive) {
                self.decided(slot, now);
            }
            if kind != Some(MessageKind::Notification) && self.is_undecided(slot) {
                if octets.len() - taken > MAX_MESSAGE {
                    self.fail(slot, Fault::Collision, now, sink);
                }
                break;
            }
            let handled = match next {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    taken += frame.len;
                    self.handle_message(slot, frame, now, sink)
                }
                Err(error) => Err(WireError::from(error).into()),
            };
            if let Err(fault) = handled {
                if let Fault::Notified(notification) = &fault {
                    self.notification_received = Some((notification.clone(), now));
                }
                self.fail(slot, fault, now, sink);
            }
        }
        match joined {
            true => drop(kept.drain(..taken)),
            false => kept.extend_from_slice(&bytes[taken..]),
        }
        if let Some(connection) = self.connections[slot].as_mut().filter(|connection| connection.id == conn) {
            connection.keep_input(kept);
        }
        self.settle(now);
    }

    /// Handles one message. An error ends the connection.
    fn handle_message(
        &mut self,
        slot: usize,
        frame: Frame<'_>,
        now: Instant,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(connection) = &mut self.connections[slot] else { return Ok(()) };
        let state = connection.state;
        count(&mut self.traffic.received, frame.kind);
        match (frame.kind, state) {
            (MessageKind::Notification, _) => {
                let notification = Notification::decode(frame.body).map_err(WireError::from)?;
                return Err(Fault::Notified(notification));
            }
            (MessageKind::Open, State::OpenSent) => {
                let open = Open::decode(frame.body).map_err(WireError::from)?;
                return self.handle_open(slot, open, now, sink);
            }
            (MessageKind::Open, State::Active) => {
                let open = Open::decode(frame.body).map_err(WireError::from)?;
                return self.handle_early_open(slot, open, now, sink);
            }
            (MessageKind::Keepalive, State::OpenConfirm) => {
                connection.restart_hold(now);
                self.establish(slot, now, sink);
            }
            (MessageKind::Keepalive, State::Established) => connection.restart_hold(now),
            (MessageKind::Update, State::Established) => {
                connection.restart_hold(now);
                return self.handle_update(slot, frame.body, sink);
            }
            (MessageKind::RouteRefresh, State::Established) => {
                return self.handle_route_refresh(slot, frame.body, now, sink);
            }
            (kind, state) => return Err(Fault::Unexpected { kind, state }),
        }
        Ok(())
    }

    /// Whether messages of a connection wait, except a NOTIFICATION: for this side's delayed KEEPALIVE, or
    /// for its delayed OPEN, after the peer's OPEN and while the other connection may be Established at the
    /// peer.
    fn is_undecided(&self, slot: usize) -> bool {
        let confirmed = |c: &Connection| c.state == State::OpenConfirm;
        let Some(connection) = &self.connections[slot] else { return false };
        let other = &self.connections[1 - slot];
        let is_delayed = connection.state == State::Active;
        connection.confirm_due
            || is_delayed && (connection.their_open.is_some() || other.as_ref().is_some_and(confirmed))
    }

    /// An OPEN while this side's OPEN is delayed: it identifies the peer. If this connection is the one to
    /// keep, the other one ends.
    fn handle_early_open(
        &mut self,
        slot: usize,
        theirs: Open,
        now: Instant,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        let (Some(connection), Some(other)) = (&self.connections[slot], &self.connections[1 - slot]) else {
            return Ok(());
        };
        // An OPEN that does not match the configuration ends this connection and not the other one.
        Negotiated::new(&self.config, &self.offer(), &theirs).map_err(WireError::from)?;
        if other.state == State::OpenSent && connection.origin == self.keeper(&theirs) {
            // This ends the delay.
            self.fail(1 - slot, Fault::Collision, now, sink);
            return self.handle_open(slot, theirs, now, sink);
        }
        if let Some(connection) = &mut self.connections[slot] {
            connection.their_open = Some(theirs);
        }
        Ok(())
    }

    /// OpenSent to OpenConfirm, if the OPEN matches the configuration and the connection wins a
    /// collision.
    pub(super) fn handle_open(
        &mut self,
        slot: usize,
        theirs: Open,
        now: Instant,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(connection) = &mut self.connections[slot] else { return Ok(()) };
        let Some(ours) = &connection.our_open else { return Ok(()) };
        let negotiated = Negotiated::new(&self.config, ours, &theirs).map_err(WireError::from)?;
        let origin = connection.origin;
        match self.collide(origin, self.connections[1 - slot].as_ref(), &theirs, now) {
            Collision::None => {}
            Collision::This => return Err(Fault::Collision),
            Collision::Other(fault) => self.fail(1 - slot, fault, now, sink),
        }
        // The peer may have to close a connection of its own, which may still be unknown here.
        let awaits_collision = origin == Origin::Outgoing && self.keeper(&theirs) == Origin::Outgoing;
        let Some(connection) = &mut self.connections[slot] else { return Ok(()) };
        connection.negotiated = Some(negotiated);
        connection.their_open = Some(theirs);
        connection.state = State::OpenConfirm;
        connection.restart_hold(now);
        if self.slot_in(State::Connect).is_none() {
            self.timers.stop(Timer::ConnectRetry);
        }
        if !awaits_collision {
            self.send_keepalive(slot, now, sink);
        } else if let Some(connection) = &mut self.connections[slot] {
            connection.confirm_due = true;
            connection.timers.set(connection::Timer::DelayConfirm, now + CONFIRM_DELAY);
        }
        Ok(())
    }

    /// The peer has handled this side's OPEN, and with it the collision: the delayed KEEPALIVE, if there is
    /// one, waits only for the rest of that work.
    fn decided(&mut self, slot: usize, now: Instant) {
        let Some(connection) = self.connections[slot].as_mut().filter(|it| it.confirm_due) else { return };
        let timer = connection::Timer::DelayConfirm;
        let settled = now + CONFIRM_MARGIN;
        let due = connection.timers.get(timer).map_or(settled, |due| due.min(settled));
        connection.timers.set(timer, due);
    }

    /// Sends the delayed KEEPALIVE, if there is one. Then handles the messages that waited for it.
    pub(super) fn confirm(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let Some(connection) = self.connections[slot].as_mut().filter(|it| it.confirm_due) else { return };
        let conn = connection.id;
        connection.confirm_due = false;
        self.send_keepalive(slot, now, sink);
        self.handle_bytes(conn, &[], now, sink);
    }

    /// The connection to close when an OPEN arrives on a connection of `origin` (RFC 4271 §6.8).
    fn collide(&self, origin: Origin, other: Option<&Connection>, theirs: &Open, now: Instant) -> Collision {
        let Some(other) = other else { return Collision::None };
        match other.state {
            // In OpenSent the other end is not identified: the later OPEN of the two decides.
            State::Idle | State::Connect | State::OpenSent => Collision::None,
            State::Active if origin == self.keeper(theirs) => Collision::None,
            State::OpenConfirm if origin == self.keeper(theirs) => Collision::Other(Fault::Collision),
            State::Active | State::OpenConfirm => Collision::This,
            State::Established => {
                let restart = other.negotiated.as_ref().is_some_and(|n| n.graceful_restart.is_some());
                // Shortly after Established, the new connection may belong to a collision and not
                // to a restart.
                let settled = now.saturating_duration_since(other.since) >= COLLISION_TIME;
                if restart && settled && origin == Origin::Incoming {
                    Collision::Other(Fault::Superseded)
                } else {
                    Collision::This
                }
            }
        }
    }

    /// The side whose connection stays in a collision: the one with the higher identifier. If two ASes use
    /// the same identifier, the higher AS number decides (RFC 6286 §2.3).
    fn keeper(&self, theirs: &Open) -> Origin {
        let ours = (self.local.router_id, self.config.paths.as_to_peer(self.local.asn));
        if ours > (theirs.router_id, theirs.my_as) { Origin::Outgoing } else { Origin::Incoming }
    }

    /// OpenConfirm to Established.
    fn establish(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let other = 1 - slot;
        if let Some(connection) = &self.connections[other].as_ref().filter(|it| it.state != State::Active) {
            let needless = connection.state == State::Connect;
            self.fail(other, if needless { Fault::Needless } else { Fault::Collision }, now, sink);
        }
        self.timers.stop(Timer::ConnectRetry);
        self.established_count += 1;
        self.failures.established();
        self.end_of_rib = FamilySet::EMPTY;
        self.refreshing = FamilySet::EMPTY;
        self.malformed.clear();

        let Some(connection) = &mut self.connections[slot] else { return };
        connection.state = State::Established;
        connection.since = now;
        let (Some(negotiated), Some(local)) = (connection.negotiated.clone(), connection.local) else {
            return;
        };
        let families = negotiated.families;
        let kept = self.resume(&negotiated, now, sink);
        if let Some(session) = self.session() {
            sink.established(self.id, session, kept);
        }
        sink.event(Event::PeerUp {
            peer: self.id,
            address: self.config.key(),
            remote_as: self.config.remote_as,
            local,
            families,
        });
    }

    fn handle_update(&mut self, slot: usize, body: &[u8], sink: &mut impl Sink) -> Result<(), Fault> {
        let Some(negotiated) = self.connections[slot].as_ref().and_then(|c| c.negotiated.as_ref()) else {
            return Ok(());
        };
        let context = negotiated.decode_context();
        let update = decode_update(body, &context, &mut self.scratch).map_err(WireError::from)?;
        let withdraw =
            update.treat_as_withdraw.iter().map(|fault| format!("{fault}; its routes are withdrawn"));
        let discard = update.discarded.iter().map(|fault| format!("{fault}; ignored"));
        for fault in withdraw.chain(discard) {
            report(&mut self.malformed, self.id, &self.config, fault, sink);
        }
        let received = sink.update(self.id, &update);
        let end_of_rib = update.end_of_rib.filter(|family| context.families.contains(*family));
        self.check_limit(received)?;
        if let Some(family) = end_of_rib {
            self.handle_end_of_rib(family, sink);
        }
        Ok(())
    }

    fn handle_end_of_rib(&mut self, family: Family, sink: &mut impl Sink) {
        self.sweep(FamilySet::from_iter([family]), sink);
        self.overdue.remove(family);
        if !self.end_of_rib.contains(family) {
            self.end_of_rib.insert(family);
            sink.event(Event::EndOfRib { peer: self.id, address: self.config.key(), family });
        }
    }

    /// Output of the connection; see
    /// [`Speaker::poll_transmit`](crate::speaker::Speaker::poll_transmit).
    pub fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        budget: usize,
        now: Instant,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(slot) = self.slot_of(conn) else { return false };
        let Some(connection) = &mut self.connections[slot] else { return false };
        let start = out.len();
        connection.take_output(out);
        let control = out.len();
        let mut more = false;
        if connection.state == State::Established {
            let left = budget.saturating_sub(control - start);
            more = match left {
                0 => true,
                left => sink.write_updates(self.id, out, left),
            };
        }
        if more {
            connection.timers.set(connection::Timer::SendHold, now + connection.send_hold());
        } else {
            connection.drained();
        }
        self.traffic.sent.octets += (out.len() - start) as u64;
        let (updates, refreshes) = count_messages(&out[control..]);
        self.traffic.sent.update += updates;
        self.traffic.sent.route_refresh += refreshes;
        if updates > 0 {
            // An UPDATE also restarts the KeepaliveTimer (RFC 4271 §8.2.2, Established, event 27).
            self.restart_keepalive(slot, now);
        }
        more
    }
}

/// The connection to close.
enum Collision {
    None,
    This,
    Other(Fault),
}

/// Reports a fault in the peer's UPDATEs, each text once per session.
pub(super) fn report(
    reported: &mut Vec<String>,
    peer: PeerId,
    config: &PeerConfig,
    fault: String,
    sink: &mut impl Sink,
) {
    if reported.len() < MALFORMED_LIMIT && !reported.contains(&fault) {
        reported.push(fault.clone());
        sink.event(Event::MalformedUpdate { peer, address: config.key(), fault });
    }
}

fn count(counts: &mut MessageCounts, kind: MessageKind) {
    *match kind {
        MessageKind::Open => &mut counts.open,
        MessageKind::Update => &mut counts.update,
        MessageKind::Notification => &mut counts.notification,
        MessageKind::Keepalive => &mut counts.keepalive,
        MessageKind::RouteRefresh => &mut counts.route_refresh,
    } += 1;
}

/// Counts the UPDATEs and the refresh markers that this side encoded into `octets`.
fn count_messages(mut octets: &[u8]) -> (u64, u64) {
    let (mut updates, mut refreshes) = (0, 0);
    while let Some(&[high, low, kind]) = octets.get(HEADER - 3..HEADER) {
        let length = usize::from(u16::from_be_bytes([high, low]));
        octets = octets.get(length.max(HEADER)..).unwrap_or_default();
        *if kind == MessageKind::Update as u8 { &mut updates } else { &mut refreshes } += 1;
    }
    (updates, refreshes)
}
