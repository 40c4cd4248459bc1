//! Reads the agent's status from the tasks that own it, and returns it as types of
//! [`trunkline_api::control`].
//!
//! `status`, `peers`, `routes`, `pods`, `/metrics`, `/healthz` and `/readyz` all use this module.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use tokio::time::{Instant, timeout};
use trunkline_api::attach::{Code, Failure};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::control::{
    AgentStatus, BgpStatus, DumpDone, Events, ExplainedPath, ExplainedPeer, Explanation, KernelStatus,
    ManifestStatus, NetworkStatus, NotReadyReason, PacketPath, Peer, PodState, PodStatus, Route, StoreStatus,
    SubnetStatus, Table,
};
use trunkline_bgp::net::{CommandError, RouteListing};
use trunkline_bgp::speaker::{
    ExportStanding, Listed, PeerStatus, RangeStatus, RouteFilter, SearchResult, State,
};
use trunkline_bgp::types::{PeerKey, PeerKeyError};
use trunkline_daemon::http::{self, Probe};
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::kernel::KernelHandle;
use trunkline_datapath::mac::show_mac;
use trunkline_datapath::naming::{default_mac, host_ifname};
use trunkline_datapath::nft::unassigned::Counters;

use crate::drain::Drain;
use crate::history::History;
use crate::ipam::{Counts, Ipam, MigrationState, Phase, Summary};
use crate::metrics::{Metrics, ScrapeData};
use crate::netpolicy::Policies;
use crate::packet_path::{PathQuery, packet_path};
use crate::plan::Mode;
use crate::probe::Probes;
use crate::reconcile::{Reconcile, ReconcileStatus, SpeakerStatus};
use crate::services::Services;
use crate::services::anycast::Anycast;
use crate::source::kube::Cluster;

mod anycast;
mod conversions;
pub mod identifiers;
mod missing;
mod node_peers;
mod operate;
mod policies;
mod remote;
mod retention;
mod services;
mod snapshot;
mod ways_out;

use conversions::{
    alternate_paths, bgp_status, export_standing, guard, mode, path_standing, peer, route, ruling,
    stopped_bgp, stopped_peer, waiting_peer,
};
pub(crate) use conversions::{bfd_state, peer_state};
pub use missing::StartupState;
use missing::missing;

/// If an owner does not answer within this time, the agent reports it as unhealthy.
const PATIENCE: Duration = Duration::from_secs(5);

/// The owners of the agent's state, and fixed facts of this run.
pub struct Observer {
    /// The node's name.
    pub node: String,
    /// The folder of manifests, or the API server's address.
    pub manifests: String,
    /// The cluster, if an API server is the source.
    pub cluster: Option<Cluster>,
    /// The store's file.
    pub store: String,
    /// When the agent started.
    pub began: Instant,
    /// Owner of the intent, the plan and the sessions.
    pub reconcile: Reconcile,
    /// Owner of the addresses.
    pub ipam: Ipam,
    /// The kernel owner.
    pub kernel: KernelHandle,
    /// The threads that enter the pods' namespaces.
    pub devices: DeviceWorkers,
    /// The event counters.
    pub metrics: Metrics,
    /// The reason for which `/metrics` and the probes are not served, if any.
    pub http_fault: http::Fault,
    /// Recent events.
    pub history: History,
    /// The stage of this node's drain.
    pub drain: Drain,
    /// Results of the probes.
    pub probes: Probes,
    /// Anycast addresses.
    pub anycast: Anycast,
    /// The service addresses; none if this node does not advertise any.
    pub services: Option<Services>,
    /// Network policies; none if the configuration disables them.
    pub policies: Option<Policies>,
    /// Whether the agent was ready in this run.
    pub started: StartupState,
}

/// The routes of one table, read in batches: see [`trunkline_bgp::speaker::Listing`].
pub struct Routes {
    listing: RouteListing,
}

