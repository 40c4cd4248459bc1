//! Nodes on a cluster, pods with labels, and policies. The nodes are those of the topology
//! `hybrid`; the pods are in the BGP networks of the racks.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use trunkline_api::names::annotation;

use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::doorway::Doorway;
use crate::kube::golang::network_policy_api;
use crate::kube::nodes;
use crate::kube::pods::Pretended;
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::kube::{cluster, crds};
use crate::tests::{Context, Verdict};

pub(super) const TOPOLOGY: &str = "hybrid";
pub(super) const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// The nodes' addresses, and those of the host outside.
pub(super) const NODE1: [&str; 2] = ["10.51.0.11", "fd00:51::11"];
pub(super) const OUTSIDE: [&str; 2] = ["10.90.0.2", "fd00:90::2"];

/// The channel of ClusterNetworkPolicies: fields of `Experimental` are unknown to Trunkline.
#[derive(Clone, Copy)]
pub(super) enum Channel {
    Standard,
    Experimental,
}

/// A pod to create.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub node: &'a str,
    pub labels: &'a [(&'a str, &'a str)],
}

impl Plan<'_> {
    fn object(&self) -> Result<Pod> {
        let network = if self.node == "node3" { "rack2" } else { "rack1" };
        let labels: serde_json::Map<String, Value> =
            self.labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": self.namespace, "name": self.name, "labels": labels,
                "annotations": { annotation::IP_FAMILY: "DualStack", annotation::SPECIFIED_NETWORK: network },
            },
            "spec": {
                "nodeName": self.node,
                "containers": [{
                    "name": "main", "image": "pretended",
                    "ports": [
                        { "name": "web", "containerPort": 80 },
                        { "name": "alt", "containerPort": 8080 },
                        { "name": "dns", "containerPort": 53, "protocol": "UDP" },
                    ],
                }],
            },
        }))?)
    }
}

/// An attached pod.
pub(super) struct Running {
    pub namespace: String,
    pub name: String,
    pub sandbox: Sandbox,
    pub addresses: Vec<IpAddr>,
}

/// A cluster whose nodes enforce policies.
pub(super) struct World<'a> {
    pub cluster: &'a mut Cluster,
    pub bed: &'a Bed<'a>,
    pub controller: Replicas,
    _doorways: Vec<Doorway>,
}

/// Runs a test with the CRD of this channel, Trunkline's controller, and the agents of all nodes.
/// `objects` are created before the agents join.
pub(super) fn run(
    context: &Context,
    name: &str,
    channel: Channel,
    objects: &str,
    test: impl FnOnce(&mut World<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    let crd = match network_policy_api(&context.place)? {
        Ok(folder) => crd(folder, channel),
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, name, |cluster| {
        lab(context, TOPOLOGY, |bed| {
            crate::packages::need(["nftables"])?;
            crds::install(cluster)?;
            let crd = std::fs::read_to_string(&crd).with_context(|| crd.display().to_string())?;
            cluster.apply(&crd)?;
            cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", CRD])?;
            for file in ["networks", "subnets"] {
                let file = bed.fabric.file(&format!("{TOPOLOGY}/manifests/{file}.yaml"));
                cluster
                    .apply(&std::fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
            }
            if !objects.is_empty() {
                cluster.apply(objects)?;
            }
            let controller = Replicas::start(cluster, &controller, 1)?;
            let doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            for node in NODES {
                client::wait_established(bed.host(node)?, PATIENCE)?;
            }
            test(&mut World { cluster, bed, controller, _doorways: doorways })
        })
    })
}

const CRD: &str = "crd/clusternetworkpolicies.policy.networking.k8s.io";

fn crd(folder: PathBuf, channel: Channel) -> PathBuf {
    let channel = match channel {
        Channel::Standard => "standard",
        Channel::Experimental => "experimental",
    };
    folder.join(format!("config/crd/{channel}/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
}

impl World<'_> {
    fn api(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    /// Creates a pod in the API server, and the namespace of its sandbox.
    pub(super) fn create(&self, plan: &Plan<'_>) -> Result<Sandbox> {
        let pod = plan.object()?;
        let created = self.api(plan.namespace);
        let created = self.cluster.wait(created.create(&PostParams::default(), &pod))?;
        let uid = created.metadata.uid.context("a pod without a UID")?;
        let mut sandbox = Sandbox::create(self.bed.fabric, plan.node, plan.name)?;
        sandbox.identity = Identity { namespace: plan.namespace.to_owned(), name: plan.name.to_owned(), uid };
        Ok(sandbox)
    }

    /// Attaches a created pod, and reports its addresses as a kubelet does.
    pub(super) fn start(&self, sandbox: Sandbox) -> Result<Running> {
        let addresses = cni::add(self.bed.fabric, &cni::trunkline(None), &sandbox)?.addresses;
        let Identity { namespace, name, .. } = sandbox.identity.clone();
        self.cluster.wait(Pretended::new(self.cluster.client()).report(&namespace, &name, &addresses))?;
        Ok(Running { namespace, name, sandbox, addresses })
    }

    pub(super) fn attach(&self, plan: &Plan<'_>) -> Result<Running> {
        self.start(self.create(plan)?)
    }

    /// Detaches a pod and deletes it, as a kubelet does.
    pub(super) fn remove(&self, pod: Running) -> Result<()> {
        cni::del(self.bed.fabric, &cni::trunkline(None), &pod.sandbox)?;
        pod.sandbox.ns.delete()?;
        self.cluster.wait(Pretended::new(self.cluster.client()).delete(&pod.namespace, &pod.name))
    }

    /// Sets labels of a pod; null removes a label.
    pub(super) fn label(&self, pod: &Running, labels: &Value) -> Result<()> {
        let patch = json!({ "metadata": { "labels": labels } });
        let pods = self.api(&pod.namespace);
        self.cluster.wait(pods.patch(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)))?;
        Ok(())
    }

    /// Deletes all policies, then creates these.
    pub(super) fn replace_policies(&self, policies: &str) -> Result<()> {
        self.cluster.kubectl(["delete", "networkpolicies", "--all", "--all-namespaces", "--wait=false"])?;
        self.cluster.kubectl(["delete", "clusternetworkpolicies", "--all", "--wait=false"])?;
        if !policies.trim().is_empty() {
            self.cluster.apply(policies)?;
        }
        Ok(())
    }
}

/// The address of this family.
pub(super) fn of_family(addresses: &[IpAddr], v4: bool) -> Result<IpAddr> {
    addresses.iter().copied().find(|address| address.is_ipv4() == v4).context("an address of the family")
}

/// The time in which a change takes effect on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(20);
