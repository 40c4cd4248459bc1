//! Global Services: Services of this cluster that also have the endpoints of remote clusters.
//!
//! For each RemoteEndpointSlice of a global Service the leader writes an EndpointSlice with the
//! same name into the Service's Namespace. Service proxies use it like the EndpointSlices of this
//! cluster. Its label [`label::MANAGED_BY`] excludes it from Kubernetes' own controller.
//!
//! With the affinity `local`, the endpoints of remote clusters are not ready while an endpoint of
//! this cluster is serving.

use std::sync::Arc;

use futures_util::future::{OptionFuture, join_all};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::ObjectMeta;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use trunkline_api::kept;
use trunkline_api::names::{REMOTE_ENDPOINTS_MANAGER, annotation, label};
use trunkline_api::pod::is_global_service;
use trunkline_api::resources::RemoteConditions;

use super::Due;
use super::affinity::ReportedAffinities;
use super::mirror::{MANAGER, RETRY, WRITES, logged, pause_after};
use super::slices::Slice;
use crate::cluster::Key;
use crate::events::reason;
use crate::reconcile::{Context, reference, written};
use crate::state::ControllerState;
use crate::watch::Watched;

/// Which endpoints of a global Service are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Those of all clusters.
    #[default]
    None,
    /// Those of this cluster, while one of them is serving.
    Local,
    /// The annotation has another value: those of all clusters.
    Unknown(Box<str>),
}

/// Row of a global Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// Which endpoints are used.
    pub affinity: Affinity,
}

impl GlobalRow {
    /// The row of a Service; none if it is not global.
    pub fn of(service: &ObjectMeta) -> Option<GlobalRow> {
        let annotations = service.annotations.as_ref()?;
        if !is_global_service(annotations) {
            return None;
        }
        let affinity = match annotations.get(annotation::GLOBAL_SERVICE_AFFINITY).map(String::as_str) {
            None | Some("" | "none") => Affinity::None,
            Some("local") => Affinity::Local,
            Some(other) => Affinity::Unknown(kept::cut(other, kept::MAX_NAME).into()),
        };
        Some(GlobalRow { uid: service.uid.as_deref().unwrap_or_default().into(), affinity })
    }
}

/// An EndpointSlice with endpoints of a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRow {
    /// The RemoteCluster.
    pub cluster: Arc<str>,
    /// The UID of the Service that owns it.
    pub owner: Arc<str>,
    /// Its content.
    pub slice: Slice,
}

impl Watched for EndpointSlice {
    fn begin(state: &mut ControllerState) {
        state.remote.bound.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata);
        let owners = self.metadata.owner_references.iter().flatten();
        let owner = owners.filter(|owner| owner.kind == "Service").map(|owner| owner.uid.as_str()).next();
        let cluster = self.metadata.labels.as_ref().and_then(|labels| labels.get(label::CLUSTER));
        let (owner, cluster) = (owner.unwrap_or_default().into(), cluster.map_or("", String::as_str).into());
        match Slice::of(self) {
            Some(slice) => {
                let row = BoundRow { cluster, owner, slice };
                let old = state.remote.bound.set(key.clone(), row);
                if old.as_ref() != state.remote.bound.get(&key) {
                    state.remote.bound_changed(&key);
                }
            }
            None => state.remote.bound.note(&key),
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata);
        state.remote.bound.remove(&key);
        state.remote.bound_changed(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.remote.bound.end() {
            state.remote.bound.remove(&key);
        }
        state.remote.global_has_changed();
    }
}

