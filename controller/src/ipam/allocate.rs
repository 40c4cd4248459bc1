//! Giving addresses: everything that a pod asks for, or nothing.
//!
//! A pod asks for one family or both. Without further wishes each address is the next one of the subnet that its
//! network gave from last, until that is full, then of the next one by name; private subnets only when named. Or the pod
//! names addresses: the entry of its ordinal in `ip-pool`, or those that are retained for it. These may be reserved ones,
//! and ones whose IPInstance exists already in the pod's namespace and is kept, whoever it is kept for: then that IPInstance
//! is bound to the pod instead of a new one being made ([`Assigned::rebind`]). hybridnet takes an address that
//! is kept in another namespace too, and then there are two IPInstances of it; here it is refused.
//!
//! All addresses of a pod have one MAC address: the entry of `mac-pool`, else the one of a retained address, else a new one.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::pod::IpFamily;

use super::holder::Row;
use super::mac::Mac;
use super::state::{State, Step};
use super::{Ipam, Place};

/// What a pod asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// The pod's namespace, where its IPInstances are.
    pub namespace: &'a str,
    /// The network.
    pub network: &'a str,
    /// One address, or one of each family.
    pub family: IpFamily,
    /// Names of subnets, at most one of each family. Not looked at for addresses that are named.
    pub subnets: &'a [String],
    /// Addresses that are named, one of each family that is asked for. None: any.
    pub addresses: &'a [IpAddr],
    /// Addresses whose IPInstances in the pod's namespace are of a pod of this name already.
    pub own: &'a [IpAddr],
    /// A MAC address that is named.
    pub mac: Option<Mac>,
}

/// What a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
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
    /// Its IPInstance exists and is to be bound to the pod; otherwise it is to be created.
    pub rebind: bool,
}

/// Why a pod gets no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Nothing to choose from.
    #[error(
        "network {network} has no {family} subnet that is not private: add a Subnet, name a private one in \
         networking.alibaba.com/specified-subnet, or ask for another family in networking.alibaba.com/ip-family"
    )]
    NoSubnet {
        /// The network.
        network: String,
        /// `IPv4` or `IPv6`.
        family: IpFamily,
    },
    /// Every address is given out.
    #[error("no {family} address is free in network {network}: {subnets}; delete pods or add a Subnet")]
    Exhausted {
        /// The network.
        network: String,
        /// `IPv4` or `IPv6`.
        family: IpFamily,
        /// Each subnet with its counts, the first few of them.
        subnets: String,
    },
    /// No such subnet.
    #[error("subnet {name} is not in network {network}: write one of {known}")]
    UnknownSubnet {
        /// What was asked for.
        name: String,
        /// The network.
        network: String,
        /// What there is, the first few.
        known: String,
    },
    /// A subnet or an address that does not go with what is asked for.
    #[error(
        "{named} is not what a pod of family {family} can have: name at most one for each family that it has"
    )]
    WrongFamily {
        /// The subnet or address.
        named: String,
        /// What was asked for.
        family: IpFamily,
    },
    /// Addresses are named, but not for this family.
    #[error("of family {family} the pod is to have, and {addresses} names none: write it as v4/v6")]
    FamilyNotNamed {
        /// `IPv4` or `IPv6`.
        family: IpFamily,
        /// What is named.
        addresses: String,
    },
    /// A named address that the network does not have.
    #[error("address {address} is in no subnet of network {network}: its subnets are {known}")]
    NoSubnetFor {
        /// What was asked for.
        address: IpAddr,
        /// The network.
        network: String,
        /// What there is, the first few.
        known: String,
    },
    /// A named address that nobody may have.
    #[error(
        "address {address} of subnet {subnet} is never given out (gateway, excluded, network or broadcast address): name another"
    )]
    Excluded {
        /// What was asked for.
        address: IpAddr,
        /// Its subnet.
        subnet: Arc<str>,
    },
    /// A named address that somebody has.
    #[error(
        "address {address} of subnet {subnet} belongs to IPInstance {namespace}/{name}, {state}: name another, or delete the pod that has it"
    )]
    Taken {
        /// What was asked for.
        address: IpAddr,
        /// Its subnet.
        subnet: Arc<str>,
        /// The namespace that has it.
        namespace: Arc<str>,
        /// Its IPInstance.
        name: String,
        /// `in use` and the like.
        state: &'static str,
    },
    /// A named MAC address that another pod has.
    #[error(
        "MAC address {mac} is in use by another pod of network {network}: name another in networking.alibaba.com/mac-pool"
    )]
    MacTaken {
        /// What was asked for.
        mac: String,
        /// The network.
        network: String,
    },
}

/// An address that was taken from its pool for this request, and how it was before. Its row is written once nothing can fail any more.
struct Chosen {
    address: IpAddr,
    place: usize,
    before: Row,
    /// The subnet's cursor before, if the address came by round robin.
    cursor: Option<Option<IpAddr>>,
}

impl Ipam {
    /// Sets addresses aside: everything that is asked for, or nothing. Each is then to be created (or bound), or
    /// taken back by [`Ipam::refuse`]. Of `random` 24 bits make the MAC address, if it is a new one.
    pub fn allocate(&mut self, request: &Request<'_>, random: u32) -> Result<Granted, AllocateError> {
        let mut chosen: Vec<Chosen> = Vec::with_capacity(2);
        let outcome =
            self.choose_all(request, &mut chosen).and_then(|()| self.grant(request, &chosen, random));
        if outcome.is_err() {
            for chosen in chosen.iter().rev() {
                let Some(book) = &mut self.subnets[chosen.place] else { continue };
                if chosen.before.state == State::Free {
                    book.pool.release(chosen.address);
                }
                if let Some(cursor) = chosen.cursor {
                    book.pool.set_last(cursor);
                }
            }
        }
        outcome
    }

