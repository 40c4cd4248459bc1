//! The interfaces that Multus adds to a pod.
//!
//! Multus' annotation `k8s.v1.cni.cncf.io/networks` names NetworkAttachmentDefinitions, and those with
//! the plugin `trunkline-cni` name a Network or Subnet. Such an interface needs addresses like one of
//! the annotation `networking.alibaba.com/interfaces`, which has precedence. Interfaces of other plugins
//! are ignored.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use trunkline_api::fault::{Fault, annotation_field};
use trunkline_api::interfaces::{self, Interface, MAX_INTERFACES};
use trunkline_api::kept;
use trunkline_api::kube_resource;
use trunkline_api::names::annotation;
use trunkline_api::pod::MAX_SUBNETS;

use crate::cluster::{Cluster, Key};

/// The type of Trunkline's CNI plugin.
const PLUGIN: &str = "trunkline-cni";
/// Longest kept text of a definition: one more octet than the longest list of Subnets.
const MAX_TEXT: usize = MAX_SUBNETS * (kept::MAX_NAME + 1) + 1;

/// A NetworkAttachmentDefinition of `k8s.cni.cncf.io/v1`.
#[derive(Clone, Debug, Deserialize)]
pub struct NetworkAttachmentDefinition {
    /// Name and namespace.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: NetworkAttachmentDefinitionSpec,
}

/// The desired state of a [`NetworkAttachmentDefinition`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkAttachmentDefinitionSpec {
    /// The CNI configuration, or a list of plugins, in JSON.
    pub config: String,
}

/// The addresses that a NetworkAttachmentDefinition stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultusNetwork {
    /// The Network; empty if it names only Subnets.
    pub network: String,
    /// The Subnets, as in the annotation `specified-subnet`.
    pub subnet: String,
}

impl MultusNetwork {
    /// Reads a configuration; `None` if it is another plugin's.
    pub fn read(config: &str) -> Option<MultusNetwork> {
        let config: Value = serde_json::from_str(config).ok()?;
        let plugins = config.get("plugins").and_then(Value::as_array);
        let plugin = plugins.and_then(|plugins| plugins.first()).unwrap_or(&config);
        let text = |name: &str| plugin.get(name).and_then(Value::as_str).unwrap_or_default();
        // A longer text is a fault of the pod that uses it, and so is the cut one.
        let owned = |name: &str| kept::cut(text(name), MAX_TEXT).to_owned();
        (text("type") == PLUGIN).then(|| MultusNetwork { network: owned("network"), subnet: owned("subnet") })
    }
}

kube_resource!(
    NetworkAttachmentDefinition,
    NamespaceResourceScope,
    "k8s.cni.cncf.io",
    "v1",
    "NetworkAttachmentDefinition",
    "network-attachment-definitions"
);

/// An entry of Multus' annotation. Fields that do not concern addresses are Multus' own.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    default_route: Vec<String>,
}

/// Reads `[NAMESPACE/]NAME[@INTERFACE]`, several with commas, or a JSON list.
fn entries(text: &str) -> Result<Box<dyn Iterator<Item = Entry> + '_>, String> {
    let text = text.trim();
    if text.starts_with('[') {
        let all: Vec<Entry> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        return Ok(Box::new(all.into_iter()));
    }
    let entry = |text: &str| {
        let (name, interface) = text.split_once('@').unwrap_or((text, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let owned = |text: &str| text.trim().to_owned();
        Entry {
            namespace: owned(namespace),
            name: owned(name),
            interface: owned(interface),
            ..Entry::default()
        }
    };
    // One entry at a time: an annotation of 32 KiB has 16,000 of them.
    Ok(Box::new(text.split(',').filter(|text| !text.trim().is_empty()).map(entry)))
}

/// The further interfaces of a pod, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FurtherInterfaces {
    /// The interfaces.
    pub listed: Result<Vec<Interface>, InterfacesError>,
    /// The NetworkAttachmentDefinitions that decided the result. A change of one of them may change
    /// it. At most [`MAX_DEFINITIONS`].
    pub definitions: Vec<Key>,
}

/// Most NetworkAttachmentDefinitions of [`FurtherInterfaces`]: one more than a pod can have
/// interfaces, and as many missing ones as are reported.
pub const MAX_DEFINITIONS: usize = 2 * MAX_INTERFACES + 1;

/// The reason why the further interfaces of a pod are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfacesError {
    /// An annotation has faults.
    Faults(Vec<Fault>),
    /// NetworkAttachmentDefinitions do not exist. The faults name the first [`MAX_INTERFACES`].
    Missing(Vec<Fault>),
}

