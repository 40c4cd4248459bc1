//! The task itself.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use trunkline_api::resources::ServiceAdvertisement;
use trunkline_bgp::bfd::HostLink;
use trunkline_bgp::bmp::StationConfig;
use trunkline_bgp::config::SpeakerConfig;
use trunkline_bgp::net::{Events, Monitor, ShellConfig, release_free_memory};
use trunkline_bgp::speaker::{Event, Stop};
use trunkline_bgp::types::{Family, FamilySet, NextHop, PeerKey};
use trunkline_datapath::kernel::{KernelError, KernelEvent, KernelEvents, KernelHandle};
use trunkline_datapath::plan::SharedPlan;

use super::bgp::{AppliedBgp, Prefixes, host_links};
use super::defaults::LostDefaultRoutes;
use super::listening::ListenAddresses;
use super::pump::{PumpCommand, PumpEvent};
use super::received_defaults::ReceivedDefaultRoutes;
use super::search::Search;
use super::services::{ServiceFacts, ServiceOriginations};
use super::{
    DrainStage, PodError, ReadinessGate, Reconcile, ReconcileStatus, Request, SpeakerStatus, UnrecordedPod,
};
use crate::change_notifier::ChangeNotifier;
use crate::family::ip_family;
use crate::fault_log::FaultLog;
use crate::history::History;
use crate::ipam::{Ipam, NetworkSpec, Pool, PoolSpec};
use crate::metrics::Metrics;
use crate::plan::intent::{Snapshot, SnapshotRefusal};
use crate::plan::{
    AttachTarget, Host, Intent, Learned, LinkParameters, Mode, NodeIdentity, PeerDefaultRoutes, Plan,
    PlannedPod, Pod, Session, join, plan, plan_pod,
};
use crate::settings::{NodeSettings, Settings};

mod migration;
mod services;
mod settings;
mod speaker;
mod unrecorded;

use unrecorded::unrecorded_plan;

/// The first pause before a retry. The agent retries a failed start of the speaker, a plan that the
/// kernel owner did not answer, and a plan without the guard. Each further pause is twice as long,
/// up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// The minimum number of routes in the old or the new plan for a release of free memory. The old
/// plan and the lists that the planner needed are then free memory between other objects.
const MANY_ROUTES: usize = 1_000;
/// The time from a new plan to the release. Several plans share one release.
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// The inputs of the task.
pub struct ReconcileDependencies {
    /// Name of this node. The snapshot contains its labels.
    pub node: String,
    /// The BGP identifier, if it is configured.
    pub router_id: Option<Ipv4Addr>,
    /// The settings of this node, for the planner.
    pub settings: Settings,
    /// Listen settings of BGP.
    pub shell: ShellConfig,
    /// The speaker's configuration without the plan's part.
    pub speaker: SpeakerConfig,
    /// The BMP stations.
    pub stations: Vec<SocketAddr>,
    /// Settings of the BMP sessions.
    pub station: StationConfig,
    /// The kernel owner.
    pub kernel: KernelHandle,
    /// The addresses whose links the kernel owner reports.
    pub reached: BTreeSet<IpAddr>,
    /// Its events.
    pub kernel_events: KernelEvents,
    /// The owner of addresses.
    pub ipam: Ipam,
    /// The event history.
    pub history: History,
    /// Whether addresses come from this node's own pools.
    pub own_pools: bool,
    /// Pods of the last run with existing devices.
    pub pods: Vec<Pod>,
    /// Pods without a record.
    pub unrecorded: Vec<UnrecordedPod>,
    /// Attached pods with missing devices, by the host interface.
    pub broken: BTreeSet<String>,
    /// The host's addresses.
    pub host_addresses: BTreeSet<IpAddr>,
    /// Whether the first advertisements wait for the first prefixes of service addresses, at most
    /// for the Selection_Deferral_Timer.
    pub waits_for_services: bool,
    /// Whether they wait for the first prefixes of anycast addresses, for the same time.
    pub waits_for_anycast: bool,
    /// Service addresses of L2 pools for which this node answered in its last run.
    pub held_addresses: BTreeSet<IpAddr>,
    /// Duration metrics of the reactions to a lost peer.
    pub metrics: Metrics,
    /// Notified when the output of [`ReconcileStatus`] or of the speaker changes.
    pub notifier: ChangeNotifier,
    /// The drain stage of this node at the start.
    pub stage: DrainStage,
}

