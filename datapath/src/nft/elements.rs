//! Elements of sets in the agent's nftables tables, and the values of named counters, over netlink.
//!
//! nf_tables applies the changes between two batch messages as one transaction. This module only
//! adds, deletes and lists elements, and reads counters. `linux/netfilter/nf_tables.h` defines the
//! layouts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    parse_string,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use crate::netlink::message::{self, Message};

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const BATCH_BEGIN: u16 = libc::NLMSG_MIN_TYPE as u16;
const BATCH_END: u16 = BATCH_BEGIN + 1;
const NEW_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_NEWSETELEM as u16;
const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_GETSETELEM as u16;
const DELETE_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_DELSETELEM as u16;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_GETGEN as u16;
const GET_OBJECTS: u16 = SUBSYSTEM << 8 | 19; // NFT_MSG_GETOBJ

/// Flag of an attribute that contains attributes.
const NESTED: u16 = 1 << 15;
// NFTA_SET_ELEM_LIST_…, NFTA_LIST_ELEM, NFTA_SET_ELEM_…, NFTA_DATA_VALUE
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const KEY_END: u16 = 10;
const VALUE: u16 = 1;
// NFTA_OBJ_…, NFTA_COUNTER_…
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_DATA: u16 = 4;
const COUNTER_PACKETS: u16 = 2;
// NFTA_GEN_ID
const GENERATION: u16 = 1;

/// Maximum number of elements in one message: an attribute's length has 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// A set of one of the agent's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetName {
    /// `NFPROTO_…` of the table.
    pub(crate) family: i32,
    /// The table.
    pub(crate) table: &'static str,
    /// The set.
    pub(crate) name: &'static str,
}

/// An element: its key, and the last key of its range in a set of intervals. The ifindex is in host
/// byte order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element {
    key: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Element {
    /// An element of type `ipv4_addr` or `ipv6_addr`.
    pub(crate) fn address(address: IpAddr) -> Element {
        Element { key: octets(address), end: None }
    }

    /// An element of type `iface_index . ipv4_addr` or `iface_index . ipv6_addr`.
    pub(crate) fn on_link(ifindex: u32, address: IpAddr) -> Element {
        Element { key: concatenated(ifindex, address), end: None }
    }

    /// An element of these types, with `flags interval`.
    pub(crate) fn prefix_on_link(ifindex: u32, prefix: IpNet) -> Element {
        let end = concatenated(ifindex, prefix.broadcast());
        Element { key: concatenated(ifindex, prefix.network()), end: Some(end) }
    }
}

/// The element in the format of `nft`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ifindex, first) = split(&self.key);
        if let Some(ifindex) = ifindex {
            write!(f, "{ifindex} . ")?;
        }
        write!(f, "{first}")?;
        match self.end.as_deref().map(split) {
            Some((_, last)) if last != first => write!(f, "-{last}"),
            _ => Ok(()),
        }
    }
}

/// The ifindex of a key, if it has one, and its address.
fn split(key: &[u8]) -> (Option<u32>, IpAddr) {
    let (link, address) = match key.len() {
        8 | 20 => key.split_at(4),
        _ => (&[][..], key),
    };
    let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(octets), _) => IpAddr::from(octets),
        (_, Ok(octets)) => IpAddr::from(octets),
        _ => IpAddr::from([0; 4]), // this module creates no other type of key
    };
    (link.try_into().ok().map(u32::from_ne_bytes), address)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn concatenated(ifindex: u32, address: IpAddr) -> Vec<u8> {
    [ifindex.to_ne_bytes().to_vec(), octets(address)].concat()
}

/// A socket to nf_tables in the network namespace of the thread that opened it.
pub(crate) struct Connection {
    socket: Socket,
    port: u32,
    sequence: u32,
    receive: Vec<u8>,
    /// Whether the ifindex in a set of intervals is in network byte order; none until it is known.
    network_order: Option<bool>,
}

