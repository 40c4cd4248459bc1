//! What the agent writes into the API server: who has an IPInstance's address, this node's end of the tunnels, and its BGP peers.
//!
//! Nobody waits for any of it. An update is put into a queue in which the last one for an object counts ([`super::coalesce`]), and is written when
//! the API server takes it; after a failure everything waits, longer each time. What a restart of the agent forgets is put there again once
//! the IPInstances are listed, by comparing records with statuses.
//!
//! - **IPInstance**: `status` as hybridnet's daemon writes it, by a merge patch after ADD. Nothing on DEL, as there: the controller
//!   releases or keeps the address, and says so.
//! - **NodeInfo**: `spec.vtepInfo` by server-side apply, so that what others write there stays theirs. Of the host's addresses it claims those
//!   that its Node has, as the webhook refuses others. A refusal holds up nothing else: it is retried by itself, and when the Node changes.
//! - **NodeInfo status**: the peers, when a session comes up or goes down, at most once in `PEERS_APART`; the counts of prefixes are as
//!   fresh as `PEERS_ANEW`. With ten thousand nodes that is 35 writes a second while nothing happens, and none if no count changed.
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
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use trunkline_api::kube::Lenient;
use trunkline_api::names::API_VERSION;
use trunkline_api::names::condition::NETWORK_UNAVAILABLE;
use trunkline_api::resources::{IPInstanceSpec, NodeInfoSpec, NodePeer, Vtep};
use trunkline_datapath::mac::show_mac;

use super::cluster::{Cluster, QUESTION};
use super::coalesce::Coalesce;
use super::condition::{ConditionAction, NetworkCondition, SessionLossTimer, compare};
use super::instances::ObjectName;
use crate::ipam::Record;
use crate::metrics::Metrics;
use crate::plan::Plan;

/// Who the fields belong to.
const MANAGER: &str = "trunkline-agent";
/// Between two writes of the peers.
const PEERS_APART: Duration = Duration::from_secs(5);
/// Counts of prefixes are looked at again after this.
const PEERS_ANEW: Duration = Duration::from_secs(300);
/// The longest wait after a failure.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// What is to be written of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceUpdate {
    /// It has this IPInstance's address.
    Attached(ObjectName, Holder),
    /// The sandbox is gone.
    Detached(String),
}

/// Who has an address.
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

/// What of this node the writer is told.
pub struct WriterDependencies {
    /// Wishes of pods.
    pub updates: mpsc::UnboundedReceiver<InstanceUpdate>,
    /// How many writes are still to be made.
    pub unwritten: watch::Sender<usize>,
    /// The plan in force, which has this node's end of the tunnels.
    pub plan: watch::Receiver<Option<Arc<Plan>>>,
    /// Changes whenever a session comes up or goes down.
    pub sessions: watch::Receiver<u64>,
    /// This node's UID in the API server, once it is known.
    pub uid: watch::Receiver<Option<String>>,
    /// The addresses of this Node in the API server, once they are known.
    pub addresses: watch::Receiver<Option<Vec<IpAddr>>>,
}

/// Gives the peers of this node as its NodeInfo has them.
pub trait NodePeers: Send + Sync + 'static {
    /// The peers now; none without a speaker.
    fn current(&self) -> impl Future<Output = Vec<NodePeer>> + Send;
}

