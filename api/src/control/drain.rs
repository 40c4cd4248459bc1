//! Drain of a node: its departure from the fabric.

use serde::{Deserialize, Serialize};

/// State of a node's drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The phase.
    pub phase: DrainPhase,
    /// Time in this phase.
    pub phase_seconds: u64,
    /// Remaining time for the fabric to move traffic away; none outside the announcing phase.
    pub settle_seconds: Option<u64>,
    /// The cause of the drain; none if the node is not drained.
    #[serde(default)]
    pub cause: Option<DrainCause>,
    /// The node's cordon in Kubernetes; none if the node is not cordoned, or the agent does not
    /// follow cordons.
    #[serde(default)]
    pub cordon: Option<CordonStatus>,
    /// The message to the peers' operators in the final NOTIFICATION (RFC 9003).
    pub message: String,
    /// Prefixes that this node still advertised when the wait was over.
    pub prefixes: u64,
    /// The number of these prefixes for which a peer advertises another path. Nodes with other AS
    /// numbers cause such paths. A path through this node's own AS does not count, since it may
    /// lead straight back to it. A prefix that exists only on this node has no other path.
    pub alternatives: u64,
    /// Errors during the drain, as text.
    pub faults: Vec<String>,
}

/// Cause of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainCause {
    /// An operator, by `trunkline drain`. Only an operator can undrain it.
    #[default]
    Operator,
    /// The node was cordoned in Kubernetes, and its pods are gone. It is undrained when the cordon
    /// is removed.
    Cordon,
}

/// A node's cordon in Kubernetes, if the agent follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonStatus {
    /// Pods that must leave before the node is drained; pods of DaemonSets and static pods may
    /// stay.
    pub pods_left: u64,
    /// Whether an operator has run `trunkline undrain` since: then this cordon is not followed.
    pub overruled: bool,
}

/// Phase of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPhase {
    /// Not drained.
    #[default]
    Undrained,
    /// Paths carry GRACEFUL_SHUTDOWN (RFC 8326), and the peers have time to move traffic away.
    Announcing,
    /// The advertised prefixes are being withdrawn.
    Withdrawing,
    /// No sessions are left, and no pod can be attached.
    Drained,
}

impl DrainPhase {
    /// Its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            DrainPhase::Undrained => "undrained",
            DrainPhase::Announcing => "announcing",
            DrainPhase::Withdrawing => "withdrawing",
            DrainPhase::Drained => "drained",
        }
    }

    /// Whether the phase lasts until an operator or a cordon changes it.
    pub fn is_settled(self) -> bool {
        matches!(self, DrainPhase::Undrained | DrainPhase::Drained)
    }
}
