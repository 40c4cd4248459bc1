//! The policy of a BGP peer as an operator writes it: an ordered list of rules, and what happens to the rest.
//!
//! ```yaml
//! import:
//!   rules:
//!     - prefixes: [{prefix: 0.0.0.0/0}, {prefix: 10.0.0.0/8, ge: 16, le: 24}]
//!       action: accept
//!     - communities: ["65000:100", no-export]
//!       largeCommunities: ["65000:1:2"]
//!       set: {localPreference: 200, med: 10, prepend: 2, addCommunities: ["65000:7"]}
//!       action: accept
//!   default: reject
//! ```
//!
//! Within a rule every condition given must hold, and one entry of a list is enough; a rule without conditions
//! matches everything. A rule without `action` makes its changes and the next rule is tried.
//! The shape is that of the speaker's policy, rule for rule, so that the agent only has to copy it.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::resources::{ValueError, null_default};

/// Rules in order; the first with an action that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// Tried in order.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// For a path that no rule decided; accept unless said.
    #[serde(default)]
    pub default: Action,
}

/// What becomes of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Used.
    #[default]
    Accept,
    /// Not used.
    Reject,
}

/// One rule of a [`Policy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The path's prefix is under one of these. Empty: any prefix.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixMatch>,
    /// The path carries one of these. Empty: any path. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<String>,
    /// The path carries one of these. Empty: any path. See [`parse_large_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub large_communities: Vec<String>,
    /// What is changed in a path that matches.
    #[serde(default, deserialize_with = "null_default")]
    pub set: Changes,
    /// What becomes of a path that matches; the next rule is tried if it was not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

/// A prefix with the lengths below it that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefixMatch {
    /// The covering prefix, without host bits.
    pub prefix: String,
    /// Shortest length that matches; the prefix's own unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ge: Option<u8>,
    /// Longest length that matches; unless said, the prefix's own, or the family's longest where `ge` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub le: Option<u8>,
}

/// Changes to the attributes of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Changes {
    /// LOCAL_PREF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    /// MULTI_EXIT_DISC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub med: Option<u32>,
    /// The neighbour's AS is put in front of AS_PATH this many times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepend: Option<u8>,
    /// Added. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub add_communities: Vec<String>,
    /// Taken out. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub remove_communities: Vec<String>,
    /// Added. See [`parse_large_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub add_large_communities: Vec<String>,
}

impl PrefixMatch {
    /// The covering prefix, host bits cleared.
    pub fn prefix(&self) -> Result<IpNet, ValueError> {
        self.prefix.parse::<IpNet>().map(|prefix| prefix.trunc()).map_err(|_| ValueError {
            value: self.prefix.clone(),
            expected: "a prefix with its length, such as 10.0.0.0/8",
        })
    }
}

/// A standard community (RFC 1997): `ASN:value` with both halves up to 65535, or a well-known name.
pub fn parse_community(text: &str) -> Result<u32, ValueError> {
    let named = match text {
        "graceful-shutdown" => Some(0xFFFF_0000),   // RFC 8326
        "blackhole" => Some(0xFFFF_029A),           // RFC 7999
        "no-export" => Some(0xFFFF_FF01),           // RFC 1997
        "no-advertise" => Some(0xFFFF_FF02),        // RFC 1997
        "no-export-subconfed" => Some(0xFFFF_FF03), // RFC 1997
        "no-peer" => Some(0xFFFF_FF04),             // RFC 3765
        _ => None,
    };
    let numbers = || {
        let (high, low) = text.split_once(':')?;
        Some(u32::from(number::<u16>(high)?) << 16 | u32::from(number::<u16>(low)?))
    };
    named.or_else(numbers).ok_or_else(|| ValueError {
        value: text.to_owned(),
        expected: "a community, such as 65000:100 (halves up to 65535), no-export, no-advertise, \
                   no-export-subconfed, no-peer, graceful-shutdown or blackhole",
    })
}

/// A large community (RFC 8092): three numbers up to 4294967295, `65000:1:2`.
pub fn parse_large_community(text: &str) -> Result<[u32; 3], ValueError> {
    let numbers = || {
        let mut parts = text.split(':').map(number::<u32>);
        let parsed = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(parsed)
    };
    numbers().ok_or_else(|| ValueError {
        value: text.to_owned(),
        expected: "a large community, such as 65000:1:2 (three numbers up to 4294967295)",
    })
}

/// Digits only: Rust's own parser takes a `+` too.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communities_are_numbers_or_names() {
        assert_eq!(parse_community("65000:100"), Ok(65000 << 16 | 100));
        assert_eq!(parse_community("no-export"), Ok(0xFFFF_FF01));
        assert_eq!(parse_community("65535:666"), parse_community("blackhole"));
        for wrong in ["", "65000", "65536:1", "1:65536", "+1:2", "1:2:3", "No-Export", ":", "1:"] {
            assert_eq!(parse_community(wrong).unwrap_err().value, wrong);
        }
    }

    #[test]
    fn large_communities_are_three_numbers() {
        assert_eq!(parse_large_community("4294967295:0:7"), Ok([u32::MAX, 0, 7]));
        for wrong in ["", "1:2", "1:2:3:4", "1:2:4294967296", "a:b:c", "1::3"] {
            assert_eq!(parse_large_community(wrong).unwrap_err().value, wrong);
        }
    }
}
