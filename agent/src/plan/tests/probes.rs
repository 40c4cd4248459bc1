use super::*;

fn probing(targets: &[&str]) -> Intent {
    let targets = targets.iter().map(|target| target.parse().unwrap()).collect();
    Intent { probes: ProbeSettings { enabled: true, targets }, ..usual() }
}

fn both() -> Vec<Session> {
    vec![session("192.0.2.1", true, None), session("192.0.2.3", true, None)]
}

#[test]
fn established_routers_are_probed_from_this_nodes_address() {
    let sessions =
        |up| vec![session("192.0.2.1", true, Some("2001:db8:0:1::2")), session("192.0.2.3", up, None)];
    let found = plan(&probing(&["203.0.113.9"]), &host(sessions(true))).unwrap();
    let routers: Vec<(String, Family, String, String)> = found
        .probes
        .routers
        .iter()
        .map(|it| (it.peer.to_string(), it.family, it.link.clone(), it.own.unwrap().to_string()))
        .collect();
    let row = |peer: &str, family, link: &str, own: &str| {
        (peer.to_owned(), family, link.to_owned(), own.to_owned())
    };
    assert_eq!(
        routers,
        [
            row("192.0.2.1", Family::Ipv4Unicast, "up1", "192.0.2.0"),
            row("192.0.2.1", Family::Ipv6Unicast, "up1", "2001:db8:0:1::1"),
            row("192.0.2.3", Family::Ipv4Unicast, "up2", "192.0.2.2"),
        ]
    );
    assert_eq!((found.probes.mtu, found.probes.targets.len()), (1502, 1));
    assert_eq!(found.kernel.probed, ["up1".to_owned(), "up2".to_owned()].into());
    // The rules in the kernel do not depend on sessions.
    let one = plan(&probing(&[]), &host(sessions(false))).unwrap();
    assert_eq!((one.probes.routers.len(), one.kernel.probed), (2, found.kernel.probed));
    let off = plan(&usual(), &host(both())).unwrap();
    assert!(off.probes.routers.is_empty() && off.kernel.probed.is_empty());
}

#[test]
fn a_router_is_excluded_only_while_another_exists() {
    let default = |left_out: &[&str]| {
        let left_out = left_out.iter().map(|peer| peer.parse().unwrap()).collect();
        let found = plan(&usual(), &Host { left_out, ..host(both()) }).unwrap();
        found.kernel.routes[&RouteKey::default_route(10_000, IpFamily::V4)].clone()
    };
    let via = |gateways: &[&str]| {
        RouteTarget::via(gateways.iter().map(|gateway| Hop::to(gateway.parse().unwrap())).collect())
    };
    assert_eq!(default(&[]), via(&["192.0.2.1", "192.0.2.3"]));
    assert_eq!(default(&["192.0.2.1"]), via(&["192.0.2.3"]));
    assert_eq!(default(&["192.0.2.1", "192.0.2.3"]), via(&["192.0.2.1", "192.0.2.3"]));
    assert_eq!(default(&["192.0.2.9"]), via(&["192.0.2.1", "192.0.2.3"]));
}

#[test]
fn only_accepted_vteps_of_the_next_nodes_are_targets() {
    let node = |name: &str, ip: &str| -> trunkline_api::resources::NodeInfo {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo",
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"vtepInfo": {"ip": ip}},
        }))
        .unwrap()
    };
    let targets = |nodes: Vec<trunkline_api::resources::NodeInfo>| -> Vec<String> {
        let intent = Intent { nodes, in_cluster: true, ..probing(&[]) };
        let found = plan(&intent, &host(both())).unwrap().probes.targets;
        found.iter().map(ToString::to_string).collect()
    };
    let (before, after) = (node("node0", "10.255.0.20"), node("node3", "10.255.0.23"));
    assert_eq!(targets(vec![before.clone(), after.clone()]), ["10.255.0.20", "10.255.0.23"]);
    let farther = node("node4", "10.255.0.24");
    assert_eq!(targets(vec![before.clone(), after.clone(), farther]), ["10.255.0.23", "10.255.0.24"]);
    // An address of this node, of a pod, and of another node.
    for evil in ["10.255.0.9", "10.1.0.7", "10.255.0.20"] {
        let evil = node("node2", evil);
        assert_eq!(targets(vec![before.clone(), evil, after.clone()]), ["10.255.0.20", "10.255.0.23"]);
    }
}
