//! EndpointSlices: whether a Service has an endpoint that serves, by family. Endpoints are not kept.

use std::collections::HashMap;

use kube::core::ObjectMeta;
use serde::Deserialize;
use trunkline_api::names::{REMOTE_ENDPOINTS_MANAGER, label};
use trunkline_api::{kube_resource, null_default};

use crate::cluster::{Key, Table};

/// The parts of an EndpointSlice that matter here. The deserializer skips everything else.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(default)]
    pub address_type: String,
    /// The endpoints.
    #[serde(default, deserialize_with = "null_default")]
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Its conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: EndpointConditions,
}

/// The conditions of an endpoint. An absent `ready` is true, an absent `serving` equals `ready`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// It receives new connections.
    pub ready: Option<bool>,
    /// It answers, perhaps while it terminates.
    pub serving: Option<bool>,
}

impl EndpointConditions {
    /// Whether service proxies forward to it, at least while no other endpoint is ready.
    fn serves(self) -> bool {
        let ready = self.ready.unwrap_or(true);
        ready || self.serving.unwrap_or(ready)
    }
}

kube_resource!(
    EndpointSlice,
    NamespaceResourceScope,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices"
);

/// Row of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRow {
    /// Its Service.
    service: Key,
    v6: bool,
    /// Whether one of its endpoints serves.
    serves: bool,
    /// Whether its endpoints are those of another cluster.
    remote: bool,
}

impl SliceRow {
    /// Row of an EndpointSlice in this namespace; none if it has no addresses, or no Service.
    pub fn of(slice: &EndpointSlice, namespace: &str) -> Option<SliceRow> {
        let labels = slice.metadata.labels.as_ref()?;
        let service = labels.get(label::SERVICE_NAME)?;
        let remote = labels.get(label::MANAGED_BY).is_some_and(|manager| manager == REMOTE_ENDPOINTS_MANAGER);
        let v6 = match slice.address_type.as_str() {
            "IPv4" => false,
            "IPv6" => true,
            _ => return None,
        };
        let serves = slice.endpoints.iter().any(|endpoint| endpoint.conditions.serves());
        Some(SliceRow { service: Key::new(namespace, service.as_str()), v6, serves, remote })
    }
}

/// EndpointSlices, and the number of serving ones of each Service.
#[derive(Default)]
pub struct EndpointRows {
    /// The slices.
    pub slices: Table<Key, SliceRow>,
    /// By family: IPv4, IPv6; each those of this cluster, and those of other clusters.
    serving: HashMap<Key, [[u32; 2]; 2]>,
}

impl EndpointRows {
    /// Whether a Service has an endpoint that serves.
    pub fn has(&self, service: &Key, v6: bool) -> bool {
        self.serving.get(service).is_some_and(|counts| counts[usize::from(v6)] != [0, 0])
    }

    /// Whether a Service has an endpoint in this cluster that serves.
    pub fn has_local(&self, service: &Key, v6: bool) -> bool {
        self.serving.get(service).is_some_and(|counts| counts[usize::from(v6)][0] > 0)
    }

    /// Sets or removes a slice. Returns the Services for which [`Self::has`] or [`Self::has_local`] has
    /// changed.
    #[must_use]
    pub fn set(&mut self, slice: &Key, row: Option<SliceRow>) -> Vec<Key> {
        self.slices.note(slice);
        let old = match row.clone() {
            Some(row) => self.slices.set(slice.clone(), row),
            None => self.slices.remove(slice),
        };
        if old == row {
            return Vec::new();
        }
        let mut concerned: Vec<(Key, bool)> =
            old.iter().chain(&row).map(|row| (row.service.clone(), row.v6)).collect();
        concerned.dedup();
        let both = |rows: &Self, service: &Key, v6| (rows.has(service, v6), rows.has_local(service, v6));
        let before: Vec<_> = concerned.iter().map(|(service, v6)| both(self, service, *v6)).collect();
        for (row, step) in [(old, -1), (row, 1)] {
            let Some(row) = row.filter(|row| row.serves) else { continue };
            let counts = self.serving.entry(row.service.clone()).or_default();
            let count = &mut counts[usize::from(row.v6)][usize::from(row.remote)];
            *count = count.saturating_add_signed(step);
            if *counts == [[0, 0]; 2] {
                self.serving.remove(&row.service);
            }
        }
        let changed = concerned.into_iter().zip(before);
        changed
            .filter(|((service, v6), before)| both(self, service, *v6) != *before)
            .map(|((service, _), _)| service)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(service: &str, family: &str, conditions: Value) -> Option<SliceRow> {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": service}},
            "addressType": family, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}],
        }))
        .unwrap();
        SliceRow::of(&slice, "default")
    }

    #[test]
    fn an_endpoint_serves_by_its_conditions() {
        for (conditions, serves) in [
            (json!({}), true),
            (Value::Null, true),
            (json!({"ready": false}), false),
            (json!({"ready": false, "serving": true, "terminating": true}), true),
            (json!({"ready": false, "serving": false}), false),
        ] {
            assert_eq!(slice("web", "IPv4", conditions.clone()).unwrap().serves, serves, "{conditions}");
        }
        assert_eq!(slice("web", "FQDN", json!({})), None);
    }

    #[test]
    fn the_last_serving_slice_of_a_family_counts() {
        let (web, api) = (Key::new("default", "web"), Key::new("default", "api"));
        let key = |name: &str| Key::new("default", name);
        let (up, down) = (json!({}), json!({"ready": false}));
        let mut rows = EndpointRows::default();
        assert_eq!(rows.set(&key("a"), slice("web", "IPv4", down.clone())), []);
        assert_eq!(rows.set(&key("a"), slice("web", "IPv4", up.clone())), [key("web")]);
        assert_eq!(rows.set(&key("b"), slice("web", "IPv4", up.clone())), []);
        assert!(rows.has(&web, false) && !rows.has(&web, true));
        assert_eq!(rows.set(&key("c"), slice("web", "IPv6", up.clone())), [key("web")]);
        assert_eq!(rows.set(&key("a"), slice("web", "IPv4", down)), []);
        assert_eq!(rows.set(&key("b"), slice("api", "IPv4", up)), [web.clone(), api.clone()], "it moves");
        assert!(!rows.has(&web, false) && rows.has(&web, true) && rows.has(&api, false));
        assert_eq!(rows.set(&key("c"), None), [web]);
        assert_eq!(rows.set(&key("b"), None), [api]);
        assert_eq!((rows.set(&key("b"), None), rows.serving.len()), (Vec::new(), 0));
    }
}
