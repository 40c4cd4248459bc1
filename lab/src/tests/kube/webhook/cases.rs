//! The table of rules: accepted and refused objects for each, as dry runs on a cluster with one
//! Network of each kind.
//!
//! A refusal comes from the first check: the schema and its CEL rules precede the webhook. The
//! webhook checks the same rules, because an API server may have no CEL or an older schema. The
//! last column names the source of the refusal.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{api, create, pod};
use crate::kube::Cluster;
use crate::progress::{say, table};

/// A request.
enum Try {
    Create(Value),
    /// Kind, name, a merge patch.
    Change(&'static str, &'static str, Value),
    Delete(&'static str, &'static str),
}
use Try::{Change, Create, Delete};

/// A rule with accepted and refused requests. The refusal contains the text, in the schema's words
/// or in the webhook's.
struct Rule {
    rule: &'static str,
    accepted: Vec<Try>,
    refused: Vec<(Try, &'static str)>,
}

fn rule(rule: &'static str, accepted: Vec<Try>, refused: Vec<(Try, &'static str)>) -> Rule {
    Rule { rule, accepted, refused }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.alibaba.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn new(kind: &str, spec: Value) -> Try {
    Create(object(kind, "new", spec))
}

/// A base with changed fields; null removes one.
fn with(mut base: Value, fields: Value) -> Value {
    for (key, value) in fields.as_object().into_iter().flatten() {
        if value.is_null() {
            base.as_object_mut().map(|map| map.remove(key));
        } else {
            base[key] = value.clone();
        }
    }
    base
}

fn bgp(rack: &str) -> Value {
    json!({"nodeSelector": {"network": rack}, "netID": 65001, "mode": "BGP",
           "config": {"bgpPeers": [{"asn": 4_200_000_001_u32, "address": "10.0.0.1"}],
                      "extraPrefixes": ["10.9.0.0/16", "fd00:9::/48"]}})
}

fn peer(asn: u32, address: &str) -> Value {
    json!({"config": {"bgpPeers": [{"asn": asn, "address": address}]}})
}

/// Dynamic neighbours from a prefix.
fn range(prefix: &str) -> Value {
    json!({"config": {"bgpPeers": [{"asn": 65100, "prefix": prefix}]}})
}

fn overlay() -> Value {
    json!({"type": "Overlay", "netID": 4})
}

fn v4(network: &str, cidr: &str, more: Value) -> Value {
    json!({"network": network, "range": with(json!({"version": "4", "cidr": cidr}), more)})
}

fn vlan(more: Value) -> Value {
    with(v4("vlan", "10.30.0.0/24", json!({"gateway": "10.30.0.1"})), more)
}

fn asking(annotations: &[(&str, &str)]) -> Try {
    Create(pod("new-0", json!({"annotations": annotations_of(annotations)})))
}

/// A pod that requests extra prefixes.
fn routing(network: Option<&str>, prefixes: &str) -> Try {
    let network: Vec<_> = network.map(|network| ("specified-network", network)).into_iter().collect();
    let mut annotations = annotations_of(&network);
    annotations["trunkline.io/extra-prefixes"] = json!(prefixes);
    Create(pod("router-0", json!({"annotations": annotations})))
}

fn annotations_of(annotations: &[(&str, &str)]) -> Value {
    annotations
        .iter()
        .map(|(key, value)| (format!("networking.alibaba.com/{key}"), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn instance(name: &str, ip: &str, network: &str, subnet: &str, pod: &str, node: &str) -> Value {
    let labels = [("network", network), ("subnet", subnet), ("pod", pod), ("node", node)];
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let labels: serde_json::Map<_, _> =
        labels.map(|(key, value)| (format!("networking.alibaba.com/{key}"), json!(value))).collect();
    with(
        object(
            "IPInstance",
            name,
            json!({
                "network": network, "subnet": subnet,
                "address": {"version": "4", "ip": ip, "mac": "02:12:34:00:00:01"},
                "binding": {"nodeName": node, "podName": pod, "referredObject": {"kind": "StatefulSet", "name": "kept"}},
            }),
        ),
        json!({"metadata": {"name": name, "namespace": "default", "labels": labels}}),
    )
}

/// An AgentSettings for the nodes of a rack.
fn settings(name: &str, rack: &str, priority: u32, config: Value) -> Value {
    json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AgentSettings", "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"network": rack}}, "priority": priority, "config": config},
    })
}

