//! The kernel owner: it compares the wanted objects with the found ones, and changes only the
//! differences.
//!
//! ```text
//!   reconcile ── set_plan, learned, release ──►┐ commands            ┌─► HostChanged ──► reconcile
//!   attach ───── add_pod, remove_pod ─────────►┤ urgent              │
//!                                              ▼                     │
//!                                    owner thread ([`owner`]) ───────┴─► DeviceGone ───► attach
//!                                      │            ▲
//!                        batches       ▼            │ notifications, filtered in the kernel ([`events`])
//!                                    rtnetlink ─────┘
//! ```
//!
//! One thread owns the record of installed objects. It scans once at start, and changes nothing
//! before it has a plan. From then on it records its own changes, and notifications report the
//! changes of other programs. The thread deletes objects with Trunkline's protocol number that no
//! source wants, but only after all sources have sent their state. It deletes pods' routes after
//! [`KernelHandle::set_pods`], and a family's routes in network tables after
//! [`KernelHandle::release`]. So a restart of the agent loses no route. Objects without the number
//! are never deleted.
//!
//! The thread blocks in netlink calls, and no other task runs on it. Requests for pods overtake
//! large tables between two batches.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};

use crate::family::IpFamily;
use crate::netlink::{NetlinkError, Refusal, conntrack};
use crate::plan::policy::{PolicyChange, PolicyPart, PolicyTable};
use crate::plan::{Hop, KernelHost, LearnedRoute, NatRules, Neighbour, PodPlan, SharedPlan};
use connections::Deletions;

mod connections;
mod events;
mod owner;
mod scan;
mod topology;

pub use owner::repairs::{RepairKind, Repairs};

/// The start configuration of the kernel owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelConfig {
    /// Families with routes of the last run that stay until [`KernelHandle::release`].
    pub hold: BTreeSet<IpFamily>,
    /// The addresses of the last plan of the last run. Kernels before 5.18 do not record the
    /// program that added an address.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses whose links are reported ([`KernelHost::reached`]), until
    /// [`KernelHandle::set_reach`].
    pub reach: BTreeSet<IpAddr>,
    /// Whether other programs cannot change the table of network policies, if the kernel can
    /// protect it.
    pub protects_policies: bool,
    /// Whether the guard is on. Until the first plan, its tables of the last run are restored after
    /// changes by other programs.
    pub guard: bool,
}

/// The reason why a change of the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A pod's routes or neighbour entries.
    #[error("pod device {host_ifname}: {what}: {error}")]
    Pod {
        /// Name of the pod's host interface.
        host_ifname: String,
        /// The route or neighbour entry.
        what: String,
        /// The kernel's refusal.
        #[source]
        error: Refusal,
    },
    /// The guard is not installed; new pods wait for it.
    #[error(
        "the guard against spoofed packets is not in force: {0}: correct the cause, or set `guard: {{ enabled: false }}` in agent.yaml and use your own rules"
    )]
    Guard(String),
    /// The kernel does not have the rules of network policies.
    #[error("network policies: {text}")]
    Policies {
        /// The object that the kernel refused, and the kernel's error.
        text: String,
        /// The part of the table to which the object belongs, if it belongs to one.
        part: Option<PolicyPart>,
    },
    /// The connections of connection tracking.
    #[error("connection tracking: {0}")]
    Connections(#[source] std::io::Error),
    /// The owner thread has ended.
    #[error("the kernel thread has ended: restart the agent")]
    Gone,
    /// The thread could not be started.
    #[error("the kernel thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// The result of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of changes in the kernel.
    pub changed: usize,
    /// The table of learned routes has changed: send all of them again with
    /// [`KernelHandle::learned`].
    pub relearn: bool,
    /// The guard is enabled and not in force, so no new tunnel comes up. Apply the plan again after
    /// a pause: no event shows that the cause is gone.
    pub unguarded: bool,
    /// The changes that failed, as text; all others succeeded.
    pub faults: Vec<String>,
}

/// A pod that could not be restored at start.
#[derive(Debug)]
pub struct PodFault {
    /// Name of its host interface.
    pub host_ifname: String,
    /// The error.
    pub error: KernelError,
    /// The link no longer exists, so the pod has no routes. Otherwise the pod keeps its routes.
    pub gone: bool,
}

