//! Random sequences of steps against a model of the API server: a set of (address, namespace).

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use trunkline_api::pod::IpFamily;

use super::tests::{ip, subnet};
use super::*;

const NAMESPACES: [&str; 3] = ["a", "b", "c"];

fn specs() -> Vec<PoolSpec> {
    vec![
        PoolSpec {
            reserved: vec![ip("10.0.0.3")],
            ..subnet("s1", "n", "10.0.0.0/24", "10.0.0.1", "10.0.0.4")
        },
        subnet("s2", "n", "10.0.1.0/24", "10.0.1.1", "10.0.1.3"),
        PoolSpec { private: true, ..subnet("s3", "n", "10.0.2.0/24", "10.0.2.1", "10.0.2.2") },
        subnet("s6", "n", "fd00::/120", "fd00::1", "fd00::5"),
    ]
}

fn universe() -> Vec<IpAddr> {
    let ranges = [("10.0.0.", 4), ("10.0.1.", 3), ("10.0.2.", 2), ("fd00::", 5)];
    ranges.iter().flat_map(|(base, count)| (1..=*count).map(move |n| ip(&format!("{base}{n}")))).collect()
}

#[derive(Clone, Debug)]
enum Move {
    /// A pod requests any address.
    Any(usize, IpFamily),
    /// A pod names an address.
    Named(usize, usize),
    /// The create of a set-aside address succeeds and appears in the watch.
    Arrive(usize),
    /// The API server refuses the create.
    Refuse(usize),
    /// Another client writes an IPInstance.
    Foreign(usize, usize),
    /// An IPInstance is retained.
    Keep(usize),
    /// The retention of an IPInstance is over: the leader is about to delete it.
    Expire(usize),
    /// The leader gives the deletion up.
    Resume(usize),
    /// An IPInstance is deleted and disappears.
    Delete(usize),
    /// A pod names the subnets s3 and s2, in this order.
    Listed(usize),
    /// A subnet is removed and added again.
    Reconfigure(usize),
}

fn moves() -> impl Strategy<Value = Move> {
    let family = prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6), Just(IpFamily::DualStack)];
    prop_oneof![
        6 => (0..3usize, family).prop_map(|(namespace, family)| Move::Any(namespace, family)),
        3 => (0..3usize, 0..14usize).prop_map(|(namespace, address)| Move::Named(namespace, address)),
        6 => (0..14usize).prop_map(Move::Arrive),
        2 => (0..14usize).prop_map(Move::Refuse),
        1 => (0..3usize, 0..14usize).prop_map(|(namespace, address)| Move::Foreign(namespace, address)),
        2 => (0..14usize).prop_map(Move::Keep),
        2 => (0..14usize).prop_map(Move::Expire),
        1 => (0..14usize).prop_map(Move::Resume),
        4 => (0..14usize).prop_map(Move::Delete),
        2 => (0..3usize).prop_map(Move::Listed),
        1 => (0..4usize).prop_map(Move::Reconfigure),
    ]
}

/// The model's API server, and the leader's writes under way.
#[derive(Default)]
struct Truth {
    /// Whether the IPInstance is retained, by address and namespace.
    instances: BTreeMap<(IpAddr, usize), bool>,
    /// Set aside, and not in the watch yet: whether an existing IPInstance is being bound.
    given: BTreeMap<IpAddr, (usize, bool)>,
    /// Retained addresses that the leader is about to delete.
    expiring: BTreeSet<(IpAddr, usize)>,
}

impl Truth {
    fn is_had(&self, address: IpAddr) -> bool {
        self.given.contains_key(&address) || self.instances.keys().any(|(of, _)| *of == address)
    }

    fn granted(&mut self, granted: &AllocatedAddresses, namespace: usize) -> Result<(), TestCaseError> {
        for assigned in &granted.addresses {
            let address = assigned.address.addr();
            prop_assert!(!self.given.contains_key(&address), "{} is allocated already", address);
            prop_assert!(!self.expiring.contains(&(address, namespace)), "{} is being deleted", address);
            let had: Vec<_> = self.instances.iter().filter(|((of, _), _)| *of == address).collect();
            if assigned.rebind {
                prop_assert_eq!(had, [(&(address, namespace), &true)]);
            } else {
                prop_assert_eq!(had, []);
            }
            self.given.insert(address, (namespace, assigned.rebind));
        }
        Ok(())
    }
}

