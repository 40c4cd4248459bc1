//! Two hundred peers of one agent, all flapping for a minute. Afterwards the agent's memory is at
//! the previous level, and every session is up. The stable peers never lose their sessions.
//!
//! A peer sends an OPEN (with hold time 0, so without KEEPALIVEs) and a hundred prefixes. It ends
//! the session by a Cease, a FIN or an RST, in turn. Every second peer has graceful restart, so
//! paths also become stale and are removed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use super::bed::{Bed, lab};
use super::{Context, Test, Verdict, passed};
use crate::bench::memory::megabytes;
use crate::bench::speakers::cpu_seconds;
use crate::client;
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[Test {
    name: "flaps/two-hundred",
    about: "200 peers flap for a minute: memory is freed, and no other session goes down",
    run: two_hundred,
}];

const FLAPPING: u8 = 200;
const STEADY: u8 = 4;
const PREFIXES: u8 = 100;
const MINUTE: Duration = Duration::from_secs(60);
/// Time of flapping before the measurement. The measurement compares two quiet states that both
/// follow a time of flapping, because a process keeps some of the memory that it frees first.
const WARM_UP: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);

/// Megabytes that the allocator may keep in addition, because it does not return single pages.
const SLACK_MB: f64 = 4.0;

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 1, number)
}

fn manifest() -> String {
    let peers: String = (1..=FLAPPING + STEADY)
        .map(|number| {
            let restart = if number.is_multiple_of(2) { ", gracefulRestartSeconds: 2" } else { "" };
            format!("\n      - {{asn: 65000, address: {}, passive: true{restart}}}", address(number))
        })
        .collect();
    format!("bgpPeers:{peers}")
}

fn two_hundred(context: &Context) -> Result<Verdict> {
    lab(context, "flaps", |bed| {
        let node = bed.node()?;
        let ns = bed.host("peers")?.ns.clone();
        let addresses: String = (1..=FLAPPING + STEADY)
            .map(|number| format!("addr add {}/16 dev eth1\n", address(number)))
            .collect();
        crate::shell::run_with_input(&mut bed.host("peers")?.command("ip", ["-batch", "-"]), &addresses)?;
        bed.manifest("network.yaml").edit("bgpPeers: []", &manifest())?;
        wait_for("the agent to know the peers", PATIENCE, || {
            let peers = client::peers(node)?.len();
            Ok(Seen::when(peers == usize::from(FLAPPING + STEADY), || format!("{peers}")))
        })?;
        let open = |range: std::ops::RangeInclusive<u8>| range.map(Session::open).collect::<Result<Vec<_>>>();
        let steady = ns.within(|| open(FLAPPING + 1..=FLAPPING + STEADY))?;
        let sessions = ns.within(|| open(1..=FLAPPING))?;
        all_up(bed)?;
        let agent = client::agent(node)?;
        let pss = || megabytes(agent, "smaps_rollup", "Pss");
        let cold = pss()?;
        let (sessions, _) = ns.within(|| flap_all(sessions, WARM_UP))?;
        all_up(bed)?;
        let (before, cpu_before, start) = (pss()?, cpu_seconds(agent)?, Instant::now());
        let (sessions, flaps) = ns.within(|| flap_all(sessions, MINUTE))?;
        let (took, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds(agent)? - cpu_before);
        all_up(bed)?;
        wait_for("the agent's memory to be freed", PATIENCE, || {
            let now = pss()?;
            Ok(Seen::when(now <= before + SLACK_MB, || format!("{now:.1} MB, before {before:.1} MB")))
        })?;
        let (after, peak) = (pss()?, megabytes(agent, "status", "VmHWM")?);
        for peer in
            client::peers(node)?.iter().filter(|p| p.address > std::net::IpAddr::V4(address(FLAPPING)))
        {
            ensure!(
                peer.flaps == 0,
                "the stable peer {} lost its session {} times",
                peer.address,
                peer.flaps
            );
        }
        drop((steady, sessions));
        passed(format!(
            "{flaps} flaps in {took:.0} s, {cpu:.1} s of CPU ({:.0} %); PSS {cold:.1} MB at first, {before:.1} MB before, {after:.1} MB after, at most {peak:.1} MB resident",
            100.0 * cpu / took
        ))
    })
}

