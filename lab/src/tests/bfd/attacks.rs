//! Attacks of a pod on BFD. A pod is one hop away, and CAP_NET_RAW, which container runtimes grant
//! by default, lets it write any source address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use trunkline_api::control::{BfdSession, Peer};
use trunkline_bgp::bfd::{MULTIHOP_PORT, Packet, SINGLE_HOP_PORT, State};

use super::forged::{Forged, send};
use super::{SESSIONS, all, ready};
use crate::client;
use crate::cni::Sandbox;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::{Context, Verdict, passed};

/// Number of times that each forged packet is sent.
const TIMES: usize = 20;
/// Number of packets in a flood from a pod, and in a flood through a router's link.
const FLOOD: usize = 200_000;
const KNOWN_FLOOD: usize = 20_000;

/// A packet that would take a session down if it were accepted.
fn packet(state: State, your_discriminator: u32) -> Packet {
    Packet {
        diagnostic: trunkline_bgp::bfd::Diagnostic::NONE,
        state,
        poll: false,
        final_: false,
        control_plane_independent: true,
        authenticated: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 0x666,
        your_discriminator,
        desired_min_tx: Duration::from_secs(1),
        required_min_rx: Duration::from_secs(1),
        required_min_echo_rx: Duration::ZERO,
    }
}

fn port(bfd: &BfdSession) -> u16 {
    if bfd.multihop { MULTIHOP_PORT } else { SINGLE_HOP_PORT }
}

/// The destination of forged packets: this node's address in a peer's session, with BFD's port.
fn target((peer, bfd): &(Peer, BfdSession)) -> Result<SocketAddr> {
    let session = peer.session.as_ref().with_context(|| format!("{} has no session", peer.address))?;
    Ok(SocketAddr::new(session.local.ip(), port(bfd)))
}

/// BFD packets that the agent's sockets or the agent have refused, by reason.
fn refused(node: &Host) -> Result<BTreeMap<String, u64>> {
    let series = "trunkline_bfd_refused_packets_total{reason=\"";
    let text = client::metrics(node)?;
    let read = |line: &str| {
        let (reason, count) = line.strip_prefix(series)?.split_once("\"} ")?;
        Some((reason.to_owned(), count.parse().ok()?))
    };
    Ok(text.lines().filter_map(read).collect())
}

/// The increase of these counters, by reason.
fn more(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |(reason, count): (&String, &u64)| {
        (reason.clone(), count - before.get(reason).copied().unwrap_or_default())
    };
    now.iter().map(since).filter(|(_, count)| *count > 0).collect()
}

/// The number of times that each session left Up because of a packet. (After an interruption of the
/// machine, a session may also expire by silence.)
fn losses(sessions: &BTreeMap<IpAddr, (Peer, BfdSession)>) -> BTreeMap<IpAddr, u64> {
    sessions.iter().map(|(address, (_, bfd))| (*address, bfd.downs - bfd.detections)).collect()
}

/// A pod whose forged packets reach BFD's sockets. The kernel's check of sources and the guard are
/// off, because the test is about the sockets. Otherwise `send` would also count packets that this
/// check drops.
fn attacker(bed: &Bed<'_>) -> Result<Sandbox> {
    let (pod, _) = bed.attached("pod", "rack1")?;
    bed.node()?.sh("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$file; done")?;
    Ok(pod)
}

pub(super) fn spoofed(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let pod = attacker(bed)?;
        let sessions = all(bed)?;
        let mut packets = Vec::new();
        for (address, session) in &sessions {
            // A pod does not know the discriminator. Even if it did, the session must stay.
            for discriminator in [0, session.1.local_discriminator] {
                for state in [State::AdminDown, State::Down] {
                    packets.push(Forged::new(*address, target(session)?, &packet(state, discriminator))?);
                }
            }
        }
        let node = bed.node()?;
        let (before, losses_before) = (refused(node)?, losses(&sessions));
        let sent = pod.ns.within(|| send(&packets, TIMES))?;
        wait_for("the forged packets to be refused", PATIENCE, || {
            let lost = losses(&all(bed)?);
            ensure!(lost == losses_before, "a pod ended sessions: {lost:?}, before {losses_before:?}");
            let more = more(&before, &refused(node)?);
            Ok(Seen::when(more.values().sum::<u64>() >= sent as u64, || format!("{more:?} of {sent}")))
        })?;
        let more = more(&before, &refused(node)?);
        ensure!(more.keys().all(|reason| reason == "socket"), "forged packets reached the agent: {more:?}");
        believed_on_its_link(bed)?;
        passed(format!("{sent} forged packets for {} sessions refused, none of them lost", SESSIONS.len()))
    })
}

/// The same packets on the peer's own link end the session: the agent checks the link, not the
/// packet.
fn believed_on_its_link(bed: &Bed<'_>) -> Result<()> {
    for (router, address) in [("frr", "10.1.0.1"), ("bird", "fd00:2::1")] {
        let address: IpAddr = address.parse()?;
        let session = all(bed)?.remove(&address).with_context(|| format!("no session with {address}"))?;
        let forged = [Forged::new(address, target(&session)?, &packet(State::Down, 0))?];
        let sent = bed.host(router)?.ns.within(|| send(&forged, 1))?;
        wait_for(&format!("{sent} packet on {router}'s link to end its session"), PATIENCE, || {
            let (peer, bfd) = all(bed)?.remove(&address).context("no session")?;
            Ok(Seen::when(peer.flaps > session.0.flaps, || format!("{bfd:?}")))
        })?;
    }
    ready(bed)
}

