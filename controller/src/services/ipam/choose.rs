//! The choice of addresses for a Service: one of each missing family, by request or automatically.
//!
//! **Automatic**: the pools that select the Service, one with all its families first, then by
//! priority and name. A Service with a sharing key gets an address that has this key already, if it
//! may share it. **By request**: exactly the named address, also of a pool without `autoAssign`.
//! **Preferred** addresses are those of the Service's status without a claim (etcd was restored, or
//! another program allocated them): the Service keeps them if their pool may allocate them,
//! whatever the pool selects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::resources::IpVersion;
use trunkline_api::service::TrafficPolicy;

use super::faults::{AllocateError, SharingFault};
use super::pools::Location;
use super::span::version;
use super::{Entry, Exposure, MAX_SHARING, ServiceId, ServiceIpam};
use crate::cluster::Key;
use crate::ipam::instance_name;

/// Whether a pool's selectors select a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSelection {
    /// They do.
    Selected,
    /// `namespaceSelectors` do not select its namespace.
    OtherNamespace,
    /// `serviceSelectors` do not select its labels.
    OtherLabels,
}

/// The needs of a Service.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The Service.
    pub service: &'a ServiceId,
    /// The families without an address, in the Service's order.
    pub families: &'a [IpVersion],
    /// Whether a part of the families is enough.
    pub partly: bool,
    /// Requested addresses, at most one of each family.
    pub addresses: &'a [IpAddr],
    /// Addresses that the Service's status has without a claim.
    pub preferred: &'a [IpAddr],
    /// The requested pool.
    pub pool: Option<&'a str>,
    /// The sharing key; empty if the Service shares no address.
    pub sharing_key: &'a str,
    /// Its ports and its policy.
    pub exposure: &'a Exposure,
    /// Whether each known pool selects the Service.
    pub selections: &'a BTreeMap<Arc<str>, PoolSelection>,
}

/// The result of a choice. All addresses are pending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The addresses, in the order of the families.
    pub addresses: Vec<IpAddr>,
    /// The first family that got none, with the reason, if a part was enough.
    pub missing: Option<AllocateError>,
    /// The reason why a preferred address was not kept.
    pub lost: Option<AllocateError>,
}

impl ServiceIpam {
    /// Chooses an address of each family, and sets the addresses aside.
    ///
    /// # Errors
    /// A family got no address, and a part is not enough. Nothing is set aside.
    pub fn choose(&mut self, wanted: &Wanted<'_>) -> Result<Choice, AllocateError> {
        let mut choice = Choice::default();
        for version in wanted.families {
            match self.choose_one(wanted, *version, &mut choice.lost) {
                Ok(address) => choice.addresses.push(address),
                Err(error) if wanted.partly => choice.missing = choice.missing.or(Some(error)),
                Err(error) => {
                    self.give_up(&choice.addresses, wanted.service);
                    return Err(error);
                }
            }
        }
        match choice.missing.take_if(|_| choice.addresses.is_empty()) {
            Some(error) => Err(error),
            None => Ok(choice),
        }
    }

    /// Sets aside the addresses of a Service's status that have no claim. Call this for all
    /// Services, the oldest first, before any other choice.
    pub fn recover(&mut self, wanted: &Wanted<'_>) -> Vec<IpAddr> {
        let kept = wanted.preferred.iter().filter(|address| {
            wanted.families.contains(&version(**address)) && self.take_named(wanted, **address, true).is_ok()
        });
        kept.copied().collect()
    }

    /// The other Services of an address that this Service may not share it with (any more), each with
    /// the reason. Services that are not known are omitted: they are about to leave.
    pub fn sharing_faults(
        &self,
        address: IpAddr,
        service: &ServiceId,
        exposure: &Exposure,
    ) -> Vec<(ServiceId, SharingFault)> {
        let others = self.holders(address).filter(|other| other.uid != service.uid);
        let faults = others.filter_map(|other| {
            let fault = exposure.conflict(self.services.get(&other.uid)?, &other.key)?;
            Some((other.clone(), fault))
        });
        faults.collect()
    }

    fn give_up(&mut self, addresses: &[IpAddr], service: &ServiceId) {
        for address in addresses {
            self.refuse(*address, service);
        }
    }