impl Routes {
    /// The next routes. None after the last route.
    pub async fn next(&mut self) -> Result<Option<Vec<Route>>, Failure> {
        let routes = self.listing.next().await.map_err(|_| stopping())?;
        Ok(routes.map(|routes| routes.iter().map(route).collect()))
    }
}

impl Observer {
    async fn view(&self) -> Result<ReconcileStatus, Failure> {
        self.reconcile.view().await.ok_or_else(stopping)
    }

    async fn summary(&self) -> Result<Summary, Failure> {
        self.ipam.summary().await.ok_or_else(stopping)
    }

    async fn bgp(&self) -> Result<SpeakerStatus, Failure> {
        self.view().await?.bgp.ok_or_else(no_speaker)
    }

    /// The reasons for which the agent cannot attach pods yet.
    pub async fn missing(&self) -> Vec<String> {
        match (self.view().await, self.summary().await) {
            (Ok(view), Ok(summary)) => {
                let (peers, guard) = (statuses(&view).await, self.kernel.status().guard);
                let missing = missing(&view, &peers, &summary, &guard, self.cluster.as_ref());
                missing.into_iter().map(|missing| missing.reason.text).collect()
            }
            _ => vec!["the agent is stopping".to_owned()],
        }
    }

    /// A summary of the agent.
    pub async fn agent(&self) -> Result<AgentStatus, Failure> {
        let view = self.view().await?;
        let (peers, ranges) = tokio::join!(statuses(&view), ranges(&view));
        self.agent_with(&view, &peers, &ranges).await
    }

