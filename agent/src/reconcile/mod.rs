//! The one task that owns the wanted state of this node, and applies it to kernel and speaker.
//!
//! ```text
//!  source task ──Snapshot──►┌──────────────────┐──KernelPlan, PodPlan──► kernel thread
//!  attach flow ──Pod───────►│ reconcile task   │──peers, prefixes──────► speaker task
//!  kernel ──HostChanged────►│ intent, plan,    │──pools────────────────► ipam thread
//!  services ──prefixes─────►│ pods, services,  │──pods, plan, stage────► services task
//!  speaker ──Event─────────►│ sessions         │──release, relearn──┐
//!  pump ──next hops────────►└──────────────────┘                    ▼
//!                       speaker ──RouteChange──► [`pump`] ──batches──► kernel thread
//! ```
//!
//! **Without a speaker**, because it cannot start or has ended, routes and rules stay. The last
//! run's routes are removed only when a speaker has converged, or when the plan has no BGP network.
//! The start is tried again.
//!
//! **Slow path**: after a change of the manifests, the host's links or a session, [`plan`] runs
//! again, and only the differences go to kernel and speaker. A plan is refused as a whole if it has
//! errors, or if it has no place for an existing pod. **Fast path**: an added or removed pod only
//! reads the current plan, and causes one message to each. Prefixes of service addresses are a fast
//! path too: they go to the speaker as they arrive. **Learned routes** bypass this task: the
//! [`pump`] transfers them, and delays only itself.
//!
//! [`plan`]: crate::plan::plan

mod bgp;
mod defaults;
mod listening;
mod originated;
pub mod pump;
mod received_defaults;
mod search;
mod services;
mod stage;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use trunkline_api::control::SettingStatus;
use trunkline_api::resources::AttachmentKind;
use trunkline_bgp::net::{Monitor, SpeakerHandle};
use trunkline_bgp::types::{Family, InterfaceName, PeerKey};
use trunkline_datapath::kernel::KernelError;
use trunkline_datapath::plan::Neighbour;

use crate::ipam::MigrationState;
use crate::plan::intent::{Snapshot, SnapshotRefusal};
use crate::plan::node_claims::IgnoredClaims;
use crate::plan::remote::RemoteClusterPlan;
use crate::plan::{
    AttachTarget, DefaultRouteSelection, JoinError, LinkParameters, NetworkPlan, Plan, PlanError, Pod,
    RefusedRange, join,
};
use crate::services::{AppliedPrefixes, ServicePrefixes};

pub use listening::ListenAddress;
pub use services::ServiceFactReceivers;
pub(crate) use services::host_addresses;
pub use stage::DrainStage;
pub use task::{ReconcileDependencies, spawn};

/// The inputs of a pod's readiness gate.
#[derive(Clone, Debug)]
pub struct ReadinessGate {
    /// Prefixes that a peer must receive before the pod is ready; empty if the pod needs none.
    pub prefixes: Vec<IpNet>,
    /// The speaker that advertises them.
    pub speaker: Option<SpeakerHandle>,
}

/// The state for `status` and for readiness.
#[derive(Clone, Debug, Default)]
pub struct ReconcileStatus {
    /// Whether a snapshot is in force.
    pub applied: bool,
    /// The reasons for which the current manifests are not in force.
    pub refused: Vec<String>,
    /// The reason for which the speaker does not run although it should.
    pub speaker_fault: Option<String>,
    /// The parts of the plan that the kernel rejected, as text.
    pub kernel_faults: Vec<String>,
    /// The drain stage of this node.
    pub stage: DrainStage,
    /// The speaker; none if it does not run.
    pub bgp: Option<SpeakerStatus>,
    /// The speaker's part of the plan while it does not run.
    pub stopped: Option<StoppedBgp>,
    /// The fields of the configuration that AgentSettings set.
    pub settings: Vec<SettingStatus>,
    /// The networks of this node.
    pub networks: BTreeMap<String, NetworkPlan>,
    /// Ignored claims of other nodes.
    pub ignored_claims: IgnoredClaims,
    /// The remote clusters by name.
    pub remote: BTreeMap<String, RemoteClusterPlan>,
    /// Pods with a missing device, by the host interface.
    pub broken: BTreeSet<String>,
    /// Pods without a record.
    pub unrecorded: Vec<UnrecordedPod>,
}

