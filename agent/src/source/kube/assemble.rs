//! Builds a [`Snapshot`] from the API server's objects: valid objects are served, faults are
//! reported. No I/O.
//!
//! The folder source refuses a folder as a whole, because its author sees the answer. In Kubernetes
//! there are many authors, and an admission webhook checks their objects. An object can still be
//! invalid (an older writer, or an unavailable webhook), but it must not block the others. So each
//! object is checked separately:
//!
//! - A changed object with a fault: the version that is in force stays in force.
//! - A new object with a fault is excluded, together with the objects that need it (a network's
//!   subnets).
//! - If two objects contradict each other, the later one is at fault.
//! - Objects of remote clusters are checked by the planner ([`crate::plan::remote`]). Until their
//!   kinds have been listed, the versions in force stay.
//! - A NodeInfo is checked alone, because a node writes it itself. It must not displace another
//!   NodeInfo, or a Subnet. The planner decides which of its addresses count
//!   ([`crate::plan::node_claims`]).
//! - A ServicePool, ServiceAdvertisement, AnycastAddress or AgentSettings is checked alone. While its
//!   kind has not been listed, the versions in force stay. Pods never wait for these kinds.
//! - A Network or Subnet that is deleted while pods of this node have its addresses stays until
//!   these pods are gone.
//!
//! Manifests have the same rules ([`trunkline_api::validate`]) and the same texts of faults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::Utf8Error;
use std::sync::Arc;

use trunkline_api::resources::{
    AgentSettings, AnycastAddress, BgpPeer, Network, NetworkMode, NodeInfo, ObjectMeta, Secret, SecretKeyRef,
    ServiceAdvertisement, ServicePool, Subnet,
};
use trunkline_api::validate::{self, Fault};

use super::alone::{bare, each_valid};
use crate::plan::intent::{OverlayPods, ServiceObjects, Snapshot};
use crate::plan::remote::RemoteObjects;

/// Kind and name.
pub type ObjectRef = (&'static str, String);

/// The faults of each object, each with kind, name, field and fix.
pub type ObjectFaults = BTreeMap<ObjectRef, BTreeSet<String>>;

/// The state of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// Its watch has not answered yet.
    Unknown,
    /// It does not exist, or the agent may not read it; the reason as text.
    Missing(String),
    /// Its values.
    Values(BTreeMap<String, Vec<u8>>),
}

/// The objects as the API server has them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// This node's labels.
    pub labels: BTreeMap<String, String>,
    /// By name.
    pub networks: BTreeMap<String, Network>,
    /// By name.
    pub subnets: BTreeMap<String, Subnet>,
    /// The NodeInfos of other nodes by name.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// By name.
    pub service_pools: BTreeMap<String, ServicePool>,
    /// By name.
    pub advertisements: BTreeMap<String, ServiceAdvertisement>,
    /// By name.
    pub anycast: BTreeMap<String, AnycastAddress>,
    /// By name.
    pub agent_settings: BTreeMap<String, AgentSettings>,
    /// Whether AgentSettings were listed, or their kind is missing.
    pub settings_listed: bool,
    /// Whether ServicePools and ServiceAdvertisements were listed, or their kinds are missing.
    pub services_listed: bool,
    /// Whether AnycastAddresses were listed, or their kind is missing.
    pub anycast_listed: bool,
    /// Objects that could not be decoded.
    pub unreadable: BTreeMap<ObjectRef, String>,
    /// Pods of the overlay on other nodes; `None` without an overlay.
    pub overlay_pods: Option<Arc<OverlayPods>>,
    /// Subnets and VTEPs of remote clusters.
    pub remote: Arc<RemoteObjects>,
    /// Whether all kinds that the checks of `remote` need were listed, or are missing.
    pub remote_listed: bool,
    /// The API server's addresses, with remote clusters.
    pub api_servers: BTreeSet<IpAddr>,
    /// The Secrets by namespace and name.
    pub secrets: BTreeMap<(String, String), SecretState>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assembled {
    /// The valid objects.
    pub snapshot: Snapshot,
    /// The faults.
    pub faults: ObjectFaults,
}

/// A set of objects by name.
struct Candidate {
    networks: BTreeMap<String, Network>,
    subnets: BTreeMap<String, Subnet>,
}

