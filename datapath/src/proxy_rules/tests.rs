//! Tests of the state, without the kernel. [`super::recorded`] has tests with recorded messages.

use std::collections::BTreeMap;

use trunkline_api::service::Protocol::Tcp;

use super::state::{Map, ProxyMessage, Rule, RuleId, RuleState, Table};
use super::*;
use crate::family::IpFamily::{self, V4, V6};
use PortRules::{Blocked, Forwarded, Missing};

fn port(port: u16) -> AddressPort {
    AddressPort { address: "192.0.2.1".parse().unwrap(), protocol: Tcp, port }
}

fn port6(port: u16) -> AddressPort {
    AddressPort { address: "2001:db8::1".parse().unwrap(), protocol: Tcp, port }
}

/// A state with an interest, and the messages of a transaction as one call.
struct World(RuleState);

impl World {
    fn new() -> World {
        let mut state = RuleState::default();
        state.set_interest(&["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()]);
        World(state)
    }

    /// Mode nftables, without elements.
    fn nftables() -> World {
        let mut world = World::new();
        world.transact([V4, V6].into_iter().flat_map(table));
        world
    }

    /// Mode iptables, without ports.
    fn iptables() -> World {
        let mut world = World::new();
        let to = |family| {
            [(1, Rule::ToServices), (2, Rule::ToNodePorts)]
                .map(|(handle, rule)| nat(family, handle, Some(rule)))
        };
        world.transact([V4, V6].into_iter().flat_map(to));
        world
    }

    fn transact(
        &mut self,
        messages: impl IntoIterator<Item = ProxyMessage>,
    ) -> BTreeMap<AddressPort, PortRules> {
        messages.into_iter().for_each(|message| self.0.apply(message));
        self.0.commit().into_iter().map(|change| (change.port, change.rules)).collect()
    }
}

fn table(family: IpFamily) -> [ProxyMessage; 4] {
    let map = |map| ProxyMessage::Map { family, map, exists: true };
    [
        ProxyMessage::Table { family, exists: true },
        map(Map::Services),
        map(Map::NoEndpoints),
        rule(family, Table::KubeProxy, 1, Some(Rule::ToMap)),
    ]
}

fn rule(family: IpFamily, table: Table, handle: u64, rule: Option<Rule>) -> ProxyMessage {
    ProxyMessage::Rule { id: RuleId { family, table, handle }, rule }
}

fn nat(family: IpFamily, handle: u64, of: Option<Rule>) -> ProxyMessage {
    rule(family, Table::Nat, handle, of)
}

fn filter(handle: u64, of: Option<Rule>) -> ProxyMessage {
    rule(V4, Table::Filter, handle, of)
}

fn element(map: Map, port: AddressPort, exists: bool) -> ProxyMessage {
    ProxyMessage::Element { map, port, exists }
}

#[test]
fn changes_are_reported_at_the_end_of_a_transaction() {
    let mut world = World::nftables();
    world.0.apply(element(Map::Services, port(80), true));
    world.0.apply(element(Map::Services, port6(80), true));
    assert_eq!(world.transact([]), [(port(80), Forwarded), (port6(80), Forwarded)].into());
    assert_eq!(world.transact([]), [].into());
    assert_eq!(world.transact([element(Map::NoEndpoints, port(80), true)]), [(port(80), Blocked)].into());
    assert_eq!(world.transact([element(Map::Services, port(80), false)]), [].into(), "blocked as before");
    assert_eq!(world.transact([element(Map::NoEndpoints, port(80), false)]), [(port(80), Missing)].into());
}

#[test]
fn ports_outside_of_the_interest_are_ignored() {
    let mut world = World::nftables();
    let other = AddressPort { address: "198.51.100.1".parse().unwrap(), ..port(80) };
    assert_eq!(world.transact([element(Map::Services, other, true)]), [].into());
    let mut world = World::iptables();
    assert_eq!(world.transact([nat(V4, 7, Some(Rule::Translates(other)))]), [].into());
    assert_eq!(world.transact([nat(V4, 7, None)]), [].into());
}

#[test]
fn replaced_rules_are_no_change() {
    let mut world = World::iptables();
    let write = |from: u64| {
        (0..10_000).map(move |index| nat(V4, from + index, Some(Rule::Translates(port(index as u16 + 1)))))
    };
    assert_eq!(world.transact(write(100_000)).len(), 10_000);
    let delete = (100_000..110_000).map(|handle| nat(V4, handle, None));
    assert_eq!(world.transact(delete.chain(write(200_000))), [].into());
    // One of them is left out.
    let delete = (200_000..210_000).map(|handle| nat(V4, handle, None));
    let changes = world.transact(delete.chain(write(300_000).skip(1)));
    assert_eq!(changes, [(port(1), Missing)].into());
}

#[test]
fn a_port_with_two_rules_needs_only_one() {
    let mut world = World::iptables();
    let translates = Some(Rule::Translates(port(80)));
    assert_eq!(world.transact([nat(V4, 7, translates), nat(V4, 8, translates)]).len(), 1);
    assert_eq!(world.transact([nat(V4, 7, None)]), [].into());
    assert_eq!(world.transact([nat(V4, 7, None)]), [].into(), "a handle is deleted once");
    assert_eq!(world.transact([nat(V4, 8, None)]), [(port(80), Missing)].into());
}

#[test]
fn a_port_waits_for_the_second_transaction_of_mode_iptables() {
    let mut world = World::iptables();
    let translates = Some(Rule::Translates(port(80)));
    let change = [filter(9, Some(Rule::Blocks(port(80)))), nat(V4, 7, translates)];
    assert_eq!(world.transact(change), [(port(80), Blocked)].into());
    assert_eq!(world.transact([filter(9, None)]), [].into(), "only `filter` is written");
    assert_eq!(world.transact([]), [].into(), "a transaction of another program");
    let rewritten = [nat(V4, 7, None), nat(V4, 8, translates)];
    assert_eq!(world.transact(rewritten), [(port(80), Forwarded)].into());
    // A block counts at once.
    assert_eq!(world.transact([filter(10, Some(Rule::Blocks(port(80))))]), [(port(80), Blocked)].into());
}

#[test]
fn rules_without_a_way_to_them_have_no_effect() {
    let mut world = World::iptables();
    assert_eq!(world.transact([nat(V4, 7, Some(Rule::Translates(port(80))))]).len(), 1);
    assert_eq!(world.transact([nat(V4, 1, None)]), [(port(80), Missing)].into());
    assert_eq!(world.transact([nat(V4, 11, Some(Rule::ToServices))]), [(port(80), Forwarded)].into());
    assert_eq!(world.transact([nat(V6, 1, None)]), [].into(), "the other family");

    let mut world = World::nftables();
    assert_eq!(world.transact([element(Map::Services, port(80), true)]).len(), 1);
    let flushed = rule(V4, Table::KubeProxy, 1, None);
    assert_eq!(world.transact([flushed]), [(port(80), Missing)].into());
    assert_eq!(world.transact(table(V4)), [(port(80), Forwarded)].into());
    // A whole synchronisation deletes and adds the rule in one transaction.
    assert_eq!(world.transact([flushed].into_iter().chain(table(V4))), [].into());
}

#[test]
fn a_deleted_map_or_table_takes_its_elements_along() {
    for deleted in [
        ProxyMessage::Map { family: V4, map: Map::Services, exists: false },
        ProxyMessage::Table { family: V4, exists: false },
    ] {
        let mut world = World::nftables();
        let both = [port(80), port6(80)].map(|port| element(Map::Services, port, true));
        assert_eq!(world.transact(both).len(), 2);
        assert_eq!(world.transact([deleted]), [(port(80), Missing)].into(), "{deleted:?}");
        assert_eq!(world.transact(table(V4)), [].into(), "an empty map");
    }
}

#[test]
fn a_second_dump_reports_only_differences() {
    let mut world = World::nftables();
    world.transact((1..=3).map(|number| element(Map::Services, port(number), true)));
    world.0.start_again();
    let elements = [1, 2, 4].map(|number| element(Map::Services, port(number), true));
    let changes = world.transact(table(V4).into_iter().chain(elements));
    assert_eq!(changes, [(port(3), Missing), (port(4), Forwarded)].into());
}

#[test]
fn a_change_of_mode_keeps_a_port_that_one_mode_forwards() {
    let mut world = World::nftables();
    world.transact([element(Map::Services, port(80), true)]);
    assert_eq!(world.0.backend(), Some(Backend::Nftables));
    let rules = [(1, Rule::ToServices), (2, Rule::ToNodePorts), (3, Rule::Translates(port(80)))];
    assert_eq!(world.transact(rules.map(|(handle, rule)| nat(V4, handle, Some(rule)))), [].into());
    let deleted = [V4, V6].map(|family| ProxyMessage::Table { family, exists: false });
    assert_eq!(world.transact(deleted), [].into());
    assert_eq!(world.0.backend(), Some(Backend::IptablesNft));
}

#[test]
fn the_backend_follows_the_layout() {
    assert_eq!(World::new().0.backend(), None);
    // The chains of mode IPVS do not lead to KUBE-NODEPORTS.
    let mut ipvs = World::new();
    ipvs.transact([nat(V4, 1, Some(Rule::ToServices))]);
    assert_eq!(ipvs.0.backend(), None);
    assert_eq!(World::iptables().0.backend(), Some(Backend::IptablesNft));
    // A release of kube-proxy with other maps.
    let mut unknown = World::new();
    unknown.transact([ProxyMessage::Table { family: V6, exists: true }]);
    assert_eq!(unknown.0.backend(), Some(Backend::Invisible));
}

/// Notifications of the real kube-proxy 1.33, while the lab test `services/proxy-rules` ran. Most
/// rules of chains that do not count are left out.
#[cfg(target_endian = "little")]
mod recorded {
    use std::mem::replace;
    use std::net::IpAddr;

    use proptest::prelude::*;
    use trunkline_api::service::Protocol::Udp;

    use super::super::state::decode;
    use super::*;
    use crate::netlink::message::{Message, messages};

    const NFTABLES: &[u8] = include_bytes!("recorded/nftables.bin");
    const IPTABLES: &[u8] = include_bytes!("recorded/iptables.bin");

    /// The states of each port, one after the other.
    fn replay(octets: &[u8]) -> (BTreeMap<AddressPort, Vec<PortRules>>, Vec<Option<Backend>>) {
        let (mut state, mut ports) = (RuleState::default(), BTreeMap::<_, Vec<_>>::new());
        state.set_interest(&["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
        let mut backends = Vec::new();
        for message in messages(octets) {
            decode(&message, |decoded| match decoded {
                ProxyMessage::Commit => {
                    for change in state.commit() {
                        ports.entry(change.port).or_default().push(change.rules);
                    }
                    backends.push(state.backend());
                }
                other => state.apply(other),
            });
        }
        backends.dedup();
        (ports, backends)
    }

    #[test]
    fn both_modes_of_kube_proxy_give_the_same_states() {
        // The steps of the lab test: no endpoint, one elsewhere, policy Local, one here, none,
        // again; a restart and a hang change nothing; a flush, and a new kube-proxy.
        let outside = [Blocked, Forwarded, Blocked, Forwarded, Blocked, Forwarded, Missing, Forwarded];
        // A cluster address follows another policy.
        let inside = [Blocked, Forwarded, Blocked, Forwarded, Missing, Forwarded];
        let backend = [Backend::Nftables, Backend::IptablesNft];
        for (octets, backend) in [NFTABLES, IPTABLES].into_iter().zip(backend) {
            let (ports, backends) = replay(octets);
            for (address, states) in [
                ("203.0.113.71", &outside[..]),
                ("2001:db8:113::71", &outside),
                ("198.51.100.71", &outside),
                ("2001:db8:100::71", &outside),
                ("10.96.7.1", &inside),
                ("fd00:96::71", &inside),
            ] {
                let address: IpAddr = address.parse().unwrap();
                // iptables-restore commits one table after the other: first it removes the rule
                // that blocks, then it adds the rule that translates.
                let may_be_missing = backend == Backend::IptablesNft;
                for (protocol, port) in [(Tcp, 80), (Udp, 53)] {
                    let found = &ports[&AddressPort { address, protocol, port }];
                    let mut found = found.clone();
                    if may_be_missing {
                        let mut before = Forwarded;
                        found.retain(|state| (*state, replace(&mut before, *state)) != (Missing, Blocked));
                    }
                    assert_eq!(found, states, "{backend:?}, {address}, {protocol:?}");
                }
            }
            let visible: Vec<Backend> = backends.into_iter().flatten().collect();
            assert_eq!(visible, [backend; 2], "before and after the flush");
        }
    }

    /// A message with another body.
    fn with_body<'a>(message: &Message<'_>, body: &'a [u8]) -> Message<'a> {
        Message { kind: message.kind, flags: message.flags, sequence: message.sequence, body }
    }

    #[test]
    fn truncated_messages_are_ignored_or_read_in_part() {
        for message in messages(NFTABLES).chain(messages(IPTABLES)) {
            for length in 0..message.body.len() {
                decode(&with_body(&message, &message.body[..length]), |decoded| {
                    let mut state = RuleState::default();
                    state.apply(decoded);
                    state.commit();
                });
            }
        }
    }

    proptest! {
        #[test]
        fn no_octets_are_too_much(kind in 0_u16..40, body in prop::collection::vec(any::<u8>(), 0..300)) {
            for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
                let body = [&[family as u8, 0, 0, 0][..], &body].concat();
                let message = Message { kind: 10 << 8 | kind, flags: 0, sequence: 0, body: &body };
                decode(&message, |_| {});
            }
        }

        #[test]
        fn no_changed_octet_is_too_much(
            index in any::<prop::sample::Index>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let all: Vec<Message<'_>> = messages(NFTABLES).chain(messages(IPTABLES)).collect();
            let message = &all[index.index(all.len())];
            let mut body = message.body.to_vec();
            for (at, octet) in changes {
                let at = at.index(body.len());
                body[at] = octet;
            }
            let mut state = RuleState::default();
            state.set_interest(&["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
            decode(&with_body(message, &body), |decoded| state.apply(decoded));
            state.commit();
        }
    }
}
