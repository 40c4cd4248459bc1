//! The alerts about remote clusters: one that does not answer, and one that names addresses of this cluster.

use anyhow::Result;
use serde_json::json;

use super::prometheus::Prometheus;
use crate::kube::{Cluster, remote};

const ALERTS: [&str; 2] = ["TrunklineRemoteClusterUnreachable", "TrunklineRemoteClusterIgnored"];

/// Nothing listens here.
const NOWHERE: &str = "https://127.0.0.1:1";

/// Makes both alerts fire and clear. `taken` is the prefix of a Subnet of this cluster.
pub(super) fn test(cluster: &Cluster, prometheus: &Prometheus, taken: &str) -> Result<()> {
    let remote = remote::object(cluster, "west", "east", NOWHERE)?;
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
