//! The thread that owns allocator, records and store, and its handle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;

use ipnet::IpNet;
use tokio::sync::oneshot;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::interfaces::InterfaceSettings;
use trunkline_api::names::full_name;

use super::allocator::{AddressRequest, AllocateError, Allocator, NetworkSpec};
use super::record::{Assigned, AttachmentKey, MigrationState, Phase, PodName, Record, TargetNode};
use super::store::{Batch, Contents, Store, StoreError};
use trunkline_api::pool::{Counts, Pool, PoolSpec};

/// Maximum number of requests in one transaction.
const GROUP: usize = 64;

/// The reason for which a request fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// No address.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// An assigned address is still in another attachment's record.
    #[error(
        "{address} is still attached to container {} (pod {}), which has had no DEL",
        holder.key, full_name(&holder.pod.namespace, &holder.pod.name)
    )]
    Held {
        /// The address.
        address: IpAddr,
        /// The record that has it.
        holder: Box<Record>,
    },
    /// An assigned address is in the kernel, on a pod without a record.
    #[error(
        "{0} is on the link of a pod without a record (`trunkline pods` shows it as unrecorded): \
         delete that pod"
    )]
    Unrecorded(IpAddr),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread has ended; the process will end soon.
    #[error("the agent is stopping")]
    Stopped,
}

impl IpamError {
    /// The error text for DEL, which has already removed the pod's link and routes.
    pub fn on_release(&self) -> String {
        match self {
            IpamError::Store(StoreError::Io { path, reason }) => format!(
                "the pod's link and routes are removed, but store {path} cannot be written \
                 ({reason}): the pod's addresses stay allocated until the runtime repeats DEL; \
                 free space or repair the disk"
            ),
            other => other.to_string(),
        }
    }
}

/// The origin of an attachment's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// This node's pools.
    Local(AddressRequest),
    /// These addresses, which the controller allocated for this pod.
    Assigned {
        /// The network's name.
        network: String,
        /// At most one of each family, IPv4 first.
        addresses: Vec<Assigned>,
    },
}

/// The request of an ADD.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The key of the attachment.
    pub key: AttachmentKey,
    /// `name` of the CNI configuration.
    pub conf_name: String,
    /// The requested addresses.
    pub wanted: AddressSource,
    /// MAC address of the interface in the container.
    pub mac: [u8; 6],
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// Prefixes that the pod may use as source besides its addresses.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// The labels that the runtime passed.
    pub labels: BTreeMap<String, String>,
    /// Path of the container's network namespace.
    pub netns: String,
    /// The pod.
    pub pod: PodName,
    /// The interface whose ADD attaches this one; none: its own ADD.
    pub attached_with: Option<String>,
    /// Settings of another interface than the pod's first.
    pub interface: InterfaceSettings,
    /// Whether the pod has further interfaces.
    pub several: bool,
    /// The names of the interfaces that the ADD of this one attaches too.
    pub others: Vec<String>,
    /// The pod's part in a live migration.
    pub migration: MigrationState,
}

/// The counts of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetUse {
    /// The subnet.
    pub spec: PoolSpec,
    /// Its addresses.
    pub counts: Counts,
}

/// A summary of records and subnets.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Every attachment.
    pub records: Vec<Record>,
    /// Every subnet.
    pub subnets: Vec<SubnetUse>,
    /// The reason for which no address can be allocated.
    pub fault: Option<StoreError>,
}

type Answer<T> = oneshot::Sender<T>;

enum Request {
    Reserve(Box<Reservation>, Answer<Result<(Record, bool), IpamError>>),
    Attached(AttachmentKey, u32, Answer<Result<(), IpamError>>),
    Promote(AttachmentKey, Answer<Result<(), IpamError>>),
    Migrate(AttachmentKey, MigrationState, Option<TargetNode>, Answer<Result<(), IpamError>>),
    Release(AttachmentKey, Answer<Result<Option<Record>, IpamError>>),
    Get(AttachmentKey, Answer<Option<Record>>),
    AttachedWith(AttachmentKey, Answer<Vec<Record>>),
    SetDrain(Option<String>, Answer<Result<(), IpamError>>),
    Configure(Vec<NetworkSpec>, Vec<Pool>),
    Unrecorded(BTreeSet<IpAddr>),
    Summary(Answer<Summary>),
}

