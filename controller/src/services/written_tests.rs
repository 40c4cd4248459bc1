//! The writes of the Service reconciler, and their answers.

use std::sync::Mutex;

use serde_json::json;
use trunkline_api::names::annotation;

use super::super::fake::{FakeLeader, Fate, Store, key};
use super::*;

const OURS: &str = "trunkline.io/load-balancer";

fn spec(class: &str) -> Value {
    json!({"type": "LoadBalancer", "loadBalancerClass": class, "ipFamilies": ["IPv4"], "ports": [{"port": 80}]})
}

fn leader(services: &[&str]) -> FakeLeader {
    let store = Arc::new(Mutex::new(Store::default()));
    for (number, name) in services.iter().enumerate() {
        store.lock().unwrap().put_service(name, number as u32, &json!({}), &spec(OURS), json!({}));
    }
    let leader = FakeLeader::new(&store);
    leader.begin(&[("p", json!({"addresses": ["10.0.0.1-10.0.0.3"]}))]);
    leader
}

/// Method and last part of the path of each request.
fn requests(leader: &FakeLeader) -> Vec<String> {
    let requests = std::mem::take(&mut leader.store().requests);
    let text = |(method, path, _): &(String, String, Value)| {
        format!("{method} {}", path.rsplit('/').next().unwrap_or_default())
    };
    requests.iter().map(text).collect()
}

fn waiting(leader: &FakeLeader) -> usize {
    leader.context.shared.lock().services.term.as_ref().unwrap().waiting.len()
}

/// Queues the waiting Services that recent changes may help.
fn queue_waiting(leader: &FakeLeader) {
    leader.context.shared.lock().services.term.as_mut().unwrap().queue_waiting();
}

#[tokio::test]
async fn late_answer_of_a_status_brings_no_service_back() {
    let leader = leader(&["web"]);
    assert_eq!(leader.work("web").await, None);
    let mut state = leader.context.shared.lock();
    let services = &mut state.services;
    let row = services.rows.services.get(&key("web")).unwrap().clone();
    services.rows.services.begin();
    services.learn_service(&key("web"), "web-0", Some(row.clone()));
    assert_eq!(services.rows.services.end(), [key("web")], "the list lacks it");
    services.remove_service(&key("web"));
    services.learn_service(&key("web"), "web-0", Some(row));
    assert_eq!(services.rows.services.get(&key("web")), None);
}

#[tokio::test]
async fn an_address_is_claimed_and_published() {
    let leader = leader(&["web"]);
    assert_eq!(leader.work("web").await, None);
    let sent = leader.store().requests.clone();
    assert_eq!(requests(&leader), ["POST serviceaddresses", "PATCH status"]);
    let claim = &sent[0].2;
    assert_eq!(claim["apiVersion"], "trunkline.io/v1alpha1");
    assert_eq!(claim["metadata"]["name"], "10-0-0-1");
    let services = json!([{"namespace": "default", "name": "web", "uid": "web-0"}]);
    assert_eq!(claim["spec"], json!({"address": "10.0.0.1", "pool": "p", "services": services}));
    let status = &sent[1].2;
    assert_eq!(status["metadata"], json!({"uid": "web-0", "resourceVersion": "1"}));
    assert_eq!(status["status"]["loadBalancer"], json!({"ingress": [{"ip": "10.0.0.1", "ipMode": "VIP"}]}));
    let condition = &status["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("trunkline.io/AddressAllocated"), &json!("True"))
    );
    // Nothing is left to do, with or without the watch.
    assert_eq!(leader.work("web").await, None);
    leader.show_services();
    leader.show_claims();
    assert_eq!(leader.work("web").await, None);
    assert_eq!(requests(&leader), [""; 0]);
}

#[tokio::test]
async fn a_foreign_class_is_left_alone() {
    let leader = leader(&[]);
    for class in ["metallb", ""] {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
        leader.store().put_service("web", 1, &json!({}), &spec(class), status);
        leader.show_services();
        assert_eq!(leader.work("web").await, None);
    }
    assert_eq!((requests(&leader), waiting(&leader)), (vec![], 0));
}

