//! A BMP station's view of a speaker (RFC 7854): at every moment the routes that the speaker has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use trunkline_bgp::bmp::{StationConfig, StationId, StationRead};
use trunkline_bgp::speaker::{Origination, Stop};
use trunkline_bgp::types::{Family, FamilySet};
use trunkline_bgp::wire::{DecodeContext, MessageKind, Notification, Scratch, decode_update, frame};

use crate::net::{Net, ip, net, secs};

/// The time of day at the start.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// The state of a station.
#[derive(Default)]
struct Station {
    octets: Vec<u8>,
    initiated: bool,
    routes: BTreeMap<IpAddr, BTreeSet<IpNet>>,
    end_of_rib: BTreeSet<(IpAddr, Family)>,
    /// Reason code and data.
    downs: Vec<(u8, Vec<u8>)>,
    /// Routes in the last Stats Report of each peer.
    counted: BTreeMap<IpAddr, u64>,
    last_time: Duration,
}

impl Station {
    fn receive(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
        while let Some(length) = self.octets.get(1..5) {
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.octets.len() < length {
                return;
            }
            let message: Vec<u8> = self.octets.drain(..length).collect();
            assert_eq!(message[0], 3, "version");
            self.message(message[5], &message[6..]);
        }
    }

    fn message(&mut self, kind: u8, body: &[u8]) {
        if kind == 4 {
            let text = String::from_utf8_lossy(body);
            assert!(text.contains("router one") && text.contains("a test"), "{text}");
            self.initiated = true;
            return;
        }
        assert!(self.initiated, "Initiation comes first");
        assert_eq!((body[0], body[1]), (0, 0), "global instance; IPv4, before policy, four-octet AS numbers");
        let address = IpAddr::from(*body[22..26].first_chunk::<4>().unwrap());
        assert_eq!(body[10..22], [0; 12]);
        let number = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().unwrap());
        assert_eq!(number(26), 65000 + number(22) % 256, "the AS of {address}");
        let time = Duration::from_secs(u64::from(number(34))) + Duration::from_micros(u64::from(number(38)));
        assert!(time >= self.last_time.max(EPOCH), "{time:?}");
        self.last_time = time;
        let body = &body[42..];
        match kind {
            0 => self.monitored(address, body),
            1 => {
                assert_eq!(body[4..8], [0, 7, 0, 8]);
                self.counted.insert(address, u64::from_be_bytes(body[8..16].try_into().unwrap()));
            }
            2 => {
                assert!(self.routes.remove(&address).is_some(), "{address} was not up");
                self.end_of_rib.retain(|(peer, _)| *peer != address);
                self.downs.push((body[0], body[1..].to_vec()));
            }
            3 => {
                assert_eq!(body[12..16], [10, 0, 0, 1], "the local address");
                let sent = frame(&body[20..], 4096).unwrap().unwrap();
                let received = frame(&body[20 + sent.len..], 4096).unwrap().unwrap();
                assert_eq!((sent.kind, received.kind), (MessageKind::Open, MessageKind::Open));
                assert_eq!(20 + sent.len + received.len, body.len());
                assert!(self.routes.insert(address, BTreeSet::new()).is_none(), "{address} was up");
            }
            other => panic!("message type {other}"),
        }
    }

    fn monitored(&mut self, address: IpAddr, update: &[u8]) {
        let routes = self.routes.get_mut(&address).expect("routes of a peer that is up");
        let message = frame(update, 65535).unwrap().unwrap();
        assert_eq!((message.kind, message.len), (MessageKind::Update, update.len()));
        let context = DecodeContext {
            four_octet_as: true,
            ext_next_hop: true,
            families: FamilySet::ALL,
            add_path: FamilySet::EMPTY,
            ebgp: true,
        };
        let mut scratch = Scratch::default();
        let update = decode_update(message.body, &context, &mut scratch).unwrap();
        assert!(update.treat_as_withdraw.is_none() && update.discarded.is_empty());
        for prefixes in update.withdrawn() {
            routes.retain(|route| !prefixes.iter().any(|prefix| prefix == *route));
        }
        for reach in update.announced() {
            routes.extend(reach.prefixes.iter());
        }
        self.end_of_rib.extend(update.end_of_rib.map(|family| (address, family)));
    }
}

fn connect(all: &mut Net, host: u8) -> StationId {
    let config = StationConfig {
        name: "router one".to_owned(),
        description: "a test".to_owned(),
        stats_interval: Some(secs(60)),
    };
    let since = EPOCH + (all.now - all.start);
    all.nodes.get_mut(&host).unwrap().speaker.as_mut().unwrap().station_connected(config, since, all.now)
}

