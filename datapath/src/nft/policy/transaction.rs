//! One transaction: the messages in the order that the kernel requires, each with the name of its
//! object for errors.
//!
//! **Large new sets.** While any program listens to nftables, the kernel keeps a notification for
//! each element until the end of the transaction. 40,000 elements took 0.7 s, and 0.1 s in parts
//! (Linux 6.18). So the elements of many new sets are written in earlier transactions: no rule uses
//! these sets yet, and no packet meets them.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::base::BaseChain;
use super::expressions::{COUNTER, Expressions, LIMIT};
use super::objects::{Entry, LIMIT_NAME, Layout, read_chain_name, read_set_name};
use super::protection::Protection;
use super::rules::ChainRules;
use super::{NAME, PolicyError};
use crate::netlink::netfilter::{
    Connection, Messages, NESTED, TransactionError, attribute, number, octets, text,
};
use crate::plan::policy::PolicyPart;

pub(super) const NEW_TABLE: u16 = message(libc::NFT_MSG_NEWTABLE);
pub(super) const DELETE_TABLE: u16 = message(libc::NFT_MSG_DELTABLE);
const NEW_CHAIN: u16 = message(libc::NFT_MSG_NEWCHAIN);
const DELETE_CHAIN: u16 = message(libc::NFT_MSG_DELCHAIN);
const NEW_RULE: u16 = message(libc::NFT_MSG_NEWRULE);
const DELETE_RULE: u16 = message(libc::NFT_MSG_DELRULE);
const NEW_SET: u16 = message(libc::NFT_MSG_NEWSET);
const DELETE_SET: u16 = message(libc::NFT_MSG_DELSET);
const NEW_ELEMENTS: u16 = message(libc::NFT_MSG_NEWSETELEM);
const DELETE_ELEMENTS: u16 = message(libc::NFT_MSG_DELSETELEM);
const NEW_OBJECT: u16 = message(18);
const DELETE_OBJECT: u16 = message(20);

/// The number of a message of nf_tables.
pub(super) const fn message(kind: i32) -> u16 {
    (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | kind as u16
}

// NFTA_TABLE_…, NFTA_CHAIN_…, NFTA_HOOK_…
pub(super) const TABLE: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;
// NFTA_RULE_…
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_DATA: u16 = 7;
/// `NFTNL_UDATA_RULE_COMMENT`: type and length have one octet each.
const COMMENT: u8 = 0;
// NFTA_SET_…, NFTA_SET_ELEM_LIST_…
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
const SET_ID: u16 = 10;
const SET_DATA: u16 = 13;
const LIST_ELEMENTS: u16 = 3;
/// `NFT_DATA_VERDICT`.
pub(super) const VERDICT: u32 = 0xffff_ff00;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`.
const KEY_BYTE_ORDER: u8 = 0;
// NFTA_OBJ_…, NFTA_LIMIT_…
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const LIMIT_RATE: u16 = 1;
const LIMIT_UNIT: u16 = 2;
const LIMIT_BURST: u16 = 3;

/// Reported packets in one second, and packets of a burst.
pub(super) const RATE: (u64, u32) = (10, 20);

/// Maximum number of elements in one message: an attribute's length has 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 512;
/// Maximum number of messages with elements of new sets in one transaction.
const MESSAGES_OF_SETS: usize = 16;

/// The steps of a transaction, in order.
#[derive(Clone, Copy)]
enum Step {
    /// Deletes the old table.
    Discard,
    /// Creates the table and sets.
    Prepare,
    /// Writes the elements of new sets.
    Populate,
    /// Creates chains and objects.
    Create,
    /// Changes the elements of sets that rules use.
    Fill,
    /// Writes the rules of chains.
    Rules,
    /// Changes the links in maps.
    Links,
    /// Deletes the rules of chains that are deleted.
    Clear,
    /// Deletes chains.
    Chains,
    /// Deletes sets.
    Sets,
    /// Deletes counters.
    Objects,
}

const STEPS: usize = Step::Objects as usize + 1;

/// The object of a message. Displayed: `chain c0000000000000001: kernel rule 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    kind: ObjectKind,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    Table,
    Set,
    Elements,
    Chain,
    /// The index of a rule in its chain.
    Rule(usize),
    Counter,
    Limit,
}

