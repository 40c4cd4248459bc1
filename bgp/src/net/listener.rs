//! The listening side: one socket per address, each with a task that accepts.
//!
//! All peers share the listening sockets, so options of a single peer are set on the accepted
//! connection. TCP-MD5 is the exception: its keys must be on the listener before the peer's SYN
//! arrives. IPv6 sockets are v6only, and IPv4 has its own sockets, so an IPv4 peer's key is looked
//! up as IPv4.
//!
//! A connection from an unconfigured address is closed after `accept` and counted. Even many such
//! connections take none of the speaker's time.
//!
//! **Listening is separate from running.** An address that cannot be bound stops neither the
//! speaker nor its outgoing sessions. [`Listeners`] tries the address again, first after 1 s, later
//! every 10 s. The kernel sends no notification when a TCP port becomes free, so a timer is the
//! only way. An address that was missing is tried again at once when the host's links change.
//! [`ListenStatus`] shows which addresses are bound.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::connection::Input;
use super::error::ListenError;
use super::sockopt;
use super::sockopt::datagram;
use crate::config::Password;
use crate::types::{InterfaceName, PeerKey};

/// Connections that wait for `accept`. Peers are few; a flood from other hosts is limited here.
const BACKLOG: i32 = 128;

/// The pause after `accept` failed for lack of file descriptors or memory; an immediate retry would
/// fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The first pause before an address is tried again. Each further pause is twice as long, up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before an address is tried again.
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// Whether the speaker accepts connections at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenStatus {
    /// The configured address, with the port that the kernel chose where 0 was configured.
    pub address: SocketAddr,
    /// The reason why the address is not bound. None: connections are accepted.
    pub fault: Option<ListenFault>,
}

/// The reason why an address is not bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenFault {
    /// The kernel's error.
    pub reason: String,
    /// The fix.
    pub fix: String,
    /// Another socket has the port.
    pub in_use: bool,
    /// The first failed attempt.
    pub since: Instant,
}

/// The configured peers, which may connect.
type Allowed = Arc<HashSet<PeerKey>>;

/// Prefixes of dynamic neighbours, which may connect too.
pub(super) type Ranges = Arc<[IpNet]>;

/// The sources of connections that the listeners accept.
#[derive(Debug)]
struct Admission {
    peers: watch::Sender<Allowed>,
    ranges: watch::Sender<Ranges>,
}

/// The listening sockets, and the addresses that are not bound yet.
#[derive(Debug)]
pub(super) struct Listeners {
    bound: Vec<Listener>,
    unbound: Vec<Unbound>,
    /// The TCP-MD5 keys; a socket gets them before it listens.
    keys: Vec<(IpNet, Password)>,
    admission: Admission,
    inputs: mpsc::Sender<Input>,
    refused: Arc<AtomicU64>,
    status: watch::Sender<Arc<[ListenStatus]>>,
}

/// An address that is not bound, with its next attempt.
#[derive(Debug)]
struct Unbound {
    address: SocketAddr,
    fault: ListenFault,
    pause: Duration,
    again: Instant,
}

impl Listeners {
    /// Binds every address if possible, and accepts there. A wildcard address of a family that this
    /// kernel lacks is skipped with a warning if another address exists.
    pub(super) fn open(
        addresses: &[SocketAddr],
        inputs: mpsc::Sender<Input>,
        refused: Arc<AtomicU64>,
        now: Instant,
    ) -> Listeners {
        let mut listeners = Listeners {
            bound: Vec::new(),
            unbound: Vec::new(),
            keys: Vec::new(),
            admission: Admission { peers: watch::Sender::default(), ranges: watch::Sender::default() },
            inputs,
            refused,
            status: watch::Sender::new(Arc::default()),
        };
        let mut missing = Vec::new();
        for &address in addresses {
            match listeners.bind(address) {
                Ok(()) => {}
                Err(error) if is_missing_family(&error) => missing.push(Unbound::new(&error, now)),
                Err(error) => listeners.unbound.push(Unbound::new(&error, now)),
            }
        }
        if listeners.bound.is_empty() && listeners.unbound.is_empty() {
            listeners.unbound = missing;
        } else {
            for Unbound { address, .. } in missing {
                warn!(%address, "this kernel has no such address family: not listening there");
            }
        }
        listeners.report();
        listeners
    }

