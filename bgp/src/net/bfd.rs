//! BFD's sockets and clock: a thread of its own around [`Endpoint`].
//!
//! ```text
//!  owner task ──Command, a wake-up octet──► thread "bfd" ──Report──► owner task
//!                                            │  ▲
//!                  one socket a session ◄────┘  └──── at most four sockets: 3784 and 4784, IPv4 and IPv6
//! ```
//!
//! Why a thread and not a task: a session at 10 ms × 3 is lost by 30 ms of waiting, and the runtime's workers may be
//! busy for longer with a table. Its priority is raised where the process may do that (CAP_SYS_NICE), because on a node
//! whose pods use every core an ordinary thread waits for its turn, and the peer would take that for a dead path. It
//! does a few microseconds of work for each packet and sleeps otherwise. It takes no lock that an ordinary thread may hold while
//! it waits for a processor itself. The heap is such a lock: while no session changes, nothing is allocated here, nor
//! anything that is there made larger. (A vector that grew by one `realloc` in each round cost sessions at 10 ms, and on a busy
//! node some at 50 ms.)
//!
//! Should it run late nevertheless, that is not taken for the peer's silence: the kernel stamps what arrives, the sockets
//! are emptied before a timer is looked at, and detection runs from the stamps. Sends have absolute deadlines.
//!
//! Sockets are opened when the first session needs them, and tried again with each packet that is due (once a second)
//! while they cannot be: the port is taken, the interface or the local address is not there yet. That is said once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::now;
use super::sockopt::{self, NoInterface, datagram};
use crate::bfd::{
    Down, Endpoint, FIRST_SOURCE_PORT, MULTIHOP_PORT, SINGLE_HOP_PORT, SessionId, Source, Status, Target,
};
use crate::types::PeerId;

/// Reports that wait for the owner; further ones are merged here until there is room.
const REPORTS: usize = 64;
/// Datagrams that are taken from one socket before timers are looked at.
const BATCH: usize = 1024;
/// Between two lines of log about packets that were refused.
const COMPLAINTS: Duration = Duration::from_secs(10);
/// How soon a report is tried again that the owner had no room for.
const RETRY: Duration = Duration::from_millis(20);

/// Packets of a session.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// What the owner wants.
enum Command {
    Set(PeerId, Target, Arc<Counters>),
    Remove(PeerId),
}

/// A session stands differently.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) peer: PeerId,
    /// Whom the session is with: the peer may have been replaced since.
    pub(super) remote: IpAddr,
    pub(super) down: Option<Down>,
    pub(super) status: Status,
}

/// The owner's end. The thread starts with the first session, and ends when this is dropped.
pub(super) struct Bfd {
    reports: mpsc::Sender<Report>,
    thread: Option<(std_mpsc::Sender<Command>, UnixStream)>,
    counters: BTreeMap<PeerId, Arc<Counters>>,
}

impl Bfd {
    pub(super) fn new() -> (Bfd, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        (Bfd { reports, thread: None, counters: BTreeMap::new() }, receiver)
    }

    /// Starts a session, or changes it.
    pub(super) fn set(&mut self, peer: PeerId, target: Target) {
        let counters = Arc::clone(self.counters.entry(peer).or_default());
        if self.thread.is_none() {
            match start(self.reports.clone()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => return warn!(%error, "BFD cannot be started: its sessions stay Down"),
            }
        }
        self.command(Command::Set(peer, target, counters));
    }

    /// Ends a session with AdminDown.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.counters.remove(&peer);
        self.command(Command::Remove(peer));
    }

    /// Packets received and sent.
    pub(super) fn packets(&self, peer: PeerId) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.counters.get(&peer).map_or((0, 0), |counters| (count(&counters.received), count(&counters.sent)))
    }

    fn command(&mut self, command: Command) {
        let Some((commands, wake)) = &mut self.thread else { return };
        // Fails only if the thread has ended, and it ends after this. A full pipe wakes it as well.
        let _ = commands.send(command);
        let _ = wake.write(&[0]);
    }
}

