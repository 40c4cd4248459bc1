//! The policies task: it owns the compiler's state and the order of its changes in the kernel.
//!
//! ```text
//!  watches or folder ──PolicyInput──►┌────────┐──PolicyTable, PolicyChange──► kernel owner
//!  attach flow ──attach, detach─────►│ Engine │◄─touched by another program──┘
//!  commands ──status, explain───────►└────────┘──wanted──► watches of Namespaces and pods
//! ```
//!
//! - An attach is answered when the rules of its pod are in the kernel.
//! - An attach of a pod that no policy selects does not wait for the kernel.
//! - If the kernel refuses a part of a policy, this policy fails closed, alone, and the task sends
//!   the whole table again at once.
//! - Any other change that the kernel refuses leaves the former rules. The task then compares the
//!   whole table, again and again with growing pauses.
//! - After a change by another program the task compares the whole table at once.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use trunkline_api::control::{PoliciesView, PolicyAnswer, PolicyQuestion, PolicyState, PolicySummary};
use trunkline_bgp::net::release_free_memory;
use trunkline_datapath::kernel::{KernelError, KernelHandle};
use trunkline_datapath::nft::policy::{PolicyCount, counters};
use trunkline_datapath::nft::policy_log::{LoggedPacket, PolicyLog};
use trunkline_datapath::plan::policy::CounterId;

use super::cache;
use super::connections::FormerHolders;
use super::engine::{Engine, Waits};
use super::feed::{AddressInput, PolicyInput, Wanted};
use super::inbox::{Next, PolicyInbox, SentPolicies};
use super::input::{Change, ObjectKey};
use super::kernel::CounterKey;
use super::keys::LabelKeys;
use super::pace::Pace;
use super::pods::PolicyLink;
use crate::change_notifier::ChangeNotifier;
use crate::metrics::Metrics;

/// Inputs that are handled before the kernel gets one change for all of them, except policies.
const BATCH: usize = 256;
/// The cost of the policies of such a change, in entries ([`Engine::handle_costly`]). One policy may cost
/// more.
const ROUND: usize = 4000;
/// The first pause before a retry of a refused table. Each further pause is twice as long, up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// The time until a policy is tried again that the kernel refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Parts of policies that the kernel may refuse one after the other without a pause.
const REFUSALS: usize = 16;
/// The longest time from a change of policies until the file for the next run has it. While policies
/// keep changing, it grows to [`PACE`].
const POLICY_PACE: Duration = Duration::from_millis(100);
/// The same for a new pod of this node: without it, the next run cannot use the file.
const ATTACH_PACE: Duration = Duration::from_secs(1);
/// The same for a change of Namespaces and pods.
const PACE: Duration = Duration::from_secs(10);
/// The time between two log lines about packets of one counter.
const LOG_PACE: Duration = Duration::from_secs(10);

/// The reason why a pod has no rules.
#[derive(Debug, thiserror::Error)]
pub enum PolicyWait {
    /// The lists are not complete.
    #[error("the network policies are not known yet: {0}")]
    Lists(String),
    /// The API server has not sent the pod.
    #[error(
        "the rules of network policies wait for the object of pod {0}: the API server has not sent it to this node yet"
    )]
    Pod(ObjectKey),
    /// The API server has not sent the pod's Namespace.
    #[error(
        "the rules of network policies wait for Namespace {0}: the API server has not sent its labels to this node yet"
    )]
    Namespace(Arc<str>),
    /// The API server has not sent the labels with keys that a new policy names.
    #[error(
        "the rules of network policies wait for labels that only {0} names: the API server has not sent them to this node yet"
    )]
    Labels(String),
    /// The kernel refused the rules.
    #[error("the rules of network policies are not in force: {0}")]
    Refused(String),
    /// The host cannot enforce policies for this attachment.
    #[error(
        "{policies} selects the pod, and packets of a pod with `attachment: ipvlan` do not pass the node's rules: write `attachment: veth` into the config of its Network, or change the policy's selector"
    )]
    Unenforceable {
        /// The policies.
        policies: String,
    },
    /// The task has ended.
    #[error("the agent is stopping")]
    Stopped,
}

