//! The guard: drops packets that pods, and hosts outside the cluster, may not send to this node or
//! through it.
//!
//! ```text
//!  in by a pod's device (group 116) ──► raw prerouting: source is the pod's, no router's or DHCP server's messages ──► routing
//!                                                  └─► input: no BGP, no BFD, no VXLAN to the node
//!                                                  └─► input after IPVS: the same, and no translated VXLAN
//!                                       arp input: the sender is the pod's
//!  in by any device, VXLAN of the overlay's VNI ──► input: from a VTEP of the overlay
//!                                               ──► forward: dropped; output: from this node's addresses
//!  in by a pod's device, or translated ──► forward: no BGP, no BFD to the other nodes
//!                                      ──► forward: no ICMP errors about connections of others
//!  sent by IPVS                        ──► output: no BGP, no BFD to the other nodes
//!  translated                          ──► postrouting: no BGP, no BFD to this node's peers
//!  BGP, BFD of peers, VXLAN of VTEPs   ──► nat prerouting, output: no other program translates them
//! ```
//!
//! **Forwarded packets.** A translation can give a packet the address of this node as its source,
//! and other nodes accept VXLAN, BGP and BFD from this node. The chain at forward follows the
//! translation of destinations and precedes that of sources. It sees translated packets by every
//! link, because a pod of another node reaches a NodePort of this node by an uplink. IPVS sends
//! translated packets through the output hook. Connection tracking has reassembled the fragments of
//! every packet that is translated.
//!
//! **Own packets.** Who may create Services or pods can name addresses and ports that are translated:
//! `externalIPs` with the address of a router or a node, `hostPort: 8472`. kube-proxy translates the
//! packets of the node itself, too. The first NAT chain that sets a destination decides, so the guard sets
//! the destination that the packet has.
//!
//! **ICMP errors.** A node accepts ICMP errors about its pods' connections from the fabric, because
//! routers of the path send them. So a pod's own node drops the errors about connections of others.
//!
//! A pod's device is in its group before it is up, so the rules see every packet of a pod. Sets
//! contain the addresses of each pod with its device. If a source is in no set, the kernel looks it
//! up in the routing table. The route to the source must use the same device, and only table 39999
//! has such routes. The look-up in a set takes a third of the time. Both families have the same
//! rules. There are two tables because nf_tables separates ARP from IP.
//!
//! Prefixes that a pod may use besides its addresses are in the sets `sources4` and `sources6`, and
//! for ARP in `sources`.
//!
//! A pod does not need its IPv6 link-local address: the host interface has none, and both ends are
//! permanent neighbour entries. Packets that the pod's kernel sends from this address are dropped
//! without being counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use self::rules::{render_arp, render_inet};
use super::elements::{Element, SetName};
use super::{NftError, Table};
use crate::netlink::conntrack;
use crate::netlink::netfilter::Connection;
use crate::plan::{GuardPlan, PodPlan};

mod rules;

pub(super) const NAME: &str = "trunkline-guard";

/// The counters' names: one for each reason to drop a packet.
pub const REASONS: [&str; 10] = [
    "source",
    "router_advertisement",
    "icmp_redirect",
    "icmp_error",
    "dhcp_server",
    "bgp",
    "bfd",
    "vxlan_from_pod",
    "vxlan_forwarded",
    "vtep",
];
/// The counter of the ARP table.
pub const ARP_REASON: &str = "arp_sender";

const fn set(family: i32, name: &'static str) -> SetName {
    SetName { family, table: NAME, name }
}

const OWN_V4: SetName = set(libc::NFPROTO_INET, "own4");
const OWN_V6: SetName = set(libc::NFPROTO_INET, "own6");
const SOURCES_V4: SetName = set(libc::NFPROTO_INET, "sources4");
const SOURCES_V6: SetName = set(libc::NFPROTO_INET, "sources6");
const VTEPS_V4: SetName = set(libc::NFPROTO_INET, "vteps4");
const VTEPS_V6: SetName = set(libc::NFPROTO_INET, "vteps6");
const NODES_V4: SetName = set(libc::NFPROTO_INET, "nodes4");
const NODES_V6: SetName = set(libc::NFPROTO_INET, "nodes6");
const PEERS_V4: SetName = set(libc::NFPROTO_INET, "peers4");
const PEERS_V6: SetName = set(libc::NFPROTO_INET, "peers6");
const ARP_OWN: SetName = set(libc::NFPROTO_ARP, "own");
const ARP_SOURCES: SetName = set(libc::NFPROTO_ARP, "sources");
const SETS: [SetName; 12] = [
    OWN_V4,
    OWN_V6,
    SOURCES_V4,
    SOURCES_V6,
    VTEPS_V4,
    VTEPS_V6,
    NODES_V4,
    NODES_V6,
    PEERS_V4,
    PEERS_V6,
    ARP_OWN,
    ARP_SOURCES,
];

