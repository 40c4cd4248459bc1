//! The fast path of service addresses: Services, EndpointSlices, local pods, the node's state and
//! the service proxy's rules become prefixes that this node originates.
//!
//! ```text
//!  API server ──Services, EndpointSlices, Namespaces, Node──►┌─────────────────┐
//!  service proxy ──ProxyState──────────────────────────────►│ services task   │──ServicePrefixes──► reconcile task
//!  kernel (nf_tables) ──RuleChanges────────────────────────►│ rows, decisions,│◄──AppliedPrefixes──┘
//!  reconcile task ──ServicesPlan, LocalPods, DrainStage────►│ prefixes        │──ServiceView──────► views
//!                                                           └─────────────────┘──services.json─────► next run
//! ```
//!
//! - `rows` has Services and EndpointSlices in compact form. Remote endpoints are counts.
//! - `advertisements` selects the ServiceAdvertisements of an address.
//! - `decide` decides whether this node advertises an address. It is a pure function.
//! - `prefixes` merges addresses into originations.
//! - `endpoints` knows which endpoints are local and have a host route.
//! - `bounds` has the bounds of Services and EndpointSlices.
//! - `cache` keeps what was advertised for the next run.
//! - [`proxy`] observes the service proxy: its health and its rules.
//! - `task` owns all of this.
//!
//! The slow path (pools and advertisements) is part of the plan, because it changes the export
//! policy of peers. It arrives here as [`ServicesPlan`].
//!
//! - [`l2`] decides which node answers for an address in a VLAN.
//! - [`anycast`] has addresses of the host itself, advertised while a health check passes.
//!
//! This module's types name no other part of the agent, so the parts that make and use them import
//! this module and not the reverse.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use trunkline_api::control::ProxyRulesState;
use trunkline_api::kept::BoundedLabels;
use trunkline_api::resources::{AddressBlock, AggregationLength, LabelSelector};
use trunkline_bgp::net::SpeakerHandle;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::Tag;

use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::metrics::Metrics;

use bounds::Excess;

mod advertisements;
pub mod anycast;
pub mod bounds;
mod cache;
pub mod decide;
mod endpoints;
mod engine;
pub mod l2;
mod prefixes;
mod report;
mod rows;
mod task;
#[cfg(test)]
mod truth_tests;
mod view;

pub use engine::Counts;
pub use task::{Services, Summary, spawn};
pub use trunkline_api::service::{AddressKind, PortKey, Protocol, TrafficPolicy};

pub mod proxy;

// ---- inputs from the API server

/// The rows of one watch, as they change.
#[derive(Clone, Debug, PartialEq)]
pub enum RowChange<T> {
    /// A page of a list. [`RowChange::Listed`] follows, or the first page of another attempt.
    Page {
        /// Whether this page begins a list.
        is_first: bool,
        /// The page's objects.
        rows: Vec<T>,
    },
    /// These objects exist, with those of the pages before, and no others.
    Listed(Vec<T>),
    /// This object is new or changed.
    Applied(T),
    /// This object was deleted.
    Deleted(T),
}

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The Namespace.
    pub namespace: Arc<str>,
    /// The Service's name.
    pub name: Arc<str>,
}

/// A Service, as far as its addresses need it. Headless Services have no address, so the watch
/// leaves them out, as it leaves out Services of the type ExternalName.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceInput {
    /// Namespace and name.
    pub key: ServiceKey,
    /// Labels, for `serviceSelector`. If they are too large, only an advertisement without this
    /// selector selects the Service.
    pub labels: BoundedLabels,
    /// Whether `type` is LoadBalancer.
    pub load_balancer: bool,
    /// `spec.loadBalancerClass`.
    pub class: Option<Arc<str>>,
    /// Whether another service proxy handles it (label `service.kubernetes.io/service-proxy-name`).
    pub other_proxy: bool,
    /// `status.loadBalancer.ingress[].ip`, without entries of `ipMode: Proxy`.
    pub load_balancer_addresses: Vec<IpAddr>,
    /// `spec.externalIPs`. Empty while no advertisement has addresses of this kind.
    pub external_addresses: Vec<IpAddr>,
    /// `spec.clusterIPs`, without `None`. Empty while no advertisement has addresses of this kind.
    pub cluster_addresses: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.externalTrafficPolicy`, for LoadBalancer and external addresses.
    pub external_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`, for cluster addresses.
    pub internal_policy: TrafficPolicy,
    /// The bound that the Service exceeds. Then it has no ports, or not all of its addresses.
    pub excess: Option<Excess>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// The protocol.
    pub protocol: Protocol,
    /// `port`, which clients use.
    pub port: u16,
    /// `name`: EndpointSlices refer to it. Empty if the Service has one port without a name.
    pub name: Arc<str>,
}