/// The values of the metrics.
#[derive(Clone, Debug, Default)]
pub struct PolicyScrape {
    /// The state of the rules.
    pub summary: PolicySummary,
    /// Policies with faults.
    pub faulty: usize,
    /// Repairs after changes by other programs.
    pub repairs: u64,
    /// The counters of dropped packets, and of packets that audited Namespaces report.
    pub counters: Vec<(CounterKey, PolicyCount)>,
}

type Answer<T> = oneshot::Sender<T>;

enum Request {
    Attach(Box<PolicyLink>, Answer<Result<(), PolicyWait>>),
    Detach(String, Answer<()>),
    Wait(String, Answer<PolicyWait>),
    View(Answer<PoliciesView>),
    Summary(Answer<PolicySummary>),
    Explain(PolicyQuestion, Answer<PolicyAnswer>),
    Scrape(Answer<PolicyScrape>),
}

/// The handle of the task.
#[derive(Clone)]
pub struct Policies {
    requests: mpsc::Sender<Request>,
}

/// The inputs of the task.
pub struct PolicyDependencies {
    /// The name of this node.
    pub node: String,
    /// Policies, Namespaces and pods.
    pub inbox: PolicyInbox,
    /// The links of the last run that continue.
    pub links: Vec<PolicyLink>,
    /// The file with the state for the next run; none without an API server.
    pub cache: Option<PathBuf>,
    /// The keys of labels that the watches keep; none without an API server.
    pub keys: Option<Arc<LabelKeys>>,
    /// What the watches have to send.
    pub wanted: watch::Sender<Wanted>,
    /// The kernel owner.
    pub kernel: KernelHandle,
    /// Changes of the table by other programs.
    pub touched: watch::Receiver<u64>,
    /// Durations.
    pub metrics: Metrics,
    /// Notified when [`Policies::summary`] changes.
    pub notifier: ChangeNotifier,
}

impl Policies {
    /// Starts the task. It ends with its last handle.
    pub fn spawn(dependencies: PolicyDependencies) -> Policies {
        let (requests, inbox) = mpsc::channel(64);
        tokio::spawn(Task::new(dependencies, inbox).run());
        Policies { requests }
    }

    /// Adds a link. On return the rules of its pod are in the kernel. An error leaves the link
    /// there: the caller detaches it.
    ///
    /// # Errors
    /// The missing condition at the deadline.
    pub async fn attach(&self, link: PolicyLink, deadline: Instant) -> Result<(), PolicyWait> {
        let host_ifname = link.host_ifname.clone();
        let attached = self.request(|answer| Request::Attach(Box::new(link), answer));
        match tokio::time::timeout_at(deadline, attached).await {
            Ok(outcome) => outcome.unwrap_or(Err(PolicyWait::Stopped)),
            Err(_) => {
                let reason = self.request(|answer| Request::Wait(host_ifname, answer)).await;
                Err(reason.unwrap_or(PolicyWait::Stopped))
            }
        }
    }

    /// Removes a link. Returns whether a policy exists: then connections of its addresses must not
    /// outlive it.
    pub async fn detach(&self, host_ifname: String) {
        // The task has ended if there is no answer.
        let _ = self.request(|answer| Request::Detach(host_ifname, answer)).await;
    }

    /// All policies with counters; none if the task has ended.
    pub async fn view(&self) -> Option<PoliciesView> {
        self.request(Request::View).await
    }

    /// The state of the rules; none if the task has ended.
    pub async fn summary(&self) -> Option<PolicySummary> {
        self.request(Request::Summary).await
    }

    /// The decisions about a packet; none if the task has ended.
    pub async fn explain(&self, question: PolicyQuestion) -> Option<PolicyAnswer> {
        self.request(|answer| Request::Explain(question, answer)).await
    }

