//! The policy of a BGP peer as an operator writes it: an ordered list of rules, and a default.
//!
//! ```yaml
//! import:
//!   rules:
//!     - prefixes: [{prefix: 0.0.0.0/0}, {prefix: 10.0.0.0/8, ge: 16, le: 24}]
//!       action: accept
//!     - prefixSets: [fabric]
//!       communities: {allOf: ["65000:100", no-export], noneOf: [blackhole]}
//!       largeCommunities: ["65000:1:2"]
//!       extendedCommunities: ["rt:65000:3"]
//!       asPath: {maxLength: 5, neighbourAs: [65001], contains: [65010], originAs: [65020]}
//!       origins: [igp, egp]
//!       nextHops: [10.0.0.0/8]
//!       set: {localPreference: 200, med: 10, prepend: 2, addCommunities: ["65000:7"]}
//!       action: accept
//!   default: reject
//! export:
//!   rules:
//!     - originated: true
//!       set: {setCommunities: ["65000:1"], removeLargeCommunities: ["65000:1:2"]}
//!       action: accept
//!   default: reject
//! ```
//!
//! Within a rule every given condition must hold, and one entry of a list is enough (communities
//! have more options: [`Members`]). A rule without conditions matches everything. A rule without
//! `action` makes its changes, and evaluation continues with the next rule. The shape is the same
//! as in the speaker's policy, so that the agent only has to copy it. `prefixSets` refers to named
//! lists in `spec.config.prefixSets`, in addition to a rule's own `prefixes`.

use std::fmt;
use std::marker::PhantomData;
use std::net::Ipv4Addr;

use ipnet::IpNet;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::{ValueError, is_default, null_default};

/// Ordered rules; the first matching rule with an action decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// The rules, in order of evaluation.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The action for a path that no rule decides. Default: `import` accepts the path. `export`
    /// advertises it if this node originates it, and rejects received paths, as without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Action>,
}

/// The action for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Use the path (`import`), or advertise it (`export`).
    Accept,
    /// Do not use the path, or do not advertise it.
    Reject,
}

/// One rule of a [`Policy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// A name for people. `trunkline routes --explain` shows it next to the rule's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The path's prefix matches one of these, or one of `prefixSets`. Both empty: any prefix.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixMatch>,
    /// Names of lists in `spec.config.prefixSets`: their entries are added to `prefixes`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub prefix_sets: Vec<String>,
    /// Condition on the path's communities. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub communities: Members,
    /// Condition on the path's large communities. See [`parse_large_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub large_communities: Members,
    /// Condition on the path's extended communities. See [`parse_extended_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub extended_communities: Members,
    /// Condition on the AS_PATH; in `export` it does not contain this node's AS yet.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub as_path: AsPath,
    /// ORIGIN is one of these. Empty: any.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Origin>,
    /// The next hop is in one of these prefixes; in `export` it is the next hop that this node
    /// uses. Empty: any next hop, or none.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub next_hops: Vec<String>,
    /// Only in `export`: whether this node originates the path (its pods and subnets). Without it:
    /// both kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub originated: Option<bool>,
    /// Changes to a matching path.
    #[serde(default, deserialize_with = "null_default")]
    pub set: Changes,
    /// The action for a matching path; without one, the next rule follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

/// A condition on the members of a path attribute. A list is short for `anyOf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// At least one of these is present. Empty: no condition.
    pub any_of: Vec<String>,
    /// All of these are present.
    pub all_of: Vec<String>,
    /// None of these is present.
    pub none_of: Vec<String>,
}

/// [`Members`] written as a map.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MembersMap {
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    any_of: Vec<String>,
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    all_of: Vec<String>,
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    none_of: Vec<String>,
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.all_of.is_empty() && self.none_of.is_empty() {
            return self.any_of.serialize(serializer);
        }
        let Members { any_of, all_of, none_of } = self.clone();
        MembersMap { any_of, all_of, none_of }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Not `#[serde(untagged)]`, whose errors name no field.
        struct ListOrMap(PhantomData<Members>);

        impl<'de> Visitor<'de> for ListOrMap {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list, or a map of anyOf, allOf and noneOf")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Members, A::Error> {
                let any_of = Deserialize::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(Members { any_of, ..Members::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Members, A::Error> {
                let MembersMap { any_of, all_of, none_of } =
                    Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Members { any_of, all_of, none_of })
            }
        }

        deserializer.deserialize_any(ListOrMap(PhantomData))
    }
}

