//! The engine: when rules are complete, what the kernel gets, and that history does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;
use trunkline_api::resources::LabelSelector;
use trunkline_api::service::Protocol;
use trunkline_datapath::plan::policy::{Element, PolicyChange, PolicySetChange, PolicyTable, Verdict};

use super::engine::{Engine, Waits};
use super::feed::{AddressInput, Holder, PodIdentity, PodInput, PolicyInput, PolicyObject};
use super::input::{
    Action, Change, ClusterPeer, ClusterPods, ClusterPolicy, ClusterRule, ClusterSubject, Direction,
    Namespace, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, Pod, PortSelector, Tier,
};
use super::kernel::PolicyRef;
use super::keys::{LabelKeys, Labelled};
use super::labels::Labels;
use super::pods::PolicyLink;
use super::world_tests::{self, NAMESPACES, NODES, for_each_seed};

const HERE: &str = NODES[0];

fn object<P>(policy: P) -> PolicyObject<P> {
    PolicyObject { policy, faults: Vec::new(), above_bound: false, generation: 1, uid: "u".into() }
}

fn input(pod: Pod) -> PodInput {
    let (others, keys) = (Labels::default(), u64::MAX);
    PodInput { uid: pod.key.name.clone(), pod, others, keys, static_uid: None, version: 0, ended: false }
}

fn identity(pod: &Pod) -> PodIdentity {
    (pod.key.clone(), pod.key.name.clone())
}

/// The IPInstances of a pod.
fn addresses(pod: &Pod) -> Vec<AddressInput> {
    let holder = Holder { pod: pod.key.name.clone(), uid: pod.key.name.clone(), node: pod.node.clone() };
    let all = pod.addresses.iter().filter(|_| !pod.host_network);
    all.map(|address| AddressInput {
        namespace: pod.key.namespace.clone(),
        address: *address,
        holder: Some(holder.clone()),
    })
    .collect()
}

/// The Namespaces without labels.
fn known_namespaces() -> Vec<Namespace> {
    let known = |name: &&str| Namespace { name: (*name).into(), labels: Labels::default(), audit: false };
    NAMESPACES.iter().map(known).collect()
}

fn link(pod: &Pod, ifindex: u32) -> PolicyLink {
    PolicyLink {
        pod: pod.key.clone(),
        uid: pod.key.name.clone(),
        host_ifname: format!("tl{ifindex}"),
        ifindex,
        addresses: pod.addresses.clone(),
        enforceable: true,
        labels: None,
    }
}

/// Applies a change as the kernel does.
fn apply(table: &mut PolicyTable, change: PolicyChange) {
    for (id, change) in change.sets {
        match change {
            PolicySetChange::Replaced(set) => drop(table.sets.insert(id, set)),
            PolicySetChange::Changed { added, removed } => {
                let set = table.sets.get_mut(&id).expect("a changed set exists");
                assert!(removed.iter().all(|element| set.elements.remove(element)), "{removed:?}");
                assert!(added.into_iter().all(|element| set.elements.insert(element)));
            }
            PolicySetChange::Removed => assert!(table.sets.remove(&id).is_some()),
        }
    }
    for (id, chain) in change.chains {
        match chain {
            Some(chain) => drop(table.chains.insert(id, chain)),
            None => assert!(table.chains.remove(&id).is_some()),
        }
    }
    for (ifindex, link) in change.links {
        match link {
            Some(link) => drop(table.links.insert(ifindex, link)),
            None => assert!(table.links.remove(&ifindex).is_some()),
        }
    }
    for (ifindex, addresses) in change.addresses {
        match addresses {
            Some(addresses) => drop(table.addresses.insert(ifindex, addresses)),
            None => assert!(table.addresses.remove(&ifindex).is_some()),
        }
    }
}

fn lists(engine: &mut Engine, policies: Vec<NetworkPolicy>, pods: Vec<Pod>) {
    let policies = policies.into_iter().map(object).collect();
    engine.handle_input(PolicyInput::Network(Change::Listed(policies)));
    engine.handle_input(PolicyInput::Cluster(Change::Listed(Vec::new())));
    engine.handle_input(PolicyInput::Namespaces(Change::Listed(known_namespaces())));
    let held = pods.iter().flat_map(addresses).collect();
    engine.handle_input(PolicyInput::Pods(Change::Listed(pods.into_iter().map(input).collect())));
    engine.handle_input(PolicyInput::Addresses(Change::Listed(held)));
}

fn deny_all(namespace: &str) -> NetworkPolicy {
    NetworkPolicy {
        key: ObjectKey::new(namespace, "deny-all"),
        pod_selector: LabelSelector::default(),
        policy_types: Some(Direction::ALL.into()),
        ingress: Vec::new(),
        egress: Vec::new(),
    }
}

