//! Rows: the few fields of an object that decisions need.
//!
//! A cluster has hundreds of thousands of pods and IPInstances, and the API server's JSON of one
//! object is several kilobytes. A row of an IPInstance with its own texts (name, pod, UIDs) and its
//! index entries takes about 800 octets (`cargo bench` prints the figure). Recurring texts
//! (namespaces, networks, subnets, nodes) are shared.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use trunkline_api::fault::Fault;
use trunkline_api::interfaces::{Interface, InterfaceName, InterfaceSettings, MAX_INTERFACES};
use trunkline_api::kept::{self, TooLarge};
use trunkline_api::kube::{IPInstanceObject, node_addresses};
use trunkline_api::names::{annotation, condition, finalizer};
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::{LabelSelector, MigrationTarget, Retention, parse_mac};
use trunkline_daemon::versions;

use super::interner::Interner;
use super::vm;
use crate::cluster::pod::Pod;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// Creates a key.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// The annotations and labels about networking that the controller reads; rows omit all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkingMetadata {
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// They exceed their bound. None of them is kept, and no address follows from them.
    pub too_large: Option<TooLarge>,
}

impl NetworkingMetadata {
    /// Those of a pod.
    pub fn of_pod(metadata: &ObjectMeta) -> Self {
        NetworkingMetadata::of(metadata, &kept::POD_ANNOTATIONS, &kept::POD_LABELS)
    }

    /// Those of a Namespace.
    pub fn of_namespace(metadata: &ObjectMeta) -> Self {
        NetworkingMetadata::of(metadata, &kept::NAMESPACE_ANNOTATIONS, &kept::NAMESPACE_LABELS)
    }

    fn of(metadata: &ObjectMeta, annotations: &[&str], labels: &[&str]) -> Self {
        let (all_annotations, all_labels) = (metadata.annotations.as_ref(), metadata.labels.as_ref());
        let octets = kept::octets_of(all_annotations, annotations) + kept::octets_of(all_labels, labels);
        match kept::check(octets, kept::MAX_NETWORKING) {
            Ok(()) => NetworkingMetadata {
                annotations: kept::keep(all_annotations, annotations),
                labels: kept::keep(all_labels, labels),
                too_large: None,
            },
            Err(too_large) => {
                NetworkingMetadata { too_large: Some(too_large), ..NetworkingMetadata::default() }
            }
        }
    }

    /// The fault if they exceed their bound.
    pub fn size_fault(&self, kind: &'static str, name: &str) -> Option<Fault> {
        let too_large = self.too_large?;
        let field = "metadata.annotations and metadata.labels about networks".to_owned();
        Some(Fault { kind, name: name.to_owned(), field, message: too_large.to_string() })
    }
}

/// Row of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceRow {
    /// Its version.
    pub version: u64,
    /// Its annotations and labels about networking, for pods.
    pub networking: NetworkingMetadata,
    /// All its labels, for the selectors of ServicePools. None if they exceed their bound: then no
    /// pool with a selector of Namespaces selects its Services.
    pub labels: Option<BTreeMap<String, String>>,
}

impl NamespaceRow {
    /// Row of a namespace from the API server.
    pub fn of(metadata: &ObjectMeta) -> Self {
        NamespaceRow {
            version: version(metadata),
            networking: NetworkingMetadata::of_namespace(metadata),
            labels: all_labels(metadata).ok(),
        }
    }
}

/// All labels of an object, within their bound.
///
/// # Errors
/// They exceed the bound.
pub fn all_labels(metadata: &ObjectMeta) -> Result<BTreeMap<String, String>, TooLarge> {
    kept::check(kept::octets(metadata.labels.as_ref()), kept::MAX_LABELS)?;
    Ok(metadata.labels.clone().unwrap_or_default())
}

#[cfg(test)]
impl From<NetworkingMetadata> for NamespaceRow {
    fn from(networking: NetworkingMetadata) -> Self {
        NamespaceRow { version: 0, networking, labels: Some(BTreeMap::new()) }
    }
}

/// The controller of an object, such as the StatefulSet of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `apps/v1`
    pub api_version: Arc<str>,
    /// `StatefulSet`
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
}

