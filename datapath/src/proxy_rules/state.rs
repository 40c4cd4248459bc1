//! The known rules, and the changes of each transaction. Pure: no I/O.

use std::net::IpAddr;

use ipnet::IpNet;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{AddressPort, Backend, PortRules, RuleChange, elements, rules};
use crate::family::IpFamily;
use crate::netlink::message::Message;

/// A map of kube-proxy in mode nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// `service-ips`: ports that are translated.
    Services,
    /// `no-endpoint-services`: ports that are dropped or rejected.
    NoEndpoints,
}

/// A table with rules of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    /// `kube-proxy`, mode nftables.
    KubeProxy,
    /// `nat`, mode iptables.
    Nat,
    /// `filter`, mode iptables.
    Filter,
}

/// A rule. The kernel never uses a handle of a table again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RuleId {
    pub(super) family: IpFamily,
    pub(super) table: Table,
    pub(super) handle: u64,
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Translates a port (mode iptables).
    Translates(AddressPort),
    /// Drops or rejects a port (mode iptables).
    Blocks(AddressPort),
    /// Leads packets from outside to `KUBE-SERVICES`.
    ToServices,
    /// The last rule of `KUBE-SERVICES` in mode iptables. Mode IPVS does not have it.
    ToNodePorts,
    /// Leads packets to the map `service-ips` (mode nftables).
    ToMap,
}

/// A notification, or an object of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyMessage {
    /// kube-proxy's table exists, or was deleted.
    Table { family: IpFamily, exists: bool },
    /// A map exists, or was deleted with its elements.
    Map { family: IpFamily, map: Map, exists: bool },
    /// An element exists, or was deleted.
    Element { map: Map, port: AddressPort, exists: bool },
    /// A rule; none: it was deleted.
    Rule { id: RuleId, rule: Option<Rule> },
    /// The end of a transaction.
    Commit,
}

/// Decodes a message of nf_tables. Ignores messages that do not concern the service proxy, and
/// unreadable ones.
pub(super) fn decode(message: &Message<'_>, mut each: impl FnMut(ProxyMessage)) {
    // NFT_MSG_DESTROY…: a deletion that does not fail if the object is missing.
    const DESTROY_TABLE: i32 = 26;
    const DESTROY_RULE: i32 = 28;
    const DESTROY_SET: i32 = 29;
    const DESTROY_ELEMENTS: i32 = 30;
    let [subsystem, kind] = message.kind.to_be_bytes();
    if i32::from(subsystem) != libc::NFNL_SUBSYS_NFTABLES {
        return;
    }
    let kind = i32::from(kind);
    if kind == libc::NFT_MSG_NEWGEN {
        return each(ProxyMessage::Commit);
    }
    // `nfgenmsg`: family, version, resource.
    let Some((&[family, ..], attributes)) = message.body.split_first_chunk::<4>() else { return };
    let family = match i32::from(family) {
        libc::NFPROTO_IPV4 => IpFamily::V4,
        libc::NFPROTO_IPV6 => IpFamily::V6,
        _ => return,
    };
    let decoded = match kind {
        libc::NFT_MSG_NEWSETELEM => return elements::elements(family, attributes, true, each),
        libc::NFT_MSG_DELSETELEM | DESTROY_ELEMENTS => {
            return elements::elements(family, attributes, false, each);
        }
        libc::NFT_MSG_NEWRULE => rules::rule(family, attributes, true),
        libc::NFT_MSG_DELRULE | DESTROY_RULE => rules::rule(family, attributes, false),
        libc::NFT_MSG_NEWSET => elements::map(family, attributes, true),
        libc::NFT_MSG_DELSET | DESTROY_SET => elements::map(family, attributes, false),
        libc::NFT_MSG_NEWTABLE => elements::table(family, attributes, true),
        libc::NFT_MSG_DELTABLE | DESTROY_TABLE => elements::table(family, attributes, false),
        _ => None,
    };
    if let Some(decoded) = decoded {
        each(decoded);
    }
}

/// The rules for one port.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Whether it is in `service-ips`, and in `no-endpoint-services`.
    elements: [bool; 2],
    /// Rules of mode iptables that translate it, and that block it.
    translated: u16,
    blocked: u16,
    reported: PortRules,
}

impl Entry {
    const EMPTY: Entry =
        Entry { elements: [false; 2], translated: 0, blocked: 0, reported: PortRules::Missing };

