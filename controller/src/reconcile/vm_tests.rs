//! Virtual machines: the decision as tables, and plans over a whole state. IPInstances are hybridnet's.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::label;
use trunkline_api::resources::LabelSelector;

use super::*;
use crate::cluster::pod::Pod;
use crate::cluster::vm::{HandedOver, MigrationRow, VmInstanceRow, VmRow};
use crate::cluster::{Interner, NodeRow};
use crate::reconcile::plan::{AssignPlan, Plan};
use crate::selection::Policy;
use crate::state::{ControllerState, Queues};
use crate::testing::policy;

const UID: &str = "uid-of-web";

fn vm() -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": UID, "controller": true})
}

/// A pod of the VirtualMachineInstance `web` on this node, alive, without a started container.
fn pod(uid: &str, node: &str) -> PodRow {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": uid, "uid": uid, "ownerReferences": [{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "vmi", "controller": true,
        }]},
        "spec": {"nodeName": node},
    }))
    .unwrap();
    PodRow::of(&pod, &LabelSelector::default(), &mut Interner::default())
}

/// An IPInstance of the virtual machine as hybridnet writes it: bound to the pod with this name and UID,
/// or retained if `pod` is empty.
fn instance(address: &str, pod: &str, owner: &Value) -> InstanceRow {
    let binding = match pod {
        "" => json!({"nodeName": ""}),
        pod => json!({"nodeName": "n1", "podName": pod, "podUID": pod}),
    };
    let length = if address.contains(':') { 112 } else { 24 };
    let object: IPInstanceObject = serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {"name": address, "namespace": "default", "uid": address, "resourceVersion": "1",
            "ownerReferences": [owner], "finalizers": ["networking.alibaba.com/ip-allocated"],
            "labels": {"networking.alibaba.com/vm": "web"}},
        "spec": {
            "network": "rack", "subnet": if length == 24 { "rack-v4" } else { "rack-v6" },
            "address": {"version": if length == 24 { "4" } else { "6" }, "ip": format!("{address}/{length}"), "mac": "02:12:34:00:00:01"},
            "binding": binding,
        },
    }))
    .unwrap();
    InstanceRow::of(&object, true, &mut Interner::default()).unwrap()
}

fn key(name: &str) -> Key {
    Key::new("default", name.replace(['.', ':'], "-"))
}

const A: &str = "10.0.0.1";
const SIX: &str = "fd00::1";

#[test]
fn one_pod_has_the_addresses() {
    let alive = |uid: &str| pod(uid, "n1");
    let ends = |uid: &str, running: bool| PodRow { life: PodLifecycle::Terminating, running, ..alive(uid) };
    let failed = |uid: &str| PodRow { failed: true, ..alive(uid) };
    for (case, pods, bound, chosen) in [
        ("none", vec![], "", None),
        ("the first pod", vec![alive("a")], "", Some("a")),
        ("not scheduled", vec![PodRow { node: None, ..alive("a") }], "", None),
        ("the bound pod", vec![alive("a"), alive("b")], "b", Some("b")),
        ("the bound pod is gone", vec![alive("b")], "a", Some("b")),
        ("the bound pod runs its last seconds", vec![ends("a", true), alive("b")], "a", None),
        ("the bound pod has ended", vec![ends("a", false), alive("b")], "a", Some("b")),
        ("the bound pod has failed", vec![failed("a"), alive("b")], "a", Some("b")),
        ("no pod lives", vec![ends("a", false), failed("b")], "a", None),
        ("another plugin's", vec![PodRow { selected: false, ..alive("a") }], "", None),
    ] {
        let keys: Vec<Key> = pods.iter().map(|pod| key(&pod.uid)).collect();
        let pods: Vec<(&Key, &PodRow)> = keys.iter().zip(&pods).collect();
        let found = choose(&pods, &BTreeSet::from([bound]), None, None);
        assert_eq!(found.map(|key| &*key.name), chosen, "{case}");
    }
}

