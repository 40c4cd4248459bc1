//! Addresses while the controllers or the API server are killed, fifty times each: [`super::storm`]
//! lists the invariants.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::storm::{Storm, furnish};
use super::{Test, Verdict, cluster};
use crate::kube::controller::Replicas;
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/leader-kill",
        about: "the leading controller killed 50 times amid allocations: no address twice, none leaked",
        run: leader_kill,
    },
    Test {
        name: "kube/outage",
        about: "the API server killed 50 times, once for a minute, while pods come and go: likewise",
        run: outage,
    },
];

const ROUNDS: usize = 50;
const LONG: Duration = Duration::from_secs(60);

fn leader_kill(context: &Context) -> Result<Verdict> {
    cluster(context, "leader-kill", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 3)?;
        let mut storm = Storm::begin(cluster, pretended)?;
        for _ in 0..ROUNDS {
            // Found before the burst: a query in between would give the leader time to finish.
            let leader = replicas.wait_leader(cluster)?;
            storm.round(cluster, |cluster| replicas.kill(cluster, leader))?;
        }
        passed(storm.end(cluster, &mut replicas)?)
    })
}

fn outage(context: &Context) -> Result<Verdict> {
    cluster(context, "outage", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 2)?;
        let mut storm = Storm::begin(cluster, pretended)?;
        for round in 0..ROUNDS {
            storm.round(cluster, |cluster| {
                cluster.stop_api()?;
                if round == ROUNDS / 2 {
                    // The length of the outage is the subject of the test, not a wait for a
                    // condition.
                    std::thread::sleep(LONG);
                }
                cluster.start_api()?;
                Ok(Instant::now())
            })?;
        }
        passed(storm.end(cluster, &mut replicas)?)
    })
}
