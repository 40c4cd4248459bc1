//! Pods with several interfaces.
//!
//! A runtime runs one ADD for a pod, with the name of the first interface. This ADD attaches all
//! interfaces that the pod's IPInstances name, and its DEL detaches them. Multus runs another ADD
//! for each of its interfaces, and refuses an interface that exists. The IPInstances mark these
//! interfaces, and the ADD of the first interface does not attach them.
//!
//! The records of all interfaces are on disk before the first device exists. The interface with the
//! default route is completed first, because the first device gets the default route
//! (`trunkline_datapath::attach`). If one interface fails, the request removes
//! all attachments that it began.

use std::os::fd::OwnedFd;
use std::pin::pin;

use tokio::time::Instant;
use trunkline_api::attach::{Attach, AttachOptions, Attachment, Code, Failure, Interface};
use trunkline_datapath::attach::device::DeviceError;

use super::{Pods, device_failure, pod_failure, spec, target};
use crate::ipam::{AttachmentKey, Record};
use crate::plan::LinkParameters;
use crate::telemetry::trace::Steps;

/// A record, and whether the request created it.
pub(super) struct Reserved {
    /// The record.
    pub(super) record: Record,
    /// Whether this request created it.
    pub(super) new: bool,
    /// The names of the interfaces to attach with it. Known only for a new record.
    pub(super) others: Vec<String>,
}

impl Pods {
    /// The records of the interfaces that are attached with the first one, created if there are none.
    pub(super) async fn reserve_others(
        &self,
        request: &Attach,
        first: &Reserved,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Vec<Reserved>, Failure> {
        if !first.new {
            let known = self.ipam.attached_with(first.record.key.clone()).await;
            let found = |record| Reserved { record, new: false, others: Vec::new() };
            return Ok(known.into_iter().map(found).collect());
        }
        let mut abandoned = pin!(abandoned);
        let mut reserved = Vec::new();
        for ifname in &first.others {
            let request = for_interface(request, ifname);
            let key = AttachmentKey { ifname: ifname.clone(), ..first.record.key.clone() };
            let with = Some(first.record.key.ifname.as_str());
            let _guard = self.locks.lock(&key).await;
            match self.reserve(&request, with, &key, deadline, abandoned.as_mut(), steps).await {
                Ok(other) => reserved.push(other),
                Err(failure) => {
                    self.take_back_all(&reserved).await;
                    self.take_back(&first.record.key).await;
                    return Err(named(failure, ifname));
                }
            }
        }
        Ok(reserved)
    }

    /// Completes the first interface and those that are attached with it. Returns the attachment of the
    /// first.
    #[expect(clippy::too_many_arguments, reason = "the second half of try_attach")]
    pub(super) async fn finish_all(
        &self,
        request: &Attach,
        first: Reserved,
        with: Vec<Reserved>,
        netns: OwnedFd,
        began: Instant,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Attachment, Failure> {
        let first_key = first.record.key.clone();
        let mut abandoned = pin!(abandoned);
        let mut all = vec![first];
        all.extend(with);
        all.sort_by_key(|reserved| (!reserved.record.default_route, reserved.record.key != first_key));
        let mut attachment = None;
        for reserved in &all {
            let key = &reserved.record.key;
            let is_first = *key == first_key;
            // The caller has the lock of the first.
            let _guard = if is_first { None } else { Some(self.locks.lock(key).await) };
            let named_mac = is_first && request.wanted.mac.is_some();
            let outcome = match netns.try_clone() {
                Ok(netns) => {
                    let abandoned = abandoned.as_mut();
                    self.finish(reserved, named_mac, netns, began, deadline, abandoned, steps).await
                }
                Err(error) => {
                    Err(Failure::new(Code::Io, format!("the network namespace was not opened: {error}")))
                }
            };
            match outcome {
                Ok(attached) if is_first => attachment = Some(attached),
                Ok(_) => {}
                Err(failure) => {
                    drop(_guard);
                    self.take_back_all(&all).await;
                    return Err(if is_first { failure } else { named(failure, &key.ifname) });
                }
            }
        }
        attachment.ok_or_else(|| Failure::new(Code::Io, "the first interface was not attached"))
    }

    /// Removes the attachments that the request began.
    async fn take_back_all(&self, reserved: &[Reserved]) {
        for reserved in reserved.iter().rev().filter(|reserved| reserved.new) {
            self.take_back(&reserved.record.key).await;
        }
    }

    /// Detaches the interfaces that were attached with this one.
    pub(super) async fn detach_others(
        &self,
        first: &AttachmentKey,
        netns: Option<&OwnedFd>,
        steps: &mut Steps,
    ) -> Result<(), Failure> {
        for Record { key, .. } in self.ipam.attached_with(first.clone()).await {
            let _guard = self.locks.lock(&key).await;
            // Without the namespace, only rules in it would remain.
            let netns = netns.and_then(|netns| netns.try_clone().ok());
            self.remove(&key, netns, steps).await.map_err(|failure| named(failure, &key.ifname))?;
        }
        Ok(())
    }

    /// Checks the interfaces that were attached with this one.
    pub(super) async fn check_others(&self, first: &AttachmentKey, netns: &OwnedFd) -> Result<(), Failure> {
        for record in self.ipam.attached_with(first.clone()).await {
            let ifname = record.key.ifname.clone();
            let parameters = self.reconcile.join(target(&record)).await.map_err(pod_failure)?;
            let parameters = LinkParameters { mtu: record.mtu, ..parameters };
            let netns = netns.try_clone().map_err(|error| {
                Failure::new(Code::Io, format!("the network namespace was not opened: {error}"))
            })?;
            self.devices.check(netns, spec(&record, parameters)).await.map_err(|error| match error {
                DeviceError::Check(_) => named(Failure::new(Code::CheckFailed, error.to_string()), &ifname),
                error => named(device_failure(error), &ifname),
            })?;
        }
        Ok(())
    }
}

/// The request for another interface of the same pod.
fn for_interface(request: &Attach, ifname: &str) -> Attach {
    Attach {
        interface: Interface {
            container_id: request.interface.container_id.clone(),
            ifname: ifname.to_owned(),
        },
        wanted: AttachOptions { labels: request.wanted.labels.clone(), ..AttachOptions::default() },
        ..request.clone()
    }
}

/// The failure, with the interface.
fn named(failure: Failure, ifname: &str) -> Failure {
    Failure { message: format!("interface {ifname}: {}", failure.message), ..failure }
}
