//! The rights of the token of one node's agent. It allows no writes for another node, and for its
//! own node only the writes that an agent needs. It can read only the Secrets with the keys of its
//! own rack. The test sends each write to a real API server, with a token like the one that a
//! kubelet requests. At its end the test shows that without the chart's policies each refused write
//! is accepted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{TENANT, Test, Verdict, cluster, crds};
use crate::kube::Cluster;
use crate::kube::rights::{Accounts, Rack, agent_on};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/own-node",
    about: "with the token of one node's agent, no object of another node can be written, and of its own node only the agent's fields",
    run: own_node,
}];

const PATIENCE: Duration = Duration::from_secs(60);

/// node-a is in the first rack, node-b in the second.
const RACKS: [Rack; 2] = [("trunkline-agent-a", &["rack-a"]), ("trunkline-agent-b", &["rack-b"])];

const OBJECTS: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: rack-a, namespace: kube-system}, stringData: {key: the-first}}
---
{apiVersion: v1, kind: Secret, metadata: {name: rack-b, namespace: kube-system}, stringData: {key: the-second}}
---
{apiVersion: v1, kind: Secret, metadata: {name: trunkline-webhook, namespace: kube-system}, stringData: {tls.key: the-third}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {rack: '1'}}, spec: {taints: [{key: kept, effect: NoSchedule}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-b, labels: {rack: '2'}}}
---
{apiVersion: networking.alibaba.com/v1, kind: NodeInfo, metadata: {name: node-b}, spec: {vtepInfo: {ip: 10.0.0.2}}}
---
{apiVersion: trunkline.io/v1alpha1, kind: NodeServices, metadata: {name: node-b}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: trunkline-controller, namespace: kube-system}, spec: {holderIdentity: other}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: trunkline-l2-node-node-b, namespace: kube-system}, spec: {holderIdentity: node-b}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: trunkline-l2-10-9-0-8, namespace: kube-system}, spec: {holderIdentity: node-b}}
---
{apiVersion: networking.alibaba.com/v1, kind: IPInstance, metadata: {name: of-a, namespace: default, labels: {networking.alibaba.com/node: node-a}},
 spec: {network: rack, subnet: rack-v4, address: {version: '4', ip: 10.9.0.1/24, mac: '02:00:00:00:00:01'}, binding: {nodeName: node-a, podName: p}}}
---
{apiVersion: networking.alibaba.com/v1, kind: IPInstance, metadata: {name: of-b, namespace: default, labels: {networking.alibaba.com/node: node-b}},
 spec: {network: rack, subnet: rack-v4, address: {version: '4', ip: 10.9.0.2/24, mac: '02:00:00:00:00:02'}, binding: {nodeName: node-b, podName: q}}}
";

/// A kubelet's write to a Node's status.
const STATUS: &str = r#"{"status": {
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "node-a"}],
    "capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "Lab"}, {"type": "DiskPressure", "status": "False", "reason": "Lab"}],
    "images": [{"names": ["one:1", "one:2"], "sizeBytes": 7}]
}}"#;

/// One write.
struct Write {
    what: &'static str,
    kind: &'static str,
    name: &'static str,
    subresource: bool,
    how: How,
    body: Value,
}

#[derive(Clone, Copy)]
enum How {
    Create,
    /// As agents write Leases: the whole object, created if it does not exist.
    Replace,
    /// Server-side apply, as agents write NodeInfos.
    Apply,
    Merge,
    Strategic,
}

fn write(what: &'static str, kind: &'static str, name: &'static str, how: How, body: Value) -> Write {
    Write { what, kind, name, subresource: false, how, body }
}

fn status(what: &'static str, kind: &'static str, name: &'static str, how: How, body: Value) -> Write {
    Write { subresource: true, ..write(what, kind, name, how, body) }
}

