//! The search for unnumbered peers: which interfaces are listened on, and what was found there.
//!
//! A peer of which the manifest names the interface alone gets into the plan with the address that its router
//! advertisements come from, and out of it when the interface goes; the speaker then sees a peer added or removed like any
//! other. Listening follows the plan, which knows the host's links.
//!
//! After a restart the first selection has to wait for such a peer as for any other (RFC 4724 §4.1), or what the last run
//! learned from it would be swept before the peer can say it again. A router answers a solicitation within half a second;
//! one that has not for [`PATIENCE`] has no session to wait for either.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use trunkline_bgp::net::discovery::{Discovery, Neighbours};
use trunkline_bgp::types::InterfaceName;

use super::UndiscoveredPeer;
use crate::plan::Unnumbered;

/// How long the first selection waits for unnumbered peers to be found.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Search {
    neighbours: watch::Sender<Neighbours>,
    news: watch::Receiver<Neighbours>,
    /// With the index of the interface, or why it cannot be listened on.
    running: BTreeMap<InterfaceName, (u32, Result<Discovery, String>)>,
    /// Until when the first selection waits.
    deadline: Option<Instant>,
}

impl Search {
    pub(super) fn new() -> Search {
        let (neighbours, news) = watch::channel(Neighbours::new());
        Search { neighbours, news, running: BTreeMap::new(), deadline: None }
    }

    /// Listens where the plan says.
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

    /// Who was found.
    pub(super) fn found(&self) -> Neighbours {
        self.news.borrow().clone()
    }

    /// Waits until somebody else is found, or gone.
    pub(super) async fn changed(&mut self) {
        if self.news.changed().await.is_err() {
            // The sender is here, next to it.
            std::future::pending().await
        }
    }

    /// A restart: the first selection waits from now on.
    pub(super) fn begin(&mut self, at_most: Duration) {
        self.deadline = Some(Instant::now() + PATIENCE.min(at_most));
    }

    /// Until when the first selection waits, if it does.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The first selection waits no longer.
    pub(super) fn give_up(&mut self) {
        self.deadline = None;
    }

    /// Whether the first selection need not wait: every peer is found that can be.
    pub(super) fn is_over(&mut self, wanted: &BTreeMap<InterfaceName, Unnumbered>) -> bool {
        if wanted.values().all(|peer| peer.found || peer.link.is_none()) {
            self.deadline = None;
        }
        self.deadline.is_none()
    }

    /// Who is not found, and why.
    pub(super) fn waiting(&self, wanted: &BTreeMap<InterfaceName, Unnumbered>) -> Vec<UndiscoveredPeer> {
        let missing = wanted.iter().filter(|(_, peer)| !peer.found);
        missing
            .map(|(interface, peer)| UndiscoveredPeer {
                interface: *interface,
                remote_as: peer.remote_as.0,
                local_as: peer.local_as.map(|asn| asn.0),
                optional: peer.optional,
                reason: match (peer.link, self.running.get(interface)) {
                    (None, _) => format!("{interface} is not there or not up"),
                    (_, Some((_, Err(fault)))) => fault.clone(),
                    _ => format!("no router advertisement heard on {interface} yet"),
                },
            })
            .collect()
    }
}
