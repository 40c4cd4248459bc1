//! The cost of the guard and of the marks of translated connections. A node of this commit runs
//! against a node of an earlier commit (`--before`, a folder with its programs), or against a node
//! with the guard switched off.
//!
//! Both nodes run at the same time, each between its own routers, and measurements alternate
//! between them. Traffic passes between pods of the same node, so no wire hides the cost of a
//! packet.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde::Serialize;

use super::attach::{Contender, sandboxes};
use super::traffic::{Traffic, paired};
use super::{Bound, report, warn_if_busy};
use crate::cni::{self, Sandbox, plugin_path};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::progress::step;
use crate::stats::{percentile, round};
use crate::{client, packages, product};

const TOPOLOGY: &str = "one-rack";
const NODE: &str = "node1";
const FEW: usize = 10;
const MANY: usize = 1_000;
/// ADDs of each node for each number of pods.
const SAMPLES: usize = 100;
/// Slices of traffic of each node, for throughput and for connections.
const PAIRS: usize = 120;
const PATIENCE: Duration = Duration::from_secs(60);

/// One node's medians.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Node {
    pub add_p50_ms: f64,
    pub mbit: f64,
    pub connections_per_second: f64,
}

/// Figures of both nodes with this number of pods.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct With {
    pub pods: usize,
    pub before: Node,
    pub now: Node,
    /// The current value divided by the earlier one.
    pub ratio_add_p50: f64,
    pub ratio_mbit: f64,
    pub ratio_connections: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub bench: &'static str,
    /// The kind of reference.
    pub before: String,
    pub with: Vec<With>,
    pub bounds: Vec<Bound>,
}

/// `cargo lab bench guard`.
pub(crate) fn bench(place: &Place, json: bool, before: Option<&Path>) -> Result<bool> {
    packages::need_root("cargo lab bench guard")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr"]))?;
    let product = product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let tagged = |tag: &str| Place {
        tag: Some(format!("{}{tag}", place.tag.clone().unwrap_or_default())),
        ..place.clone()
    };
    let programs: PathBuf = before.map_or_else(|| product.clone(), Path::to_owned);
    let (former, present) = step("starting both topologies", || {
        Ok((Fabric::up(&tagged("b"), TOPOLOGY, &programs)?, Fabric::up(&tagged("n"), TOPOLOGY, &product)?))
    })?;
    let figures = former.watched(|former| {
        present.watched(|present| {
            if before.is_none() {
                switch_off(former)?;
            }
            measure(former, present)
        })
    })?;
    let before = before.map_or("the guard switched off".to_owned(), |folder| folder.display().to_string());
    let figures = Figures { before, ..figures };
    report(json, &figures, &words(&figures), &figures.bounds)
}

fn words(figures: &Figures) -> String {
    let head = ["pods", "", "ADD p50", "throughput", "connections"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for with in &figures.with {
        for (name, node) in [("before", &with.before), ("now", &with.now)] {
            rows.push(vec![
                with.pods.to_string(),
                name.to_owned(),
                format!("{:.2} ms", node.add_p50_ms),
                format!("{:.0} Mbit/s", node.mbit),
                format!("{:.0}/s", node.connections_per_second),
            ]);
        }
        rows.push(vec![
            String::new(),
            "ratio".to_owned(),
            format!("{:.3}", with.ratio_add_p50),
            format!("{:.3}", with.ratio_mbit),
            format!("{:.3}", with.ratio_connections),
        ]);
    }
    format!("{}\n  before: {}\n", crate::progress::table(&rows), figures.before)
}

fn switch_off(fabric: &Fabric) -> Result<()> {
    let node = fabric.host(NODE)?;
    client::wait_answering(node)?;
    client::end_agent(node, Signal::TERM)?;
    let config = fabric.file(&format!("{TOPOLOGY}/{NODE}/agent.yaml"));
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(&config, format!("{text}\nguard: {{ enabled: false }}\n"))?;
    client::start_agent(node)
}

/// A node with pods. Two of the pods are for traffic.
struct Loaded<'a> {
    contender: Contender<'a>,
    from: Sandbox,
    to: Sandbox,
    address: IpAddr,
}

