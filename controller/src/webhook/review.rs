//! Review: from an AdmissionReview to its answer, with rules, log and metrics.
//!
//! There are three outcomes. A *refusal* is a decision, and its message lists every fault for the
//! user. A *failure* is no decision, because data for the rules could not be read. The HTTP status
//! says so, and the API server's failure policy decides (pods are admitted, resources refused);
//! hybridnet answers with a refusal. An update that does not change the spec is *not checked*:
//! labels and finalizers of old objects can always be written.
//!
//! A pod may be reviewed before the watches have shown the Network that it names (one `kubectl
//! apply` of both). So before a pod is refused for an unknown name, the API server is asked once
//! for that name. If the object exists, the review waits for the watches.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use trunkline_api::kept;
use trunkline_api::kube::{Kind, Lenient, Object};
use trunkline_api::names::{GROUP, MULTICLUSTER_GROUP, OWN_GROUP};
use trunkline_api::resources::{
    AgentSettings, AgentSettingsSpec, AnycastAddress, AnycastAddressSpec, IPInstance, IPInstanceSpec,
    Network, NetworkSpec, NodeInfo, NodeInfoSpec, RemoteSubnet, RemoteSubnetSpec, ServiceAdvertisement,
    ServiceAdvertisementSpec, ServicePool, ServicePoolSpec, Subnet, SubnetSpec,
};
use trunkline_api::validate::{Fault, unsupported_subnet};
use trunkline_daemon::connections::{Client, Source};
use trunkline_daemon::logging::shown;

use super::facts::ApiReader;
use super::log_limit::LogLimit;
use super::metrics::{Metrics, ReviewResult};
use super::rules::pod::{Missing, Mutation, NewPod};
use super::rules::{
    RuleResult, agent_settings, anycast, ipinstance, network, nodeinfo, pod, remote_subnet,
    service_advertisement, service_pool, subnet,
};
use crate::cluster::ClusterReader;
use crate::selection::Policy;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewKind {
    Validate,
    Mutate,
}

impl ReviewKind {
    fn path(self) -> &'static str {
        match self {
            ReviewKind::Validate => "/validate",
            ReviewKind::Mutate => "/mutate",
        }
    }
}

/// The reason why there is no decision.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1 with a request: {0}")]
    Unreadable(String),
    #[error("data for the rules could not be read from the API server: {0}")]
    ApiServer(#[from] kube::Error),
    #[error("the answer could not be written: {0}")]
    Unwritable(String),
}

