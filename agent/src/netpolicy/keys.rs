//! The keys of labels that policies name. Rows of pods and Namespaces keep the labels with these keys
//! only: users who write labels cannot fill the memory of a node.
//!
//! The policy task registers the keys of its policies, and the watches read them when they convert an
//! object. Each key has the number of its registration. A row that was converted at registration N
//! has the labels of all keys up to N.
//!
//! **Keys have owners.** The keys of ClusterNetworkPolicies and of the policies of an object's own
//! Namespace decide which labels are its own; the others are named by policies of other Namespaces.
//! These have a bound of their own: users of one Namespace cannot make the labels of another one's
//! objects unknown. Above this bound only the keys of these labels are known
//! ([`Labels::UNKNOWN_VALUE`]). The policies of other Namespaces only accept, and no condition on the
//! value accepts such a label.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use trunkline_api::names::label;
use trunkline_api::network_policy::{
    ClusterPeer, ClusterPods, ClusterPolicy, ClusterSubject, NetworkPeer, NetworkPolicy,
};
use trunkline_api::resources::LabelSelector;

use super::labels::Labels;

/// The most octets of an object's own kept labels, with `LABEL_COST` for each label. The labels of an
/// object with more are not known. The same bound is that of the labels that only policies of other
/// Namespaces name: the values of further ones are not known.
pub const MOST_OF_OBJECT: usize = 8 << 10;
/// The most octets of kept labels of all pods of a Namespace, in the same unit, and with the same two
/// effects.
pub const MOST_OF_NAMESPACE: usize = 8 << 20;
/// The most labels of one object of which only the keys are kept. The labels of an object with more
/// are not known.
const MOST_WITHOUT_VALUE: usize = 128;
/// The octets that a kept label costs besides its key and value.
const LABEL_COST: usize = 128;

/// Objects with labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelled {
    /// Pods.
    Pods,
    /// Namespaces.
    Namespaces,
}

/// The keys that policies name, by the kind of the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedKeys {
    /// The Namespace of the policy; [`EVERYWHERE`] for a ClusterNetworkPolicy.
    owner: Arc<str>,
    pods: BTreeSet<Arc<str>>,
    namespaces: BTreeSet<Arc<str>>,
}

/// The registered keys. The policy task and the watches share them.
#[derive(Debug, Default)]
pub struct LabelKeys {
    pods: RwLock<Registered>,
    namespaces: RwLock<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    keys: HashMap<Arc<str>, Key>,
    /// The number of the last registration.
    last: u64,
    /// The keys by the Namespaces of policies that name them, with the numbers of these policies.
    owners: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    /// The number of keys that an owner named no longer.
    freed: u64,
    /// Whether an object has a label of which only the key is known.
    has_surplus: AtomicBool,
}

/// The owner of the keys of ClusterNetworkPolicies. No Namespace has this name.
const EVERYWHERE: &str = "";

impl Registered {
    /// Whether an object of this Namespace owns labels with this key.
    fn is_own(&self, namespace: &str, key: &str) -> bool {
        let names = |owner: &str| self.owners.get(owner).is_some_and(|keys| keys.contains_key(key));
        names(EVERYWHERE) || names(namespace)
    }

    fn add(&mut self, owner: &Arc<str>, name: &Arc<str>) {
        // A label of which only the key is known must be read again, if it is an own one now.
        let must_read = self.has_surplus.load(Ordering::Relaxed) && !self.is_own(owner, name);
        *self.owners.entry(owner.clone()).or_default().entry(name.clone()).or_default() += 1;
        match self.keys.get_mut(name) {
            Some(key) => {
                key.users += 1;
                if must_read {
                    self.last += 1;
                    key.number = self.last;
                }
            }
            None => {
                self.last += 1;
                self.keys.insert(name.clone(), Key { number: self.last, users: 1 });
            }
        }
    }

    fn remove(&mut self, owner: &Arc<str>, name: &Arc<str>) {
        if let Some(keys) = self.owners.get_mut(owner)
            && let Some(users) = keys.get_mut(name)
        {
            *users -= 1;
            if *users == 0 {
                keys.remove(name);
                self.freed += 1;
                if keys.is_empty() {
                    self.owners.remove(owner);
                }
            }
        }
        if let Some(key) = self.keys.get_mut(name) {
            key.users -= 1;
            if key.users == 0 {
                self.keys.remove(name);
            }
        }
    }
}

