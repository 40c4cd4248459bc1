//! Deserializes a JSON value, and keeps unknown fields apart from other errors. `serde_json`'s own
//! error is a text only.

use std::fmt::{self, Display};

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// The reason why a value cannot be deserialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The type has no such field.
    UnknownField(String),
    /// Any other reason.
    Other(String),
}

impl Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::UnknownField(text) | ReadError::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: Display>(message: T) -> Self {
        ReadError::Other(message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let text = match expected {
            [] => format!("unknown field `{field}`, there are no fields"),
            [only] => format!("unknown field `{field}`, expected `{only}`"),
            [one, other] => format!("unknown field `{field}`, expected `{one}` or `{other}`"),
            expected => {
                let expected: Vec<String> = expected.iter().map(|name| format!("`{name}`")).collect();
                format!("unknown field `{field}`, expected one of {}", expected.join(", "))
            }
        };
        ReadError::UnknownField(text)
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        ReadError::Other(format!("invalid type: {}, expected {expected}", in_json(unexpected)))
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        ReadError::Other(format!("invalid value: {}, expected {expected}", in_json(unexpected)))
    }
}

/// JSON's word for a value.
fn in_json(unexpected: Unexpected<'_>) -> Unexpected<'_> {
    match unexpected {
        Unexpected::Unit => Unexpected::Other("null"),
        other => other,
    }
}

/// A value as a deserializer.
#[derive(Clone, Copy)]
pub(super) struct Reader<'de>(pub(super) &'de Value);

impl<'de> IntoDeserializer<'de, ReadError> for Reader<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), ..) => visitor.visit_u64(number),
                (None, Some(number), _) => visitor.visit_i64(number),
                (None, None, Some(number)) => visitor.visit_f64(number),
                (None, None, None) => Err(de::Error::custom("a number that no type can hold")),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(Reader));
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Value::Object(fields) => {
                let mut fields = MapDeserializer::new(
                    fields.iter().map(|(name, value)| (StrDeserializer::new(name), Reader(value))),
                );
                let value = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(value)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.0 {
            Value::String(variant) => visitor.visit_enum(StrDeserializer::<ReadError>::new(variant)),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (StrDeserializer::new(name), Reader(value)));
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(fields)))
            }
            _ => Err(de::Error::invalid_type(unexpected(self.0), &"string or map")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Unexpected::Unsigned(number),
            (None, Some(number)) => Unexpected::Signed(number),
            (None, None) => Unexpected::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::resources::{IPInstanceSpec, NetworkSpec, SubnetSpec};

    /// Both read the value, or both refuse it with the same text.
    fn assert_as_serde_json<T: for<'de> Deserialize<'de> + PartialEq + fmt::Debug>(value: &Value) {
        let own = T::deserialize(Reader(value)).map_err(|error| error.to_string());
        assert_eq!(own, T::deserialize(value).map_err(|error| error.to_string()), "{value}");
    }

    #[test]
    fn values_and_errors_are_those_of_serde_json() {
        let peer = |more: Value| {
            let mut peer = json!({"asn": 65001, "address": "10.0.0.1"});
            peer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"netID": 1, "mode": "BGP", "nodeSelector": {"a": "b"}, "config": {"bgpPeers": [peer]}})
        };
        for value in [
            peer(json!({})),
            peer(json!({"asn": -1})),
            peer(json!({"asn": 1.5})),
            peer(json!({"asn": "x"})),
            peer(json!({"port": 70000})),
            peer(json!({"port": null})),
            peer(json!({"address": null})),
            peer(json!({"newer": 1})),
            peer(json!({"password": "x", "gracefulRestartSeconds": {"ipv4": 1}})),
            peer(
                json!({"import": {"rules": [{"action": "accept", "prefixes": [{"prefix": "10.0.0.0/8"}]}]}}),
            ),
            peer(json!({"import": {"rules": [{"action": "drop"}]}})),
            peer(json!({"import": {"rules": [{"action": {"accept": null}}]}})),
            peer(json!({"import": {"rules": {"a": 1}}})),
            json!({"mode": "FOO"}),
            json!({"mode": 7}),
            json!({"mode": {"BGP": null}}),
            json!({"nodeSelector": ["a"]}),
            json!({"config": null}),
            json!({"config": 7}),
            json!([]),
            json!("x"),
            json!(null),
            json!({"network": "n", "range": {"version": "4", "cidr": "10.0.0.0/24", "reservedIPs": ["10.0.0.9"]}}),
            json!({"network": "n", "subnet": "s", "binding": {}, "address": {"version": "4", "ip": "x", "mac": ""}}),
        ] {
            assert_as_serde_json::<NetworkSpec>(&value);
            assert_as_serde_json::<SubnetSpec>(&value);
            assert_as_serde_json::<IPInstanceSpec>(&value);
        }
    }

    #[test]
    fn unknown_field_is_an_error_of_its_own() {
        let read = |value: Value| NetworkSpec::deserialize(Reader(&value)).unwrap_err();
        assert!(matches!(read(json!({"newer": 1})), ReadError::UnknownField(_)));
        assert!(matches!(read(json!({"netID": "unknown field"})), ReadError::Other(_)));
    }
}
