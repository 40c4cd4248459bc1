//! Decoder of rules: kube-proxy's rules in mode iptables, and the rules that lead packets to them.
//!
//! | table, chain | a rule there |
//! |---|---|
//! | `nat KUBE-SERVICES` | translates a port: `daddr`, protocol, `dport`, a jump |
//! | `filter KUBE-SERVICES`, `filter KUBE-EXTERNAL-SERVICES` | drops or rejects a port without endpoints |
//! | `nat PREROUTING` | leads packets to `KUBE-SERVICES` |
//! | table `kube-proxy`, any chain | leads packets to the map `service-ips` (mode nftables) |
//!
//! iptables-nft 1.8.8 and newer writes native expressions, older releases write the matches of
//! x_tables for ports. Both are read. A rule with a condition that this decoder does not know
//! does not count: it may not match a packet from outside. `KUBE-PROXY-FIREWALL`
//! (`loadBalancerSourceRanges`) does not count either: such a port is forwarded for some clients.

use std::net::IpAddr;

use super::AddressPort;
use super::elements::{self, split_address, text, text_of, value};
use super::state::{Map, ProxyMessage, Rule, RuleId, Table};
use crate::family::IpFamily;
use crate::netlink::message::values;
use trunkline_api::service::Protocol;

pub(super) const NAT: &str = "nat";
pub(super) const FILTER: &str = "filter";
pub(super) const PREROUTING: &str = "PREROUTING";
pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";

// NFTA_RULE_…
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
// NFTA_LIST_ELEM, NFTA_EXPR_…, NFTA_DATA_…
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
// NFTA_META_KEY, NFTA_PAYLOAD_…, NFTA_CMP_…, NFTA_IMMEDIATE_DATA, NFTA_VERDICT_…
const META_KEY: u16 = 2;
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
const PAYLOAD_LENGTH: u16 = 4;
const CMP_OPERATOR: u16 = 2;
const CMP_DATA: u16 = 3;
const IMMEDIATE_DATA: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
// NFTA_MATCH_NAME, NFTA_MATCH_INFO, NFTA_TARGET_NAME, NFTA_LOOKUP_SET
const MATCH_NAME: u16 = 1;
const MATCH_INFO: u16 = 3;
const TARGET_NAME: u16 = 1;
const LOOKUP_SET: u16 = 1;

/// `NFT_META_L4PROTO`.
const L4PROTO: u32 = 16;
// NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// `NFT_CMP_EQ`.
const EQUAL: u32 = 0;

/// A rule is new or deleted. None if it does not concern the service proxy.
pub(super) fn rule(family: IpFamily, attributes: &[u8], exists: bool) -> Option<ProxyMessage> {
    let (mut table, mut chain, mut handle, mut expressions) = ("", "", None, &[][..]);
    for (kind, value) in values(attributes) {
        match kind {
            RULE_TABLE => table = text(value),
            RULE_CHAIN => chain = text(value),
            RULE_HANDLE => handle = value.try_into().ok().map(u64::from_be_bytes),
            RULE_EXPRESSIONS => expressions = value,
            _ => {}
        }
    }
    let (table, read): (Table, ReadRule) = match (table, chain) {
        (NAT, SERVICES) => (Table::Nat, translation),
        (NAT, PREROUTING) => (Table::Nat, dispatch),
        (FILTER, SERVICES | EXTERNAL_SERVICES) => (Table::Filter, block),
        (elements::TABLE, _) => (Table::KubeProxy, lookup),
        _ => return None,
    };
    let rule = if exists { Some(read(family, expressions)?) } else { None };
    Some(ProxyMessage::Rule { id: RuleId { family, table, handle: handle? }, rule })
}

/// Reads a rule from the attribute with its expressions.
type ReadRule = fn(IpFamily, &[u8]) -> Option<Rule>;

/// A rule of `nat KUBE-SERVICES`.
fn translation(family: IpFamily, expressions: &[u8]) -> Option<Rule> {
    let conditions = Conditions::read(family, expressions);
    match conditions.jump? {
        NODE_PORTS => Some(Rule::ToNodePorts),
        _ => conditions.port().map(Rule::Translates),
    }
}

/// A rule of `nat PREROUTING`.
fn dispatch(family: IpFamily, expressions: &[u8]) -> Option<Rule> {
    (Conditions::read(family, expressions).jump? == SERVICES).then_some(Rule::ToServices)
}

/// A rule of the chains for Services without endpoints.
fn block(family: IpFamily, expressions: &[u8]) -> Option<Rule> {
    let conditions = Conditions::read(family, expressions);
    if !conditions.drops {
        return None;
    }
    conditions.port().map(Rule::Blocks)
}

/// A rule of the table `kube-proxy`.
fn lookup(_: IpFamily, expressions: &[u8]) -> Option<Rule> {
    let services = Some(Map::Services.name());
    let looks_up = |(name, data): (&str, &[u8])| name == "lookup" && text_of(data, LOOKUP_SET) == services;
    list(expressions).any(looks_up).then_some(Rule::ToMap)
}

/// The expressions of a rule: name and attributes.
fn list(expressions: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    values(expressions)
        .filter(|(kind, _)| *kind == ELEMENT)
        .filter_map(|(_, expression)| text_of(expression, EXPRESSION_NAME).map(|name| (name, expression)))
        .map(|(name, expression)| (name, value(expression, EXPRESSION_DATA).unwrap_or_default()))
}

