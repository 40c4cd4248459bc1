//! Watches of Services, EndpointSlices and Namespaces for the services task ([`crate::services`]).
//!
//! They are a fast path: each change goes to that task at once and never becomes part of a
//! [`Snapshot`](crate::plan::intent::Snapshot). Every node receives all of them, as every
//! kube-proxy does. So a page of a list becomes compact rows before the next page is requested.
//!
//! **The advertisements define the watches.** While none has External or Cluster addresses, only
//! Services of type LoadBalancer are watched. Namespaces are watched only while a selector needs
//! their labels.
//!
//! **Pods do not depend on these watches**: they are optional ([`super::health`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::core::{ObjectMeta, PartialObjectMeta};
use serde::{Deserialize, Deserializer};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use trunkline_api::names::label;
use trunkline_api::{kube_resource, null_default};

use super::cluster::Cluster;
use super::watch::{Change, Metadata, Rows, Selector, Source, Versioned, run};
use crate::services::{
    AddressKind, EndpointInput, NamespaceInput, Protocol, RowChange, ServiceInput, ServiceKey, ServicePort,
    ServicesInput, ServicesPlan, SliceInput, SliceKey, TrafficPolicy,
};

const SERVICES: &str = "services";
const SLICES: &str = "endpointslices";
const NAMESPACES: &str = "namespaces";
/// Services in a page of a list: some hundred kilobytes.
const SERVICES_PAGE: u32 = 250;
/// EndpointSlices in a page of a list: a slice usually has up to 100 endpoints.
const SLICES_PAGE: u32 = 100;

/// The inputs of the watches.
pub struct ServiceWatches {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: Cluster,
    /// The plan's advertisements.
    pub plan: watch::Receiver<Option<Arc<ServicesPlan>>>,
    /// The services task.
    pub inputs: mpsc::Sender<ServicesInput>,
}

/// The watches that the advertisements need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// Services of all types.
    all_types: bool,
    namespaces: bool,
}

impl Wanted {
    fn of(plan: &ServicesPlan) -> Wanted {
        let mut advertisements = plan.advertisements.values();
        let by_user = [AddressKind::External, AddressKind::Cluster];
        Wanted {
            namespaces: advertisements.clone().any(|one| !one.namespaces.is_empty()),
            all_types: advertisements.any(|one| by_user.iter().any(|kind| one.kinds.contains(kind))),
        }
    }

    fn services(self) -> Selector {
        Selector { fields: (!self.all_types).then(|| "spec.type=LoadBalancer".to_owned()), labels: None }
    }
}

/// Watches until the services task ends.
pub async fn follow(mut watches: ServiceWatches) {
    // Without a plan there is no network, and nothing is advertised.
    if watches.plan.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut running: BTreeMap<&'static str, AbortHandle> = BTreeMap::new();
    let mut before: Option<Wanted> = None;
    watches.watch_slices();
    loop {
        let wanted = watches.plan.borrow_and_update().as_deref().map(Wanted::of);
        if let Some(wanted) = wanted.filter(|_| wanted != before) {
            if before.map(|before| before.all_types) != Some(wanted.all_types) {
                // The rows stay until the new watch has its list.
                watches.stop(SERVICES, &mut running);
                running.insert(SERVICES, watches.watch_services(wanted));
            }
            match wanted.namespaces {
                true if !running.contains_key(NAMESPACES) => {
                    running.insert(NAMESPACES, watches.watch_namespaces());
                }
                true => {}
                false => watches.stop(NAMESPACES, &mut running),
            }
            before = Some(wanted);
        }
        if watches.plan.changed().await.is_err() {
            return;
        }
    }
}

impl ServiceWatches {
    fn watch_services(&self, wanted: Wanted) -> AbortHandle {
        let services: Api<Service> = Api::all(self.cluster.connection().client.clone());
        let rows = Rows { api: services, page: SERVICES_PAGE, by_page: true, convert: ServiceRow::from };
        self.watch(SERVICES, rows, wanted.services(), |change| {
            rows_of(change, ServiceRow::into_input).map(ServicesInput::Services)
        })
    }

