//! The packets of a virtual machine during a live migration over BGP. KubeVirt is simulated: the test
//! creates its objects and pods, and moves the guest: it stops to answer in the source's namespace,
//! starts in the target's, and announces itself. Two racks of real routers with ECMP are between
//! the pods. The routers have no configuration for live migration.

mod guest;
mod qemu;
mod timeline;
mod traffic;

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::resources::parse_mac;

use super::vms::{CRDS, KINDS, create_migration, owner};
use super::{Test, Verdict, crds, two_racks};
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{Accounts, WITHOUT_KEYS, agent_on};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;
use guest::{Announcement, Announcer, Guest};
use qemu::{Image as GuestImage, Machine};
use timeline::Timeline;
use traffic::{Loss, Sender, Traffic};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/vm-migration",
    about: "a virtual machine moves between nodes over BGP: routers prefer its new node from the announcement on; a failed live migration, other pods' announcements and killed agents lose nothing",
    run: vm_migration,
}];

const PATIENCE: Duration = Duration::from_secs(60);
const FLAGS: &[&str] = &["--webhook=false", "--vm-ip-retain=true"];
/// Datagrams are sent this often by each sender.
const INTERVAL: Duration = Duration::from_millis(2);
/// The requirement is 50 ms; a busy machine may need longer.
const TOLERATED: Duration = Duration::from_millis(500);
/// The table of late packets.
const LATE_PACKETS: &str = "39995";
const JOB: &str = "kubevirt.io/migrationJobUID";

/// The Subnets of the Network `global`.
const SUBNETS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: global-v4 }
spec: { network: global, range: { version: '4', cidr: 10.200.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: global-v6 }
spec: { network: global, range: { version: '6', cidr: 'fd00:200::/112' } }
";

fn vm_migration(context: &Lab) -> Result<Verdict> {
    let image = GuestImage::find(&context.place)?;
    two_racks::run(context, "vm-migration", |cluster, fabric, controller| {
        test(cluster, fabric, controller, &image)
    })
}

fn test(
    cluster: &Cluster,
    fabric: &Fabric,
    controller: &Path,
    image: &Result<GuestImage, String>,
) -> Result<Verdict> {
    crds::install(cluster)?;
    cluster.apply(CRDS)?;
    for kind in KINDS {
        let crd = format!("crd/{kind}.kubevirt.io");
        cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", &crd])?;
    }
    for node in ["node1a", "node2a"] {
        let file = fabric.file(&format!("two-racks/{node}/manifests/networks.yaml"));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        // Killed agents are a subject of this test, and BFD's 150 ms on a busy machine are not.
        cluster.apply(&text.replace("bfd: {intervalMilliseconds: 50}", ""))?;
    }
    cluster.apply(two_racks::SUBNETS)?;
    cluster.apply(SUBNETS)?;
    let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
    let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, controller, 1, FLAGS)?;
    replicas.wait_leader(cluster)?;
    let _doorways = nodes::join(cluster, fabric, |node| agent_on(cluster, WITHOUT_KEYS, node))?;
    for node in fabric.topology.with_image(Image::Node) {
        client::wait_established(fabric.host(node)?, PATIENCE)?;
    }
    let lab = Migration { cluster, fabric };
    let mut clients = Vec::new();
    for node in ["node1a", "node1b", "node2a"] {
        clients.push(lab.client(&format!("client-{node}"), node)?);
    }
    let clients: Vec<&Attached> = clients.iter().collect();
    let near = lab.within_the_rack(&clients)?;
    let far = lab.to_another_rack(&clients)?;
    let real = match image {
        Ok(image) => lab.by_qemu(image, &clients)?,
        Err(missing) => missing.clone(),
    };
    replicas.still_running()?;
    passed(format!("{near}; {far}; {real}"))
}

struct Migration<'a> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
}

/// A pod of the virtual machine.
struct Launcher {
    sandbox: Sandbox,
    addresses: Vec<IpAddr>,
    mac: [u8; 6],
}

