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
//! `type` of a Network, and `mode` and `weights` of the own kinds, are the only defaults that the
//! rules need: the server sets them in stored objects before it evaluates the rules, so `self.type`
//! always exists. Other fields of the own kinds have a default for the reader.

mod agent_settings;

use serde_json::{Value, json};

use crate::resources::{NodePeer, NodeServicesStatus};

/// A rule in CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kind, such as `Network`.
    pub kind: &'static str,
    /// The path of `self`: `spec`, `spec.config.bgpPeers[]`.
    pub path: String,
    /// The condition. With `oldSelf` it only applies to updates.
    pub cel: String,
    /// The requirement, and a value that meets it.
    pub message: &'static str,
}

const NETWORK: &str = "Network";
const SUBNET: &str = "Subnet";
const IP_INSTANCE: &str = "IPInstance";
const NODE_INFO: &str = "NodeInfo";
const NODE_SERVICES: &str = "NodeServices";
const SERVICE_POOL: &str = "ServicePool";
const SERVICE_ADDRESS: &str = "ServiceAddress";
const SERVICE_ADVERTISEMENT: &str = "ServiceAdvertisement";
const ANYCAST_ADDRESS: &str = "AnycastAddress";
const AGENT_SETTINGS: &str = "AgentSettings";
const REMOTE_SUBNET: &str = "RemoteSubnet";
const REMOTE_VTEP: &str = "RemoteVtep";
const REMOTE_ENDPOINT_SLICE: &str = "RemoteEndpointSlice";
const PEER: &str = "spec.config.bgpPeers[]";

/// Every label selector of the own kinds.
const SELECTORS: [(&str, &str); 7] = [
    (SERVICE_POOL, "spec.serviceSelectors[]"),
    (SERVICE_POOL, "spec.namespaceSelectors[]"),
    (SERVICE_ADVERTISEMENT, "spec.serviceSelector"),
    (SERVICE_ADVERTISEMENT, "spec.namespaceSelector"),
    (SERVICE_ADVERTISEMENT, "spec.nodeSelector"),
    (ANYCAST_ADDRESS, "spec.nodeSelector"),
    (AGENT_SETTINGS, "spec.nodeSelector"),
];

