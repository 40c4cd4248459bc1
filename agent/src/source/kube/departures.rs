//! IPInstances of virtual machines that leave this node in a live migration, or have left it.
//!
//! From its begin the labels of the IPInstance have the target's node, so this node's own watch loses
//! it. The label [`MIGRATION_SOURCE`](trunkline_api::names::label::MIGRATION_SOURCE) selects it for a
//! watch of its own. The label stays after the live migration, so an agent that was down during it
//! learns its end too.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use kube::ResourceExt;
use trunkline_api::kube::Lenient;
use trunkline_api::names::annotation;
use trunkline_api::resources::{IPInstance, IPInstanceSpec};

use super::cluster::Cluster;
use super::instances::{ObjectName, arrived_at};
use super::watch::Change;
use crate::ipam::PodName;

/// The used fields of one IPInstance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The address.
    pub address: IpAddr,
    /// The pod in the binding.
    pub pod: PodName,
    /// Whether a live migration is under way.
    pub moves: bool,
    /// Whether the target's agent reports that the virtual machine runs there.
    pub arrived: bool,
}

/// The IPInstances by namespace and name.
pub type Departures = BTreeMap<ObjectName, Departure>;

impl Departure {
    /// Reads an IPInstance; `None` during its deletion, or if it cannot be read.
    fn read(instance: &IPInstance) -> Option<Departure> {
        let binding = &instance.spec.binding;
        let prefix: IpNet = instance.spec.address.ip.parse().ok()?;
        instance.metadata.deletion_timestamp.is_none().then(|| Departure {
            address: prefix.addr(),
            pod: PodName {
                namespace: instance.metadata.namespace.clone().unwrap_or_default(),
                name: binding.pod_name.clone(),
                uid: binding.pod_uid.clone(),
            },
            moves: instance.metadata.annotations.contains_key(annotation::MIGRATION_TARGET),
            arrived: arrived_at(instance).is_some(),
        })
    }
}

/// Applies a change of the watch.
pub(super) fn take(cluster: &Cluster, change: Change<Lenient<IPInstanceSpec>>) {
    let read = |object: Lenient<IPInstanceSpec>| {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        (name, object.0.ok().and_then(|object| Departure::read(&IPInstance::from(object))))
    };
    match change {
        Change::Listed(objects) => {
            let listed = objects.into_iter().map(read);
            let listed: Departures = listed.filter_map(|(name, row)| Some((name, row?))).collect();
            cluster.update(|state| {
                state.departures = listed;
                state.listed.departures = true;
            });
        }
        Change::Applied(object) => {
            let (name, row) = read(object);
            cluster.update(|state| match row {
                Some(row) => drop(state.departures.insert(name, row)),
                None => drop(state.departures.remove(&name)),
            });
        }
        Change::Deleted(object) => cluster.update(|state| drop(state.departures.remove(&read(object).0))),
        Change::Page { .. } | Change::Failing(_) => {}
    }
}
