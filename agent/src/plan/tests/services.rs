//! Service addresses: ServiceAdvertisements and used tags on the left, the peers' export rules and
//! the blackholes on the right.

use trunkline_bgp::policy::{Members, PolicyResult};
use trunkline_bgp::types::Tag;

use super::*;

fn own<T: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: serde_json::Value) -> T {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

/// Two ToRs, an unnumbered peer and a prefix of dynamic neighbours, with these advertisements. Tags
/// are numbers from 1 on, in the order of the list; `used` have prefixes.
fn advertising(advertisements: &[(&str, serde_json::Value)], used: &[u16]) -> Intent {
    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1"},
        {"asn": 65001, "address": "192.0.2.3", "export": {"rules": [{"name": "mine", "set": {"med": 5}}]}},
        {"asn": 65001, "address": "fe80::9%up2"},
        {"asn": 65002, "interface": "mgmt"},
        {"asn": 65003, "prefix": "10.255.0.0/24"},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, peers)];
    intent.service_tags.name(advertisements.iter().map(|(name, _)| *name));
    intent.service_tags.use_tags(&used.iter().copied().map(Tag).collect::<Vec<_>>());
    intent.services.complete = true;
    intent.services.advertisements =
        advertisements.iter().map(|(name, spec)| own("ServiceAdvertisement", name, spec.clone())).collect();
    intent
}

/// The export rules of each peer for service addresses: name, tags, changes and result.
fn rules(intent: &Intent) -> BTreeMap<String, Vec<String>> {
    let mut host = host(Vec::new());
    host.neighbours = [("mgmt".parse().unwrap(), "fe80::77".parse().unwrap())].into();
    let bgp = plan(intent, &host).unwrap().bgp.unwrap();
    let of = |config: &PeerConfig| {
        let rules = config.export.rules.iter().take_while(|rule| rule.when.tags != Members::default());
        let shown = rules.map(|rule| {
            assert_eq!(rule.when.originated, Some(true));
            let tags = |tags: &[Tag]| tags.iter().map(|tag| tag.0.to_string()).collect::<Vec<_>>().join(",");
            let mut words = format!(
                "{}: any of {}",
                rule.name.as_deref().unwrap_or_default(),
                tags(&rule.when.tags.any_of)
            );
            if !rule.when.tags.none_of.is_empty() {
                words += &format!(" none of {}", tags(&rule.when.tags.none_of));
            }
            let set = &rule.set;
            let communities = set.communities.add.iter().map(|one| format!(" +{one}"));
            let large = set.large_communities.add.iter().map(|one| format!(" +{one}"));
            let extended = set.extended_communities.add.iter().map(|one| format!(" +{one}"));
            words.extend(communities.chain(large).chain(extended));
            words.extend(set.local_pref.map(|value| format!(" local-pref {value}")));
            if set.prepend > 0 {
                words += &format!(" prepend {}", set.prepend);
            }
            match rule.verdict {
                Some(PolicyResult::Reject) => words + " reject",
                Some(PolicyResult::Accept) => words + " accept",
                None => words,
            }
        });
        shown.collect::<Vec<_>>()
    };
    let peers = bgp.peers.iter().map(|(key, peer)| (key.to_string(), of(peer)));
    let ranges = bgp.ranges.iter().map(|(prefix, range)| (prefix.to_string(), of(&range.template)));
    peers.chain(ranges).collect()
}

const PEERS: [&str; 5] = ["10.255.0.0/24", "192.0.2.1", "192.0.2.3", "fe80::77%mgmt", "fe80::9%up2"];

#[test]
fn an_advertisement_without_limits_needs_no_rule() {
    let all = rules(&advertising(&[("all", serde_json::json!({}))], &[1]));
    assert_eq!(all.keys().collect::<Vec<_>>(), PEERS);
    assert!(all.values().all(Vec::is_empty), "{all:?}");
}

