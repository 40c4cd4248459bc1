//! The settings from AgentSettings, in `trunkline status`.

use trunkline_api::control::SettingStatus;

/// One line for each field.
pub(crate) fn line(setting: &SettingStatus) -> String {
    let SettingStatus { field, value, from, pending_restart } = setting;
    let from = match from {
        Some(name) => format!("AgentSettings {name}"),
        None => "agent.yaml".to_owned(),
    };
    let pending = if *pending_restart { ": PENDING until the next start of the agent" } else { "" };
    format!("{field} {value} ({from}){pending}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_value_object_and_state() {
        let setting = |from: Option<&str>, pending_restart| SettingStatus {
            field: "vlanInterfaces".to_owned(),
            value: json!(["bond1"]),
            from: from.map(str::to_owned),
            pending_restart,
        };
        assert_eq!(line(&setting(Some("gpu"), false)), r#"vlanInterfaces ["bond1"] (AgentSettings gpu)"#);
        assert_eq!(
            line(&setting(None, true)),
            r#"vlanInterfaces ["bond1"] (agent.yaml): PENDING until the next start of the agent"#
        );
    }
}
