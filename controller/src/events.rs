//! Events on pods and other objects: what `kubectl describe` shows.
//!
//! Events are told, not depended on: they are written one at a time behind everything else, so that a thousand pods
//! at once cost their addresses no time, and where more come than can be written the rest is dropped and counted. Failures that repeat
//! are told once in five minutes.

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

/// Events that wait to be written.
const WAITING: usize = 4096;
/// The same failure of the same object is told again after this.
const REPEAT: Duration = Duration::from_secs(300);
/// For one write.
const PATIENCE: Duration = Duration::from_secs(5);
/// Who writes them.
const REPORTER: &str = "trunkline-controller";

/// Reasons of events, hybridnet's.
pub mod reason {
    /// A pod has its addresses.
    pub const ALLOCATED: &str = "IPAllocationSucceed";
    /// A pod got none; the text says why.
    pub const ALLOCATION_FAILED: &str = "IPAllocationFail";
    /// A pod's addresses were given back.
    pub const RELEASED: &str = "IPReleaseSucceed";
    /// A pod's addresses are kept for the next pod of its name.
    pub const RESERVED: &str = "IPReserveSucceed";
    /// Two pods have one address.
    pub const CONFLICT: &str = "IPConflict";
    /// A Network or Subnet, or a part of it, is left out; the text says why.
    pub const NOT_SERVED: &str = "NotServed";
    /// A node is in no network, or in one again.
    pub const NODE_NETWORK: &str = "NodeNetwork";
}

/// One event.
struct Told {
    warning: bool,
    reason: &'static str,
    text: String,
    about: ObjectReference,
}

/// Where events are told.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Told>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Starts the writer. It ends with the last clone of what is returned.
    pub fn start(client: Client, identity: String, metrics: Arc<Metrics>) -> Events {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(write(client, identity, receiver, Arc::clone(&metrics)));
        Events { sender, metrics }
    }

    /// Something went as it should.
    pub fn normal(&self, about: ObjectReference, reason: &'static str, text: String) {
        self.tell(Told { warning: false, reason, text, about });
    }

    /// Something did not.
    pub fn warning(&self, about: ObjectReference, reason: &'static str, text: String) {
        self.tell(Told { warning: true, reason, text, about });
    }

    fn tell(&self, told: Told) {
        if self.sender.try_send(told).is_err() {
            self.metrics.event_dropped();
        }
    }
}

async fn write(client: Client, identity: String, mut receiver: mpsc::Receiver<Told>, metrics: Arc<Metrics>) {
    let mut said: HashMap<(Option<String>, String), Instant> = HashMap::new();
    let mut swept = Instant::now();
    while let Some(told) = receiver.recv().await {
        if told.warning {
            let now = Instant::now();
            // What is too old is forgotten all at once, now and then.
            if now.duration_since(swept) >= REPEAT {
                said.retain(|_, at| now.duration_since(*at) < REPEAT);
                swept = now;
            }
            let key = (told.about.uid.clone(), told.text.clone());
            if said.get(&key).is_some_and(|at| now.duration_since(*at) < REPEAT) {
                continue;
            }
            said.insert(key, now);
        }
        let namespace = told.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = event(told, &namespace, &identity, Timestamp::now());
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

fn event(told: Told, namespace: &str, identity: &str, now: Timestamp) -> Event {
    // At most 1,024 octets, and cut between characters.
    let mut note = told.text;
    let mut end = note.len().min(1024);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note.truncate(end);
    Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}.{:x}",
                told.about.name.as_deref().unwrap_or(REPORTER),
                now.as_nanosecond()
            )),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some("Addresses".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note),
        reason: Some(told.reason.to_owned()),
        regarding: Some(told.about),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(identity.to_owned()),
        type_: Some(if told.warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}
