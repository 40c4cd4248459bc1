//! Services of pods with attachment `ipvlan`: by the side pair to the node, translated there, and back the same way.
//!
//! This kernel has iptables and no nf_tables. So the Services are iptables' here, as kube-proxy writes them, and so is the one rule that the
//! agent itself would have in nftables: what was translated for a slave gets the node's address. What is looked at is the way of the packets.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::ready;
use crate::capture::Capture;
use crate::client;
use crate::host::Host;
use crate::shell::{cmd, run};
use crate::tests::bed::{PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::matrix::{Party, flows, reachable};
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[Test {
    name: "l2/services",
    about: "a pod with an IPVLAN slave reaches Services by its side pair, whether the backend is on its node, in its VLAN or beyond",
    run: services,
}];

/// iptables of a family.
fn tables(node: &Host, address: IpAddr, rule: &str) -> Result<()> {
    let program = if address.is_ipv4() { "iptables-legacy" } else { "ip6tables-legacy" };
    // Not with the node's own /run: iptables calls for its modules by a program that lies in ours.
    let words = ["netns", "exec", node.ns.name(), program, "-w", "-t", "nat"];
    run(&mut cmd("ip", words.into_iter().chain(rule.split_whitespace()))).map(drop)
}

fn services(context: &Context) -> Result<Verdict> {
    crate::packages::need(["iptables"])?;
    lab(context, "l2", |bed| {
        let node = bed.host("node3")?;
        client::end_agent(node, Signal::TERM)?;
        node.sh("echo 'serviceCIDRs: [10.96.0.0/16, \"fd00:96::/112\"]' >>/etc/trunkline/agent.yaml")?;
        client::start_agent(node)?;
        ready(bed, "node3")?;
        let pod = Party::attach(bed, "node3", "client", "rack2", None)?;
        let backends = [
            ("a pod of the node", Party::attach(bed, "node3", "near", "rack2", None)?),
            ("a pod of another node", Party::attach(bed, "node4", "far", "rack2", None)?),
            ("beyond the router", Party::host(bed.host("outside")?, &["10.90.0.2", "fd00:90::2"])?),
        ];
        let _servers: Vec<Greeter> =
            backends.iter().map(|(_, to)| Greeter::listen(&to.ns, 8080)).collect::<Result<_>>()?;
        let mut services = Vec::new();
        for (number, (place, backend)) in (1..).zip(&backends) {
            for backend in &backend.addresses {
                let service: IpAddr = if backend.is_ipv4() {
                    format!("10.96.0.{number}").parse()?
                } else {
                    format!("fd00:96::{number}").parse()?
                };
                let to = SocketAddr::new(*backend, 8080);
                tables(
                    node,
                    service,
                    &format!("-A PREROUTING -d {service} -p tcp -j DNAT --to-destination {to}"),
                )?;
                services.push((*place, service));
            }
        }

        let masquerade = |verb: &str| -> Result<()> {
            for slave in &pod.addresses {
                let subnet = if slave.is_ipv4() { "10.21.0.0/24" } else { "fd00:21::/112" };
                tables(
                    node,
                    *slave,
                    &format!("{verb} POSTROUTING -s {subnet} -m conntrack --ctstate DNAT -j MASQUERADE"),
                )?;
            }
            Ok(())
        };
        // Without it a backend in the VLAN answers the slave itself, from an address that the pod did not ask.
        let unmasked = services[2].1;
        let said = greeted(&pod.ns, SocketAddr::new(unmasked, 80));
        ensure!(said.is_err(), "{unmasked} was answered without the node's address: {said:?}");

        masquerade("-A")?;
        let wire = Capture::start(&bed.host("sw2")?.ns, "eth1", "icmp or tcp or vlan")?;
        let own: [IpAddr; 2] = ["10.2.0.13".parse()?, "fd00:2::13".parse()?];
        for (place, service) in &services {
            let seen = greeted(&pod.ns, SocketAddr::new(*service, 80)).context(*place)?;
            ensure!(own.contains(&seen), "{place} was asked by {seen}, not by the node");
        }
        // What was sent last has passed: nothing of the Services themselves was on the wire before it.
        reachable(flows(node, &["10.2.0.1"])?)?;
        wire.wait(&["> 10.2.0.1: ICMP echo request"], PATIENCE)?;
        let lines = wire.seen();
        for (_, service) in &services {
            let found = lines.iter().find(|line| line.contains(&format!("{service}.80")));
            ensure!(found.is_none(), "a Service's address left the node: {found:?}");
        }
        passed(format!(
            "{} Services, of backends {}",
            services.len(),
            backends.map(|(place, _)| place).join(", ")
        ))
    })
}
