//! Anycast addresses: addresses of this host that it advertises while a health check passes.
//!
//! ```text
//!  reconcile task ──AnycastPlan──►┌──────────────┐──ServicePrefixes──► reconcile task ──► speaker
//!  probes ──ProbeResult──────────►│ anycast task │──anycast.json─────► next run
//!  Adj-RIB-In ──other holders────►└──────────────┘──AnycastStatus────► views, metrics
//! ```
//!
//! - `check` decides the state of an address. It is a pure function.
//! - `probe` sends the requests of a health check.
//! - `cache` keeps what was advertised for the next run.
//! - `task` owns the states, the probes and the deadlines.
//!
//! The addresses themselves are in the plan's kernel part, and do not depend on the health: a
//! program can bind an address before it is healthy. An address leaves the kernel only after its
//! withdrawal.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::LargeCommunity;

pub mod cache;
pub mod check;
pub mod probe;
pub mod task;

use check::HolderSettings;
pub use task::{Anycast, AnycastChanges, AnycastDependencies, spawn};

/// The plan's part for anycast addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnycastPlan {
    /// Whether the objects are known. If not, the addresses of the last run stay as they are.
    pub known: bool,
    /// The objects by name: those that select this node, and refused ones.
    pub objects: BTreeMap<Arc<str>, PlannedAnycast>,
}

/// An AnycastAddress in the plan. Its peers, and the attributes that depend on the kind of peer, are
/// in the peers' export policies.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAnycast {
    /// The addresses; none if the object is refused.
    pub addresses: BTreeSet<IpAddr>,
    /// Attributes of the originated prefixes, without GRACEFUL_SHUTDOWN and without the mark.
    pub origination: Origination,
    /// Whether the last holder keeps its addresses advertised.
    pub keep_last: bool,
    /// The time between GRACEFUL_SHUTDOWN and withdrawal.
    pub graceful_shutdown: Duration,
    /// The health check; none if the addresses are always healthy.
    pub check: Option<PlannedCheck>,
    /// The reason for which the object is not in force here, for the operator.
    pub refused: Option<String>,
}

impl PlannedAnycast {
    /// An object that is not in force, for this reason.
    pub fn refused(reason: String) -> PlannedAnycast {
        PlannedAnycast {
            addresses: BTreeSet::new(),
            origination: Origination::default(),
            keep_last: false,
            graceful_shutdown: Duration::ZERO,
            check: None,
            refused: Some(reason),
        }
    }

    /// The limits for the state of the addresses.
    pub fn settings(&self) -> HolderSettings {
        let check = self.check.as_ref();
        HolderSettings {
            rise: check.map_or(1, |check| check.rise),
            fall: check.map_or(1, |check| check.fall),
            keep_last: self.keep_last,
            graceful_shutdown: self.graceful_shutdown,
        }
    }
}

/// A health check in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCheck {
    /// Its request.
    pub method: ProbeMethod,
    /// The address of the connection; none: each address of the object.
    pub connect_to: Option<IpAddr>,
    /// The time between the beginnings of two probes.
    pub interval: Duration,
    /// A probe without a result by then has failed.
    pub timeout: Duration,
    /// Passed probes in a row after which an address is healthy.
    pub rise: u32,
    /// Failed probes in a row after which an address is unhealthy.
    pub fall: u32,
}

impl PlannedCheck {
    /// Whether each address of the object has its own probes.
    pub fn has_target_per_address(&self) -> bool {
        self.connect_to.is_none() && !matches!(self.method, ProbeMethod::Command(_))
    }
}

/// The request of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeMethod {
    /// A GET over HTTP.
    Http(HttpProbe),
    /// A GET over HTTPS.
    Https(HttpProbe, Trust),
    /// A TCP connection.
    Tcp {
        /// The port.
        port: u16,
    },
    /// gRPC's health service (`grpc.health.v1`), without TLS.
    Grpc {
        /// The port.
        port: u16,
        /// The service in the request; empty: the server as a whole.
        service: String,
    },
    /// A program with its arguments; status 0 passes.
    Command(Vec<String>),
}

/// A GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// The port.
    pub port: u16,
    /// The path.
    pub path: String,
    /// The Host header, and for HTTPS the name in the certificate; empty: the address.
    pub host: String,
    /// The status codes that pass.
    pub expected: RangeInclusive<u16>,
}

/// The certificates that an HTTPS probe accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those that the host's CAs signed.
    Host,
    /// Those that a CA of this file signed (PEM).
    File(PathBuf),
    /// Any.
    Everything,
}

/// The mark of a healthy holder of an address with `keepLast`: a large community (RFC 8092). Paths
/// of holders in one rack have one AS_PATH, so only the mark distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderMark(u32);

impl HolderMark {
    /// AS 65535 is reserved (RFC 7300), so no other program uses its communities.
    const GLOBAL: u32 = 65_535;
    /// The number of GRACEFUL_SHUTDOWN (RFC 8326), which the mark is about.
    const LOCAL: u32 = 0xffff_0000;

    /// The mark of the node with this name.
    pub fn of_node(node: &str) -> HolderMark {
        // FNV-1a: every version of the agent must compute the same value.
        let hash = node
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, octet| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193));
        HolderMark(hash)
    }

    /// The mark as a community.
    pub fn community(self) -> LargeCommunity {
        LargeCommunity { global: Self::GLOBAL, local1: Self::LOCAL, local2: self.0 }
    }

    /// The mark in a community, if it is one.
    pub fn read(community: &LargeCommunity) -> Option<HolderMark> {
        let is_mark = (community.global, community.local1) == (Self::GLOBAL, Self::LOCAL);
        is_mark.then_some(HolderMark(community.local2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_node_is_the_same_in_every_version() {
        let mark = HolderMark::of_node("node-1");
        assert_eq!(HolderMark::read(&mark.community()), Some(mark));
        assert_eq!(HolderMark::of_node("").community().local2, 0x811c_9dc5);
        assert_eq!(HolderMark::of_node("a").community().local2, 0xe40c_292c);
        let other = LargeCommunity { global: 65_535, local1: 1, local2: 7 };
        assert_eq!(HolderMark::read(&other), None);
    }
}
