//! Two BFD endpoints on a virtual clock, with latency and loss, and a table of every reception
//! check.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test; any instant will do as the origin"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use trunkline_bgp::bfd::{
    BfdConfig, Cause, ConfigError, Down, Endpoint, Event, LEAVING_TIME, Links, Packet, PacketError, Reason,
    Rejection, SessionId, Source, State, Target,
};

const ID: SessionId = SessionId(7);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn address(side: usize) -> IpAddr {
    ["10.0.0.1", "10.0.0.2"][side].parse().unwrap()
}

fn target(side: usize, config: BfdConfig) -> Target {
    Target { remote: address(1 - side), local: Some(address(side)), interface: None, config }
}

fn source(side: usize) -> Source {
    Source {
        remote: address(1 - side),
        local: Some(address(side)),
        interface: None,
        ttl: Some(255),
        multihop: false,
    }
}

struct Pair {
    ends: [Endpoint; 2],
    now: Instant,
    latency: Duration,
    /// Whether the n-th packet of this side is lost.
    lost: [fn(u64) -> bool; 2],
    sent: [Vec<(Instant, Packet)>; 2],
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    events: [Vec<(Instant, Event)>; 2],
    /// Side 1 sets the C bit.
    independent: bool,
}

impl Pair {
    fn new(configs: [BfdConfig; 2]) -> Pair {
        let now = Instant::now();
        let mut ends = [Endpoint::new(1), Endpoint::new(2)];
        for (side, config) in configs.into_iter().enumerate() {
            ends[side].set(ID, target(side, config), now).unwrap();
        }
        Pair {
            ends,
            now,
            latency: ms(1),
            lost: [|_| false, |_| false],
            sent: [Vec::new(), Vec::new()],
            wire: BTreeMap::new(),
            events: [Vec::new(), Vec::new()],
            independent: false,
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for side in 0..2 {
                while let Some(transmit) = self.ends[side].poll_transmit() {
                    let mut octets = transmit.payload;
                    if self.independent && side == 1 {
                        octets[1] |= 0x08;
                    }
                    let number = self.sent[side].len() as u64;
                    self.sent[side].push((self.now, Packet::decode(&octets).unwrap()));
                    if !(self.lost[side])(number) {
                        let order = (self.now + self.latency, number * 2 + side as u64);
                        self.wire.insert(order, (1 - side, octets.to_vec()));
                    }
                }
                while let Some(event) = self.ends[side].poll_event() {
                    self.events[side].push((self.now, event));
                }
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.chain(arrival).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (at, _) = *entry.key();
                let (side, octets) = entry.remove();
                // A packet may be rejected only after a side has removed the session.
                let _ = self.ends[side].handle_packet(&source(side), &octets, at);
            }
            self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
        }
        self.now = end;
    }

    fn state(&self, side: usize) -> State {
        self.ends[side].status(ID).unwrap().state
    }

    fn downs(&self, side: usize) -> Vec<(Instant, Down)> {
        self.events[side].iter().filter_map(|(at, event)| Some((*at, event.down?))).collect()
    }

