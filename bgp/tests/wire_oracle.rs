//! Two independent codecs decode the output of this one. Each is only tested with the parts that it
//! handles correctly. zettabgp 0.6 decodes prefixes, AS_PATH, MULTI_EXIT_DISC, LOCAL_PREF and
//! communities, but not AGGREGATOR, ATOMIC_AGGREGATE, sets, two-octet sessions or RFC 8950.
//! netgauze supports all of these, and encodes its result again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netgauze_bgp_pkt::BgpMessage as GauzeMessage;
use netgauze_bgp_pkt::path_attribute::{MpReach, PathAttributeValue};
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_bgp::types::{Asn, Family, Ipv4, Ipv6, NextHop};
use trunkline_bgp::wire::{
    AddPathFamily, AfiSafi, AsPath, Capability, EncodeContext, HEADER, Notification, Open, Origin,
    PathAttributes, RestartFamily, RouteRefresh, UpdateWriter, encode_keepalive,
};
use wire_support::*;
use zettabgp::BgpTransportMode;
use zettabgp::prelude::{
    BgpASitem, BgpAddr, BgpAddrs, BgpAttrItem, BgpAttrOrigin, BgpMessage, BgpOpenMessage, BgpSessionParams,
    BgpUpdateMessage,
};

fn zettabgp_session() -> BgpSessionParams {
    let mut session =
        BgpSessionParams::new(65001, 90, BgpTransportMode::IPv4, Ipv4Addr::new(10, 0, 0, 1), vec![]);
    session.fuzzy_pathid = false;
    session
}

/// The part of zettabgp's result that is compared.
#[derive(Debug, PartialEq, Default)]
struct Seen {
    announced: Vec<(IpNet, IpAddr)>,
    withdrawn: Vec<IpNet>,
    origin: Option<Origin>,
    as_path: Vec<u32>,
    med: Option<u32>,
    local_pref: Option<u32>,
    communities: BTreeSet<u32>,
    large_communities: BTreeSet<(u32, u32, u32)>,
    only_to_customer: Option<u32>,
}

