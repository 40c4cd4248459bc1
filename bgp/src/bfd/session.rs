//! One session: the state machine and its timers (RFC 5880 §6.2, §6.8).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::links::Links;
use super::packet::{Diagnostic, Packet, State};
use crate::types::InterfaceName;

/// Maximum rate before a session is Up (§6.8.3).
const SLOW: Duration = Duration::from_secs(1);

/// A removed session that is Up stays Up for this time. The peer's BGP then reads the NOTIFICATION of
/// the same moment before its BFD reports AdminDown: FRR ends its session at AdminDown, and does not
/// read the rest.
pub const LEAVING_TIME: Duration = Duration::from_secs(1);

/// The timers and kind of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdConfig {
    /// Both Desired Min TX Interval and Required Min RX Interval while Up: 10 ms to 60 s. The
    /// slower side decides.
    pub interval: Duration,
    /// Detect Mult: the peer declares the session Down after this many missed packets in a row; 1
    /// to 255.
    pub multiplier: u8,
    /// The peer is more than one hop away (RFC 5883): port 4784, and any TTL is accepted.
    pub multihop: bool,
}

impl BfdConfig {
    /// The fastest interval.
    pub const MIN_INTERVAL: Duration = Duration::from_millis(10);
    /// The slowest interval.
    pub const MAX_INTERVAL: Duration = Duration::from_secs(60);

    /// A single-hop session with multiplier 3.
    pub fn new(interval: Duration) -> Self {
        BfdConfig { interval, multiplier: 3, multihop: false }
    }

    /// Whether every field is in its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(Self::MIN_INTERVAL..=Self::MAX_INTERVAL).contains(&self.interval) {
            return Err(ConfigError::Interval(self.interval));
        }
        if self.multiplier == 0 {
            return Err(ConfigError::Multiplier);
        }
        Ok(())
    }
}

/// An invalid BFD setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The interval is out of range.
    #[error("an interval of {0:?} is out of range: give 10 ms to 60 s")]
    Interval(Duration),
    /// The multiplier is 0.
    #[error("a multiplier of 0 would never be Up (RFC 5880 section 6.8.1): give 1 to 255, 3 is usual")]
    Multiplier,
}

/// The remote end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer's address.
    pub remote: IpAddr,
    /// The local address; any if none.
    pub local: Option<IpAddr>,
    /// The interface of a link-local peer.
    pub interface: Option<InterfaceName>,
    /// Timers and kind of the session.
    pub config: BfdConfig,
}

impl Target {
    /// Whether `other` differs from `self` in timers only. A different peer, address or number of
    /// hops is a different session.
    pub fn is_same_session(&self, other: &Target) -> bool {
        let identity =
            |target: &Target| (target.remote, target.local, target.interface, target.config.multihop);
        identity(self) == identity(other)
    }
}

/// The reason why a session left Up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No packet arrived within the detection time.
    TimeExpired,
    /// The peer signalled Down: it does not receive this side's packets, or was restarted.
    NeighborDown,
    /// The peer's operator disabled the session. The path itself may still work (RFC 5882 §3.2).
    NeighborAdminDown,
}

/// The transition from Up to Down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// The reason.
    pub cause: Cause,
    /// The peer's C bit: its BFD does not share fate with its control plane (RFC 5882 §4.3).
    pub control_plane_independent: bool,
}

/// The status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state of this side.
    pub state: State,
    /// The state in the peer's last packet.
    pub remote_state: State,
    /// The reason why this side last left Up.
    pub diagnostic: Diagnostic,
    /// The peer's diagnostic: why it last left Up.
    pub remote_diagnostic: Diagnostic,
    /// My Discriminator.
    pub local_discriminator: u32,
    /// The peer's discriminator; 0 while unknown.
    pub remote_discriminator: u32,
    /// The interval between packets of this side, before jitter.
    pub transmit_interval: Duration,
    /// The session goes Down after this time without a packet; none before the first packet of the
    /// peer.
    pub detection_time: Option<Duration>,
    /// The peer's C bit.
    pub control_plane_independent: bool,
    /// The session covers more than one hop.
    pub multihop: bool,
    /// The number of transitions to Up.
    pub up_count: u64,
    /// The number of transitions from Up.
    pub down_count: u64,
    /// Transitions from Up because the detection time expired.
    pub expired_count: u64,
}

