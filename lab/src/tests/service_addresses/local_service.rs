//! A Service with `externalTrafficPolicy: Local` and a replica on three of four nodes, below two ToRs.
//! Clients outside of the fabric connect to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::IpNet;
use serde_json::json;

use super::advertise::{Advertise, NAMESPACE, POOL, PORT, SERVICE_PORT, configure, host, write_objects};
use super::{Context, Verdict};
use crate::client;
use crate::connections::{Attempt, Connections};
use crate::daemons::vtysh_json;
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::daemon::Daemon;
use crate::kube::endpoints::{Endpoint, slices};
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::Plan;
use crate::kube::proxy::{self, Mode};
use crate::packages;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::greeter::Greeter;
use crate::tests::kube::cluster;

pub(super) const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];
pub(super) const TORS: [&str; 2] = ["tor1", "tor2"];
const SERVICE: &str = "web";
const NUMBER: u8 = 1;

/// The pause of a client after a connection.
const PAUSE: Duration = Duration::from_millis(12);
/// A client's clock and the monitor's reading differ by less.
const TOLERANCE: Duration = Duration::from_millis(20);

/// The conditions of an endpoint.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum State {
    Ready,
    Terminating,
}

/// A replica with its program.
pub(super) struct Replica {
    pub pod: Attached,
    pub state: State,
    pub server: Greeter,
}

impl Replica {
    fn endpoint(&self) -> Endpoint<'_> {
        Endpoint {
            addresses: &self.pod.addresses,
            node: &self.pod.plan.node,
            is_ready: self.state == State::Ready,
        }
    }
}

/// The Service with its nodes.
pub(super) struct LocalService<'a> {
    pub test: Advertise<'a>,
    pub controller: Replicas,
    pub proxies: BTreeMap<&'static str, Daemon>,
    pub replicas: Vec<Replica>,
    program: PathBuf,
    kubeconfig: PathBuf,
    made: usize,
}