fn adopt(ipam: &mut Ipam, address: IpAddr, namespace: usize, kept: bool) -> Result<(), Conflict> {
    let seen = if kept { InstanceState::Kept } else { InstanceState::Bound };
    ipam.adopt(&Allocation { address, namespace: NAMESPACES[namespace], mac: [2, 2, 2, 2, 2, 2], seen })
}

proptest! {
    #[test]
    fn no_address_is_allocated_twice_or_leaked(steps in prop::collection::vec(moves(), 0..120)) {
        let universe = universe();
        let mut ipam = Ipam::default();
        specs().into_iter().for_each(|spec| ipam.set_subnet(spec, None).unwrap());
        let mut truth = Truth::default();
        for step in steps {
            match step {
                Move::Any(namespace, family) => {
                    let request = AddressRequest {
                        namespace: NAMESPACES[namespace], network: "n", family, ..AddressRequest::default()
                    };
                    let free = |v6: bool| universe.iter().any(|address| {
                        address.is_ipv6() == v6 && !truth.is_had(*address)
                            && *address != ip("10.0.0.3") && !address.to_string().starts_with("10.0.2.")
                    });
                    let room = (!family.has_v4() || free(false)) && (!family.has_v6() || free(true));
                    let outcome = ipam.allocate(&request, 0);
                    prop_assert_eq!(outcome.is_ok(), room, "{:?}", outcome);
                    if let Ok(granted) = outcome {
                        truth.granted(&granted, namespace)?;
                    }
                }
                Move::Named(namespace, index) => {
                    let address = universe[index];
                    let family = if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 };
                    let request = AddressRequest {
                        namespace: NAMESPACES[namespace], network: "n", family, addresses: &[address],
                        ..AddressRequest::default()
                    };
                    if let Ok(granted) = ipam.allocate(&request, 0) {
                        truth.granted(&granted, namespace)?;
                    } else {
                        prop_assert!(truth.is_had(address));
                    }
                }
                Move::Arrive(index) => {
                    let address = universe[index];
                    if let Some((namespace, _)) = truth.given.remove(&address) {
                        truth.instances.insert((address, namespace), false);
                        let others = truth.instances.keys().filter(|(of, _)| *of == address).count() > 1;
                        prop_assert!(adopt(&mut ipam, address, namespace, false).is_ok() || others);
                    }
                }
                Move::Refuse(index) => {
                    let address = universe[index];
                    if let Some((namespace, _)) = truth.given.remove(&address) {
                        ipam.refuse(address, NAMESPACES[namespace]);
                    }
                }
                Move::Foreign(namespace, index) => {
                    let address = universe[index];
                    // In the namespace of a write under way, the API server itself refuses one of
                    // the two.
                    if truth.given.get(&address).is_none_or(|(given, _)| *given != namespace) {
                        let taken = truth.is_had(address);
                        let own = truth.instances.insert((address, namespace), false).is_some();
                        truth.expiring.remove(&(address, namespace));
                        let outcome = adopt(&mut ipam, address, namespace, false);
                        prop_assert!(outcome.is_err() == taken || own, "{:?}", outcome);
                    }
                }
                Move::Keep(index) => {
                    let address = universe[index];
                    let found = truth.instances.keys().find(|(of, _)| *of == address).copied();
                    if let Some((_, namespace)) = found {
                        truth.instances.insert((address, namespace), true);
                        let _conflict = adopt(&mut ipam, address, namespace, true);
                    }
                }
                Move::Expire(index) => {
                    let address = universe[index];
                    let retained = truth.instances.iter().find(|((of, _), kept)| *of == address && **kept);
                    if let Some(((_, namespace), _)) = retained {
                        let namespace = *namespace;
                        let may = ipam.expire(address, NAMESPACES[namespace]);
                        // A pod that is about to get the address has precedence.
                        let given = truth.given.get(&address).is_some_and(|(given, _)| *given == namespace);
                        prop_assert_eq!(may, !given);
                        if may && ipam.holder(address) == Some((NAMESPACES[namespace], State::Expiring)) {
                            truth.expiring.insert((address, namespace));
                        }
                    }
                }
                Move::Resume(index) => {
                    let address = universe[index];
                    let expiring = truth.expiring.iter().find(|(of, _)| *of == address).copied();
                    if let Some((_, namespace)) = expiring {
                        ipam.resume(address, NAMESPACES[namespace]);
                        truth.expiring.remove(&(address, namespace));
                    }
                }
                Move::Listed(namespace) => {
                    let names = ["s3".to_owned(), "s2".to_owned()];
                    let request = AddressRequest {
                        namespace: NAMESPACES[namespace], network: "n", subnets: &names, ..AddressRequest::default()
                    };
                    let free = |prefix: &str| {
                        let of = |address: &&IpAddr| address.to_string().starts_with(prefix);
                        universe.iter().filter(of).any(|address| !truth.is_had(*address))
                    };
                    let expected = ["10.0.2.", "10.0.1."].into_iter().find(|prefix| free(prefix));
                    let outcome = ipam.allocate(&request, 0);
                    prop_assert_eq!(outcome.is_ok(), expected.is_some(), "{:?}", outcome);
                    if let (Ok(granted), Some(expected)) = (outcome, expected) {
                        prop_assert!(granted.addresses[0].address.addr().to_string().starts_with(expected));
                        truth.granted(&granted, namespace)?;
                    }
                }
                Move::Delete(index) => {
                    let address = universe[index];
                    let found = truth.instances.keys().find(|(of, _)| *of == address).copied();
                    if let Some((_, namespace)) = found
                        && truth.given.get(&address).is_none_or(|(given, _)| *given != namespace)
                    {
                        truth.instances.remove(&(address, namespace));
                        truth.expiring.remove(&(address, namespace));
                        ipam.gone(address, NAMESPACES[namespace]);
                    }
                }
                Move::Reconfigure(index) => {
                    let spec = specs().swap_remove(index);
                    ipam.remove_subnet(&spec.subnet);
                    ipam.set_subnet(spec, None).unwrap();
                }
            }
            for address in &universe {
                prop_assert_eq!(ipam.holder(*address).is_some(), truth.is_had(*address), "{}", address);
            }
            let v6 = universe.iter().filter(|address| address.is_ipv6() && truth.is_had(**address)).count();
            prop_assert_eq!(ipam.network_usage("n").v6.used as usize, v6);
        }
        let reported: BTreeSet<IpAddr> = ipam.conflicts().map(|conflict| conflict.address).collect();
        let twice: BTreeSet<IpAddr> = universe.iter().copied().filter(|address| {
            let holders: BTreeSet<usize> = truth.instances.keys().filter(|(of, _)| of == address).map(|(_, namespace)| *namespace)
                .chain(truth.given.get(address).map(|(namespace, _)| *namespace)).collect();
            holders.len() > 1
        }).collect();
        prop_assert_eq!(reported, twice);
        // The next leader builds the same state, in any order of events.
        for (address, (namespace, _)) in std::mem::take(&mut truth.given) {
            ipam.refuse(address, NAMESPACES[namespace]);
        }
        let mut next = Ipam::default();
        for ((address, namespace), kept) in &truth.instances {
            let _conflict = adopt(&mut next, *address, *namespace, *kept);
        }
        specs().into_iter().for_each(|spec| next.set_subnet(spec, None).unwrap());
        for subnet in ["s1", "s2", "s3", "s6"] {
            prop_assert_eq!(next.usage(subnet), ipam.usage(subnet));
        }
        for (address, namespace) in truth.instances.keys() {
            ipam.gone(*address, NAMESPACES[*namespace]);
        }
        let (v4, v6) = (ipam.network_usage("n").v4, ipam.network_usage("n").v6);
        prop_assert_eq!((v4.used, v6.used), (0, 0));
        prop_assert!(NAMESPACES.iter().all(|namespace| ipam.namespaces.number(namespace).is_none()));
        prop_assert_eq!(ipam.macs.count(1, [2, 2, 2, 2, 2, 2]), 0);
    }
}
