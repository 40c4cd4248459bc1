//! Statuses of claims, and the numbers for the metrics.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use trunkline_api::kube::NodeServicesObject;

use super::super::advertised::NodeServicesRow;
use super::super::endpoints::{EndpointSlice, SliceRow};
use super::super::fake::{FakeLeader, Store, key};
use super::super::tally::{Tally, Unadvertised};
use super::*;
use crate::cluster::NodeRow;

const OURS: &str = "trunkline.io/load-balancer";

/// A leader with these Services, each with an address.
async fn leader(services: &[&str]) -> FakeLeader {
    let store = Arc::new(Mutex::new(Store::default()));
    for (number, name) in services.iter().enumerate() {
        let spec = json!({
            "type": "LoadBalancer", "loadBalancerClass": OURS, "ipFamilies": ["IPv4"], "ports": [{"port": 80}],
        });
        store.lock().unwrap().put_service(name, number as u32, &json!({}), &spec, json!({}));
    }
    let leader = FakeLeader::new(&store);
    leader.begin(&[("p", json!({"addresses": ["10.0.0.1-10.0.0.9"]}))]);
    for name in services {
        assert_eq!(leader.settle(name).await, None);
    }
    leader.store().requests.clear();
    leader
}

/// The watch shows a NodeServices; none: its deletion.
fn node(leader: &FakeLeader, name: &str, addresses: Option<&[&str]>) {
    let row = addresses.map(|addresses| {
        let service = |address: &&str| json!({"address": address, "state": "advertised"});
        let services: Vec<Value> = addresses.iter().map(service).collect();
        let object: NodeServicesObject = serde_json::from_value(
            json!({"metadata": {"name": name, "uid": "u"}, "status": {"services": services}}),
        )
        .unwrap();
        NodeServicesRow::of(&object)
    });
    let mut state = leader.context.shared.lock();
    let exists = state.cluster.node(name).is_some();
    state.services.set_node_services(&name.into(), row, exists);
}

fn endpoint(leader: &FakeLeader, service: &str, ready: bool) {
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": [{"conditions": {"ready": ready}}],
    }))
    .unwrap();
    let row = SliceRow::of(&slice, "default");
    leader.context.shared.lock().services.set_slice(&key(service), row);
}

fn listed(leader: &FakeLeader) {
    let mut state = leader.context.shared.lock();
    let services = &mut state.services;
    assert!(services.advertised.nodes.end().is_empty() && services.endpoints.slices.end().is_empty());
    services.reports_changed();
}

/// Number of nodes, status and reason in the API server.
async fn status(leader: &FakeLeader, address: &str) -> Value {
    reconcile(leader.context.clone(), address.parse().unwrap()).await.unwrap();
    let status = leader.store().claims[&address.replace('.', "-")]["status"].clone();
    let condition = &status["conditions"][0];
    json!([status["nodes"], condition["status"], condition["reason"]])
}

fn tally(leader: &FakeLeader, seconds: u64) -> Tally {
    let now = Instant::now() + Duration::from_secs(seconds);
    leader.context.shared.lock().services.tally(now).unwrap()
}

