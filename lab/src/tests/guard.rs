//! The guard: pods and hosts that send forbidden packets, with raw sockets like a container with
//! CAP_NET_RAW.
//!
//! A marker proves that a packet did not arrive. The marker is an allowed packet that the test
//! sends later on the same path, and it arrives. Each attack also runs once without the guard, and
//! then its packets arrive. This proves that the guard drops the packets.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::bed::{Bed, PATIENCE, lab};
use super::hybrid;
use super::matrix::Party;
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Attached, Sandbox};
use crate::forge::Packet;
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "guard/pod",
        about: "a pod with CAP_NET_RAW: foreign sources, router advertisements, redirects, DHCP, ARP, BGP, BFD, VXLAN to the node",
        run: pod,
    },
    Test {
        name: "guard/router-pod",
        about: "a pod sends from its extra prefixes and from no other prefixes, and only while its Network allows these prefixes",
        run: router_pod,
    },
    Test {
        name: "guard/stays",
        about: "the guard stays while the agent is killed, is restored after a flush, and no pod is attached if the guard cannot be loaded",
        run: stays,
    },
    Test {
        name: "guard/tunnel",
        about: "VXLAN packets from a host that is no node, and from a pod, do not come out of the tunnel, also if a node translates them",
        run: tunnel,
    },
];

/// An unused port.
const PORT: u16 = 4_444;
const MARKER: &[u8] = b"marker";
const FORGED: &[u8] = b"forged";

/// Two attached pods. One of them attacks.
struct Scene<'a> {
    bed: &'a Bed<'a>,
    attacker: Sandbox,
    own: Attached,
    victim: Sandbox,
    other: Attached,
}

impl<'a> Scene<'a> {
    fn set(bed: &'a Bed<'a>) -> Result<Self> {
        bed.established()?;
        let (attacker, own) = bed.attached("attacker", "rack1")?;
        let (victim, other) = bed.attached("victim", "rack1")?;
        Ok(Scene { bed, attacker, own, victim, other })
    }

    fn dropped(&self) -> Result<BTreeMap<String, u64>> {
        Ok(client::status(self.bed.node()?)?.guard.dropped)
    }

    /// Sends from the attacker.
    fn send(&self, packet: &Packet) -> Result<()> {
        packet.send(&self.attacker.ns, "eth0")
    }

    /// Whether a forged datagram arrives at a socket. The check ends with a marker, which the
    /// attacker sends from its own address.
    fn arrives(&self, at: &Namespace, port: u16, forged: &Packet, to: IpAddr) -> Result<bool> {
        let socket = listen(at, port)?;
        self.send(forged)?;
        let own = address(&self.own, to.is_ipv4())?;
        let marker = Packet::udp((own, 5_000), (to, port), MARKER)?;
        Ok(received(&socket, || self.send(&marker))? == FORGED)
    }
}

fn address(attached: &Attached, v4: bool) -> Result<IpAddr> {
    attached
        .addresses
        .iter()
        .copied()
        .find(|address| address.is_ipv4() == v4)
        .context("an address of the family")
}

fn pod(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let scene = Scene::set(bed)?;
        let guarded = attacks(&scene)?;
        for (attack, arrived) in &guarded {
            ensure!(!arrived, "with the guard, {attack} arrived");
        }
        let dropped = scene.dropped()?;
        for reason in [
            "source",
            "arp_sender",
            "router_advertisement",
            "icmp_redirect",
            "dhcp_server",
            "bgp",
            "bfd",
            "vxlan_from_pod",
        ] {
            ensure!(
                dropped.get(reason).is_some_and(|packets| *packets > 0),
                "{reason} was not counted: {dropped:?}"
            );
        }
        // The same attacks on a node without a guard: they succeed.
        switch(bed, "one-rack", false)?;
        let arrived: Vec<String> =
            attacks(&scene)?.into_iter().filter(|(_, arrived)| *arrived).map(|(attack, _)| attack).collect();
        for must in [
            "a foreign pod's IPv4 source",
            "a foreign pod's IPv6 source",
            "a BGP connection",
            "a router advertisement",
            "an ARP sender",
        ] {
            ensure!(
                arrived.iter().any(|attack| attack == must),
                "without the guard {must} did not arrive: {arrived:?}"
            );
        }
        passed(format!(
            "{} attacks, none arrived; {} of them without the guard",
            guarded.len(),
            arrived.len()
        ))
    })
}

