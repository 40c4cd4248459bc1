//! What an operator can say of the speaker and of a peer.
//!
//! These are plain values: the engine compares an old [`PeerConfig`] with a new one to find out whether the
//! protocol forces a reset ([`PeerConfig::requires_reset`]), and applies the rest to the live session.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::policy::Policy;
use crate::types::{Asn, FamilySet};

/// What holds for the whole speaker.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerConfig {
    /// The AS number of this speaker; not 0 (RFC 7607).
    pub local_as: Asn,
    /// The BGP identifier: any value but 0, unique within the AS (RFC 6286).
    pub router_id: Ipv4Addr,
    /// The process was restarted and the forwarding state of the last one is still in place: the first OPEN to
    /// each peer carries the Restart State and Forwarding State bits (RFC 4724 §3).
    pub restarting: bool,
    /// How long after a restart the first decision waits for End-of-RIB of the peers that were there before
    /// (RFC 4724 §4.1, Selection_Deferral_Timer). Bounds the wait when a peer never comes back.
    pub selection_deferral: Duration,
    /// The most paths that one prefix is spread over (ECMP); at least 1.
    pub max_paths: usize,
    /// Seed of the jitter. Tests fix it.
    pub seed: u64,
}

/// A secret: shown as `***` by Debug, so that it never reaches a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// The longest key that the kernel's TCP-MD5 takes (TCP_MD5SIG_MAXKEYLEN), in octets.
    pub const MAX_OCTETS: usize = 80;

    /// A key of 1 to 80 octets.
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self, PasswordError> {
        let key = key.into();
        match key.len() {
            0 => Err(PasswordError::Empty),
            length if length > Self::MAX_OCTETS => Err(PasswordError::TooLong { length }),
            _ => Ok(Password(key)),
        }
    }

    /// The key, for the socket option alone.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Why a text cannot be a TCP-MD5 key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// No octets.
    #[error("the password is empty: leave the field out for a session without TCP-MD5")]
    Empty,
    /// Longer than the kernel takes.
    #[error("the password has {length} bytes, TCP-MD5 takes at most {max}", max = Password::MAX_OCTETS)]
    TooLong {
        /// Its length in octets.
        length: usize,
    },
}

/// What is said of one peer. The remote address is its key.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerConfig {
    /// The peer's address. A link-local one needs `interface`.
    pub address: IpAddr,
    /// The interface of a link-local address (its name); none otherwise.
    pub interface: Option<String>,
    /// The peer's TCP port; 179 unless said.
    pub port: u16,
    /// The peer's AS number; not 0.
    pub remote_as: Asn,
    /// The address that this side connects from and accepts on; the kernel's choice if none.
    pub local_address: Option<IpAddr>,
    /// TCP-MD5 (RFC 2385).
    pub password: Option<Password>,
    /// Hold Time offered: 0 (off) or at least 3 s (RFC 4271 §4.2). 90 s unless said.
    pub hold_time: Duration,
    /// Between KEEPALIVEs; a third of the negotiated Hold Time unless said.
    pub keepalive: Option<Duration>,
    /// Between attempts to connect: RFC 4271's ConnectRetryTime, 120 s unless said.
    pub connect_retry: Duration,
    /// Wait for the peer to connect, never connect.
    pub passive: bool,
    /// External peer that is not on a connected network: the TTL to send with (1 to 255). 1 if none.
    pub ebgp_multihop: Option<u8>,
    /// GTSM (RFC 5082): the most hops the peer may be away (1 is directly connected). Packets from farther
    /// away never reach the session.
    pub ttl_security: Option<u8>,
    /// Families offered by capability.
    pub families: FamilySet,
    /// Graceful restart: the Restart Time offered, in seconds (12 bits, at most 4095). None: not offered.
    pub graceful_restart: Option<u16>,
    /// The most prefixes taken from the peer over both families; one more is a Cease (RFC 4486 subcode 1).
    pub max_prefixes: Option<u32>,
    /// What of the peer's paths is used. Paths that are refused are kept, so that an edit needs no refresh.
    pub import: Policy,
    /// What is told to the peer.
    pub export: Policy,
    /// IPv4 next hop that this side announces; the session's local address where it is IPv4, if none.
    pub next_hop_v4: Option<Ipv4Addr>,
    /// IPv6 next hop that this side announces; the session's local address where it is IPv6, if none.
    pub next_hop_v6: Option<Ipv6Addr>,
    /// Administratively down: configured, shown, not connected.
    pub shutdown: bool,
}

impl PeerConfig {
    /// A peer with RFC 4271's timers, both families, graceful restart at 120 s, and no policy.
    pub fn new(address: IpAddr, remote_as: Asn) -> Self {
        PeerConfig {
            address,
            interface: None,
            port: 179,
            remote_as,
            local_address: None,
            password: None,
            hold_time: Duration::from_secs(90),
            keepalive: None,
            connect_retry: Duration::from_secs(120),
            passive: false,
            ebgp_multihop: None,
            ttl_security: None,
            families: FamilySet::ALL,
            graceful_restart: Some(120),
            max_prefixes: None,
            import: Policy::accept_all(),
            export: Policy::accept_all(),
            next_hop_v4: None,
            next_hop_v6: None,
            shutdown: false,
        }
    }

    /// Whether going from `self` to `new` needs a new session: what was agreed in OPEN, or what the TCP
    /// connection was made with, has changed. Everything else is applied to the live session.
    pub fn requires_reset(&self, new: &PeerConfig) -> bool {
        // Named one by one, and both sides bound without `..`, so that a new field cannot be forgotten here.
        let PeerConfig {
            address,
            interface,
            port,
            remote_as,
            local_address,
            password,
            hold_time,
            keepalive: _,     // our own pace, not negotiated
            connect_retry: _, // only between sessions
            passive: _,       // only between sessions
            ebgp_multihop: _, // a socket option, set on the live socket
            ttl_security: _,  // likewise
            families,
            graceful_restart,
            max_prefixes: _, // checked against the count at once
            import: _,       // run again over what was received
            export: _,       // run again over what is advertised
            next_hop_v4: _,  // paths are sent again
            next_hop_v6: _,
            shutdown,
        } = self;
        *address != new.address
            || *interface != new.interface
            || *port != new.port
            || *remote_as != new.remote_as
            || *local_address != new.local_address
            || *password != new.password
            || *hold_time != new.hold_time
            || *families != new.families
            || *graceful_restart != new.graceful_restart
            || *shutdown != new.shutdown
    }
}