#[test]
fn addresses_belong_to_the_virtual_machine() {
    let exists = VmState::Exists(UID.into());
    let recreated = VmState::Exists("another".into());
    let alive = pod("a", "n1");
    let gone: Option<PodRow> = None;
    let ending = Some(PodRow { life: PodLifecycle::Terminating, running: true, ..alive.clone() });
    let over = Some(PodRow { life: PodLifecycle::Over, ..alive.clone() });
    let keep = |uid: &str| Decision::Retain { keep: vec![key(uid)], remove_finalizer: false };
    for (case, vm_state, pod, bound, decision) in [
        ("stopped", &exists, &gone, "a", keep(A)),
        ("stopped, retained already", &exists, &gone, "", Decision::Nothing),
        ("completed", &exists, &over, "a", keep(A)),
        ("runs its last seconds", &exists, &ending, "a", Decision::Nothing),
        ("not listed yet", &VmState::Unknown, &gone, "a", keep(A)),
        ("deleted", &VmState::Gone, &gone, "", Decision::Release(vec![key(A)])),
        ("deleted, was running", &VmState::Gone, &gone, "a", Decision::Release(vec![key(A)])),
        ("deleted, runs its last seconds", &VmState::Gone, &ending, "a", Decision::Nothing),
        ("created again", &recreated, &gone, "", Decision::Release(vec![key(A)])),
        ("created again, the former pod runs", &recreated, &ending, "a", Decision::Nothing),
    ] {
        let (at, row) = (key(A), instance(A, bound, &vm()));
        let pods: Vec<&PodRow> = pod.iter().collect();
        assert_eq!(decide(vm_state, &pods, None, &[(&at, &row)]), decision, "{case}");
    }
}

#[test]
fn a_pod_gets_the_addresses_of_its_virtual_machine() {
    let exists = VmState::Exists(UID.into());
    let kept = |all: &[&str], family| {
        let addresses = all.iter().map(|address| address.parse().unwrap()).collect();
        Some(AddressSelector::Kept { addresses, network: "rack".into(), family })
    };
    let itself = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a", "controller": true});
    let half = |row: InstanceRow| InstanceRow { family: Some(IpFamily::DualStack), ..row };
    let reported = PodRow { addresses: vec![A.parse().unwrap()], ..pod("a", "n1") };
    for (case, pod, rows, selector) in [
        ("the first time", pod("a", "n1"), vec![], Some(AddressSelector::Any)),
        ("started again", pod("a", "n1"), vec![instance(A, "", &vm())], kept(&[A], IpFamily::V4)),
        (
            "started again, a pair",
            pod("a", "n1"),
            vec![instance(A, "", &vm()), instance(SIX, "", &vm())],
            kept(&[A, SIX], IpFamily::DualStack),
        ),
        ("bound to a former pod", pod("a", "n1"), vec![instance(A, "old", &vm())], kept(&[A], IpFamily::V4)),
        ("its own", pod("a", "n1"), vec![instance(A, "a", &vm())], None),
        (
            "being deleted while it lives",
            pod("a", "n1"),
            vec![InstanceRow { deleting: true, ..instance(A, "a", &vm()) }],
            None,
        ),
        (
            "its own, but not its virtual machine's",
            pod("a", "n1"),
            vec![instance(A, "a", &itself)],
            kept(&[A], IpFamily::V4),
        ),
        (
            "half of a pair",
            pod("a", "n1"),
            vec![half(instance(A, "a", &vm()))],
            Some(AddressSelector::Missing { family: IpFamily::V6, network: "rack".into() }),
        ),
        (
            "half of a pair, the other is retained",
            pod("a", "n1"),
            vec![half(instance(A, "a", &vm())), half(instance(SIX, "", &vm()))],
            kept(&[A, SIX], IpFamily::DualStack),
        ),
        (
            "reported by the kubelet",
            reported,
            vec![],
            Some(AddressSelector::Recover(vec![A.parse().unwrap()])),
        ),
    ] {
        let keys: Vec<Key> = rows.iter().map(|row| key(&row.address.to_string())).collect();
        let rows: Vec<(&Key, &InstanceRow)> = keys.iter().zip(&rows).collect();
        let found = match decide(&exists, &[&pod], Some(&pod), &rows) {
            Decision::Assign(decision) => Some(decision.selector),
            Decision::Nothing => None,
            other => panic!("{case}: {other:?}"),
        };
        assert_eq!(found, selector, "{case}");
    }
}

