//! Service addresses in a VLAN (ServicePools of mode L2): which node answers ARP requests and
//! Neighbour Solicitations for an address. The state of the election, without I/O.
//!
//! ```text
//!  services task ──Candidates──►┌──────────┐──LeaseRequest──► API server
//!  API server ──leases─────────►│ Election │◄─result──────────┘
//!                               └──────────┘──Holders──► reconcile task (proxy entries), services task (views)
//! ```
//!
//! **Two kinds of Leases.** The Lease of an *address* names its holder. It changes only when the
//! holder changes. The Lease of a *node* shows that the node's agent is alive: the agent renews it
//! every [`RENEW`] while it has a candidate. So the load on the API server depends on the number of
//! nodes and not on the number of addresses.
//!
//! **A node takes an address** that it can serve if no node holds it, or if the Lease of the
//! holder's node has not changed for [`DURATION`]. The nodes that are alive have an order for each
//! address, by a hash of both names. Each waits 0.1 s for every node before it, so the addresses
//! are distributed among the nodes. The API server accepts one of two simultaneous writes. An
//! address never returns to a node only because the node is back.
//!
//! **A holder keeps its address** while it can serve it, also while the API server does not answer:
//! then no other node can take it. A node that does not see its own renewals in the watch does not
//! see those of others either: it takes nothing. When it sees them again, it counts [`DURATION`]
//! anew before it declares another node dead.
//!
//! **Only nodes of the VLAN count.** A compromised node can write itself as the holder of any address. So
//! a holder that is not in the Network's `status.nodeList`, which the controller writes, counts as
//! a dead node, and no node waits for it. A node that is not in the list takes nothing. Without a
//! list every node counts.
//!
//! **Only addresses of L2 pools count.** A compromised node can write Leases with any address. So the
//! election keeps the Leases of addresses in L2 pools, which have at most 256 each, and those that
//! this node serves or holds.
//!
//! **A holder that leaves** (drain, last endpoint terminates) releases the address at once, and
//! answers until another node holds it or until the services task withdraws the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::resources::AddressBlock;

/// The time without a renewal after which a node counts as dead. The restart of an agent takes less.
pub const DURATION: Duration = Duration::from_secs(8);
/// The time between two renewals of a node's Lease.
pub const RENEW: Duration = Duration::from_secs(2);
/// A node takes addresses only if the last own renewal that the watch showed is not older.
const FRESH: Duration = Duration::from_secs(6);
/// The wait for each node that comes earlier in the order of an address.
const STEP: Duration = Duration::from_millis(100);
/// The wait after a refused or failed write.
const RETRY: Duration = Duration::from_secs(1);

/// The nodes of a VLAN.
pub type Members = Arc<BTreeSet<Arc<str>>>;

/// The addresses that this node can serve.
pub type Candidates = BTreeMap<IpAddr, Candidacy>;

/// How far this node can serve an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// It delivers the packets.
    Ready,
    /// It still delivers, and another node should.
    Leaving,
}

/// The holders of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The addresses for which this node answers.
    pub held: BTreeSet<IpAddr>,
    /// The other nodes that hold addresses.
    pub others: BTreeMap<IpAddr, Arc<str>>,
}

/// The subject of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseSubject {
    /// A node is alive.
    Node(Arc<str>),
    /// A node holds an address.
    Address(IpAddr),
}

/// A Lease of the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Its subject.
    pub subject: LeaseSubject,
    /// `spec.holderIdentity`; none if it is empty.
    pub holder: Option<Arc<str>>,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// A change of the Leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// These exist, and no others.
    Listed(Vec<LeaseRow>),
    /// This one is new or changed.
    Applied(LeaseRow),
    /// This one was deleted.
    Deleted(LeaseSubject),
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Renew this node's own Lease.
    Renew,
    /// Write the holder of an address: this node, or no node.
    Hold {
        /// The address.
        address: IpAddr,
        /// Whether this node becomes the holder.
        take: bool,
        /// The version to replace; none: the Lease does not exist.
        version: Option<String>,
    },
}

#[derive(Clone, Debug)]
struct AddressLease {
    holder: Option<Arc<str>>,
    version: String,
    /// The time since which it has no holder.
    free_since: Instant,
}

