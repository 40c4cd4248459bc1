//! The cost of the tables without sockets and sessions: UPDATEs in, UPDATEs out.
//!
//! | case | load |
//! |---|---|
//! | `five/pass on`, `one/pass on` | 1,000,000 /24s, five or one per set, one peer to another |
//! | `five/withdraw`, `one/withdraw` | that peer is lost, the other receives withdrawals |
//! | `hundred/pass on` | 10,000 /24s, five per attribute set, to a hundred peers |
//! | `flap/down` | a peer with 100 prefixes is lost, others have 1,000,000 |
//! | `flap/advertised` | one of two hundred peers (100 of 20,000 prefixes) is lost and returns |
//!
//! To profile: `valgrind --tool=callgrind target/release/deps/tables-… --test 'five/pass on'`.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[path = "../tests/rib_support/mod.rs"]
mod rib_support;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use criterion::Criterion;
use ipnet::Ipv4Net;
use trunkline_bgp::policy::{Policy, PolicyResult};
use trunkline_bgp::rib::{Rib, RibPeer, SessionFacts};
use trunkline_bgp::types::{Asn, Community, Family, FamilySet, Ipv4, NextHop, PeerId};
use trunkline_bgp::wire::{
    AsPath, DecodeContext, EncodeContext, HEADER, PathAttributes, Scratch, UpdateWriter, decode_update, frame,
};

const MILLION: u32 = 1_000_000;

/// Octets of one read or write of a connection.
const CHUNK: usize = 64 * 1024;

const DECODE: DecodeContext = DecodeContext {
    four_octet_as: true,
    ext_next_hop: false,
    families: FamilySet::ALL,
    add_path: FamilySet::EMPTY,
    ebgp: true,
};

const ENCODE: EncodeContext =
    EncodeContext { add_path: false, four_octet_as: true, ext_next_hop: false, max_message: 4096 };

fn address(peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0100 + peer)
}

/// Bodies of UPDATEs of a peer: `count` /24s from number `first` on, `to_a_set` per attribute set.
fn table(peer: u32, first: u32, count: u32, to_a_set: u32) -> Vec<Vec<u8>> {
    let prefix = |number: u32| Ipv4Net::new(Ipv4Addr::from((20 << 24) + (number << 8)), 24).unwrap();
    let set = |set: u32| {
        let attributes = PathAttributes {
            as_path: AsPath::sequence(
                [65100 + peer, 4_200_000_000 + set / 1000, 4_201_000_000 + set % 1000].map(Asn),
            ),
            communities: vec![Community(65100 << 16 | set & 0xffff)],
            ..PathAttributes::default()
        };
        let (mut block, mut message) = (Vec::new(), Vec::new());
        attributes.encode(&mut block);
        let from = first + set * to_a_set;
        let prefixes = (from..(from + to_a_set).min(first + count)).map(prefix);
        UpdateWriter::new(&mut message, ENCODE)
            .announce::<Ipv4>(NextHop::V4(address(peer)), &block, prefixes)
            .unwrap();
        assert_eq!(frame(&message, 4096).unwrap().unwrap().len, message.len(), "one message");
        message.split_off(HEADER)
    };
    (0..count.div_ceil(to_a_set)).map(set).collect()
}

struct Tables {
    rib: Rib,
    scratch: Scratch,
    out: Vec<u8>,
}

impl Tables {
    /// Peers by number, with their export policies.
    fn new(peers: impl IntoIterator<Item = (u32, Policy)>) -> Tables {
        let mut tables =
            Tables { rib: Rib::new(rib_support::config(8)), scratch: Scratch::default(), out: Vec::new() };
        for (peer, export) in peers {
            let (address, remote_as) = (IpAddr::from(address(peer)).into(), Asn(65100 + peer));
            let facts = RibPeer { address, remote_as, export, ..rib_support::peer(peer, true) };
            tables.rib.add_peer(PeerId(peer), facts);
            tables.up(peer);
        }
        tables
    }

    fn up(&mut self, peer: u32) {
        let families = FamilySet::from_iter([Family::Ipv4Unicast]);
        let facts = SessionFacts { families, router_id: address(peer), ..rib_support::session(peer) };
        self.rib.peer_up(PeerId(peer), facts);
    }

