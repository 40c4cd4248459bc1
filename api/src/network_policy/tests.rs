//! Policies in JSON, and the policy and faults that the reader makes of them.

use serde_json::{Value, json};

use super::*;
use crate::resources::{LabelSelector, Operator};
use crate::service::Protocol;

fn network(spec: Value) -> (NetworkPolicy, Vec<String>) {
    let read = read_network_policy(ObjectKey::new("shop", "p"), &spec);
    let texts = read.fault_texts();
    (read.object, texts)
}

fn cluster(spec: Value) -> (ClusterPolicy, Vec<String>) {
    let read = read_cluster_policy("p".into(), &spec);
    let texts = read.fault_texts();
    (read.object, texts)
}

fn labels(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: [(key.to_owned(), value.to_owned())].into(), ..LabelSelector::default() }
}

fn prefix(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

fn tcp(port: PortSelector) -> NetworkPort {
    NetworkPort { protocol: Protocol::Tcp, port }
}

/// The example of Kubernetes' page about NetworkPolicies.
#[test]
fn the_documented_network_policy_is_read() {
    let (policy, faults) = network(json!({
        "podSelector": {"matchLabels": {"role": "db"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                {"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
                {"namespaceSelector": {"matchLabels": {"project": "myproject"}}},
                {"podSelector": {"matchLabels": {"role": "frontend"}}},
            ],
            "ports": [{"protocol": "TCP", "port": 6379}],
        }],
        "egress": [{
            "to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
            "ports": [{"protocol": "TCP", "port": 5978}],
        }],
    }));
    assert_eq!(faults, [""; 0]);
    assert_eq!(policy.pod_selector, labels("role", "db"));
    assert!(Direction::ALL.into_iter().all(|direction| policy.applies_to(direction)));
    let block = IpBlock { cidr: prefix("172.17.0.0/16"), except: vec![prefix("172.17.1.0/24")] };
    let ingress = NetworkRule {
        peers: vec![
            NetworkPeer::Block(block),
            NetworkPeer::Pods { namespaces: Some(labels("project", "myproject")), pods: None },
            NetworkPeer::Pods { namespaces: None, pods: Some(labels("role", "frontend")) },
        ],
        ports: vec![tcp(PortSelector::Range(6379, 6379))],
    };
    assert_eq!(policy.ingress, [ingress]);
    assert_eq!(policy.egress[0].ports, [tcp(PortSelector::Range(5978, 5978))]);
}

/// Default policies of Kubernetes' page: deny or allow all of a direction.
#[test]
fn default_policies_are_read() {
    let directions = |spec: Value| {
        let (policy, faults) = network(spec);
        assert_eq!(faults, [""; 0]);
        Direction::ALL.map(|direction| (policy.applies_to(direction), policy.rules(direction).to_vec()))
    };
    let allow = || vec![NetworkRule::default()];
    for (spec, ingress, egress) in [
        (json!({"podSelector": {}, "policyTypes": ["Ingress"]}), (true, vec![]), (false, vec![])),
        (
            json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["Ingress"]}),
            (true, allow()),
            (false, vec![]),
        ),
        (json!({"podSelector": {}, "policyTypes": ["Egress"]}), (false, vec![]), (true, vec![])),
        (
            json!({"podSelector": {}, "egress": [{}], "policyTypes": ["Egress"]}),
            (false, vec![]),
            (true, allow()),
        ),
        (json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), (true, vec![]), (true, vec![])),
        (json!({"podSelector": {}, "egress": [{"to": null, "ports": []}]}), (true, vec![]), (true, allow())),
        (json!({"policyTypes": null, "ingress": null, "egress": []}), (true, vec![]), (false, vec![])),
        (json!({}), (true, vec![]), (false, vec![])),
        (Value::Null, (true, vec![]), (false, vec![])),
    ] {
        assert_eq!(directions(spec.clone()), [ingress, egress], "{spec}");
    }
}

#[test]
fn both_selectors_of_a_peer_and_expressions_are_read() {
    let (policy, faults) = network(json!({"ingress": [{"from": [{
        "namespaceSelector": {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["dev"]}]},
        "podSelector": {},
    }]}]}));
    assert_eq!(faults, [""; 0]);
    let [NetworkPeer::Pods { namespaces: Some(namespaces), pods: Some(pods) }] = &*policy.ingress[0].peers
    else {
        panic!("{policy:?}")
    };
    assert_eq!(namespaces.match_expressions[0].operator, Operator::NotIn);
    assert!(pods.is_empty());
}