struct Writer<P> {
    cluster: Cluster,
    node: String,
    node_peers: P,
    metrics: Metrics,
    instances: Coalesce<ObjectName, Holder>,
    /// The tunnels' end as it was last written; the outer `None`: not since the start.
    vtep: Option<Option<Vtep>>,
    /// The tunnels' end is not written before: it was refused.
    vtep_not_before: Option<Instant>,
    vtep_delays: Option<ExponentialBackoff>,
    peers: Option<Vec<NodePeer>>,
    /// When the peers are to be looked at.
    peers_at: Instant,
    silence: SessionLossTimer,
    /// What the node's condition is to say, and what it was last found or made to say.
    verdict: Option<NetworkCondition>,
    said: Option<NetworkCondition>,
    /// Nothing is written before.
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
        said: None,
        not_before: None,
        delays: None,
    };
    loop {
        dependencies.unwritten.send_if_modified(|known| {
            std::mem::replace(known, writer.instances.len()) != writer.instances.len()
        });
        // Before the node is known to be in the cluster there is nobody to belong to.
        let ready = dependencies.uid.borrow().is_some();
        // Without a plan it is not known whether there are tunnels.
        let vtep = dependencies.plan.borrow_and_update().as_ref().map(|plan| plan.vtep.clone());
        let vtep = vtep.and_then(|vtep| claimed(vtep, dependencies.addresses.borrow().as_deref()));
        let vtep_pending = ready && vtep.is_some() && writer.vtep != vtep;
        let vtep_due = vtep_pending && writer.vtep_not_before.is_none();
        let condition_due = writer.verdict.filter(|verdict| writer.said != Some(*verdict));
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
                Some(InstanceUpdate::Attached(name, holder)) => writer.instances.put(name, holder),
                Some(InstanceUpdate::Detached(sandbox)) => writer.instances.cancel(|_, holder| holder.sandbox == sandbox),
                None => return,
            },
            // Networks may have come or gone.
            Ok(()) = dependencies.plan.changed() => {
                writer.peers_at = writer.peers_at.min(Instant::now() + PEERS_APART);
            }
            Ok(()) = dependencies.uid.changed() => {}
            // What was refused may be accepted now.
            Ok(()) = dependencies.addresses.changed() => writer.vtep_not_before = None,
            () = sleep_until(retry) => writer.vtep_not_before = None,
            Ok(()) = dependencies.sessions.changed() => {
                writer.peers_at = writer.peers_at.min(Instant::now() + PEERS_APART);
            }
            () = sleep_until(next) => {
                let uid = dependencies.uid.borrow().clone();
                let outcome = if vtep_due {
                    writer.write_node(vtep.flatten(), uid.unwrap_or_default()).await
                } else if let Some((name, holder)) = writer.instances.next() {
                    writer.write_instance(name, holder).await
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

fn delays() -> ExponentialBackoff {
    let delays = ExponentialBuilder::default().with_max_delay(MAX_DELAY).with_factor(2.0);
    delays.with_jitter().without_max_times().build()
}

/// What of this node's end the NodeInfo claims: its address, and of the others those that the Node has. `None` while these are not known.
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
    fn after(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => (self.not_before, self.delays) = (None, None),
            Err(error) => {
                let delays = self.delays.get_or_insert_with(|| {
                    tracing::warn!(
                        error,
                        "the API server does not take what this node tells: it is told again"
                    );
                    delays()
                });
                self.not_before = Some(Instant::now() + delays.next().unwrap_or(MAX_DELAY));
            }
        }
    }

    async fn write_instance(&mut self, name: ObjectName, holder: Holder) -> Result<(), String> {
        let instances: Api<Lenient<IPInstanceSpec>> =
            Api::namespaced(self.cluster.connection().client.clone(), &name.0);
        let status = json!({"status": {
            "sandboxID": holder.sandbox, "nodeName": self.node, "podName": holder.pod,
            "podNamespace": holder.namespace, "updateTimestamp": now(),
        }});
        let patch = Patch::Merge(&status);
        let params = PatchParams::default();
        let written =
            self.timed_request("ipinstance", instances.patch_status(&name.1, &params, &patch)).await;
        match settled(written) {
            // One that is gone has no status.
            Ok(()) => {
                self.instances.settle(&name, &holder);
                Ok(())
            }
            Err(error) => {
                self.instances.postpone(&name);
                Err(format!("IPInstance {}/{}: {error}", name.0, name.1))
            }
        }
    }

    async fn write_node(&mut self, vtep: Option<Vtep>, uid: String) -> Result<(), String> {
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
                // It goes with its node.
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}],
            },
            "spec": spec,
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&object);
        let written = self.timed_request("vtep", self.nodes().patch(&self.node, &params, &patch)).await;
        if let Ok(Err(kube::Error::Api(status))) = &written
            && status.code != 404
        {
            self.postpone_vtep(status);
            return Ok(());
        }
        settled(written).map_err(|error| format!("NodeInfo {}: {error}", self.node))?;
        (self.vtep_not_before, self.vtep_delays) = (None, None);
        self.cluster.set_refused(None);
        self.vtep = Some(vtep);
        Ok(())
    }

    /// The API server answers, and does not take the NodeInfo: everything else is written meanwhile.
    fn postpone_vtep(&mut self, status: &Status) {
        let words = format!("NodeInfo {}: {} ({})", self.node, status.message, status.code);
        if self.vtep_delays.is_none() {
            tracing::warn!(error = words, "the API server refuses this node's NodeInfo: it is written again");
        }
        // Where nobody answers the API server's question about it there is no refusal yet.
        self.cluster.set_refused((status.code < 500).then_some(words));
        let delays = self.vtep_delays.get_or_insert_with(delays);
        self.vtep_not_before = Some(Instant::now() + delays.next().unwrap_or(MAX_DELAY));
    }

    /// `serves`: networks, on this node.
    async fn update_peers(&mut self, serves: bool) -> Result<(), String> {
        let now = Instant::now();
        // Without a speaker there are none.
        let peers = self.node_peers.current().await;
        let (verdict, again) = self.silence.evaluate(serves, &peers, now);
        if !serves {
            // The controller's word may have replaced what was said.
            self.said = None;
        }
        self.verdict = verdict;
        self.peers_at = again.unwrap_or(now + PEERS_ANEW).min(now + PEERS_ANEW);
        self.write_peers(peers).await
    }

    /// Says in the Node's status whether its network can be used.
    async fn write_condition(&mut self, verdict: NetworkCondition) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.cluster.connection().client.clone());
        let told = |error| format!("the condition of Node {}: {error}", self.node);
        let node = match timeout(QUESTION, nodes.get_opt(&self.node)).await {
            Ok(Ok(Some(node))) => node,
            // Who is not there is not available either.
            Ok(Ok(None)) => {
                self.said = Some(verdict);
                return Ok(());
            }
            Ok(Err(error)) => return Err(told(super::watch::words(&error))),
            Err(_) => return Err(told(no_answer())),
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
                // By its version: of two that write at a time one looks again.
                let patch = json!({
                    "metadata": {"resourceVersion": node.metadata.resource_version},
                    "status": {"conditions": [condition]},
                });
                let patch = Patch::Strategic(&patch);
                let written =
                    timeout(QUESTION, nodes.patch_status(&self.node, &PatchParams::default(), &patch)).await;
                if let Ok(Err(kube::Error::Api(status))) = &written
                    && status.is_conflict()
                {
                    return Ok(());
                }
                settled(written).map_err(told)?;
                match verdict {
                    NetworkCondition::Available => {
                        tracing::info!("this node's network is said to be available")
                    }
                    NetworkCondition::NoSession => {
                        tracing::warn!("no BGP session is up: this node's network is said to be unavailable");
                        self.cluster.warn(verdict.reason(), verdict.message().to_owned());
                    }
                }
            }
        }
        self.said = Some(verdict);
        Ok(())
    }

    async fn write_peers(&mut self, peers: Vec<NodePeer>) -> Result<(), String> {
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
        if let Ok(Err(kube::Error::Api(status))) = &written
            && status.code == 404
        {
            // Somebody deleted it: it is made again, and the peers are told then.
            (self.vtep, self.peers_at) = (None, Instant::now() + PEERS_APART);
            return Ok(());
        }
        match settled(written) {
            Ok(()) => {
                self.peers = Some(peers);
                Ok(())
            }
            Err(error) => {
                self.peers_at = Instant::now();
                Err(format!("NodeInfo {}: status: {error}", self.node))
            }
        }
    }

    /// One request within its time, whose answer's time is counted.
    async fn timed_request<T>(
        &self,
        what: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, Elapsed> {
        let asked = Instant::now();
        let answer = timeout(QUESTION, request).await;
        self.metrics.cluster_request(what, matches!(answer, Ok(Ok(_))), asked.elapsed());
        answer
    }

    fn nodes(&self) -> Api<Lenient<NodeInfoSpec>> {
        Api::all(self.cluster.connection().client.clone())
    }
}

