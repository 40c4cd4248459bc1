use std::path::Path;

use schemars::SchemaGenerator;
use serde_json::json;
use trunkline_api::resources::AgentConfig;

use super::*;

fn object(name: &str, spec: Value) -> AgentSettings {
    serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AgentSettings", "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

fn file(text: &str) -> Config {
    Config::parse(text, Path::new("agent.yaml")).unwrap()
}

fn labels(pool: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("pool".to_owned(), pool.to_owned())])
}

/// Field, value, object, and whether it is pending.
fn shown(settings: &NodeSettings) -> Vec<(String, Value, String, bool)> {
    let row = |status: &SettingStatus| {
        let from = status.from.clone().unwrap_or_default();
        (status.field.clone(), status.value.clone(), from, status.pending_restart)
    };
    settings.fields.iter().map(row).collect()
}

fn row(field: &str, value: Value, from: &str, pending: bool) -> (String, Value, String, bool) {
    (field.to_owned(), value, from.to_owned(), pending)
}

/// The paths of the values in a schema.
fn paths(schema: &Value, path: &str, found: &mut Vec<String>) {
    match schema["properties"].as_object() {
        Some(fields) => {
            for (name, schema) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                paths(schema, &path, found);
            }
        }
        None => found.push(path.to_owned()),
    }
}

#[test]
fn each_field_is_a_field_of_agent_yaml_in_one_list() {
    let generator: SchemaGenerator = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let mut schema = serde_json::to_value(generator.into_root_schema_for::<AgentConfig>()).unwrap();
    // The schema of an optional section is a choice between the section and null.
    fn unwrap(schema: &mut Value) {
        for choice in ["anyOf", "oneOf", "allOf"] {
            if let Some(inner) = schema[choice]
                .as_array()
                .and_then(|all| all.iter().find(|one| one["properties"].is_object()).cloned())
            {
                *schema = inner;
            }
        }
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            fields.values_mut().for_each(unwrap);
        }
    }
    unwrap(&mut schema);
    let mut fields = Vec::new();
    paths(&schema, "", &mut fields);
    fields.sort();
    let mut listed = [LIVE, AT_START].concat();
    listed.sort_unstable();
    assert_eq!(fields, listed);
    let config = serde_json::to_value(file(include_str!("../../../docs/agent.example.yaml"))).unwrap();
    for field in listed {
        assert!(!value(&config, field).is_null(), "{field} is no field of agent.yaml");
    }
}

#[test]
fn a_configuration_without_settings_is_unchanged() {
    let config = file(include_str!("../../../docs/agent.example.yaml"));
    assert_eq!(merged(&config, std::iter::empty()).unwrap(), config);
    assert_eq!(resolve(&config, &BTreeMap::new()).unwrap(), config);
}

#[test]
fn higher_priority_wins_field_by_field() {
    let config = file("podMTU: 1500\nmaxPaths: 4");
    let objects = [
        object("all", json!({"config": {"podMTU": 1400, "kernelLimits": {"neighbours": 8192}}})),
        object(
            "gpu",
            json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "priority": 200, "config": {"podMTU": 1300}}),
        ),
        object("b", json!({"priority": 200, "config": {"podMTU": 1280, "vlanARPSender": "pod"}})),
    ];
    let mut settings = Settings::new(config.clone(), config);
    let gpu = settings.of_node(&objects, &labels("gpu")).unwrap();
    let expected = [
        row("kernelLimits.neighbours", json!(8192), "all", false),
        row("podMTU", json!(1280), "b", false),
        row("vlanARPSender", json!("pod"), "b", false),
    ];
    assert_eq!(shown(&gpu), expected, "of equal priorities, the first by name");
    assert_eq!((gpu.plan.pod_mtu, gpu.plan.kernel_limits.neighbours), (Some(1280), 8192));
    assert!(gpu.plan.pods_send_arp);
    assert_eq!(gpu.plan.kernel_limits.ipv6_routes, 524_288, "another field of the section stays");

    let cpu = settings.of_node(&objects[..2], &labels("cpu")).unwrap();
    assert_eq!(cpu.plan.pod_mtu, Some(1400));
    let none = settings.of_node(&[], &labels("gpu")).unwrap();
    assert_eq!((none.plan.pod_mtu, none.fields.len()), (Some(1500), 0));
}

#[test]
fn a_field_that_needs_a_start_is_pending_until_then() {
    let config = file("maxPaths: 4");
    let objects = [object("a", json!({"config": {"maxPaths": 8, "podMTU": 1400}}))];
    let before = Settings::new(config.clone(), config.clone()).of_node(&objects, &labels("x")).unwrap();
    let expected = [row("maxPaths", json!(8), "a", true), row("podMTU", json!(1400), "a", false)];
    assert_eq!(shown(&before), expected);

    let started = resolve(&config, &settings(&objects, &labels("x"))).unwrap();
    assert_eq!((started.max_paths, started.pod_mtu), (8, Some(1400)));
    let mut settings = Settings::new(config, started);
    let after = settings.of_node(&objects, &labels("x")).unwrap();
    assert!(after.fields.iter().all(|field| !field.pending_restart), "{after:?}");
    let removed = settings.of_node(&[], &labels("x")).unwrap();
    assert_eq!(shown(&removed), [row("maxPaths", json!(4), "", true)], "agent.yaml's value is pending");
    assert_eq!(removed.plan.pod_mtu, None);
}

#[test]
fn addresses_of_links_are_reported() {
    let config = Config::default();
    let objects = [object("a", json!({"config": {"vlanInterfaces": ["can-reach=10.0.0.1"]}}))];
    let settings = Settings::new(config.clone(), config).of_node(&objects, &labels("x")).unwrap();
    assert_eq!(settings.plan.reached, BTreeSet::from(["10.0.0.1".parse().unwrap()]));
}

#[test]
fn a_combination_that_agent_yaml_refuses_names_objects_and_field() {
    let settings =
        BTreeMap::from([("podMTU".to_owned(), Setting { value: json!(100), from: "a".to_owned() })]);
    let error = resolve(&Config::default(), &settings).unwrap_err().to_string();
    assert!(error.contains("(a): podMTU: 100 is out of range: write 1280"), "{error}");
}
