//! All sessions of one host: which packet is whose, and whose time has come.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::links::Links;
use super::packet::{LENGTH, Packet, PacketError};
use super::session::{ConfigError, Down, Outcome, Session, Status, Target};

/// A session, as its owner calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

/// Where a datagram came from. There is one for each packet, so nothing of it is on the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its source address.
    pub remote: IpAddr,
    /// Its destination address, if it is known.
    pub local: Option<IpAddr>,
    /// Index of the interface that it arrived on, if it is known.
    pub interface: Option<u32>,
    /// The TTL or hop limit that it arrived with, if it is known.
    pub ttl: Option<u8>,
    /// It came to the port of multihop sessions.
    pub multihop: bool,
}

/// Why a datagram counts for nothing (RFC 5880 §6.8.6, RFC 5881 §5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// It is no control packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// It came through a router, or its TTL is unknown.
    #[error("TTL {} instead of 255 on a single hop", .0.map_or("unknown".to_owned(), |ttl| ttl.to_string()))]
    Ttl(Option<u8>),
    /// No session has that discriminator.
    #[error("your discriminator {0:#010x} is no session's")]
    UnknownDiscriminator(u32),
    /// No session is with that address.
    #[error("no session with {0}")]
    UnknownPeer(IpAddr),
    /// The session with that discriminator is with somebody else.
    #[error("a packet of {0} with the discriminator of another session")]
    WrongPeer(IpAddr),
    /// The packet has the peer's address and arrived on another link than the peer's.
    #[error("a packet of {remote} on another interface than the peer's, index {}", .interface.map_or("unknown".to_owned(), |index| index.to_string()))]
    WrongLink {
        /// Its source address.
        remote: IpAddr,
        /// Index of the interface that it arrived on.
        interface: Option<u32>,
    },
    /// The A bit is set, and no session of this side has authentication.
    #[error("the packet is authenticated, the session is not: turn BFD authentication off at the peer")]
    Authenticated,
}

/// A kind of [`Rejection`], by which packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No control packet.
    Malformed,
    /// A TTL other than 255 over one hop.
    Ttl,
    /// Not the peer's link.
    Link,
    /// Not a peer's address.
    Peer,
    /// An unknown discriminator.
    Discriminator,
    /// The A bit.
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
    /// The kind.
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
    /// To whose peer.
    pub session: SessionId,
    /// The payload.
    pub payload: [u8; LENGTH],
}

/// A session stands differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub session: SessionId,
    /// It has just left Up.
    pub down: Option<Down>,
    /// How it stands now.
    pub status: Status,
}

/// All sessions of one host. See [the module](super) for the order of calls.
#[derive(Debug)]
pub struct Endpoint {
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions whose AdminDown is still being said, by discriminator; nobody's any more.
    ending: BTreeMap<u32, (SessionId, Session)>,
    by_discriminator: FxHashMap<u32, SessionId>,
    random: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Endpoint {
    /// An endpoint without sessions. Discriminators and jitter are drawn from the seed: give another one each start, so
    /// that a peer does not take a new session for the old.
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

    /// Starts a session, or changes the timers of the one that is there. With another peer, address or number of hops
    /// it is another session.
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

    /// Ends a session: the peer hears AdminDown for its detection time, so that it takes the end for no failure
    /// (RFC 5880 §6.8.16). The id is free at once; packets of the old session are still named by it.
    pub fn remove(&mut self, id: SessionId, now: Instant) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        self.by_discriminator.remove(&session.discriminator());
        session.admin_down(now);
        self.ending.insert(session.discriminator(), (id, session));
    }

    /// Whether a session of this id is there, or is still being said goodbye for.
    pub fn is_active(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id) || self.ending.values().any(|(ending, _)| *ending == id)
    }

    /// A datagram that arrived at `at`; whose it was.
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
                // Link-local peers of several links may have one address.
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

    /// Does what is due. Whatever arrived until `now` has to have been handled before.
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

    /// The next change of a session.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How a session stands.
    pub fn status(&self, id: SessionId) -> Option<Status> {
        self.sessions.get(&id).map(Session::status)
    }
}

/// What there is to tell of a session that was in state `before`.
fn event(id: SessionId, session: &Session, before: super::State, outcome: &Outcome) -> Option<Event> {
    debug_assert!(!session.is_admin_down());
    let status = session.status();
    let changed = outcome.changed || outcome.down.is_some() || status.state != before;
    changed.then_some(Event { session: id, down: outcome.down, status })
}

/// splitmix64: spreads, and is the same again from the same seed.
fn draw(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From 0 to 1.
fn unit(random: &mut u64) -> f64 {
    (draw(random) >> 40) as f64 / (1u64 << 24) as f64
}

/// Whether the addresses of a datagram are the session's.
fn is_with(target: &Target, source: &Source) -> bool {
    target.remote == source.remote
        && target.config.multihop == source.multihop
        && target.local.is_none_or(|local| source.local.is_none_or(|came_to| came_to == local))
}
