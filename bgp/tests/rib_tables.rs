//! The tables by example: UPDATEs in, UPDATEs to peers and FIB changes out.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod rib_support;

use std::net::Ipv4Addr;

use rib_support::*;
use trunkline_bgp::policy::{Actions, Conditions, Edit, Policy, PolicyResult, PrefixMatch, PrefixSet, Rule};
use trunkline_bgp::rib::{Filtered, NotAdvertised, Origination, SessionFacts};
use trunkline_bgp::types::{Community, Family, FamilySet, LargeCommunity, NextHop, PeerId};
use trunkline_bgp::wire::{Origin, PathAttributes, UnknownAttribute};

const V4: Family = Family::Ipv4Unicast;
const V6: Family = Family::Ipv6Unicast;
const PREFIX: &str = "192.0.2.0/24";

fn only(family: Family) -> FamilySet {
    [family].into_iter().collect()
}

/// Each row tests one step of RFC 4271 §9.1. Peer 1 advertises PREFIX first, and then peer 2
/// advertises a better path.
#[test]
fn each_decision_step_selects_the_better_path() {
    let base = path(&[65001, 7]);
    let rows: [(&str, bool, PathAttributes, PathAttributes); 6] = [
        ("shorter AS_PATH", true, base.clone(), path(&[7])),
        (
            "lower ORIGIN",
            true,
            PathAttributes { origin: Origin::Incomplete, ..base.clone() },
            PathAttributes { origin: Origin::Egp, ..base.clone() },
        ),
        (
            "lower MED, same neighbour",
            true,
            PathAttributes { med: Some(5), ..base.clone() },
            PathAttributes { med: None, ..base.clone() },
        ),
        ("external", false, base.clone(), base.clone()),
        (
            "higher LOCAL_PREF",
            false,
            PathAttributes { local_pref: Some(99), ..base.clone() },
            PathAttributes { local_pref: None, ..path(&[1, 2, 3, 4]) },
        ),
        (
            "lower identifier, by ORIGINATOR_ID",
            false,
            base.clone(),
            PathAttributes { originator_id: Some(Ipv4Addr::new(9, 9, 9, 9)), ..base.clone() },
        ),
    ];
    for (step, first_external, first, second) in rows {
        let second_external = step != "higher LOCAL_PREF" && step != "lower identifier, by ORIGINATOR_ID";
        let mut bench = Bench::new(1, &[(1, first_external), (2, second_external)]);
        bench.announce(1, PREFIX, &first);
        assert_eq!(bench.fib(PREFIX), [address(1)], "{step}");
        bench.announce(2, PREFIX, &second);
        assert_eq!(bench.fib(PREFIX), [address(2)], "{step}");
        bench.withdraw(2, PREFIX);
        assert_eq!(bench.fib(PREFIX), [address(1)], "{step}: the other path is used again");
        bench.withdraw(1, PREFIX);
        assert!(bench.fib(PREFIX).is_empty());
        assert_eq!((bench.rib.prefixes(V4), bench.rib.attribute_sets()), (0, 0));
    }
    // The last steps compare identifier and address. Peer 1 has the lower identifier and the lower
    // address.
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.announce(2, PREFIX, &base);
    bench.announce(1, PREFIX, &base);
    assert_eq!(bench.fib(PREFIX), [address(1)]);
}

#[test]
fn equal_paths_share_traffic_without_duplicate_next_hops() {
    let mut bench = Bench::new(3, &[(1, true), (2, true), (3, true), (4, true), (5, true)]);
    for number in [4, 2, 3, 1] {
        bench.announce(number, PREFIX, &path(&[65000 + number, 7]));
    }
    assert_eq!(bench.fib(PREFIX), [address(1), address(2), address(3)]);
    bench.withdraw(2, PREFIX);
    assert_eq!(bench.fib(PREFIX), [address(1), address(3), address(4)]);
    bench.announce(3, PREFIX, &path(&[65003, 6, 7]));
    assert_eq!(bench.fib(PREFIX), [address(1), address(4)]);
    // Peers 3 and 1 have the same next hop.
    bench.announce_via(3, net(PREFIX), next_hop(1, &net(PREFIX)), &path(&[65003, 7]));
    assert_eq!(bench.fib(PREFIX), [address(1), address(4)]);
    let selected: Vec<_> = bench.rib.best(V4).map(|entry| (entry.peer, entry.best)).collect();
    assert_eq!(selected, [(Some(PeerId(1)), true), (Some(PeerId(3)), false), (Some(PeerId(4)), false)]);
}

