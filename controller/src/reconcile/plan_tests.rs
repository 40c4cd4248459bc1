//! Plans over a whole state: granted addresses, texts of refusals, and requests without an answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use trunkline_api::names::annotation;
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::NetworkType;

use super::{AllocationRefusal, AssignPlan, Plan};
use crate::cluster::{InstanceRow, Key, NetworkingMetadata, NodeRow, Owner, PodLifecycle, PodRow};
use crate::reconcile::{network, node, subnet};
use crate::selection::Policy;
use crate::state::{ControllerState, PendingCreate, Queues};

fn policy() -> Policy {
    Policy {
        family: IpFamily::V4,
        network_type: NetworkType::Underlay,
        retain: true,
        stateful_kinds: vec!["StatefulSet".to_owned()],
    }
}

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
        owner: Some(owner),
        networking: NetworkingMetadata {
            annotations: annotations.collect(),
            ..NetworkingMetadata::default()
        },
        life: PodLifecycle::Alive,
        running: false,
        started: false,
        finalizer: false,
        addresses: Vec::new(),
    }
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn plan(state: &mut ControllerState, name: &str, pod: PodRow) -> Result<Plan, AllocationRefusal> {
    state.set_pod(&key(name), pod);
    state.plan_pod(&key(name), &policy(), 1)
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
            pod: Some(name.into()),
            pod_uid: Arc::clone(&assignment.pod.uid),
            owner: assignment.pod.owner.clone(),
            family: Some(assignment.family),
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
    let given = assignment(state.plan_pod(&key("both"), &policy(), 1));
    assert_eq!(addresses(&given), ["10.0.0.2/24", "fd00::1/112"]);
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
    assert!(state.term.as_ref().unwrap().waiting.is_empty(), "the waiting pod is queued again");
    let given = assignment(state.plan_pod(&key("d"), &policy(), 2));
    assert_eq!(addresses(&given), ["10.0.0.4/24"], "10.0.0.3 is still in use");
}

#[test]
fn a_stateful_pod_gets_its_address_and_mac_back() {
    let mut state = state();
    let first = assignment(plan(&mut state, "web-0", pod("n1", "StatefulSet", &[])));
    answered(&mut state, "web-0", &first);
    state.remove_pod(&key("web-0"));
    match state.plan_pod(&key("web-0"), &policy(), 2) {
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
            network: Arc::clone(&given.network),
            granted: given.granted.clone(),
            family: given.family,
        };
        state.term.as_mut().unwrap().pending_creates.insert(key("p"), unanswered);
    };
    let mut state = state();
    let first = assignment(plan(&mut state, "p", pod("n1", "ReplicaSet", &[])));
    unanswered(&mut state, &first);
    let second = assignment(state.plan_pod(&key("p"), &policy(), 2));
    assert_eq!(
        second.granted, first.granted,
        "the same request again: a create of the same name allocates no second address"
    );
    unanswered(&mut state, &first);
    state.remove_pod(&key("p"));
    assert!(matches!(state.plan_pod(&key("p"), &policy(), 3), Ok(Plan::Settle(_))));
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
