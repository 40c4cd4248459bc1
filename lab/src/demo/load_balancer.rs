//! Steps of the tour on a Service of type LoadBalancer: etcd and kube-apiserver, Trunkline's
//! controller, and an agent and kube-proxy on each node. The Service has `externalTrafficPolicy: Local`
//! and a pod in each rack. Its clients are outside of the racks, one at each spine.
//!
//! The lab plays the kubelets, which register nodes and attach pods, and the controller of
//! EndpointSlices. The steps run last: the agents take their resources from the API server then.
//!
//! A router that removes a next hop distributes its flows anew. A connection that is open at this
//! moment may move to another node and is reset there. Only resilient hashing in the router prevents
//! this, so such connections are counted apart.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};
use trunkline_api::names::{LOAD_BALANCER_CLASS, annotation};

use super::service::{end, failures};
use super::{PATIENCE, Tour};
use crate::cni::{self, Identity, Sandbox};
use crate::connections::{Attempt, Connections, Outcome};
use crate::fabric::{Fabric, Place};
use crate::greeter::Greeter;
use crate::kube::assets::Programs;
use crate::kube::daemon::Daemon;
use crate::kube::doorway::Doorway;
use crate::kube::endpoints::{Endpoint, slices};
use crate::kube::ports::Port;
use crate::kube::proxy::{self, Mode};
use crate::kube::server::Server;
use crate::kube::{NAMESPACE, agents};
use crate::netns::Namespace;
use crate::progress::{say, step_with};
use crate::routes::RouteMonitor;
use crate::shell::{Seen, cmd, wait_for};
use crate::{client, routers};

const SERVICE: &str = "web";
const SERVICE_PORT: u16 = 80;
/// The pods' port.
const PORT: u16 = 8080;

/// The pool of the Service's addresses, and a short time between GRACEFUL_SHUTDOWN and withdrawal.
const OBJECTS: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: public }
spec: { addresses: [203.0.113.0/24, '2001:db8:113::/112'] }
---
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: all }
spec: { gracefulShutdownSeconds: 1 }
";

/// Clients at each spine, and the time between a client's connections.
const CLIENTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(5);
/// A pod serves for this time after it became terminating, as with `preStop` in a real pod.
const TERMINATING: Duration = Duration::from_secs(3);
/// Time without the agent.
const AWAY: Duration = Duration::from_secs(2);
/// Clients go on for this time after an event. By then a delayed loss would be visible.
const AFTER: Duration = Duration::from_secs(1);
/// A client's clock and a monitor's reading differ by less.
const TOLERANCE: Duration = Duration::from_millis(20);

pub(crate) const NOT_IN_CONTAINERS: &str = "`cargo lab demo` without --containerlab shows it";

/// The programs of the steps, or the reason why there are none.
pub(crate) type Kubernetes = std::result::Result<Cluster, String>;

/// The programs of the steps.
pub(crate) struct Cluster {
    pub place: Place,
    pub programs: Programs,
    pub controller: PathBuf,
}

/// Results of the steps.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LoadBalancer {
    /// Routes to the Service's addresses in the kernels of the spines, added up over spines and
    /// families.
    pub spine_routes: usize,
    pub spine_routes_expected: usize,
    /// The pod in one rack ends.
    pub end_connections: usize,
    pub end_failed_connections: usize,
    /// Failed connections that were open while a router distributed its flows anew, in addition.
    pub end_moved_connections: usize,
    /// The agent of the only node with a pod is killed and started.
    pub restart_connections: usize,
    pub restart_failed_connections: usize,
    /// Routes to the addresses that left the kernel of a ToR or spine meanwhile, even if they
    /// returned.
    pub restart_lost_routes: usize,
}

impl LoadBalancer {
    pub(super) fn rows(&self) -> [[String; 2]; 3] {
        [
            [
                "routes to a Service (LoadBalancer) in the spines".to_owned(),
                format!("{} of {}", self.spine_routes, self.spine_routes_expected),
            ],
            [
                "failed while its pod in one rack ended".to_owned(),
                format!(
                    "{} of {} connections ({} moved)",
                    self.end_failed_connections, self.end_connections, self.end_moved_connections
                ),
            ],
            [
                "failed while the agent of its last node was killed".to_owned(),
                format!("{} of {} connections", self.restart_failed_connections, self.restart_connections),
            ],
        ]
    }

