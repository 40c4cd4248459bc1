//! All sessions of one host: assigns packets to sessions and runs their timers.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::links::Links;
use super::packet::{LENGTH, Packet, PacketError};
use super::session::{ConfigError, Down, Session, SessionChange, Status, Target};

/// The owner's number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

/// The origin of a datagram. Each packet has a source, so the type needs no heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Source address.
    pub remote: IpAddr,
    /// Destination address, if known.
    pub local: Option<IpAddr>,
    /// Index of the receiving interface, if known.
    pub interface: Option<u32>,
    /// TTL or hop limit on arrival, if known.
    pub ttl: Option<u8>,
    /// The datagram arrived on the port of multihop sessions.
    pub multihop: bool,
}

/// The reason why a datagram is rejected (RFC 5880 §6.8.6, RFC 5881 §5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The datagram is not a control packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The datagram was forwarded by a router, or its TTL is unknown.
    #[error("TTL {} instead of 255 on a single hop", .0.map_or("unknown".to_owned(), |ttl| ttl.to_string()))]
    Ttl(Option<u8>),
    /// No session has the discriminator.
    #[error("no session has your discriminator {0:#010x}")]
    UnknownDiscriminator(u32),
    /// No session has the source address.
    #[error("no session with {0}")]
    UnknownPeer(IpAddr),
    /// The session with the discriminator has another peer.
    #[error("a packet of {0} with the discriminator of another session")]
    WrongPeer(IpAddr),
    /// The packet has the peer's address but arrived on another link.
    #[error("a packet of {remote} on another interface than the peer's, index {}", .interface.map_or("unknown".to_owned(), |index| index.to_string()))]
    WrongLink {
        /// Source address.
        remote: IpAddr,
        /// Index of the receiving interface.
        interface: Option<u32>,
    },
    /// The A bit is set, and this side does not support authentication.
    #[error("the packet is authenticated, the session is not: turn BFD authentication off at the peer")]
    Authenticated,
}

/// The kind of a [`Rejection`], for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not a control packet.
    Malformed,
    /// A TTL other than 255 on a single hop.
    Ttl,
    /// Not from the peer's link.
    Link,
    /// Not from a peer's address.
    Peer,
    /// An unknown discriminator.
    Discriminator,
    /// The A bit is set.
    Authentication,
}

impl Reason {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Reason; 6] = [
        Reason::Malformed,
        Reason::Ttl,
        Reason::Link,
        Reason::Peer,
        Reason::Discriminator,
        Reason::Authentication,
    ];

    /// The label in the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::Ttl => "ttl",
            Reason::Link => "link",
            Reason::Peer => "peer",
            Reason::Discriminator => "discriminator",
            Reason::Authentication => "authentication",
        }
    }
}

impl Rejection {
    /// The kind of the rejection.
    pub fn reason(&self) -> Reason {
        match self {
            Rejection::Packet(_) => Reason::Malformed,
            Rejection::Ttl(_) => Reason::Ttl,
            Rejection::WrongLink { .. } => Reason::Link,
            Rejection::UnknownPeer(_) | Rejection::WrongPeer(_) => Reason::Peer,
            Rejection::UnknownDiscriminator(_) => Reason::Discriminator,
            Rejection::Authenticated => Reason::Authentication,
        }
    }
}

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The session, which determines the destination.
    pub session: SessionId,
    /// The payload.
    pub payload: [u8; LENGTH],
}

/// A change of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The session that changed.
    pub session: SessionId,
    /// Set if the session has just left Up.
    pub down: Option<Down>,
    /// The current status.
    pub status: Status,
}

/// All sessions of one host. See [the module](super) for the order of calls.
#[derive(Debug)]
pub struct Endpoint {
    sessions: BTreeMap<SessionId, Session>,
    /// Removed sessions that still send packets, by discriminator; the owner has no access to them.
    ending: BTreeMap<u32, (SessionId, Session)>,
    by_discriminator: FxHashMap<u32, SessionId>,
    random: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Endpoint {
    /// An endpoint without sessions. The seed determines discriminators and jitter. Use a new seed
    /// for each start; otherwise a peer may mistake a new session for the old one.
    pub fn new(seed: u64) -> Endpoint {
        Endpoint {
            sessions: BTreeMap::new(),
            ending: BTreeMap::new(),
            by_discriminator: FxHashMap::default(),
            random: seed,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Starts a session or changes the timers of an existing one. A different peer, address or
    /// number of hops starts a new session.
    ///
    /// # Errors
    /// If the interval or the multiplier is out of range.
    pub fn set(&mut self, id: SessionId, target: Target, now: Instant) -> Result<(), ConfigError> {
        target.config.validate()?;
        if let Some(session) = self.sessions.get_mut(&id) {
            if session.target.is_same_session(&target) {
                session.configure(target, now);
                self.events.push_back(Event { session: id, down: None, status: session.status() });
                return Ok(());
            }
            self.remove(id, now);
        }
        // Of two sessions with the same peer, only the new one may be Up.
        let old = self.ending.values_mut().map(|(_, session)| session);
        old.filter(|session| session.target.remote == target.remote)
            .for_each(|session| session.admin_down(now));
        let discriminator = loop {
            let drawn = (draw(&mut self.random) >> 32) as u32;
            if drawn != 0 && !self.by_discriminator.contains_key(&drawn) && !self.ending.contains_key(&drawn)
            {
                break drawn;
            }
        };
        let session = Session::new(target, discriminator, now);
        self.by_discriminator.insert(discriminator, id);
        self.events.push_back(Event { session: id, down: None, status: session.status() });
        self.sessions.insert(id, session);
        Ok(())
    }

    /// Sets the links that a session accepts packets from. A new session accepts packets from every
    /// link. The session is not reset.
    pub fn set_links(&mut self, id: SessionId, links: Links) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.links = links;
        }
    }

    /// Ends a session: after [`LEAVING_TIME`](super::LEAVING_TIME), or at once if it is not Up, the
    /// peer receives AdminDown for its detection time, which signals that this is not a failure (RFC
    /// 5880 §6.8.16). The id is free at once; the old session's last packets still carry it.
    pub fn remove(&mut self, id: SessionId, now: Instant) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        self.by_discriminator.remove(&session.discriminator());
        session.end(now);
        self.ending.insert(session.discriminator(), (id, session));
    }

