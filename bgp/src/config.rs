//! What an operator can say of the speaker and of a peer.
//!
//! These are plain values: the engine compares an old [`PeerConfig`] with a new one to find out whether the
//! protocol forces a reset ([`PeerConfig::requires_reset`]), and applies the rest to the live session.

mod paths;
mod range;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;
use std::time::Duration;

use crate::bfd::{BfdConfig, Target};
pub use paths::{LocalAs, NextHopRule, PathRules, RemovePrivateAs};

use crate::policy::Policy;
use crate::types::{Asn, FamilySet, InterfaceName, PeerKey};

pub use range::PeerRange;

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
    /// This speaker's mark in CLUSTER_LIST (RFC 4456 §7): the same on the reflectors of one cluster. The router id if none.
    pub cluster_id: Option<Ipv4Addr>,
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

/// ADD-PATH (RFC 7911) with a peer, in all families of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddPath {
    /// Several paths of a prefix are taken from the peer.
    pub receive: bool,
    /// The peer is told several paths of a prefix, so many at most: the best of those that it may have. None: one.
    pub send: Option<NonZeroU8>,
}

/// What is said of one peer. Its key is the address, and the interface where that is link-local.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerConfig {
    /// The peer's address. A link-local one needs `interface`.
    pub address: IpAddr,
    /// The interface of a link-local address (its name); none otherwise.
    pub interface: Option<InterfaceName>,
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
    /// Messages of more than 4,096 octets are offered (RFC 8654).
    pub extended_messages: bool,
    /// Several paths of one prefix (RFC 7911), if the peer wants the same.
    pub add_path: AddPath,
    /// Graceful restart: the Restart Time offered, in seconds (12 bits, at most 4095). None: not offered.
    pub graceful_restart: Option<u16>,
    /// Long-lived graceful restart (RFC 9494), by [`Family::index`](crate::types::Family::index): how long the peer is asked to
    /// keep this side's paths after the Restart Time, as the last it uses, in seconds (24 bits); the peer's paths are kept for as
    /// long as it asks. None: neither.
    pub long_lived: [Option<u32>; 2],
    /// Whether graceful restart also covers the end of a session by a NOTIFICATION or by the Hold Timer (RFC 8538, the
    /// N bit), if the peer offers the same. Off unless said: without BFD, a peer that died would be believed for its
    /// Restart Time longer.
    pub restart_notification: bool,
    /// The most prefixes taken from the peer over both families; one more is a Cease (RFC 4486 subcode 1).
    pub max_prefixes: Option<u32>,
    /// What of the peer's paths is used. Paths that are refused are kept, so that an edit needs no refresh.
    pub import: Policy,
    /// What is told to the peer.
    pub export: Policy,
    /// What is done with its paths beside policy.
    pub paths: PathRules,
    /// IPv4 next hop that this side announces; the session's local address where it is IPv4, if none.
    pub next_hop_v4: Option<Ipv4Addr>,
    /// IPv6 next hop that this side announces; the session's local address where it is IPv6, if none.
    pub next_hop_v6: Option<Ipv6Addr>,
    /// The path to the peer is watched by BFD (RFC 5882): its failure ends the session. BGP does not wait for it to come up.
    pub bfd: Option<BfdConfig>,
    /// Administratively down: configured, shown, not connected.
    pub shutdown: bool,
    /// What the peer's operator is told when `shutdown` is set (RFC 9003): at most 255 octets, the rest is cut off; may be empty.
    pub shutdown_communication: String,
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
            extended_messages: true,
            add_path: AddPath::default(),
            graceful_restart: Some(120),
            long_lived: [None; 2],
            restart_notification: false,
            max_prefixes: None,
            import: Policy::accept_all(),
            export: Policy::accept_all(),
            paths: PathRules::default(),
            next_hop_v4: None,
            next_hop_v6: None,
            bfd: None,
            shutdown: false,
            shutdown_communication: String::new(),
        }
    }

    /// What the peer is known by.
    pub fn key(&self) -> PeerKey {
        PeerKey::new(self.address, self.interface)
    }

    /// The BFD session that watches the path to the peer, if there should be one.
    pub fn bfd_target(&self) -> Option<Target> {
        let config = self.bfd.clone().filter(|_| !self.shutdown)?;
        let (remote, local) = (self.address, self.local_address);
        Some(Target { remote, local, interface: self.interface, config })
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
            extended_messages,
            add_path, // how many are sent is this side's affair
            graceful_restart,
            long_lived,
            restart_notification,
            max_prefixes: _, // checked against the count at once
            import: _,       // run again over what was received
            export: _,       // run again over what is advertised
            paths,           // likewise, but for what OPEN says
            next_hop_v4: _,  // paths are sent again
            next_hop_v6: _,
            bfd: _, // a session beside this one
            shutdown,
            shutdown_communication: _, // only said at the end
        } = self;
        *address != new.address
            || *interface != new.interface
            || *port != new.port
            || *remote_as != new.remote_as
            || *local_address != new.local_address
            || *password != new.password
            || *hold_time != new.hold_time
            || *families != new.families
            || *extended_messages != new.extended_messages
            || add_path.receive != new.add_path.receive
            || add_path.send.is_some() != new.add_path.send.is_some()
            || *graceful_restart != new.graceful_restart
            || *long_lived != new.long_lived
            || *restart_notification != new.restart_notification
            || paths.requires_reset(&new.paths)
            || *shutdown != new.shutdown
    }
}

