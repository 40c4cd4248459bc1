//! One link or router at a time fails, with traffic on every way: the pods stay reachable while the fault stands.
//!
//! The rack's ToRs have no session between them. Pods of the rack's own Subnet are known to their own ToRs alone, so these tests look at
//! what [alternate paths and disaggregation](../../../docs/data-path.md) are for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::bed::{Bed, INTERVAL, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Attached, Sandbox};
use crate::pinger::{Flow, Pinger};
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

mod uplinks;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "failover/one-link",
        about: "each fault between one node and one ToR: pods of both kinds are reached while it stands, from the rack and from elsewhere, in both directions",
        run: one_link,
    },
    Test {
        name: "failover/two-links",
        about: "two nodes lose their sessions at different ToRs at once: pods of both kinds are reached while that lasts",
        run: two_links,
    },
    Test {
        name: "failover/uplinks",
        about: "a ToR loses both uplinks and withdraws its default route: the nodes stop sending by it, in both families, also over a SIGKILL of the agent; with the last ToR's uplinks gone the configured next hops stay",
        run: uplinks::uplinks,
    },
];

/// A fault: shell commands at places, and those that end it.
struct Fault {
    name: &'static str,
    begin: &'static [(&'static str, &'static str)],
    end: &'static [(&'static str, &'static str)],
}

/// The session of node1a with tor1b, by every cause.
const FAULTS: [Fault; 6] = [
    Fault {
        name: "cable cut",
        begin: &[("tor1b", "ip link set eth3 down")],
        end: &[("tor1b", "ip link set eth3 up")],
    },
    Fault {
        name: "link silent",
        begin: &[("tor1b", SILENCE), ("node1a", SILENCE_NODE)],
        end: &[("tor1b", "nft delete table netdev silence"), ("node1a", "nft delete table netdev silence")],
    },
    Fault {
        name: "prefix limit on the ToR",
        begin: &[(
            "tor1b",
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
             -c 'neighbor 10.12.0.11 maximum-prefix 1'",
        )],
        end: &[(
            "tor1b",
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
             -c 'no neighbor 10.12.0.11 maximum-prefix 1' && vtysh -c 'clear bgp 10.12.0.11'",
        )],
    },
    Fault {
        name: "wrong password on the ToR",
        begin: &[(
            "tor1b",
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password wrong'",
        )],
        end: &[(
            "tor1b",
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password rack1-lab-secret'",
        )],
    },
    Fault { name: "ToR refuses the pods' routes", begin: &[("tor1b", FILTER)], end: &[("tor1b", NO_FILTER)] },
    Fault {
        name: "ToR's daemons stand still",
        begin: &[("tor1b", "kill -STOP $(cat /run/frr/bgpd.pid /run/frr/bfdd.pid)")],
        end: &[("tor1b", "kill -CONT $(cat /run/frr/bgpd.pid /run/frr/bfdd.pid)")],
    },
];

const REFUSED: &str = "ToR refuses the pods' routes";
const SILENCE: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth3 priority -500; policy drop; }; }'";
const SILENCE_NODE: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth2 priority -500; policy drop; }; }'";
pub(super) const FILTER: &str = "vtysh -c 'configure terminal' \
    -c 'ip prefix-list NO-PODS seq 5 deny 10.201.0.0/16 ge 32' -c 'ip prefix-list NO-PODS seq 10 permit any' \
    -c 'ipv6 prefix-list NO-PODS6 seq 5 deny fd00:201::/112 ge 128' -c 'ipv6 prefix-list NO-PODS6 seq 10 permit any' \
    -c 'router bgp 65012' \
    -c 'address-family ipv4 unicast' -c 'neighbor 10.12.0.11 prefix-list NO-PODS in' -c 'exit-address-family' \
    -c 'address-family ipv6 unicast' -c 'neighbor 10.12.0.11 prefix-list NO-PODS6 in' \
    && vtysh -c 'clear bgp 10.12.0.11 soft in'";
pub(super) const NO_FILTER: &str = "vtysh -c 'configure terminal' -c 'router bgp 65012' \
    -c 'address-family ipv4 unicast' -c 'no neighbor 10.12.0.11 prefix-list NO-PODS in' -c 'exit-address-family' \
    -c 'address-family ipv6 unicast' -c 'no neighbor 10.12.0.11 prefix-list NO-PODS6 in' \
    && vtysh -c 'clear bgp 10.12.0.11 soft in'";

/// Both nodes of the rack, each without one ToR.
const CROSSED: Fault = Fault {
    name: "node1a without tor1b, node1b without tor1a",
    begin: &[("tor1b", "ip link set eth3 down"), ("tor1a", "ip link set eth4 down")],
    end: &[("tor1b", "ip link set eth3 up"), ("tor1a", "ip link set eth4 up")],
};

/// A pod, and what it is called in the results.
struct Pod {
    kind: &'static str,
    name: String,
    sandbox: Sandbox,
    attached: Attached,
}

fn pods(bed: &Bed<'_>, placed: &[(&str, &'static str, &str)]) -> Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for (index, (node, kind, network)) in placed.iter().enumerate() {
        let name = format!("pod{index}");
        let sandbox = Sandbox::create(bed.fabric, node, &name)?;
        let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &sandbox)?;
        pods.push(Pod { kind, name: format!("{name} on {node}"), sandbox, attached });
    }
    Ok(pods)
}

