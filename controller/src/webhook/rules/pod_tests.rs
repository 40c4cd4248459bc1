use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::annotation as a;
use trunkline_api::resources::LabelSelector;

use super::super::tests::{expect, instance, network, subnet};
use super::*;
use crate::cluster::{InstanceRow, NetworkingMetadata};
use crate::testing::policy;

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// rack1 (VLAN, subnets v4 and v6, team for Namespace named, and the disabled off and off6), bgp, overlay (IPv4 left, no IPv6), no GlobalBGP; namespace
/// `plain` has no annotations, `named` names rack1.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let mut overlay = network("overlay", json!({"type": "Overlay", "netID": 4}));
    overlay.status =
        Some(serde_json::from_value(json!({"statistics": {"total": 9, "used": 1, "available": 8}})).unwrap());
    let networks = [
        network(
            "rack1",
            json!({"nodeSelector": {"network": "rack1"}, "netID": 10,
                   "config": {"extraPrefixes": ["10.9.0.0/16", "fd00:9::/48"]}}),
        ),
        network("bgp", json!({"nodeSelector": {"network": "rack2"}, "netID": 65001, "mode": "BGP"})),
        overlay,
    ];
    for network in networks {
        cluster.networks.set(network.name().into(), Arc::new(network));
    }
    for (name, of, version, cidr) in [
        ("v4", "rack1", "4", "10.1.0.0/24"),
        ("v6", "rack1", "6", "2001:db8:1::/112"),
        ("bgp4", "bgp", "4", "10.2.0.0/24"),
        ("team", "rack1", "4", "10.4.0.0/24"),
        ("off", "rack1", "4", "10.5.0.0/24"),
        ("off6", "rack1", "6", "2001:db8:5::/112"),
    ] {
        let config = match name {
            "team" => json!({"private": true, "allowedNamespaces": ["named"]}),
            "off" | "off6" => json!({"disabled": true}),
            _ => json!({}),
        };
        let range = json!({"version": version, "cidr": cidr});
        let subnet = subnet(name, json!({"network": of, "range": range, "config": config}));
        cluster.set_subnet(&name.into(), Arc::new(subnet));
    }
    for (name, annotations) in [("plain", texts(&[])), ("named", texts(&[(a::SPECIFIED_NETWORK, "rack1")]))] {
        cluster
            .namespaces
            .set(name.into(), NetworkingMetadata { annotations, ..NetworkingMetadata::default() }.into());
    }
    cluster
}

fn give(cluster: &mut Cluster, ip: &str, network: &str, subnet: &str, pod: &str) {
    let mut given = instance(ip, network, subnet, pod, "");
    given.metadata.namespace = Some("plain".to_owned());
    let row = InstanceRow::of(&given.clone().into(), cluster.vms.retain, &mut cluster.interner).unwrap();
    assert!(cluster.set_instance(&Key::new("plain", given.metadata.name.as_str()), row).is_ok());
}

fn pod(annotations: &[(&str, &str)]) -> NewPod {
    let annotations = (!annotations.is_empty()).then(|| texts(annotations));
    NewPod { namespace: "plain".to_owned(), name: "web-0".to_owned(), annotations, ..NewPod::default() }
}

fn stateful(annotations: &[(&str, &str)]) -> NewPod {
    NewPod { owner_kind: Some("StatefulSet".to_owned()), ..pod(annotations) }
}

/// The pod's annotations and node selector after the patch, by a separate implementation of RFC
/// 6902.
fn stamped(pod: &NewPod, cluster: &Cluster) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut object = json!({"metadata": {}, "spec": {}});
    let mut put = |path: &str, value: Value| {
        object
            .pointer_mut(path)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .insert(if path == "/metadata" { "annotations" } else { "nodeSelector" }.to_owned(), value)
    };
    if let Some(annotations) = &pod.annotations {
        put("/metadata", json!(annotations));
    }
    if let Some(selector) = &pod.node_selector {
        put("/spec", json!(selector));
    }
    for operation in mutate(pod, cluster, &policy()).unwrap().patch {
        assert_eq!(operation["op"], "add");
        let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        object.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key, operation["value"].clone());
    }
    let read = |value: &Value| serde_json::from_value(value.clone()).unwrap_or_default();
    (read(&object["metadata"]["annotations"]), read(&object["spec"]["nodeSelector"]))
}