fn web() -> Pod {
    Pod {
        key: ObjectKey::new("red", "web"),
        node: HERE.into(),
        host_network: false,
        labels: Labels::default(),
        addresses: vec![IpAddr::from([10, 0, 0, 1])],
        ports: Vec::new(),
    }
}

#[test]
fn a_pod_waits_for_the_lists_and_for_its_object() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    assert_eq!(engine.waits("tl7"), Some(Waits::Lists));
    // Without a policy, no pod object is needed.
    engine.handle_input(PolicyInput::Network(Change::Listed(Vec::new())));
    assert!(!engine.is_known());
    engine.handle_input(PolicyInput::Cluster(Change::Listed(Vec::new())));
    assert_eq!((engine.waits("tl7"), engine.wants_pods()), (None, false));
    // With the first policy, Namespaces and pods are needed.
    engine.handle_input(PolicyInput::Network(Change::Applied(object(deny_all("red")))));
    assert_eq!((engine.waits("tl7"), engine.wants_pods()), (Some(Waits::Lists), true));
    engine.handle_input(PolicyInput::Namespaces(Change::Listed(Vec::new())));
    engine.handle_input(PolicyInput::Pods(Change::Listed(Vec::new())));
    assert_eq!(engine.waits("tl7"), Some(Waits::Lists));
    engine.handle_input(PolicyInput::Addresses(Change::Listed(Vec::new())));
    assert_eq!(engine.waits("tl7"), Some(Waits::Pod));
    engine.handle_input(PolicyInput::Pods(Change::Applied(input(web()))));
    // Its Namespace can have the labels that a policy selects.
    assert_eq!(engine.waits("tl7"), Some(Waits::Namespace));
    let [red, ..] = &known_namespaces()[..] else { panic!() };
    engine.handle_input(PolicyInput::Namespaces(Change::Applied(red.clone())));
    assert_eq!(engine.waits("tl7"), None);
    let table = engine.table();
    assert_eq!(table.links.keys().collect::<Vec<_>>(), [&7]);
    assert_eq!(table.links[&7].siblings, [7].into());
}

#[test]
fn a_pod_without_policies_needs_no_rules() {
    let mut engine = Engine::new(HERE, None);
    let other =
        Pod { key: ObjectKey::new("green", "web"), addresses: vec![IpAddr::from([10, 0, 0, 2])], ..web() };
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("red")], vec![web(), other.clone()]);
    engine.attach(link(&other, 8));
    // Before the kernel has anything.
    assert_eq!((engine.is_free("tl7"), engine.is_free("tl8"), engine.is_free("tl9")), (false, true, false));
    engine.handle_input(PolicyInput::Network(Change::Applied(object(deny_all("green")))));
    assert!(!engine.is_free("tl8"));
}

#[test]
fn policies_above_the_budget_of_a_namespace_are_stubs() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    let large = |name: &str| {
        let port = |port| NetworkPort { protocol: Protocol::Tcp, port: PortSelector::Range(port, port) };
        let rule = NetworkRule { peers: Vec::new(), ports: (1..15_000).map(port).collect() };
        NetworkPolicy { key: ObjectKey::new("red", name), ingress: vec![rule], ..deny_all("red") }
    };
    lists(&mut engine, vec![large("a"), large("b"), large("c"), deny_all("green")], vec![web()]);
    let faults = |engine: &Engine| -> Vec<String> {
        let all = engine.policies().iter().filter(|(_, facts)| !facts.faults.is_empty());
        all.map(|(policy, facts)| format!("{policy}: {}", facts.faults.join("; "))).collect()
    };
    let text = "NetworkPolicy red/c: over the budget of its Namespace, or of all ClusterNetworkPolicies: \
                45,000 entries, at most 40,000: use fewer policies, peers or ports, and apply this policy again";
    assert_eq!(faults(&engine), [text]);
    assert_eq!((engine.faulty(), engine.failed_closed()), (1, 1));
    engine.handle_input(PolicyInput::Network(Change::Deleted(ObjectKey::new("red", "a"))));
    engine.handle_input(PolicyInput::Network(Change::Applied(object(large("c")))));
    assert_eq!(faults(&engine), [""; 0]);
    assert_eq!((engine.table().links.len(), engine.failed_closed()), (1, 0));
}