/// Why the speaker refuses a configuration. What ran before keeps running.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field of the speaker has a value that BGP has no place for.
    #[error("{field}: {fault}")]
    Speaker {
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        fault: String,
    },
    /// A field of a peer has a value that BGP has no place for.
    #[error("peer {peer}: {field}: {fault}")]
    Peer {
        /// The peer's address.
        peer: PeerKey,
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        fault: String,
    },
    /// There is this peer already.
    #[error("peer {0} is configured already: update it, or remove it first")]
    DuplicatePeer(PeerKey),
    /// A field of a range of peers has a value that the speaker has no place for.
    #[error("peers of {prefix}: {field}: {fault}")]
    Range {
        /// The range's prefix.
        prefix: ipnet::IpNet,
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        fault: String,
    },
    /// Two ranges have the same prefix.
    #[error("peers of {0} are configured twice: leave one of the two")]
    DuplicateRange(ipnet::IpNet),
    /// There is no such peer.
    #[error("no peer {0} is configured")]
    UnknownPeer(PeerKey),
}

impl SpeakerConfig {
    /// A speaker that was not restarted: 60 s for the deferral, eight paths a prefix, jitter of its own.
    pub fn new(local_as: Asn, router_id: Ipv4Addr) -> Self {
        SpeakerConfig {
            local_as,
            router_id,
            restarting: false,
            selection_deferral: Duration::from_secs(60),
            cluster_id: None,
            max_paths: 8,
            seed: u64::from(local_as.0) << 32 | u64::from(u32::from(router_id)),
        }
    }

    /// Whether every field has a value that BGP has a place for.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fault = |field, fault: &str| Err(ConfigError::Speaker { field, fault: fault.to_owned() });
        if self.local_as.0 == 0 {
            return fault("local_as", "0 is reserved (RFC 7607): give 1 to 4294967295");
        }
        if self.router_id.is_unspecified() {
            return fault(
                "router_id",
                "0.0.0.0 is not a BGP identifier (RFC 6286): give one of the node's IPv4 addresses",
            );
        }
        if self.cluster_id.is_some_and(|cluster| cluster.is_unspecified()) {
            return fault("cluster_id", "0.0.0.0 names no cluster: leave it out for the router id");
        }
        if self.max_paths == 0 {
            return fault("max_paths", "0 paths would use no route: give at least 1");
        }
        Ok(())
    }
}

