//! The settings of the snapshot in force, for the log and the status.

use std::collections::BTreeSet;
use std::sync::Arc;

use trunkline_api::control::SettingStatus;

use super::Task;
use crate::plan::intent::Snapshot;
use crate::settings::NodeSettings;

impl Task {
    /// Records the settings of a snapshot that is now in force, and logs each change once.
    pub(super) fn follow_settings(&mut self, snapshot: &Snapshot) {
        // The plan of this snapshot was made with the same settings, so there is no error.
        let Ok(now) = self.settings.of_node(&snapshot.agent_settings, &snapshot.labels) else { return };
        log_changes(self.settings_in_force.as_deref(), &now);
        self.settings_in_force = Some(Arc::clone(&now));
    }
}

fn log_changes(before: Option<&NodeSettings>, now: &NodeSettings) {
    let before = before.map(|before| before.fields.as_slice()).unwrap_or_default();
    for setting in now.fields.iter().filter(|setting| !before.contains(setting)) {
        let SettingStatus { field, value, from, pending_restart } = setting;
        let from = from.as_deref().unwrap_or("agent.yaml");
        match pending_restart {
            true => tracing::warn!(field, %value, from, "a setting applies at the next start of the agent"),
            false => tracing::info!(field, %value, from, "a setting of an AgentSettings is in force"),
        }
    }
    let names: BTreeSet<&str> = now.fields.iter().map(|setting| setting.field.as_str()).collect();
    for setting in before.iter().filter(|setting| !names.contains(setting.field.as_str())) {
        tracing::info!(
            field = setting.field,
            "no AgentSettings sets the field: agent.yaml's value is in force"
        );
    }
}
