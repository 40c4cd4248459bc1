//! Import and export policy as data: an ordered list of rules, the first that decides wins.
//!
//! A rule matches by prefix list and community, may change what travels with the path, and accepts, rejects or
//! goes on to the next rule.

use ipnet::IpNet;

use crate::types::{Community, LargeCommunity};

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

impl Policy {
    /// Everything passes unchanged.
    pub const fn accept_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Accept }
    }

    /// Nothing passes.
    pub const fn reject_all() -> Policy {
        Policy { rules: Vec::new(), default: Verdict::Reject }
    }
}
