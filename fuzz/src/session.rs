//! A speaker with an external and an internal peer; transports, octets, operators and clock act
//! arbitrarily.
//!
//! The input is an octet of configuration and then a script: steps of an opcode, a length and that
//! many octets. Invariants after each step: the engine names only existing connections; it writes
//! whole messages that it would itself accept; a handled deadline is over; no peer exceeds its
//! prefix limit; the reported state is bounded. At the end everything is closed and time passes;
//! then no state of any peer is left.
//!
//! The operator may also configure ranges of dynamic neighbours. From then on another bit of the
//! opcode can select one of the two guests from the ranges. (Before, that bit has no meaning. So
//! committed scripts from the time without guests keep their meaning.)

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU8;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use trunkline_bgp::config::{AddPath, LocalAs, PathRules, PeerRange};
use trunkline_bgp::speaker::{Action, ConnId, Origination, PeerConfig, Speaker, SpeakerConfig, State, Stop};
use trunkline_bgp::types::{Asn, Family, FamilySet};
use trunkline_bgp::wire::{
    DecodeContext, MAX_EXTENDED, MessageKind, Notification, Open, RouteRefresh, Scratch, decode_update, frame,
};

use crate::mutate::message;

const LIMIT: u32 = 50;
/// Two configured peers, and two guests, which may connect if a range contains them.
const PEERS: [(IpAddr, u32); 4] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 65002),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)), 65001),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2)), 65003),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 1, 3)), 65001),
];
const CONFIGURED: usize = 2;
/// First octets of the argument of opcode 29.
const RANGES: u8 = 0xf1;
const LOCAL_AS: u8 = 0xf2;
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// One end of a connection, as the I/O shell sees it.
#[derive(Debug, Default)]
struct Pipe {
    peer: usize,
    /// Whether the attempt was answered: each is answered once.
    connected: bool,
    written: Vec<u8>,
}

struct World {
    speaker: Speaker,
    now: Instant,
    pipes: BTreeMap<ConnId, Pipe>,
    /// The smallest identifier that a new connection may have.
    names: u64,
    stopped: bool,
    /// Whether ranges were configured; then guests may connect.
    guests: bool,
}

