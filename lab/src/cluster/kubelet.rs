//! The real kubelet of a node.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Part;
use super::build::Programs;
use super::layout::Layout;
use super::node::{self, ControlGroup};
use super::pki::{file, kubeconfig};
use crate::host::Host;

/// Where the kubelet stores the logs of pods: on the node's disk, not among its daemons' logs.
const POD_LOGS: &str = "/var/lib/kubelet/logs";

/// Starts the kubelet; it registers its Node as soon as the API server answers.
pub(super) fn start(node: &Host, folder: &Path, layout: &Layout, programs: &Programs) -> Result<()> {
    let group = ControlGroup::of(node);
    group.create()?;
    // The file is JSON, which is also valid YAML.
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": file(folder, "ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": file(folder, &format!("{}-server.crt", node.name)),
        "tlsPrivateKeyFile": file(folder, &format!("{}-server.key", node.name)),
        "address": "::",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group.path(),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": layout.dns_service(),
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{}", node::SOCKET),
        "podLogsDir": POD_LOGS,
        "resolvConf": "/etc/resolv.conf",
        "oomScoreAdj": 0,
        // The lab's images are in no registry, so a node must keep them.
        "imageGCHighThresholdPercent": 100,
        // The machine's disk and memory are not the node's.
        "evictionHard": { "memory.available": "1Mi" },
        "maxPods": 110,
    });
    let path = node.folder.join("kubelet.json");
    std::fs::write(&path, serde_json::to_string_pretty(&config)?)?;
    let addresses: Vec<String> = layout.node_addresses(&node.name)?.iter().map(ToString::to_string).collect();
    let flags = [
        format!("--config={}", path.display()),
        format!("--kubeconfig={}", kubeconfig(folder, &node.name).display()),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={}", addresses.join(",")),
        format!(
            "--node-labels=network={},topology.kubernetes.io/zone={}",
            layout.rack_label(&node.name)?,
            layout.zone(&node.name)?
        ),
        "--root-dir=/var/lib/kubelet".to_owned(),
    ];
    Part::start(node, "kubelet", &programs.kubelet(), &flags).context("kubelet")?;
    Ok(())
}

/// The folder of pods' logs on a node, in the machine's view.
pub(super) fn pod_logs(node: &Host) -> std::path::PathBuf {
    node.folder.join("disk/var/lib/kubelet/logs")
}
