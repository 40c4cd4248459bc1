//! The migration of a VLAN cluster with hybridnet's "enhanced" addresses, behind a gateway that checks
//! the sender of ARP requests. The commands are the page's. VLANs need a user-mode kernel: the nodes are
//! inside (lab/topologies/l2.clab.yml), and the API server and the controller are on the machine.
//!
//! The page's commands run on the machine before the boot. `ssh` hands the command for a node over, and
//! the part inside runs it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::install::{STATEFUL_SET, wait_text};
use super::migrate::{GET_VALUES, PAGE, WAIT_SESSIONS};
use super::walk::Walk;
use super::{Test, Verdict, cluster, hybridnet, left};
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::host::Host;
use crate::kube::assets::Assets;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::doorway::Doorway;
use crate::kube::hybridnet::{Attachment, Vlan, listen};
use crate::kube::kubelet::clear_kernel;
use crate::kube::pods::Pretended;
use crate::kube::rights::{self, Accounts, WITHOUT_KEYS};
use crate::kube::workloads::write_program;
use crate::kube::{Cluster, agents};
use crate::pinger::{Flow, Pinger, unreachable};
use crate::shell::{Seen, quoted, wait_for};
use crate::tests::bed::{Bed, INTERVAL, lab, lost_nothing};
use crate::tests::matrix::reachable;
use crate::tests::{Context as Lab, boot_for, passed};
use crate::uml::{self, link, link::Link};

const NAME: &str = "kube/migrate-vlan";

pub(super) const TESTS: &[Test] = &[Test {
    name: NAME,
    about: "a VLAN cluster with hybridnet's enhanced addresses migrates: pods keep addresses and MACs, and a \
            gateway that checks the sender of ARP requests refuses none",
    run: outside,
}];

/// The part in the user-mode kernel.
pub(super) const INSIDE: Test = Test { name: NAME, about: "the part inside the kernel", run: inside };

/// The node, its address, and its pod.
const NODES: [(&str, [u8; 4], &str); 2] =
    [("node1", [10, 1, 0, 11], "db-0"), ("node2", [10, 1, 0, 12], "db-1")];

const SUBNET: &str = "100.64.1.0/24";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 1, 254);
/// A machine beyond the gateway.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 2);
const DEVICE: &str = "eth1.11";

/// Values of hybridnet's release.
const VALUES: &str = "defaultNetworkType: Underlay\nmanager: {replicas: 2}\nwebhook: {replicas: 1}\n\
                      daemon: {preferVlanInterfaces: eth1, enableVlanARPEnhancement: true}\n";
/// The agent's field from `enableVlanARPEnhancement`.
const SENDER: &str = "vlanARPSender";

/// Data of the part on the machine for the part in the user-mode kernel.
#[derive(Serialize, Deserialize)]
struct Handed {
    /// Port of the API server, on the machine's end of the link and on each node's loopback.
    port: u16,
    /// The agent's configuration from the values of hybridnet.
    config: BTreeMap<String, Value>,
    nodes: Vec<HandedNode>,
}

#[derive(Serialize, Deserialize)]
struct HandedNode {
    name: String,
    kubeconfig: PathBuf,
    /// The page's command on this node.
    command: String,
    pod: String,
    uid: String,
    address: Ipv4Addr,
    mac: String,
}