    /// The owner ends: every removed session sends AdminDown now.
    pub fn close(&mut self, now: Instant) {
        self.ending.values_mut().for_each(|(_, session)| session.admin_down(now));
    }

    /// Whether a session with this id exists or still sends packets.
    pub fn is_active(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id) || self.ending.values().any(|(ending, _)| *ending == id)
    }

    /// Handles a datagram that arrived at `at`; returns the session.
    ///
    /// # Errors
    /// If the datagram fails a check of reception; the packet then has no effect.
    pub fn handle_packet(
        &mut self,
        source: &Source,
        payload: &[u8],
        at: Instant,
    ) -> Result<SessionId, Rejection> {
        if !source.multihop && source.ttl != Some(255) {
            return Err(Rejection::Ttl(source.ttl));
        }
        let packet = Packet::decode(payload)?;
        let id = match packet.your_discriminator {
            0 => {
                let with = |(_, session): &(&SessionId, &Session)| is_with(&session.target, source);
                let on_link = |(_, session): &(&SessionId, &Session)| session.links.contain(source.interface);
                // Link-local peers on several links may have the same address.
                let mut sessions = self.sessions.iter().filter(with);
                let found = sessions.clone().find(on_link).or_else(|| sessions.next());
                found.map(|(id, _)| *id).ok_or(Rejection::UnknownPeer(source.remote))?
            }
            yours => {
                let id = self.by_discriminator.get(&yours).copied();
                id.ok_or(Rejection::UnknownDiscriminator(yours))?
            }
        };
        let Some(session) = self.sessions.get_mut(&id).filter(|session| is_with(&session.target, source))
        else {
            return Err(Rejection::WrongPeer(source.remote));
        };
        if !session.links.contain(source.interface) {
            return Err(Rejection::WrongLink { remote: source.remote, interface: source.interface });
        }
        if packet.authenticated {
            return Err(Rejection::Authenticated);
        }
        let state = session.status().state;
        let outcome = session.handle_packet(&packet, at);
        if outcome.answer {
            let payload = session.packet(true).encode();
            self.transmits.push_back(Transmit { session: id, payload });
        }
        self.events.extend(event(id, session, state, &outcome));
        Ok(id)
    }

    /// When [`Endpoint::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ending = self.ending.values().map(|(_, session)| session);
        self.sessions.values().chain(ending).filter_map(Session::poll_timeout).min()
    }

    /// Runs the timers that are due. Call [`Endpoint::handle_packet`] first for all datagrams that
    /// arrived before `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Endpoint { sessions, ending, random, transmits, events, .. } = self;
        let is_due = |session: &Session| session.poll_timeout().is_some_and(|at| at <= now);
        for (&id, session) in sessions.iter_mut().filter(|(_, session)| is_due(session)) {
            let state = session.status().state;
            let outcome = session.handle_timeout(now);
            if let Some(packet) = session.take_due(now, unit(random)) {
                transmits.push_back(Transmit { session: id, payload: packet.encode() });
            }
            events.extend(event(id, session, state, &outcome));
        }
        for (id, session) in ending.values_mut() {
            session.handle_end(now);
            if let Some(packet) = session.take_due(now, unit(random)) {
                transmits.push_back(Transmit { session: *id, payload: packet.encode() });
            }
        }
        self.ending.retain(|_, (_, session)| !session.is_over(now));
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next session change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The status of a session.
    pub fn status(&self, id: SessionId) -> Option<Status> {
        self.sessions.get(&id).map(Session::status)
    }
}

/// The event for a session that was in state `before`, if something changed.
fn event(id: SessionId, session: &Session, before: super::State, outcome: &SessionChange) -> Option<Event> {
    debug_assert!(!session.is_admin_down());
    let status = session.status();
    let changed = outcome.changed || outcome.down.is_some() || status.state != before;
    changed.then_some(Event { session: id, down: outcome.down, status })
}

/// splitmix64: well distributed and deterministic for a seed.
fn draw(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number from 0 to 1.
fn unit(random: &mut u64) -> f64 {
    (draw(random) >> 40) as f64 / (1u64 << 24) as f64
}

/// Whether a datagram has the addresses of the session.
fn is_with(target: &Target, source: &Source) -> bool {
    target.remote == source.remote
        && target.config.multihop == source.multihop
        && target.local.is_none_or(|local| source.local.is_none_or(|came_to| came_to == local))
}
