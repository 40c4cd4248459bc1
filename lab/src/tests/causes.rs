//! Each kind of loss of the session with one ToR shows its cause, and keeps showing it: `peers`,
//! `peers ADDRESS`, `doctor`, the events and the metrics have the same text. A later failed attempt
//! to connect does not replace the cause. docs/faults.md has these texts.

use anyhow::{Context as _, Result, ensure};
use trunkline_api::control::{CauseKind, Peer};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "causes/session-loss",
        about: "cable, silence, password, prefix limit, AS, process, neighbour: the cause of a lost session shows with its advice and stays",
        run: session_loss,
    },
    Test {
        name: "causes/fresh-start",
        about: "a fresh lab shows no error from before the first session",
        run: fresh_start,
    },
];

const NODE: &str = "node1a";
const TOR: &str = "tor1b";
const PEER: &str = "10.12.0.1";
/// For so long after the loss the cause must still be shown: longer than an attempt to connect.
const LATER: u64 = 12;

struct Fault {
    name: &'static str,
    begin: &'static [(&'static str, &'static str)],
    end: &'static [(&'static str, &'static str)],
    kind: CauseKind,
    /// In the cause.
    words: &'static str,
    /// In the advice.
    advice: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "cable cut",
        begin: &[(TOR, "ip link set eth3 down")],
        end: &[(TOR, "ip link set eth3 up")],
        kind: CauseKind::Carrier,
        words: "eth2 has no carrier",
        advice: "check the cable of eth2 and the router's port",
    },
    Fault {
        name: "link up and silent",
        begin: &[(TOR, SILENCE), (NODE, SILENCE_NODE)],
        end: &[(TOR, "nft delete table netdev silence"), (NODE, "nft delete table netdev silence")],
        kind: CauseKind::Bfd,
        words: "BFD session down: Control Detection Time Expired",
        advice: "run `ping 10.12.0.1`. No answer: the link or the router is dead",
    },
    Fault {
        name: "wrong password on the ToR",
        begin: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password wrong'",
        )],
        end: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password rack1-lab-secret'",
        )],
        kind: CauseKind::Passwords,
        words: "the passwords differ: the kernel refused ",
        advice: "compare the password of 10.12.0.1 with the router's",
    },
    Fault {
        name: "prefix limit of the ToR",
        begin: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
             -c 'neighbor 10.12.0.11 maximum-prefix 1'",
        )],
        end: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
             -c 'no neighbor 10.12.0.11 maximum-prefix 1' && vtysh -c 'clear bgp 10.12.0.11'",
        )],
        kind: CauseKind::PrefixLimit,
        words: "Cease/Maximum Number of Prefixes Reached",
        advice: "raise the limit for this node on the router",
    },
    Fault {
        name: "wrong AS on the ToR",
        begin: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 local-as 65999 no-prepend replace-as'",
        )],
        end: &[(
            TOR,
            "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'no neighbor 10.12.0.11 local-as'",
        )],
        kind: CauseKind::WrongAs,
        words: "the peer is in AS 65999, the configuration says 65012",
        advice: "correct asn of this peer in the Network, or the AS of the router",
    },
    Fault {
        name: "bgpd killed",
        begin: &[(TOR, "kill -KILL $(cat /run/frr/bgpd.pid)")],
        end: &[(
            TOR,
            ". /etc/frr/daemons; /usr/lib/frr/bgpd -d ${bgpd_options:--A 127.0.0.1} --log file:/var/log/frr/bgpd.log && vtysh -b",
        )],
        // A kernel without a listener does not reset a signed connection: each attempt gets no
        // answer.
        kind: CauseKind::Closed,
        words: "connection lost: the peer closed the TCP connection",
        advice: "the router's BGP process ended, by a restart, a stop or a crash",
    },
    Fault {
        name: "neighbour removed on the ToR",
        begin: &[(TOR, "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'no neighbor 10.12.0.11'")],
        end: &[(TOR, "vtysh -b")],
        kind: CauseKind::Deconfigured,
        words: "Cease/Peer De-configured",
        advice: "configure this node as a neighbour on the router again, with remote-as 65101",
    },
];

const SILENCE: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth3 priority -500; policy drop; }; }'";
const SILENCE_NODE: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth2 priority -500; policy drop; }; }'";

