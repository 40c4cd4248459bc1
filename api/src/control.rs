//! What the operator's commands ask of the agent, and what `-o json` prints.
//!
//! A question travels as [`crate::attach::Command::Query`] over the socket of the attach protocol and gets one
//! `Reply` of the type that it names. The answers are printed by `-o json` as they are: **their field names are
//! an interface**, to be added to and never renamed. Times are counted in seconds back from the answer, so that nothing
//! depends on clocks that agree.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::names::full_name;

mod bgp;
mod cause;
mod default_route;
mod drain;
mod history;
mod path;
mod peer;
mod probe;
mod snapshot;

pub use bgp::{BgpListener, BgpStatus, PeerRange};
pub use cause::{CauseKind, CauseSide, LossCount, PeerCause};
pub use default_route::{
    DefaultRouteBasis, DefaultRouteStatus, ExcludedPeer, ExclusionCause, next_hops_in_words,
};
pub use drain::{CordonStatus, DrainCause, DrainPhase, DrainStatus};
pub use history::{Event, EventKind, Events, Severity};
pub use path::{PacketPath, PathHop, PathRoute, PathRule, RouteLookup};
pub use peer::{BfdSession, Dated, DatedNotification, Messages, Peer, PeerFamily, PeerSession};
pub use probe::{
    DuplicateIdentifier, ProbeCheck, ProbeFault, ProbeFaultKind, ProbeState, ProbeStatus, ProbedRouter,
};
pub use snapshot::Snapshot;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "lowercase")]
pub enum Query {
    /// The agent at a glance: `Reply<AgentStatus>`.
    Agent,
    /// The BGP peers: `Reply<Vec<Peer>>`.
    Peers {
        /// Only this one: its address, `fe80::1%eth0` if that is link-local; or its interface, if that is how it is configured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
    /// Routes: `Reply<Vec<Route>>`, in no order but that those of one prefix follow each other. Each prefix is as it is when its turn comes;
    /// what comes or goes while the answer is on its way may be missing, or be there twice.
    Routes {
        /// Which table.
        #[serde(flatten)]
        table: Table,
    },
    /// Why a prefix is routed as it is: `Reply<Explanation>`.
    Explain {
        /// The prefix.
        prefix: IpNet,
    },
    /// The BGP tables as MRT (TABLE_DUMP_V2), written to the file whose descriptor comes with the request:
    /// `Reply<DumpDone>`.
    Dump,
    /// The attached pods: `Reply<Vec<PodStatus>>`.
    Pods,
    /// What becomes of a packet from a pod, whose network namespace comes with the request: `Reply<PacketPath>`.
    Path {
        /// The container.
        container_id: String,
        /// Where the packet goes.
        destination: IpAddr,
        /// Where it is from; the pod's kernel chooses if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
    },
    /// What happened lately: `Reply<Events>`.
    Events {
        /// Only what is newer than the event of this number; 0 is all that is kept.
        #[serde(default)]
        after: u64,
        /// Which run of the agent that event is of, as [`Events`] says: another run answers with all that it keeps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u64>,
        /// Answer once there is something newer, however long that takes.
        #[serde(default)]
        wait: bool,
    },
    /// Everything that is shown live, once it has changed, and after [`Snapshot::SILENCE`] anyway: `Reply<Snapshot>`.
    Watch {
        /// The [`Snapshot::number`] that is known.
        #[serde(default)]
        after: u64,
        /// Which run of the agent that is of; any other, and none, is answered at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u64>,
    },
    /// End a peer's session, and begin a new one: `Reply<PeerDone>`.
    ResetPeer {
        /// The peer: as in [`Query::Peers`], and one only.
        peer: String,
        /// Nothing is kept over it on either side (RFC 8538).
        #[serde(default)]
        hard: bool,
        /// What the peer's operator is told (RFC 9003).
        #[serde(default)]
        message: String,
    },
    /// Have what was told on a session told again, without ending it: `Reply<PeerDone>`.
    RefreshPeer {
        /// The peer: as in [`Query::Peers`], and one only.
        peer: String,
        /// By whom.
        direction: Direction,
    },
    /// Leave the fabric: `Reply<DrainStatus>`, as soon as it has begun and will go on over a restart.
    Drain {
        /// What the peers' operators are told with the end of the sessions (RFC 9003).
        #[serde(default)]
        message: String,
    },
    /// Come back, or go no further: `Reply<DrainStatus>`.
    Undrain,
    /// How far this node has left the fabric: `Reply<DrainStatus>`.
    DrainStatus {
        /// Answer once it is drained, or not at all.
        #[serde(default)]
        wait: bool,
    },
}

/// Which way routes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// By the peer, which is asked to (RFC 2918).
    In,
    /// By this node.
    Out,
}

/// What was done with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerDone {
    /// The peer. See [`Peer::name`].
    pub peer: String,
    /// What was done, in words.
    pub done: String,
}

