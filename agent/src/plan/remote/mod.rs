//! Remote clusters: which of their subnets, VTEPs and endpoints this node accepts.
//!
//! The controller of this cluster writes the objects, but their contents are from the remote
//! cluster. So the agent checks them as untrusted input. A remote cluster can only name addresses
//! without another owner:
//!
//! | object | ignored if |
//! |---|---|
//! | RemoteSubnet | its addresses overlap a Subnet, a prefix of Services or an older RemoteSubnet; pods could have an address of this node; in an overlay, it has a router, the API server or a Service address; it is outside of `remoteClusters.subnetCIDRs`, or no unicast prefix |
//! | address of a RemoteSubnet | it belongs to another node of this cluster |
//! | RemoteVtep | its address or MAC is that of a VTEP of this cluster, of this node or of an older RemoteVtep; its address is in a pods' subnet, outside of `remoteClusters.vtepCIDRs`, or no unicast address |
//! | local address of a RemoteVtep | the same as for the VTEP's address; it is in `localIPs` of a NodeInfo; it is a router, the API server or a Service address |
//! | endpoint of a RemoteVtep | no RemoteSubnet of the same cluster can have it; it is a router, the API server or a Service address |
//!
//! If two objects contradict each other, the older one wins, so a remote cluster cannot displace
//! another one. The overlay's part of the plan (`plan/vxlan.rs`) treats the accepted VTEPs and
//! subnets like those of this cluster.

mod claims;
mod objects;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trunkline_api::resources::{ParsedRange, Vtep};

pub use objects::{RemoteObjects, RemoteObjectsOfCluster, RemoteSubnetRow, RemoteVtepRow};

use claims::Claims;
pub(super) use claims::{PodRange, is_broadcast, is_unicast};

use super::node_claims::AcceptedNodes;
use super::{Host, Intent};

/// Maximum number of faults of one cluster in the plan. All are counted.
const FAULTS: usize = 20;

/// The prefixes that remote clusters may use, from agent.yaml. Default: all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLimits {
    /// Prefixes of remote subnets.
    pub subnets: Vec<IpNet>,
    /// Prefixes of remote VTEPs' addresses.
    pub vteps: Vec<IpNet>,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        let any = vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        RemoteLimits { subnets: any.clone(), vteps: any }
    }
}

/// The accepted parts of a remote cluster, for the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteClusterPlan {
    /// Accepted subnets by the object's name.
    pub subnets: BTreeMap<String, AcceptedSubnet>,
    /// Number of accepted VTEPs.
    pub vteps: u32,
    /// Number of accepted endpoints.
    pub endpoints: u32,
    /// Numbers of ignored parts.
    pub ignored: Ignored,
    /// The reasons, at most `FAULTS`.
    pub faults: Vec<String>,
}

/// An accepted remote subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedSubnet {
    /// Its prefix.
    pub prefix: IpNet,
    /// Whether its Network is an overlay.
    pub overlay: bool,
}

/// Numbers of ignored parts of a remote cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// RemoteSubnets.
    pub subnets: u32,
    /// RemoteVteps.
    pub vteps: u32,
    /// Local addresses of RemoteVteps.
    pub addresses: u32,
    /// Endpoints of RemoteVteps.
    pub endpoints: u32,
}

/// A prefix of remote pods.
pub(super) struct RemoteArea {
    pub(super) prefix: IpNet,
    pub(super) overlay: bool,
    pub(super) ranges: Vec<ParsedRange>,
}

/// An accepted remote node.
pub(super) struct RemoteNode {
    pub(super) vtep: Vtep,
    pub(super) endpoints: Vec<IpAddr>,
}

/// The accepted parts of all remote clusters.
#[derive(Default)]
pub(super) struct Accepted {
    pub(super) areas: Vec<RemoteArea>,
    pub(super) nodes: Vec<RemoteNode>,
    pub(super) clusters: BTreeMap<String, RemoteClusterPlan>,
}

impl Accepted {
    /// The prefixes of all accepted subnets.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.areas.iter().map(|area| area.prefix)
    }
}