    fn choose_one(
        &mut self,
        wanted: &Wanted<'_>,
        of: IpVersion,
        lost: &mut Option<AllocateError>,
    ) -> Result<IpAddr, AllocateError> {
        if let Some(address) = wanted.addresses.iter().find(|address| version(**address) == of) {
            return self.take_named(wanted, *address, false).map(|()| *address);
        }
        if let Some(address) = wanted.preferred.iter().find(|address| version(**address) == of) {
            match self.take_named(wanted, *address, true) {
                Ok(()) => return Ok(*address),
                Err(error) => *lost = Some(error),
            }
        }
        self.take_any(wanted, of)
    }

    /// Takes this address. A preferred address may be of a pool that does not select the Service.
    fn take_named(
        &mut self,
        wanted: &Wanted<'_>,
        address: IpAddr,
        preferred: bool,
    ) -> Result<(), AllocateError> {
        let service = || wanted.service.key.clone();
        let pool = match self.pools.locate(address) {
            Location::Pool(pool) => pool,
            Location::Outside => {
                return Err(AllocateError::NotInPool { address, service: service(), known: self.ranges() });
            }
            Location::Withheld { pool, reason } => {
                return Err(AllocateError::Withheld { address, service: service(), pool, reason });
            }
        };
        if let Some(other) = wanted.pool.filter(|name| **name != *pool) {
            let wanted = other.to_owned();
            return Err(AllocateError::OtherPool { address, service: service(), pool, wanted });
        }
        let selection = wanted.selections.get(&pool).copied().unwrap_or(PoolSelection::Selected);
        if selection != PoolSelection::Selected && !preferred {
            return Err(AllocateError::NotSelected { address, service: service(), pool, selection });
        }
        if let Some(entry) = self.entries.get(&address) {
            // A Service that has to yield its address may request it again.
            self.may_share(address, entry, wanted.service, wanted.sharing_key, wanted.exposure)
                .map_err(|fault| AllocateError::Shared { address, service: service(), fault })?;
            if entry.holders.iter().any(|holder| holder.service.uid == wanted.service.uid) {
                return Ok(());
            }
        } else {
            self.pools.take(address);
        }
        self.set_aside(address, wanted.service, wanted.sharing_key);
        Ok(())
    }

    /// Takes an address that the Service may share, otherwise the next free one.
    fn take_any(&mut self, wanted: &Wanted<'_>, of: IpVersion) -> Result<IpAddr, AllocateError> {
        let pools = self.eligible(wanted)?;
        let shared = self.shared.get(wanted.sharing_key).into_iter().flatten().copied();
        let joined = shared.filter(|address| version(*address) == of).find(|address| {
            self.pools.name_of(*address).is_some_and(|name| pools.contains(name))
                && matches!(self.pools.locate(*address), Location::Pool(_))
                && self.entries.get(address).is_some_and(|entry| {
                    self.may_share(*address, entry, wanted.service, wanted.sharing_key, wanted.exposure)
                        .is_ok()
                })
        });
        let address = match joined {
            Some(address) => address,
            None => match pools.iter().find_map(|name| self.pools.take_next(name, of)) {
                Some(address) => address,
                None => return Err(self.exhausted(wanted, of, &pools)),
            },
        };
        self.set_aside(address, wanted.service, wanted.sharing_key);
        Ok(address)
    }

