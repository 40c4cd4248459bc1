//! BGP peers as `trunkline peers` shows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{BfdDiagnostic, BfdState, LossCount, PeerCause, PeerState};

/// A BGP peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its address; `::` of an unnumbered peer that was not found yet.
    pub address: IpAddr,
    /// The interface of a link-local address, and of an unnumbered peer.
    pub interface: Option<String>,
    /// The prefix that it came from, if it is a dynamic neighbour.
    #[serde(default)]
    pub range: Option<IpNet>,
    /// Its AS number as configured.
    pub remote_as: u32,
    /// This side's.
    pub local_as: u32,
    /// What is done with its paths beside policy, in words: `graceful shutdown`, `route reflector client`, …
    #[serde(default)]
    pub rules: Vec<String>,
    /// The state of its session.
    pub state: PeerState,
    /// In this state for.
    pub state_seconds: u64,
    /// Since the loss of the last Established session, or since the peer was configured. None while there is a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_seconds: Option<u64>,
    /// Why there is no Established session, with what to do. None while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<PeerCause>,
    /// Why the last attempt at a session failed. None while there is an Established session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<PeerCause>,
    /// Why the session last left Established; kept when it comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<PeerCause>,
    /// How often the session left Established, by kind of cause.
    #[serde(default)]
    pub losses: Vec<LossCount>,
    /// Until the next own attempt to connect.
    pub next_attempt_seconds: Option<u64>,
    /// Administratively down.
    pub shutdown: bool,
    /// Pods may be ready without it (`allowNotEstablished`).
    pub optional: bool,
    /// Established session.
    pub session: Option<PeerSession>,
    /// Each configured family.
    pub families: Vec<PeerFamily>,
    /// Messages received.
    pub received: Messages,
    /// Messages sent.
    pub sent: Messages,
    /// How often the session left Established.
    pub flaps: u64,
    /// Why it last left Established; none if it never was.
    #[serde(default)]
    pub last_down: Option<Dated>,
    /// The BFD session that watches the path, where one is configured.
    #[serde(default)]
    pub bfd: Option<BfdSession>,
    /// Most prefixes taken from it.
    pub max_prefixes: Option<u32>,
    /// What went wrong last, a session or an attempt. Once a session is Established, only the loss of the one before is kept.
    pub last_error: Option<Dated>,
    /// The last NOTIFICATION sent.
    pub notification_sent: Option<DatedNotification>,
    /// The last NOTIFICATION received.
    pub notification_received: Option<DatedNotification>,
}

impl Peer {
    /// Whether there is a session.
    pub fn is_established(&self) -> bool {
        self.state == PeerState::Established
    }

    /// What it is known by: the address, and of a link-local one the interface, `fe80::1%eth0`; of an unnumbered peer that was not
    /// found yet the interface alone.
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
    /// In this state for.
    pub state_seconds: u64,
    /// The state that the peer says.
    pub remote_state: BfdState,
    /// Why this side last left Up, in RFC 5880's words.
    pub diagnostic: BfdDiagnostic,
    /// What the peer gives as its reason.
    pub remote_diagnostic: BfdDiagnostic,
    /// Over several hops (RFC 5883, UDP port 4784) instead of one (RFC 5881, UDP port 3784).
    pub multihop: bool,
    /// Between packets of this side, before jitter.
    pub transmit_milliseconds: u64,
    /// The detection time; none while no packet of the peer has arrived.
    pub detection_milliseconds: Option<u64>,
    /// The peer's C bit: its BFD outlives its control plane (RFC 5882 §4.3).
    pub control_plane_independent: bool,
    /// My Discriminator.
    pub local_discriminator: u32,
    /// The peer's; 0 while unknown.
    pub remote_discriminator: u32,
    /// How often the session became Up.
    pub ups: u64,
    /// How often it left Up.
    pub downs: u64,
    /// Of these, because nothing came for the detection time.
    pub detections: u64,
    /// Packets that were its own.
    pub packets_received: u64,
    /// Packets sent.
    pub packets_sent: u64,
}

/// What an Established session agreed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerSession {
    /// This side of the connection.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// The peer's BGP identifier.
    pub router_id: Ipv4Addr,
    /// Hold Time; 0 is off.
    pub hold_seconds: u64,
    /// Between KEEPALIVEs; 0 is off.
    pub keepalive_seconds: u64,
    /// Capabilities sent.
    pub capabilities_sent: Vec<String>,
    /// Capabilities received.
    pub capabilities_received: Vec<String>,
    /// The peer's Restart Time, if it has graceful restart.
    pub peer_restart_seconds: Option<u16>,
    /// Round-trip time of the TCP connection, smoothed by the kernel (RFC 6298); none before it has measured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_microseconds: Option<u64>,
}

/// One family of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerFamily {
    /// `ipv4-unicast` or `ipv6-unicast`.
    pub family: String,
    /// Both sides have it.
    pub negotiated: bool,
    /// Prefixes received.
    pub received: usize,
    /// Of these, not refused.
    pub accepted: usize,
    /// Prefixes advertised.
    pub advertised: usize,
    /// Of the received, kept from before the peer's restart.
    pub stale: usize,
    /// Of the stale, the last to be used: the peer's restart takes long (RFC 9494).
    #[serde(default)]
    pub long_lived_stale: usize,
    /// Its paths would be kept over a loss of the session that stands (RFC 4724, RFC 9494).
    #[serde(default)]
    pub restartable: bool,
    /// Time until routes retained over the peer's restart are removed, unless the peer advertises them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_expires_seconds: Option<u64>,
    /// End-of-RIB has come.
    pub end_of_rib_received: bool,
    /// End-of-RIB has gone out.
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
    /// All together.
    pub octets: u64,
}

/// Something said, and how long ago.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dated {
    /// In words.
    pub text: String,
    /// How long ago.
    pub seconds_ago: u64,
}

/// A NOTIFICATION, and how long ago it went or came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatedNotification {
    /// Error code.
    pub code: u8,
    /// Error subcode.
    pub subcode: u8,
    /// Both in words, with what the other operator wrote.
    pub text: String,
    /// How long ago.
    pub seconds_ago: u64,
}
