//! A real Prometheus on two racks: each alert fires for its fault and clears afterwards, and every
//! panel about nodes has data.
//!
//! Alerts and panels about the controller and the API server are tested in a cluster. Alerts and
//! panels about VLANs are tested in a kernel with VLANs ([`super::labs`]).

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::agents;
use super::labs::{self, Lab};
use super::paths::{self, Exporter};
use super::prometheus::{Prometheus, Target, hastened};
use super::rules::RULES;
use crate::client;
use crate::cni::{self, Sandbox};
use crate::daemons::vtysh;
use crate::forge::Packet;
use crate::interop::router::kill;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: Lab::TwoRacks.test(),
    about: "each alert fires during its fault and clears, every panel about nodes has data, and promtool accepts the metrics",
    run: two_racks,
};

/// Injects a fault, waits until its alerts fire, repairs it, and waits until they clear.
type Fault = fn(&Bed<'_>, &Prometheus) -> Result<()>;

const NODES: [&str; 4] = ["node1a", "node1b", "node2a", "node2b"];

fn two_racks(context: &Context) -> Result<Verdict> {
    let rules = std::fs::read_to_string(context.place.repository.join(RULES))?;
    lab(context, "two-racks", |bed| {
        for node in NODES {
            client::wait_established(bed.host(node)?, PATIENCE)?;
            client::wait_bfd(bed.host(node)?, PATIENCE)?;
        }
        let targets =
            NODES.iter().map(|node| Ok(Target::Agent(bed.host(node)?))).collect::<Result<Vec<_>>>()?;
        let series = labs::lint(&targets[0].metrics()?)?;
        let folder = bed.fabric.folder.join("prometheus");
        let exporter = Exporter::start()?;
        let mut scraped = targets.clone();
        scraped.push(exporter.target());
        let prometheus = Prometheus::start(&folder, &scraped, &hastened(&rules)?)?;
        let (_, _) = pod(bed, "node1a", "first")?;
        let faults: [(&str, Fault); 17] = [
            ("a pool that is filled", filled),
            ("sessions that are shut down", shut_down),
            ("a router that falls silent again and again", silent),
            ("an MTU that is too small, and a copied BGP identifier", unseen),
            ("a router that restarts", restarting),
            ("a table near its limit", limit),
            ("a router that rejects the routes of pods", paths::refused),
            ("packets for an address that no pod has", paths::nobody),
            ("packets for an address that no pod has, at a node with one router", paths::alone),
            ("a port that is in use", paths::port_taken),
            ("a deleted route, and interfaces without IPv6", hands),
            ("a pod with a forged source address, and a guard that cannot be loaded", guarded),
            ("manifests that are refused", agents::refused),
            ("a store that is damaged", agents::store),
            ("an agent that is stopped, and one behind a firewall", agents::stopped),
            ("alerts with a time range clear", |_, prometheus| prometheus.wait_all_cleared()),
            ("agents that are no target of Prometheus", agents::gone),
        ];
        for (what, fault) in faults {
            crate::progress::say(&format!("      {what}"));
            let began = Instant::now();
            fault(bed, &prometheus).with_context(|| what.to_owned())?;
            crate::progress::say(&format!("        {:.0} s", began.elapsed().as_secs_f64()));
        }
        exporter.speaker_stops(&prometheus).context("a speaker that does not run")?;
        let evaluated = labs::evaluate(Lab::TwoRacks, &prometheus, &context.place)?;
        passed(format!("{series} series of a node, {evaluated}"))
    })
}

pub(super) fn pod(bed: &Bed<'_>, node: &str, name: &str) -> Result<(Sandbox, cni::Attached)> {
    let pod = Sandbox::create(bed.fabric, node, name)?;
    let network = if node.starts_with("node1") { "rack1" } else { "rack2" };
    let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &pod)?;
    Ok((pod, attached))
}

const TO_NODE1A: [(&str, &str, &str); 2] = [
    ("tor1a", "router bgp 65011", "neighbor 10.11.0.11 shutdown"),
    ("tor1b", "router bgp 65012", "neighbor 10.12.0.11 shutdown"),
];

pub(super) fn configure(bed: &Bed<'_>, router: &str, lines: &[&str]) -> Result<()> {
    let commands: Vec<&str> = ["configure terminal"].iter().chain(lines).copied().collect();
    vtysh(bed.host(router)?, &commands).map(drop)
}

fn shut_down(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    for (router, bgp, line) in TO_NODE1A {
        configure(bed, router, &[bgp, line])?;
        prometheus.wait_firing("TrunklinePeerDown", "node1a")?;
        if router == "tor1a" {
            ensure!(
                prometheus.firing("TrunklineNodeIsolated")?.is_empty(),
                "the alert fires while node1a still has a peer"
            );
        }
    }
    prometheus.wait_firing("TrunklineNodeIsolated", "node1a")?;
    // Without a peer, the attach waits. With this wait it is slow enough for the alert.
    std::thread::scope(|scope| -> Result<()> {
        let slow = scope.spawn(|| pod(bed, "node1a", "slow"));
        let asked = Instant::now();
        wait_for("two seconds to pass", PATIENCE, || {
            Ok(Seen::when(asked.elapsed().as_secs_f64() > 2.5, || "not yet".to_owned()))
        })?;
        for (router, bgp, line) in TO_NODE1A {
            configure(bed, router, &[bgp, &format!("no {line}")])?;
        }
        slow.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(drop)
    })?;
    prometheus.wait_firing("TrunklineAttachSlow", "node1a")?;
    prometheus.clear_later(&["TrunklineAttachSlow"]);
    prometheus.wait_cleared("TrunklinePeerDown")?;
    prometheus.wait_cleared("TrunklineNodeIsolated")
}

