//! The configuration of the speaker and of a peer.
//!
//! These are plain values. The engine compares an old [`PeerConfig`] with a new one to decide
//! whether the protocol requires a reset ([`PeerConfig::requires_reset`]). It applies other changes
//! to the live session.

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

/// The configuration of the whole speaker.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerConfig {
    /// The AS number of this speaker; not 0 (RFC 7607).
    pub local_as: Asn,
    /// The BGP identifier: any value but 0, unique within the AS (RFC 6286).
    pub router_id: Ipv4Addr,
    /// The process was restarted, and the forwarding state of the previous one is still installed.
    /// The first OPEN to each peer carries the Restart State and Forwarding State bits (RFC 4724
    /// §3).
    pub restarting: bool,
    /// The maximum time after a restart for which the first decision waits for End-of-RIB of the
    /// earlier peers (RFC 4724 §4.1, Selection_Deferral_Timer). It limits the wait if a peer does
    /// not come back.
    pub selection_deferral: Duration,
    /// The cluster of this speaker in CLUSTER_LIST (RFC 4456 §7), the same for all reflectors of
    /// one cluster. None: the router id.
    pub cluster_id: Option<Ipv4Addr>,
    /// The maximum number of paths for one prefix (ECMP); at least 1.
    pub max_paths: usize,
    /// Seed of the jitter. Tests use a fixed one.
    pub seed: u64,
}

/// A secret. Debug prints `***`, so it never appears in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// The longest key that the kernel accepts for TCP-MD5 (TCP_MD5SIG_MAXKEYLEN), in octets.
    pub const MAX_OCTETS: usize = 80;

    /// A key of 1 to 80 octets.
    ///
    /// # Errors
    /// If the key is empty or longer.
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self, PasswordError> {
        let key = key.into();
        match key.len() {
            0 => Err(PasswordError::Empty),
            length if length > Self::MAX_OCTETS => Err(PasswordError::TooLong { length }),
            _ => Ok(Password(key)),
        }
    }

    /// The key; only for the socket option.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The reason why a text cannot be a TCP-MD5 key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// The password is empty.
    #[error("the password is empty: leave the field out for a session without TCP-MD5")]
    Empty,
    /// The password is too long for the kernel.
    #[error("the password has {length} bytes, TCP-MD5 takes at most {max}", max = Password::MAX_OCTETS)]
    TooLong {
        /// Its length in octets.
        length: usize,
    },
}

/// ADD-PATH (RFC 7911) with a peer, in all families of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddPath {
    /// Accepts several paths of a prefix from the peer.
    pub receive: bool,
    /// The maximum number of paths of a prefix that are advertised to the peer: the best of those
    /// that it may receive. None: one path.
    pub send: Option<NonZeroU8>,
}