/// The reason for which a part of a remote cluster is ignored.
#[derive(Debug, thiserror::Error)]
enum RemoteFault {
    #[error("{address} is outside of {prefix}: write an address of the prefix")]
    Outside { address: IpAddr, prefix: IpNet },
    #[error("{prefix} is the network address only, and a pod has another one: write a shorter prefix length")]
    TooSmall { prefix: IpNet },
    #[error("{first} is after {last}: write the lower address into start")]
    Reversed { first: IpAddr, last: IpAddr },
    #[error("{prefix} is no prefix of unicast addresses: write addresses that hosts of the fabric can have")]
    NoUnicast { prefix: IpNet },
    #[error(
        "{prefix} is outside of remoteClusters.{field}: add it in agent.yaml if the remote cluster may use it"
    )]
    Limit { prefix: IpNet, field: &'static str },
    #[error("{prefix} overlaps {other} of {owner}: joined clusters need different prefixes")]
    Overlap { prefix: IpNet, other: IpNet, owner: String },
    #[error(
        "its addresses include {address} of {owner}: add it to the Subnet's excludeIPs in the remote cluster"
    )]
    NodeInside { address: IpAddr, owner: String },
    #[error(
        "{number} of its addresses, such as {address} of {owner}, belong to nodes, and no remote pod can have them: \
         add them to the Subnet's excludeIPs in the remote cluster, or give the node another address"
    )]
    Excluded { number: usize, address: IpAddr, owner: String },
    #[error("{address} belongs to {owner}: write an address of the remote node")]
    Taken { address: IpAddr, owner: String },
    #[error(
        "{address} is in {prefix} of {owner}: a VTEP's address cannot be a pod's: write an address of the remote node"
    )]
    InSubnet { address: IpAddr, prefix: IpNet, owner: String },
    #[error("{mac} belongs to {owner}: write a MAC that no other VTEP has")]
    Mac { mac: String, owner: String },
    #[error("{mac} is no unicast MAC: write the MAC of the remote node's VXLAN device")]
    NoMac { mac: String },
    #[error("{0}")]
    Value(#[from] trunkline_api::resources::ValueError),
}

/// Checks all remote clusters.
pub(super) fn accept(intent: &Intent, host: &Host, nodes: &AcceptedNodes) -> Accepted {
    let mut accepted = Accepted::default();
    let Some(objects) = intent.remote.as_deref().filter(|objects| !objects.is_empty()) else {
        return accepted;
    };
    accepted.clusters =
        objects.clusters.keys().map(|name| (name.to_string(), RemoteClusterPlan::default())).collect();
    let mut claims = Claims::of_this_cluster(intent, host, nodes);
    let ranges = accept_subnets(objects, &mut claims, &mut accepted);
    accept_vteps(objects, &mut claims, &ranges, &mut accepted);
    accepted
}

/// Accepted ranges by cluster.
type Ranges<'a> = BTreeMap<&'a str, Vec<PodRange>>;

