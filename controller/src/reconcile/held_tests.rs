use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::resources::LabelSelector;

use super::*;
use crate::cluster::pod::Pod;
use crate::cluster::vm::{VmInstanceRow, VmRow, key_of_vm};
use crate::cluster::{Interner, NodeRow};
use crate::reconcile::ipinstance;
use crate::reconcile::plan::Plan;
use crate::selection::Policy;
use crate::state::Queues;
use crate::testing::{SentRequest, context, policy};

/// An overlay with three addresses, and the nodes n1 and n2.
fn build(state: &mut ControllerState) {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let network = object("Network", "net", json!({"type": "Overlay", "netID": 9}));
    state.set_network(&"net".into(), serde_json::from_value(network).unwrap());
    let range = json!({"version": "4", "cidr": "10.9.0.0/24", "start": "10.9.0.1", "end": "10.9.0.3"});
    let subnet = object("Subnet", "sub", json!({"network": "net", "range": range}));
    state.set_subnet(&"sub".into(), serde_json::from_value(subnet).unwrap());
    for node in ["n1", "n2"] {
        state.set_node(&node.into(), NodeRow::default());
    }
    state.begin_term(Queues::new(Duration::ZERO));
}

fn state() -> ControllerState {
    let mut state = ControllerState::default();
    build(&mut state);
    state
}

fn owner(kind: &str) -> Value {
    let (api_version, uid) = match kind {
        "VirtualMachine" | "VirtualMachineInstance" => ("kubevirt.io/v1", "vm"),
        _ => ("apps/v1", "set"),
    };
    json!([{"apiVersion": api_version, "kind": kind, "name": "web", "uid": uid, "controller": true}])
}

fn pod(name: &str, uid: &str, node: &str, kind: &str) -> PodRow {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": uid, "ownerReferences": owner(kind)}, "spec": {"nodeName": node},
    }))
    .unwrap();
    PodRow::of(&pod, &LabelSelector::default(), &mut Interner::default())
}

/// A status of Trunkline's agent.
fn attached() -> Value {
    json!({"nodeName": "n1", "podName": "web-0", "sandboxID": "box", "attachedSandboxID": "box"})
}

/// A status of hybridnet's daemon, after a status of Trunkline's agent.
fn hybridnets() -> Value {
    json!({"nodeName": "n1", "podName": "web-0", "sandboxID": "other", "attachedSandboxID": "box"})
}

