//! The agent's writes to the API server: the holder of an IPInstance's address, this node's VTEP,
//! and its BGP peers.
//!
//! No other task waits for a write. Updates go into a queue, in which the last one for an object
//! counts ([`super::coalesce`]). After a failure all writes wait, longer each time. A restart of
//! the agent loses the queue. So once the IPInstances are listed, a comparison of records with
//! statuses fills it again.
//!
//! - **IPInstance**: `status` as hybridnet's daemon writes it, by a merge patch after ADD, and
//!   `attachedSandboxID`. Until the agent clears the status after DEL, the controller neither releases nor moves
//!   the address. A clear names the sandbox, so it never removes the report of another one. With
//!   `updateIPInstanceStatus: false` the agent only clears.
//! - **NodeInfo**: `spec.vtepInfo` by server-side apply, so other writers keep their fields. It
//!   contains only the host's addresses that its Node has, because the webhook denies other
//!   addresses. A denial delays no other write: the agent retries it separately, and when the Node
//!   changes.
//! - **NodeInfo status**: the peers, when a session comes up or goes down, at most once in
//!   `PEERS_APART`. The counts of prefixes can be as old as `PEERS_ANEW`. A quiet cluster of ten
//!   thousand nodes causes at most 35 such writes per second, and none if no count changed.
//! - **Node condition** `NetworkUnavailable`, when it changes ([`super::condition`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_api::kube::Lenient;
use trunkline_api::names::API_VERSION;
use trunkline_api::names::condition::NETWORK_UNAVAILABLE;
use trunkline_api::resources::{IPInstanceSpec, NodeInfoSpec, NodePeer, Vtep};
use trunkline_daemon::errors::chain;
use trunkline_datapath::mac::show_mac;

use super::cluster::{Cluster, QUESTION};
use super::coalesce::Coalesce;
use super::condition::{ConditionAction, NetworkCondition, SessionLossTimer, compare};
use super::instances::ObjectName;
use super::request::{RequestError, within};
use crate::ipam::Record;
use crate::metrics::Metrics;
use crate::plan::Plan;

/// The field manager.
const MANAGER: &str = "trunkline-agent";
/// Minimum time between two writes of the peers.
const PEERS_APART: Duration = Duration::from_secs(5);
/// Time after which the counts of prefixes are compared again.
const PEERS_ANEW: Duration = Duration::from_secs(300);
/// The longest wait after a failure.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// An update for a pod's IPInstances.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceUpdate {
    /// The pod holds this IPInstance's address.
    Attached(ObjectName, Holder),
    /// The sandbox is gone.
    Detached {
        /// The sandbox.
        sandbox: String,
        /// The IPInstances whose status has it.
        instances: Vec<ObjectName>,
    },
}

/// A pending write of an IPInstance's status.
#[derive(Clone, Debug, PartialEq)]
enum StatusWrite {
    Attached(Holder),
    /// This sandbox has ended.
    Ended(String),
}

/// The holder of an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    sandbox: String,
    pod: String,
    namespace: String,
}

impl InstanceUpdate {
    pub(super) fn attached(name: ObjectName, record: &Record) -> InstanceUpdate {
        let holder = Holder {
            sandbox: record.key.container_id.clone(),
            pod: record.pod.name.clone(),
            namespace: record.pod.namespace.clone(),
        };
        InstanceUpdate::Attached(name, holder)
    }
}

/// The inputs of the writer.
pub struct WriterDependencies {
    /// Updates of pods.
    pub updates: mpsc::UnboundedReceiver<InstanceUpdate>,
    /// Whether IPInstances' statuses are written.
    pub writes_instances: bool,
    /// Number of pending writes.
    pub unwritten: watch::Sender<usize>,
    /// The current plan, which contains this node's VTEP.
    pub plan: watch::Receiver<Option<Arc<Plan>>>,
    /// Changes whenever a session comes up or goes down.
    pub sessions: watch::Receiver<u64>,
    /// This node's UID in the API server, once it is known.
    pub uid: watch::Receiver<Option<String>>,
    /// The addresses of this Node in the API server, once they are known.
    pub addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    /// Changes when this node's NodeInfo lacks a VTEP, or does not exist.
    pub info_lost: watch::Receiver<u64>,
}

