//! The annotations and labels of a pod or its namespace, with hybridnet's names, parsed in one
//! place.
//!
//! The webhook refuses unreadable values, and the controller allocates addresses by them. Both must
//! parse a value in the same way. The network, the subnets and the network's type may be in an
//! annotation or in a label of the same name; the annotation has precedence. All others are
//! annotations. An empty value counts as absent. Values are parsed as tolerantly as in hybridnet
//! (any case, `IPv4Only` for `IPv4`), and are written in one form.
//!
//! The pools (`ip-pool`, `mac-pool`) are common to all pods of a workload: a stateful pod takes the
//! entry of its ordinal, and any other pod takes the first entry. hybridnet splits `ip-pool` on the
//! wrong string and refuses more than one entry; Trunkline accepts several.
//!
//! `specified-subnet` may name several Subnets ([`SubnetNames`]). hybridnet has one Subnet, or a pair
//! `v4/v6`, which mean the same here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::fault::Fault;
pub use crate::fault::annotation_field;
use crate::names::{annotation, label};
use crate::resources::{Network, NetworkType, Retention, ValueError, parse_address, parse_mac};

/// The address families of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IpFamily {
    /// One IPv4 address.
    #[default]
    V4,
    /// One IPv6 address.
    V6,
    /// One of each.
    DualStack,
}

impl IpFamily {
    /// Parses `IPv4`, `IPv6` or `DualStack` in any case, and hybridnet's `IPv4Only` and `IPv6Only`.
    pub fn read(text: &str) -> Option<IpFamily> {
        let is = |name: &str| text.eq_ignore_ascii_case(name);
        if is("IPv4") || is("IPv4Only") {
            Some(IpFamily::V4)
        } else if is("IPv6") || is("IPv6Only") {
            Some(IpFamily::V6)
        } else if is("DualStack") {
            Some(IpFamily::DualStack)
        } else {
            None
        }
    }

    /// Whether a pod of this family has an IPv4 address.
    pub fn has_v4(self) -> bool {
        self != IpFamily::V6
    }

    /// Whether a pod of this family has an IPv6 address.
    pub fn has_v6(self) -> bool {
        self != IpFamily::V4
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
            IpFamily::DualStack => "DualStack",
        })
    }
}

/// Parses `Underlay`, `Overlay` or `GlobalBGP` in any case.
pub fn read_network_type(text: &str) -> Option<NetworkType> {
    [NetworkType::Underlay, NetworkType::Overlay, NetworkType::GlobalBGP]
        .into_iter()
        .find(|kind| text.eq_ignore_ascii_case(&format!("{kind:?}")))
}

/// Maximum number of Subnets that one object names.
pub const MAX_SUBNETS: usize = 16;

/// The Subnets that an object names, in order of preference: of each IP family, a pod gets the
/// address from the first one that has a free address for it.
///
/// `a,b` names Subnets of any family. With `/`, the Subnets before it are IPv4 and those after it
/// IPv6: `a,b/c,d`. If no Subnet of a family is named, the addresses of this family come from any
/// Subnet of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetNames {
    /// One list, or the IPv4 list and the IPv6 list.
    lists: Vec<Vec<String>>,
}

/// An invalid text for [`SubnetNames`], with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetNamesError {
    /// An empty name, or more than one `/`.
    #[error(
        "`{0}` does not name Subnets: write the name of one, several in order of preference as `a,b`, or IPv4 and \
         IPv6 Subnets with `/` between: write `v4-subnet/v6-subnet`"
    )]
    Shape(String),
    /// One Subnet more than once.
    #[error(
        "`{text}` names Subnet {name} twice: write each once, and an IPv4 and an IPv6 Subnet with `/` between: write `v4-subnet/v6-subnet`"
    )]
    Twice {
        /// The whole text.
        text: String,
        /// The Subnet.
        name: String,
    },
    /// More than [`MAX_SUBNETS`].
    #[error("{0} Subnets are named, and at most {MAX_SUBNETS} are allowed: write fewer")]
    TooMany(usize),
}

