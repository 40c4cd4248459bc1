//! The cluster's interface to the rest of the agent: a pod's addresses, updates about a pod, and
//! the state of the API server.
//!
//! The watch of the IPInstances writes the index here and wakes waiting ADDs. No request goes to
//! the API server, with one exception: the families that a pod needs, if its IPInstance does not
//! contain them ([`super::instances`]).
//!
//! A complete set of addresses is used even if the API server does not answer at the moment. The
//! controller allocated the set to exactly this pod (by UID), and the set stays allocated as long
//! as the pod exists.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Api;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_api::attach::{Code, Failure};
use trunkline_api::control::ClusterStatus;
use trunkline_api::kube::node_addresses;
use trunkline_api::resources::LabelSelector;
use trunkline_daemon::errors::chain;

use super::config::Connection;
use super::departures::{Departure, Departures};
use super::health::Health;
use super::instances::{Index, ObjectName, PodAddressLookup, PodAddresses, Row, is_dual};
use super::request::within;
use super::sandboxes::Sandboxes;
use super::writer::InstanceUpdate;
use crate::ipam::{Counts, MigrationState, PodName, Record};

/// Name of the watch of this node's IPInstances.
pub(super) const INSTANCES: &str = "ipinstances";
/// Time limit of a single request to the API server.
pub(super) const QUESTION: Duration = Duration::from_secs(5);

/// The lists that the live migrations of this node's pods need.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) instances: bool,
    pub(super) departures: bool,
}

/// The changing part of the cluster's state.
#[derive(Default)]
pub(super) struct State {
    pub(super) index: Index,
    /// Addresses of virtual machines that leave this node.
    pub(super) departures: Departures,
    /// This node's sandboxes in the statuses of IPInstances.
    pub(super) sandboxes: Sandboxes,
    /// Whether the API server has listed the two kinds since the start.
    pub(super) listed: Listed,
    /// Faults of objects, for the operator.
    pub(super) faults: Vec<String>,
    /// The reason for which the API server rejects this node's NodeInfo, if it does.
    refused: Option<String>,
    /// The counts of each subnet, from its status.
    pub(super) counts: BTreeMap<String, Counts>,
    /// Whether this Node is cordoned; none if the cordon is not followed or not known.
    is_cordoned: Option<bool>,
}

/// The cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    node: String,
    connection: Connection,
    /// The pods that get addresses.
    selector: LabelSelector,
    state: Mutex<State>,
    /// Changes whenever the index, the Node's cordon or the attachments change.
    changed: watch::Sender<u64>,
    health: Health,
    updates: mpsc::UnboundedSender<InstanceUpdate>,
    /// Number of pending writes.
    unwritten: watch::Receiver<usize>,
    recorder: Recorder,
}

