//! `hairpin` with real routers and a real switch: traffic between pods of one node appears outside,
//! and no other local traffic does.
//!
//! Captures at the ToRs and at the switch's port show the traffic. When a packet must be absent,
//! the test sends another packet later, and waits until the capture shows it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::bed::{Bed, PATIENCE, lab};
use super::greeter::{Greeter, greeted};
use super::matrix::{Party, flows, reachable};
use super::{Context, Test, Verdict, passed};
use crate::capture::Capture;
use crate::client;
use crate::host::Host;
use crate::shell::{Seen, wait_for};

/// Tests in the machine's kernel.
pub(super) const TESTS: &[Test] = &[Test {
    name: "hybrid/hairpin",
    about: "hairpin over BGP: packets between pods of one node pass the ToR; node, Services, Service-to-self and NodePort work",
    run: over_bgp,
}];

/// Tests in the user-mode kernel.
pub(super) const VLAN_TESTS: &[Test] = &[Test {
    name: "l2/hairpin",
    about: "hairpin in a VLAN: packets between pods of one node pass the switch's port and the \
            router; packets to the node and to Services do not",
    run: in_a_vlan,
}];

/// Two pods of one node, and places outside where their traffic is captured.
struct Outside<'a> {
    node: &'a Host,
    a: &'a Party,
    b: &'a Party,
    /// Namespaces and links that the node's packets pass, each with an address that the node
    /// reaches through it.
    places: Vec<(&'a Host, &'a str, &'a str)>,
    /// Filter for tcpdump.
    filter: &'a str,
}

impl Outside<'_> {
    /// Lines of all captures during the work, until a later packet has passed each of them.
    fn seen(&self, work: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
        let captures: Vec<Capture> = self
            .places
            .iter()
            .map(|(host, link, _)| Capture::start(&host.ns, link, self.filter))
            .collect::<Result<_>>()?;
        work()?;
        let mut lines = Vec::new();
        for ((_, _, marker), capture) in self.places.iter().zip(&captures) {
            reachable(flows(self.node, &[marker])?)?;
            capture.wait(&[&format!("> {marker}: ICMP echo request")], PATIENCE)?;
            lines.extend(capture.seen());
        }
        Ok(lines)
    }

    /// Checks that both pods reach each other, IPv4 and IPv6.
    fn pods_reach_each_other(&self) -> Result<()> {
        let both = [(self.a, self.b), (self.b, self.a)];
        reachable(both.iter().flat_map(|(from, to)| to.addresses.iter().map(|to| from.flow(*to))).collect())
    }

    /// Fails unless the traffic in each direction passes outside, out and back.
    fn out_and_back(&self, lines: &[String]) -> Result<()> {
        for (from, to) in [(self.a, self.b), (self.b, self.a)] {
            for v4 in [true, false] {
                let (from, to) = (from.address(v4)?, to.address(v4)?);
                let request = format!("{from} > {to}: ");
                let mut macs: Vec<(&str, &str)> = lines
                    .iter()
                    .filter(|line| line.contains(&request) && line.contains("echo request"))
                    .filter_map(|line| line.split_once(',')?.0.split_once(" > "))
                    .collect();
                macs.sort_unstable();
                macs.dedup();
                let returns = macs.iter().any(|(sender, receiver)| macs.contains(&(receiver, sender)));
                ensure!(
                    returns,
                    "packets from {from} to {to} did not leave the node and return: {macs:?} of {lines:?}"
                );
            }
        }
        Ok(())
    }

    /// Fails if a packet from or to one of the pods' addresses passed outside.
    fn nothing_of_pods(&self, lines: &[String], what: &str) -> Result<()> {
        for address in self.a.addresses.iter().chain(&self.b.addresses) {
            let (from, to, port) = (format!(" {address} > "), format!("> {address}:"), format!("{address}."));
            let found = lines.iter().find(|line| [&from, &to, &port].iter().any(|word| line.contains(*word)));
            ensure!(found.is_none(), "{what} left the node: {found:?}");
        }
        Ok(())
    }
}

