//! The task: it owns the states of the anycast addresses, the probes and the deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use trunkline_api::control::{
    AdvertisementState, AnycastAddressStatus, AnycastStatus, EventKind, WithheldReason,
};
use trunkline_bgp::net::SpeakerHandle;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Route;
use trunkline_bgp::types::Community;

use super::cache::AnycastCache;
use super::check::{Health, HealthCounter, HolderFacts, HolderState, Others};
use super::probe::{ProbeError, Prober};
use super::{AnycastPlan, HolderMark, PlannedAnycast, PlannedCheck};
use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::services::{ApplyPrefixes, ServicePrefixes};

/// The longest wait until all peers have a graceful shutdown, before the paths of other holders are
/// read.
const PATIENCE: Duration = Duration::from_secs(1);
/// The shortest time between two reads of the paths of other holders.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of results that wait for the task.
const RESULTS: usize = 64;

/// The inputs of the task.
pub struct AnycastDependencies {
    /// The name of this node.
    pub node: String,
    /// The plan's part for anycast addresses; none before the first plan.
    pub plans: watch::Receiver<Option<Arc<AnycastPlan>>>,
    /// Sends prefixes to the reconcile task.
    pub apply: ApplyPrefixes,
    /// The event history.
    pub history: History,
    /// Notified when [`Anycast::status`] changes.
    pub notifier: ChangeNotifier,
    /// The state of the last run in this boot.
    pub last: AnycastCache,
    /// The file for the next run.
    pub cache: PathBuf,
}

/// A handle for readers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Anycast {
    shown: watch::Sender<BTreeMap<Arc<str>, Shown>>,
}

/// An object for readers.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shown {
    refused: Option<String>,
    addresses: Vec<(AnycastAddressStatus, Instant)>,
}

impl Anycast {
    /// The objects on this node, by name.
    pub fn status(&self) -> Vec<AnycastStatus> {
        let shown = self.shown.borrow();
        let address = |(status, since): &(AnycastAddressStatus, Instant)| AnycastAddressStatus {
            since_seconds: since.elapsed().as_secs(),
            ..status.clone()
        };
        let object = |(name, shown): (&Arc<str>, &Shown)| AnycastStatus {
            name: name.to_string(),
            refused: shown.refused.clone(),
            addresses: shown.addresses.iter().map(address).collect(),
        };
        shown.iter().map(object).collect()
    }

    /// Notifies about each change of [`Self::status`].
    pub fn subscribe(&self) -> AnycastChanges {
        AnycastChanges(self.shown.subscribe())
    }
}

/// Changes of [`Anycast::status`].
pub struct AnycastChanges(watch::Receiver<BTreeMap<Arc<str>, Shown>>);

impl AnycastChanges {
    /// Waits for a change since the last one that [`Self::mark_seen`] covered.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // No handle exists any more, so no status changes.
            std::future::pending().await
        }
    }

    /// The current status is known.
    pub fn mark_seen(&mut self) {
        self.0.mark_unchanged();
    }
}

/// Starts the task. It ends with the reconcile task.
pub fn spawn(dependencies: AnycastDependencies) -> Anycast {
    let AnycastDependencies { node, plans, apply, history, notifier, last, cache } = dependencies;
    let handle = Anycast::default();
    let (results, inbox) = mpsc::channel(RESULTS);
    let written = watch::Sender::new(last.clone());
    tokio::spawn(write(cache, written.subscribe()));
    let task = Task {
        mark: HolderMark::of_node(&node),
        apply,
        history,
        notifier,
        retained: last.advertised,
        written,
        shown: handle.clone(),
        checks: BTreeMap::new(),
        addresses: BTreeMap::new(),
        refused: BTreeMap::new(),
        originated: BTreeMap::new(),
        is_ready: false,
        was_sent: false,
        speaker: None,
        results,
        number: 0,
        reads: JoinSet::new(),
    };
    tokio::spawn(task.run(plans, inbox));
    handle
}

