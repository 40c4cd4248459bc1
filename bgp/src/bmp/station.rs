//! One monitoring station: its known sessions, its queue, and the position of its table walk.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::message::{self, DownReason, PeerHeader};
use super::{QUEUE, StationConfig};
use crate::types::{AddressFamily, Family, FamilySet, Ipv4, Ipv6, NextHop, PeerId};
use crate::wire::{EncodeContext, MAX_EXTENDED, Nlri, Open, Prefixes, Update, UpdateWriter};

/// The id of a connected station, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub(crate) u64);

/// Four-octet AS numbers, any next hop, and messages up to the maximum length: a received UPDATE
/// fits into one message.
const CONTEXT: EncodeContext =
    EncodeContext { four_octet_as: true, ext_next_hop: true, add_path: false, max_message: MAX_EXTENDED };

/// A session that was reported to the station.
#[derive(Debug)]
struct MonitoredSession {
    header: PeerHeader,
    /// Families that need End-of-RIB after the walk; none if the session is newer than the walk.
    walked: FamilySet,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) id: StationId,
    config: StationConfig,
    /// One moment on two clocks: the monotonic clock, and the time since 1970.
    epoch: (Instant, Duration),
    peers: FxHashMap<PeerId, MonitoredSession>,
    queue: Vec<u8>,
    /// The octets of the queue that were already read.
    taken: usize,
    pub(crate) lost: bool,
    /// The next row of the walk; none when it is done.
    pub(crate) walk: Option<(Family, u32)>,
    stats_due: Option<Instant>,
    scratch: Vec<u8>,
}

impl Station {
    /// A station that has just connected. `since_1970` is the time of day at `now`.
    pub(crate) fn new(id: StationId, config: StationConfig, since_1970: Duration, now: Instant) -> Station {
        let mut queue = Vec::new();
        message::initiation(&mut queue, &config.name, &config.description);
        Station {
            id,
            stats_due: config.stats_interval.map(|interval| now + interval),
            config,
            epoch: (now, since_1970),
            peers: FxHashMap::default(),
            queue,
            taken: 0,
            lost: false,
            walk: Some((Family::Ipv4Unicast, 0)),
            scratch: Vec::new(),
        }
    }

    fn time(&self, now: Instant) -> Duration {
        self.epoch.1 + now.saturating_duration_since(self.epoch.0)
    }

    /// Whether the station receives the peer's routes.
    pub(crate) fn knows(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Reports a new session.
    pub(crate) fn peer_up(
        &mut self,
        peer: PeerId,
        header: PeerHeader,
        families: FamilySet,
        ends: (SocketAddr, SocketAddr),
        opens: (&Open, &Open),
        now: Instant,
    ) {
        let time = self.time(now);
        // A session that starts during the walk sends its own End-of-RIB.
        let walked = if self.walk == Some((Family::Ipv4Unicast, 0)) { families } else { FamilySet::EMPTY };
        self.peers.insert(peer, MonitoredSession { header, walked });
        self.push(|queue, _| message::peer_up(queue, &header, time, ends, opens));
    }

    /// Reports the end of a session.
    pub(crate) fn peer_down(&mut self, peer: PeerId, reason: &DownReason, now: Instant) {
        if let Some(known) = self.peers.remove(&peer) {
            let time = self.time(now);
            self.push(|queue, _| message::peer_down(queue, &known.header, time, reason));
        }
    }

    /// Reports a received UPDATE.
    pub(crate) fn update(&mut self, peer: PeerId, update: &Update<'_>, now: Instant) {
        self.monitor(peer, now, |out| {
            for prefixes in update.withdrawn() {
                match prefixes {
                    Prefixes::V4(prefixes) => withdraw::<Ipv4>(out, prefixes),
                    Prefixes::V6(prefixes) => withdraw::<Ipv6>(out, prefixes),
                };
            }
            if let Some(block) = update.attributes {
                for reach in update.announced() {
                    match reach.prefixes {
                        Prefixes::V4(prefixes) => {
                            announce::<Ipv4>(out, reach.next_hop, block, prefixes.paths())
                        }
                        Prefixes::V6(prefixes) => {
                            announce::<Ipv6>(out, reach.next_hop, block, prefixes.paths())
                        }
                    }
                }
            }
            if let Some(family) = update.end_of_rib {
                UpdateWriter::new(out, CONTEXT).end_of_rib(family);
            }
        });
    }

    /// Reports routes of the walk with the same peer and attributes.
    pub(crate) fn routes<F: AddressFamily>(
        &mut self,
        peer: PeerId,
        next_hop: NextHop,
        block: &[u8],
        paths: impl IntoIterator<Item = (Option<u32>, F::Prefix)>,
        now: Instant,
    ) {
        self.monitor(peer, now, |out| announce::<F>(out, next_hop, block, paths));
    }

    /// Ends the walk. The queue has received every route that is older than the walk.
    pub(crate) fn end_walk(&mut self, now: Instant) {
        self.walk = None;
        let peers: Vec<(PeerId, FamilySet)> =
            self.peers.iter().map(|(peer, known)| (*peer, known.walked)).collect();
        for (peer, families) in peers {
            for family in families.iter() {
                self.monitor(peer, now, |out| UpdateWriter::new(out, CONTEXT).end_of_rib(family));
            }
        }
    }

    /// When [`Station::report`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.stats_due.filter(|_| !self.lost)
    }

