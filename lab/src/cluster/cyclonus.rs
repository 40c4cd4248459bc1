//! cyclonus' generated cases of network policies on a cluster. The lab's program in
//! `lab/kubernetes/cyclonus` runs them with cyclonus' own packages: nine pods in three namespaces,
//! one change after another, and after each change a probe from each pod to each pod. cyclonus
//! computes the expected result itself.
//!
//! Probes from a pod to itself are ignored, as in upstream's own runs: kube-proxy gives them the
//! node's address.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use serde::Deserialize;

use super::build::Programs;
use super::layout::OUTSIDE;
use super::{RealCluster, exclusions, images, node};
use crate::fabric::Place;
use crate::kube::daemon::Daemon;
use crate::kube::golang::Module;
use crate::progress::{say, seconds, step, table};
use crate::shell::{Seen, wait_for};

/// The runner of the cases. The worker in pods is the same program.
const RUNNER: &str = "./cyclonus";

/// Time limit of a run. All cases take a quarter of an hour on two cores.
const BOUND: Duration = Duration::from_secs(2 * 60 * 60);

/// Number of cases between two lines of progress.
const LINE: usize = 20;

/// The runner, and the archive of the worker's image.
pub(super) struct Cyclonus {
    runner: PathBuf,
    archive: PathBuf,
}

impl Cyclonus {
    /// Finds the runner and the image or builds them.
    pub(super) fn build(place: &Place, programs: &Programs) -> Result<Self> {
        let module = Module::open(place)?;
        let first =
            || say("  cyclonus is built from source, once for this machine: two minutes on two cores");
        if let Err(missing) = module.build(&[RUNNER], first)? {
            bail!("{missing}");
        }
        let runner = module.program(RUNNER)?;
        let archive = images::worker(programs, &runner)?;
        Ok(Self { runner, archive })
    }

    /// Runs the cases whose names match a regular expression of Go's syntax.
    pub(super) fn run(&self, cluster: &RealCluster, place: &Place, focus: Option<&str>) -> Result<Report> {
        step("the worker's image on each node", || {
            cluster.nodes()?.into_iter().try_for_each(|it| node::import(it, &self.archive))
        })?;
        let folder = results(place);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        std::fs::create_dir_all(&folder)?;
        let lines = folder.join("report.jsonl");
        let text = |path: &Path| path.display().to_string();
        // The first process of the PID namespace is the runner: its connections end with it.
        let mut args = ["--pid", "--fork", "--kill-child"].map(str::to_owned).to_vec();
        args.extend([
            text(&self.runner),
            format!("--kubeconfig={}", text(&cluster.outside_kubeconfig())),
            format!("--report={}", text(&lines)),
            format!("--logs={}", text(&folder)),
            format!("--focus={}", focus.unwrap_or_default()),
            format!("--protocols={}", protocols().join(",")),
        ]);
        let mut command = cluster.fabric().host(OUTSIDE)?.command("unshare", &args);
        command.current_dir(&folder);
        let began = Instant::now();
        say("  cyclonus' generated cases of network policies");
        let mut runner = Daemon::start(&folder, "cyclonus", command)?;
        let mut shown = 0;
        let status = wait_for("cyclonus' cases", BOUND, || {
            let ended = runner.exited()?;
            let cases = read(&lines)?;
            let total = cases.first().map_or(0, |case| case.total);
            if cases.len() >= shown + LINE {
                shown = cases.len();
                let failed = cases.iter().filter(|case| !case.passed).count();
                say(&format!(
                    "  {shown} of {total} cases, {failed} failed, {}",
                    seconds(began.elapsed().as_secs_f64())
                ));
            }
            Ok(ended.map_or_else(|| Seen::NotYet(format!("{} of {total} cases", cases.len())), Seen::Yes))
        })?;
        let cases = read(&lines)?;
        let log = super::last_lines(runner.log());
        ensure!(status.success(), "cyclonus ended ({status}) after {} cases: {log}", cases.len());
        ensure!(!cases.is_empty(), "no case's name matches; the log is {}", runner.log().display());
        Report::new(cases, focus.is_none(), began.elapsed())
    }
}

/// The folder of the latest run's results.
pub(super) fn results(place: &Place) -> PathBuf {
    place.folder("cyclonus-results")
}

/// The protocols of the probes.
fn protocols() -> Vec<&'static str> {
    let mut all = vec!["TCP", "UDP"];
    if socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::SCTP)).is_ok() {
        all.push("SCTP");
    } else {
        say("  left out: probes by SCTP: the kernel has no SCTP; the policies with SCTP remain");
    }
    all
}

