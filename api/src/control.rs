//! Queries and commands of the operator's tools, and the replies that `-o json` prints.
//!
//! A query is sent as [`crate::attach::Command::Query`] over the socket of the attach protocol. Its
//! reply is one `Reply` of the documented type. `-o json` prints the reply unchanged. **The field
//! names are an interface**: fields may be added, and are never renamed. Times are seconds before
//! the reply, so clocks need not agree.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::names::full_name;
use crate::value::is_default;

mod anycast;
mod bgp;
mod cause;
mod claims;
mod default_route;
mod drain;
mod history;
mod names;
mod path;
mod peer;
mod policy;
mod probe;
mod remote;
mod service;
mod settings;
mod snapshot;

pub use anycast::{AnycastAddressStatus, AnycastStatus};
pub use bgp::{BgpListener, BgpStatus, PeerRange};
pub use cause::{CauseKind, CauseSide, LossCount, PeerCause};
pub use claims::IgnoredClaims;
pub use default_route::{
    DefaultRouteBasis, DefaultRouteStatus, ExcludedPeer, ExclusionCause, next_hops_in_words,
};
pub use drain::{CordonStatus, DrainCause, DrainPhase, DrainStatus};
pub use history::{Event, EventKind, Events, Severity};
pub use names::{
    BfdDiagnostic, BfdState, ExportStanding, Mode, NotReadyKind, PathStanding, PeerState, Place, PodState,
    RouteKind, RouteOrigin,
};
pub use path::{PacketPath, PathHop, PathRoute, PathRule, RouteLookup};
pub use peer::{BfdSession, Dated, DatedNotification, Messages, Peer, PeerFamily, PeerSession};
pub use policy::{
    PoliciesView, PolicyAnswer, PolicyDecision, PolicyDirection, PolicyQuestion, PolicyRuleView, PolicyState,
    PolicySummary, PolicyView,
};
pub use probe::{
    DuplicateIdentifier, ProbeCheck, ProbeFault, ProbeFaultKind, ProbeState, ProbeStatus, ProbedRouter,
};
pub use remote::{IgnoredParts, RemoteClusterStatus, RemoteSubnetStatus};
pub use service::{
    AdvertisedPrefix, AdvertisementState, ProxyRulesState, ServiceProxyState, ServiceView, WithheldReason,
};
pub use settings::SettingStatus;
pub use snapshot::Snapshot;

