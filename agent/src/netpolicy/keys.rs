//! The keys of labels that policies name. Rows of pods and Namespaces keep the labels with these keys
//! only: users who write labels cannot fill the memory of a node.
//!
//! The policy task registers the keys of its policies, and the watches read them when they convert an
//! object. Each key has the number of its registration. A row that was converted at registration N
//! has the labels of all keys up to N.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use trunkline_api::names::label;
use trunkline_api::network_policy::{
    ClusterPeer, ClusterPods, ClusterPolicy, ClusterSubject, NetworkPeer, NetworkPolicy,
};
use trunkline_api::resources::LabelSelector;

use super::labels::Labels;

/// The most octets of kept labels of one object, with `LABEL_COST` for each label. The labels of an
/// object with more are not known.
pub const MOST_OF_OBJECT: usize = 8 << 10;
/// The most octets of kept labels of all pods of a Namespace, in the same unit.
pub const MOST_OF_NAMESPACE: usize = 8 << 20;
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
        let mut keys = NamedKeys::default();
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
                for name in named.of(kind) {
                    if let Some(key) = registered.keys.get_mut(name) {
                        key.users += 1;
                        continue;
                    }
                    registered.last += 1;
                    let key = Key { number: registered.last, users: 1 };
                    registered.keys.insert(name.clone(), key);
                }
            });
        }
    }

    /// Removes a user of these keys.
    pub fn remove(&self, named: &NamedKeys) {
        for kind in [Labelled::Pods, Labelled::Namespaces] {
            self.write(kind, |registered| {
                for name in named.of(kind) {
                    let Some(key) = registered.keys.get_mut(name) else { continue };
                    key.users -= 1;
                    if key.users == 0 {
                        registered.keys.remove(name);
                    }
                }
            });
        }
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

    /// The labels with registered keys, and the number of the last registration. Those of an object
    /// with more than [`MOST_OF_OBJECT`] are not known. Namespaces keep their name.
    pub fn keep(&self, kind: Labelled, labels: Option<BTreeMap<String, String>>) -> (Labels, u64) {
        self.read(kind, |registered| {
            let is_name = |key: &str| kind == Labelled::Namespaces && key == label::NAMESPACE_NAME;
            let kept = labels.unwrap_or_default().into_iter();
            let kept = kept.filter(|(key, _)| is_name(key) || registered.keys.contains_key(&**key));
            let kept: Labels = kept.collect();
            let is_within = cost(&kept) <= MOST_OF_OBJECT;
            (if is_within { kept } else { Labels::UNKNOWN }, registered.last)
        })
    }
}

/// The octets that labels cost.
pub(super) fn cost(labels: &Labels) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len() + LABEL_COST).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pods: &[&str]) -> NamedKeys {
        NamedKeys { pods: pods.iter().map(|key| Arc::from(*key)).collect(), ..NamedKeys::default() }
    }

    fn keep(keys: &LabelKeys, labels: impl IntoIterator<Item = (String, String)>) -> Labels {
        keys.keep(Labelled::Pods, Some(labels.into_iter().collect())).0
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
        let (_, number) = keys.keep(Labelled::Pods, None);
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
}
