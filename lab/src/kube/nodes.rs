//! A fabric's Trunkline nodes as nodes of a cluster. Their agents take their resources from the API
//! server instead of files, and pods are attached as by a kubelet.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::Cluster;
pub(crate) use super::agents::follow_cluster;
use super::agents::{addresses, labels};
use super::doorway::Doorway;
use super::pods::{Plan, Pretended};
use crate::cni::{self, Identity, Sandbox};
use crate::fabric::Fabric;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::topology::Image;

/// Time limit for pods to reach each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Registers each node with the labels in its agent.yaml, and restarts its agent with `source:
/// kube` and the kubeconfig for that node. The nodes can reach the API server until the returned
/// values are dropped.
pub(crate) fn join(
    cluster: &Cluster,
    fabric: &Fabric,
    kubeconfig: impl Fn(&str) -> Result<PathBuf>,
) -> Result<Vec<Doorway>> {
    join_some(cluster, fabric, fabric.topology.with_image(Image::Node), kubeconfig)
}

/// Like [`join`], for some nodes of the fabric.
pub(crate) fn join_some<'a>(
    cluster: &Cluster,
    fabric: &Fabric,
    nodes: impl IntoIterator<Item = &'a str>,
    kubeconfig: impl Fn(&str) -> Result<PathBuf>,
) -> Result<Vec<Doorway>> {
    let pretended = Pretended::new(cluster.client());
    let mut doorways = Vec::new();
    for name in nodes {
        let host = fabric.host(name)?;
        doorways.push(cluster.doorway(&host.ns)?);
        let labels = labels(fabric, name)?;
        let labels: Vec<(&str, &str)> =
            labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        cluster.wait(pretended.node(name, &labels))?;
        cluster.wait(pretended.addresses(name, &addresses(host)?))?;
        follow_cluster(fabric, name, &kubeconfig(name)?)?;
    }
    Ok(doorways)
}

/// An attached pod.
pub(crate) struct Attached {
    pub plan: Plan,
    pub sandbox: Sandbox,
    pub addresses: Vec<IpAddr>,
}

/// Creates a pod in the API server, with additional annotations, and attaches it as its node's
/// kubelet does. The kubelet does not wait for the pod's addresses, because ADD waits for them.
pub(crate) fn attach(
    cluster: &Cluster,
    fabric: &Fabric,
    plan: Plan,
    annotations: &[(&str, &str)],
) -> Result<Attached> {
    let pretended = Pretended::new(cluster.client());
    let uid = cluster.wait(pretended.create_with(&plan, annotations))?;
    let mut sandbox = Sandbox::create(fabric, &plan.node, &plan.name)?;
    sandbox.identity = Identity { namespace: plan.namespace.clone(), name: plan.name.clone(), uid };
    let addresses = cni::add(fabric, &cni::trunkline(None), &sandbox)?.addresses;
    cluster.wait(pretended.report(&plan.namespace, &plan.name, &addresses))?;
    Ok(Attached { plan, sandbox, addresses })
}

impl Attached {
    /// Removes a deleted pod as a kubelet does: DEL, then the pod is deleted.
    pub(crate) fn take_away(self, cluster: &Cluster, fabric: &Fabric) -> Result<()> {
        cni::del(fabric, &cni::trunkline(None), &self.sandbox)?;
        self.sandbox.ns.delete()?;
        cluster.wait(Pretended::new(cluster.client()).delete(&self.plan.namespace, &self.plan.name))
    }
}

/// Waits until each of these pods reaches every other pod, in both families.
pub(crate) fn reach_each_other(pods: &[&Attached]) -> Result<()> {
    let mut flows = Vec::new();
    for (n, from) in pods.iter().enumerate() {
        for (_, to) in pods.iter().enumerate().filter(|(m, _)| *m != n) {
            for address in &to.addresses {
                let name = format!("{} to {} {address}", from.plan.name, to.plan.name);
                flows.push(Flow { name, from: from.sandbox.ns.clone(), to: *address });
            }
        }
    }
    Pinger::start(flows, Duration::from_millis(20))?.settle(PATIENCE)
}

/// Waits until a node's NodeInfo shows this number of peers, all of them established.
pub(crate) fn tells_its_peers(cluster: &Cluster, node: &str, count: usize) -> Result<()> {
    wait_for(&format!("the peers in NodeInfo {node}"), PATIENCE, || {
        let text = cluster.kubectl(["get", "nodeinfoes", node, "-o", "json"])?;
        let peers = serde_json::from_str::<Value>(&text)?["status"]["peers"].take();
        let up = peers
            .as_array()
            .is_some_and(|p| p.len() == count && p.iter().all(|p| p["state"] == "Established"));
        Ok(Seen::when(up, || peers.to_string()))
    })
}

/// Waits for a status and reason in a Node's network condition.
pub(crate) fn says(cluster: &Cluster, node: &str, status: &str, reason: &str) -> Result<()> {
    wait_for(&format!("the condition of Node {node}"), PATIENCE, || {
        let text = cluster.kubectl(["get", "node", node, "-o", "json"])?;
        let conditions = serde_json::from_str::<Value>(&text)?["status"]["conditions"].take();
        let is = |one: &Value| {
            one["type"] == "NetworkUnavailable" && one["status"] == status && one["reason"] == reason
        };
        let there = conditions.as_array().is_some_and(|all| all.iter().any(is));
        Ok(Seen::when(there, || conditions.to_string()))
    })
}
