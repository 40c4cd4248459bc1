//! A fabric's Trunkline nodes as nodes of a cluster: what their agents took from files comes from the API server from then on, and
//! pods are attached as a kubelet does it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::doorway::Doorway;
use super::pods::{Plan, Pretended};
use super::{Cluster, rights};
use crate::client;
use crate::cni::{Identity, Sandbox};
use crate::fabric::Fabric;
use crate::topology::Image;

/// Registers each node with the labels of its agent.yaml, and starts its agent again with `source: kube` and this kubeconfig. The nodes
/// reach the API server as long as the returned values live.
pub(crate) fn join(cluster: &Cluster, fabric: &Fabric, kubeconfig: &Path) -> Result<Vec<Doorway>> {
    let pretended = Pretended::new(cluster.client());
    let mut doorways = Vec::new();
    for name in fabric.topology.with_image(Image::Node) {
        let host = fabric.host(name)?;
        doorways.push(cluster.doorway(&host.ns)?);
        let file = fabric.file(&format!("{}/{name}/agent.yaml", fabric.topology.name));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut config: BTreeMap<String, Value> =
            serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        let labels = config.remove("nodeLabels").unwrap_or_default();
        let labels: Vec<(&str, &str)> = labels
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
            .collect();
        cluster.wait(pretended.node(name, &labels))?;
        config.remove("manifests");
        config.insert("source".to_owned(), json!("kube"));
        config.insert("kube".to_owned(), json!({ "kubeconfig": kubeconfig, "namespace": rights::NAMESPACE }));
        // In its place: the node has this very file mounted.
        std::fs::write(&file, serde_json::to_string_pretty(&config)?)?;
        client::end_agent(host, Signal::TERM)?;
        client::start_agent(host)?;
    }
    Ok(doorways)
}

/// A new pod of the API server and its sandbox on its node, not yet attached.
pub(crate) fn pod(cluster: &Cluster, fabric: &Fabric, plan: &Plan) -> Result<Sandbox> {
    let uid = cluster.wait(Pretended::new(cluster.client()).create(plan))?;
    let mut sandbox = Sandbox::create(fabric, &plan.node, &plan.name)?;
    sandbox.identity = Identity { namespace: plan.namespace.clone(), name: plan.name.clone(), uid };
    Ok(sandbox)
}
