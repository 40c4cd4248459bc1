//! The decision for a Service: a pure function of its row and of the claims that name it.
//!
//! | Service | claims of its UID | decision |
//! |---|---|---|
//! | gone | any | leave them |
//! | of another type or class | none | nothing: no write, no event |
//! | of another type or class | some | remove these addresses from the status, then leave the claims |
//! | with a deletion timestamp | any | nothing: it keeps its addresses until it is gone |
//! | ours | one of each family that satisfies the request | publish them, and leave the others |
//! | ours | fewer | allocate the missing ones first |
//!
//! Claims of an earlier Service of the same name (another UID) are left first of all.
//!
//! **An impossible request never costs an address.** A claim that no longer satisfies the request is
//! left only after another address has been published. The one exception is a common port: if the
//! ports of two Services that share an address overlap after a change, the younger Service gets
//! another address, or none. Otherwise it could receive the packets of the older one.

use std::net::IpAddr;

use trunkline_api::resources::IpVersion;

use super::ipam::span::version;
use super::ipam::{AllocateError, SharingFault};
use super::rows::ServiceRow;
use crate::cluster::Key;

/// The loadBalancerClass of the Services that get addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// The class.
    pub class: String,
    /// Whether Services without a class are included.
    pub default: bool,
}

impl ClassConfig {
    /// Whether Services of this class get addresses.
    pub fn is_ours(&self, class: Option<&str>) -> bool {
        match class.filter(|class| !class.is_empty()) {
            Some(class) => class == self.class,
            None => self.default,
        }
    }
}

/// A claim that names a Service of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldClaim<'a> {
    /// Its address.
    pub address: IpAddr,
    /// Whether it names this Service, and not an earlier one of the same name.
    pub own: bool,
    /// The pool that has the address now; none if the pool is gone.
    pub pool: Option<&'a str>,
    /// Its sharing key; empty without one.
    pub sharing_key: &'a str,
    /// Whether no other Service has the address.
    pub sole: bool,
    /// The other Service with which this one may not share the address any more.
    pub sharing: Option<SharingFault>,
    /// Whether this Service has to yield because of a common port.
    pub yields: bool,
}

/// The decision for a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceDecision {
    /// Nothing to do.
    Nothing,
    /// The Service gets no address of Trunkline's.
    Release {
        /// The addresses that its status keeps, if the status must change first. The condition is
        /// removed too.
        publish: Option<Vec<IpAddr>>,
        /// The claims to leave.
        leave: Vec<IpAddr>,
    },
    /// Claims of an earlier Service of this name are left first; then the Service is decided again.
    LeaveEarlier(Vec<IpAddr>),
    /// The Service gets addresses.
    Serve(Box<Serve>),
}

/// Addresses of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serve {
    /// Claims that it keeps, at most one of each family.
    pub kept: Vec<IpAddr>,
    /// Families without such a claim, in the Service's order.
    pub missing: Vec<IpVersion>,
    /// Requested addresses of the missing families.
    pub requested: Vec<IpAddr>,
    /// Addresses of the missing families in the status, which no claim of this Service has.
    pub preferred: Vec<IpAddr>,
    /// Claims that do not satisfy the request, and stay if the request fails; at most one of each
    /// missing family.
    pub fallback: Vec<IpAddr>,
    /// All claims of this Service.
    pub claims: Vec<IpAddr>,
    /// Kept claims whose sharing key changes.
    pub rekey: Vec<IpAddr>,
    /// Whether the request has a fault: then no address is allocated, except those of the status.
    pub faulty: bool,
    /// The fault of the request, or of an address that the Service shares.
    pub fault: Option<ServiceFault>,
}

/// The reason why a Service does not have the addresses that it requests. Its text is the text of
/// the Service's event, with the fault and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceFault {
    /// Its annotations have a fault.
    #[error("{0}")]
    Request(Box<str>),
    /// No address can be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// It cannot share its address any more.
    #[error("{address} of {service}: {fault}")]
    Sharing {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The reason.
        fault: SharingFault,
    },
}

impl ServiceFault {
    /// The reason as one word: of the condition, and the label of the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            ServiceFault::Request(_) => "Annotation",
            ServiceFault::Allocate(error) => error.reason(),
            ServiceFault::Sharing { fault, .. } => fault.reason(),
        }
    }
}

