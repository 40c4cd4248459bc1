//! The speaker: the sessions of all peers joined with the RIBs, without I/O.
//!
//! Input comes by `handle_*` calls and by the operator's commands, each with the time. Output is
//! taken by `poll_*` calls. A shell calls in this order:
//!
//! 1. After any input: [`Speaker::poll_action`] until it returns none. The shell carries out each
//!    action.
//! 2. [`Speaker::poll_event`] until it returns none.
//! 3. [`Speaker::poll_writable`] until it returns none. It names connections with octets to send.
//!    When the socket accepts octets: [`Speaker::poll_transmit`] with the free space of the socket.
//!    UPDATEs are encoded in this call and not earlier. So a peer that does not read costs no
//!    memory, and a prefix that changed ten times in between is sent once.
//! 4. [`Speaker::route_changes`] whenever the FIB can accept more.
//! 5. Sleep until [`Speaker::poll_timeout`], then [`Speaker::handle_timeout`].

mod deferral;
mod dump;
pub mod explain;
mod hub;
pub mod listing;
mod ranges;
pub mod route;
pub mod search;
mod stations;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use ipnet::IpNet;

pub use crate::config::{ConfigError, PeerConfig, PeerRange, SpeakerConfig};
pub use crate::io::status::{
    BfdStatus, DatedNotification, Failure, FamilyStatus, MessageCounts, PeerStatus, RangeStatus,
    SessionStatus, State, Traffic,
};
pub use crate::io::{Action, Change, ConnId, Event, ListenKey, ListenRange, Refusal, SocketOptions, Stop};
pub use crate::rib::{FibPath, Origination, RouteChange};
pub use crate::session::{Cause, CauseKind, ConnectFailure, ConnectKind, RefusedSegments, Side};
pub use crate::types::PeerId;
pub use explain::{ExplainedPath, ExplainedPeer, Explanation, ExportStanding, PathStanding};
pub use listing::{Listed, Listing};
pub use route::Route;
pub use search::{PathStatus, RouteFilter, Search, SearchResult, Source};

use crate::bfd;
use crate::bmp::Station;
use crate::rib::{Rib, RibConfig};
use crate::session::{Fault, Local, Peer};
use crate::types::{Family, FamilySet, InterfaceName, PeerKey};
use deferral::Deferral;
use hub::{Hub, next_hops, rib_peer};
use ranges::Ranges;

/// A BGP speaker. See the module for the order of calls.
#[derive(Debug)]
pub struct Speaker {
    config: SpeakerConfig,
    /// Peers by index; a new peer gets the index of a removed one.
    peers: Vec<Option<Peer>>,
    by_key: BTreeMap<PeerKey, PeerId>,
    ranges: Ranges,
    hub: Hub,
    deferral: Deferral,
    /// The host's links; none are known before [`Speaker::set_links`].
    links: Vec<bfd::HostLink>,
    /// The listening sockets need the new key table.
    listen_changed: bool,
}