#[test]
fn ports_are_read() {
    for (port, protocol, expected) in [
        (json!({}), Protocol::Tcp, PortSelector::Any),
        (json!({"protocol": "SCTP"}), Protocol::Sctp, PortSelector::Any),
        (json!({"port": 53, "protocol": "UDP"}), Protocol::Udp, PortSelector::Range(53, 53)),
        (json!({"port": 32000, "endPort": 32768}), Protocol::Tcp, PortSelector::Range(32000, 32768)),
        (json!({"port": 80, "endPort": 80}), Protocol::Tcp, PortSelector::Range(80, 80)),
        (json!({"port": "http-2"}), Protocol::Tcp, PortSelector::Named("http-2".into())),
    ] {
        let (policy, faults) = network(json!({"ingress": [{"ports": [port]}]}));
        assert_eq!(
            (&*faults, &*policy.ingress[0].ports),
            (&[][..], &[NetworkPort { protocol, port: expected }][..])
        );
    }
}

#[test]
fn a_faulty_port_matches_nothing() {
    for (port, field, message) in [
        (json!({"port": 70000}), ".port", "70000 is no port: write 1 to 65535"),
        (json!({"port": 0}), ".port", "0 is no port"),
        (json!({"port": -1}), ".port", "-1 is no port"),
        (json!({"port": 1.5}), ".port", "1.5 is no port"),
        (json!({"port": true}), ".port", "true is no port"),
        (json!({"port": "80"}), ".port", "\"80\" is a text: write 80 without quotes"),
        (json!({"port": "Http"}), ".port", "\"Http\" is no name of a port"),
        (json!({"port": ""}), ".port", "\"\" is no name of a port"),
        (json!({"port": "a-name-of-more-than-fifteen"}), ".port", "is no name of a port"),
        (json!({"port": 80, "endPort": 79}), ".endPort", "79 is less than port: write 80 to 65535"),
        (json!({"port": 80, "endPort": 65536}), ".endPort", "65536 is no port"),
        (json!({"endPort": 80}), ".endPort", "needs port"),
        (json!({"port": "http", "endPort": 90}), ".endPort", "needs port as a number"),
        (
            json!({"port": 80, "protocol": "tcp"}),
            ".protocol",
            "\"tcp\" is no protocol: write TCP, UDP or SCTP",
        ),
        (json!({"port": 80, "sourcePort": 1}), ".sourcePort", "this version does not know the field"),
        (json!(80), "", "80 is no mapping"),
        (Value::Null, "", "null is no mapping"),
    ] {
        let (policy, faults) = network(json!({"ingress": [{"ports": [{"port": 1}, port]}]}));
        assert_eq!(policy.ingress[0].ports[0], tcp(PortSelector::Range(1, 1)));
        assert_eq!(policy.ingress[0].ports[1].port, PortSelector::Invalid, "{port}");
        let [fault] = &*faults else { panic!("{faults:?}") };
        assert!(fault.starts_with(&format!("spec.ingress[0].ports[1]{field}: ")), "{fault}");
        assert!(fault.contains(message) && fault.ends_with("; this entry matches nothing"), "{fault}");
    }
}

