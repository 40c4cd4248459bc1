//! Short connections in a constant stream, each with its outcome and its times.

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use socket2::{Domain, Socket, Type};

use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};

/// Time limit of a connection and of its answer. Within this time a lost SYN is not retransmitted.
const BOUND: Duration = Duration::from_millis(900);

/// Source ports, which all clients of this process use in turn. A server holds the state of a connection
/// whose last packet was lost for up to a minute, and answers a new connection from the same port with it.
/// A node holds the entry of a SYN that no service proxy translated for two minutes. So no port is used
/// twice within 22,768 connections, and other clients of the lab, whose ports the kernel chooses, use
/// none of these.
const PORTS: Range<u16> = 10_000..32_768;

/// The next of these ports, counted from their start.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Served,
    /// RST instead of SYN+ACK.
    Refused,
    /// RST after SYN+ACK, or an end without an answer.
    Reset,
    /// A packet was lost.
    TimedOut,
    /// The host could not send: no route, or no free port.
    Unsent,
}

/// A connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub to: SocketAddr,
    /// The source port; 0 if none was free.
    pub port: u16,
    pub began: Instant,
    pub ended: Instant,
    pub outcome: Outcome,
}

/// Clients that connect until [`Connections::end`].
pub(crate) struct Connections {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    attempts: mpsc::Receiver<Attempt>,
    clients: Vec<JoinHandle<()>>,
}

impl Connections {
    /// Starts clients in a namespace: each connects to the next target, reads the answer to its end,
    /// and pauses.
    pub(crate) fn start(
        from: &Namespace,
        targets: &[SocketAddr],
        clients: usize,
        pause: Duration,
    ) -> Result<Self> {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (results, attempts) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let start = |first: usize| {
            let (from, stop, results, ready) =
                (from.clone(), Arc::clone(&stop), results.clone(), ready.clone());
            let made = Arc::clone(&made);
            let targets: Vec<SocketAddr> = targets
                .iter()
                .cycle()
                .skip(first % targets.len().max(1))
                .take(targets.len())
                .copied()
                .collect();
            std::thread::spawn(move || {
                let entered = from.enter();
                let is_inside = entered.is_ok();
                let _waiting = ready.send(entered);
                for target in targets.iter().cycle() {
                    if !is_inside || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if results.send(connect(*target)).is_err() {
                        return;
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(pause);
                }
            })
        };
        let clients: Vec<_> = (0..clients).map(start).collect();
        for _ in &clients {
            is_ready.recv().context("a client ended")??;
        }
        Ok(Self { stop, made, attempts, clients })
    }

    /// Waits until this number of connections has ended.
    pub(crate) fn wait_count(&self, count: usize, bound: Duration) -> Result<()> {
        wait_for(&format!("{count} connections"), bound, || {
            let made = self.made.load(Ordering::Relaxed);
            Ok(Seen::when(made >= count, || made.to_string()))
        })
    }

    /// Waits until this number of further connections has ended.
    pub(crate) fn wait_more(&self, count: usize, bound: Duration) -> Result<()> {
        self.wait_count(self.made.load(Ordering::Relaxed) + count, bound)
    }

    /// Ends the clients, and returns all connections.
    pub(crate) fn end(mut self) -> Vec<Attempt> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _panicked = client.join();
        }
        self.attempts.try_iter().collect()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn connect(to: SocketAddr) -> Attempt {
    let began = Instant::now();
    let (port, text) = match bound(to) {
        Ok((socket, port)) => (port, greeting(socket, to)),
        Err(error) => (0, Err(error)),
    };
    let outcome = match text {
        Ok(text) if !text.is_empty() => Outcome::Served,
        Ok(_) => Outcome::Reset,
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Outcome::Refused,
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Outcome::Reset
            }
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::TimedOut,
            _ => Outcome::Unsent,
        },
    };
    Attempt { to, port, began, ended: Instant::now(), outcome }
}

/// A socket with the next source port.
fn bound(to: SocketAddr) -> std::io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    let count = PORTS.end - PORTS.start;
    loop {
        let next = |used: u16| Some((used + 1) % count);
        let used = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        let port = PORTS.start + used;
        let from = match to {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        };
        match socket.bind(&from.into()) {
            // Another program listens on this port.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return result.map(|()| (socket, port)),
        }
    }
}

fn greeting(socket: Socket, to: SocketAddr) -> std::io::Result<String> {
    socket.connect_timeout(&to.into(), BOUND)?;
    let mut connection = TcpStream::from(socket);
    connection.set_read_timeout(Some(BOUND))?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}