impl Owner {
    /// The controller among an object's owners.
    pub fn controller(references: &Option<Vec<OwnerReference>>, interner: &mut Interner) -> Option<Self> {
        let reference = references.iter().flatten().find(|reference| reference.controller == Some(true))?;
        // The API server does not limit the fields of a reference. No object has longer ones.
        let is_real = reference.api_version.len() <= kept::MAX_API_VERSION
            && [&reference.kind, &reference.name, &reference.uid]
                .iter()
                .all(|text| text.len() <= kept::MAX_NAME);
        if !is_real {
            return None;
        }
        Some(Owner {
            api_version: interner.get(&reference.api_version),
            kind: interner.get(&reference.kind),
            name: reference.name.as_str().into(),
            uid: reference.uid.as_str().into(),
        })
    }
}

/// The phase of a pod's life, as far as its addresses are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLifecycle {
    /// Running, or about to run.
    Alive,
    /// It has a deletion timestamp.
    Terminating,
    /// Evicted or completed; the object remains for inspection.
    Over,
}

/// Row of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The node it was scheduled to.
    pub node: Option<Arc<str>>,
    /// Whether it uses the node's network and has no address of its own.
    pub host_network: bool,
    /// Its controller.
    pub owner: Option<Owner>,
    /// Its networking annotations and labels.
    pub networking: NetworkingMetadata,
    /// The phase of its life.
    pub life: PodLifecycle,
    /// Whether a container runs.
    pub running: bool,
    /// Whether its phase is Running: its containers were started.
    pub started: bool,
    /// Whether its phase is Failed: all its containers have ended, and none will be restarted.
    pub failed: bool,
    /// Whether it has hybridnet's finalizer, which delays its deletion until its addresses are
    /// released or retained.
    pub finalizer: bool,
    /// The addresses that the kubelet reports.
    pub addresses: Vec<IpAddr>,
    /// Whether it gets addresses; otherwise it belongs to another CNI plugin.
    pub selected: bool,
    /// The interface of its addresses, if this is not `eth0`: [`PodRow::for_interface`].
    pub interface: Option<Arc<str>>,
}

impl PodRow {
    /// Row of a pod from the API server.
    pub fn of(pod: &Pod, selector: &LabelSelector, interner: &mut Interner) -> Self {
        let life = if pod.metadata.deletion_timestamp.is_some() {
            PodLifecycle::Terminating
        } else if pod.is_evicted() || pod.is_completed() {
            PodLifecycle::Over
        } else {
            PodLifecycle::Alive
        };
        let none = BTreeMap::new();
        let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
        PodRow {
            selected: selector.selects(labels),
            interface: None,
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            node: pod
                .spec
                .node_name
                .as_deref()
                .filter(|name| !name.is_empty())
                .map(|name| interner.get(name)),
            host_network: pod.spec.host_network,
            owner: Owner::controller(&pod.metadata.owner_references, interner),
            networking: NetworkingMetadata::of_pod(&pod.metadata),
            life,
            running: pod.is_running(),
            started: pod.has_started(),
            failed: pod.has_failed(),
            finalizer: finalizer_place(&pod.metadata).is_some(),
            addresses: pod.addresses(),
        }
    }

    /// The row for the decision about another interface than `eth0`: the pod, as if it requested the
    /// addresses of this interface. A pod that does not list the interface gets none for it.
    pub fn for_interface(&self, name: &Arc<str>, listed: Option<&Interface>) -> PodRow {
        let annotations = listed.map(|interface| interface.annotations(&self.networking.annotations));
        PodRow {
            networking: NetworkingMetadata {
                annotations: annotations.unwrap_or_default(),
                too_large: self.networking.too_large,
                ..NetworkingMetadata::default()
            },
            // The kubelet reports the addresses of eth0, and the finalizer is the pod's.
            addresses: Vec::new(),
            finalizer: false,
            selected: self.selected && listed.is_some(),
            interface: Some(Arc::clone(name)),
            ..self.clone()
        }
    }
}

