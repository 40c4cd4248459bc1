//! Addresses of a whole cluster, in memory; no I/O, no clock, no randomness of its own.
//!
//! ```text
//!   watches ── set_subnet, adopt, gone ──▶ ┌───────────────────┐ ◀── allocate, refuse ── pod reconciler
//!                                          │ Ipam (the leader) │
//!   statuses, quota labels ◀── usage ───── └───────────────────┘ ── conflicts ──▶ the younger one is refused
//! ```
//!
//! The IPInstances on the API server are authoritative. This index makes the next allocation cheap.
//! The leader builds it from a complete list of networks, subnets and IPInstances before the first
//! allocation. An address is set aside here, then its IPInstance is created. Once the watch has
//! shown that IPInstance, the address is in use ([`State`] has the whole life cycle). The holder of
//! an address is a *namespace*: the IPInstance's name follows from the address ([`instance_name`]),
//! so the API server allows one IPInstance of an address within a namespace. This index prevents a
//! second IPInstance in another namespace.
//!
//! [`trunkline_api::pool`] chooses the next address; the agent of a host without Kubernetes uses it
//! too. The layers around the pools are not shared. The agent knows one node, picks its network,
//! and commits to a disk. This module has holders, retained addresses, MAC addresses and conflicts.
//!
//! **Difficult cases.** Events come in any order: an IPInstance may be seen before its subnet, or
//! outlive it. Such an IPInstance is a *stray*: its address is not allocated. It moves to its
//! subnet when the subnet appears. Two IPInstances with one address (an API server restored from an
//! old snapshot, two leaders) are never merged. The first one seen holds the address; the others
//! are *contenders*, which [`Ipam::adopt`] and [`Ipam::conflicts`] report. The address is free only
//! when all of them are gone. Overlapping subnets would allocate one address twice, so the second
//! subnet is refused.
//!
//! **Memory**: a quarter of an octet for each address of a subnet. An address in use takes 12
//! octets in its page and about 28 for its MAC address; `cargo bench -p trunkline-controller
//! --bench ipam` prints the total. 300,000 pods take about 10 MB.
//!
//! - [`allocate`]: a pod's request, and why it fails.
//! - [`state`]: the life cycle of an address.
//! - [`mac`]: MAC addresses.
//! - `holder`: holders of addresses.
//! - `subnet`: one subnet.

pub mod allocate;
mod holder;
pub mod mac;
pub mod state;
mod subnet;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trunkline_api::pool::{Counts, PoolError, PoolSpec};
use trunkline_api::resources::{SubnetAccess, ValueError};

pub use allocate::{AddressRequest, AllocateError, AllocatedAddresses, Assigned};
pub use mac::Mac;
pub use state::{State, Step};
pub use trunkline_api::resources::{instance_name, named_address};

use holder::{Names, Row};
use mac::Macs;
use subnet::SubnetAllocations;

/// An IPInstance's claim to its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<'a> {
    /// The address.
    pub address: IpAddr,
    /// The IPInstance's namespace.
    pub namespace: &'a str,
    /// Its MAC address; all zeros if it cannot be read.
    pub mac: Mac,
    /// State of the IPInstance in the watch.
    pub seen: InstanceState,
}

/// Observed state of an IPInstance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// It names a pod by UID.
    Bound,
    /// It is retained for the next pod of its name.
    Kept,
    /// It has a deletion timestamp.
    Deleting,
}

/// Two IPInstances have one address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address} has an IPInstance {name} in namespace {holder} and in namespace \
     {contender}: the younger one is refused: delete the pod that must not have the address",
    name = instance_name(*address)
)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The namespace that holds it here.
    pub holder: Arc<str>,
    /// The other namespace with an IPInstance of it.
    pub contender: Arc<str>,
}

/// Usage of a subnet, or of a network in one family. Addresses in `reservedIPs` are not counted, as
/// in hybridnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Addresses in total.
    pub total: u32,
    /// Allocated addresses.
    pub used: u32,
    /// Free addresses; of a network: except those of disabled subnets.
    pub available: u32,
}

impl Usage {
    /// Value of the node's quota label: whether an address is free.
    pub fn has_room(&self) -> bool {
        self.available > 0
    }

