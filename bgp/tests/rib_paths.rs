//! Several paths of a prefix (RFC 7911): the paths that peers with and without ADD-PATH send and
//! receive. The tests compare them with a model, which sorts a list of paths.

#![expect(clippy::unwrap_used, reason = "a test may end where it expected something else")]

mod rib_support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rib_support::{Bench, net, path, remote_as, session};
use trunkline_bgp::rib::SessionFacts;
use trunkline_bgp::types::{Community, Family, FamilySet, PeerId};
use trunkline_bgp::wire::PathAttributes;

const PREFIXES: [&str; 2] = ["20.0.0.0/24", "20.0.1.0/24"];

/// Attributes that identify a path by its community.
fn attributes(peer: u32, identifier: u32, length: usize) -> PathAttributes {
    let mut asns = vec![remote_as(peer, true).0];
    asns.resize(length, 64999);
    PathAttributes { communities: vec![mark(peer, identifier)], ..path(&asns) }
}

fn mark(peer: u32, identifier: u32) -> Community {
    Community(peer << 16 | identifier)
}

fn facts(number: u32, paths: u8) -> SessionFacts {
    let add_path = if paths == 0 { FamilySet::EMPTY } else { FamilySet::ALL };
    SessionFacts { add_path, paths: paths.max(1), ..session(number) }
}

/// The number of paths by peer, 0 without ADD-PATH. Peers 2 and 3 send several.
const PATHS: [(u32, u8); 5] = [(1, 0), (2, 3), (3, 0), (4, 2), (5, 1)];

