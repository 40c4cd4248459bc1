//! Removal of secrets from the bundle.
//!
//! Three methods follow one another, because each one misses some secrets that the next one finds:
//!
//! 1. **By field.** Configuration and manifests are read as data. If the name of a field suggests a
//!    secret, the value is removed, even if the field is unknown. A key in a misspelt field is
//!    still a key. A file that does not parse is omitted as a whole, and comments are never
//!    included.
//! 2. **By value.** All other parts are searched for the values from method 1, for the keys in
//!    files and in the agent's cache, and for the credentials of a kubeconfig.
//! 3. **By shape.** In texts: the value after `password:` or `token=`, private keys in PEM,
//!    passwords in URLs, bearer tokens and JSON web tokens.
//!
//! All methods remove too much rather than too little: a label called `monkey` loses its value.

use serde_json::{Map, Value};

use super::shapes;

/// The replacement for a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// Parts of the names of secrets, in lower case, only letters and digits.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "key",
    "auth",
    "bearer",
    "psk",
];
/// Minimum length for method 2. Shorter values can be normal words, so only method 1 removes them.
const SHORTEST: usize = 4;

/// Whether a field with this name contains a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    NAMES.iter().any(|part| plain.contains(part))
}

/// The secret values that were found. The type has no `Debug`, so they cannot be printed.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    /// The longest value comes first, because one value may be part of another.
    values: Vec<String>,
}

impl Secrets {
    /// Adds a value, and its escaped forms in JSON and Rust output.
    pub(super) fn add(&mut self, value: &str) {
        let value = value.trim();
        if value.len() < SHORTEST || value == REDACTED {
            return;
        }
        let quoted = [serde_json::to_string(value).unwrap_or_default(), format!("{value:?}")];
        let written = quoted.iter().map(|text| text.trim_matches('"').to_owned());
        for text in std::iter::once(value.to_owned()).chain(written) {
            let place = self.values.binary_search_by(|known| order(known).cmp(&order(&text)));
            if let Err(place) = place {
                self.values.insert(place, text);
            }
        }
    }

    /// Adds all values of fields whose names suggest secrets.
    pub(super) fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, inner) in fields {
                    match kept(name, inner) {
                        Redaction::Nothing => self.learn_all(inner),
                        Redaction::Headers => match inner {
                            Value::Object(headers) => {
                                headers
                                    .values()
                                    .filter(|it| place(it).is_none())
                                    .for_each(|it| self.learn_all(it));
                            }
                            inner => self.learn_all(inner),
                        },
                        Redaction::Text | Redaction::Reference => {}
                        Redaction::Fields => self.learn(inner),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::String(text) => drop(within(text).map(|inner| self.learn(&inner))),
            _ => {}
        }
    }

    fn learn_all(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => fields.values().for_each(|inner| self.learn_all(inner)),
            Value::Array(items) => items.iter().for_each(|item| self.learn_all(item)),
            Value::String(text) => self.add(text),
            Value::Number(number) => self.add(&number.to_string()),
            Value::Bool(_) | Value::Null => {}
        }
    }

    /// Removes secrets from a text.
    pub(super) fn clean_text(&self, text: &str) -> String {
        let mut clean = shapes::hide(text);
        for value in &self.values {
            if clean.contains(value.as_str()) {
                clean = clean.replace(value.as_str(), REDACTED);
            }
        }
        clean
    }

    /// Removes secrets from data.
    pub(super) fn clean(&self, value: Value) -> Value {
        match value {
            Value::Object(fields) => Value::Object(
                fields
                    .into_iter()
                    .map(|(name, inner)| {
                        let inner = match kept(&name, &inner) {
                            Redaction::Nothing => hidden(inner),
                            Redaction::Text | Redaction::Fields => self.clean(inner),
                            Redaction::Reference => self.reference(inner),
                            Redaction::Headers => self.headers(inner),
                        };
                        (self.clean_text(&name), inner)
                    })
                    .collect(),
            ),
            Value::Array(items) => items.into_iter().map(|item| self.clean(item)).collect(),
            Value::String(text) => Value::String(match within(&text) {
                Some(inner) => self.clean(inner).to_string(),
                None => self.clean_text(&text),
            }),
            other => other,
        }
    }

    /// Header fields that refer to the place of a value are kept; literal values are removed.
    fn headers(&self, value: Value) -> Value {
        let Value::Object(fields) = value else { return hidden(value) };
        let clean = |(name, inner): (String, Value)| {
            let shown = if place(&inner).is_some() { inner } else { hidden(inner) };
            (self.clean_text(&name), shown)
        };
        Value::Object(fields.into_iter().map(clean).collect())
    }

    /// Keeps only the names in a reference to a Secret.
    fn reference(&self, value: Value) -> Value {
        let Value::Object(fields) = value else { return hidden(value) };
        let known = |name: &str| ["name", "namespace", "key"].contains(&name);
        let clean = |(name, inner): (String, Value)| match inner {
            Value::String(text) if known(&name) => (name, Value::String(self.clean_text(&text))),
            inner => (self.clean_text(&name), hidden(inner)),
        };
        Value::Object(fields.into_iter().map(clean).collect::<Map<_, _>>())
    }
}

