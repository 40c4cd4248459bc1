//! Address allocation: all addresses that a pod requests, or none.
//!
//! A pod requests one family or both. By default each address is the next one of the current subnet
//! of the network, until that subnet is full. Then the next subnet by name becomes the current one.
//! Private subnets are used only when named. A pod can also name subnets, in order of preference:
//! then each address is the next one of the first of them that has a free one. A subnet that is
//! disabled, or for other namespaces than the pod's, is skipped like a full one, and the error names
//! each subnet with its reason. A pod can also name addresses: the entry of its
//! ordinal in `ip-pool`, or its retained addresses. A named address may be a reserved one. It may
//! also have an IPInstance in the pod's namespace that is retained for any pod: then this
//! IPInstance is bound to the pod and no new one is created ([`Assigned::rebind`]). hybridnet also
//! uses an address that is retained in another namespace. This leads to two IPInstances of one
//! address, so Trunkline refuses it.
//!
//! All addresses of a pod share one MAC address: the entry of `mac-pool`, else the one of a
//! retained address, else a new one.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::SubnetRefusal;

use super::holder::Row;
use super::mac::Mac;
use super::state::{State, Step};
use super::{Ipam, RowLocation};

/// The request of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressRequest<'a> {
    /// The pod's namespace, which is also that of its IPInstances.
    pub namespace: &'a str,
    /// The network.
    pub network: &'a str,
    /// One address, or one of each family.
    pub family: IpFamily,
    /// Names of subnets, the preferred ones first. Ignored where `addresses` are named.
    pub subnets: &'a [String],
    /// Named addresses, one of each requested family. Empty: any address.
    pub addresses: &'a [IpAddr],
    /// Addresses with IPInstances in the pod's namespace that already belong to a pod of this name.
    pub own: &'a [IpAddr],
    /// A named MAC address.
    pub mac: Option<Mac>,
    /// Whether the pod uses the addresses already: then they may be of a disabled subnet.
    pub recovered: bool,
}

/// The result of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedAddresses {
    /// IPv4 before IPv6.
    pub addresses: Vec<Assigned>,
    /// The pod's MAC address.
    pub mac: Mac,
}

/// One address of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Its subnet.
    pub subnet: Arc<str>,
    /// The address, with the subnet's length.
    pub address: IpNet,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
    /// Whether its IPInstance exists and must be bound to the pod; otherwise it must be created.
    pub rebind: bool,
}

/// The reason why a pod gets no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The network has no subnet to choose from.
    #[error(
        "network {network} has no {family} subnet that is not private: add a Subnet, name a private one in \
         networking.alibaba.com/specified-subnet, or request another family in networking.alibaba.com/ip-family"
    )]
    NoSubnet {
        /// The network.
        network: String,
        /// `IPv4` or `IPv6`.
        family: IpFamily,
    },
    /// Every address is in use or retained.
    #[error("no {family} address is free in network {network}: {subnets}; delete pods or add a Subnet")]
    Exhausted {
        /// The network.
        network: String,
        /// `IPv4` or `IPv6`.
        family: IpFamily,
        /// The subnets with their reasons.
        subnets: String,
        /// The full ones: a released address of one of them helps the pod.
        full: Vec<Arc<str>>,
    },
    /// No subnet gives the pod an address, whether or not one is free.
    #[error(
        "network {network} has no {family} subnet for this pod: {subnets}: name another one in \
         networking.alibaba.com/specified-subnet, or change spec.config of a Subnet"
    )]
    Refused {
        /// The network.
        network: String,
        /// `IPv4` or `IPv6`.
        family: IpFamily,
        /// The subnets with their reasons.
        subnets: String,
    },
    /// The named Subnet does not exist.
    #[error("subnet {name} is not in network {network}: write one of {known}")]
    UnknownSubnet {
        /// The named Subnet.
        name: String,
        /// The network.
        network: String,
        /// The first few existing Subnets.
        known: String,
    },
    /// A subnet or address that does not match the requested family, or a second address of one
    /// family.
    #[error(
        "{named} does not match the pod's family {family}: name only subnets of its families, and at \
         most one address of each"
    )]
    WrongFamily {
        /// The subnet or address.
        named: String,
        /// The requested family.
        family: IpFamily,
    },
    /// Addresses are named, but none of this family.
    #[error("the pod needs an address of family {family}, and {addresses} names none: write it as v4/v6")]
    FamilyNotNamed {
        /// `IPv4` or `IPv6`.
        family: IpFamily,
        /// The named addresses.
        addresses: String,
    },
    /// A named address outside the network's subnets.
    #[error("address {address} is in no subnet of network {network}: its subnets are {known}")]
    NoSubnetFor {
        /// The named address.
        address: IpAddr,
        /// The network.
        network: String,
        /// The first few existing Subnets.
        known: String,
    },
    /// A named address that is never allocated.
    #[error(
        "address {address} of subnet {subnet} is never allocated (gateway, excluded, network or \
         broadcast address): name another one"
    )]
    Excluded {
        /// The named address.
        address: IpAddr,
        /// Its subnet.
        subnet: Arc<str>,
    },
    /// A free named address of a subnet that gives the pod no new address.
    #[error(
        "address {address} is free, but subnet {subnet} {refusal}: name another address, or change spec.config of \
         the Subnet"
    )]
    AddressRefused {
        /// The named address.
        address: IpAddr,
        /// Its subnet.
        subnet: Arc<str>,
        /// The reason.
        refusal: SubnetRefusal,
    },
    /// A named address with a holder.
    #[error(
        "address {address} of subnet {subnet} belongs to IPInstance {namespace}/{name}, {state}: \
         name another one, or delete the pod that has it"
    )]
    Taken {
        /// The named address.
        address: IpAddr,
        /// Its subnet.
        subnet: Arc<str>,
        /// The namespace that holds it.
        namespace: Arc<str>,
        /// Its IPInstance.
        name: String,
        /// Its state, such as `in use`.
        state: &'static str,
    },
    /// A named MAC address that another pod uses.
    #[error(
        "MAC address {mac} is in use by another pod of network {network}: name another one in \
         networking.alibaba.com/mac-pool"
    )]
    MacTaken {
        /// The named MAC address.
        mac: String,
        /// The network.
        network: String,
    },
}

