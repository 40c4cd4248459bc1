//! Events about BGP identifiers that two routers share ([`crate::probe::identifiers`] finds them).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use trunkline_api::control::{DuplicateIdentifier, EventKind};

use super::Observer;
use crate::history::History;
use crate::probe::identifiers::duplicates;

/// Records an event for each duplicate that appears or ends, until the agent stops.
pub async fn follow(observer: Arc<Observer>, history: History) {
    let mut sessions = observer.reconcile.sessions();
    let mut known: BTreeMap<Ipv4Addr, DuplicateIdentifier> = BTreeMap::new();
    while sessions.changed().await.is_ok() {
        let Some((peers, bgp)) = observer.sessions().await else { continue };
        let found = duplicates(bgp.router_id, &peers);
        for duplicate in found.iter().filter(|it| known.get(&it.identifier) != Some(it)) {
            let peer = duplicate.peers.first().cloned();
            tracing::warn!("{}", duplicate.text);
            history.record(EventKind::DuplicateIdentifier, peer, None, duplicate.text.clone());
        }
        let found: BTreeMap<_, _> = found.into_iter().map(|it| (it.identifier, it)).collect();
        for (identifier, gone) in known.iter().filter(|(identifier, _)| !found.contains_key(identifier)) {
            let text = format!("BGP identifier {identifier} belongs to one router again");
            history.record(EventKind::IdentifierUnique, gone.peers.first().cloned(), None, text);
        }
        known = found;
    }
}
