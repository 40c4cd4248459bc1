//! Originated prefixes: their tags in export policy, extended communities, link bandwidth.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rib_support;

use std::collections::BTreeSet;

use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::community::{
    ExtendedCommunity as GauzeCommunity, NonTransitiveTwoOctetExtendedCommunity as NonTransitive,
    TransitiveTwoOctetExtendedCommunity as Transitive,
};
use netgauze_bgp_pkt::path_attribute::PathAttributeValue;
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use proptest::prelude::*;
use rib_support::{Bench, LOCAL_AS, config, net, path, peer, session};
use trunkline_bgp::policy::{Actions, Conditions, Edit, Members, Policy, PolicyResult, Rule};
use trunkline_bgp::rib::{NotAdvertised, Origination, PolicyMatch, Rib, RibConfig, RibPeer};
use trunkline_bgp::types::{Asn, Community, ExtendedCommunity, Family, LinkBandwidth, PeerId, Tag, Tags};
use trunkline_bgp::wire::{MAX_EXTENDED, Origin, frame};

const PREFIX: &str = "10.9.0.0/16";
const GIGABIT: LinkBandwidth = LinkBandwidth(125_000_000);
/// 1 Gbit/s in AS 65000: to external and to internal peers.
const BANDWIDTH: ExtendedCommunity = ExtendedCommunity([0, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]);
const INTERNAL_BANDWIDTH: ExtendedCommunity =
    ExtendedCommunity([0x40, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]);
const TARGET: ExtendedCommunity = ExtendedCommunity([0, 2, 0xfd, 0xe8, 0, 0, 0, 1]);
const NON_TRANSITIVE_TARGET: ExtendedCommunity = ExtendedCommunity([0x40, 2, 0xfd, 0xe8, 0, 0, 0, 1]);

fn tagged(tags: &[u16]) -> Origination {
    Origination { tags: Tags::new(tags.iter().copied().map(Tag)).unwrap(), ..Origination::default() }
}

fn tags(any_of: &[u16], all_of: &[u16], none_of: &[u16]) -> Conditions {
    let list = |numbers: &[u16]| numbers.iter().copied().map(Tag).collect();
    let tags = Members { any_of: list(any_of), all_of: list(all_of), none_of: list(none_of) };
    Conditions { tags, ..Conditions::default() }
}

fn policy(rules: Vec<Rule>, default: PolicyResult) -> Policy {
    Policy { rules, default }
}

fn set_export(bench: &mut Bench, number: u32, export: &Policy) {
    bench.rib.set_policy(PeerId(number), &Policy::accept_all(), export);
}

fn extended(bench: &mut Bench, to: u32) -> Vec<ExtendedCommunity> {
    bench.advertised_path(to, PREFIX).unwrap().1.extended_communities
}

#[test]
fn export_conditions_match_the_tags_of_originations() {
    // Conditions, and whether a prefix with the tags 1 and 2, one without tags, and a received path
    // satisfy them.
    let rows: [(Conditions, [bool; 3]); 10] = [
        (tags(&[], &[], &[]), [true, true, true]),
        (tags(&[9, 2], &[], &[]), [true, false, false]),
        (tags(&[9, 3], &[], &[]), [false, false, false]),
        (tags(&[], &[1, 2], &[]), [true, false, false]),
        (tags(&[], &[1, 9], &[]), [false, false, false]),
        (tags(&[], &[], &[3, 9]), [true, true, true]),
        (tags(&[], &[], &[9, 1]), [false, true, true]),
        (tags(&[1], &[], &[2]), [false, false, false]),
        (Conditions { originated: Some(true), ..tags(&[], &[], &[1]) }, [false, true, false]),
        (Conditions { originated: Some(false), ..tags(&[1], &[], &[]) }, [false, false, false]),
    ];
    let prefixes = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
    let mut bench = Bench::new(1, &[(1, true), (2, true), (3, false)]);
    bench.rib.originate(net(prefixes[0]), &tagged(&[2, 1]));
    bench.rib.originate(net(prefixes[1]), &tagged(&[]));
    bench.announce(1, prefixes[2], &path(&[65001]));
    for (when, holds) in rows {
        let accepts = policy(vec![Rule::accept(when.clone())], PolicyResult::Reject);
        let rejects = policy(vec![Rule::reject(when)], PolicyResult::Accept);
        for (export, wanted) in [(&accepts, holds), (&rejects, holds.map(|holds| !holds))] {
            for to in [2, 3] {
                set_export(&mut bench, to, export);
                for (prefix, wanted) in prefixes.iter().zip(wanted) {
                    let advertised = bench.advertised_path(to, prefix).is_some();
                    assert_eq!(advertised, wanted, "{prefix} to {to}: {export:?}");
                }
            }
        }
    }
}