/// A condition on AS_PATH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AsPath {
    /// The lowest length; a set counts 1 (RFC 4271 §9.1.2.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_length: Option<u32>,
    /// The highest length; 0 is a path that starts in this AS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
    /// The path contains one of these. Empty: any path.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub contains: Vec<u32>,
    /// One of these originated the path (the last AS). Empty: any path.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub origin_as: Vec<u32>,
    /// One of these sent the path (the first AS). Empty: any path.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub neighbour_as: Vec<u32>,
}

/// ORIGIN (RFC 4271 §5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The path originates inside its first AS.
    Igp,
    /// The path comes from EGP.
    Egp,
    /// The path comes from elsewhere, such as redistribution.
    Incomplete,
}

/// A prefix with the lengths below it that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefixMatch {
    /// The covering prefix, without host bits.
    pub prefix: String,
    /// The shortest matching length; the prefix's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ge: Option<u8>,
    /// The longest matching length. Default: the prefix's own, or with `ge` the family's longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub le: Option<u8>,
}

/// Changes to the attributes of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Changes {
    /// LOCAL_PREF; not sent to external peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    /// MULTI_EXIT_DISC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub med: Option<u32>,
    /// Prepends the neighbour's AS (`import`) or this node's AS (`export`) this many additional
    /// times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepend: Option<u8>,
    /// Replaces all communities before others are removed and added; `[]` removes all. See
    /// [`parse_community`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_communities: Option<Vec<String>>,
    /// Adds these. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub add_communities: Vec<String>,
    /// Removes these. See [`parse_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub remove_communities: Vec<String>,
    /// Like `setCommunities`. See [`parse_large_community`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_large_communities: Option<Vec<String>>,
    /// Adds these. See [`parse_large_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub add_large_communities: Vec<String>,
    /// Removes these. See [`parse_large_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub remove_large_communities: Vec<String>,
    /// Like `setCommunities`. See [`parse_extended_community`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_extended_communities: Option<Vec<String>>,
    /// Adds these. See [`parse_extended_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub add_extended_communities: Vec<String>,
    /// Removes these. See [`parse_extended_community`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub remove_extended_communities: Vec<String>,
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
        "llgr-stale" => Some(0xFFFF_0006),          // RFC 9494
        "no-llgr" => Some(0xFFFF_0007),             // RFC 9494
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
                   no-export-subconfed, no-peer, graceful-shutdown, llgr-stale, no-llgr or blackhole",
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

/// An extended community (RFC 4360): a Route Target or Route Origin, `rt:…` or `soo:…`, with an AS
/// number or an IPv4 address and a number in the remaining octets of six. An AS number up to 65535
/// takes two octets; with the suffix `L` it takes four (RFC 5668), as larger ones do.
///
/// A Link Bandwidth (RFC 10005) is `lb:…` (transitive) or `lb-non-transitive:…`, with an AS number
/// up to 65535 and octets per second. Numbers above 16,777,216 are rounded to 24 significant bits.
/// Alternatively `0x` with the 16 digits of any extended community.
pub fn parse_extended_community(text: &str) -> Result<[u8; 8], ValueError> {
    let raw = || {
        let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 16)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_hex).map(u64::to_be_bytes)
    };
    let link_bandwidth = |kind: u8, value: &str| {
        let (asn, octets) = value.split_once(':')?;
        let [a, b] = number::<u16>(asn)?.to_be_bytes();
        let [c, d, e, f] = (number::<u64>(octets)? as f32).to_be_bytes();
        Some([kind, 4, a, b, c, d, e, f])
    };
    let named = || {
        let (subtype, value) = match text.split_once(':')? {
            ("rt", value) => (2, value),
            ("soo", value) => (3, value),
            ("lb", value) => return link_bandwidth(0, value),
            ("lb-non-transitive", value) => return link_bandwidth(0x40, value),
            _ => return None,
        };
        let (administrator, assigned) = value.split_once(':')?;
        let long = |kind: u8, [a, b, c, d]: [u8; 4]| {
            let [e, f] = number::<u16>(assigned)?.to_be_bytes();
            Some([kind, subtype, a, b, c, d, e, f])
        };
        if let Ok(address) = administrator.parse::<Ipv4Addr>() {
            return long(1, address.octets());
        }
        if let Some(asn) = administrator.strip_suffix('L') {
            return long(2, number::<u32>(asn)?.to_be_bytes());
        }
        let asn = number::<u32>(administrator)?;
        let Ok(short) = u16::try_from(asn) else { return long(2, asn.to_be_bytes()) };
        let ([a, b], [c, d, e, f]) = (short.to_be_bytes(), number::<u32>(assigned)?.to_be_bytes());
        Some([0, subtype, a, b, c, d, e, f])
    };
    raw().or_else(named).ok_or_else(|| ValueError {
        value: text.to_owned(),
        expected: "an extended community, such as rt:65000:100, soo:10.0.0.1:7 (the last number up to 65535 after an address or \
                   an AS number above 65535), lb:65000:125000000 (AS number up to 65535, octets per second), or 0x with 16 digits",
    })
}

