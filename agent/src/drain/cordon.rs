//! The effect of a Node's cordon in Kubernetes on the drain. No I/O;
//! [`crate::source::kube::cordon`] reads the Node.
//!
//! A cordon applies to new pods and not to running pods. So a cordon alone changes nothing.
//! Kubernetes' own load balancers ignore it for this reason. `kubectl drain` is a cordon, followed
//! by the eviction of all pods except static pods and pods of DaemonSets. Only after that does the
//! node leave the fabric: a pod's address exists only on this node, so an announcement could not
//! move its traffic.
//!
//! ```text
//!              cordoned, pods left         no pod left               the uncordon
//!   undrained ───────────────────► waits ─────────────► drained ────────────────────► undrained
//!                                    │                     │
//!                                    └──trunkline undrain──┴──► overruled: no action until the uncordon
//! ```
//!
//! **An operator's command takes precedence.** If the cordon drained the node, `trunkline drain`
//! makes the operator the cause, and an uncordon does not end this drain. After `trunkline
//! undrain`, the agent ignores the current cordon until it ends. The store keeps both over a
//! restart.

use trunkline_api::control::{CordonStatus, DrainCause, DrainPhase};

/// The Node's cordon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// Pods may be scheduled on the Node.
    No,
    /// No pods may be scheduled on the Node.
    Yes {
        /// Number of pods that a drain in Kubernetes would evict.
        left: usize,
    },
}

/// What the drain has to do about the cordon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CordonAction {
    Nothing,
    /// Drain the node.
    Drain,
    /// Undrain the node.
    Undrain,
    /// The overruled cordon has ended. The agent follows the next cordon again.
    Forget,
}

/// The action for a cordon. `cause`: the cause of the current drain, if there is one.
pub(super) fn decide(
    cordon: Cordon,
    phase: DrainPhase,
    cause: Option<DrainCause>,
    is_overruled: bool,
) -> CordonAction {
    match (cordon, phase) {
        (Cordon::No, DrainPhase::Undrained) if is_overruled => CordonAction::Forget,
        (Cordon::No, DrainPhase::Undrained) => CordonAction::Nothing,
        (Cordon::No, _) if cause == Some(DrainCause::Cordon) => CordonAction::Undrain,
        (Cordon::Yes { left: 0 }, DrainPhase::Undrained) if !is_overruled => CordonAction::Drain,
        _ => CordonAction::Nothing,
    }
}

impl Cordon {
    pub(super) fn status(self, is_overruled: bool) -> Option<CordonStatus> {
        match self {
            Cordon::No => None,
            Cordon::Yes { left } => Some(CordonStatus { pods_left: left as u64, overruled: is_overruled }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_decides_the_action_on_the_drain() {
        use DrainCause::{Cordon as ByCordon, Operator};
        use DrainPhase::{Announcing, Drained, Undrained, Withdrawing};
        let empty = Cordon::Yes { left: 0 };
        let busy = Cordon::Yes { left: 1 };
        for (cordon, phase, cause, is_overruled, next) in [
            // A cordon alone interrupts no traffic.
            (busy, Undrained, None, false, CordonAction::Nothing),
            (empty, Undrained, None, false, CordonAction::Drain),
            (Cordon::No, Undrained, None, false, CordonAction::Nothing),
            // A drain in progress continues, with or without pods.
            (empty, Announcing, Some(ByCordon), false, CordonAction::Nothing),
            (busy, Withdrawing, Some(ByCordon), false, CordonAction::Nothing),
            (busy, Drained, Some(ByCordon), false, CordonAction::Nothing),
            // An uncordon ends the cordon's drain in every phase.
            (Cordon::No, Announcing, Some(ByCordon), false, CordonAction::Undrain),
            (Cordon::No, Withdrawing, Some(ByCordon), false, CordonAction::Undrain),
            (Cordon::No, Drained, Some(ByCordon), false, CordonAction::Undrain),
            // Only an operator ends an operator's drain.
            (Cordon::No, Drained, Some(Operator), false, CordonAction::Nothing),
            (Cordon::No, Announcing, Some(Operator), false, CordonAction::Nothing),
            (empty, Drained, Some(Operator), false, CordonAction::Nothing),
            // If an operator undrained the node, it stays undrained as long as this cordon lasts.
            (empty, Undrained, None, true, CordonAction::Nothing),
            (busy, Undrained, None, true, CordonAction::Nothing),
            (Cordon::No, Undrained, None, true, CordonAction::Forget),
        ] {
            assert_eq!(
                decide(cordon, phase, cause, is_overruled),
                next,
                "{cordon:?}, {phase:?} by {cause:?}, overruled: {is_overruled}"
            );
        }
    }
}
