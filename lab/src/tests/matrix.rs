//! Everybody to everybody: echo requests that are answered, and the addresses they arrive with.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Result, bail};

use super::bed::PATIENCE;
use crate::capture::Capture;
use crate::cni::{Attached, Sandbox};
use crate::host::Host;
use crate::netns::Namespace;
use crate::pinger::{Flow, some, unreachable};
use crate::progress::{say, table};
use crate::shell::{Seen, wait_for};

/// Somebody who pings and is pinged.
pub(super) struct Party {
    name: String,
    ns: Namespace,
    addresses: Vec<IpAddr>,
    /// What a pod sends has its own address; a host has several to choose from.
    pod: bool,
}

impl Party {
    pub(super) fn pod(sandbox: &Sandbox, attached: &Attached) -> Self {
        let addresses = attached.addresses.clone();
        Self { name: sandbox.name.clone(), ns: sandbox.ns.clone(), addresses, pod: true }
    }

    pub(super) fn host(host: &Host, addresses: &[&str]) -> Result<Self> {
        let addresses = addresses.iter().map(|a| Ok(a.parse()?)).collect::<Result<_>>()?;
        Ok(Self { name: host.name.clone(), ns: host.ns.clone(), addresses, pod: false })
    }
}

/// Echo requests from a host of the topology.
pub(super) fn flows<A: AsRef<str>>(host: &Host, to: &[A]) -> Result<Vec<Flow>> {
    let flow = |to: &A| -> Result<Flow> {
        let to: IpAddr = to.as_ref().parse()?;
        Ok(Flow { name: format!("{} to {to}", host.name), from: host.ns.clone(), to })
    };
    to.iter().map(flow).collect()
}

pub(super) fn reachable(flows: Vec<Flow>) -> Result<()> {
    let without = unreachable(flows, PATIENCE)?;
    if !without.is_empty() {
        bail!("no answer: {}", some(&without));
    }
    Ok(())
}

/// All to all; what arrives at a pod from a pod has that pod's own address, as a capture on its interface shows. Prints the matrix,
/// whatever it is, and returns the number of pairs of addresses.
pub(super) fn matrix(parties: &[Party]) -> Result<usize> {
    let captures: Vec<Option<Capture>> = parties
        .iter()
        .map(|p| p.pod.then(|| Capture::start(&p.ns, "eth0", "icmp[0] = 8 or ip6[40] = 128")).transpose())
        .collect::<Result<_>>()?;
    let name = |from: &Party, to: &Party, address: &IpAddr| format!("{} to {} {address}", from.name, to.name);
    let mut all = Vec::new();
    for from in parties {
        for to in parties.iter().filter(|to| to.name != from.name) {
            let flow = |a: &IpAddr| Flow { name: name(from, to, a), from: from.ns.clone(), to: *a };
            all.extend(to.addresses.iter().map(flow));
        }
    }
    let count = all.len();
    let without: BTreeSet<String> = unreachable(all, PATIENCE)?.into_iter().collect();
    let cell = |from: &Party, to: &Party| -> String {
        if from.name == to.name {
            return String::new();
        }
        let sign = |a: &IpAddr| match (without.contains(&name(from, to, a)), a.is_ipv4()) {
            (true, _) => '-',
            (false, true) => '4',
            (false, false) => '6',
        };
        to.addresses.iter().map(sign).collect()
    };
    let mut rows =
        vec![[vec!["from \\ to".to_owned()], parties.iter().map(|p| p.name.clone()).collect()].concat()];
    rows.extend(
        parties.iter().map(|from| {
            [vec![from.name.clone()], parties.iter().map(|to| cell(from, to)).collect()].concat()
        }),
    );
    say(&table(&rows));
    if !without.is_empty() {
        bail!("no answer: {}", some(&without.into_iter().collect::<Vec<_>>()));
    }
    for (to, capture) in parties.iter().zip(&captures).filter_map(|(p, c)| Some((p, c.as_ref()?))) {
        let from = parties.iter().filter(|p| p.pod && p.name != to.name);
        let wanted: Vec<String> = from
            .flat_map(|from| from.addresses.iter().zip(&to.addresses))
            .map(|(source, destination)| format!("{source} > {destination}"))
            .collect();
        // tcpdump may be behind.
        wait_for(&format!("{} to have seen everybody's own address", to.name), PATIENCE, || {
            let seen = capture.seen();
            let pairs: BTreeSet<&str> = seen.iter().filter_map(|line| line.split(": ").nth(1)).collect();
            let missing: Vec<&String> = wanted.iter().filter(|pair| !pairs.contains(pair.as_str())).collect();
            Ok(Seen::when(missing.is_empty(), || format!("not {missing:?}, but {pairs:?}")))
        })?;
    }
    Ok(count)
}
