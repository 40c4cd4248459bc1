//! The CustomResourceDefinitions: schemas from the types, names and columns from hybridnet.
//!
//! schemars makes JSON schemas of the specs and statuses. This module turns them into structural
//! schemas, as the API server requires: no references, no `additionalProperties: false`, only known
//! formats. There is no `nullable` (the server drops nulls where they are not allowed, which is
//! their meaning here). The only defaults are those that [`super::rules`] needs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation,
};
use kube::core::ObjectMeta;
use kube::core::schema::{OptionalEnum, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::object::Kind;
use super::rules::{bounds, rules};
use crate::policy::Members;
use crate::resources::{
    AgentSettingsSpec, AnycastAddressSpec, IPInstanceSpec, LongLivedStale, NetworkSpec, NodeInfoSpec,
    NodeServicesSpec, RemoteClusterSpec, RemoteEndpointSliceSpec, RemoteSubnetSpec, RemoteVtepSpec, Secret,
    ServiceAddressSpec, ServiceAdvertisementSpec, ServicePoolSpec, SubnetSpec,
};

/// The definitions of hybridnet's kinds, and then of the own kinds.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let integer = "integer";
    vec![
        crd::<NetworkSpec>(
            "Cluster",
            "A set of nodes that share one path into the fabric.",
            &["tnet"],
            &[
                ("NetID", integer, ".spec.netID"),
                ("Type", "string", ".spec.type"),
                ("Mode", "string", ".spec.mode"),
                ("V4Total", integer, ".status.statistics.total"),
                ("V4Used", integer, ".status.statistics.used"),
                ("V4Available", integer, ".status.statistics.available"),
                ("LastAllocatedV4Subnet", "string", ".status.lastAllocatedSubnet"),
                ("V6Total", integer, ".status.ipv6Statistics.total"),
                ("V6Used", integer, ".status.ipv6Statistics.used"),
                ("V6Available", integer, ".status.ipv6Statistics.available"),
                ("LastAllocatedV6Subnet", "string", ".status.lastAllocatedIPv6Subnet"),
            ],
        ),
        crd::<SubnetSpec>(
            "Cluster",
            "A range of addresses of a Network.",
            &["tsub"],
            &[
                ("Version", "string", ".spec.range.version"),
                ("CIDR", "string", ".spec.range.cidr"),
                ("Start", "string", ".spec.range.start"),
                ("End", "string", ".spec.range.end"),
                ("Gateway", "string", ".spec.range.gateway"),
                ("Total", integer, ".status.total"),
                ("Used", integer, ".status.used"),
                ("Available", integer, ".status.available"),
                ("NetID", integer, ".spec.netID"),
                ("Network", "string", ".spec.network"),
                ("Disabled", "boolean", ".spec.config.disabled"),
                ("Namespaces", "string", ".spec.config.allowedNamespaces"),
                ("Retention", "string", ".spec.config.retention"),
            ],
        ),
        crd::<IPInstanceSpec>(
            "Namespaced",
            "One address that is allocated to a pod.",
            &["tip"],
            &[
                ("IP", "string", ".spec.address.ip"),
                ("Gateway", "string", ".spec.address.gateway"),
                ("PodName", "string", ".spec.binding.podName"),
                ("Node", "string", ".spec.binding.nodeName"),
                ("Subnet", "string", ".spec.subnet"),
                ("Network", "string", ".spec.network"),
            ],
        ),
        crd::<NodeInfoSpec>(
            "Cluster",
            "The tunnel endpoint of a node, and its BGP peers.",
            &["tnode"],
            &[
                ("VTEPIP", "string", ".spec.vtepInfo.ip"),
                ("VTEPMAC", "string", ".spec.vtepInfo.mac"),
                ("VTEPLOCALIPS", "string", ".spec.vtepInfo.localIPs"),
                ("PEERS", "string", ".status.peers[*].name"),
                ("STATES", "string", ".status.peers[*].state"),
            ],
        ),
        crd::<ServicePoolSpec>(
            "Cluster",
            "Addresses for Services of type LoadBalancer.",
            &["tpool"],
            &[
                ("Addresses", "string", ".spec.addresses"),
                ("AutoAssign", "boolean", ".spec.autoAssign"),
                ("Priority", integer, ".spec.priority"),
                ("Total", integer, ".status.total"),
                ("Allocated", integer, ".status.allocated"),
                ("Available", integer, ".status.available"),
                ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            ],
        ),
        crd::<ServiceAddressSpec>(
            "Cluster",
            "One address that is allocated to a Service, or to Services that share it. The controller \
             writes it.",
            &["tvip"],
            &[
                ("Address", "string", ".spec.address"),
                ("Pool", "string", ".spec.pool"),
                ("Services", "string", ".spec.services[*].name"),
                ("Nodes", integer, ".status.nodes"),
            ],
        ),
        crd::<ServiceAdvertisementSpec>(
            "Cluster",
            "The Services whose addresses are advertised by BGP, from which nodes, to which peers. \
             Without any ServiceAdvertisement in the cluster, all nodes advertise the LoadBalancer \
             addresses of the ServicePools to all peers.",
            &["tadv"],
            &[
                ("Addresses", "string", ".spec.addresses"),
                ("Peers", "string", ".spec.peers"),
                ("Weights", "string", ".spec.weights"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ],
        ),
        crd::<AnycastAddressSpec>(
            "Cluster",
            "Addresses on the loopback interface of several nodes. A node advertises them by BGP while \
             its health check passes.",
            &["tany"],
            &[
                ("Addresses", "string", ".spec.addresses"),
                ("KeepLast", "boolean", ".spec.keepLast"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ],
        ),
        crd::<AgentSettingsSpec>(
            "Cluster",
            "Fields of the agents' configuration for the nodes that a selector selects. They replace the \
             fields of agent.yaml.",
            &["tset"],
            &[("Priority", integer, ".spec.priority"), ("Age", "date", ".metadata.creationTimestamp")],
        ),
        crd::<NodeServicesSpec>(
            "Cluster",
            "The service addresses that a node advertises. The node's agent writes it.",
            &["tns"],
            &[
                ("Proxy", "string", ".status.proxy.state"),
                ("Rules", "string", ".status.proxy.rules"),
                ("Anycast", "string", ".status.anycast[*].name"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ],
        ),
        crd::<RemoteClusterSpec>(
            "Cluster",
            "Another cluster, and the credentials for its API server.",
            &[],
            &[
                ("APIEndpoint", "string", ".spec.apiEndpoint"),
                ("UUID", "string", ".status.uuid"),
                ("State", "string", ".status.state"),
            ],
        ),
        crd::<RemoteSubnetSpec>(
            "Cluster",
            "A subnet of another cluster. The controller writes it.",
            &[],
            &[
                ("Version", "string", ".spec.range.version"),
                ("CIDR", "string", ".spec.range.cidr"),
                ("Start", "string", ".spec.range.start"),
                ("End", "string", ".spec.range.end"),
                ("Gateway", "string", ".spec.range.gateway"),
                ("ClusterName", "string", ".spec.clusterName"),
                ("NetworkType", "string", ".spec.networkType"),
                ("LastModifyTime", "date", ".status.lastModifyTime"),
            ],
        ),
        crd::<RemoteVtepSpec>(
            "Cluster",
            "A node of another cluster, and the addresses of its pods. The controller writes it.",
            &[],
            &[
                ("IP", "string", ".spec.ip"),
                ("MAC", "string", ".spec.mac"),
                ("ClusterName", "string", ".spec.clusterName"),
                ("NodeName", "string", ".spec.nodeName"),
                ("LastModifyTime", "date", ".status.lastModifyTime"),
            ],
        ),
        crd::<RemoteEndpointSliceSpec>(
            "Cluster",
            "Endpoints of a Service in another cluster. The controller writes it.",
            &[],
            &[
                ("Service", "string", ".spec.remoteService.name"),
                ("Namespace", "string", ".spec.remoteService.namespace"),
                ("AddressType", "string", ".spec.addressType"),
                ("Cluster", "string", ".spec.remoteService.cluster"),
            ],
        ),
    ]
}

fn crd<S>(
    scope: &str,
    description: &str,
    short_names: &[&str],
    columns: &[(&str, &str, &str)],
) -> CustomResourceDefinition
where
    S: Kind<Status: JsonSchema> + JsonSchema,
{
    let mut root = json!({
        "type": "object",
        "description": description,
        "properties": {"spec": schema::<S>()},
    });
    let status = schema::<S::Status>();
    let has_status = status["properties"].is_object();
    if has_status {
        root["properties"]["status"] = status;
    }
    // hybridnet does not require a spec, but only the objects that agents write about their nodes
    // make sense without one.
    if ![NodeInfoSpec::KIND, NodeServicesSpec::KIND].contains(&S::KIND) {
        root["required"] = json!(["spec"]);
    }
    for (_, path, keywords) in bounds().into_iter().filter(|(kind, ..)| *kind == S::KIND) {
        merge(at(&mut root, &path), keywords);
    }
    for rule in rules().into_iter().filter(|rule| rule.kind == S::KIND) {
        let list = at(&mut root, &rule.path)
            .as_object_mut()
            .map(|schema| schema.entry("x-kubernetes-validations").or_insert_with(|| json!([])));
        if let Some(Value::Array(list)) = list {
            list.push(json!({"rule": rule.cel, "message": rule.message}));
        }
    }
    #[expect(clippy::expect_used, reason = "the input is types alone, and the tests call this function")]
    let root = serde_json::from_value(root).expect("a schema that the API server accepts");
    let columns = columns.iter().map(|(name, type_, path)| CustomResourceColumnDefinition {
        name: (*name).to_owned(),
        type_: (*type_).to_owned(),
        json_path: (*path).to_owned(),
        ..CustomResourceColumnDefinition::default()
    });
    CustomResourceDefinition {
        metadata: ObjectMeta { name: Some(format!("{}.{}", S::PLURAL, S::GROUP)), ..ObjectMeta::default() },
        spec: CustomResourceDefinitionSpec {
            group: S::GROUP.to_owned(),
            names: CustomResourceDefinitionNames {
                kind: S::KIND.to_owned(),
                list_kind: Some(format!("{}List", S::KIND)),
                plural: S::PLURAL.to_owned(),
                singular: Some(S::KIND.to_lowercase()),
                short_names: Some(short_names.iter().map(|name| (*name).to_owned()).collect()),
                ..CustomResourceDefinitionNames::default()
            },
            scope: scope.to_owned(),
            versions: vec![CustomResourceDefinitionVersion {
                name: S::VERSION.to_owned(),
                served: true,
                storage: true,
                schema: Some(CustomResourceValidation { open_api_v3_schema: Some(root) }),
                additional_printer_columns: Some(columns.collect()),
                subresources: has_status.then(|| CustomResourceSubresources {
                    status: Some(CustomResourceSubresourceStatus(json!({}))),
                    scale: None,
                }),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        ..CustomResourceDefinition::default()
    }
}

/// The schema at a path such as `spec.config.bgpPeers[].asn`.
fn at<'a>(root: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(root, |schema, step| {
        let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        let property = &mut schema["properties"][name];
        if is_list { &mut property["items"] } else { property }
    })
}

/// Adds keywords to a schema, and overwrites existing ones.
fn merge(schema: &mut Value, keywords: Value) {
    match (schema, keywords) {
        (Value::Object(schema), Value::Object(keywords)) => {
            for (keyword, value) in keywords {
                merge(schema.entry(keyword).or_insert(Value::Null), value);
            }
        }
        (schema, value) => *schema = value,
    }
}

/// Name and text of each file in `deploy/crds`.
pub fn manifests() -> Vec<(String, String)> {
    let file = |crd: CustomResourceDefinition| {
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        #[expect(
            clippy::expect_used,
            reason = "the input is types alone, and a test compares \
            each file"
        )]
        let text = serde_json::to_value(crd)
            .map(|mut crd| {
                whole(&mut crd);
                crd
            })
            .map(|crd| serde_saphyr::to_string(&crd))
            .expect("JSON")
            .expect("YAML");
        (
            name,
            format!(
                "# Generated from api/src by `cargo lab crds`: edit api/src \
            instead.\n---\n{text}"
            ),
        )
    };
    crds().into_iter().map(file).collect()
}

/// Writes bounds as integers; the API server's own type has floating-point numbers.
fn whole(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(whole),
        Value::Object(fields) => fields.values_mut().for_each(whole),
        Value::Number(number) => {
            #[expect(clippy::cast_possible_truncation, reason = "bounds of 32-bit numbers")]
            let whole = number.as_f64().filter(|it| it.fract() == 0.0).map(|it| it as i64);
            if let Some(whole) = whole {
                *value = json!(whole);
            }
        }
        _ => {}
    }
}

