//! The owner's nftables tables: NAT, marks and guard follow the plan and the pods, and are repaired
//! after changes by other programs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::topology::is_pods;
use super::{KernelError, Owner, Reason, RepairKind, Request};
use crate::netlink::events::Events;
use crate::netlink::objects::{self, GROUP};
use crate::nft::{self, NftError, nat, probes};
use crate::plan::{GuardPlan, Hop, KernelPlan, LINK_BITS, PodPlan, RETURN_RULE, RETURN_TABLE, Sysctl};
use crate::sysctl;

impl Owner {
    /// Whether the plan or the policies need a table.
    pub(super) fn has_tables(&self) -> bool {
        wants_tables(&self.plan) || self.policies.is_wanted() || self.guard.has_last_run()
    }

    /// Opens the listener, if it is not open. Called before a table is loaded, so no change is
    /// missed.
    pub(super) fn listen_to_tables(&mut self) {
        if self.listens {
            return;
        }
        let ports = self.guard.port().and_then(|guard| Ok([guard, self.policies.port()?]));
        match ports.and_then(Events::open_nftables) {
            Ok(events) => {
                self.nftables = Some(events);
                self.listens = true;
            }
            Err(error) => self.fault(
                Reason::Nftables,
                format!("nftables: {error}: a deleted table is not restored before the agent restarts"),
            ),
        }
    }

    /// Keeps the tables of the last run until the first plan: without manifests, or without an answer of
    /// the API server, this can last.
    pub(super) fn keep_last_run(&mut self) {
        self.keep_policies();
        if !self.guards {
            return;
        }
        // The listener is open before the tables are read, so no change is missed.
        self.listen_to_tables();
        if let Err(error) = self.guard.remember() {
            self.fault(Reason::Nftables, format!("the guard of the last run: {error}"));
        }
        self.report();
    }

    /// Changes the tables as a new plan requires. An unchanged table is not checked, because a
    /// check starts an `nft` process.
    pub(super) fn settle_tables(&mut self, plan: &KernelPlan) {
        let fresh = wants_tables(plan) && !wants_tables(&self.plan);
        if fresh {
            self.listen_to_tables();
        }
        // From now on, a notification reports each new NAT chain.
        if fresh && !self.translates {
            self.translates = nft::has_nat();
        }
        // The guard comes first: pods must not be reachable before it.
        let changes = plan.guard != self.plan.guard || self.keeps_own(plan) != self.keeps_own(&self.plan);
        if !self.planned || changes || self.guard_fault.is_some() {
            let applied = self.guard.apply(&self.guard_plan(plan), self.pods.values(), self.populated);
            self.note_guard(applied, false);
        }
        let unchanged = plan.nat == self.plan.nat
            && plan.translated == self.plan.translated
            && plan.alternate == self.plan.alternate
            && plan.unassigned == self.plan.unassigned;
        if !self.planned || !unchanged {
            match self.nat.apply(nat::render(plan, self.translates).as_deref()) {
                Ok(changed) => self.changed += usize::from(changed),
                Err(error) => self.fault(Reason::Nftables, error),
            }
        }
        if !self.planned || plan.probed != self.plan.probed {
            match self.probes.apply(probes::render(plan).as_deref()) {
                Ok(changed) => self.changed += usize::from(changed),
                Err(error) => self.fault(Reason::Nftables, error),
            }
        }
    }

    /// The guard's parameters. Where this or another program translates addresses, the node's own packets
    /// keep theirs.
    fn guard_plan(&self, plan: &KernelPlan) -> GuardPlan {
        GuardPlan { keeps_own: self.keeps_own(plan), ..plan.guard.clone() }
    }

    fn keeps_own(&self, plan: &KernelPlan) -> bool {
        plan.guard.keeps_own || self.translates || !plan.nat.is_empty()
    }

    /// Loads the marks, and the guard's rules about the node's own packets: another program has created
    /// a NAT chain, so connections can be translated from now on.
    pub(super) fn follow_translation(&mut self) {
        if std::mem::replace(&mut self.translates, true) {
            return;
        }
        match self.nat.apply(nat::render(&self.plan, true).as_deref()) {
            Ok(changed) => self.changed += usize::from(changed),
            Err(error) => self.fault(Reason::Nftables, error),
        }
        if self.planned {
            let applied = self.guard.apply(&self.guard_plan(&self.plan), self.pods.values(), self.populated);
            self.note_guard(applied, false);
        }
    }

