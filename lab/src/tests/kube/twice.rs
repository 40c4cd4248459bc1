//! Two IPInstances of one address, created by another program: while a controller runs, and while
//! no controller runs. The pod that uses the address keeps it. If no pod uses it, the older pod
//! keeps it. The other pod gets another address, and an event. If both pods use it, only their
//! owner can decide.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::storm::{furnish, plan, wait_addresses};
use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/twice",
    about: "two IPInstances with one address, made by another program: one pod keeps it, the other pod gets another address, and an event reports it",
    run: twice,
}];

const PATIENCE: Duration = Duration::from_secs(60);

/// An existing pod.
struct Pod {
    plan: Plan,
    uid: String,
}

impl Pod {
    /// Creates the pod in the namespace with this number.
    fn make(cluster: &Cluster, pretended: &Pretended, name: &str, namespace: usize) -> Result<Self> {
        let plan = plan(name, namespace, false);
        let uid = cluster.wait(pretended.create(&plan))?;
        Ok(Self { plan, uid })
    }

    /// Creates an IPInstance for the pod, as the controller would.
    fn forge(&self, cluster: &Cluster, address: &str) -> Result<()> {
        let Plan { namespace, name, node, .. } = &self.plan;
        let object = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {
                "name": address.replace('.', "-"), "namespace": namespace,
                "labels": {
                    "networking.alibaba.com/node": node, "networking.alibaba.com/network": "rack1",
                    "networking.alibaba.com/subnet": "rack1-v4", "networking.alibaba.com/pod": name,
                    "networking.alibaba.com/pod-uid": self.uid,
                },
                "finalizers": ["networking.alibaba.com/ip-allocated"],
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": self.uid, "controller": true},
                ],
            },
            "spec": {
                "network": "rack1", "subnet": "rack1-v4",
                "address": {"version": "4", "ip": format!("{address}/24"), "mac": "02:12:34:56:78:9a"},
                "binding": {
                    "nodeName": node, "podName": name, "podUID": self.uid,
                    "referredObject": {"kind": "Pod", "name": name, "uid": self.uid},
                },
            },
        });
        cluster.apply(&object.to_string()).map(drop)
    }

    /// Waits until the pod has exactly one address, and the address meets a condition.
    fn wait_one(
        &self,
        cluster: &Cluster,
        auditor: &AddressAuditor,
        what: &str,
        right: impl Fn(IpAddr) -> bool,
    ) -> Result<IpAddr> {
        let what = format!("{} to have {what}", self.plan.name);
        cluster.wait(auditor.until(&what, PATIENCE, |state| match state.of_pod(&self.uid).as_slice() {
            [one] if right(*one) => Some(*one),
            _ => None,
        }))
    }

    /// Waits until an event about the pod has these words.
    fn wait_told(&self, cluster: &Cluster, words: &[&str]) -> Result<()> {
        let namespace = &self.plan.namespace;
        wait_for(&format!("an event about {namespace}/{}", self.plan.name), PATIENCE, || {
            let text = cluster.kubectl(["get", "events", "-n", namespace, "-o", "json"])?;
            let list: Value = serde_json::from_str(&text)?;
            let about = |event: &&Value| {
                event["involvedObject"]["uid"] == json!(self.uid) && event["reason"] == "IPConflict"
            };
            let texts: Vec<&str> = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(about)
                .filter_map(|event| event["message"].as_str())
                .collect();
            let all = texts.iter().any(|text| words.iter().all(|word| text.contains(word)));
            Ok(Seen::when(all, || format!("{texts:?}")))
        })
    }
}

/// Waits for the next second: an object's age has a resolution of one second.
fn a_second_later() -> Result<()> {
    let second =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = second();
    wait_for("the next second", PATIENCE, || Ok(Seen::when(second() > now, || "the same".to_owned())))
}

