//! Namespaces and pods as the API server has them, and their conversion to inputs.
//!
//! The deserializer skips all other fields. A value that the API server would not accept is left
//! out: one object must not block a watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::ObjectMeta;
use serde::Deserialize;
use trunkline_api::kube::{ClusterNetworkPolicyObject, NetworkPolicyObject};
use trunkline_api::names::{POLICY_MODE_AUDIT, annotation, label};
use trunkline_api::network_policy::Read;
use trunkline_api::service::Protocol;
use trunkline_api::{kube_resource, null_default};

use super::feed::{PodInput, PolicyObject};
use super::input::{ClusterPolicy, NamedPort, Namespace, NetworkPolicy, ObjectKey, Pod};
use super::labels::Labels;

/// The used parts of a pod.
#[derive(Clone, Debug, Deserialize)]
pub struct PodManifest {
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
    #[serde(rename = "podIP", deserialize_with = "null_default")]
    pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "null_default")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    #[serde(deserialize_with = "null_default")]
    ip: String,
}

impl From<PodManifest> for PodInput {
    fn from(PodManifest { metadata, spec, status }: PodManifest) -> PodInput {
        let static_uid = metadata.annotations.and_then(|mut all| all.remove(annotation::CONFIG_MIRROR));
        let addresses = status.pod_ips.iter().map(|address| address.ip.as_str());
        let addresses = match status.pod_ips.is_empty() {
            true => vec![status.pod_ip.as_str()],
            false => addresses.collect(),
        };
        let restartable = spec.init_containers.iter().filter(|container| container.is_restartable());
        let ports = spec.containers.iter().chain(restartable).flat_map(|container| &container.ports);
        let pod = Pod {
            key: ObjectKey {
                namespace: metadata.namespace.unwrap_or_default().into(),
                name: metadata.name.unwrap_or_default().into(),
            },
            node: spec.node_name.into(),
            host_network: spec.host_network,
            labels: labels(metadata.labels),
            addresses: addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            ports: ports.filter_map(ContainerPort::read).collect(),
        };
        PodInput {
            pod,
            uid: metadata.uid.unwrap_or_default().into(),
            static_uid: static_uid.map(Arc::from),
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        }
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

/// A Namespace by its metadata.
pub fn namespace(metadata: ObjectMeta) -> Namespace {
    let mode = metadata.annotations.as_ref().and_then(|all| all.get(annotation::POLICY_MODE));
    Namespace {
        audit: mode.is_some_and(|mode| mode == POLICY_MODE_AUDIT),
        name: Arc::from(metadata.name.unwrap_or_default()),
        labels: labels(metadata.labels),
    }
}

impl Namespace {
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
            policy: read.object,
            generation: metadata.generation.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default().into(),
        }
    }
}

fn labels(labels: Option<BTreeMap<String, String>>) -> Labels {
    labels.unwrap_or_default().into_iter().collect()
}

kube_resource!(PodManifest, NamespaceResourceScope, "", "v1", "Pod", "pods");

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(changes: impl FnOnce(&mut Value)) -> PodInput {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
                "labels": {"app": "web"}, "managedFields": [{"manager": "kubectl"}],
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
        serde_json::from_value::<PodManifest>(object).unwrap().into()
    }

    #[test]
    fn a_pod_becomes_an_input() {
        let PodInput { pod, uid, static_uid, ended } = pod(|_| ());
        assert_eq!((&*uid, static_uid, ended), ("u1", None, false));
        assert_eq!((pod.key.to_string().as_str(), &*pod.node), ("shop/web-0", "n1"));
        assert!(!pod.host_network);
        assert_eq!(pod.labels.get("app"), Some("web"));
        let addresses: Vec<_> = pod.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.7", "fd00::7"]);
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
    fn invalid_ports_and_addresses_are_left_out() {
        let input = pod(|object| {
            object["spec"]["containers"] = json!([{"ports": [
                {"name": "a", "containerPort": 0}, {"name": "b", "containerPort": 70000},
                {"name": "c", "containerPort": -1}, {"name": "d", "containerPort": 1, "protocol": "QUIC"},
                {"name": null, "containerPort": 1}, {"name": "e"},
            ]}]);
            object["status"]["podIPs"] = json!([{"ip": "none"}, {"ip": null}, {"ip": "10.0.0.8"}]);
        });
        assert_eq!(input.pod.ports, []);
        assert_eq!(input.pod.addresses.len(), 1);
    }

    #[test]
    fn a_pod_without_addresses_or_node_is_read() {
        let input = pod(|object| {
            object["spec"] = json!({"containers": [{}]});
            object["status"] = Value::Null;
        });
        assert!(input.pod.addresses.is_empty() && input.pod.node.is_empty() && !input.ended);
        let input = pod(|object| object["status"]["podIPs"] = Value::Null);
        assert_eq!(input.pod.addresses.len(), 1, "podIP is used without podIPs");
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
            let metadata = json!({"name": "shop", "labels": {"team": "a"}, "annotations": annotations});
            let input = namespace(serde_json::from_value(metadata).unwrap());
            assert_eq!((&*input.name, input.audit), ("shop", audit));
            assert_eq!(input.labels.get("team"), Some("a"));
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