/// Switches the guard on or off and restarts the agent.
fn switch(bed: &Bed<'_>, topology: &str, on: bool) -> Result<()> {
    let node = bed.node()?;
    client::end_agent(node, Signal::TERM)?;
    let config = bed.fabric.file(&format!("{topology}/node1/agent.yaml"));
    let text = std::fs::read_to_string(&config)?;
    let text: String =
        text.lines().filter(|line| !line.starts_with("guard:")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&config, format!("{text}guard: {{ enabled: {on} }}\n"))?;
    client::start_agent(node)?;
    bed.established()?;
    let guard = client::status(node)?.guard;
    ensure!(guard.in_force == on, "{guard:?}");
    Ok(())
}

/// Runs each attack. Returns its name, and whether its packet arrived.
fn attacks(scene: &Scene<'_>) -> Result<Vec<(String, bool)>> {
    let mut seen = sources(scene)?;
    seen.extend(routers(scene)?);
    seen.extend(ports(scene)?);
    Ok(seen)
}

/// Foreign source addresses, to a host beyond the routers and to the other pod.
fn sources(scene: &Scene<'_>) -> Result<Vec<(String, bool)>> {
    let outside = &scene.bed.host("outside")?.ns;
    let (outside_v4, outside_v6): (IpAddr, IpAddr) = ("192.0.2.10".parse()?, "2001:db8:9::10".parse()?);
    let mut seen = Vec::new();
    for (what, from) in [
        ("a foreign pod's IPv4 source", address(&scene.other, true)?),
        ("a public IPv4 source", "8.8.8.8".parse()?),
        ("the router's IPv4 source", "10.1.0.1".parse()?),
        ("a foreign pod's IPv6 source", address(&scene.other, false)?),
        ("a foreign IPv6 source", "2001:db8:bad::1".parse()?),
    ] {
        let to = if from.is_ipv4() { outside_v4 } else { outside_v6 };
        let forged = Packet::udp((from, 5_000), (to, PORT), FORGED)?;
        seen.push((what.to_owned(), scene.arrives(outside, PORT, &forged, to)?));
    }
    // A server's answer to a client without a request.
    let victim = address(&scene.other, true)?;
    let offer = Packet::udp((address(&scene.own, true)?, 67), (victim, 68), FORGED)?;
    seen.push(("a DHCP server's message".to_owned(), scene.arrives(&scene.victim.ns, 68, &offer, victim)?));
    Ok(seen)
}

/// Messages by which a pod would become a router of the node, or a neighbour with another's
/// address.
fn routers(scene: &Scene<'_>) -> Result<Vec<(String, bool)>> {
    let node = scene.bed.node()?;
    // The sysctls protect the pod no longer, because the test is about the guard.
    let device = scene.device()?;
    for (path, value) in [("ipv6/conf/{}/accept_ra", "2"), ("ipv4/conf/{}/rp_filter", "0")] {
        let path = format!("/proc/sys/net/{}", path.replace("{}", &device));
        node.within(|| Ok(std::fs::write(&path, value)?))?;
    }
    node.within(|| Ok(std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?))?;
    let mut seen = Vec::new();
    let local: Ipv6Addr = "fe80::bad".parse()?;
    scene.attacker.ns.ip(["addr", "replace", "fe80::bad/64", "dev", "eth0", "nodad"])?;
    scene.send(&Packet::router_advertisement(local)?)?;
    scene.settle()?;
    let routes = node.run("ip", ["-6", "route", "show", "default"])?;
    seen.push(("a router advertisement".to_owned(), routes.contains(&device)));
    if routes.contains(&device) {
        node.run("ip", ["-6", "route", "del", "default", "dev", &device])?;
    }

    let gateway = address(&scene.own, true)?;
    let redirect = Packet::icmp("10.1.0.1".parse()?, "10.1.0.11".parse()?, 64, 5, &[10, 201, 0, 9])?;
    scene.send(&redirect)?;
    let redirect = Packet::icmp(local.into(), "fd00:1::11".parse()?, 255, 137, &[0; 36])?;
    scene.send(&redirect)?;
    scene.settle()?;

    // ARP: the pod's own kernel sends a request from a foreign address.
    let foreign = "10.201.99.99";
    scene.attacker.ns.ip(["addr", "add", "10.201.99.99/32", "dev", "eth0"])?;
    let entry = scene.attacker.ns.ip(["neigh", "show", "169.254.1.1"])?;
    let mac =
        entry.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).unwrap_or_default().to_owned();
    scene.attacker.ns.ip(["neigh", "del", "169.254.1.1", "dev", "eth0"])?;
    let asked = Packet::udp((foreign.parse()?, 5_000), ("192.0.2.10".parse()?, PORT), FORGED)?;
    scene.send(&asked)?;
    let known = wait_for("the ARP request to be answered or counted", PATIENCE, || {
        let neighbours = node.run("ip", ["neigh", "show", "dev", &device])?;
        let counted = scene.dropped()?.get("arp_sender").copied().unwrap_or_default();
        let known = neighbours.contains(foreign);
        Ok(if known || counted > 0 { Seen::Yes(known) } else { Seen::NotYet(neighbours) })
    })?;
    seen.push(("an ARP sender".to_owned(), known));
    scene.attacker.ns.ip(["addr", "del", "10.201.99.99/32", "dev", "eth0"])?;
    scene.attacker.ns.ip([
        "neigh",
        "replace",
        "169.254.1.1",
        "lladdr",
        &mac,
        "dev",
        "eth0",
        "nud",
        "permanent",
    ])?;
    ensure!(gateway.is_ipv4());
    Ok(seen)
}