#[test]
fn the_fib_receives_only_the_latest_differences() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    for _ in 0..10 {
        bench.announce(1, PREFIX, &path(&[65001]));
        bench.announce(1, PREFIX, &path(&[65001, 8]));
    }
    assert_eq!(bench.rib.route_changes(100).len(), 1);
    bench.announce(1, PREFIX, &path(&[65001, 9])); // other attributes, same next hop
    assert!(!bench.rib.has_route_changes());
    bench.announce(2, PREFIX, &path(&[65001, 9, 10])); // worse
    assert!(!bench.rib.has_route_changes());
    // A route is advertised and withdrawn before the FIB reads. There is no change to report, and
    // no state is kept.
    bench.announce(1, "198.51.100.0/24", &path(&[65001]));
    bench.withdraw(1, "198.51.100.0/24");
    assert!(bench.rib.route_changes(100).is_empty());
    bench.withdraw(1, PREFIX);
    bench.withdraw(2, PREFIX);
    let gone = bench.rib.route_changes(100);
    assert_eq!((gone.len(), gone[0].paths.len()), (1, 0));
    assert_eq!(bench.rib.prefixes(V4), 0);
    // An originated prefix is not a received route.
    bench.announce(1, PREFIX, &path(&[65001]));
    assert_eq!(bench.fib(PREFIX), [address(1)]);
    bench.rib.originate(net(PREFIX), &Origination::default());
    assert!(bench.fib(PREFIX).is_empty());
    assert!(bench.rib.withdraw(net(PREFIX)));
    assert_eq!(bench.fib(PREFIX), [address(1)]);
}

#[test]
fn re_reporting_to_the_fib_covers_exactly_its_routes() {
    let mut bench = Bench::new(1, &[(1, true)]);
    let prefixes: Vec<String> = (0..200).map(|number| format!("198.51.{number}.0/24")).collect();
    for prefix in &prefixes {
        bench.announce(1, prefix, &path(&[65001]));
    }
    bench.rib.originate(net("203.0.113.0/24"), &Origination::default());
    assert_eq!(bench.rib.route_changes(1000).len(), 200);
    // 100 routes are withdrawn. The FIB reads 99 of the removals.
    for prefix in &prefixes[50..150] {
        bench.withdraw(1, prefix);
    }
    assert_eq!(bench.rib.route_changes(99).len(), 99);
    bench.rib.resend_routes();
    let again = bench.rib.route_changes(1000);
    assert_eq!(again.iter().filter(|change| change.paths.len() == 1).count(), 100);
    assert_eq!(again.iter().filter(|change| change.paths.is_empty()).count(), 1);
    assert_eq!(again.len(), 101);
    assert!(bench.rib.route_changes(1000).is_empty());
}

#[test]
fn well_known_communities_and_peer_types_limit_export() {
    use NotAdvertised::{InternalToInternal, NoAdvertise, NoExport};
    // Peer 2 may receive a path of peer 1. The columns: whether peer 1 is external, whether peer 2
    // is external, the community, the reason if the path is not advertised.
    let rows = [
        (true, true, None, None),
        (true, false, None, None),
        (false, true, None, None),
        (false, false, None, Some(InternalToInternal)),
        (true, true, Some(Community::NO_EXPORT), Some(NoExport)),
        (true, false, Some(Community::NO_EXPORT), None),
        (true, true, Some(Community::NO_EXPORT_SUBCONFED), Some(NoExport)),
        (true, false, Some(Community::NO_EXPORT_SUBCONFED), None),
        (true, true, Some(Community::NO_ADVERTISE), Some(NoAdvertise)),
        (true, false, Some(Community::NO_ADVERTISE), Some(NoAdvertise)),
        (true, true, Some(Community(0x0001_0001)), None),
    ];
    for (from, to, community, expected) in rows {
        let mut bench = Bench::new(1, &[(1, from), (2, to)]);
        let attributes = PathAttributes { communities: community.into_iter().collect(), ..path(&[65001]) };
        bench.announce(1, PREFIX, &attributes);
        let sent = bench.advertised(2);
        assert_eq!(sent.is_empty(), expected.is_some(), "{from} {to} {community:?}");
        assert_eq!(bench.rib.not_advertised(PeerId(2), &net(PREFIX)), expected);
        assert!(bench.advertised(1).is_empty(), "not back to its sender");
        assert_eq!(bench.rib.not_advertised(PeerId(1), &net(PREFIX)), Some(NotAdvertised::SplitHorizon));
        assert_eq!(bench.rib.counts(PeerId(2), V4).advertised, sent.len());
    }
    // An originated prefix is sent with NO_EXPORT: the community is for the peer.
    let mut bench = Bench::new(1, &[(1, true), (2, false)]);
    let communities = vec![Community::NO_EXPORT];
    bench.rib.originate(net(PREFIX), &Origination { communities, ..Origination::default() });
    assert_eq!((bench.advertised(1).len(), bench.advertised(2).len()), (1, 1));
}