impl SubnetNames {
    /// Parses `a`, `a,b`, `v4/v6` or `a,b/c,d`.
    ///
    /// # Errors
    /// The text has another shape.
    pub fn read(text: &str) -> Result<SubnetNames, SubnetNamesError> {
        let lists: Vec<Vec<String>> = text
            .split('/')
            .map(|list| list.split(',').map(|name| name.trim().to_owned()).collect())
            .collect();
        let names = SubnetNames { lists };
        if names.lists.len() > 2 || names.iter().any(|name| name.is_empty()) {
            return Err(SubnetNamesError::Shape(text.to_owned()));
        }
        let mut seen = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(SubnetNamesError::Twice { text: text.to_owned(), name: name.clone() });
        }
        match names.iter().count() {
            count if count > MAX_SUBNETS => Err(SubnetNamesError::TooMany(count)),
            _ => Ok(names),
        }
    }

    /// The names in order of preference; IPv4 Subnets first if the families are separated.
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.lists.iter().flatten()
    }

    /// The IPv4 names and the IPv6 names, if they are separated by `/`.
    pub fn by_family(&self) -> Option<[&[String]; 2]> {
        match self.lists.as_slice() {
            [v4, v6] => Some([v4, v6]),
            _ => None,
        }
    }

    /// Whether a Subnet is named.
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|named| named == name)
    }

    /// Whether no Subnet is named: a pod gets addresses of any Subnet of its network.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }
}

impl fmt::Display for SubnetNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists: Vec<String> = self.lists.iter().map(|list| list.join(",")).collect();
        f.write_str(&lists.join("/"))
    }
}

/// The source of a pod's addresses, as one object (a pod or a namespace) requests it. Absent values
/// are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPreferences {
    /// Name of the Network.
    pub network: Option<String>,
    /// Names of the Subnets.
    pub subnets: SubnetNames,
    /// Type of the Network.
    pub network_type: Option<NetworkType>,
    /// The address families.
    pub family: Option<IpFamily>,
}

impl AddressPreferences {
    /// Parses the annotations and labels of a `Pod` or `Namespace`. Faults name the annotation or
    /// label.
    pub fn read(
        kind: &'static str,
        name: &str,
        annotations: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
    ) -> Result<AddressPreferences, Vec<Fault>> {
        let mut found = Vec::new();
        let mut fault = |field: String, message: String| {
            found.push(Fault { kind, name: name.to_owned(), field, message });
        };
        let either = |annotation: &str, label: &str| {
            non_empty(annotations, annotation)
                .map(|text| (text, annotation_field(annotation)))
                .or_else(|| non_empty(labels, label).map(|text| (text, format!("metadata.labels[{label}]"))))
        };
        let network = either(annotation::SPECIFIED_NETWORK, label::SPECIFIED_NETWORK);
        let mut preferences = AddressPreferences {
            network: network.map(|(text, _)| text.to_owned()),
            ..AddressPreferences::default()
        };
        if let Some((text, field)) = either(annotation::SPECIFIED_SUBNET, label::SPECIFIED_SUBNET) {
            match SubnetNames::read(text) {
                Ok(subnets) => preferences.subnets = subnets,
                Err(error) => fault(field, error.to_string()),
            }
        }
        if let Some((text, field)) = either(annotation::NETWORK_TYPE, label::NETWORK_TYPE) {
            preferences.network_type = read_network_type(text);
            if preferences.network_type.is_none() {
                fault(
                    field,
                    format!("`{text}` is no type of a Network: write Underlay, Overlay or GlobalBGP"),
                );
            }
        }
        if let Some(text) = non_empty(annotations, annotation::IP_FAMILY) {
            preferences.family = IpFamily::read(text);
            if preferences.family.is_none() {
                let field = annotation_field(annotation::IP_FAMILY);
                fault(field, format!("`{text}` is no family of addresses: write IPv4, IPv6 or DualStack"));
            }
        }
        if found.is_empty() { Ok(preferences) } else { Err(found) }
    }