/// Ports of the node that pods must not reach.
fn ports(scene: &Scene<'_>) -> Result<Vec<(String, bool)>> {
    let own = address(&scene.own, true)?;
    let node: IpAddr = "10.1.0.11".parse()?;
    let mut seen = Vec::new();
    let connected = scene.attacker.ns.within(|| {
        Ok(std::net::TcpStream::connect_timeout(&(node, 179).into(), Duration::from_secs(1)).is_ok())
    })?;
    seen.push(("a BGP connection".to_owned(), connected));
    for port in [3_784, 4_784, 8_472] {
        scene.send(&Packet::udp((own, 49_152), (node, port), FORGED)?)?;
    }
    scene.settle()?;
    Ok(seen)
}

impl Scene<'_> {
    /// The host's end of the attacker's link.
    fn device(&self) -> Result<String> {
        let own = address(&self.own, true)?.to_string();
        let route = self.bed.node()?.run("ip", ["route", "show", "table", "39999", &own])?;
        let device = route.split_whitespace().skip_while(|word| *word != "dev").nth(1);
        device.map(str::to_owned).with_context(|| format!("no device in {route:?}"))
    }

    /// Waits until the node has handled the attacker's packets: it answers a later ping on the same
    /// link.
    fn settle(&self) -> Result<()> {
        let link = &self.attacker.ns;
        wait_for("the node to answer the pod", PATIENCE, || {
            let done = link.within(|| {
                let mut ping = crate::shell::cmd("ping", ["-c", "1", "-W", "2", "10.1.0.11"]);
                Ok(ping.output()?.status.success())
            })?;
            Ok(Seen::when(done, || "no answer".to_owned()))
        })
    }
}

