//! Anycast addresses: their place on the loopback interface, and the peers' rules for them. Their
//! health is not part of the plan: the task ([`crate::services::anycast`]) sends the prefixes.
//!
//! **Attributes.** Communities are in the originations. Peers and the attributes that depend on the
//! kind of peer need rules, which come before the operator's:
//!
//! | rule of a peer | matches | effect |
//! |---|---|---|
//! | `AnycastAddress NAME` | its addresses | sets LOCAL_PREF, prepends |
//! | `AnycastAddress NAME for other peers` | its addresses, unless NAME names the peer | rejects |
//!
//! An object without such fields needs no rule, so a route reflector keeps its fast export.
//!
//! **An address leaves the loopback interface after its withdrawal.** Otherwise routers would send
//! packets to a node that returns them by its default route.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::resources::{
    AnycastAddress, AnycastAddressSpec, CheckMethod, HealthCheck, HttpCheck, ValueError,
};
use trunkline_bgp::policy::{Actions, Conditions, PolicyResult, PrefixMatch, Rule};
use trunkline_bgp::rib::Origination;
use trunkline_datapath::plan::LOOPBACK;

use super::services::PeerName;
use super::{Host, Intent, Plan, policy};
use crate::services::anycast::{AnycastPlan, HttpProbe, PlannedAnycast, PlannedCheck, ProbeMethod, Trust};

/// The reason for which an object is not in force on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum AnycastError {
    #[error("spec.{field}: {error}")]
    Value { field: &'static str, error: ValueError },
    #[error("spec.check: missing: write one of http, https, tcp, grpc and command")]
    NoMethod,
    #[error(
        "spec.check.command: the agent runs it as root, so only a file on the node may have it: write http, https, tcp or grpc"
    )]
    Command,
    #[error("spec.addresses: {address} is of AnycastAddress {other} too: remove it from one of the two")]
    Twice { address: IpAddr, other: Arc<str> },
    #[error(
        "spec.addresses: {address} is in {range} of Subnet {subnet}: write an address outside of the Subnets"
    )]
    Subnet { address: IpAddr, range: IpNet, subnet: String },
    #[error("spec.addresses: {address} is an address of {link} on this node: write one that no host has")]
    Host { address: IpAddr, link: String },
}

/// Adds the objects that select this node to the plan, and their addresses to the kernel's part.
pub(super) fn plan(intent: &Intent, host: &Host, plan: &mut Plan) {
    let objects = &intent.services;
    let mut owners: BTreeMap<IpAddr, Arc<str>> = BTreeMap::new();
    let mut planned = AnycastPlan { known: objects.anycast_known, objects: BTreeMap::new() };
    let here = |object: &&AnycastAddress| object.spec.node_selector.selects(&intent.node.labels);
    for object in objects.anycast.iter().filter(here) {
        let name: Arc<str> = Arc::from(object.name());
        let read = read(&object.spec, intent).and_then(|read| {
            conflicts(&read.addresses, &owners, intent, host)?;
            Ok(read)
        });
        let read = read.unwrap_or_else(|error| PlannedAnycast::refused(error.to_string()));
        owners.extend(read.addresses.iter().map(|address| (*address, Arc::clone(&name))));
        planned.objects.insert(name, read);
    }
    // Addresses that are still advertised leave with their withdrawal.
    let addresses = owners.keys().chain(&host.anycast).copied().collect();
    plan.kernel.addresses = objects.anycast_known.then_some(addresses);
    plan.anycast = planned;
}

fn read(spec: &AnycastAddressSpec, intent: &Intent) -> Result<PlannedAnycast, AnycastError> {
    let value = |field| move |error| AnycastError::Value { field, error };
    Ok(PlannedAnycast {
        addresses: spec.addresses().map_err(value("addresses"))?.into_iter().collect(),
        origination: Origination {
            communities: policy::communities(&spec.communities).map_err(value("communities"))?,
            large_communities: policy::large_communities(&spec.large_communities)
                .map_err(value("largeCommunities"))?,
            ..Origination::default()
        },
        keep_last: spec.keep_last,
        graceful_shutdown: spec.graceful_shutdown(),
        check: spec.check.as_ref().map(|check| read_check(check, intent)).transpose()?,
        refused: None,
    })
}

