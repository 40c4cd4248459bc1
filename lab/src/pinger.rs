//! Echo requests at a steady rate between many pairs of pods at once, each with its own record.
//!
//! One thread per source namespace sends for all of its flows and reads the answers. A request is
//! lost if it has no answer at the end, which is a second after the last request. The sockets are
//! raw ICMP sockets. With a hundred `ping` processes on two cores, the count would also contain
//! losses that the network did not cause.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};

/// Time after which a request without an answer counts as lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests from one pod to an address of another pod.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Its name in messages, for example `node1a-pod1 → node2b-pod3 (IPv6)`.
    pub name: String,
    pub from: Namespace,
    pub to: IpAddr,
}

/// The requests of one flow: time sent, and time of the answer.
#[derive(Debug, Default, Clone)]
struct Log {
    sent: Vec<(Instant, Option<Instant>)>,
}

impl Log {
    /// An answer contains the lowest 16 bits of its request's number. It belongs to the newest
    /// request with these bits.
    fn answered(&mut self, low: u16, at: Instant) {
        let newest = self.sent.len().wrapping_sub(1);
        let back = newest.wrapping_sub(usize::from(low)) & 0xffff;
        if let Some(entry) = newest.checked_sub(back).and_then(|i| self.sent.get_mut(i)) {
            entry.1.get_or_insert(at);
        }
    }

    /// Consecutive answers at the end, without requests that are still under way.
    fn answered_in_a_row(&self, since: Instant) -> usize {
        let settled = self.sent.iter().rev().skip_while(|(_, answer)| answer.is_none());
        settled.take_while(|(sent, answer)| answer.is_some() && *sent >= since).count()
    }

    /// The longest time from the first of several consecutive lost requests to the next answered
    /// request (or to the last request).
    fn longest_gap(&self) -> Duration {
        let (mut longest, mut since) = (Duration::ZERO, None);
        for (sent, answer) in &self.sent {
            let since_lost = *since.get_or_insert(*sent);
            longest = longest.max(sent.duration_since(since_lost));
            if answer.is_some() {
                since = None;
            }
        }
        longest
    }
}

/// Requests under way on a set of flows.
pub(crate) struct Pinger {
    flows: Vec<Flow>,
    logs: Vec<Arc<Mutex<Log>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// Earlier requests are not counted.
    counted_from: Instant,
}

/// Result of one flow.
#[derive(Debug, Clone)]
pub(crate) struct FlowResult {
    pub name: String,
    pub sent: usize,
    /// The time of each lost request.
    pub lost: Vec<Instant>,
    /// The longest response time.
    pub slowest: Duration,
    /// The longest time from the first of several consecutive lost requests until the next answered
    /// request; zero without loss.
    pub longest_gap: Duration,
}