#[test]
fn a_faulty_peer_matches_nothing() {
    let block = |cidr: Value, except: Value| json!({"ipBlock": {"cidr": cidr, "except": except}});
    for (peer, field, message) in [
        (json!({}), "", "is empty: write podSelector, namespaceSelector or ipBlock"),
        (json!({"podSelector": null}), "", "is empty"),
        (json!({"serviceSelector": {}}), ".serviceSelector", "this version does not know the field"),
        (json!({"podSelector": {}, "nodeSelector": {}}), ".nodeSelector", "this version does not know"),
        (json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}), "", "has an ipBlock and a selector"),
        (json!({"ipBlock": {}}), ".ipBlock", "has no cidr"),
        (block(json!("10.0.0.0/33"), Value::Null), ".ipBlock.cidr", "\"10.0.0.0/33\" is no prefix"),
        (block(json!("10.0.0.1"), Value::Null), ".ipBlock.cidr", "is no prefix"),
        (block(json!(10), Value::Null), ".ipBlock.cidr", "10 is no prefix"),
        (block(json!("::ffff:10.0.0.0/104"), Value::Null), ".ipBlock.cidr", "IPv4 address in IPv6 form"),
        (block(json!("10.0.0.0/8"), json!(["x"])), ".ipBlock.except[0]", "\"x\" is no prefix"),
        (
            block(json!("10.0.0.0/8"), json!(["11.0.0.0/16"])),
            ".ipBlock.except[0]",
            "is not within 10.0.0.0/8",
        ),
        (block(json!("10.0.0.0/8"), json!(["fd00::/64"])), ".ipBlock.except[0]", "is not within 10.0.0.0/8"),
        (block(json!("10.0.0.0/8"), json!("10.1.0.0/16")), ".ipBlock.except", "is no list"),
        (json!({"podSelector": {"matchField": {}}}), ".podSelector.matchField", "does not know the field"),
        (
            json!({"podSelector": {"matchLabels": {"a.b/c": 1}}}),
            ".podSelector.matchLabels.a.b/c",
            "1 is no text",
        ),
        (json!({"podSelector": {"matchLabels": []}}), ".podSelector.matchLabels", "[] is no mapping"),
        (
            json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
            ".namespaceSelector.matchExpressions[0].operator",
            "\"Gt\" is no operator: write In, NotIn, Exists or DoesNotExist",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}}),
            ".podSelector.matchExpressions[0]",
            "has no values",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]}}),
            ".podSelector.matchExpressions[0]",
            "has values",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"operator": "Exists"}]}}),
            ".podSelector.matchExpressions[0]",
            "has no key",
        ),
        (json!("all"), "", "\"all\" is no mapping"),
    ] {
        let (policy, faults) = network(json!({"egress": [{"to": [{"podSelector": {}}, peer]}]}));
        assert!(
            matches!(&*policy.egress[0].peers, [NetworkPeer::Pods { .. }, NetworkPeer::Unknown]),
            "{peer}"
        );
        let [fault] = &*faults else { panic!("{faults:?}") };
        assert!(fault.starts_with(&format!("spec.egress[0].to[1]{field}: ")), "{fault}");
        assert!(fault.contains(message) && fault.ends_with("; this peer matches nothing"), "{fault}");
    }
}

#[test]
fn a_faulty_rule_matches_nothing_and_keeps_its_index() {
    for (rule, field) in [
        (json!({"from": [{"podSelector": {}}]}), ".from"),
        (json!({"to": [{"podSelector": {}}], "action": "Deny"}), ".action"),
        (json!({"to": {}}), ".to"),
        (json!({"ports": 80}), ".ports"),
        (json!([]), ""),
    ] {
        let (policy, faults) = network(json!({"egress": [rule, {}]}));
        assert_eq!(policy.egress[0].peers, [NetworkPeer::Unknown], "{rule}");
        assert_eq!(policy.egress[1], NetworkRule::default());
        let [fault] = &*faults else { panic!("{faults:?}") };
        assert!(fault.starts_with(&format!("spec.egress[0]{field}: ")), "{fault}");
        assert!(fault.ends_with("; this rule matches nothing"), "{fault}");
    }
    let (policy, faults) = network(json!({"egress": {"to": []}}));
    assert!(policy.applies_to(Direction::Egress) && policy.applies_to(Direction::Ingress));
    assert_eq!(policy.egress[0].peers, [NetworkPeer::Unknown]);
    assert!(faults[0].starts_with("spec.egress: "), "{faults:?}");
}

#[test]
fn a_faulty_pod_selector_isolates_and_allows_nothing() {
    let (policy, faults) = network(json!({
        "podSelector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "a", "operator": "Like", "values": ["x"]}],
        },
        "ingress": [{}],
    }));
    assert_eq!(policy.pod_selector, labels("app", "web"));
    assert_eq!(policy.ingress[0].peers, [NetworkPeer::Unknown]);
    assert_eq!(faults.len(), 1);
    let (policy, _) = network(json!({"podSelector": "web", "egress": [{}]}));
    assert!(policy.pod_selector.is_empty());
    assert_eq!(policy.egress[0].peers, [NetworkPeer::Unknown]);
}

