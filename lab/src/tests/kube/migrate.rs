//! Runs `docs/migrate-from-hybridnet.md`: a cluster as hybridnet leaves it ([`super::hybridnet`]),
//! whose nodes migrate one after the other, one of them also back and forth again. Invariants: no
//! address is allocated twice, a StatefulSet's pod keeps its address with each plugin and on any node,
//! and no datagram arrives that a NetworkPolicy denies ([`super::flows`]). Felix enforces policies on
//! the nodes with hybridnet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::crds::{REFUSALS, RESERVED};
use super::flows::Flows;
use super::install::{self, NODES, address_of, rolled_out, wait_text};
use super::{Test, Verdict, hybridnet, left};
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::hybridnet::{FELIX_PACKAGES, Felix};
use crate::kube::kubelet::Observer;
use crate::kube::pods::Pretended;
use crate::kube::workloads::Nodes;
use crate::pinger::{Flow, Pinger};
use crate::progress::say;
use crate::shell::{Seen, quoted, wait_for};
use crate::tests::bed::lost_nothing;
use crate::tests::{Context as Lab, passed};
use crate::{client, packages};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/migrate-overlay",
        about: "a cluster with hybridnet's default, pods in an overlay, migrates node by node: addresses are kept, pods without annotations stay in the overlay and reach each other",
        run: overlay,
    },
    Test {
        name: "kube/migrate",
        about: "docs/migrate-from-hybridnet.md followed on a real API server: node by node, back and \
            forth; addresses and MACs, also those of a stopped virtual machine, and endpoints of a global Service are kept, and no denied datagram arrives, with Felix on the nodes of hybridnet",
        run: migrate,
    },
];

const PATIENCE: Duration = Duration::from_secs(90);

fn migrate(context: &Lab) -> Result<Verdict> {
    let felix = match Felix::find(&context.place)? {
        Ok(felix) => {
            packages::need(FELIX_PACKAGES)?;
            Some(felix)
        }
        Err(missing) => {
            let missing = missing.lines().next().unwrap_or_default();
            say(&format!("    skipped: policies on nodes with hybridnet: no Felix: {missing}"));
            None
        }
    };
    install::with_page(context, "migrate", PAGE, |cluster, fabric, nodes, mut page| {
        let text = std::fs::read_to_string(context.place.repository.join(PAGE))?;
        ensure!(text.contains(FELIX_READY), "{PAGE} lacks {FELIX_READY}");
        page.add_program("trunkline", &context.product()?.join("trunkline"))?;
        let it = Migration { cluster, fabric, nodes };
        let flows = Arc::new(Flows::new(felix.is_some()));
        let observer: Arc<dyn Observer> = flows.clone();
        nodes.observe(&observer);
        if let Some(felix) = &felix {
            hybridnet::prepare_felix(cluster, felix)?;
            nodes.run_felix(&felix.program);
        }
        hybridnet::install(cluster, &hybridnet::RACK)?;
        hybridnet::give_addresses(cluster, &hybridnet::RACK)?;
        left::create(cluster)?;
        let before = hybridnet::addresses(cluster)?;
        ensure!(before.len() == 10, "{before:?}");
        flows.check("before the migration")?;
        let auditor = AddressAuditor::open(cluster)?;

        // An object that hybridnet accepts, and that the page's dry run must name alone.
        cluster.apply(RESERVED)?;
        page.section("Before")?;
        let said = page.section("1. The CRDs")?;
        let missing: Vec<&str> = REFUSALS.into_iter().filter(|words| !said.contains(words)).collect();
        ensure!(missing.is_empty(), "the dry run does not say {missing:?}: {said}");
        ensure!(!said.contains("rack1"), "the dry run names a valid object: {said}");
        cluster.kubectl(["delete", "subnet", "reserved"])?;
        it.unchanged(&before)?;

        // No release of hybridnet's chart is here, so these are its values.
        let values = format!("printf %s {}", quoted(VALUES));
        let said = page.any_section("2. The controller", &[(GET_VALUES, &values)])?;
        ensure!(
            said.lines().any(|line| line.split_whitespace().eq(["rack1", "10"])),
            "not 10 addresses used: {said}"
        );
        rolled_out(cluster, "deployment/trunkline-controller")?;
        it.unchanged(&before)?;
        it.refuses_beside("node1b")?;

        page.section("3. Node affinity for hybridnet's daemon")?;
        flows.check("after the restart of hybridnet's daemons")?;
        page.section("4. Each node")?;
        it.moved("node1a", &before)?;
        flows.check("after the first node")?;
        // The controller has bound the drained pod's address on a node that still runs
        // hybridnet. The address returns with the pod.
        cluster.kubectl(["delete", "pod", "db-0"])?;
        it.stateful(&before)?;
        let (node, address) = address_of(cluster, "db-0")?;
        ensure!(node == "node1a", "db-0 is on {node}");
        it.reached(&[address])?;
        flows.check("after the return of db-0")?;

        let uncordon = format!("{FELIX_READY}\n{UNCORDON}");
        let policies = [(UNCORDON, uncordon.as_str())];
        page.any_section("Back", if felix.is_some() { &policies } else { &[] })?;
        it.went_back("node1a", &before)?;
        flows.check("after the way back")?;

        page.any_section("4. Each node", &[])?;
        it.moved("node1a", &before)?;
        flows.check("after the first node again")?;
        page.any_section("4. Each node", &[("NODE=node1a", "NODE=node1b")])?;
        it.moved("node1b", &before)?;
        flows.check("after the last node")?;

        // The StatefulSet is scaled up again. The new pod gets the address that was retained
        // for it during the migration.
        cluster.kubectl(["scale", "statefulset", "db", "--replicas=3"])?;
        let mut kept = it.stateful(&before)?;
        let (_, third) = it.running("db-2")?;
        ensure!(third.to_string() == "100.64.1.5", "db-2 got {third}");
        kept.push(third);
        // So does the virtual machine, which hybridnet left stopped.
        let (_, machine) = it.running(left::start_vm(cluster, "node1b")?)?;
        left::has_its_address(machine)?;
        kept.push(machine);
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

        left::is_kept(cluster)?;
        let twice = auditor.now().twice.clone();
        ensure!(twice.is_empty(), "addresses held twice: {twice:?}");
        passed(format!(
            "{}; {} addresses kept; {sent} pings while agents were replaced, none lost; {}",
            page.finish()?,
            kept.len(),
            flows.finish("at the end")?
        ))
    })
}

