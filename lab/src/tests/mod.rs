//! `cargo lab test`: everything that must hold before a change goes in, from formatting to whole fabrics, as one list
//! of named functions. A test passes, fails, or is skipped with its reason; nothing is skipped silently.
//!
//! Those of [`IN_USER_MODE_KERNEL`] run in one, each in a kernel booted for it: this process boots it, the same program
//! inside runs the one test and prints its verdict. What runs beside what is in [`lanes`].

mod attach;
mod bed;
mod bfd;
mod book;
mod causes;
pub(crate) mod checks;
mod containerlab;
mod crash;
mod doctor;
mod extras;
mod fabrics;
mod failover;
mod faults;
mod flaps;
mod fleets;
mod greeter;
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
mod probes;
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
use crate::product::Profile;
use crate::progress::{say, seconds, table};
use crate::uml::link::Link;
use crate::{packages, product, uml};

/// What a test that did not fail says.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) enum Verdict {
    /// With a few words on what was seen.
    Passed(String),
    Skipped(String),
}

pub(crate) fn passed(words: impl Into<String>) -> Result<Verdict> {
    Ok(Verdict::Passed(words.into()))
}

/// What a test is given. Tests that run at the same time have one each, of the same programs.
pub(crate) struct Context {
    pub place: Place,
    /// Of a test in a user-mode kernel that has a part outside: the file with what that part hands to it.
    pub handed: Option<PathBuf>,
    /// Whether tests with rounds run their long ones: see [`soak`].
    pub long: bool,
    built: Arc<Built>,
}

/// What tests share.
struct Built {
    /// All tests run, so the controller will be asked for too.
    everything: bool,
    product: Once,
    controller: Once,
}

impl Context {
    fn new(place: &Place, everything: bool) -> Self {
        let built = Built { everything, product: Once::default(), controller: Once::default() };
        Self { place: place.clone(), handed: None, long: false, built: Arc::new(built) }
    }

    /// The same for another lane, whose labs have other names with a tag more.
    fn tagged(&self, more: Option<&str>) -> Self {
        let mut place = self.place.clone();
        if let Some(more) = more {
            place.tag = Some(place.tag.unwrap_or_default() + more);
        }
        Self { place, handed: None, long: self.long, built: self.built.clone() }
    }

    /// The folder with the product's binaries, built when it is asked for the first time.
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

    /// The number of rounds: the first in the suite, the second in a soak.
    pub(crate) fn rounds(&self, suite: usize, soak: usize) -> usize {
        if self.long { soak } else { suite }
    }

    /// The controller's program, built when it is asked for the first time.
    pub(crate) fn controller(&self) -> Result<PathBuf> {
        if self.built.everything {
            self.product()?;
        }
        self.built.controller.get("the controller", || product::build_controller(&self.place, Profile::Quick))
    }
}

/// What is built once, by who comes first. A build that fails is tried again by the next.
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
        built.clone().context("what was built")
    }

    fn lock(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One test.
pub(crate) struct Test {
    pub name: &'static str,
    /// What must hold, in one line.
    pub about: &'static str,
    pub run: fn(&Context) -> Result<Verdict>,
}

/// Tests of what this machine's kernel may have no devices for.
const IN_USER_MODE_KERNEL: &[&[Test]] = &[
    l2::TESTS,
    l2::wire::TESTS,
    l2::life::TESTS,
    l2::parent::TESTS,
    l2::podman::TESTS,
    kinds::TESTS,
    hairpin::VLAN_TESTS,
    l2::services::TESTS,
    observability::VLAN_TESTS,
];

/// How long one of them may take.
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
        tor::TESTS,
    ];
    usual.iter().chain(kube::TESTS).chain(IN_USER_MODE_KERNEL).copied().flatten().collect()
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

/// Boots a user-mode kernel that runs one test, with a link to the machine and a file if the test has a part outside.
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

/// The other end of [`boot_for`].
pub(crate) fn run_inside(place: &Place, name: &str, handed: Option<PathBuf>) -> Result<()> {
    let mut tests = in_user_mode_kernel().chain(services::INSIDE);
    let test = tests.find(|t| t.name == name).with_context(|| format!("no test {name:?}"))?;
    let context = Context { handed, ..Context::new(place, false) };
    // There is nothing to build with in there.
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

/// Runs every test whose name contains one of the filters (all, if there are none). Returns whether none failed.
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
    let outcomes = lanes::run(&Context::new(place, filters.is_empty()), &chosen)?;
    Ok(report(&outcomes))
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

/// What came of a test.
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

    /// What it says, in one line.
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
