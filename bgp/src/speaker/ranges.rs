//! Dynamic neighbours: peers without a configuration of their own, which connect from a configured
//! prefix.
//!
//! A connection from a [`PeerRange`] creates a peer with the range's template and the source
//! address. From then on the speaker treats it like a configured peer. The peer is removed when it
//! has no state left: its session has ended, its stale paths are swept (RFC 4724 §4.2, RFC 9494),
//! and no error holds it idle. If several ranges contain the address, the longest prefix is used. A
//! configured peer has precedence over all ranges.
//!
//! The limit of the range bounds the number of peers, including idle ones. Rejected connections
//! leave only a count. Any host in the prefix may take a place, with a key if one is configured. If
//! the prefix cannot be trusted, the limit is the only defence.
//!
//! After a restart these peers are unknown before they connect. So the first decision waits for the
//! whole Selection_Deferral_Timer (`deferral`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use super::{ConfigError, Event, ListenRange, PeerRange, RangeStatus, Refusal, Speaker};
use crate::types::{PeerId, PeerKey};

/// The ranges and the peers that connected from them.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ranges: BTreeMap<IpNet, Range>,
    peers: BTreeMap<PeerId, IpNet>,
    /// The listening sockets need the new ranges.
    changed: bool,
}

#[derive(Debug)]
struct Range {
    config: PeerRange,
    refused: u64,
    /// A peer has been rejected since the range last had room.
    full: bool,
}

impl Ranges {
    /// Whether dynamic neighbours may connect.
    pub(super) fn any(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// The range that a peer came from.
    pub(super) fn of(&self, peer: PeerId) -> Option<IpNet> {
        self.peers.get(&peer).copied()
    }

    /// Removes a peer from its range; returns false if it has none.
    pub(super) fn release(&mut self, peer: PeerId) -> bool {
        let Some(prefix) = self.peers.remove(&peer) else { return false };
        if let Some(range) = self.ranges.get_mut(&prefix) {
            range.full = false;
        }
        true
    }

    /// The ranges for the listening sockets, if they changed since the last call.
    pub(super) fn take_listen(&mut self) -> Option<Vec<ListenRange>> {
        let key = |range: &Range| ListenRange {
            prefix: range.config.prefix,
            password: range.config.template.password.clone(),
        };
        std::mem::take(&mut self.changed).then(|| self.ranges.values().map(key).collect())
    }

    /// The range with the longest prefix that contains an address.
    fn find(&self, address: IpAddr) -> Option<IpNet> {
        // A link-local address identifies no peer without its interface, and ranges have none.
        if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return None;
        }
        let holding = self.ranges.keys().filter(|prefix| prefix.contains(&address));
        holding.max_by_key(|prefix| prefix.prefix_len()).copied()
    }

    fn count(&self, prefix: IpNet) -> usize {
        self.peers.values().filter(|range| **range == prefix).count()
    }
}

impl Speaker {
    /// Replaces the ranges. A peer with an address that is still in a range continues with that
    /// range's configuration, as [`Speaker::update_peer`] would apply it. The other peers are
    /// removed. A lower limit removes no peer.
    ///
    /// # Errors
    /// If a range or its template is invalid, or if a prefix occurs twice.
    pub fn set_ranges(&mut self, ranges: Vec<PeerRange>, now: Instant) -> Result<(), ConfigError> {
        let mut wanted: BTreeMap<IpNet, Range> = BTreeMap::new();
        for config in ranges {
            config.validate()?;
            config.validate_for(self.config.local_as)?;
            let prefix = config.prefix;
            let refused = self.ranges.ranges.get(&prefix).map_or(0, |range| range.refused);
            if wanted.insert(prefix, Range { config, refused, full: false }).is_some() {
                return Err(ConfigError::DuplicateRange(prefix));
            }
        }
        self.hub.clock = now;
        self.ranges.ranges = wanted;
        self.ranges.changed = true;
        for id in self.ranges.peers.keys().copied().collect::<Vec<PeerId>>() {
            let Some(key) = self.peer_key(id) else { continue };
            let address = key.address();
            match self.ranges.find(address) {
                Some(prefix) => {
                    self.ranges.peers.insert(id, prefix);
                    let config = self.ranges.ranges.get(&prefix).map(|range| range.config.peer(address));
                    if let Some(config) = config {
                        self.update_peer(config, now)?;
                    }
                }
                None => self.drop_peer(id, key, now),
            }
        }
        self.after(now);
        Ok(())
    }

    /// The ranges, by prefix.
    pub fn ranges(&self) -> Vec<RangeStatus> {
        let status = |range: &Range| RangeStatus {
            prefix: range.config.prefix,
            remote_as: range.config.template.remote_as,
            peers: u32::try_from(self.ranges.count(range.config.prefix)).unwrap_or(u32::MAX),
            limit: range.config.limit,
            refused: range.refused,
        };
        self.ranges.ranges.values().map(status).collect()
    }

    /// The key of the peer with this index.
    pub fn peer_key(&self, peer: PeerId) -> Option<PeerKey> {
        Some(self.peers.get(peer.0 as usize)?.as_ref()?.config().key())
    }

    /// Creates a peer for an address without a configured peer, if a range has room for it.
    pub(super) fn admit(&mut self, key: PeerKey, now: Instant) -> Result<PeerId, Refusal> {
        let address = key.address();
        let prefix = self.ranges.find(address).ok_or(Refusal::UnknownPeer(key))?;
        let count = self.ranges.count(prefix);
        let range = self.ranges.ranges.get_mut(&prefix).ok_or(Refusal::UnknownPeer(key))?;
        if range.config.template.shutdown {
            return Err(Refusal::Shutdown(key));
        }
        let limit = range.config.limit;
        if count >= limit as usize {
            range.refused += 1;
            if !std::mem::replace(&mut range.full, true) {
                self.hub.events.push_back(Event::RangeFull { prefix, limit, refused: key });
            }
            return Err(Refusal::RangeFull { peer: key, prefix, limit });
        }
        let config = range.config.peer(address);
        let id = self.insert_peer(config, now);
        self.ranges.peers.insert(id, prefix);
        Ok(id)
    }

    /// Removes dynamic neighbours that have no state left.
    pub(super) fn drop_spent(&mut self, now: Instant) {
        let spent = |id: &PeerId| {
            self.peers
                .get(id.0 as usize)
                .is_some_and(|peer| peer.as_ref().is_some_and(|peer| peer.is_spent()))
        };
        for id in self.ranges.peers.keys().filter(|id| spent(id)).copied().collect::<Vec<PeerId>>() {
            if let Some(key) = self.peer_key(id) {
                self.drop_peer(id, key, now);
            }
        }
    }

    fn drop_peer(&mut self, id: PeerId, key: PeerKey, now: Instant) {
        self.take_peer(id, key, now);
        self.hub.events.push_back(Event::PeerGone { peer: id, address: key });
    }
}