/// Returns the peers of this node in the form of its NodeInfo.
pub trait NodePeers: Send + Sync + 'static {
    /// The current peers; none without a speaker.
    fn current(&self) -> impl Future<Output = Vec<NodePeer>> + Send;
}

struct Writer<P> {
    cluster: Cluster,
    node: String,
    node_peers: P,
    metrics: Metrics,
    instances: Coalesce<ObjectName, StatusWrite>,
    /// The VTEP of the last write; the outer `None`: no write since the start.
    vtep: Option<Option<Vtep>>,
    /// After a denial, the time of the next write of the VTEP.
    vtep_not_before: Option<Instant>,
    vtep_delays: Option<ExponentialBackoff>,
    peers: Option<Vec<NodePeer>>,
    /// The time of the next comparison of the peers.
    peers_at: Instant,
    silence: SessionLossTimer,
    /// The wanted condition of the node.
    verdict: Option<NetworkCondition>,
    last_condition: Option<NetworkCondition>,
    /// The earliest time of the next write.
    not_before: Option<Instant>,
    delays: Option<ExponentialBackoff>,
}

/// Writes for as long as the agent runs.
pub async fn run(
    cluster: Cluster,
    node: String,
    node_peers: impl NodePeers,
    metrics: Metrics,
    mut dependencies: WriterDependencies,
) {
    let mut writer = Writer {
        cluster,
        node,
        node_peers,
        metrics,
        instances: Coalesce::default(),
        vtep: None,
        vtep_not_before: None,
        vtep_delays: None,
        peers: None,
        peers_at: Instant::now() + PEERS_APART,
        silence: SessionLossTimer::default(),
        verdict: None,
        last_condition: None,
        not_before: None,
        delays: None,
    };
    loop {
        dependencies.unwritten.send_if_modified(|known| {
            std::mem::replace(known, writer.instances.len()) != writer.instances.len()
        });
        // A NodeInfo needs the Node as owner, so nothing is written before the Node's UID is known.
        let ready = dependencies.uid.borrow().is_some();
        // Without a plan, it is unknown whether the node has tunnels.
        let vtep = dependencies.plan.borrow_and_update().as_ref().map(|plan| plan.vtep.clone());
        let vtep = vtep.and_then(|vtep| claimed(vtep, dependencies.addresses.borrow().as_deref()));
        let vtep_pending = ready && vtep.is_some() && writer.vtep != vtep;
        let vtep_due = vtep_pending && writer.vtep_not_before.is_none();
        let condition_due = writer.verdict.filter(|verdict| writer.last_condition != Some(*verdict));
        let pending = vtep_due || condition_due.is_some() || !writer.instances.is_empty();
        let next = match (writer.not_before, pending) {
            (Some(at), true) => Some(at),
            (None, true) => Some(Instant::now()),
            (at, false) => ready.then(|| at.map_or(writer.peers_at, |at| at.max(writer.peers_at))),
        };
        let retry = writer.vtep_not_before.filter(|_| vtep_pending);
        tokio::select! {
            biased;
            update = dependencies.updates.recv() => match update {
                Some(InstanceUpdate::Attached(..)) if !dependencies.writes_instances => {}
                Some(update) => queue(&mut writer.instances, update),
                None => return,
            },
            // Networks may have been added or removed.
            Ok(()) = dependencies.plan.changed() => {
                writer.peers_at = writer.peers_at.min(Instant::now() + PEERS_APART);
            }
            Ok(()) = dependencies.uid.changed() => {}
            Ok(()) = dependencies.info_lost.changed() => {
                (writer.vtep, writer.peers_at) = (None, writer.peers_at.min(Instant::now() + PEERS_APART));
            }
            // The API server may accept the denied VTEP now.
            Ok(()) = dependencies.addresses.changed() => writer.vtep_not_before = None,
            () = sleep_until(retry) => writer.vtep_not_before = None,
            Ok(()) = dependencies.sessions.changed() => {
                writer.peers_at = writer.peers_at.min(Instant::now() + PEERS_APART);
            }
            () = sleep_until(next) => {
                let uid = dependencies.uid.borrow().clone();
                let outcome = if vtep_due {
                    writer.write_node(vtep.flatten(), uid.unwrap_or_default()).await
                } else if let Some((name, write)) = writer.instances.next() {
                    writer.write_instance(name, write).await
                } else if let Some(verdict) = condition_due {
                    writer.write_condition(verdict).await
                } else {
                    let plan = dependencies.plan.borrow().clone();
                    writer.update_peers(plan.is_some_and(|plan| plan.served().next().is_some())).await
                };
                writer.after(outcome);
            }
        }
    }
}

