//! Services and EndpointSlices that a hostile tenant writes.

use super::*;
use crate::services::bounds::Excess;
use trunkline_api::kept::TooLarge;

/// The name of a port.
fn named(port: u16) -> Arc<str> {
    Arc::from(format!("p{port}"))
}

/// A Service with these ports on [`VIP`].
fn web(ports: u16, policy: TrafficPolicy) -> ServiceInput {
    let port = |port| ServicePort { protocol: Protocol::Tcp, port, name: named(port) };
    ServiceInput { ports: (1..=ports).map(port).collect(), ..service("web", &[VIP], policy) }
}

/// Rules for these ports of [`VIP`].
fn rules_for(ports: u16) -> ServicesInput {
    let change = |port| RuleChange {
        address: VIP.parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
        rules: PortRules::Forwarded,
    };
    ServicesInput::Rules(RuleChanges { complete: true, changes: (1..=ports).map(change).collect() })
}

fn pods(number: usize) -> Vec<String> {
    (0..number).map(|pod| format!("10.1.{}.{}", pod / 250, pod % 250)).collect()
}

#[tokio::test(start_paused = true)]
async fn ports_and_endpoints_cost_their_sum_also_on_disk() {
    let (ports, pods) = (2000, pods(400));
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let here: Vec<_> = pods.iter().map(|pod| (*pod, Ready)).collect();
    let all = SliceInput {
        ports: (1..=ports).map(|port| (named(port), Protocol::Tcp)).collect(),
        ..slice("a", "web", 0, &here)
    };
    let mut world = World::known(TrafficPolicy::Local, plan(&[]));
    world.set_local(&pods);
    world.give([apply_service(web(ports, TrafficPolicy::Local)), apply_slice(all), rules_for(ports)]);
    assert_eq!(world.state(VIP), "advertised");
    let address = VIP.parse().unwrap();
    let collected = world.engine.collect_now(address, &world.engine.addresses[&address], world.now);
    let lists: BTreeSet<usize> = collected.members.iter().map(|member| member.local_at()).collect();
    assert_eq!((collected.members.len(), lists.len()), (usize::from(ports), 1));
    let line = serde_json::to_string(&world.cache[&address]).unwrap();
    assert!(line.len() < 100 * (usize::from(ports) + pods.len()), "{} octets", line.len());

    // The next run reads the same state.
    let cached = serde_json::from_str(&line).unwrap();
    let mut next = World::new(Former::Addresses([(address, cached)].into()), &pods);
    next.set_plan(plan(&[]));
    next.give([rules_for(ports), proxy(ProxyHealth::Up)]);
    assert_eq!((next.state(VIP), next.view().state), ("advertised", AdvertisementState::Retained));
    let collected = next.engine.collect_now(address, &next.engine.addresses[&address], next.now);
    assert!(collected.members.iter().all(|member| member.facts.local_ready == 400));
    next.set_local(&[]);
    assert_eq!(next.state(VIP), "absent", "no port has an endpoint");
}

