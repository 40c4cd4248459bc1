//! Servers of pods, and single connections with their outcome.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::greeter::{Greeter, greeted_within};
use crate::netns::Namespace;
use crate::pinger::{echo_reply, echo_request};

/// Time limits of a connection that a policy allows, and of a connection that a policy drops.
const ANSWERED: Duration = Duration::from_secs(4);
const DROPPED: Duration = Duration::from_millis(300);
/// A lost datagram is sent again after this time.
const AGAIN: Duration = Duration::from_millis(250);
/// Octets of data in an echo request.
const ECHO: usize = 56;

/// A protocol with a destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Port {
    Tcp(u16),
    Udp(u16),
    Icmp,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Tcp(port) => write!(f, "{port}/TCP"),
            Port::Udp(port) => write!(f, "{port}/UDP"),
            Port::Icmp => f.write_str("ICMP"),
        }
    }
}

/// The ports on which every pod serves: the first two have the names `web` and `alt`, the last but
/// one has the name `dns`.
pub(super) const PORTS: [Port; 5] =
    [Port::Tcp(80), Port::Tcp(8080), Port::Tcp(8085), Port::Udp(53), Port::Icmp];

/// The servers of one namespace, until they are dropped.
pub(super) struct Servers {
    _greeters: Vec<Greeter>,
    stop: Arc<AtomicBool>,
    echoes: Vec<JoinHandle<()>>,
}

impl Servers {
    pub(super) fn start(ns: &Namespace) -> Result<Self> {
        let ports: BTreeSet<Port> = PORTS.into();
        let mut servers = Self { _greeters: Vec::new(), stop: Arc::default(), echoes: Vec::new() };
        for port in ports {
            match port {
                Port::Tcp(port) => servers._greeters.push(Greeter::listen(ns, port)?),
                Port::Udp(port) => {
                    let socket = ns.within(|| Ok(UdpSocket::bind(("::", port))?)).context("a UDP port")?;
                    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
                    let stop = Arc::clone(&servers.stop);
                    servers.echoes.push(std::thread::spawn(move || echo(&socket, &stop)));
                }
                Port::Icmp => {}
            }
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.echoes.drain(..) {
            let _panicked = thread.join();
        }
    }
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // The client reports a missing answer.
            let _lost = socket.send_to(&buffer[..length], from);
        }
    }
}

/// The outcome of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Open,
    /// No answer.
    Dropped,
    /// Another error, for example a refusal.
    Failed(String),
}

/// Makes one connection from a namespace. `open` is the expectation: it decides the time limit.
pub(super) fn connect(from: &Namespace, to: IpAddr, port: Port, open: bool) -> Result<Outcome> {
    let bound = if open { ANSWERED } else { DROPPED };
    match port {
        Port::Tcp(port) => Ok(match greeted_within(from, (to, port).into(), bound) {
            Ok(_) => Outcome::Open,
            Err(error) => outcome_of(&error),
        }),
        Port::Udp(port) => from.within(|| datagram((to, port).into(), bound)),
        Port::Icmp => from.within(|| echo_request_to(to, bound)),
    }
}

fn outcome_of(error: &anyhow::Error) -> Outcome {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    match kind {
        Some(ErrorKind::TimedOut | ErrorKind::WouldBlock) => Outcome::Dropped,
        _ => Outcome::Failed(error.root_cause().to_string()),
    }
}

/// An echo request with an identifier of its own: connection tracking takes requests with the same
/// identifier for one connection, which a later policy does not end.
fn echo_request_to(to: IpAddr, bound: Duration) -> Result<Outcome> {
    static IDENTIFIER: AtomicU16 = AtomicU16::new(1);
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let v4 = to.is_ipv4();
    let (domain, protocol) =
        if v4 { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).context("a raw socket")?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    socket.set_read_timeout(Some(AGAIN.min(bound)))?;
    let (start, mut buffer, mut number) = (Instant::now(), [0; 256], 0);
    while start.elapsed() < bound {
        socket.send(&echo_request(v4, identifier, number, ECHO))?;
        let waited = Instant::now();
        while waited.elapsed() < AGAIN {
            match (&socket).read(&mut buffer) {
                Ok(length) if echo_reply(&buffer[..length]).is_some_and(|(id, _)| id == identifier) => {
                    return Ok(Outcome::Open);
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => return Ok(Outcome::Failed(error.to_string())),
            }
        }
        number += 1;
    }
    Ok(Outcome::Dropped)
}

fn datagram(to: SocketAddr, bound: Duration) -> Result<Outcome> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(AGAIN.min(bound)))?;
    let (start, mut buffer) = (Instant::now(), [0; 64]);
    while start.elapsed() < bound {
        socket.send(b"greetings")?;
        match socket.recv(&mut buffer) {
            Ok(_) => return Ok(Outcome::Open),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Ok(Outcome::Failed(error.to_string())),
        }
    }
    Ok(Outcome::Dropped)
}