/// The IPInstance of 10.9.0.1, bound to pod web-0 with UID `old` on n1.
fn instance(version: u64, kind: &str, status: &Value, deleted: bool) -> InstanceRow {
    let mut object = json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {
            "name": "10-9-0-1", "namespace": "default", "uid": "i", "resourceVersion": version.to_string(),
            "ownerReferences": owner(kind), "finalizers": ["networking.alibaba.com/ip-allocated"],
        },
        "spec": {
            "network": "net", "subnet": "sub",
            "address": {"version": "4", "ip": "10.9.0.1/24", "mac": "02:12:34:00:00:01"},
            "binding": {"podName": "web-0", "podUID": "old", "nodeName": "n1"},
        },
        "status": status,
    });
    if deleted {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    let object: IPInstanceObject = serde_json::from_value(object).unwrap();
    InstanceRow::of(&object, true, &mut Interner::default()).unwrap()
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn vm_policy() -> Policy {
    Policy { network_type: trunkline_api::resources::NetworkType::Overlay, ..policy() }
}

fn plan(state: &mut ControllerState, of: &Key) -> Result<Plan, AllocationRefusal> {
    let now = Timestamp::from_second(1_767_225_600).unwrap();
    state.plan_pod(of, &vm_policy(), 1, now).swap_remove(0)
}

/// The kind of a plan, with the number of its addresses or its first address.
fn summary(plan: Result<Plan, AllocationRefusal>) -> String {
    match plan {
        Ok(Plan::Nothing) => "nothing".to_owned(),
        Ok(Plan::Release(released)) => format!("release {}", released.len()),
        Ok(Plan::Retain { keep, .. }) => format!("retain {}", keep.len()),
        Ok(Plan::Assign(plan)) => format!("assign {}", plan.granted.addresses[0].address.addr()),
        Err(AllocationRefusal::StillAttached(still)) => format!("wait for {}", still.address),
        other => format!("{other:?}"),
    }
}

fn held(state: &ControllerState) -> usize {
    state.term.as_ref().unwrap().held.len()
}

/// Takes all pods from the queue, and returns their number.
fn queued(state: &mut ControllerState) -> usize {
    let term = state.term.as_mut().unwrap();
    std::mem::replace(&mut term.queues, Queues::new(Duration::ZERO)).pods.depth()
}

#[test]
fn address_of_a_force_deleted_pod_is_held() {
    let over = || Some(PodRow { life: PodLifecycle::Over, ..pod("web-0", "old", "n1", "ReplicaSet") });
    let nothing = || None::<NodeRow>;
    let out = || Some(NodeRow { out_of_service: true, ..NodeRow::default() });
    let here = || Some(NodeRow::default());
    for (case, kind, status, node, pod, expected, holds) in [
        ("attached", "ReplicaSet", attached(), here(), None, "nothing", 1),
        ("completed, attached", "ReplicaSet", attached(), here(), over(), "nothing", 1),
        ("stateful, attached", "StatefulSet", attached(), here(), None, "nothing", 1),
        ("no sandbox", "ReplicaSet", json!({}), here(), None, "release 1", 0),
        ("completed, no sandbox", "ReplicaSet", json!({}), here(), over(), "release 1", 0),
        ("stateful, no sandbox", "StatefulSet", json!({}), here(), None, "retain 1", 0),
        ("attached by hybridnet", "ReplicaSet", hybridnets(), here(), None, "release 1", 0),
        ("the Node is gone", "ReplicaSet", attached(), nothing(), None, "release 1", 0),
        ("the Node is out of service", "ReplicaSet", attached(), out(), None, "release 1", 0),
        ("stateful, out of service", "StatefulSet", attached(), out(), None, "retain 1", 0),
    ] {
        let mut state = state();
        match node {
            Some(node) => state.set_node(&"n1".into(), node),
            None => state.remove_node(&"n1".into()),
        }
        if let Some(pod) = pod {
            state.set_pod(&key("web-0"), pod);
        }
        state.set_instance(&key("10-9-0-1"), instance(1, kind, &status, false));
        let planned = plan(&mut state, &key("web-0"));
        assert_eq!(summary(planned), expected, "{case}");
        assert_eq!(held(&state), holds, "{case}");
    }
}

#[test]
fn end_of_the_sandbox_or_of_the_node_frees_the_address() {
    type Event = fn(&mut ControllerState);
    let events: [(&str, Event); 3] = [
        ("the sandbox has ended", |state| {
            state.set_instance(&key("10-9-0-1"), instance(2, "ReplicaSet", &json!({}), false));
        }),
        ("the Node is deleted", |state| state.remove_node(&"n1".into())),
        ("the Node is out of service", |state| {
            state.set_node(&"n1".into(), NodeRow { out_of_service: true, ..NodeRow::default() });
        }),
    ];
    for (case, event) in events {
        let mut state = state();
        state.set_instance(&key("10-9-0-1"), instance(1, "ReplicaSet", &attached(), false));
        let planned = plan(&mut state, &key("web-0"));
        assert_eq!((summary(planned).as_str(), held(&state)), ("nothing", 1), "{case}");
        queued(&mut state);
        event(&mut state);
        assert_eq!(queued(&mut state), 1, "{case}");
        let planned = plan(&mut state, &key("web-0"));
        assert_eq!((summary(planned).as_str(), held(&state)), ("release 1", 0), "{case}");
    }
}

#[test]
fn next_pod_of_a_set_waits_for_the_former_sandbox() {
    let mut state = state();
    state.set_instance(&key("10-9-0-1"), instance(1, "StatefulSet", &attached(), false));
    state.set_pod(&key("web-0"), pod("web-0", "new", "n2", "StatefulSet"));
    let refused = plan(&mut state, &key("web-0")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "address 10.9.0.1 is held: the former sandbox of web-0 (pod UID old) is still attached on node n1: the node's \
         agent reports its end. If the node does not come back, delete its Node, or taint it with \
         node.kubernetes.io/out-of-service"
    );
    assert_eq!((held(&state), refused.reason()), (1, "attached"));
    // A pod of another name gets another address.
    state.set_pod(&key("web-1"), pod("web-1", "w1", "n2", "StatefulSet"));
    assert_eq!(summary(plan(&mut state, &key("web-1"))), "assign 10.9.0.2");
    queued(&mut state);
    state.set_instance(&key("10-9-0-1"), instance(2, "StatefulSet", &json!({}), false));
    assert_eq!((queued(&mut state), held(&state)), (1, 0));
    assert_eq!(summary(plan(&mut state, &key("web-0"))), "assign 10.9.0.1");
}

#[test]
fn pod_of_the_same_name_gets_another_address() {
    let mut state = state();
    state.set_instance(&key("10-9-0-1"), instance(1, "ReplicaSet", &attached(), false));
    state.set_pod(&key("web-0"), pod("web-0", "new", "n2", "ReplicaSet"));
    assert_eq!(summary(plan(&mut state, &key("web-0"))), "assign 10.9.0.2");
    assert_eq!(held(&state), 1);
    let second = InstanceRow {
        address: "10.9.0.2".parse().unwrap(),
        uid: "j".into(),
        pod_uid: "new".into(),
        node: Some("n2".into()),
        ..instance(1, "ReplicaSet", &json!({}), false)
    };
    state.set_instance(&key("10-9-0-2"), second);
    assert_eq!(summary(plan(&mut state, &key("web-0"))), "nothing");
    state.set_instance(&key("10-9-0-1"), instance(2, "ReplicaSet", &json!({}), false));
    assert_eq!(summary(plan(&mut state, &key("web-0"))), "release 1", "the earlier pod's address");
}

#[test]
fn next_pod_of_a_virtual_machine_waits_and_a_migration_target_does_not() {
    let mut state = state();
    state.cluster.vms.retain = true;
    let of = key_of_vm(&"default".into(), "web");
    state.set_vm(&key("web"), VmRow { uid: "vm".into(), deleting: false });
    let runs_on = |node: Option<&str>| VmInstanceRow {
        uid: "vm".into(),
        vm: Some(vm_owner()),
        node: node.map(Into::into),
        migration: None,
    };
    state.set_vm_instance(&key("web"), runs_on(None));
    state.set_instance(&key("10-9-0-1"), instance(1, "VirtualMachine", &attached(), false));
    state.set_pod(&key("launcher-b"), pod("launcher-b", "b", "n2", "VirtualMachineInstance"));
    assert_eq!(summary(plan(&mut state, &of)), "wait for 10.9.0.1");
    let target = Some(Box::new(trunkline_api::resources::MigrationTarget {
        node_name: "n2".to_owned(),
        pod_name: "launcher-b".to_owned(),
        pod_uid: "b".to_owned(),
    }));
    state.set_vm_instance(&key("web"), runs_on(Some("n2")));
    let moved = InstanceRow { target, ..instance(2, "VirtualMachine", &attached(), false) };
    state.set_instance(&key("10-9-0-1"), moved);
    assert_eq!(summary(plan(&mut state, &of)), "assign 10.9.0.1", "the live migration is complete");
}

fn vm_owner() -> crate::cluster::Owner {
    crate::cluster::Owner {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: "web".into(),
        uid: "vm".into(),
    }
}

#[tokio::test]
async fn deleted_ipinstance_of_an_attached_sandbox_keeps_its_finalizer() {
    let sent: Arc<Mutex<Vec<SentRequest>>> = Arc::default();
    let recorded = Arc::clone(&sent);
    let context = context(move |request| {
        recorded.lock().unwrap().push(request.clone());
        (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "gone"}))
    });
    build(&mut context.shared.lock());
    let show = |version, status: &Value| {
        context.shared.lock().set_instance(&key("10-9-0-1"), instance(version, "ReplicaSet", status, true));
    };
    let patches = || sent.lock().unwrap().len();
    // The garbage collector deletes the IPInstance with the pod.
    show(1, &attached());
    ipinstance::reconcile(context.clone(), key("10-9-0-1")).await.unwrap();
    assert_eq!((patches(), held(&context.shared.lock())), (0, 1));
    show(2, &json!({}));
    ipinstance::reconcile(context.clone(), key("10-9-0-1")).await.unwrap();
    assert_eq!((patches(), held(&context.shared.lock())), (1, 0), "the finalizer is removed");
    show(3, &attached());
    context.shared.lock().remove_node(&"n1".into());
    ipinstance::reconcile(context.clone(), key("10-9-0-1")).await.unwrap();
    assert_eq!(patches(), 2, "no agent is left");
}
