use trunkline_api::pod::IpFamily;
use trunkline_api::resources::SubnetAccess;

use super::*;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn subnet(name: &str, network: &str, cidr: &str, start: &str, end: &str) -> PoolSpec {
    PoolSpec {
        subnet: name.to_owned(),
        network: network.to_owned(),
        cidr: cidr.parse().unwrap(),
        start: Some(ip(start)),
        end: Some(ip(end)),
        gateway: None,
        reserved: Vec::new(),
        excluded: Vec::new(),
        private: false,
        access: SubnetAccess::default(),
    }
}

/// A network `n` with `a` (10.0.0.1-3), `b` (10.0.1.1-2), a private `p` (10.0.2.1-2) and `six`
/// (fd00::1-2).
fn ipam() -> Ipam {
    let mut ipam = Ipam::default();
    for spec in [
        subnet("b", "n", "10.0.1.0/24", "10.0.1.1", "10.0.1.2"),
        subnet("six", "n", "fd00::/120", "fd00::1", "fd00::2"),
        PoolSpec { private: true, ..subnet("p", "n", "10.0.2.0/24", "10.0.2.1", "10.0.2.2") },
        PoolSpec {
            reserved: vec![ip("10.0.0.2")],
            gateway: Some(ip("10.0.0.9")),
            ..subnet("a", "n", "10.0.0.0/24", "10.0.0.1", "10.0.0.9")
        },
    ] {
        ipam.set_subnet(spec, None).unwrap();
    }
    ipam
}

fn request() -> AddressRequest<'static> {
    AddressRequest { namespace: "web", network: "n", ..AddressRequest::default() }
}

fn give(ipam: &mut Ipam, request: &AddressRequest<'_>) -> Result<Vec<String>, AllocateError> {
    let granted = ipam.allocate(request, 1)?;
    Ok(granted.addresses.iter().map(|assigned| assigned.address.addr().to_string()).collect())
}

fn adopt(ipam: &mut Ipam, address: &str, namespace: &str, seen: InstanceState) -> Result<(), Conflict> {
    ipam.adopt(&Allocation { address: ip(address), namespace, mac: [2, 0, 0, 0, 0, 9], seen })
}

#[test]
fn an_address_passes_every_state() {
    let mut ipam = ipam();
    let address = ip("10.0.0.1");
    assert_eq!(give(&mut ipam, &request()).unwrap(), ["10.0.0.1"]);
    assert_eq!(ipam.holder(address), Some(("web", State::Given)));
    ipam.gone(address, "web");
    assert_eq!(
        ipam.holder(address),
        Some(("web", State::Given)),
        "a list from before the create frees nothing"
    );
    adopt(&mut ipam, "10.0.0.1", "web", InstanceState::Bound).unwrap();
    assert_eq!(ipam.holder(address), Some(("web", State::InUse)));
    ipam.refuse(address, "web");
    assert_eq!(ipam.holder(address), Some(("web", State::InUse)), "a late refusal changes nothing");
    adopt(&mut ipam, "10.0.0.1", "web", InstanceState::Kept).unwrap();
    adopt(&mut ipam, "10.0.0.1", "web", InstanceState::Deleting).unwrap();
    assert_eq!(ipam.holder(address), Some(("web", State::Releasing)));
    ipam.gone(address, "shop");
    assert_eq!(
        ipam.holder(address),
        Some(("web", State::Releasing)),
        "the end of another namespace's IPInstance changes nothing"
    );
    ipam.gone(address, "web");
    assert_eq!(ipam.holder(address), None);
    assert_eq!(ipam.usage("a").unwrap().used, 0);
}

