//! Live migration of a virtual machine: routes, rules and advertisements of its two pods.

use trunkline_bgp::rib::Origination;
use trunkline_bgp::wire::Origin;

use super::*;
use crate::ipam::MigrationState::{self, Active, Arrived, Departing, Inactive};

fn pod(network: &str, address: &str, migration: MigrationState) -> Pod {
    Pod {
        network: network.to_owned(),
        addresses: vec![address.parse().unwrap()],
        host_ifname: "tl0".to_owned(),
        host_ifindex: 7,
        mac: [2, 0, 0, 0, 0, 1],
        attachment: AttachmentKind::Veth,
        extra_prefixes: Default::default(),
        migration,
    }
}

/// The plan with this pod in live migration.
fn planned(intent: &Intent, pod: &Pod) -> (Plan, PlannedPod) {
    let migrating = pod.addresses.iter().map(|address| (pod.network.clone(), *address)).collect();
    let migrating = if pod.migration.is_active() { Default::default() } else { migrating };
    let plan = plan(intent, &Host { migrating, ..host(Vec::new()) }).unwrap();
    let pod = plan_pod(&plan, pod).unwrap();
    (plan, pod)
}

#[test]
fn one_pod_of_a_virtual_machine_has_the_best_path() {
    let mut intent = usual();
    intent.networks.push(network("global", "GlobalBGP/GlobalBGP", serde_json::json!({})));
    intent.subnets.push(subnet("any", "global", "10.7.0.0/16", serde_json::json!({})));
    let in_rack = vec![Community::NO_EXPORT];
    for (network, address, communities) in
        [("rack", "10.1.0.5", &in_rack), ("rack", "2001:db8:1::5", &in_rack), ("global", "10.7.0.5", &vec![])]
    {
        let usual = Origination { communities: communities.clone(), ..Origination::default() };
        let mut all = communities.clone();
        all.push(Community::GRACEFUL_SHUTDOWN);
        let worse = Origination {
            origin: Origin::Incomplete,
            local_pref: Some(0),
            communities: all,
            ..Origination::default()
        };
        for (state, routes, origination) in [
            (Active, 1, Some(&usual)),
            (Departing, 1, Some(&worse)),
            (Inactive, 0, None),
            (Arrived, 1, Some(&usual)),
        ] {
            let (plan, pod) = planned(&intent, &pod(network, address, state));
            let case = format!("{address} {state:?}");
            assert_eq!(pod.originate.values().next(), origination, "{case}");
            // The guard allows the pod's packets in every state.
            assert_eq!((pod.kernel.routes.len(), pod.kernel.neighbours.len()), (routes, 1), "{case}");
            let rules = plan.kernel.rules.iter().filter(|rule| rule.priority == MIGRATION_RULE);
            let rules: Vec<_> = rules.map(|rule| (rule.to.map(|to| to.addr()), rule.table)).collect();
            let expected = (state != Active).then(|| (address.parse().ok(), 10_000));
            assert_eq!(rules, expected.into_iter().collect::<Vec<_>>(), "{case}");
        }
    }
}

#[test]
fn rule_comes_after_the_local_pods_and_before_the_fabric() {
    let (plan, _) = planned(&usual(), &pod("rack", "10.1.0.5", Inactive));
    let first = |is: &dyn Fn(&Rule) -> bool| {
        plan.kernel.rules.iter().filter(|rule| is(rule)).map(|rule| rule.priority).min().unwrap()
    };
    let [pods, moved, fabric] = [
        first(&|rule: &Rule| rule.table == POD_TABLE),
        first(&|rule: &Rule| rule.to.is_some()),
        first(&|rule: &Rule| rule.iif.is_some()),
    ];
    assert!(pods < moved && moved < fabric, "{pods} {moved} {fabric}");
}

#[test]
fn network_that_is_not_on_the_node_adds_no_rule() {
    let migrating = [("gone".to_owned(), "10.1.0.5".parse().unwrap())].into();
    let plan = plan(&usual(), &Host { migrating, ..host(Vec::new()) }).unwrap();
    assert!(plan.kernel.rules.iter().all(|rule| rule.priority != MIGRATION_RULE));
}
