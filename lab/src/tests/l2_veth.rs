//! VLAN networks with attachment veth: both racks of lab/topologies/l2.clab.yml attached so.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::bed::{Bed, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Attached, Sandbox};
use crate::pinger::{Flow, unreachable};
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "l2/veth",
        about: "pods of one node, two nodes and two VLANs, their nodes, hosts on the VLAN and beyond reach each other; no ARP as a pod",
        run: everybody,
    },
    Test {
        name: "l2/veth-restart",
        about: "the agent is killed and stopped under ping: none lost, the device stays the same",
        run: restart,
    },
    Test {
        name: "l2/veth-untagged",
        about: "netID 0: pods on the nodes' own network, the nodes in it too; the device of the VLAN before goes",
        run: untagged,
    },
    Test {
        name: "l2/veth-parent",
        about: "the parent goes down, comes back, is renamed, changes its MTU; somebody deletes the VLAN device",
        run: parent,
    },
];

const NODES: [(&str, &str); 4] =
    [("node1", "rack1"), ("node2", "rack1"), ("node3", "rack2"), ("node4", "rack2")];

fn veth(context: &Context, test: impl FnOnce(&Bed<'_>) -> Result<Verdict>) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        for (node, _) in NODES {
            let networks = bed.manifest_of(node, "networks.yaml");
            networks.write(&networks.read()?.replace("attachment: ipvlan", "attachment: veth"))?;
            ready(bed, node)?;
        }
        test(bed)
    })
}

fn ready(bed: &Bed<'_>, node: &str) -> Result<()> {
    wait_for(&format!("{node} to be ready"), PATIENCE, || {
        let status = client::status(bed.host(node)?)?;
        Ok(Seen::when(status.ready, || format!("{:?}", status.not_ready)))
    })
}

fn attach(bed: &Bed<'_>, node: &str, name: &str) -> Result<(Sandbox, Attached)> {
    let network = NODES.iter().find(|(of, _)| *of == node).map(|(_, network)| *network);
    let pod = Sandbox::create(bed.fabric, node, name)?;
    let attached = cni::add(bed.fabric, &cni::trunkline(network), &pod)?;
    Ok((pod, attached))
}

/// The id of what carries the rack's VLAN on node1; another one if it was made anew.
fn device(bed: &Bed<'_>) -> Result<String> {
    bed.node()?.sh("cat /sys/class/net/eth1.11/ifindex")
}

fn everybody(context: &Context) -> Result<Verdict> {
    veth(context, |bed| {
        let log = bed.host("host1")?.folder.join("log/arp.log");
        let args = ["-nn", "-l", "-i", "vlan11", "arp"];
        let _until_the_lab_ends = bed.host("host1")?.daemon("arp.log", "tcpdump", &args, &[])?;
        wait_for("tcpdump to listen", PATIENCE, || {
            let text = std::fs::read_to_string(&log)?;
            Ok(Seen::when(text.contains("listening on"), || text))
        })?;

        let mut pods = Vec::new();
        for (node, name) in [("node1", "a"), ("node1", "b"), ("node2", "c"), ("node3", "d"), ("node4", "e")] {
            pods.push(attach(bed, node, name)?);
        }
        let addresses: Vec<IpAddr> =
            pods.iter().flat_map(|(_, attached)| attached.addresses.clone()).collect();
        ensure!(addresses.len() == 2 * pods.len(), "both families: {addresses:?}");
        let others = ["10.11.0.1", "fd00:11::1", "10.11.0.200", "fd00:11::c8", "10.21.0.200", "fd00:21::c8"];
        let far =
            ["10.90.0.2", "fd00:90::2", "10.1.0.11", "fd00:1::11", "10.1.0.12", "10.2.0.13", "fd00:2::13"];
        let fixed: Vec<IpAddr> = others.iter().chain(&far).map(|to| to.parse()).collect::<Result<_, _>>()?;
        let mut flows = Vec::new();
        let mut from = |name: &str, ns: &crate::netns::Namespace, to: &[IpAddr]| {
            for to in to {
                flows.push(Flow { name: format!("{name} to {to}"), from: ns.clone(), to: *to });
            }
        };
        for (pod, _) in &pods {
            from(&pod.name, &pod.ns, &addresses);
            from(&pod.name, &pod.ns, &fixed);
        }
        for host in ["host1", "host2", "outside", "node1", "node2", "node3"] {
            from(host, &bed.host(host)?.ns, &addresses);
        }
        let count = flows.len();
        let without = unreachable(flows, PATIENCE)?;
        ensure!(without.is_empty(), "no answer: {without:?}");

        // Whoever's packet waited for the answer, the question was the node's own.
        let log = std::fs::read_to_string(&log)?;
        // A pod's announcement is for the pod to make: it asks for the address that it is from.
        let announces = |line: &str| {
            let mut words = line.split([' ', ',']).skip_while(|word| *word != "who-has").skip(1);
            words.next().is_some_and(|asked| words.any(|word| word == asked))
        };
        let asked: Vec<&str> =
            log.lines().filter(|line| line.contains("Request who-has") && !announces(line)).collect();
        ensure!(!asked.is_empty(), "no ARP request was seen: {log}");
        let sender = |line: &&&str| {
            let after = line.split(" tell ").nth(1).unwrap_or_default();
            let address = after.split([',', ' ']).next().unwrap_or_default();
            addresses.iter().any(|pod| pod.to_string() == address)
        };
        let as_pod: Vec<_> = asked.iter().filter(sender).collect();
        ensure!(as_pod.is_empty(), "asked as a pod: {as_pod:?}");
        passed(format!("{count} pairs, {} ARP requests, none as a pod", asked.len()))
    })
}

