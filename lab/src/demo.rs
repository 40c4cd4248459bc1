//! The tour: Trunkline's promises on two racks of real routers, each with a figure.

mod links;
pub(crate) mod load_balancer;
mod service;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use self::load_balancer::{Kubernetes, LoadBalancer};
use crate::cni::{self, Sandbox};
use crate::fabric::{Fabric, Place};
use crate::kube::assets::Programs;
use crate::link_faults::FaultImpact;
use crate::pinger::{Flow, FlowResult, Pinger, some, unreachable};
use crate::product::Profile;
use crate::progress::{say, seconds, step, step_with, table};
use crate::routes::RouteMonitor;
use crate::stats::percentile;
use crate::topology::Topology;
use crate::{client, containerlab, evidence, packages, product, routers};

pub(crate) const TOPOLOGY: &str = "two-racks";
const PODS_PER_NODE: usize = 3;
const INTERVAL: Duration = Duration::from_millis(5);
/// Time without the agent in a restart, in requests of each flow: two seconds.
const AWAY: usize = 400;
const PATIENCE: Duration = Duration::from_secs(60);
/// A ToR's links to the spines.
const UPLINKS: [&str; 2] = ["eth1", "eth2"];
/// Faults of a link that the tour shows.
const LINK_FAULTS: usize = 3;

/// Results of the tour; the object that `--json` prints.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    /// Ordered pairs of pods, once for IPv4 and once for IPv6.
    pub pairs_total: usize,
    pub pairs_ok: usize,
    /// Pods' /32 and /128 in the kernels of the spines, added up over the spines.
    pub spine_pod_routes: usize,
    pub spine_pod_routes_expected: usize,
    pub restart_lost_packets: usize,
    pub restart_sent_packets: usize,
    pub kill_lost_packets: usize,
    pub kill_sent_packets: usize,
    /// Pod routes that left the kernel of a ToR or spine during the two restarts, even if they
    /// returned.
    pub restart_lost_routes: usize,
    pub kill_lost_routes: usize,
    /// Routes to an address of a service on two nodes, one in each rack, added up over the spines
    /// and families.
    pub service_spine_routes: usize,
    pub service_spine_routes_expected: usize,
    /// One of its two programs ends: time until the last failed connection.
    pub service_death_recovery_ms: f64,
    pub service_death_failed_connections: usize,
    /// The agent of one of its two nodes is killed and started.
    pub service_restart_failed_connections: usize,
    pub service_restart_connections: usize,
    /// Routes to the address that left the kernel of a ToR or spine meanwhile, even if they
    /// returned.
    pub service_restart_lost_routes: usize,
    /// Time from the cut until the last lost request, plus one interval; 0 without loss.
    pub uplink_cut_recovery_ms: f64,
    pub uplink_cut_lost_packets: usize,
    /// The longest gap of any flow when a ToR falls silent with all its links up.
    pub silent_tor_recovery_ms: f64,
    pub silent_tor_lost_packets: usize,
    /// Lost packets when the silent ToR returns.
    pub silent_tor_return_lost_packets: usize,
    /// Faults of one link between a node and a ToR: loss by kind of pod and by direction. Each fault
    /// lasts at least two seconds.
    pub link_faults: Vec<FaultImpact>,
    /// A Service of type LoadBalancer; none without the programs of Kubernetes.
    pub load_balancer: Option<LoadBalancer>,
    /// Time from the start of DEL until both routes were removed from both spines.
    pub withdraw_ms: f64,
    pub attach_p50_ms: f64,
    pub attach_p99_ms: f64,
    /// Time from the start of each ADD until both routes were in both spines.
    pub fabric_p50_ms: f64,
    pub fabric_p99_ms: f64,
    pub wall_s: f64,
    /// The folder with logs, captures and routing tables; none without a fault.
    pub evidence: Option<PathBuf>,
}