/// A query or command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "lowercase")]
pub enum Query {
    /// A summary of the agent: `Reply<AgentStatus>`.
    Agent,
    /// The BGP peers: `Reply<Vec<Peer>>`.
    Peers {
        /// Only this peer: its address (`fe80::1%eth0` if link-local), or its interface if it is
        /// configured by interface.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
    /// Routes: `Reply<Vec<Route>>`. Routes of one prefix are adjacent; there is no other order.
    /// Each prefix has its state at the moment when it is written. Prefixes that appear or
    /// disappear meanwhile may be missing, or occur twice.
    Routes {
        /// The table.
        #[serde(flatten)]
        table: Table,
    },
    /// Explain the routing of a prefix: `Reply<Explanation>`.
    Explain {
        /// The prefix.
        prefix: IpNet,
    },
    /// The BGP tables as MRT (TABLE_DUMP_V2), written to a file: `Reply<DumpDone>`. The request
    /// carries the file's descriptor.
    Dump,
    /// The attached pods: `Reply<Vec<PodStatus>>`.
    Pods,
    /// The service addresses on this node: `Reply<Vec<ServiceView>>`.
    Services {
        /// Only Services of this name: `NAME` or `NAMESPACE/NAME`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Also list the nodes that advertise each address. The agent lists them from the API server.
        #[serde(default)]
        everywhere: bool,
    },
    /// The network policies on this node: `Reply<PoliciesView>`.
    Policies,
    /// The decisions of the network policies of this node's pods about a packet:
    /// `Reply<PolicyAnswer>`.
    PolicyDecision {
        /// The packet.
        #[serde(flatten)]
        question: PolicyQuestion,
    },
    /// The path of a packet from a pod: `Reply<PacketPath>`. The request carries the pod's network
    /// namespace.
    Path {
        /// The container.
        container_id: String,
        /// The destination of the packet.
        destination: IpAddr,
        /// The source of the packet; the pod's kernel chooses if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
    },
    /// Recent events: `Reply<Events>`.
    Events {
        /// Only events after this number; 0: all stored events.
        #[serde(default)]
        after: u64,
        /// The run of the agent to which the number belongs, from [`Events`]. Another run answers
        /// with all stored events.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u64>,
        /// Answer only when there is a newer event, without a time limit.
        #[serde(default)]
        wait: bool,
    },
    /// The whole state for a live view, after each change and at the latest after
    /// [`Snapshot::SILENCE`]: `Reply<Snapshot>`.
    Watch {
        /// The last received [`Snapshot::number`].
        #[serde(default)]
        after: u64,
        /// The run of the agent to which the number belongs. Another run answers at once. A request
        /// without the run is also answered at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u64>,
    },
    /// Reset a peer's session: `Reply<PeerDone>`.
    ResetPeer {
        /// The peer, as in [`Query::Peers`]; exactly one.
        peer: String,
        /// Hard reset: neither side retains paths (RFC 8538).
        #[serde(default)]
        hard: bool,
        /// Text for the peer's operator (RFC 9003).
        #[serde(default)]
        message: String,
    },
    /// Request or send all routes of a session again, without a reset: `Reply<PeerDone>`.
    RefreshPeer {
        /// The peer, as in [`Query::Peers`]; exactly one.
        peer: String,
        /// The direction of the routes.
        direction: Direction,
    },
    /// Drain the node: `Reply<DrainStatus>`, as soon as the drain has begun and is stored for a
    /// restart.
    Drain {
        /// Text for the peers' operators at the end of the sessions (RFC 9003).
        #[serde(default)]
        message: String,
    },
    /// End the drain, or stop it: `Reply<DrainStatus>`.
    Undrain,
    /// The state of the drain: `Reply<DrainStatus>`.
    DrainStatus {
        /// Answer only when the node is drained.
        #[serde(default)]
        wait: bool,
    },
}

/// Direction of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The peer sends its routes again, by request (RFC 2918).
    In,
    /// This node sends its routes again.
    Out,
}

/// The result of a command for a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerDone {
    /// The peer. See [`Peer::name`].
    pub peer: String,
    /// The result, as text.
    pub done: String,
}

/// The result of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpDone {
    /// Peers in the index.
    pub peers: u64,
    /// Prefixes with a path that import policy accepts.
    pub prefixes: u64,
    /// Paths of these prefixes.
    pub paths: u64,
    /// Octets written.
    pub octets: u64,
}

/// A table of routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "table", rename_all = "lowercase")]
pub enum Table {
    /// The paths in use, including originated ones (Loc-RIB).
    Best,
    /// Loc-RIB, limited to the first prefixes: a cheap answer even for a full table.
    First {
        /// The limit.
        prefixes: usize,
    },
    /// The paths received from a peer, including rejected ones (Adj-RIB-In).
    Received {
        /// The peer, as in [`Query::Peers`].
        peer: String,
    },
    /// The routes advertised to a peer (Adj-RIB-Out).
    Advertised {
        /// The peer, as in [`Query::Peers`].
        peer: String,
    },
}

