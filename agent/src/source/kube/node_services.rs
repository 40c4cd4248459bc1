//! This node's NodeServices: the service addresses and anycast addresses that it advertises, and the
//! state of its service proxy, for the whole cluster.
//!
//! The status is written by server-side apply when it changes: after a random delay of up to
//! `SPREAD`, because one change of a Service concerns all nodes, and at most once in `APART`. An API
//! server without this kind (404) delays nothing else; the write is repeated after
//! [`ABSENT`](super::watch), as the watches do it. Nothing in the agent depends on the object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use hyper::header::{ACCEPT, HeaderValue};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Request;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use trunkline_api::control::{AdvertisementState, AnycastAddressStatus, AnycastStatus};
use trunkline_api::kept;
use trunkline_api::kube::{Kind as _, Lenient};
use trunkline_api::resources::{NodeAnycastAddress, NodeServicesSpec, NodeServicesStatus};
use trunkline_daemon::errors::chain;

use super::cluster::{Cluster, QUESTION};
use super::request::{RequestError, within};
use super::watch::ABSENT;
use crate::metrics::Metrics;
use crate::services::Services;
use crate::services::anycast::Anycast;

/// The field manager.
const MANAGER: &str = "trunkline-agent";
/// Minimum time between two writes.
const APART: Duration = Duration::from_secs(5);
/// The longest random delay between a change and its write.
const SPREAD: Duration = Duration::from_secs(3);
/// The first write waits this long for the Services: before, the object of the last run is better.
const UNKNOWN: Duration = Duration::from_secs(60);
/// The longest wait after a failure.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Objects in a page of a list: each may have [`NodeServicesStatus::MAX_SERVICES`] addresses.
const PAGE: u32 = 50;
/// HTTP status: there is no such object, or no such kind.
const NOT_FOUND: u16 = 404;
/// The media type of an answer with the metadata of an object.
const ONLY_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The contents of the NodeServices.
#[derive(Clone)]
pub struct ReportedServices {
    /// The service addresses.
    pub services: Services,
    /// The anycast addresses.
    pub anycast: Anycast,
}

/// The inputs of the task.
pub struct NodeServicesDependencies {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: Cluster,
    /// The contents.
    pub reported: ReportedServices,
    /// The duration of writes.
    pub metrics: Metrics,
    /// This node's UID in the API server, once it is known.
    pub uid: watch::Receiver<Option<String>>,
}

/// The object of an apply. Its status is written as it is: a tree of JSON values would be a multiple
/// of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: String,
    kind: &'static str,
    metadata: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a NodeServicesStatus>,
}