    /// When the next address is due for another attempt.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.unbound.iter().map(|unbound| unbound.again).min()
    }

    /// Tries the addresses that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|again| again > now) {
            return;
        }
        for mut unbound in std::mem::take(&mut self.unbound) {
            if unbound.again <= now
                && let Err(error) = self.bind(unbound.address)
            {
                unbound.fail_again(&error, now);
                self.unbound.push(unbound);
            } else if unbound.again > now {
                self.unbound.push(unbound);
            }
        }
        self.report();
    }

    /// Tries every unbound address now, because the host's addresses have changed.
    pub(super) fn retry(&mut self, now: Instant) {
        self.unbound.iter_mut().for_each(|unbound| unbound.again = now);
        self.handle_timeout(now);
    }

    /// The status of every address, with notification of changes.
    pub(super) fn status(&self) -> watch::Receiver<Arc<[ListenStatus]>> {
        self.status.subscribe()
    }

    /// Replaces the TCP-MD5 keys; if two keys have the same prefix, the last one is used.
    pub(super) fn set_keys(&mut self, keys: Vec<(IpNet, Password)>) {
        self.keys = keys;
        for listener in &mut self.bound {
            set_keys(&*listener.socket, listener.address, &mut listener.keys, &self.keys);
        }
    }

    /// Replaces the sources of accepted connections.
    pub(super) fn admit(&self, peers: HashSet<PeerKey>, ranges: Ranges) {
        self.admission.peers.send_replace(Arc::new(peers));
        self.admission.ranges.send_replace(ranges);
    }

    /// Stops listening. Afterwards the ports are free for another process.
    pub(super) async fn close(&mut self) {
        self.admit(HashSet::new(), Arc::default());
        self.unbound.clear();
        for listener in self.bound.drain(..) {
            listener.close().await;
        }
    }

    fn bind(&mut self, address: SocketAddr) -> Result<(), ListenError> {
        let listener =
            Listener::open(address, &self.keys, &self.admission, &self.inputs, Arc::clone(&self.refused))
                .map_err(|source| ListenError { address, source })?;
        self.bound.push(listener);
        Ok(())
    }

    fn report(&self) {
        let bound = self.bound.iter().map(|listener| ListenStatus { address: listener.address, fault: None });
        let unbound = self
            .unbound
            .iter()
            .map(|unbound| ListenStatus { address: unbound.address, fault: Some(unbound.fault.clone()) });
        let mut status: Vec<ListenStatus> = bound.chain(unbound).collect();
        status.sort_by_key(|status| status.address);
        self.status.send_if_modified(|old| {
            let changed = **old != *status;
            *old = status.into();
            changed
        });
    }
}

impl Unbound {
    fn new(error: &ListenError, now: Instant) -> Unbound {
        let fault = ListenFault {
            reason: error.source.to_string(),
            fix: error.fix(),
            in_use: error.source.kind() == io::ErrorKind::AddrInUse,
            since: now,
        };
        Unbound { address: error.address, fault, pause: FIRST_PAUSE, again: now + FIRST_PAUSE }
    }

    /// Records another failure. The reason may change; the time of the first failure stays.
    fn fail_again(&mut self, error: &ListenError, now: Instant) {
        let since = self.fault.since;
        let pause = (self.pause * 2).min(LAST_PAUSE);
        *self = Unbound { pause, again: now + pause, ..Unbound::new(error, now) };
        self.fault.since = since;
    }
}