fn twice(context: &Context) -> Result<Verdict> {
    cluster(context, "twice", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 2)?;
        let auditor = AddressAuditor::open(cluster)?;
        let make = |name: &str, namespace| Pod::make(cluster, &pretended, name, namespace);

        // The first two cases happen while a controller runs. The second pod already has an
        // address, and keeps it.
        let (first, second) = (make("first", 0)?, make("second", 1)?);
        let one = cluster.wait(wait_addresses(&auditor, &first.plan, &first.uid))?[0];
        let two = cluster.wait(wait_addresses(&auditor, &second.plan, &second.uid))?[0];
        ensure!(one != two, "{one} was allocated twice");
        second.forge(cluster, &one.to_string())?;
        second.wait_told(
            cluster,
            &[&one.to_string(), "belongs to IPInstance storm-a/", "this pod gets another one"],
        )?;
        second.wait_one(cluster, &auditor, "only its earlier address", |address| address == two)?;
        first.wait_one(cluster, &auditor, "its address as before", |address| address == one)?;

        // These cases happen while no controller runs. The older pod is in the namespace with the
        // later name, so the result shows that the age decides and not the name.
        replicas.kill_all()?;
        let (younger, older) = (make("younger", 0)?, make("older", 1)?);
        let (unused, used) = (make("unused", 0)?, make("used", 1)?);
        let (both, of_two) = (make("both", 0)?, make("of-two", 1)?);
        older.forge(cluster, "100.64.1.100")?;
        unused.forge(cluster, "100.64.1.101")?;
        both.forge(cluster, "100.64.1.102")?;
        a_second_later()?;
        younger.forge(cluster, "100.64.1.100")?;
        used.forge(cluster, "100.64.1.101")?;
        of_two.forge(cluster, "100.64.1.102")?;
        for (pod, address) in [(&used, "100.64.1.101"), (&both, "100.64.1.102"), (&of_two, "100.64.1.102")] {
            let address = [address.parse().context("an address")?];
            cluster.wait(pretended.report(&pod.plan.namespace, &pod.plan.name, &address))?;
        }
        let mut replicas = Replicas::start(cluster, &program, 2)?;

        let is = |address: IpAddr, text: &str| address.to_string() == text;
        younger.wait_one(cluster, &auditor, "another address", |address| !is(address, "100.64.1.100"))?;
        older.wait_one(cluster, &auditor, "the contested address", |address| is(address, "100.64.1.100"))?;
        younger.wait_told(cluster, &["100.64.1.100 belongs to IPInstance storm-b/100-64-1-100"])?;
        unused.wait_one(cluster, &auditor, "another address", |address| !is(address, "100.64.1.101"))?;
        used.wait_one(cluster, &auditor, "the address that it uses", |address| is(address, "100.64.1.101"))?;
        unused.wait_told(cluster, &["100.64.1.101 belongs to IPInstance storm-b/100-64-1-101"])?;

        // If both pods use the address, both get an event, and neither loses the address. When one
        // pod is deleted, the other pod keeps the address.
        both.wait_told(cluster, &["100.64.1.102", "storm-b/100-64-1-102", "delete one of the two pods"])?;
        of_two.wait_told(cluster, &["100.64.1.102", "storm-a/100-64-1-102", "delete one of the two pods"])?;
        both.wait_one(cluster, &auditor, "the address that it uses", |address| is(address, "100.64.1.102"))?;
        cluster.wait(pretended.delete(&both.plan.namespace, &both.plan.name))?;
        let key = (both.plan.namespace.clone(), "100-64-1-102".to_owned());
        cluster.wait(auditor.until("the removal of the deleted pod's IPInstance", PATIENCE, |state| {
            (!state.instances.contains_key(&key)).then_some(())
        }))?;
        of_two
            .wait_one(cluster, &auditor, "the address that it uses", |address| is(address, "100.64.1.102"))?;
        replicas.still_running()?;
        passed(
            "four addresses with two IPInstances each: resolved while a controller ran, and \
                after one returned"
                .to_owned(),
        )
    })
}
