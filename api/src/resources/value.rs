//! Values that are texts in a manifest: addresses, which are parsed late, and secrets, which are never shown.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

/// A text in a resource that is not what its field needs. The message never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not {expected}")]
pub struct ValueError {
    /// What was written.
    pub value: String,
    /// What was expected, with an example.
    pub expected: &'static str,
}

/// An address without a length.
pub fn parse_address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError {
        value: text.to_owned(),
        expected: "an IP address, such as 10.14.0.1 or 2001:db8:14::1",
    })
}

/// A secret text: Debug shows `***`, and it has no Display.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The secret itself, for the one place that needs it.
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
        // serde's own message would quote a number that was meant as the secret.
        match String::deserialize(deserializer) {
            Ok(text) => Ok(Secret(text)),
            Err(_) => Err(serde::de::Error::custom("expected a text in quotes (its value is not shown)")),
        }
    }
}