    fn watch_slices(&self) {
        let slices: Api<EndpointSlice> = Api::all(self.cluster.connection().client.clone());
        let node = self.node.clone();
        let convert = move |slice| SliceRow::of(slice, &node);
        let rows = Rows { api: slices, page: SLICES_PAGE, by_page: true, convert };
        let labels = Some(format!("{},!{}", label::SERVICE_NAME, label::HEADLESS));
        self.watch(SLICES, rows, Selector { fields: None, labels }, |change| {
            rows_of(change, |SliceRow { input, is_address }| (input, is_address)).map(ServicesInput::Slices)
        });
    }

    fn watch_namespaces(&self) -> AbortHandle {
        let namespaces: Api<Namespace> = Api::all(self.cluster.connection().client.clone());
        let input = |namespace: PartialObjectMeta<Namespace>| NamespaceInput {
            name: Arc::from(namespace.metadata.name.unwrap_or_default()),
            labels: namespace.metadata.labels.unwrap_or_default(),
        };
        self.watch(NAMESPACES, Metadata(namespaces), Selector::default(), move |change| {
            let change = match change {
                Change::Listed(all) => RowChange::Listed(all.into_iter().map(input).collect()),
                Change::Applied(one) => RowChange::Applied(input(one)),
                Change::Deleted(one) => RowChange::Deleted(input(one)),
                Change::Page { .. } | Change::Failing(_) => return None,
            };
            Some(ServicesInput::Namespaces(change))
        })
    }

    fn watch<S: Source>(
        &self,
        name: &'static str,
        source: S,
        selector: Selector,
        into: impl Fn(Change<S::Object>) -> Option<ServicesInput> + Send + 'static,
    ) -> AbortHandle {
        let inputs = self.inputs.clone();
        let report = move |change| {
            let (inputs, input) = (inputs.clone(), into(change));
            async move {
                match input {
                    Some(input) => inputs.send(input).await.is_ok(),
                    None => !inputs.is_closed(),
                }
            }
        };
        let health = self.cluster.health().clone();
        health.started_optional(name);
        tokio::spawn(run(source, selector, name.to_owned(), health, report)).abort_handle()
    }

    fn stop(&self, name: &'static str, running: &mut BTreeMap<&'static str, AbortHandle>) {
        if let Some(watch) = running.remove(name) {
            watch.abort();
            self.cluster.health().stopped(name);
        }
    }
}

/// Converts a change of rows. An object without addresses counts as absent.
fn rows_of<R, I>(change: Change<Versioned<R>>, of: impl Fn(R) -> (I, bool)) -> Option<RowChange<I>> {
    let inputs = |all: Vec<Versioned<R>>| {
        let inputs = all.into_iter().map(|one| of(one.row)).filter(|(_, has)| *has);
        inputs.map(|(input, _)| input).collect()
    };
    Some(match change {
        Change::Page { is_first, objects } => RowChange::Page { is_first, rows: inputs(objects) },
        Change::Listed(all) => RowChange::Listed(inputs(all)),
        Change::Applied(one) => match of(one.row) {
            (input, true) => RowChange::Applied(input),
            (input, false) => RowChange::Deleted(input),
        },
        Change::Deleted(one) => RowChange::Deleted(of(one.row).0),
        Change::Failing(_) => return None,
    })
}

// ---- Services

