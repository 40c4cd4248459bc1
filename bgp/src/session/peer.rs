//! The state machine of the peer: operator's commands, opened and lost connections, timers.
//! Messages are handled in `messages`; `status` has the operator's view.

mod bfd;
mod failures;
mod messages;
mod refresh;
mod retention;
mod status;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::{self, Connection, Origin};
use super::negotiated::{Local, offer};
use super::timers::{Jitter, Kind, Timers};
use super::{
    COLLISION_TIME, CONNECT_TIME, LONGEST_IDLE_HOLD, MIN_IDLE_HOLD, OPEN_DELAY, OPEN_HOLD_TIME, STABLE_AFTER,
    Session, Sink, State,
};
use crate::bfd::Status;
use crate::config::PeerConfig;
use crate::io::cause::{Cause, ConnectFailure};
use crate::io::fault::{Fault, Retry};
use crate::io::status::Traffic;
use crate::io::{Action, Change, ConnId, Event, ListenKey, Refusal, SocketOptions};
use crate::types::{Family, FamilySet, PeerId};
use crate::wire::{Notification, Open, Scratch};
use failures::Failures;

/// Timers of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// IdleHoldTimer: the end of Idle after an error.
    IdleHold,
    /// ConnectRetryTimer: the next attempt, or the end of this one.
    ConnectRetry,
    /// The peer's Restart Time (RFC 4724 §4.2).
    Restart,
    /// The end of the wait for End-of-RIB.
    StalePaths,
    /// The end of the wait for EoRR (RFC 7313 §4).
    Refresh,
    /// Long-lived Stale Time of IPv4 unicast (RFC 9494 §4.2).
    LongLivedV4,
    /// Long-lived Stale Time of IPv6 unicast.
    LongLivedV6,
    /// The end of the wait for BFD after the peer replaced its BFD session.
    BfdReturn,
}

impl Kind for Timer {
    const ALL: &'static [Self] = &[
        Timer::IdleHold,
        Timer::ConnectRetry,
        Timer::Restart,
        Timer::StalePaths,
        Timer::Refresh,
        Timer::LongLivedV4,
        Timer::LongLivedV6,
        Timer::BfdReturn,
    ];

    fn index(self) -> usize {
        self as usize
    }
}

/// Whether this side wants a session with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Idle until an operator acts.
    Stopped,
    /// Idle until the IdleHoldTimer expires.
    Held,
    /// Connect, Active and further.
    Running,
}

/// One configured peer.
#[derive(Debug)]
pub struct Peer {
    id: PeerId,
    config: PeerConfig,
    local: Local,
    mode: Mode,
    connections: [Option<Connection>; 2],
    timers: Timers<Timer>,
    jitter: Jitter,
    /// The next IdleHoldTime.
    idle_hold: Duration,
    /// The next delay before an attempt to connect.
    connect_wait: Duration,
    /// Families with stale paths.
    stale: FamilySet,
    /// The stale families with a running Restart Time.
    restart_time: FamilySet,
    /// The stale families with long-lived stale paths (RFC 9494), and the Long-lived Stale Time of
    /// each family. A family may have paths of both kinds if the peer was back for a moment.
    long_lived: FamilySet,
    long_lived_time: [Duration; 2],
    /// Families with a Long-lived Stale Time that ended in this session, before End-of-RIB.
    overdue: FamilySet,
    /// Families with End-of-RIB in this session.
    end_of_rib: FamilySet,
    /// Families between BoRR and EoRR. Never a family of `stale`.
    refreshing: FamilySet,
    state: State,
    state_since: Instant,
    established_count: u64,
    flaps: u64,
    traffic: Traffic,
    failures: Failures,
    notification_sent: Option<(Notification, Instant)>,
    notification_received: Option<(Notification, Instant)>,
    /// Texts of [`Event::MalformedUpdate`] in this session.
    malformed: Vec<String>,
    /// The status of the BFD session, and the time of its last change of state.
    bfd: Option<(Status, Instant)>,
    scratch: Scratch,
}