impl Cluster {
    pub(super) fn new(
        node: &str,
        connection: Connection,
        selector: LabelSelector,
        updates: mpsc::UnboundedSender<InstanceUpdate>,
        unwritten: watch::Receiver<usize>,
    ) -> Cluster {
        let reporter = Reporter { controller: "trunkline-agent".to_owned(), instance: Some(node.to_owned()) };
        Cluster(Arc::new(Inner {
            node: node.to_owned(),
            recorder: Recorder::new(connection.client.clone(), reporter),
            connection,
            selector,
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            health: Health::default(),
            updates,
            unwritten,
        }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> &Health {
        &self.0.health
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// The API server's address, for people.
    pub fn server(&self) -> &str {
        &self.0.connection.server
    }

    /// Changes the index and wakes all waiting tasks. Returns whether anything changed.
    pub(super) fn change(&self, change: impl FnOnce(&mut Index) -> bool) -> bool {
        let changed = change(&mut self.state().index);
        if changed {
            self.has_changed();
        }
        changed
    }

    /// Changes the state and wakes all waiting tasks.
    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.has_changed();
    }

    /// Whether an IPInstance of this node has a part in a live migration. None: this is not known yet.
    pub fn has_migrations(&self) -> Option<bool> {
        let state = self.state();
        let known = state.listed.instances && state.listed.departures;
        let awaits = || state.index.rows().values().any(|row| row.awaits);
        known.then(|| !state.departures.is_empty() || awaits())
    }

    /// The IPInstances about the live migration of an attachment: of its pod as target or holder, and
    /// as source.
    pub fn migration_rows(&self, record: &Record) -> (Vec<Row>, Vec<Departure>) {
        let state = self.state();
        let has = |address| record.addresses.iter().any(|assigned| assigned.address == address);
        let is_its = |row: &Row| record.pod.uid.is_empty() || row.uid == record.pod.uid;
        let own = state.index.of(&record.pod).map(|(_, row)| row);
        let own = own.filter(|row| has(row.assigned.address) && is_its(row)).cloned().collect();
        let departures = state.departures.values().filter(|row| has(row.address)).cloned().collect();
        (own, departures)
    }

    /// This node's name.
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// The addresses of another Node object; none if the API server does not return it.
    pub async fn node_addresses(&self, node: &str) -> Option<Vec<IpAddr>> {
        let nodes: Api<Node> = Api::all(self.0.connection.client.clone());
        match within(QUESTION, nodes.get(node)).await {
            Ok(found) => Some(node_addresses(&found)),
            Err(error) => {
                tracing::debug!(node, error = chain(&error), "the Node was not read");
                None
            }
        }
    }

    /// Changes whenever the index, the Node's cordon or the attachments change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    fn has_changed(&self) {
        self.0.changed.send_modify(|version| *version += 1);
    }

    /// Whether this Node is cordoned; none if the cordon is not followed or not known.
    pub(super) fn is_cordoned(&self) -> Option<bool> {
        self.state().is_cordoned
    }

    /// Sets whether this Node is cordoned; none if it is no longer known.
    pub(super) fn set_cordoned(&self, is_cordoned: Option<bool>) {
        if std::mem::replace(&mut self.state().is_cordoned, is_cordoned) != is_cordoned {
            self.has_changed();
        }
    }

    /// Waits until all addresses of a pod are known, and returns them.
    pub async fn addresses_of(
        &self,
        pod: &PodName,
        ifname: &str,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
    ) -> Result<PodAddresses, Failure> {
        if pod.name.is_empty() || pod.namespace.is_empty() {
            return Err(Failure::new(
                Code::InvalidEnvironment,
                "CNI_ARGS does not name the pod: with `source: kube` it must contain K8S_POD_NAMESPACE and K8S_POD_NAME",
            ));
        }
        let mut abandoned = std::pin::pin!(abandoned);
        let mut changed = self.0.changed.subscribe();
        let mut known_families = None;
        let mut is_checked = self.0.selector.is_empty();
        loop {
            changed.mark_unchanged();
            let found = self.state().index.find(pod, ifname, known_families);
            let missing = match found {
                PodAddressLookup::Complete(given) => return Ok(given),
                PodAddressLookup::Conflicting(words) => {
                    return Err(Failure::new(Code::InvalidConfiguration, words));
                }
                PodAddressLookup::Missing(_) if !is_checked => {
                    is_checked = true;
                    self.check_labels(pod).await?;
                    continue;
                }
                PodAddressLookup::Missing(words) => words,
                PodAddressLookup::MaybeIncomplete(_) => {
                    known_families = Some(self.is_dual(pod).await);
                    continue;
                }
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(deadline) => return Err(self.without(missing)),
                () = abandoned.as_mut() => {
                    return Err(Failure::new(Code::TryAgainLater, "the client has disconnected"));
                }
            }
        }
    }

    /// Fails for a pod that the controller gives no address, because its labels do not match. If the
    /// API server does not answer, the pod waits like any other.
    async fn check_labels(&self, pod: &PodName) -> Result<(), Failure> {
        let pods: Api<Pod> = Api::namespaced(self.0.connection.client.clone(), &pod.namespace);
        let labels = match within(QUESTION, pods.get_metadata(&pod.name)).await {
            Ok(found) => found.metadata.labels.unwrap_or_default(),
            Err(error) => {
                tracing::debug!(pod = pod.name, error = chain(&error), "the pod was not read");
                return Ok(());
            }
        };
        if self.0.selector.selects(&labels) {
            return Ok(());
        }
        Err(Failure::new(
            Code::InvalidConfiguration,
            format!(
                "pod {}/{} does not match podLabelSelector `{}`, so it gets no address of Trunkline: label the pod, \
                 or let another CNI plugin attach it",
                pod.namespace, pod.name, self.0.selector
            ),
        ))
    }

    /// The families from the pod's own annotation. If the API server does not answer, the known
    /// addresses are used.
    async fn is_dual(&self, pod: &PodName) -> bool {
        let pods: Api<Pod> = Api::namespaced(self.0.connection.client.clone(), &pod.namespace);
        match within(QUESTION, pods.get_metadata(&pod.name)).await {
            Ok(found) => found.metadata.annotations.as_ref().and_then(is_dual).unwrap_or(false),
            Err(error) => {
                tracing::debug!(pod = pod.name, error = chain(&error), "the pod was not read");
                false
            }
        }
    }

    /// The error for a pod without addresses.
    fn without(&self, missing: String) -> Failure {
        let details = match self.0.health.outage() {
            Some(outage) => outage.to_string(),
            None if !self.0.health.is_live(INSTANCES) => "the IPInstances of this node have not been read yet".to_owned(),
            None => match self.0.health.silence(INSTANCES) {
                Some(seconds) => format!(
                    "the API server answers; the last change of this node's IPInstances was \
                     {seconds} s ago: is the controller running, and has the pod's Network a free \
                     address (kubectl describe pod)?"
                ),
                None => "the API server answers, and has sent no IPInstance of this node: is the controller running?".to_owned(),
            },
        };
        Failure::new(Code::TryAgainLater, missing).with_details(details)
    }

    /// Queues updates for the statuses of an attached pod's IPInstances. The status of the target of a
    /// live migration follows when the virtual machine runs there.
    pub fn attached(&self, record: &Record) {
        if record.migration == MigrationState::Inactive {
            return self.has_changed();
        }
        let updates: Vec<InstanceUpdate> = {
            let state = self.state();
            let has = |address| record.addresses.iter().any(|assigned| assigned.address == address);
            let of = state.index.of(&record.pod).filter(|(_, row)| has(row.assigned.address));
            let unseen =
                of.filter(|(_, row)| row.seen.0 != record.key.container_id || row.seen.1 != self.0.node);
            unseen.map(|(name, _)| InstanceUpdate::attached(name, record)).collect()
        };
        for update in updates {
            let _ = self.0.updates.send(update);
        }
    }

    /// Queues the end of an attachment for the statuses of its IPInstances. Without a record, all
    /// IPInstances of the sandbox count.
    pub fn detached(&self, sandbox: &str, record: Option<&Record>) {
        let of = |address| {
            record.is_none_or(|record| record.addresses.iter().any(|assigned| assigned.address == address))
        };
        let ended = self.state().sandboxes.select(|known, address| known == sandbox && of(address));
        let instances = ended.into_iter().map(|(name, _)| name).collect();
        let _ = self.0.updates.send(InstanceUpdate::Detached { sandbox: sandbox.to_owned(), instances });
        self.has_changed();
    }

    /// Queues the end of each sandbox in a status that is not attached.
    pub(super) fn clear_ended(&self, is_attached: impl Fn(&str, IpAddr) -> bool) {
        let ended = self.state().sandboxes.select(|sandbox, address| !is_attached(sandbox, address));
        for (name, sandbox) in ended {
            tracing::info!(
                instance = name.1,
                namespace = name.0,
                sandbox,
                "a sandbox has ended without a report"
            );
            let _ = self.0.updates.send(InstanceUpdate::Detached { sandbox, instances: vec![name] });
        }
    }

    /// Sends a Kubernetes event about the node, once and without a retry.
    pub fn warn(&self, reason: &'static str, note: String) {
        let (recorder, node) = (self.0.recorder.clone(), self.0.node.clone());
        tokio::spawn(async move {
            // The UID of the reference is the node's name, as with kubelet.
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.clone()),
                uid: Some(node),
                ..ObjectReference::default()
            };
            let note = Some(note.chars().take(1_000).collect());
            let event = Event {
                type_: EventType::Warning,
                reason: reason.to_owned(),
                note,
                action: "Serve".to_owned(),
                secondary: None,
            };
            if let Err(error) = within(QUESTION, recorder.publish(&event, &about)).await {
                tracing::debug!(error = chain(&error), "the API server did not accept an event");
            }
        });
    }

