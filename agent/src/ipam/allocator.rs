//! Selects a pod's subnets and allocates its addresses; no I/O.
//!
//! Without a request, a pod gets one address of each family for which its network has subnets.
//! Within a family the allocator stays on the last used subnet until it is full, and then continues
//! with the next by name (hybridnet's order). Private subnets are used only if a request names
//! them. Of several named subnets of a family the first one with a free address is used. A subnet that
//! is disabled, or for other Namespaces, is skipped like a full one. A request is granted as a whole or not at all: if the second family has no free address,
//! the first address is released.

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::pod::SubnetNames;
use trunkline_api::pool::{Counts, Pool, PoolSpec, Unavailable};
use trunkline_api::resources::{AttachmentKind, SubnetRefusal};

use super::record::Assigned;

/// A network's settings for the allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Its name.
    pub name: String,
    /// Whether this network is a candidate for pods whose request names no network. It is used if
    /// it is the only candidate.
    pub default_candidate: bool,
    /// How its pods are attached.
    pub attachment: AttachmentKind,
    /// The reason for which pods cannot be attached to it on this node.
    pub refused: Option<String>,
}

/// A pod's request. If all fields are empty, the pod gets one address of each family of the default
/// network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRequest {
    /// The network.
    pub network: Option<String>,
    /// Subnets, the preferred ones first.
    pub subnets: SubnetNames,
    /// At most one address of each family.
    pub addresses: Vec<IpAddr>,
    /// The pod's Namespace; empty for a container without one.
    pub namespace: String,
}

/// The reasons for which no address is allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The node has no network for pods.
    #[error(
        "no network of this node accepts pods: add a Network and a Subnet manifest whose nodeSelector matches this node"
    )]
    NoNetwork,
    /// More than one network is possible.
    #[error(
        "networks {names} are all possible: name one, with \"network\" in the CNI configuration or NETWORK= in CNI_ARGS"
    )]
    AmbiguousNetwork {
        /// Their names.
        names: String,
    },
    /// No such network on this node.
    #[error("network {name} is not on this node: its networks are {known}")]
    UnknownNetwork {
        /// The requested name.
        name: String,
        /// The existing networks.
        known: String,
    },
    /// The network exists but pods cannot be attached.
    #[error("network {name} accepts no pods on this node: {reason}")]
    RefusedNetwork {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// No such subnet on this node.
    #[error("subnet {name} is not on this node: network {network} has {known}")]
    UnknownSubnet {
        /// The requested name.
        name: String,
        /// The network.
        network: String,
        /// The existing subnets.
        known: String,
    },
    /// Two requested addresses of one family, or Subnets of one family before and after `/`.
    #[error("{first} and {second} are of the same IP version: a pod has at most one address of each")]
    SameFamily {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// The requested address is not available.
    #[error("address {address} of subnet {subnet} {reason}")]
    Unavailable {
        /// The requested address.
        address: IpAddr,
        /// The subnet that contains it.
        subnet: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// The requested address is free, but its subnet gives the pod no new address.
    #[error(
        "address {address} is free, but subnet {subnet} {refusal}: name another one, or change spec.config of the Subnet"
    )]
    Refused {
        /// The requested address.
        address: IpAddr,
        /// The subnet that contains it.
        subnet: String,
        /// The reason.
        refusal: SubnetRefusal,
    },
    /// The requested address is in no subnet of the network.
    #[error("address {address} is in no subnet of network {network}: its subnets are {known}")]
    NoSubnetFor {
        /// The requested address.
        address: IpAddr,
        /// The network.
        network: String,
        /// The existing subnets.
        known: String,
    },
    /// The network has no subnets.
    #[error(
        "network {network} has no subnet that is not private: add a Subnet manifest, or name a private one"
    )]
    NoSubnet {
        /// The network.
        network: String,
    },
    /// Every address is allocated.
    #[error("no IPv{version} address is free in network {network}: {pools}; delete pods or add a Subnet")]
    Exhausted {
        /// 4 or 6.
        version: u8,
        /// The network.
        network: String,
        /// Each subnet with its reason.
        pools: String,
    },
}

/// Every pool of this node.
#[derive(Debug, Default)]
pub struct Allocator {
    networks: BTreeMap<String, NetworkSpec>,
    pools: BTreeMap<String, Pool>,
    /// The last used subnet for each network and family.
    current: BTreeMap<(String, bool), String>,
}