/// All objects of a kind, the oldest first.
fn by_age<'a, T>(
    objects: &'a RemoteObjects,
    rows: impl Fn(&'a RemoteObjectsOfCluster) -> &'a BTreeMap<Box<str>, T>,
    created: impl Fn(&'a T) -> &'a str,
) -> Vec<(&'a str, &'a str, &'a T)> {
    let mut all: Vec<(&str, &str, &T)> = objects
        .clusters
        .iter()
        .flat_map(|(cluster, of)| rows(of).iter().map(|(name, row)| (&**cluster, &**name, row)))
        .collect();
    all.sort_by(|one, other| (created(one.2), one.0, one.1).cmp(&(created(other.2), other.0, other.1)));
    all
}

fn accept_subnets<'a>(
    objects: &'a RemoteObjects,
    claims: &mut Claims,
    accepted: &mut Accepted,
) -> Ranges<'a> {
    let mut ranges: Ranges<'a> = BTreeMap::new();
    for (cluster, name, row) in by_age(objects, |of| &of.subnets, |row| &row.created) {
        let checked = row.range.parse().map_err(RemoteFault::from).and_then(PodRange::of_remote);
        let checked = checked.and_then(|mut pods| {
            let excluded = claims.claim_subnet(name, row.overlay, &mut pods)?;
            Ok((pods, excluded))
        });
        let plan = accepted.clusters.entry(cluster.to_owned()).or_default();
        match checked {
            Ok((range, excluded)) => {
                if let Some(fault) = excluded {
                    plan.report(format!("RemoteSubnet {name}: spec.range: {fault}"));
                }
                let prefix = range.range.cidr;
                plan.subnets.insert(name.to_owned(), AcceptedSubnet { prefix, overlay: row.overlay });
                match accepted.areas.iter_mut().find(|area| area.prefix == prefix) {
                    Some(area) => area.ranges.push(range.range.clone()),
                    None => accepted.areas.push(RemoteArea {
                        prefix,
                        overlay: row.overlay,
                        ranges: vec![range.range.clone()],
                    }),
                }
                ranges.entry(cluster).or_default().push(range);
            }
            Err(fault) => {
                plan.ignored.subnets += 1;
                plan.report(format!("RemoteSubnet {name}: spec.range: {fault}"));
            }
        }
    }
    ranges
}

fn accept_vteps(objects: &RemoteObjects, claims: &mut Claims, ranges: &Ranges<'_>, accepted: &mut Accepted) {
    for (cluster, name, row) in by_age(objects, |of| &of.vteps, |row| &row.created) {
        let plan = accepted.clusters.entry(cluster.to_owned()).or_default();
        let owner = || format!("RemoteVtep {name}");
        if let Err((field, fault)) = claims.claim_vtep(row.ip, row.mac, owner) {
            plan.ignored.vteps += 1;
            plan.report(format!("RemoteVtep {name}: spec.{field}: {fault}"));
            continue;
        }
        let local = if claims.is_elsewhere(row.ip) { Vec::new() } else { vec![row.ip] };
        let mut vtep = Vtep { ip: row.ip, mac: row.mac, local };
        for address in row.local.iter().filter(|address| **address != row.ip) {
            match claims.claim_address(*address, owner) {
                Ok(()) => vtep.local.push(*address),
                Err(fault) => {
                    plan.ignored.addresses += 1;
                    plan.report(format!("RemoteVtep {name}: spec.localIPs: {fault}"));
                }
            }
        }
        let of_cluster = ranges.get(cluster).map_or(&[][..], Vec::as_slice);
        let reserved = claims.reserved_in(of_cluster);
        let known = |address: &IpAddr| {
            of_cluster.iter().any(|range| range.holds(*address))
                && !reserved.iter().any(|prefix| prefix.contains(address))
        };
        let endpoints: Vec<IpAddr> = row.endpoints.iter().copied().filter(known).collect();
        let ignored = row.endpoints.len() - endpoints.len();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        if ignored > 0 {
            plan.ignored.endpoints += count(ignored);
            let example = row.endpoints.iter().find(|address| !known(address));
            let example = example.map(ToString::to_string).unwrap_or_default();
            plan.report(format!(
                "RemoteVtep {name}: spec.endpointIPList: {ignored} addresses, such as {example}, are in no \
                 RemoteSubnet of cluster {cluster}, or belong to the API server, to routers or to Services: no packet is \
                 sent to them through this VTEP"
            ));
        }
        if row.malformed > 0 {
            plan.ignored.endpoints += row.malformed;
            plan.report(format!(
                "RemoteVtep {name}: spec.endpointIPList: {} entries are no IP addresses: correct or remove them",
                row.malformed
            ));
        }
        plan.vteps += 1;
        plan.endpoints += count(endpoints.len());
        accepted.nodes.push(RemoteNode { vtep, endpoints });
    }
}

impl RemoteClusterPlan {
    fn report(&mut self, fault: String) {
        if self.faults.len() < FAULTS {
            self.faults.push(fault);
        }
    }
}
