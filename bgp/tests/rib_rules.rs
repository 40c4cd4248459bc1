//! Protocol rules in addition to policy: graceful shutdown (RFC 8326), route reflection (RFC 4456),
//! roles (RFC 9234).
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod rib_support;

use std::net::Ipv4Addr;

use rib_support::*;
use trunkline_bgp::config::{LocalAs, NextHopRule, PathRules, RemovePrivateAs};
use trunkline_bgp::policy::{Actions, Edit, Policy, PolicyResult, Rule};
use trunkline_bgp::rib::{Filtered, NotAdvertised, Origination, SessionFacts};
use trunkline_bgp::types::{Asn, Community, Family, FamilySet, PeerId, Role};
use trunkline_bgp::wire::PathAttributes;

const V4: Family = Family::Ipv4Unicast;
const PREFIX: &str = "192.0.2.0/24";

fn shutting() -> PathRules {
    PathRules { graceful_shutdown: true, ..PathRules::default() }
}

fn client() -> PathRules {
    PathRules { route_reflector_client: true, ..PathRules::default() }
}

fn filtered(bench: &Bench, number: u32) -> Option<Filtered> {
    bench.rib.received(PeerId(number), V4).next().unwrap().filtered
}

#[test]
fn a_path_with_graceful_shutdown_is_used_last() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
    let going = PathAttributes { communities: vec![Community::GRACEFUL_SHUTDOWN], ..path(&[65001]) };
    bench.announce(1, PREFIX, &going);
    assert_eq!(bench.fib(PREFIX), [address(1)], "the path is used while there is no other path");
    let (_, sent) = bench.advertised_path(4, PREFIX).unwrap();
    assert_eq!((sent.local_pref, sent.communities), (Some(0), vec![Community::GRACEFUL_SHUTDOWN]));
    bench.announce(2, PREFIX, &path(&[65002, 7, 8, 9]));
    assert_eq!(bench.fib(PREFIX), [address(2)]);

    // Import policy's LOCAL_PREF does not keep the path in use; the removal of the community does.
    let rule = |set| Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    let preferred = Actions { local_pref: Some(500), ..Actions::default() };
    bench.rib.set_policy(PeerId(1), &rule(preferred.clone()), &Policy::accept_all());
    assert_eq!(bench.fib(PREFIX), [address(2)]);
    let communities = Edit { remove: vec![Community::GRACEFUL_SHUTDOWN], ..Edit::default() };
    let kept = Actions { communities, ..preferred };
    bench.rib.set_policy(PeerId(1), &rule(kept), &Policy::accept_all());
    assert_eq!(bench.fib(PREFIX), [address(1)]);

    // An internal peer has already set LOCAL_PREF.
    bench.rib.set_policy(PeerId(1), &Policy::accept_all(), &Policy::accept_all());
    bench.announce(4, PREFIX, &PathAttributes { local_pref: Some(300), ..going });
    assert_eq!(bench.fib(PREFIX), [address(4)]);
}

#[test]
fn graceful_shutdown_marks_paths_in_both_directions() {
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
    bench.rib.originate(net("10.9.0.0/16"), &Origination::default());
    bench.announce(1, PREFIX, &path(&[65001]));
    bench.announce(2, PREFIX, &path(&[65002, 7]));
    assert_eq!(bench.fib(PREFIX), [address(1)]);
    let communities =
        |bench: &mut Bench, number| bench.advertised_path(number, "10.9.0.0/16").unwrap().1.communities;
    assert!(communities(&mut bench, 1).is_empty());

    bench.rib.set_rules(PeerId(1), shutting());
    assert_eq!(bench.fib(PREFIX), [address(2)]);
    assert_eq!(communities(&mut bench, 1), [Community::GRACEFUL_SHUTDOWN]);
    assert!(communities(&mut bench, 2).is_empty(), "the rules of that session are unchanged");
    bench.rib.set_rules(PeerId(4), shutting());
    let (_, sent) = bench.advertised_path(4, "10.9.0.0/16").unwrap();
    assert_eq!((sent.local_pref, sent.communities), (Some(0), vec![Community::GRACEFUL_SHUTDOWN]));

    bench.rib.set_rules(PeerId(1), PathRules::default());
    assert_eq!(bench.fib(PREFIX), [address(1)]);
    assert!(communities(&mut bench, 1).is_empty());
}