impl ReviewError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            ReviewError::Unreadable(_) => StatusCode::BAD_REQUEST,
            ReviewError::ApiServer(_) | ReviewError::Unwritable(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The answer if nothing failed.
#[derive(Debug, Default)]
struct ReviewResponse {
    faults: Vec<Fault>,
    warnings: Vec<String>,
    patch: Vec<Value>,
}

impl From<RuleResult> for ReviewResponse {
    fn from(verdict: RuleResult) -> Self {
        ReviewResponse { faults: verdict.err().unwrap_or_default(), ..ReviewResponse::default() }
    }
}

/// Most octets of the text of a refusal, which the log has too.
const MAX_TEXT: usize = 8 << 10;

/// Number of concurrent reviews that read from the API server, for all sources.
/// [`super::server::LIMITS`] has the share of one source.
const READING: usize = 32;

/// Reviews requests.
pub(super) struct Reviewer<V> {
    reader: ApiReader,
    view: Arc<V>,
    policy: Policy,
    metrics: Arc<Metrics>,
    reading: Semaphore,
    log: LogLimit,
}

impl<V: ClusterReader> Reviewer<V> {
    pub(super) fn new(client: kube::Client, view: Arc<V>, policy: Policy, metrics: Arc<Metrics>) -> Self {
        let (reading, log) = (Semaphore::new(READING), LogLimit::default());
        Reviewer { reader: ApiReader::new(client), view, policy, metrics, reading, log }
    }

    /// The reader, as soon as this client may read from the API server.
    async fn reader<'a>(&'a self, client: &'a Client) -> ReadPermit<'a> {
        // The client's own share comes first, so a source that waits for its share does not block
        // the others. No semaphore is ever closed.
        let own = client.work().acquire().await.ok();
        let one = self.reading.acquire().await.ok();
        ReadPermit { reader: &self.reader, _permits: [own, one] }
    }

    /// Answers an AdmissionReview.
    pub(super) async fn review(
        &self,
        kind: ReviewKind,
        body: &[u8],
        client: &Client,
    ) -> Result<Vec<u8>, ReviewError> {
        let began = Instant::now();
        let review: AdmissionReview<DynamicObject> =
            serde_json::from_slice(body).map_err(|error| ReviewError::Unreadable(error.to_string()))?;
        let request: AdmissionRequest<DynamicObject> =
            review.try_into().map_err(|error: kube::core::admission::ConvertAdmissionReviewError| {
                ReviewError::Unreadable(error.to_string())
            })?;
        let answer = self.answer(kind, &request, client).await;
        let outcome = match &answer {
            Ok(answer) if answer.faults.is_empty() => ReviewResult::Accepted,
            Ok(_) => ReviewResult::Refused,
            Err(_) => ReviewResult::Failed,
        };
        let took = began.elapsed();
        self.metrics.count(kind.path(), known_kind(&request), outcome, took);
        if let Some(omitted) = self.log.admits(client.source(), Instant::now()) {
            log(kind, &request, outcome, took, &answer, client.source(), omitted);
        }
        let response = respond(&request, answer?)?;
        serde_json::to_vec(&response.into_review())
            .map_err(|error| ReviewError::Unwritable(error.to_string()))
    }

    /// Counts a request without a decision in time.
    pub(super) fn timed_out(&self, kind: ReviewKind, client: &Client) {
        self.metrics.count(kind.path(), "unknown", ReviewResult::Failed, Duration::ZERO);
        let source = client.source();
        if let Some(omitted) = self.log.admits(source, Instant::now()) {
            tracing::warn!(path = kind.path(), %source, omitted, "an admission request had no verdict in time");
        }
    }

    async fn answer(
        &self,
        kind: ReviewKind,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        match (kind, request.kind.group.as_str(), request.kind.kind.as_str()) {
            (ReviewKind::Validate, GROUP, "Network") => self.network(request, client).await,
            (ReviewKind::Validate, GROUP, "Subnet") => self.subnet(request, client).await,
            (ReviewKind::Validate, GROUP, "IPInstance") => self.ipinstance(request, client).await,
            (ReviewKind::Validate, GROUP, "NodeInfo") => self.nodeinfo(request, client).await,
            (ReviewKind::Validate, OWN_GROUP, "ServicePool") => self.service_pool(request, client).await,
            (ReviewKind::Validate, OWN_GROUP, "ServiceAdvertisement") => {
                self.service_advertisement(request, client).await
            }
            (ReviewKind::Validate, OWN_GROUP, "AnycastAddress") => self.anycast(request, client).await,
            (ReviewKind::Validate, MULTICLUSTER_GROUP, "RemoteSubnet") => {
                self.remote_subnet(request, client).await
            }
            (ReviewKind::Validate, OWN_GROUP, "AgentSettings") => self.agent_settings(request, client).await,
            (_, "", "Pod") if request.operation == Operation::Create => self.pod(kind, request, client).await,
            // The request comes from a webhook configuration with additional rules.
            _ => Ok(ReviewResponse::default()),
        }
    }

    async fn network(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<NetworkSpec, Network>(request, async |change| {
            let reader = self.reader(client).await;
            Ok(match change {
                Change::Create(new) => network::create(new, &reader.for_network(new).await?),
                Change::Update(old, new) => network::update(old, new, &reader.for_network(new).await?),
                Change::Delete(old) => network::delete(old, &reader.for_network_deletion(old).await?),
            })
        })
        .await
    }

    async fn subnet(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        let mut warning = None;
        let mut answer = judge::<SubnetSpec, Subnet>(request, async |change| {
            let reader = self.reader(client).await;
            let facts = match &change {
                Change::Delete(old) => reader.for_subnet_deletion(old.name()).await?,
                _ => reader.for_subnet().await?,
            };
            if let Change::Create(new) | Change::Update(_, new) = &change {
                warning = unsupported_subnet(new);
            }
            Ok(match change {
                Change::Create(new) => subnet::create(new, &facts),
                Change::Update(old, new) => subnet::update(old, new, &facts),
                Change::Delete(old) => subnet::delete(old, &facts),
            })
        })
        .await?;
        answer.warnings.extend(warning);
        Ok(answer)
    }

    async fn ipinstance(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<IPInstanceSpec, IPInstance>(request, async |change| {
            let reader = self.reader(client).await;
            Ok(match change {
                Change::Create(new) => ipinstance::create(new, &reader.for_ipinstance(new).await?),
                Change::Update(old, new) => ipinstance::update(old, new, &reader.for_ipinstance(new).await?),
                Change::Delete(_) => Ok(()),
            })
        })
        .await
    }

    async fn nodeinfo(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<NodeInfoSpec, NodeInfo>(request, async |change| match change {
            Change::Create(new) | Change::Update(_, new) => {
                let reader = self.reader(client).await;
                Ok(nodeinfo::claim(new, &reader.for_nodeinfo(new.name()).await?))
            }
            Change::Delete(_) => Ok(Ok(())),
        })
        .await
    }

    async fn service_pool(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<ServicePoolSpec, ServicePool>(request, async |change| {
            let reader = self.reader(client).await;
            Ok(match change {
                Change::Create(new) => service_pool::create(new, &reader.for_owned_addresses().await?),
                Change::Update(old, new) => {
                    service_pool::update(old, new, &reader.for_service_pool_update(old).await?)
                }
                Change::Delete(old) => {
                    service_pool::delete(old, &reader.for_service_pool_deletion(old).await?)
                }
            })
        })
        .await
    }

    async fn service_advertisement(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        let mut warnings = Vec::new();
        let mut answer = judge::<ServiceAdvertisementSpec, ServiceAdvertisement>(request, async |change| {
            let facts = match &change {
                Change::Delete(_) => return Ok(Ok(())),
                _ => self.reader(client).await.for_owned_addresses().await?,
            };
            if let Change::Create(new) | Change::Update(_, new) = &change {
                warnings = service_advertisement::warnings(new, &facts);
            }
            Ok(match change {
                Change::Create(new) => service_advertisement::create(new, &facts),
                Change::Update(old, new) => service_advertisement::update(old, new, &facts),
                Change::Delete(_) => Ok(()),
            })
        })
        .await?;
        answer.warnings.append(&mut warnings);
        Ok(answer)
    }

    async fn anycast(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<AnycastAddressSpec, AnycastAddress>(request, async |change| {
            let facts = match &change {
                Change::Delete(_) => return Ok(Ok(())),
                _ => self.reader(client).await.for_owned_addresses().await?,
            };
            Ok(match change {
                Change::Create(new) => anycast::create(new, &facts),
                Change::Update(old, new) => anycast::update(old, new, &facts),
                Change::Delete(_) => Ok(()),
            })
        })
        .await
    }

    async fn remote_subnet(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<RemoteSubnetSpec, RemoteSubnet>(request, async |change| {
            let facts = match &change {
                Change::Delete(_) => return Ok(Ok(())),
                _ => self.reader(client).await.for_remote_subnet().await?,
            };
            Ok(match change {
                Change::Create(new) => remote_subnet::create(new, &facts),
                Change::Update(old, new) => remote_subnet::update(old, new, &facts),
                Change::Delete(_) => Ok(()),
            })
        })
        .await
    }

    async fn agent_settings(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        judge::<AgentSettingsSpec, AgentSettings>(request, async |change| {
            let facts = match &change {
                Change::Delete(_) => return Ok(Ok(())),
                _ => self.reader(client).await.for_agent_settings().await?,
            };
            Ok(match change {
                Change::Create(new) => agent_settings::create(new, &facts),
                Change::Update(old, new) => agent_settings::update(old, new, &facts),
                Change::Delete(_) => Ok(()),
            })
        })
        .await
    }

    async fn pod(
        &self,
        kind: ReviewKind,
        request: &AdmissionRequest<DynamicObject>,
        client: &Client,
    ) -> Result<ReviewResponse, ReviewError> {
        let Some(object) = &request.object else { return Ok(ReviewResponse::default()) };
        let object = value(object)?;
        let object: Pod =
            serde_json::from_value(object).map_err(|error| ReviewError::Unreadable(error.to_string()))?;
        let new = NewPod::of(object, request.namespace.as_deref().unwrap_or_default());
        if !pod::is_selected(&new, &self.policy) {
            return Ok(ReviewResponse::default());
        }
        self.await_names(&new, client).await?;
        let judged = self.view.with_cluster(|cluster| match kind {
            ReviewKind::Validate => pod::validate(&new, cluster, &self.policy).map(|()| Mutation::default()),
            ReviewKind::Mutate => pod::mutate(&new, cluster, &self.policy),
        });
        Ok(match judged {
            Ok(Mutation { patch, warnings }) => {
                ReviewResponse { patch, warnings, ..ReviewResponse::default() }
            }
            Err(faults) => ReviewResponse { faults, ..ReviewResponse::default() },
        })
    }
}

impl<V: ClusterReader> Reviewer<V> {
    /// Waits until the watches show an object that a pod names and the API server has.
    async fn await_names(&self, pod: &NewPod, client: &Client) -> Result<(), ReviewError> {
        let mut changes = self.view.changes();
        let mut known_there = None;
        loop {
            changes.mark_unchanged();
            let Some(missing) = self.view.with_cluster(|cluster| pod::missing(pod, cluster)) else {
                return Ok(());
            };
            if known_there.as_ref() != Some(&missing) {
                let is_there = match &missing {
                    Missing::Network(name) => self.reader(client).await.has_network(name).await?,
                    Missing::Subnet(name) => self.reader(client).await.has_subnet(name).await?,
                    Missing::Namespace => true,
                };
                if !is_there {
                    return Ok(());
                }
                known_there = Some(missing);
            }
            // The watches end only when the process ends; the server's deadline ends the request.
            if changes.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Access to the reader, within the limits.
struct ReadPermit<'a> {
    reader: &'a ApiReader,
    _permits: [Option<SemaphorePermit<'a>>; 2],
}

impl std::ops::Deref for ReadPermit<'_> {
    type Target = ApiReader;

    fn deref(&self) -> &ApiReader {
        self.reader
    }
}

/// Operation on an object.
enum Change<'a, T> {
    Create(&'a T),
    Update(&'a T, &'a T),
    Delete(&'a T),
}

/// Deserializes the request's objects and applies the rule.
async fn judge<S, T>(
    request: &AdmissionRequest<DynamicObject>,
    rule: impl AsyncFnOnce(Change<'_, T>) -> Result<RuleResult, kube::Error>,
) -> Result<ReviewResponse, ReviewError>
where
    S: Kind,
    T: From<Object<S>>,
{
    let before = request.old_object.as_ref().map(value).transpose()?;
    let after = request.object.as_ref().map(value).transpose()?;
    let spec = |value: &Option<Value>| value.as_ref().and_then(|value| value.get("spec").cloned());
    if request.operation == Operation::Update && spec(&before) == spec(&after) {
        return Ok(ReviewResponse::default());
    }
    // The old object need not be readable: a replacement or a deletion is checked without its spec.
    let is_delete = request.operation == Operation::Delete;
    let before = before.map(read::<S>).transpose()?.and_then(|before| match before.0 {
        Ok(object) => Some(T::from(object)),
        // The deletion is checked by the users of the object, which are found by its name.
        Err(unreadable) if is_delete => {
            let spec = S::missing()?;
            Some(T::from(Object { metadata: unreadable.metadata, spec, status: None, ignored: Vec::new() }))
        }
        Err(_) => None,
    });
    let mut warnings = Vec::new();
    let after = match after {
        None => None,
        Some(value) => {
            let read = read::<S>(value)?;
            match read.0 {
                Ok(object) => {
                    warnings.extend(object.ignored.iter().map(ToString::to_string));
                    Some(T::from(object))
                }
                Err(unreadable) => return Ok(Err(vec![unreadable.fault]).into()),
            }
        }
    };
    let verdict = match (&request.operation, &before, &after) {
        (Operation::Create, _, Some(new)) | (Operation::Update, None, Some(new)) => {
            rule(Change::Create(new)).await?
        }
        (Operation::Update, Some(old), Some(new)) => rule(Change::Update(old, new)).await?,
        (Operation::Delete, Some(old), _) => rule(Change::Delete(old)).await?,
        _ => Ok(()),
    };
    Ok(ReviewResponse { warnings, ..verdict.into() })
}

fn read<S: Kind>(value: Value) -> Result<Lenient<S>, ReviewError> {
    serde_json::from_value(value).map_err(|error| ReviewError::Unreadable(error.to_string()))
}

fn value(object: &DynamicObject) -> Result<Value, ReviewError> {
    serde_json::to_value(object).map_err(|error| ReviewError::Unreadable(error.to_string()))
}

fn respond(
    request: &AdmissionRequest<DynamicObject>,
    answer: ReviewResponse,
) -> Result<AdmissionResponse, ReviewError> {
    let mut response = AdmissionResponse::from(request);
    if !answer.faults.is_empty() {
        response = response.deny(texts(&answer.faults));
        response.result.code = 403;
        response.result.reason = "Forbidden".to_owned();
    } else if !answer.patch.is_empty() {
        let patch = serde_json::from_value(Value::Array(answer.patch));
        let patch = patch.map_err(|error| ReviewError::Unwritable(error.to_string()))?;
        response = response.with_patch(patch).map_err(|error| ReviewError::Unwritable(error.to_string()))?;
    }
    if !answer.warnings.is_empty() {
        response.warnings = Some(answer.warnings);
    }
    Ok(response)
}

fn texts(faults: &[Fault]) -> String {
    kept::join(&faults.iter().map(ToString::to_string).collect::<Vec<_>>(), MAX_TEXT)
}

/// The kind as a metric label. A label must not have arbitrary values from a request.
fn known_kind(request: &AdmissionRequest<DynamicObject>) -> &'static str {
    const KNOWN: [&str; 10] = [
        "Network",
        "Subnet",
        "IPInstance",
        "NodeInfo",
        "ServicePool",
        "ServiceAdvertisement",
        "AnycastAddress",
        "RemoteSubnet",
        "AgentSettings",
        "Pod",
    ];
    KNOWN.into_iter().find(|kind| *kind == request.kind.kind).unwrap_or("unknown")
}

/// The longest text of a request in a log line, and the longest reason, in characters.
const LOGGED_NAME: usize = 256;
const LOGGED_REASON: usize = 1024;

/// Logs a decision. The client controls every text of the request: names are escaped and cut off.
fn log(
    kind: ReviewKind,
    request: &AdmissionRequest<DynamicObject>,
    outcome: ReviewResult,
    took: Duration,
    answer: &Result<ReviewResponse, ReviewError>,
    source: Source,
    omitted: u64,
) {
    let why = match answer {
        Ok(answer) => texts(&answer.faults),
        Err(error) => error.to_string(),
    };
    let name = |text: Option<&str>| text.map(|text| shown(text, LOGGED_NAME));
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                path = kind.path(),
                operation = ?request.operation,
                kind = name(Some(&request.kind.kind)),
                namespace = name(request.namespace.as_deref()),
                name = name(Some(&request.name)),
                user = name(request.user_info.username.as_deref()),
                request = name(Some(&request.uid)),
                %source,
                verdict = outcome.text(),
                milliseconds = took.as_secs_f64() * 1e3,
                why = shown(&why, LOGGED_REASON),
                omitted,
                "admission"
            )
        };
    }
    match outcome {
        // Every pod of the cluster causes such a line.
        ReviewResult::Accepted if request.kind.kind == "Pod" => line!(debug),
        ReviewResult::Accepted | ReviewResult::Refused => line!(info),
        ReviewResult::Failed => line!(warn),
    }
}
