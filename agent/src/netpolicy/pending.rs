//! What changed since the last difference. A change that is taken back leaves nothing, with one
//! exception: a set of pods' addresses that was removed and created again is replaced, even by equal
//! elements, because nobody followed its elements meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::input::ObjectKey;
use super::rules::{AddressSet, Chain, ChainId, Element, PodChains, RulesChange, SetChange, SetId, SetKey};

/// Changes of sets, and the old values of changed chains and pods.
#[derive(Debug, Default)]
pub(super) struct Pending {
    sets: BTreeMap<SetId, PendingSet>,
    /// The chains before the first change. None: the chain was not there.
    chains: BTreeMap<ChainId, Option<Arc<Chain>>>,
    pods: BTreeMap<ObjectKey, PodChains>,
}

#[derive(Debug, Default)]
struct PendingSet {
    /// Whether the set was there before the first change.
    existed: bool,
    /// Whether the set was created since: then its elements are read when the difference is made.
    created: bool,
    added: BTreeSet<Element>,
    removed: BTreeSet<Element>,
}

impl Pending {
    pub(super) fn create_set(&mut self, id: SetId) {
        let set = self.sets.entry(id).or_default();
        set.created = true;
        set.added.clear();
        set.removed.clear();
    }

    pub(super) fn remove_set(&mut self, id: SetId) {
        let existing = PendingSet { existed: true, ..PendingSet::default() };
        let set = self.sets.entry(id).or_insert(existing);
        set.added.clear();
        set.removed.clear();
    }

    /// Adds an element that the set does not have.
    pub(super) fn add(&mut self, id: SetId, element: Element) {
        let set = self.changed_set(id);
        if !set.created && !set.removed.remove(&element) {
            set.added.insert(element);
        }
    }

    /// Removes an element that the set has.
    pub(super) fn remove(&mut self, id: SetId, element: Element) {
        let set = self.changed_set(id);
        if !set.created && !set.added.remove(&element) {
            set.removed.insert(element);
        }
    }

    fn changed_set(&mut self, id: SetId) -> &mut PendingSet {
        self.sets.entry(id).or_insert(PendingSet { existed: true, ..PendingSet::default() })
    }

    /// Records the old value of a chain before a change. A chain without use is not there.
    pub(super) fn touch_chain(&mut self, id: ChainId, before: Option<&Arc<Chain>>) {
        let before = before.filter(|chain| !chain.is_unused());
        self.chains.entry(id).or_insert_with(|| before.cloned());
    }

    /// Records the old chains of a pod before a change.
    pub(super) fn touch_pod(&mut self, pod: &ObjectKey, before: PodChains) {
        self.pods.entry(pod.clone()).or_insert(before);
    }

    /// The difference to the current state, which these functions read.
    pub(super) fn into_change(
        self,
        set_key: impl Fn(SetId) -> Option<Arc<SetKey>>,
        elements: impl Fn(&SetKey) -> BTreeSet<Element>,
        chain: impl Fn(ChainId) -> Option<Arc<Chain>>,
        pod: impl Fn(&ObjectKey) -> PodChains,
    ) -> RulesChange {
        let sets = self.sets.into_iter().filter_map(|(id, set)| {
            let change = match set_key(id) {
                // Its elements follow from its key.
                Some(key) if set.created && set.existed && key.constant_elements().is_some() => return None,
                Some(key) if set.created => SetChange::Replaced(AddressSet { elements: elements(&key), key }),
                Some(_) if set.added.is_empty() && set.removed.is_empty() => return None,
                Some(_) => SetChange::Changed { added: set.added, removed: set.removed },
                None if set.existed => SetChange::Removed,
                None => return None,
            };
            Some((id, change))
        });
        let chains = self.chains.into_iter().filter_map(|(id, before)| {
            let now = chain(id);
            (now != before).then_some((id, now))
        });
        let pods = self.pods.into_iter().filter_map(|(key, before)| {
            let now = pod(&key);
            (now != before).then_some((key, now))
        });
        RulesChange { sets: sets.collect(), chains: chains.collect(), pods: pods.collect() }
    }
}
