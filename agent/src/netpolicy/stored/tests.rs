//! The budget of stored policies: who pays, and what is left.

use super::*;

fn policy(namespace: &str, name: usize) -> PolicyRef {
    PolicyRef::Network(ObjectKey::new(namespace, &format!("p{name}")))
}

/// A policy with these entries, of which the stub has one, for ingress.
fn entries(entries: usize) -> PolicySize {
    size(PolicyWeight { entries, octets: 0 }, PolicyWeight { entries: 1, octets: 0 })
}

fn size(whole: PolicyWeight, stub: PolicyWeight) -> PolicySize {
    PolicySize { whole, stub, isolates: [true, false] }
}

fn names(surplus: &BTreeMap<PolicyRef, Surplus>) -> Vec<String> {
    surplus.keys().map(ToString::to_string).collect()
}

fn listed(stored: &mut StoredPolicies, rows: &[(PolicyRef, usize)]) -> Vec<String> {
    let rows = rows.iter().map(|(policy, weight)| (policy.clone(), entries(*weight)));
    names(&stored.set_list(false, rows))
}

fn kept(surplus: &BTreeMap<PolicyRef, Surplus>) -> Vec<Kept> {
    surplus.values().map(|surplus| surplus.kept).collect()
}

/// The markers that changed: how many, of which directions.
fn markers(stored: &mut StoredPolicies) -> Vec<(String, Option<BTreeSet<Direction>>)> {
    let changed = stored.poll_markers().into_iter();
    let types = |marker: Marker| marker.0.policy_types.unwrap();
    changed.map(|(policy, marker)| (policy.to_string(), marker.map(types))).collect()
}

#[test]
fn the_largest_of_a_list_become_stubs() {
    let mut stored = StoredPolicies::default();
    let rows =
        [(policy("a", 1), 20_000), (policy("a", 2), 19_000), (policy("a", 3), 15_000), (policy("b", 4), 5)];
    assert_eq!(listed(&mut stored, &rows), ["NetworkPolicy a/p1"]);
    assert_eq!(stored.total, Charge { policies: 4, entries: 34_006, octets: 0 });
    assert_eq!(listed(&mut stored, &rows[1..]), [""; 0]);
    assert_eq!(stored.total, Charge { policies: 3, entries: 34_005, octets: 0 });
}

#[test]
fn a_change_above_the_bound_leaves_the_others() {
    let mut stored = StoredPolicies::default();
    for name in 1..=2 {
        assert!(stored.set(&policy("a", name), entries(19_999)).is_empty());
    }
    let surplus = stored.set(&policy("a", 3), entries(3));
    assert_eq!((names(&surplus), kept(&surplus)), (vec!["NetworkPolicy a/p3".to_owned()], vec![Kept::Stub]));
    let text = surplus.values().next().unwrap().to_string();
    assert!(text.contains(": 40,001 entries, at most 40,000: use fewer policies"), "{text}");
    assert!(stored.set(&policy("b", 3), entries(20_000)).is_empty(), "another Namespace");
    stored.remove(&policy("a", 1));
    assert!(stored.set(&policy("a", 3), entries(3)).is_empty());
    assert_eq!(markers(&mut stored), []);
}

/// A stub costs the selector of its pods. Those of a Namespace have the bound of its policies.
#[test]
fn stubs_above_the_bound_are_one_marker() {
    let mut stored = StoredPolicies::default();
    let large = |octets| PolicyWeight { entries: 1000, octets };
    let half = size(large(1 << 20), large(64 << 10));
    for name in 0..1000 {
        stored.set(&policy("a", name), half);
    }
    let account = &stored.accounts[&Tenant::from(&policy("a", 0))];
    // Two policies as written, and no room for a stub.
    assert_eq!((account.rows.len(), account.surplus.len(), stored.not_kept()), (2, 998, 998));
    assert!(account.sum.any_excess(TENANT).is_none());
    let [(name, Some((marker, fault)))] = &stored.poll_markers()[..] else { panic!() };
    assert_eq!(name.to_string(), "NetworkPolicy a/(above the budget)");
    assert_eq!((&marker.pod_selector, marker.ingress.len()), (&LabelSelector::default(), 0));
    assert_eq!(
        fault,
        "isolates all pods of the Namespace, instead of 998 policies: over the budget of its Namespace, \
         or of all ClusterNetworkPolicies: 3,145,728 octets of text, at most 2,097,152: use fewer \
         policies, peers or ports, and apply this policy again"
    );
    // The marker goes with the last of them.
    for name in 2..1000 {
        assert_eq!(stored.accounts[&Tenant::from(&policy("a", 0))].surplus.len(), 1000 - name);
        stored.remove(&policy("a", name));
    }
    assert_eq!(markers(&mut stored), [("NetworkPolicy a/(above the budget)".to_owned(), None)]);
    // A list: stubs first, then the marker.
    let all = (0..1000).map(|name| (policy("a", name), half));
    let surplus = stored.set_list(false, all);
    let stubs = surplus.values().filter(|surplus| surplus.kept == Kept::Stub).count();
    assert_eq!((surplus.len(), stubs, stored.not_kept()), (1000, 32, 968));
    assert!(stored.total.any_excess(TENANT).is_none());
}

