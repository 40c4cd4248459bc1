//! Services: their claims and statuses are written, one write after the other.
//!
//! Each answer becomes a row before the watch shows it. A write that was refused because its object
//! has changed is no fault: the object is read again, and the Service is planned again.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;
use trunkline_api::kube::ServiceAddressObject;
use trunkline_api::names::condition::ADDRESS_ALLOCATED;
use trunkline_api::resources::{ServiceAddressSpec, ServiceRef};

use super::ipam::ServiceId;
use super::object::Service;
use super::plan::{ConditionWrite, ServicePlan, ServiceWrite, StatusWrite, Warning};
use super::rows::{ClaimRow, ServiceRow};
use crate::cluster::Key;
use crate::events::reason;
use crate::ipam::instance_name;
use crate::reconcile::{Context, ReconcileError, ReconcileResult, WriteError, is_gone, reference};

/// The step after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next write of the plan.
    Continue,
    /// A new plan, because an object has changed.
    PlanAgain,
    /// Nothing: the event of the changed object causes a new plan.
    Stop,
}

/// Reconciles the addresses of a Service with its request.
pub async fn reconcile(context: Context, key: Key) -> ReconcileResult {
    let (plan, uid) = {
        let mut state = context.shared.lock();
        let state = &mut *state;
        let plan = state.services.plan(&state.cluster, &key, Instant::now());
        (plan, state.services.rows.services.get(&key).map(|row| Arc::clone(&row.uid)))
    };
    let ServicePlan { writes, mut again, fault, warnings, paused } = plan;
    for (warning, text) in warnings {
        let reason = match warning {
            Warning::Annotations => reason::CONFLICTING_ANNOTATIONS,
            Warning::AddressLost => reason::SERVICE_ADDRESS_LOST,
        };
        context.events.warning(about(&key, uid.as_deref()), reason, text);
    }
    for write in writes {
        match carry_out(&context, &key, uid.as_ref(), write).await? {
            Next::Continue => {}
            Next::PlanAgain => {
                again = true;
                break;
            }
            Next::Stop => return Ok(()),
        }
    }
    if again && let Some(term) = &context.shared.lock().services.term {
        term.queues.services.add(key.clone());
        return Ok(());
    }
    if let Some(address) = paused {
        return Err(ReconcileError::Paused(address));
    }
    let Some(fault) = fault else { return Ok(()) };
    context.shared.metrics().service_failed(fault.reason());
    context.events.warning(about(&key, uid.as_deref()), reason::SERVICE_ADDRESS_FAILED, fault.to_string());
    Err(fault.into())
}

fn about(key: &Key, uid: Option<&str>) -> ObjectReference {
    reference("Service", "v1", Some(&key.namespace), &key.name, uid.unwrap_or_default())
}

async fn carry_out(
    context: &Context,
    key: &Key,
    uid: Option<&Arc<str>>,
    write: ServiceWrite,
) -> Result<Next, ReconcileError> {
    let own = || ServiceId { key: key.clone(), uid: uid.cloned().unwrap_or_default() };
    match write {
        ServiceWrite::Settle { address, service } => {
            read(context, address).await?;
            refuse(context, address, &service);
            Ok(Next::Continue)
        }
        ServiceWrite::CreateClaim { address, pool, sharing_key } => {
            create(context, address, &pool, &sharing_key, &own()).await
        }
        ServiceWrite::JoinClaim { address } => join(context, address, &own()).await,
        ServiceWrite::ChangeKey { address, sharing_key } => {
            let Some(claim) = claim(context, address) else { return Ok(Next::PlanAgain) };
            let key = (!sharing_key.is_empty()).then_some(&*sharing_key);
            change(context, address, &claim, json!({ "sharingKey": key })).await
        }
        ServiceWrite::WriteStatus(status) => write_status(context, key, status).await,
        ServiceWrite::LeaveClaim { address, stays } => leave(context, address, key, stays.as_deref()).await,
    }
}

fn api(context: &Context) -> Api<ServiceAddressObject> {
    Api::all(context.client.clone())
}

fn failed(address: IpAddr, action: &str, source: WriteError) -> ReconcileError {
    ReconcileError::Request {
        what: format!("ServiceAddress {} was not {action}", instance_name(address)),
        source,
    }
}

fn claim(context: &Context, address: IpAddr) -> Option<ClaimRow> {
    context.shared.lock().services.rows.claims.get(&address).cloned()
}

