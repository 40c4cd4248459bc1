//! An operator's actions on a node and its sessions, and their effect on the routers: resets and
//! refreshes, drain and undrain.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use trunkline_api::control::{
    DrainPhase, DrainStatus, Event, EventKind, Events, PeerDone, PeerState, Severity,
};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::pinger::{Flow, FlowResult, Pinger};
use crate::routers;
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "operator/history",
        about: "repairs, the loss of the last default route, stops and kills are events, and events survive a restart; doctor shows the deadline of a stopped agent",
        run: history,
    },
    Test {
        name: "operator/sessions",
        about: "a reset and a refresh of a session with FRR; a follower of the events receives both",
        run: sessions,
    },
    Test {
        name: "operator/drain",
        about: "a node with an anycast address is drained without packet loss, stays drained after a restart, and returns",
        run: drain,
    },
];

const TOR: &str = "10.1.0.1";

fn sessions(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let mut follower =
            node.command("trunkline", ["events", "--follow", "-o", "json"]).stdout(Stdio::piped()).spawn()?;
        let follower_lines = BufReader::new(follower.stdout.take().context("its output")?).lines();
        // This thread ends with the agent at the latest.
        let reader =
            std::thread::spawn(move || follower_lines.map_while(Result::ok).collect::<Vec<String>>());

        let refreshed = bed.peer(TOR)?.received;
        let done: PeerDone = client::ask(node, &["peers", "soft-refresh", TOR])?;
        ensure!(done.peer == TOR, "{done:?}");
        wait_for("FRR to advertise all routes again", PATIENCE, || {
            let received = bed.peer(TOR)?.received;
            // FRR advertises its default routes, with the refresh markers before and after them.
            let good = received.update > refreshed.update && received.route_refresh > refreshed.route_refresh;
            Ok(Seen::when(good, || format!("{received:?}, before {refreshed:?}")))
        })?;
        let sent_before = bed.peer(TOR)?.sent.update;
        client::ask::<PeerDone>(node, &["peers", "soft-refresh", TOR, "out"])?;
        wait_for("this node to advertise all routes again", PATIENCE, || {
            let sent = bed.peer(TOR)?.sent.update;
            Ok(Seen::when(sent > sent_before, || format!("{sent} UPDATEs sent")))
        })?;
        ensure!(bed.peer(TOR)?.flaps == 0, "a refresh has ended the session");

        client::ask::<PeerDone>(node, &["peers", "reset", TOR, "--message", "new optics in 3/14"])?;
        wait_for("another session", PATIENCE, || {
            let peer = bed.peer(TOR)?;
            Ok(Seen::when(peer.flaps == 1 && peer.is_established(), || {
                format!("{} {}", peer.flaps, peer.state)
            }))
        })?;
        routers::wait_logged(bed.host("tor1")?, "new optics in 3/14", PATIENCE)?;
        let refused = node.run("trunkline", ["peers", "reset", "192.0.2.99"]).err().map(|e| format!("{e:#}"));
        ensure!(
            refused.as_ref().is_some_and(|e| e.contains("no peer 192.0.2.99 is configured")),
            "an unknown peer was reset: {refused:?}"
        );

        client::end_agent(node, Signal::TERM)?;
        let lines = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        follower.wait()?;
        let events: Vec<Event> =
            lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
        let of_the_tor: Vec<EventKind> = events
            .iter()
            .filter(|e| {
                e.peer.as_deref() == Some(TOR) && !e.kind.is_of_routes() && e.kind != EventKind::EndOfRib
            })
            // A first attempt may fail before the router listens.
            .filter(|e| ![EventKind::StaleSwept, EventKind::SessionError].contains(&e.kind))
            .map(|e| e.kind)
            .collect();
        use EventKind::{Operator, SessionDown, SessionUp};
        let wanted = [SessionUp, Operator, Operator, Operator, SessionDown, SessionUp];
        // The order of the command's event and its effect is not guaranteed.
        let swapped = [SessionUp, Operator, Operator, SessionDown, Operator, SessionUp];
        ensure!(of_the_tor == wanted || of_the_tor == swapped, "{of_the_tor:?}");
        ensure!(
            events.iter().enumerate().all(|(index, event)| event.number == index as u64 + 1),
            "numbers have gaps: {lines:?}"
        );
        passed(format!("{} events followed", events.len()))
    })
}

/// Waits until the node has this number of events of a kind with these words in the text; returns
/// the last one.
fn wait_event(node: &Host, kind: EventKind, number: usize, words: &str) -> Result<Event> {
    wait_for(&format!("event {number} of kind {} with {words:?}", kind.name()), PATIENCE, || {
        let all: Events = client::ask(node, &["events"])?;
        let found = all.events.iter().filter(|event| event.kind == kind && event.text.contains(words));
        let found: Vec<&Event> = found.collect();
        Ok(match found.last() {
            Some(last) if found.len() >= number => Seen::Yes((*last).clone()),
            _ => Seen::NotYet(format!("{:?}", all.events.iter().rev().take(8).collect::<Vec<_>>())),
        })
    })
}

