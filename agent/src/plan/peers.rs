//! The BGP part of the plan: the speaker's peers, and the next hops of the network's table.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;
use std::time::Duration;

use ipnet::IpNet;
use trunkline_api::resources::{self, Bfd, BgpPeer, Endpoint, Network};
use trunkline_bgp::bfd::BfdConfig;
use trunkline_bgp::config::{
    AddPath, LocalAs, NextHopRule, Password, PathRules, PeerConfig, PeerRange, RemovePrivateAs,
};
use trunkline_bgp::policy::Policy;
use trunkline_bgp::types::{Asn, Family, InterfaceName, NextHop, PeerKey, Role};
use trunkline_datapath::plan::{Hop, Link};

use super::anycast::AnycastExports;
use super::policy::Sets;
use super::services::{Exports, PeerName};
use super::{Host, Intent, PeerDefaultRoutes, PlanError, RefusedRange, Session, Unnumbered, policy};

/// One peer and its state on the host.
pub(super) struct Peer<'a> {
    network: &'a str,
    index: usize,
    pub(super) spec: &'a BgpPeer,
    /// None until an unnumbered peer is discovered.
    pub(super) address: Option<IpAddr>,
    interface: Option<InterfaceName>,
    source: Option<IpAddr>,
    /// The link of the session.
    pub(super) link: Option<&'a Link>,
    session: Option<&'a Session>,
    /// Whether the peer is in the AS of this node.
    internal: bool,
    /// Whether the peer is on a connected network of the host.
    connected: bool,
    origin: Origin,
}

/// The origin of an entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Configured by its address.
    Numbered,
    /// Configured by its interface. Router advertisements discover the address.
    Unnumbered,
    /// A prefix of dynamic neighbours. Its address is only some address of the prefix.
    Range(IpNet),
    /// A dynamic neighbour with a session.
    Came,
}

