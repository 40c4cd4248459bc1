//! Time to attach a container: the plugin's whole run as the runtime sees it, compared with the
//! `ptp` and `host-local` plugins that containerd's users have. Both assign one IPv4 address.
//!
//! The two sides of a comparison alternate, ADD by ADD, so that other load on the machine affects
//! both. The comparisons are Trunkline and the reference, and a node with ten pods and one with a
//! thousand.
//!
//! The time until the ToR has the route is read from the kernels of two ToRs. The bound applies to
//! BIRD's figure. FRR 8.4's bgpd keeps every route of any peer in its queue for 50 ms, and zebra
//! keeps it for 10 ms more (`spec.hold` of their work queues). So FRR's figure depends little on
//! the sender. Both figures are printed.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Bound, report, warn_if_busy};
use crate::cni::{self, Answer, Sandbox, plugin_path, run_here};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::progress::{say, step};
use crate::routes::RouteMonitor;
use crate::stats::{histogram, percentile, round};
use crate::{client, packages, product};

/// Namespaces of each side.
const NAMESPACES: usize = 200;
const AT_ONCE: usize = 8;
const FEW: usize = 10;
const MANY: usize = 1_000;
/// Samples on each node, for few and for many pods.
const SAMPLES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// Times in milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Side {
    pub plugin: &'static str,
    pub add_p50_ms: f64,
    pub add_p99_ms: f64,
    pub add_per_second: f64,
    pub add_eight_p50_ms: f64,
    pub add_eight_p99_ms: f64,
    pub add_eight_per_second: f64,
    pub del_p50_ms: f64,
    pub del_p99_ms: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub bench: &'static str,
    pub namespaces: usize,
    /// The reference figures.
    pub reference: Side,
    pub trunkline: Side,
    /// Trunkline's time divided by the reference's.
    pub ratio_p50: f64,
    pub ratio_eight_p50: f64,
    /// ADD's p50 with few and with many pods on the node.
    pub p50_with_10_pods_ms: f64,
    pub p50_with_1000_pods_ms: f64,
    pub ratio_1000_to_10: f64,
    /// From ADD's start until the /32 is in the kernel of the ToR with BIRD.
    pub tor_p50_ms: f64,
    pub tor_p99_ms: f64,
    pub tor_max_ms: f64,
    /// The same time for the ToR with FRR, which itself waits 60 ms.
    pub tor_frr_p50_ms: f64,
    pub tor_frr_p99_ms: f64,
    pub bounds: Vec<Bound>,
}

/// `cargo lab bench attach`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench attach")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "bird2", "containernetworking-plugins"]))?;
    let product = product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let fabric = step("starting the topology", || Fabric::up(place, "attach", &product))?;
    let (result, tor_times) = fabric.watched(measure)?;
    let words = words(&result, &tor_times);
    report(json, &result, &words, &result.bounds)
}

fn words(r: &Figures, tor_times: &[f64]) -> String {
    let side = |s: &Side| {
        vec![
            s.plugin.to_owned(),
            format!("{:.2} / {:.2} ms", s.add_p50_ms, s.add_p99_ms),
            format!("{:.0}/s", s.add_per_second),
            format!("{:.2} / {:.2} ms", s.add_eight_p50_ms, s.add_eight_p99_ms),
            format!("{:.0}/s", s.add_eight_per_second),
            format!("{:.2} / {:.2} ms", s.del_p50_ms, s.del_p99_ms),
        ]
    };
    let head = ["", "ADD p50 / p99", "", "eight at a time", "", "DEL p50 / p99"].map(str::to_owned).to_vec();
    let mut text = crate::progress::table(&[head, side(&r.reference), side(&r.trunkline)]);
    text.push_str(&format!(
        "\n  ratio of p50: {:.2} one at a time, {:.2} eight at a time\n  p50 with {FEW} pods {:.2} ms, with {MANY} pods {:.2} ms: {:.2}\n",
        r.ratio_p50, r.ratio_eight_p50, r.p50_with_10_pods_ms, r.p50_with_1000_pods_ms, r.ratio_1000_to_10
    ));
    text.push_str(&format!(
        "\n  ADD's start until the /32 is in the ToR (BIRD): p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms\n{}",
        r.tor_p50_ms,
        r.tor_p99_ms,
        r.tor_max_ms,
        histogram(tor_times, "ms")
    ));
    text.push_str(&format!(
        "  in the ToR with FRR, including 60 ms in FRR's queues: p50 {:.1} ms, p99 {:.1} ms\n",
        r.tor_frr_p50_ms, r.tor_frr_p99_ms
    ));
    text
}

/// One side of the comparison.
pub(super) struct Contender<'a> {
    pub host: &'a Host,
    pub conf: Value,
    pub path: Vec<PathBuf>,
}

