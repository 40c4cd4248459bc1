//! The speaker: every peer's session joined with the RIBs, without I/O.
//!
//! Input comes by `handle_*` and by the operator's verbs, each with the time; output is taken by `poll_*`.
//! The order of calls that a shell keeps to:
//!
//! 1. After any input, [`Speaker::poll_action`] until it gives none, and do what it says.
//! 2. [`Speaker::poll_event`] until it gives none.
//! 3. [`Speaker::poll_writable`] until it gives none: these connections have something to send. When the socket
//!    takes bytes, [`Speaker::poll_transmit`] with the room there is. What is said of routes is encoded at this
//!    moment and not before, so a peer that does not read costs no memory, and a prefix that changed ten times
//!    meanwhile is sent once.
//! 4. [`Speaker::route_changes`] whenever the FIB has room for more.
//! 5. Sleep until [`Speaker::poll_timeout`], then [`Speaker::handle_timeout`].

pub mod io;
pub mod route;
pub mod status;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use ipnet::IpNet;

pub use crate::config::{ConfigError, PeerConfig, SpeakerConfig};
pub use crate::rib::{FibPath, Origination, RouteChange};
pub use crate::types::PeerId;
pub use io::{Action, Change, ConnId, Event, ListenKey, Refusal, SocketOptions, Stop};
pub use route::Route;
pub use status::{Dated, FamilyStatus, MessageCounts, PeerStatus, SessionStatus, State, Traffic};

/// A BGP speaker. See the module for the order of calls.
#[derive(Debug)]
pub struct Speaker {
    config: SpeakerConfig,
    peers: BTreeMap<IpAddr, PeerConfig>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
}

impl Speaker {
    /// A speaker without peers and originations. If `config.restarting`, the Selection_Deferral_Timer starts now.
    pub fn new(config: SpeakerConfig, now: Instant) -> Result<Self, ConfigError> {
        let _ = now;
        config.validate()?;
        Ok(Speaker { config, peers: BTreeMap::new(), actions: VecDeque::new(), events: VecDeque::new() })
    }

    /// What it was made with.
    pub fn config(&self) -> &SpeakerConfig {
        &self.config
    }

    /// Adds a peer and starts its session, unless it is configured as shut down.
    pub fn add_peer(&mut self, config: PeerConfig, now: Instant) -> Result<PeerId, ConfigError> {
        let _ = now;
        config.validate()?;
        if self.peers.contains_key(&config.address) {
            return Err(ConfigError::DuplicatePeer(config.address));
        }
        self.peers.insert(config.address, config);
        Ok(PeerId(self.peers.len() as u32))
    }

    /// Changes the peer with `config.address`; its session is reset only if
    /// [`PeerConfig::requires_reset`] says so.
    pub fn update_peer(&mut self, config: PeerConfig, now: Instant) -> Result<Change, ConfigError> {
        let _ = now;
        config.validate()?;
        let old = self.peers.get_mut(&config.address).ok_or(ConfigError::UnknownPeer(config.address))?;
        let change = match *old == config {
            true => Change::Unchanged,
            false if old.requires_reset(&config) => Change::Reset,
            false => Change::Applied,
        };
        *old = config;
        Ok(change)
    }

    /// Removes a peer with a Cease, Peer De-configured (RFC 4486), and everything learned from it.
    pub fn remove_peer(&mut self, address: IpAddr, now: Instant) -> Result<(), ConfigError> {
        let _ = now;
        self.peers.remove(&address).map(drop).ok_or(ConfigError::UnknownPeer(address))
    }

    /// The index of a configured peer.
    pub fn peer_id(&self, address: IpAddr) -> Option<PeerId> {
        self.peers.keys().position(|peer| *peer == address).map(|index| PeerId(index as u32))
    }

    /// Originates a prefix, or changes what it carries. Host bits are cleared.
    pub fn originate(&mut self, prefix: IpNet, origination: Origination, now: Instant) {
        let _ = (prefix, origination, now);
    }

    /// Takes an originated prefix back. Nothing happens if it is not originated.
    pub fn withdraw(&mut self, prefix: IpNet, now: Instant) {
        let _ = (prefix, now);
    }

