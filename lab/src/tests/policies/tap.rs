//! Marked datagrams: a sender that floods addresses, and a tap that records every arrival in a
//! namespace, also on devices that do not exist yet.
//!
//! A datagram has the sender's number and the time of its sending, so a test knows which rules were
//! in force when it was sent. No program answers, so connection tracking keeps each flow in state
//! NEW, and the rules see every datagram.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Namespace;

/// The destination port of all datagrams, on which no program listens.
pub(super) const PORT: u16 = 7_777;
/// The first octets of a datagram.
const MARK: &[u8; 8] = b"tl-mark:";
/// Octets of a datagram: mark, sender, nanoseconds.
const LENGTH: usize = 8 + 2 + 8;
/// All protocols, for a packet socket (if_ether.h).
const ETH_P_ALL: u16 = 3;
const UDP: u8 = 17;
/// Between two datagrams of a sender to one address.
const PAUSE: Duration = Duration::from_micros(1_500);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

fn nanoseconds(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub(in crate::tests) struct Arrival {
    pub sender: u16,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub sent: Instant,
    pub at: Instant,
}

/// Sends datagrams from a namespace to all current targets, until it is dropped.
pub(in crate::tests) struct Sender {
    targets: Arc<Mutex<Vec<IpAddr>>>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sender {
    /// Starts the sender. Its own addresses may not exist yet: each failed datagram is sent again.
    pub(super) fn start(ns: &Namespace, number: u16, targets: &[IpAddr]) -> Result<Self> {
        Self::start_with_pause(ns, number, targets, PAUSE)
    }

    /// Like [`Self::start`], with this time between two datagrams to one address.
    pub(in crate::tests) fn start_with_pause(
        ns: &Namespace,
        number: u16,
        targets: &[IpAddr],
        pause: Duration,
    ) -> Result<Self> {
        LazyLock::force(&EPOCH);
        let sockets = ns.within(|| Ok([UdpSocket::bind("0.0.0.0:0")?, UdpSocket::bind("[::]:0")?]))?;
        let targets = Arc::new(Mutex::new(targets.to_vec()));
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (targets, stop, sent) = (Arc::clone(&targets), Arc::clone(&stop), Arc::clone(&sent));
            std::thread::spawn(move || flood(&sockets, number, &targets, pause, &stop, &sent))
        };
        Ok(Self { targets, stop, sent, thread: Some(thread) })
    }

    pub(super) fn aim(&self, targets: &[IpAddr]) {
        *lock(&self.targets) = targets.to_vec();
    }

    pub(in crate::tests) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn flood(
    [v4, v6]: &[UdpSocket; 2],
    number: u16,
    targets: &Mutex<Vec<IpAddr>>,
    pause: Duration,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> Result<()> {
    let mut datagram = [0; LENGTH];
    datagram[..8].copy_from_slice(MARK);
    datagram[8..10].copy_from_slice(&number.to_be_bytes());
    while !stop.load(Ordering::Relaxed) {
        for target in lock(targets).clone() {
            datagram[10..].copy_from_slice(&nanoseconds(Instant::now()).to_be_bytes());
            let socket = if target.is_ipv4() { v4 } else { v6 };
            // Without a route, or after an ICMP error, the next one follows.
            if socket.send_to(&datagram, (target, PORT)).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Records the marked datagrams of a namespace: those that its devices receive, and those that they
/// send.
pub(in crate::tests) struct Tap {
    stop: Arc<AtomicBool>,
    arrivals: mpsc::Receiver<Arrival>,
    thread: Option<JoinHandle<()>>,
}

impl Tap {
    pub(in crate::tests) fn open(ns: &Namespace) -> Result<Self> {
        LazyLock::force(&EPOCH);
        let socket = ns.within(|| {
            let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
            let socket =
                Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).context("a packet socket")?;
            // More than the kernel's maximum for unprivileged programs: no arrival is lost.
            set_socket_recv_buffer_size_force(&socket, 16 << 20)?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok(socket)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, arrivals) = mpsc::channel();
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || record(&socket, &stop, &sender))
        };
        Ok(Self { stop, arrivals, thread: Some(thread) })
    }

    /// Receives the marked datagrams that a host's own sockets receive at one of these addresses.
    pub(super) fn listen(ns: &Namespace, address: IpAddr) -> Result<Self> {
        LazyLock::force(&EPOCH);
        let socket = ns.within(|| Ok(UdpSocket::bind((address, PORT))?)).context("a UDP port")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, arrivals) = mpsc::channel();
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                    let arrival = parse_datagram(&buffer[..length], from.ip(), address, Instant::now());
                    if arrival.is_some_and(|arrival| sender.send(arrival).is_err()) {
                        return;
                    }
                }
            })
        };
        Ok(Self { stop, arrivals, thread: Some(thread) })
    }

    /// The arrivals since the last call.
    pub(in crate::tests) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.try_iter().collect()
    }

    /// Waits until all datagrams that arrived before this call are recorded; returns all arrivals.
    pub(in crate::tests) fn end(mut self) -> Vec<Arrival> {
        std::thread::sleep(Duration::from_millis(50));
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        self.arrivals()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn record(mut socket: &Socket, stop: &AtomicBool, arrivals: &mpsc::Sender<Arrival>) {
    let mut buffer = [0; 256];
    while !stop.load(Ordering::Relaxed) {
        match socket.read(&mut buffer) {
            Ok(length) => {
                let arrival = parse(&buffer[..length], Instant::now());
                if arrival.is_some_and(|arrival| arrivals.send(arrival).is_err()) {
                    return;
                }
            }
            // A timeout, or a device that is down.
            Err(error) => {
                let passes = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::NetworkDown];
                if !passes.contains(&error.kind()) {
                    return;
                }
            }
        }
    }
}