/// Checks that every session is up and has all its routes, and no others.
fn all_up(bed: &Bed<'_>) -> Result<()> {
    wait_for("every session to be up with its routes", PATIENCE, || {
        let peers = client::peers(bed.node()?)?;
        let good = |p: &&trunkline_api::control::Peer| {
            let routes: usize = p.families.iter().map(|f| f.received).sum();
            p.is_established() && routes == usize::from(PREFIXES)
        };
        let bad: Vec<_> = peers.iter().filter(|p| !good(p)).map(|p| (p.address, p.state)).collect();
        Ok(Seen::when(bad.is_empty() && peers.len() == usize::from(FLAPPING + STEADY), || {
            format!("{} of {} are not: {:?}", bad.len(), peers.len(), &bad[..bad.len().min(3)])
        }))
    })
}

/// A session from the peer's side.
struct Session {
    number: u8,
    stream: TcpStream,
}

impl Session {
    /// Connects, and advertises its prefixes after the agent's KEEPALIVE; retries until the agent
    /// accepts.
    fn open(number: u8) -> Result<Session> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Session::attempt(number) {
                Ok(session) => return Ok(session),
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context(format!("{} gets no session", address(number))));
                }
                // The agent may still be closing the last session.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn attempt(number: u8) -> Result<Session> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&SocketAddr::from(SocketAddrV4::new(address(number), 0)).into())?;
        socket.connect_timeout(&SocketAddr::from((NODE, 179)).into(), Duration::from_secs(5))?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(&open(number))?;
        ensure!(message(&mut stream)? == OPEN && message(&mut stream)? == KEEPALIVE, "no session");
        stream.write_all(&[header(KEEPALIVE, &[]), update(number), header(UPDATE, &[0; 4])].concat())?;
        Ok(Session { number, stream })
    }

    /// Ends the session in one of three ways.
    fn end(mut self, turn: u64) -> Result<()> {
        match turn % 3 {
            0 => {
                const CEASE_ADMINISTRATIVE_RESET: [u8; 2] = [6, 4];
                // If the agent has closed the session already, this write may fail. That is no
                // error here.
                let _ = self.stream.write_all(&header(NOTIFICATION, &CEASE_ADMINISTRATIVE_RESET));
            }
            1 => {}
            _ => socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?,
        }
        Ok(())
    }
}

/// Makes every session flap for a while; returns the total number of flaps.
fn flap_all(sessions: Vec<Session>, time: Duration) -> Result<(Vec<Session>, u64)> {
    let (stop, flaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let sessions = std::thread::scope(|scope| {
        let flapping: Vec<_> =
            sessions.into_iter().map(|session| scope.spawn(|| flap(session, &stop, &flaps))).collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::SeqCst);
        let ends = flapping.into_iter();
        ends.map(|end| end.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok((sessions, flaps.load(Ordering::SeqCst)))
}

/// Ends and begins sessions until it is stopped; returns with an established session.
fn flap(mut session: Session, stop: &AtomicBool, flaps: &AtomicU64) -> Result<Session> {
    let number = session.number;
    let mut turn = u64::from(number);
    while !stop.load(Ordering::SeqCst) {
        // 0.2 to 1.2 s, different for each peer.
        std::thread::sleep(Duration::from_millis(200 + (turn * 7919 + u64::from(number) * 104_729) % 1000));
        session.end(turn)?;
        session = Session::open(number)?;
        turn += 1;
        flaps.fetch_add(1, Ordering::SeqCst);
    }
    Ok(session)
}

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;

fn header(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend_from_slice(&(body.len() as u16 + 19).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

/// AS 65000, hold time 0; IPv4 unicast, four-octet AS numbers, and graceful restart with 2 s for
/// every second peer.
fn open(number: u8) -> Vec<u8> {
    let mut capabilities = vec![1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfd, 0xe8];
    if number.is_multiple_of(2) {
        capabilities.extend_from_slice(&[64, 6, 0, 2, 0, 1, 1, 0x80]);
    }
    let mut body = vec![4, 0xfd, 0xe8, 0, 0];
    body.extend_from_slice(&address(number).octets());
    body.extend_from_slice(&[capabilities.len() as u8 + 2, 2, capabilities.len() as u8]);
    body.extend_from_slice(&capabilities);
    header(OPEN, &body)
}

/// 100.NUMBER.0.0/24 and so on.
fn update(number: u8) -> Vec<u8> {
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe8, 0x40, 3, 4];
    attributes.extend_from_slice(&address(number).octets());
    let mut body = vec![0, 0, 0, attributes.len() as u8];
    body.extend_from_slice(&attributes);
    (0..PREFIXES).for_each(|prefix| body.extend_from_slice(&[24, 100, number, prefix]));
    header(UPDATE, &body)
}

/// The type of the next message.
fn message(stream: &mut TcpStream) -> Result<u8> {
    let mut head = [0; 19];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[16], head[17]])).saturating_sub(19)];
    stream.read_exact(&mut body)?;
    Ok(head[18])
}