/// A cluster with the defaults of hybridnet's chart. The stand-in for hybridnet has no tunnels, so pods reach
/// each other when both nodes have migrated.
fn overlay(context: &Lab) -> Result<Verdict> {
    install::with_page(context, "migrate-overlay", PAGE, |cluster, fabric, nodes, mut page| {
        page.add_program("trunkline", &context.product()?.join("trunkline"))?;
        let it = Migration { cluster, fabric, nodes };
        hybridnet::install(cluster, &hybridnet::OVERLAY)?;
        for (node, address) in NODES.into_iter().zip([[10, 1, 0, 11], [10, 1, 0, 12]]) {
            // The webhook admits no other end of a tunnel.
            let pretended = Pretended::new(cluster.client());
            cluster.wait(pretended.addresses(node, &[address.into()]))?;
        }
        // The policies are the subject of kube/migrate.
        cluster.kubectl(["delete", "networkpolicies", "--all", "--all-namespaces"])?;
        hybridnet::give_addresses(cluster, &hybridnet::OVERLAY)?;
        let before = hybridnet::addresses(cluster)?;
        let auditor = AddressAuditor::open(cluster)?;
        page.section("Before")?;
        page.section("1. The CRDs")?;
        let values = format!("printf %s {}", quoted(OVERLAY_VALUES));
        page.any_section("2. The controller", &[(GET_VALUES, &values)])?;
        rolled_out(cluster, "deployment/trunkline-controller")?;
        it.unchanged(&before)?;
        page.section("3. Node affinity for hybridnet's daemon")?;
        for node in NODES {
            let of_node = format!("NODE={node}");
            page.any_section("4. Each node", &[("NODE=node1a", &of_node), (WAIT_SESSIONS, ":")])?;
            client::wait_answering(fabric.host(node)?)?;
            it.cleaned(node, &["hybr", "cali-"])?;
        }
        let addresses = it.stateful(&before)?;
        ensure!(addresses.len() == 2, "the addresses of the StatefulSet are {addresses:?}");
        let mut pods = vec!["db-0".to_owned(), "db-1".to_owned()];
        for node in NODES {
            // A new pod without annotations.
            let name = format!("web-{node}-1");
            it.running(&name)?;
            let of_pod = format!("networking.alibaba.com/pod={name}");
            let network = ["get", "ipinstances", "-l", &of_pod, "-o", "jsonpath={.items[*].spec.network}"];
            let network = cluster.kubectl(network)?;
            ensure!(network == "init", "{name} is in the Network {network:?}");
            pods.push(name);
        }
        let pings = it.among(&pods)?;
        page.section("5. After the last node")?;
        rolled_out(cluster, "daemonset/trunkline-agent")?;
        let sent = lost_nothing(pings)?;
        let twice = auditor.now().twice.clone();
        ensure!(twice.is_empty(), "addresses held twice: {twice:?}");
        passed(format!(
            "{} pods of the overlay reach each other; {sent} pings while agents were replaced, none lost",
            pods.len()
        ))
    })
}