impl Speaker {
    /// Creates a speaker without peers and originations. If `config.restarting`, the
    /// Selection_Deferral_Timer starts now.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: SpeakerConfig, now: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut rib = Rib::new(RibConfig {
            local_as: config.local_as,
            router_id: config.router_id,
            cluster_id: config.cluster_id.unwrap_or(config.router_id),
            max_paths: config.max_paths,
        });
        rib.hold(FamilySet::ALL);
        let deadline = config.restarting.then(|| now + config.selection_deferral);
        Ok(Speaker {
            config,
            peers: Vec::new(),
            by_key: BTreeMap::new(),
            ranges: Ranges::default(),
            hub: Hub::new(rib, now),
            deferral: Deferral::new(deadline),
            links: Vec::new(),
            listen_changed: false,
        })
    }

    /// The configuration that the speaker was created with.
    pub fn config(&self) -> &SpeakerConfig {
        &self.config
    }

    /// Adds a peer and starts its session, unless it is configured as shut down.
    ///
    /// # Errors
    /// If the configuration is invalid, or if the peer exists.
    pub fn add_peer(&mut self, config: PeerConfig, now: Instant) -> Result<PeerId, ConfigError> {
        config.validate()?;
        config.validate_for(self.config.local_as)?;
        let key = config.key();
        if let Some(id) = self.peer_id(key) {
            // A dynamic neighbour becomes a configured peer.
            if !self.ranges.release(id) {
                return Err(ConfigError::DuplicatePeer(key));
            }
            self.listen_changed = true;
            self.update_peer(config, now)?;
            return Ok(id);
        }
        let id = self.insert_peer(config, now);
        self.listen_changed = true;
        self.after(now);
        Ok(id)
    }

    /// Creates a peer for an address that no peer has.
    fn insert_peer(&mut self, config: PeerConfig, now: Instant) -> PeerId {
        let key = config.key();
        let place = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        let id = PeerId(place as u32);
        self.hub.rib.add_peer(id, rib_peer(&config));
        let local = Local {
            asn: self.config.local_as,
            router_id: self.config.router_id,
            restarting: self.config.restarting && !self.deferral.is_over(),
            forwarding: self.config.restarting,
        };
        // The peers of one speaker draw different random numbers; the same seed gives the same
        // numbers.
        let seed = self.config.seed.wrapping_add(u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bfd = config.bfd_target();
        let mut peer = Peer::new(id, config, local, seed, now);
        peer.set_links(&self.links);
        if !self.hub.frozen {
            if let Some(target) = bfd {
                self.hub.actions.push_back(Action::SetBfd { peer: id, target });
            }
            peer.start(now, &mut self.hub);
        }
        if place == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[place] = Some(peer);
        self.by_key.insert(key, id);
        id
    }

    /// Changes the peer with `config`'s key. The session is reset only if
    /// [`PeerConfig::requires_reset`] is true. A dynamic neighbour stays passive.
    ///
    /// # Errors
    /// If the configuration is invalid, or if there is no such peer.
    pub fn update_peer(&mut self, config: PeerConfig, now: Instant) -> Result<Change, ConfigError> {
        self.hub.clock = now;
        config.validate()?;
        config.validate_for(self.config.local_as)?;
        let key = config.key();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        // A dynamic neighbour that initiates connections would never be without state, and so never removed.
        let config = PeerConfig { passive: config.passive || self.ranges.of(id).is_some(), ..config };
        let peer = self.peers[id.0 as usize].as_mut().ok_or(ConfigError::UnknownPeer(key))?;
        let before = peer.config().clone();
        let listen_key = peer.listen_key();
        let change = peer.update(config, now, &mut self.hub);
        self.listen_changed |= peer.listen_key() != listen_key;
        match (before.bfd_target(), peer.config().bfd_target()) {
            (old, Some(target)) if old.as_ref() != Some(&target) && !self.hub.frozen => {
                self.hub.actions.push_back(Action::SetBfd { peer: id, target });
            }
            (Some(_), None) => {
                peer.forget_bfd();
                self.hub.actions.push_back(Action::RemoveBfd { peer: id });
            }
            _ => {}
        }
        let config = peer.config();
        if config.remote_as != before.remote_as {
            // The state of the peer in the other AS is removed.
            self.hub.rib.remove_peer(id);
            self.hub.report_defaults();
            self.hub.rib.add_peer(id, rib_peer(config));
        } else {
            if config.paths != before.paths {
                self.hub.rib.set_rules(id, config.paths);
            }
            if config.import != before.import || config.export != before.export {
                self.hub.rib.set_policy(id, &config.import, &config.export);
            }
        }
        if let Some(session) = peer.session() {
            self.hub.rib.set_paths(id, session.config.add_path.send.map_or(1, u8::from));
            let (v4, v6) = next_hops(session);
            self.hub.rib.set_next_hops(id, v4, v6);
        }
        self.after(now);
        Ok(change)
    }

    /// Removes a peer with a Cease, Peer De-configured (RFC 4486), and removes its paths.
    ///
    /// # Errors
    /// If no such peer is configured.
    pub fn remove_peer(&mut self, peer: impl Into<PeerKey>, now: Instant) -> Result<(), ConfigError> {
        self.hub.clock = now;
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        self.take_peer(id, key, now);
        self.listen_changed = true;
        self.after(now);
        Ok(())
    }

    fn take_peer(&mut self, id: PeerId, key: PeerKey, now: Instant) {
        self.by_key.remove(&key);
        self.ranges.release(id);
        if let Some(mut peer) = self.peers[id.0 as usize].take() {
            peer.stop(Fault::Deconfigured, now, &mut self.hub);
            if peer.config().bfd.is_some() {
                self.hub.actions.push_back(Action::RemoveBfd { peer: id });
            }
            self.hub.rib.remove_peer(id);
        }
    }

    /// The index of a peer.
    pub fn peer_id(&self, peer: impl Into<PeerKey>) -> Option<PeerId> {
        self.by_key.get(&peer.into()).copied()
    }

    /// Originates a prefix, or changes its attributes. Host bits are cleared.
    pub fn originate(&mut self, prefix: IpNet, origination: Origination, now: Instant) {
        self.hub.rib.originate(prefix.trunc(), &origination);
        self.after(now);
    }

    /// Ends the origination of a prefix. A prefix that is not originated is ignored.
    pub fn withdraw(&mut self, prefix: IpNet, now: Instant) {
        self.hub.rib.withdraw(prefix.trunc());
        self.after(now);
    }

    /// The first intent is complete: the owner added every peer and originated every prefix.
    ///
    /// No UPDATE and no End-of-RIB is sent before this call. Otherwise, after a restart, a peer
    /// would treat a prefix that is not originated yet as withdrawn. From this call on, originated
    /// prefixes are advertised; received paths and End-of-RIB follow after the deferral. Later
    /// calls do nothing.
    pub fn originations_complete(&mut self, now: Instant) {
        self.deferral.originations_complete();
        self.hub.rib.advertise_originated();
        self.after(now);
    }

    /// Requests all routes of a peer again (RFC 2918). Returns false if the peer is not Established
    /// or has no route refresh.
    ///
    /// # Errors
    /// If no such peer is configured.
    pub fn request_refresh(&mut self, peer: impl Into<PeerKey>, now: Instant) -> Result<bool, ConfigError> {
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        let hub = &mut self.hub;
        Ok(self.peers[id.0 as usize].as_mut().is_some_and(|peer| peer.request_refresh(now, hub)))
    }

    /// Advertises all routes to a peer again. Returns false if the peer is not Established.
    ///
    /// # Errors
    /// If no such peer is configured.
    pub fn refresh_out(&mut self, peer: impl Into<PeerKey>, now: Instant) -> Result<bool, ConfigError> {
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        let hub = &mut self.hub;
        Ok(self.peers[id.0 as usize].as_mut().is_some_and(|peer| peer.refresh_out(now, hub)))
    }

    /// Resets a peer's session with a Cease, Administrative Reset, and a text for the peer's
    /// operator (RFC 9003). A new session starts a moment later. If both sides have RFC 8538's N
    /// bit, the paths are retained meanwhile, except by a hard reset. An idle hold after an error
    /// ends too. Returns false if the peer is administratively down.
    ///
    /// # Errors
    /// If no such peer is configured.
    pub fn reset_peer(
        &mut self,
        peer: impl Into<PeerKey>,
        hard: bool,
        communication: String,
        now: Instant,
    ) -> Result<bool, ConfigError> {
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        self.hub.clock = now;
        let (hub, fault) = (&mut self.hub, Fault::Reset { hard, communication });
        let reset = self.peers[id.0 as usize].as_mut().is_some_and(|peer| peer.reset(&fault, now, hub));
        self.after(now);
        Ok(reset)
    }

    /// Whether every Established peer was sent all pending routes.
    pub fn has_advertised_all(&self) -> bool {
        let mut established =
            self.peers.iter().flatten().filter(|peer| peer.session().is_some()).map(Peer::id);
        !established.any(|id| self.hub.rib.pending(id))
    }

    /// Ends every session and accepts no more connections. The following actions close every
    /// connection. The tables stay as they are, and no route change follows, so the FIB keeps its
    /// routes. After a silent stop no event follows either.
    pub fn stop(&mut self, stop: Stop, now: Instant) {
        self.hub.clock = now;
        self.hub.frozen = true;
        self.hub.silent = stop == Stop::Silent;
        let fault = match stop {
            Stop::Silent => Fault::SilentStop,
            Stop::Cease { communication } => Fault::Shutdown { communication },
        };
        for peer in self.peers.iter_mut().flatten() {
            peer.stop(fault.clone(), now, &mut self.hub);
            // A silent stop sends no AdminDown by BFD either. Peers would treat AdminDown as the
            // end of the session, but the session comes back (RFC 5882 §4.3.2.2).
            if !self.hub.silent && peer.config().bfd.is_some() {
                self.hub.actions.push_back(Action::RemoveBfd { peer: peer.id() });
            }
        }
    }

    /// The connection of an [`Action::Connect`] is open.
    pub fn handle_connected(&mut self, conn: ConnId, local: SocketAddr, remote: SocketAddr, now: Instant) {
        if let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) {
            peer.handle_connected(conn, local, remote, now, &mut self.hub);
        }
        self.after(now);
    }

    /// The connection of an [`Action::Connect`] failed.
    pub fn handle_connect_failed(&mut self, conn: ConnId, failure: impl Into<ConnectFailure>, now: Instant) {
        if let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) {
            peer.handle_connect_failed(conn, failure.into(), now, &mut self.hub);
            self.hub.conns.remove(&conn);
        }
        self.after(now);
    }

    /// The time at which [`Speaker::handle_timeout`] gives up an attempt to connect; none if `conn`
    /// is no attempt. Before that time the shell reports segments that the kernel dropped, by
    /// [`Speaker::handle_refused_segments`].
    pub fn attempt_due(&self, conn: ConnId) -> Option<Instant> {
        let peer = self.hub.conns.get(&conn)?;
        self.peers.get(peer.0 as usize)?.as_ref()?.attempt_due(conn)
    }

    /// The kernel dropped these segments since the attempt began.
    pub fn handle_refused_segments(&mut self, conn: ConnId, refused: RefusedSegments) {
        if let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) {
            peer.handle_refused_segments(conn, refused);
        }
    }

    /// The host's links. If a session is lost while the link towards its peer has no carrier, the
    /// link is reported as the cause.
    pub fn set_links(&mut self, links: &[bfd::HostLink]) {
        for peer in self.peers.iter_mut().flatten() {
            peer.set_links(links);
        }
        self.links = links.to_vec();
    }

    /// A peer connected, by this interface if the address is link-local. After `Ok` the shell keeps
    /// the connection under the returned name, and an [`Action::Configure`] follows. After `Err` it
    /// closes the connection.
    ///
    /// # Errors
    /// The reason of the rejection.
    pub fn handle_accepted(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        interface: Option<InterfaceName>,
        now: Instant,
    ) -> Result<ConnId, Refusal> {
        self.hub.clock = now;
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (local, remote) = (canonical(local), canonical(remote));
        if self.hub.frozen {
            return Err(Refusal::Stopped);
        }
        let key = PeerKey::new(remote.ip(), interface);
        let id = match self.peer_id(key) {
            Some(id) => id,
            None => self.admit(key, now)?,
        };
        let peer = self.peers[id.0 as usize].as_mut().ok_or(Refusal::UnknownPeer(key))?;
        let accepted = peer.handle_accepted(local, remote, now, &mut self.hub);
        self.after(now);
        accepted
    }

    /// Received octets, in order, in pieces of any size.
    pub fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now: Instant) {
        self.hub.clock = now;
        if let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) {
            peer.handle_bytes(conn, bytes, now, &mut self.hub);
        }
        self.after(now);
    }

    /// The BFD session of [`Action::SetBfd`] with `remote` changed its status; `down` if it left Up
    /// since the last call. A report for a removed peer is ignored.
    pub fn handle_bfd(
        &mut self,
        peer: PeerId,
        remote: IpAddr,
        down: Option<bfd::Down>,
        status: bfd::Status,
        now: Instant,
    ) {
        self.hub.clock = now;
        let Some(Some(peer)) = self.peers.get_mut(peer.0 as usize) else { return };
        if peer.config().bfd_target().is_some_and(|target| target.remote == remote) && !self.hub.frozen {
            peer.handle_bfd(down, status, now, &mut self.hub);
        }
        self.after(now);
    }

    /// The connection ended by the peer's FIN, a reset or a write error. `reason` is a text.
    pub fn handle_closed(&mut self, conn: ConnId, reason: String, now: Instant) {
        self.hub.clock = now;
        if let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) {
            peer.handle_closed(conn, reason, now, &mut self.hub);
            self.hub.conns.remove(&conn);
        }
        self.after(now);
    }

    /// The time of [`Speaker::poll_timeout`] has come. An earlier call does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.hub.clock = now;
        for peer in self.peers.iter_mut().flatten() {
            if peer.poll_timeout().is_some_and(|deadline| deadline <= now) {
                peer.handle_timeout(now, &mut self.hub);
            }
        }
        self.hub.report_to_stations();
        self.after(now);
    }

    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        if std::mem::take(&mut self.listen_changed) {
            // Keys are set before any action that lets the peer connect.
            let configured = self.peers.iter().flatten().filter(|peer| self.ranges.of(peer.id()).is_none());
            return Some(Action::Listen(configured.map(Peer::listen_key).collect()));
        }
        if let Some(keys) = self.ranges.take_listen() {
            return Some(Action::ListenRanges(keys));
        }
        self.hub.actions.pop_front()
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.hub.events.pop_front()
    }

    /// The next connection that has new octets to send. Each is returned once, until
    /// `poll_transmit` returns false for it.
    pub fn poll_writable(&mut self) -> Option<ConnId> {
        while let Some(conn) = self.hub.writable.pop_front() {
            if self.hub.conns.contains_key(&conn) {
                return Some(conn);
            }
        }
        None
    }

    /// Appends octets for the connection: control messages first, then UPDATEs from Adj-RIB-Out, up
    /// to about `budget` octets. The last message may exceed the budget by its own length. Returns
    /// true if there is more: call again when the socket has accepted these octets. After false,
    /// `poll_writable` returns the connection again once it has more.
    pub fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, budget: usize, now: Instant) -> bool {
        let Some(peer) = peer_of(&mut self.peers, &self.hub, conn) else { return false };
        let more = peer.poll_transmit(conn, out, budget, now, &mut self.hub);
        while let Some((prefix, peer)) = self.hub.rib.poll_written() {
            self.hub.events.push_back(Event::Advertised { prefix, peer });
        }
        more
    }

    /// The time at which `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let peers = self.peers.iter().flatten().filter_map(Peer::poll_timeout);
        let stations = self.hub.stations.iter().filter_map(Station::poll_timeout);
        // After a stop no selection follows. Without this filter the deadline would stay due for
        // ever.
        let deferral = self.deferral.poll_timeout().filter(|_| !self.hub.frozen);
        peers.chain(deferral).chain(stations).min()
    }

    /// Up to `max` prefixes with changed received best paths, each with its current state. A prefix
    /// is returned once for all changes since the last call that returned it. Fewer than `max`: no
    /// more for now. Originated prefixes are not included.
    pub fn route_changes(&mut self, max: usize) -> Vec<RouteChange> {
        self.hub.rib.route_changes(max)
    }

    /// The number of attribute sets in the tables. A set counts once, for any number of prefixes.
    /// Together with the prefixes they are most of the tables' memory.
    pub fn attribute_sets(&self) -> usize {
        self.hub.rib.attribute_sets()
    }

    /// Reports all prefixes again by [`Speaker::route_changes`], for a consumer that has lost its
    /// FIB.
    pub fn resend_routes(&mut self) {
        self.hub.rib.resend_routes();
    }

    /// Whether [`Speaker::route_changes`] would return a prefix.
    pub fn has_route_changes(&self) -> bool {
        self.hub.rib.has_route_changes()
    }

    /// Starts [`Event::Advertised`] for a prefix: one event for each Established peer that the
    /// prefix is written to. Peers that have it already are reported at once.
    pub fn watch(&mut self, prefix: IpNet) {
        let prefix = prefix.trunc();
        for peer in self.hub.rib.watch(prefix) {
            self.hub.events.push_back(Event::Advertised { prefix, peer });
        }
    }

    /// Ends [`Speaker::watch`].
    pub fn unwatch(&mut self, prefix: IpNet) {
        self.hub.rib.unwatch(&prefix.trunc());
    }

    /// All peers, configured and dynamic, by address.
    pub fn peers(&self, now: Instant) -> Vec<PeerStatus> {
        let by_key = self.by_key.values().filter_map(|id| self.peers[id.0 as usize].as_ref());
        by_key
            .map(|peer| {
                let mut status = peer.status(now);
                status.range = self.ranges.of(peer.id());
                for row in &mut status.families {
                    let counts = self.hub.rib.counts(peer.id(), row.family);
                    row.received = counts.received;
                    row.accepted = counts.accepted;
                    row.advertised = counts.advertised;
                    row.stale = counts.stale;
                    row.long_lived_stale = counts.long_lived_stale;
                    row.end_of_rib_sent =
                        row.negotiated && self.hub.rib.end_of_rib_sent(peer.id(), row.family);
                }
                status
            })
            .collect()
    }

    /// The connection of a peer's Established session.
    pub fn connection_of(&self, peer: PeerId) -> Option<ConnId> {
        self.peers.get(peer.0 as usize)?.as_ref()?.connection()
    }

    /// Adj-RIB-In of a peer by prefix, including rejected paths.
    ///
    /// # Errors
    /// If no such peer exists.
    pub fn received(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, ConfigError> {
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        let paths = Family::ALL.into_iter().flat_map(|family| self.hub.rib.received(id, family));
        Ok(sorted(paths.map(|path| Route::of_path(&path, Some(key)))))
    }

    /// Adj-RIB-Out of a peer by prefix: the routes written to it.
    ///
    /// # Errors
    /// If no such peer exists.
    pub fn advertised(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, ConfigError> {
        let key = peer.into();
        let id = self.peer_id(key).ok_or(ConfigError::UnknownPeer(key))?;
        let routes = Family::ALL.into_iter().flat_map(|family| self.hub.rib.advertised(id, family));
        Ok(sorted(routes.map(|route| Route::of_advertised(&route, key))))
    }

    /// Loc-RIB by prefix: the paths in use, including originated ones, the best path first.
    pub fn routes(&self) -> Vec<Route> {
        let paths = Family::ALL.into_iter().flat_map(|family| self.hub.rib.best(family));
        sorted(paths.map(|path| {
            let peer = path.peer.and_then(|id| self.peers.get(id.0 as usize)?.as_ref());
            Route::of_path(&path, peer.map(|peer| peer.config().key()))
        }))
    }

    /// Runs after every input: ends the deferral if it is over, and collects connections with
    /// octets to send.
    fn after(&mut self, now: Instant) {
        if self.hub.frozen {
            return;
        }
        // These calls come after the `PeerDown` of a session that ended.
        self.hub.report_defaults();
        self.drop_spent(now);
        let ready = self.deferral.take_ready(now, self.peers.iter().flatten(), self.ranges.any());
        for family in ready.iter() {
            self.hub.rib.release(family);
            self.hub.events.push_back(Event::Converged { family });
        }
        if !ready.is_empty() && self.deferral.is_over() {
            self.peers.iter_mut().flatten().for_each(Peer::restart_complete);
        }
        while let Some(id) = self.hub.rib.poll_writable() {
            if let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) {
                peer.updates_pending(now, &mut self.hub);
            }
        }
    }
}

/// The peer of a connection.
fn peer_of<'a>(peers: &'a mut [Option<Peer>], hub: &Hub, conn: ConnId) -> Option<&'a mut Peer> {
    let id = hub.conns.get(&conn)?;
    peers.get_mut(id.0 as usize)?.as_mut()
}

/// Sorts by prefix; routes of one prefix keep their order.
fn sorted(routes: impl Iterator<Item = Route>) -> Vec<Route> {
    let mut routes: Vec<Route> = routes.collect();
    routes.sort_by_key(|route| route.prefix);
    routes
}