/// Cases for a cluster with the AgentSettings `rack1`, which sets `podMTU`.
fn of_settings() -> Vec<Rule> {
    let new = |rack: &str, priority: u32, config: Value| Create(settings("new", rack, priority, config));
    vec![
        rule(
            "AgentSettings: fields and values of agent.yaml",
            vec![
                new("rack2", 0, json!({})),
                new(
                    "rack2",
                    1000,
                    json!({"podMTU": 1280, "vlanInterfaces": ["/^eth[0-9]+$/", "can-reach=10.0.0.1"]}),
                ),
            ],
            vec![
                (new("rack2", 0, json!({"podMTU": 100})), "spec.config.podMTU"),
                (
                    new("rack2", 0, json!({"vlanInterfaces": ["/eth"]})),
                    "vlanInterfaces: an entry is not a link",
                ),
                (
                    new("rack2", 0, json!({"vlanInterfaces": ["bond0", "/eth[/"]})),
                    "spec.config.vlanInterfaces[1]: /eth[/ is no regular expression: unclosed character class: write",
                ),
                (new("rack2", 1001, json!({})), "spec.priority"),
                (
                    Change(
                        "AgentSettings",
                        "rack1",
                        json!({"spec": {"config": {"kernelLimits": {"neighbours": -1}}}}),
                    ),
                    "spec.config.kernelLimits.neighbours",
                ),
            ],
        ),
        rule(
            "AgentSettings: one of a priority for a field of a node",
            vec![
                new("rack1", 100, json!({"maxPaths": 8})),
                new("rack1", 101, json!({"podMTU": 1300})),
                new("rack2", 100, json!({"podMTU": 1300})),
                Change("AgentSettings", "rack1", json!({"spec": {"config": {"podMTU": 1300}}})),
                Delete("AgentSettings", "rack1"),
            ],
            vec![(
                new("rack1", 100, json!({"podMTU": 1300})),
                "spec.priority: 100 is also the priority of AgentSettings rack1, and both set podMTU on node n1",
            )],
        ),
    ]
}

/// Rules with cases in two parts. The test creates further objects between the parts.
const ONE_OVERLAY: &str = "one Overlay";
const ONE_GLOBAL: &str = "one GlobalBGP";
const REMOTE: &str = "Overlay delete: without RemoteClusters";

/// Cases for a cluster with two Underlay Networks and no other Network.
fn first() -> Vec<Rule> {
    vec![
        rule(ONE_OVERLAY, vec![new("Network", overlay())], vec![]),
        rule(ONE_GLOBAL, vec![new("Network", json!({"type": "GlobalBGP"}))], vec![]),
        rule(
            "Underlay: a nodeSelector",
            vec![new("Network", json!({"nodeSelector": {"network": "rack3"}, "netID": 9}))],
            vec![(new("Network", json!({"netID": 9})), "nodeSelector")],
        ),
        rule(
            "Underlay: no node is shared",
            vec![new("Network", bgp("rack3"))],
            vec![
                (
                    new("Network", bgp("rack1")),
                    "selects node n1, which is already in Underlay \
                    network bgp",
                ),
                (
                    Change("Network", "vlan", json!({"spec": {"nodeSelector": {"network": "rack1"}}})),
                    "selects node n1",
                ),
            ],
        ),
        rule(
            "Overlay: no selector, a netID",
            vec![new("Network", overlay())],
            vec![
                (new("Network", with(overlay(), json!({"nodeSelector": {"a": "b"}}))), "nodeSelector"),
                (new("Network", with(overlay(), json!({"netID": null}))), "netID"),
            ],
        ),
        rule(
            "GlobalBGP: no selector, no netID",
            vec![new("Network", json!({"type": "GlobalBGP"}))],
            vec![
                (new("Network", json!({"type": "GlobalBGP", "nodeSelector": {"a": "b"}})), "nodeSelector"),
                (new("Network", json!({"type": "GlobalBGP", "netID": 65001})), "netID"),
            ],
        ),
        rule(
            "mode matches type",
            vec![new("Network", with(overlay(), json!({"mode": "VXLAN"})))],
            vec![
                (new("Network", with(overlay(), json!({"mode": "VLAN"}))), "mode"),
                (new("Network", with(bgp("rack3"), json!({"mode": "VXLAN"}))), "mode"),
                (new("Network", json!({"type": "GlobalBGP", "mode": "BGP"})), "mode"),
            ],
        ),
        rule(
            "BGP: netID, peers, addresses, AS numbers",
            vec![
                new("Network", bgp("rack3")),
                new("Network", with(bgp("rack3"), peer(65100, "2001:db8::1"))),
            ],
            vec![
                (new("Network", with(bgp("rack3"), json!({"netID": null}))), "netID"),
                (new("Network", with(bgp("rack3"), json!({"config": null}))), "bgpPeers"),
                (new("Network", with(bgp("rack3"), json!({"config": {"bgpPeers": []}}))), "bgpPeers"),
                (new("Network", with(bgp("rack3"), peer(0, "10.0.0.1"))), "asn"),
                (new("Network", with(bgp("rack3"), peer(65100, "10.0.0.256"))), "address"),
            ],
        ),
        rule(
            "Network update: type, mode, netID do not change",
            vec![Change("Network", "bgp", json!({"spec": peer(65100, "10.0.0.2")}))],
            vec![
                (Change("Network", "bgp", json!({"spec": {"type": "Overlay"}})), "type"),
                (Change("Network", "bgp", json!({"spec": {"mode": "VLAN"}})), "mode"),
                (Change("Network", "bgp", json!({"spec": {"netID": 65002}})), "netID"),
                // This request crashed hybridnet's webhook.
                (Change("Network", "bgp", json!({"spec": {"config": null}})), "bgpPeers"),
            ],
        ),
        rule(
            "Subnet: of an existing Network",
            vec![new("Subnet", v4("bgp", "10.31.0.0/24", json!({})))],
            vec![(new("Subnet", v4("nowhere", "10.31.0.0/24", json!({}))), "there is no Network `nowhere`")],
        ),
    ]
}

