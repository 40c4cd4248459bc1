//! What the leader does about each kind of object.
//!
//! | kind | looked at when | what is written |
//! |---|---|---|
//! | [`pod`] | it, or an IPInstance of its name, changed | IPInstances: created, bound, kept, deleted |
//! | [`ipinstance`] | it was deleted, or its pod is gone | its finalizer |
//! | [`conflict`] | two IPInstances have one address | one of them is unbound and deleted |
//! | [`network`], [`subnet`] | addresses, nodes, subnets changed; once in an interval | their status |
//! | [`node`] with [`quota`] | its labels, or a network or its quota, changed | its labels and condition; NodeInfo |
//!
//! Each looks at the books anew and brings what it finds in line: an event is a hint, never the reason. What is to be done about a pod is a
//! pure function ([`decide`]), what it takes a plan ([`plan`]); the rest is carrying it out.

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

use crate::books::{Shared, Unread};
use crate::events::{Events, reason};
use crate::leader::Fence;
use crate::selection::Policy;

/// What reconcilers work with.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The books.
    pub shared: Arc<Shared>,
    /// What holds for pods that say nothing.
    pub policy: Arc<Policy>,
    /// Where events are told.
    pub events: Events,
    /// Whether pods get the annotation for a policy-only Calico.
    pub calico: bool,
    /// The right to write.
    pub fence: Fence,
}

/// How a write failed.
#[derive(Debug)]
pub enum WriteError {
    /// The API server said no: nothing was written.
    Refused(Box<kube::core::Status>),
    /// It said nothing, or that something went wrong: it may have been written or not.
    Unknown(String),
    /// This replica does not lead any more, and asked nothing.
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
    /// Waits for a request that writes, or that a write depends on, as long as the fence allows, and tells a no from silence.
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

/// Tells on a Network or Subnet why it, or a part of it, is left out.
fn tell_fault<S: Kind>(context: &Context, name: &Arc<str>) {
    let fault = {
        let books = context.shared.lock();
        books.faults.get(&(S::KIND, Arc::clone(name))).cloned().or_else(|| {
            let silent = books.term.as_ref().filter(|_| S::KIND == SubnetSpec::KIND)?.silent.get(name)?;
            let uid = books.cluster.subnet(name)?.metadata.uid.as_deref().unwrap_or_default().into();
            Some(Unread { uid, text: silent.clone() })
        })
    };
    if let Some(Unread { uid, text }) = fault {
        context.events.warning(reference(S::KIND, API_VERSION, None, name, &uid), reason::NOT_SERVED, text);
    }
}

/// Whether a write was refused because the object is not there, or is another one of that name by now: then nothing is left to do.
fn is_gone(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.is_not_found() || status.is_conflict())
}

/// Bits by chance, for MAC addresses: not secret, only different.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// What an event is about.
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