/// The state of a session.
#[derive(Clone, Debug, Default)]
struct SessionState {
    up: bool,
    /// Whether the session was up since this task began.
    was_up: bool,
    local: Option<IpAddr>,
    /// The negotiated families.
    families: FamilySet,
    /// Families with End-of-RIB.
    complete: FamilySet,
    /// Families in which the peer restarts and still forwards (RFC 4724 §4.2).
    retained: FamilySet,
    next_hops: BTreeMap<Family, NextHop>,
    /// Whether the session belongs to an ended speaker. Then `retained` stays until the next
    /// speaker has converged.
    former: bool,
}

/// A running speaker with its tasks and channels.
struct RunningSpeaker {
    applied: AppliedBgp,
    monitors: Arc<[Monitor]>,
    events: Events,
    listening: ListenAddresses,
    pump_commands: mpsc::UnboundedSender<PumpCommand>,
    pump_events: mpsc::UnboundedReceiver<PumpEvent>,
}

/// The next start of a stopped speaker.
struct Restart {
    /// None from the start of the speaker until it has converged.
    at: Option<Instant>,
    /// The pause before `at`: each failed start doubles it.
    pause: Duration,
    /// The time since which no speaker runs.
    since: Instant,
}

struct Task {
    node: String,
    router_id: Option<Ipv4Addr>,
    settings: Settings,
    /// The settings of the snapshot in force.
    settings_in_force: Option<Arc<NodeSettings>>,
    /// The addresses whose links the kernel owner reports.
    reached: BTreeSet<IpAddr>,
    shell: ShellConfig,
    speaker: SpeakerConfig,
    stations: Vec<SocketAddr>,
    station: StationConfig,
    kernel: KernelHandle,
    ipam: Ipam,
    history: History,
    own_pools: bool,
    snapshot: Option<Arc<Snapshot>>,
    plan: Option<Arc<Plan>>,
    /// Reports of ignored claims by node and field.
    claim_log: FaultLog<(String, &'static str)>,
    pods: BTreeMap<String, Pod>,
    planned: BTreeMap<String, PlannedPod>,
    unrecorded: BTreeMap<String, UnrecordedPod>,
    broken: BTreeSet<String>,
    services: ServiceOriginations,
    /// The end of the wait for the first prefixes of service addresses; none if nothing waits.
    services_until: Option<Instant>,
    /// The end of the wait for the first prefixes of anycast addresses; none if nothing waits.
    anycast_until: Option<Instant>,
    service_facts: ServiceFacts,
    /// Service addresses of L2 pools for which this node answers.
    held_addresses: BTreeSet<IpAddr>,
    stage: DrainStage,
    running: Option<RunningSpeaker>,
    search: Search,
    sessions: BTreeMap<PeerKey, SessionState>,
    received_defaults: ReceivedDefaultRoutes,
    converged: FamilySet,
    /// Converged families with routes of the last run still in the kernel; `held_until` limits the
    /// time.
    held: FamilySet,
    held_until: Option<Instant>,
    refused: Vec<String>,
    speaker_fault: Option<String>,
    /// The next start of the speaker, if the plan has one and it does not run.
    restart: Option<Restart>,
    /// The time of the next try to apply the plan while the kernel owner has not answered, or while
    /// the guard is enabled and not in force; and the pause before it.
    reapply: Option<(Instant, Duration)>,
    /// The time of the next release of free memory, after a plan with many routes.
    release_at: Option<Instant>,
    /// Whether the kernel owner has all pods of the last run.
    populated: bool,
    kernel_faults: Vec<String>,
    notifier: ChangeNotifier,
    defaults: LostDefaultRoutes,
    /// The plan, for readers.
    in_force: watch::Sender<Option<Arc<Plan>>>,
    /// The imported peers, for the pump.
    imported: watch::Sender<Option<Arc<Learned>>>,
    changed_sessions: watch::Sender<u64>,
    /// The host's links, for BFD.
    links: Vec<HostLink>,
    /// Peers with probe faults.
    left_out: BTreeSet<PeerKey>,
    /// Whether links or sessions have changed since the plan was made.
    stale: bool,
    metrics: Metrics,
}

/// Starts the task. It ends after [`Reconcile::stop`], or after an error that it cannot recover
/// from.
pub fn spawn(start: ReconcileDependencies) -> (Reconcile, JoinHandle<()>) {
    let (requests, inbox) = mpsc::channel(256);
    let (in_force, reader) = watch::channel(None);
    let (changed_sessions, sessions) = watch::channel(0);
    let ReconcileDependencies {
        node,
        router_id,
        settings,
        shell,
        speaker,
        stations,
        station,
        kernel,
        reached,
        kernel_events,
        ipam,
        history,
        own_pools,
        pods,
        unrecorded,
        broken,
        host_addresses,
        waits_for_services,
        waits_for_anycast,
        held_addresses,
        metrics,
        notifier,
        stage,
    } = start;
    let former = pods
        .iter()
        .filter(|pod| !broken.contains(&pod.host_ifname))
        .map(|pod| (&pod.addresses, &pod.host_ifname))
        .chain(unrecorded.iter().map(|pod| (&pod.addresses, &pod.host_ifname)))
        .flat_map(|(addresses, ifname)| addresses.iter().map(|address| (*address, ifname.clone())))
        .collect();
    let services_until = waits_for_services.then(|| Instant::now() + speaker.selection_deferral);
    let anycast_until = waits_for_anycast.then(|| Instant::now() + speaker.selection_deferral);
    let (service_facts, services) = ServiceFacts::new(former, &host_addresses, &stage);
    let by_ifname = |pod: Pod| (pod.host_ifname.clone(), pod);
    let task = Task {
        node,
        router_id,
        settings,
        settings_in_force: None,
        reached,
        shell,
        speaker,
        stations,
        station,
        kernel,
        ipam,
        history,
        own_pools,
        snapshot: None,
        plan: None,
        claim_log: FaultLog::default(),
        pods: pods.into_iter().map(by_ifname).collect(),
        planned: BTreeMap::new(),
        unrecorded: unrecorded.into_iter().map(|pod| (pod.host_ifname.clone(), pod)).collect(),
        broken,
        services: ServiceOriginations::default(),
        services_until,
        anycast_until,
        service_facts,
        held_addresses,
        stage,
        running: None,
        search: Search::new(),
        sessions: BTreeMap::new(),
        received_defaults: ReceivedDefaultRoutes::default(),
        converged: FamilySet::EMPTY,
        held: FamilySet::EMPTY,
        held_until: None,
        refused: Vec::new(),
        speaker_fault: None,
        restart: None,
        reapply: None,
        release_at: None,
        populated: false,
        kernel_faults: Vec::new(),
        notifier,
        defaults: LostDefaultRoutes::default(),
        in_force,
        imported: watch::Sender::new(None),
        changed_sessions,
        links: Vec::new(),
        left_out: BTreeSet::new(),
        stale: false,
        metrics,
    };
    let handle = tokio::spawn(task.run(inbox, kernel_events));
    (Reconcile { requests, in_force: reader, sessions, services }, handle)
}

/// The next input of the speaker; pending forever without a speaker.
async fn next_input(running: &mut Option<RunningSpeaker>) -> SpeakerInput {
    let Some(running) = running else { return std::future::pending().await };
    tokio::select! {
        event = running.events.next() => event.map_or(SpeakerInput::Ended, SpeakerInput::Event),
        Some(event) = running.pump_events.recv() => SpeakerInput::Pump(event),
    }
}

/// The time of the next try after a failed one, and the pause before it.
fn next_try(last: Option<(Instant, Duration)>) -> (Instant, Duration) {
    let pause = last.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LAST_PAUSE));
    (Instant::now() + pause, pause)
}

