//! The content of `/metrics`: the values of the catalogue ([`trunkline_api::metrics`]).
//!
//! There are two kinds. Events (attach durations, refused manifests) are counted when they happen.
//! States (peers, addresses, routes) are read from their owners at each scrape. So no copy of a
//! state can be out of date, a removed peer has no series left, and the fast path writes only three
//! histograms.
//!
//! No owner computes anything for a scrape: with a million routes it costs as much as with none
//! (`cargo lab bench scrape`).

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, Registry};
use trunkline_api::control::{
    AdvertisementState, AgentStatus, AnycastStatus, BfdSession, BfdState, ClusterStatus, DefaultRouteBasis,
    Messages, NetworkStatus, Peer, PeerState, PolicyState, ProbeFaultKind, ProbedRouter, ProxyRulesState,
    RemoteClusterStatus, SettingStatus,
};
use trunkline_api::metrics::of_agent as m;
use trunkline_daemon::connections::ConnectionMetrics;
use trunkline_daemon::metrics::{Exposition as Page, counter, histogram, text};

use crate::netpolicy::{PolicyScrape, direction};
use crate::services::{ProxyHealth, Summary};

/// The event counters.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    requests: HistogramVec,
    gate: HistogramVec,
    wire: HistogramVec,
    advertised: HistogramVec,
    peer_loss: HistogramVec,
    address_wait: HistogramVec,
    service_to_fabric: HistogramVec,
    policy_change: HistogramVec,
    cluster_requests: HistogramVec,
    cluster_failures: IntCounterVec,
    refused: IntCounterVec,
    otlp_requests: IntCounterVec,
    otlp_exported: IntCounterVec,
    otlp_dropped: IntCounterVec,
    connections: ConnectionMetrics,
}