    /// Whether no value is set. Only then is the next source used, and all its values together.
    pub fn is_empty(&self) -> bool {
        *self == AddressPreferences::default()
    }
}

/// The pools of addresses and MAC addresses for the pods of a workload, by ordinal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// `ip-pool`: one address, or an IPv4 and an IPv6 address, for each pod. Empty: any address.
    pub addresses: Vec<Vec<IpAddr>>,
    /// `mac-pool`: one MAC address for each pod. Empty: a random one.
    pub macs: Vec<[u8; 6]>,
}

impl Pools {
    /// Parses a pod's annotations. Faults name annotation and entry.
    pub fn read(pod: &str, annotations: &BTreeMap<String, String>) -> Result<Pools, Vec<Fault>> {
        let mut found = Vec::new();
        let mut fault = |annotation: &str, index: usize, message: String| {
            let field = format!("{}[{index}]", annotation_field(annotation));
            found.push(Fault { kind: "Pod", name: pod.to_owned(), field, message });
        };
        let mut pools = Pools::default();
        for (index, entry) in entries(annotations, annotation::IP_POOL) {
            match pool_entry(entry) {
                Ok(addresses) => pools.addresses.push(addresses),
                Err(error) => fault(annotation::IP_POOL, index, error.to_string()),
            }
        }
        for (index, entry) in entries(annotations, annotation::MAC_POOL) {
            match parse_mac(&entry.replace('-', ":")) {
                Ok(mac) => pools.macs.push(mac),
                Err(error) => fault(annotation::MAC_POOL, index, format!("{error}")),
            }
        }
        if found.is_empty() { Ok(pools) } else { Err(found) }
    }

    /// The addresses for the pod with this ordinal, IPv4 first; `None` if the pool is empty or has
    /// no such entry. A pod without an ordinal gets the first entry.
    pub fn addresses(&self, ordinal: Option<usize>) -> Option<&[IpAddr]> {
        self.addresses.get(ordinal.unwrap_or(0)).map(Vec::as_slice)
    }

    /// The MAC address for the pod with this ordinal, likewise.
    pub fn mac(&self, ordinal: Option<usize>) -> Option<[u8; 6]> {
        self.macs.get(ordinal.unwrap_or(0)).copied()
    }
}

/// The maximum number of extra prefixes of one pod.
pub const MAX_EXTRA_PREFIXES: usize = 32;

/// Prefixes that are never the source of a packet that a router forwards.
const NO_SOURCES: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/128",
    "::1/128",
    "fe80::/10",
    "ff00::/8",
];

/// An invalid extra prefix, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtraPrefixError {
    /// An address without a length.
    #[error("`{address}` has no length: write {}", IpNet::from(*address))]
    NoLength {
        /// The address.
        address: IpAddr,
    },
    /// No prefix at all.
    #[error("`{text}` is not a prefix: write one such as 10.9.0.0/16 or fd00:9::/64")]
    NoPrefix {
        /// The value.
        text: String,
    },
    /// Bits after the length are set.
    #[error("{prefix} has host bits: write {}", .prefix.trunc())]
    HostBits {
        /// The prefix.
        prefix: IpNet,
    },
    /// Routers do not forward packets from it.
    #[error(
        "{prefix} is in {reserved}, and routers do not forward packets from there: write another \
         unicast prefix"
    )]
    Reserved {
        /// The prefix.
        prefix: IpNet,
        /// The reserved prefix that contains it.
        reserved: &'static str,
    },
}