/// Checks the objects. `running` is the snapshot in force. `in_use` returns whether pods of this
/// node have addresses of a Network or Subnet.
pub fn assemble(
    objects: &Objects,
    running: Option<&Snapshot>,
    namespace: &str,
    in_use: &dyn Fn(&str, &str) -> bool,
) -> Assembled {
    let before = Candidate::of(running);
    let mut faults = ObjectFaults::new();
    for (which, words) in &objects.unreadable {
        add(&mut faults, which, format!("{} {}: {words}", which.0, which.1));
    }
    let mut wanted = Candidate {
        networks: objects
            .networks
            .iter()
            .map(|(name, network)| (name.clone(), bare_network(network)))
            .collect(),
        subnets: objects.subnets.iter().map(|(name, subnet)| (name.clone(), bare_subnet(subnet))).collect(),
    };
    for which in objects.unreadable.keys().filter(|(kind, _)| Candidate::KINDS.contains(kind)) {
        wanted.revert(which, &before);
    }
    for name in before.networks.keys().filter(|name| !objects.networks.contains_key(*name)) {
        if in_use("Network", name) {
            let which = ("Network", name.clone());
            add(&mut faults, &which, deleted("Network", name));
            wanted.revert(&which, &before);
        }
    }
    for name in before.subnets.keys().filter(|name| !objects.subnets.contains_key(*name)) {
        if in_use("Subnet", name) {
            let which = ("Subnet", name.clone());
            add(&mut faults, &which, deleted("Subnet", name));
            wanted.revert(&which, &before);
        }
    }
    resolve(&mut wanted, objects, &before, namespace, &mut faults);
    let known = running.map(|running| running.nodes.as_slice()).unwrap_or_default();
    for (name, fault) in subnets_over_nodes(&wanted, &before, known) {
        let which = ("Subnet", name);
        add(&mut faults, &which, fault);
        wanted.revert(&which, &before);
    }

    let created = |which: &ObjectRef| created(objects, which);
    // Each round reverts a changed object, so the loop ends.
    loop {
        let found = wanted.faults(&before, &objects.labels, &created);
        if found.is_empty() {
            break;
        }
        let blamed: BTreeSet<ObjectRef> =
            found.iter().map(|fault| (fault.kind, fault.name.clone())).collect();
        let changed: Vec<&ObjectRef> = blamed.iter().filter(|which| wanted.differs(which, &before)).collect();
        if changed.is_empty() {
            // An applied object contradicts a new one: the new objects are tried one by one.
            wanted.one_by_one(&before, &objects.labels, &created, &mut faults);
            break;
        }
        for which in changed {
            for fault in found.iter().filter(|fault| (fault.kind, &fault.name) == (which.0, &which.1)) {
                add(&mut faults, which, fault.to_string());
            }
            wanted.revert(which, &before);
        }
    }
    let nodes = each_valid("NodeInfo", objects, &objects.nodes, known, &mut faults);
    let services = services(objects, running.map(|running| &running.services), &mut faults);
    let settings = running.map(|running| running.agent_settings.clone()).unwrap_or_default();
    let agent_settings = match objects.settings_listed {
        true => each_valid("AgentSettings", objects, &objects.agent_settings, &settings, &mut faults),
        false => settings,
    };
    let (remote, api_servers) = remote(objects, running);
    Assembled {
        snapshot: Snapshot {
            labels: objects.labels.clone(),
            networks: wanted.networks.into_values().collect(),
            subnets: wanted.subnets.into_values().collect(),
            nodes,
            overlay_pods: objects.overlay_pods.clone(),
            remote,
            api_servers,
            services,
            agent_settings,
            files: Vec::new(),
        },
        faults,
    }
}

/// The Secrets of the peers in this node's networks, each with its namespace. This node must not
/// read the keys of other racks.
pub fn secrets<'a>(
    networks: impl Iterator<Item = &'a Network>,
    labels: &BTreeMap<String, String>,
    namespace: &str,
) -> BTreeSet<(String, String)> {
    let peers = networks.filter(|network| network.selects(labels)).flat_map(Network::peers);
    peers.filter_map(|peer| peer.password_secret_ref.as_ref()).map(|named| place(named, namespace)).collect()
}

