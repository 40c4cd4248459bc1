//! The listening side: one socket an address, and a task each that accepts.
//!
//! All peers share the listening sockets, so what is a peer's own is put on the connection after it was
//! accepted, except TCP-MD5: its keys have to be on the listener before the peer's SYN comes. IPv6 sockets are
//! v6only and IPv4 has its own, so that an IPv4 peer's key is looked up as IPv4.
//!
//! Who isn't configured gets no farther than `accept`: the connection is closed there and counted, and costs
//! the owner of the speaker nothing, however many come.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// Connections that wait for `accept`. Peers are few; a flood of strangers is cut off here.
const BACKLOG: i32 = 128;

/// Pause after `accept` failed for want of file descriptors or memory, which a retry at once would not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Who may connect: the configured peers.
pub(super) type Allowed = Arc<HashSet<PeerKey>>;

/// Prefixes whose addresses may connect though no peer is configured for them.
pub(super) type Ranges = Arc<[IpNet]>;

/// What the listeners are told of who may connect.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) peers: watch::Sender<Allowed>,
    pub(super) ranges: watch::Sender<Ranges>,
}

/// A listening socket, the keys on it, and its task.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    keys: HashMap<IpNet, Password>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Binds and listens. Nothing is accepted before [`Listener::start`].
    pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
        let listen = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            // A restart must not wait for connections of the last process to leave TIME_WAIT.
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            sockopt::set_common(&socket, address.ip())?;
            sockopt::set_ttl(&socket, address.ip(), Some(255))?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            TcpListener::from_std(socket.into())
        };
        listen().map_err(|source| ListenError { address, source })
    }

    /// Accepts from now on, and sends what may come in to `inputs`.
    pub(super) fn start(
        socket: TcpListener,
        address: SocketAddr,
        allowed: watch::Receiver<Allowed>,
        ranges: watch::Receiver<Ranges>,
        inputs: mpsc::Sender<Input>,
        refused: Arc<AtomicU64>,
    ) -> Listener {
        let socket = Arc::new(socket);
        let task = tokio::spawn(accept(Arc::clone(&socket), address, allowed, ranges, inputs, refused));
        Listener { socket, address, keys: HashMap::new(), task }
    }

    /// Stops listening. When this is done the port is free for another process.
    pub(super) async fn close(self) {
        self.task.abort();
        // The task holds the socket too: the port is free once it has ended. Its result is that it was aborted.
        let _ = self.task.await;
    }

    /// Makes the TCP-MD5 keys be these, of the prefixes of this socket's family; of two for the same the last counts. Keys
    /// that stay are not touched.
    pub(super) fn set_keys<'a>(&mut self, wanted: impl Iterator<Item = (IpNet, &'a Password)>) {
        let wanted: HashMap<IpNet, &Password> =
            wanted.filter(|(remote, _)| remote.addr().is_ipv4() == self.address.is_ipv4()).collect();
        let stale: Vec<IpNet> =
            self.keys.keys().filter(|remote| !wanted.contains_key(remote)).copied().collect();
        for remote in stale {
            match sockopt::set_md5_prefix_key(&*self.socket, remote, None) {
                Ok(()) => {
                    self.keys.remove(&remote);
                }
                Err(error) => {
                    warn!(listener = %self.address, peer = %remote, %error, "cannot delete a TCP-MD5 key");
                }
            }
        }
        for (remote, password) in wanted {
            if self.keys.get(&remote) == Some(password) {
                continue;
            }
            match sockopt::set_md5_prefix_key(&*self.socket, remote, Some(password)) {
                Ok(()) => {
                    self.keys.insert(remote, password.clone());
                }
                Err(error) => {
                    warn!(
                        listener = %self.address, peer = %remote, %error,
                        "cannot set a TCP-MD5 key: the peer cannot connect to this address"
                    );
                }
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

/// The interface that a link-local address is on: the kernel gives its index as the scope. It is looked up at each
/// connection, because interfaces come, go and change their names.
fn interface_of(remote: SocketAddr) -> Option<InterfaceName> {
    match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => datagram::interface_name(v6.scope_id()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