#[tokio::test(start_paused = true)]
async fn few_ports_are_written_in_full() {
    let mut world = World::known(TrafficPolicy::Local, plan(&[]));
    let all = SliceInput {
        ports: Box::new([(named(1), Protocol::Tcp), (named(2), Protocol::Tcp)]),
        ..slice("a", "web", 0, &[(POD, Ready)])
    };
    world.give([apply_service(web(2, TrafficPolicy::Local)), apply_slice(all), rules_for(2)]);
    assert_eq!(world.state(VIP), "advertised");
    let ports = &world.cache[&VIP.parse().unwrap()].members[0].ports;
    assert!(ports.len() == 2 && ports.iter().all(|port| port.local.len() == 1), "{ports:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_above_a_bound_is_withheld_with_the_figure() {
    let mut world = World::with_endpoint(TrafficPolicy::Cluster, plan(&[]));
    for name in 0..8 {
        let here: Vec<String> =
            (0..1000).map(|pod| format!("10.{name}.{}.{}", pod / 250, pod % 250)).collect();
        let here: Vec<_> = here.iter().map(|pod| (pod.as_str(), Ready)).collect();
        world.give([apply_slice(slice(&name.to_string(), "web", 1, &here))]);
    }
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::TooLarge)));
    let text = world.view().text;
    assert!(text.starts_with("withheld: the EndpointSlices of the Service have 8001 endpoints"), "{text}");
    assert_eq!(world.engine.counts().withheld[&WithheldReason::TooLarge], 1);
    for name in 0..8 {
        world.give([ServicesInput::Slices(RowChange::Deleted(slice(&name.to_string(), "web", 1, &[])))]);
    }
    assert_eq!(world.state(VIP), "advertised");

    let large = ServiceInput { excess: Some(Excess::Ports(5000)), ..web(0, TrafficPolicy::Cluster) };
    world.give([apply_service(large)]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::TooLarge)));
    assert!(world.view().text.contains("5000 ports, and at most 4096"), "{}", world.view().text);
}

#[tokio::test(start_paused = true)]
async fn another_service_with_the_address_stays_advertised() {
    for (address, pool) in [(VIP, "BGP"), ("10.8.0.1", "L2")] {
        let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
        let good = service("web", &[address], TrafficPolicy::Cluster);
        let mut large = service("api", &[address], TrafficPolicy::Cluster);
        (large.ports, large.excess) = (Vec::new(), Some(Excess::Ports(5000)));
        world.give([apply_service(good), apply_service(large), rules(address, PortRules::Forwarded)]);
        world.give([apply_slice(slice("a", "web", 1, &[]))]);
        let row = &world.engine.addresses[&address.parse().unwrap()];
        assert!(row.state.is_active(), "{pool}: {:?}", row.state);
        let views = world.engine.views(Some("default/api"), world.now);
        assert!(
            pool == "L2" || views[0].text.contains("this Service does not count: the Service has 5000 ports"),
            "{views:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_in_two_slices_stays_until_both_are_gone() {
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    let twice = slice("b", "web", 0, &[(POD, Ready), (POD, Ready)]);
    let delete = |of: &SliceInput| ServicesInput::Slices(RowChange::Deleted(of.clone()));
    world.give([apply_slice(twice.clone()), delete(&slice("a", "web", 0, &[]))]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "advertised");
    world.give([delete(&twice)]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "absent");
    assert!(world.engine.rows.with_endpoint(&POD.parse().unwrap()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn large_labels_are_the_reason_that_is_shown() {
    let too_large = TooLarge { octets: 20_000, bound: 16_384 };
    let by_label = PlannedAdvertisement { services: selector(&[("app", "web")]), ..advertisement(1) };
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[("a", by_label)]));
    let large = ServiceInput { labels: Err(too_large), ..service("web", &[VIP], TrafficPolicy::Cluster) };
    world.give([apply_service(large), apply_slice(slice("a", "web", 1, &[]))]);
    assert_eq!(world.reason(), Some(WithheldReason::NotSelected));
    let text = world.view().text;
    assert!(
        text.contains("labels of Service default/web: 20000 octets are set, and at most 16384"),
        "{text}"
    );
    world.set_plan(plan(&[("a", advertisement(1))]));
    assert_eq!(world.state(VIP), "advertised", "no selector needs the labels");

    let by_namespace = PlannedAdvertisement { namespaces: selector(&[("team", "a")]), ..advertisement(1) };
    world.set_plan(plan(&[("a", by_namespace)]));
    let namespace = NamespaceInput { name: Arc::from("default"), labels: Err(too_large) };
    world.give([ServicesInput::Namespaces(RowChange::Listed(vec![namespace]))]);
    assert_eq!(world.state(VIP), "absent");
    let text = world.view().text;
    assert!(text.contains("labels of Namespace default: 20000 octets"), "{text}");
}