/// A summary of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The node's name.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// Time since the agent started.
    pub uptime_seconds: u64,
    /// Whether pods can be attached.
    pub ready: bool,
    /// Reasons why pods cannot be attached; empty if ready.
    pub not_ready: Vec<String>,
    /// The same reasons with their kinds; empty if the agent has no kinds.
    #[serde(default)]
    pub not_ready_reasons: Vec<NotReadyReason>,
    /// Reasons why the agent's readiness probe fails. Faults of the agent itself always make the
    /// probe fail. Other reasons of `notReady` do so only until the agent was ready once, because a
    /// restarted agent would have the same reasons.
    #[serde(default)]
    pub not_serving: Vec<String>,
    /// The drain of the node.
    #[serde(default)]
    pub drain: DrainStatus,
    /// The manifests in force, and their source.
    pub manifests: ManifestStatus,
    /// The API server, if it is the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// The fields of the configuration that AgentSettings set, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingStatus>,
    /// The store.
    pub store: StoreStatus,
    /// The speaker; none if the node has no BGP network.
    pub bgp: Option<BgpStatus>,
    /// The networks on this node.
    pub networks: Vec<NetworkStatus>,
    /// Attached interfaces of pods.
    pub attachments: usize,
    /// Pods in the kernel without a record. They keep running, and their addresses are not
    /// allocated to other pods.
    pub unrecorded: usize,
    /// The kernel's tables.
    pub kernel: KernelStatus,
    /// The guard against packets that pods and foreign tunnels may not send.
    #[serde(default)]
    pub guard: GuardStatus,
    /// Packets for pods of other nodes; none if the node has no second uplink for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate_paths: Option<AlternatePaths>,
    /// Results of the probes; none if no probes are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeStatus>,
    /// The anycast addresses on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anycast: Vec<AnycastStatus>,
    /// Claims of other nodes' NodeInfos that the agent ignores.
    #[serde(default, skip_serializing_if = "IgnoredClaims::is_empty")]
    pub ignored_claims: IgnoredClaims,
    /// The remote clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_clusters: Vec<RemoteClusterStatus>,
    /// Network policies; none if the configuration disables them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicySummary>,
    /// The reason why `/metrics`, `/healthz` and `/readyz` are not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_fault: Option<String>,
}

impl AgentStatus {
    /// The reasons why no pod can be attached. If the agent sends no kinds, each one is
    /// [`NotReadyKind::Unknown`].
    pub fn reasons(&self) -> Vec<NotReadyReason> {
        let unknown = |text: &String| NotReadyReason { kind: NotReadyKind::Unknown, text: text.clone() };
        match self.not_ready_reasons.as_slice() {
            [] => self.not_ready.iter().map(unknown).collect(),
            reasons => reasons.to_vec(),
        }
    }
}

/// A reason why no pod can be attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReadyReason {
    /// The kind, for programs.
    pub kind: NotReadyKind,
    /// The reason as text, with the object to check.
    pub text: String,
}

/// The guard against packets that pods and foreign tunnels may not send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardStatus {
    /// Whether the configuration enables it.
    pub enabled: bool,
    /// Whether its rules are in the kernel.
    pub in_force: bool,
    /// The reason why they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How often another program changed its tables and the agent repaired them.
    pub repairs: u64,
    /// Dropped packets by reason, since the tables were loaded.
    pub dropped: BTreeMap<String, u64>,
}

/// Packets that a router sent to this node for a pod of another node, since the rules were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlternatePaths {
    /// Forwarded to another router, because the first one does not know the pod.
    pub forwarded: u64,
    /// Dropped because no router knew the pod.
    pub dropped: u64,
}

/// The folder of manifests, or the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestStatus {
    /// The folder, or the API server's address.
    pub folder: String,
    /// Whether the agent applied any state of this source since its start.
    pub applied: bool,
    /// Reasons why the current state is rejected and the previous one stays in force; empty if the
    /// current one is in force.
    pub refused: Vec<String>,
}

/// The API server as this node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Its address.
    pub server: String,
    /// Whether every required watch has its list and none of them fails.
    pub connected: bool,
    /// Time since a required watch started to fail.
    pub outage_seconds: Option<u64>,
    /// The reason.
    pub last_error: Option<String>,
    /// Objects that are not applied unchanged, each with field and fix.
    pub faults: Vec<String>,
    /// Objects that this node still has to write.
    pub unwritten: u64,
    /// The watches.
    pub watches: Vec<WatchStatus>,
}

/// One watch of the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchStatus {
    /// The watched resource.
    pub name: String,
    /// Whether pods do not depend on it. Then it does not count in `connected`.
    #[serde(default)]
    pub optional: bool,
    /// Whether it has its list and does not fail.
    pub live: bool,
    /// Changes and bookmarks since the agent started.
    pub events: u64,
    /// Failures since the agent started.
    pub errors: u64,
    /// Time since the last change or bookmark; bookmarks come about once a minute.
    pub last_event_seconds: Option<u64>,
}

/// The store of addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// The file.
    pub path: String,
    /// The reason why no address is allocated.
    pub fault: Option<String>,
}