impl Allocator {
    /// Replaces networks and pools. Afterwards [`Allocator::restore`] must mark the used addresses
    /// again.
    pub fn configure(&mut self, networks: Vec<NetworkSpec>, pools: Vec<Pool>) {
        let cursors: Vec<_> = self.pools.iter().map(|(name, pool)| (name.clone(), pool.last())).collect();
        self.networks = networks.into_iter().map(|network| (network.name.clone(), network)).collect();
        self.pools = pools.into_iter().map(|pool| (pool.spec().subnet.clone(), pool)).collect();
        for (name, cursor) in cursors {
            self.set_cursor(&name, cursor);
        }
    }

    /// Marks an address as used, in the pool that contains it.
    pub fn restore(&mut self, address: IpAddr) {
        self.pools.values_mut().for_each(|pool| pool.restore(address));
    }

    /// Allocates everything in the request, or nothing.
    pub fn allocate(&mut self, request: &AddressRequest) -> Result<(String, Vec<Assigned>), AllocateError> {
        let network = self.network_of(request)?;
        let subnets = self.subnets_of(&network, request)?;
        for (index, address) in request.addresses.iter().enumerate() {
            if let Some(other) = request.addresses[..index].iter().find(|a| a.is_ipv4() == address.is_ipv4())
            {
                return Err(AllocateError::SameFamily {
                    first: other.to_string(),
                    second: address.to_string(),
                });
            }
        }
        let mut given: Vec<Assigned> = Vec::new();
        for v4 in [true, false] {
            let named = request.addresses.iter().copied().find(|address| address.is_ipv4() == v4);
            let candidates: Vec<&String> =
                subnets.iter().filter(|name| self.pools[*name].is_v4() == v4).collect();
            let outcome = match named {
                Some(address) => self.take_named(&network, request, address, &candidates).map(Some),
                None if candidates.is_empty() => Ok(None),
                None => self.take_any(&network, request, v4, &candidates).map(Some),
            };
            match outcome {
                Ok(assigned) => given.extend(assigned),
                Err(error) => {
                    given.iter().for_each(|assigned| self.release(assigned));
                    return Err(error);
                }
            }
        }
        if given.is_empty() {
            return Err(AllocateError::NoSubnet { network });
        }
        Ok((network, given))
    }

