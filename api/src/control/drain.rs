//! A node that leaves the fabric.

use serde::{Deserialize, Serialize};

/// How far a node has left the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// How far.
    pub phase: DrainPhase,
    /// In this phase for.
    pub phase_seconds: u64,
    /// How much longer the fabric is given to move away, while that is waited for.
    pub settle_seconds: Option<u64>,
    /// Who drained it; none while it is not.
    #[serde(default)]
    pub cause: Option<DrainCause>,
    /// The node's cordon in Kubernetes; none where it has none, or where the agent does not follow it.
    #[serde(default)]
    pub cordon: Option<CordonStatus>,
    /// What the peers' operators are told with the end of the sessions (RFC 9003).
    pub message: String,
    /// Prefixes that this node had to tell when the wait was over.
    pub prefixes: u64,
    /// Of these, those of which a peer told another way by then: what nodes of other AS numbers have too. A way through this node's own
    /// AS may lead straight back to it, and does not count; what is on this node alone has no other.
    pub alternatives: u64,
    /// What did not go as it should, in words.
    pub faults: Vec<String>,
}

/// Who drained a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainCause {
    /// An operator, by `trunkline drain`. Nobody else brings it back.
    #[default]
    Operator,
    /// It was cordoned in Kubernetes, and its pods have gone. It comes back when the cordon goes.
    Cordon,
}

/// A node's cordon in Kubernetes, as far as it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonStatus {
    /// Pods that have to go before the node leaves the fabric; those of DaemonSets and static ones may stay.
    pub pods_left: u64,
    /// An operator has said `trunkline undrain` since: this cordon is not followed.
    pub overruled: bool,
}

/// How far a node has left the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPhase {
    /// Not at all.
    #[default]
    Undrained,
    /// The peers are told that it will go (RFC 8326), and have time to move away.
    Announcing,
    /// What it told is taken back.
    Withdrawing,
    /// It has no sessions, and no pod can be attached.
    Drained,
}

impl DrainPhase {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            DrainPhase::Undrained => "undrained",
            DrainPhase::Announcing => "announcing",
            DrainPhase::Withdrawing => "withdrawing",
            DrainPhase::Drained => "drained",
        }
    }

    /// Whether it stays so until an operator says otherwise.
    pub fn is_settled(self) -> bool {
        matches!(self, DrainPhase::Undrained | DrainPhase::Drained)
    }
}
