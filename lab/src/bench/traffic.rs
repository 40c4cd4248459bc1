//! Traffic between two pods in short slices. The slices alternate between two nodes, so a slow
//! phase of the machine affects both.
//!
//! Each thread is bound to one processor. Otherwise the scheduler's choice would affect the rate
//! more than the measured change.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use socket2::SockRef;

use crate::netns::Namespace;
use crate::shell::{Seen, cmd, run, wait_for};
use crate::stats::{percentile, round};

/// Duration of one measurement.
const SLICE: Duration = Duration::from_millis(150);
/// Pairs at the beginning that are not counted.
const WARM_UP: usize = 4;
const BLOCK: usize = 128 << 10;

/// Two pods of a node, with a permanent TCP connection between them.
pub(super) struct Traffic<'a> {
    from: &'a Namespace,
    listener: TcpListener,
    to: SocketAddr,
    stream: TcpStream,
    received: Arc<AtomicU64>,
}

impl<'a> Traffic<'a> {
    /// # Errors
    /// If the pods cannot connect.
    pub(super) fn between(from: &'a Namespace, to: &Namespace, address: IpAddr) -> Result<Self> {
        let listen = || to.within(|| Ok(TcpListener::bind((IpAddr::from([0; 4]), 0))?));
        let (listener, sink) = (listen()?, listen()?);
        let port = |listener: &TcpListener| anyhow::Ok(listener.local_addr()?.port());
        let (to, sink_at) =
            (SocketAddr::new(address, port(&listener)?), SocketAddr::new(address, port(&sink)?));
        let stream = from.within(|| TcpStream::connect(sink_at).context("a pod does not reach the other"))?;
        let (mut other_end, _) = sink.accept()?;
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        // Ends with the connection.
        std::thread::spawn(move || {
            let _anywhere = stay_on(Processor::Last);
            let mut block = vec![0; BLOCK];
            while let Ok(octets @ 1..) = other_end.read(&mut block) {
                counter.fetch_add(octets as u64, Ordering::Relaxed);
            }
        });
        Ok(Traffic { from, listener, to, stream, received })
    }

    /// Mbit/s of the permanent connection, for one slice.
    pub(super) fn mbit(&self) -> Result<f64> {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                stay_on(Processor::First)?;
                let block = vec![0; BLOCK];
                let (start, before) = (Instant::now(), self.received.load(Ordering::Relaxed));
                while start.elapsed() < SLICE {
                    (&self.stream).write_all(&block)?;
                }
                let octets = self.received.load(Ordering::Relaxed) - before;
                Ok(octets as f64 * 8.0 / 1e6 / start.elapsed().as_secs_f64())
            });
            sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Connections per second, one after another. Each connection is opened, accepted and closed by
    /// a reset. Without the reset, connections in TIME_WAIT would soon exhaust the ports.
    pub(super) fn connections(&self) -> Result<f64> {
        self.from.within(|| {
            stay_on(Processor::First)?;
            let (start, mut opened) = (Instant::now(), 0_u32);
            while start.elapsed() < SLICE {
                let stream = TcpStream::connect(self.to)?;
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                // The same thread accepts the connection. So the figure contains no wake-up of
                // another thread, and the queue is never full.
                let accepted = self.listener.accept()?;
                drop(stream);
                drop(accepted);
                opened += 1;
            }
            Ok(f64::from(opened) / start.elapsed().as_secs_f64())
        })
    }
}

/// Mbit/s of one connection of iperf3 from one namespace to an address in another.
pub(super) fn iperf(from: &Namespace, to: &Namespace, address: &str, seconds: u32) -> Result<f64> {
    let inside = |ns: &Namespace, args: &[&str]| {
        let mut command = cmd("nsenter", [format!("--net={}", ns.path().display())]);
        command.arg("iperf3").args(args);
        command
    };
    let mut server =
        inside(to, &["--server", "--one-off"]).stdout(Stdio::null()).spawn().context("iperf3")?;
    let outcome = (|| {
        wait_for("iperf3 to listen", Duration::from_secs(20), || {
            let sockets =
                run(cmd("nsenter", [format!("--net={}", to.path().display())]).args(["ss", "-tln"]))?;
            Ok(Seen::when(sockets.contains(":5201"), || sockets))
        })?;
        let seconds = seconds.to_string();
        let text = run(&mut inside(from, &["--json", "--time", &seconds, "--client", address]))?;
        let report: Value = serde_json::from_str(&text)?;
        let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or_default();
        ensure!(rate > 0.0, "iperf3 printed {text}");
        Ok(round(rate / 1e6))
    })();
    // The server ends by itself after its client.
    let _ended = server.kill();
    server.wait()?;
    outcome
}

/// Results of two nodes in alternation.
pub(super) struct Paired {
    pub(super) medians: [f64; 2],
    /// The median of the second node's result divided by the first node's, pair by pair.
    pub(super) ratio: f64,
}

/// Measures both nodes in pairs. Each node is the first in every second pair.
pub(super) fn paired<T>(nodes: [&T; 2], pairs: usize, measure: impl Fn(&T) -> Result<f64>) -> Result<Paired> {
    let mut taken = [Vec::new(), Vec::new()];
    for number in 0..pairs + WARM_UP {
        crate::interrupt::check()?;
        for turn in 0..2 {
            let which = (number + turn) % 2;
            let value = measure(nodes[which])?;
            if number >= WARM_UP {
                taken[which].push(value);
            }
        }
    }
    let ratios: Vec<f64> = taken[0].iter().zip(&taken[1]).map(|(first, second)| second / first).collect();
    Ok(Paired {
        medians: [percentile(&taken[0], 50.0), percentile(&taken[1], 50.0)],
        ratio: percentile(&ratios, 50.0),
    })
}

#[derive(Clone, Copy)]
enum Processor {
    First,
    Last,
}

/// Keeps the calling thread on one of its permitted processors.
fn stay_on(processor: Processor) -> Result<()> {
    let may_use = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU).filter(|&number| may_use.is_set(number));
    let one = match processor {
        Processor::First => all.next(),
        Processor::Last => all.next_back(),
    };
    let mut only = CpuSet::new();
    only.set(one.context("a processor")?);
    Ok(sched_setaffinity(None, &only)?)
}