fn remote_subnet(cidr: &str) -> Value {
    json!({
        "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteSubnet", "metadata": {"name": "far.new"},
        "spec": {"clusterName": "far", "range": {"version": "4", "cidr": cidr}},
    })
}

/// Cases with a Network of each kind, Subnets, addresses and a RemoteCluster.
fn then() -> Vec<Rule> {
    let subnet = |network: &str, cidr: &str, more: Value| new("Subnet", v4(network, cidr, more));
    let in_bgp = |more: Value| new("Subnet", v4("bgp", "10.31.0.0/24", more));
    vec![
        rule(ONE_OVERLAY, vec![], vec![(new("Network", overlay()), "overlay exists")]),
        rule(ONE_GLOBAL, vec![], vec![(new("Network", json!({"type": "GlobalBGP"})), "global exists")]),
        rule(
            "Network delete: without Subnets",
            vec![Delete("Network", "vlan-open")],
            vec![(Delete("Network", "vlan"), "it still has Subnets: delete these first: vlan4")],
        ),
        rule(REMOTE, vec![], vec![(Delete("Network", "overlay"), "1 RemoteClusters")]),
        rule(
            "RemoteSubnet: overlaps no Subnet of this cluster",
            vec![Create(remote_subnet("10.99.0.0/24"))],
            vec![(Create(remote_subnet("10.21.0.0/25")), "of Subnet vlan4 of this cluster")],
        ),
        rule(
            "dynamic neighbours come from no Subnet",
            vec![
                Change("Network", "bgp-unused", json!({"spec": range("198.51.100.0/24")})),
                new("Network", with(bgp("rack5"), range("192.0.2.0/24"))),
            ],
            vec![
                (
                    Change("Network", "bgp-unused", json!({"spec": range("10.0.0.0/8")})),
                    "spec.config.bgpPeers[0].prefix: 10.0.0.0/8 overlaps",
                ),
                (
                    new("Network", with(bgp("rack5"), range("10.20.0.0/28"))),
                    "spec.config.bgpPeers[0].prefix: 10.20.0.0/28 overlaps 10.20.0.0/24 of Subnet bgp4",
                ),
                (
                    subnet("bgp", "192.0.2.0/25", json!({})),
                    "192.0.2.0/25 overlaps 192.0.2.0/24, from which Network bgp-unused accepts BGP peers",
                ),
            ],
        ),
        rule(
            "BGP delete: without GlobalBGP addresses",
            vec![Delete("Network", "bgp-unused")],
            vec![(Delete("Network", "bgp"), "10.50.0.7 (pod default/global-0 on node n1)")],
        ),
        rule(
            "VLAN subnet: netID, gateway, no NAT",
            vec![
                new("Subnet", vlan(json!({}))),
                new("Subnet", vlan(json!({"netID": 20}))),
                new("Subnet", vlan(json!({"network": "vlan-open", "netID": 7}))),
                new("Subnet", vlan(json!({"config": {"autoNatOutgoing": false}}))),
            ],
            vec![
                (new("Subnet", vlan(json!({"netID": 21}))), "21 is not the VLAN id 20 of Network vlan"),
                (new("Subnet", vlan(json!({"network": "vlan-open"}))), "spec.netID: missing"),
                (subnet("vlan", "10.30.0.0/24", json!({})), "spec.range.gateway: missing"),
                (new("Subnet", vlan(json!({"config": {"autoNatOutgoing": true}}))), "autoNatOutgoing"),
            ],
        ),
        rule(
            "BGP, GlobalBGP, VXLAN subnet: no netID",
            vec![subnet("global", "10.31.0.0/24", json!({})), subnet("overlay", "10.31.0.0/24", json!({}))],
            vec![
                (
                    new("Subnet", with(v4("bgp", "10.31.0.0/24", json!({})), json!({"netID": 1}))),
                    "mode BGP has no netID",
                ),
                (
                    new("Subnet", with(v4("global", "10.31.0.0/24", json!({})), json!({"netID": 1}))),
                    "mode GlobalBGP has no netID",
                ),
                (
                    new("Subnet", with(v4("overlay", "10.31.0.0/24", json!({})), json!({"netID": 1}))),
                    "mode VXLAN has no netID",
                ),
            ],
        ),
        rule(
            "a canonical prefix, no single address",
            vec![
                subnet("bgp", "10.31.0.0/31", json!({})),
                new(
                    "Subnet",
                    json!({"network": "bgp", "range": {"version": "6", "cidr": "2001:db8:31::/112"}}),
                ),
            ],
            vec![
                (subnet("bgp", "10.31.0.1/24", json!({})), "host bits"),
                (subnet("bgp", "10.31.0.1/32", json!({})), "cidr"),
                (
                    new(
                        "Subnet",
                        json!({"network": "bgp", "range": {"version": "6", "cidr": "2001:db8:31::1/128"}}),
                    ),
                    "cidr",
                ),
                (
                    new(
                        "Subnet",
                        json!({"network": "bgp", "range": {"version": "6", "cidr": "10.31.0.0/24"}}),
                    ),
                    "version",
                ),
            ],
        ),
        rule(
            "start ≤ end",
            vec![in_bgp(json!({"start": "10.31.0.9", "end": "10.31.0.9"}))],
            vec![(in_bgp(json!({"start": "10.31.0.9", "end": "10.31.0.8"})), "start")],
        ),
        rule(
            "every address in the prefix",
            vec![in_bgp(
                json!({"gateway": "10.31.0.1", "reservedIPs": ["10.31.0.2"], "excludeIPs": ["10.31.0.3"]}),
            )],
            vec![
                (in_bgp(json!({"start": "10.32.0.9"})), "start"),
                (in_bgp(json!({"end": "10.32.0.9"})), "end"),
                (in_bgp(json!({"gateway": "10.32.0.9"})), "gateway"),
                (in_bgp(json!({"reservedIPs": ["10.32.0.9"]})), "reservedIPs"),
                (in_bgp(json!({"excludeIPs": ["10.32.0.9"]})), "excludeIPs"),
            ],
        ),
        rule(
            "at most 65,536 addresses",
            vec![subnet("bgp", "10.64.0.0/16", json!({}))],
            vec![(subnet("bgp", "10.64.0.0/15", json!({})), "65536")],
        ),
        rule(
            "prefixes equal or disjoint",
            vec![subnet("bgp", "10.20.1.0/24", json!({}))],
            vec![
                (subnet("bgp", "10.20.0.0/25", json!({})), "overlaps 10.20.0.0/24 of Subnet bgp4"),
                (subnet("bgp", "10.20.0.0/16", json!({})), "overlaps 10.20.0.0/24 of Subnet bgp4"),
            ],
        ),
        rule(
            "equal prefixes: one Network, different addresses",
            vec![subnet("bgp", "10.20.0.0/24", json!({"start": "10.20.0.100"}))],
            vec![
                (
                    subnet("bgp", "10.20.0.0/24", json!({})),
                    "Subnet bgp4 also allocates the \
                    addresses",
                ),
                (
                    subnet("global", "10.20.0.0/24", json!({"start": "10.20.0.100"})),
                    "is also the prefix of Subnet bgp4 in Network bgp",
                ),
            ],
        ),
        rule(
            "Subnet update: reservedIPs and private",
            vec![
                Change("Subnet", "vlan4", json!({"spec": {"range": {"reservedIPs": ["10.21.0.9"]}}})),
                Change("Subnet", "vlan4", json!({"spec": {"config": {"private": true}}})),
                Change("Subnet", "vlan4", json!({"metadata": {"labels": {"a": "b"}}})),
            ],
            vec![
                (Change("Subnet", "vlan4", json!({"spec": {"network": "vlan-open"}})), "network"),
                (Change("Subnet", "vlan4", json!({"spec": {"netID": 20}})), "netID"),
                (Change("Subnet", "vlan4", json!({"spec": {"range": {"start": "10.21.0.5"}}})), "start"),
                (Change("Subnet", "vlan4", json!({"spec": {"range": {"end": "10.21.0.50"}}})), "end"),
                (Change("Subnet", "vlan4", json!({"spec": {"range": {"gateway": "10.21.0.2"}}})), "gateway"),
                (Change("Subnet", "vlan4", json!({"spec": {"range": {"cidr": "10.21.0.0/25"}}})), "cidr"),
                (
                    Change("Subnet", "vlan4", json!({"spec": {"range": {"excludeIPs": ["10.21.0.9"]}}})),
                    "excludeIPs",
                ),
            ],
        ),
        rule(
            "Subnet delete: without IPInstances",
            vec![Delete("Subnet", "vlan4")],
            vec![(Delete("Subnet", "bgp4"), "10.20.0.7 (retained for pod default/kept-0)")],
        ),
        rule(
            "IPInstance by hand: it matches its Subnet",
            vec![Create(instance("new", "10.20.0.8/24", "bgp", "bgp4", "x-0", "n1"))],
            vec![
                (
                    Create(instance("new", "10.21.0.8/24", "bgp", "bgp4", "x-0", "n1")),
                    "10.21.0.8/24 is not in 10.20.0.0/24",
                ),
                (
                    Create(instance("new", "10.20.0.8/24", "vlan", "bgp4", "x-0", "n1")),
                    "is not the Network of Subnet bgp4",
                ),
                (
                    Create(instance("new", "10.20.0.8/24", "bgp", "nowhere", "x-0", "n1")),
                    "there is no Subnet `nowhere`",
                ),
            ],
        ),
        rule(
            "IPInstance update: its address stays",
            vec![
                Change("IPInstance", "kept", json!({"spec": {"binding": {"nodeName": "n1"}}})),
                Change(
                    "IPInstance",
                    "kept",
                    json!({"metadata": {"finalizers": ["networking.alibaba.com/ip-allocated"]}}),
                ),
            ],
            vec![
                (Change("IPInstance", "kept", json!({"spec": {"address": {"ip": "10.20.0.9/24"}}})), "ip"),
                (Change("IPInstance", "kept", json!({"spec": {"subnet": "vlan4"}})), "subnet"),
            ],
        ),
        rule(
            "pod: its Network exists and has its type",
            vec![
                asking(&[]),
                asking(&[("specified-network", "bgp")]),
                asking(&[("specified-network", "bgp"), ("network-type", "underlay")]),
            ],
            vec![
                (asking(&[("specified-network", "nowhere")]), "there is no Network nowhere"),
                (asking(&[("specified-network", "bgp"), ("network-type", "Overlay")]), "is of type Underlay"),
            ],
        ),
        rule(
            "pod: Subnets of one Network, in order of preference, or as v4/v6",
            vec![
                asking(&[("specified-subnet", "bgp4")]),
                asking(&[("specified-subnet", "bgp4/bgp6"), ("ip-family", "DualStack")]),
                asking(&[("specified-subnet", "bgp4,bgp6"), ("ip-family", "DualStack")]),
            ],
            vec![
                (asking(&[("specified-subnet", "bgp4,nowhere")]), "there is no Subnet nowhere"),
                (asking(&[("specified-subnet", "bgp4/bgp6/vlan4")]), "does not name Subnets"),
                (asking(&[("specified-subnet", "bgp6/bgp4")]), "write `v4-subnet/v6-subnet`"),
                (asking(&[("specified-subnet", "vlan4/bgp6")]), "subnets of one network"),
                (
                    asking(&[("specified-network", "vlan"), ("specified-subnet", "bgp4")]),
                    "belongs to Network bgp",
                ),
                (asking(&[("specified-subnet", "nowhere")]), "there is no Subnet nowhere"),
            ],
        ),
        rule(
            "pod: its IPInstance is not elsewhere",
            vec![Create(pod(
                "kept-0",
                json!({"annotations": annotations_of(&[("specified-network", "bgp")])}),
            ))],
            vec![(
                Create(pod(
                    "kept-0",
                    json!({"annotations": annotations_of(&[("specified-network", "vlan")])}),
                )),
                "the pod already has 10.20.0.7 of Network bgp",
            )],
        ),
        rule(
            "pod: ip-pool has valid addresses and a Network",
            vec![
                asking(&[("specified-network", "bgp"), ("ip-pool", "10.20.0.20")]),
                asking(&[("specified-network", "bgp"), ("ip-pool", "10.20.0.20,10.20.0.21,10.20.0.22")]),
                asking(&[
                    ("specified-network", "bgp"),
                    ("ip-family", "DualStack"),
                    ("ip-pool", "10.20.0.20/2001:db8:20::20"),
                ]),
            ],
            vec![
                (asking(&[("ip-pool", "10.20.0.20")]), "the network of the addresses"),
                (
                    asking(&[("specified-network", "bgp"), ("ip-pool", "10.20.0.20,,10.20.0.22")]),
                    "ip-pool][1]",
                ),
                (asking(&[("specified-network", "bgp"), ("ip-pool", "10.20.0.256")]), "ip-pool][0]"),
                (
                    asking(&[("specified-network", "bgp"), ("ip-pool", "2001:db8:20::20")]),
                    "the \
                    pod's family IPv4",
                ),
            ],
        ),
        rule(
            "pod: extra prefixes within its Network's",
            vec![routing(Some("bgp"), "10.9.0.0/16,fd00:9::/64"), routing(Some("bgp"), "10.9.7.0/24")],
            vec![
                (
                    routing(Some("bgp"), "10.9.0.0/16,10.10.0.0/16"),
                    "10.10.0.0/16: spec.config.extraPrefixes of Network bgp allows 10.9.0.0/16",
                ),
                (routing(Some("bgp"), "0.0.0.0/0"), "0.0.0.0/0: spec.config.extraPrefixes of Network bgp"),
                (routing(Some("vlan"), "10.9.0.0/16"), "extraPrefixes of Network vlan allows nothing"),
                (routing(None, "10.9.0.0/16"), "depend on the Network"),
                (routing(Some("bgp"), "10.9.0.1/16"), "extra-prefixes][0]: 10.9.0.1/16 has host bits"),
                (routing(Some("bgp"), "10.9.0.0/16,"), "extra-prefixes][1]: `` is not a prefix"),
            ],
        ),
        rule(
            "pod: mac-pool, network-type, ip-family",
            vec![
                asking(&[("mac-pool", "02:12:34:00:00:01,02:12:34:00:00:02")]),
                asking(&[("ip-family", "ipv4only")]),
            ],
            vec![
                (asking(&[("mac-pool", "02:12:34:00:00:01,x")]), "mac-pool][1]"),
                (asking(&[("network-type", "Underlie")]), "no type of a Network"),
                (asking(&[("ip-family", "IPv5")]), "no family"),
            ],
        ),
        rule(
            "pod: its family has free addresses",
            vec![asking(&[("network-type", "Overlay")])],
            vec![
                (asking(&[("network-type", "Overlay"), ("ip-family", "IPv6")]), "no IPv6 address left"),
                (asking(&[("network-type", "GlobalBGP")]), "no IPv4 address left"),
            ],
        ),
        rule(
            "pod: none of these rules with hostNetwork, or if ignored",
            vec![
                Create(with(
                    pod("host", json!({"annotations": annotations_of(&[("specified-network", "nowhere")])})),
                    json!({"spec": {"hostNetwork": true, "containers": [{"name": "main", "image": "none"}]}}),
                )),
                Create(pod(
                    "ignored",
                    json!({"annotations": annotations_of(&[("specified-network", "nowhere")]),
                                              "labels": {"webhook.hybridnet.io/ignore": "true"}}),
                )),
            ],
            vec![(asking(&[("specified-network", "nowhere")]), "there is no Network nowhere")],
        ),
    ]
}