fn place(named: &SecretKeyRef, namespace: &str) -> (String, String) {
    (named.namespace.clone().unwrap_or_else(|| namespace.to_owned()), named.name.clone())
}

fn add(faults: &mut ObjectFaults, which: &ObjectRef, text: String) {
    faults.entry(which.clone()).or_default().insert(text);
}

fn deleted(kind: &str, name: &str) -> String {
    format!(
        "{kind} {name}: was deleted while pods of this node have its addresses: it is served until they are gone"
    )
}

/// Subnets and VTEPs of remote clusters, and the API server's addresses, which they may not have. The
/// planner checks them, because the checks depend on this node. Until they are listed, those in force
/// stay.
fn remote(objects: &Objects, running: Option<&Snapshot>) -> (Option<Arc<RemoteObjects>>, BTreeSet<IpAddr>) {
    match running {
        _ if objects.remote_listed && objects.remote.is_empty() => (None, BTreeSet::new()),
        _ if objects.remote_listed => (Some(Arc::clone(&objects.remote)), objects.api_servers.clone()),
        Some(running) => (running.remote.clone(), running.api_servers.clone()),
        None => (None, BTreeSet::new()),
    }
}

/// The objects for service addresses, each checked alone.
fn services(
    objects: &Objects,
    running: Option<&ServiceObjects>,
    faults: &mut ObjectFaults,
) -> ServiceObjects {
    let mut result = running.cloned().unwrap_or_default();
    if objects.services_listed {
        result.complete = true;
        result.pools = each_valid("ServicePool", objects, &objects.service_pools, &result.pools, faults);
        result.advertisements = each_valid(
            "ServiceAdvertisement",
            objects,
            &objects.advertisements,
            &result.advertisements,
            faults,
        );
        let unreadable = objects.unreadable.keys().filter(|(kind, _)| *kind == "ServiceAdvertisement");
        let unserved = |name: &String| !result.advertisements.iter().any(|served| served.name() == name);
        result.faulty_advertisements =
            objects.advertisements.keys().chain(unreadable.map(|(_, name)| name)).any(unserved);
    }
    if objects.anycast_listed {
        result.anycast_known = true;
        result.anycast = each_valid("AnycastAddress", objects, &objects.anycast, &result.anycast, faults);
    }
    result
}

impl Candidate {
    /// The kinds that are checked together.
    const KINDS: [&str; 2] = ["Network", "Subnet"];

    fn of(snapshot: Option<&Snapshot>) -> Candidate {
        let by_name = |snapshot: &Snapshot| Candidate {
            networks: snapshot.networks.iter().map(|one| (one.name().to_owned(), one.clone())).collect(),
            subnets: snapshot.subnets.iter().map(|one| (one.name().to_owned(), one.clone())).collect(),
        };
        snapshot.map(by_name).unwrap_or(Candidate { networks: BTreeMap::new(), subnets: BTreeMap::new() })
    }

    /// Reverts an object to its previous version, or removes it if there was none.
    fn revert(&mut self, (kind, name): &ObjectRef, before: &Candidate) {
        fn put<T: Clone>(of: &mut BTreeMap<String, T>, name: &str, before: &BTreeMap<String, T>) {
            match before.get(name) {
                Some(old) => drop(of.insert(name.to_owned(), old.clone())),
                None => drop(of.remove(name)),
            }
        }
        match *kind {
            "Network" => put(&mut self.networks, name, &before.networks),
            _ => put(&mut self.subnets, name, &before.subnets),
        }
    }

    fn differs(&self, (kind, name): &ObjectRef, before: &Candidate) -> bool {
        match *kind {
            "Network" => self.networks.get(name) != before.networks.get(name),
            _ => self.subnets.get(name) != before.subnets.get(name),
        }
    }

