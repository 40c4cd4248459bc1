//! Pods: their IPInstances are created, bound, retained and deleted.
//!
//! The creation of the IPInstance allocates the address; an update never does. Both IPInstances of
//! a pair are written at once, and each records that it is one of two. If only one exists, a reader
//! therefore knows that the other is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;
use trunkline_api::interfaces::InterfaceName;
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::{annotation, finalizer, label};
use trunkline_api::pod::ordinal;
use trunkline_api::resources::{
    Address, Binding, IPInstanceSpec, IpVersion, ReferredObject, Stateful, Subnet,
};
use trunkline_daemon::errors::chain;

use super::namespace::make_current;
use super::plan::{AllocationRefusal, AssignPlan, Existing, Plan, PlannedInterface};
use super::retention::{Amendment, Expired, Ownership, effective};
use super::{Context, ReconcileError, ReconcileResult, WriteError, first_error, reference, vm, written};
use crate::cluster::pod::Pod;
use crate::cluster::{Answer, ClusterReader as _, InstanceRow, Key, Owner, PodRow, pod_label};
use crate::events::reason;
use crate::ipam::{Assigned, instance_name};
use crate::state::{ControllerState, PendingCreate};

/// The version of the layout of IPInstances. It is hybridnet's third layout, which Trunkline also
/// uses.
const VERSION: &str = "v1.2";

/// Reconciles the addresses of a pod with its state.
pub async fn reconcile(context: Context, key: Key) -> ReconcileResult {
    make_current(&context, &key).await?;
    let (plans, pod) = {
        let mut state = context.shared.lock();
        let pod = vm::subject(&state.cluster, &key).map(|subject| about(subject.key, Some(&subject.pod.uid)));
        (state.plan_pod(&key, &context.policy, fastrand::u32(..), Timestamp::now()), pod)
    };
    // The interfaces do not depend on each other.
    let pod = pod.as_ref();
    first_error(join_all(plans.into_iter().map(|plan| execute(&context, &key, pod, plan))).await)
}

/// Makes the writes for one interface of an allocation key. `pod` is the object of its events; a
/// deleted pod has none.
async fn execute(
    context: &Context,
    key: &Key,
    pod: Option<&ObjectReference>,
    plan: Result<Plan, AllocationRefusal>,
) -> ReconcileResult {
    let plan = match plan {
        Ok(plan) => plan,
        Err(refused) => {
            context.shared.metrics().failed(refused.reason());
            let about = pod.cloned().unwrap_or_else(|| about(key, None));
            context.events.warning(about, reason::ALLOCATION_FAILED, refused.to_string());
            return Err(refused.into());
        }
    };
    match plan {
        Plan::Nothing => Ok(()),
        Plan::Release(instances) => {
            let outcome = delete(context, &instances).await;
            if outcome.is_ok() && !instances.is_empty() {
                record_release(context, pod, &instances);
            }
            outcome
        }
        Plan::Retain { keep, remove_finalizer } => leave(context, key, keep, remove_finalizer, pod).await,
        Plan::Assign(assignment) => assign(context, key, *assignment).await,
        Plan::Redirect(redirects) => {
            first_error(join_all(redirects.iter().map(|change| redirect(context, change))).await)
        }
        Plan::ReleaseOrphans(orphans) => {
            let released = vm::release(context, &orphans).await?;
            context.shared.metrics().released(released);
            tracing::info!(vm = %orphans.vm, addresses = released, "a virtual machine is gone: its addresses are released");
            Ok(())
        }
        Plan::Refuse(refused) => {
            let about = pod.cloned().unwrap_or_else(|| about(key, None));
            context.events.warning(about, reason::ALLOCATION_FAILED, refused.to_string());
            Ok(())
        }
        Plan::Settle(unanswered) => settle(context, key, unanswered).await,
        Plan::Expire(expired) => expire(context, key, &expired).await,
        Plan::Amend(amendments) => {
            first_error(join_all(amendments.iter().map(|amendment| amend(context, amendment))).await)
        }
    }
}

pub(super) fn about(key: &Key, uid: Option<&str>) -> ObjectReference {
    reference("Pod", "v1", Some(&key.namespace), &key.name, uid.unwrap_or_default())
}

fn record_release(context: &Context, pod: Option<&ObjectReference>, instances: &[Existing]) {
    context.shared.metrics().released(instances.len());
    // No one reads the events of a deleted pod.
    if let Some(pod) = pod {
        let names = instances.iter().map(|instance| &*instance.key.name).collect::<Vec<_>>().join(", ");
        context.events.normal(pod.clone(), reason::RELEASED, format!("released {names}"));
    }
}