#[test]
fn other_faults_of_a_network_policy_keep_its_rules() {
    let (policy, faults) =
        network(json!({"policyTypes": ["Ingress", "Sideways"], "ingress": [{}], "mode": 1}));
    assert_eq!(policy.policy_types, Some([Direction::Ingress].into()));
    assert_eq!(policy.ingress, [NetworkRule::default()]);
    assert_eq!(
        faults,
        [
            "spec.mode: this version does not know the field: write one of podSelector, policyTypes, ingress, \
             egress, or update Trunkline; the field has no effect",
            "spec.policyTypes[1]: \"Sideways\" is no policy type: write Ingress or Egress; this entry has no effect",
        ]
    );
}

#[test]
fn the_number_and_length_of_faults_have_a_bound() {
    let ports: Vec<Value> = (0..1000).map(|_| json!({"port": "x".repeat(10_000)})).collect();
    let (policy, faults) = network(json!({"ingress": [{"ports": ports}]}));
    assert_eq!((policy.ingress[0].ports.len(), faults.len()), (1000, 21));
    assert_eq!(faults[20], "980 further faults: correct the first ones");
    assert!(faults.iter().all(|fault| fault.len() < 250), "{}", faults[0]);
}

fn rule(rule: Value) -> Value {
    json!({"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "egress": [rule]})
}

#[test]
fn a_cluster_policy_is_read() {
    let (policy, faults) = cluster(json!({
        "tier": "Admin", "priority": 10,
        "subject": {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {}}},
        "ingress": [
            {"name": "deny", "action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "b"}}}]},
            {
                "action": "Accept",
                "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "m"}}}}],
                "protocols": [
                    {"tcp": {"destinationPort": {"number": 80}}},
                    {"udp": {"destinationPort": {"range": {"start": 1000, "end": 2000}}}},
                    {"sctp": {"destinationPort": {"number": 9}}},
                    {"destinationNamedPort": "web"},
                ],
            },
        ],
        "egress": [{"action": "Pass", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]}, {"namespaces": {}}]}],
    }));
    assert_eq!(faults, [""; 0]);
    assert_eq!((policy.tier, policy.priority), (Tier::Admin, 10));
    let subject = ClusterPods { namespaces: labels("team", "a"), ..ClusterPods::default() };
    assert_eq!(policy.subject, ClusterSubject::Pods(subject));
    assert_eq!(policy.ingress[0].action, Action::Deny);
    let numbered = |protocol, first, last| ClusterPort::Numbered { protocol, range: Some((first, last)) };
    assert_eq!(
        policy.ingress[1].ports,
        [
            numbered(Protocol::Tcp, 80, 80),
            numbered(Protocol::Udp, 1000, 2000),
            numbered(Protocol::Sctp, 9, 9),
            ClusterPort::Named("web".into()),
        ]
    );
    assert_eq!(
        policy.egress[0].peers[0],
        ClusterPeer::Networks(vec![prefix("10.0.0.0/8"), prefix("fd00::/8")])
    );
    assert!(Direction::ALL.iter().all(|way| policy.rules(*way).iter().all(|rule| !rule.is_unknown(*way))));
}

#[test]
fn a_cluster_policy_without_a_place_selects_nothing() {
    let good = json!({"tier": "Baseline", "priority": 0, "subject": {"namespaces": {}}});
    assert_eq!(cluster(good.clone()).1, [""; 0]);
    for (key, value, message) in [
        ("tier", json!("Operator"), "spec.tier: \"Operator\" is no tier: write Admin or Baseline"),
        ("tier", Value::Null, "spec: has no tier"),
        ("priority", json!(1001), "spec.priority: 1001 is no priority: write 0 to 1000"),
        ("priority", json!(-1), "spec.priority: -1"),
        ("priority", Value::Null, "spec: has no priority"),
        ("subject", Value::Null, "spec: has no subject"),
        ("subject", json!({}), "spec.subject: is empty: write namespaces or pods"),
        ("subject", json!({"nodes": {}}), "spec.subject.nodes: this version does not know the field"),
        ("subject", json!({"namespaces": {}, "pods": {}}), "spec.subject: has namespaces and pods"),
        ("subject", json!({"pods": {"namespaceSelector": {}}}), "spec.subject.pods: has no podSelector"),
        ("subject", json!({"namespaces": {"matchLabels": 1}}), "spec.subject.namespaces.matchLabels: 1"),
        ("mode", json!("x"), "spec.mode: this version does not know the field"),
    ] {
        let mut spec = good.clone();
        spec[key] = value;
        let (policy, faults) = cluster(spec.clone());
        assert_eq!(policy.subject, ClusterSubject::Unknown, "{spec}");
        let [fault] = &*faults else { panic!("{faults:?}") };
        assert!(fault.starts_with(message) && fault.ends_with("; the policy selects no pod"), "{fault}");
    }
    for spec in [Value::Null, json!([])] {
        assert_eq!(cluster(spec).0.subject, ClusterSubject::Unknown);
    }
}

