//! The file's JSON schema, for editors and for `docs/config.md`. It is generated from the fields:
//! their doc comments, their types, their bounds (a test compares them with [`Config::parse`]), and
//! their values in [`Config::default`].

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::Config;

/// The schema, with all references resolved.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Map;

    use super::*;

    /// Every field below a schema, with its path.
    fn fields(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Map<String, Value>)) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            look(&path, field.as_object().unwrap());
            fields(&path, field, look);
        }
    }

    /// Parses a file with this field and only the other required fields of its section and of the
    /// outer sections (with their examples).
    fn reads(path: &str, value: Option<&Value>) -> Result<Config, String> {
        let (schema, mut file) = (schema(), Value::Object(Map::new()));
        let (mut schema, mut at) = (&schema, &mut file);
        for name in path.split('.') {
            for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                at[required] = schema["properties"][required]["examples"][0].clone();
            }
            schema = &schema["properties"][name];
            if schema["properties"].is_object() {
                at[name] = Value::Object(Map::new());
                at = &mut at[name];
            } else if let Some(value) = value {
                at[name] = value.clone();
            }
        }
        Config::parse(&file.to_string(), Path::new("/agent.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_described_and_has_its_default() {
        let mut count = 0;
        fields("", &schema(), &mut |path, field| {
            count += 1;
            let about = field.get("description").and_then(Value::as_str).unwrap_or_default();
            assert!(about.len() > 5, "{path} has no description");
            // A required field has an example, and a section's fields have their own defaults.
            if field.contains_key("examples") || field.contains_key("properties") {
                return;
            }
            let default = field.get("default").unwrap_or_else(|| panic!("{path} has no default"));
            // The default in the schema must be the value of a missing field.
            if !default.is_null() {
                let (explicit, omitted) = (reads(path, Some(default)), reads(path, None));
                assert!(omitted.is_ok() && explicit == omitted, "{path}: {explicit:?}, {omitted:?}");
            }
        });
        assert!(count > 30, "{count} fields");
    }

    #[test]
    fn schema_bounds_equal_the_checked_bounds() {
        let mut bounded = 0;
        fields("", &schema(), &mut |path, field| {
            if field.get("type") != Some(&Value::from("integer")) {
                return;
            }
            let bound = |name: &str| field.get(name).and_then(Value::as_i64);
            let (Some(low), Some(high)) = (bound("minimum"), bound("maximum")) else {
                panic!("{path} has no bounds: {field:?}")
            };
            for (value, good) in [(low - 1, false), (low, true), (high, true), (high + 1, false)] {
                let read = reads(path, Some(&Value::from(value)));
                assert_eq!(read.is_ok(), good, "{path}: {value}: {:?}", read.err());
            }
            bounded += 1;
        });
        assert!(bounded >= 8, "{bounded}");
    }
}