fn is_missing_family(error: &ListenError) -> bool {
    let unspecified = match error.address.ip() {
        IpAddr::V4(address) => address.is_unspecified(),
        IpAddr::V6(address) => address.is_unspecified(),
    };
    // EAFNOSUPPORT comes with ipv6.disable=1 at boot, EADDRNOTAVAIL may come with the sysctl
    // disable_ipv6.
    unspecified && matches!(error.source.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// A listening socket, the keys on it, and its task.
#[derive(Debug)]
struct Listener {
    socket: Arc<TcpListener>,
    /// The address, with the port that the kernel chose for port 0.
    address: SocketAddr,
    keys: HashMap<IpNet, Password>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Binds, listens, and accepts. The keys are set before the socket listens, because a
    /// connection that the kernel completes without a key would never get one.
    fn open(
        address: SocketAddr,
        wanted: &[(IpNet, Password)],
        admission: &Admission,
        inputs: &mpsc::Sender<Input>,
        refused: Arc<AtomicU64>,
    ) -> io::Result<Listener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restart must not wait until connections of the previous process have left TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        sockopt::set_common(&socket, address.ip())?;
        sockopt::set_ttl(&socket, address.ip(), Some(255))?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        let mut keys = HashMap::new();
        set_keys(&socket, address, &mut keys, wanted);
        socket.listen(BACKLOG)?;
        let socket = Arc::new(TcpListener::from_std(socket.into())?);
        let address = socket.local_addr()?;
        let accepting = accept(
            Arc::clone(&socket),
            address,
            admission.peers.subscribe(),
            admission.ranges.subscribe(),
            inputs.clone(),
            refused,
        );
        Ok(Listener { socket, address, keys, task: tokio::spawn(accepting) })
    }

    /// Stops listening. Afterwards the port is free for another process.
    async fn close(self) {
        self.task.abort();
        // The task also holds the socket: the port is free once the task has ended. Its result is
        // always the abort.
        let _ = self.task.await;
    }
}

/// Sets the TCP-MD5 keys of a socket to those of its family; if two keys have the same prefix, the
/// last one is used. Unchanged keys are not touched.
fn set_keys(
    socket: &impl AsFd,
    address: SocketAddr,
    keys: &mut HashMap<IpNet, Password>,
    wanted: &[(IpNet, Password)],
) {
    let wanted: HashMap<IpNet, &Password> = wanted
        .iter()
        .filter(|(remote, _)| remote.addr().is_ipv4() == address.is_ipv4())
        .map(|(remote, password)| (*remote, password))
        .collect();
    let stale: Vec<IpNet> = keys.keys().filter(|remote| !wanted.contains_key(remote)).copied().collect();
    for remote in stale {
        match sockopt::set_md5_prefix_key(socket, remote, None) {
            Ok(()) => {
                keys.remove(&remote);
            }
            Err(error) => {
                warn!(listener = %address, peer = %remote, %error, "cannot delete a TCP-MD5 key");
            }
        }
    }
    for (remote, password) in wanted {
        if keys.get(&remote) == Some(password) {
            continue;
        }
        match sockopt::set_md5_prefix_key(socket, remote, Some(password)) {
            Ok(()) => {
                keys.insert(remote, password.clone());
            }
            Err(error) => {
                warn!(
                    listener = %address, peer = %remote, %error,
                    "cannot set a TCP-MD5 key: the peer cannot connect to this address"
                );
            }
        }
    }
}

async fn accept(
    socket: Arc<TcpListener>,
    local: SocketAddr,
    allowed: watch::Receiver<Allowed>,
    ranges: watch::Receiver<Ranges>,
    inputs: mpsc::Sender<Input>,
    refused: Arc<AtomicU64>,
) {
    loop {
        let (stream, remote) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(listener = %local, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let interface = interface_of(remote);
        let expected = allowed.borrow().contains(&PeerKey::new(remote.ip(), interface))
            || ranges.borrow().iter().any(|prefix| prefix.contains(&remote.ip()));
        if !expected {
            refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if inputs.send(Input::Accepted { stream, remote, interface }).await.is_err() {
            return;
        }
    }
}

/// The interface of a link-local address: the kernel passes its index as the scope. It is looked up
/// for each connection, because interfaces are added, removed and renamed.
fn interface_of(remote: SocketAddr) -> Option<InterfaceName> {
    match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => datagram::interface_name(v6.scope_id()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_bound_once_it_is_free() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (inputs, _received) = mpsc::channel(1);
        let mut now = super::super::now();
        let began = now;
        let mut listeners = Listeners::open(&[address], inputs, Arc::default(), now);
        let mut status = listeners.status();
        let fault = status.borrow_and_update()[0].fault.clone().unwrap();
        assert!(fault.in_use && fault.fix.contains("stop it"), "{fault:?}");

        let mut pauses = Vec::new();
        for _ in 0..6 {
            let again = listeners.poll_timeout().unwrap();
            pauses.push((again - now).as_secs());
            now = again;
            listeners.handle_timeout(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert!(!status.has_changed().unwrap(), "an attempt with the same failure is no change");
        assert_eq!(status.borrow()[0].fault.as_ref().unwrap().since, began);

        drop(taken);
        listeners.handle_timeout(listeners.poll_timeout().unwrap());
        assert!(status.has_changed().unwrap());
        assert_eq!(*status.borrow_and_update().to_vec(), [ListenStatus { address, fault: None }]);
        assert_eq!(listeners.poll_timeout(), None);
        listeners.close().await;
    }

    #[tokio::test]
    async fn one_taken_address_leaves_the_others_bound() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let other: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let (inputs, _received) = mpsc::channel(1);
        let mut listeners = Listeners::open(&[address, other], inputs, Arc::default(), super::super::now());
        let status = listeners.status().borrow().to_vec();
        assert_eq!(status.iter().filter(|status| status.fault.is_none()).count(), 1, "{status:?}");
        let bound = status.iter().find(|status| status.fault.is_none()).unwrap();
        std::net::TcpStream::connect(bound.address).unwrap();
        drop(taken);
        listeners.retry(super::super::now());
        assert!(listeners.status().borrow().iter().all(|status| status.fault.is_none()));
        listeners.close().await;
    }

    #[test]
    fn a_link_local_address_is_on_the_interface_of_its_scope() {
        let lo = sockopt::interface_index("lo".parse().unwrap()).unwrap();
        let from = |address: &str, scope| {
            let address: std::net::Ipv6Addr = address.parse().unwrap();
            SocketAddr::V6(std::net::SocketAddrV6::new(address, 4000, 0, scope))
        };
        assert_eq!(interface_of(from("fe80::1", lo)).unwrap().as_str(), "lo");
        assert_eq!(interface_of(from("fe80::1", u32::MAX)), None);
        assert_eq!(interface_of(from("2001:db8::1", lo)), None);
        assert_eq!(interface_of("127.0.0.1:4000".parse().unwrap()), None);
    }
}