/// Row of an IPInstance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its resourceVersion as a number; 0 if the API server's versions are no numbers.
    pub version: u64,
    /// Its network.
    pub network: Arc<str>,
    /// Its subnet.
    pub subnet: Arc<str>,
    /// The address.
    pub address: IpAddr,
    /// The pod's MAC address, if valid.
    pub mac: Option<[u8; 6]>,
    /// The node of the pod that uses it; none while it is retained.
    pub node: Option<Arc<str>>,
    /// The node whose agent reports a sandbox with the address, and has not reported the sandbox's
    /// end.
    pub attached: Option<Arc<str>>,
    /// The pod that uses it, or for which it is retained. None while it is retained for a virtual
    /// machine.
    pub pod: Option<Arc<str>>,
    /// The UID of the pod that uses it; empty while it is retained.
    pub pod_uid: Arc<str>,
    /// Its owner: the pod, the pod's StatefulSet, or the pod's virtual machine. Decisions compare only
    /// the kind, and the UID of a virtual machine.
    pub owner: Option<Owner>,
    /// Whether it belongs to a virtual machine, its owner, and virtual machines keep their addresses.
    pub of_vm: bool,
    /// Whether the owner is only recorded in its binding, so that it outlives the owner.
    pub outlives_owner: bool,
    /// The pod to which its virtual machine moves in a live migration.
    pub target: Option<Box<MigrationTarget>>,
    /// The UID of the pod from which its last live migration began.
    pub source_pod: Option<Arc<str>>,
    /// How long it is retained after its pod has ended, by the pod's annotation.
    pub retention: Option<Retention>,
    /// The time since which it is retained, if recorded.
    pub retained_since: Option<Timestamp>,
    /// The pod's interface, if this is not `eth0`.
    pub interface: Option<Arc<str>>,
    /// The pod's other interfaces, if this is `eth0`.
    pub other_interfaces: Box<[Arc<str>]>,
    /// The address families decided for its pod.
    pub family: Option<IpFamily>,
    /// Whether it has a deletion timestamp and waits for its finalizer.
    pub deleting: bool,
    /// The position of Trunkline's finalizer in its list, if present. Trunkline leaves other
    /// finalizers alone.
    pub finalizer: Option<u8>,
}

/// An IPInstance without a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.address.ip: {value:?} is not an address with a prefix length, such as 10.0.0.7/24")]
pub struct InvalidAddress {
    /// The value of the field.
    pub value: String,
}

impl InstanceRow {
    /// Row of an IPInstance from the API server. `retain_vms`: virtual machines keep their addresses.
    ///
    /// # Errors
    /// It has no valid address.
    pub fn of(
        object: &IPInstanceObject,
        retain_vms: bool,
        interner: &mut Interner,
    ) -> Result<Self, InvalidAddress> {
        let spec = &object.spec;
        let text = spec.address.ip.split('/').next().unwrap_or_default();
        let address = text.parse().map_err(|_| InvalidAddress { value: spec.address.ip.clone() })?;
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let noted = |name: &str| object.metadata.annotations.as_ref()?.get(name);
        let owner = Owner::controller(&object.metadata.owner_references, interner);
        let recorded = match owner {
            Some(_) => None,
            None => noted(annotation::WORKLOAD_API_VERSION).map(|api_version| {
                let referred = &spec.binding.referred_object;
                Owner {
                    api_version: interner.get(api_version),
                    kind: interner.get(&referred.kind),
                    name: interner.get(&referred.name),
                    uid: referred.uid.as_str().into(),
                }
            }),
        };
        Ok(InstanceRow {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            version: version(&object.metadata),
            network: interner.get(&spec.network),
            subnet: interner.get(&spec.subnet),
            address,
            mac: parse_mac(&spec.address.mac).ok(),
            node: some(&spec.binding.node_name).map(|name| interner.get(&name)),
            attached: object
                .status
                .as_ref()
                .and_then(|status| status.attached())
                .map(|(node, _)| interner.get(node)),
            pod: some(&spec.binding.pod_name).map(Arc::from),
            pod_uid: spec.binding.pod_uid.as_str().into(),
            outlives_owner: recorded.is_some(),
            of_vm: retain_vms && owner.as_ref().is_some_and(vm::is_virtual_machine),
            owner: owner.or(recorded),
            target: noted(annotation::MIGRATION_TARGET).and_then(|text| serde_json::from_str(text).ok()),
            source_pod: noted(annotation::MIGRATION_SOURCE_POD).map(|uid| uid.as_str().into()),
            retention: noted(annotation::IP_RETENTION).and_then(|text| text.parse().ok()),
            retained_since: noted(annotation::RETAINED_SINCE).and_then(|text| text.parse().ok()),
            interface: noted(annotation::INTERFACE)
                .and_then(|text| serde_json::from_str::<InterfaceSettings>(text).ok())
                .map(|interface| interner.get(&interface.name)),
            other_interfaces: noted(annotation::OTHER_INTERFACES)
                .map(|text| InterfaceName::read_list(text))
                .into_iter()
                .flatten()
                .take(MAX_INTERFACES)
                .map(|one| interner.get(&one.name))
                .collect(),
            family: noted(annotation::IP_FAMILY).and_then(|text| IpFamily::read(text)),
            deleting: object.metadata.deletion_timestamp.is_some(),
            finalizer: finalizer_place(&object.metadata).and_then(|place| place.try_into().ok()),
        })
    }

