//! The content of the kernel's table.

use std::collections::HashMap;
use std::io;

use super::NAME;
use super::base::BaseChain;
use super::expressions::LIMIT;
use super::objects::{Entry, LIMIT_NAME, Layout};
use super::transaction::{RATE, VERDICT, message};
use crate::netlink::message::Message;
use crate::netlink::netfilter::{Connection, after_header, nested, number_of, text, text_of};

const GET_TABLES: u16 = message(libc::NFT_MSG_GETTABLE);
const GET_CHAINS: u16 = message(libc::NFT_MSG_GETCHAIN);
const GET_RULES: u16 = message(libc::NFT_MSG_GETRULE);
const GET_SETS: u16 = message(libc::NFT_MSG_GETSET);
const GET_ELEMENTS: u16 = message(libc::NFT_MSG_GETSETELEM);
const GET_OBJECTS: u16 = message(19);

/// The table's name in all messages.
const TABLE: u16 = 1;
const TABLE_FLAGS: u16 = 2;
// NFTA_CHAIN_…, NFTA_HOOK_…
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
const RULE_DATA: u16 = 7;
// NFTA_SET_…, NFTA_SET_ELEM_LIST_…
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const LIST_ELEMENTS: u16 = 3;
// NFTA_OBJ_…, NFTA_LIMIT_…
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const LIMIT_RATE: u16 = 1;
const LIMIT_UNIT: u16 = 2;
const LIMIT_BURST: u16 = 3;

/// Tries of a list, while other programs change the ruleset.
const TRIES: usize = 8;

/// A chain in the kernel.
#[derive(Debug, Default)]
pub(super) struct FoundChain {
    /// None: no base chain.
    base: Option<FoundBase>,
    /// The comments of its rules, in order. None: a rule without a comment.
    pub(super) rules: Vec<Option<String>>,
}

#[derive(Debug, PartialEq, Eq)]
struct FoundBase {
    kind: String,
    hook: Option<u32>,
    priority: Option<i32>,
    policy: Option<u32>,
}

impl FoundChain {
    /// Whether the chain has the properties of a base chain. None: of a chain without a hook.
    pub(super) fn is_like(&self, base: Option<&BaseChain>) -> bool {
        let wanted = base.map(|base| FoundBase {
            kind: "filter".to_owned(),
            hook: Some(base.hook),
            priority: Some(base.priority),
            policy: Some(ACCEPT),
        });
        self.base == wanted
    }
}

/// A set in the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundSet {
    flags: u32,
    key_type: Option<u32>,
    key_length: Option<u32>,
    data_type: Option<u32>,
}

impl FoundSet {
    /// Whether the set has this layout.
    pub(super) fn is_like(&self, layout: Layout) -> bool {
        let wanted = FoundSet {
            flags: layout.flags,
            key_type: Some(layout.key_type),
            key_length: Some(layout.key_length),
            data_type: layout.is_map().then_some(VERDICT),
        };
        *self == wanted
    }
}

/// A counter, the limit, or a foreign object.
#[derive(Debug)]
pub(super) struct FoundObject {
    pub(super) kind: u32,
    /// Whether the object is the limit of reported packets, with the wanted rate.
    pub(super) is_limit: bool,
}

/// The kernel's table without elements.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Whether the table exists.
    pub(super) exists: bool,
    /// The flags of the table.
    pub(super) flags: u32,
    pub(super) chains: HashMap<String, FoundChain>,
    pub(super) sets: HashMap<String, FoundSet>,
    pub(super) objects: HashMap<String, FoundObject>,
}

impl Found {
    /// Lists the table.
    pub(super) fn list(connection: &mut Connection) -> io::Result<Found> {
        for _ in 1..TRIES {
            if let (found, true) = Found::list_once(connection)? {
                return Ok(found);
            }
        }
        // Transactions of other programs interrupt each list. If objects are missing in this one,
        // the kernel refuses the transaction that follows.
        Ok(Found::list_once(connection)?.0)
    }

