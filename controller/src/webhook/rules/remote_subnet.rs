//! Create and update of a RemoteSubnet by another client than the controller: its prefix overlaps neither
//! a Subnet of this cluster nor a RemoteSubnet of a third cluster, because agents route by prefixes. The
//! controller has the same rule for what it mirrors (`remote::plan`).

use ipnet::IpNet;
use trunkline_api::resources::{RemoteSubnet, RemoteSubnetSpec};
use trunkline_api::validate::{Fault, overlaps};

use super::{Facts, RuleResult, introduced, verdict};

/// A RemoteSubnet and its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePrefix {
    /// The name of the RemoteSubnet.
    pub name: String,
    /// The name of its RemoteCluster.
    pub cluster: String,
    /// The prefix, host bits cleared.
    pub prefix: IpNet,
}

impl RemotePrefix {
    /// The prefix of a RemoteSubnet; none if it cannot be read.
    pub fn of(subnet: RemoteSubnet) -> Option<RemotePrefix> {
        let prefix = subnet.spec.range.cidr().ok()?;
        Some(RemotePrefix { name: subnet.metadata.name, cluster: subnet.spec.cluster_name, prefix })
    }
}

/// Facts: every Subnet and RemoteSubnet.
pub fn create(subnet: &RemoteSubnet, facts: &Facts) -> RuleResult {
    verdict(faults(subnet, facts))
}

/// Facts: the same as for [`create`].
pub fn update(old: &RemoteSubnet, new: &RemoteSubnet, facts: &Facts) -> RuleResult {
    verdict(introduced(&faults(old, facts), faults(new, facts)))
}

fn faults(subnet: &RemoteSubnet, facts: &Facts) -> Vec<Fault> {
    let RemoteSubnetSpec { range, cluster_name, .. } = &subnet.spec;
    let fault = |field: &str, message: String| Fault {
        kind: "RemoteSubnet",
        name: subnet.metadata.name.clone(),
        field: field.to_owned(),
        message,
    };
    let mut found = Vec::new();
    if cluster_name.is_empty() {
        found.push(fault("spec.clusterName", "missing: write the name of the RemoteCluster".to_owned()));
    }
    let own = match range.cidr() {
        Ok(own) => own,
        Err(error) => {
            found.push(fault("spec.range.cidr", error.to_string()));
            return found;
        }
    };
    for other in &facts.subnets {
        let Ok(prefix) = other.spec.range.cidr() else { continue };
        if overlaps(&own, &prefix) {
            let text = format!(
                "{own} overlaps {prefix} of Subnet {} of this cluster: choose another prefix in one of the clusters",
                other.name()
            );
            found.push(fault("spec.range.cidr", text));
        }
    }
    // After a change of `clusterName`, the facts have this object under its former cluster.
    let is_third =
        |other: &&RemotePrefix| other.cluster != *cluster_name && other.name != subnet.metadata.name;
    let third = facts.remote_subnets.iter().filter(is_third);
    for other in third.filter(|other| overlaps(&own, &other.prefix)) {
        let text = format!(
            "{own} overlaps {} of RemoteSubnet {} of cluster {}: choose another prefix in one of the clusters",
            other.prefix, other.name, other.cluster
        );
        found.push(fault("spec.range.cidr", text));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trunkline_api::resources::NetworkType;

    use super::super::tests::{expect, subnet};
    use super::*;

    fn remote(cluster: &str, cidr: &str) -> RemoteSubnet {
        serde_json::from_value(json!({
            "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteSubnet", "metadata": {"name": "west.new"},
            "spec": {"clusterName": cluster, "range": {"version": "4", "cidr": cidr}},
        }))
        .unwrap()
    }

    #[test]
    fn create_and_update_rules() {
        let other = |name: &str, cluster: &str, prefix: &str| RemotePrefix {
            name: name.to_owned(),
            cluster: cluster.to_owned(),
            prefix: prefix.parse().unwrap(),
        };
        let facts = Facts {
            subnets: vec![subnet(
                "rack",
                json!({"network": "n", "range": {"version": "4", "cidr": "10.1.0.0/24"}}),
            )],
            remote_subnets: vec![
                other("west.a", "west", "10.3.0.0/16"),
                other("north.a", "north", "10.2.0.0/16"),
            ],
            ..Facts::default()
        };
        for (case, object, refusal) in [
            ("free", remote("west", "10.9.0.0/24"), ""),
            ("its own cluster's", remote("west", "10.3.0.0/24"), ""),
            (
                "a Subnet's",
                remote("west", "10.0.0.0/15"),
                "RemoteSubnet west.new: spec.range.cidr: 10.0.0.0/15 overlaps 10.1.0.0/24 of Subnet rack of this cluster",
            ),
            (
                "a third cluster's",
                remote("west", "10.2.7.0/24"),
                "10.2.0.0/16 of RemoteSubnet north.a of cluster north",
            ),
            ("no prefix", remote("west", "10.2.7.0"), "spec.range.cidr: "),
            ("no cluster", remote("", "10.9.0.0/24"), "spec.clusterName: missing"),
        ] {
            expect(case, create(&object, &facts), refusal);
        }
        let wrong = remote("west", "10.1.0.0/24");
        let mut other_type = wrong.clone();
        other_type.spec.network_type = Some(NetworkType::Overlay);
        expect("an old fault", update(&wrong, &other_type, &facts), "");
        expect(
            "another prefix",
            update(&wrong, &remote("west", "10.1.0.0/25"), &facts),
            "10.1.0.0/25 overlaps",
        );
        expect("a new fault", update(&wrong, &remote("west", "10.2.0.0/24"), &facts), "north.a");
        let mut itself = facts.clone();
        itself.remote_subnets.push(other("west.new", "west", "10.9.0.0/24"));
        let (old, new) = (remote("west", "10.9.0.0/24"), remote("east", "10.9.0.0/24"));
        expect("another cluster's name", update(&old, &new, &itself), "");
    }
}
