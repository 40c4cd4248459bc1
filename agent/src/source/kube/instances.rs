//! The IPInstances of this node's pods, by pod. ADD takes its addresses from here. No I/O.
//!
//! The watch selects by label (`networking.alibaba.com/node`). So this index has one row for each
//! address of the node's pods, and the agent does not even decode addresses of other nodes.
//!
//! **Completeness of a pod's addresses.** The controller creates the IPInstances of a dual-stack
//! pod one after the other, so an ADD could find only half of them. Three facts can define how many
//! there will be, in this order:
//!
//! 1. the annotation `networking.alibaba.com/ip-family` on the IPInstance itself. Trunkline's
//!    controller writes it: the controller decides the family, and the annotation is in the same
//!    object that ADD waits for;
//! 2. the same annotation on the pod, if hybridnet's controller wrote the IPInstance (its webhook
//!    adds it to the pod): one read of the pod's metadata for each ADD
//!    ([`PodAddressLookup::MaybeIncomplete`]);
//! 3. otherwise the existing addresses are complete, because nothing indicates that more will
//!    follow.
//!
//! **Interfaces.** An IPInstance without the annotation `trunkline.io/interface` is of the pod's first
//! interface, and has the names of all others (`trunkline.io/other-interfaces`). So an ADD of the first
//! interface knows how many more there are.
//!
//! **The owner of an IPInstance.** Its `spec.binding` contains the pod's name and UID. The next pod
//! of a StatefulSet has the same name, and a retained address is bound to it again. During the live
//! migration of a virtual machine the target's pod has the IPInstance too ([`MigrationTarget`]), and
//! the binding has the source's pod. If the runtime
//! passes no UID, the name is enough. An IPInstance during deletion has no owner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use trunkline_api::interfaces::{self, InterfaceName, InterfaceSettings};
use trunkline_api::names::{annotation, label};
use trunkline_api::pod::{IpFamily, extra_prefixes};
use trunkline_api::resources::{
    IPInstance, IPInstanceStatus, MigrationTarget, ValueError, parse_address, parse_mac,
};

use crate::ipam::{Assigned, MigrationState, PodName};

/// Namespace and name of an object.
pub type ObjectName = (String, String);

/// Whether a pod needs an address of each family, by its annotation `ip-family`; `None` without the
/// annotation.
pub fn is_dual(annotations: &BTreeMap<String, String>) -> Option<bool> {
    let family = IpFamily::read(annotations.get(annotation::IP_FAMILY)?)?;
    Some(family.has_v4() && family.has_v6())
}

/// The used fields of one IPInstance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its network.
    pub network: String,
    /// The address and its subnet.
    pub assigned: Assigned,
    /// The pod's MAC.
    pub mac: [u8; 6],
    /// The pod's name; its namespace is the IPInstance's.
    pub pod: String,
    /// The pod's UID; empty while the address is only retained.
    pub uid: String,
    /// Whether the pod needs an address of each family; none without the controller's annotation.
    pub dual: Option<bool>,
    /// Prefixes that the pod may use as source besides its addresses, if its Network allows them.
    #[serde(default)]
    pub extra_prefixes: BTreeSet<IpNet>,
    /// The pod's interface; none for its first.
    #[serde(default)]
    pub interface: Option<InterfaceSettings>,
    /// The pod's other interfaces, on an IPInstance of its first.
    #[serde(default)]
    pub others: Vec<InterfaceName>,
    /// The sandbox and the node in its status, if an agent of Trunkline wrote it.
    pub seen: (String, String),
    /// Whether the pod is the target of a live migration, and another pod runs the virtual machine.
    #[serde(default)]
    pub awaits: bool,
}

/// An IPInstance that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {source}")]
pub struct RowError {
    field: &'static str,
    source: ValueError,
}

