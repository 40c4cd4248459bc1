//! Pods of every kind beside each other: see lab/topologies/hybrid.clab.yml for who is where.
//!
//! Who sent a packet is read from captures in the namespace that it came to, so that an address that was translated on the way, or
//! a packet that came twice, is seen.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::SubnetStatus;

use super::bed::{Bed, INTERVAL, Manifest, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::capture::Capture;
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::netns::Namespace;
use crate::pinger::{Flow, Pinger, unreachable};
use crate::progress::{say, table};
use crate::shell::{Seen, cmd, output_with_input, run, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "hybrid/all-pairs",
        about: "BGP, GlobalBGP and VXLAN pods on three nodes: all pairs both ways, sources unchanged, full-size packets",
        run: all_pairs,
    },
    Test {
        name: "hybrid/nat",
        about: "what overlay pods send is translated where asked and nowhere else; nodes are reached and answered by the tunnel",
        run: nat,
    },
    Test {
        name: "hybrid/nodes",
        about: "what leads to other nodes is exact: when one leaves, and when others meddle; restarts lose nothing",
        run: nodes,
    },
];

const NODES: [&str; 3] = ["node1", "node2", "node3"];
const DEVICE: &str = "eth1.vxlan70";

/// A pod, and what it is joined to.
struct Pod {
    sandbox: Sandbox,
    addresses: Vec<IpAddr>,
    mtu: u64,
}

impl Pod {
    fn attach(bed: &Bed<'_>, node: &str, network: &str) -> Result<Pod> {
        let sandbox = Sandbox::create(bed.fabric, node, network)?;
        let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &sandbox)?;
        let link = run(&mut cmd("ip", ["-n", sandbox.ns.name(), "-j", "link", "show", "eth0"]))?;
        let link: serde_json::Value = serde_json::from_str(&link)?;
        let mtu = link[0]["mtu"].as_u64().context("a link has an MTU")?;
        Ok(Pod { sandbox, addresses: attached.addresses, mtu })
    }

    fn name(&self) -> &str {
        &self.sandbox.name
    }

    fn address(&self, v4: bool) -> Result<IpAddr> {
        let found = self.addresses.iter().find(|address| address.is_ipv4() == v4);
        found.copied().with_context(|| format!("{} has only {:?}", self.name(), self.addresses))
    }

    fn flow(&self, to: IpAddr) -> Flow {
        Flow { name: format!("{} to {to}", self.name()), from: self.sandbox.ns.clone(), to }
    }
}

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

/// A pod of each of the node's networks on each node.
fn pods(bed: &Bed<'_>) -> Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for (node, rack) in NODES.into_iter().zip(["rack1", "rack1", "rack2"]) {
        for network in [rack, "global", "overlay"] {
            pods.push(Pod::attach(bed, node, network)?);
        }
    }
    Ok(pods)
}

/// Packets that come to a namespace, by who sent them.
struct Senders(Capture);

impl Senders {
    /// Of echo requests.
    fn of_requests(ns: &Namespace) -> Result<Senders> {
        Ok(Senders(Capture::start(ns, "any", "icmp[icmptype]=icmp-echo or icmp6[icmp6type]=icmp6-echo")?))
    }

    /// Who sent to an address.
    fn to(&self, to: IpAddr) -> BTreeSet<IpAddr> {
        let sender = |line: &String| {
            let (from, rest) = line.rsplit_once(" > ")?;
            let (destination, _) = rest.split_once(": ")?;
            (destination == to.to_string()).then(|| from.rsplit(' ').next()?.parse().ok())?
        };
        self.0.seen().iter().filter_map(sender).collect()
    }

    /// Waits until this one has sent to an address, and fails if anybody else has.
    fn only(&self, to: IpAddr, from: IpAddr) -> Result<()> {
        wait_for(&format!("a request to {to}"), PATIENCE, || {
            Ok(Seen::when(!self.to(to).is_empty(), || format!("{:?}", self.0.seen())))
        })?;
        let seen = self.to(to);
        ensure!(seen == BTreeSet::from([from]), "{to} was sent to from {seen:?} instead of {from}");
        Ok(())
    }
}

