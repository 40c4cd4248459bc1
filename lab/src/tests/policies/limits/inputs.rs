//! The inputs: for each of these rows of the page, a function that writes it at a multiple of its
//! bound.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use trunkline_api::kept;
use trunkline_api::names::annotation;

use super::super::world::World;
use super::TENANT;

/// One row of the page.
pub(super) struct Input {
    /// The first cell of the row.
    pub row: &'static str,
    /// Writes objects at a multiple of the bound. The API server may refuse them.
    pub write: fn(&World<'_>, usize) -> Result<()>,
}

/// The largest object that the API server stores, without its other fields.
const LARGEST: usize = 1_200_000;
/// Octets of a block in JSON.
const BLOCK: usize = 48;
/// Pods of an input, each with large labels.
const PODS: usize = 4;

/// The inputs of tenants that cost the most: without their bounds each of them killed agents or the
/// controller.
pub(super) const INPUTS: &[Input] = &[
    Input {
        row: "a NetworkPolicy or ClusterNetworkPolicy as written",
        write: |world, scale| policy(world, "large", &json!([rule(10_000 * scale, 10_000 * scale)])),
    },
    Input {
        row: "the policies of a Namespace as written; all ClusterNetworkPolicies",
        write: |world, scale| {
            (0..4 * scale).try_for_each(|n| policy(world, &format!("many{n}"), &json!([rule(1_000, 9_000)])))
        },
    },
    Input {
        row: "one of these policies",
        write: |world, scale| {
            let rules: Vec<Value> = (0..(4_000 * scale).min(12_000))
                .map(|n| json!({ "ports": [{ "port": n + 1 }], "from": [{ "podSelector": {} }] }))
                .collect();
            policy(world, "rules", &rules.into())
        },
    },
    Input {
        row: "labels of a pod that policies name",
        write: |world, scale| {
            let labels = labels(40 * scale);
            let keys: Vec<Value> =
                labels.keys().map(|key| json!({ "podSelector": { "matchLabels": { key: "" } } })).collect();
            policy(world, "keys", &json!([{ "from": keys }]))?;
            pods(world, PODS, &json!({}), &labels.into())
        },
    },
    Input {
        row: "labels of a pod that no policy names",
        write: |world, scale| pods(world, PODS * scale, &json!({}), &labels(LARGEST / 16).into()),
    },
    Input {
        row: "annotations and labels of a pod",
        write: |world, scale| {
            let value = "x".repeat((kept::MAX_NETWORKING * scale).min(250_000));
            pods(world, PODS * scale, &json!({ annotation::IP_POOL: value }), &json!({}))
        },
    },
];

/// A rule with this many peers and ports, as far as an object can have them.
fn rule(peers: usize, ports: usize) -> Value {
    let ports: Vec<Value> = (0..ports.min(30_000)).map(|n| json!({ "port": 2 * n + 1 })).collect();
    let block = |n: usize| json!({ "ipBlock": { "cidr": format!("20.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255) } });
    let room = (LARGEST - 20 * ports.len()) / BLOCK;
    let peers: Vec<Value> = (0..peers.min(room)).map(block).collect();
    json!({ "from": peers, "ports": ports })
}

/// Labels with names of their own, without values.
fn labels(number: usize) -> Map<String, Value> {
    (0..number).map(|n| (format!("{n:x}.label"), json!(""))).collect()
}

fn policy(world: &World<'_>, name: &str, ingress: &Value) -> Result<()> {
    let spec = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress });
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name }, "spec": spec,
    });
    create::<NetworkPolicy>(world, object)
}

/// Fails if an input has no row on the page.
pub(super) fn have_rows(repository: &Path) -> Result<()> {
    let file = repository.join("docs/limits.md");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let rows = rows(&text);
    for input in INPUTS {
        ensure!(rows.contains(input.row), "{:?} is no row of docs/limits.md", input.row);
    }
    Ok(())
}

/// The first cells of all tables.
fn rows(page: &str) -> BTreeSet<&str> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| "));
    lines.filter_map(|line| line.split(" | ").next()).filter(|cell| *cell != "input").collect()
}

// ---- writing

fn api<K>(world: &World<'_>) -> Api<K>
where
    K: kube::Resource<Scope = NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(world.cluster.client(), TENANT)
}

/// Creates an object. A refusal by the API server is a bound that holds.
fn create<K>(world: &World<'_>, object: Value) -> Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
    K::DynamicType: Default,
{
    let object: K = serde_json::from_value(object)?;
    match world.cluster.wait(api::<K>(world).create(&PostParams::default(), &object)) {
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Pods of node3 that its kubelet does not start.
fn pods(world: &World<'_>, number: usize, annotations: &Value, labels: &Value) -> Result<()> {
    (0..number).try_for_each(|n| {
        create::<Pod>(
            world,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": format!("written{n}"), "annotations": annotations, "labels": labels },
                "spec": { "nodeName": "node3", "containers": [{ "name": "main", "image": "pretended" }] },
            }),
        )
    })
}

/// Deletes everything that an input wrote. The tenant's attached pods stay.
pub(super) fn clear(world: &World<'_>) -> Result<()> {
    let at_once = DeleteParams::default().grace_period(0);
    let pods: Api<Pod> = api(world);
    world.cluster.wait(async {
        for pod in pods.list_metadata(&ListParams::default()).await?.items {
            if !pod.name_any().starts_with("evil") {
                pods.delete(&pod.name_any(), &at_once).await?;
            }
        }
        Ok::<_, kube::Error>(())
    })?;
    world.cluster.kubectl(["delete", "networkpolicies", "--all", "-n", TENANT])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn first_cells_of_tables_are_rows() {
        let page = "# T\n\n| input | bound |\n|---|---|\n| a b | 8 |\n| `c` | 9 |\ntext | d\n";
        assert_eq!(rows(page).into_iter().collect::<Vec<_>>(), ["`c`", "a b"]);
    }
}
