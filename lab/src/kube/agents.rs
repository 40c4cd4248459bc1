//! The configuration of a fabric's agents: their labels, and `source: kube`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::client;
use crate::fabric::Fabric;
use crate::host::Host;

/// The configuration of a node's agent, and its file.
fn configuration(fabric: &Fabric, name: &str) -> Result<(PathBuf, BTreeMap<String, Value>)> {
    let file = fabric.file(&format!("{}/{name}/agent.yaml", fabric.topology.name));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let config = serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    Ok((file, config))
}

/// The labels of a node in its agent's configuration.
pub(crate) fn labels(fabric: &Fabric, name: &str) -> Result<BTreeMap<String, String>> {
    let (_, mut config) = configuration(fabric, name)?;
    Ok(serde_json::from_value(config.remove("nodeLabels").unwrap_or_else(|| json!({})))?)
}

/// Sets fields in the configuration of a node's agent.
pub(crate) fn configure(
    fabric: &Fabric,
    name: &str,
    fields: impl IntoIterator<Item = (String, Value)>,
) -> Result<()> {
    let (file, mut config) = configuration(fabric, name)?;
    config.extend(fields);
    // The file is overwritten in place, because the node has mounted this file.
    Ok(std::fs::write(&file, serde_json::to_string_pretty(&config)?)?)
}

/// Sets `services.proxy` in the configuration of a node's agent.
pub(crate) fn configure_proxy(fabric: &Fabric, name: &str, proxy: &Value) -> Result<()> {
    configure(fabric, name, [("services".to_owned(), json!({ "proxy": proxy }))])
}

/// Restarts a node's agent with `source: kube`. The node's Node has its labels.
pub(crate) fn follow_cluster(fabric: &Fabric, name: &str, kubeconfig: &Path) -> Result<()> {
    let host = fabric.host(name)?;
    use_cluster(fabric, name, kubeconfig)?;
    client::end_agent(host, Signal::TERM)?;
    client::start_agent(host)
}

/// Writes `source: kube` into the configuration of a node's agent.
pub(crate) fn use_cluster(fabric: &Fabric, name: &str, kubeconfig: &Path) -> Result<()> {
    let (file, mut config) = configuration(fabric, name)?;
    config.remove("nodeLabels");
    config.remove("manifests");
    config.insert("source".to_owned(), json!("kube"));
    config.insert("kube".to_owned(), json!({ "kubeconfig": kubeconfig, "namespace": NAMESPACE }));
    // The file is overwritten in place, because the node has mounted this file.
    Ok(std::fs::write(&file, serde_json::to_string_pretty(&config)?)?)
}

/// The addresses that a kubelet would report for a host.
pub(crate) fn addresses(host: &Host) -> Result<Vec<IpAddr>> {
    let text = host.ns.ip(["-o", "addr", "show", "scope", "global"])?;
    let words = text.lines().filter_map(|line| line.split_whitespace().nth(3));
    let prefix = |word: &str| word.parse::<IpNet>().with_context(|| format!("{}: {word}", host.name));
    words.map(|word| prefix(word).map(|prefix| prefix.addr())).collect()
}