#[derive(Clone, Debug)]
struct NodeLease {
    version: String,
    /// The time of its last change.
    seen: Instant,
}

/// The election of all addresses, as this node sees it.
#[derive(Debug)]
pub struct Election {
    node: Arc<str>,
    candidates: BTreeMap<IpAddr, (Candidacy, Instant)>,
    /// The time of the first list; none before it.
    listed: Option<Instant>,
    addresses: BTreeMap<IpAddr, AddressLease>,
    nodes: BTreeMap<Arc<str>, NodeLease>,
    /// The nodes of the VLAN; none if they are not known.
    members: Option<Members>,
    /// The addresses of L2 pools.
    blocks: Vec<AddressBlock>,
    /// The addresses of the last run, until the first list.
    former: BTreeSet<IpAddr>,
    /// The addresses for which this node answered after the last input.
    answering: BTreeSet<IpAddr>,
    writing: BTreeSet<IpAddr>,
    retry: BTreeMap<IpAddr, Instant>,
    renewing: bool,
    next_renewal: Instant,
    /// The time since which the watch shows every own renewal.
    watching_since: Option<Instant>,
    /// Whether the holders have changed since the last [`Election::changed_holders`].
    changed: bool,
}

impl Election {
    /// The election of a node that answered for `former` in its last run.
    pub fn new(node: &str, former: BTreeSet<IpAddr>, now: Instant) -> Election {
        Election {
            node: Arc::from(node),
            candidates: BTreeMap::new(),
            listed: None,
            addresses: BTreeMap::new(),
            nodes: BTreeMap::new(),
            members: None,
            blocks: Vec::new(),
            answering: former.clone(),
            former,
            writing: BTreeSet::new(),
            retry: BTreeMap::new(),
            renewing: false,
            next_renewal: now,
            watching_since: None,
            changed: false,
        }
    }

    // ---- inputs

    /// Takes over the addresses that this node can serve.
    pub fn set_candidates(&mut self, candidates: &Candidates, now: Instant) {
        let since = |address| self.candidates.get(address).map_or(now, |(_, since)| *since);
        self.candidates = candidates.iter().map(|(address, of)| (*address, (*of, since(address)))).collect();
        self.settle();
    }

    /// Takes over the nodes of the VLAN; none if they are not known.
    pub fn set_members(&mut self, members: Option<Members>) {
        self.members = members;
    }

    /// Takes over the addresses of L2 pools. Leases of other addresses do not count. Returns whether the
    /// Leases must be listed again: some that did not count before may count now.
    #[must_use]
    pub fn set_blocks(&mut self, blocks: Vec<AddressBlock>) -> bool {
        if self.blocks == blocks {
            return false;
        }
        self.blocks = blocks;
        let mut addresses = std::mem::take(&mut self.addresses);
        let before = addresses.len();
        addresses.retain(|address, lease| self.counts(address, lease.holder.as_ref()));
        self.changed |= addresses.len() != before;
        self.addresses = addresses;
        self.settle();
        true
    }

    /// Whether the Lease of an address counts. Its holder is this node only if this node wrote it.
    fn counts(&self, address: &IpAddr, holder: Option<&Arc<str>>) -> bool {
        holder == Some(&self.node)
            || self.candidates.contains_key(address)
            || self.answering.contains(address)
            || self.blocks.iter().any(|block| block.contains(*address))
    }

    fn is_member(&self, node: &Arc<str>) -> bool {
        self.members.as_ref().is_none_or(|members| members.contains(node))
    }

    /// Takes over Leases from the watch.
    pub fn change(&mut self, change: LeaseChange, now: Instant) {
        match change {
            LeaseChange::Listed(rows) => {
                let there: BTreeSet<LeaseSubject> = rows.iter().map(|row| row.subject.clone()).collect();
                let is_there = |subject| there.contains(&subject);
                let before = self.addresses.len();
                self.addresses.retain(|address, _| is_there(LeaseSubject::Address(*address)));
                self.changed |= self.addresses.len() != before;
                self.nodes.retain(|node, _| is_there(LeaseSubject::Node(Arc::clone(node))));
                rows.into_iter().for_each(|row| self.apply(row, now));
                self.listed.get_or_insert(now);
                self.former.clear();
            }
            LeaseChange::Applied(row) => self.apply(row, now),
            LeaseChange::Deleted(LeaseSubject::Node(node)) => drop(self.nodes.remove(&node)),
            LeaseChange::Deleted(LeaseSubject::Address(address)) => self.forget(&address),
        }
        self.settle();
    }

