//! Values with special handling in manifests: addresses, which are parsed late; secrets, which are
//! never shown; times with one number or one for each family.

use std::fmt;
use std::net::IpAddr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An invalid text in a field of a resource. The message never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not {expected}")]
pub struct ValueError {
    /// The value in the manifest.
    pub value: String,
    /// The expected value, with an example.
    pub expected: &'static str,
}

/// Parses an address without a prefix length.
pub fn parse_address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError {
        value: text.to_owned(),
        expected: "an IP address, such as 10.14.0.1 or 2001:db8:14::1",
    })
}

/// Parses the MAC address of a single interface.
pub fn parse_mac(text: &str) -> Result<[u8; 6], ValueError> {
    let wrong = || ValueError {
        value: text.to_owned(),
        expected: "the MAC address of one interface, six octets of two hex digits, such as 02:12:34:00:00:01",
    };
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut mac {
        let digits = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        let part = parts.next().filter(digits).ok_or_else(wrong)?;
        *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    let is_group = mac[0] & 1 != 0;
    if parts.next().is_some() || is_group || mac == [0; 6] { Err(wrong()) } else { Ok(mac) }
}

/// A secret text: Debug shows `***`, and it has no Display.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The secret itself, for the only place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde's own message would quote a secret that was written as a number.
        match String::deserialize(deserializer) {
            Ok(text) => Ok(Secret(text)),
            Err(_) => Err(Error::custom("expected a text in quotes (its value is not shown)")),
        }
    }
}

/// Long-lived Stale Times (RFC 9494), in seconds. A number applies to both families, a map to the
/// families in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongLivedStale {
    /// For IPv4. Absent: paths are not retained.
    pub ipv4: Option<u32>,
    /// For IPv6. Absent: paths are not retained.
    pub ipv6: Option<u32>,
}

/// [`LongLivedStale`] written as a map.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LongLivedStaleMap {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv4: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv6: Option<u32>,
}

impl Serialize for LongLivedStale {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let LongLivedStale { ipv4, ipv6 } = *self;
        match (ipv4, ipv6) {
            (Some(seconds), Some(other)) if seconds == other => seconds.serialize(serializer),
            _ => LongLivedStaleMap { ipv4, ipv6 }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for LongLivedStale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Not `#[serde(untagged)]`, whose errors name no field.
        struct NumberOrMap;

        impl<'de> Visitor<'de> for NumberOrMap {
            type Value = LongLivedStale;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of seconds, or a map of ipv4 and ipv6")
            }

            fn visit_u64<E: Error>(self, seconds: u64) -> Result<LongLivedStale, E> {
                // A value beyond the field's range is also invalid for validation.
                let seconds = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
                Ok(LongLivedStale { ipv4: seconds, ipv6: seconds })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LongLivedStale, A::Error> {
                let LongLivedStaleMap { ipv4, ipv6 } =
                    Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                if ipv4.or(ipv6).is_none() {
                    return Err(Error::custom(
                        "neither ipv4 nor ipv6 is set: write one, or leave the field out",
                    ));
                }
                Ok(LongLivedStale { ipv4, ipv6 })
            }
        }

        deserializer.deserialize_any(NumberOrMap)
    }
}

/// Reads `null` as the default: Go writes `null` for empty lists and maps.
///
/// # Errors
/// The deserializer's error.
pub fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lived_stale_times_are_a_number_or_a_map() {
        let read =
            |text: &str| serde_json::from_str::<LongLivedStale>(text).map_err(|error| error.to_string());
        let both = LongLivedStale { ipv4: Some(60), ipv6: Some(60) };
        assert_eq!(read("60"), Ok(both));
        assert_eq!(serde_json::to_string(&both).unwrap(), "60");
        for times in [
            LongLivedStale { ipv4: Some(60), ipv6: Some(600) },
            LongLivedStale { ipv4: None, ipv6: Some(600) },
        ] {
            assert_eq!(read(&serde_json::to_string(&times).unwrap()), Ok(times));
        }
        assert!(read(r#"{"ipv5": 60}"#).unwrap_err().contains("ipv5"));
        assert!(read("{}").unwrap_err().contains("leave the field out"));
        assert!(read("[60]").unwrap_err().contains("a map of ipv4 and ipv6"));
    }

    #[test]
    fn mac_addresses() {
        assert_eq!(parse_mac("02:12:34:0a:0B:ff").unwrap(), [2, 0x12, 0x34, 10, 11, 255]);
        for text in [
            "",
            "02:12:34:0a:0b",
            "02:12:34:0a:0b:ff:00",
            "2:12:34:0a:0b:ff",
            "+2:12:34:0a:0b:ff",
            "02:12:34:0a:0b:fg",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(parse_mac(text).unwrap_err().to_string().contains("six octets"), "{text}");
        }
    }
}
