//! The alerts about remote clusters: one that does not answer, and one that names addresses of this cluster.

use anyhow::Result;
use serde_json::json;

use super::prometheus::Prometheus;
use crate::kube::Cluster;
use crate::shell::{cmd, run};

const ALERTS: [&str; 2] = ["TrunklineRemoteClusterUnreachable", "TrunklineRemoteClusterIgnored"];

/// Nothing listens here.
const NOWHERE: &str = "https://127.0.0.1:1";

/// Makes both alerts fire and clear. `taken` is the prefix of a Subnet of this cluster.
pub(super) fn test(cluster: &Cluster, prometheus: &Prometheus, taken: &str) -> Result<()> {
    let (certificate, key) = cluster.client_certificate("remote", "trunkline:remote:west")?;
    let base64 = |file: &std::path::Path| run(&mut cmd("base64", ["-w0", &file.display().to_string()]));
    let remote = json!({
        "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteCluster", "metadata": {"name": "west"},
        "spec": {
            "apiEndpoint": NOWHERE, "caData": base64(&cluster.authority())?,
            "certData": base64(&certificate)?, "keyData": base64(&key)?,
        },
    });
    let subnet = json!({
        "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteSubnet", "metadata": {"name": "west.taken"},
        "spec": {"clusterName": "west", "networkType": "Underlay", "range": {"version": "4", "cidr": taken}},
    });
    cluster.apply(&format!("{remote}\n---\n{subnet}"))?;
    for alert in ALERTS {
        prometheus.wait_firing(alert, "")?;
    }
    cluster.kubectl(["delete", "remotecluster", "west"])?;
    cluster.kubectl(["delete", "remotesubnet", "west.taken"])?;
    ALERTS.iter().try_for_each(|alert| prometheus.wait_cleared(alert))
}
