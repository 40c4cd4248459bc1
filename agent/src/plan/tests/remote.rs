//! Remote clusters: the routes to their pods, and objects of a remote cluster that attack this one.

use std::net::Ipv4Addr;
use std::sync::Arc;

use serde_json::json;
use trunkline_api::resources::{AddressRange, NodeInfo, Vtep};

use super::*;
use crate::plan::remote::{
    Ignored, RemoteLimits, RemoteObjects, RemoteObjectsOfCluster, RemoteSubnetRow, RemoteVtepRow,
};

fn node(name: &str, ip: &str, blocks: &[&str]) -> NodeInfo {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": {"name": name},
        "spec": {"vtepInfo": {"ip": ip}, "config": {"podCIDRs": blocks}},
    }))
    .unwrap()
}

/// A BGP underlay and an overlay with one other node.
fn local() -> Intent {
    let mut intent = usual();
    intent.networks.push(network("overlay", "Overlay/VXLAN", serde_json::json!({"netID": 100})));
    intent.subnets.push(subnet("o4", "overlay", "10.200.0.0/16", serde_json::json!({})));
    intent.nodes = vec![
        node("node1", "10.255.0.9", &["10.200.1.0/24"]),
        node("node2", "10.255.0.10", &["10.200.2.0/24"]),
    ];
    intent
}

fn range(cidr: &str) -> RemoteSubnetRow {
    let version = if cidr.contains(':') { "6" } else { "4" };
    let range: AddressRange =
        serde_json::from_value(serde_json::json!({"version": version, "cidr": cidr})).unwrap();
    RemoteSubnetRow { created: "".into(), overlay: true, range }
}

fn underlay(cidr: &str) -> RemoteSubnetRow {
    RemoteSubnetRow { overlay: false, ..range(cidr) }
}

fn addresses(of: &[&str]) -> Box<[IpAddr]> {
    of.iter().map(|address| address.parse().unwrap()).collect()
}

fn vtep(ip: &str, endpoints: &[&str]) -> RemoteVtepRow {
    let ip = ip.parse().unwrap();
    RemoteVtepRow {
        created: "".into(),
        ip,
        mac: Vtep::default_mac(ip),
        local: Box::default(),
        endpoints: addresses(endpoints),
        malformed: 0,
    }
}

fn cluster(
    subnets: impl IntoIterator<Item = RemoteSubnetRow>,
    vteps: impl IntoIterator<Item = RemoteVtepRow>,
) -> RemoteObjectsOfCluster {
    let named = |prefix: &str, index: usize| format!("{prefix}{index}").into_boxed_str();
    RemoteObjectsOfCluster {
        subnets: subnets.into_iter().enumerate().map(|(index, row)| (named("s", index), row)).collect(),
        vteps: vteps.into_iter().enumerate().map(|(index, row)| (named("v", index), row)).collect(),
    }
}

fn with(mut intent: Intent, clusters: &[(&str, RemoteObjectsOfCluster)]) -> Intent {
    let clusters = clusters.iter().map(|(name, of)| ((*name).into(), of.clone())).collect();
    intent.remote = Some(Arc::new(RemoteObjects { clusters }));
    intent
}

/// The plan of a host that has the device already.
fn planned(intent: &Intent, sessions: Vec<Session>) -> Plan {
    let mut host = host(sessions);
    let first = plan(intent, &host).unwrap();
    if let Some((name, device)) = first.kernel.links.iter().find(|(_, link)| link.kind != LinkKind::Sink) {
        let device = Link { kind: Some(device.kind), mtu: device.mtu, own: true, ..link(9, name, &[]) };
        host.kernel.links.push(device);
    }
    plan(intent, &host).unwrap()
}

fn gateway_of(plan: &Plan, table: u32, prefix: &str) -> Option<String> {
    let target = plan.kernel.routes.get(&key(table, prefix))?;
    target.hops().first()?.gateway.map(|gateway| gateway.to_string())
}

/// The plan of a remote cluster with these objects, besides an intact one.
fn west(of: RemoteObjectsOfCluster) -> (Plan, Plan) {
    let empty = planned(&local(), Vec::new());
    (planned(&with(local(), &[("west", of)]), Vec::new()), empty)
}