#[test]
fn two_addresses_of_one_family_become_one() {
    let exists = VmState::Exists(UID.into());
    let itself = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a", "controller": true});
    let alive = pod("a", "n1");
    for (case, second, kept, released) in [
        ("the pod's own stays", instance("10.0.0.2", "a", &itself), "10.0.0.2", A),
        ("both are retained", instance("10.0.0.2", "", &vm()), A, "10.0.0.2"),
    ] {
        let (one, two) = (key(A), key("10.0.0.2"));
        let first = instance(A, "", &vm());
        match decide(&exists, &[&alive], Some(&alive), &[(&one, &first), (&two, &second)]) {
            Decision::Assign(AssignDecision {
                selector: AddressSelector::Kept { addresses, .. },
                release,
                ..
            }) => {
                assert_eq!(
                    (addresses, release),
                    (vec![kept.parse().unwrap()], vec![key(released)]),
                    "{case}"
                );
            }
            other => panic!("{case}: {other:?}"),
        }
    }
}

/// Rack `rack` with nodes n1 and n2 and three addresses of each family; the virtual machine `web`.
fn state() -> ControllerState {
    let mut state = ControllerState::default();
    state.cluster.vms.retain = true;
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let network = object(
        "Network",
        "rack",
        json!({"type": "Underlay", "mode": "VLAN", "netID": 7, "nodeSelector": {"rack": "r1"}}),
    );
    state.set_network(&"rack".into(), serde_json::from_value(network).unwrap());
    for (name, version, cidr, start, end) in
        [("rack-v4", "4", "10.0.0.0/24", A, "10.0.0.3"), ("rack-v6", "6", "fd00::/112", SIX, "fd00::3")]
    {
        let range = json!({"version": version, "cidr": cidr, "start": start, "end": end});
        let subnet = object("Subnet", name, json!({"network": "rack", "range": range}));
        state.set_subnet(&name.into(), serde_json::from_value(subnet).unwrap());
    }
    for node in ["n1", "n2"] {
        let labels = [("rack".to_owned(), "r1".to_owned())].into();
        state.set_node(&node.into(), NodeRow { labels, ..NodeRow::default() });
    }
    state.begin_term(Queues::new(Duration::ZERO));
    state.cluster.vms.vms.begin();
    state.set_vm(&key("web"), VmRow { uid: UID.into(), deleting: false });
    assert!(state.cluster.vms.vms.end().is_empty());
    state
}

fn known_instance() -> VmInstanceRow {
    let instance = json!({"metadata": {"name": "web", "uid": "vmi", "ownerReferences": [vm()]}});
    VmInstanceRow::of(&serde_json::from_value(instance).unwrap(), &mut Interner::default())
}

fn plan(state: &mut ControllerState, key: &Key) -> Result<Plan, AllocationRefusal> {
    let policy = Policy { retain: false, ..policy() };
    state.plan_pod(key, &policy, 1, Timestamp::UNIX_EPOCH).swap_remove(0)
}

fn assignment(plan: Result<Plan, AllocationRefusal>) -> AssignPlan {
    match plan {
        Ok(Plan::Assign(assignment)) => *assignment,
        other => panic!("{other:?}"),
    }
}

fn of_web() -> Key {
    Key::new("default", "vm/web")
}

#[test]
fn a_stopped_virtual_machine_of_hybridnet_is_taken_over() {
    let mut state = state();
    state.set_instance(&key("10.0.0.2"), instance("10.0.0.2", "", &vm()));
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
    state.set_vm_instance(&key("web"), known_instance());
    state.set_pod(&key("launcher"), pod("launcher", "n2"));
    assert!(matches!(plan(&mut state, &key("launcher")), Ok(Plan::Nothing)), "the pod's key has no work");
    let given = assignment(plan(&mut state, &of_web()));
    let [assigned] = &given.granted.addresses[..] else { panic!("{given:?}") };
    assert_eq!((assigned.address.to_string().as_str(), assigned.rebind), ("10.0.0.2/24", true));
    assert_eq!(given.granted.mac, [2, 0x12, 0x34, 0, 0, 1]);
    assert_eq!((given.pod_key, given.vm.unwrap().uid), (key("launcher"), UID.into()));
}

#[test]
fn a_pod_waits_for_its_instance_and_for_the_bound_pod() {
    let mut state = state();
    state.set_pod(&key("one"), pod("one", "n1"));
    let refused = plan(&mut state, &key("one")).unwrap_err().to_string();
    assert!(refused.contains("VirtualMachineInstance web is not known"), "{refused}");
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
    state.set_vm_instance(&key("web"), known_instance());
    assert_eq!(assignment(plan(&mut state, &of_web())).pod_key, key("one"));
    state.set_instance(&key(A), instance(A, "one", &vm()));

    state.set_pod(&key("two"), pod("two", "n2"));
    let refused = plan(&mut state, &key("two")).unwrap_err().to_string();
    assert!(refused.contains("pod one has the addresses of VirtualMachine web"), "{refused}");
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
    // Its VirtualMachineInstance is deleted first: the pod keeps the addresses until its end.
    state.remove_vm_instance(&key("web"));
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
    assert!(matches!(plan(&mut state, &key("one")), Ok(Plan::Nothing)));
    state.set_vm_instance(&key("web"), known_instance());
    state.remove_pod(&key("one"));
    assert_eq!(assignment(plan(&mut state, &of_web())).pod_key, key("two"));
}