fn session_loss(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        let node = bed.host(NODE)?;
        settled(bed)?;
        // More prefixes than the ToR's limit.
        let pod = Sandbox::create(bed.fabric, NODE, "pod")?;
        cni::add(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        let mut lines = Vec::new();
        for fault in FAULTS {
            // A session that lasted sets the waits between attempts back to the shortest.
            wait_for("the session to last", PATIENCE, || {
                let peer = peer(node)?;
                let lasts = peer.down_seconds.is_none() && peer.state_seconds > 10;
                Ok(Seen::when(lasts, || format!("{} for {} s", peer.state, peer.state_seconds)))
            })?;
            let flaps = peer(node)?.flaps;
            shell(bed, fault.begin).with_context(|| fault.name.to_owned())?;
            wait_shown(node, fault, flaps)?;
            wait_for(&format!("{LATER} s without a session: {}", fault.name), PATIENCE, || {
                let seconds = peer(node)?.down_seconds;
                Ok(Seen::when(seconds.is_some_and(|seconds| seconds >= LATER), || format!("{seconds:?}")))
            })?;
            shown(node, fault).with_context(|| format!("{LATER} s later: {}", fault.name))?;
            let line = row(node)?;
            say(&format!("      {}: {line}", fault.name));
            lines.push(format!("{}: {line}", fault.name));
            say(&node.sh("trunkline peers 10.12.0.1 | grep -A1 -e ^cause -e '^last '; trunkline doctor | grep -A1 10.12.0.1 || :")?);
            shell(bed, fault.end).with_context(|| fault.name.to_owned())?;
            settled(bed).with_context(|| format!("after {}", fault.name))?;
            ensure!(row(node)?.contains("was down: "), "the cause is not kept: {}", row(node)?);
        }
        passed(lines.join("; "))
    })
}

fn shell(bed: &Bed<'_>, commands: &[(&str, &str)]) -> Result<()> {
    for (place, command) in commands {
        bed.host(place)?.sh(command)?;
    }
    Ok(())
}

fn settled(bed: &Bed<'_>) -> Result<()> {
    client::wait_established(bed.host(NODE)?, PATIENCE)?;
    client::wait_bfd(bed.host(NODE)?, PATIENCE)?;
    routers::wait_sessions(bed.fabric, TOR, PATIENCE).map(drop)
}

fn peer(node: &Host) -> Result<Peer> {
    let mut peers: Vec<Peer> = client::ask(node, &["peers", PEER])?;
    peers.pop().with_context(|| format!("no peer {PEER}"))
}

/// The peer's line of `trunkline peers`.
fn row(node: &Host) -> Result<String> {
    let table = node.run("trunkline", ["peers"])?;
    let line = table.lines().find(|line| line.starts_with(PEER));
    line.map(str::to_owned).with_context(|| format!("no line of {PEER} in\n{table}"))
}

fn wait_shown(node: &Host, fault: &Fault, flaps: u64) -> Result<()> {
    wait_for(&format!("the cause to be shown: {}", fault.name), PATIENCE, || {
        if peer(node)?.flaps == flaps {
            return Ok(Seen::NotYet("the session stands".to_owned()));
        }
        let seen = shown(node, fault);
        Ok(Seen::when(seen.is_ok(), || seen.err().map(|error| format!("{error:#}")).unwrap_or_default()))
    })
}

/// Every view has the cause's words, and those that advise the same advice.
fn shown(node: &Host, fault: &Fault) -> Result<()> {
    let Fault { kind, words, advice, .. } = fault;
    let peer = peer(node)?;
    let cause = peer.cause.with_context(|| format!("{} and no cause", peer.state))?;
    ensure!(cause.kind == *kind, "{:?}, not {kind:?}: {}", cause.kind, cause.text);
    ensure!(cause.advice.contains(advice), "advice: {}", cause.advice);
    let line = row(node)?;
    ensure!(line.contains(words), "`peers`: {line}");
    let one = node.run("trunkline", ["peers", PEER])?;
    ensure!(one.contains(words) && one.contains(advice), "`peers {PEER}`:\n{one}");
    let doctor = node.sh("trunkline doctor || :")?;
    let mut findings = doctor.lines().skip_while(|line| !line.contains(&format!("with peer {PEER}")));
    let (text, fix) = (findings.next().unwrap_or_default(), findings.next().unwrap_or_default());
    ensure!(text.contains(words) && fix.contains(advice), "`doctor`:\n{doctor}");
    let metrics = client::metrics(node)?;
    let series = format!("trunkline_bgp_peer_down_reason{{peer=\"{PEER}\",reason=\"{}\"}} 1", kind.label());
    ensure!(metrics.contains(&series), "no {series}");
    Ok(())
}

fn fresh_start(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        for node in bed.fabric.topology.with_role("node") {
            let host = bed.host(node)?;
            client::wait_established(host, PATIENCE)?;
            for peer in client::peers(host)? {
                // FRR 8.4 replaces its BFD session when BGP becomes Established, and may end BGP
                // for that. Then a loss is shown.
                let shown = peer.last_error.as_ref().filter(|_| peer.flaps == 0);
                ensure!(shown.is_none(), "{node}: {}: {shown:?}", peer.name());
                ensure!(peer.last_attempt.is_none() && peer.cause.is_none(), "{node}: {peer:?}");
            }
        }
        passed("")
    })
}
