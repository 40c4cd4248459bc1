//! Tables: an intent and a host on the left, the resulting plan on the right.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use trunkline_api::resources::{AttachmentKind, Network, Subnet};
use trunkline_bgp::config::PeerConfig;
use trunkline_bgp::types::{Asn, Community, Family, NextHop, PeerKey};
use trunkline_datapath::plan::*;

use super::*;

mod alternate;
mod anycast;
mod cluster_nodes;
mod hairpin;
mod join;
mod migration;
mod node_claims;
mod probes;
mod remote;
mod services;
mod translated;
mod unassigned;
mod vlan;
mod vxlan;
mod way_out;

fn network(name: &str, kind: &str, spec: serde_json::Value) -> Network {
    let mut whole = serde_json::json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name}, "spec": spec,
    });
    let (kind, mode) = kind.split_once('/').unwrap();
    whole["spec"]["type"] = kind.into();
    whole["spec"]["mode"] = mode.into();
    if kind == "Underlay" {
        whole["spec"]["nodeSelector"] = serde_json::json!({"rack": "1"});
    }
    serde_json::from_value(whole).unwrap()
}

fn bgp(name: &str, asn: u32, peers: serde_json::Value) -> Network {
    network(name, "Underlay/BGP", serde_json::json!({"netID": asn, "config": {"bgpPeers": peers}}))
}

fn subnet(name: &str, network: &str, cidr: &str, config: serde_json::Value) -> Subnet {
    let version = if cidr.contains(':') { "6" } else { "4" };
    serde_json::from_value(serde_json::json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": name},
        "spec": {"network": network, "range": {"version": version, "cidr": cidr}, "config": config},
    }))
    .unwrap()
}

fn two_tors() -> serde_json::Value {
    serde_json::json!([{"asn": 65001, "address": "192.0.2.1"}, {"asn": 65001, "address": "192.0.2.3"}])
}

fn intent(networks: Vec<Network>, subnets: Vec<Subnet>) -> Intent {
    let labels = [("rack".to_owned(), "1".to_owned())].into();
    Intent { node: NodeIdentity { name: "node1".to_owned(), labels }, networks, subnets, ..Intent::default() }
}

fn usual() -> Intent {
    intent(
        vec![bgp("rack", 65100, two_tors())],
        vec![
            subnet("v4", "rack", "10.1.0.0/16", serde_json::json!({})),
            subnet("v6", "rack", "2001:db8:1::/64", serde_json::json!({})),
        ],
    )
}

fn link(index: u32, name: &str, addresses: &[&str]) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mac: None,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        up: true,
        running: true,
        mtu: 1500 + index,
        kind: None,
        own: false,
    }
}

fn session(peer: &str, established: bool, v6: Option<&str>) -> Session {
    let next_hop = v6.map(|address| (Family::Ipv6Unicast, NextHop::V6(address.parse().unwrap())));
    Session {
        peer: peer.parse().unwrap(),
        local: None,
        established,
        was_established: established,
        next_hops: next_hop.into_iter().collect(),
        offer: PeerDefaultRoutes::default(),
    }
}

fn host(sessions: Vec<Session>) -> Host {
    let links = vec![
        link(1, "lo", &["127.0.0.1/8", "::1/128"]),
        link(2, "up1", &["192.0.2.0/31", "fe80::2/64", "2001:db8:0:1::1/64"]),
        link(3, "up2", &["192.0.2.2/31", "2001:db8:0:2::1/64"]),
        link(4, "mgmt", &["10.255.0.9/24"]),
    ];
    Host { kernel: KernelHost { links, ..KernelHost::default() }, sessions, ..Host::default() }
}

fn with_kernel(mut host: Host, edit: impl FnOnce(&mut KernelHost)) -> Host {
    edit(&mut host.kernel);
    host
}

fn key(table: u32, prefix: &str) -> RouteKey {
    RouteKey { table, prefix: prefix.parse().unwrap() }
}

fn gateways(plan: &Plan, prefix: &str) -> Vec<String> {
    match plan.kernel.routes.get(&key(10_000, prefix)) {
        Some(RouteTarget::Via(hops)) => hops.iter().map(|hop| hop.gateway.unwrap().to_string()).collect(),
        Some(RouteTarget::Blackhole) => vec!["blackhole".to_owned()],
        Some(RouteTarget::Unreachable) => vec!["unreachable".to_owned()],
        Some(RouteTarget::Throw) => vec!["throw".to_owned()],
        None => Vec::new(),
    }
}

