//! Whether the rows of pods and Namespaces have the labels that a policy names.
//!
//! A policy with a key that no policy named before is **pending** until the watches have listed the
//! objects with this key. Its former version stays in force meanwhile, and no other policy waits. A
//! new pod waits only if a pending policy may select it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::feed::Wanted;
use super::group::{NamespaceMatch, PodGroup};
use super::input::{ClusterPolicy, NetworkPolicy, ObjectKey};
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

/// A policy with a key that the rows lack.
#[derive(Debug)]
struct PendingPolicy {
    policy: AnyPolicy,
    named: NamedKeys,
    /// The registrations that it needs, of pods and of Namespaces.
    needs: (u64, u64),
    /// The pods that it selects.
    subject: Option<PodGroup>,
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
    pending: BTreeMap<PolicyRef, PendingPolicy>,
    /// Whether rows got labels of more keys since the last look at the pending policies.
    has_more_keys: bool,
    /// Pending policies that were examined since the start: the measure of cost for tests.
    examined: Cell<u64>,
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
            has_more_keys: false,
            examined: Cell::new(0),
            restarts: 0,
        }
    }

    /// Whether rows can lack labels.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Takes a policy. Returns it if it can be in force at once. `has_rows`: there are rows that may
    /// lack its labels.
    pub(super) fn offer(&mut self, name: &PolicyRef, policy: AnyPolicy, has_rows: bool) -> Option<AnyPolicy> {
        let Some(keys) = &self.keys else { return Some(policy) };
        let named = policy.keys();
        keys.add(&named);
        if let Some(former) = self.pending.remove(name) {
            keys.remove(&former.named);
        }
        let needs = (keys.last_of(Labelled::Pods, &named), keys.last_of(Labelled::Namespaces, &named));
        if has_rows && !self.has(needs) {
            let subject = policy.subject();
            self.pending.insert(name.clone(), PendingPolicy { policy, named, needs, subject });
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
        if let Some(pending) = self.pending.get_mut(name) {
            pending.policy = match &pending.policy {
                AnyPolicy::Network(policy) => AnyPolicy::Network(policy.stub()),
                AnyPolicy::Cluster(policy) => AnyPolicy::Cluster(policy.stub()),
            };
            pending.subject = pending.policy.subject();
        }
    }

    /// A policy is gone.
    pub(super) fn withdraw(&mut self, name: &PolicyRef) {
        let Some(keys) = &self.keys else { return };
        let pending = self.pending.remove(name).map(|pending| pending.named);
        for named in self.in_force.remove(name).into_iter().chain(pending) {
            keys.remove(&named);
        }
    }

    /// Whether the rows have the labels of the keys up to these registrations, of pods and of
    /// Namespaces.
    fn has(&self, (pods, namespaces): (u64, u64)) -> bool {
        let has = |kind, needed| self.rows(kind).keys.unwrap_or_default() >= needed;
        has(Labelled::Pods, pods) && has(Labelled::Namespaces, namespaces)
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
        let has_more = rows.keys.is_none_or(|there| there < number);
        rows.keys = Some(number);
        self.has_more_keys |= has_more;
        true
    }

    /// The rows have the labels of the keys up to this registration.
    pub(super) fn cover(&mut self, kind: Labelled, number: u64) {
        self.has_more_keys = true;
        let rows = self.rows_mut(kind);
        rows.keys = rows.keys.map(|there| there.max(number));
    }

    /// Whether the row of a pod with the labels of the keys up to this registration lacks labels that
    /// other rows have: it was read before a key was registered, and arrives after the list of the pods
    /// with this key. Then another list is necessary.
    pub(super) fn is_behind(&mut self, number: u64) -> bool {
        let (Some(keys), Some(there)) = (&self.keys, self.pods.keys) else { return false };
        let is_behind = number < there && keys.has_between(Labelled::Pods, number, there);
        self.restarts += u64::from(is_behind);
        is_behind
    }

    /// A pod has a label of which only the key is known.
    pub(super) fn note_surplus(&self) {
        self.keys.iter().for_each(|keys| keys.note_surplus(Labelled::Pods));
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
        // Each event of a pod comes here.
        if !std::mem::take(&mut self.has_more_keys) {
            return Vec::new();
        }
        self.count_examined(self.pending.len());
        let ready = self.pending.iter().filter(|(_, pending)| self.has(pending.needs));
        let ready: Vec<PolicyRef> = ready.map(|(name, _)| name.clone()).collect();
        let mut policies = Vec::new();
        for name in ready {
            if let Some(PendingPolicy { policy, named, .. }) = self.pending.remove(&name) {
                self.put_in_force(name, named);
                policies.push(policy);
            }
        }
        policies
    }

    fn count_examined(&self, number: usize) {
        self.examined.set(self.examined.get() + number as u64);
    }

    /// The number of pending policies.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The pending policies that may select pods of a Namespace, with their subjects, without the
    /// conditions of which the labels are not known.
    pub(super) fn pending_subjects(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = (&PolicyRef, PodGroup)> {
        let first = PolicyRef::Network(ObjectKey { namespace: namespace.clone(), name: "".into() });
        let is_of_namespace = |name: &PolicyRef| match name {
            PolicyRef::Network(key) => key.namespace == *namespace,
            PolicyRef::Cluster(_) => false,
        };
        let network = self.pending.range(first..).take_while(move |(name, _)| is_of_namespace(name));
        let cluster = self.pending.range(PolicyRef::Cluster("".into())..);
        network.chain(cluster).filter_map(|(name, pending)| {
            self.count_examined(1);
            Some((name, self.without_unknown(pending.subject.clone()?)?))
        })
    }

    /// A subject without the conditions on keys that rows lack.
    fn without_unknown(&self, subject: PodGroup) -> Option<PodGroup> {
        let keys = self.keys.as_ref()?;
        let lacks = |kind, key: &str| keys.is_after(kind, key, self.rows(kind).keys.unwrap_or_default());
        let namespaces = match subject.namespaces {
            NamespaceMatch::Named(name) => NamespaceMatch::Named(name),
            NamespaceMatch::Selected(selector) => {
                NamespaceMatch::Selected(selector.without(|key| lacks(Labelled::Namespaces, key)))
            }
        };
        let pods = subject.pods.without(|key| lacks(Labelled::Pods, key));
        Some(PodGroup { namespaces, pods, ..subject })
    }

    /// What the watches need. `over_bound`: pods have more labels than the bound.
    pub(super) fn wanted(&self, pods: bool, over_bound: bool) -> Wanted {
        let freed = self.keys.as_ref().filter(|_| over_bound).map(|keys| keys.freed(Labelled::Pods));
        let last = |kind| self.keys.as_ref().map(|keys| keys.last(kind)).unwrap_or_default();
        Wanted {
            pods,
            pod_keys: self.pods.keys,
            namespace_keys: self.namespaces.keys,
            registered: (last(Labelled::Pods), last(Labelled::Namespaces)),
            restarts: self.restarts,
            freed: freed.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::resources::LabelSelector;

    use super::*;

    fn policy(namespace: &str, name: &str, keys: usize) -> AnyPolicy {
        let label = |key: usize| (format!("{namespace}-{name}-{key}"), "a".to_owned());
        let pod_selector =
            LabelSelector { match_labels: (0..keys).map(label).collect(), ..LabelSelector::default() };
        AnyPolicy::Network(NetworkPolicy {
            key: ObjectKey::new(namespace, name),
            pod_selector,
            policy_types: None,
            ingress: Vec::new(),
            egress: Vec::new(),
        })
    }

    #[test]
    fn pending_policies_cost_nothing_until_keys_are_covered() {
        let mut coverage = Coverage::new(Some(Arc::default()));
        coverage.list(Labelled::Pods, Some(0));
        coverage.list(Labelled::Namespaces, Some(0));
        assert!(coverage.poll_ready().is_empty());
        let name = |namespace: &str, name: &str| PolicyRef::Network(ObjectKey::new(namespace, name));
        for number in 0..500 {
            let policy = policy("other", &format!("p{number}"), 20);
            assert!(coverage.offer(&name("other", &format!("p{number}")), policy, true).is_none());
        }
        coverage.offer(&name("shop", "p"), policy("shop", "p", 1), true);
        assert_eq!(coverage.pending(), 501);
        // Events of pods, and ADDs that wait.
        for _ in 0..1_000 {
            assert!(coverage.poll_ready().is_empty());
            assert_eq!(coverage.pending_subjects(&"green".into()).count(), 0);
        }
        assert_eq!(coverage.examined.get(), 0);
        let shop = "shop".into();
        let of_shop = coverage.pending_subjects(&shop).map(|(name, _)| name.to_string());
        assert_eq!(of_shop.collect::<Vec<_>>(), ["NetworkPolicy shop/p"]);
        assert_eq!(coverage.examined.get(), 1);
        coverage.cover(Labelled::Pods, 30);
        assert_eq!((coverage.poll_ready().len(), coverage.pending()), (1, 500));
        assert_eq!(coverage.examined.get(), 502);
        coverage.cover(Labelled::Pods, u64::MAX);
        assert_eq!((coverage.poll_ready().len(), coverage.pending()), (500, 0));
    }

    #[test]
    fn a_row_that_was_read_before_a_list_is_behind_it() {
        let mut coverage = Coverage::new(Some(Arc::default()));
        coverage.list(Labelled::Pods, Some(0));
        coverage.list(Labelled::Namespaces, Some(0));
        let name = PolicyRef::Network(ObjectKey::new("shop", "p"));
        coverage.offer(&name, policy("shop", "p", 1), true);
        assert!(!coverage.is_behind(0), "no row has the label yet");
        coverage.cover(Labelled::Pods, 1);
        assert!(!coverage.is_behind(1));
        assert_eq!(coverage.wanted(true, false).restarts, 0);
        assert!(coverage.is_behind(0));
        assert_eq!(coverage.wanted(true, false).restarts, 1, "all pods are listed again");
        coverage.withdraw(&name);
        assert!(!coverage.is_behind(0), "no policy names the key");
        assert_eq!((coverage.wanted(true, false).freed, coverage.wanted(true, true).freed), (0, 1));
    }
}