/// Deletes IPInstances.
pub(super) async fn delete(context: &Context, instances: &[Existing]) -> ReconcileResult {
    let deleted = join_all(instances.iter().map(|instance| async {
        written(delete_one(context, instance, None).await, || not_deleted(instance))
    }))
    .await;
    first_error(deleted)
}

fn not_deleted(instance: &Existing) -> String {
    format!("IPInstance {} was not deleted", instance.key)
}

/// Deletes an IPInstance, only in this version if there is one.
async fn delete_one(context: &Context, instance: &Existing, version: Option<u64>) -> Result<(), WriteError> {
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &instance.key.namespace);
    let preconditions = Preconditions {
        uid: Some(instance.uid.to_string()),
        resource_version: version.map(|version| version.to_string()),
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let answer = context.write(api.delete(&instance.key.name, &parameters)).await?;
    // The object stays until its finalizer is removed. No pod may be bound to it meanwhile.
    if let Some(object) = answer.left() {
        learn(context, &instance.key, &object, Answer::Changed);
    }
    Ok(())
}

/// Deletes the IPInstances of retained addresses whose time is over. If the deletion fails, the next
/// plan for the pod's name makes them available again.
async fn expire(context: &Context, key: &Key, expired: &[Expired]) -> ReconcileResult {
    let deleted = join_all(expired.iter().map(|expired| async {
        let version = Some(expired.version).filter(|version| *version != 0);
        match delete_one(context, &expired.instance, version).await {
            Ok(()) => {
                context.shared.metrics().released(1);
                let instance = &expired.instance.key;
                tracing::info!(pod = %key, %instance, "the retention of an address is over: it is released");
                Ok(())
            }
            failed => written(failed, || not_deleted(&expired.instance)),
        }
    }))
    .await;
    first_error(deleted)
}

/// Starts the clock of a retained IPInstance, or moves its owner.
async fn amend(context: &Context, amendment: &Amendment) -> ReconcileResult {
    let Existing { key, uid } = &amendment.instance;
    let mut patch = json!({"metadata": {"uid": &**uid, "annotations": {}}});
    if amendment.starts_clock {
        patch["metadata"]["annotations"][annotation::RETAINED_SINCE] = seconds(Timestamp::now()).into();
    }
    match &amendment.ownership {
        Some(Ownership::Recorded(owner)) => {
            patch["metadata"]["ownerReferences"] = Value::Null;
            patch["metadata"]["annotations"][annotation::WORKLOAD_API_VERSION] = json!(&*owner.api_version);
            patch["spec"]["binding"]["referredObject"] = json!(referred(owner));
        }
        Some(Ownership::Owned(owner)) => {
            patch["metadata"]["ownerReferences"] = json!([reference_to(owner)]);
            patch["metadata"]["annotations"][annotation::WORKLOAD_API_VERSION] = Value::Null;
        }
        None => {}
    }
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    let answer = context.write(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await;
    if let Ok(object) = &answer {
        learn(context, key, object, Answer::Changed);
    }
    written(answer, || format!("the retention of IPInstance {key} was not written"))
}

/// RFC 3339, in whole seconds.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn reference_to(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.to_string(),
        kind: owner.kind.to_string(),
        name: owner.name.to_string(),
        uid: owner.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

fn referred(owner: &Owner) -> ReferredObject {
    ReferredObject { kind: owner.kind.to_string(), name: owner.name.to_string(), uid: owner.uid.to_string() }
}

async fn leave(
    context: &Context,
    key: &Key,
    keep: Vec<Existing>,
    remove_finalizer: Option<Arc<str>>,
    pod: Option<&ObjectReference>,
) -> ReconcileResult {
    // The clocks of both addresses of a pair are equal.
    let now = Timestamp::now();
    first_error(join_all(keep.iter().map(|instance| reserve(context, instance, now))).await)?;
    if !keep.is_empty() {
        context.shared.metrics().reserved(keep.len());
        let names = keep.iter().map(|instance| &*instance.key.name).collect::<Vec<_>>().join(", ");
        tracing::debug!(pod = %key, addresses = names, "addresses are retained");
        if let Some(pod) = pod {
            context.events.normal(
                pod.clone(),
                reason::RESERVED,
                format!("retains {names} for the next pod of its name"),
            );
        }
    }
    match remove_finalizer {
        Some(uid) => take_finalizer(context, key, &uid).await,
        None => Ok(()),
    }
}

/// Unbinds the IPInstance from node and pod, and retains it for the next pod of the name, or for its
/// virtual machine. Its clock starts `now`.
pub(super) async fn reserve(context: &Context, instance: &Existing, now: Timestamp) -> ReconcileResult {
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &instance.key.namespace);
    let mut patch = json!({
        "metadata": {
            "uid": &*instance.uid,
            "labels": {label::NODE: null, label::POD_UID: null},
            "annotations": {annotation::RETAINED_SINCE: seconds(now)},
        },
        "spec": {"binding": {"nodeName": "", "podUID": null}},
    });
    if context.shared.with_cluster(|cluster| cluster.instance(&instance.key).is_some_and(|row| row.of_vm)) {
        // The next pod has another name.
        patch["metadata"]["labels"][label::POD] = Value::Null;
        patch["spec"]["binding"]["podName"] = Value::Null;
        patch["metadata"]["labels"][label::MIGRATION_SOURCE] = Value::Null;
        patch["metadata"]["annotations"][annotation::MIGRATION_TARGET] = Value::Null;
        patch["metadata"]["annotations"][annotation::MIGRATION_SOURCE_POD] = Value::Null;
    }
    let status = json!({
        "metadata": {"uid": &*instance.uid},
        "status": {
            "nodeName": null, "podName": null, "podNamespace": null, "sandboxID": null,
            "attachedSandboxID": null,
            "updateTimestamp": seconds(now),
        },
    });
    // Clear the status first: if the unbinding then fails, the cleared status does no harm.
    let parameters = PatchParams::default();
    let cleared =
        context.write(api.patch_status(&instance.key.name, &parameters, &Patch::Merge(status))).await;
    let answer = match cleared {
        Ok(_) => context.write(api.patch(&instance.key.name, &parameters, &Patch::Merge(patch))).await,
        Err(error) => Err(error),
    };
    if let Ok(object) = &answer {
        learn(context, &instance.key, object, Answer::Changed);
    }
    written(answer, || format!("IPInstance {} was not marked as reserved", instance.key))
}