impl Summary {
    /// Broken promises; empty if all are kept.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |good: bool, fault: String| {
            if !good {
                faults.push(fault);
            }
        };
        check(
            self.pairs_ok == self.pairs_total && self.pairs_total > 0,
            format!("{} of {} pairs reach each other", self.pairs_ok, self.pairs_total),
        );
        check(
            self.spine_pod_routes == self.spine_pod_routes_expected && self.spine_pod_routes > 0,
            format!(
                "{} of {} pod routes in the spines",
                self.spine_pod_routes, self.spine_pod_routes_expected
            ),
        );
        check(
            self.restart_lost_packets == 0 && self.restart_sent_packets > 0,
            format!("{} packets lost while the agent was restarted", self.restart_lost_packets),
        );
        check(
            self.kill_lost_packets == 0 && self.kill_sent_packets > 0,
            format!("{} packets lost while the agent was killed and started", self.kill_lost_packets),
        );
        check(
            self.restart_lost_routes + self.kill_lost_routes == 0,
            format!(
                "{} and {} pod routes left a router for a moment during the restarts",
                self.restart_lost_routes, self.kill_lost_routes
            ),
        );
        check(
            self.service_spine_routes == self.service_spine_routes_expected && self.service_spine_routes > 0,
            format!(
                "{} of {} routes to the service address in the spines",
                self.service_spine_routes, self.service_spine_routes_expected
            ),
        );
        check(
            self.service_restart_failed_connections + self.service_restart_lost_routes == 0
                && self.service_restart_connections > 0,
            format!(
                "{} of {} connections to the service address failed, and {} of its routes left a router, while \
                 an agent was killed and started",
                self.service_restart_failed_connections,
                self.service_restart_connections,
                self.service_restart_lost_routes
            ),
        );
        check(
            self.link_faults.len() == LINK_FAULTS,
            format!("{} of {LINK_FAULTS} faults of a link were shown", self.link_faults.len()),
        );
        faults.extend(self.load_balancer.iter().flat_map(LoadBalancer::faults));
        if let (false, Some(folder)) = (faults.is_empty(), &self.evidence) {
            faults.push(format!("logs, captures and routing tables: {}", folder.display()));
        }
        faults
    }

    fn table(&self) -> String {
        let row = |what: &str, value: String| vec![what.to_owned(), value];
        let mut rows = vec![
            row(
                "pairs of pods that reach each other (v4 and v6)",
                format!("{} of {}", self.pairs_ok, self.pairs_total),
            ),
            row(
                "pod routes in the spines",
                format!("{} of {}", self.spine_pod_routes, self.spine_pod_routes_expected),
            ),
            row(
                "lost while the agent was restarted",
                format!("{} of {} packets", self.restart_lost_packets, self.restart_sent_packets),
            ),
            row(
                "lost while the agent was killed and started",
                format!("{} of {} packets", self.kill_lost_packets, self.kill_sent_packets),
            ),
            row(
                "pod routes lost in any router meanwhile",
                format!("{} and {}", self.restart_lost_routes, self.kill_lost_routes),
            ),
            row(
                "routes to a service address in the spines",
                format!("{} of {}", self.service_spine_routes, self.service_spine_routes_expected),
            ),
            row(
                "one of its two programs ends",
                format!(
                    "answered by the other after {:.0} ms ({} connections failed)",
                    self.service_death_recovery_ms, self.service_death_failed_connections
                ),
            ),
            row(
                "failed while the agent of one of its nodes was killed",
                format!(
                    "{} of {} connections",
                    self.service_restart_failed_connections, self.service_restart_connections
                ),
            ),
            row(
                "recovery from a cut uplink",
                format!(
                    "{:.0} ms ({} packets lost)",
                    self.uplink_cut_recovery_ms, self.uplink_cut_lost_packets
                ),
            ),
            row(
                "recovery from a ToR that falls silent (BFD)",
                format!(
                    "{:.0} ms ({} packets lost, {} when it came back)",
                    self.silent_tor_recovery_ms,
                    self.silent_tor_lost_packets,
                    self.silent_tor_return_lost_packets
                ),
            ),
        ];
        rows.extend(links::rows(&self.link_faults).into_iter().map(Vec::from));
        rows.extend([
            row("DEL until the routes have left the spines", format!("{:.1} ms", self.withdraw_ms)),
            row(
                "ADD, the plugin's whole run",
                format!("p50 {:.1} ms, p99 {:.1} ms", self.attach_p50_ms, self.attach_p99_ms),
            ),
            row(
                "ADD until the routes are in the spines",
                format!("p50 {:.1} ms, p99 {:.1} ms", self.fabric_p50_ms, self.fabric_p99_ms),
            ),
        ]);
        rows.extend(self.load_balancer.iter().flat_map(LoadBalancer::rows).map(Vec::from));
        rows.push(row("the whole tour", seconds(self.wall_s)));
        table(&rows)
    }
}

