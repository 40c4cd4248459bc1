//! A BFD endpoint with a single-hop and a multihop session; peers, clock and owner act arbitrarily.
//!
//! The input is a script as in [`crate::session`]: steps of an opcode, a length and that many
//! octets. Invariants after each step: a received packet causes at most one packet in reply; this
//! side would accept every packet that it sends; a handled deadline is over; a session without
//! received packets is Down after its detection time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use trunkline_bgp::bfd::{BfdConfig, Endpoint, Packet, SessionId, Source, State, Target};

const PEERS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))];

struct World {
    endpoint: Endpoint,
    now: Instant,
}

/// An octet of configuration, then the script.
pub fn run(data: &[u8]) {
    let Some((&octet, mut script)) = data.split_first() else { return };
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    let now = Instant::now();
    let mut world = World { endpoint: Endpoint::new(u64::from(octet)), now };
    world.set(0, octet, 3);
    world.set(1, octet.rotate_left(3), 3);
    let mut steps = 0;
    while let [opcode, length, rest @ ..] = script {
        let (argument, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        world.step(*opcode, argument);
        world.settle(2);
        script = rest;
        steps += 1;
        if steps == 200 {
            break;
        }
    }
    // The peers are silent for the longest detection time: 255 packets at the longest interval that
    // a peer can request (4295 s).
    for _ in 0..3 {
        world.now += Duration::from_secs(255 * 4300);
        world.fire();
    }
    for id in 0..PEERS.len() {
        let status = world.endpoint.status(SessionId(id as u32));
        assert!(status.is_none_or(|status| status.state != State::Up), "Up without a packet: {status:?}");
    }
}

impl World {
    fn step(&mut self, opcode: u8, argument: &[u8]) {
        let peer = usize::from(opcode >> 7);
        let [first, second] = [0, 1].map(|at| argument.get(at).copied().unwrap_or_default());
        match opcode & 7 {
            0 => self.receive(peer, argument, opcode),
            1..=3 => {
                let packet = self.packet(peer, argument);
                self.receive(peer, &packet, 0);
            }
            4 => {
                self.now += Duration::from_micros(u64::from(first) << (second & 31));
                self.fire();
            }
            5 => self.fire(),
            6 => self.set(peer, first, second.max(1)),
            _ => self.endpoint.remove(SessionId(peer as u32), self.now),
        }
    }

    fn set(&mut self, peer: usize, interval: u8, multiplier: u8) {
        let config = BfdConfig {
            interval: Duration::from_millis(10 + u64::from(interval) * 100),
            multiplier,
            multihop: peer == 1,
        };
        let target = Target { remote: PEERS[peer], local: None, interface: None, config };
        assert!(self.endpoint.set(SessionId(peer as u32), target, self.now).is_ok());
    }

    /// A packet that matches a session, with fields of the input.
    fn packet(&self, peer: usize, argument: &[u8]) -> Vec<u8> {
        let field = |at: usize| argument.get(at).copied().unwrap_or_default();
        let yours =
            self.endpoint.status(SessionId(peer as u32)).map_or(0, |status| status.local_discriminator);
        let mut packet =
            vec![0x20 | field(0) & 0x1f, (field(1) & 3) << 6 | field(2) & 0x3e, field(3).max(1), 24];
        packet.extend_from_slice(&[0, 0, 0, 7]);
        packet.extend_from_slice(&if field(1) & 4 == 0 { yours } else { 0 }.to_be_bytes());
        for at in 0..3 {
            packet.extend_from_slice(&[field(4 + at) & 0x3f, field(7 + at), field(10 + at), 0]);
        }
        packet
    }

    fn receive(&mut self, peer: usize, octets: &[u8], options: u8) {
        let source = Source {
            remote: PEERS[peer],
            local: None,
            interface: None,
            ttl: (options & 16 == 0).then_some(if options & 32 == 0 { 255 } else { 254 }),
            multihop: (peer == 1) != (options & 64 != 0),
        };
        if let Err(rejection) = self.endpoint.handle_packet(&source, octets, self.now) {
            assert!(!rejection.to_string().is_empty());
        }
        self.settle(1);
    }

    /// A handled deadline is over.
    fn fire(&mut self) {
        for _ in 0..20 {
            self.endpoint.handle_timeout(self.now);
            self.settle(2 * PEERS.len() + 300);
            if self.endpoint.poll_timeout().is_none_or(|due| due > self.now) {
                return;
            }
        }
        panic!("an expired deadline stays");
    }

    fn settle(&mut self, most: usize) {
        let mut packets = 0;
        while let Some(transmit) = self.endpoint.poll_transmit() {
            packets += 1;
            match Packet::decode(&transmit.payload) {
                Ok(packet) => assert!(packet.multiplier > 0 && !(packet.poll && packet.final_), "{packet:?}"),
                Err(error) => panic!("would be refused: {error}"),
            }
        }
        assert!(packets <= most, "{packets} packets");
        while self.endpoint.poll_event().is_some() {}
    }
}
