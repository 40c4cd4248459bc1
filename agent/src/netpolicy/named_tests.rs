//! Rows for a reader: a policy, a connection, and whether the compiled rules allow it.

use std::collections::BTreeSet;

use trunkline_api::resources::LabelSelector;
use trunkline_api::service::Protocol;

use super::evaluate::{Packet, evaluate};
use super::input::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterRule, ClusterSubject, Direction, IpBlock,
    NamedPort, Namespace, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, Pod, PortSelector,
    Tier,
};
use super::rules::{Origin, Rules};
use super::{Labels, compile};

const WEB: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const OTHER: &str = "10.0.0.3";

fn selector(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into_iter().collect(),
        ..LabelSelector::default()
    }
}

fn pod(namespace: &str, name: &str, address: &str, port: u16) -> Pod {
    Pod {
        key: ObjectKey::new(namespace, name),
        node: "node".into(),
        host_network: false,
        labels: Labels::from_iter([("app", name)]),
        addresses: vec![address.parse().unwrap()],
        ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port }],
    }
}

fn rules(network: &[NetworkPolicy], cluster: &[ClusterPolicy]) -> Rules {
    let namespace = |name: &str| Namespace {
        name: name.into(),
        labels: Labels::from_iter([("team", name)]),
        audit: false,
    };
    let pods =
        [pod("red", "web", WEB, 8080), pod("red", "client", CLIENT, 80), pod("blue", "other", OTHER, 80)];
    compile("node", &[namespace("red"), namespace("blue")], &pods, network, cluster)
}

fn packet(source: &str, destination: &str, port: u16) -> Packet {
    Packet {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Some(Protocol::Tcp),
        port,
        established: false,
        from_node: false,
        same_pod: source == destination,
    }
}

fn enters_web(rules: &Rules, packet: &Packet) -> bool {
    evaluate(rules, &ObjectKey::new("red", "web"), Direction::Ingress, packet).accepted
}

/// A policy for the pod `web`.
fn policy(direction: Direction, peers: Vec<NetworkPeer>, ports: Vec<NetworkPort>) -> NetworkPolicy {
    let rules = vec![NetworkRule { peers, ports }];
    let (ingress, egress) = match direction {
        Direction::Ingress => (rules, Vec::new()),
        Direction::Egress => (Vec::new(), rules),
    };
    NetworkPolicy {
        key: ObjectKey::new("red", "policy"),
        pod_selector: selector("app", "web"),
        policy_types: Some(BTreeSet::from([direction])),
        ingress,
        egress,
    }
}

fn named(name: &str) -> NetworkPort {
    NetworkPort { protocol: Protocol::Tcp, port: PortSelector::Named(name.into()) }
}

fn pods(namespaces: Option<LabelSelector>, pods: Option<LabelSelector>) -> NetworkPeer {
    NetworkPeer::Pods { namespaces, pods }
}

#[test]
fn peers_of_a_network_policy() {
    let ingress = |peers| rules(&[policy(Direction::Ingress, peers, Vec::new())], &[]);
    let block = |cidr: &str, except: &[&str]| {
        let except = except.iter().map(|net| net.parse().unwrap()).collect();
        NetworkPeer::Block(IpBlock { cidr: cidr.parse().unwrap(), except })
    };
    // (peers, whether the client and the pod of the other Namespace reach `web`)
    let table = [
        ("no peer", vec![], true, true),
        ("own Namespace", vec![pods(None, None)], true, false),
        ("all Namespaces", vec![pods(Some(LabelSelector::default()), None)], true, true),
        ("a Namespace", vec![pods(Some(selector("team", "blue")), None)], false, true),
        (
            "both selectors in one peer",
            vec![pods(Some(selector("team", "blue")), Some(selector("app", "client")))],
            false,
            false,
        ),
        (
            "a selector in each of two peers",
            vec![pods(Some(selector("team", "blue")), None), pods(None, Some(selector("app", "client")))],
            true,
            true,
        ),
        ("a block with the pods", vec![block("10.0.0.0/24", &[])], true, true),
        ("a block with an exception", vec![block("10.0.0.0/24", &["10.0.0.2/32"])], false, true),
        ("a block that is its exception", vec![block("10.0.0.2/32", &["10.0.0.2/32"])], false, false),
        ("an unknown peer", vec![NetworkPeer::Unknown], false, false),
        ("an unknown peer and another", vec![NetworkPeer::Unknown, pods(None, None)], true, false),
    ];
    for (name, peers, client, other) in table {
        let rules = ingress(peers);
        assert_eq!(enters_web(&rules, &packet(CLIENT, WEB, 80)), client, "{name}");
        assert_eq!(enters_web(&rules, &packet(OTHER, WEB, 80)), other, "{name}");
        assert!(enters_web(&rules, &packet(WEB, WEB, 80)), "{name}: a pod reaches itself");
    }
}

#[test]
fn named_ports_are_those_of_the_destination() {
    let ingress = rules(&[policy(Direction::Ingress, Vec::new(), vec![named("http")])], &[]);
    assert!(enters_web(&ingress, &packet(CLIENT, WEB, 8080)));
    assert!(!enters_web(&ingress, &packet(CLIENT, WEB, 80)));

    let egress = rules(&[policy(Direction::Egress, Vec::new(), vec![named("http")])], &[]);
    let leaves_web = |destination, port| {
        let packet = packet(WEB, destination, port);
        evaluate(&egress, &ObjectKey::new("red", "web"), Direction::Egress, &packet).accepted
    };
    assert!(leaves_web(CLIENT, 80));
    assert!(!leaves_web(CLIENT, 8080));
    assert!(!leaves_web("192.0.2.1", 80), "an address outside has no named port");

    let unknown = rules(&[policy(Direction::Ingress, Vec::new(), vec![named("none")])], &[]);
    assert!(!enters_web(&unknown, &packet(CLIENT, WEB, 8080)));
}

