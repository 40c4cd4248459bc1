//! Values of a Helm release, and look-ups with the path in the error.

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// First lines of `helm get values` without `--output yaml`. In YAML each is a key without a value.
const TITLES: [&str; 2] = ["COMPUTED VALUES", "USER-SUPPLIED VALUES"];

/// The values of a release.
#[derive(Debug)]
pub(super) struct Values(Value);

impl Values {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(
            !text.trim().is_empty(),
            "the input is empty: pass the output of `helm get values RELEASE --all --output yaml`"
        );
        let root: Value = serde_saphyr::from_str(text)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .context("the values are not YAML")?;
        match root {
            Value::Object(mut root) => {
                root.retain(|key, value| !(value.is_null() && TITLES.contains(&key.as_str())));
                Ok(Self(Value::Object(root)))
            }
            // Helm prints this for a release without values of its own.
            Value::Null => Ok(Self(Value::Object(serde_json::Map::new()))),
            other => bail!(
                "the values are {other} and not a map: pass the output of `helm get values RELEASE --all --output yaml`"
            ),
        }
    }

    /// The value at a path such as `daemon.felix.resources`. An explicit null is no value.
    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        let found = path.split('.').try_fold(&self.0, |value, key| value.get(key))?;
        (!found.is_null()).then_some(found)
    }

    /// A text.
    pub(super) fn text(&self, path: &str) -> anyhow::Result<Option<&str>> {
        let Some(value) = self.get(path) else { return Ok(None) };
        value.as_str().map(Some).with_context(|| format!("{path}: {value} is not a text: put it in quotes"))
    }

    /// A list in one text, separated by commas. Empty entries are ignored, as in hybridnet.
    pub(super) fn list(&self, path: &str) -> anyhow::Result<Vec<String>> {
        let text = self.text(path)?.unwrap_or_default();
        Ok(text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
    }

    /// A switch. Helm's `--set-string` makes a text of it.
    pub(super) fn switch(&self, path: &str) -> anyhow::Result<Option<bool>> {
        Ok(match self.get(path) {
            None => None,
            Some(Value::Bool(is)) => Some(*is),
            Some(Value::String(text)) if text == "true" => Some(true),
            Some(Value::String(text)) if text == "false" => Some(false),
            Some(other) => bail!("{path}: {other} is neither true nor false: write one of them"),
        })
    }

    /// A number in a range.
    pub(super) fn number(&self, path: &str, low: u64, high: u64) -> anyhow::Result<Option<u64>> {
        let Some(value) = self.get(path) else { return Ok(None) };
        let number = match value {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        match number {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
            _ => bail!("{path}: {value} is not a number from {low} to {high}: write one"),
        }
    }

    /// Labels. Kubernetes only has texts in them.
    pub(super) fn labels(&self, path: &str) -> anyhow::Result<Vec<(String, String)>> {
        let Some(value) = self.get(path) else { return Ok(Vec::new()) };
        let labels = value.as_object().with_context(|| format!("{path}: {value} is not a map of labels"))?;
        labels
            .iter()
            .map(|(key, value)| {
                let text = value.as_str().with_context(|| {
                    format!("{path}.{key}: {value} is not a text, as labels are: put it in quotes")
                })?;
                Ok((key.clone(), text.to_owned()))
            })
            .collect()
    }

    /// The paths that are not in `known`, and are not below one of these paths.
    pub(super) fn unknown(&self, known: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        collect_unknown(&self.0, "", known, &mut found);
        found
    }

    /// Whether there is no value at all.
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_object().is_none_or(serde_json::Map::is_empty)
    }

    /// Number of keys at the top.
    pub(super) fn keys(&self) -> usize {
        self.0.as_object().map_or(0, serde_json::Map::len)
    }
}

fn collect_unknown(value: &Value, prefix: &str, known: &[&str], found: &mut Vec<String>) {
    let Some(fields) = value.as_object() else { return };
    for (key, value) in fields {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if known.contains(&path.as_str()) {
            continue;
        }
        let is_parent =
            known.iter().any(|known| known.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.')));
        if is_parent && (value.is_object() || value.is_null()) {
            collect_unknown(value, &path, known, found);
        } else {
            found.push(path);
        }
    }
}

/// Whether a value says something: not null, false, or empty.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}
