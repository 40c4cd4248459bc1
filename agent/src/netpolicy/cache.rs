//! The last known policies, Namespaces, pods and addresses on disk (`policies.json` beside the store), for a
//! restart while the API server does not answer.
//!
//! The kernel keeps the rules over a restart of the agent. The file is for what needs the objects:
//! the rules of new pods, and the repair of rules that another program deleted. The task writes it
//! at once after a change of policies, within 1 s for a pod of this node, and within 10 s for other
//! changes. It is replaced by a rename. Only root can read it (mode 0600): it names all pods of the
//! cluster.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use trunkline_api::network_policy::{ClusterPolicy, NetworkPolicy, ObjectKey};
use trunkline_api::service::Protocol;

use super::feed::{AddressInput, Holder, PodInput, PolicyInput, PolicyObject};
use super::input::{Change, NamedPort, Namespace, Pod};
use super::labels::Labels;

/// The version of the format. A file of another version is ignored like a missing one.
const VERSION: u32 = 2;

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    version: u32,
    node: String,
    network: Vec<(NetworkPolicy, Vec<String>)>,
    cluster: Vec<(ClusterPolicy, Vec<String>)>,
    namespaces: Vec<(String, Labels, bool)>,
    pods: Vec<CachedPod>,
    addresses: Vec<CachedAddress>,
}

/// [`Contents`] that are written: each row is made when it is written, because all rows at once need
/// a kilobyte for each pod of the cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    version: u32,
    node: &'a str,
    network: Vec<(&'a NetworkPolicy, &'a [String])>,
    cluster: Vec<(&'a ClusterPolicy, &'a [String])>,
    namespaces: Vec<(&'a str, &'a Labels, bool)>,
    pods: Pods<'a>,
    addresses: Addresses<'a>,
}

struct Addresses<'a>(&'a [AddressInput]);

impl Serialize for Addresses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().filter_map(|input| {
            let AddressInput { namespace, address, holder } = input;
            let Holder { pod, uid, node } = holder.as_ref()?;
            Some((&**namespace, address, &**pod, &**uid, &**node))
        }))
    }
}

/// Namespace, address, and the pod, UID and node of the holder.
type CachedAddress = (String, IpAddr, String, String, String);

struct Pods<'a>(&'a [PodInput]);

impl Serialize for Pods<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(CachedPod::of))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CachedPod {
    key: ObjectKey,
    node: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    host_network: bool,
    labels: Labels,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<(String, Protocol, u16)>,
    uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    static_uid: Option<String>,
}

impl CachedPod {
    fn of(PodInput { pod, uid, static_uid, .. }: &PodInput) -> CachedPod {
        CachedPod {
            key: pod.key.clone(),
            node: pod.node.to_string(),
            host_network: pod.host_network,
            labels: pod.labels.clone(),
            ports: pod.ports.iter().map(|port| (port.name.to_string(), port.protocol, port.port)).collect(),
            uid: uid.to_string(),
            static_uid: static_uid.as_ref().map(ToString::to_string),
        }
    }
}

/// The objects of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PolicyWorld {
    pub(super) network: Vec<PolicyObject<NetworkPolicy>>,
    pub(super) cluster: Vec<PolicyObject<ClusterPolicy>>,
    pub(super) namespaces: Vec<Namespace>,
    /// Without addresses.
    pub(super) pods: Vec<PodInput>,
    pub(super) addresses: Vec<AddressInput>,
}

/// The file beside the store.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("policies.json")
}

/// The inputs of the last run; empty if there are none for this node.
pub fn read(path: &Path, node: &str) -> Vec<PolicyInput> {
    let contents = match File::open(path) {
        Ok(file) => serde_json::from_reader::<_, Contents>(BufReader::new(file)).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => Err(error),
    };
    match contents {
        Ok(contents) if contents.version == VERSION && contents.node == node => inputs(contents),
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "the policies of the last run cannot be read: new pods wait for the API server");
            Vec::new()
        }
    }
}