    /// Sets or clears the rejection of this node's NodeInfo by the API server.
    pub(super) fn set_refused(&self, refused: Option<String>) {
        let before = std::mem::replace(&mut self.state().refused, refused.clone());
        if let Some(words) = refused.filter(|words| before.as_ref() != Some(words)) {
            self.warn("NodeInfoRefused", words);
        }
    }

    /// The state of the API server.
    pub fn status(&self) -> ClusterStatus {
        let faults = {
            let state = self.state();
            state.faults.iter().chain(&state.refused).cloned().collect()
        };
        self.0.health.status(&self.0.connection.server, faults, *self.0.unwritten.borrow())
    }

    /// The counts of a subnet in the whole cluster.
    pub fn counts(&self, subnet: &str) -> Counts {
        self.state().counts.get(subnet).copied().unwrap_or_default()
    }

    /// The IPInstances of this node's pods.
    pub(super) fn instances(&self) -> Vec<(ObjectName, Row)> {
        let state = self.state();
        state.index.rows().iter().map(|(name, row)| (name.clone(), row.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// A cluster whose API server answers every request with this.
    fn cluster(selector: &str, code: u16, answer: &serde_json::Value) -> Cluster {
        let text = answer.to_string();
        let service = service_fn(move |_: Request<Body>| {
            let body = Body::from(text.clone().into_bytes());
            async move { Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap()) }
        });
        let client = kube::Client::new(service, "default");
        let connection = Connection {
            client,
            server: "fake".to_owned(),
            host: String::new(),
            namespace: "default".to_owned(),
        };
        super::super::parts("n1", connection, selector.parse().unwrap()).cluster
    }

    #[tokio::test(start_paused = true)]
    async fn pod_of_another_plugin_is_refused_at_once() {
        let pod = PodName { namespace: "shop".to_owned(), name: "web".to_owned(), uid: "u".to_owned() };
        let labelled = |cni: &str| {
            json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": "web", "namespace": "shop", "labels": {"cni": cni}},
            })
        };
        let away = json!({"kind": "Status", "status": "Failure", "code": 503, "message": "later"});
        let refused = "pod shop/web does not match podLabelSelector `cni=trunkline`";
        let waited = "has no IPInstance on this node yet";
        for (case, selector, code, answer, words, seconds) in [
            ("another plugin's", "cni=trunkline", 200, labelled("other"), refused, 0),
            ("its own", "cni=trunkline", 200, labelled("trunkline"), waited, 60),
            ("unknown labels", "cni=trunkline", 503, away, waited, 60),
            ("no selector", "", 200, labelled("other"), waited, 60),
        ] {
            let cluster = cluster(selector, code, &answer);
            let began = Instant::now();
            let deadline = began + Duration::from_secs(60);
            let failure =
                cluster.addresses_of(&pod, "eth0", deadline, std::future::pending()).await.unwrap_err();
            assert!(failure.message.contains(words), "{case}: {}", failure.message);
            assert_eq!(began.elapsed().as_secs(), seconds, "{case}");
        }
    }
}
