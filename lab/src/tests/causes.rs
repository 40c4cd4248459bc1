//! Each kind of loss of a session with a ToR shows its cause, and keeps showing it: `peers`,
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
        about: "cable, silence, password, prefix limit, AS, process, neighbour: the cause of a \
                lost session is shown with its advice, and stays",
        run: session_loss,
    },
    Test {
        name: "causes/fresh-start",
        about: "a fresh lab shows no error from before the first session",
        run: fresh_start,
    },
];

/// Seconds after the loss at which the cause must still be shown. An attempt to connect takes less
/// time.
const LATER: u64 = 12;

/// A session of a node with a ToR.
struct Session {
    node: &'static str,
    tor: &'static str,
    /// The node's interface.
    uplink: &'static str,
    /// The ToR's interface.
    port: &'static str,
    /// The node's address and AS.
    own: (&'static str, &'static str),
    /// The ToR's address and AS.
    peer: (&'static str, &'static str),
    password: &'static str,
}

const ONE_A: Session = Session {
    node: "node1a",
    tor: "tor1b",
    uplink: "eth2",
    port: "eth3",
    own: ("10.12.0.11", "65101"),
    peer: ("10.12.0.1", "65012"),
    password: "rack1-lab-secret",
};
const ONE_B: Session = Session {
    node: "node1b",
    tor: "tor1a",
    uplink: "eth1",
    port: "eth4",
    own: ("10.11.0.12", "65101"),
    peer: ("10.11.0.1", "65011"),
    password: "rack1-lab-secret",
};
const TWO_A: Session = Session {
    node: "node2a",
    tor: "tor2a",
    uplink: "eth1",
    port: "eth3",
    own: ("10.21.0.21", "4200000102"),
    peer: ("10.21.0.1", "65021"),
    password: "rack2-lab-secret",
};
const TWO_B: Session = Session {
    node: "node2b",
    tor: "tor2b",
    uplink: "eth2",
    port: "eth4",
    own: ("10.22.0.22", "4200000102"),
    peer: ("10.22.0.1", "65022"),
    password: "rack2-lab-secret",
};

impl Session {
    /// Fills in this session's names and addresses.
    fn fill(&self, text: &str) -> String {
        [
            ("{uplink}", self.uplink),
            ("{port}", self.port),
            ("{own}", self.own.0),
            ("{own-as}", self.own.1),
            ("{peer}", self.peer.0),
            ("{peer-as}", self.peer.1),
            ("{password}", self.password),
        ]
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The side of a session that runs a command.
#[derive(Clone, Copy)]
enum At {
    Node,
    Tor,
}

/// A fault of one session. In the texts, names in braces stand for values of the session.
struct Fault {
    name: &'static str,
    begin: &'static [(At, &'static str)],
    end: &'static [(At, &'static str)],
    kind: CauseKind,
    /// Words in the shown cause.
    words: &'static str,
    /// Words in the advice.
    advice: &'static str,
    /// The other possible cause, if the order of two packets decides between two.
    or: Option<&'static Fault>,
}

/// Faults that happen at the same time, each on another node and another ToR. No node loses both of
/// its sessions, because its kernel has one counter of wrong TCP-MD5 signatures for all sessions.
const PHASES: [&[(Session, Fault)]; 2] = [
    &[(ONE_A, CABLE), (ONE_B, PASSWORD), (TWO_A, LIMIT), (TWO_B, SILENT)],
    // The killed process has sessions with both nodes of rack 2.
    &[(ONE_A, WRONG_AS), (ONE_B, REMOVED), (TWO_B, KILLED)],
];

const CABLE: Fault = Fault {
    name: "cable cut",
    begin: &[(At::Tor, "ip link set {port} down")],
    end: &[(At::Tor, "ip link set {port} up")],
    kind: CauseKind::Carrier,
    words: "{uplink} has no carrier",
    advice: "check the cable of {uplink} and the router's port",
    or: None,
};

const SILENT: Fault = Fault {
    name: "link up and silent",
    begin: &[
        (
            At::Tor,
            "nft 'table netdev silence { chain ingress { type filter hook ingress device {port} priority -500; policy drop; }; }'",
        ),
        (
            At::Node,
            "nft 'table netdev silence { chain ingress { type filter hook ingress device {uplink} priority -500; policy drop; }; }'",
        ),
    ],
    end: &[(At::Tor, "nft delete table netdev silence"), (At::Node, "nft delete table netdev silence")],
    kind: CauseKind::Bfd,
    words: "BFD session down: Control Detection Time Expired",
    advice: "run `ping {peer}`. No answer: the link or the router is dead",
    or: None,
};