fn fault(plan: &Plan) -> &str {
    plan.remote["west"].faults.first().map(String::as_str).unwrap_or_default()
}

#[test]
fn remote_pods_are_routed_like_pods_of_other_nodes() {
    let of = cluster(
        [range("10.210.0.0/16"), underlay("10.9.0.0/24")],
        [
            vtep("10.20.0.1", &["10.210.0.5", "10.9.0.7"]),
            RemoteVtepRow { local: addresses(&["10.20.1.1"]), ..vtep("10.20.0.2", &["10.210.0.6"]) },
        ],
    );
    let plan = planned(&with(local(), &[("west", of)]), vec![session("192.0.2.1", true, None)]);
    let overlay = plan.networks["overlay"].table().unwrap();
    for (table, prefix, gateway) in [
        (40_000, "10.210.0.5/32", "10.20.0.1"),
        (40_000, "10.210.0.6/32", "10.20.0.2"),
        // Only packets of overlay pods use the tunnel to underlay pods.
        (overlay, "10.9.0.7/32", "10.20.0.1"),
        (overlay, "10.9.0.0/24", "192.0.2.1"),
        (40_001, "10.20.0.1/32", "10.20.0.1"),
        (40_001, "10.20.1.1/32", "10.20.0.2"),
        (40_000, "10.200.2.0/24", "10.255.0.10"),
    ] {
        assert_eq!(gateway_of(&plan, table, prefix).as_deref(), Some(gateway), "{prefix} in {table}");
    }
    let rest = plan.kernel.routes.get(&key(40_000, "10.210.0.0/16"));
    assert_eq!(rest, Some(&RouteTarget::Blackhole), "an address that no remote pod has");
    let fdb: Vec<String> = plan.kernel.fdb.iter().map(|entry| entry.vtep.to_string()).collect();
    assert_eq!(fdb, ["10.20.0.1", "10.20.0.2", "10.255.0.10"], "one entry for each VTEP");
    assert_eq!(plan.kernel.neighbours.len(), 3);
    let vteps = &plan.kernel.guard.tunnel.as_ref().unwrap().vteps;
    let vteps: Vec<String> = vteps.iter().map(ToString::to_string).collect();
    assert_eq!(vteps, ["10.20.0.1", "10.20.0.2", "10.255.0.10"]);
    let nodes: Vec<String> = plan.kernel.guard.nodes.iter().map(ToString::to_string).collect();
    assert_eq!(nodes, ["10.20.0.1", "10.20.0.2", "10.20.1.1", "10.255.0.10"]);

    let inside = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        plan.kernel.nat.inside.iter().any(|prefix| prefix.contains(&address))
    };
    assert!(["10.210.9.9", "10.9.0.200", "10.20.0.1", "10.20.1.1"].into_iter().all(inside));
    assert!(!inside("10.20.0.9"));
    for prefix in ["10.210.0.0/16", "10.9.0.0/24"] {
        let prefix: IpNet = prefix.parse().unwrap();
        assert!(plan.kernel.translated.pods.contains(&prefix));
        assert!(!plan.kernel.rules.iter().any(|rule| rule.from == Some(prefix)), "only for local pods");
    }
    let west = &plan.remote["west"];
    assert_eq!((west.subnets.len(), west.vteps, west.endpoints), (2, 2, 3));
    assert_eq!((west.ignored, west.faults.len()), (Ignored::default(), 0));
}

#[test]
fn without_an_overlay_remote_subnets_stay_outside_of_translation() {
    let mut intent =
        with(usual(), &[("west", cluster([underlay("10.9.0.0/24")], [vtep("10.20.0.1", &["10.9.0.7"])]))]);
    intent.in_cluster = true;
    let plan = plan(&intent, &host(Vec::new())).unwrap();
    let prefix: IpNet = "10.9.0.0/24".parse().unwrap();
    assert!(plan.kernel.nat.inside.contains(&prefix) && plan.kernel.translated.pods.contains(&prefix));
    assert!(plan.kernel.fdb.is_empty() && plan.kernel.guard.tunnel.is_none());
    let routes: Vec<_> = plan.kernel.routes.keys().filter(|key| prefix.contains(&key.prefix)).collect();
    assert!(routes.is_empty(), "the fabric routes them: {routes:?}");
}

