//! Faults at the agent's start: in all cases the kernel continues to forward for running pods. A
//! pod and an external host ping each other in both families the whole time. The agent ends, and
//! the fault is present when it starts again. No packet is lost, also when the fault is removed.
//! The ToRs retain the node's routes meanwhile by graceful restart.

use std::net::{IpAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use trunkline_api::control::{AgentStatus, PodState};

use super::bed::{Bed, INTERVAL, Manifest, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::cni::Sandbox;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::{client, daemons};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "start/bgp-port",
        about: "port 179 is in use at the start: sessions run, no packet is lost, and the port is \
                bound when free",
        run: bgp_port,
    },
    Test {
        name: "start/manifests",
        about: "manifests are refused at the start: no packet is lost, and the corrected ones apply",
        run: manifests,
    },
    Test {
        name: "start/store",
        about: "the store cannot be written at the start: no packet is lost",
        run: store,
    },
    Test {
        name: "start/no-start",
        about: "a bad configuration, router ID or socket path prevents the start: no packet is lost",
        run: no_start,
    },
    Test {
        name: "start/guard",
        about: "neither the guard nor the port of /metrics is available at the start: no packet is lost",
        run: guard,
    },
];

/// A pod on node1 and an external host that ping each other while node1's agent is stopped.
struct Traffic {
    _pod: Sandbox,
    pings: Pinger,
}

impl Traffic {
    fn without_agent(bed: &Bed<'_>, signal: Signal) -> Result<Traffic> {
        bed.established()?;
        let (pod, attached) = bed.attached("witness", "rack1")?;
        let outside = bed.host("outside")?.ns.clone();
        let mut flows = Vec::new();
        for address in &attached.addresses {
            let beyond: IpAddr = if address.is_ipv4() { "192.0.2.10" } else { "2001:db8:9::10" }.parse()?;
            flows.push(Flow { name: format!("outside to {address}"), from: outside.clone(), to: *address });
            flows.push(Flow { name: format!("{address} to outside"), from: pod.ns.clone(), to: beyond });
        }
        let mut pings = Pinger::start(flows, INTERVAL)?;
        pings.settle(PATIENCE)?;
        client::end_agent(bed.node()?, signal)?;
        Ok(Traffic { _pod: pod, pings })
    }

    /// Waits for traffic in the current state.
    fn goes_on(&self) -> Result<()> {
        self.pings.wait_sent(100, PATIENCE)
    }

    fn lost_nothing(self) -> Result<usize> {
        lost_nothing(self.pings)
    }
}

/// Waits until `trunkline status` shows this, and returns the line.
fn says(bed: &Bed<'_>, words: &str) -> Result<String> {
    wait_for(&format!("`trunkline status` to contain {words:?}"), PATIENCE, || {
        let text = bed.node()?.run("trunkline", ["status"])?;
        let line = text.lines().find(|line| line.contains(words)).map(|line| line.trim().to_owned());
        Ok(line.map_or(Seen::NotYet(text), Seen::Yes))
    })
}

fn wait_status(bed: &Bed<'_>, what: &str, holds: impl Fn(&AgentStatus) -> bool) -> Result<()> {
    wait_for(what, PATIENCE, || {
        let status = client::status(bed.node()?)?;
        Ok(Seen::when(holds(&status), || format!("{status:?}")))
    })
}

/// Waits until both families have converged: the agent has removed the stale state of the last run.
fn converged(bed: &Bed<'_>) -> Result<()> {
    bed.established()?;
    wait_status(bed, "both families to have converged", |status| {
        status.bgp.as_ref().is_some_and(|bgp| bgp.converged.len() == 2) && status.kernel.routes_stale == 0
    })
}

fn bgp_port(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        let traffic = Traffic::without_agent(bed, Signal::TERM)?;
        // Without v6only, the socket uses the port in both families.
        let taken = node.ns.within(|| Ok(TcpListener::bind("[::]:179")?))?;
        client::start_agent(node)?;
        says(bed, "0.0.0.0:179 NOT ACCEPTING connections for")?;
        // The agent finds the process that uses the port a moment later.
        let line = says(bed, &format!("(process {})", std::process::id()))?;
        ensure!(line.contains("Address already in use"), "the reason is not in: {line}");
        converged(bed)?;
        let metrics = client::metrics(node)?;
        ensure!(metrics.contains("trunkline_bgp_listening{address=\"[::]:179\"} 0"), "{metrics}");
        traffic.goes_on()?;

        drop(taken);
        wait_status(bed, "the port to be bound", |status| {
            status
                .bgp
                .as_ref()
                .is_some_and(|bgp| bgp.listening.iter().all(|listener| listener.fault.is_none()))
        })?;
        let status = node.run("trunkline", ["status"])?;
        ensure!(!status.contains("NOT ACCEPTING"), "{status}");
        let peers = client::peers(node)?;
        ensure!(peers.iter().all(|peer| peer.flaps == 0), "{peers:?}");
        let pings = traffic.lost_nothing()?;
        passed(format!("{line}; {pings} pings, none lost"))
    })
}

