//! `trunkline agent`: its tasks, their inputs, and the order of start and stop.
//!
//! ```text
//!      manifests (inotify) or API server         peers (TCP 179)
//!                  │                                   │
//!             source task                        speaker tasks ──RouteChange──► pump ─┐
//!                  │ Snapshot                       ▲  │ Event                        │
//!                  ▼                                │  ▼                              ▼
//!   ipam thread ◄──────────────── reconcile task ───┴──────────────────────► kernel thread ──► rtnetlink, nft
//!      ▲   │ store.redb                 ▲ AddPod, RemovePod                       │ HostChanged, DeviceGone
//!      │                                │ ◄───────────────────────────────────────┘
//!      └────────────── attach flow (a task per request) ──► attach threads (setns) ──► pods' namespaces
//!                                       ▲
//!        trunkline-cni, trunkline … ────┴── agent.sock          /metrics, /healthz, /readyz, the page ── http task
//! ```
//!
//! **Start**: the lock of the socket, the store, a scan of the kernel. [`recover`] compares the
//! store with the kernel after the last run, and the agent deletes the leftovers. The first
//! manifests (with an API server: first the cached state, then the server's) make the first plan,
//! which adopts existing links, rules and routes. The speaker starts with the restart bits set if
//! there was a last run. The socket is bound before the first plan, so a client gets the missing
//! condition instead of a refused connection.
//!
//! **Stop** (SIGTERM, SIGINT): current requests end, TCP connections are closed without a
//! NOTIFICATION, the kernel's state stays. So a stop is the first half of a restart and loses
//! nothing. `trunkline drain` is the command for leaving the fabric.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use trunkline_api::control::EventKind;
use trunkline_bgp::config::SpeakerConfig;
use trunkline_bgp::net::ShellConfig;
use trunkline_bgp::types::Asn;
use trunkline_daemon::connections::{self, ConnectionLimiter};
use trunkline_daemon::{http, logging, panics};
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::link_check::LinkChecker;
use trunkline_datapath::naming::host_ifname;

use crate::addresses::Addresses;
use crate::change_notifier::ChangeNotifier;
use crate::config::Config;
use crate::drain::{self, Drain};
use crate::history::{self, History};
use crate::ipam::{Ipam, Record, Started};
use crate::metrics::Metrics;
use crate::migration::{self, MigrationDependencies};
use crate::netpolicy;
use crate::netpolicy::feed::Wanted;
use crate::netpolicy::inbox::{self, PolicyInputs};
use crate::netpolicy::keys::LabelKeys;
use crate::netpolicy::{Policies, PolicyDependencies, PolicyLink};
use crate::observe::Observer;
use crate::page::{Page, Served};
use crate::plan::Pod;
use crate::pods::{self, AttachmentLocks, Pods};
use crate::probe;
use crate::reconcile::{self, Reconcile, ServiceFactReceivers};
use crate::recover::{Recovery, recover};
use crate::server::Server;
use crate::services::anycast::cache::AnycastCache;
use crate::services::anycast::{self, AnycastDependencies};
use crate::services::l2::Candidates;
use crate::services::proxy::ProxyObserver;
use crate::services::{self, Services, ServicesInput};
use crate::settings::{self, Settings};
use crate::socket;
use crate::source;
use crate::source::folder::{Context as FolderContext, FolderContent};
use crate::source::kube::SourceKind;
use crate::source::kube::l2::{HeldAddresses, L2Parts};
use crate::source::kube::policies::PolicyWatches;
use crate::source::watch::FolderSource;
use crate::telemetry::{self, Telemetry};

/// Maximum number of simultaneous attachments. The kernel serializes most of their work.
const ATTACH_THREADS: usize = 8;
/// Inputs of the services task that may wait. A watch waits while the queue is full.
const SERVICE_INPUTS: usize = 1024;
/// Time limit for current requests after a signal.
const FAREWELL: Duration = Duration::from_secs(3);
/// Time limit for writing the last events to disk.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Runs until a stop signal.
pub fn run(config_path: &Path) -> anyhow::Result<()> {
    let config = Config::read(config_path)?;
    logging::start(&config.log);
    panics::abort_on_panic();
    connections::raise_descriptor_limit();
    // This call comes before any thread starts. Routing tables grow and shrink as long as the agent
    // runs.
    trunkline_bgp::net::compact_heap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the async runtime")?;
    runtime.block_on(serve(config))
}

