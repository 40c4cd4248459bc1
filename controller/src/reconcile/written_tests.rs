//! Writes of the reconcilers and their handling of answers, against an API server with scripted
//! answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::annotation::{
    EXTRA_PREFIXES, IP_RETENTION, MIGRATION_TARGET, RETAINED_SINCE, WORKLOAD_API_VERSION,
};
use trunkline_api::names::finalizer::{IP_ALLOCATED, METRICS_REGISTERED};
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::Subnet;

use super::{Context, ipinstance, pod, subnet};
use crate::cluster::vm::{MigrationRow, VmInstanceRow};
use crate::cluster::{InstanceRow, Key, NetworkingMetadata, NodeRow, Owner, PodLifecycle, PodRow};
use crate::ipam::{AllocatedAddresses, Assigned, State};
use crate::state::{ControllerState, PendingCreate, Queues};
use crate::testing::{SentRequest, context};

/// The path of the lists of Namespaces.
pub(super) const NAMESPACES: &str = "/api/v1/namespaces";

/// A leader, and the requests that it has sent.
pub(super) struct Leader {
    pub(super) context: Context,
    sent: Arc<Mutex<Vec<SentRequest>>>,
}

/// A leader with one network of three addresses. Its API server has no Namespaces, and answers each
/// other request with a status and an object.
fn leader(answer: impl Fn(&SentRequest) -> (u16, Value) + Clone + Send + Sync + 'static) -> Leader {
    let empty = json!({"apiVersion": "v1", "kind": "NamespaceList", "metadata": {}, "items": []});
    leader_with_namespaces(move || (200, empty.clone()), answer)
}

/// A leader like [`leader`] with an answer to lists of Namespaces, which are not among the sent requests.
pub(super) fn leader_with_namespaces(
    namespaces: impl Fn() -> (u16, Value) + Clone + Send + Sync + 'static,
    answer: impl Fn(&SentRequest) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Leader {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&sent);
    let context = context(move |request| {
        if request.1 == NAMESPACES {
            return namespaces();
        }
        recorded.lock().unwrap().push(request.clone());
        answer(request)
    });
    {
        let mut state = context.shared.lock();
        for (kind, name, spec) in [
            ("Network", "net", json!({"type": "Overlay", "netID": 9})),
            (
                "Subnet",
                "sub",
                json!({"network": "net", "range": {"version": "4", "cidr": "10.0.0.0/24", "start": "10.0.0.1", "end": "10.0.0.3"}}),
            ),
        ] {
            let object = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
            });
            match kind {
                "Network" => state.set_network(&name.into(), serde_json::from_value(object).unwrap()),
                _ => state.set_subnet(&name.into(), serde_json::from_value(object).unwrap()),
            }
        }
        state.begin_term(Queues::new(Duration::ZERO));
    }
    Leader { context, sent }
}

impl Leader {
    pub(super) fn sent(&self) -> Vec<SentRequest> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut ControllerState) -> T) -> T {
        look(&mut self.context.shared.lock())
    }

    /// Simulates an IPInstance in the watch.
    fn show(&self, object: &Value) {
        self.with(|state| {
            let object: IPInstanceObject = serde_json::from_value(object.clone()).unwrap();
            let row =
                InstanceRow::of(&object, state.cluster.vms.retain, &mut state.cluster.interner).unwrap();
            state.set_instance(&key("10-0-0-1"), row);
        });
    }

    fn state(&self) -> Option<State> {
        self.with(|state| {
            let ipam = &state.term.as_ref().unwrap().ipam;
            ipam.holder("10.0.0.1".parse().unwrap()).map(|(_, state)| state)
        })
    }

    /// Takes all pods from the queue, and returns their number.
    fn queued(&self) -> usize {
        self.with(|state| {
            let old =
                std::mem::replace(&mut state.term.as_mut().unwrap().queues, Queues::new(Duration::ZERO));
            old.pods.depth()
        })
    }
}

pub(super) fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// The IPInstance of 10.0.0.1, retained for or bound to a pod of this name.
fn instance(version: &str, pod_uid: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {
            "name": "10-0-0-1", "namespace": "default", "uid": "i", "resourceVersion": version,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s", "controller": true}],
        },
        "spec": {
            "network": "net", "subnet": "sub",
            "address": {"version": "4", "ip": "10.0.0.1/24", "mac": "02:12:34:00:00:01"},
            "binding": {"podName": "web-0", "podUID": pod_uid, "nodeName": if pod_uid.is_empty() { "" } else { "n1" }},
        },
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        object["metadata"][name] = value.clone();
    }
    object
}

