//! Label selectors, as Kubernetes has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::value::null_default;

/// Selects objects by their labels: every label and every expression must match. Empty: every
/// object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// The object has each of these labels with this value.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// The object matches each of these expressions.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// The comparison.
    pub operator: Operator,
    /// The values: at least one for In and NotIn, none for Exists and DoesNotExist.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The comparison of a [`Requirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum Operator {
    /// The object has the label, with one of the values.
    In,
    /// The object has the label with none of the values, or not at all.
    NotIn,
    /// The object has the label.
    Exists,
    /// The object does not have the label.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether it selects an object with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether one of these selectors selects an object with these labels. No selector selects every
    /// object.
    pub fn any_selects(selectors: &[LabelSelector], labels: &BTreeMap<String, String>) -> bool {
        selectors.is_empty() || selectors.iter().any(|selector| selector.selects(labels))
    }

    /// Whether it selects every object.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_condition_must_match() {
        let one = |operator: &str, values: &str| {
            selector(&format!(
                r#"{{"matchExpressions": [{{"key": "a", "operator": "{operator}", "values": {values}}}]}}"#
            ))
        };
        // (selector, selected labels, labels that are not selected)
        let table: [(LabelSelector, &[&str], &[&str]); 8] = [
            (selector("{}"), &["", "a=1"], &[]),
            (selector(r#"{"matchLabels": null, "matchExpressions": null}"#), &["", "a=1"], &[]),
            (selector(r#"{"matchLabels": {"a": "1", "b": "2"}}"#), &["a=1,b=2,c=3"], &["", "a=1", "a=2,b=2"]),
            (one("In", r#"["1", "2"]"#), &["a=1", "a=2,b=3"], &["", "a=3", "b=1"]),
            (one("NotIn", r#"["1"]"#), &["", "a=2", "b=1"], &["a=1"]),
            (one("Exists", "[]"), &["a=1", "a="], &["", "b=1"]),
            (one("DoesNotExist", "null"), &["", "b=1"], &["a=1"]),
            (
                selector(
                    r#"{"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}"#,
                ),
                &["a=1,b="],
                &["a=1", "b=1"],
            ),
        ];
        for (selector, selected, others) in table {
            for text in selected {
                assert!(selector.selects(&labels(text)), "{selector:?} does not select {text:?}");
            }
            for text in others {
                assert!(!selector.selects(&labels(text)), "{selector:?} selects {text:?}");
            }
        }
    }

    #[test]
    fn one_of_several_selectors_is_enough() {
        let two = [selector(r#"{"matchLabels": {"a": "1"}}"#), selector(r#"{"matchLabels": {"b": "1"}}"#)];
        assert!(LabelSelector::any_selects(&two, &labels("b=1")));
        assert!(!LabelSelector::any_selects(&two, &labels("c=1")));
        assert!(LabelSelector::any_selects(&[], &labels("c=1")));
    }
}