    fn intervals(&self, side: usize, from: usize) -> Vec<Duration> {
        let paced: Vec<Instant> =
            self.sent[side][from..].iter().filter(|(_, packet)| !packet.final_).map(|(at, _)| *at).collect();
        paced.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

fn fast() -> BfdConfig {
    BfdConfig::new(ms(50))
}

#[test]
fn a_session_comes_up_slowly_then_uses_the_fast_interval() {
    let mut pair = Pair::new([fast(), BfdConfig { multiplier: 5, ..BfdConfig::new(ms(100)) }]);
    pair.run(Duration::from_secs(4));
    assert_eq!((pair.state(0), pair.state(1)), (State::Up, State::Up));
    let status = pair.ends[0].status(ID).unwrap();
    assert_eq!(status.transmit_interval, ms(100), "the slower side decides");
    assert_eq!(status.detection_time, Some(ms(500)), "the peer's multiplier");
    assert_eq!(pair.ends[1].status(ID).unwrap().detection_time, Some(ms(300)));
    assert_eq!(status.remote_discriminator, pair.ends[1].status(ID).unwrap().local_discriminator);
    let before_up = pair.sent[0].iter().filter(|(_, packet)| packet.state != State::Up);
    assert!(before_up.clone().all(|(_, packet)| packet.desired_min_tx >= Duration::from_secs(1)));
    assert!(pair.sent[0].iter().any(|(_, p)| p.poll) && pair.sent[1].iter().any(|(_, p)| p.final_));
    let (_, last) = pair.sent[0].last().unwrap();
    assert!(!last.poll, "the Poll was answered and has ended");
}

#[test]
fn jitter_is_75_to_100_percent_and_90_at_most_for_multiplier_1() {
    for (multiplier, most) in [(3, 50_000), (1, 45_000)] {
        let mut pair = Pair::new([BfdConfig { multiplier, ..fast() }, fast()]);
        pair.run(Duration::from_secs(5));
        let from = pair.sent[0].len();
        pair.run(Duration::from_secs(20));
        let drawn = pair.intervals(0, from);
        assert!(drawn.len() > 300);
        let (low, high) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(
            *low >= Duration::from_micros(37_500) && *high <= Duration::from_micros(most),
            "{low:?} {high:?}"
        );
        assert!(*high - *low > Duration::from_micros(5_000), "spread");
        assert!(pair.downs(0).is_empty() && pair.downs(1).is_empty());
    }
}

#[test]
fn silence_expires_the_session_and_the_peer_is_informed() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.independent = true;
    pair.run(Duration::from_secs(5));
    // The packets of side 1 are lost. The packets of side 0 still arrive.
    pair.lost[1] = |_| true;
    let cut = pair.now;
    pair.run(ms(400));
    let (at, down) = pair.downs(0)[0];
    assert_eq!(down, Down { cause: Cause::TimeExpired, control_plane_independent: true });
    assert!(at - cut <= ms(151) && at - cut >= ms(100), "{:?}", at - cut);
    assert_eq!(pair.downs(1)[0].1.cause, Cause::NeighborDown);
    assert!(pair.downs(1)[0].0 - at <= ms(2), "signalled at once");
    assert_eq!(pair.ends[0].status(ID).unwrap().diagnostic.to_string(), "Control Detection Time Expired");
    pair.lost[1] = |_| false;
    pair.run(Duration::from_secs(4));
    assert_eq!((pair.state(0), pair.state(1)), (State::Up, State::Up));
    assert_eq!(pair.ends[0].status(ID).unwrap().up_count, 2);
}

#[test]
fn two_of_three_packets_may_be_lost() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    pair.lost = [|n| n % 3 != 0, |n| n % 3 != 1];
    pair.run(Duration::from_secs(30));
    assert!(pair.downs(0).is_empty() && pair.downs(1).is_empty());
}

#[test]
fn packets_handled_late_count_from_their_arrival() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    // This side did not run for a second. The peer sent packets all the time.
    let last = pair.sent[1].last().unwrap().1;
    let late = pair.now + Duration::from_secs(1);
    pair.ends[0].handle_packet(&source(0), &last.encode(), late - ms(10)).unwrap();
    pair.ends[0].handle_timeout(late);
    assert_eq!(pair.state(0), State::Up);
    // A packet waits in the socket for ten milliseconds, which does not extend the detection time.
    let due = late - ms(10) + ms(150);
    pair.ends[0].handle_timeout(due - ms(1));
    assert_eq!(pair.state(0), State::Up);
    pair.ends[0].handle_timeout(due);
    assert_eq!(pair.state(0), State::Down);
}

