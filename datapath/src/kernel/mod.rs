//! The kernel's side of the plan: what is there is compared with what should be, and only what differs is changed.
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
//! One thread owns the picture of what is installed. It scans once, at start, changes nothing before it has a plan, and from then on knows
//! what it did; notifications tell it what others did. What carries the own protocol number and is not wanted is swept, but only once
//! everything that could want it has spoken: pods' routes after [`KernelHandle::set_pods`], a family's network tables after
//! [`KernelHandle::release`]. That is how a restart of the agent loses no route. What does not carry the number is never deleted.
//!
//! The thread blocks in netlink and nothing else waits for it: pods overtake large tables between two batches.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};

use crate::family::IpFamily;
use crate::netlink::{NetlinkError, Refusal};
use crate::plan::{Hop, KernelHost, KernelPlan, LearnedRoute, NatRules, Neighbour, PodPlan};

mod events;
mod owner;
mod scan;
mod topology;

pub use owner::repairs::{RepairKind, Repairs};

/// How the kernel's side starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// Families whose routes of the last run stay until [`KernelHandle::release`].
    pub hold: BTreeSet<IpFamily>,
}

/// Why the kernel could not be brought to what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The conversation with the kernel.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// One pod's routes or neighbours.
    #[error("pod device {host_ifname}: {what}: {error}")]
    Pod {
        /// Host end of its link.
        host_ifname: String,
        /// The route or neighbour.
        what: String,
        /// The kernel's reason.
        #[source]
        error: Refusal,
    },
    /// New pods wait for the guard.
    #[error(
        "the guard against spoofed packets is not in force: {0}: repair that, or set `guard: {{ enabled: false }}` in agent.yaml and let rules of your own hold it"
    )]
    Guard(String),
    /// The owner thread has ended.
    #[error("the kernel thread has ended: restart the agent")]
    Gone,
    /// The thread could not be started.
    #[error("the kernel thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// What came of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Changes made to the kernel.
    pub changed: usize,
    /// The table of learned routes has changed: hand over all of them again by [`KernelHandle::learned`].
    pub relearn: bool,
    /// What could not be done, in words; everything else was.
    pub faults: Vec<String>,
}

/// A pod that could not be taken over at start.
#[derive(Debug)]
pub struct PodFault {
    /// Host end of its link.
    pub host_ifname: String,
    /// Why.
    pub error: KernelError,
    /// Its link has gone, and with it whatever led to the pod. Otherwise the pod keeps what it has.
    pub gone: bool,
}

/// An own device, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDevice {
    /// Name of the host's end.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// Its alias.
    pub alias: String,
    /// Addresses that the last run routed to it and that nobody asked for yet.
    pub addresses: Vec<IpAddr>,
    /// Permanent neighbours on it.
    pub neighbours: BTreeSet<Neighbour>,
}

/// For `trunkline status` and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStatus {
    /// Things that somebody else deleted or changed, and that were put back.
    pub repairs: u64,
    /// Whole scans after the first one.
    pub rescans: u64,
    /// Own routes that are wanted.
    pub routes: usize,
    /// Of these, the ones that are installed.
    pub installed: usize,
    /// What the kernel refused since the start, by reason: the name of its error number, or who refused.
    pub errors: BTreeMap<&'static str, u64>,
    /// Routes of the last run that nobody has asked for yet.
    pub stale_routes: usize,
    /// Own rules.
    pub rules: usize,
    /// Forwarding entries of VXLAN devices.
    pub forwarding: Forwarding,
    /// Pods.
    pub pods: usize,
    /// What went wrong last, in words.
    pub last_error: Option<String>,
    /// The guard.
    pub guard: GuardStatus,
    /// The plan has alternate paths.
    pub alternate_paths: bool,
    /// The next hops of the BGP network's default routes as they are installed, each with the table.
    pub ways_out: BTreeMap<IpFamily, (u32, Vec<Hop>)>,
    /// The plan counts what is for no pod here.
    pub unassigned: bool,
}

/// How the guard stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// The configuration has it switched on.
    pub enabled: bool,
    /// Its rules hold.
    pub in_force: bool,
    /// Put back because somebody else had changed it.
    pub repairs: u64,
    /// Why it is not in force.
    pub fault: Option<String>,
}

/// How the forwarding entries of own VXLAN devices stand: as they were seen last, which is after every change of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// In the plan.
    pub wanted: usize,
    /// Of these, there.
    pub installed: usize,
    /// Put back or removed, because somebody else had removed or added them.
    pub repairs: u64,
}

/// What the kernel's side tells on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// Links or addresses of the host have changed: ask for [`KernelHandle::host`] and plan again. Coalesced.
    HostChanged,
    /// A pod's link has vanished without [`KernelHandle::remove_pod`]; its routes are gone with it.
    DeviceGone {
        /// Host end of the link.
        host_ifname: String,
    },
}

/// The events, for one consumer.
pub struct KernelEvents {
    host: watch::Receiver<u64>,
    devices: mpsc::UnboundedReceiver<String>,
    limits: Option<mpsc::UnboundedReceiver<String>>,
}