    fn is_empty(&self) -> bool {
        self.elements == [false; 2] && self.translated == 0 && self.blocked == 0
    }
}

/// The facts of one family.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// kube-proxy's table exists (mode nftables).
    table: bool,
    /// The map `service-ips` exists.
    map: bool,
    /// Rules that lead packets to the map.
    to_map: u32,
    /// Rules that lead packets to `KUBE-SERVICES`.
    to_services: u32,
    /// Rules from `KUBE-SERVICES` to `KUBE-NODEPORTS`.
    to_node_ports: u32,
    /// Whether this transaction changed `nat KUBE-SERVICES`.
    wrote_nat: bool,
}

impl Layout {
    fn count(&mut self, rule: Rule) -> Option<&mut u32> {
        match rule {
            Rule::ToMap => Some(&mut self.to_map),
            Rule::ToServices => Some(&mut self.to_services),
            Rule::ToNodePorts => Some(&mut self.to_node_ports),
            Rule::Translates(_) | Rule::Blocks(_) => None,
        }
    }
}

/// The known rules for the ports of interest.
#[derive(Debug, Default)]
pub(super) struct RuleState {
    interest: Vec<IpNet>,
    ports: FxHashMap<AddressPort, Entry>,
    rules: FxHashMap<RuleId, Rule>,
    layouts: [Layout; 2],
    /// Ports whose rules may differ from the reported ones.
    dirty: FxHashSet<AddressPort>,
}

impl RuleState {
    /// Replaces the prefixes whose ports are reported, and forgets everything. The caller reads all
    /// rules, and [`RuleState::commit`] returns all ports.
    pub(super) fn set_interest(&mut self, interest: &[IpNet]) {
        *self = RuleState { interest: IpNet::aggregate(&interest.to_vec()), ..RuleState::default() };
    }

    /// Forgets the rules, but not the reported ports: the caller reads all rules, and
    /// [`RuleState::commit`] returns the differences.
    pub(super) fn start_again(&mut self) {
        self.rules.clear();
        // The caller may have missed the second transaction; see `is_half_done`.
        self.layouts = [Layout { wrote_nat: true, ..Layout::default() }; 2];
        for (port, entry) in &mut self.ports {
            *entry = Entry { reported: entry.reported, ..Entry::EMPTY };
            self.dirty.insert(*port);
        }
    }

    /// Where the rules are, if they can be seen.
    pub(super) fn backend(&self) -> Option<Backend> {
        let any = |has: fn(&Layout) -> bool| self.layouts.iter().any(has);
        if any(|layout| layout.map) {
            Some(Backend::Nftables)
        } else if any(|layout| layout.table) {
            Some(Backend::Invisible) // a release with other maps
        } else if any(|layout| layout.to_node_ports > 0) {
            Some(Backend::IptablesNft)
        } else {
            None
        }
    }

    /// Whether the map `service-ips` of a family exists.
    pub(super) fn has_map(&self, family: IpFamily) -> bool {
        self.layouts[family as usize].map
    }

    /// Whether rules lead packets to the map `service-ips` of a family. False in mode iptables.
    pub(super) fn reaches_map(&self, family: IpFamily) -> bool {
        self.layouts[family as usize].to_map > 0
    }

    /// Takes a message. It has no effect on the results before [`RuleState::commit`].
    pub(super) fn apply(&mut self, message: ProxyMessage) {
        match message {
            ProxyMessage::Table { family, exists } => {
                self.layouts[family as usize].table = exists;
                if !exists {
                    self.drop_table(family);
                }
            }
            ProxyMessage::Map { family, map, exists } => {
                if map == Map::Services {
                    self.layouts[family as usize].map = exists;
                }
                if !exists {
                    self.change_all(family, |entry| entry.elements[map as usize] = false);
                }
            }
            ProxyMessage::Element { map, port, exists } => {
                self.change(port, |entry| entry.elements[map as usize] = exists);
            }
            ProxyMessage::Rule { id, rule } => {
                self.layouts[id.family as usize].wrote_nat |= id.table == Table::Nat;
                if let Some(old) = self.rules.remove(&id) {
                    self.count(id, old, false);
                }
                if let Some(rule) = rule
                    && self.is_of_interest(rule)
                {
                    self.rules.insert(id, rule);
                    self.count(id, rule, true);
                }
            }
            ProxyMessage::Commit => {}
        }
    }

