//! The reconcile task's fast path for live migrations of virtual machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Prefixes, Task};
use crate::ipam::MigrationState;
use crate::plan::{PlannedPod, plan_pod};

impl Task {
    /// Addresses with a part in a live migration, each with its network, and the addresses of the
    /// target's node.
    pub(super) fn migrating(&self) -> BTreeMap<(String, IpAddr), BTreeSet<IpAddr>> {
        let mut migrating = BTreeMap::<_, BTreeSet<IpAddr>>::new();
        for pod in self.pods.values().filter(|pod| !pod.migration.is_active()) {
            for address in &pod.addresses {
                let targets = migrating.entry((pod.network.clone(), *address)).or_default();
                targets.extend(pod.target_addresses.iter().copied());
            }
        }
        migrating
    }

    /// Sets a pod's part in a live migration. Returns the index of its host interface.
    pub(super) async fn migrate(
        &mut self,
        host_ifname: &str,
        state: MigrationState,
        target_addresses: Vec<IpAddr>,
    ) -> Option<u32> {
        let pod = self.pods.get_mut(host_ifname)?;
        let ifindex = pod.host_ifindex;
        let before = std::mem::replace(&mut pod.migration, state);
        self.stale |= pod.target_addresses != target_addresses;
        pod.target_addresses = target_addresses;
        if before == state {
            return Some(ifindex);
        }
        let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
        tracing::info!(
            device = host_ifname,
            addresses = addresses.join(","),
            ?before,
            ?state,
            "live migration"
        );
        let pod = pod.clone();
        // The rule to the fabric comes before the pod's route leaves.
        match state {
            MigrationState::Departing | MigrationState::Inactive if before.is_active() => self.replan().await,
            _ => self.stale = true,
        }
        if self.broken.contains(host_ifname) || !self.planned.contains_key(host_ifname) {
            return Some(ifindex);
        }
        if let Some(Ok(planned)) = self.plan.as_ref().map(|plan| plan_pod(plan, &pod)) {
            self.change_pod(host_ifname, planned).await;
        }
        Some(ifindex)
    }

    /// Replaces a pod's plan: first in the kernel, then in the speaker. So a pod has its route before
    /// routers send packets, and packets that arrive after the withdrawal leave again.
    async fn change_pod(&mut self, host_ifname: &str, planned: PlannedPod) {
        if let Err(error) = self.kernel.add_pod(planned.kernel.clone()).await {
            tracing::error!(device = host_ifname, %error, "a pod's routes could not be changed");
        }
        let before = self.planned.insert(host_ifname.to_owned(), planned.clone()).unwrap_or_default();
        self.service_facts.remove_pod(host_ifname, &before.kernel);
        self.service_facts.add_pod(host_ifname, &planned.kernel);
        let is_gone = |prefix: &IpNet| !planned.originate.contains_key(prefix);
        let gone = before.originate.into_keys().filter(is_gone).collect();
        let new = if self.stage.withdraws() { Prefixes::new() } else { planned.originate };
        self.change_prefixes(gone, new).await;
    }
}