/// A BMP station.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BmpStation {
    /// Its address and port.
    pub address: SocketAddr,
    /// Whether it is connected.
    pub connected: bool,
    /// Time since the last change of `connected`.
    pub seconds: u64,
    /// Number of connections since the speaker started.
    pub connections: u64,
    /// Octets sent.
    pub octets: u64,
    /// The reason why the last connection or attempt ended.
    pub last_error: Option<String>,
}

/// A network on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// Its mode.
    pub mode: Mode,
    /// The routing table of its subnets, if it is the same for all.
    pub table: Option<u32>,
    /// The reason why this node does not serve it.
    pub refused: Option<String>,
    /// Attached interfaces of pods in it, on this node.
    #[serde(default)]
    pub attachments: usize,
    /// Its subnets.
    pub subnets: Vec<SubnetStatus>,
}

/// A subnet and its addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubnetStatus {
    /// Its name.
    pub name: String,
    /// The prefix; none for a subnet that is not served.
    pub cidr: Option<IpNet>,
    /// Addresses in the pool.
    pub total: u32,
    /// Allocated addresses.
    pub used: u32,
    /// Free addresses for pods that request no specific one.
    pub free: u32,
    /// The reason why this node does not serve it.
    pub refused: Option<String>,
    /// The routing table that its rule leads to.
    #[serde(default)]
    pub table: Option<u32>,
    /// VLAN ID; 0 is untagged.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The device for packets of a VLAN subnet.
    #[serde(default)]
    pub device: Option<String>,
    /// The link under that device; the device itself if untagged.
    #[serde(default)]
    pub parent: Option<String>,
    /// The reason why that device carries no packets now. No pods are attached until it does.
    #[serde(default)]
    pub device_fault: Option<String>,
    /// Packets from the fabric that this node dropped because no pod here has the address; none if
    /// they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unassigned_packets: Option<u64>,
    /// No pod gets a new address.
    #[serde(default, skip_serializing_if = "is_default")]
    pub disabled: bool,
    /// The Namespaces whose pods get new addresses; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// How long addresses of stateful pods are retained, `3d` or `never`; none: as long as their
    /// workloads exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
}

/// The kernel's tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    /// Routes that should be installed.
    pub routes_wanted: u64,
    /// Wanted routes that are installed.
    pub routes_installed: u64,
    /// Routes of the agent's previous run without a wanted route yet; they stay until BGP has
    /// converged.
    pub routes_stale: u64,
    /// Trunkline's policy rules.
    pub rules: u64,
    /// Forwarding entries of the tunnels that should exist, one for each other node.
    #[serde(default)]
    pub forwarding_wanted: u64,
    /// Wanted forwarding entries that exist.
    #[serde(default)]
    pub forwarding_installed: u64,
    /// Forwarding entries that another program removed or added, and the agent repaired.
    #[serde(default)]
    pub forwarding_repairs: u64,
    /// Objects that another program removed or changed, and the agent repaired.
    pub repairs: u64,
    /// Changes that the kernel refused.
    pub errors: u64,
    /// Refused changes by reason: the name of the error number, or the part that refused.
    #[serde(default)]
    pub errors_by_reason: BTreeMap<String, u64>,
    /// The last refusal, as text.
    pub last_error: Option<String>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The prefix.
    pub prefix: IpNet,
    /// The peer that sent the path, or that receives it (among advertised routes); none if
    /// originated here. See [`Peer::name`].
    pub peer: Option<String>,
    /// Next hop; none if originated here.
    pub next_hop: Option<IpAddr>,
    /// ORIGIN.
    pub origin: RouteOrigin,
    /// AS_PATH, sets in braces.
    pub as_path: String,
    /// The path identifier (RFC 7911): the peer's, or this side's among advertised routes.
    #[serde(default)]
    pub path_id: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// Communities, including large ones.
    pub communities: Vec<String>,
    /// Whether the path is in use.
    pub best: bool,
    /// The reason why the path is kept but not used, as text.
    pub filtered: Option<String>,
    /// Whether the path is retained from before the peer's restart.
    pub stale: bool,
}

/// The explanation of a prefix's routing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The prefix.
    pub prefix: IpNet,
    /// The longest covering prefix that has a path, if this one has none.
    pub covered_by: Option<IpNet>,
    /// Every path of the prefix, those in use first.
    pub paths: Vec<ExplainedPath>,
    /// The export result for each peer; a peer that receives several paths (RFC 7911) has an entry
    /// for each.
    pub peers: Vec<ExplainedPeer>,
    /// The next hops of pods' packets, for a default route. If no peer has `import`, also for a
    /// prefix that this node does not originate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_out: Option<DefaultRouteStatus>,
}