    /// The values of the metrics; none if the task has ended.
    pub async fn scrape(&self) -> Option<PolicyScrape> {
        self.request(Request::Scrape).await
    }

    async fn request<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (answer, reply) = oneshot::channel();
        self.requests.send(request(answer)).await.ok()?;
        reply.await.ok()
    }
}

struct Task {
    node: String,
    cache: Option<PathBuf>,
    /// The pace of writes after changes of policies.
    save_pace: Pace,
    /// The time of the next write of the file.
    save_at: Option<Instant>,
    saving: Option<JoinHandle<()>>,
    engine: Engine,
    inbox: PolicyInbox,
    /// The first change of policies of the next round.
    first: Option<SentPolicies>,
    requests: mpsc::Receiver<Request>,
    wanted: watch::Sender<Wanted>,
    former_holders: FormerHolders,
    kernel: KernelHandle,
    touched: watch::Receiver<u64>,
    metrics: Metrics,
    notifier: ChangeNotifier,
    /// Whether the kernel has the rules up to the last difference.
    in_force: bool,
    /// The kernel's reason for a refusal.
    fault: Option<String>,
    retry_at: Option<Instant>,
    pause: Duration,
    /// The time to try refused policies again.
    retry_refused_at: Option<Instant>,
    /// Links that wait for their rules.
    waiting: BTreeMap<String, Answer<Result<(), PolicyWait>>>,
    log: Option<PolicyLog>,
    meanings: BTreeMap<CounterId, CounterKey>,
    logged: HashMap<CounterId, (Instant, u64)>,
    shown: PolicySummary,
    /// A list of pods has arrived: its objects were freed.
    listed: bool,
}

impl Task {
    fn new(dependencies: PolicyDependencies, requests: mpsc::Receiver<Request>) -> Task {
        let PolicyDependencies { node, inbox, links, cache, keys, wanted, .. } = dependencies;
        let PolicyDependencies { kernel, touched, metrics, notifier, .. } = dependencies;
        let mut engine = Engine::new(&node, keys);
        links.into_iter().for_each(|link| engine.attach(link));
        let cached = cache.as_deref().map(|path| cache::read(path, &node)).unwrap_or_default();
        if !cached.is_empty() {
            engine.handle_cached(cached);
        }
        Task {
            node,
            cache,
            save_pace: Pace::new(2 * POLICY_PACE, PACE),
            save_at: None,
            saving: None,
            engine,
            inbox,
            first: None,
            requests,
            wanted,
            former_holders: FormerHolders::new(kernel.clone()),
            kernel,
            touched,
            metrics,
            notifier,
            in_force: false,
            fault: None,
            retry_at: None,
            pause: FIRST_PAUSE,
            retry_refused_at: None,
            waiting: BTreeMap::new(),
            log: None,
            meanings: BTreeMap::new(),
            logged: HashMap::new(),
            shown: PolicySummary::default(),
            listed: false,
        }
    }