/// Namespace and name of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    /// The Namespace.
    pub namespace: Arc<str>,
    /// The EndpointSlice's name.
    pub name: Arc<str>,
}

/// An EndpointSlice in compact form. Slices with `addressType: FQDN` are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceInput {
    /// Namespace and name.
    pub key: SliceKey,
    /// The Service's name: label `kubernetes.io/service-name`.
    pub service: Arc<str>,
    /// Whether `addressType` is IPv6.
    pub v6: bool,
    /// The slice's ports by name and protocol. A Service's port without any entry has no endpoint
    /// in this slice.
    pub ports: Box<[(Arc<str>, Protocol)]>,
    /// The bound that the slice exceeds. Then it has no ports.
    pub excess: Option<Excess>,
    /// Ready endpoints on other nodes.
    pub remote_ready: u32,
    /// Endpoints on other nodes that are serving and terminating, and not ready.
    pub remote_terminating: u32,
    /// Endpoints on this node.
    pub local: Box<[LocalEndpoint]>,
}

impl SliceInput {
    /// Counts endpoints: [`Self::remote_ready`], [`Self::remote_terminating`], [`Self::local`].
    pub fn count(endpoints: impl Iterator<Item = EndpointInput>) -> (u32, u32, Box<[LocalEndpoint]>) {
        let (mut ready, mut terminating, mut local) = (0, 0, Vec::new());
        for endpoint in endpoints {
            let condition = endpoint.condition();
            match condition {
                _ if endpoint.local => local.push(LocalEndpoint { address: endpoint.address, condition }),
                EndpointCondition::Ready => ready += 1,
                EndpointCondition::Terminating => terminating += 1,
                EndpointCondition::NotReady => {}
            }
        }
        (ready, terminating, local.into_boxed_slice())
    }
}

/// An endpoint of an EndpointSlice, before it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointInput {
    /// The first entry of `addresses`: all entries mean the same endpoint.
    pub address: IpAddr,
    /// Whether `nodeName` is this node.
    pub local: bool,
    /// The condition `ready`; an absent one is true.
    pub ready: bool,
    /// The condition `serving`; an absent one equals `ready`.
    pub serving: bool,
    /// The condition `terminating`; an absent one is false.
    pub terminating: bool,
}

impl EndpointInput {
    /// The condition for a service proxy: it uses endpoints that are serving and terminating only
    /// if no endpoint is ready.
    pub fn condition(&self) -> EndpointCondition {
        match (self.ready, self.serving && self.terminating) {
            (true, _) => EndpointCondition::Ready,
            (false, true) => EndpointCondition::Terminating,
            (false, false) => EndpointCondition::NotReady,
        }
    }
}

/// An endpoint on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LocalEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its condition.
    pub condition: EndpointCondition,
}

/// The condition of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndpointCondition {
    /// It receives new connections.
    Ready,
    /// It terminates and still serves.
    Terminating,
    /// It receives nothing.
    NotReady,
}

/// A Namespace's labels, for `namespaceSelector`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInput {
    /// The Namespace's name.
    pub name: Arc<str>,
    /// Its labels. If they are too large, only an advertisement without this selector selects its
    /// Services.
    pub labels: BoundedLabels,
}

/// This node, as its Node object describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInput {
    /// Labels, for `nodeSelector` and for the label that excludes the node from load balancers.
    pub labels: BTreeMap<String, String>,
    /// `spec.unschedulable`.
    pub cordoned: bool,
}

// ---- inputs from the service proxy

