//! A rolling update of a Service with `externalTrafficPolicy: Local`, under short connections from
//! outside of the fabric, through two ToRs.
//!
//! Three replicas on three of four nodes are replaced one after the other. Each new pod is on the
//! node that has none. It becomes ready, the old one becomes terminating and serves on, and then it
//! is gone. So each step adds a next hop to both ToRs and removes one. Meanwhile an agent, a
//! kube-proxy and the controller are killed and start again.
//!
//! A ToR that adds or removes a next hop distributes its flows anew. A connection that is open at
//! this moment may move to a node that does not know it, and is reset there. Only resilient hashing
//! in the ToR prevents this, so the test counts such connections apart: they are open during a
//! change of the ToRs' next hops for the address.
//!
//! Linux distributes flows over the next hops whose neighbour entries are valid. A flow that begins
//! while the ToR resolves its next hop moves there after the answer. A router resolves its next
//! hops before it uses them; the kernel of the lab's ToRs does not, so the test does.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::local_service::{self, Changes, LocalService, Replica, State};
use super::{Test, Verdict};
use crate::client;
use crate::connections::{Attempt, Outcome};
use crate::kube::daemon::Daemon;
use crate::tests::bed::PATIENCE;
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "service-addresses/rolling",
    about: "a rolling update of a Local Service below two ToRs, with SIGKILL of agent, kube-proxy and controller: \
            no short connection is refused or reset",
    run: |context| local_service::run(context, "service-rolling", |_, _| Ok(()), roll),
};

/// Connections at least, and clients.
const CONNECTIONS: usize = 10_000;
const CLIENTS: usize = 6;
/// A pod serves for this time after it became terminating: longer than the default of
/// gracefulShutdownSeconds, as `preStop` of a real pod.
const TERMINATING: Duration = Duration::from_secs(10);
/// Time between the steps.
const REST: Duration = Duration::from_secs(1);

/// The process of one step that is killed, and starts again.
#[derive(Clone, Copy)]
enum Kill {
    Agent,
    KubeProxy,
    Controller,
}

/// The steps: the node that gets a pod, the node that loses one, and the process that dies while
/// the second node's pod is terminating: that node's, or the leading controller.
const STEPS: [(&str, &str, Kill); 3] = [
    ("node4", "node1", Kill::Agent),
    ("node1", "node2", Kill::KubeProxy),
    ("node2", "node3", Kill::Controller),
];

/// The update, with clients from before its start until after its end.
fn roll(service: &mut LocalService<'_>) -> Result<Verdict> {
    let monitors = service.monitors()?;
    let clients = service.connect(CLIENTS)?;
    std::thread::sleep(REST);
    let mut killed = Vec::new();
    for (new, old, kill) in STEPS {
        let what = step(service, new, old, kill).with_context(|| format!("a pod of {old} moves to {new}"))?;
        killed.push(what);
    }
    // All replicas are new; the clients go on until they have their number of connections.
    clients.wait_count(CONNECTIONS, PATIENCE)?;
    std::thread::sleep(REST);
    let attempts = clients.end();
    service.proxies.values_mut().try_for_each(Daemon::still_running)?;
    service.controller.still_running()?;
    let words = judge(&attempts, &Changes::of(&monitors))?;
    passed(format!("{words}; SIGKILL of {} meanwhile", killed.join(", ")))
}

/// One replica moves. Returns the killed process.
fn step(service: &mut LocalService<'_>, new: &'static str, old: &'static str, kill: Kill) -> Result<String> {
    service.add_replica(new)?;
    service.write_slices()?;
    service.wait_next_hops(&service.ready_nodes())?;
    std::thread::sleep(REST);

    for replica in service.replicas.iter_mut().filter(|replica| replica.pod.plan.node == old) {
        replica.state = State::Terminating;
    }
    service.write_slices()?;
    let since = Instant::now();
    let killed = match kill {
        Kill::Agent => {
            client::end_agent(service.bed().host(old)?, Signal::KILL)?;
            client::start_agent(service.bed().host(old)?)?;
            format!("the agent on {old}")
        }
        Kill::KubeProxy => {
            service.proxies.remove(old).context("kube-proxy runs")?.kill()?;
            service.start_proxy(old)?;
            format!("kube-proxy on {old}")
        }
        Kill::Controller => {
            let leader = service.controller.wait_leader(service.test.cluster)?;
            service.controller.kill(service.test.cluster, leader)?;
            "the controller".to_owned()
        }
    };
    // GRACEFUL_SHUTDOWN: the ToRs use the other nodes while the pod still serves.
    service.wait_next_hops(&service.ready_nodes())?;
    ensure!(since.elapsed() < TERMINATING, "the ToRs used {old} for {:?}", since.elapsed());
    if matches!(kill, Kill::Controller) {
        // The new process leads when the Lease of the killed one has expired.
        service.controller.wait_leader(service.test.cluster)?;
    }
    std::thread::sleep(TERMINATING.saturating_sub(since.elapsed()));

    let is_gone = |replica: &Replica| replica.pod.plan.node == old;
    let (gone, rest): (Vec<Replica>, Vec<Replica>) =
        std::mem::take(&mut service.replicas).into_iter().partition(is_gone);
    service.replicas = rest;
    service.write_slices()?;
    for replica in gone {
        drop(replica.server);
        replica.pod.take_away(service.test.cluster, service.test.bed.fabric)?;
    }
    std::thread::sleep(REST);
    Ok(killed)
}

/// Fails if a connection was refused, reset or lost, unless it was open while a ToR distributed its
/// flows anew.
fn judge(attempts: &[Attempt], changes: &Changes) -> Result<String> {
    let count = |outcome: Outcome, has_moved: bool| {
        let is = |attempt: &&Attempt| attempt.outcome == outcome && changes.has_moved(attempt) == has_moved;
        attempts.iter().filter(is).count()
    };
    let failures = [Outcome::Refused, Outcome::Reset, Outcome::TimedOut, Outcome::Unsent];
    let kept = failures.map(|outcome| count(outcome, false));
    let redistributed = failures.map(|outcome| count(outcome, true));
    let all = attempts.len();
    let times = changes.all().count();
    let words = format!(
        "{all} connections: {} refused, {} reset, {} timed out, {} not sent; of those that were open during one \
         of {times} changes of the ToRs' next hops: {redistributed:?}",
        kept[0], kept[1], kept[2], kept[3]
    );
    ensure!(all >= CONNECTIONS, "only {words}");
    ensure!(times >= 4 * STEPS.len(), "the ToRs' next hops did not change: {words}");
    let failed = || {
        let failed = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Served);
        failed.map(|attempt| format!("\n  {}", changes.describe(attempt))).collect::<String>()
    };
    ensure!(kept == [0; 4] && redistributed[0] == 0, "{words}{}", failed());
    Ok(words)
}