    /// The first intent is in place: every peer that should be there was added, every prefix originated. Before
    /// this no UPDATE and no End-of-RIB leaves, so that a restart is never told as the loss of what is not yet
    /// put together again. Calls after the first do nothing.
    pub fn originations_complete(&mut self, now: Instant) {
        let _ = now;
    }

    /// Asks a peer for everything again (RFC 2918). False if it is not Established or has no route refresh.
    pub fn request_refresh(&mut self, address: IpAddr, now: Instant) -> Result<bool, ConfigError> {
        let _ = now;
        self.peers.get(&address).map(|_| false).ok_or(ConfigError::UnknownPeer(address))
    }

    /// Ends every session and accepts nothing more. The actions that follow close every connection.
    pub fn stop(&mut self, stop: Stop, now: Instant) {
        let _ = (stop, now);
    }

    /// A connection of [`Action::Connect`] is there.
    pub fn handle_connected(&mut self, conn: ConnId, local: SocketAddr, remote: SocketAddr, now: Instant) {
        let _ = (conn, local, remote, now);
    }

    /// A connection of [`Action::Connect`] could not be made; `reason` in the operating system's words.
    pub fn handle_connect_failed(&mut self, conn: ConnId, reason: String, now: Instant) {
        let _ = (conn, reason, now);
    }

    /// Somebody connected. On `Ok` the shell keeps the connection under the name given, and an
    /// [`Action::Configure`] follows; on `Err` it closes it.
    pub fn handle_accepted(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<ConnId, Refusal> {
        let _ = (local, now);
        Err(Refusal::UnknownPeer(remote.ip()))
    }

    /// Bytes have come, in order, cut anywhere.
    pub fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now: Instant) {
        let _ = (conn, bytes, now);
    }

    /// The connection ended: the peer's FIN, a reset, a write error; `reason` in words.
    pub fn handle_closed(&mut self, conn: ConnId, reason: String, now: Instant) {
        let _ = (conn, reason, now);
    }

    /// The time of [`Speaker::poll_timeout`] has come (or any other: nothing happens too early).
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// The next thing to do, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing that happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next connection that has something new to send. Each is named once, until `poll_transmit` has said
    /// that it has nothing more.
    pub fn poll_writable(&mut self) -> Option<ConnId> {
        None
    }

    /// Appends what the connection has to send: control messages first, then UPDATEs out of Adj-RIB-Out up to
    /// about `budget` octets (the last message may go past it by its own length). True if there is more: call
    /// again when the socket has taken these. False: `poll_writable` will name the connection again.
    pub fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, budget: usize, now: Instant) -> bool {
        let _ = (conn, out, budget, now);
        false
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Up to `max` prefixes whose learned best paths changed since they were last asked for, each with its state
    /// of now. Fewer than `max`: there are no more for now. Originated prefixes are not among them.
    pub fn route_changes(&mut self, max: usize) -> Vec<RouteChange> {
        let _ = max;
        Vec::new()
    }

    /// From now on [`Event::Advertised`] tells of each Established peer that the prefix has been written to;
    /// of those that have it already, at once.
    pub fn watch(&mut self, prefix: IpNet) {
        let _ = prefix;
    }

    /// Ends [`Speaker::watch`].
    pub fn unwatch(&mut self, prefix: IpNet) {
        let _ = prefix;
    }

    /// Every configured peer, by address.
    pub fn peers(&self, now: Instant) -> Vec<PeerStatus> {
        let _ = now;
        Vec::new()
    }

    /// Adj-RIB-In of a peer, refused paths included, in the order of prefixes.
    pub fn received(&self, address: IpAddr) -> Result<Vec<Route>, ConfigError> {
        self.peers.get(&address).map(|_| Vec::new()).ok_or(ConfigError::UnknownPeer(address))
    }

    /// Adj-RIB-Out of a peer: what has been written to it, in the order of prefixes.
    pub fn advertised(&self, address: IpAddr) -> Result<Vec<Route>, ConfigError> {
        self.peers.get(&address).map(|_| Vec::new()).ok_or(ConfigError::UnknownPeer(address))
    }

    /// Loc-RIB: every path of every prefix, the chosen ones marked, originated ones included.
    pub fn routes(&self) -> Vec<Route> {
        Vec::new()
    }
}
