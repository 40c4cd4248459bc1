//! The further interfaces of a pod, which its annotation `networking.alibaba.com/interfaces` lists.
//!
//! ```json
//! [{"name": "net1", "network": "storage"},
//!  {"name": "net2", "subnet": "media-v4/media-v6", "ipFamily": "DualStack",
//!   "addresses": ["10.9.0.7/fd00:9::7"], "defaultRoute": true, "routes": ["10.80.0.0/12"]}]
//! ```
//!
//! The pod's first interface, `eth0`, is not in the list: its network follows from the pod's other
//! annotations. Each interface has its own IPInstances. They record the interface
//! ([`InterfaceSettings`], in the annotation `trunkline.io/interface`), and those of `eth0` record the
//! names of all others (`trunkline.io/other-interfaces`). So the agent needs no pod: it knows from the
//! IPInstances which interfaces belong to the pod.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, annotation_field};
use crate::names::annotation;
use crate::pod::{IpFamily, Pools, SubnetNames};

/// The name of a pod's first interface.
pub const FIRST: &str = "eth0";
/// Maximum number of further interfaces of a pod.
pub const MAX_INTERFACES: usize = 8;
/// Maximum number of routes of one interface.
pub const MAX_ROUTES: usize = 32;
/// Longest name of an interface, in octets (IFNAMSIZ less the terminating zero).
const MAX_NAME: usize = 15;

/// A further interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Interface {
    /// Its name in the pod, `net1`.
    pub name: String,
    /// The Network of its addresses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The Subnets of its addresses, as in the annotation `specified-subnet`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subnet: String,
    /// `IPv4`, `IPv6` or `DualStack`; default: that of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip_family: String,
    /// Its addresses by the pod's ordinal, as in the annotation `ip-pool`. A pod without an ordinal
    /// gets the first entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Its MAC addresses by the pod's ordinal, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
    /// Whether the pod's default route uses this interface and not `eth0`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// Destinations that the pod reaches through this interface, besides the Subnets of its Network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// Whether Multus attaches it, and not the ADD of `eth0`.
    #[serde(skip)]
    pub by_multus: bool,
}

/// Follows the name of an interface that Multus attaches, in the list of [`InterfaceName`]s.
const BY_MULTUS: &str = "/multus";

/// An entry of the annotation `trunkline.io/other-interfaces`: `net1`, or `net1/multus` if Multus
/// attaches the interface. Multus refuses an interface that exists already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceName {
    /// The name.
    pub name: String,
    /// Whether Multus attaches it.
    pub by_multus: bool,
}

impl InterfaceName {
    /// Reads a list.
    pub fn read_list(text: &str) -> Vec<InterfaceName> {
        let entry = |text: &str| match text.strip_suffix(BY_MULTUS) {
            Some(name) => InterfaceName { name: name.to_owned(), by_multus: true },
            None => InterfaceName { name: text.to_owned(), by_multus: false },
        };
        text.split(',').filter(|text| !text.is_empty()).map(entry).collect()
    }

    /// Writes a list.
    pub fn write_list(names: &[InterfaceName]) -> String {
        let entry =
            |name: &InterfaceName| format!("{}{}", name.name, if name.by_multus { BY_MULTUS } else { "" });
        names.iter().map(entry).collect::<Vec<_>>().join(",")
    }
}

/// The settings of an interface that its IPInstances record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSettings {
    /// Its name in the pod.
    pub name: String,
    /// Whether the pod's default route uses this interface.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// Destinations that the pod reaches through it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub routes: BTreeSet<IpNet>,
}

impl Interface {
    /// The settings that its IPInstances record.
    pub fn settings(&self) -> InterfaceSettings {
        InterfaceSettings {
            name: self.name.clone(),
            default_route: self.default_route,
            routes: self.routes.iter().filter_map(|route| route.parse().ok()).collect(),
        }
    }

    /// Its entry in the list of interfaces.
    pub fn listed_name(&self) -> InterfaceName {
        InterfaceName { name: self.name.clone(), by_multus: self.by_multus }
    }

    /// The annotations of a pod that requests the same addresses for its first interface, based on
    /// those of the interface's pod.
    pub fn annotations(&self, pod: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let shared = [annotation::IP_RETAIN, annotation::IP_RETENTION, annotation::EXTRA_PREFIXES];
        let mut all: BTreeMap<String, String> =
            shared.into_iter().filter_map(|name| Some((name.to_owned(), pod.get(name)?.clone()))).collect();
        for (name, value) in [
            (annotation::SPECIFIED_NETWORK, self.network.clone()),
            (annotation::SPECIFIED_SUBNET, self.subnet.clone()),
            (annotation::IP_FAMILY, self.ip_family.clone()),
            (annotation::IP_POOL, self.addresses.join(",")),
            (annotation::MAC_POOL, self.macs.join(",")),
        ] {
            if !value.is_empty() {
                all.insert(name.to_owned(), value);
            }
        }
        all
    }