    fn add(&mut self, counts: Counts) {
        self.total += counts.open;
        self.used += counts.open - counts.free;
        self.available += counts.free;
    }
}

/// Usage of a network, including private subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    /// In IPv4.
    pub v4: Usage,
    /// In IPv6.
    pub v6: Usage,
    /// For dual-stack pods: the free addresses of the scarcer family. Total and used are not
    /// counted, as in hybridnet.
    pub dual_stack: Usage,
    /// The current IPv4 subnet.
    pub last_v4_subnet: Option<Arc<str>>,
    /// The current IPv6 subnet.
    pub last_v6_subnet: Option<Arc<str>>,
}

/// Description of an address of a Subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// Its Subnet.
    pub subnet: String,
    /// The Subnet's Network.
    pub network: String,
    /// The Subnet is private.
    pub private: bool,
    /// The pods that get new addresses of the Subnet.
    pub access: SubnetAccess,
    /// The address is among the Subnet's `reservedIPs`.
    pub reserved: bool,
    /// The namespace of the IPInstance that holds the address; otherwise the first contender's.
    pub holder: Option<String>,
}

/// The subnets of a network, and the current one of each family.
#[derive(Debug, Default)]
struct NetworkAllocations {
    /// Number of the network, as the key for MAC addresses.
    number: u32,
    /// IPv4 and IPv6 subnets, each by name.
    subnets: [BTreeMap<Arc<str>, usize>; 2],
    /// The current subnet of each family.
    current: [Option<Arc<str>>; 2],
}

/// The place of an address's row.
#[derive(Clone, Copy, Debug)]
enum RowLocation {
    /// In a subnet, at an index of its range.
    Subnet(usize, u32),
    /// Outside all known subnets.
    Stray,
}

/// The addresses of a cluster.
#[derive(Debug, Default)]
pub struct Ipam {
    networks: FxHashMap<Arc<str>, NetworkAllocations>,
    networks_made: u32,
    subnets: Vec<Option<SubnetAllocations>>,
    by_name: FxHashMap<Arc<str>, usize>,
    /// Each subnet by the first address of its range; ranges do not overlap.
    by_range: BTreeMap<IpAddr, usize>,
    /// IPInstances with an address outside all ranges.
    strays: BTreeMap<IpAddr, Row>,
    /// Further IPInstances of an address that already has a holder.
    contenders: FxHashMap<IpAddr, Vec<Row>>,
    namespaces: Names,
    macs: Macs,
}

/// The reason why a subnet allocates no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// A value of its range cannot be parsed.
    #[error("spec.range: {0}")]
    Range(#[from] ValueError),
    /// Its range is invalid.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its range overlaps another subnet's.
    #[error(
        "subnet {subnet}: its range overlaps {start} to {end} of subnet {other}: subnet {subnet} allocates no address: \
         remove one of the two subnets, or separate them by start and end"
    )]
    Overlap {
        /// The subnet.
        subnet: String,
        /// First address of the other range.
        start: IpAddr,
        /// Last address of the other range.
        end: IpAddr,
        /// The other subnet.
        other: Arc<str>,
    },
}

impl Ipam {
    /// Restores a network's current subnets from its status. Values that this index already has are
    /// newer and stay.
    pub fn resume_network(&mut self, network: &str, v4: Option<&str>, v6: Option<&str>) {
        let allocations = self.network_allocations(network);
        for (current, stored) in allocations.current.iter_mut().zip([v4, v6]) {
            if current.is_none() {
                *current = stored.filter(|name| !name.is_empty()).map(Arc::from);
            }
        }
    }

