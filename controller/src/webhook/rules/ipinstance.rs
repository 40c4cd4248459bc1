//! IPInstances that another client than the controller creates or changes.
//!
//! hybridnet has no rule here. But for the controller an IPInstance is an allocated address. If it
//! names no Subnet, or its address changes while a pod uses it, an address is in use without any
//! record. The controller's own writes are frequent and are not sent to the webhook.

use ipnet::IpNet;
use trunkline_api::names::label;
use trunkline_api::resources::{IPInstance, IpVersion, parse_mac};
use trunkline_api::validate::Fault;

use super::{Facts, RuleResult, introduced, verdict};

/// Facts: the IPInstance's Subnet.
pub fn create(instance: &IPInstance, facts: &Facts) -> RuleResult {
    verdict(faults(instance, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &IPInstance, new: &IPInstance, facts: &Facts) -> RuleResult {
    let (before, after) = (&old.spec, &new.spec);
    let mut found = introduced(&faults(old, facts), faults(new, facts));
    let version = |version: IpVersion| format!("{version:?}");
    for (field, before, after) in [
        ("spec.network", before.network.clone(), after.network.clone()),
        ("spec.subnet", before.subnet.clone(), after.subnet.clone()),
        ("spec.address.version", version(before.address.version), version(after.address.version)),
        ("spec.address.ip", before.address.ip.clone(), after.address.ip.clone()),
    ] {
        if before != after {
            let message = format!(
                "{after}: it was {before} and cannot change: put it back, or delete the pod to get another address"
            );
            found.push(fault(new, field, message));
        }
    }
    verdict(found)
}

/// The address and its pod.
pub(super) fn described(instance: &IPInstance) -> String {
    let spec = &instance.spec;
    let address = spec.address.ip.split('/').next().unwrap_or_default();
    let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
    let (pod, node) = (&spec.binding.pod_name, &spec.binding.node_name);
    if node.is_empty() {
        format!("{address} (retained for pod {namespace}/{pod})")
    } else {
        format!("{address} (pod {namespace}/{pod} on node {node})")
    }
}

fn faults(instance: &IPInstance, facts: &Facts) -> Vec<Fault> {
    let spec = &instance.spec;
    let mut found = Vec::new();
    let mut add = |field: &str, message: String| found.push(fault(instance, field, message));

    if let Err(error) = parse_mac(&spec.address.mac) {
        add("spec.address.mac", error.to_string());
    }
    for (key, value) in [(label::NETWORK, &spec.network), (label::SUBNET, &spec.subnet)] {
        if instance.metadata.labels.get(key) != Some(value) {
            add(
                &format!("metadata.labels[{key}]"),
                format!(
                    "programs find the IPInstance by its \
                labels: write {value}"
                ),
            );
        }
    }
    let Some(subnet) = facts.subnets.iter().find(|subnet| subnet.name() == spec.subnet) else {
        add(
            "spec.subnet",
            format!("there is no Subnet `{}`: write the name of an existing one", spec.subnet),
        );
        return found;
    };
    if subnet.spec.network != spec.network {
        let message = format!(
            "`{}` is not the Network of Subnet {}: write {}",
            spec.network, spec.subnet, subnet.spec.network
        );
        add("spec.network", message);
    }
    if subnet.spec.range.version != spec.address.version {
        add("spec.address.version", format!("it is not the version of Subnet {}", spec.subnet));
    }
    let Ok(range) = subnet.spec.range.parse() else { return found };
    match spec.address.ip.parse::<IpNet>() {
        Ok(address) if address.trunc() != range.cidr => {
            let message = format!(
                "{address} is not in {}: write an address of Subnet {} with its length",
                range.cidr, spec.subnet
            );
            add("spec.address.ip", message);
        }
        Ok(address) if range.gateway == Some(address.addr()) || range.excluded.contains(&address.addr()) => {
            let message =
                format!("{address} is the gateway or excluded in Subnet {}: write another one", spec.subnet);
            add("spec.address.ip", message);
        }
        Ok(_) => {}
        Err(_) => {
            let message =
                format!("`{}` is not an address with its length, such as 10.14.0.7/24", spec.address.ip);
            add("spec.address.ip", message);
        }
    }
    found
}

fn fault(instance: &IPInstance, field: &str, message: String) -> Fault {
    let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
    let name = format!("{namespace}/{}", instance.metadata.name);
    Fault { kind: "IPInstance", name, field: field.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{expect, instance, subnet};
    use super::*;

    fn cluster() -> Facts {
        let range =
            json!({"version": "4", "cidr": "10.1.0.0/24", "gateway": "10.1.0.1", "excludeIPs": ["10.1.0.9"]});
        Facts { subnets: vec![subnet("s1", json!({"network": "n", "range": range}))], ..Facts::default() }
    }

    fn labelled(ip: &str, network: &str, subnet: &str) -> IPInstance {
        let mut made = instance(ip, network, subnet, "web-0", "n1");
        made.metadata.labels = [(label::NETWORK, network), (label::SUBNET, subnet)]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        made
    }

    #[test]
    fn create_rules() {
        let facts = cluster();
        for (case, ip, network, subnet, refusal) in [
            ("right", "10.1.0.7/24", "n", "s1", ""),
            ("no such Subnet", "10.1.0.7/24", "n", "s2", "there is no Subnet `s2`"),
            ("another Network", "10.1.0.7/24", "m", "s1", "`m` is not the Network of Subnet s1: write n"),
            ("outside", "10.2.0.7/24", "n", "s1", "10.2.0.7/24 is not in 10.1.0.0/24"),
            ("another length", "10.1.0.7/25", "n", "s1", "10.1.0.7/25 is not in 10.1.0.0/24"),
            ("the gateway", "10.1.0.1/24", "n", "s1", "is the gateway"),
            ("excluded", "10.1.0.9/24", "n", "s1", "excluded in Subnet s1"),
            ("no length", "10.1.0.7", "n", "s1", "is not an address with its length"),
            ("the other version", "2001:db8::7/24", "n", "s1", "spec.address.version"),
        ] {
            expect(case, create(&labelled(ip, network, subnet), &facts), refusal);
        }
        let mut wrong = labelled("10.1.0.7/24", "n", "s1");
        wrong.metadata.labels.clear();
        expect(
            "no labels",
            create(&wrong, &facts),
            "metadata.labels[networking.alibaba.com/network]: programs find the IPInstance by",
        );
        let mut wrong = labelled("10.1.0.7/24", "n", "s1");
        wrong.spec.address.mac = "x".to_owned();
        expect("MAC", create(&wrong, &facts), "spec.address.mac");
    }

    #[test]
    fn update_rules() {
        let facts = cluster();
        let old = labelled("10.1.0.7/24", "n", "s1");
        let mut new = old.clone();
        new.spec.binding.node_name = "n2".to_owned();
        expect("moved", update(&old, &new, &facts), "");
        new.spec.address.ip = "10.1.0.8/24".to_owned();
        expect("address", update(&old, &new, &facts), "spec.address.ip: 10.1.0.8/24: it was 10.1.0.7/24");
        expect(
            "network",
            update(&old, &labelled("10.1.0.7/24", "m", "s1"), &facts),
            "spec.network: m: it was n",
        );
        expect(
            "subnet",
            update(&old, &labelled("10.1.0.7/24", "n", "s2"), &facts),
            "spec.subnet: s2: it was s1",
        );

        // The Subnet of this IPInstance is gone, but the IPInstance can still be released.
        let none = Facts::default();
        let mut free = old.clone();
        free.metadata.finalizers.clear();
        expect("an orphan's finalizer", update(&old, &free, &none), "");
    }
}
