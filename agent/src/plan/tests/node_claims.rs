//! Claims of other nodes' NodeInfos: the table of claims.

use serde_json::json;
use trunkline_api::resources::{AnycastAddress, NodeInfo, ServicePool};

use super::*;
use crate::plan::node_claims::accept;

/// A NodeInfo; `created` orders them.
pub(super) fn node(name: &str, created: &str, ip: &str, mac: &str, local: &[&str]) -> NodeInfo {
    serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"vtepInfo": {"ip": ip, "mac": mac, "localIPs": local}},
    }))
    .unwrap()
}

/// A node in the prefix 10.1.0.0/24 with the router 10.1.0.1, and a cluster with pools of every
/// kind.
pub(super) fn cluster() -> (Intent, Host) {
    let mut intent = usual();
    intent.in_cluster = true;
    intent.networks = vec![
        network("overlay", "Overlay/VXLAN", json!({"netID": 100})),
        bgp("rack", 65_001, json!([{"asn": 65_000, "address": "10.1.0.5"}])),
    ];
    let mut pods = subnet("pods", "rack", "10.1.0.128/25", json!({}));
    pods.spec.range.gateway = "10.1.0.129".to_owned();
    pods.spec.range.exclude_ips = vec!["10.1.0.140".to_owned()];
    intent.subnets = vec![pods];
    intent.service_cidrs = ["10.1.0.64/29".parse().unwrap()].into();
    let pool: ServicePool = serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "vips"},
        "spec": {"addresses": ["10.1.0.80-10.1.0.89"]},
    }))
    .unwrap();
    let anycast: AnycastAddress = serde_json::from_value(json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress", "metadata": {"name": "dns"},
        "spec": {"addresses": ["10.1.0.99"]},
    }))
    .unwrap();
    (intent.services.pools, intent.services.anycast) = (vec![pool], vec![anycast]);
    let host = with_kernel(host(Vec::new()), |kernel| {
        kernel.links = vec![
            link(2, "eth1", &["10.1.0.11/24", "2001:db8:1::11/64"]),
            link(3, "docker0", &["172.17.0.1/16"]),
        ];
        kernel.default_link = Some(2);
        kernel.gateways = [(IpFamily::V4, Hop::by("10.1.0.1".parse().unwrap(), 2))].into();
    });
    (intent, host)
}

/// The accepted addresses of `evil`, and the first fault.
fn claimed(intent: &Intent, host: &Host) -> (Vec<String>, String) {
    let accepted = accept(intent, host);
    let local = accepted.vtep("evil").map(|vtep| vtep.local.iter().map(ToString::to_string).collect());
    let fault = accepted.ignored.faults.first().map(ToString::to_string).unwrap_or_default();
    (local.unwrap_or_default(), fault)
}

#[test]
fn a_node_attracts_no_packets_for_foreign_addresses() {
    let nodes = |ip: &str, local: &[&str]| {
        vec![
            node("n2", "2026-01-02T00:00:00Z", "10.1.0.12", "", &["2001:db8:1::12"]),
            node("evil", "2026-01-03T00:00:00Z", ip, "", local),
        ]
    };
    let (intent, host) = cluster();
    for (case, address, fault) in [
        ("router of the host", "10.1.0.1", "10.1.0.1 is a router of this host"),
        ("BGP peer", "10.1.0.5", "10.1.0.5 is a BGP peer of Network rack"),
        ("gateway of a Subnet", "10.1.0.129", "is the gateway of Subnet pods"),
        ("pod", "10.1.0.130", "10.1.0.130 is in Subnet pods"),
        ("Service", "10.1.0.65", "10.1.0.65 is in serviceCIDRs"),
        ("pool", "10.1.0.85", "10.1.0.85 is in ServicePool vips"),
        ("anycast", "10.1.0.99", "10.1.0.99 is in AnycastAddress dns"),
        ("this node", "10.1.0.11", "10.1.0.11 belongs to node node1"),
        ("this node's other link", "172.17.0.1", "172.17.0.1 belongs to node node1"),
        ("VTEP of another node", "10.1.0.12", "10.1.0.12 belongs to node n2"),
        ("address of another node", "2001:db8:1::12", "2001:db8:1::12 is in localIPs of node"),
        ("outside", "8.8.8.8", "8.8.8.8 is in no connected prefix of this node's uplinks"),
        ("outside, IPv6", "2001:db8:99::1", "is in no connected prefix"),
        ("no uplink", "172.17.0.9", "172.17.0.9 is in no connected prefix"),
        ("loopback", "127.0.0.1", "no unicast address"),
        ("link-local", "fe80::1", "no unicast address"),
        ("multicast", "224.0.0.5", "no unicast address"),
        ("broadcast", "255.255.255.255", "no unicast address"),
        ("broadcast of the rack", "10.1.0.255", "10.1.0.255 is no unicast address"),
        ("default", "0.0.0.0", "no unicast address"),
        ("another one of the rack", "10.1.0.20", ""),
        ("excluded from the Subnet", "10.1.0.140", ""),
        ("the rack's IPv6 prefix", "2001:db8:1::66", ""),
    ] {
        let nodes = nodes("10.1.0.50", &[address]);
        let (mut local, reason) = claimed(&Intent { nodes, ..intent.clone() }, &host);
        let expected = if fault.is_empty() { vec!["10.1.0.50", address] } else { vec!["10.1.0.50"] };
        local.sort_by_key(|address| address != "10.1.0.50");
        assert_eq!(local, expected, "{case}: {reason}");
        assert!(reason.contains(fault) && reason.is_empty() == fault.is_empty(), "{case}: {reason}");
    }
}

