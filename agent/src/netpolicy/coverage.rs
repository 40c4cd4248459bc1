//! Whether the rows of pods and Namespaces have the labels that a policy names.
//!
//! A policy with a key that no policy named before is **pending** until the watches have listed the
//! objects with this key. Its former version stays in force meanwhile, and no other policy waits. A
//! new pod waits only if a pending policy may select it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::feed::Wanted;
use super::group::{NamespaceMatch, PodGroup};
use super::input::{ClusterPolicy, NetworkPolicy};
use super::kernel::PolicyRef;
use super::keys::{LabelKeys, Labelled, NamedKeys};
use super::translate;

/// A policy of any kind.
#[derive(Clone, Debug)]
pub(super) enum AnyPolicy {
    Network(NetworkPolicy),
    Cluster(ClusterPolicy),
}

impl AnyPolicy {
    fn keys(&self) -> NamedKeys {
        match self {
            AnyPolicy::Network(policy) => NamedKeys::of_network(policy),
            AnyPolicy::Cluster(policy) => NamedKeys::of_cluster(policy),
        }
    }

    fn subject(&self) -> Option<PodGroup> {
        match self {
            AnyPolicy::Network(policy) => Some(translate::network_subject(policy)),
            AnyPolicy::Cluster(policy) => translate::cluster_subject(policy),
        }
    }
}

/// The rows of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    /// The rows have the labels of the keys up to this registration. None: no list has arrived.
    keys: Option<u64>,
    /// The registrations before the first list: the rows are complete with their labels.
    needed: u64,
}

/// The state.
#[derive(Debug)]
pub(super) struct Coverage {
    /// None: rows have all labels, because no API server sends them.
    keys: Option<Arc<LabelKeys>>,
    pods: Rows,
    namespaces: Rows,
    in_force: BTreeMap<PolicyRef, NamedKeys>,
    pending: BTreeMap<PolicyRef, (AnyPolicy, NamedKeys)>,
    /// Lists of pods that came too late, so another one is necessary.
    restarts: u64,
}

impl Coverage {
    pub(super) fn new(keys: Option<Arc<LabelKeys>>) -> Coverage {
        Coverage {
            keys,
            pods: Rows::default(),
            namespaces: Rows::default(),
            in_force: BTreeMap::new(),
            pending: BTreeMap::new(),
            restarts: 0,
        }
    }

    /// Takes a policy. Returns it if it can be in force at once. `has_rows`: there are rows that may
    /// lack its labels.
    pub(super) fn offer(&mut self, name: &PolicyRef, policy: AnyPolicy, has_rows: bool) -> Option<AnyPolicy> {
        let Some(keys) = &self.keys else { return Some(policy) };
        let named = policy.keys();
        keys.add(&named);
        if let Some((_, former)) = self.pending.remove(name) {
            keys.remove(&former);
        }
        if has_rows && !self.has(&named) {
            self.pending.insert(name.clone(), (policy, named));
            return None;
        }
        self.put_in_force(name.clone(), named);
        Some(policy)
    }

    fn put_in_force(&mut self, name: PolicyRef, named: NamedKeys) {
        let former = self.in_force.insert(name, named);
        if let (Some(keys), Some(former)) = (&self.keys, former) {
            keys.remove(&former);
        }
    }

    /// A policy that is above the budget of stored policies becomes a stub.
    pub(super) fn stub_pending(&mut self, name: &PolicyRef) {
        if let Some((policy, _)) = self.pending.get_mut(name) {
            *policy = match policy {
                AnyPolicy::Network(policy) => AnyPolicy::Network(policy.stub()),
                AnyPolicy::Cluster(policy) => AnyPolicy::Cluster(policy.stub()),
            };
        }
    }

    /// A policy is gone.
    pub(super) fn withdraw(&mut self, name: &PolicyRef) {
        let Some(keys) = &self.keys else { return };
        let pending = self.pending.remove(name).map(|(_, named)| named);
        for named in self.in_force.remove(name).into_iter().chain(pending) {
            keys.remove(&named);
        }
    }

    fn has(&self, named: &NamedKeys) -> bool {
        let Some(keys) = &self.keys else { return true };
        let has = |kind| self.rows(kind).keys.unwrap_or_default() >= keys.last_of(kind, named);
        has(Labelled::Pods) && has(Labelled::Namespaces)
    }

