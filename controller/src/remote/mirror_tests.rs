//! The writes and deletions of a mirror, with fake API servers.

use std::convert::Infallible;
use std::sync::Mutex;

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::Value;
use tower::service_fn;
use trunkline_api::resources::RemoteClusterStatus;

use super::super::rows::Mirrored;
use super::*;
use crate::testing::{SentRequest, context};

#[tokio::test(start_paused = true)]
async fn failed_deletions_after_the_retention_are_repeated() {
    let (since, retention) = (Some(Instant::now()), Some(Duration::from_secs(60)));
    let end = Instant::now() + Duration::from_secs(60);
    assert_eq!(Withdrawal::Pending.next(since, retention), Some(end));
    assert_eq!(Withdrawal::Pending.next(None, retention), None);
    assert_eq!(Withdrawal::Pending.next(since, None), None);
    sleep_until(end).await;
    assert_eq!(Withdrawal::after(false).next(since, retention), Some(end + RETRY));
    assert_eq!(Withdrawal::after(true).next(since, retention), None);
}

#[test]
fn slow_plans_are_less_frequent() {
    let milliseconds = Duration::from_millis;
    for (planning, pause) in [(0, 50), (5, 50), (500, 2_000)] {
        assert_eq!(pause_after(milliseconds(planning)), milliseconds(pause));
    }
}

type Sent = Arc<Mutex<Vec<SentRequest>>>;

/// A mirror of `west`, and the requests to its API server, which answers each with a status.
fn mirror(status: u16) -> (Mirror, Sent) {
    let sent = Sent::default();
    let recorded = Arc::clone(&sent);
    let context = context(move |(method, path, body)| {
        let at = path.rsplit('/').next().unwrap_or_default().to_owned();
        recorded.lock().unwrap().push((method.clone(), at, body.clone()));
        (status, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": status}))
    });
    let row = RemoteClusterRow {
        uid: "uid".into(),
        generation: None,
        spec: Err(String::new()),
        status: RemoteClusterStatus::default(),
    };
    let (limits, pace) = (Limits::default(), Mutex::new(Pace::new(Instant::now())));
    (Mirror { name: "west".into(), row: Arc::new(row), context, retention: None, limits, pace }, sent)
}

/// An API server of a cluster with the UUID `u` and these NodeInfos. The watch reports that the first
/// one is deleted.
fn server(nodes: Vec<Value>) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let kind = request.uri().path().rsplit('/').next().unwrap_or_default();
        let objects = match kind {
            "nodeinfoes" => nodes.clone(),
            "namespaces" => vec![json!({"metadata": {"name": "kube-system", "uid": "u"}})],
            _ => Vec::new(),
        };
        let frame = |value: Value| Ok::<_, Infallible>(Frame::data(format!("{value}\n").into()));
        let frames = if is_watch {
            let deleted = objects.first().map(|node| frame(json!({"type": "DELETED", "object": node})));
            stream::iter(deleted).chain(stream::pending()).boxed()
        } else {
            let list = json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": objects});
            stream::iter([frame(list)]).boxed()
        };
        async { Ok::<_, kube::Error>(Response::new(StreamBody::new(frames))) }
    });
    Client::new(service, "default")
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo",
        "metadata": {"name": name, "resourceVersion": "2"},
        "spec": {"vtepInfo": {"ip": "192.0.2.1", "mac": "", "localIPs": []}},
    })
}

#[tokio::test(start_paused = true)]
async fn a_deletion_above_a_limit_causes_new_lists() {
    let (mut mirror, sent) = mirror(200);
    let remote = server(["a", "b", "c"].map(node).to_vec());
    let ended = timeout(RELIST * 2, mirror.mirror(&remote, "u", PATIENCE)).await;
    assert!(ended.is_err(), "a cluster within its limits");
    mirror.limits.nodes = 2;
    sent.lock().unwrap().clear();
    let began = Instant::now();
    let ended = timeout(RELIST * 2, mirror.mirror(&remote, "u", PATIENCE)).await;
    assert!(ended == Ok(None) && began.elapsed() >= RELIST, "{ended:?}");
    let sent = sent.lock().unwrap();
    let written: Vec<&str> = sent.iter().map(|(_, at, _)| at.as_str()).collect();
    assert!(written.contains(&"west.b") && !written.contains(&"west.c"), "{written:?}");
    let status = &sent.iter().find(|(_, at, _)| at == "status").unwrap().2["status"];
    let conditions = status["conditions"].as_array().unwrap();
    let size = conditions.iter().find(|one| one["type"] == condition::SIZE).unwrap();
    assert_eq!((&status["state"], &size["status"]), (&json!("NotReady"), &json!("False")));
    assert!(size["message"].as_str().unwrap().contains("2 NodeInfos"), "{size}");
}

fn accepted(uuid: &str, since: &str) -> Arc<RemoteClusterRow> {
    let checks = [(condition::UUID, Ok(()))];
    let known = RemoteClusterStatus::default();
    let status = status(&known, RemoteClusterState::Ready, Some(uuid.to_owned()), &checks, None, since);
    Arc::new(RemoteClusterRow { uid: "uid".into(), generation: None, spec: Err(String::new()), status })
}

#[tokio::test(start_paused = true)]
async fn the_later_one_of_two_accepted_clusters_writes_nothing() {
    let (mirror, sent) = mirror(200);
    let claims = |east: &str| {
        let mut state = mirror.context.shared.lock();
        state.remote.clusters.set("west".into(), accepted("u", "2026-01-01T00:00:02Z"));
        state.remote.clusters.set("east".into(), accepted(east, "2026-01-01T00:00:01Z"));
    };
    let hour = Duration::from_secs(3600);
    claims("u");
    let remote = server(Vec::new());
    let ended = timeout(hour, mirror.mirror(&remote, "u", PATIENCE)).await;
    assert!(ended.is_ok() && sent.lock().unwrap().is_empty());
    claims("another");
    let ended = timeout(hour, mirror.mirror(&remote, "u", PATIENCE)).await;
    assert!(ended.is_err() && !sent.lock().unwrap().is_empty(), "the status");
}

