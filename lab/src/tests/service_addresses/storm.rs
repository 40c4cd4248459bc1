//! Services that are created and deleted while controllers are disturbed. The auditor checks at the
//! end that no address was in two statuses without a sharing key, and that no status had an address
//! without its claim.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::kube::Cluster;
use crate::kube::service_auditor::ServiceAuditor;

/// Time limit until a Service has its addresses. It includes the election of a new leader.
const PATIENCE: Duration = Duration::from_secs(150);

/// Number of Services of each round: more than half of the pool's addresses, so that rounds reuse
/// addresses.
const SERVICES: usize = 6;

/// The second pool's address is for requests.
const POOLS: &str = r#"
{"apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "storm"},
 "spec": {"addresses": ["10.60.0.1-10.60.0.8", "fd00:60::1-fd00:60::8"]}}
---
{"apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "storm-named"},
 "spec": {"addresses": ["10.60.1.4"], "autoAssign": false}}
"#;

/// Services under change.
pub(in crate::tests) struct ServiceStorm {
    auditor: ServiceAuditor,
    rounds: usize,
}

impl ServiceStorm {
    /// Creates the pools.
    pub(in crate::tests) fn begin(cluster: &Cluster) -> Result<Self> {
        cluster.apply(POOLS)?;
        Ok(Self { auditor: ServiceAuditor::open(cluster)?, rounds: 0 })
    }

    /// Creates the Services of the next round. One in three is dual stack, two share an address, and
    /// one requests an address in some rounds.
    pub(in crate::tests) fn create(&mut self, cluster: &Cluster) -> Result<()> {
        self.rounds += 1;
        let services: Vec<String> = (0..SERVICES).map(|n| service(self.rounds, n).to_string()).collect();
        cluster.apply(&services.join("\n---\n")).map(drop)
    }

    /// Waits until all Services of the round have their addresses, and deletes them.
    pub(in crate::tests) fn finish(&self, cluster: &Cluster) -> Result<()> {
        let wanted = |n: usize| if n.is_multiple_of(3) { 2 } else { 1 };
        let what = format!("the Services of round {} to have addresses", self.rounds);
        cluster.wait(self.auditor.until(&what, PATIENCE, |seen| {
            let has = |n: usize| {
                let service = seen.services.get(&format!("default/storm-{}-{n}", self.rounds));
                service.is_some_and(|service| service.addresses.len() == wanted(n))
            };
            (0..SERVICES).all(has).then_some(())
        }))?;
        cluster.kubectl([
            "delete",
            "service",
            "--selector",
            &format!("round=r{}", self.rounds),
            "--wait=false",
        ])?;
        Ok(())
    }

    /// Waits until no claim is left, and checks the whole history. Returns a text with the counts.
    pub(in crate::tests) fn end(self, cluster: &Cluster) -> Result<String> {
        cluster.wait(self.auditor.until("no claim to be left", PATIENCE, |seen| {
            (seen.claims.is_empty() && seen.services.is_empty()).then_some(())
        }))?;
        let seen = self.auditor.now();
        let violations = seen.violations();
        ensure!(violations.is_empty(), "service addresses: {violations:#?}");
        ensure!(seen.faults.is_empty(), "{:?}", seen.faults);
        Ok(format!("{} Services with addresses, none of them twice or left over", seen.given))
    }
}

fn service(round: usize, n: usize) -> Value {
    let mut annotations = json!({});
    if n == 1 || n == 2 {
        annotations["trunkline.io/sharing-key"] = json!("pair");
    }
    if n == 4 && round % 4 == 1 {
        annotations["trunkline.io/addresses"] = json!("10.60.1.4");
    }
    let families = if n.is_multiple_of(3) { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
    let policy = if n.is_multiple_of(3) { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": format!("storm-{round}-{n}"), "namespace": "default", "labels": {"round": format!("r{round}")},
            "annotations": annotations,
        },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer", "ipFamilies": families,
            "ipFamilyPolicy": policy, "ports": [{"port": 80 + n, "name": "web"}], "allocateLoadBalancerNodePorts": false,
        },
    })
}