    /// Queues Stats Reports if they are due. `count`: routes of a peer in a family.
    pub(crate) fn report(&mut self, now: Instant, count: impl Fn(PeerId, Family) -> usize) {
        let Some(interval) = self.config.stats_interval else { return };
        if self.stats_due.is_none_or(|due| due > now) {
            return;
        }
        self.stats_due = Some(now + interval);
        let time = self.time(now);
        let peers: Vec<(PeerId, PeerHeader)> =
            self.peers.iter().map(|(peer, known)| (*peer, known.header)).collect();
        for (peer, header) in peers {
            let routes = Family::ALL.map(|family| (family, count(peer, family) as u64));
            self.push(|queue, _| message::stats_report(queue, &header, time, &routes));
        }
    }

    /// The number of queued octets.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() - self.taken
    }

    /// Moves up to `budget` octets to `out`.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>, budget: usize) {
        let end = self.queue.len().min(self.taken.saturating_add(budget));
        out.extend_from_slice(&self.queue[self.taken..end]);
        self.taken = end;
        if self.taken == self.queue.len() {
            self.taken = 0;
            self.queue.clear();
            self.queue.shrink_to(QUEUE / 16);
        } else if self.taken > self.queue.len() / 2 {
            self.queue.drain(..self.taken);
            self.taken = 0;
        }
    }

    fn monitor(&mut self, peer: PeerId, now: Instant, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(known) = self.peers.get(&peer) else { return };
        let (header, time) = (known.header, self.time(now));
        self.push(|queue, scratch| {
            scratch.clear();
            write(scratch);
            message::route_monitoring(queue, &header, time, scratch);
        });
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) {
        if self.lost {
            return;
        }
        write(&mut self.queue, &mut self.scratch);
        if self.waiting() > QUEUE {
            self.lost = true;
            (self.queue, self.taken) = (Vec::new(), 0);
        }
    }
}

fn announce<F: AddressFamily>(
    out: &mut Vec<u8>,
    next_hop: NextHop,
    block: &[u8],
    paths: impl IntoIterator<Item = (Option<u32>, F::Prefix)>,
) {
    let (context, paths) = as_they_came::<F>(paths);
    let written = UpdateWriter::new(out, context).announce_paths::<F>(next_hop, block, paths);
    // The UPDATE was received in one message, but with four-octet AS numbers it may exceed the
    // maximum length. Then it is not sent.
    debug_assert!(written.is_ok() || block.len() > MAX_EXTENDED / 2, "{written:?}");
}

fn withdraw<F: AddressFamily>(out: &mut Vec<u8>, prefixes: Nlri<'_, F>) -> usize {
    let (context, paths) = as_they_came::<F>(prefixes.paths());
    UpdateWriter::new(out, context).withdraw_paths::<F>(paths)
}

/// Adds path identifiers if the peer's session has negotiated ADD-PATH. The station knows the
/// negotiation from the two OPENs in Peer Up (RFC 7854 §4.10).
fn as_they_came<F: AddressFamily>(
    paths: impl IntoIterator<Item = (Option<u32>, F::Prefix)>,
) -> (EncodeContext, impl Iterator<Item = (u32, F::Prefix)>) {
    let mut paths = paths.into_iter().peekable();
    let add_path = paths.peek().is_some_and(|(identifier, _)| identifier.is_some());
    let paths = paths.map(|(identifier, prefix)| (identifier.unwrap_or_default(), prefix));
    (EncodeContext { add_path, ..CONTEXT }, paths)
}

/// The last message to a station.
#[cfg(feature = "net")]
pub(crate) fn termination() -> Vec<u8> {
    let mut out = Vec::new();
    message::termination(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn a_station_that_never_reads_is_lost_and_its_queue_freed() {
        let now = Instant::now();
        let config =
            StationConfig { name: "n".to_owned(), description: "d".to_owned(), stats_interval: None };
        let mut station = Station::new(StationId(1), config, Duration::ZERO, now);
        let peer = PeerId(7);
        let header = PeerHeader {
            address: "192.0.2.1".parse().unwrap(),
            asn: crate::types::Asn(1),
            router_id: "192.0.2.1".parse().unwrap(),
        };
        let open = Open::new(header.asn, 90, header.router_id, vec![]);
        let end: SocketAddr = "192.0.2.2:179".parse().unwrap();
        station.peer_up(peer, header, FamilySet::ALL, (end, end), (&open, &open), now);
        let prefixes: Vec<_> =
            (0..100_000u32).map(|number| (None, ipnet::Ipv4Net::new(number.into(), 32).unwrap())).collect();
        let next_hop = NextHop::V4(header.router_id);
        let mut most = 0;
        for _ in 0..100 {
            station.routes::<Ipv4>(peer, next_hop, &[0x40, 1, 1, 0], prefixes.iter().copied(), now);
            most = most.max(station.waiting());
        }
        assert!(station.lost && (QUEUE / 2..=QUEUE).contains(&most), "{most}");
        assert_eq!((station.queue.capacity(), station.waiting()), (0, 0));
    }
}
