//! The part of a pod in a live migration, from the IPInstances and its record. No I/O.

use crate::ipam::{MigrationState, PodName};
use crate::source::kube::departures::Departure;
use crate::source::kube::instances::Row;

/// The state of the attachment of `pod`. `last` is the state in its record, `own` the IPInstances with
/// the pod in their labels, and `departures` those that left this node.
///
/// The two kinds of IPInstances arrive on two watches, in any order. Without any of them the last
/// state stays.
pub fn decide(pod: &PodName, last: MigrationState, own: &[Row], departures: &[Departure]) -> MigrationState {
    use MigrationState::{Active, Arrived, Departing, Inactive};
    let is_bound = own.iter().any(|row| !row.awaits);
    let has_pod = |departure: &&Departure| is_same(&departure.pod, pod);
    let mut moving = departures.iter().filter(has_pod).filter(|departure| departure.moves).peekable();
    if moving.peek().is_some() {
        // Both families move together, so one report is enough.
        return if moving.any(|departure| departure.arrived) { Inactive } else { Departing };
    }
    if is_bound {
        return Active;
    }
    if !own.is_empty() {
        return if last == Arrived { Arrived } else { Inactive };
    }
    match (departures.iter().find(has_pod), departures.is_empty(), last) {
        // A failed live migration, and its IPInstance is not on the other watch yet.
        (Some(_), _, _) => Active,
        // The binding has the pod of another node.
        (None, false, _) => Inactive,
        // The target has ended before the end of the live migration.
        (None, true, Arrived) => Inactive,
        (None, true, last) => last,
    }
}

/// The node to which the virtual machine of a pod on `node` moves or has moved; none on the target's
/// node.
pub fn target_node<'a>(node: &str, state: MigrationState, departures: &'a [Departure]) -> Option<&'a str> {
    let is_source = matches!(state, MigrationState::Departing | MigrationState::Inactive);
    let mut targets = departures.iter().filter_map(|departure| departure.target_node.as_deref());
    targets.find(|target| is_source && *target != node)
}

/// Whether two names are of one pod. A runtime may pass no UID.
fn is_same(binding: &PodName, pod: &PodName) -> bool {
    match pod.uid.is_empty() || binding.uid.is_empty() {
        true => binding.namespace == pod.namespace && binding.name == pod.name,
        false => binding.uid == pod.uid,
    }
}

#[cfg(test)]
mod tests {
    use super::MigrationState::{Active, Arrived, Departing, Inactive};
    use super::*;
    use crate::ipam::Assigned;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "shop".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") }
    }

    fn row(awaits: bool) -> Row {
        Row {
            network: "rack1".to_owned(),
            assigned: Assigned {
                subnet: "s".to_owned(),
                address: "10.0.0.7".parse().unwrap(),
                gateway: None,
            },
            mac: [2, 0, 0, 0, 0, 1],
            pod: "here".to_owned(),
            uid: "uid-here".to_owned(),
            dual: None,
            extra_prefixes: Default::default(),
            interface: None,
            others: Vec::new(),
            seen: Default::default(),
            awaits,
        }
    }

    fn departure(holder: &str, moves: bool, arrived: bool) -> Departure {
        let target_node = if moves || holder != "here" { "n2" } else { "n1" };
        Departure {
            address: "10.0.0.7".parse().unwrap(),
            pod: pod(holder),
            moves,
            arrived,
            target_node: Some(target_node.to_owned()),
        }
    }

    #[test]
    fn source_has_the_targets_node_until_a_live_migration_fails() {
        let (moving, arrived) = (departure("here", true, false), departure("here", true, true));
        let (gone, stays) = (departure("there", false, false), departure("here", false, false));
        for (case, state, departures, expected) in [
            ("the target is named", Departing, vec![moving.clone()], Some("n2")),
            ("the target's agent reports", Inactive, vec![arrived], Some("n2")),
            ("the binding has moved", Inactive, vec![gone], Some("n2")),
            ("the label is gone", Inactive, vec![], None),
            ("the holder is on this node", Inactive, vec![stays], None),
            ("failed, the other watch is late", Active, vec![moving.clone()], None),
            ("the target", Arrived, vec![moving], None),
        ] {
            assert_eq!(target_node("n1", state, &departures), expected, "{case}");
        }
    }

    #[test]
    fn state_follows_the_steps_of_a_live_migration() {
        let moving = departure("here", true, false);
        let reported = departure("here", true, true);
        let gone = departure("there", false, false);
        let stays = departure("here", false, false);
        for (case, last, own, departures, expected) in [
            ("a pod without a live migration", Active, vec![], vec![], Active),
            ("the holder", Active, vec![row(false)], vec![], Active),
            ("source, the target is named", Active, vec![], vec![moving.clone()], Departing),
            ("source, its own watch is late", Active, vec![row(false)], vec![moving.clone()], Departing),
            ("source, its other watch is late", Active, vec![], vec![], Active),
            ("source, the target's agent reports", Departing, vec![], vec![reported.clone()], Inactive),
            ("source, the binding has moved", Departing, vec![], vec![gone.clone()], Inactive),
            ("source, the label is gone", Inactive, vec![], vec![], Inactive),
            ("source, the target has ended", Departing, vec![row(false)], vec![], Active),
            ("source, failed after a report", Inactive, vec![row(false)], vec![stays.clone()], Active),
            ("source, failed, own watch is late", Departing, vec![], vec![stays], Active),
            ("target after its ADD", Inactive, vec![row(true)], vec![], Inactive),
            ("target with a lost record", Active, vec![row(true)], vec![], Inactive),
            ("target, announced", Arrived, vec![row(true)], vec![], Arrived),
            ("target, the binding has moved", Inactive, vec![row(false)], vec![], Active),
            ("target, announced and bound", Arrived, vec![row(false)], vec![], Active),
            ("target, failed", Inactive, vec![], vec![], Inactive),
            ("target, failed after its announcement", Arrived, vec![], vec![], Inactive),
            (
                "target on the node of an earlier source",
                Inactive,
                vec![row(true)],
                vec![gone.clone()],
                Inactive,
            ),
            ("bound on the node of an earlier source", Inactive, vec![row(false)], vec![gone], Active),
            ("next live migration", Active, vec![], vec![moving, reported], Inactive),
        ] {
            assert_eq!(decide(&pod("here"), last, &own, &departures), expected, "{case}");
        }
    }

    #[test]
    fn pod_without_a_uid_is_known_by_its_name() {
        let unnamed = PodName { uid: String::new(), ..pod("here") };
        assert_eq!(decide(&unnamed, Active, &[], &[departure("here", true, false)]), Departing);
        assert_eq!(decide(&unnamed, Active, &[], &[departure("there", false, false)]), Inactive);
    }
}
