//! The state that all peers share: the tables, and the queues towards the shell. It is the [`Sink`]
//! of every session.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::bmp::Station;
use crate::config::PeerConfig;
use crate::io::{Action, ConnId, Event};
use crate::rib::{Rib, RibPeer, SessionFacts};
use crate::session::{Fault, Session, Sink};
use crate::types::{Family, FamilySet, NextHop, PeerId};
use crate::wire::{Notification, Update};

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) rib: Rib,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    pub(super) writable: VecDeque<ConnId>,
    /// The peer of each open connection.
    pub(super) conns: FxHashMap<ConnId, PeerId>,
    next_conn: u64,
    /// The time of the current input.
    pub(super) clock: Instant,
    /// Connected monitoring stations.
    pub(super) stations: Vec<Station>,
    pub(super) next_station: u64,
    /// The speaker has stopped: the tables stay as they are, and so does the FIB.
    pub(super) frozen: bool,
    /// The speaker stopped silently for a restart: ends of sessions cause no events.
    pub(super) silent: bool,
}

impl Hub {
    pub(super) fn new(rib: Rib, now: Instant) -> Self {
        Hub {
            rib,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            writable: VecDeque::new(),
            conns: FxHashMap::default(),
            next_conn: 0,
            clock: now,
            stations: Vec::new(),
            next_station: 0,
            frozen: false,
            silent: false,
        }
    }
}

impl Hub {
    /// Reports changes of the default routes that peers advertise.
    pub(super) fn report_defaults(&mut self) {
        while let Some((peer, address, family, offered)) = self.rib.poll_default() {
            self.event(Event::DefaultRoute { peer, address, family, offered });
        }
    }
}

impl Sink for Hub {
    fn open_conn(&mut self, peer: PeerId) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(conn, peer);
        conn
    }

    fn action(&mut self, action: Action) {
        if let Action::Close { conn, .. } = &action {
            self.conns.remove(conn);
        }
        self.actions.push_back(action);
    }

    fn event(&mut self, event: Event) {
        if !self.silent {
            self.events.push_back(event);
        }
    }

    fn writable(&mut self, conn: ConnId) {
        self.writable.push_back(conn);
    }

    fn established(&mut self, peer: PeerId, session: Session<'_>, _kept: FamilySet) {
        self.stations_up(peer, session);
        self.rib.peer_up(peer, session_facts(session));
    }

    fn down(
        &mut self,
        peer: PeerId,
        retained: FamilySet,
        long_lived: FamilySet,
        fault: &Fault,
        notification: Option<&Notification>,
    ) {
        self.stations_down(peer, fault, notification);
        if !self.frozen {
            self.rib.peer_down(peer, retained, long_lived);
        }
    }

    fn update(&mut self, peer: PeerId, update: &Update<'_>) -> usize {
        self.stations_update(peer, update);
        self.rib.handle_update(peer, update);
        // The events of default routes precede the End-of-RIB that may follow.
        self.report_defaults();
        self.received(peer)
    }

    fn received(&self, peer: PeerId) -> usize {
        Family::ALL.iter().map(|family| self.rib.counts(peer, *family).received).sum()
    }

    fn refresh(&mut self, peer: PeerId, family: Family, demarcated: bool) {
        self.rib.refresh_out(peer, family, demarcated);
    }

    fn mark_stale(&mut self, peer: PeerId, family: Family, stale: bool) {
        if !self.frozen {
            self.rib.mark_stale(peer, family, stale);
        }
    }

    fn mark_long_lived(&mut self, peer: PeerId, family: Family) -> (usize, usize) {
        if self.frozen {
            return (0, 0);
        }
        let marked = self.rib.mark_long_lived(peer, family);
        self.report_defaults();
        marked
    }

    fn sweep(&mut self, peer: PeerId, family: Family) -> usize {
        if self.frozen {
            return 0;
        }
        let swept = self.rib.sweep_stale(peer, family);
        self.report_defaults();
        swept
    }

    fn write_updates(&mut self, peer: PeerId, out: &mut Vec<u8>, budget: usize) -> bool {
        self.rib.write_updates(peer, out, budget)
    }
}

/// The tables' view of a peer.
pub(super) fn rib_peer(config: &PeerConfig) -> RibPeer {
    RibPeer {
        address: config.key(),
        remote_as: config.remote_as,
        import: config.import.clone(),
        export: config.export.clone(),
        rules: config.paths,
    }
}

/// The tables' view of a session.
fn session_facts(session: Session<'_>) -> SessionFacts {
    let (next_hop_v4, next_hop_v6) = next_hops(session);
    SessionFacts {
        families: session.negotiated.families,
        router_id: session.negotiated.remote_router_id,
        local_address: session.local.ip().to_canonical(),
        next_hop_v4,
        next_hop_v6,
        four_octet_as: session.negotiated.four_octet_as,
        ext_next_hop: session.negotiated.ext_next_hop,
        add_path: session.negotiated.add_path_send,
        paths: session.config.add_path.send.map_or(1, u8::from),
        long_lived_stale: session.negotiated.long_lived_stale,
        max_message: session.negotiated.max_message(),
    }
}

/// The next hops that this side advertises as its own: the configured one, otherwise the session's
/// address. An IPv6 address also serves for IPv4 if the peer accepts it (RFC 8950).
pub(super) fn next_hops(session: Session<'_>) -> (Option<NextHop>, Option<NextHop>) {
    let v6 = match (session.config.next_hop_v6, session.local.ip().to_canonical()) {
        (Some(configured), _) => Some(NextHop::V6(configured)),
        (None, IpAddr::V6(local)) => Some(NextHop::V6(local)),
        (None, IpAddr::V4(_)) => None,
    };
    let v4 = match (session.config.next_hop_v4, session.local.ip().to_canonical()) {
        (Some(configured), _) => Some(NextHop::V4(configured)),
        (None, IpAddr::V4(local)) => Some(NextHop::V4(local)),
        (None, IpAddr::V6(_)) => v6.filter(|_| session.negotiated.ext_next_hop),
    };
    (v4, v6)
}
