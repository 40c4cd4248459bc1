//! BMP stations of the speaker. They receive sessions and UPDATEs when these occur, and the tables
//! when they read. [`crate::bmp`] describes the protocol.

use std::time::{Duration, Instant};

use super::Speaker;
use super::hub::Hub;
use crate::bmp::{DownReason, PeerHeader, Station, StationConfig, StationId, StationRead};
use crate::rib::Rib;
use crate::session::{Fault, Session};
use crate::types::{AddressFamily, Family, Ipv4, Ipv6, PeerId};
use crate::wire::{Notification, Update};

/// Rows of the tables in one step.
const ROWS: usize = 512;

/// The walk continues while fewer octets are queued.
const WALK_AHEAD: usize = 64 * 1024;

impl Speaker {
    /// Adds a connected monitoring station. It receives the tables first, and then every change
    /// from now on. `since_1970` is the time of day.
    pub fn station_connected(
        &mut self,
        config: StationConfig,
        since_1970: Duration,
        now: Instant,
    ) -> StationId {
        let id = StationId(self.hub.next_station);
        self.hub.next_station += 1;
        let mut station = Station::new(id, config, since_1970, now);
        for peer in self.peers.iter().flatten() {
            if let Some(session) = peer.session() {
                send_peer_up(&mut station, peer.id(), session, now);
            }
        }
        self.hub.stations.push(station);
        id
    }

    /// Removes a station after its connection was closed.
    pub fn station_gone(&mut self, id: StationId) {
        self.hub.stations.retain(|station| station.id != id);
    }

    /// Appends up to about `budget` octets for a station.
    pub fn station_read(
        &mut self,
        id: StationId,
        out: &mut Vec<u8>,
        budget: usize,
        now: Instant,
    ) -> StationRead {
        let Hub { rib, stations, .. } = &mut self.hub;
        let Some(station) = stations.iter_mut().find(|station| station.id == id) else {
            return StationRead::Lost;
        };
        while station.waiting() < budget.min(WALK_AHEAD)
            && let Some((family, row)) = station.walk
        {
            match family {
                Family::Ipv4Unicast => walk::<Ipv4>(rib, station, row, now),
                Family::Ipv6Unicast => walk::<Ipv6>(rib, station, row, now),
            }
        }
        if station.lost {
            return StationRead::Lost;
        }
        station.take(out, budget);
        match station.waiting() > 0 || station.walk.is_some() {
            true => StationRead::More,
            false => StationRead::Idle,
        }
    }

    /// Whether [`Speaker::station_read`] has octets for the station, or reports that it is lost.
    pub fn station_ready(&self, id: StationId) -> bool {
        let station = self.hub.stations.iter().find(|station| station.id == id);
        station.is_none_or(|station| station.lost || station.waiting() > 0 || station.walk.is_some())
    }
}

impl Hub {
    /// See [`Speaker::handle_timeout`].
    pub(super) fn report_to_stations(&mut self) {
        let Hub { rib, stations, clock, .. } = self;
        for station in stations {
            station.report(*clock, |peer, family| rib.counts(peer, family).received);
        }
    }

    pub(super) fn stations_up(&mut self, peer: PeerId, session: Session<'_>) {
        for station in &mut self.stations {
            send_peer_up(station, peer, session, self.clock);
        }
    }

    pub(super) fn stations_down(&mut self, peer: PeerId, fault: &Fault, sent: Option<&Notification>) {
        if self.stations.is_empty() {
            return;
        }
        let reason = match (fault, sent) {
            (Fault::Notified(notification), _) => DownReason::NotifiedByPeer(notification.clone()),
            (_, Some(notification)) => DownReason::Notified(notification.clone()),
            (Fault::Closed(_) | Fault::Superseded | Fault::Replaced, None) => DownReason::ClosedByPeer,
            (_, None) => DownReason::Closed,
        };
        for station in &mut self.stations {
            station.peer_down(peer, &reason, self.clock);
        }
    }

    pub(super) fn stations_update(&mut self, peer: PeerId, update: &Update<'_>) {
        for station in &mut self.stations {
            station.update(peer, update, self.clock);
        }
    }
}

fn send_peer_up(station: &mut Station, peer: PeerId, session: Session<'_>, now: Instant) {
    let header = PeerHeader {
        address: session.remote.ip().to_canonical(),
        asn: session.negotiated.remote_as,
        router_id: session.negotiated.remote_router_id,
    };
    let ends = (session.local, session.remote);
    let opens = (session.our_open, session.their_open);
    station.peer_up(peer, header, session.negotiated.families, ends, opens, now);
}

/// Queues a piece of the tables for a station, starting at a row.
fn walk<F: AddressFamily>(rib: &Rib, station: &mut Station, row: u32, now: Instant) {
    let mut paths = Vec::new();
    let mut next = None;
    for (place, (row, prefix, entries)) in rib.rows_from(F::FAMILY, row).enumerate() {
        if place == ROWS {
            next = Some(row);
            break;
        }
        let Some(prefix) = F::narrow(prefix) else { continue };
        let fresh = entries.into_iter().filter(|path| !path.stale);
        paths.extend(fresh.filter_map(|path| {
            let peer = path.peer.filter(|peer| station.knows(*peer))?;
            Some((peer, path.received, (path.path_id, prefix)))
        }));
    }
    // Paths with the same attributes share messages.
    paths.sort_by_key(|(peer, attributes, _)| (*peer, attributes.number()));
    let same = paths.chunk_by(|one, other| one.0 == other.0 && one.1.number() == other.1.number());
    for group in same {
        let Some((peer, attributes, _)) = group.first() else { continue };
        // A received path always has a next hop.
        let Some(next_hop) = attributes.next_hop() else { continue };
        let paths = group.iter().map(|(_, _, path)| *path);
        station.routes::<F>(*peer, next_hop, attributes.block(), paths, now);
    }
    let following = Family::ALL.into_iter().find(|family| family.index() > F::FAMILY.index());
    match (next, following) {
        (Some(row), _) => station.walk = Some((F::FAMILY, row)),
        (None, Some(family)) => station.walk = Some((family, 0)),
        (None, None) => station.end_walk(now),
    }
}