#[test]
fn attributes_towards_external_and_internal_peers() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (3, false), (4, false)]);
    let unknown = UnknownAttribute { flags: 0xe0, code: 200, value: vec![1, 2, 3] };
    let sent = PathAttributes {
        med: Some(70),
        communities: vec![Community(0x0001_0002)],
        unknown: vec![unknown],
        ..path(&[65001, 7])
    };
    bench.announce(1, PREFIX, &sent);
    let to_external = PathAttributes { med: None, as_path: path(&[65000, 65001, 7]).as_path, ..sent.clone() };
    assert_eq!(bench.advertised_path(2, PREFIX), Some((own_v4(2), to_external)));
    let to_internal = PathAttributes { local_pref: Some(100), ..sent };
    assert_eq!(bench.advertised_path(3, PREFIX), Some((next_hop(1, &net(PREFIX)), to_internal)));

    // From an internal peer: LOCAL_PREF and the reflectors' attributes stay inside the AS.
    let inside = PathAttributes {
        local_pref: Some(300),
        originator_id: Some(Ipv4Addr::new(9, 9, 9, 9)),
        cluster_list: vec![Ipv4Addr::new(8, 8, 8, 8)],
        ..path(&[])
    };
    bench.announce(4, "2001:db8:1::/48", &inside);
    assert_eq!(bench.advertised_path(2, "2001:db8:1::/48"), Some((own_v6(2), path(&[65000]))));

    let origination = Origination {
        communities: vec![Community(5)],
        large_communities: vec![LargeCommunity { global: 1, local1: 2, local2: 3 }],
        med: Some(9),
        ..Origination::default()
    };
    bench.rib.originate(net("10.9.0.0/16"), &origination);
    let (hop, sent) = bench.advertised_path(2, "10.9.0.0/16").unwrap();
    assert_eq!((hop, sent.med, sent.as_path.len()), (own_v4(2), Some(9), 1));
    assert_eq!(sent.large_communities, origination.large_communities);
    let (hop, sent) = bench.advertised_path(3, "10.9.0.0/16").unwrap();
    assert_eq!((hop, sent.med, sent.as_path.len(), sent.local_pref), (own_v4(3), Some(9), 0, Some(100)));
    // A second, equal origination changes nothing; a changed community is sent.
    let announced = bench.receivers[&2].announced;
    bench.rib.originate(net("10.9.0.0/16"), &origination);
    assert!(!bench.rib.pending(PeerId(2)));
    bench.rib.originate(net("10.9.0.0/16"), &Origination { med: Some(9), ..Origination::default() });
    assert!(bench.advertised_path(2, "10.9.0.0/16").unwrap().1.communities.is_empty());
    assert_eq!(bench.receivers[&2].announced, announced + 1);
    assert!(bench.rib.withdraw(net("10.9.0.0/16")) && !bench.rib.withdraw(net("10.9.0.0/16")));
    assert_eq!(bench.advertised_path(2, "10.9.0.0/16"), None);
}

#[test]
fn prefix_matches() {
    type Row = (&'static str, Option<u8>, Option<u8>, &'static [&'static str], &'static [&'static str]);
    let rows: [Row; 6] = [
        ("10.0.0.0/8", None, None, &["10.0.0.0/8"], &["10.0.0.0/9", "10.0.0.0/7", "11.0.0.0/8", "::/8"]),
        ("10.0.0.0/8", Some(9), None, &["10.0.0.0/9", "10.1.2.3/32"], &["10.0.0.0/8", "11.0.0.0/9"]),
        ("10.0.0.0/8", None, Some(16), &["10.0.0.0/8", "10.3.0.0/16"], &["10.3.0.0/17"]),
        ("10.0.0.0/8", Some(24), Some(24), &["10.3.7.0/24"], &["10.3.0.0/23", "10.3.7.0/25"]),
        ("0.0.0.0/0", Some(0), None, &["0.0.0.0/0", "10.0.0.1/32"], &["2001:db8::/32"]),
        ("2001:db8::/32", Some(128), None, &["2001:db8::1/128"], &["2001:db8::/64", "10.0.0.1/32"]),
    ];
    for (prefix, ge, le, matching, others) in rows {
        let condition = PrefixMatch { prefix: net(prefix), ge, le };
        let set = PrefixSet::from(vec![condition]);
        for text in matching {
            assert!(condition.matches(&net(text)) && set.contains(&net(text)), "{condition:?} {text}");
        }
        for text in others {
            assert!(!condition.matches(&net(text)) && !set.contains(&net(text)), "{condition:?} {text}");
        }
    }
}

fn prefix_rule(text: &str, ge: u8, verdict: PolicyResult) -> Rule {
    let prefixes = vec![PrefixMatch { prefix: net(text), ge: Some(ge), le: None }].into();
    Rule { when: Conditions { prefixes, ..Conditions::default() }, verdict: Some(verdict), ..Rule::default() }
}

#[test]
fn a_new_import_policy_applies_to_kept_paths() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (3, true)]);
    let tagged = PathAttributes { communities: vec![Community(1), Community(2)], ..path(&[65001, 7]) };
    bench.announce(1, "10.1.0.0/24", &tagged);
    bench.announce(1, "10.2.0.0/16", &path(&[65001, 7]));
    bench.announce(2, "10.1.0.0/24", &path(&[65002]));
    assert_eq!(bench.fib("10.1.0.0/24"), [address(2)]);

    // The first rule prefers tagged paths and replaces their tag. The second rule rejects prefixes
    // of 10.2.0.0/15 with a length of at least 16.
    let prefer = Rule {
        when: Conditions { communities: vec![Community(2)].into(), ..Conditions::default() },
        set: Actions {
            local_pref: Some(200),
            communities: Edit {
                remove: vec![Community(2)],
                add: vec![Community(3), Community(1)],
                ..Edit::default()
            },
            large_communities: Edit::add([LargeCommunity { global: 1, local1: 0, local2: 0 }]),
            prepend: 2,
            ..Actions::default()
        },
        ..Rule::default()
    };
    let policy = Policy {
        rules: vec![prefer, prefix_rule("10.2.0.0/15", 16, PolicyResult::Reject)],
        default: PolicyResult::Accept,
    };
    bench.rib.set_policy(PeerId(1), &policy, &Policy::accept_all());
    assert_eq!(bench.fib("10.1.0.0/24"), [address(1)]);
    assert!(bench.fib("10.2.0.0/16").is_empty());
    let (_, sent) = bench.advertised_path(3, "10.1.0.0/24").unwrap();
    assert_eq!(sent.communities, [Community(1), Community(3)]);
    assert_eq!(sent.large_communities.len(), 1);
    assert_eq!(sent.as_path, path(&[65000, 65001, 65001, 65001, 7]).as_path);
    let counts = bench.rib.counts(PeerId(1), V4);
    assert_eq!((counts.received, counts.accepted), (2, 1));
    let entries: Vec<_> = bench.rib.received(PeerId(1), V4).collect();
    assert_eq!(entries[0].received.parse(), tagged);
    assert_eq!(entries[0].used.unwrap().parse().local_pref, Some(200));
    assert_eq!((entries[1].filtered, entries[1].used.is_none()), (Some(Filtered::Policy), true));

    bench.rib.set_policy(PeerId(1), &Policy::reject_all(), &Policy::accept_all());
    assert_eq!(bench.fib("10.1.0.0/24"), [address(2)]);
    assert_eq!(bench.rib.counts(PeerId(1), V4).accepted, 0);
    bench.rib.set_policy(PeerId(1), &Policy::accept_all(), &Policy::accept_all());
    assert_eq!(bench.rib.counts(PeerId(1), V4).accepted, 2);
    assert_eq!(bench.fib("10.2.0.0/16"), [address(1)]);
}