    /// Adds or changes a subnet; `last`, the last allocated address in its status, counts only for
    /// a new one. Later allocations follow the new specification, and holders keep their addresses.
    ///
    /// # Errors
    /// The range is invalid, or overlaps another subnet's. The subnet allocates nothing.
    pub fn set_subnet(&mut self, spec: PoolSpec, last: Option<IpAddr>) -> Result<(), SubnetError> {
        let name = spec.subnet.clone();
        let known = self.by_name.get(name.as_str()).and_then(|place| self.subnets[*place].as_ref());
        if known.is_some_and(|allocations| *allocations.pool.spec() == spec) {
            return Ok(());
        }
        let cursor = known.and_then(|allocations| allocations.pool.last()).or(last);
        self.remove_subnet(&name);
        let mut allocations = SubnetAllocations::new(spec)?;
        let (first, end) = allocations.pool.range();
        let below = self.by_range.range(..=end).next_back();
        if let Some(other) = below.and_then(|(_, place)| self.subnets[*place].as_ref())
            && other.pool.range().1 >= first
        {
            let (start, end) = other.pool.range();
            let other = Arc::clone(&other.name);
            return Err(SubnetError::Overlap { subnet: name, start, end, other });
        }
        allocations.pool.set_last(cursor);
        let place = self.subnets.iter().position(Option::is_none).unwrap_or(self.subnets.len());
        let network = self.network_allocations(&allocations.pool.spec().network);
        allocations.network = network.number;
        network.subnets[usize::from(!allocations.pool.is_v4())].insert(Arc::clone(&allocations.name), place);
        self.by_name.insert(Arc::clone(&allocations.name), place);
        self.by_range.insert(first, place);
        if place == self.subnets.len() {
            self.subnets.push(None);
        }
        self.subnets[place] = Some(allocations);
        let waiting: Vec<(IpAddr, Row)> =
            self.strays.range(first..=end).map(|(address, row)| (*address, *row)).collect();
        for (address, row) in waiting {
            self.strays.remove(&address);
            if let Some(allocations) = &mut self.subnets[place]
                && let Some(index) = allocations.pool.index(address)
            {
                allocations.set(index, row);
                self.macs.add(allocations.network, row.mac);
            }
        }
        Ok(())
    }

    /// Removes a subnet. The index keeps the held addresses, in case the subnet is created again.
    pub fn remove_subnet(&mut self, name: &str) {
        let Some(place) = self.by_name.remove(name) else { return };
        let Some(allocations) = self.subnets[place].take() else { return };
        self.by_range.remove(&allocations.pool.range().0);
        if let Some(network) = self.networks.get_mut(allocations.pool.spec().network.as_str()) {
            network.subnets.iter_mut().for_each(|subnets| _ = subnets.remove(name));
        }
        for (index, row) in allocations.rows.iter() {
            self.macs.remove(allocations.network, row.mac);
            self.strays.insert(allocations.pool.address(index), row);
        }
    }

    /// Forgets the network's current subnets. [`Ipam::remove_subnet`] removes the subnets
    /// themselves.
    pub fn remove_network(&mut self, network: &str) {
        if let Some(allocations) = self.networks.get_mut(network) {
            allocations.current = [None, None];
            if allocations.subnets.iter().all(BTreeMap::is_empty) {
                self.networks.remove(network);
            }
        }
    }

    /// Applies the state of an IPInstance, at the rebuild and at each event of the watch.
    ///
    /// # Errors
    /// Another namespace holds the address. The only change is a new contender.
    pub fn adopt(&mut self, allocation: &Allocation<'_>) -> Result<(), Conflict> {
        let step = match allocation.seen {
            InstanceState::Bound => Step::Bound,
            InstanceState::Kept => Step::Kept,
            InstanceState::Deleting => Step::Deleting,
        };
        let address = allocation.address;
        let before = self.row(address);
        let namespace = self.namespaces.intern(allocation.namespace);
        let seen =
            |state: State| Row { namespace, mac: allocation.mac, state: state.after(step).unwrap_or(state) };
        if before.state == State::Free || before.namespace == namespace {
            self.write(address, seen(before.state));
            return Ok(());
        }
        let contenders = self.contenders.entry(address).or_default();
        match contenders.iter_mut().find(|row| row.namespace == namespace) {
            Some(row) => *row = seen(row.state),
            None => {
                contenders.push(seen(State::Free));
                self.namespaces.count_one(namespace);
            }
        }
        Err(self.conflict(address, before.namespace, namespace))
    }

