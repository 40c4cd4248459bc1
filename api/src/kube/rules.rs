//! Rules that the API server itself enforces, without a webhook: bounds and defaults of fields, and
//! CEL.
//!
//! They repeat rules of [`crate::validate`] in the server's language. The server sees one object at
//! a time (and its previous state). So rules about a second object belong to the webhook: the
//! existence of a subnet's network, overlapping prefixes, a second Overlay, deletions. CEL also
//! cannot order addresses: `start` after `end` is left to the webhook too.
//!
//! There are three difficulties. The server estimates the worst-case cost of a rule in advance, so
//! each list and text in a rule has a bound (`maxItems`, `maxLength`). The bounds are far above the
//! values in use. A field with a CEL keyword as its name is written like `__import__`.
//! hybridnet's Go structs write an unset text as `""`, so a rule tests for `""` too: `has` is not
//! enough.
//!
//! `type` is the only default that the rules need: the server sets it in stored objects before it
//! evaluates the rules, so `self.type` always exists.

use serde_json::{Value, json};

/// A rule in CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `Network`, `Subnet`, `IPInstance` or `NodeInfo`.
    pub kind: &'static str,
    /// The path of `self`: `spec`, `spec.config.bgpPeers[]`.
    pub path: &'static str,
    /// The condition. With `oldSelf` it only applies to updates.
    pub cel: String,
    /// The requirement, and a value that meets it.
    pub message: &'static str,
}

const NETWORK: &str = "Network";
const SUBNET: &str = "Subnet";
const IP_INSTANCE: &str = "IPInstance";
const NODE_INFO: &str = "NodeInfo";
const PEER: &str = "spec.config.bgpPeers[]";

/// Every rule, in the order of the CRDs.
pub fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for (kind, path, table) in [
        (NETWORK, "spec", network()),
        (NETWORK, "spec.config", network_config()),
        (NETWORK, PEER, peer()),
        (NETWORK, "spec.config.bgpPeers[].addPath", add_path()),
        (SUBNET, "spec", subnet()),
        (SUBNET, "spec.range", range()),
        (IP_INSTANCE, "spec", ip_instance()),
        (NODE_INFO, "spec.vtepInfo", vtep()),
        (NODE_INFO, "spec.config", node_config()),
    ] {
        rules.extend(table.into_iter().map(|(cel, message)| Rule { kind, path, cel, message }));
    }
    rules
}

