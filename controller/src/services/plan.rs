//! The plan for a Service: the writes that carry out a decision, in an order that is safe at each
//! point.
//!
//! An address is in a Service's status only while a claim names the Service. So a claim is written
//! before the status, and it is left after the status. A process that ends between two writes leaves
//! a claim that the status does not have yet, or does not have any more; the next leader decides
//! from that.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::{Duration, Instant};
use trunkline_api::resources::IpVersion;

use super::decide::{HeldClaim, Serve, ServiceDecision, ServiceFault, decide};
use super::ipam::span::version;
use super::ipam::{AllocateError, PoolSelection, ServiceId, ServiceIpam, SharingFault, Wanted};
use super::rows::{AllocatedCondition, ServiceRow, ServiceRows};
use super::{ServiceCause, ServiceState, ServiceTerm};
use crate::cluster::{Cluster, Key};

/// The time after which a released address can be requested by another Service. Until then, nodes
/// may still advertise it for the previous Service.
pub const RELEASE_PAUSE: Duration = Duration::from_secs(2);

/// Most pools whose free addresses a waiting Service has as causes; above, it waits for any pool.
pub const MAX_POOL_CAUSES: usize = 8;

/// A write for a Service. The next one is sent only after the previous one has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceWrite {
    /// Find out whether the claim of this address was created for a Service that does not need it
    /// any more.
    Settle {
        /// The address.
        address: IpAddr,
        /// The Service that it was set aside for.
        service: ServiceId,
    },
    /// Create the claim of a free address.
    CreateClaim {
        /// The address.
        address: IpAddr,
        /// Its pool.
        pool: Arc<str>,
        /// The sharing key; empty without one.
        sharing_key: Arc<str>,
    },
    /// Add the Service to the claim of an address that it shares.
    JoinClaim {
        /// The address.
        address: IpAddr,
    },
    /// Change the sharing key of a claim that only this Service has.
    ChangeKey {
        /// The address.
        address: IpAddr,
        /// The new key; empty without one.
        sharing_key: Arc<str>,
    },
    /// Write the addresses and the condition into the Service's status.
    WriteStatus(StatusWrite),
    /// Remove Services of this name from a claim: this UID, or all if there is none. A claim without
    /// a Service is deleted.
    LeaveClaim {
        /// The address.
        address: IpAddr,
        /// Services with this UID stay.
        stays: Option<Arc<str>>,
    },
}

/// The new status of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusWrite {
    /// Its UID.
    pub uid: Arc<str>,
    /// The version that the decision is based on.
    pub resource_version: Box<str>,
    /// The addresses; none if they stay as they are.
    pub addresses: Option<Vec<IpAddr>>,
    /// The change of the condition.
    pub condition: ConditionWrite,
}

/// The change of the condition of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionWrite {
    /// It stays.
    Keep,
    /// It is set. The time is that of its last change, or empty for the time of the write.
    Set(AllocatedCondition),
    /// It is removed.
    Remove,
}

/// The plan for a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// The writes, in order.
    pub writes: Vec<ServiceWrite>,
    /// Whether the Service is planned again after the writes.
    pub again: bool,
    /// The reason why the Service does not have the addresses that it requests.
    pub fault: Option<ServiceFault>,
    /// Texts of warnings.
    pub warnings: Vec<(Warning, String)>,
    /// A requested address was released by another Service a moment ago: plan again later.
    pub paused: Option<IpAddr>,
}

/// Kind of a warning about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Two annotations of one meaning differ.
    Annotations,
    /// The address of its status is not its address any more.
    AddressLost,
}

/// Addresses that are set aside for a Service.
#[derive(Default)]
struct Allocation {
    chosen: Vec<IpAddr>,
    refused: Option<AllocateError>,
    partly: Option<AllocateError>,
    lost: Option<AllocateError>,
}

impl Allocation {
    /// Sets addresses of the missing families aside. Of a Service with a faulty request only the
    /// addresses of its status are set aside.
    fn complete(
        &mut self,
        ipam: &mut ServiceIpam,
        id: &ServiceId,
        service: &ServiceRow,
        serve: &Serve,
        missing: &[IpVersion],
        selections: &BTreeMap<Arc<str>, PoolSelection>,
    ) {
        let wanted = Wanted {
            service: id,
            families: missing,
            partly: !service.needs_all || !serve.kept.is_empty() || !self.chosen.is_empty(),
            addresses: &serve.requested,
            preferred: &serve.preferred,
            pool: service.pool(),
            sharing_key: service.sharing_key(),
            exposure: &service.exposure,
            selections,
        };
        if serve.faulty {
            self.chosen.extend(ipam.recover(&wanted));
            return;
        }
        match ipam.choose(&wanted) {
            Ok(choice) => {
                self.chosen.extend(&choice.addresses);
                self.lost = choice.lost;
                match choice.missing {
                    Some(error) if service.needs_all => self.refused = Some(error),
                    error => self.partly = error,
                }
            }
            Err(error) => self.refused = Some(error),
        }
    }
}