/// Changes the pod in an IPInstance's labels, and the source and the target of its live migration. After
/// a completed one the source stays in the labels: its agent may have been down.
async fn redirect(context: &Context, change: &vm::Redirect) -> ReconcileResult {
    let Existing { key, uid } = &change.instance;
    let pod = &change.pod;
    let target = change.source.as_ref().map(|_| json!(pod).to_string());
    let (node, source_pod) = change.source.as_ref().map(|(node, uid)| (&**node, &**uid)).unzip();
    let patch = json!({"metadata": {
        "uid": &**uid,
        "labels": {label::NODE: pod.node_name, label::POD: pod_label(&pod.pod_name), label::POD_UID: pod.pod_uid, label::MIGRATION_SOURCE: node},
        "annotations": {annotation::MIGRATION_TARGET: target, annotation::MIGRATION_SOURCE_POD: source_pod},
    }});
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    let answer = context.write(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await;
    if let Ok(object) = &answer {
        learn(context, key, object, Answer::Changed);
    }
    written(answer, || format!("the target of the live migration was not written to IPInstance {key}"))
}

/// Removes hybridnet's finalizer from a pod.
async fn take_finalizer(context: &Context, key: &Key, uid: &str) -> ReconcileResult {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch = json!({"metadata": {
        "uid": uid,
        "$deleteFromPrimitiveList/finalizers": [finalizer::IP_ALLOCATED],
    }});
    let answer = context.write(api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch))).await;
    written(answer, || format!("the finalizer of pod {key} was not removed"))
}