/// What the kernel gets at once follows from the cost.
#[test]
fn a_change_costs_what_it_adds_and_removes_and_a_stub_little() {
    let mut engine = Engine::new(HERE, None);
    lists(&mut engine, Vec::new(), Vec::new());
    let of_rules = |name: &str, rules| {
        let ingress = vec![NetworkRule::default(); rules];
        let key = ObjectKey::new("red", name);
        let policy = NetworkPolicy { key, ingress, ..deny_all("red") };
        PolicyInput::Network(Change::Applied(object(policy)))
    };
    for (input, costs) in [
        (of_rules("a", 15_000), 15_000..15_100),
        (of_rules("b", 15_000), 15_000..15_100),
        // Above the bound of the Namespace.
        (of_rules("c", 15_000), 0..100),
        (of_rules("a", 1), 15_000..15_100),
        (PolicyInput::Network(Change::Deleted(ObjectKey::new("red", "b"))), 15_000..15_100),
        (PolicyInput::Network(Change::Deleted(ObjectKey::new("red", "b"))), 0..100),
    ] {
        let cost = engine.handle_costly(input);
        assert!(costs.contains(&cost), "{cost}: {costs:?}");
    }
    let list = PolicyInput::Network(Change::Listed(Vec::new()));
    assert_eq!(engine.handle_costly(list), usize::MAX, "a list is handled alone");
}

/// So many policies of other pods of the Namespace `red`, without rules.
fn policies_of_others(number: usize) -> Vec<NetworkPolicy> {
    let policy = |index: usize| NetworkPolicy {
        key: ObjectKey::new("red", &format!("p{index:04}")),
        pod_selector: with("app", "other"),
        policy_types: Some([Direction::Egress].into()),
        ..deny_all("red")
    };
    (0..number).map(policy).collect()
}

/// The agent keeps one policy instead of those above the bound. It isolates the whole Namespace, and
/// no other.
#[test]
fn policies_that_do_not_fit_are_one_marker() {
    let mut engine = Engine::new(HERE, None);
    let other =
        Pod { key: ObjectKey::new("green", "web"), addresses: vec![IpAddr::from([10, 0, 0, 2])], ..web() };
    engine.attach(link(&web(), 7));
    engine.attach(link(&other, 8));
    lists(&mut engine, policies_of_others(2000), vec![web(), other.clone()]);
    assert_eq!((engine.policies().len(), engine.faulty(), engine.table().links.len()), (2000, 0, 0));
    lists(&mut engine, policies_of_others(5000), vec![web(), other.clone()]);
    assert_eq!((engine.policies().len(), engine.compiler().network_policies().count()), (2001, 2001));
    assert_eq!((engine.faulty(), engine.failed_closed()), (3001, 3001));
    let isolated = |engine: &mut Engine| -> Vec<(u32, bool, bool)> {
        let links = engine.table().links.into_iter();
        links.map(|(ifindex, link)| (ifindex, link.ingress.is_some(), link.egress.is_some())).collect()
    };
    assert_eq!(isolated(&mut engine), [(7, false, true)]);
    let faults: Vec<&String> = engine.policies().values().flat_map(|facts| &facts.faults).collect();
    assert!(
        faults[0].starts_with("isolates all pods of the Namespace, instead of 3000 policies: "),
        "{faults:?}"
    );
    // One more, for both directions.
    let name = ObjectKey::new("red", "more");
    let more = NetworkPolicy { key: name.clone(), ..deny_all("red") };
    engine.handle_input(PolicyInput::Network(Change::Applied(object(more))));
    assert_eq!((isolated(&mut engine), engine.faulty()), (vec![(7, true, true)], 3002));
    engine.handle_input(PolicyInput::Network(Change::Deleted(name)));
    assert_eq!((isolated(&mut engine), engine.faulty()), (vec![(7, false, true)], 3001));

    // The next run keeps the marker until it has the list.
    let world = engine.world();
    let mut next = Engine::new(HERE, None);
    next.attach(link(&web(), 7));
    next.handle_cached(vec![
        PolicyInput::Network(Change::Listed(world.network)),
        PolicyInput::Addresses(Change::Listed(world.addresses)),
        PolicyInput::Pods(Change::Listed(world.pods)),
    ]);
    assert_eq!(isolated(&mut next), [(7, false, true)]);
    lists(&mut next, policies_of_others(2000), vec![web(), other]);
    assert_eq!((isolated(&mut next), next.policies().len()), (Vec::new(), 2000));
}

