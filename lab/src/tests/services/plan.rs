//! Places in the Services matrix: nodes, networks, pods with their addresses, and the objects for
//! kube-proxy. The whole plan is fixed before anything runs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use trunkline_api::names::{LOAD_BALANCER_CLASS, annotation};

use super::cells::{Backend, Cell, Client, Frontend, Policy, Promise};
use super::world::endpoints;

/// Port of every Service, and port of its backend.
const PORT: u16 = 80;
pub(super) const BACKEND_PORT: u16 = 8080;

/// The first host number of pods in their blocks. It is the client's number.
const FIRST_HOST: usize = 50;

/// A topology, and the parts that the matrix uses.
pub(super) struct Plan {
    pub topology: &'static str,
    /// The target node, another node of its rack, and a node of another rack.
    pub nodes: [Node; 3],
    pub kinds: &'static [Kind],
    /// The router with routes for load balancers' addresses and external IPs.
    pub router: &'static str,
    /// A node with BGP peers and without pods, if the other nodes have no BGP peers.
    pub edge: Option<Node>,
    pub outside: [&'static str; 2],
}

/// A node with an address of each family.
pub(super) struct Node {
    pub name: &'static str,
    pub addresses: [&'static str; 2],
}

/// A kind of network. A pod's address is a prefix with the pod's number.
pub(super) struct Kind {
    pub name: &'static str,
    /// The network on each node.
    pub networks: [&'static str; 3],
    pub v4: [&'static str; 3],
    pub v6: [&'static str; 3],
}

/// A pod of the matrix.
pub(super) struct Pod {
    pub name: String,
    pub node: usize,
    pub kind: usize,
    /// IPv4, IPv6.
    pub addresses: [IpAddr; 2],
    /// The host port, for a backend.
    pub host_port: Option<u16>,
}

/// A cell in one network and family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub cell: Cell,
    pub kind: usize,
    pub v4: bool,
}

impl Plan {
    /// The client of a kind, or its backend.
    pub(super) fn pod(&self, kind: usize, backend: Option<Backend>) -> Result<Pod> {
        let node = backend.map_or(0, place);
        let number = FIRST_HOST + backend.map_or(0, |backend| 1 + place(backend));
        let of = &self.kinds[kind];
        let address = |prefix: &str| -> Result<IpAddr> {
            let text = format!("{prefix}{number}");
            text.parse().with_context(|| text.clone())
        };
        let role = backend.map_or("client".to_owned(), |backend| format!("backend{}", place(backend)));
        Ok(Pod {
            name: format!("{}-{role}", of.name.to_lowercase().replace(' ', "")),
            node,
            kind,
            addresses: [address(of.v4[node])?, address(of.v6[node])?],
            host_port: backend.map(|backend| host_port(kind, backend)),
        })
    }

    pub(super) fn pods(&self) -> Result<Vec<Pod>> {
        let roles = || [None].into_iter().chain(Backend::ALL.map(Some));
        (0..self.kinds.len()).flat_map(|kind| roles().map(move |role| self.pod(kind, role))).collect()
    }

    pub(super) fn asks(&self) -> Vec<Ask> {
        (0..self.kinds.len())
            .flat_map(|kind| [true, false].map(|v4| (kind, v4)))
            .flat_map(|(kind, v4)| Cell::all().into_iter().map(move |cell| Ask { cell, kind, v4 }))
            .collect()
    }

    /// Every Service's name.
    pub(super) fn services(&self) -> Vec<String> {
        self.each_service().map(|(kind, backend, policy)| self.name(kind, backend, policy)).collect()
    }

    fn each_service(&self) -> impl Iterator<Item = (usize, Backend, Policy)> {
        (0..self.kinds.len()).flat_map(|kind| Backend::ALL.map(|backend| (kind, backend))).flat_map(
            |(kind, backend)| [Policy::Cluster, Policy::Local].map(|policy| (kind, backend, policy)),
        )
    }

    fn name(&self, kind: usize, backend: Backend, policy: Policy) -> String {
        let kind = self.kinds[kind].name.to_lowercase().replace(' ', "");
        format!("{kind}-{}-{}", place(backend), policy.to_string().to_lowercase())
    }

    /// All nodes.
    pub(super) fn all_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain(&self.edge)
    }

    /// Services and EndpointSlices, as YAML documents.
    pub(super) fn objects(&self) -> Result<String> {
        let mut objects: Vec<Value> = Vec::new();
        for (kind, backend, policy) in self.each_service() {
            let name = self.name(kind, backend, policy);
            let number = number(kind, backend, policy);
            let pod = self.pod(kind, Some(backend))?;
            let both = |frontend| [address(frontend, number, true), address(frontend, number, false)];
            let mut service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
                "spec": {
                    "type": "LoadBalancer", "loadBalancerClass": LOAD_BALANCER_CLASS,
                    "ipFamilyPolicy": "RequireDualStack",
                    "clusterIP": address(Frontend::ClusterIp, number, true),
                    "clusterIPs": both(Frontend::ClusterIp),
                    "externalIPs": both(Frontend::ExternalIp),
                    "externalTrafficPolicy": policy.to_string(),
                    "ports": [{ "port": PORT, "targetPort": BACKEND_PORT, "nodePort": node_port(number) }],
                },
            });
            let requested = both(Frontend::LoadBalancer).join(",");
            service["metadata"]["annotations"] = json!({ annotation::ADDRESSES: requested });
            objects.push(service);
            for address in pod.addresses {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let node = self.nodes[pod.node].name;
                objects.push(endpoints(&name, family, &address.to_string(), BACKEND_PORT, node));
            }
        }
        Ok(objects.iter().map(|object| format!("{object}\n---\n")).collect())
    }

