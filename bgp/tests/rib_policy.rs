//! Policies in the tables: each condition and each change, in import and export.

#![expect(clippy::unwrap_used, reason = "a test may end where it expected something else")]

mod rib_support;

use ipnet::IpNet;
use proptest::prelude::*;
use rib_support::{Bench, net, path};
use trunkline_bgp::policy::{
    Actions, AsPathMatch, Conditions, Edit, Members, Policy, PolicyResult, PrefixMatch, PrefixSet, Rule,
};
use trunkline_bgp::rib::{Filtered, NotAdvertised, Origination};
use trunkline_bgp::types::{Asn, Community, ExtendedCommunity, LargeCommunity, PeerId};
use trunkline_bgp::wire::{AsPath, Origin, PathAttributes, Segment, SegmentKind};

const PREFIX: &str = "10.1.0.0/16";

fn large(local1: u32) -> LargeCommunity {
    LargeCommunity { global: 65000, local1, local2: 1 }
}

/// `rt:65000:…`
fn target(number: u8) -> ExtendedCommunity {
    ExtendedCommunity([0, 2, 0xfd, 0xe8, 0, 0, 0, number])
}

/// A path with a set in the middle: 65001 {7 8} 9.
fn with_set() -> AsPath {
    let segment = |kind, asns: &[u32]| Segment { kind, asns: asns.iter().copied().map(Asn).collect() };
    AsPath {
        segments: vec![
            segment(SegmentKind::Sequence, &[65001]),
            segment(SegmentKind::Set, &[7, 8]),
            segment(SegmentKind::Sequence, &[9]),
        ],
    }
}

/// Peer 1's path in the tests of conditions; its next hop is 10.0.0.1.
fn announced() -> PathAttributes {
    PathAttributes {
        origin: Origin::Egp,
        as_path: with_set(),
        communities: vec![Community(1), Community(2)],
        large_communities: vec![large(1), large(2)],
        extended_communities: vec![target(1), target(2)],
        ..PathAttributes::default()
    }
}

fn asns(numbers: &[u32]) -> Vec<Asn> {
    numbers.iter().copied().map(Asn).collect()
}

fn prefixes(texts: &[&str]) -> PrefixSet {
    texts.iter().map(|text| PrefixMatch::or_longer(net(text))).collect()
}

