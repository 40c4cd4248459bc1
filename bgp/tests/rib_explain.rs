//! Explanations: the deciding step or rule for each path, and the export reason for each peer.

#![expect(clippy::unwrap_used, reason = "a test may end where it expected something else")]

mod rib_support;

use rib_support::{Bench, net, path, session};
use trunkline_bgp::policy::{Actions, Conditions, Policy, PolicyResult, PrefixMatch, Rule};
use trunkline_bgp::rib::{
    ExplainedExport, Filtered, NotAdvertised, Origination, PolicyMatch, SelectionResult, Step,
};
use trunkline_bgp::types::{Community, Family, FamilySet, PeerId};
use trunkline_bgp::wire::PathAttributes;

const PREFIX: &str = "10.1.0.0/16";

/// For each path: its peer, and the result of the decision, including the path of the comparison.
fn selections(bench: &Bench) -> Vec<(Option<u32>, SelectionResult)> {
    let explained = bench.rib.explain(&net(PREFIX));
    explained.into_iter().map(|path| (path.entry.peer.map(|peer| peer.0), path.selection)).collect()
}

/// The step that removed a peer's path or ordered it behind another path, and the values of both
/// paths at this step.
fn separated(bench: &Bench, peer: u32) -> (Step, String, String, Option<u32>) {
    let selection = selections(bench).into_iter().find(|(from, _)| *from == Some(peer)).unwrap().1;
    match selection {
        SelectionResult::NotSelected(by) | SelectionResult::Used(by) => {
            (by.step, by.own, by.other, by.other_peer.map(|peer| peer.0))
        }
        other => panic!("{other:?}"),
    }
}

fn export(bench: &mut Bench, peer: u32) -> ExplainedExport {
    let mut explained = bench.rib.explain_export(PeerId(peer), &net(PREFIX));
    assert_eq!(explained.len(), 1);
    explained.remove(0)
}

fn ruling(accepted: bool, rule: Option<usize>) -> Option<PolicyMatch> {
    Some(PolicyMatch { accepted, rule, name: None })
}

#[test]
fn the_deciding_step_is_reported_with_both_values() {
    let text = |own: &str, other: &str| (own.to_owned(), other.to_owned());
    let internal = |local_pref| PathAttributes { local_pref: Some(local_pref), ..path(&[65009]) };
    type Row = (Step, (u32, PathAttributes), (String, String));
    let rows: [Row; 4] = [
        (Step::LocalPref, (3, internal(90)), text("90", "100")),
        (Step::AsPathLength, (2, path(&[65002, 7, 8])), text("3", "1")),
        (
            Step::Origin,
            (2, PathAttributes { origin: trunkline_bgp::wire::Origin::Egp, ..path(&[65002]) }),
            text("egp", "igp"),
        ),
        (Step::External, (3, internal(100)), text("internal", "external")),
    ];
    for (step, (peer, attributes), (own, other)) in rows {
        let mut bench = Bench::new(8, &[(1, true), (2, true), (3, false)]);
        bench.announce(1, PREFIX, &path(&[65001]));
        bench.announce(peer, PREFIX, &attributes);
        assert_eq!(separated(&bench, peer), (step, own, other, Some(1)));
        assert_eq!(selections(&bench)[0], (Some(1), SelectionResult::Best));
    }
}

#[test]
fn equal_paths_are_used_or_lost_to_the_limit() {
    for (max_paths, used) in [(2, true), (1, false)] {
        let mut bench = Bench::new(max_paths, &[(1, true), (2, true)]);
        bench.announce(1, PREFIX, &path(&[65001]));
        bench.announce(2, PREFIX, &path(&[65002]));
        let identifiers = (Step::RouterId, "10.0.0.2".to_owned(), "10.0.0.1".to_owned(), Some(1));
        assert_eq!(separated(&bench, 2), identifiers);
        match &selections(&bench)[1].1 {
            SelectionResult::Used(by) => assert!(used && by.limit.is_none()),
            SelectionResult::NotSelected(by) => assert!(!used && by.limit == Some(1)),
            other => panic!("{other:?}"),
        }
    }
    let mut bench = Bench::new(8, &[(1, true)]);
    bench.rib.originate(net(PREFIX), &Origination::default());
    bench.announce(1, PREFIX, &path(&[65001]));
    let (step, own, other, peer) = separated(&bench, 1);
    assert_eq!(
        (step, own.as_str(), other.as_str(), peer),
        (Step::Originated, "received", "originated here", None)
    );
}

#[test]
fn rejected_paths_report_the_rule_or_the_loop() {
    let mut bench = Bench::new(8, &[(1, true), (2, true), (3, true)]);
    let prefixes = vec![PrefixMatch::or_longer(net("10.0.0.0/8"))].into();
    let named = Rule {
        name: Some("ours".to_owned()),
        ..Rule::reject(Conditions { prefixes, ..Conditions::default() })
    };
    let first = Rule { set: Actions { med: Some(1), ..Actions::default() }, ..Rule::default() };
    let policy = Policy { rules: vec![first, named], default: PolicyResult::Accept };
    bench.rib.set_policy(PeerId(1), &policy, &Policy::accept_all());
    bench.rib.set_policy(PeerId(3), &Policy::reject_all(), &Policy::accept_all());
    bench.announce(1, PREFIX, &path(&[65001]));
    bench.announce(2, PREFIX, &path(&[65002, 65000]));
    bench.announce(3, PREFIX, &path(&[65003]));
    let explained = bench.rib.explain(&net(PREFIX));
    let refused = |peer: u32| {
        let path = explained.iter().find(|path| path.entry.peer == Some(PeerId(peer))).unwrap();
        (path.selection.clone(), path.import.clone())
    };
    let by_name = PolicyMatch { accepted: false, rule: Some(2), name: Some("ours".to_owned()) };
    assert_eq!(refused(1), (SelectionResult::Refused(Filtered::Policy), Some(by_name)));
    assert_eq!(refused(2), (SelectionResult::Refused(Filtered::AsLoop), None), "policy did not run");
    assert_eq!(refused(3), (SelectionResult::Refused(Filtered::Policy), ruling(false, None)), "by default");
}