/// Peers 1 and 2 are clients, 4 and 5 are not, 6 is external (RFC 4456 §6).
fn reflector() -> Bench {
    let mut bench = Bench::new(1, &[(1, false), (2, false), (4, false), (5, false), (6, true)]);
    bench.rib.set_rules(PeerId(1), client());
    bench.rib.set_rules(PeerId(2), client());
    bench
}

fn internal() -> PathAttributes {
    PathAttributes { local_pref: Some(100), ..path(&[7]) }
}

#[test]
fn client_paths_are_reflected_to_and_from_all_peers() {
    for (from, expected) in [(1, vec![2, 4, 5, 6]), (4, vec![1, 2, 6]), (6, vec![1, 2, 4, 5])] {
        let mut bench = reflector();
        let attributes = if from == 6 { path(&[65006, 7]) } else { internal() };
        bench.announce(from, PREFIX, &attributes);
        let sent: Vec<u32> =
            [1, 2, 4, 5, 6].into_iter().filter(|to| bench.advertised_path(*to, PREFIX).is_some()).collect();
        assert_eq!(sent, expected, "from {from}");
        let reason = bench.rib.not_advertised(PeerId(5), &net(PREFIX));
        assert_eq!(reason, (from == 4).then_some(NotAdvertised::InternalToInternal), "from {from}");
    }
}

#[test]
fn reflection_adds_originator_and_cluster_only() {
    let mut bench = reflector();
    bench.announce(1, PREFIX, &internal());
    let (hop, sent) = bench.advertised_path(4, PREFIX).unwrap();
    assert_eq!(hop, next_hop(1, &net(PREFIX)));
    let reflected = PathAttributes {
        originator_id: Some(Ipv4Addr::new(10, 0, 0, 1)),
        cluster_list: vec![ROUTER_ID],
        ..internal()
    };
    assert_eq!(sent, reflected);
    let (_, outside) = bench.advertised_path(6, PREFIX).unwrap();
    assert_eq!((outside.originator_id, outside.cluster_list), (None, vec![]));

    // The path is reflected a second time. The originator stays, and the cluster is prepended.
    let other = Ipv4Addr::new(9, 9, 9, 9);
    let far = PathAttributes {
        originator_id: Some(other),
        cluster_list: vec![Ipv4Addr::new(8, 8, 8, 8)],
        ..internal()
    };
    bench.announce(1, PREFIX, &far);
    let (_, sent) = bench.advertised_path(2, PREFIX).unwrap();
    assert_eq!(sent.originator_id, Some(other));
    assert_eq!(sent.cluster_list, [ROUTER_ID, Ipv4Addr::new(8, 8, 8, 8)]);

    bench.announce(1, PREFIX, &PathAttributes { cluster_list: vec![other, ROUTER_ID], ..internal() });
    assert_eq!(filtered(&bench, 1), Some(Filtered::ClusterLoop));
    assert!(bench.advertised(2).is_empty());
    bench.announce(1, PREFIX, &PathAttributes { originator_id: Some(ROUTER_ID), ..internal() });
    assert_eq!(filtered(&bench, 1), Some(Filtered::OriginatorLoop));
}

