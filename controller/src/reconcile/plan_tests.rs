//! Plans over a whole state: granted addresses, texts of refusals, and requests without an answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use trunkline_api::interfaces::InterfaceName;
use trunkline_api::kept::TooLarge;
use trunkline_api::names::annotation;

use super::{AllocationRefusal, AssignPlan, Plan, PlannedInterface};
use crate::cluster::{Answer, InstanceRow, Key, NetworkingMetadata, NodeRow, Owner, PodLifecycle, PodRow};
use crate::reconcile::retention::Ownership;
use crate::reconcile::{network, node, subnet};
use crate::selection::Policy;
use crate::state::{ControllerState, PendingCreate, Queues};
use crate::testing::policy;

#[path = "interfaces_tests.rs"]
mod interfaces;

fn manifest<T: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value) -> T {
    serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

/// Rack r1 with node n1 and three addresses of each family, an overlay, and node n2 in the overlay
/// only.
fn state() -> ControllerState {
    let mut state = ControllerState::default();
    for (name, spec) in [
        ("rack", json!({"type": "Underlay", "mode": "VLAN", "netID": 7, "nodeSelector": {"rack": "r1"}})),
        ("over", json!({"type": "Overlay", "netID": 9})),
    ] {
        state.set_network(&name.into(), manifest("Network", name, spec));
    }
    for (name, network, version, cidr, start, end) in [
        ("rack-v4", "rack", "4", "10.0.0.0/24", "10.0.0.1", "10.0.0.3"),
        ("rack-v6", "rack", "6", "fd00::/112", "fd00::1", "fd00::3"),
        ("over-v4", "over", "4", "10.9.0.0/16", "10.9.0.1", "10.9.255.254"),
    ] {
        let range = json!({"version": version, "cidr": cidr, "start": start, "end": end});
        let spec = json!({"network": network, "range": range});
        state.set_subnet(&name.into(), manifest("Subnet", name, spec));
    }
    for (name, rack) in [("n1", "r1"), ("n2", "other")] {
        let labels = [("rack".to_owned(), rack.to_owned())].into();
        state.set_node(&name.into(), NodeRow { labels, ..NodeRow::default() });
    }
    state.begin_term(Queues::new(Duration::ZERO));
    state
}

fn pod(node: &str, kind: &str, annotations: &[(&str, &str)]) -> PodRow {
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let owner =
        Owner { api_version: "apps/v1".into(), kind: kind.into(), name: "web".into(), uid: "set".into() };
    PodRow {
        uid: "uid".into(),
        node: Some(node.into()),
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

/// The time of all plans.
fn now() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap()
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

impl ControllerState {
    /// The plan for a pod's `eth0`.
    fn plan_eth0(
        &mut self,
        key: &Key,
        policy: &Policy,
        random: u32,
        now: Timestamp,
    ) -> Result<Plan, AllocationRefusal> {
        self.plan_pod(key, policy, random, now).swap_remove(0)
    }
}

fn plan(state: &mut ControllerState, name: &str, pod: PodRow) -> Result<Plan, AllocationRefusal> {
    state.set_pod(&key(name), pod);
    state.plan_eth0(&key(name), &policy(), 1, now())
}

fn assignment(plan: Result<Plan, AllocationRefusal>) -> AssignPlan {
    match plan {
        Ok(Plan::Assign(assignment)) => *assignment,
        other => panic!("{other:?}"),
    }
}

fn addresses(assignment: &AssignPlan) -> Vec<String> {
    assignment.granted.addresses.iter().map(|assigned| assigned.address.to_string()).collect()
}

/// Adds the rows of all planned writes, as if the API server had accepted each.
fn answered(state: &mut ControllerState, name: &str, assignment: &AssignPlan) {
    for assigned in &assignment.granted.addresses {
        let address = assigned.address.addr();
        let row = InstanceRow {
            uid: "instance".into(),
            version: 1,
            network: assignment.network.name().into(),
            subnet: Arc::clone(&assigned.subnet),
            address,
            mac: Some(assignment.granted.mac),
            node: assignment.pod.node.clone(),
            attached: None,
            pod: Some(name.into()),
            pod_uid: Arc::clone(&assignment.pod.uid),
            owner: assignment.pod.owner.clone(),
            family: Some(assignment.family),
            outlives_owner: false,
            of_vm: false,
            target: None,
            source_pod: None,
            retention: None,
            retained_since: None,
            interface: assignment.interface.other(),
            other_interfaces: match &assignment.interface {
                PlannedInterface::First(others) => {
                    others.iter().map(|one| one.name.as_str().into()).collect()
                }
                PlannedInterface::Other(_) => [].into(),
            },
            deleting: false,
            finalizer: Some(0),
        };
        state.set_instance(&instance(address), row);
    }
}

fn instance(address: IpAddr) -> Key {
    key(&crate::ipam::instance_name(address))
}

#[test]
fn pod_gets_the_selected_network_and_family() {
    for (case, node, annotations, network, given) in [
        ("defaults", "n1", &[][..], "rack", &["10.0.0.1/24"][..]),
        ("family", "n1", &[(annotation::IP_FAMILY, "DualStack")], "rack", &["10.0.0.1/24", "fd00::1/112"]),
        ("type", "n1", &[(annotation::NETWORK_TYPE, "Overlay")], "over", &["10.9.0.1/16"]),
        ("network", "n2", &[(annotation::SPECIFIED_NETWORK, "over")], "over", &["10.9.0.1/16"]),
        ("subnet", "n1", &[(annotation::SPECIFIED_SUBNET, "rack-v4")], "rack", &["10.0.0.1/24"]),
    ] {
        let mut state = state();
        let assignment = assignment(plan(&mut state, "p", pod(node, "ReplicaSet", annotations)));
        assert_eq!(
            (assignment.network.name(), addresses(&assignment).as_slice()),
            (network, &given.iter().map(ToString::to_string).collect::<Vec<_>>()[..]),
            "{case}"
        );
    }
    // The namespace's annotations apply only if the pod has none. The two are never combined.
    let mut state = state();
    let annotations = [(annotation::NETWORK_TYPE.to_owned(), "Overlay".to_owned())].into();
    state.set_namespace(
        &"default".into(),
        NetworkingMetadata { annotations, ..NetworkingMetadata::default() }.into(),
    );
    assert_eq!(assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[]))).network.name(), "over");
    let own = assignment(plan(&mut state, "q", pod("n1", "ReplicaSet", &[(annotation::IP_FAMILY, "IPv6")])));
    assert_eq!((own.network.name(), addresses(&own)), ("rack", vec!["fd00::1/112".to_owned()]));
}

