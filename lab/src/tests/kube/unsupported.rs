//! Reports of objects that have no effect: NetworkPolicies, pods of virtual machines, global
//! Services. The controller has the rights of the Helm chart.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Test, Verdict, cluster, crds};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::rights::Accounts;
use crate::shell::{Seen, cmd, run, wait_for};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/unsupported",
    about: "NetworkPolicies, virtual machines' pods and global Services: one event on each of the first 20 objects, one log line, a metric",
    run: unsupported,
}];

const PATIENCE: Duration = Duration::from_secs(60);
/// The controller's limit of events per reason.
const EVENTS: usize = 20;
/// Number of NetworkPolicies: more than the limit of events.
const POLICIES: usize = EVENTS + 5;
/// With this Lease no replica loses the leadership while the API server restarts, so all events
/// belong to one term.
const FLAGS: &[&str] = &["--webhook=false", "--lease-duration-seconds=600"];
const GLOBAL: &str = "networking.alibaba.com/global-service";

fn policy(name: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "podSelector": {} },
    })
}

fn virtual_machine(name: &str) -> Value {
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "uid-of-vm",
        "controller": true, "blockOwnerDeletion": true,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "ownerReferences": [owner] },
        "spec": { "nodeName": "n1", "containers": [{ "name": "compute", "image": "pretended" }] },
    })
}

fn service(name: &str, global: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "default", "annotations": { GLOBAL: global } },
        "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] },
    })
}

fn unsupported(context: &Context) -> Result<Verdict> {
    cluster(context, "unsupported", |cluster| {
        let program = context.controller()?;
        crds::install(cluster)?;
        let accounts = Accounts::create(cluster, &[])?;
        // Before the leader starts, there are one virtual machine, one global Service, and too many
        // policies.
        apply(cluster, (0..POLICIES).map(|number| policy(&format!("policy-{number}"))))?;
        apply(cluster, [virtual_machine("vm-1"), service("global-1", "true"), service("local", "false")])?;

        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &program, 1, FLAGS)?;
        replicas.wait_leader(cluster)?;
        let (_, port) = replicas.metrics().next().context("a replica")?;
        wait_counts(port, [POLICIES, 1, 1])?;
        let before = wait_events(cluster, EVENTS + 2)?;
        for (object, text) in [
            ("Pod/vm-1", "does not retain addresses of virtual machines"),
            ("Service/global-1", "only the endpoints of its own cluster"),
            ("NetworkPolicy/", "does not enforce NetworkPolicies"),
        ] {
            let found =
                before.iter().any(|(about, (_, note))| about.starts_with(object) && note.contains(text));
            ensure!(found, "no event on {object} with {text:?}: {before:?}");
        }

        // A change of each object, a restart of the API server, and then a new object of each kind.
        // The new events come last in their watches, so a repeated event would already be there.
        for object in ["networkpolicy/policy-0", "pod/vm-1", "service/global-1"] {
            cluster.kubectl(["label", object, "changed=yes"])?;
        }
        cluster.stop_api()?;
        cluster.start_api()?;
        apply(cluster, [policy("late"), virtual_machine("vm-2"), service("global-2", "1")])?;
        wait_counts(port, [POLICIES + 1, 2, 2])?;
        let after = wait_events(cluster, EVENTS + 4)?;
        let repeated: Vec<_> = after.iter().filter(|(_, (count, _))| *count > 1).collect();
        ensure!(repeated.is_empty(), "events were repeated: {repeated:?}");
        ensure!(before.keys().all(|about| after.contains_key(about)), "{before:?} and then {after:?}");
        ensure!(!after.contains_key("Service/local"), "an event on a local Service: {after:?}");

        // The log has one line for each kind.
        let log = std::fs::read_to_string(replicas.log(0))?;
        for (kind, object, text) in [
            ("NetworkPolicy", "default/policy-", "only the first 20 objects get an event"),
            ("VirtualMachineInstance", "default/vm-1", "does not retain addresses"),
            ("GlobalService", "default/global-1", "does not support global Services"),
        ] {
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| line.contains(kind) && line.contains("Trunkline does not"))
                .collect();
            let [line] = lines[..] else { anyhow::bail!("one line about {kind}: {lines:?}") };
            ensure!(line.contains(object) && line.contains(text), "{line}");
        }

        // The metric does not count deleted objects, or objects that request the feature no longer.
        cluster.kubectl(["delete", "networkpolicy", "late"])?;
        cluster.kubectl(["delete", "pod", "vm-2", "--force", "--grace-period=0"])?;
        cluster.kubectl(["annotate", "service", "global-2", "--overwrite", &format!("{GLOBAL}=false")])?;
        wait_counts(port, [POLICIES, 1, 1])?;
        replicas.still_running()?;
        passed(format!("{} objects, {} events", POLICIES + 5, after.len()))
    })
}

fn apply(cluster: &Cluster, objects: impl IntoIterator<Item = Value>) -> Result<()> {
    let texts: Vec<String> = objects.into_iter().map(|object| object.to_string()).collect();
    cluster.apply(&texts.join("\n---\n")).map(drop)
}

/// Waits until the metric has these numbers of policies, pods and Services.
fn wait_counts(port: u16, wanted: [usize; 3]) -> Result<()> {
    let [policies, machines, services] = wanted;
    let wanted =
        [("NetworkPolicy", policies), ("VirtualMachineInstance", machines), ("GlobalService", services)].map(
            |(kind, count)| format!("trunkline_controller_unsupported_objects{{kind=\"{kind}\"}} {count}"),
        );
    let url = format!("http://127.0.0.1:{port}/metrics");
    wait_for(&format!("{wanted:?}"), PATIENCE, || {
        let text = run(&mut cmd("curl", ["--silent", "--show-error", &url]))?;
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("unsupported_objects{")).collect();
        Ok(Seen::when(wanted.iter().all(|line| lines.contains(&line.as_str())), || format!("{lines:?}")))
    })
}

/// Waits until this number of objects have an event of these reasons. Returns the number of events
/// of each object, and the text.
fn wait_events(cluster: &Cluster, objects: usize) -> Result<BTreeMap<String, (usize, String)>> {
    wait_for(&format!("events on {objects} objects"), PATIENCE, || {
        let text = cluster.kubectl(["get", "events", "-n", "default", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let mut found: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for event in list["items"].as_array().into_iter().flatten() {
            let about = &event["involvedObject"];
            let kind = about["kind"].as_str().unwrap_or_default();
            let reason = if kind == "NetworkPolicy" { "NotEnforced" } else { "NotSupported" };
            if event["reason"] == reason && event["type"] == "Warning" {
                let name = format!("{kind}/{}", about["name"].as_str().unwrap_or_default());
                let entry = found.entry(name).or_default();
                entry.0 += 1;
                entry.1 = event["message"].as_str().unwrap_or_default().to_owned();
            }
        }
        Ok(if found.len() == objects { Seen::Yes(found) } else { Seen::NotYet(format!("{found:?}")) })
    })
}