/// Runs `work` with the Service on the first three nodes. `prepare` runs before the agents join the
/// cluster.
pub(super) fn run(
    context: &Context,
    name: &str,
    prepare: fn(&Cluster, &Bed<'_>) -> Result<()>,
    work: fn(&mut LocalService<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, name, |cluster| {
        lab(context, "rolling", |bed| {
            packages::need(["nftables"])?;
            write_objects(cluster, bed)?;
            prepare(cluster, bed)?;
            let controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "auto" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            for node in NODES {
                client::wait_established(bed.host(node)?, PATIENCE)?;
            }
            let (namespace, account) = proxy::ACCOUNT;
            let kubeconfig = cluster.service_account(namespace, account)?;
            cluster.create(proxy::RIGHTS)?;
            let mut service = LocalService {
                test: Advertise { cluster, bed },
                controller,
                proxies: BTreeMap::new(),
                replicas: Vec::new(),
                program,
                kubeconfig,
                made: 0,
            };
            for node in NODES {
                service.start_proxy(node)?;
            }
            for node in &NODES[..3] {
                service.add_replica(node)?;
            }
            service.test.service(SERVICE, NUMBER, "Local")?;
            service.write_slices()?;
            for (node, proxy) in &mut service.proxies {
                proxy::wait_rules(proxy, bed.host(node)?, Mode::Nftables, NAMESPACE, &[SERVICE.to_owned()])?;
            }
            service.wait_next_hops(&NODES[..3])?;
            resolve_next_hops(bed)?;
            work(&mut service)
        })
    })
}

/// Lets ToRs and outside host resolve their IPv6 next hops. Sessions keep those of IPv4 resolved.
fn resolve_next_hops(bed: &Bed<'_>) -> Result<()> {
    for (tor, number) in TORS.into_iter().zip([1, 2]) {
        for node in 1..=NODES.len() {
            bed.host(tor)?.sh(&format!("ping -6 -n -c 1 -W 2 fd00:{number}::1{node}"))?;
        }
        bed.host("outside")?.sh(&format!("ping -6 -n -c 1 -W 2 fd00:9{number}::1"))?;
    }
    Ok(())
}

/// The Service's addresses as prefixes.
fn prefixes() -> [IpNet; 2] {
    POOL.map(|pool| host(pool, NUMBER))
}

impl LocalService<'_> {
    pub(super) fn bed(&self) -> &Bed<'_> {
        self.test.bed
    }

    pub(super) fn start_proxy(&mut self, node: &'static str) -> Result<()> {
        let host = self.test.bed.host(node)?;
        let folder = self.test.cluster.folder();
        let started = proxy::start(folder, host, &self.program, &self.kubeconfig, Mode::Nftables)?;
        self.proxies.insert(node, started);
        Ok(())
    }

    /// A new replica on a node, which is ready in the next slices.
    pub(super) fn add_replica(&mut self, node: &str) -> Result<()> {
        self.made += 1;
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: format!("{SERVICE}-{}", self.made),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set: None,
        };
        let pod = nodes::attach(self.test.cluster, self.test.bed.fabric, plan, &[])?;
        let server = Greeter::listen(&pod.sandbox.ns, PORT)?;
        self.replicas.push(Replica { pod, state: State::Ready, server });
        Ok(())
    }

    /// The nodes with a ready replica.
    pub(super) fn ready_nodes(&self) -> Vec<&'static str> {
        let is_ready = |node: &&str| {
            self.replicas.iter().any(|it| it.state == State::Ready && it.pod.plan.node == **node)
        };
        NODES.into_iter().filter(|node| is_ready(node)).collect()
    }

    /// Writes the EndpointSlices of both families, as their controller does.
    pub(super) fn write_slices(&self) -> Result<()> {
        let endpoints: Vec<Endpoint<'_>> = self.replicas.iter().map(Replica::endpoint).collect();
        self.test.cluster.apply(&slices(NAMESPACE, SERVICE, PORT, &endpoints)).map(drop)
    }

    /// The nodes whose paths a ToR installs for a prefix.
    fn next_hops(&self, tor: &str, prefix: &IpNet) -> Result<Vec<String>> {
        let family = if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" };
        let answer = vtysh_json(self.bed().host(tor)?, &format!("show bgp {family} unicast {prefix} json"))?;
        let exact = answer["prefix"] == prefix.to_string();
        let paths = answer["paths"].as_array().filter(|_| exact).into_iter().flatten();
        let used = paths.filter(|path| path["multipath"] == true || path["bestpath"]["overall"] == true);
        let mut names: Vec<String> =
            used.filter_map(|path| Some(path["peer"]["peerId"].as_str()?.to_owned())).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Waits until both ToRs use exactly these nodes for both addresses.
    pub(super) fn wait_next_hops(&self, nodes: &[&str]) -> Result<()> {
        for (tor, network) in TORS.into_iter().zip(["10.1.0", "10.2.0"]) {
            let numbers = nodes.iter().filter_map(|node| NODES.iter().position(|name| name == node));
            let mut wanted: Vec<String> = numbers.map(|n| format!("{network}.1{}", n + 1)).collect();
            wanted.sort_unstable();
            for prefix in prefixes() {
                wait_for(&format!("{prefix} in {tor} from {nodes:?}"), PATIENCE, || {
                    let seen = self.next_hops(tor, &prefix)?;
                    Ok(Seen::when(seen == wanted, || format!("{seen:?}")))
                })?;
            }
        }
        Ok(())
    }

    /// A monitor of each ToR's routes.
    pub(super) fn monitors(&self) -> Result<Vec<RouteMonitor>> {
        TORS.iter().map(|tor| RouteMonitor::start(&self.bed().host(tor)?.ns)).collect()
    }

    /// Starts clients outside of the fabric that connect to both addresses.
    pub(super) fn connect(&self, clients: usize) -> Result<Connections> {
        let targets = prefixes().map(|prefix| SocketAddr::from((prefix.addr(), SERVICE_PORT)));
        Connections::start(&self.bed().host("outside")?.ns, &targets, clients, PAUSE)
    }
}

/// The times at which a ToR changed its next hops of each address.
pub(super) struct Changes(BTreeMap<IpNet, Vec<Instant>>);

impl Changes {
    pub(super) fn of(monitors: &[RouteMonitor]) -> Self {
        let times = |prefix: &IpNet| monitors.iter().flat_map(|monitor| monitor.times(prefix)).collect();
        Self(prefixes().into_iter().map(|prefix| (prefix, times(&prefix))).collect())
    }

    /// The changes of an attempt's address.
    pub(super) fn times(&self, attempt: &Attempt) -> impl Iterator<Item = Instant> {
        self.0.get(&IpNet::from(attempt.to.ip())).into_iter().flatten().copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Instant> {
        self.0.values().flatten().copied()
    }

    /// Whether a connection was open while a ToR distributed its flows anew.
    pub(super) fn has_moved(&self, attempt: &Attempt) -> bool {
        let open = attempt.began - TOLERANCE..attempt.ended + TOLERANCE;
        self.times(attempt).any(|time| open.contains(&time))
    }

    /// An attempt in words, with the last change of next hops before its end.
    pub(super) fn describe(&self, attempt: &Attempt) -> String {
        let before = self.times(attempt).filter(|time| *time < attempt.ended).max();
        let since = before.map(|time| attempt.ended.duration_since(time));
        let Attempt { to, port, outcome, began, ended } = attempt;
        let took = ended.duration_since(*began);
        format!("{outcome:?}: port {port} to {to}, after {took:?}, {since:?} after the last change")
    }
}
