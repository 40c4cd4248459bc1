//! A rolling update of a Service with `externalTrafficPolicy: Local`, under short connections from
//! outside of the fabric, through two ToRs.
//!
//! Three replicas on three of four nodes are replaced one after the other. Each new pod is on the
//! node that has none. It becomes ready, the old one becomes terminating and serves on, and then it
//! is gone. So each step adds a next hop to both ToRs and removes one. Meanwhile agents and
//! kube-proxies are killed and start again.
//!
//! A ToR that adds or removes a next hop distributes its flows anew. A connection that is open at
//! this moment may move to a node that does not know it, and is reset there. Only resilient hashing
//! in the ToR prevents this, so the test counts such connections apart: they are open during a
//! change of the ToRs' next hops for the address.
//!
//! Linux distributes flows over the next hops whose neighbour entries are valid. A flow that begins
//! while the ToR resolves its next hop moves there after the answer. A router resolves its next
//! hops before it uses them; the kernel of the lab's ToRs does not, so the test does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::advertise::{Advertise, NAMESPACE, POOL, PORT, SERVICE_PORT, configure, host, write_objects};
use super::{Context, Test, Verdict};
use crate::client;
use crate::connections::{Attempt, Connections, Outcome};
use crate::daemons::vtysh_json;
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::daemon::Daemon;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::Plan;
use crate::kube::proxy::{self, Mode};
use crate::packages;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::greeter::Greeter;
use crate::tests::kube::cluster;
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "service-addresses/rolling",
    about: "a rolling update of a Local Service below two ToRs, with SIGKILL of agent and kube-proxy: no short \
            connection is refused or reset",
    run,
};

const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];
const TORS: [&str; 2] = ["tor1", "tor2"];
const SERVICE: &str = "web";
const NUMBER: u8 = 1;

/// Connections at least, and clients, each with a pause after a connection.
const CONNECTIONS: usize = 10_000;
const CLIENTS: usize = 6;
const PAUSE: Duration = Duration::from_millis(12);
/// A pod serves for this time after it became terminating: longer than the default of
/// gracefulShutdownSeconds, as `preStop` of a real pod.
const TERMINATING: Duration = Duration::from_secs(10);
/// Time between the steps.
const REST: Duration = Duration::from_secs(1);
/// A client's clock and the monitor's reading differ by less.
const TOLERANCE: Duration = Duration::from_millis(20);

/// A disturbance of one step.
#[derive(Clone, Copy)]
enum Kill {
    Agent,
    KubeProxy,
    None,
}

/// The steps: the node that gets a pod, the node that loses one, and the process that dies on the
/// second while its pod is terminating.
const STEPS: [(&str, &str, Kill); 3] =
    [("node4", "node1", Kill::Agent), ("node1", "node2", Kill::KubeProxy), ("node2", "node3", Kill::None)];

/// The conditions of an endpoint.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    Terminating,
}

/// A replica with its program.
struct Replica {
    pod: Attached,
    state: State,
    server: Greeter,
}

fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, "service-rolling", |cluster| {
        lab(context, "rolling", |bed| {
            packages::need(["nftables"])?;
            write_objects(cluster, bed)?;
            let _controller = Replicas::start(cluster, &controller, 1)?;
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
            let test = Advertise { cluster, bed };
            let mut update =
                Update { test, program, kubeconfig, proxies: BTreeMap::new(), replicas: Vec::new(), made: 0 };
            for node in NODES {
                update.start_proxy(node)?;
            }
            for node in &NODES[..3] {
                update.replica(node)?;
            }
            update.test.service(SERVICE, NUMBER, "Local")?;
            update.write_slices()?;
            update.wait_next_hops(&NODES[..3])?;
            resolve_next_hops(bed)?;
            update.roll()
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

struct Update<'a> {
    test: Advertise<'a>,
    program: PathBuf,
    kubeconfig: PathBuf,
    proxies: BTreeMap<&'static str, Daemon>,
    replicas: Vec<Replica>,
    made: usize,
}

impl Update<'_> {
    fn bed(&self) -> &Bed<'_> {
        self.test.bed
    }

    fn start_proxy(&mut self, node: &'static str) -> Result<()> {
        let host = self.test.bed.host(node)?;
        let folder = self.test.cluster.folder();
        let started = proxy::start(folder, host, &self.program, &self.kubeconfig, Mode::Nftables)?;
        self.proxies.insert(node, started);
        Ok(())
    }

    /// A new replica on a node, which is ready in the next slices.
    fn replica(&mut self, node: &str) -> Result<()> {
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
    fn ready_nodes(&self) -> Vec<&'static str> {
        let is_ready = |node: &&str| {
            self.replicas.iter().any(|it| it.state == State::Ready && it.pod.plan.node == **node)
        };
        NODES.into_iter().filter(|node| is_ready(node)).collect()
    }

    /// Writes the EndpointSlices of both families, as their controller does.
    fn write_slices(&self) -> Result<()> {
        let mut slices = Vec::new();
        for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
            let endpoint = |replica: &Replica| {
                let ready = replica.state == State::Ready;
                json!({
                    "addresses": [replica.pod.addresses[index]], "nodeName": replica.pod.plan.node,
                    "conditions": { "ready": ready, "serving": true, "terminating": !ready },
                })
            };
            let endpoints: Vec<Value> = self.replicas.iter().map(endpoint).collect();
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{SERVICE}-{}", family.to_lowercase()), "namespace": NAMESPACE,
                    "labels": { "kubernetes.io/service-name": SERVICE },
                },
                "addressType": family, "endpoints": endpoints,
                "ports": [{ "name": "", "port": PORT, "protocol": "TCP" }],
            });
            slices.push(slice.to_string());
        }
        self.test.cluster.apply(&slices.join("\n---\n")).map(drop)
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
    fn wait_next_hops(&self, nodes: &[&str]) -> Result<()> {
        for (tor, network) in TORS.into_iter().zip(["10.1.0", "10.2.0"]) {
            let numbers = nodes.iter().filter_map(|node| NODES.iter().position(|name| name == node));
            let mut wanted: Vec<String> = numbers.map(|n| format!("{network}.1{}", n + 1)).collect();
            wanted.sort_unstable();
            for prefix in POOL.map(|pool| host(pool, NUMBER)) {
                wait_for(&format!("{prefix} in {tor} from {nodes:?}"), PATIENCE, || {
                    let seen = self.next_hops(tor, &prefix)?;
                    Ok(Seen::when(seen == wanted, || format!("{seen:?}")))
                })?;
            }
        }
        Ok(())
    }

    /// The update, with clients from before its start until after its end.
    fn roll(&mut self) -> Result<Verdict> {
        let monitors = TORS.map(|tor| self.bed().host(tor).and_then(|tor| RouteMonitor::start(&tor.ns)));
        let monitors = monitors.into_iter().collect::<Result<Vec<_>>>()?;
        let targets = POOL.map(|pool| SocketAddr::from((host(pool, NUMBER).addr(), SERVICE_PORT)));
        let clients = Connections::start(&self.bed().host("outside")?.ns, &targets, CLIENTS, PAUSE)?;
        std::thread::sleep(REST);
        for (new, old, kill) in STEPS {
            self.step(new, old, kill).with_context(|| format!("a pod of {old} moves to {new}"))?;
        }
        // All replicas are new; the clients go on until they have their number of connections.
        clients.wait_count(CONNECTIONS, PATIENCE)?;
        std::thread::sleep(REST);
        let attempts = clients.end();
        self.proxies.values_mut().try_for_each(Daemon::still_running)?;
        judge(&attempts, &monitors)
    }

    fn step(&mut self, new: &'static str, old: &'static str, kill: Kill) -> Result<()> {
        self.replica(new)?;
        self.write_slices()?;
        self.wait_next_hops(&self.ready_nodes())?;
        std::thread::sleep(REST);

        for replica in self.replicas.iter_mut().filter(|replica| replica.pod.plan.node == old) {
            replica.state = State::Terminating;
        }
        self.write_slices()?;
        let since = Instant::now();
        match kill {
            Kill::Agent => {
                client::end_agent(self.bed().host(old)?, Signal::KILL)?;
                client::start_agent(self.bed().host(old)?)?;
            }
            Kill::KubeProxy => {
                self.proxies.remove(old).context("kube-proxy runs")?.kill()?;
                self.start_proxy(old)?;
            }
            Kill::None => {}
        }
        // GRACEFUL_SHUTDOWN: the ToRs use the other nodes while the pod still serves.
        self.wait_next_hops(&self.ready_nodes())?;
        ensure!(since.elapsed() < TERMINATING, "the ToRs used {old} for {:?}", since.elapsed());
        std::thread::sleep(TERMINATING.saturating_sub(since.elapsed()));

        let is_gone = |replica: &Replica| replica.pod.plan.node == old;
        let (gone, rest): (Vec<Replica>, Vec<Replica>) =
            std::mem::take(&mut self.replicas).into_iter().partition(is_gone);
        self.replicas = rest;
        self.write_slices()?;
        for replica in gone {
            drop(replica.server);
            replica.pod.take_away(self.test.cluster, self.test.bed.fabric)?;
        }
        std::thread::sleep(REST);
        Ok(())
    }
}