/// The patch that only removes a finalizer.
fn steps(uid: &str, place: usize, finalizer: &str) -> Value {
    let at = format!("/metadata/finalizers/{place}");
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": at, "value": finalizer},
        {"op": "remove", "path": at},
    ])
}

#[tokio::test]
async fn foreign_finalizer_stays() {
    let leader = leader(|(_, path, _)| match path.contains("subnets") {
        true => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "gone"})),
        false => (200, instance("2", "", json!({"finalizers": ["backup.example.com/copy"]}))),
    });
    let deleted = "2026-01-01T00:00:00Z";
    let finalizers = json!(["backup.example.com/copy", IP_ALLOCATED]);
    leader.show(&instance("1", "", json!({"deletionTimestamp": deleted, "finalizers": finalizers})));
    assert!(ipinstance::reconcile(leader.context.clone(), key("10-0-0-1")).await.is_ok());
    let path = "/apis/networking.alibaba.com/v1/namespaces/default/ipinstances/10-0-0-1".to_owned();
    assert_eq!(leader.sent(), [("PATCH".to_owned(), path, steps("i", 1, IP_ALLOCATED))]);
    // After Trunkline's finalizer is removed, only the other finalizer is left. The address stays
    // unavailable until the object is gone.
    let left = json!({"deletionTimestamp": deleted, "finalizers": ["backup.example.com/copy"]});
    leader.show(&instance("2", "", left));
    assert!(ipinstance::reconcile(leader.context.clone(), key("10-0-0-1")).await.is_ok());
    assert_eq!((leader.sent(), leader.state()), (Vec::new(), Some(State::Releasing)));

    let going: Subnet = serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet",
        "metadata": {
            "name": "sub", "uid": "u", "deletionTimestamp": deleted,
            "finalizers": [METRICS_REGISTERED, "backup.example.com/copy"],
        },
        "spec": {"network": "net", "range": {"version": "4", "cidr": "10.0.0.0/24"}},
    }))
    .unwrap();
    leader.with(|state| state.set_subnet(&"sub".into(), going));
    assert!(subnet::reconcile(leader.context.clone(), "sub".into()).await.is_ok());
    let path = "/apis/networking.alibaba.com/v1/subnets/sub".to_owned();
    assert_eq!(leader.sent(), [("PATCH".to_owned(), path, steps("u", 0, METRICS_REGISTERED))]);
}

#[tokio::test]
async fn moved_finalizer_is_left_to_its_own_event() {
    for (code, reason) in [(422, None), (409, None), (403, Some("api")), (500, Some("unanswered"))] {
        let leader = leader(move |_| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "message": "no",
                "reason": if code == 409 { "Conflict" } else { "" }}),
            )
        });
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [IP_ALLOCATED]});
        leader.show(&instance("1", "", deleted));
        let failed = ipinstance::reconcile(leader.context.clone(), key("10-0-0-1")).await.err();
        assert_eq!(failed.map(|error| error.reason()), reason, "{code}");
    }
}

/// Simulates that pod web-0 is gone, and that a write for it got no answer.
fn unanswered(leader: &Leader, rebind: bool) {
    leader.with(|state| {
        let network = Arc::clone(state.cluster.network("net").unwrap());
        let term = state.term.as_mut().unwrap();
        let request = crate::ipam::AddressRequest {
            namespace: "default",
            network: "net",
            addresses: &["10.0.0.1".parse().unwrap()],
            own: if rebind { &["10.0.0.1".parse().unwrap()] } else { &[] },
            ..Default::default()
        };
        let granted = term.ipam.allocate(&request, 1).unwrap();
        assert!(matches!(granted.addresses.as_slice(), [Assigned { rebind: it, .. }] if *it == rebind));
        let unanswered = PendingCreate {
            pod_uid: "p".into(),
            interface: None,
            network,
            granted: AllocatedAddresses { addresses: granted.addresses, mac: granted.mac },
            family: IpFamily::V4,
        };
        term.add_pending(&key("web-0"), unanswered);
    });
}