impl<'a> Object<'a> {
    fn new(metadata: Value, status: Option<&'a NodeServicesStatus>) -> Object<'a> {
        let api_version = NodeServicesSpec::api_version();
        Object { api_version, kind: NodeServicesSpec::KIND, metadata, status }
    }
}

struct Writer {
    node: String,
    nodes: Api<Lenient<NodeServicesSpec>>,
    metrics: Metrics,
    /// The UID of the Node that owns the object; none if the object may not exist.
    owner: Option<String>,
    written: Option<NodeServicesStatus>,
}

/// Writes this node's NodeServices until the services task ends.
pub async fn follow(dependencies: NodeServicesDependencies) {
    let NodeServicesDependencies { node, cluster, reported, metrics, mut uid } = dependencies;
    let nodes = Api::all(cluster.connection().client.clone());
    let mut writer = Writer { node, nodes, metrics, owner: None, written: None };
    let ReportedServices { services, anycast } = reported;
    let (mut summary, mut anycast_changes) = (services.subscribe(), anycast.subscribe());
    if let Ok(Err(_)) = timeout(UNKNOWN, summary.wait_for(|summary| summary.known)).await {
        return;
    }
    let mut delays = None;
    loop {
        summary.mark_unchanged();
        anycast_changes.mark_seen();
        let owner = uid.borrow_and_update().clone();
        let Some(mut status) = services.report().await else { return };
        status.anycast =
            anycast.status().iter().map(anycast_address).take(NodeServicesStatus::MAX_ANYCAST).collect();
        // The object needs the Node as owner, so nothing is written before the Node's UID is known.
        if let Some(owner) = owner.filter(|owner| !writer.has(owner, &status)) {
            match writer.write(owner, status).await {
                Ok(()) => {
                    delays = None;
                    sleep(APART).await;
                }
                // The kind may come later, with the rest of an upgrade.
                Err(error) if error.code() == Some(NOT_FOUND) => {
                    tracing::debug!("the API server does not have the kind NodeServices");
                    sleep(ABSENT.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
                    continue;
                }
                Err(error) => {
                    let delays = delays.get_or_insert_with(|| {
                        tracing::warn!(
                            error = chain(&error),
                            "the API server does not accept this node's NodeServices: the agent retries; \
                             meanwhile other nodes do not see the service addresses of this node"
                        );
                        let delays = ExponentialBuilder::default().with_max_delay(MAX_DELAY);
                        delays.with_factor(2.0).with_jitter().without_max_times().build()
                    });
                    sleep(delays.next().unwrap_or(MAX_DELAY)).await;
                    continue;
                }
            }
        }
        tokio::select! {
            changed = summary.changed() => if changed.is_err() { return },
            () = anycast_changes.changed() => {}
            Ok(()) = uid.changed() => {}
        }
        sleep(SPREAD.mul_f64(fastrand::f64())).await;
    }
}

impl Writer {
    fn has(&self, owner: &str, status: &NodeServicesStatus) -> bool {
        self.owner.as_deref() == Some(owner) && self.written.as_ref() == Some(status)
    }

    async fn write(&mut self, owner: String, status: NodeServicesStatus) -> Result<(), RequestError> {
        if self.owner.as_ref() != Some(&owner) {
            self.create(&owner).await?;
        }
        let mut answer = self.write_status(&status).await;
        if answer.as_ref().is_err_and(|error| error.code() == Some(NOT_FOUND)) {
            // The object was deleted.
            self.owner = None;
            self.create(&owner).await?;
            answer = self.write_status(&status).await;
        }
        answer?;
        (self.owner, self.written) = (Some(owner), Some(status));
        Ok(())
    }

    async fn create(&self, owner: &str) -> Result<(), RequestError> {
        // The object is deleted together with its Node.
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": owner});
        let metadata = json!({"name": self.node, "ownerReferences": [owner]});
        self.timed(self.apply(None, Object::new(metadata, None))).await
    }

    async fn write_status(&self, status: &NodeServicesStatus) -> Result<(), RequestError> {
        let object = Object::new(json!({"name": self.node}), Some(status));
        self.timed(self.apply(Some("status"), object)).await
    }

    /// Applies the object, or its subresource. The answer has no status: with 2,000 addresses it
    /// would be as long as the request.
    async fn apply(&self, subresource: Option<&str>, object: Object<'_>) -> kube::Result<()> {
        let params = PatchParams::apply(MANAGER).force();
        let (request, patch) = (Request::new(self.nodes.resource_url()), Patch::Apply(object));
        let request = match subresource {
            Some(subresource) => request.patch_subresource(subresource, &self.node, &params, &patch),
            None => request.patch(&self.node, &params, &patch),
        };
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(ONLY_METADATA));
        let client = self.nodes.clone().into_client();
        client.request::<IgnoredAny>(request).await.map(drop)
    }

    async fn timed<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<(), RequestError> {
        let sent = Instant::now();
        let answer = within(QUESTION, request).await;
        let failure = answer.as_ref().err().map(RequestError::reason);
        self.metrics.cluster_request("services", failure, sent.elapsed());
        answer.map(drop)
    }
}

/// An AnycastAddress: the state of its first address that is not advertised.
fn anycast_address(status: &AnycastStatus) -> NodeAnycastAddress {
    let is_other = |address: &&AnycastAddressStatus| address.state != AdvertisementState::Advertised;
    let shown = status.addresses.iter().find(is_other).or(status.addresses.first());
    NodeAnycastAddress {
        name: status.name.clone(),
        state: shown.map_or(AdvertisementState::Withheld, |address| address.state),
        reason: shown.and_then(|address| address.reason),
        check: kept::cut(
            match (&status.refused, shown) {
                (Some(refused), _) => refused,
                (None, Some(address)) => &address.check,
                (None, None) => "",
            },
            NodeServicesStatus::MAX_TEXT,
        )
        .to_owned(),
    }
}

/// The nodes that advertise these addresses, from one list of the NodeServices.
///
/// # Errors
/// The API server does not answer, or refuses the list.
pub async fn advertising(
    cluster: &Cluster,
    addresses: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, BTreeSet<String>>, RequestError> {
    let nodes: Api<Lenient<NodeServicesSpec>> = Api::all(cluster.connection().client.clone());
    let mut found: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = within(QUESTION, nodes.list(&params)).await?;
        for object in page.items.iter().filter_map(|object| object.0.as_ref().ok()) {
            let services = object.status.iter().flat_map(|status| &status.services);
            let parsed = services.filter_map(|service| service.address.parse().ok());
            for address in parsed.filter(|address| addresses.contains(address)) {
                found.entry(address).or_default().insert(object.name().to_owned());
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
#[path = "node_services_tests.rs"]
mod tests;