    /// Broken promises; empty if all are kept.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.spine_routes != self.spine_routes_expected || self.spine_routes == 0 {
            faults.push(format!(
                "{} of {} routes to the Service in the spines",
                self.spine_routes, self.spine_routes_expected
            ));
        }
        if self.end_failed_connections > 0 || self.end_connections == 0 {
            faults.push(format!(
                "{} of {} connections to the Service failed while one of its pods ended",
                self.end_failed_connections, self.end_connections
            ));
        }
        if self.restart_failed_connections + self.restart_lost_routes > 0 || self.restart_connections == 0 {
            faults.push(format!(
                "{} of {} connections to the Service failed, and {} of its routes left a router, while an \
                 agent was killed and started",
                self.restart_failed_connections, self.restart_connections, self.restart_lost_routes
            ));
        }
        faults
    }
}

/// The processes of a cluster on the fabric. They end in the order of the fields.
struct Running {
    proxies: Vec<Daemon>,
    controller: Daemon,
    _ports: [Port; 3],
    _doorways: Vec<Doorway>,
    server: Server,
}

/// A pod behind the Service, with its program.
struct Backend {
    node: String,
    sandbox: Sandbox,
    addresses: Vec<IpAddr>,
    is_ready: bool,
    program: Greeter,
}

/// Hosts that connect to the Service.
struct Clients {
    namespaces: Vec<Namespace>,
    targets: [SocketAddr; 2],
}

impl<'a> Tour<'a> {
    /// A Service with a pod in each rack. The pod of the first rack ends, and then the agent of the
    /// other rack's node is killed and starts again.
    pub(super) fn load_balancer(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let cluster = match kubernetes {
            Ok(cluster) => cluster,
            Err(missing) => {
                say(&format!("  {:<58}  skipped: {missing}", "a Service of type LoadBalancer"));
                return Ok(());
            }
        };
        let (first, second) = (self.nodes[0], self.nodes[2]);
        ensure!(self.rack(first) != self.rack(second), "{first} and {second} are in one rack");
        let work = || {
            self.delete_pods()?;
            start(cluster, self.fabric, &self.nodes)
        };
        let words = |it: &Running| format!("etcd, controller, {} agents and kube-proxies", it.proxies.len());
        let mut running = step_with("a Kubernetes API server, each node joins it", work, words)?;
        let server = &running.server;

        let work = || {
            let backends =
                [Backend::start(server, self.fabric, first)?, Backend::start(server, self.fabric, second)?];
            let namespaces = self.service_clients()?;
            let addresses = service(server)?;
            write_slices(server, &backends)?;
            let prefixes = addresses.map(IpNet::from);
            self.wait_next_hops(&prefixes, &[first, second])?;
            let targets = addresses.map(|address| SocketAddr::from((address, SERVICE_PORT)));
            let clients = Clients { namespaces, targets };
            clients.settle()?;
            let found = self.count_in_spines(&prefixes)?;
            Ok((backends, prefixes, clients, found))
        };
        let expected = 2 * self.spines.len();
        let words = |(_, prefixes, _, found): &(_, [IpNet; 2], _, usize)| {
            format!("{found} of {expected}: {} and {}", prefixes[0].addr(), prefixes[1].addr())
        };
        let title = format!("a Service on {first} and {second}, in every spine");
        let ([ending, other], prefixes, clients, spine_routes) = step_with(&title, work, words)?;

        let title = format!("its pod on {first} ends, connections from the spines");
        let words = |(attempts, changes): &(Vec<Attempt>, Changes)| {
            let (failed, moved) = changes.failures(attempts);
            format!("{failed} of {} connections failed, {moved} moved", attempts.len())
        };
        let work = || self.end_backend(server, ending, &other, &prefixes, &clients);
        let (ended, changes) = step_with(&title, work, words)?;
        let (end_failed_connections, end_moved_connections) = changes.failures(&ended);

        let title = format!("{second}'s agent killed (SIGKILL) and started");
        let words = |(attempts, routes): &(Vec<Attempt>, usize)| {
            format!("{} of {} connections failed, {routes} routes lost", failures(attempts), attempts.len())
        };
        let work = || self.kill_under_connections(second, &prefixes, &clients);
        let (restarted, restart_lost_routes) = step_with(&title, work, words)?;

        running.proxies.iter_mut().try_for_each(Daemon::still_running)?;
        running.controller.still_running()?;
        self.summary.load_balancer = Some(LoadBalancer {
            spine_routes,
            spine_routes_expected: expected,
            end_connections: ended.len(),
            end_failed_connections,
            end_moved_connections,
            restart_connections: restarted.len(),
            restart_failed_connections: failures(&restarted),
            restart_lost_routes,
        });
        Ok(())
    }