/// `file` is agent.yaml.
async fn serve(file: Config) -> anyhow::Result<()> {
    let began = Instant::now();
    let config = settings::start::config(&file).await;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;

    let lock = socket::lock(&config.socket)?;
    let Started { ipam, records, drain: drained, fault } =
        Ipam::start(&config.store).context("starting the address thread")?;
    if let Some(fault) = &fault {
        tracing::error!(error = %fault, "the store cannot be used");
    }
    let anycast_file = anycast::cache::path_for_store(&config.store);
    let last_anycast = AnycastCache::read(&anycast_file, &anycast::cache::boot());
    let held_file = source::kube::l2::path_for_store(&config.store);
    let last_held = HeldAddresses::read(&held_file, &anycast::cache::boot());
    let (kernel, mut kernel_events) = KernelHandle::spawn(KernelConfig {
        hold: IpFamily::ALL.into(),
        addresses: last_anycast.addresses.clone(),
        reach: config.reached_addresses(),
        protects_policies: config.network_policies.protect_table,
        guard: config.guard.enabled,
    })
    .context("reading the kernel's state")?;
    let limits_touched = kernel_events.take_limits();
    let policies_touched = kernel_events.take_policies();
    let devices = DeviceWorkers::spawn(ATTACH_THREADS).context("preparing for attachments")?;

    let host = kernel.host().await.context("reading the host's state")?;
    // The agent's rules exist from the first plan on, and stay when the agent stops.
    let restarting = !host.tables.is_empty();
    let mut recovery = recover(&records, &kernel.devices().await.context("reading the links")?);
    if fault.is_some() {
        // Without records, a device may belong to a running pod, so none is deleted.
        recovery.leftover.clear();
    }
    clean(&recovery, &ipam, &devices).await;

    let node = config.node_name();
    let cluster = match config.source {
        SourceKind::Manifests => None,
        SourceKind::Kube => {
            let selector = config.pod_label_selector.parse().context("podLabelSelector")?;
            Some(source::kube::parts(&node, config.kube.connect().await?, selector))
        }
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node,
        restarting,
        pods = recovery.pods.len(),
        "the agent starts"
    );
    let metrics = Metrics::new().context("creating the metrics")?;
    let notifier = ChangeNotifier::default();
    let (history, run) = History::begin(&config.store);
    let addresses = match &cluster {
        Some(parts) => Addresses::Cluster(parts.cluster.clone()),
        None => Addresses::Local,
    };
    let policy_inputs = policies_touched.filter(|_| config.has_policies()).map(|touched| {
        let (inputs, inbox) = inbox::channel();
        let (wanted, wants) = watch::channel(Wanted::default());
        let keys = Arc::new(LabelKeys::default());
        let policies = Policies::spawn(PolicyDependencies {
            node: node.clone(),
            inbox,
            links: policy_links(&records, &recovery.pods, &addresses),
            cache: cluster.is_some().then(|| netpolicy::cache::path_for_store(&config.store)),
            keys: cluster.is_some().then(|| Arc::clone(&keys)),
            wanted,
            kernel: kernel.clone(),
            touched,
            metrics: metrics.clone(),
            notifier: notifier.clone(),
        });
        (policies, inputs, wants, keys)
    });
    let policies = policy_inputs.as_ref().map(|(policies, ..)| policies.clone());
    let (reconcile, reconciling) = reconcile::spawn(reconcile::ReconcileDependencies {
        node: node.clone(),
        router_id: config.router_id,
        settings: Settings::new(file, config.clone()),
        shell: ShellConfig { listen: config.listen.clone(), ..ShellConfig::default() },
        speaker: SpeakerConfig {
            local_as: Asn(0),
            router_id: std::net::Ipv4Addr::UNSPECIFIED,
            cluster_id: config.cluster_id,
            restarting,
            selection_deferral: config.selection_deferral(),
            max_paths: usize::from(config.max_paths),
            seed: fastrand::u64(..),
        },
        stations: config.bmp.stations.clone(),
        station: config.bmp_station(),
        kernel: kernel.clone(),
        reached: config.reached_addresses(),
        kernel_events,
        ipam: ipam.clone(),
        history: history.clone(),
        own_pools: config.source == SourceKind::Manifests,
        pods: recovery.pods,
        unrecorded: recovery.unrecorded,
        broken: recovery.broken,
        host_addresses: reconcile::host_addresses(&host),
        waits_for_services: config.has_services(),
        // Without such addresses nothing would be lost, and pods' prefixes must not wait for a kind
        // that the API server may not have.
        waits_for_anycast: !last_anycast.advertised.is_empty(),
        held_addresses: last_held.held.clone(),
        metrics: metrics.clone(),
        notifier: notifier.clone(),
        stage: drain::stage(drained.as_deref()),
    });
    let telemetry = Telemetry::start(
        &config.telemetry,
        telemetry::Node { name: node.clone(), kubernetes: config.source == SourceKind::Kube },
        &history,
        &metrics,
    );
    let drain = Drain::spawn(drain::Settings {
        settle: config.drain_settle(),
        stored: drained,
        reconcile: reconcile.clone(),
        ipam: ipam.clone(),
        history: history.clone(),
    });

    let anycast = anycast::spawn(AnycastDependencies {
        node: node.clone(),
        plans: reconcile.service_facts().anycast,
        apply: {
            let reconcile = reconcile.clone();
            Box::new(move |prefixes| {
                let reconcile = reconcile.clone();
                Box::pin(async move { reconcile.anycast(prefixes).await })
            })
        },
        history: history.clone(),
        notifier: notifier.clone(),
        last: last_anycast,
        cache: anycast_file,
    });
    let services = config
        .has_services()
        .then(|| serve_services(&config, &reconcile, &history, &metrics, &notifier))
        .transpose()?;
    let link_checker = LinkChecker::new(config.link_check_timeouts());
    let (services, service_inputs, l2, serving) = match services {
        Some(ServiceTask { services, inputs, candidates, task }) => {
            let (links, former, file) = (link_checker.clone(), last_held, held_file);
            let l2 = L2Parts { candidates, links, former, file };
            (Some(services), Some(inputs), Some(l2), Some(task))
        }
        None => (None, None, None, None),
    };
    let reported = services
        .clone()
        .map(|services| source::kube::ReportedServices { services, anycast: anycast.clone() });
    let probes = probe::spawn(config.probes(), reconcile.clone(), history.clone(), notifier.clone());
    let repairs = kernel.repairs();
    let observer = Arc::new(Observer {
        node: node.clone(),
        manifests: match &cluster {
            Some(parts) => parts.cluster.server().to_owned(),
            None => config.manifests.display().to_string(),
        },
        cluster: cluster.as_ref().map(|parts| parts.cluster.clone()),
        store: config.store.display().to_string(),
        began,
        reconcile: reconcile.clone(),
        ipam: ipam.clone(),
        kernel: kernel.clone(),
        devices: devices.clone(),
        metrics: metrics.clone(),
        http_fault: http::Fault::default(),
        history: history.clone(),
        drain: drain.clone(),
        probes,
        anycast,
        services,
        policies: policies.clone(),
        started: crate::observe::StartupState::default(),
    });
    tokio::spawn(history::repairs::follow(history.clone(), repairs));
    tokio::spawn(crate::observe::identifiers::follow(Arc::clone(&observer), history.clone()));
    let mut keeper = history.keep(&config.store, run, Arc::clone(&observer));
    let pods = Pods {
        addresses,
        policies,
        kernel,
        ipam: ipam.clone(),
        devices,
        reconcile: reconcile.clone(),
        link_checker,
        metrics: metrics.clone(),
        tracer: telemetry.tracer(),
        readiness_timeout: config.readiness_timeout(),
        locks: AttachmentLocks::default(),
    };

    let page = Page::start(config.page, Arc::clone(&observer), &notifier);
    let served = Arc::new(Served { observer: Arc::clone(&observer), page });
    let (address, fault) = (config.http_address, observer.http_fault.clone());
    let limiter = ConnectionLimiter::new(http::LIMITS, metrics.connections().listener("http"));
    tokio::spawn(async move {
        let listener = http::bind_patiently(address, fault).await;
        http::serve(listener, limiter, http::Paths::All, served).await;
    });
    if let (Some((_, inputs, wanted, keys)), Some(parts)) = (&policy_inputs, &cluster) {
        let watches = PolicyWatches {
            node: node.clone(),
            cluster: parts.cluster.clone(),
            inputs: inputs.clone(),
            wanted: wanted.clone(),
            keys: Arc::clone(keys),
        };
        tokio::spawn(watches.follow());
    }
    let source = match cluster {
        None => {
            let source = FolderSource::new(&config.manifests).context("watching the manifests")?;
            let inputs = policy_inputs.as_ref().map(|(_, inputs, ..)| inputs.clone());
            tokio::spawn(follow(source, reconcile.clone(), inputs, metrics, config.node_labels()))
        }
        Some(parts) => {
            tokio::spawn(migration::follow(MigrationDependencies {
                cluster: parts.cluster.clone(),
                ipam: ipam.clone(),
                reconcile: reconcile.clone(),
                link_checker: pods.link_checker.clone(),
            }));
            let dependencies = source::kube::ClusterDependencies {
                node,
                cache: config.kube.cache.clone(),
                reconcile: reconcile.clone(),
                ipam,
                metrics,
                node_peers: Arc::clone(&observer),
                writes_instances: config.update_ip_instance_status,
                drain: config.drain.follow_cordon.then(|| drain.clone()),
                services: service_inputs,
                reported,
                l2,
            };
            tokio::spawn(parts.follow(dependencies))
        }
    };
    if let Some(touched) = limits_touched {
        tokio::spawn(pods.clone().keep_limits(touched));
    }
    let requests = TaskTracker::new();
    let server = tokio::spawn(Server { pods, observer, notifier }.serve(lock.bind()?, requests.clone()));

    // If a task ends in any other case, the agent has failed. It stops, because a restarted agent
    // is better than an agent without one of its tasks.
    let fault = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        _ = source => Some("the manifests or the API server are no longer watched"),
        _ = reconciling => Some("the kernel and the speaker are no longer reconciled"),
        () = ended(serving) => Some("service addresses are no longer advertised"),
    };
    tracing::info!("the agent stops; pods, routes and rules stay");
    let why = fault.unwrap_or("it received a signal");
    history.record(EventKind::AgentStopped, None, None, format!("the agent stops: {why}"));
    server.abort();
    history.close();
    drain.close();
    requests.close();
    // The keeper requests the sessions one last time. If the disk hangs, the stop is delayed by at
    // most `LAST_EVENTS`.
    let _ = timeout(LAST_EVENTS, &mut keeper).await;
    // Sessions end first, because requests that wait for the fabric would only wait longer.
    reconcile.stop().await;
    let _ = timeout(FAREWELL, requests.wait()).await;
    telemetry.stop().await;
    drop(lock);
    match fault {
        None => Ok(()),
        Some(fault) => anyhow::bail!("{fault}: see the log above, and start the agent again"),
    }
}