#[test]
fn rules_lead_local_pods_the_fabric_and_subnets_to_their_tables() {
    let plan = plan(&usual(), &host(Vec::new())).unwrap();
    let rules: Vec<String> = plan
        .kernel
        .rules
        .iter()
        .filter(|rule| rule.family == IpFamily::V4)
        .map(|rule| format!("{} {:?} {:?} {}", rule.priority, rule.from, rule.iif, rule.table))
        .collect();
    assert_eq!(
        rules,
        [
            "1000 None None 39999",
            "1025 None None 254",
            "1028 None None 10000",
            "1029 None Some(\"up1\") 2170002",
            "1029 None Some(\"up2\") 2170003",
            "1030 None Some(\"up1\") 39998",
            "1030 None Some(\"up2\") 39998",
            "1100 Some(10.1.0.0/16) None 10000",
        ]
    );
    assert_eq!(plan.kernel.rules.len(), 16, "the same for IPv6");
    let blackholes: Vec<&RouteKey> = plan
        .kernel
        .routes
        .iter()
        .filter(|(_, target)| **target == RouteTarget::Blackhole)
        .map(|(key, _)| key)
        .collect();
    assert_eq!(blackholes, [&key(39_998, "10.1.0.0/16"), &key(39_998, "2001:db8:1::/64")]);
    let network = &plan.networks["rack"];
    assert_eq!((network.table(), network.mtu, network.refused.as_deref()), (Some(10_000), Some(1502), None));
    let sysctls: Vec<&str> = plan.kernel.sysctls.keys().map(String::as_str).collect();
    assert_eq!(
        sysctls,
        [
            "net/ipv4/conf/all/send_redirects",
            "net/ipv4/conf/up1/rp_filter",
            "net/ipv4/conf/up2/rp_filter",
            "net/ipv4/ip_forward",
            "net/ipv6/conf/all/forwarding"
        ]
    );
}

#[test]
fn the_default_route_follows_the_sessions() {
    let v6 = Some("2001:db8:0:1::2");
    for (sessions, v4_hops, v6_hops) in [
        (vec![], &[][..], &[][..]),
        (vec![session("192.0.2.1", false, v6)], &[], &[]),
        (vec![session("192.0.2.1", true, None)], &["192.0.2.1"], &[]),
        (
            vec![session("192.0.2.1", true, v6), session("192.0.2.3", true, Some("2001:db8:0:2::2"))],
            &["192.0.2.1", "192.0.2.3"],
            &["2001:db8:0:1::2", "2001:db8:0:2::2"],
        ),
        (vec![session("192.0.2.3", true, Some("fe80::9"))], &["192.0.2.3"], &["fe80::9"]),
    ] {
        let plan = plan(&usual(), &host(sessions.clone())).unwrap();
        assert_eq!(gateways(&plan, "0.0.0.0/0"), v4_hops, "{sessions:?}");
        assert_eq!(gateways(&plan, "::/0"), v6_hops, "{sessions:?}");
    }
    let plan = plan(&usual(), &host(vec![session("192.0.2.3", true, Some("fe80::9"))])).unwrap();
    let RouteTarget::Via(hops) = &plan.kernel.routes[&key(10_000, "::/0")] else { panic!("no hops") };
    assert_eq!(hops[0].ifindex, Some(3), "a link-local router is on the session's link");
}

#[test]
fn peers_that_import_or_do_not_route_get_no_default_route() {
    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1", "import": {}},
        {"asn": 65001, "address": "192.0.2.3"},
        {"asn": 65001, "address": "10.255.0.1", "doesNotRouteTraffic": true, "allowNotEstablished": true},
    ]);
    let intent = intent(vec![bgp("rack", 65100, peers)], Vec::new());
    let sessions = ["192.0.2.1", "192.0.2.3", "10.255.0.1"].map(|peer| session(peer, true, None));
    let plan = plan(&intent, &host(sessions.to_vec())).unwrap();
    assert_eq!(gateways(&plan, "0.0.0.0/0"), ["192.0.2.3"]);
    let learned = plan.learned.unwrap();
    assert_eq!(learned.peers, [("192.0.2.1".parse().unwrap(), Some(2))].into());
    let bgp = plan.bgp.unwrap();
    let local_pref = |peer: &str| {
        bgp.peers[&peer.parse::<PeerKey>().unwrap()].import.rules.first().and_then(|rule| rule.set.local_pref)
    };
    assert_eq!((local_pref("192.0.2.1"), local_pref("192.0.2.3")), (None, Some(0)));
    assert_eq!(bgp.optional_peers, ["10.255.0.1".parse().unwrap()].into());
}