    /// What is wrong with the interface: the field, and the text.
    fn faults(&self, pod: &str) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Some(message) = name_fault(&self.name) {
            found.push(("name", message));
        }
        if self.network.is_empty() && self.subnet.is_empty() {
            found.push((
                "network",
                "is missing: write the Network of the interface, or its Subnet".to_owned(),
            ));
        }
        if !self.subnet.is_empty()
            && let Err(error) = SubnetNames::read(&self.subnet)
        {
            found.push(("subnet", error.to_string()));
        }
        if !self.ip_family.is_empty() && IpFamily::read(&self.ip_family).is_none() {
            let message =
                format!("`{}` is no family of addresses: write IPv4, IPv6 or DualStack", self.ip_family);
            found.push(("ipFamily", message));
        }
        if self.addresses.iter().chain(&self.macs).any(|entry| entry.is_empty() || entry.contains(',')) {
            found.push((
                "addresses",
                "an entry is empty or has a comma: write one entry for each pod".to_owned(),
            ));
        } else if let Err(faults) = Pools::read(pod, &self.annotations(&BTreeMap::new())) {
            found.extend(faults.into_iter().map(|fault| {
                let is_mac = fault.field.contains(annotation::MAC_POOL);
                (if is_mac { "macs" } else { "addresses" }, fault.message)
            }));
        }
        if self.routes.len() > MAX_ROUTES {
            found.push((
                "routes",
                format!("there are more than {MAX_ROUTES}: write fewer and shorter prefixes"),
            ));
        }
        found.extend(self.routes.iter().filter_map(|route| Some(("routes", route_fault(route)?))));
        found
    }
}

/// What is wrong with a route's destination.
pub(crate) fn route_fault(text: &str) -> Option<String> {
    match text.parse::<IpNet>() {
        Err(_) => Some(format!("`{text}` is not a prefix: write one such as 10.80.0.0/12 or fd00:9::/64")),
        Ok(prefix) if prefix.trunc() != prefix => {
            Some(format!("{prefix} has host bits: write {}", prefix.trunc()))
        }
        Ok(prefix) if prefix.prefix_len() == 0 => {
            Some(format!("{prefix} is the default route: write `defaultRoute: true` in the annotation"))
        }
        Ok(_) => None,
    }
}

fn name_fault(name: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name == FIRST || name == "lo" {
        return Some(format!("`{name}` is in every pod: choose another name, such as net1"));
    }
    let is_valid = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(allowed)
        && name != "."
        && name != "..";
    (!is_valid).then(|| {
        format!(
            "`{name}` is no name of an interface: write at most {MAX_NAME} letters, digits, `-`, `_` or `.`"
        )
    })
}

/// Parses the list of a pod's further interfaces. An absent or empty annotation lists none.
///
/// # Errors
/// The annotation has faults. Each names the entry and the field.
pub fn read(pod: &str, annotations: &BTreeMap<String, String>) -> Result<Vec<Interface>, Vec<Fault>> {
    let Some(text) = annotations.get(annotation::INTERFACES).filter(|text| !text.trim().is_empty()) else {
        return Ok(Vec::new());
    };
    let field = annotation_field(annotation::INTERFACES);
    let interfaces: Vec<Interface> = serde_json::from_str(text).map_err(|error| {
        let message =
            format!("{error}: write a list such as [{{\"name\": \"net1\", \"network\": \"storage\"}}]");
        vec![Fault { kind: "Pod", name: pod.to_owned(), field: field.clone(), message }]
    })?;
    let found = check(pod, &field, &interfaces);
    if found.is_empty() { Ok(interfaces) } else { Err(found) }
}