/// The state of the service proxy on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyState {
    /// Its health.
    pub health: ProxyHealth,
    /// Its rules, as far as they can be seen. `None`: this is not known yet. Before any other value
    /// than NotVisible, complete [`RuleChanges`] were sent.
    pub rules: Option<ProxyRulesState>,
}

/// The health of the service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHealth {
    /// It answers, and its answer is 200.
    Up,
    /// It does not answer, since this moment.
    Away {
        /// The start of this state.
        since: Instant,
    },
    /// Its answer is 503.
    Unhealthy,
    /// Its answer is 503, because the cluster autoscaler deletes this node (`nodeEligible: false`).
    NotEligible,
    /// `services.proxy.kind` is `none`: nothing is known about the proxy, and nothing is required.
    NotChecked,
    /// The first request has no answer yet.
    Unknown,
}

/// Changes of the service proxy's rules, in one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// Whether `changes` has all rules of the watched prefixes: a port without an entry is
    /// [`PortRules::Missing`].
    pub complete: bool,
    /// The changed ports.
    pub changes: Vec<RuleChange>,
}

/// The rules for one port of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Its rules now.
    pub rules: PortRules,
}

/// What the service proxy's rules do with a packet for one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortRules {
    /// A rule translates it to an endpoint.
    Forwarded,
    /// A rule drops or rejects it, because there is no endpoint.
    Blocked,
    /// No rule matches it.
    Missing,
}

// ---- inputs from the reconcile task

/// Addresses of this node's endpoints: the reconcile task sends every change. The first value has
/// the last run's pods with existing devices, because their host routes are in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPods {
    /// Addresses with a host route to a pod of this node.
    pub pods: Arc<BTreeSet<IpAddr>>,
    /// Addresses of this host, for pods with `hostNetwork`.
    pub host: Arc<BTreeSet<IpAddr>>,
}

/// The plan's part for service addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServicesPlan {
    /// Whether pools and advertisements were listed since the start (an absent CRD counts as an
    /// empty list). False for a plan from the cache of the last run.
    pub complete: bool,
    /// Whether a BGP network is on this node.
    pub bgp: bool,
    /// The pools.
    pub pools: Vec<PlannedPool>,
    /// The advertisements by name.
    pub advertisements: BTreeMap<Arc<str>, PlannedAdvertisement>,
    /// Whether the cluster has no ServiceAdvertisement at all, not even an unreadable one: then
    /// LoadBalancer addresses of the pools are advertised to all peers.
    pub default_advertisement: bool,
}

/// A ServicePool in the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPool {
    /// Its name.
    pub name: Arc<str>,
    /// Its blocks.
    pub blocks: Vec<AddressBlock>,
    /// Whether its mode is BGP.
    pub bgp: bool,
    /// In mode L2: the prefixes of the Network's Subnets with a device on this node.
    pub links: Vec<IpNet>,
}

/// A ServiceAdvertisement in the plan. Its attributes are in the peers' export policies.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAdvertisement {
    /// The origination tag that the peers' export policies match. No other advertisement of this
    /// process has or had it.
    pub tag: Tag,
    /// Selects Services.
    pub services: LabelSelector,
    /// Selects Namespaces.
    pub namespaces: LabelSelector,
    /// Selects nodes.
    pub nodes: LabelSelector,
    /// The peers as the object names them, for views; empty: all.
    pub peers: Vec<String>,
    /// Selects pools of LoadBalancer addresses; empty: all.
    pub pools: BTreeSet<Arc<str>>,
    /// The kinds of addresses.
    pub kinds: BTreeSet<AddressKind>,
    /// External addresses must be in one of these.
    pub external_cidrs: Vec<IpNet>,
    /// Whether a cordoned node withdraws.
    pub withdraw_cordoned: bool,
    /// Whether a node with the label `node.kubernetes.io/exclude-from-external-load-balancers`
    /// withdraws.
    pub withdraw_excluded: bool,
    /// Length of the advertised prefixes.
    pub aggregation: AggregationLength,
    /// Whether originations have a link bandwidth that follows the local endpoints.
    pub weights: bool,
    /// Time between GRACEFUL_SHUTDOWN and withdrawal.
    pub graceful_shutdown: Duration,
}