#[tokio::test]
async fn a_lost_answer_is_found_again() {
    for (fate, first, second) in [
        (
            Fate::AnswerLost,
            &["POST serviceaddresses"][..],
            &["POST serviceaddresses", "GET 10-0-0-1", "PATCH status"][..],
        ),
        (Fate::Lost, &["POST serviceaddresses"], &["POST serviceaddresses", "PATCH status"]),
    ] {
        let leader = leader(&["web"]);
        leader.store().fates = [fate].into();
        assert!(leader.work("web").await.is_some());
        assert_eq!(requests(&leader), first);
        assert_eq!(leader.work("web").await, None, "{fate:?}");
        assert_eq!(requests(&leader), second, "{fate:?}");
        assert_eq!(leader.store().ingress("web"), ["10.0.0.1"]);
    }
}

#[tokio::test]
async fn an_unneeded_claim_of_a_lost_answer_is_deleted() {
    let leader = leader(&["web"]);
    leader.store().fates = [Fate::AnswerLost].into();
    assert!(leader.work("web").await.is_some());
    leader.store().services.clear();
    leader.show_services();
    requests(&leader);
    assert_eq!(leader.settle("web").await, None);
    assert_eq!(requests(&leader), ["GET 10-0-0-1", "DELETE 10-0-0-1"]);
    assert!(leader.store().claims.is_empty());
    let state = leader.context.shared.lock();
    let term = state.services.term.as_ref().unwrap();
    assert!(!term.ipam.is_allocated("10.0.0.1".parse().unwrap()));
}

#[tokio::test]
async fn a_claim_of_another_client_costs_another_choice() {
    let leader = leader(&["web"]);
    let other = json!([{"namespace": "shop", "name": "api", "uid": "other"}]);
    leader.store().claims.insert(
        "10-0-0-1".to_owned(),
        json!({"metadata": {"name": "10-0-0-1", "uid": "x", "resourceVersion": "9"},
               "spec": {"address": "10.0.0.1", "pool": "p", "services": other}}),
    );
    assert_eq!(leader.settle("web").await, None);
    let sent = ["POST serviceaddresses", "GET 10-0-0-1", "POST serviceaddresses", "PATCH status"];
    assert_eq!(requests(&leader), sent);
    assert_eq!(leader.store().ingress("web"), ["10.0.0.2"]);
}

#[tokio::test]
async fn shared_addresses_are_joined_and_left() {
    let leader = leader(&[]);
    for (number, name) in ["a", "b"].into_iter().enumerate() {
        let mut spec = spec(OURS);
        spec["ports"][0]["port"] = json!(80 + number);
        let annotations = json!({"annotations": {"trunkline.io/sharing-key": "k"}});
        leader.store().put_service(name, number as u32, &annotations, &spec, json!({}));
    }
    leader.show_services();
    for name in ["a", "b"] {
        assert_eq!(leader.work(name).await, None);
    }
    let sent = ["POST serviceaddresses", "PATCH status", "PATCH 10-0-0-1", "PATCH status"];
    assert_eq!(requests(&leader), sent);
    assert_eq!(leader.store().holders("10.0.0.1").unwrap(), ["a-0", "b-1"]);
    assert_eq!(leader.store().ingress("b"), ["10.0.0.1"]);
    // One Service is deleted, then the other.
    for (name, sent) in [("a", "PATCH 10-0-0-1"), ("b", "DELETE 10-0-0-1")] {
        leader.store().services.remove(&format!("default/{name}"));
        leader.show_services();
        assert_eq!(leader.settle(name).await, None);
        assert_eq!(requests(&leader), [sent]);
    }
    assert_eq!(leader.store().violations, [""; 0]);
}

#[tokio::test]
async fn a_changed_object_is_planned_again() {
    let leader = leader(&["web"]);
    // The Service changes between the plan and its status.
    leader.store().put_service("web", 0, &json!({"labels": {"a": "b"}}), &spec(OURS), json!({}));
    assert_eq!(leader.work("web").await, None);
    assert_eq!(leader.store().ingress("web"), [""; 0]);
    leader.show_services();
    assert_eq!(leader.work("web").await, None);
    assert_eq!(leader.store().ingress("web"), ["10.0.0.1"]);
    // The claim changes before it is deleted.
    leader.store().services.clear();
    leader.show_services();
    leader.store().claims.get_mut("10-0-0-1").unwrap()["metadata"]["resourceVersion"] = "77".into();
    requests(&leader);
    assert_eq!(leader.settle("web").await, None);
    assert_eq!(requests(&leader), ["DELETE 10-0-0-1", "GET 10-0-0-1", "DELETE 10-0-0-1"]);
}