#[test]
fn the_client_setting_can_be_changed() {
    let mut bench = Bench::new(1, &[(1, false), (4, false), (5, false)]);
    bench.announce(1, PREFIX, &internal());
    bench.announce(4, "198.51.100.0/24", &internal());
    assert!(bench.advertised(1).is_empty() && bench.advertised(5).is_empty());
    bench.rib.set_rules(PeerId(1), client());
    assert_eq!(bench.advertised(1), ["198.51.100.0/24"]);
    assert_eq!(
        (bench.advertised(4), bench.advertised(5)),
        (vec![PREFIX.to_owned()], vec![PREFIX.to_owned()])
    );
    bench.rib.set_rules(PeerId(1), PathRules::default());
    assert!([1, 4, 5].into_iter().all(|number| bench.advertised(number).is_empty()));
}

#[test]
fn reflection_follows_a_client_with_a_new_identifier() {
    let mut bench = reflector();
    bench.announce(1, PREFIX, &internal());
    assert_eq!(bench.advertised_path(2, PREFIX).unwrap().1.originator_id, Some(Ipv4Addr::new(10, 0, 0, 1)));
    bench.lose(1, FamilySet::ALL);
    let renamed = Ipv4Addr::new(10, 7, 7, 7);
    bench.up_with(1, SessionFacts { router_id: renamed, ..session(1) });
    bench.announce(1, PREFIX, &internal());
    assert_eq!(bench.advertised_path(2, PREFIX).unwrap().1.originator_id, Some(renamed));
}

fn role(role: Role) -> PathRules {
    PathRules { local_role: Some(role), ..PathRules::default() }
}

fn marked(number: u32, asn: Option<u32>) -> PathAttributes {
    PathAttributes { only_to_customer: asn.map(Asn), ..path(&[65000 + number, 7]) }
}

/// RFC 9234 §5, ingress: the local role, ONLY_TO_CUSTOMER as received from AS 65001, and the
/// result.
#[test]
fn only_to_customer_is_checked_and_set_on_import() {
    use Role::*;
    let leak = Err(Filtered::RouteLeak);
    for (local, came, expected) in [
        (Provider, None, Ok(None)),
        (Provider, Some(65001), leak),
        (Provider, Some(9), leak),
        (RouteServer, None, Ok(None)),
        (RouteServer, Some(65001), leak),
        (Peer, None, Ok(Some(65001))),
        (Peer, Some(65001), Ok(Some(65001))),
        (Peer, Some(9), leak),
        (Customer, None, Ok(Some(65001))),
        (Customer, Some(9), Ok(Some(9))),
        (RouteServerClient, None, Ok(Some(65001))),
        (RouteServerClient, Some(9), Ok(Some(9))),
    ] {
        let mut bench = Bench::new(1, &[(1, true), (4, false)]);
        bench.rib.set_rules(PeerId(1), role(local));
        bench.announce(1, PREFIX, &marked(1, came));
        let sent = bench.advertised_path(4, PREFIX).map(|(_, path)| path.only_to_customer.map(|asn| asn.0));
        assert_eq!((filtered(&bench, 1), sent), (expected.err(), expected.ok()), "{local} {came:?}");
    }
}

/// RFC 9234 §5, egress: the local role, the received attribute, and the advertised one.
#[test]
fn only_to_customer_is_checked_and_set_on_export() {
    use Role::*;
    for (local, came, expected) in [
        (Provider, None, Some(Some(65000))),
        (Provider, Some(9), Some(Some(9))),
        (RouteServer, None, Some(Some(65000))),
        (RouteServer, Some(9), Some(Some(9))),
        (Peer, None, Some(Some(65000))),
        (Peer, Some(9), None),
        (Customer, None, Some(None)),
        (Customer, Some(9), None),
        (RouteServerClient, None, Some(None)),
        (RouteServerClient, Some(9), None),
    ] {
        let mut bench = Bench::new(1, &[(1, true), (2, true)]);
        bench.rib.originate(net("10.9.0.0/16"), &Origination::default());
        bench.rib.set_rules(PeerId(2), role(local));
        bench.announce(1, PREFIX, &marked(1, came));
        let sent = |bench: &mut Bench, prefix| {
            bench.advertised_path(2, prefix).map(|(_, path)| path.only_to_customer.map(|asn| asn.0))
        };
        assert_eq!(sent(&mut bench, PREFIX), expected, "{local} {came:?}");
        let reason = bench.rib.not_advertised(PeerId(2), &net(PREFIX));
        assert_eq!(reason, expected.is_none().then_some(NotAdvertised::OnlyToCustomer), "{local} {came:?}");
        let down = matches!(local, Provider | RouteServer | Peer);
        assert_eq!(
            sent(&mut bench, "10.9.0.0/16"),
            Some(down.then_some(65000)),
            "{local}, an \
            originated path"
        );
    }
}