/// Creates the objects and runs all cases. Returns the text for the test's line, and prints the
/// table.
pub(super) fn run(cluster: &Cluster) -> Result<String> {
    for number in 1..=4 {
        let labels = json!({"network": format!("rack{number}")});
        create(
            cluster,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{number}"), "labels": labels}}),
            false,
        )?;
    }
    // A Network and its Subnet one after the other without a wait, like `kubectl apply` of one
    // file.
    for (kind, name, spec) in [
        ("Network", "bgp", bgp("rack1")),
        ("Subnet", "bgp4", v4("bgp", "10.20.0.0/24", json!({"end": "10.20.0.99"}))),
        ("Subnet", "bgp6", json!({"network": "bgp", "range": {"version": "6", "cidr": "2001:db8:20::/112"}})),
        ("Network", "vlan", json!({"nodeSelector": {"network": "rack2"}, "netID": 20})),
    ] {
        create(cluster, &object(kind, name, spec), false).with_context(|| name.to_owned())?;
    }
    let mut seen = Vec::new();
    create(cluster, &settings("rack1", "rack1", 100, json!({"podMTU": 1400})), false)?;
    attempt(cluster, of_settings(), &mut seen)?;
    attempt(cluster, first(), &mut seen)?;
    create(cluster, &object("Network", "overlay", overlay()), false)?;
    attempt(cluster, vec![rule(REMOTE, vec![Delete("Network", "overlay")], vec![])], &mut seen)?;
    for (kind, name, spec) in [
        ("Network", "vlan-open", json!({"nodeSelector": {"network": "rack3"}})),
        ("Network", "bgp-unused", with(bgp("rack4"), range("192.0.2.0/24"))),
        ("Network", "global", json!({"type": "GlobalBGP"})),
        ("Subnet", "vlan4", v4("vlan", "10.21.0.0/24", json!({"gateway": "10.21.0.1"}))),
        ("Subnet", "overlay4", v4("overlay", "10.40.0.0/24", json!({}))),
        ("Subnet", "global4", v4("global", "10.50.0.0/24", json!({}))),
    ] {
        create(cluster, &object(kind, name, spec), false).with_context(|| name.to_owned())?;
    }
    for given in [
        instance("kept", "10.20.0.7/24", "bgp", "bgp4", "kept-0", ""),
        instance("global", "10.50.0.7/24", "global", "global4", "global-0", "n1"),
    ] {
        create(cluster, &given, false)?;
    }
    let networks = api(cluster, "Network", None);
    for (name, subnet, available) in [("overlay", "overlay4", 254), ("global", "global4", 0)] {
        let status = json!({"status": {
            "lastAllocatedSubnet": "", "subnetList": [subnet], "nodeList": [],
            "statistics": {"total": 254, "used": 254 - available, "available": available},
        }});
        cluster.wait(networks.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)))?;
    }
    cluster.apply(REMOTE_CLUSTERS)?;
    cluster.kubectl([
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd/remoteclusters.multicluster.alibaba.com",
    ])?;
    cluster.apply("{apiVersion: multicluster.alibaba.com/v1, kind: RemoteCluster, metadata: {name: far}}")?;
    known(cluster)?;
    attempt(cluster, then(), &mut seen)?;

    let mut rows = vec![["rule", "accepted", "refused", "by"].map(str::to_owned).to_vec()];
    rows.extend(seen.iter().map(|row| {
        let by = row.by.iter().copied().collect::<Vec<_>>().join(", ");
        vec![row.rule.to_owned(), row.accepted.to_string(), row.refused.to_string(), by]
    }));
    say(&table(&rows));
    let stamped = stamps(cluster)?;
    if let Some(half) = seen.iter().find(|row| row.accepted == 0 || row.refused == 0) {
        bail!("{}: only accepted or only refused cases exist", half.rule);
    }
    let sum = |count: fn(&Row) -> usize| seen.iter().map(count).sum::<usize>();
    Ok(format!(
        "{} rules: {} accepted, {} refused; {stamped} pods stamped by precedence",
        seen.len(),
        sum(|row| row.accepted),
        sum(|row| row.refused)
    ))
}

