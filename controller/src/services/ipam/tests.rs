//! Each case of a choice, with its error text.

use std::collections::BTreeMap;

use trunkline_api::service::{PortKey, Protocol};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pool(name: &str, blocks: &[&str]) -> PoolDefinition {
    let span = |text: &&str| Span::from(text.parse::<trunkline_api::resources::AddressBlock>().unwrap());
    PoolDefinition {
        name: name.into(),
        blocks: blocks.iter().map(span).collect(),
        excluded: Vec::new(),
        foreign: Vec::new(),
        ignored: Vec::new(),
        skip_zero_and_255: false,
        automatic: true,
        priority: 100,
        is_l2: false,
    }
}

fn service(name: &str) -> ServiceId {
    ServiceId { key: Key::new("default", name), uid: name.into() }
}

fn port(port: u16) -> PortKey {
    PortKey { protocol: Protocol::Tcp, port }
}

const V4: &[IpVersion] = &[IpVersion::V4];
const V6: &[IpVersion] = &[IpVersion::V6];
const BOTH: &[IpVersion] = &[IpVersion::V4, IpVersion::V6];

/// A request, with defaults.
struct Request {
    families: &'static [IpVersion],
    partly: bool,
    addresses: Vec<IpAddr>,
    preferred: Vec<IpAddr>,
    pool: Option<&'static str>,
    sharing_key: &'static str,
    exposure: Exposure,
    selections: BTreeMap<Arc<str>, PoolSelection>,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            families: V4,
            partly: false,
            addresses: Vec::new(),
            preferred: Vec::new(),
            pool: None,
            sharing_key: "",
            exposure: Exposure { ports: [port(80)].into_iter().collect(), ..Exposure::default() },
            selections: BTreeMap::new(),
        }
    }
}

fn choose(ipam: &mut ServiceIpam, name: &str, request: &Request) -> Result<Choice, AllocateError> {
    ipam.set_service(&name.into(), request.exposure.clone());
    ipam.choose(&Wanted {
        service: &service(name),
        families: request.families,
        partly: request.partly,
        addresses: &request.addresses,
        preferred: &request.preferred,
        pool: request.pool,
        sharing_key: request.sharing_key,
        exposure: &request.exposure,
        selections: &request.selections,
    })
}

/// The chosen addresses, or the text of the error.
#[track_caller]
fn chosen(ipam: &mut ServiceIpam, name: &str, request: &Request) -> String {
    match choose(ipam, name, request) {
        Ok(choice) => choice.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        Err(error) => error.to_string(),
    }
}

fn ipam(pools: Vec<PoolDefinition>) -> ServiceIpam {
    let mut ipam = ServiceIpam::default();
    ipam.configure(pools);
    ipam
}

fn adopt_one(ipam: &mut ServiceIpam, address: &str, sharing_key: &str, names: &[&str]) {
    let services: Vec<_> = names.iter().map(|name| service(name)).collect();
    ipam.adopt(&Claim { address: ip(address), sharing_key, services: &services });
}

#[test]
fn pools_are_used_by_families_priority_and_name() {
    let mut ipam = ipam(vec![
        PoolDefinition { priority: 50, ..pool("z-first", &["10.0.0.1"]) },
        pool("b", &["10.0.1.1", "fd00::1"]),
        pool("a", &["10.0.2.1"]),
        PoolDefinition { automatic: false, priority: 0, ..pool("manual", &["10.0.3.1"]) },
    ]);
    let any = Request::default();
    let both = Request { families: BOTH, ..Request::default() };
    assert_eq!(chosen(&mut ipam, "s1", &both), "10.0.1.1,fd00::1", "a pool with both families");
    assert_eq!(chosen(&mut ipam, "s2", &any), "10.0.0.1", "the lowest priority");
    assert_eq!(chosen(&mut ipam, "s3", &any), "10.0.2.1", "then by name");
    let text = "no IPv4 address for default/s4: ServicePool z-first has 0 of 1 free, ServicePool a has 0 of 1 \
        free and ServicePool b has 0 of 1 free: add addresses to it, or delete a Service";
    assert_eq!(chosen(&mut ipam, "s4", &any), text);
    let named = Request { pool: Some("manual"), ..Request::default() };
    assert_eq!(chosen(&mut ipam, "s4", &named), "10.0.3.1", "a pool by request only");
}

