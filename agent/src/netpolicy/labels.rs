//! Labels and selectors in compact form, and an index that finds the selectors of an object.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use trunkline_api::resources::{LabelSelector, Operator};

/// The labels of an object, sorted by key, or the fact that they are not known ([`Labels::UNKNOWN`]).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Option<Arc<[Label]>>);

/// Key and value.
type Label = (Arc<str>, Arc<str>);

impl Labels {
    /// The labels are not known. A selector with a condition may match them.
    pub const UNKNOWN: Labels = Labels(None);

    /// The value of a label of which only the key is known. No label has it. A condition on the value
    /// does not match it.
    pub const UNKNOWN_VALUE: &str = "\0";

    /// Whether the labels are known.
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    fn all(&self) -> &[Label] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let index = self.all().binary_search_by(|(there, _)| there.as_ref().cmp(key)).ok()?;
        self.all().get(index).map(|(_, value)| value.as_ref())
    }

    /// The labels in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &(Arc<str>, Arc<str>)> {
        self.all().iter()
    }
}

impl Default for Labels {
    fn default() -> Labels {
        Labels(Some(Arc::default()))
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Labels {
        let sorted: BTreeMap<Arc<str>, Arc<str>> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Labels(Some(sorted.into_iter().collect()))
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(all) => serializer.collect_map(all.iter().map(|(key, value)| (&**key, &**value))),
            None => serializer.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of labels, or null")
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<Labels, E> {
                Ok(Labels::UNKNOWN)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs: Vec<(String, String)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(all) => f.debug_map().entries(all.iter().map(|(key, value)| (key, value))).finish(),
            None => f.write_str("unknown"),
        }
    }
}

/// Shares equal strings and equal labels between objects. 10,000 pods have few different ones.
#[derive(Debug, Default)]
pub(super) struct Interner {
    strings: HashSet<Arc<str>>,
    labels: HashSet<Labels>,
    /// Strings that no object has any more are removed at this size.
    sweep_at: usize,
    /// The same for labels.
    sweep_labels_at: usize,
}

impl Interner {
    const SMALLEST_SWEEP: usize = 4096;

    pub(super) fn intern(&mut self, string: &Arc<str>) -> Arc<str> {
        if let Some(shared) = self.strings.get(string) {
            return shared.clone();
        }
        if self.strings.len() >= self.sweep_at {
            self.strings.retain(|shared| Arc::strong_count(shared) > 1);
            self.sweep_at = Self::SMALLEST_SWEEP.max(2 * self.strings.len());
        }
        self.strings.insert(string.clone());
        string.clone()
    }

    pub(super) fn intern_labels(&mut self, labels: &Labels) -> Labels {
        if let Some(shared) = self.labels.get(labels) {
            return shared.clone();
        }
        let Some(all) = &labels.0 else { return Labels::UNKNOWN };
        if self.labels.len() >= self.sweep_labels_at {
            self.labels.retain(|shared| shared.0.as_ref().is_some_and(|all| Arc::strong_count(all) > 1));
            self.sweep_labels_at = Self::SMALLEST_SWEEP.max(2 * self.labels.len());
        }
        let shared = all.iter().map(|(key, value)| (self.intern(key), self.intern(value)));
        let shared = Labels(Some(shared.collect()));
        self.labels.insert(shared.clone());
        shared
    }
}

/// A label selector in canonical form: equal conditions give equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    /// Sorted, each once. A tree would need half a kilobyte for one condition.
    conditions: Box<[Condition]>,
}

/// A condition on one label. All variants have the key first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Condition {
    /// The values are sorted, each once.
    In(Arc<str>, Box<[Arc<str>]>),
    /// Likewise.
    NotIn(Arc<str>, Box<[Arc<str>]>),
    Exists(Arc<str>),
    DoesNotExist(Arc<str>),
}

impl Condition {
    fn key(&self) -> &str {
        match self {
            Condition::In(key, _)
            | Condition::NotIn(key, _)
            | Condition::Exists(key)
            | Condition::DoesNotExist(key) => key,
        }
    }

    fn matches(&self, labels: &Labels) -> bool {
        let is_known = |value: &str| value != Labels::UNKNOWN_VALUE;
        let is_in = |values: &[Arc<str>], value: &str| {
            values.binary_search_by(|there| there.as_ref().cmp(value)).is_ok()
        };
        match self {
            Condition::In(key, values) => {
                labels.get(key).is_some_and(|value| is_known(value) && is_in(values, value))
            }
            Condition::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| is_known(value) && !is_in(values, value))
            }
            Condition::Exists(key) => labels.get(key).is_some(),
            Condition::DoesNotExist(key) => labels.get(key).is_none(),
        }
    }
}

