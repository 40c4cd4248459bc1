//! The CRDs are compatible with hybridnet's: names, scope, columns, and every field with its type.
//! The lab's test `kube/crds` checks them in an API server.
#![cfg(feature = "kube")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use serde_json::Value;
use trunkline_api::kube::{crds, manifests, rules};

/// hybridnet v0.8.9's CRDs: kind, plural, scope, columns, and the fields with a type of their own.
const HYBRIDNET: &[(&str, &str, &str, &str, &[&str])] = &[
    (
        "Network",
        "networks",
        "Cluster",
        "NetID Type Mode V4Total V4Used V4Available LastAllocatedV4Subnet V6Total V6Used V6Available LastAllocatedV6Subnet",
        &[
            "spec.config.bgpPeers[].address string",
            "spec.config.bgpPeers[].allowNotEstablished boolean",
            "spec.config.bgpPeers[].asn integer",
            "spec.config.bgpPeers[].doesNotRouteTraffic boolean",
            "spec.config.bgpPeers[].gracefulRestartSeconds integer",
            "spec.config.bgpPeers[].password string",
            "spec.mode string",
            "spec.netID integer",
            "spec.nodeSelector[] string",
            "spec.type string",
            "status.dualStackStatistics.available integer",
            "status.dualStackStatistics.total integer",
            "status.dualStackStatistics.used integer",
            "status.ipv6Statistics.available integer",
            "status.ipv6Statistics.total integer",
            "status.ipv6Statistics.used integer",
            "status.lastAllocatedIPv6Subnet string",
            "status.lastAllocatedSubnet string",
            "status.nodeList[] string",
            "status.statistics.available integer",
            "status.statistics.total integer",
            "status.statistics.used integer",
            "status.subnetList[] string",
        ],
    ),
    (
        "Subnet",
        "subnets",
        "Cluster",
        "Version CIDR Start End Gateway Total Used Available NetID Network",
        &[
            "spec.config.allowSubnets[] string",
            "spec.config.autoNatOutgoing boolean",
            "spec.config.gatewayNode string",
            "spec.config.gatewayType string",
            "spec.config.private boolean",
            "spec.netID integer",
            "spec.network string",
            "spec.range.cidr string",
            "spec.range.end string",
            "spec.range.excludeIPs[] string",
            "spec.range.gateway string",
            "spec.range.reservedIPs[] string",
            "spec.range.start string",
            "spec.range.version string",
            "status.available integer",
            "status.lastAllocatedIP string",
            "status.total integer",
            "status.used integer",
        ],
    ),
    (
        "IPInstance",
        "ipinstances",
        "Namespaced",
        "IP Gateway PodName Node Subnet Network",
        &[
            "spec.address.gateway string",
            "spec.address.ip string",
            "spec.address.mac string",
            "spec.address.netID integer",
            "spec.address.version string",
            "spec.binding.nodeName string",
            "spec.binding.podName string",
            "spec.binding.podUID string",
            "spec.binding.referredObject.kind string",
            "spec.binding.referredObject.name string",
            "spec.binding.referredObject.uid string",
            "spec.binding.stateful.index integer",
            "spec.network string",
            "spec.subnet string",
            "status.nodeName string",
            "status.podName string",
            "status.podNamespace string",
            "status.sandboxID string",
            "status.updateTimestamp string",
        ],
    ),
    (
        "NodeInfo",
        "nodeinfoes",
        "Cluster",
        "VTEPIP VTEPMAC VTEPLOCALIPS",
        &[
            "spec.vtepInfo.ip string",
            "spec.vtepInfo.localIPs[] string",
            "spec.vtepInfo.mac string",
            "status.updateTimestamp string",
        ],
    ),
];

/// The mandatory fields of hybridnet's CRDs; Trunkline's CRDs may require fewer.
const REQUIRED: &[&str] = &[
    "Network.spec.config.bgpPeers[]: asn",
    "Subnet.spec: network range",
    "Subnet.spec.range: cidr version",
    "IPInstance.spec: address network subnet",
    "IPInstance.spec.address: ip mac version",
];

