//! IPInstance: one address allocated to a pod.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::subnet::IpVersion;
use crate::value::null_default;

/// One address allocated to a pod: in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstance {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `IPInstance`.
    pub kind: String,
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// The allocation.
    pub spec: IPInstanceSpec,
    /// The current user of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<IPInstanceStatus>,
}

/// The allocation in an [`IPInstance`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstanceSpec {
    /// Name of the network.
    pub network: String,
    /// Name of the subnet.
    pub subnet: String,
    /// The address.
    pub address: Address,
    /// The pod of the address.
    #[serde(default, deserialize_with = "null_default")]
    pub binding: Binding,
}

/// The address of an [`IPInstance`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Address {
    /// `"4"` or `"6"`.
    pub version: IpVersion,
    /// The address with the subnet's length, `10.0.0.7/24`.
    pub ip: String,
    /// The subnet's gateway.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The VLAN id or VNI.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// The pod's MAC address.
    pub mac: String,
}

/// The pod of an [`IPInstance`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Binding {
    /// The object that owns the pod.
    #[serde(default, deserialize_with = "null_default")]
    pub referred_object: ReferredObject,
    /// The pod's node; empty while the address is only retained.
    #[serde(default, deserialize_with = "null_default")]
    pub node_name: String,
    /// The pod's UID; empty while the address is only retained.
    #[serde(
        default,
        rename = "podUID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub pod_uid: String,
    /// The pod's name.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// Set for a stateful pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<Stateful>,
}

/// The owner of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReferredObject {
    /// Its kind, such as `StatefulSet`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its name.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its UID.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The position of a stateful pod in its set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stateful {
    /// Its ordinal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
}

/// The pod to which a virtual machine moves in a live migration, in the annotation
/// [`MIGRATION_TARGET`](crate::names::annotation::MIGRATION_TARGET) of its [`IPInstance`]s.
///
/// The binding has the pod that runs the virtual machine. The labels have the target's node and pod,
/// so that the agent of the target's node sees the IPInstance and the target's ADD gets the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationTarget {
    /// The pod's node.
    pub node_name: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's UID.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
}

/// The current user of an [`IPInstance`]'s address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstanceStatus {
    /// The node.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The pod.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// The pod's namespace.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_namespace: String,
    /// The pod's sandbox.
    #[serde(
        default,
        rename = "sandboxID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub sandbox_id: String,
    /// The sandbox again, if the node's agent clears this status after the sandbox's end. The
    /// address of such a sandbox is neither released nor given to another pod before.
    #[serde(
        default,
        rename = "attachedSandboxID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub attached_sandbox_id: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_timestamp: Option<String>,
}

impl IPInstanceStatus {
    /// The node and the sandbox that is attached there until the node's agent reports its end. None
    /// for a status of hybridnet's daemon, which reports no end.
    pub fn attached(&self) -> Option<(&str, &str)> {
        let is_known = !self.sandbox_id.is_empty() && self.attached_sandbox_id == self.sandbox_id;
        (is_known && !self.node_name.is_empty()).then_some((&self.node_name, &self.sandbox_id))
    }
}