    async fn run(mut self) {
        loop {
            let mut received = None;
            let due = self.next_due();
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.handle_request(request),
                    None => return,
                },
                Some(next) = self.inbox.next() => match next {
                    Next::Other(input) => {
                        received = Some(Instant::now());
                        self.handle_input(input);
                    }
                    Next::Policies(policies) => self.first = Some(policies),
                },
                Ok(()) = self.touched.changed() => self.in_force = false,
                () = at(due) => {}
                () = self.former_holders.run() => continue,
                packet = next(&mut self.log) => match packet {
                    Ok(packet) => {
                        self.report_packet(&packet);
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "dropped packets are no longer reported to the log");
                        self.log = None;
                        continue;
                    }
                },
            }
            self.drain();
            received = received.into_iter().chain(self.handle_round()).min();
            // Inputs come first, and a full inbox must not hold up other work.
            self.run_due();
            self.engine.select_pending();
            self.wanted.send_if_modified(|wanted| {
                let now = self.engine.wanted();
                std::mem::replace(wanted, now) != now
            });
            self.answer(false);
            self.settle().await;
            if self.in_force {
                self.former_holders.add(self.engine.poll_left());
            }
            if let Some(received) = received {
                self.metrics.policy_change(received.elapsed());
            }
            self.answer(true);
            self.show();
            if std::mem::take(&mut self.listed) {
                release_free_memory();
            }
        }
    }

    /// The time of the next work.
    fn next_due(&self) -> Option<Instant> {
        earliest([self.retry_at, self.retry_refused_at, self.save_at])
    }

    /// Does the work that is due.
    fn run_due(&mut self) {
        let now = Instant::now();
        if self.touched.has_changed().unwrap_or_default() {
            self.touched.mark_unchanged();
            self.in_force = false;
        }
        if is_due(self.retry_at, now) {
            self.retry_at = None;
        }
        if is_due(self.retry_refused_at, now) {
            let exists = self.engine.retry_refused();
            self.retry_refused_at = exists.then(|| now + REFUSED_PAUSE);
        }
        if is_due(self.save_at, now) {
            self.save();
        }
        while self.former_holders.run().now_or_never().is_some() {}
    }

    /// Handles everything that waits, except policies.
    fn drain(&mut self) {
        for _ in 0..BATCH {
            if let Ok(request) = self.requests.try_recv() {
                self.handle_request(request);
            } else if let Some(input) = self.inbox.try_other() {
                self.handle_input(input);
            } else {
                return;
            }
        }
    }

    /// Handles the policies of a round. Returns when the first one arrived.
    fn handle_round(&mut self) -> Option<Instant> {
        let (mut cost, mut first) = (0_usize, None);
        while cost < ROUND
            && let Some(SentPolicies { input, sent, .. }) =
                self.first.take().or_else(|| self.inbox.try_policies())
        {
            first.get_or_insert(sent);
            let pause = save_pause(&input, &self.node);
            cost = cost.saturating_add(self.engine.handle_costly(input));
            self.changed(pause);
        }
        first
    }

    fn handle_input(&mut self, input: PolicyInput) {
        let pause = save_pause(&input, &self.node);
        self.listed |= matches!(input, PolicyInput::Pods(Change::Listed(_)));
        self.engine.handle_input(input);
        self.changed(pause);
    }

    /// The file for the next run has an input after this pause at the latest.
    fn changed(&mut self, pause: Option<Duration>) {
        if let Some(pause) = pause {
            // Each change of a policy reaches all nodes: those that repeat are written rarely.
            let wait = self.save_pace.wait().filter(|_| pause == POLICY_PACE);
            let wait = wait.map(|until| until - Instant::now());
            self.save_within(wait.map_or(pause, |wait| wait.max(pause)));
        }
    }

    fn save_within(&mut self, pause: Duration) {
        if self.cache.is_some() {
            let wanted = Instant::now() + pause;
            self.save_at = Some(self.save_at.map_or(wanted, |at| at.min(wanted)));
        }
    }

    /// Writes the state for the next run, on another thread.
    fn save(&mut self) {
        let Some(path) = &self.cache else { return };
        let is_busy = self.saving.as_ref().is_some_and(|saving| !saving.is_finished());
        // An incomplete state must not replace the one of the last run.
        if is_busy || !self.engine.is_current() {
            self.save_at = Some(Instant::now() + PACE);
            return;
        }
        self.save_at = None;
        self.save_pace.begin();
        let (path, node, world) = (path.clone(), self.node.clone(), self.engine.world());
        self.saving = Some(tokio::task::spawn_blocking(move || {
            let written = cache::write(&path, &node, &world);
            drop(world);
            release_free_memory();
            if let Err(error) = written {
                tracing::warn!(file = %path.display(), %error, "the network policies cannot be stored for the next run");
            }
        }));
    }

    fn handle_request(&mut self, request: Request) {
        match request {
            Request::Attach(link, answer) => {
                let host_ifname = link.host_ifname.clone();
                self.engine.attach(*link);
                if self.engine.wants_pods() {
                    self.save_within(ATTACH_PACE);
                }
                self.waiting.insert(host_ifname, answer);
            }
            Request::Detach(host_ifname, answer) => {
                self.waiting.remove(&host_ifname);
                self.engine.detach(&host_ifname);
                let _ = answer.send(());
            }
            Request::Wait(host_ifname, answer) => {
                let _ = answer.send(self.reason(&host_ifname));
            }
            Request::View(answer) => {
                self.engine.compile_pending();
                let _ = answer.send(self.view());
            }
            Request::Summary(answer) => {
                let _ = answer.send(self.summary());
            }
            Request::Explain(question, answer) => {
                self.engine.compile_pending();
                let _ = answer.send(self.explain(&question));
            }
            Request::Scrape(answer) => {
                let mut meanings = self.engine.counters();
                meanings.retain(|_, key| key.denied);
                let found = counters().unwrap_or_default().into_iter();
                let _ = answer.send(PolicyScrape {
                    summary: self.summary(),
                    faulty: self.engine.faulty(),
                    repairs: self.kernel.status().policies.repairs,
                    counters: found.filter_map(|(id, count)| Some((meanings.remove(&id)?, count))).collect(),
                });
            }
        }
    }

    // ---- the kernel

    /// Brings the kernel to the engine's state.
    async fn settle(&mut self) {
        if !self.engine.is_known() || self.retry_at.is_some() {
            return;
        }
        if self.in_force {
            let Some(change) = self.engine.poll_change() else { return };
            match self.kernel.change_policies(change).await {
                Ok(()) => return self.open_log(),
                // The whole table follows at once: it may be accepted, and its error is reported.
                Err(_) => self.in_force = false,
            }
        }
        for refusals in 0.. {
            let table = self.engine.table();
            let error = match self.kernel.set_policies(table).await {
                Ok(changed) => return self.note_in_force(changed),
                Err(error) => error,
            };
            if refusals == REFUSALS || !self.refuse_part(&error) {
                return self.note_refusal(&error);
            }
        }
    }

    fn note_in_force(&mut self, changed: usize) {
        if self.fault.take().is_some() {
            tracing::info!(changed, "the rules of network policies are in force again");
        }
        (self.in_force, self.pause) = (true, FIRST_PAUSE);
        self.open_log();
    }

    fn note_refusal(&mut self, error: &KernelError) {
        let text = error.to_string();
        tracing::error!(error = text, "the rules of network policies are refused: the former rules stay");
        self.fault = Some(text);
        self.retry_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }

    /// Refuses the policies of the part that the kernel refused. Returns whether there is one, and
    /// the table changes.
    fn refuse_part(&mut self, error: &KernelError) -> bool {
        let KernelError::Policies { text, part: Some(part) } = error else { return false };
        let Some(policies) = self.engine.refuse_part(*part, text) else { return false };
        let policies = policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        tracing::error!(
            policies,
            error = text,
            "the kernel refuses a network policy: it fails closed, alone"
        );
        self.retry_refused_at = Some(Instant::now() + REFUSED_PAUSE);
        true
    }

    fn open_log(&mut self) {
        self.meanings.clear();
        if self.log.is_some() || self.engine.compiler().sizes().2 == 0 {
            return;
        }
        match PolicyLog::open() {
            Ok(log) => self.log = Some(log),
            Err(error) => {
                tracing::warn!(%error, "dropped packets cannot be reported to the log: load nfnetlink_log")
            }
        }
    }

    // ---- answers

    /// `is_settled`: the kernel has had the last changes. Before that, only pods without policies are
    /// answered.
    fn answer(&mut self, is_settled: bool) {
        for (host_ifname, answer) in std::mem::take(&mut self.waiting) {
            if answer.is_closed() {
                continue;
            }
            let is_in_force = is_settled && self.in_force || self.engine.is_free(&host_ifname);
            if !is_in_force || self.engine.waits(&host_ifname).is_some() {
                self.waiting.insert(host_ifname, answer);
                continue;
            }
            let policies = self.engine.unenforced(&host_ifname);
            let outcome = if policies.is_empty() {
                Ok(())
            } else {
                let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
                Err(PolicyWait::Unenforceable { policies: names.join(" and ") })
            };
            let _ = answer.send(outcome);
        }
    }

    /// Why a link has no rules.
    fn reason(&self, host_ifname: &str) -> PolicyWait {
        match (self.engine.waits(host_ifname), &self.fault, self.engine.link(host_ifname)) {
            (Some(Waits::Pod), _, Some(link)) => PolicyWait::Pod(link.pod.clone()),
            (Some(Waits::Labels(policy)), _, _) => PolicyWait::Labels(policy.to_string()),
            (Some(Waits::Namespace), _, Some(link)) => PolicyWait::Namespace(link.pod.namespace.clone()),
            (Some(_), _, _) => PolicyWait::Lists(missing(&self.engine)),
            (None, Some(fault), _) => PolicyWait::Refused(fault.clone()),
            (None, None, _) => PolicyWait::Refused("the kernel has not answered yet".to_owned()),
        }
    }

    fn show(&mut self) {
        let summary = self.summary();
        if summary != self.shown {
            self.shown = summary;
            self.notifier.notify();
        }
    }

    fn summary(&self) -> PolicySummary {
        let (sets, chains, pods) = self.engine.compiler().sizes();
        let (state, reason) = match &self.fault {
            Some(fault) => (PolicyState::Refused, Some(fault.clone())),
            None if !self.engine.is_known() => (PolicyState::Loading, Some(missing(&self.engine))),
            None if !self.engine.is_current() => (PolicyState::Retained, Some(missing(&self.engine))),
            None if !self.in_force => (PolicyState::Loading, None),
            None => (PolicyState::InForce, None),
        };
        PolicySummary {
            state,
            reason,
            policies: self.engine.policies().len(),
            pods,
            chains,
            sets,
            failed_closed: self.engine.failed_closed(),
            unenforced: self.engine.unenforced_links(),
            waiting: self.waiting.len(),
            pending: self.engine.label_faults().0,
            over_label_bound: self.engine.label_faults().1,
        }
    }

    fn view(&self) -> PoliciesView {
        let counts: BTreeMap<CounterId, PolicyCount> = counters().unwrap_or_default().into_iter().collect();
        super::views::view(&self.engine, self.summary(), &counts)
    }

    fn explain(&self, question: &PolicyQuestion) -> PolicyAnswer {
        super::views::explain(&self.engine, question)
    }

    // ---- the log

    fn report_packet(&mut self, packet: &LoggedPacket) {
        let now = Instant::now();
        let (at, suppressed) = self.logged.entry(packet.counter).or_insert((now - LOG_PACE, 0));
        if now < *at + LOG_PACE {
            *suppressed += 1;
            return;
        }
        let more = std::mem::take(suppressed);
        *at = now;
        if self.meanings.is_empty() {
            self.meanings = self.engine.counters();
            let meanings = &self.meanings;
            self.logged.retain(|id, _| meanings.contains_key(id));
        }
        let Some(key) = self.meanings.get(&packet.counter) else { return };
        let end = |address: IpAddr| match self.engine.pod_at(address) {
            Some(pod) => format!("{address} ({pod})"),
            None => address.to_string(),
        };
        let policy = key.policy.to_string();
        let direction = super::views::direction(key.direction).name();
        let (source, destination) = (end(packet.source), end(packet.destination));
        let port = packet.ports.map(|(_, port)| port);
        let words = if key.audit {
            "a network policy would drop a packet"
        } else {
            "a network policy dropped a packet"
        };
        tracing::info!(
            policy,
            direction,
            rule = key.rule,
            source,
            destination,
            protocol = packet.protocol,
            port,
            more,
            "{words}"
        );
    }
}