/// The part on the machine: the page's steps, and the boot of a user-mode kernel.
fn outside(context: &Lab) -> Result<Verdict> {
    if let Some(why) = uml::missing(&context.place)? {
        return Ok(Verdict::Skipped(why));
    }
    let helm = match Assets::helm(&context.place)? {
        Ok(helm) => helm,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let (product, controller) = (context.product()?, context.controller()?);
    cluster(context, "migrate-vlan", |cluster| {
        let mut page = Walk::open(&context.place, cluster, PAGE, &helm)?;
        page.add_program("trunkline", &product.join("trunkline"))?;
        page.add_program("kubectl", cluster.kubectl_program())?;
        populate(cluster)?;
        let before = hybridnet::addresses(cluster)?;
        let auditor = AddressAuditor::open(cluster)?;

        page.section("Before")?;
        let said = page.section("1. The CRDs")?;
        ensure!(!said.contains("rack1"), "the dry run names a valid object: {said}");
        let values = format!("printf %s {}", quoted(VALUES));
        // The nodes are not here yet: the chart is rendered, and the controller is a process.
        page.any_section(
            "2. The controller",
            &[(GET_VALUES, &values), ("helm install", "helm install --dry-run=server"), (ROLL_OUT, ":")],
        )?;
        let config = converted(cluster)?;
        ensure!(config.get(SENDER) == Some(&json!("pod")), "the values become {config:?}");
        let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
        let flags = ["--webhook=false"];
        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &controller, 1, &flags)?;
        replicas.wait_leader(cluster)?;
        let used = ["get", "network", "rack1", "-o", "jsonpath={.status.statistics.used}"];
        wait_text(cluster, &used, "the used addresses", |used| used == before.len().to_string())?;

        let mut handed = Handed { port: cluster.port(), config, nodes: Vec::new() };
        for (node, _, pod) in NODES {
            handed.nodes.push(migrate(cluster, &mut page, node, pod)?);
        }
        let link = Link::create(&context.place)?;
        let at = (link::MACHINE, cluster.port()).into();
        let _doorway = cluster.doorway_at(link.namespace(), at)?;
        let file = cluster.folder().join("handed.json");
        std::fs::write(&file, serde_json::to_string(&handed)?)?;
        let verdict = boot_for(context, NAME, Some((&link, &file)))?;
        replicas.still_running()?;
        let now = hybridnet::addresses(cluster)?;
        ensure!(now == before, "{before:?} and now {now:?}");
        let twice = auditor.now().twice.clone();
        ensure!(twice.is_empty(), "addresses held twice: {twice:?}");
        Ok(verdict)
    })
}

const ROLL_OUT: &str = "kubectl -n trunkline-system rollout status deployment/trunkline-controller";

/// Creates everything that hybridnet leaves in the API server.
fn populate(cluster: &Cluster) -> Result<()> {
    let pretended = Pretended::new(cluster.client());
    for (node, address, _) in NODES {
        cluster.wait(pretended.node(node, &[]))?;
        cluster.wait(pretended.addresses(node, &[address.into()]))?;
    }
    hybridnet::create(cluster, &hybridnet::VLAN)?;
    cluster.apply(STATEFUL_SET)?;
    cluster.kubectl(["scale", "statefulset", "db", "--replicas=2"])?;
    for (node, _, pod) in NODES {
        create_pod(cluster, node, pod)?;
    }
    hybridnet::allocate(cluster, &hybridnet::VLAN)?;
    hybridnet::report_pods(cluster, &hybridnet::VLAN)
}

/// Creates a pod of the StatefulSet, which ends at its eviction. Returns its UID.
fn create_pod(cluster: &Cluster, node: &str, name: &str) -> Result<String> {
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true,
        "uid": left::uid(cluster, "statefulset", "db")?,
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "db"}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
        },
    });
    cluster.apply(&pod.to_string())?;
    left::uid(cluster, "pod", name)
}

/// The agent's configuration in the values that the page's command wrote.
fn converted(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let text = std::fs::read_to_string(cluster.folder().join("walk/trunkline-values.yaml"))?;
    let mut values: Value = serde_saphyr::from_str(&text)?;
    Ok(serde_json::from_value(values["agent"]["config"].take())?)
}

/// Runs the page's commands for a node, and creates its pod again.
fn migrate(cluster: &Cluster, page: &mut Walk, node: &str, pod: &str) -> Result<HandedNode> {
    let command = cluster.folder().join(format!("{node}.sh"));
    let booted = json!({"status": {
        "nodeInfo": {"bootID": format!("{node}, after its reboot")}, "conditions": [{"type": "Ready", "status": "True"}],
    }});
    write_program(
        &page.programs.join("ssh"),
        &format!(
            "printf %s \"$2\" > {}\nkubectl patch node \"$1\" --subresource=status -p {}\n",
            quoted(&command.display().to_string()),
            quoted(&booted.to_string())
        ),
    )?;
    let of_node = format!("NODE={node}");
    page.any_section("4. Each node", &[("NODE=node1a", &of_node), (WAIT_SESSIONS, ":")])?;
    let uid = create_pod(cluster, node, pod)?;
    let all = hybridnet::addresses(cluster)?;
    let (address, mac, _) = all.values().find(|(_, _, of)| of == pod).context("the pod's address")?;
    let address = address.split('/').next().unwrap_or_default().parse()?;
    Ok(HandedNode {
        name: node.to_owned(),
        kubeconfig: rights::agent_on(cluster, WITHOUT_KEYS, node)?,
        command: std::fs::read_to_string(&command).context("the page runs no command on the node")?,
        pod: pod.to_owned(),
        uid,
        address,
        mac: mac.clone(),
    })
}

