//! Policies as the API server has them. Deserialization never fails because of a spec: an object
//! with a fault must not block a watch or a list.

use std::sync::Arc;

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use crate::kube_resource;
use crate::network_policy::{
    ClusterPolicy, NetworkPolicy, ObjectKey, Read, read_cluster_policy, read_network_policy,
};

/// A NetworkPolicy in the API server: in the Namespace of its pods.
#[derive(Clone, Debug, Deserialize)]
pub struct NetworkPolicyObject {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec as it is.
    #[serde(default)]
    pub spec: Value,
}

/// A ClusterNetworkPolicy in the API server: cluster-scoped.
#[derive(Clone, Debug, Deserialize)]
pub struct ClusterNetworkPolicyObject {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec as it is.
    #[serde(default)]
    pub spec: Value,
}

impl NetworkPolicyObject {
    /// Reads the policy. Above its bound, the policy is a stub.
    pub fn read(&self) -> Read<NetworkPolicy> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let name = self.metadata.name.as_deref().unwrap_or_default();
        read_network_policy(ObjectKey::new(namespace, name), &self.spec).limit()
    }
}

impl ClusterNetworkPolicyObject {
    /// Reads the policy. Above its bound, the policy is a stub.
    pub fn read(&self) -> Read<ClusterPolicy> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        read_cluster_policy(Arc::from(name), &self.spec).limit()
    }
}

kube_resource!(
    NetworkPolicyObject,
    NamespaceResourceScope,
    "networking.k8s.io",
    "v1",
    "NetworkPolicy",
    "networkpolicies"
);
kube_resource!(
    ClusterNetworkPolicyObject,
    ClusterResourceScope,
    "policy.networking.k8s.io",
    "v1beta1",
    "ClusterNetworkPolicy",
    "clusternetworkpolicies"
);
