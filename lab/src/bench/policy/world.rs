//! Two nodes on a cluster, with many policies and pods.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::super::ipam::server::flood;
use super::TOPOLOGY;
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::kube::agents::addresses;
use crate::kube::doorway::Doorway;
use crate::kube::pods::Pretended;
use crate::kube::{Cluster, nodes};
use crate::shell::{Seen, wait_for};

/// A time limit for thousands of objects on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Namespaces, and policies of each.
const NAMESPACES: usize = 20;
const EACH: usize = 50;
pub(super) const POLICIES: usize = NAMESPACES * EACH;
/// The Namespace without policies.
const FREE: &str = "free";
/// The pods' first addresses: those of pods that are attached, and those of remote pods.
const ATTACHED: Ipv4Addr = Ipv4Addr::new(10, 61, 1, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);

pub(super) struct World<'a> {
    pub cluster: &'a Cluster,
    pub fabric: &'a Fabric,
    pub node: &'a Host,
    attached: std::cell::Cell<u32>,
    _doorways: Vec<Doorway>,
}

fn namespace(number: usize) -> String {
    format!("bench-{}", number % NAMESPACES)
}

/// The pods of a Namespace are the peers of one policy each, by the label `client`.
fn policy(number: usize) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "client": format!("c{}", number % EACH) } } });
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("policy-{}", number % EACH), "namespace": namespace(number / EACH) },
        "spec": {
            "podSelector": { "matchLabels": { "here": "yes" } }, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [peer] }], "egress": [{ "to": [peer] }],
        },
    })
}

fn pod(namespace: &str, name: &str, node: &str, labels: &Value) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": name, "labels": labels,
            "annotations": { "networking.alibaba.com/ip-family": "IPv4" },
        },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pretended" }] },
    }))?)
}

/// The IPInstance of a pod, as the controller writes it.
fn instance(namespace: &str, pod: &str, uid: &str, node: &str, address: Ipv4Addr) -> Result<DynamicObject> {
    let [_, second, high, low] = address.octets();
    Ok(serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {
            "name": address.to_string().replace('.', "-"), "namespace": namespace,
            "labels": { "networking.alibaba.com/node": node, "networking.alibaba.com/network": "rack1" },
            "annotations": { "networking.alibaba.com/ip-family": "IPv4" },
        },
        "spec": {
            "network": "rack1", "subnet": "rack1-v4",
            "address": {
                "version": "4", "ip": format!("{address}/16"),
                "mac": format!("02:00:00:{second:02x}:{high:02x}:{low:02x}"),
            },
            "binding": { "nodeName": node, "podName": pod, "podUID": uid },
        },
    }))?)
}

fn instances(client: Client, namespace: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("networking.alibaba.com", "v1", "IPInstance");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&gvk))
}

fn remote_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(REMOTE) + number as u32)
}

impl<'a> World<'a> {
    /// The agents of the first two nodes join the cluster.
    pub(super) fn join(cluster: &'a Cluster, fabric: &'a Fabric) -> Result<Self> {
        for file in ["networks", "subnets"] {
            let file = fabric.file(&format!("{TOPOLOGY}/manifests/{file}.yaml"));
            cluster.apply(&std::fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
        }
        let pretended = Pretended::new(cluster.client());
        for number in 0..NAMESPACES {
            cluster.wait(pretended.namespace(&namespace(number)))?;
        }
        cluster.wait(pretended.namespace(FREE))?;
        let mut doorways = Vec::new();
        for name in ["node1", "node2"] {
            let host = fabric.host(name)?;
            client::wait_answering(host)?;
            doorways.push(cluster.doorway(&host.ns)?);
            cluster.wait(pretended.node(name, &[("rack", "1")]))?;
            cluster.wait(pretended.addresses(name, &addresses(host)?))?;
            nodes::follow_cluster(fabric, name, &cluster.kubeconfig())?;
            client::wait_established(host, PATIENCE)?;
        }
        let node = fabric.host("node1")?;
        Ok(Self { cluster, fabric, node, attached: std::cell::Cell::new(0), _doorways: doorways })
    }

    pub(super) fn create_policies(&self) -> Result<()> {
        let client = self.cluster.client();
        flood(self.cluster, POLICIES, move |number| {
            let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &namespace(number / EACH));
            async move {
                policies.create(&PostParams::default(), &serde_json::from_value(policy(number))?).await?;
                Ok(())
            }
        })?;
        Ok(())
    }

    /// Creates remote pods with their IPInstances. Those of Namespace 0 come first.
    pub(super) fn create_remote(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        let (client, first) = (self.cluster.client(), numbers.start);
        flood(self.cluster, numbers.len(), move |n| {
            let number = first + n;
            let namespace = if number < super::FEW { namespace(0) } else { namespace(number) };
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let instances = instances(client.clone(), &namespace);
            async move {
                let (name, node) = (format!("remote-{number}"), "elsewhere");
                let labels = json!({ "client": format!("c{}", number % EACH) });
                let created =
                    pods.create(&PostParams::default(), &pod(&namespace, &name, node, &labels)?).await?;
                let uid = created.metadata.uid.context("a pod without a UID")?;
                let instance = instance(&namespace, &name, &uid, node, remote_address(number))?;
                instances.create(&PostParams::default(), &instance).await?;
                Ok(())
            }
        })?;
        Ok(())
    }

