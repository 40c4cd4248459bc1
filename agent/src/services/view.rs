//! Service addresses for operators: states, and reasons with the fix.

use std::net::IpAddr;

use ipnet::IpNet;
use tokio::time::Instant;
use trunkline_api::control::{AdvertisedPrefix, AdvertisementState, ServiceView, WithheldReason};
use trunkline_api::names::label;
use trunkline_api::service::{AddressKind, TrafficPolicy};

use super::advertisements;
use super::bounds::Excess;
use super::decide::{MemberRules, Stale};
use super::engine::{AddressRow, Collected, Engine, State};
use super::rows::ServiceRow;
use super::{EndpointCondition, ProxyHealth, ServiceKey};

/// A Service with an address.
struct Shown {
    key: ServiceKey,
    kind: AddressKind,
    policy: TrafficPolicy,
    excess: Option<Excess>,
}

impl Engine {
    /// The addresses of all Services, or of those with this name: `NAME` or `NAMESPACE/NAME`. By
    /// name, also Services of other classes are shown.
    pub(super) fn views(&self, name: Option<&str>, now: Instant) -> Vec<ServiceView> {
        let wanted = |key: &ServiceKey| name.is_none_or(|name| is_named(key, name));
        let mut views: Vec<ServiceView> = Vec::new();
        for (address, row) in &self.addresses {
            let shown: Vec<Shown> = match self.former(address) {
                Some(cached) => {
                    let all = cached.members.iter().map(|member| {
                        let key = ServiceKey {
                            namespace: member.namespace.as_str().into(),
                            name: member.name.as_str().into(),
                        };
                        Shown { key, kind: member.kind, policy: member.policy, excess: None }
                    });
                    all.filter(|of| wanted(&of.key)).collect()
                }
                None => {
                    let all = self.ours(*address).filter(|(key, ..)| wanted(key));
                    let shown = all.map(|(key, kind, service)| Shown {
                        key: key.clone(),
                        kind,
                        policy: service.policy(kind),
                        excess: self.excess(key, *address, service),
                    });
                    shown.collect()
                }
            };
            if !shown.is_empty() {
                // The same for all Services with the address.
                let (text, prefixes) = (self.text(*address, row, now), self.prefixes(*address, row));
                let of_address = |of| self.view(*address, row, of, (&text, &prefixes), now);
                views.extend(shown.into_iter().map(of_address));
            }
        }
        if name.is_some() {
            let others = self.rows.services().filter(|(key, _)| wanted(key));
            views.extend(others.flat_map(|(key, service)| self.foreign(key, service)));
        }
        views.sort_by(|a, b| {
            (&a.namespace, &a.name, a.kind, a.address).cmp(&(&b.namespace, &b.name, b.kind, b.address))
        });
        views
    }

    fn view(
        &self,
        address: IpAddr,
        row: &AddressRow,
        Shown { key, kind, policy, excess }: Shown,
        (text, prefixes): (&str, &[AdvertisedPrefix]),
        now: Instant,
    ) -> ServiceView {
        let text = match (excess, row.shown()) {
            (Some(excess), State::Withheld(WithheldReason::TooLarge)) => format!("withheld: {excess}"),
            (Some(excess), shown) if self.known && shown.is_active() => {
                format!("{text}; this Service does not count: {excess}")
            }
            _ => text.to_owned(),
        };
        let endpoints = self.rows.endpoints(&key, address.is_ipv6());
        let here = endpoints.local.iter().filter(|of| of.condition == EndpointCondition::Ready);
        let local_ready = here.filter(|of| self.reachable.has(&of.address)).count() as u32;
        ServiceView {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            address,
            kind,
            policy,
            pool: advertisements::pool(&self.plan, address).map(|pool| pool.name.to_string()),
            state: self.shown(row.shown()),
            reason: row.shown().reason(),
            text,
            prefixes: prefixes.to_vec(),
            local_ready,
            ready: endpoints.remote_ready + local_ready,
            since_seconds: now.saturating_duration_since(row.since).as_secs(),
            nodes: None,
        }
    }