/// Prefixes that no fabric routes to a pod or a Service, as in `validate::subnet`.
const NOT_ROUTED: &str =
    "['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', '::/127', 'fe80::/10', 'ff00::/8']";

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
        (SUBNET, "spec.config", subnet_config()),
        (SUBNET, "spec.config.gatewayType", reserved("gatewayType is not supported: leave it out")),
        (SUBNET, "spec.config.gatewayNode", reserved("gatewayNode is not supported: leave it out")),
        (SUBNET, "spec.config.allowSubnets", reserved("allowSubnets is not supported: leave it out")),
        (IP_INSTANCE, "spec", ip_instance()),
        (NODE_INFO, "spec.vtepInfo", vtep()),
        (NODE_INFO, "spec.config", node_config()),
        (SERVICE_POOL, "spec", service_pool()),
        (SERVICE_ADDRESS, "spec", service_address()),
        (SERVICE_ADVERTISEMENT, "spec", service_advertisement()),
        (ANYCAST_ADDRESS, "spec", anycast_address()),
        (ANYCAST_ADDRESS, "spec.check", health_check()),
        (ANYCAST_ADDRESS, "spec.check.http", http_check(false)),
        (ANYCAST_ADDRESS, "spec.check.https", http_check(true)),
        (AGENT_SETTINGS, "spec.config", agent_settings::config()),
        (AGENT_SETTINGS, "spec.config.probes", agent_settings::probes()),
    ] {
        rules.extend(table.into_iter().map(|(cel, message)| Rule {
            kind,
            path: path.to_owned(),
            cel,
            message,
        }));
    }
    for (kind, selector) in SELECTORS {
        let path = format!("{selector}.matchExpressions[]");
        rules.extend(requirement().into_iter().map(|(cel, message)| Rule {
            kind,
            path: path.clone(),
            cel,
            message,
        }));
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

/// A field of hybridnet without an implementation, as in `validate::unsupported_subnet`. hybridnet
/// ignores such a field, so stored objects may have one. The rule belongs to the field and not to
/// `spec.config`: the server ignores a rule about an unchanged value, and so accepts changes of the
/// other fields of a stored object.
fn reserved(message: &'static str) -> Vec<Row> {
    vec![("size(self) == 0".to_owned(), message)]
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
                "!{is_prefix} || {NOT_ROUTED}.all(p, !cidr(p).containsCIDR(self.cidr) && !cidr(self.cidr).containsCIDR(p))"
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

fn subnet_config() -> Vec<Row> {
    vec![
        (
            each("allowedNamespaces", "t.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')"),
            "allowedNamespaces: an entry is not the name of a Namespace: write names such as team-a",
        ),
        (
            format!(
                "!{} || self.retention == 'never' || (self.retention.matches('^[0-9]{{1,6}}[smhd]$') && \
                 !self.retention.matches('^0+[smhd]$'))",
                is_set("self.retention")
            ),
            "retention is neither a time nor `never`: write a time such as 30m, 72h or 30d, or `never` for addresses \
             that are never released",
        ),
        (
            each("routes", "isCIDR(t) && cidr(t).masked() == cidr(t) && cidr(t).prefixLength() > 0"),
            "routes: an entry is not a prefix without host bits, or is a default route: write prefixes such as 10.80.0.0/12",
        ),
        (
            "!has(self.dns) || !has(self.dns.nameservers) || self.dns.nameservers.all(t, isIP(t))".to_owned(),
            "dns.nameservers: an entry is not an address: write one such as 10.0.0.53",
        ),
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

/// Whether the text `block` is a block of addresses. The server cannot order the addresses of a
/// range.
fn is_block(block: &str) -> String {
    let part = |index: u8| format!("{block}.split('-')[{index}]");
    let (first, last) = (part(0), part(1));
    format!(
        "isIP({block}) || (isCIDR({block}) && cidr({block}).masked() == cidr({block})) || ({block}.split('-').size() == 2 && \
         isIP({first}) && isIP({last}) && ip({first}).family() == ip({last}).family())"
    )
}

/// Whether the prefix `block`, or each end of the range `block`, is routed. The server knows no bound
/// for a part of a text, so the arguments of the comparisons are parsed before.
fn is_routed(block: &str) -> String {
    format!(
        "{NOT_ROUTED}.all(r, isCIDR({block}) ? !cidr(r).containsCIDR(cidr({block})) && !cidr({block}).containsCIDR(cidr(r)) : \
         {block}.split('-').all(e, !isIP(e) || !cidr(r).containsIP(ip(e))))"
    )
}

/// A condition on every text `t` of an optional list.
fn each(list: &str, condition: &str) -> String {
    format!("!has(self.{list}) || self.{list}.all(t, {condition})")
}

fn requirement() -> Vec<Row> {
    vec![(
        "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0"
            .to_owned(),
        "matchExpressions[].values: In and NotIn need at least one value, and Exists and DoesNotExist \
         have none: write values, or leave them out",
    )]
}

fn service_pool() -> Vec<Row> {
    vec![
        (
            "self.mode == oldSelf.mode".to_owned(),
            "mode cannot change: put it back, or make a new ServicePool",
        ),
        (
            "size(self.addresses) > 0".to_owned(),
            "addresses is empty: write at least one prefix, range or address",
        ),
        (
            each("addresses", &is_block("t")),
            "addresses: an entry is not a block of addresses: write prefixes without host bits, ranges of one \
             family or addresses, such as 10.0.0.0/24, 10.0.0.5-10.0.0.9 or 10.0.0.5",
        ),
        (
            each("addresses", &is_routed("t")),
            "addresses: an entry overlaps a prefix that no fabric routes to a Service (loopback, link-local, \
             multicast, reserved): write other addresses",
        ),
        (
            each("exclude", &is_block("t")),
            "exclude: an entry is not a block of addresses: write prefixes without host bits, ranges of one \
             family or addresses, such as 10.0.0.0/30, 10.0.0.5-10.0.0.9 or 10.0.0.5",
        ),
        (
            "self.mode != 'L2' || has(self.l2)".to_owned(),
            "l2 is missing: mode L2 needs the Network of the addresses: write l2.network, or leave the mode out",
        ),
        (
            "self.mode == 'L2' || !has(self.l2)".to_owned(),
            "l2: the mode is BGP: write mode: L2, or leave l2 out",
        ),
    ]
}

fn service_address() -> Vec<Row> {
    vec![
        (
            "self.address == oldSelf.address".to_owned(),
            "address cannot change: delete the ServiceAddress, and its Services get other addresses",
        ),
        (
            "isIP(self.address)".to_owned(),
            "address is not an address: write one, such as 10.0.0.7 or fd00::7",
        ),
        (
            "size(self.services) > 0".to_owned(),
            "services is empty: write the Service of the address, or delete the ServiceAddress",
        ),
        (
            format!("size(self.services) <= 1 || {}", is_set("self.sharingKey")),
            "sharingKey is missing: an address of several Services needs their key: write it",
        ),
    ]
}

/// Whether the text is a BGP peer: an address, an interface, or a prefix of dynamic neighbours.
const IS_PEER: &str = "t.contains('/') ? isCIDR(t) && cidr(t).masked() == cidr(t) : \
     t.contains('%') ? t.matches('^[^%]+%[^%/: ]{1,15}$') && isIP(t.split('%')[0]) && ip(t.split('%')[0]).family() == 6 && \
     ip(t.split('%')[0]).isLinkLocalUnicast() : \
     isIP(t) ? ip(t).isGlobalUnicast() || ip(t).isLoopback() || (ip(t).family() == 4 && ip(t).isLinkLocalUnicast()) : \
     t.matches('^[^/: ]{1,15}$') && t != '.' && t != '..'";

/// The rules for attributes that several kinds have.
fn attributes() -> Vec<Row> {
    vec![
        (
            each("peers", IS_PEER),
            "peers: an entry is not a peer: write an address, an interface or a prefix of dynamic neighbours, as \
             in bgpPeers of the Network",
        ),
        (
            each(
                "communities",
                "t in ['graceful-shutdown', 'llgr-stale', 'no-llgr', 'blackhole', 'no-export', 'no-advertise', \
                 'no-export-subconfed', 'no-peer'] || (t.matches('^[0-9]+:[0-9]+$') && t.split(':').all(n, int(n) <= 65535))",
            ),
            "communities: an entry is not a community: write values such as 65000:100 or no-export",
        ),
        (
            each(
                "largeCommunities",
                "t.matches('^[0-9]+:[0-9]+:[0-9]+$') && t.split(':').all(n, int(n) <= 4294967295)",
            ),
            "largeCommunities: an entry is not a large community: write values such as 65000:1:2",
        ),
    ]
}

fn service_advertisement() -> Vec<Row> {
    let external = "(has(self.addresses) && 'External' in self.addresses)";
    let prefixes = "(has(self.externalCIDRs) && size(self.externalCIDRs) > 0)";
    let mut rows = vec![
        (
            each("addresses", "self.addresses.exists_one(o, o == t)"),
            "addresses: a kind occurs twice: delete one of the two",
        ),
        (
            format!("!{external} || {prefixes}"),
            "externalCIDRs is missing: External addresses need the prefixes that hold them: write these, or \
             leave External out of addresses",
        ),
        (
            format!("{external} || !{prefixes}"),
            "externalCIDRs: addresses does not list External: write External there, or leave the prefixes out",
        ),
        (
            each("externalCIDRs", "isCIDR(t) && cidr(t).masked() == cidr(t)"),
            "externalCIDRs: an entry is not a prefix, or has host bits: write prefixes such as 192.0.2.0/24",
        ),
        (
            each("externalCIDRs", &is_routed("t")),
            "externalCIDRs: an entry overlaps a prefix that no fabric routes to a Service (loopback, \
             link-local, multicast, reserved): write other prefixes",
        ),
        (
            "self.weights == 'None' || !has(self.aggregationLength) || \
             ((!has(self.aggregationLength.ipv4) || self.aggregationLength.ipv4 == 32) && \
             (!has(self.aggregationLength.ipv6) || self.aggregationLength.ipv6 == 128))"
                .to_owned(),
            "weights: the endpoints of one Service are no weight of a prefix with several addresses: write None, \
             or leave aggregationLength out",
        ),
    ];
    rows.extend(attributes());
    rows.push((
        each(
            "extendedCommunities",
            "t.matches('^(0x[0-9a-fA-F]{16}|(rt|soo):[0-9.]+L?:[0-9]+|lb(-non-transitive)?:[0-9]+:[0-9]+)$')",
        ),
        "extendedCommunities: an entry is not an extended community: write values such as rt:65000:100, or 0x \
         with 16 digits",
    ));
    rows
}

fn anycast_address() -> Vec<Row> {
    let mut rows = vec![
        ("size(self.addresses) > 0".to_owned(), "addresses is empty: write at least one address"),
        (
            each("addresses", "isIP(t)"),
            "addresses: an entry is not an address: write addresses such as 10.0.0.7 or fd00::7, without a length",
        ),
        (
            each("addresses", &format!("!isIP(t) || {NOT_ROUTED}.all(r, !cidr(r).containsIP(ip(t)))")),
            "addresses: no fabric routes to one of the addresses (loopback, link-local, multicast, reserved): \
             write others",
        ),
        (
            each("addresses", "!isIP(t) || self.addresses.exists_one(o, isIP(o) && ip(o) == ip(t))"),
            "addresses: an address occurs twice: delete one of the two",
        ),
    ];
    rows.extend(attributes());
    rows
}

fn health_check() -> Vec<Row> {
    let command = "(has(self.command) && size(self.command) > 0)";
    vec![
        (
            format!("!{command}"),
            "command: the agent runs it as root, so only a file on the node may have it: write http, https, tcp or \
             grpc",
        ),
        (
            format!(
                "{command} || [has(self.http), has(self.https), has(self.tcp), has(self.grpc)].exists_one(given, given)"
            ),
            "http: write exactly one of `http`, `https`, `tcp` and `grpc`",
        ),
        (
            format!("!{} || isIP(self.connectTo)", is_set("self.connectTo")),
            "connectTo is not an address: write one, such as 127.0.0.1, or leave it out",
        ),
        (
            "!has(self.timeoutMilliseconds) || \
             self.timeoutMilliseconds <= (has(self.intervalMilliseconds) ? self.intervalMilliseconds : 1000)"
                .to_owned(),
            "timeoutMilliseconds is above the interval: write less, or leave it out",
        ),
    ]
}

fn http_check(is_https: bool) -> Vec<Row> {
    let (ca, insecure) = (is_set("self.caFile"), on("self.insecureSkipVerify"));
    let mut rows = vec![
        (
            format!("!{} || self.path.matches('^/[!-~]*$')", is_set("self.path")),
            "path: the value is not the path of a request: write one that begins with /, without spaces",
        ),
        (
            format!("!{} || self.host.matches('^[A-Za-z0-9.:_-]*$')", is_set("self.host")),
            "host: the value is not a name: write one, such as api.example.com",
        ),
        (
            format!(
                "!{} || (self.expectedStatus.matches('^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$') && \
                 int(self.expectedStatus.substring(0, 3)) <= int(self.expectedStatus.substring(size(self.expectedStatus) - 3)))",
                is_set("self.expectedStatus")
            ),
            "expectedStatus is not a status code or a range of them: write one, such as 200 or 200-399",
        ),
    ];
    if is_https {
        rows.push((
            format!("!{ca} || self.caFile.startsWith('/')"),
            "caFile is not an absolute path: write a path that begins with /",
        ));
        rows.push((
            format!("!{ca} || !{insecure}"),
            "insecureSkipVerify: no certificate is checked against caFile: leave out one of the two",
        ));
    } else {
        rows.push((
            format!("!{ca} && !{insecure}"),
            "`caFile` and `insecureSkipVerify`: HTTP has no certificates: write https, or leave them out",
        ));
    }
    rows
}

/// Keywords in a field's schema: kind, path, keywords.
pub(super) type Bound = (&'static str, String, Value);

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
        ("spec.config.allowedNamespaces", list(1024, 63)),
        ("spec.config.retention", text(7)),
        ("spec.config.routes", list(32, 43)),
        ("spec.config.dns.nameservers", list(8, 45)),
        ("spec.config.dns.domain", text(253)),
        ("spec.config.dns.search", list(32, 253)),
        ("spec.config.dns.options", list(16, 63)),
    ];
    let ip_instance = [
        ("spec.network", name()),
        ("spec.subnet", name()),
        ("spec.address.ip", prefix()),
        ("status.nodeName", text(253)),
        ("status.podName", text(253)),
        ("status.podNamespace", text(253)),
        ("status.sandboxID", text(253)),
        ("status.attachedSandboxID", text(253)),
        ("status.updateTimestamp", text(64)),
    ];
    let node_info = [
        ("spec.vtepInfo.ip", address()),
        ("spec.vtepInfo.mac", text(17)),
        ("spec.vtepInfo.localIPs", list(64, 45)),
        ("spec.config.podCIDRs", list(65536, 49)),
        ("status.updateTimestamp", text(64)),
        ("status.peers", json!({"maxItems": NodePeer::MAX_PEERS})),
        ("status.peers[].name", text(64)),
        ("status.peers[].network", text(253)),
        ("status.peers[].state", text(32)),
        ("status.peers[].since", text(64)),
        ("status.peers[].lastError", json!({"maxLength": NodePeer::MAX_TEXT})),
    ];
    let node_services = [
        ("status.services", json!({"maxItems": NodeServicesStatus::MAX_SERVICES})),
        ("status.services[].address", address()),
        ("status.services[].state", text(32)),
        ("status.services[].reason", text(64)),
        ("status.services[].advertisements", list(NodeServicesStatus::MAX_ADVERTISEMENTS as u32, 253)),
        ("status.anycast", json!({"maxItems": NodeServicesStatus::MAX_ANYCAST})),
        ("status.anycast[].name", text(253)),
        ("status.anycast[].state", text(32)),
        ("status.anycast[].reason", text(64)),
        ("status.anycast[].check", json!({"maxLength": NodeServicesStatus::MAX_TEXT})),
        ("status.proxy.state", text(32)),
        ("status.proxy.rules", text(32)),
        ("status.proxy.message", json!({"maxLength": NodeServicesStatus::MAX_TEXT})),
    ];
    // The controller leaves out objects of a remote cluster above these bounds (`remote/bounds.rs`).
    let remote_subnet = [
        ("spec.clusterName", text(253)),
        ("spec.range.cidr", prefix()),
        ("spec.range.start", address()),
        ("spec.range.end", address()),
        ("spec.range.gateway", address()),
        ("spec.range.reservedIPs", list(65536, 45)),
        ("spec.range.excludeIPs", list(65536, 45)),
    ];
    let remote_vtep = [
        ("spec.clusterName", text(253)),
        ("spec.nodeName", text(253)),
        ("spec.ip", address()),
        ("spec.mac", text(17)),
        ("spec.localIPs", list(64, 45)),
        ("spec.endpointIPList", list(4096, 45)),
    ];
    let remote_endpoint_slice = [
        ("spec.remoteService.cluster", text(253)),
        ("spec.remoteService.name", text(253)),
        ("spec.remoteService.namespace", text(253)),
        ("spec.addressType", text(253)),
        ("spec.endpoints", json!({"maxItems": 1000})),
        ("spec.endpoints[].addresses", list(100, 45)),
        ("spec.endpoints[].hostname", text(253)),
        ("spec.endpoints[].nodeName", text(253)),
        ("spec.endpoints[].zone", text(253)),
        ("spec.ports", json!({"maxItems": 20000})),
        ("spec.ports[].name", text(253)),
        ("spec.ports[].protocol", text(253)),
        ("spec.ports[].appProtocol", text(253)),
    ];
    let list_of = |most: u32, each: Value| json!({"maxItems": most, "items": each});
    let blocks = |most: u32| list(most, 91);
    let service_pool = [
        ("spec.addresses", blocks(64)),
        ("spec.exclude", blocks(1024)),
        ("spec.autoAssign", json!({"default": true})),
        ("spec.priority", json!({"maximum": 1000, "default": 100})),
        ("spec.serviceSelectors", json!({"maxItems": 16})),
        ("spec.namespaceSelectors", json!({"maxItems": 16})),
        ("spec.mode", json!({"default": "BGP"})),
        ("spec.l2.network", name()),
    ];
    let service_address = [
        ("spec.address", address()),
        ("spec.pool", name()),
        ("spec.sharingKey", text(1024)),
        ("spec.services", json!({"maxItems": 64})),
        ("spec.services[].namespace", json!({"minLength": 1, "maxLength": 63})),
        ("spec.services[].name", name()),
        ("spec.services[].uid", json!({"minLength": 1, "maxLength": 63})),
    ];
    let service_advertisement = [
        ("spec.pools", list_of(64, name())),
        ("spec.addresses", json!({"maxItems": 3, "default": ["LoadBalancer"]})),
        ("spec.externalCIDRs", list(64, 49)),
        ("spec.cordonedNodes", json!({"default": "Advertise"})),
        ("spec.excludedNodes", json!({"default": "Withdraw"})),
        ("spec.peers", list(64, 64)),
        ("spec.communities", list(32, 20)),
        ("spec.largeCommunities", list(32, 32)),
        ("spec.extendedCommunities", list(32, 64)),
        ("spec.prepend", to(16)),
        ("spec.aggregationLength.ipv4", span(8, 32)),
        ("spec.aggregationLength.ipv6", span(16, 128)),
        ("spec.weights", json!({"default": "None"})),
        ("spec.gracefulShutdownSeconds", json!({"maximum": 3600, "default": 5})),
    ];
    let anycast_address = [
        ("spec.addresses", list(16, 45)),
        ("spec.peers", list(64, 64)),
        ("spec.communities", list(32, 20)),
        ("spec.largeCommunities", list(32, 32)),
        ("spec.prepend", to(16)),
        ("spec.gracefulShutdownSeconds", json!({"maximum": 3600, "default": 5})),
        ("spec.check.command", list(64, 4096)),
        ("spec.check.connectTo", address()),
        ("spec.check.intervalMilliseconds", json!({"minimum": 50, "maximum": 60000, "default": 1000})),
        ("spec.check.timeoutMilliseconds", span(1, 60000)),
        ("spec.check.rise", json!({"minimum": 1, "maximum": 100, "default": 2})),
        ("spec.check.fall", json!({"minimum": 1, "maximum": 100, "default": 3})),
        ("spec.check.tcp.port", from(1)),
        ("spec.check.grpc.port", from(1)),
        ("spec.check.grpc.service", text(253)),
    ];
    let http_check = [
        ("port", from(1)),
        ("path", text(1024)),
        ("host", text(253)),
        ("expectedStatus", text(7)),
        ("caFile", text(4096)),
    ];
    let selector = [
        ("matchExpressions", json!({"maxItems": 16})),
        ("matchExpressions[].key", json!({"minLength": 1, "maxLength": 317})),
        ("matchExpressions[].values", list(64, 63)),
    ];
    fn of<const N: usize>(
        kind: &'static str,
        fields: [(&'static str, Value); N],
    ) -> impl Iterator<Item = Bound> {
        fields.into_iter().map(move |(path, keywords)| (kind, path.to_owned(), keywords))
    }
    fn below<'a>(
        kind: &'static str,
        parent: &'a str,
        fields: &'a [(&'static str, Value)],
    ) -> impl Iterator<Item = Bound> + 'a {
        fields.iter().map(move |(path, keywords)| (kind, format!("{parent}.{path}"), keywords.clone()))
    }
    let mut bounds: Vec<Bound> = of(NETWORK, network).chain(of(NETWORK, peer)).collect();
    bounds.extend(of(SUBNET, subnet));
    bounds.extend(of(IP_INSTANCE, ip_instance));
    bounds.extend(of(NODE_INFO, node_info));
    bounds.extend(of(NODE_SERVICES, node_services));
    bounds.extend(of(REMOTE_SUBNET, remote_subnet));
    bounds.extend(of(REMOTE_VTEP, remote_vtep));
    bounds.extend(of(REMOTE_ENDPOINT_SLICE, remote_endpoint_slice));
    bounds.extend(of(SERVICE_POOL, service_pool));
    bounds.extend(of(SERVICE_ADDRESS, service_address));
    bounds.extend(of(SERVICE_ADVERTISEMENT, service_advertisement));
    bounds.extend(of(ANYCAST_ADDRESS, anycast_address));
    bounds.extend(of(AGENT_SETTINGS, agent_settings::bounds()));
    for parent in ["spec.check.http", "spec.check.https"] {
        bounds.extend(below(ANYCAST_ADDRESS, parent, &http_check));
    }
    for (kind, parent) in SELECTORS {
        bounds.extend(below(kind, parent, &selector));
    }
    bounds
}