#[test]
fn node_and_established_connections_are_exempt() {
    let mut isolated = policy(Direction::Ingress, Vec::new(), Vec::new());
    isolated.ingress.clear();
    let rules = rules(&[isolated], &[]);
    let denied = packet("172.16.0.1", WEB, 80);
    let decision = evaluate(&rules, &ObjectKey::new("red", "web"), Direction::Ingress, &denied);
    assert_eq!((decision.accepted, decision.origin), (false, Some(Origin::Isolation)));
    assert!(enters_web(&rules, &Packet { from_node: true, ..denied }));
    assert!(enters_web(&rules, &Packet { established: true, ..denied }));
}

fn cluster_policy(tier: Tier, action: Action, peer: ClusterPeer) -> ClusterPolicy {
    ClusterPolicy {
        name: format!("{tier:?}-{action:?}").to_lowercase().into(),
        tier,
        priority: 10,
        subject: ClusterSubject::Pods(ClusterPods::default()),
        ingress: vec![ClusterRule { action, peers: vec![peer], ports: Vec::new() }],
        egress: Vec::new(),
    }
}

#[test]
fn tiers_surround_network_policies() {
    let all = || ClusterPeer::Pods(ClusterPods::default());
    let cluster = |tier, action| cluster_policy(tier, action, all());
    let client_only =
        || policy(Direction::Ingress, vec![pods(None, Some(selector("app", "client")))], Vec::new());
    let pass = || ClusterPolicy { priority: 1, ..cluster(Tier::Admin, Action::Pass) };
    let deny = || cluster(Tier::Admin, Action::Deny);
    let baseline = || cluster(Tier::Baseline, Action::Deny);
    let unknown = |action| cluster_policy(Tier::Admin, action, ClusterPeer::Unknown);
    // (policies, whether the client and the pod of the other Namespace reach `web`)
    let table = [
        ("nothing", vec![], vec![], true, true),
        ("Admin denies", vec![client_only()], vec![deny()], false, false),
        ("Admin accepts", vec![client_only()], vec![cluster(Tier::Admin, Action::Accept)], true, true),
        ("Admin passes before it denies", vec![client_only()], vec![pass(), deny()], true, false),
        ("Baseline denies", vec![], vec![baseline()], false, false),
        ("Baseline denies an isolated pod", vec![client_only()], vec![baseline()], true, false),
        ("Admin passes to Baseline", vec![], vec![pass(), baseline()], false, false),
        ("unknown peer, Accept", vec![client_only()], vec![unknown(Action::Accept)], true, false),
        ("unknown peer, Deny", vec![client_only()], vec![unknown(Action::Deny)], false, false),
        ("unknown peer, Pass", vec![client_only()], vec![unknown(Action::Pass)], false, false),
    ];
    for (name, network, cluster, client, other) in table {
        let rules = rules(&network, &cluster);
        assert_eq!(enters_web(&rules, &packet(CLIENT, WEB, 80)), client, "{name}");
        assert_eq!(enters_web(&rules, &packet(OTHER, WEB, 80)), other, "{name}");
    }
}

/// A pod of unknown labels may be one of those whose packets the NetworkPolicies decide.
#[test]
fn a_pod_that_admin_may_pass_is_not_accepted_by_a_later_rule() {
    let of = |selector| ClusterPeer::Pods(ClusterPods { pods: selector, ..ClusterPods::default() });
    let passes = ClusterPolicy {
        priority: 1,
        ..cluster_policy(Tier::Admin, Action::Pass, of(selector("app", "client")))
    };
    let accepts = |tier| cluster_policy(tier, Action::Accept, of(LabelSelector::default()));
    let closed = policy(Direction::Ingress, Vec::new(), vec![named("none")]);
    let reach = |labels: Labels, cluster: &[ClusterPolicy]| {
        let namespace = Namespace { name: "red".into(), labels: Labels::default(), audit: false };
        let client = Pod { labels, ..pod("red", "client", CLIENT, 80) };
        let pods = [pod("red", "web", WEB, 80), client];
        let rules = compile("node", &[namespace], &pods, std::slice::from_ref(&closed), cluster);
        let elements = rules.sets.values().map(|set| set.elements.len()).sum::<usize>();
        (enters_web(&rules, &packet(CLIENT, WEB, 80)), elements)
    };
    let both = [passes, accepts(Tier::Admin)];
    let app = |name: &str| Labels::from_iter([("app", name)]);
    // One element for each rule that can match, and two of the set of all pods.
    assert_eq!(reach(app("client"), &both), (false, 3), "the NetworkPolicy decides");
    assert_eq!(reach(app("other"), &both), (true, 2), "the later rule accepts");
    assert_eq!(reach(Labels::UNKNOWN, &both), (false, 3), "it may be a client");
}

#[test]
fn pods_with_equal_policies_share_chains_and_sets() {
    let mut everyone = policy(Direction::Ingress, vec![pods(None, None)], Vec::new());
    everyone.pod_selector = LabelSelector::default();
    let mut second = everyone.clone();
    second.key = ObjectKey::new("red", "second");
    let rules = rules(&[everyone, second], &[]);
    // An entry chain and one chain for each policy, for two pods.
    assert_eq!((rules.pods.len(), rules.chains.len(), rules.sets.len()), (2, 3, 1));
    let elements = rules.sets.values().flat_map(|set| &set.elements).count();
    assert_eq!(elements, 2);
}