fn key(meta: &ObjectMeta) -> Key {
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// An EndpointSlice that should exist.
fn wanted(state: &ControllerState, key: &Key) -> Option<BoundRow> {
    let spec = state.remote.slices.get(&key.name)?.spec.as_ref()?;
    if *spec.remote_service.namespace != *key.namespace {
        return None;
    }
    let service = Key::new(Arc::clone(&key.namespace), spec.remote_service.name.as_str());
    let global = state.remote.global.get(&service)?;
    let v6 = match spec.address_type.as_str() {
        "IPv4" => false,
        "IPv6" => true,
        _ => return None,
    };
    let unused = global.affinity == Affinity::Local && state.services.endpoints.has_local(&service, v6);
    let mut endpoints = spec.endpoints.clone();
    for endpoint in &mut endpoints {
        (endpoint.node_name, endpoint.hints, endpoint.target_ref) = (None, None, None);
        endpoint.topology.clear();
        if unused {
            let no = Some(false);
            endpoint.conditions = RemoteConditions { ready: no, serving: no, terminating: no };
        }
    }
    let slice = Slice {
        service: spec.remote_service.name.clone(),
        address_type: spec.address_type.clone(),
        endpoints,
        ports: spec.ports.clone(),
    };
    let cluster = spec.remote_service.cluster.as_str().into();
    Some(BoundRow { cluster, owner: Arc::clone(&global.uid), slice })
}

/// The differences between what should exist and what exists.
#[derive(Default)]
struct Difference {
    writes: Vec<(Key, BoundRow)>,
    gone: Vec<Key>,
    /// The number of compared EndpointSlices.
    compared: usize,
}

/// Compares the EndpointSlices that are due; none before the lists.
fn difference(state: &mut ControllerState) -> Option<Difference> {
    let remote = &mut state.remote;
    let is_listed = remote.global.is_listed()
        && remote.slices.is_listed()
        && remote.bound.is_listed()
        && state.services.endpoints.slices.is_listed();
    if !is_listed {
        return None;
    }
    let keys = match remote.due.take() {
        Due::Keys(keys) => keys,
        Due::All => {
            let services = remote.slices.iter().filter_map(|(name, row)| {
                let service = &row.spec.as_ref()?.remote_service;
                Some(Key::new(service.namespace.as_str(), Arc::clone(name)))
            });
            services.chain(remote.bound.iter().map(|(key, _)| key.clone())).collect()
        }
    };
    let mut difference = Difference { compared: keys.len(), ..Difference::default() };
    for key in keys {
        match (wanted(state, &key), state.remote.bound.get(&key)) {
            (Some(wanted), None) => difference.writes.push((key, wanted)),
            (Some(wanted), Some(bound)) if wanted == *bound => {}
            // The API server refuses another address type: the object is deleted first, and written
            // anew after the event of its deletion.
            (Some(wanted), Some(bound)) if wanted.slice.address_type == bound.slice.address_type => {
                difference.writes.push((key, wanted));
            }
            (_, Some(_)) => difference.gone.push(key),
            (None, None) => {}
        }
    }
    Some(difference)
}

/// Writes the EndpointSlices of all global Services while it is polled.
pub(super) async fn serve(context: &Context) {
    let mut changed = context.shared.lock().remote.global_changed.subscribe();
    let mut reported = ReportedAffinities::default();
    loop {
        changed.mark_unchanged();
        let began = Instant::now();
        let next = report(context, &mut reported);
        let difference = difference(&mut context.shared.lock()).unwrap_or_default();
        tracing::debug!(compared = difference.compared, "EndpointSlices of global Services");
        let pause = pause_after(began.elapsed());
        let done = write(context, difference).await;
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if !done => {}
            Some(()) = OptionFuture::from(next.map(sleep_until)) => {}
        }
        if !done {
            context.shared.lock().remote.due.add_all();
        }
        sleep(pause).await;
    }
}

/// One event for each unknown affinity. Returns the time of the next one.
fn report(context: &Context, reported: &mut ReportedAffinities) -> Option<Instant> {
    let (due, next) = reported.unreported(&context.shared.lock().remote.global, Instant::now());
    for (key, row) in due {
        let Affinity::Unknown(value) = &row.affinity else { continue };
        let about = reference("Service", "v1", Some(&key.namespace), &key.name, &row.uid);
        let name = annotation::GLOBAL_SERVICE_AFFINITY;
        let text = format!(
            "annotation {name}: `{value}` is unknown: write `local` or `none`, or remove the annotation"
        );
        context.events.warning(about, reason::GLOBAL_SERVICE, text);
    }
    next
}

async fn write(context: &Context, difference: Difference) -> bool {
    let mut done = true;
    for some in difference.writes.chunks(WRITES) {
        done &=
            join_all(some.iter().map(|(key, row)| put(context, key, row))).await.into_iter().all(|done| done);
    }
    for some in difference.gone.chunks(WRITES) {
        done &= join_all(some.iter().map(|key| delete(context, key))).await.into_iter().all(|done| done);
    }
    done
}

