//! BFD with FRR and BIRD: single-hop and multihop, IPv4 and IPv6. The tests cover failures, a
//! restart of the agent, and load. No time is asserted: the demo measures the detection time.

mod attacks;
mod forged;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::{BfdDiagnostic, BfdSession, BfdState, Peer};

use super::bed::{Bed, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Sandbox};
use crate::daemons::vtysh;
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::stillness::{self, StopOnDrop};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "bfd/routers",
        about: "FRR and BIRD, over one hop and two, IPv4 and IPv6: the sessions of a silent router \
                go down, and come up when it returns",
        run: routers_fall_silent,
    },
    Test {
        name: "bfd/peer-says",
        about: "a signal of FRR by BFD: Down ends the session, AdminDown does not",
        run: the_peer_says,
    },
    Test {
        name: "bfd/restart",
        about: "BFD ends with the agent, and graceful restart continues: no packet lost, FRR and BIRD",
        run: restart,
    },
    Test {
        name: "bfd/load",
        about: "busy processors, 100,000 routes that are added and removed, and a storm of ADDs \
                end no BFD session of 10 ms x 3",
        run: load,
    },
    Test {
        name: "bfd/spoofed",
        about: "a pod that sends AdminDown and Down with the routers' addresses and TTL 255 ends no session, IPv4 and IPv6",
        run: attacks::spoofed,
    },
    Test {
        name: "bfd/moved",
        about: "a session's address moves to another link and back: the session follows",
        run: attacks::moved,
    },
    Test {
        name: "bfd/flood",
        about: "200,000 forged packets of a pod do not wake the agent's BFD thread",
        run: attacks::flooded,
    },
];

/// node1's sessions: the router at the other end, its address, and whether they are multihop.
const SESSIONS: [(&str, &str, bool); 9] = [
    ("frr", "10.1.0.1", false),
    ("frr", "fd00:1::1", false),
    ("bird", "10.2.0.1", false),
    ("bird", "fd00:2::1", false),
    ("far-bird", "10.3.0.2", true),
    ("far-bird", "fd00:3::2", true),
    ("far-frr", "10.4.0.2", true),
    ("far-frr", "fd00:4::2", true),
    ("inside", "10.5.0.1", false),
];

/// The routers with FRR.
const FRRS: [&str; 3] = ["frr", "far-frr", "inside"];

/// The node's addresses on frr's links.
const NEIGHBOURS: [&str; 2] = ["10.1.0.11", "fd00:1::11"];

/// Routers that are cut off together: the second is only reachable through the first.
const BEHIND: [(&str, &str); 2] = [("frr", "far-bird"), ("bird", "far-frr")];

fn ready(bed: &Bed<'_>) -> Result<()> {
    bed.established()?;
    client::wait_bfd(bed.node()?, PATIENCE)?;
    for router in bed.fabric.topology.with_role("router") {
        routers::wait_sessions(bed.fabric, router, PATIENCE)?;
        routers::wait_bfd(bed.fabric, router, PATIENCE)?;
    }
    Ok(())
}

fn all(bed: &Bed<'_>) -> Result<BTreeMap<IpAddr, (Peer, BfdSession)>> {
    let peers = client::peers(bed.node()?)?;
    let with_bfd = |peer: Peer| {
        let bfd = peer.bfd.clone().with_context(|| format!("{} has no BFD session", peer.address))?;
        Ok((peer.address, (peer, bfd)))
    };
    peers.into_iter().map(with_bfd).collect()
}

fn routers_fall_silent(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let sessions = all(bed)?;
        ensure!(sessions.len() == SESSIONS.len(), "{:?}", sessions.keys());
        for (router, address, multihop) in SESSIONS {
            let (_, bfd) = &sessions[&address.parse::<IpAddr>()?];
            let seen = (bfd.multihop, bfd.transmit_milliseconds, bfd.detection_milliseconds);
            ensure!(seen == (multihop, 50, Some(150)), "{router} {address}: {bfd:?}");
        }
        for router in ["inside", "far-bird", "far-frr", "frr", "bird"] {
            falls_silent(bed, router).with_context(|| router.to_owned())?;
        }
        passed(format!("{} sessions of 5 routers", SESSIONS.len()))
    })
}