fn start(reports: mpsc::Sender<Report>) -> io::Result<(std_mpsc::Sender<Command>, UnixStream)> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let (commands, inbox) = std_mpsc::channel();
    let work = move || {
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
            sockets: BTreeMap::new(),
            emptied: now(),
            complained: None,
        }
        .run();
    };
    std::thread::Builder::new().name("bfd".to_owned()).spawn(work)?;
    Ok((commands, wake))
}

/// Where a session's packets go out.
struct Link {
    peer: PeerId,
    target: Target,
    counters: Arc<Counters>,
    /// The socket and the address to send to.
    socket: Option<(UdpSocket, SocketAddr)>,
    /// The source port that it has, or had and is to have again.
    port: Option<u16>,
    /// The failure to open or send that was told last.
    complaint: Option<ErrorKind>,
}

/// Why a packet was not sent. Made without the heap: who cannot send tries again and again.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("cannot listen on UDP port {port}, is another BFD running? {error}")]
    Listen { port: u16, error: io::Error },
    #[error(transparent)]
    Interface(#[from] NoInterface),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SendError {
    fn kind(&self) -> ErrorKind {
        match self {
            SendError::Listen { error, .. } | SendError::Io(error) => error.kind(),
            SendError::Interface(_) => ErrorKind::NotFound,
        }
    }
}

/// Which receiving socket: IPv6, multihop.
type Port = (bool, bool);
/// How many there are.
const PORTS: usize = 4;

fn port_of(target: &Target) -> Port {
    (target.remote.is_ipv6(), target.config.multihop)
}

