//! Checks on the wire before a pod is ready: the gateway answers, no other host has the address,
//! and all neighbours receive the new owner's announcement.

use anyhow::{Context as _, Result, ensure};

use super::{RACKS, Rack};
use crate::capture::Capture;
use crate::cni;
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::matrix::{flows, reachable};
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[
    Test {
        name: "l2/duplicate-address",
        about: "an address of a machine on the VLAN is refused: the error names the machine's MAC",
        run: duplicate_address,
    },
    Test {
        name: "l2/dead-gateway",
        about: "a pod whose gateway does not answer is not ready, and the error names the gateway",
        run: dead_gateway,
    },
    Test {
        name: "l2/vlan-missing",
        about: "a trunk without the VLAN: a pod is not ready until the switch carries it",
        run: vlan_missing,
    },
    Test {
        name: "l2/announced",
        about: "the node announces a pod's addresses on the VLAN, and a neighbour replaces its old entry",
        run: announced,
    },
];

/// Runs a test for each rack, with requested addresses for a pod, one of each family.
fn each(context: &Context, test: impl Fn(&Bed<'_>, &Rack, [&str; 2]) -> Result<String>) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let mut seen = Vec::new();
        for rack in &RACKS {
            let addresses = [format!("10.{}.0.20", rack.vlan), format!("fd00:{}::20", rack.vlan)];
            let said = test(bed, rack, [&addresses[0], &addresses[1]]).with_context(|| rack.attachment)?;
            seen.push(format!("{}: {said}", rack.attachment));
        }
        passed(seen.join("; "))
    })
}

fn duplicate_address(context: &Context) -> Result<Verdict> {
    each(context, |bed, rack, addresses| {
        let host = bed.host(rack.host)?;
        let device = rack.host_device;
        let mac = host.sh(&format!("cat /sys/class/net/{device}/address"))?;
        let mut said = String::new();
        for (address, name) in addresses.into_iter().zip(["four", "six"]) {
            let pod = rack.named_pod(bed, name, address)?;
            host.run("ip", ["addr", "add", address, "dev", device])?;
            said = rack.refused(bed, &pod)?;
            for word in [address, mac.trim()] {
                ensure!(said.contains(word), "the error does not contain {word}: {said}");
            }
            bed.nothing_left(rack.nodes[0])?;
            host.run("ip", ["addr", "del", address, "dev", device])?;
            cni::add(bed.fabric, &rack.conf(), &pod).context("when the other machine has released it")?;
            cni::del(bed.fabric, &rack.conf(), &pod)?;
        }
        Ok(said)
    })
}

fn dead_gateway(context: &Context) -> Result<Verdict> {
    each(context, |bed, rack, [address, _]| {
        let gateway = bed.host("gw")?;
        let pod = rack.named_pod(bed, "stranded", address)?;
        gateway.run("ip", ["link", "set", rack.gateway_device, "down"])?;
        let said = rack.refused(bed, &pod)?;
        rack.names_gateway(&said)?;
        bed.nothing_left(rack.nodes[0])?;
        gateway.run("ip", ["link", "set", rack.gateway_device, "up"])?;
        cni::add(bed.fabric, &rack.conf(), &pod).context("when the gateway is back")?;
        cni::del(bed.fabric, &rack.conf(), &pod)?;
        Ok(said)
    })
}

fn vlan_missing(context: &Context) -> Result<Verdict> {
    each(context, |bed, rack, [address, _]| {
        let switch = bed.host(rack.switch)?;
        let pod = rack.named_pod(bed, "stranded", address)?;
        // The first node's port.
        switch.sh(&format!("bridge vlan del dev eth1 vid {}", rack.vlan))?;
        let said = rack.refused(bed, &pod)?;
        rack.names_gateway(&said)?;
        switch.sh(&format!("bridge vlan add dev eth1 vid {}", rack.vlan))?;
        cni::add(bed.fabric, &rack.conf(), &pod).context("when the switch carries the VLAN")?;
        reachable(flows(bed.host("outside")?, &[address])?)?;
        cni::del(bed.fabric, &rack.conf(), &pod)?;
        Ok(said)
    })
}

/// The host on the VLAN has communicated with another owner of the address. Without the
/// announcement it would send to that owner's MAC for as long as its neighbour entry is fresh.
fn announced(context: &Context) -> Result<Verdict> {
    each(context, |bed, rack, addresses| {
        let host = bed.host(rack.host)?;
        let stale = "02:00:5e:00:00:01";
        for address in addresses {
            let entry =
                ["neigh", "replace", address, "lladdr", stale, "nud", "stale", "dev", rack.host_device];
            host.run("ip", entry)?;
        }
        let filter = "arp or icmp6[0] = 136";
        let capture = Capture::start(&host.ns, rack.host_device, filter)?;
        let pod = rack.named_pod(bed, "announced", addresses[0])?;
        let attached = cni::add(bed.fabric, &rack.conf(), &pod)?;
        for address in &attached.addresses {
            // A gratuitous ARP has the address as its sender. An unsolicited NA has it as its
            // target, and is sent to all nodes.
            let address = address.to_string();
            let announcement = if address.contains(':') {
                ["ff02::1", "advertisement"]
            } else {
                ["ARP", "ff:ff:ff:ff:ff:ff"]
            };
            capture.wait(&[announcement[0], announcement[1], &address], PATIENCE)?;
        }
        let entry = host.run("ip", ["neigh", "show", addresses[0], "dev", rack.host_device])?;
        ensure!(!entry.contains(stale), "the neighbour still has {}", entry.trim());
        let addresses: Vec<String> = attached.addresses.iter().map(ToString::to_string).collect();
        reachable(flows(host, &addresses)?)?;
        cni::del(bed.fabric, &rack.conf(), &pod)?;
        Ok(entry.trim().to_owned())
    })
}