    /// The state values of `/metrics`. Each owner gets only one request: while the speaker receives
    /// a full table, it answers only between two batches of UPDATEs.
    async fn scrape_data(&self) -> Result<ScrapeData, Failure> {
        let view = self.view().await?;
        let (statuses, ranges) = tokio::join!(statuses(&view), ranges(&view));
        let agent = self.agent_with(&view, &statuses, &ranges).await?;
        let peers = view.bgp.as_ref().map(|bgp| {
            let found = statuses.iter().map(|status| peer(status, bgp));
            found.chain(bgp.waiting.iter().map(|peer| waiting_peer(peer, bgp))).collect()
        });
        let peers = match &view.stopped {
            Some(stopped) => Some(stopped.peers.iter().map(|peer| stopped_peer(peer, stopped)).collect()),
            None => peers,
        };
        let refused_connections = view.bgp.as_ref().map_or(0, |bgp| bgp.speaker.refused());
        let bfd_refused = match &view.bgp {
            // A speaker that has just stopped has no counters.
            Some(bgp) => bgp.speaker.bfd_refused().await.unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(ScrapeData {
            agent,
            peers: peers.unwrap_or_default(),
            established_peers: established_peers(&view, &statuses),
            refused_connections,
            bfd_refused,
            services: self.services.as_ref().map(Services::summary),
            policies: match &self.policies {
                Some(policies) => policies.scrape().await,
                None => None,
            },
        })
    }

    async fn agent_with(
        &self,
        view: &ReconcileStatus,
        peers: &[PeerStatus],
        ranges: &[RangeStatus],
    ) -> Result<AgentStatus, Failure> {
        let summary = self.summary().await?;
        let kernel = self.kernel.status();
        let dropped = kernel.unassigned.then(Counters::read).and_then(Result::ok);
        let missing = missing(view, peers, &summary, &kernel.guard, self.cluster.as_ref());
        let not_serving = self.started.not_serving(&missing);
        let not_ready_reasons: Vec<NotReadyReason> =
            missing.into_iter().map(|missing| missing.reason).collect();
        Ok(AgentStatus {
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.began.elapsed().as_secs(),
            ready: not_ready_reasons.is_empty(),
            not_ready: not_ready_reasons.iter().map(|reason| reason.text.clone()).collect(),
            not_ready_reasons,
            not_serving,
            drain: self.drain.status(),
            manifests: ManifestStatus {
                folder: self.manifests.clone(),
                applied: view.applied,
                refused: view.refused.clone(),
            },
            cluster: self.cluster.as_ref().map(Cluster::status),
            settings: view.settings.clone(),
            store: StoreStatus {
                path: self.store.clone(),
                fault: summary.fault.as_ref().map(ToString::to_string),
            },
            bgp: match &view.stopped {
                Some(stopped) => Some(stopped_bgp(stopped)),
                None => view.bgp.as_ref().map(|bgp| BgpStatus {
                    ways_out: ways_out::ways_out(bgp, &kernel),
                    ..bgp_status(bgp, peers, ranges)
                }),
            },
            networks: networks(view, &summary, dropped.as_ref(), |subnet| match &self.cluster {
                Some(cluster) => cluster.counts(subnet),
                None => {
                    let pool = summary.subnets.iter().find(|pool| pool.spec.subnet == subnet);
                    pool.map(|pool| pool.counts).unwrap_or_default()
                }
            }),
            attachments: summary.records.len(),
            unrecorded: view.unrecorded.len(),
            kernel: KernelStatus {
                routes_wanted: kernel.routes as u64,
                routes_installed: kernel.installed as u64,
                routes_stale: kernel.stale_routes as u64,
                rules: kernel.rules as u64,
                forwarding_wanted: kernel.forwarding.wanted as u64,
                forwarding_installed: kernel.forwarding.installed as u64,
                forwarding_repairs: kernel.forwarding.repairs,
                repairs: kernel.repairs,
                errors: kernel.errors.values().sum(),
                errors_by_reason: {
                    let named = kernel.errors.iter();
                    named.map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
                },
                last_error: kernel.last_error.or_else(|| view.kernel_faults.first().cloned()),
            },
            guard: guard(kernel.guard),
            alternate_paths: alternate_paths(kernel.alternate_paths),
            probes: self.probes.status(),
            anycast: anycast::with_node(self.anycast.status(), view),
            ignored_claims: remote::ignored_claims(&view.ignored_claims),
            remote_clusters: remote::remote_clusters(&view.remote),
            policies: match &self.policies {
                Some(policies) => policies.summary().await,
                None => None,
            },
            http_fault: self.http_fault.words(),
        })
    }

    /// All peers, or the peer that `only` names.
    pub async fn peers(&self, only: Option<String>) -> Result<Vec<Peer>, Failure> {
        let view = self.view().await?;
        if let Some(stopped) = &view.stopped {
            let peers = stopped.peers.iter().map(|peer| stopped_peer(peer, stopped));
            return match only {
                None => Ok(peers.collect()),
                Some(text) => {
                    let peers: Vec<Peer> = peers.filter(|peer| is_named(peer, &text)).collect();
                    if peers.is_empty() { Err(unknown(&text)) } else { Ok(peers) }
                }
            };
        }
        let Some(bgp) = &view.bgp else {
            return if only.is_some() { Err(no_speaker()) } else { Ok(Vec::new()) };
        };
        let statuses = statuses(&view).await;
        let peers = |wanted: &dyn Fn(&PeerStatus) -> bool| {
            statuses.iter().filter(|status| wanted(status)).map(|status| peer(status, bgp)).collect()
        };
        match only {
            // The interface name also identifies an unnumbered peer, even before its discovery.
            Some(text) if text.parse::<PeerKey>().is_err() => {
                let on =
                    |status: &PeerStatus| status.key().interface().is_some_and(|name| name.as_str() == text);
                let mut peers: Vec<Peer> = peers(&on);
                let waiting = bgp.waiting.iter().filter(|peer| peer.interface.as_str() == text);
                peers.extend(waiting.map(|peer| waiting_peer(peer, bgp)));
                if peers.is_empty() { Err(unknown(&text)) } else { Ok(peers) }
            }
            Some(text) => {
                let key = parse(&text)?;
                let peers: Vec<Peer> = peers(&|status| names(key, status));
                if peers.is_empty() { Err(unknown(&key)) } else { Ok(peers) }
            }
            None => {
                let mut peers: Vec<Peer> = peers(&|_| true);
                peers.extend(bgp.waiting.iter().map(|peer| waiting_peer(peer, bgp)));
                Ok(peers)
            }
        }
    }

    /// The status of each peer, and the speaker's plan. None if no speaker runs.
    pub async fn sessions(&self) -> Option<(Vec<PeerStatus>, SpeakerStatus)> {
        let view = self.view().await.ok()?;
        let peers = statuses(&view).await;
        Some((peers, view.bgp?))
    }

    /// The routes of a table, for reading in batches.
    pub async fn routes(&self, table: &Table) -> Result<Routes, Failure> {
        let bgp = self.bgp().await?;
        let listed = match table {
            // `First` is only a fallback here: a request for the first routes uses `first_routes`.
            Table::Best | Table::First { .. } => Listed::Used,
            Table::Received { peer } => Listed::Received(self.only(&bgp, peer).await?),
            Table::Advertised { peer } => Listed::Advertised(self.only(&bgp, peer).await?),
        };
        let listing = bgp.speaker.list(listed).await.map_err(|error| match (listed, error) {
            (Listed::Received(peer) | Listed::Advertised(peer), error) => failed(peer, &error),
            (Listed::Used, _) => stopping(),
        })?;
        Ok(Routes { listing })
    }

    /// All paths of the first `prefixes` prefixes. The speaker searches in small steps between its
    /// other work.
    pub async fn first_routes(&self, prefixes: usize) -> Result<Vec<Route>, Failure> {
        const WITHIN: Duration = Duration::from_secs(10);
        let (routes, found) = self.search(RouteFilter::default(), prefixes, WITHIN).await?;
        if !found.complete {
            return Err(Failure::new(
                Code::TryAgainLater,
                format!(
                    "only {} of {} prefixes could be searched within 10 s",
                    found.looked_at, found.prefixes
                ),
            ));
        }
        Ok(routes)
    }

    /// The paths of the first `limit` prefixes that match, and the statistics of the search. The
    /// search stops after `within`; the result is then marked as incomplete.
    pub async fn search(
        &self,
        filter: RouteFilter,
        limit: usize,
        within: Duration,
    ) -> Result<(Vec<Route>, SearchResult), Failure> {
        let bgp = self.bgp().await?;
        let mut found = bgp.speaker.search(filter, limit, within).await.map_err(|_| stopping())?;
        let routes = std::mem::take(&mut found.routes);
        Ok((routes.iter().map(route).collect(), found))
    }

    /// The reason for the current route of a prefix.
    pub async fn explain(&self, prefix: IpNet) -> Result<Explanation, Failure> {
        let bgp = self.bgp().await?;
        let explained = bgp.speaker.explain(prefix).await.map_err(|_| stopping())?;
        let paths = explained.paths.iter().map(|path| ExplainedPath {
            route: route(&path.route),
            standing: path_standing(path.standing),
            reason: path.reason.clone(),
            step: path.step.map(|step| step.to_string()),
            import: path.import.as_ref().map(ruling),
        });
        let peers = explained.peers.iter().map(|peer| ExplainedPeer {
            peer: peer.peer.to_string(),
            from: peer.from.as_ref().map(ToString::to_string),
            standing: export_standing(peer.standing),
            reason: peer.reason.clone(),
            export: peer.export.as_ref().map(ruling),
        });
        Ok(Explanation {
            prefix: explained.prefix,
            covered_by: explained.covered_by,
            paths: paths.collect(),
            peers: peers.collect(),
            way_out: ways_out::of_prefix(&bgp, &self.kernel.status(), &explained),
        })
    }

    /// The one peer that `text` names. A link-local address needs no interface if only one peer has
    /// this address. The interface name alone identifies an unnumbered peer.
    async fn only(&self, bgp: &SpeakerStatus, text: &str) -> Result<PeerKey, Failure> {
        let key = text.parse::<PeerKey>();
        let peers = bgp.speaker.peers().await.map_err(|_| stopping())?;
        let wanted = |status: &&PeerStatus| match &key {
            Ok(key) => names(*key, status),
            Err(_) => status.key().interface().is_some_and(|name| name.as_str() == text),
        };
        let found: Vec<PeerKey> = peers.iter().filter(wanted).map(PeerStatus::key).collect();
        match found.as_slice() {
            [] => Err(unknown(&text)),
            [one] => Ok(*one),
            several => {
                let several: Vec<String> = several.iter().map(ToString::to_string).collect();
                let message = format!("{text} names several peers: name one of {}", several.join(", "));
                Err(Failure::new(Code::InvalidContent, message))
            }
        }
    }

    /// Writes the BGP tables into a file as MRT.
    pub async fn dump(&self, file: File) -> Result<DumpDone, Failure> {
        let bgp = self.bgp().await?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the dump carries the time of day, and nothing depends on it"
        )]
        let when = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // 32 bits last until 2106.
        let mut dump = bgp.speaker.dump_tables(u32::try_from(when.as_secs()).unwrap_or(u32::MAX));
        let file = Arc::new(file);
        let mut written = 0;
        while let Some(octets) = dump.next().await.map_err(|_| stopping())? {
            written += octets.len() as u64;
            let file = Arc::clone(&file);
            // The file may be a pipe without a reader. So a blocking thread writes it, and other
            // requests do not wait.
            let wrote = tokio::task::spawn_blocking(move || (&*file).write_all(&octets)).await;
            let wrote = wrote.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            wrote.map_err(|error| {
                Failure::new(Code::Io, format!("the dump ended after {written} octets: {error}"))
            })?;
        }
        let progress = dump.progress();
        Ok(DumpDone {
            peers: progress.peers() as u64,
            prefixes: u64::from(progress.prefixes()),
            paths: progress.paths(),
            octets: written,
        })
    }

    /// Waits for events after number `after` and returns them. An error if the agent stops first.
    pub async fn next_events(&self, after: u64, run: Option<u64>) -> Result<Events, Failure> {
        self.history.subscribe(self.history.number_of(after, run)).next().await.ok_or_else(stopping)
    }

    /// The attached pods.
    pub async fn pods(&self) -> Result<Vec<PodStatus>, Failure> {
        let (view, summary) = (self.view().await?, self.summary().await?);
        let mut pods: Vec<PodStatus> = summary
            .records
            .iter()
            .map(|record| {
                let host_ifname = host_ifname(&record.key.container_id, &record.key.ifname);
                let state = match record.phase {
                    _ if view.broken.contains(&host_ifname) => PodState::Broken,
                    Phase::Attaching => PodState::Attaching,
                    Phase::Attached => match record.migration {
                        MigrationState::Active | MigrationState::Arrived => PodState::Attached,
                        MigrationState::Departing => PodState::Departing,
                        MigrationState::Inactive => PodState::Inactive,
                    },
                };
                PodStatus {
                    container_id: record.key.container_id.clone(),
                    ifname: record.key.ifname.clone(),
                    namespace: record.pod.namespace.clone(),
                    name: record.pod.name.clone(),
                    network: record.network.clone(),
                    addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
                    mac: show_mac(&record.mac),
                    bandwidth: record.bandwidth,
                    extra_prefixes: view.networks.get(&record.network).map_or_else(Vec::new, |network| {
                        let prefixes = record.extra_prefixes.iter();
                        prefixes.filter(|prefix| network.allows(prefix)).copied().collect()
                    }),
                    host_ifname,
                    netns: record.netns.clone(),
                    state,
                }
            })
            .collect();
        pods.extend(view.unrecorded.iter().map(|pod| PodStatus {
            container_id: pod.container_id.clone(),
            ifname: pod.ifname.clone(),
            namespace: String::new(),
            name: String::new(),
            network: String::new(),
            addresses: pod.addresses.clone(),
            mac: show_mac(&default_mac(&pod.container_id, &pod.ifname)),
            bandwidth: Bandwidth::default(),
            extra_prefixes: Vec::new(),
            host_ifname: pod.host_ifname.clone(),
            netns: String::new(),
            state: PodState::Unrecorded,
        }));
        Ok(pods)
    }

    /// The path of a packet from a pod.
    pub async fn path(
        &self,
        netns: OwnedFd,
        container_id: &str,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<PacketPath, Failure> {
        let pods = self.pods().await?;
        let interfaces: BTreeMap<String, String> = pods
            .iter()
            .filter(|pod| pod.container_id == container_id)
            // An IPVLAN pod also has a veth pair to the host. Both ends of this pair have the same
            // name.
            .flat_map(|pod| {
                [&pod.ifname, &pod.host_ifname].map(|name| (name.clone(), pod.host_ifname.clone()))
            })
            .collect();
        if interfaces.is_empty() {
            let unknown =
                format!("container {container_id} is not attached: `trunkline pods` lists the attached ones");
            return Err(Failure::new(Code::UnknownContainer, unknown));
        }
        if source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
            let mixed =
                "a packet's source and destination must be of one family: give both as IPv4 or both as IPv6";
            return Err(Failure::new(Code::InvalidContent, mixed));
        }
        let pods = pods.iter().map(|pod| (pod.host_ifname.clone(), pod.title())).collect();
        let query = PathQuery { destination, source, interfaces, pods };
        let walked = self.devices.inspect(netns, move |host, pod| packet_path(host, pod, &query)).await;
        let mut path = walked.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        let Some(source) = path.source else { return Ok(path) };
        let nat = self.kernel.nat().await.map_err(|_| stopping())?;
        let inside =
            |prefixes: &BTreeSet<IpNet>, address| prefixes.iter().any(|prefix| prefix.contains(&address));
        path.masqueraded = inside(&nat.sources, source) && !inside(&nat.inside, destination);
        if let Some(bgp) = self.view().await?.bgp {
            let prefix = IpNet::from(source);
            let explained = bgp.speaker.explain(prefix).await.map_err(|_| stopping())?;
            let receivers = explained.peers.iter().filter(|peer| peer.standing == ExportStanding::Advertised);
            path.advertised_to = receivers.map(|peer| peer.peer.to_string()).collect();
        }
        Ok(path)
    }
}