impl Connection {
    pub(crate) fn open() -> io::Result<Connection> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        let receive = Vec::with_capacity(64 << 10);
        Ok(Connection { socket, port, sequence: 0, receive, network_order: None })
    }

    /// The netlink port ID of this socket in notifications.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Adds elements. Existing elements stay.
    pub(crate) fn add<'a>(
        &mut self,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        self.transact(NEW_ELEMENTS, NLM_F_CREATE, elements)
    }

    /// Deletes elements. If one does not exist, the whole transaction fails with `NotFound`.
    pub(crate) fn delete<'a>(
        &mut self,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        self.transact(DELETE_ELEMENTS, 0, elements)
    }

    fn transact<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        let mut elements: Vec<(SetName, &Element)> = elements.into_iter().collect();
        if elements.is_empty() {
            return Ok(());
        }
        elements.sort();
        let swaps = match elements.iter().any(|(_, element)| element.end.is_some()) {
            true => self.swaps()?,
            false => false,
        };
        let first = self.sequence.wrapping_add(1);
        let mut batch = Messages::default();
        batch.push(BATCH_BEGIN, 0, first, libc::AF_UNSPEC, |_| {});
        let mut sequence = first;
        for of_set in elements.chunk_by(|a, b| a.0 == b.0) {
            for part in of_set.chunks(ELEMENTS_PER_MESSAGE) {
                sequence = sequence.wrapping_add(1);
                let set = part[0].0;
                batch.push(kind, flags | NLM_F_ACK, sequence, set.family, |message| {
                    list(message, set, part.iter().map(|(_, element)| *element), swaps);
                });
            }
        }
        let last = sequence;
        self.sequence = last.wrapping_add(1);
        batch.push(BATCH_END, 0, self.sequence, libc::AF_UNSPEC, |_| {});
        self.socket.send(&batch.octets, 0)?;
        let mut failed = None;
        loop {
            self.read()?;
            for message in message::messages(&self.receive).filter(|message| message.kind == NLMSG_ERROR) {
                let index = message.sequence.wrapping_sub(first);
                if index > last.wrapping_sub(first) {
                    continue; // an answer to an earlier transaction
                }
                failed = failed.or(error_of(&message));
                // If the kernel refuses a whole transaction, the error has the sequence number of
                // the first message.
                if message.sequence == last || (index == 0 && failed.is_some()) {
                    return failed.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Whether the ifindex in a set of intervals must be swapped from host byte order. The kernel
    /// does not interpret these octets. The rule with the look-up determines the order, and it
    /// depends on the version of `nft` that loaded the rule. So this function adds an element with
    /// `nft` and reads it.
    fn swaps(&mut self) -> io::Result<bool> {
        if let Some(known) = self.network_order {
            return Ok(known && cfg!(target_endian = "little"));
        }
        let (family, table, name) = ("inet", "trunkline-order", "links");
        super::run(&format!(
            "add table {family} {table}\n\
             add set {family} {table} {name} {{ type iface_index . ipv4_addr; flags interval; }}\n\
             add element {family} {table} {name} {{ 1 . 192.0.2.1 }}\n"
        ))
        .map_err(io::Error::other)?;
        let found = self.raw_elements(SetName { family: libc::NFPROTO_INET, table, name });
        super::run(&format!("delete table {family} {table}\n")).map_err(io::Error::other)?;
        let key = found?.into_iter().find_map(|element| element.key.first_chunk::<4>().copied());
        let key = key.ok_or_else(|| io::Error::other("nft has added no element"))?;
        self.network_order = Some(key == 1_u32.to_be_bytes());
        self.swaps()
    }

    /// The elements of a set, with the ifindex in host byte order.
    pub(crate) fn elements(&mut self, set: SetName) -> io::Result<BTreeSet<Element>> {
        let found = self.raw_elements(set)?;
        let swaps = found.iter().any(|element| element.end.is_some()) && self.swaps()?;
        let ordered = |Element { key, end }| Element {
            key: on_wire(&key, swaps).into_owned(),
            end: end.map(|end: Vec<u8>| on_wire(&end, swaps).into_owned()),
        };
        Ok(found.into_iter().map(ordered).collect())
    }

    /// The elements of a set, with unchanged octets.
    fn raw_elements(&mut self, set: SetName) -> io::Result<Vec<Element>> {
        let mut found = Vec::new();
        self.dump(
            GET_ELEMENTS,
            set.family,
            |message| list(message, set, std::iter::empty(), false),
            |message| {
                for list in nested(after_header(message), LIST_ELEMENTS) {
                    for element in nested(list, ELEMENT) {
                        let value = |kind| nested(element, kind).flat_map(|data| nested(data, VALUE)).next();
                        if let Some(key) = value(KEY) {
                            found
                                .push(Element { key: key.to_vec(), end: value(KEY_END).map(<[u8]>::to_vec) });
                        }
                    }
                }
            },
        )?;
        Ok(found)
    }

    /// The named counters of a table, with their packets.
    pub(crate) fn counters(&mut self, family: i32, table: &str) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        self.dump(
            GET_OBJECTS,
            family,
            |message| text(message, OBJECT_TABLE, table),
            |message| {
                let body = after_header(message);
                let name = nested(body, OBJECT_NAME).find_map(|name| parse_string(name).ok());
                let of_table = nested(body, OBJECT_TABLE).find_map(|name| parse_string(name).ok());
                let packets = nested(body, OBJECT_DATA).flat_map(|data| nested(data, COUNTER_PACKETS)).next();
                let packets = packets.and_then(|octets| octets.try_into().ok()).map(u64::from_be_bytes);
                if let (Some(name), Some(packets)) = (name, packets)
                    && of_table.as_deref() == Some(table)
                {
                    found.push((name, packets));
                }
            },
        )?;
        Ok(found)
    }

    /// The generation of the ruleset. Each commit increases it.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut batch = Messages::default();
        batch.push(GET_GENERATION, 0, self.sequence, libc::AF_UNSPEC, |_| {});
        self.socket.send(&batch.octets, 0)?;
        loop {
            self.read()?;
            let mut answers = message::messages(&self.receive);
            let Some(answer) = answers.find(|message| message.sequence == self.sequence) else {
                continue; // an answer to an earlier request
            };
            if answer.kind == NLMSG_ERROR {
                return Err(error_of(&answer).unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
            }
            let number = nested(after_header(&answer), GENERATION).find_map(|id| id.try_into().ok());
            return number.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
    }

    /// Runs a dump request (`NFT_MSG_GET…` of a table family) and passes each object's message to
    /// `each`. Returns whether the list is whole: no object changed meanwhile.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        family: i32,
        request: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(&Message<'_>),
    ) -> io::Result<bool> {
        let mut whole = true;
        self.sequence = self.sequence.wrapping_add(1);
        let mut batch = Messages::default();
        batch.push(kind, NLM_F_DUMP, self.sequence, family, request);
        self.socket.send(&batch.octets, 0)?;
        loop {
            self.read()?;
            for message in
                message::messages(&self.receive).filter(|message| message.sequence == self.sequence)
            {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => return error_of(&message).map_or(Ok(whole), Err),
                    _ => each(&message),
                }
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        self.receive.clear();
        self.socket.recv(&mut self.receive, 0).map(drop)
    }
}

/// The error in an `NLMSG_ERROR`; none in an acknowledgement.
fn error_of(message: &Message<'_>) -> Option<io::Error> {
    let code = i32::from_ne_bytes(*message.body.first_chunk()?);
    (code != 0).then(|| io::Error::from_raw_os_error(code.wrapping_neg()))
}

/// The attributes of a message: the octets after `nfgenmsg`.
fn after_header<'a>(message: &Message<'a>) -> &'a [u8] {
    message.body.get(4..).unwrap_or_default()
}

/// The values of the attributes of one kind.
fn nested(octets: &[u8], kind: u16) -> impl Iterator<Item = &[u8]> {
    message::values(octets).filter(move |(found, _)| *found == kind).map(|(_, value)| value)
}

fn attribute(message: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    let start = message.len();
    message.extend_from_slice(&[0; 4]);
    content(message);
    let length = (message.len() - start) as u16;
    message[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    message[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Writes an attribute of text.
pub(crate) fn text(message: &mut Vec<u8>, kind: u16, text: &str) {
    attribute(message, kind, |value| value.extend_from_slice(&[text.as_bytes(), &[0]].concat()));
}

/// A key whose ifindex, if it has one, is in the byte order of the kernel's set.
fn on_wire(key: &[u8], swaps: bool) -> Cow<'_, [u8]> {
    let mut key = Cow::Borrowed(key);
    if swaps && matches!(key.len(), 8 | 20) {
        key.to_mut()[..4].reverse();
    }
    key
}

/// Writes a set and its elements, if there are any. `swaps`: the ifindex of elements with a range
/// is swapped.
fn list<'a>(message: &mut Vec<u8>, set: SetName, elements: impl Iterator<Item = &'a Element>, swaps: bool) {
    text(message, LIST_TABLE, set.table);
    text(message, LIST_SET, set.name);
    let mut elements = elements.peekable();
    if elements.peek().is_none() {
        return;
    }
    attribute(message, LIST_ELEMENTS | NESTED, |list| {
        for element in elements {
            attribute(list, ELEMENT | NESTED, |nested| {
                let mut data = |kind, key: &[u8]| {
                    attribute(nested, kind | NESTED, |data| {
                        attribute(data, VALUE, |value| value.extend_from_slice(key));
                    });
                };
                let swaps = swaps && element.end.is_some();
                data(KEY, &on_wire(&element.key, swaps));
                if let Some(end) = &element.end {
                    data(KEY_END, &on_wire(end, swaps));
                }
            });
        }
    });
}

/// A sequence of messages, each with its `nlmsghdr` and `nfgenmsg`.
#[derive(Default)]
struct Messages {
    octets: Vec<u8>,
}

impl Messages {
    fn push(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        family: i32,
        content: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.octets.len();
        self.octets.extend_from_slice(&[0; 4]);
        self.octets.extend_from_slice(&kind.to_ne_bytes());
        self.octets.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.octets.extend_from_slice(&sequence.to_ne_bytes());
        self.octets.extend_from_slice(&[0; 4]);
        // The batch messages contain the subsystem in network byte order.
        let resource = if kind < 0x100 { SUBSYSTEM.to_be_bytes() } else { [0; 2] };
        self.octets.extend_from_slice(&[family as u8, 0, resource[0], resource[1]]);
        content(&mut self.octets);
        let length = (self.octets.len() - start) as u32;
        self.octets[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }
}