/// `cargo lab demo`, in containers on request. Returns whether all promises were kept.
pub(crate) fn demo(place: &Place, json: bool, contained: bool) -> Result<bool> {
    packages::need_root("cargo lab demo")?;
    say("Trunkline on two racks: 2 spines (BIRD), 4 ToRs (FRR), 4 nodes with 3 pods each\n");
    if let Some(why) =
        contained.then(|| containerlab::docker::missing().or_else(containerlab::missing)).flatten()
    {
        bail!("--containerlab: {why}");
    }
    let routers: &[&str] = if contained { &[] } else { &["frr", "bird2"] };
    packages::need(packages::ALWAYS.into_iter().chain(routers.iter().copied()))?;
    let start = Instant::now();
    let mut summary = if contained {
        let product = product::build(place, Profile::Quick)?;
        containerlab::images::build(place, [&Topology::load(&place.topology_file(TOPOLOGY)?)?], &product)?;
        tour(|| containerlab::deploy(place, TOPOLOGY), &Err(load_balancer::NOT_IN_CONTAINERS.to_owned()))?
    } else {
        let (product, kubernetes) = match Programs::find_built(place)? {
            Ok(programs) => {
                let (product, controller) = product::build_all(place, Profile::Quick)?;
                (product, Ok(load_balancer::Cluster { place: place.clone(), programs, controller }))
            }
            Err(missing) => (product::build(place, Profile::Quick)?, Err(missing)),
        };
        tour(|| Fabric::up(place, TOPOLOGY, &product), &kubernetes)?
    };
    summary.wall_s = start.elapsed().as_secs_f64();
    let faults = summary.faults();
    if json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        println!("\n{}", summary.table());
    }
    if faults.is_empty() {
        say("All promises are kept: every pair, every route in both spines, no packet lost in \
             either restart, the service address reached, every pod reached while a link had failed.");
    } else {
        say(&format!("NOT all promises are kept: {}", faults.join("; ")));
    }
    say("\nLook around:");
    if contained {
        say(
            "  containerlab deploy -t lab/topologies/two-racks.clab.yml   the same lab for manual use; the images stay",
        );
        say("  docker exec clab-two-racks-node1a trunkline peers");
        say("  docker exec clab-two-racks-node1a pod add web global       a pod, by the plugin");
        say("  containerlab destroy -t lab/topologies/two-racks.clab.yml --cleanup");
        return Ok(faults.is_empty());
    }
    say(
        "  cargo lab up two-racks --pods 2                           bring it up with pods and leave it running",
    );
    say("  cargo lab exec two-racks node1a trunkline peers           the operator's commands");
    say("  cargo lab exec two-racks tor1a vtysh -c 'show bgp ipv4 unicast'");
    say("  cargo lab down two-racks");
    Ok(faults.is_empty())
}

