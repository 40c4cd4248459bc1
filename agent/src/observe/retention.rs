//! The time for which the routers would keep this node's routes without its agent.

use std::sync::Arc;

use trunkline_bgp::speaker::{PeerStatus, State};

use super::Observer;
use crate::history::keeper::Sessions;
use crate::history::last_run::Retention;
use crate::plan::BgpPlan;

impl Sessions for Arc<Observer> {
    async fn retention(&self) -> Option<Option<Vec<Retention>>> {
        let view = self.view().await.ok()?;
        let peers = match &view.bgp {
            // A stopping speaker gives no answer. This does not mean "no peers".
            Some(bgp) => bgp.speaker.peers().await.ok()?,
            None => Vec::new(),
        };
        let plan = self.reconcile.plan().borrow().clone()?;
        let retention = |bgp: &BgpPlan| {
            let up = peers.iter().filter(|peer| peer.state == State::Established);
            up.map(|peer| Retention { peer: peer.key().to_string(), seconds: seconds(bgp, peer) }).collect()
        };
        Some(plan.bgp.as_ref().map(retention))
    }
}

/// The Restart Time of this side, if the peer has graceful restart too: a peer without the
/// capability deletes the routes at once.
fn seconds(bgp: &BgpPlan, peer: &PeerStatus) -> u16 {
    let of_range = || bgp.ranges.get(&peer.range?).map(|range| &range.template);
    let config = bgp.peers.get(&peer.key()).or_else(of_range);
    let is_mutual = peer.session.as_ref().is_some_and(|session| session.peer_restart_time.is_some());
    config.and_then(|config| config.graceful_restart).filter(|_| is_mutual).unwrap_or_default()
}