/// The agent decides which of these prefixes are allowed: the controller only knows the current
/// Network.
#[test]
fn extra_prefixes_come_from_the_pod_only() {
    const EXTRA: (&str, &str) = (annotation::EXTRA_PREFIXES, "fd00:9::/64, 10.9.0.0/16");
    let shown = |assignment: &AssignPlan| -> Vec<String> {
        assignment.extra_prefixes.iter().map(ToString::to_string).collect()
    };
    let mut state = state();
    state.set_namespace(
        &"default".into(),
        NetworkingMetadata { annotations: [EXTRA].map(owned).into(), ..NetworkingMetadata::default() }.into(),
    );
    assert!(shown(&assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[])))).is_empty());
    let given = assignment(plan(&mut state, "q", pod("n1", "ReplicaSet", &[EXTRA])));
    assert_eq!(shown(&given), ["10.9.0.0/16", "fd00:9::/64"]);
    answered(&mut state, "q", &given);
    // An annotation of a running pod changes nothing.
    let other = pod("n1", "ReplicaSet", &[(annotation::EXTRA_PREFIXES, "0.0.0.0/0")]);
    assert!(matches!(plan(&mut state, "q", other), Ok(Plan::Nothing)));
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn refusal_names_the_fix() {
    for (node, annotations, reason, text) in [
        ("n2", &[][..], "network", "no Underlay Network selects node n2"),
        ("n3", &[], "network", "node n3 is not known"),
        ("n1", &[(annotation::SPECIFIED_NETWORK, "none")], "annotation", "there is no Network none"),
        ("n2", &[(annotation::SPECIFIED_NETWORK, "rack")], "network", "does not belong to Network rack"),
        (
            "n1",
            &[(annotation::NETWORK_TYPE, "GlobalBGP")],
            "network",
            "there is no Network of type GlobalBGP",
        ),
        ("n1", &[(annotation::EXTRA_PREFIXES, "10.9.0.1")], "annotation", "has no length: write 10.9.0.1/32"),
        ("n1", &[(annotation::IP_FAMILY, "v5")], "annotation", "write IPv4, IPv6 or DualStack"),
        (
            "n1",
            &[(annotation::SPECIFIED_NETWORK, "rack"), (annotation::SPECIFIED_SUBNET, "over-v4")],
            "annotation",
            "belongs to Network over and not to rack",
        ),
    ] {
        let mut state = state();
        let refused = plan(&mut state, "p", pod(node, "ReplicaSet", annotations)).unwrap_err();
        assert_eq!(refused.reason(), reason, "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

#[test]
fn waiting_pod_gets_the_next_free_address() {
    let mut state = state();
    for name in ["a", "b", "c"] {
        let given = assignment(plan(&mut state, name, pod("n1", "ReplicaSet", &[])));
        answered(&mut state, name, &given);
    }
    // A pod gets both addresses of a pair or none: nothing is set aside in the family with free
    // addresses.
    let both = plan(&mut state, "both", pod("n1", "ReplicaSet", &[(annotation::IP_FAMILY, "DualStack")]));
    assert_eq!(both.unwrap_err().reason(), "exhausted");
    let usage = state.term.as_ref().unwrap().ipam.network_usage("rack");
    assert_eq!((usage.v4.available, usage.v6.available), (0, 3));
    let status = network::status(&mut state, "rack", &usage);
    assert_eq!(status.statistics.unwrap().used, 3);
    assert_eq!(
        (status.node_list, status.subnet_list),
        (vec!["n1".to_owned()], vec!["rack-v4".to_owned(), "rack-v6".to_owned()])
    );
    assert_eq!(subnet::status(&state, "rack-v4").unwrap().last_allocated_ip, "10.0.0.3");
    let labels = node::changes(&state, state.cluster.node("n1").unwrap()).labels;
    assert_eq!(labels["networking.alibaba.com/ipv4-address-quota"], "empty");
    assert_eq!(labels["networking.alibaba.com/ipv6-address-quota"], "nonempty");
    assert_eq!(labels["networking.alibaba.com/underlay-network-attachment"], "true");

    let queues = Arc::clone(&state.term.as_ref().unwrap().queues);
    assert!(state.term.as_ref().unwrap().waiting.contains(&key("both")));
    let before = queues.pods.depth();
    state.remove_instance(&instance("10.0.0.2".parse().unwrap()), 2);
    assert!(queues.pods.depth() >= before);
    assert!(
        !state.term.as_ref().unwrap().waiting.contains(&key("both")),
        "the pod is queued and \
        no longer waits"
    );
    let given = assignment(state.plan_eth0(&key("both"), &policy(), 1, now()));
    assert_eq!(addresses(&given), ["10.0.0.2/24", "fd00::1/112"]);
}

#[test]
fn free_address_of_a_deleted_pod_wakes_the_next_one() {
    let mut state = state();
    for name in ["a", "b", "c"] {
        let given = assignment(plan(&mut state, name, pod("n1", "ReplicaSet", &[])));
        answered(&mut state, name, &given);
    }
    for name in ["d", "e", "f"] {
        assert!(plan(&mut state, name, pod("n1", "ReplicaSet", &[])).is_err());
    }
    let waits = |state: &ControllerState, name| state.term.as_ref().unwrap().waiting.contains(&key(name));
    state.remove_instance(&instance("10.0.0.2".parse().unwrap()), 2);
    assert_eq!(["d", "e", "f"].map(|name| waits(&state, name)), [false, true, true]);
    state.remove_pod(&key("d"));
    assert!(matches!(state.plan_eth0(&key("d"), &policy(), 1, now()), Ok(Plan::Nothing)));
    assert_eq!(["e", "f"].map(|name| waits(&state, name)), [false, true]);
    let given = assignment(state.plan_eth0(&key("e"), &policy(), 1, now()));
    assert_eq!(addresses(&given), ["10.0.0.2/24"]);
    // An address that a pod takes wakes nobody else, and neither does one that was taken meanwhile.
    assert!(waits(&state, "f"));
    state.remove_instance(&instance("10.0.0.3".parse().unwrap()), 2);
    assert!(!waits(&state, "f"));
    let taken = assignment(plan(&mut state, "g", pod("n1", "ReplicaSet", &[])));
    assert_eq!(addresses(&taken), ["10.0.0.3/24"]);
    assert!(state.plan_eth0(&key("f"), &policy(), 1, now()).is_err() && waits(&state, "f"));
}

#[test]
fn released_address_wakes_a_pod_that_may_use_its_subnet() {
    let mut state = state();
    for (name, cidr, namespaces) in
        [("one", "10.1.0.0/24", json!([])), ("two", "10.2.0.0/24", json!(["shop"]))]
    {
        let address = cidr.replace("0/24", "1");
        let range = json!({"version": "4", "cidr": cidr, "start": address, "end": address});
        let config = json!({"private": true, "allowedNamespaces": namespaces});
        let spec = json!({"network": "rack", "range": range, "config": config});
        state.set_subnet(&name.into(), manifest("Subnet", name, spec));
    }
    let named = |subnets| pod("n1", "ReplicaSet", &[(annotation::SPECIFIED_SUBNET, subnets)]);
    let first = assignment(plan(&mut state, "first", named("two,one")));
    assert_eq!(addresses(&first), ["10.1.0.1/24"], "subnet two is for another namespace");
    answered(&mut state, "first", &first);
    for name in ["a", "b", "c"] {
        let given = assignment(plan(&mut state, name, pod("n1", "ReplicaSet", &[])));
        answered(&mut state, name, &given);
    }
    for (name, wanted) in
        [("d", pod("n1", "ReplicaSet", &[])), ("e", named("two,one")), ("f", named("rack-v4,one"))]
    {
        assert!(plan(&mut state, name, wanted).is_err(), "{name}");
    }
    let error = plan(&mut state, "g", named("two")).unwrap_err();
    assert_eq!(error.reason(), "address");
    let waiting = |state: &ControllerState| -> Vec<String> {
        let waiting = &state.term.as_ref().unwrap().waiting;
        let mut names: Vec<String> = waiting.iter().map(|key| key.name.to_string()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(waiting(&state), ["d", "e", "f", "g"]);
    // The first pod in the queue waits for another subnet.
    state.remove_instance(&instance("10.1.0.1".parse().unwrap()), 2);
    assert_eq!(waiting(&state), ["d", "f", "g"]);
    state.remove_instance(&instance("10.0.0.2".parse().unwrap()), 2);
    assert_eq!(waiting(&state), ["f", "g"]);
    state.remove_instance(&instance("10.0.0.3".parse().unwrap()), 2);
    assert_eq!(waiting(&state), ["g"]);
    // A change of the subnet helps the pods that it refused.
    let range = json!({"version": "4", "cidr": "10.2.0.0/24", "start": "10.2.0.1", "end": "10.2.0.1"});
    let open = json!({"network": "rack", "range": range, "config": {"private": true}});
    state.set_subnet(&"two".into(), manifest("Subnet", "two", open));
    state.term.as_mut().unwrap().queue_waiting();
    assert!(waiting(&state).is_empty());
    assert_eq!(addresses(&assignment(state.plan_eth0(&key("g"), &policy(), 1, now()))), ["10.2.0.1/24"]);
}

#[test]
fn older_of_two_networks_for_a_node_is_served() {
    let mut state = state();
    let mut network = |name: &str, made: &str, spec: Value| {
        let mut network: trunkline_api::resources::Network = manifest("Network", name, spec);
        network.metadata.creation_timestamp = Some(made.to_owned());
        state.set_network(&name.into(), network);
    };
    let rack = |id: u32| json!({"type": "Underlay", "netID": id, "nodeSelector": {"rack": "r1"}});
    network("rack", "2026-01-01T00:00:00Z", rack(7));
    network("another", "2026-01-01T00:00:01Z", rack(8));
    network("over", "2026-01-01T00:00:00Z", json!({"type": "Overlay", "netID": 9}));
    network("also-over", "2026-01-01T00:00:01Z", json!({"type": "Overlay", "netID": 10}));
    for (pod, network) in [
        (pod("n1", "ReplicaSet", &[]), "rack"),
        (pod("n2", "ReplicaSet", &[(annotation::NETWORK_TYPE, "Overlay")]), "over"),
    ] {
        assert_eq!(assignment(plan(&mut state, "p", pod)).network.name(), network);
    }
}

#[test]
fn overlapping_subnet_is_served_once_the_other_is_gone() {
    let spec = |cidr: &str, start: &str, end: &str| json!({"network": "rack", "range": {"version": "4", "cidr": cidr, "start": start, "end": end}});
    let mut state = state();
    state.set_subnet(&"x".into(), manifest("Subnet", "x", spec("10.0.0.0/24", "10.0.0.3", "10.0.0.4")));
    let silent = |state: &ControllerState| state.term.as_ref().unwrap().silent.get("x").cloned();
    let fault = silent(&state).unwrap().to_string();
    assert!(fault.contains("overlaps 10.0.0.1 to 10.0.0.3 of subnet rack-v4"), "{fault}");
    for name in ["a", "b", "c"] {
        let given = assignment(plan(&mut state, name, pod("n1", "ReplicaSet", &[])));
        answered(&mut state, name, &given);
    }
    assert!(plan(&mut state, "d", pod("n1", "ReplicaSet", &[])).is_err());
    state.remove_subnet(&"rack-v4".into());
    assert_eq!(silent(&state), None);
    state.term.as_mut().unwrap().queue_waiting();
    assert!(state.term.as_ref().unwrap().waiting.is_empty(), "the waiting pod is queued again");
    let given = assignment(state.plan_eth0(&key("d"), &policy(), 2, now()));
    assert_eq!(addresses(&given), ["10.0.0.4/24"], "10.0.0.3 is still in use");
}

#[test]
fn a_stateful_pod_gets_its_address_and_mac_back() {
    let mut state = state();
    let first = assignment(plan(&mut state, "web-0", pod("n1", "StatefulSet", &[])));
    answered(&mut state, "web-0", &first);
    state.remove_pod(&key("web-0"));
    match state.plan_eth0(&key("web-0"), &policy(), 2, now()) {
        Ok(Plan::Retain { keep, remove_finalizer: None }) => assert_eq!(keep.len(), 1),
        other => panic!("{other:?}"),
    }
    let again = PodRow { uid: "second".into(), ..pod("n1", "StatefulSet", &[]) };
    let second = assignment(plan(&mut state, "web-0", again));
    assert_eq!(second.granted.mac, first.granted.mac);
    assert_eq!(addresses(&second), addresses(&first));
    assert!(
        second.granted.addresses[0].rebind,
        "its IPInstance is bound, and no other one is \
        created"
    );
}

#[test]
fn unanswered_write_is_repeated_or_settled() {
    let unanswered = |state: &mut ControllerState, given: &AssignPlan| {
        let unanswered = PendingCreate {
            pod_uid: Arc::clone(&given.pod.uid),
            interface: None,
            network: Arc::clone(&given.network),
            granted: given.granted.clone(),
            family: given.family,
        };
        state.term.as_mut().unwrap().add_pending(&key("p"), unanswered);
    };
    let mut state = state();
    let first = assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[])));
    unanswered(&mut state, &first);
    let second = assignment(state.plan_eth0(&key("p"), &policy(), 2, now()));
    assert_eq!(
        second.granted, first.granted,
        "the same request again: a create of the same name allocates no second address"
    );
    unanswered(&mut state, &first);
    state.remove_pod(&key("p"));
    assert!(matches!(state.plan_eth0(&key("p"), &policy(), 3, now()), Ok(Plan::Settle(_))));
}

/// A running pod, with the address that its kubelet reports.
fn reporting(node: &str, address: &str) -> PodRow {
    PodRow { started: true, addresses: vec![address.parse().unwrap()], ..pod(node, "ReplicaSet", &[]) }
}

#[test]
fn kubelet_cannot_claim_foreign_addresses() {
    let mut state = state();
    let given = assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[])));
    answered(&mut state, "p", &given);
    let at = instance("10.0.0.1".parse().unwrap());
    let row = state.cluster.instance(&at).unwrap().clone();
    for (node, address, words) in [
        ("n1", "10.0.0.1", "an IPInstance of namespace default has it"),
        ("n1", "10.9.0.1", "of Network over, the pod is in Network rack"),
        ("n2", "10.0.0.2", "no Underlay Network selects node n2"),
    ] {
        let refused = plan(&mut state, "q", reporting(node, address)).unwrap_err();
        assert!(refused.to_string().contains(words), "{address} on {node}: {refused}");
    }
    // Retained for the next pod of its name, in the same namespace.
    state.set_instance(&at, InstanceRow { version: 2, node: None, pod_uid: "".into(), ..row });
    let refused = plan(&mut state, "q", reporting("n1", "10.0.0.1")).unwrap_err();
    assert!(refused.to_string().contains("an IPInstance of namespace default has it"), "{refused}");
    let waits = PodRow { started: false, ..reporting("n1", "10.0.0.2") };
    assert!(plan(&mut state, "q", waits).unwrap_err().to_string().contains("not Running yet"));
    assert_eq!(addresses(&assignment(plan(&mut state, "q", reporting("n1", "10.0.0.2")))), ["10.0.0.2/24"]);
}