/// Creates two-racks, runs all steps, and removes it.
pub(crate) fn tour(bring_up: impl FnOnce() -> Result<Fabric>, kubernetes: &Kubernetes) -> Result<Summary> {
    let start = Instant::now();
    let fabric = step_with("starting the fabric", bring_up, |f| f.topology.summary())?;
    let mut summary = fabric.watched(|fabric| {
        evidence::capture(fabric)?;
        let mut tour = Tour::new(fabric)?;
        tour.sessions()?;
        tour.attach()?;
        tour.routes_in_spines()?;
        tour.all_pairs()?;
        tour.restart()?;
        tour.kill()?;
        tour.service()?;
        tour.cut_uplink()?;
        tour.silent_tor()?;
        tour.link_faults()?;
        tour.withdraw()?;
        tour.load_balancer(kubernetes)?;
        let mut summary = tour.summary;
        let faults = summary.faults();
        if !faults.is_empty() {
            summary.evidence = Some(evidence::gather(fabric, &faults.join("\n"))?);
        }
        Ok(summary)
    })?;
    step("removing the fabric", || {
        drop(fabric);
        Ok(())
    })?;
    summary.wall_s = start.elapsed().as_secs_f64();
    Ok(summary)
}

struct Pod {
    sandbox: Sandbox,
    addresses: Vec<IpAddr>,
}

impl Pod {
    fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().map(|a| IpNet::from(*a))
    }
}

struct Tour<'a> {
    fabric: &'a Fabric,
    conf: Value,
    nodes: Vec<&'a str>,
    /// A route monitor in each spine, from before the first pod.
    spines: BTreeMap<&'a str, RouteMonitor>,
    pods: Vec<Pod>,
    summary: Summary,
}

