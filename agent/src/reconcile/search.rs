//! The discovery of unnumbered peers: the interfaces with a listener, and the discovered routers.
//!
//! The manifest contains only the interface of such a peer. The peer enters the plan with the
//! source address of its router advertisements, and leaves the plan with the interface. The speaker
//! then adds or removes it like any other peer. The listeners follow the plan, which contains the
//! host's links.
//!
//! After a restart, the first selection must wait for such a peer, as it does for any other peer
//! (RFC 4724 §4.1). Otherwise the last run's routes from it would be removed before the peer
//! advertises them again. A router answers a solicitation within half a second. A router without an
//! answer for [`PATIENCE`] has no session, so the selection need not wait.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use trunkline_bgp::net::discovery::{Discovery, Neighbours};
use trunkline_bgp::types::InterfaceName;

use super::UndiscoveredPeer;
use crate::plan::Unnumbered;

/// Maximum time for which the first selection waits for the discovery of unnumbered peers.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the discovery.
pub(super) struct Search {
    neighbours: watch::Sender<Neighbours>,
    discoveries: watch::Receiver<Neighbours>,
    /// The index of each interface, and its discovery or the reason for its failure.
    running: BTreeMap<InterfaceName, (u32, Result<Discovery, String>)>,
    /// The time until which the first selection waits.
    deadline: Option<Instant>,
}

impl Search {
    pub(super) fn new() -> Search {
        let (neighbours, discoveries) = watch::channel(Neighbours::new());
        Search { neighbours, discoveries, running: BTreeMap::new(), deadline: None }
    }

    /// Starts and stops listeners as planned.
    pub(super) fn follow(&mut self, wanted: Option<&BTreeMap<InterfaceName, Unnumbered>>) {
        let links: BTreeMap<InterfaceName, u32> = wanted
            .into_iter()
            .flatten()
            .filter_map(|(interface, peer)| Some((*interface, peer.link?)))
            .collect();
        self.running.retain(|interface, (index, _)| links.get(interface) == Some(index));
        for (interface, index) in links {
            if matches!(self.running.get(&interface), Some((_, Ok(_)))) {
                continue;
            }
            let started = Discovery::start(interface, &self.neighbours).map_err(|error| {
                tracing::error!(%interface, %error, "cannot listen for router advertisements");
                format!("cannot listen for router advertisements on {interface}: {error}")
            });
            self.running.insert(interface, (index, started));
        }
    }

    /// The discovered routers.
    pub(super) fn found(&self) -> Neighbours {
        self.discoveries.borrow().clone()
    }

    /// Waits until a router is discovered or lost.
    pub(super) async fn changed(&mut self) {
        if self.discoveries.changed().await.is_err() {
            // `self` owns the sender, so the channel stays open.
            std::future::pending().await
        }
    }

    /// Starts the wait of the first selection after a restart.
    pub(super) fn begin(&mut self, at_most: Duration) {
        self.deadline = Some(Instant::now() + PATIENCE.min(at_most));
    }

    /// The time until which the first selection waits, if it does.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends the wait of the first selection.
    pub(super) fn give_up(&mut self) {
        self.deadline = None;
    }

    /// Whether the first selection need not wait: every possible peer is discovered.
    pub(super) fn is_over(&mut self, wanted: &BTreeMap<InterfaceName, Unnumbered>) -> bool {
        if wanted.values().all(|peer| peer.found || peer.link.is_none()) {
            self.deadline = None;
        }
        self.deadline.is_none()
    }

    /// The undiscovered peers, each with the reason.
    pub(super) fn waiting(&self, wanted: &BTreeMap<InterfaceName, Unnumbered>) -> Vec<UndiscoveredPeer> {
        let missing = wanted.iter().filter(|(_, peer)| !peer.found);
        missing
            .map(|(interface, peer)| UndiscoveredPeer {
                interface: *interface,
                remote_as: peer.remote_as.0,
                local_as: peer.local_as.map(|asn| asn.0),
                optional: peer.optional,
                reason: match (peer.link, self.running.get(interface)) {
                    (None, _) => format!("{interface} does not exist or is not up"),
                    (_, Some((_, Err(fault)))) => fault.clone(),
                    _ => format!("no router advertisement received on {interface} yet"),
                },
            })
            .collect()
    }
}
