//! Addresses of Services: of type LoadBalancer, from ServicePools.
//!
//! ```text
//!   Services, ServicePools,              ┌─ ServiceState, under the shared lock ─────────────────┐
//!   ServiceAddresses ── watch tasks ───► │ rows ── changes ──► term: queues, ipam                │
//!   (leader)                             └──────────────────────┬─────────────▲──────────────────┘
//!   Subnets, Nodes, Namespaces ── dirty ─┘                      │ keys, plans │ answers
//!                                                           reconcilers: claims, statuses, events
//! ```
//!
//! A *claim* (a ServiceAddress) allocates an address. It is cluster-scoped, and its name follows
//! from the address, so the API server refuses a second one: neither a clock nor a fence is needed
//! for safety. A crash between two writes leaves a state from which [`decide`] continues.
//!
//! Everything here belongs to the leader, and it runs beside the work for pods. A missing
//! CustomResourceDefinition counts as an empty list, and never delays a pod.
//!
//! - [`object`], [`rows`]: Services, pools and claims.
//! - [`advertised`], [`endpoints`]: the nodes that advertise an address; Services with endpoints.
//! - [`ipam`]: free and allocated addresses; sharing.
//! - [`decide`]: the addresses that a Service needs; [`plan`]: the writes for them.
//! - [`reconcile`], [`pool`], [`claim`]: carry the plans out, and write statuses and events.
//! - [`tally`]: numbers for the metrics.
//! - [`lead`]: the watches and workers of a term.

pub mod advertised;
pub mod claim;
pub mod decide;
pub mod endpoints;
pub mod ipam;
pub mod lead;
pub mod object;
pub mod plan;
pub mod pool;
pub mod reconcile;
pub mod rows;
pub mod tally;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::resources::{IpVersion, ParsedRange, Subnet};

use crate::cluster::{Cluster, Key, NodeRow};
use crate::queue::Queue;
use crate::waiting::{RETRY_INTERVAL, Waiting};
use advertised::{AdvertisedRows, Changed, NodeServicesRow};
use decide::ClassConfig;
use endpoints::{EndpointRows, SliceRow};
use ipam::{Claim, ForeignSpan, PoolDefinition, ServiceIpam, Span};
use plan::RELEASE_PAUSE;
use rows::{ClaimRow, PoolRow, ServiceRow, ServiceRows};
use tally::Tally;

/// Status intervals between two writes of a claim's status: one change of a node concerns many
/// claims, and its agent spreads it over some seconds.
const CLAIM_INTERVALS: u32 = 5;

/// Work queues of Services and pools.
pub struct ServiceQueues {
    /// Services by name, including deleted ones.
    pub services: Queue<Key>,
    /// Pools, for their status.
    pub pools: Queue<Arc<str>>,
    /// Claims, for their status.
    pub claims: Queue<IpAddr>,
    /// NodeServices of nodes that may be gone.
    pub nodes: Queue<Arc<str>>,
    /// The retry of waiting Services, at most once in [`RETRY_INTERVAL`].
    pub retries: Queue<()>,
}

impl ServiceQueues {
    /// Creates empty queues. A status of a pool is written at most once per `status_interval`.
    pub fn new(status_interval: Duration) -> Arc<Self> {
        Arc::new(ServiceQueues {
            services: Queue::new(Duration::ZERO),
            pools: Queue::new(status_interval),
            claims: Queue::new(status_interval * CLAIM_INTERVALS),
            nodes: Queue::new(Duration::ZERO),
            retries: Queue::new(RETRY_INTERVAL),
        })
    }

    /// Ends the backoff of all failed work, when the API server answers again.
    pub fn retry(&self) {
        self.services.retry();
        self.pools.retry();
        self.claims.retry();
        self.nodes.retry();
    }
}

/// A change that may help a Service without an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceCause {
    /// The labels of its Namespace.
    Namespace(Arc<str>),
    /// The Services of an address with its sharing key.
    SharingKey(Arc<str>),
    /// An address that it requests.
    Address(IpAddr),
    /// A free address of a pool that it can use.
    Pool(Arc<str>),
    /// A free address of any pool. It can use more pools than [`plan::MAX_POOL_CAUSES`].
    AnyPool,
}