#[test]
fn export_results_report_their_reason() {
    let mut bench = Bench::down(8, &[(1, true), (2, true), (3, false), (4, false), (5, true)]);
    for number in [1, 2, 3, 4] {
        bench.up(number);
    }
    assert_eq!(export(&mut bench, 2).refused, Some(NotAdvertised::NoPath));
    bench.announce(1, PREFIX, &path(&[65001]));
    let pending = export(&mut bench, 2);
    assert_eq!((pending.from, pending.refused, pending.advertised), (Some(PeerId(1)), None, false));
    bench.flush();
    assert!(export(&mut bench, 2).advertised);
    assert_eq!(export(&mut bench, 1).refused, Some(NotAdvertised::SplitHorizon));
    assert_eq!(export(&mut bench, 5).refused, Some(NotAdvertised::NoSession));
    let v6 = FamilySet::from_iter([Family::Ipv6Unicast]);
    bench.up_with(5, trunkline_bgp::rib::SessionFacts { families: v6, ..session(5) });
    assert_eq!(export(&mut bench, 5).refused, Some(NotAdvertised::NoFamily));

    bench.rib.set_policy(PeerId(2), &Policy::accept_all(), &Policy::originated_only());
    let withdrawing = export(&mut bench, 2);
    assert_eq!((withdrawing.refused, withdrawing.ruling), (Some(NotAdvertised::Policy), ruling(false, None)));
    assert!(withdrawing.advertised, "the withdrawal is pending");
    bench.flush();
    assert!(!export(&mut bench, 2).advertised);

    bench.announce(1, PREFIX, &PathAttributes { communities: vec![Community::NO_EXPORT], ..path(&[65001]) });
    let no_export = export(&mut bench, 2);
    assert_eq!((no_export.refused, no_export.ruling), (Some(NotAdvertised::NoExport), None));
    assert_eq!(export(&mut bench, 3).refused, None);
    bench.withdraw(1, PREFIX);
    bench.announce(3, PREFIX, &PathAttributes { local_pref: Some(100), ..path(&[65009]) });
    assert_eq!(export(&mut bench, 4).refused, Some(NotAdvertised::InternalToInternal));
    // An explanation changes nothing. It holds no attribute set, and a second explanation is equal.
    let sets = bench.rib.attribute_sets();
    for number in 1..=5 {
        assert_eq!(export(&mut bench, number), export(&mut bench, number));
    }
    assert_eq!(bench.rib.attribute_sets(), sets);
}

#[test]
fn an_add_path_peer_has_a_row_for_each_path() {
    let mut bench = Bench::down(8, &[(1, true), (2, true), (3, true), (4, true)]);
    for number in [1, 2, 3] {
        bench.up(number);
    }
    let several = FamilySet::from_iter([Family::Ipv4Unicast]);
    bench.up_with(4, trunkline_bgp::rib::SessionFacts { add_path: several, paths: 2, ..session(4) });
    for (number, longer) in [(1, 0), (2, 1), (3, 2)] {
        let asns: Vec<u32> = std::iter::once(65000 + number).chain(std::iter::repeat_n(7, longer)).collect();
        bench.announce(number, PREFIX, &path(&asns));
    }
    let explained = bench.rib.explain_export(PeerId(4), &net(PREFIX));
    let rows: Vec<_> = explained.iter().map(|it| (it.from.map(|peer| peer.0), it.refused)).collect();
    assert_eq!(rows, [(Some(1), None), (Some(2), None), (Some(3), Some(NotAdvertised::BeyondPaths))]);

    // A route that cannot be encoded still counts towards the limit of paths, in the explanation
    // and in the advertisement.
    let communities: Vec<Community> = (0..1020).map(Community).collect();
    let grown =
        |count: usize| PathAttributes { communities: communities[..count].to_vec(), ..path(&[65001]) };
    assert!((900..1020).rev().any(|count| bench.try_announce(1, PREFIX, &grown(count))));
    bench.flush();
    let explained = bench.rib.explain_export(PeerId(4), &net(PREFIX));
    let rows: Vec<_> = explained.iter().map(|it| (it.advertised, it.refused)).collect();
    let (too_long, beyond) = (Some(NotAdvertised::TooLong), Some(NotAdvertised::BeyondPaths));
    assert_eq!(rows, [(false, too_long), (true, None), (false, beyond)]);
}

#[test]
fn a_held_family_has_no_decision() {
    let mut bench = Bench::down(8, &[(1, true), (2, true)]);
    bench.rib.hold(FamilySet::ALL);
    bench.up(1);
    bench.up(2);
    bench.announce(1, PREFIX, &path(&[65001]));
    assert_eq!(selections(&bench), [(Some(1), SelectionResult::Waiting)]);
    assert_eq!(export(&mut bench, 2).refused, Some(NotAdvertised::Held));
    bench.rib.release(Family::Ipv4Unicast);
    assert_eq!(selections(&bench), [(Some(1), SelectionResult::Best)]);
}