#[test]
fn running_pod_keeps_its_address_after_etcd_restore() {
    let mut state = state();
    let running = |address: &str| reporting("n1", address);
    let given = assignment(plan(&mut state, "p", running("10.0.0.2")));
    assert_eq!(addresses(&given), ["10.0.0.2/24"]);
    assert!(!given.granted.addresses[0].rebind);
    // A pod whose address comes from another plugin, from the time before Trunkline, is ignored.
    assert!(matches!(plan(&mut state, "q", running("192.0.2.1")), Ok(Plan::Nothing)));
    // In a new list, an earlier version of an object is valid. Outside a list, an earlier version
    // is a late event and is ignored.
    answered(&mut state, "p", &given);
    let at = instance("10.0.0.2".parse().unwrap());
    let row = state.cluster.instance(&at).unwrap().clone();
    state.set_instance(&at, InstanceRow { version: 0, node: None, ..row.clone() });
    assert_eq!(state.cluster.instance(&at), Some(&row));
    state.cluster.instances.begin();
    state.set_instance(&at, InstanceRow { version: 0, node: None, ..row });
    assert_eq!(state.cluster.instance(&at).unwrap().node, None);
}

/// The planned assignments of all interfaces.
fn assignments(plans: Vec<Result<Plan, AllocationRefusal>>) -> Vec<AssignPlan> {
    plans.into_iter().map(assignment).collect()
}