#[test]
fn pods_of_other_instances_are_plain() {
    // A VirtualMachineInstance without a VirtualMachine, and an API server without the kinds.
    for listed in [true, false] {
        let mut state = state();
        state.cluster.vms.no_instances = !listed;
        if listed {
            state.set_vm_instance(&key("web"), VmInstanceRow { vm: None, ..known_instance() });
        }
        state.set_pod(&key("one"), pod("one", "n1"));
        assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
        assert_eq!(assignment(plan(&mut state, &key("one"))).vm, None);
    }
}

#[test]
fn addresses_of_a_deleted_virtual_machine_are_released() {
    let mut state = state();
    state.set_instance(&key(A), instance(A, "", &vm()));
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
    state.remove_vm(&key("web"));
    match plan(&mut state, &of_web()) {
        Ok(Plan::ReleaseOrphans(orphans)) => {
            assert_eq!(orphans.vm, key("web"));
            assert_eq!(orphans.instances, [(Existing { key: key(A), uid: A.into() }, UID.into())]);
        }
        other => panic!("{other:?}"),
    }
    // Without the kind it is not known which virtual machines exist.
    state.cluster.vms.clear();
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));
}

/// The target's pod of a live migration.
fn target(uid: &str, node: &str) -> PodRow {
    let mut target = pod(uid, node);
    target.networking.labels.insert(label::MIGRATION_JOB.to_owned(), "job".to_owned());
    target
}

fn runs_on(node: &str) -> VmInstanceRow {
    VmInstanceRow { node: Some(node.into()), ..known_instance() }
}

/// As KubeVirt writes it when the target's pod of the live migration `job` is ready.
fn handed_over(node: &str, target: &str) -> VmInstanceRow {
    let migration = Some(HandedOver { job: "job".into(), target: target.into() });
    VmInstanceRow { migration, ..runs_on(node) }
}

/// The live migration `job` of the virtual machine.
fn begin_migration(state: &mut ControllerState) {
    let row = MigrationRow { uid: "job".into(), instance: "web".into(), is_running: true };
    state.set_vm_migration(&key("web-job"), Some(row));
}

fn redirects(plan: Result<Plan, AllocationRefusal>) -> Vec<(String, bool)> {
    match plan {
        Ok(Plan::Redirect(all)) => {
            all.into_iter().map(|change| (change.pod.pod_name, change.source.is_some())).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn binding_moves_at_the_end_of_a_live_migration() {
    let mut state = state();
    begin_migration(&mut state);
    state.set_vm_instance(&key("web"), runs_on("n1"));
    state.set_pod(&key("one"), pod("one", "n1"));
    let bound = instance(A, "one", &vm());
    state.set_instance(&key(A), bound.clone());
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));

    state.set_pod(&key("two"), target("two", "n2"));
    assert!(matches!(plan(&mut state, &key("two")), Ok(Plan::Nothing)), "it does not wait");
    assert_eq!(redirects(plan(&mut state, &of_web())), [("two".to_owned(), true)]);
    let reference =
        MigrationTarget { node_name: "n2".to_owned(), pod_name: "two".to_owned(), pod_uid: "two".to_owned() };
    let redirected = InstanceRow { version: 2, target: Some(Box::new(reference)), ..bound };
    state.set_instance(&key(A), redirected.clone());
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)));

    // The target fails: back to the source. The source ends, or the migration completes: to the target.
    state.set_pod(&key("two"), PodRow { failed: true, ..target("two", "n2") });
    assert_eq!(redirects(plan(&mut state, &of_web())), [("one".to_owned(), false)]);
    state.set_pod(&key("two"), target("two", "n2"));
    state.set_vm_instance(&key("web"), handed_over("n2", "two"));
    let given = assignment(plan(&mut state, &of_web()));
    assert_eq!((given.pod_key, given.granted.addresses[0].rebind), (key("two"), true));
    state.set_instance(&key(A), InstanceRow { version: 3, target: None, ..instance(A, "two", &vm()) });
    let moved = state.cluster.instance(&key(A)).unwrap().clone();
    state.set_instance(&key(A), InstanceRow { version: 4, node: Some("n2".into()), ..moved });
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)), "the source still runs");
}