/// Writes the file after each change. A disk that hangs delays only the file.
async fn write(path: PathBuf, mut state: watch::Receiver<AnycastCache>) {
    let mut has_failed = false;
    while state.changed().await.is_ok() {
        let (new, path) = (state.borrow_and_update().clone(), path.clone());
        let file = path.display().to_string();
        match tokio::task::spawn_blocking(move || new.write(&path)).await {
            Ok(Ok(())) => has_failed = false,
            Ok(Err(error)) if !has_failed => {
                has_failed = true;
                tracing::warn!(file, %error, "the anycast addresses cannot be written to disk: a restart checks them first");
            }
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

/// The identity of a check: the object, and the address if each address has its own check.
type CheckKey = (Arc<str>, Option<IpAddr>);

/// A result of a probe.
struct ProbeResult {
    check: CheckKey,
    /// The number of the check: a result of an ended check is ignored.
    number: u64,
    result: Result<(), ProbeError>,
}

/// A running check.
struct Check {
    planned: PlannedCheck,
    counter: HealthCounter,
    /// The last result as text; empty before the first one.
    text: String,
    number: u64,
    _probes: AbortOnDropHandle<()>,
}

/// An address of the plan, or one that leaves it.
struct Address {
    object: Arc<str>,
    planned: bool,
    spec: PlannedAnycast,
    check: Option<CheckKey>,
    state: HolderState,
    since: Instant,
    /// The paths of other holders, after a read and until the next decision.
    others: Others,
    /// Whether a read is in progress.
    is_reading: bool,
    /// The last read.
    read_at: Option<Instant>,
}

struct Task {
    mark: HolderMark,
    apply: ApplyPrefixes,
    history: History,
    notifier: ChangeNotifier,
    /// The addresses that the last run advertised, until the first known plan.
    retained: BTreeSet<IpAddr>,
    written: watch::Sender<AnycastCache>,
    shown: Anycast,
    checks: BTreeMap<CheckKey, Check>,
    addresses: BTreeMap<IpAddr, Address>,
    refused: BTreeMap<Arc<str>, String>,
    originated: BTreeMap<IpNet, Origination>,
    /// Whether a known plan arrived.
    is_ready: bool,
    /// Whether the reconcile task has the originations of a known plan.
    was_sent: bool,
    speaker: Option<SpeakerHandle>,
    results: mpsc::Sender<ProbeResult>,
    /// The number of the last check.
    number: u64,
    reads: JoinSet<(IpAddr, Others)>,
}

impl Task {
    async fn run(
        mut self,
        mut plans: watch::Receiver<Option<Arc<AnycastPlan>>>,
        mut inbox: mpsc::Receiver<ProbeResult>,
    ) {
        plans.mark_changed();
        loop {
            let deadline = self.deadline();
            tokio::select! {
                changed = plans.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let plan = plans.borrow_and_update().clone();
                    match plan.filter(|plan| plan.known) {
                        Some(plan) => self.take(&plan),
                        None => continue,
                    }
                }
                Some(result) = inbox.recv() => self.record(result),
                Some(Ok((address, others))) = self.reads.join_next() => {
                    if let Some(address) = self.addresses.get_mut(&address) {
                        (address.others, address.is_reading) = (others, false);
                    }
                }
                () = overdue(deadline) => {}
            }
            // Results that arrived in one moment are one change.
            while let Ok(result) = inbox.try_recv() {
                self.record(result);
            }
            if self.settle().await.is_none() {
                return;
            }
        }
    }

    /// The time of the next decision without another input.
    fn deadline(&self) -> Option<Instant> {
        let waiting = self.addresses.values().filter(|address| !address.is_reading);
        waiting.filter_map(|address| address.state.deadline()).min()
    }

    /// Takes over a known plan.
    fn take(&mut self, plan: &AnycastPlan) {
        let now = Instant::now();
        let retained = std::mem::take(&mut self.retained);
        self.refused.clear();
        for address in self.addresses.values_mut() {
            address.planned = false;
        }
        let mut wanted: BTreeMap<CheckKey, (PlannedCheck, Vec<IpAddr>)> = BTreeMap::new();
        for (name, object) in &plan.objects {
            if let Some(refused) = &object.refused {
                self.refused.insert(Arc::clone(name), refused.clone());
            }
            for address in &object.addresses {
                let check = object.check.as_ref().map(|check| {
                    let own = check.has_target_per_address().then_some(*address);
                    let key = (Arc::clone(name), own);
                    wanted.entry(key.clone()).or_insert_with(|| (check.clone(), Vec::new())).1.push(*address);
                    key
                });
                let known = self.addresses.entry(*address).or_insert_with(|| Address {
                    object: Arc::clone(name),
                    planned: true,
                    spec: object.clone(),
                    check: None,
                    state: HolderState::Withheld,
                    since: now,
                    others: Others::NotRead,
                    is_reading: false,
                    read_at: None,
                });
                (known.object, known.planned) = (Arc::clone(name), true);
                (known.spec, known.check) = (object.clone(), check);
            }
        }
        self.checks
            .retain(|key, check| wanted.get(key).is_some_and(|(planned, _)| *planned == check.planned));
        for (key, (planned, addresses)) in wanted {
            if self.checks.contains_key(&key) {
                continue;
            }
            // A changed check confirms the address first, and does not withdraw it.
            let is_advertised = |address: &IpAddr| {
                let state = self.addresses.get(address).map(|known| known.state);
                let is_known = matches!(state, Some(HolderState::Advertised | HolderState::Leaving { .. }));
                retained.contains(address) || is_known
            };
            let health = match addresses.iter().any(is_advertised) {
                true => Health::Retained,
                false => Health::Unknown,
            };
            let check = self.start(&key, planned, addresses[0], health);
            self.checks.insert(key, check);
        }
        self.is_ready = true;
    }

    /// Starts the probes of a check. `address`: of the connection, unless the check names one.
    fn start(&mut self, key: &CheckKey, planned: PlannedCheck, address: IpAddr, health: Health) -> Check {
        self.number += 1;
        let to = planned.connect_to.unwrap_or(address);
        let probes = probe(key.clone(), self.number, planned.clone(), to, self.results.clone());
        Check {
            planned,
            counter: HealthCounter::new(health),
            text: String::new(),
            number: self.number,
            _probes: AbortOnDropHandle::new(tokio::spawn(probes)),
        }
    }

    /// Handles a result of a probe.
    fn record(&mut self, result: ProbeResult) {
        let Some(check) = self.checks.get_mut(&result.check).filter(|check| check.number == result.number)
        else {
            return;
        };
        let of_check = || {
            let all = self.addresses.iter().filter(|(_, address)| address.planned);
            all.filter(|(_, address)| address.check.as_ref() == Some(&result.check))
                .map(|(address, _)| address)
        };
        let Some(settings) =
            of_check().next().and_then(|it| self.addresses.get(it)).map(|it| it.spec.settings())
        else {
            return;
        };
        let passed = result.result.is_ok();
        let text = match result.result {
            Ok(()) => "passed".to_owned(),
            Err(error) => error.to_string(),
        };
        let is_new = check.text != text;
        if check.counter.record(passed, &settings) {
            let name = &result.check.0;
            let addresses: Vec<String> = of_check().map(IpAddr::to_string).collect();
            let addresses = addresses.join(", ");
            let (kind, text) = match passed {
                true => (EventKind::AnycastHealthy, format!("AnycastAddress {name}: {addresses} healthy")),
                false => (
                    EventKind::AnycastUnhealthy,
                    format!("AnycastAddress {name}: {addresses} unhealthy: {text}"),
                ),
            };
            tracing::info!("{text}");
            self.history.record(kind, None, None, text);
        }
        if is_new {
            check.text = text;
            self.notifier.notify();
        }
    }

    /// Decides all states, and sends the differences. `None` if the reconcile task has ended.
    async fn settle(&mut self) -> Option<()> {
        let now = Instant::now();
        let mut changed = false;
        for (address, known) in &mut self.addresses {
            let health = match &known.check {
                None => Health::Healthy,
                Some(check) => self.checks.get(check).map_or(Health::Unknown, |check| check.counter.health()),
            };
            let others = std::mem::take(&mut known.others);
            let facts = HolderFacts { planned: known.planned, health, others };
            let next = known.state.next(&facts, &known.spec.settings(), now);
            if next == known.state {
                continue;
            }
            if let Some(text) = transition(*address, known, next) {
                tracing::info!("{text}");
                self.history.record(EventKind::AnycastUnhealthy, None, Some((*address).into()), text);
            }
            if !known.state.needs_others() {
                known.read_at = None;
            }
            (known.state, known.since) = (next, now);
            changed = true;
        }
        self.addresses.retain(|_, address| address.planned || address.state.is_advertised());
        self.send().await?;
        self.read_others(now).await?;
        self.show();
        if changed {
            self.notifier.notify();
        }
        Some(())
    }

    /// Sends changed originations to the reconcile task.
    async fn send(&mut self) -> Option<()> {
        let advertised = self.addresses.iter().filter(|(_, address)| address.state.is_advertised());
        let wanted: BTreeMap<IpNet, Origination> = advertised
            .map(|(address, known)| ((*address).into(), origination(&known.spec, known.state, self.mark)))
            .collect();
        let gone = self.originated.keys().filter(|prefix| !wanted.contains_key(prefix));
        let gone = gone.map(|prefix| (*prefix, None));
        let new = wanted.iter().filter(|(prefix, it)| self.originated.get(prefix) != Some(it));
        let new = new.map(|(prefix, origination)| (*prefix, Some(origination.clone())));
        let changes: Vec<(IpNet, Option<Origination>)> = gone.chain(new).collect();
        // The first one is sent even if it is empty: the speaker waits for it.
        if changes.is_empty() && self.was_sent == self.is_ready {
            return Some(());
        }
        self.originated = wanted;
        self.save();
        self.was_sent = self.is_ready;
        self.apply(changes).await
    }

    async fn apply(&mut self, changes: Vec<(IpNet, Option<Origination>)>) -> Option<()> {
        let applied = (self.apply)(ServicePrefixes { changes, ready: self.is_ready }).await?;
        self.speaker = applied.speaker;
        Some(())
    }

    /// Reads the paths of other holders for the addresses that need them.
    async fn read_others(&mut self, now: Instant) -> Option<()> {
        let is_due = |known: &Address| {
            let is_over = known.state.deadline().is_some_and(|until| now >= until);
            let is_due = is_over || known.read_at.is_none_or(|at| now >= at + PAUSE);
            known.state.needs_others() && !known.is_reading && is_due
        };
        if !self.addresses.values().any(is_due) {
            return Some(());
        }
        // The speaker may be another one than at the last change.
        self.apply(Vec::new()).await?;
        for (address, known) in self.addresses.iter_mut().filter(|(_, known)| is_due(known)) {
            (known.is_reading, known.read_at) = (true, Some(now));
            let (address, mark, speaker) = (*address, self.mark, self.speaker.clone());
            self.reads.spawn(async move {
                // Without a speaker there is nothing to withdraw.
                let Some(speaker) = speaker else { return (address, Others::None) };
                let _ = timeout(PATIENCE, speaker.wait_all_advertised()).await;
                let paths = speaker.explain(address.into()).await.map(|it| it.paths).unwrap_or_default();
                (address, others(paths.iter().map(|path| &path.route), mark))
            });
        }
        Some(())
    }

    /// Stores the state for the next run.
    fn save(&self) {
        let advertised =
            self.addresses.iter().filter(|(_, known)| known.planned && known.state.is_advertised());
        let (addresses, advertised) =
            (self.addresses.keys().copied().collect(), advertised.map(|(address, _)| *address).collect());
        self.written.send_if_modified(|written| {
            let new = AnycastCache { boot: written.boot.clone(), addresses, advertised };
            let changed = new != *written;
            *written = new;
            changed
        });
    }

    /// Shows the state to readers.
    fn show(&self) {
        let refused = self.refused.iter();
        let refused = refused.map(|(name, fault)| (Arc::clone(name), Shown::refused(fault)));
        let mut shown: BTreeMap<Arc<str>, Shown> = refused.collect();
        for (address, known) in &self.addresses {
            let check = known.check.as_ref().and_then(|check| self.checks.get(check));
            let object = shown.entry(Arc::clone(&known.object)).or_default();
            object.addresses.push((status(*address, known, check), known.since));
        }
        self.shown.shown.send_if_modified(|known| {
            let differs = *known != shown;
            *known = shown;
            differs
        });
    }
}

impl Shown {
    fn refused(fault: &str) -> Shown {
        Shown { refused: Some(fault.to_owned()), addresses: Vec::new() }
    }
}

async fn overdue(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Sends the probes of a check until it is dropped, or the task has ended.
async fn probe(
    check: CheckKey,
    number: u64,
    planned: PlannedCheck,
    address: IpAddr,
    results: mpsc::Sender<ProbeResult>,
) {
    let mut prober = Prober::new(planned.method, planned.timeout);
    let mut ticks = interval(planned.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = prober.probe(address).await;
        if results.send(ProbeResult { check: check.clone(), number, result }).await.is_err() {
            return;
        }
    }
}

/// The origination of an address in an advertised state.
fn origination(spec: &PlannedAnycast, state: HolderState, mark: HolderMark) -> Origination {
    let mut origination = spec.origination.clone();
    if state.is_shutting_down() {
        if !origination.communities.contains(&Community::GRACEFUL_SHUTDOWN) {
            origination.communities.push(Community::GRACEFUL_SHUTDOWN);
        }
    } else if spec.keep_last {
        origination.large_communities.push(mark.community());
    }
    origination
}

/// The other healthy holders among the paths of a prefix. A stale path proves nothing about its
/// holder.
fn others<'a>(routes: impl IntoIterator<Item = &'a Route>, own: HolderMark) -> Others {
    let received = routes.into_iter().filter(|route| route.peer.is_some() && !route.stale);
    let healthy = received.filter(|route| !route.communities.contains(&Community::GRACEFUL_SHUTDOWN));
    let marks = healthy.flat_map(|route| &route.large_communities).filter_map(HolderMark::read);
    match marks.filter(|mark| *mark != own).min() {
        Some(lowest) => Others::Some { own_is_lowest: own < lowest },
        None => Others::None,
    }
}

/// The text of a transition that no probe explains.
fn transition(address: IpAddr, known: &Address, next: HolderState) -> Option<String> {
    let what = match (known.state, next) {
        (HolderState::Advertised, HolderState::Yielding { .. }) => {
            "is advertised with GRACEFUL_SHUTDOWN until another node advertises it (keepLast)"
        }
        (_, HolderState::Kept) => "stays advertised: no other node advertises it (keepLast)",
        (HolderState::Yielding { .. } | HolderState::Kept, HolderState::Withheld) => {
            "is withdrawn: another node advertises it"
        }
        _ => return None,
    };
    Some(format!("AnycastAddress {}: {address} {what}", known.object))
}

/// An address for readers.
fn status(address: IpAddr, known: &Address, check: Option<&Check>) -> AnycastAddressStatus {
    let health = check.map_or(Health::Healthy, |check| check.counter.health());
    let (state, text) = match known.state {
        HolderState::Withheld if health == Health::Unknown => {
            (AdvertisementState::Withheld, "its check has not passed yet")
        }
        HolderState::Withheld => (AdvertisementState::Withheld, "its check fails"),
        HolderState::Advertised if health == Health::Retained => {
            (AdvertisementState::Retained, "advertised since before the restart")
        }
        HolderState::Advertised => (AdvertisementState::Advertised, ""),
        HolderState::Yielding { .. } => {
            (AdvertisementState::ShuttingDown, "its check fails: advertised until another node advertises it")
        }
        HolderState::Kept => {
            (AdvertisementState::Advertised, "its check fails, but no other node advertises it")
        }
        HolderState::Leaving { .. } => {
            (AdvertisementState::ShuttingDown, "the AnycastAddress is no longer on this node")
        }
    };
    AnycastAddressStatus {
        address,
        state,
        reason: (health == Health::Unhealthy).then_some(WithheldReason::Unhealthy),
        healthy: match health {
            Health::Unknown | Health::Retained => None,
            Health::Healthy => Some(true),
            Health::Unhealthy => Some(false),
        },
        text: text.to_owned(),
        check: check.map(|check| check.text.clone()).unwrap_or_default(),
        since_seconds: 0,
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
