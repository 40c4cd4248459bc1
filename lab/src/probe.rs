//! Single packets that must not be fragmented: whether they pass, and otherwise the MTU in the
//! refusal.
//!
//! Don't Fragment is set, and the kernel must not fragment either. So a packet has one of three
//! results. A refusal by the host's own link and a refusal by a router's ICMP both arrive as
//! EMSGSIZE, and the kernel then has the size.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Namespace;
use crate::pinger::{echo_reply, echo_request};

/// The result of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// The packet was refused. The value is the path MTU, in octets with the IP header.
    TooLarge(u32),
    /// No answer before the deadline.
    Silence,
}

/// Sends one echo request of this size in octets, with its IP header, to each address, one after
/// the other.
pub(crate) fn uncut(from: &Namespace, to: &[(IpAddr, u32)], deadline: Duration) -> Result<Vec<Fate>> {
    from.within(|| {
        to.iter()
            .zip(1..)
            .map(|((to, size), ident)| {
                one(*to, *size, ident, deadline).with_context(|| format!("{size} octets to {to}"))
            })
            .collect()
    })
}

fn one(to: IpAddr, size: u32, ident: u16, deadline: Duration) -> Result<Fate> {
    let v4 = to.is_ipv4();
    let (domain, protocol, headers) =
        if v4 { (Domain::IPV4, Protocol::ICMPV4, 28) } else { (Domain::IPV6, Protocol::ICMPV6, 48) };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).context("a raw socket")?;
    socket.set_nonblocking(true)?;
    if v4 {
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
    }
    // A connected socket receives the routers' ICMP errors.
    socket.connect(&SocketAddr::new(to, 0).into())?;
    let is_too_large = |error: &std::io::Error| error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
    let data = usize::try_from(size)?.checked_sub(headers).context("smaller than its headers")?;
    match socket.send(&echo_request(v4, ident, 0, data)) {
        Ok(_) => {}
        Err(error) if is_too_large(&error) => return Ok(Fate::TooLarge(largest(to)?)),
        Err(error) => return Err(error.into()),
    }
    let end = Instant::now() + deadline;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs())?, tv_nsec: left.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout))? == 0 {
            return Ok(Fate::Silence);
        }
        match (&socket).read(&mut buffer) {
            Ok(length) if echo_reply(&buffer[..length]) == Some((ident, 0)) => return Ok(Fate::Answered),
            Ok(_) => {}
            Err(error) if is_too_large(&error) => return Ok(Fate::TooLarge(largest(to)?)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The kernel's current value for a path. It uses a new socket: a connected one may still use the
/// previous route.
fn largest(to: IpAddr) -> Result<u32> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect((to, 9))?;
    Ok(if to.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) }?)
}
