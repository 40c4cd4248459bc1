//! Rows of Services, pools and claims: the fields that decisions need.
//!
//! Only Services of type LoadBalancer, and those that were of this type, have a row. Rows of a newer
//! version stay when an older event of the watch arrives, because the answers to this process's own
//! writes come earlier.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::ObjectMeta;
use rustc_hash::FxHasher;
use trunkline_api::fault::Fault;
use trunkline_api::kept;
use trunkline_api::kube::{Lenient, Object, ServiceAddressObject};
use trunkline_api::names::{condition, full_name};
use trunkline_api::resources::{
    IpVersion, LabelSelector, PoolMode, ServiceAddressSpec, ServiceAddressStatus, ServicePoolSpec,
    ServicePoolStatus,
};
use trunkline_api::service::{ServiceRequest, conflicts, request_annotations};

use super::ipam::{Exposure, PoolSelection, ServiceId, Span};
use super::object::{LoadBalancerStatus, Service, ServicePort};
use crate::cluster::{Interner, Key, Table, all_labels, version};
use crate::ipam::named_address;

/// Row of a Service of type LoadBalancer, or of one that was of this type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its resourceVersion, for the precondition of a write.
    pub resource_version: Box<str>,
    /// Its resourceVersion as a number; 0 if the API server's versions are no numbers.
    pub version: u64,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Whether its type is LoadBalancer.
    pub load_balancer: bool,
    /// Its loadBalancerClass.
    pub class: Option<Arc<str>>,
    /// Its labels, for the selectors of pools.
    pub labels: BTreeMap<String, String>,
    /// The families of its addresses, in order.
    pub families: Vec<IpVersion>,
    /// Whether it needs an address of each family: false for PreferDualStack.
    pub needs_all: bool,
    /// Ports, policy and selector.
    pub exposure: Exposure,
    /// The requested addresses, or the fault of the request.
    pub request: Result<ServiceRequest, Box<str>>,
    /// Annotations with different values of one meaning.
    pub conflicts: Vec<Box<str>>,
    /// The addresses of its status.
    pub ingress: Vec<IpAddr>,
    /// Whether its status has the addresses in another form than Trunkline writes: with a host name,
    /// or with another ipMode than VIP.
    pub foreign_ingress: bool,
    /// The condition `trunkline.io/AddressAllocated`.
    pub condition: Option<AllocatedCondition>,
}

/// The condition `trunkline.io/AddressAllocated` of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedCondition {
    /// Whether the Service has an address.
    pub status: bool,
    /// One word.
    pub reason: Box<str>,
    /// The reason with the fix; empty without a fault.
    pub message: Box<str>,
    /// Time of the last change of the status.
    pub since: Box<str>,
}

/// Row of a ServicePool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// The fields of the spec; the last readable ones if the object cannot be read.
    pub settings: PoolSettings,
    /// The reason why the object cannot be read.
    pub unreadable: Option<Arc<str>>,
    /// The status on the API server.
    pub status: Option<ServicePoolStatus>,
}

/// The fields of a ServicePool's spec, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    /// Its ranges.
    pub blocks: Vec<Span>,
    /// Ranges that are never allocated.
    pub excluded: Vec<Span>,
    /// Whether .0 and .255 are allocated only by request.
    pub skip_zero_and_255: bool,
    /// Whether addresses are allocated without a request for the pool.
    pub automatic: bool,
    /// The order of the pools.
    pub priority: u32,
    /// One of these must select the Service.
    pub service_selectors: Vec<LabelSelector>,
    /// One of these must select the Service's namespace.
    pub namespace_selectors: Vec<LabelSelector>,
    /// The Network of an L2 pool.
    pub l2_network: Option<Arc<str>>,
}