#[test]
fn received_paths_have_no_tags_in_import() {
    let mut bench = Bench::new(1, &[(1, true)]);
    bench.announce(1, PREFIX, &path(&[65001]));
    for (when, holds) in [(tags(&[1], &[], &[]), false), (tags(&[], &[], &[1]), true)] {
        let import = policy(vec![Rule::accept(when)], PolicyResult::Reject);
        bench.rib.set_policy(PeerId(1), &import, &Policy::accept_all());
        assert_eq!(bench.fib(PREFIX).len(), usize::from(holds));
    }
}

/// The rules that a program writes for tags: one for each tag with its attributes, and one that
/// rejects prefixes that no rule is for. Tag 0 is on every prefix that needs a rule.
#[test]
fn each_peer_receives_the_attributes_of_its_tags() {
    let adds = |tag: u16| Rule {
        when: tags(&[tag], &[], &[]),
        set: Actions { communities: Edit::add([Community(u32::from(tag))]), ..Actions::default() },
        ..Rule::default()
    };
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    let nothing_else = |own: &[u16]| Rule::reject(tags(&[0], &[], own));
    set_export(&mut bench, 1, &policy(vec![adds(1), adds(2), nothing_else(&[1, 2])], PolicyResult::Accept));
    set_export(&mut bench, 2, &policy(vec![adds(2), nothing_else(&[2])], PolicyResult::Accept));
    let mut communities = |number, originated: &[u16]| {
        bench.rib.originate(net(PREFIX), &tagged(originated));
        let sent = bench.advertised_path(number, PREFIX)?.1.communities;
        Some(sent.iter().map(|community| community.0).collect::<Vec<_>>())
    };
    assert_eq!(communities(1, &[]), Some(vec![]), "a prefix without tags needs no rule");
    assert_eq!(communities(1, &[0, 1, 2]), Some(vec![1, 2]));
    assert_eq!(communities(2, &[0, 1, 2]), Some(vec![2]));
    assert_eq!((communities(1, &[0, 1]), communities(2, &[0, 1])), (Some(vec![1]), None));
    assert_eq!((communities(1, &[0, 3]), communities(2, &[0, 3])), (None, None), "an outdated tag");
}

#[test]
fn an_explanation_names_the_rule_of_a_tag() {
    let mut bench = Bench::new(1, &[(1, true)]);
    bench.rib.originate(net(PREFIX), &tagged(&[7]));
    let rule = Rule { name: Some("not here".to_owned()), ..Rule::reject(tags(&[7], &[], &[])) };
    set_export(&mut bench, 1, &policy(vec![Rule::reject(tags(&[8], &[], &[])), rule], PolicyResult::Accept));
    let explained = bench.rib.explain_export(PeerId(1), &net(PREFIX)).pop().unwrap();
    assert_eq!(explained.refused, Some(NotAdvertised::Policy));
    let by_name = PolicyMatch { accepted: false, rule: Some(2), name: Some("not here".to_owned()) };
    assert_eq!(explained.ruling, Some(by_name));
}

#[test]
fn a_change_of_tags_is_sent_only_if_attributes_change() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    let set = Actions { med: Some(7), ..Actions::default() };
    let when_two = Rule { when: tags(&[2], &[], &[]), set, ..Rule::default() };
    set_export(&mut bench, 2, &policy(vec![when_two], PolicyResult::Accept));
    bench.rib.originate(net(PREFIX), &tagged(&[1]));
    bench.flush();
    for (tags, med, announced) in
        [(&[3][..], None, 1), (&[2, 3], Some(7), 2), (&[2], Some(7), 2), (&[], None, 3)]
    {
        bench.rib.originate(net(PREFIX), &tagged(tags));
        assert_eq!(bench.advertised_path(2, PREFIX).unwrap().1.med, med);
        assert_eq!(
            (bench.receivers[&1].announced, bench.receivers[&2].announced),
            (1, announced),
            "{tags:?}"
        );
    }
    assert!(bench.rib.withdraw(net(PREFIX)));
    bench.flush();
    assert_eq!((bench.rib.prefixes(Family::Ipv4Unicast), bench.rib.attribute_sets()), (0, 0));
}