#[tokio::test]
async fn unanswered_create_is_settled_when_its_pod_is_gone() {
    let missing = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"});
    // The IPInstance was not written: the address is free again.
    let absent = missing.clone();
    let here = leader(move |_| (404, absent.clone()));
    unanswered(&here, false);
    assert_eq!(here.state(), Some(State::Given));
    assert!(pod::reconcile(here.context.clone(), key("web-0")).await.is_ok());
    assert_eq!(here.state(), None);

    // The IPInstance was written, and a new list has already shown it. The pod is queued although
    // the answer changes nothing.
    let written = instance("5", "p", json!({"ownerReferences": [], "finalizers": [IP_ALLOCATED]}));
    let answer = written.clone();
    let here = leader(move |_| (200, answer.clone()));
    unanswered(&here, false);
    here.show(&written);
    assert_eq!(here.state(), Some(State::InUse));
    here.queued();
    assert!(pod::reconcile(here.context.clone(), key("web-0")).await.is_ok());
    assert_eq!(here.queued(), 1, "its pod is queued again");
    here.sent();
    assert!(pod::reconcile(here.context.clone(), key("web-0")).await.is_ok());
    assert_eq!(here.sent().iter().map(|(method, ..)| method.as_str()).collect::<Vec<_>>(), ["DELETE"]);

    // The result is still unknown: the controller reads the IPInstance again.
    let here = leader(move |_| {
        (503, json!({"kind": "Status", "status": "Failure", "code": 503, "message": "later"}))
    });
    unanswered(&here, false);
    assert!(pod::reconcile(here.context.clone(), key("web-0")).await.is_err());
    assert_eq!(here.state(), Some(State::Given));
    assert!(here.with(|state| state.term.as_ref().unwrap().pending_creates.contains_key(&key("web-0"))));
}

#[tokio::test]
async fn unanswered_binding_is_settled_when_its_pod_is_gone() {
    let kept = instance("1", "", json!({"finalizers": [IP_ALLOCATED]}));
    for (there, state) in [
        // The IPInstance was not written and is unchanged: the address is retained as before.
        (kept.clone(), State::Retained),
        // Another client wrote the IPInstance meanwhile.
        (instance("2", "", json!({"finalizers": [IP_ALLOCATED], "labels": {"a": "b"}})), State::Retained),
        // The IPInstance was written.
        (instance("2", "p", json!({"finalizers": [IP_ALLOCATED]})), State::InUse),
    ] {
        let answer = there.clone();
        let leader = leader(move |_| (200, answer.clone()));
        leader.show(&kept);
        unanswered(&leader, true);
        assert_eq!(leader.state(), Some(State::Rebinding));
        assert!(pod::reconcile(leader.context.clone(), key("web-0")).await.is_ok());
        assert_eq!(leader.state(), Some(state), "{there}");
    }
}

/// An IPInstance has the prefixes of its current pod, and none of the previous pod's.
#[tokio::test]
async fn retained_address_gets_the_next_pods_prefixes() {
    let former = json!({EXTRA_PREFIXES: "10.8.0.0/16", "note": "mine"});
    for (own, written) in [(Some("10.9.0.0/16,10.9.0.0/16"), json!("10.9.0.0/16")), (None, Value::Null)] {
        let leader = leader(move |_| (200, instance("2", "new", json!({"finalizers": [IP_ALLOCATED]}))));
        leader.show(&instance("1", "", json!({"finalizers": [IP_ALLOCATED], "annotations": former})));
        leader.with(|state| {
            state.set_node(&"n1".into(), NodeRow::default());
            let owner = Owner {
                api_version: "apps/v1".into(),
                kind: "StatefulSet".into(),
                name: "web".into(),
                uid: "s".into(),
            };
            let annotations =
                own.map(|own| (EXTRA_PREFIXES.to_owned(), own.to_owned())).into_iter().collect();
            let row = PodRow {
                uid: "new".into(),
                node: Some("n1".into()),
                host_network: false,
                selected: true,
                interface: None,
                owner: Some(owner),
                networking: NetworkingMetadata { annotations, ..NetworkingMetadata::default() },
                life: PodLifecycle::Alive,
                running: false,
                started: false,
                failed: false,
                finalizer: false,
                addresses: Vec::new(),
            };
            state.set_pod(&key("web-0"), row);
        });
        assert!(pod::reconcile(leader.context.clone(), key("web-0")).await.is_ok());
        let sent = leader.sent();
        let (method, _, body) = sent.first().unwrap();
        assert_eq!(method, "PATCH", "{sent:?}");
        let annotations = body["metadata"]["annotations"].as_object().unwrap();
        assert_eq!(annotations.get(EXTRA_PREFIXES), Some(&written), "{body}");
        assert!(!annotations.contains_key("note"), "others' annotations stay: {body}");
    }
}