    /// Deletes all pods. Their addresses are those of the manifests on each node.
    fn delete_pods(&self) -> Result<()> {
        for node in &self.nodes {
            for pod in client::pods(self.fabric.host(node)?)? {
                let name = pod.name.strip_prefix(&format!("{node}-")).context("a pod of the lab")?;
                let ns = Namespace::named(&self.fabric.pod_namespace(node, name));
                cni::del(self.fabric, &self.conf, &Sandbox::of(ns, node, name))?;
            }
        }
        Ok(())
    }

    /// A host at each spine. The spines advertise its network.
    fn service_clients(&self) -> Result<Vec<Namespace>> {
        let client = |(number, spine): (usize, &&str)| {
            let host = self.fabric.host(spine)?;
            let ns = host.sandbox(&self.fabric.pod_namespace(spine, "client"))?;
            let (v4, v6) = (format!("10.220.{number}"), format!("fd00:220:{number}:"));
            let peer = ns.name();
            host.ns.ip([
                "link", "add", "name", "clients", "type", "veth", "peer", "name", "eth0", "netns", peer,
            ])?;
            for (ns, interface, last) in [(&host.ns, "clients", 1), (&ns, "eth0", 2)] {
                ns.ip(["addr", "add", &format!("{v4}.{last}/24"), "dev", interface])?;
                ns.ip(["addr", "add", &format!("{v6}:{last}/64"), "dev", interface, "nodad"])?;
                ns.ip(["link", "set", interface, "up"])?;
            }
            ns.ip(["route", "add", "default", "via", &format!("{v4}.1")])?;
            ns.ip(["route", "add", "default", "via", &format!("{v6}:1")])?;
            Ok(ns)
        };
        self.spines.keys().enumerate().map(client).collect()
    }

    /// Waits until every spine has the ToRs of exactly these nodes as next hops of the addresses.
    fn wait_next_hops(&self, prefixes: &[IpNet], nodes: &[&'a str]) -> Result<()> {
        let mut wanted = 0;
        for &node in nodes {
            wanted += self.tors_of(node)?.len();
        }
        for spine in self.spines.keys() {
            for prefix in prefixes {
                wait_for(&format!("{wanted} next hops of {prefix} in {spine}"), PATIENCE, || {
                    let found = next_hops(self.fabric, spine, prefix)?;
                    Ok(Seen::when(found == wanted, || found.to_string()))
                })?;
            }
        }
        Ok(())
    }

    fn count_in_spines(&self, prefixes: &[IpNet]) -> Result<usize> {
        let mut found = 0;
        for spine in self.spines.keys() {
            let table = routers::kernel_routes(self.fabric.host(spine)?)?;
            found += prefixes.iter().filter(|prefix| table.contains(prefix)).count();
        }
        Ok(found)
    }

    /// A monitor of the routes of each ToR and spine.
    fn monitors(&self) -> Result<Vec<RouteMonitor>> {
        let routers = self.fabric.topology.with_role("tor").chain(self.fabric.topology.with_role("spine"));
        routers.map(|router| RouteMonitor::start(&self.fabric.host(router)?.ns)).collect()
    }

    /// A pod becomes terminating, serves on, and is gone.
    fn end_backend(
        &self,
        server: &Server,
        mut ending: Backend,
        other: &Backend,
        prefixes: &[IpNet],
        clients: &Clients,
    ) -> Result<(Vec<Attempt>, Changes)> {
        let monitors = self.monitors()?;
        let connections = clients.start()?;
        std::thread::sleep(AFTER);
        ending.is_ready = false;
        write_slices(server, [&ending, other])?;
        let since = Instant::now();
        // On a busy machine the pod serves until the spines use it no more.
        self.wait_next_hops(prefixes, &[self.nodes[2]])?;
        std::thread::sleep(TERMINATING.saturating_sub(since.elapsed()));
        write_slices(server, [other])?;
        ending.end(server, self.fabric)?;
        std::thread::sleep(AFTER);
        Ok((end(connections), Changes::of(&monitors, prefixes)))
    }

    /// Kills the agent of the only node with a pod, and starts it after two seconds.
    fn kill_under_connections(
        &self,
        node: &'a str,
        prefixes: &[IpNet],
        clients: &Clients,
    ) -> Result<(Vec<Attempt>, usize)> {
        let monitors = self.monitors()?;
        let connections = clients.start()?;
        let host = self.fabric.host(node)?;
        client::end_agent(host, Signal::KILL)?;
        std::thread::sleep(AWAY);
        client::start_agent(host)?;
        self.wait_restored(node)?;
        std::thread::sleep(AFTER);
        let attempts = end(connections);
        Ok((attempts, monitors.iter().map(|monitor| monitor.removed(prefixes).len()).sum()))
    }
}

/// Starts the API server and the controller, and joins the nodes with kube-proxy on each.
fn start(cluster: &Cluster, fabric: &Fabric, nodes: &[&str]) -> Result<Running> {
    let server = Server::up(&cluster.place, super::TOPOLOGY, &cluster.programs.assets)?;
    let crds = cluster.place.repository.join("deploy/crds").display().to_string();
    server.kubectl(&["apply", "--server-side", "-f", &crds])?;
    server.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
    let mut objects = vec![OBJECTS.to_owned()];
    for node in [nodes[0], nodes[2]] {
        for file in ["networks", "subnets"] {
            let file = fabric.file(&format!("{}/{node}/manifests/{file}.yaml", super::TOPOLOGY));
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            objects.extend(of_the_rack(&text));
        }
    }
    server.apply(&objects.join("\n---\n"))?;
    let ports = [Port::claim()?, Port::claim()?, Port::claim()?];
    let controller = start_controller(cluster, &server, &ports)?;
    let (mut doorways, mut proxies) = (Vec::new(), Vec::new());
    for node in nodes {
        let host = fabric.host(node)?;
        doorways.push(server.doorway(&host.ns)?);
        let labels = agents::labels(fabric, node)?;
        let metadata = json!({ "name": node, "labels": labels });
        server.create(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }))?;
        let addresses = agents::addresses(host)?;
        let address = |it: &IpAddr| json!({ "type": "InternalIP", "address": it });
        let addresses: Vec<Value> = addresses.iter().map(address).collect();
        server.patch_status(&["node", node], &json!({ "addresses": addresses }))?;
        agents::configure_proxy(fabric, node, &json!({ "kind": "auto" }))?;
        agents::follow_cluster(fabric, node, &server.kubeconfig())?;
        let (program, kubeconfig) = (&cluster.programs.proxy, server.kubeconfig());
        proxies.push(proxy::start(server.folder(), host, program, &kubeconfig, Mode::Nftables)?);
    }
    for node in nodes {
        client::wait_established(fabric.host(node)?, PATIENCE)?;
        client::wait_bfd(fabric.host(node)?, PATIENCE)?;
    }
    Ok(Running { proxies, controller, _ports: ports, _doorways: doorways, server })
}

