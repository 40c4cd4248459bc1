//! `cargo lab bench policy`: speed and size of network policies, on a real API server, with the
//! agents of two nodes of the topology `hybrid`.
//!
//! - The time from a change of a remote pod's label (the start of the API request) until the
//!   kernel's set has the pod's address, with few and with 10,000 remote pods.
//! - ADD of a pod that 50 policies select, against ADD of a pod without a policy, alternating.
//! - The agent's memory, and the time from its start until the rules are in force.
//! - Traffic between two pods that 50 policies select on both nodes, against two pods without a
//!   policy, alternating.
//!
//! No controller runs: the bench writes the IPInstances. Remote pods are objects only.

mod world;

use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde::Serialize;

use self::world::{ElementMonitor, POLICIES, World};
use super::attach::Contender;
use super::memory::megabytes;
use super::traffic::{Paired, Traffic, iperf, paired};
use super::{Bound, report, warn_if_busy};
use crate::cni::{self, Sandbox, plugin_path};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::product::Profile;
use crate::progress::step;
use crate::stats::{percentile, round};
use crate::tests::kube::crds;
use crate::{client, packages, product};

const TOPOLOGY: &str = "hybrid";
/// Remote pods at first and later.
const FEW: usize = 10;
const MANY: usize = 10_000;
/// Pods of the node that policies select.
const LOCAL: usize = 250;
/// Changes of labels with each number of pods.
const CHANGES: usize = 100;
/// ADDs of each side.
const ADDS: usize = 40;
/// Slices of connections of each side.
const PAIRS: usize = 60;
/// Rounds of iperf3 of each side, and the duration of one.
const IPERF_ROUNDS: usize = 12;
const IPERF_SECONDS: u32 = 1;

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    policies: usize,
    local_pods: usize,
    remote_pods: usize,
    /// From the start of the request until the kernel's set has the address.
    change_few_p50_ms: f64,
    change_few_p99_ms: f64,
    change_p50_ms: f64,
    change_p99_ms: f64,
    /// The p50 with many remote pods divided by the p50 with few.
    ratio_change: f64,
    add_without_p50_ms: f64,
    add_p50_ms: f64,
    ratio_add: f64,
    pss_before_mb: f64,
    pss_mb: f64,
    /// After the cold start.
    pss_restarted_mb: f64,
    /// From the start of the agent until the rules of all policies are in force.
    cold_start_ms: f64,
    mbit_without: f64,
    mbit: f64,
    ratio_mbit: f64,
    connections_without: f64,
    connections: f64,
    ratio_connections: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench policy`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench policy")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "bird2", "nftables", "iperf3"]))?;
    let assets = match Assets::find(place)? {
        Ok(assets) => assets,
        Err(missing) => bail!("{missing}"),
    };
    let nodes = product::build(place, Profile::Release)?;
    warn_if_busy();
    let figures = Cluster::with(place, "bench-policy", &assets, |cluster| {
        crds::install(cluster)?;
        let fabric = step("starting the topology", || Fabric::up(place, TOPOLOGY, &nodes))?;
        fabric.watched(|fabric| measure(&World::join(cluster, fabric)?))
    })?;
    report(json, &figures, &words(&figures), &figures.bounds)
}

fn words(f: &Figures) -> String {
    format!(
        "  {} policies, {} local pods: a label's change is in the kernel after p50 {:.1} ms, p99 {:.1} ms with {FEW} remote pods, \
         p50 {:.1} ms, p99 {:.1} ms with {} ({:.2})\n  ADD p50 {:.2} ms without a policy, {:.2} ms with 50 ({:.2})\n  \
         agent's PSS {:.1} MB before, {:.1} MB with all, {:.1} MB after a restart; rules in force {:.0} ms after its start\n  \
         throughput {:.0} and {:.0} Mbit/s ({:.3}), connections {:.0}/s and {:.0}/s ({:.3})\n",
        f.policies,
        f.local_pods,
        f.change_few_p50_ms,
        f.change_few_p99_ms,
        f.change_p50_ms,
        f.change_p99_ms,
        f.remote_pods,
        f.ratio_change,
        f.add_without_p50_ms,
        f.add_p50_ms,
        f.ratio_add,
        f.pss_before_mb,
        f.pss_mb,
        f.pss_restarted_mb,
        f.cold_start_ms,
        f.mbit_without,
        f.mbit,
        f.ratio_mbit,
        f.connections_without,
        f.connections,
        f.ratio_connections,
    )
}

fn measure(world: &World<'_>) -> Result<Figures> {
    let pss_before = megabytes(client::agent(world.node)?, "smaps_rollup", "Pss")?;
    step(&format!("{POLICIES} policies"), || world.create_policies())?;
    let traffic = step("four pods for traffic", || world.traffic_pods())?;
    let local = step(&format!("{LOCAL} local pods"), || world.local_pods(LOCAL))?;
    step(&format!("{FEW} remote pods"), || world.create_remote(0..FEW))?;
    let few = step(&format!("{CHANGES} changes of labels"), || changes(world))?;
    step(&format!("{MANY} remote pods"), || world.create_remote(FEW..MANY))?;
    world.wait_known(MANY)?;
    let many = step(&format!("{CHANGES} changes of labels"), || changes(world))?;
    let [without, with] = step("ADD without a policy and with 50, alternating", || adds(world))?;
    let mbit = step("iperf3, alternating", || throughput(&traffic))?;
    let connections = step("connections, alternating", || {
        let [from, to, free_from, free_to] = &traffic;
        let free = Traffic::between(&free_from.0.ns, &free_to.0.ns, free_to.1)?;
        let ruled = Traffic::between(&from.0.ns, &to.0.ns, to.1)?;
        paired([&free, &ruled], PAIRS, Traffic::connections)
    })?;
    let pss = megabytes(client::agent(world.node)?, "smaps_rollup", "Pss")?;
    let cold = step("a cold start", || {
        client::end_agent(world.node, Signal::TERM)?;
        let began = Instant::now();
        client::start_agent(world.node)?;
        world.wait_in_force()?;
        Ok(ms(began.elapsed()))
    })?;
    let pss_restarted = megabytes(client::agent(world.node)?, "smaps_rollup", "Pss")?;
    drop(local);
    let (change_few_p50_ms, change_p50_ms) = (percentile(&few, 50.0), percentile(&many, 50.0));
    let (add_without_p50_ms, add_p50_ms) = (percentile(&without, 50.0), percentile(&with, 50.0));
    let (ratio_change, ratio_add) =
        (round(change_p50_ms / change_few_p50_ms), round(add_p50_ms / add_without_p50_ms));
    Ok(Figures {
        bench: "policy",
        policies: POLICIES,
        local_pods: LOCAL,
        remote_pods: MANY,
        change_few_p50_ms,
        change_few_p99_ms: percentile(&few, 99.0),
        change_p50_ms,
        change_p99_ms: percentile(&many, 99.0),
        ratio_change,
        add_without_p50_ms,
        add_p50_ms,
        ratio_add,
        pss_before_mb: round(pss_before),
        pss_mb: round(pss),
        pss_restarted_mb: round(pss_restarted),
        cold_start_ms: round(cold),
        mbit_without: round(mbit.medians[0]),
        mbit: round(mbit.medians[1]),
        ratio_mbit: round(mbit.ratio),
        connections_without: round(connections.medians[0]),
        connections: round(connections.medians[1]),
        ratio_connections: round(connections.ratio),
        bounds: vec![
            Bound::at_most(
                "a label's change with 10,000 remote pods, p99 in ms",
                percentile(&many, 99.0),
                50.0,
            ),
            Bound::at_most("a label's change with 10,000 remote pods against 10, p50", ratio_change, 1.2),
            Bound::at_most("ADD p50 with 50 policies against none", ratio_add, 1.3),
            Bound::at_most("agent's PSS in MB", pss.max(pss_restarted), 30.0),
            Bound::at_most("start until the rules are in force, in ms", cold, 2000.0),
            Bound::at_most("throughput without policies against with 1,000", 1.0 / mbit.ratio, 1.0 / 0.97),
            Bound::at_most(
                "connections per second without policies against with 1,000",
                1.0 / connections.ratio,
                1.0 / 0.9,
            ),
        ],
    })
}

/// Changes the label of remote pods, one after another. Returns each time until the kernel has the
/// new element, in milliseconds.
fn changes(world: &World<'_>) -> Result<Vec<f64>> {
    let monitor = ElementMonitor::start(world.node)?;
    let mut times = Vec::new();
    for number in 0..CHANGES {
        crate::interrupt::check()?;
        let (began, address) = world.relabel(number % FEW, number)?;
        times.push(ms(monitor.wait(&address.to_string(), began)?));
    }
    Ok(times)
}

/// Throughput of one connection between the pods without a policy, and between those that 50
/// policies select on both nodes.
fn throughput([from, to, free_from, free_to]: &[(Sandbox, IpAddr); 4]) -> Result<Paired> {
    let sides = [(&free_from.0, free_to), (&from.0, to)];
    paired([&sides[0], &sides[1]], IPERF_ROUNDS, |(from, (to, address))| {
        iperf(&from.ns, &to.ns, &address.to_string(), IPERF_SECONDS)
    })
}

/// Attaches pods without and with policies in turns. Returns the times of both.
fn adds(world: &World<'_>) -> Result<[Vec<f64>; 2]> {
    let contender = Contender { host: world.node, conf: cni::trunkline(None), path: plugin_path(world.node) };
    let pods = world.prepare_adds(ADDS)?;
    let mut times = [Vec::new(), Vec::new()];
    for (number, pair) in pods.iter().enumerate() {
        crate::interrupt::check()?;
        for turn in 0..2 {
            let which = (number + turn) % 2;
            let pod = pair.get(which).context("a pod of each side")?;
            times[which].push(ms(world.node.within(|| contender.run("ADD", pod))?.took));
        }
    }
    Ok(times)
}
