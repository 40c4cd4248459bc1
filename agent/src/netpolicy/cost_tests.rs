//! The cost of a change depends on the change. It is counted, not measured.

use std::net::IpAddr;

use trunkline_api::resources::{LabelSelector, Operator, Requirement};
use trunkline_api::service::Protocol;

use super::input::{
    Change, Direction, IpBlock, NamedPort, Namespace, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule,
    ObjectKey, Pod, PortSelector,
};
use super::rules::{ChainId, ChainKey, Element, Rules, SetChange, Verdict};
use super::{Compiler, Labels};

const POLICIES: usize = 1000;
const NAMESPACES: usize = 500;
const LOCAL: usize = 250;

fn pod(index: usize, node: &str, app: usize) -> Pod {
    let number = u32::try_from(index).unwrap();
    Pod {
        key: ObjectKey::new(&format!("namespace-{}", app % NAMESPACES), &format!("pod-{index}")),
        node: node.into(),
        host_network: false,
        labels: Labels::from_iter([("app", format!("app-{app}")), ("pod", format!("pod-{index}"))]),
        addresses: vec![
            IpAddr::from((0x0a00_0000 + number).to_be_bytes()),
            IpAddr::from((0xfd00_u128 << 112 | u128::from(number)).to_be_bytes()),
        ],
        ports: Vec::new(),
    }
}

fn app(name: String) -> LabelSelector {
    LabelSelector { match_labels: [("app".to_owned(), name)].into_iter().collect(), ..Default::default() }
}

/// Each policy selects an app and allows another app of all Namespaces.
fn policy(index: usize) -> NetworkPolicy {
    let peer = NetworkPeer::Pods {
        namespaces: Some(LabelSelector::default()),
        pods: Some(app(format!("app-{}", (index + 1) % POLICIES))),
    };
    NetworkPolicy {
        key: ObjectKey::new(&format!("namespace-{}", index % NAMESPACES), &format!("policy-{index}")),
        pod_selector: app(format!("app-{index}")),
        policy_types: Some([Direction::Ingress].into()),
        ingress: vec![NetworkRule { peers: vec![peer], ports: Vec::new() }],
        egress: Vec::new(),
    }
}

fn compiler(remote: usize) -> Compiler {
    let mut compiler = Compiler::new("here");
    let namespaces = (0..NAMESPACES).map(|index| Namespace {
        name: format!("namespace-{index}").into(),
        labels: Labels::from_iter([("number", index.to_string())]),
        audit: false,
    });
    compiler.handle_namespaces(Change::Listed(namespaces.collect()));
    let local = (0..LOCAL).map(|index| pod(index, "here", index));
    let remote = (LOCAL..LOCAL + remote).map(|index| pod(index, "there", index % POLICIES));
    compiler.handle_pods(Change::Listed(local.chain(remote).collect()));
    compiler.handle_network_policies(Change::Listed((0..POLICIES).map(policy).collect()));
    compiler.poll_changes();
    compiler
}

/// The work of a change of labels of a pod on another node.
fn work_of_a_label_change(remote: usize) -> u64 {
    let mut compiler = compiler(remote);
    let before = compiler.examined();
    // From an app that no policy here allows to one that a policy here allows.
    let mut changed = pod(LOCAL, "there", LOCAL);
    changed.labels = Labels::from_iter([("app", "app-900")]);
    compiler.handle_pods(Change::Applied(changed.clone()));
    compiler.poll_changes();
    changed.labels = Labels::from_iter([("app", "app-1")]);
    compiler.handle_pods(Change::Applied(changed.clone()));
    let change = compiler.poll_changes().unwrap();
    let [SetChange::Changed { added, removed }] = change.sets.values().collect::<Vec<_>>()[..] else {
        panic!("{change:#?}")
    };
    assert!(added.iter().copied().eq(changed.addresses.iter().copied().map(Element::Address)));
    assert!(removed.is_empty() && change.chains.is_empty() && change.pods.is_empty());
    compiler.examined() - before
}

#[test]
fn a_label_change_costs_the_same_in_a_large_cluster() {
    let (small, large) = (work_of_a_label_change(10), work_of_a_label_change(10_000));
    assert!(small > 0 && small < 10, "{small} selectors and pods examined");
    assert_eq!(small, large);
}

/// A tenant's policies, each without a rule and for all its pods.
fn without_rules(number: usize) -> Vec<NetworkPolicy> {
    let policy = |index: usize| NetworkPolicy {
        key: ObjectKey::new("namespace-0", &format!("policy-{index}")),
        pod_selector: LabelSelector::default(),
        policy_types: Some(Direction::ALL.into()),
        ingress: Vec::new(),
        egress: Vec::new(),
    };
    (0..number).map(policy).collect()
}

