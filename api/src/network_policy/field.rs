//! A field of an object in JSON with its path, and the faults of fields.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::resources::{LabelSelector, Operator, Requirement};

/// Maximum number of faults of one object.
const MAX_FAULTS: usize = 20;
/// Maximum length of a value in a fault, in characters.
const MAX_VALUE: usize = 60;

/// A fault in a policy. Displayed: `spec.ingress[0].ports[1].port: 70000 is no port: write 1 to
/// 65535; this entry matches nothing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// The path of the field. Empty: the fault stands for several further faults.
    pub path: Vec<PathSegment>,
    /// The value, the fault, the fix and the effect.
    pub message: String,
}

/// A part of the path of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A key of a mapping.
    Key(String),
    /// An index of a list, from 0.
    Index(usize),
}

impl PolicyFault {
    /// The path as text: `spec.ingress[0].ports[1].port`.
    pub fn field(&self) -> String {
        let mut text = String::new();
        for segment in &self.path {
            match segment {
                PathSegment::Key(key) if text.is_empty() => text.push_str(key),
                PathSegment::Key(key) => text.extend([".", key]),
                PathSegment::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        text
    }
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.field())?;
        }
        f.write_str(&self.message)
    }
}

/// A value and its path.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) value: &'a Value,
    parent: Option<&'a Field<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Field<'a> {
    pub(super) fn root(key: &'a str, value: &'a Value) -> Field<'a> {
        Field { value, parent: None, segment: Segment::Key(key) }
    }

    /// A field of a mapping. `null` counts as absent, as Go writes it.
    pub(super) fn get(&'a self, key: &'a str) -> Option<Field<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(self.child(Segment::Key(key), value))
    }

    fn child(&'a self, segment: Segment<'a>, value: &'a Value) -> Field<'a> {
        Field { value, parent: Some(self), segment }
    }

    fn path(&self) -> Vec<PathSegment> {
        let mut path = self.parent.map(Field::path).unwrap_or_default();
        path.push(match self.segment {
            Segment::Key(key) => PathSegment::Key(key.to_owned()),
            Segment::Index(index) => PathSegment::Index(index),
        });
        path
    }
}

/// The value in a fault.
impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.value.to_string();
        match text.char_indices().nth(MAX_VALUE) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

/// Reads fields and collects their faults. Each method returns none after a fault. `effect` is the
/// effect of the fault on the policy.
#[derive(Default)]
pub(super) struct Reader {
    faults: Vec<PolicyFault>,
    further: usize,
}

impl Reader {
    pub(super) fn into_faults(mut self) -> Vec<PolicyFault> {
        if self.further > 0 {
            let message = format!("{} further faults: correct the first ones", self.further);
            self.faults.push(PolicyFault { path: Vec::new(), message });
        }
        self.faults
    }

    pub(super) fn fault(&mut self, field: &Field<'_>, message: impl fmt::Display, effect: &str) {
        if self.faults.len() == MAX_FAULTS {
            self.further += 1;
            return;
        }
        self.faults.push(PolicyFault { path: field.path(), message: format!("{message}; {effect}") });
    }