/// A running speaker and its part of the plan.
#[derive(Clone, Debug)]
pub struct SpeakerStatus {
    /// Its handle.
    pub speaker: SpeakerHandle,
    /// The BMP sessions with the stations.
    pub monitors: Arc<[Monitor]>,
    /// The AS of this node.
    pub local_as: u32,
    /// The BGP identifier.
    pub router_id: std::net::Ipv4Addr,
    /// Whether this node advertises GRACEFUL_SHUTDOWN to all its peers (RFC 8326).
    pub graceful_shutdown: bool,
    /// The name of the peer that is down, if pods are advertised without NO_EXPORT.
    pub disaggregated: Option<String>,
    /// The default routes through peers without an import policy.
    pub ways_out: BTreeMap<Family, DefaultRouteSelection>,
    /// Whether routes of peers are imported.
    pub imports: bool,
    /// Peers that need no session before a pod is ready.
    pub optional: BTreeSet<PeerKey>,
    /// Unnumbered peers before their discovery.
    pub waiting: Vec<UndiscoveredPeer>,
    /// Prefixes of dynamic neighbours. One session of these neighbours or of the other peers must
    /// be up before a pod is ready.
    pub required_ranges: Vec<IpNet>,
    /// Prefixes from which the speaker accepts no dynamic neighbour.
    pub refused_ranges: BTreeMap<IpNet, RefusedRange>,
    /// Families with a completed first selection.
    pub converged: Vec<String>,
    /// Listen addresses, each with its fault if it has one.
    pub listening: Arc<[ListenAddress]>,
}

/// The speaker's part of the plan while no speaker runs: the configured peers, which are all down.
#[derive(Clone, Debug)]
pub struct StoppedBgp {
    /// The AS of this node.
    pub local_as: u32,
    /// The BGP identifier.
    pub router_id: std::net::Ipv4Addr,
    /// The reason for which no speaker runs.
    pub fault: String,
    /// The start of this state.
    pub since: Instant,
    /// The peers.
    pub peers: Vec<StoppedPeer>,
}

/// A configured peer while no speaker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedPeer {
    /// Its address; none for an unnumbered peer before its discovery.
    pub key: Option<PeerKey>,
    /// The interface of an unnumbered peer before its discovery.
    pub interface: Option<InterfaceName>,
    /// Its AS.
    pub remote_as: u32,
    /// Whether a pod can be ready without a session with it.
    pub optional: bool,
}

/// An unnumbered peer before its discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndiscoveredPeer {
    /// Its interface.
    pub interface: InterfaceName,
    /// Its AS.
    pub remote_as: u32,
    /// The AS number of this node towards the peer, if it differs from the node's own.
    pub local_as: Option<u32>,
    /// Whether a pod can be ready without a session with it.
    pub optional: bool,
    /// The reason for which it is not discovered.
    pub reason: String,
}

/// A pod in the kernel without a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrecordedPod {
    /// The host interface.
    pub host_ifname: String,
    /// Its index.
    pub host_ifindex: u32,
    /// The container ID, if the alias contains it.
    pub container_id: String,
    /// The interface name in the container, if the alias contains it.
    pub ifname: String,
    /// How it is attached.
    pub attachment: AttachmentKind,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its neighbour entries. Only they contain its MAC.
    pub neighbours: BTreeSet<Neighbour>,
}

