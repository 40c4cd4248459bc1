//! Create and update of an AnycastAddress: its addresses have no other owner, and it has no command.

use trunkline_api::resources::{AddressBlock, AnycastAddress, parse_address};
use trunkline_api::validate::{Fault, ObjectSource, validate_anycast};

use super::overlaps::owner;
use super::{Facts, RuleResult, introduced, verdict};

/// Facts: every Network, Subnet, ServicePool, and the addresses of every Node.
pub fn create(anycast: &AnycastAddress, facts: &Facts) -> RuleResult {
    verdict(faults(anycast, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &AnycastAddress, new: &AnycastAddress, facts: &Facts) -> RuleResult {
    verdict(introduced(&faults(old, facts), faults(new, facts)))
}

fn faults(anycast: &AnycastAddress, facts: &Facts) -> Vec<Fault> {
    let mut found = validate_anycast(anycast, ObjectSource::ApiServer).err().unwrap_or_default();
    for (index, text) in anycast.spec.addresses.iter().enumerate() {
        let Ok(address) = parse_address(text) else { continue };
        if let Some(other) = owner(&AddressBlock::from(address), "AnycastAddress", anycast.name(), facts) {
            found.push(Fault {
                kind: "AnycastAddress",
                name: anycast.name().to_owned(),
                field: format!("spec.addresses[{index}]"),
                message: format!(
                    "{address} overlaps {other}: write an address that no pod, pool, peer or node has"
                ),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{expect, subnet};
    use super::*;

    #[test]
    fn create_and_update_rules() {
        let facts = Facts {
            subnets: vec![subnet(
                "s",
                json!({"network": "n", "range": {"version": "4", "cidr": "10.1.0.0/24"}}),
            )],
            addressed_nodes: vec![("n1".to_owned(), vec!["172.16.0.1".parse().unwrap()])],
            ..Facts::default()
        };
        let anycast = |spec: Value| -> AnycastAddress {
            serde_json::from_value(json!({
                "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress", "metadata": {"name": "dns"}, "spec": spec,
            }))
            .unwrap()
        };
        let addresses = |texts: &[&str]| anycast(json!({"addresses": texts}));
        for (case, object, refusal) in [
            ("free", addresses(&["10.9.0.1", "fd00::53"]), ""),
            (
                "a pod's",
                addresses(&["10.9.0.1", "10.1.0.53"]),
                "AnycastAddress dns: spec.addresses[1]: 10.1.0.53 overlaps 10.1.0.0/24 of Subnet s: write an address",
            ),
            ("a node's", addresses(&["172.16.0.1"]), "overlaps 172.16.0.1 of Node n1"),
            (
                "a command",
                anycast(json!({"addresses": ["10.9.0.1"], "check": {"command": ["/bin/true"]}})),
                "spec.check.command: the agent runs it as root, so only a file on the node may have it",
            ),
        ] {
            expect(case, create(&object, &facts), refusal);
        }
        let wrong = addresses(&["10.1.0.53"]);
        let also = anycast(json!({"addresses": ["10.1.0.53"], "prepend": 1}));
        expect("an old fault", update(&wrong, &also, &facts), "");
        expect("a new fault", update(&also, &addresses(&["172.16.0.1"]), &facts), "Node n1");
    }
}