#[test]
fn addresses_that_no_remote_pod_can_have_are_carved_out() {
    let mut of = cluster([range("10.210.0.0/24")], [vtep("10.20.0.1", &["10.210.0.5", "10.210.0.77"])]);
    let row = of.subnets.values_mut().next().unwrap();
    row.range.exclude_ips = vec!["10.210.0.5".to_owned()];
    row.range.end = "10.210.0.63".to_owned();
    let (plan, _) = west(of);
    for prefix in ["10.210.0.5/32", "10.210.0.64/26", "10.210.0.128/25"] {
        let target = plan.kernel.routes.get(&key(40_000, prefix));
        assert_eq!(target, Some(&RouteTarget::Throw), "{prefix}");
    }
    assert_eq!(plan.remote["west"].ignored.endpoints, 2, "no remote pod can have them");
    assert!(fault(&plan).contains("RemoteVtep v0: spec.endpointIPList: 2 addresses, such as 10.210.0.5"));
}

fn with_range(edit: impl FnOnce(&mut AddressRange)) -> RemoteSubnetRow {
    let mut row = range("10.210.0.0/16");
    edit(&mut row.range);
    row
}

#[test]
fn a_remote_subnet_cannot_take_addresses_of_others() {
    let mut services = local();
    services.service_cidrs = ["10.96.0.0/12".parse().unwrap()].into();
    let limited = |subnets: &str| {
        let mut intent = local();
        intent.remote_limits =
            RemoteLimits { subnets: vec![subnets.parse().unwrap()], ..RemoteLimits::default() };
        intent
    };
    let owners = || {
        let mut intent = local();
        intent.networks.push(bgp("elsewhere", 65_101, json!([{"asn": 65_001, "address": "10.77.1.1"}])));
        let pool = json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "vips"},
            "spec": {"addresses": ["10.79.0.80-10.79.0.89"]},
        });
        let anycast = json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress", "metadata": {"name": "dns"},
            "spec": {"addresses": ["10.78.0.53"]},
        });
        intent.networks.last_mut().unwrap().spec.node_selector = [("rack".to_owned(), "2".to_owned())].into();
        intent.services.pools = vec![serde_json::from_value(pool).unwrap()];
        intent.services.anycast = vec![serde_json::from_value(anycast).unwrap()];
        intent.api_servers = addresses(&["10.80.0.1", "10.81.0.1"]).into_iter().collect();
        intent
    };
    for (intent, row, words) in [
        (owners(), range("10.81.0.0/16"), "overlaps 10.81.0.1/32 of the API server: joined clusters"),
        (owners(), range("10.77.1.0/30"), "overlaps 10.77.1.1/32 of a BGP peer of Network elsewhere"),
        (owners(), range("10.78.0.0/24"), "overlaps 10.78.0.53/32 of AnycastAddress dns"),
        (owners(), range("10.79.0.88/29"), "of ServicePool vips: joined clusters need different prefixes"),
        (local(), range("10.200.2.0/24"), "overlaps 10.200.0.0/16 of Subnet o4: joined clusters"),
        (local(), range("10.200.0.0/16"), "overlaps 10.200.0.0/16 of Subnet o4"),
        (local(), underlay("10.1.5.0/24"), "overlaps 10.1.0.0/16 of Subnet v4"),
        (local(), range("10.0.0.0/8"), "overlaps 10.1.0.0/16 of Subnet v4"),
        (local(), range("0.0.0.0/0"), "no prefix of unicast addresses"),
        (local(), range("127.0.0.0/16"), "no prefix of unicast addresses"),
        (local(), range("fe80::/64"), "no prefix of unicast addresses"),
        (local(), range("224.0.0.0/4"), "no prefix of unicast addresses"),
        (local(), range("10.210.0.5/32"), "10.210.0.5/32 is the network address only"),
        (
            local(),
            range("10.255.0.0/24"),
            "include 10.255.0.9 of node node1: add it to the Subnet's excludeIPs",
        ),
        (local(), underlay("192.0.2.0/24"), "include 192.0.2.2 of node node1"),
        (services, range("10.96.7.0/24"), "overlaps 10.96.0.0/12 of the Services"),
        (limited("10.210.0.0/16"), range("10.211.0.0/16"), "outside of remoteClusters.subnetCIDRs"),
        (local(), range("10.210.0.0/33"), "spec.range: "),
        (
            local(),
            with_range(|range| range.start = "10.200.0.1".to_owned()),
            "10.200.0.1 is outside of 10.210.0.0/16",
        ),
        (
            local(),
            with_range(|range| range.end = "10.255.255.254".to_owned()),
            "10.255.255.254 is outside of",
        ),
        (local(), with_range(|range| range.gateway = "10.255.0.1".to_owned()), "10.255.0.1 is outside of"),
        (
            local(),
            with_range(|range| range.exclude_ips = vec!["10.200.2.7".to_owned()]),
            "10.200.2.7 is outside of",
        ),
        (
            local(),
            with_range(|range| (range.start, range.end) = ("10.210.0.9".to_owned(), "10.210.0.8".to_owned())),
            "10.210.0.9 is after 10.210.0.8",
        ),
    ] {
        let prefix = row.range.cidr.clone();
        let empty = planned(&intent, Vec::new());
        let attacked = with(intent, &[("west", cluster([row], []))]);
        let plan = planned(&attacked, Vec::new());
        assert_eq!(plan.kernel, empty.kernel, "{prefix} changes nothing");
        assert_eq!(plan.remote["west"].ignored, Ignored { subnets: 1, ..Ignored::default() }, "{prefix}");
        assert!(fault(&plan).starts_with("RemoteSubnet s0: spec.range"), "{}", fault(&plan));
        assert!(fault(&plan).contains(words), "{words}: {}", fault(&plan));
    }
}

