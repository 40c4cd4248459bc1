//! The drain stage, and its effect on a plan.
//!
//! The plan contains the wanted state of the manifests and does not change; a draining node only
//! advertises a part of it. So the stage is applied to the plan on its way to the speaker, and
//! after an undrain the plan is still complete.

use trunkline_bgp::config::PeerConfig;

use crate::plan::BgpPlan;

/// The stages of a drain. Each includes the previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrainStage {
    /// The node is undrained.
    #[default]
    Active,
    /// Its routes carry GRACEFUL_SHUTDOWN (RFC 8326), and received paths get the lowest preference.
    Announcing,
    /// It advertises nothing.
    Withdrawn,
    /// It has no sessions.
    Down {
        /// The text for the peers' operators (RFC 9003).
        message: String,
    },
}

impl DrainStage {
    /// Whether the node advertises GRACEFUL_SHUTDOWN.
    pub fn announces(&self) -> bool {
        *self != DrainStage::Active
    }

    /// Whether all prefixes are withdrawn.
    pub fn withdraws(&self) -> bool {
        matches!(self, DrainStage::Withdrawn | DrainStage::Down { .. })
    }

    /// Applies the stage to a plan. It does not change the prefixes: see [`DrainStage::withdraws`].
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
