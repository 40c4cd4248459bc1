//! The sandboxes of this node in the statuses of IPInstances. No I/O.
//!
//! The controller neither releases nor moves the address of an attached sandbox, even if its pod
//! was deleted by force. So the end of each sandbox must reach its status: after DEL, and also if
//! this agent did not see the DEL, because the node started again or the store was lost. The task
//! compares this index with the records at each list and each new report.
//!
//! Two watches show the IPInstances: those of this node's pods, and those of virtual machines that
//! leave it. IPInstances with a deletion timestamp count too: their finalizer waits for the end of
//! the sandbox.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kube::ResourceExt;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::IPInstanceSpec;
use trunkline_datapath::naming::host_ifname;

use super::instances::ObjectName;
use super::watch::Change;
use crate::ipam::Record;
use crate::reconcile::UnrecordedPod;

/// The watch that shows an IPInstance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// The watch of this node's pods.
    Own,
    /// The watch of virtual machines that leave this node.
    Departures,
}

/// A sandbox in a status.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reported {
    sandbox: String,
    address: IpAddr,
}

/// The sandboxes of this node by IPInstance.
#[derive(Debug, Default)]
pub(super) struct Sandboxes {
    own: BTreeMap<ObjectName, Reported>,
    departures: BTreeMap<ObjectName, Reported>,
}

impl Sandboxes {
    /// Applies a change of a watch. Returns whether a sandbox is new.
    pub(super) fn take(
        &mut self,
        node: &str,
        origin: Origin,
        change: &Change<Lenient<IPInstanceSpec>>,
    ) -> bool {
        let known = match origin {
            Origin::Own => &mut self.own,
            Origin::Departures => &mut self.departures,
        };
        match change {
            Change::Listed(objects) => {
                let listed = objects.iter().filter_map(|object| Some((name(object), read(object, node)?)));
                *known = listed.collect();
                !known.is_empty()
            }
            Change::Applied(object) => match read(object, node) {
                Some(new) => known.insert(name(object), new.clone()) != Some(new),
                None => {
                    known.remove(&name(object));
                    false
                }
            },
            Change::Deleted(object) => {
                known.remove(&name(object));
                false
            }
            Change::Page { .. } | Change::Failing(_) => false,
        }
    }

    /// The IPInstances with a sandbox for which `is_wanted` holds, with the sandbox.
    pub(super) fn select(&self, is_wanted: impl Fn(&str, IpAddr) -> bool) -> Vec<(ObjectName, String)> {
        let all = self.own.iter().chain(&self.departures);
        let wanted = all.filter(|(_, it)| is_wanted(&it.sandbox, it.address));
        wanted.map(|(name, it)| (name.clone(), it.sandbox.clone())).collect()
    }
}

/// Whether the device of a record exists.
pub(super) fn has_device(record: &Record, broken: &BTreeSet<String>) -> bool {
    !broken.contains(&host_ifname(&record.key.container_id, &record.key.ifname))
}

/// Whether a sandbox is attached with an address. A record without a device does not count: the
/// node started again, or another program deleted the device. A device without a record counts: the
/// store was lost.
pub(super) fn attached<'a>(
    records: &'a [Record],
    broken: &BTreeSet<String>,
    unrecorded: &'a [UnrecordedPod],
) -> impl Fn(&str, IpAddr) -> bool + 'a {
    let records = records.iter().filter(|record| has_device(record, broken));
    let attached: HashSet<(&str, IpAddr)> = records
        .flat_map(|record| {
            let addresses = record.addresses.iter();
            addresses.map(|assigned| (record.key.container_id.as_str(), assigned.address))
        })
        .collect();
    move |sandbox, address| {
        attached.contains(&(sandbox, address)) || unrecorded.iter().any(|pod| pod.container_id == sandbox)
    }
}