/// node2 is compromised: it claims addresses of the remote cluster in its NodeInfo.
fn compromised(ip: &str, local: &[&str]) -> Intent {
    let mut intent = local_in_cluster();
    let mut evil = node("node2", ip, &[]);
    evil.metadata.creation_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    evil.spec.vtep_info.as_mut().unwrap().local_ips = local.iter().map(|text| (*text).to_owned()).collect();
    intent.nodes[1] = evil;
    intent
}

fn local_in_cluster() -> Intent {
    let mut intent = local();
    intent.in_cluster = true;
    intent.overlay_pods = Some(Arc::default());
    intent.tunnels.node_prefixes = vec!["10.0.0.0/8".parse().unwrap()];
    intent
}

#[test]
fn a_node_takes_single_addresses_and_no_remote_subnet() {
    let of = cluster(
        [range("10.210.0.0/24"), range("10.211.0.0/24")],
        [vtep("10.20.0.1", &["10.210.0.5", "10.210.0.6", "10.210.0.7", "10.211.0.5"])],
    );
    let plan = planned(&with(compromised("10.210.0.5", &["10.210.0.6"]), &[("west", of)]), Vec::new());
    let west = &plan.remote["west"];
    assert_eq!((west.subnets.len(), west.vteps, west.endpoints), (2, 1, 2));
    assert_eq!(west.ignored, Ignored { endpoints: 2, ..Ignored::default() });
    for address in ["10.210.0.7", "10.211.0.5"] {
        let gateway = gateway_of(&plan, 40_000, &format!("{address}/32"));
        assert_eq!(gateway.as_deref(), Some("10.20.0.1"), "{address}");
    }
    for address in ["10.210.0.5/32", "10.210.0.6/32"] {
        let excluded: IpNet = address.parse().unwrap();
        let targets = plan.kernel.routes.iter().filter(|(key, _)| key.table == 40_000);
        let throw = targets.filter(|(_, target)| **target == RouteTarget::Throw);
        assert!(throw.map(|(key, _)| key.prefix).any(|prefix| prefix.contains(&excluded)), "{address}");
    }
    let words =
        "RemoteSubnet s0: spec.range: 2 of its addresses, such as 10.210.0.5 of node node2, belong to nodes";
    assert!(fault(&plan).starts_with(words), "{}", fault(&plan));
}

