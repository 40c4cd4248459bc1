//! The speaker as others use it: the library's example peers with FRR as its head says, tells and is told a route, and
//! says goodbye; and its tables are read by tools for MRT.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process};

use trunkline_api::control::Route;

use super::bed::lab;
use super::checks::cargo;
use super::{Context, Test, Verdict, passed};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::{client, daemons, evidence, packages, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "library/example",
        about: "the example speaker peers with FRR, and is under 80 lines",
        run: example,
    },
    Test { name: "library/mrt", about: "bgpdump reads every path of `trunkline routes --mrt`", run: mrt },
];

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

/// What an operator sees, and what bgpdump reads, are the same.
fn mrt(context: &Context) -> Result<Verdict> {
    packages::need(["bgpdump"])?;
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("dumped", "rack1")?;
        let node = bed.node()?;
        let said = node.run("trunkline", ["routes", "--mrt", "/run/tables.mrt"])?;
        let dumped = node.run("bgpdump", ["-m", "/run/tables.mrt"])?;
        let piped = node.sh("trunkline routes --mrt - >/run/piped.mrt && bgpdump -m /run/piped.mrt")?;
        let rows = |text: &str| -> Result<BTreeSet<(IpAddr, IpNet, String, String)>> {
            let fields = text.lines().map(|line| line.split('|').collect::<Vec<_>>());
            fields
                .map(|f| {
                    ensure!(f.len() > 8 && f[0] == "TABLE_DUMP2", "bgpdump printed {f:?}");
                    Ok((f[3].parse()?, f[5].parse()?, f[6].to_owned(), f[8].to_owned()))
                })
                .collect()
        };
        let routes: Vec<Route> = client::routes(node)?;
        let expected: BTreeSet<_> = routes
            .iter()
            .filter(|route| route.filtered.is_none())
            .map(|route| {
                let unspecified = if route.prefix.addr().is_ipv4() { "0.0.0.0" } else { "::" };
                let next_hop = route.next_hop.map_or(unspecified.to_owned(), |hop| hop.to_string());
                let peer = route.peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                (peer, route.prefix, route.as_path.clone(), next_hop)
            })
            .collect();
        for address in &attached.addresses {
            ensure!(
                expected.iter().any(|row| row.1 == IpNet::from(*address)),
                "{address} is not in {expected:?}"
            );
        }
        ensure!(rows(&dumped)? == expected, "bgpdump read {dumped}\nthe agent has {expected:?}");
        ensure!(rows(&piped)? == expected, "through a pipe bgpdump read {piped}");
        passed(said.trim())
    })
}
