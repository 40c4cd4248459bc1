//! Rules for a BGP peer and its policy: faults that would otherwise appear at the socket, in OPEN,
//! or not at all.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::policy::{self, PolicyDirection};
use super::values::check_asn;
use crate::fault::Faults;
use crate::policy::PrefixMatch;
use crate::resources::{Bfd, BgpPeer, Endpoint, LocalAs, LongLivedStale, Network};

pub(super) fn check_all(network: &Network, faults: &mut Faults<'_>) {
    if network.peers().is_empty() {
        faults.add(
            "spec.config.bgpPeers",
            "missing: mode BGP needs at least one router, with asn and address (or interface, or prefix)",
        );
    }
    let (mut seen, mut keys) = (BTreeSet::new(), BTreeMap::new());
    let (mut unnumbered, mut ranges) = (BTreeSet::new(), BTreeSet::new());
    let none = BTreeMap::new();
    let sets = network.spec.config.as_ref().map_or(&none, |config| &config.prefix_sets);
    policy::check_sets(sets, faults);
    for (index, peer) in network.peers().iter().enumerate() {
        let mut check =
            PeerCheck { peer, path: format!("spec.config.bgpPeers[{index}]"), faults: &mut *faults };
        check.all(network.spec.net_id, sets);
        let (address, interface) = match peer.endpoint() {
            Ok(Endpoint::Address(address, interface)) => (address, interface),
            Ok(Endpoint::Interface(interface)) => {
                if !unnumbered.insert(interface) {
                    check.fault("interface", format!("{interface} occurs twice: delete one of the two"));
                }
                continue;
            }
            Ok(Endpoint::Prefix(prefix)) => {
                if !ranges.insert(prefix) {
                    check.fault("prefix", format!("{prefix} occurs twice: delete one of the two"));
                }
                continue;
            }
            Err(_) => continue,
        };
        let holding = network.peers().iter().find_map(|other| match other.endpoint() {
            Ok(Endpoint::Prefix(prefix)) if prefix.contains(&address) && is_signed(other) => Some(prefix),
            _ => None,
        });
        if let Some(prefix) = holding.filter(|_| !is_signed(peer)) {
            check.fault(
                "password",
                format!(
                    "missing: every neighbour from {prefix} must sign (TCP-MD5), and {address} is in it: write its password"
                ),
            );
        }
        let key = (peer.password(), &peer.password_file, &peer.password_secret_ref);
        if !seen.insert((address, interface)) {
            check.fault("address", format!("{} occurs twice: delete one of the two", peer.address));
        } else if *keys.entry(address).or_insert(key) != key {
            check.fault(
                "password",
                format!(
                    "{address} is also a peer on another interface, and the kernel has one \
                     TCP-MD5 key per address: write the same password for both"
                ),
            );
        }
    }
}

struct PeerCheck<'a, 'b> {
    peer: &'a BgpPeer,
    path: String,
    faults: &'a mut Faults<'b>,
}

impl PeerCheck<'_, '_> {
    fn fault(&mut self, field: &str, message: impl Into<String>) {
        self.faults.add(format!("{}.{field}", self.path), message);
    }

    fn all(&mut self, local_as: Option<u32>, sets: &BTreeMap<String, Vec<PrefixMatch>>) {
        check_asn(format!("{}.asn", self.path), self.peer.asn, self.faults);
        self.endpoint();
        self.password();
        self.timers();
        self.hops(local_as);
        self.add_path();
        self.bfd();
        self.path_rules(local_as);
        if self.peer.port == Some(0) {
            self.fault("port", "0 is not a port: write 1 to 65535, or leave it out for 179");
        }
        if self.peer.max_prefixes == Some(0) {
            self.fault("maxPrefixes", "0 would end the session with the first prefix: write 1 or more, or leave it out for no limit");
        }
        for (direction, policy) in
            [(PolicyDirection::Import, &self.peer.import), (PolicyDirection::Export, &self.peer.export)]
        {
            if let Some(policy) = policy {
                policy::check(policy, direction, sets, &format!("{}.{direction}", self.path), self.faults);
            }
        }
    }