#[test]
fn local_addresses_of_a_node_take_no_remote_vtep() {
    let vteps: Vec<String> = (1..41).map(|last| format!("10.20.0.{last}")).collect();
    let claims: Vec<&str> = vteps.iter().map(String::as_str).collect();
    let rows = vteps.iter().enumerate().map(|(index, ip)| vtep(ip, &[&format!("10.210.0.{}", index + 1)]));
    let of = cluster([range("10.210.0.0/24")], rows);
    let plan = planned(&with(compromised("10.255.0.10", &claims), &[("west", of)]), Vec::new());
    let west = &plan.remote["west"];
    assert_eq!((west.vteps, west.endpoints, west.ignored), (40, 40, Ignored::default()));
    assert_eq!(gateway_of(&plan, 40_000, "10.210.0.7/32").as_deref(), Some("10.20.0.7"));
    assert_eq!(gateway_of(&plan, 40_001, "10.20.0.7/32").as_deref(), Some("10.255.0.10"), "one owner");
}

#[test]
fn an_address_that_two_nodes_list_belongs_to_no_remote_cluster() {
    let mut intent = compromised("10.255.0.10", &["10.255.0.77"]);
    let mut other = node("node3", "10.255.0.11", &[]);
    other.spec.vtep_info.as_mut().unwrap().local_ips = vec!["10.255.0.77".to_owned()];
    intent.nodes.push(other);
    let row = RemoteVtepRow { local: addresses(&["10.255.0.77"]), ..vtep("10.20.0.1", &[]) };
    let plan = planned(&with(intent, &[("west", cluster([], [row]))]), Vec::new());
    assert_eq!(plan.remote["west"].ignored, Ignored { addresses: 1, ..Ignored::default() });
    assert!(fault(&plan).contains("10.255.0.77 belongs to several nodes"), "{}", fault(&plan));
    assert_eq!(gateway_of(&plan, 40_001, "10.255.0.77/32"), None);
}

#[test]
fn a_remote_vtep_cannot_take_the_place_of_a_node() {
    let subnet = || range("10.210.0.0/16");
    let other = vtep("10.20.0.9", &[]);
    let mac = |mac: [u8; 6]| RemoteVtepRow { mac, ..vtep("10.20.0.1", &["10.210.0.5"]) };
    let of_node2 = Vtep::default_mac("10.255.0.10".parse().unwrap());
    for (row, words) in [
        (vtep("10.255.0.10", &["10.210.0.5"]), "spec.ip: 10.255.0.10 belongs to node node2"),
        (vtep("10.255.0.9", &["10.210.0.5"]), "spec.ip: 10.255.0.9 belongs to node node1"),
        (RemoteVtepRow { mac: [2; 6], ..vtep("192.0.2.2", &[]) }, "spec.ip: 192.0.2.2 belongs to node node1"),
        (
            mac(Vtep::default_mac("192.0.2.0".parse().unwrap())),
            "spec.mac: 02:12:c0:00:02:00 belongs to node node1",
        ),
        (mac(of_node2), "spec.mac: 02:12:0a:ff:00:0a belongs to node node2"),
        (mac([1, 0, 0x5e, 0, 0, 1]), "spec.mac: 01:00:5e:00:00:01 is no unicast MAC"),
        (mac([0; 6]), "is no unicast MAC"),
        (mac(other.mac), "belongs to RemoteVtep v0"),
        (vtep("10.200.2.7", &["10.210.0.5"]), "spec.ip: 10.200.2.7 is in 10.200.0.0/16 of Subnet o4"),
        (vtep("10.210.3.3", &["10.210.0.5"]), "is in 10.210.0.0/16 of RemoteSubnet s0"),
        (vtep("127.0.0.1", &[]), "no prefix of unicast addresses"),
    ] {
        let (plan, _) = west(cluster([subnet()], [other.clone(), row]));
        let (without, _) = west(cluster([subnet()], [other.clone()]));
        assert_eq!(plan.kernel, without.kernel, "{words}");
        assert_eq!(plan.remote["west"].ignored, Ignored { vteps: 1, ..Ignored::default() }, "{words}");
        assert!(fault(&plan).starts_with("RemoteVtep v1: spec."), "{}", fault(&plan));
        assert!(fault(&plan).contains(words), "{words}: {}", fault(&plan));
    }
    // The kernel has no neighbour with the broadcast address of a link.
    let of = cluster([subnet()], [vtep("10.3.0.255", &["10.210.0.5"]), vtep("10.3.0.254", &["10.210.0.6"])]);
    let mut host = host(Vec::new());
    host.kernel.links.push(link(8, "storage", &["10.3.0.1/24"]));
    let plan = plan(&with(local(), &[("west", of)]), &host).unwrap();
    assert_eq!(plan.remote["west"].ignored, Ignored { vteps: 1, ..Ignored::default() });
    assert!(fault(&plan).contains("10.3.0.255/32 is no prefix of unicast addresses"), "{}", fault(&plan));

    let limits = RemoteLimits { vteps: vec!["10.20.0.0/16".parse().unwrap()], ..RemoteLimits::default() };
    let of = cluster([subnet()], [vtep("10.21.0.1", &["10.210.0.5"])]);
    let plan = planned(&Intent { remote_limits: limits, ..with(local(), &[("west", of)]) }, Vec::new());
    assert!(fault(&plan).contains("outside of remoteClusters.vtepCIDRs"), "{}", fault(&plan));
}