/// The structural schema of a type.
fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    settle(&mut schema);
    schema
}

/// Removes keywords that the API server rejects from a schema and its subschemas.
fn settle(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for unwanted in ["nullable", "default", "title", "writeOnly"] {
        fields.remove(unwanted);
    }
    if fields.get("additionalProperties") == Some(&Value::Bool(false)) {
        fields.remove("additionalProperties");
    }
    numbers(fields);
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = describe(text);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(inner) {
            settle(inner);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(settle);
    }
}

/// The API server only knows the formats of signed numbers; bounds replace the others.
fn numbers(fields: &mut Map<String, Value>) {
    let Some(Value::String(format)) = fields.get("format") else { return };
    let (format, maximum) = match format.as_str() {
        "uint8" => ("int32", Some(u64::from(u8::MAX))),
        "uint16" => ("int32", Some(u64::from(u16::MAX))),
        "uint32" => ("int64", Some(u64::from(u32::MAX))),
        "uint64" => ("int64", None),
        _ => return,
    };
    fields.insert("format".to_owned(), json!(format));
    fields.insert("minimum".to_owned(), json!(0));
    if let Some(maximum) = maximum {
        fields.insert("maximum".to_owned(), json!(maximum));
    }
}

/// Turns a doc comment into a text for `kubectl explain`, without a `See [`item`].` and without the
/// brackets of links.
fn describe(text: &str) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(start) = text.to_lowercase().find("see [`") {
        let end = text[start..].find("`].").map_or(text.len(), |length| start + length + 3);
        text.replace_range(start..end, "");
    }
    text.replace("[`", "").replace("`]", "").trim_end_matches([';', ':', ' ']).to_owned()
}

