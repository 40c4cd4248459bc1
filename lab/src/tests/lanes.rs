//! Parallel execution of tests. A lab mostly waits for routers and their timers, while compilers
//! would keep every processor busy. So the tests run in three lanes at once:
//!
//! - **labs**, in namespaces of this machine's kernel, one after the other in the list's order,
//!   then some tests with a cluster, which make both lanes equally long, then the unit tests;
//! - **worlds of their own**, also one after the other: first tests in a user-mode kernel, then
//!   tests with a cluster and some long labs;
//! - **behind** them: pure computation, that is compilers, fuzzers and container images. Programs
//!   of this lane have the scheduler's idle policy. They only use free processor time, so no lab
//!   waits for a processor because of them. When everything runs, this lane first builds the
//!   programs for the labs, in the order of their use. A lab that starts too early waits.
//!
//! A test in [`ALONE`] keeps the processors busy itself, so the other lane of labs waits for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use anyhow::{Result, bail};

use super::{Context, Test, TestResult, checks, in_user_mode_kernel, observability, service_addresses, time};
use crate::kube::assets::Assets;
use crate::progress::{be_quiet, print_line, say};
use crate::shell::give_way;
use crate::{interrupt, uml};

/// Tests that only compute.
const BEHIND: [&str; 6] =
    ["check/clippy", "check/docs", "check/no-tokio", "check/small-lab", "check/fuzz", "containerlab/images"];

/// Tests that begin with cargo. Cargo runs one build at a time, so these tests come after most
/// builds of the lane behind. The first test is at the end of the labs, the second between
/// user-mode kernels and clusters.
const LATE_LAB: &str = "check/unit";
const LATE_WORLD: &str = "l2/kernel-tests";

/// Prefixes of tests with a cluster.
const CLUSTERS: [&str; 4] = ["kube/", "services/", "policies/", "e2e/"];

/// Prefixes of tests with a cluster that run after the labs.
const AFTER_LABS: [&str; 1] = ["service-addresses/"];

/// Tests during which no other lab should run.
const ALONE: [&str; 2] = ["bfd/load", "flaps/two-hundred"];

/// A build before labs need its result. It fails silently, because the lab that needs the result
/// builds again and reports the error.
struct Preparation {
    what: &'static str,
    run: fn(&Context) -> Result<()>,
}

/// In the order of their use by labs. The build of the product includes the controller.
const PREPARATIONS: [Preparation; 7] = [
    Preparation { what: "the product", run: |context| context.product().map(drop) },
    Preparation {
        what: "the user-mode kernel",
        run: |context| uml::missing(&context.place)?.map_or(Ok(()), |why| bail!("{why}")),
    },
    Preparation { what: "the unit tests", run: |context| checks::build_unit(&context.place) },
    Preparation {
        what: "the OpenTelemetry Collector",
        run: |context| observability::collector::program(&context.place).map(drop),
    },
    Preparation {
        what: "the Kubernetes API server and kube-proxy",
        run: |context| Assets::find(&context.place).map(drop),
    },
    Preparation { what: "Helm", run: |context| Assets::helm(&context.place).map(drop) },
    Preparation {
        what: "MetalLB's controller",
        run: |context| service_addresses::metallb::programs(&context.place).map(drop),
    },
];

/// The lane of a test. A lane runs its tests in this order, and equal tests in the list's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// A lab, or cargo.
    Labs(u8),
    /// A user-mode kernel, cargo and a user-mode kernel, or a cluster.
    Worlds(u8),
    Behind,
}

fn lane(test: &Test) -> Lane {
    match test.name {
        name if BEHIND.contains(&name) => Lane::Behind,
        LATE_LAB => Lane::Labs(2),
        LATE_WORLD => Lane::Worlds(1),
        // The lane of labs is longer without them too.
        "observability/cluster" | "observability/two-racks" => Lane::Worlds(2),
        name if AFTER_LABS.iter().any(|prefix| name.starts_with(prefix)) => Lane::Labs(1),
        name if CLUSTERS.iter().any(|prefix| name.starts_with(prefix)) => Lane::Worlds(2),
        name if in_user_mode_kernel().any(|test| test.name == name) => Lane::Worlds(0),
        _ => Lane::Labs(0),
    }
}