/// The used parts of a Service. The deserializer skips everything else.
#[derive(Clone, Debug, Deserialize)]
struct Service {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_default")]
    spec: ServiceSpec,
    #[serde(default, deserialize_with = "null_default")]
    status: ServiceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "null_default")]
    service_type: String,
    load_balancer_class: Option<String>,
    #[serde(rename = "clusterIP", deserialize_with = "null_default")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "null_default")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "null_default")]
    external_ips: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    ports: Vec<Port>,
    external_traffic_policy: Option<String>,
    internal_traffic_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceStatus {
    #[serde(deserialize_with = "null_default")]
    load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LoadBalancerStatus {
    #[serde(deserialize_with = "null_default")]
    ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ingress {
    ip: Option<String>,
    ip_mode: Option<String>,
}

/// A port of a Service or of an EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<u16>,
}

/// The row of a Service, and whether it has addresses of its own.
#[derive(Clone, Debug, PartialEq)]
struct ServiceRow {
    input: ServiceInput,
    has_addresses: bool,
}

impl ServiceRow {
    fn into_input(self) -> (ServiceInput, bool) {
        (self.input, self.has_addresses)
    }
}

impl From<Service> for ServiceRow {
    fn from(Service { metadata, spec, status }: Service) -> ServiceRow {
        let labels = metadata.labels.unwrap_or_default();
        let has_addresses = spec.service_type != "ExternalName" && spec.cluster_ip != "None";
        let ingress = status.load_balancer.ingress.into_iter();
        let by_proxy = |ingress: &Ingress| ingress.ip_mode.as_deref() == Some("Proxy");
        let ports = spec.ports.into_iter().filter_map(|port| {
            let Port { name, protocol, port } = port;
            let name = Arc::from(name.unwrap_or_default());
            Some(ServicePort { protocol: read_protocol(protocol.as_deref())?, port: port?, name })
        });
        let input = ServiceInput {
            key: ServiceKey {
                namespace: Arc::from(metadata.namespace.unwrap_or_default()),
                name: Arc::from(metadata.name.unwrap_or_default()),
            },
            load_balancer: spec.service_type == "LoadBalancer",
            class: spec.load_balancer_class.map(Arc::from),
            other_proxy: labels.contains_key(label::SERVICE_PROXY_NAME),
            labels,
            load_balancer_addresses: ingress
                .filter(|ingress| !by_proxy(ingress))
                .filter_map(|ingress| ingress.ip?.parse().ok())
                .collect(),
            external_addresses: addresses(&spec.external_ips),
            cluster_addresses: addresses(&spec.cluster_ips),
            ports: ports.collect(),
            external_policy: read_policy(spec.external_traffic_policy.as_deref()),
            internal_policy: read_policy(spec.internal_traffic_policy.as_deref()),
        };
        ServiceRow { input, has_addresses }
    }
}

// ---- EndpointSlices

/// The used parts of an EndpointSlice.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSlice {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    address_type: String,
    #[serde(default, deserialize_with = "null_default")]
    endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "null_default")]
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    #[serde(deserialize_with = "null_default")]
    addresses: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    conditions: EndpointConditions,
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct EndpointConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

/// The row of an EndpointSlice, and whether its endpoints have addresses.
#[derive(Clone, Debug, PartialEq)]
struct SliceRow {
    input: SliceInput,
    is_address: bool,
}

impl SliceRow {
    fn of(EndpointSlice { metadata, address_type, endpoints, ports }: EndpointSlice, node: &str) -> SliceRow {
        let service = metadata.labels.and_then(|mut labels| labels.remove(label::SERVICE_NAME));
        let (remote_ready, remote_terminating, local) =
            SliceInput::count(endpoints.iter().filter_map(|endpoint| endpoint.read(node)));
        let port = |Port { name, protocol, .. }: Port| {
            Some((Arc::from(name.unwrap_or_default()), read_protocol(protocol.as_deref())?))
        };
        let input = SliceInput {
            key: SliceKey {
                namespace: Arc::from(metadata.namespace.unwrap_or_default()),
                name: Arc::from(metadata.name.unwrap_or_default()),
            },
            service: Arc::from(service.unwrap_or_default()),
            v6: address_type == "IPv6",
            ports: ports.into_iter().filter_map(port).collect(),
            remote_ready,
            remote_terminating,
            local,
        };
        SliceRow { input, is_address: matches!(address_type.as_str(), "IPv4" | "IPv6") }
    }
}