/// Decides about the Service of this name.
pub fn decide(
    key: &Key,
    service: Option<&ServiceRow>,
    claims: &[HeldClaim<'_>],
    classes: &ClassConfig,
) -> ServiceDecision {
    let all = || claims.iter().map(|claim| claim.address).collect::<Vec<_>>();
    let Some(service) = service else {
        return release(None, all());
    };
    let earlier: Vec<_> = claims.iter().filter(|claim| !claim.own).map(|claim| claim.address).collect();
    if !earlier.is_empty() {
        return ServiceDecision::LeaveEarlier(earlier);
    }
    if service.deleting {
        return ServiceDecision::Nothing;
    }
    if !service.load_balancer || !classes.is_ours(service.class.as_deref()) {
        let leave = all();
        let is_left = |address: &IpAddr| leave.contains(address);
        let others: Vec<_> = service.ingress.iter().copied().filter(|address| !is_left(address)).collect();
        let was_ours = others.len() < service.ingress.len() || service.condition.is_some();
        return release(was_ours.then_some(others), leave);
    }
    ServiceDecision::Serve(Box::new(serve(key, service, claims)))
}

fn release(publish: Option<Vec<IpAddr>>, leave: Vec<IpAddr>) -> ServiceDecision {
    if leave.is_empty() && publish.is_none() {
        return ServiceDecision::Nothing;
    }
    ServiceDecision::Release { publish, leave }
}

fn serve(key: &Key, service: &ServiceRow, claims: &[HeldClaim<'_>]) -> Serve {
    let mut serve = Serve { claims: claims.iter().map(|claim| claim.address).collect(), ..Serve::default() };
    let request = match &service.request {
        Ok(request) => Some(request),
        Err(text) => {
            serve.fault = Some(ServiceFault::Request(text.clone()));
            None
        }
    };
    let requested = request.map(|request| request.addresses.as_slice()).unwrap_or_default();
    if let [only] = service.families[..]
        && let Some(address) = requested.iter().copied().find(|address| version(*address) != only)
    {
        let error = AllocateError::FamilyMissing { address, service: key.clone(), only };
        serve.fault = Some(error.into());
    }
    let of = |addresses: &[IpAddr], family| addresses.iter().copied().find(|one| version(*one) == family);
    let own_key = request.and_then(|request| request.sharing_key.as_deref()).unwrap_or_default();
    let faulty = serve.fault.is_some();
    serve.faulty = faulty;
    // A faulty request requests nothing.
    let satisfies = |claim: &HeldClaim<'_>, family: IpVersion| {
        let Some(request) = request.filter(|_| !faulty) else { return true };
        of(&request.addresses, family).is_none_or(|address| address == claim.address)
            && request.pool.as_deref().is_none_or(|pool| claim.pool == Some(pool))
            && (claim.sharing_key == own_key || claim.sole)
    };
    for family in service.families.iter().copied() {
        let mut candidates: Vec<_> =
            claims.iter().filter(|claim| version(claim.address) == family && !claim.yields).collect();
        candidates.sort_by_key(|claim| (!service.ingress.contains(&claim.address), claim.address));
        match candidates.iter().find(|claim| satisfies(claim, family)) {
            Some(claim) => {
                serve.kept.push(claim.address);
                let has_other_key = claim.sharing_key != own_key && claim.sole;
                if has_other_key && !faulty {
                    serve.rekey.push(claim.address);
                }
                if let (Some(fault), None) = (&claim.sharing, &serve.fault) {
                    let (address, service, fault) = (claim.address, key.clone(), fault.clone());
                    serve.fault = Some(ServiceFault::Sharing { address, service, fault });
                }
            }
            None => {
                serve.missing.push(family);
                serve.fallback.extend(candidates.first().map(|claim| claim.address));
                if !faulty {
                    serve.requested.extend(of(requested, family));
                }
                let claimed = |address: &IpAddr| claims.iter().any(|claim| claim.address == *address);
                serve.preferred.extend(of(&service.ingress, family).filter(|address| !claimed(address)));
            }
        }
    }
    serve
}

/// The result of an attempt to allocate the missing addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The addresses of the Service, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// The claims to leave after the status has been written.
    pub leave: Vec<IpAddr>,
    /// The reason why it does not have the addresses that it requests.
    pub fault: Option<ServiceFault>,
    /// The reason why it has a part of its addresses, if a part is enough.
    pub partly: Option<AllocateError>,
}

impl Serve {
    /// The addresses of the Service. `chosen` are those that were set aside for its missing
    /// families.
    pub fn resolve(
        &self,
        service: &ServiceRow,
        chosen: &[IpAddr],
        refused: Option<AllocateError>,
        partly: Option<AllocateError>,
    ) -> Outcome {
        let of = |addresses: &[IpAddr], family| addresses.iter().copied().find(|one| version(*one) == family);
        let address = |family: &IpVersion| {
            let family = *family;
            of(&self.kept, family).or_else(|| of(chosen, family)).or_else(|| of(&self.fallback, family))
        };
        let mut addresses: Vec<_> = service.families.iter().filter_map(address).collect();
        let serves = service.ingress.iter().any(|address| self.claims.contains(address));
        if service.needs_all && addresses.len() < service.families.len() && !serves {
            // A part is not enough, and no client uses it.
            addresses.clear();
        }
        let leave = self.claims.iter().copied().filter(|address| !addresses.contains(address)).collect();
        let fault = self.fault.clone().or_else(|| refused.map(ServiceFault::from));
        Outcome { addresses, leave, fault, partly }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