#[test]
fn admin_down_is_sent_for_a_detection_time() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    pair.ends[1].remove(ID, pair.now);
    assert!(pair.ends[1].is_active(ID));
    pair.run(LEAVING_TIME - ms(10));
    assert!(pair.downs(0).is_empty(), "AdminDown precedes BGP's NOTIFICATION");
    pair.run(ms(20));
    assert_eq!(pair.downs(0)[0].1.cause, Cause::NeighborAdminDown);
    assert_eq!(pair.state(0), State::Down);
    pair.run(Duration::from_secs(10));
    assert!(!pair.ends[1].is_active(ID));
    assert_eq!(pair.downs(0).len(), 1, "the session is already Down during the later silence");
}

#[test]
fn admin_down_is_sent_at_once_if_the_owner_ends() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    pair.ends[1].remove(ID, pair.now);
    pair.ends[1].close(pair.now);
    pair.run(ms(10));
    assert_eq!(pair.downs(0)[0].1.cause, Cause::NeighborAdminDown);
}

#[test]
fn a_new_session_ends_the_former_one_with_the_same_peer() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    let former = pair.ends[1].status(ID).unwrap().local_discriminator;
    pair.ends[1].remove(ID, pair.now);
    let (new, before) = (SessionId(ID.0 + 1), pair.sent[1].len());
    pair.ends[1].set(new, target(1, fast()), pair.now).unwrap();
    pair.run(LEAVING_TIME * 5);
    let mut later = pair.sent[1][before..].iter().map(|(_, packet)| packet);
    let up = later.find(|packet| packet.my_discriminator == former && packet.state != State::AdminDown);
    assert_eq!(up, None, "the former session stays Up");
    assert_eq!(pair.ends[1].status(new).unwrap().state, State::Up);
    assert_eq!(pair.state(0), State::Up);
}

#[test]
fn timers_change_on_a_live_session_without_a_flap() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    for interval in [400, 10, 60] {
        let slower = BfdConfig { multiplier: 2, ..BfdConfig::new(ms(interval)) };
        pair.ends[0].set(ID, target(0, slower), pair.now).unwrap();
        pair.run(Duration::from_secs(3));
        let status = pair.ends[0].status(ID).unwrap();
        assert_eq!(status.transmit_interval, ms(interval.max(50)));
        assert_eq!(status.detection_time, Some(ms(interval.max(50)) * 3));
    }
    assert!(pair.downs(0).is_empty() && pair.downs(1).is_empty());
    let other = Target { remote: "10.9.9.9".parse().unwrap(), ..target(0, fast()) };
    pair.ends[0].set(ID, other, pair.now).unwrap();
    assert_eq!(pair.state(0), State::Down, "another peer has another session");
}

#[test]
fn a_slower_interval_waits_for_the_final_bit() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(5));
    pair.lost[1] = |_| true; // the answer is lost
    pair.ends[0].set(ID, target(0, BfdConfig::new(ms(1000))), pair.now).unwrap();
    let from = pair.sent[0].len();
    pair.run(ms(140));
    assert!(pair.intervals(0, from).iter().all(|interval| *interval <= ms(50)));
    assert!(pair.sent[0][from..].iter().all(|(_, p)| p.poll && p.desired_min_tx == ms(1000)));
}

#[test]
fn demand_mode_or_min_rx_0_stops_periodic_packets() {
    let spoil: [fn(&mut Packet); 2] = [|p| p.demand = true, |p| p.required_min_rx = Duration::ZERO];
    for spoil in spoil {
        let mut pair = Pair::new([fast(), fast()]);
        pair.run(Duration::from_secs(5));
        let mut packet = pair.sent[1].last().unwrap().1;
        spoil(&mut packet);
        let from = pair.sent[0].len();
        for _ in 0..20 {
            pair.ends[0].handle_packet(&source(0), &packet.encode(), pair.now).unwrap();
            pair.now += ms(50);
            pair.ends[0].handle_timeout(pair.now);
            assert_eq!(pair.ends[0].poll_transmit(), None);
        }
        assert_eq!(pair.sent[0].len(), from);
        assert_eq!(pair.state(0), State::Up);
        // The peer may still send a Poll.
        packet.poll = true;
        pair.ends[0].handle_packet(&source(0), &packet.encode(), pair.now).unwrap();
        let answer = Packet::decode(&pair.ends[0].poll_transmit().unwrap().payload).unwrap();
        assert!(answer.final_ && !answer.poll);
    }
}