/// One packet that must not be cut, of this size with its IP header; what `ping` said if nothing came back.
fn full_size(from: &Pod, to: IpAddr, size: u64) -> Result<Option<String>> {
    let headers = if to.is_ipv4() { 28 } else { 48 };
    let (to, size) = (to.to_string(), (size - headers).to_string());
    let ping = ["ping", "-n", "-c", "1", "-W", "5", "-M", "do", "-s", &size, &to];
    let output = output_with_input(cmd("ip", ["netns", "exec", from.sandbox.ns.name()]).args(ping), "")?;
    let said = [output.stdout, output.stderr].concat();
    Ok((!output.status.success()).then(|| String::from_utf8_lossy(&said).into_owned()))
}

fn all_pairs(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        // Frames for several MACs in a tunnel: octet 16 from the UDP header on is the first of the inner destination.
        let node = bed.node()?;
        let flood = "udp dst port 8472 and udp[16] & 1 = 1";
        let flooded = Capture::start(&node.ns, "eth1", flood)?;
        let tunnelled = Capture::start(&node.ns, "eth1", "udp dst port 8472")?;

        let pods = pods(bed)?;
        let captures: Vec<Senders> =
            pods.iter().map(|pod| Senders::of_requests(&pod.sandbox.ns)).collect::<Result<_>>()?;
        let pairs = || {
            pods.iter().flat_map(|a| pods.iter().map(move |b| (a, b))).filter(|(a, b)| a.name() != b.name())
        };
        let mut flows = Vec::new();
        for (from, to) in pairs() {
            flows.extend(to.addresses.iter().map(|address| from.flow(*address)));
        }
        let number = flows.len();
        let without = unreachable(flows, PATIENCE)?;
        let mut faults: Vec<String> = without.iter().map(|name| format!("{name}: no answer")).collect();
        for (to, capture) in pods.iter().zip(&captures) {
            for v4 in [true, false] {
                let others = pods.iter().filter(|pod| pod.name() != to.name());
                let expected: BTreeSet<IpAddr> = others.map(|pod| pod.address(v4)).collect::<Result<_>>()?;
                let address = to.address(v4)?;
                // What was answered is told by the capture a little later; what was not may never come.
                if without.is_empty() {
                    wait_for(&format!("requests of {expected:?} to {address}"), PATIENCE, || {
                        let seen = capture.to(address);
                        Ok(Seen::when(seen.is_superset(&expected), || format!("{seen:?}")))
                    })?;
                }
                let seen = capture.to(address);
                let strangers: Vec<&IpAddr> = seen.difference(&expected).collect();
                if !strangers.is_empty() {
                    faults.push(format!("{} was sent to by {strangers:?}", to.name()));
                }
            }
        }
        let mut rows = vec![
            [vec!["from \\ to".to_owned()], pods.iter().map(|p| p.name().to_owned()).collect()].concat(),
        ];
        for from in &pods {
            let mut row = vec![from.name().to_owned()];
            for to in &pods {
                let mut cell = String::new();
                for address in to.addresses.iter().filter(|_| from.name() != to.name()) {
                    let size = from.mtu.min(to.mtu);
                    let fits = full_size(from, *address, size)?;
                    let answered = !without.contains(&format!("{} to {address}", from.name()));
                    let version = if address.is_ipv4() { 4 } else { 6 };
                    if answered && fits.is_none() {
                        cell.push_str(&format!("v{version} "));
                    }
                    faults.extend(
                        fits.map(|said| format!("{} to {address}, {size} octets: {said}", from.name())),
                    );
                }
                row.push(if from.name() == to.name() { "-".to_owned() } else { cell });
            }
            rows.push(row);
        }
        say(&table(&rows));
        ensure!(faults.is_empty(), "{} faults: {}", faults.len(), faults.join("; "));

        // One octet more than a tunnel carries is refused with a word, and not lost.
        let of =
            |name: &str| pods.iter().find(|pod| pod.name() == name).with_context(|| format!("no pod {name}"));
        let (rack, overlay) = (of("node1-rack1")?, of("node3-overlay")?);
        ensure!((rack.mtu, overlay.mtu) == (1500, 1450), "MTU {} and {}", rack.mtu, overlay.mtu);
        let said = full_size(rack, overlay.address(true)?, 1451)?.context("1,451 octets passed")?;
        ensure!(said.contains("mtu = 1450"), "1,451 octets: {said}");

        node.sh(&format!("ping -6 -n -c 3 -i 0.2 ff02::1%{DEVICE} || :"))?;
        node.sh(&format!(
            "ip neigh flush dev {DEVICE} nud failed; ping -n -c 1 -W 1 -I {DEVICE} 10.70.9.9 || :"
        ))?;
        wait_for("something in the tunnels", PATIENCE, || {
            Ok(Seen::when(!tunnelled.seen().is_empty(), || "nothing was captured".to_owned()))
        })?;
        let seen = flooded.seen();
        ensure!(seen.is_empty(), "broadcast or multicast was tunnelled: {seen:?}");
        passed(format!("{number} of {number} ways, sources as they were, {} pods", pods.len()))
    })
}

