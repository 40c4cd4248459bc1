//! Restarts and kills of agents, controllers and kube-proxies while work runs on a cluster.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::{RealCluster, proxy, trunkline};
use crate::host::Host;
use crate::netns::has_ended;
use crate::shell::{Seen, wait_for};

/// Time limit for the end of a process after a signal.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disturbance of a node, or of all nodes. They alternate: a kubelet delays a container that was
/// killed several times, and a restart of a workload ends that delay.
const TURNS: [fn(&RealCluster, &Host) -> Result<()>; 6] = [
    |_, node| kill(node, "trunkline", Signal::KILL).map(drop),
    |_, node| kill(node, "trunkline-controller", Signal::KILL).map(drop),
    |cluster, node| restart_proxy(cluster, node, Signal::KILL),
    |cluster, _| restart(cluster, "daemonset/trunkline-agent"),
    |cluster, node| restart_proxy(cluster, node, Signal::TERM),
    |cluster, _| restart(cluster, "deployment/trunkline-controller"),
];

/// Runs `work`, and disturbs the cluster at this interval meanwhile. Returns the number of
/// disturbances.
pub(crate) fn during<T>(
    cluster: &RealCluster,
    interval: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, usize)> {
    let nodes = cluster.nodes()?;
    std::thread::scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let disturber = scope.spawn(move || -> Result<usize> {
            for turn in 0.. {
                match stopped.recv_timeout(interval) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(turn),
                }
                // The node changes with each round of turns.
                let node = nodes[(turn / TURNS.len() + turn) % nodes.len()];
                TURNS[turn % TURNS.len()](cluster, node).with_context(|| format!("disturbance {turn}"))?;
            }
            Ok(0)
        });
        let done = work();
        drop(stop);
        let turns = disturber.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((done?, turns?))
    })
}

/// Ends the processes of a program on a node's network; returns whether there was one.
fn kill(node: &Host, program: &str, signal: Signal) -> Result<bool> {
    let is_program = |pid: &Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let first = line.split(|octet| *octet == 0).next().unwrap_or_default();
        first.rsplit(|octet| *octet == b'/').next() == Some(program.as_bytes())
    };
    let found: Vec<Pid> = node.ns.pids().into_iter().filter(is_program).collect();
    for pid in &found {
        // The process may have ended before the signal.
        let _gone = kill_process(*pid, signal);
        wait_for(&format!("{program} on {} to end", node.name), PATIENCE, || {
            Ok(Seen::when(has_ended(pid.as_raw_nonzero().get()), || "running".to_owned()))
        })?;
    }
    Ok(!found.is_empty())
}

/// Ends kube-proxy, and starts it again as a DaemonSet would.
fn restart_proxy(cluster: &RealCluster, node: &Host, signal: Signal) -> Result<()> {
    kill(node, "kube-proxy", signal)?;
    proxy::start(node, &cluster.folder, &cluster.programs.proxy, cluster.settings.proxy)
}

fn restart(cluster: &RealCluster, workload: &str) -> Result<()> {
    cluster.kubectl(&["-n", trunkline::NAMESPACE, "rollout", "restart", workload]).map(drop)
}