/// State that only the leader has, once the lists are complete.
pub struct ServiceTerm {
    /// The addresses.
    pub ipam: ServiceIpam,
    /// The work queues.
    pub queues: Arc<ServiceQueues>,
    /// Services that do not have all addresses that they request, whatever the reason.
    pub waiting: Waiting<ServiceCause>,
    /// Addresses that were released a moment ago, and the Service that had them.
    released: HashMap<IpAddr, (Instant, Key)>,
    /// The pools as they were configured last.
    configured: Vec<PoolDefinition>,
    /// Whether pools, Subnets or Nodes have changed since.
    dirty: bool,
}

impl ServiceTerm {
    /// Retries all waiting Services soon.
    fn retry_waiting(&mut self) {
        if self.waiting.change_all() {
            self.queues.retries.add(());
        }
    }

    /// Retries the Services soon that wait for one of these changes.
    fn retry_waiting_for(&mut self, causes: impl IntoIterator<Item = ServiceCause>) {
        for cause in causes {
            if self.waiting.change(&cause) {
                self.queues.retries.add(());
            }
        }
    }

    /// Queues the waiting Services that the changes since the last call may help.
    pub(crate) fn queue_waiting(&mut self) {
        for key in self.waiting.take_changed() {
            self.queues.services.add(key);
        }
    }

    /// The requested address that another Service released a moment ago.
    fn resting(&mut self, requested: &[IpAddr], key: &Key, now: Instant) -> Option<IpAddr> {
        self.released.retain(|_, (at, _)| now.duration_since(*at) < RELEASE_PAUSE);
        let rests = |address: &IpAddr| self.released.get(address).is_some_and(|(_, by)| by != key);
        requested.iter().copied().find(rests)
    }
}

/// Rows of Services, pools and claims, and the state of the term.
pub struct ServiceState {
    /// The rows.
    pub rows: ServiceRows,
    /// NodeServices.
    pub advertised: AdvertisedRows,
    /// EndpointSlices.
    pub endpoints: EndpointRows,
    /// The numbers for the metrics, and the time of their pass.
    tallied: Option<(Instant, Tally)>,
    /// State of the term, once the lists are complete.
    pub term: Option<ServiceTerm>,
    /// The Services that get addresses.
    pub classes: ClassConfig,
}

impl Default for ServiceState {
    fn default() -> Self {
        let classes =
            ClassConfig { class: trunkline_api::names::LOAD_BALANCER_CLASS.to_owned(), default: false };
        ServiceState {
            rows: ServiceRows::default(),
            advertised: AdvertisedRows::default(),
            endpoints: EndpointRows::default(),
            tallied: None,
            term: None,
            classes,
        }
    }
}

impl ServiceState {
    /// Starts the allocation. The rows are complete: they come from lists that began after the
    /// predecessor stopped.
    pub fn begin_term(&mut self, cluster: &Cluster, queues: Arc<ServiceQueues>) {
        self.term = Some(ServiceTerm {
            ipam: ServiceIpam::default(),
            queues: Arc::clone(&queues),
            waiting: Waiting::default(),
            released: HashMap::new(),
            configured: Vec::new(),
            dirty: true,
        });
        self.refresh(cluster);
        let ServiceState { rows, term: Some(term), .. } = self else { return };
        for (_, row) in rows.services.iter() {
            term.ipam.set_service(&row.uid, row.exposure.clone());
        }
        let mut claims: Vec<_> = rows.claims.iter().collect();
        claims.sort_by_key(|(address, row)| (row.created, **address));
        for (address, row) in &claims {
            adopt(&mut term.ipam, **address, row);
        }
        for (address, row) in &claims {
            // The last one determines where the allocation continues.
            term.ipam.resume(**address);
            row.services.iter().for_each(|service| queues.services.add(service.key.clone()));
            queues.claims.add(**address);
        }
        self.recover();
        for (key, _) in self.rows.services.iter() {
            queues.services.add(key.clone());
        }
        for (name, _) in self.rows.pools.iter() {
            queues.pools.add(Arc::clone(name));
        }
        for (name, _) in self.advertised.nodes.iter().filter(|(name, _)| cluster.node(name).is_none()) {
            queues.nodes.add(Arc::clone(name));
        }
    }

