//! The series of the agent, and their values.

use std::collections::BTreeSet;

use trunkline_api::control::*;
use trunkline_api::metrics::of_agent;

use super::*;
use crate::netpolicy::input::{Direction, ObjectKey};
use crate::netpolicy::{CounterKey, PolicyRef};
use crate::services::{Counts, ProxyState};
use trunkline_datapath::nft::policy::PolicyCount;

fn data() -> ScrapeData {
    let messages = Messages { update: 7, octets: 99, ..Messages::default() };
    ScrapeData {
        agent: AgentStatus {
            node: "n".to_owned(),
            version: "1.2.3".to_owned(),
            uptime_seconds: 5,
            ready: true,
            not_ready: Vec::new(),
            not_ready_reasons: Vec::new(),
            not_serving: Vec::new(),
            drain: DrainStatus { phase: DrainPhase::Drained, ..DrainStatus::default() },
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
                    optional: false,
                    live: false,
                    events: 9,
                    errors: 3,
                    last_event_seconds: Some(61),
                }],
            }),
            settings: vec![SettingStatus {
                field: "maxPaths".to_owned(),
                value: 8.into(),
                from: Some("gpu".to_owned()),
                pending_restart: true,
            }],
            store: StoreStatus { path: "/s".to_owned(), fault: None },
            bgp: Some(BgpStatus {
                local_as: 65001,
                graceful_shutdown: false,
                disaggregated: None,
                ways_out: vec![DefaultRouteStatus {
                    family: "ipv4-unicast".to_owned(),
                    table: 10_000,
                    basis: DefaultRouteBasis::Advertised,
                    peers: vec!["10.0.0.1".to_owned()],
                    wanted: vec!["10.0.0.1".parse().unwrap()],
                    installed: vec!["10.0.0.1".parse().unwrap()],
                    left_out: Vec::new(),
                }],
                duplicate_identifiers: Vec::new(),
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
                    fault: None,
                }],
                stations: vec![BmpStation {
                    address: "10.0.0.5:11019".parse().unwrap(),
                    connected: true,
                    seconds: 9,
                    connections: 1,
                    octets: 4711,
                    last_error: None,
                }],
                listening: vec![BgpListener {
                    address: "[::]:179".parse().unwrap(),
                    fault: Some("Address already in use".to_owned()),
                    fault_seconds: Some(5),
                }],
                fault: None,
            }),
            networks: vec![NetworkStatus {
                name: "rack1".to_owned(),
                mode: Mode::Bgp,
                table: Some(10000),
                refused: None,
                attachments: 3,
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
                    unassigned_packets: Some(5),
                    disabled: false,
                    allowed_namespaces: Vec::new(),
                    retention: None,
                }],
            }],
            attachments: 3,
            unrecorded: 1,
            probes: Some(ProbeStatus {
                routers: vec![ProbedRouter {
                    peer: "10.0.0.1".to_owned(),
                    family: "ipv4-unicast".to_owned(),
                    link: "eth1".to_owned(),
                    left_out: true,
                    checks: vec![ProbeCheck {
                        name: "size".to_owned(),
                        state: ProbeState::Failing,
                        seconds: 7,
                        sent: 12,
                        lost: 4,
                    }],
                    faults: vec![ProbeFault {
                        kind: ProbeFaultKind::Size,
                        text: "too large".to_owned(),
                        fix: "mend it".to_owned(),
                    }],
                }],
                ..ProbeStatus::default()
            }),
            anycast: vec![AnycastStatus {
                name: "dns".to_owned(),
                refused: None,
                addresses: vec![AnycastAddressStatus {
                    address: "192.0.2.53".parse().unwrap(),
                    state: AdvertisementState::Advertised,
                    reason: None,
                    healthy: Some(true),
                    text: String::new(),
                    check: "passed".to_owned(),
                    since_seconds: 5,
                }],
            }],
            ignored_claims: IgnoredClaims { vteps: 1, addresses: 2, faults: Vec::new() },
            remote_clusters: vec![RemoteClusterStatus {
                name: "west".to_owned(),
                vteps: 2,
                endpoints: 7,
                ..RemoteClusterStatus::default()
            }],
            alternate_paths: Some(AlternatePaths { forwarded: 12, dropped: 1 }),
            guard: GuardStatus {
                enabled: true,
                in_force: true,
                repairs: 3,
                dropped: [("source".to_owned(), 7)].into(),
                fault: None,
            },
            kernel: KernelStatus {
                repairs: 2,
                errors_by_reason: [("ENOSPC".to_owned(), 3)].into(),
                ..KernelStatus::default()
            },
            policies: None,
            http_fault: None,
        },
        peers: vec![Peer {
            address: "10.0.0.1".parse().unwrap(),
            interface: None,
            range: None,
            remote_as: 65000,
            local_as: 65001,
            rules: Vec::new(),
            state: PeerState::Established,
            state_seconds: 60,
            next_attempt_seconds: None,
            shutdown: false,
            optional: false,
            session: Some(PeerSession {
                local: "10.0.0.2:1".parse().unwrap(),
                remote: "10.0.0.1:179".parse().unwrap(),
                router_id: "10.0.0.1".parse().unwrap(),
                hold_seconds: 90,
                keepalive_seconds: 30,
                capabilities_sent: Vec::new(),
                capabilities_received: Vec::new(),
                peer_restart_seconds: Some(120),
                round_trip_microseconds: Some(250),
            }),
            families: vec![PeerFamily {
                family: "ipv4-unicast".to_owned(),
                negotiated: true,
                received: 10,
                accepted: 9,
                advertised: 4,
                stale: 0,
                long_lived_stale: 0,
                restartable: true,
                stale_expires_seconds: Some(118),
                end_of_rib_received: true,
                end_of_rib_sent: false,
            }],
            received: messages,
            sent: messages,
            flaps: 2,
            down_seconds: Some(13),
            cause: Some(PeerCause {
                kind: CauseKind::PrefixLimit,
                side: Some(CauseSide::Peer),
                text: "received NOTIFICATION".to_owned(),
                advice: "raise the limit".to_owned(),
                seconds_ago: 13,
            }),
            last_attempt: None,
            last_loss: None,
            losses: vec![LossCount { kind: CauseKind::Bfd, count: 2 }],
            last_down: None,
            bfd: Some(BfdSession {
                state: BfdState::Up,
                state_seconds: 3,
                remote_state: BfdState::Up,
                diagnostic: BfdDiagnostic::None,
                remote_diagnostic: BfdDiagnostic::None,
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
            notification_sent: Some(DatedNotification {
                code: 6,
                subcode: 2,
                text: "Cease".to_owned(),
                seconds_ago: 9,
            }),
            notification_received: None,
        }],
        established_peers: Some(1),
        refused_connections: 4,
        bfd_refused: vec![("link", 6), ("socket", 5)],
        policies: Some(PolicyScrape {
            summary: PolicySummary {
                state: PolicyState::InForce,
                reason: None,
                policies: 5,
                pods: 4,
                chains: 12,
                sets: 6,
                failed_closed: 4,
                unenforced: 1,
                waiting: 2,
                ..PolicySummary::default()
            },
            faulty: 3,
            repairs: 9,
            counters: [(Some(0), false, 4), (None, false, 3), (None, true, 8)]
                .map(|(rule, audit, packets)| {
                    let policy = PolicyRef::Network(ObjectKey::new("shop", "db"));
                    let direction = Direction::Ingress;
                    let key = CounterKey { direction, policy, rule, denied: true, audit };
                    (key, PolicyCount { packets, octets: 60 * packets })
                })
                .into(),
        }),
        services: Some(Summary {
            known: true,
            counts: Counts {
                addresses: [((AdvertisementState::Withheld, true), 2)].into(),
                withheld: [(WithheldReason::NoRules, 2)].into(),
            },
            proxy: ProxyState { health: ProxyHealth::Up, rules: Some(ProxyRulesState::Nftables) },
            late_since: None,
        }),
    }
}

