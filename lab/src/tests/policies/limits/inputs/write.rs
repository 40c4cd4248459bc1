//! Objects of the tenant in the API server, and their end.

use anyhow::Result;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, Request};
use kube::{Api, Resource as _};
use serde_json::{Map, Value, json};

use super::super::super::world::World;
use super::super::TENANT;
use crate::kube::multus;
use crate::tests::kube::vms;

/// The largest object that the API server stores, without its other fields.
pub(super) const LARGEST: usize = 1_200_000;
/// What one input writes at most: a hundred times the bound of a large input would fill etcd.
const MOST_OCTETS: usize = 48_000_000;
/// Further Namespaces of tenants, which the test creates.
pub(in super::super) const NAMESPACES: usize = 10;

/// The kinds of other programs, as manifests.
pub(in super::super) const CRDS: [&str; 2] = [multus::CRD, vms::CRDS];

/// A kind that tenants write: group, version, kind, plural.
type Kind = (&'static str, &'static str, &'static str, &'static str);

pub(super) const POD: Kind = ("", "v1", "Pod", "pods");
pub(super) const SERVICE: Kind = ("", "v1", "Service", "services");
pub(super) const SLICE: Kind = ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
pub(super) const POLICY: Kind = ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies");
pub(super) const DEFINITION: Kind =
    ("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definitions");
pub(super) const VM: Kind = ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
pub(super) const VMI: Kind = ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
pub(super) const MIGRATION: Kind =
    ("kubevirt.io", "v1", "VirtualMachineInstanceMigration", "virtualmachineinstancemigrations");
pub(super) const NODE: Kind = ("", "v1", "Node", "nodes");
pub(super) const NODE_INFO: Kind = ("networking.alibaba.com", "v1", "NodeInfo", "nodeinfoes");

/// The kinds of the tenant's objects. A pod goes before its owner.
const KINDS: [Kind; 8] = [POD, SERVICE, SLICE, POLICY, DEFINITION, MIGRATION, VMI, VM];

/// The name of an object without a Namespace that an input writes.
const WRITTEN: &str = "written";
/// Their kinds.
const KINDS_OF_CLUSTER: [Kind; 2] = [NODE, NODE_INFO];

