//! New keys of labels while the watch of pods lists all pods.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::{Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::Semaphore;
use tower::service_fn;

use super::super::config::Connection;
use super::super::parts;
use super::tests::named;
use futures_util::FutureExt;

use super::*;
use crate::netpolicy::inbox::{self, PolicyInbox};

/// An API server with two pages of pods. A whole list of all pods, and its second page, need a permit.
#[derive(Default)]
struct Server {
    /// Lists of all pods that began.
    lists: AtomicUsize,
    /// Lists of the pods with a key.
    of_keys: AtomicUsize,
    watches: AtomicUsize,
    permits: Option<Semaphore>,
}

impl Server {
    /// A server that completes no list of all pods yet.
    fn new() -> Arc<Server> {
        Arc::new(Server { permits: Some(Semaphore::new(0)), ..Server::default() })
    }

    fn permit(&self) {
        self.permits.as_ref().unwrap().add_permits(1);
    }

    /// Lists of all pods, lists of pods with a key, and watches of pods.
    fn counts(&self) -> (usize, usize, usize) {
        let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
        (count(&self.lists), count(&self.of_keys), count(&self.watches))
    }

    fn connection(self: &Arc<Self>) -> Connection {
        let server = Arc::clone(self);
        let service = service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            let uri = request.uri().clone();
            async move { Ok::<_, kube::Error>(server.answer(&uri).await) }
        });
        let client = Client::new(service, "default");
        Connection { client, server: "fake".to_owned(), host: String::new(), namespace: "default".to_owned() }
    }

    async fn answer(&self, uri: &Uri) -> Response<Body> {
        let query = uri.query().unwrap_or_default();
        let is_pods = uri.path() == "/api/v1/pods";
        let mut more = None;
        if query.contains("watch=true") {
            self.watches.fetch_add(usize::from(is_pods), Ordering::SeqCst);
            pending::<()>().await;
        } else if query.contains("labelSelector=refused") {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "BadRequest", "code": 400, "message": "unable to parse requirement"});
            let body = Body::from(status.to_string().into_bytes());
            return Response::builder().status(StatusCode::BAD_REQUEST).body(body).unwrap();
        } else if query.contains("labelSelector=") {
            self.of_keys.fetch_add(1, Ordering::SeqCst);
        } else if is_pods && query.contains("resourceVersion=0") {
            self.lists.fetch_add(1, Ordering::SeqCst);
            self.permits.as_ref().unwrap().acquire().await.unwrap().forget();
        } else if is_pods && query.contains("continue=") {
            self.permits.as_ref().unwrap().acquire().await.unwrap().forget();
        } else if is_pods {
            self.lists.fetch_add(1, Ordering::SeqCst);
            more = Some("more");
        }
        let list = json!({
            "apiVersion": "v1", "kind": "List",
            "metadata": {"resourceVersion": "1", "continue": more}, "items": [],
        });
        Response::new(Body::from(list.to_string().into_bytes()))
    }
}

/// Everything that can happen without the clock.
async fn settle() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

/// The watches, their inputs, and the requests of the policy task.
struct Watched {
    inputs: PolicyInbox,
    wanted: watch::Sender<Wanted>,
    keys: Arc<LabelKeys>,
}

impl Watched {
    /// Watches with complete lists.
    async fn start(server: &Arc<Server>) -> Watched {
        server.permit();
        let cluster = parts("n1", server.connection(), Default::default()).cluster;
        let (sender, inputs) = inbox::channel();
        let (wanted, is_wanted) = watch::channel(Wanted { pods: true, ..Wanted::default() });
        let keys = Arc::new(LabelKeys::default());
        let watches = PolicyWatches {
            node: "n1".to_owned(),
            cluster,
            inputs: sender,
            wanted: is_wanted,
            keys: Arc::clone(&keys),
        };
        tokio::spawn(watches.follow());
        let mut watched = Watched { inputs, wanted, keys };
        for _ in 0..7 {
            watched.inputs.recv().await.unwrap();
        }
        watched.want(|wanted| (wanted.pod_keys, wanted.namespace_keys) = (Some(0), Some(0)));
        settle().await;
        watched
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_modify(change);
    }

    /// The policy task has new keys.
    fn register(&self, names: impl IntoIterator<Item = String>) {
        names.into_iter().for_each(|name| self.keys.add(&named(&name)));
        let last = self.keys.last(Labelled::Pods);
        self.want(|wanted| wanted.registered.0 = last);
    }
}

#[tokio::test(start_paused = true)]
async fn new_keys_abort_no_list_of_all_pods() {
    let server = Server::new();
    let mut watched = Watched::start(&server).await;
    assert_eq!(server.counts(), (1, 0, 1));
    watched.want(|wanted| wanted.restarts = 1);
    settle().await;
    assert_eq!(server.counts(), (2, 0, 1), "the list began");
    // One key, and more keys than lists are worth, again and again.
    for round in 0..5 {
        watched.register([format!("one-{round}")]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        watched.register((0..20).map(|number| format!("many-{round}-{number}")));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(server.counts(), (2, 0, 1), "no other list begins");
    }
    assert!(watched.inputs.recv().now_or_never().is_none());
    server.permit();
    let converted = PolicyInput::Converted { kind: Labelled::Pods, keys: watched.keys.last(Labelled::Pods) };
    assert_eq!(watched.inputs.recv().await, Some(converted), "the rows have the last keys");
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Pods(input::Change::Listed(Vec::new()))));
    settle().await;
    assert_eq!(server.counts(), (2, 0, 2), "the watch follows");

    // The keys that came meanwhile are one list, which does not end the watch.
    tokio::time::sleep(Duration::from_secs(5)).await;
    settle().await;
    assert_eq!(server.counts(), (3, 0, 2));
    server.permit();
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Relisted(Vec::new())));
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Relisted(Vec::new())));
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Covered(watched.keys.last(Labelled::Pods))));
    assert_eq!(server.counts().2, 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_api_server_refuses_delays_no_other() {
    let server = Server::new();
    let mut watched = Watched::start(&server).await;
    watched.register(["refused".to_owned(), "app".to_owned()]);
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Relisted(Vec::new())));
    assert_eq!(watched.inputs.recv().await, Some(PolicyInput::Covered(2)));
    assert_eq!(server.counts(), (1, 1, 1));
}