impl InterfacesError {
    /// The faults, whatever their kind.
    pub fn into_faults(self) -> Vec<Fault> {
        match self {
            InterfacesError::Faults(faults) | InterfacesError::Missing(faults) => faults,
        }
    }
}

/// Reads the further interfaces of a pod, by its own list or by Multus' annotation. Reading ends at the
/// entry that exceeds [`MAX_INTERFACES`], since a definition can have texts of several KiB.
pub fn interfaces(cluster: &Cluster, pod: &Key, annotations: &BTreeMap<String, String>) -> FurtherInterfaces {
    let mut definitions = Vec::new();
    let listed = match interfaces::read(&pod.name, annotations) {
        Err(faults) => Err(InterfacesError::Faults(faults)),
        Ok(own) => match annotations.get(annotation::MULTUS_NETWORKS) {
            Some(networks) if own.is_empty() && cluster.multus.is_listed() => {
                of_multus(cluster, pod, networks, &mut definitions)
            }
            _ => Ok(own),
        },
    };
    FurtherInterfaces { listed, definitions }
}

fn of_multus(
    cluster: &Cluster,
    pod: &Key,
    networks: &str,
    definitions: &mut Vec<Key>,
) -> Result<Vec<Interface>, InterfacesError> {
    let field = annotation_field(annotation::MULTUS_NETWORKS);
    let fault =
        |field: String, message: String| Fault { kind: "Pod", name: pod.name.to_string(), field, message };
    let entries =
        entries(networks).map_err(|message| InterfacesError::Faults(vec![fault(field.clone(), message)]))?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (index, entry) in entries.enumerate() {
        let namespace = if entry.namespace.is_empty() { &*pod.namespace } else { entry.namespace.as_str() };
        let definition = Key::new(namespace, entry.name.as_str());
        match cluster.multus.get(&definition) {
            Some(None) => continue,
            None => missing.push(fault(
                format!("{field}[{index}]"),
                format!(
                    "there is no NetworkAttachmentDefinition {definition}: name an existing one, or create it"
                ),
            )),
            Some(Some(_)) if found.len() == MAX_INTERFACES => {
                definitions.push(definition);
                let message = format!(
                    "more than {MAX_INTERFACES} interfaces of Trunkline are listed, and at most {MAX_INTERFACES} are \
                     allowed: list fewer"
                );
                missing.push(fault(field, message));
                return Err(InterfacesError::Faults(missing));
            }
            Some(Some(network)) => found.push(Interface {
                // Multus numbers the networks from 1 on.
                name: if entry.interface.is_empty() { format!("net{}", index + 1) } else { entry.interface },
                network: network.network.clone(),
                subnet: network.subnet.clone(),
                addresses: match entry.ips.as_slice() {
                    [] => Vec::new(),
                    ips => vec![ips.iter().map(|ip| without_length(ip)).collect::<Vec<_>>().join("/")],
                },
                macs: if entry.mac.is_empty() { Vec::new() } else { vec![entry.mac] },
                default_route: !entry.default_route.is_empty(),
                by_multus: true,
                ..Interface::default()
            }),
        }
        definitions.push(definition);
        if missing.len() == MAX_INTERFACES {
            break;
        }
    }
    if !missing.is_empty() {
        return Err(InterfacesError::Missing(missing));
    }
    let faults = interfaces::check(&pod.name, &field, &found);
    if faults.is_empty() { Ok(found) } else { Err(InterfacesError::Faults(faults)) }
}