/// The state at the start.
pub struct Started {
    /// The handle of the thread.
    pub ipam: Ipam,
    /// The records.
    pub records: Vec<Record>,
    /// The drain state of the last [`Ipam::set_drain`].
    pub drain: Option<String>,
    /// The reason for which the store cannot be used.
    pub fault: Option<StoreError>,
}

/// The handle of the owner thread.
#[derive(Clone)]
pub struct Ipam {
    requests: mpsc::Sender<Request>,
}

impl Ipam {
    /// Opens the store and starts the thread. The agent also runs with an unusable store: the
    /// kernel's state stays, and [`Summary::fault`] contains the reason for which no address is
    /// allocated.
    pub fn start(path: &Path) -> std::io::Result<Started> {
        let (store, contents) = Store::open(path);
        let owner = Owner::new(store, contents);
        let records = owner.records.values().cloned().collect();
        let (drain, fault) = (owner.drain.clone(), owner.fault.clone());
        let (requests, inbox) = mpsc::channel();
        std::thread::Builder::new().name("ipam".to_owned()).spawn(move || owner.run(&inbox))?;
        Ok(Started { ipam: Ipam { requests }, records, drain, fault })
    }

    /// The record of this attachment, created if there is none (`true`).
    pub async fn reserve(&self, reservation: Reservation) -> Result<(Record, bool), IpamError> {
        self.request(|answer| Request::Reserve(Box::new(reservation), answer))
            .await
            .ok_or(IpamError::Stopped)?
    }

    /// Reports that the device is complete, with this MTU. The request is sent at the call, before
    /// every later request, even if the outcome is awaited later.
    pub fn attached(
        &self,
        key: AttachmentKey,
        mtu: u32,
    ) -> impl Future<Output = Result<(), IpamError>> + Send + use<> {
        let (answer, outcome) = oneshot::channel();
        // If the thread has ended, the answer is dropped, and the outcome is an error.
        let _ = self.requests.send(Request::Attached(key, mtu, answer));
        async { outcome.await.map_err(|_| IpamError::Stopped)? }
    }