/// The state of all owners, for one scrape.
#[derive(Clone, Debug)]
pub struct ScrapeData {
    /// The agent.
    pub agent: AgentStatus,
    /// Its peers.
    pub peers: Vec<Peer>,
    /// Number of Established sessions; none for a node without peers.
    pub established_peers: Option<usize>,
    /// Connections from addresses of no peer, since the speaker started.
    pub refused_connections: u64,
    /// Rejected BFD packets by reason, since the speaker started.
    pub bfd_refused: Vec<(&'static str, u64)>,
    /// Service addresses; none if this node does not advertise any.
    pub services: Option<Summary>,
    /// Network policies; none if the configuration disables them.
    pub policies: Option<PolicyScrape>,
}

impl Metrics {
    /// The counters, all at zero.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        Ok(Metrics {
            requests: histogram(&registry, &m::REQUESTS)?,
            gate: histogram(&registry, &m::ATTACH_GATE)?,
            wire: histogram(&registry, &m::WIRE_CHECK)?,
            advertised: histogram(&registry, &m::ATTACH_TO_ADVERTISED)?,
            peer_loss: histogram(&registry, &m::PEER_LOSS_TO_KERNEL)?,
            address_wait: histogram(&registry, &m::CLUSTER_ADDRESS_WAIT)?,
            service_to_fabric: histogram(&registry, &m::SERVICE_TO_FABRIC)?,
            policy_change: histogram(&registry, &m::POLICY_CHANGE)?,
            cluster_requests: histogram(&registry, &m::CLUSTER_REQUESTS)?,
            cluster_failures: counter(&registry, &m::CLUSTER_REQUEST_FAILURES)?,
            refused: counter(&registry, &m::MANIFESTS_REFUSED)?,
            otlp_requests: counter(&registry, &m::OTLP_REQUESTS)?,
            otlp_exported: counter(&registry, &m::OTLP_EXPORTED)?,
            otlp_dropped: counter(&registry, &m::OTLP_DROPPED)?,
            connections: ConnectionMetrics::register(&registry, &m::CONNECTIONS, &m::CONNECTIONS_DROPPED)?,
            registry,
        })
    }

    /// The metrics of the listener's connections.
    pub fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// Counts an answered request. `network` is empty if it is unknown.
    pub fn request(&self, command: &str, network: &str, ok: bool, took: Duration) {
        self.requests.with_label_values(&[command, network, outcome(ok)]).observe(took.as_secs_f64());
    }

    /// Counts a readiness gate: a peer received the pod's addresses, or the gate timed out.
    pub fn gate(&self, network: &str, ok: bool, took: Duration) {
        self.gate.with_label_values(&[network, outcome(ok)]).observe(took.as_secs_f64());
    }

    /// Counts the time from the start of an attach until a peer received the pod's addresses.
    pub fn advertised(&self, network: &str, took: Duration) {
        self.advertised.with_label_values(&[network]).observe(took.as_secs_f64());
    }

    /// Counts the time from the loss of a peer until its consequences are in the kernel.
    pub fn peer_loss_settled(&self, took: Duration) {
        self.peer_loss.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }

    /// Counts a check of an address on its VLAN.
    pub fn wire_check(&self, v4: bool, outcome: &str, took: Duration) {
        let family = if v4 { "ipv4" } else { "ipv6" };
        self.wire.with_label_values(&[family, outcome]).observe(took.as_secs_f64());
    }

    /// Counts a wait for a pod's addresses from the API server.
    pub fn address_wait(&self, ok: bool, took: Duration) {
        self.address_wait.with_label_values(&[outcome(ok)]).observe(took.as_secs_f64());
    }

    /// Counts the time from an event until the prefix of a service address was written to a peer.
    pub fn service_to_fabric(&self, took: Duration) {
        self.service_to_fabric.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }

    /// Counts the time from an event of policies, Namespaces or pods until the kernel has its
    /// change.
    pub fn policy_change(&self, took: Duration) {
        self.policy_change.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }

    /// Counts a write to the API server. `failure`: the reason, if it failed.
    pub fn cluster_request(&self, what: &str, failure: Option<&str>, took: Duration) {
        let outcome = outcome(failure.is_none());
        self.cluster_requests.with_label_values(&[what, outcome]).observe(took.as_secs_f64());
        if let Some(reason) = failure {
            self.cluster_failures.with_label_values(&[what, reason]).inc();
        }
    }

    /// Counts a refused change of the manifests.
    pub fn manifests_refused(&self) {
        self.refused.with_label_values::<&str>(&[]).inc();
    }

    /// Counts a request to the collector: `ok`, `refused`, or `unavailable`.
    pub fn otlp_request(&self, signal: &str, outcome: &str) {
        self.otlp_requests.with_label_values(&[signal, outcome]).inc();
    }

    /// Counts records of a signal that the collector accepted.
    pub fn otlp_exported(&self, signal: &str, records: u64) {
        self.otlp_exported.with_label_values(&[signal]).inc_by(records);
    }

    /// Counts dropped records of a signal, by reason.
    pub fn otlp_dropped(&self, signal: &str, reason: &str, records: u64) {
        self.otlp_dropped.with_label_values(&[signal, reason]).inc_by(records);
    }

    /// The event counters in Prometheus' text format.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> String {
        text(&self.registry, Page::default()).unwrap_or_default()
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self, data: &ScrapeData) -> prometheus::Result<String> {
        let mut page = Page::default();
        agent(&mut page, &data.agent);
        if let Some(cluster) = &data.agent.cluster {
            write_cluster(&mut page, cluster);
        }
        data.agent.networks.iter().for_each(|network| write_network(&mut page, network));
        if let Some(established) = data.established_peers {
            page.put_count(m::ESTABLISHED_PEERS, &[], established as u64);
        }
        page.put_count(m::REFUSED_CONNECTIONS, &[], data.refused_connections);
        data.peers.iter().for_each(|peer| write_peer(&mut page, peer));
        for (reason, packets) in &data.bfd_refused {
            page.put_count(m::BFD_REFUSED, &[reason], *packets);
        }
        if let Some(services) = &data.services {
            write_services(&mut page, services);
        }
        if let Some(policies) = &data.policies {
            write_policies(&mut page, policies);
        }
        text(&self.registry, page)
    }
}

fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