fn order(text: &str) -> (std::cmp::Reverse<usize>, &str) {
    (std::cmp::Reverse(text.len()), text)
}

/// The part of a field that may be shown.
enum Redaction {
    Nothing,
    /// The whole text may be shown. It is not a secret, even if the field's name suggests one.
    Text,
    /// A reference to the place of a secret.
    Reference,
    /// Request headers: each refers to the place of its value.
    Headers,
    /// The decision is made for each of the value's own fields.
    Fields,
}

fn kept(name: &str, value: &Value) -> Redaction {
    match (name, value) {
        // A value that is not an absolute path may be a key in the wrong field.
        ("passwordFile", Value::String(path)) if path.starts_with('/') => Redaction::Text,
        ("passwordSecretRef", Value::Object(_)) => Redaction::Reference,
        ("headers", _) => Redaction::Headers,
        _ if is_secret(name) => Redaction::Nothing,
        _ => Redaction::Fields,
    }
}

/// The place of a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretLocation<'a> {
    /// A file.
    File(&'a str),
    /// An environment variable.
    Variable(&'a str),
}

/// Parses `{file: /a/path}` or `{env: NAME}`, without other fields.
pub(super) fn place(value: &Value) -> Option<SecretLocation<'_>> {
    let mut fields = value.as_object()?.iter();
    let (field, text) = fields.next().filter(|_| fields.len() == 0)?;
    let (kind, text) = (field.as_str(), text.as_str()?);
    let is_variable =
        |text: &str| text.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_');
    match kind {
        "file" if text.starts_with('/') => Some(SecretLocation::File(text)),
        "env" if is_variable(text) => Some(SecretLocation::Variable(text)),
        _ => None,
    }
}

/// Null stays, because it is no secret, and the missing value is useful information.
fn hidden(value: Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::String(text) if text.is_empty() => Value::String(text),
        _ => Value::String(REDACTED.to_owned()),
    }
}

