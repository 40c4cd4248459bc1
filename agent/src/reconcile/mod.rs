//! The one task that knows what this node should have, and sees to it that kernel and speaker have it.
//!
//! ```text
//!  source task ──Snapshot──►┌──────────────────┐──KernelPlan, PodPlan──► kernel thread
//!  attach flow ──Pod───────►│ reconcile task   │──peers, prefixes──────► speaker task
//!  kernel ──HostChanged────►│ intent, plan,    │──pools────────────────► ipam thread
//!  speaker ──Event─────────►│ pods, sessions   │──release, relearn──┐
//!  pump ──next hops────────►└──────────────────┘                    ▼
//!                       speaker ──RouteChange──► [`pump`] ──batches──► kernel thread
//! ```
//!
//! **Without a speaker** (it cannot start, or it has ended) routes and rules stay: what the last run left is swept only when
//! a speaker has converged, or the plan has no BGP network. The start is tried again.
//!
//! **Slow path**: the manifests, the host's links or a session changed → [`plan`] anew → only differences go to
//! kernel and speaker. A plan that cannot be made, or that has no place for a pod that is there, is refused before
//! anything of it is applied. **Fast path**: one pod more or less asks the plan that is in force, and is one message
//! to each. **Learned routes** do not come through here at all: the [`pump`] moves them, and holds back only itself.
//!
//! [`plan`]: crate::plan::plan

mod bgp;
mod defaults;
mod listening;
pub mod pump;
mod received_defaults;
mod search;
mod stage;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use trunkline_api::resources::AttachmentKind;
use trunkline_bgp::net::{Monitor, SpeakerHandle};
use trunkline_bgp::types::{Family, InterfaceName, PeerKey};
use trunkline_datapath::plan::Neighbour;

use crate::plan::intent::{Snapshot, SnapshotRefusal};
use crate::plan::{
    AttachTarget, DefaultRouteSelection, LinkParameters, NetworkPlan, Plan, Pod, RefusedRange, join,
};

pub use listening::ListenAddress;
pub use stage::DrainStage;
pub use task::{ReconcileDependencies, spawn};

/// What is known of the fabric when a pod is to be told to it.
#[derive(Clone, Debug)]
pub struct ReadinessGate {
    /// What has to be told before the pod is ready; empty if nothing has to be.
    pub prefixes: Vec<IpNet>,
    /// Who tells it.
    pub speaker: Option<SpeakerHandle>,
}

/// The state of things, for `status` and for readiness.
#[derive(Clone, Debug, Default)]
pub struct ReconcileStatus {
    /// A snapshot is in force.
    pub applied: bool,
    /// Why the manifests as they are now are not in force.
    pub refused: Vec<String>,
    /// Why the speaker does not run although it should, in words.
    pub speaker_fault: Option<String>,
    /// What of the plan the kernel did not take, in words.
    pub kernel_faults: Vec<String>,
    /// How far this node has left the fabric.
    pub stage: DrainStage,
    /// The speaker, while it runs.
    pub bgp: Option<SpeakerStatus>,
    /// What the speaker should do while it does not run.
    pub stopped: Option<StoppedBgp>,
    /// The networks of this node.
    pub networks: BTreeMap<String, NetworkPlan>,
    /// Pods that have lost their device, by the host's end of it.
    pub broken: BTreeSet<String>,
    /// Pods that no record knows.
    pub unrecorded: Vec<UnrecordedPod>,
}