/// Parses an extra prefix, from which pods may send in addition to their addresses.
///
/// # Errors
/// The text is not a prefix that a pod may send from.
pub fn extra_prefix(text: &str) -> Result<IpNet, ExtraPrefixError> {
    let Ok(prefix) = text.parse::<IpNet>() else {
        return Err(match text.parse::<IpAddr>() {
            Ok(address) => ExtraPrefixError::NoLength { address },
            Err(_) => ExtraPrefixError::NoPrefix { text: text.to_owned() },
        });
    };
    if prefix != prefix.trunc() {
        return Err(ExtraPrefixError::HostBits { prefix });
    }
    let reserved = |other: &&&str| other.parse::<IpNet>().is_ok_and(|other| other.contains(&prefix));
    match NO_SOURCES.iter().find(reserved) {
        Some(reserved) => Err(ExtraPrefixError::Reserved { prefix, reserved }),
        None => Ok(prefix),
    }
}

/// Parses a pod's annotation `extra-prefixes`. The pod may send from these prefixes in addition to
/// its addresses. Faults name the entry.
pub fn extra_prefixes(
    pod: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<BTreeSet<IpNet>, Vec<Fault>> {
    let field = annotation_field(annotation::EXTRA_PREFIXES);
    let (mut prefixes, mut found) = (BTreeSet::new(), Vec::new());
    for (index, entry) in entries(annotations, annotation::EXTRA_PREFIXES) {
        let message = match extra_prefix(entry) {
            Ok(_) if index == MAX_EXTRA_PREFIXES => {
                format!("there are more than {MAX_EXTRA_PREFIXES} prefixes: write fewer and shorter ones")
            }
            Ok(prefix) => {
                prefixes.insert(prefix);
                continue;
            }
            Err(error) => error.to_string(),
        };
        found.push(Fault { kind: "Pod", name: pod.to_owned(), field: format!("{field}[{index}]"), message });
    }
    if found.is_empty() { Ok(prefixes) } else { Err(found) }
}

/// The first of these prefixes outside all of a Network's `extraPrefixes`, with the error text.
pub fn refused_prefix(prefixes: &BTreeSet<IpNet>, network: &Network) -> Option<(IpNet, String)> {
    let allowed: Vec<IpNet> = network.extra_prefixes().collect();
    let refused = prefixes.iter().find(|prefix| !allowed.iter().any(|allowed| allowed.contains(*prefix)))?;
    Some((*refused, not_allowed(refused, network.name(), &allowed)))
}

/// The error text for a prefix outside those that a Network allows.
pub fn not_allowed<'a>(
    prefix: &IpNet,
    network: &str,
    allowed: impl IntoIterator<Item = &'a IpNet>,
) -> String {
    let allowed: Vec<String> = allowed.into_iter().map(IpNet::to_string).collect();
    let allows = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
    format!(
        "{prefix}: spec.config.extraPrefixes of Network {network} allows {allows}: add {prefix} there, or leave it out here"
    )
}

/// Whether a stateful pod keeps its address (`ip-retain`); `default` if the annotation is absent or
/// invalid.
pub fn retains(annotations: &BTreeMap<String, String>, default: bool) -> bool {
    non_empty(annotations, annotation::IP_RETAIN).and_then(parse_bool).unwrap_or(default)
}

/// How long a stateful pod's address is retained (`ip-retention`); none if the annotation is absent.
/// The fault names the annotation.
pub fn retention(pod: &str, annotations: &BTreeMap<String, String>) -> Result<Option<Retention>, Vec<Fault>> {
    let read = |text: &str| {
        text.parse().map_err(|error: ValueError| {
            let field = annotation_field(annotation::IP_RETENTION);
            vec![Fault { kind: "Pod", name: pod.to_owned(), field, message: error.to_string() }]
        })
    };
    non_empty(annotations, annotation::IP_RETENTION).map(read).transpose()
}

/// Whether a Service should have the endpoints of other clusters (`global-service`).
pub fn is_global_service(annotations: &BTreeMap<String, String>) -> bool {
    non_empty(annotations, annotation::GLOBAL_SERVICE).and_then(parse_bool).unwrap_or(false)
}