    /// The pools for an automatic choice, in order.
    fn eligible(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<str>>, AllocateError> {
        let service = || wanted.service.key.clone();
        let selection = |name: &str| wanted.selections.get(name).copied().unwrap_or(PoolSelection::Selected);
        if let Some(name) = wanted.pool {
            let Some(pool) = self.pools.names().find(|known| ***known == *name) else {
                let known = list(self.pools.names(), "or");
                let known =
                    if known.is_empty() { "the name of one that you create".to_owned() } else { known };
                return Err(AllocateError::PoolUnknown { pool: name.to_owned(), known });
            };
            let pool = Arc::clone(pool);
            if let Some(fault) = self.pools.fault(name) {
                return Err(AllocateError::PoolFaulty {
                    service: service(),
                    pool,
                    fault: Box::new(fault.clone()),
                });
            }
            return match selection(name) {
                PoolSelection::Selected => Ok(vec![pool]),
                selection => Err(AllocateError::PoolNotSelected { service: service(), pool, selection }),
            };
        }
        let mut pools: Vec<_> = self
            .pools
            .all()
            .filter(|pool| pool.automatic && selection(&pool.name) == PoolSelection::Selected)
            .map(|pool| {
                let whole = wanted.families.iter().all(|family| self.pools.has_family(&pool.name, *family));
                (!whole, pool.priority, Arc::clone(&pool.name))
            })
            .collect();
        pools.sort_unstable();
        if !pools.is_empty() {
            return Ok(pools.into_iter().map(|(.., name)| name).collect());
        }
        let selected = |name: &&Arc<str>| selection(name) == PoolSelection::Selected;
        let faulty = self.pools.names().filter(selected).find_map(|name| {
            let fault = self.pools.fault(name)?.clone();
            Some(AllocateError::PoolFaulty {
                service: service(),
                pool: Arc::clone(name),
                fault: Box::new(fault),
            })
        });
        Err(faulty.unwrap_or_else(|| match list(self.pools.names(), "and") {
            known if known.is_empty() => AllocateError::NoPools { service: service() },
            known => AllocateError::NoPool { service: service(), known },
        }))
    }

    fn exhausted(&self, wanted: &Wanted<'_>, of: IpVersion, pools: &[Arc<str>]) -> AllocateError {
        let (service, version) = (wanted.service.key.clone(), of);
        let full: Vec<_> = pools
            .iter()
            .filter(|name| self.pools.has_family(name, of))
            .filter_map(|name| Some((name, self.pools.usage(name)?.of(of))))
            .map(|(name, usage)| {
                format!("ServicePool {name} has {} of {} free", usage.available, usage.total)
            })
            .collect();
        if full.is_empty() {
            let known = list(pools.iter().map(|name| format!("ServicePool {name}")), "or");
            return AllocateError::NoFamily { service, version, known };
        }
        AllocateError::Exhausted { service, version, usage: list(full.iter(), "and") }
    }

    fn may_share(
        &self,
        address: IpAddr,
        entry: &Entry,
        service: &ServiceId,
        sharing_key: &str,
        exposure: &Exposure,
    ) -> Result<(), SharingFault> {
        let holders = entry.holders.iter().map(|holder| &holder.service);
        let mut others: Vec<_> = holders.filter(|other| other.uid != service.uid).collect();
        others.sort_unstable();
        let Some(first) = others.first() else {
            // Only an unreadable claim names no Service.
            let own = entry.holders.iter().any(|holder| holder.service.uid == service.uid);
            let claim = instance_name(address);
            return if own { Ok(()) } else { Err(SharingFault::Unknown { claim }) };
        };
        let by = first.key.clone();
        match (sharing_key, &*entry.sharing_key) {
            ("", _) => return Err(SharingFault::Taken { by }),
            (_, "") => return Err(SharingFault::NoKey { by }),
            (own, theirs) if own != theirs => return Err(SharingFault::OtherKey { by }),
            _ => {}
        }
        if others.len() >= MAX_SHARING {
            return Err(SharingFault::Full);
        }
        for other in others {
            // A Service that is not known is about to leave the claim.
            let Some(theirs) = self.services.get(&other.uid) else {
                return Err(SharingFault::Taken { by: other.key.clone() });
            };
            if let Some(fault) = exposure.conflict(theirs, &other.key) {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// The first few pools with their ranges.
    fn ranges(&self) -> String {
        let known = self.pools.all().map(|pool| {
            let blocks = list(pool.blocks.iter(), "and");
            format!("{} ({blocks})", pool.name)
        });
        match list(known, "or") {
            known if known.is_empty() => "a ServicePool that you create".to_owned(),
            known => known,
        }
    }
}

impl Exposure {
    /// The reason why Services with these properties cannot share an address. `by` has the other
    /// ones.
    fn conflict(&self, theirs: &Exposure, by: &Key) -> Option<SharingFault> {
        let by = by.clone();
        if let Some(port) = self.ports.first_common(&theirs.ports) {
            return Some(SharingFault::Port { by, port });
        }
        if theirs.policy != self.policy {
            return Some(SharingFault::Policy { by, theirs: theirs.policy, own: self.policy });
        }
        let differs = theirs.policy == TrafficPolicy::Local && theirs.selector != self.selector;
        differs.then_some(SharingFault::Selector { by })
    }
}

/// Joins the first few items, so that an error fits into an event.
fn list<T: std::fmt::Display>(items: impl Iterator<Item = T>, word: &str) -> String {
    const SHOWN: usize = 4;
    let mut items = items.map(|item| item.to_string());
    let mut shown: Vec<String> = items.by_ref().take(SHOWN).collect();
    let more = items.count();
    if more > 0 {
        return format!("{} {word} {more} more", shown.join(", "));
    }
    match shown.pop() {
        Some(last) if !shown.is_empty() => format!("{} {word} {last}", shown.join(", ")),
        Some(last) => last,
        None => String::new(),
    }
}