impl Peer {
    /// Creates a peer in Idle; [`Peer::start`] starts it.
    pub fn new(id: PeerId, config: PeerConfig, local: Local, seed: u64, now: Instant) -> Self {
        Peer {
            id,
            config,
            local,
            mode: Mode::Stopped,
            connections: [None, None],
            timers: Timers::default(),
            jitter: Jitter::new(seed),
            idle_hold: MIN_IDLE_HOLD,
            connect_wait: MIN_IDLE_HOLD,
            stale: FamilySet::EMPTY,
            restart_time: FamilySet::EMPTY,
            long_lived: FamilySet::EMPTY,
            long_lived_time: [Duration::ZERO; 2],
            overdue: FamilySet::EMPTY,
            end_of_rib: FamilySet::EMPTY,
            refreshing: FamilySet::EMPTY,
            state: State::Idle,
            state_since: now,
            established_count: 0,
            flaps: 0,
            traffic: Traffic::default(),
            failures: Failures::new(now),
            notification_sent: None,
            notification_received: None,
            malformed: Vec::new(),
            bfd: None,
            scratch: Scratch::default(),
        }
    }

    /// The peer's configuration.
    pub fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// The peer's index.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The state of RFC 4271 §8.2.2.
    pub fn state(&self) -> State {
        self.state
    }

