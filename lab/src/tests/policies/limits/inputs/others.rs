//! The rows about Services, EndpointSlices, the objects of Multus and KubeVirt, and Nodes.

use anyhow::Result;
use serde_json::{Value, json};
use trunkline_api::kept;
use trunkline_api::names::{LOAD_BALANCER_CLASS, REMOTE_ENDPOINTS_MANAGER, annotation};

use super::super::super::world::World;
use super::write::{
    DEFINITION, LARGEST, MIGRATION, NODE, NODE_INFO, POLICY, SERVICE, SLICE, VM, VMI, change, create,
    create_many, create_of_cluster, labels_of, mark_namespace, number, pods, status,
};
use super::{Input, input};

/// Objects of an input.
const OBJECTS: usize = 4;
/// Most endpoints of an EndpointSlice that the API server stores.
const MOST_ENDPOINTS: usize = 1_000;
/// Most ports of an EndpointSlice that the API server stores.
const MOST_SLICE_PORTS: usize = 20_000;

pub(super) const INPUTS: &[Input] = &[
    input("labels of a Service of type LoadBalancer", |world, scale| {
        services(world, &json!({ "labels": labels_of(kept::MAX_LABELS * scale) }), 1)
    }),
    input("annotations of a Service about addresses, `loadBalancerIP`", |world, scale| {
        let value = "1.2.3.4,".repeat((kept::MAX_SERVICE_ANNOTATIONS / 8 * scale).min(30_000));
        services(world, &json!({ "annotations": { annotation::ADDRESSES: value } }), 1)
    }),
    input("ports of a Service of type LoadBalancer", |world, scale| {
        services(world, &json!({}), (kept::MAX_SERVICE_PORTS * scale).min(16_000))
    }),
    input("ports of the Services of one address, when one of them changes", |world, scale| {
        (0..(4 * scale).min(40)).try_for_each(|n| {
            let ports: Vec<Value> = (0..1_500)
                .map(|port| json!({ "name": format!("p{port}"), "port": 1_500 * n + port + 1 }))
                .collect();
            let metadata = json!({ "annotations": { annotation::SHARING_KEY: "one" } });
            create(
                world,
                SERVICE,
                &format!("written{n}"),
                json!({ "metadata": metadata, "spec": balanced(&ports) }),
            )
        })
    }),
    input("changes that may help waiting pods and Services", |world, scale| {
        pods(world, 10 * OBJECTS, json!({ "annotations": { annotation::MULTUS_NETWORKS: "missing" } }))?;
        let config =
            json!({ "cniVersion": "1.0.0", "name": "written", "type": "trunkline-cni", "network": "rack1" });
        create_many(
            world,
            DEFINITION,
            (10 * scale).min(500),
            json!({ "spec": { "config": config.to_string() } }),
        )
    }),
    input("changes of a global Service", |world, scale| global(world, annotation::GLOBAL_SERVICE, scale)),
    input("unknown values of `global-service-affinity`", |world, scale| {
        global(world, annotation::GLOBAL_SERVICE_AFFINITY, scale)
    }),
    input("an EndpointSlice", |world, scale| {
        slices(world, scale, &json!({ "kubernetes.io/service-name": "written0" }))
    }),
    input("an EndpointSlice with the label of remote endpoints", |world, scale| {
        let labels = json!({
            "kubernetes.io/service-name": "written0",
            "endpointslice.kubernetes.io/managed-by": REMOTE_ENDPOINTS_MANAGER,
        });
        slices(world, scale, &labels)
    }),
    input("faults of a NetworkPolicy", |world, scale| {
        // The API server accepts no other fault than a policy above its bound.
        let ports: Vec<Value> = (0..30_000).map(|n| json!({ "port": n + 1 })).collect();
        let spec = json!({ "podSelector": {}, "ingress": [{ "ports": ports }] });
        create_many(world, POLICY, number(scale, LARGEST), json!({ "spec": spec }))
    }),
    input("a NetworkAttachmentDefinition", |world, scale| {
        let subnets: Vec<String> = (0..(16 * scale).min(1_000)).map(|n| format!("subnet{n}")).collect();
        let config = json!({
            "cniVersion": "1.0.0", "name": "written", "type": "trunkline-cni",
            "network": "x".repeat(kept::MAX_NAME * scale), "subnet": subnets.join(","),
        });
        let spec = json!({ "spec": { "config": config.to_string() } });
        create_many(world, DEFINITION, OBJECTS * scale.min(20), spec)?;
        pods(world, OBJECTS, json!({ "annotations": { annotation::MULTUS_NETWORKS: "written0" } }))
    }),
    input("a VirtualMachine", |world, scale| {
        create_many(world, VM, number(OBJECTS * scale, 100_000), machine(scale))
    }),
    input("a VirtualMachineInstance", |world, scale| {
        create_many(world, VMI, number(OBJECTS * scale, 100_000), machine(scale))?;
        let state = json!({
            "nodeName": "x".repeat(kept::MAX_NAME * scale),
            "migrationState": { "targetPod": "x".repeat(kept::MAX_NAME * scale) },
        });
        status(world, VMI, "written0", &state)
    }),
    input("a VirtualMachineInstanceMigration", |world, scale| {
        let mut migration = machine(scale);
        migration["spec"]["vmiName"] = json!("x".repeat(kept::MAX_NAME * scale));
        create_many(world, MIGRATION, number(OBJECTS * scale, 100_000), migration)
    }),
    input("labels of a Node", |world, scale| {
        create_of_cluster(
            world,
            NODE,
            json!({ "metadata": { "labels": labels_of(kept::MAX_LABELS * scale) } }),
        )
    }),
    input("ports of a Service", |world, scale| {
        services(world, &json!({}), (kept::MAX_SERVICE_PORTS * scale).min(16_000))
    }),
    input(
        "addresses of a Service, of the kinds that a ServiceAdvertisement has; others are not kept",
        |world, scale| {
            let mut spec = balanced(&[json!({ "port": 80 })]);
            spec["externalIPs"] = addresses(64 * scale, 30);
            create_many(world, SERVICE, OBJECTS, json!({ "spec": spec }))
        },
    ),
    input("ports of an EndpointSlice", |world, scale| {
        named_ports(world, 1, (kept::MAX_SERVICE_PORTS * scale).min(MOST_SLICE_PORTS))
    }),
    input(
        "endpoints of a Service on one node, in one IP family. Ports in different EndpointSlices count them separately",
        |world, scale| slices(world, scale, &json!({ "kubernetes.io/service-name": "written0" })),
    ),
    input("labels of a Service", |world, scale| {
        services(world, &json!({ "labels": labels_of(kept::MAX_LABELS * scale) }), 1)
    }),
    input("labels of a Namespace", |world, scale| {
        mark_namespace(world, &json!({ "labels": labels_of(kept::MAX_LABELS * scale) }))
    }),
    input("names of ports, Services and EndpointSlices that no object has any more", |world, scale| {
        named_ports(world, (5 * scale).min(50), 1_000)
    }),
    input("addresses of a Node (`status.addresses`)", |world, scale| node(world, 16 * scale, 31, &json!({}))),
    input("the same, with the annotation `networking.alibaba.com/extra-local-ips`", |world, scale| {
        let extra: Vec<String> =
            (0..(64 * scale).min(10_000)).map(|n| format!("31.1.{}.{}", n >> 8, n & 255)).collect();
        node(world, 16, 31, &json!({ "annotations": { annotation::EXTRA_LOCAL_IPS: extra.join(",") } }))
    }),
    // The pool of the test.
    input("addresses of a Node inside a ServicePool", |world, scale| {
        node(world, 16 * scale, POOL, &json!({}))
    }),
    input("addresses of a Node outside of all ServicePools", |world, scale| {
        node(world, 16 * scale, 32, &json!({}))
    }),
    input("`spec.vtepInfo.localIPs` of a NodeInfo", |world, scale| node_info(world, 64 * scale, 33)),
    input("`localIPs` of a NodeInfo or RemoteVtep", |world, scale| node_info(world, 64 * scale, 34)),
    input("faults of an object in an agent's log and events", |world, scale| {
        node_info(world, 32 * scale, 35)
    }),
    input("ignored claims of NodeInfos in `trunkline status`", |world, scale| {
        node_info(world, 20 * scale, 36)
    }),
    input("`spec.config.podCIDRs` of a NodeInfo", |world, scale| {
        let prefixes: Vec<String> =
            (0..(700 * scale).min(40_000)).map(|n| format!("37.{}.{}.0/24", n >> 8, n & 255)).collect();
        create_of_cluster(world, NODE_INFO, json!({ "spec": { "config": { "podCIDRs": prefixes } } }))
    }),
];

