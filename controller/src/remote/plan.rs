//! The objects to mirror for a remote cluster: a pure function.
//!
//! A subnet is refused if its prefix overlaps a Subnet of this cluster, or a mirrored subnet of a
//! third cluster: the agents route by prefixes. A tunnel connects two overlays only with the same
//! netID. With different netIDs, neither the overlay's subnets nor the nodes are mirrored.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use rustc_hash::FxHasher;
use trunkline_api::kept;
use trunkline_api::resources::{
    NetworkType, RemoteEndpointSliceSpec, RemoteService, RemoteSubnetSpec, RemoteVtepSpec,
};
use trunkline_api::validate::overlaps;

use super::bounds::MAX_NODE_ENDPOINTS;
use super::status::MAX_CONDITION;
use super::view::View;

/// The prefixes that subnets of a remote cluster must not overlap, and the overlay's netID.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Subnets of this cluster, by name.
    pub subnets: Vec<(String, IpNet)>,
    /// Mirrored subnets of other remote clusters.
    pub others: Vec<MirroredSubnet>,
    /// Mirrored subnets of this remote cluster.
    pub mirrored: Vec<MirroredSubnet>,
    /// Addresses of this cluster's nodes, and ClusterIPs of its Services.
    pub taken: HashSet<IpAddr>,
    /// Tunnel endpoints and local addresses of other remote clusters.
    pub claimed: HashSet<IpAddr>,
    /// Whether this cluster's Services were not listed. Until then, `taken` is incomplete.
    pub is_unlisted: bool,
    /// The netID of this cluster's overlay.
    pub overlay_net_id: Option<u32>,
}

/// A RemoteSubnet in this cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct MirroredSubnet {
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// Its name.
    pub name: String,
    /// Its prefix.
    pub prefix: IpNet,
}

impl Local {
    /// The RemoteSubnet of another cluster that refuses a subnet. Of two RemoteSubnets in this
    /// cluster the older one stays.
    fn refuses(&self, name: &str, prefix: &IpNet) -> Option<&MirroredSubnet> {
        let own = self.mirrored.iter().find(|own| own.name == name && own.prefix == *prefix);
        let is_older = |other: &MirroredSubnet| {
            own.is_none_or(|own| (other.created, &other.name) < (own.created, &own.name))
        };
        self.others.iter().find(|other| overlaps(&other.prefix, prefix) && is_older(other))
    }

    /// Whether a node's address has an owner in this cluster or in a third one. An address in a
    /// mirrored subnet needs no such check: a third cluster could claim it as that of its node.
    fn has(&self, address: &IpAddr) -> bool {
        self.claimed.contains(address)
            || self.subnets.iter().any(|(_, prefix)| prefix.contains(address))
            || self.others.iter().any(|other| other.prefix.contains(address))
    }
}

/// Whether no endpoint can have an address.
fn is_special(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    is_link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified()
}

/// The objects to mirror for a remote cluster, and the refused parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The RemoteSubnets, by name.
    pub subnets: BTreeMap<String, RemoteSubnetSpec>,
    /// The RemoteVteps, by name.
    pub vteps: BTreeMap<String, RemoteVtepSpec>,
    /// The RemoteEndpointSlices, by name; none before the lists of Services and EndpointSlices.
    pub slices: Option<BTreeMap<String, RemoteEndpointSliceSpec>>,
    /// Number of refused endpoints of Services: an address is neither in a mirrored subnet nor that
    /// of a mirrored node, or has another owner.
    pub refused_endpoints: usize,
    /// The refused subnets, by name, with the reason.
    pub refused: BTreeMap<String, String>,
    /// The fault of the overlay's netID.
    pub net_id_fault: Option<String>,
    /// The kinds with more objects than the controller reads, and objects above a bound.
    pub size_fault: Option<String>,
    /// Number of objects that were left out, or of their events.
    pub left_out: usize,
}

impl Plan {
    /// Number of the addresses of pods on the mirrored nodes.
    pub fn endpoints(&self) -> usize {
        self.vteps.values().map(|vtep| vtep.endpoint_ip_list.len()).sum()
    }
}

