//! The controller's behaviour for pods, addresses, networks and nodes, as hybridnet's users know
//! it: a table of cases on a real API server.
//!
//! A case is a list of steps: some change the cluster, others assert the resulting state, with a
//! time limit. Each case starts with the same nodes, Networks and Subnets, newly created
//! ([`step::FURNITURE`]), and its own namespace. So a case can use fixed addresses: the first
//! address of `rack1-v4` is 10.1.0.10. Each case ends in the same way. Its pods are deleted, and
//! the remaining IPInstances must be retained ones. The test deletes these, as the garbage
//! collector does after the deletion of a StatefulSet. Then no Subnet may have an address in use.
//! So a leak with any cause fails the case.
//!
//! A failed case does not stop the others; the table shows all of them. Other parts of Kubernetes
//! are simulated: pods are created with their node and their owner, and a kubelet's reports are
//! patches of their status.

mod admitted;
mod allocate;
mod bad;
mod flags;
mod kept;
mod look;
mod nodes;
mod pools;
mod release;
mod selection;
mod status;
mod step;
mod subnets;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use self::step::{Step, World};
use super::{Test, Verdict, cluster, crds};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::progress::{say, seconds, table};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/controller",
        about: "hybridnet's behaviours as cases: allocate, retain, pools, selection, release, statuses, nodes, its documented manifests",
        run,
    },
    Test {
        name: "kube/subnets",
        about: "several Subnets in order, disabled Subnets, Subnets for some Namespaces, and retained addresses with a time, whose clock survives the kill of the leader",
        run: subnets::run,
    },
];

/// Steps of a case.
struct Case {
    about: &'static str,
    steps: Vec<Step>,
}

fn case(about: &'static str, steps: Vec<Step>) -> Case {
    Case { about, steps }
}

/// Cases for a controller with these flags.
struct Topic {
    name: &'static str,
    flags: &'static [&'static str],
    /// Whether the API server calls the controller's webhook.
    admission: bool,
    /// Kinds of owners whose pods keep their addresses.
    stateful: &'static [&'static str],
    cases: Vec<Case>,
}

const STATEFUL_SETS: &[&str] = &["StatefulSet"];

fn usual(name: &'static str, cases: Vec<Case>) -> Topic {
    Topic { name, flags: &[], admission: false, stateful: STATEFUL_SETS, cases }
}

fn topics() -> Vec<Topic> {
    vec![
        usual("allocate", allocate::cases()),
        usual("keep", kept::cases()),
        usual("pools", pools::cases()),
        usual("selection", selection::cases()),
        usual("release", release::cases()),
        usual("status", status::cases()),
        usual("nodes", nodes::cases()),
        usual("bad objects", bad::cases()),
        Topic {
            name: "flags",
            flags: flags::FLAGS,
            admission: false,
            stateful: flags::STATEFUL,
            cases: flags::cases(),
        },
        Topic {
            name: "admitted",
            flags: &[],
            admission: true,
            stateful: STATEFUL_SETS,
            cases: admitted::cases(),
        },
    ]
}

fn run(context: &Lab) -> Result<Verdict> {
    let program = context.controller()?;
    cluster(context, "controller", |cluster| {
        crds::install(cluster)?;
        let mut rows = vec![["topic", "case", "", "time"].map(str::to_owned).to_vec()];
        let (mut count, mut failed) = (0, Vec::new());
        let mut running: Option<(Replicas, &[&str], bool)> = None;
        for topic in topics() {
            let same = |(_, flags, admission): &(Replicas, &[&str], bool)| {
                *flags == topic.flags && *admission == topic.admission
            };
            if !running.as_ref().is_some_and(same) {
                drop(running.take());
                let replicas = start(cluster, &program, &topic)?;
                running = Some((replicas, topic.flags, topic.admission));
            }
            for case in topic.cases {
                count += 1;
                let began = Instant::now();
                let outcome = attempt(cluster, &format!("case-{count}"), topic.stateful, &case);
                if let Some((replicas, ..)) = &mut running {
                    replicas.still_running()?;
                }
                let time = seconds(began.elapsed().as_secs_f64());
                let verdict = if outcome.is_ok() { "passed" } else { "FAILED" };
                rows.push([topic.name, case.about, verdict, &time].map(str::to_owned).to_vec());
                if let Err(error) = outcome {
                    failed.push(format!("{}: {}: {error:#}", topic.name, case.about));
                }
            }
        }
        say(&table(&rows));
        if !failed.is_empty() {
            bail!("{} of {count} cases failed:\n    {}", failed.len(), failed.join("\n    "));
        }
        passed(format!("{count} cases"))
    })
}

fn start(cluster: &Cluster, program: &Path, topic: &Topic) -> Result<Replicas> {
    // The controller may write a status every 50 ms. The default is once per second.
    let mut flags = vec!["--status-interval-milliseconds=50"];
    flags.extend(topic.flags);
    if !topic.admission {
        flags.push("--webhook=false");
    }
    let mut replicas = Replicas::standing_by(cluster, program, 1, &flags)?;
    replicas.wait_leader(cluster)?;
    if topic.admission {
        let port = *replicas.webhooks().first().context("a replica")?;
        super::webhook::register(cluster, &mut replicas, port, port)?;
    }
    Ok(replicas)
}

/// Runs a case, and always restores the cluster.
fn attempt(cluster: &Cluster, namespace: &str, stateful: &'static [&'static str], case: &Case) -> Result<()> {
    let mut world = World::furnish(cluster, namespace, stateful)?;
    let ran = case.steps.iter().enumerate().try_for_each(|(index, step)| {
        world.take(step).with_context(|| format!("step {} ({step})", index + 1))
    });
    let left = world.clear(ran.is_ok()).context("cleanup");
    ran.and(left)
}