#[tokio::test]
async fn a_claim_shows_whether_nodes_advertise_it() {
    let leader = leader(&["web", "api"]).await;
    let none = json!([null, null, null]);
    assert_eq!(status(&leader, "10.0.0.1").await, none, "nothing is known");
    listed(&leader);
    assert_eq!(status(&leader, "10.0.0.1").await, none, "no agent writes a NodeServices");
    assert_eq!(tally(&leader, 0).advertised, None);
    node(&leader, "n1", Some(&[]));
    assert_eq!(status(&leader, "10.0.0.1").await, json!([0, "False", "NoEndpoint"]));
    endpoint(&leader, "web", true);
    assert_eq!(status(&leader, "10.0.0.1").await, json!([0, "False", "NoNode"]));
    let of = |unadvertised, without_endpoint| Some(Unadvertised { unadvertised, without_endpoint });
    assert_eq!(tally(&leader, 0).advertised, None, "at most one pass in a second");
    assert_eq!(tally(&leader, 2), Tally { allocated: 2, conflicts: 0, advertised: of(1, 1) });
    node(&leader, "n1", Some(&["10.0.0.1", "10.0.0.2"]));
    node(&leader, "n2", Some(&["10.0.0.1"]));
    assert_eq!(status(&leader, "10.0.0.1").await, json!([2, "True", "NodesAdvertise"]));
    // An advertisement without an endpoint is counted, too.
    assert_eq!(tally(&leader, 4).advertised, of(0, 1));
    endpoint(&leader, "api", true);
    assert_eq!(tally(&leader, 6).advertised, of(0, 0));
    node(&leader, "n2", None);
    assert_eq!(status(&leader, "10.0.0.1").await, json!([1, "True", "NodesAdvertise"]));

    // Without a change nothing is written, and a written status causes no plan.
    leader.store().requests.clear();
    assert_eq!(status(&leader, "10.0.0.1").await, json!([1, "True", "NodesAdvertise"]));
    assert!(leader.store().requests.is_empty());
    assert_eq!(leader.settle("web").await, None);
    let queues = Arc::clone(&leader.context.shared.lock().services.term.as_ref().unwrap().queues);
    let planned = queues.services.depth();
    leader.show_claims();
    node(&leader, "n1", Some(&[]));
    assert_eq!(status(&leader, "10.0.0.1").await, json!([0, "False", "NoNode"]));
    assert_eq!(queues.services.depth(), planned);
    assert!(leader.store().violations.is_empty());
}

#[tokio::test]
async fn changes_queue_the_claims_that_they_concern() {
    let leader = leader(&["web", "api"]).await;
    listed(&leader);
    node(&leader, "n1", Some(&[]));
    let queues = Arc::clone(&leader.context.shared.lock().services.term.as_ref().unwrap().queues);
    let drained = async || {
        let mut taken = Vec::new();
        let work = queues.claims.work(1, |address| {
            taken.push(address.to_string());
            async { Ok::<(), ()>(()) }
        });
        let _ = tokio::time::timeout(Duration::from_millis(50), work).await;
        taken.sort_unstable();
        taken
    };
    assert_eq!(drained().await, ["10.0.0.1", "10.0.0.2"]);
    node(&leader, "n1", Some(&["10.0.0.2", "192.0.2.1"]));
    assert_eq!(drained().await, ["10.0.0.2"], "an address without a claim has no status");
    endpoint(&leader, "web", true);
    assert_eq!(drained().await, ["10.0.0.1"]);
    endpoint(&leader, "web", true);
    assert!(drained().await.is_empty());
    node(&leader, "n1", None);
    assert_eq!(drained().await, ["10.0.0.1", "10.0.0.2"], "no agent writes any more");
}

#[tokio::test]
async fn node_services_of_a_missing_node_are_deleted() {
    let leader = leader(&["web"]).await;
    let requests = || {
        let requests = std::mem::take(&mut leader.store().requests);
        let text = |(method, path, _): &(String, String, Value)| {
            format!("{method} {}", path.rsplit('/').next().unwrap_or_default())
        };
        requests.iter().map(text).collect::<Vec<String>>()
    };
    let remove = async || remove_node_services(leader.context.clone(), "n1".into()).await.unwrap();
    let queues = Arc::clone(&leader.context.shared.lock().services.term.as_ref().unwrap().queues);
    remove().await;
    assert_eq!((requests(), queues.nodes.depth()), (Vec::new(), 0), "there is none");
    node(&leader, "n1", Some(&[]));
    assert_eq!(queues.nodes.depth(), 1);
    leader.store().nodes.insert("n1".to_owned());
    remove().await;
    assert_eq!(requests(), ["GET nodes"], "the watch shows the Node later");
    let object = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    leader.context.shared.lock().set_node(&"n1".into(), NodeRow::of(&object));
    remove().await;
    assert!(requests().is_empty());
    leader.store().nodes.clear();
    leader.context.shared.lock().remove_node(&"n1".into());
    remove().await;
    assert_eq!(requests(), ["GET nodes", "DELETE n1"]);
}
