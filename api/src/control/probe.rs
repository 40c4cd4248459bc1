//! Probes: packets that the agent sends through each router to find faults that no BGP session
//! shows.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// The probes of this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStatus {
    /// The interval between two rounds, in milliseconds.
    pub interval_milliseconds: u64,
    /// Whether a router with a fault is removed from the pods' next hops.
    pub failover: bool,
    /// Other nodes that are probed through the fabric.
    pub targets: Vec<IpAddr>,
    /// Parts that are not probed, with the reason.
    pub notes: Vec<String>,
    /// The routers, once for each family.
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
    /// Whether it is removed from the pods' next hops.
    pub left_out: bool,
    /// The checks.
    pub checks: Vec<ProbeCheck>,
    /// The faults that the checks show.
    pub faults: Vec<ProbeFault>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeCheck {
    /// `peer`, `toPods`, `fromPods`, `size`, `target` or `targetSize`.
    pub name: String,
    /// The state of the check.
    pub state: ProbeState,
    /// Time in this state.
    pub seconds: u64,
    /// Probes sent.
    pub sent: u64,
    /// Lost probes.
    pub lost: u64,
}

/// The state of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeState {
    /// No probe has returned yet, and nothing shows that one should have.
    Unproven,
    /// Probes return.
    Good,
    /// Three probes in a row were lost.
    Failing,
}

/// The kind of a router's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeFaultKind {
    /// No probe returns.
    Silent,
    /// The router does not send this node the packets for its pods.
    ToPods,
    /// The router drops packets from pods.
    FromPods,
    /// The router drops large packets.
    Size,
    /// Other nodes do not answer through this router.
    Target,
    /// Other nodes do not answer large packets through this router.
    TargetSize,
}

impl ProbeFaultKind {
    /// All kinds.
    pub const ALL: [ProbeFaultKind; 6] = [
        ProbeFaultKind::Silent,
        ProbeFaultKind::ToPods,
        ProbeFaultKind::FromPods,
        ProbeFaultKind::Size,
        ProbeFaultKind::Target,
        ProbeFaultKind::TargetSize,
    ];

    /// The name in JSON.
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

/// A fault as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeFault {
    /// The kind.
    pub kind: ProbeFaultKind,
    /// The fault.
    pub text: String,
    /// The fix.
    pub fix: String,
}

/// A BGP identifier of two routers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DuplicateIdentifier {
    /// The identifier.
    pub identifier: Ipv4Addr,
    /// The peers with this identifier.
    pub peers: Vec<String>,
    /// The owners of the identifier, as text.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_name_of_a_fault_agree() {
        for kind in ProbeFaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
