//! Reads a folder of manifests once.
//!
//! The source reads files `*.yaml`, `*.yml` and `*.json` directly in the folder, in the order of
//! their names. It ignores hidden files (temporary files of editors and `kubectl`, and the `..data`
//! of a mounted ConfigMap). It reports all faults of all files at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trunkline_api::manifest::{self, Resource};
use trunkline_api::names::full_name;
use trunkline_api::resources::{BgpPeer, RemoteSubnet, RemoteVtep, Secret};
use trunkline_api::validate::{self, NeighbourOverlap, ObjectSource};

use super::policies::PolicyObjects;
use super::remote::{RemoteError, subnet_row, vtep_row};
use crate::plan::intent::{Snapshot, SnapshotRefusal};
use crate::plan::remote::RemoteObjects;

/// Maximum size of a manifest file in octets: a megabyte is some thousand subnets.
const MAX_FILE: u64 = 1 << 20;

/// Facts for validation that are not in the folder.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// This node's labels: the node may be in one Underlay network only.
    pub labels: BTreeMap<String, String>,
    /// The applied snapshot: some fields cannot change.
    pub running: Option<Arc<Snapshot>>,
}

/// The content of a folder without faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FolderContent {
    /// The networks, and all other objects that the plan needs.
    pub snapshot: Snapshot,
    /// The objects for the policy task. They are no part of the plan.
    pub policies: PolicyObjects,
}