impl From<&LabelSelector> for Selector {
    fn from(selector: &LabelSelector) -> Selector {
        let single = |key: &String, value: &String| {
            Condition::In(key.as_str().into(), [Arc::from(value.as_str())].into())
        };
        let labels = selector.match_labels.iter().map(|(key, value)| single(key, value));
        let expressions = selector.match_expressions.iter().map(|expression| {
            let key = expression.key.as_str().into();
            let values = || sorted(expression.values.iter().map(|value| Arc::from(value.as_str())));
            match expression.operator {
                Operator::In => Condition::In(key, values()),
                Operator::NotIn => Condition::NotIn(key, values()),
                Operator::Exists => Condition::Exists(key),
                Operator::DoesNotExist => Condition::DoesNotExist(key),
            }
        });
        Selector { conditions: sorted(labels.chain(expressions)) }
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Box<[T]> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

impl Selector {
    /// Whether it selects an object with these labels. Only a selector without conditions selects an
    /// object of unknown labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|condition| labels.is_known() && condition.matches(labels))
    }

    /// Whether it selects an object with these labels, or could select it with labels that are not
    /// known.
    pub fn may_match(&self, labels: &Labels) -> bool {
        !labels.is_known() || self.matches(labels)
    }

    /// The selector without the conditions on these keys.
    pub(super) fn without(self, is_left_out: impl Fn(&str) -> bool) -> Selector {
        let mut conditions = self.conditions.into_vec();
        conditions.retain(|condition| !is_left_out(condition.key()));
        Selector { conditions: conditions.into() }
    }

    /// The labels of which a selected object has exactly one, if there is such a condition: the
    /// one with the fewest values.
    pub(super) fn required(&self) -> Option<Vec<(Arc<str>, Arc<str>)>> {
        let in_conditions = self.conditions.iter().filter_map(|condition| match condition {
            Condition::In(key, values) => Some((key, values)),
            _ => None,
        });
        let (key, values) = in_conditions.min_by_key(|(_, values)| values.len())?;
        Some(values.iter().map(|value| (key.clone(), value.clone())).collect())
    }

    /// A key that a selected object has, if there is such a condition.
    pub(super) fn required_key(&self) -> Option<&Arc<str>> {
        self.conditions.iter().find_map(|condition| match condition {
            Condition::Exists(key) => Some(key),
            _ => None,
        })
    }
}

/// Finds the entries whose selector matches an object, without examining the selectors that
/// require other labels.
#[derive(Debug)]
pub(super) struct SelectorIndex<T> {
    by_label: HashMap<(Arc<str>, Arc<str>), BTreeSet<T>>,
    by_key: HashMap<Arc<str>, BTreeSet<T>>,
    others: BTreeSet<T>,
}

impl<T> Default for SelectorIndex<T> {
    fn default() -> Self {
        SelectorIndex { by_label: HashMap::new(), by_key: HashMap::new(), others: BTreeSet::new() }
    }
}

impl<T: Copy + Ord> SelectorIndex<T> {
    pub(super) fn insert(&mut self, selector: &Selector, entry: T) {
        if let Some(labels) = selector.required() {
            for label in labels {
                self.by_label.entry(label).or_default().insert(entry);
            }
        } else if let Some(key) = selector.required_key() {
            self.by_key.entry(key.clone()).or_default().insert(entry);
        } else {
            self.others.insert(entry);
        }
    }

    pub(super) fn remove(&mut self, selector: &Selector, entry: T) {
        if let Some(labels) = selector.required() {
            for label in labels {
                remove_from(&mut self.by_label, &label, &entry);
            }
        } else if let Some(key) = selector.required_key() {
            remove_from(&mut self.by_key, key, &entry);
        } else {
            self.others.remove(&entry);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_label.is_empty() && self.by_key.is_empty() && self.others.is_empty()
    }

    /// Each entry, once.
    pub(super) fn all(&self) -> BTreeSet<T> {
        let indexed = self.by_label.values().chain(self.by_key.values());
        indexed.flatten().chain(&self.others).copied().collect()
    }

    /// Each entry that can match an object with these labels, once. The caller examines the full
    /// selector.
    pub(super) fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = T> + 'a {
        // An entry is in the sets of one key only, and an object has one value for a key.
        let by_label = labels.iter().filter_map(|label| self.by_label.get(label)).flatten();
        let by_key = labels.iter().filter_map(|(key, _)| self.by_key.get(key)).flatten();
        by_label.chain(by_key).chain(&self.others).copied()
    }
}

/// Removes a member of one of several sets, and the set with its last member.
pub(super) fn remove_from<K: Eq + Hash, T: Ord>(sets: &mut HashMap<K, BTreeSet<T>>, key: &K, member: &T) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(member);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