impl Pinger {
    /// Starts sending one request per flow and interval.
    pub(crate) fn start(flows: Vec<Flow>, interval: Duration) -> Result<Self> {
        let logs: Vec<_> = flows.iter().map(|_| Arc::new(Mutex::new(Log::default()))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut by_source: BTreeMap<Namespace, Vec<Sender>> = BTreeMap::new();
        for (index, (flow, log)) in flows.iter().zip(&logs).enumerate() {
            // The identifier distinguishes the flows of one namespace.
            let ident = u16::try_from(index).context("at most 65,536 flows")?;
            let sender = Sender { to: flow.to, ident, log: Arc::clone(log) };
            by_source.entry(flow.from.clone()).or_default().push(sender);
        }
        let threads = by_source
            .into_iter()
            .map(|(ns, senders)| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    ns.enter()?;
                    send_and_count(&senders, interval, &stop)
                        .with_context(|| format!("pinging in {}", ns.name()))
                })
            })
            .collect();
        Ok(Self { flows, logs, stop, threads, counted_from: Instant::now() })
    }

    /// Waits until every flow is answered steadily, and begins to count. So the time for a route to
    /// reach a router is not part of the result.
    pub(crate) fn settle(&mut self, deadline: Duration) -> Result<()> {
        self.wait_answers(40, deadline)?;
        self.counted_from = Instant::now();
        Ok(())
    }

    /// Waits until every flow has had this number of consecutive answers to requests sent from now
    /// on.
    pub(crate) fn wait_answers(&self, answers: usize, deadline: Duration) -> Result<()> {
        let now = Instant::now();
        let what = format!("{answers} answers in a row on each of {} flows", self.flows.len());
        wait_for(&what, deadline, || {
            let short: Vec<&str> = self
                .flows
                .iter()
                .zip(&self.logs)
                .filter(|(_, log)| lock(log).answered_in_a_row(now) < answers)
                .map(|(flow, _)| flow.name.as_str())
                .collect();
            Ok(Seen::when(short.is_empty(), || format!("{} flows without: {}", short.len(), some(&short))))
        })
    }

    /// Waits until every flow has sent this number of requests from now on, answered or not.
    pub(crate) fn wait_sent(&self, requests: usize, deadline: Duration) -> Result<()> {
        let lengths = || self.logs.iter().map(|log| lock(log).sent.len()).collect::<Vec<_>>();
        let before = lengths();
        wait_for(&format!("{requests} more requests on each flow"), deadline, || {
            let least = lengths().iter().zip(&before).map(|(now, then)| now - then).min().unwrap_or(requests);
            Ok(Seen::when(least >= requests, || format!("{least} sent")))
        })
    }

    /// Stops sending, waits for answers under way, and counts.
    pub(crate) fn finish(mut self) -> Result<Vec<FlowResult>> {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let outcome = |(flow, log): (&Flow, &Arc<Mutex<Log>>)| {
            let mut log = lock(log).clone();
            log.sent.retain(|(sent, _)| *sent >= self.counted_from);
            let took =
                log.sent.iter().filter_map(|(sent, answer)| Some(answer.as_ref()?.duration_since(*sent)));
            FlowResult {
                name: flow.name.clone(),
                sent: log.sent.len(),
                lost: log.sent.iter().filter(|(_, a)| a.is_none()).map(|(sent, _)| *sent).collect(),
                slowest: took.max().unwrap_or_default(),
                longest_gap: log.longest_gap(),
            }
        };
        Ok(self.flows.iter().zip(&self.logs).map(outcome).collect())
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Sends requests on every flow until one is answered; returns the names of the flows without an
/// answer at the deadline.
pub(crate) fn unreachable(flows: Vec<Flow>, deadline: Duration) -> Result<Vec<String>> {
    let pinger = Pinger::start(flows, Duration::from_millis(50))?;
    // The outcome shows whether the deadline was met.
    let _late = pinger.wait_answers(1, deadline);
    let outcomes = pinger.finish()?;
    Ok(outcomes.into_iter().filter(|o| o.lost.len() == o.sent).map(|o| o.name).collect())
}

/// The first few names of a list.
pub(crate) fn some<S: AsRef<str>>(names: &[S]) -> String {
    let mut text = names.iter().take(4).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if names.len() > 4 {
        text.push_str(&format!(", … ({} in all)", names.len()));
    }
    text
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of one flow in its sending thread.
struct Sender {
    to: IpAddr,
    ident: u16,
    log: Arc<Mutex<Log>>,
}

fn send_and_count(senders: &[Sender], interval: Duration, stop: &AtomicBool) -> Result<()> {
    let v4 = open(Domain::IPV4, Protocol::ICMPV4)?;
    let v6 = open(Domain::IPV6, Protocol::ICMPV6)?;
    let mut next = Instant::now();
    let mut end = None;
    loop {
        let now = Instant::now();
        if end.is_none() && stop.load(Ordering::SeqCst) {
            end = Some(now + PATIENCE);
        }
        if end.is_none() && now >= next {
            for sender in senders {
                request(if sender.to.is_ipv4() { &v4 } else { &v6 }, sender);
            }
            // A delayed thread continues from now. It does not send the missed requests in a burst.
            next = (next + interval).max(now);
        }
        let answered = || senders.iter().all(|s| lock(&s.log).sent.iter().all(|(_, a)| a.is_some()));
        if end.is_some_and(|end| now >= end || answered()) {
            return Ok(());
        }
        let until = if end.is_some() { now + Duration::from_millis(10) } else { next };
        let pause = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        let mut fds = [PollFd::new(&v4, PollFlags::IN), PollFd::new(&v6, PollFlags::IN)];
        poll(&mut fds, Some(&timeout))?;
        read_answers(&v4, senders);
        read_answers(&v6, senders);
    }
}

fn open(domain: Domain, protocol: Protocol) -> Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).context("a raw socket")?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(1 << 20)?;
    Ok(socket)
}