    /// Takes over the result of [`LeaseRequest::Renew`], which began at `began`.
    pub fn renewed(&mut self, began: Instant, succeeded: bool, now: Instant) {
        self.renewing = false;
        self.next_renewal = if succeeded { began + RENEW } else { now + RETRY };
    }

    /// Takes over the result of [`LeaseRequest::Hold`]: the Lease as it is now, or none if the write
    /// was refused or failed.
    pub fn written(&mut self, address: IpAddr, row: Option<LeaseRow>, now: Instant) {
        self.writing.remove(&address);
        match row {
            Some(row) => self.apply(row, now),
            // Another node wrote first, and the watch will show it, or the API server is away.
            None => drop(self.retry.insert(address, now + RETRY)),
        }
        self.settle();
    }

    fn apply(&mut self, row: LeaseRow, now: Instant) {
        match row.subject {
            LeaseSubject::Node(node) => {
                let is_same = |known: &NodeLease| known.version == row.version;
                let known = self.nodes.get(&node);
                if !known.is_some_and(is_same) {
                    if node == self.node {
                        let is_gap = known.is_none_or(|known| known.seen + FRESH <= now);
                        self.watching_since = self.watching_since.filter(|_| !is_gap).or(Some(now));
                    }
                    self.nodes.insert(node, NodeLease { version: row.version, seen: now });
                }
            }
            LeaseSubject::Address(address) => {
                let known = self.addresses.get(&address);
                if known.is_some_and(|known| is_older(&row.version, &known.version)) {
                    return;
                }
                if !self.counts(&address, row.holder.as_ref()) {
                    return self.forget(&address);
                }
                self.changed |= known.map(|known| &known.holder) != Some(&row.holder);
                let free_since = match known {
                    Some(known) if known.holder.is_none() && row.holder.is_none() => known.free_since,
                    _ => now,
                };
                self.retry.remove(&address);
                self.addresses
                    .insert(address, AddressLease { holder: row.holder, version: row.version, free_since });
            }
        }
    }

    fn forget(&mut self, address: &IpAddr) {
        self.changed |= self.addresses.remove(address).is_some();
    }

    // ---- outputs

    /// The holders, if they have changed since the last call.
    pub fn changed_holders(&mut self) -> Option<Holders> {
        std::mem::take(&mut self.changed).then(|| self.holders())
    }

    /// The holders.
    pub fn holders(&self) -> Holders {
        let other = |(address, lease): (&IpAddr, &AddressLease)| {
            let holder = lease.holder.clone().filter(|holder| *holder != self.node)?;
            Some((*address, holder))
        };
        Holders { held: self.answering.clone(), others: self.addresses.iter().filter_map(other).collect() }
    }

    fn holds(&self, address: &IpAddr) -> bool {
        self.addresses.get(address).is_some_and(|lease| lease.holder.as_ref() == Some(&self.node))
    }

    /// Finds out for which addresses this node answers.
    fn settle(&mut self) {
        if self.listed.is_none() {
            return;
        }
        let answers = |address: &IpAddr, candidacy: Candidacy| {
            let is_free = || self.addresses.get(address).is_none_or(|lease| lease.holder.is_none());
            self.holds(address)
                || (candidacy == Candidacy::Leaving && self.answering.contains(address) && is_free())
        };
        let answering =
            self.candidates.iter().filter(|(address, (of, _))| answers(address, *of)).map(|(at, _)| *at);
        let answering = answering.collect();
        self.changed |= self.answering != answering;
        self.answering = answering;
    }