/// Writes `hairpin: true` into a manifest of node1, and waits for the rules.
fn turn_on(bed: &Bed<'_>) -> Result<()> {
    bed.manifest("networks.yaml").edit("  config:\n", "  config:\n    hairpin: true\n")?;
    wait_for("the rules of hairpin", PATIENCE, || {
        let rules = bed.node()?.sh("ip rule; ip -6 rule")?;
        Ok(Seen::when(rules.matches("980:").count() == 2, || rules))
    })
}

/// Services as kube-proxy would configure them: 10.96.0.4 is pod a, 10.96.0.5 is pod b, port 30080
/// of the node is pod b.
fn services(node: &Host, a: &Party, b: &Party) -> Result<()> {
    let (a4, a6, b4, b6) = (a.address(true)?, a.address(false)?, b.address(true)?, b.address(false)?);
    let translate = format!(
        "ip daddr 10.96.0.4 tcp dport 80 dnat ip to {a4}:8080; ip6 daddr fd00:96::4 tcp dport 80 dnat ip6 to [{a6}]:8080; \
         ip daddr 10.96.0.5 tcp dport 80 dnat ip to {b4}:8080; ip6 daddr fd00:96::5 tcp dport 80 dnat ip6 to [{b6}]:8080; \
         ip daddr 10.1.0.11 tcp dport 30080 dnat ip to {b4}:8080; \
         ip6 daddr fd00:1::11 tcp dport 30080 dnat ip6 to [{b6}]:8080;"
    );
    let table = format!(
        "table inet services {{ \
           chain pre {{ type nat hook prerouting priority dstnat; {translate} }}; \
           chain out {{ type nat hook output priority -100; {translate} }}; \
           chain post {{ type nat hook postrouting priority srcnat; \
             ip saddr {a4} ip daddr {a4} masquerade; ip6 saddr {a6} ip6 daddr {a6} masquerade; }}; }}"
    );
    node.run("nft", [&table]).map(drop)
}

fn over_bgp(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        node.sh("ip route add default via 10.1.0.1; ip -6 route add default via fd00:1::1")?;
        let (a, b) = (
            Party::attach(bed, "node1", "a", "rack1", None)?,
            Party::attach(bed, "node1", "b", "rack1", None)?,
        );
        let outside = Outside {
            node,
            a: &a,
            b: &b,
            places: vec![(bed.host("tor1")?, "eth1", "10.1.0.1"), (bed.host("tor2")?, "eth1", "10.2.0.1")],
            filter: "icmp or icmp6[0] = 128 or icmp6[0] = 129 or (tcp and not port 179)",
        };
        let before = outside.seen(|| outside.pods_reach_each_other())?;
        outside.nothing_of_pods(&before, "without hairpin, packets between pods of one node")?;

        turn_on(bed)?;
        let pods = outside.seen(|| outside.pods_reach_each_other())?;
        outside.out_and_back(&pods)?;

        let _servers = [Greeter::listen(&a.ns, 8080)?, Greeter::listen(&b.ns, 8080)?];
        services(node, &a, &b)?;
        let own: [IpAddr; 2] = ["10.1.0.11".parse()?, "fd00:1::11".parse()?];
        let ask = |from: &Party, to: &str, source: Option<IpAddr>| -> Result<()> {
            let seen = greeted(&from.ns, to.parse()?)?;
            ensure!(source.is_none_or(|source| source == seen), "{}: {to} saw {seen}", from.name);
            Ok(())
        };
        let host = Party::host(node, &["10.1.0.11", "fd00:1::11"])?;
        let inside = outside.seen(|| {
            // Host-network pods and probes, in both directions.
            for pod in [&a, &b] {
                reachable(pod.addresses.iter().map(|to| host.flow(*to)).collect())?;
                reachable(own.iter().map(|to| pod.flow(*to)).collect())?;
                for address in &pod.addresses {
                    greeted(&node.ns, SocketAddr::new(*address, 8080))?;
                }
            }
            for (service, v4) in [("10.96.0.5:80", true), ("[fd00:96::5]:80", false)] {
                ask(&a, service, Some(a.address(v4)?)).context("a Service")?;
                ask(&host, service, None).context("a Service, from the node")?;
            }
            for service in ["10.96.0.4:80", "[fd00:96::4]:80"] {
                ask(&a, service, None).context("a Service with the client itself as backend")?;
            }
            for (port, v4) in [("10.1.0.11:30080", true), ("[fd00:1::11]:30080", false)] {
                ask(&a, port, Some(a.address(v4)?)).context("NodePort, from a pod")?;
            }
            Ok(())
        })?;
        outside.nothing_of_pods(&inside, "packets that are translated on the node, or are the node's own")?;

        // From outside the pod sees the client's address. The pod's answer may leave through the
        // other ToR, so both ToRs must have a route to the address.
        let client = bed.host("outside")?;
        client.sh("ip route replace 10.1.0.0/24 via 10.91.0.1 src 192.0.2.10")?;
        let client = Party::host(client, &["192.0.2.10"])?;
        ask(&client, "10.1.0.11:30080", Some("192.0.2.10".parse()?)).context("NodePort, from outside")?;

        // The mark keeps Services on the node.
        client::end_agent(node, Signal::TERM)?;
        node.sh("ip rule del pref 960")?;
        let without = outside.seen(|| {
            // The result does not matter: request and answer take different paths.
            let _either = greeted(&a.ns, "10.96.0.5:80".parse()?);
            Ok(())
        })?;
        ensure!(
            outside.nothing_of_pods(&without, "").is_err(),
            "without rule 960, no packet passed outside either"
        );
        client::start_agent(node)?;
        bed.established()?;

        // Some firewalls run this command at their start.
        node.sh("nft flush ruleset")?;
        wait_for("the mark's rule to be back", PATIENCE, || {
            let rules = node.sh("nft list ruleset")?;
            Ok(Seen::when(rules.contains("meta mark set"), || rules))
        })?;
        passed(format!(
            "{} packets of pods seen at two ToRs, out and back; of node, Services, Service-to-self and NodePort none, of {} in all",
            pods.len(),
            inside.len()
        ))
    })
}

