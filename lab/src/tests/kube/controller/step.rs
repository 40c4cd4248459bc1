//! The steps of a case: changes of the cluster, and assertions about its state.
//!
//! An assertion is retried until it holds or a time limit has passed. An assertion that something
//! does *not* happen runs after a [`World::barrier`]: when a later pod has its address, the leader
//! has received all earlier events.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectList, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use trunkline_api::kube::{IPInstanceObject, Lenient};
use trunkline_api::resources::{IPInstanceSpec, IpVersion};
use trunkline_controller::ipam::instance_name;

use super::super::api;
use crate::kube::Cluster;
use crate::shell::{Seen, run_with_input, wait_for};

/// Time limit of one assertion.
const PATIENCE: Duration = Duration::from_secs(90);

/// Time limit until watches apply a changed schema. The API server continues running watches for a
/// while, and omits fields from their events that the previous schema did not have. A client of
/// such a watch gets these fields only after the object is written again.
const SCHEMA_PATIENCE: Duration = Duration::from_secs(120);

/// The prefix of hybridnet's annotations and labels.
pub(super) const OURS: &str = "networking.alibaba.com/";

/// Path of the schema in a CustomResourceDefinition.
const SCHEMA: &str = ".spec.versions[0].schema.openAPIV3Schema";

/// The initial objects of each case. rack1 speaks BGP and has two nodes. rack2 is a VLAN with one
/// node and few addresses, some of them reserved or excluded in each possible way. n4 is in no
/// Underlay network. The overlay is on every node, and has the barriers' pods.
pub(super) const FURNITURE: &str = "
{ apiVersion: v1, kind: Node, metadata: { name: n1, labels: { rack: '1' } } }
---
{ apiVersion: v1, kind: Node, metadata: { name: n2, labels: { rack: '1' } } }
---
{ apiVersion: v1, kind: Node, metadata: { name: n3, labels: { rack: '2' } } }
---
{ apiVersion: v1, kind: Node, metadata: { name: n4 } }
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1 }
spec:
  { type: Underlay, mode: BGP, netID: 65001, nodeSelector: { rack: '1' }, config: { bgpPeers: [{ asn: 65100, address: 10.255.0.1 }] } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 10.1.0.0/24, start: 10.1.0.10, end: 10.1.0.19 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:1::/120', start: 'fd00:1::10', end: 'fd00:1::19' } }
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack2 }
spec: { type: Underlay, netID: 20, nodeSelector: { rack: '2' } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v4 }
spec:
  network: rack2
  range:
    { version: '4', cidr: 10.2.0.0/29, gateway: 10.2.0.1, excludeIPs: [10.2.0.3], reservedIPs: [10.2.0.4] }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v6 }
spec:
  { network: rack2, range: { version: '6', cidr: 'fd00:2::/120', gateway: 'fd00:2::1', start: 'fd00:2::10', end: 'fd00:2::11' } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-own }
spec:
  network: rack2
  range: { version: '4', cidr: 10.2.1.0/24, gateway: 10.2.1.1, start: 10.2.1.10, end: 10.2.1.11 }
  config: { private: true }
