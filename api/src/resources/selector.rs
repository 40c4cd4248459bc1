//! Label selectors, as Kubernetes has them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::value::null_default;

/// Selects objects by their labels: every label and every expression must match. Empty: every
/// object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// The object has each of these labels with this value.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "MatchLabels::is_empty")]
    #[cfg_attr(feature = "kube", schemars(with = "BTreeMap<String, String>"))]
    pub match_labels: MatchLabels,
    /// The object matches each of these expressions.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// Labels with their values, sorted by the keys, each key once. Most selectors have one: a tree would
/// need half a kilobyte for it, and an agent keeps the selectors of all policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
pub struct MatchLabels(Box<[(String, String)]>);

impl MatchLabels {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Adds a label, or changes its value.
    pub fn insert(&mut self, key: String, value: String) {
        let all = std::mem::take(self).0.into_iter().chain([(key, value)]);
        *self = all.collect();
    }
}

impl From<BTreeMap<String, String>> for MatchLabels {
    fn from(labels: BTreeMap<String, String>) -> MatchLabels {
        MatchLabels(labels.into_iter().collect())
    }
}

impl<const N: usize> From<[(String, String); N]> for MatchLabels {
    fn from(labels: [(String, String); N]) -> MatchLabels {
        labels.into_iter().collect()
    }
}

/// Of several values of a key, the last one counts.
impl FromIterator<(String, String)> for MatchLabels {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> MatchLabels {
        labels.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

impl Serialize for MatchLabels {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
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

/// An invalid text of a label selector, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{requirement}` is not a condition on a label: write `app=web`, `app!=web`, `app in (web,db)`, \
     `app notin (web)`, `app` or `!app`, with commas between"
)]
pub struct LabelSelectorError {
    /// The condition.
    pub requirement: String,
}

impl FromStr for LabelSelector {
    type Err = LabelSelectorError;

    /// Parses a selector as `kubectl -l` has it; an empty text selects every object.
    fn from_str(text: &str) -> Result<Self, LabelSelectorError> {
        let mut selector = LabelSelector::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A comma within parentheses separates values.
            let mut depth = 0_i32;
            let end = rest.find(|letter| {
                depth += i32::from(letter == '(') - i32::from(letter == ')');
                letter == ',' && depth == 0
            });
            let (requirement, after) = match end {
                Some(end) => (&rest[..end], Some(rest[end + 1..].trim())),
                None => (rest, None),
            };
            let read = requirement_of(requirement.trim());
            selector
                .match_expressions
                .push(read.ok_or_else(|| LabelSelectorError { requirement: requirement.trim().to_owned() })?);
            rest = match after {
                Some("") => return Err(LabelSelectorError { requirement: String::new() }),
                after => after.unwrap_or_default(),
            };
        }
        Ok(selector)
    }
}

fn requirement_of(text: &str) -> Option<Requirement> {
    let key = |text: &str| is_key(text.trim()).then(|| text.trim().to_owned());
    let one = |separator: &str, operator| {
        let (before, after) = text.split_once(separator)?;
        let value = after.trim();
        Some(Requirement {
            key: key(before)?,
            operator,
            values: vec![is_value(value).then(|| value.to_owned())?],
        })
    };
    if let Some(without) = text.strip_prefix('!') {
        return Some(Requirement {
            key: key(without)?,
            operator: Operator::DoesNotExist,
            values: Vec::new(),
        });
    }
    if let Some(before) = text.strip_suffix(')') {
        let (before, values) = before.split_once('(')?;
        let mut words = before.split_whitespace();
        let (name, operator) = (words.next()?, words.next()?);
        let operator = match operator {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            _ => return None,
        };
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let valid = words.next().is_none() && values.iter().all(|value| is_value(value));
        return valid.then_some(Requirement { key: key(name)?, operator, values });
    }
    if text.contains("!=") {
        one("!=", Operator::NotIn)
    } else if text.contains("==") {
        one("==", Operator::In)
    } else if text.contains('=') {
        one("=", Operator::In)
    } else {
        Some(Requirement { key: key(text)?, operator: Operator::Exists, values: Vec::new() })
    }
}

/// Whether a text is the name of a label, with or without a prefix.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("a", text));
    let in_prefix = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty()
        && is_value(name)
        && !prefix.is_empty()
        && prefix.len() <= 253
        && prefix.bytes().all(in_prefix)
}

/// Whether a text is the value of a label.
fn is_value(text: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 63
        && text.bytes().all(allowed)
        && end(text.as_bytes().first())
        && end(text.as_bytes().last())
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let expressions = self.match_expressions.iter().map(|requirement| {
            let Requirement { key, operator, values } = requirement;
            match (operator, values.as_slice()) {
                (Operator::In, [value]) => format!("{key}={value}"),
                (Operator::NotIn, [value]) => format!("{key}!={value}"),
                (Operator::In, values) => format!("{key} in ({})", values.join(",")),
                (Operator::NotIn, values) => format!("{key} notin ({})", values.join(",")),
                (Operator::Exists, _) => key.clone(),
                (Operator::DoesNotExist, _) => format!("!{key}"),
            }
        });
        f.write_str(&labels.chain(expressions).collect::<Vec<_>>().join(","))
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
    fn selectors_are_read_as_by_kubectl() {
        for (text, shown, selected, other) in [
            ("", "", "a=1", None),
            ("a=1", "a=1", "a=1,b=2", Some("a=2")),
            (" a == 1 , b != 2 ", "a=1,b!=2", "a=1,b=3", Some("a=1,b=2")),
            ("a in (1, 2),!c", "a in (1,2),!c", "a=2", Some("a=2,c=3")),
            ("a notin (1,2),b", "a notin (1,2),b", "a=3,b=", Some("a=1,b=1")),
            (
                "example.com/cni=trunkline",
                "example.com/cni=trunkline",
                "example.com/cni=trunkline",
                Some("a=1"),
            ),
            ("a=", "a=", "a=", Some("a=1")),
        ] {
            let read: LabelSelector = text.parse().unwrap();
            assert_eq!(read.to_string(), shown, "{text}");
            assert_eq!(read, shown.parse().unwrap());
            assert!(read.selects(&labels(selected)), "{text}");
            assert!(!other.is_some_and(|other| read.selects(&labels(other))), "{text}");
        }
        for (text, fault) in [
            ("a=1,", "``"),
            (",a", "``"),
            ("a>1", "`a>1`"),
            ("a in 1", "`a in 1`"),
            ("b,a in (1", "`a in (1`"),
            ("a is (1)", "`a is (1)`"),
            ("a=b c", "`a=b c`"),
            ("/a=1", "`/a=1`"),
            ("-a", "`-a`"),
            ("a=1=2", "`a=1=2`"),
        ] {
            let error = text.parse::<LabelSelector>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{fault} is not a condition on a label: write `app=web`")),
                "{error}"
            );
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