type Row = (&'static str, fn() -> Conditions, bool);

/// Conditions, and whether [`announced`] satisfies them.
const ROWS: &[Row] = &[
    ("nothing", Conditions::default, true),
    ("any of, one there", || communities(&[9, 2], &[], &[]), true),
    ("any of, none there", || communities(&[9, 8], &[], &[]), false),
    ("all of, all there", || communities(&[], &[1, 2], &[]), true),
    ("all of, one missing", || communities(&[], &[1, 9], &[]), false),
    ("none of, none there", || communities(&[], &[], &[8, 9]), true),
    ("none of, one there", || communities(&[1], &[], &[9, 2]), false),
    ("large communities", || larges(&[3, 2], &[1], &[4]), true),
    ("large communities, not these", || larges(&[], &[], &[1]), false),
    ("extended communities", || targets(&[3, 2], &[1], &[4]), true),
    ("extended communities, not these", || targets(&[], &[], &[1]), false),
    ("length 3", || as_path(|it| it.length = 3..=3), true),
    ("length 4 at least", || as_path(|it| it.length = 4..=usize::MAX), false),
    ("length 2 at most", || as_path(|it| it.length = 0..=2), false),
    ("an AS in the middle", || as_path(|it| it.contains = asns(&[5, 8])), true),
    ("an AS that is not in the path", || as_path(|it| it.contains = asns(&[5])), false),
    ("the neighbouring AS", || as_path(|it| it.neighbour_as = asns(&[5, 65001])), true),
    ("not the neighbouring AS", || as_path(|it| it.neighbour_as = asns(&[9])), false),
    ("the originating AS", || as_path(|it| it.origin_as = asns(&[9])), true),
    ("not the originating AS", || as_path(|it| it.origin_as = asns(&[8, 65001])), false),
    ("ORIGIN", || origins(&[Origin::Igp, Origin::Egp]), true),
    ("another ORIGIN", || origins(&[Origin::Igp, Origin::Incomplete]), false),
    ("next hop", || next_hops(&["192.0.2.0/24", "10.0.0.0/24"]), true),
    ("another next hop", || next_hops(&["10.0.1.0/24", "2001:db8::/32"]), false),
    ("learned", || originated(false), true),
    ("originated", || originated(true), false),
    ("prefix", || Conditions { prefixes: prefixes(&["10.0.0.0/8"]), ..Conditions::default() }, true),
    (
        "another prefix",
        || Conditions { prefixes: prefixes(&["10.1.0.0/17"]), ..Conditions::default() },
        false,
    ),
];

fn communities(any_of: &[u32], all_of: &[u32], none_of: &[u32]) -> Conditions {
    let list = |numbers: &[u32]| numbers.iter().copied().map(Community).collect();
    let communities = Members { any_of: list(any_of), all_of: list(all_of), none_of: list(none_of) };
    Conditions { communities, ..Conditions::default() }
}

fn larges(any_of: &[u32], all_of: &[u32], none_of: &[u32]) -> Conditions {
    let list = |numbers: &[u32]| numbers.iter().copied().map(large).collect();
    let large_communities = Members { any_of: list(any_of), all_of: list(all_of), none_of: list(none_of) };
    Conditions { large_communities, ..Conditions::default() }
}

fn targets(any_of: &[u8], all_of: &[u8], none_of: &[u8]) -> Conditions {
    let list = |numbers: &[u8]| numbers.iter().copied().map(target).collect();
    let extended_communities = Members { any_of: list(any_of), all_of: list(all_of), none_of: list(none_of) };
    Conditions { extended_communities, ..Conditions::default() }
}

fn as_path(edit: impl FnOnce(&mut AsPathMatch)) -> Conditions {
    let mut conditions = Conditions::default();
    edit(&mut conditions.as_path);
    conditions
}

fn origins(origins: &[Origin]) -> Conditions {
    Conditions { origins: origins.to_vec(), ..Conditions::default() }
}

fn next_hops(texts: &[&str]) -> Conditions {
    Conditions { next_hops: prefixes(texts), ..Conditions::default() }
}

fn originated(originated: bool) -> Conditions {
    Conditions { originated: Some(originated), ..Conditions::default() }
}

fn only(when: Conditions) -> Policy {
    Policy { rules: vec![Rule::accept(when)], default: PolicyResult::Reject }
}

#[test]
fn every_condition_matches_exactly_its_paths() {
    for (what, when, holds) in ROWS {
        let mut bench = Bench::new(1, &[(1, true), (2, true)]);
        bench.announce(1, PREFIX, &announced());
        bench.rib.set_policy(PeerId(1), &only(when()), &Policy::accept_all());
        let filtered = (!holds).then_some(Filtered::Policy);
        assert_eq!(bench.rib.lookup(&net(PREFIX))[0].filtered, filtered, "import: {what}");
        // The conditions have the same effect in export.
        bench.rib.set_policy(PeerId(1), &Policy::accept_all(), &Policy::accept_all());
        bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &only(when()));
        let reason = (!holds).then_some(NotAdvertised::Policy);
        assert_eq!(bench.rib.not_advertised(PeerId(2), &net(PREFIX)), reason, "export: {what}");
        assert_eq!(bench.advertised_path(2, PREFIX).is_some(), *holds, "export: {what}");
    }
}

#[test]
fn originated_paths_have_no_as_path_and_no_next_hop() {
    let mut bench = Bench::new(1, &[(2, true)]);
    bench.rib.originate(net(PREFIX), &Origination::default());
    let rows: [(Conditions, bool); 4] = [
        (as_path(|it| it.length = 0..=0), true),
        (originated(true), true),
        (as_path(|it| it.origin_as = asns(&[65000])), false),
        (next_hops(&["0.0.0.0/0", "::/0"]), false),
    ];
    for (when, holds) in rows {
        let policy = only(when);
        bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &policy);
        assert_eq!(bench.advertised_path(2, PREFIX).is_some(), holds, "{policy:?}");
    }
}

