//! A policy above its budget, or refused by the kernel, fails closed for its pods, alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::resources::LabelSelector;
use trunkline_api::service::Protocol;
use trunkline_datapath::plan::policy::PolicyPart;

use super::evaluate::{Packet, evaluate};
use super::input::{
    Action, Change, ClusterPeer, ClusterPods, ClusterPolicy, ClusterRule, ClusterSubject, Direction,
    NamedPort, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, Pod, PortSelector, Tier,
};
use super::kernel::PolicyRef;
use super::rules::{ChainKey, Rules};
use super::{Compiler, Labels};

const EVIL: [u8; 4] = [10, 0, 0, 1];
const VICTIM: [u8; 4] = [10, 0, 0, 2];
const FRIEND: [u8; 4] = [10, 0, 0, 3];

fn pod(namespace: &str, name: &str, address: [u8; 4]) -> Pod {
    Pod {
        key: ObjectKey::new(namespace, name),
        node: "here".into(),
        host_network: false,
        labels: Labels::from_iter([("app", name)]),
        addresses: vec![IpAddr::from(address)],
        ports: Vec::new(),
    }
}

fn selector(name: &str) -> LabelSelector {
    LabelSelector { match_labels: [("app".to_owned(), name.to_owned())].into(), ..LabelSelector::default() }
}

/// A rule for each of these pods: each has a set of its own.
fn rules_for(names: impl Iterator<Item = String>) -> Vec<NetworkRule> {
    let all = Some(LabelSelector::default());
    let peer = |name: String| NetworkPeer::Pods { namespaces: all.clone(), pods: Some(selector(&name)) };
    names.map(|name| NetworkRule { peers: vec![peer(name)], ports: Vec::new() }).collect()
}

fn policy(namespace: &str, name: &str, ingress: Vec<NetworkRule>) -> NetworkPolicy {
    NetworkPolicy {
        key: ObjectKey::new(namespace, name),
        pod_selector: LabelSelector::default(),
        policy_types: Some([Direction::Ingress].into()),
        ingress,
        egress: Vec::new(),
    }
}

/// The rule for the friend, and as many others.
fn bomb(others: usize) -> NetworkPolicy {
    let names = (0..others).map(|index| format!("other-{index}"));
    policy("tenant", "bomb", rules_for(std::iter::once("friend".to_owned()).chain(names)))
}

/// A tenant's pod, and another tenant's pod with a policy of its own.
fn compiler() -> Compiler {
    let mut compiler = Compiler::new("here");
    let pods = [pod("tenant", "evil", EVIL), pod("victim", "web", VICTIM), pod("victim", "friend", FRIEND)];
    compiler.handle_pods(Change::Listed(pods.into()));
    let allow = policy("victim", "allow", rules_for(std::iter::once("friend".to_owned())));
    compiler.handle_network_policies(Change::Listed(vec![allow]));
    compiler
}

fn rules(compiler: &mut Compiler) -> Rules {
    compiler.poll_changes();
    compiler.rules()
}

/// Whether the friend and the other pod reach a pod.
fn reach(rules: &Rules, namespace: &str, name: &str, address: [u8; 4]) -> [bool; 2] {
    let other = if address == EVIL { VICTIM } else { EVIL };
    [FRIEND, other].map(|source| {
        let packet = Packet {
            source: source.into(),
            destination: address.into(),
            protocol: Some(Protocol::Tcp),
            port: 80,
            established: false,
            from_node: false,
            same_pod: false,
        };
        evaluate(rules, &ObjectKey::new(namespace, name), Direction::Ingress, &packet).accepted
    })
}

fn refusals(compiler: &Compiler) -> BTreeMap<String, String> {
    compiler.refusals().map(|(policy, refusal)| (policy.to_string(), refusal.to_string())).collect()
}

