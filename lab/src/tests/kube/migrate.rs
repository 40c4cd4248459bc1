//! Runs `docs/migrate-from-hybridnet.md`: a cluster as hybridnet leaves it ([`super::hybridnet`]),
//! whose nodes migrate one after the other, one of them also back and forth again. Invariants: no
//! address is allocated twice, and a StatefulSet's pod keeps its address with each plugin and on
//! any node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::install::{self, NODES, address_of, rolled_out, wait_text};
use super::{Test, Verdict, hybridnet};
use crate::client;
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::workloads::Nodes;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::lost_nothing;
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/migrate",
    about: "docs/migrate-from-hybridnet.md followed on a real API server: node by node, back and \
            forth; addresses and MACs are kept",
    run: migrate,
}];

const PATIENCE: Duration = Duration::from_secs(90);

fn migrate(context: &Lab) -> Result<Verdict> {
    install::with_page(
        context,
        "migrate",
        "docs/migrate-from-hybridnet.md",
        |cluster, fabric, nodes, mut page| {
            let it = Migration { cluster, fabric, nodes };
            hybridnet::install(cluster)?;
            hybridnet::give_addresses(cluster)?;
            for node in NODES {
                fabric.host(node)?.sh(hybridnet::LEFT_IN_KERNEL)?;
            }
            let before = hybridnet::addresses(cluster)?;
            ensure!(before.len() == 5, "{before:?}");
            let auditor = AddressAuditor::open(cluster)?;

            page.section("Before")?;
            page.section("1. The CRDs")?;
            it.unchanged(&before)?;

            let said = page.section("2. The controller")?;
            ensure!(
                said.lines().any(|line| line.split_whitespace().eq(["rack1", "5"])),
                "not 5 addresses used: {said}"
            );
            rolled_out(cluster, "deployment/trunkline-controller")?;
            it.unchanged(&before)?;
            it.refuses_beside("node1b")?;

            page.section("3. Node affinity for hybridnet's daemon")?;
            page.section("4. Each node")?;
            it.moved("node1a", &before)?;
            // The controller has bound the drained pod's address on a node that still runs
            // hybridnet. The address returns with the pod.
            cluster.kubectl(["delete", "pod", "db-0"])?;
            it.stateful(&before)?;
            let (node, address) = address_of(cluster, "db-0")?;
            ensure!(node == "node1a", "db-0 is on {node}");
            it.reached(&[address])?;

            page.any_section("Back", &[])?;
            it.went_back("node1a", &before)?;

            page.any_section("4. Each node", &[])?;
            it.moved("node1a", &before)?;
            page.any_section("4. Each node", &[("NODE=node1a", "NODE=node1b")])?;
            it.moved("node1b", &before)?;

            // The StatefulSet is scaled up again. The new pod gets the address that was retained
            // for it during the migration.
            cluster.kubectl(["scale", "statefulset", "db", "--replicas=3"])?;
            let mut kept = it.stateful(&before)?;
            let (_, third) = it.running("db-2")?;
            ensure!(third.to_string() == "100.64.1.5", "db-2 got {third}");
            kept.push(third);
            let pings = it.pings(&kept)?;
            page.section("5. After the last node")?;
            rolled_out(cluster, "daemonset/trunkline-agent")?;
            for node in NODES {
                client::wait_established(fabric.host(node)?, PATIENCE)?;
            }
            let sent = lost_nothing(pings)?;
            let left =
                cluster.kubectl(["-n", "kube-system", "get", "pods,daemonsets,deployments", "-o", "name"])?;
            ensure!(!left.contains("hybridnet"), "left of hybridnet: {left}");

            let twice = auditor.now().twice.clone();
            ensure!(twice.is_empty(), "addresses held twice: {twice:?}");
            passed(format!(
                "{}; {} addresses kept; {sent} pings while agents were replaced, none lost",
                page.finish()?,
                kept.len()
            ))
        },
    )
}

struct Migration<'a, 'b> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
    nodes: &'a Nodes<'b>,
}

type Addresses = BTreeMap<String, (String, String, String)>;

impl Migration<'_, '_> {
    /// Checks that every address has the same owner as before.
    fn unchanged(&self, before: &Addresses) -> Result<()> {
        let now = hybridnet::addresses(self.cluster)?;
        ensure!(now == *before, "{before:?} and now {now:?}");
        Ok(())
    }