pub(super) fn stateful_pod(annotations: &[(&str, &str)]) -> PodRow {
    let owner = Owner {
        api_version: "apps/v1".into(),
        kind: "StatefulSet".into(),
        name: "web".into(),
        uid: "s".into(),
    };
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    PodRow {
        uid: "new".into(),
        node: Some("n1".into()),
        host_network: false,
        selected: true,
        interface: None,
        owner: Some(owner),
        networking: NetworkingMetadata {
            annotations: annotations.collect(),
            ..NetworkingMetadata::default()
        },
        life: PodLifecycle::Alive,
        running: false,
        started: false,
        failed: false,
        finalizer: false,
        addresses: Vec::new(),
    }
}

/// Shows the retained IPInstance of an earlier pod with a retention of one hour, which is over.
fn show_expired(leader: &Leader) {
    let annotations = json!({
        IP_RETENTION: "1h", RETAINED_SINCE: "2026-01-01T00:00:00Z", WORKLOAD_API_VERSION: "apps/v1",
    });
    let metadata = json!({"ownerReferences": [], "annotations": annotations, "finalizers": [IP_ALLOCATED]});
    let mut object = instance("7", "", metadata);
    object["spec"]["binding"]["referredObject"] = json!({"kind": "StatefulSet", "name": "web", "uid": "s"});
    leader.show(&object);
}

/// An IPInstance with a retention has no owner, so that the garbage collector leaves it alone. The
/// clock is written with the request that unbinds the pod, and removed when the next pod is bound.
#[tokio::test]
async fn retention_is_written_into_the_ipinstance() {
    let leader = leader(|(method, _, body)| match method.as_str() {
        "POST" => {
            let mut object = body.clone();
            object["metadata"]["uid"] = "i".into();
            object["metadata"]["resourceVersion"] = "2".into();
            (201, object)
        }
        _ => (200, instance("3", "", json!({"ownerReferences": []}))),
    });
    leader.with(|state| {
        state.set_node(&"n1".into(), NodeRow::default());
        state.set_pod(&key("web-0"), stateful_pod(&[(IP_RETENTION, "72h")]));
    });
    assert!(pod::reconcile(leader.context.clone(), key("web-0")).await.is_ok());
    let sent = leader.sent();
    let (method, _, body) = sent.first().unwrap();
    assert_eq!((method.as_str(), &body["metadata"]["ownerReferences"]), ("POST", &Value::Null), "{body}");
    let annotations = &body["metadata"]["annotations"];
    assert_eq!(
        (&annotations[IP_RETENTION], &annotations[WORKLOAD_API_VERSION]),
        (&json!("3d"), &json!("apps/v1"))
    );
    assert_eq!(body["spec"]["binding"]["referredObject"]["kind"], "StatefulSet");

    leader.with(|state| state.remove_pod(&key("web-0")));
    assert!(pod::reconcile(leader.context.clone(), key("web-0")).await.is_ok());
    let sent = leader.sent();
    let (_, path, body) = sent.last().unwrap();
    assert!(!path.ends_with("/status"), "{sent:?}");
    let since = body["metadata"]["annotations"][RETAINED_SINCE].as_str().unwrap();
    assert!(since.parse::<jiff::Timestamp>().is_ok(), "{since}");
    assert_eq!(body["spec"]["binding"]["podUID"], Value::Null);

    show_expired(&leader);
    leader.with(|state| state.set_pod(&key("web-0"), stateful_pod(&[])));
    assert!(pod::reconcile(leader.context.clone(), key("web-0")).await.is_ok());
    let sent = leader.sent();
    let (method, _, body) = sent.first().unwrap();
    let annotations = body["metadata"]["annotations"].as_object().unwrap();
    for name in [IP_RETENTION, RETAINED_SINCE, WORKLOAD_API_VERSION] {
        assert_eq!((method.as_str(), annotations.get(name)), ("PATCH", Some(&Value::Null)), "{name}: {body}");
    }
    assert_eq!(body["metadata"]["ownerReferences"][0]["kind"], "StatefulSet", "{body}");
}

