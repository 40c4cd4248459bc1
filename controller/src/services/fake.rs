//! An API server in memory, for tests: Services with their statuses, and ServiceAddresses. It checks
//! preconditions like the real one, and can lose requests or answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::{ServiceAddressSpec, ServicePoolSpec};

use super::ServiceQueues;
use super::object::Service;
use super::rows::{ClaimRow, PoolRow, ServiceRow};
use crate::cluster::Key;
use crate::ipam::instance_name;
use crate::reconcile::Context;
use crate::testing::context;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is handled and answered.
    Answered,
    /// It is handled, and the answer is lost.
    AnswerLost,
    /// It is lost.
    Lost,
    /// A create arrives later ([`Store::deliver`]); any other request is lost.
    Late,
    /// It is handled, and then the process ends: no later request arrives.
    CrashAfter,
    /// The process ends before the request.
    CrashBefore,
}

/// Objects of the API server.
#[derive(Default)]
pub(super) struct Store {
    version: u64,
    /// Services by `namespace/name`.
    pub services: BTreeMap<String, Value>,
    /// ServiceAddresses by name.
    pub claims: BTreeMap<String, Value>,
    /// Names of Nodes.
    pub nodes: BTreeSet<String>,
    /// Method and path of each request except events, with its body.
    pub requests: Vec<(String, String, Value)>,
    /// Fates of the next requests; later ones are answered.
    pub fates: VecDeque<Fate>,
    late: Vec<Value>,
    /// Whether the process has ended.
    pub dead: bool,
    /// Wrong writes.
    pub violations: Vec<String>,
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    let message = format!("{reason} of the test");
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}),
    )
}

impl Store {
    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// The current version, which changes with each write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Creates or replaces a Service. Its UID follows from its name and this number.
    pub(super) fn put_service(
        &mut self,
        name: &str,
        number: u32,
        metadata: &Value,
        spec: &Value,
        status: Value,
    ) {
        let version = self.next_version();
        let mut all = json!({
            "name": name, "namespace": "default", "uid": format!("{name}-{number}"), "resourceVersion": version,
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", number % 60),
        });
        for (field, value) in metadata.as_object().into_iter().flatten() {
            all[field] = value.clone();
        }
        let object = json!({"metadata": all, "spec": spec, "status": status});
        self.services.insert(format!("default/{name}"), object);
    }

    /// The addresses in the status of a Service.
    pub(super) fn ingress(&self, name: &str) -> Vec<String> {
        let service = self.services.get(&format!("default/{name}"));
        let points = service.and_then(|service| service["status"]["loadBalancer"]["ingress"].as_array());
        points.into_iter().flatten().filter_map(|point| point["ip"].as_str().map(str::to_owned)).collect()
    }

    /// The UIDs of the Services of a claim, in order; none without a claim.
    pub(super) fn holders(&self, address: &str) -> Option<Vec<String>> {
        let name = instance_name(address.parse::<IpAddr>().ok()?);
        let services = self.claims.get(&name)?["spec"]["services"].as_array().cloned();
        let uid = |service: Value| service["uid"].as_str().unwrap_or_default().to_owned();
        Some(services.unwrap_or_default().into_iter().map(uid).collect())
    }

    /// Late creates arrive.
    pub(super) fn deliver(&mut self) {
        for object in std::mem::take(&mut self.late) {
            self.create(object);
        }
    }

    fn create(&mut self, mut object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.claims.contains_key(&name) {
            return status(409, "AlreadyExists");
        }
        let version = self.next_version();
        object["metadata"]["uid"] = format!("claim-{version}").into();
        object["metadata"]["resourceVersion"] = version.into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        self.claims.insert(name, object.clone());
        (201, object)
    }