impl<'a> Tour<'a> {
    fn new(fabric: &'a Fabric) -> Result<Self> {
        let spines = fabric.topology.with_role("spine");
        let spines = spines
            .map(|s| Ok((s, RouteMonitor::start(&fabric.host(s)?.ns)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        Ok(Self {
            fabric,
            conf: cni::trunkline(Some("global")),
            nodes: fabric.topology.with_role("node").collect(),
            spines,
            pods: Vec::new(),
            summary: Summary::default(),
        })
    }

    fn sessions(&self) -> Result<()> {
        let work = || {
            let mut sessions = 0;
            for node in &self.nodes {
                client::wait_answering(self.fabric.host(node)?)?;
                client::wait_established(self.fabric.host(node)?, PATIENCE)?;
                client::wait_bfd(self.fabric.host(node)?, PATIENCE)?;
            }
            for router in self.fabric.topology.with_role("tor").chain(self.fabric.topology.with_role("spine"))
            {
                sessions += routers::wait_sessions(self.fabric, router, PATIENCE)?;
                routers::wait_bfd(self.fabric, router, PATIENCE)?;
            }
            Ok(sessions)
        };
        step_with("BGP and BFD sessions of routers and nodes", work, |n| {
            format!("{n} session ends established, MD5 towards the nodes")
        })?;
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        let mut took = Vec::new();
        let mut until_spines = Vec::new();
        let work = || {
            for node in &self.nodes {
                for number in 1..=PODS_PER_NODE {
                    let sandbox = Sandbox::create(self.fabric, node, &format!("pod{number}"))?;
                    let attached = cni::add(self.fabric, &self.conf, &sandbox)?;
                    let pod = Pod { sandbox, addresses: attached.addresses };
                    ensure!(pod.addresses.len() == 2, "{} has {:?}", pod.sandbox.name, pod.addresses);
                    took.push(ms(attached.took));
                    let prefixes: Vec<IpNet> = pod.prefixes().collect();
                    for monitor in self.spines.values() {
                        for at in monitor.wait(&prefixes, true, PATIENCE)? {
                            until_spines.push(ms(at.saturating_duration_since(attached.started)));
                        }
                    }
                    self.pods.push(pod);
                }
            }
            Ok(())
        };
        step_with("three pods per node through the CNI plugin", work, |()| {
            format!("{} pods, two addresses each", self.nodes.len() * PODS_PER_NODE)
        })?;
        self.summary.attach_p50_ms = percentile(&took, 50.0);
        self.summary.attach_p99_ms = percentile(&took, 99.0);
        self.summary.fabric_p50_ms = percentile(&until_spines, 50.0);
        self.summary.fabric_p99_ms = percentile(&until_spines, 99.0);
        Ok(())
    }

    fn routes_in_spines(&mut self) -> Result<()> {
        let work = || {
            let mut found = 0;
            for spine in self.spines.keys() {
                let table = routers::kernel_routes(self.fabric.host(spine)?)?;
                found += self.pods.iter().flat_map(Pod::prefixes).filter(|p| table.contains(p)).count();
            }
            Ok(found)
        };
        let expected = self.pods.len() * 2 * self.spines.len();
        let words = |found: &usize| format!("{found} of {expected}");
        self.summary.spine_pod_routes = step_with("each pod's /32 and /128 in every spine", work, words)?;
        self.summary.spine_pod_routes_expected = expected;
        Ok(())
    }

    fn all_pairs(&mut self) -> Result<()> {
        let every = |_: &Pod| true;
        let flows = self.flows(every, every);
        let total = flows.len();
        let work = || unreachable(flows, Duration::from_secs(10));
        let words = |failed: &Vec<String>| match failed.as_slice() {
            [] => format!("{total} of {total}"),
            failed => format!("{} of {total}; not: {}", total - failed.len(), some(failed)),
        };
        let failed = step_with("ping between all pairs, IPv4 and IPv6", work, words)?;
        self.summary.pairs_total = total;
        self.summary.pairs_ok = total - failed.len();
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        let node = self.nodes[0];
        let title = format!("{node}'s agent stopped and started, pings every 5 ms");
        let (outcomes, routes) =
            step_with(&title, || self.through_restart(node, Signal::TERM), words_of_loss)?;
        self.summary.restart_lost_routes = routes;
        (self.summary.restart_sent_packets, self.summary.restart_lost_packets) = count(&outcomes);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let node = self.nodes[self.nodes.len() - 1];
        let title = format!("{node}'s agent killed (SIGKILL) and started");
        let (outcomes, routes) =
            step_with(&title, || self.through_restart(node, Signal::KILL), words_of_loss)?;
        self.summary.kill_lost_routes = routes;
        (self.summary.kill_sent_packets, self.summary.kill_lost_packets) = count(&outcomes);
        Ok(())
    }

    /// Ends an agent, starts it after two seconds, and waits for the earlier state. During all of
    /// this, its pods and a pod of every other node ping each other.
    fn through_restart(&self, node: &str, signal: Signal) -> Result<(Vec<FlowResult>, usize)> {
        let host = self.fabric.host(node)?;
        let own = client::peers(host)?;
        let sessions: Vec<(&str, String)> = self.tors_of(node)?;
        ensure!(sessions.len() == own.len(), "{node} has {} peers and {} ToRs", own.len(), sessions.len());
        let is_first = |p: &Pod| p.sandbox.name.ends_with("pod1") && p.sandbox.node != node;
        let mut pinger = Pinger::start(self.flows(|p| p.sandbox.node == node, is_first), INTERVAL)?;
        pinger.settle(PATIENCE)?;
        let routers = self.fabric.topology.with_role("tor").chain(self.fabric.topology.with_role("spine"));
        let monitors =
            routers.map(|r| RouteMonitor::start(&self.fabric.host(r)?.ns)).collect::<Result<Vec<_>>>()?;

        client::end_agent(host, signal)?;
        for (tor, address) in &sessions {
            routers::wait_neighbour(self.fabric.host(tor)?, address, false, PATIENCE)?;
        }
        pinger.wait_sent(AWAY, PATIENCE)?;

        client::start_agent(host)?;
        client::wait_established(host, PATIENCE)?;
        client::wait_bfd(host, PATIENCE)?;
        for (tor, address) in &sessions {
            routers::wait_neighbour(self.fabric.host(tor)?, address, true, PATIENCE)?;
            routers::wait_nothing_stale(self.fabric.host(tor)?, address, PATIENCE)?;
        }
        // The pings continue for one more second. By then the stale routes are removed, and a loss
        // through this would be visible.
        pinger.wait_sent(200, PATIENCE)?;
        let prefixes: Vec<IpNet> = self.pods.iter().flat_map(Pod::prefixes).collect();
        let lost_routes = monitors.iter().map(|m| m.removed(&prefixes).len()).sum();
        Ok((pinger.finish()?, lost_routes))
    }

    /// Cuts the busier uplink of a ToR. Every host of the lab hashes flows with the same key, so the
    /// flows that nodes send to one ToR may all leave it by one uplink.
    fn cut_uplink(&mut self) -> Result<()> {
        let tor = self.fabric.topology.with_role("tor").next().context("a ToR")?;
        let host = self.fabric.host(tor)?;
        let rack = |p: &Pod| self.rack(&p.sandbox.node) == self.rack(tor);
        let few = |p: &Pod| !p.sandbox.name.ends_with("pod3");
        let work = || {
            let mut pinger =
                Pinger::start(self.flows(|p| few(p) && rack(p), |p| few(p) && !rack(p)), INTERVAL)?;
            let before = UPLINKS.map(|uplink| packets(host, uplink));
            pinger.settle(PATIENCE)?;
            let mut carried = Vec::new();
            for (uplink, before) in UPLINKS.into_iter().zip(before) {
                carried.push((packets(host, uplink)? - before?, uplink));
            }
            let (most, uplink) = *carried.iter().max().context("an uplink")?;
            ensure!(most > 100, "no uplink of {tor} carries traffic: {carried:?}");
            let cut = Instant::now();
            host.ns.ip(["link", "set", uplink, "down"])?;
            pinger.wait_answers(200, PATIENCE)?;
            let outcomes = pinger.finish()?;
            host.ns.ip(["link", "set", uplink, "up"])?;
            let last_lost = outcomes.iter().flat_map(|o| &o.lost).max().copied();
            let recovery =
                last_lost.map_or(Duration::ZERO, |at| at.saturating_duration_since(cut) + INTERVAL);
            let lost: usize = outcomes.iter().map(|o| o.lost.len()).sum();
            routers::wait_sessions(self.fabric, tor, PATIENCE)?;
            Ok((ms(recovery), lost))
        };
        let title = format!("the uplink of {tor} with most packets cut");
        let words =
            |(recovery, lost): &(f64, usize)| format!("recovered in {recovery:.0} ms, {lost} packets lost");
        (self.summary.uplink_cut_recovery_ms, self.summary.uplink_cut_lost_packets) =
            step_with(&title, work, words)?;
        Ok(())
    }

    /// A ToR hangs: its links stay up, but it neither sends nor forwards packets.
    fn silent_tor(&mut self) -> Result<()> {
        let tor = self.fabric.topology.with_role("tor").last().context("a ToR")?;
        let host = self.fabric.host(tor)?;
        let nodes: Vec<&str> =
            self.nodes.iter().copied().filter(|node| self.rack(node) == self.rack(tor)).collect();
        let rack = |p: &Pod| self.rack(&p.sandbox.node) == self.rack(tor);
        let few = |p: &Pod| !p.sandbox.name.ends_with("pod3");
        let flows = || self.flows(|p| few(p) && rack(p), |p| few(p) && !rack(p));
        let work = || {
            let mut pinger = Pinger::start(flows(), INTERVAL)?;
            let before = packets(host, "rack")?;
            pinger.settle(PATIENCE)?;
            let carried = packets(host, "rack")? - before;
            ensure!(carried > 100, "the ToR for the failure carries no traffic ({carried} packets)");
            let detections = nodes.iter().map(|node| self.detections(node)).sum::<Result<u64>>()?;
            host.silence()?;
            pinger.wait_answers(200, PATIENCE)?;
            let outcomes = pinger.finish()?;
            let detected = nodes.iter().map(|node| self.detections(node)).sum::<Result<u64>>()? - detections;
            ensure!(detected == nodes.len() as u64, "BFD detected the fault on {detected} of {nodes:?}");
            let mut pinger = Pinger::start(flows(), INTERVAL)?;
            pinger.settle(PATIENCE)?;
            host.end_silence()?;
            routers::wait_sessions(self.fabric, tor, PATIENCE)?;
            routers::wait_bfd(self.fabric, tor, PATIENCE)?;
            for node in &nodes {
                client::wait_established(self.fabric.host(node)?, PATIENCE)?;
                client::wait_bfd(self.fabric.host(node)?, PATIENCE)?;
            }
            pinger.wait_sent(400, PATIENCE)?;
            let back = pinger.finish()?;
            let gap = outcomes.iter().map(|o| o.longest_gap).max().unwrap_or_default();
            Ok((ms(gap), count(&outcomes).1, count(&back).1))
        };
        let title = format!("{tor} silent, all its links up");
        let words = |(recovery, lost, back): &(f64, usize, usize)| {
            format!("recovered in {recovery:.0} ms, {lost} packets lost, {back} when it came back")
        };
        let (recovery, lost, back) = step_with(&title, work, words)?;
        self.summary.silent_tor_recovery_ms = recovery;
        self.summary.silent_tor_lost_packets = lost;
        self.summary.silent_tor_return_lost_packets = back;
        Ok(())
    }

    /// Failures that BFD on a node has detected.
    fn detections(&self, node: &str) -> Result<u64> {
        let peers = client::peers(self.fabric.host(node)?)?;
        Ok(peers.iter().filter_map(|peer| peer.bfd.as_ref()).map(|bfd| bfd.detections).sum())
    }

    fn withdraw(&mut self) -> Result<()> {
        let pod = self.pods.first().context("a pod")?;
        let prefixes: Vec<IpNet> = pod.prefixes().collect();
        let work = || {
            let start = Instant::now();
            cni::del(self.fabric, &self.conf, &pod.sandbox)?;
            let mut last = Duration::ZERO;
            for (spine, monitor) in &self.spines {
                for at in monitor.wait(&prefixes, false, PATIENCE)? {
                    last = last.max(at.saturating_duration_since(start));
                }
                let table = routers::kernel_routes(self.fabric.host(spine)?)?;
                ensure!(
                    !prefixes.iter().any(|p| table.contains(p)),
                    "{spine} still has a route of the deleted pod"
                );
            }
            Ok(ms(last))
        };
        let title = format!("{} deleted, its routes gone from both spines", pod.sandbox.name);
        self.summary.withdraw_ms = step_with(&title, work, |t| format!("{t:.1} ms after the start of DEL"))?;
        Ok(())
    }

    /// Flows of both families from each pod of one group to each pod of another.
    fn flows(&self, from: impl Fn(&Pod) -> bool, to: impl Fn(&Pod) -> bool) -> Vec<Flow> {
        let mut flows = Vec::new();
        for source in self.pods.iter().filter(|p| from(p)) {
            for target in self.pods.iter().filter(|p| to(p) && p.sandbox.name != source.sandbox.name) {
                for address in &target.addresses {
                    flows.push(Flow {
                        name: format!("{} to {} ({address})", source.sandbox.name, target.sandbox.name),
                        from: source.sandbox.ns.clone(),
                        to: *address,
                    });
                }
            }
        }
        flows
    }

    fn rack(&self, node: &str) -> Option<&str> {
        self.fabric.topology.nodes.get(node)?.labels.get("rack").map(String::as_str)
    }

    /// The ToRs of a node's rack, and the address under which each knows the node.
    fn tors_of(&self, node: &'a str) -> Result<Vec<(&'a str, String)>> {
        let mut found = Vec::new();
        for tor in self.fabric.topology.with_role("tor").filter(|t| self.rack(t) == self.rack(node)) {
            let summary =
                crate::daemons::vtysh_json(self.fabric.host(tor)?, "show bgp ipv4 unicast summary json")?;
            let peers = summary["peers"].as_object().context("no peers")?;
            found.extend(
                peers.iter().filter(|(_, p)| p["desc"] == node).map(|(address, _)| (tor, address.clone())),
            );
        }
        Ok(found)
    }
}

/// Packets that an interface has sent and received.
fn packets(host: &crate::host::Host, interface: &str) -> Result<u64> {
    let text = host.run("ip", ["-j", "-s", "link", "show", interface])?;
    let links: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let count = |direction: &str| links[0]["stats64"][direction]["packets"].as_u64();
    count("rx").zip(count("tx")).map(|(rx, tx)| rx + tx).with_context(|| format!("no counters in {text}"))
}

fn count(outcomes: &[FlowResult]) -> (usize, usize) {
    (outcomes.iter().map(|o| o.sent).sum(), outcomes.iter().map(|o| o.lost.len()).sum())
}

fn words_of_loss((outcomes, routes): &(Vec<FlowResult>, usize)) -> String {
    let (sent, lost) = count(outcomes);
    let slowest = outcomes.iter().map(|o| o.slowest).max().unwrap_or_default();
    let of: Vec<&str> = outcomes.iter().filter(|o| !o.lost.is_empty()).map(|o| o.name.as_str()).collect();
    let which = if of.is_empty() { String::new() } else { format!(": {}", some(&of)) };
    format!("{lost} of {sent} lost, {routes} routes lost, slowest {}{which}", seconds(slowest.as_secs_f64()))
}

pub(crate) fn ms(d: Duration) -> f64 {
    // The figure is rounded to a microsecond, because further digits would have no meaning.
    (d.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        Summary {
            pairs_total: 264,
            pairs_ok: 264,
            spine_pod_routes: 48,
            spine_pod_routes_expected: 48,
            restart_sent_packets: 9000,
            kill_sent_packets: 9000,
            service_spine_routes: 4,
            service_spine_routes_expected: 4,
            service_restart_connections: 1000,
            link_faults: vec![FaultImpact::default(); LINK_FAULTS],
            load_balancer: Some(LoadBalancer {
                spine_routes: 4,
                spine_routes_expected: 4,
                end_connections: 1000,
                restart_connections: 1000,
                ..LoadBalancer::default()
            }),
            ..Summary::default()
        }
    }

    fn load_balancer(summary: &mut Summary) -> &mut LoadBalancer {
        summary.load_balancer.as_mut().expect("a Service")
    }

    /// Without the programs of Kubernetes the tour shows no Service, which breaks no promise.
    #[test]
    fn a_tour_without_a_service_has_no_fault() {
        assert!(Summary { load_balancer: None, ..good() }.faults().is_empty());
    }

    /// Scripts read these names.
    #[test]
    fn the_json_has_the_promised_keys() {
        let json = serde_json::to_value(good()).expect("json");
        for key in [
            "pairs_total",
            "pairs_ok",
            "spine_pod_routes",
            "restart_lost_packets",
            "kill_lost_packets",
            "uplink_cut_recovery_ms",
            "silent_tor_recovery_ms",
            "withdraw_ms",
            "service_spine_routes",
            "service_death_recovery_ms",
            "service_restart_failed_connections",
            "attach_p50_ms",
            "attach_p99_ms",
            "wall_s",
        ] {
            assert!(json[key].is_number(), "{key}");
        }
        assert!(json["load_balancer"]["restart_failed_connections"].is_number(), "{json}");
        let fault = &json["link_faults"][0];
        assert!(fault["fault"].is_string() && fault["flows"].is_array(), "{fault}");
    }

    #[test]
    fn every_broken_promise_is_a_fault() {
        assert!(good().faults().is_empty());
        let spoil: [fn(&mut Summary); 16] = [
            |s| s.pairs_ok -= 1,
            |s| s.spine_pod_routes -= 1,
            |s| s.restart_lost_packets = 1,
            |s| s.kill_lost_packets = 1,
            |s| s.kill_lost_routes = 1,
            // Without requests, no promise is shown.
            |s| s.restart_sent_packets = 0,
            |s| s.pairs_total = 0,
            |s| s.service_spine_routes = 3,
            |s| s.service_restart_failed_connections = 1,
            |s| s.service_restart_lost_routes = 1,
            |s| drop(s.link_faults.pop()),
            |s| load_balancer(s).spine_routes = 3,
            |s| load_balancer(s).end_failed_connections = 1,
            |s| load_balancer(s).restart_failed_connections = 1,
            |s| load_balancer(s).restart_lost_routes = 1,
            |s| load_balancer(s).restart_connections = 0,
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let mut summary = good();
            spoil(&mut summary);
            assert_eq!(summary.faults().len(), 1, "{i}");
        }
    }
}
