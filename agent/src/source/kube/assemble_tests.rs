use serde_json::{Value, json};

use super::*;

fn meta(name: &str, day: u8) -> Value {
    json!({"name": name, "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z"), "resourceVersion": day.to_string()})
}

fn network(name: &str, day: u8, spec: Value) -> Network {
    let object = json!({"apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": meta(name, day), "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// A BGP network of the nodes with this label.
fn rack(name: &str, day: u8, label: &str) -> Network {
    let peers = json!([{"asn": 65000, "address": "10.0.0.1"}]);
    let spec = json!({"netID": 65001, "mode": "BGP", "nodeSelector": {"rack": label}, "config": {"bgpPeers": peers}});
    network(name, day, spec)
}

fn subnet(name: &str, day: u8, network: &str, cidr: &str) -> Subnet {
    serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": meta(name, day),
        "spec": {"network": network, "range": {"version": "4", "cidr": cidr}},
    }))
    .unwrap()
}

fn objects(networks: Vec<Network>, subnets: Vec<Subnet>) -> Objects {
    Objects {
        labels: [("rack".to_owned(), "1".to_owned())].into(),
        networks: networks.into_iter().map(|one| (one.name().to_owned(), one)).collect(),
        subnets: subnets.into_iter().map(|one| (one.name().to_owned(), one)).collect(),
        ..Objects::default()
    }
}

/// A snapshot, with the texts of all faults.
#[derive(Debug)]
struct Looked {
    snapshot: Snapshot,
    faults: Vec<String>,
}

impl From<Assembled> for Looked {
    fn from(Assembled { snapshot, faults }: Assembled) -> Looked {
        Looked { snapshot, faults: faults.into_values().flatten().collect() }
    }
}

fn look(objects: &Objects, running: Option<&Snapshot>) -> Looked {
    assemble(objects, running, "kube-system", &|_, _| false).into()
}

/// The served names of networks, then names and prefixes of subnets.
fn served(assembled: &Looked) -> String {
    let networks = assembled.snapshot.networks.iter().map(|one| one.name().to_owned());
    let subnets =
        assembled.snapshot.subnets.iter().map(|one| format!("{}={}", one.name(), one.spec.range.cidr));
    networks.chain(subnets).collect::<Vec<_>>().join(" ")
}

fn good() -> Objects {
    objects(
        vec![rack("r", 1, "1")],
        vec![subnet("a", 2, "r", "10.1.1.0/24"), subnet("b", 3, "r", "10.1.2.0/24")],
    )
}

