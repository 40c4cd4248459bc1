//! Upstream's tests of `[sig-network]` on a cluster. They run on the host outside of the fabric,
//! which has no kube-proxy: a request to a Service's address reaches a node only if the fabric has
//! a route to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::build::Programs;
use super::cyclonus::{self, Cyclonus};
use super::layout::{Layout, OUTSIDE};
use super::{NAME, RealCluster, Settings, disturb, exclusions};
use crate::cli::{E2e, Families};
use crate::fabric::Place;
use crate::kube::daemon::Daemon;
use crate::kube::proxy::Mode;
use crate::progress::{say, seconds, step_with, table};
use crate::{packages, product};

/// The cluster of `cargo lab e2e`, if none is up.
pub(crate) const OWN: &str = "e2e";

/// Every test of the suite.
pub(crate) const EVERY: &str = r"\[sig-network\]";

/// The group's label in the tests' names.
const GROUP: &str = "[sig-network]";

/// Tests of other groups. Upstream's packages have them too.
const OTHERS: &str = r"\[sig-([^n]|n[^e])";

/// Time limit of ginkgo's run.
const BOUND: &str = "4h";

/// Result of a run.
pub(crate) struct Report {
    pub passed: usize,
    pub failures: Vec<Failure>,
    /// Tests that skipped themselves, with their reasons.
    skipped: Vec<(String, String)>,
    /// The exclusions: their names, reasons and numbers of tests.
    left_out: Vec<(&'static str, &'static str, usize)>,
    took: Duration,
}

/// A failed test.
pub(crate) struct Failure {
    pub name: String,
    message: String,
    took: Duration,
    /// The file with everything that the test printed.
    log: PathBuf,
}