#[test]
fn all_families_or_a_part_as_requested() {
    let mut ipam = ipam(vec![pool("p", &["10.0.0.1-10.0.0.2"])]);
    let both = Request { families: BOTH, ..Request::default() };
    let text = "no IPv6 address for default/s: ServicePool p has none: add a range of this family to it, or set \
        spec.ipFamilies of the Service";
    assert_eq!(chosen(&mut ipam, "s", &both), text);
    assert_eq!(ipam.usage("p").unwrap().v4.available, 2, "nothing is set aside");
    let choice = choose(&mut ipam, "s", &Request { partly: true, ..both }).unwrap();
    assert_eq!(
        (choice.addresses, choice.missing.unwrap().to_string().as_str()),
        (vec![ip("10.0.0.2")], text)
    );
    let six = Request { families: V6, partly: true, ..Request::default() };
    assert!(choose(&mut ipam, "t", &six).is_err(), "no part at all");
}

#[test]
fn a_released_address_is_reused_as_late_as_possible() {
    let mut ipam = ipam(vec![pool("p", &["10.0.0.1-10.0.0.3"])]);
    let any = Request::default();
    assert_eq!(chosen(&mut ipam, "a", &any), "10.0.0.1");
    ipam.refuse(ip("10.0.0.1"), &service("a"));
    assert!(!ipam.is_allocated(ip("10.0.0.1")) && ipam.pending(&service("a").key).is_empty());
    assert_eq!(chosen(&mut ipam, "b", &any), "10.0.0.2");
    assert_eq!(chosen(&mut ipam, "c", &any), "10.0.0.3");
    assert_eq!(chosen(&mut ipam, "d", &any), "10.0.0.1");
    // A new leader continues after the last claim.
    let mut next = self::ipam(vec![pool("p", &["10.0.0.1-10.0.0.3"])]);
    adopt_one(&mut next, "10.0.0.2", "", &["b"]);
    next.resume(ip("10.0.0.2"));
    assert_eq!(chosen(&mut next, "e", &any), "10.0.0.3");
}

#[test]
fn zero_and_255_and_excluded_addresses() {
    let mut ipam = ipam(vec![PoolDefinition {
        skip_zero_and_255: true,
        excluded: vec![Span::single(ip("10.0.1.1"))],
        foreign: vec![ForeignSpan { span: Span::single(ip("10.0.1.2")), owner: "Node n1".into() }],
        ..pool("p", &["10.0.0.255-10.0.1.3", "fd00::/64"])
    }]);
    let usage = ipam.usage("p").unwrap();
    assert_eq!((usage.v4.total, usage.v4.available), (3, 1));
    assert_eq!((usage.v6.total, usage.v6.available), (1 << 20, 1 << 20));
    let named = |text: &str| Request {
        families: if text.contains(':') { V6 } else { V4 },
        addresses: vec![ip(text)],
        ..Request::default()
    };
    for (address, result) in [
        ("10.0.0.255", "10.0.0.255"),
        ("10.0.1.0", "10.0.1.0"),
        (
            "10.0.1.1",
            "10.0.1.1 cannot be given to default/s: ServicePool p does not allocate it: its spec.exclude lists it: \
             request another one",
        ),
        ("10.0.1.2", "does not allocate it: Node n1 has it"),
        ("fd00::10:0", "is used for its first 1048576 addresses only"),
        ("fd00::f:ffff", "fd00::f:ffff"),
    ] {
        let found = chosen(&mut ipam, "s", &named(address));
        assert!(found.contains(result), "{address}: {found}");
    }
    assert_eq!(chosen(&mut ipam, "t", &Request::default()), "10.0.1.3");
}

#[test]
fn a_request_without_a_result_names_the_fix() {
    let mut ipam = ipam(vec![
        pool("p1", &["10.0.0.0/28"]),
        pool("p2", &["10.0.1.0/28"]),
        pool("p3", &["10.0.0.8-10.0.0.20"]),
    ]);
    let selected = |selection| [("p1".into(), selection), ("p2".into(), selection)].into();
    let named = |text: &str| Request { addresses: vec![ip(text)], ..Request::default() };
    let in_pool = |pool| Request { pool: Some(pool), ..Request::default() };
    for (case, request, text) in [
        (
            "outside",
            named("10.9.0.1"),
            "10.9.0.1 cannot be given to default/s: no ServicePool has it: request an address of p1 (10.0.0.0/28) or \
             p2 (10.0.1.0/28), or leave the annotation out",
        ),
        (
            "other namespace",
            Request { selections: selected(PoolSelection::OtherNamespace), ..named("10.0.0.5") },
            "10.0.0.5 cannot be given to default/s: ServicePool p1 has it, but its namespaceSelectors do not select \
             namespace default: request an address of another pool, or change the selectors",
        ),
        (
            "other labels",
            Request { selections: selected(PoolSelection::OtherLabels), ..named("10.0.0.5") },
            "its serviceSelectors do not select the labels of the Service",
        ),
        (
            "another pool's",
            Request { pool: Some("p2"), ..named("10.0.0.5") },
            "ServicePool p1 has it, and trunkline.io/pool names p2: leave one of the two out",
        ),
        (
            "no pool of this name",
            in_pool("gold"),
            "trunkline.io/pool: there is no ServicePool gold: write p1, p2 or p3",
        ),
        (
            "a pool that does not select it",
            Request { selections: selected(PoolSelection::OtherLabels), ..in_pool("p1") },
            "trunkline.io/pool names ServicePool p1, but its serviceSelectors do not select",
        ),
        (
            "a pool that is not served",
            in_pool("p3"),
            "ServicePool p3: 10.0.0.8-10.0.0.20 overlaps 10.0.0.0/28 of ServicePool p1, which is older",
        ),
    ] {
        let found = chosen(&mut ipam, "s", &request);
        assert!(found.contains(text), "{case}: {found}");
    }
    ipam.configure(vec![pool("p1", &["10.0.0.0/28"]), pool("p2", &["10.0.1.0/28"])]);
    let none = Request { selections: selected(PoolSelection::OtherNamespace), ..Request::default() };
    let text = "no address for default/s: no ServicePool selects it: compare serviceSelectors and \
        namespaceSelectors of p1 and p2, or set autoAssign";
    assert_eq!(chosen(&mut ipam, "s", &none), text);
    let mut empty = ServiceIpam::default();
    let text = "no address for default/s: there is no ServicePool: create one";
    assert_eq!(chosen(&mut empty, "s", &Request::default()), text);
}

