//! `cargo lab test`: all conditions for a change, from formatting to whole fabrics, as one list of
//! named functions. A test passes, fails, or is skipped with its reason; no test is skipped
//! silently.
//!
//! Tests in [`IN_USER_MODE_KERNEL`] run in a user-mode kernel each: this process boots it, and the
//! same program inside runs the one test and prints its verdict. [`lanes`] decides which tests run
//! at the same time.

mod attach;
mod bed;
mod bfd;
mod book;
mod causes;
pub(crate) mod checks;
mod clusters;
mod containerlab;
mod crash;
mod doctor;
mod e2e;
mod extras;
mod fabrics;
mod failover;
mod faults;
mod flaps;
mod fleets;
mod guard;
mod hairpin;
mod hostile;
mod hybrid;
mod interop;
mod kinds;
pub(crate) mod kube;
mod l2;
mod lanes;
mod library;
mod manifests;
mod matrix;
pub(crate) mod observability;
mod operator;
mod package;
mod page;
mod podman;
mod policies;
mod probes;
mod service_addresses;
pub(crate) mod services;
pub(crate) mod soak;
mod start;
mod support;
mod tor;
mod unnumbered;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::fabric::Place;
use crate::greeter;
use crate::product::Profile;
use crate::progress::{say, seconds, table};
use crate::uml::link::Link;
use crate::{packages, product, uml};

/// The result of a test that did not fail.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) enum Verdict {
    /// Passed, with a short text about the observations.
    Passed(String),
    Skipped(String),
}

pub(crate) fn passed(words: impl Into<String>) -> Result<Verdict> {
    Ok(Verdict::Passed(words.into()))
}

/// The context of a test. Tests that run at the same time have different contexts with the same
/// programs.
pub(crate) struct Context {
    pub place: Place,
    /// The file with data from the outside part of a test, if the test in a user-mode kernel has
    /// such a part.
    pub handed: Option<PathBuf>,
    /// Whether tests with rounds run their long rounds: see [`soak`].
    pub long: bool,
    built: Arc<Built>,
}

/// Shared by tests.
struct Built {
    /// All tests run, so the controller is needed later.
    everything: bool,
    product: Once,
    controller: Once,
}

impl Context {
    fn new(place: &Place, everything: bool) -> Self {
        let built = Built { everything, product: Once::default(), controller: Once::default() };
        Self { place: place.clone(), handed: None, long: false, built: Arc::new(built) }
    }

    /// A context for another lane. The names of its labs have one more tag.
    fn tagged(&self, more: Option<&str>) -> Self {
        let mut place = self.place.clone();
        if let Some(more) = more {
            place.tag = Some(place.tag.unwrap_or_default() + more);
        }
        Self { place, handed: None, long: self.long, built: self.built.clone() }
    }

    /// The folder with the product's binaries, built at the first request.
    pub(crate) fn product(&self) -> Result<PathBuf> {
        self.built.product.get("the product", || {
            if !self.built.everything {
                return product::build(&self.place, Profile::Quick);
            }
            let mut controller = self.built.controller.lock();
            let (folder, program) = product::build_all(&self.place, Profile::Quick)?;
            *controller = Some(program);
            Ok(folder)
        })
    }

    /// The number of rounds: `suite` in the suite, `soak` in a soak.
    pub(crate) fn rounds(&self, suite: usize, soak: usize) -> usize {
        if self.long { soak } else { suite }
    }

    /// The controller's program, built at the first request.
    pub(crate) fn controller(&self) -> Result<PathBuf> {
        if self.built.everything {
            self.product()?;
        }
        self.built.controller.get("the controller", || product::build_controller(&self.place, Profile::Quick))
    }
}

/// Programs that are built once, by the first request. After a failed build the next request tries
/// again.
#[derive(Default)]
struct Once(Mutex<Option<PathBuf>>);

impl Once {
    fn get(&self, what: &str, build: impl FnOnce() -> Result<PathBuf>) -> Result<PathBuf> {
        let mut built = match self.0.try_lock() {
            Ok(built) => built,
            Err(_) => {
                say(&format!("    waits until {what} is built"));
                self.lock()
            }
        };
        if built.is_none() {
            *built = Some(build()?);
        }
        built.clone().context("the built program")
    }