type Sets = BTreeMap<SetName, BTreeSet<Element>>;

/// The two tables of the guard, and the content of their sets.
pub(crate) struct Guard {
    inet: Table,
    arp: Table,
    connection: Option<Connection>,
    /// The known content of the sets; none while the tables are not correct.
    installed: Option<Sets>,
    /// The tables of the last run as a script, until the first plan.
    last_run: Option<String>,
}

impl Guard {
    pub(crate) const fn new() -> Guard {
        Guard {
            inet: Table::new("inet", NAME, false),
            arp: Table::new("arp", NAME, false),
            connection: None,
            installed: None,
            last_run: None,
        }
    }

    /// Reads the tables of the last run. They are the guard until the first plan, which needs the
    /// manifests. Returns whether there are any.
    pub(crate) fn remember(&mut self) -> Result<bool, NftError> {
        let tables = [Table::new("inet", NAME, true), Table::new("arp", NAME, true)];
        let mut script = String::new();
        for table in tables {
            if let Some(text) = table.list()? {
                script += &table.replacement(&text);
            }
        }
        self.last_run = Some(script).filter(|script| !script.is_empty());
        Ok(self.last_run.is_some())
    }

    /// Loads the tables of the last run again if one of them is gone. Returns whether it did.
    pub(crate) fn restore(&mut self) -> Result<bool, NftError> {
        let Some(script) = &self.last_run else { return Ok(false) };
        if self.inet.list()?.is_some() && self.arp.list()?.is_some() {
            return Ok(false);
        }
        super::run(script)?;
        Ok(true)
    }

    /// Whether the tables of the last run are the guard.
    pub(crate) fn has_last_run(&self) -> bool {
        self.last_run.is_some()
    }

    /// The netlink port ID in notifications about changes of the sets.
    pub(crate) fn port(&mut self) -> std::io::Result<u32> {
        connection(&mut self.connection).map(|connection| connection.port())
    }

    /// Whether the guard is installed for all pods that it received.
    pub(crate) fn is_in_force(&self) -> bool {
        self.installed.is_some()
    }

