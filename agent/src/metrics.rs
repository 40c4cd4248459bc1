//! What `/metrics` shows.
//!
//! Two kinds: what happened (attach durations, refused manifests) is counted as it happens; how things stand (peers,
//! addresses, routes) is asked from their owners at each scrape and built into a registry that lives as long as the
//! answer. So nothing has to be kept in step, a peer that was removed has no series left, and the fast path writes two
//! histograms and no more.
//!
//! The names are an interface: dashboards and alerts name them (`dashboards/`), and `every_metric_is_documented` holds
//! the list in `docs/metrics.md` to what is exported.

use std::time::Duration;

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use trunkline_api::control::{AgentStatus, ClusterStatus, Messages, Peer};

/// Upper bounds of the durations' buckets, in seconds: an attach takes milliseconds, unless it waits for a peer.
const BUCKETS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 30.0];

/// What is counted as it happens.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    requests: HistogramVec,
    gate: HistogramVec,
    wire: HistogramVec,
    refused: IntCounter,
}

/// How things stand, asked from their owners for one scrape.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The agent.
    pub agent: AgentStatus,
    /// Its peers.
    pub peers: Vec<Peer>,
    /// Connections from addresses that are no peer's, since the speaker started.
    pub refused_connections: u64,
}

impl Metrics {
    /// The counters, all at zero.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let opts = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            let histogram = HistogramVec::new(opts, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let requests = histogram(
            "trunkline_request_duration_seconds",
            "Requests of the CNI plugin, from the first octet to the answer.",
            &["command", "outcome"],
        )?;
        let gate = histogram(
            "trunkline_attach_gate_seconds",
            "Part of an attach: waiting until the addresses were told to an established peer.",
            &["outcome"],
        )?;
        let wire = histogram(
            "trunkline_wire_check_seconds",
            "Part of an attach to a VLAN: asking whether the gateway answers and nobody else has the address.",
            &["family", "outcome"],
        )?;
        let refused = IntCounter::new(
            "trunkline_manifests_refused_total",
            "Edits of the manifests that were refused because of a fault.",
        )?;
        registry.register(Box::new(refused.clone()))?;
        Ok(Metrics { registry, requests, gate, wire, refused })
    }

    /// A request was answered.
    pub fn request(&self, command: &str, ok: bool, took: Duration) {
        self.requests.with_label_values(&[command, outcome(ok)]).observe(took.as_secs_f64());
    }

    /// A pod's addresses were told, or not in time.
    pub fn gate(&self, ok: bool, took: Duration) {
        self.gate.with_label_values(&[outcome(ok)]).observe(took.as_secs_f64());
    }

    /// An address was looked at on its VLAN.
    pub fn wire_check(&self, v4: bool, outcome: &str, took: Duration) {
        let family = if v4 { "ipv4" } else { "ipv6" };
        self.wire.with_label_values(&[family, outcome]).observe(took.as_secs_f64());
    }

    /// An edit of the manifests was refused.
    pub fn manifests_refused(&self) {
        self.refused.inc();
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self, standing: &Standing) -> prometheus::Result<String> {
        let mut families = self.registry.gather();
        families.extend(stand(standing)?.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

fn stand(Standing { agent, peers, refused_connections }: &Standing) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, value: i64| {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        registry.register(Box::new(gauge))
    };
    let counter = |name: &str, help: &str, value: u64| {
        let counter = IntCounter::new(name, help)?;
        counter.inc_by(value);
        registry.register(Box::new(counter))
    };
    let gauges = |name: &str, help: &str, labels: &[&str]| {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(gauges.clone()))?;
        Ok::<_, prometheus::Error>(gauges)
    };
    let counters = |name: &str, help: &str, labels: &[&str]| {
        let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(counters.clone()))?;
        Ok::<_, prometheus::Error>(counters)
    };

    gauges("trunkline_build_info", "The version that runs; always 1.", &["version"])?
        .with_label_values(&[&agent.version])
        .set(1);
    gauge("trunkline_uptime_seconds", "Since the agent started.", signed(agent.uptime_seconds))?;
    gauge("trunkline_ready", "1 if pods can be attached.", i64::from(agent.ready))?;
    gauge(
        "trunkline_manifests_in_force",
        "0 while the manifests as they are now are refused and an earlier state runs.",
        i64::from(agent.manifests.applied && agent.manifests.refused.is_empty()),
    )?;
    gauge(
        "trunkline_store_usable",
        "0 while the store of addresses cannot be used and no address is given out.",
        i64::from(agent.store.fault.is_none()),
    )?;
    gauge("trunkline_attachments", "Attached pods' interfaces.", signed(agent.attachments as u64))?;
    gauge(
        "trunkline_unrecorded_pods",
        "Pods in the kernel that no record knows.",
        signed(agent.unrecorded as u64),
    )?;

    stand_cluster(&registry, agent.cluster.as_ref())?;
    let addresses =
        gauges("trunkline_subnet_addresses", "Addresses of a subnet.", &["network", "subnet", "state"])?;
    let devices = gauges(
        "trunkline_subnet_device_up",
        "1 while the device of a VLAN or VXLAN subnet carries its pods.",
        &["network", "subnet"],
    )?;
    let refused =
        gauges("trunkline_network_refused", "1 for a network that this node does not serve.", &["network"])?;
    for network in &agent.networks {
        refused.with_label_values(&[&network.name]).set(i64::from(network.refused.is_some()));
        for subnet in &network.subnets {
            if subnet.device.is_some() {
                let labels = [network.name.as_str(), subnet.name.as_str()];
                devices.with_label_values(&labels).set(i64::from(subnet.device_fault.is_none()));
            }
            for (state, count) in [("total", subnet.total), ("used", subnet.used), ("free", subnet.free)] {
                addresses
                    .with_label_values(&[network.name.as_str(), subnet.name.as_str(), state])
                    .set(i64::from(count));
            }
        }
    }

    let routes = gauges("trunkline_kernel_routes", "Own routes in the kernel.", &["state"])?;
    routes.with_label_values(&["wanted"]).set(signed(agent.kernel.routes_wanted));
    routes.with_label_values(&["installed"]).set(signed(agent.kernel.routes_installed));
    routes.with_label_values(&["stale"]).set(signed(agent.kernel.routes_stale));
    let forwarding =
        gauges("trunkline_vxlan_forwarding_entries", "Forwarding entries of the tunnels.", &["state"])?;
    forwarding.with_label_values(&["wanted"]).set(signed(agent.kernel.forwarding_wanted));
    forwarding.with_label_values(&["installed"]).set(signed(agent.kernel.forwarding_installed));
    counter(
        "trunkline_vxlan_forwarding_repairs_total",
        "Forwarding entries that somebody else removed or added, and that were put right.",
        agent.kernel.forwarding_repairs,
    )?;
    counter(
        "trunkline_kernel_repairs_total",
        "What somebody else removed or changed, and was put back.",
        agent.kernel.repairs,
    )?;
    counter("trunkline_kernel_errors_total", "What the kernel refused.", agent.kernel.errors)?;
    counter(
        "trunkline_bgp_refused_connections_total",
        "Connections that were closed at once: from no configured peer, or not allowed now.",
        *refused_connections,
    )?;

    let converged = gauges(
        "trunkline_bgp_converged",
        "1 once the first route selection after the start is done.",
        &["family"],
    )?;
    if let Some(bgp) = &agent.bgp {
        for family in &bgp.converged {
            converged.with_label_values(&[family]).set(1);
        }
    }
    let range_peers = gauges(
        "trunkline_bgp_range_peers",
        "Dynamic neighbours from a prefix: there now, and the most.",
        &["prefix", "kind"],
    )?;
    let range_refused = counters(
        "trunkline_bgp_range_refused_total",
        "Connections refused because the most dynamic neighbours were there.",
        &["prefix"],
    )?;
    for range in agent.bgp.iter().flat_map(|bgp| &bgp.ranges) {
        let prefix = range.prefix.to_string();
        range_peers.with_label_values(&[&prefix, "there"]).set(i64::from(range.peers));
        range_peers.with_label_values(&[&prefix, "limit"]).set(i64::from(range.limit));
        range_refused.with_label_values(&[&prefix]).inc_by(range.refused);
    }
    let station_up = gauges("trunkline_bmp_station_up", "1 while it is connected.", &["station"])?;
    let station_octets =
        counters("trunkline_bmp_station_octets_total", "Octets told to a BMP station.", &["station"])?;
    for station in agent.bgp.iter().flat_map(|bgp| &bgp.stations) {
        let name = station.address.to_string();
        station_up.with_label_values(&[&name]).set(i64::from(station.connected));
        station_octets.with_label_values(&[&name]).inc_by(station.octets);
    }
    let state = gauges(
        "trunkline_bgp_peer_state",
        "RFC 4271's state: 1 Idle, 2 Connect, 3 Active, 4 OpenSent, 5 OpenConfirm, 6 Established.",
        &["peer", "remote_as"],
    )?;
    let state_seconds = gauges("trunkline_bgp_peer_state_seconds", "In this state for.", &["peer"])?;
    let flaps = counters("trunkline_bgp_peer_flaps_total", "Times the session left Established.", &["peer"])?;
    let prefixes = gauges("trunkline_bgp_peer_prefixes", "Prefixes of a peer.", &["peer", "family", "kind"])?;
    let limit = gauges("trunkline_bgp_peer_max_prefixes", "Most prefixes taken.", &["peer"])?;
    let messages =
        counters("trunkline_bgp_peer_messages_total", "Messages.", &["peer", "direction", "kind"])?;
    let octets = counters("trunkline_bgp_peer_octets_total", "Octets of messages.", &["peer", "direction"])?;
    let error = gauges(
        "trunkline_bgp_peer_last_error_age_seconds",
        "Since the last error, which is kept when the session comes back; `trunkline peers` has it in words.",
        &["peer"],
    )?;
    let bfd_up = gauges("trunkline_bfd_session_up", "1 while a peer's BFD session is Up.", &["peer"])?;
    let bfd_transitions = counters(
        "trunkline_bfd_session_transitions_total",
        "Times a BFD session became Up, or left Up.",
        &["peer", "to"],
    )?;
    let bfd_detections = counters(
        "trunkline_bfd_session_detections_total",
        "Times a BFD session left Up because nothing came for the detection time.",
        &["peer"],
    )?;
    let bfd_packets =
        counters("trunkline_bfd_session_packets_total", "BFD packets.", &["peer", "direction"])?;
    for peer in peers {
        let name = peer.name();
        let name = name.as_str();
        state.with_label_values(&[name, &peer.remote_as.to_string()]).set(state_number(&peer.state));
        state_seconds.with_label_values(&[name]).set(signed(peer.state_seconds));
        flaps.with_label_values(&[name]).inc_by(peer.flaps);
        for family in &peer.families {
            for (kind, count) in [
                ("received", family.received),
                ("accepted", family.accepted),
                ("advertised", family.advertised),
                ("stale", family.stale),
                ("long_lived_stale", family.long_lived_stale),
            ] {
                prefixes.with_label_values(&[name, &family.family, kind]).set(signed(count as u64));
            }
        }
        if let Some(bfd) = &peer.bfd {
            bfd_up.with_label_values(&[name]).set(i64::from(bfd.state == "Up"));
            bfd_transitions.with_label_values(&[name, "up"]).inc_by(bfd.ups);
            bfd_transitions.with_label_values(&[name, "down"]).inc_by(bfd.downs);
            bfd_detections.with_label_values(&[name]).inc_by(bfd.detections);
            bfd_packets.with_label_values(&[name, "received"]).inc_by(bfd.packets_received);
            bfd_packets.with_label_values(&[name, "sent"]).inc_by(bfd.packets_sent);
        }
        if let Some(most) = peer.max_prefixes {
            limit.with_label_values(&[name]).set(i64::from(most));
        }
        for (direction, counts) in [("received", &peer.received), ("sent", &peer.sent)] {
            for (kind, count) in kinds(counts) {
                messages.with_label_values(&[name, direction, kind]).inc_by(count);
            }
            octets.with_label_values(&[name, direction]).inc_by(counts.octets);
        }
        if let Some(last) = &peer.last_error {
            error.with_label_values(&[name]).set(signed(last.seconds_ago));
        }
    }
    Ok(registry)
}