    /// Ends a transaction. Returns the ports whose rules differ from the reported ones.
    pub(super) fn commit(&mut self) -> Vec<RuleChange> {
        let mut changes = Vec::new();
        let mut waiting = Vec::new();
        for port in self.dirty.drain() {
            let Some(entry) = self.ports.get_mut(&port) else { continue };
            let layout = &self.layouts[family_of(port.address) as usize];
            let rules = effect(entry, layout);
            if is_half_done(entry, rules, layout) {
                waiting.push(port);
            } else if rules != entry.reported {
                entry.reported = rules;
                changes.push(RuleChange { port, rules });
            }
            if entry.is_empty() && entry.reported == PortRules::Missing {
                self.ports.remove(&port);
            }
        }
        self.dirty.extend(waiting);
        for layout in &mut self.layouts {
            layout.wrote_nat = false;
        }
        changes
    }

    fn is_of_interest(&self, rule: Rule) -> bool {
        match rule {
            Rule::Translates(port) | Rule::Blocks(port) => self.covers(port.address),
            Rule::ToServices | Rule::ToNodePorts | Rule::ToMap => true,
        }
    }

    fn covers(&self, address: IpAddr) -> bool {
        self.interest.iter().any(|prefix| prefix.contains(&address))
    }

    /// Counts a new rule (`exists`), or a deleted one.
    fn count(&mut self, id: RuleId, rule: Rule, exists: bool) {
        let layout = &mut self.layouts[id.family as usize];
        if let Some(number) = layout.count(rule) {
            let before = *number;
            *number = if exists { before.saturating_add(1) } else { before.saturating_sub(1) };
            // The first such rule and the last one change every port.
            if before == 0 || *number == 0 {
                self.change_all(id.family, |_| {});
            }
            return;
        }
        let step = |number: &mut u16| {
            *number = if exists { number.saturating_add(1) } else { number.saturating_sub(1) };
        };
        match rule {
            Rule::Translates(port) => self.change(port, |entry| step(&mut entry.translated)),
            Rule::Blocks(port) => self.change(port, |entry| step(&mut entry.blocked)),
            Rule::ToServices | Rule::ToNodePorts | Rule::ToMap => {}
        }
    }

    fn change(&mut self, port: AddressPort, change: impl FnOnce(&mut Entry)) {
        if self.covers(port.address) {
            change(self.ports.entry(port).or_insert(Entry::EMPTY));
            self.dirty.insert(port);
        }
    }

    fn change_all(&mut self, family: IpFamily, change: impl Fn(&mut Entry)) {
        for (port, entry) in self.ports.iter_mut().filter(|(port, _)| family_of(port.address) == family) {
            change(entry);
            self.dirty.insert(*port);
        }
    }

    /// kube-proxy's table was deleted with everything in it.
    fn drop_table(&mut self, family: IpFamily) {
        let layout = &mut self.layouts[family as usize];
        (layout.map, layout.to_map) = (false, 0);
        self.rules.retain(|id, _| (id.family, id.table) != (family, Table::KubeProxy));
        self.change_all(family, |entry| entry.elements = [false; 2]);
    }
}

/// The effect of the rules on a packet from outside. While kube-proxy changes its mode, both kinds
/// of rules exist.
fn effect(entry: &Entry, layout: &Layout) -> PortRules {
    let [translated, blocked] = entry.elements;
    let is_translated = (translated && layout.to_map > 0) || (entry.translated > 0 && layout.to_services > 0);
    match (blocked || entry.blocked > 0, is_translated) {
        (true, _) => PortRules::Blocked,
        (false, true) => PortRules::Forwarded,
        (false, false) => PortRules::Missing,
    }
}

/// In mode iptables, kube-proxy writes two transactions: first the table `filter`, then `nat` with
/// the endpoints. Between them a port without its block is not forwarded yet. kube-proxy writes
/// `KUBE-SERVICES` each time, so the second transaction is recognised.
fn is_half_done(entry: &Entry, rules: PortRules, layout: &Layout) -> bool {
    rules == PortRules::Forwarded
        && entry.reported != PortRules::Forwarded
        && !(entry.elements[Map::Services as usize] && layout.to_map > 0)
        && !layout.wrote_nat
}

fn family_of(address: IpAddr) -> IpFamily {
    if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
}