fn name(object: &Lenient<IPInstanceSpec>) -> ObjectName {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn read(object: &Lenient<IPInstanceSpec>, node: &str) -> Option<Reported> {
    let object = object.0.as_ref().ok()?;
    let (reported, sandbox) = object.status.as_ref()?.attached()?;
    let address = &object.spec.address.ip;
    let address = address.parse::<IpNet>().map(|prefix| prefix.addr()).or_else(|_| address.parse());
    let (sandbox, address) = (sandbox.to_owned(), address.ok()?);
    (reported == node).then_some(Reported { sandbox, address })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use trunkline_api::resources::AttachmentKind;

    use super::*;

    /// A record of a sandbox with one address.
    fn record(sandbox: &str, address: &str) -> Record {
        serde_json::from_value(json!({
            "key": {"container_id": sandbox, "ifname": "eth0"}, "phase": "attached", "conf_name": "pods", "network": "n",
            "addresses": [{"subnet": "s", "address": address}],
            "mac": [2, 0, 0, 0, 0, 1], "pod": {"namespace": "web", "name": "p", "uid": "u"},
        }))
        .unwrap()
    }

    #[test]
    fn a_sandbox_of_another_boot_is_not_attached() {
        let records = [record("runs", "10.0.0.1"), record("former", "10.0.0.2")];
        // After the start of the node the second record has no device.
        let broken = BTreeSet::from([host_ifname("former", "eth0")]);
        let unrecorded = [UnrecordedPod {
            host_ifname: "tl1".to_owned(),
            host_ifindex: 7,
            container_id: "lost".to_owned(),
            ifname: "eth0".to_owned(),
            attachment: AttachmentKind::Veth,
            addresses: vec!["10.0.0.3".parse().unwrap()],
            neighbours: BTreeSet::new(),
        }];
        let is_attached = attached(&records, &broken, &unrecorded);
        for (case, sandbox, address, expected) in [
            ("record with a device", "runs", "10.0.0.1", true),
            ("another address", "runs", "10.0.0.9", false),
            ("record of another boot", "former", "10.0.0.2", false),
            ("device without a record", "lost", "10.0.0.3", true),
            ("neither", "gone", "10.0.0.4", false),
        ] {
            assert_eq!(is_attached(sandbox, address.parse().unwrap()), expected, "{case}");
        }
    }

    fn instance(name: &str, node: &str, sandbox: &str, attached: &str) -> Lenient<IPInstanceSpec> {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {"name": name, "namespace": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "network": "rack1", "subnet": "s",
                "address": {"version": "4", "ip": "10.0.0.7/24", "mac": "02:00:00:00:00:01"},
                "binding": {"nodeName": node, "podName": "p", "podUID": "u"},
            },
            "status": {"nodeName": node, "sandboxID": sandbox, "attachedSandboxID": attached},
        }))
        .unwrap()
    }

    fn names(all: &Sandboxes) -> Vec<String> {
        all.select(|_, address| address == "10.0.0.7".parse::<IpAddr>().unwrap())
            .into_iter()
            .map(|((_, name), sandbox)| format!("{name} {sandbox}"))
            .collect()
    }

    #[test]
    fn only_sandboxes_of_this_node_and_of_an_agent_count() {
        let mut all = Sandboxes::default();
        let listed = Change::Listed(vec![
            instance("a", "n1", "one", "one"),
            instance("b", "n2", "two", "two"),
            instance("c", "n1", "three", "one"),
            instance("d", "n1", "four", ""),
        ]);
        assert!(all.take("n1", Origin::Own, &listed));
        assert_eq!(names(&all), ["a one"], "b: another node; c, d: hybridnet's daemon");
        assert!(all.take("n1", Origin::Departures, &Change::Applied(instance("e", "n1", "five", "five"))));
        assert!(!all.take("n1", Origin::Departures, &Change::Applied(instance("e", "n1", "five", "five"))));
        assert_eq!(names(&all), ["a one", "e five"]);
        // The status has the sandbox of the target.
        assert!(!all.take("n1", Origin::Departures, &Change::Applied(instance("e", "n2", "six", "six"))));
        assert!(!all.take("n1", Origin::Own, &Change::Deleted(instance("a", "n1", "one", "one"))));
        assert_eq!(names(&all), [""; 0]);
    }
}