/// A Trunkline device that the scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDevice {
    /// Name of the host interface.
    pub ifname: String,
    /// Index of the host interface.
    pub ifindex: u32,
    /// Alias of the host interface.
    pub alias: String,
    /// Addresses that the last run routed to the device, and that no source has claimed yet.
    pub addresses: Vec<IpAddr>,
    /// Permanent neighbour entries on the device.
    pub neighbours: BTreeSet<Neighbour>,
}

/// The status of the kernel owner, for `trunkline status` and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStatus {
    /// Objects that other programs deleted or changed, and that were repaired.
    pub repairs: u64,
    /// Scans after the first one.
    pub rescans: u64,
    /// Trunkline's wanted routes.
    pub routes: usize,
    /// Trunkline's installed routes.
    pub installed: usize,
    /// Refused changes since the start, by reason: the name of the error number, or the part of the
    /// kernel.
    pub errors: BTreeMap<&'static str, u64>,
    /// Routes of the last run that no source has claimed yet.
    pub stale_routes: usize,
    /// Own rules.
    pub rules: usize,
    /// FDB entries of VXLAN devices.
    pub forwarding: Forwarding,
    /// Pods.
    pub pods: usize,
    /// Text of the last error.
    pub last_error: Option<String>,
    /// The guard.
    pub guard: GuardStatus,
    /// Whether the plan has alternate paths.
    pub alternate_paths: bool,
    /// The next hops of the BGP network's installed default routes, with the table.
    pub ways_out: BTreeMap<IpFamily, (u32, Vec<Hop>)>,
    /// Whether the plan counts packets to unassigned addresses.
    pub unassigned: bool,
    /// The table of network policies.
    pub policies: PolicyStatus,
}

/// The state of the table of network policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether the kernel has all changes so far, and no other program has changed the table since.
    pub loaded: bool,
    /// Whether the kernel protects the table from changes by other programs.
    pub protected: bool,
    /// Whether the table of the last run is there and nothing can change it. It counts until the first
    /// table of this run.
    pub kept: bool,
    /// Repairs after changes by other programs.
    pub repairs: u64,
    /// The reason why the last change failed.
    pub fault: Option<String>,
}

/// The state of the guard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// Whether the guard is enabled in the configuration.
    pub enabled: bool,
    /// Whether its rules are installed.
    pub in_force: bool,
    /// Repairs after changes by other programs.
    pub repairs: u64,
    /// The reason why it is not installed.
    pub fault: Option<String>,
}

/// The state of the FDB entries of Trunkline's VXLAN devices, after the last change of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Entries in the plan.
    pub wanted: usize,
    /// Installed entries of the plan.
    pub installed: usize,
    /// Entries that were restored or removed after changes by other programs.
    pub repairs: u64,
}

/// An event of the kernel owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// Links or addresses of the host have changed: request [`KernelHandle::host`] and plan again.
    /// Coalesced.
    HostChanged,
    /// A pod's link disappeared without [`KernelHandle::remove_pod`], and its routes with it.
    DeviceGone {
        /// Name of the pod's host interface.
        host_ifname: String,
    },
}

/// The events, for one receiver.
pub struct KernelEvents {
    host: watch::Receiver<u64>,
    devices: mpsc::UnboundedReceiver<String>,
    limits: Option<mpsc::UnboundedReceiver<String>>,
    policies: Option<watch::Receiver<u64>>,
}

impl KernelEvents {
    /// The channel with the host interfaces of pods whose qdiscs, filters or `ifb` devices have
    /// changed, also through an ADD of this agent. The attach flow takes it once.
    pub fn take_limits(&mut self) -> Option<mpsc::UnboundedReceiver<String>> {
        self.limits.take()
    }

    /// The number of times that another program changed or deleted the table of network policies.
    /// After each change of the number, the receiver calls [`KernelHandle::set_policies`]. The
    /// receiver takes it once.
    pub fn take_policies(&mut self) -> Option<watch::Receiver<u64>> {
        self.policies.take()
    }

    /// The next event; none after the end of the owner thread.
    pub async fn next(&mut self) -> Option<KernelEvent> {
        tokio::select! {
            host_ifname = self.devices.recv() => {
                host_ifname.map(|host_ifname| KernelEvent::DeviceGone { host_ifname })
            }
            changed = self.host.changed() => changed.ok().map(|()| KernelEvent::HostChanged),
        }
    }
}

