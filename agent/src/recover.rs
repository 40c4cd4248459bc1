//! Compares the state of the last run: records in the store with links and routes in the kernel.
//! The result lists the attachments that continue, and the leftovers that the agent deletes.
//!
//! It is a pure comparison, so every state that a kill can leave is a row in a table of tests.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_api::bandwidth::Bandwidth;
use trunkline_datapath::kernel::OwnDevice;
use trunkline_datapath::naming::{Alias, host_ifname, pair_name};

use crate::ipam::{AttachmentKey, Phase, Record};
use crate::plan::Pod;
use crate::reconcile::UnrecordedPod;

/// The needed actions.
#[derive(Debug, Default, PartialEq)]
pub struct Recovery {
    /// Records with a device: they continue.
    pub pods: Vec<Pod>,
    /// The subset of these records that is marked as attached only now.
    pub promote: Vec<AttachmentKey>,
    /// Records of an incomplete ADD: they are deleted, together with their links.
    pub discard: Vec<AttachmentKey>,
    /// Attached records without a device: their addresses stay allocated until DEL or GC.
    pub broken: BTreeSet<String>,
    /// Complete devices without a record, because the store was lost. They continue, and their
    /// addresses are not allocated.
    pub unrecorded: Vec<UnrecordedPod>,
    /// Unusable devices: incomplete and without a record.
    pub leftover: Vec<String>,
    /// Devices of continuing pods with bandwidth limits, which are set again.
    pub limits: Vec<(String, Bandwidth)>,
}

/// Compares records with devices. A device is complete if the last run routed addresses to it. This
/// is the last step of an ADD, and the first step that a DEL reverts.
pub fn recover(records: &[Record], devices: &[OwnDevice]) -> Recovery {
    let mut recovery = Recovery::default();
    let (limiting, pairs): (Vec<&OwnDevice>, Vec<&OwnDevice>) =
        devices.iter().partition(|device| pair_name(&device.ifname).is_some());
    let mut by_name: BTreeMap<&str, &OwnDevice> =
        pairs.into_iter().map(|device| (device.ifname.as_str(), device)).collect();
    for record in records {
        let name = host_ifname(&record.key.container_id, &record.key.ifname);
        let device = by_name.remove(name.as_str());
        let complete = |device: &OwnDevice| {
            record.addresses.iter().all(|assigned| device.addresses.contains(&assigned.address))
        };
        match (record.phase, device) {
            // Missing routes of an attached record were deleted by another program, or by an
            // interrupted DEL. The pod may run, because its device exists. So the routes are
            // installed again.
            (Phase::Attached, Some(device)) => recovery.pods.push(pod(record, device)),
            (Phase::Attaching, Some(device)) if complete(device) => {
                recovery.pods.push(pod(record, device));
                recovery.promote.push(record.key.clone());
            }
            (Phase::Attaching, _) => recovery.discard.push(record.key.clone()),
            (Phase::Attached, None) => drop(recovery.broken.insert(name)),
        }
    }
    recovery.limits = records
        .iter()
        .filter(|record| !record.bandwidth.is_empty())
        .map(|record| (host_ifname(&record.key.container_id, &record.key.ifname), record.bandwidth))
        .filter(|(name, _)| recovery.pods.iter().any(|pod| pod.host_ifname == *name))
        .collect();
    for device in by_name.into_values() {
        if device.addresses.is_empty() {
            recovery.leftover.push(device.ifname.clone());
        } else {
            recovery.unrecorded.push(unrecorded(device));
        }
    }
    // A device that limits bandwidth stays if a record requests limits for its pair, or if its pod
    // has no record. Any other such device is unused.
    let limited: BTreeSet<String> = records
        .iter()
        .filter(|record| record.bandwidth.egress.is_some())
        .map(|record| host_ifname(&record.key.container_id, &record.key.ifname))
        .chain(recovery.unrecorded.iter().map(|pod| pod.host_ifname.clone()))
        .collect();
    let unwanted =
        |device: &&OwnDevice| pair_name(&device.ifname).is_none_or(|pair| !limited.contains(&pair));
    recovery.leftover.extend(limiting.into_iter().filter(unwanted).map(|device| device.ifname.clone()));
    recovery
}

fn pod(record: &Record, device: &OwnDevice) -> Pod {
    Pod {
        network: record.network.clone(),
        addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
        host_ifname: device.ifname.clone(),
        host_ifindex: device.ifindex,
        mac: record.mac,
        attachment: record.attachment,
        extra_prefixes: record.extra_prefixes.clone(),
        migration: record.migration,
        target_addresses: record.target_addresses(),
        is_virtual_machine: record.is_virtual_machine(),
    }
}