struct Thread {
    endpoint: Endpoint,
    random: u64,
    inbox: std_mpsc::Receiver<Command>,
    woken: UnixStream,
    reports: mpsc::Sender<Report>,
    pending: Vec<Report>,
    by_peer: BTreeMap<PeerId, SessionId>,
    /// Sessions, those that only say goodbye included.
    links: BTreeMap<SessionId, Link>,
    next_id: u32,
    sockets: BTreeMap<Port, Socket>,
    /// What is in a socket arrived after this.
    emptied: Instant,
    complained: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        if let Err(error) = datagram::raise_priority() {
            debug!(%error, "the priority of BFD's thread stays as it is");
        }
        loop {
            let ends = self.take_commands();
            // Everything that arrived until now is heard before a timer of now expires.
            let now = now();
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

    /// True once the owner has gone.
    fn take_commands(&mut self) -> bool {
        let mut octets = [0; 64];
        while self.woken.read(&mut octets).is_ok_and(|length| length > 0) {}
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Set(peer, target, counters)) => self.set(peer, target, counters),
                Ok(Command::Remove(peer)) => self.remove(peer),
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
                // A name of its own, so that the goodbye of the old one goes to the old peer.
                self.remove(peer);
                let id = SessionId(self.next_id);
                self.next_id = self.next_id.wrapping_add(1);
                self.by_peer.insert(peer, id);
                let target = target.clone();
                let link = Link { peer, target, counters, socket: None, port: None, complaint: None };
                self.links.insert(id, link);
                id
            }
        };
        if let Err(error) = self.endpoint.set(id, target, now()) {
            // The speaker has validated it.
            warn!(%error, "a BFD session was refused");
        }
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
                let link_local = matches!(remote, IpAddr::V6(v6) if v6.is_unicast_link_local());
                let source = Source {
                    remote,
                    local: datagram.to,
                    interface: datagram.interface.filter(|_| link_local).and_then(datagram::interface_name),
                    ttl: datagram.ttl,
                    multihop,
                };
                // The wall's clock may be set at any time: never before the socket was last seen empty.
                let age = datagram.stamp.map_or(Duration::ZERO, |stamp| wall().saturating_sub(stamp));
                let at = now.checked_sub(age).map_or(emptied, |at| at.max(emptied));
                match self.endpoint.handle_packet(&source, &buffer[..datagram.length], at) {
                    Ok(id) => {
                        if let Some(link) = self.links.get(&id) {
                            link.counters.received.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Err(rejection) => {
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
            // Opened anew next time: interface and addresses may have changed.
            link.socket = None;
            if link.complaint.replace(error.kind()) != Some(error.kind()) {
                warn!(remote = %link.target.remote, %error, "cannot send BFD packets");
            }
        }
    }

    fn send(&mut self, id: SessionId, payload: &[u8]) -> Result<(), SendError> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let port = port_of(&link.target);
        if let Entry::Vacant(place) = self.sockets.entry(port) {
            let failed = |error| SendError::Listen { port: destination(port.1), error };
            place.insert(listen(port).map_err(failed)?);
        }
        let (socket, to) = match &link.socket {
            Some(open) => open,
            None => link.socket.insert(open(&link.target, &mut link.port, &mut self.random)?),
        };
        match socket.send_to(payload, *to) {
            Ok(_) => {
                link.counters.sent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            // As good as lost on the way.
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
        // An error is an interruption: the loop looks at everything again.
        let _ = poll(&mut fds[..=self.sockets.len()], wait.as_ref());
    }
}

fn listen((ipv6, multihop): Port) -> io::Result<Socket> {
    let (domain, any): (_, IpAddr) = match ipv6 {
        true => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
        false => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if ipv6 {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    datagram::ask_for_details(&socket, ipv6)?;
    socket.bind(&SocketAddr::new(any, destination(multihop)).into())?;
    Ok(socket)
}

/// The port that packets go to.
fn destination(multihop: bool) -> u16 {
    if multihop { MULTIHOP_PORT } else { SINGLE_HOP_PORT }
}

/// A socket with a source port that no other session has, the same as before if there was one (RFC 5881 §4), and where to
/// send.
fn open(
    target: &Target,
    kept: &mut Option<u16>,
    random: &mut u64,
) -> Result<(UdpSocket, SocketAddr), SendError> {
    let scope = match target.interface {
        Some(name) => sockopt::interface_index(name)?,
        None => 0,
    };
    let scoped = |address: IpAddr, port| match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope).into(),
        address => SocketAddr::new(address, port),
    };
    let (domain, any): (_, IpAddr) = match target.remote {
        IpAddr::V4(_) => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    sockopt::set_ttl(&socket, target.remote, Some(u8::MAX))?;
    sockopt::set_precedence(&socket, target.remote)?;
    let ports = u16::MAX - FIRST_SOURCE_PORT;
    for attempt in 0..=ports {
        let port = kept.filter(|_| attempt == 0).unwrap_or_else(|| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            FIRST_SOURCE_PORT + (*random >> 33) as u16 % (ports + 1)
        });
        match socket.bind(&scoped(target.local.unwrap_or(any), port).into()) {
            Ok(()) => {
                *kept = Some(port);
                break;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse && attempt < ports => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((socket.into(), scoped(target.remote, destination(target.config.multihop))))
}

/// The clock that the kernel's stamps are of, since 1970.
#[expect(clippy::disallowed_methods, reason = "compared with the kernel's stamps, which are of this clock")]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bfd::BfdConfig;

    #[test]
    fn a_session_keeps_its_source_port_as_long_as_nobody_has_taken_it() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let config = BfdConfig::new(Duration::from_millis(50));
        let target = Target { remote: local, local: Some(local), interface: None, config };
        let (mut kept, mut random) = (None, 7);
        let mut port = || open(&target, &mut kept, &mut random).unwrap().0;
        let first = port().local_addr().unwrap().port();
        assert!(first >= FIRST_SOURCE_PORT);
        let again = port();
        assert_eq!(again.local_addr().unwrap().port(), first);
        assert_ne!(port().local_addr().unwrap().port(), first, "it is taken");
    }
}
