//! The kernel rules of a chain: a rule with a set of addresses becomes one for each IP family,
//! because a set has addresses of one family. Several ranges of ports are one set.
//!
//! The comment of each kernel rule has a hash of all rules of its chain, the rule's index and their
//! number. A chain has the wanted rules if it has exactly their comments.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::expressions::{COUNTER, Comparison, Expressions, Header, LIMIT, Meta, REGISTER};
use super::objects::{LIMIT_NAME, counter_name, set_name};
use crate::family::IpFamily;
use crate::plan::policy::{Direction, PolicyChain, PolicyRule, PortMatch, PortNumbers, SetId};

/// The NFLOG group of reported packets.
pub(in crate::nft) const LOG_GROUP: u16 = 116;
/// Octets of a reported packet: enough for the headers of IP and transport.
const LOG_OCTETS: u32 = 128;

/// The kernel rules of a chain, in order.
#[derive(Debug, Default)]
pub(super) struct ChainRules(Vec<Expressions>);

impl ChainRules {
    /// The rules of a policy's chain. `has_elements`: whether a set can have elements of a family.
    pub(super) fn of(chain: &PolicyChain, has_elements: impl Fn(SetId, IpFamily) -> bool) -> ChainRules {
        let mut rules = Vec::new();
        for rule in &chain.rules {
            for family in families(rule, &has_elements) {
                write_rule(chain.direction, rule, family, &mut rules);
            }
        }
        ChainRules(rules)
    }

    /// A chain that only jumps to another.
    pub(super) fn jump(chain: &str) -> ChainRules {
        let mut rule = Expressions::default();
        rule.jump(chain);
        ChainRules(vec![rule])
    }

    /// A chain with these rules.
    pub(super) fn from_rules(rules: Vec<Expressions>) -> ChainRules {
        ChainRules(rules)
    }

    /// The comment of each rule, with its expressions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (String, &Expressions)> {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        let (hash, total) = (hasher.finish(), self.0.len());
        self.0
            .iter()
            .enumerate()
            .map(move |(index, rule)| (format!("policy {hash:016x}.{index}/{total}"), rule))
    }

    /// Whether a chain with these comments has these rules.
    pub(super) fn is_same(&self, found: &[Option<String>]) -> bool {
        self.0.len() == found.len()
            && self.iter().zip(found).all(|((wanted, _), found)| found.as_ref() == Some(&wanted))
    }
}

/// The families of a rule's kernel rules. None: one kernel rule for both families.
fn families(rule: &PolicyRule, has_elements: impl Fn(SetId, IpFamily) -> bool) -> Vec<Option<IpFamily>> {
    let ports = match rule.ports {
        PortMatch::Named(set) => Some(set),
        PortMatch::Any | PortMatch::Numbered { .. } => None,
    };
    let sets: Vec<SetId> = rule.peers.into_iter().chain(ports).collect();
    if sets.is_empty() {
        return vec![None];
    }
    let matches = |family: &IpFamily| sets.iter().all(|set| has_elements(*set, *family));
    IpFamily::ALL.into_iter().filter(matches).map(Some).collect()
}

fn write_rule(
    direction: Direction,
    rule: &PolicyRule,
    family: Option<IpFamily>,
    rules: &mut Vec<Expressions>,
) {
    let mut matches = Expressions::default();
    if let Some(family) = family {
        write_sets(direction, rule, family, &mut matches);
    }
    if let PortMatch::Numbered { protocol, ports } = rule.ports {
        matches.meta(Meta::Protocol, REGISTER);
        matches.compare(Comparison::Equal, &[protocol.number()]);
        write_numbers(ports, &mut matches);
    }
    finish(rule, &matches, rules);
}

/// The match of the destination port.
fn write_numbers(ports: PortNumbers, matches: &mut Expressions) {
    if ports != PortNumbers::Every {
        matches.payload(Header::Transport, 2, 2, REGISTER);
    }
    match ports {
        PortNumbers::Every => {}
        PortNumbers::Range(first, last) if first == last => {
            matches.compare(Comparison::Equal, &first.to_be_bytes());
        }
        PortNumbers::Range(first, last) => {
            matches.compare(Comparison::AtLeast, &first.to_be_bytes());
            matches.compare(Comparison::AtMost, &last.to_be_bytes());
        }
        PortNumbers::Set(set) => matches.lookup(&set_name(set, None)),
    }
}