/// The timers in the peer's last packet.
#[derive(Clone, Copy, Debug)]
struct PeerTimers {
    at: Instant,
    multiplier: u8,
    desired_min_tx: Duration,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) target: Target,
    pub(super) links: Links,
    local_discriminator: u32,
    remote_discriminator: u32,
    state: State,
    remote_state: State,
    diagnostic: Diagnostic,
    remote_diagnostic: Diagnostic,
    /// The advertised Desired Min TX Interval.
    desired_min_tx: Duration,
    /// The transmit interval in effect. A slower `desired_min_tx` takes effect only after the peer
    /// answered the Poll (§6.8.3).
    acting_tx: Duration,
    /// The receive interval in effect, for the detection time. A faster `interval` also takes
    /// effect only after the peer answered the Poll.
    acting_rx: Duration,
    remote_min_rx: Duration,
    remote_demand: bool,
    remote_independent: bool,
    peer_timers: Option<PeerTimers>,
    polling: bool,
    next_send: Option<Instant>,
    up_count: u64,
    down_count: u64,
    expired_count: u64,
    /// The time at which a removed session sends AdminDown.
    leaves: Option<Instant>,
    /// The time at which the session ends (§6.8.16): AdminDown has been sent for long enough.
    ends: Option<Instant>,
}

/// The result of a packet or a timeout.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SessionChange {
    pub(super) changed: bool,
    pub(super) down: Option<Down>,
    /// A packet with F must be sent now.
    pub(super) answer: bool,
}

impl Session {
    pub(super) fn new(target: Target, local_discriminator: u32, now: Instant) -> Session {
        let rx = target.config.interval;
        let slow = SLOW.max(target.config.interval);
        Session {
            target,
            links: Links::Any,
            local_discriminator,
            remote_discriminator: 0,
            state: State::Down,
            remote_state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote_diagnostic: Diagnostic::NONE,
            desired_min_tx: slow,
            acting_tx: slow,
            acting_rx: rx,
            // §6.8.1: 1 microsecond until the peer sends a value.
            remote_min_rx: Duration::from_micros(1),
            remote_demand: false,
            remote_independent: false,
            peer_timers: None,
            polling: false,
            next_send: Some(now),
            up_count: 0,
            down_count: 0,
            expired_count: 0,
            leaves: None,
            ends: None,
        }
    }

    pub(super) fn discriminator(&self) -> u32 {
        self.local_discriminator
    }

    pub(super) fn is_admin_down(&self) -> bool {
        self.state == State::AdminDown
    }

    /// Applies changed timers as §6.8.3 requires.
    pub(super) fn configure(&mut self, target: Target, now: Instant) {
        self.target = target;
        let interval = self.target.config.interval;
        if self.state != State::Up {
            self.acting_rx = interval;
            self.slow_down();
            return;
        }
        self.desired_min_tx = interval;
        self.acting_tx = self.acting_tx.min(interval);
        self.acting_rx = self.acting_rx.max(interval);
        self.polling = true;
        self.send_by(now);
    }

    /// Sends AdminDown after [`LEAVING_TIME`], or at once if the session is not Up. The session accepts
    /// no packets any more.
    pub(super) fn end(&mut self, now: Instant) {
        if self.state != State::Up {
            return self.admin_down(now);
        }
        self.polling = false;
        self.leaves = Some(now + LEAVING_TIME);
    }

    /// Sends AdminDown if its time has come.
    pub(super) fn handle_end(&mut self, now: Instant) {
        if self.leaves.is_some_and(|leaves| leaves <= now) {
            self.admin_down(now);
        }
    }

