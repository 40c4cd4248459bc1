//! Pods on a VLAN while the parent link of the VLAN changes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{RACKS, Rack, ready};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::matrix::{Party, flows, matrix, reachable};
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[
    Test {
        name: "l2/parent",
        about: "the parent goes down and comes back, is renamed, gets another MTU, loses its carrier: pods are reachable again",
        run: parent,
    },
    Test {
        name: "l2/untagged",
        about: "netID 0: pods are on the nodes' own network; the device of the earlier VLAN is removed",
        run: untagged,
    },
    Test {
        name: "l2/vlan-device",
        about: "a VLAN device exists while a subnet needs it, is restored after a deletion, and a \
                foreign one is not changed",
        run: vlan_device,
    },
];

fn parent(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        for rack in &RACKS {
            let node = bed.host(rack.nodes[0])?;
            let (_pod, attached) = rack.attach(bed, &node.name, "p")?;
            let to: Vec<String> = attached.addresses.iter().map(ToString::to_string).collect();
            let reached = |when: &'static str| -> Result<()> {
                for from in [rack.host, "outside"] {
                    reachable(flows(bed.host(from)?, &to)?)
                        .with_context(|| format!("{}: {when}", rack.attachment))?;
                }
                Ok(())
            };
            reached("at first")?;

            bed.host(rack.switch)?.sh("ip link set eth1 down; ip link set eth1 up")?;
            reached("the switch's port was down")?;

            node.sh("ip link set eth1 down")?;
            wait_for("the status to show that eth1 is down", PATIENCE, || {
                let said = client::status(node)?.not_ready;
                Ok(Seen::when(said.iter().any(|said| said.contains("eth1 is down")), || format!("{said:?}")))
            })?;
            let refused = rack.refused(bed, &Sandbox::create(bed.fabric, &node.name, "early")?)?;
            ensure!(refused.contains("eth1 is down"), "{refused}");
            node.sh("ip link set eth1 up")?;
            ready(bed, &node.name)?;
            reached("the parent was down")?;

            let before = device(node, rack.vlan)?;
            node.sh("ip link set eth1 down && ip link set eth1 name up0 && ip link set up0 up")?;
            ready(bed, &node.name)?;
            reached("the parent was renamed")?;
            ensure!(device(node, rack.vlan)? == before, "the VLAN device was created again");

            let networks = client::status(node)?.networks;
            let carried = networks.iter().flat_map(|network| &network.subnets);
            let carried: Vec<_> = carried.map(|s| (s.device.as_deref(), s.parent.as_deref())).collect();
            let own = format!("eth1.{}", rack.vlan);
            ensure!(carried == [(Some(own.as_str()), Some("up0")); 2], "the status: {carried:?}");

            for mtu in ["1400", "1500"] {
                node.run("ip", ["link", "set", "up0", "mtu", mtu])?;
                wait_for("the VLAN device's MTU", PATIENCE, || {
                    let now = node.sh(&format!("cat /sys/class/net/eth1.{}/mtu", rack.vlan))?;
                    Ok(Seen::when(now.trim() == mtu, || now))
                })?;
            }
            reached("the MTU changed")?;
        }
        passed("carrier, down, renamed, another MTU")
    })
}

/// The index of the device. The index changes if the device was created again.
fn device(node: &Host, vlan: u16) -> Result<String> {
    node.sh(&format!("cat /sys/class/net/eth1.{vlan}/ifindex"))
}