#[test]
fn pods_are_advertised_beyond_the_rack_while_a_peer_is_down() {
    let communities = |intent: &Intent, sessions: Vec<Session>, converged: bool| {
        let plan = plan(intent, &Host { converged, ..host(sessions) }).unwrap();
        let pod = Pod {
            network: "rack".to_owned(),
            addresses: vec!["10.1.0.5".parse().unwrap()],
            host_ifname: "tl1".to_owned(),
            host_ifindex: 9,
            mac: [2, 0, 0, 0, 0, 9],
            attachment: AttachmentKind::Veth,
            extra_prefixes: BTreeSet::new(),
            migration: Default::default(),
            target_addresses: Vec::new(),
            is_virtual_machine: false,
        };
        let pod_plan = plan_pod(&plan, &pod).unwrap();
        let communities = pod_plan.originate.into_values().next().unwrap().communities;
        (communities, plan.bgp.unwrap().disaggregated)
    };
    let up = |peer: &str| session(peer, true, None);
    let lost = |peer: &str| Session { was_established: true, ..session(peer, false, None) };
    let (rack_only, everywhere) = (vec![Community::NO_EXPORT], Vec::new());
    let missing = Some("192.0.2.3".to_owned());
    let (both, one) = (vec![up("192.0.2.1"), up("192.0.2.3")], vec![up("192.0.2.1"), lost("192.0.2.3")]);
    assert_eq!(communities(&usual(), both, true), (rack_only.clone(), None));
    assert_eq!(communities(&usual(), one.clone(), true), (everywhere.clone(), missing.clone()));
    assert_eq!(communities(&usual(), vec![up("192.0.2.1")], true), (everywhere.clone(), missing.clone()));
    assert_eq!(
        communities(&usual(), vec![up("192.0.2.1")], false),
        (rack_only.clone(), None),
        "this peer may still come up"
    );
    let with = |second: serde_json::Value| {
        let peers = serde_json::json!([{"asn": 65001, "address": "192.0.2.1"}, second]);
        Intent { networks: vec![bgp("rack", 65100, peers)], ..usual() }
    };
    let optional =
        with(serde_json::json!({"asn": 65001, "address": "192.0.2.3", "allowNotEstablished": true}));
    assert_eq!(communities(&optional, vec![up("192.0.2.1")], true), (rack_only.clone(), None));
    assert_eq!(
        communities(&optional, one.clone(), true),
        (everywhere, missing),
        "a peer that was established is missing"
    );
    let collector =
        with(serde_json::json!({"asn": 65001, "address": "192.0.2.3", "doesNotRouteTraffic": true}));
    assert_eq!(communities(&collector, one.clone(), true), (rack_only.clone(), None));
    let mut never = usual();
    never.networks[0].spec.config.as_mut().unwrap().disaggregate = Some(false);
    assert_eq!(communities(&never, one, true), (rack_only, None));
}

#[test]
fn a_network_keeps_its_own_table() {
    let subnet: IpNet = "10.1.0.0/16".parse().unwrap();
    for (tables, used, expected) in [
        (vec![], vec![], 10_000),
        (vec![], vec![10_000, 10_001], 10_002),
        (vec![(subnet, 10_007)], vec![10_000], 10_007),
        (vec![("10.99.0.0/16".parse().unwrap(), 10_000)], vec![], 10_001),
        (vec![(subnet, 254)], vec![], 10_000),
    ] {
        let host = with_kernel(host(Vec::new()), |kernel| {
            kernel.tables = tables.iter().copied().collect();
            kernel.used_tables = used.iter().copied().collect();
        });
        let plan = plan(&usual(), &host).unwrap();
        assert_eq!(plan.networks["rack"].table(), Some(expected), "{tables:?} {used:?}");
    }
}

