//! Faults between one node and one router of its rack, and the packet loss of pods' flows. The demo
//! shows three of the faults, and `failover/*` tests all of them.
//!
//! ```text
//!  begin ─► detected ─► 200 requests, then 200 answers in a row per flow ─► messages ─► end ─► sessions and BFD back
//!           └──────────────── one request per flow and interval throughout ─────────────┘
//! ```
//!
//! The lab is `two-racks`. The fault is on node1a's link to tor1b (node1a:eth2, tor1b:eth3) unless
//! its name has another place.

mod list;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde::Serialize;

pub(crate) use list::{CABLE_CUT, CROSSED, LINK_FAULTS, NODE_FAULTS, PODS_REFUSED, ROUTER_FAULTS, SILENT};

use crate::cni::{self, Sandbox};
use crate::fabric::Fabric;
use crate::netns::Namespace;
use crate::pinger::{Flow, FlowResult, Pinger};
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

/// The node that has the fault.
const NODE: &str = "node1a";
/// The node that gets packets for the pods of [`NODE`] by mistake.
const NEIGHBOUR: &str = "node1b";
const INTERVAL: Duration = Duration::from_millis(5);
/// Requests on each flow during the fault, and then consecutive answers that each flow must have.
/// Each takes one second.
const REQUESTS: usize = 200;

/// A fault, and its permitted loss.
#[derive(Debug)]
pub(crate) struct Fault {
    pub name: &'static str,
    pub begin: &'static [Action],
    pub end: &'static [Action],
    pub notice: FaultSignal,
    pub cost: Cost,
}

/// One step of a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// A command line on a host.
    Shell(&'static str, &'static str),
    /// Ends the agent of a node (SIGTERM).
    StopAgent(&'static str),
    /// Starts the agent of a node.
    StartAgent(&'static str),
}

/// The effect of a fault that the test awaits before it checks the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultSignal {
    /// A session of [`NODE`] ends, or [`NEIGHBOUR`] forwards by an alternate path.
    SessionOrAlternate,
    /// The test awaits no effect.
    Nothing,
}

/// The permitted loss of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// All flows recover during the fault.
    UntilDetected,
    /// No request is lost.
    Nothing,
    /// The node does not forward: no other path exists for its pods' traffic during the fault.
    WhileItStands,
}

/// A pod with its place in the results.
#[derive(Debug, Clone)]
pub(crate) struct PodEndpoint {
    /// `rack` for a pod of a BGP network, `global` for a pod of the GlobalBGP network.
    pub kind: &'static str,
    pub name: String,
    pub ns: Namespace,
    pub addresses: Vec<IpAddr>,
}

impl PodEndpoint {
    /// Makes a pod in a network of two-racks and attaches it.
    pub(crate) fn attach(fabric: &Fabric, node: &str, kind: &'static str, name: &str) -> Result<PodEndpoint> {
        let network = match (kind, node.starts_with("node1")) {
            ("global", _) => "global",
            (_, true) => "rack1",
            (_, false) => "rack2",
        };
        let sandbox = Sandbox::create(fabric, node, name)?;
        let attached = cni::add(fabric, &cni::trunkline(Some(network)), &sandbox)?;
        Ok(PodEndpoint {
            kind,
            name: format!("{name} on {node}"),
            ns: sandbox.ns.clone(),
            addresses: attached.addresses,
        })
    }
}

/// The loss of one kind of flows.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Loss {
    /// The kind of the pods at the fault: `rack` or `global`.
    pub pods: String,
    /// `to` the pods at the fault, or `from` them.
    pub direction: String,
    pub sent_packets: usize,
    pub lost_packets: usize,
    /// The worst flow's longest time without an answer.
    pub longest_gap_ms: f64,
}

/// The measured effect of a fault.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FaultImpact {
    pub fault: &'static str,
    pub flows: Vec<Loss>,
    /// Lost packets of all flows while the fault ends and the link or the router returns.
    pub end_lost_packets: usize,
    /// Findings of `trunkline doctor` on the node during the fault.
    #[serde(skip)]
    pub doctor: String,
}

impl FaultImpact {
    pub(crate) fn lost(&self) -> usize {
        self.flows.iter().map(|flow| flow.lost_packets).sum()
    }

