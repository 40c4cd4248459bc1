//! One peer of one node.

use super::View::{Series, Stat, Table};
use super::{Bounds, Dashboard, Panel, Row, SESSION, Variable, YES_NO};

const RESTART: &[(i64, &str)] =
    &[(0, "nothing retained"), (1, "ready"), (2, "stale"), (3, "long-lived stale")];
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
                        "The session's state (RFC 4271); the lowest of several peers.").words(SESSION).bad(Bounds::Below(6.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Time in state", "s", "node", &[("min(trunkline_bgp_peer_state_seconds{instance=~\"$node\",peer=~\"$peer\"})", "for")],
                        "The time since the last change of the state.").alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Time without a session", "s", "node", &[("max(trunkline_bgp_peer_down_seconds{instance=~\"$node\",peer=~\"$peer\"})", "no session for")],
                        "The time without an Established session; 0 while there is one.").bad(Bounds::Above(1.0)).alert("TrunklinePeerDown"),
                    Panel::new(Stat, "Losses", "short", "node", &[("sum(trunkline_bgp_peer_flaps_total{instance=~\"$node\",peer=~\"$peer\"})", "losses")],
                        "Number of times that the session left Established since the peer was configured.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Hold Time", "s", "node", &[("min(trunkline_bgp_peer_hold_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "hold time")],
                        "The negotiated Hold Time; 0 is off.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Keepalive", "s", "node", &[("min(trunkline_bgp_peer_keepalive_seconds{instance=~\"$node\",peer=~\"$peer\"})", "keepalive")],
                        "The interval of this side's KEEPALIVEs; 0 is off.").alert("TrunklinePeerFlapping"),
                    Panel::new(Stat, "Shut down", "short", "node", &[("max(trunkline_bgp_peer_shutdown{instance=~\"$node\",peer=~\"$peer\"})", "shut down")],
                        "yes: an operator shut the session down.").words(YES_NO).alert("TrunklinePeerDown"),
                    Panel::new(Series, "Round-trip time", "s", "node", &[("trunkline_bgp_peer_round_trip_seconds{instance=~\"$node\",peer=~\"$peer\"}", "{{peer}}")],
                        "The smoothed round-trip time of the session's TCP connection (RFC 6298). A rise without a fault means a longer path or a busy router.")
                        .alert("TrunklinePeerFlapping").width(24),
                    Panel::new(Table, "Cause", "short", "node", &[("trunkline_bgp_peer_down_reason{instance=~\"$node\",peer=~\"$peer\"}", "cause")],
                        "The kind of cause of a missing session; docs/alerts.md has the remedies.").alert("TrunklinePeerDown").width(12),
                    Panel::new(Series, "Losses by cause", "short", "node",
                        &[("sum by (reason) (increase(trunkline_bgp_peer_losses_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{reason}}")],
                        "Losses of the session, by kind of cause.").alert("TrunklinePeerFlapping").width(12),
                    Panel::new(Table, "Last NOTIFICATION", "s", "node", &[("trunkline_bgp_peer_last_notification_age_seconds{instance=~\"$node\",peer=~\"$peer\"}", "ago")],
                        "The last NOTIFICATION in each direction with code and subcode (RFC 4271 §4.5, RFC 4486), and its age.")
                        .alert("TrunklinePeerFlapping").width(12),
                    Panel::new(Table, "Last error", "s", "node", &[("trunkline_bgp_peer_last_error_age_seconds{instance=~\"$node\",peer=~\"$peer\"}", "ago")],
                        "The age of the last error; `trunkline peers` has its text.").alert("TrunklinePeerDown").width(12),
                ],
            },
            Row {
                title: "Messages and prefixes",
                panels: vec![
                    Panel::new(Series, "Messages", "ops", "node",
                        &[("sum by (direction, kind) (rate(trunkline_bgp_peer_messages_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}} {{kind}}")],
                        "Messages per second, by direction and kind.").alert("TrunklinePeerFlapping"),
                    Panel::new(Series, "Octets", "Bps", "node",
                        &[("sum by (direction) (rate(trunkline_bgp_peer_bytes_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}}")],
                        "Octets of messages per second, by direction."),
                    Panel::new(Series, "Prefixes", "short", "node",
                        &[
                            ("sum by (family, kind) (trunkline_bgp_peer_prefixes{instance=~\"$node\",peer=~\"$peer\"})", "{{family}} {{kind}}"),
                            ("sum(trunkline_bgp_peer_max_prefixes{instance=~\"$node\",peer=~\"$peer\"})", "limit"),
                        ],
                        "Received, accepted, advertised and stale prefixes, and the limit of both families.").alert("TrunklinePrefixLimitNear"),
                    Panel::new(Series, "End-of-RIB pending", "short", "node",
                        &[("max by (family, direction) (trunkline_bgp_peer_end_of_rib_pending{instance=~\"$node\",peer=~\"$peer\"})", "{{family}} {{direction}}")],
                        "1 until the initial table of a session is complete.").alert("TrunklineStalePathsNearExpiry"),
                ],
            },
            Row {
                title: "Graceful restart",
                panels: vec![
                    Panel::new(Series, "State", "short", "node",
                        &[("max by (family) (trunkline_bgp_peer_graceful_restart_state{instance=~\"$node\",peer=~\"$peer\"})", "{{family}}")],
                        "Retention of paths after a loss of the session: off, ready, or active.").words(RESTART).alert("TrunklineStalePathsNearExpiry"),
                    Panel::new(Series, "Time left for stale paths", "s", "node",
                        &[("min by (family) (trunkline_bgp_peer_stale_expiry_seconds{instance=~\"$node\",peer=~\"$peer\"})", "{{family}}")],
                        "The time until stale paths are removed if the peer does not advertise them again; exists only with stale paths.")
                        .bad(Bounds::Below(60.0)).alert("TrunklineStalePathsNearExpiry"),
                    Panel::new(Stat, "Restart Time", "s", "node", &[("max(trunkline_bgp_peer_restart_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "restart time")],
                        "The time for which the peer requests retention of its paths (RFC 4724).").alert("TrunklineStalePathsNearExpiry"),
                ],
            },
            Row {
                title: "BFD",
                panels: vec![
                    Panel::new(Series, "State", "short", "node", &[("trunkline_bfd_session_state{instance=~\"$node\",peer=~\"$peer\"}", "{{peer}}")],
                        "The state of the BFD session that watches the path (RFC 5880).").words(BFD).bad(Bounds::Below(3.0)).alert("TrunklineBfdFlapping"),
                    Panel::new(Series, "Losses of Up", "short", "node",
                        &[
                            ("sum by (peer) (increase(trunkline_bfd_session_transitions_total{to=\"down\",instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{peer}}"),
                            ("sum by (peer) (increase(trunkline_bfd_session_detections_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{peer}}, detection time expired"),
                        ],
                        "Losses of the state Up, per interval. In losses without an expired detection time the peer signalled that it receives nothing.")
                        .alert("TrunklineBfdFlapping"),
                    Panel::new(Stat, "Interval", "s", "node", &[("max(trunkline_bfd_session_transmit_interval_seconds{instance=~\"$node\",peer=~\"$peer\"})", "interval")],
                        "The negotiated interval of this side's packets.").alert("TrunklineBfdFlapping"),
                    Panel::new(Stat, "Detection time", "s", "node", &[("max(trunkline_bfd_session_detection_time_seconds{instance=~\"$node\",peer=~\"$peer\"})", "detection")],
                        "The silence after which the session goes down.").alert("TrunklineBfdFlapping"),
                    Panel::new(Series, "Packets", "pps", "node",
                        &[("sum by (direction) (rate(trunkline_bfd_session_packets_total{instance=~\"$node\",peer=~\"$peer\"}[$__rate_interval]))", "{{direction}}")],
                        "BFD packets per second, by direction. A large difference between the directions means loss.").alert("TrunklineBfdFlapping"),
                ],
            },
        ],
    }
}