    /// Frees the address of an IPInstance that no longer exists. Call it with one of two proofs.
    /// Either the finalizer is removed and the watch has shown the deletion. Or a list that began
    /// after the watch had shown the IPInstance is complete and does not contain the IPInstance.
    pub fn gone(&mut self, address: IpAddr, namespace: &str) {
        self.step(address, namespace, Step::Gone);
    }

    /// Releases an address of [`Ipam::allocate`] after the write of its IPInstance has certainly
    /// failed. If the result is unknown, as after a timeout, read the object from the API server
    /// first.
    pub fn refuse(&mut self, address: IpAddr, namespace: &str) {
        self.step(address, namespace, Step::Refuse);
    }

    /// Excludes a retained address from allocation, because its IPInstance is about to be deleted.
    /// Returns whether the IPInstance may be deleted: it may not if a pod is about to get the
    /// address.
    pub fn expire(&mut self, address: IpAddr, namespace: &str) -> bool {
        let row = self.row(address);
        if self.namespaces.number(namespace) != Some(row.namespace) || row.state == State::Free {
            // The address belongs to another IPInstance.
            return true;
        }
        match row.state.after(Step::Expire) {
            Some(state) => {
                self.write(address, Row { state, ..row });
                true
            }
            None => false,
        }
    }

    /// Undoes [`Ipam::expire`]. No effect if the deletion has been seen.
    pub fn resume(&mut self, address: IpAddr, namespace: &str) {
        if self.row(address).state == State::Expiring {
            self.step(address, namespace, Step::Refuse);
        }
    }

    /// The IPInstances that hold addresses of a subnet: address and namespace.
    pub fn holders(&self, subnet: &str) -> impl Iterator<Item = (IpAddr, &Arc<str>)> {
        self.allocations(subnet).into_iter().flat_map(|allocations| {
            let named = |(index, row): (u32, Row)| {
                (allocations.pool.address(index), self.namespaces.name(row.namespace))
            };
            allocations.rows.iter().map(named)
        })
    }

