//! Handling of notifications: the owner checks the one object that each notification names.

use std::net::IpAddr;
use std::sync::Arc;

use netlink_packet_core::NLM_F_REPLACE;

use super::super::scan;
use super::super::topology::is_pods;
use super::{KernelError, Owner, Reason, RepairKind, Request};
use crate::naming::pair_name;
use crate::netlink::Batch;
use crate::netlink::events::Events;
use crate::netlink::objects::{self, PROTOCOL};
use crate::netlink::{message, tc, vxlan};
use crate::plan::{RouteKey, RouteTarget};

/// A parsed notification.
enum KernelNotification {
    Link(objects::LinkInfo),
    LinkGone(u32),
    Address(objects::AddressInfo),
    AddressGone(objects::AddressInfo),
    /// A Trunkline route was deleted, or a route was replaced; or a default route was added or
    /// deleted.
    Route {
        route: objects::RouteInfo,
        new: bool,
        replaces: bool,
    },
    RuleGone(objects::RuleInfo),
    NeighbourGone(u32, IpAddr),
    /// An FDB entry of this link was added or deleted.
    Forwarding(u32),
    /// A qdisc or a filter of this link was added, deleted or changed.
    Queue(u32),
    /// `rp_filter` was written for this link, or for all links.
    ReversePath(Option<u32>),
}

