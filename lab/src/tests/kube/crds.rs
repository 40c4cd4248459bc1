//! The CRDs on a real API server: it accepts them and hybridnet users' objects, and each of their
//! rules refuses its fault.
//!
//! A case is a valid base object, and edits that make it invalid in one way. Cases about changes
//! are patches of the stored base, the others are creations; all are dry runs. The server's text
//! must contain the rule's message. At the end every rule of `api/src/kube/rules.rs` must have
//! refused something: a new rule without a case fails the test.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use trunkline_api::kube::{crds, manifests, rules};

use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/crds",
    about: "the CRDs on a real API server: hybridnet's manifests unchanged, each rule accepted and refused",
    run: on_a_server,
}];

/// hybridnet's manifests as users write them, and as its server returns them.
const DOCUMENTED: &[(&str, &str)] = &[
    ("bgp-sample", include_str!("../../../../api/tests/fixtures/bgp-sample.yaml")),
    ("bgp-documented", include_str!("../../../../api/tests/fixtures/bgp-documented.yaml")),
    ("vlan", include_str!("../../../../api/tests/fixtures/vlan.yaml")),
    ("vxlan", include_str!("../../../../api/tests/fixtures/vxlan.yaml")),
    ("subnet-documented", include_str!("../../../../api/tests/fixtures/subnet-documented.yaml")),
    ("as-the-server-gives-it", include_str!("../../../../api/tests/fixtures/as-the-server-gives-it.yaml")),
    ("nodeinfo", include_str!("../../../../api/tests/fixtures/nodeinfo.yaml")),
];

/// Trunkline's own.
const OWN: &[(&str, &str)] = &[
    ("docs/manifests/bgp", include_str!("../../../../docs/manifests/bgp.yaml")),
    ("docs/manifests/import", include_str!("../../../../docs/manifests/import.yaml")),
    ("docs/manifests/policy", include_str!("../../../../docs/manifests/policy.yaml")),
    ("docs/manifests/vlan", include_str!("../../../../docs/manifests/vlan.yaml")),
    ("docs/manifests/vxlan", include_str!("../../../../docs/manifests/vxlan.yaml")),
];

fn on_a_server(context: &Lab) -> Result<Verdict> {
    cluster(context, "crds", |cluster| {
        install(cluster)?;
        for (name, text) in DOCUMENTED.iter().chain(OWN) {
            documented(cluster, text).with_context(|| (*name).to_owned())?;
        }
        let mut spoken = BTreeSet::new();
        let mut refused = 0;
        for base in bases() {
            let api = api(cluster, &base);
            cluster
                .wait(api.create(&PostParams::default(), &object(&base, base.spec.clone())?))
                .with_context(|| format!("the good {} was refused", base.name))?;
            for good in base.good {
                let spec = edited(&base.spec, good)?;
                attempt(cluster, &base, spec, false).with_context(|| format!("{good:?} was refused"))?;
            }
            for (edits, words) in base.bad {
                expect(cluster, &base, edits, words, false, &mut spoken)?;
            }
            for (edits, words) in base.changes {
                expect(cluster, &base, edits, words, true, &mut spoken)?;
            }
            refused += base.bad.len() + base.changes.len();
        }
        let silent: Vec<&str> =
            rules().iter().map(|rule| rule.message).filter(|message| !spoken.contains(message)).collect();
        ensure!(silent.is_empty(), "no case makes these rules speak: {silent:#?}");
        passed(format!("{} rules, {refused} refusals", rules().len()))
    })
}

/// Puts the CRDs of `deploy/` into a cluster and waits until their kinds are served.
pub(crate) fn install(cluster: &Cluster) -> Result<()> {
    for (name, text) in manifests() {
        cluster.apply(&text).with_context(|| name)?;
    }
    for crd in crds() {
        let name = format!("crd/{}", crd.metadata.name.unwrap_or_default());
        cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", &name])?;
    }
    Ok(())
}

/// Applies a manifest, reads it, and deletes it.
fn documented(cluster: &Cluster, text: &str) -> Result<()> {
    // A creation must not have the server's fields, and hybridnet's CRDs refuse nulls as well.
    let lines = text.lines().filter(|line| {
        let field = line.trim_start();
        !["resourceVersion:", "uid:", "creationTimestamp:", "selfLink:"]
            .iter()
            .any(|gone| field.starts_with(gone))
            && !field.ends_with(": null")
    });
    let mut text: String = lines.collect::<Vec<_>>().join("\n");
    if let (Some(start), Some(end)) = (text.find("  managedFields:"), text.find("  name: leaf-b\n")) {
        text.replace_range(start..end, "");
    }
    let text = text
        .replace("    - {apiVersion: v1, kind: Node, name: node1, uid: 5d0c}\n", "")
        .replace("  ownerReferences:\n", "");
    cluster.apply(&text)?;
    crate::shell::run_with_input(
        &mut cluster.kubectl_command(&["delete", "--wait=false", "-f", "-"]),
        &text,
    )?;
    Ok(())
}