const PASSWORD: Fault = Fault {
    name: "wrong password on the ToR",
    begin: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'neighbor {own} password wrong'",
    )],
    end: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'neighbor {own} password {password}'",
    )],
    kind: CauseKind::Passwords,
    words: "the passwords differ: the kernel refused ",
    advice: "compare the password of {peer} with the router's",
    or: None,
};

const LIMIT: Fault = Fault {
    name: "prefix limit of the ToR",
    begin: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'address-family ipv4 unicast' \
         -c 'neighbor {own} maximum-prefix 1'",
    )],
    end: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'address-family ipv4 unicast' \
         -c 'no neighbor {own} maximum-prefix 1' && vtysh -c 'clear bgp {own}'",
    )],
    kind: CauseKind::PrefixLimit,
    words: "Cease/Maximum Number of Prefixes Reached",
    advice: "raise the limit for this node on the router",
    or: None,
};

const WRONG_AS: Fault = Fault {
    name: "wrong AS on the ToR",
    begin: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'neighbor {own} local-as 65999 no-prepend replace-as'",
    )],
    end: &[(
        At::Tor,
        "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'no neighbor {own} local-as'",
    )],
    kind: CauseKind::WrongAs,
    words: "the peer is in AS 65999, the configuration says {peer-as}",
    advice: "correct asn of this peer in the Network, or the AS of the router",
    or: None,
};

const KILLED: Fault = Fault {
    name: "bgpd killed",
    begin: &[(At::Tor, "kill -KILL $(cat /run/frr/bgpd.pid)")],
    end: &[(
        At::Tor,
        ". /etc/frr/daemons; /usr/lib/frr/bgpd -d ${bgpd_options:--A 127.0.0.1} --log file:/var/log/frr/bgpd.log && vtysh -b",
    )],
    // A kernel without a listener does not reset a signed connection: each attempt gets no answer.
    kind: CauseKind::Closed,
    words: "connection lost: the peer closed the TCP connection",
    advice: "the router's BGP process ended, by a restart, a stop or a crash",
    or: Some(&BFD_FIRST),
};

/// FRR's bfdd removes the session of a bgpd that has ended, and says so. Its packet may arrive
/// before the FIN of bgpd's connection.
const BFD_FIRST: Fault = Fault {
    name: "bgpd killed, BFD first",
    begin: &[],
    end: &[],
    kind: CauseKind::Bfd,
    words: "BFD session down: Neighbor Signaled Session Down",
    advice: "An answer: the router's BGP process ended",
    or: None,
};

const REMOVED: Fault = Fault {
    name: "neighbour removed on the ToR",
    begin: &[(At::Tor, "vtysh -c 'configure terminal' -c 'router bgp {peer-as}' -c 'no neighbor {own}'")],
    end: &[(At::Tor, "vtysh -b")],
    kind: CauseKind::Deconfigured,
    words: "Cease/Peer De-configured",
    advice: "configure this node as a neighbour on the router again, with remote-as {own-as}",
    or: None,
};

fn session_loss(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        for (session, _) in PHASES[0] {
            settled(bed, session)?;
        }
        // More prefixes than the ToR's limit.
        let pod = Sandbox::create(bed.fabric, TWO_A.node, "pod")?;
        cni::add(bed.fabric, &cni::trunkline(Some("rack2")), &pod)?;
        let mut lines = Vec::new();
        for phase in PHASES {
            std::thread::scope(|scope| -> Result<()> {
                let threads: Vec<_> =
                    phase.iter().map(|(session, fault)| scope.spawn(|| lose(bed, session, fault))).collect();
                // All threads end before the first error is returned.
                let ended: Vec<_> = threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect();
                for (line, (session, fault)) in ended.into_iter().zip(phase) {
                    lines.push(line.with_context(|| format!("{} of {}", fault.name, session.node))?);
                }
                Ok(())
            })?;
        }
        passed(lines.join("; "))
    })
}