impl Contender<'_> {
    /// Runs a verb that must succeed. The calling thread must be on the host.
    pub(super) fn run(&self, verb: &str, pod: &Sandbox) -> Result<Answer> {
        let answer = run_here(&self.path, verb, &self.conf, pod, &pod.ns.path().display().to_string())?;
        if let Err(e) = &answer.outcome {
            anyhow::bail!("{} {verb} {}: {e}", self.conf["type"], pod.name);
        }
        Ok(answer)
    }

    /// Runs a verb for every pod, several at a time. Returns the time of each run and of the whole.
    fn all(&self, verb: &str, pods: &[Sandbox], at_once: usize) -> Result<(Vec<f64>, Duration)> {
        let waiting = Mutex::new(pods.iter().collect::<VecDeque<_>>());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let start = Instant::now();
        let times = std::thread::scope(|scope| {
            let worker = || -> Result<Vec<f64>> {
                self.host.enter()?;
                let mut times = Vec::new();
                while let Some(pod) = next() {
                    crate::interrupt::check()?;
                    times.push(ms(self.run(verb, pod)?.took));
                }
                Ok(times)
            };
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
            workers
                .into_iter()
                .map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                .collect::<Result<Vec<_>>>()
        })?;
        Ok((times.concat(), start.elapsed()))
    }
}

fn measure(fabric: &Fabric) -> Result<(Figures, Vec<f64>)> {
    let bare = fabric.host("reference")?;
    let on = |name: &str| -> Result<Contender<'_>> {
        let host = fabric.host(name)?;
        Ok(Contender { host, conf: cni::trunkline(Some("rack1")), path: plugin_path(host) })
    };
    let (ours, crowded) = (on("node1")?, on("node2")?);
    let reference = Contender { host: bare, conf: ptp(bare), path: plugin_path(bare) };
    step("BGP sessions", || {
        for node in [ours.host, crowded.host] {
            client::wait_answering(node)?;
            client::wait_established(node, PATIENCE)?;
        }
        Ok(())
    })?;
    let (our_pods, their_pods) = step(&format!("{NAMESPACES} namespaces for each side"), || {
        Ok((sandboxes(fabric, "node1", 0, NAMESPACES)?, sandboxes(fabric, "reference", 0, NAMESPACES)?))
    })?;
    let (bird, frr) =
        (RouteMonitor::start(&fabric.host("bird")?.ns)?, RouteMonitor::start(&fabric.host("frr")?.ns)?);

    let mut us = Side { plugin: "trunkline-cni", ..Side::default() };
    let mut them = Side { plugin: "ptp + host-local", ..Side::default() };
    let (our_adds, their_adds, started_adds) = step("ADD, one at a time, alternating", || {
        let (mut our_adds, mut their_adds, mut started_adds) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (our_pod, their_pod)) in our_pods.iter().zip(&their_pods).enumerate() {
            crate::interrupt::check()?;
            for turn in 0..2 {
                if (i + turn) % 2 == 0 {
                    their_adds.push(ms(bare.within(|| reference.run("ADD", their_pod))?.took));
                    continue;
                }
                let answer = ours.host.within(|| ours.run("ADD", our_pod))?;
                our_adds.push(ms(answer.took));
                let started = answer.started;
                let addresses = cni::addresses(&answer.result()?)?;
                started_adds.push((started, IpNet::from(*addresses.first().context("no address")?)));
            }
        }
        Ok((our_adds, their_adds, started_adds))
    })?;
    let until = |monitor: &RouteMonitor| -> Result<Vec<f64>> {
        let prefixes: Vec<IpNet> = started_adds.iter().map(|(_, prefix)| *prefix).collect();
        let there = monitor.wait(&prefixes, true, PATIENCE)?;
        Ok(there
            .iter()
            .zip(&started_adds)
            .map(|(at, (start, _))| ms(at.saturating_duration_since(*start)))
            .collect())
    };
    let (tor_times, frr_times) = (until(&bird)?, until(&frr)?);
    for (side, adds) in [(&mut us, &our_adds), (&mut them, &their_adds)] {
        side.add_p50_ms = percentile(adds, 50.0);
        side.add_p99_ms = percentile(adds, 99.0);
        side.add_per_second = round(1e3 * adds.len() as f64 / adds.iter().sum::<f64>());
    }
    step("DEL, one at a time", || {
        for (side, contender, pods) in [(&mut us, &ours, &our_pods), (&mut them, &reference, &their_pods)] {
            let (times, _) = contender.all("DEL", pods, 1)?;
            side.del_p50_ms = percentile(&times, 50.0);
            side.del_p99_ms = percentile(&times, 99.0);
        }
        Ok(())
    })?;
    step("ADD, eight at a time", || {
        for (side, contender, pods) in [(&mut them, &reference, &their_pods), (&mut us, &ours, &our_pods)] {
            let (times, whole) = contender.all("ADD", pods, AT_ONCE)?;
            side.add_eight_p50_ms = percentile(&times, 50.0);
            side.add_eight_p99_ms = percentile(&times, 99.0);
            side.add_eight_per_second = round(times.len() as f64 / whole.as_secs_f64());
        }
        Ok(())
    })?;
    step("DEL of both sides", || {
        ours.all("DEL", &our_pods, AT_ONCE)?;
        reference.all("DEL", &their_pods, AT_ONCE)?;
        for pod in &their_pods {
            pod.ns.delete()?;
        }
        Ok(())
    })?;

    let (few, many) = few_and_many(fabric, &ours, our_pods, &crowded)?;
    let ratio_p50 = round(us.add_p50_ms / them.add_p50_ms);
    let ratio_eight_p50 = round(us.add_eight_p50_ms / them.add_eight_p50_ms);
    let ratio_1000_to_10 = round(many / few);
    let tor_p99_ms = percentile(&tor_times, 99.0);
    let result = Figures {
        bench: "attach",
        namespaces: NAMESPACES,
        reference: them,
        trunkline: us,
        ratio_p50,
        ratio_eight_p50,
        p50_with_10_pods_ms: few,
        p50_with_1000_pods_ms: many,
        ratio_1000_to_10,
        tor_p50_ms: percentile(&tor_times, 50.0),
        tor_p99_ms,
        tor_max_ms: percentile(&tor_times, 100.0),
        tor_frr_p50_ms: percentile(&frr_times, 50.0),
        tor_frr_p99_ms: percentile(&frr_times, 99.0),
        bounds: vec![
            Bound::at_most("ADD p50 against ptp + host-local, one at a time", ratio_p50, 0.4),
            Bound::at_most("ADD p50 against ptp + host-local, eight at a time", ratio_eight_p50, 0.4),
            Bound::at_most("ADD p50 with 1,000 pods against 10", ratio_1000_to_10, 1.2),
            Bound::at_most("ADD's start until the ToR (BIRD) has the /32, p99 in ms", tor_p99_ms, 50.0),
        ],
    };
    Ok((result, tor_times))
}