#[test]
fn local_addresses_of_a_vtep_cannot_attract_traffic() {
    let row = RemoteVtepRow {
        local: addresses(&["10.255.0.10", "10.200.2.7", "10.20.0.9", "10.20.1.1", "10.210.0.1"]),
        ..vtep("10.20.0.1", &[])
    };
    let (plan, _) = west(cluster([range("10.210.0.0/16")], [vtep("10.20.0.9", &[]), row]));
    assert_eq!(plan.remote["west"].ignored, Ignored { addresses: 4, ..Ignored::default() });
    assert_eq!(gateway_of(&plan, 40_001, "10.255.0.10/32").as_deref(), Some("10.255.0.10"));
    assert_eq!(gateway_of(&plan, 40_001, "10.20.0.9/32").as_deref(), Some("10.20.0.9"));
    assert_eq!(gateway_of(&plan, 40_001, "10.20.1.1/32").as_deref(), Some("10.20.0.1"));
    assert_eq!(gateway_of(&plan, 40_001, "10.200.2.7/32"), None);
}

/// A prefix outside of the overlay can have other machines, and only its pods are in the tunnels.
#[test]
fn endpoints_of_an_underlay_are_no_routers_and_services() {
    let mut intent = local();
    intent.api_servers = addresses(&["10.80.0.1"]).into_iter().collect();
    intent.networks.push(bgp("elsewhere", 65_101, json!([{"asn": 65_001, "address": "10.80.0.2"}])));
    intent.networks.last_mut().unwrap().spec.node_selector = [("rack".to_owned(), "2".to_owned())].into();
    let of =
        cluster([underlay("10.80.0.0/24")], [vtep("10.20.0.1", &["10.80.0.1", "10.80.0.2", "10.80.0.3"])]);
    let plan = planned(&with(intent, &[("west", of)]), Vec::new());
    assert_eq!(plan.remote["west"].ignored, Ignored { endpoints: 2, ..Ignored::default() });
    assert!(fault(&plan).contains("10.80.0.1, are in no RemoteSubnet"), "{}", fault(&plan));
    let overlay = plan.networks["overlay"].table().unwrap();
    for (prefix, gateway) in
        [("10.80.0.1/32", None), ("10.80.0.2/32", None), ("10.80.0.3/32", Some("10.20.0.1"))]
    {
        assert_eq!(gateway_of(&plan, overlay, prefix).as_deref(), gateway, "{prefix}");
    }
}

