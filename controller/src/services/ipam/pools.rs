//! The pools: their ranges, the addresses of other owners within them, and the next free address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::pool::{MAX_SPAN, Pool, PoolSpec};
use trunkline_api::resources::{IpVersion, SubnetAccess};

use super::span::{Span, version};

/// A ServicePool, with parsed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDefinition {
    /// Its name.
    pub name: Arc<str>,
    /// Its ranges, in the order of the object.
    pub blocks: Vec<Span>,
    /// Ranges that are never allocated.
    pub excluded: Vec<Span>,
    /// Ranges within its blocks that have another owner, such as a Subnet or a Node.
    pub foreign: Vec<ForeignSpan>,
    /// Addresses within its blocks that younger Nodes claim. The pool allocates them.
    pub ignored: Vec<ForeignSpan>,
    /// Whether IPv4 addresses that end in .0 or .255 are allocated only by request.
    pub skip_zero_and_255: bool,
    /// Whether addresses are allocated without a request for the pool.
    pub automatic: bool,
    /// Pools with a lower number come first.
    pub priority: u32,
    /// Whether the addresses are part of a Subnet's prefix: `foreign` is no fault then.
    pub is_l2: bool,
}

/// A range of another owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignSpan {
    /// The addresses.
    pub span: Span,
    /// `Subnet rack1-v4` or `Node n1`.
    pub owner: Arc<str>,
}

/// The reason why a pool allocates no addresses. Addresses that Services have stay theirs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    /// It overlaps a pool that is older.
    #[error(
        "{span} overlaps {other_span} of ServicePool {other}, which is older: this pool allocates no address: \
         write addresses that no other pool has"
    )]
    Overlap {
        /// The pool's range.
        span: Span,
        /// The other pool.
        other: Arc<str>,
        /// The other pool's range.
        other_span: Span,
    },
    /// Two of its own ranges overlap.
    #[error(
        "{span} overlaps {other_span} of the same pool: this pool allocates no address: write each address once"
    )]
    OwnOverlap {
        /// A range.
        span: Span,
        /// An earlier range.
        other_span: Span,
    },
}

/// Addresses of a pool in one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyUsage {
    /// Addresses that can be allocated, by request or automatically.
    pub total: u32,
    /// Allocated addresses.
    pub allocated: u32,
    /// Free addresses that can be allocated automatically.
    pub available: u32,
}

/// Usage of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// IPv4.
    pub v4: FamilyUsage,
    /// IPv6.
    pub v6: FamilyUsage,
}

impl PoolUsage {
    /// The usage in a family.
    pub fn of(&self, version: IpVersion) -> FamilyUsage {
        match version {
            IpVersion::V4 => self.v4,
            IpVersion::V6 => self.v6,
        }
    }
}

/// The location of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In a pool that may allocate it.
    Pool(Arc<str>),
    /// In a pool that may not allocate it.
    Withheld { pool: Arc<str>, reason: WithheldReason },
    /// In no pool.
    Outside,
}

/// The reason why a pool does not allocate an address of its ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WithheldReason {
    /// It is in `exclude`.
    #[error("its spec.exclude lists it")]
    Excluded,
    /// Another owner has it.
    #[error("{0} has it")]
    Foreign(Arc<str>),
    /// It is beyond the managed part of its range.
    #[error("a range of a pool is used for its first {MAX_SPAN} addresses only, and this one comes later")]
    Beyond,
}

/// A pool that allocates.
#[derive(Debug)]
struct ServedPool {
    definition: PoolDefinition,
    /// Free and allocated addresses, by family and in the order of the ranges.
    parts: [Vec<Pool>; 2],
    /// The part that allocated last, by family. It is used until it is full, so that a released
    /// address is reused as late as possible.
    current: [usize; 2],
}

/// All pools.
#[derive(Debug, Default)]
pub(super) struct Pools {
    served: BTreeMap<Arc<str>, ServedPool>,
    faults: BTreeMap<Arc<str>, PoolFault>,
    /// Each block of the served pools by its first address; blocks do not overlap.
    blocks: BTreeMap<IpAddr, (Span, Arc<str>)>,
}