    fn lock(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One test.
pub(crate) struct Test {
    pub name: &'static str,
    /// The tested promise, in one line.
    pub about: &'static str,
    pub run: fn(&Context) -> Result<Verdict>,
}

/// Tests that need devices which this machine's kernel may lack.
const IN_USER_MODE_KERNEL: &[&[Test]] = &[
    l2::TESTS,
    l2::wire::TESTS,
    l2::life::TESTS,
    l2::parent::TESTS,
    l2::podman::TESTS,
    l2::policies::TESTS,
    kinds::TESTS,
    clusters::TESTS,
    hairpin::VLAN_TESTS,
    l2::services::TESTS,
    observability::VLAN_TESTS,
];

/// Time limit of each of these tests.
const BOUND: Duration = Duration::from_secs(600);

fn all() -> Vec<&'static Test> {
    let usual = [
        checks::TESTS,
        fabrics::TESTS,
        fleets::TESTS,
        containerlab::TESTS,
        package::TESTS,
        attach::TESTS,
        extras::TESTS,
        manifests::TESTS,
        faults::TESTS,
        causes::TESTS,
        library::TESTS,
        bfd::TESTS,
        unnumbered::TESTS,
        interop::TESTS,
        flaps::TESTS,
        operator::TESTS,
        failover::TESTS,
        probes::TESTS,
        support::TESTS,
        watch::TESTS,
        doctor::TESTS,
        hybrid::TESTS,
        hairpin::TESTS,
        guard::TESTS,
        podman::TESTS,
        crash::TESTS,
        start::TESTS,
        page::TESTS,
        l2::kernel::TESTS,
        observability::TESTS,
        services::TESTS,
        policies::TESTS,
        tor::TESTS,
        e2e::TESTS,
    ];
    let clusters = kube::TESTS.iter().chain(service_addresses::TESTS);
    usual.iter().chain(clusters).chain(IN_USER_MODE_KERNEL).copied().flatten().collect()
}

fn in_user_mode_kernel() -> impl Iterator<Item = &'static Test> {
    IN_USER_MODE_KERNEL.iter().copied().flatten()
}

/// Runs one test in a user-mode kernel.
fn run_in_user_mode_kernel(context: &Context, test: &Test) -> Result<Verdict> {
    if let Some(why) = uml::missing(&context.place)? {
        return Ok(Verdict::Skipped(why));
    }
    boot_for(context, test.name, None)
}

/// Boots a user-mode kernel that runs one test, with a link to the machine and a file if the test
/// has a part outside.
fn boot_for(context: &Context, test: &str, handed: Option<(&Link, &Path)>) -> Result<Verdict> {
    context.product()?;
    let lab = uml::own_program(&context.place)?;
    let lab = lab.to_str().context("the lab's path is not text")?;
    let mut command = vec![lab, "user-mode-kernel", "test", test];
    if let Some((_, file)) = handed {
        command.extend(["--handed", file.to_str().context("the file's path is not text")?]);
    }
    let link = handed.map(|(link, _)| link);
    let ended = uml::run_linked(&context.place, &test.replace('/', "-"), &command, BOUND, link)?;
    let verdict: Result<Verdict, String> =
        serde_json::from_str(&ended.stdout).with_context(|| format!("no verdict but {:?}", ended.stdout))?;
    verdict.map_err(anyhow::Error::msg)
}

/// Runs one test inside the kernel that [`boot_for`] has booted.
pub(crate) fn run_inside(place: &Place, name: &str, handed: Option<PathBuf>) -> Result<()> {
    let mut tests = in_user_mode_kernel().chain(services::INSIDE).chain(kube::INSIDE);
    let test = tests.find(|t| t.name == name).with_context(|| format!("no test {name:?}"))?;
    let context = Context { handed, ..Context::new(place, false) };
    // The product must already be built, because the user-mode kernel has no compiler.
    context.built.product.get("the product", || Ok(product::folder(place)))?;
    let verdict = (test.run)(&context).map_err(|e| format!("{e:#}"));
    println!("{}", serde_json::to_string(&verdict)?);
    Ok(())
}

