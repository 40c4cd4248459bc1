//! Leaders that are killed and stopped, and addresses that are given back.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::world::{PATIENCE, World, service};
use crate::kube::controller::Replicas;
use crate::shell::{Seen, wait_for};

impl World<'_> {
    /// Leaders are killed during a burst, and one is stopped: all addresses stay.
    pub(super) fn killed(&self, replicas: &mut Replicas) -> Result<usize> {
        const BURST: usize = 8;
        let before = self.all()?;
        for round in 0..3 {
            let leader = replicas.wait_leader(self.cluster)?;
            let name = |n: usize| format!("burst-{round}-{n}");
            let services: Vec<Value> = (0..BURST).map(|n| service(&name(n), json!({}), json!({}))).collect();
            self.apply(&services)?;
            // A kill at another moment in each round: at once, and after one or two addresses.
            wait_for("the first addresses of a burst", PATIENCE, || {
                let all = self.all()?;
                let given = (0..BURST)
                    .filter(|n| all.get(&format!("default/{}", name(*n))).is_some_and(|has| !has.is_empty()));
                let given = given.count();
                Ok(Seen::when(given >= round, || format!("{given} of {round}")))
            })?;
            if round == 2 {
                replicas.end(self.cluster, leader)?;
            } else {
                replicas.kill(self.cluster, leader)?;
            }
            for n in 0..BURST {
                self.wait(&name(n), "10.6")?;
            }
        }
        let after = self.all()?;
        for (name, had) in before {
            ensure!(after.get(&name) == Some(&had), "{name} had {had}, and has {:?}", after.get(&name));
        }
        let mut users: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (name, has) in after.iter().filter(|(_, has)| !has.is_empty()) {
            users.entry(has).or_default().push(name);
        }
        let twice: Vec<_> = users.iter().filter(|(_, names)| names.len() > 1).collect();
        ensure!(twice.iter().all(|(has, _)| has.as_str() == "10.60.0.60"), "{twice:?}");
        Ok(3 * BURST)
    }

    /// Deleted Services, and Services of another type, give their addresses back.
    pub(super) fn given_back(&self) -> Result<()> {
        let shared = self.addresses("share-1")?;
        for name in ["share-1", "six", "golden"] {
            let address = self.addresses(name)?;
            self.delete(name)?;
            wait_for(&format!("{address} to be free of {name}"), PATIENCE, || {
                let claim = self.claim(&address)?;
                let named =
                    claim.as_ref().is_some_and(|claim| claim.to_string().contains(&format!("\"{name}\"")));
                let is = !named && (claim.is_some() == (address == shared));
                Ok(Seen::when(is, || format!("{claim:?}")))
            })?;
        }
        let address = self.addresses("auto")?.split(',').next().unwrap_or_default().to_owned();
        self.cluster.kubectl([
            "patch", "service", "auto", "--type=merge", "--patch",
            r#"{"spec": {"type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null}}"#,
        ])?;
        wait_for("the ClusterIP Service to have no address", PATIENCE, || {
            let (claim, condition) = (self.claim(&address)?, self.condition("auto")?);
            let none = self.addresses("auto")?.is_empty();
            Ok(Seen::when(none && claim.is_none() && condition.is_null(), || {
                format!("{claim:?} {condition}")
            }))
        })
    }
}