#[test]
fn an_export_edit_sends_only_its_changes() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.rib.originate(net("10.0.0.0/24"), &Origination::default());
    for third in 1..20 {
        bench.announce(1, &format!("10.0.{third}.0/24"), &path(&[65001]));
    }
    assert_eq!(bench.advertised(2).len(), 20);
    // The rules differ, but the result is the same. Rows are examined, and nothing is sent.
    let accept = Rule { verdict: Some(PolicyResult::Accept), ..Rule::default() };
    let same = Policy { rules: vec![accept], default: PolicyResult::Reject };
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &same);
    assert_eq!(bench.advertised(2).len(), 20);
    assert_eq!(bench.receivers[&2].announced, 20);

    let only_own = Policy::originated_only();
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &only_own);
    assert_eq!(bench.advertised(2), ["10.0.0.0/24"]);
    assert_eq!((bench.receivers[&2].announced, bench.receivers[&2].withdrawn), (20, 19));
    assert_eq!(bench.rib.not_advertised(PeerId(2), &net("10.0.1.0/24")), Some(NotAdvertised::Policy));

    let set = Actions { prepend: 2, med: Some(4), ..Actions::default() };
    let prepending =
        Policy { rules: vec![Rule { set, ..only_own.rules[0].clone() }], default: PolicyResult::Reject };
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &prepending);
    let (_, sent) = bench.advertised_path(2, "10.0.0.0/24").unwrap();
    assert_eq!((sent.as_path, sent.med), (path(&[65000, 65000, 65000]).as_path, Some(4)));
    assert_eq!(bench.receivers[&2].announced, 21);
    assert_eq!(bench.rib.counts(PeerId(2), V4).advertised, 1);
}

#[test]
fn looped_paths_are_kept_but_not_used() {
    let mut bench = Bench::new(1, &[(1, true), (2, false)]);
    let own_originator = PathAttributes { originator_id: Some(ROUTER_ID), ..path(&[7]) };
    bench.announce(1, "10.1.0.0/16", &path(&[65001, 65000, 7]));
    bench.announce(2, "10.2.0.0/16", &own_originator);
    bench.announce_via(1, net("10.3.0.0/16"), own_v4(1), &path(&[65001]));
    bench.announce_via(1, net("2001:db8:3::/48"), own_v6(1), &path(&[65001]));
    bench.flush();
    assert!(bench.fib.is_empty());
    let reason = |bench: &Bench, prefix: &str| bench.rib.lookup(&net(prefix))[0].filtered;
    assert_eq!(reason(&bench, "10.1.0.0/16"), Some(Filtered::AsLoop));
    assert_eq!(reason(&bench, "10.2.0.0/16"), Some(Filtered::OriginatorLoop));
    assert_eq!(reason(&bench, "10.3.0.0/16"), Some(Filtered::OwnNextHop));
    assert_eq!(reason(&bench, "2001:db8:3::/48"), Some(Filtered::OwnNextHop));
    assert_eq!(bench.rib.counts(PeerId(1), V4).received, 2);
    assert_eq!(bench.rib.counts(PeerId(1), V4).accepted, 0);
    // A policy that accepts everything does not accept a loop.
    let accept = Rule { verdict: Some(PolicyResult::Accept), ..Rule::default() };
    let policy = Policy { rules: vec![accept], default: PolicyResult::Accept };
    bench.rib.set_policy(PeerId(1), &policy, &policy);
    assert_eq!(reason(&bench, "10.1.0.0/16"), Some(Filtered::AsLoop));
    bench.announce(1, "10.1.0.0/16", &path(&[65001, 7]));
    assert_eq!(bench.fib("10.1.0.0/16"), [address(1)]);
}