#[test]
fn a_policy_over_its_budget_isolates_its_pods_alone() {
    let mut compiler = compiler();
    let evil = |rules: &Rules| reach(rules, "tenant", "evil", EVIL);
    let victim = |rules: &Rules| reach(rules, "victim", "web", VICTIM);
    compiler.handle_network_policies(Change::Applied(bomb(255)));
    let at_bound = rules(&mut compiler);
    assert_eq!((evil(&at_bound), victim(&at_bound)), ([true, false], [true, false]));
    assert_eq!(refusals(&compiler), BTreeMap::new());

    compiler.handle_network_policies(Change::Applied(bomb(256)));
    let above = rules(&mut compiler);
    assert_eq!((evil(&above), victim(&above)), ([false, false], [true, false]));
    assert_eq!(above.sets.len(), 1, "the sets of the bomb do not exist");
    let text = "over the budget: 257 sets, at most 256: split the policy, or use fewer peers and ports";
    assert_eq!(refusals(&compiler), [("NetworkPolicy tenant/bomb".to_owned(), text.to_owned())].into());

    compiler.handle_network_policies(Change::Applied(bomb(10)));
    assert_eq!(evil(&rules(&mut compiler)), [true, false]);
    assert_eq!(refusals(&compiler), BTreeMap::new());
}

#[test]
fn a_refused_policy_without_pods_here_is_no_fault() {
    let mut compiler = compiler();
    compiler.handle_network_policies(Change::Applied(bomb(256)));
    rules(&mut compiler);
    assert_eq!(refusals(&compiler).len(), 1);
    compiler.handle_pods(Change::Deleted(ObjectKey::new("tenant", "evil")));
    rules(&mut compiler);
    assert_eq!(refusals(&compiler), BTreeMap::new());
}

/// A pod of another node with 16 addresses and so many ports of the name `n`.
fn ports(number: u16) -> Pod {
    let port = |port| NamedPort { name: "n".into(), protocol: Protocol::Tcp, port };
    let mut pod = pod("tenant", "many", [10, 0, 1, 1]);
    pod.node = "there".into();
    pod.addresses.extend((2..=16).map(|last| IpAddr::from([10, 0, 1, last])));
    pod.ports = (1..=number).map(port).collect();
    pod
}

/// A policy of egress to the ports `n` of all pods.
fn egress_to_ports() -> NetworkPolicy {
    let named = NetworkPort { protocol: Protocol::Tcp, port: PortSelector::Named("n".into()) };
    let rule = NetworkRule { peers: Vec::new(), ports: vec![named] };
    NetworkPolicy {
        policy_types: Some([Direction::Egress].into()),
        egress: vec![rule],
        ..policy("tenant", "egress", Vec::new())
    }
}

/// The numbers of refused policies, and of elements.
fn refused_with(compiler: &mut Compiler, ports: Pod) -> (usize, usize) {
    compiler.handle_pods(Change::Applied(ports));
    let rules = rules(compiler);
    (refusals(compiler).len(), rules.sets.values().map(|set| set.elements.len()).sum::<usize>())
}

#[test]
fn elements_decide_and_a_policy_does_not_flap() {
    let mut compiler = compiler();
    let egress = egress_to_ports();
    compiler.handle_network_policies(Change::Applied(egress.clone()));
    // One element is the friend's.
    assert_eq!(refused_with(&mut compiler, ports(100)), (0, 1601));
    // A pod gets more ports: 16 elements for each, and four elements count as one.
    assert_eq!(refused_with(&mut compiler, ports(25_000)), (0, 400_001));
    assert_eq!(refused_with(&mut compiler, ports(25_001)), (1, 1));
    let text = "over the budget: 100,004 elements of sets, at most 100,000: \
                split the policy, or use fewer peers and ports";
    assert_eq!(refusals(&compiler)["NetworkPolicy tenant/egress"], text);
    // A few elements less do not admit the policy, but a change of the policy does.
    assert_eq!(refused_with(&mut compiler, ports(24_000)), (1, 1));
    let changed = NetworkPolicy { pod_selector: selector("evil"), ..egress };
    compiler.handle_network_policies(Change::Applied(changed));
    assert_eq!(refused_with(&mut compiler, ports(24_001)), (0, 384_017));
    // An eighth less than the bound admits it as well.
    assert_eq!(refused_with(&mut compiler, ports(25_001)), (1, 1));
    assert_eq!(refused_with(&mut compiler, ports(21_876)), (1, 1));
    assert_eq!(refused_with(&mut compiler, ports(21_875)), (0, 350_001));
    // And so do fewer addresses.
    assert_eq!(refused_with(&mut compiler, ports(25_001)), (1, 1));
    let mut few = ports(25_001);
    few.addresses.truncate(13);
    assert_eq!(refused_with(&mut compiler, few), (0, 325_014));
}