#[test]
fn a_faulty_cluster_rule_fails_closed() {
    let peers = json!([{"namespaces": {}}]);
    for (fault, field) in [
        (json!({"to": []}), ""),
        (json!({"to": null}), ""),
        (json!({"to": [{}]}), ".to[0]"),
        (json!({"to": [{"nodes": {}}]}), ".to[0].nodes"),
        (json!({"to": [{"domainNames": ["*.example.org"]}]}), ".to[0].domainNames"),
        (json!({"to": [{"services": {}}]}), ".to[0].services"),
        (json!({"to": [{"namespaces": {}, "networks": ["10.0.0.0/8"]}]}), ".to[0]"),
        (json!({"to": [{"networks": []}]}), ".to[0].networks"),
        (json!({"to": [{"networks": ["10.0.0.1/8"]}]}), ".to[0].networks[0]"),
        (json!({"to": [{"networks": ["10.0.0.0"]}]}), ".to[0].networks[0]"),
        (json!({"to": peers, "protocols": [{}]}), ".protocols[0]"),
        (json!({"to": peers, "protocols": [{"icmp": {}}]}), ".protocols[0].icmp"),
        (json!({"to": peers, "protocols": [{"tcp": {}}]}), ".protocols[0].tcp"),
        (
            json!({"to": peers, "protocols": [{"tcp": {"sourcePort": {"number": 1}}}]}),
            ".protocols[0].tcp.sourcePort",
        ),
        (
            json!({"to": peers, "protocols": [{"tcp": {"destinationPort": {"number": 65536}}}]}),
            ".protocols[0].tcp.destinationPort.number",
        ),
        (
            json!({"to": peers, "protocols": [{"udp": {"destinationPort": {"range": {"start": 2, "end": 1}}}}]}),
            ".protocols[0].udp.destinationPort.range.end",
        ),
        (
            json!({"to": peers, "protocols": [{"udp": {"destinationPort": {"range": {"start": 2}}}}]}),
            ".protocols[0].udp.destinationPort.range",
        ),
        (json!({"to": peers, "log": true}), ".log"),
        (json!({"to": peers, "from": peers}), ".from"),
    ] {
        for (action, effect) in
            [("Accept", "matches nothing"), ("Deny", "denies everything"), ("Pass", "denies everything")]
        {
            let mut spec = fault.clone();
            spec["action"] = json!(action);
            let (policy, faults) = cluster(rule(spec.clone()));
            assert!(policy.egress[0].is_unknown(Direction::Egress), "{spec}");
            assert_eq!(format!("{:?}", policy.egress[0].action), action);
            let [fault] = &*faults else { panic!("{faults:?}") };
            assert!(fault.starts_with(&format!("spec.egress[0]{field}: ")), "{fault}");
            assert!(fault.ends_with(&format!("; this rule {effect}")), "{fault}");
        }
    }
}

#[test]
fn an_unknown_action_denies_everything() {
    for spec in
        [json!({"action": "Log", "to": [{"namespaces": {}}]}), json!({"to": [{"namespaces": {}}]}), json!(1)]
    {
        let (policy, faults) = cluster(rule(spec));
        assert_eq!((policy.egress[0].action, faults.len()), (Action::Deny, 1));
        assert!(policy.egress[0].is_unknown(Direction::Egress));
    }
    let mut spec = rule(Value::Null);
    spec["egress"] = json!({});
    assert!(cluster(spec).0.egress[0].is_unknown(Direction::Egress));
}

#[test]
fn networks_are_no_peer_of_ingress() {
    let (policy, faults) = cluster(json!({
        "tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
        "ingress": [{"action": "Accept", "from": [{"networks": ["10.0.0.0/8"]}]}],
    }));
    assert_eq!(policy.ingress[0].peers, [ClusterPeer::Unknown]);
    assert!(
        faults[0].starts_with("spec.ingress[0].from[0].networks: this version does not know"),
        "{faults:?}"
    );
}
