//! Random histories against a naive model.
//!
//! The model has every peer's advertised paths, policy and staleness. With maps and loops it
//! computes the routes that each peer should have and the content of the FIB. The tables write
//! octets, in small portions and at random times; a receiver at the other end decodes and applies
//! them. After the last write of a history, both must agree. After everything is removed, no state
//! may be left.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod rib_support;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use proptest::prelude::*;
use rib_support::*;
use trunkline_bgp::config::{LocalAs, PathRules};
use trunkline_bgp::policy::{Actions, Conditions, Edit, Members, Policy, PolicyResult, PrefixMatch, Rule};
use trunkline_bgp::rib::{Filtered, Origination, SessionFacts};
use trunkline_bgp::types::{
    Asn, Community, ExtendedCommunity, Family, FamilySet, LinkBandwidth, NextHop, PeerId, Role, Role::*, Tag,
    Tags,
};
use trunkline_bgp::wire::PathAttributes;

/// Peers 1 to 3 are external, 4 and 5 internal.
const PEERS: [(u32, bool); 5] = [(1, true), (2, true), (3, true), (4, false), (5, false)];
const PREFIXES: [&str; 6] =
    ["10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "192.0.2.1/32", "2001:db8::/32", "2001:db8:1::/64"];
const MAX_PATHS: usize = 2;
/// The local AS towards some peers (RFC 7705); it is also in some of the paths.
const OLD_AS: Asn = Asn(9);

#[derive(Clone, Debug)]
enum Step {
    Announce { peer: u32, prefix: usize, attributes: usize },
    Withdraw { peer: u32, prefix: usize },
    Originate { prefix: usize, attributes: usize, tags: u16 },
    StopOriginating { prefix: usize },
    Down { peer: u32, retain: bool, long: bool },
    MarkLongLived { peer: u32 },
    Up { peer: u32 },
    Sweep { peer: u32 },
    Policy { peer: u32, import: usize, export: usize },
    Rules { peer: u32, rules: PathRules },
    Refresh { peer: u32, demarcated: bool },
    Hold { v6: bool },
    Release { v6: bool },
    AdvertiseOriginated,
    Write { peer: u32, budget: usize },
    Fib { max: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let peer = || 1..=5u32;
    let prefix = || 0..PREFIXES.len();
    prop_oneof![
        12 => (peer(), prefix(), 0..16usize)
            .prop_map(|(peer, prefix, attributes)| Step::Announce { peer, prefix, attributes }),
        6 => (peer(), prefix()).prop_map(|(peer, prefix)| Step::Withdraw { peer, prefix }),
        4 => (prefix(), 0..3usize, 0..8u16)
            .prop_map(|(prefix, attributes, tags)| Step::Originate { prefix, attributes, tags }),
        2 => prefix().prop_map(|prefix| Step::StopOriginating { prefix }),
        5 => (peer(), any::<bool>(), any::<bool>())
            .prop_map(|(peer, retain, long)| Step::Down { peer, retain, long }),
        2 => peer().prop_map(|peer| Step::MarkLongLived { peer }),
        6 => peer().prop_map(|peer| Step::Up { peer }),
        2 => peer().prop_map(|peer| Step::Sweep { peer }),
        2 => (peer(), 0..POLICIES, 0..POLICIES)
            .prop_map(|(peer, import, export)| Step::Policy { peer, import, export }),
        2 => (peer(), any::<bool>(), any::<bool>(), 0..7usize, any::<Option<(bool, bool)>>()).prop_map(
            |(peer, graceful_shutdown, client, role, local_as)| {
                let route_reflector_client = client && !external(peer);
                let local_role = Role::ALL.get(role).copied().filter(|_| external(peer));
                let local_as = local_as.filter(|_| external(peer));
                let local_as =
                    local_as.map(|(no_prepend, replace_as)| LocalAs { asn: OLD_AS, no_prepend, replace_as });
                let rest = PathRules::default();
                let rules = PathRules { graceful_shutdown, route_reflector_client, local_role, local_as, ..rest };
                Step::Rules { peer, rules }
            },
        ),
        2 => (peer(), any::<bool>()).prop_map(|(peer, demarcated)| Step::Refresh { peer, demarcated }),
        1 => any::<bool>().prop_map(|v6| Step::Hold { v6 }),
        2 => any::<bool>().prop_map(|v6| Step::Release { v6 }),
        1 => Just(Step::AdvertiseOriginated),
        6 => (peer(), 1..200usize).prop_map(|(peer, budget)| Step::Write { peer, budget }),
        2 => (1..4usize).prop_map(|max| Step::Fib { max }),
    ]
}

/// The attributes that a peer advertises, by number.
fn attributes(number: usize, peer: u32, external: bool) -> PathAttributes {
    let first = if external { vec![65000 + peer] } else { vec![] };
    let along = |rest: &[u32]| path(&[&first[..], rest].concat());
    let local_pref = (!external).then_some(100);
    match number {
        0 => PathAttributes { local_pref, ..along(&[7]) },
        1 => PathAttributes { local_pref, communities: vec![Community(1)], ..along(&[7]) },
        2 => PathAttributes { local_pref, communities: vec![Community::NO_EXPORT], ..along(&[8]) },
        3 => PathAttributes { local_pref, communities: vec![Community::NO_ADVERTISE], ..along(&[8]) },
        4 => PathAttributes { local_pref, med: Some(10), ..along(&[7]) },
        5 => PathAttributes { local_pref: (!external).then_some(200), med: Some(5), ..along(&[7, 9]) },
        6 => PathAttributes { local_pref, ..along(&[65000, 9]) }, // loops
        7 => PathAttributes { local_pref, communities: vec![Community::GRACEFUL_SHUTDOWN], ..along(&[7]) },
        // 8 comes from another reflector. 9 has looped by its ORIGINATOR_ID, 10 by its
        // CLUSTER_LIST.
        8 if !external => reflected([10, 0, 0, 9], [9, 9, 9, 9], along(&[7])),
        9 if !external => reflected([1, 1, 1, 1], [9, 9, 9, 9], along(&[7])),
        10 if !external => reflected([10, 0, 0, 9], [1, 1, 1, 1], along(&[7])),
        11 => PathAttributes { local_pref, communities: vec![Community::LLGR_STALE], ..along(&[7]) },
        12 => PathAttributes {
            local_pref: (!external).then_some(200),
            communities: vec![Community(1), Community::LLGR_STALE],
            ..along(&[])
        },
        14 => PathAttributes { local_pref, only_to_customer: Some(Asn(9)), ..along(&[7]) },
        15 => PathAttributes { local_pref, communities: vec![Community::NO_PEER], ..along(&[7]) },
        13 => PathAttributes { local_pref, communities: vec![Community::NO_LLGR], ..along(&[7]) },
        _ => PathAttributes { local_pref, ..along(&[7, 8, 9]) },
    }
}

fn reflected(originator: [u8; 4], cluster: [u8; 4], path: PathAttributes) -> PathAttributes {
    PathAttributes {
        local_pref: Some(100),
        originator_id: Some(originator.into()),
        cluster_list: vec![cluster.into()],
        ..path
    }
}

fn has_as_loop(path: &PathAttributes, rules: &PathRules) -> bool {
    path.as_path.contains(LOCAL_AS) || rules.local_as.is_some_and(|old| path.as_path.contains(old.asn))
}

fn has_looped(path: &PathAttributes, rules: &PathRules) -> bool {
    has_as_loop(path, rules)
        || path.originator_id == Some(ROUTER_ID)
        || path.cluster_list.contains(&ROUTER_ID)
}

const TARGET: ExtendedCommunity = ExtendedCommunity([0, 2, 0xfd, 0xe8, 0, 0, 0, 1]);
const NON_TRANSITIVE_TARGET: ExtendedCommunity = ExtendedCommunity([0x40, 2, 0xfd, 0xe8, 0, 0, 0, 1]);
/// 1 Gbit/s in AS 65000, as external and as internal peers receive it.
const BANDWIDTH: ExtendedCommunity = ExtendedCommunity([0, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]);
const INTERNAL_BANDWIDTH: ExtendedCommunity =
    ExtendedCommunity([0x40, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]);

/// Each bit of `tags` is one of the tags 0, 1 and 2.
fn origination(number: usize, tags: u16) -> Origination {
    let tags = Tags::new((0..3).filter(|tag| tags >> tag & 1 == 1).map(Tag)).unwrap();
    let rest = Origination { tags, ..Origination::default() };
    match number {
        0 => rest,
        1 => Origination { communities: vec![Community::NO_EXPORT], med: Some(3), ..rest },
        _ => Origination {
            extended_communities: vec![TARGET, NON_TRANSITIVE_TARGET],
            link_bandwidth: Some(LinkBandwidth(125_000_000)),
            ..rest
        },
    }
}

const POLICIES: usize = 9;

fn policy(number: usize) -> Policy {
    let long = PrefixMatch { prefix: net("10.0.0.0/8"), ge: Some(16), le: None };
    let long = || Conditions { prefixes: vec![long].into(), ..Conditions::default() };
    let tagged = || Conditions { communities: vec![Community(1)].into(), ..Conditions::default() };
    match number {
        0 => Policy::accept_all(),
        1 => Policy::reject_all(),
        2 => Policy::originated_only(),
        3 => Policy { rules: vec![Rule::reject(long())], default: PolicyResult::Accept },
        4 => Policy {
            rules: vec![
                Rule {
                    when: tagged(),
                    set: Actions {
                        local_pref: Some(300),
                        communities: Edit {
                            remove: vec![Community(1)],
                            add: vec![Community(2)],
                            ..Edit::default()
                        },
                        ..Actions::default()
                    },
                    ..Rule::default()
                },
                Rule::reject(tagged()),
            ],
            default: PolicyResult::Accept,
        },
        5 => Policy {
            rules: vec![Rule {
                set: Actions { prepend: 2, med: Some(77), ..Actions::default() },
                ..Rule::accept(long())
            }],
            default: PolicyResult::Accept,
        },
        6 => Policy {
            rules: vec![
                Rule {
                    when: tags(&[1], &[], &[]),
                    set: Actions { communities: Edit::add([Community(61)]), ..Actions::default() },
                    ..Rule::default()
                },
                Rule::reject(tags(&[0], &[], &[1, 2])),
            ],
            default: PolicyResult::Accept,
        },
        7 => Policy { rules: vec![Rule::accept(tags(&[], &[0, 2], &[]))], default: PolicyResult::Reject },
        _ => Policy { rules: vec![Rule::reject(tags(&[], &[], &[1]))], default: PolicyResult::Accept },
    }
}

fn tags(any_of: &[u16], all_of: &[u16], none_of: &[u16]) -> Conditions {
    let list = |numbers: &[u16]| numbers.iter().copied().map(Tag).collect();
    let tags = Members { any_of: list(any_of), all_of: list(all_of), none_of: list(none_of) };
    Conditions { tags, ..Conditions::default() }
}

/// Applies the policies of the test as plain Rust code.
fn apply_policy(
    number: usize,
    prefix: &IpNet,
    mut path: PathAttributes,
    originated: Option<&Tags>,
    prepended: Asn,
) -> Option<PathAttributes> {
    let has = |tag: u16| originated.is_some_and(|tags| tags.as_slice().contains(&Tag(tag)));
    let is_long = net("10.0.0.0/8").contains(prefix) && prefix.prefix_len() >= 16;
    match number {
        0 => Some(path),
        1 => None,
        2 => originated.map(|_| path),
        3 => (!is_long).then_some(path),
        4 => {
            if path.communities.contains(&Community(1)) {
                path.communities.retain(|community| *community != Community(1));
                path.communities.push(Community(2));
                path.local_pref = Some(300);
            }
            Some(path)
        }
        5 => {
            if is_long {
                let own: Vec<Asn> =
                    path.as_path.segments.iter().flat_map(|segment| segment.asns.clone()).collect();
                let asns: Vec<u32> = [prepended, prepended].into_iter().chain(own).map(|asn| asn.0).collect();
                path.as_path = rib_support::path(&asns).as_path;
                path.med = Some(77);
            }
            Some(path)
        }
        6 => {
            if has(1) {
                add(&mut path.communities, Community(61));
            }
            (!has(0) || has(1) || has(2)).then_some(path)
        }
        7 => (has(0) && has(2)).then_some(path),
        _ => has(1).then_some(path),
    }
}

#[derive(Clone, Debug)]
struct ModelPath {
    attributes: PathAttributes,
    stale: bool,
}

#[derive(Debug)]
struct Model {
    paths: BTreeMap<(IpNet, u32), ModelPath>,
    originated: BTreeMap<IpNet, Origination>,
    policies: BTreeMap<u32, (usize, usize)>,
    rules: BTreeMap<u32, PathRules>,
    up: BTreeSet<u32>,
}

fn external(peer: u32) -> bool {
    peer <= 3
}

/// Whether a peer supports long-lived stale paths (RFC 9494 §4.3).
fn supports_long_lived(peer: u32) -> bool {
    peer % 2 == 1
}

impl Model {
    /// The paths in use, best first; peer 0 is this speaker.
    fn selected(&self, prefix: &IpNet) -> Vec<(u32, PathAttributes)> {
        if let Some(origination) = self.originated.get(prefix) {
            let own = PathAttributes {
                med: origination.med,
                communities: origination.communities.clone(),
                extended_communities: origination.extended_communities.clone(),
                ..PathAttributes::default()
            };
            return vec![(0, own)];
        }
        let mut usable: Vec<(u32, PathAttributes)> = Vec::new();
        for ((of, peer), path) in &self.paths {
            let rules = &self.rules[peer];
            if of == prefix && !has_looped(&path.attributes, rules) && !self.leaks(*peer, &path.attributes) {
                let import = self.policies[peer].0;
                let neighbour = remote_as(*peer, external(*peer));
                if let Some(mut used) = apply_policy(import, prefix, path.attributes.clone(), None, neighbour)
                {
                    if rules.local_as.is_some_and(|old| !old.no_prepend) {
                        used.as_path.prepend(OLD_AS, 1);
                    }
                    if matches!(rules.local_role, Some(Customer | RouteServerClient | Peer)) {
                        used.only_to_customer.get_or_insert(neighbour);
                    }
                    if external(*peer) && rules.graceful_shutdown {
                        add(&mut used.communities, Community::GRACEFUL_SHUTDOWN);
                    }
                    if external(*peer) && used.communities.contains(&Community::GRACEFUL_SHUTDOWN) {
                        used.local_pref = Some(0);
                    }
                    usable.push((*peer, used));
                }
            }
        }
        // Long-lived stale paths are used only if there are no other paths; their attributes do not
        // matter (RFC 9494 §4.3).
        let fresh = |path: &PathAttributes| !path.communities.contains(&Community::LLGR_STALE);
        if usable.iter().any(|(_, path)| fresh(path)) {
            usable.retain(|(_, path)| fresh(path));
        }
        let preference = |path: &PathAttributes| path.local_pref.unwrap_or(100);
        let best = usable.iter().map(|(_, path)| preference(path)).max();
        usable.retain(|(_, path)| Some(preference(path)) == best);
        let best = usable.iter().map(|(_, path)| path.as_path.len()).min();
        usable.retain(|(_, path)| Some(path.as_path.len()) == best);
        let all = usable.clone();
        usable.retain(|(_, path)| {
            let same = all.iter().filter(|(_, other)| other.as_path.first() == path.as_path.first());
            same.map(|(_, other)| other.med.unwrap_or(0)).min() == Some(path.med.unwrap_or(0))
        });
        if usable.iter().any(|(peer, _)| external(*peer)) {
            usable.retain(|(peer, _)| external(*peer));
        }
        // Identifier and address increase with the number.
        let identifier = |peer: u32| std::net::Ipv4Addr::new(10, 0, 0, peer as u8);
        usable.sort_by_key(|(peer, path)| {
            (path.originator_id.unwrap_or(identifier(*peer)), path.cluster_list.len(), *peer)
        });
        usable.truncate(MAX_PATHS);
        usable
    }

    /// Whether a path is a leak (RFC 9234 §5).
    fn leaks(&self, from: u32, path: &PathAttributes) -> bool {
        match (self.rules[&from].local_role, path.only_to_customer) {
            (Some(Provider | RouteServer), Some(_)) => true,
            (Some(Peer), Some(asn)) => asn != remote_as(from, true),
            _ => false,
        }
    }

    fn advertised(&self, to: u32, prefix: &IpNet) -> Option<(NextHop, PathAttributes)> {
        let (from, mut path) = self.selected(prefix).into_iter().next()?;
        let originated = from == 0;
        let reflected = !originated && !external(from) && !external(to);
        let is_client = |peer: &u32| self.rules[peer].route_reflector_client;
        if from == to || reflected && !is_client(&from) && !is_client(&to) {
            return None;
        }
        let role = self.rules[&to].local_role;
        if path.only_to_customer.is_some() && matches!(role, Some(Customer | RouteServerClient | Peer)) {
            return None;
        }
        let carries = |community| !originated && path.communities.contains(&community);
        if carries(Community::NO_ADVERTISE) || external(to) && carries(Community::NO_EXPORT) {
            return None;
        }
        if role == Some(Peer) && carries(Community::NO_PEER) {
            return None;
        }
        if carries(Community::LLGR_STALE) && !supports_long_lived(to) {
            return None;
        }
        if external(to) && !originated {
            path.med = None;
        }
        if external(to) {
            path.extended_communities.retain(|community| community.0[0] & 0x40 == 0);
        }
        let own_path = self.originated.get(prefix).filter(|_| originated);
        if own_path.is_some_and(|origination| origination.link_bandwidth.is_some()) {
            path.extended_communities.push(if external(to) { BANDWIDTH } else { INTERNAL_BANDWIDTH });
        }
        if reflected {
            path.originator_id.get_or_insert(std::net::Ipv4Addr::new(10, 0, 0, from as u8));
            path.cluster_list.insert(0, ROUTER_ID);
        }
        let old = self.rules[&to].local_as;
        let own = if old.is_some_and(|old| old.replace_as) { OLD_AS } else { LOCAL_AS };
        let tags = own_path.map(|origination| &origination.tags);
        let mut path = apply_policy(self.policies[&to].1, prefix, path, tags, own)?;
        if external(to) {
            path.as_path.prepend(own, 1);
            if old.is_some_and(|old| !old.replace_as) {
                path.as_path.prepend(OLD_AS, 1);
            }
            path.local_pref = None;
            path.originator_id = None;
            if matches!(role, Some(Provider | RouteServer | Peer)) {
                path.only_to_customer.get_or_insert(if old.is_some() { OLD_AS } else { LOCAL_AS });
            }
            path.cluster_list.clear();
        } else {
            path.local_pref = path.local_pref.or(Some(100));
        }
        if self.rules[&to].graceful_shutdown {
            add(&mut path.communities, Community::GRACEFUL_SHUTDOWN);
            path.local_pref = path.local_pref.map(|_| 0);
        }
        let own = match prefix {
            IpNet::V4(_) => own_v4(to),
            IpNet::V6(_) => own_v6(to),
        };
        Some((if external(to) || originated { own } else { next_hop(from, prefix) }, path))
    }
}

fn add(communities: &mut Vec<Community>, community: Community) {
    if !communities.contains(&community) {
        communities.push(community);
    }
}

fn family(v6: bool) -> Family {
    if v6 { Family::Ipv6Unicast } else { Family::Ipv4Unicast }
}

fn run(steps: &[Step]) {
    let mut bench = Bench::down(MAX_PATHS, &PEERS);
    let mut model = Model {
        paths: BTreeMap::new(),
        originated: BTreeMap::new(),
        policies: PEERS.iter().map(|(peer, _)| (*peer, (0, 0))).collect(),
        rules: PEERS.iter().map(|(peer, _)| (*peer, PathRules::default())).collect(),
        up: BTreeSet::new(),
    };
    let prefixes = PREFIXES.map(net);
    for step in steps {
        match step.clone() {
            Step::Announce { peer, prefix, attributes: number } => {
                if model.up.contains(&peer) {
                    let attributes = attributes(number, peer, external(peer));
                    bench.announce(peer, PREFIXES[prefix], &attributes);
                    model.paths.insert((prefixes[prefix], peer), ModelPath { attributes, stale: false });
                }
            }
            Step::Withdraw { peer, prefix } => {
                if model.up.contains(&peer) {
                    bench.withdraw(peer, PREFIXES[prefix]);
                    model.paths.remove(&(prefixes[prefix], peer));
                }
            }
            Step::Originate { prefix, attributes, tags } => {
                let origination = origination(attributes, tags);
                bench.rib.originate(prefixes[prefix], &origination);
                model.originated.insert(prefixes[prefix], origination);
            }
            Step::StopOriginating { prefix } => {
                let was_there = bench.rib.withdraw(prefixes[prefix]);
                assert_eq!(was_there, model.originated.remove(&prefixes[prefix]).is_some());
            }
            Step::Down { peer, retain, long } => {
                if model.up.remove(&peer) {
                    let families = |yes| if yes { FamilySet::ALL } else { FamilySet::EMPTY };
                    bench.lose_for_long(peer, families(retain), families(long));
                    model.paths.retain(|(_, from), path| *from != peer || retain && (long || !path.stale));
                    let of_peer = model.paths.iter_mut().filter(|((_, from), _)| *from == peer);
                    of_peer.for_each(|(_, path)| path.stale = true);
                }
            }
            Step::MarkLongLived { peer } => {
                let is_of = |prefix: &IpNet, from: u32, path: &ModelPath, family| {
                    from == peer && path.stale && Family::of(prefix) == family
                };
                for family in Family::ALL {
                    let marked = bench.rib.mark_long_lived(PeerId(peer), family);
                    let mut removed = 0;
                    model.paths.retain(|(prefix, from), path| {
                        let goes = is_of(prefix, *from, path, family)
                            && path.attributes.communities.contains(&Community::NO_LLGR);
                        removed += usize::from(goes);
                        !goes
                    });
                    let mut kept = 0;
                    for ((prefix, from), path) in &mut model.paths {
                        if is_of(prefix, *from, path, family) {
                            kept += 1;
                            let communities = &mut path.attributes.communities;
                            if !communities.contains(&Community::LLGR_STALE) {
                                communities.push(Community::LLGR_STALE);
                            }
                        }
                    }
                    assert_eq!(marked, (kept, removed));
                }
            }
            Step::Up { peer } => {
                if model.up.insert(peer) {
                    let long_lived_stale = supports_long_lived(peer);
                    bench.up_with(peer, SessionFacts { long_lived_stale, ..session(peer) });
                }
            }
            Step::Sweep { peer } => {
                for family in Family::ALL {
                    bench.rib.sweep_stale(PeerId(peer), family);
                }
                model.paths.retain(|(_, from), path| *from != peer || !path.stale);
            }
            Step::Policy { peer, import, export } => {
                bench.rib.set_policy(PeerId(peer), &policy(import), &policy(export));
                model.policies.insert(peer, (import, export));
            }
            Step::Rules { peer, rules } => {
                bench.rib.set_rules(PeerId(peer), rules);
                model.rules.insert(peer, rules);
            }
            Step::Refresh { peer, demarcated } => {
                for family in Family::ALL {
                    bench.rib.refresh_out(PeerId(peer), family, demarcated);
                }
            }
            Step::Hold { v6 } => bench.rib.hold([family(v6)].into_iter().collect()),
            Step::Release { v6 } => bench.rib.release(family(v6)),
            Step::AdvertiseOriginated => bench.rib.advertise_originated(),
            Step::Write { peer, budget } => {
                if model.up.contains(&peer) {
                    bench.write(peer, budget);
                }
            }
            Step::Fib { max } => {
                for change in bench.rib.route_changes(max) {
                    if change.paths.is_empty() {
                        assert!(bench.fib.remove(&change.prefix).is_some());
                    } else {
                        bench.fib.insert(change.prefix, change.paths);
                    }
                }
            }
        }
    }
    Family::ALL.into_iter().for_each(|family| bench.rib.release(family));
    compare(&mut bench, &model);

    // Everything is removed.
    for prefix in prefixes {
        bench.rib.withdraw(prefix);
    }
    for (peer, _) in PEERS {
        bench.receivers.remove(&peer);
        bench.rib.remove_peer(PeerId(peer));
    }
    bench.flush();
    assert!(bench.fib.is_empty());
    assert_eq!(Family::ALL.map(|family| bench.rib.prefixes(family)), [0, 0]);
    assert_eq!(bench.rib.attribute_sets(), 0);
}

fn compare(bench: &mut Bench, model: &Model) {
    bench.flush();
    for prefix in PREFIXES.map(net) {
        let selected = model.selected(&prefix);
        let expected: Vec<_> = selected.iter().map(|(peer, _)| *peer).filter(|peer| *peer != 0).collect();
        let expected: Vec<_> = expected.into_iter().map(address).collect();
        assert_eq!(bench.fib(&prefix.to_string()), expected, "FIB, {prefix}");
        for peer in &model.up {
            let advertised = bench.receivers[peer].routes.get(&prefix).cloned();
            assert_eq!(advertised, model.advertised(*peer, &prefix), "{prefix} to peer {peer}");
            let reason = bench.rib.not_advertised(PeerId(*peer), &prefix);
            assert_eq!(reason.is_some(), advertised.is_none(), "{prefix} to peer {peer}: {reason:?}");
        }
    }
    for (peer, _) in PEERS {
        for family in Family::ALL {
            let of_peer = |path: &&ModelPath| !has_as_loop(&path.attributes, &model.rules[&peer]);
            let paths: Vec<_> = model
                .paths
                .iter()
                .filter(|((prefix, from), _)| *from == peer && Family::of(prefix) == family)
                .collect();
            let counts = bench.rib.counts(PeerId(peer), family);
            assert_eq!(counts.received, paths.len());
            assert_eq!(counts.stale, paths.iter().filter(|(_, path)| path.stale).count());
            let is_long =
                |path: &ModelPath| path.stale && path.attributes.communities.contains(&Community::LLGR_STALE);
            assert_eq!(counts.long_lived_stale, paths.iter().filter(|(_, path)| is_long(path)).count());
            let loops = bench.rib.received(PeerId(peer), family);
            let loops = loops.filter(|entry| entry.filtered == Some(Filtered::AsLoop)).count();
            assert_eq!(
                loops,
                paths.len() - paths.iter().map(|(_, path)| path).filter(|path| of_peer(path)).count()
            );
            let listed =
                bench.rib.received(PeerId(peer), family).filter(|entry| entry.used.is_some()).count();
            assert_eq!(counts.accepted, listed);
            if let Some(receiver) = bench.receivers.get(&peer) {
                let advertised = receiver.routes.keys().filter(|prefix| Family::of(prefix) == family).count();
                assert_eq!(counts.advertised, advertised);
                assert_eq!(bench.rib.advertised(PeerId(peer), family).count(), advertised);
                assert_eq!(receiver.end_of_rib.iter().filter(|marked| **marked == family).count(), 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn peers_and_fib_match_the_model(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps);
    }
}