fn falls_silent(bed: &Bed<'_>, router: &str) -> Result<()> {
    let gone: BTreeSet<IpAddr> = SESSIONS
        .iter()
        .filter(|(with, ..)| *with == router || BEHIND.contains(&(router, with)))
        .map(|(_, address, _)| address.parse())
        .collect::<Result<_, _>>()?;
    let before = all(bed)?;
    bed.host(router)?.silence()?;
    wait_for(&format!("the silence of {router} to be noticed"), PATIENCE, || {
        let now = all(bed)?;
        let missing: Vec<&IpAddr> = gone
            .iter()
            .filter(|address| {
                let ((peer, bfd), (before, bfd_before)) = (&now[*address], &before[*address]);
                // The Hold Time cannot be the cause: it is 90 s.
                let notified =
                    peer.notification_sent.as_ref().is_some_and(|said| said.text.contains("BFD Down"));
                !(bfd.detections > bfd_before.detections && peer.flaps > before.flaps && notified)
            })
            .collect();
        Ok(Seen::when(missing.is_empty(), || format!("not with {missing:?}")))
    })?;
    for (address, (peer, bfd)) in all(bed)?.iter().filter(|(address, _)| !gone.contains(*address)) {
        let (before, bfd_before) = &before[address];
        ensure!(
            (bfd.downs, peer.flaps) == (bfd_before.downs, before.flaps),
            "the session with {address} does not depend on {router}: {bfd:?}"
        );
    }
    bed.host(router)?.end_silence()?;
    ready(bed).context("afterwards")
}

fn the_peer_says(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let inside: IpAddr = "10.5.0.1".parse()?;
        let (before, bfd_before) = all(bed)?[&inside].clone();
        let host = bed.host("inside")?;
        // FRR first signals AdminDown, which must have no effect.
        vtysh(host, &["configure", "bfd", "profile FAST", "shutdown"])?;
        wait_for("FRR's AdminDown", PATIENCE, || {
            let bfd = &all(bed)?[&inside].1;
            Ok(Seen::when(bfd.state == BfdState::Down && bfd.remote_state == BfdState::AdminDown, || {
                format!("{bfd:?}")
            }))
        })?;
        let (peer, _) = all(bed)?[&inside].clone();
        ensure!(peer.is_established() && peer.flaps == before.flaps, "{peer:?}");
        vtysh(host, &["configure", "bfd", "profile FAST", "no shutdown"])?;
        ready(bed)?;
        // FRR no longer receives packets, and reports this.
        host.sh("nft 'add table inet deaf; add chain inet deaf in { type filter hook input priority 0; }; \
                 add rule inet deaf in udp dport 3784 drop'")?;
        wait_for("FRR's Down to end the session", PATIENCE, || {
            let (peer, bfd) = all(bed)?[&inside].clone();
            let good = bfd.downs > bfd_before.downs + 1 && peer.flaps > before.flaps;
            Ok(Seen::when(good, || format!("{peer:?}")))
        })?;
        let (_, bfd) = all(bed)?[&inside].clone();
        ensure!(
            bfd.detections == bfd_before.detections,
            "this side received packets from FRR all the time: {bfd:?}"
        );
        ensure!(
            bfd.diagnostic == BfdDiagnostic::Text("Neighbor Signaled Session Down".to_owned()),
            "{bfd:?}"
        );
        ensure!(
            bfd.remote_diagnostic == BfdDiagnostic::Text("Control Detection Time Expired".to_owned()),
            "{bfd:?}"
        );
        host.sh("nft delete table inet deaf")?;
        ready(bed)?;
        passed(format!("{} losses in all, none by the detection time", bfd.downs))
    })
}