/// A list without pods, and a failing watch, must not lead to rules of an incomplete state.
#[test]
fn the_last_state_does_not_count_after_complete_lists() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    let cached = || {
        vec![
            PolicyInput::Network(Change::Listed(vec![object(deny_all("red"))])),
            PolicyInput::Pods(Change::Listed(vec![input(web())])),
        ]
    };
    engine.handle_cached(cached());
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    engine.handle_input(PolicyInput::Network(Change::Deleted(deny_all("red").key)));
    engine.handle_input(PolicyInput::Stopped);
    engine.handle_input(PolicyInput::Network(Change::Applied(object(deny_all("red")))));
    engine.handle_input(PolicyInput::Failing { what: "pods", error: "refused".to_owned() });
    assert_eq!((engine.is_known(), engine.waits("tl7")), (false, Some(Waits::Lists)));

    // The rows of the last run are dropped before any list of pods.
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    engine.handle_cached(cached());
    engine.handle_input(PolicyInput::Network(Change::Listed(Vec::new())));
    engine.handle_input(PolicyInput::Cluster(Change::Listed(Vec::new())));
    engine.handle_input(PolicyInput::Network(Change::Applied(object(deny_all("red")))));
    engine.handle_input(PolicyInput::Failing { what: "pods", error: "refused".to_owned() });
    assert!(!engine.is_known());
}

#[test]
fn a_policy_that_replaces_the_only_one_is_in_force_at_once() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    let mut table = engine.table();
    // The task handles both changes together: no watch notices the moment without a policy.
    let other = NetworkPolicy {
        key: ObjectKey::new("red", "deny-egress"),
        policy_types: Some([Direction::Egress].into()),
        ..deny_all("red")
    };
    engine.handle_input(PolicyInput::Network(Change::Deleted(deny_all("red").key)));
    engine.handle_input(PolicyInput::Network(Change::Applied(object(other))));
    assert_eq!((engine.is_known(), engine.waits("tl7")), (true, None));
    apply(&mut table, engine.poll_change().expect("another policy"));
    assert_eq!((table.links[&7].ingress.is_some(), table.links[&7].egress.is_some()), (false, true));
    assert_eq!(engine.table(), table);
}

#[test]
fn namespaces_and_pods_are_unknown_after_their_watches() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    engine.table();
    engine.handle_input(PolicyInput::Network(Change::Deleted(deny_all("red").key)));
    engine.handle_input(PolicyInput::Stopped);
    assert_eq!((engine.is_known(), engine.waits("tl7")), (true, None));
    assert!(engine.table().links.is_empty());
    engine.handle_input(PolicyInput::Network(Change::Applied(object(deny_all("red")))));
    assert_eq!(engine.waits("tl7"), Some(Waits::Lists));
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    assert_eq!((engine.waits("tl7"), engine.table().links.len()), (None, 1));
}

#[test]
fn the_last_state_counts_while_the_api_server_is_away() {
    let mut engine = Engine::new(HERE, None);
    let object = object(deny_all("red"));
    engine.handle_cached(vec![
        PolicyInput::Network(Change::Listed(vec![object])),
        PolicyInput::Namespaces(Change::Listed(known_namespaces())),
        PolicyInput::Pods(Change::Listed(vec![input(web())])),
    ]);
    engine.attach(link(&web(), 7));
    assert_eq!(engine.waits("tl7"), Some(Waits::Lists), "the API server may answer with other policies");
    engine.handle_input(PolicyInput::Failing { what: "networkpolicies", error: "refused".to_owned() });
    assert_eq!((engine.waits("tl7"), engine.is_current()), (None, false));
    assert_eq!(engine.table().links.len(), 1);
}

#[test]
fn a_last_state_without_the_pod_of_a_link_does_not_count() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    engine.handle_cached(vec![
        PolicyInput::Network(Change::Listed(vec![object(deny_all("red"))])),
        PolicyInput::Pods(Change::Listed(Vec::new())),
    ]);
    engine.handle_input(PolicyInput::Failing { what: "networkpolicies", error: "refused".to_owned() });
    assert!(!engine.is_known(), "a table without the pod would remove its rules from the kernel");
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    assert_eq!((engine.is_known(), engine.table().links.len()), (true, 1));
}

#[test]
fn the_rules_of_a_link_stay_until_it_is_detached() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    assert_eq!(engine.table().links.len(), 1);
    engine.handle_input(PolicyInput::Pods(Change::Deleted(identity(&web()))));
    assert_eq!(engine.poll_change(), None, "the processes of a deleted pod may still run");
    engine.handle_input(PolicyInput::Addresses(Change::Listed(Vec::new())));
    assert_eq!(engine.poll_change(), None);
    engine.detach("tl7");
    let change = engine.poll_change().unwrap();
    assert_eq!(change.links, [(7, None)].into());
    assert!(change.chains.values().all(Option::is_none) && !change.chains.is_empty());
}