    /// All faults. The younger of two contradicting objects is at fault, because the rules blame
    /// the later one in the list.
    fn faults(
        &self,
        before: &Candidate,
        labels: &BTreeMap<String, String>,
        created: &dyn Fn(&ObjectRef) -> String,
    ) -> Vec<Fault> {
        let mut networks = by_age(self.networks.values(), |one| created(&("Network", one.name().to_owned())));
        for peer in networks
            .iter_mut()
            .filter_map(|one| one.spec.config.as_mut())
            .flat_map(|config| &mut config.bgp_peers)
        {
            // `password` contains the Secret's key here, but the rules expect the object as
            // written.
            if peer.password_secret_ref.is_some() {
                peer.password = None;
            }
        }
        let subnets = by_age(self.subnets.values(), |one| created(&("Subnet", one.name().to_owned())));
        let mut found = validate::validate_for_node(&networks, &subnets, labels).err().unwrap_or_default();
        let old_networks: Vec<Network> = before.networks.values().cloned().collect();
        let old_subnets: Vec<Subnet> = before.subnets.values().cloned().collect();
        let change = validate::validate_change((&old_networks, &old_subnets), (&networks, &subnets));
        found.extend(change.err().unwrap_or_default());
        found
    }

    /// Starts from the applied snapshot and applies one change after another, the oldest first. A
    /// change with a fault is skipped.
    fn one_by_one(
        &mut self,
        before: &Candidate,
        labels: &BTreeMap<String, String>,
        created: &dyn Fn(&ObjectRef) -> String,
        faults: &mut ObjectFaults,
    ) {
        let wanted = std::mem::replace(self, Candidate::of(None));
        let names = |kind: &'static str, keys: Vec<&String>| -> Vec<ObjectRef> {
            keys.into_iter().map(|name| (kind, name.clone())).collect()
        };
        let mut all = names("Network", wanted.networks.keys().collect());
        all.extend(names("Subnet", wanted.subnets.keys().collect()));
        // Deleted objects are skipped: only wanted objects are tried.
        for which in &all {
            self.revert(which, before);
        }
        let mut changes: Vec<ObjectRef> =
            all.into_iter().filter(|which| wanted.differs(which, before)).collect();
        let rank = |kind: &str| Candidate::KINDS.iter().position(|known| *known == kind);
        changes.sort_by_key(|which| (rank(which.0), created(which), which.1.clone()));
        let known: BTreeSet<Fault> = self.faults(before, labels, created).into_iter().collect();
        for which in changes {
            self.revert(&which, &wanted);
            let mut new = self.faults(before, labels, created);
            new.retain(|fault| !known.contains(fault));
            if !new.is_empty() {
                // The text names the skipped object, even if the rule names the other object.
                let (kind, name) = &which;
                for fault in &new {
                    let text = match (fault.kind, &fault.name) == (*kind, name) {
                        true => fault.to_string(),
                        false => format!("{kind} {name}: with this object, {fault}"),
                    };
                    add(faults, &which, text);
                }
                self.revert(&which, before);
            }
        }
    }
}

/// Number of nodes whose VTEPs protect a prefix from a new overlay Subnet. A compromised node writes
/// any address into its own NodeInfo, so one is not enough.
const NODES_IN_SUBNET: usize = 2;

/// New overlay Subnets that contain VTEPs of known nodes, with their faults: this host could no
/// longer reach the nodes.
fn subnets_over_nodes(wanted: &Candidate, before: &Candidate, known: &[NodeInfo]) -> Vec<(String, String)> {
    let is_new = |subnet: &&Subnet| !before.subnets.contains_key(subnet.name());
    let is_overlay = |subnet: &&Subnet| {
        let network = wanted.networks.get(&subnet.spec.network);
        network.is_some_and(|network| network.mode() == NetworkMode::VXLAN)
    };
    let vtep = |node: &NodeInfo| Some((node.name().to_owned(), node.vtep().ok().flatten()?.ip));
    let mut vteps: Option<Vec<(String, IpAddr)>> = None;
    let mut found = Vec::new();
    for subnet in wanted.subnets.values().filter(is_new).filter(is_overlay) {
        let Ok(prefix) = subnet.spec.range.cidr() else { continue };
        let vteps = vteps.get_or_insert_with(|| known.iter().filter_map(vtep).collect());
        let mut inside = vteps.iter().filter(|(_, address)| prefix.contains(address));
        let Some((node, address)) = inside.next() else { continue };
        let number = 1 + inside.count();
        if number >= NODES_IN_SUBNET {
            let fault = format!(
                "Subnet {}: spec.range.cidr: {prefix} contains the VTEPs of {number} nodes, such as {address} of \
                 NodeInfo {node}, which would be inside the tunnels: write a prefix without nodes",
                subnet.name()
            );
            found.push((subnet.name().to_owned(), fault));
        }
    }
    found
}

