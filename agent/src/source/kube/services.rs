//! Watches of Services, EndpointSlices and Namespaces for the services task ([`crate::services`]).
//!
//! They are a fast path: each change goes to that task at once and never becomes part of a
//! [`Snapshot`](crate::plan::intent::Snapshot). Every node receives all of them, as every
//! kube-proxy does. So a page of a list becomes compact rows before the next page is requested.
//!
//! **The advertisements define the watches.** While none has External or Cluster addresses, only
//! Services of type LoadBalancer are watched. Rows have addresses of these kinds only while an
//! advertisement has the kind. Namespaces are watched only while a selector needs
//! their labels.
//!
//! **Pods do not depend on these watches**: they are optional ([`super::health`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kube::Api;
use kube::core::ObjectMeta;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use trunkline_api::kube::used_metadata;
use trunkline_api::names::label;
use trunkline_api::{kept, kube_resource, null_default};

use super::cluster::Cluster;
use super::watch::{Change, Rows, Selector, Source, Versioned, run};
use crate::services::bounds::{Excess, MAX_ADDRESSES};
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
/// Namespaces in a page of a list.
const NAMESPACES_PAGE: u32 = 250;

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
    /// Addresses of these kinds, and Services of all types.
    external: bool,
    cluster: bool,
    namespaces: bool,
}

impl Wanted {
    fn of(plan: &ServicesPlan) -> Wanted {
        let has = |kind| plan.advertisements.values().any(|one| one.kinds.contains(&kind));
        Wanted {
            namespaces: plan.advertisements.values().any(|one| !one.namespaces.is_empty()),
            external: has(AddressKind::External),
            cluster: has(AddressKind::Cluster),
        }
    }

    fn services(self) -> Selector {
        let all_types = self.external || self.cluster;
        Selector { fields: (!all_types).then(|| "spec.type=LoadBalancer".to_owned()), labels: None }
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
            if before.map(|before| (before.external, before.cluster))
                != Some((wanted.external, wanted.cluster))
            {
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
        let convert = move |service| ServiceRow::of(service, wanted);
        let rows = Rows { api: services, page: SERVICES_PAGE, by_page: true, convert };
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
        let convert = |Namespace { metadata }| NamespaceInput {
            name: Arc::from(metadata.name.unwrap_or_default()),
            labels: kept::bounded_labels(metadata.labels),
        };
        let rows = Rows { api: namespaces, page: NAMESPACES_PAGE, by_page: false, convert };
        self.watch(NAMESPACES, rows, Selector::default(), |change| {
            rows_of(change, |input| (input, true)).map(ServicesInput::Namespaces)
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

    /// The row of a Service, with the kinds of addresses that the advertisements have.
    fn of(Service { metadata, spec, status }: Service, wanted: Wanted) -> ServiceRow {
        let other_proxy =
            metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::SERVICE_PROXY_NAME));
        let has_addresses = spec.service_type != "ExternalName" && spec.cluster_ip != "None";
        let ingress = status.load_balancer.ingress.into_iter();
        let by_proxy = |ingress: &Ingress| ingress.ip_mode.as_deref() == Some("Proxy");
        let is_large = spec.ports.len() > kept::MAX_SERVICE_PORTS;
        let mut excess = is_large.then_some(Excess::Ports(spec.ports.len()));
        let ports = spec.ports.into_iter().filter(|_| !is_large).filter_map(|port| {
            let Port { name, protocol, port } = port;
            let name = Arc::from(name.unwrap_or_default());
            Some(ServicePort { protocol: read_protocol(protocol.as_deref())?, port: port?, name })
        });
        let mut load_balancer_addresses: Vec<IpAddr> = ingress
            .filter(|ingress| !by_proxy(ingress))
            .filter_map(|ingress| ingress.ip?.parse().ok())
            .collect();
        let of_kind = |texts: &[String], is_wanted| if is_wanted { addresses(texts) } else { Vec::new() };
        let mut external_addresses = of_kind(&spec.external_ips, wanted.external);
        let mut cluster_addresses = of_kind(&spec.cluster_ips, wanted.cluster);
        let (mut count, mut left) = (0, MAX_ADDRESSES);
        for addresses in [&mut load_balancer_addresses, &mut external_addresses, &mut cluster_addresses] {
            count += addresses.len();
            addresses.truncate(left);
            left -= addresses.len();
            addresses.shrink_to_fit();
        }
        if count > MAX_ADDRESSES {
            excess.get_or_insert(Excess::Addresses(count));
        }
        let input = ServiceInput {
            key: ServiceKey {
                namespace: Arc::from(metadata.namespace.unwrap_or_default()),
                name: Arc::from(metadata.name.unwrap_or_default()),
            },
            load_balancer: spec.service_type == "LoadBalancer",
            class: spec.load_balancer_class.map(Arc::from),
            other_proxy,
            labels: kept::bounded_labels(metadata.labels),
            load_balancer_addresses,
            external_addresses,
            cluster_addresses,
            ports: ports.collect(),
            external_policy: read_policy(spec.external_traffic_policy.as_deref()),
            internal_policy: read_policy(spec.internal_traffic_policy.as_deref()),
            excess,
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
        let is_large = ports.len() > kept::MAX_SERVICE_PORTS;
        let excess = is_large.then_some(Excess::SlicePorts(ports.len()));
        let input = SliceInput {
            key: SliceKey {
                namespace: Arc::from(metadata.namespace.unwrap_or_default()),
                name: Arc::from(metadata.name.unwrap_or_default()),
            },
            service: Arc::from(service.unwrap_or_default()),
            v6: address_type == "IPv6",
            ports: ports.into_iter().filter(|_| !is_large).filter_map(port).collect(),
            excess,
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

// ---- Namespaces

/// The used part of a Namespace. Each page of a list is converted as soon as it arrives.
#[derive(Clone, Debug, Deserialize)]
struct Namespace {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
}

// ---- fields

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

kube_resource!(Namespace, ClusterResourceScope, "", "v1", "Namespace", "namespaces");
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

    const ALL: Wanted = Wanted { external: true, cluster: true, namespaces: true };

    fn service(spec: Value, status: Value) -> ServiceRow {
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"},
                         "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}]},
            "spec": spec, "status": status,
        });
        ServiceRow::of(serde_json::from_value::<Service>(object).unwrap(), ALL)
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
        assert_eq!(input.labels.unwrap()["app"], "web");
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
        assert_eq!(wide, Wanted { external: true, cluster: false, namespaces: true });
        assert_eq!(wide.services().fields, None);
    }

    /// A Service of a hostile tenant, without the parts that have no bound.
    fn hostile(metadata: &Value, spec: &Value, wanted: Wanted) -> ServiceInput {
        let mut object =
            json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"type": "LoadBalancer"}});
        for (part, with) in [("metadata", metadata), ("spec", spec)] {
            let with = with.as_object().unwrap().clone();
            object[part].as_object_mut().unwrap().extend(with);
        }
        ServiceRow::of(serde_json::from_value(object).unwrap(), wanted).input
    }

