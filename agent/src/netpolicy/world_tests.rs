//! Random clusters: the compiled rules of each node against the second evaluator, for each pair of
//! addresses and each port, and the incremental result against the one that is made at once.
//!
//! `TRUNKLINE_POLICY_WORLDS` is the number of clusters. A failure names the seed of its cluster, and
//! `TRUNKLINE_POLICY_SEED` runs this one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;
use trunkline_api::resources::{LabelSelector, Operator, Requirement};
use trunkline_api::service::Protocol;

use super::evaluate::{Packet, evaluate};
use super::input::{
    Action, Change, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject,
    Direction, IpBlock, NamedPort, Namespace, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule,
    ObjectKey, Pod, PortSelector, Tier,
};
use super::labels::Labels;
use super::rules::{Rules, SetChange};
use super::specification::{Cluster, allowed};
use super::{Compiler, compile};

/// Clusters in `cargo test`: about four seconds of processor time without optimisation.
const WORLDS: u64 = 400;
pub(super) const NODES: [&str; 2] = ["node-a", "node-b"];
pub(super) const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
pub(super) const PORTS: [u16; 3] = [80, 81, 443];
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const EXTERNAL: [&str; 3] = ["192.0.2.1", "192.0.2.9", "2001:db8::1"];

pub(super) fn pick<'a, T>(rng: &mut Rng, items: &'a [T]) -> &'a T {
    &items[rng.usize(..items.len())]
}

pub(super) fn some<T>(rng: &mut Rng, most: usize, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.usize(..=most)).map(|_| make(rng)).collect()
}

fn labels(rng: &mut Rng) -> Labels {
    let all = ["a", "b"].map(|key| (rng.u8(..3) > 0).then(|| (key, *pick(rng, &["1", "2"]))));
    all.into_iter().flatten().collect()
}

fn selector(rng: &mut Rng) -> LabelSelector {
    let mut selector = LabelSelector::default();
    if rng.u8(..3) == 0 {
        return selector;
    }
    if rng.bool() {
        selector.match_labels.insert((*pick(rng, &["a", "b"])).into(), (*pick(rng, &["1", "2"])).into());
    }
    if rng.u8(..3) == 0 {
        let operators = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];
        let operator = *pick(rng, &operators);
        let values = match operator {
            Operator::In | Operator::NotIn => [&["1"][..], &["2"], &["1", "2"], &["3"]][rng.usize(..4)],
            Operator::Exists | Operator::DoesNotExist => &[],
        };
        selector.match_expressions.push(Requirement {
            key: (*pick(rng, &["a", "b"])).into(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        });
    }
    selector
}

pub(super) fn namespace(rng: &mut Rng, name: &str) -> Namespace {
    Namespace { name: name.into(), labels: labels(rng), audit: rng.u8(..8) == 0 }
}

pub(super) fn address(index: usize) -> [IpAddr; 2] {
    let last = u8::try_from(index).unwrap() + 1;
    [IpAddr::from([10, 0, 0, last]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])]
}

fn node_address(node: &str) -> Vec<IpAddr> {
    let last = if node == NODES[0] { 1 } else { 2 };
    vec![IpAddr::from([172, 16, 0, last]), IpAddr::from([0xfd01, 0, 0, 0, 0, 0, 0, u16::from(last)])]
}

/// A pod of this number. Its addresses depend on the number, so no two pods have the same.
pub(super) fn pod(rng: &mut Rng, index: usize) -> Pod {
    let node = *pick(rng, &NODES);
    let host_network = rng.u8(..8) == 0;
    let mut addresses = if host_network { node_address(node) } else { address(index).to_vec() };
    match rng.u8(..8) {
        0 => drop(addresses.pop()),
        1 => drop(addresses.remove(0)),
        // A further interface.
        2 => addresses.push(IpAddr::from([10, 0, 1, u8::try_from(index).unwrap() + 1])),
        _ => {}
    }
    Pod {
        key: ObjectKey::new(NAMESPACES[index % NAMESPACES.len()], &format!("pod-{index}")),
        node: node.into(),
        host_network,
        labels: if rng.u8(..10) == 0 { Labels::UNKNOWN } else { labels(rng) },
        addresses,
        ports: some(rng, 2, |rng| NamedPort {
            name: (*pick(rng, &["web", "db"])).into(),
            protocol: *pick(rng, &PROTOCOLS),
            port: *pick(rng, &PORTS),
        }),
    }
}

