//! The library on its own: its example peers with FRR as its head says, tells and is told a route, and says goodbye.

use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::checks::cargo;
use super::{Context, Test, Verdict, passed};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::{daemons, evidence, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "library/example",
    about: "the example speaker peers with FRR, and is under 80 lines",
    run: example,
}];

const SOURCE: &str = "bgp/examples/speaker.rs";
const PATIENCE: Duration = Duration::from_secs(30);

fn example(context: &Context) -> Result<Verdict> {
    let place = &context.place;
    let lines = std::fs::read_to_string(place.repository.join(SOURCE))?.lines().count();
    ensure!(lines < 80, "{SOURCE} has {lines} lines");
    cargo(place, "example", &["build", "--package", "trunkline-bgp", "--example", "speaker"], &[])?;
    let target = place.state.parent().context("the target folder")?;
    let program = target.join("debug/examples/speaker");
    let fabric = Fabric::up(place, "library", target)?;
    fabric.watched(|fabric| {
        evidence::capture(fabric)?;
        let (frr, host) = (fabric.host("frr")?, fabric.host("example")?);
        let arguments = ["65001", "10.1.0.2", "10.1.0.1", "65000", "192.0.2.0/24"];
        let program = program.to_str().context("the target folder's name is not text")?;
        let child = host.daemon("example.log", program, &arguments, &[])?;
        routers::wait_neighbour(frr, "10.1.0.2", true, PATIENCE)?;
        let prefix = "192.0.2.0/24".parse()?;
        wait_for("FRR to have the example's prefix", PATIENCE, || {
            Ok(Seen::when(routers::has_path(frr, &prefix)?, || "not there".to_owned()))
        })?;
        wait_for("the example to have FRR's prefix", PATIENCE, || {
            let said = said(host)?;
            Ok(Seen::when(said.contains("198.51.100.0/24 via [10.1.0.1]"), || said))
        })?;
        goodbye(frr, child)?;
        passed(format!("{lines} lines"))
    })
}

fn said(host: &Host) -> Result<String> {
    Ok(std::fs::read_to_string(host.folder.join("log/example.log"))?)
}

/// Ctrl-C, and FRR hears the text of the Cease (RFC 9003).
fn goodbye(frr: &Host, mut child: Child) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(pid, Signal::INT)?;
    let status = child.wait()?;
    ensure!(status.success(), "the example ended with {status}");
    let log = daemons::vtysh_json(frr, "show bgp neighbors 10.1.0.2 json")?["10.1.0.2"].to_string();
    ensure!(log.contains("the example ends"), "FRR did not hear the goodbye: {log}");
    Ok(())
}
