//! Groups of pods: the peers and the subjects of policies, and an index that finds the groups of a
//! pod.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::labels::{Labels, Selector, SelectorIndex};

/// Pods that a policy selects by Namespace and labels. Pods with the node's network are in no
/// group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodGroup {
    /// The Namespaces.
    pub namespaces: NamespaceMatch,
    /// The labels of the pods.
    pub pods: Selector,
    /// Whether pods that may be in the group are in it, because their labels or those of their
    /// Namespace are not known. This is the case for rules that deny, and for those that drop the
    /// packets that a rule of the Admin tier may pass, and only for these.
    pub unknown: bool,
    /// Whether pods that certainly are in the group are left out, and only those stay that may be in
    /// it. Without effect if `unknown` is false.
    pub only_unknown: bool,
}

/// The Namespaces of a [`PodGroup`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceMatch {
    /// The Namespace with this name.
    Named(Arc<str>),
    /// The Namespaces with these labels.
    Selected(Selector),
}

/// A Namespace, as far as groups need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceRef<'a> {
    pub(super) name: &'a Arc<str>,
    /// [`Labels::UNKNOWN`]: the Namespace is not known.
    pub(super) labels: &'a Labels,
}

impl PodGroup {
    /// Whether every pod is in the group, also of unknown labels.
    pub(super) fn has_all_pods(&self) -> bool {
        let every = Selector::default();
        self.pods == every && self.namespaces == NamespaceMatch::Selected(every)
    }

    /// Whether a pod of this Namespace and with these labels is in the group.
    pub(super) fn matches(&self, namespace: NamespaceRef<'_>, labels: &Labels) -> bool {
        if self.unknown && !self.may_match(namespace, labels) {
            return false;
        }
        if self.unknown && !self.only_unknown {
            return true;
        }
        self.certainly_matches(namespace, labels) != self.unknown
    }

    fn certainly_matches(&self, namespace: NamespaceRef<'_>, labels: &Labels) -> bool {
        let in_namespace = match &self.namespaces {
            NamespaceMatch::Named(name) => name == namespace.name,
            NamespaceMatch::Selected(selector) => selector.matches(namespace.labels),
        };
        in_namespace && self.pods.matches(labels)
    }

    /// Whether a pod of this Namespace and with these labels is in the group, or could be in it with
    /// labels that are not known.
    pub(super) fn may_match(&self, namespace: NamespaceRef<'_>, labels: &Labels) -> bool {
        let in_namespace = match &self.namespaces {
            NamespaceMatch::Named(name) => name == namespace.name,
            NamespaceMatch::Selected(selector) => selector.may_match(namespace.labels),
        };
        in_namespace && self.pods.may_match(labels)
    }
}

/// Finds the groups of a pod: first by Namespace, then by label.
#[derive(Debug)]
pub(super) struct GroupIndex<T> {
    named: HashMap<Arc<str>, SelectorIndex<T>>,
    /// Groups with the same selector of Namespaces, by its number.
    selected: HashMap<u32, (Selector, SelectorIndex<T>)>,
    numbers: HashMap<Selector, u32>,
    by_labels: SelectorIndex<u32>,
    /// The entries of groups with [`PodGroup::unknown`].
    unknown: BTreeSet<T>,
    next: u32,
}

impl<T> Default for GroupIndex<T> {
    fn default() -> Self {
        GroupIndex {
            named: HashMap::new(),
            selected: HashMap::new(),
            numbers: HashMap::new(),
            by_labels: SelectorIndex::default(),
            unknown: BTreeSet::new(),
            next: 0,
        }
    }
}

impl<T: Copy + Ord> GroupIndex<T> {
    pub(super) fn insert(&mut self, group: &PodGroup, entry: T) {
        if group.unknown {
            self.unknown.insert(entry);
        }
        let pods = match &group.namespaces {
            NamespaceMatch::Named(name) => self.named.entry(name.clone()).or_default(),
            NamespaceMatch::Selected(selector) => {
                let number = *self.numbers.entry(selector.clone()).or_insert_with(|| {
                    self.next += 1;
                    self.by_labels.insert(selector, self.next);
                    self.next
                });
                &mut self
                    .selected
                    .entry(number)
                    .or_insert_with(|| (selector.clone(), SelectorIndex::default()))
                    .1
            }
        };
        pods.insert(&group.pods, entry);
    }

    pub(super) fn remove(&mut self, group: &PodGroup, entry: T) {
        if group.unknown {
            self.unknown.remove(&entry);
        }
        match &group.namespaces {
            NamespaceMatch::Named(name) => {
                let Some(pods) = self.named.get_mut(name) else { return };
                pods.remove(&group.pods, entry);
                if pods.is_empty() {
                    self.named.remove(name);
                }
            }
            NamespaceMatch::Selected(selector) => {
                let Some(number) = self.numbers.get(selector).copied() else { return };
                let Some((_, pods)) = self.selected.get_mut(&number) else { return };
                pods.remove(&group.pods, entry);
                if pods.is_empty() {
                    self.selected.remove(&number);
                    self.numbers.remove(selector);
                    self.by_labels.remove(selector, number);
                }
            }
        }
    }

    /// The entries of which the group can contain a pod. The caller examines the full group. If the
    /// labels are not known, an entry can be there twice.
    pub(super) fn candidates(&self, namespace: NamespaceRef<'_>, labels: &Labels) -> Vec<T> {
        let known = self.of_namespace(namespace).into_iter().flat_map(|pods| pods.candidates(labels));
        let is_unknown = !(labels.is_known() && namespace.labels.is_known());
        known.chain(self.unknown.iter().copied().filter(|_| is_unknown)).collect()
    }

    /// The entries of which the group can contain a pod of this Namespace, whatever its labels and
    /// those of the Namespace are.
    pub(super) fn possible(&self, namespace: NamespaceRef<'_>) -> Vec<T> {
        let selected = self.selected.values().map(|(_, pods)| pods);
        let all = self.named.get(namespace.name).into_iter().chain(selected);
        all.flat_map(SelectorIndex::all).collect()
    }

    /// The selectors of pods in the groups with this Namespace. If its labels are not known, or those
    /// of a pod, [`GroupIndex::candidates`] has more entries.
    pub(super) fn of_namespace(&self, namespace: NamespaceRef<'_>) -> Vec<&SelectorIndex<T>> {
        let named = self.named.get(namespace.name);
        let selected = self.by_labels.candidates(namespace.labels).filter_map(|number| {
            let (selector, pods) = self.selected.get(&number)?;
            selector.matches(namespace.labels).then_some(pods)
        });
        selected.chain(named).collect()
    }
}