/// Row of a ServiceAddress.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its resourceVersion, for the precondition of a write.
    pub resource_version: Box<str>,
    /// Its resourceVersion as a number; 0 if the API server's versions are no numbers.
    pub version: u64,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// Its pool.
    pub pool: Arc<str>,
    /// Its sharing key; empty without one.
    pub sharing_key: Arc<str>,
    /// Its Services.
    pub services: Vec<ServiceId>,
    /// Whether its spec could be read. If not, its address is allocated to nobody.
    pub readable: bool,
    /// The status on the API server.
    pub status: Option<ServiceAddressStatus>,
}

impl ServiceRow {
    /// Row of a Service from the API server; none for a Service that needs no row.
    pub fn of(service: &Service, interner: &mut Interner) -> Option<Self> {
        let (metadata, spec) = (&service.metadata, &service.spec);
        let own = service.status.conditions.iter().find(|one| one.type_ == condition::ADDRESS_ALLOCATED);
        if !service.is_load_balancer() && own.is_none() {
            return None;
        }
        let empty = BTreeMap::new();
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let name = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
        let (namespace, name) = (name(&metadata.namespace), name(&metadata.name));
        let size = size_fault(service);
        let (annotations, ip) = match size {
            None => (annotations, spec.load_balancer_ip.as_deref()),
            Some(_) => (&empty, None),
        };
        let request = ServiceRequest::read(&namespace, &name, annotations, ip);
        let request = request
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ").into());
        let LoadBalancerStatus { ingress } = &service.status.load_balancer;
        Some(ServiceRow {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            resource_version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            version: version(metadata),
            created: created(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            load_balancer: service.is_load_balancer(),
            class: spec.load_balancer_class.as_deref().map(|class| interner.get(class)),
            labels: all_labels(metadata).unwrap_or_default(),
            families: spec.ip_families.iter().filter_map(|family| family.version()).collect(),
            needs_all: spec.ip_family_policy.as_deref() != Some("PreferDualStack"),
            exposure: Exposure {
                ports: spec.ports.iter().filter_map(ServicePort::key).take(kept::MAX_SERVICE_PORTS).collect(),
                policy: spec.policy(),
                selector: hash(&spec.selector),
            },
            request: size.map_or(request, |fault| Err(fault.to_string().into())),
            conflicts: conflicts(annotations).iter().map(|conflict| conflict.to_string().into()).collect(),
            ingress: ingress.iter().filter_map(|point| point.ip.as_deref()?.parse().ok()).collect(),
            foreign_ingress: ingress.iter().any(|point| {
                point.hostname.as_deref().is_some_and(|name| !name.is_empty())
                    || point.ip_mode.as_deref().is_some_and(|mode| mode != "VIP")
            }),
            condition: own.map(|own| AllocatedCondition {
                status: own.status == "True",
                reason: own.reason.as_str().into(),
                message: own.message.as_str().into(),
                since: own.last_transition_time.as_str().into(),
            }),
        })
    }

    /// The requested pool.
    pub fn pool(&self) -> Option<&str> {
        self.request.as_ref().ok()?.pool.as_deref()
    }

    /// The sharing key; empty without one.
    pub fn sharing_key(&self) -> &str {
        self.request.as_ref().ok().and_then(|request| request.sharing_key.as_deref()).unwrap_or_default()
    }

    /// The order of Services of which only one can have an address: the oldest one first.
    pub fn age(&self) -> (Option<Timestamp>, &str) {
        (self.created, &self.uid)
    }
}

/// The fault of a Service whose parts exceed their bounds.
fn size_fault(service: &Service) -> Option<Fault> {
    let (metadata, spec) = (&service.metadata, &service.spec);
    let name = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let fault = |field: &str, message: String| {
        let name = full_name(&name(&metadata.namespace), &name(&metadata.name));
        Some(Fault { kind: "Service", name, field: field.to_owned(), message })
    };
    if let Err(error) = all_labels(metadata) {
        return fault("metadata.labels", error.to_string());
    }
    let read: Vec<&str> = request_annotations().collect();
    let octets = kept::octets_of(metadata.annotations.as_ref(), &read)
        + spec.load_balancer_ip.as_deref().map_or(0, str::len);
    if let Err(error) = kept::check(octets, kept::MAX_SERVICE_ANNOTATIONS) {
        return fault("metadata.annotations about addresses", error.to_string());
    }
    let (count, most) = (spec.ports.len(), kept::MAX_SERVICE_PORTS);
    if count > most {
        return fault(
            "spec.ports",
            format!("has {count} ports, and at most {most} are allowed: write fewer"),
        );
    }
    None
}

fn hash(selector: &Option<BTreeMap<String, String>>) -> u64 {
    let mut hasher = FxHasher::default();
    selector.hash(&mut hasher);
    hasher.finish()
}

fn created(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.creation_timestamp.as_ref().map(|time| time.0)
}

impl PoolRow {
    /// Row of a ServicePool from the API server. Of an unreadable object the settings of the
    /// previous row stay.
    pub fn of(object: &Lenient<ServicePoolSpec>, before: Option<&PoolRow>) -> Self {
        let metadata = kube::Resource::meta(object);
        let read = match &object.0 {
            Ok(object) => PoolSettings::of(&object.spec),
            Err(unreadable) => Err(unreadable.to_string()),
        };
        let (settings, unreadable) = match read {
            Ok(settings) => (settings, None),
            Err(text) => (before.map(|row| row.settings.clone()).unwrap_or_default(), Some(text.into())),
        };
        PoolRow {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            created: created(metadata),
            generation: metadata.generation,
            settings,
            unreadable,
            status: object.0.as_ref().ok().and_then(|object| object.status.clone()),
        }
    }