#[test]
fn sharing_needs_one_key_other_ports_and_one_policy() {
    let exposure = |ports: &[u16], policy, selector| Exposure {
        ports: ports.iter().copied().map(port).collect(),
        policy,
        selector,
    };
    let cluster = |ports: &[u16]| exposure(ports, TrafficPolicy::Cluster, 1);
    let local = |ports: &[u16], selector| exposure(ports, TrafficPolicy::Local, selector);
    let refused = "10.0.0.5 cannot be given to default/new: ";
    for (case, key, theirs, own_key, own, result) in [
        (
            "no key at all",
            "",
            cluster(&[80]),
            "",
            cluster(&[81]),
            "Service default/web has it: request another one, or give both the same trunkline.io/sharing-key",
        ),
        (
            "theirs has no key",
            "",
            cluster(&[80]),
            "k",
            cluster(&[81]),
            "Service default/web has it without a sharing key: request another one, or give both the same trunkline.io/sharing-key",
        ),
        (
            "own has no key",
            "k",
            cluster(&[80]),
            "",
            cluster(&[81]),
            "Service default/web has it: request another one",
        ),
        (
            "another key",
            "k",
            cluster(&[80]),
            "l",
            cluster(&[81]),
            "Service default/web shares it under another key",
        ),
        (
            "equal ports",
            "k",
            cluster(&[80, 443]),
            "k",
            cluster(&[81, 443]),
            "TCP port 443 is used by default/web, which shares it: use another port",
        ),
        (
            "other policy",
            "k",
            cluster(&[80]),
            "k",
            local(&[81], 1),
            "default/web shares it with externalTrafficPolicy Cluster, and this Service has Local: one address is advertised from the same nodes for all",
        ),
        (
            "other selector",
            "k",
            local(&[80], 1),
            "k",
            local(&[81], 2),
            "default/web shares it with externalTrafficPolicy Local and another selector",
        ),
        ("shared", "k", cluster(&[80]), "k", cluster(&[81]), ""),
        ("Cluster, other selector", "k", cluster(&[80]), "k", exposure(&[81], TrafficPolicy::Cluster, 2), ""),
        ("Local, same selector", "k", local(&[80], 1), "k", local(&[81], 1), ""),
    ] {
        let mut ipam = ipam(vec![pool("p", &["10.0.0.0/28"])]);
        ipam.set_service(&"web".into(), theirs);
        adopt_one(&mut ipam, "10.0.0.5", key, &["web"]);
        let request = Request {
            addresses: vec![ip("10.0.0.5")],
            sharing_key: own_key,
            exposure: own,
            ..Request::default()
        };
        let found = chosen(&mut ipam, "new", &request);
        let wanted = if result.is_empty() { "10.0.0.5".to_owned() } else { format!("{refused}{result}") };
        assert!(found.starts_with(&wanted), "{case}: {found}");
    }
}