/// An address taken from its pool for this request, with its previous state. Its row is written
/// after the last possible failure.
struct ReservedAddress {
    address: IpAddr,
    place: usize,
    before: Row,
    /// The subnet's previous cursor, if the address was chosen by round robin.
    cursor: Option<Option<IpAddr>>,
}

impl Ipam {
    /// Sets aside all requested addresses, or none. The caller then creates (or binds) each one, or
    /// returns it with [`Ipam::refuse`]. A new MAC address takes 24 bits of `random`.
    pub fn allocate(
        &mut self,
        request: &AddressRequest<'_>,
        random: u32,
    ) -> Result<AllocatedAddresses, AllocateError> {
        let mut chosen: Vec<ReservedAddress> = Vec::with_capacity(2);
        let outcome =
            self.choose_all(request, &mut chosen).and_then(|()| self.grant(request, &chosen, random));
        if outcome.is_err() {
            for chosen in chosen.iter().rev() {
                let Some(allocations) = &mut self.subnets[chosen.place] else { continue };
                if chosen.before.state == State::Free {
                    allocations.pool.release(chosen.address);
                }
                if let Some(cursor) = chosen.cursor {
                    allocations.pool.set_last(cursor);
                }
            }
        }
        outcome
    }

    fn choose_all(
        &mut self,
        request: &AddressRequest<'_>,
        chosen: &mut Vec<ReservedAddress>,
    ) -> Result<(), AllocateError> {
        let wants = [request.family.has_v4(), request.family.has_v6()];
        let subnets = self.named_subnets(request, wants)?;
        let mut addresses: [Option<IpAddr>; 2] = [None, None];
        for address in request.addresses {
            let v6 = usize::from(address.is_ipv6());
            if !wants[v6] || addresses[v6].replace(*address).is_some() {
                return Err(AllocateError::WrongFamily {
                    named: address.to_string(),
                    family: request.family,
                });
            }
        }
        if !request.addresses.is_empty()
            && let Some(v6) = [0, 1].into_iter().find(|v6| wants[*v6] && addresses[*v6].is_none())
        {
            let addresses = list(request.addresses.iter());
            return Err(AllocateError::FamilyNotNamed { family: family(v6), addresses });
        }
        for v6 in [0, 1] {
            if !wants[v6] {
                continue;
            }
            match (addresses[v6], subnets[v6].as_slice()) {
                (Some(address), _) => self.choose_named(request, address, chosen)?,
                (None, []) => self.choose_any(request, v6, chosen)?,
                (None, named) => self.choose_next(request, v6, named, chosen)?,
            }
        }
        Ok(())
    }