#[test]
fn each_interface_has_its_own_addresses() {
    let mut state = state();
    let list = r#"[{"name": "net1", "network": "over"},
                   {"name": "net2", "subnet": "rack-v4", "addresses": ["10.0.0.3"], "macs": ["02:00:00:00:00:09"],
                    "defaultRoute": true, "routes": ["10.80.0.0/12"]}]"#;
    let annotations = [(annotation::INTERFACES, list)];
    state.set_pod(&key("p"), pod("n1", "ReplicaSet", &annotations));
    let given = assignments(state.plan_pod(&key("p"), &policy(), 1, now()));
    let all: Vec<_> = given.iter().map(addresses).collect();
    assert_eq!(all, [["10.0.0.1/24"], ["10.9.0.1/16"], ["10.0.0.3/24"]]);
    assert_eq!(given[0].interface, PlannedInterface::First(InterfaceName::read_list("net1,net2")));
    let PlannedInterface::Other(settings) = &given[2].interface else { panic!("{:?}", given[2]) };
    assert!(settings.name == "net2" && settings.default_route && settings.routes.len() == 1);
    assert_eq!(given[2].granted.mac, [2, 0, 0, 0, 0, 9]);
    assert_ne!(given[0].granted.mac, given[1].granted.mac);

    // Each interface is complete by itself.
    answered(&mut state, "p", &given[0]);
    answered(&mut state, "p", &given[2]);
    let plans = state.plan_pod(&key("p"), &policy(), 1, now());
    assert!(
        matches!(plans.as_slice(), [Ok(Plan::Nothing), Ok(Plan::Assign(_)), Ok(Plan::Nothing)]),
        "{plans:?}"
    );
    answered(&mut state, "p", &given[1]);
    // A later change of the annotation changes nothing.
    state.set_pod(&key("p"), pod("n1", "ReplicaSet", &[]));
    let plans = state.plan_pod(&key("p"), &policy(), 1, now());
    assert!(plans.len() == 3 && plans.iter().all(|plan| matches!(plan, Ok(Plan::Nothing))), "{plans:?}");
    state.remove_pod(&key("p"));
    let plans = state.plan_pod(&key("p"), &policy(), 1, now());
    assert!(plans.iter().all(|plan| matches!(plan, Ok(Plan::Release(all)) if all.len() == 1)), "{plans:?}");
}

