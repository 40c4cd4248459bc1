//! The facts of an address: what [`decide`] needs, from all state of the engine.
//!
//! [`decide`]: crate::services::decide::decide

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::WithheldReason;
use trunkline_api::service::{AddressKind, PortKey, TrafficPolicy};

use super::{AddressRow, Engine, State};
use crate::services::advertisements::{self, Applied, Names};
use crate::services::cache::{CachedAddress, CachedMember, CachedPort};
use crate::services::decide::{MemberFacts, MemberRules, Stale};
use crate::services::rows::{Endpoints, ServiceRow};
use crate::services::{EndpointCondition, LocalEndpoint, NodeInput, PortRules, ProxyHealth, ServiceKey};

/// Lists of endpoints on this node are written to the cache for each port until they have this
/// many entries. Further ports refer to a list, which an earlier version does not read.
const REPEATED: usize = 256;

/// One port of a member, with what the cache needs.
pub(in crate::services) struct Member {
    pub(in crate::services) key: ServiceKey,
    pub(in crate::services) kind: AddressKind,
    pub(in crate::services) port: PortKey,
    /// Ports of one Service with the same number have the same endpoints.
    group: usize,
    local: Arc<[LocalEndpoint]>,
    pub(in crate::services) facts: MemberFacts,
}

/// All facts of an address.
pub(in crate::services) struct Collected {
    pub(in crate::services) members: Vec<Member>,
    pub(super) selection: Result<(), WithheldReason>,
    /// Whether the address is of an L2 pool.
    pub(super) is_l2: bool,
    pub(super) applied: Applied,
    pub(in crate::services) stale: Stale,
    /// Ready endpoints on this node.
    pub(super) weight: u32,
    /// The next time at which the facts change by themselves.
    pub(super) wakes_at: Option<Instant>,
}

impl Engine {
    /// The last run's state of an address, until everything is known.
    pub(in crate::services) fn former(&self, address: &IpAddr) -> Option<&CachedAddress> {
        self.former.get(address).filter(|_| !self.known)
    }

    /// The facts of an address now, for views.
    pub(in crate::services) fn collect_now(
        &self,
        address: IpAddr,
        row: &AddressRow,
        now: Instant,
    ) -> Collected {
        let mut collected = match self.former(&address) {
            Some(cached) => self.collect_former(cached, row),
            None => self.collect(address, row, now),
        };
        for member in &mut collected.members {
            member.facts.rules = self.rules_of(address, member.port, row, now);
        }
        collected
    }

    /// The Services of an address that are Trunkline's.
    pub(in crate::services) fn ours(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&ServiceKey, AddressKind, &ServiceRow)> {
        let members = self.rows.members(&address).iter().filter(|(_, kind)| self.kinds.contains(kind));
        members.filter_map(|(key, kind)| {
            let service = self.rows.service(key)?;
            let is_ours = *kind != AddressKind::LoadBalancer || service.is_ours(&self.settings.class);
            is_ours.then_some((key, *kind, service))
        })
    }

    /// The facts of an address by the rows.
    pub(super) fn collect(&self, address: IpAddr, row: &AddressRow, now: Instant) -> Collected {
        let mut collected = Collected::nothing();
        let (mut names, mut reason, mut ready_here) = (BTreeSet::new(), None, BTreeSet::new());
        let mut is_too_large = false;
        for (key, kind, service) in self.ours(address) {
            let selection = if service.other_proxy && self.proxy.health != ProxyHealth::NotChecked {
                Err(WithheldReason::NotSelected)
            } else {
                advertisements::select(&self.plan, &service.matching, kind, address)
            };
            let selected = match selection {
                Ok(selected) => selected,
                Err(why) => {
                    reason.get_or_insert(why);
                    continue;
                }
            };
            let Ok(found) = self.rows.port_endpoints(key, address.is_ipv6(), service) else {
                is_too_large = true;
                continue;
            };
            names.extend(selected);
            let policy = service.policy(kind);
            let of_family = |(endpoint, _): &(IpAddr, Instant)| endpoint.is_ipv6() == address.is_ipv6();
            let moving: Vec<_> = self.reachable.moving(key, now).filter(of_family).collect();
            let mut groups = Vec::with_capacity(found.groups.len());
            for group in found.groups {
                let (local, moved_at, facts) = self.endpoints(group, &moving);
                collected.wakes_at = [collected.wakes_at, moved_at].into_iter().flatten().min();
                let here = local.iter().filter(|of| of.condition == EndpointCondition::Ready);
                ready_here.extend(here.map(|of| of.address).filter(|of| self.reachable.has(of)));
                groups.push((local, MemberFacts { policy, was_cluster: row.is_remote, ..facts }));
            }
            for (port, group) in service.ports.iter().zip(found.of_ports) {
                let Some((local, facts)) = groups.get(group) else { continue };
                let port = PortKey { protocol: port.protocol, port: port.port };
                let (key, local, facts) = (key.clone(), Arc::clone(local), *facts);
                collected.members.push(Member { key, kind, port, group, local, facts });
            }
            collected.stale = collected.stale.max(self.staleness(key, policy));
        }
        let names: Names = names.into_iter().collect();
        collected.selection = match reason {
            Some(reason) if names.is_empty() => Err(reason),
            None if is_too_large && collected.members.is_empty() => Err(WithheldReason::TooLarge),
            _ => Ok(()),
        };
        let none = NodeInput::default();
        let node = self.node.as_ref().unwrap_or(&none);
        collected.is_l2 = advertisements::is_l2(&self.plan, address);
        collected.applied = match collected.is_l2 {
            true => advertisements::apply_l2(node),
            false => advertisements::apply(&self.plan, &names, node),
        };
        collected.weight = u32::try_from(ready_here.len()).unwrap_or(u32::MAX);
        collected
    }