/// What was dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpDone {
    /// Peers in the index.
    pub peers: u64,
    /// Prefixes with a path that import policy let through.
    pub prefixes: u64,
    /// Their paths.
    pub paths: u64,
    /// Octets written.
    pub octets: u64,
}

/// A table of routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "table", rename_all = "lowercase")]
pub enum Table {
    /// The paths in use, originated ones included (Loc-RIB).
    Best,
    /// Likewise, of the first so many prefixes alone: what can be answered beside a full table.
    First {
        /// How many.
        prefixes: usize,
    },
    /// What a peer told, refused paths included (Adj-RIB-In).
    Received {
        /// The peer, as in [`Query::Peers`].
        peer: String,
    },
    /// What a peer was told (Adj-RIB-Out).
    Advertised {
        /// The peer, as in [`Query::Peers`].
        peer: String,
    },
}

/// The agent at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The node's name.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// Since the agent started.
    pub uptime_seconds: u64,
    /// Whether pods can be attached.
    pub ready: bool,
    /// What is missing before they can; empty if ready.
    pub not_ready: Vec<String>,
    /// What the agent's own readiness probe waits for: what of `notReady` is the agent's own, and all of it that another agent in its place would not
    /// lack, until it was ready once.
    #[serde(default)]
    pub not_serving: Vec<String>,
    /// How far it has left the fabric.
    #[serde(default)]
    pub drain: DrainStatus,
    /// What is wanted, and where it comes from.
    pub manifests: ManifestStatus,
    /// The API server, where that is the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// The store.
    pub store: StoreStatus,
    /// The speaker; none where no BGP network is on this node.
    pub bgp: Option<BgpStatus>,
    /// The networks on this node.
    pub networks: Vec<NetworkStatus>,
    /// Attached pods' interfaces.
    pub attachments: usize,
    /// Pods that are in the kernel although no record knows them; they keep running, and their addresses are given
    /// to nobody.
    pub unrecorded: usize,
    /// The kernel's tables.
    pub kernel: KernelStatus,
    /// The guard against what pods and foreign tunnels may not send.
    #[serde(default)]
    pub guard: GuardStatus,
    /// Packets for pods of other nodes; none where this node has no second uplink for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate_paths: Option<AlternatePaths>,
    /// What probes show; none where none are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeStatus>,
    /// Why `/metrics`, `/healthz` and `/readyz` are not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_fault: Option<String>,
}

/// The guard against what pods and foreign tunnels may not send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardStatus {
    /// The configuration has it switched on.
    pub enabled: bool,
    /// Its rules are in the kernel.
    pub in_force: bool,
    /// Why they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How often others changed its tables, and the agent restored them.
    pub repairs: u64,
    /// Dropped packets by reason, since the tables were loaded.
    pub dropped: BTreeMap<String, u64>,
}

/// Packets that a router sent this node for a pod of another node, since the rules were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlternatePaths {
    /// Sent on to another router: the first one does not know the pod.
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
    /// Whether any of its states was taken over since the agent started.
    pub applied: bool,
    /// Why its state of now is refused, and the one before runs; empty if it is in force.
    pub refused: Vec<String>,
}

/// How the API server is doing, as this node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Its address.
    pub server: String,
    /// Every watch has had its list, and none fails.
    pub connected: bool,
    /// For how long a watch has been failing.
    pub outage_seconds: Option<u64>,
    /// Why.
    pub last_error: Option<String>,
    /// Objects that are not served as they are, each with field and fix.
    pub faults: Vec<String>,
    /// Objects that this node is still to write.
    pub unwritten: u64,
    /// The watches.
    pub watches: Vec<WatchStatus>,
}

/// One watch of the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchStatus {
    /// What is watched.
    pub name: String,
    /// It has had its list and does not fail.
    pub live: bool,
    /// Changes and bookmarks since the agent started.
    pub events: u64,
    /// Failures since the agent started.
    pub errors: u64,
    /// Since the last change or bookmark; bookmarks come about once a minute.
    pub last_event_seconds: Option<u64>,
}

/// The store of addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// The file.
    pub path: String,
    /// Why no address is given out.
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
    /// Since when it is, or is not.
    pub seconds: u64,
    /// How often it was connected since the speaker started.
    pub connections: u64,
    /// Octets told.
    pub octets: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
}

/// A network on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// Its mode.
    pub mode: String,
    /// The routing table of its subnets, if it is the same for all.
    pub table: Option<u32>,
    /// Why it is not served here.
    pub refused: Option<String>,
    /// Attached pods' interfaces in it, on this node.
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
    /// The prefix; none of a subnet that is not served.
    pub cidr: Option<IpNet>,
    /// Addresses that can be given out.
    pub total: u32,
    /// Given out.
    pub used: u32,
    /// Can still be given to a pod that names none.
    pub free: u32,
    /// Why it is not served here.
    pub refused: Option<String>,
    /// The routing table that its rule leads to.
    #[serde(default)]
    pub table: Option<u32>,
    /// VLAN: its id; 0 is untagged.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// VLAN: the device that its packets leave the node by.
    #[serde(default)]
    pub device: Option<String>,
    /// VLAN: the link that carries the device; the device itself, if it is untagged.
    #[serde(default)]
    pub parent: Option<String>,
    /// Why that device carries nothing now; its pods are not attached before it does.
    #[serde(default)]
    pub device_fault: Option<String>,
    /// Packets from the fabric that this node dropped because no pod here has the address; none where they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unassigned_packets: Option<u64>,
}

