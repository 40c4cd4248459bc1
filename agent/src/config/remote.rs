//! `remoteClusters`: the limits of what remote clusters may name.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::remote::RemoteLimits;
use crate::text_kinds::Prefix;

/// Prefixes that remote clusters may use: docs/multi-cluster.md. A RemoteSubnet or RemoteVtep
/// outside of them is ignored and counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RemoteClustersConfig {
    /// Prefixes of remote subnets.
    #[serde(rename = "subnetCIDRs")]
    #[schemars(with = "Vec<Prefix>")]
    pub subnet_cidrs: Vec<IpNet>,
    /// Prefixes of the addresses of remote nodes.
    #[serde(rename = "vtepCIDRs")]
    #[schemars(with = "Vec<Prefix>")]
    pub vtep_cidrs: Vec<IpNet>,
}

impl Default for RemoteClustersConfig {
    fn default() -> Self {
        let RemoteLimits { subnets, vteps } = RemoteLimits::default();
        RemoteClustersConfig { subnet_cidrs: subnets, vtep_cidrs: vteps }
    }
}

impl RemoteClustersConfig {
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let fields = [
            ("remoteClusters.subnetCIDRs", &self.subnet_cidrs),
            ("remoteClusters.vtepCIDRs", &self.vtep_cidrs),
        ];
        for (field, prefixes) in fields {
            if let Some(prefix) = prefixes.iter().find(|prefix| prefix.trunc() != **prefix) {
                return Err((field, format!("{prefix} has host bits: write {}", prefix.trunc())));
            }
        }
        Ok(())
    }

    /// The planner's form.
    pub fn limits(&self) -> RemoteLimits {
        RemoteLimits { subnets: self.subnet_cidrs.clone(), vteps: self.vtep_cidrs.clone() }
    }
}
