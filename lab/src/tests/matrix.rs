//! Pings from every party to every other party. The checks are: answers, source addresses, and the
//! largest packets that pass.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};

use super::bed::{Bed, PATIENCE};
use crate::capture::Senders;
use crate::cni::{self, Attached, Sandbox};
use crate::host::Host;
use crate::netns::Namespace;
use crate::pinger::{Flow, some, unreachable};
use crate::probe::{Fate, uncut};
use crate::progress::{say, table};

/// A party that sends and receives pings.
pub(super) struct Party {
    pub(super) name: String,
    pub(super) ns: Namespace,
    pub(super) addresses: Vec<IpAddr>,
    /// Whether the party is a pod. A pod sends from its own address, while a host can choose among
    /// several addresses.
    pod: bool,
}

impl Party {
    pub(super) fn pod(sandbox: &Sandbox, attached: &Attached) -> Self {
        Self::with(sandbox, &attached.addresses)
    }

    /// A pod with these addresses.
    pub(super) fn with(sandbox: &Sandbox, addresses: &[IpAddr]) -> Self {
        Self { name: sandbox.name.clone(), ns: sandbox.ns.clone(), addresses: addresses.to_vec(), pod: true }
    }

    /// A new pod on a node, attached to a network, with requested addresses if any are named (in
    /// the form of CNI_ARGS' `IP`).
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

    /// MTU of a pod's first link, in octets.
    pub(super) fn mtu(&self) -> Result<u32> {
        let link: serde_json::Value = serde_json::from_str(&self.ns.ip(["-j", "link", "show", "eth0"])?)?;
        let mtu = link[0]["mtu"].as_u64().context("a link has an MTU")?;
        Ok(u32::try_from(mtu)?)
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

/// Pings from each to all others. A capture in each pod's namespace checks that packets from a pod
/// have that pod's own address. Prints the matrix in every case, and returns the number of pairs of
/// addresses.
pub(super) fn matrix(parties: &[Party]) -> Result<usize> {
    let captures: Vec<Option<Senders>> = parties
        .iter()
        .map(|p| p.pod.then(|| Senders::of_requests(&p.ns)).transpose())
        .collect::<Result<_>>()?;
    let (mut count, mut without) = (0, BTreeSet::new());
    // The parties ping one after the other. Otherwise the routers' sessions could end, because the
    // routers share the processor.
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
            ensure!(hosts || strangers.is_empty(), "packets to {} came from {strangers:?}", to.name);
        }
    }
    Ok(count)
}

/// From each pod to all others, with packets that must not be fragmented. The largest packet that
/// the links of both ends allow must pass. A packet with one octet more must be refused with that
/// MTU. Prints the sizes in every case, and returns the number of pairs of addresses.
pub(super) fn full_size(pods: &[Party]) -> Result<usize> {
    let mtus = pods.iter().map(Party::mtu).collect::<Result<Vec<_>>>()?;
    let size = &|from: usize, to: usize| mtus[from].min(mtus[to]);
    let (mut faults, mut count) = (BTreeSet::new(), 0);
    for (row, from) in pods.iter().enumerate() {
        let others = pods.iter().enumerate().filter(|(column, _)| *column != row);
        let asked: Vec<(&Party, IpAddr, u32)> = others
            .flat_map(|(column, to)| to.addresses.iter().map(move |a| (to, *a, size(row, column))))
            .collect();
        count += asked.len();
        for more in [0, 1] {
            let packets: Vec<_> = asked.iter().map(|(_, address, size)| (*address, size + more)).collect();
            let fates = uncut(&from.ns, &packets, PATIENCE).with_context(|| from.name.clone())?;
            for ((to, address, size), fate) in asked.iter().zip(fates) {
                let wanted = if more == 0 { Fate::Answered } else { Fate::TooLarge(*size) };
                if fate != wanted {
                    let said = format!("{} octets to {address}: {fate:?}", size + more);
                    faults.insert((from.name.clone(), to.name.clone(), said));
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
