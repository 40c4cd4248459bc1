//! Namespaces, pods and IPInstances as the API server has them, and their conversion to inputs.
//!
//! The deserializer skips all other fields. A value that the API server would not accept is left
//! out: one object must not block a watch.

use std::sync::Arc;

use ipnet::IpNet;
use kube::core::ObjectMeta;
use serde::Deserialize;
use trunkline_api::kube::{ClusterNetworkPolicyObject, NetworkPolicyObject, used_metadata};
use trunkline_api::names::{POLICY_MODE_AUDIT, annotation, label};
use trunkline_api::network_policy::Read;
use trunkline_api::service::Protocol;
use trunkline_api::{kube_resource, null_default};
use trunkline_daemon::versions::number as number_of_version;

use super::feed::{AddressInput, Holder, PodInput, PolicyObject};
use super::input::{ClusterPolicy, NamedPort, Namespace, NetworkPolicy, ObjectKey, PORTS_OF_NAME, Pod};
use super::keys::{KeptLabels, LabelKeys, Labelled};
use super::labels::Labels;

/// The most named ports of a pod that are read. Further ones match no rule.
const MOST_PORTS: usize = 64;

/// The used parts of a pod.
#[derive(Clone, Debug, Deserialize)]
pub struct PodManifest {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_default")]
    spec: PodSpec,
    #[serde(default, deserialize_with = "null_default")]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    #[serde(deserialize_with = "null_default")]
    node_name: String,
    #[serde(deserialize_with = "null_default")]
    host_network: bool,
    #[serde(deserialize_with = "null_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "null_default")]
    init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "null_default")]
    ports: Vec<ContainerPort>,
    /// Only an init container has one. `Always`: it runs as long as the pod.
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    #[serde(deserialize_with = "null_default")]
    name: String,
    protocol: Option<String>,
    #[serde(deserialize_with = "null_default")]
    container_port: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    #[serde(deserialize_with = "null_default")]
    phase: String,
}