impl Write {
    fn send(&self, cluster: &Cluster, client: &Client, dry_run: bool) -> kube::Result<DynamicObject> {
        let (group, version, plural) = match self.kind {
            "Node" => ("", "v1", "nodes"),
            "Event" => ("events.k8s.io", "v1", "events"),
            "NodeInfo" => ("networking.alibaba.com", "v1", "nodeinfoes"),
            "NodeServices" => ("trunkline.io", "v1alpha1", "nodeservices"),
            "Lease" => ("coordination.k8s.io", "v1", "leases"),
            _ => ("networking.alibaba.com", "v1", "ipinstances"),
        };
        let kind = GroupVersionKind::gvk(group, version, self.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let api: Api<DynamicObject> = match self.kind {
            "Node" | "NodeInfo" | "NodeServices" => Api::all_with(client.clone(), &resource),
            "Lease" => Api::namespaced_with(client.clone(), "kube-system", &resource),
            _ => Api::namespaced_with(client.clone(), "default", &resource),
        };
        let mut body = self.body.clone();
        body["apiVersion"] = json!(resource.api_version);
        body["kind"] = json!(self.kind);
        body["metadata"]["name"] = json!(self.name);
        let params = PatchParams { dry_run, ..PatchParams::default() };
        let apply = PatchParams { dry_run, ..PatchParams::apply("trunkline-agent").force() };
        cluster.wait(async {
            let (params, patch) = match self.how {
                How::Create => {
                    let object = serde_json::from_value(body).map_err(kube::Error::SerdeError)?;
                    return api.create(&PostParams { dry_run, ..PostParams::default() }, &object).await;
                }
                How::Replace => {
                    let post = PostParams { dry_run, ..PostParams::default() };
                    let version =
                        api.get_opt(self.name).await?.and_then(|there| there.metadata.resource_version);
                    if let Some(version) = &version {
                        body["metadata"]["resourceVersion"] = json!(version);
                    }
                    let object = serde_json::from_value(body).map_err(kube::Error::SerdeError)?;
                    return match version {
                        Some(_) => api.replace(self.name, &post, &object).await,
                        None => api.create(&post, &object).await,
                    };
                }
                How::Apply => (apply, Patch::Apply(body)),
                How::Merge => (params, Patch::Merge(body)),
                How::Strategic => (params, Patch::Strategic(body)),
            };
            match self.subresource {
                true => api.patch_status(self.name, &params, &patch).await,
                false => api.patch(self.name, &params, &patch).await,
            }
        })
    }

    fn accepted(&self, cluster: &Cluster, client: &Client) -> Result<DynamicObject> {
        self.send(cluster, client, false).with_context(|| self.what)
    }

    /// Asserts that the policy refuses this write with these words.
    fn refused(&self, cluster: &Cluster, client: &Client, words: &str) -> Result<()> {
        let answer = self.send(cluster, client, false);
        let Err(kube::Error::Api(refusal)) = answer else {
            anyhow::bail!("{}: expected a refusal, got {answer:?}", self.what)
        };
        ensure!(
            refusal.code == 403 && refusal.message.contains(words),
            "{}: expected {words:?}, got {}",
            self.what,
            refusal.message
        );
        Ok(())
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status, "reason": "Test", "message": "a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}})
}

fn event(about: &str, by: &str) -> Value {
    json!({"metadata": {"namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Test", "action": "Serve",
        "reportingController": "trunkline-agent", "reportingInstance": by, "note": "a test",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": about, "uid": about}})
}

fn services() -> Value {
    json!({"status": {"services": [{"address": "192.0.2.1", "state": "advertised"}]}})
}

fn held_by(node: &str) -> Value {
    json!({"spec": {"holderIdentity": node, "leaseDurationSeconds": 8}})
}

/// The Lease of a service address, with this ServiceAddress as owner.
fn of_claim(node: &str, claim: &str) -> Value {
    let mut lease = held_by(node);
    lease["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAddress", "name": claim, "uid": "c"}]);
    lease
}

/// The object with another value at a path.
fn json_with(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').unwrap_or_default();
    if parent == "/metadata" && object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    if let Some(parent) = object.pointer_mut(parent) {
        parent[field] = value;
    }
    object
}

fn series() -> Value {
    json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}})
}