/// Values of hybridnet's release with the defaults of its chart, for two nodes without a default route.
const OVERLAY_VALUES: &str =
    "daemon: {preferVxlanInterfaces: eth1}\nmanager: {replicas: 2}\nwebhook: {replicas: 1}\n";
/// There are no BGP sessions.
pub(super) const WAIT_SESSIONS: &str =
    "kubectl wait nodeinfo $NODE --for=jsonpath='{.status.peers[0].state}'=Established --timeout=2m";

/// The page, whose section about network policies adds a command to the way back.
pub(super) const PAGE: &str = "docs/migrate-from-hybridnet.md";
pub(super) const GET_VALUES: &str = "helm -n kube-system get values hybridnet --all --output yaml";
/// Values of hybridnet's release, for two nodes with pods of an Underlay network. The others have
/// their defaults.
const VALUES: &str =
    "defaultNetworkType: Underlay\nvmIPRetain: true\nmanager: {replicas: 2}\nwebhook: {replicas: 1}\n";
const UNCORDON: &str = "kubectl uncordon $NODE";
const FELIX_READY: &str = "until ssh $NODE 'curl -sf localhost:9099/readiness && sleep 2 && curl -sf localhost:9099/readiness'; do sleep 2; done";

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
        client::wait_established(self.fabric.host(node)?, PATIENCE)?;
        self.cleaned(node, &["lookup 40000", "hybr", "cali-"])?;
        let web = format!("web-{node}-1");
        let (_, address) = self.running(&web)?;
        self.nodes.attached(node, &web)?;
        self.reached(&[address])?;
        let reached = self.stateful(before)?;
        self.reached(&reached)
    }

    /// Checks that nothing of hybridnet is left on a node. An overlay of Trunkline has rules with the same
    /// numbers.
    fn cleaned(&self, node: &str, traces: &[&str]) -> Result<()> {
        let host = self.fabric.host(node)?;
        let files = host.sh("ls -A /etc/cni/net.d")?;
        ensure!(files.trim() == "05-trunkline.conflist", "{node}: {files}");
        let sockets = host.sh("cat /proc/net/unix")?;
        ensure!(!sockets.contains("hybridnet.sock"), "hybridnet's daemon is still on {node}");
        let left = host.sh("ip rule; ip -o link; nft list ruleset")?;
        for of_hybridnet in traces {
            ensure!(!left.contains(*of_hybridnet), "{node} still has {of_hybridnet} of hybridnet: {left}");
        }
        Ok(())
    }

    /// Requests from each of these pods to each other.
    fn among(&self, pods: &[String]) -> Result<Pinger> {
        let found: Vec<(&String, String, IpAddr)> = pods
            .iter()
            .map(|pod| self.running(pod).map(|(node, address)| (pod, node, address)))
            .collect::<Result<_>>()?;
        let mut flows = Vec::new();
        for (from, node, _) in &found {
            let ns = self.nodes.attached(node, from)?.ns;
            for (to, _, address) in found.iter().filter(|(to, ..)| to != from) {
                flows.push(Flow { name: format!("{from} to {to}"), from: ns.clone(), to: *address });
            }
        }
        let mut pings = Pinger::start(flows, Duration::from_millis(20))?;
        pings.settle(PATIENCE)?;
        Ok(pings)
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
