//! The rows about Services, EndpointSlices, the objects of Multus and KubeVirt, and Nodes.

use anyhow::Result;
use serde_json::{Value, json};
use trunkline_api::kept;
use trunkline_api::names::{LOAD_BALANCER_CLASS, REMOTE_ENDPOINTS_MANAGER, annotation};

use super::super::super::world::World;
use super::write::{
    DEFINITION, LARGEST, MIGRATION, POLICY, SERVICE, SLICE, VM, VMI, create_many, create_node, labels_of,
    number, pods, status,
};
use super::{Input, input};

/// Objects of an input.
const OBJECTS: usize = 4;
/// Most endpoints of an EndpointSlice that the API server stores.
const MOST_ENDPOINTS: usize = 1_000;

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
        create_node(world, json!({ "metadata": { "labels": labels_of(kept::MAX_LABELS * scale) } }))
    }),
];

/// Services of type LoadBalancer with this metadata.
fn services(world: &World<'_>, metadata: &Value, ports: usize) -> Result<()> {
    let ports: Vec<Value> = (0..ports).map(|n| json!({ "name": format!("p{n}"), "port": n + 1 })).collect();
    let spec = json!({
        "type": "LoadBalancer", "loadBalancerClass": LOAD_BALANCER_CLASS,
        "allocateLoadBalancerNodePorts": false, "ports": ports,
    });
    create_many(world, SERVICE, OBJECTS, json!({ "metadata": metadata, "spec": spec }))
}

/// EndpointSlices with the most endpoints that the API server stores.
fn slices(world: &World<'_>, scale: usize, labels: &Value) -> Result<()> {
    let endpoint = |n: usize| json!({ "addresses": [format!("20.0.{}.{}", n >> 8, n & 255)], "conditions": { "ready": true } });
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