/// The inputs of a drain.
#[derive(Clone, Debug, Default)]
pub struct DrainInput {
    /// The speaker.
    pub speaker: Option<SpeakerHandle>,
    /// The prefixes that this node originates while it is undrained.
    pub prefixes: Vec<IpNet>,
    /// The AS of this node; 0 if there is no speaker.
    pub local_as: u32,
}

/// The reason for which a pod is rejected.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// No snapshot is in force.
    #[error("the agent has no configuration in force yet: see `trunkline status`")]
    NotStarted,
    /// The node is drained.
    #[error("{DRAINED}")]
    Drained,
    /// The plan has no network or subnet for it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The host is not ready for it.
    #[error(transparent)]
    Waits(#[from] JoinError),
    /// The kernel rejected it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The task has ended; the process will end soon.
    #[error("the agent is stopping")]
    Stopped,
}

/// The error text for requests that a drained node cannot serve.
pub const DRAINED: &str =
    "this node is drained: `trunkline status` shows the cause, `trunkline undrain` ends the drain";

/// The pods' addresses that this node advertises.
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
    Services(ServicePrefixes, Answer<AppliedPrefixes>),
    Anycast(ServicePrefixes, Answer<AppliedPrefixes>),
    Hold(BTreeSet<IpAddr>, Answer<BTreeMap<IpAddr, u32>>),
    Migrate(String, MigrationState, Vec<IpAddr>, Answer<Option<u32>>),
    Stop(Answer<()>),
}

/// The handle of the task.
#[derive(Clone)]
pub struct Reconcile {
    requests: mpsc::Sender<Request>,
    in_force: watch::Receiver<Option<Arc<Plan>>>,
    sessions: watch::Receiver<u64>,
    services: ServiceFactReceivers,
}

impl Reconcile {
    /// Applies a snapshot, or refuses it as a whole. Returns the snapshot in force.
    pub async fn snapshot(&self, snapshot: Snapshot) -> Option<Result<Arc<Snapshot>, SnapshotRefusal>> {
        self.request(|answer| Request::Snapshot(Box::new(snapshot), answer)).await
    }

    /// Reports that the current manifests have faults.
    pub async fn refused(&self, refused: SnapshotRefusal) {
        let _ = self.requests.send(Request::Refused(refused)).await;
    }

    /// Adds a pod. On return its routes are in the kernel and its prefixes are originated.
    /// Idempotent.
    pub async fn add_pod(&self, pod: Pod) -> Result<ReadinessGate, PodError> {
        self.request(|answer| Request::AddPod(pod, answer)).await.ok_or(PodError::Stopped)?
    }

    /// Removes a pod: its prefixes are withdrawn and its routes are removed. A missing pod is no
    /// error.
    pub async fn remove_pod(&self, host_ifname: String) {
        self.request(|answer| Request::RemovePod(host_ifname, answer)).await;
    }

    /// Waits until a plan is in force, at most until `deadline` or until `abandoned` completes.
    pub async fn started(
        &self,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
    ) -> Result<(), PodError> {
        wait_plan(self.in_force.clone(), deadline, abandoned).await
    }

    /// The plan in force, and every later plan.
    pub fn plan(&self) -> watch::Receiver<Option<Arc<Plan>>> {
        self.in_force.clone()
    }

    /// A number that changes whenever a BGP session comes up, goes down or fails to come up.
    pub fn sessions(&self) -> watch::Receiver<u64> {
        self.sessions.clone()
    }

    /// The parameters of a pod's links. The plan in force usually has them, without a request to
    /// the task.
    pub async fn join(&self, place: AttachTarget) -> Result<LinkParameters, PodError> {
        let plan = self.in_force.borrow().clone();
        if let Some(Ok(parameters)) = plan.map(|plan| join(&plan, &place)) {
            return Ok(parameters);
        }
        self.request(|answer| Request::Join(place, answer)).await.ok_or(PodError::Stopped)?
    }