/// The first octet of the addresses in the ServicePool `written`, which the test creates.
const POOL: u8 = 29;

/// The specification of a Service of type LoadBalancer.
fn balanced(ports: &[Value]) -> Value {
    json!({
        "type": "LoadBalancer", "loadBalancerClass": LOAD_BALANCER_CLASS,
        "allocateLoadBalancerNodePorts": false, "ports": ports,
    })
}

/// Addresses with this first octet.
fn addresses(number: usize, first: u8) -> Value {
    (0..number).map(|n| json!(format!("{first}.0.{}.{}", n >> 8, n & 255))).collect::<Vec<_>>().into()
}

/// A Node that no machine has, with these addresses.
fn node(world: &World<'_>, number: usize, first: u8, metadata: &Value) -> Result<()> {
    let address =
        |n: usize| json!({ "type": "InternalIP", "address": format!("{first}.0.{}.{}", n >> 8, n & 255) });
    let all: Vec<Value> = (0..number).map(address).collect();
    create_of_cluster(world, NODE, json!({ "metadata": metadata, "status": { "addresses": all } }))
}

/// The NodeInfo of a node that is in no rack.
fn node_info(world: &World<'_>, number: usize, first: u8) -> Result<()> {
    let vtep = json!({ "ip": format!("{first}.1.0.1"), "localIPs": addresses(number, first) });
    create_of_cluster(world, NODE_INFO, json!({ "spec": { "vtepInfo": vtep } }))
}