#[tokio::test]
async fn expired_address_is_deleted_only_in_the_seen_version() {
    let status = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [IP_ALLOCATED]});
    for (code, answer, failed, state) in [
        (200, instance("8", "", deleted), false, State::Releasing),
        // Another write came first. Its event plans again.
        (409, status(409, "Conflict"), false, State::Expiring),
        (404, status(404, "NotFound"), false, State::Expiring),
        // The work is repeated.
        (403, status(403, "Forbidden"), true, State::Expiring),
        (500, status(500, ""), true, State::Expiring),
    ] {
        let leader = leader(move |_| (code, answer.clone()));
        leader.with(|state| state.set_node(&"n1".into(), NodeRow::default()));
        show_expired(&leader);
        let outcome = pod::reconcile(leader.context.clone(), key("web-0")).await;
        assert_eq!((outcome.is_err(), leader.state()), (failed, Some(state)), "{code}");
        let sent = leader.sent();
        let (method, _, body) = sent.first().unwrap();
        assert_eq!(method, "DELETE");
        assert_eq!(body["preconditions"], json!({"uid": "i", "resourceVersion": "7"}));
        // A pod of the name meanwhile: it gets the address only if the deletion was not accepted.
        leader.with(|state| state.set_pod(&key("web-0"), stateful_pod(&[])));
        let _answer = pod::reconcile(leader.context.clone(), key("web-0")).await;
        let sent = leader.sent();
        let (method, path, _) = sent.first().unwrap();
        match code {
            200 => assert_eq!((method.as_str(), path.ends_with("/ipinstances")), ("POST", true), "{sent:?}"),
            _ => assert_eq!((method.as_str(), path.ends_with("/10-0-0-1")), ("PATCH", true), "{sent:?}"),
        }
    }
}

/// The owner in hybridnet's IPInstances of the virtual machine `web`.
fn owner_vm() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "v", "controller": true,
        "blockOwnerDeletion": false,
    })
}

/// A leader with the virtual machine `web` and its pod on node n1.
fn leader_with_vm(answer: impl Fn(&SentRequest) -> (u16, Value) + Clone + Send + Sync + 'static) -> Leader {
    let leader = leader(answer);
    leader.with(|state| {
        state.cluster.vms.retain = true;
        state.set_node(&"n1".into(), NodeRow::default());
        let row = VmInstanceRow {
            vm: Some(Owner {
                api_version: "kubevirt.io/v1".into(),
                kind: "VirtualMachine".into(),
                name: "web".into(),
                uid: "v".into(),
            }),
            uid: "w".into(),
            node: None,
            migration: None,
        };
        state.set_vm_instance(&key("web"), row);
        let owner = Owner {
            api_version: "kubevirt.io/v1".into(),
            kind: "VirtualMachineInstance".into(),
            name: "web".into(),
            uid: "w".into(),
        };
        let retention = (IP_RETENTION, "72h");
        state.set_pod(
            &key("virt-launcher-web-x7k2p"),
            PodRow { owner: Some(owner), ..stateful_pod(&[retention]) },
        );
    });
    leader
}

/// hybridnet's controller finds the IPInstances of a virtual machine by their label, and the
/// garbage collector by their owner.
#[tokio::test]
async fn ipinstance_of_a_virtual_machine_is_hybridnets() {
    let leader = leader_with_vm(|(method, _, body)| match method.as_str() {
        "POST" => {
            let mut object = body.clone();
            object["metadata"]["uid"] = "i".into();
            object["metadata"]["resourceVersion"] = "2".into();
            (201, object)
        }
        _ => (200, instance("3", "", json!({"ownerReferences": [owner_vm()]}))),
    });
    let of = Key::new("default", "vm/web");
    assert!(pod::reconcile(leader.context.clone(), of.clone()).await.is_ok());
    let sent = leader.sent();
    let (method, _, body) = sent.first().unwrap();
    assert_eq!(
        (method.as_str(), &body["metadata"]["ownerReferences"]),
        ("POST", &json!([owner_vm()])),
        "{body}"
    );
    let labels = &body["metadata"]["labels"];
    assert_eq!(labels["networking.alibaba.com/vm"], "web");
    assert_eq!(labels["networking.alibaba.com/pod"], "virt-launcher-web-x7k2p");
    let binding = json!({
        "referredObject": {"kind": "VirtualMachine", "name": "web", "uid": "v"},
        "nodeName": "n1", "podUID": "new", "podName": "virt-launcher-web-x7k2p",
    });
    assert_eq!(body["spec"]["binding"], binding, "without an ordinal");
    assert!(body["metadata"]["annotations"].get(IP_RETENTION).is_none(), "{body}");

    // The virtual machine is stopped: the next pod has another name.
    leader.with(|state| state.remove_pod(&key("virt-launcher-web-x7k2p")));
    assert!(pod::reconcile(leader.context.clone(), of).await.is_ok());
    let sent = leader.sent();
    let (_, _, body) = sent.last().unwrap();
    assert_eq!(body["spec"]["binding"], json!({"nodeName": "", "podName": null, "podUID": null}));
    let labels = body["metadata"]["labels"].as_object().unwrap();
    let labels: Vec<&str> =
        labels.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(labels.len(), 4, "{labels:?}");
}

