//! Fields of a JSON schema as rows of a table, for the agent's configuration and for the CRDs.

use serde_json::Value;

use super::table::cell;

/// One field.
#[derive(Debug, PartialEq)]
pub(super) struct Field {
    /// `config.bgpPeers[].asn`; `[]` is any element of a list, `.*` any key of a map.
    pub path: String,
    /// Type, bounds and format.
    pub kind: String,
    /// The default as JSON, which is also YAML; empty if there is no default.
    pub default: String,
    /// Whether it is mandatory.
    pub required: bool,
    /// The description of the field and of each of its values.
    pub about: String,
}

/// The fields below a schema; each precedes the fields inside it.
pub(super) fn fields(path: &str, schema: &Value) -> Vec<Field> {
    let mut fields = Vec::new();
    walk(path, schema, true, &mut fields);
    fields
}

/// Without `alone`, the schema is one of several forms, and none of its fields is mandatory.
fn walk(path: &str, schema: &Value, alone: bool, into: &mut Vec<Field>) {
    let required = |name: &str| alone && list(schema, "required").any(|it| it == name);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        into.push(Field {
            kind: kind(field),
            default: default(field),
            required: required(name),
            // For one of several forms, the description is on the form.
            about: if alone { about(field) } else { about(form_or(field, schema)) },
            path: path.clone(),
        });
        held(&path, field, into);
    }
}

fn form_or<'a>(field: &'a Value, form: &'a Value) -> &'a Value {
    if field["description"].is_string() { field } else { form }
}

/// The fields inside a field, inside a list's elements, inside a map's lists.
fn held(path: &str, schema: &Value, into: &mut Vec<Field>) {
    walk(path, schema, true, into);
    list(schema, "oneOf").for_each(|form| walk(path, form, false, into));
    for (step, keyword) in [("[]", "items"), (".*", "additionalProperties")] {
        if schema[keyword].is_object() {
            held(&format!("{path}{step}"), &schema[keyword], into);
        }
    }
}

fn list<'a>(schema: &'a Value, keyword: &str) -> impl Iterator<Item = &'a Value> {
    schema[keyword].as_array().into_iter().flatten()
}

/// The values of an enumeration: the name, and the description if there is one.
fn choices(schema: &Value) -> Vec<(&Value, Option<&str>)> {
    let named = list(schema, "enum").map(|value| (value, None));
    let described = list(schema, "oneOf").filter_map(|choice| {
        let value = choice.get("const").or(choice["enum"].as_array().and_then(|values| values.first()))?;
        Some((value, choice["description"].as_str()))
    });
    named.chain(described).filter(|(value, _)| !value.is_null()).collect()
}

/// `integer, 1 to 64`; `list of prefixes, at most 16`.
fn kind(schema: &Value) -> String {
    let choices = choices(schema);
    if !choices.is_empty() {
        let names: Vec<_> = choices.iter().map(|(value, _)| code(value)).collect();
        return names.join(" or ");
    }
    let (mut text, bounds) = match type_of(schema) {
        Some("array") => {
            let of = &schema["items"];
            (format!("list of {}", plural(&noun(of))), bounds(of))
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            let of = &schema["additionalProperties"];
            (format!("map of {}", plural(&noun(of))), bounds(of))
        }
        _ => (noun(schema), bounds(schema)),
    };
    text.push_str(&bounds);
    match (schema["minItems"].as_u64(), schema["maxItems"].as_u64()) {
        (Some(low), Some(high)) => text.push_str(&format!("; {low} to {high} of them")),
        (Some(low), None) => text.push_str(&format!("; at least {low} of them")),
        (None, Some(high)) => text.push_str(&format!("; at most {high} of them")),
        (None, None) => {}
    }
    text
}

/// The type; the schema of an optional field has two.
fn type_of(schema: &Value) -> Option<&str> {
    match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|it| *it != "null"),
        Value::Null => schema["oneOf"][0]["type"].as_str(),
        it => it.as_str(),
    }
}

fn noun(schema: &Value) -> String {
    let format = schema["format"].as_str().unwrap_or_default();
    let noun = match (type_of(schema), format) {
        (Some("string"), "ipv4") => "IPv4 address",
        (Some("string"), "address-and-port") => "address with port",
        (Some("string"), "prefix" | "path") => format,
        (Some("array"), _) => "list",
        (Some(it), _) => it,
        (None, _) => "any",
    };
    noun.to_owned()
}

fn plural(noun: &str) -> String {
    match noun {
        "address with port" => "addresses with port".to_owned(),
        "any" => noun.to_owned(),
        noun if noun.ends_with(['x', 's']) => format!("{noun}es"),
        noun => format!("{noun}s"),
    }
}