fn restart(context: &Context) -> Result<Verdict> {
    veth(context, |bed| {
        let (_a, at_a) = attach(bed, "node1", "a")?;
        let before = device(bed)?;
        let tables = bed.node()?.sh("ip rule; ip -6 rule; ip route show table all | grep -w eth1.11")?;
        let pings = bed.pings("outside", &at_a.addresses)?;
        for signal in [Signal::KILL, Signal::TERM] {
            client::end_agent(bed.node()?, signal)?;
            client::start_agent(bed.node()?)?;
            ready(bed, "node1")?;
            let (b, _) = attach(bed, "node1", "b")?;
            cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &b)?;
            b.ns.delete()?;
        }
        let lost = lost_nothing(pings)?;
        ensure!(device(bed)? == before, "the VLAN device was made anew");
        let after = bed.node()?.sh("ip rule; ip -6 rule; ip route show table all | grep -w eth1.11")?;
        ensure!(tables == after, "rules and routes moved:\n{tables}\nbecame\n{after}");
        passed(format!("{lost} pings, none lost"))
    })
}

/// The manifests of rack 1 with its nodes' own network instead of the VLAN; nodes give out `hosts` to `hosts` + 9.
fn nodes_own_network(bed: &Bed<'_>, node: &str, hosts: u32) -> Result<()> {
    let subnet = |version: u8, cidr: &str, prefix: &str| {
        format!(
            "apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: own-v{version}}}\nspec:\n  network: rack1\n  \
             range: {{version: \"{version}\", cidr: \"{cidr}\", gateway: \"{prefix}1\", start: \"{prefix}{hosts}\", end: \"{prefix}{}\"}}\n",
            hosts + 9
        )
    };
    let both = [subnet(4, "10.1.0.0/24", "10.1.0."), subnet(6, "fd00:1::/64", "fd00:1::")].join("---\n");
    bed.manifest_of(node, "subnets.yaml").write(&both)?;
    bed.manifest_of(node, "networks.yaml").edit("netID: 11", "netID: 0")
}

