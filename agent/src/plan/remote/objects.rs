//! Subnets and VTEPs of remote clusters as the sources deliver them, in a compact form: a node may
//! have 1,000 remote VTEPs with 10,000 endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use trunkline_api::resources::AddressRange;

/// The objects of all remote clusters, by cluster. The name of a cluster is stored once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteObjects {
    /// By the cluster's name.
    pub clusters: BTreeMap<Box<str>, RemoteObjectsOfCluster>,
}

/// The objects of one remote cluster, each kind by the object's name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteObjectsOfCluster {
    /// Its RemoteSubnets.
    pub subnets: BTreeMap<Box<str>, RemoteSubnetRow>,
    /// Its RemoteVteps.
    pub vteps: BTreeMap<Box<str>, RemoteVtepRow>,
}

/// A RemoteSubnet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteSubnetRow {
    /// Creation time of the object, RFC 3339; empty in files.
    pub created: Box<str>,
    /// Whether its Network is an overlay.
    pub overlay: bool,
    /// Its addresses.
    pub range: AddressRange,
}

/// A RemoteVtep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteVtepRow {
    /// Creation time of the object, RFC 3339; empty in files.
    pub created: Box<str>,
    /// Destination of tunnelled packets.
    pub ip: IpAddr,
    /// MAC of the remote node's VXLAN device.
    pub mac: [u8; 6],
    /// Further addresses of the remote node.
    pub local: Box<[IpAddr]>,
    /// Addresses of the remote node's pods, sorted.
    pub endpoints: Box<[IpAddr]>,
    /// Number of entries of the endpoint list that are no addresses.
    pub malformed: u32,
}

impl RemoteObjects {
    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// Adds or replaces a RemoteSubnet. Returns whether something changed.
    pub fn set_subnet(&mut self, name: &str, cluster: &str, row: RemoteSubnetRow) -> bool {
        let moved = self.remove(name, Some(cluster), |of| &mut of.subnets);
        let rows = &mut self.cluster(cluster).subnets;
        set(rows, name, row) | moved
    }

    /// Adds or replaces a RemoteVtep. Returns whether something changed.
    pub fn set_vtep(&mut self, name: &str, cluster: &str, row: RemoteVtepRow) -> bool {
        let moved = self.remove(name, Some(cluster), |of| &mut of.vteps);
        let rows = &mut self.cluster(cluster).vteps;
        set(rows, name, row) | moved
    }

    /// Removes a RemoteSubnet. Returns whether it existed.
    pub fn remove_subnet(&mut self, name: &str) -> bool {
        self.remove(name, None, |of| &mut of.subnets)
    }

    /// Removes a RemoteVtep. Returns whether it existed.
    pub fn remove_vtep(&mut self, name: &str) -> bool {
        self.remove(name, None, |of| &mut of.vteps)
    }

    /// Removes all RemoteSubnets for which `keep` is false.
    pub fn retain_subnets(&mut self, keep: impl Fn(&str) -> bool) {
        self.clusters.values_mut().for_each(|of| of.subnets.retain(|name, _| keep(name)));
        self.drop_empty();
    }

    /// Removes all RemoteVteps for which `keep` is false.
    pub fn retain_vteps(&mut self, keep: impl Fn(&str) -> bool) {
        self.clusters.values_mut().for_each(|of| of.vteps.retain(|name, _| keep(name)));
        self.drop_empty();
    }

    fn cluster(&mut self, cluster: &str) -> &mut RemoteObjectsOfCluster {
        self.clusters.entry(cluster.into()).or_default()
    }

    /// Removes an object from all clusters but one. Returns whether there was one.
    fn remove<T>(
        &mut self,
        name: &str,
        except: Option<&str>,
        rows: impl Fn(&mut RemoteObjectsOfCluster) -> &mut BTreeMap<Box<str>, T>,
    ) -> bool {
        let others = self.clusters.iter_mut().filter(|(cluster, _)| except != Some(&***cluster));
        let found = others.fold(false, |found, (_, of)| rows(of).remove(name).is_some() | found);
        if found {
            self.drop_empty();
        }
        found
    }

    fn drop_empty(&mut self) {
        self.clusters.retain(|_, of| !of.subnets.is_empty() || !of.vteps.is_empty());
    }
}

fn set<T: PartialEq>(rows: &mut BTreeMap<Box<str>, T>, name: &str, row: T) -> bool {
    if rows.get(name) == Some(&row) {
        return false;
    }
    rows.insert(name.into(), row);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtep(ip: &str) -> RemoteVtepRow {
        let ip = ip.parse().unwrap();
        RemoteVtepRow {
            created: "".into(),
            ip,
            mac: [2; 6],
            local: Box::default(),
            endpoints: Box::default(),
            malformed: 0,
        }
    }

    #[test]
    fn an_object_belongs_to_one_cluster() {
        let mut objects = RemoteObjects::default();
        assert!(objects.set_vtep("a.n1", "a", vtep("10.0.0.1")));
        assert!(!objects.set_vtep("a.n1", "a", vtep("10.0.0.1")), "no change");
        assert!(objects.set_vtep("a.n1", "b", vtep("10.0.0.1")), "another cluster");
        assert_eq!(objects.clusters.keys().map(|name| &**name).collect::<Vec<_>>(), ["b"]);
        objects.retain_vteps(|name| name != "a.n1");
        assert!(objects.is_empty());
        assert!(!objects.remove_vtep("a.n1"));
    }
}
