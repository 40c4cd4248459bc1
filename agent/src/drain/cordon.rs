//! What a Node's cordon in Kubernetes means for its place in the fabric. No I/O; who looks at the Node is [`crate::source::kube::cordon`].
//!
//! A cordon says where new pods go and nothing of those that run, so by itself it changes nothing: Kubernetes' own load balancers stopped going by
//! it for that reason. `kubectl drain` is a cordon, and pods that go until none is left but those of DaemonSets and static ones. That is when the
//! node leaves the fabric, and not earlier, since a pod's address is on this node alone: an announcement would move nobody away from it.
//!
//! ```text
//!              cordoned, pods left         no pod left               the cordon goes
//!   undrained ───────────────────► waits ─────────────► drained ────────────────────► undrained
//!                                    │                     │
//!                                    └──trunkline undrain──┴──► overruled: nothing is done, until the cordon goes
//! ```
//!
//! **An operator's word stands above it.** `trunkline drain` of a node that its cordon drained makes the drain the operator's, which no uncordon ends;
//! `trunkline undrain` lasts for as long as this cordon does. Both outlive a restart, by the store.

use trunkline_api::control::{CordonStatus, DrainCause, DrainPhase};

/// How the Node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// Pods may be scheduled there.
    No,
    /// None may, and so many that are there have to go.
    Yes {
        /// Pods that a drain in Kubernetes would not leave.
        left: usize,
    },
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CordonAction {
    Nothing,
    /// Leave the fabric.
    Drain,
    /// Come back.
    Undrain,
    /// The cordon that was overruled is gone: the next one counts again.
    Forget,
}

/// What follows from how the Node stands. The cause is that of the drain, if there is one.
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
    fn what_a_cordon_does_and_what_it_does_not() {
        use DrainCause::{Cordon as ByCordon, Operator};
        use DrainPhase::{Announcing, Drained, Undrained, Withdrawing};
        let empty = Cordon::Yes { left: 0 };
        let busy = Cordon::Yes { left: 1 };
        for (cordon, phase, cause, is_overruled, next) in [
            // A cordon alone cuts nobody off.
            (busy, Undrained, None, false, CordonAction::Nothing),
            (empty, Undrained, None, false, CordonAction::Drain),
            (Cordon::No, Undrained, None, false, CordonAction::Nothing),
            // On the way, pods or none, it goes on.
            (empty, Announcing, Some(ByCordon), false, CordonAction::Nothing),
            (busy, Withdrawing, Some(ByCordon), false, CordonAction::Nothing),
            (busy, Drained, Some(ByCordon), false, CordonAction::Nothing),
            // And back, from wherever it is.
            (Cordon::No, Announcing, Some(ByCordon), false, CordonAction::Undrain),
            (Cordon::No, Withdrawing, Some(ByCordon), false, CordonAction::Undrain),
            (Cordon::No, Drained, Some(ByCordon), false, CordonAction::Undrain),
            // What an operator has done, an operator undoes.
            (Cordon::No, Drained, Some(Operator), false, CordonAction::Nothing),
            (Cordon::No, Announcing, Some(Operator), false, CordonAction::Nothing),
            (empty, Drained, Some(Operator), false, CordonAction::Nothing),
            // Brought back by an operator: that lasts as long as this cordon.
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
