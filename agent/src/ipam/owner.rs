//! The thread that owns allocator, records and store, and the handle that everybody else holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;

use ipnet::IpNet;
use tokio::sync::oneshot;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::names::full_name;

use super::allocator::{AddressRequest, AllocateError, Allocator, NetworkSpec};
use super::record::{Assigned, AttachmentKey, Phase, PodName, Record};
use super::store::{Batch, Contents, Store, StoreError};
use trunkline_api::pool::{Counts, Pool, PoolSpec};

/// Most requests that are answered from one transaction.
const GROUP: usize = 64;

/// Why a request is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// No address.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// An address that is given from outside is still on another attachment's record.
    #[error(
        "{address} is still attached to container {} (pod {}), whose DEL has not come",
        holder.key, full_name(&holder.pod.namespace, &holder.pod.name)
    )]
    Held {
        /// The address.
        address: IpAddr,
        /// Who has it.
        holder: Box<Record>,
    },
    /// An address that is given from outside is in the kernel, for a pod that no record knows.
    #[error(
        "{0} is on the link of a pod that no record knows (`trunkline pods` shows it as unrecorded): delete that pod"
    )]
    Unrecorded(IpAddr),
    /// No store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread has ended; the process is about to.
    #[error("the agent is stopping")]
    Stopped,
}

impl IpamError {
    /// The error in the words of DEL, which has removed the pod's link and routes before.
    pub fn on_release(&self) -> String {
        match self {
            IpamError::Store(StoreError::Io { path, reason }) => format!(
                "the pod's link and routes are removed, but store {path} cannot be written ({reason}): the pod's addresses stay \
                 taken until the runtime repeats DEL; free space or mend the disk"
            ),
            other => other.to_string(),
        }
    }
}

/// Which addresses an attachment gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// Some of this node's pools.
    Local(AddressRequest),
    /// These, which somebody else has given out for this pod.
    Assigned {
        /// The network's name.
        network: String,
        /// At most one of each family, IPv4 first.
        addresses: Vec<Assigned>,
    },
}

/// What an attach asks for.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// Whose.
    pub key: AttachmentKey,
    /// `name` of the CNI configuration.
    pub conf_name: String,
    /// Which addresses.
    pub wanted: AddressSource,
    /// MAC address of the interface in the container.
    pub mac: [u8; 6],
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// Prefixes that it may send from besides its addresses.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Path of the container's network namespace.
    pub netns: String,
    /// The pod.
    pub pod: PodName,
}

/// How full one subnet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetUse {
    /// The subnet.
    pub spec: PoolSpec,
    /// Its addresses.
    pub counts: Counts,
}

/// Everything at a glance.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Every attachment.
    pub records: Vec<Record>,
    /// Every subnet.
    pub subnets: Vec<SubnetUse>,
    /// Why no address can be given out.
    pub fault: Option<StoreError>,
}

type Answer<T> = oneshot::Sender<T>;

enum Request {
    Reserve(Box<Reservation>, Answer<Result<(Record, bool), IpamError>>),
    Attached(AttachmentKey, u32, Answer<Result<(), IpamError>>),
    Promote(AttachmentKey, Answer<Result<(), IpamError>>),
    Release(AttachmentKey, Answer<Result<Option<Record>, IpamError>>),
    Get(AttachmentKey, Answer<Option<Record>>),
    SetDrain(Option<String>, Answer<Result<(), IpamError>>),
    Configure(Vec<NetworkSpec>, Vec<Pool>),
    Unrecorded(BTreeSet<IpAddr>),
    Summary(Answer<Summary>),
}

/// What was found at the start.
pub struct Started {
    /// The way to the thread.
    pub ipam: Ipam,
    /// The records.
    pub records: Vec<Record>,
    /// That this node is drained, as [`Ipam::set_drain`] was told last.
    pub drain: Option<String>,
    /// Why the store cannot be used.
    pub fault: Option<StoreError>,
}

/// The way to the owner thread.
#[derive(Clone)]
pub struct Ipam {
    requests: mpsc::Sender<Request>,
}

impl Ipam {
    /// Opens the store and starts the thread. A store that cannot be used is no reason not to run: what is in the
    /// kernel stays, and [`Summary::fault`] says why nothing is given out.
    pub fn start(path: &Path) -> std::io::Result<Started> {
        let (store, contents) = Store::open(path);
        let owner = Owner::new(store, contents);
        let records = owner.records.values().cloned().collect();
        let (drain, fault) = (owner.drain.clone(), owner.fault.clone());
        let (requests, inbox) = mpsc::channel();
        std::thread::Builder::new().name("ipam".to_owned()).spawn(move || owner.run(&inbox))?;
        Ok(Started { ipam: Ipam { requests }, records, drain, fault })
    }