fn rendered() -> String {
    let metrics = Metrics::new().unwrap();
    metrics.request("attach", "rack1", true, Duration::from_millis(3));
    metrics.gate("rack1", true, Duration::from_millis(1));
    metrics.advertised("rack1", Duration::from_millis(1));
    metrics.peer_loss_settled(Duration::from_millis(1));
    metrics.address_wait(true, Duration::from_millis(1));
    metrics.service_to_fabric(Duration::from_millis(1));
    metrics.policy_change(Duration::from_millis(1));
    metrics.cluster_request("peers", Some("refused"), Duration::from_millis(1));
    metrics.wire_check(true, "in_use", Duration::from_millis(1));
    metrics.manifests_refused();
    metrics.otlp_request("logs", "ok");
    metrics.otlp_exported("logs", 12);
    metrics.otlp_dropped("logs", "queue", 3);
    metrics.connections().listener("http");
    metrics.render(&data()).unwrap()
}

#[test]
fn the_text_contains_the_state() {
    let text = rendered();
    for line in [
        "trunkline_build_info{version=\"1.2.3\"} 1",
        "trunkline_manifests_refused_total 1",
        "trunkline_node_claims_ignored{what=\"address\"} 2",
        "trunkline_otlp_requests_total{outcome=\"ok\",signal=\"logs\"} 1",
        "trunkline_otlp_exported_total{signal=\"logs\"} 12",
        "trunkline_otlp_dropped_total{reason=\"queue\",signal=\"logs\"} 3",
        "trunkline_wire_check_seconds_count{family=\"ipv4\",outcome=\"in_use\"} 1",
        "trunkline_bgp_established_peers 1",
        "trunkline_manifests_in_force 0",
        "trunkline_store_usable 1",
        "trunkline_subnet_addresses{network=\"rack1\",subnet=\"pods\",state=\"used\"} 3",
        "trunkline_subnet_device_up{network=\"rack1\",subnet=\"pods\"} 0",
        "trunkline_bgp_peer_state{peer=\"10.0.0.1\",remote_as=\"65000\"} 6",
        "trunkline_bgp_peer_flaps_total{peer=\"10.0.0.1\"} 2",
        "trunkline_bgp_peer_down_seconds{peer=\"10.0.0.1\"} 13",
        "trunkline_bgp_peer_down_reason{peer=\"10.0.0.1\",reason=\"prefix_limit\"} 1",
        "trunkline_bgp_peer_losses_total{peer=\"10.0.0.1\",reason=\"bfd\"} 2",
        "trunkline_bgp_peer_prefixes{peer=\"10.0.0.1\",family=\"ipv4-unicast\",kind=\"accepted\"} 9",
        "trunkline_bgp_peer_messages_total{peer=\"10.0.0.1\",direction=\"sent\",kind=\"update\"} 7",
        "trunkline_bgp_peer_last_error_age_seconds{peer=\"10.0.0.1\"} 61",
        "trunkline_bfd_session_up{peer=\"10.0.0.1\"} 1",
        "trunkline_bfd_session_transitions_total{peer=\"10.0.0.1\",to=\"down\"} 3",
        "trunkline_bfd_session_detections_total{peer=\"10.0.0.1\"} 1",
        "trunkline_bfd_session_packets_total{peer=\"10.0.0.1\",direction=\"sent\"} 1001",
        "trunkline_bfd_refused_packets_total{reason=\"link\"} 6",
        "trunkline_drain_phase 3",
        "trunkline_bgp_speaker_running 1",
        "trunkline_bgp_listening{address=\"[::]:179\"} 0",
        "trunkline_bgp_refused_connections_total 4",
        "trunkline_bgp_range_peers{prefix=\"10.1.0.0/24\",kind=\"there\"} 3",
        "trunkline_bgp_range_refused_total{prefix=\"10.1.0.0/24\"} 8",
        "trunkline_kernel_repairs_total 2",
        "trunkline_alternate_path_packets_total{action=\"forwarded\"} 12",
        "trunkline_alternate_path_packets_total{action=\"dropped\"} 1",
        "trunkline_subnet_unassigned_packets_total{network=\"rack1\",subnet=\"pods\"} 5",
        "trunkline_bgp_disaggregated 0",
        "trunkline_bgp_way_out_next_hops{family=\"ipv4-unicast\",state=\"used\"} 1",
        "trunkline_bgp_way_out_next_hops{family=\"ipv4-unicast\",state=\"left_out\"} 0",
        "trunkline_bgp_way_out_advertised{family=\"ipv4-unicast\"} 1",
        "trunkline_bgp_duplicate_identifiers 0",
        "trunkline_probe_state{peer=\"10.0.0.1\",family=\"ipv4-unicast\",check=\"size\"} 2",
        "trunkline_probe_fault{peer=\"10.0.0.1\",family=\"ipv4-unicast\",fault=\"size\"} 1",
        "trunkline_probe_fault{peer=\"10.0.0.1\",family=\"ipv4-unicast\",fault=\"silent\"} 0",
        "trunkline_probe_sent_total{peer=\"10.0.0.1\",family=\"ipv4-unicast\",check=\"size\"} 12",
        "trunkline_probe_lost_total{peer=\"10.0.0.1\",family=\"ipv4-unicast\",check=\"size\"} 4",
        "trunkline_probe_left_out{peer=\"10.0.0.1\",family=\"ipv4-unicast\"} 1",
        "trunkline_service_addresses{state=\"withheld\",family=\"ipv6\"} 2",
        "trunkline_service_addresses{state=\"advertised\",family=\"ipv4\"} 0",
        "trunkline_services_withheld{reason=\"noRules\"} 2",
        "trunkline_service_proxy_up 1",
        "trunkline_service_proxy_rules_visible 1",
        "trunkline_policy_state 1",
        "trunkline_policies 5",
        "trunkline_policy_pods 4",
        "trunkline_policy_objects{kind=\"chains\"} 12",
        "trunkline_policy_objects{kind=\"sets\"} 6",
        "trunkline_policy_unenforced_interfaces 1",
        "trunkline_policy_waiting_pods 2",
        "trunkline_policy_faulty 3",
        "trunkline_policy_failed_closed 4",
        "trunkline_policy_repairs_total 9",
        "trunkline_policy_dropped_total{policy=\"NetworkPolicy shop/db\",direction=\"ingress\"} 7",
        "trunkline_policy_audited_total{policy=\"NetworkPolicy shop/db\",direction=\"ingress\"} 8",
        "trunkline_guard_in_force 1",
        "trunkline_guard_dropped_total{reason=\"source\"} 7",
        "trunkline_guard_repairs_total 3",
        "trunkline_kernel_errors_total{reason=\"ENOSPC\"} 3",
        "trunkline_network_attachments{network=\"rack1\"} 3",
        "trunkline_bgp_peer_hold_time_seconds{peer=\"10.0.0.1\"} 90",
        "trunkline_bgp_peer_round_trip_seconds{peer=\"10.0.0.1\"} 0.00025",
        "trunkline_bgp_peer_graceful_restart_state{peer=\"10.0.0.1\",family=\"ipv4-unicast\"} 2",
        "trunkline_bgp_peer_stale_expiry_seconds{peer=\"10.0.0.1\",family=\"ipv4-unicast\"} 118",
        "trunkline_bgp_peer_end_of_rib_pending{peer=\"10.0.0.1\",family=\"ipv4-unicast\",direction=\"sent\"} 1",
        "trunkline_bgp_peer_last_notification_age_seconds{peer=\"10.0.0.1\",direction=\"sent\",code=\"6\",subcode=\"2\"} 9",
        "trunkline_bfd_session_detection_time_seconds{peer=\"10.0.0.1\"} 0.15",
        "trunkline_bfd_session_state{peer=\"10.0.0.1\"} 3",
        "trunkline_request_duration_seconds_bucket{command=\"attach\",network=\"rack1\",outcome=\"ok\",le=\"0.004\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_metric_of_the_catalogue_is_exported() {
    let text = rendered();
    let exported: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let declared: BTreeSet<&str> =
        of_agent::SECTIONS.iter().flat_map(|section| section.metrics).map(|metric| metric.name).collect();
    assert_eq!(exported, declared);
}