// ---- output to the reconcile task

/// Changes of the originated prefixes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServicePrefixes {
    /// Prefixes with their new origination; none: withdraw.
    pub changes: Vec<(IpNet, Option<Origination>)>,
    /// Whether the originations are complete, so that End-of-RIB may follow. Once true, it stays.
    pub ready: bool,
}

/// The reconcile task has [`ServicePrefixes`], and has sent them to the speaker.
#[derive(Clone, Debug, Default)]
pub struct AppliedPrefixes {
    /// The speaker that advertises them; none if no speaker runs or the node advertises nothing.
    pub speaker: Option<SpeakerHandle>,
}

/// Sends [`ServicePrefixes`] to the reconcile task. The answer is `None` if that task has ended.
pub type ApplyPrefixes = Box<dyn Fn(ServicePrefixes) -> BoxFuture<'static, Option<AppliedPrefixes>> + Send>;

// ---- output to the service proxy's observers

/// Requests to the observers of the service proxy.
#[derive(Debug)]
pub struct ProxyRequests {
    /// Prefixes with service addresses: the rules of these are reported. After a change, the next
    /// [`RuleChanges`] is complete.
    pub interest: watch::Sender<Vec<IpNet>>,
    /// Notified when an expected change of the rules is late: the proxy's health is requested once.
    pub check: Arc<Notify>,
}

// ---- the task

/// An input of the task.
#[derive(Debug)]
pub enum ServicesInput {
    /// Services.
    Services(RowChange<ServiceInput>),
    /// EndpointSlices of Services that are not headless. They may arrive before their Service.
    Slices(RowChange<SliceInput>),
    /// Namespaces. While no selector needs them, there is no watch and no input.
    Namespaces(RowChange<NamespaceInput>),
    /// This node.
    Node(NodeInput),
    /// The service proxy's health.
    Proxy(ProxyState),
    /// The service proxy's rules.
    Rules(RuleChanges),
    /// The holders of addresses in VLANs.
    Holders(l2::Holders),
}

/// The stage of a drain, as far as service addresses need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeStage {
    /// The node is undrained.
    #[default]
    Active,
    /// Its routes carry GRACEFUL_SHUTDOWN.
    Announcing,
    /// It advertises nothing.
    Withdrawn,
}

/// Settings of the task from the node's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `services.proxy.restartSeconds`: the time for which the rules of a service proxy that does
    /// not answer count as current.
    pub restart: Duration,
    /// `services.proxy.settleMilliseconds`: the time after which rules that cannot be seen count as
    /// current.
    pub settle: Duration,
    /// `services.proxy.healthAddress`, for texts.
    pub proxy_address: String,
    /// The class of Trunkline's Services.
    pub class: Arc<str>,
    /// The time for which the first advertisements wait for the Services: the speaker's selection
    /// deferral. Shortly before its end, addresses of the last run that nothing contradicts are
    /// advertised.
    pub deferral: Duration,
    /// The file with the state for the next run.
    pub cache: PathBuf,
}

/// The inputs and outputs of the task.
pub struct Dependencies {
    /// Its settings.
    pub settings: Settings,
    /// Its inputs.
    pub inbox: mpsc::Receiver<ServicesInput>,
    /// The plan's part for service addresses; none before the first plan.
    pub plan: watch::Receiver<Option<Arc<ServicesPlan>>>,
    /// Addresses of this node's endpoints.
    pub local_pods: watch::Receiver<LocalPods>,
    /// The stage of a drain.
    pub stage: watch::Receiver<NodeStage>,
    /// Sends prefixes to the reconcile task.
    pub apply: ApplyPrefixes,
    /// Requests to the observers of the service proxy.
    pub proxy: ProxyRequests,
    /// The addresses in VLANs that this node can serve.
    pub candidates: watch::Sender<l2::Candidates>,
    /// The event history.
    pub history: History,
    /// The time from an event to the peers.
    pub metrics: Metrics,
    /// Notified when [`Services::view`] changes.
    pub notifier: ChangeNotifier,
}