fn silent(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (router, node) = (bed.host("tor2a")?, bed.host("node2a")?);
    for _ in 0..5 {
        let before = losses(node)?;
        router.silence()?;
        wait_for("the silence to be noticed", PATIENCE, || {
            Ok(Seen::when(losses(node)? > before, || "not yet".to_owned()))
        })?;
        router.end_silence()?;
        client::wait_established(node, PATIENCE)?;
        client::wait_bfd(node, PATIENCE)?;
    }
    for alert in ["TrunklinePeerFlapping", "TrunklineBfdFlapping"] {
        prometheus.wait_firing(alert, "node2a")?;
    }
    let settled = "trunkline_convergence_peer_loss_to_kernel_seconds_count{instance=\"node2a\"}";
    let settled: f64 = prometheus.query(settled)?.iter().sum();
    ensure!(settled >= 5.0, "only {settled} losses of a peer have a measured time to the kernel");
    prometheus.clear_later(&["TrunklinePeerFlapping", "TrunklineBfdFlapping"]);
    Ok(())
}

fn losses(node: &crate::host::Host) -> Result<u64> {
    Ok(client::peers(node)?
        .iter()
        .map(|peer| peer.flaps.min(peer.bfd.as_ref().map_or(0, |bfd| bfd.downs)))
        .sum())
}

/// Two faults that no session shows. First tor1b's port drops large packets, then tor1b has tor1a's
/// BGP identifier.
fn unseen(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (router, node) = (bed.host("tor1b")?, bed.host("node1a")?);
    router.sh("ip link set eth3 mtu 1400")?;
    prometheus.wait_firing("TrunklineProbeFault", "node1a")?;
    router.sh("ip link set eth3 mtu 1500")?;
    prometheus.wait_cleared("TrunklineProbeFault")?;
    for (identifier, fires) in [("10.0.0.11", true), ("10.0.0.12", false)] {
        configure(bed, "tor1b", &["router bgp 65012", &format!("bgp router-id {identifier}")])?;
        client::wait_established(node, PATIENCE)?;
        match fires {
            true => prometheus.wait_firing("TrunklineDuplicateIdentifier", "node1a")?,
            false => prometheus.wait_cleared("TrunklineDuplicateIdentifier")?,
        }
    }
    client::wait_bfd(node, PATIENCE)
}

/// From now on tor2b has a restart time of less than a minute. So its stale paths are close to
/// their expiry from the beginning.
fn restarting(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (router, node) = (bed.host("tor2b")?, bed.host("node2a")?);
    // This step runs without BFD. In this lab a BFD session ends together with bgpd, and the node
    // would treat tor2b as lost.
    let lines = [
        "router bgp 65022",
        "no neighbor NODES bfd",
        "bgp graceful-restart",
        "bgp graceful-restart restart-time 55",
    ];
    configure(bed, "tor2b", &lines)?;
    vtysh(router, &["clear bgp *"])?;
    wait_for("a session with graceful restart", PATIENCE, || {
        let peers = client::peers(node)?;
        let kept = peers.iter().filter(|peer| peer.families.iter().any(|family| family.restartable)).count();
        Ok(Seen::when(kept > 0, || format!("{kept} of {} peers", peers.len())))
    })?;
    kill(router, Some("bgpd"))?;
    prometheus.wait_firing("TrunklineStalePathsNearExpiry", "node2a")?;
    router.sh("/usr/lib/frr/bgpd -d -A 127.0.0.1 --log file:/var/log/frr/bgpd.log")?;
    router.run("vtysh", ["-b"])?;
    client::wait_established(node, PATIENCE)?;
    prometheus.wait_cleared("TrunklineStalePathsNearExpiry")
}

fn limit(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let manifest = bed.manifest_of("node1b", "networks.yaml");
    let node = bed.host("node1b")?;
    let peer = client::peers(node)?.into_iter().find(|peer| peer.address.to_string() == "10.11.0.1");
    let peer = peer.context("node1b has no peer 10.11.0.1")?;
    let received: usize = peer.families.iter().map(|family| family.received).sum();
    ensure!(received > 0, "10.11.0.1 advertises nothing");
    let line = "        address: 10.11.0.1\n";
    manifest.edit(line, &format!("{line}        maxPrefixes: {received}\n"))?;
    prometheus.wait_firing("TrunklinePrefixLimitNear", "node1b")?;
    manifest.edit(&format!("        maxPrefixes: {received}\n"), "")?;
    prometheus.wait_cleared("TrunklinePrefixLimitNear")
}

