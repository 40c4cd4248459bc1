//! Pods of every kind next to each other; lab/topologies/hybrid.clab.yml shows their places.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::SubnetStatus;

use super::bed::{Bed, INTERVAL, Manifest, PATIENCE, lab, lost_nothing};
use super::matrix::{Party, full_size, matrix};
use super::{Context, Test, Verdict, passed};
use crate::capture::{Capture, Senders};
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::pinger::{Flow, Pinger, unreachable};
use crate::shell::{Seen, cmd, run, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "hybrid/all-pairs",
        about: "BGP, GlobalBGP and VXLAN pods on three nodes: all pairs in both directions, \
                sources unchanged, full-size packets",
        run: all_pairs,
    },
    Test {
        name: "hybrid/nat",
        about: "packets of overlay pods are translated only as configured; nodes are reached and \
                answer through the tunnel",
        run: nat,
    },
    Test {
        name: "hybrid/nodes",
        about: "the routes to other nodes are exact after a node leaves and after foreign changes; \
                restarts lose no packet",
        run: nodes,
    },
    Test {
        name: "hybrid/underlay6",
        about: "tunnels over IPv6 only: nodes without an IPv4 underlay, pods of both families, full-size packets",
        run: underlay6,
    },
];

const NODES: [&str; 3] = ["node1", "node2", "node3"];
const DEVICE: &str = "eth1.vxlan70";

/// Waits until every session is up and the overlay's devices are there.
pub(super) fn ready(bed: &Bed<'_>) -> Result<()> {
    for node in NODES {
        client::wait_established(bed.host(node)?, PATIENCE)?;
        wait_for(&format!("the overlay on {node}"), PATIENCE, || {
            let status = client::status(bed.host(node)?)?;
            let overlay = status.networks.into_iter().find(|network| network.name == "overlay");
            let subnets = overlay.map(|overlay| overlay.subnets).unwrap_or_default();
            let there = |s: &SubnetStatus| s.device.as_deref() == Some(DEVICE) && s.device_fault.is_none();
            Ok(Seen::when(!subnets.is_empty() && subnets.iter().all(there), || format!("{subnets:?}")))
        })?;
    }
    for tor in ["tor1", "tor2"] {
        routers::wait_sessions(bed.fabric, tor, PATIENCE)?;
    }
    Ok(())
}

/// Attaches a pod in each of a node's networks, on each node.
fn pods(bed: &Bed<'_>) -> Result<Vec<Party>> {
    let mut pods = Vec::new();
    for (node, rack) in NODES.into_iter().zip(["rack1", "rack1", "rack2"]) {
        for network in [rack, "global", "overlay"] {
            pods.push(Party::attach(bed, node, network, network, None)?);
        }
    }
    Ok(pods)
}

fn all_pairs(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        // Broadcast and multicast frames in a tunnel. The octet at offset 16 from the UDP header is
        // the first octet of the inner destination MAC.
        let node = bed.node()?;
        let flood = "udp dst port 8472 and udp[16] & 1 = 1";
        let flooded = Capture::start(&node.ns, "eth1", flood)?;
        let tunnelled = Capture::start(&node.ns, "eth1", "udp dst port 8472")?;

        let pods = pods(bed)?;
        let ways = matrix(&pods)?;
        let mtus: BTreeSet<u32> = pods.iter().map(Party::mtu).collect::<Result<_>>()?;
        ensure!(mtus == BTreeSet::from([1450, 1500]), "the pods' MTUs are {mtus:?}");
        full_size(&pods)?;

        node.sh(&format!("ping -6 -n -c 3 -i 0.2 ff02::1%{DEVICE} || [ $? -lt 3 ]"))?;
        node.sh(&format!(
            "ip neigh flush dev {DEVICE} nud failed; ping -n -c 1 -W 1 -I {DEVICE} 10.70.9.9 || [ $? -lt 3 ]"
        ))?;
        wait_for("something in the tunnels", PATIENCE, || {
            Ok(Seen::when(!tunnelled.seen().is_empty(), || "nothing was captured".to_owned()))
        })?;
        let seen = flooded.seen();
        ensure!(seen.is_empty(), "broadcast or multicast was tunnelled: {seen:?}");
        passed(format!(
            "{ways} pairs of IPv4 and IPv6 addresses, sources unchanged, full-size packets, {} pods",
            pods.len()
        ))
    })
}

