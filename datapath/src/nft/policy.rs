//! The table of network policies, `inet trunkline-policy`.
//!
//! ```text
//!  forward  egress  (-20) ─ same pod: accept ─ iif ─► map from_pods ─► from_IFINDEX ─► c… (entry) ─► c…
//!           ingress (-19) ─ same pod: accept ─ oif ─► map to_pods ───► to_IFINDEX ───► c… (entry) ─► c…
//!                           leaves by no pod's link ─ daddr ─► map to_addresses… ─► to_IFINDEX
//!  input    node    (-20) ─ ND: accept ─────── iif ─► map from_pods ─► from_IFINDEX ─► …
//!  output   output  (-20) ─ ND, source is the node: accept ─ oif ─► map to_pods ─► to_IFINDEX ─► …
//! ```
//!
//! Each base chain first accepts packets of established connections, and packets related to them
//! (`policy/base.rs`). So a connection that a policy allowed continues after the policy changed.
//!
//! - Sets are `s…4` and `s…6`, those of port numbers `s…p`, chains `c…`, counters `p…`, each with
//!   the number of the plan.
//! - A link has its own chain with one jump. The kernel replaces the rules of chains at one moment,
//!   and a packet meets only old or only new rules. It reads elements of maps later. So the element
//!   of a link never changes while the link has policies.
//!
//! The table belongs to the agent's socket, if the kernel can protect it (`policy/protection.rs`).
//!
//! Every change is one transaction over netlink, and earlier ones that create large sets. If the
//! kernel refuses it, the old rules stay.
//! The owner stores no elements and no rules: `Policies::set` lists the kernel's table and changes
//! the differences, and `Policies::change` needs only the `Record`. After an error, or after a
//! change by another program, a change needs `Policies::set` first.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use self::compare::{create_base, difference, entry_chain, pairs, settle_set};
use self::expressions::{COUNTER, chain_name};
use self::found::{Found, elements};
use self::objects::{
    Entry, Layout, SAME_POD, counter_name, differences, entries, families, link_chain, map_name,
    read_counter_name, set_name,
};
use self::protection::Protection;
use self::record::{Families, Record, counters_of, shape};
use self::rules::ChainRules;
use self::transaction::{Object, Transaction};
use super::elements::Counter;
use crate::netlink::netfilter::{Connection, TransactionError};
use crate::plan::policy::{
    CounterId, Direction, LinkPolicies, PolicyChange, PolicyPart, PolicySet, PolicySetChange, PolicyTable,
    SetId,
};

mod addresses;
mod base;
mod compare;
mod expressions;
mod found;
mod objects;
mod protection;
mod record;
mod rules;
mod transaction;

pub(super) use rules::LOG_GROUP;

/// The name of the table.
pub(super) const NAME: &str = "trunkline-policy";

/// The reason why the table did not change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The kernel refused an object.
    #[error("{object}: {error}")]
    Refused {
        /// The object.
        object: Object,
        /// The kernel's error.
        #[source]
        error: TransactionError,
    },
    /// The kernel's table cannot be listed, or the socket cannot be opened.
    #[error("nftables cannot be read: {0}")]
    List(#[from] io::Error),
    /// The kernel's table is not known to be the last one.
    #[error("the table is not loaded, or another program changed it: set the whole table")]
    NotLoaded,
    /// The rules need kernel rules for another IP family.
    #[error("the first pod with addresses of another IP family: set the whole table")]
    Family,
    /// The change contradicts the table.
    #[error("set {0}: its kind or its ranges cannot change: set the whole table")]
    Contradiction(SetId),
}

impl PolicyError {
    /// The set or chain that the kernel refused because of its content. None: the kernel lacks
    /// memory or another resource, or the whole table has a fault.
    pub(crate) fn part(&self) -> Option<PolicyPart> {
        let PolicyError::Refused { object, error: TransactionError::Refused { error, .. } } = self else {
            return None;
        };
        let lacks_resource = matches!(
            error.raw_os_error(),
            Some(libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::EAGAIN | libc::EINTR | libc::EPERM)
        );
        if lacks_resource { None } else { object.part() }
    }
}

/// The table and its record.
#[derive(Default)]
pub(crate) struct Policies {
    connection: Option<Connection>,
    protection: Protection,
    /// None while the kernel's table is not known.
    record: Option<Record>,
}

impl Policies {
    /// `protects`: other programs cannot change the table, if the kernel can protect it.
    pub(crate) fn new(protects: bool) -> Policies {
        let protection = if protects { Protection::Wanted } else { Protection::Off };
        Policies { protection, ..Policies::default() }
    }

    /// The netlink port ID in notifications about changes of the table.
    pub(crate) fn port(&mut self) -> io::Result<u32> {
        connection(&mut self.connection).map(|connection| connection.port())
    }

    /// Whether the kernel has the last table.
    pub(crate) fn is_loaded(&self) -> bool {
        self.record.is_some()
    }