/// Parses digits only: Rust's own parser accepts a `+` too.
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
    fn members_are_a_list_or_a_map() {
        let read = |text: &str| serde_json::from_str::<Members>(text).map_err(|error| error.to_string());
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let any_of = Members { any_of: list(&["1:2"]), ..Members::default() };
        assert_eq!(read(r#"["1:2"]"#), Ok(any_of.clone()));
        assert_eq!(read(r#"{"anyOf": ["1:2"]}"#), Ok(any_of.clone()));
        assert_eq!(serde_json::to_string(&any_of).unwrap(), r#"["1:2"]"#);
        let both = Members { all_of: list(&["1:2"]), none_of: list(&["1:3"]), ..Members::default() };
        assert_eq!(read(&serde_json::to_string(&both).unwrap()), Ok(both));
        let unknown = read(r#"{"oneOf": ["1:2"]}"#).unwrap_err();
        assert!(unknown.contains("oneOf") && unknown.contains("anyOf"), "{unknown}");
        assert!(read("7").unwrap_err().contains("a map of anyOf, allOf and noneOf"));
    }

    #[test]
    fn extended_communities_have_names_or_are_octets() {
        assert_eq!(parse_extended_community("rt:65000:65536"), Ok([0, 2, 0xfd, 0xe8, 0, 1, 0, 0]));
        assert_eq!(parse_extended_community("soo:65000L:7"), Ok([2, 3, 0, 0, 0xfd, 0xe8, 0, 7]));
        assert_eq!(parse_extended_community("rt:65536:7"), Ok([2, 2, 0, 1, 0, 0, 0, 7]));
        assert_eq!(parse_extended_community("rt:10.0.0.1:7"), Ok([1, 2, 10, 0, 0, 1, 0, 7]));
        assert_eq!(
            parse_extended_community("0x4004fde849742400"),
            Ok([0x40, 4, 0xfd, 0xe8, 0x49, 0x74, 0x24, 0])
        );
        let bandwidth = [4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28];
        let of_kind = |kind| Ok([&[kind], &bandwidth[..]].concat().try_into().unwrap());
        assert_eq!(parse_extended_community("lb:65000:125000000"), of_kind(0));
        assert_eq!(parse_extended_community("lb-non-transitive:65000:125000000"), of_kind(0x40));
        assert_eq!(parse_extended_community("lb:1:16777217"), parse_extended_community("lb:1:16777216"));
        for wrong in [
            "lb:65536:1",
            "lb:10.0.0.1:1",
            "lb:1:1.5",
            "lb:1:-1",
            "lb:1",
            "lb:1:2:3",
            "lb-non-transitive:1",
            "",
            "65000:1",
            "rt:65000",
            "rt:65536:65536",
            "rt:10.0.0.1:65536",
            "rt:1L:65536",
            "rt:1:2:3",
            "target:1:2",
            "rt:4294967296:1",
            "0x40",
            "0x+004fde849742400",
            "rt::1",
            "rt:1:",
        ] {
            assert_eq!(parse_extended_community(wrong).unwrap_err().value, wrong);
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