impl Probe for Observer {
    async fn metrics(&self) -> String {
        let Ok(data) = self.scrape_data().await else { return String::new() };
        match self.metrics.render(&data) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, "the metrics cannot be written");
                String::new()
            }
        }
    }

    async fn unhealthy(&self) -> Vec<String> {
        let (reconcile, ipam, kernel) = tokio::join!(
            timeout(PATIENCE, self.reconcile.view()),
            timeout(PATIENCE, self.ipam.summary()),
            timeout(PATIENCE, self.kernel.host()),
        );
        [
            ("the reconcile task", matches!(reconcile, Ok(Some(_)))),
            ("the address thread", matches!(ipam, Ok(Some(_)))),
            ("the kernel thread", matches!(kernel, Ok(Ok(_)))),
        ]
        .into_iter()
        .filter(|(_, answers)| !answers)
        .map(|(who, _)| format!("{who} does not answer"))
        .collect()
    }

    async fn unready(&self) -> Vec<String> {
        self.missing().await
    }
}

fn stopping() -> Failure {
    Failure::new(Code::TryAgainLater, "the agent is stopping")
}

fn parse(peer: &str) -> Result<PeerKey, Failure> {
    peer.parse().map_err(|error: PeerKeyError| Failure::new(Code::InvalidContent, error.to_string()))
}

