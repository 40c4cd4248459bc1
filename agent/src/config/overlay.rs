//! The overlay: its unknown addresses, and the prefixes of the node's addresses in it.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens to packets to an address of an overlay Subnet that no pod has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnknownOverlayAddresses {
    /// The node drops them.
    #[default]
    Drop,
    /// The node answers with an ICMP error (host unreachable).
    Reject,
}

/// Checks a list of prefixes.
pub(super) fn check_prefixes(field: &'static str, prefixes: &[IpNet]) -> Result<(), (&'static str, String)> {
    for (index, prefix) in prefixes.iter().enumerate() {
        if *prefix != prefix.trunc() {
            let message = format!("{prefix} has bits behind its length: write {}", prefix.trunc());
            return Err((field, message));
        }
        if prefixes[..index].contains(prefix) {
            return Err((field, format!("{prefix} is listed twice: remove one")));
        }
    }
    Ok(())
}
