//! An object of the API server: kube's metadata around the spec and status of a manifest, and the
//! conversions between both.

use std::borrow::Cow;
use std::fmt::Debug;

use kube::core::{ClusterResourceScope, NamespaceResourceScope, ObjectMeta};
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lenient::{self, Raw};
use crate::fault::Fault;
use crate::names::{GROUP, MULTICLUSTER_GROUP, OWN_GROUP, OWN_VERSION};
use crate::resources::{
    self, AgentSettings, AgentSettingsSpec, AnycastAddress, AnycastAddressSpec, IPInstance, IPInstanceSpec,
    IPInstanceStatus, Network, NetworkSpec, NetworkStatus, NodeInfo, NodeInfoSpec, NodeInfoStatus,
    NodeServices, NodeServicesSpec, NodeServicesStatus, RemoteClusterSpec, RemoteClusterStatus,
    RemoteEndpointSliceSpec, RemoteStatus, RemoteSubnet, RemoteSubnetSpec, RemoteVtep, RemoteVtepSpec,
    ServiceAddress, ServiceAddressSpec, ServiceAddressStatus, ServiceAdvertisement, ServiceAdvertisementSpec,
    ServiceAdvertisementStatus, ServicePool, ServicePoolSpec, ServicePoolStatus, Subnet, SubnetSpec,
    SubnetStatus,
};

/// The properties of a kind. The implementor is the spec.
pub trait Kind: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The type of the status.
    type Status: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Cluster or namespace.
    type Scope: 'static;
    /// `Network`
    const KIND: &'static str;
    /// `networks`; hybridnet's plural of NodeInfo is `nodeinfoes`.
    const PLURAL: &'static str;
    /// The API group; by default hybridnet's.
    const GROUP: &'static str = GROUP;
    /// The version in the group.
    const VERSION: &'static str = "v1";

    /// `apiVersion` of an object: `networking.alibaba.com/v1`.
    fn api_version() -> String {
        format!("{}/{}", Self::GROUP, Self::VERSION)
    }

    /// The default for an object without a spec, if a spec is optional.
    fn missing() -> Option<Self> {
        None
    }
}

impl Kind for NetworkSpec {
    type Status = NetworkStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "Network";
    const PLURAL: &'static str = "networks";

    fn missing() -> Option<Self> {
        Some(NetworkSpec::default())
    }
}

impl Kind for SubnetSpec {
    type Status = SubnetStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "Subnet";
    const PLURAL: &'static str = "subnets";
}

impl Kind for IPInstanceSpec {
    type Status = IPInstanceStatus;
    type Scope = NamespaceResourceScope;
    const KIND: &'static str = "IPInstance";
    const PLURAL: &'static str = "ipinstances";
}

impl Kind for NodeInfoSpec {
    type Status = NodeInfoStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "NodeInfo";
    const PLURAL: &'static str = "nodeinfoes";

    fn missing() -> Option<Self> {
        Some(NodeInfoSpec::default())
    }
}

impl Kind for RemoteClusterSpec {
    type Status = RemoteClusterStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "RemoteCluster";
    const PLURAL: &'static str = "remoteclusters";
    const GROUP: &'static str = MULTICLUSTER_GROUP;
}

impl Kind for RemoteSubnetSpec {
    type Status = RemoteStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "RemoteSubnet";
    const PLURAL: &'static str = "remotesubnets";
    const GROUP: &'static str = MULTICLUSTER_GROUP;
}

impl Kind for RemoteVtepSpec {
    type Status = RemoteStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "RemoteVtep";
    const PLURAL: &'static str = "remotevteps";
    const GROUP: &'static str = MULTICLUSTER_GROUP;
}

impl Kind for RemoteEndpointSliceSpec {
    type Status = RemoteStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "RemoteEndpointSlice";
    // As in hybridnet: another CRD with the same kind would not be served.
    const PLURAL: &'static str = "remoteendpointslice";
    const GROUP: &'static str = MULTICLUSTER_GROUP;
}

impl Kind for ServicePoolSpec {
    type Status = ServicePoolStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "ServicePool";
    const PLURAL: &'static str = "servicepools";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;
}

impl Kind for ServiceAddressSpec {
    type Status = ServiceAddressStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "ServiceAddress";
    const PLURAL: &'static str = "serviceaddresses";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;
}

impl Kind for ServiceAdvertisementSpec {
    type Status = ServiceAdvertisementStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "ServiceAdvertisement";
    const PLURAL: &'static str = "serviceadvertisements";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;

    fn missing() -> Option<Self> {
        Some(ServiceAdvertisementSpec::default())
    }
}

impl Kind for AnycastAddressSpec {
    /// NodeServices has the state of each node.
    type Status = NoStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "AnycastAddress";
    const PLURAL: &'static str = "anycastaddresses";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;
}