impl Peer<'_> {
    /// Whether the manifest configures this peer itself.
    pub(super) fn is_configured(&self) -> bool {
        matches!(self.origin, Origin::Numbered | Origin::Unnumbered)
    }

    /// Whether a ServiceAdvertisement with this name means this peer.
    fn is_named(&self, name: &PeerName) -> bool {
        match (self.origin, name) {
            (Origin::Numbered, PeerName::Address(address, interface)) => {
                self.address == Some(*address) && self.interface == *interface
            }
            (Origin::Unnumbered, PeerName::Interface(interface)) => self.interface == Some(*interface),
            (Origin::Range(prefix), PeerName::Prefix(named)) => prefix == *named,
            _ => false,
        }
    }

    /// The key in the speaker; none for a prefix and for a peer that is not discovered yet.
    pub(super) fn key(&self) -> Option<PeerKey> {
        let address = self.address.filter(|_| !matches!(self.origin, Origin::Range(_)))?;
        Some(PeerKey::new(address, self.interface))
    }

    /// State of the discovery of an unnumbered peer.
    pub(super) fn unnumbered(&self) -> Option<(InterfaceName, Unnumbered)> {
        let unnumbered = Unnumbered {
            remote_as: Asn(self.spec.asn),
            local_as: self.spec.local_as.map(|local_as| Asn(local_as.asn)),
            optional: self.spec.allow_not_established,
            link: self.link.filter(|link| link.up).map(|link| link.index),
            found: self.address.is_some(),
        };
        self.interface.filter(|_| self.origin == Origin::Unnumbered).map(|interface| (interface, unnumbered))
    }

    /// Whether this peer's routes are imported, instead of a default route to it.
    pub(super) fn imports(&self) -> bool {
        self.spec.import.is_some() && routes_traffic(self.spec)
    }

    /// Whether BFD uses several hops (RFC 5883) or one hop (RFC 5881). External peers are one hop
    /// away unless `ebgpMultihop` or `ttlSecurity` is set. Internal peers are one hop away if the
    /// host is connected to their network.
    fn is_multihop(&self) -> bool {
        let configured =
            self.spec.ebgp_multihop.is_some() || self.spec.ttl_security.is_some_and(|hops| hops > 1);
        configured || (self.internal && !self.connected)
    }

    /// Whether traffic can reach the peer over its own link, without another router between.
    pub(super) fn is_adjacent_router(&self) -> bool {
        routes_traffic(self.spec) && self.connected
    }

    /// Whether the peer lacks this node's pods because it has no session. A peer with
    /// `allowNotEstablished` lacks them only after its first session. A dynamic neighbour is never
    /// such a peer, because it may never return.
    pub(super) fn is_down_router(&self) -> bool {
        let was_there = self.session.is_some_and(|session| session.was_established);
        routes_traffic(self.spec)
            && self.is_configured()
            && !self.session.is_some_and(|session| session.established)
            && (was_there || !self.spec.allow_not_established)
    }

    /// State of the default routes that it offers.
    pub(super) fn offer(&self) -> PeerDefaultRoutes {
        self.session.map(|session| session.offer).unwrap_or_default()
    }

    /// Whether packets to this next hop may go to the peer. In the family that its session does not
    /// use, its next hop is known only after it advertised a path.
    pub(super) fn may_be(&self, hop: &Hop, family: Family) -> bool {
        if let Origin::Range(prefix) = self.origin {
            let known = Family::of(&prefix) == family;
            return !known || hop.gateway.is_some_and(|gateway| prefix.contains(&gateway));
        }
        self.address
            .is_none_or(|address| Family::of(&address.into()) != family || hop.gateway == Some(address))
    }

    /// The peer's name for the operator.
    pub(super) fn name(&self) -> String {
        match (self.key(), self.interface) {
            (Some(key), _) => key.to_string(),
            (None, Some(interface)) => interface.to_string(),
            (None, None) => "-".to_owned(),
        }
    }

    /// The router of this peer on its link, for each family that it routes.
    pub(super) fn routers(&self) -> impl Iterator<Item = (Family, Hop)> {
        let link = self.link.filter(|_| self.is_adjacent_router());
        link.into_iter().flat_map(|link| {
            let hop = |family| Some((family, Hop { ifindex: Some(link.index), ..self.hop(family)? }));
            Family::ALL.into_iter().filter_map(hop)
        })
    }

    /// The next hop of a family through this peer; none if the peer is not established or has no
    /// known next hop of the family.
    pub(super) fn hop(&self, family: Family) -> Option<Hop> {
        let session = self.session.filter(|session| session.established)?;
        let address = self.address?;
        let own = Family::of(&address.into()) == family;
        let gateway = if own {
            address
        } else {
            match session.next_hops.get(&family)? {
                // The link-local address needs no route.
                NextHop::V6WithLinkLocal(_, local) if self.link.is_some() => IpAddr::V6(*local),
                next_hop => next_hop.address(),
            }
        };
        let link_local = matches!(gateway, IpAddr::V6(address) if address.is_unicast_link_local());
        let ifindex = match (link_local, self.link) {
            (true, Some(link)) => Some(link.index),
            (true, None) => return None,
            (false, _) => None,
        };
        Some(Hop { ifindex, ..Hop::to(gateway) })
    }
}

impl<'a> Peer<'a> {
    /// The peer with this index in the manifest, and its state on the host.
    fn read(
        network: &'a Network,
        host: &'a Host,
        (index, spec): (usize, &'a BgpPeer),
        origin: Origin,
        (address, interface): (Option<IpAddr>, Option<InterfaceName>),
        errors: &mut Vec<PlanError>,
    ) -> Peer<'a> {
        let source = spec.source().unwrap_or_else(|error| {
            errors.push(peer_field(network.name(), index, "sourceAddress", error));
            None
        });
        let mut peer = Peer {
            network: network.name(),
            index,
            spec,
            address,
            interface,
            source,
            link: None,
            session: None,
            internal: network.spec.net_id == Some(spec.asn),
            connected: interface.is_some()
                || address.is_some_and(|address| connected_link(host, address).is_some()),
            origin,
        };
        let key = peer.key();
        peer.session = host.sessions.iter().find(|session| Some(session.peer) == key);
        let local = source.or_else(|| peer.session.and_then(|session| session.local));
        peer.link = link_of(host, address, interface, local);
        peer
    }
}