impl Row {
    /// Reads an IPInstance; `None` during its deletion.
    ///
    /// # Errors
    /// A field has no valid address. The error contains the field.
    pub fn read(instance: &IPInstance) -> Result<Option<Row>, RowError> {
        let (meta, spec) = (&instance.metadata, &instance.spec);
        if meta.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let field = |field| move |source| RowError { field, source };
        let text = &spec.address.ip;
        let address = text
            .parse::<IpNet>()
            .map(|prefix| prefix.addr())
            .or_else(|_| parse_address(text))
            .map_err(field("spec.address.ip"))?;
        let gateway = match spec.address.gateway.as_str() {
            "" => None,
            text => Some(parse_address(text).map_err(field("spec.address.gateway"))?),
        };
        let mac = parse_mac(&spec.address.mac).map_err(field("spec.address.mac"))?;
        let or_label = |field: &str, name: &str| match field {
            "" => meta.labels.get(name).cloned().unwrap_or_default(),
            field => field.to_owned(),
        };
        let target = migration_target(instance);
        let awaits = target.as_ref().is_some_and(|target| !is_bound(instance, target));
        let status = instance.status.as_ref();
        let seen = status.and_then(IPInstanceStatus::attached).unwrap_or_default();
        Ok(Some(Row {
            network: spec.network.clone(),
            assigned: Assigned { subnet: spec.subnet.clone(), address, gateway },
            mac,
            pod: target.as_ref().map_or_else(
                || or_label(&spec.binding.pod_name, label::POD),
                |target| target.pod_name.clone(),
            ),
            uid: target.as_ref().map_or_else(
                || or_label(&spec.binding.pod_uid, label::POD_UID),
                |target| target.pod_uid.clone(),
            ),
            dual: is_dual(&meta.annotations),
            extra_prefixes: extra_prefixes(&meta.name, &meta.annotations).unwrap_or_else(|faults| {
                for fault in faults {
                    let name = format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name);
                    let (field, message) = (fault.field, fault.message);
                    tracing::warn!("IPInstance {name}: {field}: {message}: the whole annotation is ignored");
                }
                BTreeSet::new()
            }),
            interface: match meta.annotations.get(annotation::INTERFACE) {
                None => None,
                Some(text) => Some(serde_json::from_str(text).map_err(|_| RowError {
                    field: "metadata.annotations[trunkline.io/interface]",
                    source: ValueError {
                        value: text.clone(),
                        expected: "the JSON of an interface, such as {\"name\":\"net1\"}",
                    },
                })?),
            },
            others: InterfaceName::read_list(
                meta.annotations.get(annotation::OTHER_INTERFACES).map(String::as_str).unwrap_or_default(),
            ),
            seen: (seen.1.to_owned(), seen.0.to_owned()),
            awaits,
        }))
    }
}

/// The addresses of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses {
    /// Its network.
    pub network: String,
    /// IPv4 first.
    pub addresses: Vec<Assigned>,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Prefixes that the pod may use as source besides its addresses, if its Network allows them.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// The interface; none for the pod's first.
    pub interface: Option<InterfaceSettings>,
    /// Whether the pod has further interfaces.
    pub several: bool,
    /// The names of the interfaces that the ADD of the pod's first attaches too.
    pub others: Vec<String>,
    /// Its part in a live migration.
    pub migration: MigrationState,
}

/// Result of a look-up of a pod's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAddressLookup {
    /// All of them.
    Complete(PodAddresses),
    /// These addresses, and the index does not show whether more will follow.
    MaybeIncomplete(PodAddresses),
    /// Not all; the missing part as text.
    Missing(String),
    /// They contradict each other; the contradiction as text.
    Conflicting(String),
}

/// The index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    rows: BTreeMap<ObjectName, Row>,
    /// The IPInstances of each pod.
    pods: BTreeMap<ObjectName, Vec<String>>,
}

