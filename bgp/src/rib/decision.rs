//! The decision process, phase 2: which of a prefix's paths are used (RFC 4271 §9.1.2).
//!
//! Written as the RFC writes it: each step takes paths out of consideration, and what is left after the last is
//! the best. That is not a sort: MED is compared only among paths of the same neighbouring AS, so there is no
//! order of paths to sort by, and comparing pairs along a list would make the outcome depend on the order in
//! which paths arrived.
//!
//! Paths still equal after the step "external over internal" are used together (ECMP). They need the same
//! AS_PATH length but not the same AS_PATH: what other speakers call multipath-relax. There is no IGP here, so
//! the interior cost of step e is the same for all.

use std::cmp::Reverse;
use std::net::IpAddr;

use smallvec::SmallVec;

/// What the decision looks at in one path. Missing attributes have been filled in with their defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The path's place in the arena; nothing is decided by it.
    pub(super) path: u32,
    /// Originated by this speaker: before anything learned.
    pub(super) originated: bool,
    /// Kept from before a long restart: after everything else (RFC 9494 §4.3).
    pub(super) long_lived_stale: bool,
    /// LOCAL_PREF, 100 where there is none.
    pub(super) local_pref: u32,
    /// AS_PATH's length: a set counts 1 (RFC 4271 §9.1.2.2 a).
    pub(super) path_len: u16,
    /// ORIGIN: 0 IGP, 1 EGP, 2 INCOMPLETE.
    pub(super) origin: u8,
    /// The first AS of AS_PATH; 0 where there is none.
    pub(super) neighbour_as: u32,
    /// MULTI_EXIT_DISC, 0 where there is none (RFC 4271 §9.1.2.2 c).
    pub(super) med: u32,
    /// From an external peer.
    pub(super) external: bool,
    /// ORIGINATOR_ID where there is one, else the peer's BGP identifier (RFC 4456 §9).
    pub(super) router_id: u32,
    /// CLUSTER_LIST's length (RFC 4456 §9).
    pub(super) cluster_len: u8,
    /// The peer's address.
    pub(super) address: IpAddr,
    /// The path identifier, among paths of one peer; 0 where there is none.
    pub(super) identifier: u32,
}

/// Candidates without an allocation for the usual number of paths.
pub(super) type Candidates = SmallVec<[Candidate; 4]>;

/// Leaves the paths that are used, the best one first, at most `max_paths` of them.
pub(super) fn select(candidates: &mut Candidates, max_paths: usize) {
    if candidates.len() > 1 {
        keep_least(candidates, |path| !path.originated);
        keep_least(candidates, |path| path.long_lived_stale);
        keep_least(candidates, |path| Reverse(path.local_pref));
        keep_least(candidates, |path| path.path_len);
        keep_least(candidates, |path| path.origin);
        keep_least_med_of_each_neighbour(candidates);
        keep_least(candidates, |path| !path.external);
        candidates
            .sort_unstable_by_key(|path| (path.router_id, path.cluster_len, path.address, path.identifier));
    }
    candidates.truncate(max_paths.max(1));
}

fn keep_least<K: Ord>(candidates: &mut Candidates, key: impl Fn(&Candidate) -> K) {
    if let Some(least) = candidates.iter().map(&key).min() {
        candidates.retain(|path| key(path) == least);
    }
}

/// In pairs where there are few. A peer with ADD-PATH may send as many as it likes, and then they are sorted.
fn keep_least_med_of_each_neighbour(candidates: &mut Candidates) {
    if candidates.len() <= FEW {
        let all = candidates.clone();
        candidates.retain(|path| {
            !all.iter().any(|other| other.neighbour_as == path.neighbour_as && other.med < path.med)
        });
        return;
    }
    let mut least: Vec<(u32, u32)> = candidates.iter().map(|path| (path.neighbour_as, path.med)).collect();
    least.sort_unstable();
    least.dedup_by_key(|(neighbour_as, _)| *neighbour_as);
    candidates.retain(|path| least.binary_search(&(path.neighbour_as, path.med)).is_ok());
}

/// So many are compared in pairs faster than they are sorted.
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

    fn selected(paths: &[Candidate], max_paths: usize) -> Vec<u32> {
        // The outcome may not depend on the order of arrival.
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

    /// Each step: path 1 wins by every later step, path 2 by this one.
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
        let rows: [(&str, Candidate, Candidate); 10] = [
            ("originated here", better, Candidate { originated: true, ..worse }),
            ("not long-lived stale", Candidate { long_lived_stale: true, local_pref: 999, ..better }, worse),
            ("highest LOCAL_PREF", better, Candidate { local_pref: 101, ..worse }),
            ("shortest AS_PATH", Candidate { path_len: 3, ..better }, Candidate { path_len: 2, ..worse }),
            (
                "lowest ORIGIN",
                Candidate { origin: 1, ..better },
                Candidate { path_len: 2, origin: 0, ..worse },
            ),
            (
                "lowest MED of the same neighbour",
                Candidate { med: 10, ..better },
                Candidate { path_len: 2, origin: 0, ..worse },
            ),
            (
                "external over internal",
                Candidate { external: false, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                "lowest BGP identifier",
                Candidate { router_id: 100, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                "shortest CLUSTER_LIST",
                Candidate { router_id: 99, cluster_len: 10, ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
            (
                "lowest peer address",
                Candidate { router_id: 99, cluster_len: 9, address: IpAddr::from([10, 0, 0, 100]), ..better },
                Candidate { path_len: 2, origin: 0, med: 0, external: true, ..worse },
            ),
        ];
        for (step, loser, winner) in rows {
            assert_eq!(selected(&[loser, winner], 1), [2], "{step}");
        }
    }

    #[test]
    fn med_is_compared_only_within_a_neighbouring_as() {
        // 1 loses to 2 by MED; 3 is of another AS, where MED 50 is the lowest. Of 2 and 3 the identifier decides.
        let paths = [
            Candidate { med: 20, ..path(1) },
            Candidate { med: 10, ..path(4) },
            Candidate { med: 50, neighbour_as: 65002, ..path(3) },
        ];
        assert_eq!(selected(&paths, 1), [3]);
        // All orders agree, also where pairs would go in a circle.
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
            assert_eq!(selected(&order.map(|place| paths[place]), 1), [3]);
        }
    }

    /// More than [`FEW`] are sorted, with the outcome that comparing each with each has.
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
            keep_least_med_of_each_neighbour(&mut kept);
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
