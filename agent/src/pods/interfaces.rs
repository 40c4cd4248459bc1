//! Pods with several interfaces.
//!
//! A runtime runs one ADD for a pod, with the name of the first interface. This ADD attaches all
//! interfaces that the pod's IPInstances name, and its DEL detaches them. Multus runs another ADD
//! for each of its interfaces, and refuses an interface that exists. The IPInstances mark these
//! interfaces, and the ADD of the first interface does not attach them.
//!
//! The records of all interfaces are on disk before the first device exists. The interface with the
//! default route is completed first, because the first device gets the default route
//! (`trunkline_datapath::attach`). If one interface fails, the request removes all attachments that it
//! began.
//!
//! After a SIGKILL between the devices, the next run deletes the records without a complete device.
//! The first record names all other interfaces, and a repeated ADD attaches those without a record.

use std::os::fd::OwnedFd;
use std::pin::pin;

use tokio::time::Instant;
use trunkline_api::attach::{Attach, AttachOptions, Attachment, Code, Failure, Interface};
use trunkline_datapath::attach::device::DeviceError;

use super::failures::{device_failure, pod_failure};
use super::{Pods, spec, target};
use crate::ipam::{AttachmentKey, Ipam, Record};
use crate::plan::LinkParameters;
use crate::telemetry::trace::Steps;

/// A record, and whether the request created it.
pub(super) struct Reserved {
    /// The record.
    pub(super) record: Record,
    /// Whether this request created it.
    pub(super) new: bool,
}

impl Pods {
    /// The records of the interfaces that are attached with the first one. An earlier request may
    /// have created some of them, and ended before the others.
    pub(super) async fn reserve_others(
        &self,
        request: &Attach,
        first: &Reserved,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Vec<Reserved>, Failure> {
        let (known, missing) = others(&self.ipam, first).await;
        let mut reserved: Vec<Reserved> =
            known.into_iter().map(|record| Reserved { record, new: false }).collect();
        let mut abandoned = pin!(abandoned);
        for ifname in &missing {
            let request = for_interface(request, ifname);
            let key = AttachmentKey { ifname: ifname.clone(), ..first.record.key.clone() };
            let with = Some(first.record.key.ifname.as_str());
            let _guard = self.locks.lock(&key).await;
            match self.reserve(&request, with, &key, deadline, abandoned.as_mut(), steps).await {
                Ok(other) => reserved.push(other),
                Err(failure) => {
                    self.take_back_all(&reserved).await;
                    if first.new {
                        self.take_back(&first.record.key).await;
                    }
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

/// The records of the interfaces that are attached with the first one, and the interfaces without a
/// record.
async fn others(ipam: &Ipam, first: &Reserved) -> (Vec<Record>, Vec<String>) {
    let Reserved { record, new } = first;
    let known = if *new { Vec::new() } else { ipam.attached_with(record.key.clone()).await };
    let is_missing = |name: &&String| known.iter().all(|other| other.key.ifname != **name);
    let missing = record.others.iter().filter(is_missing).cloned().collect();
    (known, missing)
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

#[cfg(test)]
mod tests {
    use trunkline_api::resources::AttachmentKind;
    use trunkline_datapath::kernel::OwnDevice;
    use trunkline_datapath::naming::{Alias, host_ifname};

    use super::*;
    use crate::ipam::{AddressSource, Assigned, MigrationState, NetworkSpec, PodName, Reservation, Started};
    use crate::recover::recover;

    fn reservation(ifname: &str, address: &str, others: &[&str]) -> Reservation {
        let assigned = Assigned { subnet: "s".to_owned(), address: address.parse().unwrap(), gateway: None };
        Reservation {
            key: AttachmentKey { container_id: "c".to_owned(), ifname: ifname.to_owned() },
            conf_name: "pods".to_owned(),
            wanted: AddressSource::Assigned { network: "n".to_owned(), addresses: vec![assigned] },
            mac: [2, 0, 0, 0, 0, 1],
            bandwidth: Default::default(),
            extra_prefixes: Default::default(),
            labels: Default::default(),
            netns: String::new(),
            pod: PodName::default(),
            attached_with: (ifname != "eth0").then(|| "eth0".to_owned()),
            interface: Default::default(),
            several: true,
            others: others.iter().map(|&other| other.to_owned()).collect(),
            migration: MigrationState::Active,
        }
    }

    fn device(record: &Record) -> OwnDevice {
        let AttachmentKey { container_id, ifname } = &record.key;
        OwnDevice {
            ifname: host_ifname(container_id, ifname),
            ifindex: 7,
            alias: Alias::new(container_id, ifname, AttachmentKind::Veth, true).to_string(),
            addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
            neighbours: Default::default(),
        }
    }

    /// SIGKILL after the devices of eth0 and eth2: the next run deletes the record of eth1.
    #[tokio::test]
    async fn a_repeated_add_after_sigkill_attaches_missing_interfaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        {
            let Started { ipam, .. } = Ipam::start(&path).unwrap();
            let network = NetworkSpec {
                name: "n".to_owned(),
                default_candidate: true,
                attachment: AttachmentKind::Veth,
                refused: None,
            };
            ipam.configure(vec![network], Vec::new());
            ipam.reserve(reservation("eth0", "10.0.0.1", &["eth1", "eth2"])).await.unwrap();
            ipam.reserve(reservation("eth1", "10.0.0.2", &[])).await.unwrap();
            ipam.reserve(reservation("eth2", "10.0.0.3", &[])).await.unwrap();
        }
        let Started { ipam, records, .. } = next_run(&path).await;
        let has_device = |record: &&Record| record.key.ifname != "eth1";
        let devices: Vec<OwnDevice> = records.iter().filter(has_device).map(device).collect();
        let recovery = recover(&records, &devices);
        for key in recovery.promote {
            ipam.promote(key).await.unwrap();
        }
        for key in recovery.discard {
            ipam.release(key).await.unwrap();
        }

        let key = reservation("eth0", "10.0.0.1", &[]).key;
        let first = Reserved { record: ipam.get(key).await.unwrap(), new: false };
        let (known, missing) = others(&ipam, &first).await;
        let known: Vec<String> = known.into_iter().map(|record| record.key.ifname).collect();
        assert_eq!((known, missing), (vec!["eth2".to_owned()], vec!["eth1".to_owned()]));
    }

    /// The thread of the former run closes the store after its last handle is gone.
    async fn next_run(path: &std::path::Path) -> Started {
        loop {
            let started = Ipam::start(path).unwrap();
            if started.fault.is_none() {
                return started;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}