/// Condition and message.
type Row = (String, &'static str);

/// The mode in a network's spec; its default depends on the type.
fn mode(spec: &str) -> String {
    format!(
        "(has({spec}.mode) ? {spec}.mode : {spec}.type == 'Underlay' ? 'VLAN' : {spec}.type == 'Overlay' ? 'VXLAN' : 'GlobalBGP')"
    )
}

/// Whether a text is present and not empty.
fn is_set(text: &str) -> String {
    format!("(has({text}) && {text} != '')")
}

/// Whether a switch is present and on.
fn on(switch: &str) -> String {
    format!("(has({switch}) && {switch})")
}

fn network() -> Vec<Row> {
    let (mode, old_mode) = (mode("self"), mode("oldSelf"));
    // A condition on every peer `p` of a network.
    let each = |condition: &str| {
        format!("!has(self.config) || !has(self.config.bgpPeers) || self.config.bgpPeers.all(p, {condition})")
    };
    let internal = "(has(self.netID) && p.asn == self.netID)";
    let not = |field: &str, when: &str| each(&format!("!(has(p.{field}) && {when})"));
    let not_on = |field: &str, when: &str| each(&format!("!({} && {when})", on(&format!("p.{field}"))));
    vec![
        ("self.type == oldSelf.type".to_owned(), "type cannot change: put it back, or make a new Network"),
        (format!("{mode} == {old_mode}"), "mode cannot change: put it back, or make a new Network"),
        (
            "has(self.netID) == has(oldSelf.netID) && (!has(self.netID) || self.netID == oldSelf.netID)".to_owned(),
            "netID cannot change: put it back, or make a new Network",
        ),
        (
            "self.type != 'Underlay' || (has(self.nodeSelector) && size(self.nodeSelector) > 0)".to_owned(),
            "nodeSelector is missing: an Underlay network needs the labels of its nodes, such as `network: rack1`",
        ),
        (
            "self.type == 'Underlay' || !has(self.nodeSelector) || size(self.nodeSelector) == 0".to_owned(),
            "nodeSelector: a network of type Overlay or GlobalBGP selects every node: leave it out",
        ),
        (
            "!has(self.mode) || self.type == (self.mode == 'VXLAN' ? 'Overlay' : self.mode == 'GlobalBGP' ? 'GlobalBGP' : 'Underlay')"
                .to_owned(),
            "mode does not match the type: write VLAN or BGP for Underlay, VXLAN for Overlay, \
             GlobalBGP for GlobalBGP",
        ),
        (
            format!("{mode} != 'BGP' || (has(self.netID) && self.netID > 0 && self.netID != 23456)"),
            "netID: mode BGP needs the AS number of the nodes, 1 to 4294967295 and not 23456 (AS_TRANS)",
        ),
        (
            format!("{mode} != 'VXLAN' || (has(self.netID) && self.netID <= 16777215)"),
            "netID: mode VXLAN needs a VNI, 0 to 16777215",
        ),
        (
            format!("{mode} != 'VLAN' || !has(self.netID) || self.netID <= 4094"),
            "netID is not a VLAN id: write 0 (untagged) to 4094; for an AS number add mode: BGP",
        ),
        (
            format!("{mode} != 'GlobalBGP' || !has(self.netID)"),
            "netID: in mode GlobalBGP each node has its Underlay network's AS number: leave it out",
        ),
        (
            format!("{mode} != 'BGP' || (has(self.config) && has(self.config.bgpPeers) && size(self.config.bgpPeers) > 0)"),
            "config.bgpPeers is missing: mode BGP needs at least one router, with asn and address (or interface, or prefix)",
        ),
        (
            format!("{mode} == 'BGP' || !has(self.config) || !has(self.config.bgpPeers) || size(self.config.bgpPeers) == 0"),
            "config.bgpPeers: there are peers, but the mode is not BGP: write mode: BGP, or leave the peers out",
        ),
        (
            format!("{mode} == 'VLAN' || !has(self.config) || !has(self.config.attachment) || self.config.attachment != 'ipvlan'"),
            "config.attachment: ipvlan attaches pods to a VLAN, and the mode is not VLAN: leave \
             it out, or write veth",
        ),
        (
            format!("{mode} in ['VLAN', 'BGP'] || !has(self.config) || !{}", on("self.config.hairpin")),
            "config.hairpin: in this mode no switch sends packets back: leave it out",
        ),
        (
            format!("{mode} == 'BGP' || !has(self.config) || !has(self.config.gracefulShutdown)"),
            "config.gracefulShutdown: only a network with peers can use it: leave it out, or write it into the BGP network",
        ),
        (
            not_on("routeReflectorClient", &format!("!{internal}")),
            "config.bgpPeers[].routeReflectorClient: only peers of the network's own AS are clients (RFC 4456): leave it out",
        ),
        (
            not_on("nextHopSelf", &format!("!{internal}")),
            "config.bgpPeers[].nextHopSelf: an external peer always receives this node as next hop: leave it out",
        ),
        (
            not_on("nextHopUnchanged", internal),
            "config.bgpPeers[].nextHopUnchanged: an internal peer always receives the next hop unchanged: leave it out",
        ),
        (
            not("removePrivateAs", internal),
            "config.bgpPeers[].removePrivateAs: internal peers receive every AS_PATH unchanged: leave it out",
        ),
        (
            not("localRole", internal),
            "config.bgpPeers[].localRole: a role is between two ASes (RFC 9234), and the peer's \
             AS is the network's own: leave it out",
        ),
        (
            not("localAs", &format!("({internal} || (has(self.netID) && p.localAs.asn == self.netID))")),
            "config.bgpPeers[].localAs: only for external peers, and not the network's own AS \
             number: leave it out",
        ),
    ]
}

fn network_config() -> Vec<Row> {
    let hairpin = on("self.hairpin");
    let peers = "!has(self.bgpPeers)";
    let name = |peer: &str| format!("(has({peer}.address) ? {peer}.address : '')");
    vec![
        (
            format!("!{hairpin} || !has(self.attachment) || self.attachment != 'ipvlan'"),
            "hairpin: the host sends the packets to the switch, and packets of pods with \
             attachment ipvlan do not pass the host: leave out one of the two",
        ),
        (
            "!has(self.extraPrefixes) || size(self.extraPrefixes) == 0 || !has(self.attachment) || self.attachment != 'ipvlan'"
                .to_owned(),
            "extraPrefixes: packets of pods with attachment ipvlan do not pass the host, so it \
             cannot check their sources: leave out one of the two",
        ),
        (
            "!has(self.extraPrefixes) || self.extraPrefixes.all(p, isCIDR(p) && cidr(p).masked() == cidr(p))".to_owned(),
            "extraPrefixes: an entry is not a prefix, or has host bits: write prefixes such as \
             10.9.0.0/16 or fd00:9::/64",
        ),
        (
            "!has(self.extraPrefixes) || self.extraPrefixes.all(p, !isCIDR(p) || ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', \
             '::/128', '::1/128', 'fe80::/10', 'ff00::/8'].all(r, !cidr(r).containsCIDR(p)))"
                .to_owned(),
            "extraPrefixes: routers do not forward packets from one of the prefixes (loopback, \
             link-local, multicast, reserved): write other unicast prefixes",
        ),
        (
            format!("!{hairpin} || {peers} || self.bgpPeers.all(p, !has(p.__import__))"),
            "bgpPeers[].import: with hairpin, packets between pods of a node use the default \
             route, and an import replaces this route: leave out one of the two",
        ),
        (
            format!(
                "{peers} || self.bgpPeers.all(p, {name} == '' || self.bgpPeers.exists_one(q, {other} == {name}))",
                name = name("p"),
                other = name("q")
            ),
            "bgpPeers: two peers have the same address: delete one of the two",
        ),
    ]
}

fn peer() -> Vec<Row> {
    let (address, interface, prefix) =
        (is_set("self.address"), is_set("self.interface"), is_set("self.prefix"));
    let password = is_set("self.password");
    let hold = "(has(self.holdTimeSeconds) ? self.holdTimeSeconds : 90)";
    vec![
        (
            "self.asn != 23456".to_owned(),
            "asn: 23456 is AS_TRANS, a placeholder for other AS numbers (RFC 6793): write the \
             real AS number",
        ),
        (
            format!("[{address}, {interface}, {prefix}].exists_one(given, given)"),
            "address: write exactly one of `address` (the router's), `interface` (the router is \
             alone on the link) and `prefix` (for neighbours that connect by themselves)",
        ),
        (
            format!(
                "!{address} || self.address.contains('%') || (isIP(self.address) && (ip(self.address).isGlobalUnicast() || ip(self.address).isLoopback() \
                 || (ip(self.address).family() == 4 && ip(self.address).isLinkLocalUnicast())))"
            ),
            "address is not an address of a router: write one, such as 10.14.0.1 or 2001:db8:14::1; a link-local one with its interface, fe80::1%eth1",
        ),
        (
            format!(
                "!{address} || !self.address.contains('%') || (self.address.matches('^[^%]+%[^%/: ]{{1,15}}$') && isIP(self.address.split('%')[0]) \
                 && ip(self.address.split('%')[0]).family() == 6 && ip(self.address.split('%')[0]).isLinkLocalUnicast())"
            ),
            "address: only an IPv6 link-local address has an interface: write fe80::1%eth1, or an \
             address without %",
        ),
        (
            format!("!{prefix} || (isCIDR(self.prefix) && cidr(self.prefix).masked() == cidr(self.prefix))"),
            "prefix: the value is not a prefix, or has host bits: write a prefix such as \
             10.1.0.0/24",
        ),
        (
            format!("{prefix} || !has(self.limit)"),
            "limit is the highest number of neighbours from a prefix: leave it out, or write \
             prefix in place of address",
        ),
        (
            format!("!{prefix} || !has(self.port)"),
            "port: neighbours from a prefix connect to this node: leave it out",
        ),
        (
            format!("!{interface} || !{}", is_set("self.sourceAddress")),
            "sourceAddress: a session of an unnumbered peer is between link-local addresses: leave it out",
        ),
        (
            format!("!{} || isIP(self.sourceAddress)", is_set("self.sourceAddress")),
            "sourceAddress is not an address: write one of this node",
        ),
        (
            format!(
                "[{password}, has(self.passwordFile), has(self.passwordSecretRef)].filter(given, given).size() <= 1"
            ),
            "password: write only one of password, passwordFile and passwordSecretRef",
        ),
        (
            "!has(self.passwordFile) || self.passwordFile.startsWith('/')".to_owned(),
            "passwordFile is not an absolute path: write a path that begins with /",
        ),
        (
            format!("!({hold} in [1, 2])"),
            "holdTimeSeconds is not a Hold Time (RFC 4271): write 3 to 65535, or 0 for a session that never expires",
        ),
        (
            format!(
                "!has(self.keepaliveSeconds) || (self.keepaliveSeconds >= 1 && self.keepaliveSeconds <= {hold} / 3)"
            ),
            "keepaliveSeconds is not from 1 to a third of the Hold Time: write less, or leave it out",
        ),
        (
            "!has(self.ebgpMultihop) || !has(self.ttlSecurity)".to_owned(),
            "ttlSecurity and ebgpMultihop exclude each other: leave out one of the two",
        ),
        (
            format!("!has(self.ebgpMultihop) || !{interface}"),
            "ebgpMultihop: an unnumbered peer is on the link: leave it out",
        ),
        (
            format!("!{} || has(self.localRole)", on("self.localRoleStrict")),
            "localRoleStrict has no effect without localRole: write both, or leave it out",
        ),
        (
            "!has(self.localAs) || self.localAs.asn != self.asn".to_owned(),
            "localAs is the peer's own AS number: write the number that the peer has \
             configured for this node",
        ),
    ]
}

fn add_path() -> Vec<Row> {
    vec![(
        format!("has(self.send) || {}", on("self.receive")),
        "addPath has no effect: write `receive: true` or `send: 2`, or leave it out",
    )]
}

fn subnet() -> Vec<Row> {
    vec![
        (
            "self.network == oldSelf.network".to_owned(),
            "network cannot change: put it back, or make a new Subnet",
        ),
        (
            "!has(self.netID) || (has(oldSelf.netID) && self.netID == oldSelf.netID)".to_owned(),
            "netID cannot change: put it back, or make a new Subnet",
        ),
    ]
}

fn range() -> Vec<Row> {
    let is_prefix = "isCIDR(self.cidr)";
    let same = |field: &str| {
        let text = |of: &str| format!("(has({of}.{field}) ? {of}.{field} : '')");
        format!("{} == {}", text("self"), text("oldSelf"))
    };
    let inside = |field: &str| {
        let text = format!("self.{field}");
        format!("!{is_prefix} || !{} || (isIP({text}) && cidr(self.cidr).containsIP({text}))", is_set(&text))
    };
    let all_inside = |field: &str| {
        format!(
            "!{is_prefix} || !has(self.{field}) || self.{field}.all(a, isIP(a) && cidr(self.cidr).containsIP(a))"
        )
    };
    vec![
        ("self.cidr == oldSelf.cidr".to_owned(), "cidr cannot change: put it back, or make a new Subnet"),
        (same("start"), "start cannot change: put it back, or make a new Subnet"),
        (same("end"), "end cannot change: put it back, or make a new Subnet"),
        (same("gateway"), "gateway cannot change: put it back, or make a new Subnet"),
        (
            "(has(self.excludeIPs) ? self.excludeIPs : []) == (has(oldSelf.excludeIPs) ? oldSelf.excludeIPs : [])".to_owned(),
            "excludeIPs cannot change, nor their order: put them back, or make a new Subnet",
        ),
        (is_prefix.to_owned(), "cidr is not a prefix with its length: write one, such as 10.14.0.0/24 or 2001:db8:14::/112"),
        (
            format!("!{is_prefix} || cidr(self.cidr).masked() == cidr(self.cidr)"),
            "cidr has host bits: write the prefix without them, such as 10.14.0.0/24",
        ),
        (
            format!("!{is_prefix} || string(cidr(self.cidr).ip().family()) == self.version"),
            "version does not match cidr: write \"4\" for IPv4, \"6\" for IPv6",
        ),
        (
            format!("!{is_prefix} || cidr(self.cidr).prefixLength() < (cidr(self.cidr).ip().family() == 4 ? 32 : 128)"),
            "cidr is a single address: write a shorter prefix",
        ),
        (
            format!(
                "!{is_prefix} || ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', '::/127', 'fe80::/10', 'ff00::/8']\
                 .all(p, !cidr(p).containsCIDR(self.cidr) && !cidr(self.cidr).containsCIDR(p))"
            ),
            "cidr overlaps a prefix that no fabric routes to a pod (loopback, link-local, \
             multicast, reserved): write another prefix",
        ),
        (
            format!(
                "!{is_prefix} || {} || {} || cidr(self.cidr).prefixLength() >= (cidr(self.cidr).ip().family() == 4 ? 16 : 112)",
                is_set("self.start"),
                is_set("self.end")
            ),
            "cidr has more than 65536 addresses: write start and end, or a longer prefix",
        ),
        (inside("start"), "start is not an address of cidr: write one of that prefix, or leave it out"),
        (inside("end"), "end is not an address of cidr: write one of that prefix, or leave it out"),
        (inside("gateway"), "gateway is not an address of cidr: write one of that prefix"),
        (all_inside("reservedIPs"), "reservedIPs: an entry is not an address of cidr: write \
            addresses of that prefix"),
        (all_inside("excludeIPs"), "excludeIPs: an entry is not an address of cidr: write \
            addresses of that prefix"),
    ]
}

fn ip_instance() -> Vec<Row> {
    vec![
        (
            "self.network == oldSelf.network && self.subnet == oldSelf.subnet".to_owned(),
            "network and subnet of an allocated address cannot change: delete the IPInstance, and \
             the pod gets another address",
        ),
        (
            "self.address.ip == oldSelf.address.ip && self.address.version == oldSelf.address.version"
                .to_owned(),
            "address.ip cannot change: delete the IPInstance, and the pod gets another address",
        ),
        (
            "isCIDR(self.address.ip) && string(cidr(self.address.ip).ip().family()) == self.address.version"
                .to_owned(),
            "address.ip is not an address of that version with the subnet's prefix length: write \
             one such as 10.0.0.7/24",
        ),
    ]
}

fn vtep() -> Vec<Row> {
    vec![
        (
            format!("!{} || (isIP(self.ip) && ip(self.ip).isGlobalUnicast())", is_set("self.ip")),
            "ip is not an address that other nodes can reach: write one of the node's addresses",
        ),
        (
            "!has(self.localIPs) || self.localIPs.all(a, isIP(a))".to_owned(),
            "localIPs: an entry is not an address: write addresses of the node",
        ),
    ]
}

fn node_config() -> Vec<Row> {
    vec![(
        "!has(self.podCIDRs) || self.podCIDRs.all(p, isCIDR(p) && cidr(p).masked() == cidr(p))".to_owned(),
        "podCIDRs: an entry is not a prefix, or has host bits: write prefixes such as \
         10.200.1.0/24",
    )]
}

/// Keywords in a field's schema: kind, path, keywords.
pub(super) type Bound = (&'static str, &'static str, Value);

/// Keywords that fields' schemas have in addition to their types.
pub(super) fn bounds() -> Vec<Bound> {
    let from = |least: u32| json!({"minimum": least});
    let to = |most: u32| json!({"maximum": most});
    let span = |least: u32, most: u32| json!({"minimum": least, "maximum": most});
    let text = |most: u32| json!({"maxLength": most});
    let name = || json!({"minLength": 1, "maxLength": 253});
    let list = |most: u32, text: u32| json!({"maxItems": most, "items": {"maxLength": text}});
    let (address, prefix) = (|| text(45), || text(49));
    let network = [
        ("spec.type", json!({"default": "Underlay"})),
        ("spec.config.bgpPeers", json!({"maxItems": 128})),
        ("spec.config.extraPrefixes", list(64, 49)),
    ];
    let peer = [
        ("spec.config.bgpPeers[].asn", from(1)),
        ("spec.config.bgpPeers[].address", text(64)),
        ("spec.config.bgpPeers[].interface", text(15)),
        ("spec.config.bgpPeers[].prefix", prefix()),
        ("spec.config.bgpPeers[].sourceAddress", address()),
        ("spec.config.bgpPeers[].limit", from(1)),
        ("spec.config.bgpPeers[].port", from(1)),
        ("spec.config.bgpPeers[].gracefulRestartSeconds", json!({"maximum": 4095, "default": 300})),
        ("spec.config.bgpPeers[].password", text(80)),
        ("spec.config.bgpPeers[].passwordFile", text(4096)),
        ("spec.config.bgpPeers[].passwordSecretRef.name", name()),
        ("spec.config.bgpPeers[].passwordSecretRef.namespace", json!({"minLength": 1, "maxLength": 63})),
        (
            "spec.config.bgpPeers[].passwordSecretRef.key",
            json!({"maxLength": 253, "pattern": "^[-._a-zA-Z0-9]+$"}),
        ),
        ("spec.config.bgpPeers[].holdTimeSeconds", to(65535)),
        ("spec.config.bgpPeers[].connectRetrySeconds", span(1, 65535)),
        ("spec.config.bgpPeers[].ebgpMultihop", span(1, 255)),
        ("spec.config.bgpPeers[].ttlSecurity", span(1, 254)),
        ("spec.config.bgpPeers[].maxPrefixes", from(1)),
        ("spec.config.bgpPeers[].allowAsIn", span(1, 10)),
        ("spec.config.bgpPeers[].localAs.asn", from(1)),
        ("spec.config.bgpPeers[].addPath.send", span(1, 255)),
        ("spec.config.bgpPeers[].bfd.intervalMilliseconds", span(10, 60000)),
        ("spec.config.bgpPeers[].bfd.multiplier", span(1, 255)),
    ];
    let subnet = [
        ("spec.network", name()),
        ("spec.range.cidr", prefix()),
        ("spec.range.start", address()),
        ("spec.range.end", address()),
        ("spec.range.gateway", address()),
        ("spec.range.reservedIPs", list(65536, 45)),
        ("spec.range.excludeIPs", list(65536, 45)),
    ];
    let ip_instance = [("spec.network", name()), ("spec.subnet", name()), ("spec.address.ip", prefix())];
    let node_info = [
        ("spec.vtepInfo.ip", address()),
        ("spec.vtepInfo.localIPs", list(4096, 45)),
        ("spec.config.podCIDRs", list(65536, 49)),
    ];
    let of = |kind: &'static str| move |(path, keywords)| (kind, path, keywords);
    let mut bounds: Vec<Bound> = network.into_iter().chain(peer).map(of(NETWORK)).collect();
    bounds.extend(subnet.into_iter().map(of(SUBNET)));
    bounds.extend(ip_instance.into_iter().map(of(IP_INSTANCE)));
    bounds.extend(node_info.into_iter().map(of(NODE_INFO)));
    bounds
}