fn resource((group, version, kind, plural): Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn api(world: &World<'_>, kind: Kind, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(world.cluster.client(), namespace, &resource(kind))
}

/// One of the further Namespaces.
pub(in super::super) fn namespace(number: usize) -> String {
    format!("{TENANT}{}", number % NAMESPACES)
}

/// Multiples of a number of objects with this size, as far as etcd has room.
pub(super) fn number(wanted: usize, octets: usize) -> usize {
    wanted.min(MOST_OCTETS / octets.max(1)).max(1)
}

/// The name of an object before it has its own.
const PLACE: &str = "the-name-of-the-object";

/// An object in JSON: `rest` has the fields beside those of its kind and its name.
fn text((group, version, kind, _): Kind, name: &str, mut rest: Value) -> String {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    rest["apiVersion"] = json!(api_version);
    rest["kind"] = json!(kind);
    rest["metadata"]["name"] = json!(name);
    rest.to_string()
}

/// Creates an object. A refusal by the API server is a bound that holds.
fn post(world: &World<'_>, kind: Kind, namespace: Option<&str>, text: String) -> Result<()> {
    let path = DynamicObject::url_path(&resource(kind), namespace);
    let request = Request::new(path).create(&PostParams::default(), text.into_bytes())?;
    match world.cluster.wait(world.cluster.client().request_text(request)) {
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// An object of the tenant.
pub(super) fn create(world: &World<'_>, kind: Kind, name: &str, rest: Value) -> Result<()> {
    post(world, kind, Some(TENANT), text(kind, name, rest))
}

/// Objects of the tenant that only differ in their names: `written0` and so on.
pub(super) fn create_many(world: &World<'_>, kind: Kind, number: usize, rest: Value) -> Result<()> {
    spread(world, kind, number, rest, |_| TENANT.to_owned())
}

/// The same in the further Namespaces, in turn.
pub(super) fn create_everywhere(world: &World<'_>, kind: Kind, number: usize, rest: Value) -> Result<()> {
    spread(world, kind, number, rest, namespace)
}

fn spread(
    world: &World<'_>,
    kind: Kind,
    number: usize,
    rest: Value,
    namespace: impl Fn(usize) -> String,
) -> Result<()> {
    // This program is not optimised: one object is written as JSON, and not each of them.
    let text = text(kind, PLACE, rest);
    (0..number).try_for_each(|n| {
        post(world, kind, Some(&namespace(n)), text.replacen(PLACE, &format!("written{n}"), 1))
    })
}

/// Objects of the further Namespaces, each with fields of its own.
pub(super) fn create_each(
    world: &World<'_>,
    kind: Kind,
    number: usize,
    rest: impl Fn(usize) -> Value,
) -> Result<()> {
    (0..number)
        .try_for_each(|n| post(world, kind, Some(&namespace(n)), text(kind, &format!("written{n}"), rest(n))))
}

/// Creates an object without a Namespace, such as a Node that no machine has.
pub(super) fn create_of_cluster(world: &World<'_>, kind: Kind, rest: Value) -> Result<()> {
    post(world, kind, None, text(kind, WRITTEN, rest))
}

/// A merge patch of an object of the tenant.
pub(super) fn change(world: &World<'_>, kind: Kind, name: &str, patch: &Value) -> Result<()> {
    match world.cluster.wait(api(world, kind, TENANT).patch(
        name,
        &PatchParams::default(),
        &Patch::Merge(patch),
    )) {
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A merge patch of an object's status.
pub(super) fn status(world: &World<'_>, kind: Kind, name: &str, status: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    match world.cluster.wait(api(world, kind, TENANT).patch_status(name, &PatchParams::default(), &patch)) {
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Pods of node3 that its kubelet does not start, with this metadata.
pub(super) fn pods(world: &World<'_>, number: usize, metadata: Value) -> Result<()> {
    pods_of(world, number, metadata, container())
}

/// Likewise, with these containers.
pub(super) fn pods_of(world: &World<'_>, number: usize, metadata: Value, containers: Value) -> Result<()> {
    let spec = json!({ "nodeName": "node3", "containers": containers });
    create_many(world, POD, number, json!({ "metadata": metadata, "spec": spec }))
}

pub(super) fn container() -> Value {
    json!([{ "name": "main", "image": "pretended" }])
}

/// Labels with names of their own, without values.
pub(super) fn labels(number: usize) -> Map<String, Value> {
    (0..number).map(|n| (format!("{n:x}.label"), json!(""))).collect()
}

/// Labels of this many octets, each as long as Kubernetes accepts: the API server takes some 0.1 ms for
/// each label.
pub(super) fn labels_of(octets: usize) -> Value {
    let prefix = ["x"; 4].map(|part| part.repeat(50)).join(".");
    let pair = |n: usize| (format!("{prefix}/{n:0>63}"), json!(format!("{n:x>63}")));
    let each = prefix.len() + 1 + 2 * 63;
    Value::Object((0..octets.min(LARGEST).div_ceil(each)).map(pair).collect())
}

/// Sets annotations or labels of the tenant's Namespace.
pub(super) fn mark_namespace(world: &World<'_>, metadata: &Value) -> Result<()> {
    patch_namespace(world, &json!({ "metadata": metadata }))
}

fn patch_namespace(world: &World<'_>, patch: &Value) -> Result<()> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.cluster.client());
    match world.cluster.wait(namespaces.patch(TENANT, &PatchParams::default(), &Patch::Merge(patch))) {
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes everything that an input wrote. The tenants' attached pods stay.
pub(in super::super) fn clear(world: &World<'_>) -> Result<()> {
    let of_all = std::iter::once(TENANT.to_owned()).chain((0..NAMESPACES).map(namespace));
    for namespace in of_all {
        for kind in KINDS {
            delete_all(world, kind, &namespace)?;
        }
    }
    for kind in KINDS_OF_CLUSTER {
        let objects: Api<DynamicObject> = Api::all_with(world.cluster.client(), &resource(kind));
        match world.cluster.wait(objects.delete(WRITTEN, &DeleteParams::default())) {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
    }
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.cluster.client());
    let written = world.cluster.wait(namespaces.get_metadata(TENANT))?.metadata;
    let none = |keys: Vec<&String>| -> Value {
        Value::Object(keys.into_iter().map(|key| (key.clone(), Value::Null)).collect())
    };
    let annotations = none(written.annotations.iter().flatten().map(|(key, _)| key).collect());
    let kept = ["team", "kubernetes.io/metadata.name"];
    let further =
        written.labels.iter().flatten().map(|(key, _)| key).filter(|key| !kept.contains(&key.as_str()));
    let labels = none(further.collect());
    patch_namespace(world, &json!({ "metadata": { "annotations": annotations, "labels": labels } }))
}

/// Names of attached pods begin so.
pub(in super::super) const ATTACHED: &str = "evil";

fn delete_all(world: &World<'_>, kind: Kind, namespace: &str) -> Result<()> {
    let objects = api(world, kind, namespace);
    let at_once = DeleteParams::default().grace_period(0);
    world.cluster.wait(async {
        if kind != POD {
            objects.delete_collection(&at_once, &ListParams::default()).await?;
            return Ok::<_, kube::Error>(());
        }
        for pod in objects.list_metadata(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            if !name.starts_with(ATTACHED) {
                objects.delete(&name, &at_once).await?;
            }
        }
        Ok(())
    })?;
    Ok(())
}
