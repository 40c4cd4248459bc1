//! The parts of a Service that matter for its addresses. The deserializer skips everything else.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde::Deserialize;
use trunkline_api::kube_resource;
use trunkline_api::resources::IpVersion;
use trunkline_api::service::{PortKey, Protocol, TrafficPolicy};

/// A Service from the API server.
#[derive(Clone, Debug, Deserialize)]
pub struct Service {
    /// Name, labels and so on.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: ServiceSpec,
    /// The observed state.
    #[serde(default)]
    pub status: ServiceStatus,
}

/// The desired state of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `LoadBalancer`, and others.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// The program that allocates its address.
    pub load_balancer_class: Option<String>,
    /// The requested address (deprecated by Kubernetes).
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<String>,
    /// Its ClusterIPs, or `None` without one.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// The families of its addresses.
    pub ip_families: Vec<Family>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
    pub ip_family_policy: Option<String>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// The labels of its pods.
    pub selector: Option<BTreeMap<String, String>>,
    /// Whether a node forwards to endpoints of other nodes.
    pub external_traffic_policy: Option<String>,
}

/// An IP family.
#[derive(Clone, Debug, Deserialize)]
pub struct Family(String);

impl Family {
    /// The family, if it is known.
    pub fn version(&self) -> Option<IpVersion> {
        match self.0.as_str() {
            "IPv4" => Some(IpVersion::V4),
            "IPv6" => Some(IpVersion::V6),
            _ => None,
        }
    }
}

/// A port of a Service.
#[derive(Clone, Debug, Deserialize)]
pub struct ServicePort {
    /// The protocol; TCP by default.
    #[serde(default)]
    pub protocol: Option<String>,
    /// The port at the service address.
    #[serde(default)]
    pub port: i64,
}

/// The observed state of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Its addresses.
    pub load_balancer: LoadBalancerStatus,
    /// Its conditions.
    pub conditions: Vec<ServiceCondition>,
}

/// The addresses of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// One entry for each address.
    pub ingress: Vec<IngressPoint>,
}

/// An address of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressPoint {
    /// The address.
    pub ip: Option<String>,
    /// A name instead of an address.
    pub hostname: Option<String>,
    /// `VIP` or `Proxy`.
    pub ip_mode: Option<String>,
}

/// A condition of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// The reason as text.
    pub message: String,
    /// Time of the last change of the status.
    pub last_transition_time: String,
}

impl ServicePort {
    /// Protocol and port; none for values that no Service has.
    pub fn key(&self) -> Option<PortKey> {
        let protocol = match self.protocol.as_deref() {
            None | Some("" | "TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) => return None,
        };
        Some(PortKey { protocol, port: u16::try_from(self.port).ok()? })
    }
}

impl ServiceSpec {
    /// Whether a node forwards only to its own endpoints.
    pub fn policy(&self) -> TrafficPolicy {
        match self.external_traffic_policy.as_deref() {
            Some("Local") => TrafficPolicy::Local,
            _ => TrafficPolicy::Cluster,
        }
    }
}

impl Service {
    /// Whether it requests addresses from outside the cluster.
    pub fn is_load_balancer(&self) -> bool {
        self.spec.type_.as_deref() == Some("LoadBalancer")
    }
}

kube_resource!(Service, NamespaceResourceScope, "", "v1", "Service", "services");