fn agent(page: &mut Page, agent: &AgentStatus) {
    page.put_bool(m::BUILD_INFO, &[&agent.version], true);
    page.put_count(m::UPTIME, &[], agent.uptime_seconds);
    page.put_bool(m::READY, &[], agent.ready);
    let in_force = agent.manifests.applied && agent.manifests.refused.is_empty();
    page.put_bool(m::MANIFESTS_IN_FORCE, &[], in_force);
    page.put_bool(m::STORE_USABLE, &[], agent.store.fault.is_none());
    page.put_count(m::ATTACHMENTS, &[], agent.attachments as u64);
    page.put_count(m::UNRECORDED, &[], agent.unrecorded as u64);

    let kernel = &agent.kernel;
    page.put_count(m::KERNEL_ROUTES, &["wanted"], kernel.routes_wanted);
    page.put_count(m::KERNEL_ROUTES, &["installed"], kernel.routes_installed);
    page.put_count(m::KERNEL_ROUTES, &["stale"], kernel.routes_stale);
    page.put_count(m::KERNEL_REPAIRS, &[], kernel.repairs);
    for (reason, count) in &kernel.errors_by_reason {
        page.put_count(m::KERNEL_ERRORS, &[reason], *count);
    }
    page.put_count(m::FORWARDING_ENTRIES, &["wanted"], kernel.forwarding_wanted);
    page.put_count(m::FORWARDING_ENTRIES, &["installed"], kernel.forwarding_installed);
    page.put_count(m::FORWARDING_REPAIRS, &[], kernel.forwarding_repairs);
    if let Some(paths) = &agent.alternate_paths {
        page.put_count(m::ALTERNATE_PACKETS, &["forwarded"], paths.forwarded);
        page.put_count(m::ALTERNATE_PACKETS, &["dropped"], paths.dropped);
    }
    if let Some(probes) = &agent.probes {
        probes.routers.iter().for_each(|router| stand_probes(page, router));
    }
    write_settings(page, &agent.settings);
    agent.anycast.iter().for_each(|object| write_anycast(page, object));
    page.put_count(m::CLAIMS_IGNORED, &["vtep"], agent.ignored_claims.vteps.into());
    page.put_count(m::CLAIMS_IGNORED, &["address"], agent.ignored_claims.addresses.into());
    agent.remote_clusters.iter().for_each(|cluster| write_remote(page, cluster));
    let guard = &agent.guard;
    page.put_bool(m::GUARD_IN_FORCE, &[], guard.in_force || !guard.enabled);
    page.put_count(m::GUARD_REPAIRS, &[], guard.repairs);
    for (reason, packets) in &guard.dropped {
        page.put_count(m::GUARD_DROPPED, &[reason], *packets);
    }
    page.put_count(m::DRAIN_PHASE, &[], agent.drain.phase as u64);

    let Some(bgp) = &agent.bgp else { return };
    page.put_bool(m::DISAGGREGATED, &[], bgp.disaggregated.is_some());
    for way in &bgp.ways_out {
        page.put_count(m::WAY_OUT_NEXT_HOPS, &[&way.family, "used"], way.installed.len() as u64);
        page.put_count(m::WAY_OUT_NEXT_HOPS, &[&way.family, "left_out"], way.left_out.len() as u64);
        page.put_bool(m::WAY_OUT_ADVERTISED, &[&way.family], way.basis != DefaultRouteBasis::Configured);
    }
    page.put_count(m::DUPLICATE_IDENTIFIERS, &[], bgp.duplicate_identifiers.len() as u64);
    page.put_bool(m::SPEAKER_RUNNING, &[], bgp.fault.is_none());
    for listener in &bgp.listening {
        page.put_bool(m::LISTENING, &[&listener.address.to_string()], listener.fault.is_none());
    }
    for family in &bgp.converged {
        page.put_bool(m::CONVERGED, &[family], true);
    }
    for range in &bgp.ranges {
        let prefix = range.prefix.to_string();
        page.put_count(m::RANGE_PEERS, &[&prefix, "there"], range.peers.into());
        page.put_count(m::RANGE_PEERS, &[&prefix, "limit"], range.limit.into());
        page.put_count(m::RANGE_REFUSED, &[&prefix], range.refused);
    }
    for station in &bgp.stations {
        let name = station.address.to_string();
        page.put_bool(m::BMP_UP, &[&name], station.connected);
        page.put_count(m::BMP_BYTES, &[&name], station.octets);
    }
}

