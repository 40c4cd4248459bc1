//! A ToR loses its uplinks and its default route: the nodes stop using it, and report it.
//!
//! Here the spines originate the default route, and the ToRs readvertise it. A ToR that originates
//! its own default route would continue to advertise it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::{DefaultRouteBasis, DefaultRouteStatus, EventKind, Events};

use super::{Bed, ELSEWHERE, HERE, attach, ready};
use crate::client;
use crate::link_faults::{PodEndpoint, flows};
use crate::pinger::{FlowResult, Pinger};
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{INTERVAL, PATIENCE, lab};
use crate::tests::{Context, Verdict, passed};

const NODES: [&str; 2] = ["node1a", "node1b"];
/// The ToRs of the nodes' rack, as the nodes know them, and both uplinks of each.
const TORS: [(&str, &str, &str); 2] = [("tor1a", "65011", "10.11.0.1"), ("tor1b", "65012", "10.12.0.1")];
const CUT: &str = "ip link set eth1 down; ip link set eth2 down";
const MEND: &str = "ip link set eth1 up; ip link set eth2 up";

/// The spines advertise a default route to the ToRs.
const SPINE: &str = r#"sed 's/source = RTS_BGP/source ~ [ RTS_BGP, RTS_STATIC ]/' /etc/bird/bird.conf >/run/uplinks.conf
cat >>/run/uplinks.conf <<'END'
protocol static default4 { ipv4; route 0.0.0.0/0 blackhole; }
protocol static default6 { ipv6; route ::/0 blackhole; }
END
birdc configure '"/run/uplinks.conf"'"#;

/// Configures a ToR to readvertise the spines' default route, and to originate none.
fn pass_on(asn: &str) -> String {
    format!(
        "vtysh -c 'configure terminal' -c 'router bgp {asn}' \
         -c 'address-family ipv4 unicast' -c 'no neighbor NODES default-originate' -c 'exit-address-family' \
         -c 'address-family ipv6 unicast' -c 'no neighbor NODES default-originate' && vtysh -c 'clear bgp * soft out'"
    )
}

fn ways(bed: &Bed<'_>, node: &str) -> Result<Vec<DefaultRouteStatus>> {
    Ok(client::status(bed.host(node)?)?.bgp.context("no speaker")?.ways_out)
}

/// Waits until the nodes' next hops of both families are the peers with these addresses, because
/// these advertise default routes.
fn wait_next_hops(bed: &Bed<'_>, peers: &[&str], basis: DefaultRouteBasis) -> Result<()> {
    for node in NODES {
        wait_for(&format!("{node}'s next hops to be {peers:?}, {basis:?}"), PATIENCE, || {
            let ways = ways(bed, node)?;
            let are = |way: &DefaultRouteStatus| {
                way.peers == peers
                    && way.basis == basis
                    && way.wanted == way.installed
                    && way.installed.len() == peers.len()
            };
            Ok(Seen::when(ways.len() == 2 && ways.iter().all(are), || format!("{ways:?}")))
        })?;
    }
    Ok(())
}

/// Waits until all peers are next hops of the nodes, because none advertises a default route. The
/// IPv6 next hop of an IPv4 session arrives with the peer's IPv6 routes. A ToR that has advertised
/// no IPv6 route since the agent's restart has no IPv6 next hop.
fn wait_configured(bed: &Bed<'_>) -> Result<()> {
    for node in NODES {
        wait_for(&format!("{node}'s next hops to be as configured"), PATIENCE, || {
            let ways = ways(bed, node)?;
            let all = |way: &DefaultRouteStatus| way.peers == ["10.11.0.1", "10.12.0.1"];
            let are = |way: &DefaultRouteStatus| {
                let as_configured = way.basis == DefaultRouteBasis::Configured && way.wanted == way.installed;
                as_configured && !way.installed.is_empty() && (way.family != "ipv4-unicast" || all(way))
            };
            Ok(Seen::when(ways.len() == 2 && ways.iter().all(are), || format!("{ways:?}")))
        })?;
    }
    Ok(())
}

fn prepare(bed: &Bed<'_>) -> Result<()> {
    ready(bed)?;
    for spine in ["spine1", "spine2"] {
        let answer = bed.host(spine)?.sh(SPINE)?;
        ensure!(answer.contains("econfigur"), "{spine}: {answer}");
    }
    for (tor, asn, _) in TORS {
        wait_for(&format!("the spines' default route on {tor}"), PATIENCE, || {
            let routes = bed.host(tor)?.sh("ip route show default; ip -6 route show default")?;
            Ok(Seen::when(routes.matches("default").count() >= 2, || routes))
        })?;
        bed.host(tor)?.sh(&pass_on(asn))?;
    }
    wait_next_hops(bed, &["10.11.0.1", "10.12.0.1"], DefaultRouteBasis::Advertised)
}

/// The largest loss of each kind of flow.
fn worst(outcomes: &[FlowResult]) -> String {
    let mut kinds = BTreeMap::<&str, (usize, usize, u128)>::new();
    for outcome in outcomes {
        let (lost, sent, gap) = kinds.entry(outcome.name.split(": ").next().unwrap_or_default()).or_default();
        *lost += outcome.lost.len();
        *sent += outcome.sent;
        *gap = (*gap).max(outcome.longest_gap.as_millis());
    }
    kinds.iter().fold(String::new(), |mut text, (kind, (lost, sent, gap))| {
        let _ = write!(text, " {kind} {lost} of {sent} lost, at most {gap} ms;");
        text
    })
}

