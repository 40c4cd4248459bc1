//! Create, update and delete of a ServicePool: its addresses have no other owner, and no Service
//! loses its address.

use trunkline_api::resources::{AddressBlock, PoolMode, ServiceAddress, ServicePool, Subnet};
use trunkline_api::validate::{Fault, validate_service_pool, validate_service_pool_change};

use super::overlaps::{is_l2_of, is_vlan, owner};
use super::{Facts, RuleResult, introduced, some, still_used, verdict};
use crate::services::allocated_by_subnet;
use crate::services::ipam::Span;

/// The highest number of addresses of an L2 pool: each has a Lease.
const MAX_L2: u128 = 256;

/// Facts: every Network, Subnet, ServicePool, and the addresses of every Node.
pub fn create(pool: &ServicePool, facts: &Facts) -> RuleResult {
    verdict(faults(pool, facts))
}

/// Facts: the same as for [`create`], and the ServiceAddresses in the ranges of the old object.
pub fn update(old: &ServicePool, new: &ServicePool, facts: &Facts) -> RuleResult {
    if old.spec == new.spec {
        return Ok(());
    }
    let mut found = introduced(&faults(old, facts), faults(new, facts));
    found.extend(validate_service_pool_change(old, new).err().unwrap_or_default());
    found.extend(removed(old, new, facts));
    verdict(found)
}

/// Facts: the ServiceAddresses of the pool.
pub fn delete(pool: &ServicePool, facts: &Facts) -> RuleResult {
    let used: Vec<String> = facts.claims.iter().map(described).collect();
    if used.is_empty() {
        return Ok(());
    }
    let message = format!("its addresses are allocated: delete these Services first: {}", some(&used));
    Err(vec![still_used("ServicePool", pool.name(), message)])
}

/// `10.0.0.5 of default/web`
fn described(claim: &ServiceAddress) -> String {
    let services: Vec<String> = claim.spec.services.iter().map(ToString::to_string).collect();
    format!("{} of {}", claim.spec.address, some(&services))
}

fn fault(pool: &ServicePool, field: impl Into<String>, message: String) -> Fault {
    Fault { kind: "ServicePool", name: pool.name().to_owned(), field: field.into(), message }
}

fn faults(pool: &ServicePool, facts: &Facts) -> Vec<Fault> {
    let mut found = validate_service_pool(pool).err().unwrap_or_default();
    let network =
        pool.spec.l2.as_ref().map(|l2| l2.network.as_str()).filter(|_| pool.spec.mode == PoolMode::L2);
    if let Some(network) = network {
        if !is_vlan(network, facts) {
            let message = format!("there is no Network {network} of mode VLAN: write the name of one");
            found.push(fault(pool, "spec.l2.network", message));
        }
        let blocks = pool.spec.blocks().unwrap_or_default();
        let count = blocks.iter().map(AddressBlock::count).fold(0, u128::saturating_add);
        if count > MAX_L2 {
            let message =
                format!("{count} addresses, and a pool of mode L2 has at most {MAX_L2}: write fewer");
            found.push(fault(pool, "spec.addresses", message));
        }
    }
    // The Subnets of the Network are the only objects that an L2 pool may overlap.
    let (inside, others): (Vec<Subnet>, Vec<Subnet>) =
        facts.subnets.iter().cloned().partition(|subnet| is_l2_of(pool, &subnet.spec.network));
    let others = Facts { subnets: others, claims: Vec::new(), ..facts.clone() };
    for (index, text) in pool.spec.addresses.iter().enumerate() {
        let Ok(block) = text.parse::<AddressBlock>() else { continue };
        let field = format!("spec.addresses[{index}]");
        if let Some(other) = owner(&block, "ServicePool", pool.name(), &others) {
            let message =
                format!("{block} overlaps {other}: write addresses that no pod, pool, peer or node has");
            found.push(fault(pool, &*field, message));
        }
        if let Some(network) = network.filter(|network| is_vlan(network, facts)) {
            found.extend(l2_fault(&block, network, &inside).map(|message| fault(pool, field, message)));
        }
    }
    found
}

