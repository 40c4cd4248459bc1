//! Fields of the agent's configuration that wait for its next start.

use trunkline_api::control::AgentStatus;

use super::Finding;

/// One finding for all pending fields.
pub(super) fn check(status: &AgentStatus) -> Option<Finding> {
    let pending = status.settings.iter().filter(|setting| setting.pending_restart);
    let fields: Vec<&str> = pending.map(|setting| setting.field.as_str()).collect();
    if fields.is_empty() {
        return None;
    }
    let text = format!("settings wait for the next start of the agent: {}", fields.join(", "));
    let fix = "restart the agent: pods and sessions continue (docs/agent-settings.md)";
    Some(Finding::warning("settings", text, fix))
}
