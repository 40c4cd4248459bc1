//! What a rule asks of a path.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::prefix_set::PrefixSet;
use crate::types::{Asn, Community, ExtendedCommunity, LargeCommunity, NextHop};
use crate::wire::{AsPath, Origin, PathAttributes};

/// A condition on a list that a path carries. The default holds for every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members<T> {
    /// The path has at least one of these. Empty: it need not.
    pub any_of: Vec<T>,
    /// The path has every one of these.
    pub all_of: Vec<T>,
    /// The path has not one of these.
    pub none_of: Vec<T>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Members { any_of: Vec::new(), all_of: Vec::new(), none_of: Vec::new() }
    }
}

impl<T: PartialEq> Members<T> {
    /// Whether what a path carries satisfies it.
    pub fn matches(&self, carried: &[T]) -> bool {
        let is_carried = |member: &T| carried.contains(member);
        (self.any_of.is_empty() || self.any_of.iter().any(is_carried))
            && self.all_of.iter().all(is_carried)
            && !self.none_of.iter().any(is_carried)
    }
}

/// At least one of them.
impl<T> From<Vec<T>> for Members<T> {
    fn from(any_of: Vec<T>) -> Self {
        Members { any_of, ..Members::default() }
    }
}

/// A condition on AS_PATH, as the peer sent it or as it is used here: in an export policy the local AS is not in it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsPathMatch {
    /// How long it is, counted as the decision counts: a set is 1 (RFC 4271 §9.1.2.2 a).
    pub length: RangeInclusive<usize>,
    /// One of these is in it, in a set too. Empty: any.
    pub contains: Vec<Asn>,
    /// One of these originated the path: it stands last, in a sequence. Empty: any, or none.
    pub origin_as: Vec<Asn>,
    /// The path came from one of these: it stands first, in a sequence. Empty: any, or none.
    pub neighbour_as: Vec<Asn>,
}

impl Default for AsPathMatch {
    fn default() -> Self {
        AsPathMatch {
            length: 0..=usize::MAX,
            contains: Vec::new(),
            origin_as: Vec::new(),
            neighbour_as: Vec::new(),
        }
    }
}

impl AsPathMatch {
    /// Whether a path's AS_PATH satisfies it.
    pub fn matches(&self, path: &AsPath) -> bool {
        let is_one_of =
            |asns: &[Asn], asn: Option<Asn>| asns.is_empty() || asn.is_some_and(|asn| asns.contains(&asn));
        self.length.contains(&path.len())
            && (self.contains.is_empty() || self.contains.iter().any(|asn| path.contains(*asn)))
            && is_one_of(&self.origin_as, path.origin_as())
            && is_one_of(&self.neighbour_as, path.first())
    }
}

/// Every condition given must hold; the default holds for every path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// One of these matches the prefix. Empty: any prefix.
    pub prefixes: PrefixSet,
    /// One of these matches the next hop as a host prefix (/32, /128). Empty: any, or none. A path that this speaker
    /// originates has no next hop; of a learned one it is the one that is used, also where the peer will be told another.
    pub next_hops: PrefixSet,
    /// COMMUNITIES.
    pub communities: Members<Community>,
    /// LARGE_COMMUNITIES.
    pub large_communities: Members<LargeCommunity>,
    /// EXTENDED COMMUNITIES.
    pub extended_communities: Members<ExtendedCommunity>,
    /// AS_PATH.
    pub as_path: AsPathMatch,
    /// ORIGIN is one of these. Empty: any.
    pub origins: Vec<Origin>,
    /// Only paths that this speaker originates (`Some(true)`), only learned ones (`Some(false)`), or both.
    pub originated: Option<bool>,
}

impl Conditions {
    /// The half that depends on the prefix alone.
    pub(super) fn match_prefix(&self, prefix: &IpNet) -> bool {
        self.prefixes.is_empty() || self.prefixes.contains(prefix)
    }

    /// The half that does not depend on the prefix.
    pub(super) fn match_attributes(
        &self,
        attributes: &PathAttributes,
        next_hop: Option<NextHop>,
        originated: bool,
    ) -> bool {
        self.originated.is_none_or(|wanted| wanted == originated)
            && (self.origins.is_empty() || self.origins.contains(&attributes.origin))
            && self.communities.matches(&attributes.communities)
            && self.large_communities.matches(&attributes.large_communities)
            && self.extended_communities.matches(&attributes.extended_communities)
            && self.as_path.matches(&attributes.as_path)
            && (self.next_hops.is_empty()
                || next_hop.is_some_and(|next_hop| self.next_hops.contains(&next_hop.address().into())))
    }
}
