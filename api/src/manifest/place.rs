//! The line of a field in a YAML document.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::network_policy::PathSegment;

/// The line of the field with this path, from 1. None: the document does not have the field.
pub(super) fn line(text: &str, path: &[PathSegment]) -> Option<u64> {
    let found =
        serde_saphyr::with_deserializer_from_str(text, |deserializer| Place(path).deserialize(deserializer));
    found.ok().flatten()
}

/// Follows a path.
struct Place<'a>(&'a [PathSegment]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        if self.0.is_empty() {
            let value: Spanned<IgnoredAny> = serde::Deserialize::deserialize(deserializer)?;
            return Ok(Some(value.referenced.line()));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((PathSegment::Key(wanted), rest)) if *wanted == key => {
                    found = map.next_value_seed(Place(rest))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<u64>, A::Error> {
        let mut found = None;
        let mut position = 0;
        loop {
            match self.0.split_first() {
                Some((PathSegment::Index(wanted), rest)) if *wanted == position => {
                    match list.next_element_seed(Place(rest))? {
                        Some(line) => found = line,
                        None => return Ok(found),
                    }
                }
                _ => {
                    if list.next_element::<IgnoredAny>()?.is_none() {
                        return Ok(found);
                    }
                }
            }
            position += 1;
        }
    }
}