/// Whether `written` identifies this peer.
fn names(written: PeerKey, peer: &PeerStatus) -> bool {
    peer.key() == written || (written.interface().is_none() && peer.address == written.address())
}

fn is_named(peer: &Peer, written: &str) -> bool {
    peer.name() == written
        || peer.interface.as_deref() == Some(written)
        || written
            .parse::<PeerKey>()
            .is_ok_and(|key| key.interface().is_none() && key.address() == peer.address)
}

fn no_speaker() -> Failure {
    Failure::new(Code::TryAgainLater, "no BGP speaker runs: see `trunkline status` for the reason")
}

fn unknown(peer: &impl Display) -> Failure {
    Failure::new(Code::InvalidContent, format!("no peer {peer} is configured: `trunkline peers` lists them"))
}

fn failed(peer: PeerKey, error: &CommandError) -> Failure {
    match error {
        CommandError::Stopped(_) => stopping(),
        CommandError::Config(_) => unknown(&peer),
    }
}

async fn statuses(view: &ReconcileStatus) -> Vec<PeerStatus> {
    match &view.bgp {
        Some(bgp) => bgp.speaker.peers().await.unwrap_or_default(),
        None => Vec::new(),
    }
}

/// The number of Established sessions. It is 0 if the node is in a BGP network and no speaker runs.
/// None if the node has no peers.
fn established_peers(view: &ReconcileStatus, peers: &[PeerStatus]) -> Option<usize> {
    let in_bgp_network = || {
        let is_bgp = |mode| matches!(mode, Mode::Bgp | Mode::GlobalBgp);
        view.networks.values().any(|network| is_bgp(network.mode) && network.refused.is_none())
    };
    let has_peers = match &view.bgp {
        Some(bgp) => !peers.is_empty() || !bgp.waiting.is_empty() || !bgp.required_ranges.is_empty(),
        None => view.speaker_fault.is_some() || in_bgp_network(),
    };
    has_peers.then(|| peers.iter().filter(|peer| peer.state == State::Established).count())
}