fn history(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        wait_event(node, EventKind::AgentStarted, 1, "started")?;
        let (_pod, attached) = bed.attached("repaired", "rack1")?;
        let address =
            attached.addresses.iter().find(|address| address.is_ipv4()).context("an IPv4 address")?;
        node.sh(&format!("ip route del {address}/32 table 39999; ip rule del priority 1000"))?;
        let repaired = wait_event(node, EventKind::Repaired, 1, &address.to_string())?;
        ensure!(repaired.text.contains("route") && repaired.severity == Severity::Warning, "{repaired:?}");

        let manifest = bed.manifest("networks.yaml");
        let good = manifest.read()?;
        manifest.write(&good.replace("password: one-rack-lab-secret", "password: another"))?;
        let lost = wait_event(node, EventKind::DefaultLost, 1, "network rack1")?;
        ensure!(lost.severity == Severity::Warning, "{lost:?}");
        manifest.write(&good)?;
        wait_event(node, EventKind::DefaultBack, 1, "network rack1")?;
        bed.established()?;

        // After an orderly stop, even the events of the last second are on disk.
        client::end_agent(node, Signal::TERM)?;
        let doctor = node.sh("trunkline doctor || :")?;
        let deadline =
            doctor.contains("Routers keep this node's routes until") && doctor.contains("(300 s after");
        ensure!(deadline, "no deadline: {doctor}");
        client::start_agent(node)?;
        bed.established()?;
        for kind in [EventKind::Repaired, EventKind::DefaultLost, EventKind::AgentStopped] {
            wait_event(node, kind, 1, "")?;
        }
        wait_event(node, EventKind::AgentStarted, 1, "the last run stopped at")?;

        client::end_agent(node, Signal::KILL)?;
        let doctor = node.sh("trunkline doctor || :")?;
        ensure!(doctor.contains("for 300 s after the agent ended"), "no duration: {doctor}");
        // If the end of the file is damaged, only the damaged part is lost.
        node.sh("printf '{\"number\": 7, \"at' >>/var/lib/trunkline/events.jsonl")?;
        client::start_agent(node)?;
        let killed = wait_event(node, EventKind::AgentStarted, 1, "ended without a stop")?;
        ensure!(killed.severity == Severity::Warning, "{killed:?}");
        wait_event(node, EventKind::AgentStarted, 3, "started")?;
        let mode = node.sh("stat -c %a /var/lib/trunkline/events.jsonl /var/lib/trunkline/last-run.json")?;
        ensure!(mode.split_whitespace().all(|mode| mode == "600"), "others can read the history: {mode}");
        passed(format!("{}; {}", repaired.text, killed.text))
    })
}

const ANYCAST: &str = "10.203.0.1";
const SUBNET: &str = "
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata:
  name: anycast
spec:
  network: global
  range:
    version: \"4\"
    cidr: 10.203.0.0/24
";
const DRAINED: &str = "node1a";
/// The addresses of the drained node to the ToRs of its rack.
const LEAVING_BY: [&str; 2] = ["10.11.0.11", "10.12.0.11"];
/// The other node is in the same rack, because then the ToRs have both paths. Over a spine, a ToR
/// would first have to detect that the other ToR has lost its path too. Until then packets would
/// loop, whichever node is drained.
const OTHER: &str = "node1b";

fn drain_status(node: &Host) -> Result<DrainStatus> {
    Ok(client::status(node)?.drain)
}

