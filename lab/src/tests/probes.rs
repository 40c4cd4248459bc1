//! Faults between a node and a ToR that no session shows: probes name each one, and with failover,
//! traffic uses the other ToR.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::{Event, EventKind, Events, ProbeFaultKind, ProbeState, ProbedRouter};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Attached, Sandbox};
use crate::host::Host;
use crate::link_faults::{self, PODS_REFUSED};
use crate::progress::say;
use crate::shell::{Seen, cmd, run, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "probes/faults",
        about: "an MTU that is too small, rejected pods' routes and a copied BGP identifier on one \
                ToR: status, doctor, events and metrics name each fault; with failover, large \
                packets pass",
        run: faults,
    },
    Test {
        name: "probes/cost",
        about: "the cost of probes through two uplinks: processor time over 20 seconds with and without probes",
        run: cost,
    },
];

const NODE: &str = "node1a";
const TOR: &str = "tor1b";
const PEER: &str = "10.12.0.1";
const SMALL_MTU: &str = "ip link set eth3 mtu 1400";
const MTU: &str = "ip link set eth3 mtu 1500";
const LARGE: &str = "1450";

fn faults(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        for node in bed.fabric.topology.with_role("node") {
            client::wait_established(bed.host(node)?, PATIENCE)?;
        }
        let here = pods(bed, &[(NODE, "rack1"), (NODE, "rack1"), (NODE, "global")])?;
        let there = pods(
            bed,
            &[("node1b", "rack1"), ("node2a", "rack2"), ("node2a", "global"), ("node2b", "rack2")],
        )?;
        let node = bed.host(NODE)?;
        good(node)?;
        let mut lines = vec![
            named(bed, "MTU 1400 on the ToR", SMALL_MTU, ProbeFaultKind::Size)?,
            {
                let lost = lost(&here, &there);
                ensure!(!lost.is_empty(), "no flow of large packets passes {TOR}");
                format!("{} flows of large packets lost without failover", lost.len())
            },
            ended(bed, MTU)?,
            named_when(
                bed,
                PODS_REFUSED.name,
                || link_faults::begin(bed.fabric, &PODS_REFUSED),
                ProbeFaultKind::ToPods,
            )?,
            ended_when(bed, || link_faults::end(bed.fabric, &PODS_REFUSED))?,
            duplicate(bed)?,
        ];
        configure(node, "probes: {failover: true}")?;
        good(node)?;
        lines.push(named(bed, "MTU 1400 on the ToR, with failover", SMALL_MTU, ProbeFaultKind::Size)?);
        wait_for("large packets to pass", PATIENCE, || {
            let lost = lost(&here, &there);
            Ok(Seen::when(lost.is_empty(), || format!("lost: {lost:?}")))
        })?;
        let left_out: Vec<bool> = routers(node)?.iter().map(|router| router.left_out).collect();
        ensure!(left_out.contains(&true) && left_out.contains(&false), "left out: {left_out:?}");
        lines.push(ended(bed, MTU)?);
        passed(lines.join("; "))
    })
}

fn pods(bed: &Bed<'_>, placed: &[(&str, &str)]) -> Result<Vec<(Sandbox, Attached)>> {
    let pod = |(index, (node, network)): (usize, &(&str, &str))| {
        let sandbox = Sandbox::create(bed.fabric, node, &format!("{network}{index}"))?;
        let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &sandbox)?;
        Ok((sandbox, attached))
    };
    placed.iter().enumerate().map(pod).collect()
}

fn routers(node: &Host) -> Result<Vec<ProbedRouter>> {
    Ok(client::status(node)?.probes.context("no probes are sent")?.routers)
}