#[test]
fn stale_paths_are_used_until_they_are_swept() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    for prefix in ["10.1.0.0/16", "10.2.0.0/16", "2001:db8:1::/48"] {
        bench.announce(1, prefix, &path(&[65001]));
    }
    bench.flush();
    bench.lose(1, only(V4));
    assert_eq!(
        bench.advertised(2),
        ["10.1.0.0/16", "10.2.0.0/16"],
        "paths of the family that is not retained are removed at once"
    );
    assert_eq!(bench.rib.counts(PeerId(1), V4).stale, 2);
    assert!(bench.rib.received(PeerId(1), V4).all(|entry| entry.stale && entry.selected));

    bench.up(1);
    assert_eq!(bench.rib.counts(PeerId(1), V4).stale, 2);
    bench.announce(1, "10.1.0.0/16", &path(&[65001]));
    assert_eq!(bench.rib.counts(PeerId(1), V4).stale, 1);
    let announced = bench.receivers[&2].announced;
    assert_eq!(bench.rib.sweep_stale(PeerId(1), V4), 1);
    assert_eq!(bench.rib.sweep_stale(PeerId(1), V4), 0);
    assert_eq!(bench.advertised(2), ["10.1.0.0/16"]);
    assert_eq!(bench.receivers[&2].announced, announced, "an equal advertisement is not sent again");

    // The session is lost twice. Paths that were stale before are removed (RFC 4724 §4.2).
    bench.announce(1, "10.2.0.0/16", &path(&[65001]));
    bench.lose(1, only(V4));
    bench.up(1);
    bench.announce(1, "10.1.0.0/16", &path(&[65001, 9]));
    bench.lose(1, only(V4));
    assert_eq!(bench.advertised(2), ["10.1.0.0/16"]);
    // A withdrawal removes a stale path, too.
    bench.up(1);
    bench.withdraw(1, "10.1.0.0/16");
    assert!(bench.advertised(2).is_empty());
    assert_eq!(bench.rib.counts(PeerId(1), V4), trunkline_bgp::rib::Counts::default());
    bench.announce(1, "10.1.0.0/16", &path(&[65001]));
    bench.lose(1, FamilySet::ALL);
    bench.rib.remove_peer(PeerId(1));
    assert!(bench.advertised(2).is_empty());
    assert_eq!((bench.rib.prefixes(V4), bench.rib.attribute_sets()), (0, 0));
}

#[test]
fn a_held_family_is_sent_completely_after_release() {
    let mut bench = Bench::down(2, &[(1, true), (2, true), (3, true)]);
    bench.rib.hold(FamilySet::ALL);
    for number in [1, 2, 3] {
        bench.up(number);
    }
    bench.announce(1, PREFIX, &path(&[65001, 7]));
    bench.announce(2, "2001:db8:1::/48", &path(&[65002, 7]));
    bench.rib.originate(net("10.0.0.0/16"), &Origination::default());
    assert!(bench.advertised(3).is_empty() && bench.fib.is_empty());
    assert!(!bench.rib.pending(PeerId(3)) && bench.rib.poll_writable().is_none());
    assert_eq!(bench.rib.not_advertised(PeerId(3), &net(PREFIX)), Some(NotAdvertised::Held));
    assert!(bench.receivers[&3].end_of_rib.is_empty());

    bench.rib.release(V4);
    assert_eq!(bench.advertised(3), ["10.0.0.0/16", PREFIX]);
    assert_eq!(bench.receivers[&3].end_of_rib, [V4], "a family does not wait for the other family");
    assert!(bench.rib.end_of_rib_sent(PeerId(3), V4) && !bench.rib.end_of_rib_sent(PeerId(3), V6));
    assert_eq!(bench.fib.len(), 1);
    bench.rib.release(V6);
    bench.rib.release(V6);
    assert_eq!(bench.advertised(3).len(), 3);
    assert_eq!(bench.receivers[&3].end_of_rib, [V4, V6]);

    // If the table is held a second time, changes are sent at its release. End-of-RIB is not sent
    // again.
    bench.rib.hold(only(V4));
    bench.withdraw(1, PREFIX);
    bench.announce(2, "203.0.113.0/24", &path(&[65002]));
    assert_eq!(bench.advertised(3).len(), 3);
    bench.rib.release(V4);
    assert_eq!(bench.advertised(3), ["10.0.0.0/16", "203.0.113.0/24", "2001:db8:1::/48"]);
    assert!(bench.fib(PREFIX).is_empty());
    assert_eq!(bench.receivers[&3].end_of_rib, [V4, V6]);
}