/// Writes manifests that use the node's own network instead of the VLAN. The node allocates `first`
/// to `first` + 9.
fn own_network(bed: &Bed<'_>, rack: &Rack, node: &str, first: u32) -> Result<()> {
    let subnet = |version: u8, cidr: String, prefix: String| {
        format!(
            "apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: own-v{version}}}\nspec:\n  network: {}\n  \
             range: {{version: \"{version}\", cidr: \"{cidr}\", gateway: \"{prefix}1\", start: \"{prefix}{first}\", end: \"{prefix}{}\"}}\n",
            rack.network,
            first + 9
        )
    };
    let n = rack.number;
    let both = [
        subnet(4, format!("10.{n}.0.0/24"), format!("10.{n}.0.")),
        subnet(6, format!("fd00:{n}::/64"), format!("fd00:{n}::")),
    ];
    bed.manifest_of(node, "subnets.yaml").write(&both.join("---\n"))?;
    bed.manifest_of(node, "networks.yaml").edit(&format!("netID: {}", rack.vlan), "netID: 0")
}

fn untagged(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let mut pairs = 0;
        for rack in &RACKS {
            device(bed.host(rack.nodes[0])?, rack.vlan)?;
            let mut parties = Vec::new();
            for (name, first) in rack.nodes.into_iter().zip([100, 110]) {
                let node = bed.host(name)?;
                // A network's netID cannot change while its agent runs.
                client::end_agent(node, Signal::TERM)?;
                own_network(bed, rack, name, first)?;
                client::start_agent(node)?;
                ready(bed, name)?;
                ensure!(
                    device(node, rack.vlan).is_err(),
                    "the VLAN's device still exists, although no subnet needs it"
                );
                let (pod, attached) = rack.attach(bed, name, "p")?;
                parties.push(Party::pod(&pod, &attached));
                let own = 10 + name.trim_start_matches("node").parse::<u32>()?;
                let n = rack.number;
                parties.push(Party::host(node, &[&format!("10.{n}.0.{own}"), &format!("fd00:{n}::{own}")])?);
            }
            let n = rack.number;
            parties.push(Party::host(bed.host("gw")?, &[&format!("10.{n}.0.1"), &format!("fd00:{n}::1")])?);
            parties.push(Party::host(bed.host("outside")?, &["10.90.0.2", "fd00:90::2"])?);
            pairs += matrix(&parties)?;
        }
        passed(format!("{pairs} pairs of addresses"))
    })
}

fn vlan_device(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let (rack, node) = (&RACKS[0], bed.node()?);
        let shown = || node.sh("ip -d -o link show eth1.11 2>/dev/null || :");
        let wait = |there: bool| {
            wait_for(&format!("VLAN device to be there: {there}"), PATIENCE, || {
                let seen = shown()?;
                Ok(Seen::when(seen.contains("vlan protocol 802.1Q id 11") == there, || seen))
            })
        };
        wait(true)?;
        let (pod, attached) = rack.attach(bed, "node1", "p")?;
        node.sh("ip link del eth1.11")?;
        wait(true)?;
        let to: Vec<String> = attached.addresses.iter().map(ToString::to_string).collect();
        reachable(flows(bed.host("outside")?, &to)?).context("the device was deleted")?;
        cni::del(bed.fabric, &rack.conf(), &pod)?;

        let subnets = bed.manifest("subnets.yaml");
        let text = subnets.read()?;
        subnets.write("")?;
        wait(false)?;
        node.sh("ip link add eth1.11 type dummy")?;
        subnets.write(&text)?;
        let stranger = Sandbox::create(bed.fabric, "node1", "stranger")?;
        let said = refused_for(bed, &stranger, "eth1.11")?;
        ensure!(shown()?.contains("dummy"), "a foreign device was changed: {}", shown()?);
        node.sh("ip link del eth1.11")?;
        wait(true)?;
        cni::add(bed.fabric, &rack.conf(), &stranger)?;
        passed(said)
    })
}

/// Waits until an ADD is refused with these words: the agent may not have read the manifest yet.
fn refused_for(bed: &Bed<'_>, pod: &Sandbox, words: &str) -> Result<String> {
    wait_for(&format!("ADD to be refused because of {words}"), Duration::from_secs(10), || {
        let said = RACKS[0].refused(bed, pod)?;
        Ok(if said.contains(words) { Seen::Yes(said) } else { Seen::NotYet(said) })
    })
}