    /// Waits until the agent has the last remote pod in a set of the kernel.
    pub(super) fn wait_known(&self, count: usize) -> Result<()> {
        let last = (0..count).rev().find(|number| number % NAMESPACES == 0).unwrap_or_default();
        let address = remote_address(last).to_string();
        wait_for(&format!("{address} in the kernel"), PATIENCE, || {
            let rules = self.node.run("nft", ["list", "table", "inet", "trunkline-policy"])?;
            Ok(Seen::when(rules.contains(&address), || format!("{} octets of rules", rules.len())))
        })
    }

    /// Gives a remote pod of Namespace 0 the label of another policy. Returns the start of the
    /// request, and the pod's address.
    pub(super) fn relabel(&self, number: usize, turn: usize) -> Result<(Instant, Ipv4Addr)> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), &namespace(0));
        let label = format!("c{}", (number + turn / super::FEW + 1) % EACH);
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "client": label } } }));
        let began = Instant::now();
        self.cluster.wait(pods.patch(&format!("remote-{number}"), &PatchParams::default(), &patch))?;
        Ok((began, remote_address(number)))
    }

    /// Creates a pod and its IPInstance.
    fn create(&self, namespace: &str, name: &str, node: &str, labels: &Value) -> Result<Sandbox> {
        let number = self.attached.get();
        self.attached.set(number + 1);
        let address = Ipv4Addr::from(u32::from(ATTACHED) + number);
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), namespace);
        let instances = instances(self.cluster.client(), namespace);
        let created = pod(namespace, name, node, labels)?;
        let uid = self.cluster.wait(pods.create(&PostParams::default(), &created))?.metadata.uid;
        let uid = uid.context("a pod without a UID")?;
        let instance = instance(namespace, name, &uid, node, address)?;
        self.cluster.wait(instances.create(&PostParams::default(), &instance))?;
        let mut sandbox = Sandbox::create(self.fabric, node, name)?;
        sandbox.identity = Identity { namespace: namespace.to_owned(), name: name.to_owned(), uid };
        Ok(sandbox)
    }

    fn attach(&self, namespace: &str, name: &str, node: &str, labels: &Value) -> Result<(Sandbox, IpAddr)> {
        let sandbox = self.create(namespace, name, node, labels)?;
        let attached = cni::add(self.fabric, &cni::trunkline(None), &sandbox)?.addresses;
        let pretended = Pretended::new(self.cluster.client());
        self.cluster.wait(pretended.report(namespace, name, &attached))?;
        Ok((sandbox, *attached.first().context("an address")?))
    }

    /// Two pods that 50 policies select, of which the last one allows their connections, and two
    /// pods without a policy. The first of each pair is on node1, the second on node2.
    pub(super) fn traffic_pods(&self) -> Result<[(Sandbox, IpAddr); 4]> {
        let ruled = json!({ "here": "yes", "client": format!("c{}", EACH - 1) });
        let ns = namespace(0);
        Ok([
            self.attach(&ns, "from", "node1", &ruled)?,
            self.attach(&ns, "to", "node2", &ruled)?,
            self.attach(FREE, "free-from", "node1", &json!({}))?,
            self.attach(FREE, "free-to", "node2", &json!({}))?,
        ])
    }

    /// Attaches pods of all Namespaces on node1.
    pub(super) fn local_pods(&self, count: usize) -> Result<Vec<(Sandbox, IpAddr)>> {
        let labels = json!({ "here": "yes" });
        (0..count)
            .map(|number| self.attach(&namespace(number), &format!("local-{number}"), "node1", &labels))
            .collect()
    }

    /// Pairs of pods that are ready for ADD: without a policy, and with 50.
    pub(super) fn prepare_adds(&self, count: usize) -> Result<Vec<[Sandbox; 2]>> {
        let labels = json!({ "here": "yes" });
        let pairs = (0..count).map(|number| {
            Ok([
                self.create(FREE, &format!("add-free-{number}"), "node1", &json!({}))?,
                self.create(&namespace(0), &format!("add-{number}"), "node1", &labels)?,
            ])
        });
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        // Their objects have reached the agent.
        std::thread::sleep(Duration::from_secs(2));
        Ok(pairs)
    }

    pub(super) fn wait_in_force(&self) -> Result<()> {
        wait_for("the rules to be in force", PATIENCE, || {
            let metrics = client::metrics(self.node)?;
            let line = metrics.lines().find(|line| line.starts_with("trunkline_policy_state "));
            Ok(Seen::when(line == Some("trunkline_policy_state 1"), || format!("{line:?}")))
        })
    }
}

/// The kernel's notifications about new elements of sets.
pub(super) struct ElementMonitor {
    nft: Child,
    lines: mpsc::Receiver<(Instant, String)>,
}

impl ElementMonitor {
    pub(super) fn start(host: &Host) -> Result<Self> {
        let mut nft = host
            .command("nft", ["-n", "monitor", "new", "elements"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("nft monitor")?;
        let out = BufReader::new(nft.stdout.take().context("standard output")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        // nft first reads the whole ruleset.
        std::thread::sleep(Duration::from_secs(1));
        Ok(Self { nft, lines })
    }

    /// The time from `began` until a set has this element.
    pub(super) fn wait(&self, element: &str, began: Instant) -> Result<Duration> {
        loop {
            let (at, line) = self
                .lines
                .recv_timeout(Duration::from_secs(20))
                .with_context(|| format!("no set has {element}"))?;
            let is_there = line.split([' ', ',', '{', '}']).any(|word| word == element);
            if is_there && at >= began {
                return Ok(at - began);
            }
        }
    }
}

impl Drop for ElementMonitor {
    fn drop(&mut self) {
        let _ended = self.nft.kill();
        let _reaped = self.nft.wait();
    }
}