/// Waits until each check of both ToRs in both families passes.
fn good(node: &Host) -> Result<()> {
    wait_for(&format!("all probes of {} to pass", node.name), PATIENCE, || {
        let routers = routers(node)?;
        let is_good = |router: &ProbedRouter| {
            let passes = |name: &str| {
                router.checks.iter().any(|check| check.name == name && check.state == ProbeState::Good)
            };
            router.faults.is_empty() && ["peer", "toPods", "fromPods", "size"].into_iter().all(passes)
        };
        Ok(Seen::when(routers.len() == 4 && routers.iter().all(is_good), || format!("{routers:?}")))
    })
}

fn events(node: &Host) -> Result<Vec<Event>> {
    Ok(client::ask::<Events>(node, &["events"])?.events)
}

/// Injects a fault on the ToR, and waits until all outputs for operators name the fault. Returns
/// the duration, and the words.
fn named(bed: &Bed<'_>, what: &str, command: &str, kind: ProbeFaultKind) -> Result<String> {
    named_when(bed, what, || bed.host(TOR)?.sh(command).map(drop), kind)
}

fn named_when(
    bed: &Bed<'_>,
    what: &str,
    begin: impl FnOnce() -> Result<()>,
    kind: ProbeFaultKind,
) -> Result<String> {
    let node = bed.host(NODE)?;
    let before = events(node)?.last().map_or(0, |event| event.number);
    let began = Instant::now();
    begin().with_context(|| what.to_owned())?;
    let text = wait_for(&format!("{what}: its name"), PATIENCE, || {
        let routers = routers(node)?;
        let fault = routers
            .iter()
            .filter(|router| router.peer == PEER)
            .flat_map(|router| &router.faults)
            .find(|fault| fault.kind == kind);
        Ok(match fault {
            Some(fault) => Seen::Yes(fault.text.clone()),
            None => Seen::NotYet(format!("{routers:?}")),
        })
    })?;
    let took = began.elapsed();
    let peers = client::peers(node)?;
    ensure!(peers.iter().all(|peer| peer.is_established()), "{what}: a session shows the fault");
    let recorded = |event: &Event| {
        event.number > before && event.kind == EventKind::ProbeFailing && event.peer.as_deref() == Some(PEER)
    };
    ensure!(events(node)?.iter().any(recorded), "{what}: no event");
    let doctor = node.sh("trunkline doctor || true")?;
    ensure!(doctor.contains(&text), "{what}: doctor prints {doctor}");
    let series = format!("peer=\"{PEER}\"");
    let is_there = |line: &str| {
        line.starts_with("trunkline_probe_fault{")
            && line.contains(&series)
            && line.contains(&format!("fault=\"{}\"", kind.name()))
            && line.ends_with(" 1")
    };
    ensure!(client::metrics(node)?.lines().any(is_there), "{what}: no metric");
    say(&format!("      {what}: detected after {} ms: {text}", took.as_millis()));
    Ok(format!("{what}: detected after {} ms: {text}", took.as_millis()))
}

/// Repairs the ToR, and waits until no fault is left.
fn ended(bed: &Bed<'_>, command: &str) -> Result<String> {
    ended_when(bed, || bed.host(TOR)?.sh(command).map(drop))
}

fn ended_when(bed: &Bed<'_>, end: impl FnOnce() -> Result<()>) -> Result<String> {
    end()?;
    let began = Instant::now();
    good(bed.host(NODE)?)?;
    Ok(format!("good again after {} ms", began.elapsed().as_millis()))
}