fn stays(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let scene = Scene::set(bed)?;
        let node = bed.node()?;
        let outside = &bed.host("outside")?.ns;
        let to: IpAddr = "192.0.2.10".parse()?;
        let forged = Packet::udp((address(&scene.other, true)?, 5_000), (to, PORT), FORGED)?;
        let held = |when: &str| -> Result<()> {
            ensure!(!scene.arrives(outside, PORT, &forged, to)?, "a forged source arrived {when}");
            Ok(())
        };
        let tables = || node.run("nft", ["-a", "list", "table", "inet", "trunkline-guard"]);
        let handles = |text: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.split("# handle ").nth(1)).map(str::to_owned).collect()
        };
        held("at first")?;
        let before = handles(&tables()?);
        client::end_agent(node, Signal::KILL)?;
        held("while the agent is killed")?;
        client::start_agent(node)?;
        bed.established()?;
        held("after the restart")?;
        ensure!(handles(&tables()?) == before, "the restart loaded the tables again");

        let mut repairs = 0;
        for command in [
            "flush ruleset",
            "delete table inet trunkline-guard",
            "delete table arp trunkline-guard",
            "flush chain inet trunkline-guard prerouting",
            "flush set arp trunkline-guard own",
        ] {
            node.sh(&format!("nft {command}"))?;
            repairs = wait_for(&format!("the repair after {command}"), PATIENCE, || {
                let guard = client::status(node)?.guard;
                let done = guard.repairs > repairs && guard.in_force;
                Ok(if done { Seen::Yes(guard.repairs) } else { Seen::NotYet(format!("{guard:?}")) })
            })?;
            held(&format!("after {command}"))?;
        }
        let own = node.run("nft", ["list", "set", "arp", "trunkline-guard", "own"])?;
        for attached in [&scene.own, &scene.other] {
            let address = address(attached, true)?.to_string();
            ensure!(own.contains(&address), "{address} is not in {own}");
        }
        // A pod's device that leaves its group is put back into it.
        let device = scene.device()?;
        node.sh(&format!("ip link set {device} group 0"))?;
        wait_for("the device's group", PATIENCE, || {
            let link = node.run("ip", ["-d", "link", "show", "dev", &device])?;
            Ok(Seen::when(link.contains("group 116"), || link.clone()))
        })?;
        held("after the group was restored")?;

        cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &scene.victim)?;
        let own = node.run("nft", ["list", "set", "arp", "trunkline-guard", "own"])?;
        ensure!(!own.contains(&address(&scene.other, true)?.to_string()), "a deleted pod is in {own}");
        passed(format!("{repairs} repairs"))
    })
}

fn tunnel(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        hybrid::ready(bed)?;
        let victim = Party::attach(bed, "node1", "overlay", "overlay", None)?;
        let far = Party::attach(bed, "node3", "overlay", "overlay", None)?;
        let pod = Party::attach(bed, "node1", "rack1", "rack1", None)?;
        let (sender, second) = (
            Party::attach(bed, "node1", "sender", "overlay", None)?,
            Party::attach(bed, "node2", "second", "overlay", None)?,
        );
        translate(bed)?;
        let mut with = tunnelled(bed, &victim, &far, &pod)?;
        with.extend(translated(bed, &second, &far, &sender)?);
        ensure!(with.is_empty(), "with the guard, forged packets came out of the tunnel: {with:?}");
        let dropped = client::status(bed.node()?)?.guard.dropped;
        for reason in ["vtep", "vxlan_from_pod", "vxlan_forwarded"] {
            ensure!(dropped.get(reason).is_some_and(|packets| *packets > 0), "{reason}: {dropped:?}");
        }
        switch(bed, "hybrid", false)?;
        hybrid::ready(bed)?;
        let mut without = tunnelled(bed, &victim, &far, &pod)?;
        without.extend(translated(bed, &second, &far, &sender)?);
        ensure!(
            without.len() == 5,
            "without the guard, only these packets came out of the tunnel: {without:?}"
        );
        passed("with the guard none of 5 packets arrives, without it all do")
    })
}

