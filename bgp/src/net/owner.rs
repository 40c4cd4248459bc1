//! The task that owns the engine: passes inputs and commands with the time to it, and carries out
//! its actions.
//!
//! A turn takes a batch of queued inputs, which turns a burst of originations into few UPDATEs.
//! Then it carries out the engine's actions, lets connections write, and passes events on. A
//! connection that fills several buffers in one turn goes to the end of the queue. So a fast reader
//! of a large table does not delay the other peers.
//!
//! Reading and writing each end after a `SLICE`, even if more is left. So a full table in either
//! direction delays neither queries nor KEEPALIVEs. Only when a timer is due, all queued inputs are
//! handled first.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::bfd::{Bfd, Report};
use super::connect::{connect, set_options};
use super::connection::{CHUNK, Connection, Input};
use super::events::EventSender;
use super::heap::Trim;
use super::listener::Listeners;
use super::md5::Md5Counters;
use super::{ShellConfig, now, sockopt};
use crate::bmp::{StationId, StationRead};
use crate::rib::RouteChange;
use crate::speaker::{
    Action, ConnId, ConnectFailure, Event, ListenKey, ListenRange, PeerStatus, SocketOptions, Speaker, Stop,
};
use crate::types::{InterfaceName, PeerId, PeerKey};

/// A command to the owner.
pub(super) type Command = Box<dyn FnOnce(&mut Owner, Instant) + Send>;

/// The highest number of commands or inputs in one turn, before the turn writes.
const BATCH: usize = 64;

/// The time limit for inputs of a turn, and for its writes. The last input or connection may exceed
/// it a little.
const SLICE: Duration = Duration::from_millis(2);

/// The highest number of buffers that one connection fills in one turn.
const BUFFERS_A_TURN: usize = 4;

/// Abandoned watches are not collected below this number.
const WATCHES_KEPT: usize = 64;

/// A station, its free room in octets, and the sender of the answer.
type StationWaits = (StationId, usize, oneshot::Sender<(Vec<u8>, StationRead)>);

/// The callers that wait for the advertisement of a prefix.
type Watchers = Vec<oneshot::Sender<PeerKey>>;

/// An attempt to connect.
struct Attempt {
    task: AbortHandle,
    /// The kernel's counters at the beginning.
    before: Option<Md5Counters>,
}

pub(super) struct Owner {
    pub(super) speaker: Speaker,
    pub(super) listeners: Listeners,
    /// The listeners' key tables, as last received from the engine.
    listen_keys: Vec<ListenKey>,
    listen_ranges: Vec<ListenRange>,
    inputs: mpsc::Sender<Input>,
    events: EventSender,
    refused: Arc<AtomicU64>,
    connect_timeout: Duration,
    attempts: FxHashMap<ConnId, Attempt>,
    connections: FxHashMap<ConnId, Connection>,
    /// Connections with output and a socket that is not known to be full.
    writable: VecDeque<ConnId>,
    /// Connections with output and a full socket.
    unsent: FxHashSet<ConnId>,
    closing: TaskTracker,
    watches: FxHashMap<IpNet, Watchers>,
    /// The number of watches at which abandoned ones are collected.
    watches_swept_at: usize,
    route_changes: VecDeque<(usize, oneshot::Sender<Vec<RouteChange>>)>,
    /// Monitoring stations that wait for octets.
    stations: Vec<StationWaits>,
    pub(super) bfd: Bfd,
    bfd_reports: Option<mpsc::Receiver<Report>>,
    /// Callers that wait until all routes are advertised.
    waiting_for_advertised: Vec<oneshot::Sender<()>>,
    stopping: Vec<oneshot::Sender<()>>,
    stopped: bool,
    trim: Trim,
}

