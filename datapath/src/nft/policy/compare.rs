//! The transaction that turns the kernel's table into the wanted one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use super::addresses;
use super::base::{BASE_CHAINS, RELATED, related_rules};
use super::expressions::{COUNTER, chain_name};
use super::found::{Found, elements};
use super::objects::{
    Entry, LIMIT_NAME, Layout, SAME_POD, counter_name, differences, entries, families, link_chain, map_name,
    set_name,
};
use super::protection::Protection;
use super::record::{Shapes, counters_of, shape};
use super::rules::ChainRules;
use super::transaction::Transaction;
use crate::netlink::netfilter::Connection;
use crate::plan::policy::{ChainId, Direction, LinkPolicies, PolicyTable};

/// The chain of a link in a direction.
pub(super) fn entry_chain(link: &LinkPolicies, direction: Direction) -> Option<ChainId> {
    match direction {
        Direction::Ingress => link.ingress,
        Direction::Egress => link.egress,
    }
}

/// The elements of the set of pairs for one link.
pub(super) fn pairs(ifindex: u32, link: &LinkPolicies) -> Vec<Entry> {
    link.siblings.iter().map(|sibling| Entry::pair(ifindex, *sibling)).collect()
}

/// Creates the table with everything that does not depend on policies.
pub(super) fn create_base(protection: Protection, transaction: &mut Transaction) {
    transaction.add_table(protection);
    for (name, layout) in base_sets() {
        transaction.add_set(name, layout);
    }
    transaction.add_limit();
    transaction.add_chain(RELATED);
    transaction.write_rules(RELATED, &related_rules(), false);
    for base in &BASE_CHAINS {
        transaction.add_base_chain(base);
        transaction.write_rules(base.name, &base.rules(), false);
    }
}

/// The sets of the base chains.
fn base_sets() -> impl Iterator<Item = (&'static str, Layout)> {
    let of_links = [
        (SAME_POD, Layout::PAIRS),
        (map_name(Direction::Egress), Layout::LINKS),
        (map_name(Direction::Ingress), Layout::LINKS),
    ];
    of_links.into_iter().chain(addresses::layouts())
}

/// The wanted table by kernel objects.
struct Wanted<'a> {
    table: &'a PolicyTable,
    chains: BTreeMap<String, ChainRules>,
    sets: BTreeMap<String, Layout>,
    counters: BTreeSet<String>,
}

