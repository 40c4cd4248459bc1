//! The inputs of the engine: each one changes state, and marks the addresses that it may concern.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio::time::Instant;
use trunkline_api::kept::BoundedLabels;
use trunkline_api::service::{AddressKind, PortKey};

use super::Engine;
use crate::services::advertisements;
use crate::services::l2::Holders;
use crate::services::rows::Touched;
use crate::services::{
    EndpointCondition, LocalPods, NamespaceInput, NodeStage, PortRules, ProxyHealth, ProxyState, RowChange,
    RuleChanges, ServiceKey, ServicesInput, ServicesPlan, SliceInput,
};

impl Engine {
    /// Takes over an input.
    pub(in crate::services) fn handle(&mut self, input: ServicesInput, now: Instant) {
        match input {
            ServicesInput::Services(change) => {
                let is_page = matches!(change, RowChange::Page { .. });
                let is_list = matches!(change, RowChange::Listed(_));
                self.services_listed |= is_list;
                let mut touched = Touched::default();
                self.rows.change_services(change, &mut touched);
                for key in &touched.services {
                    self.match_labels(key);
                }
                if is_page {
                    return touched.keep_for_list(&mut self.services_in_list, self.known);
                }
                if is_list {
                    touched.extend(std::mem::take(&mut self.services_in_list));
                    self.touched_all |= !self.known;
                }
                self.touch(touched, now);
            }
            ServicesInput::Slices(change) => self.change_slices(change, now),
            ServicesInput::Namespaces(change) => self.change_namespaces(change),
            ServicesInput::Node(node) => {
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    self.touched_all = true;
                }
            }
            ServicesInput::Proxy(state) => self.set_proxy(state, now),
            ServicesInput::Rules(changes) => self.change_rules(changes),
            ServicesInput::Holders(holders) => self.set_holders(holders),
        }
    }

    /// Takes over a plan. A plan whose selectors need labels of Namespaces waits for their list:
    /// until then it would select too little.
    pub(in crate::services) fn set_plan(&mut self, plan: Arc<ServicesPlan>) {
        self.waiting_plan = None;
        if !advertisements::needs_namespaces(&plan) {
            self.namespaces = None;
        } else if self.known && self.namespaces.is_none() {
            self.waiting_plan = Some(plan);
            return;
        }
        self.has_plan = true;
        self.touched_all = true;
        self.kinds = advertisements::kinds(&plan);
        self.plan = plan;
        let keys: Vec<ServiceKey> = self.rows.services().map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.match_labels(key);
        }
        self.set_interest();
    }

    /// Takes over the host routes and the host's addresses.
    pub(in crate::services) fn set_local(&mut self, local: LocalPods) {
        let changed = self.reachable.set(local);
        for endpoint in &changed {
            let services = self.rows.with_endpoint(endpoint);
            for key in &services {
                if !self.reachable.has(endpoint) && self.becomes_stale(key) {
                    self.stale.insert(key.clone(), self.local_endpoints(key));
                }
                self.touch_service(key);
            }
        }
        if !self.known && !changed.is_empty() {
            self.touched.extend(self.former.keys());
        }
    }

    /// Takes over the stage of a drain.
    pub(in crate::services) fn set_stage(&mut self, stage: NodeStage) {
        self.touched_all |= self.stage != stage;
        self.stage = stage;
    }

    fn change_slices(&mut self, change: RowChange<SliceInput>, now: Instant) {
        let is_page = matches!(change, RowChange::Page { .. });
        let is_list = matches!(change, RowChange::Listed(_));
        self.slices_listed |= is_list;
        // The endpoints before the change are those that the rules of an absent proxy know.
        let mut before: HashMap<ServiceKey, HashSet<IpAddr>> = HashMap::new();
        if matches!(self.proxy.health, ProxyHealth::Away { .. }) {
            let of = |input: &SliceInput| ServiceKey {
                namespace: input.key.namespace.clone(),
                name: input.service.clone(),
            };
            let keys: BTreeSet<ServiceKey> = match &change {
                RowChange::Page { rows, .. } => rows.iter().map(of).collect(),
                RowChange::Listed(_) => self.rows.services().map(|(key, _)| key.clone()).collect(),
                RowChange::Applied(input) | RowChange::Deleted(input) => [of(input)].into(),
            };
            before.extend(keys.into_iter().map(|key| {
                let local = self.local_endpoints(&key);
                (key, local)
            }));
        }
        let mut touched = Touched::default();
        self.rows.change_slices(change, &mut touched);
        for key in &touched.services {
            if let Some(local) = before.remove(key).filter(|_| self.becomes_stale(key)) {
                self.stale.insert(key.clone(), local);
            }
        }
        if is_page {
            return touched.keep_for_list(&mut self.slices_in_list, self.known);
        }
        if is_list {
            touched.extend(std::mem::take(&mut self.slices_in_list));
            self.touched_all |= !self.known;
            // An endpoint that another page has was only moved.
            touched.gone.retain(|(key, address)| !self.rows.has_local(key, *address));
        }
        self.touch(touched, now);
    }

    /// The endpoints of a Service on this node that receive packets.
    pub(super) fn local_endpoints(&self, key: &ServiceKey) -> HashSet<IpAddr> {
        let all = [false, true].map(|v6| self.rows.endpoints(key, v6));
        let local = all.iter().flat_map(|endpoints| &endpoints.local);
        local.filter(|of| of.condition != EndpointCondition::NotReady).map(|of| of.address).collect()
    }

    /// Whether a change of a Service's endpoints is the first one while the service proxy is away.
    fn becomes_stale(&self, key: &ServiceKey) -> bool {
        matches!(self.proxy.health, ProxyHealth::Away { .. }) && !self.stale.contains_key(key)
    }

    fn change_namespaces(&mut self, change: RowChange<NamespaceInput>) {
        // A change without a list belongs to a watch that has ended.
        let known = match (&change, &mut self.namespaces) {
            (RowChange::Listed(_), known) => known.get_or_insert_default(),
            (_, Some(known)) => known,
            (_, None) => return,
        };
        let mut changed: Vec<Arc<str>> = Vec::new();
        match change {
            // The watch of Namespaces reports whole lists.
            RowChange::Page { .. } => {}
            RowChange::Applied(input) => {
                if known.get(&input.name) != Some(&input.labels) {
                    known.insert(Arc::clone(&input.name), input.labels);
                    changed.push(input.name);
                }
            }
            RowChange::Deleted(input) => {
                known.remove(&input.name);
                changed.push(input.name);
            }
            RowChange::Listed(inputs) => {
                let new: HashMap<_, _> = inputs.into_iter().map(|input| (input.name, input.labels)).collect();
                changed.extend(known.keys().filter(|name| !new.contains_key(*name)).cloned());
                changed.extend(
                    new.iter()
                        .filter(|(name, of)| known.get(*name) != Some(of))
                        .map(|(name, _)| name.clone()),
                );
                *known = new;
            }
        }
        if let Some(plan) = self.waiting_plan.take() {
            return self.set_plan(plan);
        }
        for name in changed {
            for key in self.rows.namespace(&name) {
                if self.match_labels(&key) {
                    self.touch_service(&key);
                }
            }
        }
    }

    fn set_proxy(&mut self, state: ProxyState, now: Instant) {
        if self.proxy == state {
            return;
        }
        if state.health == ProxyHealth::Up && self.proxy.health != ProxyHealth::Up {
            self.up_since = now;
            self.stale.clear();
        }
        self.proxy = state;
        self.touched_all = true;
    }

    fn set_holders(&mut self, holders: Holders) {
        let before = std::mem::replace(&mut self.holders, holders);
        let now = &self.holders;
        self.touched.extend(before.held.symmetric_difference(&now.held));
        // The views name the other nodes.
        self.output.changed |= before.others != now.others;
    }

    fn change_rules(&mut self, RuleChanges { complete, changes }: RuleChanges) {
        if complete {
            self.rules.clear();
            self.touched_all = true;
        }
        for change in changes {
            let port = PortKey { protocol: change.protocol, port: change.port };
            let ports = self.rules.entry(change.address).or_default();
            let index = ports.binary_search_by_key(&port, |(of, _)| *of);
            match (index, change.rules) {
                (Ok(index), PortRules::Missing) => drop(ports.remove(index)),
                (Err(_), PortRules::Missing) => {}
                (Ok(index), rules) => ports.get_mut(index).into_iter().for_each(|of| of.1 = rules),
                (Err(index), rules) => ports.insert(index, (port, rules)),
            }
            if ports.is_empty() {
                self.rules.remove(&change.address);
            }
            self.touched.insert(change.address);
        }
    }

    /// Selects the advertisements of a Service by labels. Returns whether they are others.
    fn match_labels(&mut self, key: &ServiceKey) -> bool {
        let Some(row) = self.rows.service(key) else { return false };
        let none = BTreeMap::new();
        let namespace = match self.namespace_labels(&key.namespace) {
            None => Some(&none),
            Some(labels) => labels.as_ref().ok(),
        };
        let matching = advertisements::matching(&self.plan, || row.labels().ok(), namespace);
        self.rows.set_matching(key, matching)
    }

    /// The labels of a Namespace; none if it is not known, or no selector needs the labels.
    pub(in crate::services) fn namespace_labels(&self, name: &Arc<str>) -> Option<&BoundedLabels> {
        self.namespaces.as_ref()?.get(name)
    }

    fn touch(&mut self, touched: Touched, now: Instant) {
        for (service, endpoint) in touched.gone {
            self.reachable.keep_moving(&service, endpoint, now);
        }
        self.touched.extend(touched.addresses);
        touched.services.iter().for_each(|key| self.touch_service(key));
    }

    fn touch_service(&mut self, key: &ServiceKey) {
        let Some(row) = self.rows.service(key) else { return };
        self.touched.extend(row.addresses().iter().map(|(address, _)| *address));
    }

    /// The prefixes of which the service proxy's rules matter.
    pub(super) fn set_interest(&mut self) {
        let blocks = self
            .plan
            .pools
            .iter()
            .filter(|pool| pool.bgp || !pool.links.is_empty())
            .flat_map(|pool| &pool.blocks);
        let mut interest: Vec<IpNet> = blocks.flat_map(|block| block.to_prefixes()).collect();
        for of in self.plan.advertisements.values() {
            if of.kinds.contains(&AddressKind::External) {
                interest.extend(&of.external_cidrs);
            }
            if of.kinds.contains(&AddressKind::Cluster) {
                interest.extend([IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]);
            }
        }
        interest.extend(self.former.keys().map(|address| IpNet::from(*address)));
        let interest = IpNet::aggregate(&interest);
        if interest != self.interest {
            self.interest.clone_from(&interest);
            self.output.interest = Some(interest);
        }
    }
}