/// The configuration of one peer. Its key is the address, with the interface if the address is
/// link-local.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerConfig {
    /// The peer's address. A link-local one needs `interface`.
    pub address: IpAddr,
    /// The interface of a link-local address (its name); none otherwise.
    pub interface: Option<InterfaceName>,
    /// The peer's TCP port; 179 by default.
    pub port: u16,
    /// The peer's AS number; not 0.
    pub remote_as: Asn,
    /// The local address for connections in both directions; the kernel's choice if none.
    pub local_address: Option<IpAddr>,
    /// TCP-MD5 (RFC 2385).
    pub password: Option<Password>,
    /// Hold Time offered: 0 (off) or at least 3 s (RFC 4271 §4.2). 90 s by default.
    pub hold_time: Duration,
    /// The interval between KEEPALIVEs; by default a third of the negotiated Hold Time.
    pub keepalive: Option<Duration>,
    /// The interval between attempts to connect: RFC 4271's ConnectRetryTime, 120 s by default.
    pub connect_retry: Duration,
    /// Only accepts connections from the peer, never connects.
    pub passive: bool,
    /// TTL of sent packets (1 to 255), for an external peer that is not on a connected network. 1
    /// if none.
    pub ebgp_multihop: Option<u8>,
    /// GTSM (RFC 5082): the maximum number of hops to the peer (1 is directly connected). The
    /// kernel drops packets from farther away.
    pub ttl_security: Option<u8>,
    /// Families offered by capability.
    pub families: FamilySet,
    /// Offers messages of more than 4,096 octets (RFC 8654).
    pub extended_messages: bool,
    /// Several paths of one prefix (RFC 7911), if the peer offers the same.
    pub add_path: AddPath,
    /// Graceful restart: the Restart Time offered, in seconds (12 bits, at most 4095). None: not
    /// offered.
    pub graceful_restart: Option<u16>,
    /// Long-lived graceful restart (RFC 9494), by [`Family::index`](crate::types::Family::index).
    /// It is the offered Long-lived Stale Time in seconds (24 bits): after the Restart Time the
    /// peer retains this side's paths for this time, with the lowest preference. This side retains
    /// the peer's paths for the time that the peer offers. None: neither side retains paths.
    pub long_lived: [Option<u32>; 2],
    /// Graceful restart also after a NOTIFICATION or an expired Hold Timer (RFC 8538, the N bit),
    /// if the peer offers the same. Off by default: without BFD, the paths of a dead peer would
    /// stay in use until the end of the Restart Time.
    pub restart_notification: bool,
    /// The maximum number of prefixes from the peer over both families; one more causes a Cease
    /// (RFC 4486 subcode 1).
    pub max_prefixes: Option<u32>,
    /// Import policy. Rejected paths are kept, so an edit needs no refresh.
    pub import: Policy,
    /// Export policy.
    pub export: Policy,
    /// Protocol rules for the peer's paths, in addition to policy.
    pub paths: PathRules,
    /// IPv4 next hop that this side advertises; if none, the session's local address if it is IPv4.
    pub next_hop_v4: Option<Ipv4Addr>,
    /// IPv6 next hop that this side advertises; if none, the session's local address if it is IPv6.
    pub next_hop_v6: Option<Ipv6Addr>,
    /// BFD (RFC 5882) monitors the path to the peer: its failure ends the session. BGP does not
    /// wait for BFD to come up.
    pub bfd: Option<BfdConfig>,
    /// Administratively down: configured and listed, but not connected.
    pub shutdown: bool,
    /// The text for the peer's operator if `shutdown` is set (RFC 9003): at most 255 octets, the
    /// rest is cut off; may be empty.
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

    /// The key of the peer.
    pub fn key(&self) -> PeerKey {
        PeerKey::new(self.address, self.interface)
    }

    /// The BFD session for the path to the peer, if one is configured.
    pub fn bfd_target(&self) -> Option<Target> {
        let config = self.bfd.clone().filter(|_| !self.shutdown)?;
        let (remote, local) = (self.address, self.local_address);
        Some(Target { remote, local, interface: self.interface, config })
    }

    /// Whether the change from `self` to `new` needs a new session. This is the case if the change
    /// affects the negotiation in OPEN or the parameters of the TCP connection. All other changes
    /// are applied to the live session.
    pub fn requires_reset(&self, new: &PeerConfig) -> bool {
        // All fields are listed, and the pattern has no `..`, so a new field cannot be forgotten
        // here.
        let PeerConfig {
            address,
            interface,
            port,
            remote_as,
            local_address,
            password,
            hold_time,
            keepalive: _,     // a local interval, not negotiated
            connect_retry: _, // only between sessions
            passive: _,       // only between sessions
            ebgp_multihop: _, // a socket option, set on the live socket
            ttl_security: _,  // likewise
            families,
            extended_messages,
            add_path, // the number of sent paths is a local setting
            graceful_restart,
            long_lived,
            restart_notification,
            max_prefixes: _, // checked against the count at once
            import: _,       // runs again over received paths
            export: _,       // runs again over advertised paths
            paths,           // likewise, except for the content of OPEN
            next_hop_v4: _,  // paths are sent again
            next_hop_v6: _,
            bfd: _, // a separate session
            shutdown,
            shutdown_communication: _, // sent only at the end
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

/// The reason why the speaker rejects a configuration. The previous one stays in effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field of the speaker has an invalid value.
    #[error("{field}: {fault}")]
    Speaker {
        /// The field.
        field: &'static str,
        /// The fault and the fix.
        fault: String,
    },
    /// A field of a peer has an invalid value.
    #[error("peer {peer}: {field}: {fault}")]
    Peer {
        /// The peer's address.
        peer: PeerKey,
        /// The field.
        field: &'static str,
        /// The fault and the fix.
        fault: String,
    },
    /// The peer is already configured.
    #[error("peer {0} is configured already: update it, or remove it first")]
    DuplicatePeer(PeerKey),
    /// A field of a range of peers has an invalid value.
    #[error("peers of {prefix}: {field}: {fault}")]
    Range {
        /// The range's prefix.
        prefix: ipnet::IpNet,
        /// The field.
        field: &'static str,
        /// The fault and the fix.
        fault: String,
    },
    /// Two ranges have the same prefix.
    #[error("peers of {0} are configured twice: remove one of the two")]
    DuplicateRange(ipnet::IpNet),
    /// The peer is not configured.
    #[error("no peer {0} is configured")]
    UnknownPeer(PeerKey),
}

impl SpeakerConfig {
    /// A speaker that was not restarted: 60 s for the deferral, eight paths per prefix, a jitter
    /// seed from AS and router id.
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

    /// Checks every field.
    ///
    /// # Errors
    /// For the first field with an invalid value.
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
    /// Checks the peer for a speaker of this AS; [`Self::validate`] checks the other rules.
    ///
    /// # Errors
    /// If a rule does not fit the two AS numbers.
    pub fn validate_for(&self, local_as: Asn) -> Result<(), ConfigError> {
        match self.paths.fault(local_as, self.remote_as) {
            None => Ok(()),
            Some((field, fault)) => Err(ConfigError::Peer { peer: self.key(), field, fault }),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// For the first field with an invalid value.
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
                "a link-local address needs its interface: name the interface".to_owned(),
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
                "not of the peer's address family: give an address of that family".to_owned(),
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
                "at most one KEEPALIVE per second (RFC 4271 section 4.4): give at least 1 \
                 s"
                .to_owned(),
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
            return fault(
                "ebgp_multihop",
                "a packet with TTL 0 is not delivered: give 1 to \
                255"
                .to_owned(),
            );
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
                "a session without a family carries no routes: name at least one family".to_owned(),
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
                    "has no effect without graceful_restart (RFC 9494 section 4): give \
                     both"
                        .to_owned(),
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
