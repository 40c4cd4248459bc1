//! The agent's own kernel tests in a user-mode kernel, including the tests of devices that the
//! machine's kernel may not have.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::product::cargo_with_log as cargo;
use crate::tests::{Context, Test, Verdict, passed};
use crate::uml;

/// This test boots the user-mode kernel by itself, because cargo does not run inside that kernel.
pub(in crate::tests) const TESTS: &[Test] = &[Test {
    name: "l2/kernel-tests",
    about: "the agent's tests of IPVLAN and VLAN devices, which are skipped on a kernel without these devices",
    run: kernel_tests,
}];

const BOUND: Duration = Duration::from_secs(600);

fn kernel_tests(context: &Context) -> Result<Verdict> {
    if let Some(why) = uml::missing(&context.place)? {
        return Ok(Verdict::Skipped(why));
    }
    // The tests are built as part of the workspace, so the unit tests use the same build.
    let build = ["test", "--workspace", "--test", "kernel_ipvlan", "--no-run", "--message-format", "json"];
    let said = cargo(&context.place, "kernel-tests", &build, &[])?;
    let artifacts = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // The agent itself is built too, as the tests may run it.
    let tests: Vec<String> = artifacts
        .filter(|artifact| artifact["profile"]["test"] == true)
        .filter_map(|artifact| Some(artifact["executable"].as_str()?.to_owned()))
        .collect();
    ensure!(!tests.is_empty(), "cargo built no test");
    let all = "for test; do \"$test\" --test-threads=1 --nocapture || exit; done";
    let command: Vec<&str> =
        ["sh", "-c", all, "sh"].into_iter().chain(tests.iter().map(String::as_str)).collect();
    let ended = uml::run(&context.place, "kernel-tests", &command, BOUND)?;
    ensure!(ended.status == 0, "status {}: {}", ended.status, ended.stdout);
    let skipped = ended.stdout.lines().find(|line| line.contains("skipped"));
    ensure!(skipped.is_none(), "{}", skipped.context("a line")?);
    let run = ended.stdout.lines().filter(|line| line.ends_with("... ok")).count();
    passed(format!("{run} tests"))
}