/// The watch of VirtualMachines may be behind: the API server's answer decides about a release.
#[tokio::test]
async fn addresses_are_released_only_if_the_virtual_machine_is_gone() {
    let machine = |uid: &str, deleting: bool| {
        let timestamp = deleting.then_some("2026-01-01T00:00:00Z");
        json!({"metadata": {"name": "web", "namespace": "default", "uid": uid, "deletionTimestamp": timestamp}})
    };
    let missing =
        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"});
    for (case, code, answer, released) in [
        ("gone", 404, missing, true),
        ("another one", 200, machine("another", false), true),
        ("being deleted", 200, machine("v", true), true),
        ("it exists", 200, machine("v", false), false),
    ] {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [IP_ALLOCATED]});
        let leader = leader_with_vm(move |(method, ..)| match method.as_str() {
            "GET" => (code, answer.clone()),
            _ => (200, instance("8", "", deleted.clone())),
        });
        leader.show(&instance(
            "7",
            "",
            json!({"ownerReferences": [owner_vm()], "finalizers": [IP_ALLOCATED]}),
        ));
        leader.with(|state| {
            state.remove_pod(&key("virt-launcher-web-x7k2p"));
            state.cluster.vms.vms.begin();
            assert!(state.cluster.vms.vms.end().is_empty());
        });
        let outcome = pod::reconcile(leader.context.clone(), Key::new("default", "vm/web")).await;
        assert_eq!(outcome.is_ok(), released, "{case}");
        let sent = leader.sent();
        let methods: Vec<&str> = sent.iter().map(|(method, ..)| method.as_str()).collect();
        let expected = if released { &["GET", "DELETE"][..] } else { &["GET"] };
        assert_eq!(methods, expected, "{case}");
        assert!(
            sent[0].1.ends_with("/apis/kubevirt.io/v1/namespaces/default/virtualmachines/web"),
            "{sent:?}"
        );
    }
}

/// During a live migration the labels have the target, and the binding stays.
#[tokio::test]
async fn target_of_a_live_migration_is_in_labels_and_annotation() {
    let bound = instance("7", "new", json!({"ownerReferences": [owner_vm()], "finalizers": [IP_ALLOCATED]}));
    let answer = bound.clone();
    let leader = leader_with_vm(move |_| (200, answer.clone()));
    leader.show(&bound);
    leader.with(|state| {
        let source = state.cluster.pod(&key("virt-launcher-web-x7k2p")).unwrap().clone();
        let mut target = PodRow { uid: "target".into(), node: Some("n2".into()), ..source };
        target.networking.labels.insert("kubevirt.io/migrationJobUID".to_owned(), "job".to_owned());
        state.set_pod(&key("virt-launcher-web-a1b2c"), target);
        let migration = MigrationRow { uid: "job".into(), instance: "web".into(), is_running: true };
        state.set_vm_migration(&key("migration-of-web"), Some(migration));
    });
    assert!(pod::reconcile(leader.context.clone(), Key::new("default", "vm/web")).await.is_ok());
    let sent = leader.sent();
    let [(method, _, body)] = &sent[..] else { panic!("{sent:?}") };
    let target = r#"{"nodeName":"n2","podName":"virt-launcher-web-a1b2c","podUID":"target"}"#;
    let expected = json!({"metadata": {
        "uid": "i",
        "labels": {
            "networking.alibaba.com/node": "n2", "networking.alibaba.com/pod": "virt-launcher-web-a1b2c",
            "networking.alibaba.com/pod-uid": "target", "trunkline.io/migration-source": "n1",
        },
        "annotations": {MIGRATION_TARGET: target, "trunkline.io/migration-source-pod": "new"},
    }});
    assert_eq!((method.as_str(), body), ("PATCH", &expected));
}
