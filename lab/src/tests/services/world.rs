//! A topology with the matrix' pods and kube-proxy on each node, and the connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cells::{Cell, Client};
use super::plan::{Ask, BACKEND_PORT, Plan, Pod};
use crate::cni::{self, Sandbox};
use crate::kube::Cluster;
use crate::kube::daemon::Daemon;
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::packages;
use crate::progress::{say, seconds, table};
use crate::tests::bed::Bed;
use crate::tests::greeter::{Greeter, greeted_within};

/// The packages of portmap, and of the programs with which portmap and kube-proxy write rules.
pub(super) const PACKAGES: [&str; 3] = ["containernetworking-plugins", "iptables", "nftables"];

/// Time limits of a connection that must succeed, and of a connection that must fail. Within both
/// limits a lost SYN is retransmitted.
const ANSWERED: Duration = Duration::from_secs(5);
const REFUSED: Duration = Duration::from_secs(2);

/// Number of concurrent connections. Connections that must fail need most of the time.
const AT_ONCE: usize = 48;

/// Number of cells that an error names.
const NAMED: usize = 6;

/// Requirements of kube-proxy.
pub(super) struct Proxies<'a> {
    /// The folder for logs.
    pub folder: &'a Path,
    pub program: &'a Path,
    pub kubeconfig: &'a Path,
    pub mode: Mode,
}

/// Writes all objects for kube-proxy; returns its kubeconfig.
pub(super) fn prepare(cluster: &Cluster, plan: &Plan) -> Result<PathBuf> {
    let (namespace, account) = proxy::ACCOUNT;
    let kubeconfig = cluster.service_account(namespace, account)?;
    cluster.create(proxy::RIGHTS)?;
    cluster.create(&plan.objects()?)?;
    Ok(kubeconfig)
}

/// Writes Services' statuses, as the controller of a load balancer does.
pub(super) fn write_statuses(
    cluster: &Cluster,
    statuses: impl IntoIterator<Item = (String, Value)>,
) -> Result<()> {
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    cluster.wait(async {
        for (name, status) in statuses {
            services.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Ok(())
    })
}

/// An EndpointSlice with one backend of a Service.
pub(super) fn endpoints(service: &str, family: &str, address: &str, port: u16, node: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{}", family.to_lowercase()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": family,
        "ports": [{ "name": "", "port": port, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true }, "nodeName": node }],
    })
}

/// A connection to make, with the source that the backend must see, or `None` if there must be no
/// connection.
struct Wanted<'a> {
    ask: Ask,
    source: Option<IpAddr>,
    from: &'a Namespace,
}

/// The matrix' pods with their servers, and kube-proxy on each node.
pub(super) struct Matrix<'a> {
    bed: &'a Bed<'a>,
    plan: &'a Plan,
    proxies: Vec<Daemon>,
    namespaces: BTreeMap<String, Namespace>,
    _servers: Vec<Greeter>,
}

impl<'a> Matrix<'a> {
    /// Starts kube-proxy on each node, and attaches the pods.
    pub(super) fn start(
        bed: &'a Bed<'a>,
        plan: &'a Plan,
        of: &Proxies<'_>,
        attach: &dyn Fn(&Pod) -> Result<Namespace>,
        patience: Duration,
    ) -> Result<Self> {
        packages::need(PACKAGES)?;
        let mut proxies = Vec::new();
        for node in plan.all_nodes() {
            let host = bed.host(node.name)?;
            proxies.push((proxy::start(of.folder, host, of.program, of.kubeconfig, of.mode)?, host));
        }
        let pods = plan.pods()?;
        let (mut namespaces, mut servers) = (BTreeMap::new(), Vec::new());
        for pod in &pods {
            let ns = attach(pod)?;
            servers.push(Greeter::listen(&ns, BACKEND_PORT)?);
            namespaces.insert(pod.name.clone(), ns);
        }
        for (proxy, host) in &mut proxies {
            proxy::wait_rules(proxy, host, of.mode, "default", &plan.services())?;
        }
        reaches(bed, plan, &pods, patience)?;
        let proxies = proxies.into_iter().map(|(proxy, _)| proxy).collect();
        Ok(Self { bed, plan, proxies, namespaces, _servers: servers })
    }

    /// Makes the connection of every cell. Returns the result in words.
    pub(super) fn check_cells(&mut self) -> Result<String> {
        let mut wanted = Vec::new();
        for ask in self.plan.asks() {
            let from = match ask.cell.client {
                Client::Outside => &self.bed.host("outside")?.ns,
                Client::Node => &self.bed.host(self.plan.nodes[0].name)?.ns,
                Client::Pod => &self.namespaces[&self.plan.pod(ask.kind, None)?.name],
                Client::Backend => &self.namespaces[&self.plan.pod(ask.kind, Some(ask.cell.backend))?.name],
            };
            wanted.push(Wanted { ask, source: self.plan.source(ask)?, from });
        }
        let words = check(self.plan, &wanted)?;
        self.still_running()?;
        Ok(words)
    }