async fn ranges(view: &ReconcileStatus) -> Vec<RangeStatus> {
    match &view.bgp {
        Some(bgp) => bgp.speaker.ranges().await.unwrap_or_default(),
        None => Vec::new(),
    }
}

fn networks(
    view: &ReconcileStatus,
    summary: &Summary,
    dropped: Option<&Counters>,
    counts: impl Fn(&str) -> Counts,
) -> Vec<NetworkStatus> {
    view.networks
        .iter()
        .map(|(name, network)| {
            let mut subnets: Vec<SubnetStatus> = network
                .subnets
                .iter()
                .map(|(subnet, planned)| {
                    let device = planned.device.as_ref();
                    let counts = counts(subnet);
                    SubnetStatus {
                        name: subnet.clone(),
                        cidr: Some(planned.prefix),
                        total: counts.total,
                        used: counts.used,
                        free: counts.free,
                        refused: None,
                        table: planned.table,
                        vlan: planned.vlan,
                        device: device.map(|device| device.name.clone()),
                        parent: device.map(|device| device.parent.clone()),
                        device_fault: device.and_then(|device| device.fault.clone()),
                        unassigned_packets: dropped.and_then(|dropped| dropped.of(&planned.prefix)),
                        disabled: planned.access.disabled,
                        allowed_namespaces: planned.access.namespaces.clone(),
                        retention: planned.retention.map(|retention| retention.to_string()),
                    }
                })
                .collect();
            subnets.extend(network.refused_subnets.iter().map(|(subnet, reason)| SubnetStatus {
                name: subnet.clone(),
                cidr: None,
                total: 0,
                used: 0,
                free: 0,
                refused: Some(reason.clone()),
                table: None,
                vlan: None,
                device: None,
                parent: None,
                device_fault: None,
                unassigned_packets: None,
                disabled: false,
                allowed_namespaces: Vec::new(),
                retention: None,
            }));
            NetworkStatus {
                name: name.clone(),
                mode: mode(network.mode),
                table: network.table(),
                refused: network.refused.clone(),
                attachments: summary.records.iter().filter(|record| record.network == *name).count(),
                subnets,
            }
        })
        .collect()
}
