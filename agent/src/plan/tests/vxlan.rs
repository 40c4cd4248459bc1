//! The overlay's part: a node with two others, and the routes to them.

use std::sync::Arc;

use trunkline_api::resources::NodeInfo;

use super::*;

fn node(name: &str, ip: &str, blocks: &[&str]) -> NodeInfo {
    let local = ip.rsplit('.').next().map(|last| format!("2001:db8:9::{last}"));
    serde_json::from_value(serde_json::json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": {"name": name},
        "spec": {"vtepInfo": {"ip": ip, "localIPs": [local]}, "config": {"podCIDRs": blocks}},
    }))
    .unwrap()
}

/// BGP and an overlay, three nodes, and an address that no pod has in each network.
fn hybrid() -> Intent {
    let mut intent = usual();
    intent.networks.push(network("overlay", "Overlay/VXLAN", serde_json::json!({"netID": 100})));
    let none = || serde_json::json!({});
    intent.subnets.push(subnet("o4", "overlay", "10.200.0.0/16", none()));
    intent.subnets.push(subnet("o6", "overlay", "2001:db8:200::/112", none()));
    intent.subnets[0].spec.range.exclude_ips = vec!["10.1.3.9".to_owned()];
    intent.subnets[2].spec.range.gateway = "10.200.2.1".to_owned();
    intent.tunnels.node_prefixes = vec!["10.255.0.0/24".parse().unwrap(), "2001:db8:9::/64".parse().unwrap()];
    intent.nodes = vec![
        node("node1", "10.255.0.9", &["10.200.1.0/24", "2001:db8:200::1000/116", "10.1.1.0/24"]),
        node("node2", "10.255.0.10", &["10.200.2.0/24", "2001:db8:200::2000/116", "10.1.2.0/24"]),
        node("node3", "10.255.0.11", &["10.200.3.0/24", "10.1.3.0/24", "2001:db8:1::/80"]),
    ];
    intent
}

/// The host with the device that the first plan created.
fn with_device(intent: &Intent, mut host: Host) -> Host {
    let first = plan(intent, &host).unwrap();
    let (name, planned) = first
        .kernel
        .links
        .iter()
        .find(|(_, link)| link.kind != LinkKind::Sink)
        .expect("the plan has a device");
    host.kernel.links.push(Link {
        kind: Some(planned.kind),
        mtu: planned.mtu,
        own: true,
        ..link(9, name, &[])
    });
    host
}

fn hops(plan: &Plan, table: u32, prefix: &str) -> Vec<(String, Option<u32>, bool)> {
    let target = plan.kernel.routes.get(&key(table, prefix));
    let hops = target.map_or(&[][..], RouteTarget::hops);
    let gateway = |hop: &Hop| hop.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
    hops.iter().map(|hop| (gateway(hop), hop.ifindex, hop.onlink)).collect()
}

#[test]
fn the_device_is_planned_before_its_routes() {
    let intent = hybrid();
    let first = plan(&intent, &host(Vec::new())).unwrap();
    let (name, planned) = first.kernel.links.first_key_value().unwrap();
    assert_eq!(name, "mgmt.vxlan100");
    let (local, mac) = ("10.255.0.9".parse().unwrap(), [0x02, 0x12, 10, 255, 0, 9]);
    assert_eq!(planned.kind, LinkKind::Vxlan { vni: 100, local, port: 8472, mac });
    assert_eq!((planned.alias.as_str(), planned.mtu), ("trunkline:vxlan:overlay", 1504 - 50));
    let overlay = &first.networks["overlay"];
    let device = |plan: &Plan| plan.networks["overlay"].subnets["o4"].device.clone().unwrap();
    let not_yet = SubnetDevice {
        name: "mgmt.vxlan100".to_owned(),
        parent: "mgmt".to_owned(),
        ifindex: None,
        fault: None,
    };
    assert_eq!((device(&first), overlay.mtu), (not_yet, Some(1454)));
    assert!(first.kernel.fdb.is_empty() && first.kernel.neighbours.is_empty());

    let host = with_device(&intent, host(Vec::new()));
    let second = plan(&intent, &host).unwrap();
    assert_eq!(device(&second).ifindex, Some(9));
    assert_eq!(
        second.kernel.links, first.kernel.links,
        "the planned device does not depend on the existing one"
    );
    let faulty = with_kernel(super::host(Vec::new()), |kernel| {
        kernel.link_faults = [("mgmt.vxlan100".to_owned(), "no driver".to_owned())].into();
    });
    let plan = plan(&intent, &faulty).unwrap();
    assert_eq!(device(&plan).fault.as_deref(), Some("no driver"));
}

