//! Leadership and its transfer. A leader that was suspended for longer than its Lease writes
//! nothing when it continues. A leader that is stopped hands the Lease over at once, in the middle
//! of its work. The API server's audit log shows each replica's writes.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::storm::{furnish, plan, wait_addresses};
use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/leader",
    about: "a leader is suspended for longer than its Lease, and writes nothing when it continues; other leaders hand over on an orderly stop",
    run: leader,
}];

const PATIENCE: Duration = Duration::from_secs(60);
/// Number of pods that are created at once.
const BURST: usize = 12;
const HANDOVERS: usize = 5;
/// This Lease does not expire during the test, so a new leader must have got it by a handover.
const LONG_LEASE: &str = "--lease-duration-seconds=600";

/// Pods with their addresses.
struct Pods<'a> {
    cluster: &'a Cluster,
    auditor: &'a AddressAuditor,
    pretended: Pretended,
    all: Vec<(Plan, String, Vec<IpAddr>)>,
}

impl Pods<'_> {
    /// Creates this number of pods.
    fn make(&self, burst: &str) -> Result<Vec<(Plan, String)>> {
        let plans: Vec<Plan> = (0..BURST).map(|n| plan(&format!("{burst}-{n}"), n, n % 3 == 0)).collect();
        let made = plans.iter().map(|plan| self.pretended.create(plan));
        let uids = self.cluster.wait(futures_util::future::try_join_all(made))?;
        Ok(plans.into_iter().zip(uids).collect())
    }

    /// Waits until each of these pods has its addresses.
    fn given(&mut self, made: Vec<(Plan, String)>) -> Result<()> {
        for (plan, uid) in made {
            let mut addresses = self.cluster.wait(wait_addresses(self.auditor, &plan, &uid))?;
            addresses.sort_unstable();
            self.all.push((plan, uid, addresses));
        }
        Ok(())
    }

    /// Checks that every pod still has its addresses, that no other pod has them, and that there
    /// are no other IPInstances.
    fn nothing_lost(&self) -> Result<usize> {
        let state = self.auditor.now();
        ensure!(state.twice.is_empty(), "addresses held twice: {:?}", state.twice);
        ensure!(state.faults.is_empty(), "{:?}", state.faults);
        for (plan, uid, had) in &self.all {
            let mut has = state.of_pod(uid);
            has.sort_unstable();
            ensure!(has == *had, "{} had {had:?} and has {has:?}", plan.name);
        }
        let given: usize = self.all.iter().map(|(_, _, addresses)| addresses.len()).sum();
        ensure!(
            state.instances.len() == given,
            "{} IPInstances for {given} addresses",
            state.instances.len()
        );
        Ok(given)
    }
}

/// A request of the audit log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    verb: String,
    user: User,
    object_ref: Option<Object>,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    resource: String,
    name: String,
}

/// Writes of a replica since this time. Writes of the Lease and of events are not included, because
/// they are harmless.
fn written(cluster: &Cluster, replica: &str, since: Timestamp) -> Result<Vec<String>> {
    let path = cluster.audit_log();
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut written = Vec::new();
    for line in whole.lines() {
        let request: Request =
            serde_json::from_str(line).with_context(|| format!("the audit log: {line}"))?;
        let object = request.object_ref.unwrap_or_default();
        if request.user.username.ends_with(&format!(":{replica}"))
            && request.request_received_timestamp.parse::<Timestamp>()? >= since
            && !["get", "list", "watch"].contains(&request.verb.as_str())
            && !["leases", "events"].contains(&object.resource.as_str())
        {
            written.push(format!("{} {} {}", request.verb, object.resource, object.name));
        }
    }
    Ok(written)
}

/// Waits until the leader has nothing left to write: the Network's status counts all addresses.
fn wait_quiet(cluster: &Cluster, auditor: &AddressAuditor) -> Result<()> {
    wait_for("the Network's status to count all addresses", PATIENCE, || {
        let used = cluster.kubectl([
            "get",
            "network",
            "rack1",
            "-o",
            "jsonpath={.status.statistics.used} {.status.ipv6Statistics.used}",
        ])?;
        let v6 = auditor.now().instances.values().filter(|held| held.address.is_ipv6()).count();
        let wanted = format!("{} {v6}", auditor.now().instances.len() - v6);
        Ok(Seen::when(used == wanted, || format!("{used}, and {wanted} are there")))
    })
}

fn leader(context: &Context) -> Result<Verdict> {
    cluster(context, "leader", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let auditor = AddressAuditor::open(cluster)?;
        let mut pods = Pods { cluster, auditor: &auditor, pretended, all: Vec::new() };
        let mut replicas = Replicas::start_apart(cluster, &program, 2, &[])?;
        let before = pods.make("before")?;
        pods.given(before)?;

        // The leader is suspended. Another replica serves the pods created meanwhile. When the
        // suspended leader continues, it receives the events of these pods before the events of
        // their IPInstances.
        let sleeper = replicas.wait_leader(cluster)?;
        wait_quiet(cluster, &auditor)?;
        let name = sleeper.name().to_owned();
        let began = Timestamp::now();
        let asleep = replicas.pause(sleeper)?;
        let meanwhile = pods.make("meanwhile")?;
        pods.given(meanwhile)?;
        let other = replicas.wait_leader(cluster)?;
        ensure!(other.name() != name, "{name} leads, although it is suspended");
        let others = written(cluster, other.name(), began)?;
        let created = others.iter().filter(|what| what.starts_with("create ipinstances")).count();
        ensure!(created >= BURST, "the audit log has only {created} creates of the new leader: {others:?}");
        let woken = Timestamp::now();
        replicas.resume(asleep)?;
        wait_for("the suspended leader to step down", PATIENCE, || {
            let log = std::fs::read_to_string(replicas.log(asleep))?;
            Ok(Seen::when(log.contains("no longer leads"), || {
                log.lines().last().unwrap_or_default().to_owned()
            }))
        })?;
        let after = pods.make("after")?;
        pods.given(after)?;
        let wrote = written(cluster, &name, woken)?;
        ensure!(wrote.is_empty(), "{name} had lost its Lease, and wrote: {wrote:?}");
        replicas.still_running()?;
        pods.nothing_lost()?;
        drop(replicas);

        // The leader is stopped while some pods have no address yet.
        let mut replicas = Replicas::start_apart(cluster, &program, 2, &[LONG_LEASE])?;
        for number in 0..HANDOVERS {
            let leads = replicas.wait_leader(cluster)?;
            let name = leads.name().to_owned();
            let made = pods.make(&format!("handover-{number}"))?;
            let first = |state: &crate::kube::auditor::State| {
                made.iter().any(|(_, uid)| !state.of_pod(uid).is_empty()).then_some(())
            };
            cluster.wait(auditor.until("the first of the burst to have an address", PATIENCE, first))?;
            replicas.end(cluster, leads)?;
            let next = replicas.wait_leader(cluster)?;
            ensure!(next.name() != name, "{name} leads again, although another replica was ready");
            pods.given(made)?;
        }
        replicas.still_running()?;
        let given = pods.nothing_lost()?;
        passed(format!(
            "one leader was suspended, continued and wrote nothing; {HANDOVERS} leaders handed \
             over a Lease of 600 s during a burst; {given} addresses, none duplicate, lost or left \
             over"
        ))
    })
}
