//! Prefix lists with a look-up time that does not grow with their length.
//!
//! A set is a table from covering prefixes to the lengths that match below them. It also has a list
//! of the covering lengths that occur. A look-up needs one step for each covering length that is
//! not longer than the prefix's. This is one step for a list of a thousand /24s, and two or three
//! for typical lists. A trie would need one step for each bit of the prefix, and more memory.
//!
//! Sets are shared: a clone only increments a count, so every peer's policy can have a list of a
//! hundred thousand entries.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::types::Family;

/// A prefix with the matching lengths below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The covering prefix.
    pub prefix: IpNet,
    /// The shortest matching length; the prefix's own if none.
    pub ge: Option<u8>,
    /// The longest matching length; if none, the family's longest if `ge` is given, else the
    /// prefix's own.
    pub le: Option<u8>,
}

impl PrefixMatch {
    /// The prefix and all longer prefixes within it.
    pub fn or_longer(prefix: IpNet) -> Self {
        PrefixMatch { prefix, ge: Some(prefix.prefix_len()), le: None }
    }

    /// Whether this entry covers a prefix and its length is within the bounds.
    pub fn matches(&self, prefix: &IpNet) -> bool {
        let (least, most) = self.bounds();
        (least..=most).contains(&prefix.prefix_len()) && self.prefix.contains(prefix)
    }

    /// The shortest and the longest matching length.
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

/// A set of prefixes, each with the matching lengths below it. See the module documentation.
#[derive(Clone, Default)]
pub struct PrefixSet(Option<Arc<Set>>);

struct Set {
    entries: Vec<PrefixMatch>,
    /// The matching lengths (shortest, longest) by covering prefix.
    bounds: FxHashMap<IpNet, SmallVec<[(u8, u8); 1]>>,
    /// The lengths of covering prefixes that occur, ascending, by family.
    lengths: [Vec<u8>; 2],
}

impl PrefixSet {
    /// The entries in their original order.
    pub fn entries(&self) -> &[PrefixMatch] {
        self.0.as_ref().map_or(&[], |set| &set.entries)
    }

    /// Whether the set has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether any entry matches the prefix.
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