/// Reads the values of Go's strconv.ParseBool, which hybridnet uses.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The number at the end of a stateful pod's name.
pub fn ordinal(pod: &str) -> Option<usize> {
    pod.rsplit_once('-')?.1.parse().ok()
}

fn non_empty<'a>(map: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    map.get(key).map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn entries<'a>(
    annotations: &'a BTreeMap<String, String>,
    name: &str,
) -> impl Iterator<Item = (usize, &'a str)> {
    non_empty(annotations, name).into_iter().flat_map(|text| text.split(',').map(str::trim).enumerate())
}

/// An invalid entry of `ip-pool`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PoolEntryError {
    #[error(transparent)]
    Address(#[from] ValueError),
    #[error(
        "`{0}` is more than one address per family: write one address, or an IPv4 and an IPv6 \
         address with `/` between"
    )]
    Several(String),
}

fn pool_entry(entry: &str) -> Result<Vec<IpAddr>, PoolEntryError> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in entry.split('/') {
        addresses.push(parse_address(text.trim())?);
    }
    match addresses.as_slice() {
        [_] | [IpAddr::V4(_), IpAddr::V6(_)] => Ok(addresses),
        [IpAddr::V6(_), IpAddr::V4(_)] => {
            addresses.reverse();
            Ok(addresses)
        }
        _ => Err(PoolEntryError::Several(entry.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn preferences(
        annotations: &[(&str, &str)],
        labels: &[(&str, &str)],
    ) -> Result<AddressPreferences, String> {
        AddressPreferences::read("Pod", "web-0", &map(annotations), &map(labels))
            .map_err(|faults| faults[0].to_string())
    }

    #[test]
    fn annotations_have_precedence_over_labels() {
        assert!(preferences(&[], &[]).unwrap().is_empty());
        assert!(preferences(&[(annotation::SPECIFIED_NETWORK, "")], &[]).unwrap().is_empty());
        let both = preferences(
            &[(annotation::SPECIFIED_NETWORK, "rack1"), (annotation::IP_FAMILY, "dualstack")],
            &[
                (label::SPECIFIED_NETWORK, "rack2"),
                (label::SPECIFIED_SUBNET, "a/b"),
                (label::NETWORK_TYPE, "globalbgp"),
            ],
        )
        .unwrap();
        assert_eq!(both.network.as_deref(), Some("rack1"));
        assert_eq!(both.subnets.by_family(), Some([&["a".to_owned()][..], &["b".to_owned()]]));
        assert_eq!(both.network_type, Some(NetworkType::GlobalBGP));
        assert_eq!(both.family, Some(IpFamily::DualStack));
        assert_eq!(
            preferences(&[(annotation::IP_FAMILY, "IPv6Only")], &[]).unwrap().family,
            Some(IpFamily::V6)
        );
        // hybridnet has no label for the family.
        assert!(preferences(&[], &[(annotation::IP_FAMILY, "IPv6")]).unwrap().is_empty());
    }

    #[test]
    fn an_unreadable_value_is_named() {
        for (annotations, field) in [
            (
                [(annotation::SPECIFIED_SUBNET, "a/b/c")],
                "metadata.annotations[networking.alibaba.com/specified-subnet]",
            ),
            ([(annotation::SPECIFIED_SUBNET, "a/")], "write `v4-subnet/v6-subnet`"),
            ([(annotation::SPECIFIED_SUBNET, "a/a")], "write `v4-subnet/v6-subnet`"),
            ([(annotation::SPECIFIED_SUBNET, "a,,b")], "several in order of preference as `a,b`"),
            ([(annotation::SPECIFIED_SUBNET, "a,b/c,a")], "`a,b/c,a` names Subnet a twice"),
            (
                [(annotation::SPECIFIED_SUBNET, "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q")],
                "17 Subnets are named, and at most 16",
            ),
            ([(annotation::NETWORK_TYPE, "Underlie")], "`Underlie` is no type of a Network"),
            (
                [(annotation::IP_FAMILY, "v4")],
                "`v4` is no family of addresses: write IPv4, IPv6 or DualStack",
            ),
        ] {
            let error = preferences(&annotations, &[]).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let error = preferences(&[], &[(label::NETWORK_TYPE, "x")]).unwrap_err();
        assert!(error.contains("metadata.labels[networking.alibaba.com/network-type]"), "{error}");
    }

    #[test]
    fn subnets_are_named_in_order_of_preference() {
        for (text, shown, names, is_pair) in [
            ("a", "a", &["a"][..], false),
            (" a , b", "a,b", &["a", "b"], false),
            ("a/b", "a/b", &["a", "b"], true),
            ("b, a / d,c", "b,a/d,c", &["b", "a", "d", "c"], true),
        ] {
            let read = SubnetNames::read(text).unwrap();
            assert_eq!(read.to_string(), shown);
            assert!(read.iter().eq(names), "{text}: {read:?}");
            assert_eq!(read.by_family().is_some(), is_pair, "{text}");
            assert!(read.contains("a") && !read.contains("z") && !read.is_empty());
        }
        assert!(SubnetNames::default().is_empty());
    }

    #[test]
    fn retention_is_read_from_the_annotation() {
        let read = |text: &str| retention("web-0", &map(&[(annotation::IP_RETENTION, text)]));
        assert_eq!(read("never").unwrap(), Some(Retention::Forever));
        assert_eq!(read("72h").unwrap().unwrap().to_string(), "3d");
        assert_eq!(read("").unwrap(), None);
        let error = read("72").unwrap_err()[0].to_string();
        assert!(
            error.contains("trunkline.io/ip-retention]: `72` is not a retention: write a time"),
            "{error}"
        );
    }

    #[test]
    fn pools_have_an_entry_for_each_ordinal() {
        let annotations = map(&[
            (annotation::IP_POOL, "10.0.0.1, 10.0.0.2/2001:db8::2,2001:db8::3/10.0.0.3"),
            (annotation::MAC_POOL, "02:12:34:00:00:01,02-12-34-00-00-02"),
        ]);
        let pools = Pools::read("web-0", &annotations).unwrap();
        let shown = |ordinal| pools.addresses(ordinal).map(|addresses| format!("{addresses:?}"));
        assert_eq!(shown(Some(0)).as_deref(), Some("[10.0.0.1]"));
        assert_eq!(shown(None), shown(Some(0)));
        assert_eq!(shown(Some(1)).as_deref(), Some("[10.0.0.2, 2001:db8::2]"));
        assert_eq!(
            shown(Some(2)).as_deref(),
            Some("[10.0.0.3, 2001:db8::3]"),
            "the IPv4 address comes first"
        );
        assert_eq!(shown(Some(3)), None);
        assert_eq!(pools.mac(Some(1)), Some([2, 0x12, 0x34, 0, 0, 2]));
        assert_eq!(pools.mac(Some(2)), None);
        assert_eq!(Pools::read("web-0", &map(&[])).unwrap(), Pools::default());
        for (annotation, value, message) in [
            (annotation::IP_POOL, "10.0.0.1,,10.0.0.3", "ip-pool][1]: `` is not an IP address"),
            (annotation::IP_POOL, "10.0.0.1,10.0.0.256", "ip-pool][1]: `10.0.0.256` is not an IP address"),
            (annotation::IP_POOL, "10.0.0.1/10.0.0.2", "more than one address per family"),
            (annotation::MAC_POOL, "02:12:34:00:00:01,", "mac-pool][1]: `` is not the MAC address"),
            (
                annotation::MAC_POOL,
                "ff:ff:ff:ff:ff:ff",
                "mac-pool][0]: `ff:ff:ff:ff:ff:ff` is not the MAC address",
            ),
        ] {
            let error = Pools::read("web-0", &map(&[(annotation, value)])).unwrap_err()[0].to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn extra_prefixes_are_canonical_and_unicast() {
        let read = |text: &str| extra_prefixes("router-0", &map(&[(annotation::EXTRA_PREFIXES, text)]));
        let shown =
            |text: &str| -> Vec<String> { read(text).unwrap().iter().map(IpNet::to_string).collect() };
        assert_eq!(shown("10.9.0.0/16, fd00:9::/64,10.9.0.0/16"), ["10.9.0.0/16", "fd00:9::/64"]);
        assert_eq!(shown("10.9.0.5/32,0.0.0.0/0"), ["0.0.0.0/0", "10.9.0.5/32"]);
        assert!(shown("").is_empty());
        let many = |number: usize| {
            let entries: Vec<String> = (0..number).map(|third| format!("10.9.{third}.0/24")).collect();
            entries.join(",")
        };
        assert_eq!(shown(&many(MAX_EXTRA_PREFIXES)).len(), MAX_EXTRA_PREFIXES);
        for (text, message) in [
            ("10.9.0.0/16,", "trunkline.io/extra-prefixes][1]: `` is not a prefix: write one such as"),
            ("10.9.0.0/33", "`10.9.0.0/33` is not a prefix"),
            ("10.9.0.5", "`10.9.0.5` has no length: write 10.9.0.5/32"),
            ("10.9.0.1/16", "10.9.0.1/16 has host bits: write 10.9.0.0/16"),
            ("fd00:9::1/64", "fd00:9::1/64 has host bits: write fd00:9::/64"),
            (
                "127.0.0.1/32",
                "127.0.0.1/32 is in 127.0.0.0/8, and routers do not forward packets \
                from there",
            ),
            ("fe80::/64", "fe80::/64 is in fe80::/10"),
            ("224.0.0.0/4", "224.0.0.0/4 is in 224.0.0.0/3"),
            (&many(MAX_EXTRA_PREFIXES + 1), "[32]: there are more than 32 prefixes"),
        ] {
            let error = read(text).unwrap_err()[0].to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_network_allows_prefixes_within_its_own() {
        let network: Network = serde_json::from_value(serde_json::json!({
            "apiVersion": "v", "kind": "Network", "metadata": {"name": "rack1"},
            "spec": {"config": {"extraPrefixes": ["10.9.0.0/16", "fd00:9::/48"]}},
        }))
        .unwrap();
        let refused = |texts: &[&str]| {
            let prefixes = texts.iter().map(|text| text.parse().unwrap()).collect();
            refused_prefix(&prefixes, &network).map(|(_, words)| words)
        };
        assert_eq!(refused(&["10.9.0.0/16", "10.9.7.0/24", "fd00:9:0:1::/64"]), None);
        assert_eq!(
            refused(&["10.9.0.0/16", "10.8.0.0/15"]).unwrap(),
            "10.8.0.0/15: spec.config.extraPrefixes of Network rack1 allows 10.9.0.0/16, fd00:9::/48: \
             add 10.8.0.0/15 there, or leave it out here"
        );
        assert!(refused(&["::/0"]).is_some() && refused(&["0.0.0.0/0"]).is_some());
    }

    #[test]
    fn retention_global_services_and_ordinals() {
        for (value, default, kept) in [
            ("false", true, false),
            ("0", true, false),
            ("true", false, true),
            ("maybe", true, true),
            ("", false, false),
        ] {
            assert_eq!(retains(&map(&[(annotation::IP_RETAIN, value)]), default), kept, "{value}");
        }
        for (value, global) in [("true", true), ("1", true), ("false", false), ("yes", false), ("", false)] {
            assert_eq!(is_global_service(&map(&[(annotation::GLOBAL_SERVICE, value)])), global, "{value}");
        }
        assert!(!is_global_service(&map(&[])));
        assert_eq!(ordinal("web-12"), Some(12));
        assert_eq!(ordinal("web-x"), None);
        assert_eq!(ordinal("web"), None);
    }
}
