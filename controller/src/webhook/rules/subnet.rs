//! Create, update and delete of a Subnet.

use trunkline_api::resources::Subnet;
use trunkline_api::validate::{
    Fault, NeighbourOverlap, neighbour_overlaps, overlaps, validate, validate_change,
};

use super::overlaps::pools_over_subnet;
use super::{Facts, RuleResult, introduced, of, some, still_used, verdict};

/// Facts: every Network, Subnet and ServicePool.
pub fn create(subnet: &Subnet, facts: &Facts) -> RuleResult {
    verdict(faults(subnet, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &Subnet, new: &Subnet, facts: &Facts) -> RuleResult {
    if old.spec == new.spec {
        return Ok(());
    }
    let mut found = introduced(&faults(old, facts), faults(new, facts));
    let networks = facts.networks.as_slice();
    let change =
        validate_change((networks, std::slice::from_ref(old)), (networks, std::slice::from_ref(new)));
    found.extend(change.err().unwrap_or_default());
    verdict(found)
}

/// Facts: the IPInstances of the Subnet, or some of them.
pub fn delete(subnet: &Subnet, facts: &Facts) -> RuleResult {
    let used = facts.instances.iter().filter(|instance| instance.spec.subnet == subnet.name());
    let used: Vec<String> = used.map(super::ipinstance::described).collect();
    if used.is_empty() {
        return Ok(());
    }
    let message =
        format!("its addresses are allocated: delete these pods or their IPInstances first: {}", some(&used));
    Err(vec![still_used("Subnet", subnet.name(), message)])
}

fn faults(subnet: &Subnet, facts: &Facts) -> Vec<Fault> {
    // Only overlapping Subnets can contradict this one. So a large cluster needs no comparison with
    // every Subnet.
    let over = |other: &&Subnet| {
        let (Ok(one), Ok(other)) = (subnet.spec.range.cidr(), other.spec.range.cidr()) else { return false };
        overlaps(&one, &other)
    };
    let others = facts.subnets.iter().filter(|other| other.name() != subnet.name());
    let mut subnets: Vec<Subnet> = others.filter(over).cloned().collect();
    subnets.push(subnet.clone());
    let mut found = of("Subnet", subnet.name(), validate(&facts.networks, &subnets));
    let neighbours = neighbour_overlaps(&facts.networks, std::slice::from_ref(subnet));
    found.extend(neighbours.iter().map(NeighbourOverlap::subnet_fault));
    found.extend(pools_over_subnet(subnet, facts));
    if let Ok(own) = subnet.spec.range.cidr() {
        let remote = facts.remote_subnets.iter().filter(|other| overlaps(&own, &other.prefix));
        found.extend(remote.map(|other| Fault {
            kind: "Subnet",
            name: subnet.name().to_owned(),
            field: "spec.range.cidr".to_owned(),
            message: format!(
                "{own} overlaps {} of RemoteSubnet {}, a subnet of another cluster: choose another prefix",
                other.prefix, other.name
            ),
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{expect, instance, network, subnet};
    use super::*;

    fn cluster() -> Facts {
        let selector = json!({"network": "rack1"});
        let peers = json!({"bgpPeers": [{"asn": 65100, "address": "10.0.0.1"}, {"asn": 65100, "prefix": "192.0.2.0/24"}]});
        Facts {
            networks: vec![
                network("vlan", json!({"nodeSelector": selector, "netID": 10})),
                network("vlan-open", json!({"nodeSelector": {"network": "rack2"}})),
                network(
                    "bgp",
                    json!({"nodeSelector": {"network": "rack3"}, "netID": 65001, "mode": "BGP", "config": peers}),
                ),
                network("overlay", json!({"type": "Overlay", "netID": 4})),
                network("global", json!({"type": "GlobalBGP"})),
            ],
            subnets: vec![subnet(
                "there",
                json!({"network": "bgp", "range": {"version": "4", "cidr": "10.1.0.0/24", "start": "10.1.0.1", "end": "10.1.0.99"}}),
            )],
            ..Facts::default()
        }
    }

    fn spec(network: &str, range: Value) -> Value {
        json!({"network": network, "range": range})
    }

    fn v4(cidr: &str) -> Value {
        json!({"version": "4", "cidr": cidr})
    }

    fn vlan(mut extra: Value) -> Value {
        let mut all = json!({"network": "vlan", "range": {"version": "4", "cidr": "10.2.0.0/24", "gateway": "10.2.0.1"}});
        for (key, value) in extra.as_object_mut().unwrap() {
            all[key] = value.take();
        }
        all
    }

    #[test]
    fn create_rules() {
        let facts = cluster();
        let with = |range: Value| {
            let mut all = v4("10.3.0.0/24");
            for (key, value) in range.as_object().unwrap() {
                all[key] = value.clone();
            }
            spec("bgp", all)
        };
        for (case, spec, refusal) in [
            ("BGP", spec("bgp", v4("10.3.0.0/24")), ""),
            ("no network", spec("nowhere", v4("10.3.0.0/24")), "there is no Network `nowhere`"),
            ("empty network", spec("", v4("10.3.0.0/24")), "spec.network: missing"),
            ("VLAN", vlan(json!({})), ""),
            ("VLAN, its own netID", vlan(json!({"netID": 10})), ""),
            (
                "VLAN, another netID",
                vlan(json!({"netID": 11})),
                "11 is not the VLAN id 10 of \
                Network vlan",
            ),
            ("VLAN, netID of the subnet", vlan(json!({"network": "vlan-open", "netID": 11})), ""),
            ("VLAN, no netID at all", vlan(json!({"network": "vlan-open"})), "spec.netID: missing"),
            ("VLAN without gateway", spec("vlan", v4("10.2.0.0/24")), "spec.range.gateway: missing"),
            (
                "VLAN with NAT",
                vlan(json!({"config": {"autoNatOutgoing": true}})),
                "spec.config.autoNatOutgoing",
            ),
            (
                "BGP with netID",
                json!({"network": "bgp", "netID": 1, "range": v4("10.3.0.0/24")}),
                "mode BGP has no netID",
            ),
            ("GlobalBGP", spec("global", v4("10.3.0.0/24")), ""),
            (
                "GlobalBGP with netID",
                json!({"network": "global", "netID": 1, "range": v4("10.3.0.0/24")}),
                "mode GlobalBGP has no netID",
            ),
            ("VXLAN", spec("overlay", v4("10.3.0.0/24")), ""),
            (
                "VXLAN with netID",
                json!({"network": "overlay", "netID": 1, "range": v4("10.3.0.0/24")}),
                "mode VXLAN has no netID",
            ),
            ("not canonical", spec("bgp", v4("10.3.0.1/24")), "has host bits: write 10.3.0.0/24"),
            ("/32", spec("bgp", v4("10.3.0.1/32")), "is a single address"),
            ("/128", spec("bgp", json!({"version": "6", "cidr": "2001:db8::1/128"})), "is a single address"),
            ("IPv6", spec("bgp", json!({"version": "6", "cidr": "2001:db8::/112"})), ""),
            (
                "start after end",
                with(json!({"start": "10.3.0.9", "end": "10.3.0.8"})),
                "10.3.0.9 is after the end 10.3.0.8",
            ),
            ("start = end", with(json!({"start": "10.3.0.9", "end": "10.3.0.9"})), ""),
            ("start outside", with(json!({"start": "10.4.0.9"})), "spec.range.start: 10.4.0.9 is not in"),
            ("end outside", with(json!({"end": "10.4.0.9"})), "spec.range.end: 10.4.0.9 is not in"),
            (
                "gateway outside",
                with(json!({"gateway": "10.4.0.9"})),
                "spec.range.gateway: 10.4.0.9 is not in",
            ),
            ("reserved outside", with(json!({"reservedIPs": ["10.4.0.9"]})), "spec.range.reservedIPs[0]"),
            (
                "excluded outside",
                with(json!({"excludeIPs": ["10.3.0.8", "10.4.0.9"]})),
                "spec.range.excludeIPs[1]",
            ),
            ("65,536 addresses", spec("bgp", v4("10.16.0.0/16")), ""),
            ("too many", spec("bgp", v4("10.16.0.0/15")), "more than 65536 addresses"),
            (
                "over dynamic neighbours",
                spec("bgp", v4("192.0.2.0/25")),
                "Subnet new: spec.range.cidr: 192.0.2.0/25 overlaps 192.0.2.0/24, from which Network bgp accepts BGP peers (spec.config.bgpPeers[1].prefix)",
            ),
            (
                "over dynamic neighbours of another Network",
                spec("global", v4("192.0.2.0/25")),
                "from which Network bgp",
            ),
            ("overlaps", spec("bgp", v4("10.1.0.0/25")), "overlaps 10.1.0.0/24 of Subnet there"),
            (
                "equal, of another network",
                spec("global", v4("10.1.0.0/24")),
                "is also the prefix of Subnet there in Network bgp",
            ),
            (
                "equal, disjoint",
                spec("bgp", json!({"version": "4", "cidr": "10.1.0.0/24", "start": "10.1.0.100"})),
                "",
            ),
            (
                "equal, not disjoint",
                spec("bgp", v4("10.1.0.0/24")),
                "Subnet there also allocates \
                the addresses",
            ),
        ] {
            expect(case, create(&subnet("new", spec), &facts), refusal);
        }
    }

    #[test]
    fn pools_have_addresses_of_their_own() {
        let mut facts = cluster();
        let pool = |name: &str, spec: Value| {
            serde_json::from_value(json!({
                "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name}, "spec": spec,
            }))
            .unwrap()
        };
        let l2 = json!({"addresses": ["10.2.0.200-10.2.0.210"], "mode": "L2", "l2": {"network": "vlan"}});
        facts.service_pools = vec![pool("bgp", json!({"addresses": ["10.3.0.8-10.3.0.9"]})), pool("l2", l2)];
        let refusal = "Subnet new: spec.range.cidr: 10.3.0.0/24 overlaps 10.3.0.8-10.3.0.9 of ServicePool bgp, and an \
            address would belong to a pod and to a Service";
        for (case, spec, refusal) in [
            ("a pool's", spec("bgp", v4("10.3.0.0/24")), refusal),
            ("apart", spec("bgp", v4("10.4.0.0/24")), ""),
            ("an L2 pool's", vlan(json!({})), "overlaps 10.2.0.200-10.2.0.210 of ServicePool l2"),
            (
                "an L2 pool in its VLAN",
                vlan(
                    json!({"range": {"version": "4", "cidr": "10.2.0.0/24", "gateway": "10.2.0.1", "end": "10.2.0.199"}}),
                ),
                "",
            ),
            (
                "an L2 pool of another Network",
                vlan(json!({"network": "vlan-open", "netID": 11,
                    "range": {"version": "4", "cidr": "10.2.0.0/24", "gateway": "10.2.0.1", "end": "10.2.0.199"}})),
                "overlaps 10.2.0.200-10.2.0.210 of ServicePool l2",
            ),
        ] {
            expect(case, create(&subnet("new", spec), &facts), refusal);
        }
    }

    #[test]
    fn update_rules() {
        let mut facts = cluster();
        let old = vlan(json!({"netID": 10}));
        facts.subnets.push(subnet("s", old.clone()));
        let ranged = |key: &str, value: Value| {
            let mut spec = old.clone();
            spec["range"][key] = value;
            spec
        };
        let with = |key: &str, value: Value| vlan(json!({"netID": 10, key: value}));
        for (case, spec, refusal) in [
            ("nothing", old.clone(), ""),
            ("reservedIPs", ranged("reservedIPs", json!(["10.2.0.9"])), ""),
            ("private", with("config", json!({"private": true})), ""),
            ("network", with("network", json!("vlan-open")), "spec.network: vlan-open: it was vlan"),
            ("netID", with("netID", json!(11)), "spec.netID: 11: it was 10"),
            ("start", ranged("start", json!("10.2.0.5")), "spec.range.start: 10.2.0.5: it was nothing"),
            ("end", ranged("end", json!("10.2.0.50")), "spec.range.end"),
            (
                "gateway",
                ranged("gateway", json!("10.2.0.2")),
                "spec.range.gateway: 10.2.0.2: it was 10.2.0.1",
            ),
            ("cidr", ranged("cidr", json!("10.2.0.0/25")), "spec.range.cidr"),
            ("excludeIPs", ranged("excludeIPs", json!(["10.2.0.9"])), "spec.range.excludeIPs"),
            (
                "a reserved address outside",
                ranged("reservedIPs", json!(["10.5.0.9"])),
                "spec.range.reservedIPs[0]",
            ),
        ] {
            expect(case, update(&subnet("s", old.clone()), &subnet("s", spec), &facts), refusal);
        }
    }

    #[test]
    fn delete_rules() {
        let mut facts = cluster();
        let there = facts.subnets[0].clone();
        expect("unused", delete(&there, &facts), "");
        facts.instances = vec![instance("10.1.0.7/24", "bgp", "other", "web-0", "n1")];
        expect("another's address", delete(&there, &facts), "");
        facts.instances = vec![instance("10.1.0.7/24", "bgp", "there", "web-0", "n1")];
        expect("an address", delete(&there, &facts), "10.1.0.7 (pod default/web-0 on node n1)");
        facts.instances[0].spec.binding.node_name.clear();
        expect(
            "a reserved address",
            delete(&there, &facts),
            "10.1.0.7 (retained for pod \
            default/web-0)",
        );
    }
}