#[test]
fn no_peer_paths_are_not_advertised_to_bilateral_peers() {
    for local in Role::ALL {
        let mut bench = Bench::new(1, &[(1, true), (2, true), (3, true)]);
        bench.rib.set_rules(PeerId(2), role(local));
        bench.announce(
            1,
            PREFIX,
            &PathAttributes { communities: vec![Community::NO_PEER], ..path(&[65001]) },
        );
        let communities = vec![Community::NO_PEER];
        bench.rib.originate(net("10.9.0.0/16"), &Origination { communities, ..Origination::default() });
        let reason = bench.rib.not_advertised(PeerId(2), &net(PREFIX));
        assert_eq!(reason, (local == Role::Peer).then_some(NotAdvertised::NoPeer), "{local}");
        assert_eq!(bench.advertised_path(2, PREFIX).is_none(), local == Role::Peer, "{local}");
        assert!(bench.advertised_path(3, PREFIX).is_some(), "a peer without role receives it");
        assert!(
            bench.advertised_path(2, "10.9.0.0/16").is_some(),
            "{local}: originated paths are advertised to the peer"
        );
    }
}

#[test]
fn without_a_role_only_to_customer_is_passed_on() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.announce(1, PREFIX, &marked(1, Some(9)));
    assert_eq!(bench.advertised_path(2, PREFIX).unwrap().1.only_to_customer, Some(Asn(9)));
}

#[test]
fn the_own_as_is_allowed_as_often_as_configured() {
    let mut bench = Bench::new(1, &[(1, true)]);
    for (times, looped) in [(1, path(&[65001, 65000])), (2, path(&[65001, 65000, 7, 65000]))] {
        bench.rib.set_rules(PeerId(1), PathRules { allow_as_in: times - 1, ..PathRules::default() });
        bench.announce(1, PREFIX, &looped);
        assert_eq!(filtered(&bench, 1), Some(Filtered::AsLoop));
        bench.rib.set_rules(PeerId(1), PathRules { allow_as_in: times, ..PathRules::default() });
        assert_eq!(filtered(&bench, 1), None, "without a new advertisement");
        assert_eq!(bench.fib(PREFIX), [address(1)]);
    }
    bench.rib.set_rules(PeerId(1), PathRules::default());
    assert_eq!(filtered(&bench, 1), Some(Filtered::AsLoop));
}

