//! Main task of `trunkline-controller`: the order in which its tasks start and stop. The tasks are
//! drawn in [the crate's page](crate).

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::{IPInstanceSpec, NetworkSpec, RemoteSubnetSpec, SubnetSpec};
use trunkline_daemon::connections::{self, ConnectionLimiter};
use trunkline_daemon::http::{self, Paths, Probe};
use trunkline_daemon::{apiserver, logging, panics};

use crate::cluster::ClusterReader as _;
use crate::config::Config;
use crate::events::Events;
use crate::exposition;
use crate::leader;
use crate::metrics::Metrics;
use crate::state::SharedState;
use crate::term::{TermDependencies, lead};
use crate::watch::{Relist, Watched, follow, follow_optional};
use crate::webhook;

/// Runs until a termination signal.
pub fn run(config: Config) -> anyhow::Result<()> {
    config.log().check().map_err(|fault| anyhow::anyhow!("--log-level: {fault}"))?;
    logging::start(&config.log());
    panics::abort_on_panic();
    connections::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the async runtime")?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let api_server = kube::Config::infer()
        .await
        .context("finding the API server: set KUBECONFIG, or run in a pod with a service account")?;
    let client = apiserver::client(api_server).context("creating the client of the API server")?;
    let metrics = Arc::new(Metrics::new().context("creating the metrics")?);
    let shared = SharedState::new(Arc::clone(&metrics));
    {
        let mut state = shared.lock();
        state.services.classes = config.service_classes();
        state.pod_selector = config.pod_label_selector.clone();
        state.cluster.vms.retain = config.vm_ip_retain;
    }
    let listeners = [
        (Paths::Metrics, "metrics", bind("--http-address", config.http_address).await?),
        (Paths::Probes, "probes", bind("--probe-address", config.probe_address).await?),
    ];
    tracing::info!(version = env!("CARGO_PKG_VERSION"), identity = config.identity, "the controller starts");

    let watches = Watches { client: client.clone(), shared: Arc::clone(&shared) };
    let others = vec![
        watches.start::<Lenient<NetworkSpec>>(),
        watches.start::<Lenient<SubnetSpec>>(),
        watches.start::<Node>(),
        watches.start::<Namespace>(),
    ];
    let instances = watches.start::<Lenient<IPInstanceSpec>>();
    let remote_subnets = watches.start_optional::<Lenient<RemoteSubnetSpec>>();
    for (paths, name, listener) in listeners {
        let limiter = ConnectionLimiter::new(http::LIMITS, metrics.connections().listener(name));
        tokio::spawn(http::serve(listener, limiter, paths, Arc::new(Probes { shared: Arc::clone(&shared) })));
    }

    let events = Events::start(client.clone(), config.identity.clone(), metrics);
    let leading = TermDependencies {
        client: client.clone(),
        shared,
        policy: Arc::new(config.policy()),
        events,
        calico: config.patch_calico_pod_ips_annotation,
        instances,
        others,
        remote_subnets,
        remote_retention: config.remote_retention(),
        service_addresses: config.service_addresses,
        pod_workers: config.pod_workers.into(),
        status_interval: config.status_interval(),
    };
    let shutdown = CancellationToken::new();
    let admission = admit(&config, client.clone(), &leading, shutdown.clone());
    let election =
        leader::run(client, &config.lease, &config.namespace, &config.identity, shutdown.clone(), |fence| {
            lead(leading.clone(), fence)
        });
    let both = async { tokio::try_join!(election, admission).map(drop) };
    let mut both = std::pin::pin!(both);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        outcome = &mut both => return outcome.context("a part of the controller ended"),
    }
    tracing::info!("the controller stops");
    shutdown.cancel();
    both.await
}

async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    http::bind(address)
        .await
        .with_context(|| format!("{flag} {address}: cannot listen there: free the address or choose another"))
}

/// Serves admission requests once the rows that they need are complete.
async fn admit(
    config: &Config,
    client: Client,
    leading: &TermDependencies,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    for relist in leading.others.iter().chain([&leading.instances]) {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = relist.listed() => {}
        }
    }
    let shared = Arc::clone(&leading.shared);
    let metrics = shared.metrics();
    webhook::serve(
        &config.webhook,
        &config.namespace,
        client,
        Arc::clone(&shared),
        config.policy(),
        metrics,
        shutdown,
    )
    .await
}

struct Watches {
    client: Client,
    shared: Arc<SharedState>,
}

impl Watches {
    /// Starts the watch of a kind that the API server may not have.
    fn start_optional<K: Watched>(&self) -> Relist {
        let relist = Relist::default();
        let api: Api<K> = Api::all(self.client.clone());
        let shared = Arc::clone(&self.shared);
        tokio::spawn(follow_optional(api, watcher::Config::default(), shared, relist.clone()));
        relist
    }

    fn start<K: Watched>(&self) -> Relist {
        let relist = Relist::default();
        let api: Api<K> = Api::all(self.client.clone());
        tokio::spawn(follow(api, watcher::Config::default(), Arc::clone(&self.shared), relist.clone()));
        relist
    }
}

/// Source of the health probes' answers.
struct Probes {
    shared: Arc<SharedState>,
}

impl Probe for Probes {
    async fn metrics(&self) -> String {
        exposition::text(&self.shared)
    }

    async fn unhealthy(&self) -> Vec<String> {
        // The process is always live: a panic ends it, and an unreachable API server is no reason
        // for a restart.
        Vec::new()
    }

    async fn unready(&self) -> Vec<String> {
        let missing = self.shared.with_cluster(|cluster| cluster.unlisted());
        missing
            .into_iter()
            .map(|kind| {
                format!(
                    "{kind} were not listed yet: check that the API server answers, \
                and that it allows this list"
                )
            })
            .collect()
    }
}
