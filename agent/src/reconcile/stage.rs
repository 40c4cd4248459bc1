//! How far this node has left the fabric, and what that makes of a plan.
//!
//! The plan says what the manifests want and stays as it is; a node that leaves tells its peers less of it. So the stage is
//! laid over the plan on its way to the speaker, and whoever comes back finds everything in place.

use trunkline_bgp::config::PeerConfig;

use crate::plan::BgpPlan;

/// How far this node has left the fabric. Each includes the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrainStage {
    /// It is there.
    #[default]
    Active,
    /// What it tells carries GRACEFUL_SHUTDOWN (RFC 8326), and what it is told is its last choice.
    Announcing,
    /// It tells nothing.
    Withdrawn,
    /// It has no sessions.
    Down {
        /// What the peers' operators were told (RFC 9003).
        message: String,
    },
}

impl DrainStage {
    /// Whether peers are told that this node leaves.
    pub fn announces(&self) -> bool {
        *self != DrainStage::Active
    }

    /// Whether nothing is told any more.
    pub fn withdraws(&self) -> bool {
        matches!(self, DrainStage::Withdrawn | DrainStage::Down { .. })
    }

    /// Makes of a plan what the speaker is to do of it. The prefixes are not touched: see [`DrainStage::withdraws`].
    pub(super) fn lay_over(&self, bgp: &mut BgpPlan) {
        let edit = |config: &mut PeerConfig| {
            config.paths.graceful_shutdown |= self.announces();
            if let DrainStage::Down { message } = self {
                config.shutdown = true;
                config.shutdown_communication.clone_from(message);
            }
        };
        bgp.graceful_shutdown |= self.announces();
        bgp.peers.values_mut().for_each(edit);
        bgp.ranges.values_mut().map(|range| &mut range.template).for_each(edit);
    }
}
