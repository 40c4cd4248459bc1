//! Settings of a node from AgentSettings.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::value::is_default;

/// A field of the agent's configuration that an AgentSettings sets, or that waits for a start of the
/// agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingStatus {
    /// The field, as in agent.yaml: `kernelLimits.neighbours`.
    pub field: String,
    /// The wanted value.
    pub value: Value,
    /// The AgentSettings with this value; none: the value is agent.yaml's again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether the agent still runs with another value, until its next start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pending_restart: bool,
}
