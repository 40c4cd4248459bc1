//! The reconcile task's fast path for service addresses and anycast addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_bgp::rib::Origination;

use super::{Prefixes, Task};
use crate::reconcile::services::PrefixSource;
use crate::services::{AppliedPrefixes, ServicePrefixes};

impl Task {
    /// Originates and withdraws prefixes of service addresses.
    pub(super) async fn apply_services(&mut self, prefixes: ServicePrefixes) -> AppliedPrefixes {
        let ServicePrefixes { changes, ready } = prefixes;
        let added = changes.iter().filter_map(|(_, origination)| origination.as_ref());
        let tags = added.flat_map(|origination: &Origination| origination.tags.as_slice());
        if self.services.tags.use_tags(tags) {
            // The first prefix of an advertisement: the peers' policies need its rules before.
            self.replan().await;
        }
        self.send_prefixes(PrefixSource::Services, changes).await;
        if ready && self.services_until.is_some() {
            self.services_ready().await;
        }
        self.applied_prefixes()
    }

    /// Originates and withdraws anycast addresses.
    pub(super) async fn apply_anycast(&mut self, prefixes: ServicePrefixes) -> AppliedPrefixes {
        let ServicePrefixes { changes, ready } = prefixes;
        let objects = self.plan.iter().flat_map(|plan| plan.anycast.objects.values());
        let planned: BTreeSet<IpAddr> = objects.flat_map(|object| &object.addresses).copied().collect();
        let mut withdrawn = changes.iter().filter(|(_, origination)| origination.is_none());
        // An address that is no longer in the plan leaves the kernel now.
        self.stale |= withdrawn.any(|(prefix, _)| !planned.contains(&prefix.addr()));
        self.send_prefixes(PrefixSource::Anycast, changes).await;
        if ready && self.anycast_until.is_some() {
            self.anycast_ready().await;
        }
        self.applied_prefixes()
    }

    /// Answers for these addresses of L2 pools, and for no others. Returns those with a proxy entry,
    /// with the ifindex of its link.
    pub(super) async fn hold_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeMap<IpAddr, u32> {
        if self.held_addresses != addresses {
            self.held_addresses = addresses;
            self.replan().await;
        }
        let proxies = self.plan.iter().flat_map(|plan| &plan.kernel.proxies);
        proxies.map(|proxy| (proxy.address, proxy.ifindex)).collect()
    }

    /// Takes over changes, and sends the difference to the speaker.
    async fn send_prefixes(&mut self, source: PrefixSource, changes: Vec<(IpNet, Option<Origination>)>) {
        let mut others: BTreeSet<IpNet> =
            self.planned.values().flat_map(|pod| pod.originate.keys()).copied().collect();
        let plan = self.plan.as_deref();
        others.extend(plan.and_then(|plan| plan.bgp.as_ref()).iter().flat_map(|bgp| bgp.originate.keys()));
        let none = BTreeSet::new();
        let known = plan.map_or(&none, |plan| &plan.service_tags);
        let changes = self.services.take(source, changes, known, &others);
        let withdraws = self.stage.withdraws();
        if let Some(running) = self.running.as_mut().filter(|_| !withdraws) {
            let applied = &mut running.applied;
            if applied.remove(&changes.remove).await.is_err() || applied.add(&changes.add).await.is_err() {
                self.speaker_fault = Some("the BGP speaker has ended".to_owned());
            }
        }
    }

    /// Withdraws the prefixes that a pod no longer has, and originates its new ones. The prefix of a
    /// service address returns instead of the pod's.
    pub(super) async fn change_prefixes(&mut self, mut gone: BTreeSet<IpNet>, mut new: Prefixes) {
        if let Some(plan) = self.plan.as_ref().filter(|_| !self.stage.withdraws()) {
            new.extend(self.services.returning(&gone, &plan.service_tags));
        }
        gone.retain(|prefix| !new.contains_key(prefix));
        if let Some(running) = &mut self.running {
            let applied = &mut running.applied;
            if applied.remove(&gone).await.is_err() || applied.add(&new).await.is_err() {
                self.speaker_fault = Some("the BGP speaker has ended".to_owned());
            }
        }
    }

    fn applied_prefixes(&self) -> AppliedPrefixes {
        let speaker = self.running.as_ref().filter(|_| !self.stage.withdraws());
        AppliedPrefixes { speaker: speaker.map(|running| running.applied.handle.clone()) }
    }

    /// The first prefixes of service addresses are known, or the wait for them is over.
    pub(super) async fn services_ready(&mut self) {
        self.services_until = None;
        self.drive_speaker().await;
    }

    /// The first anycast addresses are known, or the wait for them is over.
    pub(super) async fn anycast_ready(&mut self) {
        self.anycast_until = None;
        self.drive_speaker().await;
    }
}