/// Each row: the objects, the previous snapshot, the served objects, and the text of the fault.
#[test]
fn one_bad_object_does_not_stall_the_rest() {
    let running = look(&good(), None).snapshot;
    let with = |change: fn(&mut Objects)| {
        let mut objects = good();
        change(&mut objects);
        objects
    };
    let put = |objects: &mut Objects, one: Subnet| drop(objects.subnets.insert(one.name().to_owned(), one));
    let rows = [
        ("good", good(), false, "r a=10.1.1.0/24 b=10.1.2.0/24", vec![]),
        (
            "a new subnet with host bits",
            with(|objects| drop(objects.subnets.insert("c".into(), subnet("c", 4, "r", "10.1.3.9/24")))),
            true,
            "r a=10.1.1.0/24 b=10.1.2.0/24",
            vec!["Subnet c: spec.range.cidr"],
        ),
        (
            "the same subnet without a previous version",
            with(|objects| drop(objects.subnets.insert("c".into(), subnet("c", 4, "r", "10.1.3.9/24")))),
            false,
            "r a=10.1.1.0/24 b=10.1.2.0/24",
            vec!["Subnet c: spec.range.cidr"],
        ),
        (
            "an edit of an immutable field is skipped, and a valid edit of another object applies",
            with(|objects| {
                drop(objects.subnets.insert("a".into(), subnet("a", 2, "r", "10.9.9.0/24")));
                drop(objects.subnets.insert("c".into(), subnet("c", 4, "r", "10.1.3.0/24")));
            }),
            true,
            "r a=10.1.1.0/24 b=10.1.2.0/24 c=10.1.3.0/24",
            vec!["Subnet a: spec.range.cidr"],
        ),
        (
            "a subnet without its network",
            with(|objects| drop(objects.subnets.insert("c".into(), subnet("c", 4, "gone", "10.1.3.0/24")))),
            true,
            "r a=10.1.1.0/24 b=10.1.2.0/24",
            vec!["Subnet c: spec.network"],
        ),
        (
            "a second underlay on this node: the younger one is excluded with its subnets, \
             whatever its name",
            with(|objects| {
                drop(objects.networks.insert("a".into(), rack("a", 9, "1")));
                drop(objects.subnets.insert("c".into(), subnet("c", 9, "a", "10.1.3.0/24")));
            }),
            true,
            "r a=10.1.1.0/24 b=10.1.2.0/24",
            vec!["Network a: ", "Subnet c: spec.network"],
        ),
        (
            "an edit of the older object that causes a conflict is at fault, not the running object",
            with(|objects| drop(objects.subnets.insert("0".into(), subnet("0", 1, "r", "10.1.2.0/23")))),
            true,
            "r a=10.1.1.0/24 b=10.1.2.0/24",
            vec!["Subnet 0: "],
        ),
    ];
    for (title, objects, before, expected, faults) in rows {
        let assembled = look(&objects, before.then_some(&running));
        assert_eq!(served(&assembled), expected, "{title}: {:?}", assembled.faults);
        assert_eq!(assembled.faults.len(), faults.len(), "{title}: {:?}", assembled.faults);
        for (reported, words) in assembled.faults.iter().zip(faults) {
            assert!(reported.starts_with(words), "{title}: {reported}");
        }
        let again = look(&objects, Some(&assembled.snapshot));
        assert_eq!(
            (again.snapshot, again.faults.len()),
            (assembled.snapshot, assembled.faults.len()),
            "{title}: again"
        );
    }
    let mut objects = good();
    put(&mut objects, subnet("a", 2, "r", "10.1.1.0/24"));
    objects.networks.get_mut("r").unwrap().metadata.annotations.insert("x".into(), "y".into());
    assert_eq!(look(&objects, Some(&running)).snapshot, running, "other writers' metadata is no change");
}

#[test]
fn an_unreadable_object_keeps_its_last_version() {
    let running = look(&good(), None).snapshot;
    let mut objects = good();
    objects.subnets.remove("b");
    objects
        .unreadable
        .insert(("Subnet", "b".to_owned()), "spec.range.version: unknown variant `5`".to_owned());
    let assembled = look(&objects, Some(&running));
    assert_eq!(assembled.snapshot, running);
    assert_eq!(assembled.faults, ["Subnet b: spec.range.version: unknown variant `5`"]);
    assert_eq!(served(&look(&objects, None)), "r a=10.1.1.0/24");
}

#[test]
fn objects_deleted_under_pods_stay_until_the_pods_are_gone() {
    let running = look(&good(), None).snapshot;
    let mut objects = good();
    objects.subnets.remove("b");
    let used: Looked =
        assemble(&objects, Some(&running), "kube-system", &|kind, name| (kind, name) == ("Subnet", "b"))
            .into();
    assert_eq!(used.snapshot, running);
    assert!(used.faults[0].starts_with("Subnet b: was deleted while pods"), "{:?}", used.faults);
    assert_eq!(served(&look(&objects, Some(&running))), "r a=10.1.1.0/24");
}