/// A pod that was deleted by force can still run. The next run of the agent knows it by its link and
/// by the file only.
#[test]
fn the_rules_of_a_deleted_pod_outlive_a_restart() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    engine.handle_input(PolicyInput::Pods(Change::Deleted(identity(&web()))));
    let world = engine.world();

    let mut next = Engine::new(HERE, None);
    next.attach(link(&web(), 7));
    next.handle_cached(vec![
        PolicyInput::Network(Change::Listed(world.network)),
        PolicyInput::Addresses(Change::Listed(world.addresses)),
        PolicyInput::Pods(Change::Listed(world.pods)),
    ]);
    lists(&mut next, vec![deny_all("red")], Vec::new());
    assert_eq!(next.table().links.len(), 1);
    next.detach("tl7");
    assert_eq!(next.poll_change().unwrap().links, [(7, None)].into());
}

#[test]
fn a_policy_for_an_ipvlan_slave_is_reported() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(PolicyLink { enforceable: false, ..link(&web(), 7) });
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    assert!(engine.table().links.is_empty());
    let names: Vec<String> = engine.unenforced("tl7").iter().map(ToString::to_string).collect();
    assert_eq!((names, engine.unenforced_links()), (vec!["NetworkPolicy red/deny-all".to_owned()], 1));
}

/// A policy that denies the Namespace `green` to the pods of the Namespace `red`.
fn no_green(action: Action) -> ClusterPolicy {
    let of = |name: &str| ClusterPods {
        namespaces: LabelSelector {
            match_labels: [("name".to_owned(), name.to_owned())].into(),
            ..LabelSelector::default()
        },
        pods: LabelSelector {
            match_labels: [("app".to_owned(), "web".to_owned())].into(),
            ..LabelSelector::default()
        },
    };
    let subject = ClusterPods { pods: LabelSelector::default(), ..of("red") };
    ClusterPolicy {
        name: "no-green".into(),
        tier: Tier::Admin,
        priority: 1,
        subject: ClusterSubject::Pods(subject),
        ingress: vec![ClusterRule { action, peers: vec![ClusterPeer::Pods(of("green"))], ports: Vec::new() }],
        egress: Vec::new(),
    }
}

fn named_namespace(name: &str) -> Namespace {
    Namespace { name: name.into(), labels: Labels::from_iter([("name", name)]), audit: false }
}

/// The addresses in the kernel's sets.
fn elements(engine: &mut Engine) -> Vec<String> {
    let table = engine.table();
    let elements = table.sets.values().flat_map(|set| &set.elements);
    let address = |element: &Element| match element {
        Element::Address(address) => address.to_string(),
        other => format!("{other:?}"),
    };
    elements.map(address).collect()
}

/// Who denies a pod denies each address that it has: of each interface, before its kubelet reports
/// one, after a forced deletion, and while its labels or its Namespace are not known.
#[test]
fn a_denied_pod_is_denied_by_every_address_that_it_has() {
    let there = Pod {
        key: ObjectKey::new("green", "web"),
        node: NODES[1].into(),
        labels: Labels::from_iter([("app", "web")]),
        addresses: vec![IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 9, 0, 2])],
        ..web()
    };
    for (action, unknown) in [(Action::Deny, vec!["10.0.0.2", "10.9.0.2"]), (Action::Accept, vec![])] {
        let start = |namespaces: Vec<Namespace>, pods: Vec<Pod>| {
            let mut engine = Engine::new(HERE, None);
            engine.attach(link(&web(), 7));
            lists(&mut engine, Vec::new(), pods);
            engine.handle_input(PolicyInput::Namespaces(Change::Listed(namespaces)));
            engine.handle_input(PolicyInput::Cluster(Change::Listed(vec![object(no_green(action))])));
            engine
        };
        let both = || vec![named_namespace("red"), named_namespace("green")];
        let mut engine = start(both(), vec![web(), there.clone()]);
        assert_eq!(elements(&mut engine), ["10.0.0.2", "10.9.0.2"], "{action:?}");
        engine.handle_input(PolicyInput::Pods(Change::Deleted(identity(&there))));
        assert_eq!(elements(&mut engine), ["10.0.0.2", "10.9.0.2"], "{action:?}, deleted by force");
        let AddressInput { address, namespace, .. } = addresses(&there).remove(0);
        engine.handle_input(PolicyInput::Addresses(Change::Deleted((address, namespace))));
        assert_eq!(elements(&mut engine), ["10.9.0.2"], "{action:?}, after DEL of an interface");

        // The same pod after a restart of the agent, without the object.
        let mut engine = start(both(), vec![web()]);
        engine.handle_input(PolicyInput::Addresses(Change::Listed(addresses(&there))));
        assert_eq!(elements(&mut engine), unknown, "{action:?}, of unknown labels");
        engine.handle_input(PolicyInput::Namespaces(Change::Applied(Namespace {
            labels: Labels::default(),
            ..named_namespace("green")
        })));
        assert_eq!(elements(&mut engine), [""; 0], "{action:?}: the Namespace is known");
        let mut engine = start(vec![named_namespace("red")], vec![web(), there.clone()]);
        assert_eq!(elements(&mut engine), unknown, "{action:?}, of an unknown Namespace");
    }
}

