//! UDP datagrams with sequence numbers from pods to the guest and back, at a steady rate. Each sender
//! has several source ports, so routers with ECMP use all of their paths.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::guest::PORT;
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};

/// Source ports of each sender.
const PORTS: usize = 8;
/// A datagram without an answer for this time is lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// Datagrams from one pod to one address.
pub(super) struct Sender {
    /// Its name in messages.
    pub name: String,
    pub from: Namespace,
    pub to: IpAddr,
}

type Log = Arc<Mutex<Vec<(Instant, bool)>>>;

/// Datagrams under way.
pub(super) struct Traffic {
    senders: Vec<(String, Log)>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// The result of one sender.
#[derive(Debug)]
pub(super) struct Loss {
    pub name: String,
    pub sent: usize,
    pub lost: usize,
    /// The longest time from the first of several consecutive lost datagrams to the next answered one.
    pub longest: Duration,
    /// The time from the first lost datagram to the last one.
    pub span: Duration,
}

impl Traffic {
    /// Each sender sends one datagram per interval.
    pub(super) fn start(senders: Vec<Sender>, interval: Duration) -> Result<Traffic> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut logs, mut threads) = (Vec::new(), Vec::new());
        for sender in senders {
            let log = Log::default();
            logs.push((sender.name.clone(), Arc::clone(&log)));
            let stop = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || {
                sender.from.enter()?;
                send(sender.to, interval, &log, &stop).with_context(|| sender.name.clone())
            }));
        }
        Ok(Traffic { senders: logs, stop, threads })
    }

    /// Waits until each sender has this number of consecutive answers to datagrams that it sends from
    /// now on.
    pub(super) fn settle(&self, count: usize, patience: Duration) -> Result<()> {
        let now = Instant::now();
        wait_for("answers to the datagrams", patience, || {
            let mut short = Vec::new();
            for (name, log) in &self.senders {
                let log = lock(log);
                let settled = log.iter().rev().skip_while(|(_, answered)| !answered);
                let row = settled.take_while(|(sent, answered)| *answered && *sent >= now).count();
                if row < count {
                    short.push(format!("{name}: {row}"));
                }
            }
            Ok(Seen::when(short.is_empty(), || short.join(", ")))
        })
    }

    /// The losses among the datagrams between two times, a while after the second one.
    pub(super) fn losses(&self, from: Instant, until: Instant) -> Vec<Loss> {
        std::thread::sleep((until + PATIENCE).saturating_duration_since(Instant::now()));
        let of = |(name, log): &(String, Log)| {
            let log: Vec<_> =
                lock(log).iter().filter(|(sent, _)| (from..until).contains(sent)).copied().collect();
            let (mut longest, mut since) = (Duration::ZERO, None);
            for (sent, answered) in &log {
                longest = longest.max(sent.duration_since(*since.get_or_insert(*sent)));
                if *answered {
                    since = None;
                }
            }
            let lost: Vec<Instant> =
                log.iter().filter(|(_, answered)| !answered).map(|(at, _)| *at).collect();
            let span = lost.first().zip(lost.last()).map(|(first, last)| last.duration_since(*first));
            Loss {
                name: name.clone(),
                sent: log.len(),
                lost: lost.len(),
                longest,
                span: span.unwrap_or_default(),
            }
        };
        self.senders.iter().map(of).collect()
    }

    /// Ends the senders.
    pub(super) fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

fn send(to: IpAddr, interval: Duration, log: &Log, stop: &AtomicBool) -> Result<()> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let mut sockets = Vec::new();
    for _ in 0..PORTS {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.set_nonblocking(true)?;
        sockets.push(socket);
    }
    let mut next = Instant::now();
    for number in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let socket = &sockets[number as usize % PORTS];
        lock(log).push((Instant::now(), false));
        // The way may be missing for a moment, and an ICMP error of an earlier datagram counts too.
        _ = socket.send_to(&number.to_be_bytes(), (to, PORT));
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        for socket in &sockets {
            let mut buffer = [0; 4];
            while let Ok((4, _)) = socket.recv_from(&mut buffer) {
                if let Some(entry) = lock(log).get_mut(u32::from_be_bytes(buffer) as usize) {
                    entry.1 = true;
                }
            }
        }
    }
    Ok(())
}

fn lock(log: &Log) -> std::sync::MutexGuard<'_, Vec<(Instant, bool)>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
