//! Rows of Services that a hostile tenant writes.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trunkline_api::kept::{MAX_LABELS, MAX_SERVICE_PORTS};
use trunkline_api::names::annotation;

use super::ipam::PoolSelection;
use super::object::Service;
use super::rows::{PoolRow, PoolSettings, ServiceRow};
use crate::cluster::Interner;

fn row(metadata: Value, spec: Value) -> ServiceRow {
    let mut service = json!({"metadata": metadata, "spec": spec});
    service["metadata"]["namespace"] = "tenant".into();
    service["metadata"]["name"] = "web".into();
    service["spec"]["type"] = "LoadBalancer".into();
    let service: Service = serde_json::from_value(service).unwrap();
    ServiceRow::of(&service, &mut Interner::default()).unwrap()
}

#[test]
fn services_above_a_bound_request_nothing_and_cost_little() {
    let labels: BTreeMap<String, String> =
        (0..10_000).map(|number| (format!("team/{number}"), "x".repeat(63))).collect();
    let ports: Vec<Value> = (1..=60_000).map(|port| json!({"port": port})).collect();
    let long = "x".repeat(200_000);
    for (metadata, spec, text) in [
        (json!({"labels": labels}), json!({}), "Service tenant/web: metadata.labels: 7"),
        (
            json!({"annotations": {annotation::POOL: long}}),
            json!({}),
            "metadata.annotations about addresses: 200",
        ),
        (
            json!({"annotations": {"metallb.io/loadBalancerIPs": "10.0.0.1", "metallb.universe.tf/loadBalancerIPs": long}}),
            json!({}),
            "metadata.annotations about addresses: 200",
        ),
        (json!({}), json!({"loadBalancerIP": long}), "metadata.annotations about addresses: 200"),
        (json!({}), json!({"ports": ports}), "spec.ports: has 60000 ports, and at most 4096 are allowed"),
    ] {
        let row = row(metadata, spec);
        let fault = row.request.as_ref().unwrap_err();
        assert!(fault.contains(text), "{fault}");
        assert!(row.labels.is_empty() && row.conflicts.is_empty(), "{text}");
        assert!(row.exposure.ports.as_slice().len() <= MAX_SERVICE_PORTS);
        let texts = ServiceRow { exposure: row.exposure.clone(), ..row };
        let octets = format!("{:?} {:?} {:?}", texts.labels, texts.request, texts.conflicts).len();
        assert!(octets < MAX_LABELS, "{octets}");
    }
    let usual = row(json!({"labels": {"team": "a"}, "annotations": {annotation::POOL: "public"}}), json!({}));
    assert_eq!((usual.pool(), usual.labels.len()), (Some("public"), 1));
}

#[test]
fn without_labels_of_the_namespace_only_pools_for_all_select() {
    let pool = |selectors: Value| PoolRow {
        uid: "p".into(),
        created: None,
        generation: None,
        settings: PoolSettings {
            namespace_selectors: serde_json::from_value(selectors).unwrap(),
            ..PoolSettings::default()
        },
        unreadable: None,
        status: None,
    };
    let none = BTreeMap::new();
    // The selector selects every Namespace without the label.
    let without = json!([{"matchExpressions": [{"key": "guest", "operator": "DoesNotExist"}]}]);
    assert_eq!(pool(json!([])).selection(&none, None), PoolSelection::Selected);
    assert_eq!(pool(without.clone()).selection(&none, Some(&none)), PoolSelection::Selected);
    assert_eq!(pool(without).selection(&none, None), PoolSelection::OtherNamespace);
}
