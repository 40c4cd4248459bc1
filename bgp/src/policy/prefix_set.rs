//! Prefix lists that are looked up in a time that does not grow with them.
//!
//! A set is a table from covering prefixes to the lengths that match below them, with the covering lengths that occur in it
//! kept aside. Whether it has a prefix takes one look-up for each covering length that is not longer than the prefix's:
//! one for a list of a thousand /24s, two or three for what operators write. A trie would take as many steps as the
//! prefix has bits, and more memory.
//!
//! Sets are shared: a clone costs a count, so that a list of a hundred thousand may stand in every peer's policy.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::types::Family;

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

impl PrefixMatch {
    /// The prefix and everything under it.
    pub fn or_longer(prefix: IpNet) -> Self {
        PrefixMatch { prefix, ge: Some(prefix.prefix_len()), le: None }
    }

    /// Whether a prefix is covered, with a length within the bounds.
    pub fn matches(&self, prefix: &IpNet) -> bool {
        let (least, most) = self.bounds();
        (least..=most).contains(&prefix.prefix_len()) && self.prefix.contains(prefix)
    }

    /// The shortest and the longest length that match.
    fn bounds(&self) -> (u8, u8) {
        let least = self.ge.unwrap_or(self.prefix.prefix_len());
        let most = match (self.le, self.ge) {
            (Some(le), _) => le,
            (None, Some(_)) => self.prefix.max_prefix_len(),
            (None, None) => self.prefix.prefix_len(),
        };
        (least, most)
    }
}

/// Prefixes, each with the lengths below it that match. See the module.
#[derive(Clone, Default)]
pub struct PrefixSet(Option<Arc<Set>>);

struct Set {
    entries: Vec<PrefixMatch>,
    /// The lengths that match below a covering prefix (shortest, longest), by the covering prefix.
    bounds: FxHashMap<IpNet, SmallVec<[(u8, u8); 1]>>,
    /// The lengths of covering prefixes that occur, in ascending order, by family.
    lengths: [Vec<u8>; 2],
}

impl PrefixSet {
    /// The entries in the order in which they were given.
    pub fn entries(&self) -> &[PrefixMatch] {
        self.0.as_ref().map_or(&[], |set| &set.entries)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether an entry matches the prefix.
    pub fn contains(&self, prefix: &IpNet) -> bool {
        let Some(set) = &self.0 else { return false };
        let length = prefix.prefix_len();
        let covering =
            set.lengths[Family::of(prefix).index()].iter().take_while(|covering| **covering <= length);
        covering.filter_map(|covering| IpNet::new(prefix.addr(), *covering).ok()).any(|covering| {
            let bounds = set.bounds.get(&covering.trunc());
            bounds.is_some_and(|all| all.iter().any(|(least, most)| (*least..=*most).contains(&length)))
        })
    }
}

impl FromIterator<PrefixMatch> for PrefixSet {
    fn from_iter<I: IntoIterator<Item = PrefixMatch>>(entries: I) -> Self {
        let entries: Vec<PrefixMatch> = entries.into_iter().collect();
        if entries.is_empty() {
            return PrefixSet(None);
        }
        let mut bounds: FxHashMap<IpNet, SmallVec<[(u8, u8); 1]>> = FxHashMap::default();
        let mut lengths: [Vec<u8>; 2] = Default::default();
        for entry in &entries {
            bounds.entry(entry.prefix.trunc()).or_default().push(entry.bounds());
            lengths[Family::of(&entry.prefix).index()].push(entry.prefix.prefix_len());
        }
        for lengths in &mut lengths {
            lengths.sort_unstable();
            lengths.dedup();
        }
        PrefixSet(Some(Arc::new(Set { entries, bounds, lengths })))
    }
}

impl From<Vec<PrefixMatch>> for PrefixSet {
    fn from(entries: Vec<PrefixMatch>) -> Self {
        entries.into_iter().collect()
    }
}

impl PartialEq for PrefixSet {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.entries == other.entries,
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl fmt::Debug for PrefixSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}