#[test]
fn private_as_numbers_are_removed_or_replaced() {
    // This speaker is 65000, the receiving peer is 65002.
    let (private, mixed, own) = (vec![64512, 4_200_000_000], vec![64512, 7, 65534], vec![64512, 65002]);
    for (all, replace, came, expected) in [
        (false, false, &private, vec![65000]),
        (false, false, &mixed, vec![65000, 64512, 7, 65534]),
        (true, false, &mixed, vec![65000, 7]),
        (false, true, &private, vec![65000, 65000, 65000]),
        (true, true, &mixed, vec![65000, 65000, 7, 65000]),
        (false, false, &own, vec![65000, 65002]),
        (true, true, &own, vec![65000, 65000, 65002]),
    ] {
        let mut bench = Bench::new(1, &[(1, true), (2, true), (3, true)]);
        let remove_private_as = Some(RemovePrivateAs { all, replace });
        bench.rib.set_rules(PeerId(2), PathRules { remove_private_as, ..PathRules::default() });
        bench.announce(1, PREFIX, &path(came));
        let sent = |bench: &mut Bench, number| bench.advertised_path(number, PREFIX).unwrap().1.as_path;
        assert_eq!(sent(&mut bench, 2), path(&expected).as_path, "{all} {replace} {came:?}");
        assert_eq!(
            sent(&mut bench, 3),
            path(&[&[65000], &came[..]].concat()).as_path,
            "other peers receive the whole path"
        );
    }
    // AS numbers that policy prepends stay.
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    let remove_private_as = Some(RemovePrivateAs::default());
    bench.rib.set_rules(PeerId(2), PathRules { remove_private_as, ..PathRules::default() });
    let set = Actions { prepend: 2, ..Actions::default() };
    let prepend = Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &prepend);
    bench.announce(1, PREFIX, &path(&private));
    assert_eq!(bench.advertised_path(2, PREFIX).unwrap().1.as_path, path(&[65000, 65000, 65000]).as_path);
}

/// Peer 1 sees this speaker, 65000, as 64999 (RFC 7705 §3); peer 2 sees 65000.
fn local_as(no_prepend: bool, replace_as: bool) -> PathRules {
    PathRules { local_as: Some(LocalAs { asn: Asn(64999), no_prepend, replace_as }), ..PathRules::default() }
}

#[test]
fn a_local_as_is_prepended_in_both_directions() {
    let as_path =
        |bench: &mut Bench, number, prefix| bench.advertised_path(number, prefix).unwrap().1.as_path;
    let set = Actions { prepend: 1, ..Actions::default() };
    let prepend = Policy { rules: vec![Rule { set, ..Rule::default() }], default: PolicyResult::Accept };
    for (no_prepend, replace_as, sent, passed_on, prepended) in [
        (false, false, vec![64999, 65000], vec![64999, 65001], vec![64999, 65000, 65000]),
        (true, false, vec![64999, 65000], vec![65001], vec![64999, 65000, 65000]),
        (false, true, vec![64999], vec![64999, 65001], vec![64999, 64999]),
        (true, true, vec![64999], vec![65001], vec![64999, 64999]),
    ] {
        let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false)]);
        bench.rib.originate(net("10.9.0.0/16"), &Origination::default());
        bench.announce(1, PREFIX, &path(&[65001]));
        bench.announce(2, "198.51.100.0/24", &path(&[65002]));
        assert_eq!(as_path(&mut bench, 4, PREFIX), path(&[65001]).as_path);
        bench.rib.set_rules(PeerId(1), local_as(no_prepend, replace_as));
        let text = format!("{no_prepend} {replace_as}");
        assert_eq!(as_path(&mut bench, 1, "10.9.0.0/16"), path(&sent).as_path, "{text}");
        assert_eq!(as_path(&mut bench, 1, "198.51.100.0/24"), path(&[&sent[..], &[65002]].concat()).as_path);
        assert_eq!(as_path(&mut bench, 4, PREFIX), path(&passed_on).as_path, "{text}");
        let through = [&[65000], &passed_on[..]].concat();
        assert_eq!(as_path(&mut bench, 2, PREFIX), path(&through).as_path, "{text}");
        assert_eq!(
            as_path(&mut bench, 2, "10.9.0.0/16"),
            path(&[65000]).as_path,
            "the path of another peer is unchanged"
        );

        bench.rib.set_policy(PeerId(1), &Policy::accept_all(), &prepend);
        assert_eq!(as_path(&mut bench, 1, "10.9.0.0/16"), path(&prepended).as_path, "{text}");
    }
}