/// Packets of overlay pods for an address in `localIPs` go to the node that lists it.
#[test]
fn a_remote_node_attracts_no_packets_for_the_api_server_routers_and_services() {
    let mut intent = local();
    intent.api_servers = addresses(&["10.80.0.1", "2001:db8:80::1"]).into_iter().collect();
    intent.service_cidrs = ["10.96.0.0/12".parse().unwrap()].into();
    intent.networks.push(bgp("elsewhere", 65_101, json!([{"asn": 65_001, "address": "10.77.1.1"}])));
    intent.networks.last_mut().unwrap().spec.node_selector = [("rack".to_owned(), "2".to_owned())].into();
    let claimed = ["10.80.0.1", "2001:db8:80::1", "10.96.0.10", "10.77.1.1", "10.20.1.1"];
    let row = RemoteVtepRow { local: addresses(&claimed), ..vtep("10.20.0.1", &["10.210.0.5"]) };
    // The API server of this cluster runs on a node of the other one: the tunnel to this node is for
    // its pods only.
    let server = vtep("10.80.0.1", &["10.210.0.6"]);
    let of = cluster([range("10.210.0.0/16")], [row, server]);
    let plan = planned(&with(intent, &[("west", of)]), Vec::new());
    assert_eq!(plan.remote["west"].ignored, Ignored { addresses: 4, ..Ignored::default() });
    assert!(fault(&plan).contains("spec.localIPs: 10.80.0.1 belongs to the API server"), "{}", fault(&plan));
    for (table, prefix, gateway) in [
        (40_000, "10.210.0.5/32", Some("10.20.0.1")),
        (40_000, "10.210.0.6/32", Some("10.80.0.1")),
        (40_001, "10.20.1.1/32", Some("10.20.0.1")),
        (40_001, "10.80.0.1/32", None),
        (40_001, "2001:db8:80::1/128", None),
        (40_001, "10.96.0.10/32", None),
        (40_001, "10.77.1.1/32", None),
    ] {
        assert_eq!(gateway_of(&plan, table, prefix).as_deref(), gateway, "{prefix} in {table}");
    }
}

#[test]
fn endpoints_outside_of_the_clusters_subnets_are_ignored() {
    let endpoints = ["10.210.0.5", "10.200.2.7", "10.1.0.1", "10.220.0.1", "10.255.0.10", "198.51.100.1"];
    let west = cluster([range("10.210.0.0/16")], [vtep("10.20.0.1", &endpoints)]);
    let east = cluster([range("10.220.0.0/16")], [vtep("10.30.0.1", &["10.220.0.1"])]);
    let plan = planned(&with(local(), &[("east", east), ("west", west)]), Vec::new());
    assert_eq!(plan.remote["west"].ignored, Ignored { endpoints: 5, ..Ignored::default() });
    assert_eq!(gateway_of(&plan, 40_000, "10.220.0.1/32").as_deref(), Some("10.30.0.1"), "of the owner");
    let by_attacker: Vec<_> = plan
        .kernel
        .routes
        .iter()
        .filter(|(_, target)| target.hops().iter().any(|hop| hop.gateway == "10.20.0.1".parse().ok()))
        .map(|(key, _)| key.prefix.to_string())
        .collect();
    assert_eq!(by_attacker, ["10.210.0.5/32", "10.20.0.1/32"]);
}

#[test]
fn the_older_object_wins_between_remote_clusters() {
    let at = |created: &str, row: RemoteSubnetRow| RemoteSubnetRow { created: created.into(), ..row };
    let old =
        cluster([at("2026-01-01T00:00:00Z", range("10.210.0.0/16"))], [vtep("10.20.0.1", &["10.210.0.5"])]);
    let new =
        cluster([at("2026-02-01T00:00:00Z", range("10.210.0.0/17"))], [vtep("10.30.0.1", &["10.210.0.5"])]);
    // The attacker's name sorts first.
    let plan = planned(&with(local(), &[("a", new), ("west", old)]), Vec::new());
    assert_eq!(plan.remote["a"].ignored, Ignored { subnets: 1, endpoints: 1, ..Ignored::default() });
    assert_eq!(plan.remote["west"].ignored, Ignored::default());
    assert_eq!(gateway_of(&plan, 40_000, "10.210.0.5/32").as_deref(), Some("10.20.0.1"));
}

