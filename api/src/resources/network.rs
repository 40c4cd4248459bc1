//! Network: a set of nodes, the attachment of their pods to the fabric, and their BGP peers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::{Count, ObjectMeta};
use crate::policy::{Policy, PrefixMatch};
use crate::value::{LongLivedStale, Secret, ValueError, parse_address};
use crate::value::{is_default, null_default};

/// A set of nodes that share one way into the network: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `Network`.
    pub kind: String,
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: NetworkSpec,
    /// What was seen. Written by the controller only, and ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NetworkStatus>,
}

/// What is wanted of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// Labels that a node has when it belongs to the network; for Underlay only, and needed there.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// VLAN: the VLAN id (0: untagged). VXLAN: the VNI. BGP: the AS number of the nodes.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// Underlay unless said; see [`Network::network_type`].
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub network_type: Option<NetworkType>,
    /// Follows from the type unless said; see [`Network::mode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Needed in mode BGP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NetworkConfig>,
}

/// Where the addresses of a network live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum NetworkType {
    /// On the real network, at the selected nodes.
    Underlay,
    /// Inside tunnels, on every node.
    Overlay,
    /// On the real network, at every node that is in an Underlay network of mode BGP.
    GlobalBGP,
}

/// How pods of a network are joined to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum NetworkMode {
    /// A VLAN of the node's link. Goes with Underlay, and is its default.
    VLAN,
    /// A VXLAN tunnel. Goes with Overlay, and is its default.
    VXLAN,
    /// Routes told by BGP, the subnet and every pod. Goes with Underlay.
    BGP,
    /// Routes told by BGP, pods only. Goes with GlobalBGP, and is its default.
    GlobalBGP,
}

/// Further settings of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkConfig {
    /// The routers that the nodes peer with; at least one in mode BGP.
    #[serde(
        default,
        rename = "bgpPeers",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub bgp_peers: Vec<BgpPeer>,
    /// VLAN: how pods are joined; `veth` unless said. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<AttachmentKind>,
    /// VLAN and BGP: what pods of the network send each other goes out to the switch also where both are on one node. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub hairpin: bool,
    /// BGP: while a peer of a node is down, the node advertises its pods without NO_EXPORT, so that routers which do not hear them from the
    /// node hear them from others; true unless said. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disaggregate: Option<bool>,
    /// Prefixes that pods of the network may name in the annotation `trunkline.io/extra-prefixes`, or parts of them: a pod with the
    /// annotation may send from these prefixes besides its addresses. Not with attachment `ipvlan`. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub extra_prefixes: Vec<String>,
    /// Lists of prefixes by name, for the `prefixSets` of the peers' policies. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub prefix_sets: BTreeMap<String, Vec<PrefixMatch>>,
    /// Nodes that are about to go (RFC 8326): `gracefulShutdown` towards every peer, whatever the peers themselves say. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_shutdown: Option<GracefulShutdown>,
}

/// Which nodes of a [`Network`] are about to go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GracefulShutdown {
    /// Labels that they have; every node of the network unless said.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// How pods of a VLAN are joined to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AttachmentKind {
    /// By the host: a veth pair, and policy routing.
    #[default]
    Veth,
    /// By an IPVLAN slave (L2 mode) on the VLAN's device, with a veth pair beside it for what is the host's.
    Ipvlan,
}

