//! The changes that a rule makes to a matching path.

use crate::types::{Asn, Community, ExtendedCommunity, LargeCommunity};
use crate::wire::PathAttributes;

/// Changes to a list attribute: first it is replaced, then members are removed, then members are
/// added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit<T> {
    /// Replaces the whole list; an empty list removes all members. None: the list stays.
    pub replace: Option<Vec<T>>,
    /// The members to remove.
    pub remove: Vec<T>,
    /// The members to add at the end unless present.
    pub add: Vec<T>,
}

impl<T> Default for Edit<T> {
    fn default() -> Self {
        Edit { replace: None, remove: Vec::new(), add: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Edit<T> {
    /// An edit that only adds.
    pub fn add(added: impl IntoIterator<Item = T>) -> Self {
        Edit { add: added.into_iter().collect(), ..Edit::default() }
    }

    fn apply(&self, list: &mut Vec<T>) {
        if let Some(replace) = &self.replace {
            list.clear();
            add(list, replace);
        }
        list.retain(|member| !self.remove.contains(member));
        add(list, &self.add);
    }
}

fn add<T: Copy + PartialEq>(list: &mut Vec<T>, added: &[T]) {
    for member in added {
        if !list.contains(member) {
            list.push(*member);
        }
    }
}

/// Changes to a path's attributes. Policy does not set the next hop: the session determines it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// LOCAL_PREF; not sent to external peers (RFC 4271 §5.1.5).
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// Prepends the local AS (export) or the neighbour's (import) this many additional times.
    pub prepend: u8,
    /// COMMUNITIES.
    pub communities: Edit<Community>,
    /// LARGE_COMMUNITIES.
    pub large_communities: Edit<LargeCommunity>,
    /// EXTENDED COMMUNITIES. External peers receive the transitive communities, and the communities
    /// that their own export policy adds.
    pub extended_communities: Edit<ExtendedCommunity>,
}

impl Actions {
    pub(super) fn apply(&self, attributes: &mut PathAttributes, prepended: Asn) {
        if self.local_pref.is_some() {
            attributes.local_pref = self.local_pref;
        }
        if self.med.is_some() {
            attributes.med = self.med;
        }
        if self.prepend > 0 {
            attributes.as_path.prepend(prepended, usize::from(self.prepend));
        }
        self.communities.apply(&mut attributes.communities);
        self.large_communities.apply(&mut attributes.large_communities);
        self.extended_communities.apply(&mut attributes.extended_communities);
    }
}