fn restart(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let node = bed.node()?;
        let (_pod, attached) = bed.attached("pod", "rack1")?;
        let mut pings = 0;
        let mut through = |signal: Signal| -> Result<()> {
            let pingers = [bed.pings("frr", &attached.addresses)?, bed.pings("bird", &attached.addresses)?];
            client::end_agent(node, signal)?;
            for router in ["frr", "bird"] {
                routers::wait_bfd_lost(bed.fabric, router, PATIENCE)?;
            }
            // During this second the routers retain the paths although BFD is down.
            pingers[0].wait_sent(200, PATIENCE)?;
            client::start_agent(node)?;
            ready(bed)?;
            for address in NEIGHBOURS {
                routers::wait_nothing_stale(bed.host("frr")?, address, PATIENCE)?;
            }
            for pinger in pingers {
                pings += lost_nothing(pinger)?;
            }
            Ok(())
        };
        through(Signal::TERM).context("SIGTERM")?;
        through(Signal::KILL).context("SIGKILL")?;
        let neighbours = NEIGHBOURS.map(|n| format!("neighbor {n} bfd check-control-plane-failure"));
        vtysh(bed.host("frr")?, &["configure", "router bgp 65001", &neighbours[0], &neighbours[1]])?;
        ready(bed)?;
        through(Signal::KILL).context("SIGKILL; FRR checks the C bit")?;
        passed(format!("{pings} pings through three restarts, none lost"))
    })
}

/// Number of routes that BIRD advertises and withdraws.
const ROUTES: u32 = 100_000;
const STORMS: usize = 4;
const LOAD: Duration = Duration::from_secs(20);
/// Number of attempts to get a load during which the machine itself is not interrupted.
const LOADS: usize = 4;
/// An acceptable interruption of the machine: one interval of the sessions. A session expires after
/// three intervals, so the routers and the agent have the other two.
const TOLERABLE: Duration = Duration::from_millis(10);

fn load(context: &Context) -> Result<Verdict> {
    lab(context, "bfd", |bed| {
        ready(bed)?;
        let flaps =
            |peers: &BTreeMap<IpAddr, (Peer, BfdSession)>| peers.values().map(|(p, _)| p.flaps).sum::<u64>();
        let settled = flaps(&all(bed)?);
        // A ToR runs BFD in hardware or in its line card. The test is about the agent, so bfdd must
        // not wait for a processor.
        for router in FRRS {
            bed.host(router)?.sh("chrt --all-tasks --rr --pid 10 $(cat /var/run/frr/bfdd.pid)")?;
        }
        faster(bed)?;
        ensure!(flaps(&all(bed)?) == settled, "new timers have cost a session");
        let pods: Vec<Sandbox> =
            (0..STORMS).map(|number| bed.pod(&format!("storm{number}"))).collect::<Result<_>>()?;
        for _ in 0..LOADS {
            let (seen, stood_still) = stillness::longest_while(|| under_load(bed, &pods))?;
            if seen.lost.is_empty() {
                return passed(format!("{seen}; the machine was suspended for {stood_still:.1?} at most"));
            }
            // A longer interruption of the machine leaves too little of the session's 30 ms, so no
            // program could have kept the session.
            ensure!(
                stood_still > TOLERABLE,
                "lost: {}; {seen}, and the machine was suspended for {stood_still:.1?} at most",
                seen.lost.join("; ")
            );
            say(&format!(
                "  the machine was suspended for {stood_still:.1?}, and {} were lost: once more",
                seen.lost.len()
            ));
            ready(bed)?;
        }
        Ok(Verdict::Skipped(format!(
            "in each of {LOADS} loads this machine was suspended for more than {TOLERABLE:?}: no program can keep sessions of 10 ms x 3 on it"
        )))
    })
}

/// Effects of a load.
struct Loaded {
    /// Lost sessions with FRR, with their details.
    lost: Vec<String>,
    /// BIRD's thread has no priority over the load here, so its losses show nothing about the
    /// agent's.
    lost_of_bird: u64,
    packets: u64,
    adds: usize,
    rounds: usize,
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, lost_of_bird, packets, adds, rounds } = self;
        write!(
            f,
            "{packets} packets, {adds} ADDs and DELs, {rounds} times {ROUTES} routes; sessions lost: {} with FRR, {lost_of_bird} with BIRD",
            lost.len()
        )
    }
}