    /// The writes that are due. Each has a result: [`Self::renewed`] or [`Self::written`].
    pub fn poll(&mut self, now: Instant) -> Vec<LeaseRequest> {
        let mut requests = Vec::new();
        if self.is_active() && !self.renewing && self.next_renewal <= now {
            self.renewing = true;
            requests.push(LeaseRequest::Renew);
        }
        for (address, at, take) in self.due() {
            if at <= now {
                self.writing.insert(address);
                let version = self.addresses.get(&address).map(|lease| lease.version.clone());
                requests.push(LeaseRequest::Hold { address, take, version });
            }
        }
        requests
    }

    /// The next time at which [`Self::poll`] has a request.
    pub fn next_deadline(&self) -> Option<Instant> {
        let renewal = (self.is_active() && !self.renewing).then_some(self.next_renewal);
        self.due().into_iter().map(|(_, at, _)| at).chain(renewal).min()
    }

    fn is_active(&self) -> bool {
        !self.candidates.is_empty() || !self.answering.is_empty()
    }

    /// Every write that is not under way, with its time, and whether it takes the address.
    fn due(&self) -> Vec<(IpAddr, Instant, bool)> {
        let Some(listed) = self.listed else { return Vec::new() };
        let mut due = Vec::new();
        let mut push = |address: IpAddr, at: Instant, take| {
            if !self.writing.contains(&address) {
                due.push((address, self.retry.get(&address).map_or(at, |retry| at.max(*retry)), take));
            }
        };
        for address in self.addresses.keys().filter(|address| self.holds(address)) {
            if !matches!(self.candidates.get(address), Some((Candidacy::Ready, _))) {
                push(*address, listed, false);
            }
        }
        let fresh = self.nodes.get(&self.node).map(|own| own.seen + FRESH);
        for (address, (candidacy, since)) in &self.candidates {
            if *candidacy != Candidacy::Ready || self.holds(address) {
                continue;
            }
            let Some(at) = self.takes_at(address, *since, listed) else { continue };
            // A renewal comes first: other nodes see that this one is alive, and this one sees that it
            // receives the changes of others.
            if fresh.is_some_and(|fresh| at < fresh) {
                push(*address, at, true);
            }
        }
        due
    }

    /// The time at which this node takes an address of another holder, or of none.
    fn takes_at(&self, address: &IpAddr, since: Instant, listed: Instant) -> Option<Instant> {
        let watching_since = self.watching_since.filter(|_| self.is_member(&self.node))?;
        let free_at = match self.addresses.get(address) {
            None => since.max(listed),
            Some(AddressLease { holder: None, free_since, .. }) => since.max(*free_since),
            Some(AddressLease { holder: Some(holder), .. }) => {
                let lease = self.nodes.get(holder).filter(|_| self.is_member(holder));
                let seen = lease.map_or(listed, |lease| lease.seen);
                since.max(seen.max(watching_since) + DURATION)
            }
        };
        let own = order(address, &self.node);
        let is_earlier = |(node, lease): &(&Arc<str>, &NodeLease)| {
            let waits = **node != self.node && self.is_member(node);
            waits && free_at < lease.seen + DURATION && order(address, node) < own
        };
        let rank = self.nodes.iter().filter(is_earlier).count();
        Some(free_at + STEP * u32::try_from(rank).unwrap_or(u32::MAX))
    }
}

/// Whether a version is older than another one. Versions are numbers that increase; of others
/// nothing is known.
fn is_older(version: &str, than: &str) -> bool {
    matches!((version.parse::<u64>(), than.parse::<u64>()), (Ok(version), Ok(than)) if version < than)
}