#[test]
fn keys_are_read_from_secrets_and_lost_keys_are_retained() {
    let peers = |name: &str, key: &str| json!([{"asn": 65000, "address": "10.0.0.1", "passwordSecretRef": {"name": name, "key": key}}]);
    let with = |name: &str, key: &str| {
        let spec = json!({"netID": 65001, "mode": "BGP", "nodeSelector": {"rack": "1"}, "config": {"bgpPeers": peers(name, key)}});
        objects(vec![network("r", 1, spec)], vec![subnet("a", 2, "r", "10.1.1.0/24")])
    };
    let place = |name: &str| ("kube-system".to_owned(), name.to_owned());
    let values = |text: &str| SecretState::Values([("md5".to_owned(), text.as_bytes().to_vec())].into());
    let key = |assembled: &Looked| {
        assembled
            .snapshot
            .networks
            .first()
            .map(|network| network.peers()[0].password().unwrap().expose().to_owned())
    };
    let mut objects = with("tor", "md5");
    let named = |label: &str| {
        let labels = [("rack".to_owned(), label.to_owned())].into();
        secrets(objects.networks.values(), &labels, "kube-system")
    };
    assert_eq!(named("1"), [place("tor")].into());
    assert_eq!(named("2"), BTreeSet::new(), "the key of another rack is not read");
    let elsewhere = Objects { labels: [("rack".to_owned(), "2".to_owned())].into(), ..objects.clone() };
    let seen = look(&elsewhere, None);
    assert_eq!(
        (seen.faults.len(), seen.snapshot.networks.len()),
        (0, 1),
        "another rack's network needs no key"
    );
    objects.secrets.insert(place("tor"), values("s3cret\n"));
    let first = look(&objects, None);
    assert_eq!((key(&first).as_deref(), first.faults.len()), (Some("s3cret"), 0));
    assert!(!format!("{first:?}").contains("s3cret"));

    objects.secrets.insert(place("tor"), values("other"));
    assert_eq!(key(&look(&objects, Some(&first.snapshot))).as_deref(), Some("other"), "changed live");

    for (known, named, words) in [
        (
            SecretState::Missing("does not exist: create it".to_owned()),
            "md5",
            "Secret kube-system/tor does not exist",
        ),
        (values("x"), "nokey", "has no key `nokey`, it has md5"),
        (values(""), "md5", "`md5` is empty"),
        (values(&"x".repeat(81)), "md5", "holds 81 octets, TCP-MD5 allows at most 80"),
        (SecretState::Values([("md5".to_owned(), vec![0xff])].into()), "md5", "is no text"),
    ] {
        let mut objects = with("tor", named);
        objects.secrets.insert(place("tor"), known);
        let kept = look(&objects, Some(&first.snapshot));
        assert_eq!(key(&kept).as_deref(), Some("s3cret"), "{words}");
        assert!(
            kept.faults[0].starts_with("Network r: spec.config.bgpPeers[0].passwordSecretRef: "),
            "{:?}",
            kept.faults
        );
        assert!(kept.faults[0].contains(words) && !kept.faults[0].contains("xxxx"), "{:?}", kept.faults);
        let without = look(&objects, None);
        assert_eq!(
            (key(&without), without.snapshot.subnets.len()),
            (None, 0),
            "a network without its key is not served"
        );
    }
}

fn pool(name: &str, addresses: &[&str], allocated: i64) -> ServicePool {
    serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": meta(name, 1),
        "spec": {"addresses": addresses}, "status": {"allocated": allocated},
    }))
    .unwrap()
}

fn advertisement(name: &str, spec: Value) -> ServiceAdvertisement {
    serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAdvertisement", "metadata": meta(name, 1),
        "spec": spec,
    }))
    .unwrap()
}

fn anycast(name: &str, spec: Value) -> AnycastAddress {
    serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress", "metadata": meta(name, 1), "spec": spec,
    }))
    .unwrap()
}

/// The served names and first addresses of pools, then the names of advertisements.
fn served_services(assembled: &Looked) -> String {
    let services = &assembled.snapshot.services;
    let pools = services.pools.iter().map(|one| format!("{}={}", one.name(), one.spec.addresses[0]));
    let advertisements = services.advertisements.iter().map(|one| one.name().to_owned());
    pools.chain(advertisements).collect::<Vec<_>>().join(" ")
}