/// Reads and validates the folder.
pub fn read(folder: &Path, context: &Context) -> Result<FolderContent, SnapshotRefusal> {
    let mut faults = Vec::new();
    let mut policies = PolicyObjects::default();
    let (mut remote_subnets, mut remote_vteps) = (Vec::new(), Vec::new());
    let mut snapshot = Snapshot { labels: context.labels.clone(), ..Snapshot::default() };
    // Kind and name of each resource, and its file.
    let mut origin: BTreeMap<(&'static str, String), PathBuf> = BTreeMap::new();
    let files = match manifests(folder) {
        Ok(files) => files,
        Err(error) => {
            let fault = format!("{}: cannot be read: {error}", folder.display());
            return Err(SnapshotRefusal { faults: vec![fault] });
        }
    };
    for file in files {
        let text = match text(&file) {
            Ok(Some(text)) => text,
            // The file was deleted after the listing. The next read is already due.
            Ok(None) => continue,
            Err(error) => {
                faults.push(format!("{}: {error}", file.display()));
                continue;
            }
        };
        match manifest::parse(&text) {
            Ok(resources) => {
                for resource in resources {
                    let key = match &resource {
                        Resource::Network(network) => ("Network", network.name().to_owned()),
                        Resource::Subnet(subnet) => ("Subnet", subnet.name().to_owned()),
                        Resource::NodeInfo(node) => ("NodeInfo", node.name().to_owned()),
                        Resource::AnycastAddress(anycast) => ("AnycastAddress", anycast.name().to_owned()),
                        Resource::AgentSettings(settings) => ("AgentSettings", settings.name().to_owned()),
                        Resource::NetworkPolicy(policy) => {
                            ("NetworkPolicy", full_name(&policy.key.namespace, &policy.key.name))
                        }
                        Resource::ClusterNetworkPolicy(policy) => {
                            ("ClusterNetworkPolicy", policy.name.to_string())
                        }
                        Resource::RemoteSubnet(subnet) => ("RemoteSubnet", subnet.metadata.name.clone()),
                        Resource::RemoteVtep(vtep) => ("RemoteVtep", vtep.metadata.name.clone()),
                        Resource::Namespace(metadata) => ("Namespace", metadata.name.clone()),
                    };
                    match origin.get(&key) {
                        // The fault is reported here, because only this function knows the files.
                        Some(other) => faults.push(format!(
                            "{}: {} {}: metadata.name: {} has a resource of this name too: rename or remove one",
                            file.display(),
                            key.0,
                            key.1,
                            other.display()
                        )),
                        None => {
                            origin.insert(key, file.clone());
                            match resource {
                                Resource::Network(network) => snapshot.networks.push(*network),
                                Resource::Subnet(subnet) => snapshot.subnets.push(*subnet),
                                Resource::NodeInfo(node) => snapshot.nodes.push(*node),
                                Resource::AnycastAddress(anycast) => {
                                    snapshot.services.anycast.push(*anycast);
                                }
                                Resource::AgentSettings(settings) => {
                                    snapshot.agent_settings.push(*settings);
                                }
                                Resource::NetworkPolicy(policy) => policies.network.push(*policy),
                                Resource::ClusterNetworkPolicy(policy) => policies.cluster.push(*policy),
                                Resource::Namespace(metadata) => policies.add_namespace(*metadata),
                                Resource::RemoteSubnet(subnet) => remote_subnets.push(*subnet),
                                Resource::RemoteVtep(vtep) => remote_vteps.push(*vtep),
                            }
                        }
                    }
                }
            }
            Err(errors) => {
                faults.extend(errors.iter().map(|error| format!("{}: {error}", file.display())));
            }
        }
    }
    if faults.is_empty() {
        // The resources in a faulty file are unknown, so a resource that seems to be missing may be
        // in it.
        let in_file = |kind: &str, name: &str, words: String| {
            let file = origin.iter().find(|((k, n), _)| *k == kind && n == name).map(|(_, file)| file);
            format!("{}: {words}", file.map_or(folder, PathBuf::as_path).display())
        };
        let new = (snapshot.networks.as_slice(), snapshot.subnets.as_slice());
        let mut found = validate::validate_for_node(new.0, new.1, &context.labels).err().unwrap_or_default();
        found.extend(validate::validate_nodes(&snapshot.nodes, new.0, new.1).err().unwrap_or_default());
        found.extend(validate::neighbour_overlaps(new.0, new.1).iter().map(NeighbourOverlap::network_fault));
        for anycast in &snapshot.services.anycast {
            found.extend(validate::validate_anycast(anycast, ObjectSource::File).err().unwrap_or_default());
        }
        for settings in &snapshot.agent_settings {
            found.extend(validate::validate_agent_settings(settings).err().unwrap_or_default());
        }
        if let Some(running) = &context.running {
            let change = validate::validate_change((&running.networks, &running.subnets), new);
            found.extend(change.err().unwrap_or_default());
        }
        faults.extend(found.iter().map(|fault| in_file(fault.kind, &fault.name, fault.to_string())));
        match remote_objects(&remote_subnets, &remote_vteps) {
            Ok(objects) => snapshot.remote = (!objects.is_empty()).then(|| Arc::new(objects)),
            Err(found) => {
                let texts = found
                    .into_iter()
                    .map(|(kind, name, error)| in_file(kind, name, format!("{kind} {name}: {error}")));
                faults.extend(texts);
            }
        }
        for network in &mut snapshot.networks {
            let name = network.metadata.name.clone();
            let peers = network.spec.config.iter_mut().flat_map(|config| &mut config.bgp_peers);
            for (index, peer) in peers.enumerate() {
                let mut refuse = |field: &str, message: String| {
                    let words = format!("Network {name}: spec.config.bgpPeers[{index}].{field}: {message}");
                    faults.push(in_file("Network", &name, words));
                };
                if let Some(secret) = &peer.password_secret_ref {
                    refuse(
                        "passwordSecretRef",
                        format!("Secret {} can only be in an API server: write passwordFile", secret.name),
                    );
                }
                if let Err(error) = resolve_password(peer, &mut snapshot.files) {
                    refuse("passwordFile", error.to_string());
                }
            }
        }
    }
    if !faults.is_empty() {
        return Err(SnapshotRefusal { faults });
    }
    snapshot.networks.sort_by(|a, b| a.name().cmp(b.name()));
    snapshot.subnets.sort_by(|a, b| a.name().cmp(b.name()));
    snapshot.nodes.sort_by(|a, b| a.name().cmp(b.name()));
    snapshot.agent_settings.sort_by(|a, b| a.name().cmp(b.name()));
    snapshot.services.anycast.sort_by(|a, b| a.name().cmp(b.name()));
    // Files have no other objects for service addresses.
    snapshot.services.complete = true;
    snapshot.services.anycast_known = true;
    Ok(FolderContent { snapshot, policies })
}

/// The rows of remote clusters, or all faults, each with kind and name. The planner checks the
/// relations of the objects, as with an API server: another cluster must not stop this one.
fn remote_objects<'a>(
    subnets: &'a [RemoteSubnet],
    vteps: &'a [RemoteVtep],
) -> Result<RemoteObjects, Vec<(&'static str, &'a str, RemoteError)>> {
    let (mut objects, mut faults) = (RemoteObjects::default(), Vec::new());
    for subnet in subnets {
        let name = subnet.metadata.name.as_str();
        match subnet_row("", &subnet.spec) {
            Ok((cluster, row)) => drop(objects.set_subnet(name, &cluster, row)),
            Err(error) => faults.push(("RemoteSubnet", name, error)),
        }
    }
    for vtep in vteps {
        let name = vtep.metadata.name.as_str();
        match vtep_row("", &vtep.spec) {
            Ok((cluster, row)) => drop(objects.set_vtep(name, &cluster, row)),
            Err(error) => faults.push(("RemoteVtep", name, error)),
        }
    }
    if faults.is_empty() { Ok(objects) } else { Err(faults) }
}