/// An octet of configuration, then the script.
pub fn run(data: &[u8]) {
    let Some((&octet, mut script)) = data.split_first() else { return };
    let mut world = World::new(octet);
    let mut steps = 0;
    while let [opcode, length, rest @ ..] = script {
        let (argument, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        world.step(*opcode, argument);
        world.settle();
        script = rest;
        steps += 1;
        if steps == 200 {
            break;
        }
    }
    world.end();
}

impl World {
    fn new(octet: u8) -> World {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
        let now = Instant::now();
        let config = SpeakerConfig {
            restarting: octet & 1 != 0,
            selection_deferral: Duration::from_secs(60),
            seed: u64::from(octet),
            ..SpeakerConfig::new(Asn(65001), Ipv4Addr::new(10, 0, 0, 1))
        };
        let Ok(speaker) = Speaker::new(config, now) else { unreachable!("a configuration of constants") };
        let mut world =
            World { speaker, now, pipes: BTreeMap::new(), names: 0, stopped: false, guests: false };
        for (peer, (address, asn)) in PEERS[..CONFIGURED].iter().copied().enumerate() {
            let config = PeerConfig {
                max_prefixes: Some(LIMIT),
                graceful_restart: (octet & 2 == 0).then_some(120),
                passive: octet & (4 << peer) != 0,
                hold_time: Duration::from_secs(if octet & 16 == 0 { 90 } else { 0 }),
                add_path: add_path(octet & 64 != 0),
                long_lived: [(octet & 130 == 128).then_some(300); 2],
                restart_notification: octet & 128 != 0,
                ..PeerConfig::new(address, Asn(asn))
            };
            assert!(world.speaker.add_peer(config, now).is_ok());
        }
        if octet & 32 == 0 {
            world.speaker.originate(prefix(1), Origination::default(), now);
            world.speaker.originations_complete(now);
        }
        world.settle();
        world
    }

    fn step(&mut self, opcode: u8, argument: &[u8]) {
        let first = argument.first().copied().unwrap_or_default();
        let second = argument.get(1).copied().unwrap_or_default();
        let guest = if self.guests { opcode >> 6 & 1 } else { 0 };
        let peer = usize::from(opcode >> 7 | guest << 1);
        let (address, asn) = PEERS[peer];
        let now = self.now;
        match opcode & 0x1f {
            0 => self.accept(peer),
            1 => self.answer(peer, first & 1 == 0),
            2 => self.send(peer, &open(peer, asn, first)),
            3 => self.send(peer, &message(4, &[])),
            4 => self.send(peer, argument),
            5 => self.send(peer, &message(first, argument.get(1..).unwrap_or_default())),
            6 | 7 => self.send(peer, &message(2, argument)),
            8 => self.send(peer, &message(2, &announce(first, second))),
            9 => self.send(peer, &message(2, &withdraw(first, second))),
            10 => self.send(
                peer,
                &message(2, if first & 1 == 0 { &[0; 4] } else { &[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1] }),
            ),
            11 => self.send(peer, &message(5, &[0, 1 + (first & 1), second & 3, 1])),
            12 => self.send(peer, &message(3, if argument.len() < 2 { &[6, 2] } else { argument })),
            // The octets arrive one at a time, which TCP allows.
            13 => argument.iter().for_each(|octet| self.send(peer, &[*octet])),
            14 => {
                // This is a whole handshake. With it, most scripts reach an established session.
                self.accept(peer);
                self.send(peer, &open(peer, asn, first));
                self.send(peer, &message(4, &[]));
            }
            15 => {
                if let Some(conn) = self.conn(peer, true) {
                    self.pipes.remove(&conn);
                    self.speaker.handle_closed(conn, "closed".to_owned(), now);
                }
            }
            16 => self.pass(Duration::from_millis(u64::from(first) << (second & 15))),
            17 => self.fire(),
            18 => self.speaker.originate(
                prefix(first),
                Origination { med: Some(second.into()), ..Origination::default() },
                now,
            ),
            19 => self.speaker.withdraw(prefix(first), now),
            20 => self.speaker.originations_complete(now),
            21 => _ = self.speaker.request_refresh(address, now),
            22 => self.edit(peer, first, second),
            23 => _ = self.speaker.route_changes(usize::from(first) + 1),
            24 => self.speaker.watch(prefix(first)),
            25 => self.speaker.unwatch(prefix(first)),
            26 if first == 0xff && second == 0xff => {
                let stop = if argument.len() & 1 == 0 {
                    Stop::Silent
                } else {
                    Stop::Cease { communication: "bye".to_owned() }
                };
                self.stopped = true;
                self.speaker.stop(stop, now);
            }
            27 if first == 0xff => _ = self.speaker.remove_peer(address, now),
            28 => {
                _ = self.speaker.add_peer(
                    PeerConfig { max_prefixes: Some(LIMIT), ..PeerConfig::new(address, Asn(asn)) },
                    now,
                )
            }
            29 if first == RANGES => self.set_ranges(second, argument.get(2).copied().unwrap_or_default()),
            29 if first == LOCAL_AS => {
                let config = edited(peer, argument.get(2).copied().unwrap_or_default(), second);
                let rules = PathRules { local_as: local_as(second), ..PathRules::default() };
                _ = self.speaker.update_peer(PeerConfig { paths: rules, ..config }, now);
            }
            // These identifiers were never assigned.
            29 => self.speaker.handle_bytes(ConnId(u64::MAX), argument, now),
            _ => self.write(usize::from(first) + 1),
        }
    }

    /// A connection of the peer, the newest or the oldest, in this state.
    fn conn(&self, peer: usize, connected: bool) -> Option<ConnId> {
        let mut conns =
            self.pipes.iter().filter(|(_, pipe)| pipe.peer == peer && pipe.connected == connected);
        conns.next_back().map(|(conn, _)| *conn)
    }

    fn accept(&mut self, peer: usize) {
        let remote = SocketAddr::new(PEERS[peer].0, 40000);
        if let Ok(conn) = self.speaker.handle_accepted(SocketAddr::new(LOCAL, 179), remote, None, self.now) {
            self.named(conn, peer, true);
            self.settle();
        }
    }

    /// Asserts that no identifier is used twice.
    fn named(&mut self, conn: ConnId, peer: usize, connected: bool) {
        assert!(conn.0 >= self.names, "{conn} again");
        self.names = conn.0 + 1;
        self.pipes.insert(conn, Pipe { peer, connected, written: Vec::new() });
    }

    fn answer(&mut self, peer: usize, yes: bool) {
        let Some(conn) = self.conn(peer, false) else { return };
        match yes {
            true => {
                if let Some(pipe) = self.pipes.get_mut(&conn) {
                    pipe.connected = true;
                }
                let remote = SocketAddr::new(PEERS[peer].0, 179);
                self.speaker.handle_connected(conn, SocketAddr::new(LOCAL, 40001), remote, self.now);
            }
            false => {
                self.pipes.remove(&conn);
                self.speaker.handle_connect_failed(conn, "refused".to_owned(), self.now);
            }
        }
    }

    fn send(&mut self, peer: usize, octets: &[u8]) {
        if let Some(conn) = self.conn(peer, true) {
            self.speaker.handle_bytes(conn, octets, self.now);
            self.settle();
        }
    }

    fn edit(&mut self, peer: usize, first: u8, second: u8) {
        _ = self.speaker.update_peer(edited(peer, first, second), self.now);
    }

    /// Configures two ranges, one within the other, or one of them, or none.
    fn set_ranges(&mut self, which: u8, options: u8) {
        let range = |bit: u8, length: u8| {
            let prefix = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 1, 2), length);
            // The template has the AS number of one of the two guests, so the other guest cannot
            // connect.
            let template = edited(CONFIGURED + usize::from(which >> 2 & bit == bit), options, which);
            let rules = PathRules { local_as: local_as(which), ..PathRules::default() };
            let template = PeerConfig { paths: rules, ..template };
            let limit = 1 + u32::from(which >> 4 & 1);
            (which & bit != 0).then(|| PeerRange::new(prefix.into(), limit, template))
        };
        let ranges = [range(1, 24), range(2, 31)].into_iter().flatten().collect();
        _ = self.speaker.set_ranges(ranges, self.now);
        self.guests = true;
    }

    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(due) = self.speaker.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.fire();
            if self.speaker.poll_timeout().is_some_and(|next| next <= end)
                && duration > Duration::from_secs(3600)
            {
                break;
            }
        }
        self.now = end;
        self.fire();
    }

    /// A handled deadline is over.
    fn fire(&mut self) {
        for _ in 0..20 {
            self.speaker.handle_timeout(self.now);
            self.settle();
            if self.speaker.poll_timeout().is_none_or(|due| due > self.now) {
                return;
            }
        }
        panic!("an expired deadline stays");
    }

    fn write(&mut self, budget: usize) {
        for conn in self.pipes.keys().copied().collect::<Vec<_>>() {
            let mut out = Vec::new();
            while self.speaker.poll_transmit(conn, &mut out, budget, self.now) {
                assert!(out.len() < 1 << 20, "more output than possible");
            }
            if let Some(pipe) = self.pipes.get_mut(&conn) {
                pipe.written.extend_from_slice(&out);
            }
            self.settle();
            self.read_written(conn);
        }
    }

    /// Asserts that the written octets are whole messages that this engine would accept.
    fn read_written(&mut self, conn: ConnId) {
        let Some(pipe) = self.pipes.get_mut(&conn) else { return };
        whole(&std::mem::take(&mut pipe.written), PEERS[pipe.peer].1 != 65001);
    }

    /// Carries out the speaker's actions, and checks the invariants.
    fn settle(&mut self) {
        while let Some(action) = self.speaker.poll_action() {
            match action {
                Action::Connect { conn, peer, remote, .. } => {
                    let place = PEERS.iter().position(|(address, _)| *address == remote.ip());
                    let Some(place) = place else { panic!("{peer:?} is no peer") };
                    self.named(conn, place, false);
                }
                Action::Close { conn, last_words } => {
                    // A connection that the shell has reported as closed is not closed again.
                    let Some(pipe) = self.pipes.remove(&conn) else { panic!("{conn} does not exist") };
                    whole(&last_words, PEERS[pipe.peer].1 != 65001);
                }
                Action::Configure { conn, .. } => {
                    assert!(self.pipes.contains_key(&conn), "{conn} does not exist")
                }
                // No peer of this target has BFD.
                Action::SetBfd { .. } | Action::RemoveBfd { .. } => panic!("{action:?} without BFD"),
                Action::ListenRanges(ranges) => assert!(self.guests && ranges.len() <= 2),
                Action::Listen(keys) => assert!(keys.len() <= PEERS.len()),
            }
        }
        let mut events = 0;
        while self.speaker.poll_event().is_some() {
            events += 1;
        }
        assert!(events < 2000, "{events} events of one step");
        while let Some(conn) = self.speaker.poll_writable() {
            assert!(self.pipes.contains_key(&conn), "{conn} does not exist");
        }
        // A peer has at most two connections: an outgoing and an incoming one, until the collision
        // is resolved.
        for peer in 0..PEERS.len() {
            let pipes = self.pipes.values().filter(|pipe| pipe.peer == peer);
            assert!(pipes.count() <= 2, "{:?}", self.pipes);
        }
        let ranges = self.speaker.ranges();
        let of = |range| ranges.iter().find(|status| status.prefix == range);
        for status in self.speaker.peers(self.now) {
            let received: usize = status.families.iter().map(|family| family.received).sum();
            assert!(received <= LIMIT as usize + 400, "{received} prefixes");
            assert!(status.range.is_none_or(|range| of(range).is_some_and(|of| of.peers > 0)));
            if status.state == State::Established {
                assert!(status.session.is_some());
                assert!(received <= LIMIT as usize, "{received} prefixes of an Established peer");
            }
            for family in &status.families {
                assert!(family.stale <= family.received && family.accepted <= family.received);
            }
        }
    }

    /// Closes everything, and lets time pass.
    fn end(mut self) {
        for conn in self.pipes.keys().copied().collect::<Vec<_>>() {
            if let Some(pipe) = self.pipes.remove(&conn) {
                match pipe.connected {
                    true => self.speaker.handle_closed(conn, "closed".to_owned(), self.now),
                    false => self.speaker.handle_connect_failed(conn, "refused".to_owned(), self.now),
                }
                self.settle();
            }
        }
        // This time is longer than the longest Restart Time. Attempts to connect are not answered.
        for _ in 0..5 {
            self.now += Duration::from_secs(1100);
            self.fire();
        }
        // Then the longest Long-lived Stale Time passes.
        self.now += Duration::from_secs(1 << 24);
        self.fire();
        if !self.stopped {
            for (address, _) in PEERS {
                let received = self.speaker.received(address).map_or(0, |routes| routes.len());
                assert_eq!(received, 0, "routes of {address} are left");
            }
            assert!(
                self.speaker.routes().iter().all(|route| route.peer.is_none()),
                "best paths without a peer"
            );
            let guests = self.speaker.peers(self.now).into_iter().filter(|status| status.range.is_some());
            let guests: Vec<_> = guests.collect();
            assert_eq!(guests.len(), 0, "dynamic neighbours are left: {guests:?}");
        }
    }
}