#[test]
fn no_packet_passes_a_link_of_which_the_policies_are_not_known() {
    let mut engine = Engine::new(HERE, None);
    let web = Pod { labels: Labels::from_iter([("app", "web")]), ..web() };
    engine.attach(link(&web, 7));
    let selected = LabelSelector {
        match_labels: [("app".to_owned(), "db".to_owned())].into(),
        ..LabelSelector::default()
    };
    let policy = NetworkPolicy {
        pod_selector: selected,
        ingress: vec![NetworkRule { peers: Vec::new(), ports: Vec::new() }],
        policy_types: Some([Direction::Ingress].into()),
        ..deny_all("red")
    };
    lists(&mut engine, vec![policy], Vec::new());
    let table = engine.table();
    let link = &table.links[&7];
    assert_eq!(link.egress, None);
    let rules = &table.chains[&link.ingress.unwrap()].rules;
    assert_eq!(rules.iter().map(|rule| rule.verdict).collect::<Vec<_>>(), [Verdict::Drop]);
    engine.handle_input(PolicyInput::Pods(Change::Applied(input(web))));
    assert!(engine.table().links.is_empty(), "the policy does not select it");
}

fn with(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: [(key.to_owned(), value.to_owned())].into(), ..LabelSelector::default() }
}

/// The rows lack the labels that only a new policy names. The policies of other pods stay in force,
/// and only pods that it may select wait.
#[test]
fn a_policy_with_a_new_key_waits_alone() {
    let keys = Arc::new(LabelKeys::default());
    let mut engine = Engine::new(HERE, Some(keys.clone()));
    let web = Pod { labels: Labels::from_iter([("app", "web")]), ..web() };
    let other = Pod {
        key: ObjectKey::new("green", "web"),
        addresses: vec![IpAddr::from([10, 0, 0, 2])],
        ..web.clone()
    };
    engine.attach(link(&web, 7));
    engine.attach(link(&other, 8));
    let selected = |name: &str, selector| NetworkPolicy {
        key: ObjectKey::new("red", name),
        pod_selector: selector,
        ..deny_all("red")
    };
    lists(&mut engine, vec![selected("first", with("app", "web"))], vec![web.clone(), other]);
    let table = engine.table();
    assert_eq!(table.links.keys().collect::<Vec<_>>(), [&7]);
    // Another version of this policy, and one for other pods.
    let mut new = selected("first", with("app", "web"));
    new.pod_selector.match_labels.insert("role".to_owned(), "db".to_owned());
    engine.handle_input(PolicyInput::Network(Change::Applied(object(new))));
    let mut app = selected("second", with("app", "none"));
    app.pod_selector.match_labels.insert("tier".to_owned(), "db".to_owned());
    engine.handle_input(PolicyInput::Network(Change::Applied(object(app))));
    assert_eq!(engine.label_faults().0, 2);
    assert_eq!(engine.poll_change(), None, "the former version is in force");
    let first = PolicyRef::Network(ObjectKey::new("red", "first"));
    assert_eq!((engine.waits("tl7"), engine.waits("tl8")), (Some(Waits::Labels(first)), None));
    let (needed, wanted) = (keys.after(Labelled::Pods, 1), engine.wanted());
    assert_eq!((needed.0.len(), needed.1, wanted.pod_keys, wanted.registered.0), (2, 3, Some(1), 3));

    // The pod has another role: the new version does not select it.
    let labelled = Pod { labels: Labels::from_iter([("app", "web"), ("role", "web")]), ..web.clone() };
    engine.handle_input(PolicyInput::Relisted(vec![input(labelled)]));
    engine.handle_input(PolicyInput::Covered(needed.1));
    assert_eq!((engine.waits("tl7"), engine.label_faults().0), (None, 0));
    assert!(engine.poll_change().unwrap().links.values().all(Option::is_none));
    assert!(engine.table().links.is_empty());
    // A key that is known already: the policy is in force at once.
    engine
        .handle_input(PolicyInput::Network(Change::Applied(object(selected("third", with("role", "web"))))));
    assert_eq!((engine.waits("tl7"), engine.table().links.len()), (None, 1));
}