/// The senders whose forged packets leave node1's tunnel and reach a pod of the overlay.
fn tunnelled(bed: &Bed<'_>, victim: &Party, far: &Party, pod: &Party) -> Result<Vec<&'static str>> {
    let (to, node) = (victim.address(true)?, "10.51.0.11".parse()?);
    // The MAC address of node1's VTEP is derived from its IP address.
    let mac = [0x02, 0x12, 10, 51, 0, 11];
    let inner = Packet::udp(("8.8.8.8".parse()?, 5_000), (to, PORT), FORGED)?;
    let outside = bed.host("outside")?;
    let mut arrived = Vec::new();
    for (who, ns, link, from) in [
        ("a host that is no node", &outside.ns, "eth1", "10.90.0.2".parse()?),
        ("a pod", &pod.ns, "eth0", pod.address(true)?),
    ] {
        let socket = listen(&victim.ns, PORT)?;
        inner.in_vxlan(70, mac, from, node)?.send(ns, link)?;
        handled(ns)?;
        let marker = Packet::udp((far.address(true)?, 5_000), (to, PORT), MARKER)?;
        if received(&socket, || marker.send(&far.ns, "eth0"))? == FORGED {
            arrived.push(who);
        }
    }
    Ok(arrived)
}

/// An address of node2 that is no address of its VTEP, and a port of node1 that leads to node2.
const SECOND: &str = "192.0.2.12";
const NODE_PORT: u16 = 30_053;

/// Adds the second address of node2, and on node1 the rules of kube-proxy for a Service with the
/// endpoint node2.
fn translate(bed: &Bed<'_>) -> Result<()> {
    bed.host("node2")?.sh(&format!("ip addr add {SECOND}/32 dev lo"))?;
    let node1 = bed.host("node1")?;
    node1.sh(&format!("ip route add {SECOND}/32 via 10.51.0.12"))?;
    node1.sh(&format!(
        "nft 'table ip service {{
          chain pre {{
            type nat hook prerouting priority dstnat
            ip daddr 10.51.0.11 udp dport {NODE_PORT} dnat to 10.51.0.12:8472
          }}
          chain post {{
            type nat hook postrouting priority srcnat
            ct status dnat masquerade
          }}
        }}'"
    ))?;
    Ok(())
}

