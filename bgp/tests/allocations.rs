//! Code that must not allocate: decoding and encoding a valid UPDATE, and BFD while no session
//! changes. `cargo lab bench codec` measures the time of the codec. In BFD's thread, an allocation
//! could wait for another thread that holds the heap's lock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod wire_support;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use counting::allocations;
use trunkline_bgp::bfd::{BfdConfig, Endpoint, SessionId, Source, State, Target};
use trunkline_bgp::types::{Asn, Community, Ipv4, Ipv6, NextHop};
use trunkline_bgp::wire::{
    AsPath, EncodeContext, PathAttributes, Prefixes, Scratch, UpdateWriter, decode_update,
};
use wire_support::*;

fn attributes() -> Vec<u8> {
    block(&PathAttributes {
        as_path: AsPath::sequence([65001, 65002, 4_200_000_000].map(Asn)),
        med: Some(10),
        communities: (1..4).map(Community).collect(),
        ..PathAttributes::default()
    })
}

fn next_hop() -> NextHop {
    NextHop::V4(Ipv4Addr::new(10, 0, 0, 1))
}

/// UPDATEs with `prefixes` /24s.
fn ipv4(context: &EncodeContext, prefixes: u32) -> Vec<u8> {
    let mut out = vec![];
    let prefixes =
        (0..prefixes).map(|i| ipnet::Ipv4Net::new(Ipv4Addr::from((10 << 24) + (i << 8)), 24).unwrap());
    UpdateWriter::new(&mut out, *context).announce::<Ipv4>(next_hop(), &attributes(), prefixes).unwrap();
    out
}

/// Decodes every message and reads every prefix, as a RIB does.
fn read(bodies: &[&[u8]], context: &trunkline_bgp::wire::DecodeContext, scratch: &mut Scratch) {
    for body in bodies {
        let update = decode_update(body, context, scratch).unwrap();
        black_box(update.attributes);
        for reach in update.announced() {
            match reach.prefixes {
                Prefixes::V4(nlri) => nlri.iter().for_each(|prefix| _ = black_box(prefix)),
                Prefixes::V6(nlri) => nlri.iter().for_each(|prefix| _ = black_box(prefix)),
            }
        }
        update.withdrawn().for_each(|prefixes| _ = black_box(prefixes));
    }
}

#[test]
fn a_valid_update_allocates_nothing() {
    for four_octet_as in [true, false] {
        let context = EncodeContext { four_octet_as, ..EncodeContext::default() };
        let decode = trunkline_bgp::wire::DecodeContext { four_octet_as, ..IBGP };
        let mut octets = ipv4(&context, 2000);
        let next_hop = NextHop::V6("2001:db8::1".parse().unwrap());
        let block = attributes();
        let prefix = "2001:db8:1::/48".parse().unwrap();
        let mut writer = UpdateWriter::new(&mut octets, context);
        writer.announce::<Ipv6>(next_hop, &block, [prefix]).unwrap();
        writer.withdraw::<Ipv6>([prefix]);
        let bodies: Vec<&[u8]> = frames(&octets).into_iter().map(|frame| frame.body).collect();
        let mut scratch = Scratch::default();
        read(&bodies, &decode, &mut scratch); // the scratch grows once
        assert_eq!(allocations(|| read(&bodies, &decode, &mut scratch)), 0);

        let mut out = Vec::with_capacity(1 << 16);
        let writing = allocations(|| {
            let mut writer = UpdateWriter::new(&mut out, context);
            writer.announce::<Ipv6>(next_hop, &block, [prefix; 1000]).unwrap();
            writer.withdraw::<Ipv6>([prefix; 1000]);
        });
        assert_eq!(writing, 0);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin")]
fn bfd_allocates_nothing_while_no_session_changes() {
    const SESSIONS: u8 = 9;
    let address = |side: u8, number: u8| IpAddr::from([10, side, 0, number]);
    let mut now = Instant::now();
    let mut ends = [0, 1].map(|side| {
        let mut end = Endpoint::new(side.into());
        for number in 0..SESSIONS {
            let (remote, local) = (address(1 - side, number), Some(address(side, number)));
            let config = BfdConfig::new(Duration::from_millis(10));
            let target = Target { remote, local, interface: None, config };
            end.set(SessionId(number.into()), target, now).unwrap();
        }
        end
    });
    let mut packets = 0;
    let mut run = |ends: &mut [Endpoint; 2], rounds| {
        for _ in 0..rounds {
            now += Duration::from_millis(1);
            for side in 0..2 {
                ends[usize::from(side)].handle_timeout(now);
                while let Some(transmit) = ends[usize::from(side)].poll_transmit() {
                    packets += 1;
                    let number = transmit.session.0 as u8;
                    let source = Source {
                        remote: address(side, number),
                        local: Some(address(1 - side, number)),
                        interface: None,
                        ttl: Some(255),
                        multihop: false,
                    };
                    ends[usize::from(1 - side)].handle_packet(&source, &transmit.payload, now).unwrap();
                }
                while ends[usize::from(side)].poll_event().is_some() {}
            }
        }
        packets
    };
    run(&mut ends, 5000);
    let up = |end: &Endpoint| {
        (0..SESSIONS).all(|number| end.status(SessionId(number.into())).unwrap().state == State::Up)
    };
    assert!(ends.iter().all(up));
    let before = run(&mut ends, 0);
    assert_eq!(allocations(|| assert!(run(&mut ends, 1000) > before + 1000)), 0);
}
