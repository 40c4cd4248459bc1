//! Anycast addresses on a node that advertises nothing.

use trunkline_api::control::{AdvertisementState, AnycastStatus, WithheldReason};

use crate::reconcile::ReconcileStatus;

/// The anycast addresses with the facts about this node: the anycast task does not know them.
pub(super) fn with_node(mut status: Vec<AnycastStatus>, view: &ReconcileStatus) -> Vec<AnycastStatus> {
    let (reason, text) = match (view.stage.withdraws(), view.bgp.is_some() || view.stopped.is_some()) {
        (true, _) => (WithheldReason::NodeDrained, "this node is drained"),
        (false, false) => (WithheldReason::NoBgp, "this node has no Network of mode BGP"),
        (false, true) => return status,
    };
    for address in status.iter_mut().flat_map(|object| &mut object.addresses) {
        if address.state != AdvertisementState::Withheld {
            (address.state, address.reason) = (AdvertisementState::Withheld, Some(reason));
            address.text = text.to_owned();
        }
    }
    status
}
