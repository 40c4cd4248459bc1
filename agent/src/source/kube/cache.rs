//! The last good state on disk, for a restart while the API server does not answer.
//!
//! The agent must be able to run and to restart without the API server. So this file contains the
//! last valid snapshot and the IPInstances of this node's pods. With it, an agent without an API
//! server makes the same plan and attaches pods with known addresses. The file can be out of date,
//! so the agent uses it only until the API server answers.
//!
//! **The file contains the TCP-MD5 keys**, also the keys from Secrets: without them the sessions
//! could not be established again. So only root can read it (mode 0600), it is in the store's
//! directory, and its content never appears in a log or an API answer. It is replaced by a rename:
//! after a crash, the old or the new file exists.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trunkline_api::resources::{
    AgentSettings, AnycastAddress, Network, NodeInfo, Secret, ServiceAdvertisement, ServicePool, Subnet,
};

use super::instances::{ObjectName, Row};
use crate::plan::intent::{OverlayPods, ServiceObjects, Snapshot};
use crate::plan::remote::RemoteObjects;

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    /// The node's name. The agent ignores the file of another node.
    node: String,
    labels: std::collections::BTreeMap<String, String>,
    networks: Vec<Network>,
    subnets: Vec<Subnet>,
    nodes: Vec<NodeInfo>,
    placed: Option<OverlayPods>,
    // Versions without remote clusters wrote no such field.
    #[serde(default)]
    remote: Option<RemoteObjects>,
    #[serde(default)]
    api_servers: std::collections::BTreeSet<std::net::IpAddr>,
    // Versions without service addresses wrote no such fields.
    #[serde(default)]
    service_pools: Vec<ServicePool>,
    #[serde(default)]
    service_advertisements: Vec<ServiceAdvertisement>,
    #[serde(default)]
    faulty_advertisements: bool,
    #[serde(default)]
    anycast_addresses: Vec<AnycastAddress>,
    // Versions without AgentSettings wrote no such field.
    #[serde(default)]
    agent_settings: Vec<AgentSettings>,
    /// The TCP-MD5 keys: name of the Network, index of the peer, key. The resources are stored
    /// without their secrets.
    passwords: Vec<(String, usize, String)>,
    instances: Vec<(ObjectName, Row)>,
}

/// A state that was in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The IPInstances of this node's pods.
    pub instances: Vec<(ObjectName, Row)>,
}

/// The reason for which the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// This version cannot read its content. The JSON error is left out, because its text could
    /// contain a key.
    #[error("{}: line {line}: this version cannot read the file", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line of the fault.
        line: usize,
    },
    /// The state cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// It cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Reads the file; `Ok(None)` if it does not exist or belongs to another node.
///
/// # Errors
/// The file exists and cannot be used.
pub fn read(path: &Path, node: &str) -> Result<Option<Remembered>, CacheError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CacheError::Read { path: path.to_owned(), source }),
    };
    // The text of the JSON error could contain a key.
    let contents: Contents = serde_json::from_slice(&text)
        .map_err(|error| CacheError::Content { path: path.to_owned(), line: error.line() })?;
    let Contents {
        node: of,
        labels,
        mut networks,
        subnets,
        nodes,
        placed,
        remote,
        api_servers,
        service_pools,
        service_advertisements,
        faulty_advertisements,
        anycast_addresses,
        agent_settings,
        passwords,
        instances,
    } = contents;
    if of != node {
        return Ok(None);
    }
    for (name, index, key) in passwords {
        let network = networks.iter_mut().find(|network| network.name() == name);
        let peers =
            network.and_then(|network| network.spec.config.as_mut()).map(|config| &mut config.bgp_peers);
        if let Some(peer) = peers.and_then(|peers| peers.get_mut(index)) {
            peer.password = Some(Secret::new(key));
        }
    }
    let placed = placed.map(Arc::new);
    let services = ServiceObjects {
        complete: false,
        pools: service_pools,
        advertisements: service_advertisements,
        faulty_advertisements,
        anycast_known: true,
        anycast: anycast_addresses,
    };
    let snapshot = Snapshot {
        labels,
        networks,
        subnets,
        nodes,
        overlay_pods: placed,
        remote: remote.map(Arc::new),
        api_servers,
        services,
        agent_settings,
        files: Vec::new(),
    };
    Ok(Some(Remembered { snapshot, instances }))
}