#[test]
fn rules_exist_once_a_prefix_has_their_tag() {
    let written = [("a", serde_json::json!({"communities": ["65000:1"], "peers": ["192.0.2.1"]}))];
    assert!(rules(&advertising(&written, &[])).values().all(Vec::is_empty), "the fast export stays");
    assert_eq!(plan(&advertising(&written, &[]), &host(Vec::new())).unwrap().service_tags, [].into());
    let used = advertising(&written, &[1]);
    assert_eq!(plan(&used, &host(Vec::new())).unwrap().service_tags, [Tag(1)].into());
    let rules = rules(&used);
    assert_eq!(rules["192.0.2.1"], ["ServiceAdvertisement a: any of 1 +65000:1"]);
    for other in PEERS.iter().filter(|peer| **peer != "192.0.2.1") {
        assert_eq!(rules[*other], ["ServiceAdvertisements for other peers: any of 1 reject"], "{other}");
    }
}

#[test]
fn attributes_of_equal_prefixes_are_merged() {
    let written = [
        ("a", serde_json::json!({"communities": ["no-export"], "localPreference": 200, "prepend": 1})),
        (
            "b",
            serde_json::json!({
                "communities": ["65000:2"], "largeCommunities": ["65000:1:2"], "localPreference": 300, "prepend": 2,
                "extendedCommunities": ["rt:65000:7"],
            }),
        ),
        ("c", serde_json::json!({"prepend": 3, "peers": ["192.0.2.3", "10.255.0.0/24"]})),
        ("d", serde_json::json!({"peers": ["mgmt", "fe80::9%up2"]})),
    ];
    let rules = rules(&advertising(&written, &[1, 2, 3, 4]));
    let a = "ServiceAdvertisement a: any of 1 +no-export local-pref 200 prepend 1";
    let b = "ServiceAdvertisement b: any of 2 +65000:2 +65000:1:2 +rt:65000:7 local-pref 300";
    let b_path = "ServiceAdvertisement b, AS_PATH: any of 2 none of 1 prepend 2";
    let c_path = "ServiceAdvertisement c, AS_PATH: any of 3 none of 1,2 prepend 3";
    let others = |any: &str, none: &str| {
        format!("ServiceAdvertisements for other peers: any of {any} none of {none} reject")
    };
    assert_eq!(rules["192.0.2.1"], [b_path, b, a, &others("3,4", "1,2")]);
    for peer in ["192.0.2.3", "10.255.0.0/24"] {
        assert_eq!(rules[peer], [c_path, b_path, b, a, &others("4", "1,2,3")], "{peer}");
    }
    for peer in ["fe80::77%mgmt", "fe80::9%up2"] {
        assert_eq!(rules[peer], [b_path, b, a, &others("3", "1,2,4")], "{peer}");
    }
}

