//! The services task: it owns [`Engine`], reads its inputs, and carries out its outputs.
//!
//! Inputs that wait are taken together, without a settle time: a burst of events costs one decision
//! for each address. The task never waits for the reconcile task, for the disk or for a peer. While
//! one message to the reconcile task is in progress, further changes are collected.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use trunkline_api::control::{EventKind, ServiceView};
use trunkline_api::resources::NodeServicesStatus;
use trunkline_bgp::net::release_free_memory;
use trunkline_bgp::rib::Origination;

use super::cache::{self, CacheFile, CachedAddress};
use super::engine::{Counts, Engine, Former, Output, State, Transition};
use super::l2::Candidates;
use super::{
    AppliedPrefixes, ApplyPrefixes, Dependencies, ProxyHealth, ProxyRequests, ProxyState, RowChange,
    ServicePrefixes, ServicesInput,
};
use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::metrics::Metrics;

/// Inputs that one decision takes together at most, so that views wait only for a moment.
const TOGETHER: usize = 4096;
/// Up to this number of simultaneous changes have an event each. More changes share one event.
const FEW: usize = 8;
/// This many changes leave much free memory behind.
const MANY: usize = 1000;
/// The time limit for the measurement from an event to a peer.
const MEASURED: Duration = Duration::from_secs(30);

/// A handle of the task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Services {
    requests: mpsc::Sender<Request>,
    summary: watch::Receiver<Summary>,
}

#[derive(Debug)]
enum Request {
    View {
        /// `NAME` or `NAMESPACE/NAME`.
        name: Option<String>,
        answer: oneshot::Sender<Vec<ServiceView>>,
    },
    Report(oneshot::Sender<NodeServicesStatus>),
}

/// The numbers of service addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Whether Services, EndpointSlices, the plan and the Node are known.
    pub known: bool,
    /// Addresses by state, and by reason.
    pub counts: Counts,
    /// The service proxy.
    pub proxy: ProxyState,
    /// The time since which rules of the service proxy differ from the endpoints.
    pub late_since: Option<Instant>,
}

impl Services {
    /// The service addresses of this node: all, or those of the Services with this name (`NAME` or
    /// `NAMESPACE/NAME`). Empty if the task has ended.
    pub async fn view(&self, name: Option<String>) -> Vec<ServiceView> {
        let (answer, reply) = oneshot::channel();
        if self.requests.send(Request::View { name, answer }).await.is_err() {
            return Vec::new();
        }
        reply.await.unwrap_or_default()
    }

    /// The advertised addresses and the service proxy, for this node's NodeServices. None if the
    /// task has ended.
    pub async fn report(&self) -> Option<NodeServicesStatus> {
        let (answer, reply) = oneshot::channel();
        self.requests.send(Request::Report(answer)).await.ok()?;
        reply.await.ok()
    }

    /// The numbers now.
    pub fn summary(&self) -> Summary {
        self.summary.borrow().clone()
    }

    /// A receiver of the numbers. It also reports changes of [`Self::view`] that no number shows.
    pub fn subscribe(&self) -> watch::Receiver<Summary> {
        self.summary.clone()
    }
}

#[cfg(test)]
impl Services {
    /// A handle without a task: the reports and the numbers are those of these receivers.
    pub(crate) fn answering(
        report: watch::Receiver<NodeServicesStatus>,
        summary: watch::Receiver<Summary>,
    ) -> Services {
        let (sender, mut requests) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                match request {
                    Request::View { answer, .. } => drop(answer.send(Vec::new())),
                    Request::Report(answer) => drop(answer.send(report.borrow().clone())),
                }
            }
        });
        Services { requests: sender, summary }
    }
}

