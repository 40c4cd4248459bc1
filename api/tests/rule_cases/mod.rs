//! Objects for the rules of the CRDs and of `trunkline_api::validate`: valid ones, and edits that make
//! them invalid.
//!
//! Two tests use them. `api/tests/rules.rs` gives them to the Rust rules, and compares the texts of
//! both. The lab's `kube/crds` gives them to a real API server, together with generated ones, and
//! compares its decision with that of the Rust rules.

mod agent_settings;

use agent_settings::{SETTINGS_BAD, SETTINGS_GOOD};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use trunkline_api::names::{GROUP, OWN_GROUP, OWN_VERSION};
use trunkline_api::resources::{
    AgentSettings, AnycastAddress, Network, NodeInfo, ServiceAdvertisement, ServicePool, Subnet,
};
use trunkline_api::validate::{
    Fault, ObjectSource, unsupported_subnet, validate, validate_agent_settings, validate_anycast,
    validate_change, validate_nodes, validate_service_advertisement, validate_service_pool,
    validate_service_pool_change,
};

/// Edits: the path (a JSON pointer in the spec, whose last step may be new), and the value. The
/// value null removes a field.
pub(crate) type Edits = &'static [(&'static str, &'static str)];

pub(crate) struct Base {
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
    /// Edits that the base accepts.
    pub(crate) good: &'static [Edits],
    /// Edits that a creation must not have, with words of the refusal.
    pub(crate) bad: &'static [(Edits, &'static str)],
    /// Changes that are refused, with words of the refusal.
    pub(crate) changes: &'static [(Edits, &'static str)],
}

impl Base {
    /// API group and version.
    pub(crate) fn group_and_version(&self) -> (&'static str, &'static str) {
        group_and_version(self.kind)
    }

    /// Whether there are Rust rules: only the controller writes the other kinds.
    pub(crate) fn has_rust_rules(&self) -> bool {
        !["IPInstance", "ServiceAddress"].contains(&self.kind)
    }
}

fn group_and_version(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "Network" | "Subnet" | "IPInstance" | "NodeInfo" => (GROUP, "v1"),
        _ => (OWN_GROUP, OWN_VERSION),
    }
}

/// The spec with the edits; `None` if one does not fit.
pub(crate) fn edited(spec: &Value, edits: &[(&str, &str)]) -> Option<Value> {
    let mut spec = spec.clone();
    for (pointer, text) in edits {
        let value: Value = serde_json::from_str(text).ok()?;
        let (parent, last) = pointer.rsplit_once('/')?;
        match spec.pointer_mut(parent)? {
            Value::Object(fields) if value.is_null() => drop(fields.remove(last)),
            Value::Object(fields) => drop(fields.insert(last.to_owned(), value)),
            Value::Array(list) => list.push(value),
            _ => return None,
        }
    }
    Some(spec)
}

/// Faults that the CRDs accept, each with the beginning of the field and a part of the message. CEL
/// cannot detect some of them, because they concern a second object or an order of addresses.
/// Objects with the other faults exist in clusters of hybridnet.
const WEBHOOKS_ALONE: &[(&str, &str)] = &[
    ("spec.range.gateway", "missing: a VLAN subnet needs the router on its VLAN"),
    ("spec.netID", "missing here and in Network rack1"),
    ("spec.vtepInfo.localIPs", "is not an address that other nodes can reach"),
    ("spec.vtepInfo.ip", "`` is not an IP address"),
    ("spec.addresses", "has more than 1048576 addresses"),
    ("spec.addresses", "of the same pool"),
    ("spec.addresses", "is after"),
    ("spec.config.vlanInterfaces", "is no regular expression"),
];

/// The faults that the Rust rules find in an object of the base with this spec, or in its change
/// from `old`. If there are none, the Rust rules accept the object.
pub(crate) fn faults(base: &Base, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let found = match base.kind {
        "Network" => of_network(base, spec, old),
        "Subnet" => of_subnet(base, spec, old),
        "NodeInfo" => of_node(base, spec),
        "ServicePool" => of_pool(base, spec, old),
        "ServiceAdvertisement" => read(base.kind, base.name, spec)
            .map(|it: ServiceAdvertisement| validate_service_advertisement(&it).err().unwrap_or_default()),
        "AnycastAddress" => read(base.kind, base.name, spec).map(|it: AnycastAddress| {
            validate_anycast(&it, ObjectSource::ApiServer).err().unwrap_or_default()
        }),
        "AgentSettings" => read(base.kind, base.name, spec)
            .map(|it: AgentSettings| validate_agent_settings(&it).err().unwrap_or_default()),
        other => panic!("there are no Rust rules for {other}"),
    };
    match found {
        Ok(found) => {
            let is_ours = |fault: &&Fault| {
                let is =
                    |field: &str, part: &str| fault.field.starts_with(field) && fault.message.contains(part);
                // CEL cannot count the addresses of a range with one end.
                let counted = spec.pointer("/range/start").or(spec.pointer("/range/end")).is_some()
                    && is("spec.range.cidr", "has more than 65536 addresses");
                !counted && !WEBHOOKS_ALONE.iter().any(|(field, part)| is(field, part))
            };
            found.iter().filter(is_ours).map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
        }
        Err(unreadable) => vec![unreadable.to_string()],
    }
}

fn read<T: DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> serde_json::Result<T> {
    let (group, version) = group_and_version(kind);
    serde_json::from_value(json!({
        "apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec,
    }))
}

fn of_network(base: &Base, spec: &Value, old: Option<&Value>) -> serde_json::Result<Vec<Fault>> {
    let network: Network = read(base.kind, base.name, spec)?;
    let mut found = validate(std::slice::from_ref(&network), &[]).err().unwrap_or_default();
    if let Some(old) = old {
        let old: Network = read(base.kind, base.name, old)?;
        found.extend(validate_change((&[old], &[]), (&[network], &[])).err().unwrap_or_default());
    }
    Ok(found)
}