fn nets(addrs: &BgpAddrs) -> Vec<IpNet> {
    match addrs {
        BgpAddrs::None => vec![],
        BgpAddrs::IPV4U(nets) => {
            nets.iter().map(|net| Ipv4Net::new(net.addr, net.prefixlen).unwrap().into()).collect()
        }
        BgpAddrs::IPV6U(nets) => {
            nets.iter().map(|net| Ipv6Net::new(net.addr, net.prefixlen).unwrap().into()).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn zettabgp_reads(body: &[u8]) -> Seen {
    let mut message = BgpUpdateMessage::new();
    message.decode_from(&zettabgp_session(), body).unwrap();
    let mut seen = Seen { withdrawn: nets(&message.withdraws), ..Seen::default() };
    for attribute in &message.attrs {
        match attribute {
            BgpAttrItem::Origin(origin) => {
                seen.origin = Some(match origin.value {
                    BgpAttrOrigin::Igp => Origin::Igp,
                    BgpAttrOrigin::Egp => Origin::Egp,
                    BgpAttrOrigin::Incomplete => Origin::Incomplete,
                });
            }
            BgpAttrItem::ASPath(path) => {
                for item in &path.value {
                    let BgpASitem::Seq(sequence) = item else { panic!("{item:?}") };
                    seen.as_path.extend(sequence.value.iter().map(|asn| asn.value));
                }
            }
            BgpAttrItem::NextHop(next_hop) => {
                seen.announced.extend(nets(&message.updates).into_iter().map(|net| (net, next_hop.value)));
            }
            BgpAttrItem::MPUpdates(reach) => {
                let BgpAddr::V6(next_hop) = reach.nexthop else { panic!("{reach:?}") };
                seen.announced.extend(nets(&reach.addrs).into_iter().map(|net| (net, next_hop.into())));
            }
            BgpAttrItem::MPWithdraws(unreach) => seen.withdrawn.extend(nets(&unreach.addrs)),
            BgpAttrItem::MED(med) => seen.med = Some(med.value),
            BgpAttrItem::LocalPref(preference) => seen.local_pref = Some(preference.value),
            BgpAttrItem::CommunityList(list) => {
                seen.communities = list.value.iter().map(|c| c.value).collect()
            }
            BgpAttrItem::LargeCommunityList(list) => {
                seen.large_communities = list.value.iter().map(|c| (c.ga, c.ldp1, c.ldp2)).collect();
            }
            BgpAttrItem::OTC(otc) => seen.only_to_customer = Some(otc.value),
            other => panic!("{other:?}"),
        }
    }
    seen
}

/// The expected result.
fn expected(attributes: &PathAttributes, announced: Vec<(IpNet, IpAddr)>) -> Seen {
    let large = |c: &trunkline_bgp::types::LargeCommunity| (c.global, c.local1, c.local2);
    Seen {
        announced,
        withdrawn: vec![],
        origin: Some(attributes.origin),
        as_path: attributes
            .as_path
            .segments
            .iter()
            .flat_map(|segment| &segment.asns)
            .map(|asn| asn.0)
            .collect(),
        med: attributes.med,
        local_pref: attributes.local_pref,
        communities: attributes.communities.iter().map(|community| community.0).collect(),
        large_communities: attributes.large_communities.iter().map(large).collect(),
        only_to_customer: attributes.only_to_customer.map(|asn| asn.0),
    }
}

/// Attributes that zettabgp handles correctly.
fn trusted_by_zettabgp() -> impl Strategy<Value = PathAttributes> {
    (attributes(), vec(asn(), 0..300)).prop_map(|(attributes, asns)| PathAttributes {
        as_path: AsPath::sequence(asns),
        atomic_aggregate: false,
        aggregator: None,
        originator_id: None,
        cluster_list: vec![],
        extended_communities: vec![],
        unknown: vec![],
        ..attributes
    })
}

/// Checks that netgauze decodes the message and encodes it to the same octets; returns its result.
fn netgauze_agrees(message: &[u8], four_octet_as: bool) -> GauzeMessage {
    let mut context = BgpParsingContext::asn2_default();
    context.set_asn4(four_octet_as);
    let read = GauzeMessage::parse(&mut SliceReader::new(message), &mut context).unwrap();
    let mut written = vec![];
    read.write(&mut written).unwrap();
    assert_eq!(written, message, "{read:?}");
    read
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn zettabgp_reads_ipv4_routes(
        attributes in trusted_by_zettabgp(),
        prefixes in vec(ipv4_net(), 1..300),
        next_hop in ipv4_host(),
    ) {
        let mut out = vec![];
        UpdateWriter::new(&mut out, EncodeContext { max_message: 65535, ..EncodeContext::default() })
            .announce::<Ipv4>(NextHop::V4(next_hop), &block(&attributes), prefixes.iter().copied())
            .unwrap();
        let announced = prefixes.into_iter().map(|prefix| (prefix.into(), next_hop.into())).collect();
        prop_assert_eq!(zettabgp_reads(only_update(&out)), expected(&attributes, announced));
    }

    #[test]
    fn zettabgp_reads_ipv6_routes(
        attributes in trusted_by_zettabgp(),
        prefixes in vec(ipv6_net(), 1..300),
        next_hop in v6_next_hop(),
    ) {
        let mut out = vec![];
        UpdateWriter::new(&mut out, EncodeContext { max_message: 65535, ..EncodeContext::default() })
            .announce::<Ipv6>(next_hop, &block(&attributes), prefixes.iter().copied())
            .unwrap();
        let announced = prefixes.into_iter().map(|prefix| (prefix.into(), next_hop.address())).collect();
        prop_assert_eq!(zettabgp_reads(only_update(&out)), expected(&attributes, announced));
    }

    #[test]
    fn zettabgp_reads_withdrawals(v4 in vec(ipv4_net(), 1..300), v6 in vec(ipv6_net(), 1..200)) {
        let mut out = vec![];
        let mut writer = UpdateWriter::new(&mut out, EncodeContext::default());
        writer.withdraw::<Ipv4>(v4.iter().copied());
        writer.withdraw::<Ipv6>(v6.iter().copied());
        let seen: Vec<IpNet> =
            frames(&out).iter().flat_map(|frame| zettabgp_reads(frame.body).withdrawn).collect();
        let all: Vec<IpNet> = v4.into_iter().map(IpNet::V4).chain(v6.into_iter().map(IpNet::V6)).collect();
        prop_assert_eq!(seen, all);
    }

    #[test]
    fn netgauze_reads_and_writes_the_same(
        (encode, _) in session(),
        mut attributes in attributes(),
        mut v4 in vec(ipv4_net(), 1..100),
        mut v6 in vec(ipv6_net(), 1..100),
        v4_next_hop in ipv4_host(),
        v6_next_hop in v6_next_hop(),
    ) {
        attributes.unknown.clear(); // netgauze knows some of these
        attributes.extended_communities.clear(); // arbitrary octets would not fit its types
        // netgauze rejects prefixes of multicast addresses.
        v4.retain(|prefix| !prefix.addr().is_multicast());
        v6.retain(|prefix| !prefix.addr().is_multicast());
        prop_assume!(!v4.is_empty() && !v6.is_empty());
        let encode = EncodeContext { max_message: 65535, ..encode };
        let next_hop = if encode.ext_next_hop { v6_next_hop } else { NextHop::V4(v4_next_hop) };
        let block = block(&attributes);
        let mut out = vec![];
        UpdateWriter::new(&mut out, encode).announce::<Ipv4>(next_hop, &block, v4.iter().copied()).unwrap();
        let GauzeMessage::Update(update) = netgauze_agrees(&out, encode.four_octet_as) else { panic!() };
        let mp_reach = update.path_attributes().iter().find_map(|attribute| match attribute.value() {
            PathAttributeValue::MpReach(MpReach::Ipv4Unicast { next_hop, nlri, .. }) => Some((*next_hop, nlri.clone())),
            _ => None,
        });
        let read: Vec<Ipv4Net> = match &mp_reach {
            Some((_, nlri)) => nlri.iter().map(|prefix| prefix.network().address()).collect(),
            None => update.nlri().iter().map(|prefix| prefix.network().address()).collect(),
        };
        prop_assert_eq!(read, v4);
        prop_assert_eq!(mp_reach.map(|(address, _)| address), encode.ext_next_hop.then_some(next_hop.address()));

        let mut out = vec![];
        UpdateWriter::new(&mut out, encode).announce::<Ipv6>(v6_next_hop, &block, v6.iter().copied()).unwrap();
        let GauzeMessage::Update(update) = netgauze_agrees(&out, encode.four_octet_as) else { panic!() };
        let read = update.path_attributes().iter().find_map(|attribute| match attribute.value() {
            PathAttributeValue::MpReach(MpReach::Ipv6Unicast { next_hop_global, next_hop_local, nlri }) => {
                let next_hop = match next_hop_local {
                    None => NextHop::V6(*next_hop_global),
                    Some(local) => NextHop::V6WithLinkLocal(*next_hop_global, *local),
                };
                Some((next_hop, nlri.iter().map(|prefix| prefix.network().address()).collect()))
            }
            _ => None,
        });
        prop_assert_eq!(read, Some((v6_next_hop, v6)));
    }
}

#[test]
fn netgauze_reads_the_other_messages() {
    let ipv4 = AfiSafi::from(Family::Ipv4Unicast);
    let ipv6 = AfiSafi::from(Family::Ipv6Unicast);
    let open = Open::new(
        Asn(4_200_000_001),
        90,
        Ipv4Addr::new(10, 0, 0, 1),
        vec![
            Capability::Multiprotocol(ipv4),
            Capability::Multiprotocol(ipv6),
            Capability::RouteRefresh,
            Capability::EnhancedRouteRefresh,
            Capability::AddPath(vec![
                AddPathFamily { family: ipv4, receive: true, send: true },
                AddPathFamily { family: ipv6, receive: false, send: true },
            ]),
            Capability::ExtendedMessage,
            Capability::ExtendedNextHop(vec![(ipv4, 2)]),
            Capability::GracefulRestart {
                restarting: true,
                notification: true,
                restart_time: 120,
                families: vec![
                    RestartFamily { family: ipv4, forwarding: true },
                    RestartFamily { family: ipv6, forwarding: false },
                ],
            },
            Capability::FourOctetAs(Asn(4_200_000_001)),
            Capability::Hostname { host: "node1".into(), domain: "".into() },
        ],
    );
    let mut out = vec![];
    open.encode(&mut out);
    let GauzeMessage::Open(read) = netgauze_agrees(&out, true) else { panic!() };
    assert_eq!((read.my_as(), read.my_asn4(), read.hold_time()), (23456, 4_200_000_001, 90));
    assert_eq!(read.capabilities().len(), open.capabilities.len());
    let mut zettabgp = BgpOpenMessage::new();
    zettabgp.decode_from(&zettabgp_session(), &out[HEADER..]).unwrap();
    assert_eq!((zettabgp.as_num, zettabgp.hold_time, zettabgp.router_id), (23456, 90, open.router_id));

    for (encode, kind) in [
        (Box::new(encode_keepalive) as Box<dyn Fn(&mut Vec<u8>)>, "KeepAlive"),
        (
            Box::new(|out: &mut Vec<u8>| RouteRefresh::request(Family::Ipv6Unicast).encode(out)),
            "RouteRefresh",
        ),
        (Box::new(|out: &mut Vec<u8>| Notification::hold_timer_expired().encode(out)), "HoldTimerExpired"),
        (
            Box::new(|out: &mut Vec<u8>| {
                Notification::cease(trunkline_bgp::wire::Cease::AdministrativeShutdown, Some("back soon"))
                    .encode(out);
            }),
            "AdministrativeShutdown",
        ),
    ] {
        let mut out = vec![];
        encode(&mut out);
        let read = format!("{:?}", netgauze_agrees(&out, true));
        assert!(read.contains(kind), "{read}");
    }
    for family in Family::ALL {
        let mut out = vec![];
        UpdateWriter::new(&mut out, EncodeContext::default()).end_of_rib(family);
        let mut context = BgpParsingContext::asn2_default();
        let GauzeMessage::Update(update) =
            GauzeMessage::parse(&mut SliceReader::new(&out), &mut context).unwrap()
        else {
            panic!()
        };
        assert!(update.end_of_rib().is_some(), "{family}");
    }
}