#[test]
fn an_address_in_two_lists_belongs_to_neither_node() {
    let (intent, host) = cluster();
    let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    for (evil, other) in [(first, second), (second, first)] {
        let nodes = vec![
            node("n2", other, "10.1.0.12", "", &["2001:db8:1::12", "10.1.0.22"]),
            node("n3", other, "10.1.0.13", "", &[]),
            // `ip` has precedence.
            node("evil", evil, "10.1.0.50", "", &["2001:db8:1::12", "10.1.0.13", "2001:db8:1::66"]),
        ];
        let accepted = accept(&Intent { nodes, ..intent.clone() }, &host);
        let local = |name: &str| {
            accepted.vtep(name).unwrap().local.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(local("n2"), ["10.1.0.12", "10.1.0.22"]);
        assert_eq!(local("n3"), ["10.1.0.13"]);
        assert_eq!(local("evil"), ["10.1.0.50", "2001:db8:1::66"]);
        assert_eq!(accepted.ignored.addresses, 3);
        let faults: Vec<String> = accepted.ignored.faults.iter().map(ToString::to_string).collect();
        let both = |one: &str, two: &str| {
            let start = format!("NodeInfo {one}: spec.vtepInfo.localIPs: ");
            let words = format!("2001:db8:1::12 is in localIPs of node {two} too");
            faults.iter().any(|fault| fault.starts_with(&start) && fault.contains(&words))
        };
        assert!(both("n2", "evil") && both("evil", "n2"), "{faults:?}");
    }
}

#[test]
fn vtep_of_another_rack_is_accepted_and_foreign_vteps_are_not() {
    let (intent, host) = cluster();
    for (case, ip, mac, fault) in [
        ("another rack", "10.2.0.50", "", ""),
        ("a route reflector", "10.1.0.5", "", ""),
        ("router", "10.1.0.1", "", "spec.vtepInfo.ip: 10.1.0.1 is a router of this host"),
        ("pod", "10.1.0.130", "", "spec.vtepInfo.ip: 10.1.0.130 is in Subnet pods"),
        ("this node", "10.1.0.11", "", "belongs to node node1"),
        ("older node", "10.1.0.12", "", "belongs to node n2"),
        (
            "MAC of the older node",
            "10.1.0.50",
            "02:12:0a:01:00:0c",
            "spec.vtepInfo.mac: 02:12:0a:01:00:0c belongs to node n2",
        ),
        ("MAC of this node", "10.1.0.50", "02:12:0a:01:00:0b", "belongs to node node1"),
    ] {
        let nodes = vec![
            node("n2", "2026-01-02T00:00:00Z", "10.1.0.12", "", &[]),
            node("evil", "2026-01-03T00:00:00Z", ip, mac, &[]),
        ];
        let (local, reason) = claimed(&Intent { nodes, ..intent.clone() }, &host);
        assert_eq!(local.is_empty(), !fault.is_empty(), "{case}: {reason}");
        assert!(reason.contains(fault), "{case}: {reason}");
    }
}

#[test]
fn configured_prefixes_bound_all_claims() {
    let (mut intent, host) = cluster();
    intent.tunnels.node_prefixes = vec!["10.2.0.0/16".parse().unwrap(), "2001:db8:2::/64".parse().unwrap()];
    let of = |ip: &str, local: &[&str]| vec![node("evil", "2026-01-03T00:00:00Z", ip, "", local)];
    for (case, ip, local, accepted, fault) in [
        ("another rack", "10.2.0.50", &["2001:db8:2::50"][..], 2, ""),
        ("outside", "10.2.0.50", &["8.8.8.8"], 1, "8.8.8.8 is outside of nodeAddressCIDRs"),
        (
            "the connected prefix is not listed",
            "10.1.0.50",
            &[],
            0,
            "10.1.0.50 is outside of nodeAddressCIDRs",
        ),
    ] {
        let (found, reason) = claimed(&Intent { nodes: of(ip, local), ..intent.clone() }, &host);
        assert_eq!(found.len(), accepted, "{case}: {reason}");
        assert!(reason.contains(fault), "{case}: {reason}");
    }
}

/// In files, nodes and pods can share the prefix of a VLAN without `excludeIPs` for each node.
#[test]
fn in_files_only_an_address_with_another_owner_is_ignored() {
    let (mut intent, host) = cluster();
    intent.in_cluster = false;
    for (case, ip, local, fault) in [
        ("in the VLAN's prefix", "10.1.0.150", "10.1.0.151", ""),
        ("outside of the pods' range", "10.1.0.50", "10.1.0.65", ""),
        ("another rack", "10.2.0.50", "2001:db8:2::50", "2001:db8:2::50 is in no connected prefix"),
        ("an outside host", "10.1.0.50", "8.8.8.8", "8.8.8.8 is in no connected prefix"),
        ("gateway", "10.1.0.50", "10.1.0.129", "10.1.0.129 is the gateway of Subnet pods"),
        ("router", "10.1.0.50", "10.1.0.1", "10.1.0.1 is a router of this host"),
        ("this node", "10.1.0.50", "10.1.0.11", "10.1.0.11 belongs to node node1"),
    ] {
        let nodes = vec![node("evil", "", ip, "", &[local])];
        let (found, reason) = claimed(&Intent { nodes, ..intent.clone() }, &host);
        assert_eq!(found.len(), if fault.is_empty() { 2 } else { 1 }, "{case}: {reason}");
        assert!(reason.contains(fault) && reason.is_empty() == fault.is_empty(), "{case}: {reason}");
    }
    intent.tunnels.node_prefixes = vec!["10.1.0.0/24".parse().unwrap()];
    intent.nodes = vec![node("evil", "", "10.1.0.150", "", &["10.2.0.50"])];
    assert!(claimed(&intent, &host).1.contains("10.2.0.50 is outside of nodeAddressCIDRs"));
}

#[test]
fn ignored_claims_have_no_routes_and_are_in_the_plan() {
    let (mut intent, host) = cluster();
    intent.nodes = vec![node("evil", "", "10.1.0.50", "", &["10.1.0.1", "8.8.8.8"])];
    let planned = plan(&intent, &host).unwrap();
    assert_eq!((planned.ignored_claims.vteps, planned.ignored_claims.addresses), (0, 2));
    let attracted = planned.kernel.nat.inside.iter().filter(|prefix| prefix.to_string().ends_with("/32"));
    let attracted: Vec<String> = attracted.map(ToString::to_string).collect();
    assert!(
        !attracted.iter().any(|prefix| ["10.1.0.1/32", "8.8.8.8/32"].contains(&prefix.as_str())),
        "{attracted:?}"
    );
}

#[test]
fn a_node_has_one_fault_of_each_field_and_hides_no_other_node() {
    let (intent, host) = cluster();
    let foreign: Vec<String> = (0..64).map(|last| format!("8.8.8.{last}")).collect();
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let nodes = vec![
        node("evil", "2026-01-01T00:00:00Z", "10.1.0.50", "", &foreign),
        node("n2", "2026-01-02T00:00:00Z", "10.1.0.12", "", &["9.9.9.9"]),
    ];
    let ignored = accept(&Intent { nodes, ..intent }, &host).ignored;
    assert_eq!((ignored.addresses, ignored.faults.len()), (65, 2));
    let texts: Vec<String> = ignored.faults.iter().map(ToString::to_string).collect();
    assert!(texts[0].starts_with("NodeInfo evil: spec.vtepInfo.localIPs: 8.8.8.0 is in no"), "{texts:?}");
    assert!(texts[0].len() < 1_000 && texts[0].ends_with(" more faults"), "{texts:?}");
    assert!(texts[1].starts_with("NodeInfo n2: spec.vtepInfo.localIPs: 9.9.9.9 is in no"), "{texts:?}");
}