    /// Whether the value is a mapping with these fields only.
    pub(super) fn mapping<'a>(
        &mut self,
        field: &'a Field<'a>,
        known: &[&str],
        effect: &str,
    ) -> Option<&'a Map<String, Value>> {
        let Value::Object(fields) = field.value else {
            self.fault(field, format!("{field} is no mapping: write {}", known.join(", ")), effect);
            return None;
        };
        let mut complete = true;
        for (key, value) in fields.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let expected = known.join(", ");
            let message =
                format!("this version does not know the field: write one of {expected}, or update Trunkline");
            self.fault(&field.child(Segment::Key(key), value), message, effect);
            complete = false;
        }
        complete.then_some(fields)
    }

    /// The only field of a mapping in which exactly one is set.
    pub(super) fn only<'a>(
        &mut self,
        field: &'a Field<'a>,
        known: &[&'a str],
        effect: &str,
    ) -> Option<(&'a str, Field<'a>)> {
        self.mapping(field, known, effect)?;
        let mut set = known.iter().filter_map(|key| Some((*key, field.get(key)?)));
        match (set.next(), set.next()) {
            (Some(only), None) => Some(only),
            (None, _) => {
                self.fault(field, format!("is empty: write {}", alternatives(known)), effect);
                None
            }
            (Some((first, _)), Some((second, _))) => {
                self.fault(field, format!("has {first} and {second}: write one of them"), effect);
                None
            }
        }
    }

    /// The entries of a list.
    pub(super) fn list<'a>(&mut self, field: &'a Field<'a>, effect: &str) -> Option<Vec<Field<'a>>> {
        match field.value {
            Value::Array(entries) => {
                let entry = |(index, value)| field.child(Segment::Index(index), value);
                Some(entries.iter().enumerate().map(entry).collect())
            }
            _ => {
                self.fault(field, format!("{field} is no list: write `- entry`"), effect);
                None
            }
        }
    }

    pub(super) fn text<'a>(&mut self, field: &'a Field<'a>, effect: &str) -> Option<&'a str> {
        let text = field.value.as_str();
        if text.is_none() {
            self.fault(field, format!("{field} is no text: write it in quotes"), effect);
        }
        text
    }

    pub(super) fn port(&mut self, field: &Field<'_>, effect: &str) -> Option<u16> {
        let number = field.value.as_u64().and_then(|number| u16::try_from(number).ok());
        let port = number.filter(|number| *number != 0);
        if port.is_none() {
            self.fault(field, format!("{field} is no port: write 1 to 65535"), effect);
        }
        port
    }

    pub(super) fn prefix(&mut self, field: &Field<'_>, effect: &str) -> Option<IpNet> {
        let Some(prefix) = field.value.as_str().and_then(|text| text.parse::<IpNet>().ok()) else {
            let message = format!("{field} is no prefix: write an address with a length, such as 10.0.0.0/8");
            self.fault(field, message, effect);
            return None;
        };
        if let IpNet::V6(v6) = prefix
            && v6.addr().to_ipv4_mapped().is_some()
        {
            let message = format!("{field} has an IPv4 address in IPv6 form: write the IPv4 prefix");
            self.fault(field, message, effect);
            return None;
        }
        Some(prefix)
    }

    /// A label selector.
    pub(super) fn selector(&mut self, field: &Field<'_>, effect: &str) -> Option<LabelSelector> {
        let (selector, complete) = self.readable_selector(field, effect);
        complete.then_some(selector)
    }

    /// The conditions of a label selector without faults, and whether these are all.
    pub(super) fn readable_selector(&mut self, field: &Field<'_>, effect: &str) -> (LabelSelector, bool) {
        let mut selector = LabelSelector::default();
        let mut complete = self.mapping(field, &["matchLabels", "matchExpressions"], effect).is_some();
        if let Some(labels) = field.get("matchLabels") {
            match self.labels(&labels, effect) {
                Some(labels) => selector.match_labels = labels.into(),
                None => complete = false,
            }
        }
        let expressions = field.get("matchExpressions");
        let entries = expressions.as_ref().map(|expressions| self.list(expressions, effect));
        complete &= !matches!(entries, Some(None));
        for expression in entries.flatten().unwrap_or_default() {
            match self.requirement(&expression, effect) {
                Some(requirement) => selector.match_expressions.push(requirement),
                None => complete = false,
            }
        }
        (selector, complete)
    }

    fn labels(&mut self, field: &Field<'_>, effect: &str) -> Option<BTreeMap<String, String>> {
        let Value::Object(labels) = field.value else {
            self.fault(field, format!("{field} is no mapping: write `key: value`"), effect);
            return None;
        };
        let mut read = BTreeMap::new();
        for (key, value) in labels {
            let value = self.text(&field.child(Segment::Key(key), value), effect).map(str::to_owned);
            read.insert(key.clone(), value?);
        }
        Some(read)
    }

    fn requirement(&mut self, field: &Field<'_>, effect: &str) -> Option<Requirement> {
        self.mapping(field, &["key", "operator", "values"], effect)?;
        let Some(key) = field.get("key") else {
            self.fault(field, "has no key: write the key of a label", effect);
            return None;
        };
        let key = self.text(&key, effect)?.to_owned();
        let Some(operator) = field.get("operator") else {
            self.fault(field, "has no operator: write In, NotIn, Exists or DoesNotExist", effect);
            return None;
        };
        let operator = match operator.value.as_str() {
            Some("In") => Operator::In,
            Some("NotIn") => Operator::NotIn,
            Some("Exists") => Operator::Exists,
            Some("DoesNotExist") => Operator::DoesNotExist,
            _ => {
                let message = format!("{operator} is no operator: write In, NotIn, Exists or DoesNotExist");
                self.fault(&operator, message, effect);
                return None;
            }
        };
        let mut values = Vec::new();
        if let Some(list) = field.get("values") {
            for value in self.list(&list, effect)? {
                values.push(self.text(&value, effect)?.to_owned());
            }
        }
        let has_values = matches!(operator, Operator::In | Operator::NotIn);
        if has_values == values.is_empty() {
            let fix =
                if has_values { "has no values: write at least one" } else { "has values: remove them" };
            self.fault(field, fix, effect);
            return None;
        }
        Some(Requirement { key, operator, values })
    }
}

/// `a`, `a or b`, `a, b or c`.
fn alternatives(known: &[&str]) -> String {
    match known {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => known.concat(),
    }
}