async fn overdue(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

enum SpeakerInput {
    Event(Event),
    Pump(PumpEvent),
    Ended,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>, mut kernel_events: KernelEvents) {
        self.announce_unrecorded();
        loop {
            let search_until = self.search.deadline();
            let reapply_at = self.reapply.map(|(at, _)| at);
            let restart_at = self.restart.as_ref().and_then(|restart| restart.at);
            let claims_at = self.claim_log.due();
            tokio::select! {
                biased;
                request = inbox.recv() => match request {
                    Some(Request::Stop(done)) => {
                        self.stop_speaker(Stop::Silent).await;
                        let _ = done.send(());
                        return;
                    }
                    // A status request changes nothing.
                    Some(Request::Status(answer)) => {
                        let _ = answer.send(self.view());
                        continue;
                    }
                    Some(Request::Advertised(answer)) => {
                        let _ = answer.send(self.advertised());
                        continue;
                    }
                    Some(request) => self.handle(request).await,
                    None => return self.stop_speaker(Stop::Silent).await,
                },
                event = kernel_events.next() => match event {
                    Some(KernelEvent::HostChanged) => self.stale = true,
                    Some(KernelEvent::DeviceGone { host_ifname }) => self.device_gone(&host_ifname).await,
                    None => {
                        tracing::error!("the kernel thread has ended");
                        return self.stop_speaker(Stop::Silent).await;
                    }
                },
                () = overdue(self.held_until) => {
                    self.drain();
                    // The pump is still busy. If it has ended instead, no answer can arrive.
                    self.held_until = None;
                }
                () = self.search.changed() => self.stale = true,
                () = overdue(search_until) => {
                    self.search.give_up();
                    self.drive_speaker().await;
                }
                () = overdue(self.services_until) => {
                    tracing::warn!("service addresses are not known in time: the other prefixes are advertised");
                    self.services_ready().await;
                }
                () = overdue(self.anycast_until) => {
                    tracing::warn!("anycast addresses are not known in time: the other prefixes are advertised");
                    self.anycast_ready().await;
                }
                () = overdue(restart_at) => self.drive_speaker().await,
                () = overdue(claims_at) => {
                    if let Some(plan) = self.plan.clone() {
                        self.log_claims(&plan);
                    }
                    continue;
                }
                () = overdue(self.release_at) => {
                    self.release_at = None;
                    release_free_memory();
                    continue;
                }
                () = overdue(reapply_at) => if let Some(plan) = self.plan.clone() {
                    self.apply(plan).await;
                },
                input = next_input(&mut self.running) => match input {
                    SpeakerInput::Event(event) => self.handle_speaker_event(event).await,
                    SpeakerInput::Pump(PumpEvent::NextHopChanged { peer, family, next_hop }) => {
                        self.sessions.entry(peer).or_default().next_hops.insert(family, next_hop);
                        self.stale = true;
                    }
                    SpeakerInput::Pump(PumpEvent::Drained(family)) => {
                        // The next hop of a default route can be one that the pump reported before.
                        self.replan().await;
                        self.release(family).await;
                    }
                    SpeakerInput::Pump(PumpEvent::Settled(since)) => {
                        // The plan contains the default routes through the peer.
                        self.replan().await;
                        self.metrics.peer_loss_settled(since.elapsed());
                    }
                    SpeakerInput::Ended => self.speaker_ended().await,
                },
                // This is the last step, after all other tasks had a turn. Removed stale paths and
                // the new session are two events of one moment. A plan between them would remove a
                // route and add it again.
                () = tokio::task::yield_now(), if self.stale => self.replan().await,
            }
            self.notifier.notify();
        }
    }

    async fn handle(&mut self, request: Request) {
        match request {
            Request::Snapshot(snapshot, answer) => {
                let outcome = self.take_over(*snapshot).await;
                match &outcome {
                    Ok(_) => self.refused.clear(),
                    Err(refused) => self.refused.clone_from(&refused.faults),
                }
                let _ = answer.send(outcome);
            }
            Request::Refused(refused) => self.refused = refused.faults,
            Request::Join(place, answer) => {
                let outcome = self.join(&place).await;
                let _ = answer.send(outcome);
            }
            Request::AddPod(pod, answer) => {
                let outcome = self.add_pod(pod).await;
                let _ = answer.send(outcome);
            }
            Request::RemovePod(host_ifname, answer) => {
                self.remove_pod(&host_ifname).await;
                let _ = answer.send(());
            }
            Request::Leave(stage, answer) => {
                let _ = answer.send(self.leave(stage).await);
            }
            Request::Services(prefixes, answer) => {
                let _ = answer.send(self.apply_services(prefixes).await);
            }
            Request::Anycast(prefixes, answer) => {
                let _ = answer.send(self.apply_anycast(prefixes).await);
            }
            Request::Hold(addresses, answer) => {
                let _ = answer.send(self.hold_addresses(addresses).await);
            }
            Request::Migrate(host_ifname, state, target_addresses, answer) => {
                let _ = answer.send(self.migrate(&host_ifname, state, target_addresses).await);
            }
            Request::LeaveOut(peers) => {
                self.left_out = peers;
                self.stale = true;
            }
            // The loop handles these requests.
            Request::Status(_) | Request::Advertised(_) | Request::Stop(_) => {}
        }
    }

    // ---- slow path

    async fn take_over(&mut self, snapshot: Snapshot) -> Result<Arc<Snapshot>, SnapshotRefusal> {
        if let Some(running) = self.snapshot.as_ref().filter(|running| ***running == snapshot) {
            return Ok(Arc::clone(running));
        }
        let plan = self.make_plan(&snapshot).await?;
        let snapshot = Arc::new(snapshot);
        self.snapshot = Some(Arc::clone(&snapshot));
        self.follow_settings(&snapshot);
        self.configure_pools(&plan, &snapshot);
        self.start_now();
        self.apply(Arc::new(plan)).await;
        tracing::info!(
            networks = snapshot.networks.len(),
            subnets = snapshot.subnets.len(),
            "the manifests are in force"
        );
        Ok(snapshot)
    }

    /// Makes a new plan after a change of the host or of sessions.
    async fn replan(&mut self) {
        self.stale = false;
        let Some(snapshot) = self.snapshot.clone() else { return };
        match self.make_plan(&snapshot).await {
            Ok(plan)
                if self.plan.as_deref() == Some(&plan) && self.running.is_some() == plan.bgp.is_some() => {}
            Ok(plan) => self.apply(Arc::new(plan)).await,
            Err(refused) => tracing::error!(error = %refused, "the plan stays as it was"),
        }
        self.set_links().await;
    }

    /// Makes a plan with a place for every existing pod, or returns the reason for its absence.
    async fn make_plan(&mut self, snapshot: &Snapshot) -> Result<Plan, SnapshotRefusal> {
        let one = |fault: String| SnapshotRefusal { faults: vec![fault] };
        let node_settings = self.settings.of_node(&snapshot.agent_settings, &snapshot.labels);
        let node_settings = node_settings.map_err(|error| one(error.to_string()))?;
        let settings = &node_settings.plan;
        if self.reached != settings.reached {
            let set = self.kernel.set_reach(settings.reached.clone()).await;
            set.map_err(|error| one(error.to_string()))?;
            self.reached.clone_from(&settings.reached);
        }
        let mut kernel = self.kernel.host().await.map_err(|error| one(error.to_string()))?;
        self.links = host_links(&kernel);
        self.service_facts.set_host(&kernel);
        kernel.former = self.received_defaults.former(kernel.former);
        let sessions = self
            .sessions
            .iter()
            .map(|(peer, known)| Session {
                peer: *peer,
                local: known.local,
                established: known.up || !known.retained.is_empty(),
                was_established: known.was_up,
                next_hops: known.next_hops.clone(),
                offer: PeerDefaultRoutes { complete: known.complete, ..self.received_defaults.of(peer) },
            })
            .collect();
        let host = Host {
            kernel,
            sessions,
            converged: Family::ALL.into_iter().all(|family| self.converged.contains(family)),
            neighbours: self.search.found(),
            left_out: self.left_out.clone(),
            anycast: self.services.anycast(),
            held: self.held_addresses.clone(),
            migrating: self.migrating(),
        };
        let advertisements = &snapshot.services.advertisements;
        self.services.tags.name(advertisements.iter().map(ServiceAdvertisement::name));
        let intent = Intent {
            node: NodeIdentity { name: self.node.clone(), labels: snapshot.labels.clone() },
            networks: snapshot.networks.clone(),
            subnets: snapshot.subnets.clone(),
            nodes: snapshot.nodes.clone(),
            overlay_pods: snapshot.overlay_pods.clone(),
            remote: snapshot.remote.clone(),
            api_servers: snapshot.api_servers.clone(),
            remote_limits: settings.remote_limits.clone(),
            services: snapshot.services.clone(),
            service_tags: self.services.tags.clone(),
            tunnels: settings.tunnels.clone(),
            guard: settings.guard.clone(),
            kernel_limits: settings.kernel_limits,
            sysctls: settings.sysctls,
            probes: settings.probes.clone(),
            // A derived identifier stays: another identifier would reset every session.
            router_id: self.router_id.or(self.running.as_ref().map(|running| running.applied.router_id)),
            in_cluster: !self.own_pools,
            service_cidrs: settings.service_cidrs.clone(),
            vlan_interfaces: settings.vlan_interfaces.clone(),
            pods_send_arp: settings.pods_send_arp,
            pod_mtu: settings.pod_mtu,
        };
        let plan = plan(&intent, &host)
            .map_err(|errors| SnapshotRefusal { faults: errors.iter().map(ToString::to_string).collect() })?;
        let mut homeless: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.pods.values() {
            if let Err((fault, address)) = home(&plan, pod) {
                homeless.entry(fault).or_default().push(address.to_string());
            }
        }
        if !homeless.is_empty() {
            let describe = |(fault, addresses): (String, Vec<String>)| {
                let (first, number) = (addresses.first().cloned().unwrap_or_default(), addresses.len());
                format!(
                    "{fault}: {number} attached pods, such as {first}, need it: delete them first, \
                     or undo the change"
                )
            };
            return Err(SnapshotRefusal { faults: homeless.into_iter().map(describe).collect() });
        }
        Ok(plan)
    }

    fn log_claims(&mut self, plan: &Plan) {
        let faults = plan.ignored_claims.faults.iter();
        let faults = faults.map(|fault| ((fault.node.clone(), fault.field), fault.to_string())).collect();
        for fault in self.claim_log.select(Instant::now(), faults) {
            tracing::warn!(%fault, "a claim of another node is ignored");
        }
    }

    async fn apply(&mut self, plan: Arc<Plan>) {
        let first = self.plan.is_none();
        self.log_claims(&plan);
        match self.kernel.set_plan(SharedPlan::of(Arc::clone(&plan))).await {
            Ok(applied) => {
                for fault in applied.faults.iter().filter(|fault| !self.kernel_faults.contains(fault)) {
                    tracing::error!(%fault, "the kernel rejects a part of the plan");
                }
                self.kernel_faults = applied.faults;
                self.reapply = applied.unguarded.then(|| next_try(self.reapply));
                // Set the imported peers before `Relearn`, because the pump needs them to convert
                // the repeated routes.
                let others = self.imported.send_if_modified(|imported| {
                    let others = imported.as_deref() != plan.learned.as_ref();
                    if others {
                        *imported = plan.learned.clone().map(Arc::new);
                    }
                    others
                });
                if (applied.relearn || others)
                    && let Some(running) = &self.running
                {
                    let _ = running.pump_commands.send(PumpCommand::Relearn);
                }
            }
            Err(error) => self.not_applied("the plan was not applied to the kernel", &error),
        }
        let mut planned: BTreeMap<String, PlannedPod> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| !self.broken.contains(&pod.host_ifname)) {
            if let Ok(pod_plan) = plan_pod(&plan, pod) {
                let before = self.planned.get(&pod.host_ifname).map(|before| &before.kernel.sources);
                if before != Some(&pod_plan.kernel.sources) {
                    record_refused(&plan, pod);
                }
                planned.insert(pod.host_ifname.clone(), pod_plan);
            }
        }
        for pod in self.unrecorded.values() {
            planned.insert(pod.host_ifname.clone(), unrecorded_plan(&plan, pod));
        }
        if !self.populated {
            match self.kernel.set_pods(planned.values().map(|pod| pod.kernel.clone()).collect()).await {
                Ok(faults) => {
                    self.populated = true;
                    for fault in faults {
                        tracing::error!(device = fault.host_ifname, error = %fault.error, "a pod of the last run is incomplete");
                        if fault.gone {
                            planned.remove(&fault.host_ifname);
                            self.broken.insert(fault.host_ifname);
                        } else {
                            self.kernel_faults.push(fault.error.to_string());
                        }
                    }
                }
                Err(error) => self.not_applied("the pods of the last run could not be adopted", &error),
            }
        } else {
            for (host_ifname, pod_plan) in &planned {
                let before = self.planned.get(host_ifname);
                if before.map(|before| &before.kernel) != Some(&pod_plan.kernel)
                    && let Err(error) = self.kernel.add_pod(pod_plan.kernel.clone()).await
                {
                    tracing::error!(device = host_ifname, %error, "a pod's routes could not be changed");
                }
            }
        }
        self.planned = planned;
        self.service_facts.set_pods(&self.planned);
        self.history.set_imports(plan.learned.is_some());
        for change in self.defaults.change(self.plan.as_deref(), &plan) {
            self.history.record(change.kind, change.peer, Some(change.prefix), change.text);
        }
        self.search.follow(plan.bgp.as_ref().map(|bgp| &bgp.unnumbered));
        self.plan = Some(plan);
        self.drive_speaker().await;
        let routes = |plan: &Arc<Plan>| plan.kernel.routes.len();
        let before = self.in_force.send_replace(self.plan.clone());
        if before.as_ref().map_or(0, routes).max(self.plan.as_ref().map_or(0, routes)) >= MANY_ROUTES {
            self.release_at.get_or_insert_with(|| Instant::now() + RELEASE_DELAY);
        }
        // The services task sends prefixes with the tags of this plan, so the policies come first.
        if let Some(plan) = &self.plan {
            self.service_facts.set_plan(&plan.services);
            self.service_facts.set_anycast(&plan.anycast);
        }
        if first && self.plan.as_ref().is_none_or(|plan| plan.bgp.is_none()) {
            // No speaker will converge. (If the speaker cannot start now, it converges later, and
            // the existing routes stay until then.)
            for family in Family::ALL {
                let _ = self.kernel.release(ip_family(family)).await;
            }
        }
    }

    /// Handles a missing answer. The kernel's state stays. The plan is applied again after a pause,
    /// because no event shows that the kernel owner would answer.
    fn not_applied(&mut self, what: &str, error: &KernelError) {
        let fault = format!("{what}: {error}");
        if !self.kernel_faults.contains(&fault) {
            tracing::error!("{fault}");
        }
        self.kernel_faults = vec![fault];
        self.reapply = Some(next_try(self.reapply));
    }

    fn configure_pools(&self, plan: &Plan, snapshot: &Snapshot) {
        let networks = plan.networks.iter().map(|(name, network)| NetworkSpec {
            name: name.clone(),
            default_candidate: matches!(network.mode, Mode::Bgp | Mode::Vlan),
            attachment: network.attachment,
            refused: network.refused.clone(),
        });
        let mut pools = Vec::new();
        for subnet in snapshot.subnets.iter().filter(|_| self.own_pools) {
            let network = plan.networks.get(&subnet.spec.network);
            let Some(planned) = network.and_then(|network| network.subnets.get(subnet.name())) else {
                continue;
            };
            let pool = subnet.spec.range.parse().map_err(Box::<dyn Error>::from).and_then(|range| {
                let (first, last) = planned.allocatable_range(&range);
                let spec = PoolSpec {
                    subnet: subnet.name().to_owned(),
                    network: subnet.spec.network.clone(),
                    cidr: range.cidr,
                    start: Some(first),
                    end: Some(last),
                    gateway: range.gateway,
                    reserved: range.reserved,
                    excluded: range.excluded,
                    private: subnet.is_private(),
                    access: subnet.access(),
                };
                Ok(Pool::new(spec)?)
            });
            match pool {
                Ok(pool) => pools.push(pool),
                // Validation prevents this. If it missed a case, no address is allocated from this
                // subnet.
                Err(error) => {
                    tracing::error!(subnet = subnet.name(), %error, "the subnet allocates no addresses")
                }
            }
        }
        self.ipam.configure(networks.collect(), pools);
    }

    // ---- fast path

    async fn add_pod(&mut self, pod: Pod) -> Result<ReadinessGate, PodError> {
        let plan = self.plan.as_ref().ok_or(PodError::NotStarted)?;
        if self.stage.withdraws() {
            return Err(PodError::Drained);
        }
        let pod_plan = plan_pod(plan, &pod)?;
        self.kernel.add_pod(pod_plan.kernel.clone()).await?;
        if self.pods.get(&pod.host_ifname) != Some(&pod) {
            record_refused(plan, &pod);
        }
        let bgp = plan.bgp.as_ref();
        let gated = bgp.is_some_and(|bgp| {
            bgp.peers.keys().any(|peer| !bgp.optional_peers.contains(peer))
                || bgp.unnumbered.values().any(|peer| !peer.optional)
                || (bgp.ranges.keys().chain(bgp.refused_ranges.keys()))
                    .any(|prefix| !bgp.optional_ranges.contains(prefix))
        });
        let prefixes: Vec<_> = pod_plan.originate.keys().copied().collect();
        if let Some(running) = &mut self.running
            && running.applied.add(&pod_plan.originate).await.is_err()
        {
            self.speaker_fault = Some("the BGP speaker has ended".to_owned());
        }
        self.broken.remove(&pod.host_ifname);
        self.unrecorded.remove(&pod.host_ifname);
        // The plan has a rule for the pod.
        self.stale |= !pod.migration.is_active();
        self.service_facts.add_pod(&pod.host_ifname, &pod_plan.kernel);
        self.planned.insert(pod.host_ifname.clone(), pod_plan);
        self.pods.insert(pod.host_ifname.clone(), pod);
        Ok(ReadinessGate {
            prefixes: if gated { prefixes } else { Vec::new() },
            speaker: self.running.as_ref().map(|running| running.applied.handle.clone()),
        })
    }

    async fn join(&mut self, place: &AttachTarget) -> Result<LinkParameters, PodError> {
        self.repair_while(|plan| join(plan, place).is_err()).await;
        let plan = self.plan.as_ref().ok_or(PodError::NotStarted)?;
        Ok(join(plan, place)?)
    }

    /// If a pod would have to wait for the host, checks whether the host is ready now. Only the
    /// next plan knows a device that the last plan created, and no event shows that a missing
    /// driver can now be loaded.
    async fn repair_while(&mut self, waits: impl Fn(&Plan) -> bool) {
        let waits = |plan: &Option<Arc<Plan>>| plan.as_deref().is_some_and(&waits);
        if waits(&self.plan) {
            self.replan().await;
        }
        if waits(&self.plan)
            && let Some(plan) = self.plan.clone()
        {
            self.apply(plan).await;
            self.replan().await;
        }
    }

    async fn remove_pod(&mut self, host_ifname: &str) {
        let pod = self.pods.remove(host_ifname);
        // The plan has a rule for the pod.
        self.stale |= pod.is_some_and(|pod| !pod.migration.is_active());
        self.broken.remove(host_ifname);
        self.withdraw(host_ifname).await;
        if let Err(error) = self.kernel.remove_pod(host_ifname).await {
            // The routes disappear with the device, which is deleted next.
            tracing::warn!(device = host_ifname, %error, "a pod's routes could not be removed");
        }
        if self.unrecorded.remove(host_ifname).is_some() {
            self.announce_unrecorded();
        }
    }

    /// Handles a deleted pod link, or a namespace that ended before its DEL.
    async fn device_gone(&mut self, host_ifname: &str) {
        self.withdraw(host_ifname).await;
        if self.unrecorded.remove(host_ifname).is_some() {
            self.announce_unrecorded();
        }
        if let Some(pod) = self.pods.get(host_ifname) {
            let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
            tracing::warn!(
                device = host_ifname,
                addresses = addresses.join(","),
                "a pod's link is gone: it is withdrawn, and its addresses stay allocated until its DEL or GC"
            );
            self.broken.insert(host_ifname.to_owned());
        }
    }

    async fn withdraw(&mut self, host_ifname: &str) {
        let Some(pod_plan) = self.planned.remove(host_ifname) else { return };
        self.service_facts.remove_pod(host_ifname, &pod_plan.kernel);
        self.change_prefixes(pod_plan.originate.into_keys().collect(), Prefixes::new()).await;
    }

    fn announce_unrecorded(&self) {
        let addresses = self.unrecorded.values().flat_map(|pod| pod.addresses.iter().copied()).collect();
        self.ipam.unrecorded(addresses);
    }

    // ---- the speaker

    fn view(&self) -> ReconcileStatus {
        let bgp = self.running.as_ref().zip(self.plan.as_ref().and_then(|plan| plan.bgp.as_ref()));
        ReconcileStatus {
            applied: self.snapshot.is_some(),
            refused: self.refused.clone(),
            speaker_fault: self.speaker_fault.clone(),
            kernel_faults: self.kernel_faults.clone(),
            stage: self.stage.clone(),
            stopped: self.stopped(),
            bgp: bgp.map(|(running, plan)| SpeakerStatus {
                speaker: running.applied.handle.clone(),
                monitors: Arc::clone(&running.monitors),
                local_as: running.applied.local_as.0,
                router_id: running.applied.router_id,
                graceful_shutdown: plan.graceful_shutdown || self.stage.announces(),
                disaggregated: plan.disaggregated.clone(),
                ways_out: self.plan.as_ref().map(|plan| plan.ways_out.clone()).unwrap_or_default(),
                imports: self.plan.as_ref().is_some_and(|plan| plan.learned.is_some()),
                optional: plan.optional_peers.clone(),
                waiting: self.search.waiting(&plan.unnumbered),
                required_ranges: {
                    let required = |prefix: &&_| !plan.optional_ranges.contains(*prefix);
                    let all = plan.ranges.keys().chain(plan.refused_ranges.keys());
                    all.filter(required).copied().collect()
                },
                refused_ranges: plan.refused_ranges.clone(),
                converged: self.converged.iter().map(|family| family.to_string()).collect(),
                listening: Arc::clone(&running.listening.borrow()),
            }),
            settings: self.settings_in_force.as_ref().map(|known| known.fields.clone()).unwrap_or_default(),
            networks: self.plan.as_ref().map(|plan| plan.networks.clone()).unwrap_or_default(),
            ignored_claims: self.plan.as_ref().map(|plan| plan.ignored_claims.clone()).unwrap_or_default(),
            remote: self.plan.as_ref().map(|plan| plan.remote.clone()).unwrap_or_default(),
            broken: self.broken.clone(),
            unrecorded: self.unrecorded.values().cloned().collect(),
        }
    }
}