/// Whether a file of this name is a manifest.
pub fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

fn manifests(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if is_manifest(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The reason for which a manifest file is not read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("is no file: remove it, or rename it without .yaml, .yml or .json")]
    NoFile,
    #[error("has {0} octets, at most {MAX_FILE} are read: split the file")]
    TooLong(u64),
}

fn text(file: &Path) -> Result<Option<String>, FileError> {
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !metadata.is_file() {
        return Err(FileError::NoFile);
    }
    if metadata.len() > MAX_FILE {
        return Err(FileError::TooLong(metadata.len()));
    }
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The reason for which a `passwordFile` has no password.
#[derive(Debug, thiserror::Error)]
enum PasswordError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is empty: write the key into it, or leave the field out", .0.display())]
    Empty(PathBuf),
    #[error("{} holds {length} octets, TCP-MD5 allows at most {}", path.display(), BgpPeer::MAX_PASSWORD)]
    TooLong { path: PathBuf, length: usize },
}

/// Reads the key from the peer's `passwordFile` into `password`.
fn resolve_password(peer: &mut BgpPeer, files: &mut Vec<PathBuf>) -> Result<(), PasswordError> {
    let Some(path) = peer.password_file.as_deref().filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let path = PathBuf::from(path);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(PasswordError::Read { path, source }),
    };
    let key = text.strip_suffix('\n').unwrap_or(&text);
    let key = key.strip_suffix('\r').unwrap_or(key);
    match key.len() {
        0 => return Err(PasswordError::Empty(path)),
        length if length > BgpPeer::MAX_PASSWORD => return Err(PasswordError::TooLong { path, length }),
        _ => {}
    }
    peer.password = Some(Secret::new(key));
    if !files.contains(&path) {
        files.push(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netpolicy::feed::PolicyInput;
    use crate::netpolicy::input::Change;

    const NETWORK: &str = "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: rack1}\n\
        spec:\n  netID: 65001\n  type: Underlay\n  mode: BGP\n  nodeSelector: {rack: rack1}\n  config:\n    bgpPeers:\n";

    fn peer(extra: &str) -> String {
        format!("{NETWORK}    - {{asn: 65000, address: 10.0.0.1{extra}}}\n")
    }

    fn subnet(name: &str, cidr: &str) -> String {
        format!(
            "apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: {name}}}\n\
             spec:\n  network: rack1\n  range: {{version: \"4\", cidr: {cidr}}}\n"
        )
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, &str)]) -> Folder {
            let folder = Folder(tempfile::tempdir().unwrap());
            for (name, text) in files {
                fs::write(folder.0.path().join(name), text).unwrap();
            }
            folder
        }

        fn content(&self) -> Result<FolderContent, String> {
            read(self.0.path(), &Context::default()).map_err(|refused| refused.to_string())
        }

        fn read(&self) -> Result<Snapshot, String> {
            self.content().map(|content| content.snapshot)
        }
    }

    #[test]
    fn only_manifests_of_the_folder_are_read() {
        let folder = Folder::new(&[
            ("b.yml", &format!("{}---\n{}", subnet("s2", "10.1.2.0/24"), subnet("s1", "10.1.1.0/24"))),
            ("a.yaml", &peer("")),
            (".hidden.yaml", "not: [yaml"),
            ("notes.txt", "not: [yaml"),
            ("empty.yaml", "# nothing yet\n"),
        ]);
        let snapshot = folder.read().unwrap();
        assert_eq!(snapshot.networks.len(), 1);
        let names: Vec<&str> = snapshot.subnets.iter().map(|subnet| subnet.name()).collect();
        assert_eq!(names, ["s1", "s2"]);
    }

    #[test]
    fn a_fault_names_file_resource_field_and_fix() {
        let network = peer("");
        for (files, words) in [
            (vec![("a.yaml", "kind: [")], "a.yaml: line 1"),
            (vec![("a.yaml", &*format!("{network}      extra: 1\n"))], "a.yaml: line"),
            (
                vec![("a.yaml", &*network), ("b.yaml", &*subnet("s", "10.1.1.7/24"))],
                "b.yaml: Subnet s: spec.range.cidr",
            ),
            (vec![("a.yaml", &*network), ("b.yaml", &*network)], "a.yaml has a resource of this name too"),
            (vec![("b.yaml", &*subnet("s", "10.1.1.0/24"))], "b.yaml: Subnet s: spec.network"),
            (
                vec![
                    ("a.yaml", &*network.replace("address: 10.0.0.1", "prefix: 10.0.0.0/8")),
                    ("b.yaml", &*subnet("s", "10.1.1.0/24")),
                ],
                "a.yaml: Network rack1: spec.config.bgpPeers[0].prefix: 10.0.0.0/8 overlaps 10.1.1.0/24 of Subnet s",
            ),
            (
                vec![("a.yaml", &*peer(", passwordFile: /nowhere/key"))],
                "bgpPeers[0].passwordFile: /nowhere/key",
            ),
            (
                vec![("a.yaml", &*peer(", passwordSecretRef: {name: tor-keys, key: rack1}"))],
                "bgpPeers[0].passwordSecretRef: Secret tor-keys can only be in an API server: \
                 write passwordFile",
            ),
        ] {
            let error = Folder::new(&files).read().unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
        let error = read(Path::new("/nowhere"), &Context::default()).unwrap_err();
        assert!(error.to_string().contains("/nowhere: cannot be read"), "{error}");
    }

    #[test]
    fn anycast_addresses_are_read_and_checked() {
        let anycast = |spec: &str| {
            let text = format!(
                "apiVersion: trunkline.io/v1alpha1\nkind: AnycastAddress\nmetadata: {{name: api}}\n\
                 spec: {{{spec}}}\n"
            );
            Folder::new(&[("a.yaml", &peer("")), ("b.yaml", &text)]).read()
        };
        let snapshot = anycast("addresses: [203.0.113.1], check: {command: [/bin/true]}").unwrap();
        assert_eq!(snapshot.services.anycast[0].spec.addresses, ["203.0.113.1"]);
        assert!(snapshot.services.complete);
        let error = anycast("addresses: [203.0.113.0/24]").unwrap_err();
        assert!(error.contains("b.yaml: AnycastAddress api: spec.addresses[0]"), "{error}");
    }

    #[test]
    fn agent_settings_are_read_and_checked() {
        let settings = |config: &str| {
            let text = format!(
                "apiVersion: trunkline.io/v1alpha1\nkind: AgentSettings\nmetadata: {{name: gpu}}\n\
                 spec:\n  config: {{{config}}}\n"
            );
            Folder::new(&[("a.yaml", &peer("")), ("b.yaml", &text)]).read()
        };
        let snapshot = settings("podMTU: 1400").unwrap();
        assert_eq!(snapshot.agent_settings[0].spec.config.pod_mtu, Some(1400));
        let error = settings("podMTU: 100").unwrap_err();
        assert!(error.contains("b.yaml: AgentSettings gpu: spec.config.podMTU: 100 is out of"), "{error}");
        let error = settings("socket: /run/x").unwrap_err();
        assert!(error.contains("AgentSettings gpu: spec.config") && error.contains("socket"), "{error}");
    }

    #[test]
    fn remote_clusters_are_read_and_checked() {
        let remote = |kind: &str, spec: &str| {
            let text = format!(
                "apiVersion: multicluster.alibaba.com/v1\nkind: {kind}\nmetadata: {{name: west.a}}\n\
                 spec: {{clusterName: west, {spec}}}\n"
            );
            Folder::new(&[("a.yaml", &text)]).read()
        };
        let subnet =
            remote("RemoteSubnet", "networkType: Overlay, range: {version: '4', cidr: 10.210.0.0/16}");
        let objects = subnet.unwrap().remote.unwrap();
        assert!(objects.clusters["west"].subnets["west.a"].overlay);
        let vtep = remote("RemoteVtep", "nodeName: n1, ip: 10.20.0.1, endpointIPList: [10.210.0.5]").unwrap();
        assert_eq!(vtep.remote.unwrap().clusters["west"].vteps["west.a"].endpoints.len(), 1);
        let error = remote("RemoteVtep", "nodeName: n1, ip: 10.20").unwrap_err();
        assert!(error.contains("a.yaml: RemoteVtep west.a: spec.ip"), "{error}");
    }

    const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: web, namespace: shop}\nspec:\n  podSelector: {matchLabels: {app: web}}\n";
    const CLUSTER_POLICY: &str = "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\n\
        metadata: {name: base}\nspec:\n  tier: Baseline\n  priority: 10\n  subject: {namespaces: {}}\n";

    #[test]
    fn policies_reach_the_policy_task_with_their_namespaces() {
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: lab\n  labels: {team: a}\n  \
            annotations: {trunkline.io/policy-mode: audit}\n";
        let folder = Folder::new(&[("a.yaml", &format!("{POLICY}---\n{CLUSTER_POLICY}---\n{namespace}"))]);
        let content = folder.content().unwrap();
        assert_eq!(content.snapshot, Folder::new(&[]).read().unwrap());
        let [network, cluster, namespaces, _, _] = content.policies.inputs();
        let PolicyInput::Network(Change::Listed(network)) = network else { panic!("{network:?}") };
        assert_eq!(network.len(), 1);
        assert_eq!(network[0].policy.key.to_string(), "shop/web");
        let PolicyInput::Cluster(Change::Listed(cluster)) = cluster else { panic!("{cluster:?}") };
        assert_eq!((cluster.len(), &*cluster[0].policy.name), (1, "base"));
        let PolicyInput::Namespaces(Change::Listed(namespaces)) = namespaces else {
            panic!("{namespaces:?}")
        };
        let rows: Vec<_> =
            namespaces.iter().map(|row| (&*row.name, row.labels.iter().count(), row.audit)).collect();
        assert_eq!(rows, [("lab", 2, true), ("shop", 1, false)]);
        let name = namespaces[0].labels.get("kubernetes.io/metadata.name");
        assert_eq!(name, Some("lab"), "the API server adds this label");
    }

    #[test]
    fn a_fault_of_a_policy_names_file_line_and_field() {
        for (text, words) in [
            (
                format!("# first\n---\n{POLICY}  ingress:\n  - ports:\n    - port: 80\n    - port: 70000\n"),
                "a.yaml: line 11: NetworkPolicy web: spec.ingress[0].ports[1].port: 70000 is no port",
            ),
            (
                format!("{POLICY}  ingres: []\n"),
                "a.yaml: line 6: NetworkPolicy web: spec.ingres: this version does not know the field",
            ),
            (format!("{POLICY}extra: 1\n"), "NetworkPolicy web: extra: unknown field `extra`"),
            (POLICY.replace("name: web", "nam: web"), "metadata.nam: unknown field `nam`"),
            (POLICY.replace(", namespace: shop", ""), "NetworkPolicy web: metadata.namespace: missing"),
            (POLICY.replace("io/v1", "io/v2"), "apiVersion: `networking.k8s.io/v2` is not known"),
            (
                format!("{CLUSTER_POLICY}  egress:\n  - action: Deny\n    to:\n    - nodes: {{}}\n"),
                "a.yaml: line 11: ClusterNetworkPolicy base: spec.egress[0].to[0].nodes: this version does not",
            ),
            (format!("{POLICY}---\n{POLICY}"), "NetworkPolicy shop/web: metadata.name"),
            (
                "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, label: {}}\n".to_owned(),
                "metadata.label",
            ),
        ] {
            let error = Folder::new(&[("a.yaml", &text)]).content().unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn changes_of_immutable_fields_are_refused() {
        let folder = Folder::new(&[("a.yaml", &peer("")), ("b.yaml", &subnet("s", "10.1.1.0/24"))]);
        let running = Some(Arc::new(folder.read().unwrap()));
        fs::write(folder.0.path().join("b.yaml"), subnet("s", "10.1.2.0/24")).unwrap();
        folder.read().unwrap();
        let context = Context { running, ..Context::default() };
        let error = read(folder.0.path(), &context).unwrap_err().to_string();
        assert!(error.contains("b.yaml: Subnet s: spec.range.cidr"), "{error}");
    }

    #[test]
    fn the_documented_manifests_are_good() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manifests");
        let (mut networks, mut subnets, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for file in manifests(&folder).unwrap() {
            for resource in manifest::parse(&fs::read_to_string(file).unwrap()).unwrap() {
                match resource {
                    Resource::Network(network) => networks.push(*network),
                    Resource::Subnet(subnet) => subnets.push(*subnet),
                    Resource::NodeInfo(node) => nodes.push(*node),
                    Resource::AnycastAddress(anycast) => {
                        validate::validate_anycast(&anycast, ObjectSource::File).unwrap();
                    }
                    Resource::AgentSettings(settings) => {
                        validate::validate_agent_settings(&settings).unwrap();
                    }
                    Resource::NetworkPolicy(_)
                    | Resource::ClusterNetworkPolicy(_)
                    | Resource::RemoteSubnet(_)
                    | Resource::RemoteVtep(_)
                    | Resource::Namespace(_) => {}
                }
            }
        }
        assert!(networks.len() >= 2 && nodes.len() >= 2);
        validate::validate(&networks, &subnets).unwrap();
        validate::validate_nodes(&nodes, &networks, &subnets).unwrap();
        assert_eq!(validate::neighbour_overlaps(&networks, &subnets), []);
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let folder = Folder::new(&[("a.yaml", "kind: ["), ("b.yaml", "kind: Pod\napiVersion: v1\n")]);
        assert_eq!(read(folder.0.path(), &Context::default()).unwrap_err().faults.len(), 2);
    }

    #[test]
    fn a_password_file_is_read_without_newline_and_never_shown() {
        let folder = Folder::new(&[("key", "s3cret\n"), ("long", &"x".repeat(81)), ("empty", "\n")]);
        let of = |file: &str| {
            let path = folder.0.path().join(file);
            Folder::new(&[("a.yaml", &peer(&format!(", passwordFile: {}", path.display())))]).read()
        };
        let snapshot = of("key").unwrap();
        assert_eq!(snapshot.networks[0].peers()[0].password().unwrap().expose(), "s3cret");
        assert_eq!(snapshot.files, [folder.0.path().join("key")]);
        assert!(!format!("{snapshot:?}").contains("s3cret"));
        assert!(of("long").unwrap_err().contains("holds 81 octets, TCP-MD5 allows at most 80"));
        assert!(of("empty").unwrap_err().contains("is empty"));
    }
}
