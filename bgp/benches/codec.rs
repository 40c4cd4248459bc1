//! Compares the cost of UPDATEs with zettabgp and netgauze: nanoseconds by criterion and
//! allocations by a counting allocator. `cargo lab bench codec` runs this and compares.
//!
//! Two loads, in sessions with four-octet AS numbers: one UPDATE with 500 IPv4 /24s, and twenty
//! with 1 to 5 each. The attributes of the twenty UPDATEs differ as in real tables: an AS_PATH of 1
//! to 6, MULTI_EXIT_DISC, and 1 to 5 communities. Half of the UPDATEs also have a large community.
//! Decoding here does the work that a RIB needs: it checks every octet, locates the attributes and
//! reads every prefix. The other codecs build a value of each part for the same purpose.
//!
//! A time is for the whole load; the name of the group has the number of messages.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[path = "../tests/counting/mod.rs"]
mod counting;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use ipnet::Ipv4Net;
use netgauze_bgp_pkt::BgpMessage as GauzeMessage;
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use trunkline_bgp::types::{Asn, Community, FamilySet, Ipv4, LargeCommunity, NextHop};
use trunkline_bgp::wire::{
    AsPath, DecodeContext, EncodeContext, HEADER, PathAttributes, Prefixes, Scratch, UpdateWriter,
    decode_update,
};
use zettabgp::BgpTransportMode;
use zettabgp::prelude::{BgpMessage, BgpSessionParams, BgpUpdateMessage};

/// The content of one UPDATE.
struct Load {
    block: Vec<u8>,
    prefixes: Vec<Ipv4Net>,
    /// The encoded message.
    message: Vec<u8>,
}

const NEXT_HOP: NextHop = NextHop::V4(Ipv4Addr::new(10, 0, 0, 1));
const DECODE: DecodeContext = DecodeContext {
    four_octet_as: true,
    ext_next_hop: true,
    families: FamilySet::ALL,
    add_path: FamilySet::EMPTY,
    ebgp: true,
};

impl Load {
    /// Load number `number`, with /24s.
    fn new(number: u32, prefixes: u32) -> Self {
        let attributes = PathAttributes {
            as_path: AsPath::sequence((0..=number % 6).map(|hop| Asn(65001 + 1000 * hop * number))),
            med: Some(number),
            communities: (0..=number % 5).map(|value| Community(65001 << 16 | value)).collect(),
            large_communities: (0..number % 2)
                .map(|local1| LargeCommunity { global: 65001, local1, local2: 7 })
                .collect(),
            ..PathAttributes::default()
        };
        let mut block = vec![];
        attributes.encode(&mut block);
        let prefix = |i| Ipv4Net::new(Ipv4Addr::from((10 << 24) + (number << 16) + (i << 8)), 24).unwrap();
        let prefixes: Vec<_> = (0..prefixes).map(prefix).collect();
        let mut message = vec![];
        write(&mut message, &block, &prefixes);
        Load { block, prefixes, message }
    }

    fn body(&self) -> &[u8] {
        &self.message[HEADER..]
    }
}

fn write(out: &mut Vec<u8>, block: &[u8], prefixes: &[Ipv4Net]) {
    let mut writer = UpdateWriter::new(out, EncodeContext::default());
    writer.announce::<Ipv4>(NEXT_HOP, block, prefixes.iter().copied()).unwrap();
}

/// Decodes a message and reads every prefix, as a RIB does.
fn read(body: &[u8], scratch: &mut Scratch) {
    let decoded = decode_update(body, &DECODE, scratch);
    let update = decoded.as_ref().unwrap();
    let mut sum = 0;
    let mut look = |prefixes: Prefixes<'_>| match prefixes {
        Prefixes::V4(nlri) => nlri.iter().for_each(|prefix| {
            sum ^= (u64::from(u32::from(prefix.addr())) << 8) + u64::from(prefix.prefix_len());
        }),
        Prefixes::V6(nlri) => nlri.iter().for_each(|prefix| _ = black_box(prefix)),
    };
    for reach in update.announced() {
        look(reach.prefixes);
        black_box(reach.next_hop);
    }
    update.withdrawn().for_each(look);
    black_box((update.attributes, sum));
}

fn zettabgp_session() -> BgpSessionParams {
    let mut session =
        BgpSessionParams::new(65001, 90, BgpTransportMode::IPv4, Ipv4Addr::new(10, 0, 0, 1), vec![]);
    session.fuzzy_pathid = false;
    session
}

fn zettabgp_reads(session: &BgpSessionParams, body: &[u8]) -> BgpUpdateMessage {
    let mut message = BgpUpdateMessage::new();
    message.decode_from(session, body).unwrap();
    message
}

fn netgauze_reads(context: &mut BgpParsingContext, message: &[u8]) -> GauzeMessage {
    GauzeMessage::parse(&mut SliceReader::new(message), context).unwrap()
}

/// Measures a codec: its allocations in one run, then its time.
fn measure(group: &mut BenchmarkGroup<'_, WallTime>, load: &str, codec: &str, mut work: impl FnMut()) {
    work(); // reused buffers grow once
    println!("allocations {load} {codec} {}", counting::allocations(&mut work));
    group.bench_function(codec, |bencher| bencher.iter(&mut work));
}

fn bench(criterion: &mut Criterion, load: &str, updates: &[Load]) {
    let session = zettabgp_session();
    let mut gauze = BgpParsingContext::asn2_default();
    gauze.set_asn4(true);

    let name = format!("decode-{load}");
    let mut group = criterion.benchmark_group(&name);
    let mut scratch = Scratch::default();
    measure(&mut group, &name, "trunkline", || {
        updates.iter().for_each(|update| read(black_box(update.body()), &mut scratch));
    });
    measure(&mut group, &name, "zettabgp", || {
        updates.iter().for_each(|update| _ = black_box(zettabgp_reads(&session, black_box(update.body()))));
    });
    measure(&mut group, &name, "netgauze", || {
        updates
            .iter()
            .for_each(|update| _ = black_box(netgauze_reads(&mut gauze, black_box(&update.message))));
    });
    group.finish();

    let name = format!("encode-{load}");
    let mut group = criterion.benchmark_group(&name);
    let mut out = Vec::with_capacity(1 << 16);
    measure(&mut group, &name, "trunkline", || {
        for update in updates {
            out.clear();
            write(&mut out, black_box(&update.block), &update.prefixes);
            black_box(&out);
        }
    });
    let theirs: Vec<_> = updates.iter().map(|update| zettabgp_reads(&session, update.body())).collect();
    let mut buffer = vec![0; 1 << 16];
    measure(&mut group, &name, "zettabgp", || {
        theirs
            .iter()
            .for_each(|update| _ = black_box(black_box(update).encode_to(&session, &mut buffer).unwrap()));
    });
    let theirs: Vec<_> = updates.iter().map(|update| netgauze_reads(&mut gauze, &update.message)).collect();
    measure(&mut group, &name, "netgauze", || {
        for update in &theirs {
            out.clear();
            black_box(update).write(&mut out).unwrap();
            black_box(&out);
        }
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    bench(&mut criterion, "1x500", &[Load::new(3, 500)]);
    let small: Vec<Load> = (0..20).map(|number| Load::new(number, 1 + number % 5)).collect();
    bench(&mut criterion, "20x1-5", &small);
    criterion.final_summary();
}
