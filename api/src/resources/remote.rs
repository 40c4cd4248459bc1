//! RemoteSubnet and RemoteVtep: subnets and nodes of another cluster, as hybridnet has them
//! (`multicluster.alibaba.com/v1`). The controller writes them, the agents read them.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::network::NetworkType;
use super::subnet::AddressRange;
use crate::value::null_default;

/// A subnet of another cluster: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteSubnet {
    /// `multicluster.alibaba.com/v1`.
    pub api_version: String,
    /// `RemoteSubnet`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The subnet.
    pub spec: RemoteSubnetSpec,
    /// The observed state. Ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RemoteStatus>,
}

/// The addresses of a [`RemoteSubnet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteSubnetSpec {
    /// Its addresses.
    pub range: AddressRange,
    /// The type of its Network. Default: Underlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_type: Option<NetworkType>,
    /// The RemoteCluster that it belongs to.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
}

/// A node of another cluster: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteVtep {
    /// `multicluster.alibaba.com/v1`.
    pub api_version: String,
    /// `RemoteVtep`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The tunnel endpoint and the pods behind it.
    pub spec: RemoteVtepSpec,
    /// The observed state. Ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RemoteStatus>,
}

/// The tunnel endpoint of a [`RemoteVtep`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteVtepSpec {
    /// The RemoteCluster that it belongs to.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// The node's name in the other cluster.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Destination of tunnelled packets: an address of the node.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// MAC of the node's VXLAN device; default: derived from `ip`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Addresses of the node that overlay pods reach through the tunnel, besides `ip`.
    #[serde(
        default,
        rename = "localIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub local_ips: Vec<String>,
    /// Addresses of the node's pods.
    #[serde(
        default,
        rename = "endpointIPList",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub endpoint_ip_list: Vec<String>,
}

/// The observed state of a mirrored object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteStatus {
    /// Time of the last change, RFC 3339. Only hybridnet writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modify_time: Option<String>,
}
