//! Valid UPDATEs, read by three independent codecs.
//!
//! The input is a list of choices. This module builds a message from them octet by octet, without
//! the speaker's encoder: attributes in any order, one-octet and two-octet lengths, both widths of
//! AS numbers, both places for routes. Each oracle is compared only where measurements have shown
//! that it is correct. For zettabgp these are prefixes, AS_PATH without sets, ORIGIN,
//! MULTI_EXIT_DISC, LOCAL_PREF and communities in four-octet sessions. For netgauze these are the
//! same parts, and also sets, two-octet sessions, AGGREGATOR, ATOMIC_AGGREGATE, ORIGINATOR_ID,
//! CLUSTER_LIST and IPv6 next hops of IPv4 routes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netgauze_bgp_pkt::BgpMessage as GauzeMessage;
use netgauze_bgp_pkt::path_attribute::{Aggregator, MpReach, MpUnreach, PathAttributeValue};
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use trunkline_bgp::types::FamilySet;
use trunkline_bgp::wire::{DecodeContext, PathAttributes, Scratch, decode_update};
use zettabgp::BgpTransportMode;
use zettabgp::prelude::{
    BgpASitem, BgpAddr, BgpAddrs, BgpAttrItem, BgpAttrOrigin, BgpMessage, BgpSessionParams, BgpUpdateMessage,
};

use crate::mutate::message;

/// The content of a message in the view of one codec.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    announced: BTreeSet<(IpNet, IpAddr)>,
    withdrawn: BTreeSet<IpNet>,
    origin: u8,
    /// AS numbers in order, segments joined.
    as_path: Vec<u32>,
    med: Option<u32>,
    local_pref: Option<u32>,
    communities: BTreeSet<u32>,
    large_communities: BTreeSet<[u32; 3]>,
    atomic_aggregate: bool,
    aggregator: Option<(u32, Ipv4Addr)>,
    originator_id: Option<Ipv4Addr>,
    cluster_list: Vec<Ipv4Addr>,
}

/// The remaining choices; 0 when there are none.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn octet(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bit(&mut self) -> bool {
        self.octet() & 1 != 0
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.octet())
    }

    /// An AS number that is not 0.
    fn asn(&mut self, octets: usize) -> Vec<u8> {
        let mut asn: Vec<u8> = (0..octets).map(|_| self.octet()).collect();
        if asn.iter().all(|octet| *octet == 0) {
            asn[octets - 1] = 1;
        }
        asn
    }

    /// A unicast prefix without host bits.
    fn v4(&mut self, out: &mut Vec<u8>) {
        let length = self.octet() % 33;
        let mut octets: [u8; 4] = self.array();
        octets[0] %= 224;
        let address = Ipv4Addr::from(octets);
        let prefix = Ipv4Net::new_assert(address, length).trunc();
        out.push(length);
        out.extend_from_slice(&prefix.addr().octets()[..usize::from(length).div_ceil(8)]);
    }

    fn v6(&mut self, out: &mut Vec<u8>) {
        let length = self.octet() % 129;
        let mut octets: [u8; 16] = self.array();
        octets[0] %= 0xff;
        let prefix = Ipv6Net::new_assert(octets.into(), length).trunc();
        out.push(length);
        out.extend_from_slice(&prefix.addr().octets()[..usize::from(length).div_ceil(8)]);
    }

    fn prefixes(&mut self, v6: bool, out: &mut Vec<u8>) {
        for _ in 0..self.octet() % 6 {
            if v6 { self.v6(out) } else { self.v4(out) }
        }
    }
}

/// A message, and the oracles to compare with.
struct Case {
    body: Vec<u8>,
    four_octet_as: bool,
    zettabgp: bool,
}