#[test]
fn the_speaker_is_planned_from_the_network_and_the_links() {
    let peers = serde_json::json!([
        {"asn": 4_200_000_000_u32, "address": "192.0.2.1", "password": "s3cret", "holdTimeSeconds": 9,
         "gracefulRestartSeconds": 0, "port": 1179, "ttlSecurity": 1},
        {"asn": 65001, "address": "2001:db8:0:2::2", "passive": true, "gracefulRestartSeconds": 60,
         "longLivedStaleSeconds": 3600, "extendedMessages": false, "bfd": {}, "addPath": {"receive": true, "send": 3}},
        {"asn": 65001, "address": "fe80::1%up1", "localAs": {"asn": 64999, "noPrepend": true}},
        {"asn": 65002, "address": "fe80::1%up2", "longLivedStaleSeconds": {"ipv6": 60}},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 4_200_000_100, peers)];
    let bgp = plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap();
    assert_eq!((bgp.local_as, bgp.router_id), (Asn(4_200_000_100), "192.0.2.0".parse().unwrap()));
    let peer = |address: &str| &bgp.peers[&address.parse::<PeerKey>().unwrap()];
    let first = peer("192.0.2.1");
    assert_eq!((first.remote_as, first.port, first.ttl_security), (Asn(4_200_000_000), 1179, Some(1)));
    assert_eq!((first.hold_time.as_secs(), first.graceful_restart), (9, Some(300)));
    assert_eq!(first.password.as_ref().unwrap().expose(), b"s3cret");
    assert_eq!(first.next_hop_v6, Some("2001:db8:0:1::1".parse().unwrap()), "global before link-local");
    assert_eq!(first.export.rules[0].when.originated, Some(true));
    let second = peer("2001:db8:0:2::2");
    assert_eq!((second.passive, second.graceful_restart), (true, Some(60)));
    assert_eq!((second.add_path.receive, second.add_path.send.map(u8::from)), (true, Some(3)));
    assert_eq!((first.extended_messages, second.extended_messages), (true, false));
    assert_eq!((first.long_lived, second.long_lived), ([None; 2], [Some(3600); 2]));
    assert_eq!((first.restart_notification, second.restart_notification), (false, true), "with BFD");
    assert_eq!(second.next_hop_v4, Some("192.0.2.2".parse().unwrap()));
    assert_eq!(peer("fe80::1%up1").paths.words(), ["local AS 64999, not prepended"]);
    assert_eq!(peer("fe80::1%up2").long_lived, [None, Some(60)]);
    assert_eq!(peer("fe80::1%up1").interface, Some("up1".parse().unwrap()));
    assert_eq!(peer("fe80::1%up2").remote_as, Asn(65002), "the same address on another link is another peer");
    let originated: BTreeMap<String, usize> = bgp
        .originate
        .iter()
        .map(|(prefix, origination)| (prefix.to_string(), origination.communities.len()))
        .collect();
    assert_eq!(originated, [("10.1.0.0/16".to_owned(), 0), ("2001:db8:1::/64".to_owned(), 0)].into());

    intent.router_id = Some("203.0.113.7".parse().unwrap());
    assert_eq!(plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap().router_id.to_string(), "203.0.113.7");
    intent.router_id = None;
    let bare = plan(&intent, &Host::default()).unwrap().bgp.unwrap();
    assert!(!bare.router_id.is_unspecified(), "a host without IPv4 has an identifier too");
}

#[test]
fn only_a_route_reflector_advertises_received_paths() {
    let exports = |peers: serde_json::Value| {
        let mut intent = usual();
        intent.networks = vec![bgp("rack", 65100, peers)];
        let bgp = plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap();
        let of = |peer: &PeerConfig| (peer.paths.words(), peer.export.rules.is_empty());
        bgp.peers.values().map(of).collect::<Vec<_>>()
    };
    let external = serde_json::json!({"asn": 65001, "address": "192.0.2.1", "gracefulShutdown": true, "localRole": "rs-client"});
    let internal = serde_json::json!({"asn": 65100, "address": "192.0.2.3"});
    let client = serde_json::json!({"asn": 65100, "address": "192.0.2.5", "routeReflectorClient": true});
    let shutdown = (vec!["graceful shutdown".to_owned(), "local role rs-client".to_owned()], false);
    assert_eq!(exports(serde_json::json!([external, internal])), [shutdown.clone(), (vec![], false)]);
    assert_eq!(
        exports(serde_json::json!([external, internal, client])),
        [shutdown, (vec![], true), (vec!["route reflector client".to_owned()], true)]
    );
}

#[test]
fn graceful_shutdown_is_advertised_to_all_peers() {
    let planned = |shutdown: serde_json::Value| {
        let mut intent = usual();
        let config = serde_json::json!({"bgpPeers": two_tors(), "gracefulShutdown": shutdown});
        let spec = serde_json::json!({"netID": 65100, "config": config});
        intent.networks = vec![network("rack", "Underlay/BGP", spec)];
        let bgp = plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap();
        let announced: Vec<bool> = bgp.peers.values().map(|peer| peer.paths.graceful_shutdown).collect();
        (bgp.graceful_shutdown, announced)
    };
    let (stays, goes) = ((false, vec![false, false]), (true, vec![true, true]));
    for (shutdown, expected) in [
        (serde_json::json!(null), &stays),
        (serde_json::json!({}), &goes),
        (serde_json::json!({"nodeSelector": {"rack": "1"}}), &goes),
        (serde_json::json!({"nodeSelector": {"rack": "1", "kubernetes.io/hostname": "node2"}}), &stays),
    ] {
        assert_eq!(planned(shutdown.clone()), *expected, "{shutdown}");
    }
}