#[test]
fn list_edits_replace_then_remove_then_add() {
    let edit = Edit {
        replace: Some(vec![Community(7), Community(8), Community(7)]),
        remove: vec![Community(8), Community(1)],
        add: vec![Community(7), Community(9)],
    };
    let set = Actions {
        communities: edit,
        large_communities: Edit { remove: vec![large(1)], ..Edit::default() },
        extended_communities: Edit { remove: vec![target(1)], add: vec![target(3)], ..Edit::default() },
        ..Actions::default()
    };
    let policy = Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.announce(1, PREFIX, &announced());
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &policy);
    let (_, sent) = bench.advertised_path(2, PREFIX).unwrap();
    assert_eq!(sent.communities, [Community(7), Community(9)]);
    assert_eq!(sent.large_communities, [large(2)]);
    assert_eq!(sent.extended_communities, [target(2), target(3)]);
    let set =
        Actions { communities: Edit { replace: Some(Vec::new()), ..Edit::default() }, ..Actions::default() };
    let policy = Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &policy);
    assert!(bench.advertised_path(2, PREFIX).unwrap().1.communities.is_empty());
}

/// RFC 4360 §6: non-transitive communities end at the edge of the AS, unless the peer's own policy
/// adds them.
#[test]
fn non_transitive_communities_stay_within_the_as() {
    let bandwidth = ExtendedCommunity([0x40, 4, 0xfd, 0xe8, 0x49, 0x74, 0x24, 0]);
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
    let extended_communities = vec![target(1), bandwidth];
    bench.announce(1, PREFIX, &PathAttributes { extended_communities, ..path(&[65001]) });
    let sent = |bench: &mut Bench, to| bench.advertised_path(to, PREFIX).unwrap().1.extended_communities;
    assert_eq!(sent(&mut bench, 4), [target(1), bandwidth]);
    assert_eq!(sent(&mut bench, 2), [target(1)]);
    let set = Actions { extended_communities: Edit::add([bandwidth]), ..Actions::default() };
    let policy = Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &policy);
    assert_eq!(sent(&mut bench, 2), [target(1), bandwidth]);
}

/// A later rule sees the changes of an earlier one. A condition on other attributes is cached
/// separately for each prefix class.
#[test]
fn one_attribute_set_follows_the_rules_of_each_prefix() {
    let tag = |prefix: &str, community: u32| Rule {
        when: Conditions { prefixes: prefixes(&[prefix]), ..Conditions::default() },
        set: Actions { communities: Edit::add([Community(community)]), ..Actions::default() },
        ..Rule::default()
    };
    let tagged = Conditions { communities: vec![Community(11)].into(), ..Conditions::default() };
    let policy = Policy {
        rules: vec![tag("10.1.0.0/16", 11), tag("10.2.0.0/16", 12), Rule::reject(tagged)],
        default: PolicyResult::Accept,
    };
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.rib.set_policy(PeerId(1), &policy, &Policy::accept_all());
    for prefix in ["10.1.1.0/24", "10.2.1.0/24", "10.3.1.0/24"] {
        bench.announce(1, prefix, &path(&[65001, 7]));
    }
    assert!(bench.advertised_path(2, "10.1.1.0/24").is_none());
    assert_eq!(bench.advertised_path(2, "10.2.1.0/24").unwrap().1.communities, [Community(12)]);
    assert!(bench.advertised_path(2, "10.3.1.0/24").unwrap().1.communities.is_empty());
}

/// The prefixes are close together, so some of them cover others.
fn prefix() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (0u32..16, 0u8..=32).prop_map(|(bits, length)| {
            IpNet::new(std::net::Ipv4Addr::from(bits << 28 | bits).into(), length).unwrap().trunc()
        }),
        (0u128..16, 0u8..=128).prop_map(|(bits, length)| {
            IpNet::new(std::net::Ipv6Addr::from(bits << 124 | bits).into(), length).unwrap().trunc()
        }),
    ]
}

fn entry() -> impl Strategy<Value = PrefixMatch> {
    let bound = || proptest::option::of(0u8..=128);
    (prefix(), bound(), bound()).prop_map(|(prefix, ge, le)| PrefixMatch { prefix, ge, le })
}

proptest! {
    #[test]
    fn a_set_matches_if_any_entry_matches(
        entries in proptest::collection::vec(entry(), 0..30),
        prefixes in proptest::collection::vec(prefix(), 1..60),
    ) {
        let set = PrefixSet::from(entries.clone());
        prop_assert_eq!(set.entries(), entries.as_slice());
        for prefix in prefixes.iter().chain(entries.iter().map(|entry| &entry.prefix)) {
            let expected = entries.iter().any(|entry| entry.matches(prefix));
            prop_assert_eq!(set.contains(prefix), expected, "{} in {:?}", prefix, entries);
        }
    }
}