#[test]
fn selection_is_written_on_the_pod() {
    let mut cluster = cluster();
    give(&mut cluster, "10.2.0.7/24", "bgp", "bgp4", "kept-0");
    let kept = |pod: NewPod| NewPod { name: "kept-0".to_owned(), ..pod };
    let in_named = |pod: NewPod| NewPod { namespace: "named".to_owned(), ..pod };
    let quota = (label::IPV4_ADDRESS_QUOTA, QUOTA_NONEMPTY);
    let underlay = (UNDERLAY_NETWORK_ATTACHMENT, "true");
    for (case, pod, annotations, selector) in [
        (
            "no annotations",
            pod(&[]),
            vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![underlay, quota],
        ),
        (
            "a network",
            pod(&[(a::SPECIFIED_NETWORK, "rack1")]),
            vec![(a::SPECIFIED_NETWORK, "rack1"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![("network", "rack1"), quota],
        ),
        (
            "subnets",
            pod(&[(a::SPECIFIED_SUBNET, "v4/v6"), (a::IP_FAMILY, "DualStack")]),
            vec![
                (a::SPECIFIED_NETWORK, "rack1"),
                (a::SPECIFIED_SUBNET, "v4/v6"),
                (a::NETWORK_TYPE, "Underlay"),
                (a::IP_FAMILY, "DualStack"),
            ],
            vec![("network", "rack1"), (label::DUAL_STACK_ADDRESS_QUOTA, QUOTA_NONEMPTY)],
        ),
        (
            "IPv6",
            pod(&[(a::IP_FAMILY, "ipv6only")]),
            vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv6")],
            vec![underlay, (label::IPV6_ADDRESS_QUOTA, QUOTA_NONEMPTY)],
        ),
        (
            "overlay",
            pod(&[(a::NETWORK_TYPE, "overlay")]),
            vec![(a::NETWORK_TYPE, "Overlay"), (a::IP_FAMILY, "IPv4")],
            vec![(OVERLAY_NETWORK_ATTACHMENT, "true")],
        ),
        (
            "global",
            pod(&[(a::NETWORK_TYPE, "GlobalBGP")]),
            vec![(a::NETWORK_TYPE, "GlobalBGP"), (a::IP_FAMILY, "IPv4")],
            vec![(BGP_NETWORK_ATTACHMENT, "true")],
        ),
        (
            "the namespace's",
            in_named(pod(&[])),
            vec![(a::SPECIFIED_NETWORK, "rack1"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![("network", "rack1"), quota],
        ),
        (
            "the pod before the namespace",
            in_named(pod(&[(a::SPECIFIED_NETWORK, "bgp")])),
            vec![(a::SPECIFIED_NETWORK, "bgp"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![("network", "rack2"), quota],
        ),
        (
            "the retained address before the pod, and no quota",
            kept(stateful(&[(a::SPECIFIED_NETWORK, "rack1")])),
            vec![(a::SPECIFIED_NETWORK, "bgp"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![("network", "rack2")],
        ),
        (
            "ip-retain false",
            kept(stateful(&[(a::SPECIFIED_NETWORK, "rack1"), (a::IP_RETAIN, "false")])),
            vec![
                (a::SPECIFIED_NETWORK, "rack1"),
                (a::NETWORK_TYPE, "Underlay"),
                (a::IP_FAMILY, "IPv4"),
                (a::IP_RETAIN, "false"),
            ],
            vec![("network", "rack1"), quota],
        ),
        (
            "no stateful pod",
            kept(pod(&[])),
            vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
            vec![underlay, quota],
        ),
    ] {
        let mut annotations = texts(&annotations);
        annotations.insert(a::HANDLED_BY_WEBHOOK.to_owned(), "true".to_owned());
        let (got, selected) = stamped(&pod, &cluster);
        assert_eq!(got, annotations, "{case}");
        assert_eq!(selected, texts(&selector), "{case}");
    }
}

#[test]
fn mutation_keeps_other_values() {
    let cluster = cluster();
    let mut own = pod(&[("note", "mine"), (a::SPECIFIED_NETWORK, "rack1")]);
    own.node_selector = Some(texts(&[("disk", "ssd"), ("network", "rack9")]));
    let (annotations, selector) = stamped(&own, &cluster);
    assert_eq!(annotations["note"], "mine");
    assert_eq!(selector["disk"], "ssd");
    assert_eq!(selector["network"], "rack1");
    let warnings = mutate(&own, &cluster, &policy()).unwrap().warnings;
    assert!(warnings[0].contains("nodeSelector[network]: rack9 is replaced by rack1"), "{warnings:?}");

    // The second run, on the result of the first, changes nothing.
    own.annotations = Some(annotations);
    own.node_selector = Some(selector);
    assert_eq!(mutate(&own, &cluster, &policy()).unwrap(), Mutation::default());
}

#[test]
fn host_network_pods_only_get_a_toleration() {
    let cluster = cluster();
    let host = NewPod { host_network: true, ..pod(&[(a::SPECIFIED_NETWORK, "nowhere")]) };
    let patch = mutate(&host, &cluster, &policy()).unwrap().patch;
    let wanted = json!({"key": NETWORK_UNAVAILABLE, "operator": "Exists", "effect": "NoSchedule"});
    assert_eq!(patch, [json!({"op": "add", "path": "/spec/tolerations", "value": [wanted]})]);
    let other: Toleration = serde_json::from_value(json!({"operator": "Exists", "key": "x"})).unwrap();
    let patch = mutate(&NewPod { tolerations: Some(vec![other]), ..host.clone() }, &cluster, &policy())
        .unwrap()
        .patch;
    assert_eq!(patch, [json!({"op": "add", "path": "/spec/tolerations/-", "value": wanted})]);
    let same = NewPod { tolerations: Some(vec![serde_json::from_value(wanted).unwrap()]), ..host.clone() };
    assert_eq!(mutate(&same, &cluster, &policy()).unwrap(), Mutation::default());
    expect("host network", validate(&host, &cluster, &policy()), "");
}

#[test]
fn requests_are_checked_against_the_cluster() {
    let mut cluster = cluster();
    give(&mut cluster, "10.1.0.7/24", "rack1", "v4", "kept-0");
    let rack1 = (a::SPECIFIED_NETWORK, "rack1");
    for (case, annotations, refusal) in [
        ("nothing", &[][..], ""),
        ("a network", &[rack1], ""),
        ("no such network", &[(a::SPECIFIED_NETWORK, "rack9")], "there is no Network rack9"),
        ("its type", &[rack1, (a::NETWORK_TYPE, "Underlay")], ""),
        (
            "another type",
            &[rack1, (a::NETWORK_TYPE, "Overlay")],
            "is of type Underlay, and the pod requests Overlay",
        ),
        ("a subnet", &[(a::SPECIFIED_SUBNET, "v4")], ""),
        ("two subnets", &[(a::SPECIFIED_SUBNET, "v4/v6"), (a::IP_FAMILY, "DualStack")], ""),
        ("v6 before v4", &[(a::SPECIFIED_SUBNET, "v6/v4")], "write `v4-subnet/v6-subnet`"),
        (
            "three subnets",
            &[(a::SPECIFIED_SUBNET, "v4/v6/bgp4")],
            "specified-subnet]: `v4/v6/bgp4` does not name Subnets",
        ),
        ("subnets in order of preference", &[(a::SPECIFIED_SUBNET, "off,v4")], ""),
        (
            "subnets of both families in order",
            &[(a::SPECIFIED_SUBNET, "team,v4/off6,v6"), (a::IP_FAMILY, "DualStack")],
            "",
        ),
        ("an unknown one in a list", &[(a::SPECIFIED_SUBNET, "v4,v9")], "there is no Subnet v9"),
        (
            "only disabled and restricted subnets",
            &[(a::SPECIFIED_SUBNET, "off,team")],
            "specified-subnet]: no named Subnet gives the pod an IPv4 address: Subnet off is disabled, Subnet team is \
             only for Namespaces named, and not for plain",
        ),
        (
            "a disabled subnet of one family",
            &[(a::SPECIFIED_SUBNET, "v4/off6"), (a::IP_FAMILY, "DualStack")],
            "no named Subnet gives the pod an IPv6 address: Subnet off6 is disabled",
        ),
        (
            "further interfaces",
            &[(
                a::INTERFACES,
                r#"[{"name": "net1", "network": "overlay"}, {"name": "net2", "subnet": "v6", "ipFamily": "IPv6"}]"#,
            )],
            "",
        ),
        (
            "interfaces without a common node",
            &[(
                a::INTERFACES,
                r#"[{"name": "net1", "network": "bgp"}, {"name": "net2", "network": "rack1"}]"#,
            )],
            "interface net2: Network rack1 has nodes with network=rack1, and another interface needs",
        ),
        ("an unreadable list", &[(a::INTERFACES, "net1")], "alibaba.com/interfaces]: expected"),
        (
            "an interface in an unknown network",
            &[(a::INTERFACES, r#"[{"name": "net1", "network": "rack9"}]"#)],
            "interfaces]: interface net1: there is no Network rack9",
        ),
        (
            "an interface in a disabled subnet",
            &[(a::INTERFACES, r#"[{"name": "net1", "subnet": "off"}]"#)],
            "interface net1: no named Subnet gives the pod an IPv4 address: Subnet off is disabled",
        ),
        (
            "an interface with an address of another subnet",
            &[(a::INTERFACES, r#"[{"name": "net1", "network": "rack1", "addresses": ["10.5.0.7"]}]"#)],
            "interface net1: 10.5.0.7: Subnet off is disabled",
        ),
        ("a retention", &[(a::IP_RETENTION, "72h")], ""),
        ("no retention", &[(a::IP_RETENTION, "3 days")], "ip-retention]: `3 days` is not a retention"),
        ("no such subnet", &[(a::SPECIFIED_SUBNET, "v9")], "there is no Subnet v9"),
        ("subnets of two networks", &[(a::SPECIFIED_SUBNET, "bgp4/v6")], "name subnets of one network"),
        (
            "another network's subnet",
            &[rack1, (a::SPECIFIED_SUBNET, "bgp4")],
            "belongs to Network bgp and not to rack1",
        ),
        ("pool", &[rack1, (a::IP_POOL, "10.1.0.8,10.1.0.9")], ""),
        ("pool of pairs", &[rack1, (a::IP_FAMILY, "DualStack"), (a::IP_POOL, "10.1.0.8/2001:db8:1::8")], ""),
        ("pool without network", &[(a::IP_POOL, "10.1.0.8")], "the network of the addresses"),
        (
            "pool with an empty entry",
            &[rack1, (a::IP_POOL, "10.1.0.8,")],
            "ip-pool][1]: `` is not an IP address",
        ),
        ("pool of a wrong address", &[rack1, (a::IP_POOL, "10.1.0.800")], "ip-pool][0]: `10.1.0.800` is not"),
        (
            "pool of the other family",
            &[rack1, (a::IP_POOL, "2001:db8:1::8")],
            "does not match the pod's family IPv4",
        ),
        (
            "half a pair",
            &[rack1, (a::IP_FAMILY, "DualStack"), (a::IP_POOL, "10.1.0.8")],
            "the pod's family DualStack",
        ),
        ("MAC pool", &[(a::MAC_POOL, "02:12:34:00:00:01,02:12:34:00:00:02")], ""),
        ("wrong MAC pool", &[(a::MAC_POOL, "02:12:34:00:00:01,x")], "mac-pool][1]: `x` is not"),
        ("wrong type", &[(a::NETWORK_TYPE, "Underlie")], "`Underlie` is no type of a Network"),
        ("wrong family", &[(a::IP_FAMILY, "IPv5")], "`IPv5` is no family"),
        ("extra prefixes", &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.9.3.0/24,fd00:9::/64")], ""),
        (
            "extra prefixes of the Subnet's Network",
            &[(a::SPECIFIED_SUBNET, "v4"), (a::EXTRA_PREFIXES, "10.9.0.7/32")],
            "",
        ),
        (
            "an extra prefix outside the Network's prefixes",
            &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.10.0.0/16")],
            "extra-prefixes]: 10.10.0.0/16: spec.config.extraPrefixes of Network rack1 allows 10.9.0.0/16, fd00:9::/48",
        ),
        (
            "a wider prefix than the Network's",
            &[rack1, (a::EXTRA_PREFIXES, "10.8.0.0/15")],
            "extra-prefixes]: 10.8.0.0/15: spec.config.extraPrefixes of Network rack1",
        ),
        (
            "a Network that allows none",
            &[(a::SPECIFIED_NETWORK, "bgp"), (a::EXTRA_PREFIXES, "10.9.0.0/16")],
            "spec.config.extraPrefixes of Network bgp allows nothing",
        ),
        (
            "the Overlay allows none",
            &[(a::NETWORK_TYPE, "Overlay"), (a::EXTRA_PREFIXES, "10.9.0.0/16")],
            "spec.config.extraPrefixes of Network overlay allows nothing",
        ),
        (
            "extra prefixes without a Network",
            &[(a::EXTRA_PREFIXES, "10.9.0.0/16")],
            "the allowed prefixes depend on the Network: also write",
        ),
        (
            "no prefix",
            &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.9.0.1")],
            "extra-prefixes][1]: `10.9.0.1` has no length: write 10.9.0.1/32",
        ),
        (
            "host bits",
            &[rack1, (a::EXTRA_PREFIXES, "10.9.0.1/16")],
            "extra-prefixes][0]: 10.9.0.1/16 has host bits: write 10.9.0.0/16",
        ),
        ("overlay has IPv4", &[(a::NETWORK_TYPE, "Overlay")], ""),
        (
            "overlay has no IPv6",
            &[(a::NETWORK_TYPE, "Overlay"), (a::IP_FAMILY, "IPv6")],
            "Network overlay has no IPv6 address left",
        ),
        (
            "nor pairs",
            &[(a::SPECIFIED_NETWORK, "overlay"), (a::IP_FAMILY, "DualStack")],
            "no DualStack address left",
        ),
        ("no GlobalBGP", &[(a::NETWORK_TYPE, "GlobalBGP")], "there is no Network of type GlobalBGP"),
    ] {
        expect(case, validate(&pod(annotations), &cluster, &policy()), refusal);
    }
    for (case, annotations, refusal) in [
        ("in the Network of its address", &[rack1][..], ""),
        (
            "another network",
            &[(a::SPECIFIED_NETWORK, "bgp")],
            "bgp: the pod already has 10.1.0.7 of Network rack1",
        ),
        ("its subnet", &[(a::SPECIFIED_SUBNET, "v4/v6")], ""),
        (
            "another subnet",
            &[(a::SPECIFIED_SUBNET, "v6"), (a::IP_FAMILY, "IPv6")],
            "v6: the pod already has 10.1.0.7 of Subnet v4",
        ),
    ] {
        let pod = NewPod { name: "kept-0".to_owned(), ..pod(annotations) };
        expect(case, validate(&pod, &cluster, &policy()), refusal);
    }
    // A namespace cannot set prefixes: its annotation for prefixes is not read, but its Network
    // is used.
    let in_named = |annotations| NewPod { namespace: "named".to_owned(), ..pod(annotations) };
    let mut annotations_of = texts(&[(a::SPECIFIED_NETWORK, "rack1"), (a::EXTRA_PREFIXES, "10.10.0.0/16")]);
    cluster.namespaces.set(
        "named".into(),
        NetworkingMetadata { annotations: annotations_of.clone(), ..NetworkingMetadata::default() }.into(),
    );
    expect("the namespace's prefixes", validate(&in_named(&[]), &cluster, &policy()), "");
    let own = [(a::EXTRA_PREFIXES, "10.9.0.0/16")];
    expect("the namespace's Network", validate(&in_named(&own), &cluster, &policy()), "");
    annotations_of.insert(a::SPECIFIED_NETWORK.to_owned(), "bgp".to_owned());
    cluster.namespaces.set(
        "named".into(),
        NetworkingMetadata { annotations: annotations_of, ..NetworkingMetadata::default() }.into(),
    );
    expect("another", validate(&in_named(&own), &cluster, &policy()), "Network bgp allows nothing");
    // A pod with retained addresses is admitted even if the network is full.
    give(&mut cluster, "10.5.0.7/24", "overlay", "o4", "kept-1");
    let full = network("overlay", json!({"type": "Overlay", "netID": 4}));
    cluster.networks.set("overlay".into(), Arc::new(full));
    let kept = NewPod { name: "kept-1".to_owned(), ..pod(&[(a::SPECIFIED_NETWORK, "overlay")]) };
    expect("kept", validate(&kept, &cluster, &policy()), "");
    expect(
        "new",
        validate(&NewPod { name: "new".to_owned(), ..kept.clone() }, &cluster, &policy()),
        "no IPv4 address left",
    );
    // The status does not count the addresses of this subnet yet.
    let new = subnet("o4", json!({"network": "overlay", "range": {"version": "4", "cidr": "10.5.0.0/24"}}));
    cluster.set_subnet(&"o4".into(), Arc::new(new));
    expect("new subnet", validate(&NewPod { name: "new".to_owned(), ..kept }, &cluster, &policy()), "");
}

/// The pod of a virtual machine goes to the nodes of its retained addresses, also if the Network is
/// full.
#[test]
fn pod_of_a_virtual_machine_follows_its_retained_addresses() {
    let mut cluster = cluster();
    let full = network("overlay", json!({"type": "Overlay", "netID": 4}));
    cluster.networks.set("overlay".into(), Arc::new(full));
    let new = NewPod { vm_instance: Some("web".to_owned()), ..pod(&[]) };
    for retain in [false, true] {
        cluster.vms.retain = retain;
        let kept = instance("10.5.0.7/24", "overlay", "o4", "", "");
        let key = Key::new("plain", kept.metadata.name.as_str());
        let mut kept: IPInstanceObject = kept.into();
        let owner = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "v", "controller": true,
        });
        kept.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        let row = InstanceRow::of(&kept, retain, &mut cluster.interner).unwrap();
        assert!(cluster.set_instance(&key, row).is_ok());
        let (annotations, _) = stamped(&new, &cluster);
        let network = annotations.get(a::SPECIFIED_NETWORK).map(String::as_str);
        assert_eq!(network, retain.then_some("overlay"), "{annotations:?}");
    }
    let named = NewPod { annotations: Some(texts(&[(a::SPECIFIED_NETWORK, "overlay")])), ..new };
    expect("its own address", validate(&named, &cluster, &policy()), "");
    let other = NewPod { vm_instance: Some("other".to_owned()), ..named };
    expect("a new virtual machine", validate(&other, &cluster, &policy()), "no IPv4 address left");
}

#[test]
fn pods_of_another_plugin_are_not_selected() {
    let policy = Policy { pod_selector: "cni=trunkline".parse().unwrap(), ..policy() };
    let labelled = |value| NewPod { labels: texts(&[("cni", value)]), ..pod(&[]) };
    assert!(is_selected(&labelled("trunkline"), &policy));
    assert!(!is_selected(&labelled("other"), &policy) && !is_selected(&pod(&[]), &policy));
    assert!(is_selected(&pod(&[]), &Policy { pod_selector: LabelSelector::default(), ..policy }));
}

#[test]
fn subnets_are_only_for_their_namespaces() {
    let mut cluster = cluster();
    let rack1 = (a::SPECIFIED_NETWORK, "rack1");
    let in_named = |pod: NewPod| NewPod { namespace: "named".to_owned(), ..pod };
    let check = |case: &str, cluster: &Cluster, pod: &NewPod, refusal: &str| {
        expect(case, validate(pod, cluster, &policy()), refusal);
    };
    let team = [(a::SPECIFIED_SUBNET, "team")];
    check("its namespace", &cluster, &in_named(pod(&team)), "");
    check("another namespace", &cluster, &pod(&team), "and not for plain");
    let pool = [rack1, (a::IP_POOL, "10.4.0.8")];
    let refusal = "ip-pool]: 10.4.0.8: Subnet team is only for Namespaces named, and not for plain";
    check("a named address", &cluster, &stateful(&pool), refusal);
    check("a named address in its namespace", &cluster, &in_named(stateful(&pool)), "");
    check("a pool that the controller ignores", &cluster, &pod(&pool), "");
    let pool = [rack1, (a::IP_POOL, "10.5.0.7,10.5.0.8")];
    check("an address of a disabled subnet", &cluster, &stateful(&pool), "10.5.0.7: Subnet off is disabled");
    give(&mut cluster, "10.5.0.7/24", "rack1", "off", "web-0");
    check("its own address", &cluster, &stateful(&pool), "");
    let off = [(a::SPECIFIED_SUBNET, "off")];
    check("its retained address", &cluster, &stateful(&off), "");
    let other = NewPod { name: "web-1".to_owned(), ..stateful(&off) };
    check("a new address", &cluster, &other, "Subnet off is disabled");
}

#[test]
fn unknown_names_are_reported_as_missing() {
    let cluster = cluster();
    for (pod, wanted) in [
        (pod(&[]), None),
        (pod(&[(a::SPECIFIED_NETWORK, "rack9")]), Some(Missing::Network("rack9".to_owned()))),
        (pod(&[(a::SPECIFIED_SUBNET, "v4/v9")]), Some(Missing::Subnet("v9".to_owned()))),
        (NewPod { namespace: "new".to_owned(), ..pod(&[]) }, Some(Missing::Namespace)),
        (NewPod { namespace: "new".to_owned(), ..pod(&[(a::SPECIFIED_NETWORK, "rack1")]) }, None),
        (NewPod { host_network: true, ..pod(&[(a::SPECIFIED_NETWORK, "rack9")]) }, None),
    ] {
        assert_eq!(missing(&pod, &cluster), wanted, "{pod:?}");
    }
}

/// {annotation or label of a pod} x {Namespace bound or not, with further Networks or not}. All pods
/// are admitted in a Namespace without a Network.
#[test]
fn pods_of_a_bound_namespace_get_only_its_networks() {
    let mut cluster = cluster();
    let further = texts(&[(a::SPECIFIED_NETWORK, "rack1"), (a::ALLOWED_NETWORKS, "bgp")]);
    for (name, annotations, labels) in [
        ("bound", texts(&[(a::SPECIFIED_NETWORK, "rack1")]), texts(&[])),
        ("labelled", texts(&[]), texts(&[(label::SPECIFIED_NETWORK, "rack1")])),
        ("further", further, texts(&[])),
        ("free", texts(&[]), texts(&[])),
    ] {
        let networking = NetworkingMetadata { annotations, labels, too_large: None };
        cluster.namespaces.set(name.into(), networking.into());
    }
    cluster.multus.begin();
    for name in ["bound", "labelled", "further", "free"] {
        let network = multus::MultusNetwork { network: "bgp".to_owned(), subnet: String::new() };
        cluster.multus.set(Key::new(name, "bgp"), Some(network));
    }
    assert!(cluster.multus.end().is_empty());
    let policy = Policy { tenancy: true, ..policy() };
    let own = (a::SPECIFIED_NETWORK, "rack1");
    // The pods' annotations and labels, and whether `bound` and `further` refuse them.
    for (annotations, labels, bound, with_further) in [
        (&[][..], &[][..], false, false),
        (&[own], &[], false, false),
        (&[(a::SPECIFIED_NETWORK, "bgp")], &[], true, false),
        (&[], &[(label::SPECIFIED_NETWORK, "bgp")], true, false),
        (&[(a::SPECIFIED_SUBNET, "bgp4")], &[], true, false),
        (&[], &[(label::SPECIFIED_SUBNET, "bgp4")], true, false),
        (&[(a::SPECIFIED_SUBNET, "v4")], &[], false, false),
        (&[(a::NETWORK_TYPE, "GlobalBGP")], &[], true, true),
        (&[(a::NETWORK_TYPE, "Underlay")], &[], true, true),
        (&[], &[(label::NETWORK_TYPE, "Underlay")], true, true),
        (&[(a::IP_FAMILY, "IPv4")], &[], true, true),
        (&[(a::IP_RETAIN, "true")], &[], false, false),
        (
            &[own, (a::INTERFACES, r#"[{"name": "net1", "network": "bgp", "defaultRoute": true}]"#)],
            &[],
            true,
            false,
        ),
        (&[(a::INTERFACES, r#"[{"name": "net1", "subnet": "bgp4"}]"#)], &[], true, false),
        (&[(a::INTERFACES, r#"[{"name": "net1", "network": "rack1"}]"#)], &[], false, false),
        (&[(a::MULTUS_NETWORKS, "bgp")], &[], true, false),
        (&[own, (a::MULTUS_NETWORKS, "bgp@data")], &[], true, false),
    ] {
        for (namespace, refused) in
            [("bound", bound), ("labelled", bound), ("further", with_further), ("free", false)]
        {
            let pod = NewPod { namespace: namespace.to_owned(), labels: texts(labels), ..pod(annotations) };
            let faults = validate(&pod, &cluster, &policy).err().unwrap_or_default();
            let found = faults.iter().any(|fault| fault.message.contains(a::ALLOWED_NETWORKS));
            assert_eq!(found, refused, "{namespace}: {annotations:?} {labels:?}: {faults:?}");
            // Without the setting, annotations of pods have precedence.
            let faults = validate(&pod, &cluster, &crate::testing::policy()).err().unwrap_or_default();
            assert!(!faults.iter().any(|fault| fault.message.contains(a::ALLOWED_NETWORKS)), "{faults:?}");
        }
    }
}

#[test]
fn lists_of_multus_with_faults_are_denied() {
    let mut cluster = cluster();
    cluster.multus.begin();
    let network = multus::MultusNetwork { network: "overlay".to_owned(), subnet: String::new() };
    cluster.multus.set(Key::new("plain", "overlay"), Some(network));
    assert!(cluster.multus.end().is_empty());
    for (networks, text) in [
        ("overlay", ""),
        // The pod waits for the definition.
        ("overlay,nowhere", ""),
        (
            &"overlay,".repeat(4000),
            "k8s.v1.cni.cncf.io/networks]: more than 8 interfaces of Trunkline are listed",
        ),
        ("overlay@a,overlay@a", "k8s.v1.cni.cncf.io/networks][1].name: `a` is listed twice"),
    ] {
        let faults = validate(&pod(&[(a::MULTUS_NETWORKS, networks)]), &cluster, &policy()).err();
        let faults: Vec<String> = faults.into_iter().flatten().map(|fault| fault.to_string()).collect();
        assert_eq!(faults.len(), usize::from(!text.is_empty()), "{faults:?}");
        assert!(faults.iter().all(|fault| fault.contains(text)), "{faults:?}");
    }
}