#[test]
fn interfaces_of_a_stateful_pod_keep_their_addresses() {
    let mut state = state();
    let list = r#"[{"name": "net1", "network": "over"}]"#;
    let web = || pod("n1", "StatefulSet", &[(annotation::INTERFACES, list)]);
    state.set_pod(&key("web-0"), web());
    let given = assignments(state.plan_pod(&key("web-0"), &policy(), 1, now()));
    let first: Vec<_> = given.iter().map(addresses).collect();
    given.iter().for_each(|given| answered(&mut state, "web-0", given));
    state.remove_pod(&key("web-0"));
    let plans = state.plan_pod(&key("web-0"), &policy(), 1, now());
    assert!(plans.iter().all(|plan| matches!(plan, Ok(Plan::Retain { keep, .. }) if keep.len() == 1)));
    for given in &given {
        let at = instance(given.granted.addresses[0].address.addr());
        let row = state.cluster.instance(&at).unwrap().clone();
        state.set_instance(&at, InstanceRow { version: 2, node: None, pod_uid: "".into(), ..row });
    }
    state.set_pod(&key("web-0"), PodRow { uid: "next".into(), ..web() });
    let next = assignments(state.plan_pod(&key("web-0"), &policy(), 1, now()));
    assert_eq!(next.iter().map(addresses).collect::<Vec<_>>(), first);
    assert!(next.iter().all(|given| given.granted.addresses[0].rebind));
}