    /// The load balancer's addresses of each Service, IPv4 first.
    pub(super) fn load_balancers(&self) -> impl Iterator<Item = (String, [String; 2])> {
        self.each_service().map(|(kind, backend, policy)| {
            let number = number(kind, backend, policy);
            let addresses = [true, false].map(|v4| address(Frontend::LoadBalancer, number, v4));
            (self.name(kind, backend, policy), addresses)
        })
    }

    /// Load balancers' and external addresses of the Services with these backends and policies.
    pub(super) fn external_addresses(&self, of: fn(Backend, Policy) -> bool) -> BTreeSet<IpAddr> {
        let services = self.each_service().filter(|(_, backend, policy)| of(*backend, *policy));
        services
            .flat_map(|(kind, backend, policy)| {
                let number = number(kind, backend, policy);
                [Frontend::LoadBalancer, Frontend::ExternalIp]
                    .into_iter()
                    .flat_map(move |frontend| [true, false].map(|v4| address(frontend, number, v4)))
            })
            .filter_map(|address| address.parse().ok())
            .collect()
    }

    /// The connections from outside to load balancers' and external addresses.
    pub(super) fn external_asks(&self) -> Vec<Ask> {
        let is_external = |ask: &Ask| {
            let external = matches!(ask.cell.frontend, Frontend::LoadBalancer | Frontend::ExternalIp);
            external && ask.cell.client == Client::Outside
        };
        self.asks().into_iter().filter(is_external).collect()
    }

    /// Static routes of the router for these addresses to the target node, as of another load
    /// balancer. `verb` is `add` or `del`.
    pub(super) fn routes(&self, verb: &str) -> String {
        let [v4, v6] = self.nodes[0].addresses;
        format!(
            "ip route {verb} 203.0.113.0/24 via {v4}; ip route {verb} 198.51.100.0/24 via {v4}; \
             ip -6 route {verb} 2001:db8:113::/64 via {v6}; ip -6 route {verb} 2001:db8:100::/64 via {v6}"
        )
    }

    /// The destination of a cell's connection.
    pub(super) fn target(&self, ask: Ask) -> Result<SocketAddr> {
        let Cell { frontend, policy, backend, .. } = ask.cell;
        let number = number(ask.kind, backend, policy.unwrap_or(Policy::Cluster));
        let node = |node: usize| self.nodes[node].addresses[usize::from(!ask.v4)];
        let (address, port) = match frontend {
            Frontend::NodePort => (node(0).to_owned(), node_port(number)),
            Frontend::HostPort => (node(place(backend)).to_owned(), host_port(ask.kind, backend)),
            _ => (address(frontend, number, ask.v4), PORT),
        };
        Ok(SocketAddr::new(address.parse().with_context(|| address.clone())?, port))
    }

    /// The source address that the backend must see, or `None` if there must be no connection.
    pub(super) fn source(&self, ask: Ask) -> Result<Option<IpAddr>> {
        let family = usize::from(!ask.v4);
        let node = |node: usize| -> Result<IpAddr> { Ok(self.nodes[node].addresses[family].parse()?) };
        Ok(Some(match (ask.cell.promise(), ask.cell.client) {
            (Promise::Refused(_), _) => return Ok(None),
            (Promise::AskedNode, _) | (Promise::Client, Client::Node) => node(0)?,
            (Promise::BackendNode, _) => node(place(ask.cell.backend))?,
            (Promise::Client, Client::Outside) => self.outside[family].parse()?,
            (Promise::Client, Client::Pod) => self.pod(ask.kind, None)?.addresses[family],
            (Promise::Client, Client::Backend) => {
                self.pod(ask.kind, Some(ask.cell.backend))?.addresses[family]
            }
        }))
    }
}

impl Node {
    /// The Node, if no agent of a cluster is on it.
    pub(super) fn object(&self) -> Value {
        let addresses = self.addresses.map(|address| json!({ "type": "InternalIP", "address": address }));
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name },
            "status": { "addresses": addresses },
        })
    }
}

/// The node of a backend.
pub(super) fn place(backend: Backend) -> usize {
    match backend {
        Backend::SameNode => 0,
        Backend::SameRack => 1,
        Backend::OtherRack => 2,
    }
}

/// A number for each Service, from 1 on.
fn number(kind: usize, backend: Backend, policy: Policy) -> usize {
    1 + 2 * (3 * kind + place(backend)) + usize::from(policy == Policy::Local)
}

fn node_port(number: usize) -> u16 {
    30_000 + u16::try_from(number).unwrap_or_default()
}

fn host_port(kind: usize, backend: Backend) -> u16 {
    20_000 + u16::try_from(3 * kind + place(backend)).unwrap_or_default()
}

/// The address of a Service, for a frontend with an address of its own.
fn address(frontend: Frontend, number: usize, v4: bool) -> String {
    match (frontend, v4) {
        (Frontend::ClusterIp, true) => format!("10.96.1.{number}"),
        (Frontend::ClusterIp, false) => format!("fd00:96::1{number:02}"),
        (Frontend::LoadBalancer, true) => format!("203.0.113.{number}"),
        (Frontend::LoadBalancer, false) => format!("2001:db8:113::{number}"),
        (_, true) => format!("198.51.100.{number}"),
        (_, false) => format!("2001:db8:100::{number}"),
    }
}