const REMOTE_CLUSTERS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: remoteclusters.multicluster.alibaba.com }
spec:
  group: multicluster.alibaba.com
  scope: Cluster
  names: { kind: RemoteCluster, plural: remoteclusters, singular: remotecluster }
  versions:
    - { name: v1, served: true, storage: true, schema: { openAPIV3Schema: { type: object } } }
";

/// Waits until the watches of both replicas have the retained addresses and the free counts. The
/// rules for pods use them. The webhook itself waits only for objects that a request names.
fn known(cluster: &Cluster) -> Result<()> {
    crate::shell::wait_for("the replicas to have the addresses", super::PATIENCE, || {
        let kept = owned("kept-0", &[]);
        let kept = create(cluster, &kept, true)?;
        let network =
            kept.metadata.annotations.unwrap_or_default().remove("networking.alibaba.com/specified-network");
        let elsewhere =
            Create(pod("kept-0", json!({"annotations": annotations_of(&[("specified-network", "vlan")])})));
        let refused = attempt_one(cluster, &elsewhere).is_err();
        attempt_one(cluster, &asking(&[("network-type", "Overlay")]))?;
        Ok(crate::shell::Seen::when(network.as_deref() == Some("bgp") && refused, || {
            format!("{network:?}, {refused}")
        }))
    })
}