#[test]
fn every_reception_check_rejects_its_packet() {
    let pair = {
        let mut pair = Pair::new([fast(), fast()]);
        pair.run(Duration::from_secs(5));
        pair
    };
    let good = pair.sent[1].last().unwrap().1.encode();
    let mut end = pair.ends.into_iter().next().unwrap();
    end.handle_packet(&source(0), &good, pair.now).unwrap();
    let with = |edit: fn(&mut Vec<u8>)| {
        let mut octets = good.to_vec();
        edit(&mut octets);
        octets
    };
    let table: [(Vec<u8>, Rejection); 13] = [
        (good[..23].to_vec(), PacketError::Short(23).into()),
        (Vec::new(), PacketError::Short(0).into()),
        (with(|o| o[0] = o[0] & 0x1f | 2 << 5), PacketError::Version(2).into()),
        (with(|o| o[3] = 23), PacketError::Length { length: 23, octets: 24 }.into()),
        (with(|o| o[3] = 25), PacketError::Length { length: 25, octets: 24 }.into()),
        (with(|o| o[1] |= 4), PacketError::Length { length: 24, octets: 24 }.into()),
        (with(|o| o[2] = 0), PacketError::Multiplier.into()),
        (with(|o| o[1] |= 1), PacketError::Multipoint.into()),
        (with(|o| o[4..8].fill(0)), PacketError::MyDiscriminator.into()),
        (with(|o| o[8..12].fill(0)), PacketError::YourDiscriminator(State::Up).into()),
        (with(|o| o[1] |= 0x30), PacketError::PollAndFinal.into()),
        (with(|o| o[8..12].fill(0x55)), Rejection::UnknownDiscriminator(0x5555_5555)),
        (
            with(|o| {
                o[1] |= 4;
                o[3] = 28;
                o.extend([1, 4, 0, 0]);
            }),
            Rejection::Authenticated,
        ),
    ];
    let before = end.status(ID).unwrap();
    for (octets, expected) in table {
        assert_eq!(end.handle_packet(&source(0), &octets, pair.now), Err(expected), "{octets:02x?}");
    }
    let sources: [(Source, Rejection); 5] = [
        (Source { ttl: Some(254), ..source(0) }, Rejection::Ttl(Some(254))),
        (Source { ttl: None, ..source(0) }, Rejection::Ttl(None)),
        (Source { remote: address(0), ..source(0) }, Rejection::WrongPeer(address(0))),
        (Source { local: Some(address(1)), ..source(0) }, Rejection::WrongPeer(address(1))),
        (Source { multihop: true, ..source(0) }, Rejection::WrongPeer(address(1))),
    ];
    for (source, expected) in sources {
        assert_eq!(end.handle_packet(&source, &good, pair.now), Err(expected), "{source:?}");
    }
    assert_eq!(end.status(ID).unwrap(), before, "a rejected packet changes nothing");
    let mut down = Packet::decode(&good).unwrap();
    (down.state, down.your_discriminator) = (State::Down, 0);
    let stranger = Source { remote: "10.0.0.9".parse().unwrap(), ..source(0) };
    let refused = end.handle_packet(&stranger, &down.encode(), pair.now);
    assert_eq!(refused, Err(Rejection::UnknownPeer(stranger.remote)));
    // Octets beyond the length field are not a fault. A packet with discriminator 0 is matched by
    // its addresses.
    end.handle_packet(&source(0), &with(|o| o.push(0)), pair.now).unwrap();
    end.handle_packet(&source(0), &down.encode(), pair.now).unwrap();
    assert_eq!(end.status(ID).unwrap().state, State::Down);
}