type Reply<T> = oneshot::Sender<T>;

/// Commands that are handled in order.
enum Command {
    Host(Reply<KernelHost>),
    Reach(BTreeSet<IpAddr>, Reply<()>),
    SetPlan(SharedPlan, Reply<Result<Applied, KernelError>>),
    SetPods(Vec<PodPlan>, Reply<Result<Vec<PodFault>, KernelError>>),
    Learned(Vec<LearnedRoute>, Reply<Result<(), KernelError>>),
    RetainLearned(Reply<()>),
    Release(IpFamily, Reply<Result<(), KernelError>>),
    Devices(Reply<Vec<OwnDevice>>),
    Nat(Reply<NatRules>),
    Resync(Reply<Result<usize, KernelError>>),
    SetPolicies(Box<PolicyTable>, Reply<Result<usize, KernelError>>),
}

/// Commands that overtake the others.
enum Urgent {
    AddPod(PodPlan, Reply<Result<(), KernelError>>),
    RemovePod(String, Reply<Result<(), KernelError>>),
    ChangePolicies(Box<PolicyChange>, Reply<Result<(), KernelError>>),
}

/// A handle of the kernel owner. Cheap to clone. The owner thread ends when the last clone is
/// dropped.
#[derive(Clone)]
pub struct KernelHandle {
    commands: mpsc::UnboundedSender<Command>,
    urgent: mpsc::UnboundedSender<Urgent>,
    status: Arc<Mutex<KernelStatus>>,
    repaired: watch::Receiver<Repairs>,
    deletions: Deletions,
}

impl KernelHandle {
    /// Scans the calling thread's network namespace, and starts the owner thread. Changes nothing.
    pub fn spawn(config: KernelConfig) -> Result<(KernelHandle, KernelEvents), KernelError> {
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (urgent, urgent_queue) = mpsc::unbounded_channel();
        let (host_changed, host) = watch::channel(0);
        let (device_gone, devices) = mpsc::unbounded_channel();
        let (limits_touched, limits) = mpsc::unbounded_channel();
        let (policies_touched, policies) = watch::channel(0);
        let status = Arc::new(Mutex::new(KernelStatus::default()));
        let (repairs, repaired) = watch::channel(Repairs::default());
        let owner = owner::Owner::open(
            config,
            owner::OwnerChannels {
                host_changed,
                device_gone,
                limits_touched,
                policies_touched,
                status: Arc::clone(&status),
                repairs,
            },
        )?;
        std::thread::Builder::new()
            .name("kernel".to_owned())
            .spawn(move || owner.run(command_queue, urgent_queue))
            .map_err(KernelError::Thread)?;
        Ok((
            KernelHandle { commands, urgent, status, repaired, deletions: Deletions::default() },
            KernelEvents { host, devices, limits: Some(limits), policies: Some(policies) },
        ))
    }

    /// The host as input of the planner, from the owner's record.
    pub async fn host(&self) -> Result<KernelHost, KernelError> {
        self.request(Command::Host).await
    }

    /// Replaces the addresses whose links [`KernelHandle::host`] reports.
    pub async fn set_reach(&self, reach: BTreeSet<IpAddr>) -> Result<(), KernelError> {
        self.request(|reply| Command::Reach(reach, reply)).await
    }

    /// Brings the kernel to the plan: rules, routes, NAT and sysctls.
    pub async fn set_plan(&self, plan: impl Into<SharedPlan>) -> Result<Applied, KernelError> {
        let plan = plan.into();
        self.request(|reply| Command::SetPlan(plan, reply)).await?
    }

    /// Sends all existing pods, once at start. Before this call, no pod route of the last run is
    /// removed.
    pub async fn set_pods(&self, pods: Vec<PodPlan>) -> Result<Vec<PodFault>, KernelError> {
        self.request(|reply| Command::SetPods(pods, reply)).await?
    }

    /// Adds a pod: its neighbour entries and then its routes. The last step of an attachment;
    /// idempotent.
    pub async fn add_pod(&self, pod: PodPlan) -> Result<(), KernelError> {
        self.request_urgent(|reply| Urgent::AddPod(pod, reply)).await?
    }

