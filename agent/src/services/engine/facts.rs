//! The facts of an address: what [`decide`] needs, from all state of the engine.
//!
//! [`decide`]: crate::services::decide::decide

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use trunkline_api::control::WithheldReason;
use trunkline_api::service::{AddressKind, PortKey, TrafficPolicy};

use super::{AddressRow, Engine, State};
use crate::services::advertisements::{self, Applied, Names};
use crate::services::cache::{CachedAddress, CachedMember, CachedPort};
use crate::services::decide::{MemberFacts, MemberRules, Stale};
use crate::services::rows::ServiceRow;
use crate::services::{
    EndpointCondition, LocalEndpoint, NodeInput, PortRules, ProxyHealth, ServiceKey, ServicePort,
};

/// One port of a member, with what the cache needs.
pub(in crate::services) struct Member {
    pub(in crate::services) key: ServiceKey,
    pub(in crate::services) kind: AddressKind,
    pub(in crate::services) port: PortKey,
    local: SmallVec<[LocalEndpoint; 4]>,
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
        for (key, kind, service) in self.ours(address) {
            let selection = if service.other_proxy && self.proxy.health != ProxyHealth::NotChecked {
                Err(WithheldReason::NotSelected)
            } else {
                advertisements::select(&self.plan, &service.matching, kind, address)
            };
            match selection {
                Ok(selected) => names.extend(selected),
                Err(why) => {
                    reason.get_or_insert(why);
                    continue;
                }
            }
            let policy = service.policy(kind);
            for port in &service.ports {
                let (local, moved_at, facts) = self.endpoints(key, address, port, now);
                collected.wakes_at = [collected.wakes_at, moved_at].into_iter().flatten().min();
                let here = local.iter().filter(|of| of.condition == EndpointCondition::Ready);
                ready_here.extend(here.map(|of| of.address).filter(|of| self.reachable.has(of)));
                let port = PortKey { protocol: port.protocol, port: port.port };
                let facts = MemberFacts { policy, was_cluster: row.is_remote, ..facts };
                collected.members.push(Member { key: key.clone(), kind, port, local, facts });
            }
            collected.stale = collected.stale.max(self.staleness(key, policy));
        }
        let names: Names = names.into_iter().collect();
        collected.selection = match reason {
            Some(reason) if names.is_empty() => Err(reason),
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

    /// The endpoints of a port: those on this node, the end of the time for which one of them is
    /// kept, and the facts.
    fn endpoints(
        &self,
        key: &ServiceKey,
        address: IpAddr,
        port: &ServicePort,
        now: Instant,
    ) -> (SmallVec<[LocalEndpoint; 4]>, Option<Instant>, MemberFacts) {
        let found = self.rows.endpoints(key, address.is_ipv6(), Some(port));
        let (mut local, mut moved_at) = (found.local, None);
        for (endpoint, until) in self.reachable.moving(key, now) {
            if endpoint.is_ipv6() == address.is_ipv6() && !local.iter().any(|of| of.address == endpoint) {
                local.push(LocalEndpoint { address: endpoint, condition: EndpointCondition::Ready });
                moved_at = moved_at.max(Some(until));
            }
        }
        let mut facts = self.local_facts(&local);
        facts.any_ready = found.remote_ready > 0 || facts.local_ready > 0;
        facts.any_terminating = found.remote_terminating > 0 || facts.local_terminating > 0;
        (local, moved_at, facts)
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
            for CachedPort { key: port, local } in &member.ports {
                let here = local.iter().filter(|of| of.condition == EndpointCondition::Ready);
                ready_here.extend(here.map(|of| of.address).filter(|of| self.reachable.has(of)));
                let facts = MemberFacts { policy: member.policy, any_ready: true, ..self.local_facts(local) };
                let local = local.iter().copied().collect();
                collected.members.push(Member {
                    key: key.clone(),
                    kind: member.kind,
                    port: *port,
                    local,
                    facts,
                });
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
        let rules = ports.iter().find(|(of, _)| *of == port).map(|(_, rules)| *rules);
        match rules {
            Some(PortRules::Forwarded) => MemberRules::Forwarded,
            _ if row.state.is_active() && !row.forwarded.contains(&port) => MemberRules::Lagging,
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
        for member in self.members.iter().filter(|member| member.facts.is_served()) {
            let mut local = member.local.to_vec();
            local.sort_unstable();
            let port = CachedPort { key: member.port, local };
            let of = members.iter_mut().find(|of| {
                *of.namespace == *member.key.namespace
                    && *of.name == *member.key.name
                    && of.kind == member.kind
            });
            match of {
                Some(of) => of.ports.push(port),
                None => members.push(CachedMember {
                    namespace: member.key.namespace.to_string(),
                    name: member.key.name.to_string(),
                    kind: member.kind,
                    policy: member.facts.policy,
                    ports: vec![port],
                }),
            }
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