/// p50 of ADD on a node with [`FEW`] pods and on a node with [`MANY`] pods, in turns. Each measured
/// pod is detached again, so the numbers of pods stay the same.
fn few_and_many(
    fabric: &Fabric,
    ours: &Contender<'_>,
    pods: Vec<Sandbox>,
    crowded: &Contender<'_>,
) -> Result<(f64, f64)> {
    let (there, measured) = pods.split_at(pods.len() - SAMPLES);
    let crowd = step(&format!("{FEW} pods on one node, {MANY} on another"), || {
        ours.all("ADD", there.get(..FEW).context("pods")?, 1)?;
        let crowd = sandboxes(fabric, "node2", 0, MANY)?;
        crowded.all("ADD", &crowd, AT_ONCE)?;
        Ok(crowd)
    })?;
    let measured_there = sandboxes(fabric, "node2", MANY, SAMPLES)?;
    let (mut few, mut many) = (Vec::new(), Vec::new());
    step(&format!("ADD with {FEW} and with {MANY} existing pods, alternating"), || {
        for (pod, pod_there) in measured.iter().zip(&measured_there) {
            crate::interrupt::check()?;
            for (times, side, pod) in [(&mut few, ours, pod), (&mut many, crowded, pod_there)] {
                times.push(ms(side.host.within(|| side.run("ADD", pod))?.took));
                side.host.within(|| side.run("DEL", pod))?;
            }
        }
        Ok(())
    })?;
    step("detaching the pods", || {
        crowded.all("DEL", &crowd, AT_ONCE)?;
        Ok(())
    })?;
    Ok((percentile(&few, 50.0), percentile(&many, 50.0)))
}

/// Namespaces, which a runtime creates before it calls the plugin.
pub(super) fn sandboxes(fabric: &Fabric, node: &str, from: usize, count: usize) -> Result<Vec<Sandbox>> {
    (from..from + count).map(|i| Sandbox::create(fabric, node, &format!("p{i}"))).collect()
}

fn ptp(host: &Host) -> Value {
    let data = host.folder.join("host-local");
    say(&format!("  reference plugins: /usr/lib/cni/ptp with host-local, its records in {}", data.display()));
    json!({
        "cniVersion": "1.0.0", "name": "reference", "type": "ptp",
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.250.0.0/16" }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
            "dataDir": data,
        },
    })
}