/// The labels of an object with registered keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLabels {
    /// Those with keys of its own Namespace's policies and of ClusterNetworkPolicies.
    pub own: Labels,
    /// Those with keys that only policies of other Namespaces name.
    pub others: Labels,
    /// The number of the last registration.
    pub keys: u64,
}

impl KeptLabels {
    /// All of them.
    pub fn all(self) -> Labels {
        joined(self.own, &self.others)
    }
}

/// An object's own labels with the others.
pub(super) fn joined(own: Labels, others: &Labels) -> Labels {
    if !own.is_known() || others.iter().next().is_none() {
        return own;
    }
    own.iter().chain(others.iter()).cloned().collect()
}

/// The same keys, of which no value is known.
pub(super) fn without_values(labels: &Labels) -> Labels {
    let value: Arc<str> = Labels::UNKNOWN_VALUE.into();
    labels.iter().map(|(key, _)| (key.clone(), value.clone())).collect()
}

#[derive(Debug)]
struct Key {
    /// The number of the registration.
    number: u64,
    users: usize,
}

impl NamedKeys {
    /// The keys of the subject and of all peers of a NetworkPolicy.
    pub fn of_network(policy: &NetworkPolicy) -> NamedKeys {
        let owner = policy.key.namespace.clone();
        let mut keys = NamedKeys { owner, ..NamedKeys::default() };
        add(&mut keys.pods, &policy.pod_selector);
        for peer in policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers) {
            if let NetworkPeer::Pods { namespaces, pods } = peer {
                namespaces.iter().for_each(|selector| add(&mut keys.namespaces, selector));
                pods.iter().for_each(|selector| add(&mut keys.pods, selector));
            }
        }
        keys
    }

    /// The keys of the subject and of all peers of a ClusterNetworkPolicy.
    pub fn of_cluster(policy: &ClusterPolicy) -> NamedKeys {
        let mut keys = NamedKeys::default();
        let mut both = |ClusterPods { namespaces, pods }: &ClusterPods| {
            add(&mut keys.namespaces, namespaces);
            add(&mut keys.pods, pods);
        };
        if let ClusterSubject::Pods(pods) = &policy.subject {
            both(pods);
        }
        for peer in policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers) {
            if let ClusterPeer::Pods(pods) = peer {
                both(pods);
            }
        }
        keys
    }

    fn of(&self, kind: Labelled) -> &BTreeSet<Arc<str>> {
        match kind {
            Labelled::Pods => &self.pods,
            Labelled::Namespaces => &self.namespaces,
        }
    }
}

fn add(keys: &mut BTreeSet<Arc<str>>, selector: &LabelSelector) {
    let expressions = selector.match_expressions.iter().map(|expression| &expression.key);
    keys.extend(selector.match_labels.keys().chain(expressions).map(|key| Arc::from(key.as_str())));
}

impl LabelKeys {
    fn of(&self, kind: Labelled) -> &RwLock<Registered> {
        match kind {
            Labelled::Pods => &self.pods,
            Labelled::Namespaces => &self.namespaces,
        }
    }