impl<'a> Wanted<'a> {
    fn new(table: &'a PolicyTable) -> Wanted<'a> {
        let shapes: Shapes = table.sets.iter().map(|(id, set)| (*id, shape(set))).collect();
        let mut chains: BTreeMap<String, ChainRules> = table
            .chains
            .iter()
            .map(|(id, chain)| {
                (chain_name(*id), ChainRules::of(chain, |set, family| shapes.allow(set, family)))
            })
            .collect();
        chains.insert(RELATED.to_owned(), related_rules());
        for (ifindex, link) in &table.links {
            for direction in Direction::ALL {
                if let Some(entry) = entry_chain(link, direction) {
                    let jump = ChainRules::jump(&chain_name(entry));
                    chains.insert(link_chain(*ifindex, direction), jump);
                }
            }
        }
        let mut sets: BTreeMap<String, Layout> =
            base_sets().map(|(name, layout)| (name.to_owned(), layout)).collect();
        for (id, set) in &table.sets {
            let of_family = |family| (set_name(*id, family), Layout::of(set.kind, family));
            sets.extend(families(set.kind).iter().copied().map(of_family));
        }
        let counters = table.chains.values().flat_map(|chain| counters_of(chain)).map(counter_name).collect();
        Wanted { table, chains, sets, counters }
    }

    /// Whether an object of the kernel has a wanted name and cannot be changed into the wanted
    /// object.
    fn conflicts(&self, found: &Found, protection: Protection) -> bool {
        let base = |name: &str| BASE_CHAINS.iter().find(|base| base.name == name);
        let chains = found.chains.iter().any(|(name, chain)| {
            let base = base(name);
            (base.is_some() || self.chains.contains_key(name)) && !chain.is_like(base)
        });
        let sets = found
            .sets
            .iter()
            .any(|(name, set)| self.sets.get(name).is_some_and(|layout| !set.is_like(*layout)));
        let objects = found.objects.iter().any(|(name, object)| match name.as_str() {
            LIMIT_NAME => !object.is_limit,
            name => self.counters.contains(name) && object.kind != COUNTER,
        });
        let flags = found.flags != protection.flags() && !protection.can_adopt(found.flags);
        flags || chains || sets || objects
    }
}

/// The difference between the kernel's table and the wanted one. `rebuild`: replace the whole
/// table, in the same transaction.
pub(super) fn difference(
    connection: &mut Connection,
    table: &PolicyTable,
    protection: Protection,
    mut found: Found,
    rebuild: bool,
) -> io::Result<Transaction> {
    let wanted = Wanted::new(table);
    let mut transaction = Transaction::default();
    if found.exists && (rebuild || wanted.conflicts(&found, protection)) {
        transaction.delete_table();
        found = Found::default();
    }
    if !found.exists {
        transaction.add_table(protection);
    } else if found.flags != protection.flags() {
        transaction.adopt_table(protection);
    }
    compare_sets(connection, &wanted, &found, &mut transaction)?;
    compare_links(connection, table, &found, &mut transaction)?;
    compare_objects(&wanted, &found, &mut transaction);
    compare_chains(&wanted, &found, &mut transaction);
    Ok(transaction)
}

fn compare_sets(
    connection: &mut Connection,
    wanted: &Wanted<'_>,
    found: &Found,
    transaction: &mut Transaction,
) -> io::Result<()> {
    for (name, layout) in wanted.sets.iter().filter(|(name, _)| !found.sets.contains_key(*name)) {
        transaction.add_set(name, *layout);
    }
    for (id, set) in &wanted.table.sets {
        let mut of_set = entries(&set.elements);
        for family in families(set.kind).iter().copied() {
            let (name, wanted) = (set_name(*id, family), of_set.remove(&family).unwrap_or_default());
            let there =
                if found.sets.contains_key(&name) { elements(connection, &name)? } else { Vec::new() };
            settle_set(transaction, &name, Layout::of(set.kind, family), &wanted, &there);
        }
    }
    for name in found.sets.keys().filter(|name| !wanted.sets.contains_key(*name)) {
        transaction.delete_set(name);
    }
    Ok(())
}

/// Changes the elements of a set from `found` to `wanted`.
pub(super) fn settle_set(
    transaction: &mut Transaction,
    name: &str,
    layout: Layout,
    wanted: &[Entry],
    found: &[Entry],
) {
    let (missing, surplus) = differences(wanted, found);
    if layout.is_interval() && !found.is_empty() && (!missing.is_empty() || !surplus.is_empty()) {
        // A part of the entries can be half of a range.
        transaction.flush_set(name);
        transaction.change_set(name, wanted, &[]);
    } else {
        transaction.change_set(name, &missing, &surplus);
    }
}

fn compare_links(
    connection: &mut Connection,
    table: &PolicyTable,
    found: &Found,
    transaction: &mut Transaction,
) -> io::Result<()> {
    let mut wanted: Vec<(&str, Vec<Entry>)> = Direction::ALL
        .map(|direction| {
            let links = table.links.iter().filter(|(_, link)| entry_chain(link, direction).is_some());
            (map_name(direction), links.map(|(ifindex, _)| Entry::link(*ifindex, direction)).collect())
        })
        .into();
    let of_pods = table.links.iter().flat_map(|(ifindex, link)| pairs(*ifindex, link));
    wanted.push((SAME_POD, of_pods.collect()));
    wanted.extend(addresses::entries(&table.links, &table.addresses));
    for (name, wanted) in wanted {
        let there = if found.sets.contains_key(name) { elements(connection, name)? } else { Vec::new() };
        let (missing, surplus) = differences(&wanted, &there);
        transaction.change_links(name, &missing, &surplus);
    }
    Ok(())
}

fn compare_objects(wanted: &Wanted<'_>, found: &Found, transaction: &mut Transaction) {
    if !found.objects.contains_key(LIMIT_NAME) {
        transaction.add_limit();
    }
    for name in wanted.counters.iter().filter(|name| !found.objects.contains_key(*name)) {
        transaction.add_counter(name);
    }
    let surplus = found
        .objects
        .iter()
        .filter(|(name, _)| name.as_str() != LIMIT_NAME && !wanted.counters.contains(*name));
    for (name, object) in surplus {
        transaction.delete_object(name, object.kind);
    }
}

fn compare_chains(wanted: &Wanted<'_>, found: &Found, transaction: &mut Transaction) {
    let mut names: HashSet<&str> = HashSet::new();
    for base in &BASE_CHAINS {
        names.insert(base.name);
        if !found.chains.contains_key(base.name) {
            transaction.add_base_chain(base);
        }
        settle_rules(found, base.name, &base.rules(), transaction);
    }
    for (name, rules) in &wanted.chains {
        names.insert(name);
        if !found.chains.contains_key(name) {
            transaction.add_chain(name);
        }
        settle_rules(found, name, rules, transaction);
    }
    for name in found.chains.keys().filter(|name| !names.contains(name.as_str())) {
        transaction.delete_chain(name);
    }
}

fn settle_rules(found: &Found, name: &str, rules: &ChainRules, transaction: &mut Transaction) {
    match found.chains.get(name) {
        None => transaction.write_rules(name, rules, false),
        Some(chain) if rules.is_same(&chain.rules) => {}
        Some(_) => transaction.write_rules(name, rules, true),
    }
}