#[test]
fn originations_may_be_advertised_during_a_hold() {
    let mut bench = Bench::down(2, &[(1, true), (3, true)]);
    bench.rib.hold(FamilySet::ALL);
    bench.up(3);
    bench.rib.originate(net("10.0.0.0/16"), &Origination::default());
    assert!(bench.advertised(3).is_empty());
    bench.rib.advertise_originated();
    assert_eq!(bench.advertised(3), ["10.0.0.0/16"]);

    bench.up(1);
    bench.announce(1, PREFIX, &path(&[65001, 7]));
    bench.announce(1, "10.1.0.0/16", &path(&[65001, 7]));
    bench.rib.originate(net("10.1.0.0/16"), &Origination::default());
    bench.rib.originate(net("10.2.0.0/16"), &Origination::default());
    assert_eq!(bench.advertised(3), ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"]);
    assert_eq!(bench.advertised(1), ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"]);
    assert_eq!(bench.rib.not_advertised(PeerId(3), &net(PREFIX)), Some(NotAdvertised::Held));
    assert_eq!(bench.rib.not_advertised(PeerId(3), &net("10.0.0.0/16")), None);

    // The originations end during the hold. The received path still waits.
    bench.rib.withdraw(net("10.1.0.0/16"));
    bench.rib.withdraw(net("10.2.0.0/16"));
    assert_eq!(bench.advertised(3), ["10.0.0.0/16"]);
    assert!(bench.fib.is_empty() && bench.receivers[&3].end_of_rib.is_empty());
    assert!(!bench.rib.pending(PeerId(3)) && bench.rib.poll_writable().is_none());

    bench.rib.release(V4);
    assert_eq!(bench.advertised(3), ["10.0.0.0/16", "10.1.0.0/16", PREFIX]);
    assert_eq!(bench.receivers[&3].end_of_rib, [V4]);
    assert_eq!(bench.fib.len(), 2);
    bench.rib.release(V6);
    assert_eq!(bench.advertised(3).len(), 3);
    assert_eq!(bench.receivers[&3].end_of_rib, [V4, V6]);
}

#[test]
fn end_of_rib_follows_the_initial_table_even_while_it_changes() {
    let mut bench = Bench::new(1, &[(1, true)]);
    for number in 0..5000u32 {
        bench.announce(
            1,
            &format!("10.{}.{}.0/24", number / 250, number % 250),
            &path(&[65001, number / 5 + 1]),
        );
    }
    bench.add(2, true);
    bench.up(2);
    let mut writes = 0;
    while bench.receivers[&2].end_of_rib.len() < 2 {
        writes += 1;
        assert!(writes < 1000, "changes delay End-of-RIB without end");
        // One old prefix and many new prefixes change: more than one write can send.
        for new in 0..40 {
            bench.announce(1, "10.0.0.0/24", &path(&[65001, 100_000 + writes]));
            bench.announce(1, &format!("11.{}.{new}.0/24", writes % 256), &path(&[65001, 200_000 + new]));
        }
        bench.write(2, 1000);
        assert_eq!(bench.rib.end_of_rib_sent(PeerId(2), V4), bench.receivers[&2].end_of_rib.contains(&V4));
    }
    assert_eq!(bench.receivers[&2].end_of_rib, [V6, V4], "IPv6 has no routes and does not wait");
    // The peer received every row of the initial table before End-of-RIB. A new prefix may have
    // reused a free row.
    assert!(bench.receivers[&2].initial[&V4] >= 5000);
    assert!(writes > 10, "the output is within the budget");
    bench.flush();
    assert_eq!(bench.receivers[&2].routes.len(), bench.rib.prefixes(V4));

    // A peer with an empty table receives End-of-RIB of both families at once.
    let mut empty = Bench::new(1, &[(1, true)]);
    assert!(empty.advertised(1).is_empty());
    assert_eq!(empty.receivers[&1].end_of_rib, [V4, V6]);
}

#[test]
fn writing_respects_its_limit_and_packs_equal_attributes() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (3, true)]);
    bench.flush();
    // Two alternating attribute sets are packed too.
    for number in 0..1000u32 {
        bench.announce(
            1,
            &format!("10.{}.{}.0/24", number / 250, number % 250),
            &path(&[65001, 1 + number % 2]),
        );
    }
    let mut octets = Vec::new();
    assert!(!bench.rib.write_updates(PeerId(2), &mut octets, 1 << 20));
    assert!(octets.len() < 1000 * 4 + 300, "{} octets for 1000 /24s", octets.len());
    let mut octets = Vec::new();
    let mut calls = 0;
    loop {
        let before = octets.len();
        let more = bench.rib.write_updates(PeerId(3), &mut octets, 100);
        // A write may exceed its limit by the prefixes of one attribute set.
        assert!(octets.len() - before <= 100 + 500 * 4 + 100);
        calls += 1;
        if !more {
            break;
        }
    }
    assert!(calls >= 2);
    let sent: usize = bench.rib.counts(PeerId(3), V4).advertised;
    assert_eq!(sent, 1000);
    // A route that is advertised and withdrawn between two writes causes no output.
    bench.announce(1, PREFIX, &path(&[65001]));
    bench.withdraw(1, PREFIX);
    let mut octets = Vec::new();
    assert!(!bench.rib.write_updates(PeerId(2), &mut octets, 100) && octets.is_empty());
}