    /// The record of this attachment, made now if there is none (`true`).
    pub async fn reserve(&self, reservation: Reservation) -> Result<(Record, bool), IpamError> {
        self.request(|answer| Request::Reserve(Box::new(reservation), answer))
            .await
            .ok_or(IpamError::Stopped)?
    }

    /// The device is complete, with this MTU. Asked when this is called, in front of every later request, whenever the
    /// outcome is awaited.
    pub fn attached(
        &self,
        key: AttachmentKey,
        mtu: u32,
    ) -> impl Future<Output = Result<(), IpamError>> + Send + use<> {
        let (answer, outcome) = oneshot::channel();
        // Should nobody take it, the answer is dropped with it, and the outcome says so.
        let _ = self.requests.send(Request::Attached(key, mtu, answer));
        async { outcome.await.map_err(|_| IpamError::Stopped)? }
    }

    /// The device is complete after all: the record is of an ADD whose process was killed after its last step.
    pub async fn promote(&self, key: AttachmentKey) -> Result<(), IpamError> {
        self.request(|answer| Request::Promote(key, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// Takes the addresses back and forgets the attachment; `None` if there was none.
    pub async fn release(&self, key: AttachmentKey) -> Result<Option<Record>, IpamError> {
        self.request(|answer| Request::Release(key, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// The record of an attachment.
    pub async fn get(&self, key: AttachmentKey) -> Option<Record> {
        self.request(|answer| Request::Get(key, answer)).await.flatten()
    }

    /// Keeps over a restart that this node is drained, or that it is no more.
    pub async fn set_drain(&self, drain: Option<String>) -> Result<(), IpamError> {
        self.request(|answer| Request::SetDrain(drain, answer)).await.ok_or(IpamError::Stopped)?
    }

    /// Takes over what networks and subnets say now. Records stay as they are.
    pub fn configure(&self, networks: Vec<NetworkSpec>, pools: Vec<Pool>) {
        let _ = self.requests.send(Request::Configure(networks, pools));
    }

    /// Addresses that pods have in the kernel although no record knows them (the store was lost): they are given to
    /// nobody. Replaces what was said before.
    pub fn unrecorded(&self, addresses: BTreeSet<IpAddr>) {
        let _ = self.requests.send(Request::Unrecorded(addresses));
    }

    /// Everything at a glance; `None` when the thread has ended.
    pub async fn summary(&self) -> Option<Summary> {
        self.request(Request::Summary).await
    }

    async fn request<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (answer, reply) = oneshot::channel();
        self.requests.send(request(answer)).ok()?;
        reply.await.ok()
    }
}

/// One change in memory, with what it takes to undo it.
struct Change {
    key: AttachmentKey,
    before: Option<Record>,
    after: Option<Record>,
}

/// Sends an answer once it is known whether the commit went through.
type Deferred = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

pub(super) struct Owner {
    store: Store,
    allocator: Allocator,
    records: BTreeMap<AttachmentKey, Record>,
    cursors: BTreeMap<String, IpAddr>,
    unrecorded: BTreeSet<IpAddr>,
    drain: Option<String>,
    fault: Option<StoreError>,
    /// The store was read once: memory is the truth.
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

    /// Answers a group of requests from one transaction.
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
                Request::Release(key, answer) => match self.records.remove(&key) {
                    Some(record) => {
                        record.addresses.iter().for_each(|assigned| self.allocator.release(assigned));
                        deferred.push(later(answer, Some(record.clone())));
                        changes.push(Change { key, before: Some(record), after: None });
                    }
                    // What is already gone is gone, whatever becomes of the others' commit.
                    None => drop(answer.send(Ok(None))),
                },
                Request::Get(key, answer) => drop(answer.send(self.records.get(&key).cloned())),
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

    /// The record that is there, or a change that makes one.
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
        let Reservation { key, conf_name, wanted: _, mac, bandwidth, extra_prefixes, netns, pod } =
            reservation;
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
            netns,
            mtu: None,
            pod,
        };
        self.records.insert(key.clone(), record.clone());
        Ok(Err(Change { key, before: None, after: Some(record) }))
    }

    /// The record that has one of these addresses already.
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
                // What a failed commit left on disk is not known: memory is the truth from here on.
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
                    tracing::error!(error = %fault, "no address is given out");
                }
                self.fault = Some(fault.clone());
            }
        }
        outcome
    }

    /// Takes over what a store that could not be read at first holds, except what contradicts memory.
    fn adopt(&mut self, on_disk: &Contents) {
        let taken: BTreeSet<IpAddr> =
            self.records.values().flat_map(|record| &record.addresses).map(|a| a.address).collect();
        for (key, record) in &on_disk.records {
            let free = record.addresses.iter().all(|assigned| !taken.contains(&assigned.address));
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

    /// Everything that makes the disk what memory is.
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

    /// Marks in the pools what records and kernel say is in use.
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
            // Nobody is sent here while the node says that it cannot take pods: look whether it can by now.
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