/// The name of the object that mirrors an object of a remote cluster.
pub fn mirrored_name(cluster: &str, name: &str) -> String {
    shortened(format!("{cluster}.{name}"))
}

/// Most octets of the reason for which a subnet is refused.
const MAX_REFUSAL: usize = 1_000;

/// The fix of overlapping prefixes.
const FIX: &str = "choose another prefix in one of the clusters";

/// Whether an object can have a name. The remote API server may answer with any text, and the name
/// becomes a part of a URL.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// The longest name of an object, in octets.
const LONGEST: usize = 253;

/// The name of a RemoteEndpointSlice, and of the EndpointSlice that is written for it.
fn slice_name(cluster: &str, namespace: &str, name: &str) -> String {
    shortened(format!("{cluster}.{namespace}.{name}"))
}

/// A name of at most [`LONGEST`] octets. A hash replaces the end of a longer one.
fn shortened(full: String) -> String {
    if full.len() <= LONGEST {
        return full;
    }
    let mut hasher = FxHasher::default();
    full.hash(&mut hasher);
    let hash = format!("-{:016x}", hasher.finish());
    let kept = full[..LONGEST - hash.len()].trim_end_matches(['.', '-']);
    format!("{kept}{hash}")
}

/// Plans the objects for a remote cluster.
pub fn plan(cluster: &str, view: &View, local: &Local) -> Plan {
    let mut plan = Plan { left_out: view.left_out(), ..Plan::default() };
    let mut sizes = Vec::new();
    let kinds: Vec<String> = view.excess().map(|(kind, limit, _)| format!("{limit} {kind}")).collect();
    if !kinds.is_empty() {
        sizes.push(format!(
            "{cluster} has more than {}: the controller leaves out further objects: delete unused ones",
            kinds.join(" and ")
        ));
    }
    sizes.extend(view.faults());
    let remote = view.overlay_net_id();
    if let (Some(own), Some(remote)) = (local.overlay_net_id, remote)
        && own != remote
    {
        plan.net_id_fault = Some(format!(
            "the overlay of this cluster has netID {own}, and that of {cluster} has {remote}: write the same netID into both"
        ));
    }
    let mut accepted = BTreeSet::new();
    let mut prefixes = Vec::new();
    for (name, (network_type, range)) in view.subnets().into_iter().filter(|(name, _)| is_name(name)) {
        let prefix = match range.parse() {
            Ok(range) => range.cidr,
            Err(error) => {
                let refusal = format!("spec.range: {error}");
                plan.refused.insert(name.to_owned(), kept::cut(&refusal, MAX_REFUSAL).to_owned());
                continue;
            }
        };
        let object = mirrored_name(cluster, name);
        let crosses = |(_, other): &&(String, IpNet)| overlaps(other, &prefix);
        let refusal = if let Some((other, known)) = local.subnets.iter().find(crosses) {
            Some(format!("{prefix} overlaps {known} of Subnet {other} of this cluster: {FIX}"))
        } else if let Some(MirroredSubnet { name: other, prefix: known, .. }) =
            local.refuses(&object, &prefix)
        {
            Some(format!("{prefix} overlaps {known} of RemoteSubnet {other}: {FIX}"))
        } else if network_type == NetworkType::Overlay {
            plan.net_id_fault.clone()
        } else {
            None
        };
        if let Some(refusal) = refusal {
            plan.refused.insert(name.to_owned(), refusal);
            continue;
        }
        accepted.insert(name);
        prefixes.push(prefix);
        let spec = RemoteSubnetSpec {
            range: range.clone(),
            network_type: Some(network_type),
            cluster_name: cluster.to_owned(),
        };
        plan.subnets.insert(object, spec);
    }
    if plan.net_id_fault.is_none() {
        plan_vteps(cluster, view, &accepted, &mut plan, &mut sizes);
    }
    if view.has_services() && !local.is_unlisted {
        plan_slices(cluster, view, local, &prefixes, &mut plan);
    }
    plan.size_fault = (!sizes.is_empty()).then(|| kept::join(&sizes, MAX_CONDITION));
    plan
}