/// A path with the result of the decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPath {
    /// The path.
    #[serde(flatten)]
    pub route: Route,
    /// The result of the decision process.
    pub standing: PathStanding,
    /// The reason, as text; empty for the best path.
    pub reason: String,
    /// The step of the decision that separated the path from the best one, as text.
    pub step: Option<String>,
    /// The result of import policy, if the peer has one.
    pub import: Option<PolicyMatch>,
}

/// The export result of a prefix for a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPeer {
    /// The peer. See [`Peer::name`].
    pub peer: String,
    /// The peer of the path; none if originated here, or if there is no path.
    pub from: Option<String>,
    /// The result of the export.
    pub standing: ExportStanding,
    /// The reason, as text; may be empty.
    pub reason: String,
    /// The result of export policy, if it ran.
    pub export: Option<PolicyMatch>,
}

/// The result of a policy for a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyMatch {
    /// Whether it accepts the path.
    pub accepted: bool,
    /// The rule that decided, counted from 1; none if the policy's default decided.
    pub rule: Option<usize>,
    /// The rule's name, if it has one.
    pub name: Option<String>,
}

/// An attached pod's interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// The runtime's container ID.
    pub container_id: String,
    /// The interface in the container.
    pub ifname: String,
    /// The pod's namespace; empty if the runtime has no pods.
    pub namespace: String,
    /// The pod's name; empty if the runtime has no pods.
    pub name: String,
    /// The network.
    pub network: String,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// MAC address in the container.
    pub mac: String,
    /// Bandwidth limits, in bits.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// Prefixes from which the pod may send in addition to its addresses. Its Network must allow
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_prefixes: Vec<IpNet>,
    /// The host's end.
    pub host_ifname: String,
    /// The path of its network namespace when it was attached, in the runtime's mount namespace;
    /// empty if unknown.
    #[serde(default)]
    pub netns: String,
    /// The state of the attachment.
    pub state: PodState,
}

impl PodStatus {
    /// The displayed name: `namespace/name`, or the container's ID if the runtime has no pods.
    pub fn title(&self) -> String {
        let name = full_name(&self.namespace, &self.name);
        if name.is_empty() { self.container_id.clone() } else { name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{Command, Request, encode};

    #[test]
    fn every_query_survives_the_wire() {
        let peer = "fe80::1%eth0".to_owned();
        let (container_id, destination) = ("c1".to_owned(), "2001:db8::1".parse().unwrap());
        let path = Query::Path { container_id, destination, source: None };
        for query in [
            Query::Agent,
            Query::Peers { address: None },
            Query::Peers { address: Some(peer.clone()) },
            Query::Routes { table: Table::Best },
            Query::Routes { table: Table::First { prefixes: 100 } },
            Query::Routes { table: Table::Received { peer: peer.clone() } },
            Query::Routes { table: Table::Advertised { peer } },
            Query::Explain { prefix: "2001:db8::/32".parse().unwrap() },
            Query::Pods,
            Query::Services { name: None, everywhere: false },
            Query::Services { name: Some("default/web".to_owned()), everywhere: true },
            Query::Policies,
            Query::PolicyDecision {
                question: PolicyQuestion {
                    pod: "10.0.0.1".parse().unwrap(),
                    peer: "10.0.0.2".parse().unwrap(),
                    port: Some((crate::service::Protocol::Tcp, 80)),
                },
            },
            path,
            Query::Events { after: 7, run: Some(3), wait: true },
            Query::Watch { after: 7, run: Some(3) },
            Query::ResetPeer { peer: "eth0".to_owned(), hard: true, message: "new optics".to_owned() },
            Query::RefreshPeer { peer: "10.0.0.1".to_owned(), direction: Direction::Out },
            Query::Drain { message: "new disk".to_owned() },
            Query::Undrain,
            Query::DrainStatus { wait: true },
        ] {
            let request = Request::new(Command::Query(query));
            assert_eq!(Request::decode(&encode(&request).unwrap()).unwrap(), request);
        }
    }
}