    /// The current state; `None` if the task has ended.
    pub async fn view(&self) -> Option<ReconcileStatus> {
        self.request(Request::Status).await
    }

    /// Sets the drain stage. On return the speaker has applied it, but the peers may not have
    /// received the updates yet. `None` if the task has ended.
    pub async fn leave(&self, stage: DrainStage) -> Option<DrainInput> {
        self.request(|answer| Request::Leave(stage, answer)).await
    }

    /// The pods' addresses that this node advertises; `None` when the task has ended.
    pub async fn advertised(&self) -> Option<Advertised> {
        self.request(Request::Advertised).await
    }

    /// Excludes these peers from traffic as long as there are others.
    pub async fn leave_out(&self, peers: BTreeSet<PeerKey>) {
        let _ = self.requests.send(Request::LeaveOut(peers)).await;
    }

    /// Originates and withdraws prefixes of service addresses. On return the speaker has them, but
    /// the peers may not have received them yet. `None` if the task has ended.
    pub async fn services(&self, prefixes: ServicePrefixes) -> Option<AppliedPrefixes> {
        self.request(|answer| Request::Services(prefixes, answer)).await
    }

    /// Originates and withdraws anycast addresses, as [`Self::services`] does.
    pub async fn anycast(&self, prefixes: ServicePrefixes) -> Option<AppliedPrefixes> {
        self.request(|answer| Request::Anycast(prefixes, answer)).await
    }

    /// Answers ARP requests and Neighbour Solicitations for these service addresses, and for no
    /// others. On return the kernel answers for those in the result, each on the link with this
    /// ifindex. `None` if the task has ended.
    pub async fn hold(&self, addresses: BTreeSet<IpAddr>) -> Option<BTreeMap<IpAddr, u32>> {
        self.request(|answer| Request::Hold(addresses, answer)).await
    }

    /// Sets a pod's part in a live migration, and on the source's node the addresses of the target's
    /// node. On return the kernel and the speaker have the part. Returns the index of the pod's host
    /// interface; none if the pod is not attached.
    pub async fn migrate(
        &self,
        host_ifname: String,
        state: MigrationState,
        target_addresses: Vec<IpAddr>,
    ) -> Option<u32> {
        let request = |answer| Request::Migrate(host_ifname, state, target_addresses, answer);
        self.request(request).await.flatten()
    }

    /// The facts for service addresses.
    pub fn service_facts(&self) -> ServiceFactReceivers {
        self.services.clone()
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

async fn wait_plan<T>(
    mut in_force: watch::Receiver<Option<T>>,
    deadline: Instant,
    abandoned: impl Future<Output = ()>,
) -> Result<(), PodError> {
    tokio::select! {
        biased;
        plan = in_force.wait_for(Option::is_some) => plan.map(drop).map_err(|_| PodError::Stopped),
        () = tokio::time::sleep_until(deadline) => Err(PodError::NotStarted),
        () = abandoned => Err(PodError::NotStarted),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_before_the_first_plan_waits_for_it() {
        let (plan, in_force) = watch::channel(None);
        let waiting = tokio::spawn(wait_plan(in_force.clone(), soon(), pending()));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        plan.send_replace(Some(()));
        waiting.await.unwrap().unwrap();
        // With a plan, a client that has gone makes no difference.
        wait_plan(in_force, Instant::now(), ready(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_plan_an_add_fails_at_its_deadline() {
        let (plan, in_force) = watch::channel(None::<()>);
        let failed = wait_plan(in_force.clone(), soon(), pending()).await;
        assert!(matches!(failed, Err(PodError::NotStarted)), "{failed:?}");
        let failed = wait_plan(in_force.clone(), soon(), ready(())).await;
        assert!(matches!(failed, Err(PodError::NotStarted)), "{failed:?}");
        drop(plan);
        let failed = wait_plan(in_force, soon(), pending()).await;
        assert!(matches!(failed, Err(PodError::Stopped)), "{failed:?}");
    }
}