fn unrecorded(device: &OwnDevice) -> UnrecordedPod {
    let Alias { container_id, ifname, kind: attachment, .. } = Alias::read(&device.alias);
    let mut addresses = device.addresses.clone();
    addresses.sort();
    UnrecordedPod {
        host_ifname: device.ifname.clone(),
        host_ifindex: device.ifindex,
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        attachment,
        addresses,
        neighbours: device.neighbours.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use super::*;
    use trunkline_api::resources::AttachmentKind;

    use crate::ipam::{Assigned, PodName};

    fn record(container_id: &str, phase: Phase, addresses: &[&str]) -> Record {
        Record {
            key: AttachmentKey { container_id: container_id.to_owned(), ifname: "eth0".to_owned() },
            phase,
            conf_name: "pods".to_owned(),
            network: "n".to_owned(),
            addresses: addresses
                .iter()
                .map(|address| Assigned {
                    subnet: "s".to_owned(),
                    address: address.parse().unwrap(),
                    gateway: None,
                })
                .collect(),
            attachment: AttachmentKind::Ipvlan,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: None,
            bandwidth: Bandwidth::default(),
            extra_prefixes: ["10.9.0.0/16".parse().unwrap()].into(),
            labels: Default::default(),
            netns: String::new(),
            pod: PodName::default(),
            attached_with: None,
            several: false,
            others: Vec::new(),
            migration: Default::default(),
            target_node: None,
            default_route: false,
            routes: Default::default(),
        }
    }

    fn device(container_id: &str, addresses: &[&str]) -> OwnDevice {
        OwnDevice {
            ifname: host_ifname(container_id, "eth0"),
            ifindex: 7,
            alias: Alias::new(container_id, "eth0", AttachmentKind::Ipvlan, false).to_string(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            neighbours: BTreeSet::new(),
        }
    }

    /// Every state that a kill in ADD or DEL, a lost store or a foreign `ip link del` can leave.
    #[test]
    fn every_state_after_a_kill_is_recovered() {
        use Phase::{Attached, Attaching};
        const BOTH: &[&str] = &["10.0.0.1", "2001:db8::1"];
        type Row = (&'static str, Option<Phase>, Option<&'static [&'static str]>, fn(&Recovery) -> bool);
        let rows: &[Row] = &[
            ("before the record", None, None, |r| *r == Recovery::default()),
            ("record only", Some(Attaching), None, |r| r.discard.len() == 1 && r.pods.is_empty()),
            ("link without routes", Some(Attaching), Some(&[]), |r| {
                r.discard.len() == 1 && r.pods.is_empty()
            }),
            ("between two routes", Some(Attaching), Some(&["10.0.0.1"]), |r| {
                r.discard.len() == 1 && r.pods.is_empty()
            }),
            ("complete, not marked", Some(Attaching), Some(BOTH), |r| {
                r.promote.len() == 1 && r.pods.len() == 1
            }),
            ("attached", Some(Attached), Some(BOTH), |r| r.promote.is_empty() && r.pods.len() == 1),
            ("DEL took the routes", Some(Attached), Some(&[]), |r| r.pods.len() == 1 && r.discard.is_empty()),
            ("DEL took the link", Some(Attached), None, |r| r.broken.len() == 1 && r.discard.is_empty()),
            ("store lost", None, Some(BOTH), |r| r.unrecorded.len() == 1 && r.leftover.is_empty()),
            ("store lost in ADD", None, Some(&[]), |r| r.leftover.len() == 1 && r.unrecorded.is_empty()),
        ];
        for (name, phase, routes, expect) in rows {
            let records: Vec<Record> = phase.iter().map(|phase| record("c1", *phase, BOTH)).collect();
            let devices: Vec<OwnDevice> = routes.iter().map(|routes| device("c1", routes)).collect();
            let recovery = recover(&records, &devices);
            assert!(expect(&recovery), "{name}: {recovery:?}");
        }
    }

    /// The device that limits a pod's egress stays as long as a record may need it.
    #[test]
    fn an_unused_limiting_device_is_removed() {
        use trunkline_datapath::naming::ifb_name;
        let limiting = |container_id: &str| OwnDevice {
            ifname: ifb_name(&host_ifname(container_id, "eth0")).unwrap(),
            ..device(container_id, &[])
        };
        let limited = |container_id: &str, phase| Record {
            bandwidth: Bandwidth {
                egress: Some(trunkline_api::bandwidth::RateLimit { rate: 1_000_000, burst: None }),
                ingress: None,
            },
            ..record(container_id, phase, &["10.0.0.1"])
        };
        let records = [
            limited("on", Phase::Attached),
            limited("broken", Phase::Attached),
            record("free", Phase::Attached, &["10.0.0.3"]),
        ];
        let devices = [
            device("on", &["10.0.0.1"]),
            device("free", &["10.0.0.3"]),
            device("lost", &["10.0.0.4"]),
            limiting("on"),
            limiting("broken"),
            limiting("free"),
            limiting("lost"),
            limiting("gone"),
        ];
        let recovery = recover(&records, &devices);
        assert_eq!(recovery.limits, [(host_ifname("on", "eth0"), records[0].bandwidth)]);
        let leftover: BTreeSet<String> = recovery.leftover.into_iter().collect();
        assert_eq!(leftover, BTreeSet::from([limiting("free").ifname, limiting("gone").ifname]));
        assert_eq!((recovery.pods.len(), recovery.unrecorded.len(), recovery.broken.len()), (2, 1, 1));
    }

    #[test]
    fn a_recovered_pod_does_not_change() {
        let records = [record("c1", Phase::Attached, &["10.0.0.1"])];
        let devices = [device("c1", &["10.0.0.1"]), device("c2", &["2001:db8::2", "10.0.0.2"])];
        let recovery = recover(&records, &devices);
        let pod = &recovery.pods[0];
        assert_eq!((pod.host_ifindex, pod.mac, pod.network.as_str()), (7, [2, 0, 0, 0, 0, 1], "n"));
        assert_eq!(pod.extra_prefixes, records[0].extra_prefixes);
        let lost = &recovery.unrecorded[0];
        assert_eq!((lost.container_id.as_str(), lost.ifname.as_str()), ("c2", "eth0"));
        let addresses: Vec<IpAddr> = vec!["10.0.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        assert_eq!(lost.addresses, addresses);
    }
}