fn untagged(context: &Context) -> Result<Verdict> {
    veth(context, |bed| {
        device(bed)?;
        for (node, hosts) in [("node1", 100), ("node2", 110)] {
            // A network's netID does not change while its agent runs.
            client::end_agent(bed.host(node)?, Signal::TERM)?;
            nodes_own_network(bed, node, hosts)?;
            client::start_agent(bed.host(node)?)?;
            ready(bed, node)?;
        }
        ensure!(device(bed).is_err(), "eth1.11 is still there, and nothing needs it");
        let pods = [attach(bed, "node1", "a")?, attach(bed, "node2", "b")?];
        let addresses: Vec<IpAddr> =
            pods.iter().flat_map(|(_, attached)| attached.addresses.clone()).collect();
        let mut flows = Vec::new();
        let nodes =
            ["10.1.0.1", "fd00:1::1", "10.1.0.11", "fd00:1::11", "10.1.0.12", "fd00:1::12", "10.90.0.2"];
        let nodes: Vec<IpAddr> = nodes.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
        for (pod, _) in &pods {
            let flow =
                |to: &IpAddr| Flow { name: format!("{} to {to}", pod.name), from: pod.ns.clone(), to: *to };
            flows.extend(addresses.iter().chain(&nodes).map(flow));
        }
        for host in ["node1", "node2", "gw", "outside"] {
            let ns = &bed.host(host)?.ns;
            let flow = |to: &IpAddr| Flow { name: format!("{host} to {to}"), from: ns.clone(), to: *to };
            flows.extend(addresses.iter().map(flow));
        }
        // The nodes keep their own ways.
        let ns = &bed.node()?.ns;
        let flow = |to: &IpAddr| Flow { name: format!("node1 to {to}"), from: ns.clone(), to: *to };
        flows.extend(nodes.iter().map(flow));
        let count = flows.len();
        let without = unreachable(flows, PATIENCE)?;
        ensure!(without.is_empty(), "no answer: {without:?}");
        passed(format!("{count} pairs"))
    })
}

fn parent(context: &Context) -> Result<Verdict> {
    veth(context, |bed| {
        let node = bed.node()?;
        let (_a, at_a) = attach(bed, "node1", "a")?;
        let reached = |when: &str| -> Result<()> {
            for from in ["host1", "outside"] {
                let ns = &bed.host(from)?.ns;
                let flow = |to: &IpAddr| Flow { name: format!("{from} to {to}"), from: ns.clone(), to: *to };
                let without = unreachable(at_a.addresses.iter().map(flow).collect(), PATIENCE)?;
                ensure!(without.is_empty(), "{when}: no answer: {without:?}");
            }
            Ok(())
        };
        let says = |words: &str| {
            wait_for(&format!("the status to say {words:?}"), PATIENCE, || {
                let said = client::status(node)?.not_ready;
                Ok(Seen::when(said.iter().any(|said| said.contains(words)), || format!("{said:?}")))
            })
        };
        reached("at first")?;

        node.sh("ip link set eth1 down")?;
        says("eth1 is down")?;
        let refused = cni::run(bed.fabric, "ADD", &cni::trunkline(Some("rack1")), &bed.pod("b")?)?.error()?;
        ensure!(refused.text.contains("eth1 is down"), "{refused:?}");
        node.sh("ip link set eth1 up")?;
        ready(bed, "node1")?;
        reached("up again")?;

        let before = device(bed)?;
        node.sh("ip link del eth1.11")?;
        wait_for("the VLAN device to be back", PATIENCE, || {
            let now = device(bed)?;
            Ok(Seen::when(now != before, || now))
        })?;
        reached("deleted and made again")?;

        let before = device(bed)?;
        node.sh("ip link set eth1 down && ip link set eth1 name up0 && ip link set up0 up")?;
        ready(bed, "node1")?;
        reached("the parent renamed")?;
        ensure!(device(bed)? == before, "the VLAN device was made anew");
        let status = client::status(node)?;
        let carriers: Vec<_> = status
            .networks
            .iter()
            .flat_map(|n| &n.subnets)
            .map(|s| (s.device.as_deref(), s.parent.as_deref()))
            .collect();
        ensure!(carriers == [(Some("eth1.11"), Some("up0")); 2], "what the status says: {carriers:?}");
        node.sh("ip link set up0 mtu 1400")?;
        wait_for("the VLAN device's MTU", PATIENCE, || {
            let mtu = node.sh("cat /sys/class/net/eth1.11/mtu")?;
            Ok(Seen::when(mtu.trim() == "1400", || mtu))
        })?;
        node.sh("ip link set up0 mtu 1500")?;
        wait_for("the VLAN device's MTU to be back", PATIENCE, || {
            let mtu = node.sh("cat /sys/class/net/eth1.11/mtu")?;
            Ok(Seen::when(mtu.trim() == "1500", || mtu))
        })?;
        reached("the MTU changed")?;
        passed("down, deleted, renamed, another MTU")
    })
}