fn hands(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (_pod, attached) = pod(bed, "node2b", "handled")?;
    let node = bed.host("node2b")?;
    let address = attached.addresses.iter().find(|address| address.is_ipv4()).context("an IPv4 address")?;
    node.sh(&format!("ip route del {address}/32 table 39999"))?;
    prometheus.wait_firing("TrunklineKernelChangedByOthers", "node2b")?;
    // Both links lose IPv6, and with it every path of the IPv6 default route; the sessions use
    // IPv4.
    node.sh("for i in eth1 eth2; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done")?;
    prometheus.wait_firing("TrunklineRoutesNotInStep", "node2b")?;
    node.sh("for i in eth1 eth2; do echo 0 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done; \
         ip addr add fd00:21::22/64 dev eth1; ip addr add fd00:22::22/64 dev eth2")?;
    prometheus.clear_later(&["TrunklineKernelChangedByOthers"]);
    prometheus.wait_cleared("TrunklineRoutesNotInStep")
}

/// First a pod sends from a forged source address. Then the node has a broken `nft`, and a table of
/// the guard is deleted.
fn guarded(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (attacker, _) = pod(bed, "node2b", "attacker")?;
    let forged = Packet::udp(("8.8.8.8".parse()?, 5_000), ("192.0.2.1".parse()?, 5_000), b"forged")?;
    (0..40).try_for_each(|_| forged.send(&attacker.ns, "eth0"))?;
    prometheus.wait_firing("TrunklineGuardDrops", "node2b")?;
    let node = bed.host("node2b")?;
    node.sh("mount --bind /bin/false \"$(command -v nft)\"")?;
    // Only the node's mounts hide `nft`, so the lab runs the machine's own program.
    node.ns.within(|| {
        crate::shell::run(&mut crate::shell::cmd("nft", ["delete", "table", "inet", "trunkline-guard"]))
    })?;
    prometheus.wait_firing("TrunklineGuardNotInForce", "node2b")?;
    let refused = Sandbox::create(bed.fabric, "node2b", "unguarded")?;
    let error = cni::run(bed.fabric, "ADD", &cni::trunkline(Some("rack2")), &refused)?.error()?;
    ensure!(error.text.contains("guard"), "an ADD without the guard: {error}");
    node.sh("umount \"$(command -v nft)\"")?;
    cni::add(bed.fabric, &cni::trunkline(Some("rack2")), &refused)?;
    prometheus.clear_later(&["TrunklineGuardDrops"]);
    prometheus.wait_cleared("TrunklineGuardNotInForce")
}

/// A subnet of two addresses, for pods that name it.
const SMALL: &str = "
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata:
  name: small
spec:
  network: rack2
  range: { version: '4', cidr: 10.203.22.0/29, start: 10.203.22.1, end: 10.203.22.2 }
";

fn filled(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let manifest = bed.manifest_of("node2b", "subnets.yaml");
    let without = manifest.read()?;
    manifest.write(&format!("{}{SMALL}", without.trim_end()))?;
    let mut conf = cni::trunkline(Some("rack2"));
    conf["subnet"] = serde_json::json!("small");
    let node = bed.host("node2b")?;
    wait_for("the small subnet to be in force", PATIENCE, || {
        let subnets: Vec<String> =
            client::status(node)?.networks.iter().flat_map(|n| &n.subnets).map(|s| s.name.clone()).collect();
        Ok(Seen::when(subnets.iter().any(|name| name == "small"), || format!("{subnets:?}")))
    })?;
    let pods = [Sandbox::create(bed.fabric, "node2b", "one")?, Sandbox::create(bed.fabric, "node2b", "two")?];
    pods.iter().try_for_each(|pod| cni::add(bed.fabric, &conf, pod).map(drop))?;
    prometheus.wait_firing("TrunklinePoolNearlyEmpty", "node2b")?;
    let refused = Sandbox::create(bed.fabric, "node2b", "refused")?;
    for number in 1..=6 {
        let failed = cni::run(bed.fabric, "ADD", &conf, &refused)?.error()?;
        ensure!(failed.text.contains("subnet small has 2 of 2 in use"), "{failed}");
        // A scrape must record each failure before the next one. Two failures between two scrapes
        // look like one increase. The first value of a series is no increase.
        wait_for("a scrape", PATIENCE, || {
            let seen = failures(prometheus)?;
            Ok(Seen::when(seen >= f64::from(number), || format!("{seen} of {number} failures")))
        })?;
    }
    prometheus.wait_firing("TrunklineAttachFailing", "node2b")?;
    for pod in &pods {
        cni::del(bed.fabric, &conf, pod)?;
        prometheus.wait_scrape()?;
    }
    prometheus.wait_cleared("TrunklinePoolNearlyEmpty")?;
    manifest.write(&without)?;
    prometheus.clear_later(&["TrunklineAttachFailing"]);
    Ok(())
}

fn failures(prometheus: &Prometheus) -> Result<f64> {
    let expr =
        "trunkline_request_duration_seconds_count{command=\"attach\",outcome=\"error\",instance=\"node2b\"}";
    Ok(prometheus.query(expr)?.iter().sum())
}