/// Results of a rule, over all its parts.
struct Row {
    rule: &'static str,
    accepted: usize,
    refused: usize,
    by: BTreeSet<&'static str>,
}

fn attempt(cluster: &Cluster, rules: Vec<Rule>, seen: &mut Vec<Row>) -> Result<()> {
    for Rule { rule, accepted, refused } in rules {
        for (index, this) in accepted.iter().enumerate() {
            attempt_one(cluster, this).with_context(|| format!("{rule}: accepted case {index}"))?;
        }
        let mut by = BTreeSet::new();
        for (index, (this, text)) in refused.iter().enumerate() {
            let error = attempt_one(cluster, this).err();
            let error = error.with_context(|| format!("{rule}: refused case {index} was accepted"))?;
            let said = format!("{error:#}");
            ensure!(said.contains(text), "{rule}: refused case {index}: `{text}` is not in: {said}");
            by.insert(if said.contains("denied the request") { "webhook" } else { "schema" });
        }
        match seen.iter_mut().find(|row| row.rule == rule) {
            Some(row) => {
                row.accepted += accepted.len();
                row.refused += refused.len();
                row.by.append(&mut by);
            }
            None => seen.push(Row { rule, accepted: accepted.len(), refused: refused.len(), by }),
        }
    }
    Ok(())
}