/// Allowed writes of node-a's agent.
fn allowed(uid: &str) -> Vec<Write> {
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}]);
    let info = |ip: &str| json!({"metadata": {"ownerReferences": owner}, "spec": {"vtepInfo": {"ip": ip, "mac": "02:12:0a:00:00:01", "localIPs": [ip]}}});
    let sandbox = json!({"status": {"sandboxID": "s", "nodeName": "node-a", "podName": "p", "podNamespace": "default"}});
    let ended =
        json!({"status": {"sandboxID": null, "nodeName": null, "podName": null, "podNamespace": null}});
    vec![
        write("make its NodeInfo", "NodeInfo", "node-a", How::Apply, info("10.0.0.1")),
        write("change its NodeInfo", "NodeInfo", "node-a", How::Apply, info("10.0.0.11")),
        status(
            "report its peers",
            "NodeInfo",
            "node-a",
            How::Apply,
            json!({"status": {"peers": [{"name": "10.1.0.1", "asn": 65001, "state": "Idle"}]}}),
        ),
        status(
            "set its condition",
            "Node",
            "node-a",
            How::Strategic,
            condition("NetworkUnavailable", "True"),
        ),
        status(
            "reset its condition",
            "Node",
            "node-a",
            How::Strategic,
            condition("NetworkUnavailable", "False"),
        ),
        write(
            "make its NodeServices",
            "NodeServices",
            "node-a",
            How::Apply,
            json!({"metadata": {"ownerReferences": owner}}),
        ),
        status("report its service addresses", "NodeServices", "node-a", How::Apply, services()),
        status("report a sandbox", "IPInstance", "of-a", How::Merge, sandbox),
        status("report the end of a sandbox", "IPInstance", "of-a", How::Merge, ended),
        write("show that it is alive", "Lease", "trunkline-l2-node-node-a", How::Replace, held_by("node-a")),
        write(
            "take an address",
            "Lease",
            "trunkline-l2-10-9-0-7",
            How::Replace,
            of_claim("node-a", "10-9-0-7"),
        ),
        write("release an address", "Lease", "trunkline-l2-10-9-0-7", How::Replace, of_claim("", "10-9-0-7")),
        write("write an event", "Event", "of-a", How::Create, event("node-a", "node-a")),
        write("count an event up", "Event", "of-a", How::Merge, series()),
    ]
}