/// The longest time from an input until the file for the next run has it; none if the input changes
/// no object.
fn save_pause(input: &PolicyInput, node: &str) -> Option<Duration> {
    match input {
        PolicyInput::Network(_) | PolicyInput::Cluster(_) => Some(POLICY_PACE),
        PolicyInput::Pods(Change::Applied(input)) if *input.pod.node == *node => Some(ATTACH_PACE),
        PolicyInput::Addresses(Change::Applied(input)) if is_holder_on(input, node) => Some(ATTACH_PACE),
        PolicyInput::Namespaces(_)
        | PolicyInput::Pods(_)
        | PolicyInput::Addresses(_)
        | PolicyInput::Stopped => Some(PACE),
        PolicyInput::Relisted(_) | PolicyInput::Covered(_) => Some(PACE),
        PolicyInput::Converted { .. } | PolicyInput::Failing { .. } => None,
    }
}

fn is_holder_on(input: &AddressInput, node: &str) -> bool {
    input.holder.as_ref().is_some_and(|holder| *holder.node == *node)
}

fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}

fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn next(log: &mut Option<PolicyLog>) -> std::io::Result<LoggedPacket> {
    match log {
        Some(log) => log.next().await,
        None => std::future::pending().await,
    }
}

/// The objects that the engine waits for, in words.
fn missing(engine: &Engine) -> String {
    let failing: Vec<String> =
        engine.failing().iter().map(|(what, error)| format!("{what}: {error}")).collect();
    if failing.is_empty() && !engine.has_api_server() {
        "the manifests are not read yet, or are refused: `trunkline status` names the file".to_owned()
    } else if failing.is_empty() {
        "the API server has not sent all NetworkPolicies, Namespaces, pods and IPInstances".to_owned()
    } else {
        format!("{}: correct the cause, or set networkPolicies.enabled: false", failing.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netpolicy::feed::PodInput;
    use crate::netpolicy::objects::PodManifest;

    fn pod_on(node: &str) -> PolicyInput {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web", "uid": "u1"},
            "spec": {"nodeName": node, "containers": []},
        });
        let manifest = serde_json::from_value::<PodManifest>(pod).unwrap();
        PolicyInput::Pods(Change::Applied(PodInput::read(manifest, &LabelKeys::default()).row))
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_due_at_its_time() {
        let now = Instant::now();
        let later = now + PACE;
        assert_eq!(earliest([None, Some(later), Some(now)]), Some(now));
        assert_eq!(earliest([None, None]), None);
        assert_eq!([Some(now), Some(later), None].map(|at| is_due(at, now)), [true, false, false]);
    }

    #[test]
    fn a_host_without_an_api_server_does_not_wait_for_one() {
        let words = |keys| missing(&Engine::new("n1", keys));
        assert!(words(None).starts_with("the manifests are not read yet, or are refused"));
        assert!(words(Some(Arc::default())).starts_with("the API server has not sent all"));
    }

    #[test]
    fn each_change_of_objects_is_stored_for_the_next_run() {
        for (input, expected) in [
            (PolicyInput::Network(Change::Listed(Vec::new())), Some(POLICY_PACE)),
            (PolicyInput::Cluster(Change::Deleted("c".into())), Some(POLICY_PACE)),
            (PolicyInput::Namespaces(Change::Listed(Vec::new())), Some(PACE)),
            (PolicyInput::Pods(Change::Listed(Vec::new())), Some(PACE)),
            (pod_on("n1"), Some(ATTACH_PACE)),
            (pod_on("n2"), Some(PACE)),
            // The pods and Namespaces are dropped.
            (PolicyInput::Stopped, Some(PACE)),
            (PolicyInput::Failing { what: "pods", error: "refused".to_owned() }, None),
        ] {
            assert_eq!(save_pause(&input, "n1"), expected, "{input:?}");
        }
    }
}