#[tokio::test]
async fn a_waiting_service_gets_the_next_free_address() {
    let leader = leader(&["a", "b", "c", "late"]);
    for name in ["a", "b", "c"] {
        assert_eq!(leader.work(name).await, None);
    }
    let error = leader.work("late").await.unwrap();
    let text = "no IPv4 address for default/late: ServicePool p has 0 of 3 free: add addresses to it, or delete a \
        Service";
    assert!(error.contains(text), "{error}");
    let condition = leader.store().services["default/late"]["status"]["conditions"][0].clone();
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("Exhausted"), &json!(text)));
    assert_eq!(waiting(&leader), 1);
    leader.store().services.remove("default/b");
    leader.show_services();
    assert_eq!(leader.settle("b").await, None);
    queue_waiting(&leader);
    assert_eq!(waiting(&leader), 0, "it is queued again");
    assert_eq!(leader.work("late").await, None);
    assert_eq!(leader.store().ingress("late"), ["10.0.0.2"]);
}

#[tokio::test]
async fn a_free_address_retries_the_services_of_its_pool() {
    let store = Arc::new(Mutex::new(Store::default()));
    for (number, (name, pool)) in
        [("a", "p"), ("b", "q"), ("late-p", "p"), ("late-q", "q")].iter().enumerate()
    {
        let metadata = json!({"annotations": {annotation::POOL: pool}});
        store.lock().unwrap().put_service(name, number as u32, &metadata, &spec(OURS), json!({}));
    }
    let leader = FakeLeader::new(&store);
    leader.begin(&[
        ("p", json!({"addresses": ["10.0.0.1-10.0.0.1"]})),
        ("q", json!({"addresses": ["10.0.1.1-10.0.1.1"]})),
    ]);
    for (name, gets) in [("a", true), ("b", true), ("late-p", false), ("late-q", false)] {
        assert_eq!(leader.work(name).await.is_none(), gets, "{name}");
    }
    let retries = || leader.context.shared.lock().services.term.as_ref().unwrap().queues.retries.depth();
    let waits = |name: &str| {
        leader.context.shared.lock().services.term.as_ref().unwrap().waiting.contains(&key(name))
    };
    // A tenant changes a Service that shares its address with no other.
    for port in 1..100 {
        let mut changed = spec(OURS);
        changed["ports"] = json!([{"port": port}]);
        leader.store().put_service(
            "a",
            0,
            &json!({"annotations": {annotation::POOL: "p"}}),
            &changed,
            json!({}),
        );
        leader.show_services();
    }
    queue_waiting(&leader);
    assert_eq!((waiting(&leader), retries()), (2, 0));
    leader.store().services.remove("default/a");
    leader.show_services();
    assert_eq!(leader.settle("a").await, None);
    assert_eq!(retries(), 1);
    queue_waiting(&leader);
    assert!(!waits("late-p") && waits("late-q"));
}

#[tokio::test]
async fn a_service_of_another_type_loses_address_and_condition() {
    let leader = leader(&["web"]);
    leader.work("web").await;
    let mut status = leader.store().services["default/web"]["status"].clone();
    status["loadBalancer"] = json!({});
    let cluster_ip = json!({"type": "ClusterIP", "ipFamilies": ["IPv4"], "ports": [{"port": 80}]});
    leader.store().put_service("web", 0, &json!({}), &cluster_ip, status);
    leader.show_services();
    requests(&leader);
    assert_eq!(leader.settle("web").await, None);
    assert_eq!(requests(&leader), ["PATCH status", "DELETE 10-0-0-1"]);
    assert_eq!(leader.store().services["default/web"]["status"]["conditions"], json!([]));
    assert!(leader.context.shared.lock().services.rows.services.get(&key("web")).is_none());
}