    /// Ends the allocation.
    pub fn end_term(&mut self) {
        self.term = None;
        self.tallied = None;
        self.rows = ServiceRows::default();
        self.advertised = AdvertisedRows::default();
        self.endpoints = EndpointRows::default();
    }

    /// Handles a changed or deleted NodeServices. `exists`: its Node exists.
    pub(crate) fn set_node_services(&mut self, name: &Arc<str>, row: Option<NodeServicesRow>, exists: bool) {
        let changed = self.advertised.set(name, row);
        let Some(term) = &self.term else { return };
        if !exists {
            term.queues.nodes.add(Arc::clone(name));
        }
        match changed {
            Changed::All => self.reports_changed(),
            Changed::Addresses(addresses) => {
                for address in addresses {
                    if self.rows.claims.get(&address).is_some() {
                        term.queues.claims.add(address);
                    }
                }
            }
        }
    }

    /// Handles a deleted Node.
    pub(crate) fn node_removed(&mut self, name: &Arc<str>) {
        let Some(term) = &self.term else { return };
        if self.advertised.nodes.get(name).is_some() {
            term.queues.nodes.add(Arc::clone(name));
        }
    }

    /// Handles a changed EndpointSlice. None: a deleted one, or one that needs no row.
    /// Returns the Services for which it matters.
    pub(crate) fn set_slice(&mut self, slice: &Key, row: Option<SliceRow>) -> Vec<Key> {
        let services = self.endpoints.set(slice, row);
        if let Some(term) = &self.term {
            for service in &services {
                self.rows.claims_of(service).for_each(|(address, _)| term.queues.claims.add(address));
            }
        }
        services
    }

    /// Handles a change that may concern the status of every claim.
    pub(crate) fn reports_changed(&self) {
        let Some(term) = &self.term else { return };
        self.rows.claims.iter().for_each(|(address, _)| term.queues.claims.add(*address));
    }

    /// Handles an added or changed Service. None: a Service that needs no row.
    pub fn set_service(&mut self, key: &Key, row: Option<ServiceRow>) {
        let Some(row) = row else { return self.remove_service(key) };
        let Ok(old) = self.rows.set_service(key, row) else { return };
        let Some(new) = self.rows.services.get(key) else { return };
        if old.as_ref() == Some(new) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        if let Some(old) = old.as_ref().filter(|old| old.uid != new.uid) {
            term.ipam.remove_service(&old.uid);
        }
        term.ipam.set_service(&new.uid, new.exposure.clone());
        term.queues.services.add(key.clone());
        if old.is_some_and(|old| old.exposure != new.exposure) {
            // Services that share an address with this one, or want to.
            let mut causes: Vec<ServiceCause> = Vec::new();
            for (_, claim) in self.rows.claims_of(key) {
                claim.services.iter().for_each(|service| term.queues.services.add(service.key.clone()));
                causes.push(ServiceCause::SharingKey(Arc::clone(&claim.sharing_key)));
            }
            let pending = term.ipam.pending(key).iter();
            let keys = pending.filter_map(|(_, address)| term.ipam.sharing_key(*address).cloned());
            causes.extend(keys.map(ServiceCause::SharingKey));
            term.retry_waiting_for(causes);
        }
    }

    /// Handles a Service in the answer to a write of this process. The watch may have reported its end
    /// before the answer arrived: then nothing changes. If the current list lacks the Service, it is gone.
    pub fn learn_service(&mut self, key: &Key, uid: &str, row: Option<ServiceRow>) {
        if self.rows.services.get(key).is_none_or(|known| *known.uid != *uid) {
            return;
        }
        let is_before_list = self.rows.services.is_before_list(key);
        self.set_service(key, row);
        if is_before_list {
            self.rows.services.unmark(key);
        }
    }

    /// Handles a deleted Service.
    pub fn remove_service(&mut self, key: &Key) {
        let old = self.rows.services.remove(key);
        let Some(term) = &mut self.term else { return };
        if let Some(old) = &old {
            term.ipam.remove_service(&old.uid);
        }
        let has_claims = self.rows.claims_of(key).next().is_some();
        if old.is_some() || has_claims || !term.ipam.pending(key).is_empty() {
            term.waiting.remove(key);
            term.queues.services.add(key.clone());
        }
    }