    /// Whether the pool selects a Service with these labels in a namespace with these labels. Without
    /// labels, because they exceed their bound, only a pool for all namespaces selects the Service.
    pub fn selection(
        &self,
        service: &BTreeMap<String, String>,
        namespace: Option<&BTreeMap<String, String>>,
    ) -> PoolSelection {
        let selectors = &self.settings.namespace_selectors;
        let selects = |labels| LabelSelector::any_selects(selectors, labels);
        if !namespace.map_or(selectors.is_empty(), selects) {
            PoolSelection::OtherNamespace
        } else if !LabelSelector::any_selects(&self.settings.service_selectors, service) {
            PoolSelection::OtherLabels
        } else {
            PoolSelection::Selected
        }
    }
}

impl PoolSettings {
    /// The fields of a spec.
    ///
    /// # Errors
    /// An address cannot be read. The text names the field.
    pub fn of(spec: &ServicePoolSpec) -> Result<Self, String> {
        let spans = |blocks: Vec<_>| blocks.into_iter().map(Span::from).collect();
        Ok(PoolSettings {
            blocks: spec.blocks().map(spans).map_err(|error| format!("spec.addresses: {error}"))?,
            excluded: spec.excluded().map(spans).map_err(|error| format!("spec.exclude: {error}"))?,
            skip_zero_and_255: spec.exclude_zero_and_255,
            automatic: spec.is_automatic(),
            priority: spec.rank(),
            service_selectors: spec.service_selectors.clone(),
            namespace_selectors: spec.namespace_selectors.clone(),
            l2_network: match (spec.mode, &spec.l2) {
                (PoolMode::L2, Some(l2)) => Some(l2.network.as_str().into()),
                _ => None,
            },
        })
    }
}

impl ClaimRow {
    /// Address and row of a ServiceAddress from the API server; none if the name is not that of an
    /// address. Trunkline writes no such object.
    pub fn of(object: &Lenient<ServiceAddressSpec>) -> Option<(IpAddr, ClaimRow)> {
        match &object.0 {
            Ok(object) => ClaimRow::readable(object),
            Err(unreadable) => {
                let metadata = &unreadable.metadata;
                let address = named_address(metadata.name.as_deref()?)?;
                Some((address, ClaimRow::bare(metadata)))
            }
        }
    }

