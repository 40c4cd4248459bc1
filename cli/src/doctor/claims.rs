//! Claims of other nodes that this node ignores: addresses in their NodeInfos that overlay pods reach
//! without the tunnel, or not at all.

use trunkline_api::control::{AgentStatus, IgnoredClaims};

use super::Finding;

const CHECK: &str = "node-claims";

pub(super) fn check(status: &AgentStatus) -> Option<Finding> {
    finding(&status.ignored_claims)
}

/// The first reason is in the text, and has its own fix.
fn finding(claims: &IgnoredClaims) -> Option<Finding> {
    let IgnoredClaims { vteps, addresses, faults } = claims;
    if claims.is_empty() {
        return None;
    }
    let first = faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
    let fix = "`trunkline status` has all reasons. Addresses of nodes in other racks need nodeAddressCIDRs in agent.yaml of every node";
    Some(if *vteps > 0 {
        let text = format!(
            "overlay pods do not reach the pods of {vteps} nodes, whose NodeInfos are ignored{first}"
        );
        Finding::error(CHECK, text, fix)
    } else {
        let text = format!(
            "{addresses} addresses in the NodeInfos of other nodes are ignored, and overlay pods reach them without the tunnel{first}"
        );
        Finding::warning(CHECK, text, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn ignored_vteps_are_errors_and_ignored_addresses_warnings() {
        assert_eq!(finding(&IgnoredClaims::default()), None);
        let faults = vec!["NodeInfo n2: spec.vtepInfo.localIPs: fd00::2 is unknown".to_owned()];
        let addresses = IgnoredClaims { vteps: 0, addresses: 3, faults: faults.clone() };
        let found = finding(&addresses).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.text.starts_with("3 addresses") && found.text.ends_with(&faults[0]), "{}", found.text);
        let found = finding(&IgnoredClaims { vteps: 1, ..addresses }).unwrap();
        assert_eq!(found.severity, Severity::Error);
    }
}