    /// Addresses with more than one IPInstance.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.contenders.iter().flat_map(move |(address, rows)| {
            let holder = self.row(*address).namespace;
            rows.iter().map(move |row| self.conflict(*address, holder, row.namespace))
        })
    }

    /// The namespace that holds an address, and the address's state.
    pub fn holder(&self, address: IpAddr) -> Option<(&str, State)> {
        let row = self.row(address);
        (row.state != State::Free).then(|| (&**self.namespaces.name(row.namespace), row.state))
    }

    /// Describes an address; none outside all subnets' ranges.
    pub fn look_up(&self, address: IpAddr) -> Option<AddressInfo> {
        let RowLocation::Subnet(place, _) = self.place(address) else { return None };
        let spec = self.subnets[place].as_ref()?.pool.spec();
        let contender =
            || self.contenders.get(&address)?.first().map(|row| self.namespaces.name(row.namespace));
        let holder = self.holder(address).map(|(namespace, _)| namespace);
        Some(AddressInfo {
            subnet: spec.subnet.clone(),
            network: spec.network.clone(),
            private: spec.private,
            access: spec.access.clone(),
            reserved: spec.reserved.contains(&address),
            holder: holder.or_else(|| contender().map(|name| &**name)).map(str::to_owned),
        })
    }

    /// Usage of a subnet.
    pub fn usage(&self, subnet: &str) -> Option<Usage> {
        let mut usage = Usage::default();
        usage.add(self.allocations(subnet)?.pool.counts());
        Some(usage)
    }

    /// The last address that a subnet allocated by round robin.
    pub fn last_allocated(&self, subnet: &str) -> Option<IpAddr> {
        self.allocations(subnet)?.pool.last()
    }

    /// Usage of a network. The cost is proportional to its number of subnets.
    pub fn network_usage(&self, network: &str) -> NetworkUsage {
        let Some(allocations) = self.networks.get(network) else { return NetworkUsage::default() };
        let [v4, v6] = allocations.subnets.each_ref().map(|subnets| {
            let mut usage = Usage::default();
            let allocations = subnets.values().filter_map(|place| self.subnets[*place].as_ref());
            for pool in allocations.map(|allocations| &allocations.pool) {
                usage.add(pool.counts());
                if pool.spec().access.disabled {
                    // No pod gets these, so they must not attract pods to the network's nodes.
                    usage.available -= pool.counts().free;
                }
            }
            usage
        });
        let [last_v4_subnet, last_v6_subnet] = allocations.current.clone();
        let dual_stack = Usage { available: v4.available.min(v6.available), ..Usage::default() };
        NetworkUsage { v4, v6, dual_stack, last_v4_subnet, last_v6_subnet }
    }

    fn allocations(&self, subnet: &str) -> Option<&SubnetAllocations> {
        self.subnets[*self.by_name.get(subnet)?].as_ref()
    }

    fn network_allocations(&mut self, network: &str) -> &mut NetworkAllocations {
        if !self.networks.contains_key(network) {
            self.networks_made += 1;
            let allocations =
                NetworkAllocations { number: self.networks_made, ..NetworkAllocations::default() };
            self.networks.insert(network.into(), allocations);
        }
        self.networks.entry(network.into()).or_default()
    }

    fn conflict(&self, address: IpAddr, holder: u32, contender: u32) -> Conflict {
        let name = |namespace| Arc::clone(self.namespaces.name(namespace));
        Conflict { address, holder: name(holder), contender: name(contender) }
    }

    fn place(&self, address: IpAddr) -> RowLocation {
        self.by_range
            .range(..=address)
            .next_back()
            .and_then(|(_, place)| Some((*place, self.subnets[*place].as_ref()?.pool.index(address)?)))
            .map_or(RowLocation::Stray, |(place, index)| RowLocation::Subnet(place, index))
    }

    fn row(&self, address: IpAddr) -> Row {
        match self.place(address) {
            RowLocation::Subnet(place, index) => self.subnets[place]
                .as_ref()
                .map(|allocations| allocations.rows.get(index))
                .unwrap_or_default(),
            RowLocation::Stray => self.strays.get(&address).copied().unwrap_or_default(),
        }
    }

    /// Writes a row and updates all counters of rows.
    fn write(&mut self, address: IpAddr, row: Row) {
        let before = match self.place(address) {
            RowLocation::Subnet(place, index) => {
                let Some(allocations) = &mut self.subnets[place] else { return };
                let before = allocations.set(index, row);
                if before.mac != row.mac {
                    self.macs.remove(allocations.network, before.mac);
                    self.macs.add(allocations.network, row.mac);
                }
                before
            }
            RowLocation::Stray if row.state == State::Free => {
                self.strays.remove(&address).unwrap_or_default()
            }
            RowLocation::Stray => self.strays.insert(address, row).unwrap_or_default(),
        };
        if row.state != State::Free {
            self.namespaces.count_one(row.namespace);
        }
        if before.state != State::Free {
            self.namespaces.drop_one(before.namespace);
        }
    }

    /// Applies a step to a namespace's IPInstance of an address.
    fn step(&mut self, address: IpAddr, namespace: &str, step: Step) {
        let Some(namespace) = self.namespaces.number(namespace) else { return };
        let before = self.row(address);
        if before.state == State::Free || before.namespace != namespace {
            if step == Step::Gone
                && let Some(contenders) = self.contenders.get_mut(&address)
            {
                let some = contenders.len();
                contenders.retain(|row| row.namespace != namespace);
                let left = contenders.len();
                if left == 0 {
                    self.contenders.remove(&address);
                }
                (left..some).for_each(|_| self.namespaces.drop_one(namespace));
            }
            return;
        }
        match before.state.after(step) {
            None => {}
            Some(State::Free) => match self.next_contender(address) {
                // The address passes to a contender.
                Some(next) => {
                    self.write(address, next);
                    self.namespaces.drop_one(next.namespace);
                }
                None => self.write(address, Row::default()),
            },
            Some(state) => self.write(address, Row { state, ..before }),
        }
    }

    fn next_contender(&mut self, address: IpAddr) -> Option<Row> {
        let contenders = self.contenders.get_mut(&address)?;
        let next = (!contenders.is_empty()).then(|| contenders.remove(0));
        if contenders.is_empty() {
            self.contenders.remove(&address);
        }
        next
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
