//! Everybody to everybody: echo requests that are answered, the addresses that they arrive with, and the largest packets that pass.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};

use super::bed::{Bed, PATIENCE};
use crate::capture::Senders;
use crate::cni::{self, Attached, Sandbox};
use crate::host::Host;
use crate::netns::Namespace;
use crate::pinger::{Flow, some, unreachable};
use crate::progress::{say, table};
use crate::shell::{cmd, run};

/// Somebody who pings and is pinged.
pub(super) struct Party {
    pub(super) name: String,
    pub(super) ns: Namespace,
    pub(super) addresses: Vec<IpAddr>,
    /// What a pod sends has its own address; a host has several to choose from.
    pod: bool,
}

impl Party {
    pub(super) fn pod(sandbox: &Sandbox, attached: &Attached) -> Self {
        let addresses = attached.addresses.clone();
        Self { name: sandbox.name.clone(), ns: sandbox.ns.clone(), addresses, pod: true }
    }

    /// A new pod on a node, attached to a network, with addresses of its choice if any are named (in the form of CNI_ARGS' `IP`).
    pub(super) fn attach(
        bed: &Bed<'_>,
        node: &str,
        name: &str,
        network: &str,
        addresses: Option<&str>,
    ) -> Result<Self> {
        let mut sandbox = Sandbox::create(bed.fabric, node, name)?;
        sandbox.args = addresses.map(|addresses| format!("IP={addresses}")).unwrap_or_default();
        let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &sandbox)?;
        Ok(Self::pod(&sandbox, &attached))
    }

    pub(super) fn host(host: &Host, addresses: &[&str]) -> Result<Self> {
        let addresses = addresses.iter().map(|a| Ok(a.parse()?)).collect::<Result<_>>()?;
        Ok(Self { name: host.name.clone(), ns: host.ns.clone(), addresses, pod: false })
    }

    pub(super) fn address(&self, v4: bool) -> Result<IpAddr> {
        let found = self.addresses.iter().find(|address| address.is_ipv4() == v4);
        found.copied().with_context(|| format!("{} has only {:?}", self.name, self.addresses))
    }

    pub(super) fn flow(&self, to: IpAddr) -> Flow {
        Flow { name: format!("{} to {to}", self.name), from: self.ns.clone(), to }
    }

    /// Of a pod's first link, in octets.
    pub(super) fn mtu(&self) -> Result<u64> {
        let link: serde_json::Value = serde_json::from_str(&self.ns.ip(["-j", "link", "show", "eth0"])?)?;
        link[0]["mtu"].as_u64().context("a link has an MTU")
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

/// A table with a row and a column for each party; columns have the rows' numbers.
fn show(parties: &[Party], cell: impl Fn(&Party, &Party) -> String) {
    let numbers = (1..=parties.len()).map(|number| number.to_string());
    let mut rows = vec![["from \\ to".to_owned()].into_iter().chain(numbers).collect::<Vec<_>>()];
    rows.extend(parties.iter().enumerate().map(|(row, from)| {
        let cells =
            parties.iter().map(|to| if from.name == to.name { "-".to_owned() } else { cell(from, to) });
        [format!("{} {}", row + 1, from.name)].into_iter().chain(cells).collect()
    }));
    say(&table(&rows));
}

/// All to all; what arrives at a pod from a pod has that pod's own address, as a capture in its namespace shows. Prints the matrix,
/// whatever it is, and returns the number of pairs of addresses.
pub(super) fn matrix(parties: &[Party]) -> Result<usize> {
    let captures: Vec<Option<Senders>> = parties
        .iter()
        .map(|p| p.pod.then(|| Senders::of_requests(&p.ns)).transpose())
        .collect::<Result<_>>()?;
    let (mut count, mut without) = (0, BTreeSet::new());
    // One after the other: routers share the processor with all of this, and theirs would be the sessions that end.
    for from in parties {
        let others = parties.iter().filter(|to| to.name != from.name);
        let flows: Vec<Flow> =
            others.flat_map(|to| &to.addresses).map(|address| from.flow(*address)).collect();
        count += flows.len();
        without.extend(unreachable(flows, PATIENCE)?);
    }
    show(parties, |from, to| {
        let sign = |a: &IpAddr| match (without.contains(&from.flow(*a).name), a.is_ipv4()) {
            (true, _) => '-',
            (false, true) => '4',
            (false, false) => '6',
        };
        to.addresses.iter().map(sign).collect()
    });
    if !without.is_empty() {
        bail!("no answer: {}", some(&without.into_iter().collect::<Vec<_>>()));
    }
    let hosts = parties.iter().any(|party| !party.pod);
    for (to, capture) in parties.iter().zip(&captures).filter_map(|(p, c)| Some((p, c.as_ref()?))) {
        for address in &to.addresses {
            let others = parties.iter().filter(|p| p.pod && p.name != to.name);
            let addresses = others.flat_map(|other| &other.addresses);
            let wanted: BTreeSet<IpAddr> =
                addresses.filter(|a| a.is_ipv4() == address.is_ipv4()).copied().collect();
            capture.wait(*address, &wanted, PATIENCE).with_context(|| to.name.clone())?;
            let seen = capture.to(*address);
            let strangers: Vec<&IpAddr> = seen.difference(&wanted).collect();
            ensure!(hosts || strangers.is_empty(), "{} was sent to by {strangers:?}", to.name);
        }
    }
    Ok(count)
}

/// All pods to all, with packets that must not be cut: the largest that both ends' links take passes, and one octet more is
/// refused with that number. Prints the sizes, whatever they are, and returns how many pairs of addresses there are.
pub(super) fn full_size(pods: &[Party]) -> Result<usize> {
    let mtus = pods.iter().map(Party::mtu).collect::<Result<Vec<_>>>()?;
    let size = |from: usize, to: usize| mtus[from].min(mtus[to]);
    let (mut faults, mut count) = (BTreeSet::new(), 0);
    for (row, from) in pods.iter().enumerate() {
        let (mut script, mut asked) = (String::new(), Vec::new());
        for (column, to) in pods.iter().enumerate().filter(|(column, _)| *column != row) {
            for address in &to.addresses {
                let size = size(row, column);
                asked.push((to, *address, size));
                script.push_str(&no_larger_than(*address, size));
                script.push_str(&no_larger_than(*address, size + 1));
            }
        }
        count += asked.len();
        script.push_str("wait\n");
        let said = run(cmd("ip", ["netns", "exec", from.ns.name(), "sh", "-c"]).arg(&script))?;
        let answer = |to: IpAddr, size: u64| {
            let begin = format!("{to} {size}: ");
            said.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or("nothing was said")
        };
        for (to, address, size) in asked {
            let (fits, more) = (answer(address, size), answer(address, size + 1));
            let refused =
                !more.contains(RECEIVED) && more.contains("mtu") && more.contains(&size.to_string());
            for (good, size, said) in [(fits.contains(RECEIVED), size, fits), (refused, size + 1, more)] {
                if !good {
                    faults.insert((from.name.clone(), to.name.clone(), format!("{address}, {size}: {said}")));
                }
            }
        }
    }
    show(pods, |from, to| {
        let is_it = |party: &Party| pods.iter().position(|pod| pod.name == party.name).unwrap_or_default();
        let faulty = faults.iter().any(|(a, b, _)| (a, b) == (&from.name, &to.name));
        if faulty { "FAULT".to_owned() } else { size(is_it(from), is_it(to)).to_string() }
    });
    if let Some(first) = faults.first() {
        bail!("{} faults, the first: {first:?}", faults.len());
    }
    Ok(count)
}

/// Begins the line that `ping` prints of an answer's round trip.
const RECEIVED: &str = "rtt ";

/// One packet that must not be cut, of this size with its IP header; what `ping` says of it is one line, which begins with address and
/// size. In the background, as `ping` waits for a second after a packet that could not be sent.
fn no_larger_than(to: IpAddr, size: u64) -> String {
    let payload = size - if to.is_ipv4() { 28 } else { 48 };
    let ping = format!("ping -n -c 1 -W 5 -M do -s {payload} {to} 2>&1 | tr '\\n' ' '");
    format!("printf '%s\\n' \"{to} {size}: $({ping})\" &\n")
}