const ECHO_REQUEST: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];

/// Sends the next request of a flow. If it cannot be sent (no route), it stays unanswered and
/// counts as lost.
fn request(socket: &Socket, sender: &Sender) {
    let mut log = lock(&sender.log);
    let low = u16::try_from(log.sent.len() & 0xffff).unwrap_or_default();
    let packet = echo_request(sender.to.is_ipv4(), sender.ident, low, 48);
    log.sent.push((Instant::now(), None));
    let _lost = socket.send_to(&packet, &SocketAddr::new(sender.to, 0).into());
}

/// An ICMP message of 8 octets and `data` additional ones.
pub(crate) fn echo_request(v4: bool, ident: u16, low: u16, data: usize) -> Vec<u8> {
    let mut packet = vec![ECHO_REQUEST[usize::from(!v4)], 0, 0, 0];
    packet.extend(ident.to_be_bytes());
    packet.extend(low.to_be_bytes());
    packet.resize(8 + data, 0x54);
    if v4 {
        // ICMPv6's checksum covers a pseudo header; the kernel computes this checksum.
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Identifier and number in a received packet, if it is an answer.
pub(crate) fn echo_reply(packet: &[u8]) -> Option<(u16, u16)> {
    // An IPv4 raw socket also delivers the IP header. An ICMPv6 raw socket does not.
    let ipv4 = packet.first().is_some_and(|b| b >> 4 == 4);
    let header = if ipv4 { usize::from(packet[0] & 0xf) * 4 } else { 0 };
    let [kind, _, _, _, i1, i2, s1, s2] = packet.get(header..header + 8)? else { return None };
    let is_reply = *kind == ECHO_REPLY[usize::from(!ipv4)];
    is_reply.then(|| (u16::from_be_bytes([*i1, *i2]), u16::from_be_bytes([*s1, *s2])))
}

fn read_answers(mut socket: &Socket, senders: &[Sender]) {
    let mut buffer = [0; 2048];
    while let Ok(length) = socket.read(&mut buffer) {
        let Some((ident, low)) = echo_reply(&buffer[..length]) else { continue };
        if let Some(sender) = senders.iter().find(|sender| sender.ident == ident) {
            lock(&sender.log).answered(low, Instant::now());
        }
    }
}

/// RFC 1071.
fn checksum(data: &[u8]) -> u16 {
    let mut sum: u32 =
        data.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_matched_across_the_wrap_of_the_sequence_number() {
        let t = Instant::now();
        let mut log = Log { sent: vec![(t, None); 65_540] };
        log.answered(2, t);
        log.answered(65_535, t);
        let answered: Vec<usize> =
            log.sent.iter().enumerate().filter(|(_, (_, a))| a.is_some()).map(|(i, _)| i).collect();
        assert_eq!(answered, [65_535, 65_538]);
    }

    #[test]
    fn a_loss_ends_a_row_of_answers_but_a_pending_one_does_not() {
        let t = Instant::now();
        let log = |answers: &[bool]| Log { sent: answers.iter().map(|a| (t, a.then_some(t))).collect() };
        assert_eq!(log(&[true, true, true]).answered_in_a_row(t), 3);
        assert_eq!(log(&[true, false, true, true, false]).answered_in_a_row(t), 2);
        assert_eq!(log(&[false]).answered_in_a_row(t), 0);
    }

    #[test]
    fn a_gap_lasts_until_the_next_answered_request() {
        let t = Instant::now();
        let log = |answers: &[bool]| {
            let sent = |index: usize| t + Duration::from_millis(5) * u32::try_from(index).unwrap();
            Log { sent: answers.iter().enumerate().map(|(i, a)| (sent(i), a.then_some(t))).collect() }
                .longest_gap()
        };
        assert_eq!(log(&[true, true]), Duration::ZERO);
        assert_eq!(log(&[true, false, true, false, false, true, true]), Duration::from_millis(10));
        assert_eq!(log(&[true, false, false, false]), Duration::from_millis(10));
    }

    #[test]
    fn checksum_is_rfc_1071s() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
