//! The two ends of the benchmark: a feeder with prepared octets, and sinks that only count. Both
//! ends need as little processor time as possible, so the speaker between them uses most of the
//! measured time. The hold time is zero, or longer than any run, so neither end has to send
//! KEEPALIVEs.
//! (`bench scrape` has other ends, which also call [`establish`].)

use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use super::Speaker;

const FEEDER_AS: u32 = 65100;
const SINK_AS: u32 = 65200;

/// Message types (RFC 4271 §4.1).
pub(crate) const OPEN: u8 = 1;
pub(crate) const UPDATE: u8 = 2;
pub(crate) const NOTIFICATION: u8 = 3;
pub(crate) const KEEPALIVE: u8 = 4;

const HEADER: usize = 19;
/// Time limit for establishing a session.
const SESSION: Duration = Duration::from_secs(60);

/// A whole message.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend_from_slice(&((body.len() + HEADER) as u16).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

/// UPDATEs of /24s from 20.0.0.0 on, each with `to_a_set` prefixes and its own attributes.
pub(crate) fn table(prefixes: u32, to_a_set: u32, network: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for (set, first) in (0..prefixes).step_by(to_a_set as usize).enumerate() {
        let mut attributes = vec![0x40, 1, 1, 0]; // ORIGIN IGP
        attributes.extend_from_slice(&[0x40, 2, 14, 2, 3]); // AS_PATH: a sequence of three
        for asn in [FEEDER_AS, 4_200_000_000 + set as u32 / 1000, 4_201_000_000 + set as u32 % 1000] {
            attributes.extend_from_slice(&asn.to_be_bytes());
        }
        attributes.extend_from_slice(&[0x40, 3, 4, 10, network, 0, 2]); // NEXT_HOP
        attributes.extend_from_slice(&[0xc0, 8, 4]); // COMMUNITIES
        attributes.extend_from_slice(&(FEEDER_AS << 16 | set as u32 & 0xffff).to_be_bytes());
        let mut body = vec![0, 0, 0, attributes.len() as u8];
        body.extend_from_slice(&attributes);
        for prefix in first..(first + to_a_set).min(prefixes) {
            body.push(24);
            body.extend_from_slice(
                &(u32::from(Ipv4Addr::new(20, 0, 0, 0)) + (prefix << 8)).to_be_bytes()[..3],
            );
        }
        out.extend_from_slice(&message(UPDATE, &body));
    }
    out
}

/// This end of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) local: Ipv4Addr,
    pub(crate) asn: u32,
    pub(crate) speaker: Ipv4Addr,
    /// In seconds; 0 for none.
    pub(crate) hold_time: u16,
    /// Route refresh (RFC 2918).
    pub(crate) refresh: bool,
}

impl End {
    fn of(local: Ipv4Addr, asn: u32, to: Speaker) -> End {
        let speaker = Ipv4Addr::new(10, to.network(), 0, 1);
        End { local, asn, speaker, hold_time: to.hold_time(), refresh: false }
    }

    fn open(&self) -> Vec<u8> {
        // Multiprotocol IPv4 unicast and four-octet AS numbers.
        let mut capabilities = vec![1, 4, 0, 1, 0, 1, 65, 4];
        capabilities.extend_from_slice(&self.asn.to_be_bytes());
        if self.refresh {
            capabilities.extend_from_slice(&[2, 0]);
        }
        let mut open = vec![4];
        open.extend_from_slice(&(self.asn as u16).to_be_bytes());
        open.extend_from_slice(&self.hold_time.to_be_bytes());
        open.extend_from_slice(&self.local.octets());
        open.extend_from_slice(&[capabilities.len() as u8 + 2, 2, capabilities.len() as u8]);
        open.extend_from_slice(&capabilities);
        open
    }
}

/// Establishes a session; retries until the speaker accepts.
pub(crate) fn establish(end: End) -> Result<TcpStream> {
    let deadline = Instant::now() + SESSION;
    loop {
        match attempt(end) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("no session from {}", end.local)));
            }
            // The speaker may still be closing the last session, or delay a new one for a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn attempt(end: End) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((end.local, 0)).into())?;
    socket.connect_timeout(&SocketAddr::from((end.speaker, 179)).into(), Duration::from_secs(5))?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&message(OPEN, &end.open()))?;
    ensure!(next(&mut stream)? == OPEN, "no OPEN");
    stream.write_all(&message(KEEPALIVE, &[]))?;
    ensure!(next(&mut stream)? == KEEPALIVE, "no KEEPALIVE");
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// The type of the next message.
fn next(stream: &mut TcpStream) -> Result<u8> {
    Ok(next_message(stream)?.0)
}

/// The next message: its type, and the octets after its header.
pub(crate) fn next_message(stream: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; length(&head).saturating_sub(HEADER)];
    stream.read_exact(&mut body)?;
    Ok((head[18], body))
}

fn length(message: &[u8]) -> usize {
    usize::from(message[16]) << 8 | usize::from(message[17])
}

/// Advertises a table.
pub(super) struct Feeder {
    stream: TcpStream,
    /// Discards the speaker's messages.
    drain: JoinHandle<()>,
}

impl Feeder {
    pub(super) fn connect(to: Speaker) -> Result<Feeder> {
        let stream = establish(End::of(Ipv4Addr::new(10, to.network(), 0, 2), FEEDER_AS, to))?;
        let mut reader = stream.try_clone()?;
        let drain = std::thread::spawn(move || {
            let mut thrown_away = vec![0; 64 * 1024];
            while reader.read(&mut thrown_away).is_ok_and(|octets| octets > 0) {}
        });
        Ok(Feeder { stream, drain })
    }