fn with_services(pools: Vec<ServicePool>, advertisements: Vec<ServiceAdvertisement>) -> Objects {
    Objects {
        service_pools: pools.into_iter().map(|one| (one.name().to_owned(), one)).collect(),
        advertisements: advertisements.into_iter().map(|one| (one.name().to_owned(), one)).collect(),
        services_listed: true,
        ..good()
    }
}

#[test]
fn pods_do_not_wait_for_service_kinds_and_unlisted_ones_stay() {
    let unlisted = look(&good(), None);
    assert_eq!(served(&unlisted), "r a=10.1.1.0/24 b=10.1.2.0/24");
    assert!(!unlisted.snapshot.services.complete);

    let listed = with_services(vec![pool("p", &["203.0.113.0/24"], 0)], vec![advertisement("a", json!({}))]);
    let running = look(&listed, Some(&unlisted.snapshot)).snapshot;
    assert!(running.services.complete);
    // After a restart from the cache, the kinds are not listed yet.
    let again = look(&good(), Some(&running));
    assert_eq!(served_services(&again), "p=203.0.113.0/24 a");
    assert_eq!(again.snapshot, running);
    let missing = look(&with_services(Vec::new(), Vec::new()), Some(&running));
    assert_eq!((served_services(&missing).as_str(), missing.faults.len()), ("", 0), "deleted objects");
}

#[test]
fn a_bad_service_object_affects_only_itself() {
    let first = with_services(vec![pool("p", &["203.0.113.0/24"], 0)], vec![advertisement("a", json!({}))]);
    let running = look(&first, None).snapshot;
    let bad = with_services(
        vec![pool("p", &["203.0.113.7/24"], 0), pool("q", &["198.51.100.0/24"], 0)],
        vec![advertisement("a", json!({"communities": ["x"]})), advertisement("b", json!({"prepend": 17}))],
    );
    let assembled = look(&bad, Some(&running));
    assert_eq!(served(&assembled), "r a=10.1.1.0/24 b=10.1.2.0/24");
    assert_eq!(served_services(&assembled), "p=203.0.113.0/24 q=198.51.100.0/24 a");
    assert!(assembled.snapshot.services.faulty_advertisements, "b is not served");
    let faults = [
        "ServiceAdvertisement a: spec.communities[0]",
        "ServiceAdvertisement b: spec.prepend",
        "ServicePool p: spec.addresses[0]",
    ];
    assert_eq!(assembled.faults.len(), 3, "{:?}", assembled.faults);
    for (reported, words) in assembled.faults.iter().zip(faults) {
        assert!(reported.starts_with(words), "{reported}");
    }
    let again = look(&bad, Some(&assembled.snapshot));
    assert_eq!((again.snapshot, again.faults), (assembled.snapshot, assembled.faults), "again");

    let mut unreadable = with_services(Vec::new(), Vec::new());
    unreadable.unreadable.insert(("ServiceAdvertisement", "c".to_owned()), "spec: a fault".to_owned());
    let assembled = look(&unreadable, None);
    assert!(assembled.snapshot.services.faulty_advertisements, "an unreadable object exists");
    assert_eq!(served(&assembled), "r a=10.1.1.0/24 b=10.1.2.0/24");
}

#[test]
fn a_status_of_a_pool_changes_no_snapshot() {
    let before = look(&with_services(vec![pool("p", &["203.0.113.0/24"], 1)], Vec::new()), None).snapshot;
    let after = look(&with_services(vec![pool("p", &["203.0.113.0/24"], 2)], Vec::new()), Some(&before));
    assert_eq!(after.snapshot, before);
}