/// Every router prefers the path of another speaker, with or without a session in the same AS.
#[test]
fn a_worse_origination_is_an_update_to_each_kind_of_peer() {
    let mut bench = Bench::new(1, &[(1, true), (4, false)]);
    bench.rib.originate(net(PREFIX), &Origination::default());
    for (peer, local_pref) in [(1, None), (4, Some(100))] {
        let sent = bench.advertised_path(peer, PREFIX).unwrap().1;
        assert_eq!((sent.origin, sent.local_pref), (Origin::Igp, local_pref), "peer {peer}");
    }
    let worse = Origination { origin: Origin::Incomplete, local_pref: Some(0), ..Origination::default() };
    bench.rib.originate(net(PREFIX), &worse);
    for (peer, local_pref) in [(1, None), (4, Some(0))] {
        let sent = bench.advertised_path(peer, PREFIX).unwrap().1;
        assert_eq!((sent.origin, sent.local_pref), (Origin::Incomplete, local_pref), "peer {peer}");
    }
    assert_eq!((bench.receivers[&1].announced, bench.receivers[&4].announced), (2, 2));
}

#[test]
fn the_session_defines_the_form_of_a_link_bandwidth() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
    let origination = Origination {
        extended_communities: vec![TARGET, NON_TRANSITIVE_TARGET],
        link_bandwidth: Some(GIGABIT),
        ..Origination::default()
    };
    bench.rib.originate(net(PREFIX), &origination);
    assert_eq!(extended(&mut bench, 1), [TARGET, BANDWIDTH]);
    assert_eq!(extended(&mut bench, 4), [TARGET, NON_TRANSITIVE_TARGET, INTERNAL_BANDWIDTH]);
    // The policy of a peer sees the form of the session, and its changes stay as they are.
    let of_session = Conditions { extended_communities: vec![BANDWIDTH].into(), ..Conditions::default() };
    let edit = Edit { remove: vec![BANDWIDTH], add: vec![INTERNAL_BANDWIDTH], ..Edit::default() };
    let set = Actions { extended_communities: edit, ..Actions::default() };
    let export = policy(vec![Rule { set, ..Rule::accept(of_session) }], PolicyResult::Reject);
    set_export(&mut bench, 2, &export);
    assert_eq!(extended(&mut bench, 2), [TARGET, INTERNAL_BANDWIDTH]);
    // A change of the number is an UPDATE; a change below the precision of the wire is none.
    let announced = bench.receivers[&1].announced;
    for (bandwidth, more) in [(GIGABIT.0 + 1, 0), (2 * GIGABIT.0, 1)] {
        let link_bandwidth = Some(LinkBandwidth(bandwidth));
        bench.rib.originate(net(PREFIX), &Origination { link_bandwidth, ..origination.clone() });
        bench.flush();
        assert_eq!(bench.receivers[&1].announced, announced + more);
    }
}

#[test]
fn the_link_bandwidth_of_a_received_path_keeps_its_form() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
    for (received, external) in [(BANDWIDTH, Some(BANDWIDTH)), (INTERNAL_BANDWIDTH, None)] {
        let mut attributes = path(&[65001]);
        attributes.extended_communities = vec![received];
        bench.announce(1, PREFIX, &attributes);
        assert_eq!(extended(&mut bench, 4), [received]);
        assert_eq!(extended(&mut bench, 2), external.into_iter().collect::<Vec<_>>());
    }
}

/// The octets that a speaker writes to a new peer for one originated prefix.
fn octets(origination: &Origination, local_as: Asn, external: bool, export: Policy) -> Vec<u8> {
    let mut rib = Rib::new(RibConfig { local_as, ..config(1) });
    let remote_as = if external { Asn(1) } else { local_as };
    rib.add_peer(PeerId(1), RibPeer { remote_as, export, ..peer(1, external) });
    rib.peer_up(PeerId(1), session(1));
    rib.originate(net(PREFIX), origination);
    let mut out = Vec::new();
    assert!(!rib.write_updates(PeerId(1), &mut out, 1 << 20));
    out
}

