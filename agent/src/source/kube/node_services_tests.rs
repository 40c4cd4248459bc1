//! Tests of the writes against a fake API server, in virtual time.

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;
use trunkline_api::control::{ProxyRulesState, WithheldReason};
use trunkline_api::resources::{LabelSelector, NodeServiceAddress};

use super::super::config::Connection;
use super::super::parts;
use super::*;
use crate::services::{Counts, ProxyHealth, ProxyState, Summary};

/// The API server.
#[derive(Default)]
struct Server {
    has_kind: bool,
    has_object: bool,
    /// `object` or `status`, with the time and the body of the write.
    writes: Vec<(&'static str, Instant, Value)>,
    /// The pages of a list.
    pages: Vec<Value>,
}

impl Server {
    fn answer(&mut self, request: &Request<Body>, body: Value) -> (u16, Value) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if request.method() == "GET" {
            let page = usize::from(query.contains("continue=more"));
            return (200, self.pages[page].clone());
        }
        assert_eq!(request.method(), "PATCH");
        assert!(query.contains("fieldManager=trunkline-agent") && query.contains("force=true"), "{query}");
        let part = if path.ends_with("/nodeservices/n1/status") { "status" } else { "object" };
        self.writes.push((part, Instant::now(), body.clone()));
        if !self.has_kind || (part == "status" && !self.has_object) {
            let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "message": "not found", "reason": "NotFound"});
            return (404, refusal);
        }
        self.has_object = true;
        (200, body)
    }
}

fn connection(server: &Arc<Mutex<Server>>) -> Connection {
    let server = Arc::clone(server);
    let service = service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap_or_default();
            let request = Request::from_parts(head, Body::empty());
            let (code, answer) = server.lock().unwrap().answer(&request, body);
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    let client = Client::new(service, "default");
    Connection { client, server: "fake".to_owned(), host: String::new(), namespace: "default".to_owned() }
}

fn status(addresses: &[&str]) -> NodeServicesStatus {
    let service = |address: &&str| NodeServiceAddress {
        address: (*address).to_owned(),
        state: AdvertisementState::Advertised,
        reason: None,
        advertisements: Vec::new(),
    };
    NodeServicesStatus { services: addresses.iter().map(service).collect(), ..NodeServicesStatus::default() }
}

fn summary(known: bool, number: u64) -> Summary {
    let advertised = (AdvertisementState::Advertised, false);
    Summary {
        known,
        counts: Counts { addresses: [(advertised, number)].into(), ..Counts::default() },
        proxy: ProxyState { health: ProxyHealth::Up, rules: Some(ProxyRulesState::Nftables) },
        late_since: None,
    }
}