    fn rows(&self, kind: Labelled) -> &Rows {
        match kind {
            Labelled::Pods => &self.pods,
            Labelled::Namespaces => &self.namespaces,
        }
    }

    fn rows_mut(&mut self, kind: Labelled) -> &mut Rows {
        match kind {
            Labelled::Pods => &mut self.pods,
            Labelled::Namespaces => &mut self.namespaces,
        }
    }

    /// Takes the number of a list: its rows have the labels of the keys up to this registration. None:
    /// all of them. Returns whether the list counts: the rows that are there must not have more.
    pub(super) fn list(&mut self, kind: Labelled, number: Option<u64>) -> bool {
        let last = self.keys.as_ref().map(|keys| keys.last(kind)).unwrap_or_default();
        let number = number.unwrap_or(last);
        let rows = self.rows_mut(kind);
        match rows.keys {
            Some(there) if number < there => {
                self.restarts += 1;
                return false;
            }
            Some(_) => {}
            None => rows.needed = last,
        }
        rows.keys = Some(number);
        true
    }

    /// The rows have the labels of the keys up to this registration.
    pub(super) fn cover(&mut self, kind: Labelled, number: u64) {
        let rows = self.rows_mut(kind);
        rows.keys = rows.keys.map(|there| there.max(number));
    }

    /// Whether the rows have the labels of all policies that were there before the first list.
    pub(super) fn is_complete(&self) -> bool {
        let is_complete = |rows: &Rows| rows.keys.is_some_and(|number| number >= rows.needed);
        is_complete(&self.pods) && is_complete(&self.namespaces)
    }

    /// The rows of pods have the labels of the keys up to this registration.
    pub(super) fn pod_keys(&self) -> Option<u64> {
        self.pods.keys
    }

    /// Whether a list of pods or Namespaces has arrived.
    pub(super) fn has_pods(&self) -> bool {
        self.pods.keys.is_some() || self.namespaces.keys.is_some()
    }

    /// No rows are left.
    pub(super) fn forget(&mut self) {
        (self.pods, self.namespaces) = (Rows::default(), Rows::default());
    }

    /// The pending policies that can be in force now.
    pub(super) fn poll_ready(&mut self) -> Vec<AnyPolicy> {
        let ready: Vec<PolicyRef> = self
            .pending
            .iter()
            .filter(|(_, (_, named))| self.has(named))
            .map(|(name, _)| name.clone())
            .collect();
        let mut policies = Vec::new();
        for name in ready {
            if let Some((policy, named)) = self.pending.remove(&name) {
                self.put_in_force(name, named);
                policies.push(policy);
            }
        }
        policies
    }

    /// The number of pending policies.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The pending policies with their subjects, without the conditions of which the labels are not
    /// known.
    pub(super) fn pending_subjects(&self) -> impl Iterator<Item = (&PolicyRef, PodGroup)> {
        self.pending.iter().filter_map(|(name, (policy, _))| {
            let keys = self.keys.as_ref()?;
            let PodGroup { namespaces, pods, unknown } = policy.subject()?;
            let lacks = |kind, key: &str| keys.is_after(kind, key, self.rows(kind).keys.unwrap_or_default());
            let namespaces = match namespaces {
                NamespaceMatch::Named(name) => NamespaceMatch::Named(name),
                NamespaceMatch::Selected(selector) => {
                    NamespaceMatch::Selected(selector.without(|key| lacks(Labelled::Namespaces, key)))
                }
            };
            Some((
                name,
                PodGroup { namespaces, pods: pods.without(|key| lacks(Labelled::Pods, key)), unknown },
            ))
        })
    }

    /// What the watches need.
    pub(super) fn wanted(&self, pods: bool) -> Wanted {
        let last = |kind| self.keys.as_ref().map(|keys| keys.last(kind)).unwrap_or_default();
        Wanted {
            pods,
            pod_keys: self.pods.keys,
            namespace_keys: self.namespaces.keys,
            registered: (last(Labelled::Pods), last(Labelled::Namespaces)),
            restarts: self.restarts,
        }
    }
}