fn root(kind: &str) -> Value {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    serde_json::to_value(&crd.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema).unwrap()
}

/// The schema at a path; `[]` is a list's items or a map's values.
fn at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(root, |schema, step| {
        let name = step.trim_end_matches("[]");
        let property = schema.get("properties")?.get(name)?;
        if name == step {
            Some(property)
        } else {
            property.get("items").or(property.get("additionalProperties"))
        }
    })
}

#[test]
fn every_path_of_hybridnets_crds_exists() {
    for (kind, plural, scope, columns, fields) in HYBRIDNET {
        let crd = crds().into_iter().find(|crd| crd.spec.names.kind == *kind).unwrap();
        assert_eq!((&*crd.spec.names.plural, &*crd.spec.scope), (*plural, *scope));
        assert_eq!(crd.metadata.name, Some(format!("{plural}.networking.alibaba.com")));
        let version = &crd.spec.versions[0];
        assert!(version.name == "v1" && version.storage && version.served);
        assert!(version.subresources.as_ref().unwrap().status.is_some());
        let ours: Vec<&str> =
            version.additional_printer_columns.iter().flatten().map(|column| &*column.name).collect();
        assert!(ours.join(" ").starts_with(columns), "{kind}: {ours:?}");
        let root = root(kind);
        for field in *fields {
            let (path, kind_of) = field.split_once(' ').unwrap();
            let schema = at(&root, path).unwrap_or_else(|| panic!("{kind}.{path} is missing"));
            assert_eq!(schema["type"], *kind_of, "{kind}.{path}");
        }
    }
}

#[test]
fn no_field_is_required_that_hybridnet_omits() {
    fn walk(path: &str, schema: &Value, required_fields: &mut Vec<String>) {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !required.is_empty() {
            required_fields.push(format!("{path}: {}", required.join(" ")));
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), inner, required_fields);
        }
        if schema["items"].is_object() {
            walk(&format!("{path}[]"), &schema["items"], required_fields);
        }
    }
    for (kind, .., fields) in HYBRIDNET {
        let mut required_fields = Vec::new();
        walk(kind, &root(kind), &mut required_fields);
        // Only objects that hybridnet has too are checked. Other objects may have required fields,
        // because no resource written by hybridnet contains such an object.
        for one in &required_fields {
            let path = one.split(": ").next().unwrap().strip_prefix(kind).unwrap().trim_start_matches('.');
            let known = path.is_empty() || fields.iter().any(|field| field.starts_with(&format!("{path}.")));
            let allowed = REQUIRED.contains(&one.as_str()) || *one == format!("{kind}: spec");
            assert!(!known || allowed, "{one}");
        }
    }
}

#[test]
fn numbers_are_as_wide_as_they_must_be() {
    let network = root("Network");
    for path in ["spec.netID", "spec.config.bgpPeers[].asn"] {
        let schema = at(&network, path).unwrap();
        assert_eq!(
            (&schema["format"], schema["maximum"].as_f64()),
            (&Value::from("int64"), Some(4_294_967_295.0))
        );
    }
}

#[test]
fn each_rule_names_a_field_and_a_fix() {
    let fixes = ["write", "leave", "put", "make", "delete"];
    for rule in rules() {
        assert!(at(&root(rule.kind), &rule.path).is_some(), "{rule:?}");
        assert!(
            fixes.iter().any(|fix| rule.message.contains(fix)) || rule.message.contains("needs"),
            "{}",
            rule.message
        );
        assert!(!rule.message.contains('\n') && rule.message.len() < 300, "{}", rule.message);
    }
}

#[test]
fn deployed_files_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    for (name, text) in manifests() {
        let there = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(there == text, "deploy/crds/{name} is not current: run `cargo lab crds`");
    }
}