    /// Compares the tables after a change by another program or by this thread.
    pub(super) fn repair_tables(&mut self) {
        if !self.planned {
            let restored = self.guard.restore();
            return self.note_guard(restored, true);
        }
        let text = nat::render(&self.plan, self.translates);
        match self.nat.apply(text.as_deref()) {
            Ok(true) => {
                tracing::info!("another program changed the NAT table: restored");
                self.repaired(RepairKind::Table, 1, "inet trunkline");
            }
            Ok(false) => {}
            Err(error) => self.fault(Reason::Nftables, error),
        }
        match self.probes.apply(probes::render(&self.plan).as_deref()) {
            Ok(true) => self.repaired(RepairKind::Table, 1, "netdev trunkline-probes"),
            Ok(false) => {}
            Err(error) => self.fault(Reason::Nftables, error),
        }
        if !self.arp_senders.is_empty() {
            self.write_arp_senders(true);
        }
        let repaired = self.guard.repair(&self.guard_plan(&self.plan), self.pods.values(), self.populated);
        self.note_guard(repaired, true);
    }

    pub(super) fn note_guard(&mut self, applied: Result<bool, NftError>, repair: bool) {
        match applied {
            Ok(changed) => {
                self.guard_fault = None;
                self.changed += usize::from(changed && !repair);
                if changed && repair {
                    tracing::warn!("another program changed the guard's tables: restored");
                    self.repaired(RepairKind::Table, 1, "the guard's");
                    self.guard_repairs += 1;
                }
            }
            Err(error) => {
                self.guard_fault = Some(error.to_string());
                self.fault(Reason::Nftables, error);
            }
        }
    }

    /// Refuses new pods while the guard is enabled and not installed.
    pub(super) fn need_guard(&mut self) -> Result<(), KernelError> {
        if self.guard_missing().is_none() {
            return Ok(());
        }
        // The cause may be gone now: nft was installed, or a module was loaded.
        let applied = self.guard.apply(&self.guard_plan(&self.plan), self.pods.values(), self.populated);
        self.note_guard(applied, false);
        self.guard_missing().map_or(Ok(()), Err)
    }

    /// The error while the guard is enabled and not installed.
    pub(super) fn guard_missing(&self) -> Option<KernelError> {
        if !self.plan.guard.enabled || self.guard.is_in_force() {
            return None;
        }
        let reason = self.guard_fault.clone();
        Some(KernelError::Guard(reason.unwrap_or_else(|| "its rules are not loaded".to_owned())))
    }

    /// Configures a pod's device and the guard before a route to the pod is installed.
    pub(super) fn guard_pod(&mut self, pod: &PodPlan) {
        let has_proxies = pod.proxies.iter().any(|proxy| proxy.ifindex == pod.host_ifindex);
        if let Err(error) = self.pod_settings.apply(&pod.host_ifname, has_proxies) {
            self.fault(Reason::Sysctl, error);
        }
        let group = self.topology.links.get(&pod.host_ifindex).map(|link| link.info.group);
        if group.is_some_and(|group| group != GROUP) {
            self.set_group(pod.host_ifindex);
        }
        self.open_reverse_path(None, pod);
        self.open_route_localnet(pod);
        if has_prefixes(pod) {
            let added = self.guard.add_pod(pod);
            self.note_pod_guarded(added);
        }
    }

    /// Writes a pod's addresses to the guard's sets, after the answer to its ADD, because the pod's
    /// processes do not run before the answer. Until the addresses are in the sets, the guard looks
    /// up the pod's route. Extra prefixes have no route, so the addresses of a pod with extra
    /// prefixes are in the sets before the answer.
    pub(super) fn add_pod_addresses(&mut self, host_ifname: &str) {
        let Some(pod) = self.pods.get(host_ifname).filter(|pod| !has_prefixes(pod)) else { return };
        let added = self.guard.add_pod(pod);
        self.note_pod_guarded(added);
        self.report();
    }

    fn note_pod_guarded(&mut self, outcome: Result<(), NftError>) {
        if let Err(error) = outcome {
            self.guard_fault = Some(error.to_string());
            self.fault(Reason::Nftables, error);
        }
    }

    /// Changes the extra source prefixes of a pod. The pod's routes stay.
    pub(super) fn change_sources(&mut self, old: &PodPlan, new: &PodPlan) {
        self.open_reverse_path(Some(old), new);
        let changed = self.guard.change_pod(old, new);
        self.note_pod_guarded(changed);
    }

    /// Lets packets of a pod reach 127.0.0.0/8 after a translation on this node, if the plan has that.
    fn open_route_localnet(&mut self, pod: &PodPlan) {
        if !self.plan.route_localnet {
            return;
        }
        let path = format!("net/ipv4/conf/{}/route_localnet", pod.host_ifname);
        if let Err(error) = sysctl::apply(&path, &Sysctl::IfThere("1")) {
            self.fault(Reason::Sysctl, error);
        }
    }