fn block(rng: &mut Rng) -> IpBlock {
    let blocks: [(&str, &[&str]); 10] = [
        ("0.0.0.0/0", &["10.0.0.0/30"]),
        ("::/0", &["fd00::/126", "2001:db8::/32"]),
        ("10.0.0.0/24", &["10.0.0.2/32", "10.0.0.4/31"]),
        ("10.0.0.3/29", &[]),
        ("fd00::/124", &["fd00::1/128"]),
        ("192.0.2.0/29", &[]),
        ("2001:db8::/64", &[]),
        ("172.16.0.0/31", &[]),
        ("10.0.0.2/32", &["10.0.0.2/32"]),
        ("fd01::2/128", &[]),
    ];
    let (cidr, except) = pick(rng, &blocks);
    let net = |text: &&str| text.parse().unwrap();
    IpBlock { cidr: net(cidr), except: except.iter().map(net).collect() }
}

/// The most peers or ports of a rule: few, or many.
fn most(rng: &mut Rng, few: usize) -> usize {
    if rng.u8(..8) == 0 { 24 } else { few }
}

fn network_rule(rng: &mut Rng) -> NetworkRule {
    let (peers, ports) = (most(rng, 3), most(rng, 3));
    let peers = some(rng, peers, |rng| match rng.u8(..10) {
        0 => NetworkPeer::Unknown,
        1..=3 => NetworkPeer::Block(block(rng)),
        _ => NetworkPeer::Pods {
            namespaces: rng.bool().then(|| selector(rng)),
            pods: rng.bool().then(|| selector(rng)),
        },
    });
    let ports = some(rng, ports, |rng| NetworkPort {
        protocol: *pick(rng, &PROTOCOLS),
        port: match rng.u8(..8) {
            0 => PortSelector::Any,
            1..=2 => PortSelector::Named((*pick(rng, &["web", "db", "none"])).into()),
            3 => PortSelector::Range(81, 500),
            4 => PortSelector::Invalid,
            _ => {
                let port = *pick(rng, &PORTS);
                PortSelector::Range(port, port)
            }
        },
    });
    NetworkRule { peers, ports }
}

pub(super) fn network_policy(rng: &mut Rng, index: usize) -> NetworkPolicy {
    let types = [
        None,
        Some(BTreeSet::new()),
        Some(BTreeSet::from([Direction::Ingress])),
        Some(BTreeSet::from([Direction::Egress])),
        Some(BTreeSet::from(Direction::ALL)),
    ];
    NetworkPolicy {
        key: ObjectKey::new(NAMESPACES[index % NAMESPACES.len()], &format!("policy-{index}")),
        pod_selector: selector(rng),
        policy_types: pick(rng, &types).clone(),
        ingress: some(rng, 2, network_rule),
        egress: some(rng, 2, network_rule),
    }
}

fn cluster_pods(rng: &mut Rng) -> ClusterPods {
    ClusterPods {
        namespaces: selector(rng),
        pods: if rng.bool() { selector(rng) } else { Default::default() },
    }
}

fn cluster_rule(rng: &mut Rng) -> ClusterRule {
    let (peers, ports) = (most(rng, 2), most(rng, 2));
    let peers = some(rng, peers, |rng| match rng.u8(..48) {
        0 => ClusterPeer::Unknown,
        1..=9 => ClusterPeer::Networks(some(rng, 2, |rng| block(rng).cidr)),
        _ => ClusterPeer::Pods(cluster_pods(rng)),
    });
    let ports = some(rng, ports, |rng| match rng.u8(..36) {
        0 => ClusterPort::Unknown,
        1..=6 => ClusterPort::Named((*pick(rng, &["web", "db"])).into()),
        7..=10 => ClusterPort::Numbered { protocol: *pick(rng, &PROTOCOLS), range: None },
        11 => ClusterPort::Numbered { protocol: Protocol::Tcp, range: Some((443, 80)) },
        _ => {
            let (first, last) = *pick(rng, &[(80, 80), (80, 81), (1, 65535), (443, 443)]);
            ClusterPort::Numbered { protocol: *pick(rng, &PROTOCOLS), range: Some((first, last)) }
        }
    });
    ClusterRule { action: *pick(rng, &[Action::Accept, Action::Deny, Action::Pass]), peers, ports }
}

pub(super) fn cluster_policy(rng: &mut Rng, index: usize) -> ClusterPolicy {
    ClusterPolicy {
        name: format!("cluster-{index}").into(),
        tier: *pick(rng, &[Tier::Admin, Tier::Baseline]),
        priority: *pick(rng, &[0, 10, 10, 1000]),
        subject: match rng.u8(..12) {
            0 => ClusterSubject::Unknown,
            _ => ClusterSubject::Pods(cluster_pods(rng)),
        },
        ingress: some(rng, 2, cluster_rule),
        egress: some(rng, 2, cluster_rule),
    }
}