    /// Handles an added or changed pool.
    pub fn set_pool(&mut self, name: &Arc<str>, row: PoolRow) {
        let old = self.rows.pools.set(Arc::clone(name), row);
        let Some(new) = self.rows.pools.get(name) else { return };
        let settings = old.as_ref().is_none_or(|old| old.settings != new.settings || old.uid != new.uid);
        let same = old.as_ref() == Some(new);
        let Some(term) = &mut self.term else { return };
        if settings {
            self.pools_changed();
        } else if !same {
            term.queues.pools.add(Arc::clone(name));
        }
    }

    /// Handles a deleted pool. Its addresses stay with their Services.
    pub fn remove_pool(&mut self, name: &Arc<str>) {
        if self.rows.pools.remove(name).is_some() {
            self.pools_changed();
        }
    }

    /// Handles a change of pools, Subnets or Nodes' addresses: the pools are configured again before
    /// the next plan.
    pub fn pools_changed(&mut self) {
        let Some(term) = &mut self.term else { return };
        term.dirty = true;
        for (name, _) in self.rows.pools.iter() {
            term.queues.pools.add(Arc::clone(name));
        }
        term.retry_waiting();
    }

    /// Handles a change of a namespace's labels.
    pub fn namespace_changed(&mut self, name: &Arc<str>) {
        if let Some(term) = &mut self.term {
            term.retry_waiting_for([ServiceCause::Namespace(Arc::clone(name))]);
        }
    }

    /// Handles an added or changed claim, from the watch or from the answer to a write.
    pub fn set_claim(&mut self, address: IpAddr, row: ClaimRow) {
        let Ok(old) = self.rows.set_claim(address, row) else { return };
        let Some(new) = self.rows.claims.get(&address) else { return };
        if old.as_ref() == Some(new) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        term.queues.claims.add(address);
        if old.as_ref().is_some_and(|old| old.is_same_allocation(new)) {
            // Only its status has changed.
            return;
        }
        adopt(&mut term.ipam, address, new);
        let named = old.iter().flat_map(|old| &old.services).chain(&new.services);
        for service in named.chain(term.ipam.holders(address)) {
            term.queues.services.add(service.key.clone());
        }
        if let Some(name) = term.ipam.pool_of(address) {
            term.queues.pools.add(Arc::clone(name));
        }
        if let Some(old) = &old {
            // A Service may have left it, or its sharing key may have changed.
            let keys = [&old.sharing_key, &new.sharing_key];
            let keys = keys.map(|key| ServiceCause::SharingKey(Arc::clone(key)));
            term.retry_waiting_for(keys.into_iter().chain([ServiceCause::Address(address)]));
        }
    }

    /// Handles a deleted claim: its address becomes free. `version` is the version of the deletion.
    pub fn remove_claim(&mut self, address: IpAddr, version: u64, now: Instant) {
        let Some(old) = self.rows.remove_claim(address, version) else { return };
        let Some(term) = &mut self.term else { return };
        let pool = term.ipam.pool_of(address).cloned();
        if let Some(name) = &pool {
            term.queues.pools.add(Arc::clone(name));
        }
        for service in old.services.iter().chain(term.ipam.holders(address)) {
            term.queues.services.add(service.key.clone());
        }
        if let Some(service) = old.services.into_iter().next() {
            term.released.insert(address, (now, service.key));
        }
        term.ipam.gone(address);
        let of_pool = pool.into_iter().flat_map(|name| [ServiceCause::Pool(name), ServiceCause::AnyPool]);
        term.retry_waiting_for(of_pool.chain([ServiceCause::Address(address)]));
    }

    /// Handles changed addresses of a Node. Addresses that no pool has change nothing: a kubelet can
    /// change those of its Node again and again.
    pub(crate) fn node_addresses_changed(&mut self, before: &[IpAddr], after: &[IpAddr]) {
        let only_before = before.iter().filter(|address| !after.contains(address));
        let changed = only_before.chain(after.iter().filter(|address| !before.contains(address)));
        let in_pool = |address: &IpAddr| {
            let mut pools = self.rows.pools.iter();
            pools.any(|(_, pool)| pool.settings.blocks.iter().any(|block| block.contains(*address)))
        };
        if changed.into_iter().any(in_pool) {
            self.pools_changed();
        }
    }