fn read_check(check: &HealthCheck, intent: &Intent) -> Result<PlannedCheck, AnycastError> {
    let value = |field| move |error| AnycastError::Value { field, error };
    let http = |field, http: &HttpCheck| {
        Ok(HttpProbe {
            port: http.port,
            path: http.path().to_owned(),
            host: http.host.clone(),
            expected: http.expected_status().map_err(value(field))?,
        })
    };
    let method = match check.methods().next().ok_or(AnycastError::NoMethod)? {
        CheckMethod::Http(written) => ProbeMethod::Http(http("check.http.expectedStatus", written)?),
        CheckMethod::Https(written) => {
            let trust = match (written.insecure_skip_verify, written.ca_file.as_str()) {
                (true, _) => Trust::Everything,
                (false, "") => Trust::Host,
                (false, path) => Trust::File(PathBuf::from(path)),
            };
            ProbeMethod::Https(http("check.https.expectedStatus", written)?, trust)
        }
        CheckMethod::Tcp(tcp) => ProbeMethod::Tcp { port: tcp.port },
        CheckMethod::Grpc(grpc) => ProbeMethod::Grpc { port: grpc.port, service: grpc.service.clone() },
        // Validation refuses such objects too. Whoever writes to the API server must not run
        // programs on the node.
        CheckMethod::Command(_) if intent.in_cluster => return Err(AnycastError::Command),
        CheckMethod::Command(arguments) => ProbeMethod::Command(arguments.to_vec()),
    };
    Ok(PlannedCheck {
        method,
        connect_to: check.connect_to().map_err(value("check.connectTo"))?,
        interval: check.interval(),
        timeout: check.timeout(),
        rise: check.rise(),
        fall: check.fall(),
    })
}

/// Checks that nothing else on this node has one of the addresses.
fn conflicts(
    addresses: &BTreeSet<IpAddr>,
    owners: &BTreeMap<IpAddr, Arc<str>>,
    intent: &Intent,
    host: &Host,
) -> Result<(), AnycastError> {
    for address in addresses.iter().copied() {
        if let Some(other) = owners.get(&address).cloned() {
            return Err(AnycastError::Twice { address, other });
        }
        let ranges =
            intent.subnets.iter().filter_map(|subnet| Some((subnet, subnet.spec.range.cidr().ok()?)));
        if let Some((subnet, range)) = ranges.into_iter().find(|(_, range)| range.contains(&address)) {
            return Err(AnycastError::Subnet { address, range, subnet: subnet.name().to_owned() });
        }
        // The address may be on the loopback interface already.
        let mut others = host.kernel.links.iter().filter(|link| link.name != LOOPBACK);
        if let Some(link) = others.find(|link| link.addresses.iter().any(|it| it.addr() == address)) {
            return Err(AnycastError::Host { address, link: link.name.clone() });
        }
    }
    Ok(())
}

/// The rules of the AnycastAddresses for peers.
#[derive(Default)]
pub(super) struct AnycastExports(Vec<AnycastExport>);

struct AnycastExport {
    name: String,
    prefixes: Vec<PrefixMatch>,
    /// None: all peers.
    peers: Option<Vec<PeerName>>,
    set: Actions,
}

/// The objects in force with rules in the peers' policies.
pub(super) fn exports(intent: &Intent, plan: &AnycastPlan) -> AnycastExports {
    let export = |object: &AnycastAddress| {
        let planned = plan.objects.get(object.name()).filter(|planned| planned.refused.is_none())?;
        let spec = &object.spec;
        let set = Actions { local_pref: spec.local_preference, prepend: spec.prepend, ..Actions::default() };
        let peers: Vec<PeerName> = spec.peers.iter().filter_map(|text| PeerName::parse(text)).collect();
        let exact = |address: &IpAddr| PrefixMatch { prefix: (*address).into(), ge: None, le: None };
        (!spec.peers.is_empty() || set != Actions::default()).then(|| AnycastExport {
            name: format!("AnycastAddress {}", object.name()),
            prefixes: planned.addresses.iter().map(exact).collect(),
            // A text that no peer can have names no peer.
            peers: (!spec.peers.is_empty()).then_some(peers),
            set,
        })
    };
    AnycastExports(intent.services.anycast.iter().filter_map(export).collect())
}

impl AnycastExports {
    /// The rules before those of the operator, for a peer with this name.
    pub(super) fn rules(&self, is_named: impl Fn(&PeerName) -> bool) -> Vec<Rule> {
        let rule = |export: &AnycastExport| {
            let is_mine = export.peers.as_ref().is_none_or(|peers| peers.iter().any(&is_named));
            let when = Conditions {
                prefixes: export.prefixes.clone().into(),
                originated: Some(true),
                ..Conditions::default()
            };
            match is_mine {
                true if export.set == Actions::default() => None,
                true => Some(Rule {
                    name: Some(export.name.clone()),
                    when,
                    set: export.set.clone(),
                    verdict: None,
                }),
                false => {
                    let name = Some(format!("{} for other peers", export.name));
                    Some(Rule { name, when, set: Actions::default(), verdict: Some(PolicyResult::Reject) })
                }
            }
        };
        self.0.iter().filter_map(rule).collect()
    }
}