/// A marked datagram in an IP packet.
fn parse(packet: &[u8], at: Instant) -> Option<Arrival> {
    let (source, destination, protocol, header): (IpAddr, IpAddr, u8, usize) = match packet.first()? >> 4 {
        4 => {
            let address =
                |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
            let header = usize::from(packet[0] & 0xf) * 4;
            (address(12)?.into(), address(16)?.into(), *packet.get(9)?, header)
        }
        6 => {
            let address =
                |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
            (address(8)?.into(), address(24)?.into(), *packet.get(6)?, 40)
        }
        _ => return None,
    };
    let datagram = packet.get(header..).filter(|_| protocol == UDP)?;
    parse_datagram(datagram.get(8..)?, source, destination, at)
}

fn parse_datagram(payload: &[u8], source: IpAddr, destination: IpAddr, at: Instant) -> Option<Arrival> {
    let marked = payload.get(..LENGTH).filter(|marked| marked.starts_with(MARK))?;
    let sender = u16::from_be_bytes(marked[8..10].try_into().ok()?);
    let sent = *EPOCH + Duration::from_nanos(u64::from_be_bytes(marked[10..].try_into().ok()?));
    Some(Arrival { sender, source, destination, sent, at })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_marked_datagram_is_found_in_both_families() {
        let marked = [&MARK[..], &7_u16.to_be_bytes(), &1_000_u64.to_be_bytes()].concat();
        let datagram = [&[0; 8][..], &marked].concat();
        let mut v4 = vec![0; 20];
        (v4[0], v4[9], v4[19]) = (0x45, UDP, 9);
        let mut v6 = vec![0; 40];
        (v6[0], v6[6], v6[39]) = (0x60, UDP, 9);
        for header in [v4, v6] {
            let arrival = parse(&[header, datagram.clone()].concat(), Instant::now()).unwrap();
            assert_eq!(arrival.sender, 7);
            assert_eq!(arrival.sent, *EPOCH + Duration::from_nanos(1_000));
            assert!(matches!(arrival.destination.to_string().as_str(), "0.0.0.9" | "::9"));
        }
        assert!(parse(&[0x45; 60], Instant::now()).is_none());
    }
}