/// KubeVirt's label of a target stays on the pod when the virtual machine runs in it.
#[test]
fn source_of_a_live_migration_is_no_target_of_the_next_one() {
    let mut state = state();
    begin_migration(&mut state);
    state.set_vm_instance(&key("web"), runs_on("n1"));
    state.set_pod(&key("one"), target("one", "n1"));
    state.set_pod(&key("two"), target("two", "n2"));
    let bound = InstanceRow { source_pod: Some("two".into()), ..instance(A, "one", &vm()) };
    state.set_instance(&key(A), bound);
    assert!(matches!(plan(&mut state, &of_web()), Ok(Plan::Nothing)), "it has left two");
    state.set_pod(&key("three"), target("three", "n2"));
    assert_eq!(redirects(plan(&mut state, &of_web())), [("three".to_owned(), true)]);
}

#[test]
fn target_gets_the_addresses_of_a_source_that_ended() {
    let mut state = state();
    state.set_vm_instance(&key("web"), runs_on("n1"));
    state.set_pod(&key("one"), PodRow { life: PodLifecycle::Over, ..pod("one", "n1") });
    state.set_pod(&key("two"), target("two", "n2"));
    state.set_instance(&key(A), instance(A, "one", &vm()));
    assert_eq!(assignment(plan(&mut state, &of_web())).pod_key, key("two"));
}

/// Each forged pod has the label of a target, and is on the node of the attacker's choice.
#[test]
fn only_a_pod_that_kubevirt_names_is_a_target() {
    let with_uid = |mut pod: PodRow, uid: &str| {
        if let Some(owner) = &mut pod.owner {
            owner.uid = uid.into();
        }
        pod
    };
    let start = || {
        let mut state = state();
        state.set_vm_instance(&key("web"), runs_on("n1"));
        state.set_pod(&key("one"), pod("one", "n1"));
        state.set_instance(&key(A), instance(A, "one", &vm()));
        state
    };
    let unchanged = |state: &mut ControllerState, case: &str| {
        assert!(matches!(plan(state, &of_web()), Ok(Plan::Nothing)), "{case}");
    };
    // Without a live migration the label means nothing, and neither does the name of the owner.
    let mut state = start();
    state.set_pod(&key("forged"), target("forged", "n2"));
    unchanged(&mut state, "no live migration");
    let refused = plan(&mut state, &key("forged")).unwrap_err().to_string();
    assert!(refused.contains("pod one has the addresses"), "{refused}");
    begin_migration(&mut state);
    state.set_pod(&key("forged"), with_uid(target("forged", "n2"), "guessed"));
    unchanged(&mut state, "the UID of another owner");
    let refused = plan(&mut state, &key("forged")).unwrap_err().to_string();
    assert!(refused.contains("has another UID"), "{refused}");

    // The live migration of another virtual machine, and one that is over.
    for (instance, is_running) in [("other", true), ("web", false)] {
        let mut state = start();
        let row = MigrationRow { uid: "job".into(), instance: instance.into(), is_running };
        state.set_vm_migration(&key("m"), Some(row));
        state.set_pod(&key("forged"), target("forged", "n2"));
        unchanged(&mut state, instance);
    }

    // KubeVirt names the target: a second pod with the label is none.
    let mut state = start();
    begin_migration(&mut state);
    state.set_vm_instance(&key("web"), handed_over("n1", "two"));
    state.set_pod(&key("forged"), target("forged", "n2"));
    unchanged(&mut state, "another pod is named");
    state.set_pod(&key("two"), target("two", "n2"));
    assert_eq!(redirects(plan(&mut state, &of_web())), [("two".to_owned(), true)]);
    // The end: a pod on the target's node whose name sorts first does not get the addresses.
    state.set_vm_instance(&key("web"), handed_over("n2", "two"));
    assert_eq!(assignment(plan(&mut state, &of_web())).pod_key, key("two"));
    state.set_vm_instance(&key("web"), runs_on("n2"));
    assert!(!matches!(plan(&mut state, &of_web()), Ok(Plan::Assign(_))), "no live migration is known");
}
