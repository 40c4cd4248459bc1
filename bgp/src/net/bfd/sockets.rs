//! The sockets: at most four for receiving, and one per session for sending.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};
use tracing::warn;

use super::filter;
use crate::bfd::{FIRST_SOURCE_PORT, Links, MULTIHOP_PORT, SINGLE_HOP_PORT, Target};
use crate::net::sockopt::{self, NoInterface, datagram};

/// The reason why a packet was not sent. It needs no heap, because sends are retried often.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("cannot listen on UDP port {port}, is another BFD running? {error}")]
    Listen { port: u16, error: io::Error },
    #[error(transparent)]
    Interface(#[from] NoInterface),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SendError {
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            SendError::Listen { error, .. } | SendError::Io(error) => error.kind(),
            SendError::Interface(_) => ErrorKind::NotFound,
        }
    }
}

/// The key of a receiving socket: IPv6, multihop.
pub(super) type Port = (bool, bool);
/// The number of receiving sockets.
pub(super) const PORTS: usize = 4;

pub(super) fn port_of(target: &Target) -> Port {
    (target.remote.is_ipv6(), target.config.multihop)
}

/// A receiving socket that accepts only packets of these sessions, starting with its first packet.
pub(super) fn listen((ipv6, multihop): Port, sessions: &[(IpAddr, &Links)]) -> io::Result<Socket> {
    let (domain, any): (_, IpAddr) = match ipv6 {
        true => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
        false => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if ipv6 {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    datagram::enable_control_messages(&socket, ipv6)?;
    set_filter(&socket, (ipv6, multihop), sessions);
    socket.bind(&SocketAddr::new(any, destination(multihop)).into())?;
    Ok(socket)
}

/// Replaces the filter of a receiving socket.
pub(super) fn set_filter(socket: &Socket, port: Port, sessions: &[(IpAddr, &Links)]) {
    if let Err(error) = filter::attach(socket, port, sessions) {
        warn!(
            %error,
            port = destination(port.1),
            "cannot filter BFD packets in the kernel: each one wakes the BFD thread: raise net.core.optmem_max"
        );
    }
}

/// The destination port.
pub(super) fn destination(multihop: bool) -> u16 {
    if multihop { MULTIHOP_PORT } else { SINGLE_HOP_PORT }
}

/// A socket with a source port that no other session uses, and the destination. The session's
/// earlier port is reused if possible (RFC 5881 §4).
pub(super) fn open(
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bfd::BfdConfig;

    #[test]
    fn a_session_reuses_its_source_port_unless_taken() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let config = BfdConfig::new(Duration::from_millis(50));
        let target = Target { remote: local, local: Some(local), interface: None, config };
        let (mut kept, mut random) = (None, 7);
        let mut port = || open(&target, &mut kept, &mut random).unwrap().0;
        let first = port().local_addr().unwrap().port();
        assert!(first >= FIRST_SOURCE_PORT);
        let again = port();
        assert_eq!(again.local_addr().unwrap().port(), first);
        assert_ne!(port().local_addr().unwrap().port(), first, "the earlier port is in use");
    }
}