fn stand_probes(page: &mut Page, router: &ProbedRouter) {
    let (peer, family) = (router.peer.as_str(), router.family.as_str());
    for check in &router.checks {
        let of = [peer, family, check.name.as_str()];
        page.put_count(m::PROBE_STATE, &of, check.state as u64);
        page.put_count(m::PROBE_SENT, &of, check.sent);
        page.put_count(m::PROBE_LOST, &of, check.lost);
    }
    for kind in ProbeFaultKind::ALL {
        let is_there = router.faults.iter().any(|fault| fault.kind == kind);
        page.put_bool(m::PROBE_FAULT, &[peer, family, kind.name()], is_there);
    }
    page.put_bool(m::PROBE_LEFT_OUT, &[peer, family], router.left_out);
}

fn write_settings(page: &mut Page, settings: &[SettingStatus]) {
    let mut fields: BTreeMap<&str, u64> = BTreeMap::new();
    for name in settings.iter().filter_map(|setting| setting.from.as_deref()) {
        *fields.entry(name).or_default() += 1;
    }
    fields.iter().for_each(|(name, count)| page.put_count(m::SETTINGS_FIELDS, &[name], *count));
    let pending = settings.iter().filter(|setting| setting.pending_restart).count();
    page.put_count(m::SETTINGS_PENDING, &[], pending as u64);
}

fn write_anycast(page: &mut Page, object: &AnycastStatus) {
    let name = object.name.as_str();
    if let Some(healthy) = object.is_healthy() {
        page.put_bool(m::ANYCAST_HEALTHY, &[name], healthy);
    }
    for state in AdvertisementState::ALL.iter().copied() {
        let count = object.addresses.iter().filter(|address| address.state == state).count();
        page.put_count(m::ANYCAST_ADDRESSES, &[name, state.name()], count as u64);
    }
}

fn write_remote(page: &mut Page, cluster: &RemoteClusterStatus) {
    let (name, ignored) = (cluster.name.as_str(), cluster.ignored);
    page.put_count(m::REMOTE_SUBNETS, &[name], cluster.subnets.len() as u64);
    page.put_count(m::REMOTE_VTEPS, &[name], cluster.vteps.into());
    page.put_count(m::REMOTE_ENDPOINTS, &[name], cluster.endpoints.into());
    for (what, number) in [
        ("subnet", ignored.subnets),
        ("vtep", ignored.vteps),
        ("address", ignored.addresses),
        ("endpoint", ignored.endpoints),
    ] {
        page.put_count(m::REMOTE_IGNORED, &[name, what], number.into());
    }
}

/// Writes the metrics of the API server as the source.
fn write_cluster(page: &mut Page, cluster: &ClusterStatus) {
    page.put_bool(m::CLUSTER_CONNECTED, &[], cluster.connected);
    page.put_count(m::CLUSTER_OUTAGE, &[], cluster.outage_seconds.unwrap_or_default());
    page.put_count(m::CLUSTER_FAULTS, &[], cluster.faults.len() as u64);
    page.put_count(m::CLUSTER_UNWRITTEN, &[], cluster.unwritten);
    for watch in &cluster.watches {
        let name = [watch.name.as_str()];
        page.put_bool(m::WATCH_LIVE, &name, watch.live);
        page.put_count(m::WATCH_EVENTS, &name, watch.events);
        page.put_count(m::WATCH_ERRORS, &name, watch.errors);
        if let Some(seconds) = watch.last_event_seconds {
            page.put_count(m::WATCH_LAST_EVENT, &name, seconds);
        }
    }
}

/// Writes the metrics of service addresses.
fn write_services(page: &mut Page, services: &Summary) {
    let families = [("ipv4", false), ("ipv6", true)];
    for state in AdvertisementState::ALL {
        for (family, v6) in families {
            let number = services.counts.addresses.get(&(*state, v6)).copied().unwrap_or_default();
            page.put_count(m::SERVICE_ADDRESSES, &[state.name(), family], number);
        }
    }
    for (reason, number) in &services.counts.withheld {
        page.put_count(m::SERVICES_WITHHELD, &[reason.name()], *number);
    }
    page.put_bool(m::SERVICE_KNOWN, &[], services.known);
    let is_up = matches!(services.proxy.health, ProxyHealth::Up | ProxyHealth::NotChecked);
    page.put_bool(m::SERVICE_PROXY_UP, &[], is_up);
    let visible = matches!(
        services.proxy.rules,
        Some(ProxyRulesState::Nftables | ProxyRulesState::Iptables | ProxyRulesState::Absent)
    );
    page.put_bool(m::SERVICE_PROXY_VISIBLE, &[], visible);
    let lag = services.late_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    page.put(m::SERVICE_PROXY_LAG, &[], lag);
}

