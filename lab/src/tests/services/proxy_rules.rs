//! The agent's reader of the service proxy, with the real kube-proxy in both modes at the same
//! time. Each has its own network namespace without links, and its own Node. The reader runs in the
//! lab's process, in threads inside these namespaces.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use trunkline_agent::services::proxy::ProxyObserver;
use trunkline_agent::services::{PortRules, Protocol, ProxyHealth, ProxyState, ServicesInput};
use trunkline_api::control::ProxyRulesState;

use super::world;
use crate::interrupt;
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::daemon::Daemon;
use crate::kube::proxy::{self, Mode};
use crate::netns::{Namespace, Temporary};
use crate::packages;
use crate::shell::{cmd, run as command};
use crate::tests::kube::cluster;
use crate::tests::{Context, Verdict, passed};

/// Time limit for a state of one reader; kube-proxy needs half a minute for its first rules on a
/// busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The prefixes of cluster, external and LoadBalancer addresses.
const INTEREST: [&str; 6] = [
    "10.96.7.0/24",
    "fd00:96::71/128",
    "198.51.100.0/24",
    "2001:db8:100::/64",
    "203.0.113.0/24",
    "2001:db8:113::/64",
];
const CLUSTER: [&str; 2] = ["10.96.7.1", "fd00:96::71"];
const EXTERNAL: [&str; 2] = ["198.51.100.71", "2001:db8:100::71"];
const LOAD_BALANCER: [&str; 2] = ["203.0.113.71", "2001:db8:113::71"];
const PORTS: [(&str, Protocol, u16); 2] = [("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53)];

/// A node that does not exist, with an endpoint.
const ELSEWHERE: &str = "elsewhere";

type Ports = BTreeMap<(IpAddr, Protocol, u16), PortRules>;

pub(super) fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    packages::need(world::PACKAGES)?;
    cluster(context, "proxy-rules", |cluster| {
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = cluster.service_account(namespace, account)?;
        cluster.create(proxy::RIGHTS)?;
        cluster.create(&nodes()?)?;
        service(cluster, "Cluster")?;
        let tag = context.place.tag.as_deref().unwrap_or_default();
        let starts = [Mode::Iptables, Mode::Nftables].map(|mode| {
            let name = format!("proxy-{}{tag}", mode.name());
            let inside = Temporary::create(&name)?;
            let start = Start { cluster, program: &program, kubeconfig: &kubeconfig, mode };
            Node::start(inside, start)
        });
        let [first, second] = starts;
        follow(cluster, &mut [first?, second?])
    })
}

fn follow(cluster: &Cluster, nodes: &mut [Node<'_>; 2]) -> Result<Verdict> {
    let names = [Mode::Iptables, Mode::Nftables].map(Mode::name);
    let here = [names[0], names[1], ELSEWHERE];
    let everywhere = |rules| expected(rules, rules);
    let step = |nodes: &mut [Node<'_>; 2], what: &str, wanted: &Ports| {
        nodes.iter_mut().try_for_each(|node| node.wait_ports(what, wanted))
    };

    step(nodes, "a Service without endpoints", &everywhere(PortRules::Blocked))?;
    for node in nodes.iter_mut() {
        let visible =
            if node.mode == Mode::Nftables { ProxyRulesState::Nftables } else { ProxyRulesState::Iptables };
        node.wait_state("up, with visible rules", |state| {
            state.health == ProxyHealth::Up && state.rules == Some(visible)
        })?;
    }
    slices(cluster, &[ELSEWHERE])?;
    step(nodes, "an endpoint elsewhere", &everywhere(PortRules::Forwarded))?;
    service(cluster, "Local")?;
    let away = expected(PortRules::Forwarded, PortRules::Blocked);
    step(nodes, "policy Local, an endpoint elsewhere", &away)?;
    slices(cluster, &here)?;
    step(nodes, "policy Local, an endpoint here", &everywhere(PortRules::Forwarded))?;
    slices(cluster, &[])?;
    step(nodes, "no endpoint any more", &everywhere(PortRules::Blocked))?;
    slices(cluster, &here)?;
    step(nodes, "endpoints again", &everywhere(PortRules::Forwarded))?;

    // The rules stay when kube-proxy ends, and a new one writes the same rules.
    for node in nodes.iter_mut() {
        node.quiet = true;
        node.proxy.kill()?;
        node.wait_state("away after SIGKILL", |state| matches!(state.health, ProxyHealth::Away { .. }))?;
        node.restart()?;
        node.wait_state("up after a restart", |state| state.health == ProxyHealth::Up)?;
    }
    // A hung process keeps its connection: only a check finds it.
    for node in nodes.iter_mut() {
        kill_process(node.proxy.pid(), Signal::STOP)?;
        // A thread of the process may still answer the first check.
        node.wait("away after SIGSTOP", |node| {
            node.check.notify_one();
            matches!(node.state.health, ProxyHealth::Away { .. })
        })?;
        kill_process(node.proxy.pid(), Signal::CONT)?;
        node.wait_state("up after SIGCONT", |state| state.health == ProxyHealth::Up)?;
        node.quiet = false;
    }
    // kube-proxy repairs its rules later, so it must not do it before they are missing.
    for node in nodes.iter_mut() {
        node.proxy.kill()?;
        command(&mut cmd("ip", ["netns", "exec", node.inside.ns.name(), "nft", "flush", "ruleset"]))?;
        node.wait_ports("flushed rules", &everywhere(PortRules::Missing))?;
        node.wait_state("no rules", |state| state.rules == Some(ProxyRulesState::Absent))?;
        node.restart()?;
    }
    step(nodes, "kube-proxy wrote its rules again", &everywhere(PortRules::Forwarded))?;
    let counts = nodes.each_ref().map(|node| format!("{}: {} inputs", node.mode.name(), node.inputs_read));
    passed(format!("both modes: endpoints, policies, SIGKILL, SIGSTOP, flush ({})", counts.join(", ")))
}

/// The rules of all ports, of the cluster addresses and of the others.
fn expected(cluster: PortRules, others: PortRules) -> Ports {
    let of = |addresses: [&'static str; 2], rules| addresses.into_iter().map(move |address| (address, rules));
    let addresses = of(CLUSTER, cluster).chain(of(EXTERNAL, others)).chain(of(LOAD_BALANCER, others));
    addresses
        .filter_map(|(address, rules)| Some((address.parse::<IpAddr>().ok()?, rules)))
        .flat_map(|(address, rules)| PORTS.map(|(_, protocol, port)| ((address, protocol, port), rules)))
        .collect()
}

fn nodes() -> Result<String> {
    let mut text = String::new();
    for mode in [Mode::Iptables, Mode::Nftables] {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": mode.name() },
            "status": { "addresses": [
                { "type": "InternalIP", "address": "192.0.2.1" },
                { "type": "InternalIP", "address": "2001:db8::1" },
            ] },
        });
        writeln!(text, "{node}\n---")?;
    }
    Ok(text)
}

/// Writes the Service with this external traffic policy, and its status.
fn service(cluster: &Cluster, policy: &str) -> Result<()> {
    let ports = PORTS.map(|(name, protocol, port)| {
        json!({ "name": name, "protocol": protocol, "port": port, "targetPort": port })
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": {
            "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack",
            "clusterIP": CLUSTER[0], "clusterIPs": CLUSTER, "externalIPs": EXTERNAL,
            "externalTrafficPolicy": policy, "ports": ports,
        },
    });
    cluster.apply(&service.to_string())?;
    let ingress = LOAD_BALANCER.map(|address| json!({ "ip": address, "ipMode": "VIP" }));
    let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
    world::write_statuses(cluster, [("web".to_owned(), status)])
}