fn of_subnet(base: &Base, spec: &Value, old: Option<&Value>) -> serde_json::Result<Vec<Fault>> {
    let subnet: Subnet = read(base.kind, base.name, spec)?;
    let network = |name| read("Network", name, &json!({"nodeSelector": {"network": name}}));
    let networks: [Network; 2] = [network("rack1")?, network("rack2")?];
    let mut found = validate(&networks, std::slice::from_ref(&subnet)).err().unwrap_or_default();
    found.extend(unsupported_subnet(&subnet).map(|message| Fault {
        kind: "Subnet",
        name: subnet.name().to_owned(),
        field:
            message.split_whitespace().find(|word| word.starts_with("spec.")).unwrap_or_default().to_owned(),
        message,
    }));
    if let Some(old) = old {
        let old: Subnet = read(base.kind, base.name, old)?;
        let change = validate_change((&networks, &[old]), (&networks, &[subnet]));
        found.extend(change.err().unwrap_or_default());
    }
    Ok(found)
}

fn of_node(base: &Base, spec: &Value) -> serde_json::Result<Vec<Fault>> {
    let node: NodeInfo = read(base.kind, base.name, spec)?;
    let network: Network = read("Network", "overlay", &json!({"type": "Overlay", "netID": 7}))?;
    let range = json!({"version": "4", "cidr": "10.200.0.0/16"});
    let subnet: Subnet = read("Subnet", "pods", &json!({"network": "overlay", "range": range}))?;
    Ok(validate_nodes(&[node], &[network], &[subnet]).err().unwrap_or_default())
}

fn of_pool(base: &Base, spec: &Value, old: Option<&Value>) -> serde_json::Result<Vec<Fault>> {
    let pool: ServicePool = read(base.kind, base.name, spec)?;
    let mut found = validate_service_pool(&pool).err().unwrap_or_default();
    if let Some(old) = old {
        let old: ServicePool = read(base.kind, base.name, old)?;
        found.extend(validate_service_pool_change(&old, &pool).err().unwrap_or_default());
    }
    Ok(found)
}

/// Every base.
pub(crate) fn bases() -> Vec<Base> {
    let mut bases = of_hybridnet();
    bases.extend(own());
    bases
}