    /// Brings tables and sets to the plan; the rules are in force without interruption. Returns
    /// whether something changed. `complete`: `pods` has all pods. Otherwise elements of the last
    /// run stay.
    pub(crate) fn apply<'a>(
        &mut self,
        plan: &GuardPlan,
        pods: impl Iterator<Item = &'a PodPlan>,
        complete: bool,
    ) -> Result<bool, NftError> {
        let before = self.installed.take();
        self.last_run = None;
        if !plan.enabled {
            return Ok(self.inet.delete()? | self.arp.delete()?);
        }
        let mut wanted = wanted(plan, pods);
        if !complete {
            // If the table does not exist, there is nothing to retain.
            for (set, elements) in self.list().unwrap_or_default() {
                wanted.entry(set).or_default().extend(elements);
            }
        }
        let (inet, arp) = (render_inet(plan), render_arp());
        let mut script = String::new();
        for (table, text) in [(&mut self.inet, &inet), (&mut self.arp, &arp)] {
            if !table.is_loaded(text)? {
                script += &table.replacement(text);
            }
        }
        let replaced = !script.is_empty();
        if replaced {
            // Replaces both tables, and adds their elements in the same transaction.
            script = self.inet.replacement(&inet) + &self.arp.replacement(&arp);
            write_elements(&wanted, &mut script);
            super::run(&script)?;
            self.inet.record_listing(&inet)?;
            self.arp.record_listing(&arp)?;
            self.installed = Some(wanted);
            if plan.keeps_own {
                forget_translated(plan);
            }
            return Ok(true);
        }
        // The set can have elements that this run does not know.
        let there = match before {
            Some(before) => before,
            None => self.list().map_err(NftError::Elements)?,
        };
        let changed = self.settle(there, wanted).map_err(NftError::Elements);
        if changed.is_err() {
            self.installed = None;
        }
        changed
    }

    /// Compares everything with the kernel after a change by another program or by this process.
    pub(crate) fn repair<'a>(
        &mut self,
        plan: &GuardPlan,
        pods: impl Iterator<Item = &'a PodPlan>,
        complete: bool,
    ) -> Result<bool, NftError> {
        self.installed = None;
        self.apply(plan, pods, complete)
    }

    /// Allows the addresses of a new pod.
    pub(crate) fn add_pod(&mut self, pod: &PodPlan) -> Result<(), NftError> {
        self.change(pod, |connection, elements| connection.add(elements))?;
        if let Some(installed) = &mut self.installed {
            insert_elements(pod, installed);
        }
        Ok(())
    }

    /// Removes the addresses of a pod.
    pub(crate) fn remove_pod(&mut self, pod: &PodPlan) -> Result<(), NftError> {
        let Some(installed) = &mut self.installed else { return Ok(()) };
        let mut gone = Sets::new();
        insert_elements(pod, &mut gone);
        for (set, elements) in &mut gone {
            let there = installed.entry(*set).or_default();
            elements.retain(|element| there.remove(element));
        }
        let elements = gone.iter().flat_map(|(set, elements)| elements.iter().map(|element| (*set, element)));
        match connection(&mut self.connection).and_then(|connection| connection.delete(elements)) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(NftError::Elements(error)),
            _ => Ok(()),
        }
    }

    /// Replaces the allowed source addresses of a pod.
    pub(crate) fn change_pod(&mut self, old: &PodPlan, new: &PodPlan) -> Result<(), NftError> {
        let Some(installed) = &mut self.installed else { return Ok(()) };
        let (mut before, mut after) = (Sets::new(), Sets::new());
        insert_elements(old, &mut before);
        insert_elements(new, &mut after);
        let there = installed.clone();
        for (set, elements) in &before {
            let there = installed.entry(*set).or_default();
            there.retain(|element| !elements.contains(element));
        }
        for (set, elements) in after {
            installed.entry(set).or_default().extend(elements);
        }
        let wanted = installed.clone();
        self.settle(there, wanted).map(drop).map_err(|error| {
            self.installed = None;
            NftError::Elements(error)
        })
    }

    fn change(
        &mut self,
        pod: &PodPlan,
        apply: impl FnOnce(&mut Connection, Vec<(SetName, &Element)>) -> std::io::Result<()>,
    ) -> Result<(), NftError> {
        if self.installed.is_none() {
            return Ok(());
        }
        let mut sets = Sets::new();
        insert_elements(pod, &mut sets);
        let elements = sets.iter().flat_map(|(set, elements)| elements.iter().map(|element| (*set, element)));
        apply(connection(&mut self.connection).map_err(NftError::Elements)?, elements.collect())
            .map_err(NftError::Elements)
    }

    fn list(&mut self) -> std::io::Result<Sets> {
        let connection = connection(&mut self.connection)?;
        SETS.into_iter().map(|set| Ok((set, connection.elements(set)?))).collect()
    }

    /// Changes only elements that differ. Deletes before it adds, because a set accepts no range
    /// within another range.
    fn settle(&mut self, there: Sets, wanted: Sets) -> std::io::Result<bool> {
        let none = BTreeSet::new();
        let differing = |from: &Sets, to: &Sets| -> Vec<(SetName, Element)> {
            let of_set = |set: &SetName| {
                let known = to.get(set).unwrap_or(&none);
                let more = from.get(set).unwrap_or(&none).difference(known);
                more.map(|element| (*set, element.clone())).collect::<Vec<_>>()
            };
            SETS.iter().flat_map(of_set).collect()
        };
        let (missing, surplus) = (differing(&wanted, &there), differing(&there, &wanted));
        let connection = connection(&mut self.connection)?;
        connection.delete(surplus.iter().map(|(set, element)| (*set, element)))?;
        connection.add(missing.iter().map(|(set, element)| (*set, element)))?;
        self.installed = Some(wanted);
        Ok(!missing.is_empty() || !surplus.is_empty())
    }
}