#[test]
fn a_command_from_the_api_server_is_refused() {
    let addresses = json!(["203.0.113.1"]);
    let good_check = json!({"addresses": addresses, "check": {"tcp": {"port": 53}}});
    let command = json!({"addresses": addresses, "check": {"command": ["/bin/true"]}});
    let objects = Objects {
        anycast: [("a", good_check), ("b", command)]
            .map(|(name, spec)| (name.to_owned(), anycast(name, spec)))
            .into(),
        anycast_listed: true,
        ..good()
    };
    let assembled = look(&objects, None);
    let names: Vec<&str> = assembled.snapshot.services.anycast.iter().map(AnycastAddress::name).collect();
    assert_eq!(names, ["a"]);
    assert!(
        assembled.faults[0].starts_with("AnycastAddress b: spec.check.command"),
        "{:?}",
        assembled.faults
    );
}

fn agent_settings(name: &str, config: Value) -> (String, AgentSettings) {
    let object = serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AgentSettings", "metadata": meta(name, 1),
        "spec": {"config": config},
    }));
    (name.to_owned(), object.unwrap())
}

#[test]
fn a_bad_agent_settings_keeps_its_version_in_force() {
    let with = |config: Value| Objects {
        agent_settings: [agent_settings("a", config), agent_settings("b", json!({"maxPaths": 4}))].into(),
        settings_listed: true,
        ..good()
    };
    let mtu = |assembled: &Looked| {
        let settings = &assembled.snapshot.agent_settings;
        assert_eq!(settings.last().map(AgentSettings::name), Some("b"));
        settings.iter().find_map(|one| one.spec.config.pod_mtu)
    };
    let before = look(&with(json!({"podMTU": 1400})), None);
    assert_eq!((mtu(&before), before.faults.len()), (Some(1400), 0));
    let bad = look(&with(json!({"podMTU": 1300, "vlanInterfaces": ["/eth[/"]})), Some(&before.snapshot));
    assert_eq!(mtu(&bad), Some(1400), "the version in force stays");
    let words = "AgentSettings a: spec.config.vlanInterfaces[0]: /eth[/ is no regular expression";
    assert!(bad.faults.len() == 1 && bad.faults[0].starts_with(words), "{:?}", bad.faults);
    let new = look(&with(json!({"podMTU": 100})), None);
    assert_eq!((mtu(&new), new.faults.len()), (None, 1), "a new object with a fault has no effect");
    let unlisted = look(&good(), Some(&before.snapshot));
    assert_eq!(mtu(&unlisted), Some(1400), "after a restart from the cache");
    assert_eq!(
        look(&Objects { settings_listed: true, ..good() }, Some(&before.snapshot)).snapshot.agent_settings,
        []
    );
}

#[test]
fn remote_objects_wait_for_the_addresses_that_they_may_not_have() {
    let mut objects = objects(Vec::new(), Vec::new());
    let mut remote = RemoteObjects::default();
    let vtep = crate::plan::remote::RemoteVtepRow {
        created: "".into(),
        ip: "10.20.0.1".parse().unwrap(),
        mac: [2; 6],
        local: Box::default(),
        endpoints: Box::default(),
        malformed: 0,
    };
    remote.set_vtep("west.n1", "west", vtep);
    objects.remote = Arc::new(remote);
    objects.api_servers = ["192.0.2.1".parse().unwrap()].into();
    let known = |looked: &Looked| {
        let servers: Vec<String> = looked.snapshot.api_servers.iter().map(ToString::to_string).collect();
        (looked.snapshot.remote.is_some(), servers.join(" "))
    };
    let first = look(&objects, None);
    assert_eq!(known(&first), (false, String::new()), "not listed");
    objects.remote_listed = true;
    let second = look(&objects, Some(&first.snapshot));
    assert_eq!(known(&second), (true, "192.0.2.1".to_owned()));
    // After a restart the cached ones stay together until all are listed.
    objects.remote_listed = false;
    objects.api_servers.clear();
    assert_eq!(known(&look(&objects, Some(&second.snapshot))), (true, "192.0.2.1".to_owned()));
    objects.remote_listed = true;
    objects.remote = Arc::default();
    assert_eq!(known(&look(&objects, Some(&second.snapshot))), (false, String::new()));
}