fn inputs(contents: Contents) -> Vec<PolicyInput> {
    fn object<T>((policy, faults): (T, Vec<String>)) -> PolicyObject<T> {
        PolicyObject { policy, faults, above_bound: false, generation: 0, uid: Arc::from("") }
    }
    let namespace =
        |(name, labels, audit): (String, Labels, bool)| Namespace { name: name.into(), labels, audit };
    let pod = |pod: CachedPod| PodInput {
        others: Labels::default(),
        keys: u64::MAX,
        uid: pod.uid.into(),
        static_uid: pod.static_uid.map(Arc::from),
        version: 0,
        ended: false,
        pod: Pod {
            key: pod.key,
            node: pod.node.into(),
            host_network: pod.host_network,
            labels: pod.labels,
            addresses: Vec::new(),
            ports: pod
                .ports
                .into_iter()
                .map(|(name, protocol, port)| NamedPort { name: name.into(), protocol, port })
                .collect(),
        },
    };
    let address = |(namespace, address, pod, uid, node): CachedAddress| AddressInput {
        namespace: namespace.into(),
        address,
        holder: Some(Holder { pod: pod.into(), uid: uid.into(), node: node.into() }),
    };
    vec![
        PolicyInput::Network(Change::Listed(contents.network.into_iter().map(object).collect())),
        PolicyInput::Cluster(Change::Listed(contents.cluster.into_iter().map(object).collect())),
        PolicyInput::Namespaces(Change::Listed(contents.namespaces.into_iter().map(namespace).collect())),
        // A pod without an object stays only if it has an address.
        PolicyInput::Addresses(Change::Listed(contents.addresses.into_iter().map(address).collect())),
        PolicyInput::Pods(Change::Listed(contents.pods.into_iter().map(pod).collect())),
    ]
}

/// Writes the file.
///
/// # Errors
/// The file system's error; the old file stays.
pub(super) fn write(path: &Path, node: &str, world: &PolicyWorld) -> io::Result<()> {
    fn object<T>(object: &PolicyObject<T>) -> (&T, &[String]) {
        (&object.policy, &object.faults)
    }
    let contents = Written {
        version: VERSION,
        node,
        network: world.network.iter().map(object).collect(),
        cluster: world.cluster.iter().map(object).collect(),
        namespaces: world
            .namespaces
            .iter()
            .map(|namespace| (&*namespace.name, &namespace.labels, namespace.audit))
            .collect(),
        pods: Pods(&world.pods),
        addresses: Addresses(&world.addresses),
    };
    let new = path.with_extension("new");
    // A `.new` file from before a crash may have other permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let mut file = BufWriter::with_capacity(64 << 10, file);
    serde_json::to_writer(&mut file, &contents)?;
    file.flush()?;
    drop(file);
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use trunkline_api::resources::LabelSelector;

    use super::*;
    use crate::netpolicy::input::Direction;

    #[test]
    fn the_file_has_all_objects_and_is_for_its_node_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for_store(&folder.path().join("store.redb"));
        assert_eq!(read(&path, "n1"), []);
        let policy = NetworkPolicy {
            key: ObjectKey::new("shop", "deny"),
            pod_selector: LabelSelector::default(),
            policy_types: Some([Direction::Egress].into()),
            ingress: Vec::new(),
            egress: Vec::new(),
        };
        let faults = vec!["spec.egress[0]".to_owned()];
        let world = PolicyWorld {
            network: vec![PolicyObject { policy, faults, above_bound: false, generation: 0, uid: "".into() }],
            cluster: Vec::new(),
            namespaces: vec![Namespace {
                name: "shop".into(),
                labels: Labels::from_iter([("a", "b")]),
                audit: true,
            }],
            pods: vec![PodInput {
                pod: Pod {
                    key: ObjectKey::new("shop", "web"),
                    node: "n2".into(),
                    host_network: false,
                    labels: Labels::from_iter([("app", "web")]),
                    addresses: Vec::new(),
                    ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: 80 }],
                },
                others: Labels::default(),
                keys: u64::MAX,
                uid: "u".into(),
                static_uid: Some("s".into()),
                version: 0,
                ended: false,
            }],
            addresses: vec![AddressInput {
                namespace: "shop".into(),
                address: "fd00::1".parse().unwrap(),
                holder: Some(Holder { pod: "web".into(), uid: "u".into(), node: "n2".into() }),
            }],
        };
        for _ in 0..2 {
            write(&path, "n1", &world).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let expected = vec![
            PolicyInput::Network(Change::Listed(world.network)),
            PolicyInput::Cluster(Change::Listed(world.cluster)),
            PolicyInput::Namespaces(Change::Listed(world.namespaces)),
            PolicyInput::Addresses(Change::Listed(world.addresses)),
            PolicyInput::Pods(Change::Listed(world.pods)),
        ];
        assert_eq!(read(&path, "n1"), expected);
        assert_eq!(read(&path, "n2"), []);
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path, "n1"), []);
    }
}
