//! Tolerant deserialization: a fault in one object affects only this object.
//!
//! An object from the API server is first read as JSON values. Its spec is then deserialized as
//! strictly as a manifest's. If that fails because of an unknown field, the field is removed and
//! recorded, and the spec is deserialized again. Only objects with such a fault cause this extra
//! work.

use std::borrow::Cow;

use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::object::{Kind, Object};
use super::reader::{ReadError, Reader};
use crate::fault::Fault;

/// An [`Object`], or the fault that prevents it. Deserialization never fails, so one bad object
/// does not block a watch or a list.
///
/// Use it in place of the object: `Api::<Lenient<NetworkSpec>>`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lenient<S: Kind>(pub Result<Object<S>, Box<Unreadable>>);

/// An object with an unreadable spec.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{fault}")]
pub struct Unreadable {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The field, and what is wrong with it.
    #[source]
    pub fault: Fault,
}

impl<S: Kind> Lenient<S> {
    /// The faults of the object: the one that makes it unreadable, or else those of omitted fields.
    pub fn faults(&self) -> &[Fault] {
        match &self.0 {
            Ok(object) => &object.ignored,
            Err(unreadable) => std::slice::from_ref(&unreadable.fault),
        }
    }
}

impl<S: Kind> kube::Resource for Lenient<S> {
    type DynamicType = ();
    type Scope = S::Scope;

    fn kind(dynamic: &()) -> Cow<'_, str> {
        Object::<S>::kind(dynamic)
    }

    fn group(dynamic: &()) -> Cow<'_, str> {
        Object::<S>::group(dynamic)
    }

    fn version(dynamic: &()) -> Cow<'_, str> {
        Object::<S>::version(dynamic)
    }

    fn plural(dynamic: &()) -> Cow<'_, str> {
        Object::<S>::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, |object| &object.metadata)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, |object| &mut object.metadata)
    }
}

impl<'de, S: Kind> Deserialize<'de> for Lenient<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Lenient(object(Raw::deserialize(deserializer)?)))
    }
}

/// An unreadable object is serialized as its metadata only; no program writes one.
impl<S: Kind> Serialize for Lenient<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(unreadable) => Err(serde::ser::Error::custom(unreadable)),
        }
    }
}