/// Reads everything that is queued for a station.
fn read(all: &mut Net, host: u8, id: StationId, budget: usize, station: &mut Station) {
    let speaker = all.nodes.get_mut(&host).unwrap().speaker.as_mut().unwrap();
    loop {
        let mut octets = Vec::new();
        let read = speaker.station_read(id, &mut octets, budget, all.now);
        assert_eq!(read == StationRead::Idle, !speaker.station_ready(id));
        station.receive(&octets);
        match read {
            StationRead::More => {}
            StationRead::Idle => return,
            StationRead::Lost => panic!("lost"),
        }
    }
}

fn has(all: &Net, host: u8, peer: IpAddr) -> BTreeSet<IpNet> {
    let speaker = all.nodes[&host].speaker.as_ref().unwrap();
    speaker
        .received(peer)
        .unwrap()
        .into_iter()
        .filter(|route| !route.stale)
        .map(|route| route.prefix)
        .collect()
}

fn many() -> Net {
    let mut all = Net::pair();
    for number in 0..3000u32 {
        let prefix = IpNet::new(IpAddr::from((0xac10_0000u32 + (number << 8)).to_be_bytes()), 24).unwrap();
        let communities = vec![format!("65002:{}", number / 5).parse().unwrap()];
        let origination = Origination { communities, ..Origination::default() };
        all.nodes.get_mut(&2).unwrap().originated.insert(prefix, origination);
    }
    all
}

#[test]
fn a_late_station_receives_the_tables_then_changes() {
    for budget in [100, 64 * 1024] {
        let mut all = many();
        all.boot_all();
        all.run(secs(20));
        let id = connect(&mut all, 1);
        let mut station = Station::default();
        // The station reads a part of the walk. Then routes change in the walked part and in the
        // rest.
        let mut octets = Vec::new();
        let speaker = all.nodes.get_mut(&1).unwrap().speaker.as_mut().unwrap();
        assert_eq!(speaker.station_read(id, &mut octets, 100, all.now), StationRead::More);
        station.receive(&octets);
        for prefix in ["172.16.0.0/24", "172.27.0.0/24"] {
            all.with(2, |speaker, now| speaker.withdraw(net(prefix), now));
        }
        all.with(2, |speaker, now| speaker.originate(net("192.0.2.0/24"), Origination::default(), now));
        all.run(secs(1));
        read(&mut all, 1, id, budget, &mut station);
        let expected = has(&all, 1, ip(2));
        assert_eq!(
            expected.len(),
            3000,
            "two routes are withdrawn; the pair's own route and a new one are added"
        );
        assert_eq!(station.routes, BTreeMap::from([(ip(2), expected)]), "budget {budget}");
        let families: BTreeSet<_> = Family::ALL.into_iter().map(|family| (ip(2), family)).collect();
        assert_eq!(station.end_of_rib, families);
        all.run(secs(61));
        read(&mut all, 1, id, budget, &mut station);
        assert_eq!(station.counted, BTreeMap::from([(ip(2), 3000)]));
    }
}

#[test]
fn a_station_sees_sessions_end_with_a_reason_and_return() {
    let mut all = Net::pair();
    all.boot(1);
    let id = connect(&mut all, 1);
    let mut station = Station::default();
    read(&mut all, 1, id, 4096, &mut station);
    assert!(station.initiated && station.routes.is_empty());
    all.boot(2);
    all.run(secs(20));
    read(&mut all, 1, id, 4096, &mut station);
    assert_eq!(station.routes, BTreeMap::from([(ip(2), has(&all, 1, ip(2)))]));
    assert!(!station.routes[&ip(2)].is_empty());

    // Node 2 restarts. Node 1 still uses the routes, but the station receives first their
    // withdrawal and then a new advertisement.
    all.kill(2);
    all.run(secs(2));
    read(&mut all, 1, id, 4096, &mut station);
    assert!(station.routes.is_empty());
    assert_eq!(station.downs.pop(), Some((4, vec![])), "closed by the peer");
    let late = connect(&mut all, 1);
    let mut other = Station::default();
    read(&mut all, 1, late, 4096, &mut other);
    assert!(other.routes.is_empty(), "stale routes are not sent");
    all.reboot(2);
    all.run(secs(30));
    read(&mut all, 1, id, 4096, &mut station);
    assert_eq!(station.routes, BTreeMap::from([(ip(2), has(&all, 1, ip(2)))]));

    let cease = Stop::Cease { communication: "maintenance".to_owned() };
    all.stop(2, cease);
    all.run(secs(2));
    read(&mut all, 1, id, 4096, &mut station);
    let (reason, message) = station.downs.pop().unwrap();
    let message = frame(&message, 4096).unwrap().unwrap();
    let notification = Notification::decode(message.body).unwrap().to_string();
    assert!(reason == 3 && notification.contains("maintenance"), "{reason} {notification}");
    assert!(station.downs.is_empty() && station.routes.is_empty());
}
