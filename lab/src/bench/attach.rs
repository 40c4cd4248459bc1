//! How long it takes to attach a container: the plugin's whole run as the runtime sees it, against the `ptp` and
//! `host-local` plugins that containerd's users have. Both give one IPv4 address.
//!
//! ADDs of the two take turns, so that whatever else the machine does hits both. What only Trunkline does is measured
//! with it: how long until the ToR has the route, and whether the thousandth pod costs what the tenth did.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Bound, report};
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
/// Samples for few against many pods.
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
    /// The figures to beat.
    pub reference: Side,
    pub trunkline: Side,
    /// Ours through the reference's.
    pub ratio_p50: f64,
    pub ratio_eight_p50: f64,
    /// ADD's p50 with few and with many pods there.
    pub p50_with_10_pods_ms: f64,
    pub p50_with_1000_pods_ms: f64,
    pub ratio_1000_to_10: f64,
    /// From ADD's start until the /32 was in the ToR's kernel.
    pub tor_p50_ms: f64,
    pub tor_p99_ms: f64,
    pub tor_max_ms: f64,
    pub bounds: Vec<Bound>,
}

/// `cargo lab bench attach`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench attach")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "containernetworking-plugins"]))?;
    let product = product::build(place)?;
    let fabric = step("bringing one-rack up", || Fabric::up(place, "one-rack", &product))?;
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
        "\n  ADD's start until the /32 is in the ToR: p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms\n{}",
        r.tor_p50_ms,
        r.tor_p99_ms,
        r.tor_max_ms,
        histogram(tor_times, "ms")
    ));
    text
}

/// One side of the comparison.
struct Contender<'a> {
    host: &'a Host,
    conf: Value,
    path: Vec<PathBuf>,
}

impl Contender<'_> {
    /// To be called on a thread that is on the host.
    fn add(&self, pod: &Sandbox) -> Result<Answer> {
        let answer = run_here(&self.path, "ADD", &self.conf, pod, &pod.ns.path().display().to_string())?;
        if let Err(e) = &answer.outcome {
            anyhow::bail!("{} ADD {}: {e}", self.conf["type"], pod.name);
        }
        Ok(answer)
    }

    fn del(&self, pod: &Sandbox) -> Result<Answer> {
        let answer = run_here(&self.path, "DEL", &self.conf, pod, &pod.ns.path().display().to_string())?;
        if let Err(e) = &answer.outcome {
            anyhow::bail!("{} DEL {}: {e}", self.conf["type"], pod.name);
        }
        Ok(answer)
    }

    /// Runs a verb for every pod, several at a time; returns each run's time and the whole's.
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
                    times.push(ms(if verb == "ADD" { self.add(pod)?.took } else { self.del(pod)?.took }));
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
    let (node, bare) = (fabric.host("node1")?, fabric.host("reference")?);
    let ours = Contender { host: node, conf: cni::trunkline(Some("global")), path: plugin_path(node) };
    let reference = Contender { host: bare, conf: ptp(bare), path: plugin_path(bare) };
    step("BGP sessions", || {
        client::wait_answering(node)?;
        client::wait_established(node, PATIENCE)
    })?;
    let (our_pods, their_pods) = step(&format!("{NAMESPACES} namespaces for each side"), || {
        Ok((sandboxes(fabric, "node1", 0, NAMESPACES)?, sandboxes(fabric, "reference", 0, NAMESPACES)?))
    })?;
    let monitor = RouteMonitor::start(&fabric.host("tor1")?.ns)?;

    let mut us = Side { plugin: "trunkline-cni", ..Side::default() };
    let mut them = Side { plugin: "ptp + host-local", ..Side::default() };
    let (our_adds, their_adds, tor_times) = step("ADD, one at a time, taking turns", || {
        let (mut our_adds, mut their_adds, mut tor_times) = (Vec::new(), Vec::new(), Vec::new());
        for (our_pod, their_pod) in our_pods.iter().zip(&their_pods) {
            crate::interrupt::check()?;
            their_adds.push(ms(bare.within(|| reference.add(their_pod))?.took));
            let answer = node.within(|| ours.add(our_pod))?;
            our_adds.push(ms(answer.took));
            let started = answer.started;
            let prefixes: Vec<IpNet> =
                cni::addresses(&answer.result()?)?.into_iter().map(IpNet::from).collect();
            ensure!(!prefixes.is_empty(), "{} got no address", our_pod.name);
            for at in monitor.wait(&prefixes, true, PATIENCE)? {
                tor_times.push(ms(at.saturating_duration_since(started)));
            }
        }
        Ok((our_adds, their_adds, tor_times))
    })?;
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

    let (few, many) = few_and_many(fabric, &ours, our_pods)?;
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
        bounds: vec![
            Bound::at_most("ADD p50 against ptp + host-local, one at a time", ratio_p50, 0.4),
            Bound::at_most("ADD p50 against ptp + host-local, eight at a time", ratio_eight_p50, 0.4),
            Bound::at_most("ADD p50 with 1,000 pods against 10", ratio_1000_to_10, 1.2),
            Bound::at_most("ADD's start until the ToR has the /32, p99 in ms", tor_p99_ms, 50.0),
        ],
    };
    Ok((result, tor_times))
}

/// p50 of ADD with [`FEW`] and with [`MANY`] pods there. Each measured pod is taken away again, so that the number stays.
fn few_and_many(fabric: &Fabric, ours: &Contender<'_>, pods: Vec<Sandbox>) -> Result<(f64, f64)> {
    let (there, measured) = pods.split_at(pods.len() - SAMPLES);
    let sample = || -> Result<f64> {
        let mut times = Vec::new();
        for pod in measured {
            crate::interrupt::check()?;
            times.push(ms(ours.host.within(|| ours.add(pod))?.took));
            ours.host.within(|| ours.del(pod))?;
        }
        Ok(percentile(&times, 50.0))
    };
    let few = step(&format!("ADD with {FEW} pods there"), || {
        ours.all("ADD", there.get(..FEW).context("pods")?, 1)?;
        sample()
    })?;
    let more = step(&format!("{MANY} pods"), || {
        let more = sandboxes(fabric, "node1", NAMESPACES, MANY - FEW)?;
        ours.all("ADD", &more, AT_ONCE)?;
        Ok(more)
    })?;
    let many = step(&format!("ADD with {MANY} pods there"), sample)?;
    step("taking them away", || {
        ours.all("DEL", &more, AT_ONCE)?;
        Ok(())
    })?;
    Ok((few, many))
}

/// Namespaces as a runtime has them ready before it calls the plugin.
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