    /// Whether the kernel protects the table from other programs.
    pub(crate) fn is_protected(&self) -> bool {
        self.protection == Protection::On
    }

    /// Another program changed a table of this name. Returns whether the kernel's table is no
    /// longer known.
    pub(crate) fn forget(&mut self) -> bool {
        self.record.take_if(|record| record.exists).is_some()
    }

    /// Becomes the owner of the table of the last run, before the first table of this run is known:
    /// other programs cannot change it meanwhile. Returns whether it did.
    pub(crate) fn adopt(&mut self) -> Result<bool, PolicyError> {
        if self.protection == Protection::Off {
            return Ok(false);
        }
        let connection = connection(&mut self.connection)?;
        Ok(protection::adopt(connection)?)
    }

    /// Compares everything with the kernel and changes the differences. Returns the number of
    /// changed objects.
    pub(crate) fn set(&mut self, table: &PolicyTable) -> Result<usize, PolicyError> {
        self.record = None;
        let connection = connection(&mut self.connection)?;
        let found = match Found::list(connection) {
            // A kernel without nf_tables has no table, and needs none.
            Err(error) if table.is_empty() && is_absent(&error) => {
                self.record = Some(Record::of(table));
                return Ok(0);
            }
            found => found?,
        };
        let mut transaction = Transaction::default();
        let exists = found.exists;
        if !table.is_empty() {
            self.protection.examine(connection);
            transaction = difference(connection, table, self.protection, found, false)?;
        } else if exists {
            transaction.delete_table();
        }
        let changed = match transaction.run(connection) {
            // Objects of another program can refer to objects that the transaction deletes.
            Err(PolicyError::Refused { .. }) if exists && !table.is_empty() => {
                let found = Found::list(connection)?;
                difference(connection, table, self.protection, found, true)?.run(connection)?
            }
            result => result?,
        };
        self.record = Some(Record::of(table));
        Ok(changed)
    }

    /// Applies a change in one transaction.
    pub(crate) fn change(&mut self, change: &PolicyChange) -> Result<(), PolicyError> {
        let mut record = self.record.take().ok_or(PolicyError::NotLoaded)?;
        if record.has_chains() && !record.shapes.have(new_families(change, &record)) {
            return Err(PolicyError::Family);
        }
        let connection = connection(&mut self.connection)?;
        let mut transaction = Transaction::default();
        if !record.exists && !change.is_empty() {
            self.protection.examine(connection);
            create_base(self.protection, &mut transaction);
            record.exists = true;
        }
        for (id, set) in &change.sets {
            change_set(connection, *id, set, &mut record, &mut transaction)?;
        }
        change_chains(change, &mut record, &mut transaction);
        change_links(change, &mut record, &mut transaction);
        if record.exists && record.is_empty() {
            transaction = Transaction::default();
            transaction.delete_table();
            record = Record::default();
        }
        if !transaction.is_empty() {
            transaction.run(connection)?;
        }
        self.record = Some(record);
        Ok(())
    }
}

/// The families of new elements in sets of pods.
fn new_families(change: &PolicyChange, record: &Record) -> Families {
    let added = change.sets.iter().filter_map(|(id, set)| match set {
        PolicySetChange::Replaced(set) => (!set.kind.is_constant()).then_some(&set.elements),
        PolicySetChange::Changed { added, .. } => {
            let is_constant = record.shapes.get(*id).is_some_and(|shape| shape.kind.is_constant());
            (!is_constant).then_some(added)
        }
        PolicySetChange::Removed => None,
    });
    Families::of(added.flatten())
}

/// Whether the error means that the kernel has no nf_tables.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT))
}

fn connection(slot: &mut Option<Connection>) -> io::Result<&mut Connection> {
    match slot {
        Some(connection) => Ok(connection),
        slot => Ok(slot.insert(Connection::open()?)),
    }
}

fn change_set(
    connection: &mut Connection,
    id: SetId,
    change: &PolicySetChange,
    record: &mut Record,
    transaction: &mut Transaction,
) -> Result<(), PolicyError> {
    let known = record.shapes.get(id);
    match change {
        PolicySetChange::Replaced(set) => {
            if known.is_some_and(|known| known.kind != set.kind) {
                return Err(PolicyError::Contradiction(id));
            }
            replace_set(connection, id, set, known.is_some(), transaction)?;
            record.shapes.insert(id, shape(set));
        }
        PolicySetChange::Changed { added, removed } => {
            if known.is_some_and(|known| known.kind.is_constant()) {
                return Err(PolicyError::Contradiction(id));
            }
            record.shapes.note(Families::of(added));
            let (mut added, mut removed) = (entries(added), entries(removed));
            let touched: BTreeSet<_> = added.keys().chain(removed.keys()).copied().collect();
            for family in touched {
                let added = added.remove(&family).unwrap_or_default();
                let removed = removed.remove(&family).unwrap_or_default();
                transaction.change_set(&set_name(id, family), &added, &removed);
            }
        }
        PolicySetChange::Removed => {
            if let Some(shape) = record.shapes.remove(id) {
                families(shape.kind).iter().for_each(|family| transaction.delete_set(&set_name(id, *family)));
            }
        }
    }
    Ok(())
}