#[test]
fn network_stays_on_a_subnet_until_it_is_full() {
    let mut ipam = ipam();
    ipam.resume_network("n", Some("b"), None);
    let mut given = Vec::new();
    let error = loop {
        match give(&mut ipam, &request()) {
            Ok(addresses) => given.extend(addresses),
            Err(error) => break error,
        }
    };
    assert_eq!(given[..3], ["10.0.1.1", "10.0.1.2", "10.0.0.1"]);
    assert_eq!(
        given.len(),
        9,
        "neither the reserved address nor the private subnet is used: \
        {given:?}"
    );
    assert_eq!(
        error.to_string(),
        "no IPv4 address is free in network n: subnet a has 7 of 7 in use, subnet b has 2 of 2 in use; delete pods or add a Subnet"
    );
    let private = ["p".to_owned()];
    assert_eq!(give(&mut ipam, &AddressRequest { subnets: &private, ..request() }).unwrap(), ["10.0.2.1"]);
    assert_eq!(
        ipam.network_usage("n").last_v4_subnet.as_deref(),
        Some("a"),
        "a named address \
        does not move the round robin"
    );
    adopt(&mut ipam, "10.0.1.2", "web", InstanceState::Bound).unwrap();
    ipam.gone(ip("10.0.1.2"), "web");
    assert_eq!(give(&mut ipam, &request()).unwrap(), ["10.0.1.2"]);
}

#[test]
fn dual_stack_allocates_both_families_or_neither() {
    let mut ipam = ipam();
    let both = AddressRequest { family: IpFamily::DualStack, ..request() };
    assert_eq!(ipam.network_usage("n").dual_stack.available, 2);
    let granted = ipam.allocate(&both, 7).unwrap();
    assert_eq!(granted.mac, [2, 0x12, 0x34, 0, 0, 7]);
    assert_eq!(granted.addresses[0].address.to_string(), "10.0.0.1/24");
    assert_eq!(granted.addresses[1].address.to_string(), "fd00::1/120");
    assert_eq!(ipam.allocate(&both, 7).unwrap().mac, [2, 0x12, 0x34, 0, 0, 8], "unique");
    let before = ipam.network_usage("n");
    assert!(matches!(ipam.allocate(&both, 7), Err(AllocateError::Exhausted { family: IpFamily::V6, .. })));
    assert_eq!(ipam.network_usage("n"), before);
    assert_eq!(ipam.network_usage("n").dual_stack.available, 0);
    assert_eq!(
        give(&mut ipam, &request()).unwrap(),
        ["10.0.0.4"],
        "the returned address is the next one again"
    );
    let subnets = ["b".to_owned(), "six".to_owned()];
    ipam.gone(ip("fd00::1"), "web");
    adopt(&mut ipam, "fd00::1", "web", InstanceState::Bound).unwrap();
    ipam.gone(ip("fd00::1"), "web");
    assert_eq!(
        give(&mut ipam, &AddressRequest { subnets: &subnets, ..both }).unwrap(),
        ["10.0.1.1", "fd00::1"]
    );
}