    /// The Established session.
    pub fn session(&self) -> Option<Session<'_>> {
        let connection = self.established()?;
        Some(Session {
            negotiated: connection.negotiated.as_ref()?,
            config: &self.config,
            local: connection.local?,
            remote: connection.remote,
            our_open: connection.our_open.as_ref()?,
            their_open: connection.their_open.as_ref()?,
        })
    }

    /// The peer's entry in the key table of the listening sockets.
    pub fn listen_key(&self) -> ListenKey {
        let SocketOptions { password, min_ttl, interface, .. } = self.socket_options();
        ListenKey { remote: self.config.address, interface, password, min_ttl }
    }

    /// Whether the peer has no connection, no stale path and no error that holds it idle: its
    /// removal would lose no state. This is also true for a peer that waits in Active.
    pub fn is_spent(&self) -> bool {
        self.mode != Mode::Held && self.stale.is_empty() && self.connections.iter().all(Option::is_none)
    }

    /// Families for which the peer sent End-of-RIB in this session.
    pub fn end_of_rib(&self) -> FamilySet {
        self.end_of_rib
    }

    /// The initial selection is done: OPENs carry no R bit any more.
    pub fn restart_complete(&mut self) {
        self.local.restarting = false;
    }

    /// ManualStart. Does nothing if the peer is configured as shut down or was started already.
    pub fn start(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.mode == Mode::Stopped && !self.config.shutdown {
            self.begin(now, sink);
        }
        self.settle(now);
    }

    /// ManualStop: every connection ends with `fault`, and no attempt follows.
    pub fn stop(&mut self, fault: Fault, now: Instant, sink: &mut impl Sink) {
        self.mode = Mode::Stopped;
        self.timers.stop(Timer::IdleHold);
        self.timers.stop(Timer::ConnectRetry);
        for slot in 0..self.connections.len() {
            self.fail(slot, fault.clone(), now, sink);
        }
        self.sweep(self.stale, sink);
        self.settle(now);
    }

    /// Applies another configuration for the same address. Changes that need no new session take
    /// effect at once. The tables apply policies and next hops.
    pub fn update(&mut self, config: PeerConfig, now: Instant, sink: &mut impl Sink) -> Change {
        if self.config == config {
            return Change::Unchanged;
        }
        let reset = self.config.requires_reset(&config);
        let before = std::mem::replace(&mut self.config, config);
        match reset {
            true => self.reconfigure(&before, now, sink),
            false => self.apply(&before, now, sink),
        }
        self.settle(now);
        if reset { Change::Reset } else { Change::Applied }
    }

    fn reconfigure(&mut self, before: &PeerConfig, now: Instant, sink: &mut impl Sink) {
        if self.config.shutdown {
            return match before.shutdown {
                true => {}
                false => {
                    let communication = self.config.shutdown_communication.clone();
                    self.stop(Fault::Shutdown { communication }, now, sink);
                }
            };
        }
        if self.mode == Mode::Stopped && !before.shutdown {
            return; // the speaker itself has stopped
        }
        for slot in 0..self.connections.len() {
            // Otherwise the end of one connection would start a new one before the other connection
            // is closed.
            self.mode = Mode::Stopped;
            self.fail(slot, Fault::ConfigurationChange, now, sink);
        }
        // The families of which the paths are removed: the new session will not carry them, or
        // another AS advertised the paths.
        let gone = match self.config.graceful_restart {
            Some(_) if self.config.remote_as == before.remote_as => {
                self.stale.difference(self.config.families)
            }
            _ => self.stale,
        };
        self.sweep(gone, sink);
        self.idle_hold = MIN_IDLE_HOLD;
        self.connect_wait = MIN_IDLE_HOLD;
        self.failures.forget_attempt();
        self.begin(now, sink);
    }

    /// Resets the session for an operator: the current one ends, and a new one begins. An idle hold
    /// after an error ends too. The new connection starts a little later. Otherwise it would arrive
    /// before the peer has read the reason of the end, and the peer would assume a restart of this
    /// side. Returns false if the peer or the speaker is stopped.
    pub fn reset(&mut self, fault: &Fault, now: Instant, sink: &mut impl Sink) -> bool {
        if self.mode == Mode::Stopped || self.config.shutdown {
            return false;
        }
        self.idle_hold = MIN_IDLE_HOLD;
        self.connect_wait = MIN_IDLE_HOLD;
        match self.connections.iter().any(Option::is_some) {
            true => (0..self.connections.len()).for_each(|slot| self.fail(slot, fault.clone(), now, sink)),
            false => self.begin(now, sink),
        }
        if fault.is_hard() {
            self.sweep(self.stale, sink);
        }
        self.settle(now);
        true
    }

    fn apply(&mut self, before: &PeerConfig, now: Instant, sink: &mut impl Sink) {
        let options = self.socket_options();
        for connection in self.connections.iter_mut().flatten() {
            if let Some(negotiated) = &mut connection.negotiated {
                negotiated.set_keepalive(&self.config);
                if negotiated.keepalive.is_zero() {
                    connection.timers.stop(connection::Timer::Keepalive);
                } else if self.config.keepalive != before.keepalive {
                    connection
                        .timers
                        .set(connection::Timer::Keepalive, now + self.jitter.apply(negotiated.keepalive));
                }
            }
            let ttl = |config: &PeerConfig| (config.ebgp_multihop, config.ttl_security);
            if connection.state >= State::Active && ttl(before) != ttl(&self.config) {
                sink.action(Action::Configure { conn: connection.id, options: options.clone() });
            }
        }
        if self.config.passive && !before.passive {
            self.timers.stop(Timer::ConnectRetry);
            if let Some(slot) = self.slot_in(State::Connect) {
                self.fail(slot, Fault::Needless, now, sink);
            }
        } else if !self.config.passive && before.passive && self.state == State::Active {
            self.connect(now, sink);
        }
        if let Some(slot) = self.slot_in(State::Established)
            && let Err(fault) = self.check_limit(sink.received(self.id))
        {
            self.fail(slot, fault, now, sink);
        }
    }

    /// The tables have UPDATEs for the peer: reports the connection to the shell if the session is
    /// Established.
    pub fn updates_pending(&mut self, now: Instant, sink: &mut impl Sink) {
        if let Some(slot) = self.slot_in(State::Established) {
            self.announce(slot, now, sink);
        }
    }

    /// TcpConnectionConfirmed, for a connection that this side opened.
    pub fn handle_connected(
        &mut self,
        conn: ConnId,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
        sink: &mut impl Sink,
    ) {
        let Some(slot) = self.slot_of(conn) else { return };
        let Some(connection) = self.connections[slot].as_mut().filter(|c| c.state == State::Connect) else {
            return;
        };
        connection.local = Some(local);
        connection.remote = remote;
        self.timers.stop(Timer::ConnectRetry);
        self.greet(slot, now, sink);
        self.settle(now);
    }

    /// TcpConnectionFails, for an attempt of this side.
    pub fn handle_connect_failed(
        &mut self,
        conn: ConnId,
        failure: ConnectFailure,
        now: Instant,
        sink: &mut impl Sink,
    ) {
        if let Some(slot) = self.slot_of(conn) {
            self.fail(slot, Fault::Connect(failure), now, sink);
        }
        self.settle(now);
    }

    /// The peer connected. `Ok` has the name of the connection.
    pub fn handle_accepted(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
        sink: &mut impl Sink,
    ) -> Result<ConnId, Refusal> {
        let peer = self.config.key();
        match self.mode {
            Mode::Stopped => return Err(Refusal::Shutdown(peer)),
            Mode::Held => {
                let until = self.timers.get(Timer::IdleHold).unwrap_or(now);
                return Err(Refusal::IdleHold { peer, left: until.saturating_duration_since(now) });
            }
            Mode::Running => {}
        }
        if let Some(expected) = self.config.local_address.filter(|expected| *expected != local.ip()) {
            return Err(Refusal::LocalAddress { peer, local: local.ip(), expected });
        }
        // At most one incoming connection waits for the peer's OPEN. If another one arrives, the
        // older one is dead.
        for slot in 0..self.connections.len() {
            let waits = |c: &Connection| match c.origin {
                Origin::Incoming => c.state != State::Established,
                Origin::Outgoing => c.state == State::Active,
            };
            if self.connections[slot].as_ref().is_some_and(waits) {
                self.drop_connection(slot, Fault::Replaced, now, sink);
            }
        }
        let Some(slot) = self.connections.iter().position(Option::is_none) else {
            // Impossible: Established closes every other connection, except one without an OPEN.
            return Err(Refusal::IdleHold { peer, left: Duration::ZERO });
        };
        let conn = sink.open_conn(self.id);
        self.connections[slot] = Some(Connection::new(conn, Origin::Incoming, Some(local), remote, now));
        sink.action(Action::Configure { conn, options: self.socket_options() });
        self.greet(slot, now, sink);
        self.settle(now);
        Ok(conn)
    }

    /// TCP ended; `reason` is a text.
    pub fn handle_closed(&mut self, conn: ConnId, reason: String, now: Instant, sink: &mut impl Sink) {
        if let Some(slot) = self.slot_of(conn) {
            self.fail(slot, Fault::Closed(reason), now, sink);
        }
        self.settle(now);
    }

    /// The time at which [`Peer::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.connections.iter().flatten().filter_map(|connection| connection.timers.next());
        connections.chain(self.timers.next()).min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink) {
        while let Some(timer) = self.timers.take_expired(now) {
            match timer {
                Timer::IdleHold => self.begin(now, sink),
                Timer::ConnectRetry => self.retry_connect(now, sink),
                Timer::Restart => self.end_restart_time(now, sink),
                Timer::StalePaths => self.sweep(self.stale, sink),
                Timer::LongLivedV4 => self.end_long_lived_time(Family::Ipv4Unicast, sink),
                Timer::LongLivedV6 => self.end_long_lived_time(Family::Ipv6Unicast, sink),
                Timer::Refresh => self.end_refresh(self.refreshing, sink),
                Timer::BfdReturn => self.end_bfd_return(now, sink),
            }
        }
        for slot in 0..self.connections.len() {
            while let Some(connection) = &mut self.connections[slot]
                && let Some(timer) = connection.timers.take_expired(now)
            {
                match timer {
                    connection::Timer::Hold => {
                        let hold = connection.negotiated.as_ref().map_or(OPEN_HOLD_TIME, |n| n.hold_time);
                        self.fail(slot, Fault::HoldTimer { seconds: hold.as_secs() }, now, sink);
                    }
                    connection::Timer::SendHold => {
                        let seconds = connection.send_hold().as_secs();
                        self.fail(slot, Fault::SendHoldTimer { seconds }, now, sink);
                    }
                    connection::Timer::Keepalive => self.send_keepalive(slot, now, sink),
                    connection::Timer::DelayOpen if self.established().is_some() => {
                        self.fail(slot, Fault::Collision, now, sink);
                    }
                    connection::Timer::DelayOpen => self.end_open_delay(slot, now, sink),
                    connection::Timer::DelayConfirm => self.confirm(slot, now, sink),
                }
            }
        }
        self.settle(now);
    }

    /// Leaves Idle: AutomaticStart, passive or not.
    fn begin(&mut self, now: Instant, sink: &mut impl Sink) {
        self.mode = Mode::Running;
        self.timers.stop(Timer::IdleHold);
        if !self.config.passive {
            self.connect(now, sink);
        }
    }

    fn connect(&mut self, now: Instant, sink: &mut impl Sink) {
        let Some(slot) = self.connections.iter().position(Option::is_none) else { return };
        let conn = sink.open_conn(self.id);
        let remote = SocketAddr::new(self.config.address, self.config.port);
        self.connections[slot] = Some(Connection::new(conn, Origin::Outgoing, None, remote, now));
        self.timers.set(Timer::ConnectRetry, now + self.attempt_time());
        sink.action(Action::Connect {
            conn,
            peer: self.id,
            local: self.config.local_address,
            remote,
            options: self.socket_options(),
        });
    }

    fn attempt_time(&self) -> Duration {
        self.config.connect_retry.min(CONNECT_TIME)
    }

    /// ConnectRetryTimer_Expires: in Connect the attempt is repeated, in Active an attempt starts.
    fn retry_connect(&mut self, now: Instant, sink: &mut impl Sink) {
        if let Some(slot) = self.slot_in(State::Connect) {
            let seconds = self.attempt_time().as_secs();
            let signed = self.config.password.is_some();
            let refused = self.connections[slot].as_ref().map(|attempt| attempt.refused).unwrap_or_default();
            self.drop_connection(slot, Fault::NoAnswer { seconds, signed, refused }, now, sink);
        }
        if self.mode == Mode::Running && self.wants_to_connect() {
            self.connect(now, sink);
        }
    }

    /// Whether this side should attempt to connect: true until one connection counts. An outgoing
    /// connection always counts, an incoming one only after its OPEN has arrived. If that OPEN
    /// arrives later, §6.8 decides.
    fn wants_to_connect(&self) -> bool {
        let counts = |c: &Connection| c.origin == Origin::Outgoing || c.state >= State::OpenConfirm;
        !self.config.passive && !self.connections.iter().flatten().any(counts)
    }

    fn schedule_connect(&mut self, now: Instant) {
        // A peer with stale paths should be found soon after its return. Long-lived stale paths
        // have more time.
        let urgent = !self.restart_time.is_empty();
        let longest = if urgent { self.attempt_time() } else { self.config.connect_retry };
        let wait = self.connect_wait.min(longest);
        self.timers.set(Timer::ConnectRetry, now + self.jitter.apply(wait));
        self.connect_wait = (2 * wait).min(self.config.connect_retry);
    }

    /// Sends OPEN on a new connection, or delays it if the connection may be the second one of a
    /// collision.
    fn greet(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let first = self.connections[1 - slot].as_ref().and_then(|other| other.opened);
        let collides = first.is_some_and(|opened| now.saturating_duration_since(opened) < COLLISION_TIME);
        match &mut self.connections[slot] {
            Some(connection) if collides => {
                connection.state = State::Active;
                connection.timers.set(connection::Timer::DelayOpen, now + OPEN_DELAY);
            }
            _ => self.send_open(slot, now, sink),
        }
    }

    /// Sends the delayed OPEN, if there is one. Then handles the messages that waited for it.
    fn end_open_delay(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let Some(connection) = &mut self.connections[slot] else { return };
        if connection.state != State::Active {
            return;
        }
        let (conn, theirs) = (connection.id, connection.their_open.take());
        self.send_open(slot, now, sink);
        if let Some(theirs) = theirs
            && let Err(fault) = self.handle_open(slot, theirs, now, sink)
        {
            return self.fail(slot, fault, now, sink);
        }
        self.handle_bytes(conn, &[], now, sink);
    }

    /// The OPEN of this side.
    fn offer(&self) -> Open {
        let forwarding = self.local.forwarding || self.established_count > 0;
        offer(&self.config, &self.local, forwarding)
    }

    fn send_open(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let open = self.offer();
        let Some(connection) = &mut self.connections[slot] else { return };
        connection.queue(|out| open.encode(out));
        connection.our_open = Some(open);
        connection.opened = Some(now);
        connection.state = State::OpenSent;
        connection.timers.stop(connection::Timer::DelayOpen);
        connection.timers.set(connection::Timer::Hold, now + OPEN_HOLD_TIME);
        self.traffic.sent.open += 1;
        self.announce(slot, now, sink);
    }

    fn send_keepalive(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let sent = connection.queue_keepalive();
        self.traffic.sent.keepalive += u64::from(sent);
        self.restart_keepalive(slot, now);
        self.announce(slot, now, sink);
    }

    fn restart_keepalive(&mut self, slot: usize, now: Instant) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let interval =
            connection.negotiated.as_ref().map_or(Duration::ZERO, |negotiated| negotiated.keepalive);
        if !interval.is_zero() {
            connection.timers.set(connection::Timer::Keepalive, now + self.jitter.apply(interval));
        }
    }

    fn announce(&mut self, slot: usize, now: Instant, sink: &mut impl Sink) {
        let Some(connection) = &mut self.connections[slot] else { return };
        if connection.announce() {
            connection.timers.set(connection::Timer::SendHold, now + connection.send_hold());
            sink.writable(connection.id);
        }
    }

    /// Ends a connection. Nothing is delayed on the other one any more. After the last one, the fault
    /// decides the next step.
    fn fail(&mut self, slot: usize, fault: Fault, now: Instant, sink: &mut impl Sink) {
        if self.connections[slot].is_none() {
            return;
        }
        let retry = fault.retry();
        let is_session = self.slot_in(State::Established) == Some(slot);
        self.drop_connection(slot, fault, now, sink);
        if is_session && self.slot_in(State::Active).is_some() {
            self.drop_connection(1 - slot, Fault::Collision, now, sink);
        }
        if self.mode != Mode::Running {
            return;
        }
        if self.connections.iter().any(Option::is_some) {
            if retry == Retry::Soon && self.wants_to_connect() {
                self.schedule_connect(now);
            }
            self.end_open_delay(1 - slot, now, sink);
            return;
        }
        match retry {
            Retry::Hold | Retry::LongHold => {
                if retry == Retry::LongHold {
                    self.idle_hold = LONGEST_IDLE_HOLD;
                }
                self.mode = Mode::Held;
                self.timers.stop(Timer::ConnectRetry);
                self.timers.set(Timer::IdleHold, now + self.jitter.apply(self.idle_hold));
                self.idle_hold = (2 * self.idle_hold).min(LONGEST_IDLE_HOLD);
            }
            Retry::Soon if self.config.passive => {}
            Retry::Soon => self.schedule_connect(now),
            Retry::Now => self.begin(now, sink),
            Retry::Never => self.mode = Mode::Stopped,
        }
    }

    /// Ends a connection; sends its NOTIFICATION, and reports the end to the tables and by an
    /// event.
    fn drop_connection(&mut self, slot: usize, fault: Fault, now: Instant, sink: &mut impl Sink) {
        let Some(mut connection) = self.connections[slot].take() else { return };
        let established = connection.state == State::Established;
        let failure = self.failures.word(&fault, established);
        let notification = fault.notification().filter(|_| connection.state >= State::OpenSent);
        let hard = fault.is_hard() && connection.knows_hard_reset();
        let notification = notification.map(|it| if hard { Notification::hard_reset(&it) } else { it });
        match &fault {
            Fault::Closed(_) | Fault::Connect(_) => {}
            _ => {
                let mut last_words = Vec::new();
                if let Some(notification) = &notification {
                    connection.take_output(&mut last_words);
                    let control = last_words.len();
                    notification.encode(&mut last_words);
                    self.traffic.sent.notification += 1;
                    self.traffic.sent.octets += last_words.len() as u64;
                    debug_assert!(last_words.len() > control);
                    self.notification_sent = Some((notification.clone(), now));
                }
                sink.action(Action::Close { conn: connection.id, last_words });
            }
        }
        if established {
            self.failures.lost(failure.clone(), fault.is_error(), now);
            self.lose_session(&connection, &fault, notification.as_ref(), failure, now, sink);
        } else if fault.is_error() && connection.state != State::Active {
            let (cause, error) = failure;
            // The failure of a second connection is no failure of the Established session.
            if self.established().is_none() {
                self.failures.attempted((cause.clone(), error.clone()), now);
            }
            if self.failures.is_news(&cause, &error) {
                sink.event(Event::PeerError { peer: self.id, address: self.config.key(), error, cause });
            }
        }
    }

    fn lose_session(
        &mut self,
        connection: &Connection,
        fault: &Fault,
        notification: Option<&Notification>,
        (cause, reason): (Cause, String),
        now: Instant,
        sink: &mut impl Sink,
    ) {
        self.abandon_refresh(sink);
        self.timers.stop(Timer::BfdReturn);
        let retained = self.retain(connection.negotiated.as_ref(), fault, now, sink);
        self.end_of_rib = FamilySet::EMPTY;
        self.malformed.clear();
        self.flaps += 1;
        if now.saturating_duration_since(connection.since) >= STABLE_AFTER {
            self.idle_hold = MIN_IDLE_HOLD;
            self.connect_wait = MIN_IDLE_HOLD;
        }
        sink.down(self.id, retained, self.long_lived, fault, notification);
        sink.event(Event::PeerDown { peer: self.id, address: self.config.key(), reason, cause, retained });
        self.begin_retention(now, sink);
    }

    fn check_limit(&self, received: usize) -> Result<(), Fault> {
        match self.config.max_prefixes {
            Some(limit) if received > limit as usize => Err(Fault::PrefixLimit { received, limit }),
            _ => Ok(()),
        }
    }

    fn socket_options(&self) -> SocketOptions {
        let external = self.config.remote_as != self.local.asn;
        let (ttl, min_ttl) = match self.config.ttl_security {
            // A packet of a directly connected peer arrives with TTL 255 (RFC 5082 §3).
            Some(hops) => (Some(255), Some(u8::MAX - (hops - 1))),
            None if external => (Some(self.config.ebgp_multihop.unwrap_or(1)), None),
            None => (None, None),
        };
        SocketOptions {
            password: self.config.password.clone(),
            ttl,
            min_ttl,
            interface: self.config.interface,
        }
    }

    fn slot_of(&self, conn: ConnId) -> Option<usize> {
        self.connections.iter().position(|slot| slot.as_ref().is_some_and(|connection| connection.id == conn))
    }

    fn slot_in(&self, state: State) -> Option<usize> {
        self.connections
            .iter()
            .position(|slot| slot.as_ref().is_some_and(|connection| connection.state == state))
    }

    fn established(&self) -> Option<&Connection> {
        self.connections.iter().flatten().find(|connection| connection.state == State::Established)
    }

    /// Updates the peer's state after an input.
    fn settle(&mut self, now: Instant) {
        let connection = self.connections.iter().flatten().map(|connection| connection.state).max();
        let state = match (self.mode, connection) {
            (_, Some(state)) => state,
            (Mode::Running, None) => State::Active,
            (Mode::Stopped | Mode::Held, None) => State::Idle,
        };
        if state != self.state {
            self.state = state;
            self.state_since = now;
        }
    }
}
