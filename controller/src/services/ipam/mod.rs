//! Addresses of Services, in memory; no I/O, no clock, no randomness.
//!
//! ```text
//!  watches ── configure, adopt, gone, set_service ──▶ ┌─────────────┐ ◀── choose, refuse ── Service reconciler
//!  status of pools ◀────────── usage ──────────────── │ ServiceIpam │
//!                                                     └─────────────┘
//! ```
//!
//! The claims (ServiceAddress objects) on the API server are authoritative. The name of a claim
//! follows from its address, so the API server itself refuses a second claim of an address. This
//! index makes the next choice cheap, and it prevents most refusals. [`ServiceIpam::choose`] sets an
//! address aside for a Service (*pending*); the answer to the write of the claim, or the watch,
//! makes it *claimed* ([`ServiceIpam::adopt`]).
//!
//! Several Services share an address if all have the same sharing key, no two have a common
//! protocol and port, and all have the same externalTrafficPolicy. With `Local` they also need the
//! same selector, because one address is advertised from the same nodes for all of them.
//!
//! A claim of an address that no pool has (the pool was deleted or changed) is a *stray*: its
//! Services keep the address, and a pool that comes later does not allocate it.
//!
//! - [`choose`]: the choice of addresses for a Service; [`faults`]: the reasons of its failure.
//! - [`pools`]: ranges, foreign addresses within them, and the next free address.
//! - [`ports`]: sorted ports, and the ports that two Services have in common.
//! - [`span`]: ranges of addresses.

pub mod choose;
pub mod faults;
pub mod pools;
pub mod ports;
pub mod span;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trunkline_api::resources::IpVersion;
use trunkline_api::service::TrafficPolicy;

pub use choose::{Choice, PoolSelection, Wanted};
pub use faults::{AllocateError, SharingFault};
pub use pools::{FamilyUsage, ForeignSpan, PoolDefinition, PoolFault, PoolUsage, WithheldReason};
pub use ports::SortedPorts;
pub use span::Span;

use pools::Pools;

use crate::cluster::Key;

/// The largest number of Services of one claim.
pub const MAX_SHARING: usize = 64;

/// A Service, by name and UID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId {
    /// Namespace and name.
    pub key: Key,
    /// The UID. A Service that is created again under the same name is another one.
    pub uid: Arc<str>,
}

/// The properties of a Service that decide whether it can share an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Its ports.
    pub ports: SortedPorts,
    /// Its externalTrafficPolicy.
    pub policy: TrafficPolicy,
    /// A hash of its selector.
    pub selector: u64,
}

/// A claim, as the API server has it.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The address.
    pub address: IpAddr,
    /// The sharing key; empty if the address is not shared.
    pub sharing_key: &'a str,
    /// The Services; empty for a claim that cannot be read.
    pub services: &'a [ServiceId],
}

/// An allocated address.
#[derive(Clone, Debug, Default)]
struct Entry {
    sharing_key: Arc<str>,
    /// Whether the API server has the claim, as far as is known.
    claimed: bool,
    /// In order of arrival.
    holders: Vec<Holder>,
}

#[derive(Clone, Debug)]
struct Holder {
    service: ServiceId,
    /// Whether the claim does not name the Service yet.
    pending: bool,
}

/// The addresses of all Services.
#[derive(Debug, Default)]
pub struct ServiceIpam {
    pools: Pools,
    entries: BTreeMap<IpAddr, Entry>,
    /// Addresses by sharing key.
    shared: BTreeMap<Arc<str>, BTreeSet<IpAddr>>,
    /// Pending addresses by Service name, with the Service's UID.
    pending: FxHashMap<Key, Vec<(Arc<str>, IpAddr)>>,
    /// The known Services by UID.
    services: FxHashMap<Arc<str>, Exposure>,
}

impl ServiceIpam {
    /// Replaces the pools, the oldest first. Of two pools that overlap, the older one allocates.
    /// Allocated addresses stay.
    pub fn configure(&mut self, definitions: Vec<PoolDefinition>) {
        self.pools = Pools::new(definitions, &self.pools);
        for address in self.entries.keys() {
            self.pools.restore(*address);
        }
    }

    /// Continues the allocation of the address's pool after this address.
    pub fn resume(&mut self, address: IpAddr) {
        if let Some(name) = self.pools.name_of(address).cloned() {
            self.pools.resume(&name, address);
        }
    }

    /// Adds or changes a Service. Other Services can share addresses with known Services only.
    pub fn set_service(&mut self, uid: &Arc<str>, exposure: Exposure) {
        self.services.insert(Arc::clone(uid), exposure);
    }

    /// Removes a Service. Its addresses stay allocated until their claims are gone.
    pub fn remove_service(&mut self, uid: &str) {
        self.services.remove(uid);
    }

    /// Applies a claim, from the watch or from the answer to a write. Pending Services that the
    /// claim names are pending no longer.
    pub fn adopt(&mut self, claim: &Claim<'_>) {
        let address = claim.address;
        let mut entry = self.entries.remove(&address).unwrap_or_default();
        let named = |uid: &str| claim.services.iter().any(|service| *service.uid == *uid);
        for holder in entry.holders.iter().filter(|holder| holder.pending && named(&holder.service.uid)) {
            self.settle(&holder.service, address);
        }
        entry.holders.retain(|holder| holder.pending && !named(&holder.service.uid));
        let claimed =
            claim.services.iter().map(|service| Holder { service: service.clone(), pending: false });
        entry.holders.splice(0..0, claimed);
        entry.claimed = true;
        self.index_key(address, &entry.sharing_key, claim.sharing_key);
        if *entry.sharing_key != *claim.sharing_key {
            entry.sharing_key = claim.sharing_key.into();
        }
        self.entries.insert(address, entry);
        self.pools.restore(address);
    }

