//! The cost of a change depends on the change. It is counted, not measured.

use std::net::IpAddr;

use trunkline_api::resources::LabelSelector;

use super::input::{Change, Direction, Namespace, NetworkPeer, NetworkPolicy, NetworkRule, ObjectKey, Pod};
use super::rules::{Element, SetChange};
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

/// Only policies that select a pod of this node have sets and chains.
#[test]
fn policies_of_other_nodes_have_no_rules() {
    let rules = compiler(10).rules();
    // For each local pod an entry chain and the chain of its policy.
    assert_eq!((rules.pods.len(), rules.chains.len(), rules.sets.len()), (LOCAL, 2 * LOCAL, LOCAL));
}