impl ServiceState {
    /// Plans the writes for the Service of this name, and sets addresses aside for it.
    pub fn plan(&mut self, cluster: &Cluster, key: &Key, now: Instant) -> ServicePlan {
        self.refresh(cluster);
        let ServiceState { rows, term, classes, .. } = self;
        let Some(term) = term else { return ServicePlan::default() };
        term.waiting.remove(key);
        let service = rows.services.get(key);
        let uid = service.map(|row| Arc::clone(&row.uid));
        let held = held_claims(rows, term, key, service);
        let decision = decide(key, service, &held, classes);
        let serve = match decision {
            ServiceDecision::Serve(serve) => serve,
            other => {
                let settles = settles(term, key, |_, _| false);
                return end(other, settles, service);
            }
        };
        let (Some(service), Some(uid)) = (service, uid) else { return ServicePlan::default() };
        // A pending address is used if it is still what the Service needs.
        let usable = |pending_uid: &str, address: IpAddr| {
            let family = version(address);
            *pending_uid == *uid
                && serve.missing.contains(&family)
                && serve.requested.iter().all(|one| version(*one) != family || *one == address)
        };
        let unneeded = settles(term, key, usable);
        if !unneeded.is_empty() {
            return ServicePlan { writes: unneeded, again: true, ..ServicePlan::default() };
        }
        let mut allocation = Allocation {
            chosen: term.ipam.pending(key).iter().map(|(_, address)| *address).collect(),
            ..Allocation::default()
        };
        let mut plan = ServicePlan::default();
        for text in &service.conflicts {
            plan.warnings.push((Warning::Annotations, text.to_string()));
        }
        let id = ServiceId { key: key.clone(), uid: Arc::clone(&uid) };
        let is_missing = |family: &&IpVersion| allocation.chosen.iter().all(|one| version(*one) != **family);
        let missing: Vec<_> = serve.missing.iter().filter(is_missing).copied().collect();
        if !missing.is_empty() {
            if let Some(address) = term.resting(&serve.requested, key, now) {
                plan.paused = Some(address);
                return plan;
            }
            let selections = selections(rows, cluster, key, service);
            allocation.complete(&mut term.ipam, &id, service, &serve, &missing, &selections);
        }
        let Allocation { chosen, refused, partly, lost } = allocation;
        plan.warnings.extend(lost.map(|error| (Warning::AddressLost, error.to_string())));
        let outcome = serve.resolve(service, &chosen, refused, partly);
        if outcome.fault.is_some() || outcome.partly.is_some() {
            term.waiting.insert(key, causes(rows, cluster, key, service, &serve.requested));
        }
        let (used, unused): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|address| outcome.addresses.contains(address));
        plan.again = !unused.is_empty();
        let settle = |address| ServiceWrite::Settle { address, service: id.clone() };
        plan.writes.extend(unused.into_iter().map(settle));
        let sharing_key: Arc<str> = service.sharing_key().into();
        plan.writes.extend(claim_writes(term, rows, &uid, &used, &sharing_key));
        let change = |address: &IpAddr| {
            let sharing_key = Arc::clone(&sharing_key);
            ServiceWrite::ChangeKey { address: *address, sharing_key }
        };
        plan.writes.extend(serve.rekey.iter().map(change));
        let reason = reason(outcome.fault.as_ref(), outcome.partly.as_ref());
        plan.writes.extend(status_write(term, service, &outcome.addresses, reason));
        let leave = |address: &IpAddr| ServiceWrite::LeaveClaim { address: *address, stays: None };
        plan.writes.extend(outcome.leave.iter().map(leave));
        plan.fault = outcome.fault;
        plan
    }

    /// Sets aside the addresses that Services have in their status without a claim, the oldest
    /// Service first.
    pub(super) fn recover(&mut self) {
        let ServiceState { rows, term: Some(term), classes, .. } = self else { return };
        let mut services: Vec<_> = rows.services.iter().filter(|(_, row)| !row.ingress.is_empty()).collect();
        services.sort_by(|(_, one), (_, other)| one.age().cmp(&other.age()));
        for (key, service) in services {
            let held = held_claims(rows, term, key, Some(service));
            let ServiceDecision::Serve(serve) = decide(key, Some(service), &held, classes) else { continue };
            let wants_other = |address: &IpAddr| {
                serve.requested.iter().any(|one| one != address && version(*one) == version(*address))
            };
            let preferred: Vec<_> =
                serve.preferred.iter().copied().filter(|address| !wants_other(address)).collect();
            if preferred.is_empty() {
                continue;
            }
            let id = ServiceId { key: key.clone(), uid: Arc::clone(&service.uid) };
            let kept = term.ipam.recover(&Wanted {
                service: &id,
                families: &serve.missing,
                partly: true,
                addresses: &[],
                preferred: &preferred,
                pool: service.pool(),
                sharing_key: service.sharing_key(),
                exposure: &service.exposure,
                selections: &BTreeMap::new(),
            });
            if !kept.is_empty() {
                tracing::warn!(service = %key, addresses = ?kept, "the status of a Service has addresses \
                    without a ServiceAddress: they are created again");
            }
        }
    }
}