/// Whether the plan has a place for the pod: its network, and a subnet for each of its addresses.
/// If not, returns the reason and the address without a subnet.
fn home(plan: &Plan, pod: &Pod) -> Result<(), (String, IpAddr)> {
    let network = match plan_pod(plan, pod) {
        Ok(_) => plan.networks.get(&pod.network),
        Err(error) => {
            return Err((
                error.to_string(),
                pod.addresses.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            ));
        }
    };
    let holds = |address: &IpAddr| network.is_some_and(|network| network.subnet_of(*address).is_some());
    match pod.addresses.iter().find(|address| !holds(address)) {
        None => Ok(()),
        Some(address) => {
            let version = if address.is_ipv4() { 4 } else { 6 };
            Err((
                format!("Network {}: no IPv{version} Subnet of this node contains the address", pod.network),
                *address,
            ))
        }
    }
}

/// Logs the prefixes that a pod requests and its network does not allow. They are not applied.
fn record_refused(plan: &Plan, pod: &Pod) {
    let Some(network) = plan.networks.get(&pod.network) else { return };
    for refused in network.refused_prefixes(&pod.network, &pod.extra_prefixes) {
        let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
        tracing::warn!(
            device = pod.host_ifname,
            addresses = addresses.join(","),
            "a pod may not send from a prefix that it requests: {refused}"
        );
    }
}