    /// Whether the second value is false, another transaction interrupted the list.
    fn list_once(connection: &mut Connection) -> io::Result<(Found, bool)> {
        let mut found = Found::default();
        let mut whole = list(connection, GET_TABLES, |body| {
            found.exists = true;
            found.flags = number_of(body, TABLE_FLAGS).unwrap_or_default();
        })?;
        if !found.exists {
            return Ok((found, whole));
        }
        whole &= list(connection, GET_CHAINS, |body| {
            let hook = nested(body, CHAIN_HOOK).next();
            let base = hook.map(|hook| FoundBase {
                kind: text_of(body, CHAIN_TYPE).unwrap_or_default().to_owned(),
                hook: number_of(hook, HOOK_NUMBER),
                priority: number_of(hook, HOOK_PRIORITY).map(|priority| priority as i32),
                policy: number_of(body, CHAIN_POLICY),
            });
            if let Some(name) = text_of(body, CHAIN_NAME) {
                found.chains.insert(name.to_owned(), FoundChain { base, rules: Vec::new() });
            }
        })?;
        whole &= list(connection, GET_RULES, |body| {
            let chain = text_of(body, RULE_CHAIN).and_then(|chain| found.chains.get_mut(chain));
            if let Some(chain) = chain {
                chain.rules.push(nested(body, RULE_DATA).next().and_then(comment));
            }
        })?;
        whole &= list(connection, GET_SETS, |body| {
            let number = |kind| number_of(body, kind);
            let set = FoundSet {
                // The kernel omits a zero.
                flags: number(SET_FLAGS).unwrap_or_default(),
                key_type: number(SET_KEY_TYPE),
                key_length: number(SET_KEY_LENGTH),
                data_type: number(SET_DATA_TYPE),
            };
            if let Some(name) = text_of(body, SET_NAME) {
                found.sets.insert(name.to_owned(), set);
            }
        })?;
        whole &= list(connection, GET_OBJECTS, |body| {
            if let (Some(name), Some(kind)) = (text_of(body, OBJECT_NAME), number_of(body, OBJECT_TYPE)) {
                let is_limit = name == LIMIT_NAME && kind == LIMIT && has_rate(body);
                found.objects.insert(name.to_owned(), FoundObject { kind, is_limit });
            }
        })?;
        Ok((found, whole))
    }
}

/// The elements of a set; none if the set does not exist.
pub(super) fn elements(connection: &mut Connection, set: &str) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        found.clear();
        let request = |message: &mut Vec<u8>| {
            text(message, TABLE, NAME);
            text(message, SET_NAME, set);
        };
        let whole = connection.dump(GET_ELEMENTS, libc::NFPROTO_INET, request, |message| {
            for list in nested(after_header(message), LIST_ELEMENTS) {
                found.extend(Entry::read_list(list));
            }
        });
        match whole {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Lists the objects of the table and passes the attributes of each to `each`. Returns whether no
/// other transaction interrupted the list.
fn list(connection: &mut Connection, kind: u16, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
    let request = |message: &mut Vec<u8>| text(message, TABLE, NAME);
    connection.dump(kind, libc::NFPROTO_INET, request, |message: &Message<'_>| {
        let body = after_header(message);
        // The kernel ignores the table's name in some requests.
        if text_of(body, TABLE) == Some(NAME) {
            each(body);
        }
    })
}

/// The comment in a rule's user data: type, length and value, one octet each for the first two.
fn comment(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let (value, after) = rest.split_at_checked(usize::from(*length))?;
        if *kind == 0 {
            let value = value.strip_suffix(&[0]).unwrap_or(value);
            return String::from_utf8(value.to_vec()).ok();
        }
        data = after;
    }
    None
}

fn has_rate(body: &[u8]) -> bool {
    let data = nested(body, OBJECT_DATA).next().unwrap_or_default();
    let long =
        |kind| nested(data, kind).next().and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
    let (rate, burst) = RATE;
    (long(LIMIT_RATE), long(LIMIT_UNIT), number_of(data, LIMIT_BURST)) == (Some(rate), Some(1), Some(burst))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_is_found_between_other_values() {
        let data = [1, 1, 7, 0, 4, b'a', b'b', b'c', 0, 2, 0];
        assert_eq!(comment(&data).as_deref(), Some("abc"));
        assert_eq!(comment(&data[3..9]).as_deref(), Some("abc"));
        for length in 0..9 {
            assert_eq!(comment(&data[..length]), None, "{length}");
        }
        assert_eq!(comment(&[0, 2, 0xff, 0]), None, "not UTF-8");
    }
}
