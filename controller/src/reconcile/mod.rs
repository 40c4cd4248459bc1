//! The leader's reconcilers, one for each kind of object.
//!
//! | kind | queued when | what is written |
//! |---|---|---|
//! | [`pod`] | it, or an IPInstance of its name, changed | IPInstances |
//! | [`ipinstance`] | it was deleted, or its pod is gone | its finalizer |
//! | [`conflict`] | two IPInstances have one address | one of them is unbound and deleted |
//! | [`network`], [`subnet`] | addresses, nodes, subnets changed; once in an interval | their status |
//! | [`node`] with [`quota`] | its labels, or a network or its quota, changed | its labels and condition; NodeInfo |
//!
//! Each reconciler reads the current state and corrects differences: an event is a hint, never the
//! reason. The decision about a pod is a pure function ([`decide`]), and its writes are a plan
//! ([`plan`]), which the reconciler carries out.

pub mod conflict;
pub mod decide;
pub mod finalizer;
pub mod ipinstance;
pub mod network;
pub mod node;
pub mod plan;
pub mod pod;
pub mod quota;
pub mod recover;
pub mod subnet;

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::time::timeout;
use trunkline_api::kube::Kind;
use trunkline_api::names::API_VERSION;
use trunkline_api::resources::SubnetSpec;

use crate::events::{Events, reason};
use crate::leader::Fence;
use crate::selection::Policy;
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

/// Reason for a failed write.
#[derive(Debug)]
pub enum WriteError {
    /// The API server refused it: nothing was written.
    Refused(Box<kube::core::Status>),
    /// No answer, or a server error: the object may have been written or not.
    Unknown(String),
    /// Not sent: this replica is no longer the leader.
    NotSent,
}

impl std::fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WriteError::Refused(status) => formatter.write_str(&status.message),
            WriteError::Unknown(text) => write!(formatter, "no answer of the API server: {text}"),
            WriteError::NotSent => formatter.write_str("another replica leads by now"),
        }
    }
}

impl Context {
    /// Sends a request that writes, or that a write depends on, within the fence's time limit. The
    /// error distinguishes a refusal from a missing answer.
    async fn write<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        let Some(_under_way) = self.fence.begin_write() else { return Err(WriteError::NotSent) };
        match timeout(self.fence.patience(), request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => Err(WriteError::Refused(status)),
            Ok(Err(error)) => Err(WriteError::Unknown(error.to_string())),
            Err(_) => Err(WriteError::Unknown(format!("{:?} have passed", self.fence.patience()))),
        }
    }
}

/// Reports in an event on a Network or Subnet why it, or a part of it, is not served.
fn record_fault<S: Kind>(context: &Context, name: &Arc<str>) {
    let fault = {
        let state = context.shared.lock();
        state.faults.get(&(S::KIND, Arc::clone(name))).cloned().or_else(|| {
            let silent = state.term.as_ref().filter(|_| S::KIND == SubnetSpec::KIND)?.silent.get(name)?;
            let uid = state.cluster.subnet(name)?.metadata.uid.as_deref().unwrap_or_default().into();
            Some(ParseFault { uid, text: silent.clone() })
        })
    };
    if let Some(ParseFault { uid, text }) = fault {
        context.events.warning(reference(S::KIND, API_VERSION, None, name, &uid), reason::NOT_SERVED, text);
    }
}

/// Whether a write was refused because the object is gone or was replaced by another of that name:
/// then nothing is left to do.
fn is_gone(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.is_not_found() || status.is_conflict())
}

/// Random bits for MAC addresses: not secret, only different.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// Reference to the object of an event.
fn reference(
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
mod written_tests;