impl Index {
    /// Replaces a row. `None` removes it. Returns whether anything changed.
    pub fn set(&mut self, name: ObjectName, row: Option<Row>) -> bool {
        if self.rows.get(&name) == row.as_ref() {
            return false;
        }
        if let Some(old) = self.rows.remove(&name) {
            let pod = (name.0.clone(), old.pod);
            if let Some(names) = self.pods.get_mut(&pod) {
                names.retain(|known| *known != name.1);
                if names.is_empty() {
                    self.pods.remove(&pod);
                }
            }
        }
        if let Some(row) = row {
            self.pods.entry((name.0.clone(), row.pod.clone())).or_default().push(name.1.clone());
            self.rows.insert(name, row);
        }
        true
    }

    /// Replaces all rows. Returns whether anything changed.
    pub fn replace(&mut self, rows: impl IntoIterator<Item = (ObjectName, Row)>) -> bool {
        let mut index = Index::default();
        for (name, row) in rows {
            index.set(name, Some(row));
        }
        let changed = index.rows != self.rows;
        *self = index;
        changed
    }

    /// All rows.
    pub fn rows(&self) -> &BTreeMap<ObjectName, Row> {
        &self.rows
    }

    /// The IPInstances of a pod that have one of these addresses, with their rows.
    pub fn of<'a>(&'a self, pod: &'a PodName) -> impl Iterator<Item = (ObjectName, &'a Row)> {
        let names = self.pods.get(&(pod.namespace.clone(), pod.name.clone()));
        names.into_iter().flatten().filter_map(move |name| {
            let name = (pod.namespace.clone(), name.clone());
            let row = self.rows.get(&name)?;
            Some((name, row))
        })
    }

    /// The addresses of an interface of a pod. `dual`: the families from the pod's own annotation, if it
    /// was requested.
    pub fn find(&self, pod: &PodName, ifname: &str, dual: Option<bool>) -> PodAddressLookup {
        let title = format!("pod {}/{}", pod.namespace, pod.name);
        // A runtime may use another name for the first interface, if the pod has no further ones.
        let mut first = self.of(pod).filter(|(_, row)| row.interface.is_none());
        let has_others = first.any(|(_, row)| !row.others.is_empty());
        let is_listed = self.of(pod).any(|(_, row)| row.others.iter().any(|other| other.name == ifname));
        let is_named = |row: &Row| row.interface.as_ref().is_some_and(|interface| interface.name == ifname);
        let named = is_listed || self.of(pod).any(|(_, row)| is_named(row));
        if has_others && !named && ifname != interfaces::FIRST {
            return PodAddressLookup::Conflicting(format!(
                "{title} does not list interface {ifname}: add it to the pod's annotation {}",
                annotation::INTERFACES
            ));
        }
        let title = if named { format!("interface {ifname} of {title}") } else { title };
        let mut rows: Vec<&Row> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        let of_interface = |row: &Row| if named { is_named(row) } else { row.interface.is_none() };
        for (_, row) in self.of(pod).filter(|(_, row)| of_interface(row)) {
            if pod.uid.is_empty() && !row.uid.is_empty() || row.uid == pod.uid {
                rows.push(row);
            } else {
                others.push(&row.uid);
            }
        }
        rows.sort_by_key(|row| row.assigned.address);
        let Some(first) = rows.first() else {
            return PodAddressLookup::Missing(match others.first() {
                None => format!("{title} has no IPInstance on this node yet"),
                Some(&"") => format!("the IPInstance of {title} is not bound to it yet"),
                Some(uid) => {
                    format!("the IPInstance of {title} is still bound to UID {uid}, the pod's is {}", pod.uid)
                }
            });
        };
        for pair in rows.windows(2) {
            let (one, other) = (&pair[0].assigned.address, &pair[1].assigned.address);
            if one.is_ipv4() == other.is_ipv4() {
                return PodAddressLookup::Conflicting(format!(
                    "{title} has {one} and {other}, of one family: delete one of its IPInstances"
                ));
            }
            if pair[0].network != pair[1].network {
                return PodAddressLookup::Conflicting(format!(
                    "the IPInstances of {title} are of two networks, {} and {}: delete one",
                    pair[0].network, pair[1].network
                ));
            }
        }
        let given = PodAddresses {
            network: first.network.clone(),
            addresses: rows.iter().map(|row| row.assigned.clone()).collect(),
            mac: first.mac,
            extra_prefixes: rows.iter().flat_map(|row| row.extra_prefixes.iter().copied()).collect(),
            interface: first.interface.clone(),
            several: first.interface.is_some() || rows.iter().any(|row| !row.others.is_empty()),
            others: rows
                .iter()
                .max_by_key(|row| row.others.len())
                .into_iter()
                .flat_map(|row| row.others.iter().filter(|other| !other.by_multus))
                .map(|other| other.name.clone())
                .collect(),
            migration: match rows.iter().any(|row| row.awaits) {
                true => MigrationState::Inactive,
                false => MigrationState::Active,
            },
        };
        match rows.iter().find_map(|row| row.dual).or(dual) {
            _ if rows.len() == 2 => PodAddressLookup::Complete(given),
            Some(false) => PodAddressLookup::Complete(given),
            Some(true) => {
                let address = first.assigned.address;
                let other = if address.is_ipv4() { "IPv6" } else { "IPv4" };
                PodAddressLookup::Missing(format!("{title} has {address}, and no {other} IPInstance yet"))
            }
            None => PodAddressLookup::MaybeIncomplete(given),
        }
    }

    /// The pods with an address, attached or not.
    pub fn bound(&self) -> impl Iterator<Item = PodName> {
        let bound = self.rows.iter().filter(|(_, row)| !row.uid.is_empty());
        bound.map(|((namespace, _), row)| PodName {
            namespace: namespace.clone(),
            name: row.pod.clone(),
            uid: row.uid.clone(),
        })
    }

    /// Whether a pod of this node has an address of this network or subnet.
    pub fn uses(&self, kind: &str, name: &str) -> bool {
        self.rows.values().any(|row| match kind {
            "Network" => row.network == name,
            _ => row.assigned.subnet == name,
        })
    }
}

