//! The parts of a pod that matter for its addresses. The deserializer skips everything else.

use std::net::IpAddr;

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;
use trunkline_api::kube_resource;

/// A pod from the API server.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    /// Name, labels and so on.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: PodSpec,
    /// The observed state.
    #[serde(default)]
    pub status: PodStatus,
}

/// The desired state of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it was scheduled to.
    pub node_name: Option<String>,
    /// Whether it uses the node's network.
    pub host_network: bool,
    /// Its containers.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Container {
    name: String,
}

/// The observed state of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    phase: String,
    reason: String,
    container_statuses: Vec<ContainerStatus>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodIp {
    #[serde(default)]
    ip: String,
}

/// Most addresses of a pod that count: the API server allows one of each family.
const MAX_ADDRESSES: usize = 2;

impl Pod {
    /// Whether the node evicted it.
    pub fn is_evicted(&self) -> bool {
        self.status.phase == "Failed" && self.status.reason == "Evicted"
    }

    /// Whether all its containers have ended and none will be restarted.
    pub fn is_completed(&self) -> bool {
        let reported = |container: &Container| {
            self.status.container_statuses.iter().any(|status| status.name == container.name)
        };
        self.status.phase == "Succeeded" && self.spec.containers.iter().all(reported)
    }

    /// Whether a container runs.
    pub fn is_running(&self) -> bool {
        self.status.container_statuses.iter().any(|status| status.state.running.is_some())
    }

    /// Whether the kubelet reports a complete sandbox with started containers: then the pod uses
    /// its addresses.
    pub fn has_started(&self) -> bool {
        self.status.phase == "Running"
    }

    /// Whether its phase is Failed.
    pub fn has_failed(&self) -> bool {
        self.status.phase == "Failed"
    }

    /// The addresses that the kubelet reports.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.status.pod_ips.iter().filter_map(|pod_ip| pod_ip.ip.parse().ok()).take(MAX_ADDRESSES).collect()
    }
}

kube_resource!(Pod, NamespaceResourceScope, "", "v1", "Pod", "pods");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn evicted_completed_and_running_pods_are_distinguished() {
        let running = json!([{"name": "a", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]);
        let ended = json!([{"name": "a", "state": {"terminated": {"exitCode": 0}}}]);
        for (phase, reason, statuses, evicted, completed, runs) in [
            ("Running", "", running.clone(), false, false, true),
            ("Pending", "", json!([]), false, false, false),
            ("Failed", "Evicted", json!([]), true, false, false),
            ("Failed", "Error", ended.clone(), false, false, false),
            ("Succeeded", "", ended, false, true, false),
            // A container is missing in the report: the kubelet does not know yet how it ended.
            ("Succeeded", "", json!([]), false, false, false),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "n"},
                "spec": {"containers": [{"name": "a", "image": "x"}], "nodeName": "node1"},
                "status": {"phase": phase, "reason": reason, "containerStatuses": statuses,
                    "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
            }))
            .unwrap();
            let seen = (pod.is_evicted(), pod.is_completed(), pod.is_running());
            assert_eq!(seen, (evicted, completed, runs), "{phase} {reason}");
            assert_eq!(pod.addresses().len(), 2);
        }
    }
}