/// Starts the task. It ends when its inputs end, or when the reconcile task has ended.
pub fn spawn(dependencies: Dependencies) -> (Services, JoinHandle<()>) {
    let Dependencies {
        settings,
        inbox,
        plan,
        mut local_pods,
        mut stage,
        apply,
        proxy,
        candidates,
        history,
        metrics,
        notifier,
    } = dependencies;
    let boot = cache::boot_id().unwrap_or_else(|error| {
        tracing::warn!(%error, "the kernel's boot ID cannot be read: service addresses of the last run are not retained");
        // No file has it.
        format!("unknown-{:016x}", fastrand::u64(..))
    });
    let (former, file) = open_cache(&settings, boot);
    let local = local_pods.borrow_and_update().clone();
    let began = *stage.borrow_and_update();
    let engine = Engine::new(settings, former, local, began, Instant::now());
    let (sender, requests) = mpsc::channel(16);
    let summary = watch::Sender::new(summarize(&engine));
    let services = Services { requests: sender, summary: summary.subscribe() };
    let task = Task {
        engine,
        apply,
        proxy,
        candidates,
        history,
        metrics,
        notifier,
        summary,
        pending: BTreeMap::new(),
        sent_ready: false,
        in_flight: None,
        many_in_flight: false,
        sample: None,
        cache: CacheWriter {
            file: Some(file),
            pending: BTreeMap::new(),
            writing: None,
            many: false,
            failed: false,
        },
    };
    let inputs = Inputs { inbox, plan, local_pods, stage, requests };
    (services, tokio::spawn(task.run(inputs)))
}

fn open_cache(settings: &super::Settings, boot: String) -> (Former, CacheFile) {
    let read = cache::read(&settings.cache, &boot);
    let path = settings.cache.clone();
    match read {
        Ok(Some(addresses)) => (Former::Addresses(addresses), CacheFile::of_last_run(path, boot)),
        Ok(None) => (Former::None, CacheFile::new(path, boot)),
        Err(error) => {
            tracing::warn!(%error, "service addresses of the last run are not known: all prefixes wait for the Services");
            (Former::Unreadable, CacheFile::new(path, boot))
        }
    }
}

fn summarize(engine: &Engine) -> Summary {
    Summary {
        known: engine.known,
        counts: engine.counts().clone(),
        proxy: engine.proxy,
        late_since: engine.late_since(),
    }
}

struct Inputs {
    inbox: mpsc::Receiver<ServicesInput>,
    plan: watch::Receiver<Option<Arc<super::ServicesPlan>>>,
    local_pods: watch::Receiver<super::LocalPods>,
    stage: watch::Receiver<super::NodeStage>,
    requests: mpsc::Receiver<Request>,
}

struct Task {
    engine: Engine,
    apply: ApplyPrefixes,
    proxy: ProxyRequests,
    candidates: watch::Sender<Candidates>,
    history: History,
    metrics: Metrics,
    notifier: ChangeNotifier,
    summary: watch::Sender<Summary>,
    /// Changes that the reconcile task does not have yet.
    pending: BTreeMap<IpNet, Option<Origination>>,
    sent_ready: bool,
    in_flight: Option<BoxFuture<'static, Option<AppliedPrefixes>>>,
    many_in_flight: bool,
    /// A new prefix, and the time of the event that it follows from.
    sample: Option<(IpNet, Instant)>,
    cache: CacheWriter,
}

/// The file for the next run, written beside the task.
struct CacheWriter {
    file: Option<CacheFile>,
    pending: BTreeMap<IpAddr, Option<CachedAddress>>,
    writing: Option<JoinHandle<(CacheFile, std::io::Result<()>)>>,
    many: bool,
    failed: bool,
}

/// Whether this is the end of a list. The text and the unused fields of a long list are free memory
/// between the rows.
fn ends_list(input: &ServicesInput) -> bool {
    matches!(
        input,
        ServicesInput::Services(RowChange::Listed(_)) | ServicesInput::Slices(RowChange::Listed(_))
    )
}

