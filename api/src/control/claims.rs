//! Addresses that other nodes claim in their NodeInfos.

use serde::{Deserialize, Serialize};

/// The claims that the agent ignores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IgnoredClaims {
    /// Number of ignored VTEPs: there are no tunnels to these nodes.
    pub vteps: u32,
    /// Number of ignored entries of `localIPs`.
    pub addresses: u32,
    /// The reasons, not more than 20.
    pub faults: Vec<String>,
}

impl IgnoredClaims {
    /// Whether no claim is ignored.
    pub fn is_empty(&self) -> bool {
        self.vteps == 0 && self.addresses == 0
    }
}