fn manifests(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let traffic = Traffic::without_agent(bed, Signal::KILL)?;
        let manifest = bed.manifest("subnets.yaml");
        let good = manifest.read()?;
        manifest.edit("10.201.0.0/16", "10.201.0.0/33")?;
        client::start_agent(bed.node()?)?;
        says(bed, "REFUSED, nothing was applied yet")?;
        traffic.goes_on()?;
        manifest.write(&good)?;
        converged(bed)?;
        let pings = traffic.lost_nothing()?;
        passed(format!("{pings} pings, none lost"))
    })
}

fn store(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        let traffic = Traffic::without_agent(bed, Signal::KILL)?;
        node.sh("mount -o remount,ro,bind /var/lib/trunkline")?;
        client::start_agent(node)?;
        let line = says(bed, "UNUSABLE: ")?;
        converged(bed)?;
        traffic.goes_on()?;
        node.sh("mount -o remount,rw,bind /var/lib/trunkline")?;
        client::end_agent(node, Signal::TERM)?;
        client::start_agent(node)?;
        converged(bed)?;
        let fault = client::status(node)?.store.fault;
        ensure!(fault.is_none(), "{fault:?}");
        let pods = bed.pods()?;
        ensure!(pods.len() == 1 && pods.iter().all(|pod| pod.state == PodState::Attached), "{pods:?}");
        let pings = traffic.lost_nothing()?;
        passed(format!("{line}; {pings} pings, none lost"))
    })
}

/// Starts the agent, which must end with these words in its log.
fn does_not_start(bed: &Bed<'_>, words: &str) -> Result<()> {
    let node = bed.node()?;
    let log = node.logs().join("agent.log");
    let before = length(&log)?;
    let mut agent = daemons::start_agent(node, &[])?;
    let status = agent.wait().context("the agent")?;
    ensure!(!status.success(), "the agent ended without an error");
    let said = String::from_utf8_lossy(&std::fs::read(&log)?.split_off(before)).into_owned();
    ensure!(said.contains(words), "{words:?} is not in the log: {said}");
    Ok(())
}

fn length(file: &Path) -> Result<usize> {
    Ok(std::fs::read(file).with_context(|| file.display().to_string())?.len())
}

fn no_start(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        let traffic = Traffic::without_agent(bed, Signal::KILL)?;
        // The node has this file as a separate mount.
        let config = Manifest::at(bed.fabric.file("one-rack/node1/agent.yaml"));
        let good = config.read()?;
        config.overwrite(&format!("{good}colour: blue\n"))?;
        does_not_start(bed, "colour")?;
        config.overwrite(&good.replace("routerID: 10.0.1.11", "routerID: 0.0.0.0"))?;
        does_not_start(bed, "routerID")?;
        config.overwrite(&good)?;
        let socket = "/run/trunkline/agent.sock";
        node.sh(&format!("rm -f {socket}; mkdir -p {socket}/somebody"))?;
        does_not_start(bed, "agent.sock")?;
        traffic.goes_on()?;
        node.sh(&format!("rm -r {socket}"))?;
        client::start_agent(node)?;
        converged(bed)?;
        let pings = traffic.lost_nothing()?;
        passed(format!("three ends; {pings} pings, none lost"))
    })
}

fn guard(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        let traffic = Traffic::without_agent(bed, Signal::KILL)?;
        // From now on `nft` fails. The agent needs `nft` to load its rules.
        node.sh("mount --bind /bin/false \"$(command -v nft)\"")?;
        let taken = node.ns.within(|| Ok(TcpListener::bind("127.0.0.1:9473")?))?;
        client::start_agent(node)?;
        let line = says(bed, "NOT IN FORCE: ")?;
        says(bed, "/metrics, /healthz and /readyz are NOT SERVED: 127.0.0.1:9473")?;
        converged(bed)?;
        traffic.goes_on()?;
        node.sh("umount \"$(command -v nft)\"")?;
        drop(taken);
        // The next ADD loads the guard.
        bed.attached("after", "rack1")?;
        wait_status(bed, "guard and /metrics to be there", |status| {
            status.guard.in_force && status.http_fault.is_none()
        })?;
        let pings = traffic.lost_nothing()?;
        passed(format!("{line}; {pings} pings, none lost"))
    })
}
