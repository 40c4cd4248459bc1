//! What an operator sees of a peer. Plain values; durations are counted back from the `now` of the question.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::cause::{Cause, CauseKind};
use crate::bfd;
use crate::types::{Asn, Family, InterfaceName, PeerId, PeerKey};

/// The states of RFC 4271 §8.2.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Not trying: shut down, or held after an error.
    #[default]
    Idle,
    /// A TCP connection is being made.
    Connect,
    /// Waiting for the peer to connect, and for the next attempt of its own.
    Active,
    /// OPEN is sent, the peer's is awaited.
    OpenSent,
    /// Both OPENs are there, a KEEPALIVE is awaited.
    OpenConfirm,
    /// UPDATEs are exchanged.
    Established,
}

impl State {
    /// The name that the RFC gives it.
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

/// Everything that is to be said of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its index.
    pub peer: PeerId,
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address.
    pub interface: Option<InterfaceName>,
    /// The range that it came from, if it is not configured itself.
    pub range: Option<IpNet>,
    /// Configured AS number.
    pub remote_as: Asn,
    /// The AS number of this side.
    pub local_as: Asn,
    /// What is done with its paths beside policy, in words; nothing where all is usual.
    pub rules: Vec<String>,
    /// Administratively down.
    pub shutdown: bool,
    /// State of the session; of the more advanced connection while there are two.
    pub state: State,
    /// How long it has been in this state.
    pub state_for: Duration,
    /// The next own attempt to connect, if one is scheduled.
    pub next_attempt: Option<Duration>,
    /// What the Established session agreed on; none otherwise.
    pub session: Option<SessionStatus>,
    /// One row for each configured family.
    pub families: Vec<FamilyStatus>,
    /// Messages and octets since the peer was configured.
    pub traffic: Traffic,
    /// How often the session became Established.
    pub established_count: u64,
    /// How often it left Established.
    pub flaps: u64,
    /// The BFD session that watches the path, if one is configured.
    pub bfd: Option<BfdStatus>,
    /// Prefix limit over both families.
    pub max_prefixes: Option<u32>,
    /// How long there has been no Established session: since the last one was lost, or since the peer was configured.
    /// None while there is one.
    pub down_for: Option<Duration>,
    /// The interface towards the peer, if it has no carrier now.
    pub no_carrier: Option<InterfaceName>,
    /// What went wrong last, a session or an attempt. Once a session is Established, only the loss of the one before is kept.
    pub last_error: Option<Failure>,
    /// Why the session last left Established, and how long ago; failures to connect since then do not hide it.
    pub last_down: Option<Failure>,
    /// Why the last attempt at a session failed; none while the session is Established.
    pub last_attempt: Option<Failure>,
    /// How often the session left Established, by kind of cause; kinds that never occurred are left out.
    pub losses: Vec<(CauseKind, u64)>,
    /// The last NOTIFICATION sent; what TCP says afterwards does not hide it.
    pub notification_sent: Option<DatedNotification>,
    /// The last NOTIFICATION received, likewise.
    pub notification_received: Option<DatedNotification>,
}

impl PeerStatus {
    /// What the peer is known by.
    pub fn key(&self) -> PeerKey {
        PeerKey::new(self.address, self.interface)
    }
}

/// The BFD session of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdStatus {
    /// How it stands.
    pub status: bfd::Status,
    /// How long it has been in this state.
    pub state_for: Duration,
    /// Packets that were its own. Filled in by the shell, which counts them.
    pub packets_received: u64,
    /// Packets sent, likewise.
    pub packets_sent: u64,
}

/// Everything that is to be said of one range of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeStatus {
    /// Where its peers come from.
    pub prefix: IpNet,
    /// Their AS number.
    pub remote_as: Asn,
    /// How many are there.
    pub peers: u32,
    /// How many may be.
    pub limit: u32,
    /// Connections refused because the limit was reached, since the range was configured.
    pub refused: u64,
}

/// What an Established session agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// This side of the connection.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// The peer's BGP identifier.
    pub remote_router_id: Ipv4Addr,
    /// Hold Time agreed; zero if off.
    pub hold_time: Duration,
    /// Between KEEPALIVEs; zero if off.
    pub keepalive: Duration,
    /// Capabilities that this side sent, in words.
    pub capabilities_sent: Vec<String>,
    /// Capabilities that the peer sent, in words.
    pub capabilities_received: Vec<String>,
    /// The peer's Restart Time in seconds, if it has graceful restart.
    pub peer_restart_time: Option<u16>,
    /// Round-trip time of the connection, smoothed (RFC 6298's SRTT). Filled in by the shell, which has the socket.
    pub round_trip: Option<Duration>,
}

/// One family of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyStatus {
    /// The family.
    pub family: Family,
    /// Both sides have it, in the Established session.
    pub negotiated: bool,
    /// Paths received.
    pub received: usize,
    /// Of these, not refused by import policy or loop checks.
    pub accepted: usize,
    /// Paths advertised.
    pub advertised: usize,
    /// Of the received, kept from before the peer's restart, or not come again yet in a refresh (RFC 7313).
    pub stale: usize,
    /// Of the stale, the last to be used: the peer's restart takes long (RFC 9494).
    pub long_lived_stale: usize,
    /// Paths would be kept over a loss of the Established session (RFC 4724, RFC 9494), unless that is of a kind that ends them.
    pub restartable: bool,
    /// Until what is stale is removed, unless the peer tells it again; none while nothing is kept over a restart.
    pub stale_expires: Option<Duration>,
    /// End-of-RIB has come.
    pub end_of_rib_received: bool,
    /// End-of-RIB has gone out.
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
    /// Why.
    pub cause: Cause,
    /// Why, in words.
    pub text: String,
    /// How long ago.
    pub ago: Duration,
}

/// A NOTIFICATION, and how long ago it went or came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatedNotification {
    /// Error code (RFC 4271 §4.5).
    pub code: u8,
    /// Error subcode; 0 is unspecific.
    pub subcode: u8,
    /// In words, with what the other operator wrote (RFC 9003) and with the reason inside a Hard Reset (RFC 8538).
    pub text: String,
    /// How long ago.
    pub ago: Duration,
}