impl KernelEvents {
    /// Host ends of pods' links whose queues, filters or limiting devices somebody has changed, be it an ADD of ours. To be taken once, by
    /// who looks after them.
    pub fn take_limits(&mut self) -> Option<mpsc::UnboundedReceiver<String>> {
        self.limits.take()
    }

    /// The next event; none once the owner thread has ended.
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

/// What waits its turn.
enum Command {
    Host(Reply<KernelHost>),
    SetPlan(Box<KernelPlan>, Reply<Result<Applied, KernelError>>),
    SetPods(Vec<PodPlan>, Reply<Result<Vec<PodFault>, KernelError>>),
    Learned(Vec<LearnedRoute>, Reply<Result<(), KernelError>>),
    KeepLearned(Reply<()>),
    Release(IpFamily, Reply<Result<(), KernelError>>),
    Devices(Reply<Vec<OwnDevice>>),
    Nat(Reply<NatRules>),
    Resync(Reply<Result<usize, KernelError>>),
}

/// What overtakes.
enum Urgent {
    AddPod(PodPlan, Reply<Result<(), KernelError>>),
    RemovePod(String, Reply<Result<(), KernelError>>),
}

/// The kernel's side, for everyone else. Cheap to clone; the owner thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct KernelHandle {
    commands: mpsc::UnboundedSender<Command>,
    urgent: mpsc::UnboundedSender<Urgent>,
    status: Arc<Mutex<KernelStatus>>,
    repaired: watch::Receiver<Repairs>,
}

impl KernelHandle {
    /// Scans what is there in the calling thread's network namespace, and starts the owner thread. Changes nothing.
    pub fn spawn(config: KernelConfig) -> Result<(KernelHandle, KernelEvents), KernelError> {
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (urgent, urgent_queue) = mpsc::unbounded_channel();
        let (host_changed, host) = watch::channel(0);
        let (device_gone, devices) = mpsc::unbounded_channel();
        let (limits_touched, limits) = mpsc::unbounded_channel();
        let status = Arc::new(Mutex::new(KernelStatus::default()));
        let (repairs, repaired) = watch::channel(Repairs::default());
        let owner = owner::Owner::open(
            config,
            owner::OwnerChannels {
                host_changed,
                device_gone,
                limits_touched,
                status: Arc::clone(&status),
                repairs,
            },
        )?;
        std::thread::Builder::new()
            .name("kernel".to_owned())
            .spawn(move || owner.run(command_queue, urgent_queue))
            .map_err(KernelError::Thread)?;
        Ok((
            KernelHandle { commands, urgent, status, repaired },
            KernelEvents { host, devices, limits: Some(limits) },
        ))
    }

    /// The host as the planner wants it. From memory.
    pub async fn host(&self) -> Result<KernelHost, KernelError> {
        self.request(Command::Host).await
    }

    /// Brings rules, routes, NAT and sysctls to the plan.
    pub async fn set_plan(&self, plan: KernelPlan) -> Result<Applied, KernelError> {
        self.request(|reply| Command::SetPlan(Box::new(plan), reply)).await?
    }

    /// All pods there are, once at start; until then no pod's route of the last run is removed.
    pub async fn set_pods(&self, pods: Vec<PodPlan>) -> Result<Vec<PodFault>, KernelError> {
        self.request(|reply| Command::SetPods(pods, reply)).await?
    }

    /// One more pod: its neighbours and then its routes. The last step of an attachment; idempotent.
    pub async fn add_pod(&self, pod: PodPlan) -> Result<(), KernelError> {
        self.request_urgent(|reply| Urgent::AddPod(pod, reply)).await?
    }

    /// One pod less. The first step of a detachment; one that is not there is no error.
    pub async fn remove_pod(&self, host_ifname: &str) -> Result<(), KernelError> {
        self.request_urgent(|reply| Urgent::RemovePod(host_ifname.to_owned(), reply)).await?
    }

    /// Learned routes that have changed.
    pub async fn learned(&self, changes: Vec<LearnedRoute>) -> Result<(), KernelError> {
        self.request(|reply| Command::Learned(changes, reply)).await?
    }

    /// The speaker is replaced, and hands over all its best routes again. Those that it does not hand over again stay until
    /// [`Self::release`].
    pub async fn keep_learned(&self) -> Result<(), KernelError> {
        self.request(Command::KeepLearned).await
    }

    /// The family has converged, and all its learned routes were handed over: what the last run left is swept now.
    pub async fn release(&self, family: IpFamily) -> Result<(), KernelError> {
        self.request(|reply| Command::Release(family, reply)).await?
    }

    /// Own devices, by their alias.
    pub async fn devices(&self) -> Result<Vec<OwnDevice>, KernelError> {
        self.request(Command::Devices).await
    }

    /// What is masqueraded.
    pub async fn nat(&self) -> Result<NatRules, KernelError> {
        self.request(Command::Nat).await
    }

    /// Scans, compares and repairs. How much had to be repaired.
    pub async fn resync(&self) -> Result<usize, KernelError> {
        self.request(Command::Resync).await?
    }

    /// Counts and the last error.
    pub fn status(&self) -> KernelStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What others changed and was put back, now and whenever there is more.
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