/// Releases a pending address after its claim was certainly not written for this Service. No effect
/// if the claim names the Service.
fn refuse(context: &Context, address: IpAddr, service: &ServiceId) {
    if let Some(term) = &mut context.shared.lock().services.term {
        term.ipam.refuse(address, service);
    }
}

/// Applies the API server's answer before the watch shows it.
pub(super) fn learn(context: &Context, object: &ServiceAddressObject) -> Option<ClaimRow> {
    let (address, row) = ClaimRow::readable(object)?;
    context.shared.lock().services.set_claim(address, row.clone());
    Some(row)
}

/// Reads a claim from the API server.
async fn read(context: &Context, address: IpAddr) -> Result<Option<ClaimRow>, ReconcileError> {
    let known = claim(context, address);
    match context.write(api(context).get_opt(&instance_name(address))).await {
        Ok(Some(object)) => Ok(learn(context, &object)),
        Ok(None) => {
            if let Some(known) = known {
                context.shared.lock().services.remove_claim(address, known.version, Instant::now());
            }
            Ok(None)
        }
        Err(source) => Err(failed(address, "read", source)),
    }
}

async fn create(
    context: &Context,
    address: IpAddr,
    pool: &str,
    sharing_key: &str,
    service: &ServiceId,
) -> Result<Next, ReconcileError> {
    let spec = ServiceAddressSpec {
        address: address.to_string(),
        pool: pool.to_owned(),
        sharing_key: sharing_key.to_owned(),
        services: vec![named(service)],
    };
    let object = ServiceAddressObject::new(instance_name(address), spec);
    match context.write(api(context).create(&PostParams::default(), &object)).await {
        Ok(object) => {
            learn(context, &object);
            tracing::debug!(service = %service.key, %address, pool, "an address is allocated");
            Ok(Next::Continue)
        }
        // The claim comes from an earlier attempt without an answer, or from another client.
        Err(WriteError::Refused(status)) if status.is_already_exists() => {
            let there = read(context, address).await?;
            if there.is_some_and(|row| row.services.contains(service)) {
                return Ok(Next::Continue);
            }
            refuse(context, address, service);
            tracing::warn!(service = %service.key, %address, "another client created the ServiceAddress: \
                the Service gets another address");
            Ok(Next::PlanAgain)
        }
        Err(error) => {
            if !error.is_unanswered() {
                refuse(context, address, service);
            }
            Err(failed(address, "created", error))
        }
    }
}

async fn join(context: &Context, address: IpAddr, service: &ServiceId) -> Result<Next, ReconcileError> {
    let Some(claim) = claim(context, address) else {
        // The Service for which it was set aside first creates it.
        return Err(ReconcileError::ClaimMissing(address));
    };
    if !claim.readable {
        refuse(context, address, service);
        return Ok(Next::PlanAgain);
    }
    if claim.services.contains(service) {
        refuse(context, address, service);
        return Ok(Next::Continue);
    }
    let mut services: Vec<_> = claim.services.iter().chain([service]).map(named).collect();
    services.sort_unstable();
    let joined = change(context, address, &claim, json!({ "services": services })).await;
    match &joined {
        Ok(Next::Continue) => {}
        Err(ReconcileError::Request { source, .. }) if source.is_unanswered() => {}
        _ => refuse(context, address, service),
    }
    joined
}