/// What an API server as the source has to show; without one these have no series.
fn stand_cluster(registry: &Registry, cluster: Option<&ClusterStatus>) -> prometheus::Result<()> {
    let gauges = |name: &str, help: &str, labels: &[&str]| {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(gauges.clone()))?;
        Ok::<_, prometheus::Error>(gauges)
    };
    let counters = |name: &str, help: &str| {
        let counters = IntCounterVec::new(Opts::new(name, help), &["watch"])?;
        registry.register(Box::new(counters.clone()))?;
        Ok::<_, prometheus::Error>(counters)
    };
    let connected = gauges("trunkline_cluster_connected", "1 while no watch of the API server fails.", &[])?;
    let outage = gauges(
        "trunkline_cluster_outage_seconds",
        "For how long a watch of the API server has been failing; 0: none does.",
        &[],
    )?;
    let faults = gauges(
        "trunkline_cluster_faults",
        "Objects of the API server that are not served as they are.",
        &[],
    )?;
    let unwritten = gauges(
        "trunkline_cluster_unwritten",
        "Statuses that are still to be written to the API server.",
        &[],
    )?;
    let live = gauges(
        "trunkline_cluster_watch_live",
        "1 while a watch has had its list and does not fail.",
        &["watch"],
    )?;
    let age = gauges(
        "trunkline_cluster_watch_last_event_seconds",
        "Since the last change or bookmark of a watch; bookmarks come about once a minute.",
        &["watch"],
    )?;
    let events = counters("trunkline_cluster_watch_events_total", "Changes and bookmarks of a watch.")?;
    let errors = counters("trunkline_cluster_watch_errors_total", "Failures of a watch.")?;
    let Some(cluster) = cluster else { return Ok(()) };
    let none: &[&str] = &[];
    connected.with_label_values(none).set(i64::from(cluster.connected));
    outage.with_label_values(none).set(signed(cluster.outage_seconds.unwrap_or_default()));
    faults.with_label_values(none).set(signed(cluster.faults.len() as u64));
    unwritten.with_label_values(none).set(signed(cluster.unwritten));
    for watch in &cluster.watches {
        let name = [watch.name.as_str()];
        live.with_label_values(&name).set(i64::from(watch.live));
        events.with_label_values(&name).inc_by(watch.events);
        errors.with_label_values(&name).inc_by(watch.errors);
        if let Some(seconds) = watch.last_event_seconds {
            age.with_label_values(&name).set(signed(seconds));
        }
    }
    Ok(())
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

