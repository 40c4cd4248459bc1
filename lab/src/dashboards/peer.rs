//! One peer of one node.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row, SESSION, Variable, YES_NO};

const RESTART: &[(i64, &str)] = &[(0, "nothing kept"), (1, "ready"), (2, "stale"), (3, "long-lived stale")];
const BFD: &[(i64, &str)] = &[(0, "AdminDown"), (1, "Down"), (2, "Init"), (3, "Up")];

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "peer",
        title: "Trunkline: peer",
        description: "One BGP peer: session, messages, prefixes, graceful restart, BFD.",
        variables: &[Variable {
            name: "peer",
            label: "Peer",
            query: "label_values(trunkline_bgp_peer_state{instance=~\"$node\"}, peer)",
            multi: true,
        }],
        rows: vec![
            Row {
                title: "Session",
                panels: vec![
                    Panel::new(Stat, "State", "short", "node", &[("min(trunkline_bgp_peer_state{instance=~\"$node\",peer=~\"$peer\"})", "state")],
                        "The session's state (RFC 4271); of several the least.").words(SESSION).bad(Bounds::Below(6.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "For", "s", "node", &[("min(trunkline_bgp_peer_state_seconds{instance=~\"$node\",peer=~\"$peer\"})", "for")],
                        "How long it has been in this state.").alert("TrunklinePeerDown"),
                    Panel::new(Stat, "No session for", "s", "node", &[("max(trunkline_bgp_peer_down_seconds{instance=~\"$node\",peer=~\"$peer\"})", "no session for")],
                        "How long there has been no Established session; 0 while there is one.").bad(Bounds::Above(1.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Losses", "short", "node", &[("sum(trunkline_bgp_peer_flaps_total{instance=~\"$node\",peer=~\"$peer\"})", "losses")],
                        "Times the session left Established since the peer was configured.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Hold Time", "s", "node", &[("min(trunkline_bgp_peer_hold_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "hold time")],
                        "Hold Time as negotiated; 0 is off.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Keepalive", "s", "node", &[("min(trunkline_bgp_peer_keepalive_seconds{instance=~\"$node\",peer=~\"$peer\"})", "keepalive")],
                        "Between this side's KEEPALIVEs; 0 is off.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Shut down", "short", "node", &[("max(trunkline_bgp_peer_shutdown{instance=~\"$node\",peer=~\"$peer\"})", "shut down")],
                        "Whether the session is down because an operator wants it so.").words(YES_NO).alert("TrunklinePeerDown"),
                    Panel::new(Series, "Round-trip time", "s", "node", &[("trunkline_bgp_peer_round_trip_seconds{instance=~\"$node\",peer=~\"$peer\"}", "{{peer}}")],
                        "Of the session's TCP connection, as the kernel has smoothed it (RFC 6298). A rise without a fault is a path that got longer or a router that is busy.")
                        .alert("TrunklinePeerFlapping").width(24),
                    Panel::new(Table, "Cause", "short", "node", &[("trunkline_bgp_peer_down_reason{instance=~\"$node\",peer=~\"$peer\"}", "cause")],
                        "Why there is no session, by kind: docs/alerts.md says what to do about each.").alert("TrunklinePeerDown").width(12),
                    Panel::new(Series, "Losses by cause", "short", "node",
                        &[("sum by (reason) (increase(trunkline_bgp_peer_losses_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{reason}}")],
                        "Losses of the session by kind of cause.").alert("TrunklinePeerFlapping").width(12),
                    Panel::new(Table, "Last NOTIFICATION", "s", "node", &[("trunkline_bgp_peer_last_notification_age_seconds{instance=~\"$node\",peer=~\"$peer\"}", "ago")],
                        "The last one each way with its code and subcode (RFC 4271 §4.5, RFC 4486), and how long ago it was.")
                        .alert("TrunklinePeerFlapping").width(12),
                    Panel::new(Table, "Last error", "s", "node", &[("trunkline_bgp_peer_last_error_age_seconds{instance=~\"$node\",peer=~\"$peer\"}", "ago")],
                        "How long ago the last error was; `trunkline peers` has it in words.").alert("TrunklinePeerDown").width(12),
                ],
            },
            Row {
                title: "Messages and prefixes",
                panels: vec![
                    Panel::new(Series, "Messages", "ops", "node",
                        &[("sum by (direction, kind) (rate(trunkline_bgp_peer_messages_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}} {{kind}}")],
                        "Messages a second by direction and kind.").alert("TrunklinePeerFlapping"),
                    Panel::new(Series, "Octets", "Bps", "node",
                        &[("sum by (direction) (rate(trunkline_bgp_peer_bytes_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}}")],
                        "Octets of messages a second by direction."),
                    Panel::new(Series, "Prefixes", "short", "node",
                        &[
                            ("sum by (family, kind) (trunkline_bgp_peer_prefixes{instance=~\"$node\",peer=~\"$peer\"})", "{{family}} {{kind}}"),
                            ("sum(trunkline_bgp_peer_max_prefixes{instance=~\"$node\",peer=~\"$peer\"})", "limit"),
                        ],
                        "Received, accepted, advertised and stale prefixes, and the limit of both families.").alert("TrunklinePrefixLimitNear"),
                    Panel::new(Series, "End-of-RIB pending", "short", "node",
                        &[("max by (family, direction) (trunkline_bgp_peer_end_of_rib_pending{instance=~\"$node\",peer=~\"$peer\"})", "{{family}} {{direction}}")],
                        "1 while the initial table of a session is not told to its end.").alert("TrunklineStalePathsNearExpiry"),
                ],
            },
            Row {
                title: "Graceful restart",
                panels: vec![
                    Panel::new(Series, "State", "short", "node",
                        &[("max by (family) (trunkline_bgp_peer_graceful_restart_state{instance=~\"$node\",peer=~\"$peer\"})", "{{family}}")],
                        "Whether paths would be kept over a loss of the session, or are being kept.").words(RESTART).alert("TrunklineStalePathsNearExpiry"),
                    Panel::new(Series, "Time left for stale paths", "s", "node",
                        &[("min by (family) (trunkline_bgp_peer_stale_expiry_seconds{instance=~\"$node\",peer=~\"$peer\"})", "{{family}}")],
                        "Until stale paths are removed unless the peer tells them again; there while there are any.")
                        .bad(Bounds::Below(60.0)).alert("TrunklineStalePathsNearExpiry"),
                    Panel::new(Stat, "Restart Time", "s", "node", &[("max(trunkline_bgp_peer_restart_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "restart time")],
                        "How long the peer wants its paths to be kept (RFC 4724).").alert("TrunklineStalePathsNearExpiry"),
                ],
            },
            Row {
                title: "BFD",
                panels: vec![
                    Panel::new(Series, "State", "short", "node", &[("trunkline_bfd_session_state{instance=~\"$node\",peer=~\"$peer\"}", "{{peer}}")],
                        "The state of the BFD session that watches the path (RFC 5880).").words(BFD).bad(Bounds::Below(3.0)).alert("TrunklineBfdFlapping"),
                    Panel::new(Series, "Times it left Up", "short", "node",
                        &[
                            ("sum by (peer) (increase(trunkline_bfd_session_transitions_total{to=\"down\",instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{peer}}"),
                            ("sum by (peer) (increase(trunkline_bfd_session_detections_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{peer}}, nothing came"),
                        ],
                        "In each interval; those where nothing came for the detection time, and in the rest the peer said that it hears nothing.")
                        .alert("TrunklineBfdFlapping"),
                    Panel::new(Stat, "Interval", "s", "node", &[("max(trunkline_bfd_session_transmit_interval_seconds{instance=~\"$node\",peer=~\"$peer\"})", "interval")],
                        "Between packets of this side, as agreed on.").alert("TrunklineBfdFlapping"),
                    Panel::new(Stat, "Detection time", "s", "node", &[("max(trunkline_bfd_session_detection_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "detection")],
                        "The silence that takes the session down.").alert("TrunklineBfdFlapping"),
                    Panel::new(Series, "Packets", "pps", "node",
                        &[("sum by (direction) (rate(trunkline_bfd_session_packets_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}}")],
                        "BFD packets a second by direction; one way much fewer than the other is loss.").alert("TrunklineBfdFlapping"),
                ],
            },
        ],
    }
}