/// One fault from its beginning until the session is up again; returns the peer's line during it.
fn lose(bed: &Bed<'_>, session: &Session, fault: &Fault) -> Result<String> {
    let node = bed.host(session.node)?;
    // After a session has lasted for some time, the wait between attempts is the shortest again.
    wait_for("the session to last", PATIENCE, || {
        let peer = peer(node, session)?;
        let lasts = peer.down_seconds.is_none() && peer.state_seconds > 10;
        Ok(Seen::when(lasts, || format!("{} for {} s", peer.state, peer.state_seconds)))
    })?;
    let flaps = peer(node, session)?.flaps;
    shell(bed, session, fault.begin)?;
    let expected = wait_for("the cause to be shown", PATIENCE, || {
        if peer(node, session)?.flaps == flaps {
            return Ok(Seen::NotYet("the session is still up".to_owned()));
        }
        let Err(error) = shown(node, session, fault) else { return Ok(Seen::Yes(fault)) };
        match fault.or {
            Some(other) if shown(node, session, other).is_ok() => Ok(Seen::Yes(other)),
            _ => Ok(Seen::NotYet(format!("{error:#}"))),
        }
    })?;
    wait_for(&format!("{LATER} s without a session"), PATIENCE, || {
        let seconds = peer(node, session)?.down_seconds;
        Ok(Seen::when(seconds.is_some_and(|seconds| seconds >= LATER), || format!("{seconds:?}")))
    })?;
    shown(node, session, expected).with_context(|| format!("{LATER} s later"))?;
    let line = format!("{}: {}", fault.name, row(node, session)?);
    let more = session.fill(
        "trunkline peers {peer} | grep -A1 -e ^cause -e '^last '; trunkline doctor | grep -A1 {peer} || :",
    );
    say(&format!("      {line}\n{}", node.sh(&more)?));
    shell(bed, session, fault.end)?;
    settled(bed, session).context("after the fault")?;
    let after = row(node, session)?;
    ensure!(after.contains("was down: "), "the cause is no longer shown: {after}");
    Ok(line)
}

fn shell(bed: &Bed<'_>, session: &Session, commands: &[(At, &str)]) -> Result<()> {
    for (at, command) in commands {
        let host = match at {
            At::Node => session.node,
            At::Tor => session.tor,
        };
        bed.host(host)?.sh(&session.fill(command))?;
    }
    Ok(())
}

fn settled(bed: &Bed<'_>, session: &Session) -> Result<()> {
    let node = bed.host(session.node)?;
    client::wait_established(node, PATIENCE)?;
    client::wait_bfd(node, PATIENCE)?;
    routers::wait_sessions(bed.fabric, session.tor, PATIENCE).map(drop)
}

fn peer(node: &Host, session: &Session) -> Result<Peer> {
    let address = session.peer.0;
    let mut peers: Vec<Peer> = client::ask(node, &["peers", address])?;
    peers.pop().with_context(|| format!("no peer {address}"))
}

/// The peer's line of `trunkline peers`.
fn row(node: &Host, session: &Session) -> Result<String> {
    let table = node.run("trunkline", ["peers"])?;
    let line = table.lines().find(|line| line.starts_with(session.peer.0));
    line.map(str::to_owned).with_context(|| format!("no line of {} in\n{table}", session.peer.0))
}

/// Every view has the cause's words. Views with advice have the same advice.
fn shown(node: &Host, session: &Session, fault: &Fault) -> Result<()> {
    let (kind, address) = (fault.kind, session.peer.0);
    let (words, advice) = (session.fill(fault.words), session.fill(fault.advice));
    let peer = peer(node, session)?;
    let cause = peer.cause.with_context(|| format!("{} and no cause", peer.state))?;
    ensure!(cause.kind == kind, "{:?}, not {kind:?}: {}", cause.kind, cause.text);
    ensure!(cause.advice.contains(&advice), "advice: {}", cause.advice);
    let line = row(node, session)?;
    ensure!(line.contains(&words), "`peers`: {line}");
    let one = node.run("trunkline", ["peers", address])?;
    ensure!(one.contains(&words) && one.contains(&advice), "`peers {address}`:\n{one}");
    let doctor = node.sh("trunkline doctor || :")?;
    let mut findings = doctor.lines().skip_while(|line| !line.contains(&format!("with peer {address}")));
    let (text, fix) = (findings.next().unwrap_or_default(), findings.next().unwrap_or_default());
    ensure!(text.contains(&words) && fix.contains(&advice), "`doctor`:\n{doctor}");
    let metrics = client::metrics(node)?;
    let series =
        format!("trunkline_bgp_peer_down_reason{{peer=\"{address}\",reason=\"{}\"}} 1", kind.label());
    ensure!(metrics.contains(&series), "no {series}");
    Ok(())
}

fn fresh_start(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        for node in bed.fabric.topology.with_role("node") {
            let host = bed.host(node)?;
            client::wait_established(host, PATIENCE)?;
            for peer in client::peers(host)? {
                // When BGP becomes Established, FRR 8.4 replaces its BFD session, and may end the
                // BGP session because of this. Then the peer shows this loss.
                let shown = peer.last_error.as_ref().filter(|_| peer.flaps == 0);
                ensure!(shown.is_none(), "{node}: {}: {shown:?}", peer.name());
                ensure!(peer.last_attempt.is_none() && peer.cause.is_none(), "{node}: {peer:?}");
            }
        }
        passed("")
    })
}
