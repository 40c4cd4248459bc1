//! Conflicts: two IPInstances of one address, of which one must be deleted.
//!
//! The cause is an API server that was restored from an old snapshot, another writer than this
//! controller, or the remaining case of two leaders in [the design](../../../../docs/design.md).
//! The address stays with a pod that uses it: its agent wrote the sandbox into the IPInstance's
//! status, or the kubelet reports the address. If neither is in use yet, the older IPInstance
//! stays. The other one is unbound and deleted. Its pod, which has not started, gets another
//! address like any pod without one.
//!
//! If two running pods use one address, no write by the controller can help: only a pod's owner may
//! delete it. Both pods get an event, and `trunkline_controller_address_conflicts` counts the
//! conflict until one of them is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use trunkline_api::kube::IPInstanceObject;

use super::plan::Existing;
use super::pod::{about, delete, reserve};
use super::{Context, ReconcileError, ReconcileResult, first_error};
use crate::cluster::Key;
use crate::events::reason;
use crate::ipam::instance_name;

/// One of the IPInstances of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Side {
    instance: Existing,
    /// Its pod, with the pod's UID.
    pod: Option<(Key, String)>,
    created: Option<Time>,
    in_use: bool,
}

/// Resolves a conflict: chooses the IPInstance that keeps the address.
pub async fn reconcile(context: Context, address: IpAddr) -> ReconcileResult {
    let (keeps, refused) = judge(look_up(&context, address).await?);
    let Some(keeps) = keeps else { return Ok(()) };
    let mut results = Vec::new();
    for side in refused {
        let other = &keeps.instance.key;
        if side.in_use {
            tracing::error!(%address, one = %other, two = %side.instance.key, "two running pods have one address");
            for (of, other) in [(&keeps, &side), (&side, &keeps)] {
                if let Some((pod, uid)) = &of.pod {
                    let text = format!(
                        "address {address} is used by this pod and by the pod of IPInstance {}: \
                         delete one of the two pods",
                        other.instance.key
                    );
                    context.events.warning(about(pod, Some(uid)), reason::CONFLICT, text);
                }
            }
            continue;
        }
        tracing::warn!(%address, keeps = %other, refused = %side.instance.key, "two IPInstances have one address");
        if let Some((pod, uid)) = &side.pod {
            let text = format!("address {address} belongs to IPInstance {other}: this pod gets another one");
            context.events.warning(about(pod, Some(uid)), reason::CONFLICT, text);
        }
        // Unbind first, because the finalizer of a deleted IPInstance stays while the IPInstance is
        // bound to a living pod.
        results.push(match reserve(&context, &side.instance, Timestamp::now()).await {
            Ok(()) => delete(&context, std::slice::from_ref(&side.instance)).await,
            failed => failed,
        });
    }
    first_error(results)
}

/// Reads the IPInstances of an address from the API server, except those with a deletion timestamp.
async fn look_up(context: &Context, address: IpAddr) -> Result<Vec<Side>, ReconcileError> {
    let namespaces: BTreeSet<Arc<str>> = {
        let state = context.shared.lock();
        let conflicts = state.term.iter().flat_map(|term| term.ipam.conflicts());
        conflicts
            .filter(|conflict| conflict.address == address)
            .flat_map(|conflict| [conflict.holder, conflict.contender])
            .collect()
    };
    let name: Arc<str> = instance_name(address).into();
    let mut sides = Vec::new();
    for namespace in namespaces {
        let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &namespace);
        match context.write(api.get_opt(&name)).await {
            Ok(Some(object)) if object.metadata.deletion_timestamp.is_none() => {
                sides.push(side(context, Key { namespace, name: Arc::clone(&name) }, address, &object));
            }
            Ok(_) => {}
            Err(source) => {
                let what = format!("IPInstance {namespace}/{name} was not read");
                return Err(ReconcileError::Request { what, source });
            }
        }
    }
    Ok(sides)
}

fn side(context: &Context, key: Key, address: IpAddr, object: &IPInstanceObject) -> Side {
    let binding = &object.spec.binding;
    let bound = !binding.pod_uid.is_empty() && !binding.pod_name.is_empty();
    let pod = bound.then(|| {
        let pod = Key { namespace: Arc::clone(&key.namespace), name: binding.pod_name.as_str().into() };
        (pod, binding.pod_uid.clone())
    });
    let reported = pod.as_ref().is_some_and(|(pod, uid)| {
        let state = context.shared.lock();
        state.cluster.pod(pod).is_some_and(|row| *row.uid == **uid && row.addresses.contains(&address))
    });
    let attached = object.status.as_ref().is_some_and(|status| !status.sandbox_id.is_empty());
    let uid = object.metadata.uid.as_deref().unwrap_or_default().into();
    Side {
        instance: Existing { key, uid },
        in_use: pod.is_some() && (reported || attached),
        pod,
        created: object.metadata.creation_timestamp.clone(),
    }
}

/// Splits the IPInstances into the one that keeps the address and the others.
fn judge(mut sides: Vec<Side>) -> (Option<Side>, Vec<Side>) {
    sides.sort_by(|a, b| {
        (!a.in_use, &a.created, &a.instance.key).cmp(&(!b.in_use, &b.created, &b.instance.key))
    });
    let mut sides = sides.into_iter();
    (sides.next(), sides.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(namespace: &str, created: i64, in_use: bool) -> Side {
        let key = Key { namespace: namespace.into(), name: "10-0-0-1".into() };
        let created = Timestamp::from_second(created).map(Time).ok();
        Side { instance: Existing { key, uid: namespace.into() }, pod: None, created, in_use }
    }

    #[test]
    fn user_of_the_address_keeps_it_then_the_oldest() {
        for (sides, keeps, refused) in [
            (vec![side("a", 2, false), side("b", 1, false)], "b", vec!["a"]),
            (vec![side("a", 2, true), side("b", 1, false)], "a", vec!["b"]),
            (vec![side("a", 2, true), side("b", 1, true)], "b", vec!["a"]),
            (vec![side("b", 1, false), side("a", 1, false)], "a", vec!["b"]),
            (vec![side("a", 1, false), side("b", 3, false), side("c", 2, true)], "c", vec!["a", "b"]),
            (vec![side("a", 1, false)], "a", vec![]),
        ] {
            let (kept, others) = judge(sides.clone());
            assert_eq!(
                kept.map(|side| side.instance.key.namespace.to_string()).as_deref(),
                Some(keeps),
                "{sides:?}"
            );
            let others: Vec<String> =
                others.iter().map(|side| side.instance.key.namespace.to_string()).collect();
            assert_eq!(others, refused, "{sides:?}");
        }
        assert_eq!(judge(Vec::new()), (None, Vec::new()));
    }
}
