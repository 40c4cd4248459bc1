//! etcd restored from an older snapshot, as after a disaster: nodes still use addresses that the
//! snapshot does not have.
//!
//! A pod that got its address after the snapshot still runs with this address. Its kubelet reports
//! the pod again, but no IPInstance exists. The pod must get exactly this address, and no other pod
//! may get it. Controllers are stopped for the restore, as the Kubernetes documentation requires
//! for all clients. In the second half the controllers are not stopped, and must recover by
//! themselves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::storm::{self, furnish};
use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/etcd-restore",
    about: "etcd restored from an older snapshot: addresses in use on nodes take precedence",
    run: etcd_restore,
}];

const PATIENCE: Duration = Duration::from_secs(60);

/// The running pods, with their kubelets' state.
struct Running {
    pretended: Pretended,
    pods: BTreeMap<String, (Plan, Vec<IpAddr>)>,
}

impl Running {
    fn make(&self, cluster: &Cluster, names: &[String]) -> Result<Vec<(Plan, String)>> {
        let plans = names.iter().enumerate().map(|(n, name)| storm::plan(name, n, true));
        cluster.wait(async {
            let mut made = Vec::new();
            for plan in plans {
                let uid = self.pretended.create(&plan).await?;
                made.push((plan, uid));
            }
            Ok(made)
        })
    }

    /// Waits until the pods have addresses. Then the kubelet starts the pods with these addresses,
    /// and reports them.
    fn run(&mut self, cluster: &Cluster, auditor: &AddressAuditor, made: Vec<(Plan, String)>) -> Result<()> {
        cluster.wait(async {
            for (plan, uid) in made {
                let mut addresses = storm::wait_addresses(auditor, &plan, &uid).await?;
                addresses.sort_unstable();
                self.pretended.report(&plan.namespace, &plan.name, &addresses).await?;
                for (other, (_, used)) in &self.pods {
                    let both = addresses.iter().find(|address| used.contains(address));
                    ensure!(both.is_none(), "{} got {both:?}, which {other} uses", plan.name);
                }
                self.pods.insert(plan.name.clone(), (plan, addresses));
            }
            Ok(())
        })
    }

    /// Acts as kubelets that reach an API server again: they report their pods, and end pods that
    /// no longer exist there.
    fn report_again(&mut self, cluster: &Cluster) -> Result<()> {
        let known = cluster.wait(self.pretended.all())?;
        let known: Vec<String> = known.into_iter().filter_map(|pod| pod.metadata.name).collect();
        self.pods.retain(|name, _| known.contains(name));
        cluster.wait(async {
            for (plan, addresses) in self.pods.values() {
                self.pretended.report(&plan.namespace, &plan.name, addresses).await?;
            }
            Ok(())
        })
    }

    /// Checks that each running pod's address is also in the API server.
    fn unchanged(&self, cluster: &Cluster, auditor: &AddressAuditor) -> Result<()> {
        let uids: BTreeMap<String, String> = cluster
            .wait(self.pretended.all())?
            .into_iter()
            .filter_map(|pod| Some((pod.metadata.name?, pod.metadata.uid?)))
            .collect();
        for (name, (plan, used)) in &self.pods {
            let what = format!("{}/{name} to have {used:?} again", plan.namespace);
            cluster.wait(auditor.until(&what, PATIENCE, |state| {
                let mut has = state.of_pod(uids.get(name)?);
                has.sort_unstable();
                (has == *used).then_some(())
            }))?;
        }
        let state = auditor.now();
        ensure!(state.twice.is_empty(), "addresses held twice: {:?}", state.twice);
        Ok(())
    }
}

fn names(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{kind}-{n}")).collect()
}

fn etcd_restore(context: &Context) -> Result<Verdict> {
    cluster(context, "etcd-restore", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut running = Running { pretended: pretended.clone(), pods: BTreeMap::new() };

        let replicas = Replicas::start(cluster, &program, 2)?;
        let auditor = AddressAuditor::open(cluster)?;
        let old = running.make(cluster, &names("old", 15))?;
        running.run(cluster, &auditor, old)?;
        drop(replicas);
        // These pods get their addresses directly after the snapshot, so the snapshot does not have
        // the addresses.
        let between = running.make(cluster, &names("between", 10))?;
        let snapshot = cluster.snapshot("older")?;
        let replicas = Replicas::start(cluster, &program, 2)?;
        running.run(cluster, &auditor, between)?;
        let late = running.make(cluster, &names("late", 10))?;
        running.run(cluster, &auditor, late)?;

        drop((replicas, auditor));
        cluster.restore(&snapshot)?;
        running.report_again(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 2)?;
        let auditor = AddressAuditor::open(cluster)?;
        running.unchanged(cluster, &auditor)?;
        let anew = running.make(cluster, &names("new", 15))?;
        running.run(cluster, &auditor, anew)?;
        running.unchanged(cluster, &auditor)?;

        let snapshot = cluster.snapshot("newer")?;
        let lost = running.make(cluster, &names("lost", 10))?;
        running.run(cluster, &auditor, lost)?;
        drop(auditor);
        cluster.restore(&snapshot)?;
        running.report_again(cluster)?;
        let auditor = AddressAuditor::open(cluster)?;
        let last = running.make(cluster, &names("last", 15))?;
        running.run(cluster, &auditor, last)?;
        running.unchanged(cluster, &auditor)?;
        replicas.still_running()?;
        passed(format!("{} pods run with the addresses that they had", running.pods.len()))
    })
}
