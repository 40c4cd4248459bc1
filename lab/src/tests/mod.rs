//! `cargo lab test`: everything that must hold before a change goes in, from formatting to whole fabrics, as one list
//! of named functions. A test passes, fails, or is skipped with its reason; nothing is skipped silently.
//!
//! Those of [`IN_USER_MODE_KERNEL`] run in one, each in a kernel booted for it: this process boots it, the same program
//! inside runs the one test and prints its verdict.

mod attach;
mod bed;
mod bfd;
mod book;
pub(crate) mod checks;
mod containerlab;
mod crash;
mod doctor;
mod extras;
mod fabrics;
mod faults;
mod flaps;
mod fleets;
mod greeter;
mod hairpin;
mod hybrid;
mod interop;
mod kinds;
pub(crate) mod kube;
mod l2;
mod library;
mod manifests;
mod matrix;
pub(crate) mod observability;
mod operator;
mod package;
mod page;
mod podman;
mod support;
mod unnumbered;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::fabric::Place;
use crate::progress::{say, seconds, table};
use crate::{interrupt, packages, product, uml};

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

/// What tests share.
pub(crate) struct Context {
    pub place: Place,
    product: std::cell::OnceCell<std::path::PathBuf>,
    controller: std::cell::OnceCell<std::path::PathBuf>,
}

impl Context {
    fn new(place: &Place) -> Self {
        Self {
            place: place.clone(),
            product: std::cell::OnceCell::new(),
            controller: std::cell::OnceCell::new(),
        }
    }

    /// The product's binaries, built when the first test asks for them.
    pub(crate) fn product(&self) -> Result<std::path::PathBuf> {
        if let Some(folder) = self.product.get() {
            return Ok(folder.clone());
        }
        let folder = product::build(&self.place)?;
        Ok(self.product.get_or_init(|| folder).clone())
    }

    /// The controller's program, built when the first test asks for it.
    pub(crate) fn controller(&self) -> Result<std::path::PathBuf> {
        if let Some(program) = self.controller.get() {
            return Ok(program.clone());
        }
        let program = product::build_controller(&self.place)?;
        Ok(self.controller.get_or_init(|| program).clone())
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
        library::TESTS,
        bfd::TESTS,
        unnumbered::TESTS,
        interop::TESTS,
        flaps::TESTS,
        operator::TESTS,
        support::TESTS,
        watch::TESTS,
        doctor::TESTS,
        hybrid::TESTS,
        hairpin::TESTS,
        podman::TESTS,
        crash::TESTS,
        page::TESTS,
        l2::kernel::TESTS,
        observability::TESTS,
    ];
    usual.iter().chain(kube::TESTS).chain(IN_USER_MODE_KERNEL).copied().flatten().collect()
}

fn in_user_mode_kernel() -> impl Iterator<Item = &'static Test> {
    IN_USER_MODE_KERNEL.iter().copied().flatten()
}

/// Runs one test in a user-mode kernel.
fn run_in_user_mode_kernel(context: &Context, test: &Test) -> Result<Verdict> {
    if let Some(why) = uml::missing() {
        return Ok(Verdict::Skipped(why.to_owned()));
    }
    context.product()?;
    let lab = std::env::current_exe()?;
    let lab = lab.to_str().context("the lab's path is not text")?;
    let command = [lab, "user-mode-kernel", "test", test.name];
    let ended = uml::run(&context.place, &test.name.replace('/', "-"), &command, BOUND)?;
    let verdict: Result<Verdict, String> =
        serde_json::from_str(&ended.stdout).with_context(|| format!("no verdict but {:?}", ended.stdout))?;
    verdict.map_err(anyhow::Error::msg)
}

/// The other end of [`run_in_user_mode_kernel`].
pub(crate) fn run_inside(place: &Place, name: &str) -> Result<()> {
    let test = in_user_mode_kernel().find(|t| t.name == name).with_context(|| format!("no test {name:?}"))?;
    let context = Context::new(place);
    // There is nothing to build with in there.
    context.product.get_or_init(|| product::folder(place));
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
    let chosen: Vec<_> = all()
        .into_iter()
        .filter(|t| filters.is_empty() || filters.iter().any(|f| t.name.contains(f.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no test's name contains {}; `cargo lab test --list` names them all", filters.join(" or "));
    }
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
    let context = Context::new(place);
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let (mut passed, mut skipped) = (0, 0);
    for (number, test) in chosen.iter().enumerate() {
        interrupt::check()?;
        say(&format!("[{}/{}] {}: {}", number + 1, chosen.len(), test.name, test.about));
        let start = Instant::now();
        let inside = in_user_mode_kernel().any(|t| t.name == test.name);
        let verdict = if inside { run_in_user_mode_kernel(&context, test) } else { (test.run)(&context) };
        let took = start.elapsed();
        let (word, rest) = match &verdict {
            Ok(Verdict::Passed(words)) => {
                passed += 1;
                ("passed", words.clone())
            }
            Ok(Verdict::Skipped(reason)) => {
                skipped += 1;
                ("SKIPPED", reason.clone())
            }
            Err(e) => {
                failures.push(format!("{}: {e:#}", test.name));
                ("FAILED", first_line(&format!("{e:#}")))
            }
        };
        say(&format!("    {word} in {}  {rest}", time(took)));
        rows.push(vec![word.to_owned(), test.name.to_owned(), time(took), rest]);
    }
    println!("\n{}", table(&rows));
    for failure in &failures {
        println!("FAILED {failure}\n");
    }
    println!("{passed} passed, {} failed, {skipped} skipped", failures.len());
    Ok(failures.is_empty())
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