/// Gives the ToR the other ToR's BGP identifier, and then restores its own.
fn duplicate(bed: &Bed<'_>) -> Result<String> {
    let (node, tor) = (bed.host(NODE)?, bed.host(TOR)?);
    let identify = |identifier: &str| {
        tor.sh(&format!(
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'bgp router-id {identifier}'"
        ))
    };
    let duplicates =
        || Ok::<_, anyhow::Error>(client::status(node)?.bgp.context("no BGP")?.duplicate_identifiers);
    let began = Instant::now();
    identify("10.0.0.11")?;
    let text = wait_for("the duplicate identifier", PATIENCE, || {
        Ok(match duplicates()?.pop() {
            Some(duplicate) => Seen::Yes(duplicate.text),
            None => Seen::NotYet("none".to_owned()),
        })
    })?;
    let took = began.elapsed();
    wait_for("its event", PATIENCE, || {
        let recorded = events(node)?.iter().any(|event| event.kind == EventKind::DuplicateIdentifier);
        Ok(Seen::when(recorded, || "none".to_owned()))
    })?;
    ensure!(node.sh("trunkline doctor || true")?.contains(&text), "doctor does not print: {text}");
    let metrics = client::metrics(node)?;
    ensure!(metrics.lines().any(|line| line == "trunkline_bgp_duplicate_identifiers 1"), "no metric");
    identify("10.0.0.12")?;
    wait_for("the end of the duplicate identifier", PATIENCE, || {
        Ok(Seen::when(duplicates()?.is_empty(), || "not yet".to_owned()))
    })?;
    client::wait_established(node, PATIENCE)?;
    good(node)?;
    let line = format!("duplicate router ID: detected after {} ms: {text}", took.as_millis());
    say(&format!("      {line}"));
    Ok(line)
}

/// Flows without an answer to a large packet with Don't Fragment.
fn lost(here: &[(Sandbox, Attached)], there: &[(Sandbox, Attached)]) -> Vec<String> {
    let mut pings = Vec::new();
    for (pod, attached) in here {
        for to in there.iter().flat_map(|(_, attached)| &attached.addresses) {
            let same = attached.addresses.iter().any(|address| address.is_ipv4() == to.is_ipv4());
            if same {
                pings.push((pod, to.to_string()));
            }
        }
    }
    std::thread::scope(|scope| {
        let ping = |(pod, to): (&Sandbox, String)| {
            let ns = pod.ns.clone();
            scope.spawn(move || {
                // From the first packets, routers and senders learn the MTU of the return path.
                let args = ["-M", "do", "-s", LARGE, "-c", "4", "-i", "0.2", "-W", "1", "-q", to.as_str()];
                let answered = ns.within(|| run(&mut cmd("ping", args)));
                answered.is_err().then(|| format!("{} to {to}", ns.name()))
            })
        };
        let threads: Vec<_> = pings.into_iter().map(ping).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// Starts the agent again with one more line in its configuration.
fn configure(node: &Host, line: &str) -> Result<()> {
    node.sh(&format!(
        "sed -i '/^probes:/d' /etc/trunkline/agent.yaml; echo '{line}' >>/etc/trunkline/agent.yaml"
    ))?;
    client::end_agent(node, Signal::TERM)?;
    client::start_agent(node)?;
    client::wait_established(node, PATIENCE)
}

/// The duration of the measurement.
const COUNTED: Duration = Duration::from_secs(20);

fn cost(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        let node = bed.host(NODE)?;
        client::wait_established(node, PATIENCE)?;
        let _pods = pods(bed, &[(NODE, "rack1"), (NODE, "rack1")])?;
        good(node)?;
        let with = used(node)?;
        let routers = routers(node)?;
        let sent: u64 = routers.iter().flat_map(|router| &router.checks).map(|check| check.sent).sum();
        configure(node, "probes: {enabled: false}")?;
        std::thread::sleep(Duration::from_secs(5));
        let without = used(node)?;
        let percent = |ticks: u64| ticks as f64 / COUNTED.as_secs_f64();
        passed(format!(
            "{:.2} % of a core with probes ({sent} sent by {} paths), {:.2} % without",
            percent(with),
            routers.len(),
            percent(without)
        ))
    })
}

/// Hundredths of a second of processor time that the agent uses during the measurement.
fn used(node: &Host) -> Result<u64> {
    let pid = client::agent(node)?;
    let ticks = || -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
        let (_, rest) = stat.rsplit_once(')').context("a process without a name")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    let before = ticks()?;
    std::thread::sleep(COUNTED);
    Ok(ticks()? - before)
}