    fn choose_all(&mut self, request: &Request<'_>, chosen: &mut Vec<Chosen>) -> Result<(), AllocateError> {
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
            match (addresses[v6], subnets[v6]) {
                (Some(address), _) => self.choose_named(request, address, chosen)?,
                (None, Some(place)) => self.choose_next(request, v6, &[place], chosen)?,
                (None, None) => self.choose_any(request, v6, chosen)?,
            }
        }
        Ok(())
    }

    fn named_subnets(
        &self,
        request: &Request<'_>,
        wants: [bool; 2],
    ) -> Result<[Option<usize>; 2], AllocateError> {
        let mut named = [None, None];
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
            if !wants[v6] || named[v6].replace(place).is_some() {
                return Err(AllocateError::WrongFamily {
                    named: format!("subnet {name}"),
                    family: request.family,
                });
            }
        }
        Ok(named)
    }

    /// The next address of the network: of the subnet that was given from last, or of the next one with room.
    fn choose_any(
        &mut self,
        request: &Request<'_>,
        v6: usize,
        chosen: &mut Vec<Chosen>,
    ) -> Result<(), AllocateError> {
        let Some(network) = self.networks.get(request.network) else {
            return Err(AllocateError::NoSubnet { network: request.network.to_owned(), family: family(v6) });
        };
        let current = network.current[v6].as_ref().and_then(|name| network.subnets[v6].get(name));
        if let Some(place) = current.copied().filter(|place| self.is_public(*place))
            && self.take_next(place, chosen)
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
        let used = used.map(|book| Arc::clone(&book.name));
        self.network_book(request.network).current[v6] = used;
        Ok(())
    }

    fn is_public(&self, place: usize) -> bool {
        self.subnets[place].as_ref().is_some_and(|book| !book.pool.spec().private)
    }

    /// The next address of the first of these subnets that has one.
    fn choose_next(
        &mut self,
        request: &Request<'_>,
        v6: usize,
        places: &[usize],
        chosen: &mut Vec<Chosen>,
    ) -> Result<(), AllocateError> {
        if places.iter().any(|place| self.take_next(*place, chosen)) {
            return Ok(());
        }
        let (network, family) = (request.network.to_owned(), family(v6));
        if places.is_empty() {
            return Err(AllocateError::NoSubnet { network, family });
        }
        let subnets = list(places.iter().filter_map(|place| self.subnets[*place].as_ref()).map(|book| {
            let counts = book.pool.counts();
            format!("subnet {} has {} of {} in use", book.name, counts.open - counts.free, counts.open)
        }));
        Err(AllocateError::Exhausted { network, family, subnets })
    }

    fn take_next(&mut self, place: usize, chosen: &mut Vec<Chosen>) -> bool {
        let Some(book) = &mut self.subnets[place] else { return false };
        let cursor = book.pool.last();
        let Some(address) = book.pool.take_next() else { return false };
        chosen.push(Chosen { address, place, before: Row::default(), cursor: Some(cursor) });
        true
    }

    fn choose_named(
        &mut self,
        request: &Request<'_>,
        address: IpAddr,
        chosen: &mut Vec<Chosen>,
    ) -> Result<(), AllocateError> {
        let found = match self.place(address) {
            Place::Subnet(place, _) => self.subnets[place].as_mut().map(|book| (place, book)),
            Place::Stray => None,
        };
        let Some((place, book)) = found.filter(|(_, book)| book.pool.spec().network == request.network)
        else {
            return Err(AllocateError::NoSubnetFor {
                address,
                network: request.network.to_owned(),
                known: self.known(request.network),
            });
        };
        let subnet = Arc::clone(&book.name);
        // Read from the rows, since an address may be had although the range of today would not give it.
        let before = book.pool.index(address).map(|index| book.rows.get(index)).unwrap_or_default();
        if before.state == State::Free {
            // It is in the range, and nobody has it.
            if book.pool.take(address).is_err() {
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
                        State::Retained => "kept for the next pod of its name",
                        State::Releasing => "being deleted",
                    },
                });
            }
        }
        chosen.push(Chosen { address, place, before, cursor: None });
        Ok(())
    }

    /// Settles the MAC address, and says what was chosen.
    fn grant(
        &mut self,
        request: &Request<'_>,
        chosen: &[Chosen],
        random: u32,
    ) -> Result<Granted, AllocateError> {
        let number = self.networks.get(request.network).map_or(0, |network| network.number);
        let kept = chosen.iter().map(|chosen| chosen.before.mac).find(|mac| *mac != [0; 6]);
        let mac = match request.mac {
            Some(mac) => {
                // Chosen ones are counted by their rows, which are those of before.
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
            if let Some(book) = &self.subnets[chosen.place] {
                addresses.push(Assigned {
                    subnet: Arc::clone(&book.name),
                    address: book.with_length(chosen.address),
                    gateway: book.pool.spec().gateway,
                    rebind: chosen.before.state != State::Free,
                });
            }
        }
        Ok(Granted { addresses, mac })
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

/// The first few, so that an error fits into an event.
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