/// Writes the metrics of network policies.
fn write_policies(page: &mut Page, policies: &PolicyScrape) {
    let PolicyScrape { summary, faulty, repairs, counters } = policies;
    let state = match summary.state {
        PolicyState::Loading => 0,
        PolicyState::InForce => 1,
        PolicyState::Retained => 2,
        PolicyState::Refused => 3,
    };
    page.put_count(m::POLICY_STATE, &[], state);
    page.put_count(m::POLICIES, &[], summary.policies as u64);
    page.put_count(m::POLICY_PODS, &[], summary.pods as u64);
    page.put_count(m::POLICY_OBJECTS, &["chains"], summary.chains as u64);
    page.put_count(m::POLICY_OBJECTS, &["sets"], summary.sets as u64);
    page.put_count(m::POLICY_UNENFORCED, &[], summary.unenforced as u64);
    page.put_count(m::POLICY_WAITING, &[], summary.waiting as u64);
    page.put_count(m::POLICY_FAULTY, &[], *faulty as u64);
    page.put_count(m::POLICY_FAILED_CLOSED, &[], summary.failed_closed as u64);
    page.put_count(m::POLICY_REPAIRS, &[], *repairs);
    // Several rules of a policy count together.
    let mut sums: BTreeMap<(bool, String, &str), u64> = BTreeMap::new();
    for (key, count) in counters {
        let of = (key.audit, key.policy.to_string(), direction(key.direction).name());
        *sums.entry(of).or_default() += count.packets;
    }
    for ((audit, policy, direction), packets) in sums {
        let metric = if audit { m::POLICY_AUDITED } else { m::POLICY_DROPPED };
        page.put_count(metric, &[&policy, direction], packets);
    }
}

fn write_network(page: &mut Page, network: &NetworkStatus) {
    let name = network.name.as_str();
    page.put_bool(m::NETWORK_REFUSED, &[name], network.refused.is_some());
    page.put_count(m::NETWORK_ATTACHMENTS, &[name], network.attachments as u64);
    for subnet in &network.subnets {
        let of = subnet.name.as_str();
        if subnet.device.is_some() {
            page.put_bool(m::SUBNET_DEVICE_UP, &[name, of], subnet.device_fault.is_none());
        }
        if let Some(packets) = subnet.unassigned_packets {
            page.put_count(m::SUBNET_UNASSIGNED, &[name, of], packets);
        }
        for (state, count) in [("total", subnet.total), ("used", subnet.used), ("free", subnet.free)] {
            page.put_count(m::SUBNET_ADDRESSES, &[name, of, state], count.into());
        }
    }
}

