//! The election of the node that answers for a service address in a VLAN
//! ([`crate::services::l2`]), by Leases in the API server.
//!
//! ```text
//!  API server ──Leases──► Election ──held addresses──► reconcile task ──► proxy entries in the kernel
//!      ▲                     │  │                                              │
//!      └──Lease writes───────┘  └──Holders──► services task (views)            └──► announcements (ARP, ND)
//! ```
//!
//! The Leases are in the agent's namespace, and have the label `trunkline.io/l2`:
//! `trunkline-l2-10-0-0-5` for an address, `trunkline-l2-node-NODE` for a node. They are watched
//! only while a pool of mode L2 has a device on this node. The owner of a node's Lease is the Node,
//! and the owner of an address' Lease is its ServiceAddress, so the garbage collector removes them.
//! An admission policy requires this owner: so a node cannot create Leases without limit. Leases of
//! addresses outside of L2 pools do not count; they are listed again when the pools change.
//!
//! A new holder announces an address three times within 2 s, because a frame can be
//! lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use trunkline_api::kube::Lenient;
use trunkline_api::names::OWN_API_VERSION;
use trunkline_api::resources::{AddressBlock, ServiceAddressSpec, instance_name, named_address};
use trunkline_daemon::errors::chain;
use trunkline_datapath::link_check::LinkChecker;

use super::cluster::{Cluster, QUESTION};
use super::request::{RequestError, within};
use super::watch::{Change, FullObjects, Selector, run};
use crate::reconcile::Reconcile;
use crate::services::l2::{
    Candidates, DURATION, Election, Holders, LeaseChange, LeaseRequest, LeaseRow, LeaseSubject, Members,
};
use crate::services::{ServicesInput, ServicesPlan};

/// The label of the Leases. Its value is the kind of the subject: `node` or `address`.
const LABEL: &str = "trunkline.io/l2";
const PREFIX: &str = "trunkline-l2-";
/// Name of the watch.
const LEASES: &str = "leases";
/// Times of the announcements of a new holder, after the first one.
const ANNOUNCEMENTS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1500)];
/// Time limit of a request that renews the node's Lease: two of them are shorter than the time after
/// which other nodes take over.
const RENEWAL: Duration = Duration::from_secs(2);
/// HTTP status: there is no such object.
const NOT_FOUND: u16 = 404;
/// HTTP status: the object has another version, or exists.
const CONFLICT: u16 = 409;

/// The inputs of the task.
pub struct L2Dependencies {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: Cluster,
    /// Writes the proxy entries.
    pub reconcile: Reconcile,
    /// The services task.
    pub services: mpsc::Sender<ServicesInput>,
    /// This node's UID in the API server, once it is known.
    pub uid: watch::Receiver<Option<String>>,
    /// The nodes of this node's VLAN Network; none if they are not known.
    pub members: watch::Receiver<Option<Members>>,
    /// What the agent provides.
    pub parts: L2Parts,
}

/// The agent's parts for addresses in VLANs.
pub struct L2Parts {
    /// The addresses that this node can serve.
    pub candidates: watch::Receiver<Candidates>,
    /// Announces addresses.
    pub links: LinkChecker,
    /// The addresses of the last run.
    pub former: HeldAddresses,
    /// Their file.
    pub file: PathBuf,
}

/// The addresses for which this node answers, on disk for the next run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldAddresses {
    /// The boot of the host: the kernel's entries of another boot are gone.
    pub boot: String,
    /// The addresses.
    pub held: BTreeSet<IpAddr>,
}

/// The path of the file of an agent with this store.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("l2.json")
}

impl HeldAddresses {
    /// The state of the last run in the boot `boot`. A file that cannot be read counts as empty.
    pub fn read(path: &Path, boot: &str) -> HeldAddresses {
        let read = fs::read(path).ok().and_then(|text| serde_json::from_slice::<HeldAddresses>(&text).ok());
        let same = read.filter(|of| of.boot == boot && !boot.is_empty());
        same.unwrap_or_else(|| HeldAddresses { boot: boot.to_owned(), ..HeldAddresses::default() })
    }