impl<'a> Loaded<'a> {
    fn of(fabric: &'a Fabric) -> Result<Self> {
        let host = fabric.host(NODE)?;
        client::wait_answering(host)?;
        client::wait_established(host, PATIENCE)?;
        let conf = cni::trunkline(Some("rack1"));
        let (from, to) = (Sandbox::create(fabric, NODE, "from")?, Sandbox::create(fabric, NODE, "to")?);
        cni::add(fabric, &conf, &from)?;
        let address = cni::add(fabric, &conf, &to)?.addresses.first().copied().context("an address")?;
        Ok(Loaded { contender: Contender { host, conf, path: plugin_path(host) }, from, to, address })
    }

    fn traffic(&self) -> Result<Traffic<'_>> {
        Traffic::between(&self.from.ns, &self.to.ns, self.address)
    }

    /// Measures an ADD, and detaches the pod afterwards.
    fn add(&self, pod: &Sandbox) -> Result<f64> {
        let run = |verb| self.contender.host.within(|| self.contender.run(verb, pod));
        let took = ms(run("ADD")?.took);
        run("DEL")?;
        Ok(took)
    }
}

fn measure(former: &Fabric, present: &Fabric) -> Result<Figures> {
    let nodes =
        step("BGP sessions, and two pods for traffic", || Ok([Loaded::of(former)?, Loaded::of(present)?]))?;
    let mut with = Vec::new();
    let mut there = 2;
    for pods in [FEW, MANY] {
        step(&format!("{pods} pods on each node"), || {
            for (fabric, node) in [former, present].into_iter().zip(&nodes) {
                for pod in sandboxes(fabric, NODE, there, pods - there)? {
                    node.contender.host.within(|| node.contender.run("ADD", &pod))?;
                }
            }
            Ok(())
        })?;
        there = pods;
        with.push(compared([former, present], &nodes, pods)?);
    }
    let worst = |ratio: fn(&With) -> f64| with.iter().map(ratio).fold(0.0, f64::max);
    let bounds = vec![
        Bound::at_most("ADD p50 against the earlier one", worst(|with| with.ratio_add_p50), 1.03),
        Bound::at_most(
            "the earlier throughput against the current one (0.98 of it)",
            worst(|with| 1.0 / with.ratio_mbit),
            1.0 / 0.98,
        ),
        Bound::at_most(
            "the earlier connections per second against the current ones (0.97 of them)",
            worst(|with| 1.0 / with.ratio_connections),
            1.0 / 0.97,
        ),
    ];
    Ok(Figures { bench: "guard", before: String::new(), with, bounds })
}

/// Measures both nodes in turns, with this number of pods.
fn compared(fabrics: [&Fabric; 2], nodes: &[Loaded<'_>; 2], pods: usize) -> Result<With> {
    let mut times = [Vec::new(), Vec::new()];
    step(&format!("ADD with {pods} pods, alternating"), || {
        let name = |number: usize| format!("add{pods}-{number}");
        for number in 0..SAMPLES {
            crate::interrupt::check()?;
            for turn in 0..2 {
                let which = (number + turn) % 2;
                let pod = Sandbox::create(fabrics[which], NODE, &name(number))?;
                times[which].push(nodes[which].add(&pod)?);
                pod.ns.delete()?;
            }
        }
        Ok(())
    })?;
    let (mbit, connections) = step("throughput and connections, alternating", || {
        let [former, present] = nodes.each_ref().map(Loaded::traffic);
        let (former, present) = (former?, present?);
        Ok((
            paired([&former, &present], PAIRS, Traffic::mbit)?,
            paired([&former, &present], PAIRS, Traffic::connections)?,
        ))
    })?;
    let node = |which: usize| Node {
        add_p50_ms: percentile(&times[which], 50.0),
        mbit: round(mbit.medians[which]),
        connections_per_second: round(connections.medians[which]),
    };
    let (before, now) = (node(0), node(1));
    Ok(With {
        pods,
        ratio_add_p50: round(now.add_p50_ms / before.add_p50_ms),
        ratio_mbit: round(mbit.ratio),
        ratio_connections: round(connections.ratio),
        before,
        now,
    })
}