fn plan_vteps(
    cluster: &str,
    view: &View,
    accepted: &BTreeSet<&str>,
    plan: &mut Plan,
    sizes: &mut Vec<String>,
) {
    for (node, vtep) in view.nodes().filter(|(node, vtep)| is_name(node) && !vtep.ip.is_empty()) {
        let mut endpoints = view.endpoints(node, accepted);
        if endpoints.len() > MAX_NODE_ENDPOINTS {
            sizes.push(format!(
                "node {node} has {} addresses of pods, and at most {MAX_NODE_ENDPOINTS} are mirrored: move pods to other nodes",
                endpoints.len()
            ));
            plan.left_out += endpoints.len() - MAX_NODE_ENDPOINTS;
            endpoints.truncate(MAX_NODE_ENDPOINTS);
        }
        let spec = RemoteVtepSpec {
            cluster_name: cluster.to_owned(),
            node_name: node.to_owned(),
            ip: vtep.ip.clone(),
            mac: vtep.mac.clone(),
            local_ips: vtep.local_ips.clone(),
            endpoint_ip_list: endpoints.iter().map(ToString::to_string).collect(),
        };
        plan.vteps.insert(mirrored_name(cluster, node), spec);
    }
}

/// Endpoints of a remote cluster's Services may only have addresses of its mirrored subnets and
/// nodes. The remote cluster writes the addresses of its nodes itself, so an address with an owner
/// in this cluster or in a third one is refused.
fn plan_slices(cluster: &str, view: &View, local: &Local, prefixes: &[IpNet], plan: &mut Plan) {
    let of_nodes: BTreeSet<IpAddr> = plan
        .vteps
        .values()
        .flat_map(|vtep| vtep.local_ips.iter().chain([&vtep.ip]))
        .filter_map(|address| address.parse().ok())
        .collect();
    let mut slices = BTreeMap::new();
    let slices_of = view.global_slices().filter(|((namespace, name), _)| is_name(namespace) && is_name(name));
    for ((namespace, name), slice) in slices_of {
        let v6 = match slice.address_type.as_str() {
            "IPv4" => false,
            "IPv6" => true,
            _ => continue,
        };
        let is_accepted = |address: &String| {
            address.parse().is_ok_and(|address: IpAddr| {
                let is_pod = prefixes.iter().any(|prefix| prefix.contains(&address));
                let is_node = of_nodes.contains(&address) && !local.has(&address);
                address.is_ipv6() == v6
                    && (is_pod || is_node)
                    && !is_special(&address)
                    && !local.taken.contains(&address)
            })
        };
        let all = slice.endpoints.iter();
        let endpoints: Vec<_> =
            all.filter(|endpoint| endpoint.addresses.iter().all(is_accepted)).cloned().collect();
        plan.refused_endpoints += slice.endpoints.len() - endpoints.len();
        let spec = RemoteEndpointSliceSpec {
            remote_service: RemoteService {
                cluster: cluster.to_owned(),
                name: slice.service.clone(),
                namespace: namespace.clone(),
            },
            address_type: slice.address_type.clone(),
            endpoints,
            ports: slice.ports.clone(),
        };
        slices.insert(slice_name(cluster, namespace, name), spec);
    }
    plan.slices = Some(slices);
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};
    use trunkline_api::kube::{Kind, Lenient};

    use super::super::view::{Change, Limits};
    use super::*;

    fn object<S: Kind>(value: Value) -> Lenient<S> {
        serde_json::from_value(value).unwrap()
    }

    /// A cluster with a VLAN, an overlay with netID 4, node n1 with a pod of each, and node n2 without a
    /// tunnel endpoint.
    fn view() -> View {
        let mut view = View::default();
        fill(&mut view);
        view
    }

    fn fill(view: &mut View) {
        for (name, spec) in [
            ("vlan", json!({"type": "Underlay", "netID": 7})),
            ("over", json!({"type": "Overlay", "netID": 4})),
        ] {
            view.apply(Change::Network(Event::Apply(object(
                json!({"metadata": {"name": name}, "spec": spec}),
            ))));
        }
        for (name, network, cidr) in [("v4", "vlan", "10.1.0.0/24"), ("o4", "over", "10.2.0.0/16")] {
            let spec = json!({"network": network, "range": {"version": "4", "cidr": cidr}});
            view.apply(Change::Subnet(Event::Apply(object(
                json!({"metadata": {"name": name}, "spec": spec}),
            ))));
        }
        let vtep =
            json!({"vtepInfo": {"ip": "192.0.2.1", "mac": "02:00:00:00:00:01", "localIPs": ["192.0.2.1"]}});
        for (name, spec) in [("n1", vtep), ("n2", json!({}))] {
            view.apply(Change::Node(Event::Apply(object(json!({"metadata": {"name": name}, "spec": spec})))));
        }
        for (ip, subnet) in [("10.1.0.5/24", "v4"), ("10.2.0.5/16", "o4")] {
            view.apply(instance(ip, subnet, "n1"));
        }
    }

    fn instance(ip: &str, subnet: &str, node: &str) -> Change {
        let name = ip.split('/').next().unwrap().replace('.', "-");
        Change::Instance(Event::Apply(object(json!({
            "metadata": {"name": name, "namespace": "web", "labels": {"networking.alibaba.com/node": node}},
            "spec": {"network": "n", "subnet": subnet, "address": {"version": "4", "ip": ip, "mac": ""},
                     "binding": {"nodeName": node, "podName": "p", "podUID": "u"}},
        }))))
    }

    fn endpoints(plan: &Plan) -> Vec<String> {
        plan.vteps.values().flat_map(|vtep| vtep.endpoint_ip_list.clone()).collect()
    }

    #[test]
    fn subnets_and_nodes_are_mirrored() {
        let local = Local { overlay_net_id: Some(4), ..Local::default() };
        let found = plan("east", &view(), &local);
        let types: Vec<_> =
            found.subnets.iter().map(|(name, spec)| (name.as_str(), spec.network_type)).collect();
        assert_eq!(
            types,
            [("east.o4", Some(NetworkType::Overlay)), ("east.v4", Some(NetworkType::Underlay))]
        );
        assert_eq!(found.vteps.keys().collect::<Vec<_>>(), ["east.n1"]);
        let vtep = &found.vteps["east.n1"];
        assert_eq!((vtep.node_name.as_str(), vtep.ip.as_str()), ("n1", "192.0.2.1"));
        assert_eq!(vtep.endpoint_ip_list, ["10.1.0.5", "10.2.0.5"]);
        assert_eq!((found.endpoints(), found.refused.len(), &found.net_id_fault), (2, 0, &None));
    }

    fn subnet(name: &str, prefix: &str, created: i64) -> MirroredSubnet {
        let created = Timestamp::from_second(created).ok();
        MirroredSubnet { created, name: name.to_owned(), prefix: prefix.parse().unwrap() }
    }

    #[test]
    fn the_older_one_of_two_overlapping_subnets_stays() {
        let other = |created| vec![subnet("west.v4", "10.1.0.0/24", created)];
        for (others, mirrored, is_refused) in [
            (other(5), vec![], true),
            (other(5), vec![subnet("east.v4", "10.1.0.0/24", 4)], false),
            (other(3), vec![subnet("east.v4", "10.1.0.0/24", 4)], true),
            (other(4), vec![subnet("east.v4", "10.1.0.0/24", 4)], false),
            // The remote cluster has changed the prefix of an older subnet.
            (other(5), vec![subnet("east.v4", "10.9.0.0/24", 4)], true),
        ] {
            let local = Local { others, mirrored, ..Local::default() };
            assert_eq!(plan("east", &view(), &local).refused.contains_key("v4"), is_refused, "{local:?}");
        }
    }

    #[test]
    fn too_many_objects_are_a_fault_with_the_limit() {
        let mut view = View::new(Limits { subnets: 1, nodes: 0, ..Limits::default() });
        fill(&mut view);
        let found = plan("east", &view, &Local::default());
        let words = "east has more than 1 Subnets and 0 NodeInfos: the controller leaves out further objects";
        assert!(found.size_fault.as_ref().is_some_and(|fault| fault.starts_with(words)), "{found:?}");
        assert_eq!((found.left_out, found.subnets.len(), found.vteps.len()), (2, 1, 0));
        assert_eq!(plan("east", &self::view(), &Local::default()).size_fault, None);
    }

    #[test]
    fn overlapping_subnets_are_refused_with_their_endpoints() {
        let prefix = |text: &str| ("a".to_owned(), text.parse().unwrap());
        for (local, words) in [
            (
                Local { subnets: vec![prefix("10.1.0.128/25")], ..Local::default() },
                "10.1.0.0/24 overlaps 10.1.0.128/25 of Subnet a of this cluster: choose another prefix in one of the clusters",
            ),
            (
                Local { others: vec![subnet("a", "10.0.0.0/15", 1)], ..Local::default() },
                "10.1.0.0/24 overlaps 10.0.0.0/15 of RemoteSubnet a: choose another prefix in one of the clusters",
            ),
        ] {
            let found = plan("east", &view(), &local);
            assert_eq!(found.refused, BTreeMap::from([("v4".to_owned(), words.to_owned())]));
            assert_eq!(endpoints(&found), ["10.2.0.5"]);
        }
    }

    #[test]
    fn overlays_with_different_net_ids_are_apart() {
        let local = Local { overlay_net_id: Some(5), ..Local::default() };
        let found = plan("east", &view(), &local);
        assert_eq!(found.subnets.keys().collect::<Vec<_>>(), ["east.v4"]);
        assert!(found.vteps.is_empty() && found.refused.contains_key("o4"));
        let fault = found.net_id_fault.unwrap();
        assert_eq!(
            fault,
            "the overlay of this cluster has netID 5, and that of east has 4: write the same netID into both"
        );
        let none = plan("east", &view(), &Local::default());
        assert!(none.net_id_fault.is_none(), "a cluster without an overlay");
    }

    fn service(name: &str, global: bool) -> Change {
        Change::Service(Event::Apply(
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": "shop",
                             "annotations": {"networking.alibaba.com/global-service": global.to_string()}},
            }))
            .unwrap(),
        ))
    }

    fn slice(name: &str, service: &str, addresses: &[&str]) -> Change {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "nodeName": "n1", "conditions": {"ready": true}}))
            .collect();
        Change::Slice(Event::Apply(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80}],
            }))
            .unwrap(),
        ))
    }

    #[test]
    fn endpoints_of_global_services_are_mirrored() {
        let mut view = view();
        assert_eq!(plan("east", &view, &Local::default()).slices, None, "not listed: left as they are");
        for change in [
            Change::Service(Event::Init),
            Change::Service(Event::InitDone),
            Change::Slice(Event::Init),
            Change::Slice(Event::InitDone),
            service("web", true),
            service("api", false),
            slice("web-1", "web", &["10.1.0.5", "169.254.169.254", "127.0.0.1", "192.0.2.1", "fd00::1"]),
            slice("api-1", "api", &["10.1.0.5"]),
        ] {
            view.apply(change);
        }
        let found = plan("east", &view, &Local::default());
        let slices = found.slices.unwrap();
        assert_eq!(slices.keys().collect::<Vec<_>>(), ["east.shop.web-1"]);
        let spec = &slices["east.shop.web-1"];
        let addresses: Vec<_> = spec.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
        assert_eq!(addresses, ["10.1.0.5", "192.0.2.1"], "a pod, and a node");
        assert_eq!((found.refused_endpoints, spec.ports[0].protocol.as_deref()), (3, Some("TCP")));
        assert_eq!(spec.endpoints[0].node_name, None);
        view.apply(service("api", true));
        assert_eq!(plan("east", &view, &Local::default()).slices.unwrap().len(), 2);
        view.apply(service("web", false));
        view.apply(service("api", false));
        assert_eq!(plan("east", &view, &Local::default()).slices.unwrap().len(), 0);
    }

    #[test]
    fn endpoints_with_addresses_of_others_are_refused() {
        let mut view = view();
        let claimed = [
            "172.16.0.1",
            "198.51.100.1",
            "10.96.0.10",
            "10.3.0.5",
            "10.4.0.5",
            "127.0.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "0.0.0.0",
            "192.0.2.7",
        ];
        let spec = json!({"vtepInfo": {"ip": "192.0.2.1", "mac": "", "localIPs": claimed}});
        view.apply(Change::Node(Event::Apply(object(json!({"metadata": {"name": "n1"}, "spec": spec})))));
        for change in [
            Change::Service(Event::Init),
            Change::Service(Event::InitDone),
            Change::Slice(Event::Init),
            Change::Slice(Event::InitDone),
            service("web", true),
            slice("web-1", "web", &claimed),
        ] {
            view.apply(change);
        }
        let mut local = Local {
            subnets: vec![("a".to_owned(), "10.3.0.0/24".parse().unwrap())],
            others: vec![subnet("west.a", "10.4.0.0/24", 1)],
            taken: ["172.16.0.1", "10.96.0.10"].iter().map(|address| address.parse().unwrap()).collect(),
            claimed: HashSet::from(["198.51.100.1".parse().unwrap()]),
            is_unlisted: true,
            ..Local::default()
        };
        assert_eq!(plan("east", &view, &local).slices, None, "the ClusterIPs are unknown");
        local.is_unlisted = false;
        let found = plan("east", &view, &local);
        let slices = found.slices.unwrap();
        let endpoints = &slices["east.shop.web-1"].endpoints;
        let accepted: Vec<_> = endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
        assert_eq!(accepted, ["192.0.2.7"]);
        assert_eq!(found.refused_endpoints, 9);
    }

    #[test]
    fn an_impossible_name_is_not_mirrored() {
        let mut view = view();
        let long = "\u{e9}".repeat(200);
        for name in ["n1/status", "n1?force=true", "../n1", "", &long] {
            let spec = json!({"vtepInfo": {"ip": "192.0.2.9", "mac": "", "localIPs": []}});
            view.apply(Change::Node(Event::Apply(object(json!({"metadata": {"name": name}, "spec": spec})))));
        }
        assert_eq!(plan("east", &view, &Local::default()).vteps.keys().collect::<Vec<_>>(), ["east.n1"]);
    }

    #[test]
    fn names_of_slices_are_not_too_long() {
        let (long, other) = ("a".repeat(200), "b".repeat(60));
        let name = slice_name("east", &other, &long);
        assert_eq!(name.len(), LONGEST);
        assert_ne!(name, slice_name("east", &other, &format!("{long}-2")));
        assert_eq!(slice_name("east", "shop", "web-1"), "east.shop.web-1");
        let node = mirrored_name("east", &"n".repeat(253));
        assert_eq!(node.len(), LONGEST);
        assert_ne!(node, mirrored_name("east", &format!("{}m", "n".repeat(252))));
        assert_eq!(mirrored_name("east", "n1"), "east.n1");
    }

    #[test]
    fn a_node_has_a_bounded_number_of_pods() {
        let mut view = view();
        for number in 0..6_000_u32 {
            let address = std::net::Ipv4Addr::from(0x0a02_0100 + number);
            view.apply(instance(&format!("{address}/16"), "o4", "n1"));
        }
        let found = plan("east", &view, &Local::default());
        assert_eq!((found.endpoints(), found.left_out), (4_096, 6_002 - 4_096));
        let text = found.size_fault.unwrap();
        assert!(text.starts_with("node n1 has 6002 addresses of pods, and at most 4096"), "{text}");
    }

    #[test]
    fn moved_and_removed_pods_change_their_nodes() {
        let mut view = view();
        let local = Local::default();
        view.apply(instance("10.2.0.5/16", "o4", "n3"));
        assert_eq!(endpoints(&plan("east", &view, &local)), ["10.1.0.5"], "n3 has no tunnel endpoint");
        view.apply(instance("10.2.0.5/16", "o4", ""));
        assert_eq!(endpoints(&plan("east", &view, &local)), ["10.1.0.5"], "retained");
        view.apply(instance("10.2.0.5/16", "o4", "n1"));
        assert_eq!(endpoints(&plan("east", &view, &local)).len(), 2);
        // A new list without the other pod.
        view.apply(Change::Instance(Event::Init));
        let Change::Instance(Event::Apply(kept)) = instance("10.2.0.5/16", "o4", "n1") else { panic!() };
        view.apply(Change::Instance(Event::InitApply(kept)));
        view.apply(Change::Instance(Event::InitDone));
        assert_eq!(endpoints(&plan("east", &view, &local)), ["10.2.0.5"]);
    }
}