    /// The endpoints of a port with those that may be moving between slices: the endpoints on this
    /// node, the end of the time for which one of them is kept, and the facts.
    fn endpoints(
        &self,
        found: Endpoints,
        moving: &[(IpAddr, Instant)],
    ) -> (Arc<[LocalEndpoint]>, Option<Instant>, MemberFacts) {
        let (mut local, mut moved_at) = (found.local, None);
        let is_known = |endpoint: &IpAddr| local.binary_search_by_key(endpoint, |of| of.address).is_ok();
        let kept: Vec<_> = moving.iter().filter(|(endpoint, _)| !is_known(endpoint)).collect();
        for (address, until) in kept {
            local.push(LocalEndpoint { address: *address, condition: EndpointCondition::Ready });
            moved_at = moved_at.max(Some(*until));
        }
        local.sort_unstable();
        let mut facts = self.local_facts(&local);
        facts.any_ready = found.remote_ready > 0 || facts.local_ready > 0;
        facts.any_terminating = found.remote_terminating > 0 || facts.local_terminating > 0;
        (Arc::from(&*local), moved_at, facts)
    }

    /// The facts of endpoints on this node.
    fn local_facts(&self, local: &[LocalEndpoint]) -> MemberFacts {
        let mut facts = MemberFacts {
            policy: TrafficPolicy::Cluster,
            was_cluster: false,
            any_ready: false,
            any_terminating: false,
            local_ready: 0,
            local_terminating: 0,
            local_unrouted: 0,
            rules: MemberRules::Missing,
        };
        for of in local {
            match of.condition {
                EndpointCondition::NotReady => {}
                _ if !self.reachable.has(&of.address) => facts.local_unrouted += 1,
                EndpointCondition::Ready => facts.local_ready += 1,
                EndpointCondition::Terminating => facts.local_terminating += 1,
            }
        }
        facts
    }

    /// The facts of an address of the last run: it was advertised, and the node itself shows the
    /// rest.
    pub(super) fn collect_former(&self, cached: &CachedAddress, row: &AddressRow) -> Collected {
        let mut collected = Collected::nothing();
        let mut ready_here = BTreeSet::new();
        for member in &cached.members {
            let key = ServiceKey {
                namespace: Arc::from(member.namespace.as_str()),
                name: Arc::from(member.name.as_str()),
            };
            let mut groups: Vec<(Arc<[LocalEndpoint]>, MemberFacts)> = Vec::new();
            for (index, CachedPort { key: port, local, like }) in member.ports.iter().enumerate() {
                let group = like.unwrap_or(index);
                let known = like.and_then(|like| groups.get(like)).cloned();
                let (local, facts) = known.unwrap_or_else(|| {
                    let here = local.iter().filter(|of| of.condition == EndpointCondition::Ready);
                    ready_here.extend(here.map(|of| of.address).filter(|of| self.reachable.has(of)));
                    (Arc::from(&**local), self.local_facts(local))
                });
                groups.push((Arc::clone(&local), facts));
                let facts = MemberFacts { policy: member.policy, any_ready: true, ..facts };
                let (key, kind, port) = (key.clone(), member.kind, *port);
                collected.members.push(Member { key, kind, port, group, local, facts });
            }
        }
        let times = row.names.iter().filter_map(|name| advertisements::find(&self.plan, name));
        let graceful_shutdown = times.map(|of| of.graceful_shutdown).max().unwrap_or_default();
        collected.applied = Applied { names: row.names.clone(), barrier: None, graceful_shutdown };
        collected.is_l2 = cached.l2;
        collected.weight = u32::try_from(ready_here.len()).unwrap_or(u32::MAX);
        collected
    }