/// The part in the user-mode kernel.
fn inside(context: &Lab) -> Result<Verdict> {
    let file = context.handed.as_ref().context("the data of the part outside")?;
    let handed: Handed = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let [first, second] = handed.nodes.as_slice() else { anyhow::bail!("not two nodes") };
    lab(context, "l2", |bed| {
        let gateway = Gateway::start(bed.host("gw")?)?;
        let (old_first, old_second) = (first.with_hybridnet(bed)?, second.with_hybridnet(bed)?);
        let far = [GATEWAY, OUTSIDE];
        reachable(flows(&old_first.pod, &far))?;
        reachable(flows(&old_second.pod, &far))?;
        let by_hybridnet = gateway.counters()?;
        ensure!(by_hybridnet.refused == 0 && by_hybridnet.answered > 0, "with hybridnet: {by_hybridnet:?}");

        // The second node still runs hybridnet.
        first.clean(bed, old_first)?;
        let (pod, _doorway) = first.start(bed, &handed, "pod")?;
        let sent = gateway.answers(first.host(bed)?, flows(&pod, &[GATEWAY, OUTSIDE, second.address]))?;

        // Without the option the link check of ADD passes, and no packet leaves the VLAN.
        second.clean(bed, old_second)?;
        gateway.forget()?;
        let (pod, _doorway) = second.start(bed, &handed, "node")?;
        let before = gateway.counters()?.refused;
        let without = unreachable(flows(&pod, &[GATEWAY, OUTSIDE, first.address]), SILENCE)?;
        let refused = gateway.counters()?.refused - before;
        ensure!(
            without.len() == far.len() && refused > 0,
            "with {SENDER}: node {without:?} are unreachable, and {refused} requests are refused"
        );

        let host = second.host(bed)?;
        agents::configure(bed.fabric, &second.name, [(SENDER.to_owned(), json!("pod"))])?;
        client::end_agent(host, Signal::TERM)?;
        client::start_agent(host)?;
        reachable(flows(&pod, &far))?;
        let again = gateway.answers(host, flows(&pod, &[GATEWAY, OUTSIDE, first.address]))?;
        passed(format!(
            "2 pods keep their addresses and MACs; {sent} and {again} pings from the first packet, none lost; \
             ARP requests for the gateway: 0 refused with {SENDER} pod, {refused} with node"
        ))
    })
}

const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which a pod's requests must have no answer.
const SILENCE: Duration = Duration::from_secs(2);

fn flows(pod: &Sandbox, to: &[Ipv4Addr]) -> Vec<Flow> {
    let flow = |to: &Ipv4Addr| Flow {
        name: format!("{} to {to}", pod.name),
        from: pod.ns.clone(),
        to: IpAddr::from(*to),
    };
    to.iter().map(flow).collect()
}

/// A node as hybridnet leaves it.
struct Left {
    _daemon: UnixListener,
    pod: Sandbox,
}