/// Result of a run.
pub(super) struct Report {
    cases: Vec<Case>,
    took: Duration,
}

/// A line of the runner's report.
#[derive(Deserialize)]
struct Case {
    total: usize,
    name: String,
    passed: bool,
    /// The reason why the case could not run.
    error: String,
    /// The file with everything that cyclonus printed.
    log: String,
    steps: Option<Vec<Step>>,
}

/// Numbers of probes in the last try of a step.
#[derive(Deserialize)]
struct Step {
    tries: usize,
    wrong: usize,
    correct: usize,
}

impl Case {
    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().flatten()
    }

    fn failure(&self) -> String {
        if !self.error.is_empty() {
            return self.error.clone();
        }
        let wrong = self.steps().enumerate().filter(|(_, step)| step.wrong > 0);
        let parts = wrong.map(|(i, step)| format!("step {}: {} wrong probes", i + 1, step.wrong));
        parts.collect::<Vec<_>>().join(", ")
    }
}

impl Report {
    /// Fails if an exception has no case in a run of all cases.
    fn new(cases: Vec<Case>, all: bool, took: Duration) -> Result<Self> {
        let names: HashSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        for exception in exclusions::CYCLONUS {
            ensure!(
                !all || names.iter().any(|name| name.contains(exception.part)),
                "cyclonus has no case with {} in its name: remove it from lab/src/cluster/exclusions.rs",
                exception.part
            );
        }
        Ok(Self { cases, took })
    }

    /// The failed cases that are no exceptions.
    fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| !case.passed && exclusions::of_cyclonus(&case.name).is_none())
    }

    pub(super) fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The failed cases that are exceptions, with the reasons.
    pub(super) fn exceptions(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let failed = self.cases.iter().filter(|case| !case.passed);
        failed.filter_map(|case| Some((case.name.as_str(), exclusions::of_cyclonus(&case.name)?.reason)))
    }

    /// The numbers, in one line.
    pub(super) fn summary(&self) -> String {
        let passed = self.cases.iter().filter(|case| case.passed).count();
        let steps: Vec<&Step> = self.cases.iter().flat_map(Case::steps).collect();
        format!(
            "{passed} of {} cyclonus cases passed in {}, {} failed, {} exceptions; {} steps, {} probes, {} steps probed again",
            self.cases.len(),
            seconds(self.took.as_secs_f64()),
            self.failures().count(),
            self.exceptions().count(),
            steps.len(),
            steps.iter().map(|step| step.wrong + step.correct).sum::<usize>(),
            steps.iter().filter(|step| step.tries > 1).count()
        )
    }

    /// A row for each failure.
    pub(super) fn table(&self) -> String {
        let head = ["FAILED CASE", "FAILURE", "LOG"].map(str::to_owned).to_vec();
        let row = |case: &Case| vec![case.name.clone(), case.failure(), case.log.clone()];
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(self.failures().map(row)).collect();
        table(&rows)
    }
}

/// The complete lines of the runner's report.
fn read(file: &Path) -> Result<Vec<Case>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| file.display().to_string()),
    };
    let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.map(|line| serde_json::from_str(line).with_context(|| file.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"number":1,"total":3,"name":"a","passed":true,"error":"","log":"001.txt","steps":[{"tries":1,"wrong":0,"correct":288,"ignored":36}]}
{"number":2,"total":3,"name":"b","passed":false,"error":"","log":"002.txt","steps":[{"tries":1,"wrong":0,"correct":288,"ignored":36},{"tries":2,"wrong":4,"correct":284,"ignored":36}]}
{"number":3,"total":3,"name":"c","passed":false,"error":"no pod","log":"003.txt","steps":null}
{"number":4,"tot"#;

    fn report() -> Report {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), LINES).expect("a file");
        let cases = read(file.path()).expect("complete lines");
        Report::new(cases, false, Duration::from_secs(60)).expect("a report")
    }

    #[test]
    fn summary_counts_cases_steps_and_probes() {
        assert_eq!(
            report().summary(),
            "1 of 3 cyclonus cases passed in 60.0 s, 2 failed, 0 exceptions; 3 steps, 864 probes, 1 steps probed again"
        );
    }

    #[test]
    fn a_failed_case_is_a_row_with_its_step() {
        let table = report().table();
        assert!(table.contains("step 2: 4 wrong probes") && table.contains("002.txt"), "{table}");
        assert!(table.contains("no pod") && !table.contains("001.txt"), "{table}");
        assert!(!report().passed());
    }
}