/// Forbidden writes, with the words of the refusal.
fn forbidden() -> Vec<(Write, &'static str)> {
    let other = "NodeInfo of its own node, and not the NodeInfo of node-b";
    let metadata = "does not change the labels, annotations or any other metadata";
    let rest = "in the status of its Node an agent changes only the condition NetworkUnavailable";
    let taken = json!({"status": {"sandboxID": "x", "nodeName": "node-a"}});
    let moved = json!({"status": {"sandboxID": "x", "nodeName": "node-b"}});
    let address = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "8.8.8.8"}]}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}});
    let stranger = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-b", "uid": "u"}]);
    let strategic = How::Strategic;
    let mut other_kind = of_claim("node-a", "10-9-9-9");
    other_kind["metadata"]["ownerReferences"][0]["apiVersion"] = json!("nowhere.example/v1");
    let mut two_owners = of_claim("node-a", "10-9-9-9");
    two_owners["metadata"]["ownerReferences"] = json!([
        two_owners["metadata"]["ownerReferences"][0],
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"},
    ]);
    vec![
        (
            write(
                "change a NodeInfo",
                "NodeInfo",
                "node-b",
                How::Apply,
                json!({"spec": {"vtepInfo": {"ip": "10.0.0.66"}}}),
            ),
            other,
        ),
        (
            status(
                "report another's peers",
                "NodeInfo",
                "node-b",
                How::Apply,
                json!({"status": {"peers": []}}),
            ),
            other,
        ),
        (
            write(
                "claim a block",
                "NodeInfo",
                "node-a",
                How::Merge,
                json!({"spec": {"config": {"podCIDRs": ["10.9.0.0/24"]}}}),
            ),
            "spec.config",
        ),
        (
            write(
                "add a finalizer",
                "NodeInfo",
                "node-a",
                How::Merge,
                json!({"metadata": {"finalizers": ["lab/held"]}}),
            ),
            "adds no finalizers",
        ),
        (
            write(
                "add an owner",
                "NodeInfo",
                "node-a",
                How::Merge,
                json!({"metadata": {"ownerReferences": stranger}}),
            ),
            "no owner except its own Node",
        ),
        (
            write(
                "annotate its NodeInfo",
                "NodeInfo",
                "node-a",
                How::Merge,
                json!({"metadata": {"annotations": {"more": "1"}}}),
            ),
            "changes no labels and annotations of its NodeInfo",
        ),
        (
            write(
                "label its NodeServices",
                "NodeServices",
                "node-a",
                How::Merge,
                json!({"metadata": {"labels": {"more": "1"}}}),
            ),
            "changes no labels and annotations of its NodeServices",
        ),
        (
            status("report another's addresses", "NodeServices", "node-b", How::Apply, services()),
            "NodeServices of its own node, and not the NodeServices of node-b",
        ),
        (
            write(
                "make another's NodeServices",
                "NodeServices",
                "node-c",
                How::Create,
                json!({"metadata": {}}),
            ),
            "and not the NodeServices of node-c",
        ),
        (
            write(
                "hold its NodeServices",
                "NodeServices",
                "node-a",
                How::Merge,
                json!({"metadata": {"finalizers": ["lab/held"]}}),
            ),
            "adds no finalizers to its NodeServices",
        ),
        (
            status(
                "set another's condition",
                "Node",
                "node-b",
                strategic,
                condition("NetworkUnavailable", "True"),
            ),
            "and not of node-b",
        ),
        (
            status(
                "label a Node",
                "Node",
                "node-a",
                strategic,
                json!({"metadata": {"labels": {"rack": "2"}}}),
            ),
            metadata,
        ),
        (
            status(
                "add a label",
                "Node",
                "node-a",
                strategic,
                json!({"metadata": {"labels": {"more": "1"}}}),
            ),
            metadata,
        ),
        (
            status(
                "remove a label",
                "Node",
                "node-a",
                strategic,
                json!({"metadata": {"labels": {"rack": null}}}),
            ),
            metadata,
        ),
        (
            status(
                "annotate a Node",
                "Node",
                "node-a",
                strategic,
                json!({"metadata": {"annotations": {"more": "1"}}}),
            ),
            metadata,
        ),
        (
            status(
                "label another Node",
                "Node",
                "node-b",
                strategic,
                json!({"metadata": {"labels": {"rack": "1"}}}),
            ),
            "and not of node-b",
        ),
        (status("add an address", "Node", "node-a", strategic, address), rest),
        (
            status(
                "change the capacity",
                "Node",
                "node-a",
                strategic,
                json!({"status": {"capacity": {"cpu": "99"}}}),
            ),
            rest,
        ),
        (status("empty the images", "Node", "node-a", How::Merge, json!({"status": {"images": null}})), rest),
        (
            status("set the condition Ready", "Node", "node-a", strategic, condition("Ready", "False")),
            "no condition of its Node except",
        ),
        (
            status("add a condition", "Node", "node-a", strategic, condition("Own", "True")),
            "no condition of its Node except",
        ),
        (
            status("remove the condition Ready", "Node", "node-a", strategic, ready),
            "no condition of its Node except",
        ),
        (status("take an IPInstance", "IPInstance", "of-b", How::Merge, taken), "of-b is not one of them"),
        (
            status("move an IPInstance", "IPInstance", "of-a", How::Merge, moved),
            "names its own node in status.nodeName",
        ),
        (
            write("write about another Node", "Event", "e1", How::Create, event("node-b", "node-a")),
            "events about its own Node",
        ),
        (
            write("write as another agent", "Event", "e2", How::Create, event("node-a", "node-b")),
            "writes its own events",
        ),
        (
            write("lead the controllers", "Lease", "trunkline-controller", How::Replace, held_by("node-a")),
            "and not the Lease trunkline-controller",
        ),
        (
            write(
                "renew another's Lease",
                "Lease",
                "trunkline-l2-node-node-b",
                How::Replace,
                held_by("node-b"),
            ),
            "and not the Lease trunkline-l2-node-node-b",
        ),
        (
            write(
                "give an address to another",
                "Lease",
                "trunkline-l2-10-9-0-7",
                How::Replace,
                held_by("node-b"),
            ),
            "writes its own node as the holder",
        ),
        (
            write("release another's address", "Lease", "trunkline-l2-10-9-0-8", How::Replace, held_by("")),
            "writes its own node as the holder",
        ),
        (
            write(
                "take an address of no Service",
                "Lease",
                "trunkline-l2-10-9-9-9",
                How::Replace,
                held_by("node-a"),
            ),
            "its ServiceAddress",
        ),
        (
            write(
                "keep a Lease by a kind that does not exist",
                "Lease",
                "trunkline-l2-10-9-9-9",
                How::Replace,
                other_kind,
            ),
            "its ServiceAddress",
        ),
        (
            write(
                "keep a Lease by a second owner",
                "Lease",
                "trunkline-l2-10-9-9-9",
                How::Replace,
                two_owners,
            ),
            "its ServiceAddress",
        ),
        (
            write(
                "keep a Namespace by an event",
                "Event",
                "e3",
                How::Create,
                json_with(event("node-a", "node-a"), "/metadata/finalizers", json!(["lab/held"])),
            ),
            "without finalizers",
        ),
        (
            write(
                "fill an event's labels",
                "Event",
                "e4",
                How::Create,
                json_with(event("node-a", "node-a"), "/metadata/labels", json!({"a": "b"})),
            ),
            "without finalizers",
        ),
        (
            write(
                "add an owner of an unknown kind",
                "NodeInfo",
                "node-a",
                How::Merge,
                json!({"metadata": {"ownerReferences": [{"apiVersion": "nowhere.example/v1", "kind": "Node", "name": "node-a", "uid": "u"}]}}),
            ),
            "no owner except its own Node",
        ),
        (
            write(
                "add an owner with a long UID",
                "NodeServices",
                "node-a",
                How::Merge,
                json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u".repeat(65)}]}}),
            ),
            "no owner except its own Node",
        ),
        (
            write(
                "label its Lease",
                "Lease",
                "trunkline-l2-node-node-a",
                How::Replace,
                json_with(held_by("node-a"), "/metadata/labels", json!({"a": "b"})),
            ),
            "the label trunkline.io/l2 and no other",
        ),
        (
            status(
                "write a long message",
                "Node",
                "node-a",
                strategic,
                json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True", "message": "x".repeat(3_000)}]}}),
            ),
            "at most 2,048 characters",
        ),
        (write("change another's event", "Event", "of-b", How::Merge, series()), "events about its own Node"),
    ]
}

