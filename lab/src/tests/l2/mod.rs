//! Pods on the racks' own VLANs, in a user-mode kernel. The topology (lab/topologies/l2.clab.yml)
//! has two racks, one for each attachment, so every test here covers both.

pub(super) mod kernel;
pub(super) mod life;
pub(super) mod parent;
pub(super) mod podman;
pub(super) mod policies;
pub(super) mod services;
pub(super) mod wire;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::matrix::{Party, flows, matrix, reachable};
use super::{Context, Test, Verdict, passed};
use crate::capture::Capture;
use crate::client;
use crate::cni::{self, Attached, Sandbox};
use crate::pinger::unreachable;
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "l2/switch",
        about: "tagged hosts of two racks reach each other, except through a port without their VLAN",
        run: switch,
    },
    Test {
        name: "l2/pairs",
        about: "pods, nodes, hosts and the outside reach each other by their own addresses; no node sends an ARP request with a pod as sender",
        run: pairs,
    },
];

/// One rack of the topology.
#[derive(Debug)]
struct Rack {
    /// The Network, and its attachment.
    network: &'static str,
    attachment: &'static str,
    nodes: [&'static str; 2],
    switch: &'static str,
    /// A machine on the VLAN, and its device there.
    host: &'static str,
    host_device: &'static str,
    /// The gateway's device on the VLAN.
    gateway_device: &'static str,
    gateways: [&'static str; 2],
    vlan: u16,
    /// The nodes' own network is 10.N.0.0/24 and fd00:N::/64.
    number: u8,
}

const RACKS: [Rack; 2] = [
    Rack {
        network: "rack1",
        attachment: "veth",
        nodes: ["node1", "node2"],
        switch: "sw1",
        host: "host1",
        host_device: "vlan11",
        gateway_device: "eth1.11",
        gateways: ["10.11.0.1", "fd00:11::1"],
        vlan: 11,
        number: 1,
    },
    Rack {
        network: "rack2",
        attachment: "ipvlan",
        nodes: ["node3", "node4"],
        switch: "sw2",
        host: "host2",
        host_device: "vlan21",
        gateway_device: "eth2.21",
        gateways: ["10.21.0.1", "fd00:21::1"],
        vlan: 21,
        number: 2,
    },
];

impl Rack {
    /// A pod on the rack's first node, with this address of its VLAN.
    fn named_pod(&self, bed: &Bed<'_>, name: &str, address: &str) -> Result<Sandbox> {
        let mut pod = Sandbox::create(bed.fabric, self.nodes[0], name)?;
        pod.args = format!("IP={address}");
        Ok(pod)
    }

    /// Fails unless an error names a gateway that does not answer. Any of the gateways may be the
    /// first.
    fn names_gateway(&self, said: &str) -> Result<()> {
        let named = self.gateways.iter().any(|gateway| said.contains(gateway));
        ensure!(named, "the error has none of {:?}: {said}", self.gateways);
        Ok(())
    }

    /// Runs an ADD that must fail; returns the error's text.
    fn refused(&self, bed: &Bed<'_>, pod: &Sandbox) -> Result<String> {
        let error = cni::run(bed.fabric, "ADD", &self.conf(), pod)?.error();
        Ok(error.with_context(|| format!("{}: {}", self.attachment, pod.name))?.text)
    }

    fn attach(&self, bed: &Bed<'_>, node: &str, name: &str) -> Result<(Sandbox, Attached)> {
        let pod = Sandbox::create(bed.fabric, node, name)?;
        let attached = cni::add(bed.fabric, &self.conf(), &pod).with_context(|| self.attachment)?;
        ensure!(
            attached.addresses.len() == 2,
            "{name} has the addresses {:?}, not one address of each family",
            attached.addresses
        );
        let device = pod.ns.ip(["-d", "-o", "link", "show", "eth0"])?;
        ensure!(device.contains(self.attachment), "{name}'s device is not {}: {device}", self.attachment);
        Ok((pod, attached))
    }

    fn conf(&self) -> serde_json::Value {
        cni::trunkline(Some(self.network))
    }
}

/// Tests the lab itself.
fn switch(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let far = ["10.11.0.1", "10.21.0.200", "10.90.0.2", "fd00:11::1", "fd00:21::c8", "fd00:90::2"];
        let from = bed.host("host1")?;
        reachable(flows(from, &far)?)?;
        for port in ["eth3", "eth9"] {
            let switch = bed.host("sw1")?;
            switch.sh(&format!("bridge vlan del dev {port} vid 11"))?;
            let without = unreachable(flows(from, &far)?, Duration::from_secs(1))?;
            ensure!(without.len() == far.len(), "{port} lacks VLAN 11, and only {without:?} had no answer");
            reachable(flows(bed.host("node1")?, &["10.1.0.1", "10.2.0.13"])?)
                .context("the nodes' own network")?;
            switch.sh(&format!("bridge vlan add dev {port} vid 11"))?;
            reachable(flows(from, &far)?).with_context(|| format!("VLAN 11 is back on {port}"))?;
        }
        passed("two racks, IPv4 and IPv6, both ends of the trunk")
    })
}

/// Waits until a node reports that it can take pods.
fn ready(bed: &Bed<'_>, node: &str) -> Result<()> {
    wait_for(&format!("{node} to be ready"), PATIENCE, || {
        let status = client::status(bed.host(node)?)?;
        Ok(Seen::when(status.ready, || format!("{:?}", status.not_ready)))
    })
}

fn pairs(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let [by_veth, _] = &RACKS;
        let asked = Capture::start(&bed.host(by_veth.host)?.ns, by_veth.host_device, "arp[6:2] = 1")?;
        let (mut parties, mut behind_veth) = (Vec::new(), Vec::new());
        for rack in &RACKS {
            for (node, pod) in rack.nodes.iter().zip(["a", "b"]).chain([(&rack.nodes[0], "c")]) {
                let (sandbox, attached) = rack.attach(bed, node, pod)?;
                parties.push(Party::pod(&sandbox, &attached));
                if rack.network == by_veth.network {
                    behind_veth.extend(attached.addresses);
                }
            }
        }
        for (host, addresses) in [
            ("node1", ["10.1.0.11", "fd00:1::11"]),
            ("node3", ["10.2.0.13", "fd00:2::13"]),
            ("host1", ["10.11.0.200", "fd00:11::c8"]),
            ("host2", ["10.21.0.200", "fd00:21::c8"]),
            ("outside", ["10.90.0.2", "fd00:90::2"]),
        ] {
            parties.push(Party::host(bed.host(host)?, &addresses)?);
        }
        let pairs = matrix(&parties)?;
        // A packet of a pod or of the host may have caused the request, but the node itself sent
        // the request.
        let asked = asked.seen();
        ensure!(!asked.is_empty(), "no ARP request was seen");
        for pod in behind_veth {
            // A request for the sender's own address is an announcement.
            let (by_pod, own) = (format!(" tell {pod},"), format!("who-has {pod} "));
            let as_pod = asked.iter().find(|line| line.contains(&by_pod) && !line.contains(&own));
            ensure!(
                as_pod.is_none(),
                "ARP request with a pod as sender: {}",
                as_pod.map_or("", String::as_str)
            );
        }
        passed(format!("{pairs} pairs of addresses, {} ARP requests, none as a pod", asked.len()))
    })
}
