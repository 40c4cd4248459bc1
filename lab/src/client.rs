//! `trunkline … -o json` on a node, parsed into the types from which the product prints it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use trunkline_api::control::{AgentStatus, Explanation, PacketPath, Peer, PodStatus, Route};

use crate::daemons;
use crate::host::Host;
use crate::netns::has_ended;
use crate::shell::{Seen, wait_for};

/// The agent's default port for metrics.
const METRICS: u16 = 9473;

/// Runs a query or a command of the operator.
pub(crate) fn ask<T: DeserializeOwned>(host: &Host, args: &[&str]) -> Result<T> {
    let args = [args, &["-o", "json"]].concat();
    let text = host.run("trunkline", &args)?;
    serde_json::from_str(&text).with_context(|| format!("{}: trunkline {args:?} printed: {text}", host.name))
}

pub(crate) fn status(host: &Host) -> Result<AgentStatus> {
    ask(host, &["status"])
}

pub(crate) fn peers(host: &Host) -> Result<Vec<Peer>> {
    ask(host, &["peers"])
}

pub(crate) fn pods(host: &Host) -> Result<Vec<PodStatus>> {
    ask(host, &["pods"])
}

pub(crate) fn path(host: &Host, pod: &str, destination: IpAddr) -> Result<PacketPath> {
    ask(host, &["pods", pod, "--path", &destination.to_string()])
}

pub(crate) fn routes(host: &Host) -> Result<Vec<Route>> {
    ask(host, &["routes"])
}

pub(crate) fn explain(host: &Host, prefix: &IpNet) -> Result<Explanation> {
    ask(host, &["routes", "--explain", &prefix.to_string()])
}

pub(crate) fn received(host: &Host, peer: IpAddr) -> Result<Vec<Route>> {
    ask(host, &["routes", "--received", &peer.to_string()])
}

pub(crate) fn advertised(host: &Host, peer: IpAddr) -> Result<Vec<Route>> {
    ask(host, &["routes", "--advertised", &peer.to_string()])
}

/// Reads the agent's `/metrics` on the loopback of its node.
pub(crate) fn metrics(host: &Host) -> Result<String> {
    let mut stream = host.ns.within(|| {
        TcpStream::connect((Ipv4Addr::LOCALHOST, METRICS)).with_context(|| format!("127.0.0.1:{METRICS}"))
    })?;
    http_body(&mut stream, "/metrics")
}

/// The answer to a GET.
pub(crate) fn http_body(stream: &mut TcpStream, path: &str) -> Result<String> {
    // HTTP 1.0: the answer ends with the connection, and is not in chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer}"))?;
    Ok(body.to_owned())
}

/// The running agents of a node. There should be one. An agent's child that has not executed its
/// program yet (`nft`) has the agent's command line too, and is none.
pub(crate) fn agents(host: &Host) -> Vec<Pid> {
    let is_agent = |pid: &Pid| {
        let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        let line = std::fs::read(path).unwrap_or_default();
        let mut words = line.split(|b| *b == 0);
        words.next().is_some_and(|w| w.ends_with(b"trunkline")) && words.next() == Some(b"agent")
    };
    let found: Vec<Pid> = host.ns.pids().into_iter().filter(is_agent).collect();
    let is_child = |pid: &Pid| parent(*pid).is_some_and(|parent| found.contains(&parent));
    found.iter().copied().filter(|pid| !is_child(pid)).collect()
}

/// The parent of a process that still exists.
fn parent(pid: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let number = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(number.trim().parse().ok()?)
}

/// The agent's process.
pub(crate) fn agent(host: &Host) -> Result<Pid> {
    match agents(host).as_slice() {
        [pid] => Ok(*pid),
        [] => {
            bail!("{}: no agent runs; its log is {}", host.name, host.logs().join("agent.log").display())
        }
        several => bail!("{}: {} agents run", host.name, several.len()),
    }
}

/// Sends the agent a signal and waits for its end.
pub(crate) fn end_agent(host: &Host, signal: Signal) -> Result<()> {
    let pid = agent(host)?;
    kill_process(pid, signal).with_context(|| format!("{}: signal to the agent", host.name))?;
    wait_ended(host, pid)
}

/// Waits until a process has ended with all its threads. Its locks are free only then. A supervisor
/// that restarts it also waits for this moment.
pub(crate) fn wait_ended(host: &Host, pid: Pid) -> Result<()> {
    wait_for(&format!("the agent on {} to end", host.name), Duration::from_secs(20), || {
        Ok(Seen::when(has_ended(pid.as_raw_nonzero().get()), || format!("{pid:?} still running")))
    })
}

/// Starts the agent and waits until it answers.
pub(crate) fn start_agent(host: &Host) -> Result<()> {
    let _child = daemons::start_agent(host, &[])?;
    wait_answering(host)
}

pub(crate) fn wait_answering(host: &Host) -> Result<()> {
    wait_for(&format!("the agent on {} to answer", host.name), Duration::from_secs(20), || {
        if agents(host).is_empty() {
            let log = std::fs::read_to_string(host.logs().join("agent.log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(5).collect();
            return Ok(Seen::NotYet(format!("no agent runs; its log ends: {end:?}")));
        }
        status(host).map(Seen::Yes)
    })
    .map(drop)
}

/// Waits until every peer of a node is in state Established.
pub(crate) fn wait_established(host: &Host, deadline: Duration) -> Result<()> {
    wait_for(&format!("the BGP sessions of {}", host.name), deadline, || {
        let peers = peers(host)?;
        let open = |p: &Peer| p.is_established();
        Ok(Seen::when(!peers.is_empty() && peers.iter().all(open), || {
            let state = |p: &Peer| {
                let error = p.last_error.as_ref().map(|e| format!(" ({})", e.text)).unwrap_or_default();
                format!("{} {}{error}", p.address, p.state)
            };
            peers.iter().map(state).collect::<Vec<_>>().join(", ")
        }))
    })
}

/// Waits until every BFD session of a node is Up, and there is one for every peer.
pub(crate) fn wait_bfd(host: &Host, deadline: Duration) -> Result<()> {
    wait_for(&format!("the BFD sessions of {}", host.name), deadline, || {
        let peers = peers(host)?;
        let state = |p: &Peer| p.bfd.as_ref().map_or("none", |bfd| bfd.state.name());
        Ok(Seen::when(!peers.is_empty() && peers.iter().all(|p| state(p) == "Up"), || {
            peers.iter().map(|p| format!("{} {}", p.address, state(p))).collect::<Vec<_>>().join(", ")
        }))
    })
}