#[test]
fn unreadable_list_of_interfaces_leaves_the_pod_without_addresses() {
    let mut state = state();
    let error =
        plan(&mut state, "p", pod("n1", "ReplicaSet", &[(annotation::INTERFACES, "net1")])).unwrap_err();
    assert!(error.to_string().contains("metadata.annotations[networking.alibaba.com/interfaces]"), "{error}");
}

#[test]
fn answer_during_a_list_leaves_no_row_of_a_deleted_instance() {
    let mut state = state();
    let given = assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[])));
    answered(&mut state, "p", &given);
    let at = instance("10.0.0.1".parse().unwrap());
    let row = state.cluster.instance(&at).unwrap().clone();
    let deleted = InstanceRow { version: 2, deleting: true, ..row.clone() };
    let end = |state: &mut ControllerState| {
        for key in state.cluster.instances.end() {
            state.remove_instance(&key, u64::MAX);
        }
    };
    // The object ends after the answer to its DELETE, and before the API server makes the list.
    state.cluster.instances.begin();
    state.learn_instance(&at, deleted.clone(), Answer::Changed);
    assert!(state.cluster.instance(&at).unwrap().deleting);
    end(&mut state);
    assert_eq!(state.cluster.instance(&at), None);
    // The same if it was also created since the list began.
    state.cluster.instances.begin();
    state.learn_instance(&at, InstanceRow { version: 3, ..row.clone() }, Answer::Created);
    state.learn_instance(&at, InstanceRow { version: 4, ..deleted.clone() }, Answer::Changed);
    end(&mut state);
    assert_eq!(state.cluster.instance(&at), None);
    // A created one stays if the list is older.
    state.cluster.instances.begin();
    state.learn_instance(&at, InstanceRow { version: 5, ..row.clone() }, Answer::Created);
    end(&mut state);
    assert_eq!(state.cluster.instance(&at).unwrap().version, 5);
    // A late answer creates no row, and replaces no later one.
    state.learn_instance(&at, InstanceRow { version: 4, node: None, ..row.clone() }, Answer::Changed);
    assert_eq!(state.cluster.instance(&at).unwrap().version, 5);
    state.remove_instance(&at, 6);
    state.learn_instance(&at, InstanceRow { version: 6, ..deleted }, Answer::Changed);
    assert_eq!(state.cluster.instance(&at), None);
}

/// State with a retained address of `web-0`, and the state of its row.
fn retained(
    state: &mut ControllerState,
    annotations: &[(&str, &str)],
    change: impl Fn(&mut InstanceRow),
) -> Key {
    let given = assignment(plan(state, "web-0", pod("n1", "StatefulSet", annotations)));
    answered(state, "web-0", &given);
    state.remove_pod(&key("web-0"));
    let instance = instance(given.granted.addresses[0].address.addr());
    let row = state.cluster.instance(&instance).unwrap().clone();
    let mut row = InstanceRow { node: None, pod_uid: "".into(), version: 2, ..row };
    row.retained_since = Some(now());
    change(&mut row);
    state.set_instance(&instance, row);
    instance
}

fn set_retention(state: &mut ControllerState, retention: &str) {
    let range = json!({"version": "4", "cidr": "10.0.0.0/24", "start": "10.0.0.1", "end": "10.0.0.3"});
    let spec = json!({"network": "rack", "range": range, "config": {"retention": retention}});
    state.set_subnet(&"rack-v4".into(), manifest("Subnet", "rack-v4", spec));
}

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

