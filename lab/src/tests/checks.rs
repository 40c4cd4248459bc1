//! Checks of the source: formatting, lints, documentation, licences, allowed dependencies, unit
//! tests, and the size of the plugin.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::{Context, Test, Verdict, passed};
use crate::fabric::Place;
use crate::product::cargo_with_log as cargo;

pub(super) const TESTS: &[Test] = &[
    Test { name: "check/fmt", about: "the source is formatted", run: fmt },
    Test { name: "check/clippy", about: "no lint fires, in product, tests and lab", run: clippy },
    Test { name: "check/docs", about: "the documentation builds without a warning", run: docs },
    Test {
        name: "check/book",
        about: "every page of docs/ is a chapter of the book, and every relative link has a target",
        run: super::book::book,
    },
    Test { name: "check/deny", about: "licences, sources and duplicates of dependencies", run: deny },
    Test { name: "check/advisories", about: "no dependency has a known vulnerability", run: advisories },
    Test {
        name: "check/no-tokio",
        about: "the engine of bgp/ builds without tokio in its tree",
        run: no_tokio,
    },
    Test {
        name: "check/boundaries",
        about: "datapath/ has neither Kubernetes nor BGP nor HTTP in its tree",
        run: boundaries,
    },
    Test {
        name: "check/small-lab",
        about: "the lab of the demo builds without kube and without the product's libraries",
        run: small_lab,
    },
    Test { name: "check/unit", about: "unit, property and kernel tests of all crates", run: unit },
    Test {
        name: "check/fuzz",
        about: "the corpus and a short run of each fuzz target find nothing",
        run: fuzz,
    },
    Test { name: "check/plugin-size", about: "the CNI plugin is under 2 MB", run: plugin_size },
];

fn fmt(context: &Context) -> Result<Verdict> {
    cargo(&context.place, "fmt", &["fmt", "--all", "--check"], &[])?;
    passed("")
}

fn clippy(context: &Context) -> Result<Verdict> {
    cargo(
        &context.place,
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        &[],
    )?;
    passed("")
}

fn docs(context: &Context) -> Result<Verdict> {
    let env = [("RUSTDOCFLAGS", "-D warnings")];
    cargo(&context.place, "docs", &["doc", "--workspace", "--no-deps"], &env)?;
    passed("")
}