/// The right that hybridnet's controller has, too.
const OPERATOR: &str = "
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: operator}, rules: [{apiGroups: [networking.alibaba.com], resources: ['*'], verbs: ['*']}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: operator},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: operator}, subjects: [{kind: ServiceAccount, name: tenant, namespace: default}]}
";

/// Writes by which a tenant would give itself an address, or free one that is in use.
fn of_a_tenant() -> Vec<Write> {
    let spec = json!({"network": "rack", "subnet": "rack-v4", "address": {"version": "4", "ip": "10.9.0.9/24", "mac": "02:00:00:00:00:09"},
        "binding": {"nodeName": "node-b", "podName": "waits", "podUID": "u"}});
    let created = json!({"metadata": {"labels": {"networking.alibaba.com/node": "node-b"}}, "spec": spec});
    let sandbox = json!({"status": {"sandboxID": null, "attachedSandboxID": null, "nodeName": null}});
    vec![
        write("make an IPInstance", "IPInstance", "mine", How::Create, created.clone()),
        write("apply an IPInstance", "IPInstance", "mine", How::Apply, created),
        write(
            "bind an address to another pod",
            "IPInstance",
            "of-b",
            How::Merge,
            json!({"spec": {"binding": {"podName": "waits", "podUID": "u"}}}),
        ),
        write(
            "name another node",
            "IPInstance",
            "of-b",
            How::Merge,
            json!({"metadata": {"labels": {"networking.alibaba.com/node": "node-a"}}}),
        ),
        write(
            "remove a finalizer",
            "IPInstance",
            "of-b",
            How::Merge,
            json!({"metadata": {"finalizers": []}}),
        ),
        status("clear a sandbox", "IPInstance", "of-b", How::Merge, sandbox),
        status(
            "claim a sandbox",
            "IPInstance",
            "of-b",
            How::Merge,
            json!({"status": {"sandboxID": "x", "attachedSandboxID": "x", "nodeName": "node-a"}}),
        ),
    ]
}

