//! BGP peers as shown by `trunkline peers`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{BfdDiagnostic, BfdState, LossCount, PeerCause, PeerState};

/// A BGP peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The peer's address; `::` for an unnumbered peer that was not found yet.
    pub address: IpAddr,
    /// The interface of a link-local address, and of an unnumbered peer.
    pub interface: Option<String>,
    /// The range of a dynamic neighbour.
    #[serde(default)]
    pub range: Option<IpNet>,
    /// The configured AS number.
    pub remote_as: u32,
    /// The local AS number.
    pub local_as: u32,
    /// Rules for the peer's paths in addition to policy, as texts: `graceful shutdown`, `route
    /// reflector client`, …
    #[serde(default)]
    pub rules: Vec<String>,
    /// The state of its session.
    pub state: PeerState,
    /// Time in this state.
    pub state_seconds: u64,
    /// Time since the loss of the last Established session, or since the peer was configured. None
    /// while a session is Established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_seconds: Option<u64>,
    /// The reason why no session is Established, with advice. None while one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<PeerCause>,
    /// The reason why the last attempt failed. None while a session is Established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<PeerCause>,
    /// The reason why the session last left Established; it stays when the session comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<PeerCause>,
    /// The number of times the session left Established, by kind of cause.
    #[serde(default)]
    pub losses: Vec<LossCount>,
    /// Time until the next attempt of this side.
    pub next_attempt_seconds: Option<u64>,
    /// Administratively down.
    pub shutdown: bool,
    /// Pods may become ready without this peer (`allowNotEstablished`).
    pub optional: bool,
    /// The Established session.
    pub session: Option<PeerSession>,
    /// Each configured family.
    pub families: Vec<PeerFamily>,
    /// Messages received.
    pub received: Messages,
    /// Messages sent.
    pub sent: Messages,
    /// The number of times the session left Established.
    pub flaps: u64,
    /// The reason why the session last left Established; none if it never was.
    #[serde(default)]
    pub last_down: Option<Dated>,
    /// The BFD session, if one is configured.
    #[serde(default)]
    pub bfd: Option<BfdSession>,
    /// The prefix limit.
    pub max_prefixes: Option<u32>,
    /// The last failure of a session or an attempt. Once a session is Established, only the loss of
    /// the previous session stays here.
    pub last_error: Option<Dated>,
    /// The last NOTIFICATION sent.
    pub notification_sent: Option<DatedNotification>,
    /// The last NOTIFICATION received.
    pub notification_received: Option<DatedNotification>,
}

impl Peer {
    /// Whether a session is Established.
    pub fn is_established(&self) -> bool {
        self.state == PeerState::Established
    }

    /// The displayed name: the address, with the interface of a link-local one: `fe80::1%eth0`. For
    /// an unnumbered peer that was not found yet: the interface.
    pub fn name(&self) -> String {
        match &self.interface {
            Some(interface) if self.address.is_unspecified() => interface.clone(),
            Some(interface) => format!("{}%{interface}", self.address),
            None => self.address.to_string(),
        }
    }
}

/// The BFD session (RFC 5880) of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BfdSession {
    /// The state of this side.
    pub state: BfdState,
    /// Time in this state.
    pub state_seconds: u64,
    /// The state in the peer's last packet.
    pub remote_state: BfdState,
    /// The reason why this side last left Up, in RFC 5880's terms.
    pub diagnostic: BfdDiagnostic,
    /// The reason that the peer reports.
    pub remote_diagnostic: BfdDiagnostic,
    /// Over several hops (RFC 5883, UDP port 4784) instead of one (RFC 5881, UDP port 3784).
    pub multihop: bool,
    /// The interval between packets of this side, before jitter.
    pub transmit_milliseconds: u64,
    /// The detection time; none while no packet of the peer has arrived.
    pub detection_milliseconds: Option<u64>,
    /// The peer's C bit: its BFD outlives its control plane (RFC 5882 §4.3).
    pub control_plane_independent: bool,
    /// My Discriminator.
    pub local_discriminator: u32,
    /// The peer's discriminator; 0 while unknown.
    pub remote_discriminator: u32,
    /// The number of times the session became Up.
    pub ups: u64,
    /// The number of times the session left Up.
    pub downs: u64,
    /// The number of times it left Up because no packet arrived within the detection time.
    pub detections: u64,
    /// Packets accepted for this session.
    pub packets_received: u64,
    /// Packets sent.
    pub packets_sent: u64,
}

/// The parameters of an Established session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerSession {
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The remote address of the connection.
    pub remote: SocketAddr,
    /// The peer's BGP identifier.
    pub router_id: Ipv4Addr,
    /// Negotiated hold time; 0 is off.
    pub hold_seconds: u64,
    /// Time between KEEPALIVEs; 0 is off.
    pub keepalive_seconds: u64,
    /// Capabilities sent.
    pub capabilities_sent: Vec<String>,
    /// Capabilities received.
    pub capabilities_received: Vec<String>,
    /// The peer's Restart Time, if it has graceful restart.
    pub peer_restart_seconds: Option<u16>,
    /// Round-trip time of the TCP connection, smoothed by the kernel (RFC 6298); none before the
    /// first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_microseconds: Option<u64>,
}

/// One family of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerFamily {
    /// `ipv4-unicast` or `ipv6-unicast`.
    pub family: String,
    /// Negotiated in the session.
    pub negotiated: bool,
    /// Prefixes received.
    pub received: usize,
    /// Received prefixes that import policy and loop checks accept.
    pub accepted: usize,
    /// Prefixes advertised.
    pub advertised: usize,
    /// Received prefixes retained from before the peer's restart.
    pub stale: usize,
    /// Stale prefixes that are long-lived stale (RFC 9494).
    #[serde(default)]
    pub long_lived_stale: usize,
    /// Paths would be retained if the current session were lost (RFC 4724, RFC 9494).
    #[serde(default)]
    pub restartable: bool,
    /// Time until routes retained over the peer's restart are removed, unless the peer advertises them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_expires_seconds: Option<u64>,
    /// End-of-RIB was received.
    pub end_of_rib_received: bool,
    /// End-of-RIB was sent.
    pub end_of_rib_sent: bool,
}

/// Messages by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Messages {
    /// OPEN.
    pub open: u64,
    /// UPDATE.
    pub update: u64,
    /// NOTIFICATION.
    pub notification: u64,
    /// KEEPALIVE.
    pub keepalive: u64,
    /// ROUTE-REFRESH.
    pub route_refresh: u64,
    /// Octets of all messages.
    pub octets: u64,
}

/// A text with its age.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dated {
    /// The text.
    pub text: String,
    /// Its age.
    pub seconds_ago: u64,
}

/// A sent or received NOTIFICATION with its age.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatedNotification {
    /// Error code.
    pub code: u8,
    /// Error subcode.
    pub subcode: u8,
    /// Both as text, with the communication of the other operator (RFC 9003).
    pub text: String,
    /// Its age.
    pub seconds_ago: u64,
}
