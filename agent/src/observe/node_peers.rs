//! The peers in the form of a NodeInfo's status.

use std::sync::Arc;
use std::time::Duration;

use trunkline_api::kept;
use trunkline_api::resources::NodePeer;

use super::Observer;
use crate::plan::Mode;
use crate::source::kube::writer::{NodePeers, at as written_at};

impl NodePeers for Arc<Observer> {
    async fn current(&self) -> Vec<NodePeer> {
        let Ok(view) = self.view().await else { return Vec::new() };
        let peers = self.peers(None).await.unwrap_or_default();
        let mut bgp = view.networks.iter().filter(|(_, network)| network.mode == Mode::Bgp);
        let network = bgp.next().map(|(name, _)| name.clone()).unwrap_or_default();
        let mut peers: Vec<NodePeer> = peers
            .iter()
            .map(|peer| NodePeer {
                name: peer.name(),
                network: network.clone(),
                asn: peer.remote_as,
                state: peer.state,
                since: Some(written_at(Duration::from_secs(peer.state_seconds))),
                prefixes_received: peer.families.iter().map(|family| family.received as u64).sum(),
                prefixes_advertised: peer.families.iter().map(|family| family.advertised as u64).sum(),
                last_error: match &peer.cause {
                    Some(cause) => Some(&cause.text),
                    None => peer.last_error.as_ref().map(|error| &error.text),
                }
                .map(|text| kept::cut(text, NodePeer::MAX_TEXT).to_owned()),
            })
            .collect();
        peers.sort_by(|one, other| one.name.cmp(&other.name));
        peers.dedup_by(|one, other| one.name == other.name);
        peers.truncate(NodePeer::MAX_PEERS);
        peers
    }
}