    fn handle(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method, &parts[..]) {
            ("POST", [.., "events"]) => (201, body.clone()),
            ("POST", [.., "serviceaddresses"]) => self.create(body.clone()),
            (_, [.., "serviceaddresses", name] | [.., "serviceaddresses", name, "status"]) => {
                self.claim(method, name, body)
            }
            ("GET", [.., "nodes"]) => {
                let item = |name: &String| json!({"metadata": {"name": name}});
                (200, json!({"metadata": {}, "items": self.nodes.iter().map(item).collect::<Vec<_>>()}))
            }
            ("DELETE", [.., "nodeservices", _]) => {
                (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}))
            }
            ("PATCH", [.., namespace, "services", name, "status"]) => {
                self.service_status(&format!("{namespace}/{name}"), body)
            }
            _ => panic!("{method} {path}"),
        }
    }

    fn claim(&mut self, method: &str, name: &str, body: &Value) -> (u16, Value) {
        let Some(claim) = self.claims.get(name) else { return status(404, "NotFound") };
        let metadata = claim["metadata"].clone();
        let conflicts = |wanted: &Value| {
            ["uid", "resourceVersion"]
                .iter()
                .any(|key| !wanted[key].is_null() && wanted[key] != metadata[key])
        };
        match method {
            "GET" => (200, claim.clone()),
            "DELETE" => {
                if conflicts(&body["preconditions"]) {
                    return status(409, "Conflict");
                }
                self.version += 1;
                self.claims.remove(name);
                (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}))
            }
            "PATCH" => {
                if conflicts(&body["metadata"]) {
                    return status(409, "Conflict");
                }
                let version = self.next_version();
                let Some(claim) = self.claims.get_mut(name) else { return status(404, "NotFound") };
                claim["metadata"]["resourceVersion"] = version.into();
                for (field, value) in body["spec"].as_object().into_iter().flatten() {
                    claim["spec"][field] = value.clone();
                }
                if let Some(status) = body.get("status") {
                    claim["status"] = status.clone();
                }
                (200, claim.clone())
            }
            _ => panic!("{method} {name}"),
        }
    }

    fn service_status(&mut self, key: &str, body: &Value) -> (u16, Value) {
        let Some(service) = self.services.get(key) else { return status(404, "NotFound") };
        let metadata = &service["metadata"];
        if ["uid", "resourceVersion"].iter().any(|field| body["metadata"][field] != metadata[field]) {
            return status(409, "Conflict");
        }
        let version = self.next_version();
        let Some(service) = self.services.get_mut(key) else { return status(404, "NotFound") };
        service["metadata"]["resourceVersion"] = version.into();
        if let Some(ingress) = body["status"]["loadBalancer"].get("ingress") {
            let balancer = if ingress.is_null() { json!({}) } else { json!({ "ingress": ingress }) };
            service["status"]["loadBalancer"] = balancer;
        }
        if let Some(conditions) = body["status"]["conditions"].as_array() {
            let set = conditions.iter().filter(|condition| condition["$patch"] != "delete");
            service["status"]["conditions"] = set.cloned().collect();
        }
        (200, service.clone())
    }

    /// Each address in a status without a claim that names the Service.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, service) in &self.services {
            let uid = service["metadata"]["uid"].as_str().unwrap_or_default();
            let name = key.trim_start_matches("default/");
            for address in self.ingress(name) {
                let claimed = self.holders(&address).is_some_and(|uids| uids.iter().any(|one| one == uid));
                if !claimed {
                    found.push(format!("{key} ({uid}) has {address} without a claim"));
                }
            }
        }
        found
    }

    fn request(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        if path.ends_with("/events") {
            return self.handle(method, path, body);
        }
        if self.dead {
            return status(503, "ServiceUnavailable");
        }
        self.requests.push((method.to_owned(), path.to_owned(), body.clone()));
        let before = self.unclaimed();
        let fate = self.fates.pop_front().unwrap_or(Fate::Answered);
        let answer = match fate {
            Fate::Answered | Fate::AnswerLost | Fate::CrashAfter => self.handle(method, path, body),
            Fate::Late if method == "POST" => {
                self.late.push(body.clone());
                status(504, "Timeout")
            }
            Fate::Lost | Fate::CrashBefore | Fate::Late => status(504, "Timeout"),
        };
        self.dead = matches!(fate, Fate::CrashAfter | Fate::CrashBefore);
        let wrong = self.unclaimed().into_iter().filter(|text| !before.contains(text));
        self.violations.extend(wrong.map(|text| format!("{method} {path}: {text}")));
        if fate == Fate::Answered { answer } else { status(504, "Timeout") }
    }
}

/// A leader whose API server is a [`Store`].
pub(super) struct FakeLeader {
    /// The resources of its reconcilers.
    pub context: Context,
    /// The objects of the API server, which outlive the leader.
    pub store: Arc<Mutex<Store>>,
}

impl FakeLeader {
    /// A leader with these pools, before its lists.
    pub(super) fn new(store: &Arc<Mutex<Store>>) -> Self {
        let served = Arc::clone(store);
        let context = context(move |(method, path, body)| served.lock().unwrap().request(method, path, body));
        FakeLeader { context, store: Arc::clone(store) }
    }

    /// The objects of the API server.
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Lists everything, and begins to allocate.
    pub(super) fn begin(&self, pools: &[(&str, Value)]) {
        for (name, spec) in pools {
            self.set_pool(name, spec);
        }
        self.show_claims();
        self.show_services();
        let mut state = self.context.shared.lock();
        let state = &mut *state;
        state.services.begin_term(&state.cluster, ServiceQueues::new(Duration::ZERO));
    }

    /// The watch shows a pool.
    pub(super) fn set_pool(&self, name: &str, spec: &Value) {
        let object: Lenient<ServicePoolSpec> =
            serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).unwrap();
        let row = PoolRow::of(&object, None);
        assert_eq!(row.unreadable, None, "{spec}");
        self.context.shared.lock().services.set_pool(&name.into(), row);
    }

    /// The watch shows the present Services.
    pub(super) fn show_services(&self) {
        let objects: Vec<Value> = self.store().services.values().cloned().collect();
        let mut state = self.context.shared.lock();
        state.services.rows.services.begin();
        for object in objects {
            let service: Service = serde_json::from_value(object).unwrap();
            let name = service.metadata.name.clone().unwrap();
            let row = ServiceRow::of(&service, &mut state.cluster.interner);
            state.services.set_service(&key(&name), row);
        }
        for key in state.services.rows.services.end() {
            state.services.remove_service(&key);
        }
    }

    /// The watch shows the present claims.
    pub(super) fn show_claims(&self) {
        let objects: Vec<Value> = self.store().claims.values().cloned().collect();
        let mut state = self.context.shared.lock();
        state.services.rows.claims.begin();
        for object in objects {
            let object: Lenient<ServiceAddressSpec> = serde_json::from_value(object).unwrap();
            let (address, row) = ClaimRow::of(&object).unwrap();
            state.services.set_claim(address, row);
        }
        for address in state.services.rows.claims.end() {
            state.services.remove_claim(address, u64::MAX, Instant::now());
        }
    }

    /// Works on a Service once, and returns the reason of a failure.
    pub(super) async fn work(&self, name: &str) -> Option<String> {
        let worked = super::reconcile::reconcile(self.context.clone(), key(name)).await;
        worked.err().map(|error| trunkline_daemon::errors::chain(&error).to_string())
    }

    /// Works on a Service until its plan is complete, and returns the reason of a failure.
    pub(super) async fn settle(&self, name: &str) -> Option<String> {
        let mut error = None;
        for _ in 0..8 {
            error = self.work(name).await;
        }
        error
    }
}

/// The key of a Service.
pub(super) fn key(name: &str) -> Key {
    Key::new("default", name)
}