fn state_number(state: &str) -> i64 {
    ["Idle", "Connect", "Active", "OpenSent", "OpenConfirm", "Established"]
        .iter()
        .position(|name| *name == state)
        .map_or(0, |index| signed(index as u64) + 1)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trunkline_api::control::*;

    use super::*;

    fn standing() -> Standing {
        let messages = Messages { update: 7, octets: 99, ..Messages::default() };
        Standing {
            agent: AgentStatus {
                node: "n".to_owned(),
                version: "1.2.3".to_owned(),
                uptime_seconds: 5,
                ready: true,
                not_ready: Vec::new(),
                manifests: ManifestStatus {
                    folder: "/m".to_owned(),
                    applied: true,
                    refused: vec!["a fault".to_owned()],
                },
                cluster: Some(ClusterStatus {
                    server: "https://10.0.0.1:6443/".to_owned(),
                    connected: false,
                    outage_seconds: Some(7),
                    last_error: Some("refused".to_owned()),
                    faults: vec!["Subnet a: a fault".to_owned()],
                    unwritten: 2,
                    watches: vec![WatchStatus {
                        name: "networks".to_owned(),
                        live: false,
                        events: 9,
                        errors: 3,
                        last_event_seconds: Some(61),
                    }],
                }),
                store: StoreStatus { path: "/s".to_owned(), fault: None },
                bgp: Some(BgpStatus {
                    local_as: 65001,
                    graceful_shutdown: false,
                    router_id: "10.0.0.1".parse().unwrap(),
                    peers: 1,
                    established: 1,
                    converged: vec!["ipv4-unicast".to_owned()],
                    ranges: vec![PeerRange {
                        prefix: "10.1.0.0/24".parse().unwrap(),
                        remote_as: 65010,
                        peers: 3,
                        limit: 100,
                        refused: 8,
                    }],
                    stations: vec![BmpStation {
                        address: "10.0.0.5:11019".parse().unwrap(),
                        connected: true,
                        seconds: 9,
                        connections: 1,
                        octets: 4711,
                        last_error: None,
                    }],
                }),
                networks: vec![NetworkStatus {
                    name: "rack1".to_owned(),
                    mode: "BGP".to_owned(),
                    table: Some(10000),
                    refused: None,
                    subnets: vec![SubnetStatus {
                        name: "pods".to_owned(),
                        cidr: Some("10.1.0.0/24".parse().unwrap()),
                        total: 254,
                        used: 3,
                        free: 250,
                        refused: None,
                        table: Some(10000),
                        vlan: Some(10),
                        device: Some("eth0.10".to_owned()),
                        parent: Some("eth0".to_owned()),
                        device_fault: Some("eth0 is down".to_owned()),
                    }],
                }],
                attachments: 3,
                unrecorded: 1,
                kernel: KernelStatus { repairs: 2, ..KernelStatus::default() },
            },
            peers: vec![Peer {
                address: "10.0.0.1".parse().unwrap(),
                interface: None,
                range: None,
                remote_as: 65000,
                local_as: 65001,
                rules: Vec::new(),
                state: "Established".to_owned(),
                state_seconds: 60,
                next_attempt_seconds: None,
                shutdown: false,
                optional: false,
                session: None,
                families: vec![PeerFamily {
                    family: "ipv4-unicast".to_owned(),
                    negotiated: true,
                    received: 10,
                    accepted: 9,
                    advertised: 4,
                    stale: 0,
                    long_lived_stale: 0,
                    end_of_rib_received: true,
                    end_of_rib_sent: true,
                }],
                received: messages,
                sent: messages,
                flaps: 2,
                bfd: Some(BfdSession {
                    state: "Up".to_owned(),
                    state_seconds: 3,
                    remote_state: "Up".to_owned(),
                    diagnostic: "No Diagnostic".to_owned(),
                    remote_diagnostic: "No Diagnostic".to_owned(),
                    multihop: false,
                    transmit_milliseconds: 50,
                    detection_milliseconds: Some(150),
                    control_plane_independent: true,
                    local_discriminator: 1,
                    remote_discriminator: 2,
                    ups: 4,
                    downs: 3,
                    detections: 1,
                    packets_received: 1000,
                    packets_sent: 1001,
                }),
                max_prefixes: Some(100),
                last_error: Some(Dated { text: "Hold Timer Expired".to_owned(), seconds_ago: 61 }),
                notification_sent: None,
                notification_received: None,
            }],
            refused_connections: 4,
        }
    }

    fn rendered() -> String {
        let metrics = Metrics::new().unwrap();
        metrics.request("attach", true, Duration::from_millis(3));
        metrics.gate(true, Duration::from_millis(1));
        metrics.wire_check(true, "in_use", Duration::from_millis(1));
        metrics.manifests_refused();
        metrics.render(&standing()).unwrap()
    }

    #[test]
    fn how_things_stand_is_in_the_text() {
        let text = rendered();
        for line in [
            "trunkline_build_info{version=\"1.2.3\"} 1",
            "trunkline_manifests_refused_total 1",
            "trunkline_wire_check_seconds_count{family=\"ipv4\",outcome=\"in_use\"} 1",
            "trunkline_manifests_in_force 0",
            "trunkline_store_usable 1",
            "trunkline_subnet_addresses{network=\"rack1\",state=\"used\",subnet=\"pods\"} 3",
            "trunkline_subnet_device_up{network=\"rack1\",subnet=\"pods\"} 0",
            "trunkline_bgp_peer_state{peer=\"10.0.0.1\",remote_as=\"65000\"} 6",
            "trunkline_bgp_peer_flaps_total{peer=\"10.0.0.1\"} 2",
            "trunkline_bgp_peer_prefixes{family=\"ipv4-unicast\",kind=\"accepted\",peer=\"10.0.0.1\"} 9",
            "trunkline_bgp_peer_messages_total{direction=\"sent\",kind=\"update\",peer=\"10.0.0.1\"} 7",
            "trunkline_bgp_peer_last_error_age_seconds{peer=\"10.0.0.1\"} 61",
            "trunkline_bfd_session_up{peer=\"10.0.0.1\"} 1",
            "trunkline_bfd_session_transitions_total{peer=\"10.0.0.1\",to=\"down\"} 3",
            "trunkline_bfd_session_detections_total{peer=\"10.0.0.1\"} 1",
            "trunkline_bfd_session_packets_total{direction=\"sent\",peer=\"10.0.0.1\"} 1001",
            "trunkline_bgp_refused_connections_total 4",
            "trunkline_bgp_range_peers{kind=\"there\",prefix=\"10.1.0.0/24\"} 3",
            "trunkline_bgp_range_refused_total{prefix=\"10.1.0.0/24\"} 8",
            "trunkline_kernel_repairs_total 2",
            "trunkline_request_duration_seconds_bucket{command=\"attach\",outcome=\"ok\",le=\"0.004\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn every_metric_is_documented_and_every_documented_one_is_there() {
        let exported: BTreeSet<String> = rendered()
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect();
        // The controller's own stand behind the agent's.
        let page = include_str!("../../docs/metrics.md").split("\n## The controller").next().unwrap();
        let documented: BTreeSet<String> = page
            .split('`')
            .filter(|word| word.starts_with("trunkline_"))
            // The controller has its own test.
            .filter(|word| {
                !word.starts_with("trunkline_controller_") && !word.starts_with("trunkline_webhook_")
            })
            .map(|word| word.split('{').next().unwrap_or(word).to_owned())
            .collect();
        assert_eq!(exported, documented);
    }
}
