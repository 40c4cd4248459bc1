//! NodeServices: the service addresses that one node advertises, as its agent sees them.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::control::{AdvertisementState, ProxyRulesState, ServiceProxyState, WithheldReason};
use crate::value::{is_default, null_default};

/// The service addresses of a node: cluster-scoped, with the name of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeServices {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `NodeServices`.
    pub kind: String,
    /// The name is the node's.
    pub metadata: ObjectMeta,
    /// Nothing: the object has a status only.
    #[serde(default)]
    pub spec: NodeServicesSpec,
    /// The observed state. Only the node's agent writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeServicesStatus>,
}

/// Nothing: a [`NodeServices`] has a status only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeServicesSpec {}

/// The observed state of a [`NodeServices`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeServicesStatus {
    /// The service addresses that the node advertises, in order of the addresses; at most 2,000.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<NodeServiceAddress>,
    /// Whether the node advertises more service addresses than are listed.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub truncated: bool,
    /// The first 512 AnycastAddresses that select the node, by name.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub anycast: Vec<NodeAnycastAddress>,
    /// The node's service proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<NodeServiceProxy>,
}

/// A service address on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeServiceAddress {
    /// The address.
    pub address: String,
    /// `advertised`, `shuttingDown` or `retained`.
    #[cfg_attr(feature = "kube", schemars(with = "String"))]
    pub state: AdvertisementState,
    /// The reason of a graceful shutdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(with = "Option<String>"))]
    pub reason: Option<WithheldReason>,
    /// The first 64 ServiceAdvertisements that select the address. Empty: none exists, and the default is in
    /// force.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub advertisements: Vec<String>,
}

/// An AnycastAddress on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeAnycastAddress {
    /// Name of the AnycastAddress.
    pub name: String,
    /// `advertised`, `shuttingDown`, `retained` or `withheld`.
    #[cfg_attr(feature = "kube", schemars(with = "String"))]
    pub state: AdvertisementState,
    /// The reason why it is not advertised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(with = "Option<String>"))]
    pub reason: Option<WithheldReason>,
    /// The last result of its health check as text, or the reason why the object is not in force;
    /// empty if there is none. Cut after 1,024 characters.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub check: String,
}

/// The service proxy of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeServiceProxy {
    /// `up`, `away`, `unhealthy`, `notEligible` or `notChecked`.
    #[cfg_attr(feature = "kube", schemars(with = "String"))]
    pub state: ServiceProxyState,
    /// The rules that the agent reads: `nftables`, `iptables`, `notVisible` or `absent`.
    #[cfg_attr(feature = "kube", schemars(with = "String"))]
    pub rules: ProxyRulesState,
    /// The fault and the fix; empty if there is none.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl NodeServices {
    /// `metadata.name`, which is the node's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl NodeServicesStatus {
    /// The highest number of listed service addresses.
    pub const MAX_SERVICES: usize = 2000;
    /// The highest number of ServiceAdvertisements of an address.
    pub const MAX_ADVERTISEMENTS: usize = 64;
    /// The highest number of listed AnycastAddresses.
    pub const MAX_ANYCAST: usize = 512;
    /// The highest number of characters of a text about a fault or a check.
    pub const MAX_TEXT: usize = 1024;
}
