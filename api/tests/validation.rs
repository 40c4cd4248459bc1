//! Every rule of `trunkline_api::validate` in a table: a valid set of manifests, one edit, and the
//! resulting fault.
#![allow(missing_docs, reason = "a test")]

#[path = "validation/peers.rs"]
mod peers;

use std::collections::BTreeMap;

use trunkline_api::manifest::{self, Resource};
use trunkline_api::resources::{Network, NodeInfo, Subnet};
use trunkline_api::validate::{Fault, validate, validate_change, validate_for_node, validate_nodes};

/// A set with a value for every field.
const GOOD: &str = r#"
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {name: rack1}
spec:
  type: Underlay
  mode: BGP
  nodeSelector: {rack: "1"}
  netID: 64701
  config:
    extraPrefixes: [10.9.0.0/16, "fd00:9::/64", 0.0.0.0/0]
    prefixSets:
      fabric: [{prefix: 10.30.0.0/16, le: 20}, {prefix: "2001:db8:30::/48"}]
    bgpPeers:
    - asn: 64601
      address: 10.0.0.1
      gracefulRestartSeconds: 4095
      password: "k1"
      port: 1179
      sourceAddress: 10.0.0.2
      holdTimeSeconds: 9
      keepaliveSeconds: 3
      connectRetrySeconds: 5
      ebgpMultihop: 255
      passive: false
      maxPrefixes: 100000
      bfd: {intervalMilliseconds: 300, multiplier: 3}
      import:
        rules:
        - prefixes: [{prefix: 0.0.0.0/0}, {prefix: 10.0.0.0/8, ge: 16, le: 24}]
          communities: ["65000:100", no-export]
          largeCommunities: ["65000:1:2"]
          set: {localPreference: 200, med: 1, prepend: 2, addCommunities: ["65000:7"], removeCommunities: ["65000:8"], addLargeCommunities: ["65000:3:4"]}
          action: accept
        default: reject
      export:
        rules:
        - name: fabric
          prefixSets: [fabric]
          communities: {anyOf: ["65000:11"], allOf: ["65000:12"], noneOf: ["65000:13"]}
          asPath: {minLength: 1, maxLength: 9, contains: [64610], originAs: [64611], neighbourAs: [64612]}
          origins: [igp, incomplete]
          nextHops: [10.20.0.0/16]
          originated: false
          set: {setCommunities: ["65000:14"], setLargeCommunities: [], removeLargeCommunities: ["65000:3:5"]}
          action: accept
    - asn: 4294967295
      address: fe80::1%eth1
      passwordFile: /etc/trunkline/key
      ttlSecurity: 1
      holdTimeSeconds: 0
    - asn: 64602
      prefix: 10.9.0.0/24
      limit: 7
      passwordFile: /etc/trunkline/range
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {name: rack1-v4}
spec:
  network: rack1
  config: {autoNatOutgoing: true, private: false}
  range:
    version: "4"
    cidr: 10.14.0.0/24
    start: 10.14.0.10
    end: 10.14.0.200
    gateway: 10.14.0.254
    reservedIPs: [10.14.0.11]
    excludeIPs: [10.14.0.12]
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {name: rack1-v6}
spec:
  network: rack1
  range: {version: "6", cidr: "2001:db8:14::/112"}
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {name: vlan}
spec: {type: Underlay, nodeSelector: {rack: "2"}, netID: 7}
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {name: vlan-v4}
spec:
  network: vlan
  netID: 7
  config: {autoNatOutgoing: false}
  range: {version: "4", cidr: 10.15.0.0/24, gateway: 10.15.0.1}
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {name: overlay}
spec: {type: Overlay, netID: 4}
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {name: overlay-v4}
spec:
  network: overlay
  range: {version: "4", cidr: 10.16.0.0/16}
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {name: global}
spec: {type: GlobalBGP}
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {name: global-v4}
spec:
  network: global
  range: {version: "4", cidr: 10.17.0.0/24}