/// Events of a kind about a peer on a node since its start, in words.
fn events(bed: &Bed<'_>, node: &str, kind: EventKind, peer: Option<&str>) -> Result<Vec<String>> {
    let all: Events = client::ask(bed.host(node)?, &["events"])?;
    let found = all.events.into_iter().filter(|event| event.kind == kind && event.peer.as_deref() == peer);
    Ok(found.map(|event| event.text).collect())
}

/// The operator's view of a ToR without uplinks.
fn shown(bed: &Bed<'_>) -> Result<()> {
    let node = bed.host("node1a")?;
    let out = events(bed, "node1a", EventKind::NextHopOut, Some("10.12.0.1"))?;
    ensure!(
        out.len() == 2 && out.iter().all(|text| text.starts_with("withdrew its default route")),
        "{out:?}"
    );
    let why = "not through 10.12.0.1: it withdrew its default route";
    for command in ["status", "routes --explain 0.0.0.0/0", "routes --explain ::/0"] {
        let text = node.sh(&format!("trunkline {command}"))?;
        ensure!(text.contains(why), "trunkline {command} does not mention the ToR: {text}");
    }
    let doctor = node.sh("trunkline doctor || :")?;
    ensure!(doctor.contains("do not use peer 10.12.0.1: it withdrew its default route"), "{doctor}");
    let metrics = client::metrics(node)?;
    let series = "trunkline_bgp_way_out_next_hops{family=\"ipv4-unicast\",state=\"left_out\"} 1";
    ensure!(metrics.contains(series), "no {series}");
    let kernel = node.sh("ip route show table 10000 default; ip -6 route show table 10000 default")?;
    ensure!(!kernel.contains("10.12.0.1") && !kernel.contains("dev eth2"), "the kernel has {kernel}");
    Ok(())
}

/// Cuts both uplinks of a ToR under traffic. Returns the loss.
fn cut(bed: &Bed<'_>, inside: &[PodEndpoint], others: &[PodEndpoint]) -> Result<String> {
    let mut pinger = Pinger::start(flows(inside, others), INTERVAL)?;
    pinger.settle(PATIENCE)?;
    bed.host("tor1b")?.sh(CUT)?;
    wait_next_hops(bed, &["10.11.0.1"], DefaultRouteBasis::Advertised)?;
    let reached = pinger.wait_answers(200, PATIENCE).context("the ToR has no uplinks");
    let outcomes = pinger.finish()?;
    reached?;
    Ok(worst(&outcomes))
}

/// Kills the agent while the ToR has no uplinks: no packet is lost, in particular not when this
/// ToR's session returns first.
fn restart(bed: &Bed<'_>, inside: &[PodEndpoint], others: &[PodEndpoint]) -> Result<usize> {
    // With this setting, FRR retains the routes of an agent that stops its BFD.
    for (tor, asn, _) in TORS {
        bed.host(tor)?.sh(&format!(
            "vtysh -c 'configure terminal' -c 'router bgp {asn}' -c 'neighbor NODES bfd check-control-plane-failure'"
        ))?;
    }
    for node in NODES {
        client::wait_established(bed.host(node)?, PATIENCE)?;
        client::wait_bfd(bed.host(node)?, PATIENCE)?;
    }
    wait_next_hops(bed, &["10.11.0.1"], DefaultRouteBasis::Advertised)?;
    let mut pinger = Pinger::start(flows(inside, others), INTERVAL)?;
    pinger.settle(PATIENCE)?;
    client::end_agent(bed.host("node1a")?, Signal::KILL)?;
    client::start_agent(bed.host("node1a")?)?;
    client::wait_established(bed.host("node1a")?, PATIENCE)?;
    wait_next_hops(bed, &["10.11.0.1"], DefaultRouteBasis::Advertised)?;
    pinger.wait_sent(100, PATIENCE)?;
    let outcomes = pinger.finish()?;
    let lost: Vec<String> = outcomes
        .iter()
        .filter(|outcome| !outcome.lost.is_empty())
        .map(|outcome| format!("{}: {}", outcome.name, outcome.lost.len()))
        .collect();
    ensure!(lost.is_empty(), "a restart of the agent lost packets: {lost:?}");
    Ok(outcomes.iter().map(|outcome| outcome.sent).sum())
}

pub(super) fn uplinks(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        prepare(bed)?;
        let (inside, others) = (attach(bed, &HERE)?, attach(bed, &ELSEWHERE)?);
        let lost = cut(bed, &inside, &others)?;
        say(&format!("      uplinks of one ToR cut:{lost}"));
        shown(bed)?;
        let sent = restart(bed, &inside, &others)?;
        // The other ToR also loses its uplinks. The configured next hops stay, and the doctor
        // reports a warning.
        bed.host("tor1a")?.sh(CUT)?;
        wait_configured(bed)?;
        let warnings = events(bed, "node1b", EventKind::DefaultLost, None)?;
        ensure!(
            warnings.iter().any(|text| text.starts_with("no peer advertises a default route")),
            "{warnings:?}"
        );
        for (tor, ..) in TORS {
            bed.host(tor)?.sh(MEND)?;
        }
        wait_next_hops(bed, &["10.11.0.1", "10.12.0.1"], DefaultRouteBasis::Advertised)?;
        let back = events(bed, "node1a", EventKind::NextHopIn, Some("10.12.0.1"))?;
        ensure!(!back.is_empty(), "no event for the ToR's return");
        passed(format!(
            "uplinks of one ToR cut:{lost} {sent} requests over a SIGKILL of the agent meanwhile, none lost"
        ))
    })
}