/// Creates a set, or changes the elements of an existing set. An element that stays is not written
/// again: between deletion and addition, a packet could miss it.
fn replace_set(
    connection: &mut Connection,
    id: SetId,
    set: &PolicySet,
    exists: bool,
    transaction: &mut Transaction,
) -> Result<(), PolicyError> {
    let mut of_set = entries(&set.elements);
    for family in families(set.kind).iter().copied() {
        let (name, layout) = (set_name(id, family), Layout::of(set.kind, family));
        let wanted = of_set.remove(&family).unwrap_or_default();
        let mut there = Vec::new();
        if exists {
            there = elements(connection, &name)?;
        } else {
            transaction.add_set(&name, layout);
        }
        settle_set(transaction, &name, layout, &wanted, &there);
    }
    Ok(())
}

fn change_chains(change: &PolicyChange, record: &mut Record, transaction: &mut Transaction) {
    // Counters of the old and new rules, and whether the kernel has them.
    let mut touched: BTreeMap<CounterId, bool> = BTreeMap::new();
    for (id, chain) in &change.chains {
        let after = chain.iter().flat_map(|chain| counters_of(chain));
        for counter in record.chain_counters(*id).chain(after) {
            touched.insert(counter, record.has_counter(counter));
        }
    }
    for (id, chain) in &change.chains {
        let name = chain_name(*id);
        let Some(chain) = chain else {
            record.remove_chain(*id);
            transaction.delete_chain(&name);
            continue;
        };
        let exists = record.has_chain(*id);
        if !exists {
            transaction.add_chain(&name);
        }
        let rules = ChainRules::of(chain, |set, family| record.shapes.allow(set, family));
        transaction.write_rules(&name, &rules, exists);
        record.insert_chain(*id, chain);
    }
    for (counter, existed) in touched {
        match (existed, record.has_counter(counter)) {
            (false, true) => transaction.add_counter(&counter_name(counter)),
            (true, false) => transaction.delete_object(&counter_name(counter), COUNTER),
            (true, true) | (false, false) => {}
        }
    }
}

fn change_links(change: &PolicyChange, record: &mut Record, transaction: &mut Transaction) {
    if change.links.is_empty() && change.addresses.is_empty() {
        return;
    }
    let before = addresses::entries(&record.links, &record.addresses);
    for (ifindex, of_link) in &change.addresses {
        match of_link {
            Some(of_link) => drop(record.addresses.insert(*ifindex, of_link.clone())),
            None => drop(record.addresses.remove(ifindex)),
        }
    }
    for (ifindex, link) in &change.links {
        change_link(*ifindex, link.as_ref(), record, transaction);
    }
    let after = addresses::entries(&record.links, &record.addresses);
    addresses::change(&before, &after, transaction);
}

fn change_link(
    ifindex: u32,
    link: Option<&LinkPolicies>,
    record: &mut Record,
    transaction: &mut Transaction,
) {
    let before = match link {
        Some(link) => record.links.insert(ifindex, link.clone()),
        None => record.links.remove(&ifindex),
    };
    let none = LinkPolicies::default();
    let (before, after) = (before.as_ref().unwrap_or(&none), link.unwrap_or(&none));
    for direction in Direction::ALL {
        let (chain, map) = (link_chain(ifindex, direction), map_name(direction));
        let element = [Entry::link(ifindex, direction)];
        match (entry_chain(before, direction), entry_chain(after, direction)) {
            (old, new) if old == new => {}
            (old, Some(new)) => {
                if old.is_none() {
                    transaction.add_chain(&chain);
                    transaction.change_links(map, &element, &[]);
                }
                transaction.write_rules(&chain, &ChainRules::jump(&chain_name(new)), old.is_some());
            }
            (_, None) => {
                transaction.change_links(map, &[], &element);
                transaction.delete_chain(&chain);
            }
        }
    }
    let (added, removed) = differences(&pairs(ifindex, after), &pairs(ifindex, before));
    transaction.change_links(SAME_POD, &added, &removed);
}

/// The packets of one counter since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCount {
    /// Number of packets.
    pub packets: u64,
    /// Octets of these packets, from the IP header on.
    pub octets: u64,
}

/// The counters of the table, in the network namespace of the calling thread. None without a
/// table.
///
/// # Errors
/// The kernel's error.
pub fn counters() -> io::Result<Vec<(CounterId, PolicyCount)>> {
    let found = Connection::open()?.counters(libc::NFPROTO_INET, NAME)?;
    let read = |Counter { name, packets, octets }: Counter| {
        Some((read_counter_name(&name)?, PolicyCount { packets, octets }))
    };
    Ok(found.into_iter().filter_map(read).collect())
}