fn index(version: IpVersion) -> usize {
    usize::from(version == IpVersion::V6)
}

impl ServedPool {
    fn new(definition: PoolDefinition) -> Self {
        let mut removed = definition.excluded.clone();
        removed.extend(definition.foreign.iter().map(|foreign| foreign.span));
        let mut parts: [Vec<Pool>; 2] = Default::default();
        for block in &definition.blocks {
            for span in block.clipped(MAX_SPAN).without(&removed) {
                // A part has at most `MAX_SPAN` addresses, and its prefix contains all of its
                // family, so this cannot fail.
                if let Ok(pool) = Pool::new(part(&definition, span)) {
                    parts[index(span.version())].push(pool);
                }
            }
        }
        ServedPool { definition, parts, current: [0, 0] }
    }

    fn part_of(&mut self, address: IpAddr) -> Option<&mut Pool> {
        self.parts[index(version(address))].iter_mut().find(|part| part.index(address).is_some())
    }

    fn take_next(&mut self, version: IpVersion) -> Option<IpAddr> {
        let family = index(version);
        let count = self.parts[family].len();
        for step in 0..count {
            let place = (self.current[family] + step) % count;
            if let Some(address) = self.parts[family][place].take_next() {
                self.current[family] = place;
                return Some(address);
            }
        }
        None
    }

    fn usage(&self, version: IpVersion) -> FamilyUsage {
        let mut usage = FamilyUsage::default();
        for part in &self.parts[index(version)] {
            let counts = part.counts();
            usage.total += counts.total;
            usage.allocated += counts.used;
            usage.available += counts.free;
        }
        usage
    }
}

/// The specification of a part. Its prefix is the whole family, so no address is a network's or a
/// broadcast address: a service address is a route of its own.
fn part(definition: &PoolDefinition, span: Span) -> PoolSpec {
    let is_v4 = span.version() == IpVersion::V4;
    let whole = if is_v4 { ipnet::Ipv4Net::default().into() } else { ipnet::Ipv6Net::default().into() };
    let mut reserved = Vec::new();
    if let (true, IpAddr::V4(first), IpAddr::V4(last)) = (definition.skip_zero_and_255, span.first, span.last)
    {
        let (first, last) = (u32::from(first), u32::from(last));
        let ends = (first >> 8..=last >> 8).flat_map(|prefix| [prefix << 8, (prefix << 8) | 255]);
        reserved.extend(ends.filter(|end| (first..=last).contains(end)).map(|end| IpAddr::V4(end.into())));
    }
    PoolSpec {
        subnet: definition.name.to_string(),
        network: String::new(),
        cidr: whole,
        start: Some(span.first),
        end: Some(span.last),
        gateway: None,
        reserved,
        excluded: Vec::new(),
        private: false,
        access: SubnetAccess::default(),
    }
}

impl Pools {
    /// The pools with these definitions, the oldest first. All addresses are free. The last
    /// allocated addresses of the previous pools stay, so that the order of allocation continues.
    pub(super) fn new(definitions: Vec<PoolDefinition>, before: &Pools) -> Self {
        let mut pools = Pools::default();
        for definition in definitions {
            let name = Arc::clone(&definition.name);
            if let Err(fault) = pools.add(definition) {
                pools.faults.insert(name, fault);
            }
        }
        for (name, pool) in &before.served {
            for family in [IpVersion::V4, IpVersion::V6] {
                let current = pool.parts[index(family)].get(pool.current[index(family)]);
                if let Some(last) = current.and_then(Pool::last) {
                    pools.resume(name, last);
                }
            }
        }
        pools
    }

    fn add(&mut self, definition: PoolDefinition) -> Result<(), PoolFault> {
        for (position, span) in definition.blocks.iter().enumerate() {
            if let Some(other) = definition.blocks[..position].iter().find(|other| other.overlaps(span)) {
                return Err(PoolFault::OwnOverlap { span: *span, other_span: *other });
            }
            // Blocks do not overlap each other, so only the last one that starts before the end can
            // overlap.
            let below = self.blocks.range(..=span.last).next_back();
            if let Some((_, (other_span, other))) = below.filter(|(_, (other, _))| other.overlaps(span)) {
                return Err(PoolFault::Overlap {
                    span: *span,
                    other: Arc::clone(other),
                    other_span: *other_span,
                });
            }
        }
        for span in &definition.blocks {
            self.blocks.insert(span.first, (*span, Arc::clone(&definition.name)));
        }
        self.served.insert(Arc::clone(&definition.name), ServedPool::new(definition));
        Ok(())
    }