    pub(crate) fn gap_ms(&self) -> f64 {
        self.flows.iter().map(|flow| flow.longest_gap_ms).fold(0.0, f64::max)
    }

    /// Each kind of flow: lost packets and the longest gap.
    pub(crate) fn words(&self) -> String {
        let words = |flow: &Loss| {
            let Loss { pods, direction, sent_packets, lost_packets, longest_gap_ms } = flow;
            format!("{direction} {pods} pods {lost_packets} of {sent_packets}, {longest_gap_ms:.0} ms")
        };
        let while_it_stands = self.flows.iter().map(words).collect::<Vec<_>>().join("; ");
        format!("{while_it_stands}; {} when it ended", self.end_lost_packets)
    }
}

/// Both directions of each pair, in each family. A flow has the kind of its pod at the fault.
pub(crate) fn flows(inside: &[PodEndpoint], others: &[PodEndpoint]) -> Vec<Flow> {
    let one = |kind: String, from: &PodEndpoint, to: &PodEndpoint| -> Vec<Flow> {
        let flow = |address| Flow {
            name: format!("{kind}: {} to {} {address}", from.name, to.name),
            from: from.ns.clone(),
            to: address,
        };
        to.addresses.iter().copied().map(flow).collect()
    };
    let both = |pod: &PodEndpoint, other: &PodEndpoint| {
        let inbound = one(format!("{} to", pod.kind), other, pod);
        let outbound = one(format!("{} from", pod.kind), pod, other);
        [inbound, outbound].concat()
    };
    inside.iter().flat_map(|pod| others.iter().flat_map(move |other| both(pod, other))).collect()
}

fn losses(outcomes: &[FlowResult]) -> Vec<Loss> {
    let mut kinds: BTreeMap<&str, Loss> = BTreeMap::new();
    for outcome in outcomes {
        let kind = outcome.name.split(": ").next().unwrap_or_default();
        let loss = kinds.entry(kind).or_default();
        if let Some((pods, direction)) = kind.split_once(' ') {
            (loss.pods, loss.direction) = (pods.to_owned(), direction.to_owned());
        }
        loss.sent_packets += outcome.sent;
        loss.lost_packets += outcome.lost.len();
        loss.longest_gap_ms = loss.longest_gap_ms.max(crate::demo::ms(outcome.longest_gap));
    }
    kinds.into_values().collect()
}

/// Packets that the neighbour has forwarded by an alternate path.
pub(crate) fn forwarded(fabric: &Fabric) -> Result<u64> {
    Ok(client::status(fabric.host(NEIGHBOUR)?)?.alternate_paths.context("no alternate paths")?.forwarded)
}

/// Waits until a node notices the fault.
fn noticed(fabric: &Fabric, fault: &Fault, before: u64, patience: Duration) -> Result<()> {
    if fault.notice == FaultSignal::Nothing {
        return Ok(());
    }
    wait_for(&format!("a node to notice: {}", fault.name), patience, || {
        let down = client::peers(fabric.host(NODE)?)?.iter().any(|peer| !peer.is_established());
        let noticed = down || forwarded(fabric)? > before;
        Ok(Seen::when(noticed, || "all sessions are Established".to_owned()))
    })
}

fn act(fabric: &Fabric, fault: &Fault, actions: &[Action]) -> Result<()> {
    for action in actions {
        match *action {
            Action::Shell(place, line) => fabric.host(place)?.sh(line).map(drop),
            Action::StopAgent(node) => client::end_agent(fabric.host(node)?, Signal::TERM),
            Action::StartAgent(node) => client::start_agent(fabric.host(node)?),
        }
        .with_context(|| format!("{}: {action:?}", fault.name))?;
    }
    Ok(())
}

/// Begins a fault.
pub(crate) fn begin(fabric: &Fabric, fault: &Fault) -> Result<()> {
    act(fabric, fault, fault.begin)
}

/// Ends a fault.
pub(crate) fn end(fabric: &Fabric, fault: &Fault) -> Result<()> {
    act(fabric, fault, fault.end)
}

