//! Services for pods with attachment `ipvlan`: packets pass the veth pair to the node, are
//! translated on the node, and return on the same path. By the agent's own rule, a translated
//! connection to a slave has the node's address as its source. Plain DNAT rules replace kube-proxy
//! here.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::ready;
use crate::capture::Capture;
use crate::client;
use crate::tests::bed::{PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::matrix::{Party, flows, reachable};
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[Test {
    name: "l2/services",
    about: "a pod with an IPVLAN slave reaches Services through its veth pair; the backend is on \
            its node, in its VLAN or beyond",
    run: services,
}];

fn services(context: &Context) -> Result<Verdict> {
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
        let (mut services, mut rules) = (Vec::new(), String::new());
        for (number, (place, backend)) in (1..).zip(&backends) {
            for backend in &backend.addresses {
                let (service, family): (IpAddr, _) = if backend.is_ipv4() {
                    (format!("10.96.0.{number}").parse()?, "ip")
                } else {
                    (format!("fd00:96::{number}").parse()?, "ip6")
                };
                let to = SocketAddr::new(*backend, 8080);
                rules += &format!("{family} daddr {service} tcp dport 80 dnat {family} to {to}; ");
                services.push((*place, service));
            }
        }
        node.run(
            "nft",
            [format!(
                "table inet services {{ chain pre {{ type nat hook prerouting priority dstnat; {rules} }}; }}"
            )],
        )?;

        let wire = Capture::start(&bed.host("sw2")?.ns, "eth1", "icmp or tcp or vlan")?;
        let own: [IpAddr; 2] = ["10.2.0.13".parse()?, "fd00:2::13".parse()?];
        for (place, service) in &services {
            let seen = greeted(&pod.ns, SocketAddr::new(*service, 80)).context(*place)?;
            ensure!(own.contains(&seen), "{place} saw {seen}, not the node");
        }
        // The last packet has passed, so all packets before it have passed too. None of them had a
        // Service's address.
        reachable(flows(node, &["10.2.0.1"])?)?;
        wire.wait(&["> 10.2.0.1: ICMP echo request"], PATIENCE)?;
        let lines = wire.seen();
        for (_, service) in &services {
            let found = lines.iter().find(|line| line.contains(&format!("{service}.80")));
            ensure!(found.is_none(), "a Service's address left the node: {found:?}");
        }

        // The agent's rule causes this. Without the rule, a backend in the VLAN answers the slave
        // directly, with a source address that the pod did not use.
        client::end_agent(node, Signal::TERM)?;
        node.sh("nft delete table inet trunkline")?;
        let (place, unmasked) = services[2];
        let said = greeted(&pod.ns, SocketAddr::new(unmasked, 80));
        ensure!(said.is_err(), "{place} answered without the node's address: {said:?}");
        passed(format!(
            "{} Services, of backends {}",
            services.len(),
            backends.map(|(place, _)| place).join(", ")
        ))
    })
}
