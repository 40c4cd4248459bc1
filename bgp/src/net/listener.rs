//! The listening side: one socket an address, and a task each that accepts.
//!
//! All peers share the listening sockets, so what is a peer's own is put on the connection after it was
//! accepted, except TCP-MD5: its keys have to be on the listener before the peer's SYN comes. IPv6 sockets are
//! v6only and IPv4 has its own, so that an IPv4 peer's key is looked up as IPv4.
//!
//! Who isn't configured gets no farther than `accept`: the connection is closed there and counted, and costs
//! the owner of the speaker nothing, however many come.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::connection::Input;
use super::error::ListenError;
use super::sockopt;
use crate::config::Password;

/// Connections that wait for `accept`. Peers are few; a flood of strangers is cut off here.
const BACKLOG: i32 = 128;

/// Pause after `accept` failed for want of file descriptors or memory, which a retry at once would not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Who may connect: the configured peers, and the interface (index) that a link-local one is expected on.
pub(super) type Allowed = Arc<HashMap<IpAddr, Option<String>>>;

/// A listening socket, the keys on it, and its task.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    keys: HashMap<IpAddr, Password>,
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
        inputs: mpsc::Sender<Input>,
        refused: Arc<AtomicU64>,
    ) -> Listener {
        let socket = Arc::new(socket);
        let task = tokio::spawn(accept(Arc::clone(&socket), address, allowed, inputs, refused));
        Listener { socket, address, keys: HashMap::new(), task }
    }

    /// Stops listening. When this is done the port is free for another process.
    pub(super) async fn close(self) {
        self.task.abort();
        // The task holds the socket too: the port is free once it has ended. Its result is that it was aborted.
        let _ = self.task.await;
    }

    /// Makes the TCP-MD5 keys be these, of the addresses of this socket's family. Keys that stay are not touched.
    pub(super) fn set_keys<'a>(&mut self, wanted: impl Iterator<Item = (IpAddr, &'a Password)>) {
        let wanted: HashMap<IpAddr, &Password> =
            wanted.filter(|(remote, _)| remote.is_ipv4() == self.address.is_ipv4()).collect();
        let stale: Vec<IpAddr> =
            self.keys.keys().filter(|remote| !wanted.contains_key(remote)).copied().collect();
        for remote in stale {
            match sockopt::set_md5_key(&*self.socket, remote, None) {
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
            match sockopt::set_md5_key(&*self.socket, remote, Some(password)) {
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
        let expected = may_connect(&allowed.borrow(), remote);
        if !expected {
            refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if inputs.send(Input::Accepted { stream, remote }).await.is_err() {
            return;
        }
    }
}

fn may_connect(allowed: &Allowed, remote: SocketAddr) -> bool {
    match (allowed.get(&remote.ip()), remote) {
        (None, _) => false,
        (Some(None), _) | (_, SocketAddr::V4(_)) => true,
        // The same link-local address may be on two links; only the one that was meant is the peer.
        (Some(Some(interface)), SocketAddr::V6(remote)) => {
            remote.scope_id() == 0
                || sockopt::interface_index(interface).is_ok_and(|index| index == remote.scope_id())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_peer_is_expected_on_its_interface() {
        let lo = sockopt::interface_index("lo").unwrap();
        let address: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        let from = |scope| SocketAddr::V6(std::net::SocketAddrV6::new(address, 4000, 0, scope));
        let allowed: Allowed = Arc::new(HashMap::from([(address.into(), Some("lo".to_owned()))]));
        assert!(may_connect(&allowed, from(lo)));
        assert!(!may_connect(&allowed, from(lo + 1)));
        assert!(!may_connect(&allowed, "127.0.0.1:4000".parse().unwrap()));
    }
}