async fn leave(
    context: &Context,
    address: IpAddr,
    key: &Key,
    stays: Option<&str>,
) -> Result<Next, ReconcileError> {
    let Some(claim) = claim(context, address) else { return Ok(Next::Continue) };
    let stays = |service: &&ServiceId| service.key != *key || stays == Some(&*service.uid);
    let services: Vec<ServiceRef> = claim.services.iter().filter(stays).map(named).collect();
    if services.len() == claim.services.len() {
        return Ok(Next::Continue);
    }
    if !services.is_empty() {
        return change(context, address, &claim, json!({ "services": services })).await;
    }
    let preconditions = Preconditions {
        uid: Some(claim.uid.to_string()),
        resource_version: Some(claim.resource_version.to_string()),
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match context.write(api(context).delete(&instance_name(address), &parameters)).await {
        Ok(answer) => {
            // With another client's finalizer the claim stays, and the watch shows its end.
            if answer.is_right() {
                context.shared.lock().services.remove_claim(address, claim.version, Instant::now());
            }
            tracing::debug!(service = %key, %address, "an address is released");
            Ok(Next::Continue)
        }
        Err(error) if is_gone(&error) => {
            read(context, address).await?;
            Ok(Next::PlanAgain)
        }
        Err(error) => Err(failed(address, "deleted", error)),
    }
}

/// Changes fields of a claim's spec, if the claim is as this row has it.
async fn change(
    context: &Context,
    address: IpAddr,
    claim: &ClaimRow,
    spec: Value,
) -> Result<Next, ReconcileError> {
    let metadata = json!({ "uid": &*claim.uid, "resourceVersion": &*claim.resource_version });
    let patch = Patch::Merge(json!({ "metadata": metadata, "spec": spec }));
    let name = instance_name(address);
    match context.write(api(context).patch(&name, &PatchParams::default(), &patch)).await {
        Ok(object) => {
            learn(context, &object);
            Ok(Next::Continue)
        }
        Err(error) if is_gone(&error) => {
            read(context, address).await?;
            Ok(Next::PlanAgain)
        }
        Err(error) => Err(failed(address, "changed", error)),
    }
}

async fn write_status(context: &Context, key: &Key, write: StatusWrite) -> Result<Next, ReconcileError> {
    let api: Api<Service> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch = Patch::Strategic(status_patch(&write, Timestamp::now()));
    match context.write(api.patch_status(&key.name, &PatchParams::default(), &patch)).await {
        Ok(service) => {
            let mut state = context.shared.lock();
            let state = &mut *state;
            let row = ServiceRow::of(&service, &mut state.cluster.interner);
            state.services.learn_service(key, &write.uid, row);
            if let Some(addresses) = write.addresses {
                record(context, key, &write.uid, &addresses, state.services.term.as_ref());
            }
            Ok(Next::Continue)
        }
        Err(error) if is_gone(&error) => Ok(Next::Stop),
        Err(source) => Err(ReconcileError::Request {
            what: format!("the status of Service {key} was not written"),
            source,
        }),
    }
}

/// Reports new addresses of a Service in an event.
fn record(context: &Context, key: &Key, uid: &str, addresses: &[IpAddr], term: Option<&super::ServiceTerm>) {
    if addresses.is_empty() {
        let text = "its addresses are released".to_owned();
        return context.events.normal(about(key, Some(uid)), reason::SERVICE_ADDRESS_RELEASED, text);
    }
    let texts = addresses.iter().map(|address| match term.and_then(|term| term.ipam.pool_of(*address)) {
        Some(pool) => format!("{address} of ServicePool {pool}"),
        None => address.to_string(),
    });
    let text = texts.collect::<Vec<_>>().join(", ");
    tracing::info!(service = %key, addresses = text, "the addresses of a Service are published");
    context.events.normal(about(key, Some(uid)), reason::SERVICE_ADDRESS_ALLOCATED, text);
}

fn status_patch(write: &StatusWrite, now: Timestamp) -> Value {
    let mut status = json!({});
    if let Some(addresses) = &write.addresses {
        let ingress: Vec<Value> =
            addresses.iter().map(|address| json!({ "ip": address.to_string(), "ipMode": "VIP" })).collect();
        let ingress = if ingress.is_empty() { Value::Null } else { ingress.into() };
        status["loadBalancer"] = json!({ "ingress": ingress });
    }
    match &write.condition {
        ConditionWrite::Keep => {}
        ConditionWrite::Remove => {
            status["conditions"] = json!([{ "$patch": "delete", "type": ADDRESS_ALLOCATED }]);
        }
        ConditionWrite::Set(condition) => {
            let since = if condition.since.is_empty() {
                now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
            } else {
                condition.since.to_string()
            };
            status["conditions"] = json!([{
                "type": ADDRESS_ALLOCATED,
                "status": if condition.status { "True" } else { "False" },
                "reason": &*condition.reason,
                "message": &*condition.message,
                "lastTransitionTime": since,
            }]);
        }
    }
    json!({
        "metadata": { "uid": &*write.uid, "resourceVersion": &*write.resource_version },
        "status": status,
    })
}

fn named(service: &ServiceId) -> ServiceRef {
    ServiceRef {
        namespace: service.key.namespace.to_string(),
        name: service.key.name.to_string(),
        uid: service.uid.to_string(),
    }
}

#[cfg(test)]
#[path = "written_tests.rs"]
mod tests;
