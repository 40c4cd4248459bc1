//! The tables of `docs/multi-cluster.md` list every field of hybridnet's kinds about several clusters,
//! and match the CRDs.
#![cfg(feature = "kube")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use trunkline_api::kube::crds;
use trunkline_api::names::{MULTICLUSTER_GROUP, annotation, label};
use trunkline_api::resources::RemoteClusterSpec;

const FIELDS: &str = include_str!("fixtures/hybridnet-multicluster-fields.txt");
const PAGE: &str = include_str!("../../docs/multi-cluster.md");

/// Labels and annotations with a name in the code.
const NAMES: [&str; 8] = [
    label::CLUSTER,
    label::SUBNET,
    label::NODE,
    label::REMOTE_CLUSTER,
    label::SERVICE_NAME,
    label::MANAGED_BY,
    annotation::GLOBAL_SERVICE,
    annotation::GLOBAL_SERVICE_AFFINITY,
];

/// A row of a table: the verdict and the meaning.
type Row = (&'static str, &'static str);

/// Whether the code has a name for a label or an annotation.
fn is_named(path: &str) -> bool {
    let name = path.split_once('[').map(|(_, name)| name.trim_end_matches(']'));
    path.starts_with("metadata.") && name.is_some_and(|name| NAMES.contains(&name))
}

/// The fields by kind and path, each with its type in hybridnet.
fn hybridnet() -> BTreeMap<(&'static str, &'static str), &'static str> {
    lines()
        .filter(|[_, path, _]| path.contains('.'))
        .map(|[kind, path, of_type]| ((kind, path), of_type))
        .collect()
}

fn lines() -> impl Iterator<Item = [&'static str; 3]> {
    let lines = FIELDS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(' ').collect::<Vec<_>>().try_into().unwrap())
}

/// The rows of the section "Fields" by kind and path. A row can have several paths.
fn rows() -> BTreeMap<(&'static str, &'static str), Row> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Fields\n")).unwrap();
    let mut rows = BTreeMap::new();
    for of_kind in section.split("\n### ").skip(1) {
        let (kind, text) = of_kind.split_once('\n').unwrap();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let [_, paths, verdict, meaning, _] = line.split('|').map(str::trim).collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            for path in paths.split('`').skip(1).step_by(2) {
                assert!(rows.insert((kind, path), (verdict, meaning)).is_none(), "{kind} {path}: two rows");
            }
        }
    }
    rows
}

/// The schemas of the group, by kind.
fn schemas() -> BTreeMap<String, Value> {
    let of_group = crds().into_iter().filter(|crd| crd.spec.group == MULTICLUSTER_GROUP);
    of_group
        .map(|crd| {
            let schema = crd.spec.versions[0].schema.as_ref().unwrap();
            (crd.spec.names.kind, serde_json::to_value(&schema.open_api_v3_schema).unwrap())
        })
        .collect()
}

/// The fields of a schema that have no fields of their own, each with its type.
fn leaves(schema: &Value, path: &str, found: &mut BTreeMap<String, String>) {
    if let Some(items) = schema.get("items") {
        return leaves(items, &format!("{path}[]"), found);
    }
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, property) in properties {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(property, &path, found);
            }
        }
        None => drop(found.insert(path.to_owned(), schema["type"].as_str().unwrap_or_default().to_owned())),
    }
}

#[test]
fn the_kinds_have_hybridnets_names() {
    let hybridnet: BTreeSet<_> = lines().filter(|[_, plural, _]| !plural.contains('.')).collect();
    let of_group: Vec<_> = crds().into_iter().filter(|crd| crd.spec.group == MULTICLUSTER_GROUP).collect();
    let own: BTreeSet<_> = of_group
        .iter()
        .map(|crd| [&*crd.spec.names.kind, &*crd.spec.names.plural, &*crd.spec.scope])
        .collect();
    assert_eq!(own, hybridnet);
    assert!(of_group.iter().all(|crd| crd.spec.versions[0].name == "v1"));
}

#[test]
fn every_field_of_hybridnet_has_a_row() {
    let rows = rows();
    let missing: Vec<_> = hybridnet().into_keys().filter(|field| !rows.contains_key(field)).collect();
    assert!(missing.is_empty(), "docs/multi-cluster.md, section Fields: no row for {missing:?}");
}

#[test]
fn every_row_is_a_known_field() {
    let hybridnet = hybridnet();
    let mut own = BTreeSet::new();
    for (kind, schema) in schemas() {
        let mut found = BTreeMap::new();
        leaves(&schema, "", &mut found);
        own.extend(found.into_keys().map(|path| (kind.clone(), path)));
    }
    let rows = rows();
    for ((kind, path), (verdict, meaning)) in &rows {
        let is_own = is_named(path) || own.contains(&((*kind).to_owned(), (*path).to_owned()));
        assert!(is_own || hybridnet.contains_key(&(*kind, *path)), "{kind} {path}: no such field");
        assert!(["honoured", "ignored", "refused"].contains(verdict), "{kind} {path}: {verdict}");
        assert!(meaning.ends_with('.'), "{kind} {path}: no meaning");
    }
    for (kind, path) in &own {
        assert!(
            rows.contains_key(&(kind.as_str(), path.as_str())),
            "{kind} {path}: no row for a field of the CRD"
        );
    }
}

#[test]
fn the_crds_have_honoured_and_ignored_fields() {
    let schemas = schemas();
    let rows = rows();
    for ((kind, path), of_type) in hybridnet() {
        let (verdict, _) = rows[&(kind, path)];
        if path.starts_with("metadata.") {
            assert!(is_named(path) || verdict == "ignored", "{kind} {path}: {verdict}");
            continue;
        }
        let schema = schemas.get(kind).unwrap_or_else(|| panic!("{kind}: no CRD"));
        let mut found = BTreeMap::new();
        leaves(schema, "", &mut found);
        match (verdict, found.get(path)) {
            ("refused", None) => {}
            ("honoured" | "ignored", Some(own)) => assert_eq!(own, of_type, "{kind} {path}"),
            (_, own) => panic!("{kind} {path} is {verdict}, and its type in the CRD is {own:?}"),
        }
    }
}

#[test]
fn fields_of_the_old_sample_are_refused_by_name() {
    let (hybridnet, rows) = (hybridnet(), rows());
    let mut known = BTreeMap::new();
    leaves(&schemas()["RemoteCluster"], "", &mut known);
    let mut refused = 0;
    for ((kind, path), _) in hybridnet.iter().filter(|(_, of_type)| **of_type == "sample") {
        let (verdict, meaning) = rows[&(*kind, *path)];
        assert_eq!(verdict, "refused", "{path}");
        let replacement = meaning.split('`').nth(1).unwrap_or_default();
        assert!(known.contains_key(replacement), "{path}: {replacement} is no field");
        let [_, outer, inner] = path.split('.').collect::<Vec<_>>()[..] else { panic!("{path}") };
        let spec = json!({"apiEndpoint": "https://192.0.2.1:6443", outer: {inner: "a"}});
        let error = serde_json::from_value::<RemoteClusterSpec>(spec).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown field `{outer}`")), "{path}: {error}");
        refused += 1;
    }
    assert_eq!(refused, 4);
    assert!(PAGE.contains("`apiVersion` is `multicluster.alibaba.com/v1`."));
}