impl Kind for AgentSettingsSpec {
    /// `trunkline status` has the state of each node.
    type Status = NoStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "AgentSettings";
    const PLURAL: &'static str = "agentsettings";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;
}

impl Kind for NodeServicesSpec {
    type Status = NodeServicesStatus;
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "NodeServices";
    const PLURAL: &'static str = "nodeservices";
    const GROUP: &'static str = OWN_GROUP;
    const VERSION: &'static str = OWN_VERSION;

    fn missing() -> Option<Self> {
        Some(NodeServicesSpec::default())
    }
}

/// The status of a kind that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NoStatus {}

/// An object of the API server, deserialized tolerantly: see [the module](super).
#[derive(Clone, Debug, PartialEq)]
pub struct Object<S: Kind> {
    /// Its name, labels and so on; without managedFields.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: S,
    /// The observed state.
    pub status: Option<S::Status>,
    /// Faults of omitted parts: unknown fields, or an unreadable status.
    pub ignored: Vec<Fault>,
}

impl<S: Kind> Object<S> {
    /// A new object, cluster-scoped or still without its namespace.
    pub fn new(name: impl Into<String>, spec: S) -> Self {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        Object { metadata, spec, status: None, ignored: Vec::new() }
    }

    /// `metadata.name`; empty only before the API server has seen it.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl<S: Kind> kube::Resource for Object<S> {
    type DynamicType = ();
    type Scope = S::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        S::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        S::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        S::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        S::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<S: Kind> Serialize for Object<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("apiVersion", &S::api_version())?;
        map.serialize_entry("kind", S::KIND)?;
        map.serialize_entry("metadata", &self.metadata)?;
        map.serialize_entry("spec", &self.spec)?;
        if let Some(status) = &self.status {
            map.serialize_entry("status", status)?;
        }
        map.end()
    }
}

impl<'de, S: Kind> Deserialize<'de> for Object<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lenient::object(Raw::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Conversions between objects of the API server and the types of manifests, which all other code
/// uses. `+ status`: the kind has a status.
macro_rules! conversions {
    ($($Resource:ident: $Spec:ident $(+ $status:ident)?),*) => {$(
        impl From<Object<$Spec>> for $Resource {
            fn from(object: Object<$Spec>) -> Self {
                $Resource {
                    api_version: $Spec::api_version(),
                    kind: $Spec::KIND.to_owned(),
                    metadata: from_server(object.metadata),
                    spec: object.spec,
                    $($status: object.$status,)?
                }
            }
        }

        impl From<$Resource> for Object<$Spec> {
            fn from(resource: $Resource) -> Self {
                Object {
                    $($status: resource.$status,)?
                    ..without_status(resource.metadata, resource.spec)
                }
            }
        }
    )*};
}

conversions!(
    Network: NetworkSpec + status,
    Subnet: SubnetSpec + status,
    IPInstance: IPInstanceSpec + status,
    NodeInfo: NodeInfoSpec + status,
    RemoteSubnet: RemoteSubnetSpec + status,
    RemoteVtep: RemoteVtepSpec + status,
    ServicePool: ServicePoolSpec + status,
    ServiceAddress: ServiceAddressSpec + status,
    ServiceAdvertisement: ServiceAdvertisementSpec + status,
    NodeServices: NodeServicesSpec + status,
    AnycastAddress: AnycastAddressSpec,
    AgentSettings: AgentSettingsSpec
);

fn without_status<S: Kind>(metadata: resources::ObjectMeta, spec: S) -> Object<S> {
    Object { metadata: to_server(metadata), spec, status: None, ignored: Vec::new() }
}

fn from_server(metadata: ObjectMeta) -> resources::ObjectMeta {
    resources::ObjectMeta {
        name: metadata.name.unwrap_or_default(),
        namespace: metadata.namespace,
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
        finalizers: metadata.finalizers.unwrap_or_default(),
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        creation_timestamp: metadata.creation_timestamp.map(|time| time.0.to_string()),
        deletion_timestamp: metadata.deletion_timestamp.map(|time| time.0.to_string()),
        deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
        ..resources::ObjectMeta::default()
    }
}

/// Without the times, which only the server sets.
fn to_server(metadata: resources::ObjectMeta) -> ObjectMeta {
    let some = |map: std::collections::BTreeMap<String, String>| (!map.is_empty()).then_some(map);
    ObjectMeta {
        name: Some(metadata.name),
        namespace: metadata.namespace,
        labels: some(metadata.labels),
        annotations: some(metadata.annotations),
        finalizers: (!metadata.finalizers.is_empty()).then_some(metadata.finalizers),
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        ..ObjectMeta::default()
    }
}