/// The services task with its channels.
struct ServiceTask {
    services: Services,
    inputs: mpsc::Sender<ServicesInput>,
    candidates: watch::Receiver<Candidates>,
    task: JoinHandle<()>,
}

/// The links of the last run's pods that continue.
fn policy_links(records: &[Record], pods: &[Pod], addresses: &Addresses) -> Vec<PolicyLink> {
    let of = |record: &Record| {
        let name = host_ifname(&record.key.container_id, &record.key.ifname);
        let pod = pods.iter().find(|pod| pod.host_ifname == name)?;
        Some(pods::policy_link(record, pod.host_ifindex, addresses))
    };
    records.iter().filter_map(of).collect()
}

/// Starts the services task, and the observers of the service proxy.
fn serve_services(
    config: &Config,
    reconcile: &Reconcile,
    history: &History,
    metrics: &Metrics,
    notifier: &ChangeNotifier,
) -> anyhow::Result<ServiceTask> {
    let (inputs, inbox) = mpsc::channel(SERVICE_INPUTS);
    let (interest, check) = (watch::Sender::new(Vec::new()), Arc::new(Notify::new()));
    let observer = ProxyObserver {
        health_address: config.proxy_health_address(),
        interest: interest.subscribe(),
        check: Arc::clone(&check),
    };
    let ServiceFactReceivers { local_pods, stage, plan, anycast: _ } = reconcile.service_facts();
    let reconcile = reconcile.clone();
    let (candidates, wanted) = watch::channel(Candidates::new());
    let (services, task) = services::spawn(services::Dependencies {
        settings: config.services(),
        inbox,
        plan,
        local_pods,
        stage,
        apply: Box::new(move |prefixes| {
            let reconcile = reconcile.clone();
            Box::pin(async move { reconcile.services(prefixes).await })
        }),
        proxy: services::ProxyRequests { interest, check },
        candidates,
        history: history.clone(),
        metrics: metrics.clone(),
        notifier: notifier.clone(),
    });
    // The services task sets the prefixes of interest first: the observers read them at once.
    observer.spawn(inputs.clone()).context("reading the service proxy's rules")?;
    Ok(ServiceTask { services, inputs, candidates: wanted, task })
}