/// Writes the EndpointSlices, with one ready endpoint on each of these nodes.
fn slices(cluster: &Cluster, nodes: &[&str]) -> Result<()> {
    let mut text = String::new();
    for (family, prefix) in [("IPv4", "192.0.2.10"), ("IPv6", "2001:db8::10")] {
        let endpoints: Vec<Value> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                json!({
                    "addresses": [format!("{prefix}{index}")], "nodeName": node,
                    "conditions": { "ready": true },
                })
            })
            .collect();
        let ports =
            PORTS.map(|(name, protocol, port)| json!({ "name": name, "protocol": protocol, "port": port }));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("web-{}", family.to_lowercase()),
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": family, "ports": ports, "endpoints": endpoints,
        });
        writeln!(text, "{slice}\n---")?;
    }
    cluster.apply(&text).map(drop)
}

/// Requirements of kube-proxy on a node.
#[derive(Clone, Copy)]
struct Start<'a> {
    cluster: &'a Cluster,
    program: &'a std::path::Path,
    kubeconfig: &'a std::path::Path,
    mode: Mode,
}

impl Start<'_> {
    fn kube_proxy(&self, ns: &Namespace) -> Result<Daemon> {
        let mut start = cmd("ip", ["netns", "exec", ns.name()]);
        start.arg(self.program).args(proxy::flags(self.kubeconfig, self.mode.name(), self.mode));
        self.cluster.daemon(&format!("kube-proxy-{}", self.mode.name()), start)
    }
}