impl HandedNode {
    fn host<'a>(&self, bed: &Bed<'a>) -> Result<&'a Host> {
        bed.fabric.host(&self.name)
    }

    fn sandbox(&self, bed: &Bed<'_>, name: &str) -> Result<Sandbox> {
        let mut sandbox = Sandbox::create(bed.fabric, &self.name, name)?;
        sandbox.identity =
            Identity { namespace: "default".to_owned(), name: self.pod.clone(), uid: self.uid.clone() };
        Ok(sandbox)
    }

    /// Replaces the topology's agent with hybridnet.
    fn with_hybridnet(&self, bed: &Bed<'_>) -> Result<Left> {
        let host = self.host(bed)?;
        client::end_agent(host, Signal::TERM)?;
        clear_kernel(host)?;
        let daemon = listen(host)?;
        let pod = self.sandbox(bed, "old")?;
        let vlan = Vlan { parent: "eth1", id: 11, subnet: SUBNET.parse()?, gateway: GATEWAY };
        Attachment::add_to_vlan(host, &pod, self.address, &self.mac, &vlan)?;
        Ok(Left { _daemon: daemon, pod })
    }

    /// Runs the page's command on this node after the end of hybridnet's daemon.
    fn clean(&self, bed: &Bed<'_>, left: Left) -> Result<()> {
        drop(left);
        let host = self.host(bed)?;
        let said = host.sh(&format!("reboot() {{ echo reboots; }}; {}", self.command))?;
        ensure!(said.trim() == "reboots", "the page's command {:?} does not reboot: {said}", self.command);
        clear_kernel(host)?;
        let left = host.sh("ls -A /etc/cni/net.d; ip rule; ip -o link")?;
        for of_hybridnet in ["hybr", "lookup 10000", DEVICE] {
            ensure!(!left.contains(of_hybridnet), "{} still has {of_hybridnet}: {left}", self.name);
        }
        Ok(())
    }

    /// Starts the agent, and attaches the pod, which has its address and MAC from hybridnet.
    fn start(&self, bed: &Bed<'_>, handed: &Handed, sender: &str) -> Result<(Sandbox, Doorway)> {
        let host = self.host(bed)?;
        let at = ([127, 0, 0, 1], handed.port).into();
        let doorway = Doorway::open(&host.ns, at, (link::MACHINE, handed.port).into())?;
        agents::configure(bed.fabric, &self.name, handed.config.clone())?;
        agents::configure(bed.fabric, &self.name, [(SENDER.to_owned(), json!(sender))])?;
        agents::use_cluster(bed.fabric, &self.name, &self.kubeconfig)?;
        client::start_agent(host)?;
        wait_for(&format!("the agent on {} to be ready", self.name), PATIENCE, || {
            let status = client::status(host)?;
            Ok(Seen::when(status.ready, || format!("{:?}", status.not_ready)))
        })?;
        let pod = self.sandbox(bed, &self.pod)?;
        let attached = cni::add(bed.fabric, &cni::trunkline(None), &pod)?;
        ensure!(attached.addresses == [self.address], "{} had {}: {attached:?}", self.pod, self.address);
        let link = pod.ns.ip(["link", "show", "eth0"])?;
        ensure!(link.contains(&self.mac), "{} had the MAC {}: {link}", self.pod, self.mac);
        Ok((pod, doorway))
    }
}

/// The gateway of the VLAN, which refuses ARP requests with a sender outside of the Subnet.
struct Gateway<'a>(&'a Host);

/// Requests for the gateway's address.
#[derive(Debug, Default)]
struct Counters {
    refused: u64,
    answered: u64,
}

impl<'a> Gateway<'a> {
    fn start(host: &'a Host) -> Result<Self> {
        host.sh(&format!(
            "set -e
             ip address add {GATEWAY}/24 dev {DEVICE}
             nft 'add table arp gateway
                  add counter arp gateway refused
                  add counter arp gateway answered
                  add chain arp gateway input {{ type filter hook input priority filter; }}
                  add rule arp gateway input iifname != {DEVICE} accept
                  add rule arp gateway input arp operation != request accept
                  add rule arp gateway input arp daddr ip != {GATEWAY} accept
                  add rule arp gateway input arp saddr ip != {SUBNET} counter name refused drop
                  add rule arp gateway input counter name answered'"
        ))?;
        Ok(Self(host))
    }

    fn counters(&self) -> Result<Counters> {
        let text = self.0.run("nft", ["-j", "list", "counters", "table", "arp", "gateway"])?;
        let listed: Value = serde_json::from_str(&text)?;
        let packets = |name: &str| {
            let counters = listed["nftables"].as_array().into_iter().flatten().map(|entry| &entry["counter"]);
            let found = counters.into_iter().find(|counter| counter["name"] == name);
            found.and_then(|counter| counter["packets"].as_u64()).with_context(|| text.clone())
        };
        Ok(Counters { refused: packets("refused")?, answered: packets("answered")? })
    }

    /// Forgets the pods' MACs. The gateway then sends no request to a node before a pod's packet arrives:
    /// a node would learn the gateway's MAC from such a request.
    fn forget(&self) -> Result<()> {
        self.0.run("ip", ["neigh", "flush", "dev", DEVICE]).map(drop)
    }

    /// Checks that a node sends a new ARP request for the gateway, that none is refused, and that no
    /// packet is lost, not even the first. Returns the number of packets.
    fn answers(&self, node: &Host, flows: Vec<Flow>) -> Result<usize> {
        self.forget()?;
        node.run("ip", ["neigh", "flush", "dev", DEVICE])?;
        let before = self.counters()?;
        let sent = lost_nothing(Pinger::start(flows, INTERVAL)?)?;
        let now = self.counters()?;
        ensure!(
            now.refused == before.refused && now.answered > before.answered,
            "{}: {before:?}, and now {now:?}",
            node.name
        );
        Ok(sent)
    }
}
