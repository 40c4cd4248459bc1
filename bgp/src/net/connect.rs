//! One attempt to connect: a socket with all options of the session before the first SYN.
//!
//! Password, TTLs, source address and interface must be set before the SYN. Otherwise the peer's
//! kernel drops an unsigned SYN, or this kernel drops a SYN-ACK with the wrong TTL. The attempt has
//! its own time limit, much shorter than the kernel's two minutes. It fails with a kind and a text,
//! which become the peer's last error.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};

use super::error::{connect_failure, timed_out};
use super::md5::Md5Counters;
use super::sockopt;
use crate::speaker::{ConnectFailure, ConnectKind, SocketOptions};

/// Connects from `local` to `remote` within `timeout`; the error has a text for the operator.
pub(super) async fn connect(
    local: Option<IpAddr>,
    remote: SocketAddr,
    options: SocketOptions,
    timeout: Duration,
    before: Option<Md5Counters>,
) -> Result<TcpStream, ConnectFailure> {
    let signed = options.password.is_some();
    let (socket, remote) = prepare(local, remote, &options)?;
    let outcome = tokio::time::timeout(timeout, socket.connect(remote)).await;
    match outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => Ok(stream),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let refused = Md5Counters::since(before, Md5Counters::read());
            Err(timed_out(timeout, signed, refused))
        }
        Err(error) => Err(connect_failure(remote, &error)),
    }
}

/// Sets the options of a peer on a socket: a new, a just accepted or an open one.
pub(super) fn set_options(
    socket: &impl std::os::fd::AsFd,
    remote: IpAddr,
    options: &SocketOptions,
) -> io::Result<()> {
    sockopt::set_ttl(socket, remote, options.ttl)?;
    sockopt::set_min_ttl(socket, remote, options.min_ttl.unwrap_or(0))
}

fn prepare(
    local: Option<IpAddr>,
    mut remote: SocketAddr,
    options: &SocketOptions,
) -> Result<(TcpSocket, SocketAddr), ConnectFailure> {
    let fault = |what: &str, error: io::Error| {
        ConnectFailure::new(ConnectKind::Other, format!("{remote}: {what}: {error}"))
    };
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))
        .map_err(|error| fault("no socket", error))?;
    let set_up = || -> io::Result<()> {
        socket.set_nonblocking(true)?;
        sockopt::set_common(&socket, remote.ip())?;
        set_options(&socket, remote.ip(), options)?;
        if let Some(password) = &options.password {
            sockopt::set_md5_key(&socket, remote.ip(), Some(password))?;
        }
        Ok(())
    };
    set_up().map_err(|error| fault("its socket options", error))?;
    let mut scope = 0;
    if let Some(interface) = &options.interface {
        scope = sockopt::interface_index(*interface).map_err(|error| fault("its interface", error.into()))?;
        socket
            .bind_device(Some(interface.as_str().as_bytes()))
            .map_err(|error| fault(&format!("its interface {interface}"), error))?;
    }
    if let Some(local) = local {
        let mut source = SocketAddr::new(local, 0);
        set_scope(&mut source, scope);
        socket.bind(&source.into()).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => ConnectFailure::new(
                ConnectKind::SourceAddress,
                format!("no interface of this host has the source address {local}: add it or correct it"),
            ),
            _ => fault(&format!("its source address {local}"), error),
        })?;
    }
    set_scope(&mut remote, scope);
    Ok((TcpSocket::from_std_stream(socket.into()), remote))
}

/// A link-local address is valid only together with its link.
fn set_scope(address: &mut SocketAddr, scope: u32) {
    if let SocketAddr::V6(address) = address
        && address.ip().is_unicast_link_local()
        && scope != 0
    {
        address.set_scope_id(scope);
    }
}