"#;

/// Nodes of the set's overlay.
const NODES: &str = r#"---
apiVersion: networking.alibaba.com/v1
kind: NodeInfo
metadata: {name: node1}
spec:
  vtepInfo: {ip: 192.0.2.1, mac: "02:00:5e:00:00:01", localIPs: [192.0.2.101]}
  config: {podCIDRs: [10.16.1.0/24, 10.14.0.128/26]}
---
apiVersion: networking.alibaba.com/v1
kind: NodeInfo
metadata: {name: node2}
spec:
  vtepInfo: {ip: 192.0.2.2}
  config: {podCIDRs: [10.16.2.0/24]}
"#;

fn load(text: &str) -> (Vec<Network>, Vec<Subnet>, Vec<NodeInfo>) {
    let (mut networks, mut subnets, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    let resources = manifest::parse(text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    for resource in resources {
        match resource {
            Resource::Network(network) => networks.push(*network),
            Resource::Subnet(subnet) => subnets.push(*subnet),
            Resource::NodeInfo(node) => nodes.push(*node),
            Resource::AgentSettings(settings) => panic!("AgentSettings {}", settings.name()),
            Resource::AnycastAddress(anycast) => panic!("AnycastAddress {}", anycast.name()),
            other => panic!("{other:?}"),
        }
    }
    (networks, subnets, nodes)
}

fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "`{from}` must occur once");
        text.replacen(from, to, 1)
    })
}

fn faults(text: &str) -> Vec<Fault> {
    let (networks, subnets, nodes) = load(text);
    let mut found = validate(&networks, &subnets).err().unwrap_or_default();
    found.extend(validate_nodes(&nodes, &networks, &subnets).err().unwrap_or_default());
    found
}

/// (edits, resource, field, parts of the message: the value and the fix)
type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, &'a [&'a str]);