fn in_a_vlan(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let node = bed.node()?;
        let (a, b) = (
            Party::attach(bed, "node1", "a", "rack1", None)?,
            Party::attach(bed, "node1", "b", "rack1", None)?,
        );
        let outside = Outside {
            node,
            a: &a,
            b: &b,
            places: vec![(bed.host("sw1")?, "eth1", "10.1.0.1")],
            filter: "icmp or icmp6 or (vlan and (icmp or tcp or icmp6[0] = 128 or icmp6[0] = 129))",
        };
        let before = outside.seen(|| outside.pods_reach_each_other())?;
        outside.nothing_of_pods(&before, "without hairpin, packets between pods of one node")?;

        turn_on(bed)?;
        let pods = outside.seen(|| outside.pods_reach_each_other())?;
        outside.out_and_back(&pods)?;
        let untagged = pods.iter().find(|line| line.contains(&format!(" {} > ", a.addresses[0])));
        ensure!(untagged.is_some_and(|line| line.contains("vlan 11")), "not in VLAN 11: {untagged:?}");

        let _servers = [Greeter::listen(&a.ns, 8080)?, Greeter::listen(&b.ns, 8080)?];
        services(node, &a, &b)?;
        let own: [IpAddr; 2] = ["10.1.0.11".parse()?, "fd00:1::11".parse()?];
        let host = Party::host(node, &["10.1.0.11", "fd00:1::11"])?;
        let inside = outside.seen(|| {
            for pod in [&a, &b] {
                reachable(pod.addresses.iter().map(|to| host.flow(*to)).collect())?;
                reachable(own.iter().map(|to| pod.flow(*to)).collect())?;
            }
            for (service, v4) in [("10.96.0.5:80", true), ("[fd00:96::5]:80", false)] {
                let seen = greeted(&a.ns, service.parse()?).context("a Service")?;
                ensure!(seen == a.address(v4)?, "the Service's backend saw {seen}");
            }
            for service in ["10.96.0.4:80", "[fd00:96::4]:80"] {
                greeted(&a.ns, service.parse()?).context("a Service with the client itself as backend")?;
            }
            Ok(())
        })?;
        outside.nothing_of_pods(&inside, "packets that are translated on the node, or are the node's own")?;
        passed(format!("{} packets in VLAN 11 at the switch's port, of node and Services none", pods.len()))
    })
}