/// Only the controller, agents and administrators change IPInstances.
fn tenant(cluster: &Cluster) -> Result<usize> {
    cluster.apply(TENANT)?;
    let client = cluster.client_of(&cluster.service_account("default", "tenant")?)?;
    let writes = of_a_tenant();
    let finalizer = r#"{"metadata": {"finalizers": ["networking.alibaba.com/recycle"]}}"#;
    cluster.kubectl(["patch", "ipinstance", "of-b", "--type=merge", "-p", finalizer])?;
    for write in &writes {
        wait_for(&format!("the tenant's right to {}", write.what), PATIENCE, || {
            let answer = write.send(cluster, &client, true);
            let Err(kube::Error::Api(refusal)) = answer else { anyhow::bail!("{}: {answer:?}", write.what) };
            let is_policy = refusal.message.contains("only Trunkline's controller creates and changes");
            Ok(Seen::when(refusal.code == 403 && is_policy, || refusal.message.clone()))
        })?;
    }
    cluster.apply(OPERATOR)?;
    for write in &writes {
        wait_for(&format!("an operator's right to {}", write.what), PATIENCE, || {
            let refused = write.send(cluster, &client, true).err();
            Ok(Seen::when(refused.is_none(), || format!("{refused:?}")))
        })?;
    }
    Ok(writes.len())
}

/// Writes of node-a's agent above the bounds of the kinds' schemas.
fn too_large() -> Vec<Write> {
    let long = "x".repeat(300_000);
    let peers: Vec<Value> = (0..513)
        .map(|peer| json!({"name": format!("10.1.{}.{}", peer / 256, peer % 256), "asn": 65001, "state": "Idle"}))
        .collect();
    let error = json!({"status": {"peers": [{"name": "10.1.0.1", "asn": 65001, "state": "Idle", "lastError": long}]}});
    let info = json!({"spec": {"vtepInfo": {"ip": "10.0.0.1", "mac": long}}});
    let sandbox = |field: &str| json!({"status": {field: long}});
    let mut writes = vec![
        status(
            "report too many peers",
            "NodeInfo",
            "node-a",
            How::Apply,
            json!({"status": {"peers": peers}}),
        ),
        status("report a long error", "NodeInfo", "node-a", How::Apply, error),
        write("write a long MAC", "NodeInfo", "node-a", How::Merge, info),
    ];
    for field in ["sandboxID", "attachedSandboxID", "podName", "podNamespace", "nodeName", "updateTimestamp"]
    {
        writes.push(status("write a long text", "IPInstance", "of-a", How::Merge, sandbox(field)));
    }
    let check = json!({"status": {"anycast": [{"name": "a", "state": "withheld", "check": long}]}});
    writes.push(status("write a long check", "NodeServices", "node-a", How::Apply, check));
    let proxy = json!({"status": {"proxy": {"state": "away", "rules": "absent", "message": long}}});
    writes.push(status("write a long message", "NodeServices", "node-a", How::Apply, proxy));
    writes
}