fn of_hybridnet() -> Vec<Base> {
    vec![
        Base {
            kind: "Network",
            plural: "networks",
            namespace: None,
            name: "rack1",
            spec: json!({
                "nodeSelector": {"network": "rack1"}, "type": "Underlay", "mode": "BGP", "netID": 65001,
                "config": {"bgpPeers": [{"asn": 65000, "address": "10.0.0.1"}]},
            }),
            good: BGP_GOOD,
            bad: BGP_BAD,
            changes: &[
                (&[("/type", "\"Overlay\"")], "type cannot change"),
                (&[("/mode", "\"VLAN\"")], "mode cannot change"),
                (&[("/mode", "null")], "mode cannot change"),
                (&[("/netID", "65002")], "netID cannot change"),
                (&[("/netID", "null")], "netID cannot change"),
            ],
        },
        Base {
            kind: "Network",
            plural: "networks",
            namespace: None,
            name: "vlan1",
            spec: json!({"nodeSelector": {"network": "rack7"}, "netID": 10}),
            good: &[
                &[("/netID", "null")],
                &[("/netID", "4094")],
                &[("/type", "\"Underlay\""), ("/mode", "\"VLAN\"")],
                &[("/config", r#"{"attachment": "ipvlan"}"#)],
                &[("/config", r#"{"hairpin": true, "attachment": "veth"}"#)],
                &[("/config", r#"{"extraPrefixes": ["10.9.0.0/16", "fd00:9::/64", "0.0.0.0/0"]}"#)],
                &[("/config", r#"{"extraPrefixes": [], "attachment": "ipvlan"}"#)],
            ],
            bad: &[
                (&[("/netID", "4095")], "not a VLAN id"),
                (&[("/netID", "-1")], "spec.netID"),
                (&[("/nodeSelector", "{}")], "nodeSelector is missing"),
                (&[("/nodeSelector", "null")], "nodeSelector is missing"),
                (&[("/type", "\"Other\"")], "spec.type"),
                (&[("/mode", "\"OTHER\"")], "spec.mode"),
                (&[("/mode", "\"VXLAN\"")], "mode does not match the type"),
                (
                    &[("/config", r#"{"bgpPeers": [{"asn": 1, "address": "10.0.0.1"}]}"#)],
                    "the mode is not BGP",
                ),
                (
                    &[("/config", r#"{"hairpin": true, "attachment": "ipvlan"}"#)],
                    "hairpin: the \
                    host sends",
                ),
                (
                    &[("/config", r#"{"extraPrefixes": ["10.9.0.0/16"], "attachment": "ipvlan"}"#)],
                    "extraPrefixes: packets of pods",
                ),
                (
                    &[("/config", r#"{"extraPrefixes": ["10.9.0.1/16"]}"#)],
                    "extraPrefixes: an entry is not a prefix",
                ),
                (
                    &[("/config", r#"{"extraPrefixes": ["fd00:9::1"]}"#)],
                    "extraPrefixes: an entry \
                    is not a prefix",
                ),
                (
                    &[("/config", r#"{"extraPrefixes": ["fe80::/64"]}"#)],
                    "extraPrefixes: routers do not forward packets",
                ),
                (&[("/config", r#"{"gracefulShutdown": {}}"#)], "only a network with peers"),
            ],
            changes: &[(&[("/mode", "\"BGP\"")], "mode cannot change")],
        },
        Base {
            kind: "Network",
            plural: "networks",
            namespace: None,
            name: "overlay",
            spec: json!({"type": "Overlay", "netID": 7}),
            good: &[&[("/netID", "16777215")], &[("/mode", "\"VXLAN\"")]],
            bad: &[
                (&[("/netID", "null")], "needs a VNI"),
                (&[("/netID", "16777216")], "needs a VNI"),
                (&[("/nodeSelector", r#"{"a": "b"}"#)], "selects every node"),
                (&[("/mode", "\"VLAN\"")], "mode does not match the type"),
                (&[("/config", r#"{"attachment": "ipvlan"}"#)], "ipvlan attaches pods to a VLAN"),
                (&[("/config", r#"{"hairpin": true}"#)], "no switch sends packets back"),
            ],
            changes: &[(&[("/type", "\"GlobalBGP\""), ("/netID", "null")], "type cannot change")],
        },
        Base {
            kind: "Network",
            plural: "networks",
            namespace: None,
            name: "global",
            spec: json!({"type": "GlobalBGP"}),
            good: &[&[("/mode", "\"GlobalBGP\"")]],
            bad: &[(&[("/netID", "65001")], "each node has its Underlay network's AS number")],
            changes: &[],
        },
        Base {
            kind: "Subnet",
            plural: "subnets",
            namespace: None,
            name: "pods",
            spec: json!({"network": "rack1", "netID": 10, "range": {
                "version": "4", "cidr": "10.14.0.0/24", "start": "10.14.0.10", "end": "10.14.0.200", "gateway": "10.14.0.1",
                "reservedIPs": ["10.14.0.20"], "excludeIPs": ["10.14.0.30", "10.14.0.31"],
            }}),
            good: SUBNET_GOOD,
            bad: SUBNET_BAD,
            changes: SUBNET_CHANGES,
        },
        Base {
            kind: "IPInstance",
            plural: "ipinstances",
            namespace: Some("default"),
            name: "10-14-0-7",
            spec: json!({"network": "rack1", "subnet": "pods",
                "address": {"version": "4", "ip": "10.14.0.7/24", "mac": "02:12:34:00:00:01", "netID": null}, "binding": {}}),
            good: &[&[("/binding", r#"{"nodeName": "n1", "stateful": {"index": 0}}"#)]],
            bad: &[
                (&[("/address/ip", "\"10.14.0.7\"")], "address.ip is not an address"),
                (&[("/address/version", "\"6\"")], "address.ip is not an address"),
                (&[("/network", "\"\"")], "spec.network"),
            ],
            changes: &[
                (&[("/network", "\"rack2\"")], "network and subnet of an allocated address"),
                (&[("/subnet", "\"pods2\"")], "network and subnet of an allocated address"),
                (&[("/address/ip", "\"10.14.0.8/24\"")], "address.ip cannot change"),
            ],
        },
        Base {
            kind: "NodeInfo",
            plural: "nodeinfoes",
            namespace: None,
            name: "node1",
            spec: json!({"vtepInfo": {"ip": "10.1.0.1", "localIPs": ["10.1.0.1", "fe80::1"]}, "config": {"podCIDRs": ["10.200.1.0/24"]}}),
            good: &[
                &[("/vtepInfo", "null")],
                &[("/vtepInfo/ip", "\"\"")],
                &[("/vtepInfo/ip", "\"2001:db8::1\"")],
            ],
            bad: &[
                (
                    &[("/vtepInfo/ip", "\"node1\"")],
                    "ip is not an address that other nodes can \
                    reach",
                ),
                (
                    &[("/vtepInfo/ip", "\"127.0.0.1\"")],
                    "ip is not an address that other nodes can \
                    reach",
                ),
                (
                    &[("/vtepInfo/localIPs", r#"["10.1.0.1", "x"]"#)],
                    "localIPs: an entry is not an \
                    address",
                ),
                (
                    &[("/config/podCIDRs", r#"["10.200.1.1/24"]"#)],
                    "podCIDRs: an entry is not a \
                    prefix",
                ),
            ],
            changes: &[],
        },
    ]
}

fn own() -> Vec<Base> {
    vec![
        Base {
            kind: "ServicePool",
            plural: "servicepools",
            namespace: None,
            name: "public",
            spec: json!({"addresses": ["192.0.2.0/25", "192.0.2.128-192.0.2.200", "2001:db8:5::/112"]}),
            good: POOL_GOOD,
            bad: POOL_BAD,
            changes: &[(&[("/mode", "\"L2\""), ("/l2", r#"{"network": "vlan1"}"#)], "mode cannot change")],
        },
        Base {
            kind: "ServicePool",
            plural: "servicepools",
            namespace: None,
            name: "vlan",
            spec: json!({"addresses": ["10.14.0.240/28"], "mode": "L2", "l2": {"network": "vlan1"}}),
            good: &[&[("/autoAssign", "false")]],
            bad: &[
                (&[("/l2", "null")], "l2 is missing"),
                (&[("/l2/network", "\"\"")], "spec.l2.network"),
                (&[("/mode", "\"BGP\"")], "l2: the mode is BGP"),
                (&[("/mode", "null")], "l2: the mode is BGP"),
            ],
            changes: &[(&[("/mode", "null"), ("/l2", "null")], "mode cannot change")],
        },
        Base {
            kind: "ServiceAddress",
            plural: "serviceaddresses",
            namespace: None,
            name: "192-0-2-7",
            spec: json!({"address": "192.0.2.7", "pool": "public", "services": [{"namespace": "default", "name": "web", "uid": "u1"}]}),
            good: &[
                &[("/address", "\"2001:db8:5::7\"")],
                &[
                    ("/sharingKey", "\"web\""),
                    ("/services/-", r#"{"namespace": "default", "name": "api", "uid": "u2"}"#),
                ],
            ],
            bad: &[
                (&[("/address", "\"192.0.2.7/32\"")], "address is not an address"),
                (&[("/pool", "\"\"")], "spec.pool"),
                (&[("/services", "[]")], "services is empty"),
                (
                    &[("/services/-", r#"{"namespace": "default", "name": "api", "uid": "u2"}"#)],
                    "sharingKey is missing",
                ),
                (&[("/services/-", r#"{"namespace": "default", "name": "api"}"#)], "services[1].uid"),
            ],
            changes: &[(&[("/address", "\"192.0.2.8\"")], "address cannot change")],
        },
        Base {
            kind: "ServiceAdvertisement",
            plural: "serviceadvertisements",
            namespace: None,
            name: "external",
            spec: json!({"addresses": ["LoadBalancer", "External"], "externalCIDRs": ["198.51.100.0/24"], "peers": ["10.0.0.1"]}),
            good: ADVERTISEMENT_GOOD,
            bad: ADVERTISEMENT_BAD,
            changes: &[],
        },
        Base {
            kind: "AnycastAddress",
            plural: "anycastaddresses",
            namespace: None,
            name: "dns",
            spec: json!({"addresses": ["10.0.0.53", "fd00::53"], "check": {"tcp": {"port": 53}}}),
            good: ANYCAST_GOOD,
            bad: ANYCAST_BAD,
            changes: &[],
        },
        Base {
            kind: "AgentSettings",
            plural: "agentsettings",
            namespace: None,
            name: "gpu",
            spec: json!({
                "nodeSelector": {"matchLabels": {"pool": "gpu"}},
                "config": {
                    "podMTU": 1400, "vlanInterfaces": ["bond0"], "vxlanInterfaces": ["eth0"],
                    "serviceCIDRs": ["10.96.0.0/12"], "vtepAddressCIDRs": ["10.1.0.0/16"],
                    "vtepLocalAddressCIDRs": [], "probes": {"targets": []},
                },
            }),
            good: SETTINGS_GOOD,
            bad: SETTINGS_BAD,
            changes: &[],
        },
    ]
}

const POOL_GOOD: &[Edits] = &[
    &[("/addresses", r#"["192.0.2.7"]"#)],
    &[("/addresses/-", "\"203.0.113.1-203.0.113.1\"")],
    &[("/addresses/-", "\"2001:db8::/32\"")],
    &[("/exclude", r#"["192.0.2.1", "192.0.2.4-192.0.2.6", "192.0.2.16/28", "198.51.100.0/24"]"#)],
    &[("/excludeZeroAnd255", "true"), ("/autoAssign", "false"), ("/priority", "0")],
    &[("/priority", "1000"), ("/mode", "\"BGP\"")],
    &[("/serviceSelectors", r#"[{}, {"matchLabels": {"tier": "gold"}}]"#)],
    &[(
        "/namespaceSelectors",
        r#"[{"matchExpressions": [{"key": "a.example.com/b", "operator": "NotIn", "values": ["c", ""]}, {"key": "d", "operator": "Exists"}]}]"#,
    )],
];

const POOL_BAD: &[(Edits, &str)] = &[
    (&[("/addresses", "null")], "spec.addresses"),
    (&[("/addresses", "[]")], "addresses is empty"),
    (&[("/addresses/-", "\"192.0.2.1/25\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"192.0.2.300\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"192.0.2.1-\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"192.0.2.1-192.0.2.2-192.0.2.3\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"192.0.2.1-2001:db8::1\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"::ffff:192.0.2.1\"")], "addresses: an entry is not a block"),
    (&[("/addresses/-", "\"127.0.0.0/24\"")], "addresses: an entry overlaps"),
    (&[("/addresses/-", "\"::/0\"")], "addresses: an entry overlaps"),
    (&[("/addresses/-", "\"169.254.1.1\"")], "addresses: an entry overlaps"),
    (&[("/addresses/-", "\"223.255.255.250-224.0.0.1\"")], "addresses: an entry overlaps"),
    (&[("/exclude", r#"["192.0.2.1/25"]"#)], "exclude: an entry is not a block"),
    (&[("/exclude", r#"["web"]"#)], "exclude: an entry is not a block"),
    (&[("/priority", "1001")], "spec.priority"),
    (&[("/priority", "-1")], "spec.priority"),
    (&[("/mode", "\"ARP\"")], "spec.mode"),
    (&[("/mode", "\"L2\"")], "l2 is missing"),
    (&[("/l2", r#"{"network": "vlan1"}"#)], "l2: the mode is BGP"),
    (
        &[("/serviceSelectors", r#"[{"matchExpressions": [{"key": "a", "operator": "In"}]}]"#)],
        "In and NotIn need at least one value",
    ),
    (
        &[(
            "/namespaceSelectors",
            r#"[{}, {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}]"#,
        )],
        "Exists and DoesNotExist",
    ),
    (
        &[("/serviceSelectors", r#"[{"matchExpressions": [{"key": "", "operator": "Exists"}]}]"#)],
        "matchExpressions[0].key",
    ),
];

const ADVERTISEMENT_GOOD: &[Edits] = &[
    &[("/addresses", "null"), ("/externalCIDRs", "null")],
    &[("/addresses", "[]"), ("/externalCIDRs", "[]")],
    &[("/addresses", r#"["External", "Cluster", "LoadBalancer"]"#)],
    &[("/serviceSelector", r#"{"matchLabels": {"a": "b"}}"#), ("/namespaceSelector", "{}")],
    &[("/nodeSelector", r#"{"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}"#)],
    &[("/pools", r#"["public"]"#), ("/cordonedNodes", "\"Withdraw\""), ("/excludedNodes", "\"Advertise\"")],
    &[("/peers/-", "\"fe80::1%eth1\""), ("/peers/-", "\"eth2\""), ("/peers/-", "\"10.1.0.0/24\"")],
    &[("/communities", r#"["65000:100", "0:0", "65535:65535", "no-export", "no-export-subconfed"]"#)],
    &[("/largeCommunities", r#"["4294967295:0:7"]"#), ("/localPreference", "200"), ("/prepend", "16")],
    &[("/extendedCommunities", r#"["rt:65000:100", "soo:10.0.0.1:7", "rt:65000L:1", "0x4004fde849742400"]"#)],
    &[("/aggregationLength", r#"{"ipv4": 8, "ipv6": 16}"#)],
    &[("/aggregationLength", r#"{"ipv4": 32, "ipv6": 128}"#), ("/weights", "\"LocalEndpoints\"")],
    &[("/gracefulShutdownSeconds", "0")],
    &[("/gracefulShutdownSeconds", "3600")],
];

const ADVERTISEMENT_BAD: &[(Edits, &str)] = &[
    (&[("/addresses/-", "\"External\"")], "addresses: a kind occurs twice"),
    (&[("/addresses/-", "\"NodePort\"")], "spec.addresses[2]"),
    (&[("/externalCIDRs", "null")], "externalCIDRs is missing"),
    (&[("/externalCIDRs", "[]")], "externalCIDRs is missing"),
    (&[("/addresses", "null")], "externalCIDRs: addresses does not list External"),
    (&[("/addresses", r#"["Cluster"]"#)], "externalCIDRs: addresses does not list External"),
    (&[("/externalCIDRs/-", "\"192.0.2.1/24\"")], "externalCIDRs: an entry is not a prefix"),
    (&[("/externalCIDRs/-", "\"192.0.2.1\"")], "externalCIDRs: an entry is not a prefix"),
    (&[("/externalCIDRs/-", "\"0.0.0.0/0\"")], "externalCIDRs: an entry overlaps"),
    (&[("/externalCIDRs/-", "\"fe80::/64\"")], "externalCIDRs: an entry overlaps"),
    (&[("/pools", r#"[""]"#)], "spec.pools[0]"),
    (&[("/peers/-", "\"\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"fe80::1\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"10.0.0.1%eth1\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"224.0.0.5\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"10.1.0.1/24\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"an-interface-name\"")], "peers: an entry is not a peer"),
    (&[("/peers/-", "\"a:b\"")], "peers: an entry is not a peer"),
    (&[("/communities", r#"["65536:1"]"#)], "communities: an entry is not a community"),
    (&[("/communities", r#"["No-Export"]"#)], "communities: an entry is not a community"),
    (&[("/communities", r#"["1:2:3"]"#)], "communities: an entry is not a community"),
    (&[("/largeCommunities", r#"["1:2"]"#)], "largeCommunities: an entry is not a large"),
    (&[("/largeCommunities", r#"["1:2:4294967296"]"#)], "largeCommunities: an entry is not a large"),
    (&[("/extendedCommunities", r#"["target:1:2"]"#)], "extendedCommunities: an entry is not an extended"),
    (&[("/extendedCommunities", r#"["0x40"]"#)], "extendedCommunities: an entry is not an extended"),
    (&[("/localPreference", "4294967296")], "spec.localPreference"),
    (&[("/prepend", "17")], "spec.prepend"),
    (&[("/aggregationLength", r#"{"ipv4": 7}"#)], "spec.aggregationLength.ipv4"),
    (&[("/aggregationLength", r#"{"ipv6": 129}"#)], "spec.aggregationLength.ipv6"),
    (
        &[("/aggregationLength", r#"{"ipv4": 24}"#), ("/weights", "\"LocalEndpoints\"")],
        "weights: the endpoints",
    ),
    (&[("/weights", "\"All\"")], "spec.weights"),
    (&[("/cordonedNodes", "\"Ignore\"")], "spec.cordonedNodes"),
    (&[("/gracefulShutdownSeconds", "3601")], "spec.gracefulShutdownSeconds"),
    (
        &[("/serviceSelector", r#"{"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}"#)],
        "In and NotIn need at least one value",
    ),
    (
        &[("/namespaceSelector", r#"{"matchExpressions": [{"key": "a", "operator": "In"}]}"#)],
        "In and NotIn need at least one value",
    ),
    (
        &[(
            "/nodeSelector",
            r#"{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}"#,
        )],
        "Exists and DoesNotExist",
    ),
];

const ANYCAST_GOOD: &[Edits] = &[
    &[("/check", "null")],
    &[("/addresses", r#"["10.0.0.53"]"#), ("/keepLast", "true")],
    &[("/nodeSelector", r#"{"matchLabels": {"a": "b"}}"#), ("/peers", r#"["eth1"]"#)],
    &[("/communities", r#"["65000:100"]"#), ("/largeCommunities", r#"["1:2:3"]"#), ("/prepend", "1")],
    &[("/check", r#"{"http": {"port": 80}}"#)],
    &[(
        "/check",
        r#"{"http": {"port": 65535, "path": "/healthz?a=b", "host": "dns.example.com", "expectedStatus": "204"}}"#,
    )],
    &[(
        "/check",
        r#"{"https": {"port": 443, "caFile": "/etc/ca.pem", "expectedStatus": "200-299"}, "connectTo": "127.0.0.1"}"#,
    )],
    &[("/check", r#"{"https": {"port": 443, "insecureSkipVerify": true}}"#)],
    &[("/check", r#"{"grpc": {"port": 8080, "service": "dns"}, "rise": 1, "fall": 100}"#)],
    &[("/check/intervalMilliseconds", "50"), ("/check/timeoutMilliseconds", "50")],
    &[("/check/timeoutMilliseconds", "1000")],
    &[("/check/intervalMilliseconds", "60000"), ("/check/timeoutMilliseconds", "60000")],
];

const ANYCAST_BAD: &[(Edits, &str)] = &[
    (&[("/addresses", "[]")], "addresses is empty"),
    (&[("/addresses/-", "\"10.0.0.0/24\"")], "addresses: an entry is not an address"),
    (&[("/addresses/-", "\"dns\"")], "addresses: an entry is not an address"),
    (&[("/addresses/-", "\"127.0.0.53\"")], "addresses: no fabric routes"),
    (&[("/addresses/-", "\"ff02::1\"")], "addresses: no fabric routes"),
    (&[("/addresses/-", "\"FD00::53\"")], "addresses: an address occurs twice"),
    (&[("/peers", r#"["10.1.0.1/24"]"#)], "peers: an entry is not a peer"),
    (&[("/communities", r#"["1"]"#)], "communities: an entry is not a community"),
    (&[("/largeCommunities", r#"["1:2"]"#)], "largeCommunities: an entry is not a large"),
    (&[("/prepend", "17")], "spec.prepend"),
    (&[("/gracefulShutdownSeconds", "3601")], "spec.gracefulShutdownSeconds"),
    (
        &[("/nodeSelector", r#"{"matchExpressions": [{"key": "a", "operator": "In"}]}"#)],
        "In and NotIn need at least one value",
    ),
    (&[("/check", "{}")], "http: write exactly one of"),
    (&[("/check/http", r#"{"port": 80}"#)], "http: write exactly one of"),
    (&[("/check", r#"{"command": ["/bin/true"]}"#)], "command: the agent runs it as root"),
    (&[("/check/tcp/port", "0")], "spec.check.tcp.port"),
    (&[("/check/tcp/port", "65536")], "spec.check.tcp.port"),
    (&[("/check", r#"{"grpc": {"port": 0}}"#)], "spec.check.grpc.port"),
    (&[("/check/connectTo", "\"localhost\"")], "connectTo is not an address"),
    (&[("/check/intervalMilliseconds", "49")], "spec.check.intervalMilliseconds"),
    (&[("/check/timeoutMilliseconds", "1001")], "timeoutMilliseconds is above the interval"),
    (
        &[("/check/intervalMilliseconds", "100"), ("/check/timeoutMilliseconds", "101")],
        "timeoutMilliseconds is above the interval",
    ),
    (&[("/check/rise", "0")], "spec.check.rise"),
    (&[("/check/fall", "101")], "spec.check.fall"),
    (&[("/check", r#"{"http": {"port": 80, "path": "healthz"}}"#)], "path: the value is not the path"),
    (&[("/check", r#"{"https": {"port": 80, "path": "/a b"}}"#)], "path: the value is not the path"),
    (&[("/check", r#"{"http": {"port": 80, "host": "a b"}}"#)], "host: the value is not a name"),
    (&[("/check", r#"{"https": {"port": 80, "host": "a/b"}}"#)], "host: the value is not a name"),
    (&[("/check", r#"{"http": {"port": 80, "expectedStatus": "2xx"}}"#)], "expectedStatus is not"),
    (&[("/check", r#"{"https": {"port": 80, "expectedStatus": "299-200"}}"#)], "expectedStatus is not"),
    (&[("/check", r#"{"http": {"port": 80, "caFile": "/etc/ca.pem"}}"#)], "HTTP has no certificates"),
    (&[("/check", r#"{"http": {"port": 80, "insecureSkipVerify": true}}"#)], "HTTP has no certificates"),
    (&[("/check", r#"{"https": {"port": 443, "caFile": "ca.pem"}}"#)], "caFile is not an absolute path"),
    (
        &[("/check", r#"{"https": {"port": 443, "caFile": "/etc/ca.pem", "insecureSkipVerify": true}}"#)],
        "insecureSkipVerify: no certificate is checked",
    ),
];

const BGP_GOOD: &[Edits] = &[
    &[("/netID", "4294967295")],
    &[("/type", "null")],
    &[("/config/bgpPeers/0/asn", "4294967295")],
    &[("/config/bgpPeers/0/address", "\"2001:db8::1\"")],
    &[("/config/bgpPeers/0/address", "\"169.254.0.1\"")],
    &[("/config/bgpPeers/0/address", "\"fe80::1%eth1\"")],
    &[("/config/bgpPeers/0/address", "null"), ("/config/bgpPeers/0/interface", "\"eth1\"")],
    &[
        ("/config/bgpPeers/0/address", "\"\""),
        ("/config/bgpPeers/0/prefix", "\"10.1.0.0/24\""),
        ("/config/bgpPeers/0/limit", "5"),
    ],
    &[("/config/bgpPeers/-", r#"{"asn": 65000, "address": "10.0.0.2", "password": "a"}"#)],
    &[("/config/bgpPeers/0/passwordFile", "\"/etc/key\"")],
    &[("/config/bgpPeers/0/passwordSecretRef", r#"{"name": "tor", "namespace": "a", "key": "rack1"}"#)],
    &[("/config/bgpPeers/0/holdTimeSeconds", "0")],
    &[("/config/bgpPeers/0/holdTimeSeconds", "9"), ("/config/bgpPeers/0/keepaliveSeconds", "3")],
    &[("/config/bgpPeers/0/longLivedStaleSeconds", "60")],
    &[("/config/bgpPeers/0/longLivedStaleSeconds", r#"{"ipv4": 60, "ipv6": 600}"#)],
    &[(
        "/config/bgpPeers/0/import",
        r#"{"rules": [{"communities": ["65000:1"], "action": "accept"}, {"communities": {"allOf": ["65000:2"]}, "action": "reject"}]}"#,
    )],
    &[
        ("/config/bgpPeers/0/asn", "65001"),
        ("/config/bgpPeers/0/routeReflectorClient", "true"),
        ("/config/bgpPeers/0/nextHopSelf", "true"),
    ],
    &[("/config/bgpPeers/0/localRole", "\"customer\""), ("/config/bgpPeers/0/localRoleStrict", "true")],
    &[("/config/bgpPeers/0/localAs", r#"{"asn": 65002}"#), ("/config/bgpPeers/0/removePrivateAs", "{}")],
    &[("/config/bgpPeers/0/addPath", r#"{"send": 2}"#), ("/config/bgpPeers/0/bfd", "{}")],
    &[("/config/hairpin", "true"), ("/config/gracefulShutdown", "{}")],
];

const BGP_BAD: &[(Edits, &str)] = &[
    (&[("/netID", "null")], "needs the AS number of the nodes"),
    (&[("/netID", "0")], "needs the AS number of the nodes"),
    (&[("/netID", "23456")], "needs the AS number of the nodes"),
    (&[("/netID", "4294967296")], "spec.netID"),
    (&[("/config", "null")], "needs at least one router"),
    (&[("/config/bgpPeers", "[]")], "needs at least one router"),
    (&[("/config/bgpPeers/0/asn", "0")], "bgpPeers[0].asn"),
    (&[("/config/bgpPeers/0/asn", "null")], "bgpPeers[0].asn"),
    (&[("/config/bgpPeers/0/asn", "4294967296")], "bgpPeers[0].asn"),
    (&[("/config/bgpPeers/0/asn", "23456")], "asn: 23456 is AS_TRANS"),
    (&[("/config/bgpPeers/0/address", "null")], "address: write exactly one of"),
    (&[("/config/bgpPeers/0/interface", "\"eth1\"")], "address: write exactly one of"),
    (&[("/config/bgpPeers/0/address", "\"tor1\"")], "address is not an address of a router"),
    (&[("/config/bgpPeers/0/address", "\"224.0.0.5\"")], "address is not an address of a router"),
    (&[("/config/bgpPeers/0/address", "\"fe80::1\"")], "address is not an address of a router"),
    (
        &[("/config/bgpPeers/0/address", "\"10.0.0.1%eth1\"")],
        "only an IPv6 link-local address has an interface",
    ),
    (
        &[("/config/bgpPeers/0/address", "\"fe80::1%\"")],
        "only an IPv6 link-local address has an \
        interface",
    ),
    (
        &[("/config/bgpPeers/-", r#"{"asn": 65000, "address": "10.0.0.1"}"#)],
        "two peers have the \
        same address",
    ),
    (
        &[("/config/bgpPeers/0/address", "null"), ("/config/bgpPeers/0/prefix", "\"10.1.0.1/24\"")],
        "prefix: the value is not a prefix",
    ),
    (&[("/config/bgpPeers/0/limit", "5")], "limit is the highest number of neighbours"),
    (
        &[
            ("/config/bgpPeers/0/address", "null"),
            ("/config/bgpPeers/0/prefix", "\"10.1.0.0/24\""),
            ("/config/bgpPeers/0/port", "179"),
        ],
        "port: neighbours from a prefix connect",
    ),
    (
        &[
            ("/config/bgpPeers/0/address", "null"),
            ("/config/bgpPeers/0/interface", "\"eth1\""),
            ("/config/bgpPeers/0/sourceAddress", "\"10.0.0.2\""),
        ],
        "sourceAddress: a session of an unnumbered peer",
    ),
    (
        &[
            ("/config/bgpPeers/0/address", "null"),
            ("/config/bgpPeers/0/interface", "\"eth1\""),
            ("/config/bgpPeers/0/ebgpMultihop", "2"),
        ],
        "ebgpMultihop: an unnumbered peer",
    ),
    (&[("/config/bgpPeers/0/sourceAddress", "\"here\"")], "sourceAddress is not an address"),
    (
        &[("/config/bgpPeers/0/password", "\"a\""), ("/config/bgpPeers/0/passwordFile", "\"/k\"")],
        "password: write only one of",
    ),
    (
        &[
            ("/config/bgpPeers/0/passwordFile", "\"/k\""),
            ("/config/bgpPeers/0/passwordSecretRef", r#"{"name": "a", "key": "b"}"#),
        ],
        "password: write only one of",
    ),
    (&[("/config/bgpPeers/0/passwordFile", "\"k\"")], "passwordFile is not an absolute path"),
    (&[("/config/bgpPeers/0/passwordSecretRef", r#"{"name": "a", "key": "b/c"}"#)], "passwordSecretRef.key"),
    (&[("/config/bgpPeers/0/passwordSecretRef", r#"{"name": "a"}"#)], "passwordSecretRef.key"),
    (&[("/config/bgpPeers/0/holdTimeSeconds", "2")], "holdTimeSeconds is not a Hold Time"),
    (&[("/config/bgpPeers/0/keepaliveSeconds", "31")], "keepaliveSeconds is not from 1"),
    (&[("/config/bgpPeers/0/gracefulRestartSeconds", "4096")], "bgpPeers[0].gracefulRestartSeconds"),
    (
        &[("/config/bgpPeers/0/ebgpMultihop", "2"), ("/config/bgpPeers/0/ttlSecurity", "2")],
        "ttlSecurity and ebgpMultihop exclude",
    ),
    (&[("/config/bgpPeers/0/localRoleStrict", "true")], "localRoleStrict has no effect"),
    (&[("/config/bgpPeers/0/localAs", r#"{"asn": 65000}"#)], "localAs is the peer's own"),
    (&[("/config/bgpPeers/0/localAs", r#"{"asn": 65001}"#)], "localAs: only for external peers"),
    (&[("/config/bgpPeers/0/addPath", "{}")], "addPath has no effect"),
    (&[("/config/bgpPeers/0/addPath", r#"{"send": 256}"#)], "bgpPeers[0].addPath.send"),
    (&[("/config/bgpPeers/0/bfd", r#"{"intervalMilliseconds": 9}"#)], "bfd.intervalMilliseconds"),
    (
        &[("/config/bgpPeers/0/routeReflectorClient", "true")],
        "only peers of the network's own AS are clients",
    ),
    (&[("/config/bgpPeers/0/nextHopSelf", "true")], "nextHopSelf: an external peer"),
    (
        &[("/config/bgpPeers/0/asn", "65001"), ("/config/bgpPeers/0/nextHopUnchanged", "true")],
        "nextHopUnchanged: an internal peer",
    ),
    (
        &[("/config/bgpPeers/0/asn", "65001"), ("/config/bgpPeers/0/removePrivateAs", "{}")],
        "removePrivateAs: internal peers",
    ),
    (
        &[("/config/bgpPeers/0/asn", "65001"), ("/config/bgpPeers/0/localRole", "\"peer\"")],
        "localRole: a role is between two ASes",
    ),
    (&[("/config/hairpin", "true"), ("/config/bgpPeers/0/import", "{}")], "bgpPeers[].import: with hairpin"),
];

const SUBNET_GOOD: &[Edits] = &[
    &[("/config", r#"{"disabled": true, "allowedNamespaces": ["team-a", "b"], "retention": "72h"}"#)],
    &[("/config", r#"{"disabled": null, "allowedNamespaces": null, "retention": ""}"#)],
    &[("/config", r#"{"retention": "never"}"#)],
    &[(
        "/config",
        r#"{"routes": ["10.80.0.0/12", "fd00:9::/64"], "dns": {"nameservers": ["10.0.0.53", "fd00::53"], "domain": "a.example", "search": ["example"], "options": ["ndots:2"]}}"#,
    )],
    &[("/config", r#"{"routes": null, "dns": {}}"#)],
    &[("/netID", "null")],
    &[("/range", r#"{"version": "4", "cidr": "10.14.0.0/16"}"#)],
    &[(
        "/range",
        r#"{"version": "6", "cidr": "2001:db8::/112", "gateway": "2001:db8::1", "start": "", "end": ""}"#,
    )],
    &[(
        "/range",
        r#"{"version": "6", "cidr": "2001:db8::/64", "start": "2001:db8::10", "end": "2001:db8::20"}"#,
    )],
    &[("/config", r#"{"private": true, "autoNatOutgoing": false}"#)],
    &[("/config", r#"{"gatewayType": "", "gatewayNode": "", "allowSubnets": []}"#)],
];

const SUBNET_BAD: &[(Edits, &str)] = &[
    (&[("/config", r#"{"allowedNamespaces": ["team-a", "Team"]}"#)], "allowedNamespaces: an entry"),
    (&[("/config", r#"{"allowedNamespaces": ["a.b"]}"#)], "allowedNamespaces: an entry"),
    (&[("/config", r#"{"allowedNamespaces": [""]}"#)], "allowedNamespaces: an entry"),
    (&[("/config", r#"{"routes": ["10.80.0.1/12"]}"#)], "routes: an entry"),
    (&[("/config", r#"{"routes": ["10.80.0.1"]}"#)], "routes: an entry"),
    (&[("/config", r#"{"routes": ["::/0"]}"#)], "routes: an entry"),
    (&[("/config", r#"{"dns": {"nameservers": ["dns.example"]}}"#)], "dns.nameservers: an entry"),
    (&[("/config", r#"{"retention": "72"}"#)], "retention is neither a time nor `never`"),
    (&[("/config", r#"{"retention": "00h"}"#)], "retention is neither a time nor `never`"),
    (&[("/config", r#"{"retention": "1h30m"}"#)], "retention is neither a time nor `never`"),
    (&[("/network", "\"\"")], "spec.network"),
    (&[("/range/cidr", "\"10.14.0.0\"")], "cidr is not a prefix with its length"),
    (&[("/range/cidr", "\"10.14.0.1/24\"")], "cidr has host bits"),
    (&[("/range/version", "\"6\"")], "version does not match cidr"),
    (&[("/range/version", "\"5\"")], "spec.range.version"),
    (&[("/range", r#"{"version": "4", "cidr": "10.14.0.1/32"}"#)], "cidr is a single address"),
    (&[("/range", r#"{"version": "4", "cidr": "127.1.0.0/24"}"#)], "that no fabric routes"),
    (
        &[("/range", r#"{"version": "6", "cidr": "fe80::/64", "start": "fe80::1"}"#)],
        "that no \
        fabric routes",
    ),
    (&[("/range", r#"{"version": "4", "cidr": "10.0.0.0/8"}"#)], "more than 65536 addresses"),
    (&[("/range", r#"{"version": "6", "cidr": "2001:db8::/64"}"#)], "more than 65536 addresses"),
    (&[("/range/start", "\"10.15.0.1\"")], "start is not an address of cidr"),
    (&[("/range/end", "\"10.14.0\"")], "end is not an address of cidr"),
    (&[("/range/gateway", "\"10.14.1.1\"")], "gateway is not an address of cidr"),
    (&[("/range/reservedIPs", r#"["10.14.0.20", "10.15.0.20"]"#)], "reservedIPs: an entry is not"),
    (&[("/range/excludeIPs", r#"["x"]"#)], "excludeIPs: an entry is not"),
    (&[("/config", r#"{"gatewayType": "l3"}"#)], "gatewayType is not supported: leave it out"),
    (&[("/config", r#"{"gatewayNode": "node1"}"#)], "gatewayNode is not supported: leave it out"),
    (
        &[("/config", r#"{"private": true, "allowSubnets": ["other"]}"#)],
        "allowSubnets is not supported: leave it out",
    ),
];

const SUBNET_CHANGES: &[(Edits, &str)] = &[
    (&[("/network", "\"rack2\"")], "network cannot change"),
    (&[("/netID", "11")], "netID cannot change"),
    (&[("/range/cidr", "\"10.14.0.0/23\"")], "cidr cannot change"),
    (&[("/range/start", "\"10.14.0.11\"")], "start cannot change"),
    (&[("/range/end", "null")], "end cannot change"),
    (&[("/range/gateway", "\"10.14.0.2\"")], "gateway cannot change"),
    (&[("/range/excludeIPs", r#"["10.14.0.30"]"#)], "excludeIPs cannot change"),
    (&[("/config", r#"{"allowSubnets": ["other"]}"#)], "allowSubnets is not supported: leave it out"),
];
