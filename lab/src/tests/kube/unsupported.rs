//! Reports of objects that have no effect: pods of virtual machines; and of network policies with
//! faults. The controller has the rights of the Helm chart.

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
    about: "virtual machines' pods: one event on each of the first 20, one log line, a metric; faults of network policies: an event, a metric",
    run: unsupported,
}];

const PATIENCE: Duration = Duration::from_secs(60);
/// The controller's limit of events per reason.
const EVENTS: usize = 20;
/// Number of virtual machines' pods: more than the limit of events.
const MACHINES: usize = EVENTS + 5;
/// With this Lease no replica loses the leadership while the API server restarts, so all events
/// belong to one term.
const FLAGS: &[&str] = &["--webhook=false", "--lease-duration-seconds=600"];

/// The API server accepts an IPv4 prefix in IPv6 form, for compatibility with old objects.
const FAULTY_PREFIX: &str = "::ffff:10.0.0.0/104";

fn policy(name: &str, cidr: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": cidr } }] }] },
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

fn plain(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "nodeName": "n1", "containers": [{ "name": "web", "image": "pretended" }] },
    })
}

fn unsupported(context: &Context) -> Result<Verdict> {
    cluster(context, "unsupported", |cluster| {
        let program = context.controller()?;
        crds::install(cluster)?;
        let accounts = Accounts::create(cluster, &[])?;
        // Before the leader starts, there are too many virtual machines, and a policy with a fault.
        apply(cluster, (0..MACHINES).map(|number| virtual_machine(&format!("vm-{number}"))))?;
        apply(cluster, [plain("web")])?;
        apply(cluster, [policy("good", "10.0.0.0/8"), policy("faulty", FAULTY_PREFIX)])?;

        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &program, 1, FLAGS)?;
        replicas.wait_leader(cluster)?;
        let (_, port) = replicas.metrics().next().context("a replica")?;
        wait_counts(port, [MACHINES, 1])?;
        let before = wait_events(cluster, EVENTS + 1)?;
        for (object, text) in [
            ("Pod/vm-", "does not retain addresses of virtual machines"),
            ("NetworkPolicy/faulty", "spec.ingress[0].from[0].ipBlock.cidr"),
        ] {
            let found =
                before.iter().any(|(about, (_, note))| about.starts_with(object) && note.contains(text));
            ensure!(found, "no event on {object} with {text:?}: {before:?}");
        }

        // A change of each object, a restart of the API server, and then a new object of each kind.
        // The new events come last in their watches, so a repeated event would already be there.
        for object in ["networkpolicy/faulty", "pod/vm-1"] {
            cluster.kubectl(["label", object, "changed=yes"])?;
        }
        cluster.stop_api()?;
        cluster.start_api()?;
        apply(cluster, [virtual_machine("late"), policy("late", FAULTY_PREFIX)])?;
        wait_counts(port, [MACHINES + 1, 2])?;
        let after = wait_events(cluster, EVENTS + 2)?;
        let repeated: Vec<_> = after.iter().filter(|(_, (count, _))| *count > 1).collect();
        ensure!(repeated.is_empty(), "events were repeated: {repeated:?}");
        ensure!(before.keys().all(|about| after.contains_key(about)), "{before:?} and then {after:?}");
        ensure!(!after.contains_key("Pod/web"), "an event on a plain pod: {after:?}");

        let log = std::fs::read_to_string(replicas.log(0))?;
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("VirtualMachineInstance") && line.contains("Trunkline does not"))
            .collect();
        let [line] = lines[..] else { anyhow::bail!("one line about virtual machines: {lines:?}") };
        let words = ["default/vm-", "only the first 20 objects get an event"];
        ensure!(words.iter().all(|word| line.contains(word)), "{line}");

        // The metric does not count deleted objects, or objects that request the feature no longer.
        cluster.kubectl(["delete", "networkpolicy", "late"])?;
        apply(cluster, [policy("faulty", "10.0.0.0/8")])?;
        cluster.kubectl(["delete", "pod", "late", "--force", "--grace-period=0"])?;
        wait_counts(port, [MACHINES, 0])?;
        replicas.still_running()?;
        passed(format!("{} objects, {} events", MACHINES + 4, after.len()))
    })
}

fn apply(cluster: &Cluster, objects: impl IntoIterator<Item = Value>) -> Result<()> {
    let texts: Vec<String> = objects.into_iter().map(|object| object.to_string()).collect();
    cluster.apply(&texts.join("\n---\n")).map(drop)
}

/// Waits until the metrics have these numbers of pods, and policies with faults.
fn wait_counts(port: u16, wanted: [usize; 2]) -> Result<()> {
    let [machines, policies] = wanted;
    let wanted = [
        ("unsupported_objects", "VirtualMachineInstance", machines),
        ("policy_faults", "NetworkPolicy", policies),
        ("policy_faults", "ClusterNetworkPolicy", 0),
    ]
    .map(|(metric, kind, count)| format!("trunkline_controller_{metric}{{kind=\"{kind}\"}} {count}"));
    let url = format!("http://127.0.0.1:{port}/metrics");
    wait_for(&format!("{wanted:?}"), PATIENCE, || {
        let text = run(&mut cmd("curl", ["--silent", "--show-error", &url]))?;
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("{kind=")).collect();
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
            let reason = if kind == "NetworkPolicy" { "InvalidPolicyEntry" } else { "NotSupported" };
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