/// Bounds of a number or of a text's length, and its format.
fn bounds(schema: &Value) -> String {
    let number = |keyword: &str| schema[keyword].as_f64();
    let mut text = match (number("minimum"), number("maximum")) {
        (Some(low), Some(high)) => format!(", {low} to {high}"),
        (Some(low), None) => format!(", at least {low}"),
        (None, Some(high)) => format!(", at most {high}"),
        (None, None) => String::new(),
    };
    match (number("minLength"), number("maxLength")) {
        (Some(low), Some(high)) => text.push_str(&format!(", {low} to {high} characters")),
        (Some(low), None) => text.push_str(&format!(", at least {low} characters")),
        (None, Some(high)) => text.push_str(&format!(", at most {high} characters")),
        (None, None) => {}
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        text.push_str(&format!(", `{pattern}`"));
    }
    text
}

/// The default as code. It is an empty text if there is no default, if the default is an empty
/// string, or if the schema has fields (they have their own defaults).
fn default(schema: &Value) -> String {
    let has_fields = schema["properties"].as_object().is_some_and(|fields| !fields.is_empty());
    match &schema["default"] {
        Value::Null => String::new(),
        _ if has_fields => String::new(),
        Value::Array(values) => {
            format!("`[{}]`", values.iter().map(Value::to_string).collect::<Vec<_>>().join(", "))
        }
        value => code(value),
    }
}

fn code(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

fn about(schema: &Value) -> String {
    let mut text = plain(schema["description"].as_str().unwrap_or_default());
    let described: Vec<String> = choices(schema)
        .into_iter()
        .filter_map(|(value, about)| {
            Some(format!("{}: {}", code(value), plain(about?).trim_end_matches('.')))
        })
        .collect();
    if !described.is_empty() {
        text.push(' ');
        text.push_str(&described.join("; "));
        text.push('.');
    }
    text
}

/// A doc comment without its links to code: `` [`Policy`] `` is `Policy`.
fn plain(text: &str) -> String {
    cell(text).replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_bounds_and_defaults_become_text() {
        for (schema, kind, default) in [
            (
                json!({"type": "integer", "minimum": 1, "maximum": 64, "default": 16}),
                "integer, 1 to 64",
                "`16`",
            ),
            (json!({"type": ["string", "null"], "format": "ipv4", "default": null}), "IPv4 address", ""),
            (
                json!({"type": "array", "maxItems": 4, "items": {"type": "string", "format": "prefix"}, "default": ["0.0.0.0/0", "::/0"]}),
                "list of prefixes; at most 4 of them",
                "`[\"0.0.0.0/0\", \"::/0\"]`",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "default": {}}),
                "map of strings, at most 63 characters",
                "`{}`",
            ),
            (json!({"type": "string", "enum": ["a", "b", null], "default": "a"}), "`a` or `b`", "`a`"),
            (json!({"oneOf": [{"const": "a", "description": "One."}], "default": "a"}), "`a`", "`a`"),
            (json!({"x-kubernetes-preserve-unknown-fields": true}), "any", ""),
            (json!({"type": "object", "properties": {"a": {}}, "default": {"a": 1}}), "object", ""),
            (
                json!({"type": "string", "pattern": "^x$", "minLength": 1}),
                "string, at least 1 characters, `^x$`",
                "",
            ),
        ] {
            assert_eq!(super::kind(&schema), kind, "{schema}");
            assert_eq!(super::default(&schema), default, "{schema}");
        }
    }

    #[test]
    fn fields_have_paths_through_lists_and_maps() {
        let schema = json!({"required": ["a"], "properties": {
            "a": {"type": "array", "items": {"properties": {"b": {"type": "string", "description": "Of a [`B`], \nor |."}}}},
            "m": {"type": "object", "additionalProperties": {"type": "array", "items": {"properties": {"c": {"type": "boolean"}}}}},
            "f": {"type": "object", "additionalProperties": {"oneOf": [
                {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]},
                {"type": "object", "properties": {"env": {"type": "string"}}, "required": ["env"]}]}},
            "o": {"oneOf": [{"const": "x", "description": "Ex."}, {"const": "y", "description": "Why."}], "description": "Which."},
        }});
        let fields = fields("spec", &schema);
        let paths: Vec<_> = fields.iter().map(|field| field.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "spec.a",
                "spec.a[].b",
                "spec.f",
                "spec.f.*.file",
                "spec.f.*.env",
                "spec.m",
                "spec.m.*[].c",
                "spec.o"
            ]
        );
        assert_eq!(fields.iter().filter(|field| field.required).count(), 1);
        assert!(fields[0].required && fields[2].kind == "map of objects", "{fields:?}");
        assert_eq!(fields[1].about, "Of a `B`, or \\|.");
        assert_eq!(fields[7].about, "Which. `x`: Ex; `y`: Why.");
    }
}