    /// Applies the deletion of a claim.
    pub fn gone(&mut self, address: IpAddr) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        entry.claimed = false;
        entry.holders.retain(|holder| holder.pending);
        self.free_if_unused(address);
    }

    /// Releases an address of [`ServiceIpam::choose`] for a Service, after the write of its claim
    /// has certainly failed. No effect on a claimed address.
    pub fn refuse(&mut self, address: IpAddr, service: &ServiceId) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        entry.holders.retain(|holder| !(holder.pending && holder.service.uid == service.uid));
        self.settle(service, address);
        self.free_if_unused(address);
    }

    /// Addresses that are set aside for Services of this name, each with the UID of its Service.
    pub fn pending(&self, key: &Key) -> &[(Arc<str>, IpAddr)] {
        self.pending.get(key).map_or(&[], Vec::as_slice)
    }

    /// The Service that creates the claim of a pending address: the first one that the address was
    /// set aside for. None if the claim exists.
    pub fn creator(&self, address: IpAddr) -> Option<&ServiceId> {
        let entry = self.entries.get(&address).filter(|entry| !entry.claimed)?;
        entry.holders.first().map(|holder| &holder.service)
    }

    /// The sharing key of an allocated address; empty if the address is not shared.
    pub fn sharing_key(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.entries.get(&address).map(|entry| &entry.sharing_key)
    }

    /// Whether an address is allocated, by a claim or for a pending one.
    pub fn is_allocated(&self, address: IpAddr) -> bool {
        self.entries.contains_key(&address)
    }

    /// The pool whose ranges have this address.
    pub fn pool_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.pools.name_of(address)
    }

    /// The reason why a pool allocates nothing.
    pub fn fault(&self, pool: &str) -> Option<&PoolFault> {
        self.pools.fault(pool)
    }

    /// The definition of a pool that allocates.
    pub fn definition(&self, pool: &str) -> Option<&PoolDefinition> {
        self.pools.served(pool)
    }

    /// The usage of a pool; none for a pool that allocates nothing. Allocated addresses count even
    /// if the pool does not allocate them any more.
    pub fn usage(&self, pool: &str) -> Option<PoolUsage> {
        let mut usage = self.pools.usage(pool)?;
        for (version, allocated) in
            [(IpVersion::V4, &mut usage.v4.allocated), (IpVersion::V6, &mut usage.v6.allocated)]
        {
            let blocks = self.pools.served(pool)?.blocks.iter().filter(|block| block.version() == version);
            let all = blocks.map(|block| self.entries.range(block.first..=block.last).count());
            *allocated = u32::try_from(all.sum::<usize>()).unwrap_or(u32::MAX);
        }
        Some(usage)
    }

    /// Number of allocated addresses that no pool has.
    pub fn strays(&self) -> usize {
        self.entries.keys().filter(|address| self.pools.name_of(**address).is_none()).count()
    }

    /// The Services that have an address, or for which it is set aside.
    pub fn holders(&self, address: IpAddr) -> impl Iterator<Item = &ServiceId> {
        let entry = self.entries.get(&address);
        entry.into_iter().flat_map(|entry| &entry.holders).map(|holder| &holder.service)
    }

    /// Sets an address aside for a Service. The caller has checked that it may have it.
    fn set_aside(&mut self, address: IpAddr, service: &ServiceId, sharing_key: &str) {
        let mut entry = self.entries.remove(&address).unwrap_or_default();
        if entry.holders.is_empty() && !entry.claimed {
            self.index_key(address, &entry.sharing_key, sharing_key);
            entry.sharing_key = sharing_key.into();
        }
        entry.holders.push(Holder { service: service.clone(), pending: true });
        self.entries.insert(address, entry);
        self.pending.entry(service.key.clone()).or_default().push((Arc::clone(&service.uid), address));
    }

    /// Removes a pending address of a Service from the index.
    fn settle(&mut self, service: &ServiceId, address: IpAddr) {
        if let Some(all) = self.pending.get_mut(&service.key) {
            all.retain(|(uid, pending)| !(*uid == service.uid && *pending == address));
            if all.is_empty() {
                self.pending.remove(&service.key);
            }
        }
    }

    fn free_if_unused(&mut self, address: IpAddr) {
        let unused = |entry: &Entry| !entry.claimed && entry.holders.is_empty();
        if self.entries.get(&address).is_some_and(unused)
            && let Some(entry) = self.entries.remove(&address)
        {
            self.index_key(address, &entry.sharing_key, "");
            self.pools.release(address);
        }
    }

    fn index_key(&mut self, address: IpAddr, before: &str, now: &str) {
        if before == now {
            return;
        }
        if let Some(addresses) = self.shared.get_mut(before) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.shared.remove(before);
            }
        }
        if !now.is_empty() {
            self.shared.entry(now.into()).or_default().insert(address);
        }
    }
}

#[cfg(test)]
mod tests;