fn created(objects: &Objects, (kind, name): &ObjectRef) -> String {
    let meta: Option<&ObjectMeta> = match *kind {
        "Network" => objects.networks.get(name).map(|network| &network.metadata),
        _ => objects.subnets.get(name).map(|subnet| &subnet.metadata),
    };
    meta.and_then(|meta| meta.creation_timestamp.clone()).unwrap_or_default()
}

fn by_age<'a, T: Clone + 'a>(all: impl Iterator<Item = &'a T>, age: impl Fn(&T) -> String) -> Vec<T> {
    let mut all: Vec<T> = all.cloned().collect();
    all.sort_by_cached_key(age);
    all
}

/// Reads the Secrets' keys into `password`. A Network without its key stays as it was.
fn resolve(
    wanted: &mut Candidate,
    objects: &Objects,
    before: &Candidate,
    namespace: &str,
    faults: &mut ObjectFaults,
) {
    let mut failed: Vec<ObjectRef> = Vec::new();
    for (name, network) in &mut wanted.networks {
        // A retained Network already has its keys. A Network without this node needs none, because
        // this node opens no session for it.
        if !objects.networks.contains_key(name) || !network.selects(&objects.labels) {
            continue;
        }
        let peers = network.spec.config.iter_mut().flat_map(|config| &mut config.bgp_peers);
        for (index, peer) in peers.enumerate() {
            let Some(named) = &peer.password_secret_ref else { continue };
            match key(named, objects, namespace) {
                Ok(secret) => peer.password = Some(secret),
                Err(error) => {
                    let field = format!("spec.config.bgpPeers[{index}].passwordSecretRef");
                    let which = ("Network", name.clone());
                    add(faults, &which, format!("Network {name}: {field}: Secret {error}"));
                    failed.push(which);
                }
            }
        }
    }
    for which in failed {
        wanted.revert(&which, before);
    }
}

/// The reason for which a Secret has no password for a peer. The text begins with the Secret's name.
#[derive(Debug, thiserror::Error)]
enum PasswordError {
    #[error("{secret} is not known yet")]
    Unknown { secret: String },
    #[error("{secret} {reason}")]
    Missing { secret: String, reason: String },
    #[error("{secret} has no key `{key}`, it has {known}: write one of them")]
    NoKey { secret: String, key: String, known: String },
    #[error("{secret}: `{key}` is no text")]
    NoText { secret: String, key: String, source: Utf8Error },
    #[error("{secret}: `{key}` is empty: write the key into it, or leave the field out")]
    Empty { secret: String, key: String },
    #[error("{secret}: `{key}` holds {length} octets, TCP-MD5 allows at most {}", BgpPeer::MAX_PASSWORD)]
    TooLong { secret: String, key: String, length: usize },
}

fn key(named: &SecretKeyRef, objects: &Objects, namespace: &str) -> Result<Secret, PasswordError> {
    let place = place(named, namespace);
    let secret = format!("{}/{}", place.0, place.1);
    let values = match objects.secrets.get(&place) {
        None | Some(SecretState::Unknown) => return Err(PasswordError::Unknown { secret }),
        Some(SecretState::Missing(reason)) => {
            return Err(PasswordError::Missing { secret, reason: reason.clone() });
        }
        Some(SecretState::Values(values)) => values,
    };
    let key = named.key.clone();
    let Some(value) = values.get(&key) else {
        let known = values.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(PasswordError::NoKey { secret, key, known });
    };
    let text = match std::str::from_utf8(value) {
        Ok(text) => text,
        Err(source) => return Err(PasswordError::NoText { secret, key, source }),
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    match text.len() {
        0 => Err(PasswordError::Empty { secret, key }),
        length if length > BgpPeer::MAX_PASSWORD => Err(PasswordError::TooLong { secret, key, length }),
        _ => Ok(Secret::new(text)),
    }
}

fn bare_network(network: &Network) -> Network {
    Network { metadata: bare(&network.metadata), status: None, ..network.clone() }
}

fn bare_subnet(subnet: &Subnet) -> Subnet {
    Subnet { metadata: bare(&subnet.metadata), status: None, ..subnet.clone() }
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