/// The extended communities of all messages, as an independent codec reads them.
fn decoded(mut octets: &[u8]) -> Vec<GauzeCommunity> {
    let mut context = BgpParsingContext::asn2_default();
    context.set_asn4(true);
    let mut all = Vec::new();
    while let Some(message) = frame(octets, MAX_EXTENDED).unwrap() {
        let (message, rest) = octets.split_at(message.len);
        octets = rest;
        let read = BgpMessage::parse(&mut SliceReader::new(message), &mut context).unwrap();
        let BgpMessage::Update(update) = read else { panic!("{read:?}") };
        for attribute in update.path_attributes() {
            if let PathAttributeValue::ExtendedCommunities(list) = attribute.value() {
                all.extend_from_slice(list.communities());
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn netgauze_reads_the_link_bandwidth(
        bandwidth in prop_oneof![any::<u64>(), 0..1u64 << 40, Just(0)],
        local_as in prop_oneof![2..=65535u32, 65536..=u32::MAX].prop_map(Asn),
        external in any::<bool>(),
    ) {
        let link_bandwidth = Some(LinkBandwidth(bandwidth));
        let origination = Origination { link_bandwidth, ..Origination::default() };
        let read = decoded(&octets(&origination, local_as, external, Policy::accept_all()));
        prop_assert_eq!(read.len(), 1);
        let (global, bits) = match (&read[0], external) {
            (GauzeCommunity::TransitiveTwoOctet(Transitive::Unassigned { sub_type: 4, global_admin, local_admin }), true)
            | (GauzeCommunity::NonTransitiveTwoOctet(NonTransitive::LinkBandwidth { global_admin, local_admin }), false) => {
                (*global_admin, *local_admin)
            }
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(u32::from(global), if local_as.0 > 65535 { 23456 } else { local_as.0 });
        let (sent, exact) = (f64::from(f32::from_bits(bits)), bandwidth as f64);
        prop_assert!((sent - exact).abs() <= exact / f64::from(1 << 24), "{sent} for {bandwidth}");
    }

    /// Whatever the tags and the policy are: the octets of a peer, the lists for the operator and
    /// the blocks of a dump depend only on what the policy does.
    #[test]
    fn tags_leave_no_trace_in_octets_and_lists(
        given in proptest::collection::btree_set(any::<u16>(), 0..=Tags::MAX),
        external in any::<bool>(),
        med in any::<Option<u32>>(),
        matched in any::<bool>(),
    ) {
        let given: BTreeSet<u16> = given;
        let link_bandwidth = med.map(|med| LinkBandwidth(med.into()));
        let plain = Origination { med, link_bandwidth, ..Origination::default() };
        let list: Vec<u16> = given.iter().copied().collect();
        let with_tags = Origination { tags: tagged(&list).tags, ..plain.clone() };
        // Matches each prefix, by its tags or by its lack of tags.
        let when = match list.first() {
            Some(first) if matched => tags(&[*first], &list, &[]),
            _ => Conditions::default(),
        };
        let set = Actions { communities: Edit::add([Community(7)]), ..Actions::default() };
        let export = |when| policy(vec![Rule { set: set.clone(), ..Rule::accept(when) }], PolicyResult::Reject);
        prop_assert_eq!(
            octets(&with_tags, LOCAL_AS, external, export(when)),
            octets(&plain, LOCAL_AS, external, export(Conditions::default()))
        );
        prop_assert_eq!(
            octets(&with_tags, LOCAL_AS, external, Policy::accept_all()),
            octets(&plain, LOCAL_AS, external, Policy::accept_all())
        );
        let mut bench = Bench::new(1, &[(1, external)]);
        let mut seen = Vec::new();
        for origination in [&plain, &with_tags] {
            bench.rib.originate(net(PREFIX), origination);
            bench.flush();
            let best = bench.rib.best(Family::Ipv4Unicast).map(|entry| {
                let used = entry.used.unwrap();
                (entry.received.block().to_vec(), used.block().to_vec(), used.next_hop())
            });
            let best: Vec<_> = best.collect();
            let sent = bench.rib.advertised(PeerId(1), Family::Ipv4Unicast);
            let sent: Vec<_> = sent.map(|route| (route.attributes.block().to_vec(), route.next_hop)).collect();
            seen.push((best, sent, bench.receivers[&1].announced));
        }
        prop_assert_eq!(&seen[0], &seen[1]);
    }
}
