//! The service proxy and the advertisement: the real kube-proxy in mode nftables on two nodes, and in
//! mode iptables on one. A node advertises an address only while its kube-proxy forwards it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use trunkline_api::control::{ServiceView, WithheldReason};

use super::advertise::{
    Advertise, NAMESPACE, NODES, POOL, PORT, SERVICE_PORT, configure, host, write_objects,
};
use super::{Context, Test, Verdict};
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::daemon::Daemon;
use crate::kube::nodes::{self, Attached};
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::packages;
use crate::progress::seconds;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted, greeted_within};
use crate::tests::kube::cluster;
use crate::tests::{hybrid, passed};

pub(super) const TEST: Test = Test {
    name: "service-addresses/proxy",
    about: "an address is advertised not before its first request succeeds, in both modes of \
            kube-proxy; kube-proxy dead, hung, restarted; its rules flushed",
    run,
};

/// Each node's mode.
const MODES: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Nftables];

/// `services.proxy.restartSeconds`.
const RESTART: u64 = 8;
/// The time without kube-proxy that withdraws nothing.
const ABSENCE: Duration = Duration::from_secs(3);

/// New Services, and the time for which clients connect to each.
const NEW: u8 = 4;
const REQUESTS: Duration = Duration::from_millis(1500);
/// Within this time a lost SYN is not retransmitted.
const AT_ONCE: Duration = Duration::from_millis(900);

fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, "service-proxy", |cluster| {
        lab(context, "hybrid", |bed| {
            packages::need(["iptables", "nftables"])?;
            write_objects(cluster, bed)?;
            let _controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "auto", "restartSeconds": RESTART }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            hybrid::ready(bed)?;
            let (namespace, account) = proxy::ACCOUNT;
            let kubeconfig = cluster.service_account(namespace, account)?;
            cluster.create(proxy::RIGHTS)?;
            let test = Advertise { cluster, bed };
            let pods = NODES.iter().map(|node| test.attach(node)).collect::<Result<Vec<_>>>()?;
            let _servers =
                pods.iter().map(|pod| Greeter::listen(&pod.sandbox.ns, PORT)).collect::<Result<Vec<_>>>()?;
            let mut world = World { test, program, kubeconfig, proxies: BTreeMap::new() };
            let [one, two, three] = &pods[..] else { anyhow::bail!("three pods") };
            let all = [(one, true), (two, true), (three, true)];

            world.test.service("web", 1, "Cluster")?;
            world.test.endpoints("web", &all)?;
            world.withheld("web", WithheldReason::ProxyDown)?;
            world.test.from(1, &[])?;
            NODES.iter().try_for_each(|node| world.start(node))?;
            world.test.from(1, &NODES)?;

            let requests = world.first_requests(&all)?;
            world.restart()?;
            world.absence()?;
            let flushed =
                [world.flush("node1")?, world.flush("node2")?].map(|took| seconds(took.as_secs_f64()));
            world.hang(one)?;
            let [first, second] = flushed;
            passed(format!(
                "{requests} requests right after a new route, none failed; flushed rules are withdrawn after \
                 {first} (nftables), {second} (iptables)"
            ))
        })
    })
}

struct World<'a> {
    test: Advertise<'a>,
    program: PathBuf,
    kubeconfig: PathBuf,
    proxies: BTreeMap<&'static str, Daemon>,
}