#[test]
fn retained_address_is_released_when_its_time_is_over() {
    let outlives = |row: &mut InstanceRow| row.outlives_owner = true;
    for (case, subnet, own, seconds, over) in [
        ("no retention", "", None, 1 << 36, false),
        ("the subnet's, not over", "72h", None, 259_199, false),
        ("the subnet's, over", "72h", None, 259_200, true),
        ("never", "never", None, 1 << 36, false),
        ("the pod's before the subnet's: longer", "1h", Some("2h"), 3_600, false),
        ("the pod's before the subnet's: shorter", "2h", Some("1h"), 3_600, true),
        ("the pod's before the subnet's: never", "1h", Some("never"), 1 << 36, false),
        ("only the pod's", "", Some("10s"), 10, true),
        ("the end of time", "999999d", None, 1 << 35, false),
    ] {
        let mut state = state();
        set_retention(&mut state, subnet);
        let own = own.map(|own| own.parse().unwrap());
        let key_of = retained(&mut state, &[], |row| {
            row.retention = own;
            row.outlives_owner = !subnet.is_empty() || own.is_some();
        });
        match state.plan_eth0(&key("web-0"), &policy(), 1, later(seconds)) {
            Ok(Plan::Nothing) => assert!(!over, "{case}"),
            Ok(Plan::Expire(expired)) => {
                assert!(over, "{case}");
                assert_eq!((&expired[0].instance.key, expired[0].version), (&key_of, 2), "{case}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
    // A pod of the name gets its address back, even after the time.
    let mut state = state();
    set_retention(&mut state, "1h");
    retained(&mut state, &[], outlives);
    state.set_pod(&key("web-0"), PodRow { uid: "next".into(), ..pod("n1", "StatefulSet", &[]) });
    let given = assignment(state.plan_eth0(&key("web-0"), &policy(), 1, later(7_200)));
    assert!(given.granted.addresses[0].rebind);
    // A pod that has ended, but still exists, is no pod.
    let mut state = self::state();
    set_retention(&mut state, "1h");
    retained(&mut state, &[], outlives);
    let over = PodRow { life: PodLifecycle::Over, ..pod("n1", "StatefulSet", &[]) };
    state.set_pod(&key("web-0"), over);
    let planned = state.plan_eth0(&key("web-0"), &policy(), 1, later(7_200));
    assert!(matches!(planned, Ok(Plan::Expire(_))), "{planned:?}");
}

#[test]
fn expiring_address_goes_to_no_pod() {
    let mut state = state();
    set_retention(&mut state, "1h");
    let instance = retained(&mut state, &[], |row| row.outlives_owner = true);
    let expire = |state: &mut ControllerState| state.plan_eth0(&key("web-0"), &policy(), 1, later(3_600));
    assert!(matches!(expire(&mut state), Ok(Plan::Expire(_))));
    let named = pod(
        "n1",
        "StatefulSet",
        &[(annotation::SPECIFIED_SUBNET, "rack-v4"), (annotation::IP_POOL, "10.0.0.9,10.0.0.1")],
    );
    let refusal = plan(&mut state, "other-1", named.clone()).unwrap_err().to_string();
    assert!(refusal.contains("about to be released, because its retention is over"), "{refusal}");
    // The deletion failed, and the retention was prolonged: the address is available again.
    set_retention(&mut state, "never");
    assert!(matches!(expire(&mut state), Ok(Plan::Nothing)));
    let given = assignment(plan(&mut state, "other-1", named));
    assert!(given.granted.addresses[0].rebind);
    // Now a pod is about to get it.
    set_retention(&mut state, "1h");
    assert!(matches!(expire(&mut state), Ok(Plan::Nothing)));
    state.remove_instance(&instance, 3);
    assert_eq!(state.term.as_ref().unwrap().ipam.holder("10.0.0.1".parse().unwrap()).unwrap().0, "default");
}

#[test]
fn instances_follow_a_change_of_the_retention() {
    let mut state = state();
    let instance = retained(&mut state, &[], |row| row.retained_since = None);
    let planned = |state: &mut ControllerState| match state.plan_eth0(&key("web-0"), &policy(), 1, now()) {
        Ok(Plan::Amend(amendments)) => Some(amendments[0].clone()),
        Ok(Plan::Nothing) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(planned(&mut state), None);
    let queued = |state: &mut ControllerState| {
        let queues = std::mem::replace(&mut state.term.as_mut().unwrap().queues, Queues::new(Duration::ZERO));
        queues.pods.depth()
    };
    queued(&mut state);
    set_retention(&mut state, "1h");
    assert_eq!(queued(&mut state), 1, "the pod's name is queued");
    let owner = state.cluster.instance(&instance).unwrap().owner.clone().unwrap();
    let amendment = planned(&mut state).unwrap();
    assert_eq!(
        (amendment.starts_clock, amendment.ownership),
        (true, Some(Ownership::Recorded(owner.clone())))
    );
    let row = state.cluster.instance(&instance).unwrap().clone();
    let row = InstanceRow { retained_since: Some(now()), outlives_owner: true, version: 3, ..row };
    state.set_instance(&instance, row);
    assert_eq!(planned(&mut state), None);
    set_retention(&mut state, "");
    let amendment = planned(&mut state).unwrap();
    assert_eq!((amendment.starts_clock, amendment.ownership), (false, Some(Ownership::Owned(owner))));
    // The next leader finds the clock in the IPInstance.
    set_retention(&mut state, "1h");
    state.begin_term(Queues::new(Duration::ZERO));
    assert_eq!(planned(&mut state), None);
    let planned = state.plan_eth0(&key("web-0"), &policy(), 1, later(3_600));
    assert!(matches!(planned, Ok(Plan::Expire(_))), "{planned:?}");
}

#[test]
fn a_pod_with_too_large_annotations_gets_no_address() {
    let mut state = state();
    let mut large = pod("n1", "ReplicaSet", &[]);
    let too_large = Some(TooLarge { octets: 40_000, bound: 32_768 });
    large.networking.too_large = too_large;
    let refused = plan(&mut state, "web-1", large).unwrap_err();
    assert_eq!(refused.reason(), "annotation");
    assert!(refused.to_string().contains("40000 octets are set, and at most 32768"), "{refused}");
    let namespace = NetworkingMetadata { too_large, ..NetworkingMetadata::default() };
    state.set_namespace(&"default".into(), namespace.into());
    let refused = plan(&mut state, "web-2", pod("n1", "ReplicaSet", &[])).unwrap_err();
    assert!(refused.to_string().starts_with("Namespace default: metadata.annotations"), "{refused}");
}

/// The controller decides, also while the webhook is absent.
#[test]
fn pods_of_a_bound_namespace_get_addresses_of_its_networks_only() {
    let policy = Policy { tenancy: true, ..policy() };
    let bind = |state: &mut ControllerState, pairs: &[(&str, &str)]| {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let annotations = pairs.iter().map(owned).collect();
        state.set_namespace(
            &"default".into(),
            NetworkingMetadata { annotations, ..NetworkingMetadata::default() }.into(),
        );
    };
    let own = (annotation::SPECIFIED_NETWORK, "rack");
    let list = r#"[{"name": "net1", "network": "over", "defaultRoute": true}]"#;
    // Each annotation, the number of the pod's interfaces, and whether the last one is refused.
    for (annotations, interfaces, refused) in [
        (&[][..], 1, false),
        (&[own], 1, false),
        (&[(annotation::SPECIFIED_NETWORK, "over")], 1, true),
        (&[(annotation::SPECIFIED_SUBNET, "over-v4")], 1, true),
        (&[(annotation::NETWORK_TYPE, "Overlay")], 1, true),
        (&[own, (annotation::INTERFACES, list)], 2, true),
        (&[(annotation::MULTUS_NETWORKS, "over")], 2, true),
    ] {
        for (namespace, is_bound) in
            [(&[own][..], true), (&[own, (annotation::ALLOWED_NETWORKS, "over")], false), (&[], false)]
        {
            let mut state = state();
            state.cluster.multus.begin();
            let network = crate::multus::MultusNetwork { network: "over".to_owned(), subnet: String::new() };
            state.cluster.multus.set(key("over"), Some(network));
            assert!(state.cluster.multus.end().is_empty());
            bind(&mut state, namespace);
            state.set_pod(&key("web-1"), pod("n1", "ReplicaSet", annotations));
            let plans = state.plan_pod(&key("web-1"), &policy, 1, now());
            assert_eq!(plans.len(), interfaces, "{annotations:?}");
            let last = plans.last().unwrap();
            match last {
                Err(AllocationRefusal::Tenancy(error)) => {
                    assert!(refused && is_bound, "{annotations:?} in {namespace:?}: {error}");
                    assert!(error.to_string().contains(annotation::ALLOWED_NETWORKS));
                }
                Ok(Plan::Assign(_)) => assert!(!refused || !is_bound, "{annotations:?} in {namespace:?}"),
                other => panic!("{annotations:?} in {namespace:?}: {other:?}"),
            }
        }
    }
    // The Namespace is not known yet. Its arrival wakes the pod.
    let mut state = state();
    state.set_pod(&key("web-1"), pod("n1", "ReplicaSet", &[own]));
    let refused = state.plan_eth0(&key("web-1"), &policy, 1, now()).unwrap_err().to_string();
    assert!(refused.contains("Namespace default is not known yet"), "{refused}");
    assert!(state.term.as_ref().unwrap().waiting.contains(&key("web-1")));
    // An address of another Network in ip-pool.
    bind(&mut state, &[own]);
    let pool = pod("n1", "StatefulSet", &[(annotation::IP_POOL, "10.9.0.7,10.9.0.7")]);
    let refused = plan_with(&mut state, "web-1", pool, &policy).unwrap_err();
    assert_eq!(refused.reason(), "address");
}

fn plan_with(
    state: &mut ControllerState,
    name: &str,
    pod: PodRow,
    policy: &Policy,
) -> Result<Plan, AllocationRefusal> {
    state.set_pod(&key(name), pod);
    state.plan_eth0(&key(name), policy, 1, now())
}

#[test]
fn text_about_a_pod_is_bounded() {
    let mut state = state();
    let pool = ",".repeat(30_000);
    let refused = plan(&mut state, "web-1", pod("n1", "StatefulSet", &[(annotation::IP_POOL, &pool)]));
    let text = refused.unwrap_err().to_string();
    assert!(text.len() < 1100 && text.ends_with(" more faults"), "{} octets", text.len());
}