    /// Makes these connections from outside of the fabric, each with its promised source.
    pub(super) fn check_outside(&mut self, asks: Vec<(Ask, Option<IpAddr>)>) -> Result<String> {
        let from = &self.bed.host("outside")?.ns;
        let wanted: Vec<Wanted<'_>> =
            asks.into_iter().map(|(ask, source)| Wanted { ask, source, from }).collect();
        let words = check(self.plan, &wanted)?;
        self.still_running()?;
        Ok(words)
    }

    fn still_running(&mut self) -> Result<()> {
        self.proxies.iter_mut().try_for_each(Daemon::still_running)
    }
}

/// Attaches a pod without a cluster.
pub(super) fn attach(bed: &Bed<'_>, plan: &Plan, pod: &Pod) -> Result<Namespace> {
    let mut sandbox = Sandbox::create(bed.fabric, plan.nodes[pod.node].name, &pod.name)?;
    let [v4, v6] = pod.addresses;
    sandbox.args = format!("IP={v4},{v6}");
    add(bed, Some(plan.kinds[pod.kind].networks[pod.node]), pod, sandbox)
}

/// Attaches a pod in this network, or in the one that the API server names.
pub(super) fn add(bed: &Bed<'_>, network: Option<&str>, pod: &Pod, sandbox: Sandbox) -> Result<Namespace> {
    let mut chain = vec![cni::trunkline(network)];
    if let Some(port) = pod.host_port {
        chain.push(json!({
            "cniVersion": "1.0.0", "name": "lab", "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": {
                "portMappings": [{ "hostPort": port, "containerPort": BACKEND_PORT, "protocol": "tcp" }],
            },
        }));
    }
    let result = cni::run_chain(bed.fabric, "ADD", &chain, &sandbox)?;
    let addresses = cni::addresses(&result)?;
    ensure!(addresses == pod.addresses, "{} has {addresses:?}", pod.name);
    Ok(sandbox.ns)
}

/// Waits until every pod is reachable without a Service: from outside, or from its node if the pod
/// is in an overlay. Then a later failure is due to the Service.
fn reaches(bed: &Bed<'_>, plan: &Plan, pods: &[Pod], patience: Duration) -> Result<()> {
    for pod in pods {
        let node = bed.host(plan.nodes[0].name)?;
        for address in pod.addresses {
            crate::shell::wait_for(&format!("{} at {address}", pod.name), patience, || {
                let to = (address, BACKEND_PORT).into();
                greeted_within(&node.ns, to, ANSWERED).map(crate::shell::Seen::Yes)
            })?;
        }
    }
    Ok(())
}

/// Makes these connections, and fails if one is not as promised. Returns the result in words.
fn check(plan: &Plan, wanted: &[Wanted<'_>]) -> Result<String> {
    let start = Instant::now();
    let answers = connect(plan, wanted)?;
    judge(plan, &answers, start.elapsed())
}

/// A connection with its result.
type Answer<'a> = (&'a Wanted<'a>, Result<IpAddr>);

fn connect<'a>(plan: &Plan, wanted: &'a [Wanted<'a>]) -> Result<Vec<Answer<'a>>> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some(one) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            crate::interrupt::check()?;
            let bound = if one.source.is_some() { ANSWERED } else { REFUSED };
            let answer = greeted_within(one.from, plan.target(one.ask)?, bound);
            answers.lock().unwrap_or_else(|e| e.into_inner()).push((one, answer));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(answers.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Prints the cells that break their promise, and fails if there are any.
fn judge(plan: &Plan, answers: &[Answer<'_>], took: Duration) -> Result<String> {
    let mut wrong: BTreeMap<Cell, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for (Wanted { ask, source, .. }, answer) in answers {
        let right = match (*source, answer) {
            (Some(wanted), Ok(seen)) => wanted == *seen,
            (None, Err(_)) => true,
            _ => false,
        };
        if !right {
            count += 1;
            let seen = answer.as_ref().map_or_else(|e| e.root_cause().to_string(), ToString::to_string);
            let seen = if seen.starts_with("connection timed out") { "no answer".to_owned() } else { seen };
            let family = if ask.v4 { "IPv4" } else { "IPv6" };
            let words = format!("{} {family}: {seen}", plan.kinds[ask.kind].name);
            wrong.entry(ask.cell).or_default().push(words);
        }
    }
    if wrong.is_empty() {
        let refused = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        return Ok(format!(
            "{} connections in {}: {} with the promised source, {refused} refused as promised",
            answers.len(),
            seconds(took.as_secs_f64()),
            answers.len() - refused,
        ));
    }
    let rows: Vec<_> = wrong
        .iter()
        .map(|(cell, seen)| vec![cell.to_string(), cell.promise().to_string(), seen.join("; ")])
        .collect();
    say(&table(&rows));
    let named: Vec<String> =
        wrong.iter().take(NAMED).map(|(cell, seen)| format!("{cell} ({})", seen.join("; "))).collect();
    let all = answers.len();
    bail!(
        "{count} of {all} connections are not as promised: {} cells, such as {}",
        wrong.len(),
        named.join(" | ")
    )
}
