//! `cargo lab test`: everything that must hold before a change goes in, from formatting to whole fabrics, as one list
//! of named functions. A test passes, fails, or is skipped with its reason; nothing is skipped silently.

mod attach;
mod bed;
mod bfd;
pub(crate) mod checks;
mod crash;
mod fabrics;
mod faults;
mod flaps;
mod interop;
mod library;
mod manifests;
mod unnumbered;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::fabric::Place;
use crate::progress::{say, seconds, table};
use crate::{interrupt, packages, product};

/// What a test that did not fail says.
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
}

impl Context {
    /// The product's binaries, built when the first test asks for them.
    pub(crate) fn product(&self) -> Result<std::path::PathBuf> {
        if let Some(folder) = self.product.get() {
            return Ok(folder.clone());
        }
        let folder = product::build(&self.place)?;
        Ok(self.product.get_or_init(|| folder).clone())
    }
}

/// One test.
pub(crate) struct Test {
    pub name: &'static str,
    /// What must hold, in one line.
    pub about: &'static str,
    pub run: fn(&Context) -> Result<Verdict>,
}

fn all() -> Vec<&'static Test> {
    [
        checks::TESTS,
        fabrics::TESTS,
        attach::TESTS,
        manifests::TESTS,
        faults::TESTS,
        library::TESTS,
        bfd::TESTS,
        unnumbered::TESTS,
        interop::TESTS,
        flaps::TESTS,
        crash::TESTS,
    ]
    .into_iter()
    .flatten()
    .collect()
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
    ]))?;
    let context = Context { place: place.clone(), product: std::cell::OnceCell::new() };
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let (mut passed, mut skipped) = (0, 0);
    for (number, test) in chosen.iter().enumerate() {
        interrupt::check()?;
        say(&format!("[{}/{}] {}: {}", number + 1, chosen.len(), test.name, test.about));
        let start = Instant::now();
        let verdict = (test.run)(&context);
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