/// The network's peers, without the neighbours of refused prefixes. Errors report invalid
/// addresses.
pub(super) fn read<'a>(
    network: &'a Network,
    host: &'a Host,
    refused: &BTreeMap<IpNet, RefusedRange>,
    errors: &mut Vec<PlanError>,
) -> Vec<Peer<'a>> {
    let mut peers = Vec::new();
    let mut ranges = Vec::new();
    for (index, spec) in network.peers().iter().enumerate() {
        let (field, origin, address, interface) = match spec.endpoint() {
            Ok(Endpoint::Address(address, interface)) => {
                ("address", Origin::Numbered, Some(address), interface)
            }
            Ok(Endpoint::Interface(interface)) => ("interface", Origin::Unnumbered, None, Some(interface)),
            Ok(Endpoint::Prefix(prefix)) if refused.contains_key(&prefix) => continue,
            Ok(Endpoint::Prefix(prefix)) => {
                ranges.push((index, spec, prefix));
                let some = prefix.hosts().next().unwrap_or(prefix.addr());
                ("prefix", Origin::Range(prefix), Some(some), None)
            }
            Err(error) => {
                let field = if spec.prefix.is_some() { "prefix" } else { "address" };
                errors.push(peer_field(network.name(), index, field, error));
                continue;
            }
        };
        let interface: Option<InterfaceName> = match interface.map(str::parse).transpose() {
            Ok(interface) => interface,
            Err(error) => {
                errors.push(peer_field(network.name(), index, field, error));
                continue;
            }
        };
        let address = address.or_else(|| found(host, interface?));
        peers.push(Peer::read(network, host, (index, spec), origin, (address, interface), errors));
    }
    let configured: Vec<PeerKey> = peers.iter().filter_map(Peer::key).collect();
    for session in host.sessions.iter().filter(|session| !configured.contains(&session.peer)) {
        let (address, interface) = (session.peer.address(), session.peer.interface());
        let holding = ranges.iter().filter(|(_, _, prefix)| prefix.contains(&address));
        // The speaker selects the same prefix.
        if let Some(&(index, spec, _)) = holding.max_by_key(|(_, _, prefix)| prefix.prefix_len()) {
            let endpoint = (Some(address), interface);
            peers.push(Peer::read(network, host, (index, spec), Origin::Came, endpoint, errors));
        }
    }
    peers
}

/// The discovered router of an interface that is up.
fn found(host: &Host, interface: InterfaceName) -> Option<IpAddr> {
    let link = host.kernel.links.iter().find(|link| link.name == interface.as_str())?;
    link.up.then(|| host.neighbours.get(&interface).copied().map(IpAddr::V6))?
}

/// The link to a peer: the named link, or the link with the peer's network, or the link with the
/// session's local address.
fn link_of(
    host: &Host,
    address: Option<IpAddr>,
    interface: Option<InterfaceName>,
    local: Option<IpAddr>,
) -> Option<&Link> {
    if let Some(interface) = interface {
        return host.kernel.links.iter().find(|link| link.name == interface.as_str());
    }
    connected_link(host, address?).or_else(|| {
        let local = local?;
        // A loopback address does not identify the link.
        host.kernel
            .links
            .iter()
            .find(|link| link.name != "lo" && link.addresses.iter().any(|prefix| prefix.addr() == local))
    })
}

/// The link with a connected network that contains the address.
fn connected_link(host: &Host, address: IpAddr) -> Option<&Link> {
    host.kernel
        .links
        .iter()
        .flat_map(|link| link.addresses.iter().map(move |prefix| (prefix, link)))
        .filter(|(prefix, _)| prefix.prefix_len() < prefix.max_prefix_len() && prefix.contains(&address))
        .max_by_key(|(prefix, link)| (prefix.prefix_len(), link.up))
        .map(|(_, link)| link)
}

/// The inputs of the peers' policies.
pub(super) struct Policies<'a> {
    /// The network's prefix sets.
    pub(super) sets: &'a Sets<'a>,
    /// The rules for service addresses.
    pub(super) exports: &'a Exports,
    /// The rules for anycast addresses.
    pub(super) anycast: &'a AnycastExports,
}

