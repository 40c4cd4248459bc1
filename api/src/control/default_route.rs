//! The next hops of the pods' default routes, and the peers that are not among them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The default route of a BGP network's table in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefaultRouteStatus {
    /// `ipv4-unicast` or `ipv6-unicast`.
    pub family: String,
    /// The table.
    pub table: u32,
    /// The reason for these next hops.
    pub basis: DefaultRouteBasis,
    /// The peers that are next hops. See [`super::Peer::name`]. Empty where `basis` is `imported`.
    pub peers: Vec<String>,
    /// The addresses of the next hops that the agent wants in the kernel; with `imported` the
    /// installed ones.
    pub wanted: Vec<IpAddr>,
    /// The addresses of the next hops in the kernel.
    pub installed: Vec<IpAddr>,
    /// Established peers that are not next hops.
    #[serde(default)]
    pub left_out: Vec<ExcludedPeer>,
}

/// An established peer that is no next hop of pods' packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedPeer {
    /// The peer. See [`super::Peer::name`].
    pub peer: String,
    /// The reason.
    pub cause: ExclusionCause,
    /// The reason as text, to follow the peer's name.
    pub reason: String,
}

/// The reason for the next hops of a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DefaultRouteBasis {
    /// The peers that advertise a default route.
    Advertised,
    /// No peer advertises a default route, and the next hops are the configured peers.
    Configured,
    /// The next hops from before the agent's restart.
    Retained,
    /// The best paths of the peers with `import`.
    Imported,
}

/// The reason why an established peer is no next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExclusionCause {
    /// It withdrew its default route.
    Withdrawn,
    /// It sent all its routes without a default route, and another peer advertises one.
    NotOffered,
    /// Neither its default route nor its End-of-RIB was received yet.
    Pending,
    /// Probes through it show a fault, and `probes.failover` is on.
    ProbeFault,
}

impl ExclusionCause {
    /// The reason as text, to follow the peer's name.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            ExclusionCause::Withdrawn => "withdrew its default route",
            ExclusionCause::NotOffered => "advertises no default route, and another peer does",
            ExclusionCause::Pending => "has not advertised its default route yet",
            ExclusionCause::ProbeFault => "has a fault that probes show",
        }
    }
}

/// Addresses of next hops as text.
#[must_use]
pub fn next_hops_in_words(hops: &[IpAddr]) -> String {
    match hops {
        [] => "no next hop".to_owned(),
        hops => hops.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_and_causes_keep_their_json_names() {
        use DefaultRouteBasis::{Advertised, Configured, Imported, Retained};
        let bases = serde_json::to_string(&[Advertised, Configured, Retained, Imported]).unwrap();
        assert_eq!(bases, r#"["advertised","configured","retained","imported"]"#);
        use ExclusionCause::{NotOffered, Pending, ProbeFault, Withdrawn};
        let causes = serde_json::to_string(&[Withdrawn, NotOffered, Pending, ProbeFault]).unwrap();
        assert_eq!(causes, r#"["withdrawn","notOffered","pending","probeFault"]"#);
    }
}