#[test]
fn a_peer_is_reported_writable_once_until_it_is_drained() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.flush();
    bench.announce(1, "10.1.0.0/16", &path(&[65001]));
    bench.announce(1, "10.2.0.0/16", &path(&[65001]));
    assert_eq!(bench.rib.poll_writable(), Some(PeerId(2)), "no route is pending for its sender");
    assert_eq!(bench.rib.poll_writable(), None);
    bench.announce(1, "10.3.0.0/16", &path(&[65001]));
    assert_eq!(bench.rib.poll_writable(), None, "the peer has no written output yet");
    assert!(!bench.write(2, 4096));
    bench.announce(1, "10.4.0.0/16", &path(&[65001]));
    assert_eq!(bench.rib.poll_writable(), Some(PeerId(2)));
    bench.lose(2, FamilySet::EMPTY);
    assert_eq!(bench.rib.poll_writable(), None);
}

#[test]
fn watched_prefixes_are_reported_when_they_are_written() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.flush();
    let prefix = net("10.0.0.1/32");
    assert!(bench.rib.watch(prefix).is_empty());
    bench.rib.originate(prefix, &Origination::default());
    bench.rib.originate(net("10.0.0.2/32"), &Origination::default());
    assert_eq!(bench.rib.poll_written(), None, "pending is not written");
    assert!(bench.rib.watch(prefix).is_empty());
    bench.write(2, 4096);
    assert_eq!(bench.rib.poll_written(), Some((prefix, PeerId(2))));
    assert_eq!(bench.rib.poll_written(), None);
    assert_eq!(bench.rib.watch(prefix), [PeerId(2)]);
    bench.write(1, 4096);
    assert_eq!(bench.rib.poll_written(), Some((prefix, PeerId(1))));
    bench.rib.withdraw(prefix);
    bench.flush();
    assert!(bench.rib.poll_written().is_none() && bench.rib.watch(prefix).is_empty());
    bench.rib.unwatch(&prefix);
    bench.rib.originate(prefix, &Origination::default());
    bench.flush();
    assert_eq!(bench.rib.poll_written(), None);
}

#[test]
fn refresh_and_new_next_hops_send_routes_again() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (3, false)]);
    bench.announce(1, "10.1.0.0/16", &path(&[65001]));
    bench.announce(1, "2001:db8:1::/48", &path(&[65001]));
    bench.rib.originate(net("10.2.0.0/16"), &Origination::default());
    bench.flush();
    let announced = |bench: &Bench, number| bench.receivers[&number].announced;
    assert_eq!((announced(&bench, 2), announced(&bench, 3)), (3, 3));
    bench.rib.refresh_out(PeerId(2), V4, false);
    bench.flush();
    assert_eq!((announced(&bench, 2), announced(&bench, 3)), (5, 3));
    assert_eq!(bench.receivers[&2].end_of_rib.len(), 2, "End-of-RIB ends the initial table only");

    let other = NextHop::V4(Ipv4Addr::new(10, 0, 200, 1));
    bench.rib.set_next_hops(PeerId(2), Some(other), Some(own_v6(2)));
    assert_eq!(bench.advertised_path(2, "10.1.0.0/16").unwrap().0, other);
    assert_eq!(announced(&bench, 2), 7);
    bench.rib.set_next_hops(PeerId(3), Some(other), Some(own_v6(3)));
    assert_eq!(bench.advertised_path(3, "10.1.0.0/16").unwrap().0, next_hop(1, &net("10.1.0.0/16")));
    assert_eq!(bench.advertised_path(3, "10.2.0.0/16").unwrap().0, other);
    assert_eq!(announced(&bench, 3), 4, "only routes with the local next hop");
    let shown: Vec<_> = bench.rib.advertised(PeerId(3), V4).map(|route| route.next_hop).collect();
    assert!(shown.contains(&Some(other)) && shown.len() == 2);
    // Without a next hop, nothing can be advertised in that family.
    bench.rib.set_next_hops(PeerId(2), None, Some(own_v6(2)));
    assert_eq!(bench.advertised(2), ["2001:db8:1::/48"]);
    assert_eq!(bench.rib.not_advertised(PeerId(2), &net("10.1.0.0/16")), Some(NotAdvertised::NoNextHop));
}

