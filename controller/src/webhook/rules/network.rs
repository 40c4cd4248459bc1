//! Create, update and delete of a Network.

use std::collections::BTreeSet;

use trunkline_api::resources::{Network, NetworkMode, NetworkType};
use trunkline_api::validate::{
    Fault, NeighbourOverlap, neighbour_overlaps, validate, validate_change, validate_memberships,
};

use super::overlaps::pools_over_network;
use super::{Facts, RuleResult, introduced, of, some, still_used, verdict};

/// Facts: every Network, Subnet and ServicePool, and the nodes that this Network selects.
pub fn create(network: &Network, facts: &Facts) -> RuleResult {
    verdict(faults(network, facts))
}

/// Facts: the same as for [`create`], with the nodes of the new selector.
pub fn update(old: &Network, new: &Network, facts: &Facts) -> RuleResult {
    if old.spec == new.spec {
        return Ok(());
    }
    let mut found = introduced(&faults(old, facts), faults(new, facts));
    let change = validate_change((std::slice::from_ref(old), &[]), (std::slice::from_ref(new), &[]));
    found.extend(change.err().unwrap_or_default());
    verdict(found)
}

/// Facts: the Subnets of the Network; for the Overlay, the number of RemoteClusters; in mode BGP,
/// every Network, the nodes of this one, and the IPInstances of the GlobalBGP Network.
pub fn delete(network: &Network, facts: &Facts) -> RuleResult {
    let name = network.name();
    let mut found = Vec::new();
    let subnets = facts.subnets.iter().filter(|subnet| subnet.spec.network == name);
    let subnets: Vec<String> = subnets.map(|subnet| subnet.name().to_owned()).collect();
    if !subnets.is_empty() {
        let message = format!("it still has Subnets: delete these first: {}", some(&subnets));
        found.push(still_used("Network", name, message));
    }
    if network.network_type() == NetworkType::Overlay && facts.remote_clusters > 0 {
        let message = format!(
            "the pods of {} RemoteClusters use the Overlay: delete the RemoteClusters first",
            facts.remote_clusters
        );
        found.push(still_used("Network", name, message));
    }
    if network.mode() == NetworkMode::BGP {
        found.extend(global_addresses(network, facts));
    }
    verdict(found)
}

fn faults(network: &Network, facts: &Facts) -> Vec<Fault> {
    let name = network.name();
    let mut networks: Vec<Network> =
        facts.networks.iter().filter(|other| other.name() != name).cloned().collect();
    networks.push(network.clone());
    let mut found = of("Network", name, validate(&networks, &[]));
    let overlaps = neighbour_overlaps(std::slice::from_ref(network), &facts.subnets);
    found.extend(overlaps.iter().map(NeighbourOverlap::network_fault));
    found.extend(pools_over_network(network, facts));
    // Only Underlay networks select nodes; the other types include every node.
    if network.network_type() == NetworkType::Underlay {
        let nodes = facts.nodes.iter().filter(|node| network.selects(&node.labels));
        let nodes = nodes.map(|node| (node.name.as_str(), &node.labels));
        found.extend(of("Network", name, validate_memberships(&networks, nodes)));
    }
    found
}