/// Asserts that the octets are whole messages that can be read.
fn whole(mut octets: &[u8], ebgp: bool) {
    while !octets.is_empty() {
        let Ok(Some(message)) = frame(octets, MAX_EXTENDED) else {
            panic!("not a whole message: {octets:02x?}")
        };
        octets = &octets[message.len..];
        let read = match message.kind {
            MessageKind::Open => Open::decode(message.body).is_ok(),
            MessageKind::Notification => Notification::decode(message.body).is_ok(),
            MessageKind::RouteRefresh => RouteRefresh::decode(message.body).is_ok(),
            MessageKind::Keepalive => true,
            MessageKind::Update => [0, 1, 2, 3].into_iter().any(|agreed| {
                let add_path = if agreed & 2 == 0 { FamilySet::EMPTY } else { FamilySet::ALL };
                let families = FamilySet::ALL;
                let four_octet_as = agreed & 1 == 0;
                let context = DecodeContext { four_octet_as, ext_next_hop: true, families, add_path, ebgp };
                let mut scratch = Scratch::default();
                let update = decode_update(message.body, &context, &mut scratch);
                update.is_ok_and(|update| update.treat_as_withdraw.is_none() && update.discarded.is_empty())
            }),
        };
        assert!(read, "would be refused: {message:02x?}");
    }
}

