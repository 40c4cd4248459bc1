//! The leader's reconcilers, one for each kind of object.
//!
//! | kind | queued when | what is written |
//! |---|---|---|
//! | [`pod`] | it, or an IPInstance of its name, changed | IPInstances |
//! | [`vm`] | a pod, an IPInstance or the state of a virtual machine changed (in the queue of pods) | IPInstances |
//! | [`ipinstance`] | it was deleted, its pod is gone, or its sandbox has ended | its finalizer |
//! | [`conflict`] | two IPInstances have one address | one of them is unbound and deleted |
//! | [`network`], [`subnet`] | addresses, nodes, subnets changed; once in an interval | their status |
//! | [`node`] with [`quota`] | its labels, or a network or its quota, changed | its labels and condition; NodeInfo |
//!
//! Each reconciler reads the current state and corrects differences: an event only triggers it. The
//! decision about a pod is a pure function ([`decide`]), from which addresses of attached sandboxes
//! are left out ([`held`]). Its writes are a plan ([`plan`]), which the reconciler carries out.

pub mod conflict;
pub mod decide;
pub mod finalizer;
pub mod held;
pub mod interfaces;
pub mod ipinstance;
pub mod namespace;
pub mod network;
pub mod node;
pub mod plan;
pub mod pod;
pub mod quota;
pub mod recover;
pub mod retention;
pub mod subnet;
pub mod vm;

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::time::timeout;
use trunkline_api::kube::Kind;
use trunkline_api::resources::SubnetSpec;
use trunkline_daemon::errors::chain;

use self::plan::AllocationRefusal;
use crate::cluster::Key;
use crate::events::{Events, reason};
use crate::leader::Fence;
use crate::selection::Policy;
use crate::services::decide::ServiceFault;
use crate::state::{ParseFault, SharedState};

/// Shared resources of the reconcilers.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// The shared state.
    pub shared: Arc<SharedState>,
    /// The defaults for pods without annotations.
    pub policy: Arc<Policy>,
    /// Queue of events to write.
    pub events: Events,
    /// Whether pods get the annotation for a policy-only Calico.
    pub calico: bool,
    /// The right to write.
    pub fence: Fence,
}

/// Result of the work on an object. After an error it is repeated.
pub type ReconcileResult = Result<(), ReconcileError>;

/// The reason why the work on an object failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A pod gets no address.
    #[error("a pod got no address")]
    Refused(#[from] AllocationRefusal),
    /// A request to the API server failed.
    #[error("{what}")]
    Request {
        /// The action that failed.
        what: String,
        /// The reason.
        source: WriteError,
    },
    /// The IPInstance of an allocated address is another pod's.
    #[error("IPInstance {0} exists and belongs to another pod")]
    Foreign(Key),
    /// A Service does not have the addresses that it requests.
    #[error("a Service does not have the addresses that it requests")]
    Service(#[from] ServiceFault),
    /// The address was released by another Service a moment ago.
    #[error("{0} was released by another Service a moment ago")]
    Paused(IpAddr),
    /// The ServiceAddress of a shared address was not created yet.
    #[error("the ServiceAddress of {0} was not created yet")]
    ClaimMissing(IpAddr),
    /// The watch of VirtualMachines is behind the API server.
    #[error("VirtualMachine {0} exists, and the watch has not shown it yet")]
    LateWatch(Key),
    /// The term has ended.
    #[error("the term of this replica has ended")]
    TermOver,
}

impl ReconcileError {
    /// The label of the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            ReconcileError::Refused(refusal) => refusal.reason(),
            ReconcileError::Service(_) => "address",
            ReconcileError::Paused(_) | ReconcileError::ClaimMissing(_) | ReconcileError::LateWatch(_) => {
                "paused"
            }
            ReconcileError::Request { source: WriteError::Refused(_), .. } | ReconcileError::Foreign(_) => {
                "api"
            }
            ReconcileError::Request { source: WriteError::Request(_) | WriteError::TimedOut(_), .. } => {
                "unanswered"
            }
            ReconcileError::Request { source: WriteError::NotSent, .. } | ReconcileError::TermOver => {
                "not_leader"
            }
        }
    }

    fn log(&self) {
        match self {
            // The event of the pod or Service has the reason.
            ReconcileError::Refused(_)
            | ReconcileError::Service(_)
            | ReconcileError::Paused(_)
            | ReconcileError::ClaimMissing(_)
            | ReconcileError::LateWatch(_)
            | ReconcileError::TermOver => tracing::debug!("{}", chain(self)),
            ReconcileError::Request { .. } | ReconcileError::Foreign(_) => tracing::warn!("{}", chain(self)),
        }
    }
}