fn own_node(context: &Lab) -> Result<Verdict> {
    cluster(context, "own-node", |cluster| {
        crds::install(cluster)?;
        cluster.apply(OBJECTS)?;
        cluster.kubectl(["patch", "node", "node-a", "--subresource=status", "-p", STATUS])?;
        Accounts::create(cluster, &RACKS)?;
        let client = |file: &Path| cluster.client_of(file);
        let a = client(&agent_on(cluster, RACKS[0], "node-a")?)?;
        let b = client(&agent_on(cluster, RACKS[1], "node-b")?)?;
        let unbound = client(&cluster.service_account("kube-system", RACKS[0].0)?)?;
        let secrets = secrets(cluster, &a)?;
        write("write an event", "Event", "of-b", How::Create, event("node-b", "node-b"))
            .accepted(cluster, &b)?;

        let uid = cluster.kubectl(["get", "node", "node-a", "-o", "jsonpath={.metadata.uid}"])?;
        let allowed = allowed(uid.trim());
        for write in &allowed {
            write.accepted(cluster, &a)?;
            write.refused(cluster, &unbound, "token has no node")?;
        }
        for write in too_large() {
            let answer = write.send(cluster, &a, false);
            let is_refused = matches!(&answer, Err(kube::Error::Api(refusal)) if refusal.code == 422);
            ensure!(is_refused, "{}: expected status 422, got {answer:?}", write.what);
        }
        let of_a_tenant = tenant(cluster)?;
        let before = state(cluster)?;
        let forbidden = forbidden();
        for (write, words) in &forbidden {
            write.refused(cluster, &a, words)?;
            write.refused(cluster, &unbound, "token has no node")?;
        }
        // The API server itself ignores a spec in a write of the status.
        let taint = json!({"spec": {"taints": []}});
        status("take a taint", "Node", "node-a", How::Merge, taint).accepted(cluster, &a)?;
        let after = state(cluster)?;
        ensure!(before == after, "refused writes changed something:\n{before}\n{after}");

        // Only the policies refused them.
        cluster.kubectl(["delete", "validatingadmissionpolicybindings", "--all"])?;
        for (write, _) in &forbidden {
            wait_for(&format!("the API server to let an agent {}", write.what), PATIENCE, || {
                let refused = write.send(cluster, &a, true).err();
                Ok(Seen::when(refused.is_none(), || format!("{refused:?}")))
            })?;
        }
        passed(format!(
            "{} writes accepted, {} refused, {of_a_tenant} of a tenant; {secrets} reads of Secrets refused",
            allowed.len(),
            forbidden.len()
        ))
    })
}

/// Checks that the agent can read the key of its rack in its usual way, and no other Secret in any
/// way. Returns the number of attempts.
fn secrets(cluster: &Cluster, agent: &Client) -> Result<usize> {
    let api: Api<Secret> = Api::namespaced(agent.clone(), "kube-system");
    let named = |name: &str| ListParams::default().fields(&format!("metadata.name={name}"));
    let own = cluster.wait(api.list(&named("rack-a")))?;
    ensure!(own.items.len() == 1 && own.items[0].metadata.name.as_deref() == Some("rack-a"), "{own:?}");
    let watched = WatchParams::default();
    drop(cluster.wait(api.watch(&watched.clone().fields("metadata.name=rack-a"), "0"))?);
    let mut refused = 0;
    let mut none = |what: &str, code: Option<u16>| {
        refused += 1;
        ensure!(code == Some(403), "{what}: {code:?}");
        Ok(())
    };
    fn code<T>(answer: kube::Result<T>) -> Option<u16> {
        match answer {
            Err(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
    for name in ["rack-b", "trunkline-webhook"] {
        none(name, code(cluster.wait(api.get(name))))?;
        none(name, code(cluster.wait(api.list(&named(name)))))?;
        let field = format!("metadata.name={name}");
        none(
            name,
            code(cluster.wait(async { api.watch(&watched.clone().fields(&field), "0").await.map(drop) })),
        )?;
    }
    none("all of the namespace", code(cluster.wait(api.list(&ListParams::default()))))?;
    let everywhere: Api<Secret> = Api::all(agent.clone());
    none("all", code(cluster.wait(everywhere.list(&ListParams::default()))))?;
    let not = ListParams::default().fields("metadata.name!=rack-a");
    none("all others", code(cluster.wait(api.list(&not))))?;
    Ok(refused)
}

/// All objects that an agent might change, without the fields that Kubernetes changes.
fn state(cluster: &Cluster) -> Result<String> {
    let kinds = "nodes,nodeinfoes,nodeservices,ipinstances,events.v1.events.k8s.io";
    let text = cluster.kubectl(["get", kinds, "-A", "-o", "json"])?;
    let mut all: Value = serde_json::from_str(&text)?;
    for item in all["items"].as_array_mut().into_iter().flatten() {
        if let Some(metadata) = item["metadata"].as_object_mut() {
            metadata
                .retain(|key, _| !["managedFields", "resourceVersion", "generation"].contains(&key.as_str()));
        }
    }
    Ok(all["items"].to_string())
}
