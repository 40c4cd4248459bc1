//! RemoteEndpointSlice: endpoints of a Service in another cluster, as hybridnet has it
//! (`multicluster.alibaba.com/v1`). The controller writes it, and makes an EndpointSlice of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::value::null_default;

/// Endpoints of a Service in another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteEndpointSliceSpec {
    /// The Service.
    pub remote_service: RemoteService,
    /// `IPv4` or `IPv6`.
    pub address_type: String,
    /// The endpoints.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<RemoteEndpoint>,
    /// The ports of each endpoint. None: no port.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<RemotePort>,
}

/// A Service in another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteService {
    /// The RemoteCluster.
    pub cluster: String,
    /// The Service's name; in both clusters the same.
    pub name: String,
    /// The Service's namespace; in both clusters the same.
    pub namespace: String,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteEndpoint {
    /// Its addresses.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Its conditions.
    #[serde(default, deserialize_with = "null_default")]
    pub conditions: RemoteConditions,
    /// Its name in DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its node, in the other cluster. EndpointSlices do not have it: a node of this cluster may have
    /// the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The zones that should use it. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<RemoteHints>,
    /// Its pod, in the other cluster. Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<RemoteTarget>,
    /// Labels of its node, as in hybridnet (`discovery.k8s.io/v1beta1`). Ignored.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
}

/// The conditions of an endpoint. An absent `ready` is true, an absent `serving` equals `ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteConditions {
    /// It receives new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// It answers, perhaps while it terminates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// It terminates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// The zones that should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteHints {
    /// The zones.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<RemoteZone>,
}

/// A zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteZone {
    /// Its name.
    pub name: String,
}

/// An object in another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RemoteTarget {
    /// Its apiVersion.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// A part of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
    /// Its kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its resourceVersion.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Its UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A port of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemotePort {
    /// Its name in the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`. Default: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Its application protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}