    /// Whether pods can be attached to a network, whatever the origin of their addresses.
    pub fn admit(&self, name: &str) -> Result<(), AllocateError> {
        match self.networks.get(name) {
            None => Err(AllocateError::UnknownNetwork {
                name: name.to_owned(),
                known: list(self.networks.keys()),
            }),
            Some(NetworkSpec { refused: Some(reason), .. }) => {
                Err(AllocateError::RefusedNetwork { name: name.to_owned(), reason: reason.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    /// How pods of a network are attached.
    pub fn attachment(&self, network: &str) -> AttachmentKind {
        self.networks.get(network).map(|network| network.attachment).unwrap_or_default()
    }

    /// Releases an address.
    pub fn release(&mut self, assigned: &Assigned) {
        if let Some(pool) = self.pools.get_mut(&assigned.subnet) {
            pool.release(assigned.address);
        }
    }

    /// Releases an address in the pool that contains it.
    pub fn release_address(&mut self, address: IpAddr) {
        self.pools.values_mut().for_each(|pool| pool.release(address));
    }

    /// The last address that a subnet's round robin allocated.
    pub fn cursor(&self, subnet: &str) -> Option<IpAddr> {
        self.pools.get(subnet)?.last()
    }

    /// Sets the address after which the round robin continues.
    pub fn set_cursor(&mut self, subnet: &str, address: Option<IpAddr>) {
        if let Some(pool) = self.pools.get_mut(subnet) {
            pool.set_last(address);
        }
    }

    /// The counts of each subnet.
    pub fn counts(&self) -> impl Iterator<Item = (&PoolSpec, Counts)> {
        self.pools.values().map(|pool| (pool.spec(), pool.counts()))
    }

    fn network_of(&self, request: &AddressRequest) -> Result<String, AllocateError> {
        let name = match (&request.network, request.subnets.iter().next()) {
            (Some(name), _) => name.clone(),
            (None, Some(subnet)) if self.pools.contains_key(subnet) => {
                self.pools[subnet].spec().network.clone()
            }
            (None, _) => self.default_network(request)?,
        };
        self.admit(&name)?;
        Ok(name)
    }

    fn default_network(&self, request: &AddressRequest) -> Result<String, AllocateError> {
        // A requested address selects the network, if only one network contains it.
        let holds = |network: &NetworkSpec| {
            request.addresses.iter().all(|address| {
                self.pools
                    .values()
                    .any(|pool| pool.spec().network == network.name && pool.spec().cidr.contains(address))
            })
        };
        let usable: Vec<&NetworkSpec> =
            self.networks.values().filter(|network| network.refused.is_none() && holds(network)).collect();
        let preferred: Vec<&NetworkSpec> =
            usable.iter().copied().filter(|network| network.default_candidate).collect();
        match (preferred.as_slice(), usable.as_slice()) {
            ([one], _) | ([], [one]) => Ok(one.name.clone()),
            ([], []) => match self.networks.values().find(|network| network.refused.is_some()) {
                Some(NetworkSpec { name, refused: Some(reason), .. }) if request.addresses.is_empty() => {
                    Err(AllocateError::RefusedNetwork { name: name.clone(), reason: reason.clone() })
                }
                _ => Err(match request.addresses.first() {
                    Some(address) if !self.networks.is_empty() => AllocateError::NoSubnetFor {
                        address: *address,
                        network: list(self.networks.keys()),
                        known: list(self.pools.values().map(|pool| pool.spec().cidr.to_string())),
                    },
                    _ => AllocateError::NoNetwork,
                }),
            },
            ([], many) | (many, _) => Err(AllocateError::AmbiguousNetwork {
                names: list(many.iter().map(|network| network.name.clone())),
            }),
        }
    }

    fn subnets_of(&self, network: &str, request: &AddressRequest) -> Result<Vec<String>, AllocateError> {
        let of_network = || self.pools.values().filter(|pool| pool.spec().network == network);
        if request.subnets.is_empty() {
            return Ok(of_network()
                .filter(|pool| {
                    // A requested address of a private subnet also requests the subnet.
                    !pool.spec().private
                        || request.addresses.iter().any(|address| pool.spec().cidr.contains(address))
                })
                .map(|pool| pool.spec().subnet.clone())
                .collect());
        }
        let mut named: Vec<String> = Vec::new();
        for name in request.subnets.iter() {
            let pool =
                self.pools.get(name).filter(|pool| pool.spec().network == network).ok_or_else(|| {
                    AllocateError::UnknownSubnet {
                        name: name.clone(),
                        network: network.to_owned(),
                        known: list(of_network().map(|pool| pool.spec().subnet.clone())),
                    }
                })?;
            // The Subnets after `/` are of the other family than those before it.
            let before = request.subnets.by_family().filter(|[_, after]| after.contains(name));
            let before = before.into_iter().flat_map(|[before, _]| before);
            if let Some(other) = before.into_iter().find(|other| self.pools[*other].is_v4() == pool.is_v4()) {
                return Err(AllocateError::SameFamily { first: other.clone(), second: name.clone() });
            }
            named.push(name.clone());
        }
        Ok(named)
    }

    fn take_named(
        &mut self,
        network: &str,
        request: &AddressRequest,
        address: IpAddr,
        candidates: &[&String],
    ) -> Result<Assigned, AllocateError> {
        // Two subnets may share a prefix with disjoint ranges: the range that contains the address
        // decides.
        let mut closest = None;
        for name in candidates {
            let Some(pool) = self.pools.get_mut(*name) else { continue };
            if !pool.spec().cidr.contains(&address) {
                continue;
            }
            match pool.take(address) {
                Ok(()) => match pool.spec().access.check(&request.namespace) {
                    Ok(()) => return Ok(assigned(pool, address)),
                    Err(refusal) => {
                        pool.release(address);
                        return Err(AllocateError::Refused { address, subnet: name.to_string(), refusal });
                    }
                },
                Err(Unavailable::OutOfRange) => {
                    closest.get_or_insert((name.to_string(), Unavailable::OutOfRange));
                }
                Err(reason) => closest = Some((name.to_string(), reason)),
            }
        }
        Err(match closest {
            Some((subnet, reason)) => AllocateError::Unavailable {
                address,
                subnet,
                reason: match reason {
                    Unavailable::OutOfRange => {
                        "is outside its range on this node: name one from start to end, and in podCIDRs of this node's NodeInfo if it has any"
                    }
                    Unavailable::Excluded => {
                        "is never allocated (gateway, excluded, network or broadcast address): name another"
                    }
                    Unavailable::InUse => {
                        "is in use: see `trunkline pods`, name another or delete the pod that has it"
                    }
                },
            },
            None => AllocateError::NoSubnetFor {
                address,
                network: network.to_owned(),
                known: list(candidates.iter().map(|name| self.pools[*name].spec().cidr.to_string())),
            },
        })
    }

    fn take_any(
        &mut self,
        network: &str,
        request: &AddressRequest,
        v4: bool,
        candidates: &[&String],
    ) -> Result<Assigned, AllocateError> {
        let slot = (network.to_owned(), v4);
        // Named subnets have an order of their own.
        let current = self.current.get(&slot).filter(|_| request.subnets.is_empty());
        let from =
            current.and_then(|current| candidates.iter().position(|name| *name == current)).unwrap_or(0);
        for name in candidates[from..].iter().chain(&candidates[..from]) {
            if let Some(pool) = self.pools.get_mut(*name)
                && pool.spec().access.check(&request.namespace).is_ok()
                && let Some(address) = pool.take_next()
            {
                let assigned = assigned(pool, address);
                self.current.insert(slot, name.to_string());
                return Ok(assigned);
            }
        }
        let pools = candidates.iter().map(|name| {
            let pool = &self.pools[*name];
            if let Err(refusal) = pool.spec().access.check(&request.namespace) {
                return format!("subnet {name} {refusal}");
            }
            let counts = pool.counts();
            format!("subnet {name} has {} of {} in use", counts.used, counts.total)
        });
        Err(AllocateError::Exhausted {
            version: if v4 { 4 } else { 6 },
            network: network.to_owned(),
            pools: list(pools),
        })
    }
}

fn assigned(pool: &Pool, address: IpAddr) -> Assigned {
    Assigned { subnet: pool.spec().subnet.clone(), address, gateway: pool.spec().gateway }
}

fn list<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use trunkline_api::resources::SubnetAccess;

    use super::*;

    fn network(name: &str) -> NetworkSpec {
        NetworkSpec {
            name: name.to_owned(),
            default_candidate: true,
            attachment: AttachmentKind::Veth,
            refused: None,
        }
    }

    fn pool(subnet: &str, network: &str, cidr: &str) -> Pool {
        Pool::new(spec(subnet, network, cidr)).unwrap()
    }

    fn spec(subnet: &str, network: &str, cidr: &str) -> PoolSpec {
        PoolSpec {
            subnet: subnet.to_owned(),
            network: network.to_owned(),
            cidr: cidr.parse().unwrap(),
            start: None,
            end: None,
            gateway: None,
            reserved: Vec::new(),
            excluded: Vec::new(),
            private: false,
            access: SubnetAccess::default(),
        }
    }

    fn allocator(networks: &[&str], pools: Vec<Pool>) -> Allocator {
        let mut allocator = Allocator::default();
        allocator.configure(networks.iter().map(|name| network(name)).collect(), pools);
        allocator
    }

    fn request(network: &str, subnets: &[&str], addresses: &[&str]) -> AddressRequest {
        AddressRequest {
            network: (!network.is_empty()).then(|| network.to_owned()),
            subnets: match subnets {
                [] => SubnetNames::default(),
                lists => SubnetNames::read(&lists.join("/")).unwrap(),
            },
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            namespace: "shop".to_owned(),
        }
    }

    fn given(allocator: &mut Allocator, request: &AddressRequest) -> Result<Vec<String>, String> {
        allocator
            .allocate(request)
            .map(|(_, given)| given.iter().map(|assigned| assigned.address.to_string()).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pod_without_a_request_gets_one_address_of_each_family() {
        let mut allocator =
            allocator(&["n"], vec![pool("four", "n", "10.0.0.0/29"), pool("six", "n", "2001:db8::/125")]);
        assert_eq!(given(&mut allocator, &AddressRequest::default()).unwrap(), ["10.0.0.1", "2001:db8::1"]);
        assert_eq!(given(&mut allocator, &request("n", &["six"], &[])).unwrap(), ["2001:db8::2"]);
        assert_eq!(
            given(&mut allocator, &request("", &[], &["10.0.0.5"])).unwrap(),
            ["10.0.0.5", "2001:db8::3"]
        );
    }

    #[test]
    fn an_exhausted_family_releases_the_other_familys_address() {
        let mut allocator =
            allocator(&["n"], vec![pool("four", "n", "10.0.0.0/29"), pool("six", "n", "2001:db8::/127")]);
        for _ in 0..2 {
            given(&mut allocator, &AddressRequest::default()).unwrap();
        }
        let error = given(&mut allocator, &AddressRequest::default()).unwrap_err();
        assert!(error.contains("IPv6") && error.contains("subnet six has 2 of 2 in use"), "{error}");
        let used: Vec<u32> = allocator.counts().map(|(_, counts)| counts.used).collect();
        assert_eq!(used, [2, 2]);
    }

    #[test]
    fn a_subnet_is_used_until_it_is_full() {
        let mut allocator = allocator(
            &["n"],
            vec![pool("a", "n", "10.0.0.0/31"), pool("b", "n", "10.0.1.0/31"), {
                Pool::new(PoolSpec { private: true, ..spec("c", "n", "10.0.2.0/31") }).unwrap()
            }],
        );
        let mut one = || given(&mut allocator, &AddressRequest::default()).map(|mut given| given.remove(0));
        assert_eq!(one().unwrap(), "10.0.0.0");
        assert_eq!(one().unwrap(), "10.0.0.1");
        assert_eq!(one().unwrap(), "10.0.1.0");
        allocator.release_address("10.0.0.0".parse().unwrap());
        let mut one = || given(&mut allocator, &AddressRequest::default()).map(|mut given| given.remove(0));
        assert_eq!(one().unwrap(), "10.0.1.1", "the allocator stays on the last used subnet");
        assert_eq!(one().unwrap(), "10.0.0.0");
        let error = one().unwrap_err();
        assert!(error.contains("subnet a has 2 of 2 in use, subnet b has 2 of 2 in use"), "{error}");
        assert!(!error.contains("subnet c"), "a private subnet is used only on request: {error}");
        assert_eq!(given(&mut allocator, &request("", &["c"], &[])).unwrap(), ["10.0.2.0"]);
        assert_eq!(given(&mut allocator, &request("", &[], &["10.0.2.1"])).unwrap(), ["10.0.2.1"]);
    }

    #[test]
    fn named_subnets_are_used_in_order_unless_they_refuse_the_pod() {
        let restricted = |name: &str, cidr: &str, access: SubnetAccess| {
            Pool::new(PoolSpec { access, ..spec(name, "n", cidr) }).unwrap()
        };
        let for_others = SubnetAccess { namespaces: vec!["web".to_owned()], ..SubnetAccess::default() };
        let mut allocator = allocator(
            &["n"],
            vec![
                pool("a", "n", "10.0.0.0/31"),
                pool("b", "n", "10.0.1.0/31"),
                restricted("c", "10.0.2.0/31", SubnetAccess { disabled: true, ..SubnetAccess::default() }),
                restricted("d", "10.0.3.0/31", for_others),
                pool("six", "n", "2001:db8::/125"),
            ],
        );
        let named = request("n", &["c,d,b,a", "six"], &[]);
        let mut seen = Vec::new();
        let error = loop {
            match given(&mut allocator, &named) {
                Ok(addresses) => seen.push(addresses[0].clone()),
                Err(error) => break error,
            }
        };
        assert_eq!(seen, ["10.0.1.0", "10.0.1.1", "10.0.0.0", "10.0.0.1"]);
        for words in [
            "subnet c is disabled",
            "subnet d is only for Namespaces web, and not for shop",
            "subnet b has 2 of 2 in use",
        ] {
            assert!(error.contains(words), "{error}");
        }
        let error = given(&mut allocator, &request("n", &[], &["10.0.2.1"])).unwrap_err();
        assert!(error.contains("10.0.2.1 is free, but subnet c is disabled"), "{error}");
        let error = given(&mut allocator, &request("n", &["c"], &["10.0.2.1"])).unwrap_err();
        assert!(error.contains("subnet c is disabled"), "the address is still free: {error}");
        let web = AddressRequest { namespace: "web".to_owned(), ..request("n", &["d"], &[]) };
        assert_eq!(given(&mut allocator, &web).unwrap(), ["10.0.3.0"]);
    }

    #[test]
    fn an_impossible_request_reports_its_reason() {
        let mut allocator = allocator(
            &["m", "n"],
            vec![
                pool("a", "n", "10.0.0.0/24"),
                pool("b", "m", "10.0.1.0/24"),
                pool("a2", "n", "10.0.2.0/24"),
            ],
        );
        given(&mut allocator, &request("n", &[], &["10.0.0.5"])).unwrap();
        for (request, words) in [
            (AddressRequest::default(), "networks m, n are all possible"),
            (request("x", &[], &[]), "network x is not on this node: its networks are m, n"),
            (request("n", &["b"], &[]), "subnet b is not on this node: network n has a, a2"),
            (request("n", &["a", "a2"], &[]), "a and a2 are of the same IP version"),
            (
                request("n", &[], &["10.0.0.6", "10.0.0.7"]),
                "10.0.0.6 and 10.0.0.7 are of the same IP version",
            ),
            (request("n", &[], &["10.0.0.5"]), "address 10.0.0.5 of subnet a is in use"),
            (request("n", &[], &["10.0.0.255"]), "address 10.0.0.255 of subnet a is never allocated"),
            (request("n", &[], &["10.0.1.1"]), "address 10.0.1.1 is in no subnet of network n"),
            (request("", &[], &["192.0.2.1"]), "192.0.2.1 is in no subnet"),
        ] {
            let error = given(&mut allocator, &request).unwrap_err();
            assert!(error.contains(words), "{request:?}: {error}");
        }
    }

    #[test]
    fn the_default_network_is_the_only_one_that_can_take_pods() {
        let refused =
            NetworkSpec { refused: Some("mode VLAN is not supported yet".to_owned()), ..network("v") };
        let global = NetworkSpec { default_candidate: false, ..network("g") };
        let mut allocator = Allocator::default();
        assert!(
            given(&mut allocator, &AddressRequest::default())
                .unwrap_err()
                .contains("no network of this node")
        );
        allocator.configure(vec![refused.clone()], vec![pool("v4", "v", "10.0.0.0/24")]);
        assert!(
            given(&mut allocator, &AddressRequest::default())
                .unwrap_err()
                .contains("mode VLAN is not supported")
        );
        let pools = || {
            vec![
                pool("v4", "v", "10.0.0.0/24"),
                pool("g4", "g", "10.1.0.0/24"),
                pool("n4", "n", "10.2.0.0/24"),
            ]
        };
        allocator.configure(vec![refused.clone(), global.clone()], pools());
        assert_eq!(given(&mut allocator, &AddressRequest::default()).unwrap(), ["10.1.0.1"]);
        allocator.configure(vec![refused, global, network("n")], pools());
        assert_eq!(given(&mut allocator, &AddressRequest::default()).unwrap(), ["10.2.0.1"]);
        assert_eq!(given(&mut allocator, &request("", &[], &["10.1.0.9"])).unwrap(), ["10.1.0.9"]);
        let error = given(&mut allocator, &request("v", &[], &[])).unwrap_err();
        assert!(error.contains("network v accepts no pods"), "{error}");
    }

    #[test]
    fn equal_prefixes_with_disjoint_ranges_are_distinguished() {
        let half = |name: &str, start: &str, end: &str| {
            Pool::new(PoolSpec {
                start: Some(start.parse().unwrap()),
                end: Some(end.parse().unwrap()),
                ..spec(name, "n", "10.0.0.0/24")
            })
            .unwrap()
        };
        let mut allocator = allocator(
            &["n"],
            vec![half("low", "10.0.0.1", "10.0.0.9"), half("high", "10.0.0.10", "10.0.0.19")],
        );
        let (_, given) = allocator.allocate(&request("", &[], &["10.0.0.3"])).unwrap();
        assert_eq!(given[0].subnet, "low");
        let (_, given) = allocator.allocate(&request("", &[], &["10.0.0.13"])).unwrap();
        assert_eq!(given[0].subnet, "high");
        let error = allocator.allocate(&request("", &[], &["10.0.0.3"])).unwrap_err();
        assert!(error.to_string().contains("subnet low is in use"), "{error}");
    }
}