    /// Continues the allocation of a pool after this address.
    pub(super) fn resume(&mut self, name: &str, last: IpAddr) {
        let Some(pool) = self.served.get_mut(name) else { return };
        let family = index(version(last));
        if let Some(place) = pool.parts[family].iter().position(|part| part.index(last).is_some()) {
            pool.parts[family][place].set_last(Some(last));
            pool.current[family] = place;
        }
    }

    /// The location of an address.
    pub(super) fn locate(&self, address: IpAddr) -> Location {
        let Some(name) = self.name_of(address) else { return Location::Outside };
        let pool = Arc::clone(name);
        let Some(served) = self.served.get(name) else { return Location::Outside };
        let definition = &served.definition;
        if served.parts[index(version(address))].iter().any(|part| part.index(address).is_some()) {
            return Location::Pool(pool);
        }
        let foreign = definition.foreign.iter().find(|foreign| foreign.span.contains(address));
        let reason = match foreign {
            Some(foreign) => WithheldReason::Foreign(Arc::clone(&foreign.owner)),
            None if definition.excluded.iter().any(|span| span.contains(address)) => WithheldReason::Excluded,
            None => WithheldReason::Beyond,
        };
        Location::Withheld { pool, reason }
    }

    /// The pool whose ranges have this address, allocatable or not.
    pub(super) fn name_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        let (_, (span, name)) = self.blocks.range(..=address).next_back()?;
        span.contains(address).then_some(name)
    }

    /// Takes a free address; false if it is taken, or no pool may allocate it.
    pub(super) fn take(&mut self, address: IpAddr) -> bool {
        let Some(name) = self.name_of(address).cloned() else { return false };
        let part = self.served.get_mut(&name).and_then(|pool| pool.part_of(address));
        part.is_some_and(|part| part.take(address).is_ok())
    }

    /// Takes the next free address of a pool.
    pub(super) fn take_next(&mut self, name: &str, version: IpVersion) -> Option<IpAddr> {
        self.served.get_mut(name)?.take_next(version)
    }

    /// Marks an address as taken.
    pub(super) fn restore(&mut self, address: IpAddr) {
        let Some(name) = self.name_of(address).cloned() else { return };
        if let Some(part) = self.served.get_mut(&name).and_then(|pool| pool.part_of(address)) {
            part.restore(address);
        }
    }

    /// Frees an address.
    pub(super) fn release(&mut self, address: IpAddr) {
        let Some(name) = self.name_of(address).cloned() else { return };
        if let Some(part) = self.served.get_mut(&name).and_then(|pool| pool.part_of(address)) {
            part.release(address);
        }
    }

    /// The definition of a pool that allocates.
    pub(super) fn served(&self, name: &str) -> Option<&PoolDefinition> {
        self.served.get(name).map(|pool| &pool.definition)
    }

    /// The reason why a pool allocates nothing.
    pub(super) fn fault(&self, name: &str) -> Option<&PoolFault> {
        self.faults.get(name)
    }

    /// The names of all pools, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.served.keys().chain(self.faults.keys())
    }

    /// The definitions of all pools that allocate, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &PoolDefinition> {
        self.served.values().map(|pool| &pool.definition)
    }

    /// Whether a pool has ranges of a family.
    pub(super) fn has_family(&self, name: &str, version: IpVersion) -> bool {
        self.served
            .get(name)
            .is_some_and(|pool| pool.definition.blocks.iter().any(|span| span.version() == version))
    }

    /// The usage of a pool that allocates.
    pub(super) fn usage(&self, name: &str) -> Option<PoolUsage> {
        let pool = self.served.get(name)?;
        Some(PoolUsage { v4: pool.usage(IpVersion::V4), v6: pool.usage(IpVersion::V6) })
    }
}