fn case(choices: &mut Choices<'_>) -> Case {
    let four_octet_as = !choices.bit();
    let width = if four_octet_as { 4 } else { 2 };
    let mut zettabgp = four_octet_as;
    let mut attributes: Vec<(u8, u8, Vec<u8>)> = vec![(0x40, 1, vec![choices.octet() % 3])];
    let mut path = vec![];
    for _ in 0..choices.octet() % 4 {
        let set = choices.octet() % 8 == 7;
        zettabgp &= !set;
        let count = 1 + choices.octet() % 5;
        path.extend_from_slice(&[if set { 1 } else { 2 }, count]);
        (0..count).for_each(|_| path.extend(choices.asn(width)));
    }
    attributes.push((0x40, 2, path));
    let chosen = choices.octet();
    if chosen & 1 != 0 {
        attributes.push((0x80, 4, choices.array::<4>().to_vec()));
    }
    if chosen & 2 != 0 {
        attributes.push((0x40, 5, choices.array::<4>().to_vec()));
    }
    if chosen & 4 != 0 {
        zettabgp = false;
        attributes.push((0x40, 6, vec![]));
    }
    if chosen & 8 != 0 {
        zettabgp = false;
        let asn = choices.asn(width);
        attributes.push((0xc0, 7, [&asn[..], &choices.array::<4>()].concat()));
    }
    if chosen & 16 != 0 {
        let count = 1 + choices.octet() % 80;
        attributes.push((0xc0, 8, (0..count).flat_map(|_| choices.array::<4>()).collect()));
    }
    if chosen & 32 != 0 {
        let count = 1 + choices.octet() % 25;
        attributes.push((0xc0, 32, (0..count).flat_map(|_| choices.array::<12>()).collect()));
    }
    if chosen & 64 != 0 {
        zettabgp = false;
        attributes.push((0x80, 9, choices.array::<4>().to_vec()));
        let count = 1 + choices.octet() % 4;
        attributes.push((0x80, 10, (0..count).flat_map(|_| choices.array::<4>()).collect()));
    }

    let (mut withdrawn, mut nlri) = (vec![], vec![]);
    let places = choices.octet();
    if places & 1 != 0 {
        choices.prefixes(false, &mut withdrawn);
    }
    if places & 2 != 0 {
        choices.prefixes(false, &mut nlri);
    }
    if !nlri.is_empty() {
        attributes.push((0x40, 3, vec![10, choices.octet(), choices.octet(), 1]));
    }
    if places & 4 != 0 {
        let mut value = vec![0, 2, 1];
        choices.prefixes(true, &mut value);
        if value.len() > 3 {
            attributes.push((0x80, 15, value));
        }
    }
    // IPv6 routes, or IPv4 routes with an IPv6 next hop.
    let v6 = places & 16 == 0;
    let mut routes = vec![];
    if places & 8 != 0 {
        choices.prefixes(v6, &mut routes);
    }
    if !routes.is_empty() {
        zettabgp &= v6;
        let mut value = vec![0, if v6 { 2 } else { 1 }, 1, 16, 0x20, 1, 13, 0xb8];
        value.extend_from_slice(&choices.array::<11>());
        value.push(1);
        value.push(0);
        value.extend_from_slice(&routes);
        attributes.push((0x80, 14, value));
    }
    if nlri.is_empty() && routes.is_empty() {
        // Withdrawals need no attributes.
        attributes.retain(|(_, code, _)| *code == 15);
    }
    let mut list = vec![];
    while !attributes.is_empty() {
        let (flags, code, value) = attributes.remove(usize::from(choices.octet()) % attributes.len());
        match value.len() {
            length @ 0..=255 if !choices.bit() => list.extend_from_slice(&[flags, code, length as u8]),
            length => {
                list.extend_from_slice(&[flags | 0x10, code]);
                list.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        list.extend_from_slice(&value);
    }
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(&withdrawn);
    body.extend_from_slice(&(list.len() as u16).to_be_bytes());
    body.extend_from_slice(&list);
    body.extend_from_slice(&nlri);
    Case { body, four_octet_as, zettabgp }
}

/// Any octets are valid choices.
pub fn run(data: &[u8]) {
    let Case { body, four_octet_as, zettabgp } = case(&mut Choices(data));
    let ours = ours(&body, four_octet_as);
    assert_eq!(
        ours,
        netgauze(&body, four_octet_as),
        "netgauze decodes another message: \
        {body:02x?}"
    );
    if zettabgp {
        assert_eq!(ours, self::zettabgp(&body), "zettabgp decodes another message: {body:02x?}");
    }
}

fn ours(body: &[u8], four_octet_as: bool) -> Seen {
    let context = DecodeContext {
        four_octet_as,
        ext_next_hop: true,
        families: FamilySet::ALL,
        add_path: FamilySet::EMPTY,
        ebgp: false,
    };
    let mut scratch = Scratch::default();
    let update = match decode_update(body, &context, &mut scratch) {
        Ok(update) => update,
        Err(error) => panic!("refused: {error}: {body:02x?}"),
    };
    assert!(update.treat_as_withdraw.is_none() && update.discarded.is_empty(), "{update:?}");
    let announced = update.announced();
    let mut seen = Seen {
        announced: announced
            .flat_map(|reach| reach.prefixes.iter().map(move |prefix| (prefix, reach.next_hop.address())))
            .collect(),
        withdrawn: update.withdrawn().flat_map(|prefixes| prefixes.iter()).collect(),
        ..Seen::default()
    };
    let Some(block) = update.attributes else { return seen };
    let attributes = match PathAttributes::parse(block) {
        Ok(attributes) => attributes,
        Err(fault) => panic!("{fault}"),
    };
    seen.origin = attributes.origin as u8;
    seen.as_path =
        attributes.as_path.segments.iter().flat_map(|segment| &segment.asns).map(|asn| asn.0).collect();
    seen.med = attributes.med;
    seen.local_pref = attributes.local_pref;
    seen.communities = attributes.communities.iter().map(|community| community.0).collect();
    seen.large_communities =
        attributes.large_communities.iter().map(|c| [c.global, c.local1, c.local2]).collect();
    seen.atomic_aggregate = attributes.atomic_aggregate;
    seen.aggregator = attributes.aggregator.map(|aggregator| (aggregator.asn.0, aggregator.address));
    seen.originator_id = attributes.originator_id;
    seen.cluster_list = attributes.cluster_list;
    seen
}

fn netgauze(body: &[u8], four_octet_as: bool) -> Seen {
    let mut context = BgpParsingContext::asn2_default();
    context.set_asn4(four_octet_as);
    let message = message(2, body);
    let update = match GauzeMessage::parse(&mut SliceReader::new(&message), &mut context) {
        Ok(GauzeMessage::Update(update)) => update,
        other => panic!("netgauze: {other:?}"),
    };
    let mut seen = Seen::default();
    seen.withdrawn
        .extend(update.withdraw_routes().iter().map(|prefix| IpNet::V4(prefix.network().address())));
    for attribute in update.path_attributes() {
        match attribute.value() {
            PathAttributeValue::Origin(origin) => seen.origin = *origin as u8,
            PathAttributeValue::AsPath(path) => seen.as_path = path.clone().into(),
            PathAttributeValue::NextHop(next_hop) => {
                let next_hop = IpAddr::V4(next_hop.next_hop());
                let nlri = update.nlri().iter().map(|prefix| IpNet::V4(prefix.network().address()));
                seen.announced.extend(nlri.map(|prefix| (prefix, next_hop)));
            }
            PathAttributeValue::MultiExitDiscriminator(med) => seen.med = Some(med.metric()),
            PathAttributeValue::LocalPreference(preference) => seen.local_pref = Some(preference.metric()),
            PathAttributeValue::AtomicAggregate(_) => seen.atomic_aggregate = true,
            PathAttributeValue::Aggregator(Aggregator::As2Aggregator(aggregator)) => {
                seen.aggregator = Some((u32::from(*aggregator.asn()), aggregator.origin()));
            }
            PathAttributeValue::Aggregator(Aggregator::As4Aggregator(aggregator)) => {
                seen.aggregator = Some((*aggregator.asn(), aggregator.origin()));
            }
            PathAttributeValue::Communities(list) => {
                seen.communities = list.communities().iter().map(|community| community.value()).collect();
            }
            PathAttributeValue::LargeCommunities(list) => {
                let list = list.communities().iter();
                seen.large_communities =
                    list.map(|c| [c.global_admin(), c.local_data1(), c.local_data2()]).collect();
            }
            PathAttributeValue::Originator(originator) => seen.originator_id = Some(originator.id()),
            PathAttributeValue::ClusterList(list) => {
                seen.cluster_list = list.cluster_list().iter().map(|cluster| cluster.id()).collect();
            }
            PathAttributeValue::MpReach(MpReach::Ipv4Unicast { next_hop, nlri, .. }) => {
                let nlri = nlri.iter().map(|prefix| IpNet::V4(prefix.network().address()));
                seen.announced.extend(nlri.map(|prefix| (prefix, *next_hop)));
            }
            PathAttributeValue::MpReach(MpReach::Ipv6Unicast { next_hop_global, nlri, .. }) => {
                let nlri = nlri.iter().map(|prefix| IpNet::V6(prefix.network().address()));
                seen.announced.extend(nlri.map(|prefix| (prefix, IpAddr::V6(*next_hop_global))));
            }
            PathAttributeValue::MpUnreach(MpUnreach::Ipv6Unicast { nlri }) => {
                seen.withdrawn.extend(nlri.iter().map(|prefix| IpNet::V6(prefix.network().address())));
            }
            other => panic!("netgauze: {other:?}"),
        }
    }
    seen
}

fn zettabgp(body: &[u8]) -> Seen {
    let mut session =
        BgpSessionParams::new(65001, 90, BgpTransportMode::IPv4, Ipv4Addr::new(10, 0, 0, 1), vec![]);
    session.fuzzy_pathid = false;
    let mut message = BgpUpdateMessage::new();
    if let Err(error) = message.decode_from(&session, body) {
        panic!("zettabgp: {error:?}");
    }
    let mut seen = Seen::default();
    seen.withdrawn.extend(nets(&message.withdraws));
    for attribute in &message.attrs {
        match attribute {
            BgpAttrItem::Origin(origin) => {
                seen.origin = match origin.value {
                    BgpAttrOrigin::Igp => 0,
                    BgpAttrOrigin::Egp => 1,
                    BgpAttrOrigin::Incomplete => 2,
                }
            }
            BgpAttrItem::ASPath(path) => {
                for item in &path.value {
                    let BgpASitem::Seq(sequence) = item else { panic!("zettabgp: {item:?}") };
                    seen.as_path.extend(sequence.value.iter().map(|asn| asn.value));
                }
            }
            BgpAttrItem::NextHop(next_hop) => {
                seen.announced.extend(nets(&message.updates).into_iter().map(|net| (net, next_hop.value)));
            }
            BgpAttrItem::MPUpdates(reach) => {
                let BgpAddr::V6(next_hop) = reach.nexthop else { panic!("zettabgp: {reach:?}") };
                seen.announced
                    .extend(nets(&reach.addrs).into_iter().map(|net| (net, Ipv6Addr::into(next_hop))));
            }
            BgpAttrItem::MPWithdraws(unreach) => seen.withdrawn.extend(nets(&unreach.addrs)),
            BgpAttrItem::MED(med) => seen.med = Some(med.value),
            BgpAttrItem::LocalPref(preference) => seen.local_pref = Some(preference.value),
            BgpAttrItem::CommunityList(list) => {
                seen.communities = list.value.iter().map(|community| community.value).collect();
            }
            BgpAttrItem::LargeCommunityList(list) => {
                seen.large_communities = list.value.iter().map(|c| [c.ga, c.ldp1, c.ldp2]).collect();
            }
            other => panic!("zettabgp: {other:?}"),
        }
    }
    seen
}

fn nets(addrs: &BgpAddrs) -> Vec<IpNet> {
    match addrs {
        BgpAddrs::None => vec![],
        BgpAddrs::IPV4U(nets) => {
            nets.iter().map(|net| IpNet::V4(Ipv4Net::new_assert(net.addr, net.prefixlen))).collect()
        }
        BgpAddrs::IPV6U(nets) => {
            nets.iter().map(|net| IpNet::V6(Ipv6Net::new_assert(net.addr, net.prefixlen))).collect()
        }
        other => panic!("zettabgp: {other:?}"),
    }
}