    /// The approximate size in memory.
    fn size(row: &impl std::fmt::Debug) -> usize {
        format!("{row:?}").len()
    }

    #[test]
    fn services_above_a_bound_cost_little() {
        let labels: BTreeMap<String, String> =
            (0..10_000).map(|number| (format!("team/{number}"), "x".repeat(63))).collect();
        let ports: Vec<Value> =
            (1..=20_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let ips: Vec<String> = (0..5000).map(|of| format!("192.0.{}.{}", of / 250, of % 250)).collect();
        let none = json!({});

        let large = hostile(&json!({"labels": labels}), &none, ALL);
        assert!(large.labels.is_err() && large.excess.is_none() && size(&large) < 1000, "{}", size(&large));
        let large = hostile(&none, &json!({"ports": ports}), ALL);
        assert_eq!((large.excess, large.ports.len()), (Some(Excess::Ports(20_000)), 0));
        let large = hostile(&none, &json!({"externalIPs": ips, "clusterIPs": ["10.96.0.7"]}), ALL);
        assert_eq!(large.excess, Some(Excess::Addresses(5001)));
        assert_eq!((large.external_addresses.len(), large.cluster_addresses.len()), (MAX_ADDRESSES, 0));
        let most: Vec<&String> = ips.iter().take(MAX_ADDRESSES).collect();
        assert_eq!(hostile(&none, &json!({"externalIPs": most}), ALL).excess, None);
    }

    #[test]
    fn the_label_of_another_proxy_counts_in_large_labels_too() {
        let mut labels: BTreeMap<String, String> =
            (0..10_000).map(|number| (format!("team/{number}"), "x".repeat(63))).collect();
        labels.insert(label::SERVICE_PROXY_NAME.to_owned(), "other".to_owned());
        assert!(hostile(&json!({"labels": labels}), &json!({}), ALL).other_proxy);
    }

    #[test]
    fn addresses_of_a_kind_without_advertisement_are_not_kept() {
        let ips: Vec<String> = (0..5000).map(|of| format!("192.0.{}.{}", of / 250, of % 250)).collect();
        let spec = json!({"externalIPs": ips, "clusterIPs": ["10.96.0.7"]});
        let usual = Wanted::of(&ServicesPlan::default());
        let input = hostile(&json!({}), &spec, usual);
        assert_eq!((input.external_addresses.len(), input.cluster_addresses.len()), (0, 0));
        assert_eq!(input.excess, None);
        let input = hostile(&json!({}), &spec, Wanted { cluster: true, ..usual });
        assert_eq!((input.external_addresses.len(), input.cluster_addresses.len()), (0, 1));
    }

    #[test]
    fn a_slice_with_too_many_ports_has_none() {
        let slice = |ports: usize| {
            let ports: Vec<Value> =
                (0..ports).map(|port| json!({"name": format!("p{port}"), "port": 1})).collect();
            let object = json!({"metadata": {"name": "web-a", "namespace": "shop"}, "addressType": "IPv4", "ports": ports});
            SliceRow::of(serde_json::from_value(object).unwrap(), "n1").input
        };
        let (most, above) = (slice(kept::MAX_SERVICE_PORTS), slice(kept::MAX_SERVICE_PORTS + 1));
        assert_eq!((most.ports.len(), most.excess), (kept::MAX_SERVICE_PORTS, None));
        assert_eq!((above.ports.len(), above.excess), (0, Some(Excess::SlicePorts(4097))));
    }
}