async fn assign(context: &Context, key: &Key, assignment: AssignPlan) -> ReconcileResult {
    let began = Instant::now();
    let pod = &assignment.pod;
    let about_pod = about(&assignment.pod_key, Some(&pod.uid));
    match delete(context, &assignment.release).await {
        Ok(()) if assignment.release.is_empty() => {}
        Ok(()) => record_release(context, Some(&about_pod), &assignment.release),
        Err(error) => error.log(),
    }
    let written = join_all(
        assignment.granted.addresses.iter().map(|assigned| assign_one(context, key, &assignment, assigned)),
    )
    .await;
    let mut faults = Vec::new();
    let mut unanswered = Vec::new();
    {
        let mut state = context.shared.lock();
        let ControllerState { term, cluster, .. } = &mut *state;
        let Some(term) = term else { return Err(ReconcileError::TermOver) };
        for (assigned, written) in assignment.granted.addresses.iter().zip(written) {
            match written {
                // If the IPInstance was deleted before the answer arrived, the address is free again.
                Ok(()) => {
                    let instance =
                        Key::new(Arc::clone(&key.namespace), instance_name(assigned.address.addr()));
                    if cluster.instance(&instance).is_none() {
                        term.ipam.refuse(assigned.address.addr(), &key.namespace);
                    }
                }
                Err(NotGiven { error, unanswered: false }) => {
                    term.ipam.refuse(assigned.address.addr(), &key.namespace);
                    // The pod's next plan takes the address, or another pod gets it.
                    let of = (assignment.network.name().into(), Arc::clone(&assigned.subnet));
                    term.woken.insert(key.clone(), of);
                    faults.push(("api", error));
                }
                Err(NotGiven { error, unanswered: true }) => {
                    unanswered.push(assigned.clone());
                    faults.push(("unanswered", error));
                }
            }
        }
        if !unanswered.is_empty() {
            let granted =
                crate::ipam::AllocatedAddresses { addresses: unanswered, mac: assignment.granted.mac };
            let (network, family) = (Arc::clone(&assignment.network), assignment.family);
            let (pod_uid, interface) = (Arc::clone(&pod.uid), assignment.interface.other());
            term.add_pending(key, PendingCreate { pod_uid, interface, network, granted, family });
        }
    }
    for (reason, error) in &faults {
        context.shared.metrics().failed(reason);
        context.events.warning(about_pod.clone(), reason::ALLOCATION_FAILED, chain(error));
    }
    first_error(faults.into_iter().map(|(_, error)| Err(error)))?;
    let addresses = assignment.granted.addresses.iter().map(|assigned| assigned.address.addr().to_string());
    let addresses = addresses.collect::<Vec<_>>();
    context.shared.metrics().allocated(assignment.granted.addresses.len(), began.elapsed());
    tracing::debug!(pod = %key, ?addresses, "addresses are allocated");
    let interface = assignment.interface.other();
    let of = interface.as_ref().map_or_else(String::new, |name| format!(" for interface {name}"));
    let text = format!("{} of Network {}{of}", addresses.join(", "), assignment.network.name());
    context.events.normal(about_pod, reason::ALLOCATED, text);
    if context.calico && interface.is_none() {
        return annotate(context, key, &assignment.pod_key, pod).await;
    }
    Ok(())
}

/// An address that a pod did not get.
struct NotGiven {
    error: ReconcileError,
    /// Whether its IPInstance may have been written.
    unanswered: bool,
}

async fn assign_one(
    context: &Context,
    key: &Key,
    assignment: &AssignPlan,
    assigned: &Assigned,
) -> Result<(), NotGiven> {
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    let subnet = context.shared.lock().cluster.subnet(&assigned.subnet).cloned();
    let object = ip_instance(assignment, assigned, subnet.as_deref());
    let instance = Key::new(Arc::clone(&key.namespace), instance_name(assigned.address.addr()));
    let answer = if assigned.rebind { Answer::Changed } else { Answer::Created };
    let outcome = if assigned.rebind {
        bind(context, &api, &instance, assignment, &object).await
    } else {
        context.write(api.create(&PostParams::default(), &object)).await
    };
    let request = |source| {
        let what = format!("IPInstance {instance} of pod {} was not written", assignment.pod_key);
        ReconcileError::Request { what, source }
    };
    match outcome {
        Ok(object) => {
            learn(context, &instance, &object, answer);
            Ok(())
        }
        // The IPInstance comes from an earlier attempt without an answer, or from another client.
        Err(WriteError::Refused(status)) if status.is_already_exists() => {
            match context.write(api.get(&instance.name)).await {
                Ok(there) => {
                    learn(context, &instance, &there, Answer::Created);
                    let own = there.spec.binding.pod_uid == *assignment.pod.uid
                        && there.metadata.deletion_timestamp.is_none();
                    if own {
                        Ok(())
                    } else {
                        Err(NotGiven { error: ReconcileError::Foreign(instance), unanswered: false })
                    }
                }
                Err(error) => Err(NotGiven { error: request(error), unanswered: true }),
            }
        }
        Err(error) => {
            let unanswered = error.is_unanswered();
            Err(NotGiven { error: request(error), unanswered })
        }
    }
}