impl World<'_> {
    fn start(&mut self, node: &'static str) -> Result<()> {
        let mode = NODES.iter().position(|name| *name == node).map_or(Mode::Nftables, |index| MODES[index]);
        let host = self.test.bed.host(node)?;
        let program: &Path = &self.program;
        let mut started = proxy::start(self.test.cluster.folder(), host, program, &self.kubeconfig, mode)?;
        proxy::wait_rules(&mut started, host, mode, NAMESPACE, &["web".to_owned()])?;
        self.proxies.insert(node, started);
        Ok(())
    }

    fn kill(&mut self, node: &'static str) -> Result<()> {
        self.proxies.remove(node).context("kube-proxy runs")?.kill()
    }

    /// Waits until each node withholds a Service's addresses for this reason.
    fn withheld(&self, service: &str, reason: WithheldReason) -> Result<()> {
        NODES.iter().try_for_each(|node| self.withheld_on(node, service, reason))
    }

    fn withheld_on(&self, node: &str, service: &str, reason: WithheldReason) -> Result<()> {
        let host = self.test.bed.host(node)?;
        wait_for(&format!("{service} withheld on {node}: {}", reason.name()), PATIENCE, || {
            let text = host.sh(&format!("trunkline services {service} -o json || echo '[]'"))?;
            let views: Vec<ServiceView> = serde_json::from_str(&text).with_context(|| text.clone())?;
            let good = !views.is_empty() && views.iter().all(|view| view.reason == Some(reason));
            Ok(Seen::when(good, || format!("{views:?}")))
        })
    }

    /// A client in the ToR connects as soon as the ToR has a route, and each request succeeds.
    fn first_requests(&self, pods: &[(&Attached, bool)]) -> Result<usize> {
        let tor = &self.test.bed.host("tor1")?.ns;
        let mut count = 0;
        for number in 10..10 + NEW {
            let monitor = RouteMonitor::start(tor)?;
            let name = format!("new{number}");
            let policy = if number % 2 == 0 { "Local" } else { "Cluster" };
            let requests = std::thread::scope(|scope| -> Result<usize> {
                let clients = POOL.map(|pool| {
                    let monitor = &monitor;
                    scope.spawn(move || request(tor, monitor, host(pool, number)))
                });
                self.test.service(&name, number, policy)?;
                self.test.endpoints(&name, pods)?;
                clients.into_iter().try_fold(0, |sum, client| {
                    Ok(sum + client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
                })
            });
            count += requests.with_context(|| format!("{policy}, Service {name}"))?;
            self.test.from(number, &NODES)?;
        }
        Ok(count)
    }

    /// kube-proxy is killed and starts again: nothing is withdrawn, and requests succeed meanwhile.
    fn restart(&mut self) -> Result<()> {
        let monitor = RouteMonitor::start(&self.test.bed.host("tor1")?.ns)?;
        for node in NODES {
            self.kill(node)?;
        }
        std::thread::sleep(ABSENCE);
        self.requests_succeed(1)?;
        for node in NODES {
            self.start(node)?;
        }
        // A new address needs a service proxy that is up.
        self.test.service("later", 20, "Cluster")?;
        self.test.endpoints("later", &[])?;
        self.withheld("later", WithheldReason::NoEndpoint)?;
        self.wait_up()?;
        self.test.from(1, &NODES)?;
        let removed = monitor.removed(&POOL.map(|pool| host(pool, 1)));
        ensure!(removed.is_empty(), "{removed:?} was withdrawn");
        Ok(())
    }

    /// kube-proxy is away for longer than a restart.
    fn absence(&mut self) -> Result<()> {
        for node in NODES {
            self.kill(node)?;
        }
        self.test.from(1, &[])?;
        self.withheld("web", WithheldReason::ProxyDown)?;
        for node in NODES {
            self.start(node)?;
        }
        self.test.from(1, &NODES)
    }

    /// The rules of a node vanish, and the node withdraws. Returns the time until FRR knows.
    fn flush(&mut self, node: &'static str) -> Result<Duration> {
        let others: Vec<&str> = NODES.into_iter().filter(|name| *name != node).collect();
        // kube-proxy would repair its rules at its next synchronisation.
        kill_process(self.proxies.get(node).context("kube-proxy runs")?.pid(), Signal::STOP)?;
        let began = Instant::now();
        self.test.bed.host(node)?.sh("nft flush ruleset")?;
        self.test.from(1, &others)?;
        let took = began.elapsed();
        self.requests_succeed(1)?;
        self.kill(node)?;
        self.start(node)?;
        self.test.from(1, &NODES)?;
        Ok(took)
    }

    /// A hung kube-proxy writes no rules for a new Service: the agent finds it.
    fn hang(&mut self, pod: &Attached) -> Result<()> {
        let pid = self.proxies.get("node1").context("kube-proxy runs")?.pid();
        kill_process(pid, Signal::STOP)?;
        self.test.service("hung", 30, "Local")?;
        self.test.endpoints("hung", &[(pod, true)])?;
        // The rules are missing first; a check then finds that kube-proxy does not answer.
        self.wait_proxy("node1", false)?;
        self.test.from(30, &[])?;
        kill_process(pid, Signal::CONT)?;
        self.test.from(30, &["node1"])?;
        self.test.from(1, &NODES)
    }

    fn wait_up(&self) -> Result<()> {
        NODES.iter().try_for_each(|node| self.wait_proxy(node, true))
    }

    fn wait_proxy(&self, node: &str, up: bool) -> Result<()> {
        let host = self.test.bed.host(node)?;
        let wanted = format!("trunkline_service_proxy_up {}", u8::from(up));
        wait_for(&format!("{wanted} on {node}"), PATIENCE, || {
            let metrics = crate::client::metrics(host)?;
            let line = metrics.lines().find(|line| line.starts_with("trunkline_service_proxy_up"));
            Ok(Seen::when(line == Some(&wanted), || format!("{line:?}")))
        })
    }

    fn requests_succeed(&self, number: u8) -> Result<()> {
        let outside = self.test.bed.host("outside")?;
        for pool in POOL {
            for _ in 0..4 {
                greeted(&outside.ns, (host(pool, number).addr(), SERVICE_PORT).into())?;
            }
        }
        Ok(())
    }
}

/// Connects as soon as the route is there. Each connection must succeed. While nodes follow, the
/// ToR's set of next hops grows, and its hash can move a connection in progress to another node. So
/// at most one connection for each further node may be reset; a refused one is a fault.
fn request(tor: &Namespace, monitor: &RouteMonitor, prefix: IpNet) -> Result<usize> {
    let at: Instant = monitor.wait(&[prefix], true, PATIENCE)?.into_iter().next().context("a time")?;
    let (target, mut count, mut moved) = (SocketAddr::from((prefix.addr(), SERVICE_PORT)), 0, 0);
    while at.elapsed() < REQUESTS {
        let greeting: Result<IpAddr> = greeted_within(tor, target, AT_ONCE);
        if let Err(error) = greeting {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            moved += usize::from(kind == Some(io::ErrorKind::ConnectionReset));
            let allowed = kind == Some(io::ErrorKind::ConnectionReset) && moved < NODES.len();
            ensure!(allowed, "request {count}, {:?} after the route: {error:#}", at.elapsed());
        }
        count += 1;
        // The sockets of closed connections stay for a minute.
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(count)
}
