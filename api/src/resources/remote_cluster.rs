//! RemoteCluster: another cluster, and the credentials for its API server, as hybridnet has it
//! (`multicluster.alibaba.com/v1`). The controller reads it.

use serde::{Deserialize, Serialize};

use super::meta::Condition;
use crate::value::{Secret, null_default};

/// Another cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteClusterSpec {
    /// Its API server: `https://HOST:PORT`.
    pub api_endpoint: String,
    /// Certificates of the authorities that sign the API server's certificate: PEM in base64, as in a
    /// kubeconfig.
    pub ca_data: String,
    /// The client certificate: PEM in base64.
    pub cert_data: String,
    /// The key of the client certificate: PEM in base64.
    #[serde(skip_serializing)]
    pub key_data: Secret,
    /// Time limit of a request in seconds. 0: 10 s.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub timeout: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The state of another cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum RemoteClusterState {
    /// Its subnets and nodes are mirrored.
    Ready,
    /// A check fails: a condition has the reason.
    NotReady,
    /// Its API server does not answer or refuses requests.
    Offline,
    /// Not checked yet.
    #[default]
    Unknown,
}

/// The observed state of a RemoteCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteClusterStatus {
    /// The UID of its Namespace kube-system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RemoteClusterState>,
    /// The results of the checks.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