impl Report {
    /// The numbers, in one line.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} of {} upstream tests passed in {}, {} skipped themselves",
            self.passed,
            self.passed + self.failures.len(),
            seconds(self.took.as_secs_f64()),
            self.skipped.len()
        )
    }

    /// A row for each failure.
    pub(crate) fn table(&self) -> String {
        let head = ["TIME", "FAILED TEST", "FAILURE", "LOG"].map(str::to_owned).to_vec();
        let row = |failure: &Failure| {
            vec![
                seconds(failure.took.as_secs_f64()),
                failure.name.trim_start_matches(GROUP).trim_start().to_owned(),
                cut(failure.message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()),
                failure.log.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(self.failures.iter().map(row)).collect();
        table(&rows)
    }
}

fn cut(line: &str) -> String {
    let mut short: String = line.trim().chars().take(90).collect();
    if short.len() < line.trim().len() {
        short.push('…');
    }
    short
}

/// `cargo lab e2e`: returns whether no test failed.
pub(crate) fn command(place: &Place, of: &E2e) -> Result<bool> {
    packages::need_root("cargo lab e2e")?;
    let cluster = open_or_create(place, of)?;
    if of.cyclonus {
        let cyclonus = Cyclonus::build(place, cluster.programs())?;
        let report = disturbed(&cluster, of, || cyclonus.run(&cluster, place, of.focus.as_deref()))?;
        for (name, reason) in report.exceptions() {
            say(&format!("  exception: {name}: {reason}"));
        }
        return conclude(
            &cluster,
            report.passed(),
            &report.table(),
            &report.summary(),
            &cyclonus::results(place),
        );
    }
    let focus = of.focus.as_deref().unwrap_or(EVERY);
    let report = disturbed(&cluster, of, || run(&cluster, place, focus, of.processes))?;
    for (part, reason, tests) in &report.left_out {
        say(&format!("  left out: {part}: {reason} ({tests} tests)"));
    }
    for (name, reason) in &report.skipped {
        say(&format!("  skipped itself: {name}: {}", cut(reason)));
    }
    conclude(&cluster, report.failures.is_empty(), &report.table(), &report.summary(), &results(place))
}

/// The cluster of `cargo lab kube up`, or a new one.
fn open_or_create(place: &Place, of: &E2e) -> Result<RealCluster> {
    if let Some(cluster) = RealCluster::open(place, NAME)? {
        check_settings(&cluster, of)?;
        say("  the cluster of `cargo lab kube up` is used, and stays");
        return Ok(cluster);
    }
    let programs = match Programs::build(place)? {
        Ok(programs) => programs,
        Err(missing) => bail!("{missing}"),
    };
    let (product, _) = product::build_all(place, product::Profile::Quick)?;
    let layout =
        Layout::new(of.nodes.unwrap_or(2), of.racks.unwrap_or(1), of.family.unwrap_or(Families::Dual))?;
    let proxy = of.proxy.map_or(Mode::Iptables, Mode::from);
    RealCluster::up(place, OWN, Settings { layout, proxy }, &programs, &product)
}

/// Runs `work`, with disturbances if the command line has an interval.
fn disturbed<T>(cluster: &RealCluster, of: &E2e, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(seconds) = of.disturb else { return work() };
    let (report, turns) = disturb::during(cluster, Duration::from_secs(seconds), work)?;
    say(&format!("  {turns} restarts and kills of agents, controllers and kube-proxies meanwhile"));
    Ok(report)
}

/// Prints the result, and the folders of logs after a failure; returns whether all passed.
fn conclude(cluster: &RealCluster, passed: bool, table: &str, summary: &str, logs: &Path) -> Result<bool> {
    if passed {
        println!("{summary}");
        return Ok(true);
    }
    println!("\n{table}\n{summary}");
    println!("logs of the tests: {}", logs.display());
    println!("logs of the cluster: {}", cluster.gather(table)?.display());
    Ok(false)
}

/// The running cluster must have the settings of the command line.
fn check_settings(cluster: &RealCluster, of: &E2e) -> Result<()> {
    let Settings { layout, proxy } = cluster.settings();
    let same = of.nodes.is_none_or(|nodes| nodes == layout.nodes)
        && of.racks.is_none_or(|racks| racks == layout.racks)
        && of.family.is_none_or(|family| family == layout.families)
        && of.proxy.is_none_or(|wanted| Mode::from(wanted) == proxy);
    ensure!(
        same,
        "the cluster that is up has {} nodes, {} racks, --family {}, --proxy {}; leave the options out, or `cargo lab kube down` first",
        layout.nodes,
        layout.racks,
        layout.families.name(),
        proxy.name()
    );
    Ok(())
}

/// The folder of the latest run's results.
pub(crate) fn results(place: &Place) -> PathBuf {
    place.folder("e2e-results")
}

/// Runs the tests whose full names match a regular expression of Go's syntax.
pub(crate) fn run(cluster: &RealCluster, place: &Place, focus: &str, processes: u8) -> Result<Report> {
    let folder = results(place);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder)?;
    let families = cluster.layout().families;
    let parts = exclusions::of(families).map(|exclusion| literal(exclusion.part));
    let skip = parts.chain([OTHERS.to_owned()]).collect::<Vec<_>>().join("|");
    let programs = cluster.programs();
    let text = |path: &Path| path.display().to_string();
    // The first process of the PID namespace is ginkgo: all tests end with it.
    let args = [
        ["--pid", "--fork", "--kill-child"].map(str::to_owned).to_vec(),
        vec![
            text(&programs.ginkgo()),
            format!("--procs={processes}"),
            format!("--timeout={BOUND}"),
            format!("--focus={focus}"),
            format!("--skip={skip}"),
            format!("--output-dir={}", folder.display()),
            "--json-report=report.json".to_owned(),
            "--no-color".to_owned(),
            "--silence-skips".to_owned(),
            "--poll-progress-after=600s".to_owned(),
            text(&programs.suite()),
            "--".to_owned(),
            format!("--kubeconfig={}", cluster.outside_kubeconfig().display()),
            format!("--kubectl-path={}", programs.assets.kubectl.display()),
            "--provider=skeleton".to_owned(),
            format!("--num-nodes={}", cluster.layout().nodes),
            "--dump-logs-on-failure=false".to_owned(),
            "--node-schedulable-timeout=2m".to_owned(),
            "--system-pods-startup-timeout=2m".to_owned(),
        ],
    ]
    .concat();
    let mut command = cluster.fabric().host(OUTSIDE)?.command("unshare", &args);
    command.current_dir(&folder).env("KUBECONFIG", cluster.outside_kubeconfig());
    let began = std::time::Instant::now();
    let title = format!("upstream's tests in {processes} processes");
    step_with(
        &title,
        || {
            let mut ginkgo = Daemon::start(&folder, "ginkgo", command)?;
            let status = ginkgo.wait()?;
            let log = ginkgo.log().to_owned();
            ensure!(
                folder.join("report.json").is_file(),
                "ginkgo ended ({status}) without a report: {}",
                super::last_lines(&log)
            );
            read(&folder, families, began.elapsed())
        },
        |report| format!("{} passed, {} failed", report.passed, report.failures.len()),
    )
}