    /// Configures the pools again, if something has changed.
    pub fn refresh(&mut self, cluster: &Cluster) {
        let Some(term) = self.term.as_mut().filter(|term| term.dirty) else { return };
        term.dirty = false;
        let mut pools: Vec<_> = self.rows.pools.iter().collect();
        pools.sort_by(|(one, a), (other, b)| (a.created, one).cmp(&(b.created, other)));
        let definitions: Vec<_> =
            pools.into_iter().map(|(name, pool)| definition(cluster, name, pool)).collect();
        if term.configured != definitions {
            term.configured.clone_from(&definitions);
            term.ipam.configure(definitions);
        }
    }
}

fn adopt(ipam: &mut ServiceIpam, address: IpAddr, row: &ClaimRow) {
    ipam.adopt(&Claim { address, sharing_key: &row.sharing_key, services: &row.services });
}

/// The definition of a pool: its settings, and the ranges within it that Subnets and Nodes have. An
/// address of a Node that is younger than the pool stays in the pool: a compromised kubelet could
/// write all addresses of the pool into its Node.
fn definition(cluster: &Cluster, name: &Arc<str>, pool: &PoolRow) -> PoolDefinition {
    let settings = &pool.settings;
    let mut foreign = Vec::new();
    let mut add = |span: Span, owner: String| {
        if settings.blocks.iter().any(|block| block.overlaps(&span)) {
            foreign.push(ForeignSpan { span, owner: owner.into() });
        }
    };
    for subnet in cluster.subnets() {
        let Ok(range) = subnet.spec.range.parse() else { continue };
        let shares = settings.l2_network.as_deref() == Some(subnet.spec.network.as_str());
        let owner = format!("Subnet {}", subnet.name());
        if shares {
            allocated_by_subnet(subnet, &range).into_iter().for_each(|span| add(span, owner.clone()));
        } else {
            add(Span { first: range.cidr.network(), last: range.cidr.broadcast() }, owner);
        }
    }
    let is_older = |node: &NodeRow| node.created <= pool.created;
    for (node, row) in cluster.nodes().filter(|(_, row)| is_older(row)) {
        row.addresses.iter().for_each(|address| add(Span::single(*address), format!("Node {node}")));
    }
    let mut ignored = Vec::new();
    for (node, row) in cluster.nodes().filter(|(_, row)| !is_older(row)) {
        let within = |address: &&IpAddr| settings.blocks.iter().any(|block| block.contains(**address));
        let spans = row.addresses.iter().filter(within).copied().map(Span::single);
        ignored.extend(spans.map(|span| ForeignSpan { span, owner: format!("Node {node}").into() }));
    }
    for spans in [&mut foreign, &mut ignored] {
        spans.sort_by(|one, other| (one.span, &one.owner).cmp(&(other.span, &other.owner)));
    }
    PoolDefinition {
        name: Arc::clone(name),
        blocks: settings.blocks.clone(),
        excluded: settings.excluded.clone(),
        foreign,
        ignored,
        skip_zero_and_255: settings.skip_zero_and_255,
        automatic: settings.automatic,
        priority: settings.priority,
        is_l2: settings.l2_network.is_some(),
    }
}

/// The addresses of a Subnet that an L2 pool of its Network may not have: those that pods get, the
/// gateway, and the addresses with a meaning of their own.
pub(crate) fn allocated_by_subnet(subnet: &Subnet, range: &ParsedRange) -> Vec<Span> {
    let excluded: Vec<Span> = range.excluded.iter().copied().map(Span::single).collect();
    let mut spans = Span { first: range.first, last: range.last }.without(&excluded);
    spans.extend(range.gateway.map(Span::single));
    spans.push(Span::single(range.cidr.network()));
    if subnet.spec.range.version == IpVersion::V4 {
        spans.push(Span::single(range.cidr.broadcast()));
    }
    spans
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod model_tests;

#[cfg(test)]
mod bounds_tests;