    /// The named subnets of each family, in the request's order.
    fn named_subnets(
        &self,
        request: &AddressRequest<'_>,
        wants: [bool; 2],
    ) -> Result<[Vec<usize>; 2], AllocateError> {
        let mut named = [Vec::new(), Vec::new()];
        for name in request.subnets {
            let found = self.networks.get(request.network).and_then(|network| {
                let place = |v6: usize| Some((v6, *network.subnets[v6].get(name.as_str())?));
                place(0).or_else(|| place(1))
            });
            let Some((v6, place)) = found else {
                return Err(AllocateError::UnknownSubnet {
                    name: name.clone(),
                    network: request.network.to_owned(),
                    known: self.known(request.network),
                });
            };
            if !wants[v6] {
                return Err(AllocateError::WrongFamily {
                    named: format!("subnet {name}"),
                    family: request.family,
                });
            }
            named[v6].push(place);
        }
        Ok(named)
    }

    /// Chooses the next address of the network: from the current subnet, or from the next one with
    /// free addresses.
    fn choose_any(
        &mut self,
        request: &AddressRequest<'_>,
        v6: usize,
        chosen: &mut Vec<ReservedAddress>,
    ) -> Result<(), AllocateError> {
        let Some(network) = self.networks.get(request.network) else {
            return Err(AllocateError::NoSubnet { network: request.network.to_owned(), family: family(v6) });
        };
        let current = network.current[v6].as_ref().and_then(|name| network.subnets[v6].get(name));
        if let Some(place) = current.copied().filter(|place| self.is_public(*place))
            && self.take_next(request, place, chosen)
        {
            return Ok(());
        }
        let network = &self.networks[request.network];
        let from = network.current[v6].clone().unwrap_or_default();
        let after = network.subnets[v6].range(Arc::clone(&from)..).chain(network.subnets[v6].range(..from));
        let places: Vec<usize> =
            after.map(|(_, place)| *place).filter(|place| self.is_public(*place)).collect();
        self.choose_next(request, v6, &places, chosen)?;
        let used = chosen.last().and_then(|chosen| self.subnets[chosen.place].as_ref());
        let used = used.map(|allocations| Arc::clone(&allocations.name));
        self.network_allocations(request.network).current[v6] = used;
        Ok(())
    }

    fn is_public(&self, place: usize) -> bool {
        self.subnets[place].as_ref().is_some_and(|allocations| !allocations.pool.spec().private)
    }

    /// Chooses the next address of the first of these subnets that has a free one.
    fn choose_next(
        &mut self,
        request: &AddressRequest<'_>,
        v6: usize,
        places: &[usize],
        chosen: &mut Vec<ReservedAddress>,
    ) -> Result<(), AllocateError> {
        if places.iter().any(|place| self.take_next(request, *place, chosen)) {
            return Ok(());
        }
        let (network, family) = (request.network.to_owned(), family(v6));
        if places.is_empty() {
            return Err(AllocateError::NoSubnet { network, family });
        }
        let mut full = Vec::new();
        let mut reasons = Vec::new();
        for allocations in places.iter().filter_map(|place| self.subnets[*place].as_ref()) {
            let (name, pool) = (&allocations.name, &allocations.pool);
            reasons.push(match pool.spec().access.check(request.namespace) {
                Err(refusal) => format!("subnet {name} {refusal}"),
                Ok(()) => {
                    full.push(Arc::clone(name));
                    let counts = pool.counts();
                    format!("subnet {name} has {} of {} in use", counts.open - counts.free, counts.open)
                }
            });
        }
        // A pod names few subnets, and its error has all of them.
        let subnets = if request.subnets.is_empty() { list(reasons.into_iter()) } else { reasons.join(", ") };
        Err(if full.is_empty() {
            AllocateError::Refused { network, family, subnets }
        } else {
            AllocateError::Exhausted { network, family, subnets, full }
        })
    }

    /// Takes the next address of a subnet, unless it is full or gives the pod none.
    fn take_next(
        &mut self,
        request: &AddressRequest<'_>,
        place: usize,
        chosen: &mut Vec<ReservedAddress>,
    ) -> bool {
        let Some(allocations) = &mut self.subnets[place] else { return false };
        if allocations.pool.spec().access.check(request.namespace).is_err() {
            return false;
        }
        let cursor = allocations.pool.last();
        let Some(address) = allocations.pool.take_next() else { return false };
        chosen.push(ReservedAddress { address, place, before: Row::default(), cursor: Some(cursor) });
        true
    }