/// A list of many policies finds the policies of a pod once.
#[test]
fn a_list_costs_the_sum_of_policies_and_pods() {
    let work = |number: usize| {
        let mut compiler = Compiler::new("here");
        let labels = Labels::default();
        let namespace = Namespace { name: "namespace-0".into(), labels, audit: false };
        compiler.handle_namespaces(Change::Listed(vec![namespace]));
        compiler.handle_pods(Change::Listed((0..10).map(|index| pod(index, "here", 0)).collect()));
        compiler.poll_changes();
        let before = compiler.examined();
        compiler.handle_network_policies(Change::Listed(without_rules(number)));
        compiler.poll_changes();
        (compiler, before)
    };
    let (compiler, before) = work(400);
    // Each policy with each pod, when the policy comes and when the pod gets its chains.
    assert_eq!(compiler.examined() - before, 2 * 10 * 400);
    // A chain without rules needs no jump.
    let rules = compiler.rules();
    let entries = rules.chains.values().filter(|chain| matches!(chain.key, ChainKey::Entry { .. }));
    assert_eq!(entries.map(|chain| chain.rules.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_policy_gets_its_jump_with_its_first_rule() {
    let mut compiler = compiler(0);
    let jumps = |compiler: &mut Compiler| {
        compiler.poll_changes();
        let rules = compiler.rules();
        let all = rules.chains.values().flat_map(|chain| &chain.rules);
        let jumps: Vec<ChainId> = all
            .filter_map(|rule| match rule.verdict {
                Verdict::Jump(chain) => Some(chain),
                _ => None,
            })
            .collect();
        assert!(jumps.iter().all(|chain| !rules.chains[chain].rules.is_empty()));
        (jumps.len(), rules.chains.len())
    };
    assert_eq!(jumps(&mut compiler), (LOCAL, 2 * LOCAL));
    let empty = NetworkPolicy { ingress: Vec::new(), ..policy(0) };
    compiler.handle_network_policies(Change::Applied(empty));
    assert_eq!(jumps(&mut compiler), (LOCAL - 1, 2 * LOCAL - 1));
    compiler.handle_network_policies(Change::Applied(policy(0)));
    assert_eq!(jumps(&mut compiler), (LOCAL, 2 * LOCAL));
    compiler.handle_network_policies(Change::Listed(Vec::new()));
    assert_eq!(jumps(&mut compiler), (0, 0));
}

/// Policies of other Namespaces cannot select a pod of unknown labels.
#[test]
fn a_pod_of_unknown_labels_costs_the_policies_of_its_namespace() {
    let mut compiler = compiler(0);
    let before = compiler.examined();
    let mut unknown = pod(0, "here", 0);
    unknown.labels = Labels::UNKNOWN;
    compiler.handle_pods(Change::Applied(unknown));
    compiler.poll_changes();
    let examined = compiler.examined() - before;
    assert!(examined < 20, "{examined} of {POLICIES} policies examined");
}

/// A peer of all Namespaces with `Exists` finds its pods by the key.
#[test]
fn a_peer_with_a_key_costs_the_pods_with_this_key() {
    let mut compiler = compiler(10_000);
    let mut rare = pod(LOCAL, "there", LOCAL);
    rare.labels = Labels::from_iter([("rare", "a")]);
    compiler.handle_pods(Change::Applied(rare));
    compiler.poll_changes();
    let exists = Requirement { key: "rare".to_owned(), operator: Operator::Exists, values: Vec::new() };
    let peer = NetworkPeer::Pods {
        namespaces: Some(LabelSelector::default()),
        pods: Some(LabelSelector { match_expressions: vec![exists], ..Default::default() }),
    };
    let before = compiler.examined();
    let changed = NetworkRule { peers: vec![peer], ports: Vec::new() };
    compiler.handle_network_policies(Change::Applied(NetworkPolicy { ingress: vec![changed], ..policy(0) }));
    let change = compiler.poll_changes().unwrap();
    let sizes: Vec<usize> = change
        .sets
        .values()
        .filter_map(|set| match set {
            SetChange::Replaced(set) => Some(set.elements.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [2]);
    let examined = compiler.examined() - before;
    assert!(examined < 50, "{examined} pods examined");
}

/// Only policies that select a pod of this node have sets and chains.
#[test]
fn policies_of_other_nodes_have_no_rules() {
    let rules = compiler(10).rules();
    // For each local pod an entry chain and the chain of its policy.
    assert_eq!((rules.pods.len(), rules.chains.len(), rules.sets.len()), (LOCAL, 2 * LOCAL, LOCAL));
}

/// A policy of one rule, as a tenant writes it, on a node with two of its pods.
fn rules_of(peers: Vec<NetworkPeer>, ports: Vec<NetworkPort>) -> (Rules, u64) {
    let pod = |index: usize, node: &str| {
        let mut pod = pod(index, node, 0);
        pod.labels = Labels::from_iter([("a", index.to_string())]);
        pod.ports = vec![NamedPort { name: "n1".into(), protocol: Protocol::Tcp, port: 80 }];
        pod
    };
    let policy = NetworkPolicy {
        key: ObjectKey::new("namespace-0", "bomb"),
        pod_selector: LabelSelector::default(),
        policy_types: Some([Direction::Ingress].into()),
        ingress: vec![NetworkRule { peers, ports }],
        egress: Vec::new(),
    };
    let mut compiler = Compiler::new("here");
    let remote = (2..1000).map(|index| pod(index, "there"));
    compiler
        .handle_pods(Change::Listed([pod(0, "here"), pod(1, "here")].into_iter().chain(remote).collect()));
    let before = compiler.examined();
    compiler.handle_network_policies(Change::Applied(policy));
    compiler.poll_changes().unwrap();
    // One of the local pods changes its labels.
    let mut changed = pod(1, "here");
    changed.labels = Labels::from_iter([("a", "other")]);
    compiler.handle_pods(Change::Applied(changed));
    compiler.poll_changes();
    (compiler.rules(), compiler.examined() - before)
}

fn labelled(number: usize) -> Vec<NetworkPeer> {
    let peer = |index: usize| NetworkPeer::Pods {
        namespaces: None,
        pods: Some(LabelSelector {
            match_labels: [("a".to_owned(), index.to_string())].into_iter().collect(),
            ..Default::default()
        }),
    };
    (0..number).map(peer).collect()
}

fn tcp_port(port: PortSelector) -> NetworkPort {
    NetworkPort { protocol: Protocol::Tcp, port }
}

/// Every second port, so no two ports touch.
fn tcp_ports(number: u16) -> Vec<NetworkPort> {
    (0..number).map(|index| tcp_port(PortSelector::Range(1 + 2 * index, 1 + 2 * index))).collect()
}

/// The rules of the policy, without the entry chain, and all sets with their elements.
fn sizes(rules: &Rules) -> (usize, usize, usize) {
    let policy_rules = rules
        .chains
        .values()
        .flat_map(|chain| &chain.rules)
        .filter(|rule| matches!(rule.origin, super::rules::Origin::Network { .. }));
    let elements = rules.sets.values().map(|set| set.elements.len()).sum();
    (policy_rules.count(), rules.sets.len(), elements)
}

#[test]
fn peers_and_ports_of_a_rule_are_no_product() {
    let names = |number: usize| {
        let name = |index: usize| tcp_port(PortSelector::Named(format!("n{index}").into()));
        (0..number).map(name).collect::<Vec<_>>()
    };
    let values = Requirement {
        key: "a".to_owned(),
        operator: Operator::In,
        values: (0..30_000).map(|value| value.to_string()).collect(),
    };
    let selector = LabelSelector { match_expressions: vec![values], ..Default::default() };
    let block = |index: u32| IpBlock {
        cidr: format!("{}/32", std::net::Ipv4Addr::from_bits(0x1400_0000 + 2 * index)).parse().unwrap(),
        except: Vec::new(),
    };
    let blocks = (0..10_000).map(|index| NetworkPeer::Block(block(index)));
    let mixed = labelled(300).into_iter().chain(blocks).collect();
    let both = tcp_ports(300).into_iter().chain(names(300)).collect();
    for (name, peers, ports, expected) in [
        ("one peer, one port", labelled(1), tcp_ports(1), (1, 1, 2)),
        // 299 pods with two addresses, and 300 ports.
        ("300 peers, 300 ports", labelled(300), tcp_ports(300), (1, 2, 898)),
        ("10,000 peers", labelled(10_000), Vec::new(), (1, 1, 1998)),
        ("30,000 named ports", Vec::new(), names(30_000), (1, 1, 4)),
        (
            "30,000 values",
            vec![NetworkPeer::Pods { namespaces: None, pods: Some(selector) }],
            Vec::new(),
            (1, 1, 1998),
        ),
        ("everything", mixed, both, (4, 4, 598 + 10_000 + 300 + 4)),
    ] {
        let (rules, examined) = rules_of(peers, ports);
        assert_eq!(sizes(&rules), expected, "{name}");
        assert!(examined < 5000, "{name}: {examined} pods and selectors examined");
    }
}