/// Busy processors, routes that are added and removed, and a storm of ADDs.
fn under_load(bed: &Bed<'_>, pods: &[Sandbox]) -> Result<Loaded> {
    let before = all(bed)?;
    let stop = AtomicBool::new(false);
    let adds = AtomicUsize::new(0);
    let processors = std::thread::available_parallelism()?.get();
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..4 * processors {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (stop, adds) = (&stop, &adds);
        let storms: Vec<_> = pods
            .iter()
            .map(|pod| {
                scope.spawn(move || -> Result<()> {
                    let conf = cni::trunkline(Some("rack1"));
                    while !stop.load(Ordering::Relaxed) {
                        cni::add(bed.fabric, &conf, pod)?;
                        cni::del(bed.fabric, &conf, pod)?;
                        adds.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < LOAD {
            come_and_go(bed)?;
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        storms.into_iter().try_for_each(|s| s.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    let adds = adds.into_inner();
    let mut loaded = Loaded { lost: Vec::new(), lost_of_bird: 0, packets: 0, adds, rounds };
    for (address, (_, bfd)) in all(bed)? {
        let router = SESSIONS.iter().find(|(_, a, _)| a.parse() == Ok(address)).map(|(router, ..)| *router);
        let before = &before[&address].1;
        let lost = bfd.downs - before.downs;
        loaded.packets += bfd.packets_received - before.packets_received;
        if router.is_some_and(|router| router.contains("bird")) {
            loaded.lost_of_bird += lost;
        } else if lost > 0 {
            let silent = bfd.detections - before.detections;
            loaded.lost.push(format!(
                "{address} {lost} times, {silent} of them because the router fell silent: {bfd:?}"
            ));
        }
    }
    Ok(loaded)
}

/// Changes the interval of FRR and the agent from 50 ms to the minimum of 10 ms. The detection time
/// is then 30 ms.
fn faster(bed: &Bed<'_>) -> Result<()> {
    let manifest = bed.manifest("network.yaml");
    manifest.write(&manifest.read()?.replace("intervalMilliseconds: 50", "intervalMilliseconds: 10"))?;
    for router in FRRS {
        let commands = ["configure", "bfd", "profile FAST", "receive-interval 10", "transmit-interval 10"];
        vtysh(bed.host(router)?, &commands)?;
    }
    wait_for("FRR's sessions to be faster", PATIENCE, || {
        let peers = all(bed)?;
        let mut slow = Vec::new();
        for (_, address, _) in SESSIONS.iter().filter(|(router, ..)| !router.contains("bird")) {
            let (_, bfd) = &peers[&address.parse::<IpAddr>()?];
            if (bfd.transmit_milliseconds, bfd.detection_milliseconds) != (10, Some(30)) {
                slow.push((address, bfd.transmit_milliseconds, bfd.detection_milliseconds));
            }
        }
        Ok(Seen::when(slow.is_empty(), || format!("{slow:?}")))
    })
}

/// BIRD advertises its routes, the agent installs them, and BIRD withdraws them.
fn come_and_go(bed: &Bed<'_>) -> Result<()> {
    let bird = bed.host("bird")?;
    for count in [ROUTES, 0] {
        let route = |number: u32| {
            let prefix = Ipv4Addr::from(u32::from(Ipv4Addr::new(60, 0, 0, 0)) + (number << 8));
            format!("route {prefix}/24 blackhole;\n")
        };
        let routes: String =
            std::iter::once("# Written by the test.\n".to_owned()).chain((0..count).map(route)).collect();
        std::fs::write(bed.fabric.file("bfd/bird/routes.conf"), routes)?;
        bird.run("birdc", ["configure"])?;
        wait_for(&format!("{count} routes of BIRD"), Duration::from_secs(120), || {
            let peer = bed.peer("10.2.0.1")?;
            // BIRD always advertises the route of its link.
            let received: usize = peer.families.iter().map(|family| family.received).sum();
            Ok(Seen::when(received == 1 + count as usize, || received.to_string()))
        })?;
    }
    Ok(())
}