/// `cargo lab test --list`.
pub(crate) fn list() {
    let rows: Vec<_> = all().iter().map(|t| vec![t.name.to_owned(), t.about.to_owned()]).collect();
    print!("{}", table(&rows));
}

/// Runs all tests with one of the filters in their name (all tests without filters). Returns
/// whether none failed.
pub(crate) fn run(place: &Place, filters: &[String]) -> Result<bool> {
    packages::need_root("cargo lab test")?;
    let chosen: Vec<&Test> = all()
        .into_iter()
        .filter(|t| filters.is_empty() || filters.iter().any(|f| t.name.contains(f.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no test's name contains {}; `cargo lab test --list` names them all", filters.join(" or "));
    }
    need_packages(&chosen)?;
    if filters.is_empty() {
        warn_if_disk_is_small(place);
    }
    let outcomes = lanes::run(&Context::new(place, filters.is_empty()), &chosen)?;
    Ok(report(&outcomes))
}

/// Disk space that all tests need on a fresh machine: mostly the builds, in gigabytes.
const DISK: u64 = 15;

/// A full disk makes tests fail with many different errors, so the cause is printed first.
fn warn_if_disk_is_small(place: &Place) {
    let Ok(disk) = rustix::fs::statvfs(&place.repository) else { return };
    let free = disk.f_bavail * disk.f_frsize / 1_000_000_000;
    if free < DISK {
        let folder = place.repository.display();
        say(&format!(
            "  warning: {free} GB of disk are free at {folder}; all tests of a fresh machine need {DISK} GB"
        ));
    }
}

/// Installs the Debian packages that these tests need.
fn need_packages(chosen: &[&Test]) -> Result<()> {
    packages::need(packages::ALWAYS.into_iter().chain([
        "frr",
        "bird2",
        "gobgpd",
        "containernetworking-plugins",
        "iputils-ping",
    ]))?;
    if chosen.iter().any(|t| t.name.ends_with("/podman")) {
        packages::need(crate::podman::PACKAGES)?;
    }
    if chosen.iter().any(|t| t.name.starts_with("observability/")) {
        packages::need(observability::PACKAGES)?;
    }
    Ok(())
}

/// Prints a table of the results and the errors; returns whether no test failed.
fn report(outcomes: &[TestResult]) -> bool {
    let rows: Vec<_> = outcomes
        .iter()
        .map(|o| vec![o.word().to_owned(), o.test.name.to_owned(), time(o.took), o.words()])
        .collect();
    println!("\n{}", table(&rows));
    let failed = outcomes.iter().filter_map(|o| Some((o.test.name, o.verdict.as_ref().err()?)));
    for (name, error) in failed.clone() {
        println!("FAILED {name}: {error:#}\n");
    }
    let (passed, failed) = (outcomes.iter().filter(|o| o.word() == "passed").count(), failed.count());
    println!("{passed} passed, {failed} failed, {} skipped", outcomes.len() - passed - failed);
    failed == 0
}

/// The outcome of a test.
struct TestResult {
    test: &'static Test,
    took: Duration,
    verdict: Result<Verdict>,
}

impl TestResult {
    fn word(&self) -> &'static str {
        match &self.verdict {
            Ok(Verdict::Passed(_)) => "passed",
            Ok(Verdict::Skipped(_)) => "SKIPPED",
            Err(_) => "FAILED",
        }
    }

    /// Its text, in one line.
    fn words(&self) -> String {
        match &self.verdict {
            Ok(Verdict::Passed(words) | Verdict::Skipped(words)) => words.clone(),
            Err(e) => first_line(&format!("{e:#}")),
        }
    }
}

fn time(d: Duration) -> String {
    seconds(d.as_secs_f64())
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut cut: String = line.chars().take(120).collect();
    if cut.len() < line.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod unit {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_can_be_typed() {
        let tests = super::all();
        let names: BTreeSet<_> = tests.iter().map(|t| t.name).collect();
        assert_eq!(names.len(), tests.len());
        for test in tests {
            assert!(
                test.name.chars().all(|c| c.is_ascii_alphanumeric() || "-/".contains(c)),
                "{}",
                test.name
            );
            assert!(!test.about.is_empty());
        }
    }
}
