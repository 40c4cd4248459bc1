use super::super::feed::Holder;
use super::*;

fn input(uid: &str, label: &str) -> PodInput {
    PodInput {
        pod: Pod {
            key: ObjectKey::new("shop", "db-0"),
            node: "here".into(),
            host_network: false,
            labels: Labels::from_iter([("app", label)]),
            addresses: Vec::new(),
            ports: Vec::new(),
        },
        others: Labels::default(),
        keys: u64::MAX,
        uid: uid.into(),
        static_uid: None,
        version: 0,
        ended: false,
    }
}

fn elsewhere(uid: &str, label: &str) -> PodInput {
    let input = input(uid, label);
    PodInput { pod: Pod { node: "there".into(), ..input.pod }, ..input }
}

fn link(uid: &str, ifname: &str, address: &str) -> PolicyLink {
    PolicyLink {
        pod: ObjectKey::new("shop", "db-0"),
        uid: uid.into(),
        host_ifname: ifname.to_owned(),
        ifindex: 7,
        addresses: vec![address.parse().unwrap()],
        enforceable: true,
        labels: None,
    }
}

fn held(address: &str, uid: &str, node: &str) -> AddressInput {
    let holder = Holder { pod: "db-0".into(), uid: uid.into(), node: node.into() };
    AddressInput { namespace: "shop".into(), address: address.parse().unwrap(), holder: Some(holder) }
}

fn free(address: &str) -> AddressInput {
    AddressInput { holder: None, ..held(address, "", "") }
}

fn shown(rows: impl IntoIterator<Item = Row>) -> Vec<String> {
    let text = |row| match row {
        Row::Set(pod) => format!("{} {:?} {:?}", pod.key, pod.labels, pod.addresses),
        Row::Remove(key) => format!("-{key}"),
    };
    rows.into_iter().map(text).collect()
}

fn table() -> PodTable {
    PodTable::new("here".into())
}

