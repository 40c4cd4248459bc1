//! The budget of stored policies: who pays, and what is left.

use super::*;
use crate::netpolicy::input::ObjectKey;

fn policy(namespace: &str, name: usize) -> PolicyRef {
    PolicyRef::Network(ObjectKey::new(namespace, &format!("p{name}")))
}

fn entries(entries: usize) -> PolicyWeight {
    PolicyWeight { entries, octets: 0 }
}

fn names(surplus: &BTreeMap<PolicyRef, Surplus>) -> Vec<String> {
    surplus.keys().map(ToString::to_string).collect()
}

fn listed(stored: &mut StoredPolicies, rows: &[(PolicyRef, usize)]) -> Vec<String> {
    let rows = rows.iter().map(|(policy, weight)| (policy.clone(), entries(*weight)));
    names(&stored.set_list(|policy| matches!(policy, PolicyRef::Network(_)), rows))
}

#[test]
fn the_largest_of_a_list_become_stubs() {
    let mut stored = StoredPolicies::default();
    let rows =
        [(policy("a", 1), 20_000), (policy("a", 2), 19_000), (policy("a", 3), 15_000), (policy("b", 4), 5)];
    assert_eq!(listed(&mut stored, &rows), ["NetworkPolicy a/p1"]);
    assert_eq!(stored.total, entries(34_005));
    assert_eq!(listed(&mut stored, &rows[1..]), [""; 0]);
    assert_eq!(stored.total, entries(34_005));
}

#[test]
fn a_change_above_the_bound_leaves_the_others() {
    let mut stored = StoredPolicies::default();
    for name in 1..=2 {
        assert!(stored.set(&policy("a", name), entries(20_000)).is_empty());
    }
    let surplus = stored.set(&policy("a", 3), entries(1));
    assert_eq!(names(&surplus), ["NetworkPolicy a/p3"]);
    let text = surplus.values().next().unwrap().to_string();
    assert!(text.contains(": 40,001 entries, at most 40,000: use fewer policies"), "{text}");
    assert!(stored.set(&policy("b", 3), entries(20_000)).is_empty(), "another Namespace");
    stored.remove(&policy("a", 1));
    assert!(stored.set(&policy("a", 3), entries(1)).is_empty());
    let cluster = |name: &str| PolicyRef::Cluster(name.into());
    assert!(stored.set(&cluster("c"), PolicyWeight { entries: 1, octets: 2 << 20 }).is_empty());
    assert_eq!(stored.set(&cluster("d"), PolicyWeight { entries: 1, octets: 1 }).len(), 1);
}

#[test]
fn the_largest_namespace_pays_for_the_node() {
    let mut stored = StoredPolicies::default();
    // 38,000 entries in each of five Namespaces, and a small one.
    let rows: Vec<_> = (0..5)
        .flat_map(|space| (0..10).map(move |name| (policy(&format!("large-{space}"), name), 3800)))
        .collect();
    assert_eq!(listed(&mut stored, &rows), [""; 0]);
    assert!(stored.set(&policy("small", 1), entries(9000)).is_empty());
    let surplus = stored.set(&policy("small", 2), entries(9000));
    assert_eq!(surplus.len(), 3, "{surplus:?}");
    assert!(names(&surplus).iter().all(|name| name.starts_with("NetworkPolicy large-")));
    assert!(surplus.values().all(|surplus| surplus.of_node));
}
