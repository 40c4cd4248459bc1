//! Anycast addresses: objects and a host on the left, addresses, checks and the peers' rules on the
//! right.

use std::net::IpAddr;
use std::time::Duration;

use trunkline_api::resources::AnycastAddress;
use trunkline_bgp::policy::PolicyResult;
use trunkline_bgp::types::LargeCommunity;

use super::*;
use crate::services::anycast::{HttpProbe, PlannedAnycast, ProbeMethod, Trust};

fn object(name: &str, spec: serde_json::Value) -> AnycastAddress {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress", "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

fn with(objects: &[(&str, serde_json::Value)]) -> Intent {
    let mut intent = usual();
    intent.services.anycast_known = true;
    intent.services.anycast = objects.iter().map(|(name, spec)| object(name, spec.clone())).collect();
    intent
}

fn planned(intent: &Intent, host: &Host) -> Plan {
    plan(intent, host).unwrap()
}

fn only(intent: &Intent) -> PlannedAnycast {
    let plan = planned(intent, &host(Vec::new()));
    assert_eq!(plan.anycast.objects.len(), 1);
    plan.anycast.objects.into_values().next().unwrap()
}

fn addresses(texts: &[&str]) -> Option<BTreeSet<IpAddr>> {
    Some(texts.iter().map(|text| text.parse().unwrap()).collect())
}

#[test]
fn an_object_of_this_node_is_on_the_loopback_interface() {
    let here = serde_json::json!({"addresses": ["198.51.100.1", "2001:db8:9::1"], "nodeSelector": {"matchLabels": {"rack": "1"}}});
    let elsewhere =
        serde_json::json!({"addresses": ["198.51.100.2"], "nodeSelector": {"matchLabels": {"rack": "2"}}});
    let intent = with(&[("a", here), ("b", elsewhere)]);
    let plan = planned(&intent, &host(Vec::new()));
    assert_eq!(plan.kernel.addresses, addresses(&["198.51.100.1", "2001:db8:9::1"]));
    assert_eq!(plan.anycast.objects.keys().map(AsRef::as_ref).collect::<Vec<&str>>(), ["a"]);
    assert!(plan.anycast.known);

    // Without a network, the addresses are there too, and no peer receives them.
    let alone = Intent { networks: Vec::new(), subnets: Vec::new(), ..intent };
    assert_eq!(planned(&alone, &host(Vec::new())).kernel.addresses, plan.kernel.addresses);
}

#[test]
fn an_advertised_address_stays_until_its_withdrawal() {
    let mut host = host(Vec::new());
    host.anycast = addresses(&["198.51.100.1"]).unwrap();
    assert_eq!(planned(&with(&[]), &host).kernel.addresses, addresses(&["198.51.100.1"]));
    host.anycast.clear();
    assert_eq!(planned(&with(&[]), &host).kernel.addresses, addresses(&[]));
    let unknown = usual();
    assert_eq!(planned(&unknown, &host).kernel.addresses, None, "those of the last run stay");
}

#[test]
fn attributes_and_the_check_are_read() {
    let object = only(&with(&[(
        "api",
        serde_json::json!({
            "addresses": ["198.51.100.1"], "communities": ["65000:7"], "largeCommunities": ["65000:1:2"],
            "keepLast": true, "gracefulShutdownSeconds": 9,
            "check": {
                "https": {"port": 6443, "path": "/livez", "host": "api", "caFile": "/ca.crt", "expectedStatus": "200"},
                "connectTo": "127.0.0.1", "intervalMilliseconds": 50, "rise": 1, "fall": 4,
            },
        }),
    )]));
    assert_eq!(object.refused, None);
    assert_eq!(object.origination.communities, [Community(65000 << 16 | 7)]);
    let large = LargeCommunity { global: 65000, local1: 1, local2: 2 };
    assert_eq!(object.origination.large_communities, [large]);
    let settings = object.settings();
    assert_eq!((settings.rise, settings.fall, settings.keep_last), (1, 4, true));
    assert_eq!(settings.graceful_shutdown, Duration::from_secs(9));
    let check = object.check.unwrap();
    let http =
        HttpProbe { port: 6443, path: "/livez".to_owned(), host: "api".to_owned(), expected: 200..=200 };
    assert_eq!(check.method, ProbeMethod::Https(http, Trust::File("/ca.crt".into())));
    assert_eq!(check.connect_to, Some("127.0.0.1".parse().unwrap()));
    assert_eq!((check.interval, check.timeout), (Duration::from_millis(50), Duration::from_millis(50)));
    assert!(!check.has_target_per_address());
}

#[test]
fn a_faulty_object_is_refused_alone() {
    let mut host = host(Vec::new());
    host.kernel.links[0].addresses.push("198.51.100.7/32".parse().unwrap());
    for (spec, fault) in [
        (serde_json::json!({"addresses": ["10.1.0.9"]}), "10.1.0.9 is in 10.1.0.0/16 of Subnet v4"),
        (serde_json::json!({"addresses": ["192.0.2.0"]}), "192.0.2.0 is an address of up1 on this node"),
        (serde_json::json!({"addresses": ["198.51.100.1"]}), "198.51.100.1 is of AnycastAddress a too"),
        (serde_json::json!({"addresses": ["x"]}), "spec.addresses: "),
        (serde_json::json!({"addresses": ["198.51.100.9"], "communities": ["x"]}), "spec.communities: "),
        (serde_json::json!({"addresses": ["198.51.100.9"], "check": {}}), "spec.check: missing"),
        (
            serde_json::json!({"addresses": ["198.51.100.9"], "check": {"command": ["/bin/true"]}}),
            "spec.check.command: the agent runs it as root",
        ),
    ] {
        let good = serde_json::json!({"addresses": ["198.51.100.1", "198.51.100.7"]});
        let intent = Intent { in_cluster: true, ..with(&[("a", good), ("b", spec)]) };
        let plan = planned(&intent, &host);
        let refused = plan.anycast.objects["b"].refused.clone().unwrap();
        assert!(refused.contains(fault), "{refused}");
        assert_eq!(plan.anycast.objects["a"].refused, None);
        assert_eq!(plan.kernel.addresses, addresses(&["198.51.100.1", "198.51.100.7"]));
    }
    let command = serde_json::json!({"addresses": ["198.51.100.9"], "check": {"command": ["/bin/true"]}});
    let of_file = only(&with(&[("a", command)]));
    assert_eq!(of_file.check.unwrap().method, ProbeMethod::Command(vec!["/bin/true".to_owned()]));
}

/// The rules of a peer for anycast addresses: the name, the prefixes, and the effect.
fn rules(intent: &Intent, peer: &str) -> Vec<String> {
    let bgp = planned(intent, &host(Vec::new())).bgp.unwrap();
    let export = &bgp.peers[&peer.parse::<PeerKey>().unwrap()].export;
    let is_mine = |name: &String| name.starts_with("AnycastAddress ");
    let mine = export.rules.iter().take_while(|rule| rule.name.as_ref().is_some_and(is_mine));
    let shown = mine.map(|rule| {
        assert_eq!(rule.when.originated, Some(true));
        let prefixes = rule.when.prefixes.entries().iter().map(|it| it.prefix.to_string());
        let set = rule.set.local_pref.map(|value| format!(" local-pref {value}"));
        let prepend = (rule.set.prepend > 0).then(|| format!(" prepend {}", rule.set.prepend));
        let verdict = (rule.verdict == Some(PolicyResult::Reject)).then(|| " reject".to_owned());
        let name = rule.name.as_deref().unwrap_or_default();
        let words: String = set.into_iter().chain(prepend).chain(verdict).collect();
        format!("{name}: {}{words}", prefixes.collect::<Vec<_>>().join(","))
    });
    shown.collect()
}

#[test]
fn peers_and_their_attributes_are_rules_of_the_peers() {
    let plain = serde_json::json!({"addresses": ["198.51.100.1"], "communities": ["65000:7"]});
    assert_eq!(rules(&with(&[("a", plain)]), "192.0.2.1"), [""; 0], "no rule is necessary");
    let intent = with(&[
        ("a", serde_json::json!({"addresses": ["198.51.100.1", "2001:db8:9::1"], "peers": ["192.0.2.1"]})),
        ("b", serde_json::json!({"addresses": ["198.51.100.2"], "localPreference": 50, "prepend": 2})),
        ("c", serde_json::json!({"addresses": ["198.51.100.3"], "peers": ["nowhere/7"]})),
        ("d", serde_json::json!({"addresses": ["10.1.0.9"], "prepend": 1})),
    ]);
    let of_all = "AnycastAddress b: 198.51.100.2/32 local-pref 50 prepend 2";
    let of_none = "AnycastAddress c for other peers: 198.51.100.3/32 reject";
    assert_eq!(rules(&intent, "192.0.2.1"), [of_all, of_none]);
    let others = "AnycastAddress a for other peers: 198.51.100.1/32,2001:db8:9::1/128 reject";
    assert_eq!(rules(&intent, "192.0.2.3"), [others, of_all, of_none]);
}