impl Endpoint {
    fn read(&self, node: &str) -> Option<EndpointInput> {
        let EndpointConditions { ready, serving, terminating } = self.conditions;
        let ready = ready.unwrap_or(true);
        Some(EndpointInput {
            address: self.addresses.first()?.parse().ok()?,
            local: self.node_name.as_deref() == Some(node),
            ready,
            serving: serving.unwrap_or(ready),
            terminating: terminating.unwrap_or(false),
        })
    }
}

// ---- fields

/// Reads the used parts of an object's metadata. `managedFields` alone would need more memory than
/// everything else of a page: each of its entries is a tree.
fn used_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Used {
        name: Option<String>,
        namespace: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        resource_version: Option<String>,
    }
    let Used { name, namespace, labels, resource_version } = Used::deserialize(deserializer)?;
    Ok(ObjectMeta { name, namespace, labels, resource_version, ..ObjectMeta::default() })
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// An absent protocol is TCP; none for an unknown one.
fn read_protocol(text: Option<&str>) -> Option<Protocol> {
    match text {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

fn read_policy(text: Option<&str>) -> TrafficPolicy {
    if text == Some("Local") { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

kube_resource!(Service, NamespaceResourceScope, "", "v1", "Service", "services");
kube_resource!(
    EndpointSlice,
    NamespaceResourceScope,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices"
);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use trunkline_api::resources::LabelSelector;
    use trunkline_bgp::types::Tag;

    use super::*;
    use crate::services::{EndpointCondition, LocalEndpoint, PlannedAdvertisement};

    fn service(spec: Value, status: Value) -> ServiceRow {
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"},
                         "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}]},
            "spec": spec, "status": status,
        });
        serde_json::from_value::<Service>(object).unwrap().into()
    }

    #[test]
    fn a_service_becomes_a_row() {
        let row = service(
            json!({
                "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:96::7"],
                "externalIPs": ["198.51.100.7"], "loadBalancerClass": "trunkline.io/load-balancer",
                "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "ports": [
                    {"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080},
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "odd", "port": 54, "protocol": "QUIC"},
                ],
            }),
            json!({"loadBalancer": {"ingress": [
                {"ip": "203.0.113.7", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]},
                {"ip": "203.0.113.8", "ipMode": "Proxy"}, {"ip": "2001:db8::7"}, {"hostname": "lb.example"},
            ]}}),
        );
        let (input, has_addresses) = row.into_input();
        assert!(has_addresses && input.load_balancer && !input.other_proxy);
        assert_eq!((&*input.key.namespace, &*input.key.name), ("shop", "web"));
        assert_eq!(input.class.as_deref(), Some("trunkline.io/load-balancer"));
        let texts = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&input.load_balancer_addresses), ["203.0.113.7", "2001:db8::7"]);
        assert_eq!(texts(&input.external_addresses), ["198.51.100.7"]);
        assert_eq!(texts(&input.cluster_addresses), ["10.96.0.7", "fd00:96::7"]);
        let ports: Vec<_> = input.ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
        assert_eq!(ports, [("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53)]);
        assert_eq!(
            (input.external_policy, input.internal_policy),
            (TrafficPolicy::Local, TrafficPolicy::Cluster)
        );
        assert_eq!(input.labels["app"], "web");
    }

    #[test]
    fn services_without_addresses_count_as_absent() {
        for (spec, expected) in [
            (json!({"type": "ClusterIP", "clusterIP": "10.96.0.7", "ports": null}), true),
            (json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}), false),
            (json!({"type": "ExternalName", "externalName": "example.org"}), false),
        ] {
            let row = service(spec.clone(), json!({"loadBalancer": {}}));
            let versioned = |row| Versioned::of("7", row);
            let applied = rows_of(Change::Applied(versioned(row.clone())), ServiceRow::into_input).unwrap();
            assert_eq!(matches!(applied, RowChange::Applied(_)), expected, "{spec}");
            let listed = rows_of(Change::Listed(vec![versioned(row)]), ServiceRow::into_input).unwrap();
            let RowChange::Listed(listed) = listed else { panic!("{listed:?}") };
            assert_eq!(listed.len(), usize::from(expected), "{spec}");
        }
    }

    #[test]
    fn remote_endpoints_are_counted_and_local_ones_are_kept() {
        let endpoint = |address: &str, node: &str, conditions: Value| {
            json!({"addresses": [address, "ignored"], "nodeName": node, "conditions": conditions,
                   "targetRef": {"kind": "Pod", "name": "p"}, "zone": "z"})
        };
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "web-abc", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"port": null}],
            "endpoints": [
                endpoint("10.1.0.5", "n1", json!({"ready": true, "serving": true, "terminating": false})),
                endpoint("10.1.0.6", "n1", json!({"ready": false, "serving": true, "terminating": true})),
                endpoint("10.1.0.7", "n1", json!({"ready": false})),
                endpoint("10.2.0.5", "n2", json!({})),
                endpoint("10.2.0.6", "n2", json!({"ready": false, "serving": true, "terminating": true})),
                endpoint("10.2.0.7", "n3", json!({"ready": false, "serving": false, "terminating": true})),
                endpoint("no address", "n2", Value::Null),
                {"addresses": ["10.3.0.5"], "conditions": null},
            ],
        }))
        .unwrap();
        let SliceRow { input, is_address } = SliceRow::of(slice, "n1");
        assert!(is_address && !input.v6);
        assert_eq!((&*input.key.namespace, &*input.key.name, &*input.service), ("shop", "web-abc", "web"));
        assert_eq!((input.remote_ready, input.remote_terminating), (2, 1));
        let local = |address: &str, condition| LocalEndpoint { address: address.parse().unwrap(), condition };
        let expected = [
            local("10.1.0.5", EndpointCondition::Ready),
            local("10.1.0.6", EndpointCondition::Terminating),
            local("10.1.0.7", EndpointCondition::NotReady),
        ];
        assert_eq!(*input.local, expected);
        let ports = [(Arc::from("http"), Protocol::Tcp), (Arc::from(""), Protocol::Tcp)];
        assert_eq!(*input.ports, ports);
    }

    #[test]
    fn advertisements_define_the_watches() {
        let plan = |kinds: &[AddressKind], namespaces: &[(&str, &str)]| {
            let match_labels = namespaces.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let advertisement = PlannedAdvertisement {
                tag: Tag(1),
                services: LabelSelector::default(),
                namespaces: LabelSelector { match_labels, ..LabelSelector::default() },
                nodes: LabelSelector::default(),
                peers: Vec::new(),
                pools: Default::default(),
                kinds: kinds.iter().copied().collect(),
                external_cidrs: Vec::new(),
                withdraw_cordoned: false,
                withdraw_excluded: true,
                aggregation: Default::default(),
                weights: false,
                graceful_shutdown: Default::default(),
            };
            ServicesPlan { advertisements: [("a".into(), advertisement)].into(), ..ServicesPlan::default() }
        };
        let usual = Wanted::of(&ServicesPlan::default());
        assert_eq!(usual.services().fields.as_deref(), Some("spec.type=LoadBalancer"));
        assert_eq!(Wanted::of(&plan(&[AddressKind::LoadBalancer], &[])), usual);
        let wide = Wanted::of(&plan(&[AddressKind::LoadBalancer, AddressKind::External], &[("a", "b")]));
        assert_eq!(wide, Wanted { all_types: true, namespaces: true });
        assert_eq!(wide.services().fields, None);
    }
}