#[test]
fn a_remote_node_has_fdb_and_neighbour_entries_and_routes() {
    let intent = hybrid();
    let host = with_device(&intent, host(Vec::new()));
    let plan = plan(&intent, &host).unwrap();
    let fdb: Vec<_> = plan.kernel.fdb.iter().map(|entry| (entry.mac[5], entry.vtep.to_string())).collect();
    assert_eq!(fdb, [(10, "10.255.0.10".to_owned()), (11, "10.255.0.11".to_owned())]);
    let neighbours: Vec<String> =
        plan.kernel.neighbours.iter().map(|neighbour| neighbour.address.to_string()).collect();
    assert_eq!(
        neighbours,
        ["10.255.0.10", "10.255.0.11", "fe80::12:aff:feff:a", "fe80::12:aff:feff:b"],
        "neighbour entries only for the gateways"
    );
    let v4 = |last: &str| vec![(format!("10.255.0.{last}"), Some(9), true)];
    let v6 = |last: &str| vec![(format!("fe80::12:aff:feff:{last}"), Some(9), false)];
    let overlay = plan.networks["overlay"].table().unwrap();
    assert_eq!(overlay, 10_001, "in addition to the underlay's");
    for (table, prefix, expected) in [
        // These routes are for all packets to overlay pods of other nodes.
        (40_000, "10.200.2.0/24", v4("10")),
        (40_000, "10.200.3.0/24", v4("11")),
        (40_000, "2001:db8:200::2000/116", v6("a")),
        (40_000, "10.200.1.0/24", vec![]),
        // These routes are for packets of overlay pods to other nodes, and to underlay pods on
        // these nodes.
        (40_001, "10.255.0.10/32", v4("10")),
        (40_001, "2001:db8:9::11/128", v6("b")),
        (40_001, "10.255.0.9/32", vec![]),
        (overlay, "10.1.2.0/24", v4("10")),
        (overlay, "2001:db8:1::/80", v6("b")),
        (overlay, "10.1.1.0/24", vec![]),
    ] {
        assert_eq!(hops(&plan, table, prefix), expected, "{prefix} in {table}");
    }
    let source =
        |prefix: &str| plan.kernel.routes[&key(40_000, prefix)].hops()[0].source.unwrap().to_string();
    assert_eq!(source("10.200.2.0/24"), "10.255.0.9");
    assert_eq!(source("2001:db8:200::2000/116"), "2001:db8:9::9");
}

#[test]
fn addresses_that_no_pod_can_have_are_carved_out() {
    let intent = hybrid();
    let sessions = vec![session("192.0.2.1", true, None)];
    let host = with_device(&intent, host(sessions));
    let plan = plan(&intent, &host).unwrap();
    let overlay = plan.networks["overlay"].table().unwrap();
    let target = |table, prefix| plan.kernel.routes.get(&key(table, prefix));
    assert_eq!(
        target(40_000, "10.200.0.0/16"),
        Some(&RouteTarget::Blackhole),
        "no node has the rest of the subnet"
    );
    assert_eq!(target(40_000, "10.200.2.1/32"), Some(&RouteTarget::Throw), "an overlay subnet's gateway");
    assert_eq!(target(overlay, "10.1.3.9/32"), Some(&RouteTarget::Throw), "an excluded address");
    let fabric = target(plan.networks["rack"].table().unwrap(), "0.0.0.0/0");
    assert!(fabric.is_some());
    assert_eq!(
        target(overlay, "10.1.0.0/16"),
        fabric,
        "pods of unknown nodes have the same route as for underlay pods"
    );

    let inside = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        plan.kernel.nat.inside.iter().any(|prefix| prefix.contains(&address))
    };
    for (address, expected) in [
        ("10.1.3.8", true),
        ("10.1.3.9", false),
        ("10.1.3.10", true),
        ("10.200.2.1", false),
        ("10.200.255.254", true),
        ("2001:db8:200::2001", true),
        ("10.255.0.10", true),
        ("10.255.0.9", true),
        ("10.255.0.1", false),
        ("192.0.2.1", false),
    ] {
        assert_eq!(inside(address), expected, "{address}");
    }
    let sources: Vec<String> = plan.kernel.nat.sources.iter().map(IpNet::to_string).collect();
    assert_eq!(sources, ["10.200.0.0/16", "2001:db8:200::/112"], "an overlay's default");
}