/// Both directions of each pair, in each family. The kind of the flow is that of the pod that the fault concerns.
fn flows(inside: &[Pod], others: &[Pod]) -> Vec<Flow> {
    let one = |kind: &str, from: &Pod, to: &Pod| -> Vec<Flow> {
        let flow = |address| Flow {
            name: format!("{kind}: {} to {} {address}", from.name, to.name),
            from: from.sandbox.ns.clone(),
            to: address,
        };
        to.attached.addresses.iter().copied().map(flow).collect()
    };
    let both = |pod: &Pod, other: &Pod| {
        let inbound = one(&format!("to a {} pod", pod.kind), other, pod);
        let outbound = one(&format!("from a {} pod", pod.kind), pod, other);
        [inbound, outbound].concat()
    };
    inside.iter().flat_map(|pod| others.iter().flat_map(move |other| both(pod, other))).collect()
}

/// Waits until a node notices the fault: a session ends, or a packet for another node's pod comes.
fn begun(bed: &Bed<'_>, fault: &Fault, before: u64) -> Result<()> {
    wait_for(&format!("a node to notice: {}", fault.name), PATIENCE, || {
        let down = client::peers(bed.host("node1a")?)?.iter().any(|peer| peer.state != "Established");
        let forwarded = forwarded(bed)?;
        Ok(Seen::when(down || forwarded > before, || "all sessions are Established".to_owned()))
    })
}

/// Packets that node1b has sent on by an alternate path.
fn forwarded(bed: &Bed<'_>) -> Result<u64> {
    Ok(client::status(bed.host("node1b")?)?.alternate_paths.context("no alternate paths")?.forwarded)
}

/// Runs one fault under traffic. Returns a line: for each kind of flow how many requests were lost, and the longest gap.
fn suffer(bed: &Bed<'_>, fault: &Fault, inside: &[Pod], others: &[Pod]) -> Result<String> {
    let mut pinger = Pinger::start(flows(inside, others), INTERVAL)?;
    pinger.settle(PATIENCE)?;
    let before = forwarded(bed)?;
    for (place, command) in fault.begin {
        bed.host(place)?.sh(command).with_context(|| fault.name.to_owned())?;
    }
    begun(bed, fault, before)?;
    pinger.wait_sent(200, PATIENCE)?;
    // While the fault stands.
    let reached = pinger.wait_answers(200, PATIENCE).with_context(|| fault.name.to_owned());
    let outcomes = pinger.finish()?;
    reached?;
    let mut kinds: BTreeMap<&str, (usize, usize, Duration)> = BTreeMap::new();
    for outcome in &outcomes {
        let kind = outcome.name.split(": ").next().unwrap_or_default();
        let (lost, sent, gap) = kinds.entry(kind).or_default();
        *lost += outcome.lost.len();
        *sent += outcome.sent;
        *gap = outcome.longest_gap.max(*gap);
    }
    let mut line = format!("{}:", fault.name);
    for (kind, (lost, sent, gap)) in kinds {
        let _ = write!(line, " {kind} {lost} of {sent} lost, at most {} ms;", gap.as_millis());
    }
    for (place, command) in fault.end {
        bed.host(place)?.sh(command).with_context(|| fault.name.to_owned())?;
    }
    for node in ["node1a", "node1b"] {
        client::wait_established(bed.host(node)?, PATIENCE)?;
    }
    for tor in ["tor1a", "tor1b"] {
        routers::wait_sessions(bed.fabric, tor, PATIENCE)?;
        routers::wait_bfd(bed.fabric, tor, PATIENCE)?;
    }
    say(&format!("      {line}"));
    Ok(line)
}

fn ready(bed: &Bed<'_>) -> Result<()> {
    // With it FRR takes the end of a link for a restart of the agent, and keeps the routes for the Restart Time. This lab has it
    // because its routers may be too busy to see at once that a connection has closed.
    for (tor, asn) in [("tor1a", 65011), ("tor1b", 65012)] {
        bed.host(tor)?.sh(&format!(
            "vtysh -c 'configure terminal' -c 'router bgp {asn}' -c 'no neighbor NODES bfd check-control-plane-failure'"
        ))?;
    }
    for node in bed.fabric.topology.with_role("node") {
        client::wait_established(bed.host(node)?, PATIENCE)?;
    }
    for tor in ["tor1a", "tor1b"] {
        routers::wait_bfd(bed.fabric, tor, PATIENCE)?;
    }
    Ok(())
}

const ELSEWHERE: [(&str, &str, &str); 4] = [
    ("node1b", "rack", "rack1"),
    ("node2a", "rack", "rack2"),
    ("node2a", "global", "global"),
    ("node2b", "rack", "rack2"),
];

fn one_link(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        ready(bed)?;
        let here = [("node1a", "rack", "rack1"), ("node1a", "rack", "rack1"), ("node1a", "global", "global")];
        let (inside, others) = (pods(bed, &here)?, pods(bed, &ELSEWHERE)?);
        let mut lines = Vec::new();
        for fault in &FAULTS {
            let before = forwarded(bed)?;
            lines.push(suffer(bed, fault, &inside, &others)?);
            // The session stands, so the ToR has no other way to the pods.
            let helped = forwarded(bed)? > before;
            ensure!(helped || fault.name != REFUSED, "no alternate path was taken: {}", fault.name);
        }
        passed(lines.join(" "))
    })
}

fn two_links(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        ready(bed)?;
        let here = [("node1a", "rack", "rack1"), ("node1b", "rack", "rack1"), ("node1a", "global", "global")];
        let elsewhere =
            [("node2a", "rack", "rack2"), ("node2a", "global", "global"), ("node2b", "rack", "rack2")];
        let (inside, others) = (pods(bed, &here)?, pods(bed, &elsewhere)?);
        passed(suffer(bed, &CROSSED, &inside, &others)?)
    })
}