#[test]
fn services_of_one_key_get_one_address() {
    let mut ipam = ipam(vec![pool("p", &["10.0.0.1-10.0.0.2", "fd00::1"])]);
    let with = |ports: &[u16]| Request {
        families: BOTH,
        sharing_key: "k",
        exposure: Exposure { ports: ports.iter().copied().map(port).collect(), ..Exposure::default() },
        ..Request::default()
    };
    assert_eq!(chosen(&mut ipam, "a", &with(&[80])), "10.0.0.1,fd00::1");
    assert_eq!(ipam.creator(ip("10.0.0.1")), Some(&service("a")));
    assert_eq!(chosen(&mut ipam, "b", &with(&[81])), "10.0.0.1,fd00::1");
    let four = Request { families: V4, ..with(&[80]) };
    assert_eq!(chosen(&mut ipam, "c", &four), "10.0.0.2", "its port is used at the first address");
    // The first claim was refused: the next Service creates it.
    ipam.refuse(ip("10.0.0.1"), &service("a"));
    assert_eq!(ipam.creator(ip("10.0.0.1")), Some(&service("b")));
    adopt_one(&mut ipam, "10.0.0.1", "k", &["b"]);
    assert_eq!(ipam.creator(ip("10.0.0.1")), None);
    assert_eq!(ipam.pending(&service("b").key), [("b".into(), ip("fd00::1"))]);
    // An unreadable claim has an address of its own.
    adopt_one(&mut ipam, "10.0.0.2", "", &[]);
    ipam.refuse(ip("10.0.0.2"), &service("c"));
    let named = Request { addresses: vec![ip("10.0.0.2")], ..four };
    let text = "10.0.0.2 cannot be given to default/d: ServiceAddress 10-0-0-2 has it: request another one, or \
        delete that object if no Service needs it";
    assert_eq!(chosen(&mut ipam, "d", &named), text);
}

#[test]
fn an_address_of_the_status_is_kept_if_it_is_free() {
    let mut ipam = ipam(vec![
        PoolDefinition { automatic: false, ..pool("p", &["10.0.0.1-10.0.0.4"]) },
        pool("q", &["10.0.1.1-10.0.1.3"]),
    ]);
    let selections: BTreeMap<_, _> = [("p".into(), PoolSelection::OtherLabels)].into();
    let kept = |text: &str| Request {
        preferred: vec![ip(text)],
        selections: selections.clone(),
        ..Request::default()
    };
    assert_eq!(chosen(&mut ipam, "a", &kept("10.0.0.3")), "10.0.0.3", "whatever the pool selects");
    let choice = choose(&mut ipam, "b", &kept("10.0.0.3")).unwrap();
    assert_eq!(choice.addresses, [ip("10.0.1.1")]);
    assert!(choice.lost.unwrap().to_string().contains("Service default/a has it"));
    assert_eq!(chosen(&mut ipam, "c", &kept("192.0.2.1")), "10.0.1.2", "no pool has it");
    let named = Request { addresses: vec![ip("10.0.1.3")], ..kept("10.0.0.4") };
    assert_eq!(chosen(&mut ipam, "d", &named), "10.0.1.3", "a request comes first");
}

#[test]
fn strays_are_not_allocated_by_a_later_pool() {
    let mut ipam = ServiceIpam::default();
    adopt_one(&mut ipam, "10.0.0.1", "", &["a"]);
    assert_eq!((ipam.strays(), ipam.pool_of(ip("10.0.0.1"))), (1, None));
    ipam.configure(vec![pool("p", &["10.0.0.1-10.0.0.2"])]);
    assert_eq!((ipam.strays(), ipam.usage("p").unwrap().v4.allocated), (0, 1));
    assert_eq!(chosen(&mut ipam, "b", &Request::default()), "10.0.0.2");
    // The pool is replaced: the order of allocation continues, and allocated addresses stay.
    ipam.configure(vec![pool("p", &["10.0.0.1-10.0.0.4"])]);
    assert_eq!(chosen(&mut ipam, "c", &Request::default()), "10.0.0.3");
    ipam.gone(ip("10.0.0.1"));
    assert_eq!(chosen(&mut ipam, "d", &Request::default()), "10.0.0.4");
    assert_eq!(chosen(&mut ipam, "e", &Request::default()), "10.0.0.1");
    ipam.configure(Vec::new());
    assert_eq!(ipam.strays(), 3 + 1);
}

#[test]
fn of_two_overlapping_pools_the_first_allocates() {
    let mut ipam = ServiceIpam::default();
    ipam.configure(vec![
        pool("old", &["10.0.0.0/28"]),
        pool("new", &["10.1.0.0/28", "10.0.0.15"]),
        pool("own", &["10.2.0.0/28", "10.2.0.3"]),
        pool("apart", &["10.1.0.0/28", "fd00::/64"]),
    ]);
    let faults: Vec<String> = ["old", "new", "own", "apart"]
        .iter()
        .filter_map(|name| Some(ipam.fault(name)?.to_string()))
        .collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("10.0.0.15 overlaps 10.0.0.0/28 of ServicePool old"), "{faults:?}");
    assert!(faults[1].contains("10.2.0.3 overlaps 10.2.0.0/28 of the same pool"), "{faults:?}");
    assert_eq!(ipam.pool_of(ip("10.1.0.3")).map(|name| &**name), Some("apart"));
}