/// A router that the nodes of a network peer with. From `port` on, the fields are Trunkline's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BgpPeer {
    /// Its AS number, 1 to 4294967295.
    pub asn: u32,
    /// Its address; a link-local one with its interface, `fe80::1%eth1`. Not given: `interface` or `prefix` is. See
    /// [`BgpPeer::endpoint`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub address: String,
    /// The Restart Time offered (RFC 4724), at most 4095 s; 0 or nothing is 300 s.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub graceful_restart_seconds: u32,
    /// TCP-MD5 key, 1 to 80 octets; `passwordFile` or `passwordSecretRef` in its place keep it out of the resource. See
    /// [`BgpPeer::password`].
    #[serde(default, skip_serializing)]
    pub password: Option<Secret>,
    /// The session tells routes (as to a route server), but no traffic is sent to this router.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub does_not_route_traffic: bool,
    /// Pods may start while this session is down.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub allow_not_established: bool,

    /// Unnumbered: the interface of this node that it is alone on. Its address is found by IPv6 router advertisements (RFC 4861),
    /// and IPv4 is routed by it too (RFC 8950).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Dynamic neighbours: whoever connects from this prefix is a peer like this one. It must not
    /// overlap a Subnet: a pod could connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// With `prefix`: the most peers that may be there at a time, at least 1; 100 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Its TCP port; 179 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address of this node that the session runs from; by default what the route to the peer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// A file on the node that holds the TCP-MD5 key (a newline at its end is not part of it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// A Secret of the cluster that holds the TCP-MD5 key; with the API server only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<SecretKeyRef>,
    /// Hold Time offered: 0 (never expires) or 3 to 65535 s; 90 unless said (RFC 4271 §4.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_seconds: Option<u32>,
    /// Between KEEPALIVEs, at most a third of the Hold Time; a third of the negotiated one unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive_seconds: Option<u32>,
    /// Between attempts to connect, 1 to 65535 s; 120 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_retry_seconds: Option<u32>,
    /// External peers that are not on a connected network: the TTL to send with, 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebgp_multihop: Option<u32>,
    /// GTSM (RFC 5082): the most hops that the peer is away, 1 to 254; excludes `ebgpMultihop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_security: Option<u32>,
    /// Wait for the peer to connect.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub passive: bool,
    /// More prefixes than this, over both families, end the session (RFC 4486); at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prefixes: Option<u32>,
    /// Whether graceful restart also covers a session that ends by a NOTIFICATION or by the Hold Timer (RFC 8538). Not given: where
    /// `bfd` is, since a router that died would else be believed for its Restart Time longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_notification: Option<bool>,
    /// Long-lived graceful restart (RFC 9494): how long this node's paths are kept after the Restart Time, as the last to be
    /// used, 1 to 16777215 s, in both families or in each. Not given: not at all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub long_lived_stale_seconds: LongLivedStale,
    /// Messages of more than 4,096 octets (RFC 8654), if the peer takes them; `false` for one that says so and does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_messages: Option<bool>,
    /// The session is about to be taken down (RFC 8326): what the router is told carries GRACEFUL_SHUTDOWN, and what it told is
    /// the last that is used, so that traffic finds its other way first.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub graceful_shutdown: bool,
    /// A peer of the network's own AS that this node reflects routes to and from (RFC 4456).
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub route_reflector_client: bool,
    /// What this node is to the router (RFC 9234); the router has to be the counterpart. Paths that came from a provider, a
    /// peer or a route server are then told to customers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_role: Option<Role>,
    /// A router that does not say its role is refused.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub local_role_strict: bool,
    /// How often the network's own AS may be in the AS_PATH of the router's routes, 1 to 10; not at all unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_as_in: Option<u32>,
    /// The AS number that the router knows this node by, where that is not the network's own (RFC 7705); external peers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_as: Option<LocalAs>,
    /// Private AS numbers (RFC 6996) are taken out of what an external peer is told; `{}` where there are no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_private_as: Option<RemovePrivateAs>,
    /// An internal peer is told this node as the next hop of what external ones told.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub next_hop_self: bool,
    /// An external peer is told the next hop as it came, as by a route server.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub next_hop_unchanged: bool,
    /// Several paths of a prefix from the peer, or to it (RFC 7911).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_path: Option<AddPath>,
    /// The path to the peer is watched by BFD (RFC 5880), and its failure ends the session; `{}` takes the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<Bfd>,
    /// Given: what the peer advertises and this policy accepts is routed. Not given: a default route to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<Policy>,
    /// What the peer is told. Not given: what this node originates, and nothing that it learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<Policy>,
}

/// One value of a Secret. A newline at its end is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The Secret's name.
    pub name: String,
    /// The Secret's namespace; the one that Trunkline is installed in unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which of the Secret's values.
    pub key: String,
}

