//! Rules for a peer and its policies.

use super::*;

#[test]
fn peers() {
    // (edit, field of the peer, parts of the message): one row for each rule.
    let first: &[(&str, &str, &str, &[&str])] = &[
        ("asn: 64601", "asn: 0", "asn", &["0 is not an AS number", "1 to 4294967295"]),
        ("asn: 64601", "asn: 23456", "asn", &["AS_TRANS"]),
        ("address: 10.0.0.1\n", "address: tor1\n", "address", &["`tor1`", "not an IP address", "10.14.0.1"]),
        ("address: 10.0.0.1\n", "address: 10.0.0.1/24\n", "address", &["`10.0.0.1/24`"]),
        ("address: 10.0.0.1\n", "address: 10.0.0.1%\n", "address", &["`10.0.0.1%`", "fe80::1%eth1"]),
        (
            "address: 10.0.0.1\n",
            "address: 10.0.0.1%eth0\n",
            "address",
            &["only a link-local address", "write 10.0.0.1"],
        ),
        ("address: 10.0.0.1\n", "address: 0.0.0.0\n", "address", &["unspecified"]),
        ("address: 10.0.0.1\n", "address: 224.0.0.5\n", "address", &["multicast"]),
        ("address: 10.0.0.1\n", "address: 255.255.255.255\n", "address", &["broadcast"]),
        (
            "gracefulRestartSeconds: 4095",
            "gracefulRestartSeconds: 4096",
            "gracefulRestartSeconds",
            &["4096", "4095"],
        ),
        (
            "gracefulRestartSeconds: 4095",
            "longLivedStaleSeconds: 0",
            "longLivedStaleSeconds",
            &["0 is not from 1 to 16777215", "leave it out"],
        ),
        (
            "gracefulRestartSeconds: 4095",
            "longLivedStaleSeconds: {ipv4: 60, ipv6: 0}",
            "longLivedStaleSeconds",
            &["0 is not from 1 to 16777215"],
        ),
        (
            "gracefulRestartSeconds: 4095",
            "longLivedStaleSeconds: 16777216",
            "longLivedStaleSeconds",
            &["16777216"],
        ),
        (
            "port: 1179",
            "routeReflectorClient: true",
            "routeReflectorClient",
            &["not the network's own", "leave it out"],
        ),
        (
            "port: 1179",
            "localRoleStrict: true",
            "localRoleStrict",
            &["has no effect without \
            localRole"],
        ),
        ("port: 1179", "allowAsIn: 11", "allowAsIn", &["11 is not from 1 to 10"]),
        ("port: 1179", "localAs: {asn: 0}", "localAs.asn", &["0 is not an AS number"]),
        (
            "port: 1179",
            "localAs: {asn: 64701}",
            "localAs",
            &[
                "network's own AS number",
                "leave it \
            out",
            ],
        ),
        ("port: 1179", "localAs: {asn: 64601}", "localAs", &["64601 is the peer's own"]),
        ("port: 1179", "nextHopSelf: true", "nextHopSelf", &["always receives", "leave it out"]),
        ("port: 1179", "addPath: {send: 256}", "addPath.send", &["256", "1 to 255"]),
        ("port: 1179", "addPath: {}", "addPath", &["has no effect", "receive: true"]),
        ("port: 1179", "port: 0", "port", &["0 is not a port", "179"]),
        ("sourceAddress: 10.0.0.2", "sourceAddress: here", "sourceAddress", &["`here`"]),
        (
            "sourceAddress: 10.0.0.2",
            "sourceAddress: 2001:db8::2",
            "sourceAddress",
            &["2001:db8::2", "families"],
        ),
        ("sourceAddress: 10.0.0.2", "sourceAddress: 10.0.0.1", "sourceAddress", &["peer's own"]),
        ("sourceAddress: 10.0.0.2", "sourceAddress: 224.0.0.1", "sourceAddress", &["multicast"]),
        ("holdTimeSeconds: 9", "holdTimeSeconds: 2", "holdTimeSeconds", &["2", "3 to 65535"]),
        ("holdTimeSeconds: 9", "holdTimeSeconds: 65536", "holdTimeSeconds", &["65536"]),
        ("keepaliveSeconds: 3", "keepaliveSeconds: 4", "keepaliveSeconds", &["4", "third", "3 or less"]),
        ("keepaliveSeconds: 3", "keepaliveSeconds: 0", "keepaliveSeconds", &["0", "3 or less"]),
        ("holdTimeSeconds: 9", "holdTimeSeconds: 0 # 9", "keepaliveSeconds", &["leave it out"]),
        ("connectRetrySeconds: 5", "connectRetrySeconds: 0", "connectRetrySeconds", &["0", "1 to 65535"]),
        ("connectRetrySeconds: 5", "connectRetrySeconds: 65536", "connectRetrySeconds", &["65536"]),
        ("ebgpMultihop: 255", "ebgpMultihop: 0", "ebgpMultihop", &["0 is not a TTL", "1 to 255"]),
        ("ebgpMultihop: 255", "ebgpMultihop: 256", "ebgpMultihop", &["256"]),
        ("asn: 64601", "asn: 64701", "ebgpMultihop", &["64701", "leave it out"]),
        (
            "ebgpMultihop: 255",
            "ebgpMultihop: 2\n      ttlSecurity: 2",
            "ttlSecurity",
            &["excludes ebgpMultihop"],
        ),
        (
            "intervalMilliseconds: 300",
            "intervalMilliseconds: 9",
            "bfd.intervalMilliseconds",
            &["9", "10 to 60000", "for 300"],
        ),
        ("intervalMilliseconds: 300", "intervalMilliseconds: 60001", "bfd.intervalMilliseconds", &["60001"]),
        ("multiplier: 3", "multiplier: 0", "bfd.multiplier", &["0", "1 to 255", "for 3"]),
        ("multiplier: 3", "multiplier: 256", "bfd.multiplier", &["256"]),
        ("maxPrefixes: 100000", "maxPrefixes: 0", "maxPrefixes", &["0", "leave it out"]),
        (
            "password: \"k1\"",
            "password: k1\n      passwordFile: /k",
            "passwordFile",
            &["leave out \
            one"],
        ),
        (
            "password: \"k1\"",
            "password: k1\n      passwordSecretRef: {name: tor, key: k}",
            "passwordSecretRef",
            &["password is also set", "leave out one"],
        ),
        (
            "password: \"k1\"",
            "passwordFile: /k\n      passwordSecretRef: {name: tor, key: k}",
            "passwordSecretRef",
            &["passwordFile is also set", "leave out one"],
        ),
        (
            "password: \"k1\"",
            "passwordSecretRef: {name: Tor, key: k}",
            "passwordSecretRef.name",
            &["`Tor` is not a name"],
        ),
        (
            "password: \"k1\"",
            "passwordSecretRef: {name: tor, namespace: '', key: k}",
            "passwordSecretRef.namespace",
            &["`` is not a name"],
        ),
        (
            "password: \"k1\"",
            "passwordSecretRef: {name: tor, key: a/b}",
            "passwordSecretRef.key",
            &["`a/b` is no key"],
        ),
        (
            "{prefix: 0.0.0.0/0}",
            "{prefix: any}",
            "import.rules[0].prefixes[0].prefix",
            &["`any`", "10.0.0.0/8"],
        ),
        (
            "{prefix: 0.0.0.0/0}",
            "{prefix: 10.1.2.3/8}",
            "import.rules[0].prefixes[0].prefix",
            &["10.1.2.3/8", "write 10.0.0.0/8"],
        ),
        ("ge: 16", "ge: 7", "import.rules[0].prefixes[1].ge", &["7", "8 to 32"]),
        ("ge: 16, le: 24", "ge: 33", "import.rules[0].prefixes[1].ge", &["33"]),
        ("le: 24", "le: 15", "import.rules[0].prefixes[1].le", &["15", "16 to 32"]),
        ("le: 24", "le: 33", "import.rules[0].prefixes[1].le", &["33"]),
        ("\"65000:100\"", "\"65536:100\"", "import.rules[0].communities[0]", &["`65536:100`", "no-export"]),
        ("\"65000:1:2\"", "\"65000:1\"", "import.rules[0].largeCommunities[0]", &["`65000:1`", "65000:1:2"]),
        (
            "largeCommunities: [\"65000:1:2\"]",
            "extendedCommunities: [\"rt:65536:65536\"]",
            "import.rules[0].extendedCommunities[0]",
            &["`rt:65536:65536`", "up to 65535"],
        ),
        (
            "addLargeCommunities:",
            "addExtendedCommunities:",
            "import.rules[0].set.addExtendedCommunities[0]",
            &["rt:65000:100"],
        ),
        ("\"65000:7\"", "x", "import.rules[0].set.addCommunities[0]", &["`x`"]),
        ("\"65000:8\"", "x", "import.rules[0].set.removeCommunities[0]", &["`x`"]),
        ("\"65000:3:4\"", "x", "import.rules[0].set.addLargeCommunities[0]", &["`x`"]),
        (
            "          action: accept\n        default",
            "          action: accept\n        - communities: [no-peer]\n        default",
            "import.rules[1].action",
            &["accept or reject"],
        ),
        (
            "largeCommunities: [\"65000:1:2\"]",
            "largeCommunities: []\n          originated: true",
            "import.rules[0].originated",
            &["leave it out"],
        ),
        (
            "prefixSets: [fabric]",
            "prefixSets: [fabrik]",
            "export.rules[0].prefixSets[0]",
            &["`fabrik`", "(fabric)"],
        ),
        ("[\"65000:11\"]", "[x]", "export.rules[0].communities.anyOf[0]", &["`x`"]),
        ("[\"65000:12\"]", "[x]", "export.rules[0].communities.allOf[0]", &["`x`"]),
        ("[\"65000:13\"]", "[x]", "export.rules[0].communities.noneOf[0]", &["`x`"]),
        ("[\"65000:13\"]", "[\"65000:12\"]", "export.rules[0].communities.noneOf", &["65000:12", "allOf"]),
        ("minLength: 1,", "minLength: 10,", "export.rules[0].asPath.minLength", &["10", "9 or less"]),
        ("contains: [64610]", "contains: [0]", "export.rules[0].asPath.contains[0]", &["1 to 4294967295"]),
        ("originAs: [64611]", "originAs: [23456]", "export.rules[0].asPath.originAs[0]", &["AS_TRANS"]),
        ("neighbourAs: [64612]", "neighbourAs: [0]", "export.rules[0].asPath.neighbourAs[0]", &["0"]),
        ("[10.20.0.0/16]", "[10.20.0.1]", "export.rules[0].nextHops[0]", &["`10.20.0.1`", "10.0.0.0/8"]),
        ("[10.20.0.0/16]", "[10.20.0.1/16]", "export.rules[0].nextHops[0]", &["write 10.20.0.0/16"]),
        ("[\"65000:14\"]", "[x]", "export.rules[0].set.setCommunities[0]", &["`x`"]),
        (
            "setLargeCommunities: []",
            "setLargeCommunities: [x]",
            "export.rules[0].set.setLargeCommunities[0]",
            &["`x`"],
        ),
        ("[\"65000:3:5\"]", "[x]", "export.rules[0].set.removeLargeCommunities[0]", &["`x`"]),
    ];
    let second: &[(&str, &str, &str, &[&str])] = &[
        ("fe80::1%eth1", "fe80::1", "address", &["link-local", "`fe80::1%eth0`"]),
        ("fe80::1%eth1", "fe80::1%a-name-too-long-1", "address", &["a-name-too-long-1", "15"]),
        ("fe80::1%eth1", "\"::ffff:10.0.0.3\"", "address", &["IPv4"]),
        ("fe80::1%eth1", "10.0.0.1", "address", &["10.0.0.1", "twice"]),
        ("passwordFile: /etc/trunkline/key", "passwordFile: key", "passwordFile", &["`key`", "absolute"]),
        ("ttlSecurity: 1", "ttlSecurity: 255", "ttlSecurity", &["255", "254"]),
        ("ttlSecurity: 1", "ttlSecurity: 0", "ttlSecurity", &["0"]),
    ];
    let third: &[(&str, &str, &str, &[&str])] = &[
        ("prefix: 10.9.0.0/24", "prefix: tor1", "prefix", &["`tor1`", "10.1.0.0/24"]),
        ("prefix: 10.9.0.0/24", "prefix: 10.9.0.1/24", "prefix", &["10.9.0.1/24", "write 10.9.0.0/24"]),
        ("prefix: 10.9.0.0/24", "prefix: fe80::/64", "prefix", &["fe80::/64", "link-local"]),
        ("prefix: 10.9.0.0/24", "prefix: 10.9.0.0/24\n      address: 10.9.0.1", "prefix", &["leave out one"]),
        ("prefix: 10.9.0.0/24\n      limit: 7", "maxPrefixes: 1", "address", &["missing", "prefix"]),
        ("prefix: 10.9.0.0/24", "address: 10.8.0.1", "limit", &["from a prefix"]),
        ("limit: 7", "limit: 0", "limit", &["0 admits no neighbour", "100"]),
        ("limit: 7", "port: 179", "port", &["leave it out"]),
        ("limit: 7", "sourceAddress: 2001:db8::1", "sourceAddress", &["2001:db8::1", "10.9.0.0/24"]),
        ("limit: 7", "sourceAddress: here", "sourceAddress", &["`here`"]),
    ];
    for (index, table) in [first, second, third].into_iter().enumerate() {
        for (from, to, field, parts) in table {
            let field = format!("spec.config.bgpPeers[{index}].{field}");
            check(&[(&[(from, to)], "Network rack1", &field, parts)]);
        }
    }
    check(&[
        (
            &[("le: 20", "le: 15")],
            "Network rack1",
            "spec.config.prefixSets.fabric[0].le",
            &["15", "16 to 32"],
        ),
        (
            &[("[{prefix: 10.30.0.0/16, le: 20}, {prefix: \"2001:db8:30::/48\"}]", "[]")],
            "Network rack1",
            "spec.config.prefixSets.fabric",
            &["empty"],
        ),
    ]);
    let unnumbered: &[(&str, &str, &[&str])] = &[
        (", interface: a-name-too-long-1", "interface", &["a-name-too-long-1", "15"]),
        (", interface: eth2, sourceAddress: \"fe80::2\"", "sourceAddress", &["link-local", "leave it out"]),
        (", interface: eth2, ebgpMultihop: 2", "ebgpMultihop", &["on the link"]),
        (
            ", interface: eth2, address: 10.8.0.1",
            "interface",
            &[
                "eth2",
                "leave out one of the \
            two",
            ],
        ),
        ("", "address", &["missing", "`interface`"]),
    ];
    let last = |more: &str| format!("      holdTimeSeconds: 0\n    - {{asn: 65000{more}}}\n");
    assert_eq!(faults(&edited(GOOD, &[("      holdTimeSeconds: 0\n", &last(", interface: eth2"))])), []);
    for (more, field, parts) in unnumbered {
        let field = format!("spec.config.bgpPeers[2].{field}");
        check(&[(&[("      holdTimeSeconds: 0\n", &last(more))], "Network rack1", &field, parts)]);
    }
    let twice = last(", interface: eth2") + "    - {asn: 65000, interface: eth2}\n";
    let field = "spec.config.bgpPeers[3].interface";
    check(&[(&[("      holdTimeSeconds: 0\n", &twice)], "Network rack1", field, &["eth2", "twice"])]);

    let unsigned = "passwordFile: /etc/trunkline/range\n    - {asn: 64602, address: 10.9.0.5}";
    check(&[(
        &[("passwordFile: /etc/trunkline/range", unsigned)],
        "Network rack1",
        "spec.config.bgpPeers[3].password",
        &["10.9.0.0/24", "10.9.0.5"],
    )]);
    let twice =
        "limit: 7\n    - {asn: 64602, prefix: 10.9.0.0/24}\n    - asn: 64603\n      address: 10.8.0.1";
    check(&[(
        &[("limit: 7", twice)],
        "Network rack1",
        "spec.config.bgpPeers[3].prefix",
        &["10.9.0.0/24", "twice"],
    )]);
    // The same link-local address on another interface is another router. The kernel stores its
    // TCP-MD5 key by address.
    let third =
        |more: &str| format!("      holdTimeSeconds: 0\n    - {{asn: 65000, address: fe80::1%eth2{more}}}\n");
    let same = third(", passwordFile: /etc/trunkline/key");
    assert_eq!(faults(&edited(GOOD, &[("      holdTimeSeconds: 0\n", &same)])), []);
    let parts: &[&str] = &["fe80::1", "another interface", "the same password"];
    let field = "spec.config.bgpPeers[2].password";
    check(&[(&[("      holdTimeSeconds: 0\n", &third(""))], "Network rack1", field, parts)]);
    let twice = third("").replace("eth2", "eth1");
    let field = "spec.config.bgpPeers[2].address";
    check(&[(&[("      holdTimeSeconds: 0\n", &twice)], "Network rack1", field, &["fe80::1%eth1", "twice"])]);
}

#[test]
fn a_password_over_80_bytes_is_refused_and_never_shown() {
    let good = format!("password: \"{}\"", "é".repeat(40));
    assert_eq!(faults(&edited(GOOD, &[("password: \"k1\"", &good)])), []);

    let secret = "x".repeat(81);
    let text = edited(GOOD, &[("password: \"k1\"", &format!("password: {secret}"))]);
    let found = faults(&text);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].field, "spec.config.bgpPeers[0].password");
    assert!(found[0].message.contains("81 bytes") && found[0].message.contains("at most 80"), "{}", found[0]);
    assert!(!format!("{found:?}").contains("xx"));

    let (networks, ..) = load(&text);
    let debug = format!("{networks:?}");
    assert!(debug.contains("***") && !debug.contains("xx"), "Debug hides the key");
    assert!(!serde_json::to_string(&networks).unwrap().contains("xx"), "the key is not serialized");
}