/// A regular expression that matches only this text.
fn literal(text: &str) -> String {
    text.chars().fold(String::new(), |mut expression, c| {
        if !c.is_ascii_alphanumeric() && c != ' ' {
            expression.push('\\');
        }
        expression.push(c);
        expression
    })
}

/// A regular expression that matches the names with one of these parts.
pub(crate) fn any_of(parts: &[&str]) -> String {
    parts.iter().map(|part| literal(part)).collect::<Vec<_>>().join("|")
}

/// A part of ginkgo's report.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Spec>>,
    #[serde(default)]
    special_suite_failure_reasons: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    #[serde(default)]
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: u64,
    #[serde(default)]
    failure: Option<Reason>,
    #[serde(default)]
    captured_ginkgo_writer_output: String,
    #[serde(default, rename = "CapturedStdOutErr")]
    captured_std_out_err: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reason {
    #[serde(default)]
    message: String,
    #[serde(default)]
    location: Location,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Location {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    line_number: u32,
}

impl Spec {
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten().map(String::as_str);
        let leaf =
            if self.leaf_node_text.is_empty() { self.leaf_node_type.as_str() } else { &self.leaf_node_text };
        containers.chain([leaf]).collect::<Vec<_>>().join(" ")
    }

    fn message(&self) -> &str {
        self.failure.as_ref().map(|reason| reason.message.as_str()).unwrap_or_default()
    }
}

/// Reads ginkgo's report, and writes a log for each failure.
fn read(folder: &Path, families: Families, took: Duration) -> Result<Report> {
    let file = folder.join("report.json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let suites: Vec<Suite> = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let specs: Vec<&Spec> = suites.iter().flat_map(|suite| suite.spec_reports.iter().flatten()).collect();
    let left_out = left_out(&specs, families)?;
    let mut report = Report { passed: 0, failures: Vec::new(), skipped: Vec::new(), left_out, took };
    for spec in &specs {
        match spec.state.as_str() {
            "passed" if spec.leaf_node_type == "It" => report.passed += 1,
            // Set-up of the suite, or a test that the focus or an exclusion left out.
            "passed" | "pending" => {}
            "skipped" if spec.message().is_empty() => {}
            "skipped" => report.skipped.push((spec.name(), spec.message().to_owned())),
            _ => {
                let log = folder.join(format!("{:02}-{}.txt", report.failures.len() + 1, slug(&spec.name())));
                write_log(&log, spec)?;
                report.failures.push(Failure {
                    name: spec.name(),
                    message: spec.message().to_owned(),
                    took: Duration::from_nanos(spec.run_time),
                    log,
                });
            }
        }
    }
    let reasons: Vec<&String> =
        suites.iter().flat_map(|suite| suite.special_suite_failure_reasons.iter().flatten()).collect();
    if report.failures.is_empty() && !reasons.is_empty() {
        bail!("the suite failed: {reasons:?}");
    }
    ensure!(
        report.passed + report.failures.len() + report.skipped.len() > 0,
        "no test's name matches; the tests and their results are in {}",
        file.display()
    );
    Ok(report)
}

/// The number of tests of each exclusion. None is an error: upstream has renamed or removed them.
fn left_out(specs: &[&Spec], families: Families) -> Result<Vec<(&'static str, &'static str, usize)>> {
    let names: Vec<String> =
        specs.iter().map(|spec| spec.name()).filter(|name| name.starts_with(GROUP)).collect();
    let mut all = Vec::new();
    for exclusion in exclusions::of(families) {
        let tests = names.iter().filter(|name| name.contains(exclusion.part)).count();
        ensure!(
            tests > 0,
            "upstream's suite has no test with {} in its name: remove it from lab/src/cluster/exclusions.rs",
            exclusion.part
        );
        all.push((exclusion.part, exclusion.reason, tests));
    }
    Ok(all)
}

fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = name.trim_start_matches(GROUP).chars().map(plain).collect();
    let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-").chars().take(80).collect()
}