/// The result of a future; pending forever without one.
async fn done<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Task {
    async fn run(mut self, mut inputs: Inputs) {
        if let Some(plan) = inputs.plan.borrow_and_update().clone() {
            self.engine.set_plan(plan);
        }
        loop {
            let now = Instant::now();
            let output = self.engine.advance(now);
            self.carry_out(output, now);
            let deadline = self.engine.next_deadline();
            tokio::select! {
                input = inputs.inbox.recv() => match input {
                    Some(input) => self.take(input, &mut inputs.inbox),
                    None => return,
                },
                changed = inputs.plan.changed() => match changed {
                    Ok(()) => if let Some(plan) = inputs.plan.borrow_and_update().clone() {
                        self.engine.set_plan(plan);
                    },
                    Err(_) => return,
                },
                changed = inputs.local_pods.changed() => match changed {
                    Ok(()) => {
                        let local = inputs.local_pods.borrow_and_update().clone();
                        self.engine.set_local(local);
                    }
                    Err(_) => return,
                },
                changed = inputs.stage.changed() => match changed {
                    Ok(()) => {
                        let stage = *inputs.stage.borrow_and_update();
                        self.engine.set_stage(stage);
                    }
                    Err(_) => return,
                },
                applied = done(&mut self.in_flight) => {
                    self.in_flight = None;
                    if self.many_in_flight {
                        release_free_memory();
                    }
                    match applied {
                        Some(applied) => self.measure(applied),
                        None => return,
                    }
                }
                written = done(&mut self.cache.writing) => self.cache.written(written),
                Some(request) = inputs.requests.recv() => match request {
                    Request::View { name, answer } => {
                        let _ = answer.send(self.engine.views(name.as_deref(), now));
                    }
                    Request::Report(answer) => drop(answer.send(self.engine.node_services())),
                },
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Takes over an input, and those that wait behind it.
    fn take(&mut self, first: ServicesInput, inbox: &mut mpsc::Receiver<ServicesInput>) {
        let now = Instant::now();
        let mut inputs = 0;
        let mut is_list = false;
        let mut next = Some(first);
        while let Some(input) = next.take() {
            if let ServicesInput::Proxy(state) = &input {
                self.record_proxy(state);
            }
            is_list |= ends_list(&input);
            self.engine.handle(input, now);
            inputs += 1;
            if inputs <= TOGETHER {
                next = inbox.try_recv().ok();
            }
        }
        if is_list && self.engine.are_many() {
            release_free_memory();
        }
    }

    fn carry_out(&mut self, output: Output, now: Instant) {
        let Output {
            prefixes,
            transitions,
            cache,
            interest,
            check_proxy,
            candidates,
            changed,
            added,
            settled,
        } = output;
        if let Some(candidates) = candidates {
            self.candidates.send_if_modified(|known| {
                let differs = *known != candidates;
                *known = candidates;
                differs
            });
        }
        self.pending.extend(prefixes.changes);
        if let Some(prefix) = added {
            self.sample.get_or_insert((prefix, now));
        }
        if self.in_flight.is_none() && (!self.pending.is_empty() || (prefixes.ready && !self.sent_ready)) {
            self.sent_ready = prefixes.ready;
            let changes: Vec<_> = std::mem::take(&mut self.pending).into_iter().collect();
            self.many_in_flight = changes.len() >= MANY;
            self.in_flight = Some((self.apply)(ServicePrefixes { changes, ready: prefixes.ready }));
        }
        if let Some(interest) = interest {
            self.proxy.interest.send_replace(interest);
        }
        if check_proxy {
            tracing::warn!("rules of the service proxy are late: its health is requested");
            self.proxy.check.notify_one();
        }
        self.cache.pending.extend(cache);
        self.cache.begin();
        self.record(&transitions);
        drop(transitions);
        if settled && self.engine.are_many() {
            self.engine.compact();
            release_free_memory();
        }
        let summary = summarize(&self.engine);
        let is_new = self.summary.send_if_modified(|known| {
            let differs = *known != summary;
            *known = summary;
            differs || changed
        });
        // Live views also show the numbers, so they are notified after the numbers have changed.
        if is_new {
            self.notifier.notify();
        }
    }

    fn record(&self, transitions: &[Transition]) {
        let is_advertised = |transition: &&Transition| transition.state == Some(State::Advertised);
        for (kind, what, wanted) in [
            (EventKind::ServiceAdvertised, "are advertised", true),
            (EventKind::ServiceWithheld, "are not advertised any more, or will be withdrawn", false),
        ] {
            let of_kind: Vec<_> = transitions.iter().filter(|of| is_advertised(of) == wanted).collect();
            if of_kind.len() > FEW {
                let text = format!("{} service addresses {what}", of_kind.len());
                self.history.record(kind, None, None, text);
                continue;
            }
            for transition in of_kind {
                self.history.record(kind, None, Some(transition.address.into()), transition.text.clone());
            }
        }
    }

    /// Records the loss and the return of the service proxy.
    fn record_proxy(&self, state: &ProxyState) {
        let (before, after) = (self.engine.proxy.health, state.health);
        let is_fault =
            |health| !matches!(health, ProxyHealth::Up | ProxyHealth::NotChecked | ProxyHealth::Unknown);
        // Without a service address, the service proxy does not matter.
        if before == after || self.engine.addresses.is_empty() {
            return;
        }
        let address = &self.engine.settings.proxy_address;
        match after {
            ProxyHealth::Up if is_fault(before) => {
                let text = format!("kube-proxy answers at {address}: its rules are current");
                self.history.record(EventKind::ProxyBack, None, None, text);
            }
            ProxyHealth::Away { .. } | ProxyHealth::Unhealthy | ProxyHealth::NotEligible => {
                let text = super::view::proxy_text(after, address, Instant::now());
                self.history.record(EventKind::ProxyAway, None, None, text);
            }
            ProxyHealth::Up | ProxyHealth::NotChecked | ProxyHealth::Unknown => {}
        }
    }

    /// Measures the time from the event to the first peer, for one of the new prefixes.
    fn measure(&mut self, applied: AppliedPrefixes) {
        let (Some((prefix, since)), Some(speaker)) = (self.sample.take(), applied.speaker) else { return };
        let metrics = self.metrics.clone();
        tokio::spawn(async move {
            if let Ok(Ok(_)) = timeout(MEASURED, speaker.watch(prefix)).await {
                metrics.service_to_fabric(since.elapsed());
            }
        });
    }
}

impl CacheWriter {
    /// Writes the pending changes, unless a write is in progress.
    fn begin(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let Some(mut file) = self.file.take() else { return };
        let changes = std::mem::take(&mut self.pending);
        self.many = changes.len() >= MANY;
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let result = file.write(&changes);
            (file, result)
        }));
    }

    fn written(&mut self, result: Result<(CacheFile, std::io::Result<()>), tokio::task::JoinError>) {
        self.writing = None;
        if self.many {
            release_free_memory();
        }
        let outcome = match result {
            Ok((file, outcome)) => {
                self.file = Some(file);
                outcome
            }
            Err(error) => Err(std::io::Error::other(error)),
        };
        match outcome {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::warn!(%error, "service addresses for the next run cannot be written: a restart withdraws them");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trunkline_api::control::{AdvertisementState, ProxyRulesState};
    use trunkline_api::service::{Protocol, TrafficPolicy};

    use super::*;
    use crate::services::advertisements::tests::plan;
    use crate::services::rows::tests::{service, slice};
    use crate::services::{
        LocalPods, NodeInput, NodeStage, PortRules, RowChange, RuleChange, RuleChanges, ServicesPlan,
        Settings,
    };

    /// The tasks around the services task.
    struct Around {
        services: Services,
        task: JoinHandle<()>,
        inputs: mpsc::Sender<ServicesInput>,
        plan: watch::Sender<Option<Arc<ServicesPlan>>>,
        _others: (watch::Sender<LocalPods>, watch::Sender<NodeStage>),
        applied: mpsc::UnboundedReceiver<(ServicePrefixes, oneshot::Sender<()>)>,
        interest: watch::Receiver<Vec<IpNet>>,
        history: History,
    }

    fn start(cache: &Path) -> Around {
        let (inputs, inbox) = mpsc::channel(16);
        let (plan, plans) = watch::channel(None);
        let (local_pods, pods) = watch::channel(LocalPods::default());
        let (stages, stage) = watch::channel(NodeStage::Active);
        let (applies, applied) = mpsc::unbounded_channel();
        let interest = watch::Sender::new(Vec::new());
        let history = History::default();
        let watched = interest.subscribe();
        let (services, task) = spawn(Dependencies {
            settings: Settings {
                restart: Duration::from_secs(60),
                settle: Duration::from_secs(2),
                proxy_address: "127.0.0.1:10256".to_owned(),
                class: Arc::from("trunkline.io/load-balancer"),
                deferral: Duration::from_secs(120),
                cache: cache.to_owned(),
            },
            inbox,
            plan: plans,
            local_pods: pods,
            stage,
            apply: Box::new(move |prefixes| {
                let (done, wait) = oneshot::channel();
                let _ = applies.send((prefixes, done));
                Box::pin(async move { wait.await.ok().map(|()| AppliedPrefixes::default()) })
            }),
            candidates: watch::Sender::new(Candidates::new()),
            proxy: ProxyRequests { interest, check: Arc::default() },
            history: history.clone(),
            metrics: Metrics::new().unwrap(),
            notifier: ChangeNotifier::default(),
        });
        Around {
            services,
            task,
            inputs,
            plan,
            _others: (local_pods, stages),
            applied,
            interest: watched,
            history,
        }
    }

    fn rules(port: u16) -> ServicesInput {
        let change = RuleChange {
            address: "10.9.0.1".parse().unwrap(),
            protocol: Protocol::Tcp,
            port,
            rules: PortRules::Forwarded,
        };
        ServicesInput::Rules(RuleChanges { complete: true, changes: vec![change] })
    }

    fn up() -> ServicesInput {
        ServicesInput::Proxy(ProxyState { health: ProxyHealth::Up, rules: Some(ProxyRulesState::Nftables) })
    }

    #[tokio::test]
    async fn changes_are_collected_while_one_message_is_in_progress_and_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("services.json");
        let mut world = start(&cache);
        let (first, done) = world.applied.recv().await.unwrap();
        assert_eq!(first, ServicePrefixes { changes: Vec::new(), ready: true });

        world.plan.send_replace(Some(Arc::new(plan(&[]))));
        let web = service("web", &["10.9.0.1"], TrafficPolicy::Cluster);
        for input in [
            ServicesInput::Services(RowChange::Listed(vec![web])),
            ServicesInput::Slices(RowChange::Listed(vec![slice("a", "web", 1, &[])])),
            ServicesInput::Node(NodeInput::default()),
            rules(80),
            up(),
        ] {
            world.inputs.send(input).await.unwrap();
        }
        let mut summary = world.services.subscribe();
        let advertised = (AdvertisementState::Advertised, false);
        summary.wait_for(|summary| summary.counts.addresses.get(&advertised) == Some(&1)).await.unwrap();
        assert!(world.applied.try_recv().is_err(), "the first message is in progress");
        done.send(()).unwrap();
        let (second, done) = world.applied.recv().await.unwrap();
        assert_eq!(second.changes.len(), 1);
        done.send(()).unwrap();
        let views = world.services.view(Some("default/web".to_owned())).await;
        assert_eq!((views.len(), views[0].text.as_str()), (1, "advertised"));
        assert!(world.services.view(Some("api".to_owned())).await.is_empty());
        let report = world.services.report().await.unwrap();
        assert_eq!((report.services.len(), report.services[0].address.as_str()), (1, "10.9.0.1"));
        assert!(world.interest.borrow_and_update().contains(&"10.9.0.0/24".parse().unwrap()));
        let texts: Vec<String> = world.history.since(0).events.into_iter().map(|event| event.text).collect();
        assert!(texts.iter().any(|text| text == "10.9.0.1 of default/web: advertised"), "{texts:?}");

        // The process is killed after the file was written.
        let boot = cache::boot_id().unwrap();
        while cache::read(&cache, &boot).unwrap().is_none_or(|addresses| addresses.is_empty()) {
            tokio::task::yield_now().await;
        }
        world.task.abort();
        let mut world = start(&cache);
        assert_eq!(
            world.services.summary().counts.addresses.get(&(AdvertisementState::Retained, false)),
            Some(&1)
        );
        world.plan.send_replace(Some(Arc::new(ServicesPlan { complete: false, ..plan(&[]) })));
        world.inputs.send(rules(80)).await.unwrap();
        world.inputs.send(up()).await.unwrap();
        let (first, _) = world.applied.recv().await.unwrap();
        assert_eq!(first, ServicePrefixes { changes: second.changes, ready: true });
        // The reconcile task ends.
        world.task.await.unwrap();
    }
}