#[derive(Clone, Debug)]
enum Step {
    Announce { peer: u32, prefix: usize, identifier: u32, length: usize },
    Withdraw { peer: u32, prefix: usize, identifier: u32 },
    Lose { peer: u32, retain: bool },
    Sweep { peer: u32 },
    Limit { paths: u8 },
    Refresh,
    Write { peer: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let peer = 1u32..=3;
    prop_oneof![
        6 => (peer.clone(), 0..2usize, 0..3u32, 1..4usize).prop_map(|(peer, prefix, identifier, length)| {
            Step::Announce { peer, prefix, identifier, length }
        }),
        3 => (peer.clone(), 0..2usize, 0..3u32)
            .prop_map(|(peer, prefix, identifier)| Step::Withdraw { peer, prefix, identifier }),
        1 => (peer.clone(), any::<bool>()).prop_map(|(peer, retain)| Step::Lose { peer, retain }),
        1 => peer.prop_map(|peer| Step::Sweep { peer }),
        1 => (1..4u8).prop_map(|paths| Step::Limit { paths }),
        1 => Just(Step::Refresh),
        2 => (1u32..=5).prop_map(|peer| Step::Write { peer }),
    ]
}

/// Length and staleness, by prefix, peer and identifier.
type Model = BTreeMap<(usize, u32, u32), (usize, bool)>;

/// The communities of a prefix's paths in order of preference.
fn ranked(model: &Model, prefix: usize) -> Vec<(u32, Community)> {
    let of = model.iter().filter(|((it, ..), _)| *it == prefix);
    let mut paths: Vec<_> = of.map(|((_, peer, id), (length, _))| (*length, *peer, *id)).collect();
    paths.sort_unstable();
    paths.into_iter().map(|(_, peer, id)| (peer, mark(peer, id))).collect()
}

fn check(bench: &mut Bench, model: &Model, limit: u8) {
    bench.flush_by(1);
    for (prefix, text) in PREFIXES.into_iter().enumerate() {
        let ranked = ranked(model, prefix);
        for (number, paths) in PATHS {
            let receiver = &bench.receivers[&number];
            let marks = |attributes: &PathAttributes| attributes.communities[0];
            let received: BTreeSet<Community> = match paths {
                0 => receiver
                    .routes
                    .get(&net(text))
                    .map(|(_, attributes)| marks(attributes))
                    .into_iter()
                    .collect(),
                _ => {
                    let of = receiver.paths.iter().filter(|((it, _), _)| *it == net(text));
                    of.map(|(_, (_, attributes))| marks(attributes)).collect()
                }
            };
            let wanted: BTreeSet<Community> = match (number, paths) {
                (_, 0) => ranked
                    .first()
                    .filter(|(from, _)| *from != number)
                    .map(|(_, mark)| *mark)
                    .into_iter()
                    .collect(),
                _ => {
                    let most = usize::from(if number == 4 { limit } else { paths });
                    ranked
                        .iter()
                        .filter(|(from, _)| *from != number)
                        .take(most)
                        .map(|(_, mark)| *mark)
                        .collect()
                }
            };
            assert_eq!(received, wanted, "{text} at {number}");
            let advertised = bench.rib.counts(PeerId(number), Family::Ipv4Unicast).advertised;
            assert_eq!(advertised, receiver.routes.len() + receiver.paths.len());
        }
    }
    for peer in 1..=3 {
        let counts = bench.rib.counts(PeerId(peer), Family::Ipv4Unicast);
        let of = || model.iter().filter(|((_, it, _), _)| *it == peer);
        assert_eq!(counts.received, of().count());
        assert_eq!(counts.stale, of().filter(|(_, (_, stale))| *stale).count());
        let listed = bench.rib.received(PeerId(peer), Family::Ipv4Unicast);
        let mut identifiers: Vec<_> = listed.map(|entry| (entry.prefix, entry.path_id)).collect();
        identifiers.sort_unstable();
        let sent = |id: u32| (peer != 1).then_some(id);
        let wanted: Vec<_> = of().map(|((prefix, _, id), _)| (net(PREFIXES[*prefix]), sent(*id))).collect();
        assert_eq!(identifiers, wanted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_peer_receives_the_best_paths_it_may_have(steps in proptest::collection::vec((step(), any::<bool>()), 1..60)) {
        let mut bench = Bench::down(1, &PATHS.map(|(number, _)| (number, true)));
        for (number, paths) in PATHS {
            bench.up_with(number, facts(number, paths));
        }
        let mut model = Model::new();
        let mut limit = 2;
        for (step, look) in steps {
            match step {
                Step::Announce { peer, prefix, identifier, length } => {
                    let identifier = if peer == 1 { 0 } else { identifier };
                    let attributes = attributes(peer, identifier, length);
                    match peer {
                        1 => bench.announce(1, PREFIXES[prefix], &attributes),
                        _ => bench.feed_path(peer, PREFIXES[prefix], identifier, Some(&attributes)),
                    }
                    model.insert((prefix, peer, identifier), (length, false));
                }
                Step::Withdraw { peer, prefix, identifier } => {
                    let identifier = if peer == 1 { 0 } else { identifier };
                    match peer {
                        1 => bench.withdraw(1, PREFIXES[prefix]),
                        _ => bench.feed_path(peer, PREFIXES[prefix], identifier, None),
                    }
                    model.remove(&(prefix, peer, identifier));
                }
                Step::Lose { peer, retain } => {
                    bench.lose(peer, if retain { FamilySet::ALL } else { FamilySet::EMPTY });
                    model.retain(|(_, it, _), (_, stale)| *it != peer || retain && !*stale);
                    for ((_, it, _), (_, stale)) in &mut model {
                        *stale |= *it == peer;
                    }
                    let (_, paths) = PATHS[peer as usize - 1];
                    bench.up_with(peer, facts(peer, paths));
                }
                Step::Sweep { peer } => {
                    bench.rib.sweep_stale(PeerId(peer), Family::Ipv4Unicast);
                    model.retain(|(_, it, _), (_, stale)| *it != peer || !*stale);
                }
                Step::Limit { paths } => {
                    bench.rib.set_paths(PeerId(4), paths);
                    limit = paths;
                }
                Step::Refresh => bench.rib.refresh_out(PeerId(4), Family::Ipv4Unicast, false),
                Step::Write { peer } => _ = bench.write(peer, 60),
            }
            if look {
                check(&mut bench, &model, limit);
            }
        }
        check(&mut bench, &model, limit);
        // No state is left after all peers are removed.
        for (number, _) in PATHS {
            bench.rib.remove_peer(PeerId(number));
        }
        while bench.rib.has_route_changes() {
            bench.rib.route_changes(10);
        }
        prop_assert_eq!((bench.rib.prefixes(Family::Ipv4Unicast), bench.rib.attribute_sets()), (0, 0));
    }
}

#[test]
fn paths_of_one_peer_share_the_traffic() {
    let mut bench = Bench::down(4, &[(2, true)]);
    bench.up_with(2, facts(2, 0));
    let attributes = attributes(2, 7, 1);
    bench.feed_path(2, PREFIXES[0], 7, Some(&attributes));
    bench.feed_path(2, PREFIXES[0], 8, Some(&attributes));
    // Equal next hops count once.
    assert_eq!(bench.fib(PREFIXES[0]).len(), 1);
    bench.feed_path(2, PREFIXES[0], 7, None);
    assert_eq!(bench.fib(PREFIXES[0]).len(), 1);
    bench.feed_path(2, PREFIXES[0], 8, None);
    assert!(bench.fib(PREFIXES[0]).is_empty());
}

#[test]
fn a_refresh_of_several_paths_ends_with_small_writes() {
    let mut bench = Bench::down(1, &[(2, true), (4, true)]);
    bench.up_with(2, facts(2, 3));
    bench.up_with(4, facts(4, 3));
    for identifier in 0..3 {
        bench.feed_path(2, PREFIXES[0], identifier, Some(&attributes(2, identifier, 1)));
    }
    bench.flush();
    let before = bench.receivers[&4].announced;
    bench.rib.refresh_out(PeerId(4), Family::Ipv4Unicast, false);
    bench.flush_by(1);
    assert_eq!(bench.receivers[&4].announced, before + 3, "each once");
}
