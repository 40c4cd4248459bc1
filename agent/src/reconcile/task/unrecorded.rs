//! Pods in the kernel without a record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use trunkline_datapath::plan::{Hop, POD_TABLE, PodPlan, RouteKey, RouteTarget};

use crate::ipam::MigrationState;
use crate::plan::{Plan, PlannedPod, Pod, plan_pod};
use crate::reconcile::UnrecordedPod;

/// The plan that keeps a pod without a record running. Its neighbour entries stay, because its MAC
/// is unknown.
pub(super) fn unrecorded_plan(plan: &Plan, pod: &UnrecordedPod) -> PlannedPod {
    let holds = |address: &IpAddr| {
        plan.networks
            .iter()
            .find(|(_, network)| network.refused.is_none() && network.subnet_of(*address).is_some())
    };
    let network = pod.addresses.iter().find_map(holds).map(|(name, _)| name.clone()).unwrap_or_default();
    let as_pod = Pod {
        network,
        addresses: pod.addresses.clone(),
        host_ifname: pod.host_ifname.clone(),
        host_ifindex: pod.host_ifindex,
        mac: [0; 6],
        attachment: pod.attachment,
        // The extra prefixes were in the lost record.
        extra_prefixes: BTreeSet::new(),
        migration: MigrationState::Active,
        target_addresses: Vec::new(),
        is_virtual_machine: false,
    };
    match plan_pod(plan, &as_pod) {
        Ok(PlannedPod { kernel, originate }) => {
            PlannedPod { kernel: PodPlan { neighbours: pod.neighbours.clone(), ..kernel }, originate }
        }
        Err(_) => PlannedPod {
            kernel: PodPlan {
                host_ifname: pod.host_ifname.clone(),
                host_ifindex: pod.host_ifindex,
                routes: pod
                    .addresses
                    .iter()
                    .map(|address| {
                        let on_link = Hop::link(pod.host_ifindex);
                        let key = RouteKey { table: POD_TABLE, prefix: (*address).into() };
                        (key, RouteTarget::via(vec![on_link]))
                    })
                    .collect(),
                neighbours: pod.neighbours.clone(),
                ..PodPlan::default()
            },
            originate: BTreeMap::new(),
        },
    }
}