fn nat(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        let rack = Party::attach(bed, "node1", "rack1", "rack1", None)?;
        let global = Party::attach(bed, "node1", "global", "global", None)?;
        let overlay = Party::attach(bed, "node1", "overlay", "overlay", None)?;
        let far = Party::attach(bed, "node3", "overlay", "overlay", None)?;
        let mut plain = Sandbox::create(bed.fabric, "node1", "plain")?;
        plain.args = "IP=10.71.1.7".to_owned();
        cni::add(bed.fabric, &cni::trunkline(Some("overlay")), &plain)?;

        let outside = bed.host("outside")?;
        let to = |text: &str| -> Result<IpAddr> { Ok(text.parse()?) };
        let own = |pod: &Party, v4| pod.address(v4);
        // Each pod sends to a different address, because the captures distinguish pods by this
        // address.
        for (number, (pod, v4, source)) in [
            (&overlay, true, to("10.51.0.11")?),
            (&overlay, false, to("fd00:51::11")?),
            (&rack, true, own(&rack, true)?),
            (&rack, false, own(&rack, false)?),
            (&global, true, own(&global, true)?),
        ]
        .into_iter()
        .enumerate()
        {
            let target =
                if v4 { format!("10.90.0.{}", 20 + number) } else { format!("fd00:90::{}", 20 + number) };
            outside.sh(&format!("ip addr add {target}/{} dev eth1", if v4 { 24 } else { 64 }))?;
            let target = to(&target)?;
            let capture = Senders::of_requests(&outside.ns)?;
            let without = unreachable(vec![pod.flow(target)], PATIENCE)?;
            ensure!(without.is_empty(), "outside: {without:?}");
            capture.only(target, source, PATIENCE)?;
        }

        // An address of the rack that no pod can have is external only for an overlay pod.
        let machine = to("10.61.9.9")?;
        for (pod, source) in [(&overlay, to("10.51.0.11")?), (&rack, own(&rack, true)?)] {
            let capture = Senders::of_requests(&outside.ns)?;
            let without = unreachable(vec![pod.flow(machine)], PATIENCE)?;
            ensure!(without.is_empty(), "the excluded address: {without:?}");
            capture.only(machine, source, PATIENCE)?;
        }

        // Without the setting there is no translation. (The external host has no route back.)
        let capture = Senders::of_requests(&outside.ns)?;
        let target = to("10.90.0.2")?;
        wait_for("a request that gets no answer", PATIENCE, || {
            let said = run(cmd("ip", ["netns", "exec", plain.ns.name()]).args([
                "sh",
                "-c",
                "ping -n -c 1 -W 1 10.90.0.2 2>&1 || [ $? -lt 3 ]",
            ]))?;
            Ok(Seen::when(!capture.to(target).is_empty(), || said))
        })?;
        capture.only(target, to("10.71.1.7")?, PATIENCE)?;
        drop(capture);

        // Nodes: a pod reaches another node through the tunnel, and a node reaches the pods of
        // others, with its own address.
        let third = bed.host("node3")?;
        for v4 in [true, false] {
            let node = to(if v4 { "10.52.0.13" } else { "fd00:52::13" })?;
            let capture = Senders(Capture::start(&third.ns, DEVICE, "icmp or icmp6")?);
            let without = unreachable(vec![overlay.flow(node)], PATIENCE)?;
            ensure!(without.is_empty(), "another node: {without:?}");
            capture.only(node, own(&overlay, v4)?, PATIENCE)?;
            drop(capture);
            let address = own(&far, v4)?;
            let capture = Senders::of_requests(&far.ns)?;
            let back = Senders(Capture::start(&third.ns, DEVICE, "icmp or icmp6")?);
            let from =
                Flow { name: format!("node1 to {address}"), from: bed.node()?.ns.clone(), to: address };
            let without = unreachable(vec![from], PATIENCE)?;
            ensure!(without.is_empty(), "from a node: {without:?}");
            let source = to(if v4 { "10.51.0.11" } else { "fd00:51::11" })?;
            capture.only(address, source, PATIENCE)?;
            wait_for("the answer in the tunnel", PATIENCE, || {
                let answers = back.to(source);
                Ok(Seen::when(answers.contains(&address), || format!("{answers:?}")))
            })?;
        }
        passed("translated: overlay to outside and to an excluded address; nothing else")
    })
}