/// Edits: the path (a JSON pointer in the spec, with a last step that may be new), and the value;
/// null removes.
type Edits = &'static [(&'static str, &'static str)];

struct Base {
    kind: &'static str,
    plural: &'static str,
    namespace: Option<&'static str>,
    name: &'static str,
    spec: Value,
    /// Accepted as well.
    good: &'static [Edits],
    /// Refused creations, with words of the refusal.
    bad: &'static [(Edits, &'static str)],
    /// Refused changes.
    changes: &'static [(Edits, &'static str)],
}

fn api(cluster: &Cluster, base: &Base) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("networking.alibaba.com", "v1", base.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, base.plural);
    match base.namespace {
        Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &resource),
        None => Api::all_with(cluster.client(), &resource),
    }
}

fn object(base: &Base, spec: Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": base.kind, "metadata": {"name": base.name}, "spec": spec,
    }))?)
}

fn edited(spec: &Value, edits: Edits) -> Result<Value> {
    let mut spec = spec.clone();
    for (pointer, text) in edits {
        let value: Value = serde_json::from_str(text).with_context(|| (*text).to_owned())?;
        let (parent, last) = pointer.rsplit_once('/').context("a pointer")?;
        let parent = spec.pointer_mut(parent).with_context(|| format!("no {parent}"))?;
        match parent {
            Value::Object(fields) if value.is_null() => drop(fields.remove(last)),
            Value::Object(fields) => drop(fields.insert(last.to_owned(), value)),
            Value::Array(list) => list.push(value),
            other => bail!("{pointer}: {other} has no fields"),
        }
    }
    Ok(spec)
}

/// Attempts a creation under another name, or a change of the base.
fn attempt(cluster: &Cluster, base: &Base, spec: Value, is_change: bool) -> Result<()> {
    let api = api(cluster, base);
    if is_change {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        // A merge would keep removed fields.
        let patch = serde_json::from_value(json!([{"op": "replace", "path": "/spec", "value": spec}]))?;
        cluster.wait(api.patch(base.name, &params, &Patch::Json::<()>(patch)))?;
    } else {
        let mut object = object(base, spec)?;
        object.metadata.name = Some(format!("{}-dry", base.name));
        cluster.wait(api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object))?;
    }
    Ok(())
}

fn expect(
    cluster: &Cluster,
    base: &Base,
    edits: Edits,
    words: &str,
    is_change: bool,
    spoken: &mut BTreeSet<&'static str>,
) -> Result<()> {
    let spec = edited(&base.spec, edits)?;
    let error = match attempt(cluster, base, spec, is_change) {
        Ok(()) => bail!("{} with {edits:?} was accepted; expected {words:?}", base.name),
        Err(error) => format!("{error:#}"),
    };
    ensure!(error.contains(words), "{} with {edits:?}: expected {words:?}, got: {error}", base.name);
    spoken.extend(rules().iter().map(|rule| rule.message).filter(|message| error.contains(message)));
    Ok(())
}

