//! Remote clusters, and claims of other nodes, in the agent's status.

use std::collections::BTreeMap;

use trunkline_api::control::{IgnoredClaims, IgnoredParts, RemoteClusterStatus, RemoteSubnetStatus};

use crate::plan::node_claims;
use crate::plan::remote::RemoteClusterPlan;

pub(super) fn remote_clusters(planned: &BTreeMap<String, RemoteClusterPlan>) -> Vec<RemoteClusterStatus> {
    planned.iter().map(|(name, planned)| status(name, planned)).collect()
}

pub(super) fn ignored_claims(planned: &node_claims::IgnoredClaims) -> IgnoredClaims {
    let node_claims::IgnoredClaims { vteps, addresses, faults } = planned;
    let faults = faults.iter().map(ToString::to_string).collect();
    IgnoredClaims { vteps: *vteps, addresses: *addresses, faults }
}

fn status(name: &str, planned: &RemoteClusterPlan) -> RemoteClusterStatus {
    let ignored = planned.ignored;
    let subnets = planned.subnets.iter().map(|(name, subnet)| RemoteSubnetStatus {
        name: name.clone(),
        prefix: subnet.prefix,
        overlay: subnet.overlay,
    });
    RemoteClusterStatus {
        name: name.to_owned(),
        subnets: subnets.collect(),
        vteps: planned.vteps,
        endpoints: planned.endpoints,
        ignored: IgnoredParts {
            subnets: ignored.subnets,
            vteps: ignored.vteps,
            addresses: ignored.addresses,
            endpoints: ignored.endpoints,
        },
        faults: planned.faults.clone(),
    }
}