/// Another AS number than the network's own towards one router, as after a merger of two ASes (RFC 7705 §3). The router is told
/// it in front of the network's own, and it is put in front of what the router tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalAs {
    /// 1 to 4294967295; neither the network's own nor the router's.
    pub asn: u32,
    /// What the router tells is used as it came.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub no_prepend: bool,
    /// The router is told it in the place of the network's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub replace_as: bool,
}

/// Which private AS numbers an external peer is not told. Its own number stays, so that it sees its loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovePrivateAs {
    /// Also those beside public ones; otherwise an AS_PATH with a public one stays as it is.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub all: bool,
    /// The network's own number takes their place.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub replace: bool,
}

/// What a side of an external session is to the other (RFC 9234 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The other buys transit from it.
    Provider,
    /// A route server.
    Rs,
    /// Of a route server.
    RsClient,
    /// It buys transit from the other.
    Customer,
    /// The two exchange their own and their customers' routes.
    Peer,
}

/// The location of a [`BgpPeer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint<'a> {
    /// At an address; a link-local one with its interface.
    Address(IpAddr, Option<&'a str>),
    /// On an interface, at the address discovered there.
    Interface(&'a str),
    /// In a prefix: any router that connects from there (a dynamic neighbour).
    Prefix(IpNet),
}

/// Several paths of a prefix, in both families (RFC 7911); either way only if the peer wants it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddPath {
    /// Several are taken from the peer.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub receive: bool,
    /// The peer is told the best so many, 1 to 255. Not given: one, the ordinary way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<u32>,
}

/// How BFD watches the path to a [`BgpPeer`]. See there for when it is a multihop session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bfd {
    /// Between packets, and the least that is taken from the peer: 10 to 60000 ms; 300 unless said. The slower side decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    /// This many packets in a row are missed before the path has failed: 1 to 255; 3 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<u32>,
}

impl Bfd {
    /// Default of `intervalMilliseconds`.
    pub const DEFAULT_INTERVAL: u32 = 300;
    /// Default of `multiplier`.
    pub const DEFAULT_MULTIPLIER: u32 = 3;
}

/// What was seen of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkStatus {
    /// The subnet that the last address (IPv4) came from.
    #[serde(default, deserialize_with = "null_default")]
    pub last_allocated_subnet: String,
    /// The subnet that the last IPv6 address came from.
    #[serde(
        default,
        rename = "lastAllocatedIPv6Subnet",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_allocated_ipv6_subnet: String,
    /// Its subnets.
    #[serde(default, deserialize_with = "null_default")]
    pub subnet_list: Vec<String>,
    /// Its nodes.
    #[serde(default, deserialize_with = "null_default")]
    pub node_list: Vec<String>,
    /// IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Count>,
    /// IPv6 addresses.
    #[serde(default, rename = "ipv6Statistics", skip_serializing_if = "Option::is_none")]
    pub ipv6_statistics: Option<Count>,
    /// Pairs of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_stack_statistics: Option<Count>,
}

impl Network {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The type; Underlay by default.
    pub fn network_type(&self) -> NetworkType {
        self.spec.network_type.unwrap_or(NetworkType::Underlay)
    }

    /// The mode; its default depends on the type: VLAN, VXLAN, GlobalBGP.
    pub fn mode(&self) -> NetworkMode {
        self.spec.mode.unwrap_or(match self.network_type() {
            NetworkType::Underlay => NetworkMode::VLAN,
            NetworkType::Overlay => NetworkMode::VXLAN,
            NetworkType::GlobalBGP => NetworkMode::GlobalBGP,
        })
    }

    /// The peers; none without `config`.
    pub fn peers(&self) -> &[BgpPeer] {
        self.spec.config.as_ref().map_or(&[], |config| &config.bgp_peers)
    }

    /// The attachment of its pods.
    pub fn attachment(&self) -> AttachmentKind {
        self.spec.config.as_ref().and_then(|config| config.attachment).unwrap_or_default()
    }

    /// Whether traffic between its pods always goes through the switch.
    pub fn is_hairpin(&self) -> bool {
        self.spec.config.as_ref().is_some_and(|config| config.hairpin)
    }

    /// Whether the node's pods are advertised beyond the rack while a peer of the node is down.
    pub fn disaggregates(&self) -> bool {
        self.spec.config.as_ref().and_then(|config| config.disaggregate).unwrap_or(true)
    }