fn without_length(address: &str) -> &str {
    address.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        let network = |network: &str, subnet: &str| {
            Some(MultusNetwork { network: network.to_owned(), subnet: subnet.to_owned() })
        };
        cluster.multus.begin();
        cluster.multus.set(Key::new("web", "storage"), network("storage", ""));
        cluster.multus.set(Key::new("infra", "media"), network("", "m4/m6"));
        cluster.multus.set(Key::new("web", "macvlan"), None);
        assert!(cluster.multus.end().is_empty());
        cluster
    }

    fn read_all(cluster: &Cluster, pairs: &[(&str, &str)]) -> FurtherInterfaces {
        let annotations = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        interfaces(cluster, &Key::new("web", "p"), &annotations.collect())
    }

    fn read(cluster: &Cluster, pairs: &[(&str, &str)]) -> Result<Vec<Interface>, Vec<Fault>> {
        read_all(cluster, pairs).listed.map_err(InterfacesError::into_faults)
    }

    #[test]
    fn configurations_of_trunkline_name_a_network() {
        let read = MultusNetwork::read;
        let network = read(r#"{"type": "trunkline-cni", "network": "a"}"#).unwrap();
        assert_eq!((network.network.as_str(), network.subnet.as_str()), ("a", ""));
        let list = r#"{"cniVersion": "1.0.0", "plugins": [{"type": "trunkline-cni", "subnet": "s"}, {"type": "tuning"}]}"#;
        assert_eq!(read(list).unwrap().subnet, "s");
        for other in ["", "{}", r#"{"type": "macvlan"}"#, r#"{"plugins": []}"#] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn networks_of_multus_are_interfaces() {
        let cluster = cluster();
        let names = |text: &str| -> Vec<(String, String)> {
            let all = read(&cluster, &[(annotation::MULTUS_NETWORKS, text)]).unwrap();
            all.into_iter().map(|one| (one.name, format!("{}{}", one.network, one.subnet))).collect()
        };
        let pair = |name: &str, of: &str| (name.to_owned(), of.to_owned());
        assert_eq!(names("storage"), [pair("net1", "storage")]);
        assert_eq!(
            names("macvlan, storage@data0,infra/media"),
            [pair("data0", "storage"), pair("net3", "m4/m6")]
        );
        assert!(names("").is_empty());
        let json = r#"[{"name": "media", "namespace": "infra", "ips": ["10.9.0.7/24", "fd00:9::7/64"],
                        "mac": "02:00:00:00:00:01", "default-route": ["10.9.0.1"], "cni-args": {}}]"#;
        let all = read(&cluster, &[(annotation::MULTUS_NETWORKS, json)]).unwrap();
        assert_eq!(all[0].addresses, ["10.9.0.7/fd00:9::7"]);
        assert!(
            all[0].by_multus
                && all[0].default_route
                && all[0].name == "net1"
                && all[0].macs == ["02:00:00:00:00:01"]
        );
        let own = (annotation::INTERFACES, r#"[{"name": "a", "network": "b"}]"#);
        let both = read(&cluster, &[own, (annotation::MULTUS_NETWORKS, "storage")]).unwrap();
        assert_eq!(both.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(!both[0].by_multus);
    }

    #[test]
    fn faults_name_the_annotation_of_multus() {
        for (text, fault) in [
            ("storage,nowhere", "networks][1]: there is no NetworkAttachmentDefinition web/nowhere"),
            ("[{", "k8s.v1.cni.cncf.io/networks]: EOF"),
            ("storage@a,infra/media@a", "cncf.io/networks][1].name: `a` is listed twice"),
        ] {
            let faults = read(&cluster(), &[(annotation::MULTUS_NETWORKS, text)]).unwrap_err();
            assert!(faults[0].to_string().contains(fault), "{}", faults[0]);
        }
        // Without the kind, or before its list, nothing is known.
        let unknown = read(&Cluster::default(), &[(annotation::MULTUS_NETWORKS, "nowhere")]);
        assert_eq!(unknown, Ok(Vec::new()));
    }

    /// The annotation of a tenant: 16,000 entries in 32 KiB.
    #[test]
    fn reading_of_a_long_list_ends_at_the_bound() {
        let mut cluster = cluster();
        let text = Some(MultusNetwork { network: "n".repeat(MAX_TEXT), subnet: String::new() });
        cluster.multus.set(Key::new("web", "a"), text);
        let long = |entry: &str| format!("{entry},").repeat(16_370);
        for (networks, count, most) in [
            (long("a"), 1, MAX_INTERFACES + 1),
            (long("nowhere"), MAX_INTERFACES, MAX_INTERFACES),
            (format!("nowhere,{}", long("a")), 2, MAX_INTERFACES + 2),
            (format!("{},{}", ["a"; 8].join(","), long("nowhere")), MAX_INTERFACES, 2 * MAX_INTERFACES),
            // Interfaces of other plugins have no bound.
            (format!("{}a", long("macvlan")), 0, 1),
        ] {
            let all = read_all(&cluster, &[(annotation::MULTUS_NETWORKS, &networks)]);
            let faults = all.listed.map_err(InterfacesError::into_faults).err().unwrap_or_default();
            assert_eq!((faults.len(), all.definitions.len()), (count, most), "{faults:?}");
            assert!(all.definitions.len() <= MAX_DEFINITIONS);
        }
        let faults = read(&cluster, &[(annotation::MULTUS_NETWORKS, &long("a"))]).unwrap_err();
        assert_eq!(
            faults[0].to_string(),
            "Pod p: metadata.annotations[k8s.v1.cni.cncf.io/networks]: more than 8 interfaces of Trunkline are listed, \
             and at most 8 are allowed: list fewer"
        );
    }
}
