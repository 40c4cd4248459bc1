//! Create and update of a ServiceAdvertisement, and warnings about names without an object.

use std::collections::BTreeSet;

use ipnet::IpNet;
use trunkline_api::resources::{
    AddressBlock, AddressKind, Endpoint, Network, PoolMode, ServiceAdvertisement, parse_address,
};
use trunkline_api::validate::{Fault, validate_service_advertisement};

use super::overlaps::owner;
use super::{Facts, RuleResult, introduced, verdict};

/// Facts: every Network, Subnet, ServicePool, and the addresses of every Node.
pub fn create(advertisement: &ServiceAdvertisement, facts: &Facts) -> RuleResult {
    verdict(faults(advertisement, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &ServiceAdvertisement, new: &ServiceAdvertisement, facts: &Facts) -> RuleResult {
    verdict(introduced(&faults(old, facts), faults(new, facts)))
}

/// Peers and pools that do not exist, and attributes without an effect. They are no faults, because
/// a peer or a pool may be created later.
pub fn warnings(advertisement: &ServiceAdvertisement, facts: &Facts) -> Vec<String> {
    let spec = &advertisement.spec;
    let mut found = Vec::new();
    for (index, text) in spec.peers.iter().enumerate() {
        if !facts.networks.iter().any(|network| has_peer(network, text)) {
            found.push(format!(
                "spec.peers[{index}]: no Network has a BGP peer {text}: write an address, an interface or a prefix as in \
                 bgpPeers"
            ));
        }
    }
    for (index, name) in spec.pools.iter().enumerate() {
        if !facts.service_pools.iter().any(|pool| pool.name() == name) {
            found.push(format!("spec.pools[{index}]: there is no ServicePool {name}"));
        }
    }
    let external: BTreeSet<&str> = facts
        .networks
        .iter()
        .filter(|network| {
            let selected = |text: &String| has_peer(network, text);
            spec.peers.is_empty() || spec.peers.iter().any(selected)
        })
        .filter(|network| network.peers().iter().any(|peer| Some(peer.asn) != network.spec.net_id))
        .map(Network::name)
        .collect();
    if let (Some(_), Some(network)) = (spec.local_preference, external.first()) {
        found.push(format!(
            "spec.localPreference: Network {network} has external peers, and LOCAL_PREF is sent to internal peers only"
        ));
    }
    found
}

/// Whether a Network has a peer that is written like this.
fn has_peer(network: &Network, text: &str) -> bool {
    network.peers().iter().any(|peer| match peer.endpoint() {
        Ok(Endpoint::Address(address, interface)) => {
            let (wanted, on) = text.split_once('%').map_or((text, None), |(address, on)| (address, Some(on)));
            parse_address(wanted).is_ok_and(|wanted| wanted == address) && on == interface
        }
        Ok(Endpoint::Interface(interface)) => interface == text,
        Ok(Endpoint::Prefix(prefix)) => text.parse::<IpNet>().is_ok_and(|wanted| wanted.trunc() == prefix),
        Err(_) => false,
    })
}

fn faults(advertisement: &ServiceAdvertisement, facts: &Facts) -> Vec<Fault> {
    let spec = &advertisement.spec;
    let mut found = validate_service_advertisement(advertisement).err().unwrap_or_default();
    let mut add = |field: String, message: String| {
        found.push(Fault {
            kind: "ServiceAdvertisement",
            name: advertisement.name().to_owned(),
            field,
            message,
        });
    };
    for (index, text) in spec.external_cidrs.iter().enumerate() {
        let Ok(prefix) = text.parse::<IpNet>() else { continue };
        if let Some(other) = owner(&prefix.into(), "ServiceAdvertisement", advertisement.name(), facts) {
            add(
                format!("spec.externalCIDRs[{index}]"),
                format!("{prefix} overlaps {other}: write prefixes that no pod, pool, peer or node has"),
            );
        }
    }
    if !spec.aggregation_length.aggregates() || !spec.address_kinds().contains(&AddressKind::LoadBalancer) {
        return found;
    }
    let selected = |name: &str| spec.pools.is_empty() || spec.pools.iter().any(|pool| pool == name);
    let pools =
        facts.service_pools.iter().filter(|pool| pool.spec.mode == PoolMode::BGP && selected(pool.name()));
    for pool in pools {
        for block in pool.spec.blocks().unwrap_or_default() {
            let outside = [block.first(), block.last()]
                .into_iter()
                .map(|address| spec.aggregation_length.prefix(address))
                .find(|prefix| !block.covers(&AddressBlock::from(*prefix)));
            if let Some(prefix) = outside {
                let family = if block.is_ipv4() { "ipv4" } else { "ipv6" };
                add(
                    format!("spec.aggregationLength.{family}"),
                    format!(
                        "{}: the aggregate {prefix} has addresses outside of {block} of ServicePool {}: write a greater \
                         length, or name other pools",
                        prefix.prefix_len(),
                        pool.name()
                    ),
                );
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{expect, network, subnet};
    use super::*;

    fn advertisement(spec: Value) -> ServiceAdvertisement {
        serde_json::from_value(json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAdvertisement", "metadata": {"name": "a"}, "spec": spec,
        }))
        .unwrap()
    }

    fn cluster() -> Facts {
        let peers = json!({"bgpPeers": [
            {"asn": 65100, "address": "10.0.0.1"}, {"asn": 65100, "interface": "eth1"},
            {"asn": 65100, "address": "fe80::1%eth2"}, {"asn": 65100, "prefix": "192.0.2.0/24"},
        ]});
        let pool = |name: &str, addresses: &[&str]| {
            serde_json::from_value(json!({
                "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
                "spec": {"addresses": addresses},
            }))
            .unwrap()
        };
        Facts {
            networks: vec![network(
                "rack1",
                json!({"nodeSelector": {"rack": "1"}, "netID": 65001, "mode": "BGP", "config": peers}),
            )],
            subnets: vec![subnet(
                "rack1-v4",
                json!({"network": "rack1", "range": {"version": "4", "cidr": "10.1.0.0/24"}}),
            )],
            service_pools: vec![
                pool("wide", &["10.50.0.0/23"]),
                pool("narrow", &["10.60.0.0-10.60.0.9", "fd00:60::/112"]),
            ],
            addressed_nodes: vec![("n1".to_owned(), vec!["172.16.0.1".parse().unwrap()])],
            ..Facts::default()
        }
    }

    #[test]
    fn create_rules() {
        let facts = cluster();
        let external = |text: &str| json!({"addresses": ["External"], "externalCIDRs": [text]});
        let aggregate =
            |length: u8, pools: &[&str]| json!({"aggregationLength": {"ipv4": length}, "pools": pools});
        for (case, spec, refusal) in [
            ("default", json!({}), ""),
            ("External", external("203.0.113.0/24"), ""),
            (
                "External, pods'",
                external("10.0.0.0/8"),
                "ServiceAdvertisement a: spec.externalCIDRs[0]: 10.0.0.0/8 overlaps 10.1.0.0/24 of Subnet rack1-v4",
            ),
            ("External, a pool's", external("10.50.1.0/24"), "overlaps 10.50.0.0/23 of ServicePool wide"),
            ("External, a node's", external("172.16.0.0/16"), "overlaps 172.16.0.1 of Node n1"),
            ("External without prefixes", json!({"addresses": ["External"]}), "spec.externalCIDRs: missing"),
            ("an aggregate", aggregate(24, &["wide"]), ""),
            (
                "an aggregate of all pools",
                aggregate(24, &[]),
                "spec.aggregationLength.ipv4: 24: the aggregate 10.60.0.0/24 has addresses outside of 10.60.0.0-10.60.0.9 \
                 of ServicePool narrow",
            ),
            (
                "longer than the pool",
                aggregate(22, &["wide"]),
                "the aggregate 10.50.0.0/22 has addresses outside",
            ),
            (
                "the last one only",
                aggregate(29, &["narrow"]),
                "the aggregate 10.60.0.8/29 has addresses outside",
            ),
            ("full length", aggregate(32, &["narrow"]), ""),
        ] {
            expect(case, create(&advertisement(spec), &facts), refusal);
        }
        let old = advertisement(external("10.0.0.0/8"));
        let new =
            advertisement(json!({"addresses": ["External"], "externalCIDRs": ["10.0.0.0/8"], "prepend": 1}));
        expect("an old fault", update(&old, &new, &facts), "");
    }

    #[test]
    fn names_without_an_object_are_warnings() {
        let facts = cluster();
        let of = |spec: Value| warnings(&advertisement(spec), &facts).join("; ");
        for known in ["10.0.0.1", "eth1", "fe80::1%eth2", "192.0.2.0/24", "192.0.2.7/24"] {
            assert_eq!(of(json!({"peers": [known]})), "", "{known}");
        }
        for unknown in ["10.0.0.2", "eth2", "fe80::1", "192.0.2.0/25"] {
            let text = of(json!({"peers": [unknown]}));
            assert!(
                text.starts_with(&format!("spec.peers[0]: no Network has a BGP peer {unknown}: ")),
                "{text}"
            );
        }
        assert_eq!(of(json!({"pools": ["wide", "gold"]})), "spec.pools[1]: there is no ServicePool gold");
        let text = of(json!({"localPreference": 200}));
        assert!(text.starts_with("spec.localPreference: Network rack1 has external peers"), "{text}");
    }
}