    /// Address and row of a readable ServiceAddress.
    pub fn readable(object: &ServiceAddressObject) -> Option<(IpAddr, ClaimRow)> {
        let Object { metadata, spec, status, .. } = object;
        let address = named_address(object.name())?;
        let mut row = ClaimRow::bare(metadata);
        if spec.address().ok() != Some(address) {
            return Some((address, row));
        }
        row.readable = true;
        row.status.clone_from(status);
        row.pool = spec.pool.as_str().into();
        row.sharing_key = spec.sharing_key.as_str().into();
        row.services = spec
            .services
            .iter()
            .map(|service| ServiceId {
                key: Key::new(service.namespace.as_str(), service.name.as_str()),
                uid: service.uid.as_str().into(),
            })
            .collect();
        Some((address, row))
    }

    /// Whether this is another version of one claim, with the same Services.
    pub fn is_same_allocation(&self, other: &ClaimRow) -> bool {
        let parts = |row: &ClaimRow| {
            let ClaimRow { uid, pool, sharing_key, readable, .. } = row;
            (Arc::clone(uid), Arc::clone(pool), Arc::clone(sharing_key), *readable)
        };
        parts(self) == parts(other) && self.services == other.services
    }

    fn bare(metadata: &ObjectMeta) -> ClaimRow {
        ClaimRow {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            resource_version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            version: version(metadata),
            created: created(metadata),
            pool: "".into(),
            sharing_key: "".into(),
            services: Vec::new(),
            readable: false,
            status: None,
        }
    }
}

/// The rows. Only the leader has them.
#[derive(Default)]
pub struct ServiceRows {
    /// Services of type LoadBalancer, and others with the condition of one.
    pub services: Table<Key, ServiceRow>,
    /// ServicePools.
    pub pools: Table<Arc<str>, PoolRow>,
    /// ServiceAddresses.
    pub claims: Table<IpAddr, ClaimRow>,
    /// The claims that name a Service of this name, whatever its UID.
    claims_of: HashMap<Key, BTreeSet<IpAddr>>,
}

/// The event is older than the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

impl ServiceRows {
    /// The addresses of claims that name a Service of this name, in order.
    pub fn claims_of(&self, key: &Key) -> impl Iterator<Item = (IpAddr, &ClaimRow)> {
        let addresses = self.claims_of.get(key).into_iter().flatten();
        addresses.filter_map(|address| Some((*address, self.claims.get(address)?)))
    }

    /// Inserts a Service unless its row is newer. `Ok` returns the replaced row.
    pub(super) fn set_service(&mut self, key: &Key, row: ServiceRow) -> Result<Option<ServiceRow>, Stale> {
        let before = self.services.is_before_list(key);
        self.services.note(key);
        // A Service with another UID is another object.
        let newer = |known: &ServiceRow| known.uid == row.uid && known.version > row.version;
        if !before && self.services.get(key).is_some_and(newer) {
            return Err(Stale);
        }
        Ok(self.services.set(key.clone(), row))
    }

    /// Inserts a claim unless its row is newer. `Ok` returns the replaced row.
    pub(super) fn set_claim(&mut self, address: IpAddr, row: ClaimRow) -> Result<Option<ClaimRow>, Stale> {
        let before = self.claims.is_before_list(&address);
        self.claims.note(&address);
        if !before && self.claims.get(&address).is_some_and(|known| known.version > row.version) {
            return Err(Stale);
        }
        self.unindex(address);
        for service in &row.services {
            self.claims_of.entry(service.key.clone()).or_default().insert(address);
        }
        Ok(self.claims.set(address, row))
    }

    /// Removes a claim. If its row is newer than the deletion, the object was created again, and the
    /// row stays.
    pub(super) fn remove_claim(&mut self, address: IpAddr, version: u64) -> Option<ClaimRow> {
        if self.claims.get(&address)?.version > version {
            return None;
        }
        self.unindex(address);
        self.claims.remove(&address)
    }

    fn unindex(&mut self, address: IpAddr) {
        let Some(row) = self.claims.get(&address) else { return };
        for service in &row.services {
            if let Some(addresses) = self.claims_of.get_mut(&service.key) {
                addresses.remove(&address);
                if addresses.is_empty() {
                    self.claims_of.remove(&service.key);
                }
            }
        }
    }
}