impl JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

/// A schema in the API server has one type in each place. So a value with two possible types has no
/// schema, and only admission checks it.
fn either() -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

impl JsonSchema for LongLivedStale {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LongLivedStale".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        either()
    }
}

impl JsonSchema for Members {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Members".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        either()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Visits every subschema of a schema, with its path.
    fn walk(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Map<String, Value>)) {
        let fields = schema.as_object().unwrap();
        look(path, fields);
        for inner in ["items", "additionalProperties"] {
            fields.get(inner).inspect(|inner| walk(&format!("{path}[]"), inner, look));
        }
        for (name, inner) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
            walk(&format!("{path}.{name}"), inner, look);
        }
    }

    #[test]
    fn schemas_are_structural() {
        let known = [
            "type",
            "description",
            "properties",
            "required",
            "items",
            "additionalProperties",
            "enum",
            "format",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "maxItems",
            "pattern",
            "default",
            "x-kubernetes-validations",
            "x-kubernetes-preserve-unknown-fields",
        ];
        for crd in crds() {
            let root =
                crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
            walk(&crd.spec.names.kind, &serde_json::to_value(root).unwrap(), &mut |path, fields| {
                for (key, value) in fields {
                    assert!(known.contains(&key.as_str()), "{path}: {key}: {value}");
                }
                let typed = fields.contains_key("type");
                assert!(typed != fields.contains_key("x-kubernetes-preserve-unknown-fields"), "{path}");
                if let Some(format) = fields.get("format") {
                    assert!([json!("int32"), json!("int64")].contains(format), "{path}: {format}");
                }
                let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
                assert!(!description.contains("[`"), "{path}: {description}");
            });
        }
    }

    #[test]
    fn descriptions_have_no_code_links() {
        assert_eq!(describe("A key. See [`BgpPeer::password`]."), "A key.");
        assert_eq!(describe("By default so; see [`Network::mode`]."), "By default so");
        assert_eq!(describe("Of a [`Network`],\nalways."), "Of a Network, always.");
    }
}