/// Binds an existing IPInstance to a pod. The address stays; only the MAC address can change, if
/// the pod names one.
async fn bind(
    context: &Context,
    api: &Api<IPInstanceObject>,
    instance: &Key,
    assignment: &AssignPlan,
    object: &IPInstanceObject,
) -> Result<IPInstanceObject, WriteError> {
    let known = {
        let state = context.shared.lock();
        state.cluster.instance(instance).map(|row| (Arc::clone(&row.uid), row.finalizer.is_some()))
    };
    let (uid, has_finalizer) = known.unzip();
    let mut annotations = json!(object.metadata.annotations);
    // Remove those of the previous pod.
    for name in [
        annotation::EXTRA_PREFIXES,
        annotation::IP_RETENTION,
        annotation::WORKLOAD_API_VERSION,
        annotation::INTERFACE,
        annotation::OTHER_INTERFACES,
        annotation::MIGRATION_TARGET,
    ] {
        if annotations.get(name).is_none() {
            annotations[name] = Value::Null;
        }
    }
    annotations[annotation::RETAINED_SINCE] = Value::Null;
    let mut patch = json!({
        "metadata": {
            "uid": uid.as_deref(),
            "labels": object.metadata.labels,
            "annotations": annotations,
            "ownerReferences": object.metadata.owner_references,
        },
        "spec": {"binding": object.spec.binding, "address": {"mac": object.spec.address.mac}},
    });
    if has_finalizer != Some(true) {
        // Another client removed the finalizer. This patch can only replace the list, so it carries
        // the version that was read.
        let there = context.write(api.get(&instance.name)).await?;
        let mut finalizers = there.metadata.finalizers.unwrap_or_default();
        if !finalizers.iter().any(|name| name == finalizer::IP_ALLOCATED) {
            finalizers.push(finalizer::IP_ALLOCATED.to_owned());
        }
        patch["metadata"]["finalizers"] = finalizers.into();
        patch["metadata"]["resourceVersion"] = there.metadata.resource_version.into();
    }
    if assignment.pod.owner.is_none() && assignment.vm.is_none() {
        // The pod's StatefulSet was deleted without the pod, and the IPInstance still records it as
        // the owner.
        remove(&mut patch, "metadata", "ownerReferences");
        remove(&mut patch["metadata"], "annotations", annotation::WORKLOAD_API_VERSION);
        if let Some(spec) = patch.get_mut("spec") {
            remove(spec, "binding", "referredObject");
        }
    }
    context.write(api.patch(&instance.name, &PatchParams::default(), &Patch::Merge(patch))).await
}

fn remove(value: &mut Value, at: &str, field: &str) {
    if let Some(object) = value.get_mut(at).and_then(Value::as_object_mut) {
        object.remove(field);
    }
}

/// Applies the API server's answer before the watch shows it.
fn learn(context: &Context, key: &Key, object: &IPInstanceObject, answer: Answer) {
    let mut state = context.shared.lock();
    if let Ok(row) = InstanceRow::of(object, state.cluster.vms.retain, &mut state.cluster.interner) {
        state.learn_instance(key, row, answer);
    }
}

/// Finds out whether IPInstances were created for, or bound to, a pod that no longer needs them.
/// Existing IPInstances become rows and are released like the rows of any deleted pod. If an
/// IPInstance does not exist, its address is returned.
async fn settle(context: &Context, key: &Key, unanswered: PendingCreate) -> ReconcileResult {
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    for assigned in &unanswered.granted.addresses {
        let address = assigned.address.addr();
        let instance = Key::new(Arc::clone(&key.namespace), instance_name(address));
        match context.write(api.get_opt(&instance.name)).await {
            Ok(object) => {
                let is_written = object.as_ref().is_some_and(|object| {
                    learn(context, &instance, object, Answer::Created);
                    object.spec.binding.pod_uid == *unanswered.pod_uid
                });
                if !is_written && let Some(term) = &mut context.shared.lock().term {
                    term.ipam.refuse(address, &key.namespace);
                    term.address_is_free(&unanswered.network.name().into(), &assigned.subnet);
                }
            }
            Err(source) => {
                if let Some(term) = &mut context.shared.lock().term {
                    term.add_pending(key, unanswered.clone());
                }
                let what = format!("IPInstance {instance} was not read, so it may have been written");
                return Err(ReconcileError::Request { what, source });
            }
        }
    }
    // The watch may have shown them before, so this answer changes nothing. Queue the pod
    // nevertheless.
    if let Some(term) = &context.shared.lock().term {
        term.queues.pods.add(key.clone());
    }
    Ok(())
}

