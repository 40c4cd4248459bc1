//! Addresses while the controllers or the API server are killed again and again: [`super::storm`]
//! lists the invariants. A soak has more rounds and a longer outage.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::storm::{BURST, Storm, furnish};
use super::{Test, Verdict, cluster};
use crate::kube::controller::Replicas;
use crate::tests::service_addresses::storm::ServiceStorm;
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/leader-kill",
        about: "the leading controller is killed at each moment of a burst of allocations, of \
                pods and of Services: no address is allocated twice or leaked",
        run: leader_kill,
    },
    Test {
        name: "kube/outage",
        about: "the API server is killed at each moment of a burst, once for longer than a Lease, \
                while pods are created and deleted: no address is allocated twice or leaked",
        run: outage,
    },
];

/// One round for each moment of a burst.
const ROUNDS: usize = BURST;
const SOAK_ROUNDS: usize = 50;
/// Length of the longest outage, in the suite and in a soak. Both are longer than a Lease, so no
/// replica leads at the end of the outage.
const OUTAGE: Duration = Duration::from_secs(25);
const SOAK_OUTAGE: Duration = Duration::from_secs(60);

fn leader_kill(context: &Context) -> Result<Verdict> {
    cluster(context, "leader-kill", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 3)?;
        let mut storm = Storm::begin(cluster, pretended)?;
        let mut services = ServiceStorm::begin(cluster)?;
        for _ in 0..context.rounds(ROUNDS, SOAK_ROUNDS) {
            // The leader is found before the burst, because a query during the burst would give it
            // time to finish.
            let leader = replicas.wait_leader(cluster)?;
            services.create(cluster)?;
            storm.round(cluster, |cluster| replicas.kill(cluster, leader))?;
            services.finish(cluster)?;
        }
        let services = services.end(cluster)?;
        passed(format!("{}; {services}", storm.end(cluster, &mut replicas)?))
    })
}

fn outage(context: &Context) -> Result<Verdict> {
    cluster(context, "outage", |cluster| {
        let program = context.controller()?;
        let pretended = furnish(cluster)?;
        let mut replicas = Replicas::start(cluster, &program, 2)?;
        let mut storm = Storm::begin(cluster, pretended)?;
        let rounds = context.rounds(ROUNDS, SOAK_ROUNDS);
        for round in 0..rounds {
            storm.round(cluster, |cluster| {
                cluster.stop_api()?;
                if round == rounds / 2 {
                    // The length of the outage is the subject of the test, not a wait for a
                    // condition.
                    std::thread::sleep(if context.long { SOAK_OUTAGE } else { OUTAGE });
                }
                cluster.start_api()?;
                Ok(Instant::now())
            })?;
        }
        passed(storm.end(cluster, &mut replicas)?)
    })
}
