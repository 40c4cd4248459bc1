//! Rows of objects that a hostile tenant writes.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trunkline_api::kept::{MAX_LABELS, MAX_NETWORKING};
use trunkline_api::resources::LabelSelector;

use super::pod::Pod;
use super::{Interner, NamespaceRow, PodRow};

/// The octets of a row's texts, and a few more.
fn size(row: &impl std::fmt::Debug) -> usize {
    format!("{row:?}").len()
}

/// Labels with a prefix, of about this number of octets.
fn labels(prefix: &str, octets: usize) -> BTreeMap<String, String> {
    let value = "x".repeat(63);
    (0..octets / 100).map(|number| (format!("{prefix}{number:06}"), value.clone())).collect()
}

fn row(metadata: Value, interner: &mut Interner) -> PodRow {
    let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": "n1"}})).unwrap();
    PodRow::of(&pod, &LabelSelector::default(), interner)
}

#[test]
fn pods_with_large_labels_and_annotations_cost_little() {
    let large = labels("networking.alibaba.com/", 1_300_000);
    let mut interner = Interner::default();
    let mut total = 0;
    for number in 0..60 {
        let metadata = json!({
            "name": format!("p{number}"), "namespace": "tenant", "uid": "u", "labels": large,
            "annotations": {
                "networking.alibaba.com/ip-pool": "10.0.0.1,".repeat(20_000),
                "networking.alibaba.com/anything": "x".repeat(60_000),
            },
            "ownerReferences": [{"apiVersion": format!("{}/v{number}", "x".repeat(50_000)), "kind": "K".repeat(50_000),
                "name": "n".repeat(200_000), "uid": "u".repeat(100_000), "controller": true}],
        });
        let row = row(metadata, &mut interner);
        assert!(row.networking.too_large.is_some() && row.owner.is_none());
        total += size(&row);
    }
    assert!(total < 1 << 20, "60 pods cost {total} octets");
}

#[test]
fn values_within_the_bound_are_kept_and_others_refused() {
    let name = "networking.alibaba.com/ip-pool";
    let most = MAX_NETWORKING - name.len();
    for (octets, is_kept) in [(most, true), (most + 1, false)] {
        let row = row(
            json!({"name": "p", "annotations": {name: "x".repeat(octets)}, "labels": labels("a/", 500_000)}),
            &mut Interner::default(),
        );
        assert_eq!(row.networking.annotations.contains_key(name), is_kept);
        let fault = row.networking.size_fault("Pod", "p").map(|fault| fault.to_string());
        let text = format!(
            "Pod p: metadata.annotations and metadata.labels about networks: {} octets are set, and at most 32768 \
             are allowed: write fewer or shorter values",
            MAX_NETWORKING + 1
        );
        assert_eq!(fault, (!is_kept).then_some(text));
    }
}

#[test]
fn namespaces_with_large_labels_have_none() {
    for (octets, is_kept) in [(MAX_LABELS / 2, true), (MAX_LABELS * 10, false)] {
        let metadata =
            serde_json::from_value(json!({"name": "n", "labels": labels("team/", octets)})).unwrap();
        let row = NamespaceRow::of(&metadata);
        assert_eq!(row.labels.is_some(), is_kept);
        assert!(size(&row) < 2 * MAX_LABELS, "{}", size(&row));
    }
}