/// The target of a virtual machine's live migration. The label has the target's node, so this node's
/// watch shows the IPInstance to the agent of this node only, and the ADD of the target's pod gets the
/// address. [`placed`] has the node of the binding, which runs the virtual machine.
pub(super) fn migration_target(instance: &IPInstance) -> Option<MigrationTarget> {
    let target = instance.metadata.annotations.get(annotation::MIGRATION_TARGET)?;
    let target: MigrationTarget = serde_json::from_str(target).ok()?;
    (instance.metadata.labels.get(label::NODE) == Some(&target.node_name)).then_some(target)
}

/// Whether the binding has the target's pod.
fn is_bound(instance: &IPInstance, target: &MigrationTarget) -> bool {
    instance.spec.binding.pod_uid == target.pod_uid
}

/// The target of a live migration, if the agent of its node reports in the status that the virtual
/// machine runs there. The agent learns that earlier than the API server.
pub(super) fn arrived_at(instance: &IPInstance) -> Option<MigrationTarget> {
    let reported = instance.status.as_ref()?;
    migration_target(instance)
        .filter(|target| target.node_name == reported.node_name && target.pod_name == reported.pod_name)
}

/// The address and node of an overlay's IPInstance, if it has both.
pub fn placed(instance: &IPInstance) -> Option<(IpAddr, String)> {
    let arrived = arrived_at(instance).map(|target| target.node_name);
    let node = Some(arrived.as_ref().unwrap_or(&instance.spec.binding.node_name))
        .filter(|node| !node.is_empty())
        .or_else(|| instance.metadata.labels.get(label::NODE))?;
    let going = instance.metadata.deletion_timestamp.is_some();
    let prefix: IpNet = instance.spec.address.ip.parse().ok().filter(|_| !going && !node.is_empty())?;
    Some((prefix.addr(), node.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(ip: &str, uid: &str, family: &str) -> IPInstance {
        let mut instance: IPInstance = serde_json::from_value(serde_json::json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {"name": ip.replace(['.', ':', '/'], "-"), "namespace": "web"},
            "spec": {
                "network": "rack1", "subnet": if ip.contains(':') { "s6" } else { "s4" },
                "address": {"version": if ip.contains(':') { "6" } else { "4" }, "ip": ip, "mac": "02:12:34:00:00:01"},
                "binding": {"nodeName": "n1", "podName": "p", "podUID": uid},
            },
        }))
        .unwrap();
        if !family.is_empty() {
            instance.metadata.annotations.insert(annotation::IP_FAMILY.to_owned(), family.to_owned());
        }
        instance
    }

    fn index(rows: &[(&str, &str, &str)]) -> Index {
        let mut index = Index::default();
        for (ip, uid, family) in rows {
            let instance = instance(ip, uid, family);
            let name = ("web".to_owned(), instance.metadata.name.clone());
            assert!(index.set(name, Row::read(&instance).unwrap()));
        }
        index
    }

    fn pod(uid: &str) -> PodName {
        PodName { namespace: "web".to_owned(), name: "p".to_owned(), uid: uid.to_owned() }
    }

    /// The text of the result, or the addresses.
    fn summary(found: PodAddressLookup) -> String {
        let addresses = |given: PodAddresses| {
            let addresses: Vec<String> =
                given.addresses.iter().map(|assigned| assigned.address.to_string()).collect();
            addresses.join(" ")
        };
        match found {
            PodAddressLookup::Complete(given) => format!("whole {}", addresses(given)),
            PodAddressLookup::MaybeIncomplete(given) => format!("unsure {}", addresses(given)),
            PodAddressLookup::Missing(words) => format!("missing {words}"),
            PodAddressLookup::Conflicting(words) => format!("wrong {words}"),
        }
    }

    #[test]
    fn target_of_a_live_migration_has_the_address_too() {
        let mut moving = instance("10.0.0.7/24", "u", "IPv4");
        let target = r#"{"nodeName": "n2", "podName": "target", "podUID": "v"}"#;
        moving.metadata.annotations.insert(annotation::MIGRATION_TARGET.to_owned(), target.to_owned());
        for (node, pod, uid) in [("n2", "target", "v"), ("n1", "p", "u")] {
            moving.metadata.labels.insert(label::NODE.to_owned(), node.to_owned());
            let row = Row::read(&moving).unwrap().unwrap();
            assert_eq!((row.pod.as_str(), row.uid.as_str()), (pod, uid), "on {node}");
            assert_eq!(row.awaits, node == "n2", "on {node}");
            assert_eq!(placed(&moving).map(|(_, node)| node).as_deref(), Some("n1"), "the binding's node");
        }
        moving.metadata.labels.insert(label::NODE.to_owned(), "n2".to_owned());
        let reported = |pod: &str| IPInstanceStatus {
            node_name: "n2".to_owned(),
            pod_name: pod.to_owned(),
            ..IPInstanceStatus::default()
        };
        moving.status = Some(reported("former-target"));
        assert_eq!(placed(&moving).map(|(_, node)| node).as_deref(), Some("n1"), "of a failed migration");
        moving.status = Some(reported("target"));
        assert_eq!(placed(&moving).map(|(_, node)| node).as_deref(), Some("n2"), "its agent's report");
        moving.spec.binding.pod_uid = "v".to_owned();
        assert!(!Row::read(&moving).unwrap().unwrap().awaits, "the binding has the target");
    }

    #[test]
    fn completeness_of_a_pods_addresses() {
        const V4: &str = "10.0.0.7/24";
        const V6: &str = "2001:db8::7/64";
        type Row = (&'static [(&'static str, &'static str, &'static str)], Option<bool>, &'static str);
        let rows: &[Row] = &[
            (&[], None, "missing pod web/p has no IPInstance on this node yet"),
            (&[(V4, "", "IPv4")], None, "missing the IPInstance of pod web/p is not bound to it yet"),
            (
                &[(V4, "old", "IPv4")],
                None,
                "missing the IPInstance of pod web/p is still bound to UID old, the pod's is u",
            ),
            (&[(V4, "u", "IPv4")], None, "whole 10.0.0.7"),
            (&[(V4, "u", "IPv4")], Some(true), "whole 10.0.0.7"),
            (&[(V4, "u", "DualStack")], None, "missing pod web/p has 10.0.0.7, and no IPv6 IPInstance yet"),
            (
                &[(V6, "u", "DualStack")],
                None,
                "missing pod web/p has 2001:db8::7, and no IPv4 IPInstance yet",
            ),
            (&[(V6, "u", "DualStack"), (V4, "u", "DualStack")], None, "whole 10.0.0.7 2001:db8::7"),
            (
                &[(V6, "u", "DualStack"), (V4, "old", "DualStack")],
                None,
                "missing pod web/p has 2001:db8::7, and no IPv4 IPInstance yet",
            ),
            (&[(V4, "u", "")], None, "unsure 10.0.0.7"),
            (&[(V4, "u", "")], Some(false), "whole 10.0.0.7"),
            (&[(V4, "u", "")], Some(true), "missing pod web/p has 10.0.0.7, and no IPv6 IPInstance yet"),
            (&[(V4, "u", ""), (V6, "u", "")], None, "whole 10.0.0.7 2001:db8::7"),
            (
                &[(V4, "u", ""), ("10.0.0.8/24", "u", "")],
                None,
                "wrong pod web/p has 10.0.0.7 and 10.0.0.8, of one family: delete one of its IPInstances",
            ),
        ];
        for (rows, dual, expected) in rows {
            assert_eq!(summary(index(rows).find(&pod("u"), "eth0", *dual)), *expected, "{rows:?}");
        }
        assert_eq!(
            summary(index(&[(V4, "u", "IPv4")]).find(&pod(""), "eth0", None)),
            "whole 10.0.0.7",
            "the runtime passes no UID"
        );
    }

    #[test]
    fn extra_prefixes_of_all_rows_of_a_pod_count() {
        let read = |ip: &str, text: Option<&str>| {
            let mut instance = instance(ip, "u", "DualStack");
            let text = text.map(|text| (annotation::EXTRA_PREFIXES.to_owned(), text.to_owned()));
            instance.metadata.annotations.extend(text);
            Row::read(&instance).unwrap().unwrap()
        };
        let given = |v4: Option<&str>, v6: Option<&str>| {
            let mut index = Index::default();
            for (name, row) in [("four", read("10.0.0.7/24", v4)), ("six", read("2001:db8::7/64", v6))] {
                index.set(("web".to_owned(), name.to_owned()), Some(row));
            }
            match index.find(&pod("u"), "eth0", None) {
                PodAddressLookup::Complete(given) => {
                    given.extra_prefixes.iter().map(IpNet::to_string).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        };
        let both = Some("10.9.0.0/16,fd00:9::/64");
        assert!(given(None, None).is_empty());
        assert_eq!(given(both, both), ["10.9.0.0/16", "fd00:9::/64"]);
        assert_eq!(given(both, Some("10.10.0.0/16")), ["10.9.0.0/16", "10.10.0.0/16", "fd00:9::/64"]);
        // An invalid value from another writer: the pod gets no extra prefixes.
        assert!(given(Some("10.9.0.0/16,x"), None).is_empty());
    }

    #[test]
    fn interfaces_of_a_pod_have_their_own_addresses() {
        let read = |ip: &str, name: &str, value: &str| {
            let mut instance = instance(ip, "u", "IPv4");
            instance.metadata.annotations.insert(name.to_owned(), value.to_owned());
            (("web".to_owned(), instance.metadata.name.clone()), Row::read(&instance).unwrap())
        };
        let mut index = index(&[("10.0.0.7/24", "u", "IPv4")]);
        let find = |index: &Index, ifname: &str| summary(index.find(&pod("u"), ifname, None));
        assert_eq!(find(&index, "net0"), "whole 10.0.0.7", "the runtime's name of the first interface");
        let (name, row) = read("10.0.0.7/24", annotation::OTHER_INTERFACES, "net1,net2/multus");
        index.set(name, row);
        let net1 = r#"{"name": "net1", "defaultRoute": true, "routes": ["10.80.0.0/12"]}"#;
        let (name, row) = read("10.1.0.7/24", annotation::INTERFACE, net1);
        index.set(name, row);
        assert_eq!(find(&index, "eth0"), "whole 10.0.0.7");
        assert_eq!(find(&index, "net1"), "whole 10.1.0.7");
        assert_eq!(
            find(&index, "net2"),
            "missing interface net2 of pod web/p has no IPInstance on this node yet"
        );
        assert_eq!(
            find(&index, "net3"),
            "wrong pod web/p does not list interface net3: add it to the pod's annotation \
             networking.alibaba.com/interfaces"
        );
        let PodAddressLookup::Complete(eth0) = index.find(&pod("u"), "eth0", None) else { panic!() };
        assert_eq!((eth0.interface, eth0.others), (None, vec!["net1".to_owned()]));
        let PodAddressLookup::Complete(net1) = index.find(&pod("u"), "net1", None) else { panic!() };
        let settings = net1.interface.unwrap();
        assert!(settings.default_route && settings.routes.len() == 1 && net1.others.is_empty());
        let mut unreadable = instance("10.1.0.8/24", "u", "IPv4");
        unreadable.metadata.annotations.insert(annotation::INTERFACE.to_owned(), "net1".to_owned());
        let error = Row::read(&unreadable).unwrap_err().to_string();
        assert!(error.starts_with("metadata.annotations[trunkline.io/interface]: "), "{error}");
    }

    #[test]
    fn rows_are_added_changed_and_removed() {
        let mut index = index(&[("10.0.0.7/24", "old", "IPv4")]);
        let name = ("web".to_owned(), "10-0-0-7-24".to_owned());
        let bound = Row::read(&instance("10.0.0.7/24", "u", "IPv4")).unwrap();
        assert!(index.set(name.clone(), bound.clone()), "a retained address is bound to the next pod");
        assert!(!index.set(name.clone(), bound), "nothing new");
        assert_eq!(summary(index.find(&pod("u"), "eth0", None)), "whole 10.0.0.7");
        assert!(index.uses("Network", "rack1") && index.uses("Subnet", "s4") && !index.uses("Subnet", "s6"));
        let before = index.clone();
        assert!(!index.replace(before.rows().clone()), "an equal list changes nothing");
        let mut going = instance("10.0.0.7/24", "u", "IPv4");
        going.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert!(index.set(name, Row::read(&going).unwrap()));
        assert_eq!(index, Index::default(), "no row of the pod is left");
    }

    #[test]
    fn a_fault_names_its_field() {
        let mut bad = instance("10.0.0.7/24", "u", "");
        bad.spec.address.mac = "nonsense".to_owned();
        assert!(Row::read(&bad).unwrap_err().to_string().starts_with("spec.address.mac: "));
        bad.spec.address.ip = "10.0.0".to_owned();
        assert!(Row::read(&bad).unwrap_err().to_string().starts_with("spec.address.ip: "));
        assert_eq!(placed(&bad), None);
        let at = placed(&instance("10.0.0.7/24", "", "")).unwrap();
        assert_eq!((at.0.to_string(), at.1), ("10.0.0.7".to_owned(), "n1".to_owned()));
    }
}