impl PeerConfig {
    /// Whether the peer makes sense to a speaker of this AS; [`Self::validate`] looks at the rest.
    pub fn validate_for(&self, local_as: Asn) -> Result<(), ConfigError> {
        match self.paths.fault(local_as, self.remote_as) {
            None => Ok(()),
            Some((field, fault)) => Err(ConfigError::Peer { peer: self.key(), field, fault }),
        }
    }

    /// Whether every field has a value that BGP has a place for.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let peer = self.address;
        let fault = |field, fault: String| Err(ConfigError::Peer { peer: self.key(), field, fault });
        if peer.is_unspecified() || peer.is_multicast() || matches!(peer, IpAddr::V4(v4) if v4.is_broadcast())
        {
            return fault("address", "not the address of one host: give a unicast address".to_owned());
        }
        let link_local = matches!(peer, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if link_local && self.interface.is_none() {
            return fault(
                "interface",
                "a link-local address means nothing without its interface: name it".to_owned(),
            );
        }
        if self.port == 0 {
            return fault("port", "0 is not a port: leave it at 179 or give the peer's".to_owned());
        }
        if self.remote_as.0 == 0 {
            return fault("remote_as", "0 is reserved (RFC 7607): give 1 to 4294967295".to_owned());
        }
        if self.local_address.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
            return fault(
                "local_address",
                "not of the peer's address family: give one of the same".to_owned(),
            );
        }
        let hold = self.hold_time;
        if hold.subsec_nanos() != 0 || matches!(hold.as_secs(), 1 | 2) || hold.as_secs() > u64::from(u16::MAX)
        {
            let text = "must be 0 (off) or 3 to 65535 whole seconds (RFC 4271 section 4.2)";
            return fault("hold_time", format!("{hold:?} {text}"));
        }
        if self.keepalive.is_some_and(|keepalive| keepalive < Duration::from_secs(1)) {
            return fault(
                "keepalive",
                "at most one a second (RFC 4271 section 4.4): give at least 1 s".to_owned(),
            );
        }
        if self.keepalive.is_some_and(|keepalive| !hold.is_zero() && keepalive >= hold) {
            return fault(
                "keepalive",
                format!("must be under the Hold Time of {hold:?}: a third of it is usual"),
            );
        }
        if self.connect_retry < Duration::from_secs(1) {
            return fault("connect_retry", "give at least 1 s".to_owned());
        }
        if self.ebgp_multihop == Some(0) {
            return fault("ebgp_multihop", "a packet with TTL 0 goes nowhere: give 1 to 255".to_owned());
        }
        if self.ttl_security == Some(0) {
            return fault(
                "ttl_security",
                "give the hops to the peer: 1 if directly connected, to 254".to_owned(),
            );
        }
        if self.ttl_security.is_some() && self.ebgp_multihop.is_some() {
            return fault("ttl_security", "always sends with TTL 255: leave ebgp_multihop out".to_owned());
        }
        if self.families.is_empty() {
            return fault(
                "families",
                "a session without any family carries nothing: name at least one".to_owned(),
            );
        }
        if self.graceful_restart.is_some_and(|seconds| seconds > 4095) {
            return fault(
                "graceful_restart",
                "the Restart Time is at most 4095 s (RFC 4724 section 3)".to_owned(),
            );
        }
        for time in self.long_lived.into_iter().flatten() {
            if matches!(time, 0 | 0x0100_0000..) {
                return fault(
                    "long_lived",
                    "the Long-lived Stale Time is 1 to 16777215 s (RFC 9494 section 3)".to_owned(),
                );
            }
            if self.graceful_restart.is_none() {
                return fault(
                    "long_lived",
                    "means nothing without graceful_restart (RFC 9494 section 4): give both".to_owned(),
                );
            }
        }
        if let Some(Err(error)) = self.bfd.as_ref().map(BfdConfig::validate) {
            return fault("bfd", error.to_string());
        }
        if self.max_prefixes == Some(0) {
            return fault("max_prefixes", "0 would end every session: leave it out for no limit".to_owned());
        }
        Ok(())
    }
}