    /// Checks that on a node with hybridnet's daemon no agent starts and nothing is installed, and
    /// that the pod reports the fix.
    fn refuses_beside(&self, node: &str) -> Result<()> {
        self.cluster.kubectl(["label", "node", node, "trunkline=agent"])?;
        let of_node = format!("--field-selector=spec.nodeName={node}");
        let why = [
            "-n",
            "trunkline-system",
            "get",
            "pod",
            &of_node,
            "-l",
            "app.kubernetes.io/component=agent",
            "-o",
            "jsonpath={.items[0].status.containerStatuses[0].state.waiting.message}",
        ];
        wait_text(self.cluster, &why, "the agent to refuse", |text| {
            text.contains("hybridnet's daemon runs on this node: it listens on /run/cni/hybridnet.sock")
                && text.contains("docs/migrate-from-hybridnet.md")
        })?;
        self.cluster.kubectl(["label", "node", node, "trunkline-"])?;
        let files = self.fabric.host(node)?.sh("ls -A /etc/cni/net.d")?;
        ensure!(files.trim() == "06-hybridnet.conflist", "{node}'s runtime uses {files}");
        Ok(())
    }

    /// A running pod's node and address.
    fn running(&self, pod: &str) -> Result<(String, IpAddr)> {
        wait_for(&format!("pod {pod} to run"), PATIENCE, || {
            Ok(match address_of(self.cluster, pod) {
                Ok(found) => Seen::Yes(found),
                Err(e) => Seen::NotYet(format!("{e:#}")),
            })
        })
    }

    /// Checks that the StatefulSet's pods run with the addresses and MACs from hybridnet.
    fn stateful(&self, before: &Addresses) -> Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        for pod in ["db-0", "db-1"] {
            let (node, address) = self.running(pod)?;
            let (name, (was, mac, _)) = before
                .iter()
                .find(|(_, (_, _, of))| of == pod)
                .context("the pod had an IPInstance before")?;
            ensure!(
                was.split('/').next() == Some(address.to_string().as_str()),
                "{pod} had {was} and has {address}"
            );
            let now = hybridnet::addresses(self.cluster)?;
            ensure!(
                now.get(name) == before.get(name),
                "{pod}: {:?} and now {:?}",
                before.get(name),
                now.get(name)
            );
            if client::agents(self.fabric.host(&node)?).is_empty() {
                continue;
            }
            let link = self.nodes.attached(&node, pod)?.ns.ip(["link", "show", "eth0"])?;
            ensure!(link.contains(mac.as_str()), "{pod} has another MAC than {mac}: {link}");
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// Checks that a node only runs Trunkline, and that its pods are reachable.
    fn moved(&self, node: &str, before: &Addresses) -> Result<()> {
        let host = self.fabric.host(node)?;
        client::wait_established(host, PATIENCE)?;
        let files = host.sh("ls -A /etc/cni/net.d")?;
        ensure!(files.trim() == "05-trunkline.conflist", "{node}: {files}");
        let sockets = host.sh("cat /proc/net/unix")?;
        ensure!(!sockets.contains("hybridnet.sock"), "hybridnet's daemon is still on {node}");
        let rules = host.sh("ip rule; ip route show table 39999")?;
        ensure!(!rules.contains("unreachable 100.64.1.0/24"), "{node} still has rules of hybridnet: {rules}");
        let web = format!("web-{node}-1");
        let (_, address) = self.running(&web)?;
        self.nodes.attached(node, &web)?;
        self.reached(&[address])?;
        let reached = self.stateful(before)?;
        self.reached(&reached)
    }

    /// Checks that a node only runs hybridnet, and that its pods have their previous addresses.
    fn went_back(&self, node: &str, before: &Addresses) -> Result<()> {
        let host = self.fabric.host(node)?;
        ensure!(client::agents(host).is_empty(), "an agent runs on {node}");
        wait_for(&format!("hybridnet's daemon on {node}"), PATIENCE, || {
            let files = host.sh("ls -A /etc/cni/net.d; grep -o hybridnet.sock /proc/net/unix || :")?;
            let is = files.split_whitespace().eq(["06-hybridnet.conflist", "hybridnet.sock"]);
            Ok(Seen::when(is, || files))
        })?;
        self.running(&format!("web-{node}-1"))?;
        self.stateful(before).map(drop)
    }

    fn pings(&self, addresses: &[IpAddr]) -> Result<Pinger> {
        let from = &self.fabric.host("outside")?.ns;
        let flow = |to: &IpAddr| Flow { name: format!("outside to {to}"), from: from.clone(), to: *to };
        let mut pings = Pinger::start(addresses.iter().map(flow).collect(), Duration::from_millis(20))?;
        pings.settle(PATIENCE)?;
        Ok(pings)
    }

    fn reached(&self, addresses: &[IpAddr]) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        lost_nothing(self.pings(addresses)?).map(drop)
    }
}
