//! Finalizers of other clients. A backup or an operator adds a finalizer to keep an object until
//! the client has seen its deletion. The controller must never remove these finalizers together
//! with its own finalizer.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::storm::{furnish, plan, wait_addresses};
use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::shell::{Seen, wait_for};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/finalizers",
    about: "IPInstances, Subnets and Networks with foreign finalizers: only Trunkline's is removed, and an address is free when its IPInstance is gone",
    run: finalizers,
}];

const PATIENCE: Duration = Duration::from_secs(60);
const OTHERS: &str = "backup.example.com/copy";
const OURS: &str = "networking.alibaba.com/ip-allocated";
const HYBRIDNETS: &str = "networking.alibaba.com/metrics-registered";

/// Networks and Subnets with hybridnet's finalizers.
fn others() -> String {
    format!(
        "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {{ name: old, finalizers: [{HYBRIDNETS}, {OTHERS}] }}
spec: {{ type: Underlay, mode: VLAN, netID: 9, nodeSelector: {{ rack: '9' }} }}
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {{ name: old-v4, finalizers: [{OTHERS}, {HYBRIDNETS}] }}
spec: {{ network: old, range: {{ version: '4', cidr: 100.99.0.0/24, gateway: 100.99.0.1 }} }}
"
    )
}

/// Waits until an object has exactly these finalizers.
fn wait_has(cluster: &Cluster, object: &[&str], wanted: &[&str]) -> Result<Value> {
    wait_for(&format!("{} to have {wanted:?}", object.join(" ")), PATIENCE, || {
        let text =
            crate::shell::run(&mut cluster.kubectl_command(&[&["get", "-o", "json"], object].concat()))?;
        let found: Value = serde_json::from_str(&text)?;
        let is = found["metadata"]["finalizers"] == json!(wanted);
        Ok(if is { Seen::Yes(found) } else { Seen::NotYet(found["metadata"].to_string()) })
    })
}

/// Replaces an object's finalizers.
fn set(cluster: &Cluster, object: &[&str], finalizers: &[&str]) -> Result<()> {
    let patch = json!({"metadata": {"finalizers": finalizers}}).to_string();
    let args = [&["patch", "--type=merge", "-p", patch.as_str()], object].concat();
    crate::shell::run(&mut cluster.kubectl_command(&args)).map(drop)
}

fn finalizers(context: &Context) -> Result<Verdict> {
    cluster(context, "finalizers", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        cluster.apply(&others())?;
        let mut replicas = Replicas::start(cluster, &program, 1)?;
        let auditor = AddressAuditor::open(cluster)?;

        // The IPInstance of a pod.
        let pod = plan("web", 0, false);
        let uid = cluster.wait(pretended.create(&pod))?;
        let address = cluster.wait(wait_addresses(&auditor, &pod, &uid))?[0];
        let name = address.to_string().replace('.', "-");
        let instance = ["ipinstance", name.as_str(), "-n", pod.namespace.as_str()];
        wait_has(cluster, &instance, &[OURS])?;
        set(cluster, &instance, &[OTHERS, OURS])?;
        cluster.wait(pretended.delete(&pod.namespace, &pod.name))?;
        let left = wait_has(cluster, &instance, &[OTHERS])?;
        ensure!(left["metadata"]["deletionTimestamp"].is_string(), "the object was not deleted: {left}");

        // A StatefulSet's pod is created again. Its IPInstance is bound to it again, and keeps the
        // other finalizer. A removed finalizer of Trunkline is restored.
        let mut kept = plan("db-0", 0, false);
        kept.stateful_set = Some("db");
        let uid = cluster.wait(pretended.create(&kept))?;
        let its = cluster.wait(wait_addresses(&auditor, &kept, &uid))?[0];
        ensure!(its != address, "{address} was allocated while its IPInstance exists");
        let its_name = its.to_string().replace('.', "-");
        let its_instance = ["ipinstance", its_name.as_str(), "-n", kept.namespace.as_str()];
        for before in [&[OURS, OTHERS][..], &[OTHERS]] {
            set(cluster, &its_instance, before)?;
            cluster.wait(pretended.delete(&kept.namespace, &kept.name))?;
            let uid = cluster.wait(pretended.create(&kept))?;
            let again = cluster.wait(wait_addresses(&auditor, &kept, &uid))?;
            ensure!(again == [its], "db-0 had {its}, and has {again:?} after it was created again");
            let after = if before.contains(&OURS) { before.to_vec() } else { [before, &[OURS]].concat() };
            wait_has(cluster, &its_instance, &after)?;
        }

        // A Subnet and a Network have hybridnet's own finalizer.
        for object in [["subnet", "old-v4"], ["network", "old"]] {
            cluster.kubectl(["delete", "--wait=false", object[0], object[1]])?;
            wait_has(cluster, &object, &[OTHERS])?;
            set(cluster, &object, &[])?;
            cluster.kubectl(["wait", "--for=delete", "--timeout=60s", &object.join("/")])?;
        }

        // Once the finalizer is removed, the address is free: pods that take all addresses also get
        // this one.
        set(cluster, &instance, &[])?;
        let key = (pod.namespace.clone(), name.clone());
        cluster.wait(auditor.until("the removal of the IPInstance", PATIENCE, |state| {
            (!state.instances.contains_key(&key)).then_some(())
        }))?;
        let mut found = false;
        for number in 0..120 {
            let next = plan(&format!("next-{number}"), 0, false);
            let uid = cluster.wait(pretended.create(&next))?;
            let given = cluster.wait(wait_addresses(&auditor, &next, &uid)).context("an address leaked")?;
            found = given.contains(&address);
            if found {
                break;
            }
        }
        ensure!(found, "{address} is not allocated any more");
        replicas.still_running()?;
        passed(
            "Trunkline's finalizers removed and added, foreign ones unchanged, on IPInstances, a \
             Subnet and a Network"
                .to_owned(),
        )
    })
}