/// A dry run.
fn attempt_one(cluster: &Cluster, this: &Try) -> Result<()> {
    match this {
        Create(object) => create(cluster, object, true).map(drop),
        Change(kind, name, patch) => {
            let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
            cluster.wait(api(cluster, kind, None).patch(name, &parameters, &Patch::Merge(patch)))?;
            Ok(())
        }
        Delete(kind, name) => {
            let parameters = DeleteParams { dry_run: true, ..DeleteParams::default() };
            cluster.wait(api(cluster, kind, None).delete(name, &parameters))?;
            Ok(())
        }
    }
}

/// A pod of a StatefulSet.
fn owned(name: &str, annotations: &[(&str, &str)]) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "kept", "uid": "1", "controller": true});
    pod(name, json!({"annotations": annotations_of(annotations), "ownerReferences": [owner]}))
}

/// Precedence: a retained address, the pod's own annotations, the namespace's, the defaults. Each
/// case also checks the node selector.
fn stamps(cluster: &Cluster) -> Result<usize> {
    // A pod is created directly after its namespace. The watch may not have the namespace yet.
    let annotations = annotations_of(&[("specified-network", "vlan")]);
    create(
        cluster,
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant", "annotations": annotations}}),
        false,
    )?;
    let in_tenant = |mut pod: Value| {
        pod["metadata"]["namespace"] = json!("tenant");
        pod
    };
    let quota = "networking.alibaba.com/ipv4-address-quota=nonempty";
    let underlay = "networking.alibaba.com/underlay-network-attachment=true";
    let cases = [
        (
            "the namespace's",
            in_tenant(pod("p", json!({}))),
            Some("vlan"),
            "Underlay",
            vec!["network=rack2", quota],
        ),
        (
            "the pod's",
            in_tenant(pod("p", json!({"annotations": annotations_of(&[("specified-subnet", "bgp4")])}))),
            Some("bgp"),
            "Underlay",
            vec!["network=rack1", quota],
        ),
        ("the defaults", pod("p", json!({})), None, "Underlay", vec![underlay, quota]),
        (
            "the kept address's",
            owned("kept-0", &[("specified-network", "vlan")]),
            Some("bgp"),
            "Underlay",
            vec!["network=rack1"],
        ),
        (
            "not retained",
            owned("other-0", &[("specified-network", "vlan")]),
            Some("vlan"),
            "Underlay",
            vec!["network=rack2", quota],
        ),
        (
            "Overlay",
            pod("p", json!({"annotations": annotations_of(&[("network-type", "Overlay")])})),
            None,
            "Overlay",
            vec!["networking.alibaba.com/overlay-network-attachment=true"],
        ),
    ];
    let count = cases.len();
    for (case, pod, network, network_type, selector) in cases {
        let stamped = create(cluster, &pod, true).with_context(|| case.to_owned())?;
        let annotations = stamped.metadata.annotations.clone().unwrap_or_default();
        let said =
            |name: &str| annotations.get(&format!("networking.alibaba.com/{name}")).map(String::as_str);
        ensure!(said("specified-network") == network, "{case}: {annotations:?}");
        ensure!(said("network-type") == Some(network_type), "{case}: {annotations:?}");
        ensure!(
            said("ip-family") == Some("IPv4") && said("handled-by-webhook") == Some("true"),
            "{case}: {annotations:?}"
        );
        let chosen = stamped.data["spec"]["nodeSelector"].as_object().cloned().unwrap_or_default();
        let mut chosen: Vec<String> =
            chosen.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
        let mut wanted: Vec<String> = selector.into_iter().map(str::to_owned).collect();
        chosen.sort();
        wanted.sort();
        ensure!(chosen == wanted, "{case}: {chosen:?}");
    }
    let mut host = pod("host", json!({}));
    host["spec"]["hostNetwork"] = json!(true);
    let host = create(cluster, &host, true)?;
    let tolerations = host.data["spec"]["tolerations"].to_string();
    ensure!(
        tolerations.contains("node.kubernetes.io/network-unavailable"),
        "a host network pod: {tolerations}"
    );
    ensure!(host.data["spec"]["nodeSelector"].is_null(), "a host network pod got a node selector");
    Ok(count + 1)
}