#[test]
fn a_path_with_either_local_as_has_looped() {
    let mut bench = Bench::new(1, &[(1, true)]);
    bench.announce(1, PREFIX, &path(&[65001, 64999]));
    assert_eq!(filtered(&bench, 1), None);
    bench.rib.set_rules(PeerId(1), local_as(false, false));
    assert_eq!(filtered(&bench, 1), Some(Filtered::AsLoop), "without a new advertisement");
    bench.announce(1, PREFIX, &path(&[65001, 65000]));
    assert_eq!(filtered(&bench, 1), Some(Filtered::AsLoop));
    bench.announce(1, PREFIX, &path(&[65001, 64999, 65000]));
    bench.rib.set_rules(PeerId(1), PathRules { allow_as_in: 1, ..local_as(false, false) });
    assert_eq!(filtered(&bench, 1), None, "each peer receives this number of paths");
    bench.announce(1, PREFIX, &path(&[65001, 64999, 65000, 64999]));
    assert_eq!(filtered(&bench, 1), Some(Filtered::AsLoop));
}

#[test]
fn a_local_as_is_used_in_otc_and_private_as_removal() {
    let mut bench = Bench::new(1, &[(1, true), (2, true)]);
    bench.announce(2, PREFIX, &path(&[64512]));
    let rules = PathRules { local_role: Some(Role::Peer), ..local_as(false, false) };
    bench.rib.set_rules(PeerId(1), rules);
    assert_eq!(bench.advertised_path(1, PREFIX).unwrap().1.only_to_customer, Some(Asn(64999)));
    let remove_private_as = Some(RemovePrivateAs { all: true, replace: true });
    bench.rib.set_rules(PeerId(1), PathRules { remove_private_as, ..local_as(true, true) });
    assert_eq!(bench.advertised_path(1, PREFIX).unwrap().1.as_path, path(&[64999, 64999]).as_path);
}

#[test]
fn next_hops_follow_the_next_hop_rule() {
    let rule = |next_hop| PathRules { next_hop, ..PathRules::default() };
    let mut bench = Bench::new(1, &[(1, true), (2, true), (4, false), (5, false)]);
    bench.announce(1, PREFIX, &path(&[65001]));
    let hop = |bench: &mut Bench, number| bench.advertised_path(number, PREFIX).unwrap().0;
    let came = next_hop(1, &net(PREFIX));
    assert_eq!((hop(&mut bench, 2), hop(&mut bench, 4)), (own_v4(2), came));
    bench.rib.set_rules(PeerId(2), rule(NextHopRule::Unchanged));
    bench.rib.set_rules(PeerId(4), rule(NextHopRule::Own));
    assert_eq!((hop(&mut bench, 2), hop(&mut bench, 4)), (came, own_v4(4)));
    // Reflected paths keep their next hop.
    let own = PathRules { route_reflector_client: true, ..rule(NextHopRule::Own) };
    bench.rib.set_rules(PeerId(4), own);
    bench.announce(5, "198.51.100.0/24", &internal());
    let reflected = net("198.51.100.0/24");
    assert_eq!(bench.advertised_path(4, "198.51.100.0/24").unwrap().0, next_hop(5, &reflected));
}

/// RFC 9494 §4.2: NO_LLGR counts if the peer sent it or if a configured policy added it.
#[test]
fn a_policy_may_exclude_paths_from_long_lived_retention() {
    let mut bench = Bench::new(1, &[(1, true)]);
    let communities = Edit::add([Community::NO_LLGR]);
    let rule = Rule { set: Actions { communities, ..Actions::default() }, ..Rule::default() };
    let import = Policy { rules: vec![rule], default: PolicyResult::Accept };
    for (import, outcome) in [(Policy::accept_all(), (1, 0)), (import, (0, 1))] {
        bench.rib.set_policy(PeerId(1), &import, &Policy::accept_all());
        bench.announce(1, PREFIX, &path(&[65001]));
        bench.lose(1, FamilySet::ALL);
        assert_eq!(bench.rib.mark_long_lived(PeerId(1), V4), outcome);
        bench.up(1);
    }
}