    /// Returns when all octets are in the socket.
    pub(super) fn send(&mut self, octets: &[u8]) -> Result<()> {
        self.stream.write_all(octets).context("the speaker closed the feeder's session")
    }

    /// Ends the session by a FIN.
    pub(super) fn end(self) -> Result<()> {
        self.stream.shutdown(Shutdown::Both)?;
        self.drain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(())
    }
}

/// The messages that a sink has received completely, and when.
enum SinkEvent {
    Announced(Instant),
    Withdrawn(Instant),
    /// The speaker ended the session.
    Lost(String),
}

/// Sinks, each with a thread that counts.
pub(super) struct Sinks {
    streams: Vec<TcpStream>,
    events: mpsc::Receiver<SinkEvent>,
    threads: Vec<JoinHandle<()>>,
}

impl Sinks {
    /// `count` sinks that each wait for `prefixes`.
    pub(super) fn connect(to: Speaker, count: u8, prefixes: u32) -> Result<Sinks> {
        let (sender, events) = mpsc::channel();
        let (mut streams, mut threads) = (Vec::new(), Vec::new());
        for sink in 1..=count {
            let stream = establish(End::of(Ipv4Addr::new(10, to.network(), 1, sink), SINK_AS, to))?;
            let (reader, sender) = (stream.try_clone()?, sender.clone());
            threads.push(std::thread::spawn(move || {
                if let Err(error) = count_all(reader, prefixes, &sender) {
                    let _ = sender.send(SinkEvent::Lost(format!("{error:#}")));
                }
            }));
            streams.push(stream);
        }
        Ok(Sinks { streams, events, threads })
    }

    /// Time at which the last sink had received the last announcement.
    pub(super) fn wait_announced(&self, patience: Duration) -> Result<Instant> {
        self.wait("announcement", patience, |event| match event {
            SinkEvent::Announced(when) => Some(when),
            _ => None,
        })
    }

    /// Time at which the last sink had received the last withdrawal.
    pub(super) fn wait_withdrawn(&self, patience: Duration) -> Result<Instant> {
        self.wait("withdrawal", patience, |event| match event {
            SinkEvent::Withdrawn(when) => Some(when),
            _ => None,
        })
    }

    fn wait(&self, what: &str, patience: Duration, is: fn(SinkEvent) -> Option<Instant>) -> Result<Instant> {
        let deadline = Instant::now() + patience;
        let mut last = None;
        for done in 0..self.streams.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let of = self.streams.len();
            let event = self.events.recv_timeout(left).with_context(|| {
                format!("after {patience:?} {done} of {of} sinks have received every {what}")
            })?;
            if let SinkEvent::Lost(error) = event {
                bail!("a sink lost its session: {error}");
            }
            last = last.max(Some(
                is(event).with_context(|| format!("not every {what} arrived before the next part"))?,
            ));
        }
        last.context("no sinks")
    }

    /// Ends the sessions.
    pub(super) fn end(self) -> Result<()> {
        for stream in &self.streams {
            stream.shutdown(Shutdown::Both)?;
        }
        for thread in self.threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        Ok(())
    }
}

/// Counts a speaker's prefixes until the session ends.
fn count_all(mut stream: TcpStream, prefixes: u32, events: &mpsc::Sender<SinkEvent>) -> Result<()> {
    let (mut announced, mut withdrawn) = (0, 0);
    let mut buffer = vec![0; 256 * 1024];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..])?;
        if read == 0 {
            ensure!(withdrawn >= prefixes, "after {announced} announcements and {withdrawn} withdrawals");
            return Ok(());
        }
        filled += read;
        let mut at = 0;
        while filled - at >= HEADER && filled - at >= length(&buffer[at..]) {
            let message = &buffer[at..at + length(&buffer[at..])];
            at += message.len();
            match message[18] {
                UPDATE => {
                    let (more, gone) = count(&message[HEADER..]);
                    let before = (announced, withdrawn);
                    (announced, withdrawn) = (announced + more, withdrawn + gone);
                    if before.0 < prefixes && announced >= prefixes {
                        events.send(SinkEvent::Announced(Instant::now()))?;
                    }
                    if before.1 < prefixes && withdrawn >= prefixes {
                        events.send(SinkEvent::Withdrawn(Instant::now()))?;
                    }
                }
                NOTIFICATION => bail!("NOTIFICATION {:?}", &message[HEADER..]),
                _ => {}
            }
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
}

/// Prefixes announced and withdrawn by the IPv4 fields of an UPDATE.
fn count(body: &[u8]) -> (u32, u32) {
    let field = |at: usize| usize::from(body[at]) << 8 | usize::from(body[at + 1]);
    let withdrawn = field(0);
    let attributes = field(2 + withdrawn);
    (prefixes(&body[4 + withdrawn + attributes..]), prefixes(&body[2..2 + withdrawn]))
}

fn prefixes(mut nlri: &[u8]) -> u32 {
    let mut count = 0;
    while let Some(length) = nlri.first() {
        nlri = &nlri[1 + usize::from(length.div_ceil(8))..];
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_counts_the_prefixes_of_the_feeder() {
        for (all, to_a_set) in [(1000, 5), (1000, 1), (11, 5)] {
            let octets = table(all, to_a_set, 1);
            let (mut at, mut announced, mut messages) = (0, 0, 0);
            while at < octets.len() {
                let end = at + length(&octets[at..]);
                let (more, gone) = count(&octets[at + HEADER..end]);
                assert_eq!(gone, 0);
                (at, announced, messages) = (end, announced + more, messages + 1);
            }
            assert_eq!((announced, messages), (all, all.div_ceil(to_a_set)));
        }
        assert_eq!(count(&[0, 5, 24, 1, 2, 3, 0, 0, 0]), (0, 2));
    }
}
