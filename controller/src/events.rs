//! Kubernetes events on pods and other objects, as `kubectl describe` shows them.
//!
//! Events are informative only, and nothing depends on them. They are written one at a time in the
//! background, so a thousand pods at once are not delayed by their events. Events beyond the
//! capacity of the queue are dropped and counted. A repeated failure is reported once in five
//! minutes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;

/// Capacity of the queue of unwritten events.
const WAITING: usize = 4096;
/// Interval after which the same failure of the same object is reported again.
const REPEAT: Duration = Duration::from_secs(300);
/// Timeout of one write.
const PATIENCE: Duration = Duration::from_secs(5);
/// The reporting component.
const REPORTER: &str = "trunkline-controller";

/// Reasons of events. If hybridnet has the same event, the reason is spelled as in hybridnet.
pub mod reason {
    /// A pod has its addresses.
    pub const ALLOCATED: &str = "IPAllocationSucceed";
    /// A pod got no address; the text gives the reason.
    pub const ALLOCATION_FAILED: &str = "IPAllocationFail";
    /// A pod's addresses were released.
    pub const RELEASED: &str = "IPReleaseSucceed";
    /// A pod's addresses are retained for the next pod of its name.
    pub const RESERVED: &str = "IPReserveSucceed";
    /// Two pods have one address.
    pub const CONFLICT: &str = "IPConflict";
    /// A Network or Subnet, or a part of it, is not served; the text gives the reason.
    pub const NOT_SERVED: &str = "NotServed";
    /// A node left its last network, or joined one again.
    pub const NODE_NETWORK: &str = "NodeNetwork";
    /// A network policy with entries that are not in force as written; the text has their faults.
    pub const INVALID_POLICY_ENTRY: &str = "InvalidPolicyEntry";
    /// A Service has its addresses.
    pub const SERVICE_ADDRESS_ALLOCATED: &str = "AddressAllocated";
    /// A Service does not have the addresses that it requests; the text gives the reason.
    pub const SERVICE_ADDRESS_FAILED: &str = "AllocationFailed";
    /// The addresses of a Service were released.
    pub const SERVICE_ADDRESS_RELEASED: &str = "AddressReleased";
    /// A Service gets another address than the one in its status.
    pub const SERVICE_ADDRESS_LOST: &str = "AddressLost";
    /// Two annotations of a Service mean the same and differ.
    pub const CONFLICTING_ANNOTATIONS: &str = "ConflictingAnnotations";
    /// A remote cluster is not mirrored, or its API server does not answer; the text gives the
    /// reason.
    pub const REMOTE_CLUSTER: &str = "RemoteCluster";
    /// A subnet of a remote cluster is not mirrored; the text gives the reason.
    pub const REMOTE_SUBNET_REFUSED: &str = "RemoteSubnetRefused";
    /// A global Service with an unknown setting; the text names it.
    pub const GLOBAL_SERVICE: &str = "GlobalService";
    /// An object that requests an unsupported feature; the text names it.
    pub const NOT_SUPPORTED: &str = "NotSupported";
}

struct QueuedEvent {
    warning: bool,
    reason: &'static str,
    text: String,
    about: ObjectReference,
}

/// Queue of events to write.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<QueuedEvent>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Starts the writer. It ends when the last clone of the returned value is dropped.
    pub fn start(client: Client, identity: String, metrics: Arc<Metrics>) -> Events {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(write(client, identity, receiver, Arc::clone(&metrics)));
        Events { sender, metrics }
    }

    /// Reports a success.
    pub fn normal(&self, about: ObjectReference, reason: &'static str, text: String) {
        self.send(QueuedEvent { warning: false, reason, text, about });
    }

    /// Reports a failure.
    pub fn warning(&self, about: ObjectReference, reason: &'static str, text: String) {
        self.send(QueuedEvent { warning: true, reason, text, about });
    }

    fn send(&self, queued: QueuedEvent) {
        if self.sender.try_send(queued).is_err() {
            self.metrics.event_dropped();
        }
    }
}

async fn write(
    client: Client,
    identity: String,
    mut receiver: mpsc::Receiver<QueuedEvent>,
    metrics: Arc<Metrics>,
) {
    let mut reported: HashMap<(Option<String>, String), Instant> = HashMap::new();
    let mut swept = Instant::now();
    while let Some(queued) = receiver.recv().await {
        if queued.warning {
            let now = Instant::now();
            // All expired entries are removed together, now and then.
            if now.duration_since(swept) >= REPEAT {
                reported.retain(|_, at| now.duration_since(*at) < REPEAT);
                swept = now;
            }
            let key = (queued.about.uid.clone(), queued.text.clone());
            if reported.get(&key).is_some_and(|at| now.duration_since(*at) < REPEAT) {
                continue;
            }
            reported.insert(key, now);
        }
        let namespace = queued.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = event(queued, &namespace, &identity, Timestamp::now());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                metrics.event_dropped();
                tracing::debug!(%error, "an event was not written");
            }
            Err(_) => metrics.event_dropped(),
        }
    }
}

fn event(queued: QueuedEvent, namespace: &str, identity: &str, now: Timestamp) -> Event {
    // At most 1,024 octets, cut at a character boundary.
    let mut note = queued.text;
    let mut end = note.len().min(1024);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note.truncate(end);
    Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}.{:x}",
                queued.about.name.as_deref().unwrap_or(REPORTER),
                now.as_nanosecond()
            )),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some("Addresses".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note),
        reason: Some(queued.reason.to_owned()),
        regarding: Some(queued.about),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(identity.to_owned()),
        type_: Some(if queued.warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}