impl Object {
    fn table() -> Object {
        Object { kind: ObjectKind::Table, name: NAME.to_owned() }
    }

    /// The part of the plan to which the object belongs.
    pub(super) fn part(&self) -> Option<PolicyPart> {
        match self.kind {
            ObjectKind::Set | ObjectKind::Elements => read_set_name(&self.name).map(PolicyPart::Set),
            ObjectKind::Chain | ObjectKind::Rule(_) => read_chain_name(&self.name).map(PolicyPart::Chain),
            ObjectKind::Table | ObjectKind::Counter | ObjectKind::Limit => None,
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.kind {
            ObjectKind::Table => write!(f, "table inet {name}"),
            ObjectKind::Set => write!(f, "set {name}"),
            ObjectKind::Elements => write!(f, "elements of set {name}"),
            ObjectKind::Chain => write!(f, "chain {name}"),
            ObjectKind::Rule(index) => write!(f, "chain {name}: kernel rule {index}"),
            ObjectKind::Counter => write!(f, "counter {name}"),
            ObjectKind::Limit => write!(f, "limit {name}"),
        }
    }
}

/// Messages, and the object of each.
#[derive(Default)]
struct Part {
    messages: Messages,
    objects: Vec<Object>,
}

impl Part {
    fn append(&mut self, other: &Part, range: Range<usize>) {
        self.messages.append(&other.messages, range.clone());
        self.objects.extend_from_slice(&other.objects[range]);
    }

    fn append_all(&mut self, others: &[Part]) {
        others.iter().for_each(|other| self.append(other, 0..other.objects.len()));
    }