fn cargo_deny_is_there() -> bool {
    let mut version = Command::new("cargo");
    version.args(["deny", "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|s| s.success())
}

const NO_DENY: &str = "cargo-deny is not installed (cargo install --locked cargo-deny)";

fn deny(context: &Context) -> Result<Verdict> {
    if !cargo_deny_is_there() {
        return Ok(Verdict::Skipped(NO_DENY.to_owned()));
    }
    cargo(&context.place, "deny", &["deny", "check", "bans", "licenses", "sources"], &[])?;
    passed("")
}

fn advisories(context: &Context) -> Result<Verdict> {
    if !cargo_deny_is_there() {
        return Ok(Verdict::Skipped(NO_DENY.to_owned()));
    }
    match cargo(&context.place, "advisories", &["deny", "check", "advisories"], &[]) {
        Ok(_) => passed(""),
        Err(e) if format!("{e:#}").contains("failed to fetch advisory database") => {
            Ok(Verdict::Skipped("the advisory database cannot be reached from here".to_owned()))
        }
        Err(e) => Err(e),
    }
}

fn no_tokio(context: &Context) -> Result<Verdict> {
    let bare = ["--package", "trunkline-bgp", "--no-default-features"];
    let tree = cargo(&context.place, "tree", &[&["tree", "-e", "normal"], &bare[..]].concat(), &[])?;
    ensure!(tree.contains("trunkline-bgp"), "cargo tree shows no trunkline-bgp: {tree}");
    for barred in ["tokio", "mio ", "socket2", "async-std"] {
        let line = tree.lines().find(|l| l.contains(barred));
        ensure!(line.is_none(), "the engine depends on {barred}: {line:?}");
    }
    cargo(&context.place, "no-tokio", &[&["check"], &bare[..]].concat(), &[])?;
    passed(format!("{} crates in its tree", tree.lines().filter(|l| !l.contains("(*)")).count()))
}

fn boundaries(context: &Context) -> Result<Verdict> {
    let package = ["tree", "-e", "normal", "--prefix", "none", "--package", "trunkline-datapath"];
    let tree = cargo(&context.place, "boundaries", &package, &[])?;
    ensure!(tree.contains("trunkline-datapath"), "cargo tree shows no trunkline-datapath: {tree}");
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for barred in ["kube", "kube-client", "k8s-openapi", "hyper", "trunkline-bgp", "trunkline-daemon"] {
        ensure!(!names.contains(barred), "datapath/ depends on {barred}");
    }
    passed(format!("{} crates in its tree", names.len()))
}

fn small_lab(context: &Context) -> Result<Verdict> {
    let small = ["--package", "lab", "--no-default-features"];
    let tree = cargo(&context.place, "small-tree", &[&["tree", "-e", "normal"], &small[..]].concat(), &[])?;
    ensure!(tree.contains("lab v"), "cargo tree shows no lab: {tree}");
    for barred in [
        "kube v",
        "k8s-openapi v",
        "trunkline v",
        "trunkline-agent v",
        "trunkline-datapath v",
        "trunkline-bgp v",
        "trunkline-controller v",
    ] {
        let line = tree.lines().find(|l| l.contains(barred));
        ensure!(line.is_none(), "the lab without its suite depends on {barred}: {line:?}");
    }
    let lints = ["--all-targets", "--", "-D", "warnings"];
    cargo(&context.place, "small-lab", &[&["clippy"], &small[..], &lints[..]].concat(), &[])?;
    passed(format!("{} crates in its tree", tree.lines().filter(|l| !l.contains("(*)")).count()))
}

pub(super) fn build_unit(place: &Place) -> Result<()> {
    cargo(place, "unit-build", &["test", "--workspace", "--no-run"], &[])?;
    Ok(())
}

fn unit(context: &Context) -> Result<Verdict> {
    let log = cargo(&context.place, "unit", &["test", "--workspace"], &[])?;
    let count = |word: &str| -> usize {
        let results = log.lines().filter(|l| l.starts_with("test result: "));
        results
            .filter_map(|l| {
                l.split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
            })
            .sum()
    };
    let (ran, ignored) = (count("passed"), count("ignored"));
    ensure!(ran > 0, "no unit test ran");
    // A skipped kernel test prints a line with the reason, which the table shows.
    let skips: Vec<&str> = log.lines().filter(|l| l.starts_with("skipped")).collect();
    passed(format!(
        "{ran} tests, {ignored} ignored{}",
        skips.iter().map(|s| format!("; {s}")).collect::<String>()
    ))
}

/// Seconds for each fuzz target: in the suite, and in a round of a soak.
const FUZZ: u64 = 20;
const FUZZ_LONG: u64 = 720;

fn fuzz(context: &Context) -> Result<Verdict> {
    let binary = crate::fuzz::build(&context.place)?;
    let seconds = if context.long { FUZZ_LONG } else { FUZZ };
    let results = crate::fuzz::fuzz(&context.place, &binary, &crate::fuzz::TARGETS, seconds)?;
    for result in &results {
        ensure!(result.failure.is_none(), "{result}");
    }
    passed(results.iter().map(|r| format!("{} {} inputs", r.target, r.runs)).collect::<Vec<_>>().join(", "))
}

fn plugin_size(context: &Context) -> Result<Verdict> {
    let size = std::fs::metadata(context.product()?.join("trunkline-cni"))?.len();
    ensure!(size < 2_000_000, "trunkline-cni has {size} octets, the bound is 2,000,000");
    passed(format!("{size} octets"))
}
