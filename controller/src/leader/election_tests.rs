//! Election tests in virtual time, against an API server with one Lease.

use std::sync::{Arc, Mutex};

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::service_fn;

use super::*;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// An API server with the Lease and its watch.
#[derive(Default)]
struct Server {
    lease: Value,
    version: u64,
    watch: Option<mpsc::UnboundedSender<Value>>,
    /// A rival that writes the Lease just before the next write arrives.
    rival: Option<&'static str>,
}

impl Server {
    /// A server whose Lease this holder has left.
    fn held_by(holder: &str) -> Server {
        let mut server = Server::default();
        server.put(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 4},
        }));
        server
    }

    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = lease.clone();
        if let Some(watch) = &self.watch {
            let _ = watch.send(json!({"type": "MODIFIED", "object": lease}));
        }
        lease
    }

    fn answer(&mut self, method: &str, query: &str, body: Value) -> (u16, Body) {
        let whole =
            |value: Value| Full::from(value.to_string()).map_err(|never| match never {}).boxed_unsync();
        if method == "GET" && query.contains("watch=true") {
            let (sender, changes) = mpsc::unbounded_channel::<Value>();
            if !query.contains(&format!("resourceVersion={}", self.version)) {
                let _ = sender.send(json!({"type": "MODIFIED", "object": self.lease}));
            }
            self.watch = Some(sender);
            let lines = stream::unfold(changes, |mut changes| async {
                let line = format!("{}\n", changes.recv().await?);
                Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))), changes))
            });
            return (200, StreamBody::new(lines).boxed_unsync());
        }
        if method == "GET" {
            let list = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList",
                "metadata": {"resourceVersion": self.version.to_string()}, "items": [self.lease],
            });
            return (200, whole(list));
        }
        if let Some(rival) = self.rival.take() {
            let mut lease = self.lease.clone();
            lease["spec"]["holderIdentity"] = rival.into();
            self.put(lease);
        }
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"] {
            let conflict = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
            return (409, whole(conflict));
        }
        (200, whole(self.put(body)))
    }
}

/// Runs an election for the process `me`, whose earlier writes are settled at second `settled`.
/// Returns the second at which it leads, and the Lease.
async fn elected(server: Server, settled: u64) -> (u64, Value) {
    let server = Arc::new(Mutex::new(server));
    let api = Arc::clone(&server);
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let api = Arc::clone(&api);
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap_or_default();
            let query = head.uri.query().unwrap_or_default();
            let (status, body) = api.lock().unwrap().answer(head.method.as_str(), query, body);
            Ok::<_, kube::Error>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let config = Config { name: "l".to_owned(), duration_seconds: 15 };
    let election = Election {
        leases: Api::namespaced(Client::new(service, "default"), "default"),
        config: &config,
        claim: Claim { name: "l".to_owned(), holder: "me".to_owned(), duration: 15 },
    };
    let began = Instant::now();
    election.acquire(began + Duration::from_secs(settled)).await;
    let lease = server.lock().unwrap().lease.clone();
    (began.elapsed().as_secs(), lease)
}

#[tokio::test(start_paused = true)]
async fn own_lease_is_reacquired_at_once_foreign_lease_is_waited_out() {
    let (seconds, lease) = elected(Server::held_by("me"), 0).await;
    assert_eq!((seconds, &lease["spec"]["leaseTransitions"]), (0, &json!(4)));
    assert!(lease["spec"]["renewTime"].is_string(), "no renewal in the Lease: {lease}");

    for holder in ["other", "me_2"] {
        let (seconds, lease) = elected(Server::held_by(holder), 0).await;
        assert_eq!((seconds, &lease["spec"]["leaseTransitions"]), (15, &json!(5)), "{holder}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_the_previous_term_are_waited_for() {
    assert_eq!(elected(Server::held_by("me"), 4).await.0, 4);
    assert_eq!(elected(Server::held_by(""), 4).await.0, 4);
    assert_eq!(elected(Server::held_by("other"), 4).await.0, 15);
}

#[tokio::test(start_paused = true)]
async fn concurrent_candidate_may_win() {
    let rival = Server { rival: Some("other"), ..Server::held_by("me") };
    let (seconds, lease) = elected(rival, 0).await;
    assert_eq!(
        (seconds, &lease["spec"]["leaseTransitions"]),
        (15, &json!(5)),
        "the other candidate has the Lease by then"
    );
    assert_eq!(lease["spec"]["holderIdentity"], "me");
}