/// The senders whose packets reach a pod of node2 in the name of node1, which is a VTEP.
fn translated(bed: &Bed<'_>, victim: &Party, far: &Party, pod: &Party) -> Result<Vec<&'static str>> {
    let to = victim.address(true)?;
    let mac = [0x02, 0x12, 10, 51, 0, 12];
    let inner = Packet::udp(("8.8.8.8".parse()?, 5_000), (to, PORT), FORGED)?;
    let outside = bed.host("outside")?;
    let own = pod.address(true)?;
    let (second, node1): (IpAddr, IpAddr) = (SECOND.parse()?, "10.51.0.11".parse()?);
    let mut arrived = Vec::new();
    for (who, ns, link, from, port) in [
        ("a masqueraded pod", &pod.ns, "eth0", own, (second, 8_472)),
        ("a pod by a Service", &pod.ns, "eth0", own, (node1, NODE_PORT)),
        ("a host by a Service", &outside.ns, "eth1", "10.90.0.2".parse()?, (node1, NODE_PORT)),
    ] {
        let socket = listen(&victim.ns, PORT)?;
        inner.in_vxlan_to(70, mac, from, port)?.send(ns, link)?;
        handled(ns)?;
        let marker = Packet::udp((far.address(true)?, 5_000), (to, PORT), MARKER)?;
        if received(&socket, || marker.send(&far.ns, "eth0"))? == FORGED {
            arrived.push(who);
        }
    }
    Ok(arrived)
}

/// Waits until node1 answers: then it has handled the earlier packets on the same link.
fn handled(ns: &Namespace) -> Result<()> {
    wait_for("an answer of the node", PATIENCE, || {
        let done = ns.within(|| {
            let mut ping = crate::shell::cmd("ping", ["-c", "1", "-W", "2", "10.51.0.11"]);
            Ok(ping.output()?.status.success())
        })?;
        Ok(Seen::when(done, || "no answer".to_owned()))
    })
}

/// Opens the port. A program that another thread starts holds a copy of a closed socket between
/// fork and exec, so the port may stay in use for a moment.
fn listen(ns: &Namespace, port: u16) -> Result<UdpSocket> {
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, port).into();
    let socket = wait_for("a free UDP port", PATIENCE, || {
        ns.within(|| match UdpSocket::bind(any) {
            Ok(socket) => Ok(Seen::Yes(socket)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(Seen::NotYet(format!("{any}: {error}"))),
            Err(error) => Err(error.into()),
        })
    })?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    Ok(socket)
}

/// Returns the first datagram. Sends the marker until a datagram arrives, because routes between
/// racks may need a moment.
fn received(socket: &UdpSocket, marker: impl Fn() -> Result<()>) -> Result<Vec<u8>> {
    let mut buffer = [0; 64];
    wait_for("the marker", PATIENCE, || {
        marker()?;
        Ok(match socket.recv_from(&mut buffer) {
            Ok((length, _)) => Seen::Yes(buffer[..length].to_vec()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
}

const EXTRA: [&str; 2] = ["10.9.0.0/16", "fd00:9::/64"];

/// The answer to a request with these prefixes.
fn request(bed: &Bed<'_>, pod: &Sandbox, prefixes: &[&str]) -> Result<Result<Attached, String>> {
    let mut conf = cni::trunkline(Some("rack1"));
    conf["args"] = serde_json::json!({ "cni": { "extraPrefixes": prefixes } });
    match cni::run(bed.fabric, "ADD", &conf, pod)?.outcome {
        Err(error) => Ok(Err(error.text)),
        Ok(_) => cni::add(bed.fabric, &conf, pod).map(Ok),
    }
}

/// Waits until the pod `router` has this number of prefixes, in the operator's view.
fn prefixes_shown(bed: &Bed<'_>, number: usize) -> Result<()> {
    wait_for(&format!("{number} extra prefixes"), PATIENCE, || {
        let shown: Vec<_> = bed.pods()?.into_iter().flat_map(|pod| pod.extra_prefixes).collect();
        Ok(Seen::when(shown.len() == number, || format!("{shown:?}")))
    })
}

fn router_pod(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let router = bed.pod("router")?;
        let says = |request: Result<Attached, String>, words: &str| {
            let error = request.err().unwrap_or_default();
            ensure!(error.contains(words), "{words:?} is not in {error:?}");
            Ok(())
        };
        says(
            request(bed, &router, &EXTRA)?,
            "args.cni.extraPrefixes: 10.9.0.0/16: spec.config.extraPrefixes of Network rack1 allows nothing",
        )?;
        bed.nothing_but(&[], &[])?;
        let manifest = bed.manifest("networks.yaml");
        const LIST: &str = "    extraPrefixes: [10.9.0.0/16, \"fd00:9::/64\"]\n    bgpPeers:\n";
        manifest.edit("    bgpPeers:\n", LIST)?;
        let own = wait_for("the Network to allow the prefixes", PATIENCE, || {
            let answer = request(bed, &router, &EXTRA)?;
            Ok(answer.map_or_else(Seen::NotYet, Seen::Yes))
        })?;
        let wrong = bed.pod("wrong")?;
        says(
            request(bed, &wrong, &["10.9.0.0/16", "10.10.0.0/16"])?,
            "10.10.0.0/16: spec.config.extraPrefixes",
        )?;
        let (victim, other) = bed.attached("plain", "rack1")?;
        let scene = Scene { bed, attacker: router, own, victim, other };
        let (v4, v6): (IpAddr, IpAddr) = ("10.1.0.11".parse()?, "fd00:1::11".parse()?);
        let arrive = |when: &str, expected: &[&str]| -> Result<()> {
            for source in ["10.9.1.1", "fd00:9::1", "10.10.1.1", "fd00:a::1"] {
                let from: IpAddr = source.parse()?;
                let to = if from.is_ipv4() { v4 } else { v6 };
                let forged = Packet::udp((from, 5_000), (to, PORT), FORGED)?;
                let arrived = scene.arrives(&node.ns, PORT, &forged, to)?;
                ensure!(
                    arrived == expected.contains(&source),
                    "{when}, packets of the pod from {source} {}",
                    if arrived { "arrived" } else { "did not arrive" }
                );
            }
            Ok(())
        };
        // The kernel's own check of sources would interfere, and only for IPv4.
        node.sh("echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter")?;
        let both = ["10.9.1.1", "fd00:9::1"];
        prefixes_shown(bed, 2)?;
        arrive("at first", &both)?;
        client::end_agent(node, Signal::KILL)?;
        arrive("without an agent", &both)?;
        client::start_agent(node)?;
        bed.established()?;
        prefixes_shown(bed, 2)?;
        arrive("after the restart", &both)?;
        // A change of the Network applies to running pods.
        manifest.edit(LIST, "    extraPrefixes: [\"fd00:9::/48\"]\n    bgpPeers:\n")?;
        prefixes_shown(bed, 1)?;
        arrive("with less allowed", &both[1..])?;
        manifest.edit("    extraPrefixes: [\"fd00:9::/48\"]\n", "")?;
        prefixes_shown(bed, 0)?;
        arrive("with nothing allowed", &[])?;
        passed("2 prefixes, through a restart and three lists of the Network".to_owned())
    })
}