/// Each row's edits cause exactly one fault, the row's.
fn check(table: &[Row<'_>]) {
    check_in(GOOD, table);
}

fn check_in(text: &str, table: &[Row<'_>]) {
    for (edits, resource, field, parts) in table {
        let found = faults(&edited(text, edits));
        let fault = match found.as_slice() {
            [fault] => fault,
            others => panic!("{edits:?}: one fault expected, got {others:#?}"),
        };
        assert_eq!(format!("{} {}", fault.kind, fault.name), *resource, "{fault}");
        assert_eq!(fault.field, *field, "{fault}");
        for part in *parts {
            assert!(fault.message.contains(part), "`{part}` is missing: {fault}");
        }
    }
}

#[test]
fn the_good_set_is_good() {
    assert_eq!(faults(GOOD), []);
}

#[test]
fn networks() {
    const VLAN: &str = "{type: Underlay, nodeSelector: {rack: \"2\"}, netID: 7}";
    const OVERLAY: &str = "{type: Overlay, netID: 4}";
    const GLOBAL: &str = "{type: GlobalBGP}";
    check(&[
        (
            &[(VLAN, "{type: Underlay, netID: 7}")],
            "Network vlan",
            "spec.nodeSelector",
            &["missing", "labels of its nodes"],
        ),
        (
            &[("nodeSelector: {rack: \"1\"}", "nodeSelector: null")],
            "Network rack1",
            "spec.nodeSelector",
            &["missing"],
        ),
        (
            &[(OVERLAY, "{type: Overlay, netID: 4, nodeSelector: {a: b}}")],
            "Network overlay",
            "spec.nodeSelector",
            &["\"a\": \"b\"", "leave it out"],
        ),
        (
            &[(GLOBAL, "{type: GlobalBGP, nodeSelector: {a: b}}")],
            "Network global",
            "spec.nodeSelector",
            &["leave it out"],
        ),
        (
            &[(GLOBAL, "{type: GlobalBGP, netID: 64701}")],
            "Network global",
            "spec.netID",
            &["64701", "leave it out"],
        ),
        (&[(OVERLAY, "{type: Overlay}")], "Network overlay", "spec.netID", &["missing", "VNI"]),
        (
            &[(OVERLAY, "{type: Overlay, netID: 16777216}")],
            "Network overlay",
            "spec.netID",
            &["16777216", "16777215"],
        ),
        (
            &[(VLAN, "{type: Underlay, nodeSelector: {rack: \"2\"}, netID: 4095}"), ("  netID: 7\n", "")],
            "Network vlan",
            "spec.netID",
            &["4095", "4094"],
        ),
        (
            &[
                (OVERLAY, "{type: Overlay, netID: 4, mode: VLAN}"),
                ("cidr: 10.16.0.0/16", "cidr: 10.16.0.0/16, gateway: 10.16.0.1"),
            ],
            "Network overlay",
            "spec.mode",
            &["VLAN", "Overlay", "type: Underlay"],
        ),
        (
            &[(GLOBAL, "{type: GlobalBGP, mode: VXLAN, netID: 1}")],
            "Network global",
            "spec.mode",
            &["VXLAN", "type: Overlay"],
        ),
        (&[("  netID: 64701\n", "")], "Network rack1", "spec.netID", &["missing", "AS number of the nodes"]),
        (
            &[("  netID: 64701\n", "  netID: 0\n")],
            "Network rack1",
            "spec.netID",
            &["0 is not an AS number", "1 to 4294967295"],
        ),
        (&[("  netID: 64701\n", "  netID: 23456\n")], "Network rack1", "spec.netID", &["23456", "AS_TRANS"]),
        (
            &[(OVERLAY, "{type: Overlay, netID: 4, config: {bgpPeers: [{asn: 1, address: 10.0.0.9}]}}")],
            "Network overlay",
            "spec.config.bgpPeers",
            &["VXLAN", "mode: BGP"],
        ),
        (
            &[(OVERLAY, "{type: Overlay, netID: 4, config: {gracefulShutdown: {}}}")],
            "Network overlay",
            "spec.config.gracefulShutdown",
            &["VXLAN", "leave it out"],
        ),
        (
            &[(OVERLAY, "{type: Overlay, netID: 4, config: {attachment: ipvlan}}")],
            "Network overlay",
            "spec.config.attachment",
            &["VXLAN", "leave it out"],
        ),
        (
            &[(GLOBAL, "{type: GlobalBGP, config: {hairpin: true}}")],
            "Network global",
            "spec.config.hairpin",
            &["GlobalBGP", "leave it out"],
        ),
        (
            &[(
                VLAN,
                "{type: Underlay, nodeSelector: {rack: \"2\"}, netID: 7, config: {hairpin: true, attachment: ipvlan}}",
            )],
            "Network vlan",
            "spec.config.hairpin",
            &["ipvlan", "leave out one of the two"],
        ),
        (
            &[("    prefixSets:\n", "    hairpin: true\n    prefixSets:\n")],
            "Network rack1",
            "spec.config.bgpPeers[0].import",
            &["hairpin: true", "leave out one of the two"],
        ),
        (
            &[("extraPrefixes: [10.9.0.0/16, ", "extraPrefixes: [10.9.0.1/16, ")],
            "Network rack1",
            "spec.config.extraPrefixes[0]",
            &["10.9.0.1/16 has host bits", "write 10.9.0.0/16"],
        ),
        (
            &[("\"fd00:9::/64\"", "\"fd00:9::1\"")],
            "Network rack1",
            "spec.config.extraPrefixes[1]",
            &["has no length", "write fd00:9::1/128"],
        ),
        (
            &[("\"fd00:9::/64\"", "\"ff02::/16\"")],
            "Network rack1",
            "spec.config.extraPrefixes[1]",
            &["ff02::/16 is in ff00::/8"],
        ),
        (
            &[(
                VLAN,
                "{type: Underlay, nodeSelector: {rack: \"2\"}, netID: 7, config: {attachment: ipvlan, extraPrefixes: [10.9.0.0/16]}}",
            )],
            "Network vlan",
            "spec.config.extraPrefixes",
            &["ipvlan", "leave out one of the two"],
        ),
        (
            &[("{name: vlan}", "{name: rack1}"), ("network: vlan", "network: rack1"), ("  netID: 7\n", "")],
            "Network rack1",
            "metadata.name",
            &["rack1", "twice"],
        ),
        (
            &[("{name: overlay-v4}", "{name: Overlay_v4}")],
            "Subnet Overlay_v4",
            "metadata.name",
            &["Overlay_v4", "a-z"],
        ),
        (
            &[("{name: overlay-v4}", "{name: vlan-v4}")],
            "Subnet vlan-v4",
            "metadata.name",
            &["vlan-v4", "twice"],
        ),
    ]);
}

#[test]
fn nodes_of_the_overlay() {
    let vtep = "spec.vtepInfo.ip";
    let text = format!("{GOOD}{NODES}");
    assert_eq!(faults(&text), []);
    check_in(
        &text,
        &[
            (&[("192.0.2.2}", "192.0.2.300}")], "NodeInfo node2", vtep, &["192.0.2.300", "IP address"]),
            (&[("192.0.2.2}", "127.0.0.1}")], "NodeInfo node2", vtep, &["127.0.0.1", "one of the node's"]),
            (
                &[("192.0.2.2}", "169.254.9.9}")],
                "NodeInfo node2",
                vtep,
                &["169.254.9.9", "one of the node's"],
            ),
            (
                &[("192.0.2.2}", "10.16.9.9}")],
                "NodeInfo node2",
                vtep,
                &["10.16.0.0/16", "overlay-v4", "links"],
            ),
            (&[("192.0.2.2}", "'', localIPs: [192.0.2.9]}")], "NodeInfo node2", vtep, &["such as"]),
            (
                &[("192.0.2.2}", "2001:db8::2}")],
                "NodeInfo node2",
                vtep,
                &["192.0.2.1 of NodeInfo node1", "one family"],
            ),
            (
                &[("[192.0.2.101]", "[nowhere]")],
                "NodeInfo node1",
                "spec.vtepInfo.localIPs[0]",
                &["nowhere", "such as"],
            ),
            (&[("192.0.2.2}", "192.0.2.101}")], "NodeInfo node2", "spec.vtepInfo", &["192.0.2.101", "node1"]),
            (
                &[("192.0.2.2}", "192.0.2.2, mac: \"02:00:5e:00:00:01\"}")],
                "NodeInfo node2",
                "spec.vtepInfo.mac",
                &["NodeInfo node1", "leave it out"],
            ),
            (
                &[("02:00:5e:00:00:01", "03:00:5e:00:00:01")],
                "NodeInfo node1",
                "spec.vtepInfo.mac",
                &["03:00", "such as"],
            ),
            (
                &[("[10.16.2.0/24]", "[ten]")],
                "NodeInfo node2",
                "spec.config.podCIDRs[0]",
                &["`ten`", "10.200.1.0/24"],
            ),
            (
                &[("[10.16.2.0/24]", "[10.16.2.1/24]")],
                "NodeInfo node2",
                "spec.config.podCIDRs[0]",
                &["host bits", "10.16.2.0/24"],
            ),
            (
                &[("[10.16.2.0/24]", "[10.18.0.0/24]")],
                "NodeInfo node2",
                "spec.config.podCIDRs[0]",
                &["no Subnet"],
            ),
            (
                &[("[10.16.2.0/24]", "[10.16.0.0/22]")],
                "NodeInfo node2",
                "spec.config.podCIDRs[0]",
                &["10.16.1.0/24 of NodeInfo node1", "do not overlap"],
            ),
            (
                &[("[10.16.2.0/24]", "[10.16.2.0/24, 10.16.3.0/24]")],
                "NodeInfo node2",
                "spec.config.podCIDRs[1]",
                &["overlay-v4", "podCIDRs[0]", "contains both"],
            ),
            (&[("{name: node2}", "{name: Node_2}")], "NodeInfo Node_2", "metadata.name", &["not a name"]),
        ],
    );
}

#[test]
fn at_most_one_overlay_and_one_global_bgp() {
    for (spec, first) in [("{type: Overlay, netID: 9}", "overlay"), ("{type: GlobalBGP}", "global")] {
        let text = format!(
            "{GOOD}---\napiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {{name: more}}\nspec: {spec}\n"
        );
        let found = faults(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].name.as_str(), found[0].field.as_str()), ("more", "spec.type"));
        assert!(found[0].message.contains(first), "{}", found[0]);
    }
}