/// A field that an expression loads into a register.
#[derive(Clone, Copy)]
enum Field {
    Destination,
    Protocol,
    Port,
}

/// The conditions and the effect of a rule.
#[derive(Default)]
struct Conditions<'a> {
    address: Option<IpAddr>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    /// The chain of a jump or a goto.
    jump: Option<&'a str>,
    /// Whether it drops or rejects.
    drops: bool,
    /// Whether it has a condition that this decoder does not know.
    other: bool,
}

impl<'a> Conditions<'a> {
    fn read(family: IpFamily, expressions: &'a [u8]) -> Conditions<'a> {
        let mut found = Conditions::default();
        let mut loaded = None;
        for (name, data) in list(expressions) {
            match name {
                "meta" => loaded = (number(data, META_KEY) == Some(L4PROTO)).then_some(Field::Protocol),
                "payload" => loaded = payload(family, data),
                "cmp" => found.compare(family, loaded.take(), data),
                "match" => found.extension(data),
                "target" => match text_of(data, TARGET_NAME) {
                    Some("REJECT" | "DROP") => found.drops = true,
                    _ => found.other = true,
                },
                "reject" => found.drops = true,
                "immediate" => found.verdict(data),
                "counter" => {}
                _ => found.other = true,
            }
        }
        found
    }

    /// The port, if the rule has no other condition.
    fn port(&self) -> Option<AddressPort> {
        if self.other {
            return None;
        }
        Some(AddressPort { address: self.address?, protocol: self.protocol?, port: self.port? })
    }

    fn compare(&mut self, family: IpFamily, field: Option<Field>, data: &[u8]) {
        let constant = value(data, CMP_DATA).and_then(|data| value(data, DATA_VALUE)).unwrap_or_default();
        let is_equal = number(data, CMP_OPERATOR) == Some(EQUAL);
        let known = match field {
            Some(Field::Destination) if is_equal => {
                self.address = split_address(family, constant).map(|(address, _)| address);
                self.address.is_some()
            }
            Some(Field::Protocol) if is_equal => {
                self.protocol = constant.first().copied().and_then(Protocol::from_number);
                self.protocol.is_some()
            }
            Some(Field::Port) if is_equal => {
                self.port = constant.try_into().ok().map(u16::from_be_bytes);
                self.port.is_some()
            }
            _ => false,
        };
        self.other |= !known;
    }

    /// A match of x_tables, with its structure in host byte order.
    fn extension(&mut self, data: &[u8]) {
        let info = value(data, MATCH_INFO).unwrap_or_default();
        let half = |index: usize| info.get(2 * index..2 * index + 2).map(|two| [two[0], two[1]]);
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| half(index).map(u16::from_ne_bytes));
        // struct xt_tcp { spts[2], dpts[2], option, flg_mask, flg_cmp, invflags },
        // struct xt_udp { spts[2], dpts[2], invflags }, struct xt_sctp_info { dpts[2], spts[2], … }
        let (sources, ports, flags) = match text_of(data, MATCH_NAME) {
            Some("comment") => return,
            Some("tcp") => ([a, b], [c, d], info.get(8..12)),
            Some("udp") => ([a, b], [c, d], info.get(8..9)),
            Some("sctp") => ([c, d], [a, b], Some(&[][..])),
            _ => return self.other = true,
        };
        let any_source = matches!(sources, [Some(0), Some(0 | u16::MAX)]);
        let no_flag = flags.is_some_and(|flags| flags.iter().all(|octet| *octet == 0));
        match ports {
            [Some(first), Some(last)] if first == last && any_source && no_flag => self.port = Some(first),
            _ => self.other = true,
        }
    }

    fn verdict(&mut self, data: &'a [u8]) {
        let verdict = value(data, IMMEDIATE_DATA).and_then(|data| value(data, DATA_VERDICT));
        let Some(verdict) = verdict else { return self.other = true };
        match number(verdict, VERDICT_CODE).map(|code| code as i32) {
            Some(libc::NFT_JUMP | libc::NFT_GOTO) => self.jump = text_of(verdict, VERDICT_CHAIN),
            Some(libc::NF_DROP) => self.drops = true,
            _ => self.other = true,
        }
    }
}

/// The field that a payload expression loads.
fn payload(family: IpFamily, data: &[u8]) -> Option<Field> {
    let place = (number(data, PAYLOAD_BASE)?, number(data, PAYLOAD_OFFSET)?, number(data, PAYLOAD_LENGTH)?);
    match (family, place) {
        (IpFamily::V4, (NETWORK_HEADER, 16, 4)) | (IpFamily::V6, (NETWORK_HEADER, 24, 16)) => {
            Some(Field::Destination)
        }
        (IpFamily::V4, (NETWORK_HEADER, 9, 1)) | (IpFamily::V6, (NETWORK_HEADER, 6, 1)) => {
            Some(Field::Protocol)
        }
        (_, (TRANSPORT_HEADER, 2, 2)) => Some(Field::Port),
        _ => None,
    }
}

/// An attribute of 32 bits in network byte order.
fn number(octets: &[u8], kind: u16) -> Option<u32> {
    value(octets, kind).and_then(|value| value.try_into().ok()).map(u32::from_be_bytes)
}