/// The faults of a pod's further interfaces. `field` is the field that lists them. The entries of a
/// list above [`MAX_INTERFACES`] are not checked.
pub fn check(pod: &str, field: &str, interfaces: &[Interface]) -> Vec<Fault> {
    let fault = |field: String, message: String| Fault { kind: "Pod", name: pod.to_owned(), field, message };
    if interfaces.len() > MAX_INTERFACES {
        let message =
            format!("{} interfaces are listed, and at most {MAX_INTERFACES} are allowed", interfaces.len());
        return vec![fault(field.to_owned(), message)];
    }
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    let mut has_default = false;
    for (index, interface) in interfaces.iter().enumerate() {
        let at = |name: &str| format!("{field}[{index}].{name}");
        found.extend(interface.faults(pod).into_iter().map(|(name, message)| fault(at(name), message)));
        if !names.insert(interface.name.as_str()) {
            found.push(fault(
                at("name"),
                format!("`{}` is listed twice: write each name once", interface.name),
            ));
        }
        if interface.default_route && std::mem::replace(&mut has_default, true) {
            let message = "another interface has the default route already: write it for one interface only";
            found.push(fault(at("defaultRoute"), message.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Interface>, Vec<Fault>> {
        read("p", &BTreeMap::from([(annotation::INTERFACES.to_owned(), text.to_owned())]))
    }

    #[test]
    fn a_list_of_interfaces() {
        let all = parse(
            r#"[{"name": "net1", "network": "storage"},
                {"name": "net2", "subnet": "m4/m6", "ipFamily": "DualStack", "addresses": ["10.9.0.7/fd00:9::7"],
                 "macs": ["02:00:00:00:00:01"], "defaultRoute": true, "routes": ["10.80.0.0/12"]}]"#,
        )
        .unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].settings(), InterfaceSettings { name: "net1".to_owned(), ..Default::default() });
        let settings = serde_json::to_string(&all[1].settings()).unwrap();
        assert_eq!(settings, r#"{"name":"net2","defaultRoute":true,"routes":["10.80.0.0/12"]}"#);
        let pod = BTreeMap::from([
            (annotation::IP_RETENTION.to_owned(), "72h".to_owned()),
            (annotation::SPECIFIED_NETWORK.to_owned(), "rack".to_owned()),
        ]);
        let annotations = all[1].annotations(&pod);
        let expected = [
            (annotation::IP_FAMILY, "DualStack"),
            (annotation::IP_POOL, "10.9.0.7/fd00:9::7"),
            (annotation::MAC_POOL, "02:00:00:00:00:01"),
            (annotation::SPECIFIED_SUBNET, "m4/m6"),
            (annotation::IP_RETENTION, "72h"),
        ];
        assert_eq!(annotations, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(read("p", &BTreeMap::new()).unwrap(), []);
    }

    #[test]
    fn names_say_who_attaches_them() {
        let names = InterfaceName::read_list("net1,data0/multus");
        assert_eq!(
            names.iter().map(|one| (one.name.as_str(), one.by_multus)).collect::<Vec<_>>(),
            [("net1", false), ("data0", true)]
        );
        assert_eq!(InterfaceName::write_list(&names), "net1,data0/multus");
        assert!(InterfaceName::read_list("").is_empty());
    }

    #[test]
    fn faults_name_entry_and_field() {
        let network = r#""network": "storage""#;
        let many: Vec<String> = (0..9).map(|n| format!(r#"{{"name": "n{n}", {network}}}"#)).collect();
        for (text, fault) in [
            ("net1".to_owned(), "interfaces]: expected"),
            (r#"[{"name": "net1", "net": "a"}]"#.to_owned(), "unknown field `net`"),
            (format!(r#"[{{"name": "eth0", {network}}}]"#), "interfaces][0].name: `eth0` is in every pod"),
            (format!(r#"[{{"name": "a/b", {network}}}]"#), "[0].name: `a/b` is no name of an interface"),
            (format!(r#"[{{"name": "sixteen-octets-x", {network}}}]"#), "write at most 15"),
            (r#"[{"name": "net1"}]"#.to_owned(), "[0].network: is missing"),
            (
                r#"[{"name": "net1", "subnet": "a/b/c"}]"#.to_owned(),
                "[0].subnet: `a/b/c` does not name Subnets",
            ),
            (
                format!(r#"[{{"name": "net1", {network}, "ipFamily": "v4"}}]"#),
                "[0].ipFamily: `v4` is no family",
            ),
            (format!(r#"[{{"name": "net1", {network}, "addresses": ["10.0"]}}]"#), "[0].addresses: "),
            (
                format!(r#"[{{"name": "net1", {network}, "addresses": [""]}}]"#),
                "[0].addresses: an entry is empty",
            ),
            (format!(r#"[{{"name": "net1", {network}, "macs": ["02"]}}]"#), "[0].macs: "),
            (
                format!(r#"[{{"name": "net1", {network}, "routes": ["10.0.0.1/8"]}}]"#),
                "has host bits: write 10.0.0.0/8",
            ),
            (format!(r#"[{{"name": "net1", {network}, "routes": ["0.0.0.0/0"]}}]"#), "is the default route"),
            (
                format!(r#"[{{"name": "a", {network}}}, {{"name": "a", {network}}}]"#),
                "[1].name: `a` is listed twice",
            ),
            (
                format!(
                    r#"[{{"name": "a", {network}, "defaultRoute": true}}, {{"name": "b", {network}, "defaultRoute": true}}]"#
                ),
                "[1].defaultRoute: another interface has the default route already",
            ),
            (format!("[{}]", many.join(",")), "9 interfaces are listed, and at most 8"),
        ] {
            let faults = parse(&text).unwrap_err();
            assert!(faults[0].to_string().contains(fault), "{text}: {}", faults[0]);
        }
    }
}