/// The end of a task; pending forever without one.
async fn ended(task: Option<JoinHandle<()>>) {
    match task {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}

/// Removes the leftovers of a killed run, before new attachments can conflict with them.
async fn clean(recovery: &Recovery, ipam: &Ipam, devices: &DeviceWorkers) {
    for key in &recovery.discard {
        let name = host_ifname(&key.container_id, &key.ifname);
        if let Err(error) = devices.detach(name, None).await {
            tracing::warn!(attachment = %key, %error, "the leftovers of an interrupted ADD could not be deleted");
            continue;
        }
        match ipam.release(key.clone()).await {
            Ok(_) => tracing::info!(attachment = %key, "an interrupted ADD was cleaned up"),
            Err(error) => tracing::warn!(attachment = %key, %error, "an interrupted ADD stays recorded"),
        }
    }
    for name in &recovery.leftover {
        match devices.detach(name.clone(), None).await {
            Ok(_) => tracing::info!(device = name, "an unused link was deleted"),
            Err(error) => tracing::warn!(device = name, %error, "an unused link could not be deleted"),
        }
    }
    for (name, bandwidth) in &recovery.limits {
        if let Err(error) = devices.repair_limits(name.clone(), *bandwidth).await {
            tracing::warn!(device = name, %error, "a pod's bandwidth limits could not be set");
        }
    }
    for key in &recovery.promote {
        if let Err(error) = ipam.promote(key.clone()).await {
            tracing::warn!(attachment = %key, %error, "the record stays at \"attaching\"");
        }
    }
    for name in &recovery.broken {
        tracing::warn!(
            device = name,
            "an attached pod's link is gone: its addresses stay allocated until its DEL or GC"
        );
    }
    for pod in &recovery.unrecorded {
        tracing::warn!(
            device = pod.host_ifname,
            container = pod.container_id,
            "a pod without a record keeps running"
        );
    }
}

/// Follows the manifests: each state of the folder is applied or refused.
async fn follow(
    mut source: FolderSource,
    reconcile: Reconcile,
    policies: Option<PolicyInputs>,
    metrics: Metrics,
    labels: std::collections::BTreeMap<String, String>,
) {
    let mut context = FolderContext { labels, running: None };
    let mut reported: Vec<String> = Vec::new();
    loop {
        let outcome = match source.read(context.clone()).await {
            Ok(FolderContent { snapshot, policies: objects }) => match reconcile.snapshot(snapshot).await {
                Some(outcome) => {
                    if let (Some(inputs), Ok(_)) = (&policies, &outcome) {
                        objects.send(inputs).await;
                    }
                    outcome
                }
                None => return,
            },
            Err(refused) => {
                reconcile.refused(refused.clone()).await;
                Err(refused)
            }
        };
        match outcome {
            Ok(running) => {
                context.running = Some(running);
                reported.clear();
            }
            Err(refused) => {
                if refused.faults != reported {
                    metrics.manifests_refused();
                    for fault in &refused.faults {
                        tracing::error!(%fault, "the manifests are refused: the previous ones stay in force");
                    }
                    reported = refused.faults;
                }
            }
        }
        if source.changed().await.is_none() {
            return;
        }
    }
}
