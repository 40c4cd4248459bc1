//! Pods that arrive before a change of their Namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use serde_json::{Value, json};
use trunkline_api::names::annotation::SPECIFIED_SUBNET;

use super::pod;
use super::written_tests::{Leader, key, leader_with_namespaces, stateful_pod};
use crate::cluster::{NamespaceRow, NodeRow, PodRow};
use crate::testing::SentRequest;

/// Namespace `default` in a version, with a Subnet for its pods.
fn namespace(version: &str, subnet: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "default", "resourceVersion": version, "annotations": {SPECIFIED_SUBNET: subnet}},
    })
}

fn list(namespace: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "9"},
        "items": [namespace],
    })
}

fn row(namespace: &Value) -> NamespaceRow {
    NamespaceRow::of(&serde_json::from_value(namespace["metadata"].clone()).unwrap())
}

/// The API server creates each object.
fn create((_, _, body): &SentRequest) -> (u16, Value) {
    let mut object = body.clone();
    object["metadata"]["uid"] = "i".into();
    object["metadata"]["resourceVersion"] = "12".into();
    (201, object)
}

/// A leader with Subnets `sub` and `other`, whose watch has shown the Namespace with Subnet `sub`.
fn prepare(leader: &Leader) {
    leader.with(|state| {
        state.set_node(&"n1".into(), NodeRow::default());
        let other = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": "other"},
            "spec": {"network": "net", "range": {"version": "4", "cidr": "10.1.0.0/24"}},
        });
        state.set_subnet(&"other".into(), serde_json::from_value(other).unwrap());
        state.set_namespace(&"default".into(), row(&namespace("3", "sub")));
    });
}

fn add_pod(leader: &Leader, name: &str) {
    let pod = PodRow { owner: None, uid: name.into(), ..stateful_pod(&[]) };
    leader.with(|state| state.set_pod(&key(name), pod));
}

/// The Subnets of the IPInstances that were created.
fn subnets(leader: &Leader) -> Vec<String> {
    leader
        .sent()
        .iter()
        .filter_map(|(_, _, body)| Some(body["spec"]["subnet"].as_str()?.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_new_pod_gets_addresses_by_its_current_namespace() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let current = list(&namespace("5", "other"));
    let answer = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        (200, current.clone())
    };
    let leader = leader_with_namespaces(answer, create);
    prepare(&leader);
    let names: Vec<String> = (0..50).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| add_pod(&leader, name));
    let all = names.iter().map(|name| pod::reconcile(leader.context.clone(), key(name)));
    assert!(join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(subnets(&leader), vec!["other"; 50]);
    assert_eq!(reads.load(Ordering::Relaxed), 1, "one read for all pods that had arrived");

    // The watch shows an earlier version only now.
    leader.with(|state| state.set_namespace(&"default".into(), row(&namespace("4", "sub"))));
    add_pod(&leader, "late");
    assert!(pod::reconcile(leader.context.clone(), key("late")).await.is_ok());
    assert_eq!((subnets(&leader), reads.load(Ordering::Relaxed)), (vec!["other".to_owned()], 2));
    assert!(pod::reconcile(leader.context.clone(), key("late")).await.is_ok());
    assert_eq!(reads.load(Ordering::Relaxed), 2, "it has its addresses");
}

#[tokio::test]
async fn a_pod_waits_while_its_namespace_cannot_be_read() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let answer = move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => (500, json!({"kind": "Status", "status": "Failure", "code": 500, "message": "later"})),
        _ => (200, list(&namespace("5", "other"))),
    };
    let leader = leader_with_namespaces(answer, create);
    prepare(&leader);
    add_pod(&leader, "web");
    let failed = pod::reconcile(leader.context.clone(), key("web")).await.unwrap_err();
    assert_eq!((failed.reason(), subnets(&leader).len()), ("unanswered", 0));
    assert!(pod::reconcile(leader.context.clone(), key("web")).await.is_ok());
    assert_eq!(subnets(&leader), ["other"]);
}

/// A Namespace that was deleted and created again: the end of the former one arrives after the read.
#[tokio::test]
async fn an_earlier_deletion_leaves_a_newer_namespace() {
    let leader = leader_with_namespaces(|| (404, Value::Null), create);
    prepare(&leader);
    leader.with(|state| {
        state.remove_namespace("default", 2);
        assert!(state.cluster.namespace("default").is_some());
        state.remove_namespace("default", 3);
        assert!(state.cluster.namespace("default").is_none());
    });
}