/// The claims that name a Service of this name.
fn held_claims<'a>(
    rows: &'a ServiceRows,
    term: &'a ServiceTerm,
    key: &Key,
    service: Option<&ServiceRow>,
) -> Vec<HeldClaim<'a>> {
    let claims = rows.claims_of(key).map(|(address, claim)| {
        let own = service.is_some_and(|row| {
            claim.services.iter().any(|named| named.key == *key && named.uid == row.uid)
                && claim.services.iter().all(|named| named.key != *key || named.uid == row.uid)
        });
        let mut held = HeldClaim {
            address,
            own,
            pool: term.ipam.pool_of(address).map(|name| &**name),
            sharing_key: &claim.sharing_key,
            sole: term.ipam.holders(address).all(|holder| holder.key == *key),
            sharing: None,
            yields: false,
        };
        if let Some(row) = service.filter(|_| own) {
            let id = ServiceId { key: key.clone(), uid: Arc::clone(&row.uid) };
            let faults = term.ipam.sharing_faults(address, &id, &row.exposure);
            held.yields = faults.iter().any(|(other, fault)| {
                let older = rows.services.get(&other.key).is_some_and(|theirs| theirs.age() < row.age());
                older && matches!(fault, SharingFault::Port { .. })
            });
            held.sharing = faults.into_iter().next().map(|(_, fault)| fault);
        }
        held
    });
    claims.collect()
}

/// The writes for pending addresses of Services of this name that are not needed any more.
fn settles(term: &ServiceTerm, key: &Key, needed: impl Fn(&str, IpAddr) -> bool) -> Vec<ServiceWrite> {
    let pending = term.ipam.pending(key).iter().filter(|(uid, address)| !needed(uid, *address));
    let settle = |(uid, address): &(Arc<str>, IpAddr)| ServiceWrite::Settle {
        address: *address,
        service: ServiceId { key: key.clone(), uid: Arc::clone(uid) },
    };
    pending.map(settle).collect()
}

/// The plan for a Service that gets no address.
fn end(
    decision: ServiceDecision,
    mut writes: Vec<ServiceWrite>,
    service: Option<&ServiceRow>,
) -> ServicePlan {
    let mut again = !writes.is_empty();
    let (publish, leave, stays) = match decision {
        ServiceDecision::Nothing | ServiceDecision::Serve(_) => (None, Vec::new(), None),
        ServiceDecision::Release { publish, leave } => (publish, leave, None),
        ServiceDecision::LeaveEarlier(leave) => {
            again = true;
            (None, leave, service.map(|row| Arc::clone(&row.uid)))
        }
    };
    if let (Some(addresses), Some(row)) = (publish, service) {
        writes.push(ServiceWrite::WriteStatus(StatusWrite {
            uid: Arc::clone(&row.uid),
            resource_version: row.resource_version.clone(),
            addresses: (addresses != row.ingress).then_some(addresses),
            condition: if row.condition.is_some() { ConditionWrite::Remove } else { ConditionWrite::Keep },
        }));
    }
    let leave = leave.into_iter().map(|address| ServiceWrite::LeaveClaim { address, stays: stays.clone() });
    writes.extend(leave);
    ServicePlan { writes, again, ..ServicePlan::default() }
}