impl Migration<'_> {
    /// Network of mode BGP: the nodes share their two ToRs.
    fn within_the_rack(&self, clients: &[&Attached]) -> Result<String> {
        self.start_vm("web", "node1a")?;
        let source = self.launch("web", "virt-launcher-web-1", "node1a", false, "Underlay")?;
        let guest = Guest::new(&source.sandbox.ns, &source.addresses)?;
        guest.set_running(true);
        let traffic = self.traffic(clients, &source.addresses)?;
        let began = Instant::now();

        // The target's pod fails. Then another one starts, other pods try to attract the packets, and
        // both agents are killed.
        let failed = self.launch("web", "virt-launcher-web-2", "node1b", true, "Underlay")?;
        self.is_worse("node1a", &source)?;
        self.fail(&failed)?;
        self.is_normal("node1a", &source)?;
        self.remove(failed)?;
        let target = self.launch("web", "virt-launcher-web-3", "node1b", true, "Underlay")?;
        ensure!(target.addresses == source.addresses, "the target has {:?}", target.addresses);
        self.is_worse("node1a", &source)?;
        self.late_packets_leave_directly("node1a", &source.addresses, true)?;
        for client in clients {
            for kind in [Announcement::Arp, Announcement::Rarp] {
                Announcer::open(&client.sandbox.ns)?.send(kind, source.mac, source.addresses[0])?;
            }
        }
        for node in ["node1a", "node1b"] {
            let host = self.fabric.host(node)?;
            client::end_agent(host, Signal::KILL)?;
            client::start_agent(host)?;
            client::wait_established(host, PATIENCE)?;
        }
        self.is_worse("node1a", &source)?;
        self.late_packets_leave_directly("node1a", &source.addresses, true)?;
        traffic.settle(40, PATIENCE)?;
        let advertised = self.advertised("node1b", &source)?;
        ensure!(advertised.is_empty(), "node1b advertises {advertised:?} before the switch");
        let before = none_lost(&traffic.losses(began, Instant::now()))?;

        let switch = self.switch(&traffic, &guest, &target, Announcement::Rarp)?;
        self.ends("web", "node1b", &target)?;
        self.is_withdrawn("node1a", &source)?;
        let after = Instant::now();
        let addresses = source.addresses.clone();
        self.remove(source)?;
        self.late_packets_leave_directly("node1a", &addresses, false)?;
        traffic.settle(40, PATIENCE)?;
        none_lost(&traffic.losses(after, Instant::now()))?;

        // Back, without an announcement: only KubeVirt's state shows the end.
        let back = self.launch("web", "virt-launcher-web-4", "node1a", true, "Underlay")?;
        self.is_worse("node1b", &target)?;
        let last = Guest::new(&back.sandbox.ns, &back.addresses)?;
        let stopped = Instant::now();
        switch.guest.set_running(false);
        last.set_running(true);
        self.runs_on("web", "node1a")?;
        traffic.settle(40, PATIENCE)?;
        let unannounced = worst(&traffic.losses(stopped, Instant::now()));
        self.is_withdrawn("node1b", &target)?;
        traffic.finish()?;
        Ok(format!(
            "within a rack: {before} before the switch; {} at the switch; {unannounced} without an announcement",
            switch.loss
        ))
    }

    /// Network of mode GlobalBGP: the routes cross the spines.
    fn to_another_rack(&self, clients: &[&Attached]) -> Result<String> {
        self.start_vm("far", "node1b")?;
        let source = self.launch("far", "virt-launcher-far-1", "node1b", false, "GlobalBGP")?;
        let guest = Guest::new(&source.sandbox.ns, &source.addresses)?;
        guest.set_running(true);
        let traffic = self.traffic(clients, &source.addresses)?;
        let began = Instant::now();
        let target = self.launch("far", "virt-launcher-far-2", "node2b", true, "GlobalBGP")?;
        self.is_worse("node1b", &source)?;
        self.late_packets_leave_directly("node1b", &source.addresses, false)?;
        traffic.settle(40, PATIENCE)?;
        // The routers between the racks select again when the path becomes worse. A few datagrams can
        // be lost in a loop of some milliseconds.
        let before = traffic.losses(began, Instant::now());
        ensure!(before.iter().all(|loss| loss.longest <= TOLERATED), "before the switch: {before:?}");
        let switch = self.switch(&traffic, &guest, &target, Announcement::Arp)?;
        self.ends("far", "node2b", &target)?;
        self.is_withdrawn("node1b", &source)?;
        self.remove(source)?;
        traffic.settle(40, PATIENCE)?;
        traffic.finish()?;
        Ok(format!("to another rack: {} before the switch, {} at it", worst(&before), switch.loss))
    }

    /// QEMU's own live migration of a booted guest, within a rack.
    fn by_qemu(&self, image: &GuestImage, clients: &[&Attached]) -> Result<String> {
        self.start_vm("real", "node1a")?;
        let source = self.launch("real", "virt-launcher-real-1", "node1a", false, "Underlay")?;
        let mut machine = Machine::boot(self.cluster, image, &source)?;
        let traffic = self.traffic(clients, &source.addresses)?;
        let target = self.launch("real", "virt-launcher-real-2", "node1b", true, "Underlay")?;
        self.is_worse("node1a", &source)?;
        let mut other = Machine::wait_for_guest(self.cluster, image, &target)?;
        traffic.settle(40, PATIENCE)?;
        let began = Instant::now();
        let downtime = machine.migrate(self.cluster, &target, &mut other)?;
        traffic.settle(40, PATIENCE)?;
        let losses = traffic.losses(began, Instant::now());
        let slowest = losses.iter().map(|loss| loss.span).max().unwrap_or_default();
        ensure!(slowest <= TOLERATED, "the blackout lasts {slowest:?}: {losses:?}");
        self.ends("real", "node1b", &target)?;
        self.is_withdrawn("node1a", &source)?;
        drop(machine);
        self.remove(source)?;
        traffic.settle(40, PATIENCE)?;
        traffic.finish()?;
        Ok(format!("by QEMU, whose downtime is {:.0} ms: {}", ms(downtime), worst(&losses)))
    }

    /// Moves the guest, and measures until the datagrams are answered again.
    fn switch(
        &self,
        traffic: &Traffic,
        source: &Guest,
        target: &Launcher,
        announcement: Announcement,
    ) -> Result<Switch> {
        let guest = Guest::new(&target.sandbox.ns, &target.addresses)?;
        let announcer = Announcer::open(&target.sandbox.ns)?;
        let timeline = Timeline::start(self.fabric)?;
        let stopped = Instant::now();
        source.set_running(false);
        guest.set_running(true);
        announcer.send(announcement, target.mac, target.addresses[0])?;
        // The rest is the network's time. A hypervisor's own downtime comes in addition.
        let announced = Instant::now();
        traffic.settle(40, PATIENCE)?;
        let losses = traffic.losses(stopped, Instant::now());
        let slowest = losses.iter().map(|loss| loss.span).max().unwrap_or_default();
        ensure!(slowest <= TOLERATED, "the blackout lasts {slowest:?}: {losses:?}");
        let (worst, downtime) = (worst(&losses), announced.duration_since(stopped));
        let steps = timeline.since(announced, &target.addresses)?;
        let loss = format!(
            "{worst}; the guest's downtime {:.1} ms; ms after the announcement: {steps}",
            ms(downtime)
        );
        Ok(Switch { guest, loss })
    }

    fn client(&self, name: &str, node: &str) -> Result<Attached> {
        let plan = Plan {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set: None,
        };
        nodes::attach(self.cluster, self.fabric, plan, &[])
    }

    /// Datagrams from every client to every address, from now on all answered.
    fn traffic(&self, clients: &[&Attached], addresses: &[IpAddr]) -> Result<Traffic> {
        let sender = |client: &Attached, to: IpAddr| Sender {
            name: format!("{} to {to}", client.plan.name),
            from: client.sandbox.ns.clone(),
            to,
        };
        let senders =
            clients.iter().flat_map(|client| addresses.iter().map(move |to| sender(client, *to))).collect();
        let traffic = Traffic::start(senders, INTERVAL)?;
        traffic.settle(100, PATIENCE)?;
        Ok(traffic)
    }

    fn uid(&self, kind: &str, name: &str) -> Result<String> {
        self.cluster.kubectl(["get", kind, name, "-o", "jsonpath={.metadata.uid}"])
    }

    /// A VirtualMachine that runs on a node.
    fn start_vm(&self, name: &str, node: &str) -> Result<()> {
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "default"}, "spec": {}});
        self.cluster.apply(&vm.to_string())?;
        let uid = self.uid("vm", name)?;
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner("VirtualMachine", name, &uid)]},
            "spec": {},
        });
        self.cluster.apply(&instance.to_string())?;
        self.runs_on(name, node)
    }

    /// Writes KubeVirt's state.
    fn runs_on(&self, vm: &str, node: &str) -> Result<()> {
        let status = json!({"status": {"nodeName": node}}).to_string();
        self.cluster.kubectl(["patch", "vmi", vm, "--type=merge", "-p", &status]).map(drop)
    }

    /// KubeVirt names a ready target in the status of the VirtualMachineInstance.
    fn hand_over(&self, vm: &str, pod: &str) -> Result<()> {
        let job = self.uid("vmim", &format!("job-of-{pod}"))?;
        let state =
            json!({"status": {"migrationState": {"migrationUid": job, "targetPod": pod}}}).to_string();
        self.cluster.kubectl(["patch", "vmi", vm, "--type=merge", "-p", &state]).map(drop)
    }

    /// Creates a pod of the virtual machine, and attaches it as its node's kubelet does.
    fn launch(&self, vm: &str, pod: &str, node: &str, is_target: bool, network: &str) -> Result<Launcher> {
        let labels = if is_target {
            json!({JOB: create_migration(self.cluster, &format!("job-of-{pod}"), vm)?})
        } else {
            json!({})
        };
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod, "namespace": "default", "labels": labels,
                "ownerReferences": [owner("VirtualMachineInstance", vm, &self.uid("vmi", vm)?)],
                "annotations": {
                    "networking.alibaba.com/ip-family": "DualStack", "networking.alibaba.com/network-type": network,
                },
            },
            "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "pretended"}]},
        });
        self.cluster.apply(&object.to_string())?;
        let mut sandbox = Sandbox::create(self.fabric, node, pod)?;
        let (namespace, uid) = ("default".to_owned(), self.uid("pod", pod)?);
        sandbox.identity = Identity { namespace, name: pod.to_owned(), uid };
        let addresses = cni::add(self.fabric, &cni::trunkline(None), &sandbox)?.addresses;
        self.cluster.wait(Pretended::new(self.cluster.client()).report("default", pod, &addresses))?;
        let link: Value = serde_json::from_str(&sandbox.ns.ip(["-j", "link", "show", "dev", "eth0"])?)?;
        let mac = parse_mac(link[0]["address"].as_str().context("a MAC address")?)?;
        if is_target {
            self.hand_over(vm, pod)?;
        }
        Ok(Launcher { sandbox, addresses, mac })
    }

    /// The target's pod ends before the end of the live migration.
    fn fail(&self, pod: &Launcher) -> Result<()> {
        let failed = json!({"status": {"phase": "Failed"}}).to_string();
        let name = &pod.sandbox.identity.name;
        let args = ["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &failed];
        self.cluster.kubectl(args).map(drop)
    }

    /// Removes a pod as a kubelet does.
    fn remove(&self, pod: Launcher) -> Result<()> {
        cni::del(self.fabric, &cni::trunkline(None), &pod.sandbox)?;
        pod.sandbox.ns.delete()?;
        self.cluster.wait(Pretended::new(self.cluster.client()).delete("default", &pod.sandbox.identity.name))
    }

    /// KubeVirt reports the end of the live migration, and the IPInstances are bound to the target.
    fn ends(&self, vm: &str, node: &str, target: &Launcher) -> Result<()> {
        self.runs_on(vm, node)?;
        let selector = format!("networking.alibaba.com/vm={vm}");
        wait_for("the binding of the target", PATIENCE, || {
            let text = self.cluster.kubectl(["get", "ipinstances", "-l", &selector, "-o", "json"])?;
            let list: Value = serde_json::from_str(&text)?;
            let all = list["items"].as_array().cloned().unwrap_or_default();
            let bound = |one: &Value| one["spec"]["binding"]["podUID"] == *target.sandbox.identity.uid;
            Ok(Seen::when(all.len() == 2 && all.iter().all(bound), || text))
        })
    }

    /// The communities of the addresses that a node advertises to each of its ToRs.
    fn advertised(&self, node: &str, pod: &Launcher) -> Result<Vec<Vec<String>>> {
        let host = self.fabric.host(node)?;
        let mut found = Vec::new();
        for peer in client::peers(host)? {
            let routes = client::advertised(host, peer.address)?.into_iter();
            let of_pod = routes.filter(|route| pod.addresses.contains(&route.prefix.addr()));
            found.extend(of_pod.map(|route| route.communities));
        }
        Ok(found)
    }

    fn wait_advertised(
        &self,
        node: &str,
        pod: &Launcher,
        wanted: &str,
        is_wanted: impl Fn(&[Vec<String>]) -> bool,
    ) -> Result<()> {
        wait_for(&format!("{node}'s routes of the virtual machine to be {wanted}"), PATIENCE, || {
            let found = self.advertised(node, pod)?;
            Ok(Seen::when(is_wanted(&found), || format!("{found:?}")))
        })
    }

    /// Waits until all ToRs have worse routes of both addresses.
    fn is_worse(&self, node: &str, pod: &Launcher) -> Result<()> {
        let is_worse = |found: &[Vec<String>]| found.len() == 4 && found.iter().all(|all| is_leaving(all));
        self.wait_advertised(node, pod, "worse", is_worse)
    }

    fn is_normal(&self, node: &str, pod: &Launcher) -> Result<()> {
        let is_normal = |found: &[Vec<String>]| found.len() == 4 && !found.iter().any(|all| is_leaving(all));
        self.wait_advertised(node, pod, "as before", is_normal)
    }

    /// Waits until a node has or has no routes for late packets of each address.
    fn late_packets_leave_directly(&self, node: &str, addresses: &[IpAddr], directly: bool) -> Result<()> {
        let ns = &self.fabric.host(node)?.ns;
        wait_for(&format!("{node}'s routes for late packets"), PATIENCE, || {
            let mut all = String::new();
            for family in ["-4", "-6"] {
                all += &ns.ip([family, "route", "show", "table", LATE_PACKETS]).unwrap_or_default();
            }
            let has = |address: &IpAddr| all.lines().any(|line| line.starts_with(&format!("{address} ")));
            Ok(Seen::when(addresses.iter().all(|address| has(address) == directly), || all))
        })
    }

    fn is_withdrawn(&self, node: &str, pod: &Launcher) -> Result<()> {
        self.wait_advertised(node, pod, "withdrawn", <[_]>::is_empty)
    }
}

/// The guest after a switch, and the loss.
struct Switch {
    guest: Guest,
    loss: String,
}

fn is_leaving(communities: &[String]) -> bool {
    communities.iter().any(|community| community == "graceful-shutdown")
}

/// Fails on any loss. Returns the number of datagrams.
fn none_lost(losses: &[Loss]) -> Result<String> {
    ensure!(losses.iter().all(|loss| loss.lost == 0), "datagrams are lost: {losses:?}");
    Ok(format!("0 of {} datagrams lost", losses.iter().map(|loss| loss.sent).sum::<usize>()))
}

/// The worst sender.
fn worst(losses: &[Loss]) -> String {
    let worst = losses.iter().max_by_key(|loss| (loss.span, loss.lost));
    worst.map_or_else(String::new, |loss| {
        let (lost, all) = (loss.lost, losses.iter().map(|loss| loss.lost).sum::<usize>());
        format!("{:.0} ms from the first lost datagram to the last, longest gap {:.0} ms, {lost} lost ({}; all {all})", ms(loss.span), ms(loss.longest), loss.name)
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