fn drain(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        let nodes = bed.fabric.topology.with_role("node");
        for node in nodes {
            client::wait_established(bed.host(node)?, PATIENCE)?;
        }
        let anycast: IpAddr = ANYCAST.parse()?;
        let prefix = IpNet::from(anycast);
        for node in [DRAINED, OTHER] {
            let manifest = bed.manifest_of(node, "subnets.yaml");
            manifest.write(&(manifest.read()? + SUBNET))?;
        }
        for node in [DRAINED, OTHER] {
            let mut pod = Sandbox::create(bed.fabric, node, "anycast")?;
            pod.args = format!("IP={ANYCAST}");
            wait_for("the new subnet", PATIENCE, || {
                Ok(match cni::add(bed.fabric, &cni::trunkline(Some("global")), &pod) {
                    Ok(attached) if attached.addresses.contains(&anycast) => Seen::Yes(()),
                    outcome => Seen::NotYet(format!("{outcome:?}")),
                })
            })?;
        }
        let hops = |tor: &str| -> Result<String> { bed.host(tor)?.sh(&format!("ip route show {prefix}")) };
        let lead_to = |addresses: [&str; 2], wanted: bool| {
            for (tor, address) in ["tor1a", "tor1b"].into_iter().zip(addresses) {
                wait_for(&format!("{tor}'s route through {address}: {wanted}"), PATIENCE, || {
                    let hops = hops(tor)?;
                    Ok(Seen::when(hops.contains(&format!("via {address} ")) == wanted, || hops))
                })?;
            }
            anyhow::Ok(())
        };
        let other_by = ["10.11.0.12", "10.12.0.12"];
        lead_to(LEAVING_BY, true)?;
        lead_to(other_by, true)?;

        // The test needs several flows. Their paths then use both ToRs and both nodes.
        let mut flows = Vec::new();
        for (node, name) in [("node2a", "one"), ("node2a", "two"), ("node2a", "three"), ("node2b", "four")] {
            let pod = Sandbox::create(bed.fabric, node, name)?;
            cni::add(bed.fabric, &cni::trunkline(Some("global")), &pod)?;
            flows.push(Flow { name: format!("{name} on {node} to {ANYCAST}"), from: pod.ns, to: anycast });
        }
        let leaving = bed.host(DRAINED)?;
        let text = "new disk, back at five";
        let measure = || -> Result<(DrainStatus, Vec<FlowResult>)> {
            let mut pinger = Pinger::start(flows.clone(), Duration::from_millis(5))?;
            pinger.settle(PATIENCE)?;
            let status: DrainStatus = client::ask(leaving, &["drain", "--wait", "--message", text])?;
            ensure!(status.phase == DrainPhase::Drained && status.faults.is_empty(), "{status:?}");
            ensure!(status.prefixes > 0, "{status:?}");
            pinger.wait_sent(200, PATIENCE)?;
            Ok((status, pinger.finish()?))
        };
        let mut disturbed = 0;
        let (status, sent) = loop {
            let before = other_losses(bed)?;
            let (status, outcomes) = measure()?;
            let Some(outcome) = outcomes.iter().find(|outcome| !outcome.lost.is_empty()) else {
                break (status, outcomes.iter().map(|outcome| outcome.sent).sum::<usize>());
            };
            // On a busy machine a router can stand still for longer than the 150 ms of its BFD sessions.
            // Packets are lost then, whatever the node does, and the drain is measured again.
            ensure!(
                other_losses(bed)? > before && disturbed < 2,
                "{}: {} of {} lost",
                outcome.name,
                outcome.lost.len(),
                outcome.sent
            );
            disturbed += 1;
            client::ask::<DrainStatus>(leaving, &["undrain"])?;
            client::wait_established(leaving, PATIENCE)?;
            lead_to(LEAVING_BY, true)?;
        };
        lead_to(LEAVING_BY, false)?;
        routers::wait_logged(bed.host("tor1a")?, text, PATIENCE)?;
        let idle = |node: &Host| -> Result<bool> {
            let peers = client::peers(node)?;
            Ok(peers.len() == 2 && peers.iter().all(|p| p.shutdown && p.state == PeerState::Idle))
        };
        ensure!(idle(leaving)?, "{:?}", client::peers(leaving)?);

        client::end_agent(leaving, Signal::TERM)?;
        client::start_agent(leaving)?;
        wait_for("the manifests to be in force", PATIENCE, || {
            let applied = client::status(leaving)?.manifests.applied;
            Ok(Seen::when(applied, || "not yet".to_owned()))
        })?;
        ensure!(drain_status(leaving)?.phase == DrainPhase::Drained, "a restart has undrained the node");
        ensure!(drain_status(leaving)?.message == text, "the text is lost");
        ensure!(idle(leaving)?, "a restart has brought sessions: {:?}", client::peers(leaving)?);
        let late = Sandbox::create(bed.fabric, DRAINED, "late")?;
        let refused =
            cni::add(bed.fabric, &cni::trunkline(Some("global")), &late).err().map(|e| format!("{e:#}"));
        ensure!(refused.as_ref().is_some_and(|e| e.contains("this node is drained")), "{refused:?}");

        client::ask::<DrainStatus>(leaving, &["undrain"])?;
        client::wait_established(leaving, PATIENCE)?;
        cni::add(bed.fabric, &cni::trunkline(Some("global")), &late)?;
        lead_to(LEAVING_BY, true)?;
        passed(format!(
            "0 of {sent} lost, {} prefixes withdrawn and advertised again; {disturbed} times measured again, after \
             the loss of another session",
            status.prefixes
        ))
    })
}

/// Lost sessions of the ToRs since the start of the lab, except those with the drained node.
fn other_losses(bed: &Bed<'_>) -> Result<usize> {
    ["tor1a", "tor1b", "tor2a", "tor2b"].iter().try_fold(0, |sum, tor| {
        let log = bed.host(tor)?.sh("cat /var/log/frr/frr.log")?;
        let lost = |line: &&str| {
            let neighbour =
                line.split("%ADJCHANGE: neighbor ").nth(1).and_then(|rest| rest.split('(').next());
            line.contains(" Down ") && neighbour.is_some_and(|address| !LEAVING_BY.contains(&address))
        };
        Ok(sum + log.lines().filter(lost).count())
    })
}