/// The kernel's tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    /// Routes that should be there.
    pub routes_wanted: u64,
    /// Of these, the ones that are.
    pub routes_installed: u64,
    /// Routes of the agent's last run that nobody has asked for yet; they stay until BGP has converged.
    pub routes_stale: u64,
    /// Own policy rules.
    pub rules: u64,
    /// Forwarding entries of the tunnels that should be there, one for each other node.
    #[serde(default)]
    pub forwarding_wanted: u64,
    /// Of these, the ones that are.
    #[serde(default)]
    pub forwarding_installed: u64,
    /// Forwarding entries that somebody else removed and that were put back, or added and that were removed.
    #[serde(default)]
    pub forwarding_repairs: u64,
    /// What somebody else removed or changed, and was put back.
    pub repairs: u64,
    /// What the kernel refused.
    pub errors: u64,
    /// The same by reason: the error number's name, or who refused.
    #[serde(default)]
    pub errors_by_reason: BTreeMap<String, u64>,
    /// The last refusal, in words.
    pub last_error: Option<String>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The prefix.
    pub prefix: IpNet,
    /// Who told of it (who is told, among the advertised); none if it is originated here. See [`Peer::name`].
    pub peer: Option<String>,
    /// Next hop; none if it is originated here.
    pub next_hop: Option<IpAddr>,
    /// `igp`, `egp` or `incomplete`.
    pub origin: String,
    /// AS_PATH, sets in braces.
    pub as_path: String,
    /// The identifier among several paths of the prefix (RFC 7911): the peer's, or with `--advertised` this side's.
    #[serde(default)]
    pub path_id: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// Communities, large ones too.
    pub communities: Vec<String>,
    /// Traffic uses it.
    pub best: bool,
    /// Why it is kept and not used, in words.
    pub filtered: Option<String>,
    /// Kept from before the peer's restart.
    pub stale: bool,
}

/// Why a prefix is routed as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The prefix.
    pub prefix: IpNet,
    /// Where it has no path: the longest prefix that covers it and has one.
    pub covered_by: Option<IpNet>,
    /// Every path of it, those in use first.
    pub paths: Vec<ExplainedPath>,
    /// What each peer is told; a peer that is told several paths (RFC 7911) has an entry for each.
    pub peers: Vec<ExplainedPeer>,
    /// Where pods' packets go: of a default route, and where no peer has `import` of any prefix that this node does not originate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_out: Option<DefaultRouteStatus>,
}

/// A path and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPath {
    /// The path.
    #[serde(flatten)]
    pub route: Route,
    /// `best`, `used` (together with the best one), `lost`, `refused` or `waiting` (nothing is decided yet after a restart).
    pub standing: String,
    /// Why, in words; empty of the best one.
    pub reason: String,
    /// The step of the decision that separated it from the best path, in words.
    pub step: Option<String>,
    /// What import policy said of it, if there is one.
    pub import: Option<PolicyMatch>,
}

/// What a peer is told of a prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPeer {
    /// The peer. See [`Peer::name`].
    pub peer: String,
    /// Whose path it is about; none if it is originated here, or if there is no path.
    pub from: Option<String>,
    /// `advertised`, `pending` (it will be), `withheld`, or `withdrawing` (it was told, and will be told no more).
    pub standing: String,
    /// Why, in words; empty if there is nothing to say.
    pub reason: String,
    /// What export policy said of it, if it was asked.
    pub export: Option<PolicyMatch>,
}

/// What a policy said of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyMatch {
    /// Whether it accepts the path.
    pub accepted: bool,
    /// The rule that decided, counted from 1; none if no rule did and the policy's default holds.
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
    /// The pod's namespace; empty where the runtime has no pods.
    pub namespace: String,
    /// The pod's name; empty where the runtime has no pods.
    pub name: String,
    /// The network.
    pub network: String,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// MAC address in the container.
    pub mac: String,
    /// Its bandwidth limits, in bits.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// Prefixes that it may send from besides its addresses, as far as its Network allows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_prefixes: Vec<IpNet>,
    /// The host's end.
    pub host_ifname: String,
    /// Its network namespace's path when it was attached, where the runtime sees it; empty where that was not recorded.
    #[serde(default)]
    pub netns: String,
    /// `attaching`, `attached`, `broken` (its link is gone, its addresses are still taken), or `unrecorded` (in the
    /// kernel, not in the store).
    pub state: String,
}

impl PodStatus {
    /// What people call it: `namespace/name`, or the container's ID where the runtime has no pods.
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
    fn every_question_survives_the_wire() {
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