#[test]
fn an_unnumbered_peer_is_planned_after_discovery_on_an_up_link() {
    let peers = serde_json::json!([
        {"asn": 65001, "interface": "up1", "import": {}},
        {"asn": 65002, "interface": "up2", "allowNotEstablished": true},
        {"asn": 65003, "interface": "up9"},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, peers)];
    let mut host = host(Vec::new());
    let waiting = plan(&intent, &host).unwrap();
    let bgp = waiting.bgp.unwrap();
    assert_eq!((bgp.peers.len(), bgp.optional_peers.len()), (0, 0));
    let searched: Vec<_> = bgp
        .unnumbered
        .iter()
        .map(|(name, peer)| (name.as_str(), peer.remote_as.0, peer.optional, peer.link, peer.found))
        .collect();
    let expected = [
        ("up1", 65001, false, Some(2), false),
        ("up2", 65002, true, Some(3), false),
        ("up9", 65003, false, None, false),
    ];
    assert_eq!(searched, expected);
    let uplinks = waiting.kernel.rules.iter().filter(|rule| rule.priority == 1030).count();
    assert_eq!(uplinks, 4, "the uplinks' rules for the fabric exist already");

    // The same address on two interfaces means two peers. up9 does not exist, although a router was
    // discovered on it.
    let found: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
    host.neighbours = ["up1", "up2", "up9"].map(|name| (name.parse().unwrap(), found)).into();
    host.sessions = ["fe80::1%up1", "fe80::1%up2"].map(|peer| session(peer, true, None)).to_vec();
    let v4 = NextHop::V6(found);
    for session in &mut host.sessions {
        session.next_hops.insert(Family::Ipv4Unicast, v4);
    }
    let whole = plan(&intent, &host).unwrap();
    let bgp = whole.bgp.as_ref().unwrap();
    let names: Vec<String> = bgp.peers.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["fe80::1%up1", "fe80::1%up2"]);
    assert_eq!(bgp.optional_peers, ["fe80::1%up2".parse().unwrap()].into());
    for peer in bgp.peers.values() {
        assert_eq!(
            (peer.next_hop_v4, peer.next_hop_v6),
            (None, None),
            "the session's address in both families"
        );
    }
    let learned = whole.learned.as_ref().unwrap();
    assert_eq!(learned.peers, [("fe80::1%up1".parse().unwrap(), Some(2))].into());
    for prefix in ["0.0.0.0/0", "::/0"] {
        let hop = Hop::by(found.into(), 3);
        assert_eq!(
            whole.kernel.routes.get(&key(10_000, prefix)),
            Some(&RouteTarget::via(vec![hop])),
            "{prefix}"
        );
    }

    host.kernel.links[1].up = false;
    let down = plan(&intent, &host).unwrap().bgp.unwrap();
    assert_eq!(down.peers.keys().map(ToString::to_string).collect::<Vec<_>>(), ["fe80::1%up2"]);
}