    /// Writes the file. A crash leaves the old file or the new one.
    fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&new, path)
    }
}

/// Takes part in the election until the services task ends.
pub async fn follow(dependencies: L2Dependencies) {
    let L2Dependencies { node, cluster, reconcile, services, uid, mut members, parts } = dependencies;
    let L2Parts { mut candidates, links, former, file } = parts;
    let mut plan = reconcile.service_facts().plan;
    let leases = Leases {
        api: Api::namespaced(cluster.connection().client.clone(), &cluster.connection().namespace),
        claims: Api::all(cluster.connection().client.clone()),
        node: Arc::from(node.as_str()),
        uid,
    };
    let mut task = Task {
        election: Election::new(&node, former.held.clone(), Instant::now()),
        holders: Holders { held: former.held.clone(), others: BTreeMap::new() },
        reconcile,
        services,
        links,
        stored: former,
        file,
        announcements: BTreeMap::new(),
    };
    if task.services.send(ServicesInput::Holders(task.holders.clone())).await.is_err() {
        return;
    }
    let (changes, mut changed) = mpsc::channel(256);
    let mut watching: Option<AbortHandle> = None;
    let mut writes: JoinSet<Written> = JoinSet::new();
    loop {
        let (has_pools, blocks) = {
            let plan = plan.borrow_and_update();
            (plan.as_deref().is_some_and(has_l2), plan.as_deref().map(l2_blocks).unwrap_or_default())
        };
        let wanted = !task.holders.held.is_empty() || has_pools;
        if task.election.set_blocks(blocks)
            && let Some(watch) = watching.take()
        {
            watch.abort();
            cluster.health().stopped(LEASES);
        }
        match &watching {
            None if wanted => watching = Some(watch_leases(&cluster, &leases.api, changes.clone())),
            Some(watch) if !wanted => {
                watch.abort();
                cluster.health().stopped(LEASES);
                watching = None;
            }
            _ => {}
        }
        let now = Instant::now();
        task.election.set_members(members.borrow_and_update().clone());
        task.election.set_candidates(&candidates.borrow_and_update(), now);
        for request in task.election.poll(now) {
            let leases = leases.clone();
            writes.spawn(async move { leases.carry_out(request).await });
        }
        if task.apply().await.is_none() {
            return;
        }
        let deadline = task.election.next_deadline();
        tokio::select! {
            Some(change) = changed.recv() => task.election.change(change, Instant::now()),
            Some(Ok(written)) = writes.join_next() => {
                let now = Instant::now();
                match written {
                    Written::Renewed { began, succeeded } => task.election.renewed(began, succeeded, now),
                    Written::Held { address, row } => task.election.written(address, row, now),
                }
            }
            seen = candidates.changed() => if seen.is_err() { return },
            seen = plan.changed() => if seen.is_err() { return },
            seen = members.changed() => if seen.is_err() { return },
            () = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

/// Whether a pool of mode L2 has a device on this node.
fn has_l2(plan: &ServicesPlan) -> bool {
    plan.pools.iter().any(|pool| !pool.links.is_empty())
}

/// The addresses of pools of mode L2.
fn l2_blocks(plan: &ServicesPlan) -> Vec<AddressBlock> {
    plan.pools.iter().filter(|pool| !pool.bgp).flat_map(|pool| pool.blocks.iter().copied()).collect()
}

fn watch_leases(cluster: &Cluster, api: &Api<Lease>, changes: mpsc::Sender<LeaseChange>) -> AbortHandle {
    let health = cluster.health().clone();
    health.started_optional(LEASES);
    let report = move |change: Change<Lease>| {
        let changes = changes.clone();
        async move {
            let change = match change {
                Change::Listed(all) => LeaseChange::Listed(all.iter().filter_map(read).collect()),
                Change::Applied(lease) => match read(&lease) {
                    Some(row) => LeaseChange::Applied(row),
                    None => return !changes.is_closed(),
                },
                Change::Deleted(lease) => match read(&lease) {
                    Some(row) => LeaseChange::Deleted(row.subject),
                    None => return !changes.is_closed(),
                },
                Change::Page { .. } | Change::Failing(_) => return !changes.is_closed(),
            };
            changes.send(change).await.is_ok()
        }
    };
    let selector = Selector { fields: None, labels: Some(LABEL.to_owned()) };
    tokio::spawn(run(FullObjects(api.clone()), selector, LEASES.to_owned(), health, report)).abort_handle()
}

/// Ends its task when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Task {
    election: Election,
    /// What the other tasks know.
    holders: Holders,
    reconcile: Reconcile,
    services: mpsc::Sender<ServicesInput>,
    links: LinkChecker,
    stored: HeldAddresses,
    file: PathBuf,
    announcements: BTreeMap<IpAddr, AbortOnDrop>,
}

impl Task {
    /// Applies the holders if they have changed. None if another task has ended.
    async fn apply(&mut self) -> Option<()> {
        let Some(holders) = self.election.changed_holders().filter(|holders| *holders != self.holders) else {
            return Some(());
        };
        let held = &holders.held;
        if *held != self.holders.held {
            let entries = self.reconcile.hold(held.clone()).await?;
            self.announcements.retain(|address, _| held.contains(address));
            for address in self.holders.held.difference(held) {
                tracing::info!(%address, "this node no longer answers for the service address");
            }
            for address in held.difference(&self.holders.held) {
                tracing::info!(%address, "this node answers for the service address");
                if let Some(ifindex) = entries.get(address) {
                    let announcing = tokio::spawn(announce(self.links.clone(), *ifindex, *address));
                    self.announcements.insert(*address, AbortOnDrop(announcing.abort_handle()));
                }
            }
            self.stored.held.clone_from(held);
            if let Err(error) = self.stored.write(&self.file) {
                tracing::warn!(file = %self.file.display(), %error, "the file of addresses in VLANs cannot be written");
            }
        }
        self.holders = holders.clone();
        self.services.send(ServicesInput::Holders(holders)).await.ok()
    }
}

async fn announce(links: LinkChecker, ifindex: u32, address: IpAddr) {
    let mut waits = ANNOUNCEMENTS.into_iter();
    loop {
        if let Err(error) = links.announce(ifindex, address).await {
            tracing::warn!(%address, %error, "a service address cannot be announced on its link");
        }
        let Some(wait) = waits.next() else { return };
        sleep(wait).await;
    }
}

/// The result of a write.
enum Written {
    Renewed { began: Instant, succeeded: bool },
    Held { address: IpAddr, row: Option<LeaseRow> },
}

#[derive(Clone)]
struct Leases {
    api: Api<Lease>,
    claims: Api<Lenient<ServiceAddressSpec>>,
    node: Arc<str>,
    uid: watch::Receiver<Option<String>>,
}

impl Leases {
    async fn carry_out(&self, request: LeaseRequest) -> Written {
        match request {
            LeaseRequest::Renew => {
                let began = Instant::now();
                let renewed = self.renew().await;
                if let Err(error) = &renewed {
                    tracing::debug!(error = chain(error), "this node's Lease was not renewed");
                }
                Written::Renewed { began, succeeded: renewed.is_ok() }
            }
            LeaseRequest::Hold { address, take, version } => {
                let row = match self.hold(address, take, version).await {
                    Ok(lease) => read(&lease),
                    Err(error) => {
                        if error.code() != Some(CONFLICT) {
                            tracing::warn!(
                                %address,
                                error = chain(&error),
                                "the API server does not accept the Lease of a service address: the agent retries"
                            );
                        }
                        None
                    }
                };
                Written::Held { address, row }
            }
        }
    }

    /// The first renewal creates the Lease.
    async fn renew(&self) -> Result<(), RequestError> {
        let name = format!("{PREFIX}node-{}", self.node);
        let mut lease = match within(RENEWAL, self.api.get(&name)).await {
            Ok(lease) => lease,
            Err(error) if error.code() == Some(NOT_FOUND) => {
                let uid = self.uid.borrow().clone();
                let owner = uid.map(|uid| owner("v1", "Node", &self.node, uid));
                new_lease(name.clone(), "node", owner)
            }
            Err(error) => return Err(error),
        };
        let is_new = lease.metadata.resource_version.is_none();
        self.fill(&mut lease, Some(&self.node));
        let parameters = PostParams::default();
        match is_new {
            true => within(RENEWAL, self.api.create(&parameters, &lease)).await,
            false => within(RENEWAL, self.api.replace(&name, &parameters, &lease)).await,
        }
        .map(drop)
    }

    async fn hold(
        &self,
        address: IpAddr,
        take: bool,
        version: Option<String>,
    ) -> Result<Lease, RequestError> {
        let name = format!("{PREFIX}{}", instance_name(address));
        let holder = take.then_some(&*self.node);
        let parameters = PostParams::default();
        if version.is_none() {
            let claim = instance_name(address);
            let found = within(QUESTION, self.claims.get_metadata(&claim)).await?;
            let owner = found.metadata.uid.map(|uid| owner(OWN_API_VERSION, "ServiceAddress", &claim, uid));
            let mut lease = new_lease(name, "address", owner);
            self.fill(&mut lease, holder);
            return within(QUESTION, self.api.create(&parameters, &lease)).await;
        }
        let mut lease = within(QUESTION, self.api.get(&name)).await?;
        // The decision was about this version.
        lease.metadata.resource_version = version;
        self.fill(&mut lease, holder);
        within(QUESTION, self.api.replace(&name, &parameters, &lease)).await
    }

    fn fill(&self, lease: &mut Lease, holder: Option<&str>) {
        let now = Some(MicroTime(Timestamp::now()));
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let holder = holder.unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(holder) {
            spec.holder_identity = Some(holder.to_owned());
            spec.acquire_time.clone_from(&now);
            spec.lease_transitions =
                Some(spec.lease_transitions.map_or(0, |number| number.saturating_add(1)));
        }
        spec.renew_time = now;
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
    }
}

fn owner(api_version: &str, kind: &str, name: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

fn new_lease(name: String, kind: &str, owner: Option<OwnerReference>) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some([(LABEL.to_owned(), kind.to_owned())].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: None,
    }
}

/// Reads a Lease; none if its name and its label do not belong together.
fn read(lease: &Lease) -> Option<LeaseRow> {
    let name = lease.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
    let kind = lease.metadata.labels.as_ref()?.get(LABEL)?;
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    let holder: Option<Arc<str>> = holder.filter(|holder| !holder.is_empty()).map(Arc::from);
    let subject = match kind.as_str() {
        "node" => LeaseSubject::Node(Arc::from(name.strip_prefix("node-")?)),
        "address" => LeaseSubject::Address(named_address(name)?),
        _ => return None,
    };
    Some(LeaseRow { subject, holder, version: lease.metadata.resource_version.clone().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_reads_back_with_its_subject() {
        let named =
            |name: &str, kind: &str| read(&new_lease(name.to_owned(), kind, None)).map(|row| row.subject);
        let address = |text: &str| LeaseSubject::Address(text.parse().unwrap());
        assert_eq!(named("trunkline-l2-10-0-0-5", "address"), Some(address("10.0.0.5")));
        assert_eq!(named("trunkline-l2-fd00-0-0-0-0-0-0-5", "address"), Some(address("fd00::5")));
        assert_eq!(named("trunkline-l2-node-n1", "node"), Some(LeaseSubject::Node(Arc::from("n1"))));
        for (name, kind) in [
            ("trunkline-l2-node-n1", "address"),
            ("trunkline-l2-10-0-0-5", "node"),
            ("trunkline-controller", "node"),
            ("trunkline-l2-10-0-0-5", "x"),
        ] {
            assert_eq!(named(name, kind), None, "{name} {kind}");
        }
    }

    #[test]
    fn only_the_same_boot_reads_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for_store(&folder.path().join("store.redb"));
        let held = HeldAddresses { boot: "b1".to_owned(), held: ["10.0.0.5".parse().unwrap()].into() };
        held.write(&path).unwrap();
        assert_eq!(HeldAddresses::read(&path, "b1"), held);
        assert!(HeldAddresses::read(&path, "b2").held.is_empty());
    }
}