/// The entries in a node's kernel for other nodes' tunnels: FDB entries, neighbour entries, routes.
fn leads(host: &Host) -> Result<(Vec<String>, Vec<String>, Vec<String>)> {
    let lines = |command: String| -> Result<Vec<String>> {
        let mut lines: Vec<String> = host.sh(&command)?.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        Ok(lines)
    };
    let routes = format!(
        "for f in 4 6; do ip -$f route show table all | grep 'dev {DEVICE} ' | grep -v 'fe80::/64\\|ff00::/8\\|local\\|multicast'; done || :"
    );
    Ok((
        lines(format!("bridge fdb show dev {DEVICE}"))?,
        lines(format!("ip neigh show dev {DEVICE} nud permanent"))?,
        lines(routes)?,
    ))
}

/// Waits until node1 has tunnel entries for exactly these nodes.
fn leads_to(bed: &Bed<'_>, others: &[&str]) -> Result<()> {
    wait_for(&format!("node1's tunnels to lead to {others:?}"), PATIENCE, || {
        let seen = leads(bed.node()?)?;
        let (fdb, neighbours, routes) = &seen;
        let leads = |ip: &str| {
            let octets: Vec<u8> = ip.split('.').filter_map(|octet| octet.parse().ok()).collect();
            let mac =
                format!("02:12:{}", octets.iter().map(|o| format!("{o:02x}")).collect::<Vec<_>>().join(":"));
            fdb.iter().any(|line| line.starts_with(&mac) && line.contains(&format!("dst {ip} ")))
                && neighbours.iter().filter(|line| line.contains(&mac)).count() == 2
                && routes.iter().any(|line| line.contains(&format!("via {ip} dev")))
        };
        let gateways =
            routes.iter().filter_map(|line| line.split_whitespace().skip_while(|w| *w != "via").nth(1));
        let gateways: BTreeSet<&str> = gateways.collect();
        let good = others.iter().all(|ip| leads(ip))
            && fdb.len() == others.len()
            && neighbours.len() == 2 * others.len()
            && gateways.len() == 2 * others.len();
        Ok(Seen::when(good, || format!("{seen:?}")))
    })
}

/// Waits until node1's status reports a fault of a subnet's device with these words; returns the
/// whole report.
fn device_fault(bed: &Bed<'_>, words: &str) -> Result<String> {
    wait_for(&format!("the status to contain {words:?}"), PATIENCE, || {
        let networks = client::status(bed.node()?)?.networks;
        let subnets = networks.into_iter().flat_map(|network| network.subnets);
        let faults: Vec<String> = subnets.filter_map(|subnet| subnet.device_fault).collect();
        let said = faults.iter().find(|fault| fault.contains(words)).cloned();
        Ok(said.map_or_else(|| Seen::NotYet(format!("{faults:?}")), Seen::Yes))
    })
}