#[test]
fn dynamic_neighbours_are_peers_once_connected() {
    let peers = |import: serde_json::Value| {
        serde_json::json!([
            {"asn": 65001, "address": "192.0.2.1"},
            {"asn": 65010, "prefix": "192.0.2.0/24", "limit": 7, "import": import, "password": "s3cret"},
            {"asn": 65011, "prefix": "2001:db8:0:2::/64", "allowNotEstablished": true},
        ])
    };
    let came = ["192.0.2.1", "192.0.2.3", "198.51.100.1"].map(|peer| session(peer, true, None));
    let plan_of = |import, sessions: Vec<Session>| {
        let mut intent = usual();
        intent.networks = vec![bgp("rack", 65100, peers(import))];
        plan(&intent, &host(sessions)).unwrap()
    };
    let none = plan_of(serde_json::Value::Null, Vec::new());
    let bgp = none.bgp.as_ref().unwrap();
    assert_eq!(bgp.peers.keys().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.1"]);
    let prefixes = ["192.0.2.0/24", "2001:db8:0:2::/64"].map(|prefix| prefix.parse::<IpNet>().unwrap());
    assert!(bgp.ranges.keys().eq(&prefixes));
    let range = &bgp.ranges[&prefixes[0]];
    assert_eq!((range.limit, range.template.remote_as), (7, Asn(65010)));
    assert_eq!(range.template.password.as_ref().unwrap().expose(), b"s3cret");
    assert_eq!(bgp.ranges[&prefixes[1]].limit, 100);
    assert_eq!(
        bgp.ranges[&prefixes[1]].template.next_hop_v4,
        Some("192.0.2.2".parse().unwrap()),
        "by the link"
    );
    assert_eq!(bgp.optional_ranges, [prefixes[1]].into());
    assert!(gateways(&none, "0.0.0.0/0").is_empty(), "no neighbour is connected");

    // A connected dynamic neighbour is a next hop. A session with an unknown peer is not.
    let some = plan_of(serde_json::Value::Null, came.to_vec());
    assert_eq!(gateways(&some, "0.0.0.0/0"), ["192.0.2.1", "192.0.2.3"]);
    assert_eq!(some.bgp, none.bgp, "the speaker's configuration does not change");
    // With an import policy, the neighbour's routes are imported instead.
    let importing = plan_of(serde_json::json!({"default": "accept"}), came.to_vec());
    assert_eq!(gateways(&importing, "0.0.0.0/0"), ["192.0.2.1"]);
    assert_eq!(importing.learned.unwrap().peers, [("192.0.2.3".parse().unwrap(), Some(3))].into());
}

#[test]
fn a_prefix_that_overlaps_a_subnet_is_refused_by_name() {
    let peers = |wide: &str| {
        serde_json::json!([
            {"asn": 65001, "address": "192.0.2.1"},
            {"asn": 65010, "prefix": wide, "limit": 7},
            {"asn": 65011, "prefix": "2001:db8:0:2::/64", "allowNotEstablished": true},
        ])
    };
    let plan_of = |prefix: &str, sessions: &[&str]| {
        let mut intent = usual();
        intent.networks = vec![bgp("rack", 65100, peers(prefix))];
        // Subnets of other networks and of other nodes count too.
        intent.subnets.push(subnet("far", "elsewhere", "172.16.3.0/24", serde_json::json!({})));
        let sessions = sessions.iter().map(|peer| session(peer, true, None)).collect();
        plan(&intent, &host(sessions)).unwrap()
    };
    for (prefix, pod, overlap) in [
        ("10.0.0.0/8", "10.1.0.7", "10.0.0.0/8 overlaps 10.1.0.0/16 of Subnet v4"),
        ("10.1.3.0/24", "10.1.3.7", "10.1.3.0/24 overlaps 10.1.0.0/16 of Subnet v4"),
        ("172.16.0.0/12", "172.16.3.7", "172.16.0.0/12 overlaps 172.16.3.0/24 of Subnet far"),
    ] {
        let planned = plan_of(prefix, &["192.0.2.1", pod]);
        // The pod's session is older than the Subnet, and is no next hop.
        assert_eq!(gateways(&planned, "0.0.0.0/0"), ["192.0.2.1"], "{prefix}");
        let bgp = planned.bgp.unwrap();
        let refused = &bgp.refused_ranges[&prefix.parse::<IpNet>().unwrap()];
        let start = format!("Network rack: spec.config.bgpPeers[1].prefix: {overlap}");
        assert!(refused.fault.starts_with(&start), "{}", refused.fault);
        assert_eq!((refused.remote_as, refused.limit), (Asn(65010), 7));
        let all: Vec<String> = bgp.ranges.keys().map(ToString::to_string).collect();
        assert_eq!(all, ["2001:db8:0:2::/64"], "the other prefix stays");
        assert_eq!(bgp.peers.len(), 1, "the configured peer stays");
    }
    assert!(plan_of("192.0.2.0/24", &[]).bgp.unwrap().refused_ranges.is_empty());
}

#[test]
fn bfd_is_multihop_where_the_peer_may_be_behind_a_router() {
    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1", "bfd": {}},
        {"asn": 65001, "address": "192.0.2.3", "bfd": {"intervalMilliseconds": 50, "multiplier": 5}, "ebgpMultihop": 2},
        {"asn": 65001, "address": "198.51.100.1", "bfd": {}},
        {"asn": 65001, "address": "198.51.100.2", "bfd": {}, "ttlSecurity": 2},
        {"asn": 65100, "address": "2001:db8:0:2::2", "bfd": {}},
        {"asn": 65100, "address": "2001:db8:0:9::2", "bfd": {}},
        {"asn": 65100, "address": "fe80::1%up1", "bfd": {}},
        {"asn": 65001, "address": "192.0.2.5"},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, peers)];
    let bgp = plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap();
    let bfd = |address: &str| {
        let config = bgp.peers[&address.parse::<PeerKey>().unwrap()].bfd.clone()?;
        Some((config.interval.as_millis(), config.multiplier, config.multihop))
    };
    assert_eq!(bfd("192.0.2.1"), Some((300, 3, false)), "the defaults");
    assert_eq!(bfd("192.0.2.3"), Some((50, 5, true)), "ebgpMultihop");
    assert_eq!(bfd("198.51.100.1"), Some((300, 3, false)), "external, on no connected network");
    assert_eq!(bfd("198.51.100.2"), Some((300, 3, true)), "ttlSecurity of two hops");
    assert_eq!(bfd("2001:db8:0:2::2"), Some((300, 3, false)), "internal, on a connected network");
    assert_eq!(bfd("2001:db8:0:9::2"), Some((300, 3, true)), "internal, elsewhere");
    assert_eq!(bfd("fe80::1%up1"), Some((300, 3, false)));
    assert_eq!(bfd("192.0.2.5"), None);
}