    /// Sends AdminDown for a detection time of the peer, then ends the session (§6.8.16).
    pub(super) fn admin_down(&mut self, now: Instant) {
        if self.is_admin_down() {
            return;
        }
        self.leaves = None;
        let slowest = self.transmit_interval().max(SLOW);
        self.state = State::AdminDown;
        self.diagnostic = Diagnostic::ADMIN_DOWN;
        self.polling = false;
        self.slow_down();
        self.next_send = Some(now);
        self.ends = Some(now + slowest * u32::from(self.target.config.multiplier));
    }

    /// Whether the session may be removed.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    fn slow_down(&mut self) {
        self.desired_min_tx = SLOW.max(self.target.config.interval);
        self.acting_tx = self.desired_min_tx;
    }

    fn transmit_interval(&self) -> Duration {
        self.acting_tx.max(self.remote_min_rx)
    }

    /// The detection time in asynchronous mode (§6.8.4).
    fn detection_time(&self) -> Option<Duration> {
        let peer_timers = self.peer_timers?;
        Some(self.acting_rx.max(peer_timers.desired_min_tx) * u32::from(peer_timers.multiplier))
    }

    fn detection_deadline(&self) -> Option<Instant> {
        // In Down only the peer's discriminator can expire (§6.8.1).
        let peer_timers =
            self.peer_timers.filter(|_| self.state != State::AdminDown && self.leaves.is_none())?;
        Some(peer_timers.at + self.detection_time()?)
    }

    /// Whether periodic packets are sent (§6.8.7).
    fn sends(&self) -> bool {
        let unwanted = self.remote_demand && self.state == State::Up && self.remote_state == State::Up;
        !self.remote_min_rx.is_zero() && (!unwanted || self.polling)
    }

    /// Schedules the next packet within a transmit interval from now.
    fn send_by(&mut self, now: Instant) {
        let latest = now + self.transmit_interval();
        self.next_send = Some(self.next_send.map_or(now, |at| at.min(latest)));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let send = self.next_send.filter(|_| self.sends());
        send.into_iter().chain(self.detection_deadline()).chain(self.leaves).chain(self.ends).min()
    }

    /// Handles a packet (§6.8.6, after the session was found). `at` is the arrival time.
    pub(super) fn handle_packet(&mut self, packet: &Packet, at: Instant) -> SessionChange {
        let mut outcome = SessionChange::default();
        if self.state == State::AdminDown {
            return outcome;
        }
        let before = (self.remote_state, self.detection_time(), self.transmit_interval());
        self.remote_discriminator = packet.my_discriminator;
        self.remote_state = packet.state;
        self.remote_diagnostic = packet.diagnostic;
        self.remote_demand = packet.demand;
        self.remote_independent = packet.control_plane_independent;
        let slower = packet.required_min_rx != self.remote_min_rx;
        self.remote_min_rx = packet.required_min_rx;
        let at = self.peer_timers.map_or(at, |peer_timers| peer_timers.at.max(at));
        self.peer_timers =
            Some(PeerTimers { at, multiplier: packet.multiplier, desired_min_tx: packet.desired_min_tx });
        if packet.final_ && self.polling {
            self.polling = false;
            self.acting_tx = self.desired_min_tx;
            self.acting_rx = self.target.config.interval;
        }
        let down = |cause| Down { cause, control_plane_independent: packet.control_plane_independent };
        match (self.state, packet.state) {
            (State::Up | State::Init, State::AdminDown) => {
                outcome.down = self.leave(Diagnostic::NEIGHBOR_DOWN, down(Cause::NeighborAdminDown), at);
            }
            (State::Up, State::Down) => {
                outcome.down = self.leave(Diagnostic::NEIGHBOR_DOWN, down(Cause::NeighborDown), at);
            }
            (State::Down, State::Down) => {
                self.state = State::Init;
                self.next_send = Some(at);
            }
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => self.come_up(at),
            _ => {}
        }
        if slower {
            self.send_by(at);
        }
        outcome.answer = packet.poll;
        outcome.changed = before != (self.remote_state, self.detection_time(), self.transmit_interval());
        outcome
    }

    fn come_up(&mut self, now: Instant) {
        self.state = State::Up;
        self.diagnostic = Diagnostic::NONE;
        self.up_count += 1;
        self.desired_min_tx = self.target.config.interval;
        // This interval is faster, so it takes effect at once; the Poll announces it to the peer.
        self.acting_tx = self.desired_min_tx;
        self.polling = true;
        self.next_send = Some(now);
    }

    fn leave(&mut self, diagnostic: Diagnostic, down: Down, now: Instant) -> Option<Down> {
        let was_up = self.state == State::Up;
        self.state = State::Down;
        self.diagnostic = diagnostic;
        self.polling = false;
        self.acting_rx = self.target.config.interval;
        self.slow_down();
        // Informs the peer at once, not a second later.
        self.next_send = Some(now);
        self.down_count += u64::from(was_up);
        was_up.then_some(down)
    }

    /// Handles an expired detection time.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> SessionChange {
        let mut outcome = SessionChange::default();
        if self.detection_deadline().is_some_and(|deadline| deadline <= now) {
            let control_plane_independent = self.remote_independent;
            if self.state >= State::Init {
                let down = Down { cause: Cause::TimeExpired, control_plane_independent };
                outcome.down = self.leave(Diagnostic::TIME_EXPIRED, down, now);
                self.expired_count += u64::from(outcome.down.is_some());
            }
            // §6.8.1: after a detection time without packets, the peer may come back with another
            // discriminator.
            self.remote_discriminator = 0;
            self.remote_state = State::Down;
            self.remote_min_rx = Duration::from_micros(1);
            self.remote_demand = false;
            self.peer_timers = None;
            outcome.changed = true;
        }
        outcome
    }

    /// The packet that is due; schedules the next one. `unit` is a random number from 0 to 1.
    pub(super) fn take_due(&mut self, now: Instant, unit: f64) -> Option<Packet> {
        let due = self.next_send.filter(|due| *due <= now && self.sends())?;
        // §6.8.7: jitter reduces the interval to 75 to 100 %. With Detect Mult 1 the maximum is 90
        // %, because one late packet ends the session.
        let most = if self.target.config.multiplier == 1 { 0.90 } else { 1.0 };
        let interval = self.transmit_interval().mul_f64(0.75 + (most - 0.75) * unit);
        // The next deadline counts from the last one, so delays do not add up. If a whole interval
        // was lost, the next deadline counts from now.
        let next = due + interval;
        self.next_send = Some(if next <= now { now + interval } else { next });
        Some(self.packet(false))
    }

    /// The current packet of this side.
    pub(super) fn packet(&self, answer: bool) -> Packet {
        Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: self.polling && !answer,
            final_: answer,
            // BFD and BGP run in the same process.
            control_plane_independent: false,
            authenticated: false,
            demand: false,
            multiplier: self.target.config.multiplier,
            my_discriminator: self.local_discriminator,
            your_discriminator: self.remote_discriminator,
            desired_min_tx: self.desired_min_tx,
            required_min_rx: self.target.config.interval,
            required_min_echo_rx: Duration::ZERO,
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            state: self.state,
            remote_state: self.remote_state,
            diagnostic: self.diagnostic,
            remote_diagnostic: self.remote_diagnostic,
            local_discriminator: self.local_discriminator,
            remote_discriminator: self.remote_discriminator,
            transmit_interval: self.transmit_interval(),
            detection_time: self.detection_time(),
            control_plane_independent: self.remote_independent,
            multihop: self.target.config.multihop,
            up_count: self.up_count,
            down_count: self.down_count,
            expired_count: self.expired_count,
        }
    }
}
