//! Remote clusters in the agent's status.

use std::collections::BTreeMap;

use trunkline_api::control::{IgnoredParts, RemoteClusterStatus, RemoteSubnetStatus};

use crate::plan::remote::RemoteClusterPlan;

pub(super) fn remote_clusters(planned: &BTreeMap<String, RemoteClusterPlan>) -> Vec<RemoteClusterStatus> {
    planned.iter().map(|(name, planned)| status(name, planned)).collect()
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