#[test]
fn rules_have_hybridnets_order() {
    let intent = hybrid();
    let host = with_device(&intent, host(Vec::new()));
    let plan = plan(&intent, &host).unwrap();
    let v4 = plan.kernel.rules.iter().filter(|rule| rule.family == IpFamily::V4);
    let shown: Vec<String> = v4
        .map(|rule| {
            let from = rule.from.map(|from| format!(" from {from}")).unwrap_or_default();
            let iif = rule.iif.as_ref().map(|iif| format!(" iif {iif}")).unwrap_or_default();
            format!("{}{from}{iif} {}", rule.priority, rule.table)
        })
        .collect();
    assert_eq!(
        shown,
        [
            "1000 39999",
            "1010 40000",
            "1020 from 10.200.0.0/16 40001",
            "1025 254",
            "1028 10000",
            "1029 iif up1 2170002",
            "1029 iif up2 2170003",
            "1030 iif mgmt.vxlan100 39998",
            "1030 iif up1 39998",
            "1030 iif up2 39998",
            "1100 from 10.1.0.0/16 10000",
            "1100 from 10.200.0.0/16 10001",
        ]
    );
    assert_eq!(plan.kernel.sysctls["net/ipv4/conf/mgmt.vxlan100/rp_filter"], Sysctl::NoReversePath);
}

#[test]
fn an_overlay_pod_is_a_route_and_not_advertised() {
    let intent = hybrid();
    let host = with_device(&intent, host(Vec::new()));
    let plan = plan(&intent, &host).unwrap();
    let pod = Pod {
        network: "overlay".to_owned(),
        addresses: vec!["10.200.1.7".parse().unwrap()],
        host_ifname: "tl0".to_owned(),
        host_ifindex: 77,
        attachment: Default::default(),
        mac: [2; 6],
        extra_prefixes: Default::default(),
        migration: Default::default(),
        target_addresses: Vec::new(),
        is_virtual_machine: false,
    };
    let planned = plan_pod(&plan, &pod).unwrap();
    assert_eq!(planned.kernel.routes.len(), 1);
    assert!(planned.originate.is_empty());
    let network = &plan.networks["overlay"];
    assert!(network.subnet_of("10.200.1.7".parse().unwrap()).is_some());
    assert!(network.subnet_of("10.200.2.7".parse().unwrap()).is_none(), "another node's");
}

#[test]
fn a_subnet_without_a_local_block_is_routed_only() {
    let mut intent = hybrid();
    intent.nodes[0] = node("node1", "10.255.0.9", &["10.200.1.0/24"]);
    let host = with_device(&intent, host(Vec::new()));
    let plan = plan(&intent, &host).unwrap();
    let network = &plan.networks["overlay"];
    assert_eq!(network.subnets.keys().collect::<Vec<_>>(), ["o4"]);
    assert!(network.refused_subnets["o6"].contains("NodeInfo node1"), "{network:?}");
    assert_eq!(hops(&plan, 40_000, "2001:db8:200::2000/116").len(), 1);
    let first = "10.200.1.0".parse().unwrap();
    let range = intent.subnets[2].spec.range.parse().unwrap();
    assert_eq!(network.subnets["o4"].allocatable_range(&range), (first, "10.200.1.255".parse().unwrap()));
}