fn nodes(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        let both = ["10.51.0.12", "10.52.0.13"];
        leads_to(bed, &both)?;
        let (rack, overlay) = (
            Party::attach(bed, "node1", "rack1", "rack1", None)?,
            Party::attach(bed, "node1", "overlay", "overlay", None)?,
        );
        let (near, far) = (
            Party::attach(bed, "node2", "overlay", "overlay", None)?,
            Party::attach(bed, "node3", "overlay", "overlay", None)?,
        );
        let other = Party::attach(bed, "node3", "rack2", "rack2", None)?;

        let mut flows = Vec::new();
        for (from, to) in
            [(&rack, &far), (&overlay, &far), (&overlay, &other), (&near, &overlay), (&other, &overlay)]
        {
            flows.extend(to.addresses.iter().map(|address| from.flow(*address)));
        }
        let mut pings = Pinger::start(flows, INTERVAL)?;
        pings.settle(PATIENCE)?;
        let device = bed.node()?.sh(&format!("cat /sys/class/net/{DEVICE}/ifindex"))?;
        for signal in [Signal::TERM, Signal::KILL, Signal::KILL] {
            client::end_agent(bed.node()?, signal)?;
            pings.wait_sent(50, PATIENCE)?;
            client::start_agent(bed.node()?)?;
            ready(bed)?;
        }
        let sent = lost_nothing(pings)?;
        let again = bed.node()?.sh(&format!("cat /sys/class/net/{DEVICE}/ifindex"))?;
        ensure!(device == again, "the device was created again");

        // A node leaves, and returns.
        let manifest = Manifest::at(bed.fabric.file("hybrid/manifests/nodes.yaml"));
        let text = manifest.read()?;
        let without = text.rsplit_once("---\n").context("several nodes")?.0;
        client::end_agent(bed.host("node3")?, Signal::TERM)?;
        manifest.write(without)?;
        leads_to(bed, &both[..1])?;
        manifest.write(&text)?;
        leads_to(bed, &both)?;
        client::start_agent(bed.host("node3")?)?;
        ready(bed)?;

        // Changes by other programs.
        for meddling in [
            "bridge fdb del 02:12:0a:34:00:0d dev DEVICE dst 10.52.0.13",
            "bridge fdb add 00:00:00:00:00:00 dev DEVICE dst 10.51.0.12",
            "bridge fdb append 00:00:00:00:00:00 dev DEVICE dst 10.52.0.13",
            "ip neigh del 10.52.0.13 dev DEVICE",
            "ip route del 10.70.3.0/24 table 40000",
            "ip rule del pref 1010",
            "ip link set DEVICE down",
            "ip link set DEVICE mtu 1300",
            "ip link del DEVICE",
        ] {
            bed.node()?.sh(&meddling.replace("DEVICE", DEVICE))?;
            leads_to(bed, &both).with_context(|| meddling.to_owned())?;
            let flows = far.addresses.iter().map(|address| rack.flow(*address)).collect();
            let silent = unreachable(flows, PATIENCE)?;
            ensure!(silent.is_empty(), "after `{meddling}`: {silent:?}");
            let mtu = bed.node()?.sh(&format!("cat /sys/class/net/{DEVICE}/mtu"))?;
            ensure!(mtu.trim() == "1450", "after `{meddling}` the MTU is {mtu}");
        }
        let counted = client::status(bed.node()?)?.kernel;
        ensure!(
            counted.forwarding_repairs >= 3,
            "{} repairs of forwarding entries",
            counted.forwarding_repairs
        );
        ensure!((counted.forwarding_wanted, counted.forwarding_installed) == (2, 2), "{counted:?}");

        // Changes of the underlay itself.
        let reached = |when: &str| -> Result<()> {
            let silent =
                unreachable(far.addresses.iter().map(|address| rack.flow(*address)).collect(), PATIENCE)?;
            ensure!(silent.is_empty(), "{when}: {silent:?}");
            Ok(())
        };
        for (below, above) in [(1400, 1350), (1500, 1450)] {
            bed.node()?.sh(&format!("ip link set eth1 mtu {below}"))?;
            wait_for(&format!("an MTU of {above}"), PATIENCE, || {
                let mtu = bed.node()?.sh(&format!("cat /sys/class/net/{DEVICE}/mtu"))?;
                Ok(Seen::when(mtu.trim() == above.to_string(), || mtu))
            })?;
            reached("the underlay has another MTU")?;
        }
        bed.node()?.sh("ip addr del 10.51.0.11/24 dev eth1")?;
        let said = device_fault(bed, "10.51.0.11 is on no link of this node")?;
        bed.node()?.sh("ip addr add 10.51.0.11/24 dev eth1; ip route replace default via 10.51.0.1")?;
        ready(bed)?;
        leads_to(bed, &both)?;
        reached("the VTEP's address is back")?;

        // Another program's device has the VNI.
        client::end_agent(bed.node()?, Signal::TERM)?;
        let stranger = "ip link add other type vxlan id 70 local 10.51.0.11 dev eth1 dstport 8472";
        bed.node()?.sh(&format!("ip link del {DEVICE}; {stranger}"))?;
        client::start_agent(bed.node()?)?;
        let taken = device_fault(bed, "VNI 70 on UDP port 8472 is used by other")?;
        bed.node()?.sh("ip -d link show other && ip link del other")?;
        ready(bed)?;
        reached("the VNI is free again")?;
        passed(format!(
            "0 of {sent} packets lost over three restarts; {} forwarding entries repaired; {said}; {taken}",
            counted.forwarding_repairs
        ))
    })
}