#[test]
fn a_pod_is_a_route_a_neighbour_and_an_advertisement() {
    let mut intent = usual();
    intent.networks.push(network("global", "GlobalBGP/GlobalBGP", serde_json::json!({})));
    intent.subnets.push(subnet("any", "global", "10.7.0.0/16", serde_json::json!({})));
    let plan = plan(&intent, &host(Vec::new())).unwrap();
    assert_eq!(plan.networks["global"].table(), Some(10_000), "the underlay's");
    assert!(!plan.bgp.as_ref().unwrap().originate.contains_key(&"10.7.0.0/16".parse::<IpNet>().unwrap()));
    let pod = |network: &str, address: &str| Pod {
        network: network.to_owned(),
        addresses: vec![address.parse().unwrap(), "2001:db8:1::5".parse().unwrap()],
        host_ifname: "tl0123456789ab".to_owned(),
        host_ifindex: 7,
        mac: [2, 0, 0, 0, 0, 1],
        attachment: AttachmentKind::Veth,
        extra_prefixes: Default::default(),
        migration: Default::default(),
        target_addresses: Vec::new(),
        is_virtual_machine: false,
    };
    for (network, address, communities) in
        [("rack", "10.1.0.5", vec![Community::NO_EXPORT]), ("global", "10.7.0.5", vec![])]
    {
        let planned = plan_pod(&plan, &pod(network, address)).unwrap();
        let prefix: IpNet = format!("{address}/32").parse().unwrap();
        let on_link = RouteTarget::via(vec![Hop::link(7)]);
        assert_eq!(planned.kernel.routes[&RouteKey { table: 39_999, prefix }], on_link);
        assert_eq!(planned.originate[&prefix].communities, communities);
        assert_eq!(
            (planned.kernel.routes.len(), planned.kernel.neighbours.len(), planned.originate.len()),
            (2, 2, 2)
        );
    }
    assert!(matches!(plan_pod(&plan, &pod("none", "10.1.0.5")), Err(PlanError::NoNetwork { .. })));
}

#[test]
fn a_pod_sends_from_prefixes_that_its_network_allows() {
    let prefixes =
        |texts: &[&str]| -> BTreeSet<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let planned = |allowed: &[&str], asks: &[&str]| {
        let mut intent = usual();
        let network = &mut intent.networks[0];
        network.spec.config.get_or_insert_default().extra_prefixes =
            allowed.iter().map(|text| (*text).to_owned()).collect();
        let name = network.name().to_owned();
        let plan = plan(&intent, &host(Vec::new())).unwrap();
        let pod = Pod {
            network: name.clone(),
            addresses: vec!["10.1.0.5".parse().unwrap()],
            host_ifname: "tl0123456789ab".to_owned(),
            host_ifindex: 7,
            mac: [2, 0, 0, 0, 0, 1],
            attachment: AttachmentKind::Veth,
            extra_prefixes: prefixes(asks),
            migration: Default::default(),
            target_addresses: Vec::new(),
            is_virtual_machine: false,
        };
        let refused: Vec<String> =
            plan.networks[&name].refused_prefixes(&name, &pod.extra_prefixes).collect();
        let planned = plan_pod(&plan, &pod).unwrap();
        assert_eq!(
            (planned.kernel.routes.len(), planned.originate.len()),
            (1, 1),
            "no route leads to a prefix"
        );
        (planned.kernel.sources, refused.len())
    };
    const BOTH: &[&str] = &["10.9.0.0/16", "fd00:9::/48"];
    for (allowed, asks, sources, refused) in [
        (BOTH, &[][..], &[][..], 0),
        (BOTH, BOTH, BOTH, 0),
        (BOTH, &["10.9.1.0/24", "fd00:9:0:1::/64"], &["10.9.1.0/24", "fd00:9:0:1::/64"], 0),
        (&[], BOTH, &[], 2),
        (BOTH, &["10.8.0.0/15", "10.9.1.0/24", "::/0"], &["10.9.1.0/24"], 2),
        // A set contains no range inside another range.
        (BOTH, &["10.9.0.0/24", "10.9.0.128/25", "10.9.1.0/24"], &["10.9.0.0/23"], 0),
        (&["0.0.0.0/0"], &["10.9.0.0/16", "0.0.0.0/0"], &["0.0.0.0/0"], 0),
    ] {
        assert_eq!(planned(allowed, asks), (prefixes(sources), refused), "{allowed:?} {asks:?}");
    }
}

#[test]
fn unservable_resources_are_refused_by_name() {
    let global = network("global", "GlobalBGP/GlobalBGP", serde_json::json!({}));
    let elsewhere = {
        let mut network = bgp("elsewhere", 65100, two_tors());
        network.spec.node_selector = [("rack".to_owned(), "2".to_owned())].into();
        network
    };
    let planned = plan(&intent(vec![global, elsewhere], Vec::new()), &host(Vec::new())).unwrap();
    let guard = planned.kernel.guard.clone();
    assert!(guard.enabled, "always");
    assert!(!guard.checks_errors, "a node outside of a cluster tracks no connections for the guard");
    let nothing = KernelPlan { guard, ..KernelPlan::default() };
    assert!(planned.bgp.is_none() && planned.kernel == nothing, "the plan has no object for them");
    assert!(planned.networks["global"].refused.as_ref().unwrap().contains("needs an Underlay network"));
    assert!(!planned.networks.contains_key("elsewhere"));

    let mut odd = usual();
    odd.subnets.push(subnet("odd", "rack", "10.2.0.0/16", serde_json::json!({"gatewayType": "x"})));
    let planned = plan(&odd, &host(Vec::new())).unwrap();
    assert!(planned.networks["rack"].refused_subnets["odd"].contains("gatewayType"));
    assert!(!planned.networks["rack"].subnets.contains_key("odd"));

    for (second, text) in
        [(65200, "different local AS numbers (65100 and 65200)"), (65100, "keep them apart")]
    {
        let networks = vec![bgp("a", 65100, two_tors()), bgp("b", second, two_tors())];
        let errors = plan(&intent(networks, Vec::new()), &host(Vec::new())).unwrap_err();
        assert!(errors[0].to_string().contains(text), "{}", errors[0]);
    }
    let peers = serde_json::json!([{"asn": 1, "address": "tor1"}]);
    let errors = plan(&intent(vec![bgp("a", 1, peers)], Vec::new()), &host(Vec::new())).unwrap_err();
    assert!(errors[0].to_string().contains("bgpPeers[0].address"), "{}", errors[0]);
}

