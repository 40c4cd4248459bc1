//! The speaker as other programs use it. The library's example peers with FRR as its first comment
//! describes, exchanges a route, and ends the session with a message. Tools for MRT read its
//! tables, and a BMP collector receives its sessions and routes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process};

use serde_json::Value;
use trunkline_api::control::Route;

use super::bed::lab;
use super::{Context, Test, Verdict, passed};
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::product::cargo_with_log as cargo;
use crate::shell::{Seen, wait_for};
use crate::{client, evidence, packages, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "library/example",
        about: "the example speaker peers with FRR, and is under 80 lines",
        run: example,
    },
    Test { name: "library/mrt", about: "bgpdump reads every path of `trunkline routes --mrt`", run: mrt },
    Test {
        name: "library/bmp",
        about: "pmacct's BMP collector receives sessions, routes and their end",
        run: bmp,
    },
];

const SOURCE: &str = "bgp/examples/speaker.rs";
const PATIENCE: Duration = Duration::from_secs(90);

/// Builds the example once. It is built with the whole workspace, so its dependencies have the same
/// features as in the unit tests.
pub(super) fn build_example(place: &Place) -> Result<()> {
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !*built {
        cargo(place, "example", &["build", "--workspace", "--example", "speaker"], &[])?;
        *built = true;
    }
    Ok(())
}

fn example(context: &Context) -> Result<Verdict> {
    let place = &context.place;
    let lines = std::fs::read_to_string(place.repository.join(SOURCE))?.lines().count();
    ensure!(lines < 80, "{SOURCE} has {lines} lines");
    build_example(place)?;
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
            Ok(Seen::when(routers::has_path(fabric, "frr", &prefix)?, || "not there".to_owned()))
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

/// Sends Ctrl-C; FRR receives the text of the Cease (RFC 9003).
fn goodbye(frr: &Host, mut child: Child) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(pid, Signal::INT)?;
    let status = child.wait()?;
    ensure!(status.success(), "the example ended with {status}");
    wait_for("FRR to receive the NOTIFICATION", PATIENCE, || {
        let neighbour = routers::neighbour(frr, "10.1.0.2")?.to_string();
        Ok(Seen::when(neighbour.contains("the example ends"), || neighbour))
    })
}

/// The operator's view and the output of bgpdump are the same.
fn mrt(context: &Context) -> Result<Verdict> {
    packages::need(["bgpdump"])?;
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("dumped", "rack1")?;
        let node = bed.node()?;
        let said = node.run("trunkline", ["routes", "--mrt", "/run/tables.mrt"])?;
        let dumped = node.run("bgpdump", ["-m", "/run/tables.mrt"])?;
        let piped = node.sh("trunkline routes --mrt - >/run/piped.mrt && bgpdump -m /run/piped.mrt")?;
        let rows = |text: &str| -> Result<BTreeSet<(String, IpNet, String, String)>> {
            let fields = text.lines().map(|line| line.split('|').collect::<Vec<_>>());
            fields
                .map(|f| {
                    ensure!(f.len() > 8 && f[0] == "TABLE_DUMP2", "bgpdump printed {f:?}");
                    Ok((f[3].to_owned(), f[5].parse()?, f[6].to_owned(), f[8].to_owned()))
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
                let peer = route.peer.clone().unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.to_string());
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

/// Address of pmbmpd, on the node itself.
const STATION: &str = "127.0.0.1:11019";

const PMBMPD: &str = "daemonize: false
bmp_daemon_ip: 127.0.0.1
bmp_daemon_port: 11019
bmp_daemon_msglog_file: /run/bmp.json
";

fn bmp(context: &Context) -> Result<Verdict> {
    packages::need(["pmacct"])?;
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        // The agent reads this file only at its start.
        client::end_agent(node, Signal::TERM)?;
        std::fs::write(node.folder.join("run/pmbmpd.conf"), PMBMPD)?;
        node.sh(&format!(
            "printf 'bmp: {{stations: [\"{STATION}\"], statsSeconds: 1}}\\n' >>/etc/trunkline/agent.yaml"
        ))?;
        client::start_agent(node)?;
        bed.established()?;
        let refused = wait_for("the station to be reported as unreachable", PATIENCE, || {
            let stations = client::status(node)?.bgp.map(|bgp| bgp.stations).unwrap_or_default();
            let error = stations.iter().find_map(|station| station.last_error.clone());
            Ok(error.map_or(Seen::NotYet(format!("{stations:?}")), Seen::Yes))
        })?;
        let _collector = node.daemon("pmbmpd.log", "pmbmpd", &["-f", "/run/pmbmpd.conf"], &[])?;
        let peers: BTreeSet<IpAddr> = client::peers(node)?.iter().map(|peer| peer.address).collect();
        wait_for("the collector to have the same sessions and prefixes as the agent", PATIENCE, || {
            let (up, prefixes) = collected(node)?;
            let mut expected = BTreeSet::new();
            for peer in &peers {
                expected.extend(client::received(node, *peer)?.iter().map(|route| (*peer, route.prefix)));
            }
            Ok(Seen::when(up == peers && prefixes == expected && !prefixes.is_empty(), || {
                format!("{up:?} {prefixes:?}, the agent has {peers:?} {expected:?}")
            }))
        })?;
        let (_, before) = collected(node)?;
        bed.host("tor1")?.sh("kill $(cat /run/frr/bgpd.pid)")?;
        wait_for("the collector to receive the loss of a ToR", PATIENCE, || {
            let (up, prefixes) = collected(node)?;
            Ok(Seen::when(up.len() + 1 == peers.len() && prefixes.len() < before.len(), || {
                format!("{up:?} {prefixes:?}")
            }))
        })?;
        passed(format!("{} routes of {} peers; before that: {refused}", before.len(), peers.len()))
    })
}

/// Established peers, and pairs of a peer and a route.
type Collected = (BTreeSet<IpAddr>, BTreeSet<(IpAddr, IpNet)>);

/// Reads the peers and routes from pmbmpd's log.
fn collected(node: &Host) -> Result<Collected> {
    let log = std::fs::read_to_string(node.folder.join("run/bmp.json")).unwrap_or_default();
    let (mut up, mut routes) = (BTreeSet::new(), BTreeSet::new());
    // The last line may be incomplete.
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let peer = || -> Result<IpAddr> { Ok(line["peer_ip"].as_str().context("no peer_ip")?.parse()?) };
        let prefix = || line["ip_prefix"].as_str().and_then(|prefix| prefix.parse::<IpNet>().ok());
        match (line["bmp_msg_type"].as_str().unwrap_or_default(), line["log_type"].as_str()) {
            ("peer_up", _) => drop(up.insert(peer()?)),
            ("peer_down", _) => {
                let peer = peer()?;
                up.remove(&peer);
                routes.retain(|(of, _)| *of != peer);
            }
            ("route_monitor", Some("update")) => {
                routes.extend(prefix().map(|p| Ok::<_, anyhow::Error>((peer()?, p))).transpose()?)
            }
            ("route_monitor", Some("withdraw")) => {
                if let Some(prefix) = prefix() {
                    routes.remove(&(peer()?, prefix));
                }
            }
            _ => {}
        }
    }
    Ok((up, routes))
}