    /// Marks the record of a complete device as attached. The record is from an ADD that was killed
    /// after its last step.
    pub async fn promote(&self, key: AttachmentKey) -> Result<(), IpamError> {
        self.request(|answer| Request::Promote(key, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// Writes the pod's part in a live migration to its record, and on the source the target's node.
    pub async fn migrate(
        &self,
        key: AttachmentKey,
        state: MigrationState,
        target_node: Option<TargetNode>,
    ) -> Result<(), IpamError> {
        let request = self.request(|answer| Request::Migrate(key, state, target_node, answer));
        request.await.ok_or(IpamError::Stopped)?
    }

    /// Releases the addresses and deletes the record; `None` if there was none.
    pub async fn release(&self, key: AttachmentKey) -> Result<Option<Record>, IpamError> {
        self.request(|answer| Request::Release(key, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// The record of an attachment.
    pub async fn get(&self, key: AttachmentKey) -> Option<Record> {
        self.request(|answer| Request::Get(key, answer)).await.flatten()
    }

    /// The records of the interfaces that were attached with this one.
    pub async fn attached_with(&self, key: AttachmentKey) -> Vec<Record> {
        self.request(|answer| Request::AttachedWith(key, answer)).await.unwrap_or_default()
    }

    /// Stores the drain state over a restart; `None` deletes it.
    pub async fn set_drain(&self, drain: Option<String>) -> Result<(), IpamError> {
        self.request(|answer| Request::SetDrain(drain, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// Applies new networks and subnets. Records do not change.
    pub fn configure(&self, networks: Vec<NetworkSpec>, pools: Vec<Pool>) {
        let _ = self.requests.send(Request::Configure(networks, pools));
    }

    /// Sets the addresses of pods in the kernel without a record (after the loss of the store):
    /// they are never allocated. Replaces the previous set.
    pub fn unrecorded(&self, addresses: BTreeSet<IpAddr>) {
        let _ = self.requests.send(Request::Unrecorded(addresses));
    }

    /// The summary; `None` if the thread has ended.
    pub async fn summary(&self) -> Option<Summary> {
        self.request(Request::Summary).await
    }

    async fn request<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (answer, reply) = oneshot::channel();
        self.requests.send(request(answer)).ok()?;
        reply.await.ok()
    }
}

/// One change in memory, with the data to revert it.
struct Change {
    key: AttachmentKey,
    before: Option<Record>,
    after: Option<Record>,
}

/// Sends an answer after the commit, with its result.
type Deferred = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

pub(super) struct Owner {
    store: Store,
    allocator: Allocator,
    records: BTreeMap<AttachmentKey, Record>,
    cursors: BTreeMap<String, IpAddr>,
    unrecorded: BTreeSet<IpAddr>,
    drain: Option<String>,
    fault: Option<StoreError>,
    /// Whether the store was read once. Afterwards memory is authoritative.
    loaded: bool,
}

impl Owner {
    pub(super) fn new(store: Store, contents: Result<Contents, StoreError>) -> Owner {
        let loaded = contents.is_ok();
        let (contents, fault) = match contents {
            Ok(contents) => (contents, None),
            Err(fault) => (Contents::default(), Some(fault)),
        };
        Owner {
            store,
            allocator: Allocator::default(),
            records: contents.records,
            cursors: contents.cursors,
            unrecorded: BTreeSet::new(),
            drain: contents.drain,
            fault,
            loaded,
        }
    }

    fn run(mut self, inbox: &mpsc::Receiver<Request>) {
        while let Ok(first) = inbox.recv() {
            let rest = std::iter::from_fn(|| inbox.try_recv().ok()).take(GROUP - 1);
            self.handle(std::iter::once(first).chain(rest));
        }
    }

    /// Handles a group of requests in one transaction.
    fn handle(&mut self, requests: impl Iterator<Item = Request>) {
        let mut changes = Vec::new();
        let mut cursors = Vec::new();
        let mut deferred: Vec<Deferred> = Vec::new();
        let mut drain_before = None;
        for request in requests {
            match request {
                Request::Reserve(reservation, answer) => match self.reserve(*reservation, &mut cursors) {
                    Ok(Ok(record)) => drop(answer.send(Ok((record, false)))),
                    Ok(Err(change)) => {
                        if let Some(record) = &change.after {
                            deferred.push(later(answer, (record.clone(), true)));
                        }
                        changes.push(change);
                    }
                    Err(error) => drop(answer.send(Err(error))),
                },
                Request::Attached(key, mtu, answer) => {
                    changes.extend(self.set(&key, |record| Record {
                        phase: Phase::Attached,
                        mtu: Some(mtu),
                        ..record
                    }));
                    deferred.push(later(answer, ()));
                }
                Request::Promote(key, answer) => {
                    changes.extend(self.set(&key, |record| Record { phase: Phase::Attached, ..record }));
                    deferred.push(later(answer, ()));
                }
                Request::Migrate(key, migration, target_node, answer) => {
                    changes.extend(self.set(&key, |record| Record { migration, target_node, ..record }));
                    deferred.push(later(answer, ()));
                }
                Request::Release(key, answer) => match self.records.remove(&key) {
                    Some(record) => {
                        record.addresses.iter().for_each(|assigned| self.allocator.release(assigned));
                        deferred.push(later(answer, Some(record.clone())));
                        changes.push(Change { key, before: Some(record), after: None });
                    }
                    // A missing record needs no commit, so the answer is sent at once.
                    None => drop(answer.send(Ok(None))),
                },
                Request::Get(key, answer) => drop(answer.send(self.records.get(&key).cloned())),
                Request::AttachedWith(key, answer) => {
                    let first = AttachmentKey { ifname: String::new(), ..key.clone() };
                    let container = self.records.range(first..).map(|(_, record)| record);
                    let container =
                        container.take_while(|record| record.key.container_id == key.container_id);
                    let with = |record: &&Record| record.attached_with.as_ref() == Some(&key.ifname);
                    drop(answer.send(container.filter(with).cloned().collect()));
                }
                Request::SetDrain(drain, answer) => {
                    let before = std::mem::replace(&mut self.drain, drain);
                    drain_before.get_or_insert(before);
                    deferred.push(later(answer, ()));
                }
                Request::Configure(networks, pools) => {
                    self.allocator.configure(networks, pools);
                    self.restore();
                }
                Request::Unrecorded(addresses) => {
                    for address in std::mem::take(&mut self.unrecorded) {
                        self.allocator.release_address(address);
                    }
                    self.unrecorded = addresses;
                    self.restore();
                }
                Request::Summary(answer) => drop(answer.send(self.summary())),
            }
        }
        let outcome = match changes.is_empty() && drain_before.is_none() {
            true => Ok(()),
            false => self.commit(&changes, &cursors),
        };
        if outcome.is_err() {
            if let Some(before) = drain_before {
                self.drain = before;
            }
            self.undo(changes, cursors);
        }
        for answer in deferred {
            answer(outcome.clone());
        }
    }

    /// The existing record, or a change that creates one.
    fn reserve(
        &mut self,
        reservation: Reservation,
        cursors: &mut Vec<(String, Option<IpAddr>)>,
    ) -> Result<Result<Record, Change>, IpamError> {
        if let Some(record) = self.records.get(&reservation.key) {
            return Ok(Ok(record.clone()));
        }
        let (network, addresses) = match &reservation.wanted {
            AddressSource::Local(request) => self.allocator.allocate(request)?,
            AddressSource::Assigned { network, addresses } => {
                self.allocator.admit(network)?;
                if let Some((address, holder)) = self.holder(addresses) {
                    return Err(IpamError::Held { address, holder: Box::new(holder) });
                }
                let here = |assigned: &&Assigned| self.unrecorded.contains(&assigned.address);
                if let Some(Assigned { address, .. }) = addresses.iter().find(here) {
                    return Err(IpamError::Unrecorded(*address));
                }
                (network.clone(), addresses.clone())
            }
        };
        let attachment = self.allocator.attachment(&network);
        for assigned in &addresses {
            if let Some(cursor) = self.allocator.cursor(&assigned.subnet) {
                let before = self.cursors.insert(assigned.subnet.clone(), cursor);
                cursors.push((assigned.subnet.clone(), before));
            }
        }
        let Reservation {
            key,
            conf_name,
            wanted: _,
            mac,
            bandwidth,
            extra_prefixes,
            labels,
            netns,
            pod,
            attached_with,
            interface,
            several,
            others,
            migration,
        } = reservation;
        let record = Record {
            key: key.clone(),
            phase: Phase::Attaching,
            conf_name,
            network,
            attachment,
            addresses,
            mac,
            bandwidth,
            extra_prefixes,
            labels,
            netns,
            mtu: None,
            pod,
            attached_with,
            several,
            default_route: interface.default_route,
            routes: interface.routes,
            others,
            migration,
            target_node: None,
        };
        self.records.insert(key.clone(), record.clone());
        Ok(Err(Change { key, before: None, after: Some(record) }))
    }

    /// The record that already has one of these addresses.
    fn holder(&self, addresses: &[Assigned]) -> Option<(IpAddr, Record)> {
        addresses.iter().find_map(|wanted| {
            let has =
                |record: &&Record| record.addresses.iter().any(|assigned| assigned.address == wanted.address);
            self.records.values().find(has).map(|record| (wanted.address, record.clone()))
        })
    }

    fn set(&mut self, key: &AttachmentKey, with: impl FnOnce(Record) -> Record) -> Option<Change> {
        let record = self.records.get_mut(key)?;
        let before = record.clone();
        *record = with(before.clone());
        Some(Change { key: key.clone(), before: Some(before), after: Some(record.clone()) })
    }

    fn commit(&mut self, changes: &[Change], cursors: &[(String, Option<IpAddr>)]) -> Result<(), StoreError> {
        let mut batch = Batch {
            records: changes.iter().map(|change| (change.key.clone(), change.after.clone())).collect(),
            cursors: cursors
                .iter()
                .filter_map(|(subnet, _)| Some((subnet.clone(), *self.cursors.get(subnet)?)))
                .collect(),
            drain: self.drain.clone(),
        };
        let outcome = match self.store.is_open() {
            true => self.store.commit(&batch),
            false => self.store.reopen().and_then(|on_disk| {
                if !std::mem::replace(&mut self.loaded, true) {
                    self.adopt(&on_disk);
                }
                // After a failed commit, the content of the disk is unknown. So the whole store is
                // written again from memory.
                batch = self.whole(&on_disk);
                self.store.commit(&batch)
            }),
        };
        match &outcome {
            Ok(()) => {
                if self.fault.take().is_some() {
                    tracing::info!("the store can be written again");
                }
            }
            Err(fault) => {
                if self.fault.as_ref() != Some(fault) {
                    tracing::error!(error = %fault, "no address is allocated");
                }
                self.fault = Some(fault.clone());
            }
        }
        outcome
    }

    /// Applies the content of a store that was unreadable at first, except entries that contradict
    /// memory.
    fn adopt(&mut self, on_disk: &Contents) {
        let used: BTreeSet<IpAddr> =
            self.records.values().flat_map(|record| &record.addresses).map(|a| a.address).collect();
        for (key, record) in &on_disk.records {
            let free = record.addresses.iter().all(|assigned| !used.contains(&assigned.address));
            if free && !self.records.contains_key(key) {
                self.records.insert(key.clone(), record.clone());
            }
        }
        for (subnet, cursor) in &on_disk.cursors {
            self.cursors.entry(subnet.clone()).or_insert(*cursor);
        }
        if self.drain.is_none() {
            self.drain.clone_from(&on_disk.drain);
        }
        self.restore();
    }

    /// A batch that makes the disk equal to memory.
    fn whole(&self, on_disk: &Contents) -> Batch {
        let gone = on_disk.records.keys().filter(|key| !self.records.contains_key(key));
        let there = self.records.iter().filter(|(key, record)| on_disk.records.get(key) != Some(record));
        Batch {
            records: gone
                .map(|key| (key.clone(), None))
                .chain(there.map(|(key, record)| (key.clone(), Some(record.clone()))))
                .collect(),
            cursors: self.cursors.clone(),
            drain: self.drain.clone(),
        }
    }

    fn undo(&mut self, changes: Vec<Change>, cursors: Vec<(String, Option<IpAddr>)>) {
        for Change { key, before, after } in changes.into_iter().rev() {
            for assigned in after.iter().flat_map(|record| &record.addresses) {
                self.allocator.release(assigned);
            }
            match before {
                Some(record) => drop(self.records.insert(key, record)),
                None => drop(self.records.remove(&key)),
            }
        }
        for (subnet, cursor) in cursors.into_iter().rev() {
            self.allocator.set_cursor(&subnet, cursor);
            match cursor {
                Some(cursor) => drop(self.cursors.insert(subnet, cursor)),
                None => drop(self.cursors.remove(&subnet)),
            }
        }
        self.restore();
    }

    /// Marks the addresses of records and kernel as used in the pools.
    fn restore(&mut self) {
        let recorded = self.records.values().flat_map(|record| &record.addresses);
        for address in recorded.map(|assigned| assigned.address).chain(self.unrecorded.iter().copied()) {
            self.allocator.restore(address);
        }
        for (subnet, cursor) in &self.cursors {
            if self.allocator.cursor(subnet).is_none() {
                self.allocator.set_cursor(subnet, Some(*cursor));
            }
        }
    }

    fn summary(&mut self) -> Summary {
        if self.fault.is_some() {
            // No pods arrive while the node reports that it cannot attach pods. So this commit
            // checks whether the store works again.
            let _ = self.commit(&[], &[]);
        }
        Summary {
            records: self.records.values().cloned().collect(),
            subnets: self
                .allocator
                .counts()
                .map(|(spec, counts)| SubnetUse { spec: spec.clone(), counts })
                .collect(),
            fault: self.fault.clone(),
        }
    }
}

fn later<T: Send + 'static>(answer: Answer<Result<T, IpamError>>, value: T) -> Deferred {
    Box::new(move |outcome| drop(answer.send(outcome.map(|()| value).map_err(IpamError::from))))
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