fn cluster(rng: &mut Rng) -> Cluster {
    // A pod can have a Namespace that is not known.
    let known: Vec<&str> = NAMESPACES.into_iter().filter(|_| rng.u8(..8) > 0).collect();
    Cluster {
        namespaces: known.into_iter().map(|name| namespace(rng, name)).collect(),
        pods: (0..rng.usize(2..=6)).map(|index| pod(rng, index)).collect(),
        network_policies: (0..rng.usize(..=4)).map(|index| network_policy(rng, index)).collect(),
        cluster_policies: (0..rng.usize(..=3)).map(|index| cluster_policy(rng, index)).collect(),
        nodes: NODES.iter().map(|node| (Arc::from(*node), node_address(node))).collect(),
    }
}

fn compile_cluster(cluster: &Cluster, node: &str) -> Rules {
    let Cluster { namespaces, pods, network_policies, cluster_policies, .. } = cluster;
    compile(node, namespaces, pods, network_policies, cluster_policies)
}

/// Compares every pair of addresses and every port. Returns the number of comparisons.
fn compare(seed: u64, cluster: &Cluster, rules: &BTreeMap<&str, Rules>) -> u64 {
    let pod_addresses = cluster.pods.iter().flat_map(|pod| pod.addresses.iter().copied());
    let external = EXTERNAL.iter().map(|address| address.parse().unwrap());
    let node_addresses = cluster.nodes.values().flatten().copied();
    let addresses: BTreeSet<IpAddr> = pod_addresses.chain(external).chain(node_addresses).collect();
    let numbered = PROTOCOLS.into_iter().flat_map(|protocol| PORTS.map(|port| Some((protocol, port))));
    let ports: Vec<Option<(Protocol, u16)>> = numbered.chain([None]).collect();
    let pods: BTreeMap<IpAddr, &Pod> = cluster
        .pods
        .iter()
        .filter(|pod| !pod.host_network)
        .flat_map(|pod| pod.addresses.iter().map(move |address| (*address, pod)))
        .collect();
    let mut compared = 0;
    for (from, to) in addresses.iter().flat_map(|from| addresses.iter().map(move |to| (*from, *to))) {
        if from.is_ipv4() != to.is_ipv4() {
            continue;
        }
        let (source, destination) = (pods.get(&from), pods.get(&to));
        for port in &ports {
            let packet = Packet {
                source: from,
                destination: to,
                protocol: port.map(|(protocol, _)| protocol),
                port: port.map_or(0, |(_, port)| port),
                established: false,
                from_node: destination.is_some_and(|pod| cluster.nodes[&pod.node].contains(&from)),
                same_pod: source.is_some() && source.map(|pod| &pod.key) == destination.map(|pod| &pod.key),
            };
            let passes = |pod: Option<&&Pod>, direction| {
                pod.is_none_or(|pod| evaluate(&rules[&*pod.node], &pod.key, direction, &packet).accepted)
            };
            let expected = allowed(cluster, from, to, *port);
            let compiled = (passes(destination, Direction::Ingress), passes(source, Direction::Egress));
            assert_eq!(
                compiled,
                (expected.ingress, expected.egress),
                "seed {seed}: (ingress, egress) of {from} to {to}, {port:?}: {cluster:#?}"
            );
            compared += 1;
        }
    }
    compared
}