/// The fault of a block of an L2 pool.
fn l2_fault(block: &AddressBlock, network: &str, subnets: &[Subnet]) -> Option<String> {
    let span = Span::from(*block);
    let holding = subnets.iter().find_map(|subnet| {
        let range = subnet.spec.range.parse().ok()?;
        let holds = |address| range.cidr.contains(&address);
        (holds(span.first) && holds(span.last)).then_some((subnet, range))
    });
    let Some((subnet, range)) = holding else {
        return Some(format!(
            "{block} is not inside one Subnet of Network {network}: write addresses of its VLAN, outside the range that \
             the Subnet allocates"
        ));
    };
    let taken = allocated_by_subnet(subnet, &range).into_iter().find(|taken| taken.overlaps(&span))?;
    Some(format!(
        "{block} overlaps {taken}, which Subnet {} allocates or needs: write addresses outside its start and end, or \
         exclude them there (spec.range.excludeIPs)",
        subnet.name()
    ))
}

/// The fault if allocated addresses would leave the pool.
fn removed(old: &ServicePool, new: &ServicePool, facts: &Facts) -> Option<Fault> {
    let (Ok(before), Ok(after)) = (old.spec.blocks(), new.spec.blocks()) else { return None };
    let (Ok(excluded_before), Ok(excluded)) = (old.spec.excluded(), new.spec.excluded()) else { return None };
    let is_in = |blocks: &[AddressBlock], address| blocks.iter().any(|block| block.contains(address));
    let lost = |claim: &&ServiceAddress| {
        claim.spec.address().is_ok_and(|address| {
            let had = is_in(&before, address) && !is_in(&excluded_before, address);
            had && (!is_in(&after, address) || is_in(&excluded, address))
        })
    };
    let lost: Vec<String> = facts.claims.iter().filter(lost).map(described).collect();
    (!lost.is_empty()).then(|| {
        let message = format!(
            "{} would not be in it any more: delete these Services first, or keep the range",
            some(&lost)
        );
        fault(new, "spec.addresses", message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{expect, network, subnet};
    use super::*;

    fn pool(name: &str, spec: Value) -> ServicePool {
        serde_json::from_value(json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    fn claim(address: &str, services: &[&str]) -> ServiceAddress {
        let services: Vec<Value> =
            services.iter().map(|name| json!({"namespace": "default", "name": name, "uid": name})).collect();
        serde_json::from_value(json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAddress", "metadata": {"name": "x"},
            "spec": {"address": address, "pool": "p", "services": services},
        }))
        .unwrap()
    }

    fn cluster() -> Facts {
        let peers = json!({"bgpPeers": [{"asn": 65100, "prefix": "192.0.2.0/24"}], "extraPrefixes": ["10.77.0.0/16"]});
        Facts {
            networks: vec![
                network(
                    "rack1",
                    json!({"nodeSelector": {"rack": "1"}, "netID": 65001, "mode": "BGP", "config": peers}),
                ),
                network("vlan", json!({"nodeSelector": {"rack": "2"}, "netID": 10})),
            ],
            subnets: vec![
                subnet(
                    "rack1-v4",
                    json!({"network": "rack1", "range": {"version": "4", "cidr": "10.1.0.0/24"}}),
                ),
                subnet(
                    "vlan-v4",
                    json!({"network": "vlan", "range": {
                        "version": "4", "cidr": "10.2.0.0/24", "start": "10.2.0.10", "end": "10.2.0.99",
                        "gateway": "10.2.0.1", "excludeIPs": ["10.2.0.20", "10.2.0.21"],
                    }}),
                ),
            ],
            service_pools: vec![pool("there", json!({"addresses": ["10.50.0.0/24"]}))],
            addressed_nodes: vec![("n1".to_owned(), vec!["172.16.0.1".parse().unwrap()])],
            ..Facts::default()
        }
    }

    #[test]
    fn create_rules() {
        let facts = cluster();
        let addresses = |text: &str| json!({"addresses": [text]});
        let l2 = |network: &str, text: &str| json!({"addresses": [text], "mode": "L2", "l2": {"network": network}});
        for (case, spec, refusal) in [
            ("free", addresses("10.60.0.0/24"), ""),
            ("IPv6", addresses("fd00:60::/64"), ""),
            (
                "a Subnet's",
                addresses("10.1.0.0/28"),
                "ServicePool new: spec.addresses[0]: 10.1.0.0/28 overlaps 10.1.0.0/24 of Subnet rack1-v4: write addresses \
                 that no pod, pool, peer or node has",
            ),
            ("a pool's", addresses("10.50.0.255"), "overlaps 10.50.0.0/24 of ServicePool there"),
            ("a node's", addresses("172.16.0.0-172.16.0.3"), "overlaps 172.16.0.1 of Node n1"),
            (
                "a pod's extra prefix",
                addresses("10.77.5.0/24"),
                "overlaps 10.77.0.0/16 of extraPrefixes of Network rack1",
            ),
            (
                "peers'",
                addresses("192.0.2.128/25"),
                "overlaps 192.0.2.0/24, from which Network rack1 accepts BGP peers",
            ),
            (
                "itself",
                json!({"addresses": ["10.60.0.0/24", "10.60.0.5"]}),
                "of the same pool: write each address once",
            ),
            ("reversed", addresses("10.60.0.9-10.60.0.1"), "write 10.60.0.1-10.60.0.9"),
            ("too many", addresses("10.128.0.0/9"), "has more than 1048576 addresses"),
            (
                "a VLAN Subnet's, not L2",
                addresses("10.2.0.200-10.2.0.210"),
                "overlaps 10.2.0.0/24 of Subnet vlan-v4",
            ),
            ("L2", l2("vlan", "10.2.0.200-10.2.0.210"), ""),
            ("L2, excluded from the Subnet", l2("vlan", "10.2.0.20-10.2.0.21"), ""),
            (
                "L2, pods'",
                l2("vlan", "10.2.0.98-10.2.0.110"),
                "10.2.0.98-10.2.0.110 overlaps 10.2.0.22-10.2.0.99, which Subnet vlan-v4 allocates or needs",
            ),
            ("L2, the gateway", l2("vlan", "10.2.0.1"), "overlaps 10.2.0.1, which Subnet vlan-v4"),
            ("L2, broadcast", l2("vlan", "10.2.0.200-10.2.0.255"), "overlaps 10.2.0.255, which"),
            ("L2, elsewhere", l2("vlan", "10.3.0.1"), "10.3.0.1 is not inside one Subnet of Network vlan"),
            ("L2, another Network's", l2("vlan", "10.1.0.5"), "overlaps 10.1.0.0/24 of Subnet rack1-v4"),
            (
                "L2, mode BGP",
                l2("rack1", "10.1.0.5"),
                "spec.l2.network: there is no Network rack1 of mode VLAN",
            ),
            ("L2, large", l2("vlan", "10.2.0.0/23"), "512 addresses, and a pool of mode L2 has at most 256"),
        ] {
            expect(case, create(&pool("new", spec), &facts), refusal);
        }
    }

    #[test]
    fn update_and_delete_rules() {
        let mut facts = cluster();
        let old = pool("there", json!({"addresses": ["10.50.0.0/24"]}));
        facts.claims = vec![claim("10.50.0.5", &["web"]), claim("10.50.0.200", &["api", "shop"])];
        for (case, spec, refusal) in [
            ("nothing", json!({"addresses": ["10.50.0.0/24"]}), ""),
            ("another field", json!({"addresses": ["10.50.0.0/24"], "priority": 5}), ""),
            ("more", json!({"addresses": ["10.50.0.0/24", "10.60.0.0/24"]}), ""),
            ("split", json!({"addresses": ["10.50.0.0/25", "10.50.0.128/25"]}), ""),
            (
                "less",
                json!({"addresses": ["10.50.0.0/25"]}),
                "ServicePool there: spec.addresses: 10.50.0.200 of default/api, default/shop would not be in it any more: \
                 delete these Services first, or keep the range",
            ),
            (
                "excluded",
                json!({"addresses": ["10.50.0.0/24"], "exclude": ["10.50.0.5"]}),
                "10.50.0.5 of default/web would not be in it",
            ),
            ("excluded, free", json!({"addresses": ["10.50.0.0/24"], "exclude": ["10.50.0.6"]}), ""),
            (
                "over a Subnet",
                json!({"addresses": ["10.50.0.0/24", "10.1.0.7"]}),
                "overlaps 10.1.0.0/24 of Subnet rack1-v4",
            ),
            (
                "mode",
                json!({"addresses": ["10.50.0.0/24"], "mode": "L2", "l2": {"network": "vlan"}}),
                "spec.mode: L2: it was BGP and cannot change",
            ),
        ] {
            expect(case, update(&old, &pool("there", spec), &facts), refusal);
        }
        // An existing fault does not block a change of another field.
        let wrong = pool("there", json!({"addresses": ["10.50.0.0/24", "10.1.0.0/28"]}));
        let also = pool("there", json!({"addresses": ["10.50.0.0/24", "10.1.0.0/28"], "autoAssign": false}));
        expect("an old fault", update(&wrong, &also, &facts), "");

        expect(
            "used",
            delete(&old, &facts),
            "delete these Services first: 10.50.0.5 of default/web, 10.50.0.200 of",
        );
        facts.claims.clear();
        expect("unused", delete(&old, &facts), "");
    }
}
