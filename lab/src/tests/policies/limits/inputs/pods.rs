//! The rows about pods, their Namespaces and their owners.

use anyhow::Result;
use serde_json::{Value, json};
use trunkline_api::kept;
use trunkline_api::names::annotation;

use super::super::super::world::World;
use super::write::{LARGEST, POD, change, labels_of, mark_namespace, number, pods, status};
use super::{Input, costly, input};

/// The annotations of an object have at most 256 KiB.
const MOST_ANNOTATION: usize = 250_000;
/// Pods of an input.
const PODS: usize = 4;

pub(super) const INPUTS: &[Input] = &[
    input("a page of a list", |world, scale| {
        // 8 MiB of pods; a new key of a policy makes agents list them.
        pods(world, number(8 * scale, LARGEST), json!({ "labels": labels_of(LARGEST) }))
    }),
    costly("annotations and labels of a pod", |world, scale| {
        let value = "x".repeat((kept::MAX_NETWORKING * scale).min(MOST_ANNOTATION));
        pods(
            world,
            number(PODS * scale, value.len()),
            json!({ "annotations": { annotation::IP_POOL: value } }),
        )
    }),
    input("further interfaces of a pod, by its annotation or by Multus'", |world, scale| {
        let routes: Vec<String> =
            (0..32 * scale).map(|n| format!("20.{}.{}.0/24", n >> 8, n & 255)).collect();
        let interface = |n: usize| json!({ "name": format!("net{n}"), "network": "rack1", "routes": routes });
        let room = MOST_ANNOTATION / json!(interface(100)).to_string().len();
        let list: Vec<Value> = (0..(8 * scale).min(room)).map(interface).collect();
        annotated(world, annotation::INTERFACES, &json!(list).to_string())
    }),
    input("changes of these annotations, while the pod exists", |world, scale| {
        pods(world, 1, json!({}))?;
        (0..(2 * scale).min(100)).try_for_each(|n| {
            let list: Vec<Value> =
                (0..8).map(|name| json!({ "name": format!("net{n}-{name}"), "network": "rack1" })).collect();
            let annotations = json!({ annotation::INTERFACES: json!(list).to_string() });
            change(world, POD, "written0", &json!({ "metadata": { "annotations": annotations } }))
        })
    }),
    input("extra prefixes of a pod", |world, scale| {
        let prefixes: Vec<String> =
            (0..(32 * scale).min(12_000)).map(|n| format!("20.{}.{}.0/24", n >> 8, n & 255)).collect();
        annotated(world, annotation::EXTRA_PREFIXES, &prefixes.join(","))
    }),
    input("reference of a pod to its controller", |world, scale| {
        let text = "x".repeat(kept::MAX_NAME * scale);
        let owner = json!({ "apiVersion": format!("apps/{text}"), "kind": text, "name": text, "uid": text, "controller": true });
        pods(world, PODS, json!({ "ownerReferences": [owner] }))
    }),
    input("`status.podIPs`", |world, scale| {
        pods(world, 1, json!({}))?;
        let addresses: Vec<Value> = (0..2 * scale).map(|n| json!({ "ip": format!("20.0.0.{n}") })).collect();
        status(world, POD, "written0", &json!({ "podIP": "20.0.0.0", "podIPs": addresses }))
    }),
    input("networking annotations and labels of a Namespace", |world, scale| {
        let value = "x".repeat((kept::MAX_NETWORKING * scale).min(MOST_ANNOTATION));
        mark_namespace(world, &json!({ "annotations": { annotation::SPECIFIED_SUBNET: value } }))?;
        pods(world, PODS, json!({}))
    }),
    input("all labels of a Namespace", |world, scale| {
        mark_namespace(world, &json!({ "labels": labels_of(kept::MAX_LABELS * scale) }))
    }),
    input("faults of a pod, in log and event; in the webhook's answer", |world, scale| {
        let list = "none,".repeat((200 * scale).min(kept::MAX_NETWORKING / 5 - 100));
        annotated(world, annotation::IP_POOL, &list)
    }),
];

/// Pods with one annotation.
fn annotated(world: &World<'_>, name: &str, value: &str) -> Result<()> {
    pods(world, PODS, json!({ "annotations": { name: value } }))
}