/// A node with kube-proxy, and the agent's reader of it.
struct Node<'a> {
    start: Start<'a>,
    mode: Mode,
    proxy: Daemon,
    _doorway: crate::kube::doorway::Doorway,
    check: Arc<Notify>,
    inputs: Receiver<ServicesInput>,
    inputs_read: usize,
    reader: Option<JoinHandle<()>>,
    _interest: watch::Sender<Vec<ipnet::IpNet>>,
    ports: Ports,
    state: ProxyState,
    /// Whether a changed port is a failure.
    quiet: bool,
    inside: Temporary,
}

impl<'a> Node<'a> {
    fn start(inside: Temporary, start: Start<'a>) -> Result<Node<'a>> {
        let doorway = start.cluster.doorway(&inside.ns)?;
        let prefixes = INTEREST.iter().map(|prefix| Ok(prefix.parse()?)).collect::<Result<Vec<_>>>()?;
        let (interest, receiver) = watch::channel(prefixes);
        let check = Arc::new(Notify::new());
        let observer = ProxyObserver {
            health_address: Some(([127, 0, 0, 1], 10_256).into()),
            interest: receiver,
            check: Arc::clone(&check),
        };
        let (sender, inputs) = channel();
        let ns = inside.ns.clone();
        let reader = std::thread::spawn(move || {
            let observe = || -> Result<()> {
                ns.enter()?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let (into, mut from) = tokio::sync::mpsc::channel(16);
                    observer.spawn(into)?;
                    while let Some(input) = from.recv().await {
                        if sender.send(input).is_err() {
                            break;
                        }
                    }
                    Ok(())
                })
            };
            if let Err(error) = observe() {
                crate::progress::say(&format!("the reader ended: {error:#}"));
            }
        });
        let proxy = start.kube_proxy(&inside.ns)?;
        Ok(Node {
            start,
            mode: start.mode,
            proxy,
            _doorway: doorway,
            check,
            inputs,
            inputs_read: 0,
            reader: Some(reader),
            _interest: interest,
            ports: Ports::new(),
            state: ProxyState { health: ProxyHealth::Unknown, rules: None },
            quiet: false,
            inside,
        })
    }

    fn restart(&mut self) -> Result<()> {
        self.proxy = self.start.kube_proxy(&self.inside.ns)?;
        Ok(())
    }

    fn wait_ports(&mut self, what: &str, wanted: &Ports) -> Result<()> {
        let missing: Ports = wanted.keys().map(|port| (*port, PortRules::Missing)).collect();
        self.wait(what, |node| {
            let mut found = missing.clone();
            found.extend(&node.ports);
            found == *wanted
        })
    }

    fn wait_state(&mut self, what: &str, is: impl Fn(&ProxyState) -> bool) -> Result<()> {
        self.wait(what, |node| is(&node.state))
    }

    fn wait(&mut self, what: &str, is: impl Fn(&Node<'_>) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !is(self) {
            interrupt::check()?;
            match self.inputs.recv_timeout(Duration::from_millis(200)) {
                Ok(input) => {
                    self.take(input).with_context(|| format!("{what}, mode {}", self.mode.name()))?
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("mode {}: never {what}: {:?}, {:?}", self.mode.name(), self.state, self.ports);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("the reader ended")),
            }
        }
        Ok(())
    }

    fn take(&mut self, input: ServicesInput) -> Result<()> {
        self.inputs_read += 1;
        match input {
            ServicesInput::Rules(rules) => {
                ensure!(!self.quiet, "nothing changed, but the reader reported {rules:?}");
                if rules.complete {
                    self.ports.clear();
                }
                self.ports.extend(
                    rules
                        .changes
                        .iter()
                        .map(|change| ((change.address, change.protocol, change.port), change.rules)),
                );
            }
            ServicesInput::Proxy(state) => self.state = state,
            other => bail!("the reader sent {other:?}"),
        }
        Ok(())
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        let _gone = self.proxy.kill();
        // The thread ends with its next input at the latest; the namespace outlives it otherwise.
        let (_, closed) = channel();
        self.inputs = closed;
        drop(self.reader.take());
    }
}