#[tokio::test(start_paused = true)]
async fn changes_are_written_together_and_the_kind_may_come_late() {
    let server = Arc::new(Mutex::new(Server::default()));
    let cluster = parts("n1", connection(&server), LabelSelector::default()).cluster;
    let content = watch::Sender::new(status(&["10.9.0.1"]));
    let summaries = watch::Sender::new(summary(false, 0));
    let services = Services::answering(content.subscribe(), summaries.subscribe());
    let (uids, uid) = watch::channel(None);
    let task = tokio::spawn(follow(NodeServicesDependencies {
        node: "n1".to_owned(),
        cluster,
        reported: ReportedServices { services, anycast: Anycast::default() },
        metrics: Metrics::new().unwrap(),
        uid,
    }));
    let take = || std::mem::take(&mut server.lock().unwrap().writes);
    let parts = |writes: &[(&'static str, Instant, Value)]| -> Vec<&'static str> {
        writes.iter().map(|(part, ..)| *part).collect()
    };
    sleep(Duration::from_secs(30)).await;
    summaries.send_replace(summary(true, 1));
    sleep(Duration::from_secs(30)).await;
    assert!(take().is_empty(), "the Node is not known");
    uids.send_replace(Some("u1".to_owned()));
    sleep(Duration::from_secs(60)).await;
    let tries = take();
    assert!(
        (2..=3).contains(&tries.len()) && parts(&tries).iter().all(|part| *part == "object"),
        "{tries:?}"
    );

    server.lock().unwrap().has_kind = true;
    sleep(ABSENT).await;
    let writes = take();
    assert_eq!(parts(&writes), ["object", "status"]);
    let owner = &writes[0].2["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &json!("u1")));
    assert_eq!(writes[1].2["status"]["services"][0]["address"], "10.9.0.1");

    // A change of the numbers that is no change of the contents.
    summaries.send_replace(summary(true, 2));
    sleep(Duration::from_secs(30)).await;
    assert!(take().is_empty());

    let began = Instant::now();
    for number in 0..200_u64 {
        content.send_replace(status(&["10.9.0.1", &format!("10.9.1.{number}")]));
        summaries.send_replace(summary(true, number));
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(10)).await;
    let writes = take();
    assert!(parts(&writes).iter().all(|part| *part == "status"));
    assert!((3..=6).contains(&writes.len()), "{} writes in {:?}", writes.len(), began.elapsed());
    assert!(writes.windows(2).all(|pair| pair[1].1 - pair[0].1 >= APART), "{writes:?}");
    assert_eq!(writes.last().unwrap().2["status"]["services"][1]["address"], "10.9.1.199");

    server.lock().unwrap().has_object = false;
    content.send_replace(status(&[]));
    summaries.send_replace(summary(true, 0));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(parts(&take()), ["status", "object", "status"], "the object was deleted");
    uids.send_replace(Some("u2".to_owned()));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(parts(&take()), ["object", "status"], "the Node was created again");
    drop(summaries);
    task.await.unwrap();
}

#[tokio::test]
async fn the_advertising_nodes_are_in_all_pages() {
    let object = |name: &str, services: Value| {
        json!({"apiVersion": "trunkline.io/v1alpha1", "kind": "NodeServices",
            "metadata": {"name": name}, "status": {"services": services}})
    };
    let address = |address: &str| json!({"address": address, "state": "advertised"});
    let page = |token: Value, items: Value| {
        json!({"apiVersion": "trunkline.io/v1alpha1", "kind": "NodeServicesList", "metadata": {"continue": token},
            "items": items})
    };
    let first = [object("n1", json!([address("10.9.0.1"), address("10.9.0.2")])), object("n2", json!([]))];
    let broken = object("n4", json!("none"));
    let last = [object("n3", json!([address("10.9.0.1"), address("nothing")])), broken];
    let pages = vec![page(json!("more"), json!(first)), page(Value::Null, json!(last))];
    let server = Arc::new(Mutex::new(Server { pages, ..Server::default() }));
    let cluster = parts("n1", connection(&server), LabelSelector::default()).cluster;
    let wanted: IpAddr = "10.9.0.1".parse().unwrap();
    let found = advertising(&cluster, &[wanted].into()).await.unwrap();
    let nodes = ["n1", "n3"].map(str::to_owned);
    assert_eq!(found, [(wanted, nodes.into())].into());
}

#[test]
fn an_anycast_address_shows_its_first_fault() {
    let address = |state, reason, check: &str| AnycastAddressStatus {
        address: "192.0.2.53".parse().unwrap(),
        state,
        reason,
        healthy: None,
        text: String::new(),
        check: check.to_owned(),
        since_seconds: 0,
    };
    let good = address(AdvertisementState::Advertised, None, "passed");
    let unhealthy = Some(WithheldReason::Unhealthy);
    let bad = address(AdvertisementState::Withheld, unhealthy, "connection refused");
    let object = |refused: Option<&str>, addresses: &[&AnycastAddressStatus]| {
        let addresses = addresses.iter().map(|address| (*address).clone()).collect();
        let status = AnycastStatus { name: "dns".to_owned(), refused: refused.map(str::to_owned), addresses };
        let NodeAnycastAddress { state, reason, check, .. } = anycast_address(&status);
        (state, reason, check)
    };
    let shown = |address: &AnycastAddressStatus| (address.state, address.reason, address.check.clone());
    assert_eq!(object(None, &[&good, &good]), shown(&good));
    assert_eq!(object(None, &[&good, &bad]), shown(&bad));
    let refused = (AdvertisementState::Withheld, None, "spec.check: …".to_owned());
    assert_eq!(object(Some("spec.check: …"), &[]), refused);
}