fn underlay6(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        let manifest = Manifest::at(bed.fabric.file("hybrid/manifests/nodes.yaml"));
        let text = manifest.read()?;
        let (mut two, _) = text.rsplit_once("---\n").context("several nodes")?;
        let mut ends = String::new();
        for number in ["11", "12"] {
            let both = format!("ip: 10.51.0.{number}\n    localIPs:\n      - fd00:51::{number}\n");
            let (before, after) = two.split_once(&both).with_context(|| format!("no {both:?}"))?;
            ends.push_str(&format!("{before}ip: \"fd00:51::{number}\"\n"));
            two = after;
        }
        manifest.write(&(ends + two))?;
        for node in ["node1", "node2"] {
            wait_for(&format!("{node}'s tunnels over IPv6"), PATIENCE, || {
                let device = bed.host(node)?.sh(&format!("ip -d -o link show {DEVICE}"))?;
                Ok(Seen::when(device.contains("local fd00:51::") && device.contains("mtu 1430"), || device))
            })?;
        }
        let pods = [("node1", "a"), ("node1", "b"), ("node2", "a")]
            .into_iter()
            .map(|(node, pod)| Party::attach(bed, node, pod, "overlay", None))
            .collect::<Result<Vec<_>>>()?;
        for node in ["node1", "node2"] {
            bed.host(node)?.sh("ip -4 addr flush dev eth1")?;
        }
        let tunnelled = Capture::start(&bed.node()?.ns, "eth1", "udp dst port 8472")?;
        let ways = matrix(&pods)?;
        let mtus: BTreeSet<u32> = pods.iter().map(Party::mtu).collect::<Result<_>>()?;
        ensure!(mtus == BTreeSet::from([1430]), "the pods' MTUs are {mtus:?}");
        let sizes = full_size(&pods)?;
        for way in [["fd00:51::11.", "> fd00:51::12.8472"], ["fd00:51::12.", "> fd00:51::11.8472"]] {
            tunnelled.wait(&way, PATIENCE)?;
        }
        passed(format!(
            "{ways} pairs of IPv4 and IPv6 addresses, {sizes} sizes, by tunnels between \
             fd00:51::11 and fd00:51::12 alone"
        ))
    })
}
