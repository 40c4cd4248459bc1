//! Links of VLANs and tunnels: `vlanInterfaces`, `vxlanInterfaces`, `vlanARPSender`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{LinkChoice, LinkChoiceError};

/// The sender of ARP requests that this node sends on VLAN devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VlanArpSender {
    /// An address of the node.
    #[default]
    Node,
    /// The address of a pod of this node in the Subnet, if there is one.
    Pod,
}

/// Checks a list of links.
pub(super) fn check(field: &'static str, entries: &[String]) -> Result<(), (&'static str, String)> {
    for (index, entry) in entries.iter().enumerate() {
        let parsed: Result<LinkChoice, LinkChoiceError> = entry.parse();
        parsed.map_err(|error| (field, error.to_string()))?;
        if entries[..index].contains(entry) {
            return Err((field, format!("{entry} is listed twice: remove one")));
        }
    }
    Ok(())
}

/// The links of a checked list.
pub(super) fn choices(entries: &[String]) -> Vec<LinkChoice> {
    entries.iter().filter_map(|entry| entry.parse().ok()).collect()
}