/// Waits until the rack's BGP and BFD sessions are up on both sides.
pub(crate) fn settled(fabric: &Fabric, patience: Duration) -> Result<()> {
    for node in [NODE, NEIGHBOUR] {
        client::wait_established(fabric.host(node)?, patience)?;
        client::wait_bfd(fabric.host(node)?, patience)?;
    }
    for tor in ["tor1a", "tor1b"] {
        routers::wait_sessions(fabric, tor, patience)?;
        routers::wait_bfd(fabric, tor, patience)?;
    }
    Ok(())
}

/// Ends a fault, and waits until the previous state is restored.
fn mended(fabric: &Fabric, fault: &Fault, patience: Duration) -> Result<()> {
    end(fabric, fault)?;
    settled(fabric, patience).with_context(|| format!("after: {}", fault.name))
}

/// Runs one fault under traffic between the pods at the fault and others, and ends it.
pub(crate) fn suffer(
    fabric: &Fabric,
    fault: &Fault,
    inside: &[PodEndpoint],
    others: &[PodEndpoint],
    patience: Duration,
) -> Result<FaultImpact> {
    let mut pinger = Pinger::start(flows(inside, others), INTERVAL)?;
    pinger.settle(patience)?;
    let before = forwarded(fabric)?;
    begin(fabric, fault)?;
    noticed(fabric, fault, before, patience)?;
    pinger.wait_sent(REQUESTS, patience)?;
    let reached = match fault.cost {
        Cost::WhileItStands => Ok(()),
        Cost::UntilDetected | Cost::Nothing => pinger.wait_answers(REQUESTS, patience),
    };
    let outcomes = pinger.finish()?;
    // The doctor reports findings by its exit code too.
    let doctor = fabric.host(NODE)?.sh("trunkline doctor 2>&1 || :")?;
    reached.with_context(|| format!("{}, while it lasts", fault.name))?;
    let end_lost_packets = match fault.cost {
        Cost::WhileItStands => mended(fabric, fault, patience).map(|()| 0)?,
        Cost::UntilDetected | Cost::Nothing => {
            let mut pinger = Pinger::start(flows(inside, others), INTERVAL)?;
            pinger.settle(patience)?;
            mended(fabric, fault, patience)?;
            pinger.wait_sent(REQUESTS, patience)?;
            pinger.finish()?.iter().map(|outcome| outcome.lost.len()).sum()
        }
    };
    let suffered = FaultImpact { fault: fault.name, flows: losses(&outcomes), end_lost_packets, doctor };
    ensure!(fault.cost != Cost::Nothing || suffered.lost() == 0, "{}: {}", fault.name, suffered.words());
    Ok(suffered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(kind: &'static str, name: &str, addresses: &[&str]) -> PodEndpoint {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        PodEndpoint { kind, name: name.to_owned(), ns: Namespace::named(name), addresses }
    }

    #[test]
    fn each_pair_has_both_directions_and_families() {
        let inside = [end("rack", "a", &["10.0.0.1", "fd00::1"])];
        let others = [end("global", "b", &["10.0.0.2", "fd00::2"])];
        let names: Vec<String> = flows(&inside, &others).into_iter().map(|flow| flow.name).collect();
        assert_eq!(
            names,
            [
                "rack to: b to a 10.0.0.1",
                "rack to: b to a fd00::1",
                "rack from: a to b 10.0.0.2",
                "rack from: a to b fd00::2"
            ]
        );
    }

    #[test]
    fn losses_are_summed_by_kind_and_direction() {
        let outcome = |name: &str, lost: usize, gap: u64| FlowResult {
            name: name.to_owned(),
            sent: 100,
            lost: vec![std::time::Instant::now(); lost],
            slowest: Duration::ZERO,
            longest_gap: Duration::from_millis(gap),
        };
        let found = losses(&[
            outcome("rack to: b to a 10.0.0.1", 2, 10),
            outcome("rack to: b to a fd00::1", 3, 15),
            outcome("rack from: a to b 10.0.0.2", 0, 0),
        ]);
        let suffered = FaultImpact { fault: "x", flows: found, end_lost_packets: 3, doctor: String::new() };
        assert_eq!(
            suffered.words(),
            "from rack pods 0 of 100, 0 ms; to rack pods 5 of 200, 15 ms; 3 when it ended"
        );
        assert_eq!((suffered.lost(), suffered.gap_ms()), (5, 15.0));
    }
}
