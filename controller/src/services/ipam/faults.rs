//! The reasons why a Service gets no address. Their texts are the texts of its event and of its
//! condition: the fault, and the fix.

use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::names::annotation;
use trunkline_api::resources::IpVersion;
use trunkline_api::service::{PortKey, TrafficPolicy};

use super::MAX_SHARING;
use super::choose::PoolSelection;
use super::pools::{PoolFault, WithheldReason};
use super::span::family;
use crate::cluster::Key;

/// The reason why two Services do not share an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharingFault {
    /// One of them has no sharing key.
    #[error("Service {by} has it: request another one, or give both the same {}", annotation::SHARING_KEY)]
    Taken {
        /// The other Service.
        by: Key,
    },
    /// A claim has it that names no known Service.
    #[error(
        "ServiceAddress {claim} has it: request another one, or delete that object if no Service needs it"
    )]
    Unknown {
        /// The claim.
        claim: String,
    },
    /// The other Service has no key.
    #[error(
        "Service {by} has it without a sharing key: request another one, or give both the same {}",
        annotation::SHARING_KEY
    )]
    NoKey {
        /// The other Service.
        by: Key,
    },
    /// The other Service has another key.
    #[error(
        "Service {by} shares it under another key: request another one, or write the same {}",
        annotation::SHARING_KEY
    )]
    OtherKey {
        /// The other Service.
        by: Key,
    },
    /// Both have a common port.
    #[error("{port} is used by {by}, which shares it: use another port")]
    Port {
        /// The other Service.
        by: Key,
        /// The port.
        port: PortKey,
    },
    /// Their traffic policies differ.
    #[error(
        "{by} shares it with externalTrafficPolicy {theirs}, and this Service has {own}: one address is advertised \
         from the same nodes for all"
    )]
    Policy {
        /// The other Service.
        by: Key,
        /// The other Service's policy.
        theirs: TrafficPolicy,
        /// The Service's policy.
        own: TrafficPolicy,
    },
    /// Both have the policy Local, and different selectors.
    #[error(
        "{by} shares it with externalTrafficPolicy Local and another selector: one address is advertised from the \
         same nodes for all: write the same selector, or use the policy Cluster"
    )]
    Selector {
        /// The other Service.
        by: Key,
    },
    /// The claim has no room for another Service.
    #[error("{MAX_SHARING} Services share it, and no more can: request another one")]
    Full,
}