#[test]
fn a_bgp_network_without_config_is_refused_not_a_crash() {
    let text = "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: n}\n\
                spec: {mode: BGP, netID: 1, nodeSelector: {a: b}}\n";
    let found = faults(text);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "Network n: spec.config.bgpPeers: missing: mode BGP needs at least one router, with asn and address (or interface, or prefix)"
    );
}

#[test]
fn subnets() {
    const V4: &str = "Subnet rack1-v4";
    check(&[
        (
            &[("network: overlay\n", "network: nowhere\n")],
            "Subnet overlay-v4",
            "spec.network",
            &["`nowhere`", "add it"],
        ),
        (&[("network: overlay\n", "network: \"\"\n")], "Subnet overlay-v4", "spec.network", &["missing"]),
        (
            &[("  network: overlay\n", "  network: overlay\n  netID: 4\n")],
            "Subnet overlay-v4",
            "spec.netID",
            &["4", "VXLAN", "leave it out"],
        ),
        (
            &[("  network: global\n", "  network: global\n  netID: 4\n")],
            "Subnet global-v4",
            "spec.netID",
            &["GlobalBGP"],
        ),
        (&[("  netID: 7\n", "  netID: 8\n")], "Subnet vlan-v4", "spec.netID", &["8", "7 of Network vlan"]),
        (
            &[("  netID: 7\n", ""), (", netID: 7}", "}")],
            "Subnet vlan-v4",
            "spec.netID",
            &["missing", "VLAN id"],
        ),
        (
            &[("  netID: 7\n", "  netID: 4095\n"), (", netID: 7}", "}")],
            "Subnet vlan-v4",
            "spec.netID",
            &["4095", "4094"],
        ),
        (&[(", gateway: 10.15.0.1", "")], "Subnet vlan-v4", "spec.range.gateway", &["missing", "router"]),
        (
            &[("autoNatOutgoing: false", "autoNatOutgoing: true")],
            "Subnet vlan-v4",
            "spec.config.autoNatOutgoing",
            &["true", "leave it out"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.16.0.0")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["`10.16.0.0`", "10.14.0.0/24"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.16.0.0/33")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["`10.16.0.0/33`"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.16.1.0/16")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["10.16.1.0/16", "write 10.16.0.0/16"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.16.0.0/32")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["single address"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 169.254.0.0/24")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["gateway"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 127.0.0.0/24")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["loopback"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 239.0.0.0/24")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["multicast"],
        ),
        (
            &[("cidr: \"2001:db8:14::/112\"", "cidr: \"fe80::/112\"")],
            "Subnet rack1-v6",
            "spec.range.cidr",
            &["link-local"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.32.0.0/15")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["65536", "start and end"],
        ),
        (&[("/112", "/64")], "Subnet rack1-v6", "spec.range.cidr", &["65536", "start and end"]),
        (&[("{version: \"6\"", "{version: \"4\"")], "Subnet rack1-v6", "spec.range.version", &["\"6\""]),
        (
            &[("start: 10.14.0.10", "start: 10.14.0.201")],
            V4,
            "spec.range.start",
            &["10.14.0.201", "after the end 10.14.0.200"],
        ),
        (
            &[("start: 10.14.0.10", "start: 10.13.0.10")],
            V4,
            "spec.range.start",
            &["10.13.0.10", "not in 10.14.0.0/24"],
        ),
        (&[("end: 10.14.0.200", "end: 10.14.1.200")], V4, "spec.range.end", &["10.14.1.200", "10.14.0.0/24"]),
        (&[("end: 10.14.0.200", "end: last")], V4, "spec.range.end", &["`last`", "not an IP address"]),
        (
            &[("gateway: 10.14.0.254", "gateway: 10.15.0.254")],
            V4,
            "spec.range.gateway",
            &["10.15.0.254", "not in"],
        ),
        (
            &[("gateway: 10.14.0.254", "gateway: \"2001:db8::1\"")],
            V4,
            "spec.range.gateway",
            &["2001:db8::1", "not in"],
        ),
        (
            &[("reservedIPs: [10.14.0.11]", "reservedIPs: [10.14.0.11, x]")],
            V4,
            "spec.range.reservedIPs[1]",
            &["`x`"],
        ),
        (
            &[("excludeIPs: [10.14.0.12]", "excludeIPs: [10.1.0.12]")],
            V4,
            "spec.range.excludeIPs[0]",
            &["10.1.0.12", "not in"],
        ),
        (
            &[
                ("start: 10.14.0.10", "start: 10.14.0.253"),
                ("end: 10.14.0.200", "end: 10.14.0.255"),
                ("[10.14.0.12]", "[10.14.0.253]"),
            ],
            V4,
            "spec.range",
            &["no address is left", "10.14.0.253 to 10.14.0.255"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.14.0.0/23")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["10.14.0.0/23 overlaps 10.14.0.0/24", "rack1-v4"],
        ),
        (
            &[("cidr: 10.16.0.0/16", "cidr: 10.14.0.0/24")],
            "Subnet overlay-v4",
            "spec.range.cidr",
            &["rack1-v4", "Network rack1", "same network"],
        ),
    ]);
}

#[test]
fn equal_prefixes_of_one_network_allocate_different_addresses() {
    let with = |range: &str| {
        faults(&format!(
            "{GOOD}---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: more}}\n\
             spec: {{network: rack1, range: {{version: \"4\", cidr: 10.14.0.0/24, {range}}}}}\n"
        ))
    };
    assert_eq!(with("start: 10.14.0.201, end: 10.14.0.220"), []);
    assert_eq!(
        with("start: 10.14.0.12, end: 10.14.0.12, excludeIPs: [10.14.0.99]"),
        [],
        "the other Subnet excludes the address"
    );
    let found = with("start: 10.14.0.200, end: 10.14.0.220");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "spec.range");
    assert!(found[0].message.contains("10.14.0.200 to 10.14.0.200"), "{}", found[0]);
    assert!(found[0].message.contains("rack1-v4"), "{}", found[0]);
}

#[test]
fn all_faults_are_reported_at_once() {
    let found = faults(&edited(
        GOOD,
        &[
            ("asn: 64601", "asn: 0"),
            ("start: 10.14.0.10", "start: 10.14.0.201"),
            ("cidr: 10.16.0.0/16", "cidr: x"),
        ],
    ));
    let fields: Vec<&str> = found.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(fields, ["spec.config.bgpPeers[0].asn", "spec.range.start", "spec.range.cidr"]);
}

#[test]
fn a_node_has_one_underlay_network_and_one_local_as() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let second_bgp = "---\napiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: rack1b}\n\
                      spec: {mode: BGP, nodeSelector: {zone: a}, netID: AS, config: {bgpPeers: [{asn: 1, address: 10.0.0.9}]}}\n";
    let on = |local_as: &str, pairs: &[(&str, &str)]| {
        let (networks, subnets, _) = load(&format!("{GOOD}{}", second_bgp.replace("AS", local_as)));
        assert_eq!(validate(&networks, &subnets), Ok(()), "no fault while no node is in both");
        validate_for_node(&networks, &subnets, &labels(pairs)).err().unwrap_or_default()
    };
    assert_eq!(on("64702", &[("rack", "1")]), []);
    assert_eq!(on("64702", &[("zone", "a")]), []);
    assert_eq!(on("64702", &[]), []);

    let found = on("64702", &[("rack", "1"), ("zone", "a")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].name.as_str(), found[0].field.as_str()), ("rack1b", "spec.netID"));
    for part in ["64702", "64701", "Network rack1", "nodeSelector"] {
        assert!(found[0].message.contains(part), "{}", found[0]);
    }
    // Both networks have the same AS, so no AS numbers conflict. But the node still has two paths
    // into the fabric.
    let found = on("64701", &[("rack", "1"), ("zone", "a")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "spec.nodeSelector");
    assert!(found[0].message.contains("rack1"), "{}", found[0]);
}

#[test]
fn immutable_fields_are_named() {
    let (networks, subnets, _) = load(GOOD);
    let change = |edits: &[(&str, &str)]| {
        let (new_networks, new_subnets, _) = load(&edited(GOOD, edits));
        validate_change((&networks, &subnets), (&new_networks, &new_subnets)).err().unwrap_or_default()
    };
    // These changes are allowed.
    for edit in [
        ("asn: 64601", "asn: 64602"),
        ("nodeSelector: {rack: \"1\"}", "nodeSelector: {rack: \"9\"}"),
        ("reservedIPs: [10.14.0.11]", "reservedIPs: [10.14.0.13]"),
        ("private: false", "private: true"),
        ("autoNatOutgoing: true", "autoNatOutgoing: false"),
        ("{name: overlay-v4}", "{name: another}"),
    ] {
        assert_eq!(change(&[edit]), [], "{edit:?}");
    }
    for (from, to, field, parts) in [
        ("netID: 64701", "netID: 64702", "spec.netID", ["64702", "64701"]),
        ("  mode: BGP\n", "", "spec.mode", ["VLAN", "BGP"]),
        ("{type: GlobalBGP}", "{type: GlobalBGP, netID: 5}", "spec.netID", ["5", "nothing"]),
        ("network: overlay\n", "network: global\n", "spec.network", ["global", "overlay"]),
        ("  netID: 7\n", "", "spec.netID", ["7", "nothing"]),
        ("cidr: 10.16.0.0/16", "cidr: 10.18.0.0/16", "spec.range.cidr", ["10.18.0.0/16", "10.16.0.0/16"]),
        ("start: 10.14.0.10", "start: 10.14.0.9", "spec.range.start", ["10.14.0.9", "10.14.0.10"]),
        ("end: 10.14.0.200", "end: \"\"", "spec.range.end", ["nothing", "10.14.0.200"]),
        (
            "gateway: 10.14.0.254",
            "gateway: 10.14.0.253",
            "spec.range.gateway",
            ["10.14.0.253", "10.14.0.254"],
        ),
        (
            "[10.14.0.12]",
            "[10.14.0.12, 10.14.0.13]",
            "spec.range.excludeIPs",
            ["10.14.0.13", "was 10.14.0.12 "],
        ),
    ] {
        let found = change(&[(from, to)]);
        assert_eq!(found.len(), 1, "{to}: {found:?}");
        assert_eq!(found[0].field, field);
        for part in parts {
            assert!(found[0].message.contains(part), "{}", found[0]);
        }
    }
    let found = change(&[("{type: Overlay, netID: 4}", "{type: Underlay, netID: 4, mode: VXLAN}")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "spec.type");
}
