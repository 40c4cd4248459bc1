//! AnycastAddresses that are not in force, and addresses whose health check fails.

use trunkline_api::control::AgentStatus;

use super::Finding;

/// One finding for each object or address with a fault.
pub(super) fn check(status: &AgentStatus) -> Vec<Finding> {
    let refused = status.anycast.iter().filter_map(|object| {
        let fault = object.refused.as_ref()?;
        let text = format!("AnycastAddress {} is not in force on this node: {fault}", object.name);
        Some(Finding::error("anycast", text, "correct the object, or its nodeSelector"))
    });
    let addresses =
        status.anycast.iter().flat_map(|object| object.addresses.iter().map(move |it| (object, it)));
    let unhealthy =
        addresses.filter(|(_, address)| address.healthy == Some(false)).map(|(object, address)| {
            let text = format!(
                "{} of AnycastAddress {} is unhealthy on this node: {}",
                address.address, object.name, address.check
            );
            let fix =
                "check the program behind the address; `trunkline events` has the time of the first failure";
            Finding::warning("anycast", text, fix)
        });
    refused.chain(unhealthy).collect()
}