/// Writes the file.
///
/// # Errors
/// It cannot be written; the old one stays.
pub fn write(path: &Path, node: &str, remembered: Remembered) -> Result<(), CacheError> {
    let Remembered { snapshot, instances } = remembered;
    let mut passwords = Vec::new();
    for network in &snapshot.networks {
        for (index, peer) in network.peers().iter().enumerate() {
            if let Some(key) = &peer.password {
                passwords.push((network.name().to_owned(), index, key.expose().to_owned()));
            }
        }
    }
    let contents = Contents {
        node: node.to_owned(),
        labels: snapshot.labels,
        networks: snapshot.networks,
        subnets: snapshot.subnets,
        nodes: snapshot.nodes,
        placed: snapshot.overlay_pods.map(Arc::unwrap_or_clone),
        remote: snapshot.remote.map(Arc::unwrap_or_clone),
        api_servers: snapshot.api_servers,
        service_pools: snapshot.services.pools,
        service_advertisements: snapshot.services.advertisements,
        faulty_advertisements: snapshot.services.faulty_advertisements,
        anycast_addresses: snapshot.services.anycast,
        agent_settings: snapshot.agent_settings,
        passwords,
        instances,
    };
    let text = serde_json::to_vec(&contents)?;
    replace(path, &text).map_err(|source| CacheError::Write { path: path.to_owned(), source })
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let new = path.with_extension("new");
    // A `.new` file from before a crash may have other permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ipam::Assigned;
    use crate::plan::remote::RemoteVtepRow;

    #[test]
    fn the_cached_state_has_keys_and_is_for_its_node_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/cluster.json");
        assert_eq!(read(&path, "n1").unwrap(), None);
        let network = |name: &str, peers: serde_json::Value| -> Network {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name},
                "spec": {"netID": 65001, "mode": "BGP", "nodeSelector": {"a": "b"}, "config": {"bgpPeers": peers}},
            }))
            .unwrap()
        };
        fn own<T: serde::de::DeserializeOwned>(kind: &str, spec: serde_json::Value) -> T {
            let metadata = serde_json::json!({"name": "a"});
            serde_json::from_value(serde_json::json!({
                "apiVersion": "trunkline.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
            }))
            .unwrap()
        }
        let peers = serde_json::json!([{"asn": 1, "address": "10.0.0.1"}, {"asn": 1, "address": "10.0.0.2", "password": "s3cret"}]);
        let mut remote = RemoteObjects::default();
        let vtep = RemoteVtepRow {
            created: "".into(),
            ip: "10.20.0.1".parse().unwrap(),
            mac: [2; 6],
            local: Box::default(),
            endpoints: ["10.210.0.5".parse().unwrap()].into(),
            malformed: 0,
        };
        remote.set_vtep("west.n1", "west", vtep);
        let remembered = Remembered {
            snapshot: Snapshot {
                labels: [("a".to_owned(), "b".to_owned())].into(),
                networks: vec![network("n", peers), network("o", serde_json::json!([]))],
                overlay_pods: Some(Arc::new(
                    [("n2".to_owned(), ["10.0.0.9".parse().unwrap()].into())].into(),
                )),
                remote: Some(Arc::new(remote)),
                api_servers: ["192.0.2.1".parse().unwrap()].into(),
                services: ServiceObjects {
                    pools: vec![own("ServicePool", serde_json::json!({"addresses": ["203.0.113.0/24"]}))],
                    advertisements: vec![own("ServiceAdvertisement", serde_json::json!({"prepend": 2}))],
                    anycast_known: true,
                    ..ServiceObjects::default()
                },
                agent_settings: vec![own("AgentSettings", serde_json::json!({"config": {"podMTU": 1400}}))],
                ..Snapshot::default()
            },
            instances: vec![(
                ("web".to_owned(), "10-0-0-7".to_owned()),
                Row {
                    network: "n".to_owned(),
                    assigned: Assigned {
                        subnet: "s".to_owned(),
                        address: "10.0.0.7".parse().unwrap(),
                        gateway: None,
                    },
                    mac: [2, 0, 0, 0, 0, 1],
                    pod: "p".to_owned(),
                    uid: "u".to_owned(),
                    dual: Some(false),
                    extra_prefixes: ["10.9.0.0/16".parse().unwrap()].into(),
                    interface: None,
                    others: Vec::new(),
                    seen: (String::new(), String::new()),
                    awaits: true,
                },
            )],
        };
        for _ in 0..2 {
            write(&path, "n1", remembered.clone()).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(read(&path, "n1").unwrap(), Some(remembered));
        assert_eq!(read(&path, "n2").unwrap(), None);

        let old = serde_json::json!({
            "node": "n1", "labels": {}, "networks": [], "subnets": [], "nodes": [], "placed": null,
            "passwords": [], "instances": [],
        });
        fs::write(&path, old.to_string()).unwrap();
        let read_old = read(&path, "n1").unwrap().unwrap();
        let mut expected = Snapshot::default();
        expected.services.anycast_known = true;
        assert_eq!(read_old.snapshot, expected, "a file without service addresses");

        fs::write(&path, "{\"passwords\": [[\"n\", 0, 7\"s3cret\"").unwrap();
        let error = read(&path, "n1").unwrap_err().to_string();
        assert!(error.contains("cluster.json: line 1") && !error.contains("s3cret"), "{error}");
    }
}
