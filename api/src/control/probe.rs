//! Probes: packets that the agent sends by each router to find faults that no session shows.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// The probes of this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStatus {
    /// Between two rounds, in milliseconds.
    pub interval_milliseconds: u64,
    /// A router with a fault is left out of the pods' next hops.
    pub failover: bool,
    /// Other nodes that are probed through the fabric.
    pub targets: Vec<IpAddr>,
    /// What is not probed, and why.
    pub notes: Vec<String>,
    /// The routers, each family apart.
    pub routers: Vec<ProbedRouter>,
}

/// A router in one family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbedRouter {
    /// The peer. See [`super::Peer::name`].
    pub peer: String,
    /// `ipv4-unicast` or `ipv6-unicast`.
    pub family: String,
    /// The uplink.
    pub link: String,
    /// It is left out of the pods' next hops.
    pub left_out: bool,
    /// What is checked.
    pub checks: Vec<ProbeCheck>,
    /// What the checks show to be wrong.
    pub faults: Vec<ProbeFault>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeCheck {
    /// `peer`, `toPods`, `fromPods`, `size`, `target` or `targetSize`.
    pub name: String,
    /// How it stands.
    pub state: ProbeState,
    /// Since when, in seconds.
    pub seconds: u64,
    /// Probes sent.
    pub sent: u64,
    /// Of these, lost.
    pub lost: u64,
}

/// How a check stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeState {
    /// No probe came back yet, and nothing shows that one should have.
    Unproven,
    /// Probes come back.
    Good,
    /// Three in a row were lost.
    Failing,
}

/// What is wrong with a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeFaultKind {
    /// Nothing comes back.
    Silent,
    /// The router does not send this node what is for its pods.
    ToPods,
    /// The router drops what pods send.
    FromPods,
    /// The router drops large packets.
    Size,
    /// Other nodes do not answer by this router.
    Target,
    /// Other nodes do not answer large packets by this router.
    TargetSize,
}

impl ProbeFaultKind {
    /// All of them.
    pub const ALL: [ProbeFaultKind; 6] = [
        ProbeFaultKind::Silent,
        ProbeFaultKind::ToPods,
        ProbeFaultKind::FromPods,
        ProbeFaultKind::Size,
        ProbeFaultKind::Target,
        ProbeFaultKind::TargetSize,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            ProbeFaultKind::Silent => "silent",
            ProbeFaultKind::ToPods => "toPods",
            ProbeFaultKind::FromPods => "fromPods",
            ProbeFaultKind::Size => "size",
            ProbeFaultKind::Target => "target",
            ProbeFaultKind::TargetSize => "targetSize",
        }
    }
}

/// A fault in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeFault {
    /// What is wrong.
    pub kind: ProbeFaultKind,
    /// What is wrong, in words.
    pub text: String,
    /// What to do.
    pub fix: String,
}

/// A BGP identifier that two routers have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DuplicateIdentifier {
    /// The identifier.
    pub identifier: Ipv4Addr,
    /// The peers that have it.
    pub peers: Vec<String>,
    /// Whose it is, in words.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_written_as_it_is_named() {
        for kind in ProbeFaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