    /// LoadBalancer addresses of a Service of another class.
    fn foreign<'a>(
        &'a self,
        key: &'a ServiceKey,
        service: &'a ServiceRow,
    ) -> impl Iterator<Item = ServiceView> + 'a {
        let class = service
            .class
            .as_ref()
            .and_then(Option::as_deref)
            .filter(|_| !service.is_ours(&self.settings.class));
        let addresses = service.addresses().iter().filter(|(_, kind)| *kind == AddressKind::LoadBalancer);
        class.into_iter().flat_map(move |class| {
            addresses.clone().map(move |(address, kind)| ServiceView {
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
                address: *address,
                kind: *kind,
                policy: service.policy(*kind),
                pool: None,
                state: AdvertisementState::Withheld,
                reason: Some(WithheldReason::NotSelected),
                text: format!("withheld: Service class {class} is not Trunkline's ({})", self.settings.class),
                prefixes: Vec::new(),
                local_ready: 0,
                ready: 0,
                since_seconds: 0,
                nodes: None,
            })
        })
    }

    fn prefixes(&self, address: IpAddr, row: &AddressRow) -> Vec<AdvertisedPrefix> {
        let mut prefixes: Vec<IpNet> =
            self.table.get(&address).iter().flat_map(|state| &state.prefixes).map(|of| of.prefix).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let describe = |prefix: IpNet| {
            let of_prefix = row.names.iter().filter_map(|name| {
                let of = advertisements::find(&self.plan, name)?;
                (of.aggregation.prefix(address) == prefix).then_some((name, of))
            });
            let of_prefix: Vec<_> = of_prefix.collect();
            let all_peers = of_prefix.iter().any(|(_, of)| of.peers.is_empty());
            let mut peers: Vec<String> = of_prefix.iter().flat_map(|(_, of)| of.peers.clone()).collect();
            peers.sort_unstable();
            peers.dedup();
            let bandwidth =
                self.table.origination(&prefix).and_then(|origination| origination.link_bandwidth);
            AdvertisedPrefix {
                prefix,
                advertisements: of_prefix
                    .iter()
                    .filter(|(name, _)| !name.is_empty())
                    .map(|(name, _)| name.to_string())
                    .collect(),
                peers: (!all_peers).then_some(peers),
                link_bandwidth: bandwidth.map(|bandwidth| bandwidth.0 as f32),
            }
        };
        prefixes.into_iter().map(describe).collect()
    }

    /// State and reason as text, with the fix.
    pub(super) fn text(&self, address: IpAddr, row: &AddressRow, now: Instant) -> String {
        let because = |reason| self.reason_text(address, row, reason, now);
        match row.shown() {
            State::Withheld(reason) => format!("withheld: {}", because(reason)),
            State::ShuttingDown { reason, .. } if self.known && row.is_l2 => {
                format!("this node answers until another node does: {}", because(reason))
            }
            State::ShuttingDown { reason, withdraw_at } if self.known => {
                let seconds = withdraw_at.saturating_duration_since(now).as_secs_f32().ceil();
                format!("advertised with GRACEFUL_SHUTDOWN, withdrawn in {seconds} s: {}", because(reason))
            }
            _ if !self.known => {
                "advertised since before the restart of the agent: the API server has not sent all Services yet".to_owned()
            }
            State::Advertised if row.is_l2 => {
                "this node answers ARP requests and Neighbour Solicitations for the address".to_owned()
            }
            State::Advertised | State::ShuttingDown { .. } => {
                let collected = self.collect_now(address, row, now);
                match self.failing_port(&collected, |rules| rules == MemberRules::Lagging) {
                    Some(port) => format!("advertised; kube-proxy has no rules for {port} yet"),
                    None => "advertised".to_owned(),
                }
            }
        }
    }

    fn failing_port(&self, collected: &Collected, fails: impl Fn(MemberRules) -> bool) -> Option<String> {
        let member =
            collected.members.iter().find(|member| member.facts.is_served() && fails(member.facts.rules))?;
        Some(format!("{} of {}/{}", member.port, member.key.namespace, member.key.name))
    }

    fn reason_text(&self, address: IpAddr, row: &AddressRow, reason: WithheldReason, now: Instant) -> String {
        let collected = self.collect_now(address, row, now);
        let policy_field = match collected.members.first().map(|member| member.kind) {
            Some(AddressKind::Cluster) => "internalTrafficPolicy",
            _ => "externalTrafficPolicy",
        };
        let port = || {
            let port = self.failing_port(&collected, |rules| rules != MemberRules::Forwarded);
            port.unwrap_or_else(|| "its ports".to_owned())
        };
        match reason {
            WithheldReason::NotKnown => {
                "the API server has not sent all Services and EndpointSlices yet: `trunkline status` shows the watches".to_owned()
            }
            WithheldReason::NodeDrained => "this node is drained: end the drain with `trunkline undrain`".to_owned(),
            WithheldReason::NoBgp => {
                "this node has no BGP peers: select it with the nodeSelector of a Network of mode BGP".to_owned()
            }
            WithheldReason::NodeExcluded if row.is_l2 => {
                format!("the node has the label {}: remove the label", label::EXCLUDE_BALANCERS)
            }
            WithheldReason::NodeExcluded => {
                let fix = match named(row) {
                    Some(names) => format!("set excludedNodes: Advertise in {names}"),
                    None => "create a ServiceAdvertisement with excludedNodes: Advertise".to_owned(),
                };
                format!("the node has the label {}: remove the label, or {fix}", label::EXCLUDE_BALANCERS)
            }
            WithheldReason::NodeCordoned => {
                let names = named(row).unwrap_or_default();
                format!("the node is cordoned: uncordon it, or set cordonedNodes: Advertise in {names}")
            }
            WithheldReason::NodeNotSelected => {
                let names = named(row).unwrap_or_default();
                format!("nodeSelector of {names} does not select this node: change the selector, or the node's labels")
            }
            WithheldReason::NotSelected => self.not_selected(address),
            WithheldReason::NotInPool => {
                "no ServicePool has the address: add it to spec.addresses of one".to_owned()
            }
            WithheldReason::NotAllowed => {
                "externalCIDRs of no ServiceAdvertisement has the address: add a prefix with it to one".to_owned()
            }
            WithheldReason::NoEndpoint => {
                "no endpoint of the Service is ready: look at its selector and its pods".to_owned()
            }
            WithheldReason::NoLocalEndpoint => {
                format!("{policy_field} is Local, and no endpoint on this node is ready: other nodes advertise the address")
            }
            WithheldReason::NoHostRoute => {
                "no host route leads to the endpoint on this node: `trunkline pods` shows the state of its pod".to_owned()
            }
            WithheldReason::Terminating => {
                format!("{policy_field} is Local, and every endpoint on this node terminates")
            }
            WithheldReason::ProxyDown | WithheldReason::ProxyNotEligible => {
                let text = proxy_text(self.proxy.health, &self.settings.proxy_address, now);
                match collected.stale {
                    Stale::No => text,
                    Stale::Changed | Stale::Gone => format!("{text}, and endpoints of the Service changed since"),
                }
            }
            WithheldReason::NoRules => {
                format!("kube-proxy has no rules for {} yet: look at its log if this stays", port())
            }
            WithheldReason::RulesBlock => {
                format!("the rules of kube-proxy do not forward {} any more: look at its log if this stays", port())
            }
            WithheldReason::RulesLag => format!(
                "the rules of the service proxy cannot be seen: the address waits {} ms after its first endpoint",
                self.settings.settle.as_millis()
            ),
            WithheldReason::OtherHolder => match self.holders.others.get(&address) {
                Some(node) => format!("{node} answers for the address"),
                None => "no node answers for the address yet: the nodes elect one".to_owned(),
            },
            WithheldReason::NoVlan => {
                let pool = advertisements::pool(&self.plan, address).map_or("", |pool| &pool.name);
                format!(
                    "no device of the Network of ServicePool {pool} is on this node: `trunkline status` shows \
                     the Network's devices and their faults"
                )
            }
            WithheldReason::TooLarge => {
                let mut excesses = self.ours(address).filter_map(|(key, _, service)| self.excess(key, address, service));
                excesses.next().map_or_else(|| reason.to_string(), |excess| excess.to_string())
            }
            WithheldReason::Unhealthy => "the health check of the address fails".to_owned(),
            WithheldReason::Unknown => reason.to_string(),
        }
    }

    /// The bound that a Service with the address exceeds.
    fn excess(&self, key: &ServiceKey, address: IpAddr, service: &ServiceRow) -> Option<Excess> {
        self.rows.port_endpoints(key, address.is_ipv6(), service).err()
    }

    /// The labels of a Service or Namespace that exceed their bound, if selectors need them.
    fn large_labels(&self, address: IpAddr) -> Option<String> {
        let of_services = advertisements::needs_labels(&self.plan);
        self.ours(address).find_map(|(key, _, service)| {
            let service = service.labels().err().filter(|_| of_services);
            let namespace = self.namespace_labels(&key.namespace).and_then(|labels| labels.as_ref().err());
            let (what, error) = match (service, namespace) {
                (Some(error), _) => (format!("Service {}/{}", key.namespace, key.name), error),
                (None, Some(error)) => (format!("Namespace {}", key.namespace), *error),
                (None, None) => return None,
            };
            Some(format!("no selector of a ServiceAdvertisement matches the labels of {what}: {error}"))
        })
    }

    fn not_selected(&self, address: IpAddr) -> String {
        if self.ours(address).any(|(_, _, service)| service.other_proxy) {
            return format!(
                "another service proxy has the Service: remove the label {} from it",
                label::SERVICE_PROXY_NAME
            );
        }
        if let Some(text) = self.large_labels(address) {
            return text;
        }
        let names: Vec<&str> = self.plan.advertisements.keys().map(|name| &**name).collect();
        match names.as_slice() {
            [] => {
                "no ServiceAdvertisement can be read: `kubectl get serviceadvertisements` shows their faults"
                    .to_owned()
            }
            names => format!(
                "no ServiceAdvertisement selects the address: compare serviceSelector, namespaceSelector, pools and addresses of {}",
                names.join(", ")
            ),
        }
    }
}