/// Runs a check for clusters of different seeds, on each processor.
pub(super) fn for_each_seed(worlds: u64, check: impl Fn(u64) -> u64 + Sync) -> u64 {
    if let Ok(seed) = std::env::var("TRUNKLINE_POLICY_SEED") {
        return check(seed.parse().unwrap());
    }
    let worlds = match std::env::var("TRUNKLINE_POLICY_WORLDS") {
        Ok(number) => number.parse().unwrap(),
        Err(_) => worlds,
    };
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get() as u64);
    std::thread::scope(|scope| {
        let check = &check;
        let run = move |first: u64| (first..worlds).step_by(threads as usize).map(check).sum::<u64>();
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || run(first))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn compiled_rules_decide_as_the_specification() {
    let compared = for_each_seed(WORLDS, |seed| {
        let cluster = cluster(&mut Rng::with_seed(seed));
        let rules = NODES.map(|node| (node, compile_cluster(&cluster, node))).into_iter().collect();
        compare(seed, &cluster, &rules)
    });
    println!("{compared} packets");
    assert!(compared > 0);
}

/// Replaces the object with the same key, or removes it.
fn replace<T, K: PartialEq>(all: &mut Vec<T>, key: impl Fn(&T) -> K, new: T, remove: bool) -> Option<T> {
    let wanted = key(&new);
    let position = all.iter().position(|there| key(there) == wanted);
    if let Some(position) = position {
        all.remove(position);
    }
    if remove {
        return Some(new);
    }
    all.push(new);
    None
}

/// One random change of the cluster and the same change of the compilers.
fn change(rng: &mut Rng, cluster: &mut Cluster, compilers: &mut [Compiler]) {
    let remove = rng.u8(..4) == 0;
    match rng.u8(..8) {
        0 => {
            let name = *pick(rng, &NAMESPACES);
            let new = namespace(rng, name);
            let gone = replace(&mut cluster.namespaces, |there| there.name.clone(), new.clone(), remove);
            let change = if gone.is_some() { Change::Deleted(new.name) } else { Change::Applied(new) };
            compilers.iter_mut().for_each(|compiler| compiler.handle_namespaces(change.clone()));
        }
        1..=3 => {
            let index = rng.usize(..6);
            let new = pod(rng, index);
            let gone = replace(&mut cluster.pods, |there| there.key.clone(), new.clone(), remove);
            let change = if gone.is_some() { Change::Deleted(new.key) } else { Change::Applied(new) };
            compilers.iter_mut().for_each(|compiler| compiler.handle_pods(change.clone()));
        }
        4..=5 => {
            let index = rng.usize(..5);
            let new = network_policy(rng, index);
            let gone = replace(&mut cluster.network_policies, |there| there.key.clone(), new.clone(), remove);
            let change = if gone.is_some() { Change::Deleted(new.key) } else { Change::Applied(new) };
            compilers.iter_mut().for_each(|compiler| compiler.handle_network_policies(change.clone()));
        }
        6 => {
            let index = rng.usize(..4);
            let new = cluster_policy(rng, index);
            let gone =
                replace(&mut cluster.cluster_policies, |there| there.name.clone(), new.clone(), remove);
            let change = if gone.is_some() { Change::Deleted(new.name) } else { Change::Applied(new) };
            compilers.iter_mut().for_each(|compiler| compiler.handle_cluster_policies(change.clone()));
        }
        _ => {
            // A watch that starts again lists all objects.
            let other = self::cluster(rng);
            let mut both = other.pods.clone();
            both.truncate(2);
            cluster.pods.retain(|there| both.iter().all(|pod| pod.key != there.key));
            cluster.pods.truncate(3);
            cluster.pods.extend(both);
            cluster.network_policies = other.network_policies;
            for compiler in compilers {
                compiler.handle_pods(Change::Listed(cluster.pods.clone()));
                compiler.handle_network_policies(Change::Listed(cluster.network_policies.clone()));
            }
        }
    }
}

#[test]
fn incremental_rules_equal_those_of_a_new_start() {
    let changes = for_each_seed(WORLDS / 4, |seed| {
        let rng = &mut Rng::with_seed(seed);
        let mut cluster = Cluster { nodes: cluster(rng).nodes, ..Cluster::default() };
        let mut compilers = NODES.map(Compiler::new);
        let mut kernels = NODES.map(|_| Rules::default());
        let steps = 60;
        for step in 0..steps {
            change(rng, &mut cluster, &mut compilers);
            if rng.u8(..3) > 0 && step + 1 < steps {
                continue;
            }
            for ((node, compiler), kernel) in NODES.iter().zip(&mut compilers).zip(&mut kernels) {
                let change = compiler.poll_changes();
                assert!(compiler.poll_changes().is_none(), "seed {seed}");
                if let Some(change) = change {
                    let before = kernel.clone();
                    kernel.apply(change.clone());
                    let replaces = change.chains.is_empty()
                        && change.pods.is_empty()
                        && change.sets.values().all(|of| matches!(of, SetChange::Replaced(_)));
                    assert!(
                        before != *kernel || replaces,
                        "seed {seed}, step {step}: {change:#?} changes nothing"
                    );
                }
                let rules = compiler.rules();
                assert_eq!(*kernel, rules, "seed {seed}, step {step}: differences of {node}");
                let at_once = compile_cluster(&cluster, node);
                assert_eq!(rules, at_once, "seed {seed}, step {step}: {node} of {cluster:#?}");
                check_integrity(&rules);
            }
        }
        steps
    });
    assert!(changes > 0);
}

/// Every set and chain is in use, and every set and chain that is in use exists.
fn check_integrity(rules: &Rules) {
    use super::rules::Verdict;
    let all = || rules.chains.values().flat_map(|chain| &chain.rules);
    let sets: BTreeSet<_> = all().flat_map(|rule| rule.sets()).collect();
    assert!(sets.iter().eq(rules.sets.keys()));
    let jumps = all().filter_map(|rule| match rule.verdict {
        Verdict::Jump(chain) => Some(chain),
        Verdict::Accept | Verdict::Drop | Verdict::Return => None,
    });
    let entries = rules
        .pods
        .values()
        .flat_map(|pod| Direction::ALL.into_iter().filter_map(|direction| pod.of(direction)));
    let chains: BTreeSet<_> = jumps.chain(entries).collect();
    assert!(chains.iter().eq(rules.chains.keys()));
}
