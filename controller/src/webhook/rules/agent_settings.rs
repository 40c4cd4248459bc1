//! Create and update of an AgentSettings: its fields are valid, and no other object of the same
//! priority sets one of them on the same node.
//!
//! A later change of a Node's labels can still make two such objects select the Node. Then the first
//! one by name has effect, and `trunkline status` shows it.

use trunkline_api::resources::AgentSettings;
use trunkline_api::validate::{Fault, validate_agent_settings};

use super::{Facts, RuleResult, introduced, verdict};

/// Facts: every AgentSettings and every Node.
pub fn create(settings: &AgentSettings, facts: &Facts) -> RuleResult {
    verdict(faults(settings, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &AgentSettings, new: &AgentSettings, facts: &Facts) -> RuleResult {
    verdict(introduced(&faults(old, facts), faults(new, facts)))
}

fn faults(settings: &AgentSettings, facts: &Facts) -> Vec<Fault> {
    let mut found = validate_agent_settings(settings).err().unwrap_or_default();
    let (fields, spec) = (settings.spec.config.fields(), &settings.spec);
    let rivals = facts
        .agent_settings
        .iter()
        .filter(|other| other.name() != settings.name() && other.spec.priority() == spec.priority());
    for other in rivals {
        let others = other.spec.config.fields();
        let Some(field) = fields.keys().find(|field| others.contains_key(*field)) else { continue };
        let both =
            |labels: &_| spec.node_selector.selects(labels) && other.spec.node_selector.selects(labels);
        let Some(node) = facts.nodes.iter().find(|node| both(&node.labels)) else { continue };
        found.push(Fault {
            kind: "AgentSettings",
            name: settings.name().to_owned(),
            field: "spec.priority".to_owned(),
            message: format!(
                "{} is also the priority of AgentSettings {}, and both set {field} on node {}: write another \
                 priority (the highest has effect), or another nodeSelector",
                spec.priority(),
                other.name(),
                node.name
            ),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::Node;
    use super::super::tests::expect;
    use super::*;

    fn settings(name: &str, spec: Value) -> AgentSettings {
        serde_json::from_value(json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "AgentSettings", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn create_and_update_rules() {
        let labels = BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]);
        let facts = Facts {
            agent_settings: vec![settings("all", json!({"config": {"podMTU": 1400}}))],
            nodes: vec![Node { name: "node1".to_owned(), labels }],
            ..Facts::default()
        };
        let gpu = json!({"matchLabels": {"pool": "gpu"}});
        for (case, spec, refusal) in [
            ("another field", json!({"nodeSelector": gpu, "config": {"maxPaths": 8}}), ""),
            (
                "another priority",
                json!({"nodeSelector": gpu, "priority": 200, "config": {"podMTU": 1300}}),
                "",
            ),
            (
                "other nodes",
                json!({"nodeSelector": {"matchLabels": {"pool": "cpu"}}, "config": {"podMTU": 1300}}),
                "",
            ),
            (
                "the same field",
                json!({"nodeSelector": gpu, "config": {"podMTU": 1300}}),
                "AgentSettings new: spec.priority: 100 is also the priority of AgentSettings all, and both set podMTU on \
                 node node1: write another priority",
            ),
            (
                "a wrong expression",
                json!({"config": {"vlanInterfaces": ["/eth[/"]}}),
                "spec.config.vlanInterfaces[0]: /eth[/ is no regular expression: unclosed character class",
            ),
            (
                "a wrong value",
                json!({"config": {"kernelLimits": {"neighbours": 16_777_217}}}),
                "spec.config.kernelLimits.neighbours: 16777217 is out of range: write 0 to 16777216",
            ),
        ] {
            expect(case, create(&settings("new", spec), &facts), refusal);
        }
        let itself = settings("all", json!({"config": {"podMTU": 1300}}));
        expect("a new value", update(&facts.agent_settings[0], &itself, &facts), "");
        let old = settings("new", json!({"nodeSelector": gpu, "config": {"podMTU": 1300}}));
        let new = settings("new", json!({"nodeSelector": gpu, "config": {"podMTU": 1300, "maxPaths": 8}}));
        expect("an old fault", update(&old, &new, &facts), "");
    }
}