    fn choose_named(
        &mut self,
        request: &AddressRequest<'_>,
        address: IpAddr,
        chosen: &mut Vec<ReservedAddress>,
    ) -> Result<(), AllocateError> {
        let found = match self.place(address) {
            RowLocation::Subnet(place, _) => {
                self.subnets[place].as_mut().map(|allocations| (place, allocations))
            }
            RowLocation::Stray => None,
        };
        let Some((place, allocations)) =
            found.filter(|(_, allocations)| allocations.pool.spec().network == request.network)
        else {
            return Err(AllocateError::NoSubnetFor {
                address,
                network: request.network.to_owned(),
                known: self.known(request.network),
            });
        };
        let subnet = Arc::clone(&allocations.name);
        // Read the row, not the pool: an address may have a holder although the present range
        // excludes it.
        let before =
            allocations.pool.index(address).map(|index| allocations.rows.get(index)).unwrap_or_default();
        if before.state == State::Free {
            let access = &allocations.pool.spec().access;
            let checked = if request.recovered {
                access.check_namespace(request.namespace)
            } else {
                access.check(request.namespace)
            };
            if let Err(refusal) = checked {
                return Err(AllocateError::AddressRefused { address, subnet, refusal });
            }
            // The address is in the range and has no holder.
            if allocations.pool.take(address).is_err() {
                return Err(AllocateError::Excluded { address, subnet });
            }
        } else {
            let same_namespace = self.namespaces.number(request.namespace) == Some(before.namespace);
            let may = match before.state {
                State::Retained => same_namespace,
                State::InUse => same_namespace && request.own.contains(&address),
                _ => false,
            };
            if !may || self.contenders.contains_key(&address) {
                return Err(AllocateError::Taken {
                    address,
                    subnet,
                    namespace: Arc::clone(self.namespaces.name(before.namespace)),
                    name: super::instance_name(address),
                    state: match before.state {
                        State::Free | State::InUse | State::Given | State::Rebinding => "in use",
                        State::Retained => "retained for the next pod of its name",
                        State::Expiring => "about to be released, because its retention is over",
                        State::Releasing => "being deleted",
                    },
                });
            }
        }
        chosen.push(ReservedAddress { address, place, before, cursor: None });
        Ok(())
    }

    /// Chooses the MAC address, and returns the result.
    fn grant(
        &mut self,
        request: &AddressRequest<'_>,
        chosen: &[ReservedAddress],
        random: u32,
    ) -> Result<AllocatedAddresses, AllocateError> {
        let number = self.networks.get(request.network).map_or(0, |network| network.number);
        let kept = chosen.iter().map(|chosen| chosen.before.mac).find(|mac| *mac != [0; 6]);
        let mac = match request.mac {
            Some(mac) => {
                // The chosen addresses still have their previous rows. A MAC address in these rows,
                // or in the pod's own, is not another pod's.
                let own = request.own.iter().chain(chosen.iter().map(|chosen| &chosen.address));
                let mut own: Vec<&IpAddr> = own.filter(|address| self.row(**address).mac == mac).collect();
                own.sort_unstable();
                own.dedup();
                if usize::from(self.macs.count(number, mac)) > own.len() {
                    let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
                    return Err(AllocateError::MacTaken { mac, network: request.network.to_owned() });
                }
                mac
            }
            None => kept.unwrap_or_else(|| self.macs.unused(number, random)),
        };
        let mut addresses = Vec::with_capacity(chosen.len());
        let namespace = self.namespaces.intern(request.namespace);
        for chosen in chosen {
            let state = chosen.before.state.after(Step::Choose).unwrap_or(chosen.before.state);
            self.write(chosen.address, Row { namespace, mac, state });
            if let Some(allocations) = &self.subnets[chosen.place] {
                addresses.push(Assigned {
                    subnet: Arc::clone(&allocations.name),
                    address: allocations.with_length(chosen.address),
                    gateway: allocations.pool.spec().gateway,
                    rebind: chosen.before.state != State::Free,
                });
            }
        }
        Ok(AllocatedAddresses { addresses, mac })
    }

    fn known(&self, network: &str) -> String {
        let subnets = self.networks.get(network).into_iter().flat_map(|network| &network.subnets).flatten();
        let known = list(subnets.filter_map(|(name, place)| {
            Some(format!("{name} ({})", self.subnets[*place].as_ref()?.pool.spec().cidr))
        }));
        if known.is_empty() { "none".to_owned() } else { known }
    }
}

fn family(v6: usize) -> IpFamily {
    if v6 == 0 { IpFamily::V4 } else { IpFamily::V6 }
}

/// Joins the first few items, so that an error fits into an event.
fn list<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    const SHOWN: usize = 4;
    let mut items = items.map(|item| item.to_string());
    let mut text = items.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    let more = items.count();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
