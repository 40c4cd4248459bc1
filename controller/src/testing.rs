//! A leader for tests, with an API server that a function answers.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;
use tower::service_fn;
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::{LabelSelector, NetworkType};

use crate::events::Events;
use crate::leader::Fence;
use crate::metrics::Metrics;
use crate::reconcile::Context;
use crate::selection::Policy;
use crate::state::SharedState;

/// Method, path and body of a request.
pub(crate) type SentRequest = (String, String, Value);

/// The policy of a controller with hybridnet's defaults.
pub(crate) fn policy() -> Policy {
    Policy {
        family: IpFamily::V4,
        network_type: NetworkType::Underlay,
        retain: true,
        stateful_kinds: vec!["StatefulSet".to_owned()],
        tenancy: false,
        pod_selector: LabelSelector::default(),
    }
}

/// The resources of the reconcilers of a leader, before its lists. The API server answers each
/// request with a status and an object.
pub(crate) fn context(
    answer: impl Fn(&SentRequest) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Context {
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, object) = answer(&(head.method.to_string(), head.uri.path().to_owned(), body));
            let object = Body::from(object.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(status).body(object).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let metrics = Arc::new(Metrics::new().unwrap());
    Context {
        client: client.clone(),
        shared: SharedState::new(Arc::clone(&metrics)),
        policy: Arc::new(Policy { network_type: NetworkType::Overlay, ..policy() }),
        events: Events::start(client, "test".to_owned(), metrics),
        calico: false,
        fence: Fence::new(Instant::now() + Duration::from_secs(86_400), Duration::from_secs(5)),
    }
}