fn row<S>(spec: S) -> Mirrored<S> {
    Mirrored { cluster: "west".into(), owner: "uid".into(), created: None, spec: Some(spec) }
}

/// A subnet, a node and a slice with these names.
fn plan_of(name: &str) -> Plan {
    let subnet = json!({"range": {"version": "4", "cidr": "10.0.0.0/24"}, "clusterName": "west"});
    let vtep = json!({"clusterName": "west", "nodeName": "n", "ip": "192.0.2.1"});
    let slice = json!({"remoteService": {"cluster": "west", "name": "s", "namespace": "n"},
                       "addressType": "IPv4", "endpoints": [], "ports": []});
    Plan {
        subnets: BTreeMap::from([(format!("{name}.subnet"), serde_json::from_value(subnet).unwrap())]),
        vteps: BTreeMap::from([(format!("{name}.vtep"), serde_json::from_value(vtep).unwrap())]),
        slices: Some(BTreeMap::from([(format!("{name}.slice"), serde_json::from_value(slice).unwrap())])),
        ..Plan::default()
    }
}

fn show(mirror: &Mirror, plan: Plan) {
    let mut state = mirror.context.shared.lock();
    for (name, spec) in plan.subnets {
        state.cluster.remote_subnets.set(name.into(), row(spec));
    }
    for (name, spec) in plan.vteps {
        state.remote.vteps.set(name.into(), row(spec));
    }
    for (name, spec) in plan.slices.unwrap() {
        state.remote.slices.set(name.into(), row(spec));
    }
}

#[tokio::test]
async fn routes_precede_endpoints_and_outlast_them() {
    let (mirror, sent) = mirror(200);
    show(&mirror, plan_of("old"));
    mirror.write_all(&plan_of("new")).await;
    let sent: Vec<_> =
        sent.lock().unwrap().iter().map(|(method, name, _)| format!("{method} {name}")).collect();
    let order = [
        "PATCH new.subnet",
        "PATCH new.vtep",
        "PATCH new.slice",
        "DELETE old.slice",
        "DELETE old.vtep",
        "DELETE old.subnet",
    ];
    assert_eq!(sent, order);
}

#[test]
fn names_of_remote_clusters_are_dns_labels() {
    assert_eq!(name_fault("west-1"), None);
    for name in ["west.a", &"a".repeat(64)] {
        assert!(name_fault(name).is_some_and(|fault| fault.starts_with("metadata.name: ")));
    }
}

#[tokio::test]
async fn a_label_with_a_long_value_is_left_out() {
    let (mirror, sent) = mirror(200);
    let mut plan = plan_of("new");
    let long = "n".repeat(64);
    plan.vteps.values_mut().next().unwrap().node_name = long.clone();
    mirror.write_all(&plan).await;
    let bodies: Vec<Value> = sent.lock().unwrap().iter().map(|(_, _, body)| body.clone()).collect();
    let vtep = bodies.iter().find(|body| body["kind"] == "RemoteVtep").unwrap();
    assert_eq!(vtep["metadata"]["labels"], json!({"networking.alibaba.com/cluster": "west"}));
    assert_eq!(vtep["spec"]["nodeName"], long);
}

#[tokio::test]
async fn failed_deletions_are_reported() {
    let (mirror, sent) = mirror(500);
    show(&mirror, plan_of("old"));
    assert!(matches!(mirror.withdraw(Withdrawal::Pending).await, Withdrawal::Failed(_)));
    let deletions = sent.lock().unwrap().iter().filter(|(method, ..)| method == "DELETE").count();
    assert!(deletions >= 3, "{deletions}");
    let orphans = orphans(&mut mirror.context.shared.lock());
    assert!(!orphans.is_empty() && !delete(&mirror.context, orphans).await);
}

#[tokio::test(start_paused = true)]
async fn objects_that_alternate_are_written_at_the_pace() {
    let (mirror, sent) = mirror(200);
    let mut reported = Reported::default();
    let plan_with = |number: u32| {
        let vtep = |node: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
            let vtep =
                json!({"clusterName": "west", "nodeName": "n", "ip": "192.0.2.1", "localIPs": [address]});
            (format!("west.n{node}"), serde_json::from_value(vtep).unwrap())
        };
        let refused = (0..100).map(|subnet| (format!("s{subnet}"), format!("reason {number}"))).collect();
        Plan { vteps: (0..10).map(vtep).collect(), refused, ..Plan::default() }
    };
    // For 100 s, all nodes and all reasons change in each 50 ms.
    for number in 0..2_000 {
        let written = mirror.write(&plan_with(number), "u", None, &mut reported).await;
        assert!(!written.is_too_fast);
        sleep(COALESCE).await;
    }
    let count = |at: &str| sent.lock().unwrap().iter().filter(|(_, name, _)| name == at).count();
    // 20 at once, and then one in 3 s.
    assert!((50..=54).contains(&count("west.n1")), "{}", count("west.n1"));
    assert!((19..=21).contains(&count("status")), "{}", count("status"));
    // The last change is written, too.
    let waiting = mirror.write(&plan_with(2_000), "u", None, &mut reported).await;
    assert!(
        waiting.delayed == 10
            && waiting.later.is_some_and(|at| at <= Instant::now() + Duration::from_secs(5))
    );
    sleep(Duration::from_secs(5)).await;
    assert_eq!(mirror.write(&plan_with(2_000), "u", None, &mut reported).await.delayed, 0);
}