/// Runs the tests and returns their results in order. If everything runs, the programs for labs are
/// built in advance.
pub(super) fn run(context: &Context, tests: &[&'static Test]) -> Result<Vec<TestResult>> {
    let mut lanes: [Vec<&'static Test>; 3] = Default::default();
    let mut sorted = tests.to_vec();
    sorted.sort_by_key(|test| lane(test));
    for test in sorted {
        let number = match lane(test) {
            Lane::Labs(_) => 0,
            Lane::Worlds(_) => 1,
            Lane::Behind => 2,
        };
        lanes[number].push(test);
    }
    let [labs, worlds, behind] = lanes;
    // Tests with a cluster have labs with the same names, so these names get a tag.
    let beside = if labs.is_empty() { context.tagged(None) } else { context.tagged(Some("w")) };
    let preparations = if context.built.everything { &PREPARATIONS[..] } else { &[] };
    let runner = Runner {
        started: AtomicUsize::new(0),
        all: tests.len(),
        alone: RwLock::new(()),
        door: Mutex::new(()),
    };
    let mut outcomes = std::thread::scope(|scope| {
        let lanes = [
            scope.spawn(|| labs.iter().map(|test| runner.lab(context, test)).collect()),
            scope.spawn(|| worlds.iter().map(|test| runner.lab(&beside, test)).collect()),
            scope.spawn(|| runner.behind(context, &behind, preparations)),
        ];
        let mut outcomes = Vec::new();
        for lane in lanes {
            let of_lane: Result<Vec<TestResult>> =
                lane.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            outcomes.extend(of_lane?);
        }
        anyhow::Ok(outcomes)
    })?;
    outcomes.sort_by_key(|outcome| tests.iter().position(|test| test.name == outcome.test.name));
    Ok(outcomes)
}

/// State shared by the lanes.
struct Runner {
    started: AtomicUsize,
    all: usize,
    /// Locked for writing by a test that must run alone.
    alone: RwLock<()>,
    door: Mutex<()>,
}

impl Runner {
    /// Runs a test with its output.
    fn lab(&self, context: &Context, test: &'static Test) -> Result<TestResult> {
        let is_alone = ALONE.contains(&test.name);
        // A test that waits to run alone holds this lock.
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let _alone = is_alone.then(|| self.alone.write().unwrap_or_else(PoisonError::into_inner));
        let _together = (!is_alone).then(|| self.alone.read().unwrap_or_else(PoisonError::into_inner));
        drop(door);
        interrupt::check()?;
        say(&format!("[{}/{}] {}: {}", self.next(), self.all, test.name, test.about));
        let outcome = outcome(context, test);
        say(&format!("    {}: {} in {}  {}", test.name, outcome.word(), time(outcome.took), outcome.words()));
        Ok(outcome)
    }

    /// Runs a test that only computes; prints only its result.
    fn behind(
        &self,
        context: &Context,
        tests: &[&'static Test],
        preparations: &[Preparation],
    ) -> Result<Vec<TestResult>> {
        be_quiet();
        if !tests.is_empty() || !preparations.is_empty() {
            // Without the idle policy, the labs only take longer.
            give_way().unwrap_or_else(|e| {
                print_line(&format!(
                    "  [behind] runs at the same time as the labs with equal priority: {e:#}"
                ))
            });
        }
        for Preparation { what, run } in preparations {
            interrupt::check()?;
            let start = Instant::now();
            let words = if run(context).is_ok() { "built" } else { "could not build" };
            print_line(&format!("  [behind] {words} {what} in {}", time(start.elapsed())));
        }
        let run = |test: &&'static Test| {
            interrupt::check()?;
            let number = self.next();
            let outcome = outcome(context, test);
            let (word, took) = (outcome.word(), time(outcome.took));
            print_line(&format!(
                "  [behind, {number}/{}] {}: {word} in {took}  {}",
                self.all,
                test.name,
                outcome.words()
            ));
            Ok(outcome)
        };
        tests.iter().map(run).collect()
    }

    fn next(&self) -> usize {
        self.started.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn outcome(context: &Context, test: &'static Test) -> TestResult {
    let start = Instant::now();
    let inside = in_user_mode_kernel().any(|t| t.name == test.name);
    let verdict = if inside { super::run_in_user_mode_kernel(context, test) } else { (test.run)(context) };
    TestResult { test, took: start.elapsed(), verdict }
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::{ALONE, BEHIND, LATE_LAB, LATE_WORLD};

    #[test]
    fn lanes_name_existing_tests() {
        for name in ALONE.iter().chain(&BEHIND).chain(&[LATE_LAB, LATE_WORLD]) {
            assert!(all().iter().any(|test| test.name == *name), "{name}");
        }
    }
}
