//! Faults that probes found, and duplicate BGP identifiers.

use trunkline_api::control::AgentStatus;

use super::Finding;

/// One finding for each fault.
pub(super) fn check(status: &AgentStatus) -> Vec<Finding> {
    let faults = status.probes.iter().flat_map(|probes| &probes.routers).flat_map(|router| {
        let left_out = if router.left_out { ". Until then, pods' packets use the other routers" } else { "" };
        let finding = move |fault: &trunkline_api::control::ProbeFault| {
            Finding::error("probes", fault.text.clone(), format!("{}{left_out}", fault.fix))
        };
        router.faults.iter().map(finding)
    });
    let duplicates = status.bgp.iter().flat_map(|bgp| &bgp.duplicate_identifiers).map(|duplicate| {
        Finding::warning(
            "router-id",
            duplicate.text.clone(),
            "give each router and each node its own BGP identifier: `bgp router-id` on routers, \
             `routerID` in agent.yaml",
        )
    });
    faults.chain(duplicates).collect()
}
