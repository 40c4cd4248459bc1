//! The conditions of a rule.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::prefix_set::PrefixSet;
use crate::types::{Asn, Community, ExtendedCommunity, LargeCommunity, NextHop, Tag, Tags};
use crate::wire::{AsPath, Origin, PathAttributes};

/// A condition on a list attribute. The default matches every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members<T> {
    /// The path has at least one of these. Empty: no condition.
    pub any_of: Vec<T>,
    /// The path has all of these.
    pub all_of: Vec<T>,
    /// The path has none of these.
    pub none_of: Vec<T>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Members { any_of: Vec::new(), all_of: Vec::new(), none_of: Vec::new() }
    }
}

impl<T: PartialEq> Members<T> {
    /// Whether a path's list satisfies the condition.
    pub fn matches(&self, carried: &[T]) -> bool {
        let is_carried = |member: &T| carried.contains(member);
        (self.any_of.is_empty() || self.any_of.iter().any(is_carried))
            && self.all_of.iter().all(is_carried)
            && !self.none_of.iter().any(is_carried)
    }
}

/// A condition that requires at least one of the members.
impl<T> From<Vec<T>> for Members<T> {
    fn from(any_of: Vec<T>) -> Self {
        Members { any_of, ..Members::default() }
    }
}

/// A condition on AS_PATH as received or as used; export policy runs before the local AS is
/// prepended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsPathMatch {
    /// The path length as the decision counts it: a set is 1 (RFC 4271 §9.1.2.2 a).
    pub length: RangeInclusive<usize>,
    /// One of these is in the path, possibly in a set. Empty: no condition.
    pub contains: Vec<Asn>,
    /// One of these originated the path: it is the last AS, in a sequence. Empty: no condition.
    pub origin_as: Vec<Asn>,
    /// One of these sent the path: it is the first AS, in a sequence. Empty: no condition.
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
    /// Whether a path's AS_PATH satisfies the condition.
    pub fn matches(&self, path: &AsPath) -> bool {
        let is_one_of =
            |asns: &[Asn], asn: Option<Asn>| asns.is_empty() || asn.is_some_and(|asn| asns.contains(&asn));
        self.length.contains(&path.len())
            && (self.contains.is_empty() || self.contains.iter().any(|asn| path.contains(*asn)))
            && is_one_of(&self.origin_as, path.origin_as())
            && is_one_of(&self.neighbour_as, path.first())
    }
}

/// The conditions of a rule, all of which must hold; the default matches every path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// One of these matches the prefix. Empty: no condition.
    pub prefixes: PrefixSet,
    /// One of these matches the next hop as a host prefix (/32, /128). Empty: no condition. An
    /// originated path has no next hop. For a received path the condition uses the next hop in use,
    /// even if the peer receives a different one.
    pub next_hops: PrefixSet,
    /// COMMUNITIES.
    pub communities: Members<Community>,
    /// LARGE_COMMUNITIES.
    pub large_communities: Members<LargeCommunity>,
    /// EXTENDED COMMUNITIES.
    pub extended_communities: Members<ExtendedCommunity>,
    /// AS_PATH.
    pub as_path: AsPathMatch,
    /// ORIGIN is one of these. Empty: no condition.
    pub origins: Vec<Origin>,
    /// Only originated paths (`Some(true)`), only received ones (`Some(false)`), or both.
    pub originated: Option<bool>,
    /// The tags of an originated path ([`Origination::tags`]). Received paths have none: they
    /// satisfy `none_of`.
    ///
    /// [`Origination::tags`]: crate::rib::Origination::tags
    pub tags: Members<Tag>,
}

impl Conditions {
    /// The conditions that depend on the prefix only.
    pub(super) fn match_prefix(&self, prefix: &IpNet) -> bool {
        self.prefixes.is_empty() || self.prefixes.contains(prefix)
    }

    /// The conditions that do not depend on the prefix.
    pub(super) fn match_attributes(
        &self,
        attributes: &PathAttributes,
        next_hop: Option<NextHop>,
        originated: bool,
        tags: &Tags,
    ) -> bool {
        self.originated.is_none_or(|wanted| wanted == originated)
            && self.tags.matches(tags.as_slice())
            && (self.origins.is_empty() || self.origins.contains(&attributes.origin))
            && self.communities.matches(&attributes.communities)
            && self.large_communities.matches(&attributes.large_communities)
            && self.extended_communities.matches(&attributes.extended_communities)
            && self.as_path.matches(&attributes.as_path)
            && (self.next_hops.is_empty()
                || next_hop.is_some_and(|next_hop| self.next_hops.contains(&next_hop.address().into())))
    }
}