#[test]
fn the_vtep_is_found_or_the_missing_input_is_reported() {
    let mut silent = hybrid();
    silent.nodes.remove(0);
    silent.nodes.push(
        serde_json::from_value(serde_json::json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": {"name": "node1"},
            "spec": {"config": {"podCIDRs": ["10.200.1.0/24"]}},
        }))
        .unwrap(),
    );
    let fault =
        |plan: &Plan| plan.networks["overlay"].subnets["o4"].device.clone().and_then(|device| device.fault);
    let end = |intent: &Intent, host: &Host| {
        let plan = plan(intent, host).unwrap();
        let link = plan.kernel.links.iter().find(|(_, link)| link.kind != LinkKind::Sink);
        match link.map(|(name, link)| (name.clone(), link.kind)) {
            Some((name, LinkKind::Vxlan { local, .. })) => format!("{name} {local}"),
            _ => fault(&plan).unwrap_or_default(),
        }
    };
    let by = |interfaces: &[&str], vteps: &[&str]| Tunnels {
        interfaces: interfaces.iter().map(|name| name.parse().unwrap()).collect(),
        vteps: vteps.iter().map(|prefix| prefix.parse().unwrap()).collect(),
        ..Tunnels::default()
    };
    let routed = with_kernel(host(Vec::new()), |kernel| kernel.default_link = Some(2));
    let any = ["0.0.0.0/0", "::/0"];
    for (tunnels, host, expected) in [
        (by(&[], &any), &routed, "up1.vxlan100 192.0.2.0"),
        (by(&["none", "up2"], &any), &routed, "up2.vxlan100 192.0.2.2"),
        (by(&[], &["2001:db8::/32"]), &routed, "up1.vxlan100 2001:db8:0:1::1"),
        (by(&[], &["198.51.100.0/24"]), &routed, "up1 has no address of vtepAddressCIDRs"),
        (by(&["none"], &any), &routed, "vxlanInterfaces: no link of none exists"),
        (by(&[], &any), &host(Vec::new()), "there is no default route"),
    ] {
        silent.tunnels = tunnels;
        let found = end(&silent, host);
        assert!(found.starts_with(expected), "{found}");
    }
    let mut elsewhere = hybrid();
    elsewhere.nodes[0] = node("node1", "198.51.100.1", &["10.200.1.0/24"]);
    assert!(end(&elsewhere, &routed).contains("198.51.100.1 is on no link of this node"));
    // An existing device stays while its address is missing.
    let there = with_device(&hybrid(), host(Vec::new()));
    let plan = plan(&elsewhere, &there).unwrap();
    assert_eq!(plan.kernel.links.keys().collect::<Vec<_>>(), ["mgmt.vxlan100", SINK_NAME]);
    assert!(fault(&plan).is_some());
    // The guard drops forwarded packets of the overlay also while the node has no tunnels.
    let plan = super::plan(&elsewhere, &routed).unwrap();
    assert_eq!(plan.kernel.guard.overlay, Some(GuardedOverlay { vni: 100, port: 8472 }));
    assert!(plan.kernel.guard.tunnel.is_none());
    // ICMP errors of pods matter where network policies are.
    let clustered = Intent { in_cluster: true, ..elsewhere.clone() };
    assert!(super::plan(&clustered, &routed).unwrap().kernel.guard.checks_errors);
    // The device's name would be too long for the kernel.
    let mut long = hybrid();
    long.networks[1].spec.net_id = Some(16_777_215);
    assert_eq!(end(&long, &routed), "vxlan16777215 10.255.0.9");
}

/// With the API server as the source, no node has blocks, and the pods of other nodes are known one
/// by one.
#[test]
fn with_cluster_allocation_a_pod_is_a_block_of_one() {
    let mut intent = hybrid();
    // Each node writes its own NodeInfo from its actual addresses.
    intent.nodes.remove(0);
    let pods = ["10.200.9.9", "2001:db8:200::99"].map(|address| address.parse().unwrap());
    intent.overlay_pods = Some(Arc::new([("node2".to_owned(), pods.into())].into()));
    let mut host = with_kernel(host(Vec::new()), |kernel| kernel.default_link = Some(4));
    let mgmt = host.kernel.links.iter_mut().find(|link| link.index == 4).unwrap();
    mgmt.addresses.push("2001:db8:9::9/64".parse().unwrap());
    let host = with_device(&intent, host);
    let plan = plan(&intent, &host).unwrap();
    let overlay = &plan.networks["overlay"];
    assert!(overlay.refused_subnets.is_empty(), "{:?}", overlay.refused_subnets);
    assert!(overlay.subnets["o4"].holds("10.200.9.1".parse().unwrap()), "the whole subnet");
    assert_eq!(hops(&plan, 40_000, "10.200.9.9/32"), [("10.255.0.10".to_owned(), Some(9), true)]);
    assert_eq!(
        hops(&plan, 40_000, "2001:db8:200::99/128"),
        [("fe80::12:aff:feff:a".to_owned(), Some(9), false)]
    );
    assert_eq!(hops(&plan, 40_000, "10.200.2.0/24"), [], "blocks are ignored");
    let local: Vec<String> = plan.vtep.unwrap().local.iter().map(ToString::to_string).collect();
    assert_eq!(
        local,
        ["10.255.0.9", "2001:db8:9::9"],
        "the addresses that the node writes into its NodeInfo"
    );
}