/// Writes the annotation for a policy-only Calico, once the pod has all of its addresses.
async fn annotate(context: &Context, of: &Key, key: &Key, pod: &PodRow) -> ReconcileResult {
    let addresses = {
        let state = context.shared.lock();
        let of_eth0 = |row: &InstanceRow| row.pod_uid == pod.uid && row.interface.is_none();
        let rows = state.cluster.instances_of(of).into_iter().filter(|(_, row)| of_eth0(row));
        rows.map(|(_, row)| row.address.to_string()).collect::<Vec<_>>().join(",")
    };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch =
        json!({"metadata": {"uid": &*pod.uid, "annotations": {annotation::CALICO_POD_IPS: addresses}}});
    let answer = context.write(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await;
    written(answer, || format!("the annotation {} of pod {key} was not written", annotation::CALICO_POD_IPS))
}

/// The IPInstance of one address of a pod.
fn ip_instance(assignment: &AssignPlan, assigned: &Assigned, subnet: Option<&Subnet>) -> IPInstanceObject {
    let (key, pod) = (&assignment.pod_key, &assignment.pod);
    let node = pod.node.as_deref().unwrap_or_default();
    let itself = || Owner {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: Arc::clone(&key.name),
        uid: Arc::clone(&pod.uid),
    };
    let workload = || pod.owner.clone().filter(|_| assignment.stateful);
    let owner = assignment.vm.clone().or_else(workload).unwrap_or_else(itself);
    let labels = [
        (label::VERSION, VERSION),
        (label::NETWORK, assignment.network.name()),
        (label::SUBNET, &assigned.subnet),
        (label::NODE, node),
        (label::POD, &pod_label(&key.name)),
        (label::POD_UID, &pod.uid),
    ];
    let vm = assignment.vm.as_ref().map(|vm| (label::VM, &*vm.name));
    let labels = labels.into_iter().chain(vm).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut annotations = BTreeMap::from([(annotation::IP_FAMILY.to_owned(), assignment.family.to_string())]);
    if !assignment.extra_prefixes.is_empty() {
        let prefixes: Vec<String> = assignment.extra_prefixes.iter().map(ToString::to_string).collect();
        annotations.insert(annotation::EXTRA_PREFIXES.to_owned(), prefixes.join(","));
    }
    match &assignment.interface {
        PlannedInterface::First(others) if others.is_empty() => {}
        PlannedInterface::First(others) => {
            annotations.insert(annotation::OTHER_INTERFACES.to_owned(), InterfaceName::write_list(others));
        }
        PlannedInterface::Other(settings) => {
            annotations.insert(annotation::INTERFACE.to_owned(), json!(settings).to_string());
        }
    }
    // With a retention the IPInstance outlives the workload, so the workload must not own it.
    let outlives = assignment.stateful && effective(assignment.retention, subnet).is_some();
    if outlives {
        annotations.insert(annotation::WORKLOAD_API_VERSION.to_owned(), owner.api_version.to_string());
    }
    if let Some(retention) = assignment.retention.filter(|_| assignment.stateful) {
        annotations.insert(annotation::IP_RETENTION.to_owned(), retention.to_string());
    }
    let metadata = ObjectMeta {
        name: Some(instance_name(assigned.address.addr())),
        namespace: Some(key.namespace.to_string()),
        labels: Some(labels.collect()),
        annotations: Some(annotations),
        finalizers: Some(vec![finalizer::IP_ALLOCATED.to_owned()]),
        owner_references: (!outlives).then(|| vec![reference_to(&owner)]),
        ..ObjectMeta::default()
    };
    let spec = IPInstanceSpec {
        network: assignment.network.name().to_owned(),
        subnet: assigned.subnet.to_string(),
        address: Address {
            version: if assigned.address.addr().is_ipv6() { IpVersion::V6 } else { IpVersion::V4 },
            ip: assigned.address.to_string(),
            gateway: assigned.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
            net_id: subnet.and_then(|subnet| subnet.spec.net_id).or(assignment.network.spec.net_id),
            mac: assignment.granted.mac.map(|octet| format!("{octet:02x}")).join(":"),
        },
        binding: Binding {
            referred_object: referred(&owner),
            node_name: node.to_owned(),
            pod_uid: pod.uid.to_string(),
            pod_name: key.name.to_string(),
            stateful: assignment
                .stateful
                .then(|| Stateful { index: ordinal(&key.name).and_then(|index| index.try_into().ok()) }),
        },
    };
    IPInstanceObject { metadata, spec, status: None, ignored: Vec::new() }
}