    /// Does the same for all pods that were added before the plan.
    pub(super) fn open_route_localnet_of_all(&mut self) {
        let pods: Vec<PodPlan> = self.pods.values().cloned().collect();
        pods.iter().for_each(|pod| self.open_route_localnet(pod));
    }

    /// The kernel's check of IPv4 sources has no exceptions. So it is off for a pod with extra
    /// prefixes, and the guard checks the sources.
    fn open_reverse_path(&mut self, old: Option<&PodPlan>, new: &PodPlan) {
        let wanted = match (old.is_some_and(has_prefixes), has_prefixes(new)) {
            (_, true) => Sysctl::NoReversePath,
            (true, false) => Sysctl::Exactly("1"),
            (false, false) => return,
        };
        if let Err(error) = sysctl::apply(&reverse_path(new), &wanted) {
            self.fault(Reason::Sysctl, error);
        }
    }

    /// Restores `rp_filter` after a write for one link or for `all`. udev writes it for each new
    /// link, shortly after the link was created.
    pub(super) fn repair_reverse_path(&mut self, index: Option<u32>) {
        let is_open =
            |pod: &&PodPlan| index.is_none_or(|index| pod.host_ifindex == index) && has_prefixes(pod);
        // A fault of `all` is reported once.
        let Some(path) = self.pods.values().find(is_open).map(reverse_path) else { return };
        match sysctl::apply(&path, &Sysctl::NoReversePath) {
            Ok(changed) => self.repaired(RepairKind::Sysctl, u64::from(changed), path),
            Err(error) => self.fault(Reason::Sysctl, error),
        }
    }

    /// Removes a pod from the guard's sets.
    pub(super) fn unguard_pod(&mut self, pod: &PodPlan) {
        if let Err(error) = self.guard.remove_pod(pod) {
            self.fault(Reason::Nftables, error);
        }
    }

    /// Sets the device group of a pod's device, which the guard's rules match.
    pub(super) fn set_group(&mut self, index: u32) {
        self.batch.set_group(index);
        self.requests.push(Request::Link(index));
        if let Some(link) = self.topology.links.get_mut(&index) {
            link.info.group = GROUP;
        }
    }

    /// Restores the group of a pod's device that is up: an earlier version created it, or another
    /// program changed the group.
    pub(super) fn repair_group(&mut self, info: &objects::LinkInfo) {
        if is_pods(info) && info.kind.as_deref() == Some("veth") && info.is_up() && info.group != GROUP {
            tracing::info!(link = info.name, "a pod's device was not in its group: restored");
            let is_known = self.pod_names.contains_key(&info.index);
            self.repaired(RepairKind::Link, u64::from(is_known), format_args!("{}: its group", info.name));
            self.set_group(info.index);
        }
    }

    /// Keeps default routes from router advertisements on their links. Called before this host
    /// forwards IPv6.
    pub(super) fn keep_router_advertisements(&self) {
        let learned = |hop: &Hop| match hop.gateway {
            Some(IpAddr::V6(gateway)) => gateway.is_unicast_link_local(),
            _ => false,
        };
        let links = self.gateways.iter().filter(|(_, hop)| learned(hop)).filter_map(|(_, hop)| hop.ifindex);
        let names = links.filter_map(|index| Some(self.topology.links.get(&index)?.info.name.as_str()));
        sysctl::keep_router_advertisements(names);
    }

    /// The numbers of links with a return table, read from the rules.
    pub(super) fn link_numbers(&self) -> BTreeMap<u32, u32> {
        let own = self.found_rules.iter().chain(&self.rules).filter(|rule| rule.priority == RETURN_RULE);
        own.filter_map(|rule| {
            let number = rule.mark?.value >> LINK_BITS.trailing_zeros();
            Some((rule.table.checked_sub(RETURN_TABLE)?, number))
        })
        .collect()
    }
}

/// Whether a plan needs a table.
fn wants_tables(plan: &KernelPlan) -> bool {
    plan.guard.enabled
        || nat::render(plan, true).is_some()
        || !plan.probed.is_empty()
        || !plan.arp_senders.is_empty()
}

/// Whether a pod may send from extra IPv4 prefixes.
fn has_prefixes(pod: &PodPlan) -> bool {
    pod.sources.iter().any(|prefix| prefix.addr().is_ipv4())
}

fn reverse_path(pod: &PodPlan) -> String {
    format!("net/ipv4/conf/{}/rp_filter", pod.host_ifname)
}