/// Whether a write need not be tried again: it was taken, or there is nothing any more that it could be written to.
fn settled<T>(written: Result<kube::Result<T>, Elapsed>) -> Result<(), String> {
    match written {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => Err(super::watch::words(&error)),
        Err(_) => Err(no_answer()),
    }
}

fn no_answer() -> String {
    format!("no answer within {} s", QUESTION.as_secs())
}

/// A time that is computed from "for so many seconds" differs by one from look to look: it stays as long as the state does.
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

/// Seconds between the times of two.
fn apart(one: &NodePeer, other: &NodePeer) -> Option<i64> {
    let time = |peer: &NodePeer| peer.since.as_ref()?.parse::<Timestamp>().ok();
    Some((time(one)?.as_second() - time(other)?.as_second()).abs())
}

fn now() -> String {
    at(Duration::ZERO)
}

/// The time so long ago, RFC 3339, in whole seconds.
pub fn at(ago: Duration) -> String {
    let seconds = i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
    let second = Timestamp::now().as_second().saturating_sub(seconds);
    Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_node_are_claimed() {
        let addresses =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let vtep =
            |local: &[&str]| Vtep { ip: "10.0.0.1".parse().unwrap(), mac: [2; 6], local: addresses(local) };
        let host = || Some(vtep(&["10.0.0.1", "192.0.2.7", "fd00::1"]));
        assert_eq!(claimed(None, None), Some(None), "no tunnels, no claim");
        assert_eq!(claimed(host(), None), None, "wait for the Node");
        let known = addresses(&["10.0.0.1", "fd00::1", "198.51.100.1"]);
        assert_eq!(claimed(host(), Some(&known)), Some(Some(vtep(&["10.0.0.1", "fd00::1"]))));
        assert_eq!(
            claimed(host(), Some(&[])),
            Some(Some(vtep(&["10.0.0.1"]))),
            "the webhook says what is wrong"
        );
    }

    #[test]
    fn a_state_that_stays_keeps_its_time() {
        let peer = |state: &str, since: &str| NodePeer {
            name: "10.0.0.1".to_owned(),
            state: state.to_owned(),
            since: Some(since.to_owned()),
            ..NodePeer::default()
        };
        let before = [peer("Established", "2026-01-01T00:00:10Z")];
        let same = keep_times(vec![peer("Established", "2026-01-01T00:00:11Z")], &before);
        assert_eq!(same, before, "nothing to write");
        for other in [peer("Active", "2026-01-01T00:00:11Z"), peer("Established", "2026-01-01T00:05:00Z")] {
            assert_eq!(keep_times(vec![other.clone()], &before), [other]);
        }
    }

    #[test]
    fn times_are_whole_seconds_in_utc() {
        let text = at(Duration::from_secs(60));
        assert!(text.ends_with('Z') && text.len() == "2026-01-01T00:00:00Z".len(), "{text}");
    }
}