/// The speaker.
#[derive(Clone, Debug)]
pub struct SpeakerStatus {
    /// It.
    pub speaker: SpeakerHandle,
    /// The ways to the monitoring stations.
    pub monitors: Arc<[Monitor]>,
    /// The AS of this node.
    pub local_as: u32,
    /// The BGP identifier.
    pub router_id: std::net::Ipv4Addr,
    /// This node is about to go, and tells all its peers (RFC 8326).
    pub graceful_shutdown: bool,
    /// Why pods are advertised without NO_EXPORT: this peer is down.
    pub disaggregated: Option<String>,
    /// The default routes by peers whose routes are not imported.
    pub ways_out: BTreeMap<Family, DefaultRouteSelection>,
    /// Routes of peers are imported.
    pub imports: bool,
    /// Peers without which a pod may be ready.
    pub optional: BTreeSet<PeerKey>,
    /// Unnumbered peers that are not found yet.
    pub waiting: Vec<UndiscoveredPeer>,
    /// Prefixes of whose dynamic neighbours, or of the other peers, one has to be there before a pod is ready.
    pub required_ranges: Vec<IpNet>,
    /// Prefixes that no dynamic neighbour is accepted from.
    pub refused_ranges: BTreeMap<IpNet, RefusedRange>,
    /// Families whose first selection is done.
    pub converged: Vec<String>,
    /// Where incoming connections are accepted, and where they should be.
    pub listening: Arc<[ListenAddress]>,
}

/// The speaker's part of the plan while no speaker runs: the peers are configured, and down.
#[derive(Clone, Debug)]
pub struct StoppedBgp {
    /// The AS of this node.
    pub local_as: u32,
    /// The BGP identifier.
    pub router_id: std::net::Ipv4Addr,
    /// Why no speaker runs, in words.
    pub fault: String,
    /// Since when.
    pub since: Instant,
    /// The peers.
    pub peers: Vec<StoppedPeer>,
}

/// A configured peer while no speaker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedPeer {
    /// Its address; none of an unnumbered peer that is not found.
    pub key: Option<PeerKey>,
    /// The interface of an unnumbered peer that is not found.
    pub interface: Option<InterfaceName>,
    /// Its AS.
    pub remote_as: u32,
    /// A pod may be ready without it.
    pub optional: bool,
}

/// An unnumbered peer that is not found yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndiscoveredPeer {
    /// Where it should be.
    pub interface: InterfaceName,
    /// Its AS.
    pub remote_as: u32,
    /// The AS that it knows this node by, if not the node's own.
    pub local_as: Option<u32>,
    /// A pod may be ready without it.
    pub optional: bool,
    /// Why it is not found, in words.
    pub reason: String,
}

/// A pod that is in the kernel although no record knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrecordedPod {
    /// The host's end of its link.
    pub host_ifname: String,
    /// Its index.
    pub host_ifindex: u32,
    /// The container, as far as the alias tells.
    pub container_id: String,
    /// The interface in it, as far as the alias tells.
    pub ifname: String,
    /// How it is joined.
    pub attachment: AttachmentKind,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its neighbour entries, which are the only ones who know its MAC.
    pub neighbours: BTreeSet<Neighbour>,
}

/// What there is to leave.
#[derive(Clone, Debug, Default)]
pub struct DrainInput {
    /// Who tells it.
    pub speaker: Option<SpeakerHandle>,
    /// What this node has to tell, whether it does or not.
    pub prefixes: Vec<IpNet>,
    /// The AS of this node; 0 if there is no speaker.
    pub local_as: u32,
}

/// Why a pod is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// No snapshot is in force.
    #[error("the agent has no configuration in force yet: see `trunkline status`")]
    NotStarted,
    /// The plan has no place for it.
    #[error("{0}")]
    Plan(String),
    /// The host is not ready for it.
    #[error("{0}")]
    Waits(String),
    /// The kernel did not take it.
    #[error("{0}")]
    Kernel(String),
    /// The task has ended; the process is about to.
    #[error("the agent is stopping")]
    Stopped,
}

/// What is said where a node that left the fabric is asked for something that needs it.
pub const DRAINED: &str =
    "this node is drained: `trunkline status` says by whom, `trunkline undrain` brings it back";

/// What this node advertises of its pods.
#[derive(Clone, Debug, Default)]
pub struct Advertised {
    /// Addresses of pods; none while this node is drained.
    pub pods: Vec<IpAddr>,
    /// The speaker, while it runs.
    pub speaker: Option<SpeakerHandle>,
}

type Answer<T> = oneshot::Sender<T>;