fn is_named(key: &ServiceKey, name: &str) -> bool {
    match name.split_once('/') {
        Some((namespace, name)) => *key.namespace == *namespace && *key.name == *name,
        None => *key.name == *name,
    }
}

/// The ServiceAdvertisements of an address; none if the default one is in force.
fn named(row: &AddressRow) -> Option<String> {
    let names: Vec<&str> = row.names.iter().map(|name| &**name).filter(|name| !name.is_empty()).collect();
    (!names.is_empty()).then(|| format!("ServiceAdvertisement {}", names.join(", ")))
}

/// The health of the service proxy as text.
pub(super) fn proxy_text(health: ProxyHealth, address: &str, now: Instant) -> String {
    match health {
        ProxyHealth::Up => format!("kube-proxy answers at {address}"),
        ProxyHealth::Away { since } => format!(
            "kube-proxy does not answer at {address} for {} s: its rules may be out of date",
            now.saturating_duration_since(since).as_secs()
        ),
        ProxyHealth::Unhealthy => {
            format!("kube-proxy is unhealthy at {address}: its rules may be out of date")
        }
        ProxyHealth::NotEligible => {
            format!(
                "kube-proxy at {address} reports nodeEligible: false: the cluster autoscaler deletes this node"
            )
        }
        ProxyHealth::NotChecked => "the configuration has no service proxy".to_owned(),
        ProxyHealth::Unknown => format!("kube-proxy has not answered at {address} yet"),
    }
}
