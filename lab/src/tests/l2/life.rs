//! Pods on VLANs during changes of their environment.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{RACKS, Rack, ready};
use crate::client;
use crate::cni::{self, Attached, Sandbox};
use crate::host::Host;
use crate::pinger::{Flow, Pinger};
use crate::tests::bed::{Bed, PATIENCE, lab, lost_nothing};
use crate::tests::matrix::{flows, reachable};
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[
    Test {
        name: "l2/restart",
        about: "kills and restarts of the agents lose no packet from outside, from a neighbour or between pods, and change nothing",
        run: restart,
    },
    Test {
        name: "l2/fifty",
        about: "fifty pods on a node: all are reachable, and all are removed without leftovers",
        run: fifty,
    },
];

/// Attaches one pod on each node of each rack.
fn one_each(bed: &Bed<'_>) -> Result<Vec<(Sandbox, Attached)>> {
    let nodes = RACKS.iter().flat_map(|rack| rack.nodes.map(|node| (rack, node)));
    nodes.map(|(rack, node)| rack.attach(bed, node, "p")).collect()
}

fn addresses(pods: &[(Sandbox, Attached)]) -> Vec<String> {
    pods.iter().flat_map(|(_, attached)| attached.addresses.iter().map(ToString::to_string)).collect()
}

fn restart(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let pods = one_each(bed)?;
        let to = addresses(&pods);
        let mut all = flows(bed.host("outside")?, &to)?;
        all.extend(flows(bed.host("host1")?, &to[..2])?);
        // The flows go from a pod of one attachment to all pods of both attachments.
        let from = &pods[3].0;
        all.extend(pods[..3].iter().flat_map(|(pod, attached)| {
            let flow = |to: &std::net::IpAddr| Flow {
                name: format!("{} to {} ({to})", from.name, pod.name),
                from: from.ns.clone(),
                to: *to,
            };
            attached.addresses.iter().map(flow).collect::<Vec<_>>()
        }));
        // One slow processor handles all pods, so the pings are less frequent.
        let mut pinger = Pinger::start(all, Duration::from_millis(50))?;
        pinger.settle(PATIENCE)?;
        let state =
            |host: &Host| host.sh("ip rule; ip -6 rule; ip route show table all; ip -o link | grep eth1");
        for signal in [Signal::KILL, Signal::TERM] {
            for (rack, node) in [(&RACKS[0], "node1"), (&RACKS[1], "node3"), (&RACKS[1], "node4")] {
                let host = bed.host(node)?;
                let before = state(host)?;
                client::end_agent(host, signal)?;
                client::start_agent(host)?;
                ready(bed, node)?;
                let (pod, _) = rack.attach(bed, node, "after")?;
                cni::del(bed.fabric, &rack.conf(), &pod)?;
                pod.ns.delete()?;
                let after = state(host)?;
                ensure!(before == after, "{node}: {before}\nbecame\n{after}");
                pinger.wait_sent(5, PATIENCE)?;
            }
        }
        let sent = lost_nothing(pinger)?;
        passed(format!("{sent} requests, none lost"))
    })
}

const MANY: usize = 50;

fn fifty(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        for rack in &RACKS {
            fifty_on(bed, rack).with_context(|| rack.attachment)?;
        }
        passed(format!("{MANY} of each attachment"))
    })
}

fn fifty_on(bed: &Bed<'_>, rack: &Rack) -> Result<()> {
    let node = rack.nodes[0];
    let pods: Vec<Sandbox> =
        (0..MANY).map(|i| Sandbox::create(bed.fabric, node, &format!("p{i}"))).collect::<Result<_>>()?;
    let waiting = Mutex::new(pods.iter().collect::<VecDeque<_>>());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || -> Result<Vec<String>> {
        let mut addresses = Vec::new();
        while let Some(pod) = next() {
            let attached = cni::add(bed.fabric, &rack.conf(), pod)?;
            addresses.extend(attached.addresses.iter().map(ToString::to_string));
        }
        Ok(addresses)
    };
    let to: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(worker)).collect();
        let all = workers.into_iter().map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        Ok::<_, anyhow::Error>(all.collect::<Result<Vec<_>>>()?.concat())
    })?;
    ensure!(to.len() == 2 * MANY, "{} addresses", to.len());
    reachable(flows(bed.host("outside")?, &to)?)?;
    reachable(flows(bed.host(node)?, &to)?)?;
    for pod in &pods {
        cni::del(bed.fabric, &rack.conf(), pod)?;
        pod.ns.delete()?;
    }
    bed.nothing_left(node)
}