/// Ends the translation of the node's own packets by connections from before the rules: only the first
/// packet of a connection passes a NAT chain.
fn forget_translated(plan: &GuardPlan) {
    let tunnel = plan.tunnel.as_ref();
    let has_port = |protocol: u8, port: u16| match i32::from(protocol) {
        libc::IPPROTO_TCP => plan.bgp_ports.contains(&port) || plan.peer_ports.contains(&port),
        libc::IPPROTO_UDP => {
            rules::BFD_PORTS.contains(&port) || tunnel.is_some_and(|tunnel| tunnel.overlay.port == port)
        }
        _ => false,
    };
    let has_address = |address: IpAddr| {
        plan.peers.contains(&address)
            || tunnel.is_some_and(|tunnel| tunnel.vteps.contains(&address))
            || plan.neighbours.iter().any(|prefix| prefix.contains(&address))
    };
    match conntrack::forget_translated(has_port, has_address) {
        Ok(0) => {}
        Ok(number) => {
            tracing::warn!(
                number,
                "another program translated packets of BGP, BFD or VXLAN of this node: ended"
            );
        }
        Err(error) => tracing::warn!(%error, "packets of this node may stay translated by another program"),
    }
}

fn connection(slot: &mut Option<Connection>) -> std::io::Result<&mut Connection> {
    match slot {
        Some(connection) => Ok(connection),
        slot => Ok(slot.insert(Connection::open()?)),
    }
}

fn wanted<'a>(plan: &GuardPlan, pods: impl Iterator<Item = &'a PodPlan>) -> Sets {
    let mut sets = Sets::new();
    let vteps = plan.tunnel.iter().flat_map(|tunnel| &tunnel.vteps);
    let vteps = vteps.map(|address| ([VTEPS_V4, VTEPS_V6], address));
    let nodes = plan.nodes.iter().map(|node| ([NODES_V4, NODES_V6], node));
    let peers = plan.peers.iter().map(|peer| ([PEERS_V4, PEERS_V6], peer));
    for ([v4, v6], address) in vteps.chain(nodes).chain(peers) {
        let set = if address.is_ipv4() { v4 } else { v6 };
        sets.entry(set).or_default().insert(Element::address(*address));
    }
    pods.for_each(|pod| insert_elements(pod, &mut sets));
    sets
}

/// The elements of one pod.
fn insert_elements(pod: &PodPlan, sets: &mut Sets) {
    let ifindex = pod.host_ifindex;
    for address in pod.neighbours.iter().map(|neighbour| neighbour.address) {
        let names: &[SetName] = match address {
            IpAddr::V4(_) => &[OWN_V4, ARP_OWN],
            IpAddr::V6(address) if address.is_unicast_link_local() => &[],
            IpAddr::V6(_) => &[OWN_V6],
        };
        for name in names {
            sets.entry(*name).or_default().insert(Element::on_link(ifindex, address));
        }
    }
    for prefix in &pod.sources {
        let names: &[SetName] =
            if prefix.addr().is_ipv4() { &[SOURCES_V4, ARP_SOURCES] } else { &[SOURCES_V6] };
        for name in names {
            sets.entry(*name).or_default().insert(Element::prefix_on_link(ifindex, *prefix));
        }
    }
}

fn write_elements(sets: &Sets, script: &mut String) {
    for (set, elements) in sets.iter().filter(|(_, elements)| !elements.is_empty()) {
        let family = if set.family == libc::NFPROTO_ARP { "arp" } else { "inet" };
        let words: Vec<String> = elements.iter().map(Element::to_string).collect();
        let _ = writeln!(script, "add element {family} {NAME} {} {{ {} }}", set.name, words.join(", "));
    }
}

/// The values of the counters since the tables were loaded.
pub fn counters() -> std::io::Result<Vec<(String, u64)>> {
    let mut connection = Connection::open()?;
    let mut found = connection.counters(libc::NFPROTO_INET, NAME)?;
    found.extend(connection.counters(libc::NFPROTO_ARP, NAME)?);
    Ok(found.into_iter().map(|counter| (counter.name, counter.packets)).collect())
}
