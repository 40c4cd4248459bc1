//! `cargo lab fuzz`: the targets of `fuzz/` under libFuzzer, two at a time on two processors.
//!
//! Stable Rust is enough: coverage is an LLVM pass that `-C passes` and `-C llvm-args` turn on, for
//! the target's triple only. So build scripts stay unchanged. New inputs of interest are stored in
//! target/lab/fuzz/TARGET/corpus. An input that makes a target panic, hang or use too much memory
//! is written to target/lab/fuzz/TARGET/found. `cargo lab fuzz --minimise` adds inputs with new
//! coverage to the committed corpus.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::fabric::Place;
use crate::interrupt;
use crate::progress::{say, step};
use crate::shell::giving_way;

/// The targets in `fuzz/src/lib.rs`.
pub(crate) const TARGETS: [&str; 5] = ["update", "messages", "session", "bfd", "differential"];

const FLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Awarnings",
];

/// Limits of a target for any input: megabytes in total and in one allocation, and seconds.
const BOUNDS: [&str; 3] = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=10"];

/// Builds the fuzzer; returns its path.
pub(crate) fn build(place: &Place) -> Result<PathBuf> {
    let log = Command::new("rustc").args(["-vV"]).output().context("rustc cannot be started")?;
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let triple = log.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let folder = place.repository.join("target/fuzz");
    let folder_text = folder.to_str().context("a path in UTF-8")?;
    let args = [
        "build",
        "--profile",
        "fuzz",
        "--package",
        "trunkline-fuzz",
        "--features",
        "libfuzzer",
        "--target",
        triple,
        "--target-dir",
        folder_text,
    ];
    crate::product::cargo_with_log(place, "fuzz-build", &args, &[("RUSTFLAGS", &FLAGS.join(" "))])?;
    Ok(folder.join(triple).join("fuzz/trunkline-fuzz"))
}

/// `cargo lab fuzz`: runs each target for this number of seconds.
pub(crate) fn run(place: &Place, targets: &[String], seconds: u64, minimise: bool) -> Result<bool> {
    let chosen: Vec<&str> = match targets {
        [] => TARGETS.to_vec(),
        names => names
            .iter()
            .map(|name| {
                TARGETS.into_iter().find(|target| target == name).with_context(|| {
                    format!("no fuzz target is called {name}; there are {}", TARGETS.join(", "))
                })
            })
            .collect::<Result<_>>()?,
    };
    let binary = step("building the fuzzer", || build(place))?;
    if minimise {
        for target in chosen {
            step(&format!("{target}: inputs that reach more code"), || merge(place, &binary, target))?;
        }
        return Ok(true);
    }
    let mut good = true;
    for found in fuzz(place, &binary, &chosen, seconds)? {
        good &= found.failure.is_none();
        say(&found.to_string());
    }
    Ok(good)
}

/// Result of fuzzing a target.
pub(crate) struct Found {
    pub target: &'static str,
    pub runs: u64,
    /// Number of edges reached.
    pub edges: u64,
    /// The panic, and the path of the input.
    pub failure: Option<String>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "  {:<14} {:>10} inputs, {:>6} edges  ", self.target, self.runs, self.edges)?;
        f.write_str(self.failure.as_deref().unwrap_or("nothing found"))
    }
}

/// Runs the targets, two at a time.
pub(crate) fn fuzz(place: &Place, binary: &Path, targets: &[&str], seconds: u64) -> Result<Vec<Found>> {
    let mut results = Vec::new();
    for pair in targets.chunks(2) {
        let running =
            pair.iter().map(|target| start(place, binary, target, seconds)).collect::<Result<Vec<_>>>()?;
        let title = format!("{} for {seconds} s", pair.join(" and "));
        step(&title, || {
            for (target, child, folder) in running {
                results.push(wait(target, child, &folder)?);
            }
            Ok(())
        })?;
    }
    Ok(results)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The fuzzer ends with this process in every case. If it has already ended, it cannot be
        // killed.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn start(place: &Place, binary: &Path, name: &str, seconds: u64) -> Result<(&'static str, Running, PathBuf)> {
    let target = TARGETS.into_iter().find(|target| *target == name).context("a target")?;
    let folder = place.state.join("fuzz").join(target);
    std::fs::create_dir_all(folder.join("corpus"))?;
    std::fs::create_dir_all(folder.join("found"))?;
    let log = std::fs::File::create(folder.join("log"))?;
    // The fuzzer ends with this process, even if this process is killed.
    let child = giving_way("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(binary)
        .env("TRUNKLINE_FUZZ_TARGET", target)
        .arg(folder.join("corpus"))
        .arg(committed(place, target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/found/", folder.display()))
        .args(["-max_len=4096", "-print_final_stats=1", "-verbosity=1"])
        .args(BOUNDS)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| binary.display().to_string())?;
    Ok((target, Running(child), folder))
}

fn wait(target: &'static str, mut child: Running, folder: &Path) -> Result<Found> {
    let status = loop {
        interrupt::check()?;
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let log = String::from_utf8_lossy(&std::fs::read(folder.join("log"))?).into_owned();
    let number = |text: &str| text.trim().parse().unwrap_or(0);
    let runs = log
        .lines()
        .filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map(number)
        .next();
    let edges =
        log.lines().filter_map(|line| line.split_once("cov: ")?.1.split(' ').next()).map(number).max();
    let failure = (!status.success()).then(|| {
        let mut lines = log.lines().skip_while(|line| !line.contains("panicked at"));
        let panic: Vec<&str> = lines.by_ref().take(2).collect();
        let written = log
            .lines()
            .find_map(|line| line.split_once("Test unit written to "))
            .map_or("", |(_, path)| path);
        format!("FOUND: {} {written} (log: {})", panic.join(" "), folder.join("log").display())
    });
    let runs = runs.unwrap_or(0);
    ensure!(
        failure.is_some() || runs > 0,
        "{target} ran no input; its log: {}",
        folder.join("log").display()
    );
    Ok(Found { target, runs, edges: edges.unwrap_or(0), failure })
}

/// The committed corpus.
fn committed(place: &Place, target: &str) -> PathBuf {
    place.repository.join("fuzz/corpus").join(target)
}

/// Adds the few inputs with new edges to the committed corpus.
fn merge(place: &Place, binary: &Path, target: &str) -> Result<()> {
    let own = place.state.join("fuzz").join(target).join("corpus");
    std::fs::create_dir_all(&own)?;
    let output = Command::new(binary)
        .env("TRUNKLINE_FUZZ_TARGET", target)
        .args(["-set_cover_merge=1", "-use_counters=0", "-use_cmp=0", "-max_len=4096"])
        .arg(committed(place, target))
        .arg(own)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        bail!("{target}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    /// The lab does not depend on the crate that it fuzzes, so the names are repeated.
    #[test]
    fn the_targets_are_those_of_the_fuzz_crate() {
        let source = include_str!("../../fuzz/src/lib.rs");
        let names: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
            .collect();
        assert_eq!(names, TARGETS);
    }
}
