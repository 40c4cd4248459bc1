//! The status of a peer for the operator. All fields are plain values; durations are relative to
//! the `now` of the query.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::cause::{Cause, CauseKind};
use crate::bfd;
use crate::types::{Asn, Family, InterfaceName, PeerId, PeerKey};

/// The states of RFC 4271 §8.2.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No attempts: shut down, or held after an error.
    #[default]
    Idle,
    /// A TCP connection is being opened.
    Connect,
    /// Waits for the peer to connect, and for the next attempt of this side.
    Active,
    /// OPEN is sent; the peer's OPEN is awaited.
    OpenSent,
    /// Both OPENs are exchanged; a KEEPALIVE is awaited.
    OpenConfirm,
    /// UPDATEs are exchanged.
    Established,
}

impl State {
    /// The RFC's name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            State::Idle => "Idle",
            State::Connect => "Connect",
            State::Active => "Active",
            State::OpenSent => "OpenSent",
            State::OpenConfirm => "OpenConfirm",
            State::Established => "Established",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The status of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's index.
    pub peer: PeerId,
    /// The peer's address.
    pub address: IpAddr,
    /// The interface of a link-local address.
    pub interface: Option<InterfaceName>,
    /// The range of a dynamic neighbour.
    pub range: Option<IpNet>,
    /// Configured AS number.
    pub remote_as: Asn,
    /// The local AS number.
    pub local_as: Asn,
    /// Rules for the peer's paths in addition to policy, as texts; empty with the default rules.
    pub rules: Vec<String>,
    /// Administratively down.
    pub shutdown: bool,
    /// State of the session; of the more advanced connection during a collision.
    pub state: State,
    /// Time in this state.
    pub state_for: Duration,
    /// Time until the next attempt to connect, if one is scheduled.
    pub next_attempt: Option<Duration>,
    /// The parameters of the Established session; none otherwise.
    pub session: Option<SessionStatus>,
    /// One row for each configured family.
    pub families: Vec<FamilyStatus>,
    /// Messages and octets since the peer was configured.
    pub traffic: Traffic,
    /// The number of times the session became Established.
    pub established_count: u64,
    /// The number of times the session left Established.
    pub flaps: u64,
    /// The BFD session, if one is configured.
    pub bfd: Option<BfdStatus>,
    /// Prefix limit over both families.
    pub max_prefixes: Option<u32>,
    /// Time without an Established session: since the last one was lost, or since the peer was
    /// configured. None while a session is Established.
    pub down_for: Option<Duration>,
    /// The interface towards the peer, if it has no carrier now.
    pub no_carrier: Option<InterfaceName>,
    /// The last failure of a session or an attempt. Once a session is Established, only the loss of
    /// the previous session stays here.
    pub last_error: Option<Failure>,
    /// The last loss of an Established session; later failed attempts do not replace it.
    pub last_down: Option<Failure>,
    /// The last failed attempt; none while the session is Established.
    pub last_attempt: Option<Failure>,
    /// Losses of Established sessions by kind of cause; kinds that never occurred are left out.
    pub losses: Vec<(CauseKind, u64)>,
    /// The last NOTIFICATION sent; a later TCP error does not replace it.
    pub notification_sent: Option<DatedNotification>,
    /// The last NOTIFICATION received; a later TCP error does not replace it.
    pub notification_received: Option<DatedNotification>,
}

impl PeerStatus {
    /// The peer's key: its address, with the interface of a link-local one.
    pub fn key(&self) -> PeerKey {
        PeerKey::new(self.address, self.interface)
    }
}

/// The BFD session of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdStatus {
    /// The state and parameters of the BFD session.
    pub status: bfd::Status,
    /// Time in this state.
    pub state_for: Duration,
    /// Packets accepted for this session. The shell counts them.
    pub packets_received: u64,
    /// Packets sent. The shell counts them.
    pub packets_sent: u64,
}

/// The status of one range of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeStatus {
    /// The prefix of the peers' addresses.
    pub prefix: IpNet,
    /// Their AS number.
    pub remote_as: Asn,
    /// The number of peers.
    pub peers: u32,
    /// The highest number of peers.
    pub limit: u32,
    /// Connections rejected because of the limit, since the range was configured.
    pub refused: u64,
}

/// The parameters of an Established session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The remote address of the connection.
    pub remote: SocketAddr,
    /// The peer's BGP identifier.
    pub remote_router_id: Ipv4Addr,
    /// Negotiated hold time; zero if off.
    pub hold_time: Duration,
    /// Time between KEEPALIVEs; zero if off.
    pub keepalive: Duration,
    /// Capabilities that this side advertised, as texts.
    pub capabilities_sent: Vec<String>,
    /// Capabilities that the peer advertised, as texts.
    pub capabilities_received: Vec<String>,
    /// The peer's Restart Time in seconds, if it has graceful restart.
    pub peer_restart_time: Option<u16>,
    /// Smoothed round-trip time of the connection (RFC 6298's SRTT). The shell reads it from the
    /// socket.
    pub round_trip: Option<Duration>,
}

/// One family of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyStatus {
    /// The family.
    pub family: Family,
    /// Negotiated in the Established session.
    pub negotiated: bool,
    /// Paths received.
    pub received: usize,
    /// Received paths that import policy and loop checks accept.
    pub accepted: usize,
    /// Paths advertised.
    pub advertised: usize,
    /// Received paths from before the peer's restart, or not yet received again in a refresh (RFC
    /// 7313).
    pub stale: usize,
    /// Stale paths that are long-lived stale (RFC 9494).
    pub long_lived_stale: usize,
    /// Paths would be retained if the Established session were lost (RFC 4724, RFC 9494), unless
    /// the cause excludes it.
    pub restartable: bool,
    /// Time until stale paths are removed, unless the peer advertises them again; none while no
    /// path is retained over a restart.
    pub stale_expires: Option<Duration>,
    /// End-of-RIB was received.
    pub end_of_rib_received: bool,
    /// End-of-RIB was sent.
    pub end_of_rib_sent: bool,
}

/// Counts of messages by kind, and octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the peer.
    pub received: MessageCounts,
    /// To the peer.
    pub sent: MessageCounts,
}

/// Counts of messages by kind, and octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
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
    /// Octets, headers included.
    pub octets: u64,
}

/// The loss of a session, or a failed attempt at one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub cause: Cause,
    /// The reason as text.
    pub text: String,
    /// Time since the failure.
    pub ago: Duration,
}

/// A NOTIFICATION that was sent or received, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatedNotification {
    /// Error code (RFC 4271 §4.5).
    pub code: u8,
    /// Error subcode; 0 is unspecific.
    pub subcode: u8,
    /// The text: with the communication of the other operator (RFC 9003), and with the reason
    /// inside a Hard Reset (RFC 8538).
    pub text: String,
    /// Time since it was sent or received.
    pub ago: Duration,
}