    /// Runs the messages as one transaction.
    fn run(self, connection: &mut Connection) -> Result<(), PolicyError> {
        connection.transact(&self.messages).map_err(|error| {
            let index = match &error {
                TransactionError::Refused { index, .. } => *index,
                TransactionError::Socket(_) => None,
            };
            let object = index.and_then(|index| self.objects.into_iter().nth(index));
            let object = object.unwrap_or_else(Object::table);
            PolicyError::Refused { object, error }
        })
    }
}

fn object(kind: ObjectKind, name: &str) -> Object {
    Object { kind, name: name.to_owned() }
}

/// A transaction.
#[derive(Default)]
pub(super) struct Transaction {
    parts: [Part; STEPS],
    /// The sets that the transaction creates.
    new_sets: HashSet<String>,
    changed: usize,
}

impl Transaction {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.objects.is_empty())
    }

    /// Runs the transaction. Returns the number of changed objects.
    pub(super) fn run(self, connection: &mut Connection) -> Result<usize, PolicyError> {
        let mut all = Part::default();
        let populate = &self.parts[Step::Populate as usize];
        let discards = !self.parts[Step::Discard as usize].objects.is_empty();
        // The sets of a table that replaces another cannot exist before.
        if populate.objects.len() > MESSAGES_OF_SETS && !discards {
            let mut prepare = Part::default();
            prepare.append_all(&self.parts[..Step::Populate as usize]);
            prepare.run(connection)?;
            for start in (0..populate.objects.len()).step_by(MESSAGES_OF_SETS) {
                let mut part = Part::default();
                part.append(populate, start..populate.objects.len().min(start + MESSAGES_OF_SETS));
                part.run(connection)?;
            }
            all.append_all(&self.parts[Step::Populate as usize + 1..]);
        } else {
            all.append_all(&self.parts);
        }
        all.run(connection)?;
        Ok(self.changed)
    }

    fn push(
        &mut self,
        step: Step,
        kind: u16,
        flags: u16,
        object: Object,
        content: impl FnOnce(&mut Vec<u8>),
    ) {
        let part = &mut self.parts[step as usize];
        part.messages.push(kind, flags, libc::NFPROTO_INET, |message| {
            text(message, TABLE, NAME);
            content(message);
        });
        part.objects.push(object);
    }

    fn create(&mut self, step: Step, kind: u16, object: Object, content: impl FnOnce(&mut Vec<u8>)) {
        self.changed += 1;
        self.push(step, kind, NLM_F_CREATE | NLM_F_EXCL, object, content);
    }

    fn delete(&mut self, step: Step, kind: u16, object: Object, content: impl FnOnce(&mut Vec<u8>)) {
        self.changed += 1;
        self.push(step, kind, 0, object, content);
    }

    pub(super) fn add_table(&mut self, protection: Protection) {
        self.create(Step::Prepare, NEW_TABLE, Object::table(), |message| {
            if protection.flags() != 0 {
                number(message, TABLE_FLAGS, protection.flags());
            }
        });
    }

    /// Becomes the owner of the table of the last run.
    pub(super) fn adopt_table(&mut self, protection: Protection) {
        self.push(Step::Prepare, NEW_TABLE, NLM_F_CREATE, Object::table(), |message| {
            number(message, TABLE_FLAGS, protection.flags());
        });
    }

    pub(super) fn delete_table(&mut self) {
        self.delete(Step::Discard, DELETE_TABLE, Object::table(), |_| {});
    }

    pub(super) fn add_base_chain(&mut self, chain: &BaseChain) {
        self.create(Step::Create, NEW_CHAIN, object(ObjectKind::Chain, chain.name), |message| {
            text(message, CHAIN_NAME, chain.name);
            text(message, CHAIN_TYPE, "filter");
            number(message, CHAIN_POLICY, ACCEPT);
            attribute(message, CHAIN_HOOK | NESTED, |hook| {
                number(hook, HOOK_NUMBER, chain.hook);
                number(hook, HOOK_PRIORITY, chain.priority as u32);
            });
        });
    }

    pub(super) fn add_chain(&mut self, name: &str) {
        self.create(Step::Create, NEW_CHAIN, object(ObjectKind::Chain, name), |message| {
            text(message, CHAIN_NAME, name)
        });
    }

    /// Writes the rules of a chain. `replaces`: the chain can have other rules.
    pub(super) fn write_rules(&mut self, name: &str, rules: &ChainRules, replaces: bool) {
        if replaces {
            self.changed += 1;
            self.push(Step::Rules, DELETE_RULE, 0, object(ObjectKind::Chain, name), |message| {
                text(message, RULE_CHAIN, name);
            });
        }
        for (index, (comment, rule)) in rules.iter().enumerate() {
            self.add_rule(name, index, &comment, rule);
        }
    }

    fn add_rule(&mut self, chain: &str, index: usize, comment: &str, rule: &Expressions) {
        let object = object(ObjectKind::Rule(index), chain);
        self.push(Step::Rules, NEW_RULE, NLM_F_CREATE | libc::NLM_F_APPEND as u16, object, |message| {
            text(message, RULE_CHAIN, chain);
            octets(message, RULE_EXPRESSIONS | NESTED, rule.octets());
            attribute(message, RULE_DATA, |data| {
                data.extend_from_slice(&[COMMENT, comment.len() as u8 + 1]);
                data.extend_from_slice(comment.as_bytes());
                data.push(0);
            });
        });
    }

    pub(super) fn delete_chain(&mut self, name: &str) {
        self.push(Step::Clear, DELETE_RULE, 0, object(ObjectKind::Chain, name), |message| {
            text(message, RULE_CHAIN, name);
        });
        self.delete(Step::Chains, DELETE_CHAIN, object(ObjectKind::Chain, name), |message| {
            text(message, CHAIN_NAME, name);
        });
    }

    pub(super) fn add_set(&mut self, name: &str, layout: Layout) {
        let id = self.new_sets.len() as u32;
        self.new_sets.insert(name.to_owned());
        self.create(Step::Prepare, NEW_SET, object(ObjectKind::Set, name), |message| {
            text(message, SET_NAME, name);
            number(message, SET_FLAGS, layout.flags);
            number(message, SET_KEY_TYPE, layout.key_type);
            number(message, SET_KEY_LENGTH, layout.key_length);
            if layout.is_map() {
                number(message, SET_DATA_TYPE, VERDICT);
                number(message, SET_DATA_LENGTH, 0);
            }
            number(message, SET_ID, id);
            attribute(message, SET_DATA, |data| {
                data.extend_from_slice(&[KEY_BYTE_ORDER, 4]);
                data.extend_from_slice(&layout.byte_order.to_ne_bytes());
            });
        });
    }

    pub(super) fn delete_set(&mut self, name: &str) {
        self.delete(Step::Sets, DELETE_SET, object(ObjectKind::Set, name), |message| {
            text(message, SET_NAME, name);
        });
    }

    /// Deletes all elements of a set.
    pub(super) fn flush_set(&mut self, name: &str) {
        self.push(Step::Fill, DELETE_ELEMENTS, 0, object(ObjectKind::Set, name), |message| {
            text(message, SET_NAME, name);
        });
    }

    /// Changes elements of a set of policies.
    pub(super) fn change_set(&mut self, name: &str, added: &[Entry], removed: &[Entry]) {
        let step = if self.new_sets.contains(name) { Step::Populate } else { Step::Fill };
        self.change_elements(step, name, added, removed);
    }

    /// Changes elements of a map, or of the set of pairs.
    pub(super) fn change_links(&mut self, name: &str, added: &[Entry], removed: &[Entry]) {
        self.change_elements(Step::Links, name, added, removed);
    }

    fn change_elements(&mut self, step: Step, set: &str, added: &[Entry], removed: &[Entry]) {
        self.changed += added.len() + removed.len();
        for (kind, flags, entries) in [(DELETE_ELEMENTS, 0, removed), (NEW_ELEMENTS, NLM_F_CREATE, added)] {
            for part in entries.chunks(ELEMENTS_PER_MESSAGE) {
                self.push(step, kind, flags, object(ObjectKind::Elements, set), |message| {
                    text(message, SET_NAME, set);
                    attribute(message, LIST_ELEMENTS | NESTED, |list| {
                        part.iter().for_each(|entry| entry.write(list));
                    });
                });
            }
        }
    }

    pub(super) fn add_counter(&mut self, name: &str) {
        self.create(Step::Create, NEW_OBJECT, object(ObjectKind::Counter, name), |message| {
            text(message, OBJECT_NAME, name);
            number(message, OBJECT_TYPE, COUNTER);
            attribute(message, OBJECT_DATA | NESTED, |_| {});
        });
    }

    pub(super) fn add_limit(&mut self) {
        self.create(Step::Create, NEW_OBJECT, object(ObjectKind::Limit, LIMIT_NAME), |message| {
            let (rate, burst) = RATE;
            text(message, OBJECT_NAME, LIMIT_NAME);
            number(message, OBJECT_TYPE, LIMIT);
            attribute(message, OBJECT_DATA | NESTED, |data| {
                octets(data, LIMIT_RATE, &rate.to_be_bytes());
                octets(data, LIMIT_UNIT, &1_u64.to_be_bytes());
                number(data, LIMIT_BURST, burst);
            });
        });
    }

    pub(super) fn delete_object(&mut self, name: &str, kind: u32) {
        self.delete(Step::Objects, DELETE_OBJECT, object(ObjectKind::Counter, name), |message| {
            text(message, OBJECT_NAME, name);
            number(message, OBJECT_TYPE, kind);
        });
    }
}