/// The objects of a rack's own network in a manifest file, without the node's share of the
/// addresses: in a cluster the controller allocates.
fn of_the_rack(text: &str) -> Vec<String> {
    let is_own = |object: &&str| object.contains("name: rack");
    let is_share = |line: &&str| ["start:", "end:"].iter().any(|field| line.trim_start().starts_with(field));
    let shared = |object: &str| object.lines().filter(|line| !is_share(line)).collect::<Vec<_>>().join("\n");
    text.split("---\n").filter(is_own).map(shared).collect()
}

fn start_controller(cluster: &Cluster, server: &Server, ports: &[Port; 3]) -> Result<Daemon> {
    let [http, probe, webhook] = ports.each_ref().map(Port::number);
    let flags = [
        format!("--namespace={NAMESPACE}"),
        format!("--http-address=127.0.0.1:{http}"),
        format!("--probe-address=127.0.0.1:{probe}"),
        format!("--webhook-listen=127.0.0.1:{webhook}"),
        "--webhook=false".to_owned(),
    ];
    let mut command = cmd(&cluster.controller.display().to_string(), flags);
    command.env("KUBECONFIG", server.kubeconfig());
    Daemon::start(server.folder(), "controller", command)
}

/// Creates the Service, and returns the addresses that the controller allocates.
fn service(server: &Server) -> Result<[IpAddr; 2]> {
    server.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": SERVICE },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": LOAD_BALANCER_CLASS, "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "RequireDualStack", "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
        },
    }))?;
    wait_for("the Service's addresses", PATIENCE, || {
        let path = "jsonpath={.status.loadBalancer.ingress[*].ip}";
        let text = server.kubectl(&["get", "service", SERVICE, "-o", path])?;
        let addresses = text.split(' ').map(str::parse).collect::<std::result::Result<Vec<IpAddr>, _>>();
        let pair = addresses.ok().and_then(|all| <[IpAddr; 2]>::try_from(all).ok());
        Ok(pair.map_or_else(|| Seen::NotYet(text), Seen::Yes))
    })
}

