//! A node of a Local Service dies without a word, under short connections from outside of the
//! fabric, through two ToRs with BFD of 50 ms x 3.
//!
//! The links of the node stay up and carry no packet, and every process of the node is stopped. So
//! the programs of its pods are out of reach, nothing closes a session, and nothing withdraws a
//! route: the ToRs find the death by BFD alone. Until then they send their part of the connections
//! to the node, and these are lost.
//!
//! The test captures the links to the node. A connection may fail only if a ToR sent it to the node,
//! or if it was open while a ToR distributed its flows anew (see [`super::rolling`]).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use super::local_service::{self, Changes, LocalService, NODES, TORS};
use super::{Test, Verdict};
use crate::capture::Capture;
use crate::client;
use crate::connections::{Attempt, Outcome};
use crate::daemons::vtysh;
use crate::kube::Cluster;
use crate::routers;
use crate::tests::bed::{Bed, PATIENCE};
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "service-addresses/node-death",
    about: "a node of a Local Service falls silent: with BFD in both ToRs, only connections to this node are lost, \
            and only until the ToRs know",
    run: |context| local_service::run(context, "service-node-death", prepare, die),
};

/// The node that dies, and its port of each ToR.
const DEAD: &str = "node2";
const PORT_OF_TOR: &str = "eth2";
/// The AS number of each ToR, and its address for the nodes.
const PEERS: [(u32, &str); 2] = [(65001, "10.1.0.1"), (65002, "10.2.0.1")];

/// Clients. One that waits for the dead node's answer is busy for a second.
const CLIENTS: usize = 24;

/// Connections before the death, and after the ToRs know.
const BEFORE: usize = 1000;
const AFTER: usize = 1000;

/// Configures BFD in the Network and in the ToRs.
fn prepare(cluster: &Cluster, bed: &Bed<'_>) -> Result<()> {
    let bfd = json!({ "intervalMilliseconds": 50, "multiplier": 3 });
    let peers = PEERS.map(|(asn, address)| json!({ "asn": asn, "address": address, "bfd": bfd }));
    let patch = json!({ "spec": { "config": { "bgpPeers": peers } } }).to_string();
    cluster.kubectl(["patch", "network", "rack1", "--type=merge", "-p", &patch])?;
    for (tor, (asn, _)) in TORS.into_iter().zip(PEERS) {
        let fast = ["profile FAST", "detect-multiplier 3", "receive-interval 50", "transmit-interval 50"];
        vtysh(bed.host(tor)?, &[&["configure", "bfd"], &fast[..]].concat())?;
        let router = format!("router bgp {asn}");
        vtysh(bed.host(tor)?, &["configure", &router, "neighbor NODES bfd profile FAST"])?;
    }
    Ok(())
}

fn die(service: &mut LocalService<'_>) -> Result<Verdict> {
    let bed = service.bed();
    for node in NODES {
        client::wait_bfd(bed.host(node)?, PATIENCE)?;
    }
    for tor in TORS {
        routers::wait_bfd(bed.fabric, tor, PATIENCE)?;
    }
    let captures = TORS.map(|tor| Capture::start(&bed.host(tor)?.ns, PORT_OF_TOR, "tcp dst port 80"));
    let captures = captures.into_iter().collect::<Result<Vec<_>>>()?;
    let monitors = service.monitors()?;
    let clients = service.connect(CLIENTS)?;
    clients.wait_count(BEFORE, PATIENCE)?;

    let died = Instant::now();
    silence(bed)?;
    service.wait_next_hops(&NODES.into_iter().filter(|node| is_left(node)).collect::<Vec<_>>())?;
    let known = Instant::now();
    clients.wait_more(AFTER, PATIENCE)?;
    let attempts = clients.end();
    let sent = to_dead_node(&captures);
    judge(&attempts, &Changes::of(&monitors), &sent, died, known)
}

/// Whether a node still has a replica.
fn is_left(node: &str) -> bool {
    NODES[..3].contains(&node) && node != DEAD
}