/// Whether each pool selects the Service.
fn selections(
    rows: &ServiceRows,
    cluster: &Cluster,
    key: &Key,
    service: &ServiceRow,
) -> BTreeMap<Arc<str>, PoolSelection> {
    let empty = BTreeMap::new();
    // A Namespace that the watch has not shown has no labels.
    let namespace = cluster.namespace_labels(&key.namespace).unwrap_or(Some(&empty));
    let all = rows.pools.iter();
    all.map(|(name, pool)| (Arc::clone(name), pool.selection(&service.labels, namespace))).collect()
}

/// The changes that may help a Service without an address. A change of the pools themselves may help
/// every Service.
fn causes(
    rows: &ServiceRows,
    cluster: &Cluster,
    key: &Key,
    service: &ServiceRow,
    requested: &[IpAddr],
) -> Vec<ServiceCause> {
    let mut causes = vec![ServiceCause::Namespace(Arc::clone(&key.namespace))];
    causes.extend(requested.iter().copied().map(ServiceCause::Address));
    if !service.sharing_key().is_empty() {
        causes.push(ServiceCause::SharingKey(service.sharing_key().into()));
    }
    if let Some(name) = service.pool() {
        causes.push(ServiceCause::Pool(name.into()));
        return causes;
    }
    let is_automatic = |name: &str| rows.pools.get(name).is_some_and(|pool| pool.settings.automatic);
    let selected = selections(rows, cluster, key, service).into_iter();
    let mut pools: Vec<_> = selected
        .filter(|(name, selection)| *selection == PoolSelection::Selected && is_automatic(name))
        .map(|(name, _)| ServiceCause::Pool(name))
        .collect();
    if pools.len() > MAX_POOL_CAUSES {
        pools = vec![ServiceCause::AnyPool];
    }
    causes.extend(pools);
    causes
}

/// The writes of the claims of chosen addresses.
fn claim_writes(
    term: &ServiceTerm,
    rows: &ServiceRows,
    uid: &str,
    chosen: &[IpAddr],
    sharing_key: &Arc<str>,
) -> Vec<ServiceWrite> {
    let write = |address: &IpAddr| {
        let address = *address;
        let creates = term.ipam.creator(address).is_some_and(|creator| *creator.uid == *uid);
        if rows.claims.get(&address).is_some() || !creates {
            return ServiceWrite::JoinClaim { address };
        }
        let pool = term.ipam.pool_of(address).cloned().unwrap_or_default();
        ServiceWrite::CreateClaim { address, pool, sharing_key: Arc::clone(sharing_key) }
    };
    chosen.iter().map(write).collect()
}

/// The reason and the text of the condition.
fn reason(fault: Option<&ServiceFault>, partly: Option<&AllocateError>) -> (&'static str, String) {
    match (fault, partly) {
        (Some(fault), _) => (fault.reason(), fault.to_string()),
        (None, Some(error)) => (error.reason(), error.to_string()),
        (None, None) => ("Allocated", String::new()),
    }
}

/// The write of the status, if it changes.
fn status_write(
    term: &ServiceTerm,
    service: &ServiceRow,
    addresses: &[IpAddr],
    (reason, message): (&'static str, String),
) -> Option<ServiceWrite> {
    let status = !addresses.is_empty();
    // A Service without an address keeps only addresses that another program gave it.
    let foreign = || service.ingress.iter().copied().filter(|address| !term.ipam.is_allocated(*address));
    let addresses = if status { addresses.to_vec() } else { foreign().collect() };
    let addresses_change = service.ingress != addresses || (service.foreign_ingress && status);
    let before = service.condition.as_ref();
    let same = before.is_some_and(|before| {
        before.status == status && *before.reason == *reason && *before.message == *message
    });
    if !addresses_change && same {
        return None;
    }
    let since = before.filter(|before| before.status == status).map(|before| before.since.clone());
    let condition = if same {
        ConditionWrite::Keep
    } else {
        let since = since.unwrap_or_default();
        ConditionWrite::Set(AllocatedCondition {
            status,
            reason: reason.into(),
            message: message.into(),
            since,
        })
    };
    Some(ServiceWrite::WriteStatus(StatusWrite {
        uid: Arc::clone(&service.uid),
        resource_version: service.resource_version.clone(),
        addresses: addresses_change.then_some(addresses),
        condition,
    }))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