    /// The key under which it is allocated: that of its virtual machine, or its pod's. `own` is the
    /// IPInstance's own key.
    pub fn allocation_key(&self, own: &Key) -> Option<Key> {
        match &self.owner {
            Some(owner) if self.of_vm => Some(vm::key_of_vm(&own.namespace, &owner.name)),
            _ => self.pod_key(own),
        }
    }

    /// The pod that uses it, or for which it is retained. `own` is the IPInstance's own key.
    pub fn pod_key(&self, own: &Key) -> Option<Key> {
        Some(Key { namespace: Arc::clone(&own.namespace), name: Arc::clone(self.pod.as_ref()?) })
    }

    /// Whether it is retained for a future pod.
    pub fn is_reserved(&self) -> bool {
        self.node.is_none() && self.pod_uid.is_empty()
    }
}

/// The taint that an administrator adds to a Node without running pods.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Row of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its condition NetworkUnavailable: whether it is `True`, and the reason.
    pub unavailable: Option<(bool, Box<str>)>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Whether the taint `node.kubernetes.io/out-of-service` declares that none of its pods runs. A
    /// kubelet cannot change the taints of its Node.
    pub out_of_service: bool,
    /// Its addresses. No Service gets them from a pool that is younger than the Node.
    pub addresses: Vec<IpAddr>,
}

impl NodeRow {
    /// Row of a node from the API server.
    pub fn of(node: &Node) -> Self {
        let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
        let mut unavailable =
            conditions.filter(|condition| condition.type_ == condition::NETWORK_UNAVAILABLE);
        NodeRow {
            uid: node.metadata.uid.as_deref().unwrap_or_default().into(),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
            // A node with too many labels is in no Network with a nodeSelector.
            labels: all_labels(&node.metadata).unwrap_or_default(),
            unavailable: unavailable.next().map(|condition| {
                (condition.status == "True", condition.reason.as_deref().unwrap_or_default().into())
            }),
            deleting: node.metadata.deletion_timestamp.is_some(),
            out_of_service: node
                .spec
                .iter()
                .filter_map(|spec| spec.taints.as_ref())
                .flatten()
                .any(|taint| taint.key == OUT_OF_SERVICE),
            addresses: node_addresses(node),
        }
    }

    /// Whether one of Trunkline's labels marks the node as attached.
    pub fn is_attached(&self, label: &str) -> bool {
        self.labels.contains_key(label)
    }
}

fn finalizer_place(metadata: &ObjectMeta) -> Option<usize> {
    metadata.finalizers.iter().flatten().position(|name| name == finalizer::IP_ALLOCATED)
}

/// The resourceVersion as a number.
pub fn version(metadata: &ObjectMeta) -> u64 {
    versions::number(metadata.resource_version.as_deref())
}

/// Value of the label that names an IPInstance's pod. A label has at most 63 characters, so a
/// longer name is cut and made unique by a digest (FNV-1a, 128 bits). Trunkline looks nothing up by
/// this label; it serves as a selector for people.
pub fn pod_label(name: &str) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    let digest = name.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |digest, byte| {
        (digest ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    format!("{}{digest:032x}", name.get(..31).unwrap_or_default())
}