fn nat(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        let rack = Pod::attach(bed, "node1", "rack1")?;
        let global = Pod::attach(bed, "node1", "global")?;
        let overlay = Pod::attach(bed, "node1", "overlay")?;
        let far = Pod::attach(bed, "node3", "overlay")?;
        let mut plain = Sandbox::create(bed.fabric, "node1", "plain")?;
        plain.args = "IP=10.71.1.7".to_owned();
        cni::add(bed.fabric, &cni::trunkline(Some("overlay")), &plain)?;

        let outside = bed.host("outside")?;
        let to = |text: &str| -> Result<IpAddr> { Ok(text.parse()?) };
        let own = |pod: &Pod, v4| pod.address(v4);
        // Each to an address of its own, so that captures tell them apart.
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
            capture.only(target, source)?;
        }

        // An address of the rack that no pod can have is outside, for an overlay pod alone.
        let machine = to("10.61.9.9")?;
        for (pod, source) in [(&overlay, to("10.51.0.11")?), (&rack, own(&rack, true)?)] {
            let capture = Senders::of_requests(&outside.ns)?;
            let without = unreachable(vec![pod.flow(machine)], PATIENCE)?;
            ensure!(without.is_empty(), "the excluded address: {without:?}");
            capture.only(machine, source)?;
        }

        // Not where it was not asked for. (Nobody outside has a way back to it.)
        let capture = Senders::of_requests(&outside.ns)?;
        run(cmd("ip", ["netns", "exec", plain.ns.name()]).args([
            "sh",
            "-c",
            "ping -n -c 3 -i 0.2 10.90.0.2 || :",
        ]))?;
        capture.only(to("10.90.0.2")?, to("10.71.1.7")?)?;
        drop(capture);

        // Nodes: a pod reaches another one through the tunnel, and a node the pods of others, with its own address.
        let third = bed.host("node3")?;
        for v4 in [true, false] {
            let node = to(if v4 { "10.52.0.13" } else { "fd00:52::13" })?;
            let capture = Senders(Capture::start(&third.ns, DEVICE, "icmp or icmp6")?);
            let without = unreachable(vec![overlay.flow(node)], PATIENCE)?;
            ensure!(without.is_empty(), "another node: {without:?}");
            capture.only(node, own(&overlay, v4)?)?;
            drop(capture);
            let address = own(&far, v4)?;
            let capture = Senders::of_requests(&far.sandbox.ns)?;
            let back = Senders(Capture::start(&third.ns, DEVICE, "icmp or icmp6")?);
            let from =
                Flow { name: format!("node1 to {address}"), from: bed.node()?.ns.clone(), to: address };
            let without = unreachable(vec![from], PATIENCE)?;
            ensure!(without.is_empty(), "from a node: {without:?}");
            let source = to(if v4 { "10.51.0.11" } else { "fd00:51::11" })?;
            capture.only(address, source)?;
            wait_for("the answer in the tunnel", PATIENCE, || {
                let answers = back.to(source);
                Ok(Seen::when(answers.contains(&address), || format!("{answers:?}")))
            })?;
        }
        passed("translated: overlay to outside and to an excluded address; nothing else")
    })
}

/// What of a node's kernel leads to others through the tunnel: (forwarding entries, neighbours, routes).
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

/// Waits until what leads to others on node1 is exactly what leads to these nodes.
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

fn nodes(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        ready(bed)?;
        let both = ["10.51.0.12", "10.52.0.13"];
        leads_to(bed, &both)?;
        let (rack, overlay) = (Pod::attach(bed, "node1", "rack1")?, Pod::attach(bed, "node1", "overlay")?);
        let (near, far) = (Pod::attach(bed, "node2", "overlay")?, Pod::attach(bed, "node3", "overlay")?);
        let other = Pod::attach(bed, "node3", "rack2")?;

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
        ensure!(device == again, "the device was made anew");

        // A node that leaves, and comes back.
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

        // Others' hands.
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
        passed(format!("0 of {sent} packets lost over three restarts"))
    })
}