impl Owner {
    pub(super) fn new(
        speaker: Speaker,
        listeners: Listeners,
        inputs: mpsc::Sender<Input>,
        events: EventSender,
        refused: Arc<AtomicU64>,
        shell: &ShellConfig,
    ) -> Self {
        let (bfd, bfd_reports) = Bfd::new();
        Owner {
            speaker,
            listeners,
            listen_keys: Vec::new(),
            listen_ranges: Vec::new(),
            inputs,
            events,
            refused,
            connect_timeout: shell.connect_timeout,
            attempts: FxHashMap::default(),
            connections: FxHashMap::default(),
            writable: VecDeque::new(),
            unsent: FxHashSet::default(),
            closing: TaskTracker::new(),
            watches: FxHashMap::default(),
            watches_swept_at: WATCHES_KEPT,
            route_changes: VecDeque::new(),
            stations: Vec::new(),
            bfd,
            bfd_reports: Some(bfd_reports),
            waiting_for_advertised: Vec::new(),
            stopping: Vec::new(),
            stopped: false,
            trim: Trim::default(),
        }
    }

    /// Runs until the speaker is stopped.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut inputs: mpsc::Receiver<Input>,
    ) {
        let mut bfd_reports = self.bfd_reports.take();
        while !self.stopped {
            let deadline = self.speaker.poll_timeout();
            let timer = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let listen_again = self.listeners.poll_timeout();
            let listen_timer = async {
                match listen_again {
                    Some(again) => tokio::time::sleep_until(again.into()).await,
                    None => std::future::pending().await,
                }
            };
            let reported = async {
                match &mut bfd_reports {
                    Some(reports) => reports.recv().await,
                    None => None,
                }
            };
            tokio::select! {
                Some(report) = reported => self.handle_bfd(report, now()),
                command = commands.recv() => match command {
                    Some(command) => command(&mut self, now()),
                    None => self.stop_speaker(Stop::Silent, now()),
                },
                Some(input) = inputs.recv() => self.handle_input(input, now()),
                () = timer => {}
                () = listen_timer => self.listeners.handle_timeout(now()),
                // There is more to write: yields to other tasks, then continues.
                () = tokio::task::yield_now(), if !self.writable.is_empty() => {}
            }
            let at = now();
            for _ in 0..BATCH {
                let Ok(command) = commands.try_recv() else { break };
                command(&mut self, at);
            }
            // All queued inputs are handled before a timer expires, because an input may reset it.
            let due = deadline.is_some_and(|due| due <= at);
            let until = now() + SLICE;
            for _ in 0..inputs.len().min(BATCH) {
                let Ok(input) = inputs.try_recv() else { break };
                self.handle_input(input, at);
                if !due && now() >= until {
                    break;
                }
            }
            if self.speaker.poll_timeout().is_some_and(|due| due <= at) {
                self.count_refused_segments(at);
                self.speaker.handle_timeout(at);
            }
            self.turn(at);
            if !inputs.is_empty() {
                // Tasks that received an answer in this turn run on this thread. The yield lets
                // them continue now, not after all inputs.
                tokio::task::yield_now().await;
            }
        }
        // Closing the channels wakes the waiting senders; otherwise `finish` would not end.
        drop((commands, inputs));
        self.finish().await;
    }

    /// Carries out all output of the engine.
    fn turn(&mut self, now: Instant) {
        self.act();
        while let Some(conn) = self.speaker.poll_writable() {
            match self.connections.get(&conn) {
                Some(connection) if connection.is_ready() => self.writable.push_back(conn),
                Some(_) => {
                    self.unsent.insert(conn);
                }
                None => {}
            }
        }
        let until = super::now() + SLICE;
        for _ in 0..self.writable.len() {
            let Some(conn) = self.writable.pop_front() else { break };
            self.transmit(conn, now, until);
            if super::now() >= until {
                break;
            }
        }
        self.act();
        self.give_route_changes();
        self.give_stations(now);
        self.answer_all_advertised();
        self.trim.turn(self.speaker.attribute_sets());
    }

    /// Answers the stations that have octets to receive.
    fn give_stations(&mut self, now: Instant) {
        let speaker = &mut self.speaker;
        let ready =
            self.stations.extract_if(.., |(id, _, sender)| sender.is_closed() || speaker.station_ready(*id));
        let ready: Vec<StationWaits> = ready.collect();
        for (id, budget, sender) in ready {
            let mut octets = Vec::new();
            let read = self.speaker.station_read(id, &mut octets, budget, now);
            // The station's task may be gone; the station is then cut off and connects again.
            let _ = sender.send((octets, read));
        }
    }

    /// Answers requests for changed routes while there are any.
    pub(super) fn give_route_changes(&mut self) {
        while let Some((max, sender)) = self.route_changes.pop_front() {
            if sender.is_closed() {
                continue;
            }
            let changes = self.speaker.route_changes(max);
            if changes.is_empty() {
                self.route_changes.push_front((max, sender));
                break;
            }
            // Fails only if the consumer is gone: a waiting consumer keeps its receiver.
            let _ = sender.send(changes);
        }
    }

    /// Carries out actions and passes on events.
    pub(super) fn act(&mut self) {
        while let Some(action) = self.speaker.poll_action() {
            match action {
                Action::Connect { conn, local, remote, options, .. } => {
                    self.start_connecting(conn, local, remote, options);
                }
                Action::Configure { conn, options } => self.configure(conn, &options),
                Action::Close { conn, last_words } => self.close(conn, last_words),
                Action::SetBfd { peer, target } => self.bfd.set(peer, target),
                Action::RemoveBfd { peer } => self.bfd.remove(peer),
                Action::Listen(keys) => {
                    self.listen_keys = keys;
                    self.set_listen_keys();
                }
                Action::ListenRanges(ranges) => {
                    self.listen_ranges = ranges;
                    self.set_listen_keys();
                }
            }
        }
        while let Some(event) = self.speaker.poll_event() {
            if let Event::Advertised { prefix, peer } = event {
                self.advertised(prefix, peer);
            } else {
                self.events.send(event);
            }
        }
    }

    /// Answers the callers that wait until all routes are advertised, if they are.
    fn answer_all_advertised(&mut self) {
        if !self.waiting_for_advertised.is_empty() && self.speaker.has_advertised_all() {
            for sender in self.waiting_for_advertised.drain(..) {
                // The caller may have given up.
                let _ = sender.send(());
            }
        }
    }

    /// Registers a caller that waits until all routes are advertised.
    pub(super) fn watch_all_advertised(&mut self, sender: oneshot::Sender<()>) {
        self.waiting_for_advertised.push(sender);
    }

    fn handle_bfd(&mut self, report: Report, now: Instant) {
        let Report { peer, remote, down, status } = report;
        self.speaker.handle_bfd(peer, remote, down, status, now);
        self.act();
    }

    /// All peers, with the counts and kernel data that only the shell has.
    pub(super) fn peers(&self, now: Instant) -> Vec<PeerStatus> {
        let mut peers = self.speaker.peers(now);
        for status in &mut peers {
            if let Some(session) = &mut status.session {
                let conn = self.speaker.connection_of(status.peer);
                let connection = conn.and_then(|conn| self.connections.get(&conn));
                // A socket without this value is about to be reported as lost.
                session.round_trip =
                    connection.and_then(|connection| sockopt::round_trip(connection.stream()).ok()?);
            }
            if let Some(bfd) = &mut status.bfd {
                (bfd.packets_received, bfd.packets_sent) = self.bfd.packets(status.peer);
            }
        }
        peers
    }

    fn handle_input(&mut self, input: Input, now: Instant) {
        match input {
            Input::Accepted { stream, remote, interface } => self.accepted(stream, remote, interface, now),
            Input::Connected { conn, result } => self.connected(conn, result, now),
            Input::Bytes { conn, buffer, length } => {
                // The connection was closed from this side meanwhile: its octets are ignored.
                if let Some(connection) = self.connections.get(&conn) {
                    self.speaker.handle_bytes(conn, &buffer[..length], now);
                    connection.recycle(buffer, length);
                }
            }
            Input::Written { conn, buffer, result } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.written(buffer, result);
                    if self.unsent.remove(&conn) {
                        self.writable.push_back(conn);
                    }
                }
            }
            Input::Closed { conn, reason } => {
                if let Some(mut connection) = self.connections.remove(&conn) {
                    let reason = connection.reason(reason);
                    connection.forget();
                    self.unsent.remove(&conn);
                    self.speaker.handle_closed(conn, reason, now);
                }
            }
        }
        // The effects of an input come before the next input: a connection that the engine closed
        // gets no more octets.
        self.act();
    }

    /// Reports the segments that the kernel dropped during attempts that are about to be given up.
    fn count_refused_segments(&mut self, now: Instant) {
        let due = |conn: &ConnId| self.speaker.attempt_due(*conn).is_some_and(|due| due <= now);
        let ending: Vec<_> = self.attempts.iter().filter(|(conn, _)| due(conn)).collect();
        if ending.is_empty() {
            return;
        }
        let counters = Md5Counters::read();
        let refused =
            ending.into_iter().map(|(conn, attempt)| (*conn, Md5Counters::since(attempt.before, counters)));
        for (conn, refused) in refused.collect::<Vec<_>>() {
            self.speaker.handle_refused_segments(conn, refused);
        }
    }

    fn start_connecting(
        &mut self,
        conn: ConnId,
        local: Option<IpAddr>,
        remote: SocketAddr,
        options: SocketOptions,
    ) {
        let inputs = self.inputs.clone();
        let timeout = self.connect_timeout;
        let before = Md5Counters::read();
        let task = tokio::spawn(async move {
            let result = connect(local, remote, options, timeout, before).await;
            // Fails only if the owner has ended.
            let _ = inputs.send(Input::Connected { conn, result }).await;
        });
        self.attempts.insert(conn, Attempt { task: task.abort_handle(), before });
    }

    fn connected(&mut self, conn: ConnId, result: Result<TcpStream, ConnectFailure>, now: Instant) {
        if self.attempts.remove(&conn).is_none() {
            return; // given up meanwhile; dropping the stream closes it
        }
        let ends = result.and_then(|stream| match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(remote)) => Ok((stream, local, remote)),
            (Err(error), _) | (_, Err(error)) => {
                Err(ConnectFailure::from(format!("the connection was lost at once: {error}")))
            }
        });
        match ends {
            Ok((stream, local, remote)) => {
                self.keep(conn, stream, remote);
                self.speaker.handle_connected(conn, local, remote, now);
            }
            Err(failure) => self.speaker.handle_connect_failed(conn, failure, now),
        }
    }

    fn accepted(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        interface: Option<InterfaceName>,
        now: Instant,
    ) {
        // The connection is gone already; the peer may connect again.
        let Ok(local) = stream.local_addr() else { return };
        match self.speaker.handle_accepted(local, remote, interface, now) {
            Ok(conn) => self.keep(conn, stream, remote),
            Err(refusal) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                debug!(%remote, %local, %refusal, "refused a connection");
            }
        }
    }

    fn keep(&mut self, conn: ConnId, stream: TcpStream, remote: SocketAddr) {
        if let Err(error) = sockopt::set_common(&stream, remote.ip()) {
            warn!(%remote, %error, "cannot set the options of a connection");
        }
        self.connections.insert(conn, Connection::start(conn, stream, remote, &self.inputs));
    }

    fn configure(&mut self, conn: ConnId, options: &SocketOptions) {
        let Some(connection) = self.connections.get(&conn) else { return };
        if let Err(error) = set_options(connection.stream(), connection.remote().ip(), options) {
            warn!(remote = %connection.remote(), %error, "cannot set the TTLs of a connection");
        }
    }

    fn close(&mut self, conn: ConnId, last_words: Vec<u8>) {
        if let Some(attempt) = self.attempts.remove(&conn) {
            attempt.task.abort();
        }
        self.unsent.remove(&conn);
        if let Some(connection) = self.connections.remove(&conn) {
            connection.close(last_words, &self.closing);
        }
    }

    fn set_listen_keys(&mut self) {
        let ranges = self.listen_ranges.iter();
        let ranges = ranges.filter_map(|range| Some((range.prefix, range.password.as_ref()?)));
        let peers = self.listen_keys.iter();
        let peers = peers.filter_map(|key| Some((IpNet::from(key.remote), key.password.as_ref()?)));
        // A peer's own key is set last, so it overrides the key of a range with the same single
        // address.
        let keys = ranges.chain(peers).map(|(remote, password)| (remote, password.clone()));
        self.listeners.set_keys(keys.collect());
        let allowed = self.listen_keys.iter().map(|key| PeerKey::new(key.remote, key.interface));
        let ranges = self.listen_ranges.iter().map(|range| range.prefix);
        self.listeners.admit(allowed.collect(), ranges.collect());
    }

    fn transmit(&mut self, conn: ConnId, now: Instant, until: Instant) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        for _ in 0..BUFFERS_A_TURN {
            let speaker = &mut self.speaker;
            let more = connection
                .write(conn, &self.inputs, |buffer| speaker.poll_transmit(conn, buffer, CHUNK, now))
                .unwrap_or(true);
            match (more, connection.is_ready()) {
                (false, _) => return,
                (true, true) if super::now() >= until => break,
                (true, true) => {}
                (true, false) => {
                    self.unsent.insert(conn);
                    return;
                }
            }
        }
        self.writable.push_back(conn);
    }

    fn advertised(&mut self, prefix: IpNet, peer: PeerId) {
        let Some(key) = self.speaker.peer_key(peer) else { return };
        for watcher in self.watches.remove(&prefix).into_iter().flatten() {
            // The caller may have given up.
            let _ = watcher.send(key);
        }
        self.speaker.unwatch(prefix);
    }

    /// Registers a caller that waits until the prefix is advertised.
    pub(super) fn watch(&mut self, prefix: IpNet, sender: oneshot::Sender<PeerKey>) {
        let prefix = prefix.trunc();
        self.watches.entry(prefix).or_default().push(sender);
        self.speaker.watch(prefix);
        if self.watches.len() > self.watches_swept_at {
            self.sweep_watches();
        }
    }

    /// Removes watches without a waiting caller. This runs each time the number of watches has
    /// doubled, so the cost per watch stays constant.
    fn sweep_watches(&mut self) {
        let speaker = &mut self.speaker;
        self.watches.retain(|prefix, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            if watchers.is_empty() {
                speaker.unwatch(*prefix);
            }
            !watchers.is_empty()
        });
        self.watches_swept_at = (self.watches.len() * 2).max(WATCHES_KEPT);
    }

    pub(super) fn request_route_changes(&mut self, max: usize, sender: oneshot::Sender<Vec<RouteChange>>) {
        self.route_changes.push_back((max, sender));
    }

    pub(super) fn request_station(
        &mut self,
        id: StationId,
        budget: usize,
        sender: oneshot::Sender<(Vec<u8>, StationRead)>,
    ) {
        self.stations.push((id, budget, sender));
    }

    /// Stops the speaker; `done` is notified afterwards.
    pub(super) fn stop(&mut self, stop: Stop, done: oneshot::Sender<()>, now: Instant) {
        self.stopping.push(done);
        self.stop_speaker(stop, now);
    }

    fn stop_speaker(&mut self, stop: Stop, now: Instant) {
        if !self.stopped {
            self.stopped = true;
            self.speaker.stop(stop, now);
            self.act();
        }
    }

    async fn finish(mut self) {
        self.listeners.close().await;
        // The engine has closed all connections; a connection that it missed is closed without a
        // NOTIFICATION.
        for (_, connection) in self.connections.drain() {
            connection.close(Vec::new(), &self.closing);
        }
        self.attempts.drain().for_each(|(_, attempt)| attempt.task.abort());
        self.closing.close();
        self.closing.wait().await;
        for done in self.stopping.drain(..) {
            // The caller may be gone.
            let _ = done.send(());
        }
    }
}
