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
        target_addresses: Vec::new(),
        is_virtual_machine: false,
    }
}

/// The plan with this pod in live migration.
fn planned(intent: &Intent, pod: &Pod) -> (Plan, PlannedPod) {
    let targets = || pod.target_addresses.iter().copied().collect();
    let migrating =
        pod.addresses.iter().map(|address| ((pod.network.clone(), *address), targets())).collect();
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
    let migrating = [(("gone".to_owned(), "10.1.0.5".parse().unwrap()), BTreeSet::new())].into();
    let plan = plan(&usual(), &Host { migrating, ..host(Vec::new()) }).unwrap();
    assert!(plan.kernel.rules.iter().all(|rule| rule.priority != MIGRATION_RULE));
}

/// The route and the rules of late packets to an address, with these addresses of the target's node.
fn late_packets(address: &str, targets: &[&str], sessions: Vec<Session>) -> (Vec<String>, Vec<String>) {
    let targets = targets.iter().map(|target| target.parse().unwrap()).collect();
    let address: IpAddr = address.parse().unwrap();
    let migrating = [(("rack".to_owned(), address), targets)].into();
    let host = with_kernel(host(sessions), |kernel| {
        kernel.links[1].addresses.push("198.51.100.11/24".parse().unwrap());
        kernel.links[2].addresses.push("203.0.113.11/24".parse().unwrap());
    });
    let plan = plan(&usual(), &Host { migrating, ..host }).unwrap();
    let route = plan.kernel.routes.get(&RouteKey { table: MIGRATION_TABLE, prefix: address.into() });
    let hops = route.map_or(&[][..], RouteTarget::hops);
    let hops = hops.iter().map(|hop| format!("{} dev {}", hop.gateway.unwrap(), hop.ifindex.unwrap()));
    let rules = plan.kernel.rules.iter().filter(|rule| rule.table == MIGRATION_TABLE);
    let rules = rules.map(|rule| {
        assert_eq!((rule.priority, rule.to), (MIGRATION_UPLINK_RULE, Some(address.into())));
        rule.iif.clone().unwrap()
    });
    (hops.collect(), rules.collect())
}

#[test]
fn late_packets_go_to_the_targets_node_on_an_uplinks_network() {
    let up = |peer| session(peer, true, None);
    let both = [up("192.0.2.1"), up("192.0.2.3")];
    let ports = &["up1", "up2"][..];
    for (case, address, targets, sessions, hops, rules) in [
        ("one uplink", "10.1.0.5", &["198.51.100.12"][..], &both[..], &["198.51.100.12 dev 2"][..], ports),
        (
            "both uplinks",
            "10.1.0.5",
            &["198.51.100.12", "203.0.113.12"],
            &both,
            &["198.51.100.12 dev 2", "203.0.113.12 dev 3"],
            ports,
        ),
        (
            "IPv6",
            "2001:db8:1::5",
            &["198.51.100.12", "2001:db8:0:1::c"],
            &both,
            &["2001:db8:0:1::c dev 2"],
            ports,
        ),
        ("no address of the family", "2001:db8:1::5", &["198.51.100.12"], &both, &[], &[]),
        ("another rack", "10.1.0.5", &["198.51.101.12"], &both, &[], &[]),
        ("not an uplink", "10.1.0.5", &["10.255.0.10"], &both, &[], &[]),
        ("this node's own address", "10.1.0.5", &["198.51.100.11"], &both, &[], &[]),
        ("a router's address", "10.1.0.5", &["192.0.2.1"], &both, &[], &[]),
        ("no session on the uplink", "10.1.0.5", &["198.51.100.12"], &both[1..], &[], &[]),
        ("the target's node", "10.1.0.5", &[], &both, &[], &[]),
    ] {
        let found = late_packets(address, targets, sessions.to_vec());
        let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(found, (all(hops), all(rules)), "{case}");
    }
}
