//! Probes in `trunkline status`.

use trunkline_api::control::{ProbeState, ProbeStatus};

use crate::table::duration;

/// The summary, and one line for each router with a fault or without an answer.
pub(crate) fn lines(probes: &ProbeStatus) -> Vec<String> {
    if probes.routers.is_empty() {
        return Vec::new();
    }
    let faulty = probes.routers.iter().filter(|router| !router.faults.is_empty()).count();
    let failover = if probes.failover { "" } else { ", no failover" };
    let mut lines = vec![format!(
        "{} of {} paths through routers without a fault, every {}{failover}",
        probes.routers.len() - faulty,
        probes.routers.len(),
        duration(probes.interval_milliseconds / 1000),
    )];
    for router in &probes.routers {
        let left_out = if router.left_out { ", left out of the pods' next hops" } else { "" };
        for fault in &router.faults {
            lines.push(format!("FAULT {}: {}{left_out}", fault.kind.name(), fault.text));
        }
        let unproven =
            router.checks.iter().filter(|check| check.state == ProbeState::Unproven && check.sent >= 3);
        let unproven: Vec<&str> = unproven.map(|check| check.name.as_str()).collect();
        if !unproven.is_empty() && router.faults.is_empty() {
            lines.push(format!(
                "{} ({}): no probe has returned yet of {}: some networks do not return such probes",
                router.peer,
                router.family,
                unproven.join(", ")
            ));
        }
    }
    lines.extend(probes.notes.iter().cloned());
    lines
}
