//! Import and export policy as data: an ordered list of rules, the first that decides wins.
//!
//! A rule asks something of a path ([`Conditions`]), may change what travels with it ([`Actions`]), and accepts, rejects or
//! goes on to the next rule. A later rule sees the changes of the earlier ones. Import and export have the same rules:
//! import sees what a peer sent and makes of it what is used, export sees what is used and makes of it what a peer is told.
//!
//! Evaluation has two halves: which rules the prefix satisfies (`Policy::rule_mask`), and what those rules do
//! to the attributes (`Policy::apply`). The second is done once per attribute set (`rib::transform` remembers
//! it), the first once per prefix, and not at all for a policy without prefix lists. So a condition on anything but
//! the prefix costs nothing per prefix, and a prefix list is looked up in a time that does not grow with it
//! ([`PrefixSet`]).
//!
//! Which rule decided is part of the outcome ([`Decision`]), so that what an operator is told about a path comes from the
//! evaluation itself and not from a second one.
//!
//! Left out on purpose: regular expressions over AS_PATH (what they are used for are its length, its ends and its members),
//! and the next hop as something to be set (it follows from the session).

mod actions;
mod conditions;
mod prefix_set;

use ipnet::IpNet;
use smallvec::SmallVec;

pub use actions::{Actions, Edit};
pub use conditions::{AsPathMatch, Conditions, Members};
pub use prefix_set::{PrefixMatch, PrefixSet};

use crate::types::{Asn, NextHop};
use crate::wire::PathAttributes;

/// Rules in order, and what happens to a path that none of them decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Tried in order.
    pub rules: Vec<Rule>,
    /// For a path that no rule decided.
    pub default: Verdict,
}

/// What becomes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Used, or told.
    Accept,
    /// Not used, or not told.
    Reject,
}

/// One rule; one without conditions matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// For people; nothing is decided by it.
    pub name: Option<String>,
    /// What it asks of a path.
    pub when: Conditions,
    /// What is changed in a path that matches.
    pub set: Actions,
    /// Decides, or goes on to the next rule with the changes made.
    pub verdict: Option<Verdict>,
}

/// What a policy said of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of it.
    pub verdict: Verdict,
    /// The place of the rule that decided, from 0; none if no rule did and the default applies.
    pub rule: Option<usize>,
}

/// Which rules of a policy a prefix satisfies, one bit a rule. What a policy does to a path is a function of
/// this and of the path's attributes alone, so that its outcome is remembered per attribute set and not per
/// prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RuleMask(SmallVec<[u64; 2]>);

impl RuleMask {
    fn contains(&self, rule: usize) -> bool {
        self.0.get(rule / 64).is_some_and(|bits| bits >> (rule % 64) & 1 == 1)
    }
}

impl Rule {
    /// Accepts what satisfies the conditions.
    pub fn accept(when: Conditions) -> Rule {
        Rule { when, verdict: Some(Verdict::Accept), ..Rule::default() }
    }

    /// Accepts what this speaker originates.
    pub fn originated() -> Rule {
        let originated = Conditions { originated: Some(true), ..Conditions::default() };
        Rule { name: Some("originated here".to_owned()), ..Rule::accept(originated) }
    }

    /// Rejects what satisfies the conditions.
    pub fn reject(when: Conditions) -> Rule {
        Rule { when, verdict: Some(Verdict::Reject), ..Rule::default() }
    }
}

impl Policy {
    /// Everything passes unchanged.
    pub const fn accept_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Accept }
    }

    /// Nothing passes.
    pub const fn reject_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Reject }
    }

    /// Only what this speaker originates passes.
    pub fn originated_only() -> Policy {
        Policy { rules: vec![Rule::originated()], default: Verdict::Reject }
    }

    /// Whether some rule looks at the prefix.
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

    /// Runs the rules of `mask` over a path's attributes, which are changed on the way. `originated`: the path
    /// starts here; `prepended`: the AS that [`Actions::prepend`] puts in front.
    pub(crate) fn apply(
        &self,
        mask: &RuleMask,
        attributes: &mut PathAttributes,
        next_hop: Option<NextHop>,
        originated: bool,
        prepended: Asn,
    ) -> Decision {
        for (place, rule) in self.rules.iter().enumerate() {
            if mask.contains(place) && rule.when.match_attributes(attributes, next_hop, originated) {
                rule.set.apply(attributes, prepended);
                if let Some(verdict) = rule.verdict {
                    return Decision { verdict, rule: Some(place) };
                }
            }
        }
        Decision { verdict: self.default, rule: None }
    }
}