/// The address of a session moves to another link of the node: the session follows it.
pub(super) fn moved(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let node = bed.node()?;
        node.sh(
            "ip link add br0 type bridge && ip link set br0 up && ip addr flush dev eth1 scope global && \
                 ip link set eth1 master br0 && ip addr add 10.1.0.11/24 dev br0 && \
                 ip addr add fd00:1::11/64 dev br0 nodad && ip route replace 10.3.0.0/24 via 10.1.0.1 && \
                 ip -6 route replace fd00:3::/64 via fd00:1::1",
        )?;
        ready(bed).context("over the bridge")?;
        node.sh("ip addr flush dev br0 scope global && ip link set eth1 nomaster && \
                 ip addr add 10.1.0.11/24 dev eth1 && ip addr add fd00:1::11/64 dev eth1 nodad && \
                 ip route replace 10.3.0.0/24 via 10.1.0.1 && ip -6 route replace fd00:3::/64 via fd00:1::1 && \
                 ip link del br0")?;
        ready(bed).context("over the link again")?;
        passed("to a bridge and back".to_owned())
    })
}

/// Work of the agent's BFD thread.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Number of sleeps: one for each wake-up.
    sleeps: u64,
    /// Processor time, in milliseconds.
    milliseconds: u64,
}

fn work(node: &Host) -> Result<Work> {
    let agent = client::agent(node)?.as_raw_nonzero().get();
    for task in std::fs::read_dir(format!("/proc/{agent}/task"))? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "bfd" {
            let status = std::fs::read_to_string(task.join("status"))?;
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let schedule = std::fs::read_to_string(task.join("schedstat"))?;
            let on_processor: u64 = schedule.split(' ').next().context("an empty schedstat")?.parse()?;
            return Ok(Work {
                sleeps: sleeps.context("no voluntary_ctxt_switches")?.trim().parse()?,
                milliseconds: on_processor / 1_000_000,
            });
        }
    }
    anyhow::bail!("the agent has no thread `bfd`")
}

/// Effects of a flood.
struct Flooded {
    refused: BTreeMap<String, u64>,
    /// Packets that the sessions sent and received meanwhile. Each packet causes a wake-up.
    own: u64,
    sleeps: u64,
    milliseconds: u64,
}

/// Sends a flood and waits until this number of its packets is counted.
fn flood(bed: &Bed<'_>, send: impl FnOnce() -> Result<usize>, counted: usize) -> Result<Flooded> {
    let node = bed.node()?;
    let packets = || -> Result<u64> {
        Ok(all(bed)?.values().map(|(_, bfd)| bfd.packets_received + bfd.packets_sent).sum())
    };
    let (refused_before, packets_before, before) = (refused(node)?, packets()?, work(node)?);
    send()?;
    let refused = wait_for("the flood to be counted", PATIENCE, || {
        let more = more(&refused_before, &refused(node)?);
        let enough = more.values().sum::<u64>() >= counted as u64;
        Ok(if enough { Seen::Yes(more) } else { Seen::NotYet(format!("{more:?} of {counted}")) })
    })?;
    let (now, own) = (work(node)?, packets()? - packets_before);
    Ok(Flooded {
        refused,
        own,
        sleeps: now.sleeps - before.sleeps,
        milliseconds: now.milliseconds - before.milliseconds,
    })
}

pub(super) fn flooded(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let pod = attacker(bed)?;
        let frr: IpAddr = "10.1.0.1".parse()?;
        let to = target(&all(bed)?[&frr])?;
        // No session has this discriminator.
        let forged = [Forged::new(frr, to, &packet(State::Up, 0x666))?];
        // A queue of the kernel before the socket's filter may overflow. Half of the packets are
        // enough for the test.
        let by_pod = flood(bed, || pod.ns.within(|| send(&forged, FLOOD)), FLOOD / 2)?;
        let dropped = by_pod.refused.get("socket").copied().unwrap_or_default();
        ensure!(by_pod.refused.len() == 1, "packets of a pod reached the agent: {:?}", by_pod.refused);
        let most = by_pod.own + dropped / 100;
        ensure!(
            by_pod.sleeps <= most,
            "the flood woke the thread {} times; {} packets of sessions, {dropped} of the flood",
            by_pod.sleeps,
            by_pod.own
        );
        // On the router's link the same packets pass the filter: this is the cost of a flood
        // without a filter.
        let router = bed.host("frr")?;
        let by_router = flood(bed, || router.ns.within(|| send(&forged, KNOWN_FLOOD)), KNOWN_FLOOD / 2)?;
        let received = by_router.refused.get("discriminator").copied().unwrap_or_default();
        ensure!(received > 0, "the filter dropped packets that may be the router's: {:?}", by_router.refused);
        ready(bed)?;
        let said = |flooded: &Flooded| {
            format!(
                "{:?}: {} wake-ups for {} packets of sessions, {} ms of processor time",
                flooded.refused, flooded.sleeps, flooded.own, flooded.milliseconds
            )
        };
        passed(format!("by a pod {}; by the router's link {}", said(&by_pod), said(&by_router)))
    })
}