/// The place of a node in the order of an address: FNV-1a with a final mix. All agents must compute
/// the same order, or nodes wait for nodes that do not come; nothing else depends on it.
fn order(address: &IpAddr, node: &str) -> u64 {
    let text = address.to_string();
    let octets = text.bytes().chain([b'/']).chain(node.bytes());
    let hash = octets.fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ip(last: u8) -> IpAddr {
        [10, 12, 0, last].into()
    }

    /// The addresses of an L2 pool: `ip(0)` to `ip(31)`, and the three after them.
    fn blocks() -> Vec<AddressBlock> {
        ["10.12.0.0/27", "10.12.0.32-10.12.0.34"].iter().map(|text| text.parse().unwrap()).collect()
    }

    fn row(subject: LeaseSubject, holder: Option<&str>, version: u64) -> LeaseRow {
        LeaseRow { subject, holder: holder.map(Arc::from), version: version.to_string() }
    }

    /// An API server without faults, and its nodes. Time is that of the test.
    struct Cluster {
        now: Instant,
        version: u64,
        rows: BTreeMap<LeaseSubject, LeaseRow>,
        nodes: BTreeMap<&'static str, Election>,
        away: bool,
        /// A node whose watch receives nothing.
        deaf: Option<&'static str>,
    }

    impl Cluster {
        fn new(names: &[&'static str]) -> Cluster {
            let now = Instant::now();
            let mut nodes: BTreeMap<&'static str, Election> =
                names.iter().map(|name| (*name, Election::new(name, BTreeSet::new(), now))).collect();
            for node in nodes.values_mut() {
                assert!(node.set_blocks(blocks()));
                node.change(LeaseChange::Listed(Vec::new()), now);
            }
            Cluster { now, version: 1, rows: BTreeMap::new(), nodes, away: false, deaf: None }
        }

        fn write(
            &mut self,
            subject: LeaseSubject,
            holder: Option<Arc<str>>,
            version: Option<&String>,
        ) -> Option<LeaseRow> {
            let there = self.rows.get(&subject).map(|row| &row.version);
            if self.away || there != version {
                return None;
            }
            self.version += 1;
            let row = LeaseRow { subject: subject.clone(), holder, version: self.version.to_string() };
            self.rows.insert(subject, row.clone());
            Some(row)
        }

        /// Carries out requests until no node has one.
        fn settle(&mut self) {
            loop {
                let mut requests = Vec::new();
                for (name, node) in &mut self.nodes {
                    requests.extend(node.poll(self.now).into_iter().map(|request| (*name, request)));
                }
                if requests.is_empty() {
                    return;
                }
                for (name, request) in requests {
                    let written = match &request {
                        LeaseRequest::Renew => {
                            let subject = LeaseSubject::Node(Arc::from(name));
                            let version = self.rows.get(&subject).map(|row| row.version.clone());
                            self.write(subject, Some(Arc::from(name)), version.as_ref())
                        }
                        LeaseRequest::Hold { address, take, version } => {
                            let holder = take.then(|| Arc::from(name));
                            self.write(LeaseSubject::Address(*address), holder, version.as_ref())
                        }
                    };
                    if let Some(row) = &written {
                        for (other, node) in &mut self.nodes {
                            if Some(*other) != self.deaf {
                                node.change(LeaseChange::Applied(row.clone()), self.now);
                            }
                        }
                    }
                    let node = self.nodes.get_mut(name).unwrap();
                    match request {
                        LeaseRequest::Renew => node.renewed(self.now, written.is_some(), self.now),
                        LeaseRequest::Hold { address, .. } => node.written(address, written, self.now),
                    }
                }
                self.at_most_one();
            }
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            self.settle();
            while let Some(next) = self.nodes.values().filter_map(Election::next_deadline).min() {
                if next > end {
                    break;
                }
                self.now = self.now.max(next);
                self.settle();
            }
            self.now = end;
        }

        fn serve(&mut self, name: &str, candidates: &[(u8, Candidacy)]) {
            let candidates = candidates.iter().map(|(last, of)| (ip(*last), *of)).collect();
            let now = self.now;
            self.nodes.get_mut(name).unwrap().set_candidates(&candidates, now);
        }

        /// The nodes that answer for an address.
        fn answering(&self, last: u8) -> Vec<&'static str> {
            let answers = |(_, node): &(&&str, &Election)| node.holders().held.contains(&ip(last));
            self.nodes.iter().filter(answers).map(|(name, _)| *name).collect()
        }

        fn at_most_one(&self) {
            for last in 1..=32 {
                assert!(self.answering(last).len() <= 1, "{last}: {:?}", self.answering(last));
            }
        }
    }

    const READY: Candidacy = Candidacy::Ready;

    #[test]
    fn one_node_answers_and_the_addresses_are_distributed() {
        let mut cluster = Cluster::new(&["n1", "n2", "n3"]);
        let all: Vec<(u8, Candidacy)> = (1..=30).map(|last| (last, READY)).collect();
        for name in ["n1", "n2", "n3"] {
            cluster.serve(name, &[(31, Candidacy::Leaving)]);
        }
        cluster.run(SECOND);
        assert!(cluster.answering(31).is_empty(), "a node that leaves takes nothing");
        for name in ["n1", "n2", "n3"] {
            cluster.serve(name, &all);
        }
        cluster.run(SECOND);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for last in 1..=30 {
            let [name] = cluster.answering(last)[..] else { panic!("{last}: {:?}", cluster.answering(last)) };
            *counts.entry(name).or_default() += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| *count >= 5), "{counts:?}");
        let others = cluster.nodes["n1"].holders().others;
        assert_eq!(others.len(), 30 - counts["n1"]);
    }

    #[test]
    fn a_dead_node_is_replaced_after_the_duration_and_does_not_take_back() {
        let mut cluster = Cluster::new(&["n1", "n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(10 * SECOND);
        cluster.serve("n2", &[(1, READY)]);
        cluster.run(10 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
        let dead = cluster.nodes.remove("n1").unwrap();
        cluster.run(5 * SECOND);
        assert!(cluster.answering(1).is_empty());
        cluster.run(5 * SECOND);
        assert_eq!(cluster.answering(1), ["n2"]);

        // The node returns with the state of its last run.
        let former = dead.holders().held;
        assert_eq!(former, [ip(1)].into());
        let mut back = Election::new("n1", former.clone(), cluster.now);
        assert_eq!(back.holders().held, former, "before the first list");
        assert!(back.set_blocks(blocks()));
        back.change(LeaseChange::Listed(cluster.rows.values().cloned().collect()), cluster.now);
        assert!(back.holders().held.is_empty());
        cluster.nodes.insert("n1", back);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(20 * SECOND);
        assert_eq!(cluster.answering(1), ["n2"]);
    }

    #[test]
    fn a_restart_keeps_the_address() {
        let mut cluster = Cluster::new(&["n1", "n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.serve("n2", &[(1, READY)]);
        cluster.run(SECOND);
        let former = cluster.nodes.remove("n1").unwrap().holders().held;
        cluster.run(3 * SECOND);
        let mut back = Election::new("n1", former, cluster.now);
        back.set_candidates(&[(ip(1), READY)].into(), cluster.now);
        back.change(LeaseChange::Listed(cluster.rows.values().cloned().collect()), cluster.now);
        assert_eq!(back.holders().held, [ip(1)].into());
        cluster.nodes.insert("n1", back);
        cluster.run(20 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
    }

    #[test]
    fn a_node_that_leaves_answers_until_another_one_holds() {
        let mut cluster = Cluster::new(&["n1", "n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.serve("n1", &[(1, Candidacy::Leaving)]);
        cluster.run(2 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"], "nobody else can");
        assert_eq!(cluster.rows[&LeaseSubject::Address(ip(1))].holder, None);
        cluster.serve("n2", &[(1, READY)]);
        cluster.run(SECOND);
        assert_eq!(cluster.answering(1), ["n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.serve("n2", &[]);
        cluster.run(SECOND);
        assert_eq!(cluster.answering(1), ["n1"], "a node that cannot serve any more releases at once");
    }

    #[test]
    fn a_node_outside_of_the_vlan_holds_no_address() {
        let mut cluster = Cluster::new(&["n1", "n2", "evil"]);
        let members: Members = Arc::new(["n1", "n2"].into_iter().map(Arc::from).collect());
        // The compromised node takes each address, renews its Lease, and does not answer.
        let all: Vec<(u8, Candidacy)> = (1..=9).map(|last| (last, READY)).collect();
        cluster.serve("evil", &all);
        cluster.run(SECOND);
        assert_eq!(cluster.answering(5), ["evil"]);
        for name in ["n1", "n2"] {
            cluster.nodes.get_mut(name).unwrap().set_members(Some(Arc::clone(&members)));
            cluster.serve(name, &all);
        }
        cluster.run(DURATION + SECOND);
        for last in 1..=9 {
            assert_ne!(cluster.answering(last), ["evil"], "{last}");
            assert_eq!(cluster.answering(last).len(), 1, "{last}");
        }
        // A node that the controller no longer lists takes nothing, and is replaced.
        let only: Members = Arc::new([Arc::from("n2")].into());
        for name in ["n1", "n2"] {
            cluster.nodes.get_mut(name).unwrap().set_members(Some(Arc::clone(&only)));
        }
        cluster.nodes.remove("evil");
        cluster.run(2 * DURATION);
        assert!((1..=9).all(|last| cluster.answering(last) == ["n2"]));
    }

    #[test]
    fn leases_outside_of_l2_pools_do_not_count() {
        let now = Instant::now();
        let mut election = Election::new("n1", BTreeSet::new(), now);
        assert!(election.set_blocks(blocks()) && !election.set_blocks(blocks()), "listed once");
        let lease = |address: IpAddr, holder, version| row(LeaseSubject::Address(address), holder, version);
        let of_number = |number: u32| IpAddr::from((0x0a0c_0000 + number).to_be_bytes());
        let all = (0..20_000).map(|number| lease(of_number(number), Some("evil"), 1)).collect();
        election.change(LeaseChange::Listed(all), now);
        assert_eq!(election.addresses.len(), 35, "the addresses of the pool");
        assert_eq!(election.changed_holders().map(|holders| holders.others.len()), Some(35));
        for number in 20_000..40_000 {
            election.change(LeaseChange::Applied(lease(of_number(number), Some("evil"), 2)), now);
        }
        assert_eq!((election.addresses.len(), election.changed_holders()), (35, None));

        // The pool is smaller now. This node releases its address, and forgets the Lease then.
        election.change(LeaseChange::Applied(lease(ip(33), Some("n1"), 3)), now);
        assert!(election.set_blocks(vec!["10.12.0.0/27".parse().unwrap()]));
        assert_eq!(election.addresses.len(), 33);
        let release = LeaseRequest::Hold { address: ip(33), take: false, version: Some("3".to_owned()) };
        assert_eq!(election.poll(now), [release]);
        election.written(ip(33), Some(lease(ip(33), None, 4)), now);
        assert_eq!(election.addresses.len(), 32);
    }

    #[test]
    fn an_absent_api_server_moves_nothing() {
        let mut cluster = Cluster::new(&["n1", "n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.serve("n2", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.away = true;
        cluster.run(60 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
        cluster.away = false;
        cluster.run(60 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
    }

    #[test]
    fn a_node_with_a_broken_watch_takes_nothing() {
        let mut cluster = Cluster::new(&["n1", "n2"]);
        cluster.serve("n1", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.serve("n2", &[(1, READY)]);
        cluster.run(SECOND);
        cluster.deaf = Some("n2");
        cluster.run(60 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
        assert_eq!(cluster.rows[&LeaseSubject::Address(ip(1))].holder.as_deref(), Some("n1"));
        cluster.deaf = None;
        let rows = cluster.rows.values().cloned().collect();
        let now = cluster.now;
        cluster.nodes.get_mut("n2").unwrap().change(LeaseChange::Listed(rows), now);
        cluster.run(60 * SECOND);
        assert_eq!(cluster.answering(1), ["n1"]);
        cluster.nodes.remove("n1");
        cluster.run(9 * SECOND);
        assert_eq!(cluster.answering(1), ["n2"]);
    }

    #[test]
    fn an_older_version_of_a_lease_changes_nothing() {
        let now = Instant::now();
        let mut election = Election::new("n1", BTreeSet::new(), now);
        election.change(LeaseChange::Listed(Vec::new()), now);
        election.set_candidates(&[(ip(1), READY)].into(), now);
        let subject = || LeaseSubject::Address(ip(1));
        election.change(LeaseChange::Applied(row(subject(), Some("n1"), 9)), now);
        election.change(LeaseChange::Applied(row(subject(), Some("n2"), 8)), now);
        assert_eq!(election.holders().held, [ip(1)].into());
        election.change(LeaseChange::Applied(row(subject(), Some("n2"), 10)), now);
        assert!(election.holders().held.is_empty());
        assert_eq!(election.holders().others[&ip(1)].as_ref(), "n2");
        election.change(LeaseChange::Deleted(subject()), now);
        assert!(election.holders().others.is_empty());
    }
}
