//! Import and export policy as data: an ordered list of rules, the first that decides wins.
//!
//! A rule matches by prefix list and community, may change what travels with the path, and accepts, rejects or
//! goes on to the next rule. A later rule sees the changes of the earlier ones.
//!
//! Evaluation has two halves: which rules the prefix satisfies (`Policy::rule_mask`), and what those rules do
//! to the attributes (`Policy::apply`). The second is done once per attribute set (`rib::transform` remembers
//! it), the first once per prefix, and not at all for a policy without prefix lists.

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::types::{Asn, Community, LargeCommunity};
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

/// One rule: every condition given must hold; an empty rule matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// One of these matches the prefix. Empty: any prefix.
    pub prefixes: Vec<PrefixMatch>,
    /// The path carries one of these. Empty: any path.
    pub communities: Vec<Community>,
    /// The path carries one of these. Empty: any path.
    pub large_communities: Vec<LargeCommunity>,
    /// Only paths that this speaker originates (`Some(true)`), only learned ones (`Some(false)`), or both.
    pub originated: Option<bool>,
    /// What is changed in a path that matches.
    pub set: Actions,
    /// Decides, or goes on to the next rule with the changes made.
    pub verdict: Option<Verdict>,
}

/// A prefix with the lengths below it that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The covering prefix.
    pub prefix: IpNet,
    /// Shortest length that matches, the prefix's own if none.
    pub ge: Option<u8>,
    /// Longest length that matches; the prefix's own if neither is given, the family's longest if only `ge` is.
    pub le: Option<u8>,
}

/// Changes to a path's attributes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// The local AS is put in front this many times more (export), or the neighbour's (import).
    pub prepend: u8,
    /// Added.
    pub add_communities: Vec<Community>,
    /// Taken out.
    pub remove_communities: Vec<Community>,
    /// Added.
    pub add_large_communities: Vec<LargeCommunity>,
}

impl PrefixMatch {
    /// Whether a prefix is covered, with a length within the bounds.
    pub fn matches(&self, prefix: &IpNet) -> bool {
        let least = self.ge.unwrap_or(self.prefix.prefix_len());
        let most = match (self.le, self.ge) {
            (Some(le), _) => le,
            (None, Some(_)) => self.prefix.max_prefix_len(),
            (None, None) => self.prefix.prefix_len(),
        };
        (least..=most).contains(&prefix.prefix_len()) && self.prefix.contains(prefix)
    }
}

impl Rule {
    fn matches_prefix(&self, prefix: &IpNet) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|condition| condition.matches(prefix))
    }

    fn matches_attributes(&self, attributes: &PathAttributes, originated: bool) -> bool {
        self.originated.is_none_or(|wanted| wanted == originated)
            && (self.communities.is_empty()
                || self.communities.iter().any(|community| attributes.communities.contains(community)))
            && (self.large_communities.is_empty()
                || self
                    .large_communities
                    .iter()
                    .any(|community| attributes.large_communities.contains(community)))
    }
}

impl Actions {
    fn apply(&self, attributes: &mut PathAttributes, prepended: Asn) {
        if self.local_pref.is_some() {
            attributes.local_pref = self.local_pref;
        }
        if self.med.is_some() {
            attributes.med = self.med;
        }
        if self.prepend > 0 {
            attributes.as_path.prepend(prepended, usize::from(self.prepend));
        }
        attributes.communities.retain(|community| !self.remove_communities.contains(community));
        add(&mut attributes.communities, &self.add_communities);
        add(&mut attributes.large_communities, &self.add_large_communities);
    }
}

/// Adds what is not there yet, at the end.
fn add<T: Copy + PartialEq>(list: &mut Vec<T>, added: &[T]) {
    for community in added {
        if !list.contains(community) {
            list.push(*community);
        }
    }
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

impl Policy {
    /// Everything passes unchanged.
    pub const fn accept_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Accept }
    }

    /// Nothing passes.
    pub const fn reject_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Reject }
    }

    /// Whether some rule looks at the prefix.
    pub(crate) fn looks_at_prefix(&self) -> bool {
        self.rules.iter().any(|rule| !rule.prefixes.is_empty())
    }

    /// The rules that a prefix satisfies.
    pub(crate) fn rule_mask(&self, prefix: &IpNet) -> RuleMask {
        let mut bits = SmallVec::from_elem(0, self.rules.len().div_ceil(64));
        for (place, rule) in self.rules.iter().enumerate() {
            if rule.matches_prefix(prefix) {
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
        originated: bool,
        prepended: Asn,
    ) -> Verdict {
        for (place, rule) in self.rules.iter().enumerate() {
            if mask.contains(place) && rule.matches_attributes(attributes, originated) {
                rule.set.apply(attributes, prepended);
                if let Some(verdict) = rule.verdict {
                    return verdict;
                }
            }
        }
        self.default
    }
}
