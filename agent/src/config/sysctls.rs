//! `sysctls`: settings of the kernel that hybridnet's daemon writes, and the agent only on request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::RequestedSysctls;

/// Settings of the kernel that the agent writes only on request. False changes nothing: an existing
/// value stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SysctlsConfig {
    /// `net.ipv4.conf.INTERFACE.route_localnet` 1 on each pod's host interface: packets of pods that
    /// this node translates to 127.0.0.0/8 are accepted. The guard drops the packets that a pod
    /// itself sends to 127.0.0.0/8. Without the guard a privileged pod then reaches the programs
    /// that listen on the node's loopback addresses.
    pub route_localnet: bool,
    /// `net.ipv4.conf.all.arp_filter` 0: the node answers ARP requests for each of its addresses on
    /// each link.
    #[serde(rename = "disableARPFilter")]
    pub disable_arp_filter: bool,
}

impl SysctlsConfig {
    /// The planner's settings.
    pub(super) fn requested(&self) -> RequestedSysctls {
        let SysctlsConfig { route_localnet, disable_arp_filter } = *self;
        RequestedSysctls { route_localnet, disable_arp_filter }
    }
}