    /// Exactly one of address, interface and prefix, with a valid value.
    fn endpoint(&mut self) {
        let peer = self.peer;
        let interface = peer.interface.as_deref().unwrap_or_default();
        let prefix = peer.prefix.as_deref().unwrap_or_default();
        let ways = [("address", peer.address.as_str()), ("interface", interface), ("prefix", prefix)];
        let mut given = ways.into_iter().filter(|(_, value)| !value.is_empty());
        let first = given.next();
        if let (Some((first, _)), Some((second, value))) = (first, given.next()) {
            let hint = match (first, second) {
                ("address", "interface") => {
                    format!(
                        " (a link-local address ends with its interface, \
                        `fe80::1%{interface}`)"
                    )
                }
                _ => String::new(),
            };
            self.fault(
                second,
                format!(
                    "{value}: `{first}` is also set: leave out one of the \
                two{hint}"
                ),
            );
        }
        if peer.limit.is_some() && prefix.is_empty() {
            self.fault(
                "limit",
                "it is the highest number of neighbours from a prefix: leave it out, or write \
                 prefix in place of address",
            );
        }
        match peer.endpoint() {
            _ if first.is_none() => self.fault(
                "address",
                "missing: write the router's address, `interface` where it is alone on a link, or `prefix` for neighbours that connect by themselves",
            ),
            Ok(Endpoint::Address(address, interface)) => self.address(address, interface),
            Ok(Endpoint::Interface(interface)) => self.unnumbered(interface),
            Ok(Endpoint::Prefix(prefix)) => self.range(prefix),
            Err(error) if peer.address.is_empty() => self.fault("prefix", error.to_string()),
            Err(error) => self.fault("address", error.to_string()),
        }
    }

    /// Dynamic neighbours, identified by their source address.
    fn range(&mut self, prefix: IpNet) {
        let (shown, peer) = (self.peer.prefix.as_deref().unwrap_or_default(), self.peer);
        if !super::subnet::is_canonical(shown) {
            self.fault("prefix", format!("{shown} has host bits: write {prefix}"));
        }
        if prefix.addr().is_multicast() || is_link_local_v6(prefix.addr()) {
            self.fault(
                "prefix",
                format!("no neighbour can have an address in {shown}: write a prefix of unicast addresses that are not link-local"),
            );
        }
        if peer.limit == Some(0) {
            self.fault("limit", "0 admits no neighbour: write 1 or more, or leave it out for 100");
        }
        if peer.port.is_some() {
            self.fault("port", "neighbours from a prefix connect to this node: leave it out");
        }
        self.source(prefix.addr(), &prefix.to_string());
    }

    fn address(&mut self, address: IpAddr, interface: Option<&str>) {
        let shown = &self.peer.address;
        if let Some(wrong) = not_a_host(address) {
            self.fault("address", format!("{shown} is {wrong}: write the address of the router"));
        }
        match (is_link_local_v6(address), interface) {
            (true, None) => {
                self.fault("address", format!("{shown} is link-local: append its interface, `{shown}%eth0`"))
            }
            (false, Some(_)) => self.fault(
                "address",
                format!("{shown}: only a link-local address has an interface: write {address}"),
            ),
            (true, Some(name)) if !is_interface_name(name) => {
                self.fault("address", format!("`{name}` is not the name of an interface: write up to 15 characters, as `ip link` shows it"));
            }
            _ => {}
        }
        self.source(address, &format!("the peer's {address}"));
        if self.peer.source() == Ok(Some(address)) {
            self.fault(
                "sourceAddress",
                format!("{address} is the peer's own address: write an address of this node"),
            );
        }
    }

    /// The local address of sessions, for a peer at `remote`.
    fn source(&mut self, remote: IpAddr, shown: &str) {
        let fault = match self.peer.source() {
            Err(error) => error.to_string(),
            Ok(Some(source)) if source.is_ipv4() != remote.is_ipv4() => {
                format!(
                    "{source} and {shown} are of different families: write an address of this node of the same family"
                )
            }
            Ok(Some(source)) => match not_a_host(source) {
                Some(wrong) => format!("{source} is {wrong}: write an address of this node"),
                None => return,
            },
            Ok(None) => return,
        };
        self.fault("sourceAddress", fault);
    }

    fn unnumbered(&mut self, interface: &str) {
        if !is_interface_name(interface) {
            self.fault("interface", format!("`{interface}` is not the name of an interface: write up to 15 characters, as `ip link` shows it"));
        }
        if self.peer.source_address.as_ref().is_some_and(|source| !source.is_empty()) {
            self.fault(
                "sourceAddress",
                "a session of an unnumbered peer is between link-local addresses: leave it out",
            );
        }
        if self.peer.ebgp_multihop.is_some() {
            self.fault("ebgpMultihop", "an unnumbered peer is on the link: leave it out");
        }
    }