#[test]
fn only_configured_subnets_are_masqueraded_to_the_outside() {
    let mut intent = usual();
    intent.subnets.push(subnet("out", "rack", "10.3.0.0/16", serde_json::json!({"autoNatOutgoing": true})));
    intent.subnets.push(subnet(
        "else",
        "another",
        "10.4.0.0/16",
        serde_json::json!({"autoNatOutgoing": true}),
    ));
    let nat = plan(&intent, &host(Vec::new())).unwrap().kernel.nat;
    let texts =
        |prefixes: &BTreeSet<IpNet>| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(texts(&nat.sources), "10.3.0.0/16", "the other network is not on this node");
    assert_eq!(texts(&nat.inside), "10.1.0.0/16 10.3.0.0/16 10.4.0.0/16 2001:db8:1::/64");
}

#[test]
fn equal_inputs_give_equal_plans_in_any_order() {
    let mut other = usual();
    other.subnets.reverse();
    let sessions = [session("192.0.2.1", true, None), session("192.0.2.3", true, None)];
    let mut turned = sessions.clone();
    turned.reverse();
    assert_eq!(plan(&usual(), &host(sessions.to_vec())), plan(&other, &host(turned.to_vec())));
}

#[test]
fn policies_are_copied_rule_for_rule() {
    use trunkline_bgp::policy::{Policy, PolicyResult};

    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1", "export": {"rules": [
            {"name": "tag", "originated": true, "prefixSets": ["pods", "more"], "set": {"setCommunities": [], "med": 7}},
            {"prefixes": [{"prefix": "10.9.0.0/16"}], "nextHops": ["192.0.2.0/24"],
             "asPath": {"minLength": 1, "maxLength": 3, "originAs": [65009]}, "action": "accept"},
        ]}},
        {"asn": 65001, "address": "192.0.2.3", "export": {"default": "accept"}},
        {"asn": 65001, "address": "192.0.2.5"},
    ]);
    let mut network = bgp("rack", 65100, peers);
    network.spec.config.as_mut().unwrap().prefix_sets = serde_json::from_value(serde_json::json!({
        "pods": [{"prefix": "10.1.0.0/16", "le": 32}], "more": [{"prefix": "10.2.0.0/16"}],
    }))
    .unwrap();
    let intent = intent(vec![network], Vec::new());
    let plan = plan(&intent, &host(Vec::new())).unwrap().bgp.unwrap();
    let export = |peer: &str| plan.peers[&PeerKey::from(peer.parse::<IpAddr>().unwrap())].export.clone();
    let first = export("192.0.2.1");
    // Undecided paths behave as without rules.
    assert_eq!((first.rules.len(), first.default), (3, PolicyResult::Reject));
    assert_eq!(first.rules[2..], Policy::originated_only().rules);
    let tag = &first.rules[0];
    assert_eq!((tag.name.as_deref(), tag.when.originated, tag.verdict), (Some("tag"), Some(true), None));
    assert_eq!(tag.when.prefixes.entries().len(), 2);
    assert!(tag.when.prefixes.contains(&"10.1.2.0/24".parse().unwrap()));
    assert!(!tag.when.prefixes.contains(&"10.2.2.0/24".parse().unwrap()));
    assert_eq!((tag.set.communities.replace.as_deref(), tag.set.med), (Some(&[][..]), Some(7)));
    let second = &first.rules[1];
    assert_eq!((second.when.as_path.length.clone(), second.verdict), (1..=3, Some(PolicyResult::Accept)));
    assert_eq!(second.when.as_path.origin_as, [Asn(65009)]);
    assert!(second.when.next_hops.contains(&"192.0.2.77/32".parse().unwrap()));
    assert_eq!(export("192.0.2.3"), Policy::accept_all());
    assert_eq!(export("192.0.2.5"), Policy::originated_only());
}