enum Request {
    Snapshot(Box<Snapshot>, Answer<Result<Arc<Snapshot>, SnapshotRefusal>>),
    Refused(SnapshotRefusal),
    Join(AttachTarget, Answer<Result<LinkParameters, PodError>>),
    AddPod(Pod, Answer<Result<ReadinessGate, PodError>>),
    RemovePod(String, Answer<()>),
    Status(Answer<ReconcileStatus>),
    Leave(DrainStage, Answer<DrainInput>),
    Advertised(Answer<Advertised>),
    LeaveOut(BTreeSet<PeerKey>),
    Stop(Answer<()>),
}

/// The way to the task.
#[derive(Clone)]
pub struct Reconcile {
    requests: mpsc::Sender<Request>,
    in_force: watch::Receiver<Option<Arc<Plan>>>,
    sessions: watch::Receiver<u64>,
}

impl Reconcile {
    /// Takes a snapshot over, or refuses it as a whole. What is in force after is returned.
    pub async fn snapshot(&self, snapshot: Snapshot) -> Option<Result<Arc<Snapshot>, SnapshotRefusal>> {
        self.request(|answer| Request::Snapshot(Box::new(snapshot), answer)).await
    }

    /// The manifests as they are now have faults.
    pub async fn refused(&self, refused: SnapshotRefusal) {
        let _ = self.requests.send(Request::Refused(refused)).await;
    }

    /// One pod more: its routes are in the kernel and its prefixes originated when this is done. Idempotent.
    pub async fn add_pod(&self, pod: Pod) -> Result<ReadinessGate, PodError> {
        self.request(|answer| Request::AddPod(pod, answer)).await.ok_or(PodError::Stopped)?
    }

    /// One pod less: withdrawn, and its routes gone. One that is not there is no error.
    pub async fn remove_pod(&self, host_ifname: String) {
        self.request(|answer| Request::RemovePod(host_ifname, answer)).await;
    }

    /// Whether a plan is in force.
    pub fn started(&self) -> Result<(), PodError> {
        self.in_force.borrow().as_ref().map(drop).ok_or(PodError::NotStarted)
    }

    /// The plan that is in force, now and whenever there is another.
    pub fn plan(&self) -> watch::Receiver<Option<Arc<Plan>>> {
        self.in_force.clone()
    }

    /// A number that changes whenever a BGP session comes up or goes down, or could not come up.
    pub fn sessions(&self) -> watch::Receiver<u64> {
        self.sessions.clone()
    }

    /// What the links of a pod need to know. The plan in force mostly has it, and nobody needs to be asked.
    pub async fn join(&self, place: AttachTarget) -> Result<LinkParameters, PodError> {
        let plan = self.in_force.borrow().clone();
        if let Some(Ok(parameters)) = plan.map(|plan| join(&plan, &place)) {
            return Ok(parameters);
        }
        self.request(|answer| Request::Join(place, answer)).await.ok_or(PodError::Stopped)?
    }

    /// The state of things; `None` when the task has ended.
    pub async fn view(&self) -> Option<ReconcileStatus> {
        self.request(Request::Status).await
    }

    /// Leaves the fabric so far, or comes back. The speaker knows when this is done; that the peers do has to be waited for. `None` when
    /// the task has ended.
    pub async fn leave(&self, stage: DrainStage) -> Option<DrainInput> {
        self.request(|answer| Request::Leave(stage, answer)).await
    }

    /// The pods' addresses that this node advertises; `None` when the task has ended.
    pub async fn advertised(&self) -> Option<Advertised> {
        self.request(Request::Advertised).await
    }

    /// Sends no traffic to these peers from now on, while there are others.
    pub async fn leave_out(&self, peers: BTreeSet<PeerKey>) {
        let _ = self.requests.send(Request::LeaveOut(peers)).await;
    }

    /// Stops the speaker silently and ends the task. The kernel stays as it is.
    pub async fn stop(&self) {
        self.request(Request::Stop).await;
    }

    async fn request<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (answer, reply) = oneshot::channel();
        self.requests.send(request(answer)).await.ok()?;
        reply.await.ok()
    }
}