#[test]
fn next_hops_of_the_other_family_need_the_capability() {
    let mut bench = Bench::down(1, &[(1, true), (2, true), (3, false)]);
    let over_v6 = |number, ext_next_hop| SessionFacts {
        next_hop_v4: Some(own_v6(number)),
        ext_next_hop,
        ..session(number)
    };
    bench.up_with(1, over_v6(1, true));
    bench.up_with(2, over_v6(2, false));
    bench.up_with(3, SessionFacts { families: only(V4), ..session(3) });
    bench.rib.originate(net("10.1.0.0/16"), &Origination::default());
    bench.rib.originate(net("2001:db8:1::/48"), &Origination::default());
    assert_eq!(bench.advertised_path(1, "10.1.0.0/16").unwrap().0, own_v6(1));
    assert_eq!(bench.advertised(2), ["2001:db8:1::/48"]);
    assert_eq!(bench.advertised(3), ["10.1.0.0/16"]);
    assert_eq!(bench.rib.not_advertised(PeerId(3), &net("2001:db8:1::/48")), Some(NotAdvertised::NoFamily));
    assert_eq!(bench.receivers[&3].end_of_rib, [V4]);
}

#[test]
fn routes_with_too_long_attributes_are_withdrawn() {
    let mut bench = Bench::down(1, &[(1, true), (2, true), (3, true)]);
    bench.up(1);
    bench.up(2);
    bench.up_with(3, SessionFacts { max_message: 65535, ..session(3) });
    bench.announce(1, PREFIX, &path(&[65001]));
    assert_eq!((bench.advertised(2).len(), bench.advertised(3).len()), (1, 1));
    // The communities just fit one message; the local AS in front makes it too long for another
    // peer.
    let communities: Vec<Community> = (0..1020).map(Community).collect();
    let grown =
        |count: usize| PathAttributes { communities: communities[..count].to_vec(), ..path(&[65001, 2, 3]) };
    let largest = (900..1020).rev().find(|count| bench.try_announce(1, PREFIX, &grown(*count))).unwrap();
    assert!(largest < 1019, "the longest attributes that fit were found");
    assert!(bench.advertised(2).is_empty());
    assert_eq!(bench.rib.not_advertised(PeerId(2), &net(PREFIX)), Some(NotAdvertised::TooLong));
    assert_eq!(bench.advertised(3).len(), 1);
    assert_eq!(bench.rib.counts(PeerId(2), V4).advertised, 0);
    bench.announce(1, PREFIX, &path(&[65001]));
    assert_eq!(bench.advertised(2).len(), 1);
}

#[test]
fn removed_peers_leave_no_state() {
    let mut bench = Bench::new(2, &[(1, true), (2, true), (3, false)]);
    for round in 0..3u32 {
        for number in 0..2000u32 {
            let prefix = format!("10.{}.{}.0/24", number / 250, number % 250);
            bench.announce(1, &prefix, &path(&[65001, number + 1]));
            bench.announce(2, &prefix, &path(&[65002, round + 1]));
        }
        bench.flush();
        assert_eq!(bench.rib.prefixes(V4), 2000);
        assert_eq!(bench.rib.counts(PeerId(3), V4).advertised, 2000);
        for number in [3, 1, 2] {
            bench.lose(number, FamilySet::EMPTY);
        }
        bench.flush();
        assert!(bench.fib.is_empty());
        assert_eq!((bench.rib.prefixes(V4), bench.rib.attribute_sets()), (0, 0));
        for number in [1, 2, 3] {
            bench.up(number);
        }
    }
}

/// Routers on different links may all have the same link-local address.
#[test]
fn equal_link_local_next_hops_on_two_links_are_distinct() {
    let link_local = NextHop::V6("fe80::1".parse().unwrap());
    for keys in [["fe80::1%eth1", "fe80::1%eth2"], ["10.0.0.1", "10.0.0.2"]] {
        let mut bench = Bench::down(4, &[]);
        for (number, key) in (1..).zip(keys) {
            bench.add_at(number, key);
            bench.up(number);
            bench.announce_via(number, net("2001:db8:9::/48"), link_local, &path(&[65000 + number]));
        }
        let used = bench.fib("2001:db8:9::/48").len();
        assert_eq!(used, if keys[0].contains('%') { 2 } else { 1 }, "{keys:?}");
    }
}

/// A prefix does not fit into the first write of a refresh. Its attributes change and change back
/// to the advertised ones. It must still be sent before EoRR, or the peer would sweep it (RFC 7313
/// §4).
#[test]
fn a_route_without_room_in_a_refresh_is_sent_before_eorr() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    let announce = |bench: &mut Bench, asn| {
        bench.announce(1, "10.1.0.0/16", &path(&[65001, asn]));
        bench.announce(1, "10.2.0.0/16", &path(&[65001, asn + 1]));
    };
    announce(&mut bench, 10);
    bench.flush();
    bench.rib.refresh_out(PeerId(2), V4, true);
    announce(&mut bench, 20);
    assert!(bench.write(2, 24), "BoRR and one of the two routes");
    assert_eq!(bench.receivers[&2].announced, 3);
    announce(&mut bench, 10);
    bench.flush(); // the receiver checks that no route is missing at EoRR
    assert_eq!(bench.receivers[&2].announced, 5);
}