/// The fault if pods of the GlobalBGP Network run on this Network's nodes: its peers advertise
/// their addresses.
fn global_addresses(network: &Network, facts: &Facts) -> Option<Fault> {
    let global = facts.networks.iter().find(|other| other.network_type() == NetworkType::GlobalBGP)?;
    let nodes: BTreeSet<&str> = facts
        .nodes
        .iter()
        .filter(|node| network.selects(&node.labels))
        .map(|node| node.name.as_str())
        .collect();
    let used = facts.instances.iter().filter(|instance| {
        instance.spec.network == global.name() && nodes.contains(instance.spec.binding.node_name.as_str())
    });
    let used: Vec<String> = used.map(super::ipinstance::described).collect();
    (!used.is_empty()).then(|| {
        let message = format!(
            "its peers route addresses of the GlobalBGP Network {} on its nodes: move these pods \
             first: {}",
            global.name(),
            some(&used)
        );
        still_used("Network", network.name(), message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Node;
    use super::super::tests::{expect, instance, network, subnet};
    use super::*;

    fn node(name: &str, rack: &str) -> Node {
        Node { name: name.to_owned(), labels: [("network".to_owned(), rack.to_owned())].into() }
    }

    fn underlay(rack: &str) -> Value {
        json!({"nodeSelector": {"network": rack}, "netID": 10})
    }

    fn bgp(rack: &str) -> Value {
        json!({"nodeSelector": {"network": rack}, "netID": 65001, "mode": "BGP",
               "config": {"bgpPeers": [{"asn": 4_200_000_001_u32, "address": "10.0.0.1"}]}})
    }

    fn dynamic(prefix: &str) -> Value {
        json!({"nodeSelector": {"network": "rack2"}, "netID": 65001, "mode": "BGP",
               "config": {"bgpPeers": [{"asn": 65100, "prefix": prefix}]}})
    }

    /// `base` with the value at a pointer replaced or removed.
    fn with(mut base: Value, pointer: &str, value: Value) -> Value {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = base.pointer_mut(parent).unwrap();
        match (parent, value) {
            (Value::Object(map), Value::Null) => drop(map.remove(key)),
            (Value::Object(map), value) => drop(map.insert(key.to_owned(), value)),
            (Value::Array(items), value) => items[key.parse::<usize>().unwrap()] = value,
            _ => unreachable!(),
        }
        base
    }

    fn cluster() -> Facts {
        Facts {
            networks: vec![network("rack1", bgp("rack1"))],
            nodes: vec![node("n1", "rack1"), node("n2", "rack2")],
            ..Facts::default()
        }
    }

    #[test]
    fn create_rules() {
        let overlay = json!({"type": "Overlay", "netID": 4});
        let global = json!({"type": "GlobalBGP"});
        let mut both = cluster();
        both.networks.push(network("overlay", overlay.clone()));
        both.networks.push(network("global", global.clone()));
        let none = &cluster();
        let mut subnets = cluster();
        subnets.subnets = vec![
            subnet("s1", json!({"network": "rack1", "range": {"version": "4", "cidr": "10.1.0.0/24"}})),
            subnet("s2", json!({"network": "rack1", "range": {"version": "6", "cidr": "fd00:1::/64"}})),
        ];
        for (case, facts, spec, refusal) in [
            ("underlay", none, underlay("rack2"), ""),
            ("no selector", none, json!({"netID": 10}), "spec.nodeSelector: missing"),
            (
                "shares a node",
                none,
                underlay("rack1"),
                "selects node n1, which is already in Underlay network rack1",
            ),
            ("no node yet", none, underlay("rack3"), ""),
            ("overlay", none, overlay.clone(), ""),
            ("second overlay", &both, overlay.clone(), "only one Network of this type may exist"),
            (
                "overlay with selector",
                none,
                with(overlay.clone(), "/nodeSelector", json!({"a": "b"})),
                "leave it out",
            ),
            ("overlay without netID", none, json!({"type": "Overlay"}), "spec.netID: missing"),
            ("global", none, global.clone(), ""),
            ("second global", &both, global.clone(), "only one Network of this type may exist"),
            (
                "global with selector",
                none,
                with(global.clone(), "/nodeSelector", json!({"a": "b"})),
                "leave it out",
            ),
            ("global with netID", none, with(global, "/netID", json!(65001)), "leave it out"),
            (
                "mode of another type",
                none,
                with(overlay, "/mode", json!("VLAN")),
                "does not match type Overlay",
            ),
            ("BGP", none, bgp("rack2"), ""),
            ("dynamic neighbours", &subnets, dynamic("192.0.2.0/24"), ""),
            (
                "dynamic neighbours where pods are",
                &subnets,
                dynamic("10.0.0.0/8"),
                "Network new: spec.config.bgpPeers[0].prefix: 10.0.0.0/8 overlaps 10.1.0.0/24 of Subnet s1",
            ),
            ("a part of a Subnet", &subnets, dynamic("fd00:1::8:0/112"), "overlaps fd00:1::/64 of Subnet s2"),
            (
                "BGP without netID",
                none,
                with(bgp("rack2"), "/netID", Value::Null),
                "mode BGP needs the AS number",
            ),
            ("BGP without peers", none, with(bgp("rack2"), "/config/bgpPeers", json!([])), "bgpPeers"),
            ("BGP without config", none, with(bgp("rack2"), "/config", Value::Null), "bgpPeers"),
            (
                "peer's address",
                none,
                with(bgp("rack2"), "/config/bgpPeers/0/address", json!("x")),
                "bgpPeers[0].address",
            ),
            ("peer's AS 0", none, with(bgp("rack2"), "/config/bgpPeers/0/asn", json!(0)), "bgpPeers[0].asn"),
        ] {
            expect(case, create(&network("new", spec), facts), refusal);
        }
    }

    #[test]
    fn pools_have_addresses_of_their_own() {
        let mut facts = cluster();
        facts.service_pools = vec![
            serde_json::from_value(json!({
                "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "p"},
                "spec": {"addresses": ["192.0.2.0/28"]},
            }))
            .unwrap(),
        ];
        let extra = |prefix: &str| with(bgp("rack2"), "/config/extraPrefixes", json!([prefix]));
        for (case, spec, refusal) in [
            (
                "dynamic neighbours",
                dynamic("192.0.2.0/24"),
                "Network new: spec.config.bgpPeers[0].prefix: 192.0.2.0/24 overlaps 192.0.2.0/28 of ServicePool p: write \
                 prefixes that no Service gets",
            ),
            ("extra prefixes", extra("192.0.2.8/29"), "spec.config.extraPrefixes: 192.0.2.8/29 overlaps"),
            ("apart", extra("198.51.100.0/24"), ""),
        ] {
            expect(case, create(&network("new", spec), &facts), refusal);
        }
    }

    #[test]
    fn update_rules() {
        let facts = &cluster();
        let old = bgp("rack1");
        for (case, spec, refusal) in [
            ("nothing", old.clone(), ""),
            ("a peer", with(old.clone(), "/config/bgpPeers/0/asn", json!(65100)), ""),
            ("type", json!({"type": "GlobalBGP"}), "spec.type: GlobalBGP: it was Underlay"),
            ("mode", underlay("rack1"), "spec.mode: VLAN: it was BGP"),
            ("netID", with(old.clone(), "/netID", json!(65002)), "spec.netID: 65002: it was 65001"),
            (
                "no config (this crashed hybridnet's webhook)",
                with(old.clone(), "/config", Value::Null),
                "bgpPeers",
            ),
            ("no selector", with(old.clone(), "/nodeSelector", Value::Null), "spec.nodeSelector: missing"),
            ("another rack", with(old.clone(), "/nodeSelector/network", json!("rack2")), ""),
        ] {
            expect(case, update(&network("rack1", old.clone()), &network("rack1", spec), facts), refusal);
        }

        let mut two = cluster();
        two.networks.push(network("rack2", underlay("rack2")));
        let taken = with(old.clone(), "/nodeSelector/network", json!("rack2"));
        let refusal = "selects node n2, which is already in Underlay network rack2";
        expect(
            "a taken rack",
            update(&network("rack1", old.clone()), &network("rack1", taken), &two),
            refusal,
        );

        let mut subnets = cluster();
        subnets.subnets =
            vec![subnet("s1", json!({"network": "rack1", "range": {"version": "4", "cidr": "10.1.0.0/24"}}))];
        let apart = network("rack9", dynamic("192.0.2.0/24"));
        let wide = network("rack9", dynamic("10.0.0.0/8"));
        let refusal = "spec.config.bgpPeers[0].prefix: 10.0.0.0/8 overlaps 10.1.0.0/24 of Subnet s1";
        expect("a prefix over a Subnet", update(&apart, &wide, &subnets), refusal);
        expect("and back", update(&wide, &apart, &subnets), "");

        // An existing fault does not block a change of another field.
        let wrong = with(old.clone(), "/config/bgpPeers/0/address", json!("x"));
        let also = with(wrong.clone(), "/config/bgpPeers/0/asn", json!(65100));
        expect("an old fault", update(&network("rack1", wrong.clone()), &network("rack1", also), facts), "");
        let worse = with(wrong.clone(), "/config/bgpPeers/0/asn", json!(0));
        let refusal = "bgpPeers[0].asn";
        expect("a fault more", update(&network("rack1", wrong), &network("rack1", worse), facts), refusal);
    }

    #[test]
    fn delete_rules() {
        let mut facts = cluster();
        let rack1 = facts.networks[0].clone();
        expect("unused", delete(&rack1, &facts), "");
        facts.subnets =
            vec![subnet("s1", json!({"network": "rack1", "range": {"version": "4", "cidr": "10.1.0.0/24"}}))];
        expect("a subnet", delete(&rack1, &facts), "delete these first: s1");
        facts.subnets[0].spec.network = "rack2".to_owned();
        expect("another's subnet", delete(&rack1, &facts), "");

        let overlay = network("overlay", json!({"type": "Overlay", "netID": 4}));
        expect("overlay", delete(&overlay, &facts), "");
        facts.remote_clusters = 2;
        expect("remote clusters", delete(&overlay, &facts), "2 RemoteClusters");
        expect("remote clusters, but an Underlay network", delete(&rack1, &facts), "");

        facts.networks.push(network("global", json!({"type": "GlobalBGP"})));
        for (case, network, node, refusal) in [
            ("global address elsewhere", "global", "n2", ""),
            ("another network's address here", "rack1", "n1", ""),
            ("a reserved address", "global", "", ""),
            ("global address here", "global", "n1", "10.9.0.7 (pod default/web-0 on node n1)"),
        ] {
            facts.instances = vec![instance("10.9.0.7/24", network, "g1", "web-0", node)];
            expect(case, delete(&rack1, &facts), refusal);
        }
    }
}