#[test]
fn packets_match_sessions_by_interface_and_multihop_port() {
    let now = Instant::now();
    let mut end = Endpoint::new(3);
    let remote: IpAddr = "fe80::1".parse().unwrap();
    for (id, interface, index) in [(1, "eth0", 11), (2, "eth1", 12)] {
        let target = Target { remote, local: None, interface: interface.parse().ok(), config: fast() };
        end.set(SessionId(id), target, now).unwrap();
        end.set_links(SessionId(id), only(&[index]));
    }
    let far = Target { remote, local: None, interface: None, config: BfdConfig { multihop: true, ..fast() } };
    end.set(SessionId(3), far, now).unwrap();
    end.handle_timeout(now);
    let mut down = Packet::decode(&end.poll_transmit().unwrap().payload).unwrap();
    down.my_discriminator = 99;
    for (expected, interface, ttl, multihop) in
        [(1, Some(11), 255, false), (2, Some(12), 255, false), (3, None, 61, true)]
    {
        let source = Source { remote, local: None, interface, ttl: Some(ttl), multihop };
        assert_eq!(end.handle_packet(&source, &down.encode(), now), Ok(SessionId(expected)));
    }
    let elsewhere = Source { interface: Some(13), ..Source { local: None, remote, ..source(0) } };
    let refused = Rejection::WrongLink { remote, interface: Some(13) };
    assert_eq!(end.handle_packet(&elsewhere, &down.encode(), now), Err(refused));
}

fn only(indices: &[u32]) -> Links {
    Links::Only(indices.iter().copied().collect())
}

/// A pod is one hop away: its packets arrive with TTL 255, and it can forge any source address and
/// discriminator.
#[test]
fn a_packet_from_another_link_changes_nothing() {
    let mut pair = Pair::new([fast(), fast()]);
    pair.run(Duration::from_secs(4));
    let end = &mut pair.ends[0];
    end.set_links(ID, only(&[2]));
    assert_eq!(end.status(ID).unwrap().state, State::Up);
    let before = end.status(ID).unwrap();
    let good = pair.sent[1].last().unwrap().1;
    for state in [State::AdminDown, State::Down, State::Init, State::Up] {
        for your_discriminator in [0, good.your_discriminator] {
            let forged = Packet { state, your_discriminator, my_discriminator: 7, ..good };
            for interface in [Some(3), None] {
                let source = Source { interface, ..source(0) };
                let refused = end.handle_packet(&source, &forged.encode(), pair.now).unwrap_err();
                // Up and Init with discriminator 0 are malformed.
                let good = matches!(refused.reason(), Reason::Link | Reason::Malformed);
                assert!(good, "{state} {your_discriminator:#x} {interface:?}: {refused}");
                assert_eq!(end.status(ID).unwrap(), before, "{state}");
            }
        }
    }
    let own = Source { interface: Some(2), ..source(0) };
    assert_eq!(end.handle_packet(&own, &good.encode(), pair.now), Ok(ID));
    // The link was replaced: its index is new, the session is the same.
    end.set_links(ID, only(&[9]));
    end.handle_packet(&own, &good.encode(), pair.now).unwrap_err();
    let moved = Source { interface: Some(9), ..source(0) };
    assert_eq!(end.handle_packet(&moved, &good.encode(), pair.now), Ok(ID));
    assert_eq!(end.status(ID).unwrap().down_count, 0);
}

#[test]
fn values_out_of_range_are_rejected() {
    let mut end = Endpoint::new(3);
    for (config, expected) in [
        (BfdConfig::new(ms(9)), ConfigError::Interval(ms(9))),
        (BfdConfig::new(Duration::from_secs(61)), ConfigError::Interval(Duration::from_secs(61))),
        (BfdConfig { multiplier: 0, ..fast() }, ConfigError::Multiplier),
    ] {
        assert_eq!(end.set(ID, target(0, config), Instant::now()), Err(expected));
    }
}
