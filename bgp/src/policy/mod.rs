//! Import and export policy as data: an ordered list of rules; the first rule that decides wins.
//!
//! A rule has conditions on a path ([`Conditions`]) and may change its attributes ([`Actions`]). It
//! accepts, rejects, or continues with the next rule. A later rule sees the changes of the earlier
//! ones. Import and export have the same rules. Import turns received attributes into used ones;
//! export turns used attributes into those that a peer receives.
//!
//! Evaluation has two halves: `Policy::rule_mask` finds the rules that the prefix satisfies, and
//! `Policy::apply` runs those rules on the attributes. `rule_mask` runs once per prefix, and is
//! skipped for a policy without prefix conditions. `apply` runs once per attribute set
//! (`rib::transform` caches the result). So a condition on anything but the prefix costs nothing
//! per prefix. The time to look up a prefix list does not grow with its length ([`PrefixSet`]).
//!
//! The rule that decided is part of the result ([`PolicyDecision`]). So an explanation for an operator
//! comes from the evaluation itself, not from a second one.
//!
//! Left out on purpose: regular expressions over AS_PATH (conditions on its length, its ends and
//! its members replace them), and setting the next hop (the session determines it).

mod actions;
mod conditions;
mod prefix_set;

use ipnet::IpNet;
use smallvec::SmallVec;

pub use actions::{Actions, Edit};
pub use conditions::{AsPathMatch, Conditions, Members};
pub use prefix_set::{PrefixMatch, PrefixSet};

use crate::types::{Asn, NextHop, Tags};
use crate::wire::PathAttributes;

/// Ordered rules, with a default for paths that no rule decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The rules, in order of evaluation.
    pub rules: Vec<Rule>,
    /// The result for a path that no rule decided.
    pub default: PolicyResult,
}

/// Whether a path is accepted or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyResult {
    /// The path is used (import) or advertised (export).
    Accept,
    /// The path is not used (import) or not advertised (export).
    Reject,
}

/// One rule; without conditions it matches every path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// A name for people; it has no effect.
    pub name: Option<String>,
    /// The conditions that a path must satisfy.
    pub when: Conditions,
    /// The changes to a path that matches.
    pub set: Actions,
    /// The result. None: evaluation continues with the next rule, with the changes applied.
    pub verdict: Option<PolicyResult>,
}

/// The result of a policy for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The result for the path.
    pub verdict: PolicyResult,
    /// The index of the rule that decided; none if the default applied.
    pub rule: Option<usize>,
}

/// The rules that a prefix satisfies, one bit per rule. The result of a policy depends only on this
/// and on the path's attributes. So it is cached per attribute set, not per prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RuleMask(SmallVec<[u64; 2]>);

impl RuleMask {
    fn contains(&self, rule: usize) -> bool {
        self.0.get(rule / 64).is_some_and(|bits| bits >> (rule % 64) & 1 == 1)
    }
}

impl Rule {
    /// A rule that accepts paths that satisfy the conditions.
    pub fn accept(when: Conditions) -> Rule {
        Rule { when, verdict: Some(PolicyResult::Accept), ..Rule::default() }
    }

    /// A rule that accepts originated paths.
    pub fn originated() -> Rule {
        let originated = Conditions { originated: Some(true), ..Conditions::default() };
        Rule { name: Some("originated here".to_owned()), ..Rule::accept(originated) }
    }

    /// A rule that rejects paths that satisfy the conditions.
    pub fn reject(when: Conditions) -> Rule {
        Rule { when, verdict: Some(PolicyResult::Reject), ..Rule::default() }
    }
}

impl Policy {
    /// A policy that accepts every path unchanged.
    pub const fn accept_all() -> Policy {
        Policy { rules: Vec::new(), default: PolicyResult::Accept }
    }

    /// A policy that rejects every path.
    pub const fn reject_all() -> Policy {
        Policy { rules: Vec::new(), default: PolicyResult::Reject }
    }

    /// A policy that accepts originated paths only.
    pub fn originated_only() -> Policy {
        Policy { rules: vec![Rule::originated()], default: PolicyResult::Reject }
    }

    /// Whether any rule has a condition on the prefix.
    pub(crate) fn looks_at_prefix(&self) -> bool {
        self.rules.iter().any(|rule| !rule.when.prefixes.is_empty())
    }

    /// The rules that a prefix satisfies.
    pub(crate) fn rule_mask(&self, prefix: &IpNet) -> RuleMask {
        let mut bits = SmallVec::from_elem(0, self.rules.len().div_ceil(64));
        for (place, rule) in self.rules.iter().enumerate() {
            if rule.when.match_prefix(prefix) {
                bits[place / 64] |= 1 << (place % 64);
            }
        }
        RuleMask(bits)
    }

    /// Runs the rules of `mask` on a path's attributes and changes them. `originated`: this speaker
    /// originates the path, with these tags. `prepended`: the AS for [`Actions::prepend`].
    pub(crate) fn apply(
        &self,
        mask: &RuleMask,
        attributes: &mut PathAttributes,
        next_hop: Option<NextHop>,
        (originated, tags): (bool, &Tags),
        prepended: Asn,
    ) -> PolicyDecision {
        for (place, rule) in self.rules.iter().enumerate() {
            if mask.contains(place) && rule.when.match_attributes(attributes, next_hop, originated, tags) {
                rule.set.apply(attributes, prepended);
                if let Some(verdict) = rule.verdict {
                    return PolicyDecision { verdict, rule: Some(place) };
                }
            }
        }
        PolicyDecision { verdict: self.default, rule: None }
    }
}