#[test]
fn unknown_overlay_addresses_are_rejected_on_request() {
    let mut intent = hybrid();
    let host = with_device(&intent, host(Vec::new()));
    let rest = |intent: &Intent, prefix: &str| {
        plan(intent, &host).unwrap().kernel.routes.get(&key(40_000, prefix)).cloned()
    };
    for (rejects, target) in [(false, RouteTarget::Blackhole), (true, RouteTarget::Unreachable)] {
        intent.tunnels.rejects_unknown = rejects;
        for prefix in ["10.200.0.0/16", "2001:db8:200::/112"] {
            assert_eq!(rest(&intent, prefix).as_ref(), Some(&target), "{prefix}");
        }
        assert_eq!(rest(&intent, "10.200.2.1/32"), Some(RouteTarget::Throw), "no pod can have a gateway");
    }
}

#[test]
fn addresses_of_other_links_are_local_addresses_on_request() {
    let mut intent = hybrid();
    intent.nodes.remove(0);
    intent.overlay_pods = Some(Arc::default());
    let local = |intent: &Intent| {
        let mut host = with_kernel(host(Vec::new()), |kernel| kernel.default_link = Some(4));
        host.kernel.links.push(link(20, "storage0", &["198.51.100.7/24", "fe80::7/64", "2001:db8:7::7/64"]));
        host.kernel.links.push(Link { up: false, ..link(21, "kube-ipvs0", &["198.51.100.99/32"]) });
        host.kernel.links.push(Link { own: true, ..link(22, "own0", &["198.51.100.98/32"]) });
        let vtep = plan(intent, &host).unwrap().vtep.unwrap();
        vtep.local.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let only_of_the_link = local(&intent);
    assert_eq!(only_of_the_link, ["10.255.0.9"]);
    intent.tunnels.local_addresses = vec!["198.51.100.0/24".parse().unwrap()];
    assert_eq!(local(&intent), ["10.255.0.9", "198.51.100.7"]);
    intent.tunnels.local_addresses.push("2001:db8:7::/64".parse().unwrap());
    assert_eq!(local(&intent), ["10.255.0.9", "198.51.100.7", "2001:db8:7::7"]);
    // Without the API server, an operator writes the NodeInfos.
    intent.overlay_pods = None;
    assert_eq!(local(&intent), ["10.255.0.9"]);
}

#[test]
fn a_configured_mtu_only_lowers_the_mtu_of_pods() {
    let mut intent = hybrid();
    let host = with_device(&intent, host(vec![session("192.0.2.1", true, None)]));
    let mtus = |intent: &Intent| {
        let plan = plan(intent, &host).unwrap();
        let device = plan.kernel.links.iter().find(|(_, link)| link.kind != LinkKind::Sink).unwrap().1.mtu;
        (plan.networks["rack"].mtu, plan.networks["overlay"].mtu, device, plan.probes.mtu)
    };
    let usual = mtus(&intent);
    assert_eq!((usual.0, usual.1, usual.2), (Some(1502), Some(1454), 1454));
    intent.pod_mtu = Some(9000);
    assert_eq!(mtus(&intent), usual);
    intent.pod_mtu = Some(1480);
    assert_eq!(mtus(&intent), (Some(1480), Some(1454), 1454, usual.3.min(1480)));
    intent.pod_mtu = Some(1300);
    assert_eq!(mtus(&intent), (Some(1300), Some(1300), 1454, usual.3.min(1300)));
}
