//! What the lab asks of FRR, and the kernel's tables on any node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::Value;

use crate::daemons::vtysh_json;
use crate::host::Host;
use crate::shell::{Seen, wait_for};

/// Waits until every BGP session of a router is established.
pub(crate) fn wait_sessions(router: &Host, deadline: Duration) -> Result<usize> {
    wait_for(&format!("the BGP sessions of {}", router.name), deadline, || {
        let summary = vtysh_json(router, "show bgp ipv4 unicast summary json")?;
        let peers = summary["peers"].as_object().context("no peers in the summary")?;
        let missing: Vec<String> = peers
            .iter()
            .filter(|(_, p)| p["state"] != "Established")
            .map(|(address, p)| format!("{address} {}", p["state"]))
            .collect();
        Ok(if missing.is_empty() { Seen::Yes(peers.len()) } else { Seen::NotYet(missing.join(", ")) })
    })
}

/// Waits until every BFD session of a router is up; how many there are.
pub(crate) fn wait_bfd(router: &Host, deadline: Duration) -> Result<usize> {
    wait_for(&format!("the BFD sessions of {}", router.name), deadline, || {
        let answer = vtysh_json(router, "show bfd peers json")?;
        let sessions = answer.as_array().context("no BFD sessions")?;
        let missing: Vec<String> = sessions
            .iter()
            .filter(|session| session["status"] != "up")
            .map(|session| format!("{} {}", session["peer"], session["status"]))
            .collect();
        let good = missing.is_empty() && !sessions.is_empty();
        Ok(if good { Seen::Yes(sessions.len()) } else { Seen::NotYet(missing.join(", ")) })
    })
}

/// One neighbour, as the router describes it.
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

/// Waits until a router keeps no path of this neighbour as stale, and every family has heard its End-of-RIB.
pub(crate) fn wait_nothing_stale(router: &Host, address: &str, deadline: Duration) -> Result<()> {
    wait_for(&format!("{} to have swept what it kept for {address}", router.name), deadline, || {
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

/// Whether the router's BGP table has a prefix, from any peer.
pub(crate) fn has_path(router: &Host, prefix: &IpNet) -> Result<bool> {
    let family = if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" };
    let answer = vtysh_json(router, &format!("show bgp {family} unicast {prefix} json"))?;
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
