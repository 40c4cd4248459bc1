//! Conversion of hybridnet's values.

use std::path::Path;

use serde_json::{Value, json};
use trunkline_agent::config::Config;

use super::{Converted, Migrate, convert, hybridnet};

const DEFAULTS: &str = include_str!("../../tests/hybridnet-values/defaults.yaml");
const CHANGED: &str = include_str!("../../tests/hybridnet-values/changed.yaml");

fn converted(text: &str) -> (Value, Converted) {
    let converted = hybridnet::convert(text).unwrap();
    (serde_saphyr::from_str(&converted.values).unwrap(), converted)
}

/// The agent accepts its part of the values.
fn config(values: &Value) -> Config {
    Config::parse(&values["agent"]["config"].to_string(), Path::new("agent.yaml")).unwrap()
}

#[test]
fn defaults_that_differ_are_carried_over() {
    let (values, converted) = converted(DEFAULTS);
    let wanted = json!({
        "image": {"pullPolicy": "IfNotPresent"},
        "defaultIPFamily": "IPv4",
        "defaultNetworkType": "Overlay",
        "vmIPRetain": false,
        "controller": {
            "replicas": 3,
            "httpPort": 9899,
            "extraArgs": ["--default-ip-retain=true", "--patch-calico-pod-ips-annotation"],
        },
        "webhook": {"additionalPodMatchExpressions": [{"key": "app", "operator": "NotIn", "values": ["kube-proxy"]}]},
        "networkPolicies": {"enabled": true},
        "agent": {"config": {
            "vlanInterfaces": [], "vxlanInterfaces": [], "vxlanPort": 8472, "vtepAddressCIDRs": ["0.0.0.0/0", "::/0"],
            "vlanARPSender": "pod", "updateIPInstanceStatus": true,
        }},
    });
    assert_eq!(values, wanted, "{}", converted.values);
    assert_eq!(config(&values).vxlan_port, 8472);
    let line = converted.values.lines().find(|line| line.starts_with("defaultNetworkType")).unwrap();
    assert_eq!(
        line,
        "defaultNetworkType: \"Overlay\"  # defaultNetworkType; the default of Trunkline's chart is Underlay"
    );
    for path in ["multiCluster", "daemon.resources", "daemon.preferBGPInterfaces"] {
        let begin = format!("no counterpart: {path}:");
        assert!(!converted.notes.iter().any(|note| note.starts_with(&begin)), "{path} is not set");
    }
}

#[test]
fn each_changed_value_is_mapped_or_reported() {
    let (values, converted) = converted(CHANGED);
    let wanted = json!({
        "image": {"pullPolicy": "Always"},
        "defaultIPFamily": "DualStack",
        "defaultNetworkType": "Underlay",
        "vmIPRetain": true,
        "controller": {
            "replicas": 5,
            "httpPort": 19899,
            "extraArgs": ["--default-ip-retain=false"],
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        },
        "webhook": {"additionalPodMatchExpressions": [{"key": "tenant", "operator": "Exists"}]},
        "networkPolicies": {"enabled": false},
        "agent": {"config": {
            "vlanInterfaces": ["bond0", "eth0"], "vxlanInterfaces": ["bond2"], "vxlanPort": 8472,
            "vtepAddressCIDRs": ["192.168.10.0/24", "2001:db8::/64"], "vlanARPSender": "node", "updateIPInstanceStatus": false,
        }},
    });
    assert_eq!(values, wanted, "{}", converted.values);
    assert_eq!(config(&values).vlan_interfaces, ["bond0", "eth0"]);
    for path in hybridnet::paths() {
        let mapped = converted
            .values
            .lines()
            .filter_map(|line| line.split_once("  # "))
            .any(|(_, comment)| comment.split([' ', ';', ':', ',']).any(|word| word == path));
        let notes = converted
            .notes
            .iter()
            .filter(|note| note.starts_with(&format!("no counterpart: {path}: ")))
            .count();
        assert_eq!(usize::from(mapped) + notes, 1, "{path}: mapped {mapped}, {notes} notes: {converted:#?}");
    }
}

#[test]
fn missing_values_have_the_defaults_of_hybridnet() {
    let (defaults, _) = converted(DEFAULTS);
    for text in
        ["null\n", "{}\n", "defaultIPFamily: IPv4\n", "USER-SUPPLIED VALUES:\nnull\n", "daemon: null\n"]
    {
        if text.starts_with("USER") {
            // Without values of its own, a release has this line alone.
            assert_eq!(converted("USER-SUPPLIED VALUES:\n").0, defaults);
            continue;
        }
        assert_eq!(converted(text).0, defaults, "{text}");
    }
    let (_, converted) = converted("{}\n");
    assert!(converted.values.contains("# defaultNetworkType, hybridnet's default;"), "{}", converted.values);
}

#[test]
fn unknown_values_are_named() {
    let (_, converted) =
        converted("multiCluster: false\ndaemon: {vxlanPort: 4789, felix: {debug: true}}\nglobal: {a: 1}\n");
    let unknown: Vec<&str> =
        converted.notes.iter().filter_map(|note| note.strip_prefix("unknown: ")).collect();
    let names: Vec<&str> = unknown.iter().filter_map(|note| note.split(": ").next()).collect();
    assert_eq!(names, ["daemon.felix.debug", "daemon.vxlanPort", "global"]);
}

#[test]
fn errors_name_the_place_and_the_fix() {
    for (text, words) in [
        ("", "the input is empty: pass the output of `helm get values"),
        ("daemon:\n  resources: {}\n preferVlanInterfaces: x\n", "line 3"),
        ("- a\n", "not a map"),
        (
            "image: x\nserviceMonitor: {}\n",
            "no value of hybridnet's chart is here, but image, serviceMonitor",
        ),
        ("defaultNetworkType: VLAN\n", "defaultNetworkType: \"VLAN\" is no type of Networks: write Underlay"),
        ("defaultIPFamily: v4\n", "defaultIPFamily: \"v4\" is no address family: write IPv4"),
        ("defaultIPRetain: maybe\n", "defaultIPRetain: \"maybe\" is neither true nor false"),
        ("manager: {replicas: many}\n", "manager.replicas: \"many\" is not a number from 0 to 1000"),
        ("manager: {metricsPort: 70000}\n", "manager.metricsPort: 70000 is not a number from 0 to 65535"),
        ("manager: {nodeSelector: {a: true}}\n", "manager.nodeSelector.a: true is not a text"),
        ("daemon: {vtepAddressCIDRs: \"10.0.0.0\"}\n", "daemon.vtepAddressCIDRs: \"10.0.0.0\" is no prefix"),
        (
            "daemon: {preferVlanInterfaces: [bond0]}\n",
            "daemon.preferVlanInterfaces: [\"bond0\"] is not a text",
        ),
        (
            "webhook: {additionalPodMatchExpressions: app}\n",
            "webhook.additionalPodMatchExpressions: \"app\" is no list",
        ),
        (
            "images: {hybridnet: {imagePullPolicy: Often}}\n",
            "imagePullPolicy: \"Often\" is no pull policy: write Always",
        ),
    ] {
        let error = format!("{:#}", hybridnet::convert(text).unwrap_err());
        assert!(error.contains(words), "{text:?}: {error}");
    }
    let missing = Migrate::Hybridnet { values: "/nonexistent/values.yaml".into() };
    let error = format!("{:#}", convert(&missing).unwrap_err());
    assert!(error.contains("/nonexistent/values.yaml cannot be read"), "{error}");
}