    /// Prefixes from which its pods may send in addition to their addresses. Invalid texts are
    /// ignored.
    pub fn extra_prefixes(&self) -> impl Iterator<Item = IpNet> {
        let config = self.spec.config.as_ref();
        let texts = config.into_iter().flat_map(|config| &config.extra_prefixes);
        texts.filter_map(|text| text.parse::<IpNet>().ok()).map(|prefix| prefix.trunc())
    }

    /// Whether a node with these labels belongs to the network. Overlay and GlobalBGP select every
    /// node.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        match self.network_type() {
            NetworkType::Underlay => {
                !self.spec.node_selector.is_empty() && has_all(labels, &self.spec.node_selector)
            }
            NetworkType::Overlay | NetworkType::GlobalBGP => true,
        }
    }

    /// Whether a node of the network with these labels is about to be shut down (RFC 8326).
    pub fn is_shutting_down(&self, labels: &BTreeMap<String, String>) -> bool {
        let config = self.spec.config.as_ref();
        config
            .and_then(|config| config.graceful_shutdown.as_ref())
            .is_some_and(|shutdown| has_all(labels, &shutdown.node_selector))
    }
}

fn has_all(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl BgpPeer {
    /// Restart Time if `gracefulRestartSeconds` is 0 or missing.
    pub const DEFAULT_GRACEFUL_RESTART: u16 = 300;
    /// The longest Restart Time: the field has 12 bits (RFC 4724 §3).
    pub const MAX_GRACEFUL_RESTART: u16 = 4095;
    /// The longest Long-lived Stale Time: the field has 24 bits (RFC 9494 §3.1).
    pub const MAX_LONG_LIVED_STALE: u32 = 0x00ff_ffff;
    /// The longest TCP-MD5 key that the kernel accepts, in octets.
    pub const MAX_PASSWORD: usize = 80;

    /// Default of `limit` for a `prefix`.
    pub const DEFAULT_LIMIT: u32 = 100;

    /// Its location: `interface` or `prefix` if there is no `address`.
    pub fn endpoint(&self) -> Result<Endpoint<'_>, ValueError> {
        match (&self.interface, &self.prefix) {
            _ if !self.address.is_empty() => {}
            (Some(interface), _) => return Ok(Endpoint::Interface(interface)),
            (None, Some(prefix)) => {
                let prefix = prefix.parse::<IpNet>().map_err(|_| ValueError {
                    value: prefix.clone(),
                    expected: "a prefix, such as 10.1.0.0/24 or 2001:db8:1::/64",
                })?;
                return Ok(Endpoint::Prefix(prefix.trunc()));
            }
            (None, None) => {}
        }
        let (address, interface) = match self.address.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (self.address.as_str(), None),
        };
        if interface == Some("") {
            return Err(ValueError {
                value: self.address.clone(),
                expected: "an address with an interface after `%`, such as fe80::1%eth1",
            });
        }
        match parse_address(address) {
            Ok(address) => Ok(Endpoint::Address(address, interface)),
            Err(error) => Err(ValueError { value: self.address.clone(), ..error }),
        }
    }

    /// The local address of the session.
    pub fn source(&self) -> Result<Option<IpAddr>, ValueError> {
        self.source_address.as_deref().filter(|text| !text.is_empty()).map(parse_address).transpose()
    }

    /// The TCP-MD5 key in the resource itself; `""` is none. (The alternatives are `passwordFile`
    /// and `passwordSecretRef`.)
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref().filter(|password| !password.expose().is_empty())
    }

    /// Whether RFC 8538 is offered.
    pub fn restart_notification(&self) -> bool {
        self.restart_notification.unwrap_or(self.bfd.is_some())
    }

    /// The Restart Time to offer, in seconds.
    pub fn graceful_restart(&self) -> u16 {
        match self.graceful_restart_seconds {
            0 => Self::DEFAULT_GRACEFUL_RESTART,
            seconds => u16::try_from(seconds).unwrap_or(u16::MAX).min(Self::MAX_GRACEFUL_RESTART),
        }
    }
}