/// A peer's configuration after an operator's change.
fn edited(peer: usize, first: u8, second: u8) -> PeerConfig {
    PeerConfig {
        max_prefixes: Some(LIMIT.min(1 + u32::from(second))),
        hold_time: Duration::from_secs(if first & 1 == 0 { 90 } else { 30 }),
        graceful_restart: (first & 2 == 0).then_some(second.into()),
        shutdown: first & 12 == 12,
        families: if first & 16 == 0 { FamilySet::ALL } else { [Family::Ipv4Unicast].into_iter().collect() },
        next_hop_v6: (first & 32 != 0).then_some(std::net::Ipv6Addr::LOCALHOST),
        add_path: add_path(first & 64 != 0),
        long_lived: [(first & 130 == 128).then_some(300); 2],
        restart_notification: first & 128 != 0,
        ..PeerConfig::new(PEERS[peer].0, Asn(PEERS[peer].1))
    }
}

/// Another AS number with its options; none in one of four cases.
fn local_as(options: u8) -> Option<LocalAs> {
    let (no_prepend, replace_as) = (options & 32 != 0, options & 64 != 0);
    (options & 160 != 0).then_some(LocalAs { asn: Asn(64999), no_prepend, replace_as })
}

fn add_path(on: bool) -> AddPath {
    AddPath { receive: on, send: NonZeroU8::new(2).filter(|_| on) }
}