/// The speaker's peers and prefixes. `graceful_shutdown` applies to the whole node and overrides
/// the peers' settings.
pub(super) fn plan(
    peers: &[Peer<'_>],
    graceful_shutdown: bool,
    policies: &Policies<'_>,
    errors: &mut Vec<PlanError>,
) -> (BTreeMap<PeerKey, PeerConfig>, BTreeMap<IpNet, PeerRange>) {
    let some_import = peers.iter().any(Peer::imports);
    let reflects = peers.iter().any(|peer| peer.spec.route_reflector_client);
    let (mut planned, mut ranges) = (BTreeMap::new(), BTreeMap::new());
    for peer in peers.iter().filter(|peer| peer.origin != Origin::Came) {
        // Fields of undiscovered peers are checked too.
        let mut config = config(peer, some_import, reflects, policies, errors);
        config.paths.graceful_shutdown |= graceful_shutdown;
        if let Origin::Range(prefix) = peer.origin {
            let limit = peer.spec.limit.unwrap_or(BgpPeer::DEFAULT_LIMIT);
            ranges.insert(prefix, PeerRange::new(prefix, limit, config));
        } else if peer.address.is_some() {
            planned.insert(config.key(), config);
        }
    }
    (planned, ranges)
}

fn config(
    peer: &Peer<'_>,
    some_import: bool,
    reflects: bool,
    Policies { sets, exports, anycast }: &Policies<'_>,
    errors: &mut Vec<PlanError>,
) -> PeerConfig {
    let spec = peer.spec;
    let mut fault = |field: &str, message: String| {
        errors.push(peer_field(peer.network, peer.index, field, message));
    };
    let mut octet = |field: &str, value: Option<u32>| {
        value.and_then(|value| match u8::try_from(value) {
            Ok(value) if value > 0 => Some(value),
            _ => {
                fault(field, format!("{value} is out of range: write 1 to 255"));
                None
            }
        })
    };
    let seconds = |value: u32| Duration::from_secs(u64::from(value));
    let address = peer.address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let mut config = PeerConfig::new(address, Asn(spec.asn));
    config.interface = peer.interface;
    config.port = spec.port.unwrap_or(config.port);
    config.local_address = peer.source;
    config.hold_time = spec.hold_time_seconds.map_or(config.hold_time, seconds);
    config.keepalive = spec.keepalive_seconds.map(seconds);
    config.connect_retry = spec.connect_retry_seconds.map_or(config.connect_retry, seconds);
    config.passive = spec.passive;
    config.ebgp_multihop = octet("ebgpMultihop", spec.ebgp_multihop);
    config.ttl_security = octet("ttlSecurity", spec.ttl_security);
    config.graceful_restart = Some(spec.graceful_restart());
    config.restart_notification = spec.restart_notification();
    config.long_lived = [spec.long_lived_stale_seconds.ipv4, spec.long_lived_stale_seconds.ipv6];
    config.max_prefixes = spec.max_prefixes;
    config.extended_messages = spec.extended_messages.unwrap_or(true);
    config.paths = PathRules {
        graceful_shutdown: spec.graceful_shutdown,
        route_reflector_client: spec.route_reflector_client,
        local_role: spec.local_role.map(role),
        local_role_strict: spec.local_role_strict,
        allow_as_in: octet("allowAsIn", spec.allow_as_in).unwrap_or(0),
        local_as: spec.local_as.map(|resources::LocalAs { asn, no_prepend, replace_as }| LocalAs {
            asn: Asn(asn),
            no_prepend,
            replace_as,
        }),
        remove_private_as: spec
            .remove_private_as
            .map(|remove| RemovePrivateAs { all: remove.all, replace: remove.replace }),
        next_hop: match (spec.next_hop_self, spec.next_hop_unchanged) {
            (true, _) => NextHopRule::Own,
            (_, true) => NextHopRule::Unchanged,
            _ => NextHopRule::Standard,
        },
    };
    config.add_path = spec.add_path.map_or_else(Default::default, |add_path| AddPath {
        receive: add_path.receive,
        send: octet("addPath.send", add_path.send).and_then(NonZeroU8::new),
    });
    config.bfd = spec.bfd.as_ref().map(|bfd| BfdConfig {
        interval: Duration::from_millis(bfd.interval_milliseconds.unwrap_or(Bfd::DEFAULT_INTERVAL).into()),
        multiplier: octet("bfd.multiplier", Some(bfd.multiplier.unwrap_or(Bfd::DEFAULT_MULTIPLIER)))
            .unwrap_or_default(),
        multihop: peer.is_multihop(),
    });
    if let Some(password) = spec.password() {
        match Password::new(password.expose()) {
            Ok(password) => config.password = Some(password),
            Err(error) => fault("password", error.to_string()),
        }
    }
    config.import = match &spec.import {
        Some(import) => policy::import(import, sets).unwrap_or_else(|error| {
            fault("import", error.to_string());
            Policy::reject_all()
        }),
        None if some_import => policy::behind_others(),
        None => Policy::accept_all(),
    };
    // A node advertises no received path, except a route reflector: RFC 4456 defines which paths it
    // reflects to which peers.
    config.export = match peer.internal && reflects {
        true => Policy::accept_all(),
        false => Policy::originated_only(),
    };
    if let Some(export) = &spec.export {
        config.export = policy::export(export, config.export, sets).unwrap_or_else(|error| {
            fault("export", error.to_string());
            Policy::reject_all()
        });
    }
    let of_services = exports.rules(|name| peer.is_named(name));
    let of_anycast = anycast.rules(|name| peer.is_named(name));
    config.export.rules.splice(0..0, of_services.into_iter().chain(of_anycast));
    // In the family that the session does not use, this node's next hop is its address on the same
    // link.
    match address {
        // An unnumbered link has a link-local next hop in both families (RFC 8950).
        _ if peer.origin == Origin::Unnumbered => {}
        IpAddr::V4(_) => config.next_hop_v6 = peer.link.and_then(address_v6),
        IpAddr::V6(_) => config.next_hop_v4 = peer.link.and_then(address_v4),
    }
    config
}

fn role(role: resources::Role) -> Role {
    match role {
        resources::Role::Provider => Role::Provider,
        resources::Role::Rs => Role::RouteServer,
        resources::Role::RsClient => Role::RouteServerClient,
        resources::Role::Customer => Role::Customer,
        resources::Role::Peer => Role::Peer,
    }
}

fn address_v4(link: &Link) -> Option<Ipv4Addr> {
    link.addresses
        .iter()
        .filter_map(|prefix| match prefix.addr() {
            IpAddr::V4(address) if !address.is_loopback() => Some(address),
            _ => None,
        })
        .min()
}

/// The link's IPv6 address; a global address is preferred.
fn address_v6(link: &Link) -> Option<Ipv6Addr> {
    link.addresses
        .iter()
        .filter_map(|prefix| match prefix.addr() {
            IpAddr::V6(address) if !address.is_loopback() => Some(address),
            _ => None,
        })
        .min_by_key(|address| (address.is_unicast_link_local(), *address))
}

/// The BGP identifier: the configured one, otherwise the lowest IPv4 address of the links to the
/// peers, otherwise of the host. A host without IPv4 derives it from its name, because RFC 6286
/// requires only a unique number.
pub(super) fn router_id(intent: &Intent, peers: &[Peer<'_>], host: &Host) -> Ipv4Addr {
    let of_links = peers.iter().filter_map(|peer| peer.link).filter_map(address_v4).min();
    let of_host =
        || host.kernel.links.iter().filter_map(address_v4).filter(|address| !address.is_link_local()).min();
    intent.router_id.or(of_links).or_else(of_host).unwrap_or_else(|| {
        let hash = intent
            .node
            .name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, octet| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193));
        Ipv4Addr::from(hash.max(1))
    })
}

/// The resource and field of a peer, for an error.
pub(super) fn peer_field(network: &str, index: usize, field: &str, message: impl ToString) -> PlanError {
    PlanError::Field {
        resource: format!("Network {network}"),
        field: format!("spec.config.bgpPeers[{index}].{field}"),
        message: message.to_string(),
    }
}

/// Whether traffic is sent to a peer.
pub(super) fn routes_traffic(peer: &BgpPeer) -> bool {
    !peer.does_not_route_traffic
}
