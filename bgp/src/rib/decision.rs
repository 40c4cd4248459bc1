//! The decision process, phase 2: it selects the paths of a prefix that are used (RFC 4271 §9.1.2).
//!
//! The code follows the RFC: each step removes paths, and the paths left after the last step are
//! the best. This is not a sort: MED is compared only among paths of the same neighbouring AS, so
//! the paths have no total order. Comparing pairs along a list would make the result depend on the
//! order of arrival.
//!
//! Paths that are still equal after the step "external over internal" are used together (ECMP).
//! They need the same AS_PATH length but not the same AS_PATH; other speakers call this
//! multipath-relax. There is no IGP here, so the interior cost of step e is the same for all paths.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use smallvec::SmallVec;

/// The input of the decision for one path. Missing attributes have their defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The path's place in the arena; the decision does not use it.
    pub(super) path: u32,
    /// Originated by this speaker: preferred over every received path.
    pub(super) originated: bool,
    /// Long-lived stale: used only if there is no other path (RFC 9494 §4.4).
    pub(super) long_lived_stale: bool,
    /// LOCAL_PREF, 100 if absent.
    pub(super) local_pref: u32,
    /// AS_PATH's length: a set counts 1 (RFC 4271 §9.1.2.2 a).
    pub(super) path_len: u16,
    /// ORIGIN: 0 IGP, 1 EGP, 2 INCOMPLETE.
    pub(super) origin: u8,
    /// The first AS of AS_PATH; 0 if absent.
    pub(super) neighbour_as: u32,
    /// MULTI_EXIT_DISC, 0 if absent (RFC 4271 §9.1.2.2 c).
    pub(super) med: u32,
    /// From an external peer.
    pub(super) external: bool,
    /// ORIGINATOR_ID or, if absent, the peer's BGP identifier (RFC 4456 §9).
    pub(super) router_id: u32,
    /// CLUSTER_LIST's length (RFC 4456 §9).
    pub(super) cluster_len: u8,
    /// The peer's address.
    pub(super) address: IpAddr,
    /// The path identifier, among paths of one peer; 0 if absent.
    pub(super) identifier: u32,
}

/// The steps that remove paths, in order (RFC 4271 §9.1.2.2), then the tie-breaks between equal
/// paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Originated paths before received ones.
    Originated,
    /// Long-lived stale paths last (RFC 9494 §4.4).
    LongLivedStale,
    /// The highest LOCAL_PREF.
    LocalPref,
    /// The shortest AS_PATH.
    AsPathLength,
    /// The lowest ORIGIN.
    Origin,
    /// The lowest MULTI_EXIT_DISC among paths of one neighbouring AS.
    Med,
    /// External paths before internal ones.
    External,
    /// The lowest BGP identifier; ORIGINATOR_ID replaces it if present (RFC 4456 §9).
    RouterId,
    /// The shortest CLUSTER_LIST (RFC 4456 §9).
    ClusterList,
    /// The lowest peer address.
    PeerAddress,
    /// The lowest path identifier, among paths of one peer (RFC 7911).
    PathIdentifier,
}

impl Step {
    /// Whether the step only orders paths that could be used together.
    pub fn is_tie_break(self) -> bool {
        self >= Step::RouterId
    }

    /// The value of a path that this step compares, as text.
    pub(super) fn value(self, path: &Candidate) -> String {
        let either = |is: bool, one: &str, other: &str| (if is { one } else { other }).to_owned();
        match self {
            Step::Originated => either(path.originated, "originated here", "received"),
            Step::LongLivedStale => either(path.long_lived_stale, "long-lived stale", "fresh"),
            Step::LocalPref => path.local_pref.to_string(),
            Step::AsPathLength => path.path_len.to_string(),
            Step::Origin => ["igp", "egp", "incomplete"][usize::from(path.origin.min(2))].to_owned(),
            Step::Med => path.med.to_string(),
            Step::External => either(path.external, "external", "internal"),
            Step::RouterId => Ipv4Addr::from(path.router_id).to_string(),
            Step::ClusterList => path.cluster_len.to_string(),
            Step::PeerAddress => path.address.to_string(),
            Step::PathIdentifier => path.identifier.to_string(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Originated => "originated before received",
            Step::LongLivedStale => "fresh before long-lived stale",
            Step::LocalPref => "highest LOCAL_PREF",
            Step::AsPathLength => "shortest AS_PATH",
            Step::Origin => "lowest ORIGIN",
            Step::Med => "lowest MED of the same neighbour",
            Step::External => "external before internal",
            Step::RouterId => "lowest BGP identifier",
            Step::ClusterList => "shortest CLUSTER_LIST",
            Step::PeerAddress => "lowest peer address",
            Step::PathIdentifier => "lowest path identifier",
        })
    }
}

/// Candidates without an allocation for the usual number of paths.
pub(super) type Candidates = SmallVec<[Candidate; 4]>;