    fn down(&mut self, peer: u32) {
        self.rib.peer_down(PeerId(peer), FamilySet::EMPTY, FamilySet::EMPTY);
    }

    /// Handles UPDATEs, and writes to the peers as often as a connection does.
    fn take(&mut self, peer: u32, bodies: &[Vec<u8>]) {
        let mut octets = 0;
        for body in bodies {
            let update = decode_update(body, &DECODE, &mut self.scratch).unwrap();
            self.rib.handle_update(PeerId(peer), &update);
            octets += HEADER + body.len();
            if octets >= CHUNK {
                octets = 0;
                self.write();
            }
        }
        self.write();
    }

    /// Writes until no peer has pending routes, and takes the FIB's changes.
    fn write(&mut self) {
        while let Some(peer) = self.rib.poll_writable() {
            loop {
                self.out.clear();
                let more = self.rib.write_updates(peer, &mut self.out, CHUNK);
                black_box(&self.out);
                if !more {
                    break;
                }
            }
        }
        while !self.rib.route_changes(4096).is_empty() {}
    }
}

/// Times the requested number of runs, each on a new value of `prepare`.
fn case<T>(
    criterion: &mut Criterion,
    name: &str,
    mut prepare: impl FnMut() -> T,
    mut run: impl FnMut(&mut T),
) {
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                let mut prepared = prepare();
                #[expect(clippy::disallowed_methods, reason = "a benchmark reads a clock")]
                let start = Instant::now();
                run(&mut prepared);
                spent += start.elapsed();
            }
            spent
        });
    });
}

fn nothing() -> Policy {
    Policy { rules: Vec::new(), default: PolicyResult::Reject }
}

fn main() {
    trunkline_bgp::net::compact_heap();
    let criterion = &mut Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(5));
    for (load, to_a_set) in [("five", 5), ("one", 1)] {
        let octets = std::cell::LazyCell::new(|| table(1, 0, MILLION, to_a_set));
        let two = || Tables::new([1, 2].map(|peer| (peer, Policy::accept_all())));
        case(criterion, &format!("{load}/pass on"), two, |tables| tables.take(1, &octets));
        let full = || {
            let mut tables = two();
            tables.take(1, &octets);
            tables
        };
        case(criterion, &format!("{load}/withdraw"), full, |tables| {
            tables.down(1);
            tables.write();
        });
    }
    let octets = table(0, 0, 10_000, 5);
    let hundred_and_one = || Tables::new((0..=100).map(|peer| (peer, Policy::accept_all())));
    case(criterion, "hundred/pass on", hundred_and_one, |tables| tables.take(0, &octets));

    let flap = |tables: &mut Tables, peer: u32, bodies: &[Vec<u8>]| {
        tables.down(peer);
        tables.write();
        tables.up(peer);
        tables.write();
        tables.take(peer, bodies);
    };
    let few = table(2, MILLION, 100, 5);
    let small = || {
        let mut tables = Tables::new([(1, Policy::accept_all()), (2, nothing())]);
        tables.take(1, &table(1, 0, MILLION, 5));
        tables.take(2, &few);
        tables
    };
    let mut small = std::cell::LazyCell::new(small);
    criterion.bench_function("flap/down", |bencher| {
        bencher.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                #[expect(clippy::disallowed_methods, reason = "a benchmark reads a clock")]
                let start = Instant::now();
                small.down(2);
                small.write();
                spent += start.elapsed();
                small.up(2);
                small.take(2, &few);
            }
            spent
        });
    });
    let bodies: Vec<Vec<Vec<u8>>> = (0..200).map(|peer| table(peer, peer * 100, 100, 5)).collect();
    let tables = || {
        let mut tables = Tables::new((0..200).map(|peer| (peer, Policy::accept_all())));
        for (peer, bodies) in (0..).zip(&bodies) {
            tables.take(peer, bodies);
        }
        tables
    };
    let mut tables = std::cell::LazyCell::new(tables);
    criterion.bench_function("flap/advertised", |bencher| bencher.iter(|| flap(&mut tables, 7, &bodies[7])));
    criterion.final_summary();
}