#[test]
fn the_number_of_policies_of_a_namespace_is_bounded() {
    let mut stored = StoredPolicies::default();
    let rows: Vec<_> = (0..5000).map(|name| (policy("a", name), 1)).collect();
    assert_eq!(listed(&mut stored, &rows).len(), 3000);
    assert_eq!((stored.total.policies, stored.not_kept()), (2000, 3000));
    let surplus = stored.set(&policy("a", 6000), entries(1));
    assert_eq!(kept(&surplus), [Kept::Marker]);
    let text = surplus.values().next().unwrap().to_string();
    assert!(text.contains(": 2,001 policies, at most 2,000: "), "{text}");
    let ingress = Some([Direction::Ingress].into());
    assert_eq!(markers(&mut stored), [("NetworkPolicy a/(above the budget)".to_owned(), ingress)]);
    assert!(stored.set(&policy("b", 1), entries(1)).is_empty(), "another Namespace");
    assert_eq!(listed(&mut stored, &rows[..2000]), [""; 0]);
    assert_eq!(stored.not_kept(), 0);
}

#[test]
fn the_largest_namespace_pays_for_the_node() {
    let mut stored = StoredPolicies::default();
    // 19,000 entries in each of five Namespaces, and a small one.
    let rows: Vec<_> = (0..5)
        .flat_map(|space| (0..10).map(move |name| (policy(&format!("large-{space}"), name), 1900)))
        .collect();
    assert_eq!(listed(&mut stored, &rows), [""; 0]);
    assert!(stored.set(&policy("small", 1), entries(4500)).is_empty());
    let surplus = stored.set(&policy("small", 2), entries(4500));
    assert_eq!(surplus.len(), 3, "{surplus:?}");
    assert!(names(&surplus).iter().all(|name| name.starts_with("NetworkPolicy large-")));
    assert!(surplus.values().all(|surplus| surplus.of_node && surplus.kept == Kept::Stub));
}

/// The Namespace with the most text pays for text, however many entries others have.
#[test]
fn a_figure_of_the_node_has_its_own_order() {
    let mut stored = StoredPolicies::default();
    let text = PolicyWeight { entries: 1, octets: 1 << 20 };
    let victims = (0..10).map(|name| (policy("victim", name), entries(3000)));
    let large =
        (0..9).flat_map(|space| (0..2).map(move |name| (policy(&format!("large-{space}"), name), text)));
    let large = large.map(|(policy, text)| (policy, size(text, PolicyWeight { entries: 1, octets: 0 })));
    let surplus = stored.set_list(false, victims.chain(large));
    assert_eq!(surplus.len(), 2);
    assert!(names(&surplus).iter().all(|name| name.starts_with("NetworkPolicy large-")), "{surplus:?}");
}

#[test]
fn cluster_policies_never_pay_for_those_of_namespaces() {
    let mut stored = StoredPolicies::default();
    let cluster = |name: &str| PolicyRef::Cluster(name.into());
    for name in ["c", "d"] {
        assert!(stored.set(&cluster(name), entries(20_000)).is_empty());
    }
    let rows: Vec<_> = (0..20).map(|space| (policy(&format!("n{space}"), 0), 6_000)).collect();
    let surplus = listed(&mut stored, &rows);
    assert_eq!(surplus.len(), 4);
    assert!(surplus.iter().all(|name| name.starts_with("NetworkPolicy ")), "{surplus:?}");
    // Above the bound of all ClusterNetworkPolicies the subject stays, whatever it costs.
    let size = size(PolicyWeight { entries: 2, octets: 1 }, PolicyWeight { entries: 2, octets: 1 });
    let surplus = stored.set(&cluster("e"), size);
    assert_eq!(
        (names(&surplus), kept(&surplus)),
        (vec!["ClusterNetworkPolicy e".to_owned()], vec![Kept::Stub])
    );
}

#[test]
fn the_marker_of_the_last_run_stays_until_the_list() {
    let mut stored = StoredPolicies::default();
    let marker = PolicyRef::Network(ObjectKey::new("a", MARKER));
    assert!(stored.set_list(false, [(marker.clone(), entries(1))].into_iter()).is_empty());
    let ingress = Some([Direction::Ingress].into());
    assert_eq!(markers(&mut stored), [(marker.to_string(), ingress)]);
    assert_eq!(listed(&mut stored, &[]), [""; 0]);
    assert_eq!(markers(&mut stored), [(marker.to_string(), None)]);
}