/// Keeps the paths that are used, the best one first, at most `max_paths` of them.
pub(super) fn select(candidates: &mut Candidates, max_paths: usize) {
    select_and_explain(candidates, max_paths, |_, _, _| {});
}

/// Like [`select`]; also reports each removed path with the step and a path that stayed.
pub(super) fn select_and_explain(
    candidates: &mut Candidates,
    max_paths: usize,
    mut lost: impl FnMut(&Candidate, Step, &Candidate),
) {
    if candidates.len() > 1 {
        let lost = &mut lost;
        keep_least(candidates, |path| !path.originated, |path, by| lost(path, Step::Originated, by));
        keep_least(candidates, |path| path.long_lived_stale, |path, by| lost(path, Step::LongLivedStale, by));
        keep_least(candidates, |path| Reverse(path.local_pref), |path, by| lost(path, Step::LocalPref, by));
        keep_least(candidates, |path| path.path_len, |path, by| lost(path, Step::AsPathLength, by));
        keep_least(candidates, |path| path.origin, |path, by| lost(path, Step::Origin, by));
        keep_least_med_of_each_neighbour(candidates, |path, by| lost(path, Step::Med, by));
        keep_least(candidates, |path| !path.external, |path, by| lost(path, Step::External, by));
        candidates.sort_unstable_by_key(order);
        for path in candidates.iter().skip(max_paths.max(1)) {
            lost(path, tie_break(&candidates[0], path), &candidates[0]);
        }
    }
    candidates.truncate(max_paths.max(1));
}

/// The order of equal paths.
fn order(path: &Candidate) -> (u32, u8, IpAddr, u32) {
    (path.router_id, path.cluster_len, path.address, path.identifier)
}

/// The tie-break that orders two paths that are used together.
pub(super) fn tie_break(one: &Candidate, other: &Candidate) -> Step {
    let (one, other) = (order(one), order(other));
    if one.0 != other.0 {
        Step::RouterId
    } else if one.1 != other.1 {
        Step::ClusterList
    } else if one.2 != other.2 {
        Step::PeerAddress
    } else {
        Step::PathIdentifier
    }
}

fn keep_least<K: Ord>(
    candidates: &mut Candidates,
    key: impl Fn(&Candidate) -> K,
    mut lost: impl FnMut(&Candidate, &Candidate),
) {
    if let Some(least) = candidates.iter().min_by_key(|path| key(path)).copied() {
        candidates.retain(|path| {
            let stays = key(path) == key(&least);
            if !stays {
                lost(path, &least);
            }
            stays
        });
    }
}

/// Compares few paths in pairs and sorts many paths. A peer with ADD-PATH may send any number of
/// paths.
fn keep_least_med_of_each_neighbour(
    candidates: &mut Candidates,
    mut lost: impl FnMut(&Candidate, &Candidate),
) {
    if candidates.len() <= FEW {
        let all = candidates.clone();
        candidates.retain(|path| {
            let better =
                all.iter().find(|other| other.neighbour_as == path.neighbour_as && other.med < path.med);
            better.inspect(|better| lost(path, better)).is_none()
        });
        return;
    }
    let mut least = candidates.to_vec();
    least.sort_unstable_by_key(|path| (path.neighbour_as, path.med));
    least.dedup_by_key(|path| path.neighbour_as);
    candidates.retain(|path| {
        let place = least.binary_search_by_key(&path.neighbour_as, |least| least.neighbour_as);
        let better = place.ok().map(|place| &least[place]).filter(|least| least.med < path.med);
        better.inspect(|better| lost(path, better)).is_none()
    });
}