async fn put(context: &Context, key: &Key, row: &BoundRow) -> bool {
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": &*key.name,
            "labels": {
                label::SERVICE_NAME: row.slice.service,
                label::MANAGED_BY: REMOTE_ENDPOINTS_MANAGER,
                label::CLUSTER: &*row.cluster,
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": row.slice.service, "uid": &*row.owner,
                "controller": true,
            }],
        },
        "addressType": row.slice.address_type,
        "endpoints": row.slice.endpoints(),
        "ports": row.slice.ports(),
    });
    let api: Api<EndpointSlice> = Api::namespaced(context.client.clone(), &key.namespace);
    let parameters = PatchParams::apply(MANAGER).force();
    let answer = context.write(api.patch(&key.name, &parameters, &Patch::Apply(&object))).await;
    logged(written(answer, || format!("EndpointSlice {key} was not written")))
}

async fn delete(context: &Context, key: &Key) -> bool {
    let api: Api<EndpointSlice> = Api::namespaced(context.client.clone(), &key.namespace);
    let answer = context.write(api.delete(&key.name, &DeleteParams::default())).await;
    logged(written(answer, || format!("EndpointSlice {key} was not deleted")))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::metrics::Metrics;
    use crate::services::endpoints::SliceRow;
    use crate::state::SharedState;
    use trunkline_api::kube::Lenient;
    use trunkline_api::resources::RemoteEndpointSliceSpec;

    fn remote(name: &str, service: &str) -> Lenient<RemoteEndpointSliceSpec> {
        let endpoint = json!({
            "addresses": ["10.2.0.5"], "conditions": {"ready": true}, "nodeName": "node1",
            "targetRef": {"kind": "Pod", "name": "p", "namespace": "shop", "uid": "u"},
        });
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "remoteService": {"cluster": "west", "namespace": "shop", "name": service},
                "addressType": "IPv4", "endpoints": [endpoint],
                "ports": [{"name": "", "protocol": "TCP", "port": 80}],
            },
        }))
        .unwrap()
    }

    fn service(affinity: Option<&str>) -> GlobalRow {
        let mut annotations = json!({"networking.alibaba.com/global-service": "true"});
        if let Some(affinity) = affinity {
            annotations["trunkline.io/global-service-affinity"] = json!(affinity);
        }
        let meta: ObjectMeta =
            serde_json::from_value(json!({"name": "web", "uid": "web-uid", "annotations": annotations}))
                .unwrap();
        GlobalRow::of(&meta).unwrap()
    }

    fn local(serves: bool) -> Option<SliceRow> {
        let slice: crate::services::endpoints::EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "endpoints": [{"conditions": {"ready": serves}}],
        }))
        .unwrap();
        SliceRow::of(&slice, "shop")
    }

    fn lists(state: &mut ControllerState) {
        state.remote.global.begin();
        let _gone = state.remote.global.end();
        for begin_and_end in [
            (<EndpointSlice as Watched>::begin as fn(&mut _), <EndpointSlice as Watched>::end as fn(&mut _)),
            (Lenient::<RemoteEndpointSliceSpec>::begin, Lenient::<RemoteEndpointSliceSpec>::end),
            (
                crate::services::endpoints::EndpointSlice::begin,
                crate::services::endpoints::EndpointSlice::end,
            ),
        ] {
            begin_and_end.0(state);
            begin_and_end.1(state);
        }
    }

    /// The differences of all EndpointSlices.
    fn all(state: &mut ControllerState) -> Option<Difference> {
        state.remote.global_has_changed();
        difference(state)
    }

    #[test]
    fn endpoints_of_other_clusters_are_bound_to_a_global_service() {
        let shared = SharedState::new(Arc::new(Metrics::new().unwrap()));
        let mut state = shared.lock();
        let state = &mut *state;
        remote("west.shop.web-1", "web").apply(state);
        remote("west.shop.api-1", "api").apply(state);
        let web = Key::new("shop", "web");
        state.remote.global.set(web.clone(), service(None));
        assert!(all(state).is_none(), "nothing is written before the lists");
        lists(state);
        remote("west.shop.web-1", "web").apply(state);
        state.remote.global.set(web.clone(), service(None));

        let difference_now = all(state).unwrap();
        let [(key, row)] = &difference_now.writes[..] else { panic!("{}", difference_now.writes.len()) };
        assert_eq!(key, &Key::new("shop", "west.shop.web-1"));
        assert_eq!((&*row.cluster, &*row.owner), ("west", "web-uid"));
        let endpoint: Value = json!(row.slice.endpoints());
        assert_eq!(
            endpoint,
            json!([{"addresses": ["10.2.0.5"], "conditions": {"ready": true}}]),
            "no node, no pod"
        );

        // What was written is known by the watch, and is not written again.
        state.remote.bound.set(key.clone(), row.clone());
        assert!(all(state).unwrap().writes.is_empty());

        // The address type of an EndpointSlice is immutable.
        let mut other = row.clone();
        other.slice.address_type = "IPv6".to_owned();
        state.remote.bound.set(key.clone(), other);
        let replaced = all(state).unwrap();
        assert_eq!((replaced.writes.len(), &replaced.gone[..]), (0, std::slice::from_ref(key)));
        state.remote.bound.remove(key);
        assert_eq!(all(state).unwrap().writes.len(), 1);
        state.remote.bound.set(key.clone(), row.clone());

        // Local first.
        state.remote.global.set(web.clone(), service(Some("local")));
        let _changed = state.services.set_slice(&Key::new("shop", "web-a"), local(true));
        let unused = all(state).unwrap().writes;
        assert_eq!(unused[0].1.slice.endpoints[0].conditions.ready, Some(false));
        let _changed = state.services.set_slice(&Key::new("shop", "web-a"), local(false));
        assert!(all(state).unwrap().writes.is_empty(), "used again");

        // Not global any more.
        state.remote.global.remove(&web);
        assert_eq!(all(state).unwrap().gone, [Key::new("shop", "west.shop.web-1")]);
    }

    #[test]
    fn a_new_term_waits_for_its_own_lists() {
        let shared = SharedState::new(Arc::new(Metrics::new().unwrap()));
        let mut state = shared.lock();
        let state = &mut *state;
        lists(state);
        state.remote.global.set(Key::new("shop", "web"), service(None));
        remote("west.shop.web-1", "web").apply(state);
        state.remote.health.entry("west".into()).or_default();
        assert_eq!(all(state).unwrap().writes.len(), 1);
        state.end_term();
        assert!(all(state).is_none(), "the rows of the former term are old");
        assert!(state.remote.health.is_empty(), "another replica reports the health now");
    }

    #[test]
    fn an_unknown_affinity_uses_all_clusters() {
        assert_eq!(service(Some("near")).affinity, Affinity::Unknown("near".into()));
        assert_eq!(service(Some("")).affinity, Affinity::None);
    }

    #[test]
    fn a_write_of_a_service_compares_its_own_slices() {
        const SERVICES: usize = 100;
        let shared = SharedState::new(Arc::new(Metrics::new().unwrap()));
        let mut state = shared.lock();
        let state = &mut *state;
        lists(state);
        let key = |number: usize| Key::new("shop", format!("web{number}"));
        for number in 0..SERVICES {
            state.remote.set_global(&key(number), Some(service(None)));
            for slice in 0..3 {
                remote(&format!("west.shop.web{number}-{slice}"), &format!("web{number}")).apply(state);
            }
        }
        let compared = |state: &mut ControllerState| {
            let Difference { writes, gone, compared } = difference(state).unwrap();
            for (key, row) in writes {
                state.remote.bound.set(key, row);
            }
            (compared, gone.len())
        };
        assert_eq!(compared(state), (3 * SERVICES, 0));
        assert_eq!(compared(state), (0, 0));
        // A tenant writes the same Service again and again, in two ways.
        let mut changes = state.remote.global_changed.subscribe();
        state.remote.set_global(&key(7), Some(service(None)));
        assert!(!changes.has_changed().unwrap(), "an equal row is no change");
        for affinity in ["local", "none", "local"] {
            state.remote.set_global(&key(7), Some(service(Some(affinity))));
        }
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(compared(state), (3, 0));
        // One slice, and a slice of another Service.
        remote("west.shop.web7-1", "web8").apply(state);
        assert!(changes.has_changed().unwrap());
        assert_eq!(compared(state), (1, 0));
        state.remote.set_global(&key(8), None);
        assert_eq!(compared(state), (4, 4));
        remote("west.shop.web7-0", "web7").remove(state);
        assert_eq!(compared(state), (1, 1));
    }
}