    /// Removes a pod. The first step of a detachment; an unknown pod is no error.
    pub async fn remove_pod(&self, host_ifname: &str) -> Result<(), KernelError> {
        self.request_urgent(|reply| Urgent::RemovePod(host_ifname.to_owned(), reply)).await?
    }

    /// Sends changed learned routes.
    pub async fn learned(&self, changes: Vec<LearnedRoute>) -> Result<(), KernelError> {
        self.request(|reply| Command::Learned(changes, reply)).await?
    }

    /// Marks all learned routes as retained, because a new speaker replaces the old one and sends
    /// all its best routes again. Routes that it does not send stay until [`Self::release`].
    pub async fn retain_learned(&self) -> Result<(), KernelError> {
        self.request(Command::RetainLearned).await
    }

    /// Ends the retention of a family after it has converged and all its learned routes were sent:
    /// sweeps the routes of the last run.
    pub async fn release(&self, family: IpFamily) -> Result<(), KernelError> {
        self.request(|reply| Command::Release(family, reply)).await?
    }

    /// Trunkline's devices, identified by their alias.
    pub async fn devices(&self) -> Result<Vec<OwnDevice>, KernelError> {
        self.request(Command::Devices).await
    }

    /// The masquerading rules of the plan.
    pub async fn nat(&self) -> Result<NatRules, KernelError> {
        self.request(Command::Nat).await
    }

    /// Scans, compares and repairs. Returns the number of repairs.
    pub async fn resync(&self) -> Result<usize, KernelError> {
        self.request(Command::Resync).await?
    }

    /// Compares the table of network policies with the kernel, and changes only the differences.
    /// Returns the number of changed kernel objects. An empty table deletes the kernel's table.
    ///
    /// # Errors
    /// [`KernelError::Policies`]: the kernel refused the transaction and keeps its rules.
    pub async fn set_policies(&self, table: PolicyTable) -> Result<usize, KernelError> {
        self.request(|reply| Command::SetPolicies(Box::new(table), reply)).await?
    }

    /// Changes the table of network policies in one transaction. Overtakes other commands.
    ///
    /// # Errors
    /// [`KernelError::Policies`]: the kernel keeps its rules. Call [`Self::set_policies`], because
    /// the kernel refused the transaction, or another program changed the table, or the table was
    /// never set.
    pub async fn change_policies(&self, change: PolicyChange) -> Result<(), KernelError> {
        self.request_urgent(|reply| Urgent::ChangePolicies(Box::new(change), reply)).await?
    }

    /// Deletes the tracked connections of these addresses, in the network namespace of the calling
    /// thread. Returns the number of deleted connections; 0 if the kernel tracks no connections. Calls
    /// that come while another one runs are one list of the kernel's table, and have one number.
    ///
    /// # Errors
    /// [`KernelError::Connections`]: the kernel refused the list or a deletion.
    pub async fn forget_connections(&self, addresses: Vec<IpAddr>) -> Result<usize, KernelError> {
        let (reply, answer) = oneshot::channel();
        if self.deletions.add(addresses, reply) {
            let deletions = self.deletions.clone();
            let thread = std::thread::Builder::new().name("conntrack".to_owned());
            if let Err(error) = thread.spawn(move || deletions.run(conntrack::forget)) {
                self.deletions.clear();
                return Err(KernelError::Thread(error));
            }
        }
        answer.await.map_err(|_| KernelError::Gone)?.map_err(KernelError::Connections)
    }

    /// The counters and the last error.
    pub fn status(&self) -> KernelStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The repairs so far, with notification of later ones.
    pub fn repairs(&self) -> watch::Receiver<Repairs> {
        self.repaired.clone()
    }

    async fn request<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, KernelError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| KernelError::Gone)?;
        answer.await.map_err(|_| KernelError::Gone)
    }

    async fn request_urgent<T>(&self, command: impl FnOnce(Reply<T>) -> Urgent) -> Result<T, KernelError> {
        let (reply, answer) = oneshot::channel();
        self.urgent.send(command(reply)).map_err(|_| KernelError::Gone)?;
        answer.await.map_err(|_| KernelError::Gone)
    }
}
