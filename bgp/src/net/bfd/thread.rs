//! The BFD thread. The parent module explains its purpose and rules.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::sockets::{PORTS, Port, SendError, destination, listen, open, port_of, set_filter};
use super::{Command, Counters, REPORTS, RejectionCounters, Report};
use crate::bfd::{Endpoint, HostLink, Links, SessionId, Source, Target};
use crate::net::now;
use crate::net::sockopt::{self, datagram};
use crate::types::PeerId;

/// Datagrams read from one socket before the timers are checked.
const BATCH: usize = 1024;
/// The minimum interval between log lines about rejected packets.
const COMPLAINTS: Duration = Duration::from_secs(10);
/// The retry interval for a report if the owner's queue is full.
const RETRY: Duration = Duration::from_millis(20);

/// The sending side of a session.
struct Link {
    peer: PeerId,
    target: Target,
    /// The accepted links.
    accepts: Links,
    counters: Arc<Counters>,
    /// The socket and the address to send to.
    socket: Option<(UdpSocket, SocketAddr)>,
    /// The current or previous source port; it is used again for a new socket.
    port: Option<u16>,
    /// The last logged failure to open or send.
    complaint: Option<ErrorKind>,
}

/// The thread's state.
pub(super) struct Thread {
    endpoint: Endpoint,
    random: u64,
    inbox: std_mpsc::Receiver<Command>,
    woken: UnixStream,
    reports: mpsc::Sender<Report>,
    pending: Vec<Report>,
    by_peer: BTreeMap<PeerId, SessionId>,
    /// Sessions, including removed ones that still send packets.
    links: BTreeMap<SessionId, Link>,
    next_id: u32,
    /// The host's links, once known.
    host: Option<Vec<HostLink>>,
    refused: Arc<RejectionCounters>,
    sockets: BTreeMap<Port, Socket>,
    /// Packets that are still in a socket arrived after this time.
    emptied: Instant,
    complained: Option<Instant>,
}

impl Thread {
    pub(super) fn new(
        inbox: std_mpsc::Receiver<Command>,
        woken: UnixStream,
        reports: mpsc::Sender<Report>,
        host: Option<Vec<HostLink>>,
        refused: Arc<RejectionCounters>,
    ) -> Thread {
        // The discriminators cannot be guessed (RFC 5880 §6.3), because the key comes from the
        // operating system.
        let random = || RandomState::new().build_hasher().finish();
        Thread {
            endpoint: Endpoint::new(random()),
            random: random(),
            inbox,
            woken,
            reports,
            pending: Vec::with_capacity(REPORTS),
            by_peer: BTreeMap::new(),
            links: BTreeMap::new(),
            next_id: 0,
            host,
            refused,
            sockets: BTreeMap::new(),
            emptied: now(),
            complained: None,
        }
    }

    /// Runs until the owner has ended.
    pub(super) fn run(mut self) {
        if let Err(error) = datagram::raise_priority() {
            debug!(%error, "the priority of BFD's thread stays as it is");
        }
        loop {
            let ends = self.take_commands();
            // All packets that arrived until now are handled before a timer expires.
            let now = now();
            if ends {
                self.endpoint.close(now);
            }
            self.empty_sockets(now);
            self.endpoint.handle_timeout(now);
            self.transmit();
            self.report();
            let endpoint = &self.endpoint;
            self.links.retain(|id, _| endpoint.is_active(*id));
            if ends {
                return;
            }
            self.sleep();
        }
    }