/// Drops the packets of both links in both directions, and stops every process of the node.
fn silence(bed: &Bed<'_>) -> Result<()> {
    let drop = |ports: &[&str]| {
        let chain = |port: &&str| {
            format!("chain {port} {{ type filter hook ingress device {port} priority -500; policy drop; }}; ")
        };
        format!("nft 'table netdev silence {{ {} }}'", ports.iter().map(chain).collect::<String>())
    };
    let node = bed.host(DEAD)?;
    node.sh(&drop(&["eth1", "eth2"]))?;
    for tor in TORS {
        bed.host(tor)?.sh(&drop(&[PORT_OF_TOR]))?;
    }
    let stopped = node.ns.pids();
    for pid in &stopped {
        kill_process(*pid, Signal::STOP).with_context(|| format!("{DEAD}: SIGSTOP of {pid:?}"))?;
    }
    Ok(())
}

/// The destination and the source port of each connection that a ToR sent to the node.
fn to_dead_node(captures: &[Capture]) -> BTreeSet<(IpAddr, u16)> {
    // … 192.0.2.10.10003 > 203.0.113.1.80: Flags [S], …
    let connection = |line: &String| {
        let (from, rest) = line.rsplit_once(" > ")?;
        let (to, flags) = rest.split_once(": ")?;
        let (to, _) = flags.starts_with("Flags [S]").then(|| to.rsplit_once('.'))??;
        let (_, port) = from.rsplit_once('.')?;
        Some((to.parse().ok()?, port.parse().ok()?))
    };
    captures
        .iter()
        .flat_map(|capture| capture.seen().iter().filter_map(connection).collect::<Vec<_>>())
        .collect()
}

/// Fails if a connection was lost that no ToR sent to the dead node, or that began when the ToRs
/// knew.
fn judge(
    attempts: &[Attempt],
    changes: &Changes,
    sent: &BTreeSet<(IpAddr, u16)>,
    died: Instant,
    known: Instant,
) -> Result<Verdict> {
    let is_sent = |attempt: &Attempt| sent.contains(&(attempt.to.ip(), attempt.port));
    let used = attempts.iter().filter(|attempt| attempt.ended < died && is_sent(attempt)).count();
    ensure!(used > 0, "no connection used {DEAD} before its death");
    let failed: Vec<&Attempt> =
        attempts.iter().filter(|attempt| attempt.outcome != Outcome::Served).collect();
    let (lost, others): (Vec<&Attempt>, Vec<&Attempt>) =
        failed.into_iter().partition(|attempt| is_sent(attempt) && attempt.ended > died);
    let (moved, wrong): (Vec<&Attempt>, Vec<&Attempt>) = others.into_iter().partition(|attempt| {
        changes.has_moved(attempt) && matches!(attempt.outcome, Outcome::Reset | Outcome::TimedOut)
    });
    let list = |attempts: &[&Attempt]| {
        attempts.iter().map(|attempt| format!("\n  {}", changes.describe(attempt))).collect::<String>()
    };
    ensure!(wrong.is_empty(), "{} connections to other nodes were lost:{}", wrong.len(), list(&wrong));
    let late: Vec<&Attempt> =
        lost.iter().chain(&moved).filter(|attempt| attempt.began > known).copied().collect();
    ensure!(late.is_empty(), "lost after the ToRs knew:{}", list(&late));
    let after = attempts.iter().filter(|attempt| attempt.began > known).count();
    ensure!(after >= AFTER / 2, "only {after} connections after the ToRs knew");

    let since = |time: Option<Instant>| time.unwrap_or(died).saturating_duration_since(died).as_millis();
    let last = since(lost.iter().chain(&moved).map(|attempt| attempt.began).max());
    let detected = since(changes.all().filter(|time| *time > died).max());
    passed(format!(
        "{} connections, {} lost of those to the dead node and {} while the ToRs distributed their flows anew; the \
         last lost one began {last} ms after the death, and the ToRs changed their routes after {detected} ms; \
         then {after} without a loss",
        attempts.len(),
        lost.len(),
        moved.len()
    ))
}
