//! Queries of FRR and BIRD, and of the kernel's tables on any node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::Value;

use crate::daemons::vtysh_json;
use crate::fabric::Fabric;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::topology::Image;

/// Waits until every BGP session of a router (FRR or BIRD) is established; returns their number.
pub(crate) fn wait_sessions(fabric: &Fabric, router: &str, deadline: Duration) -> Result<usize> {
    wait_all(&format!("the BGP sessions of {router}"), deadline, "Established", || {
        let host = fabric.host(router)?;
        if is_bird(fabric, router) {
            // Name Proto Table State Since Info
            return words_of(&host.run("birdc", ["show", "protocols"])?, |words| {
                (words.get(1) == Some(&"BGP")).then(|| (words[0], words.last().copied().unwrap_or_default()))
            });
        }
        let summary = vtysh_json(host, "show bgp ipv4 unicast summary json")?;
        let peers = summary["peers"].as_object().context("no peers in the summary")?;
        Ok(peers.iter().map(|(address, peer)| (address.clone(), text(&peer["state"]))).collect())
    })
}

/// Waits until every BFD session of a router (FRR or BIRD) is up; returns their number.
pub(crate) fn wait_bfd(fabric: &Fabric, router: &str, deadline: Duration) -> Result<usize> {
    wait_all(&format!("the BFD sessions of {router}"), deadline, "up", || bfd_sessions(fabric, router))
}

/// Waits until no BFD session of a router (FRR or BIRD) is up.
pub(crate) fn wait_bfd_lost(fabric: &Fabric, router: &str, deadline: Duration) -> Result<()> {
    wait_for(&format!("the BFD sessions of {router} to be lost"), deadline, || {
        let all = bfd_sessions(fabric, router)?;
        let up = |(_, state): &(String, String)| state.eq_ignore_ascii_case("up");
        Ok(Seen::when(!all.iter().any(up), || format!("{all:?}")))
    })
}

fn bfd_sessions(fabric: &Fabric, router: &str) -> Result<Vec<(String, String)>> {
    let host = fabric.host(router)?;
    if is_bird(fabric, router) {
        // Address Interface State Since Interval Timeout
        return words_of(&host.run("birdc", ["show", "bfd", "sessions"])?, |words| {
            let _address: IpAddr = words.first()?.parse().ok()?;
            Some((words[0], words.get(2).copied().unwrap_or_default()))
        });
    }
    let sessions = vtysh_json(host, "show bfd peers json")?;
    let sessions = sessions.as_array().context("no list of BFD sessions")?;
    Ok(sessions.iter().map(|session| (text(&session["peer"]), text(&session["status"]))).collect())
}

fn wait_all(
    what: &str,
    deadline: Duration,
    wanted: &str,
    ask: impl Fn() -> Result<Vec<(String, String)>>,
) -> Result<usize> {
    wait_for(what, deadline, || {
        let all = ask()?;
        let missing: Vec<String> = all
            .iter()
            .filter(|(_, state)| !state.eq_ignore_ascii_case(wanted))
            .map(|(who, state)| format!("{who} {state}"))
            .collect();
        let good = missing.is_empty() && !all.is_empty();
        Ok(if good { Seen::Yes(all.len()) } else { Seen::NotYet(missing.join(", ")) })
    })
}

fn is_bird(fabric: &Fabric, router: &str) -> bool {
    fabric.topology.nodes.get(router).is_some_and(|node| node.image == Image::Bird)
}

/// Rows of birdc's table that `row` accepts.
fn words_of(
    table: &str,
    row: impl for<'a> Fn(&[&'a str]) -> Option<(&'a str, &'a str)>,
) -> Result<Vec<(String, String)>> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    Ok(rows.filter_map(|words| row(&words).map(|(who, state)| (who.to_owned(), state.to_owned()))).collect())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A neighbour, in the router's description.
pub(crate) fn neighbour(router: &Host, address: &str) -> Result<Value> {
    let answer = vtysh_json(router, &format!("show bgp neighbors {address} json"))?;
    Ok(answer[address].clone())
}

/// Waits until a router's session with a neighbour is established, or is not.
pub(crate) fn wait_neighbour(
    router: &Host,
    address: &str,
    established: bool,
    deadline: Duration,
) -> Result<()> {
    let what = if established { "to be established" } else { "to be lost" };
    wait_for(&format!("{}'s session with {address} {what}", router.name), deadline, || {
        let state = neighbour(router, address)?["bgpState"].clone();
        Ok(Seen::when((state == "Established") == established, || state.to_string()))
    })
}

/// Waits until FRR's log has these words. FRR buffers its log, so a line may follow its event late.
pub(crate) fn wait_logged(router: &Host, words: &str, deadline: Duration) -> Result<()> {
    wait_for(&format!("{words:?} in FRR's log of {}", router.name), deadline, || {
        let log = router.sh("cat /var/log/frr/*.log")?;
        Ok(Seen::when(log.contains(words), || {
            format!("its last line is {:?}", log.lines().last().unwrap_or_default())
        }))
    })
}

/// Waits until a router has no stale path of this neighbour, and has received End-of-RIB for every
/// family.
pub(crate) fn wait_nothing_stale(router: &Host, address: &str, deadline: Duration) -> Result<()> {
    wait_for(&format!("{} to have swept its stale paths of {address}", router.name), deadline, || {
        let mut stale = 0;
        for family in ["ipv4", "ipv6"] {
            let table = vtysh_json(router, &format!("show bgp {family} unicast json"))?;
            let prefixes = table["routes"].as_object().cloned().unwrap_or_default();
            let paths = prefixes.values().filter_map(Value::as_array).flatten();
            stale += paths.filter(|p| p["stale"] == true && p["peerId"] == address).count();
        }
        Ok(Seen::when(stale == 0, || format!("{stale} stale paths")))
    })
}

/// Whether the table of a router (FRR or BIRD) has a prefix, from any peer.
pub(crate) fn has_path(fabric: &Fabric, router: &str, prefix: &IpNet) -> Result<bool> {
    let host = fabric.host(router)?;
    if is_bird(fabric, router) {
        // If there is no such path, birdc ends with status 1.
        let table = host.sh(&format!("birdc show route {prefix} || :"))?;
        return Ok(table.contains(&prefix.to_string()));
    }
    let family = if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" };
    let answer = vtysh_json(host, &format!("show bgp {family} unicast {prefix} json"))?;
    Ok(answer["paths"].as_array().is_some_and(|paths| !paths.is_empty())
        && answer["prefix"] == prefix.to_string())
}

/// Prefixes of the main tables, both families.
pub(crate) fn kernel_routes(host: &Host) -> Result<BTreeSet<IpNet>> {
    let mut prefixes = BTreeSet::new();
    for family in ["-4", "-6"] {
        let text = host.run("ip", ["-j", family, "route", "show", "table", "main"])?;
        let routes: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        for route in routes.as_array().into_iter().flatten() {
            let Some(dst) = route["dst"].as_str().filter(|d| *d != "default") else { continue };
            let full = if family == "-4" { 32 } else { 128 };
            let prefix = dst.parse().or_else(|_| format!("{dst}/{full}").parse());
            prefixes.insert(prefix.with_context(|| format!("route to {dst}"))?);
        }
    }
    Ok(prefixes)
}
