//! The CRDs' rules and the Rust rules agree: on objects, and on the field that they name. The lab's
//! test `kube/crds` compares their decisions about generated objects.
#![cfg(feature = "kube")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[expect(dead_code, reason = "the lab uses the other fields")]
mod rule_cases;

use rule_cases::{Base, bases, edited, faults};
use serde_json::{Value, json};
use trunkline_api::kube::rules;
use trunkline_api::resources::Subnet;
use trunkline_api::validate::unsupported_subnet;

fn with_rust_rules() -> impl Iterator<Item = Base> {
    bases().into_iter().filter(Base::has_rust_rules)
}

/// Invalid objects and changes: base, spec, old spec and a part of the CRD's message.
fn invalid() -> Vec<(Base, Value, Option<Value>, &'static str)> {
    let mut all = Vec::new();
    for number in 0..with_rust_rules().count() {
        let base = || with_rust_rules().nth(number).unwrap();
        for (edits, words) in base().bad {
            all.push((base(), edited(&base().spec, edits).unwrap(), None, *words));
        }
        for (edits, words) in base().changes {
            let (old, new) = (base().spec, edited(&base().spec, edits).unwrap());
            all.push((base(), new, Some(old), *words));
        }
    }
    all
}

#[test]
fn valid_objects_of_the_crds_are_valid() {
    for base in with_rust_rules() {
        assert_eq!(faults(&base, &base.spec, None), [""; 0], "{}", base.name);
        for edits in base.good {
            let spec = edited(&base.spec, edits).unwrap();
            assert_eq!(faults(&base, &spec, None), [""; 0], "{} with {edits:?}", base.name);
        }
    }
}

#[test]
fn objects_that_the_crds_refuse_are_refused() {
    for (base, spec, old, words) in invalid() {
        let found = faults(&base, &spec, old.as_ref());
        assert!(!found.is_empty(), "{}: {words}: {spec} is accepted", base.name);
    }
}

#[test]
fn examples_of_the_pages_are_valid() {
    let pages = [include_str!("../../docs/services.md"), include_str!("../../docs/agent-settings.md")];
    let mut kinds = Vec::new();
    let examples = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    for example in examples.filter_map(|rest| rest.split("```").next()) {
        let object: Value = serde_saphyr::from_str(example).unwrap();
        let kind = object["kind"].as_str().unwrap().to_owned();
        let mut bases = bases().into_iter();
        let base = bases.find(|base| base.kind == kind).unwrap();
        assert_eq!(faults(&base, &object["spec"], None), [""; 0], "{example}");
        kinds.push(kind);
    }
    assert_eq!(
        kinds,
        ["ServicePool", "ServicePool", "ServiceAdvertisement", "AnycastAddress", "AgentSettings"]
    );
}

/// hybridnet's reserved fields: the agent and the API server refuse them with the same words.
#[test]
fn reserved_fields_have_one_text() {
    for (field, value) in
        [("gatewayType", json!("l3")), ("gatewayNode", json!("n1")), ("allowSubnets", json!(["a"]))]
    {
        let subnet: Subnet = serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": "pods"},
            "spec": {"network": "rack1", "range": {"version": "4", "cidr": "10.14.0.0/24"}, "config": {field: value}},
        }))
        .unwrap();
        let path = format!("spec.config.{field}");
        let rule = rules().into_iter().find(|rule| rule.kind == "Subnet" && rule.path == path).unwrap();
        let agent = unsupported_subnet(&subnet).unwrap();
        assert_eq!(agent, format!("Subnet pods: spec.config.{}", rule.message));
    }
}

/// The field at the beginning of a CRD's message, without indexes: `bgpPeers[].asn`.
fn field(message: &str) -> String {
    let field = message.split([' ', ':', '=']).next().unwrap_or(message);
    without_indexes(field.trim_start_matches("spec."))
}

fn without_indexes(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

#[test]
fn both_name_the_same_field() {
    let mut differing = Vec::new();
    for rule in rules() {
        if bases().iter().any(|base| base.kind == rule.kind && !base.has_rust_rules()) {
            continue;
        }
        let mut cases = invalid();
        cases.retain(|(base, _, _, words)| base.kind == rule.kind && rule.message.contains(words));
        assert!(!cases.is_empty(), "no case for {}", rule.message);
        for (base, spec, old, _) in cases {
            let found = faults(&base, &spec, old.as_ref());
            let path = |fault: &String| without_indexes(fault.split(": ").next().unwrap_or(fault));
            let same = |fault: &String| {
                let path = path(fault);
                let last = path.rsplit('.').next().unwrap_or(&path);
                path.contains(&field(rule.message)) || rule.message.contains(&format!("`{last}`"))
            };
            if !found.iter().any(same) {
                differing.push(format!("{}: {}: {found:#?}", base.name, rule.message));
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
