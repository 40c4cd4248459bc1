//! MRT dumps of a speaker's tables, decoded according to RFC 6396 §4.3.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_bgp::mrt::TableDump;
use trunkline_bgp::speaker::Origination;
use trunkline_bgp::types::{NextHop, Tag, Tags};
use trunkline_bgp::wire::PathAttributes;

use crate::net::{Net, ip, net, secs};

const WHEN: u32 = 1_800_000_000;

/// A cursor over the octets of a record.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self, octets: usize) -> u32 {
        self.take(octets).iter().fold(0, |number, octet| number << 8 | u32::from(*octet))
    }

    fn address(&mut self, v6: bool) -> IpAddr {
        match v6 {
            true => IpAddr::from(*self.take(16).first_chunk::<16>().unwrap()),
            false => IpAddr::from(*self.take(4).first_chunk::<4>().unwrap()),
        }
    }
}

/// A peer of the index: identifier, address, AS.
type Peer = (Ipv4Addr, IpAddr, u32);

/// A path: the peer, its time, the next hop, the other attributes.
type Path = (Peer, u32, IpAddr, PathAttributes);

fn read(octets: &[u8]) -> (Vec<Peer>, BTreeMap<IpNet, Vec<Path>>) {
    let mut records = Reader(octets);
    let mut peers = Vec::new();
    let mut prefixes = BTreeMap::new();
    while !records.0.is_empty() {
        assert_eq!(records.number(4), WHEN);
        assert_eq!(records.number(2), 13, "TABLE_DUMP_V2");
        let subtype = records.number(2);
        let length = records.number(4) as usize;
        let mut record = Reader(records.take(length));
        match subtype {
            1 => {
                assert!(peers.is_empty() && prefixes.is_empty(), "the index comes once and first");
                assert_eq!(record.take(4), [10, 0, 0, 1], "the collector's identifier");
                assert_eq!(record.number(2), 0, "no view name");
                for _ in 0..record.number(2) {
                    let kind = record.number(1);
                    let id = Ipv4Addr::from(record.number(4));
                    let address = record.address(kind & 1 == 1);
                    let asn = record.number(if kind & 2 == 2 { 4 } else { 2 });
                    peers.push((id, address, asn));
                }
            }
            2 | 4 => {
                assert_eq!(record.number(4) as usize, prefixes.len(), "the sequence number");
                let length = record.number(1) as u8;
                let mut network = record.take(usize::from(length.div_ceil(8))).to_vec();
                network.resize(if subtype == 2 { 4 } else { 16 }, 0);
                let prefix: IpNet = match subtype {
                    2 => Ipv4Net::new((*network.first_chunk::<4>().unwrap()).into(), length).unwrap().into(),
                    _ => Ipv6Net::new((*network.first_chunk::<16>().unwrap()).into(), length).unwrap().into(),
                };
                let paths = (0..record.number(2)).map(|_| {
                    let peer = peers[record.number(2) as usize];
                    let since = record.number(4);
                    let length = record.number(2) as usize;
                    let (next_hop, attributes) = attributes(record.take(length));
                    (peer, since, next_hop, attributes)
                });
                let paths: Vec<Path> = paths.collect();
                assert!(prefixes.insert(prefix, paths).is_none(), "{prefix} twice");
            }
            other => panic!("subtype {other}"),
        }
        assert!(record.0.is_empty(), "{} octets are left of a record", record.0.len());
    }
    (peers, prefixes)
}

/// The next hop, and the other attributes.
fn attributes(octets: &[u8]) -> (IpAddr, PathAttributes) {
    let mut reader = Reader(octets);
    let mut block = Vec::new();
    let mut next_hop = None;
    while !reader.0.is_empty() {
        let all = reader.0;
        let flags = reader.number(1);
        let code = reader.number(1);
        let length = reader.number(if flags & 0x10 == 0 { 1 } else { 2 }) as usize;
        let mut value = Reader(reader.take(length));
        match code {
            3 => next_hop = Some(value.address(false)),
            14 => {
                let length = value.number(1);
                assert_eq!(
                    value.0.len(),
                    length as usize,
                    "nothing but the next hop (RFC 6396 section 4.3.4)"
                );
                next_hop = Some(value.address(true));
            }
            _ => block.extend_from_slice(&all[..all.len() - reader.0.len()]),
        }
    }
    (next_hop.unwrap(), PathAttributes::parse(&block).unwrap())
}

fn dump(all: &Net, host: u8, budget: usize) -> (Vec<u8>, TableDump) {
    let speaker = all.nodes[&host].speaker.as_ref().unwrap();
    let mut dump = TableDump::new(WHEN);
    let mut octets = Vec::new();
    while speaker.dump_tables(&mut dump, &mut octets, budget, all.now) {}
    (octets, dump)
}

#[test]
fn a_dump_has_every_accepted_path_whatever_the_piece_size() {
    let mut all = Net::pair();
    let communities = vec!["65002:7".parse().unwrap()];
    for number in 0..200u8 {
        let origination = Origination { communities: communities.clone(), ..Origination::default() };
        let prefix = net(&format!("172.16.{number}.0/24"));
        all.nodes.get_mut(&2).unwrap().originated.insert(prefix, origination);
    }
    let tags = Tags::new([Tag(1), Tag(2)]).unwrap(); // they are not in the dump
    let tagged = Origination { tags, communities: communities.clone(), ..Origination::default() };
    all.nodes.get_mut(&1).unwrap().originated.insert(net("172.17.0.0/24"), tagged);
    all.boot_all();
    all.run(secs(20));
    let (octets, progress) = dump(&all, 1, usize::MAX);
    for budget in [1, 1000] {
        assert_eq!(dump(&all, 1, budget).0, octets, "in pieces of {budget}");
    }
    let (peers, prefixes) = read(&octets);
    let own = (Ipv4Addr::new(10, 0, 0, 1), IpAddr::from([0, 0, 0, 0]), 65001);
    let other = (Ipv4Addr::new(10, 0, 0, 2), ip(2), 65002);
    assert_eq!(peers, [own, other]);
    let speaker = all.nodes[&1].speaker.as_ref().unwrap();
    let routes = speaker.routes();
    assert_eq!(prefixes.len(), routes.len());
    assert_eq!(
        (progress.peers(), progress.prefixes() as usize, progress.paths() as usize),
        (1, routes.len(), routes.len())
    );
    for route in routes {
        let [(peer, since, next_hop, attributes)] = &prefixes[&route.prefix][..] else {
            panic!("{}: {:?}", route.prefix, prefixes[&route.prefix])
        };
        assert_eq!(*peer, if route.peer.is_some() { other } else { own });
        assert_eq!(*next_hop, route.next_hop.as_ref().map_or(IpAddr::from([0, 0, 0, 0]), NextHop::address));
        assert_eq!(attributes.as_path.to_string(), route.as_path);
        assert_eq!(attributes.communities, route.communities);
        let up_for = speaker.peers(all.now)[0].state_for.as_secs() as u32;
        assert!(up_for > 0);
        assert_eq!(*since, if route.peer.is_some() { WHEN - up_for } else { WHEN });
    }
}

#[test]
fn rejected_paths_and_lost_peers_are_not_in_a_dump() {
    let mut all = Net::pair();
    all.boot_all();
    all.run(secs(20));
    all.edit(1, 2, |peer| peer.import = trunkline_bgp::policy::Policy::reject_all());
    let (_, prefixes) = read(&dump(&all, 1, usize::MAX).0);
    assert_eq!(prefixes.into_keys().collect::<Vec<_>>(), [net("10.1.0.0/16")]);
}