/// An object before its spec is deserialized.
#[derive(Deserialize)]
pub(super) struct Raw {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

/// Deserializes the object; the error is the fault.
pub(super) fn object<S: Kind>(raw: Raw) -> Result<Object<S>, Box<Unreadable>> {
    let Raw { mut metadata, spec, status } = raw;
    metadata.managed_fields = None;
    let name = match (&metadata.namespace, &metadata.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (_, name) => name.clone().unwrap_or_default(),
    };
    let mut reading = Reading { kind: S::KIND, name, ignored: Vec::new() };
    let spec = match (spec, S::missing()) {
        (Value::Null, Some(missing)) => Ok(missing),
        (spec, _) => reading.read(spec, "spec"),
    };
    let status = match status {
        Value::Null => None,
        // The owner of the status overwrites it anyway.
        status => reading.read(status, "status").map_err(|fault| reading.ignored.push(fault)).ok(),
    };
    match spec {
        Ok(spec) => Ok(Object { metadata, spec, status, ignored: reading.ignored }),
        Err(fault) => Err(Box::new(Unreadable { metadata, fault })),
    }
}

struct Reading {
    kind: &'static str,
    name: String,
    ignored: Vec<Fault>,
}

impl Reading {
    fn read<T: DeserializeOwned>(&mut self, mut value: Value, root: &str) -> Result<T, Fault> {
        if let Ok(read) = T::deserialize(&value) {
            return Ok(read);
        }
        // Each iteration except the last one removes a field.
        loop {
            let error = match serde_path_to_error::deserialize::<_, T>(Reader(&value)) {
                Ok(read) => return Ok(read),
                Err(error) => error,
            };
            let path = error.path().to_string();
            let field = if path == "." { root.to_owned() } else { format!("{root}.{path}") };
            let fault = |message: String| Fault { kind: self.kind, name: self.name.clone(), field, message };
            let is_unknown = matches!(error.inner(), ReadError::UnknownField(_));
            let read_error = fault(error.inner().to_string());
            if !is_unknown || remove(&mut value, error.path()).is_none() {
                return Err(read_error);
            }
            let message = "this version does not know the field, and ignores it".to_owned();
            self.ignored.push(Fault { message, ..read_error });
        }
    }
}

/// Removes the field at a path from a value.
fn remove(value: &mut Value, path: &Path) -> Option<Value> {
    let mut segments = path.iter();
    let Some(Segment::Map { key: last }) = segments.next_back() else { return None };
    let parent = segments.try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        Segment::Enum { .. } | Segment::Unknown => None,
    })?;
    parent.as_object_mut()?.remove(last)
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;
    use serde_json::json;

    use super::*;
    use crate::kube::{
        AnycastAddressObject, IPInstanceObject, NetworkObject, NodeServicesObject, ServicePoolObject,
    };
    use crate::resources::{
        AnycastAddress, IPInstance, IPInstanceSpec, Network, NetworkSpec, ServiceAdvertisementSpec,
        ServicePool, ServicePoolSpec, SubnetSpec,
    };

    fn network(spec: Value, status: Value) -> Value {
        json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Network",
            "metadata": {"name": "rack1", "uid": "u1", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
                         "managedFields": [{"manager": "kubectl"}], "labels": {"a": "b"}},
            "spec": spec, "status": status,
        })
    }

    #[test]
    fn a_field_of_a_newer_version_is_left_out_and_named() {
        let json = network(
            json!({"netID": 65001, "mode": "BGP", "newer": {"a": 1}, "config": {"bgpPeers": [
                {"asn": 1, "address": "10.0.0.1"},
                {"asn": 2, "address": "10.0.0.2", "newest": [1], "import": {"rules": [{"newer": 1}]}},
            ]}}),
            json!({"subnetList": ["a"], "newer": 1}),
        );
        let object: NetworkObject = serde_json::from_value(json).unwrap();
        assert_eq!(object.spec.net_id, Some(65001));
        assert_eq!(object.status.as_ref().unwrap().subnet_list, ["a"]);
        assert_eq!(object.metadata.managed_fields, None);
        let mut fields: Vec<&str> = object.ignored.iter().map(|fault| fault.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "spec.config.bgpPeers[1].import.rules[0].newer",
                "spec.config.bgpPeers[1].newest",
                "spec.newer",
                "status.newer"
            ]
        );
        assert_eq!(object.ignored[0].name, "rack1");
    }

    #[test]
    fn an_unreadable_object_affects_no_other() {
        let list = json!([
            network(json!({"netID": 1}), Value::Null),
            network(json!({"mode": "FOO"}), Value::Null),
            network(
                json!({"config": {"bgpPeers": [{"asn": -1, "address": "", "password": "hunter2"}]}}),
                Value::Null
            ),
            network(json!({"netID": 1}), json!({"statistics": 7})),
            network(Value::Null, Value::Null),
        ]);
        let list: Vec<Lenient<NetworkSpec>> = serde_json::from_value(list).unwrap();
        let fields: Vec<&str> =
            list.iter().map(|one| one.faults().first().map_or("", |fault| &fault.field)).collect();
        assert_eq!(fields, ["", "spec.mode", "spec.config.bgpPeers[0].asn", "status.statistics", ""]);
        assert!(list[1].0.is_err() && list[3].0.is_ok() && list[4].0.is_ok());
        assert_eq!(list[1].meta().name.as_deref(), Some("rack1"));
        let words = list[1].faults()[0].to_string();
        assert!(words.starts_with("Network rack1: spec.mode: unknown variant `FOO`"), "{words}");
        assert!(!format!("{list:?}").contains("hunter2"));

        // The spec of a Subnet has no default.
        let subnet: Lenient<SubnetSpec> = serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap();
        assert_eq!(subnet.faults()[0].field, "spec");
    }

    #[test]
    fn there_and_back() {
        let object: NetworkObject =
            serde_json::from_value(network(json!({"netID": 1}), json!({"nodeList": null}))).unwrap();
        let resource = Network::from(object.clone());
        assert_eq!(resource.metadata.creation_timestamp.as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!((resource.name(), resource.metadata.labels.len()), ("rack1", 1));
        let again = NetworkObject::from(resource);
        assert_eq!((&again.spec, &again.status), (&object.spec, &object.status));
        assert_eq!(again.metadata.resource_version, object.metadata.resource_version);

        let spec = json!({"network": "n", "subnet": "s", "binding": {}, "address":
            {"version": "4", "ip": "10.0.0.1/24", "mac": "02:12:34:00:00:01"}});
        let spec: IPInstanceSpec = serde_json::from_value(spec).unwrap();
        let mut object = IPInstanceObject::new("10-0-0-1", spec);
        object.metadata.namespace = Some("web".to_owned());
        let json = serde_json::to_value(&object).unwrap();
        assert_eq!((&json["kind"], &json["metadata"]["namespace"]), (&json!("IPInstance"), &json!("web")));
        assert_eq!(serde_json::from_value::<IPInstanceObject>(json).unwrap(), object);
        assert_eq!(IPInstance::from(object).metadata.namespace.as_deref(), Some("web"));
    }

    #[test]
    fn own_kinds_have_their_own_group() {
        let spec: ServicePoolSpec = serde_json::from_value(json!({"addresses": ["192.0.2.0/24"]})).unwrap();
        let pool = ServicePool::from(ServicePoolObject::new("public", spec));
        assert_eq!((pool.api_version.as_str(), pool.kind.as_str()), ("trunkline.io/v1alpha1", "ServicePool"));
        let json = serde_json::to_value(ServicePoolObject::from(pool)).unwrap();
        assert_eq!(json["apiVersion"], "trunkline.io/v1alpha1");
        assert_eq!(
            (ServicePoolObject::group(&()), ServicePoolObject::version(&())),
            ("trunkline.io".into(), "v1alpha1".into())
        );
        let url = ServicePoolObject::url_path(&(), None);
        assert_eq!(url, "/apis/trunkline.io/v1alpha1/servicepools");

        let anycast = json!({"metadata": {"name": "dns"}, "spec": {"addresses": ["10.0.0.53"], "newer": 1}});
        let anycast: AnycastAddressObject = serde_json::from_value(anycast).unwrap();
        assert_eq!(anycast.ignored[0].field, "spec.newer");
        assert_eq!(AnycastAddress::from(anycast).spec.addresses, ["10.0.0.53"]);
        // A NodeServices has a status only, and all fields of a ServiceAdvertisement have a default.
        let node = json!({"metadata": {"name": "n1"}, "status": {"services": [{"address": "192.0.2.7", "state": "later"}]}});
        let node: NodeServicesObject = serde_json::from_value(node).unwrap();
        assert_eq!(node.status.unwrap().services[0].state.name(), "unknown");
        let advertisement: Lenient<ServiceAdvertisementSpec> =
            serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert_eq!(advertisement.faults(), []);
    }
}