#[test]
fn operators_rules_follow_those_of_service_addresses() {
    let written = [("a", serde_json::json!({"communities": ["65000:1"]}))];
    let bgp = plan(&advertising(&written, &[1]), &host(Vec::new())).unwrap().bgp.unwrap();
    let names = |peer: &str| {
        let rules = &bgp.peers[&peer.parse::<PeerKey>().unwrap()].export.rules;
        rules.iter().map(|rule| rule.name.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(names("192.0.2.3")[..2], ["ServiceAdvertisement a", "mine"]);
}

#[test]
fn a_deleted_advertisements_tag_is_rejected() {
    let mut intent = advertising(&[("a", serde_json::json!({}))], &[1]);
    intent.services.advertisements.clear();
    let rules = rules(&intent);
    assert!(rules.values().all(|rules| rules == &["ServiceAdvertisements for other peers: any of 1 reject"]));
    assert!(plan(&intent, &host(Vec::new())).unwrap().services.default_advertisement);
    intent.services.faulty_advertisements = true;
    assert!(!plan(&intent, &host(Vec::new())).unwrap().services.default_advertisement);
}

#[test]
fn a_name_that_no_peer_has_excludes_all_peers() {
    let written =
        [("a", serde_json::json!({"peers": ["192.0.2.9", "eth9", "fe80::9%up1", "10.255.0.0/25"]}))];
    let rules = rules(&advertising(&written, &[1]));
    assert!(rules.values().all(|rules| rules == &["ServiceAdvertisements for other peers: any of 1 reject"]));
}

#[test]
fn tags_are_never_reused() {
    let mut tags = ServiceTags::default();
    tags.name(["a", "b"]);
    tags.name(["c"]);
    tags.name(["b", "a"]);
    let intent = Intent {
        service_tags: tags,
        services: intent::ServiceObjects {
            advertisements: ["a", "b", "c"]
                .map(|name| own("ServiceAdvertisement", name, serde_json::json!({})))
                .into(),
            ..Default::default()
        },
        ..usual()
    };
    let plan = plan(&intent, &host(Vec::new())).unwrap();
    let of = plan.services.advertisements.values().map(|one| one.tag.0).collect::<Vec<_>>();
    assert_eq!(of, [1, 2, 3]);
}

#[test]
fn blocks_of_service_addresses_are_blackholes_and_no_subnets() {
    let mut intent = advertising(
        &[(
            "a",
            serde_json::json!({
                "addresses": ["LoadBalancer", "External", "Cluster"], "externalCIDRs": ["198.51.100.0/24"],
            }),
        )],
        &[],
    );
    intent.service_cidrs = ["10.96.0.0/16".parse().unwrap()].into();
    intent.services.pools = vec![
        own(
            "ServicePool",
            "p",
            serde_json::json!({
                "addresses": ["203.0.113.0/24", "203.0.114.4-203.0.114.6", "2001:db8:9::/64", "10.1.0.0/16"],
            }),
        ),
        own(
            "ServicePool",
            "l2",
            serde_json::json!({
                "addresses": ["10.9.0.0/24"], "mode": "L2", "l2": {"network": "vlan"},
            }),
        ),
    ];
    let plan = plan(&intent, &host(Vec::new())).unwrap();
    let drops = plan.kernel.routes.iter().filter(|(key, _)| key.table == DROP_TABLE);
    let drops: Vec<String> = drops
        .inspect(|(_, target)| assert_eq!(**target, RouteTarget::Blackhole))
        .map(|(key, _)| key.prefix.to_string())
        .collect();
    assert_eq!(
        drops,
        [
            "10.1.0.0/16",
            "10.96.0.0/16",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "203.0.114.4/31",
            "203.0.114.6/32",
            "2001:db8:1::/64",
            "2001:db8:9::/64",
        ]
    );
    let subnets = ["10.1.0.0/16", "2001:db8:1::/64"].map(|prefix| prefix.parse().unwrap());
    assert_eq!(plan.kernel.unassigned.subnets, subnets.into(), "packets for them are not counted");
    assert_eq!((plan.services.pools.len(), plan.services.bgp), (2, true));

    intent.networks.clear();
    intent.subnets.clear();
    let plan = super::plan(&intent, &host(Vec::new())).unwrap();
    assert!(!plan.services.bgp && plan.services.complete && plan.kernel.routes.is_empty());
}

#[test]
fn a_held_address_of_an_l2_pool_has_a_proxy_entry_on_the_device_of_its_subnet() {
    let mut intent = vlan::three_subnets();
    intent.in_cluster = true;
    let pool = |network: &str| {
        let spec = serde_json::json!({
            "addresses": ["10.10.0.200-10.10.0.210", "2001:db8:10::c8"], "mode": "L2", "l2": {"network": network},
        });
        own("ServicePool", "vlan", spec)
    };
    intent.services.pools = vec![pool("rack")];
    let mut host = vlan::with_default();
    let held = ["10.10.0.200", "2001:db8:10::c8", "10.20.0.200"].map(|text| text.parse().unwrap());
    host.held = held.into();
    let first = plan(&intent, &host).unwrap();
    assert!(first.kernel.proxies.is_empty() && first.services.pools[0].links.is_empty(), "no device yet");
    host.kernel.links.extend([vlan::own_vlan(7, "up1.10", 2, 10), vlan::own_vlan(8, "up1.20", 2, 20)]);
    let second = plan(&intent, &host).unwrap();
    let proxies = held[..2].iter().map(|address| Proxy { ifindex: 7, address: *address }).collect();
    assert_eq!(second.kernel.proxies, proxies, "10.20.0.200 is in no pool");
    assert_eq!(second.services.pools[0].links.len(), 3);
    // The reply to a client of the VLAN needs no router.
    for prefix in ["10.10.0.0/24", "2001:db8:10::/64"] {
        let key = RouteKey { table: 1_170_007, prefix: prefix.parse().unwrap() };
        assert_eq!(second.kernel.routes.get(&key), Some(&RouteTarget::via(vec![Hop::link(7)])), "{prefix}");
    }
    intent.services.pools = vec![pool("other")];
    assert!(plan(&intent, &host).unwrap().kernel.proxies.is_empty());
}