    /// Handles the queued commands; returns true if the owner has ended.
    fn take_commands(&mut self) -> bool {
        let mut octets = [0; 64];
        while self.woken.read(&mut octets).is_ok_and(|length| length > 0) {}
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Set(peer, target, counters)) => self.set(peer, target, counters),
                Ok(Command::Remove(peer)) => {
                    self.remove(peer);
                    self.set_filters();
                }
                Ok(Command::Links(links)) => {
                    self.host = Some(links);
                    self.follow_links();
                }
                Err(std_mpsc::TryRecvError::Empty) => return false,
                Err(std_mpsc::TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn set(&mut self, peer: PeerId, target: Target, counters: Arc<Counters>) {
        let old = self.by_peer.get(&peer).and_then(|id| Some((*id, self.links.get_mut(id)?)));
        let id = match old {
            Some((id, link)) if link.target.is_same_session(&target) => {
                link.target = target.clone();
                id
            }
            _ => {
                // The new session has a new id, so the AdminDown of the old session goes to the old
                // peer.
                self.remove(peer);
                let id = SessionId(self.next_id);
                self.next_id = self.next_id.wrapping_add(1);
                self.by_peer.insert(peer, id);
                let target = target.clone();
                let accepts = self.links_of(&target);
                let link =
                    Link { peer, target, accepts, counters, socket: None, port: None, complaint: None };
                self.links.insert(id, link);
                id
            }
        };
        if let Err(error) = self.endpoint.set(id, target, now()) {
            // The speaker has validated the target.
            warn!(%error, "a BFD session was refused");
        }
        if let Some(link) = self.links.get(&id) {
            self.endpoint.set_links(id, link.accepts.clone());
        }
        self.set_filters();
    }

    /// The links that a session accepts packets from.
    fn links_of(&self, target: &Target) -> Links {
        match (&self.host, target.interface) {
            (Some(host), _) => Links::of(target, host),
            (None, Some(name)) => Links::Only(sockopt::interface_index(name).into_iter().collect()),
            (None, None) => Links::Any,
        }
    }

    /// Applies a change of the host's links.
    fn follow_links(&mut self) {
        let mut changed = false;
        let ids: Vec<SessionId> = self.links.keys().copied().collect();
        for id in ids {
            let Some(accepts) = self.links.get(&id).map(|link| self.links_of(&link.target)) else { continue };
            if let Some(link) = self.links.get_mut(&id).filter(|link| link.accepts != accepts) {
                debug!(remote = %link.target.remote, links = ?accepts, "BFD packets are accepted from other links");
                self.endpoint.set_links(id, accepts.clone());
                link.accepts = accepts;
                changed = true;
            }
        }
        if changed {
            self.set_filters();
        }
    }

    fn set_filters(&self) {
        for (&port, socket) in &self.sockets {
            set_filter(socket, port, &self.accepted_on(port));
        }
    }

    /// The sessions of a receiving socket: the peer's address and the accepted links. A removed
    /// session that still sends packets accepts nothing.
    fn accepted_on(&self, port: Port) -> Vec<(IpAddr, &Links)> {
        let sessions = self.by_peer.values().filter_map(|id| self.links.get(id));
        let of_port = sessions.filter(|link| port_of(&link.target) == port);
        of_port.map(|link| (link.target.remote, &link.accepts)).collect()
    }

    fn remove(&mut self, peer: PeerId) {
        if let Some(id) = self.by_peer.remove(&peer) {
            self.endpoint.remove(id, now());
        }
        self.pending.retain(|report| report.peer != peer);
    }

    fn empty_sockets(&mut self, now: Instant) {
        let mut buffer = [0; 256];
        let emptied = std::mem::replace(&mut self.emptied, now);
        for (&(_, multihop), socket) in &self.sockets {
            for _ in 0..BATCH {
                let datagram = match datagram::receive(socket, &mut buffer) {
                    Ok(datagram) => datagram,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                let remote = datagram.from.ip().to_canonical();
                let source = Source {
                    remote,
                    local: datagram.to,
                    interface: datagram.interface,
                    ttl: datagram.ttl,
                    multihop,
                };
                // The wall clock may be changed at any time, so the arrival time is limited: it is
                // not before the last time the socket was empty.
                let age = datagram.stamp.map_or(Duration::ZERO, |stamp| wall().saturating_sub(stamp));
                let at = now.checked_sub(age).map_or(emptied, |at| at.max(emptied));
                match self.endpoint.handle_packet(&source, &buffer[..datagram.length], at) {
                    Ok(id) => {
                        if let Some(link) = self.links.get(&id) {
                            link.counters.received.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Err(rejection) => {
                        self.refused.by_reason[rejection.reason() as usize].fetch_add(1, Ordering::Relaxed);
                        if self.complained.is_none_or(|last| now.duration_since(last) >= COMPLAINTS) {
                            self.complained = Some(now);
                            warn!(%remote, %rejection, "refused a BFD packet");
                        }
                    }
                }
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            let Err(error) = self.send(transmit.session, &transmit.payload) else { continue };
            let Some(link) = self.links.get_mut(&transmit.session) else { continue };
            // The socket is opened again next time, because interface and addresses may have
            // changed.
            link.socket = None;
            if link.complaint.replace(error.kind()) != Some(error.kind()) {
                warn!(remote = %link.target.remote, %error, "cannot send BFD packets");
            }
        }
    }

    fn listen(&mut self, port: Port) -> io::Result<()> {
        let socket = listen(port, &self.accepted_on(port))?;
        let (ipv6, multihop) = port;
        if let Ok(copy) = socket.try_clone() {
            let _ = self.refused.sockets[usize::from(ipv6) * 2 + usize::from(multihop)].set(copy);
        }
        self.sockets.insert(port, socket);
        Ok(())
    }

    fn send(&mut self, id: SessionId, payload: &[u8]) -> Result<(), SendError> {
        let Some(link) = self.links.get(&id) else { return Ok(()) };
        let port = port_of(&link.target);
        if !self.sockets.contains_key(&port) {
            self.listen(port).map_err(|error| SendError::Listen { port: destination(port.1), error })?;
        }
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        if link.socket.is_none() {
            let opened = open(&link.target, &mut link.port, &mut self.random)?;
            link.socket = Some(opened);
            // Without a list of the host's links, the name may now belong to a new interface.
            if self.host.is_none() && link.target.interface.is_some() {
                self.follow_links();
            }
        }
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let Some((socket, to)) = &link.socket else { return Ok(()) };
        match socket.send_to(payload, *to) {
            Ok(_) => {
                link.counters.sent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            // The peer sees this as a lost packet.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn report(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let Some(link) = self.links.get(&event.session) else { continue };
            if self.by_peer.get(&link.peer) != Some(&event.session) {
                continue;
            }
            let (peer, remote) = (link.peer, link.target.remote);
            let report = Report { peer, remote, down: event.down, status: event.status };
            match self.pending.iter_mut().find(|report| report.peer == peer) {
                Some(waiting) => *waiting = Report { down: report.down.or(waiting.down), ..report },
                None => self.pending.push(report),
            }
        }
        while let Some(report) = self.pending.pop() {
            if let Err(mpsc::error::TrySendError::Full(report)) = self.reports.try_send(report) {
                self.pending.push(report);
                return;
            }
        }
    }

    fn sleep(&self) {
        let due = self.endpoint.poll_timeout();
        let wait = due.map(|at| at.saturating_duration_since(now()));
        let retry = (!self.pending.is_empty()).then_some(RETRY);
        let wait = wait.into_iter().chain(retry).min();
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut fds: [PollFd<'_>; 1 + PORTS] =
            std::array::from_fn(|_| PollFd::new(&self.woken, PollFlags::IN));
        for (fd, socket) in fds[1..].iter_mut().zip(self.sockets.values()) {
            *fd = PollFd::new(socket, PollFlags::IN);
        }
        // An error means an interruption. The loop then checks everything again.
        let _ = poll(&mut fds[..=self.sockets.len()], wait.as_ref());
    }
}

/// The wall clock since 1970, which the kernel uses for its timestamps.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with the kernel's timestamps, which use \
    this clock"
)]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