/// A global Service, and changes of this annotation.
fn global(world: &World<'_>, name: &str, scale: usize) -> Result<()> {
    let metadata = json!({ "annotations": { annotation::GLOBAL_SERVICE: "true" } });
    create_many(
        world,
        SERVICE,
        1,
        json!({ "metadata": metadata, "spec": balanced(&[json!({ "port": 80 })]) }),
    )?;
    (0..(10 * scale).min(300)).try_for_each(|n| {
        change(world, SERVICE, "written0", &json!({ "metadata": { "annotations": { name: n.to_string() } } }))
    })
}

/// EndpointSlices whose ports have names of their own.
fn named_ports(world: &World<'_>, number: usize, ports: usize) -> Result<()> {
    services(world, &json!({}), 1)?;
    (0..number).try_for_each(|slice| {
        let ports: Vec<Value> =
            (0..ports).map(|port| json!({ "name": format!("p{slice}-{port}"), "port": port % 65_000 + 1 })).collect();
        let labels = json!({ "kubernetes.io/service-name": "written0" });
        create(
            world,
            SLICE,
            &format!("named{slice}"),
            json!({ "metadata": { "labels": labels }, "addressType": "IPv4", "endpoints": [], "ports": ports }),
        )
    })
}

/// Services of type LoadBalancer with this metadata.
fn services(world: &World<'_>, metadata: &Value, ports: usize) -> Result<()> {
    let ports: Vec<Value> = (0..ports).map(|n| json!({ "name": format!("p{n}"), "port": n + 1 })).collect();
    create_many(world, SERVICE, OBJECTS, json!({ "metadata": metadata, "spec": balanced(&ports) }))
}

/// EndpointSlices with the most endpoints that the API server stores.
fn slices(world: &World<'_>, scale: usize, labels: &Value) -> Result<()> {
    let endpoint = |n: usize| json!({ "addresses": [format!("20.0.{}.{}", n >> 8, n & 255)], "conditions": { "ready": true }, "nodeName": "node1" });
    let endpoints: Vec<Value> = (0..MOST_ENDPOINTS).map(endpoint).collect();
    services(world, &json!({}), 1)?;
    let slice = json!({
        "metadata": { "labels": labels }, "addressType": "IPv4",
        "endpoints": endpoints, "ports": [{ "name": "p0", "port": 80 }],
    });
    create_many(world, SLICE, number(OBJECTS * scale, 100_000), slice)
}

/// An object of KubeVirt with large labels and a large owner.
fn machine(scale: usize) -> Value {
    let text = "x".repeat(kept::MAX_NAME * scale);
    json!({
        "metadata": {
            "labels": labels_of(1_000 * scale),
            "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": text, "uid": text, "controller": true }],
        },
        "spec": { "text": text },
    })
}