fn write_peer(page: &mut Page, peer: &Peer) {
    let name = peer.name();
    let name = name.as_str();
    page.put_count(m::PEER_STATE, &[name, &peer.remote_as.to_string()], state_number(peer.state));
    page.put_bool(m::PEER_SHUTDOWN, &[name], peer.shutdown);
    page.put_count(m::PEER_STATE_SECONDS, &[name], peer.state_seconds);
    page.put_count(m::PEER_DOWN_SECONDS, &[name], peer.down_seconds.unwrap_or_default());
    if let Some(cause) = &peer.cause {
        page.put_bool(m::PEER_DOWN_REASON, &[name, cause.kind.label()], true);
    }
    page.put_count(m::PEER_FLAPS, &[name], peer.flaps);
    for losses in &peer.losses {
        page.put_count(m::PEER_LOSSES, &[name, losses.kind.label()], losses.count);
    }
    if let Some(session) = &peer.session {
        page.put_count(m::PEER_HOLD_TIME, &[name], session.hold_seconds);
        page.put_count(m::PEER_KEEPALIVE, &[name], session.keepalive_seconds);
        if let Some(seconds) = session.peer_restart_seconds {
            page.put_count(m::PEER_RESTART_TIME, &[name], seconds.into());
        }
        if let Some(microseconds) = session.round_trip_microseconds {
            page.put(m::PEER_ROUND_TRIP, &[name], microseconds as f64 / 1e6);
        }
    }
    for family in &peer.families {
        let of = family.family.as_str();
        let restart = match family.stale_expires_seconds {
            Some(_) if family.long_lived_stale > 0 => 3,
            Some(_) => 2,
            None => u64::from(family.restartable),
        };
        page.put_count(m::PEER_RESTART_STATE, &[name, of], restart);
        if let Some(seconds) = family.stale_expires_seconds {
            page.put_count(m::PEER_STALE_EXPIRY, &[name, of], seconds);
        }
        for (direction, done) in [("received", family.end_of_rib_received), ("sent", family.end_of_rib_sent)]
        {
            page.put_bool(m::PEER_END_OF_RIB_PENDING, &[name, of, direction], family.negotiated && !done);
        }
        for (kind, count) in [
            ("received", family.received),
            ("accepted", family.accepted),
            ("advertised", family.advertised),
            ("stale", family.stale),
            ("long_lived_stale", family.long_lived_stale),
        ] {
            page.put_count(m::PEER_PREFIXES, &[name, of, kind], count as u64);
        }
    }
    if let Some(most) = peer.max_prefixes {
        page.put_count(m::PEER_MAX_PREFIXES, &[name], most.into());
    }
    for (direction, counts) in [("received", &peer.received), ("sent", &peer.sent)] {
        for (kind, count) in kinds(counts) {
            page.put_count(m::PEER_MESSAGES, &[name, direction, kind], count);
        }
        page.put_count(m::PEER_BYTES, &[name, direction], counts.octets);
    }
    if let Some(last) = &peer.last_error {
        page.put_count(m::PEER_LAST_ERROR_AGE, &[name], last.seconds_ago);
    }
    for (direction, last) in [("received", &peer.notification_received), ("sent", &peer.notification_sent)] {
        if let Some(last) = last {
            let (code, subcode) = (last.code.to_string(), last.subcode.to_string());
            page.put_count(m::PEER_NOTIFICATION_AGE, &[name, direction, &code, &subcode], last.seconds_ago);
        }
    }
    if let Some(bfd) = &peer.bfd {
        write_bfd(page, name, bfd);
    }
}

fn write_bfd(page: &mut Page, name: &str, bfd: &BfdSession) {
    let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
    let state = match bfd.state {
        BfdState::AdminDown | BfdState::Unknown => 0,
        BfdState::Down => 1,
        BfdState::Init => 2,
        BfdState::Up => 3,
    };
    page.put_bool(m::BFD_UP, &[name], bfd.state == BfdState::Up);
    page.put_count(m::BFD_STATE, &[name], state);
    page.put(m::BFD_INTERVAL, &[name], seconds(bfd.transmit_milliseconds));
    if let Some(detection) = bfd.detection_milliseconds {
        page.put(m::BFD_DETECTION, &[name], seconds(detection));
    }
    page.put_count(m::BFD_TRANSITIONS, &[name, "up"], bfd.ups);
    page.put_count(m::BFD_TRANSITIONS, &[name, "down"], bfd.downs);
    page.put_count(m::BFD_DETECTIONS, &[name], bfd.detections);
    page.put_count(m::BFD_PACKETS, &[name, "received"], bfd.packets_received);
    page.put_count(m::BFD_PACKETS, &[name, "sent"], bfd.packets_sent);
}

fn kinds(messages: &Messages) -> [(&'static str, u64); 5] {
    [
        ("open", messages.open),
        ("update", messages.update),
        ("notification", messages.notification),
        ("keepalive", messages.keepalive),
        ("route_refresh", messages.route_refresh),
    ]
}

fn state_number(state: PeerState) -> u64 {
    match state {
        PeerState::Unknown => 0,
        PeerState::Idle => 1,
        PeerState::Connect => 2,
        PeerState::Active => 3,
        PeerState::OpenSent => 4,
        PeerState::OpenConfirm => 5,
        PeerState::Established => 6,
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