/// Without the labels that a policy names, its pods would be open.
#[test]
fn a_list_without_the_labels_of_a_policy_does_not_count() {
    let keys = Arc::new(LabelKeys::default());
    let mut engine = Engine::new(HERE, Some(keys));
    engine.attach(link(&web(), 7));
    let policy = NetworkPolicy { pod_selector: with("app", "web"), ..deny_all("red") };
    let of = |name: &str| NetworkPolicy { key: ObjectKey::new("red", name), ..policy.clone() };
    engine.handle_input(PolicyInput::Network(Change::Listed(vec![object(of("a"))])));
    engine.handle_input(PolicyInput::Cluster(Change::Listed(Vec::new())));
    engine.handle_input(PolicyInput::Namespaces(Change::Listed(known_namespaces())));
    engine.handle_input(PolicyInput::Addresses(Change::Listed(Vec::new())));
    // The first page was converted before the policy arrived.
    engine.handle_input(PolicyInput::Converted { kind: Labelled::Pods, keys: 0 });
    engine.handle_input(PolicyInput::Pods(Change::Listed(vec![input(web())])));
    assert!(!engine.is_known());
    engine.handle_input(PolicyInput::Covered(1));
    assert!(engine.is_known());
    // A list that began before the rows had their labels: another one is necessary.
    engine.handle_input(PolicyInput::Converted { kind: Labelled::Pods, keys: 0 });
    engine.handle_input(PolicyInput::Pods(Change::Listed(Vec::new())));
    assert_eq!((engine.wanted().restarts, engine.waits("tl7")), (1, None));
}

/// Its pod would be open: the list of the pods with the key came before it.
#[test]
fn an_event_without_the_label_of_a_new_key_is_not_trusted() {
    let mut engine = Engine::new(HERE, Some(Arc::default()));
    engine.attach(link(&web(), 7));
    lists(&mut engine, vec![deny_all("green")], vec![web()]);
    let policy = NetworkPolicy { pod_selector: with("role", "db"), ..deny_all("red") };
    engine.handle_input(PolicyInput::Network(Change::Applied(object(policy))));
    engine.handle_input(PolicyInput::Covered(1));
    assert!(engine.table().links.is_empty(), "the policy does not select it");
    let event = |keys| PolicyInput::Pods(Change::Applied(PodInput { keys, ..input(web()) }));
    engine.handle_input(event(0));
    assert_eq!((engine.wanted().restarts, engine.table().links.len()), (1, 1), "it may select it");
    engine.handle_input(event(1));
    assert_eq!((engine.wanted().restarts, engine.table().links.len()), (1, 0));
}

#[test]
fn addresses_that_leave_their_holders_are_given_once() {
    let mut engine = Engine::new(HERE, None);
    engine.attach(link(&web(), 7));
    let there = Pod {
        key: ObjectKey::new("green", "web"),
        node: NODES[1].into(),
        addresses: vec![IpAddr::from([10, 0, 0, 2])],
        ..web()
    };
    lists(&mut engine, vec![deny_all("red")], vec![web(), there.clone()]);
    assert_eq!(engine.poll_left(), [].into());
    let mut next = addresses(&there).remove(0);
    next.holder = Some(Holder { uid: "next".into(), ..next.holder.unwrap() });
    engine.handle_input(PolicyInput::Addresses(Change::Applied(next.clone())));
    assert_eq!(engine.poll_left(), [IpAddr::from([10, 0, 0, 2])].into(), "another holder");
    engine.handle_input(PolicyInput::Addresses(Change::Applied(next)));
    assert_eq!(engine.poll_left(), [].into());
    engine.handle_input(PolicyInput::Addresses(Change::Listed(addresses(&web()))));
    assert_eq!(engine.poll_left(), [IpAddr::from([10, 0, 0, 2])].into(), "no holder");
    // Without rules, every connection passes.
    lists(&mut engine, Vec::new(), vec![web(), there.clone()]);
    engine.handle_input(PolicyInput::Addresses(Change::Listed(Vec::new())));
    assert_eq!(engine.poll_left(), [].into());
}

#[test]
fn all_links_of_a_pod_have_its_chains() {
    let mut engine = Engine::new(HERE, None);
    lists(&mut engine, vec![deny_all("red")], vec![web()]);
    engine.table();
    engine.attach(link(&web(), 7));
    engine.attach(PolicyLink { addresses: vec![IpAddr::from([10, 0, 0, 2])], ..link(&web(), 8) });
    let links = engine.poll_change().unwrap().links;
    let siblings: Vec<_> = links.values().flatten().map(|link| &link.siblings).collect();
    assert_eq!(siblings, [&BTreeSet::from([7, 8]), &BTreeSet::from([7, 8])]);
    engine.detach("tl8");
    let links = engine.poll_change().unwrap().links;
    assert_eq!((links[&8].is_none(), &links[&7].as_ref().unwrap().siblings), (true, &BTreeSet::from([7])));
}