#[test]
fn named_addresses_may_be_reserved_or_retained() {
    let mut ipam = ipam();
    let named = |addresses: &'static [IpAddr]| AddressRequest { addresses, ..request() };
    const RESERVED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const PRIVATE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 2));
    const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));
    const NOWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
    const SIX: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    assert_eq!(give(&mut ipam, &named(&[RESERVED])).unwrap(), ["10.0.0.2"]);
    assert_eq!(give(&mut ipam, &named(&[PRIVATE])).unwrap(), ["10.0.2.2"]);
    assert_eq!(
        ipam.usage("a").unwrap(),
        Usage { total: 7, used: 0, available: 7 },
        "reserved addresses are not counted"
    );

    // An address that is retained in this namespace is bound again with its MAC address. A request
    // from another namespace is refused.
    adopt(&mut ipam, "10.0.0.2", "web", InstanceState::Kept).unwrap();
    let other = AddressRequest { namespace: "shop", ..named(&[RESERVED]) };
    let error = ipam.allocate(&other, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "address 10.0.0.2 of subnet a belongs to IPInstance web/10-0-0-2, retained for the next \
         pod of its name: name another one, or delete the pod that has it"
    );
    let granted = ipam.allocate(&named(&[RESERVED]), 1).unwrap();
    assert_eq!((granted.mac, granted.addresses[0].rebind), ([2, 0, 0, 0, 0, 9], true));
    assert_eq!(ipam.holder(RESERVED), Some(("web", State::Rebinding)));
    adopt(&mut ipam, "10.0.0.2", "web", InstanceState::Kept).unwrap();
    assert!(ipam.allocate(&named(&[RESERVED]), 1).is_err(), "a late event does not allocate it twice");
    ipam.refuse(RESERVED, "web");
    assert_eq!(ipam.holder(RESERVED), Some(("web", State::Retained)));

    // The address is in use by the previous pod of the same name, which was replaced before its
    // address was retained.
    adopt(&mut ipam, "10.0.0.2", "web", InstanceState::Bound).unwrap();
    assert!(ipam.allocate(&named(&[RESERVED]), 1).is_err());
    let granted = ipam.allocate(&AddressRequest { own: &[RESERVED], ..named(&[RESERVED]) }, 1).unwrap();
    assert!(granted.addresses[0].rebind);

    let both = AddressRequest { family: IpFamily::DualStack, ..request() };
    for (request, text) in [
        (
            AddressRequest { addresses: &[RESERVED], ..both },
            "the pod needs an address of family IPv6, and 10.0.0.2 names none",
        ),
        (named(&[SIX]), "fd00::2 does not match the pod's family IPv4"),
        (AddressRequest { addresses: &[SIX, SIX], ..both }, "at most one address of each"),
        (named(&[GATEWAY]), "gateway"),
        (named(&[NOWHERE]), "a (10.0.0.0/24), b"),
        (AddressRequest { network: "none", ..named(&[RESERVED]) }, "its subnets are none"),
        (AddressRequest { network: "none", ..request() }, "has no IPv4 subnet"),
    ] {
        let error = ipam.allocate(&request, 1).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    for (names, family, text) in [
        (vec!["six"], IpFamily::V4, "subnet six does not match the pod's family IPv4"),
        (vec!["a", "z"], IpFamily::V4, "subnet z is not in network n"),
        (vec!["z"], IpFamily::V4, "subnet z is not in network n: write one of a (10.0.0.0/24)"),
    ] {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let error = ipam
            .allocate(&AddressRequest { subnets: &names, family, ..request() }, 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn named_mac_address_belongs_to_one_pod() {
    let mut ipam = ipam();
    let mac = Some([2, 0, 0, 0, 0, 1]);
    let both = AddressRequest { mac, family: IpFamily::DualStack, ..request() };
    assert_eq!(ipam.allocate(&both, 0).unwrap().mac, [2, 0, 0, 0, 0, 1]);
    let error = ipam.allocate(&AddressRequest { mac, ..request() }, 0).unwrap_err().to_string();
    assert!(error.contains("02:00:00:00:00:01 is in use"), "{error}");
    let own = [ip("10.0.0.1"), ip("fd00::1")];
    for address in ["10.0.0.1", "fd00::1"] {
        let allocation = Allocation {
            address: ip(address),
            namespace: "web",
            mac: [2, 0, 0, 0, 0, 1],
            seen: InstanceState::Kept,
        };
        ipam.adopt(&allocation).unwrap();
    }
    let again = AddressRequest { addresses: &own, own: &own, ..both };
    assert!(ipam.allocate(&again, 0).unwrap().addresses.iter().all(|assigned| assigned.rebind));
    let other = subnet("other", "m", "10.3.0.0/24", "10.3.0.1", "10.3.0.9");
    ipam.set_subnet(other, None).unwrap();
    ipam.allocate(&AddressRequest { mac, network: "m", ..request() }, 0).unwrap();
}

#[test]
fn first_named_subnet_with_a_free_address_is_used() {
    let mut ipam = ipam();
    let range = subnet("six2", "n", "fd01::/120", "fd01::1", "fd01::2");
    ipam.set_subnet(range, None).unwrap();
    let names: Vec<String> = ["b", "p", "six2", "six"].map(str::to_owned).into();
    let both = AddressRequest { subnets: &names, family: IpFamily::DualStack, ..request() };
    let v4 = AddressRequest { subnets: &names[..2], ..request() };
    assert_eq!(give(&mut ipam, &both).unwrap(), ["10.0.1.1", "fd01::1"]);
    assert_eq!(give(&mut ipam, &v4).unwrap(), ["10.0.1.2"]);
    assert_eq!(give(&mut ipam, &both).unwrap(), ["10.0.2.1", "fd01::2"]);
    assert_eq!(give(&mut ipam, &both).unwrap(), ["10.0.2.2", "fd00::1"]);
    let error = ipam.allocate(&both, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no IPv4 address is free in network n: subnet b has 2 of 2 in use, subnet p has 2 of 2 in use; \
         delete pods or add a Subnet"
    );
    assert!(matches!(error, AllocateError::Exhausted { full, .. } if full.len() == 2));
    // The preferred subnet is used again as soon as it has a free address.
    adopt(&mut ipam, "10.0.1.2", "web", InstanceState::Bound).unwrap();
    ipam.gone(ip("10.0.1.2"), "web");
    assert_eq!(give(&mut ipam, &v4).unwrap(), ["10.0.1.2"]);
    assert_eq!(ipam.network_usage("n").last_v4_subnet, None, "the round robin did not move");
    // A family without a named subnet has any.
    let names = ["six".to_owned()];
    assert_eq!(
        give(&mut ipam, &AddressRequest { subnets: &names, ..both }).unwrap(),
        ["10.0.0.1", "fd00::2"]
    );
}

#[test]
fn disabled_and_restricted_subnets_are_skipped() {
    let mut ipam = ipam();
    let access = |disabled, namespaces: &[&str]| SubnetAccess {
        disabled,
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
    };
    give(&mut ipam, &AddressRequest { subnets: &["b".to_owned()], ..request() }).unwrap();
    adopt(&mut ipam, "10.0.1.1", "web", InstanceState::Kept).unwrap();
    let b = subnet("b", "n", "10.0.1.0/24", "10.0.1.1", "10.0.1.2");
    ipam.set_subnet(PoolSpec { access: access(true, &[]), ..b.clone() }, None).unwrap();
    let p = PoolSpec { private: true, ..subnet("p", "n", "10.0.2.0/24", "10.0.2.1", "10.0.2.2") };
    ipam.set_subnet(PoolSpec { access: access(false, &["shop", "mall"]), ..p }, None).unwrap();

    let names = ["b".to_owned(), "p".to_owned()];
    let named = AddressRequest { subnets: &names, ..request() };
    let error = ipam.allocate(&named, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "network n has no IPv4 subnet for this pod: subnet b is disabled, subnet p is only for Namespaces shop, \
         mall, and not for web: name another one in networking.alibaba.com/specified-subnet, or change spec.config \
         of a Subnet"
    );
    let shop = AddressRequest { namespace: "shop", ..named };
    assert_eq!(give(&mut ipam, &shop).unwrap(), ["10.0.2.1"]);
    assert_eq!(give(&mut ipam, &shop).unwrap(), ["10.0.2.2"]);
    let error = ipam.allocate(&shop, 1).unwrap_err().to_string();
    assert!(error.contains("subnet b is disabled, subnet p has 2 of 2 in use"), "{error}");

    // The retained address goes to its next pod, and no other address of the subnet does.
    let addresses = |last: u8| [IpAddr::from([10, 0, 1, last])];
    let (kept, free) = (addresses(1), addresses(2));
    let error = ipam.allocate(&AddressRequest { addresses: &free, ..request() }, 1).unwrap_err();
    assert!(error.to_string().contains("10.0.1.2 is free, but subnet b is disabled"), "{error}");
    assert_eq!(give(&mut ipam, &AddressRequest { addresses: &kept, ..request() }).unwrap(), ["10.0.1.1"]);
    // A pod that uses an address already gets it, unless the subnet is for other namespaces.
    let recovered = AddressRequest { addresses: &free, recovered: true, ..request() };
    assert_eq!(give(&mut ipam, &recovered).unwrap(), ["10.0.1.2"]);
    ipam.refuse(free[0], "web");
    ipam.set_subnet(PoolSpec { access: access(true, &["shop"]), ..b }, None).unwrap();
    assert!(ipam.allocate(&recovered, 1).is_err());

    // A free address of a disabled subnet attracts no pod.
    assert_eq!(ipam.usage("b"), Some(Usage { total: 2, used: 1, available: 1 }));
    assert_eq!(ipam.network_usage("n").v4, Usage { total: 11, used: 3, available: 7 });
}

#[test]
fn instances_of_one_address_are_reported_not_merged() {
    let mut ipam = ipam();
    adopt(&mut ipam, "10.0.0.1", "web", InstanceState::Bound).unwrap();
    let conflict = adopt(&mut ipam, "10.0.0.1", "shop", InstanceState::Bound).unwrap_err();
    assert!(conflict.to_string().contains("10-0-0-1 in namespace web and in namespace shop"), "{conflict}");
    assert_eq!(adopt(&mut ipam, "10.0.0.1", "shop", InstanceState::Deleting), Err(conflict.clone()));
    assert_eq!(ipam.conflicts().collect::<Vec<_>>(), [conflict]);
    assert_eq!(ipam.holder(ip("10.0.0.1")), Some(("web", State::InUse)));
    ipam.gone(ip("10.0.0.1"), "web");
    assert_eq!(
        ipam.holder(ip("10.0.0.1")),
        Some(("shop", State::Releasing)),
        "the address is free only after both IPInstances are gone"
    );
    assert_eq!(ipam.conflicts().count(), 0);
    ipam.gone(ip("10.0.0.1"), "shop");
    assert_eq!(ipam.holder(ip("10.0.0.1")), None);
}

#[test]
fn instance_waits_for_its_subnet_and_outlives_it() {
    let mut ipam = ipam();
    adopt(&mut ipam, "10.5.0.1", "web", InstanceState::Bound).unwrap();
    adopt(&mut ipam, "10.5.0.2", "web", InstanceState::Bound).unwrap();
    let spec = subnet("late", "n2", "10.5.0.0/24", "10.5.0.1", "10.5.0.3");
    ipam.set_subnet(spec.clone(), Some(ip("10.5.0.3"))).unwrap();
    assert_eq!(ipam.usage("late"), Some(Usage { total: 3, used: 2, available: 1 }));
    assert_eq!(give(&mut ipam, &AddressRequest { network: "n2", ..request() }).unwrap(), ["10.5.0.3"]);
    ipam.remove_subnet("late");
    ipam.gone(ip("10.5.0.2"), "web");
    ipam.set_subnet(PoolSpec { reserved: vec![ip("10.5.0.2")], ..spec }, None).unwrap();
    assert_eq!(ipam.usage("late"), Some(Usage { total: 2, used: 2, available: 0 }));
    assert_eq!(ipam.holder(ip("10.5.0.3")), Some(("web", State::Given)));
}

#[test]
fn changed_subnet_keeps_its_holders_and_its_cursor() {
    let mut ipam = ipam();
    give(&mut ipam, &request()).unwrap();
    let spec = subnet("a", "n", "10.0.0.0/24", "10.0.0.1", "10.0.0.9");
    ipam.set_subnet(spec, Some(ip("10.0.0.8"))).unwrap();
    assert_eq!(ipam.usage("a"), Some(Usage { total: 9, used: 1, available: 8 }));
    assert_eq!(give(&mut ipam, &request()).unwrap(), ["10.0.0.2"]);
    assert_eq!(ipam.last_allocated("a"), Some(ip("10.0.0.2")));
}

#[test]
fn overlapping_range_is_refused() {
    let mut ipam = ipam();
    for (start, end) in [("10.0.0.9", "10.0.0.20"), ("10.0.0.3", "10.0.0.4")] {
        let error = ipam.set_subnet(subnet("over", "n", "10.0.0.0/24", start, end), None).unwrap_err();
        assert!(error.to_string().contains("overlaps 10.0.0.1 to 10.0.0.9 of subnet a"), "{error}");
    }
    ipam.set_subnet(subnet("over", "n", "10.0.0.0/24", "10.0.0.10", "10.0.0.20"), None).unwrap();
    assert_eq!(ipam.usage("over").unwrap().total, 11);
}