fn queue(instances: &mut Coalesce<ObjectName, StatusWrite>, update: InstanceUpdate) {
    match update {
        InstanceUpdate::Attached(name, holder) => instances.put(name, StatusWrite::Attached(holder)),
        InstanceUpdate::Detached { sandbox, instances: reported } => {
            instances.cancel(
                |_, write| matches!(write, StatusWrite::Attached(holder) if holder.sandbox == sandbox),
            );
            for name in reported {
                // The report of the next sandbox replaces this one.
                if !matches!(instances.pending(&name), Some(StatusWrite::Attached(_))) {
                    instances.put(name, StatusWrite::Ended(sandbox.clone()));
                }
            }
        }
    }
}

fn delays() -> ExponentialBackoff {
    let delays = ExponentialBuilder::default().with_max_delay(MAX_DELAY).with_factor(2.0);
    delays.with_jitter().without_max_times().build()
}

/// The VTEP in the NodeInfo: the VTEP's address, and the node's other addresses that the Node
/// object has. `None` while the Node's addresses are unknown.
fn claimed(vtep: Option<Vtep>, addresses: Option<&[IpAddr]>) -> Option<Option<Vtep>> {
    let Some(mut vtep) = vtep else { return Some(None) };
    let known = addresses?;
    let ip = vtep.ip;
    vtep.local.retain(|address| *address == ip || known.contains(address));
    Some(Some(vtep))
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl<P: NodePeers> Writer<P> {
    fn after(&mut self, outcome: Result<(), WriteError>) {
        match outcome {
            Ok(()) => (self.not_before, self.delays) = (None, None),
            Err(error) => {
                let delays = self.delays.get_or_insert_with(|| {
                    tracing::warn!(
                        error = chain(&error),
                        "the API server does not accept this node's updates: the agent retries"
                    );
                    delays()
                });
                self.not_before = Some(Instant::now() + delays.next().unwrap_or(MAX_DELAY));
            }
        }
    }

    async fn write_instance(&mut self, name: ObjectName, write: StatusWrite) -> Result<(), WriteError> {
        let instances: Api<Lenient<IPInstanceSpec>> =
            Api::namespaced(self.cluster.connection().client.clone(), &name.0);
        let params = PatchParams::default();
        let answer = match &write {
            StatusWrite::Attached(holder) => {
                let status = json!({"status": {
                    "sandboxID": holder.sandbox, "attachedSandboxID": holder.sandbox, "nodeName": self.node,
                    "podName": holder.pod, "podNamespace": holder.namespace, "updateTimestamp": now(),
                }});
                let patch = Patch::Merge(&status);
                self.timed_request("ipinstance", instances.patch_status(&name.1, &params, &patch)).await
            }
            StatusWrite::Ended(sandbox) => {
                let request =
                    async { instances.patch_status(&name.1, &params, &ended(sandbox, &now())?).await };
                self.timed_request("ipinstance", request).await
            }
        };
        let answer = match (&write, settled(answer)) {
            // The status has another sandbox, or the IPInstance moved to another node.
            (StatusWrite::Ended(_), Err(RequestError::Refused(status)))
                if matches!(status.code, 403 | 422) =>
            {
                tracing::debug!(instance = name.1, code = status.code, "the status has no such sandbox");
                Ok(())
            }
            (_, answer) => answer,
        };
        match answer {
            // A deleted IPInstance has no status.
            Ok(()) => {
                self.instances.settle(&name, &write);
                Ok(())
            }
            Err(source) => {
                self.instances.postpone(&name);
                Err(WriteError { what: format!("IPInstance {}/{}", name.0, name.1), source })
            }
        }
    }

    async fn write_node(&mut self, vtep: Option<Vtep>, uid: String) -> Result<(), WriteError> {
        let spec = match &vtep {
            None => json!({}),
            Some(vtep) => json!({"vtepInfo": {
                "ip": vtep.ip.to_string(),
                "mac": show_mac(&vtep.mac),
                "localIPs": vtep.local.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }}),
        };
        let object = json!({
            "apiVersion": API_VERSION, "kind": "NodeInfo",
            "metadata": {
                "name": self.node,
                // The NodeInfo is deleted together with its Node.
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}],
            },
            "spec": spec,
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&object);
        let written = self.timed_request("vtep", self.nodes().patch(&self.node, &params, &patch)).await;
        if let Err(RequestError::Refused(status)) = &written
            && status.code != 404
        {
            self.postpone_vtep(status);
            return Ok(());
        }
        let what = || format!("NodeInfo {}", self.node);
        settled(written).map_err(|source| WriteError { what: what(), source })?;
        (self.vtep_not_before, self.vtep_delays) = (None, None);
        self.cluster.set_refused(None);
        self.vtep = Some(vtep);
        Ok(())
    }

    /// The API server answered and denied the NodeInfo. All other writes continue.
    fn postpone_vtep(&mut self, status: &Status) {
        let words = format!("NodeInfo {}: {} ({})", self.node, status.message, status.code);
        if self.vtep_delays.is_none() {
            tracing::warn!(error = words, "the API server refuses this node's NodeInfo: it is written again");
        }
        // If the webhook did not answer the API server, the NodeInfo is not denied yet.
        self.cluster.set_refused((status.code < 500).then_some(words));
        let delays = self.vtep_delays.get_or_insert_with(delays);
        self.vtep_not_before = Some(Instant::now() + delays.next().unwrap_or(MAX_DELAY));
    }

    /// `serves`: this node serves networks.
    async fn update_peers(&mut self, serves: bool) -> Result<(), WriteError> {
        let now = Instant::now();
        // Without a speaker there are no peers.
        let peers = self.node_peers.current().await;
        let (verdict, again) = self.silence.evaluate(serves, &peers, now);
        if !serves {
            // The controller may have replaced the condition.
            self.last_condition = None;
        }
        self.verdict = verdict;
        self.peers_at = again.unwrap_or(now + PEERS_ANEW).min(now + PEERS_ANEW);
        self.write_peers(peers).await
    }

    /// Writes the availability of the network into the Node's status.
    async fn write_condition(&mut self, verdict: NetworkCondition) -> Result<(), WriteError> {
        let nodes: Api<Node> = Api::all(self.cluster.connection().client.clone());
        let node = self.node.clone();
        let failed = |source| WriteError { what: format!("the condition of Node {node}"), source };
        let Some(node) = within(QUESTION, nodes.get_opt(&node)).await.map_err(failed)? else {
            // A missing Node needs no condition.
            self.last_condition = Some(verdict);
            return Ok(());
        };
        match compare(verdict, &node) {
            ConditionAction::Nothing => {}
            ConditionAction::Wait => {
                (self.verdict, self.peers_at) = (None, Instant::now() + PEERS_APART);
                return Ok(());
            }
            ConditionAction::Write => {
                let condition = json!({
                    "type": NETWORK_UNAVAILABLE, "status": verdict.status(),
                    "reason": verdict.reason(), "message": verdict.message(),
                    "lastTransitionTime": now(), "lastHeartbeatTime": now(),
                });
                // The patch contains the resource version. So if two writers write at the same
                // time, one of them must read again.
                let patch = json!({
                    "metadata": {"resourceVersion": node.metadata.resource_version},
                    "status": {"conditions": [condition]},
                });
                let patch = Patch::Strategic(&patch);
                let written =
                    within(QUESTION, nodes.patch_status(&self.node, &PatchParams::default(), &patch)).await;
                if let Err(RequestError::Refused(status)) = &written
                    && status.is_conflict()
                {
                    return Ok(());
                }
                settled(written).map_err(failed)?;
                match verdict {
                    NetworkCondition::Available => {
                        tracing::info!("the Node's condition reports that the network is available")
                    }
                    NetworkCondition::NoSession => {
                        tracing::warn!(
                            "no BGP session is up: the Node's condition reports that the network is unavailable"
                        );
                        self.cluster.warn(verdict.reason(), verdict.message().to_owned());
                    }
                }
            }
        }
        self.last_condition = Some(verdict);
        Ok(())
    }

    async fn write_peers(&mut self, peers: Vec<NodePeer>) -> Result<(), WriteError> {
        let peers = keep_times(peers, self.peers.as_deref().unwrap_or_default());
        if self.peers.as_ref() == Some(&peers) {
            return Ok(());
        }
        let status = json!({
            "apiVersion": API_VERSION, "kind": "NodeInfo", "metadata": {"name": self.node},
            "status": {"updateTimestamp": now(), "peers": peers},
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&status);
        let written =
            self.timed_request("peers", self.nodes().patch_status(&self.node, &params, &patch)).await;
        if written.as_ref().is_err_and(|error| error.code() == Some(404)) {
            // The NodeInfo was deleted: it is created again, and the peers are written afterwards.
            (self.vtep, self.peers_at) = (None, Instant::now() + PEERS_APART);
            return Ok(());
        }
        match settled(written) {
            Ok(()) => {
                self.peers = Some(peers);
                Ok(())
            }
            Err(source) => {
                self.peers_at = Instant::now();
                Err(WriteError { what: format!("NodeInfo {}: status", self.node), source })
            }
        }
    }

    /// Runs one request with a time limit, and records its duration.
    async fn timed_request<T>(
        &self,
        what: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, RequestError> {
        let sent = Instant::now();
        let answer = within(QUESTION, request).await;
        self.metrics.cluster_request(what, answer.as_ref().err().map(RequestError::reason), sent.elapsed());
        answer
    }

    fn nodes(&self) -> Api<Lenient<NodeInfoSpec>> {
        Api::all(self.cluster.connection().client.clone())
    }
}

/// The patch that clears a status if it still has this sandbox.
fn ended(sandbox: &str, now: &str) -> kube::Result<Patch<()>> {
    let steps = json!([
        {"op": "test", "path": "/status/sandboxID", "value": sandbox},
        {"op": "replace", "path": "/status", "value": {"updateTimestamp": now}},
    ]);
    serde_json::from_value(steps).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Whether a write needs no retry: it succeeded, or its object no longer exists.
fn settled<T>(written: Result<T, RequestError>) -> Result<(), RequestError> {
    match written {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(404) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A write that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct WriteError {
    what: String,
    source: RequestError,
}

/// A time that is computed from a duration in seconds can differ by one second. So a peer's time
/// does not change as long as its state does not change.
fn keep_times(mut peers: Vec<NodePeer>, before: &[NodePeer]) -> Vec<NodePeer> {
    for peer in &mut peers {
        let same = |known: &&NodePeer| known.name == peer.name && known.state == peer.state;
        if let Some(known) = before.iter().find(same)
            && apart(known, peer).is_some_and(|apart| apart <= 2)
        {
            peer.since.clone_from(&known.since);
        }
    }
    peers
}

/// Seconds between the times of two peers.
fn apart(one: &NodePeer, other: &NodePeer) -> Option<i64> {
    let time = |peer: &NodePeer| peer.since.as_ref()?.parse::<Timestamp>().ok();
    Some((time(one)?.as_second() - time(other)?.as_second()).abs())
}

fn now() -> String {
    at(Duration::ZERO)
}

/// The time before `ago`, RFC 3339, in whole seconds.
pub fn at(ago: Duration) -> String {
    let seconds = i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
    let second = Timestamp::now().as_second().saturating_sub(seconds);
    Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::PeerState;

    use super::*;

    #[test]
    fn only_addresses_of_the_node_are_claimed() {
        let addresses =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let vtep =
            |local: &[&str]| Vtep { ip: "10.0.0.1".parse().unwrap(), mac: [2; 6], local: addresses(local) };
        let host = || Some(vtep(&["10.0.0.1", "192.0.2.7", "fd00::1"]));
        assert_eq!(claimed(None, None), Some(None), "without tunnels there is no VTEP");
        assert_eq!(claimed(host(), None), None, "wait for the Node");
        let known = addresses(&["10.0.0.1", "fd00::1", "198.51.100.1"]);
        assert_eq!(claimed(host(), Some(&known)), Some(Some(vtep(&["10.0.0.1", "fd00::1"]))));
        assert_eq!(
            claimed(host(), Some(&[])),
            Some(Some(vtep(&["10.0.0.1"]))),
            "the webhook's reason is in the error"
        );
    }

    #[test]
    fn updates_of_a_detached_sandbox_are_dropped() {
        let holder = |sandbox: &str| Holder {
            sandbox: sandbox.to_owned(),
            pod: "p".to_owned(),
            namespace: "n".to_owned(),
        };
        let name = |name: &str| ("n".to_owned(), name.to_owned());
        let mut instances = Coalesce::default();
        for (address, sandbox) in [("a", "one"), ("b", "one"), ("c", "two")] {
            queue(&mut instances, InstanceUpdate::Attached(name(address), holder(sandbox)));
        }
        let detached = |sandbox: &str, reported: &[&str]| InstanceUpdate::Detached {
            sandbox: sandbox.to_owned(),
            instances: reported.iter().map(|address| name(address)).collect(),
        };
        queue(&mut instances, detached("one", &[]));
        assert_eq!(instances.next(), Some((name("c"), StatusWrite::Attached(holder("two")))));
        assert_eq!(instances.len(), 1);
        // The status of c has the sandbox before `two`.
        queue(&mut instances, detached("one", &["c"]));
        assert_eq!(instances.next(), Some((name("c"), StatusWrite::Attached(holder("two")))));
        queue(&mut instances, detached("two", &["c"]));
        assert_eq!(instances.next(), Some((name("c"), StatusWrite::Ended("two".to_owned()))));
        queue(&mut instances, InstanceUpdate::Attached(name("c"), holder("three")));
        assert_eq!(instances.next(), Some((name("c"), StatusWrite::Attached(holder("three")))));
        assert_eq!(instances.len(), 1);
    }

    #[test]
    fn a_clear_names_the_sandbox() {
        let patch = ended("box", "2026-01-01T00:00:00Z").unwrap();
        let Patch::Json::<()>(steps) = patch else { panic!("a JSON patch") };
        assert_eq!(
            serde_json::to_value(steps).unwrap(),
            json!([
                {"op": "test", "path": "/status/sandboxID", "value": "box"},
                {"op": "replace", "path": "/status", "value": {"updateTimestamp": "2026-01-01T00:00:00Z"}},
            ])
        );
    }

    #[test]
    fn an_unchanged_state_keeps_its_time() {
        let peer = |state: PeerState, since: &str| NodePeer {
            name: "10.0.0.1".to_owned(),
            state,
            since: Some(since.to_owned()),
            ..NodePeer::default()
        };
        let before = [peer(PeerState::Established, "2026-01-01T00:00:10Z")];
        let same = keep_times(vec![peer(PeerState::Established, "2026-01-01T00:00:11Z")], &before);
        assert_eq!(same, before, "nothing to write");
        for other in [
            peer(PeerState::Active, "2026-01-01T00:00:11Z"),
            peer(PeerState::Established, "2026-01-01T00:05:00Z"),
        ] {
            assert_eq!(keep_times(vec![other.clone()], &before), [other]);
        }
    }

    #[test]
    fn times_are_whole_seconds_in_utc() {
        let text = at(Duration::from_secs(60));
        assert!(text.ends_with('Z') && text.len() == "2026-01-01T00:00:00Z".len(), "{text}");
    }
}