    /// At most one of three fields. A message never contains the key.
    fn password(&mut self) {
        let peer = self.peer;
        if let Some(password) = peer.password() {
            let length = password.expose().len();
            if length > BgpPeer::MAX_PASSWORD {
                self.fault(
                    "password",
                    format!(
                        "the key has {length} bytes, and TCP-MD5 allows at most {}: write a \
                         shorter one",
                        BgpPeer::MAX_PASSWORD
                    ),
                );
            }
        }
        let places = [
            ("password", peer.password().is_some()),
            ("passwordFile", peer.password_file.is_some()),
            ("passwordSecretRef", peer.password_secret_ref.is_some()),
        ];
        let mut given = places.into_iter().filter_map(|(field, is_given)| is_given.then_some(field));
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            self.fault(second, format!("{first} is also set: leave out one of the two"));
        }
        if let Some(file) = peer.password_file.as_deref()
            && !file.starts_with('/')
        {
            self.fault(
                "passwordFile",
                format!("`{file}` is not an absolute path: write a path that begins with `/`"),
            );
        }
        if let Some(secret) = &peer.password_secret_ref {
            for (field, text) in [("name", Some(&secret.name)), ("namespace", secret.namespace.as_ref())] {
                if let Some(text) = text
                    && !super::is_dns_subdomain(text)
                {
                    self.fault(
                        &format!("passwordSecretRef.{field}"),
                        format!("`{text}` is not a name: write up to 253 of a-z, 0-9, `-` and `.`"),
                    );
                }
            }
            let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let key = &secret.key;
            if key.is_empty() || key.len() > 253 || !key.bytes().all(is_key) {
                self.fault(
                    "passwordSecretRef.key",
                    format!(
                        "`{key}` is no key of a Secret: write up to 253 of a-z, A-Z, 0-9, `-`, `_` and `.`"
                    ),
                );
            }
        }
    }

    fn timers(&mut self) {
        let peer = self.peer;
        if peer.graceful_restart_seconds > u32::from(BgpPeer::MAX_GRACEFUL_RESTART) {
            self.fault(
                "gracefulRestartSeconds",
                format!(
                    "{} is more than the 4095 that fit into OPEN (RFC 4724): write 1 to 4095, or 0 for 300",
                    peer.graceful_restart_seconds
                ),
            );
        }
        let LongLivedStale { ipv4, ipv6 } = peer.long_lived_stale_seconds;
        let most = BgpPeer::MAX_LONG_LIVED_STALE;
        let wrong = [ipv4, ipv6].into_iter().flatten().find(|seconds| !(1..=most).contains(seconds));
        if let Some(seconds) = wrong {
            self.fault(
                "longLivedStaleSeconds",
                format!("{seconds} is not from 1 to {most} (RFC 9494): write one of these, or leave it out for none"),
            );
        }
        let hold = peer.hold_time_seconds.unwrap_or(90);
        if matches!(hold, 1 | 2) || hold > 65535 {
            self.fault(
                "holdTimeSeconds",
                format!("{hold} is not a Hold Time (RFC 4271): write 3 to 65535, or 0 for a session that never expires"),
            );
        } else {
            match peer.keepalive_seconds {
                Some(_) if hold == 0 => self.fault(
                    "keepaliveSeconds",
                    "with holdTimeSeconds 0 no keepalives are sent: leave it out",
                ),
                Some(keepalive) if keepalive == 0 || keepalive > hold / 3 => self.fault(
                    "keepaliveSeconds",
                    format!("{keepalive} is not from 1 to a third of the Hold Time of {hold} s: write {} or less, or leave it out", hold / 3),
                ),
                _ => {}
            }
        }
        if let Some(retry) = peer.connect_retry_seconds
            && !(1..=65535).contains(&retry)
        {
            self.fault(
                "connectRetrySeconds",
                format!("{retry} is not from 1 to 65535: write a number of seconds, or leave it out for 120"),
            );
        }
    }

    fn add_path(&mut self) {
        let Some(add_path) = self.peer.add_path else { return };
        match add_path.send {
            Some(paths) if !(1..=255).contains(&paths) => self.fault(
                "addPath.send",
                format!("{paths} is not from 1 to 255: write the number of paths of a prefix for the peer, or leave it out for one"),
            ),
            None if !add_path.receive => {
                self.fault("addPath", "has no effect: write `receive: true` or `send: 2`, or \
                    leave it out");
            }
            _ => {}
        }
    }

    fn bfd(&mut self) {
        let Some(bfd) = &self.peer.bfd else { return };
        let interval = bfd.interval_milliseconds.unwrap_or(Bfd::DEFAULT_INTERVAL);
        if !(10..=60_000).contains(&interval) {
            self.fault(
                "bfd.intervalMilliseconds",
                format!("{interval} is not from 10 to 60000: write a number of milliseconds, or leave it out for 300"),
            );
        }
        let multiplier = bfd.multiplier.unwrap_or(Bfd::DEFAULT_MULTIPLIER);
        if !(1..=255).contains(&multiplier) {
            self.fault(
                "bfd.multiplier",
                format!(
                    "{multiplier} is not from 1 to 255 (RFC 5880): write the number of lost \
                    packets, or leave it out for 3"
                ),
            );
        }
    }

    /// Rules for the peer's paths in addition to its policies.
    fn path_rules(&mut self, local_as: Option<u32>) {
        let peer = self.peer;
        let internal = local_as == Some(peer.asn);
        self.role(internal);
        self.local_as(local_as);
        if let Some(times) = peer.allow_as_in.filter(|times| !(1..=10).contains(times)) {
            self.fault("allowAsIn", format!("{times} is not from 1 to 10: write how often the network's own AS may be in a path, or leave it out"));
        }
        for (field, given, default_anyway) in [
            (
                "removePrivateAs",
                peer.remove_private_as.is_some() && internal,
                "internal peers receive every AS_PATH unchanged",
            ),
            (
                "nextHopSelf",
                peer.next_hop_self && !internal,
                "an external peer always receives this node as next hop",
            ),
            (
                "nextHopUnchanged",
                peer.next_hop_unchanged && internal,
                "an internal peer always receives the next hop unchanged",
            ),
        ] {
            if given {
                self.fault(field, format!("{default_anyway}: leave it out"));
            }
        }
        if peer.route_reflector_client && !internal {
            self.fault(
                "routeReflectorClient",
                format!("the peer's AS {} is not the network's own, and only internal peers are clients (RFC 4456): leave it out", peer.asn),
            );
        }
    }

    fn local_as(&mut self, own: Option<u32>) {
        let peer = self.peer;
        let Some(LocalAs { asn, .. }) = peer.local_as else { return };
        check_asn(format!("{}.localAs.asn", self.path), asn, self.faults);
        let fault = match Some(asn) {
            _ if own == Some(peer.asn) => {
                format!(
                    "the peer's AS {} is the network's own, and an internal peer accepts no other \
                     AS number: leave it out",
                    peer.asn
                )
            }
            it if it == own => format!("{asn} is the network's own AS number: leave it out"),
            Some(it) if it == peer.asn => {
                format!(
                    "{asn} is the peer's own AS number: write the number that the peer has \
                    configured for this node"
                )
            }
            _ => return,
        };
        self.fault("localAs", fault);
    }

    fn role(&mut self, internal: bool) {
        let peer = self.peer;
        if peer.local_role.is_some() && internal {
            self.fault(
                "localRole",
                format!("the peer's AS {} is the network's own, and a role is between two ASes (RFC 9234): leave it out", peer.asn),
            );
        }
        if peer.local_role_strict && peer.local_role.is_none() {
            self.fault(
                "localRoleStrict",
                "has no effect without localRole: write both, or leave \
                it out",
            );
        }
    }

    fn hops(&mut self, local_as: Option<u32>) {
        let peer = self.peer;
        if let Some(ttl) = peer.ebgp_multihop {
            if !(1..=255).contains(&ttl) {
                self.fault("ebgpMultihop", format!("{ttl} is not a TTL: write 1 to 255"));
            }
            if local_as == Some(peer.asn) {
                self.fault(
                    "ebgpMultihop",
                    format!("the peer's AS {} is the network's own, and internal peers may be any number of hops away: leave it out", peer.asn),
                );
            }
        }
        if let Some(hops) = peer.ttl_security {
            if !(1..=254).contains(&hops) {
                self.fault(
                    "ttlSecurity",
                    format!("{hops} is not a number of hops: write 1 (directly connected) to 254"),
                );
            }
            if peer.ebgp_multihop.is_some() {
                self.fault(
                    "ttlSecurity",
                    "it excludes ebgpMultihop, because RFC 5082 requires TTL 255: leave out one \
                     of the two",
                );
            }
        }
    }
}

/// The reason why no host can have this address.
pub(super) fn not_a_host(address: IpAddr) -> Option<&'static str> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if broadcast {
        Some("the broadcast address")
    } else if mapped {
        Some("an IPv4-mapped IPv6 address")
    } else {
        None
    }
}

/// Whether a TCP-MD5 key is configured.
fn is_signed(peer: &BgpPeer) -> bool {
    peer.password().is_some() || peer.password_file.is_some() || peer.password_secret_ref.is_some()
}

pub(super) fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether the kernel accepts an interface name.
pub(super) fn is_interface_name(name: &str) -> bool {
    let forbidden = |byte: u8| byte == b'/' || byte == b':' || byte.is_ascii_whitespace() || byte == 0;
    !name.is_empty() && name.len() <= 15 && name != "." && name != ".." && !name.bytes().any(forbidden)
}