fn prefix(number: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 1, number, 0), 24))
}

/// The OPEN of a peer; `options` choose its capabilities.
fn open(peer: usize, asn: u32, options: u8) -> Vec<u8> {
    let [.., a, b] = asn.to_be_bytes();
    let mut capabilities: Vec<u8> = Vec::new();
    for (bit, capability) in [
        (1, &[1, 4, 0, 1, 0, 1][..]),
        (2, &[1, 4, 0, 2, 0, 1]),
        (4, &[65, 4, 0, 0, a, b]),
        (
            8,
            &[
                2, 0, // and several paths, and long-lived graceful restart
                69, 8, 0, 1, 1, 3, 0, 2, 1, 3, //
                71, 14, 0, 1, 1, 0x80, 0, 1, 0, 0, 2, 1, 0x80, 0, 1, 0,
            ],
        ),
        (16, &[6, 0]),
        (32, &[64, 10, 0x40, 120, 0, 1, 1, 0x80, 0, 2, 1, 0x80]),
        (64, &[64, 2, 0x80, 10]),
        (128, &[5, 6, 0, 1, 0, 1, 0, 2]),
    ] {
        // The bits are inverted: an octet of 0 is a peer with nearly all capabilities.
        if (options ^ 0x40) & bit == 0 {
            capabilities.extend_from_slice(capability);
        }
    }
    let length = capabilities.len() as u8;
    let mut body = vec![4, a, b, 0, 90, 10, 0, 0, 2 + peer as u8];
    match length {
        0 => body.push(0),
        length => body.extend_from_slice(&[length + 2, 2, length]),
    }
    body.extend_from_slice(&capabilities);
    message(1, &body)
}

/// Some /24s with four-octet attributes.
fn announce(number: u8, count: u8) -> Vec<u8> {
    let mut body =
        vec![0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea, 0x40, 3, 4, 10, 0, 0, 2];
    (0..count & 63).for_each(|i| body.extend_from_slice(&[24, 10, number, i]));
    body
}

fn withdraw(number: u8, count: u8) -> Vec<u8> {
    let count = count & 63;
    let mut body = (u16::from(count) * 4).to_be_bytes().to_vec();
    (0..count).for_each(|i| body.extend_from_slice(&[24, 10, number, i]));
    body.extend_from_slice(&[0, 0]);
    body
}
