//! Pods of a tenant who changes the lists of interfaces.

use super::*;
use crate::multus::MultusNetwork;
use crate::reconcile::interfaces::{MAX_RETAINED_INTERFACES, RefusedInterfaces};
use crate::state::Term;
use trunkline_api::interfaces::MAX_INTERFACES;

/// Lists 8 interfaces of the overlay. Their names have this number.
fn list(round: usize) -> String {
    let one = |number: usize| json!({"name": format!("r{round}n{number}"), "network": "over"});
    Value::from((0..MAX_INTERFACES).map(one).collect::<Vec<_>>()).to_string()
}

/// Plans for the pod, answers all writes, and returns the refused interfaces.
fn round(state: &mut ControllerState, name: &str, pod: PodRow) -> Vec<RefusedInterfaces> {
    state.set_pod(&key(name), pod);
    let mut refused = Vec::new();
    for plan in state.plan_pod(&key(name), &policy(), 1, now()) {
        match plan {
            Ok(Plan::Assign(assignment)) => answered(state, name, &assignment),
            Ok(Plan::Refuse(interfaces)) => refused.push(interfaces),
            _ => {}
        }
    }
    refused
}

/// The number of interfaces with addresses, without `eth0`.
fn further(state: &ControllerState, name: &str) -> usize {
    state.cluster.instances_of(&key(name)).iter().filter(|(_, row)| row.interface.is_some()).count()
}

#[test]
fn names_added_to_a_running_pod_get_no_addresses() {
    let mut state = state();
    let first =
        pod("n1", "ReplicaSet", &[(annotation::INTERFACES, r#"[{"name": "net1", "network": "over"}]"#)]);
    assert!(round(&mut state, "p", first).is_empty());
    for number in 0..20 {
        let refused =
            round(&mut state, "p", pod("n1", "ReplicaSet", &[(annotation::INTERFACES, &list(number))]));
        let [RefusedInterfaces::Late { names }] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!((names.len(), further(&state, "p")), (MAX_INTERFACES, 1));
        let text = refused[0].to_string();
        assert!(
            text.contains("a later change of the annotation networking.alibaba.com/interfaces has no effect")
        );
    }
    assert_eq!(state.plan_pod(&key("p"), &policy(), 1, now()).len(), 3, "eth0, net1, and the refusal");
}

#[test]
fn a_pod_without_eth0_has_a_bounded_number_of_interfaces() {
    let mut state = state();
    for number in 0..20 {
        let none = (annotation::SPECIFIED_NETWORK, "none");
        let refused =
            round(&mut state, "p", pod("n1", "ReplicaSet", &[none, (annotation::INTERFACES, &list(number))]));
        assert_eq!(further(&state, "p"), MAX_INTERFACES);
        match &refused[..] {
            [] => assert_eq!(number, 0),
            [RefusedInterfaces::TooMany { names, count: 16 }] => assert_eq!(names.len(), MAX_INTERFACES),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_pod_of_multus_has_a_bounded_number_of_interfaces() {
    let mut state = state();
    state.cluster.multus.begin();
    let network = MultusNetwork { network: "over".to_owned(), subnet: String::new() };
    state.set_multus(&key("over"), Some(network));
    assert!(state.cluster.multus.end().is_empty());
    for number in 0..20 {
        let networks = (0..3).map(|one| format!("over@r{number}n{one}")).collect::<Vec<_>>().join(",");
        round(&mut state, "p", pod("n1", "ReplicaSet", &[(annotation::MULTUS_NETWORKS, &networks)]));
        assert_eq!(further(&state, "p"), (3 * number + 3).min(6));
    }
}

#[test]
fn retained_interfaces_of_one_name_are_bounded() {
    let mut state = state();
    for number in 0..20 {
        let list = list(number);
        let next = PodRow {
            uid: format!("uid{number}").as_str().into(),
            ..pod("n1", "StatefulSet", &[(annotation::INTERFACES, &list)])
        };
        let refused = round(&mut state, "web-0", next);
        let most = (MAX_INTERFACES * (number + 1)).min(MAX_RETAINED_INTERFACES);
        assert_eq!(further(&state, "web-0"), most);
        let is_refused = matches!(&refused[..], [RefusedInterfaces::TooManyRetained { count: 40, .. }]);
        assert_eq!(is_refused, number >= 4, "{refused:?}");
        state.remove_pod(&key("web-0"));
        let rows = state.cluster.instances_of(&key("web-0"));
        let rows: Vec<_> = rows.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        for (at, row) in rows {
            let version = row.version + 1;
            state.set_instance(&at, InstanceRow { version, node: None, pod_uid: "".into(), ..row });
        }
    }
}

#[test]
fn a_definition_retries_the_pods_that_name_it() {
    const PODS: usize = 100;
    let mut state = state();
    state.cluster.multus.begin();
    assert!(state.cluster.multus.end().is_empty());
    for number in 0..PODS {
        let own = pod("n1", "ReplicaSet", &[(annotation::MULTUS_NETWORKS, "other,own")]);
        assert!(plan(&mut state, &format!("own{number}"), own).is_err());
        assert!(plan(&mut state, &format!("other{number}"), pod("n2", "ReplicaSet", &[])).is_err());
    }
    let term = |state: &mut ControllerState, apply: fn(&mut Term)| {
        let term = state.term.as_mut().unwrap();
        apply(term);
        (term.waiting.len(), term.queues.retries.depth())
    };
    // Writes of a tenant: a definition that no pod names, and one that some pods name.
    for number in 0..1000 {
        let network = MultusNetwork { network: format!("n{number}"), subnet: String::new() };
        state.set_multus(&key(&format!("unused{number}")), Some(network.clone()));
        state.set_multus(&Key::new("elsewhere", "own"), Some(network));
    }
    assert_eq!(term(&mut state, Term::queue_waiting), (2 * PODS, 0));
    for number in 0..1000 {
        let network = MultusNetwork { network: format!("n{number}"), subnet: String::new() };
        state.set_multus(&key("own"), Some(network));
    }
    assert_eq!(term(&mut state, |_| ()), (2 * PODS, 1), "one retry for all changes");
    assert_eq!(term(&mut state, Term::queue_waiting).0, PODS);
    // A Namespace retries its own pods, a Network all of them.
    let labelled = |name: &str| NetworkingMetadata {
        annotations: [(annotation::SPECIFIED_NETWORK.to_owned(), name.to_owned())].into(),
        ..NetworkingMetadata::default()
    };
    state.set_namespace(&"elsewhere".into(), labelled("over").into());
    assert_eq!(term(&mut state, Term::queue_waiting).0, PODS);
    state.set_namespace(&"default".into(), labelled("over").into());
    assert_eq!(term(&mut state, Term::queue_waiting).0, 0);
}