/// Random changes: the kernel's table after all differences equals the whole table, and the whole
/// table of an engine that only has the last state.
#[test]
fn differences_lead_to_the_table_of_a_new_start() {
    for_each_seed(60, |seed| {
        let mut rng = Rng::with_seed(seed);
        let mut engine = Engine::new(HERE, None);
        lists(&mut engine, Vec::new(), Vec::new());
        let mut kernel = engine.table();
        let (mut pods, mut links): (BTreeMap<usize, Pod>, BTreeMap<usize, PolicyLink>) = Default::default();
        let (mut network, mut cluster) = (BTreeMap::new(), BTreeMap::new());
        let known = known_namespaces().into_iter().map(|namespace| (namespace.name.clone(), namespace));
        let mut namespaces: BTreeMap<_, _> = known.collect();
        for _ in 0..80 {
            let index = rng.usize(..5);
            match rng.u8(..8) {
                0 => {
                    let policy = world_tests::network_policy(&mut rng, index);
                    if let Some(old) = network.insert(index, policy.clone()) {
                        engine.handle_input(PolicyInput::Network(Change::Deleted(old.key)));
                    }
                    engine.handle_input(PolicyInput::Network(Change::Applied(object(policy))));
                }
                1 => {
                    let policy = world_tests::cluster_policy(&mut rng, index);
                    cluster.insert(policy.name.clone(), policy.clone());
                    engine.handle_input(PolicyInput::Cluster(Change::Applied(object(policy))));
                }
                2 => {
                    if let Some(old) = network.remove(&index) {
                        engine.handle_input(PolicyInput::Network(Change::Deleted(old.key)));
                    }
                }
                3 => {
                    let name = *world_tests::pick(&mut rng, &NAMESPACES);
                    let namespace = world_tests::namespace(&mut rng, name);
                    namespaces.insert(name.into(), namespace.clone());
                    engine.handle_input(PolicyInput::Namespaces(Change::Applied(namespace)));
                }
                4 | 5 => {
                    // A pod keeps its node and its kind of network.
                    let mut pod = world_tests::pod(&mut rng, index);
                    if let Some(old) = pods.get(&index) {
                        (pod.node, pod.host_network) = (old.node.clone(), old.host_network);
                        pod.addresses.clone_from(&old.addresses);
                    }
                    pods.insert(index, pod.clone());
                    for address in addresses(&pod) {
                        engine.handle_input(PolicyInput::Addresses(Change::Applied(address)));
                    }
                    engine.handle_input(PolicyInput::Pods(Change::Applied(input(pod))));
                }
                6 => {
                    if let Some(pod) = pods.get(&index).filter(|pod| &*pod.node == HERE && !pod.host_network)
                    {
                        let link = link(pod, index as u32);
                        links.insert(index, link.clone());
                        engine.attach(link);
                    }
                }
                _ => {
                    if links.remove(&index).is_some() {
                        engine.detach(&format!("tl{index}"));
                    } else if let Some(pod) = pods.remove(&index) {
                        engine.handle_input(PolicyInput::Pods(Change::Deleted(identity(&pod))));
                        for AddressInput { address, namespace, .. } in addresses(&pod) {
                            let key = (address, namespace);
                            engine.handle_input(PolicyInput::Addresses(Change::Deleted(key)));
                        }
                    }
                }
            }
            // Without a policy the lists are dropped, as the watches end.
            if !engine.is_known() {
                let all = namespaces.values().cloned();
                engine.handle_input(PolicyInput::Namespaces(Change::Listed(all.collect())));
                let all = pods.values().cloned().map(input).collect();
                engine.handle_input(PolicyInput::Pods(Change::Listed(all)));
                let all = pods.values().flat_map(addresses).collect();
                engine.handle_input(PolicyInput::Addresses(Change::Listed(all)));
            }
            if rng.bool()
                && let Some(change) = engine.poll_change()
            {
                apply(&mut kernel, change);
            }
        }
        if let Some(change) = engine.poll_change() {
            apply(&mut kernel, change);
        }
        assert_eq!(kernel, engine.table(), "seed {seed}");

        let mut fresh = Engine::new(HERE, None);
        links.into_values().for_each(|link| fresh.attach(link));
        lists(&mut fresh, network.into_values().collect(), pods.into_values().collect());
        let all = namespaces.into_values();
        fresh.handle_input(PolicyInput::Namespaces(Change::Listed(all.collect())));
        let all = cluster.into_values().map(object).collect();
        fresh.handle_input(PolicyInput::Cluster(Change::Listed(all)));
        assert_eq!(kernel, fresh.table(), "seed {seed}");
        1
    });
}