/// The set of a named port has the pods of all tenants, and each can give the name to four ports.
#[test]
fn further_ports_of_others_do_not_push_out_a_policy() {
    let mut compiler = compiler();
    compiler.handle_network_policies(Change::Applied(egress_to_ports()));
    let mut others = ports(4);
    others.addresses =
        (0..30_000u32).map(|index| IpAddr::from((0x0b00_0000 + index).to_be_bytes())).collect();
    assert_eq!(refused_with(&mut compiler, others), (0, 120_001));
}

#[test]
fn a_cluster_policy_over_its_budget_denies_where_it_has_rules() {
    let mut compiler = compiler();
    let rule = |name: String| ClusterRule {
        action: Action::Accept,
        peers: vec![ClusterPeer::Pods(ClusterPods { pods: selector(&name), ..ClusterPods::default() })],
        ports: Vec::new(),
    };
    let policy = |others: usize| ClusterPolicy {
        name: "all".into(),
        tier: Tier::Admin,
        priority: 1,
        subject: ClusterSubject::Pods(ClusterPods::default()),
        ingress: (0..others).map(|index| rule(format!("other-{index}"))).collect(),
        egress: Vec::new(),
    };
    compiler.handle_cluster_policies(Change::Applied(policy(256)));
    let at_bound = rules(&mut compiler);
    assert_eq!(reach(&at_bound, "victim", "web", VICTIM), [true, false]);
    compiler.handle_cluster_policies(Change::Applied(policy(257)));
    let above = rules(&mut compiler);
    assert_eq!(reach(&above, "victim", "web", VICTIM), [false, false]);
    assert!(above.pods.values().all(|chains| chains.of(Direction::Egress).is_none()));
    assert!(refusals(&compiler).contains_key("ClusterNetworkPolicy all"));
}

#[test]
fn a_policy_that_the_kernel_refuses_fails_closed_alone() {
    let mut compiler = compiler();
    compiler.handle_network_policies(Change::Applied(bomb(3)));
    let before = rules(&mut compiler);
    let part_of = |rules: &Rules, wanted: &str| {
        let is_wanted = |key: &ChainKey| match key {
            ChainKey::Policy { policy, .. } => policy.to_string() == wanted,
            ChainKey::Tier { .. } | ChainKey::Entry { .. } => false,
        };
        let chain = rules.chains.iter().find(|(_, chain)| is_wanted(&chain.key)).unwrap();
        (PolicyPart::Chain(*chain.0), PolicyPart::Set(chain.1.rules.last().unwrap().peers.unwrap()))
    };
    let (chain, set) = part_of(&before, "tenant/bomb");
    for part in [chain, set] {
        let refused = compiler.refuse_part(part, "chain c1: Invalid argument").unwrap();
        assert_eq!(refused, [PolicyRef::Network(ObjectKey::new("tenant", "bomb"))].into());
        assert_eq!(compiler.refuse_part(part, "again"), None);
        let rules_then = rules(&mut compiler);
        assert_eq!(reach(&rules_then, "tenant", "evil", EVIL), [false, false]);
        assert_eq!(reach(&rules_then, "victim", "web", VICTIM), [true, false]);
        assert!(compiler.retry_refused());
        assert_eq!(rules(&mut compiler), before);
        assert!(!compiler.retry_refused());
    }
    // A change of the policy tries it too.
    compiler.refuse_part(chain, "reason").unwrap();
    rules(&mut compiler);
    compiler.handle_network_policies(Change::Applied(bomb(4)));
    assert_eq!(reach(&rules(&mut compiler), "tenant", "evil", EVIL), [true, false]);
}