/// Up to this number, comparing pairs is faster than sorting.
const FEW: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: u32) -> Candidate {
        Candidate {
            path: number,
            originated: false,
            long_lived_stale: false,
            local_pref: 100,
            path_len: 2,
            origin: 0,
            neighbour_as: 65001,
            med: 0,
            external: true,
            router_id: number,
            cluster_len: 0,
            address: IpAddr::from([10, 0, 0, number as u8]),
            identifier: 0,
        }
    }

    /// The removed paths, each with the step and a path that stayed.
    fn lost(paths: &[Candidate], max_paths: usize) -> Vec<(u32, Step, u32)> {
        let mut all = Vec::new();
        let record = |path: &Candidate, step, by: &Candidate| all.push((path.path, step, by.path));
        select_and_explain(&mut Candidates::from_slice(paths), max_paths, record);
        all
    }

    fn selected(paths: &[Candidate], max_paths: usize) -> Vec<u32> {
        // The result may not depend on the order of arrival.
        let run = |paths: &[Candidate]| {
            let mut candidates = Candidates::from_slice(paths);
            select(&mut candidates, max_paths);
            candidates.iter().map(|path| path.path).collect::<Vec<_>>()
        };
        let forwards = run(paths);
        let mut reversed = paths.to_vec();
        reversed.reverse();
        assert_eq!(forwards, run(&reversed));
        forwards
    }

    /// For each step: path 2 is better in this step, and path 1 in every later step.
    #[test]
    fn each_step_decides_before_the_later_ones() {
        let worse = Candidate {
            originated: false,
            local_pref: 100,
            path_len: 9,
            origin: 2,
            med: 9,
            external: false,
            router_id: 99,
            cluster_len: 9,
            address: IpAddr::from([10, 0, 0, 99]),
            ..path(2)
        };
        let better = path(1);
        let rows: [(Step, Candidate, Candidate); 11] = [
            (Step::Originated, better, Candidate { originated: true, ..worse }),
            (Step::LongLivedStale, Candidate { long_lived_stale: true, local_pref: 999, ..better }, worse),
            (Step::LocalPref, better, Candidate { local_pref: 101, ..worse }),
            (Step::AsPathLength, Candidate { path_len: 3, ..better }, Candidate { path_len: 2, ..worse }),
            (Step::Origin, Candidate { origin: 1, ..better }, Candidate { path_len: 2, origin: 0, ..worse }),
            (Step::Med, Candidate { med: 10, ..better }, Candidate { path_len: 2, origin: 0, ..worse }),
            (
                Step::External,
                Candidate { external: false, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                Step::RouterId,
                Candidate { router_id: 100, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                Step::ClusterList,
                Candidate { router_id: 99, cluster_len: 10, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                Step::PeerAddress,
                Candidate { router_id: 99, cluster_len: 9, address: IpAddr::from([10, 0, 0, 100]), ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (Step::PathIdentifier, Candidate { identifier: 2, ..path(1) }, Candidate { path: 2, ..path(1) }),
        ];
        for (step, loser, winner) in rows {
            assert_eq!(selected(&[loser, winner], 1), [2], "{step}");
            assert_eq!(lost(&[loser, winner], 1), [(loser.path, step, 2)], "{step}");
            assert_ne!(step.value(&loser), step.value(&winner), "{step}");
            let used: &[(u32, Step, u32)] = if step.is_tie_break() { &[] } else { &[(loser.path, step, 2)] };
            assert_eq!(
                lost(&[loser, winner], 2),
                used,
                "{step}: paths that differ by no more are used together"
            );
        }
    }

    #[test]
    fn med_is_compared_only_within_a_neighbouring_as() {
        // Path 1 loses to path 4 by MED. Path 3 is of another AS, where MED 50 is the lowest. The
        // identifier decides between 4 and 3.
        let paths = [
            Candidate { med: 20, ..path(1) },
            Candidate { med: 10, ..path(4) },
            Candidate { med: 50, neighbour_as: 65002, ..path(3) },
        ];
        assert_eq!(selected(&paths, 1), [3]);
        assert_eq!(lost(&paths, 1), [(1, Step::Med, 4), (4, Step::RouterId, 3)]);
        // All orders of arrival give the same result, even if comparisons in pairs would be
        // circular.
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
            assert_eq!(selected(&order.map(|place| paths[place]), 1), [3]);
        }
    }

    /// More than [`FEW`] paths are sorted, with the same result as comparing all pairs.
    #[test]
    fn many_paths_keep_the_least_med_of_each_neighbour_too() {
        for count in [2, FEW as u32, FEW as u32 + 1, 200] {
            let paths: Candidates = (0..count)
                .map(|number| Candidate {
                    neighbour_as: 65000 + number * 7 % 3,
                    med: 5 + number * 31 % 11,
                    ..path(number)
                })
                .collect();
            let beaten = |path: &Candidate| {
                paths.iter().any(|other| other.neighbour_as == path.neighbour_as && other.med < path.med)
            };
            let wanted: Vec<u32> = paths.iter().filter(|path| !beaten(path)).map(|path| path.path).collect();
            let mut kept = paths.clone();
            keep_least_med_of_each_neighbour(&mut kept, |_, _| {});
            assert_eq!(kept.iter().map(|path| path.path).collect::<Vec<_>>(), wanted, "{count} paths");
        }
    }

    #[test]
    fn equal_paths_are_used_together_up_to_the_limit() {
        let paths = [path(3), Candidate { neighbour_as: 65009, ..path(1) }, path(2), path(4)];
        assert_eq!(selected(&paths, 8), [1, 2, 3, 4]);
        assert_eq!(selected(&paths, 2), [1, 2]);
        assert_eq!(selected(&paths, 0), [1]);
        let unequal = [
            path(1),
            Candidate { external: false, ..path(2) },
            Candidate { path_len: 3, ..path(3) },
            Candidate { med: 1, ..path(4) },
            Candidate { local_pref: 99, ..path(5) },
            Candidate { origin: 2, ..path(6) },
        ];
        assert_eq!(selected(&unequal, 8), [1]);
        let mut none = Candidates::new();
        select(&mut none, 8);
        assert!(none.is_empty());
    }
}