#[test]
fn addresses_are_those_of_the_links_and_ipinstances() {
    let mut pods = table();
    assert_eq!(shown(pods.apply(input("a", "x"))), [r#"shop/db-0/a {"app": "x"} []"#]);
    assert_eq!(shown(pods.hold(held("10.0.0.1", "a", "here"))), [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#]);
    assert_eq!(shown(pods.attach(link("a", "tl1", "10.0.0.1"))), [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#]);
    let both = [r#"shop/db-0/a {"app": "x"} [10.0.0.1, 10.0.0.2]"#];
    assert_eq!(shown(pods.attach(link("a", "tl2", "10.0.0.2"))), both);
    assert_eq!(shown(pods.detach("tl1")), both, "the IPInstance still is the pod's");
    assert_eq!(shown(pods.hold(free("10.0.0.1"))), [r#"shop/db-0/a {"app": "x"} [10.0.0.2]"#]);
    assert_eq!(shown(pods.detach("tl2")), [r#"shop/db-0/a {"app": "x"} []"#]);
}

#[test]
fn every_interface_of_a_pod_of_another_node_counts() {
    let mut pods = table();
    assert_eq!(shown(pods.apply(elsewhere("a", "x"))), ["-shop/db-0/a"], "no address, no row");
    pods.hold(held("10.0.0.1", "a", "there"));
    let both = [r#"shop/db-0/a {"app": "x"} [10.0.0.1, 10.9.0.1]"#];
    assert_eq!(shown(pods.hold(held("10.9.0.1", "a", "there"))), both);
    assert_eq!(shown(pods.apply(elsewhere("a", "x"))), both);
    assert_eq!(pods.hold(held("10.9.0.1", "a", "there")), [], "nothing new");
}

#[test]
fn an_address_without_the_object_of_its_pod_has_unknown_labels() {
    let mut pods = table();
    let unknown = ["shop/db-0/a unknown [10.0.0.1]"];
    assert_eq!(shown(pods.hold(held("10.0.0.1", "a", "there"))), unknown);
    assert_eq!(shown(pods.apply(elsewhere("a", "x"))), [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#]);
    // A retained address belongs to nobody.
    assert_eq!(shown(pods.hold(free("10.0.0.1"))), ["-shop/db-0/a"]);
    assert_eq!(pods.poll_left(), ["10.0.0.1".parse().unwrap()].into());
    assert_eq!(pods.poll_left(), [].into());
}

#[test]
fn a_pod_that_was_deleted_by_force_keeps_its_labels() {
    let mut pods = table();
    pods.apply(elsewhere("a", "x"));
    pods.hold(held("10.0.0.1", "a", "there"));
    let there = [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#];
    assert_eq!(shown(pods.delete(&ObjectKey::new("shop", "db-0"), &"a".into())), there);
    // The next pod of the StatefulSet has the name, and another address.
    pods.apply(elsewhere("b", "y"));
    assert_eq!(shown(pods.hold(held("10.0.0.2", "b", "there"))), [r#"shop/db-0/b {"app": "y"} [10.0.0.2]"#]);
    // The kubelet reports that a pod has ended: its address counts until the controller releases it.
    let ended = PodInput { ended: true, ..elsewhere("b", "y") };
    assert_eq!(shown(pods.apply(ended)), [r#"shop/db-0/b {"app": "y"} [10.0.0.2]"#]);
    assert_eq!(shown(pods.release_others(&[])), ["-shop/db-0/a", "-shop/db-0/b"]);
    assert!(pods.slots.is_empty() && pods.holders.is_empty() && pods.local.is_empty());
}

#[test]
fn an_address_changes_its_holder_at_once() {
    let mut pods = table();
    pods.apply(elsewhere("a", "x"));
    pods.apply(elsewhere("b", "y"));
    pods.hold(held("10.0.0.1", "a", "there"));
    let rows = shown(pods.hold(held("10.0.0.1", "b", "there")));
    assert_eq!(rows, ["-shop/db-0/a", r#"shop/db-0/b {"app": "y"} [10.0.0.1]"#]);
    assert_eq!(pods.poll_left().len(), 1);
}

#[test]
fn pods_with_the_nodes_network_have_no_row() {
    let mut pods = table();
    let pod = Pod { host_network: true, ..elsewhere("a", "x").pod };
    assert_eq!(pods.apply(PodInput { pod, ..elsewhere("a", "x") }), []);
    assert!(pods.slots.is_empty());
}

#[test]
fn the_links_of_a_replaced_pod_keep_its_labels() {
    let mut pods = table();
    pods.apply(input("a", "x"));
    pods.attach(link("a", "tl1", "10.0.0.1"));
    let rows = shown(pods.apply(input("b", "y")));
    assert_eq!(rows, [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#, r#"shop/db-0/b {"app": "y"} []"#]);
    assert_eq!(shown(pods.attach(link("b", "tl2", "10.0.0.1"))), [r#"shop/db-0/b {"app": "y"} [10.0.0.1]"#]);
    assert_eq!(shown(pods.detach("tl1")), ["-shop/db-0/a"]);
    assert_eq!(
        shown(pods.delete(&ObjectKey::new("shop", "db-0"), &"b".into())),
        [r#"shop/db-0/b {"app": "y"} [10.0.0.1]"#]
    );
    assert_eq!(shown(pods.detach("tl2")), ["-shop/db-0/b"]);
    assert!(pods.slots.is_empty() && pods.links.is_empty() && pods.local.is_empty());
}

#[test]
fn a_link_waits_for_its_pod() {
    let mut pods = table();
    pods.apply(input("a", "x"));
    assert_eq!(shown(pods.attach(link("b", "tl1", "10.0.0.1"))), ["shop/db-0/b unknown [10.0.0.1]"]);
    assert!(!pods.has_pod("tl1"));
    pods.apply(input("b", "y"));
    assert!(pods.has_pod("tl1"));
    // A runtime that passes no UID.
    let mut pods = table();
    pods.attach(link("", "tl1", "10.0.0.1"));
    assert!(!pods.has_pod("tl1"));
    let rows = shown(pods.apply(input("b", "y")));
    assert_eq!(rows, ["-shop/db-0/", r#"shop/db-0/b {"app": "y"} [10.0.0.1]"#]);
    assert!(pods.has_pod("tl1"));
}

#[test]
fn a_static_pod_has_the_uid_of_its_kubelet_or_of_its_object() {
    let object = || PodInput { static_uid: Some("s".into()), ..input("a", "x") };
    let both = [r#"shop/db-0/a {"app": "x"} [10.0.0.1, 10.0.0.2]"#];
    let mut pods = table();
    pods.apply(object());
    pods.hold(held("10.0.0.2", "a", "here"));
    assert_eq!(shown(pods.attach(link("s", "tl1", "10.0.0.1"))), both);
    assert!(pods.has_pod("tl1"));
    let mut pods = table();
    pods.attach(link("s", "tl1", "10.0.0.1"));
    pods.hold(held("10.0.0.2", "s", "here"));
    assert_eq!(shown(pods.apply(object())).last().map(String::as_str), Some(both[0]));
    assert_eq!(shown(pods.hold(free("10.0.0.2"))), [r#"shop/db-0/a {"app": "x"} [10.0.0.1]"#]);
}

#[test]
fn labels_of_the_runtime_need_no_object() {
    let mut pods = table();
    let labels = Some(Labels::from_iter([("app", "web")]));
    let rows = pods.attach(PolicyLink { labels, ..link("", "tl1", "10.0.0.1") });
    assert_eq!(shown(rows), [r#"shop/db-0/ {"app": "web"} [10.0.0.1]"#]);
    assert_eq!(shown(pods.detach("tl1")), ["-shop/db-0/"]);
}

#[test]
fn a_namespace_with_too_many_labels_is_bounded() {
    let mut pods = table();
    let large = |name: &str| {
        let mut input = elsewhere(name, "x");
        let labels = (0..40).map(|key| (format!("{key:63}"), format!("{:63}", "")));
        (input.pod.key, input.pod.labels) = (ObjectKey::new("shop", name), labels.collect());
        input
    };
    let cost = cost(&large("a").pod.labels);
    let within = MOST_OF_NAMESPACE / cost;
    for number in 0..within + 3 {
        pods.apply(large(&number.to_string()));
    }
    assert_eq!(pods.over_bound(), 3);
    // The pods of another Namespace are not affected.
    let mut other = large("other");
    other.pod.key = ObjectKey::new("green", "other");
    pods.apply(other);
    assert_eq!(pods.over_bound(), 3);
    pods.delete(&ObjectKey::new("shop", "0"), &"0".into());
    pods.apply(large(&within.to_string()));
    assert_eq!(pods.over_bound(), 2, "there is room for another pod");
    for (key, uid) in pods.not_listed(&[]) {
        pods.delete(&key, &uid);
    }
    assert!(pods.costs.is_empty() && pods.over_bound.is_empty(), "{:?}", pods.costs);
}

#[test]
fn a_list_without_a_watch_changes_no_newer_row() {
    let mut pods = table();
    let at = |version, label| PodInput { version, ..elsewhere("a", label) };
    assert_eq!(pods.merge(at(5, "x")), [], "its deletion may have arrived already");
    pods.apply(at(5, "x"));
    pods.hold(held("10.0.0.1", "a", "there"));
    assert_eq!(shown(pods.merge(at(4, "old"))), [""; 0]);
    assert_eq!(shown(pods.merge(at(5, "y"))), [r#"shop/db-0/a {"app": "y"} [10.0.0.1]"#]);
    pods.delete(&ObjectKey::new("shop", "db-0"), &"a".into());
    assert_eq!(shown(pods.merge(at(6, "z"))), [""; 0]);
}

#[test]
fn a_new_key_makes_the_labels_of_deleted_pods_unknown() {
    let mut pods = table();
    pods.apply(elsewhere("a", "x"));
    pods.hold(held("10.0.0.1", "a", "there"));
    assert_eq!(pods.forget_labels_of_deleted(), [], "it exists: its labels are listed");
    pods.delete(&ObjectKey::new("shop", "db-0"), &"a".into());
    assert_eq!(shown(pods.forget_labels_of_deleted()), ["shop/db-0/a unknown [10.0.0.1]"]);
    assert_eq!(shown(pods.hold(free("10.0.0.1"))), ["-shop/db-0/a"]);
    assert!(pods.costs.is_empty());
}

/// Labels that only policies of other Namespaces name.
#[test]
fn policies_of_others_leave_a_large_namespace_its_labels() {
    let mut pods = table();
    let large = |number: usize| {
        let mut input = elsewhere(&number.to_string(), "x");
        input.pod.key = ObjectKey::new("shop", &number.to_string());
        input.others = (0..40).map(|key| (format!("{key:63}"), format!("{number:63}"))).collect();
        input
    };
    let within = MOST_OF_NAMESPACE / cost(&large(0).others);
    for number in 0..within + 3 {
        for row in pods.apply(large(number)) {
            assert_eq!(
                row,
                Row::Remove(row_key(&ObjectKey::new("shop", &number.to_string()), &number.to_string()))
            );
        }
    }
    let labels = |pods: &PodTable, number: usize| {
        let key = row_key(&ObjectKey::new("shop", &number.to_string()), &number.to_string());
        let labels = &pods.slots[&key].pod.labels;
        let of_others = labels.get(&format!("{:63}", 0)).unwrap().to_owned();
        (labels.get("app").unwrap().to_owned(), of_others)
    };
    assert_eq!(labels(&pods, 0), ("x".to_owned(), format!("{:63}", 0)));
    assert_eq!(labels(&pods, within + 2), ("x".to_owned(), Labels::UNKNOWN_VALUE.to_owned()));
    assert_eq!((pods.over_bound(), pods.has_surplus()), (3, true));
    for (key, uid) in pods.not_listed(&[]) {
        pods.delete(&key, &uid);
    }
    assert!(pods.costs.is_empty() && pods.over_bound.is_empty(), "{:?}", pods.costs);
}
