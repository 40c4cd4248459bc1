//! The rows of RemoteClusters, RemoteSubnets and RemoteVteps, and their watches.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use kube::Resource;
use kube::core::ObjectMeta;
use trunkline_api::kube::{Kind, Lenient};
use trunkline_api::names::{REMOTE_ENDPOINTS_MANAGER, label};
use trunkline_api::resources::{
    RemoteClusterSpec, RemoteClusterStatus, RemoteEndpointSliceSpec, RemoteSubnetSpec, RemoteVtepSpec,
};

use crate::cluster::Table;
use crate::state::ControllerState;
use crate::watch::Watched;

/// A RemoteCluster.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteClusterRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// The spec, or the reason why it is unreadable.
    pub spec: Result<RemoteClusterSpec, String>,
    /// The observed state.
    pub status: RemoteClusterStatus,
}

impl RemoteClusterRow {
    /// Whether this is the same object with the same credentials.
    pub fn is_same(&self, other: &RemoteClusterRow) -> bool {
        self.uid == other.uid && self.spec == other.spec
    }
}

/// A mirrored object.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirrored<S> {
    /// The RemoteCluster, by its label.
    pub cluster: Arc<str>,
    /// The UID of the RemoteCluster that owns it; empty if another client wrote it.
    pub owner: Arc<str>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The spec; none if it is unreadable.
    pub spec: Option<S>,
}

impl<S: Kind> Mirrored<S> {
    fn of(object: Lenient<S>) -> Mirrored<S> {
        let meta = object.meta();
        let labels = meta.labels.as_ref();
        let owners = meta.owner_references.iter().flatten();
        let mut owner =
            owners.filter(|owner| owner.kind == RemoteClusterSpec::KIND).map(|owner| owner.uid.as_str());
        Mirrored {
            cluster: labels
                .and_then(|labels| labels.get(label::CLUSTER))
                .map(String::as_str)
                .unwrap_or_default()
                .into(),
            owner: owner.next_back().unwrap_or_default().into(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            spec: object.0.ok().map(|object| object.spec),
        }
    }
}

fn named(meta: &ObjectMeta) -> Arc<str> {
    meta.name.as_deref().unwrap_or_default().into()
}

impl Watched for Lenient<RemoteClusterSpec> {
    fn begin(state: &mut ControllerState) {
        state.remote.clusters.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let meta = self.meta();
        let (name, generation) = (named(meta), meta.generation);
        if meta.deletion_timestamp.is_some() {
            return self.remove(state);
        }
        let uid: Arc<str> = meta.uid.as_deref().unwrap_or_default().into();
        let row = match self.0 {
            Ok(object) => RemoteClusterRow {
                uid,
                generation,
                spec: Ok(object.spec),
                status: object.status.unwrap_or_default(),
            },
            // The fault names the field, and never a value.
            Err(unreadable) => RemoteClusterRow {
                uid,
                generation,
                spec: Err(format!("{}: {}", unreadable.fault.field, unreadable.fault.message)),
                status: RemoteClusterStatus::default(),
            },
        };
        state.remote.clusters.set(name, Arc::new(row));
        state.remote.has_changed();
    }

    fn remove(self, state: &mut ControllerState) {
        state.remote.clusters.remove(&named(self.meta()));
        state.remote.has_changed();
    }

    fn end(state: &mut ControllerState) {
        for name in state.remote.clusters.end() {
            state.remote.clusters.remove(&name);
        }
        state.remote.has_changed();
    }
}

/// The table of a mirrored kind.
pub(super) trait MirroredKind: Kind {
    fn table(state: &mut ControllerState) -> &mut Table<Arc<str>, Mirrored<Self>>;

    /// Labels of the object besides that of its cluster.
    fn labels(&self, name: &str) -> BTreeMap<&'static str, String>;

    /// A row was added, changed or removed. `old` is the replaced or removed one.
    fn row_changed(state: &mut ControllerState, _: &Arc<str>, _: Option<&Mirrored<Self>>) {
        state.remote.has_changed();
    }

    /// A list is complete.
    fn listed(state: &mut ControllerState) {
        state.remote.has_changed();
    }
}

impl MirroredKind for RemoteSubnetSpec {
    fn table(state: &mut ControllerState) -> &mut Table<Arc<str>, Mirrored<Self>> {
        &mut state.cluster.remote_subnets
    }

    fn labels(&self, name: &str) -> BTreeMap<&'static str, String> {
        let subnet = name.split_once('.').map_or(name, |(_, subnet)| subnet);
        BTreeMap::from([(label::SUBNET, subnet.to_owned())])
    }
}

impl MirroredKind for RemoteVtepSpec {
    fn table(state: &mut ControllerState) -> &mut Table<Arc<str>, Mirrored<Self>> {
        &mut state.remote.vteps
    }

    fn labels(&self, _: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([(label::NODE, self.node_name.clone())])
    }
}

impl MirroredKind for RemoteEndpointSliceSpec {
    fn table(state: &mut ControllerState) -> &mut Table<Arc<str>, Mirrored<Self>> {
        &mut state.remote.slices
    }

    fn labels(&self, _: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            (label::SERVICE_NAME, self.remote_service.name.clone()),
            (label::MANAGED_BY, REMOTE_ENDPOINTS_MANAGER.to_owned()),
        ])
    }

    fn row_changed(state: &mut ControllerState, name: &Arc<str>, old: Option<&Mirrored<Self>>) {
        state.remote.has_changed();
        state.remote.slice_changed(name, old);
    }

    fn listed(state: &mut ControllerState) {
        state.remote.has_changed();
        state.remote.global_has_changed();
    }
}

macro_rules! watched {
    ($spec:ty) => {
        impl Watched for Lenient<$spec> {
            fn begin(state: &mut ControllerState) {
                <$spec>::table(state).begin();
            }

            fn apply(self, state: &mut ControllerState) {
                let (name, row) = (named(self.meta()), Mirrored::of(self));
                let old = <$spec>::table(state).set(Arc::clone(&name), row);
                if old.as_ref() != <$spec>::table(state).get(&name) {
                    <$spec>::row_changed(state, &name, old.as_ref());
                }
            }

            fn remove(self, state: &mut ControllerState) {
                let name = named(self.meta());
                let old = <$spec>::table(state).remove(&name);
                <$spec>::row_changed(state, &name, old.as_ref());
            }

            fn end(state: &mut ControllerState) {
                for name in <$spec>::table(state).end() {
                    let old = <$spec>::table(state).remove(&name);
                    <$spec>::row_changed(state, &name, old.as_ref());
                }
                <$spec>::listed(state);
            }
        }
    };
}

watched!(RemoteSubnetSpec);
watched!(RemoteVtepSpec);
watched!(RemoteEndpointSliceSpec);