/// As in hybridnet, clusters can divide the prefix of a VLAN.
#[test]
fn clusters_can_divide_a_prefix() {
    let mut intent = local();
    intent.in_cluster = true;
    intent.subnets[0].spec.range.end = "10.1.0.255".to_owned();
    let part = |start: &str| {
        let mut row = underlay("10.1.0.0/16");
        row.range.start = start.to_owned();
        row
    };
    let endpoints = ["10.1.9.9", "10.1.0.9"];
    let of = |start: &str| cluster([part(start)], [vtep("10.20.0.1", &endpoints)]);
    let plan = planned(&with(intent.clone(), &[("west", of("10.1.9.0"))]), Vec::new());
    assert_eq!(
        plan.remote["west"].ignored,
        Ignored { endpoints: 1, ..Ignored::default() },
        "a local address"
    );
    let overlay = plan.networks["overlay"].table().unwrap();
    assert_eq!(gateway_of(&plan, overlay, "10.1.9.9/32").as_deref(), Some("10.20.0.1"));
    assert_eq!(gateway_of(&plan, overlay, "10.1.0.9/32"), None);
    let plan = planned(&with(intent, &[("west", of("10.1.0.9"))]), Vec::new());
    assert_eq!(plan.remote["west"].ignored.subnets, 1, "the addresses overlap");
}

#[test]
fn faults_are_limited_and_all_are_counted() {
    let subnets = (0..30).map(|index| range(&format!("10.200.{index}.0/24")));
    let (plan, _) = west(cluster(subnets, []));
    assert_eq!(plan.remote["west"].faults.len(), 20);
    assert_eq!(plan.remote["west"].ignored.subnets, 30);
}

/// The cost of 1,000 remote nodes with 10 pods each, counted: bytes of each entry, and the heap
/// behind it. A node of a BTreeMap is two thirds full on average.
#[test]
fn ten_thousand_remote_endpoints_cost_less_than_five_megabytes() {
    const VTEPS: u32 = 1_000;
    const PODS: u32 = 10;
    let address =
        |first: u8, number: u32| IpAddr::from(Ipv4Addr::from((u32::from(first) << 24) + 0x20_0000 + number));
    let vteps = (0..VTEPS).map(|number| {
        let endpoints = (0..PODS).map(|pod| address(10, 256 + number * PODS + pod)).collect();
        RemoteVtepRow { endpoints, ..vtep(&address(172, number + 1).to_string(), &[]) }
    });
    let of = cluster([range("10.32.0.0/12")], vteps);
    let rows: usize = of
        .vteps
        .iter()
        .map(|(name, row)| {
            let heap =
                name.len() + row.created.len() + size_of_val(&*row.endpoints) + size_of_val(&*row.local);
            size_of::<Box<str>>() + size_of::<RemoteVtepRow>() + heap
        })
        .sum();
    let without = planned(&local(), Vec::new());
    let plan = planned(&with(local(), &[("west", of)]), Vec::new());
    assert_eq!((plan.remote["west"].vteps, plan.remote["west"].endpoints), (VTEPS, VTEPS * PODS));
    let routes = plan.kernel.routes.len() - without.kernel.routes.len();
    assert_eq!(
        routes,
        usize::try_from(VTEPS * PODS + VTEPS + 1).unwrap(),
        "one for each pod and node, and the blackhole"
    );
    let entry = size_of::<RouteKey>() + size_of::<RouteTarget>();
    // The hops are on the heap, with two words of the allocator.
    let hops = size_of::<Hop>() + 2 * size_of::<usize>();
    let in_plan = routes * (entry * 3 / 2 + hops);
    // The kernel owner has the plan, and a table of the installed routes.
    let total = rows * 3 / 2 + 2 * in_plan + routes * (entry * 3 / 2 + hops);
    println!("rows {rows}, a route {entry} + {hops}, plan {in_plan}, in all {total} octets");
    assert!(total < 5_000_000, "{total} octets");
}