/// The used parts of an IPInstance.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceManifest {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_default")]
    spec: InstanceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct InstanceSpec {
    #[serde(deserialize_with = "null_default")]
    address: InstanceAddress,
    #[serde(deserialize_with = "null_default")]
    binding: InstanceBinding,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct InstanceAddress {
    #[serde(deserialize_with = "null_default")]
    ip: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InstanceBinding {
    #[serde(deserialize_with = "null_default")]
    node_name: String,
    #[serde(deserialize_with = "null_default")]
    pod_name: String,
    #[serde(rename = "podUID", deserialize_with = "null_default")]
    pod_uid: String,
}

/// A row, and the registration of keys up to which it has labels.
#[derive(Clone, Debug)]
pub struct Kept<T> {
    /// The row.
    pub row: T,
    /// The number of the registration.
    pub keys: u64,
}

impl PodInput {
    /// Reads a pod. Only what policies name stays in memory: a pod can have a megabyte of labels.
    pub fn read(PodManifest { metadata, spec, status }: PodManifest, keys: &LabelKeys) -> Kept<PodInput> {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let KeptLabels { own, others, keys } = keys.keep(Labelled::Pods, namespace, metadata.labels);
        let static_uid = metadata.annotations.and_then(|mut all| all.remove(annotation::CONFIG_MIRROR));
        let restartable = spec.init_containers.iter().filter(|container| container.is_restartable());
        let ports = spec.containers.iter().chain(restartable).flat_map(|container| &container.ports);
        let pod = Pod {
            key: ObjectKey {
                namespace: metadata.namespace.unwrap_or_default().into(),
                name: metadata.name.unwrap_or_default().into(),
            },
            node: spec.node_name.into(),
            host_network: spec.host_network,
            labels: own,
            addresses: Vec::new(),
            ports: named_ports(ports),
        };
        let row = PodInput {
            pod,
            others,
            keys,
            uid: metadata.uid.unwrap_or_default().into(),
            static_uid: static_uid.map(Arc::from),
            version: number_of_version(metadata.resource_version.as_deref()),
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        };
        Kept { row, keys }
    }
}

/// The named ports within the bounds. The rules of other tenants have each of them.
fn named_ports<'a>(all: impl Iterator<Item = &'a ContainerPort>) -> Vec<NamedPort> {
    let mut ports: Vec<NamedPort> = Vec::new();
    for port in all.filter_map(ContainerPort::read) {
        if ports.len() == MOST_PORTS {
            break;
        }
        let has_name = |there: &&NamedPort| there.name == port.name && there.protocol == port.protocol;
        if ports.iter().filter(has_name).count() < PORTS_OF_NAME && !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

impl AddressInput {
    /// The holder of an IPInstance, also during its deletion. During a live migration the binding has
    /// the source's pod, and the labels have the target's. None: the address cannot be read.
    pub fn read(InstanceManifest { metadata, spec }: InstanceManifest) -> Option<AddressInput> {
        let labels = metadata.labels.unwrap_or_default();
        let or_label = |field: &str, name: &str| -> Arc<str> {
            let label = || labels.get(name).map(String::as_str).unwrap_or_default();
            if field.is_empty() { label() } else { field }.into()
        };
        let (text, binding) = (&spec.address.ip, &spec.binding);
        let address = text.parse::<IpNet>().map(|prefix| prefix.addr()).or_else(|_| text.parse());
        let uid = or_label(&binding.pod_uid, label::POD_UID);
        let holder = (!uid.is_empty()).then(|| Holder {
            pod: or_label(&binding.pod_name, label::POD),
            uid,
            node: or_label(&binding.node_name, label::NODE),
        });
        let namespace = metadata.namespace.unwrap_or_default().into();
        Some(AddressInput { namespace, address: address.ok()?, holder })
    }
}

impl Container {
    fn is_restartable(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl ContainerPort {
    /// The port, if it has a name.
    fn read(&self) -> Option<NamedPort> {
        let protocol = match self.protocol.as_deref() {
            None | Some("" | "TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) => return None,
        };
        let port = u16::try_from(self.container_port).ok().filter(|port| *port != 0)?;
        (!self.name.is_empty()).then(|| NamedPort { name: self.name.as_str().into(), protocol, port })
    }
}

/// The used part of a Namespace.
#[derive(Clone, Debug, Deserialize)]
pub struct NamespaceManifest {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
}

impl Namespace {
    /// Reads a Namespace, with the labels that policies name.
    pub fn read(NamespaceManifest { metadata }: NamespaceManifest, keys: &LabelKeys) -> Kept<Namespace> {
        let mode = metadata.annotations.as_ref().and_then(|all| all.get(annotation::POLICY_MODE));
        let name = metadata.name.unwrap_or_default();
        let kept = keys.keep(Labelled::Namespaces, &name, metadata.labels);
        let keys = kept.keys;
        let row = Namespace {
            audit: mode.is_some_and(|mode| mode == POLICY_MODE_AUDIT),
            name: Arc::from(name),
            labels: kept.all(),
        };
        Kept { row, keys }
    }

    /// A Namespace without a manifest: its only label is its name.
    pub fn without_manifest(name: &str) -> Namespace {
        let labels = Labels::from_iter([(label::NAMESPACE_NAME, name)]);
        Namespace { name: name.into(), labels, audit: false }
    }
}

impl From<NetworkPolicyObject> for PolicyObject<NetworkPolicy> {
    fn from(object: NetworkPolicyObject) -> Self {
        PolicyObject::of(object.read(), object.metadata)
    }
}

impl From<ClusterNetworkPolicyObject> for PolicyObject<ClusterPolicy> {
    fn from(object: ClusterNetworkPolicyObject) -> Self {
        PolicyObject::of(object.read(), object.metadata)
    }
}

impl<T> PolicyObject<T> {
    fn of(read: Read<T>, metadata: ObjectMeta) -> PolicyObject<T> {
        PolicyObject {
            faults: read.fault_texts(),
            above_bound: read.above_bound,
            policy: read.object,
            generation: metadata.generation.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default().into(),
        }
    }
}

kube_resource!(
    InstanceManifest,
    NamespaceResourceScope,
    "networking.alibaba.com",
    "v1",
    "IPInstance",
    "ipinstances"
);
kube_resource!(PodManifest, NamespaceResourceScope, "", "v1", "Pod", "pods");
kube_resource!(NamespaceManifest, ClusterResourceScope, "", "v1", "Namespace", "namespaces");

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::{Value, json};

    use super::super::keys::NamedKeys;
    use super::*;

    fn pod(changes: impl FnOnce(&mut Value)) -> PodInput {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
                "labels": {"app": "web", "no-policy": "names-it"}, "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {"name": "web", "image": "i", "ports": [
                        {"name": "http", "containerPort": 8080, "protocol": "TCP"},
                        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                        {"containerPort": 9090},
                    ]},
                    {"name": "other", "ports": [{"name": "default", "containerPort": 81}]},
                ],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}]},
        });
        changes(&mut object);
        let keys = LabelKeys::default();
        keys.add(&NamedKeys::of_network(&names_app()));
        PodInput::read(serde_json::from_value(object).unwrap(), &keys).row
    }

    /// A policy that names the key `app`.
    fn names_app() -> NetworkPolicy {
        let selector = json!({"podSelector": {"matchLabels": {"app": "web"}}});
        let object = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": selector});
        PolicyObject::<NetworkPolicy>::from(serde_json::from_value::<NetworkPolicyObject>(object).unwrap())
            .policy
    }

    #[test]
    fn a_pod_becomes_an_input() {
        let PodInput { pod, uid, static_uid, version, ended, .. } = pod(|_| ());
        assert_eq!((&*uid, static_uid, version, ended), ("u1", None, 7, false));
        assert_eq!((pod.key.to_string().as_str(), &*pod.node), ("shop/web-0", "n1"));
        assert!(!pod.host_network);
        assert_eq!(pod.labels, Labels::from_iter([("app", "web")]), "no policy names the other key");
        assert_eq!(pod.addresses, Vec::<IpAddr>::new(), "a kubelet writes podIPs");
        let ports: Vec<_> = pod.ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
        assert_eq!(
            ports,
            [("http", Protocol::Tcp, 8080), ("dns", Protocol::Udp, 53), ("default", Protocol::Tcp, 81)]
        );
    }

    #[test]
    fn init_containers_have_ports_only_if_they_keep_running() {
        let names = |policy: Value| {
            let input = pod(|object| {
                object["spec"]["containers"] = Value::Null;
                object["spec"]["initContainers"] = json!([
                    {"name": "proxy", "restartPolicy": policy, "ports": [{"name": "mesh", "containerPort": 1}]},
                ]);
            });
            input.pod.ports.len()
        };
        assert_eq!((names(json!("Always")), names(json!("Never")), names(Value::Null)), (1, 0, 0));
    }

    #[test]
    fn a_pod_with_many_named_ports_is_bounded() {
        let input = pod(|object| {
            let ports = (1..2_000).map(|port| json!({"name": format!("p{port}"), "containerPort": port}));
            object["spec"]["containers"] = json!([{"ports": ports.collect::<Vec<_>>()}]);
        });
        assert_eq!(input.pod.ports.len(), MOST_PORTS);
    }

    /// Each container of a pod can have the same name of a port.
    #[test]
    fn a_pod_with_many_ports_of_one_name_is_bounded() {
        let input = pod(|object| {
            let container = |port: usize| {
                json!({"ports": [
                    {"name": "dns", "containerPort": port, "protocol": "UDP"},
                    {"name": "dns", "containerPort": port},
                ]})
            };
            // The first two containers have the same ports.
            object["spec"]["containers"] = (0..64).map(|port| container(port.max(1))).collect();
        });
        let of = |protocol| -> Vec<u16> {
            let ports = input.pod.ports.iter().filter(|port| port.protocol == protocol);
            ports.map(|port| port.port).collect()
        };
        assert_eq!((of(Protocol::Tcp), of(Protocol::Udp)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    }

    #[test]
    fn invalid_ports_are_left_out() {
        let input = pod(|object| {
            object["spec"]["containers"] = json!([{"ports": [
                {"name": "a", "containerPort": 0}, {"name": "b", "containerPort": 70000},
                {"name": "c", "containerPort": -1}, {"name": "d", "containerPort": 1, "protocol": "QUIC"},
                {"name": null, "containerPort": 1}, {"name": "e"},
            ]}]);
        });
        assert_eq!(input.pod.ports, []);
    }

    #[test]
    fn a_pod_without_status_or_node_is_read() {
        let input = pod(|object| {
            object["spec"] = json!({"containers": [{}]});
            object["status"] = Value::Null;
        });
        assert!(input.pod.node.is_empty() && !input.ended);
    }

    #[test]
    fn an_address_belongs_to_the_pod_of_the_binding() {
        let read = |changes: Value| {
            let mut object = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
                "metadata": {"name": "10-0-0-7", "namespace": "shop", "labels": {
                    "networking.alibaba.com/pod": "target", "networking.alibaba.com/pod-uid": "v",
                    "networking.alibaba.com/node": "n2",
                }},
                "spec": {
                    "network": "rack1", "subnet": "s4",
                    "address": {"version": "4", "ip": "10.0.0.7/24", "mac": "02:12:34:00:00:01"},
                    "binding": {"nodeName": "n1", "podName": "web-0", "podUID": "u1"},
                },
            });
            json_patch(&mut object, changes);
            AddressInput::read(serde_json::from_value(object).unwrap())
        };
        let holder = |pod: &str, uid: &str, node: &str| {
            Some(Holder { pod: pod.into(), uid: uid.into(), node: node.into() })
        };
        // The labels name the target of a live migration: the address is the source's until it is bound.
        let input = read(json!({})).unwrap();
        assert_eq!((&*input.namespace, input.address.to_string().as_str()), ("shop", "10.0.0.7"));
        assert_eq!(input.holder, holder("web-0", "u1", "n1"));
        // The finalizer holds the object until the end of the attachment.
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(read(deleted).unwrap().holder, holder("web-0", "u1", "n1"));
        let retained = json!({
            "metadata": {"labels": null},
            "spec": {"binding": {"nodeName": "", "podName": "web-0", "podUID": ""}},
        });
        assert_eq!(read(retained).unwrap().holder, None);
        let by_labels = json!({"spec": {"binding": null}});
        assert_eq!(read(by_labels).unwrap().holder, holder("target", "v", "n2"));
        assert_eq!(read(json!({"spec": {"address": {"ip": "10.0.0"}}})), None);
    }

    /// Merges a change as RFC 7386 does.
    fn json_patch(object: &mut Value, change: Value) {
        match change {
            Value::Object(fields) => {
                for (name, change) in fields {
                    json_patch(&mut object[name], change);
                }
            }
            value => *object = value,
        }
    }

    #[test]
    fn phases_end_a_pod() {
        for (phase, ended) in [
            ("Pending", false),
            ("Running", false),
            ("Succeeded", true),
            ("Failed", true),
            ("Unknown", false),
        ] {
            assert_eq!(pod(|object| object["status"]["phase"] = json!(phase)).ended, ended, "{phase}");
        }
    }

    #[test]
    fn a_static_pod_has_the_uid_of_the_kubelet() {
        let input = pod(|object| {
            object["metadata"]["annotations"] =
                json!({"kubernetes.io/config.mirror": "c0ffee", "kubernetes.io/config.hash": "c0ffee"});
            object["spec"]["hostNetwork"] = json!(true);
        });
        assert_eq!((&*input.uid, input.static_uid.as_deref()), ("u1", Some("c0ffee")));
        assert!(input.pod.host_network);
    }

    #[test]
    fn a_namespace_can_be_audited() {
        for (annotations, audit) in [
            (json!({"trunkline.io/policy-mode": "audit"}), true),
            (json!({"trunkline.io/policy-mode": "enforce"}), false),
            (json!({"trunkline.io/policy-mode": ""}), false),
            (Value::Null, false),
        ] {
            let labels = json!({"team": "a", "kubernetes.io/metadata.name": "shop"});
            let metadata = json!({"name": "shop", "labels": labels, "annotations": annotations});
            let object = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            let input = Namespace::read(object, &LabelKeys::default()).row;
            assert_eq!((&*input.name, input.audit), ("shop", audit));
            let name = Labels::from_iter([("kubernetes.io/metadata.name", "shop")]);
            assert_eq!(input.labels, name, "no policy names the other key");
        }
        let input = Namespace::without_manifest("shop");
        assert_eq!(input.labels.get("kubernetes.io/metadata.name"), Some("shop"));
    }

    #[test]
    fn a_policy_keeps_its_generation_and_faults() {
        let object: NetworkPolicyObject = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "shop", "uid": "u2", "generation": 3},
            "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 70000}]}]},
        }))
        .unwrap();
        let object = PolicyObject::<NetworkPolicy>::from(object);
        assert_eq!((object.generation, &*object.uid), (3, "u2"));
        assert_eq!(object.policy.key.to_string(), "shop/p");
        assert_eq!(
            object.faults,
            ["spec.ingress[0].ports[0].port: 70000 is no port: write 1 to 65535; this entry matches nothing"]
        );
    }
}