fn write_log(file: &Path, spec: &Spec) -> Result<()> {
    let place = spec.failure.as_ref().map(|reason| &reason.location);
    let place = place.map(|at| format!("{}:{}", at.file_name, at.line_number)).unwrap_or_default();
    let text = format!(
        "{}\n{}\n\n{}\n\n--- output of the test\n{}\n{}\n",
        spec.name(),
        place,
        spec.message(),
        spec.captured_ginkgo_writer_output,
        spec.captured_std_out_err
    );
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(specs: &str) -> Result<Report> {
        let folder = tempfile::tempdir().expect("a folder");
        let every = exclusions::of(Families::Dual).map(|exclusion| {
            let name = format!("{GROUP} {}", exclusion.part);
            format!(r#"{{"LeafNodeType":"It","LeafNodeText":{name:?},"State":"skipped"}}"#)
        });
        let all: Vec<String> = every.chain([specs.to_owned()]).collect();
        let text = format!(r#"[{{"SpecReports":[{}]}}]"#, all.join(","));
        std::fs::write(folder.path().join("report.json"), text).expect("a file");
        let report = read(folder.path(), Families::Dual, Duration::from_secs(1))?;
        for failure in &report.failures {
            assert!(std::fs::read_to_string(&failure.log).expect("a log").contains("client output"));
        }
        Ok(report)
    }

    #[test]
    fn a_failed_test_is_a_row_with_its_log() {
        let report = report(
            r#"{"ContainerHierarchyTexts":["[sig-network] Services"],"LeafNodeType":"It","LeafNodeText":"should serve",
                "State":"failed","RunTime":2500000000,"CapturedGinkgoWriterOutput":"client output",
                "Failure":{"Message":"\nunreachable\nmore","Location":{"FileName":"service.go","LineNumber":7}}},
               {"LeafNodeType":"It","LeafNodeText":"other","State":"passed"},
               {"LeafNodeType":"It","LeafNodeText":"third","State":"skipped","Failure":{"Message":"no SSH key"}}"#,
        )
        .expect("a report");
        assert_eq!((report.passed, report.failures.len(), report.skipped.len()), (1, 1, 1));
        let table = report.table();
        assert!(table.contains("Services should serve") && table.contains("unreachable"), "{table}");
        assert!(table.contains("01-services-should-serve.txt"), "{table}");
    }

    #[test]
    fn a_run_without_any_test_is_an_error() {
        let error =
            report(r#"{"LeafNodeType":"It","LeafNodeText":"x","State":"skipped"}"#).err().expect("none");
        assert!(error.to_string().starts_with("no test's name matches"), "{error}");
    }

    #[test]
    fn names_are_literal_in_expressions() {
        assert_eq!(any_of(&["[LinuxOnly] a.b", "c"]), r"\[LinuxOnly\] a\.b|c");
    }
}