    fn read<T>(&self, kind: Labelled, of: impl FnOnce(&Registered) -> T) -> T {
        of(&self.of(kind).read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, kind: Labelled, change: impl FnOnce(&mut Registered) -> T) -> T {
        change(&mut self.of(kind).write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a user of these keys.
    pub fn add(&self, named: &NamedKeys) {
        for kind in [Labelled::Pods, Labelled::Namespaces] {
            self.write(kind, |registered| {
                named.of(kind).iter().for_each(|name| registered.add(&named.owner, name));
            });
        }
    }

    /// Removes a user of these keys.
    pub fn remove(&self, named: &NamedKeys) {
        for kind in [Labelled::Pods, Labelled::Namespaces] {
            self.write(kind, |registered| {
                named.of(kind).iter().for_each(|name| registered.remove(&named.owner, name));
            });
        }
    }

    /// An object has a label of which only the key is known.
    pub fn note_surplus(&self, kind: Labelled) {
        self.read(kind, |registered| registered.has_surplus.store(true, Ordering::Relaxed));
    }

    /// The number of keys that the policies of a Namespace, or ClusterNetworkPolicies, named no longer.
    pub fn freed(&self, kind: Labelled) -> u64 {
        self.read(kind, |registered| registered.freed)
    }

    /// The number of the last registration.
    pub fn last(&self, kind: Labelled) -> u64 {
        self.read(kind, |registered| registered.last)
    }

    /// The last registration of one of these keys; 0 without a key.
    pub fn last_of(&self, kind: Labelled, named: &NamedKeys) -> u64 {
        let number = |registered: &Registered| {
            let keys = named.of(kind).iter().filter_map(|name| registered.keys.get(name));
            keys.map(|key| key.number).max().unwrap_or_default()
        };
        self.read(kind, number)
    }

    /// The keys that were registered after this number, and the number of the last registration.
    pub fn after(&self, kind: Labelled, number: u64) -> (Vec<Arc<str>>, u64) {
        self.read(kind, |registered| {
            let new = registered.keys.iter().filter(|(_, key)| key.number > number);
            (new.map(|(name, _)| name.clone()).collect(), registered.last)
        })
    }

    /// Whether rows of this number lack a key.
    pub fn is_after(&self, kind: Labelled, name: &str, number: u64) -> bool {
        self.read(kind, |registered| registered.keys.get(name).is_some_and(|key| key.number > number))
    }

    /// Whether a key has one of these registrations: after the first number, up to the second.
    pub fn has_between(&self, kind: Labelled, after: u64, last: u64) -> bool {
        let is_between = |key: &Key| after < key.number && key.number <= last;
        self.read(kind, |registered| registered.keys.values().any(is_between))
    }

    /// The labels with registered keys of an object of this Namespace. A Namespace is an object of
    /// itself, and keeps its name.
    pub fn keep(
        &self,
        kind: Labelled,
        namespace: &str,
        labels: Option<BTreeMap<String, String>>,
    ) -> KeptLabels {
        self.read(kind, |registered| {
            let is_name = |key: &str| kind == Labelled::Namespaces && key == label::NAMESPACE_NAME;
            let (mut own, mut others) = (Vec::new(), Vec::new());
            let unknown: Arc<str> = Labels::UNKNOWN_VALUE.into();
            let (mut octets, mut without_value) = (0, 0);
            for (key, value) in labels.unwrap_or_default() {
                let registered_key = registered.keys.get_key_value(&*key).map(|(key, _)| key.clone());
                if is_name(&key) || registered.is_own(namespace, &key) {
                    own.push((registered_key.unwrap_or_else(|| key.into()), Arc::from(value)));
                } else if let Some(key) = registered_key {
                    octets += label_cost(&key, &value);
                    let is_within = octets <= MOST_OF_OBJECT;
                    without_value += usize::from(!is_within);
                    others.push((key, if is_within { value.into() } else { unknown.clone() }));
                }
            }
            if without_value > 0 {
                registered.has_surplus.store(true, Ordering::Relaxed);
            }
            let (own, others): (Labels, Labels) = (own.into_iter().collect(), others.into_iter().collect());
            let keys = registered.last;
            if cost(&own) <= MOST_OF_OBJECT && without_value <= MOST_WITHOUT_VALUE {
                KeptLabels { own, others, keys }
            } else {
                KeptLabels { own: Labels::UNKNOWN, others: Labels::default(), keys }
            }
        })
    }
}

/// The octets that labels cost.
pub(super) fn cost(labels: &Labels) -> usize {
    labels.iter().map(|(key, value)| label_cost(key, value)).sum()
}

fn label_cost(key: &str, value: &str) -> usize {
    key.len() + value.len() + LABEL_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pods: &[&str]) -> NamedKeys {
        NamedKeys { pods: pods.iter().map(|key| Arc::from(*key)).collect(), ..NamedKeys::default() }
    }

    fn keep(keys: &LabelKeys, labels: impl IntoIterator<Item = (String, String)>) -> Labels {
        keys.keep(Labelled::Pods, "shop", Some(labels.into_iter().collect())).all()
    }

    #[test]
    fn rows_keep_the_labels_that_a_policy_names() {
        let keys = LabelKeys::default();
        let large = || {
            let others = (0..50_000).map(|number| (format!("x{number}"), "y".repeat(20)));
            others.chain([("app".to_owned(), "web".to_owned())])
        };
        assert_eq!(keep(&keys, large()), Labels::default());
        keys.add(&named(&["app", "role"]));
        keys.add(&named(&["app"]));
        assert_eq!(keep(&keys, large()), Labels::from_iter([("app", "web")]));
        keys.remove(&named(&["app", "role"]));
        assert_eq!(keep(&keys, large()), Labels::from_iter([("app", "web")]), "another policy names it");
        keys.remove(&named(&["app"]));
        assert_eq!(keep(&keys, large()), Labels::default());
    }

    #[test]
    fn more_labels_than_the_bound_are_not_known() {
        let keys = LabelKeys::default();
        let all: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
        keys.add(&named(&all.iter().map(String::as_str).collect::<Vec<_>>()));
        let labels = |count: usize| all.iter().take(count).map(|key| (key.clone(), String::new()));
        assert!(keep(&keys, labels(50)).is_known());
        assert!(!keep(&keys, labels(100)).is_known());
    }

    #[test]
    fn a_new_key_is_after_the_rows_that_lack_it() {
        let keys = LabelKeys::default();
        keys.add(&named(&["app"]));
        let number = keys.keep(Labelled::Pods, "shop", None).keys;
        assert_eq!(keys.last_of(Labelled::Pods, &named(&["app"])), number);
        assert_eq!(keys.after(Labelled::Pods, number), (Vec::new(), number));
        keys.add(&named(&["app", "role"]));
        assert_eq!(keys.after(Labelled::Pods, number), (vec!["role".into()], number + 1));
        assert!(keys.is_after(Labelled::Pods, "role", number));
        assert!(!keys.is_after(Labelled::Pods, "app", number));
        // A key that no policy names any more is a new one later.
        keys.remove(&named(&["role"]));
        keys.add(&named(&["role"]));
        assert_eq!(keys.last_of(Labelled::Pods, &named(&["role"])), number + 2);
        assert_eq!(keys.last(Labelled::Namespaces), 0);
    }

    fn named_by(owner: &str, pods: &[String]) -> NamedKeys {
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        NamedKeys { owner: owner.into(), ..named(&pods) }
    }

    /// Many labels, and the label `app`.
    fn many(number: usize) -> (Vec<String>, Vec<(String, String)>) {
        let keys: Vec<String> = (0..number).map(|number| format!("key-{number:03}")).collect();
        let labels = keys.iter().map(|key| (key.clone(), "a".to_owned()));
        (keys.clone(), labels.chain([("app".to_owned(), "web".to_owned())]).collect())
    }

    #[test]
    fn policies_of_others_make_no_labels_unknown() {
        let keys = LabelKeys::default();
        let (theirs, labels) = many(100);
        keys.add(&named_by("shop", &["app".to_owned()]));
        keys.add(&named_by("other", &theirs));
        let kept = keys.keep(Labelled::Pods, "shop", Some(labels.iter().cloned().collect()));
        assert_eq!(kept.own, Labels::from_iter([("app", "web")]));
        let unknown = kept.others.iter().filter(|(_, value)| **value == *Labels::UNKNOWN_VALUE).count();
        assert!((1..100).contains(&unknown), "{unknown}");
        assert_eq!(kept.others.iter().count(), 100, "their keys are known");
        // The pods of the Namespace whose policies name them have too many.
        let kept = keys.keep(Labelled::Pods, "other", Some(labels.into_iter().collect()));
        assert!(!kept.own.is_known());
        let (theirs, labels) = many(200);
        keys.add(&named_by("other", &theirs));
        let kept = keys.keep(Labelled::Pods, "shop", Some(labels.into_iter().collect()));
        assert!(!kept.own.is_known(), "more keys than a row can have");
    }

    #[test]
    fn a_label_without_its_value_is_read_again_for_its_owner() {
        let keys = LabelKeys::default();
        let (theirs, labels) = many(100);
        keys.add(&named_by("other", &theirs));
        let own = named_by("shop", &theirs[..1]);
        keys.add(&own);
        assert_eq!(keys.last_of(Labelled::Pods, &own), 1, "no label lacks its value");
        let keep = || keys.keep(Labelled::Pods, "shop", Some(labels.iter().cloned().collect()));
        let before = keep();
        assert_eq!(before.others.get("key-099"), Some(Labels::UNKNOWN_VALUE));
        let own = named_by("shop", &theirs[99..]);
        keys.add(&own);
        assert_eq!(keys.last_of(Labelled::Pods, &own), before.keys + 1);
        assert_eq!(keys.after(Labelled::Pods, before.keys).0, ["key-099".into()]);
        assert_eq!(keep().own.get("key-099"), Some("a"));
        // Another policy of the Namespace needs no list, and the last one frees the key.
        keys.add(&own);
        assert_eq!((keys.last(Labelled::Pods), keys.freed(Labelled::Pods)), (before.keys + 1, 0));
        keys.remove(&own);
        keys.remove(&own);
        assert_eq!(keys.freed(Labelled::Pods), 1);
        assert!(keys.has_between(Labelled::Pods, before.keys, before.keys + 1));
        assert!(!keys.has_between(Labelled::Pods, before.keys + 1, u64::MAX));
    }
}