fn bases() -> Vec<Base> {
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
                (&[("/mode", "\"VXLAN\"")], "mode does not go with the type"),
                (
                    &[("/config", r#"{"bgpPeers": [{"asn": 1, "address": "10.0.0.1"}]}"#)],
                    "the mode is not BGP",
                ),
                (&[("/config", r#"{"hairpin": true, "attachment": "ipvlan"}"#)], "hairpin: packets of pods"),
                (
                    &[("/config", r#"{"extraPrefixes": ["10.9.0.0/16"], "attachment": "ipvlan"}"#)],
                    "extraPrefixes: packets of pods",
                ),
                (
                    &[("/config", r#"{"extraPrefixes": ["10.9.0.1/16"]}"#)],
                    "extraPrefixes: one is not a prefix",
                ),
                (&[("/config", r#"{"extraPrefixes": ["fd00:9::1"]}"#)], "extraPrefixes: one is not a prefix"),
                (
                    &[("/config", r#"{"extraPrefixes": ["fe80::/64"]}"#)],
                    "extraPrefixes: routers do not forward from one",
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
                (&[("/nodeSelector", r#"{"a": "b"}"#)], "takes every node"),
                (&[("/mode", "\"VLAN\"")], "mode does not go with the type"),
                (&[("/config", r#"{"attachment": "ipvlan"}"#)], "ipvlan joins pods to a VLAN"),
                (&[("/config", r#"{"hairpin": true}"#)], "no switch that would send it back"),
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
                (&[("/network", "\"rack2\"")], "network and subnet of a given address"),
                (&[("/subnet", "\"pods2\"")], "network and subnet of a given address"),
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
                (&[("/vtepInfo/ip", "\"node1\"")], "ip is not an address that other nodes reach"),
                (&[("/vtepInfo/ip", "\"127.0.0.1\"")], "ip is not an address that other nodes reach"),
                (&[("/vtepInfo/localIPs", r#"["10.1.0.1", "x"]"#)], "localIPs: one is not an address"),
                (&[("/config/podCIDRs", r#"["10.200.1.1/24"]"#)], "podCIDRs: one is not a prefix"),
            ],
            changes: &[],
        },
    ]
}

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
        r#"{"rules": [{"communities": ["65000:1"], "action": "accept"}, {"communities": {"allOf": ["65000:2"]}}]}"#,
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
    (&[("/config/bgpPeers/0/address", "null")], "address: write the router's address"),
    (&[("/config/bgpPeers/0/interface", "\"eth1\"")], "and only one of them"),
    (&[("/config/bgpPeers/0/address", "\"tor1\"")], "address is not an address of a router"),
    (&[("/config/bgpPeers/0/address", "\"224.0.0.5\"")], "address is not an address of a router"),
    (&[("/config/bgpPeers/0/address", "\"fe80::1\"")], "address is not an address of a router"),
    (
        &[("/config/bgpPeers/0/address", "\"10.0.0.1%eth1\"")],
        "an interface goes with an IPv6 link-local address",
    ),
    (&[("/config/bgpPeers/0/address", "\"fe80::1%\"")], "an interface goes with an IPv6 link-local address"),
    (&[("/config/bgpPeers/-", r#"{"asn": 65000, "address": "10.0.0.1"}"#)], "an address is there twice"),
    (
        &[("/config/bgpPeers/0/address", "null"), ("/config/bgpPeers/0/prefix", "\"10.1.0.1/24\"")],
        "prefix is not one, or has host bits",
    ),
    (&[("/config/bgpPeers/0/limit", "5")], "limit is how many may come from a prefix"),
    (
        &[
            ("/config/bgpPeers/0/address", "null"),
            ("/config/bgpPeers/0/prefix", "\"10.1.0.0/24\""),
            ("/config/bgpPeers/0/port", "179"),
        ],
        "port: nobody is connected to",
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
        "password: there are several",
    ),
    (
        &[
            ("/config/bgpPeers/0/passwordFile", "\"/k\""),
            ("/config/bgpPeers/0/passwordSecretRef", r#"{"name": "a", "key": "b"}"#),
        ],
        "password: there are several",
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
    (&[("/config/bgpPeers/0/localRoleStrict", "true")], "localRoleStrict means nothing"),
    (&[("/config/bgpPeers/0/localAs", r#"{"asn": 65000}"#)], "localAs.asn is the peer's own"),
    (
        &[("/config/bgpPeers/0/localAs", r#"{"asn": 65001}"#)],
        "it is another AS number than the network's own",
    ),
    (&[("/config/bgpPeers/0/addPath", "{}")], "addPath asks for nothing"),
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
];

const SUBNET_BAD: &[(Edits, &str)] = &[
    (&[("/network", "\"\"")], "spec.network"),
    (&[("/range/cidr", "\"10.14.0.0\"")], "cidr is not a prefix with its length"),
    (&[("/range/cidr", "\"10.14.0.1/24\"")], "cidr has host bits"),
    (&[("/range/version", "\"6\"")], "version does not go with cidr"),
    (&[("/range/version", "\"5\"")], "spec.range.version"),
    (&[("/range", r#"{"version": "4", "cidr": "10.14.0.1/32"}"#)], "cidr is a single address"),
    (&[("/range", r#"{"version": "4", "cidr": "127.1.0.0/24"}"#)], "what no fabric routes"),
    (&[("/range", r#"{"version": "6", "cidr": "fe80::/64", "start": "fe80::1"}"#)], "what no fabric routes"),
    (&[("/range", r#"{"version": "4", "cidr": "10.0.0.0/8"}"#)], "more than 65536 addresses"),
    (&[("/range", r#"{"version": "6", "cidr": "2001:db8::/64"}"#)], "more than 65536 addresses"),
    (&[("/range/start", "\"10.15.0.1\"")], "start is not an address of cidr"),
    (&[("/range/end", "\"10.14.0\"")], "end is not an address of cidr"),
    (&[("/range/gateway", "\"10.14.1.1\"")], "gateway is not an address of cidr"),
    (&[("/range/reservedIPs", r#"["10.14.0.20", "10.15.0.20"]"#)], "reservedIPs: one is not"),
    (&[("/range/excludeIPs", r#"["x"]"#)], "excludeIPs: one is not"),
];

const SUBNET_CHANGES: &[(Edits, &str)] = &[
    (&[("/network", "\"rack2\"")], "network cannot change"),
    (&[("/netID", "11")], "netID cannot change"),
    (&[("/range/cidr", "\"10.14.0.0/23\"")], "cidr cannot change"),
    (&[("/range/start", "\"10.14.0.11\"")], "start cannot change"),
    (&[("/range/end", "null")], "end cannot change"),
    (&[("/range/gateway", "\"10.14.0.2\"")], "gateway cannot change"),
    (&[("/range/excludeIPs", r#"["10.14.0.30"]"#)], "excludeIPs cannot change"),
];