/// The matches of a rule's sets.
fn write_sets(direction: Direction, rule: &PolicyRule, family: IpFamily, matches: &mut Expressions) {
    // Offset of the source address, and length of an address.
    let (source, length) = match family {
        IpFamily::V4 => (12, 4),
        IpFamily::V6 => (8, 16),
    };
    let destination = source + length;
    matches.and_family(family);
    if let Some(set) = rule.peers {
        let peer = match direction {
            Direction::Ingress => source,
            Direction::Egress => destination,
        };
        matches.payload(Header::Network, peer, length, REGISTER);
        matches.lookup(&set_name(set, Some(family)));
    }
    if let PortMatch::Named(set) = rule.ports {
        let after = REGISTER + length / 4;
        matches.payload(Header::Network, destination, length, REGISTER);
        matches.meta(Meta::Protocol, after);
        matches.payload(Header::Transport, 2, 2, after + 1);
        matches.lookup(&set_name(set, Some(family)));
    }
}

/// Completes the matches to kernel rules: one that reports, and one with counter and verdict.
fn finish(rule: &PolicyRule, matches: &Expressions, rules: &mut Vec<Expressions>) {
    if rule.logged
        && let Some(counter) = rule.counter
    {
        let mut report = matches.clone();
        report.object(LIMIT, LIMIT_NAME);
        report.log(LOG_GROUP, &counter.to_string(), LOG_OCTETS);
        rules.push(report);
    }
    let mut decide = matches.clone();
    if let Some(counter) = rule.counter {
        decide.object(COUNTER, &counter_name(counter));
    }
    decide.verdict(rule.verdict);
    rules.push(decide);
}

#[cfg(test)]
mod tests {
    use trunkline_api::service::Protocol;

    use super::*;
    use crate::plan::policy::{CounterId, Verdict};

    fn rule(peers: Option<u64>, ports: PortMatch) -> PolicyRule {
        let peers = peers.map(SetId::from);
        PolicyRule { peers, ports, verdict: Verdict::Accept, counter: None, logged: false }
    }

    fn chain(rules: Vec<PolicyRule>) -> PolicyChain {
        PolicyChain { direction: Direction::Ingress, rules }
    }

    #[test]
    fn a_rule_is_written_for_each_family() {
        let ports = |ports| PortMatch::Numbered { protocol: Protocol::Tcp, ports };
        let many = || ports(PortNumbers::Set(SetId::from(3)));
        let named = PortMatch::Named(SetId::from(2));
        let v4_only = |set: SetId, family: IpFamily| set != SetId::from(9) || family == IpFamily::V4;
        for (rule, number) in [
            (rule(None, PortMatch::Any), 1),
            (rule(None, ports(PortNumbers::Every)), 1),
            (rule(None, ports(PortNumbers::Range(80, 90))), 1),
            (rule(None, many()), 1),
            (rule(Some(1), PortMatch::Any), 2),
            (rule(Some(1), many()), 2),
            (rule(None, named.clone()), 2),
            (rule(Some(9), PortMatch::Any), 1),
            (rule(Some(9), named), 1),
            (PolicyRule { logged: true, ..rule(Some(1), many()) }, 2),
            (PolicyRule { logged: true, counter: Some(CounterId::from(1)), ..rule(Some(1), many()) }, 4),
        ] {
            let rules = ChainRules::of(&chain(vec![rule.clone()]), v4_only);
            assert_eq!(rules.0.len(), number, "{rule:?}");
        }
    }

    #[test]
    fn comments_identify_rules_order_and_direction() {
        let (first, second) = (rule(Some(1), PortMatch::Any), rule(Some(2), PortMatch::Any));
        let all = |_: SetId, _: IpFamily| true;
        let wanted = ChainRules::of(&chain(vec![first.clone(), second.clone()]), all);
        let comments = |rules: &ChainRules| -> Vec<Option<String>> {
            rules.iter().map(|(comment, _)| Some(comment)).collect()
        };
        let found = comments(&wanted);
        assert!(found.iter().flatten().all(|comment| comment.len() < 128));
        assert!(wanted.is_same(&found) && !wanted.is_same(&found[1..]));
        let mut swapped = found.clone();
        swapped.swap(0, 1);
        assert!(!wanted.is_same(&swapped));
        let foreign = [&found[..3], &[None]].concat();
        assert!(!wanted.is_same(&foreign));
        let other = chain(vec![second, first]);
        assert!(!ChainRules::of(&other, all).is_same(&found));
        let egress = PolicyChain { direction: Direction::Egress, ..other };
        assert!(!ChainRules::of(&egress, all).is_same(&comments(&ChainRules::of(
            &PolicyChain { direction: Direction::Ingress, ..egress.clone() },
            all
        ))));
    }
}