/// The reason why a Service gets no address. The text follows the name of the Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// There is no pool at all.
    #[error("no address for {service}: there is no ServicePool: create one")]
    NoPools {
        /// The Service.
        service: Key,
    },
    /// No pool allocates automatically for the Service.
    #[error(
        "no address for {service}: no ServicePool selects it: compare serviceSelectors and namespaceSelectors of \
         {known}, or set autoAssign"
    )]
    NoPool {
        /// The Service.
        service: Key,
        /// The pools.
        known: String,
    },
    /// The requested pool does not exist.
    #[error("{}: there is no ServicePool {pool}: write {known}", annotation::POOL)]
    PoolUnknown {
        /// The pool.
        pool: String,
        /// The pools.
        known: String,
    },
    /// The pool is not served.
    #[error("no address for {service}: ServicePool {pool}: {fault}")]
    PoolFaulty {
        /// The Service.
        service: Key,
        /// The pool.
        pool: Arc<str>,
        /// The reason.
        fault: Box<PoolFault>,
    },
    /// The requested pool does not select the Service.
    #[error(
        "no address for {service}: {} names ServicePool {pool}, but {}: name another pool, or change the selectors",
        annotation::POOL,
        not_selected(*selection, service)
    )]
    PoolNotSelected {
        /// The Service.
        service: Key,
        /// The pool.
        pool: Arc<str>,
        /// The selectors that do not match.
        selection: PoolSelection,
    },
    /// No pool for the Service has addresses of the family.
    #[error(
        "no {} address for {service}: {known} has none: add a range of this family to it, or set spec.ipFamilies of \
         the Service",
        family(*version)
    )]
    NoFamily {
        /// The Service.
        service: Key,
        /// The family.
        version: IpVersion,
        /// The pools of the Service.
        known: String,
    },
    /// The pools have no free address.
    #[error("no {} address for {service}: {usage}: add addresses to it, or delete a Service", family(*version))]
    Exhausted {
        /// The Service.
        service: Key,
        /// The family.
        version: IpVersion,
        /// The pools with their usage.
        usage: String,
    },
    /// No pool has the requested address.
    #[error(
        "{address} cannot be given to {service}: no ServicePool has it: request an address of {known}, or leave the \
         annotation out"
    )]
    NotInPool {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The pools with their ranges.
        known: String,
    },
    /// The requested address is in another pool than the requested pool.
    #[error(
        "{address} cannot be given to {service}: ServicePool {pool} has it, and {} names {wanted}: leave one of the \
         two out",
        annotation::POOL
    )]
    OtherPool {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The address's pool.
        pool: Arc<str>,
        /// The requested pool.
        wanted: String,
    },
    /// The address's pool does not select the Service.
    #[error(
        "{address} cannot be given to {service}: ServicePool {pool} has it, but {}: request an address of another \
         pool, or change the selectors",
        not_selected(*selection, service)
    )]
    NotSelected {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The pool.
        pool: Arc<str>,
        /// The selectors that do not match.
        selection: PoolSelection,
    },
    /// The pool does not allocate the address.
    #[error(
        "{address} cannot be given to {service}: ServicePool {pool} does not allocate it: {reason}: request another \
         one"
    )]
    Withheld {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The pool.
        pool: Arc<str>,
        /// The reason.
        reason: WithheldReason,
    },
    /// Another Service has the address.
    #[error("{address} cannot be given to {service}: {fault}")]
    Shared {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The reason.
        fault: SharingFault,
    },
    /// The request names an address of a family that the Service does not have.
    #[error(
        "{address} cannot be given to {service}: the Service has only {} (spec.ipFamilies): set ipFamilyPolicy: \
         PreferDualStack, or leave the address out",
        family(*only)
    )]
    FamilyMissing {
        /// The address.
        address: IpAddr,
        /// The Service.
        service: Key,
        /// The only family of the Service.
        only: IpVersion,
    },
}

impl SharingFault {
    /// The reason as one word.
    pub fn reason(&self) -> &'static str {
        match self {
            SharingFault::Taken { .. } | SharingFault::Unknown { .. } => "Taken",
            SharingFault::NoKey { .. } | SharingFault::OtherKey { .. } => "SharingKey",
            SharingFault::Port { .. } => "PortTaken",
            SharingFault::Policy { .. } | SharingFault::Selector { .. } => "PolicyDiffers",
            SharingFault::Full => "SharedByTooMany",
        }
    }
}

fn not_selected(selection: PoolSelection, service: &Key) -> String {
    match selection {
        PoolSelection::OtherLabels => {
            "its serviceSelectors do not select the labels of the Service".to_owned()
        }
        PoolSelection::OtherNamespace | PoolSelection::Selected => {
            format!("its namespaceSelectors do not select namespace {}", service.namespace)
        }
    }
}

impl AllocateError {
    /// The reason as one word: of the condition, and the label of the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            AllocateError::NoPools { .. } | AllocateError::NoPool { .. } => "NoPool",
            AllocateError::PoolUnknown { .. } => "PoolUnknown",
            AllocateError::PoolFaulty { .. } => "PoolNotReady",
            AllocateError::PoolNotSelected { .. } | AllocateError::NotSelected { .. } => "NotSelected",
            AllocateError::NoFamily { .. } | AllocateError::FamilyMissing { .. } => "FamilyMissing",
            AllocateError::Exhausted { .. } => "Exhausted",
            AllocateError::NotInPool { .. } => "NotInPool",
            AllocateError::OtherPool { .. } => "OtherPool",
            AllocateError::Withheld { .. } => "NotAllocatable",
            AllocateError::Shared { fault, .. } => fault.reason(),
        }
    }

    /// The address whose release would help.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            AllocateError::Shared { address, .. } => Some(*address),
            _ => None,
        }
    }
}