    /// The service proxy's rules for a port.
    pub(super) fn rules_of(
        &self,
        address: IpAddr,
        port: PortKey,
        row: &AddressRow,
        now: Instant,
    ) -> MemberRules {
        let not_visible = |settles_at| MemberRules::NotVisible { settles_at };
        match self.proxy.rules {
            _ if self.proxy.health == ProxyHealth::NotChecked => return not_visible(now),
            None => return MemberRules::Lagging,
            Some(_) if !self.rules_are_visible() => {
                let since = row.deliverable_since.unwrap_or(now).max(self.up_since);
                return not_visible(since + self.settings.settle);
            }
            Some(_) => {}
        }
        let ports = self.rules.get(&address).map_or(&[][..], |ports| ports);
        let index = ports.binary_search_by_key(&port, |(of, _)| *of);
        let rules = index.ok().and_then(|index| ports.get(index)).map(|(_, rules)| *rules);
        match rules {
            Some(PortRules::Forwarded) => MemberRules::Forwarded,
            _ if row.state.is_active() && row.forwarded.binary_search(&port).is_err() => MemberRules::Lagging,
            Some(PortRules::Blocked) => MemberRules::Blocked,
            Some(PortRules::Missing) | None => MemberRules::Missing,
        }
    }

    fn staleness(&self, key: &ServiceKey, policy: TrafficPolicy) -> Stale {
        let Some(known) = self.stale.get(key) else { return Stale::No };
        let mut left = self.local_endpoints(key).into_iter();
        let any_left = left.any(|of| known.contains(&of) && self.reachable.has(&of));
        if policy == TrafficPolicy::Local && !known.is_empty() && !any_left {
            Stale::Gone
        } else {
            Stale::Changed
        }
    }
}

#[cfg(test)]
impl Member {
    /// The place of its endpoints in memory.
    pub(super) fn local_at(&self) -> usize {
        self.local.as_ptr().addr()
    }
}

impl Collected {
    pub(super) fn nothing() -> Collected {
        Collected {
            members: Vec::new(),
            selection: Ok(()),
            is_l2: false,
            applied: Applied { names: Names::new(), barrier: None, graceful_shutdown: Duration::ZERO },
            stale: Stale::No,
            weight: 0,
            wakes_at: None,
        }
    }

    /// Whether every port with endpoints can be delivered from this node.
    pub(super) fn is_deliverable(&self) -> bool {
        let mut served = self.members.iter().filter(|member| member.facts.is_served()).peekable();
        served.peek().is_some() && served.all(|member| member.facts.is_deliverable())
    }

    pub(super) fn to_cache(&self, address: IpAddr, row: &AddressRow) -> CachedAddress {
        let mut members: Vec<CachedMember> = Vec::new();
        // Of the last member: the first port of each group, and the entries of all lists.
        let (mut first_of, mut entries) = (HashMap::new(), 0);
        for member in self.members.iter().filter(|member| member.facts.is_served()) {
            // The ports of a Service follow each other.
            let is_same = |of: &CachedMember| {
                *of.namespace == *member.key.namespace
                    && *of.name == *member.key.name
                    && of.kind == member.kind
            };
            if !members.last().is_some_and(is_same) {
                (first_of, entries) = (HashMap::new(), 0);
                members.push(CachedMember {
                    namespace: member.key.namespace.to_string(),
                    name: member.key.name.to_string(),
                    kind: member.kind,
                    policy: member.facts.policy,
                    ports: Vec::new(),
                });
            }
            let Some(of) = members.last_mut() else { continue };
            let first = first_of.get(&member.group).copied();
            let like = first.filter(|_| entries + member.local.len() > REPEATED && !member.local.is_empty());
            first_of.entry(member.group).or_insert(of.ports.len());
            let local = if like.is_some() { Vec::new() } else { member.local.to_vec() };
            entries += local.len();
            of.ports.push(CachedPort { key: member.port, local, like });
        }
        members.sort_by(|a, b| (&a.namespace, &a.name, a.kind).cmp(&(&b.namespace, &b.name, b.kind)));
        CachedAddress {
            l2: self.is_l2,
            address,
            advertisements: row.names.iter().map(ToString::to_string).collect(),
            shutting_down: matches!(row.state, State::ShuttingDown { .. }),
            members,
        }
    }
}