---
{ apiVersion: networking.alibaba.com/v1, kind: Network, metadata: { name: overlay }, spec: { type: Overlay, netID: 4 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: overlay-v4 }
spec: { network: overlay, range: { version: '4', cidr: 10.3.0.0/24, start: 10.3.0.10, end: 10.3.0.49 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: overlay-v6 }
spec: { network: overlay, range: { version: '6', cidr: 'fd00:3::/120', start: 'fd00:3::10', end: 'fd00:3::19' } }
";

/// One step.
pub(super) enum Step {
    /// `kubectl apply`, as a user does.
    Apply(&'static str),
    /// Creates a pod.
    Make(Pod),
    /// Changes a pod's state.
    Pod(&'static str, Deed),
    /// A merge patch. An IPInstance is named by its address, the case's own namespace by an empty
    /// name.
    Change(&'static str, &'static str, Value),
    /// A merge patch of the status.
    ChangeStatus(&'static str, &'static str, Value),
    /// Deletes an object without waiting.
    Delete(&'static str, &'static str),
    /// Replaces the schema of a kind by a schema that accepts anything, as in an old installation.
    /// The end of the case restores it.
    Loosen(&'static str),
    /// Creates an IPInstance for an address. Only its name is readable.
    Garble(&'static str),
    /// Waits until new objects are younger than this one: the API server's times have a resolution
    /// of one second.
    Later(&'static str, &'static str),
    /// A step that the API server refuses with this text.
    Refused(Box<Step>, &'static str),
    /// Asserts that exactly these addresses are bound to a pod.
    Has(&'static str, &'static [&'static str], Mac),
    /// Asserts that exactly these addresses are retained for the next pod of this name.
    Kept(&'static str, &'static [&'static str]),
    /// Asserts that no IPInstance has one of these addresses.
    Free(&'static [&'static str]),
    /// Asserts that a pod of this name has no address and gets none.
    HasNone(&'static str),
    /// Asserts that the result of an earlier [`Step::Has`] is unchanged.
    Still(&'static str, &'static [&'static str]),
    /// Asserts that an IPInstance with a deletion timestamp still exists.
    Held(&'static str),
    /// Asserts an event about the existing pod of this name: reason, and words of the text.
    HasEvent(&'static str, &'static str, &'static str),
    /// Asserts a warning about a Network or Subnet, with these words.
    Warned(&'static str, &'static str, &'static [&'static str]),
    /// Asserts fields of an object; null means absent.
    Shows(&'static str, &'static str, Value),
    /// Asserts that an object is gone.
    Gone(&'static str, &'static str),
    /// Asserts a line with all of these words in the controller's log.
    Logged(&'static [&'static str]),
}

/// A change of a pod's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// The scheduler has bound the pod to a node.
    Scheduled(&'static str),
    /// The kubelet reports a running container.
    Runs,
    /// The kubelet reports only that the container has ended.
    Stops,
    /// The node has evicted the pod.
    Evicted,
    /// The pod has completed.
    Completed,
    /// The pod has a deletion timestamp, and is in its grace period.
    Terminates,
    /// The pod is deleted without a grace period.
    Goes,
}

/// The expected MAC address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mac {
    /// A generated MAC address.
    Made,
    /// The MAC address of the last pod of this name.
    Same,
    /// Another MAC address than the last pod's.
    Other,
    /// This MAC address.
    Is(&'static str),
}

/// A pod to create.
#[derive(Clone, Default)]
pub(super) struct Pod {
    name: &'static str,
    node: Option<&'static str>,
    owner: Option<&'static str>,
    annotations: Vec<(&'static str, &'static str)>,
    labels: Vec<(&'static str, &'static str)>,
    /// Annotations with their whole names.
    others: Vec<(&'static str, &'static str)>,
    unseen_by_webhook: bool,
    host_network: bool,
    finalizer: bool,
}

/// A pod on node n1, without an owner.
pub(super) fn pod(name: &'static str) -> Pod {
    Pod { name, node: Some("n1"), ..Pod::default() }
}

impl Pod {
    /// Sets another node.
    pub(super) fn on(mut self, node: &'static str) -> Self {
        self.node = Some(node);
        self
    }

    /// Removes the node: the pod is not scheduled yet.
    pub(super) fn unscheduled(mut self) -> Self {
        self.node = None;
        self
    }

    /// Adds an owner: a workload of this kind, with the pod's name without the ordinal.
    pub(super) fn of(mut self, kind: &'static str) -> Self {
        self.owner = Some(kind);
        self
    }

    /// Adds one of hybridnet's annotations.
    pub(super) fn with(mut self, annotation: &'static str, value: &'static str) -> Self {
        self.annotations.push((annotation, value));
        self
    }

    /// Adds one of hybridnet's labels.
    pub(super) fn labelled(mut self, label: &'static str, value: &'static str) -> Self {
        self.labels.push((label, value));
        self
    }

    /// Adds any annotation.
    pub(super) fn annotated(mut self, annotation: &'static str, value: &'static str) -> Self {
        self.others.push((annotation, value));
        self
    }

    /// Exempts the pod from the webhook.
    pub(super) fn unseen_by_webhook(mut self) -> Self {
        self.unseen_by_webhook = true;
        self
    }

    /// Puts the pod into the node's network.
    pub(super) fn in_host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// Adds hybridnet's finalizer.
    pub(super) fn with_finalizer(mut self) -> Self {
        self.finalizer = true;
        self
    }

    /// The step that creates the pod.
    pub(super) fn made(self) -> Step {
        Step::Make(self)
    }

    fn object(&self, namespace: &str) -> Value {
        let ours = |pairs: &[(&str, &str)]| -> Value {
            pairs
                .iter()
                .map(|(name, value)| (format!("{OURS}{name}"), json!(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": self.name, "namespace": namespace,
                "annotations": ours(&self.annotations), "labels": ours(&self.labels),
            },
            "spec": {"containers": [{"name": "main", "image": "pretended"}], "hostNetwork": self.host_network},
        });
        for (name, value) in &self.others {
            object["metadata"]["annotations"][*name] = json!(value);
        }
        if self.unseen_by_webhook {
            object["metadata"]["labels"]["webhook.hybridnet.io/ignore"] = json!("true");
        }
        if let Some(node) = self.node {
            object["spec"]["nodeName"] = json!(node);
        }
        if self.finalizer {
            object["metadata"]["finalizers"] = json!([format!("{OURS}ip-allocated")]);
        }
        if let Some(kind) = self.owner {
            let name = self.name.rsplit_once('-').map_or(self.name, |(set, _)| set);
            object["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-of-{name}"), "controller": true,
            }]);
        }
        object
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Apply(_) => write!(f, "apply"),
            Step::Make(pod) => write!(f, "pod {} is created", pod.name),
            Step::Pod(name, deed) => write!(f, "pod {name}: {deed:?}"),
            Step::Change(kind, name, patch) => write!(f, "{kind} {name} is changed by {patch}"),
            Step::ChangeStatus(kind, name, patch) => {
                write!(f, "the status of {kind} {name} is changed by {patch}")
            }
            Step::Delete(kind, name) => write!(f, "{kind} {name} is deleted"),
            Step::Loosen(kind) => write!(f, "the schema of {kind} accepts anything"),
            Step::Garble(address) => write!(f, "a garbled IPInstance of {address} is created"),
            Step::Later(kind, name) => write!(f, "later than {kind} {name}"),
            Step::Refused(step, text) => write!(f, "refused with {text:?}: {step}"),
            Step::Has(name, addresses, mac) => write!(f, "{name} has {addresses:?}, MAC address {mac:?}"),
            Step::Kept(name, addresses) => write!(f, "{addresses:?} are retained for {name}"),
            Step::Free(addresses) => write!(f, "{addresses:?} are free"),
            Step::HasNone(name) => write!(f, "{name} has no address"),
            Step::Still(name, addresses) => write!(f, "{name} still has {addresses:?}"),
            Step::Held(address) => write!(f, "{address} is held"),
            Step::HasEvent(name, reason, text) => write!(f, "{name} has the event {reason}: {text}"),
            Step::Warned(kind, name, words) => write!(f, "{kind} {name} has a warning with {words:?}"),
            Step::Shows(kind, name, object) => write!(f, "{kind} {name} shows {object}"),
            Step::Gone(kind, name) => write!(f, "{kind} {name} is gone"),
            Step::Logged(words) => write!(f, "the log has {words:?}"),
        }
    }
}

/// The cluster during one case.
pub(super) struct World<'a> {
    pub cluster: &'a Cluster,
    pub namespace: String,
    /// Kinds of owners whose pods keep their addresses.
    pub stateful: &'static [&'static str],
    /// The MAC address of the last pod of each name.
    macs: BTreeMap<String, String>,
    barriers: usize,
    /// Kinds with a schema that accepts anything, with their original schemas.
    loosened: Vec<(&'static str, Value)>,
}

impl<'a> World<'a> {
    /// Creates the initial objects, and waits until the controller has seen them.
    pub(super) fn furnish(
        cluster: &'a Cluster,
        namespace: &str,
        stateful: &'static [&'static str],
    ) -> Result<Self> {
        let world = Self {
            cluster,
            namespace: namespace.to_owned(),
            stateful,
            macs: BTreeMap::new(),
            barriers: 0,
            loosened: Vec::new(),
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        world.create(object)?;
        cluster.apply(FURNITURE)?;
        for (network, nodes, subnets) in [
            ("rack1", json!(["n1", "n2"]), json!(["rack1-v4", "rack1-v6"])),
            ("rack2", json!(["n3"]), json!(["rack2-own", "rack2-v4", "rack2-v6"])),
            ("overlay", json!(["n1", "n2", "n3", "n4"]), json!(["overlay-v4", "overlay-v6"])),
        ] {
            let status = json!({"status": {"nodeList": nodes, "subnetList": subnets}});
            world.shows("Network", network, &status)?;
        }
        Ok(world)
    }

    /// Runs one step.
    pub(super) fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Apply(text) => {
                run_with_input(&mut self.cluster.kubectl_command(&["apply", "-f", "-"]), text).map(drop)
            }
            Step::Make(pod) => self.create(pod.object(&self.namespace)),
            Step::Pod(name, deed) => self.happens(name, *deed),
            Step::Change(kind, name, patch) => {
                let (api, name) = self.named(kind, name)?;
                let patch = Patch::Merge(patch);
                Ok(self.cluster.wait(api.patch(&name, &PatchParams::default(), &patch)).map(drop)?)
            }
            Step::ChangeStatus(kind, name, patch) => {
                let (api, name) = self.named(kind, name)?;
                let patch = Patch::Merge(patch);
                Ok(self.cluster.wait(api.patch_status(&name, &PatchParams::default(), &patch)).map(drop)?)
            }
            Step::Delete(kind, name) => {
                let (api, name) = self.named(kind, name)?;
                Ok(self.cluster.wait(api.delete(&name, &DeleteParams::default())).map(drop)?)
            }
            Step::Loosen(kind) => self.loosen(kind),
            Step::Garble(address) => {
                let (_, name) = self.named("IPInstance", address)?;
                let metadata = json!({"name": name, "namespace": self.namespace});
                self.create(json!({
                    "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance", "metadata": metadata,
                    "spec": {"network": "rack1", "address": "lost"},
                }))
            }
            Step::Later(kind, name) => {
                let made =
                    self.get(kind, name)?.context("the object does not exist")?.metadata.creation_timestamp;
                let probe = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "probe"}});
                self.until("the next second", |world| {
                    let now = world.try_create(&probe)?.metadata.creation_timestamp;
                    Ok(Seen::when(now > made, || format!("{now:?}")))
                })
            }
            Step::Refused(step, text) => {
                let error = self.take(step).err().context("the step was accepted")?;
                let said = format!("{error:#}");
                ensure!(said.contains(text), "refused for another reason: {said}");
                Ok(())
            }
            Step::Has(name, addresses, mac) => {
                let seen = self.has(name, addresses, *mac)?;
                self.macs.insert((*name).to_owned(), seen);
                Ok(())
            }
            Step::Kept(name, addresses) => self.kept(name, addresses, self.macs.get(*name)),
            Step::Free(addresses) => self.until(&format!("{addresses:?} to be free"), |world| {
                let held = world.instances()?;
                let held: Vec<&str> =
                    held.iter().map(address).filter(|held| addresses.contains(held)).collect();
                Ok(Seen::when(held.is_empty(), || format!("{held:?} are still allocated")))
            }),
            Step::HasNone(name) => {
                self.barrier()?;
                let all = self.instances()?;
                let of = |instance: &&IPInstanceObject| instance.spec.binding.pod_name == *name;
                let has: Vec<&str> = all.iter().filter(of).map(address).collect();
                ensure!(has.is_empty(), "the pod has {has:?}");
                Ok(())
            }
            Step::Still(name, addresses) => {
                self.barrier()?;
                self.has(name, addresses, Mac::Same).map(drop)
            }
            Step::Held(address) => {
                let (api, name) = self.named("IPInstance", address)?;
                let there = || -> Result<DynamicObject> { Ok(self.cluster.wait(api.get(&name))?) };
                ensure!(there()?.metadata.deletion_timestamp.is_some(), "the IPInstance was not deleted");
                self.barrier()?;
                there().map(drop).context("the IPInstance was removed too early")
            }
            Step::HasEvent(name, reason, text) => self.has_event(name, reason, text),
            Step::Warned(kind, name, words) => self.warned(kind, name, words),
            Step::Shows(kind, name, object) => self.shows(kind, name, object),
            Step::Gone(kind, name) => {
                let (api, name) = self.named(kind, name)?;
                self.until("the removal of the object", |world| {
                    let there = world.cluster.wait(api.get_opt(&name))?;
                    Ok(Seen::when(there.is_none(), || "the object still exists".to_owned()))
                })
            }
            Step::Logged(words) => self.until(&format!("a line with {words:?}"), |world| {
                let log = std::fs::read_to_string(world.cluster.folder().join("log/controller-1.log"))?;
                let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
                Ok(Seen::when(found, || "none".to_owned()))
            }),
        }
    }

    fn until(&self, what: &str, mut look: impl FnMut(&Self) -> Result<Seen<()>>) -> Result<()> {
        wait_for(what, PATIENCE, || look(self))
    }

    /// Objects of a kind, and the name of one of them.
    fn named(&self, kind: &str, name: &str) -> Result<(Api<DynamicObject>, String)> {
        let name = match kind {
            "IPInstance" => instance_name(name.parse().with_context(|| format!("address {name}"))?),
            "Namespace" if name.is_empty() => self.namespace.clone(),
            _ => name.to_owned(),
        };
        Ok((api(self.cluster, kind, Some(&self.namespace)), name))
    }

    fn create(&self, object: Value) -> Result<()> {
        self.create_with(&object, &PostParams::default()).map(drop)
    }

    /// A dry run of the creation.
    fn try_create(&self, object: &Value) -> Result<DynamicObject> {
        self.create_with(object, &PostParams { dry_run: true, ..PostParams::default() })
    }

    fn create_with(&self, object: &Value, parameters: &PostParams) -> Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let kind = object.types.as_ref().context("a kind")?.kind.clone();
        let api = api(self.cluster, &kind, Some(&self.namespace));
        Ok(self.cluster.wait(api.create(parameters, &object))?)
    }

    fn happens(&self, name: &str, deed: Deed) -> Result<()> {
        let pods = api(self.cluster, "Pod", Some(&self.namespace));
        let container = |state: Value| json!([{"name": "main", "image": "pretended", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        let over = json!({"terminated": {"exitCode": 0}});
        let status = match deed {
            Deed::Scheduled(node) => {
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
                let parameters = PostParams::default();
                let bound = pods.create_subresource::<Value, Value>("binding", name, &parameters, &binding);
                self.cluster.wait(bound)?;
                return Ok(());
            }
            Deed::Terminates | Deed::Goes => {
                let grace = if deed == Deed::Goes { 0 } else { 300 };
                self.cluster.wait(pods.delete(name, &DeleteParams::default().grace_period(grace)))?;
                return Ok(());
            }
            Deed::Runs => json!({"phase": "Running", "containerStatuses": container(json!({"running": {}}))}),
            Deed::Stops => json!({"phase": "Running", "containerStatuses": container(over)}),
            Deed::Evicted => {
                json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"})
            }
            Deed::Completed => json!({"phase": "Succeeded", "containerStatuses": container(over)}),
        };
        let patch = Patch::Merge(json!({ "status": status }));
        self.cluster.wait(pods.patch_status(name, &PatchParams::default(), &patch))?;
        Ok(())
    }

    fn loosen(&mut self, kind: &'static str) -> Result<()> {
        let kept =
            self.cluster.kubectl(["get", "crd", &crd(kind), "-o", &format!("jsonpath={{{SCHEMA}}}")])?;
        self.loosened.push((kind, serde_json::from_str(&kept)?));
        self.set_schema(kind, &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), true)
    }

    /// Changes the schema of a kind, and waits until the API server applies it.
    fn set_schema(&self, kind: &str, schema: &Value, takes_anything: bool) -> Result<()> {
        let path = SCHEMA.replace(['[', '.'], "/").replace(']', "");
        let patch = json!([{"op": "replace", "path": path, "value": schema}]).to_string();
        self.cluster.kubectl(["patch", "crd", &crd(kind), "--type=json", "-p", &patch])?;
        let mut probe = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": "probe"}, "spec": "anything",
        });
        if kind == "IPInstance" {
            probe["metadata"]["namespace"] = json!(self.namespace);
        }
        self.until("the API server to apply the schema", |world| {
            let taken = world.try_create(&probe);
            Ok(Seen::when(taken.is_ok() == takes_anything, || format!("{taken:?}")))
        })
    }

    /// All readable IPInstances of the case.
    fn instances(&self) -> Result<Vec<IPInstanceObject>> {
        let api: Api<Lenient<IPInstanceSpec>> = Api::namespaced(self.cluster.client(), &self.namespace);
        let all = self.cluster.wait(api.list(&ListParams::default()))?;
        Ok(all.items.into_iter().filter_map(|instance| instance.0.ok()).collect())
    }

    /// An object of any kind; `None` if it does not exist.
    pub(super) fn get(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>> {
        let (api, name) = self.named(kind, name)?;
        Ok(self.cluster.wait(api.get_opt(&name))?)
    }

    fn has(&self, pod: &str, addresses: &[&str], mac: Mac) -> Result<String> {
        let before = self.macs.get(pod).map(String::as_str);
        wait_for(&format!("{pod} to have {addresses:?}"), PATIENCE, || {
            let there = self.get("Pod", pod)?.context("there is no such pod")?;
            let uid = there.uid().unwrap_or_default();
            let mut all = self.instances()?;
            all.retain(|instance| {
                instance.spec.binding.pod_uid == uid && instance.metadata.deletion_timestamp.is_none()
            });
            all.sort_by_key(|instance| instance.spec.address.version == IpVersion::V6);
            let seen: Vec<&str> = all.iter().map(address).collect();
            if seen != addresses {
                return Ok(Seen::NotYet(format!("{seen:?}")));
            }
            let seen = all.first().map(|first| first.spec.address.mac.clone()).unwrap_or_default();
            let checked =
                super::look::well_formed(self, &there, &all).and_then(|()| mac.check(&seen, before));
            // A complete result would no longer change.
            Ok(Seen::Yes(checked.map(|()| seen)))
        })?
    }

    fn kept(&self, pod: &str, addresses: &[&str], mac: Option<&String>) -> Result<()> {
        self.until(&format!("{addresses:?} to be retained for {pod}"), |world| {
            let mut all = world.instances()?;
            all.retain(|instance| instance.spec.binding.pod_name == pod);
            all.sort_by_key(|instance| instance.spec.address.version == IpVersion::V6);
            let seen: Vec<&str> = all.iter().map(address).collect();
            if seen != addresses {
                return Ok(Seen::NotYet(format!("{seen:?}")));
            }
            for instance in &all {
                super::look::reserved(instance)?;
                if mac.is_some_and(|mac| *mac != instance.spec.address.mac) {
                    bail!("its MAC address was {mac:?} and is {}", instance.spec.address.mac);
                }
            }
            Ok(Seen::Yes(()))
        })
    }

    fn has_event(&self, pod: &str, reason: &str, text: &str) -> Result<()> {
        let uid = self.get("Pod", pod)?.and_then(|pod| pod.uid());
        let events: Api<Event> = Api::namespaced(self.cluster.client(), &self.namespace);
        self.until(&format!("{pod} to have the event {reason}: {text}"), |world| {
            let all = world.cluster.wait(events.list(&ListParams::default()))?;
            let about = |event: &&Event| {
                event.regarding.as_ref().is_some_and(|about| {
                    about.kind.as_deref() == Some("Pod")
                        && about.name.as_deref() == Some(pod)
                        && about.uid == uid
                })
            };
            let mut seen = Vec::new();
            for event in all.iter().filter(about) {
                let (is, note) =
                    (event.reason.as_deref().unwrap_or_default(), event.note.as_deref().unwrap_or_default());
                if is == reason && note.contains(text) {
                    let warns = event.type_.as_deref() == Some("Warning");
                    ensure!(warns != reason.ends_with("Succeed"), "{reason} is of type {:?}", event.type_);
                    return Ok(Seen::Yes(()));
                }
                seen.push(format!("{is}: {note}"));
            }
            Ok(Seen::NotYet(format!("{seen:?}")))
        })
    }

    fn warned(&self, kind: &str, name: &str, words: &[&str]) -> Result<()> {
        let uid = self.get(kind, name)?.and_then(|object| object.uid());
        let events: Api<Event> = Api::namespaced(self.cluster.client(), "default");
        let what = format!("{kind} {name} to have a warning with {words:?}");
        let mut looks = 0;
        wait_for(&what, SCHEMA_PATIENCE, || {
            if !self.loosened.is_empty() {
                looks += 1;
                let touch = json!({"metadata": {"annotations": {"example.com/looks": format!("{looks}")}}});
                let (api, name) = self.named(kind, name)?;
                self.cluster.wait(api.patch(&name, &PatchParams::default(), &Patch::Merge(touch)))?;
            }
            let all = self.cluster.wait(events.list(&ListParams::default()))?;
            let about = |event: &&Event| {
                let about = event.regarding.as_ref();
                about.is_some_and(|about| about.kind.as_deref() == Some(kind) && about.uid == uid)
            };
            let notes: Vec<&str> =
                all.iter().filter(about).filter_map(|event| event.note.as_deref()).collect();
            let found = notes.iter().any(|note| words.iter().all(|word| note.contains(word)));
            Ok(Seen::when(found, || format!("{notes:?}")))
        })
    }

    fn shows(&self, kind: &str, name: &str, wanted: &Value) -> Result<()> {
        self.until(&format!("{kind} {name} to show {wanted}"), |world| {
            let there = world.get(kind, name)?.context("the object does not exist")?;
            let there = serde_json::to_value(there)?;
            Ok(super::look::difference(wanted, &there).map_or(Seen::Yes(()), Seen::NotYet))
        })
    }

    /// Creates a pod, waits until it has an address, and deletes it.
    fn barrier(&mut self) -> Result<()> {
        self.barriers += 1;
        let name = format!("barrier-{}", self.barriers);
        let mut object =
            pod("barrier").with("network-type", "Overlay").with("ip-family", "IPv4").object(&self.namespace);
        object["metadata"]["name"] = json!(name);
        self.create(object)?;
        let of = |instance: &IPInstanceObject| instance.spec.binding.pod_name == name;
        self.until(&format!("{name} to have an address"), |world| {
            Ok(Seen::when(world.instances()?.iter().any(of), || "the pod has no address".to_owned()))
        })?;
        self.happens(&name, Deed::Goes)?;
        self.until(&format!("the address of {name} to be free"), |world| {
            Ok(Seen::when(!world.instances()?.iter().any(of), || "the object still exists".to_owned()))
        })
    }

    /// Deletes everything. If the case was successful so far, also checks the final conditions.
    pub(super) fn clear(&mut self, went_well: bool) -> Result<()> {
        let mut checked = Ok(());
        let at_once = DeleteParams::default().grace_period(0);
        let all = ListParams::default();
        let pods = api(self.cluster, "Pod", Some(&self.namespace));
        drop(self.cluster.wait(pods.delete_collection(&at_once, &all))?);
        if went_well {
            checked = self.until("the remaining addresses to be retained for later pods", |world| {
                let left = world.instances()?;
                let bound: Vec<&str> = left
                    .iter()
                    .filter(|instance| super::look::reserved(instance).is_err())
                    .map(address)
                    .collect();
                Ok(Seen::when(bound.is_empty(), || format!("{bound:?} are bound to pods that are gone")))
            });
        }
        // The garbage collector does the same after the workloads are deleted.
        let instances = api(self.cluster, "IPInstance", Some(&self.namespace));
        drop(self.cluster.wait(instances.delete_collection(&DeleteParams::default(), &all))?);
        let gone = self.until("the removal of deleted IPInstances", |world| {
            let left = world.instances()?;
            Ok(Seen::when(left.is_empty(), || format!("{:?}", left.iter().map(address).collect::<Vec<_>>())))
        });
        if let Err(error) = gone {
            checked = checked.and(Err(error));
            self.strip("IPInstance")?;
        }
        if went_well && checked.is_ok() {
            checked = self.nothing_in_use();
        }
        if !went_well {
            self.strip("Pod")?;
        }
        for kind in ["Node", "Subnet", "Network", "NodeInfo"] {
            let every = api(self.cluster, kind, None);
            drop(self.cluster.wait(every.delete_collection(&DeleteParams::default(), &all))?);
            let gone = self.until(&format!("the removal of every {kind}"), |world| {
                let left: ObjectList<DynamicObject> = world.cluster.wait(every.list(&all))?;
                let left: Vec<String> = left.iter().map(|object| object.name_any()).collect();
                Ok(Seen::when(left.is_empty(), || format!("{left:?}")))
            });
            if let Err(error) = gone {
                checked = checked.and(Err(error));
                self.strip(kind)?;
            }
        }
        for (kind, schema) in std::mem::take(&mut self.loosened) {
            self.set_schema(kind, &schema, false)?;
        }
        checked
    }

    /// Asserts that no Subnet has an address in use.
    fn nothing_in_use(&self) -> Result<()> {
        let subnets = api(self.cluster, "Subnet", None);
        self.until("no address to be in use", |world| {
            let all = world.cluster.wait(subnets.list(&ListParams::default()))?;
            let used = |subnet: &DynamicObject| subnet.data["status"]["used"].as_u64().unwrap_or(0);
            let full: Vec<String> =
                all.iter().filter(|subnet| used(subnet) > 0).map(|subnet| subnet.name_any()).collect();
            Ok(Seen::when(full.is_empty(), || format!("{full:?} have")))
        })
    }

    /// Removes finalizers, because leftovers of a failed case must not make the next case fail.
    fn strip(&self, kind: &str) -> Result<()> {
        let every = api(self.cluster, kind, Some(&self.namespace));
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for object in self.cluster.wait(every.list(&ListParams::default()))? {
            // The object may have been deleted meanwhile.
            let _gone = self.cluster.wait(every.patch(&object.name_any(), &PatchParams::default(), &patch));
        }
        Ok(())
    }
}

fn crd(kind: &str) -> String {
    format!("{}s.networking.alibaba.com", kind.to_lowercase())
}

impl Mac {
    fn check(self, seen: &str, before: Option<&str>) -> Result<()> {
        match self {
            Mac::Made => ensure!(seen.starts_with("02:12:34:"), "{seen} is no generated MAC address"),
            Mac::Same => ensure!(Some(seen) == before, "the MAC address is {seen}, and was {before:?}"),
            Mac::Other => ensure!(Some(seen) != before, "{seen} again"),
            Mac::Is(wanted) => ensure!(seen == wanted, "{seen}, and not {wanted}"),
        }
        Ok(())
    }
}

/// The address of an IPInstance, without its prefix length.
pub(super) fn address(instance: &IPInstanceObject) -> &str {
    instance.spec.address.ip.split('/').next().unwrap_or_default()
}

/// Asserts that a pod has these addresses, with a generated MAC address.
pub(super) fn has(pod: &'static str, addresses: &'static [&'static str]) -> Step {
    Step::Has(pod, addresses, Mac::Made)
}

/// Asserts that a pod has these addresses, and the MAC address of the last one of its name.
pub(super) fn has_again(pod: &'static str, addresses: &'static [&'static str]) -> Step {
    Step::Has(pod, addresses, Mac::Same)
}

/// Sets an annotation of the case's namespace; null removes it.
pub(super) fn namespace_says(annotation: &str, value: Value) -> Step {
    Step::Change(
        "Namespace",
        "",
        json!({"metadata": {"annotations": {format!("{OURS}{annotation}"): value}}}),
    )
}

/// Asserts hybridnet's labels of a node; null means absent.
pub(super) fn node_has(node: &'static str, labels: &[(&str, Value)]) -> Step {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(name, value)| (format!("{OURS}{name}"), value.clone())).collect();
    Step::Shows("Node", node, json!({"metadata": {"labels": labels}}))
}