/// Data inside a text, such as kubectl's annotation with the last applied object.
fn within(text: &str) -> Option<Value> {
    let text = text.trim_start();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_fields_with_names_of_secrets_are_removed() {
        let clean = Secrets::default().clean(json!({
            "asn": 65001,
            "password": "hunter2",
            "passwordFile": "/etc/tor.key",
            "passwordSecretRef": {"name": "keys", "namespace": "net", "key": "tor1", "value": "hunter2"},
            "keepaliveSeconds": 3,
            "removePrivateAs": {},
            "BGP_Pass-Word": ["hunter2", {"a": 2}],
            "tlsKey": 4711,
            "apiToken": {"value": "hunter2"},
            "empty": {"password": "", "secret": null},
            "deep": [{"deeper": {"clientSecret": "hunter2"}}],
            "applied": "{\"spec\":{\"password\":\"hunter2\"}}",
        }));
        assert_eq!(
            clean,
            json!({
                "asn": 65001,
                "password": REDACTED,
                "passwordFile": "/etc/tor.key",
                "passwordSecretRef": {"name": "keys", "namespace": "net", "key": "tor1", "value": REDACTED},
                "keepaliveSeconds": 3,
                "removePrivateAs": {},
                "BGP_Pass-Word": REDACTED,
                "tlsKey": REDACTED,
                "apiToken": REDACTED,
                "empty": {"password": "", "secret": null},
                "deep": [{"deeper": {"clientSecret": REDACTED}}],
                "applied": "{\"spec\":{\"password\":\"[redacted]\"}}",
            })
        );
        let headers = json!({"headers": {"authorization": {"file": "/a"}, "x-org": {"env": "ORG"}, "x": "hunter2", "y": {"env": "hunter2"}, "z": {"file": "/a", "b": 1}}});
        let shown = json!({"headers": {"authorization": {"file": "/a"}, "x-org": {"env": "ORG"}, "x": REDACTED, "y": REDACTED, "z": REDACTED}});
        assert_eq!(Secrets::default().clean(headers), shown);
        let misplaced = json!({"passwordFile": "hunter2", "passwordSecretRef": "hunter2"});
        let clean = Secrets::default().clean(misplaced);
        assert_eq!(clean, json!({"passwordFile": REDACTED, "passwordSecretRef": REDACTED}));
    }

    #[test]
    fn known_secret_value_is_removed_everywhere() {
        let mut secrets = Secrets::default();
        secrets.learn(&json!({"a": [{"password": "hun\"ter"}], "tokens": ["four", 123_456], "b": "{\"key\": \"inner\"}"}));
        secrets.add("four and more");
        secrets.add("abc");
        let text = "hun\"ter hun\\\"ter four 123456 inner [four and more] abc";
        assert_eq!(
            secrets.clean_text(text),
            "[redacted] [redacted] [redacted] [redacted] [redacted] [[redacted]] abc",
        );
        let clean = secrets.clean(json!({"hun\"ter": ["x four"], "n": 1}));
        assert_eq!(clean, json!({"[redacted]": ["x [redacted]"], "n": 1}));
    }

    /// The documented examples lose only their passwords.
    #[test]
    fn documented_manifests_lose_only_their_passwords() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = vec![root.join("docs/agent.example.yaml")];
        for folder in ["docs/manifests", "lab/topologies/two-racks/node1a/manifests"] {
            files.extend(std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
        }
        let mut passwords = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            for document in documents {
                let clean = Secrets::default().clean(document.clone());
                passwords += differences(&document, &clean);
            }
        }
        assert!(passwords > 0, "no manifest has a password: this test has no input");
    }

    /// The number of different fields; each must be a password.
    fn differences(before: &Value, after: &Value) -> usize {
        match (before, after) {
            (Value::Object(before), Value::Object(after)) => before
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "password" => usize::from(after[name] == REDACTED),
                    _ => differences(value, &after[name]),
                })
                .sum(),
            (Value::Array(before), Value::Array(after)) => {
                before.iter().zip(after).map(|(before, after)| differences(before, after)).sum()
            }
            _ => {
                assert_eq!(before, after);
                0
            }
        }
    }

    /// The API's schemas contain all fields. This test finds a secret that is added to them.
    #[test]
    fn no_field_of_an_answer_has_the_name_of_a_secret() {
        let source = include_str!("../../../api/src/control.rs");
        let fields = source.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
        let named: Vec<&str> = fields.map(|(name, _)| name).filter(|name| is_secret(name)).collect();
        assert_eq!(named, [""; 0], "the fields that support needs first would be removed");
    }
}