impl Owner {
    pub(super) fn handle_notifications(&mut self, events: &Events) {
        let notices: Vec<KernelNotification> = events
            .messages()
            .filter_map(|message| match message.kind {
                libc::RTM_NEWLINK => objects::read_link(message.body).map(KernelNotification::Link),
                libc::RTM_DELLINK => {
                    objects::read_link(message.body).map(|link| KernelNotification::LinkGone(link.index))
                }
                libc::RTM_NEWADDR => objects::read_address(message.body).map(KernelNotification::Address),
                libc::RTM_DELADDR => objects::read_address(message.body).map(KernelNotification::AddressGone),
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
                    let new = message.kind == libc::RTM_NEWROUTE;
                    let replaces = message.flags & NLM_F_REPLACE != 0;
                    objects::read_route(message.body).map(|route| KernelNotification::Route {
                        route,
                        new,
                        replaces,
                    })
                }
                libc::RTM_DELRULE => objects::read_rule(message.body).map(KernelNotification::RuleGone),
                libc::RTM_NEWQDISC | libc::RTM_DELQDISC | libc::RTM_NEWTFILTER | libc::RTM_DELTFILTER => {
                    tc::read_index(message.body).map(KernelNotification::Queue)
                }
                libc::RTM_NEWNETCONF => {
                    message::read_reverse_path(message.body).map(KernelNotification::ReversePath)
                }
                libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => match vxlan::read_fdb(message.body) {
                    Some(entry) => Some(KernelNotification::Forwarding(entry.ifindex)),
                    None if message.kind == libc::RTM_DELNEIGH => {
                        objects::read_neighbour_address(message.body)
                            .map(|(index, address)| KernelNotification::NeighbourGone(index, address))
                    }
                    None => None,
                },
                _ => None,
            })
            .collect();
        let mut forwarding = false;
        for notice in notices {
            let result = match notice {
                KernelNotification::Forwarding(index) => {
                    // The kernel reports the agent's changes too; the check then finds no
                    // difference.
                    forwarding |= self
                        .topology
                        .links
                        .get(&index)
                        .is_some_and(|link| self.topology.is_planned(&link.info));
                    Ok(())
                }
                KernelNotification::ReversePath(index) => {
                    self.repair_reverse_path(index);
                    Ok(())
                }
                KernelNotification::Queue(index) => {
                    self.limits_touched(index);
                    Ok(())
                }
                KernelNotification::NeighbourGone(index, address) => {
                    self.handle_neighbour_gone(index, address);
                    Ok(())
                }
                KernelNotification::Link(info) => match self.as_it_is_now(info) {
                    Some(info) => self.handle_link(info),
                    None => Ok(()),
                },
                KernelNotification::LinkGone(index) => {
                    self.handle_link_gone(index).and_then(|()| self.settle_links())
                }
                KernelNotification::Address(address) => self.handle_address(&address, true),
                KernelNotification::AddressGone(address) => self.handle_address(&address, false),
                KernelNotification::Route { route, new, replaces } => {
                    self.handle_gateway_route(&route, new, replaces);
                    self.handle_route(&route)
                }
                KernelNotification::RuleGone(rule) => {
                    if rule.protocol == PROTOCOL && self.rules.contains(&rule.rule) {
                        tracing::info!(
                            priority = rule.rule.priority,
                            "another program deleted a rule: restored"
                        );
                        self.repaired(RepairKind::Rule, 1, format_args!("priority {}", rule.rule.priority));
                        self.batch.add_rule(&rule.rule);
                        self.requests.push(Request::AddRule(rule.rule));
                    }
                    Ok(())
                }
            };
            if let Err(error) = result.and_then(|()| self.flush().map(|_| ())) {
                self.fault(Reason::of(&error), error.to_string());
            }
        }
        if forwarding {
            self.repair_forwarding();
        }
    }

    /// Restores a deleted neighbour entry. No action if its link is down or deleted, or if the
    /// entry is no longer wanted. The notification does not show the origin of the request.
    fn handle_neighbour_gone(&mut self, index: u32, address: IpAddr) {
        let of_pod = self.pod_names.get(&index).and_then(|name| self.pods.get(name));
        let mut wanted = of_pod.map_or(&self.plan.neighbours, |pod| &pod.neighbours).iter();
        let Some(neighbour) =
            wanted.find(|wanted| (wanted.ifindex, wanted.address) == (index, address)).copied()
        else {
            return;
        };
        if self.is_up_now(index) == Some(true) {
            tracing::info!(%address, "another program deleted a neighbour entry: restored");
            self.repaired(RepairKind::Neighbour, 1, format_args!("{address} on {}", self.link_name(index)));
            self.put_neighbour(&neighbour);
        }
    }

    /// Notifies the attach flow, which repairs pods' limits. They are not part of the plan.
    fn limits_touched(&self, index: u32) {
        let Some(link) = self.topology.links.get(&index).filter(|link| is_pods(&link.info)) else { return };
        let name = &link.info.name;
        let _ = self.channels.limits_touched.send(pair_name(name).unwrap_or_else(|| name.clone()));
    }

    fn repair_forwarding(&mut self) {
        match self.settle_fdb() {
            Ok(0) => {}
            Ok(changed) => {
                tracing::info!(entries = changed, "another program changed forwarding entries: restored");
                self.repaired(RepairKind::Forwarding, changed as u64, "of the tunnels");
                self.forwarding.repairs += changed as u64;
            }
            Err(error) => self.fault(Reason::of(&error), error.to_string()),
        }
    }

    /// Handles default routes that other programs added or deleted. A replaced route is not in the
    /// notification, so the main table is listed again.
    fn handle_gateway_route(&mut self, route: &objects::RouteInfo, new: bool, replaces: bool) {
        let hops: Vec<_> = scan::gateways(route).collect();
        if route.protocol == PROTOCOL || hops.is_empty() {
            return;
        }
        let before = self.gateways.clone();
        if new && replaces {
            let family = hops[0].0;
            let listed = self.connection.list(|batch| batch.dump_main_routes(family), objects::read_route);
            if let Ok(routes) = listed {
                self.gateways.retain(|(of, _)| *of != family);
                self.gateways.extend(routes.iter().flat_map(scan::gateways));
            }
        } else if new {
            self.gateways.extend(hops);
        } else {
            self.gateways.retain(|gateway| !hops.contains(gateway));
        }
        if self.gateways != before {
            self.host_changed();
        }
    }

    /// Removes the gateways of a link that is set down: the kernel deletes its IPv4 routes without
    /// a notification.
    fn forget_gateways(&mut self, index: u32) {
        let before = self.gateways.len();
        self.gateways.retain(|(_, hop)| hop.ifindex != Some(index));
        if self.gateways.len() != before {
            self.host_changed();
        }
    }

    /// Handles a deleted Trunkline route, or a foreign route that replaced a Trunkline route with
    /// the same key.
    fn handle_route(&mut self, route: &objects::RouteInfo) -> Result<(), KernelError> {
        let key = route.key;
        if route.protocol != PROTOCOL {
            self.handle_reaching_route(&key.prefix);
        }
        if route.protocol != PROTOCOL && key.prefix.prefix_len() == 0 {
            let before = self.default_link;
            if self.default_link() != before {
                self.host_changed();
            }
        }
        if route.metric != 0 {
            return Ok(()); // not a Trunkline route, because these have the family's default metric
        }
        if !self.routes.is_installed(&key) {
            self.found.remove(&key);
            return Ok(());
        }
        self.broken.insert(key);
        Ok(())
    }

    /// Repairs routes that others changed. Not immediately: for a link that goes down or is
    /// deleted, the kernel reports deleted IPv6 routes before it reports the link.
    pub(super) fn settle_broken(&mut self) {
        for key in std::mem::take(&mut self.broken) {
            let Some(installed) = self.routes.take_installed(&key) else {
                continue; // deleted with its link, and restored with it
            };
            if let RouteTarget::Via(hops) = &*installed
                && !hops.iter().filter_map(|hop| hop.ifindex).any(|index| self.is_up_now(index) == Some(true))
            {
                continue; // as above, but the link's notification is still pending
            }
            let Some(entry) = self.routes.get(&key) else { continue };
            let wanted = Arc::clone(entry.wanted());
            self.repaired(RepairKind::Route, 1, key);
            tracing::info!(prefix = %key.prefix, table = key.table, "another program changed a route: restored");
            if let Err(error) = self.settle_to(key, Some(wanted)) {
                self.fault(Reason::of(&error), error.to_string());
            }
        }
        if let Err(error) = self.flush() {
            self.fault(Reason::of(&error), error.to_string());
        }
    }

    /// Whether a link is up, read from the kernel and not from the owner's record. When a namespace
    /// is deleted, the kernel reports routes, addresses and links one by one, so a recorded link
    /// may already be deleted. None: the link is deleted.
    pub(super) fn is_up_now(&mut self, index: u32) -> Option<bool> {
        self.link_now(index).map(|link| link.is_up())
    }

    fn link_now(&mut self, index: u32) -> Option<objects::LinkInfo> {
        let mut batch = Batch::new();
        batch.get_link_at(index);
        let outcome = self.connection.run(&mut batch).ok()?;
        outcome.replies.iter().find_map(|(_, _, body)| objects::read_link(body))
    }

    /// The link of a notification; for a link of the plan, its current state. Kernels before 6.2
    /// report each step of a creation by the agent like a change by another program. When the
    /// notification is read, the link already has its name and is up.
    fn as_it_is_now(&mut self, info: objects::LinkInfo) -> Option<objects::LinkInfo> {
        if self.topology.is_planned(&info) { self.link_now(info.index) } else { Some(info) }
    }

    pub(super) fn handle_link(&mut self, info: objects::LinkInfo) -> Result<(), KernelError> {
        let index = info.index;
        let of_pod = is_pods(&info);
        let before = self.topology.link(index);
        let state = self.topology.links.entry(index).or_default();
        let (was_up, was_usable) = (state.info.is_up(), state.is_usable());
        let is_up = info.is_up();
        let changed = state.info != info;
        state.info = info;
        let is_usable = state.is_usable();
        if of_pod {
            let info = state.info.clone();
            self.repair_group(&info);
            if was_up && !is_up && !self.pod_names.contains_key(&index) {
                self.limits_touched(index);
            }
            if was_up && !is_up && self.pod_names.contains_key(&index) && self.is_up_now(index) == Some(false)
            {
                tracing::info!(ifindex = index, "another program set a pod's link down: restored");
                self.repaired(RepairKind::Link, 1, format_args!("{} set down", self.link_name(index)));
                self.repair_device(index);
                self.flush()?;
                self.forget_installed(index);
                self.settle_all()?;
            }
            if !was_usable && is_usable {
                self.restore_proxies(index)?;
            }
            return Ok(());
        }
        if before != self.topology.link(index) {
            self.host_changed();
        }
        if was_up && !is_up {
            self.forget_gateways(index);
        }
        if was_up != is_up || was_usable != is_usable {
            self.farther.clear();
            self.forget_installed(index);
            if is_usable {
                self.restore_neighbours(index);
            }
            self.settle_addresses();
            self.settle_all()?;
        }
        if changed { self.settle_links() } else { Ok(()) }
    }

    pub(super) fn handle_link_gone(&mut self, index: u32) -> Result<(), KernelError> {
        if let Some(name) = self.pod_names.get(&index).cloned() {
            self.topology.links.remove(&index);
            self.device_gone(&name);
            return Ok(());
        }
        self.limits_touched(index);
        let Some(link) = self.topology.links.remove(&index) else { return Ok(()) };
        if is_pods(&link.info) {
            return Ok(());
        }
        self.topology.planned.remove(&index);
        self.forget_gateways(index);
        self.host_changed();
        self.farther.clear();
        self.forget_installed(index);
        self.settle_all()
    }

    fn handle_address(&mut self, address: &objects::AddressInfo, there: bool) -> Result<(), KernelError> {
        let (index, prefix) = (address.ifindex, address.prefix);
        let Some(link) = self.topology.links.get_mut(&index) else { return Ok(()) };
        if link.own.contains(&prefix.addr()) || scan::is_own(address, &link.info) {
            self.handle_own_address(index, prefix, there);
            return Ok(());
        }
        let known = link.addresses.contains(&prefix);
        if there == known {
            return Ok(());
        }
        if there {
            link.addresses.push(prefix);
        } else {
            link.addresses.retain(|known| *known != prefix);
        }
        if is_pods(&link.info) {
            return Ok(()); // Trunkline adds no address to a pod's link, and needs none
        }
        self.host_changed();
        self.farther.clear();
        self.forget_installed(index);
        // The plan may want an address that another program had.
        self.settle_addresses();
        self.settle_all()
    }

    /// Adds the requests that set a pod's host interface up again.
    pub(super) fn repair_device(&mut self, index: u32) {
        let Some(pod) = self.pod_names.get(&index).and_then(|name| self.pods.get(name)) else { return };
        let Some(link) = self.topology.links.get_mut(&index).filter(|link| !link.info.is_up()) else {
            return;
        };
        self.batch.set_up(index);
        self.requests.push(Request::Link(index));
        // Notifications of the agent's requests are filtered, so the new state is recorded here.
        // The kernel deleted all neighbour entries when the link went down.
        link.info.flags |= libc::IFF_UP as u32;
        let (neighbours, proxies) = (pod.neighbours.clone(), pod.proxies.clone());
        neighbours.iter().for_each(|neighbour| self.put_neighbour(neighbour));
        proxies.iter().filter(|proxy| proxy.ifindex == index).for_each(|proxy| self.put_proxy(proxy));
    }

    /// Removes a pod with a deleted device and its routes from the record.
    pub(super) fn device_gone(&mut self, host_ifname: &str) {
        let Some(pod) = self.pods.remove(host_ifname) else { return };
        self.pod_names.remove(&pod.host_ifindex);
        self.unguard_pod(&pod);
        pod.proxies.iter().for_each(|proxy| self.delete_proxy(proxy));
        for (key, target) in &pod.routes {
            if self.routes.get(key).is_some_and(|entry| **entry.wanted() == *target) {
                self.routes.remove(key);
            }
        }
        let _ = self.channels.device_gone.send(host_ifname.to_owned());
    }

    pub(super) fn link_name(&self, index: u32) -> String {
        self.topology.links.get(&index).map_or_else(|| format!("link {index}"), |link| link.info.name.clone())
    }

    pub(super) fn host_changed(&self) {
        self.channels.host_changed.send_modify(|generation| *generation += 1);
    }

    /// Marks routes over a link as not installed, because the kernel may have deleted them. The
    /// next [`Owner::settle_all`] installs them again.
    fn forget_installed(&mut self, index: u32) {
        self.routes.forget_installed(|target| match target {
            RouteTarget::Via(hops) => hops.iter().any(|hop| hop.ifindex == Some(index)),
            RouteTarget::Blackhole | RouteTarget::Unreachable | RouteTarget::Throw => false,
        });
    }

    /// Settles every route that is not installed, or whose next hop may have changed.
    fn settle_all(&mut self) -> Result<(), KernelError> {
        let open: Vec<RouteKey> = self
            .routes
            .iter()
            .filter(|(_, entry)| match (entry.installed(), &**entry.wanted()) {
                (None, _) => true,
                (_, RouteTarget::Via(hops)) => hops.iter().any(|hop| hop.gateway.is_some()),
                _ => false,
            })
            .map(|(key, _)| *key)
            .collect();
        for key in open {
            if let Some(entry) = self.routes.get(&key) {
                let wanted = Arc::clone(entry.wanted());
                self.settle_to(key, Some(wanted))?;
            }
        }
        self.flush()?;
        Ok(())
    }
}