fn write_slices<'b>(server: &Server, backends: impl IntoIterator<Item = &'b Backend>) -> Result<()> {
    let endpoint =
        |it: &'b Backend| Endpoint { addresses: &it.addresses, node: &it.node, is_ready: it.is_ready };
    let endpoints: Vec<Endpoint<'_>> = backends.into_iter().map(endpoint).collect();
    server.apply(&slices("default", SERVICE, PORT, &endpoints)).map(drop)
}

impl Backend {
    /// Creates a pod in the API server, and attaches it as its node's kubelet does.
    fn start(server: &Server, fabric: &Fabric, node: &str) -> Result<Self> {
        let name = format!("{SERVICE}-{node}");
        let pod = server.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "annotations": { (annotation::IP_FAMILY): "DualStack" } },
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "lab" }] },
        }))?;
        let uid = pod["metadata"]["uid"].as_str().context("a pod without a UID")?.to_owned();
        let mut sandbox = Sandbox::create(fabric, node, SERVICE)?;
        sandbox.identity = Identity { namespace: "default".to_owned(), name: name.clone(), uid };
        let addresses = cni::add(fabric, &cni::trunkline(None), &sandbox)?.addresses;
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        let status = json!({ "phase": "Running", "podIP": addresses.first(), "podIPs": ips });
        server.patch_status(&["pod", &name], &status)?;
        let program = Greeter::listen(&sandbox.ns, PORT)?;
        Ok(Self { node: node.to_owned(), sandbox, addresses, is_ready: true, program })
    }

    /// The program ends, and the kubelet removes the pod.
    fn end(self, server: &Server, fabric: &Fabric) -> Result<()> {
        drop(self.program);
        cni::del(fabric, &cni::trunkline(None), &self.sandbox)?;
        server.kubectl(&["delete", "pod", &self.sandbox.identity.name, "--force"]).map(drop)
    }
}

impl Clients {
    fn start(&self) -> Result<Vec<Connections>> {
        let start = |ns: &Namespace| Connections::start(ns, &self.targets, CLIENTS, PAUSE);
        self.namespaces.iter().map(start).collect()
    }

    /// Waits until all of many connections are served. By then the routers on the way have resolved
    /// their next hops.
    fn settle(&self) -> Result<()> {
        wait_for("connections to the Service", PATIENCE, || {
            let clients = self.start()?;
            clients.iter().try_for_each(|client| client.wait_count(100, PATIENCE))?;
            let attempts = end(clients);
            let last = attempts.iter().rfind(|it| it.outcome != Outcome::Served);
            Ok(Seen::when(last.is_none(), || format!("{last:?}")))
        })
    }
}

/// The next hops of a route in a router's kernel.
fn next_hops(fabric: &Fabric, router: &str, prefix: &IpNet) -> Result<usize> {
    let family = if prefix.addr().is_ipv4() { "-4" } else { "-6" };
    let text = fabric.host(router)?.ns.ip([family, "-j", "route", "show", &prefix.to_string()])?;
    let routes: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let count = |route: &Value| route["nexthops"].as_array().map_or(1, Vec::len);
    Ok(routes.as_array().into_iter().flatten().map(count).sum())
}

/// The times at which a router changed its next hops of each address.
struct Changes(BTreeMap<IpNet, Vec<Instant>>);

impl Changes {
    fn of(monitors: &[RouteMonitor], prefixes: &[IpNet]) -> Self {
        let times = |prefix: &IpNet| monitors.iter().flat_map(|monitor| monitor.times(prefix)).collect();
        Self(prefixes.iter().map(|prefix| (*prefix, times(prefix))).collect())
    }

    /// Failed connections, and in addition those that were open while a router distributed its flows
    /// anew.
    fn failures(&self, attempts: &[Attempt]) -> (usize, usize) {
        let failed = failures(attempts);
        let has_failed = |it: &&Attempt| it.outcome != Outcome::Served;
        let moved = attempts.iter().filter(has_failed).filter(|it| self.has_moved(it)).count();
        (failed - moved, moved)
    }

    fn has_moved(&self, attempt: &Attempt) -> bool {
        let open = attempt.began - TOLERANCE..attempt.ended + TOLERANCE;
        self.0.get(&IpNet::from(attempt.to.ip())).into_iter().flatten().any(|time| open.contains(time))
    }
}
