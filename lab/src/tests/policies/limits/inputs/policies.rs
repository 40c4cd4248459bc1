//! The rows about network policies.

use serde_json::{Value, json};

use super::write::{
    LARGEST, NAMESPACES, POLICY, container, create, create_each, create_everywhere, create_many, labels,
    labels_of, mark_namespace, number, pods, pods_of,
};
use super::{Input, costly, input};

/// Octets of a block in JSON.
const BLOCK: usize = 48;
/// Pods of an input, each with large labels.
const PODS: usize = 4;
/// Most policies of an input. Each takes some milliseconds to write.
const MOST_POLICIES: usize = 10_000;
/// The pods of an input with large sets, and its most policies.
const ALL_PODS: usize = 250;
const MOST_POLICIES_OF_SETS: usize = 500;
/// Most pods of an input.
const MOST_PODS: usize = 4_000;

pub(super) const INPUTS: &[Input] = &[
    costly("a NetworkPolicy or ClusterNetworkPolicy as written", |world, scale| {
        create_many(world, POLICY, 1, ingress(&json!([rule(10_000 * scale, 10_000 * scale)])))
    }),
    input("the policies of a Namespace as written; all ClusterNetworkPolicies", |world, scale| {
        create_many(world, POLICY, number(4 * scale, 500_000), ingress(&json!([rule(1_000, 9_000)])))
    }),
    input("all NetworkPolicies of the cluster as written", |world, scale| {
        create_everywhere(world, POLICY, number(10 * scale, 500_000), ingress(&json!([rule(1_000, 9_000)])))
    }),
    input(
        "the policies of a Namespace that select a pod of a node; all ClusterNetworkPolicies",
        |world, scale| create_many(world, POLICY, number(4 * scale, 2_000 * BLOCK), ingress(&rules(2_000))),
    ),
    costly("one of these policies", |world, scale| {
        create_many(world, POLICY, 1, ingress(&rules(4_000 * scale)))
    }),
    input("all NetworkPolicies of a node", |world, scale| {
        create_everywhere(world, POLICY, number(32 * scale, 2_000 * BLOCK), ingress(&rules(2_000)))
    }),
    input("sets of all NetworkPolicies of a node, and their elements", |world, scale| {
        // Each peer is a set with all pods of the cluster.
        pods(world, ALL_PODS, json!({}))?;
        create_each(world, POLICY, (2 * NAMESPACES * scale).min(MOST_POLICIES_OF_SETS), |n| {
            let peer = |set: usize| {
                let values = [format!("{n}-{set}")];
                let expression = json!({ "key": "app", "operator": "NotIn", "values": values });
                let selector = json!({ "matchExpressions": [expression] });
                json!({ "ports": [{ "port": set + 1 }], "from": [{ "namespaceSelector": {}, "podSelector": selector }] })
            };
            ingress(&(0..250).map(peer).collect::<Vec<_>>().into())
        })
    }),
    input("policies of a Namespace that fail closed", |world, scale| {
        // Each of them is a stub with a selector of 60 kB.
        let values: Vec<String> = (0..900).map(|n| format!("{n:x>60}")).collect();
        let selector = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": values }] });
        let spec = json!({ "podSelector": selector, "ingress": [rule(9_000, 9_000)] });
        create_many(world, POLICY, number(5 * scale, 700_000), json!({ "spec": spec }))
    }),
    input("number of NetworkPolicies of a Namespace", |world, scale| {
        let spec = json!({ "podSelector": {}, "policyTypes": ["Ingress"] });
        create_many(world, POLICY, (2_000 * scale).min(MOST_POLICIES), json!({ "spec": spec }))
    }),
    input("the selector of the pods to which a policy applies", |world, scale| {
        let values: Vec<String> = (0..(1_000 * scale).min(50_000)).map(|n| format!("{n:x}")).collect();
        let selector = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": values }] });
        let spec = json!({ "podSelector": selector, "ingress": [rule(9_000, 9_000)] });
        create_many(world, POLICY, 1, json!({ "spec": spec }))
    }),
    costly(
        "labels of a pod that ClusterNetworkPolicies or policies of its own Namespace name",
        |world, scale| {
            let labels = labels(40 * scale);
            create(world, POLICY, "keys", ingress(&json!([{ "from": peers(labels.keys()) }])))?;
            pods(world, PODS, json!({ "labels": labels }))
        },
    ),
    input("labels of a pod that only policies of other Namespaces name", |world, scale| {
        let labels = labels(40 * scale);
        create_everywhere(world, POLICY, 1, ingress(&json!([{ "from": peers(labels.keys()) }])))?;
        pods(world, PODS, json!({ "labels": labels }))
    }),
    input("the first kind of labels, of all pods of a Namespace", |world, scale| {
        let labels = labels(50);
        create(world, POLICY, "keys", ingress(&json!([{ "from": peers(labels.keys()) }])))?;
        pods(world, (1_000 * scale).min(MOST_PODS), json!({ "labels": labels }))
    }),
    input("the second kind, of all pods of a Namespace", |world, scale| {
        let labels = labels(50);
        create_everywhere(world, POLICY, 1, ingress(&json!([{ "from": peers(labels.keys()) }])))?;
        pods(world, (1_000 * scale).min(MOST_PODS), json!({ "labels": labels }))
    }),
    costly("labels of a pod that no policy names", |world, scale| {
        let labels = labels_of(LARGEST);
        pods(world, number(PODS * scale, LARGEST), json!({ "labels": labels }))
    }),
    input("labels of a Namespace that policies name", |world, scale| {
        let labels = labels_of(8_192 * scale);
        let keys = labels.as_object().into_iter().flatten().map(|(key, _)| key);
        let of_key = |key: &String| json!({ "namespaceSelector": { "matchLabels": { key: "" } } });
        let peers: Vec<Value> = keys.take(5_000).map(of_key).collect();
        create(world, POLICY, "keys", ingress(&json!([{ "from": peers }])))?;
        mark_namespace(world, &json!({ "labels": labels }))
    }),
    input("named ports of a pod", |world, scale| {
        let ports: Vec<Value> = (0..(64 * scale).min(10_000))
            .map(|n| json!({ "name": format!("p{n:x}"), "containerPort": n + 1 }))
            .collect();
        let mut containers = container();
        containers[0]["ports"] = ports.into();
        let named: Vec<Value> =
            (0..(64 * scale).min(1_000)).map(|n| json!({ "port": format!("p{n:x}") })).collect();
        create(world, POLICY, "named", ingress(&json!([{ "ports": named }])))?;
        pods_of(world, PODS, json!({}), containers)
    }),
    input("ports of a pod with one name and protocol", |world, scale| {
        let containers: Vec<Value> = (0..(4 * scale).min(60))
            .map(|n| {
                json!({
                    "name": format!("c{n}"), "image": "pretended",
                    "ports": [{ "name": "same", "containerPort": n + 1 }],
                })
            })
            .collect();
        create(world, POLICY, "named", ingress(&json!([{ "ports": [{ "port": "same" }] }])))?;
        pods_of(world, 10 * PODS, json!({}), containers.into())
    }),
    input("new keys of labels in policies", |world, scale| {
        (0..(10 * scale).min(500)).try_for_each(|n| {
            create(
                world,
                POLICY,
                &format!("key{n}"),
                ingress(&json!([{ "from": peers([&format!("new{n}")]) }])),
            )
        })
    }),
    input("policies that wait for new keys", |world, scale| {
        (0..(10 * scale).min(100)).try_for_each(|n| {
            let keys: Vec<String> = (0..1_000).map(|key| format!("wait{n}-{key}")).collect();
            create(world, POLICY, &format!("wait{n}"), ingress(&json!([{ "from": peers(&keys) }])))
        })
    }),
    input("addresses that leave their pods", |world, scale| pods(world, (20 * scale).min(500), json!({}))),
    input("writes of `policies.json`", |world, scale| {
        create_many(world, POLICY, (10 * scale).min(500), ingress(&json!([rule(10, 10)])))
    }),
];

/// Peers by labels that begin with these keys.
fn peers<'a>(keys: impl IntoIterator<Item = &'a String>) -> Vec<Value> {
    keys.into_iter().map(|key| json!({ "podSelector": { "matchLabels": { key: "" } } })).collect()
}

/// A rule with this many peers and ports, as far as an object can have them.
fn rule(peers: usize, ports: usize) -> Value {
    let ports: Vec<Value> = (0..ports.min(30_000)).map(|n| json!({ "port": 2 * n + 1 })).collect();
    let block = |n: usize| json!({ "ipBlock": { "cidr": format!("20.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255) } });
    let room = (LARGEST - 20 * ports.len()) / BLOCK;
    let peers: Vec<Value> = (0..peers.min(room)).map(block).collect();
    json!({ "from": peers, "ports": ports })
}

/// This many rules, as far as an object can have them, each with a port of its own.
fn rules(number: usize) -> Value {
    (0..number.min(12_000))
        .map(|n| json!({ "ports": [{ "port": n + 1 }], "from": [{ "podSelector": {} }] }))
        .collect::<Vec<_>>()
        .into()
}

/// A policy for all pods of its Namespace.
fn ingress(ingress: &Value) -> Value {
    json!({ "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress } })
}