/// Fails if a connection was refused, reset or lost, unless it was open while a ToR distributed its
/// flows anew.
fn judge(attempts: &[Attempt], monitors: &[RouteMonitor]) -> Result<Verdict> {
    let changes: BTreeMap<IpNet, Vec<Instant>> = POOL
        .map(|pool| host(pool, NUMBER))
        .into_iter()
        .map(|prefix| (prefix, monitors.iter().flat_map(|monitor| monitor.times(&prefix)).collect()))
        .collect();
    let moved = |attempt: &Attempt| {
        let times = changes.get(&IpNet::from(attempt.to.ip()));
        let open = attempt.began - TOLERANCE..attempt.ended + TOLERANCE;
        times.into_iter().flatten().any(|time| open.contains(time))
    };
    let count = |outcome: Outcome, is_moved: bool| {
        attempts.iter().filter(|attempt| attempt.outcome == outcome && moved(attempt) == is_moved).count()
    };
    let failures = [Outcome::Refused, Outcome::Reset, Outcome::TimedOut, Outcome::Unsent];
    let kept = failures.map(|outcome| count(outcome, false));
    let redistributed = failures.map(|outcome| count(outcome, true));
    let all = attempts.len();
    let times: usize = changes.values().map(Vec::len).sum();
    let words = format!(
        "{all} connections: {} refused, {} reset, {} timed out, {} not sent; of those that were open during one \
         of {times} changes of the ToRs' next hops: {redistributed:?}",
        kept[0], kept[1], kept[2], kept[3]
    );
    ensure!(all >= CONNECTIONS, "only {words}");
    ensure!(times >= 4 * STEPS.len(), "the ToRs' next hops did not change: {words}");
    ensure!(kept == [0; 4] && redistributed[0] == 0, "{words}{}", failed(attempts, &changes));
    passed(words)
}

/// Every failed connection, with the last change of next hops before its end.
fn failed(attempts: &[Attempt], changes: &BTreeMap<IpNet, Vec<Instant>>) -> String {
    let failed = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Served);
    let words = failed.map(|attempt| {
        let times = changes.get(&IpNet::from(attempt.to.ip())).into_iter().flatten();
        let before = times.filter(|time| **time < attempt.ended).max();
        let since = before.map(|time| attempt.ended.duration_since(*time));
        let Attempt { to, port, outcome, began, ended } = attempt;
        let took = ended.duration_since(*began);
        format!("\n  {outcome:?}: port {port} to {to}, after {took:?}, {since:?} after the last change")
    });
    words.collect()
}