/// Runs a reconciler. Its error is logged and counted.
pub async fn observed<K, Work>(
    queue: &'static str,
    context: Context,
    key: K,
    reconcile: impl FnOnce(Context, K) -> Work,
) -> ReconcileResult
where
    Work: Future<Output = ReconcileResult>,
{
    let shared = Arc::clone(&context.shared);
    let result = reconcile(context, key).await;
    if let Err(error) = &result {
        shared.metrics().reconcile_failed(queue, error.reason());
        error.log();
    }
    result
}

/// The first error; the others are logged.
fn first_error(results: impl IntoIterator<Item = ReconcileResult>) -> ReconcileResult {
    let mut errors = results.into_iter().filter_map(Result::err);
    let first = errors.next();
    errors.for_each(|error| error.log());
    first.map_or(Ok(()), Err)
}

/// Reason for a failed write.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused it: nothing was written.
    #[error("{}", .0.message)]
    Refused(Box<kube::core::Status>),
    /// No answer, or a server error: the object may have been written or not.
    #[error("no answer from the API server")]
    Request(#[source] Box<kube::Error>),
    /// No answer in time: the object may have been written or not.
    #[error("no answer from the API server within {0:?}")]
    TimedOut(Duration),
    /// Not sent: this replica is no longer the leader.
    #[error("another replica leads now")]
    NotSent,
}

impl WriteError {
    /// Whether the object may have been written.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, WriteError::Request(_) | WriteError::TimedOut(_))
    }
}

/// The result of a write. If the object is gone, nothing is left to do, and the write counts as
/// done.
pub(crate) fn written<T>(written: Result<T, WriteError>, what: impl FnOnce() -> String) -> ReconcileResult {
    match written {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(ReconcileError::Request { what: what(), source }),
    }
}

impl Context {
    /// Sends a request within the fence's time limit: a write, or a request on which a write
    /// depends. The error distinguishes a refusal from a missing answer.
    pub(crate) async fn write<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteError> {
        let Some(_under_way) = self.fence.begin_write() else { return Err(WriteError::NotSent) };
        match timeout(self.fence.patience(), request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => Err(WriteError::Refused(status)),
            Ok(Err(error)) => Err(WriteError::Request(Box::new(error))),
            Err(_) => Err(WriteError::TimedOut(self.fence.patience())),
        }
    }
}

/// Reports in an event why a Network or Subnet, or a part of it, is not served.
fn record_fault<S: Kind>(context: &Context, name: &Arc<str>) {
    let fault = {
        let state = context.shared.lock();
        state.faults.get(&(S::KIND, Arc::clone(name))).cloned().or_else(|| {
            let silent = state.term.as_ref().filter(|_| S::KIND == SubnetSpec::KIND)?.silent.get(name)?;
            let uid = state.cluster.subnet(name)?.metadata.uid.as_deref().unwrap_or_default().into();
            Some(ParseFault { uid, text: silent.to_string() })
        })
    };
    if let Some(ParseFault { uid, text }) = fault {
        context.events.warning(
            reference(S::KIND, &S::api_version(), None, name, &uid),
            reason::NOT_SERVED,
            text,
        );
    }
}

/// Whether a write was refused because the object is gone or was replaced by another of that name:
/// then nothing is left to do.
pub(crate) fn is_gone(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.is_not_found() || status.is_conflict())
}

/// Reference to the object of an event.
pub(crate) fn reference(
    kind: &str,
    api_version: &str,
    namespace: Option<&str>,
    name: &str,
    uid: &str,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod namespace_tests;
#[cfg(test)]
mod written_tests;
